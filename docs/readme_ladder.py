"""Writes the ladder that faperf prints into README.md, between its markers: `make readme`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
BEGIN, END = "<!-- ladder: begin -->\n", "<!-- ladder: end -->\n"


def ladder(project: Path) -> str:
    """What `faperf ladder` says of the repository's default target, less the lines that name this machine and commit."""
    command = [sys.executable, "-m", "faperf", "-C", str(project)]
    subprocess.run([*command, "run", "--no-gpu"], check=True, capture_output=True)
    answer = subprocess.run([*command, "ladder", "--format", "markdown"], check=True, capture_output=True, text=True)
    return answer.stdout.partition("\n\nStatic facts")[0] + "\n"


def block(readme: str) -> str:
    return readme.partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    path = REPOSITORY / "README.md"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(BEGIN + block(text) + END, BEGIN + ladder(REPOSITORY) + END), encoding="utf-8")
