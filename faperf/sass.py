"""Cubin, PTX and `ptxas -v` → the facts of each kernel, and the digest of what would run.

Registers, caps and the like come from the cubin's own attributes (pyelftools), spill bytes from ptxas, which alone tells
them, opcodes from nvdisasm's JSON, and what tcgen05 keeps in registers (MMA shapes, TMEM columns) from the PTX, where the
compiler has written the constants down.
"""

from __future__ import annotations

import hashlib
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from faperf.chips import MAX_REGISTERS_PER_THREAD, TENSOR_PATHS, tensor_path
from faperf.errors import InspectionError
from faperf.history import write_atomically
from faperf.record import KernelFacts
from faperf.toolchain import scrubbed_environment

INSPECTOR = 2
"""Raise it when the facts change for the same cubin: facts kept in the cache are then taken anew."""

INSTRUCTION_BYTES = 16


class Inspection(msgspec.Struct, frozen=True):
    """All that is read from one build. `code` is equal for two builds that run the same instructions on the same constants."""

    inspector: int
    kernels: list[KernelFacts]
    code: str
    messages: list[str]


def inspect(directory: Path, nvdisasm: Path) -> Inspection:
    """The facts of the build in `directory` (kernel.cubin, kernel.ptx, build.log), kept there. Raises InspectionError."""
    kept = directory / "facts.json"
    try:
        facts = msgspec.json.decode(kept.read_bytes(), type=Inspection)
        if facts.inspector == INSPECTOR:
            return facts
    except (FileNotFoundError, msgspec.DecodeError):
        pass
    facts = _inspect(directory, nvdisasm)
    write_atomically(kept, msgspec.json.encode(facts))
    return facts


def listing(cubin: Path, nvdisasm: Path, entry: str) -> list[str]:
    """A kernel's instructions, one a line, as two builds of it compare: registers without their numbers, jumps without their
    targets, no padding. Raises InspectionError.
    """
    function = disassemble(cubin, nvdisasm).get(entry)
    if function is None:
        raise InspectionError(f"no kernel {entry}", where=str(cubin), remedy="faperf gc --all, then run again")
    return [i.normalised for i in function.sass_instructions if i.name != "NOP"]


def _inspect(directory: Path, nvdisasm: Path) -> Inspection:
    cubin = _Cubin(directory / "kernel.cubin")
    try:
        ptx = (directory / "kernel.ptx").read_text(encoding="utf-8")
        log = (directory / "build.log").read_text(encoding="utf-8")
    except OSError as error:
        raise InspectionError(
            f"cannot be read: {error.strerror}", where=str(error.filename), remedy="faperf gc --all, then run again"
        ) from error
    ptxas = _ptxas(log)
    code = disassemble(directory / "kernel.cubin", nvdisasm)
    kernels = []
    for entry in cubin.entries:
        # What was not inlined stands behind the kernel as `$entry$function`; ptxas tells its spills apart.
        callees = [name for name in code if name.startswith(f"${entry}$")]
        functions = [code[name] for name in [entry, *callees] if name in code]
        loops = [Loops(function.sass_instructions, function.start) for function in functions]
        depths = _added([each.opcodes_by_depth() for each in loops])
        attributes = cubin.attributes(entry)
        tcgen05 = _Tcgen05(ptx, entry)
        resources = ptxas.get(entry, _Ptxas())
        spilling = [resources, *(ptxas.get(name.removeprefix(f"${entry}$"), _Ptxas()) for name in callees)]
        kernels.append(
            KernelFacts(
                entry=entry,
                registers=cubin.registers[entry],
                register_cap=min(attributes.max_registers or MAX_REGISTERS_PER_THREAD, MAX_REGISTERS_PER_THREAD),
                max_threads=attributes.max_threads,
                spill_stores=sum(function.spill_stores for function in spilling),
                spill_loads=sum(function.spill_loads for function in spilling),
                stack=max(resources.stack, cubin.frames.get(entry, 0)),
                static_smem=resources.smem,
                barriers=attributes.barriers,
                instructions=sum(sum(counts) for counts in depths.values()),
                opcodes=depths,
                main_loop=loops[0].main_loop() if loops else {},
                mma_shapes=dict(sorted((_sass_mma_shapes(functions) + tcgen05.mma_shapes).items())),
                path=tensor_path({opcode: sum(counts) for opcode, counts in depths.items()}),
                tmem_columns=tcgen05.columns,
                parameter_bytes=attributes.parameter_bytes,
            )
        )
    return Inspection(INSPECTOR, kernels, cubin.code_digest(), _messages(log))


# ── what ptxas says ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Ptxas:
    """Bytes that `ptxas -v` reports of one kernel. Spills and shared memory without the system's part stand nowhere else."""

    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    smem: int = 0


def _ptxas(log: str) -> dict[str, _Ptxas]:
    properties = (
        r"Function properties for (\S+)\s*\n\s*(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
        r"(?:\s*\n[^\n]*Used \d+ registers(?:[^\n]*?, (\d+) bytes smem)?)?"
    )
    return {m[1]: _Ptxas(int(m[2]), int(m[3]), int(m[4]), int(m[5] or 0)) for m in re.finditer(properties, log)}


def _messages(log: str) -> list[str]:
    """The lines of a build log worth comparing: warnings, numbered advice (C7508 …), a register flag overridden."""
    worth = re.compile(r"warning|\(C\d{4}\)|Overriding|ignored", re.IGNORECASE)
    names_only = re.compile(r"Remark:|ptxas info\s*: (Compiling entry function|Function properties for) ")
    lines = (line.strip() for line in log.splitlines())
    return sorted({line for line in lines if worth.search(line) and not names_only.match(line)})


# ── the cubin ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Attributes:
    max_registers: int | None
    max_threads: int | None
    barriers: int
    parameter_bytes: list[int]


class _Cubin:
    """The ELF file that ptxas writes. Its `.nv.info` sections hold (format, attribute, value) triples."""

    FRAME_SIZE, REGISTER_COUNT, MIN_STACK, MAX_STACK = 0x11, 0x2F, 0x12, 0x23
    MAX_THREADS, REQUIRED_THREADS, MAX_REGISTERS, BARRIERS = 0x05, 0x10, 0x1B, 0x4C
    PARAMETER_BANK, PARAMETER, API_VERSION = 0x0A, 0x17, 0x37
    BY_SYMBOL = frozenset({FRAME_SIZE, REGISTER_COUNT, MIN_STACK, MAX_STACK, PARAMETER_BANK})
    """Attributes whose value begins with a symbol's index, which moves when debug information does."""

    def __init__(self, path: Path) -> None:
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile

        self.path = path
        self.sections: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}
        try:
            with path.open("rb") as file:
                elf = ELFFile(file)
                symbols: Any = elf.get_section_by_name(".symtab")
                self.symbols = [symbol.name for symbol in symbols.iter_symbols()]
                for section in elf.iter_sections():
                    self.sizes[section.name] = section["sh_size"]
                    self.sections[section.name] = b"" if section["sh_type"] == "SHT_NOBITS" else section.data()
                self.relocations = {
                    section.name: [
                        (r["r_offset"], r["r_info_type"], self.symbols[r["r_info_sym"]], r.entry.get("r_addend", 0))
                        for r in section.iter_relocations()
                    ]
                    for section in elf.iter_sections()
                    if hasattr(section, "iter_relocations") and section.name.startswith((".rel.text", ".rela.text"))
                }
        except (ELFError, OSError, AttributeError, KeyError, IndexError) as error:
            raise InspectionError(
                f"not a cubin: {error}", where=str(path), remedy="faperf gc --all, then run again"
            ) from error
        self.entries = sorted(name.removeprefix(".nv.info.") for name in self.sections if name.startswith(".nv.info."))
        per_symbol = [
            (attribute, *struct.unpack("<II", value))
            for attribute, value in self._info(".nv.info")
            if attribute in self.BY_SYMBOL and len(value) == 8
        ]
        self.registers = {self.symbols[s]: n for attribute, s, n in per_symbol if attribute == self.REGISTER_COUNT}
        self.frames = {self.symbols[s]: n for attribute, s, n in per_symbol if attribute == self.FRAME_SIZE}

    def _info(self, section: str) -> Iterator[tuple[int, bytes]]:
        """(attribute, value) of a `.nv.info` section. Format 4 carries a length; the others hold two bytes in place."""
        data, position = self.sections.get(section, b""), 0
        while position + 4 <= len(data):
            kind, attribute, short = struct.unpack_from("<BBH", data, position)
            position += 4
            value = struct.pack("<H", short)
            if kind == 4:
                value = data[position : position + short]
                position += short
            yield attribute, value

    def attributes(self, entry: str) -> _Attributes:
        found: dict[int, bytes] = {}
        parameters: dict[int, int] = {}
        for attribute, value in self._info(f".nv.info.{entry}"):
            found.setdefault(attribute, value)
            if attribute == self.PARAMETER and len(value) == 12:
                _, ordinal, _, packed = struct.unpack("<IHHI", value)
                parameters[ordinal] = packed >> 18
        threads = found.get(self.REQUIRED_THREADS) or found.get(self.MAX_THREADS)
        registers = found.get(self.MAX_REGISTERS)
        barriers = found.get(self.BARRIERS)
        return _Attributes(
            max_registers=int.from_bytes(registers[:2], "little") if registers else None,
            max_threads=_product(struct.unpack("<III", threads)) if threads and len(threads) == 12 else None,
            barriers=barriers[0] if barriers else 0,
            parameter_bytes=[size for _, size in sorted(parameters.items())],
        )

    def code_digest(self) -> str:
        """A digest of instructions, constants, kernel attributes and shared memory; not of debug information or versions."""
        digest = hashlib.sha256()

        def add(*parts: object) -> None:
            digest.update(repr(parts).encode())

        for name in sorted(self.sections):
            if name.startswith((".text.", ".nv.constant", ".nv.global")):
                add(name, self.sizes[name], self.sections[name])
            elif name.startswith(".nv.shared."):
                add(name, self.sizes[name])
            elif name.startswith(".nv.info"):
                add(name, [self._stable(attribute, value) for attribute, value in self._info(name)])
        add(sorted(self.relocations.items()))
        return digest.hexdigest()[:20]

    def _stable(self, attribute: int, value: bytes) -> tuple[int, str, bytes]:
        if attribute == self.API_VERSION:
            return attribute, "", b""
        if attribute in self.BY_SYMBOL and len(value) >= 4:
            index = int.from_bytes(value[:4], "little")
            return attribute, self.symbols[index] if index < len(self.symbols) else "", value[4:]
        return attribute, "", value


def _product(numbers: tuple[int, ...]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result


# ── the disassembly ──────────────────────────────────────────────────────────────────────────────────────────────────


class Instruction(msgspec.Struct, frozen=True):
    """One SASS instruction, as nvdisasm's JSON gives it."""

    opcode: str
    operands: str = ""
    predicate: str = ""

    @property
    def name(self) -> str:
        """What is counted: the opcode without modifiers, but LDTM.STAT (tcgen05.ld.red) and SYNCS.… keep what they are."""
        first, *modifiers = self.opcode.split(".")
        if first == "LDTM" and "STAT" in modifiers:
            return "LDTM.STAT"
        if first == "SYNCS":
            return ".".join([first, *[m for m in modifiers if m in ("ARRIVE", "PHASECHK", "EXCH")]])
        return first

    @property
    def normalised(self) -> str:
        """`@P IADD3 R,R,UR,RZ`: what stays the same when only registers are numbered anew or code is moved."""
        operands = self.operands.replace(".reuse", "")
        if self.name in Loops.BRANCHES | {"BSSY"}:
            operands = re.sub(r"0x[0-9a-f]+$", "…", operands)
        text = " ".join(part for part in (self.predicate, self.opcode, operands) if part)
        return re.sub(r"(?<![\w.])(U?[RP]|B)\d+(?!\w)", r"\1", text)


class Function(msgspec.Struct, rename="kebab"):
    function_name: str
    start: int
    sass_instructions: list[Instruction]


def disassemble(cubin: Path, nvdisasm: Path) -> dict[str, Function]:
    """Functions by name. nvdisasm writes a header object and then the list of functions."""
    answer = ask(nvdisasm, ["-json"], cubin)
    try:
        _, functions = msgspec.json.decode(answer, type=tuple[dict[str, Any], list[Function]])
    except msgspec.DecodeError as error:
        raise _unreadable(cubin, nvdisasm, error) from error
    return {function.function_name: function for function in functions}


def ask(nvdisasm: Path, options: list[str], cubin: Path) -> bytes:
    """What nvdisasm prints of a cubin. Raises InspectionError."""
    try:
        command = [str(nvdisasm), *options, str(cubin)]
        return subprocess.run(command, env=scrubbed_environment(), capture_output=True, timeout=300, check=True).stdout
    except subprocess.CalledProcessError as error:
        raise _unreadable(cubin, nvdisasm, error.stderr.decode(errors="replace").strip()) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise _unreadable(cubin, nvdisasm, error) from error


def _unreadable(cubin: Path, nvdisasm: Path, detail: object) -> InspectionError:
    return InspectionError(
        f"nvdisasm could not read {cubin.name}: {detail}",
        where=str(nvdisasm),
        remedy="an nvdisasm as new as the nvcc is needed: pip install 'faperf[disassembler]'",
    )


class Loops:
    """The natural loops of one function: a back edge runs to a block that dominates it. `start` is its address."""

    BRANCHES = frozenset({"BRA", "JMP", "BRX", "JMX", "BSYNC", "EXIT", "RET", "KILL", "BREAK", "WARPSYNC", "CALL"})

    def __init__(self, instructions: list[Instruction], start: int = 0) -> None:
        self.instructions = instructions
        self.start = start
        self.body: dict[int, set[int]] = {}
        self.depth = [0] * len(instructions)
        if instructions:
            self._find()

    def opcodes_by_depth(self) -> dict[str, list[int]]:
        """Opcode → how many stand at loop depth 0, 1, …. Padding behind the end (NOP, the final BRA to itself) is left out."""
        counts: dict[str, list[int]] = {}
        deepest = max(self.depth, default=0)
        for instruction, depth in zip(self.instructions, self.depth, strict=True):
            if depth >= 0 and instruction.name != "NOP":
                counts.setdefault(instruction.name, [0] * (deepest + 1))[depth] += 1
        return {name: _without_trailing_zeros(counts[name]) for name in sorted(counts)}

    def main_body(self) -> set[int]:
        """The outermost loop with the most tensor instructions; the longest one where there are none; empty without loops."""
        outermost = [body for head, body in self.body.items() if self.depth[head] == 1]

        def weight(body: set[int]) -> tuple[int, int]:
            return sum(self.instructions[i].name in TENSOR_PATHS for i in body), len(body)

        return max(outermost, key=weight, default=set())

    def main_loop(self) -> dict[str, int]:
        """Opcode counts of the main loop, inner loops included."""
        counts = Counter(self.instructions[i].name for i in self.main_body())
        return {name: counts[name] for name in sorted(counts) if name != "NOP"}

    def _find(self) -> None:
        import networkx as nx

        blocks, edges = self._blocks()
        graph: Any = nx.DiGraph(edges)
        graph.add_node(0)
        dominator = nx.immediate_dominators(graph, 0)
        reachable = set(dominator)
        loops: dict[int, set[int]] = {}
        for tail, head in edges:
            if tail in reachable and _dominates(head, tail, dominator):
                loops.setdefault(head, {head}).update(_reaching(graph, tail, head) & reachable)
        for block, (first, last) in blocks.items():
            depth = sum(block in loop for loop in loops.values()) if block in reachable | {0} else -1
            self.depth[first:last] = [depth] * (last - first)
        self.body = {
            blocks[head][0]: {i for block in loop for i in range(*blocks[block])} for head, loop in loops.items()
        }

    def _blocks(self) -> tuple[dict[int, tuple[int, int]], list[tuple[int, int]]]:
        """Basic blocks by number as [first, last), and the edges between them."""
        successors = {i: self._successors(i) for i in range(len(self.instructions)) if self._is_branch(i)}
        leaders = sorted(
            {0}
            | {target for targets in successors.values() for target in targets}
            | {i + 1 for i in successors if i + 1 < len(self.instructions)}
        )
        blocks = {
            n: (a, b) for n, (a, b) in enumerate(zip(leaders, [*leaders[1:], len(self.instructions)], strict=True))
        }
        number = {first: n for n, (first, _) in blocks.items()}
        edges: list[tuple[int, int]] = []
        for n, (_, end) in blocks.items():
            targets = successors.get(end - 1, [end] if end < len(self.instructions) else [])
            edges.extend((n, number[target]) for target in targets)
        return blocks, edges + self._indirect(blocks, edges)

    def _indirect(self, blocks: dict[int, tuple[int, int]], edges: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Where indirect branches go, which nvdisasm's JSON leaves out.

        ptxas places the cases of a `switch` behind its BRX: a block that nothing leads to belongs to the nearest one
        before it. The padding behind the end, a BRA to itself, belongs to none.
        """
        entered = {0} | {head for tail, head in edges if tail != head}
        found: list[tuple[int, int]] = []
        switch: int | None = None
        for n, (first, last) in blocks.items():
            padding = last - first == 1 and (n, n) in edges
            if switch is not None and n not in entered and not padding:
                found.append((switch, n))
            if self.instructions[last - 1].opcode.split(".")[0] in ("BRX", "JMX"):
                switch = n
        return found

    def _is_branch(self, index: int) -> bool:
        return self.instructions[index].opcode.split(".")[0] in self.BRANCHES

    def _successors(self, index: int) -> list[int]:
        """Where control may go after a branch instruction."""
        instruction = self.instructions[index]
        base = instruction.opcode.split(".")[0]
        following = [index + 1] if index + 1 < len(self.instructions) else []
        if base in ("EXIT", "RET", "KILL"):
            return following if instruction.predicate else []
        if base in ("WARPSYNC", "BREAK"):
            return following
        if base == "CALL":  # one to an address within the function is a far jump, as ptxas writes them for sm_80
            far = [t] if (t := self._address(instruction.operands)) is not None else []
            return sorted({*far, *following})
        if base in ("BRX", "JMX"):
            return []
        if base == "BSYNC":
            return sorted({*following, *self._reconvergence(index, instruction.operands)})
        *conditions, target = instruction.operands.split(",")
        conditional = bool(instruction.predicate or conditions)
        jumps = [t] if (t := self._address(target)) is not None else []
        return sorted({*jumps, *(following if conditional or not jumps else [])})

    def _reconvergence(self, index: int, barrier: str) -> list[int]:
        """Where the nearest BSSY before `index` on the same barrier register says that its threads meet again."""
        for instruction in reversed(self.instructions[:index]):
            if instruction.opcode.startswith("BSSY") and instruction.operands.split(",")[0] == barrier:
                target = self._address(instruction.operands.split(",")[-1])
                return [target] if target is not None else []
        return []

    def _address(self, operand: str) -> int | None:
        match = re.search(r"0x([0-9a-f]+)", operand)
        index = (int(match[1], 16) - self.start) // INSTRUCTION_BYTES if match else -1
        return index if 0 <= index < len(self.instructions) else None


def _dominates(head: int, block: int, dominator: dict[int, int]) -> bool:
    while block != head:
        above = dominator.get(block, block)
        if above == block or above is None:
            return False
        block = above
    return True


def _reaching(graph: Any, tail: int, head: int) -> set[int]:
    """The blocks from which `tail` can be reached without passing `head`."""
    found, waiting = set(), [tail]
    while waiting:
        block = waiting.pop()
        if block != head and block not in found:
            found.add(block)
            waiting.extend(graph.predecessors(block))
    return found


def _without_trailing_zeros(counts: list[int]) -> list[int]:
    while len(counts) > 1 and counts[-1] == 0:
        counts = counts[:-1]
    return counts


def _added(several: list[dict[str, list[int]]]) -> dict[str, list[int]]:
    """Opcode counts of several functions by loop depth, each function's own."""
    names = sorted({name for counts in several for name in counts})
    return {
        name: [sum(at_depth) for at_depth in zip_longest(*(c[name] for c in several if name in c), fillvalue=0)]
        for name in names
    }


def _sass_mma_shapes(functions: list[Function]) -> Counter[str]:
    """`HMMA.16816.F32` is m16n8k16, `HGMMA.64x128x16.F32` is m64n128k16."""
    shapes: Counter[str] = Counter()
    for instruction in (each for function in functions for each in function.sass_instructions):
        if match := re.match(r"HMMA\.(16)(8)(8|16)\.", instruction.opcode + "."):
            shapes[f"HMMA m{match[1]}n{match[2]}k{match[3]}"] += 1
        elif match := re.match(r"HGMMA\.(?:SP\.)?(\d+)x(\d+)x(\d+)", instruction.opcode):
            shapes[f"HGMMA m{match[1]}n{match[2]}k{match[3]}"] += 1
    return shapes


# ── what only the PTX tells ──────────────────────────────────────────────────────────────────────────────────────────


class _Tcgen05:
    """MMA shapes and TMEM columns of one kernel, where the compiler has written the constants into the PTX."""

    NUMBER = r"-?(?:0[xX][0-9a-fA-F]+|\d+)"

    def __init__(self, ptx: str, entry: str) -> None:
        body = self._body(ptx, entry)
        constants: dict[str, int | None] = {}
        for register, number in re.findall(rf"mov\.[bsu]32\s+([%\w]+),\s*({self.NUMBER});", body):
            known = constants.get(register, int(number, 0))
            constants[register] = known if known == int(number, 0) else None

        def value(operand: str) -> int | None:
            return int(operand, 0) if re.fullmatch(self.NUMBER, operand) else constants.get(operand)

        columns = [value(n) for n in re.findall(r"tcgen05\.alloc[^\[;]*\[[^\]]*\],\s*([%\w-]+)\s*;", body)]
        self.columns = None if None in columns else sum(c for c in columns if c) or (None if not columns else 0)
        self.mma_shapes: Counter[str] = Counter()
        pattern = (
            r"tcgen05\.mma(?:\.ws)?(?:\.sp)?\.cta_group::\d\.kind::(\w+)[^;]*?\],\s*[^,;]+,\s*[^,;]+,\s*([%\w-]+)\s*,"
        )
        for kind, descriptor in re.findall(pattern, body):
            bits = value(descriptor)
            shape = "unknown shape"
            if bits is not None:
                m, n = ((bits >> 24) & 0x1F) << 4, ((bits >> 17) & 0x3F) << 3
                shape = f"m{m}n{n}k{16 if kind == 'f16' else 32}"
            self.mma_shapes[f"UTCHMMA {shape}" if kind == "f16" else f"UTCMMA {kind} {shape}"] += 1

    @staticmethod
    def _body(ptx: str, entry: str) -> str:
        start = re.search(rf"\.entry\s+{re.escape(entry)}\s*\(", ptx)
        if start is None:
            return ""
        end = re.search(r"^(\.visible\s+)?\.(entry|func)\b", ptx[start.end() :], re.MULTILINE)
        return ptx[start.end() : start.end() + end.start()] if end else ptx[start.end() :]
