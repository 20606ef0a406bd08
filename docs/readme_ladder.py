"""Writes the ladders of the records in history/ into README.md, between their markers: `make readme`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from docs.marked import REPOSITORY, write_block

README = REPOSITORY / "README.md"
RECORDED = {"ladder": ("sm_103a", "f521964b23f2"), "ladder-h200": ("sm_90a", "0b5df3a64706")}
"""Of each ladder the target, and the commit whose records it shows."""


def recorded_ladder(target: str, commit: str, style: str) -> str:
    """A ladder as `faperf ladder` prints it, in a clone: records of this machine do not show in it."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", "--shared", str(REPOSITORY), str(clone)], check=True)
        shutil.copytree(REPOSITORY / "history", clone / "history", dirs_exist_ok=True)
        command = ["ladder", "--target", target, "--commit", commit, "--format", style]
        faperf = [sys.executable, "-m", "faperf", "-C", str(clone), *command]
        return subprocess.run(faperf, check=True, capture_output=True, text=True).stdout


def shown(name: str) -> str:
    """The table, how it was measured or emulated, and, folded, what is flagged."""
    ladder, _, notes = recorded_ladder(*RECORDED[name], "markdown").partition("\n\nStatic facts")
    how = [line for line in notes.splitlines() if line.startswith(("Measured on", "Emulated:"))]
    table, _, flagged = ladder.partition("\n\nFlagged:\n\n")
    folded = f"<details><summary>What faperf flags there, with its evidence</summary>\n\n{flagged}\n\n</details>"
    return "\n\n".join([table, *how, folded]) + "\n"


if __name__ == "__main__":
    for name in RECORDED:
        write_block(README, name, shown(name))
