"""Runs the programs of tests/external and writes what they say into docs/emulator.md: `python docs/external_table.py`.

Compiles what was not compiled yet, a minute or more each. A program that cannot be built here keeps no row.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- external -->", "<!-- /external -->"


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from faperf.toolchain import find_toolchain
    from tests.external.programs import PROGRAMS, Program, Run, controls_of

    toolchain = find_toolchain()

    def run(program: Program, broken: str = "") -> Run:
        with tempfile.TemporaryDirectory() as scratch:
            return program.run(toolchain, Path(scratch), broken)

    lines = [
        "| program | built for | arguments | its result | warp-instructions | made wrong, and noticed |",
        "|---|---|---|---|---|---|",
    ]
    for program in PROGRAMS.values():
        try:
            found = run(program)
        except subprocess.CalledProcessError:
            print(f"{program.name}: does not build here", file=sys.stderr)
            continue
        refused = re.search(r"not emulated: (.*?)(?:, at |$)", found.output, re.MULTILINE)
        result = (
            f"not emulated: {refused[1].split(' in ')[0]}"
            if refused
            else "right"
            if program.right(found)
            else "**wrong**"
        )
        count = sum(int(n.replace(",", "")) for n in re.findall(r": ([\d,]+) warp-instructions", found.output))
        noticed = [broken for broken in controls_of(program) if not refused and not program.right(run(program, broken))]
        arguments = " ".join(program.arguments).replace("|", "\\|")
        lines.append(
            f"| {program.name} | {program.target} | `{arguments}` | {result} | {count:,} | {', '.join(noticed) or '–'} |"
        )
        print(lines[-1], file=sys.stderr)
    page = ROOT / "docs" / "emulator.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    text = "\n".join(lines)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
