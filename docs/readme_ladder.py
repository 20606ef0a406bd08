"""Writes the ladders that faperf prints into README.md, between their markers: `make readme`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
MEASURED_COMMIT = "6c4857afe74c"


def faperf(project: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "faperf", "-C", str(project), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def static_ladder(project: Path) -> str:
    """The ladder of the default target, compiled now, less the lines that name this machine and commit."""
    faperf(project, "run", "--no-gpu")
    return faperf(project, "ladder", "--format", "markdown").partition("\n\nStatic facts")[0] + "\n"


def measured_ladder(project: Path) -> str:
    """The ladder on an H200, from the records in history/: in a clone, so that this machine's own records do not show."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", "--shared", str(project), str(clone)], check=True)
        shutil.copytree(project / "history", clone / "history", dirs_exist_ok=True)
        text = faperf(clone, "ladder", "--target", "sm_90a", "--commit", MEASURED_COMMIT, "--format", "markdown")
    measured = re.search(r"^Measured on .*$", text, re.MULTILINE)
    return text.partition("\n\nStatic facts")[0] + f"\n\n{measured[0] if measured else ''}\n"


def markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"


def block(readme: str, name: str) -> str:
    begin, end = markers(name)
    return readme.partition(begin)[2].partition(end)[0]


def main() -> None:
    path = REPOSITORY / "README.md"
    text = path.read_text(encoding="utf-8")
    for name, ladder in (("ladder", static_ladder), ("ladder-h200", measured_ladder)):
        begin, end = markers(name)
        text = text.replace(begin + block(text, name) + end, begin + ladder(REPOSITORY) + end)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
