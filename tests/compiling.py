"""What the tests that run nvcc share: a version without a manifest, and the tools that say the same as faperf by other means."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec

from faperf.manifest import Version

KERNELS = Path(__file__).parent / "data" / "kernels"


def version_of(source: str, *flags: str) -> Version:
    """A version that is only there to be built: its launch is never used."""
    name = Path(source).stem
    return msgspec.convert(
        {
            "schema": 1,
            "id": name,
            "title": name,
            "source": source,
            "targets": ["sm_90a"],
            "flags": list(flags),
            "operation": {"name": "attention_forward", "layout": "BSHD"},
            "workloads": ["none"],
            "tile": {"m": 64, "n": 64},
            "launches": [{"entry": name, "grid": ["1"], "block": [64], "args": []}],
        },
        Version,
    )


def script(path: Path, body: str) -> Path:
    """A small program in sh."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + body + "\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def _say(program: Path, *arguments: str | Path) -> str:
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True, timeout=120).stdout


def resource_usage(cuobjdump: Path, cubin: Path) -> dict[str, dict[str, int]]:
    """`cuobjdump --dump-resource-usage`: kernel → {"REG": …, "STACK": …, "SHARED": …}."""
    text = _say(cuobjdump, "--dump-resource-usage", cubin)
    kernels = re.findall(r"Function (\S+):\s*\n\s*(.*)", text)
    return {name: {key: int(n) for key, n in re.findall(r"(\w+):(\d+)", numbers)} for name, numbers in kernels}


def elf_attributes(cuobjdump: Path, cubin: Path) -> dict[str, list[tuple[str, str]]]:
    """`cuobjdump -elf`: kernel → (attribute, value) as printed, from its `.nv.info` section."""
    sections = re.split(r"^(?=\.)", _say(cuobjdump, "-elf", cubin), flags=re.MULTILINE)
    return {
        section.split()[0].removeprefix(".nv.info."): re.findall(
            r"Attribute:\s*EIATTR_(\w+)\n.*(?:\n\s*Value:\s*(.*))?", section
        )
        for section in sections
        if section.startswith(".nv.info.")
    }


@dataclass(frozen=True)
class Line:
    """An instruction of `nvdisasm -c`. `target` is the label that it names, if any."""

    address: int
    opcode: str
    target: str | None


@dataclass(frozen=True)
class Listing:
    """One kernel's text of `nvdisasm -c`, without padding. `labels` are addresses."""

    lines: list[Line]
    labels: dict[str, int]

    def count(self, first: int = 0, last: int = 1 << 60) -> Counter[str]:
        """Opcodes, modifiers dropped, at addresses first … last."""
        return Counter(line.opcode.split(".")[0] for line in self.lines if first <= line.address <= last)

    def backward(self) -> list[tuple[int, int]]:
        """[label, branch] of every branch to an earlier label: the loops that are laid out in one piece."""
        jumps = [(self.labels[line.target], line.address) for line in self.lines if line.target in self.labels]
        return [(to, at) for to, at in jumps if to <= at]

    def innermost(self, opcode: str) -> tuple[int, int]:
        """The smallest of those that holds the most `opcode`."""
        return max(self.backward(), key=lambda loop: (self.count(*loop)[opcode], loop[0] - loop[1]))


def listings(nvdisasm: Path, cubin: Path) -> dict[str, Listing]:
    """`nvdisasm -c`, kernel by kernel: the kernel itself and what was not inlined, not the compiler's own helpers."""
    found = {}
    text = _say(nvdisasm, "-c", cubin)
    for section in re.split(r"^//-+ \.text\.", text, flags=re.MULTILINE)[1:]:
        kernel = section.split()[0]
        lines: list[Line] = []
        labels: dict[str, int] = {}
        waiting: list[str] = []
        ours = True
        for row in section.splitlines():
            if label := re.fullmatch(r"(\S+):", row):
                if not label[1].startswith(".L"):
                    ours = label[1] in (kernel, f".text.{kernel}") or label[1].startswith(f"${kernel}$")
                waiting.append(label[1])
            elif code := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:\{ )?(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*)", row):
                address = int(code[1], 16)
                labels.update(dict.fromkeys(waiting, address))
                target = re.search(r"`\((\.L\w+)\)", code[3])
                padding = code[2] == "NOP" or (target is not None and target[1] in waiting)
                if ours and not padding:
                    lines.append(Line(address, code[2], target[1] if target else None))
                waiting = []
        found[kernel] = Listing(lines, labels)
    return found
