"""What op packs share: an instruction's type, modifiers that change nothing here, and closures made of numpy functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from faperf.emulator.decode import (
    LOCAL_WINDOW,
    Decoder,
    Operation,
)
from faperf.emulator.fault import NotEmulatedError
from faperf.emulator.memory import SHARED_WINDOW
from faperf.emulator.ptx import TYPE_BITS, Instruction
from faperf.emulator.rounding import flushed, saturated
from faperf.emulator.state import Array, Path

IGNORED = {
    "rn", "approx", "full", "wide", "lo", "hi", "ftz", "sat", "sync", "uni", "relaxed", "acquire", "release", "gpu", "cta",
    "sys", "weak", "volatile", "global", "shared", "shared::cta", "local", "param", "const", "nc", "ca", "cg", "cs", "lu",
    "cv", "wb", "wt", "L1::no_allocate", "L1::evict_first", "L1::evict_last", "L1::evict_normal", "L1::evict_unchanged",
    "L2::64B", "L2::128B", "L2::256B", "L2::evict_first", "L2::evict_last", "L2::evict_normal",
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


def ufunc(d: Decoder, ins: Instruction, function: Any, kind: str, operands: tuple[str, ...], out: str) -> Operation:
    """`out = function(*operands)`, all of one type, under the path's mask."""
    bits = int(kind[1:])
    rows = [d.row(text, bits) for text in operands]
    to = d.out(out, bits)
    ftz, sat = "ftz" in ins and kind == "f32", "sat" in ins
    if sat and kind[0] != "f":
        raise NotEmulatedError(f"no emulation of .sat in {ins.opcode}", ins.place)
    if ftz:

        def flushing(path: Path) -> None:
            r = path.r[kind]
            function(*(flushed(r[row]) for row in rows), out=r[to], where=path.mask)

        made: Operation = flushing
    elif len(rows) == 1:
        (a,) = rows

        def unary(path: Path) -> None:
            r = path.r[kind]
            function(r[a], out=r[to], where=path.mask)

        made = unary
    else:
        a, b = rows

        def binary(path: Path) -> None:
            r = path.r[kind]
            function(r[a], r[b], out=r[to], where=path.mask)

        made = binary
    return finished(made, kind, to, ftz, sat)


def finished(made: Operation, kind: str, to: int, ftz: bool, sat: bool) -> Operation:
    """With .ftz and .sat, where they are asked for."""
    ftz, sat = ftz and kind == "f32", sat and kind[0] == "f"
    if not ftz and not sat:
        return made

    def with_modifiers(path: Path) -> None:
        made(path)
        row = path.r[kind][to]
        if sat:
            np.copyto(row, saturated(row), where=path.mask)
        if ftz:
            np.copyto(row, flushed(row), where=path.mask)

    return with_modifiers


def computed(d: Decoder, kind: str, sources: list[tuple[str, str]], out: str,
             function: Callable[..., Array], ins: Instruction) -> Operation:  # fmt: skip
    """`out = function(*sources)`, each source with its own type; the result is written under the mask."""
    rows = [(k, d.row(text, 1 if k == "pred" else int(k[1:]))) for k, text in sources]
    to = d.out(out, int(kind[1:]))
    ftz = "ftz" in ins

    def run(path: Path) -> None:
        r = path.r
        values = [flushed(r[k][row]) if ftz and k == "f32" else r[k][row] for k, row in rows]
        np.copyto(r[kind][to], function(*values), where=path.mask, casting="unsafe")

    return finished(run, kind, to, "ftz" in ins, "sat" in ins)


def spaces(path: Path, space: str, address: Array, ins: Instruction) -> tuple[str, Array]:
    """The space of generic addresses, and the addresses in it."""
    if space:
        return ("global" if space == "const" else space), address
    for name, window in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW)):
        inside = (address >= window) & (address < window + 2**32)
        if inside.all():
            return name, address - window
        if inside.any():
            raise NotEmulatedError(f"{ins.opcode} to several spaces at once", ins.place)
    return "global", address


def together(path: Path, ins: Instruction) -> None:
    """A warp-wide instruction needs its lanes here. Raises NotEmulatedError where they are apart."""
    if not path.whole_warps():
        raise NotEmulatedError(f"{ins.opcode} by a part of a warp while its other lanes are elsewhere", ins.place)
