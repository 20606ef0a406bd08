"""What op packs share: an instruction's type, modifiers that change nothing here, and closures made of numpy functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from faperf.emulator.cluster import WITHIN
from faperf.emulator.decode import (
    LOCAL_WINDOW,
    Decoder,
    Operation,
)
from faperf.emulator.fault import OUT_OF_BOUNDS, DiagnosisError, NotEmulatedError
from faperf.emulator.matrix import Footprint
from faperf.emulator.memory import CHUNK, SHARED_WINDOW
from faperf.emulator.ptx import TYPE_BITS, Instruction
from faperf.emulator.rounding import flushed, saturated
from faperf.emulator.state import RANK_BIT, Array, Path, bits_of

IGNORED = {
    "rn", "approx", "full", "wide", "lo", "hi", "ftz", "sat", "sync", "uni", "relaxed", "acquire", "release", "acq_rel", "gpu",
    "cta", "cluster", "sys", "weak", "volatile", "global", "shared", "shared::cta", "local", "param", "const", "nc", "ca", "cg",
    "cs", "lu", "cv", "wb", "wt", "L1::no_allocate", "L1::evict_first", "L1::evict_last", "L1::evict_normal",
    "L1::evict_unchanged", "L2::64B", "L2::128B", "L2::256B", "L2::evict_first", "L2::evict_last", "L2::evict_normal",
}  # fmt: skip


def type_of(ins: Instruction) -> str:
    """The last part that names a type, as a signed or unsigned integer or a float: `b32` is `u32`."""
    return canonical(next(part for part in reversed(ins.parts) if part in TYPE_BITS or part in ("bf16", "bf16x2")))


def canonical(kind: str) -> str:
    return f"u{kind[1:]}" if kind[0] == "b" and kind[1:].isdigit() else kind


def only(ins: Instruction, *allowed: str) -> None:
    """Raises NotEmulatedError for a modifier that is not known to be harmless."""
    for part in ins.parts[1:]:
        if part not in IGNORED and part not in allowed and part not in TYPE_BITS:
            raise NotEmulatedError(f"no emulation of .{part} in {ins.opcode}", ins.place)


def selected(rows: Sequence[int], each: bool = False) -> Any:
    """What picks rows of a table [row, lane]: a slice where they are neighbours, or all the same and not needed `each`."""
    first = rows[0]
    if len(rows) == 1 or (not each and all(row == first for row in rows)):
        return slice(first, first + 1)
    step = rows[1] - first
    if step > 0 and all(row == first + step * n for n, row in enumerate(rows)):
        return slice(first, rows[-1] + 1, step)
    return np.array(rows)


class Elementwise:
    """`outs = function(*sources)`, lane by lane and under the path's mask; each row with its type.

    The function takes arrays of lanes, or of rows of lanes, and gives an array (a tuple of them for several outs). A numpy ufunc
    may be given `out`.
    """

    __slots__ = ("chooses", "direct", "ftz", "function", "key", "outs", "sat", "sources")

    def __init__(
        self, ins: Instruction, outs: list[tuple[str, int]], sources: list[tuple[str, int]], function: Any, extra: Any = None
    ) -> None:  # fmt: skip
        self.outs, self.sources, self.function = outs, sources, function
        kinds = tuple(kind for kind, _ in outs)
        self.ftz, self.sat = "ftz" in ins, "sat" in ins and kinds[0][0] == "f"
        self.chooses = ins.parts[0] in ("max", "min", "neg", "abs")  # flushed afterwards it is as if flushed before
        self.direct = (
            isinstance(function, np.ufunc) and not self.sat and all(kind == kinds[0] for kind, _ in sources)
            and not (self.ftz and kinds[0] == "f32")
        )  # fmt: skip
        self.key = (ins.parts, kinds, tuple(kind for kind, _ in sources), extra)

    def run(self, path: Path) -> None:
        r = path.r
        if self.direct:
            kind, to = self.outs[0]
            self.function(*[r[k][row] for k, row in self.sources], out=r[kind][to], where=path.mask)
            return
        for (kind, row), values in zip(self.outs, self.results([r[k][row] for k, row in self.sources]), strict=True):
            if path.mask is True:
                r[kind][row][...] = values
            else:
                np.copyto(r[kind][row], values, where=path.mask, casting="unsafe")

    def results(self, sources: list[Array]) -> Sequence[Array]:
        """One for each out, with .ftz of floats that go in and come out, and .sat."""
        if self.ftz and not self.chooses:
            sources = [
                flushed(values) if kind == "f32" else values
                for (kind, _), values in zip(self.sources, sources, strict=True)
            ]
        made = self.function(*sources)
        results = made if len(self.outs) > 1 else (made,)
        if self.sat:
            results = tuple(saturated(values) for values in results)
        if self.ftz and self.outs[0][0] == "f32":
            results = tuple(flushed(values) for values in results)
        return results

    @staticmethod
    def together(parts: list[Elementwise]) -> Operation:
        first = parts[0]
        count = len(parts)
        sources = [
            (kind, selected([part.sources[n][1] for part in parts])) for n, (kind, _) in enumerate(first.sources)
        ]
        outs = [(kind, selected([part.outs[n][1] for part in parts])) for n, (kind, _) in enumerate(first.outs)]
        if any(len({part.outs[n][1] for part in parts}) < count for n in range(len(outs))):  # `_` more than once
            return _in_turn(parts)
        plain = not any(isinstance(rows, np.ndarray) for _, rows in outs)
        direct, function, results = first.direct and plain, first.function, first.results

        def run(path: Path) -> None:
            tables, mask = path.r.tables, path.mask
            values = [tables[kind][rows] for kind, rows in sources]
            if direct and mask is True:
                kind, rows = outs[0]
                function(*values, out=tables[kind][rows])
                return
            for (kind, rows), made in zip(outs, results(values), strict=True):
                table = tables[kind]
                if mask is True:
                    table[rows] = made
                elif plain:
                    np.copyto(table[rows], made, where=mask, casting="unsafe")
                else:
                    table[rows] = np.where(mask, made, table[rows])

        return run


def _in_turn(parts: Sequence[Any]) -> Operation:
    def run(path: Path) -> None:
        for part in parts:
            part.run(path)

    return run


def in_turn_where_wrong(batch: Operation, parts: Sequence[Any]) -> Operation:
    """A batch whose diagnosis is the first of its instructions' own."""

    def run(path: Path) -> None:
        try:
            batch(path)
        except DiagnosisError:
            for part in parts:
                part.run(path)
            raise

    return run


def ufunc(d: Decoder, ins: Instruction, function: Any, kind: str, operands: tuple[str, ...], out: str) -> Elementwise:
    """`out = function(*operands)`, all of one type."""
    if "sat" in ins and kind[0] != "f":
        raise NotEmulatedError(f"no emulation of .sat in {ins.opcode}", ins.place)
    return computed(d, kind, [(kind, text) for text in operands], out, function, ins)


def computed(
    d: Decoder, kind: str, sources: list[tuple[str, str]], out: str, function: Callable[..., Array], ins: Instruction,
    extra: Any = None,
) -> Elementwise:  # fmt: skip
    """`out = function(*sources)`, each source with its own type. Instructions of equal opcode, types and `extra` must have equal
    functions.
    """
    rows = [(k, d.row(text, bits_of(k))) for k, text in sources]
    return Elementwise(ins, [(kind, d.out(out, bits_of(kind)))], rows, function, extra)


def spaces(
    path: Path, space: str, address: Array, ins: Instruction, lanes: Array | None = None
) -> tuple[str, Array]:  # fmt: skip
    """The space of generic addresses, and the addresses in it. They are those of the path's lanes, or of `lanes`."""
    if space == "shared" and "shared::cluster" not in ins:
        own(path, address, ins, lanes)
    if space:
        return ("global" if space == "const" else space), address
    for name, window in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW)):
        inside = (address >= window) & (address < window + 2**32)
        if inside.all():
            return name, address - window
        if inside.any():
            raise NotEmulatedError(f"{ins.opcode} to several spaces at once", ins.place)
    return "global", address


def own(path: Path, address: Array, ins: Instruction, lanes: Array | None = None) -> None:
    """Raises DiagnosisError for a shared address in another CTA of the cluster, which only `shared::cluster` reaches."""
    wave = path.wave
    if wave.size == 1:
        return
    lanes = path.lanes() if lanes is None else lanes
    other = address >> RANK_BIT != wave.home_of_warp[wave.flat_warp[lanes]] % wave.size
    if other.any():
        which = int(np.argmax(other))
        who = wave.name_of(int(np.broadcast_to(lanes, other.shape).flat[which]))
        what = f"{who} accesses shared address {int(address.flat[which]):#x}, of another CTA, without .shared::cluster"
        raise DiagnosisError(OUT_OF_BOUNDS, what, ins.place)


def spread(path: Path, address: Array, mask: Array, size: int, ins: Instruction) -> tuple[Array, Array]:
    """(which lane of those that take part, the address) for each CTA of each lane's mask, at the same place in it.

    Raises DiagnosisError for CTAs that there are not, and for `size` bytes that are not in their shared memory.
    """
    wave, lanes = path.wave, path.lanes()
    wrong = (mask == 0) | (mask >> wave.size != 0)
    if wrong.any():
        first = int(np.argmax(wrong))
        what = f"{wave.name_of(int(lanes[first]))} names the CTAs {int(mask[first]):#x} of a cluster of {wave.size}"
        raise DiagnosisError(OUT_OF_BOUNDS, what, ins.place)
    ranks, which = np.nonzero(mask >> np.arange(wave.size)[:, None] & 1)
    address = address[which] & WITHIN | ranks << RANK_BIT
    wave.shared.locate(path, address, size, ins, align=1, lanes=lanes[which], later=True)
    return which, address


def together(path: Path, ins: Instruction) -> None:
    """A warp-wide instruction needs its lanes here. Raises NotEmulatedError where they are apart."""
    if not path.whole_warps():
        raise NotEmulatedError(f"{ins.opcode} by a part of a warp while its other lanes are elsewhere", ins.place)


def within(path: Path, place: Footprint, ins: Instruction) -> None:
    """Raises DiagnosisError for an operand that is not in the CTA's shared memory."""
    rank = int(path.ranks[0]) << RANK_BIT if path.wave.size > 1 else 0
    for chunk in (place.chunks.min(), place.chunks.max()):
        path.wave.shared.locate(path, np.array([rank | chunk << 4]), CHUNK, ins, lanes=path.lanes()[:1])
