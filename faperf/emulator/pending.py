"""Registers that an asynchronous instruction has not delivered, and tensor memory that a thread has not stored, in program order.

The emulator gives results at once, and a batch runs before or after a wait as it likes; whether a wait was needed and missing is
followed here, through the blocks that a warp really runs. Reading a wgmma's accumulator before its group was waited for is an
error ("wgmma.wait_group"); a missing tcgen05.wait is a warning, for it is common and mostly harmless ("tcgen05.wait").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from faperf.emulator.batch import registers_of
from faperf.emulator.fault import MISSING_WAIT, DiagnosisError
from faperf.emulator.ptx import Instruction, Kernel
from faperf.emulator.state import WARP, Path

Event = tuple[str, Any, Instruction]
TELLING = ("bar.sync", "bar.arrive", "bar.cta", "barrier", "mbarrier.arrive", "tcgen05.mma", "tcgen05.commit")
"""What may tell other threads, or the tensor core, of a store to tensor memory."""


@dataclass
class State:
    """What a warp has not waited for: register → (group of wgmma or None for a load, its instruction)."""

    registers: dict[str, tuple[int | None, Instruction]] = field(default_factory=dict)
    groups: int = 0
    stored: Instruction | None = None

    def copy(self) -> State:
        return State(dict(self.registers), self.groups, self.stored)


def delivered_late(kernel: Kernel) -> set[str]:
    """The registers of a kernel that wgmma or tcgen05.ld write, and those that are copied from them."""
    found: set[str] = set()
    for ins in kernel.instructions:
        if ins.parts[:2] in (("wgmma", "mma_async"), ("tcgen05", "ld")):
            for text in ins.operands[: 2 if "red" in ins else 1]:
                found |= set(registers_of(text, kernel.registers))
    grew = bool(found)
    while grew:
        copies = {ins.operands[0] for ins in kernel.instructions if _copies(ins) and ins.operands[1] in found}
        grew = not copies <= found
        found |= copies
    return found


def events_of(body: Sequence[Instruction], late: set[str], kernel: Kernel) -> list[Event]:
    """What happens in a block to registers of `late`, in program order."""
    found: list[Event] = []
    for ins in body:
        opcode = ins.parts[:2]
        of_first = registers_of(ins.operands[0], kernel.registers) if ins.operands else []
        targets = [name for name in of_first if name in late] if ins.operands and ins.operands[0][0] != "[" else []
        rest = ins.operands if not targets else ins.operands[1:]
        used = [name for text in rest for name in registers_of(text, kernel.registers) if name in late]
        if opcode == ("tcgen05", "ld"):
            if "red" in ins:
                targets += [name for name in registers_of(ins.operands[1], kernel.registers) if name in late]
            found.append(("load", targets, ins))
        elif opcode == ("wgmma", "mma_async"):
            if used:
                found.append(("use", used, ins))
            found.append(("multiply", targets, ins))
        elif _copies(ins) and (used or targets):
            found.append(("copy", (ins.operands[0], ins.operands[1]), ins))
        else:
            if used:
                found.append(("use", used, ins))
            if targets:
                found.append(("overwrite", targets, ins))
        if ins.opcode.startswith("wgmma.commit_group"):
            found.append(("commit", None, ins))
        elif ins.opcode.startswith("wgmma.wait_group"):
            found.append(("wait", int(ins.operands[0], 0), ins))
        elif opcode == ("tcgen05", "wait::ld"):
            found.append(("loaded", None, ins))
        elif opcode == ("tcgen05", "st"):
            found.append(("store", None, ins))
        elif opcode == ("tcgen05", "wait::st"):
            found.append(("stored", None, ins))
        elif ins.opcode.startswith(TELLING):
            found.append(("tell", None, ins))
    return found


def _copies(ins: Instruction) -> bool:
    return ins.parts[0] == "mov" and len(ins.operands) == 2 and "{" not in ins.operands[0] + ins.operands[1]


def follow(path: Path, events: Sequence[Event]) -> None:
    """A path runs a block. Raises DiagnosisError for a wgmma's result that is used too early."""
    wave, key = path.wave, path.start // WARP
    state = wave.pending.setdefault(key, State())
    for kind, what, ins in events:
        registers = state.registers
        if kind in ("load", "multiply"):
            registers.update(dict.fromkeys(what, (None if kind == "load" else state.groups, ins)))
        elif kind == "store":
            state.stored = ins
        elif kind == "stored":
            state.stored = None
        elif kind == "tell":
            if state.stored is not None:
                wave.warn(
                    f"tensor memory is stored ({state.stored.place}) without a tcgen05.wait::st before {ins.opcode}",
                    ins,
                )
                state.stored = None
        elif not registers:
            continue
        elif kind == "use":
            for name in what:
                if name in registers:
                    group, maker = registers.pop(name)
                    _early(path, group, maker, ins)
        elif kind == "copy":
            registers.pop(what[0], None)
            if what[1] in registers:
                registers[what[0]] = registers[what[1]]
        elif kind == "overwrite":
            for name in what:
                registers.pop(name, None)
        elif kind == "commit":
            state.groups += 1
        elif kind == "wait":
            done = state.groups - what
            state.registers = {n: given for n, given in registers.items() if given[0] is None or given[0] >= done}
        elif kind == "loaded":
            state.registers = {n: given for n, given in registers.items() if given[0] is not None}


def _early(path: Path, group: int | None, maker: Instruction, ins: Instruction) -> None:
    if group is None:
        path.wave.warn(f"what tensor memory gave ({maker.place}) is used without a tcgen05.wait::ld before", ins)
        return
    raise DiagnosisError(
        MISSING_WAIT,
        f"{path.wave.name_of(int(path.lanes()[0]))} uses an accumulator of {maker.opcode} ({maker.place}) before its group was "
        "waited for (wgmma.wait_group)",
        ins.place,
    )
