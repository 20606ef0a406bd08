"""Moves, conversions, memory, shuffles and votes of every generation ("Data Movement and Conversion", "Atomics")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from faperf.emulator.batch import PURE, READ, WRITE
from faperf.emulator.decode import LOCAL_WINDOW, PARAM_WINDOW, Decoder, Operation, addresses, all_addresses, handles
from faperf.emulator.fault import OUT_OF_BOUNDS, DiagnosisError, NotEmulatedError
from faperf.emulator.memory import SHARED_WINDOW, UNITS
from faperf.emulator.ops_common import (
    Elementwise,
    canonical,
    computed,
    in_turn_where_wrong,
    only,
    selected,
    spaces,
    together,
    type_of,
)
from faperf.emulator.ptx import TYPE_BITS, Instruction
from faperf.emulator.rounding import brain, half, positive
from faperf.emulator.state import DTYPES, STORAGE, WARP, Array, Path

# ── moves and conversions ────────────────────────────────────────────────────────────────────────────────────────────


@handles("mov", memory=PURE)
def _move(d: Decoder, ins: Instruction) -> Elementwise:
    if "pred" in ins:
        return computed(d, "pred", [("pred", ins.operands[1])], ins.operands[0], _same, ins)
    bits = int(type_of(ins)[1:])
    if not any("{" in text for text in ins.operands):
        kind = f"u{bits}"
        return computed(d, kind, [(kind, ins.operands[1])], ins.operands[0], _same, ins)
    targets, sources = (d.vector(text) for text in ins.operands)
    small = bits // max(len(targets), len(sources))
    large, store, kind = STORAGE[bits], STORAGE[small], f"u{bits}"
    if len(targets) == 1:

        def pack(*parts: Array) -> Array:
            together = np.stack(np.broadcast_arrays(*parts), axis=-1)
            return together.view(large)[..., 0]

        count = len(sources)
        return computed(d, kind, [(f"u{small}", text) for text in sources], targets[0], pack, ins, count)

    def unpack(whole: Array) -> Any:
        apart = whole.view(store).reshape(*whole.shape, len(targets))
        return tuple(apart[..., n] for n in range(len(targets)))

    outs = [(f"u{small}", d.out(text, small)) for text in targets]
    return Elementwise(ins, outs, [(kind, d.row(sources[0], bits))], unpack)


def _same(values: Array) -> Array:
    return values


ROUND: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
    "rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil,
}  # fmt: skip


@handles("cvt", memory=PURE)
def _convert(d: Decoder, ins: Instruction) -> Elementwise:
    only(ins, *ROUND, "bf16", "bf16x2", "relu", "satfinite")
    kinds = [canonical(part) for part in ins.parts[1:] if part in TYPE_BITS or part in ("bf16", "bf16x2")]
    target, source = kinds
    if source == "f32" and target in ("f16", "bf16", "f16x2", "bf16x2"):
        return _narrow(d, ins, target)
    if source == "bf16" and target == "f32":
        return computed(
            d, "u32", [("u16", ins.operands[1])], ins.operands[0], lambda x: x.astype(np.uint32) << np.uint32(16), ins
        )
    if {"bf16", "bf16x2", "f16x2"} & set(kinds) or {"relu", "satfinite"} & set(ins.parts) or len(ins.operands) != 2:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    return _convert_plain(d, ins, target, source)


LARGEST = {"f16": np.float32(65504), "bf16": np.float32(2.0**128 - 2.0**120)}


def _narrow(d: Decoder, ins: Instruction, target: str) -> Elementwise:
    """One or two f32 to f16 or bf16; of two the first is the upper half."""
    mode = next((part for part in ins.parts if part in ("rn", "rz")), None)
    if mode is None or "sat" in ins:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    kind, relu, finite = target.removesuffix("x2"), "relu" in ins, "satfinite" in ins
    round_to = brain if kind == "bf16" else lambda x, mode: half(x, mode).view(np.uint16)

    def bits(x: Array) -> Array:
        if relu:
            x = positive(x)
        if finite:
            x = np.clip(x, -LARGEST[kind], LARGEST[kind])
        return round_to(x, mode)

    if target == kind:
        return computed(d, "u16", [("f32", ins.operands[1])], ins.operands[0], bits, ins)

    def pack(high: Array, low: Array) -> Array:
        both = np.empty((*np.broadcast_shapes(high.shape, low.shape), 2), np.uint16)
        both[..., 0], both[..., 1] = bits(low), bits(high)
        packed: Array = both.view(np.uint32)[..., 0]
        return packed

    return computed(d, "u32", [("f32", text) for text in ins.operands[1:]], ins.operands[0], pack, ins)


def _convert_plain(d: Decoder, ins: Instruction, target: str, source: str) -> Elementwise:
    """Between integers and floats. Integers are cut, or sign-extended, to the width of the register that holds them."""
    wide_in, wide_out = d.bits(ins.operands[1], int(source[1:])), d.bits(ins.operands[0], int(target[1:]))
    mode = next((ROUND[part] for part in ins.parts if part in ROUND), None)
    narrow_from = np.dtype(f"{ {'u': 'u', 's': 'i', 'f': 'f'}[source[0]] }{int(source[1:]) // 8}".replace(" ", ""))
    narrow_to = np.dtype(f"{ {'u': 'u', 's': 'i', 'f': 'f'}[target[0]] }{int(target[1:]) // 8}".replace(" ", ""))
    to_float, from_float, sat = target[0] == "f", source[0] == "f", "sat" in ins
    if to_float and mode not in (None, np.rint) and not (from_float and target == source):
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    kept = f"u{wide_out}" if not to_float else target

    def convert(x: Array) -> Array:
        value = x.astype(narrow_from)
        if from_float and not to_float:
            limit = np.iinfo(narrow_to)
            whole = np.nan_to_num((mode or np.trunc)(value.astype(np.float64)))
            low, high = float(limit.min), float(limit.max)
            result = np.where(whole >= high, limit.max, np.clip(whole, low, np.nextafter(high, 0)).astype(narrow_to))
            value = result.astype(narrow_to)
            if limit.bits == 64:  # a NaN is 0 in 32 bits and less, and the top bit alone in 64
                value = np.where(np.isnan(x), np.uint64(1 << 63).astype(narrow_to), value)
        elif from_float and target == source:
            value = mode(value) if mode is not None and any(p.endswith("i") for p in ins.parts if p in ROUND) else value
        elif sat and not to_float:
            limit = np.iinfo(narrow_to)
            value = np.clip(value.astype(np.int64), limit.min, limit.max)
        value = value.astype(narrow_to)
        return (
            value
            if to_float
            else value.astype(np.dtype(f"{'i' if target[0] == 's' else 'u'}{wide_out // 8}")).view(
                np.dtype(f"u{wide_out // 8}")
            )
        )

    kind = source if from_float else f"u{wide_in}" if source[0] == "u" else f"s{wide_in}"
    return computed(d, kept, [(kind, ins.operands[1])], ins.operands[0], convert, ins)


@handles("cvta", memory=PURE)
def _to_address(d: Decoder, ins: Instruction) -> Elementwise:
    """To and from generic addresses: a window for each space; global addresses are generic as they are."""
    window = {"local": LOCAL_WINDOW, "global": 0, "const": 0, "param": 0}.get(
        next(p for p in ins.parts if p in ("local", "global", "const", "param") or p.startswith("shared")),
        SHARED_WINDOW,
    )
    bits = int(type_of(ins)[1:])
    shift = -window if "to" in ins else window
    return computed(d, f"s{bits}", [(f"s{bits}", ins.operands[1])], ins.operands[0], lambda x: x + np.int64(shift), ins)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _space(ins: Instruction) -> str:
    if "shared::cluster" in ins:
        return "shared"
    return next(
        (p.replace("::cta", "") for p in ins.parts if p in ("shared", "shared::cta", "global", "local", "const")), ""
    )


def _units(ins: Instruction) -> tuple[str, int, int]:
    """(type, bytes of an element, elements)."""
    kind = canonical(next(part for part in reversed(ins.parts) if part in TYPE_BITS))
    count = next((int(part[1:]) for part in ins.parts if part in ("v2", "v4", "v8")), 1)
    return kind, int(kind[1:]) // 8, count


@dataclass(frozen=True)
class Access:
    """A load or store of `count` units of `size` bytes a lane. `rows` are (type, row) of each; `signed` loads are extended."""

    ins: Instruction
    key: Any
    space: str
    address: Any
    size: int
    count: int
    rows: list[tuple[str, int]]
    signed: bool = False

    @property
    def bytes(self) -> int:
        return self.size * self.count


class Load(Access):
    def run(self, path: Path) -> None:
        self.do(path, [self])

    @staticmethod
    def together(parts: list[Load]) -> Operation:
        return in_turn_where_wrong(lambda path: Load.do(path, parts), parts)

    @staticmethod
    def do(path: Path, parts: list[Load]) -> None:
        one = parts[0]
        where, at = spaces(path, one.space, all_addresses(path, [part.address for part in parts]), one.ins)
        memory: Any = {"global": path.wave.memory, "shared": path.wave.shared, "local": path.wave.local}[where]
        offset = memory.locate(path, at, one.bytes, one.ins)
        if where == "shared":
            memory.read(path, offset, one.bytes, one.ins)
            if one.bytes >= 4 and not {"volatile", "relaxed", "acquire"} & set(one.ins.parts):
                path.wave.moments.load(path, offset, one.bytes, [part.ins for part in parts])
        values = memory.view(one.size, one.count).take(offset // one.bytes, axis=0)
        for part, mine in zip(parts, values, strict=True):
            part.spread(path, mine)

    def spread(self, path: Path, values: Array) -> None:
        """Values [lanes, count] to their registers."""
        for index, (kind, row) in enumerate(self.rows):
            column = values[:, index]
            if self.signed:
                column = column.view(f"i{self.size}").astype(f"i{int(kind[1:]) // 8}")
            path.put(path.r[kind][row], column)


class Store(Access):
    def run(self, path: Path) -> None:
        self.do(path, [self])

    @staticmethod
    def together(parts: list[Store]) -> Operation:
        return in_turn_where_wrong(lambda path: Store.do(path, parts), parts)

    @staticmethod
    def do(path: Path, parts: list[Store]) -> None:
        one = parts[0]
        where, at = spaces(path, one.space, all_addresses(path, [part.address for part in parts]), one.ins)
        memory: Any = {"global": path.wave.memory, "shared": path.wave.shared, "local": path.wave.local}[where]
        offset = memory.locate(path, at, one.bytes, one.ins)
        if where == "shared":
            memory.write(path, offset, one.bytes, one.ins)
            path.wave.moments.store(path, offset, one.bytes, [part.ins for part in parts])
        r, mask = path.r, path.mask
        values = np.empty((*offset.shape, one.count), UNITS[one.size])
        for index, part in enumerate(parts):
            for unit, (kind, row) in enumerate(part.rows):
                source = r[kind][row]
                values[index, :, unit] = source if mask is True else source[mask]
        memory.put(one.size, one.count, offset.reshape(-1), values.reshape(-1, one.count))


@handles("ld", "ldu", memory=READ)
def load(d: Decoder, ins: Instruction) -> Operation | Load:
    only(ins, "v2", "v4", "v8", "shared::cluster", "mmio", "b128", "L2::cache_hint")
    kind, size, count = _units(ins)
    names = d.vector(ins.operands[0])
    widths = [d.bits(name, 8 * size) for name in names]
    rows = [(f"u{width}", d.out(name, width)) for name, width in zip(names, widths, strict=True)]
    parameter = d.parameter(ins.operands[1])
    extended = kind[0] == "s" and any(width != 8 * size for width in widths)
    if parameter is None and "param" in ins:
        return _load_parameter_at(d, ins, Load(ins, None, "", None, size, count, rows, extended))
    if parameter is None:
        address, space = d.address(ins.operands[1]), _space(ins)
        key = ("ld", space, address.kind, size, count, tuple(widths))
        return Load(ins, key, space, address, size, count, rows, extended)
    one = Load(ins, None, "", None, size, count, rows, extended)

    def load_parameter(path: Path) -> None:
        content = np.frombuffer(path.wave.extra["parameters"], UNITS[size], count, parameter)
        one.spread(path, np.broadcast_to(content, (len(path.lanes()), count)).copy())

    return load_parameter


def _load_parameter_at(d: Decoder, ins: Instruction, one: Load) -> Operation:
    """A parameter of the kernel whose address a register holds. Raises DiagnosisError beyond them."""
    address = d.address(ins.operands[1])
    size = one.size * one.count

    def run(path: Path) -> None:
        content = np.frombuffer(path.wave.extra["parameters"], np.uint8)
        offset = addresses(path, address) - PARAM_WINDOW
        if ((offset < 0) | (offset > len(content) - size)).any():
            raise DiagnosisError(OUT_OF_BOUNDS, f"reads {size} bytes outside of the kernel's parameters", ins.place)
        chosen = content[offset[:, None] + np.arange(size)]
        one.spread(path, chosen.view(UNITS[one.size]))

    return run


@handles("st", memory=WRITE)
def _store(d: Decoder, ins: Instruction) -> Store:
    only(ins, "v2", "v4", "v8", "shared::cluster", "mmio", "L2::cache_hint")
    if "async" in ins or "param" in ins:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    _, size, count = _units(ins)
    names = d.vector(ins.operands[1])
    widths = [d.bits(name, 8 * size) for name in names]
    rows = [(f"u{width}", d.row(name, width)) for name, width in zip(names, widths, strict=True)]
    address, space = d.address(ins.operands[0]), _space(ins)
    return Store(ins, ("st", space, address.kind, size, count, tuple(widths)), space, address, size, count, rows)


@handles("atom", "red")
def _atomic(d: Decoder, ins: Instruction) -> Operation:
    """One lane after the other, in the order of lanes."""
    kinds = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
    what = next(part for part in ins.parts if part in kinds)
    only(ins, *kinds, "shared::cluster")
    if what in ("inc", "dec"):
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    kind, space, returns = type_of(ins), _space(ins), ins.parts[0] == "atom"
    bits = int(kind[1:])
    out = d.out(ins.operands[0], bits) if returns else None
    rest = ins.operands[1:] if returns else ins.operands
    address, rows = d.address(rest[0]), [d.row(text, bits) for text in rest[1:]]
    combine: dict[str, Callable[..., Any]] = {
        "add": lambda old, new: old + new, "min": min, "max": max, "and": lambda old, new: old & new,
        "or": lambda old, new: old | new, "xor": lambda old, new: old ^ new, "exch": lambda old, new: new,
        "cas": lambda old, wanted, new: new if old == wanted else old,
    }  # fmt: skip
    function, dtype = combine[what], DTYPES[kind]

    def run(path: Path) -> None:
        where, at = spaces(path, space, addresses(path, address), ins)
        memory: Any = {"global": path.wave.memory, "shared": path.wave.shared}[where]
        index = memory.locate(path, at, bits // 8, ins) // (bits // 8)
        cells = memory.bytes.view(dtype)
        values = [path.pick(path.r[kind][row]) for row in rows]
        before = np.zeros(len(index), dtype)
        for lane, cell in enumerate(index):
            before[lane] = cells[cell]
            cells[cell] = function(cells[cell], *(value[lane] for value in values))
        memory.put(bits // 8, 1, index * (bits // 8), memory.view(bits // 8, 1)[index])
        if out is not None:
            path.put(path.r[kind][out], before)

    return run


# ── a warp together ──────────────────────────────────────────────────────────────────────────────────────────────────


def among(path: Path, members: Array, ins: Instruction) -> None:
    """Every lane that the mask names must be here."""
    if path.mask is not True:
        named = (members.reshape(-1, WARP) >> np.arange(WARP, dtype=np.uint32)) & np.uint32(1)
        gone = path.wave.exited[path.start : path.stop].reshape(-1, WARP)
        here = path.mask.reshape(-1, WARP)
        if (
            here & (here.astype(int) @ np.ones((WARP, 1), int) > 0) & ((named > 0) & ~here & ~gone).any(1)[:, None]
        ).any():
            raise NotEmulatedError(f"{ins.opcode} names lanes that are elsewhere", ins.place)


class Shuffle:
    """PTX ISA "shfl.sync": the source lane by mode, within segments given by c. Rows: source, b, c, members, out, predicate."""

    def __init__(self, ins: Instruction, mode: str, rows: tuple[int, ...]) -> None:
        self.ins, self.mode, self.rows = ins, mode, rows
        self.key = (mode, len(rows))

    def run(self, path: Path) -> None:
        Shuffle.together([self])(path)

    @staticmethod
    def together(parts: list[Shuffle]) -> Operation:
        first = parts[0]
        source, by, bound, members, to, *second = (
            selected(rows) for rows in zip(*(p.rows for p in parts), strict=True)
        )
        mode, lane = first.mode, np.arange(WARP)

        def run(path: Path) -> None:
            table, mask = path.r.tables["u32"], path.mask
            if mask is not True:
                for row in table[members]:
                    among(path, row, first.ins)
            warps = (path.stop - path.start) // WARP
            b = table[by].reshape(-1, warps, WARP).astype(np.int64) & 31
            c = table[bound].reshape(-1, warps, WARP).astype(np.int64)
            segment, clamp = (c >> 8) & 31, c & 31
            last = (lane & segment) | (clamp & ~segment)
            if mode == "up":
                chosen, good = lane - b, lane - b >= last
            elif mode == "down":
                chosen, good = lane + b, lane + b <= last
            elif mode == "bfly":
                chosen, good = lane ^ b, (lane ^ b) <= last
            else:
                chosen = (lane & segment) | (b & ~segment)
                good = chosen <= last
            chosen = np.where(good, chosen, lane)
            lines = np.broadcast_to(table[source].reshape(-1, warps, WARP), (len(parts), warps, WARP))
            result = np.take_along_axis(lines, np.broadcast_to(chosen, lines.shape), axis=2).reshape(len(parts), -1)
            answers = np.broadcast_to(good, lines.shape).reshape(len(parts), -1)
            for rows, made, kind in (
                ((to, result, "u32"), (*second, answers, "pred")) if second else ((to, result, "u32"),)
            ):
                out = path.r.tables[kind]
                out[rows] = made if mask is True else np.where(mask, made, out[rows])

        return run


@handles("shfl.sync", memory=PURE)
def _shuffle(d: Decoder, ins: Instruction) -> Shuffle:
    both = ins.operands[0].split("|")
    rows = [d.row(text, 32) for text in ins.operands[1:5]]
    outs = [d.out(both[0], 32), *(d.out(text, 1) for text in both[1:])]
    return Shuffle(ins, ins.parts[2], (*rows, *outs))


@handles("vote.sync", "activemask", memory=PURE)
def _vote(d: Decoder, ins: Instruction) -> Operation:
    bits = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
    if ins.parts[0] == "activemask":
        to = d.out(ins.operands[0], 32)

        def active(path: Path) -> None:
            here = np.broadcast_to(path.mask, path.stop - path.start).reshape(-1, WARP)
            path.put(path.r["u32"][to], path.pick(np.repeat((here * bits).sum(1).astype(np.uint32), WARP)))

        return active
    mode = ins.parts[2]
    negated = ins.operands[1].startswith("!")
    source, members = d.row(ins.operands[1].lstrip("!"), 1), d.row(ins.operands[2], 32)
    to = d.out(ins.operands[0], 32 if mode == "ballot" else 1)

    def run(path: Path) -> None:
        among(path, path.r["u32"][members], ins)
        here = np.broadcast_to(path.mask, path.stop - path.start).reshape(-1, WARP)
        value = path.r["pred"][source].reshape(-1, WARP)
        value = (~value if negated else value) & here
        if mode == "ballot":
            answer = np.repeat((value * bits).sum(1).astype(np.uint32), WARP)
            np.copyto(path.r["u32"][to], answer, where=path.mask)
            return
        every, some = (value | ~here).all(1), value.any(1)
        answer = {"all": every, "any": some, "uni": every | ~some}[mode]
        np.copyto(path.r["pred"][to], np.repeat(answer, WARP), where=path.mask)

    return run


@handles("redux.sync", memory=PURE)
def _reduce(d: Decoder, ins: Instruction) -> Operation:
    kind, what = type_of(ins), ins.parts[2]
    function = {
        "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[what]  # fmt: skip
    source, members, to = d.row(ins.operands[1], 32), d.row(ins.operands[2], 32), d.out(ins.operands[0], 32)

    def run(path: Path) -> None:
        together(path, ins)
        among(path, path.r["u32"][members], ins)
        values = path.r[kind][source].reshape(-1, WARP)
        np.copyto(path.r[kind][to], np.repeat(function.reduce(values, axis=1), WARP), where=path.mask)

    return run


@handles("elect.sync", memory=PURE)
def _elect(d: Decoder, ins: Instruction) -> Operation:
    """The lowest lane that is here is the leader."""
    both = ins.operands[0].split("|")
    to, chosen = d.out(both[0], 32), d.out(both[1], 1)

    def run(path: Path) -> None:
        together(path, ins)
        here = np.broadcast_to(path.mask, path.stop - path.start).reshape(-1, WARP)
        leader = here.argmax(1)
        np.copyto(path.r["u32"][to], np.repeat(leader, WARP).astype(np.uint32), where=path.mask)
        np.copyto(path.r["pred"][chosen], (np.arange(WARP) == leader[:, None]).reshape(-1), where=path.mask)

    return run


@handles("bar.warp.sync")
def _warp_barrier(d: Decoder, ins: Instruction) -> Operation:
    members = d.row(ins.operands[0], 32)
    return lambda path: among(path, path.r["u32"][members], ins)


@handles(
    "fence.proxy.alias", "prefetch",
    "prefetchu", "griddepcontrol", "nanosleep", "discard", "applypriority",
)  # fmt: skip
def _nothing(d: Decoder, ins: Instruction) -> Operation:
    """What orders or hints only."""
    return lambda path: None


@handles("fence.proxy.async")
def _proxy_fence(d: Decoder, ins: Instruction) -> Operation:
    """Only whether it is missing is followed: what threads write is there for the async proxy at once."""

    def run(path: Path) -> None:
        wave, warps = path.wave, np.unique(path.flat_warps)
        wave.proxied[warps] = wave.clocks[warps, warps // len(wave.ctas)]
        wave.proxy_fenced[warps] = wave.clocks[warps]

    return run
