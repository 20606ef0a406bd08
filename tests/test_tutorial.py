"""docs/tutorial.md, followed by the letter: its files are written, its commands run, its outputs compared."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Answer, cli_here

TUTORIAL = (REPOSITORY / "docs/tutorial.md").read_text(encoding="utf-8")
EXAMPLE = REPOSITORY / "examples/softmax"
STEP = re.compile(r"(?:^`(?P<file>[\w./-]+)`:\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def files() -> dict[str, str]:
    return {step["file"]: step["text"] for step in STEP.finditer(TUTORIAL) if step["file"]}


def test_the_example_is_what_the_tutorial_ends_with() -> None:
    kept = {p.relative_to(EXAMPLE).as_posix(): p.read_text() for p in EXAMPLE.rglob("*") if p.is_file()}
    kept = {name: text for name, text in kept.items() if not name.startswith(".") and "__pycache__" not in name}
    assert kept == files()


@pytest.mark.compile
def test_the_tutorial_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_cache: Path) -> None:
    project = tmp_path / "softmax"
    (project / ".faperf").mkdir(parents=True)
    (project / ".faperf/.gitignore").write_text("*\n")
    (project / ".faperf/cache").symlink_to(shared_cache)
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [*sys.path])
    commands = 0
    for step in STEP.finditer(TUTORIAL):
        if step["file"]:
            Path(step["file"]).write_text(step["text"])
        elif step["language"] == "console":
            for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", step["text"], re.MULTILINE):
                follow(command, expected)
                commands += 1
    assert commands > 20
    assert (project / "gate.sarif").read_text().count('"uri": "kernels/s2.cu"') >= 1


def follow(command: str, expected: str) -> None:
    """Run a command; its output must have each expected line, in this order, where … stands for anything."""
    code = int(match[1]) if (match := re.match(r"\(exit code (\d+)\)\n", expected)) else 0
    expected = expected.removeprefix(match[0]) if match else expected
    words = shlex.split(command)
    if words[0] == "faperf":
        answer = cli_here(Path.cwd())(*words[1:])
    else:
        python = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        shell = subprocess.run(["bash", "-c", command], env={**os.environ, **python}, capture_output=True, text=True)
        answer = Answer(shell.returncode, shell.stdout, shell.stderr)
    assert answer.exit_code == code, f"{command}: {answer.output}"
    said = answer.stdout
    for line in expected.splitlines():
        found = re.search(".*".join(re.escape(part.strip()) for part in line.split("…")), said)
        assert found or line == "…", f"{command}: no {line!r} in what follows:\n{said}\n{answer.stderr}"
        said = said[found.end() :] if found and line != "…" else said
