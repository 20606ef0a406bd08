"""PTX text → kernels ("Syntax", "Kernel Function Directives", "Debugging Directives: .loc" in the PTX ISA manual)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from faperf.emulator.fault import NotEmulatedError

TYPE_BITS = (
    {"pred": 1, "b128": 128} | {f"{k}{n}": n for k in "busf" for n in (8, 16, 32, 64)} | {"f16x2": 32, "f32x2": 64}
)


@dataclass(frozen=True)
class Instruction:
    """`parts` is the opcode split at its dots; `operands` as written, registers and labels made unique.

    `guard` is the predicate register of `@p`, `negated` for `@!p`; `line` counts in the PTX file, `index` in the kernel; `where`
    names source lines, outermost first.
    """

    parts: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str | None
    negated: bool
    line: int
    where: str
    index: int

    @property
    def opcode(self) -> str:
        return ".".join(self.parts)

    @property
    def place(self) -> str:
        return f"{self.where}, PTX line {self.line}" if self.where else f"PTX line {self.line}"

    def __contains__(self, modifier: str) -> bool:
        return modifier in self.parts


@dataclass(frozen=True)
class Variable:
    """A variable of the module or of a kernel, in bytes. `size` 0: as much as the launch gives (dynamic shared memory)."""

    name: str
    space: str
    size: int
    align: int
    content: bytes = b""


@dataclass
class Kernel:
    """One entry: parameters as (name, bytes, alignment), registers as name → bits, instructions, and label → their index."""

    name: str
    parameters: list[tuple[str, int, int]]
    registers: dict[str, int] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)
    cluster: tuple[int, int, int] = (1, 1, 1)
    """The clusters that it must be launched in; (1, 1, 1): those of the launch."""


@dataclass
class Module:
    """A PTX file."""

    target: str
    kernels: dict[str, Kernel]
    variables: list[Variable]
    decoded: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """What `decode` made of its kernels."""


_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/
    | \.loc[ \t]+(?P<loc>[^\n]*)
    | \.file[ \t]+(?P<file>\d+)[ \t]+"(?P<path>[^"]*)"[^\n]*
    | \.(?:version|address_size)[^\n]*
    | \.target[ \t]+(?P<target>\w+)[^\n]*
    | \.section[^{]*\{(?P<section>[^}]*)\}
    | (?P<entry>(?:\.(?:visible|weak|extern)[ \t]+)?\.(?:entry|func)\b[^{;]*)
    | (?P<open>\{) | (?P<close>\})
    | (?P<label>[\w$%@.]+)[ \t]*:(?!:)
    | (?P<statement>[^;{}]*(?:\{[^}]*\}[^;{}]*)*;)""",
    re.VERBOSE | re.DOTALL,
)
_NAME = re.compile(r"[%$A-Za-z_][\w$]*(?:\.[xyzw](?![\w.]))?")
_VARIABLE = re.compile(
    r"\.(?P<space>shared|global|const|local)\b(?P<rest>[^\[=]*?)\.(?P<type>[busf]\d+)\s+(?P<name>[\w$]+)"
    r"\s*(?P<dimensions>(?:\[\d*\])*)\s*(?:=\s*(?P<value>.*))?$",
    re.DOTALL,
)


def parse(text: str) -> Module:
    """A whole PTX file. Raises NotEmulatedError where something cannot be read."""
    return _Reader(text).module()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.files = {int(m[1]): m[2] for m in re.finditer(r'\.file[ \t]+(\d+)[ \t]+"([^"]*)"', text)}
        self.result = Module("", {}, [])
        self.kernel: Kernel | None = None
        self.scopes: list[dict[str, str]] = []
        self.made = 0
        self.where = ""
        self.inlined: dict[tuple[str, str, str], str] = {}
        self.jumps: list[tuple[int, list[dict[str, str]]]] = []

    def module(self) -> Module:
        line, at = 1, 0
        while at < len(self.text):
            token = _TOKEN.match(self.text, at)
            if token is None or token.end() == at:
                raise NotEmulatedError(f"cannot read {self.text[at : at + 40]!r}", f"PTX line {line}")
            start = line
            line += self.text.count("\n", at, token.end())
            at = token.end()
            self._take(token, start)
        return self.result

    def _take(self, token: re.Match[str], line: int) -> None:
        kind = token.lastgroup
        if kind == "target":
            self.result.target = token["target"]
        elif kind == "loc":
            self._locate(token["loc"])
        elif kind == "entry":
            self._enter(token["entry"])
        elif kind == "open":
            self.scopes.append({})
        elif kind == "close":
            self.scopes.pop()
            if not self.scopes and self.kernel is not None:
                self._finish()
        elif kind == "label" and self.kernel is not None:
            name = token["label"]
            unique = name if len(self.scopes) == 1 else self._unique(name)
            self.scopes[-1][name] = unique
            self.kernel.labels[unique] = len(self.kernel.instructions)
        elif kind == "statement":
            self._statement(token["statement"].rstrip(";").strip(), line)

    # ── places ──

    def _locate(self, text: str) -> None:
        """`1 38 5, function_name $L__info_string0, inlined_at 1 154 13`: names every line of the chain, outermost first."""
        numbers = re.findall(r"(?:^|inlined_at )\s*(\d+)\s+(\d+)\s+(\d+)", text)
        file, row, column = numbers[0]
        own = f"{self._file(int(file))}:{row}"
        if len(numbers) > 1:
            outer = self.inlined.get(numbers[1], f"{self._file(int(numbers[1][0]))}:{numbers[1][1]}")
            own = f"{outer} > {own}" if outer.rpartition(" > ")[2] != own else outer
        self.inlined[file, row, column] = own
        self.where = own

    def _file(self, number: int) -> str:
        path = PurePath(self.files.get(number, "?"))
        return "/".join(path.parts[-2:])

    # ── declarations ──

    def _enter(self, text: str) -> None:
        if text.startswith(".extern"):
            return
        head = re.search(r"\.(entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)\s*(?:\((.*?)\))?", text, re.DOTALL)
        assert head is not None
        parameters = []
        for declared in (head[3] or "").split(","):
            if found := re.search(
                r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr[^,]*?)?([\w$]+)(\[\d+\])?\s*$", declared
            ):
                size = TYPE_BITS[found[2]] // 8 * int((found[4] or "[1]")[1:-1])
                parameters.append((found[3], size, int(found[1] or TYPE_BITS[found[2]] // 8)))
        self.kernel = Kernel(head[2], parameters)
        if found := re.search(r"\.reqnctapercluster\s+([\d, ]+)", text):
            x, y, z = [*(int(size) for size in found[1].split(",")), 1, 1][:3]
            self.kernel.cluster = (x, y, z)
        if head[1] == "entry":
            self.result.kernels[head[2]] = self.kernel
        self.jumps = []
        self.where = ""

    def _declare(self, text: str) -> bool:
        """A variable or registers. Registers of an inner scope get names of their own; a call's parameters are such registers."""
        if text.startswith((".reg", ".param")):
            assert self.kernel is not None
            bits = TYPE_BITS.get(re.search(r"\.(?:reg|param)\s+(?:\.align\s+\d+\s+)?\.(\w+)", text)[1], 0)  # type: ignore[index]
            for name in re.sub(r"\.(?:reg|param)\s+(?:\.align\s+\d+\s+)?\.\w+", "", text).split(","):
                stem, _, count = name.strip().rstrip(">").partition("<")
                for each in [f"{stem}{i}" for i in range(int(count))] if count else [stem]:
                    unique = each if len(self.scopes) == 1 else self._unique(each)
                    self.scopes[-1][each] = unique
                    self.kernel.registers[unique] = bits
            return True
        found = _VARIABLE.search(text)
        if found is None:
            return False
        unit, elements = TYPE_BITS[found["type"]] // 8, 1
        for size in re.findall(r"\[(\d*)\]", found["dimensions"]):
            elements *= int(size or 0)
        align = re.search(r"\.align\s+(\d+)", text)
        variable = Variable(
            found["name"], found["space"], unit * elements, int(align[1]) if align else unit, _content(found, unit)
        )
        (self.kernel.variables if self.kernel and self.scopes else self.result.variables).append(variable)
        return True

    def _unique(self, name: str) -> str:
        self.made += 1
        return f"{name}${self.made}"

    # ── statements ──

    def _statement(self, text: str, line: int) -> None:
        if self.kernel is None or not self.scopes:
            if text and not self._declare(text) and not re.match(r"\.(func|pragma|alias|extern)", text):
                raise NotEmulatedError(f"cannot read {text[:60]!r}", f"PTX line {line}")
            return
        if text.startswith("."):
            if text.startswith((".pragma", ".branchtargets", ".callprototype")) or self._declare(text):
                return
            raise NotEmulatedError(f"directive {text[:60]!r}", f"PTX line {line}")
        if not text:
            return
        guard, negated = None, False
        if text[0] == "@":
            guard, text = text.split(None, 1)
            negated = guard[1] == "!"
            guard = self._known(guard.lstrip("@!"))
        opcode = re.match(r"[\w.:]*", text)[0]  # type: ignore[index]
        rest = text[len(opcode) :]
        operands = tuple(self._operand(part) for part in split_operands(rest.strip()))
        parts = tuple(opcode.strip().replace("::", "~").split("."))
        parts = tuple(part.replace("~", "::") for part in parts)
        if parts[0] == "bra":
            self.jumps.append((len(self.kernel.instructions), [*self.scopes]))
        index = len(self.kernel.instructions)
        self.kernel.instructions.append(Instruction(parts, operands, guard, negated, line, self.where, index))

    def _operand(self, text: str) -> str:
        return _NAME.sub(lambda name: self._known(name[0]), text) if len(self.scopes) > 1 else text

    def _known(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return name

    def _finish(self) -> None:
        """Labels may be named before they stand: only now is it known which one is meant."""
        kernel = self.kernel
        assert kernel is not None
        for index, scopes in self.jumps:
            jump = kernel.instructions[index]
            label = jump.operands[0]
            target = next((scope[label] for scope in reversed(scopes) if label in scope), label)
            kernel.instructions[index] = Instruction(
                jump.parts, (target,), jump.guard, jump.negated, jump.line, jump.where, index
            )
        self.kernel = None


def split_operands(text: str) -> Iterator[str]:
    """At the commas that stand in no bracket."""
    depth, start = 0, 0
    for at, character in enumerate(text):
        if character in "{[(":
            depth += 1
        elif character in "}])":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    if text[start:].strip():
        yield text[start:].strip()


def _content(found: re.Match[str], unit: int) -> bytes:
    """The bytes of an initialiser of plain numbers. Raises NotEmulatedError for addresses of other variables."""
    if not found["value"]:
        return b""
    numbers = found["value"].strip().strip("{}").replace("{", "").replace("}", "").split(",")
    try:
        return b"".join((literal(number.strip(), 8 * unit)).to_bytes(unit, "little") for number in numbers)
    except ValueError as error:
        raise NotEmulatedError(f"initialiser of {found['name']}: {error}") from error


def literal(text: str, bits: int) -> int:
    """A constant as its bits ("Constants"): 17, 0x1F, -1, 0f3F800000, 1.5. Raises ValueError."""
    import struct

    mask = (1 << bits) - 1
    sign, digits = (-1, text[1:].strip()) if text.startswith("-") else (1, text)
    digits = digits.rstrip("U")
    if digits[:2] in ("0f", "0F"):
        value = int(digits[2:], 16)
        return value ^ (0x80000000 if sign < 0 else 0)
    if digits[:2] in ("0d", "0D"):
        return int(digits[2:], 16) ^ ((1 << 63) if sign < 0 else 0)
    if re.fullmatch(r"\d+\.\d*(?:[eE][+-]?\d+)?", digits):
        code = {16: "<e", 32: "<f", 64: "<d"}[bits]
        return int.from_bytes(struct.pack(code, sign * float(digits)), "little")
    base = 16 if digits[:2] in ("0x", "0X") else 2 if digits[:2] in ("0b", "0B") else 8 if digits[:1] == "0" else 10
    return (sign * int(digits, base)) & mask
