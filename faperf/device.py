"""What GPU is here. (Timing will live beside it; cupy and cuda.bindings will be imported here and nowhere else.)"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

QUERY = ("name", "compute_cap", "power.limit", "memory.total")


@dataclass(frozen=True)
class Gpu:
    """A card as the driver names it. Power limit in watts, memory in MiB."""

    name: str
    capability: str
    power_limit_w: float | None
    memory_mib: int | None

    @property
    def machine_class(self) -> str:
        """GPU name, power limit and memory: what makes figures of two machines comparable."""
        parts = [self.name.lower().replace(" ", "-")]
        if self.power_limit_w:
            parts.append(f"{self.power_limit_w:.0f}w")
        if self.memory_mib:
            parts.append(f"{round(self.memory_mib / 1024)}gib")
        return "-".join(parts)


NO_GPU_CLASS = "no-gpu"


def find_gpu() -> tuple[Gpu | None, str | None]:
    """The first GPU, or why there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None, "no NVIDIA driver on this machine (nvidia-smi is not there)"
    try:
        answer = subprocess.run(
            [tool, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
        name, capability, power, memory = [cell.strip() for cell in answer.stdout.splitlines()[0].split(",")]
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        return None, f"nvidia-smi does not answer ({error})"
    return Gpu(name, capability, _number(power), int(n) if (n := _number(memory)) else None), None


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
