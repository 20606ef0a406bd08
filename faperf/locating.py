"""Where in the sources the findings of a gate stand: spills, compilers' messages, broken manifests, wrong results.

Every path is relative to the project; a place outside of it (CUDA's own headers) is the kernel's own first line instead.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from faperf.build import Artifact
from faperf.comparison import Annotation, DiffRow, GateRow, Regression
from faperf.history import write_atomically
from faperf.judge import Finding, Rule, Severity
from faperf.listing import Place, lines_of
from faperf.manifest import Version
from faperf.record import KernelFacts

SPILL_OPCODES = ("LDL", "STL")
MOST_LINES = 3
"""So many of the lines that spill are named, those with the most spilling instructions."""
SPILLS, LOOP_LOCAL_MEMORY, PTXAS, BUDGET = (
    rule.name.lower() for rule in (Rule.SPILLS, Rule.LOOP_LOCAL_MEMORY, Rule.PTXAS, Rule.BUDGET)
)
COMPILER_LINE = re.compile(r"^(?P<file>[^\s(:][^(:\n]*)\((?P<line>\d+)\): (?P<what>.*)", re.MULTILINE)
PTXAS_LINE = re.compile(r"ptxas \S+, line (\d+); *(.*)")
PLACE = re.compile(r"(?P<file>[\w.+/-]+\.(?:yaml|cuh?|h|hpp|toml)):(?P<line>\d+)")

Level = Literal["error", "warning", "note"]


class SpillingLine(msgspec.Struct, frozen=True):
    """A line of a source, and how many of its instructions are of each opcode of local memory."""

    file: str
    number: int
    opcodes: dict[str, int]


class Locator:
    """Annotations of one version × target, whose files lie under `root`."""

    def __init__(
        self, root: Path, name: str, version: Version | None, artifact: Artifact | None, nvdisasm: Path
    ) -> None:
        self.root, self.version, self.artifact, self.nvdisasm = root, version, artifact, nvdisasm
        self.manifest = f"manifests/{name}.yaml"
        self.source = version.source if version else self.manifest

    def annotations(self, row: DiffRow, judged: GateRow) -> list[Annotation]:
        """What fails the gate first."""
        found = [*self._errors(judged), *self._regressions(row, judged.regressions)]
        known = {annotation.rule for annotation in found}
        found += [a for finding in row.findings if finding.severity is Severity.WARNING for a in self._warning(finding)]
        if row.new_build and not known & {SPILLS, LOOP_LOCAL_MEMORY}:
            fresh = row.old_build is None
            found += [a for k in row.new_build.kernels if k.spill_bytes for a in self._spills_of(k, fresh)]
        if row.new_build and not any(finding.rule is Rule.PTXAS for finding in row.findings):
            for message in row.new_build.messages:
                found.append(self._message(message, "warning", new=row.old_build is None))
        return sorted(found, key=lambda annotation: ("error", "warning", "note").index(annotation.level))

    # ── what fails ──

    def _errors(self, judged: GateRow) -> Iterator[Annotation]:
        for text in judged.wrong:
            file, at = self._place_in(text) or (self.source, self._first_line())
            yield Annotation(level="error", rule="wrong result", text=text, file=file, line=at)
        if judged.error is None:
            return
        said = [m for m in COMPILER_LINE.finditer(judged.error) if "error" in m["what"] and self._own(m["file"])]
        for match in said[:MOST_LINES]:
            yield Annotation(
                level="error", rule="compile", text=match["what"], file=match["file"], line=int(match["line"])
            )
        if not said:
            rule = "manifest" if judged.error.startswith("manifests/") or self.version is None else "compile"
            whole = self.manifest if rule == "manifest" else self.source
            file, at = self._place_in(judged.error) or (whole, None)
            yield Annotation(level="error", rule=rule, text=judged.error, file=file, line=at)

    def _regressions(self, row: DiffRow, regressions: Sequence[Regression]) -> Iterator[Annotation]:
        for regression in regressions:
            level: Level = "error" if regression.counts else "note"
            words = f" ({regression.accepted.text})" if regression.accepted else ""
            text = f"{regression.text}{words}"
            if regression.metric in (SPILLS, LOOP_LOCAL_MEMORY) and row.new_build:
                yield from self._local_memory(row.new_build.kernels, level, regression.metric, text, new=True)
            elif regression.metric == PTXAS:
                yield self._message(regression.text.removeprefix("new: "), level, new=True)
            elif regression.metric == BUDGET:
                line = self._line_with(self.manifest, "budgets:")
                yield Annotation(level=level, rule=BUDGET, text=text, file=self.manifest, line=line)
            else:
                yield self._at_kernel(level, regression.metric, text)

    # ── what is worth a word ──

    def _warning(self, finding: Finding) -> Iterator[Annotation]:
        if finding.rule is Rule.PTXAS:
            yield self._message(finding.text.removeprefix("new: "), "warning", new=True)
        else:
            yield self._at_kernel("warning", finding.rule.name.lower(), finding.text)

    def _spills_of(self, kernel: KernelFacts, new: bool) -> list[Annotation]:
        text = f"{kernel.entry} spills {kernel.spill_stores} bytes and loads {kernel.spill_loads} back"
        return self._local_memory([kernel], "warning", SPILLS, text, new=new)

    def _local_memory(
        self, kernels: Sequence[KernelFacts], level: Level, rule: str, text: str, *, new: bool
    ) -> list[Annotation]:
        """At the lines whose instructions go through local memory most often."""
        counted = [line for kernel in kernels for line in self._spilling_lines(kernel.entry)]
        worst = sorted(counted, key=lambda line: -sum(line.opcodes.values()))[:MOST_LINES]
        return [
            Annotation(
                level=level,
                rule=rule,
                text=f"{text}; here {' and '.join(f'{count} {opcode}' for opcode, count in line.opcodes.items())}",
                file=line.file,
                line=line.number,
                new=new,
            )
            for line in worst
        ] or [self._at_kernel(level, rule, text, new=new)]

    def _spilling_lines(self, entry: str) -> list[SpillingLine]:
        """The project's lines of which a kernel's instructions go through local memory; kept beside the build."""
        if self.artifact is None:
            return []
        kept = self.artifact.directory / f"spills-{hashlib.sha256(entry.encode()).hexdigest()[:8]}.json"
        try:
            return msgspec.json.decode(kept.read_bytes(), type=list[SpillingLine])
        except (FileNotFoundError, msgspec.DecodeError):
            pass
        counted: dict[Place, Counter[str]] = {}
        for line in lines_of(self.artifact.cubin, self.nvdisasm, entry, self.root):
            place = line.place_in(self.source)
            if line.name in SPILL_OPCODES and place and self._own(place.file):
                counted.setdefault(place, Counter())[line.name] += 1
        found = [SpillingLine(place.file, place.line, dict(opcodes)) for place, opcodes in counted.items()]
        write_atomically(kept, msgspec.json.encode(found))
        return found

    def _message(self, message: str, level: Level, *, new: bool) -> Annotation:
        """A compiler's message, at the line that it names: of the source, or of the PTX that was made of it."""
        if (match := COMPILER_LINE.match(message)) and self._own(match["file"]):
            file, line = match["file"], int(match["line"])
            return Annotation(level=level, rule=PTXAS, text=match["what"], file=file, line=line, new=new)
        if match := PTXAS_LINE.match(message):
            file, at = self._behind_ptx(int(match[1])) or (self.source, self._first_line())
            return Annotation(level=level, rule=PTXAS, text=match[2], file=file, line=at, new=new)
        return self._at_kernel(level, PTXAS, message, new=new)

    # ── places ──

    def _at_kernel(self, level: Level, rule: str, text: str, *, new: bool = True) -> Annotation:
        return Annotation(level=level, rule=rule, text=text, file=self.source, line=self._first_line(), new=new)

    def _first_line(self) -> int | None:
        """Where the source defines the first kernel that is launched."""
        entry = self.version.launches[0].entry if self.version else None
        return self._line_with(self.source, entry) if entry else None

    def _line_with(self, file: str, words: str) -> int | None:
        try:
            text = (self.root / file).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        match = re.search(rf"^[^\n/*]*(?<!\w){re.escape(words)}(?!\w)", text, re.MULTILINE)
        return text.count("\n", 0, match.end()) + 1 if match else None

    def _place_in(self, text: str) -> tuple[str, int] | None:
        places = [m for m in PLACE.finditer(text) if self._own(m["file"])]
        return (places[0]["file"], int(places[0]["line"])) if places else None

    def _own(self, file: str) -> bool:
        path = Path(file)
        return not path.is_absolute() and ".." not in path.parts and (self.root / path).is_file()

    def _in_project(self, file: str) -> str | None:
        """The name that a file of a build has in the project: the build may have been made from another commit's copy."""
        inputs = self.artifact.inputs if self.artifact else ()
        return next((name for name in inputs if file == name or file.endswith(f"/{name}")), None)

    def _behind_ptx(self, number: int) -> tuple[str, int] | None:
        """The source of a line of PTX: the last `.loc` above it."""
        if self.artifact is None:
            return None
        lines = self.artifact.ptx.read_text(encoding="utf-8", errors="replace").splitlines()
        above = [m for line in lines[:number] if (m := re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", line))]
        files = {m[1]: m[2] for line in lines if (m := re.match(r'\s*\.file\s+(\d+)\s+"([^"]+)"', line))}
        if not above or not (name := self._in_project(files.get(above[-1][1], ""))):
            return None
        return name, int(above[-1][2])
