"""Runs the programs of tests/external and writes what they say into docs/emulator.md: `python -m docs.external_table`.

All of them, or those that are named as arguments; the others' rows stay, and so does that of a program that cannot be built here.
Compiles what was not compiled yet, a minute or more each; example 77 also runs for minutes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from docs.marked import EMULATOR, block, write_block
from faperf.toolchain import find_toolchain
from tests.external.programs import PROGRAMS, Program, Run, controls_of


def main() -> None:
    toolchain = find_toolchain()

    def run(program: Program, broken: str = "") -> Run:
        with tempfile.TemporaryDirectory() as scratch:
            return program.run(toolchain, Path(scratch), broken)

    made = {}
    for program in [PROGRAMS[name] for name in sys.argv[1:]] or PROGRAMS.values():
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
        made[program.name] = (
            f"| {program.name} | {program.target} | `{arguments}` | {result} | {count:,} | {', '.join(noticed) or '–'} |"
        )
        print(made[program.name], file=sys.stderr)
    rows = {line[2:].partition(" | ")[0]: line for line in block(EMULATOR, "external").splitlines()} | made
    lines = [
        "| program | built for | arguments | its result | warp-instructions | made wrong, and noticed |",
        "|---|---|---|---|---|---|",
        *(rows[name] for name in PROGRAMS if name in rows),
    ]
    write_block(EMULATOR, "external", "\n".join(lines))


if __name__ == "__main__":
    main()
