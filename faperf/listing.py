"""A kernel's instructions one by one: opcode, loop, source line, live registers. And two listings of a loop compared.

nvdisasm's JSON has the instructions and the loops; its text has the lines that -lineinfo wrote, inlined calls included, and how
many registers are alive at each instruction.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from faperf.errors import InspectionError
from faperf.sass import INSTRUCTION_BYTES, Instruction, Loops, ask, disassemble

CONTEXT = 3
"""So many unchanged instructions are shown around a change."""


class Place(msgspec.Struct, frozen=True, order=True):
    """A line of a source file, as nvcc was given it."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Line(msgspec.Struct, frozen=True):
    """One instruction. `depth` is its loop depth, `main` whether it stands in the main loop; `places` are innermost first: the
    line itself, then where that was inlined. `live` general registers hold a value that is still needed.
    """

    address: int
    instruction: Instruction
    depth: int
    main: bool
    places: tuple[Place, ...]
    live: int | None = None

    @property
    def name(self) -> str:
        return self.instruction.name

    def place_in(self, source: str) -> Place | None:
        """The innermost line that lies in `source`; that of the outermost call where none does."""
        own = [place for place in self.places if place.file == source]
        return own[0] if own else self.places[-1] if self.places else None


def lines_of(cubin: Path, nvdisasm: Path, entry: str, root: Path) -> list[Line]:
    """A kernel's instructions without padding; those of functions that were not inlined are left out.

    File names are relative to `root` where they lie in it. Raises InspectionError.
    """
    function = disassemble(cubin, nvdisasm).get(entry)
    if function is None:
        raise InspectionError(f"no kernel {entry}", where=str(cubin), remedy="faperf gc --all, then run again")
    places = _places(_text(nvdisasm, ["-gi", "-c"], cubin), entry, root.resolve())
    live: dict[int, int] = {}
    with contextlib.suppress(InspectionError):  # it gives up on some kernels, those with serialised wgmma among them
        live = _live(_text(nvdisasm, ["-plr", "-lrm=count", "-c"], cubin), entry)
    loops = Loops(function.sass_instructions, function.start)
    main = loops.main_body()
    found = []
    for index, (instruction, depth) in enumerate(zip(function.sass_instructions, loops.depth, strict=True)):
        address = function.start + index * INSTRUCTION_BYTES
        if instruction.name != "NOP" and depth >= 0:
            where = places.get(address, ())
            found.append(Line(address, instruction, depth, index in main, where, live.get(address)))
    return found


def _text(nvdisasm: Path, options: list[str], cubin: Path) -> str:
    return ask(nvdisasm, options, cubin).decode(errors="replace")


ADDRESS = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s")


def _section(text: str, entry: str) -> list[str]:
    """The lines of one kernel's section."""
    found = re.search(rf"^\.text\.{re.escape(entry)}:[^\n]*\n(.*?)(?=^//-+|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1].splitlines() if found else []


def _places(text: str, entry: str, root: Path) -> dict[int, tuple[Place, ...]]:
    """Address → source lines. An annotation holds until the next one; several in a row are one chain of inlined calls."""
    found: dict[int, tuple[Place, ...]] = {}
    chain: list[Place] = []
    fresh = False
    names: dict[str, str] = {}
    for row in _section(text, entry):
        if note := re.match(r'\s*//## File "([^"]*)", line (\d+)', row):
            file = names.setdefault(note[1], "") or _relative(note[1], root)
            names[note[1]] = file
            chain = [*(chain if fresh else ()), Place(file, int(note[2]))]
            fresh = True
        elif address := ADDRESS.match(row):
            found[int(address[1], 16)] = tuple(dict.fromkeys(chain))
            fresh = False
    return found


def _relative(file: str, root: Path) -> str:
    """`file` below `root`; also where it was compiled in another copy of the tree, as the cache may have it."""
    path = Path(file)
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    tails = (Path(*path.parts[n:]) for n in range(1, len(path.parts)))
    return next((tail.as_posix() for tail in tails if (root / tail).is_file()), file)


def _live(text: str, entry: str) -> dict[int, int]:
    """Address → live general registers: the first number behind an instruction."""
    found = {}
    for row in _section(text, entry):
        address = ADDRESS.match(row)
        count = re.search(r"//\s*\|\s*(\d+)", row)
        if address and count:
            found[int(address[1], 16)] = int(count[1])
    return found


# ── what a register holds ────────────────────────────────────────────────────────────────────────────────────────────


def defined_at(lines: Sequence[Line], index: int, register: int) -> Line | None:
    """The last instruction before `index`, as they stand, that wrote general register R`register`; None before the first."""
    for line in reversed(lines[:index]):
        if register in written(line.instruction):
            return line
    return None


def written(instruction: Instruction) -> range:
    """The general registers that an instruction writes, from its first operand and the width in its name.

    A store writes none, nor does what begins with a memory, uniform or predicate operand.
    """
    first = instruction.operands.split(",")[0].strip()
    match = re.fullmatch(r"R(\d+)", first)
    base, *modifiers = instruction.opcode.split(".")
    if match is None or base in ("ST", "STG", "STL", "STS", "STTM", "STSM", "RED", "BAR", "EXIT"):
        return range(0)
    start = int(match[1])
    return range(start, start + _width(base, modifiers))


def _width(base: str, modifiers: list[str]) -> int:
    if base == "LDTM":
        return next((int(m[1:]) for m in modifiers if re.fullmatch(r"x\d+", m)), 1)
    if base == "HMMA":
        return 4 if "F32" in modifiers else 2
    if base == "HGMMA":
        return next((int(m.split("x")[1]) // 2 for m in modifiers if re.fullmatch(r"\d+x\d+x\d+", m)), 4)
    if base == "LDSM":
        return next((int(m) for m in modifiers if m in ("2", "4")), 1)
    return 4 if "128" in modifiers else 2 if "64" in modifiers or "WIDE" in modifiers else 1


# ── two loops compared ───────────────────────────────────────────────────────────────────────────────────────────────


class LoopDiff(msgspec.Struct, frozen=True, kw_only=True):
    """How the instructions of two builds differ, in the main loop where that changed, else in all. `part` names which.

    `counts` maps an opcode to how many there were and are; `hunks` are unified-diff lines, registers without their numbers, each
    hunk headed by the source line where its change begins.
    """

    part: str
    old: int
    new: int
    counts: dict[str, tuple[int, int]]
    hunks: list[str]


def compare(old: Sequence[Line], new: Sequence[Line], old_source: str, new_source: str) -> LoopDiff:
    """The main loops of two listings; the whole of both where the loops are the same or there is none."""
    part = "main loop"
    a, b = [line for line in old if line.main], [line for line in new if line.main]
    if not (a and b) or _texts(a) == _texts(b):
        part, a, b = "whole kernel", list(old), list(new)
    before, after = Counter(line.name for line in a), Counter(line.name for line in b)
    changed = {name: (before[name], after[name]) for name in before | after if before[name] != after[name]}
    counts = dict(sorted(changed.items(), key=lambda item: -abs(item[1][1] - item[1][0])))
    return LoopDiff(part=part, old=len(a), new=len(b), counts=counts, hunks=_hunks(a, b, old_source, new_source))


def _texts(lines: Iterable[Line]) -> list[str]:
    return [line.instruction.normalised for line in lines]


def _hunks(old: Sequence[Line], new: Sequence[Line], old_source: str, new_source: str) -> list[str]:
    matcher = difflib.SequenceMatcher(None, _texts(old), _texts(new), autojunk=False)
    shown = []
    for group in matcher.get_grouped_opcodes(CONTEXT):
        changes = [code for code in group if code[0] != "equal"]
        a, b = old[changes[0][1] : changes[-1][2]], new[changes[0][3] : changes[-1][4]]
        heads = [str(place) for place in (_first(a, old_source), _first(b, new_source)) if place]
        shown.append(f"@@ {' → '.join(dict.fromkeys(heads)) or 'no line information'} @@")
        for tag, i, j, k, m in group:
            if tag == "equal":
                shown += [f"  {text}" for text in _texts(old[i:j])]
            else:
                shown += [f"- {text}" for text in _texts(old[i:j])]
                shown += [f"+ {text}" for text in _texts(new[k:m])]
    return shown


def _first(lines: Sequence[Line], source: str) -> Place | None:
    return next((place for line in lines if (place := line.place_in(source))), None)
