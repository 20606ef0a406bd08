"""Writes what `faperf explain` says of the Hopper ladder into docs/explained.md: `python -m docs.explained`."""

from __future__ import annotations

import subprocess
import sys

from docs.marked import REPOSITORY

PAGE = REPOSITORY / "docs/explained.md"
VERSIONS = ("v12", "v13", "h14", "h15", "h16", "h17", "h18", "h20", "h20-acc16", "h21", "h22", "h23")
HEAD = """\
# The Hopper ladder, explained

What `faperf explain VERSION --target sm_90a` says of each version against its parent: static facts by nvcc 13.0.88, timings and
counters as recorded on an H200 ([history](../history/nvidia-h200-700w-140gib)). `python -m docs.explained` writes this page;
[explain.md](explain.md) says what each cause rests on, and [hopper.md](hopper.md) what the versions are.
"""


def explained(version: str) -> str:
    command = [sys.executable, "-m", "faperf", "-C", str(REPOSITORY), "explain", version, "--target", "sm_90a"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip()


if __name__ == "__main__":
    PAGE.write_text(
        "\n".join([HEAD, *(f"## {version}\n\n```\n{explained(version)}\n```\n" for version in VERSIONS)]),
        encoding="utf-8",
    )
