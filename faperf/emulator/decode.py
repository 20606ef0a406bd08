"""A kernel's instructions → Python closures over the lanes of a path, once for each basic block.

An op pack gives a handler for each opcode: it reads the operands once and returns the closure. Every operand is a row of the
register file: registers, constants, special registers and addresses of variables alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from faperf.emulator.batch import ORDERED, READ, WRITE, batches, registers_of
from faperf.emulator.fault import NotEmulatedError
from faperf.emulator.flow import ENDS, JUMPS, blocks_of
from faperf.emulator.memory import LOCAL_WINDOW, SHARED_START
from faperf.emulator.pending import Event, delivered_late, events_of
from faperf.emulator.ptx import Instruction, Kernel, Module, Variable, literal, split_operands
from faperf.emulator.schedule import Wait
from faperf.emulator.state import SPECIALS, STORAGE, Array, Path

Operation = Callable[[Path], None]
Blocking = Callable[[Path], Wait | None]
PARAM_WINDOW = 0x0300_0000_0000
_SYMBOL = re.compile(r"[A-Za-z_$][\w$]*")

HANDLERS: dict[str, tuple[Callable[[Decoder, Instruction], Operation | Batchable], str]] = {}
"""By the first parts of an opcode, with what it does to memory (`batch`); the longest that fits is taken."""
BLOCKING: dict[str, Callable[[Decoder, Instruction], Blocking]] = {}
"""The same for those after which a path may have to wait. Their closure gives the wait."""


def handles(*opcodes: str, memory: str = ORDERED) -> Callable[[Any], Any]:
    def register(handler: Any) -> Any:
        HANDLERS.update(dict.fromkeys(opcodes, (handler, memory)))
        return handler

    return register


def blocks(*opcodes: str) -> Callable[[Any], Any]:
    def register(handler: Any) -> Any:
        BLOCKING.update(dict.fromkeys(opcodes, handler))
        return handler

    return register


class Batchable(Protocol):
    """An instruction that can run alone or, in one call, with those of equal `key`."""

    key: Any

    def run(self, path: Path) -> None: ...

    @staticmethod
    def together(parts: Any) -> Operation:
        """One operation for all of them, in their order."""


@dataclass(frozen=True)
class Code:
    """A block as it runs: `operations` one after the other, then `end`, which moves the path on."""

    first: int
    stop: int
    operations: list[Operation]
    end: Operation
    events: list[Event] = field(default_factory=list)
    meetings: int = 0

    @property
    def length(self) -> int:
        return self.stop - self.first


@dataclass
class Program:
    """A decoded kernel. `rows` counts the rows of each width; `dynamic_smem` is where dynamic shared memory begins."""

    kernel: Kernel
    rows: dict[int, int]
    constants: dict[tuple[int, int], int]
    specials: dict[tuple[int, int], str]
    code: list[Code]
    dynamic_smem: int
    local_size: int
    globals: list[Variable] = field(default_factory=list)
    global_rows: list[tuple[int, str]] = field(default_factory=list)
    meetings: list[int] = field(default_factory=list)
    """For each instruction, how many before it in its block make the lanes of a warp meet."""
    shared_rows: list[tuple[int, int]] = field(default_factory=list)
    """(bits, row) of the constants that are shared addresses."""


MEETINGS = {"fence", "membar", "atom", "red", "match"}


def meets(ins: Instruction) -> bool:
    """After it a lane may rely on what the others did before it: more than the PTX ISA promises, so as to accuse nobody."""
    return "sync" in ins.parts or ins.parts[0] in MEETINGS or ins.parts[:2] in (
        ("mbarrier", "try_wait"), ("mbarrier", "test_wait"), ("barrier", "cluster"),
    )  # fmt: skip


def decode(module: Module, entry: str) -> Program:
    """Once for each kernel. Raises NotEmulatedError, with the source line, for what is not known."""
    if entry not in module.decoded:
        module.decoded[entry] = Decoder(module, module.kernels[entry]).program()
    found: Program = module.decoded[entry]
    return found


@dataclass(frozen=True)
class Address:
    """`[base + offset]`: a row of addresses as `kind`, or an offset alone."""

    row: int
    kind: str
    offset: int


class Decoder:
    """Operands of one kernel → rows."""

    def __init__(self, module: Module, kernel: Kernel) -> None:
        self.module, self.kernel = module, kernel
        self._rows: dict[int, dict[Any, int]] = {bits: {"_": 0} for bits in STORAGE}
        self._constants: dict[tuple[int, int], int] = {}
        self._specials: dict[tuple[int, int], str] = {}
        self._symbols: dict[str, int] = {}
        self._globals: list[Variable] = []
        self._global_rows: list[tuple[int, str]] = []
        self._shared_rows: dict[tuple[int, int], None] = {}
        self._parameters: dict[str, tuple[int, int]] = {}
        offset = 0
        for name, size, align in kernel.parameters:
            offset = -(-offset // align) * align
            self._parameters[name] = (offset, size)
            offset += size
        self._lay_out()
        self.ins: Instruction

    def _lay_out(self) -> None:
        """Static shared variables first, then the dynamic ones at one place; local variables from 0.

        Of the module's shared variables those that this kernel names: others are of other kernels.
        """
        shared, local, dynamic = SHARED_START, 0, []
        named = {name for ins in self.kernel.instructions for text in ins.operands for name in _SYMBOL.findall(text)}
        own = [variable for variable in self.module.variables if variable.space != "shared" or variable.name in named]
        for variable in [*own, *self.kernel.variables]:
            if variable.space == "shared" and variable.size:
                shared = -(-shared // variable.align) * variable.align
                self._symbols[variable.name] = shared
                shared += variable.size
            elif variable.space == "shared":
                dynamic.append(variable)
            elif variable.space == "local":
                local = -(-local // variable.align) * variable.align
                self._symbols[variable.name] = local
                local += variable.size
            else:
                self._globals.append(variable)
        for variable in dynamic:
            shared = -(-shared // variable.align) * variable.align
        for variable in dynamic:
            self._symbols[variable.name] = shared
        self._shared = {v.name for v in [*self.module.variables, *self.kernel.variables] if v.space == "shared"}
        self._dynamic, self._local = shared, local

    def program(self) -> Program:
        def blocking(ins: Instruction) -> bool:
            return _find(BLOCKING, ins) is not None

        code, late, meetings = [], delivered_late(self.kernel), [0]
        found = blocks_of(self.kernel, blocking)
        at = {block.first: number for number, block in enumerate(found)}
        for number, block in enumerate(found):
            body = self.kernel.instructions[block.first : block.stop]
            operations: list[Operation] = []
            end: Operation = lambda path, n=number + 1: path.wave.scheduler.go(path, n)  # type: ignore[misc]  # noqa: E731
            self.ins = last = body[-1]
            if last.parts[0] in JUMPS or blocking(last):
                body.pop()
            for group in batches(body, self.kernel.registers, _memory):
                operations.extend(self._batch(group))
            self.ins = last
            if last.parts[0] == "bra":
                end = self._branch(last, at, number, block.meet, len(found))
            elif last.parts[0] in ENDS:
                end = self._exit(last, number, len(found))
            elif blocking(last):
                end = self._blocking(last, number)
            events = events_of(self.kernel.instructions[block.first : block.stop], late, self.kernel) if late else []
            before = list(
                accumulate((meets(ins) for ins in self.kernel.instructions[block.first : block.stop]), initial=0)
            )
            meetings[block.first :] = before[:-1]
            code.append(Code(block.first, block.stop, operations, end, events, before[-1]))
        rows = {bits: len(names) for bits, names in self._rows.items()}
        return Program(
            self.kernel, rows, self._constants, self._specials, code, self._dynamic, self._local, self._globals,
            self._global_rows, meetings, [*self._shared_rows],
        )  # fmt: skip

    # ── instructions ──

    def _batch(self, group: list[Instruction]) -> list[Operation]:
        """Operations for instructions that may run together. Their results get neighbouring rows."""
        if len(group) > 1:
            for which in range(len(group[0].operands[0].split("|")) if "{" not in group[0].operands[0] else 1):
                for ins in group:
                    self._place(ins.operands[0].split("|")[which] if which else ins.operands[0])
        made = [(ins, self._operation(ins)) for ins in group]
        operations: list[Operation] = []
        while made:
            ins, first = made[0]
            size = 1
            if not callable(first):
                while size < len(made) and getattr(made[size][1], "key", None) == first.key:
                    size += 1
            if size > 1:
                operations.append(type(first).together([part for _, part in made[:size]]))
            else:
                operations.append(self._guarded(ins, first if callable(first) else first.run))
            made = made[size:]
        return operations

    def _place(self, text: str) -> None:
        """Give registers that have no row yet the next ones."""
        for name in registers_of(text, self.kernel.registers):
            names = self._rows[self.kernel.registers[name]]
            names.setdefault(name, len(names))

    def _operation(self, ins: Instruction) -> Any:
        self.ins = ins
        found = _find(HANDLERS, ins)
        if found is None:
            raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
        try:
            return found[0](self, ins)
        except (IndexError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise NotEmulatedError(f"no emulation of this form of {ins.opcode} ({error!r})", ins.place) from error

    def _guarded(self, ins: Instruction, made: Operation) -> Operation:
        if ins.guard is None:
            return made
        row, negated = self.row(ins.guard, 1), ins.negated

        def guarded(path: Path) -> None:
            guard = path.r["pred"][row]
            here = ~guard if negated else guard
            before = path.mask
            if before is not True:
                here = here & before
            if here.all():
                made(path)
            elif here.any():
                path.mask = here if here is not guard else guard.copy()
                made(path)
                path.mask = before

        return guarded

    def _branch(self, ins: Instruction, at: dict[int, int], number: int, meet: int | None, count: int) -> Operation:
        target = at[self.kernel.labels[ins.operands[0]]]
        if ins.guard is None:
            return lambda path: path.wave.scheduler.go(path, target)
        following = number + 1 if number + 1 < count else None
        return self._part(ins, target, following, meet)

    def _exit(self, ins: Instruction, number: int, count: int) -> Operation:
        if ins.parts[0] == "trap":

            def trapped(path: Path) -> None:
                raise NotEmulatedError("the kernel traps", ins.place)

            return self._part(ins, None, number + 1, None, trapped) if ins.guard else trapped
        if ins.guard is None:
            return lambda path: path.wave.scheduler.end(path)
        return self._part(ins, None, number + 1 if number + 1 < count else None, number + 1)

    def _part(self, ins: Instruction, there: int | None, here: int | None, meet: int | None,
              last: Operation | None = None) -> Operation:  # fmt: skip
        """Where a guarded jump goes: all one way, all the other, or apart until `meet`."""
        row, negated = self.row(str(ins.guard), 1), ins.negated

        def part(path: Path) -> None:
            guard = path.pick(path.r["pred"][row])
            taken = ~guard if negated else guard
            scheduler = path.wave.scheduler
            if taken.all():
                if last is not None:
                    last(path)
                if there is None:
                    scheduler.end(path)
                else:
                    scheduler.go(path, there)
            elif not taken.any():
                if here is None:
                    scheduler.end(path)
                else:
                    scheduler.go(path, here)
            else:
                if last is not None:
                    last(path)
                scheduler.fork(path, taken, there, here, meet)

        return part

    def _blocking(self, ins: Instruction, number: int) -> Operation:
        handler = _find(BLOCKING, ins)
        assert handler is not None
        try:
            begin: Blocking = handler(self, ins)
        except (IndexError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise NotEmulatedError(f"no emulation of this form of {ins.opcode} ({error!r})", ins.place) from error
        guard, negated = (self.row(ins.guard, 1) if ins.guard else None), ins.negated

        def end(path: Path) -> None:
            if guard is not None:
                row = path.pick(path.r["pred"][guard])
                here = ~row if negated else row
                if not here.any():
                    path.wave.scheduler.go(path, number + 1)
                    return
                if not here.all():  # those whom it concerns come here again, alone
                    path.wave.scheduler.fork(path, here, number, number + 1, number + 1)
                    return
            path.wait = begin(path)
            if path.wait is None:
                path.wave.scheduler.go(path, number + 1)

        return end

    # ── operands ──

    def row(self, text: str, bits: int) -> int:
        """The row of a register, constant, special register or address of a variable."""
        text = text.strip()
        if text in self.kernel.registers:
            return self._register(text, bits)
        names = self._rows[bits]
        if text in SPECIALS:
            if text not in names:
                names[text] = len(names)
                self._specials[bits, names[text]] = text
            return names[text]
        if text in self._parameters:
            return self.constant_row(PARAM_WINDOW + self._parameters[text][0], bits)
        if text in self._symbols and text not in self._shared:
            return self.constant_row(self._symbols[text], bits)
        if text in self._symbols:
            row = self.constant_row(self._symbols[text], bits, "shared")
            self._shared_rows.setdefault((bits, row))
            return row
        if any(variable.name == text for variable in self._globals) and bits == 64:
            if text not in names:
                names[text] = len(names)
                self._global_rows.append((names[text], text))
            return names[text]
        if bits == 1 and text in ("0", "1"):
            return self.constant_row(int(text), 1)
        if text.startswith("%") or not re.match(r"-?\s*[\d.]", text):
            raise NotEmulatedError(f"{text} in {self.ins.opcode}", self.ins.place)
        return self.constant_row(literal(text, bits), bits)

    def _register(self, text: str, bits: int) -> int:
        declared = self.kernel.registers[text]
        if declared != bits:
            raise NotEmulatedError(f"{text} has {declared} bits where {self.ins.opcode} takes {bits}", self.ins.place)
        names = self._rows[bits]
        return names.setdefault(text, len(names))

    def constant_row(self, value: int, bits: int, kind: str = "constant") -> int:
        names = self._rows[bits]
        if (kind, value) not in names:
            names[kind, value] = len(names)
            self._constants[bits, names[kind, value]] = value
        return names[kind, value]

    def constant(self, row: int, bits: int) -> int | None:
        """What a row always holds, if it is a constant's."""
        return self._constants.get((bits, row))

    def number(self, text: str, bits: int = 32) -> int:
        """A constant operand. Raises NotEmulatedError for a register."""
        value = self.constant(self.row(text, bits), bits)
        if value is None:
            raise NotEmulatedError(f"{text} is no constant in {self.ins.opcode}", self.ins.place)
        return value

    def bits(self, text: str, otherwise: int) -> int:
        """The declared width of a register; `otherwise` for anything else."""
        return self.kernel.registers.get(text.strip(), otherwise)

    def out(self, text: str, bits: int) -> int:
        """The row of a destination; `_` is a row that nobody reads."""
        return 0 if text.strip() == "_" else self._register(text.strip(), bits)

    def vector(self, text: str) -> list[str]:
        """`{a, b}` → its parts; anything else is a vector of one."""
        text = text.strip()
        return list(split_operands(text[1:-1])) if text.startswith("{") else [text]

    def address(self, text: str) -> Address:
        """`[%rd1+16]`, `[smem+32]`, `[%r1]`."""
        inside = text.strip()[1:-1].strip()
        found = re.fullmatch(r"([%$\w]+)\s*(?:\+\s*(-?\w+))?", inside)
        if found is None:
            raise NotEmulatedError(f"address {text} in {self.ins.opcode}", self.ins.place)
        base, offset = found[1], int(found[2] or "0", 0)
        bits = self.bits(base, 64)
        return Address(self.row(base, bits), f"u{bits}", offset)

    def parameter(self, text: str) -> int | None:
        """The offset of `[name+8]` in the parameters, or None where that is no parameter."""
        found = re.fullmatch(r"\[\s*([$\w]+)\s*(?:\+\s*(\w+))?\s*\]", text.strip())
        if found is None or found[1] not in self._parameters:
            return None
        return self._parameters[found[1]][0] + int(found[2] or "0", 0)


def addresses(path: Path, address: Address) -> Any:
    """The address of each lane that takes part, in int64."""
    found = path.pick(path.r[address.kind][address.row]).astype(np.int64)
    if address.offset:
        found += address.offset
    return found


def all_addresses(path: Path, several: Sequence[Address]) -> Array:
    """The same of several instructions whose bases have one type, [instruction, lane]."""
    rows, first = path.r[several[0].kind], several[0]
    if len(several) == 1:
        return addresses(path, first)[None]
    found = np.empty((len(several), path.stop - path.start), np.int64)
    for index, each in enumerate(several):
        np.add(rows[each.row], each.offset, out=found[index], dtype=np.int64, casting="unsafe")
    return found if path.mask is True else found[:, path.mask]


def _memory(ins: Instruction) -> str:
    found = _find(HANDLERS, ins)
    if found is None:
        return ORDERED
    memory: str = found[1]
    if memory in (READ, WRITE) and any(part in ("volatile", "acquire", "release", "relaxed") for part in ins.parts):
        return ORDERED
    return memory


def _find(table: dict[str, Any], ins: Instruction) -> Any:
    for count in range(len(ins.parts), 0, -1):
        if (handler := table.get(".".join(ins.parts[:count]))) is not None:
            return handler
    return None


__all__ = ["LOCAL_WINDOW", "Address", "Decoder", "Program", "addresses", "all_addresses", "blocks", "decode", "handles"]
