"""Calls of the two functions that every kernel may have: printf, which prints nothing here, and a failed assert."""

from __future__ import annotations

import re

import numpy as np

from faperf.emulator.decode import Decoder, Operation, handles
from faperf.emulator.fault import ASSERTION, DiagnosisError, NotEmulatedError
from faperf.emulator.ops_data import Load, load
from faperf.emulator.ptx import Instruction
from faperf.emulator.state import Path


@handles("call")
def _call(d: Decoder, ins: Instruction) -> Operation:
    """Any other function ends the emulation where it is called, not before: most are never reached."""
    name = next(text for text in ins.operands if not text.startswith("("))
    if name == "vprintf":
        return lambda path: None

    def fail(path: Path) -> None:
        if name == "__assertfail":
            who = path.wave.name_of(int(path.lanes()[0]))
            raise DiagnosisError(ASSERTION, f"{who} fails an assert", ins.place)
        raise NotEmulatedError(f"a call of {name}", ins.place)

    return fail


@handles("brkpt")
def _break(d: Decoder, ins: Instruction) -> Operation:
    """Kernels say so that something went wrong, as with an assert."""

    def fail(path: Path) -> None:
        raise DiagnosisError(ASSERTION, f"{path.wave.name_of(int(path.lanes()[0]))} comes to a breakpoint", ins.place)

    return fail


@handles("st.param")
def _give(d: Decoder, ins: Instruction) -> Operation:
    """An argument of a call, which is a register here."""
    name = _name(ins.operands[0])
    bits = d.bits(name, 0)
    if not bits:
        raise NotEmulatedError(f"no emulation of {ins.opcode} to {name}", ins.place)
    if not re.fullmatch(r"\[[\w$%]+(\+0)?\]", ins.operands[0]):
        raise NotEmulatedError(f"no emulation of {ins.opcode} to {ins.operands[0]}", ins.place)
    source, to = d.row(ins.operands[1], bits), d.out(name, bits)
    kind = f"u{bits}"
    return lambda path: np.copyto(path.r[kind][to], path.r[kind][source], where=path.mask)


@handles("ld.param")
def _take(d: Decoder, ins: Instruction) -> Operation | Load:
    """What a call gave, or a parameter of the kernel."""
    name = _name(ins.operands[1])
    if name.startswith("%") or not d.bits(name, 0):
        return load(d, ins)  # type: ignore[no-any-return]
    bits = d.bits(name, 0)
    source, to, kind = d.row(name, bits), d.out(ins.operands[0], bits), f"u{bits}"
    return lambda path: np.copyto(path.r[kind][to], path.r[kind][source], where=path.mask)


def _name(text: str) -> str:
    """`[param0+0]` → `param0`."""
    return re.sub(r"[\[\] ]|\+.*", "", text)
