"""`python -m benchmarks.contest run | table | docs`."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.contest.measure import measure
from benchmarks.contest.table import report
from benchmarks.contest.trials import Results
from docs.marked import write_block

HERE = Path(__file__).parent
MEASURED = HERE / "nvidia-h200.json"
PAGE = HERE.parents[1] / "docs" / "measuring.md"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.contest", description="Who sees that a kernel got slower?"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("run", help="measure on this machine's GPU and add the trials to FILE")
    measuring.add_argument("file", type=Path)
    measuring.add_argument("--seconds", type=float, default=200.0, help="stop after so long (default: 200)")
    measuring.add_argument("--trials", type=int, help="stop after so many rounds of every pair and method")
    measuring.add_argument("--pair", action="append", default=[], help="only this pair; more than once for more")
    commands.add_parser("table", help="print what FILE comes to").add_argument("file", type=Path)
    commands.add_parser("docs", help="write what nvidia-h200.json comes to into docs/measuring.md")
    asked = parser.parse_args()
    if asked.command == "run":
        if not measure(asked.file, seconds=asked.seconds, rounds=asked.trials, only=asked.pair):
            raise SystemExit("not every method could play")
    elif asked.command == "table":
        print(report(Results.load(asked.file)))
    else:
        write_block(PAGE, "contest", report(Results.load(MEASURED)))


if __name__ == "__main__":
    main()
