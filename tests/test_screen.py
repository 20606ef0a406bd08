"""What the terminal shows: widths, colours, progress, completion, an interrupt."""

from __future__ import annotations

import os
import pty
import random
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from tabulate import tabulate

from faperf.cli.screen import duration
from faperf.report.tables import table
from faperf.toolchain import Toolchain
from tests.compiling import script
from tests.conftest import Cli, UserProject, cli_in
from tests.test_docs import commands

ESCAPE = "\x1b"


# ── tables ──

HEADERS = ("version", "target", "a long header of words", "why", "figure")
ROWS = [
    (
        "v1",
        "sm_103a",
        "3 (registers and shared memory)",
        "a sentence that is longer than a narrow terminal is wide",
        "1.5",
    ),
    ("v2-long-name", "sm_90a", None, "a\nb", "SLOWER +1.67% [+1.59, +1.76]"),
]


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 200])
def test_tables_fit_the_width_and_lose_nothing(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = table(HEADERS, ROWS, "table", {"why": 60})
    assert max(len(line.rstrip()) for line in text.splitlines()) <= columns
    words = set(re.findall(r"[\w.%+\[\]()-]+", text))
    for cell in [cell for row in [HEADERS, *ROWS] for cell in row if cell]:
        assert set(re.findall(r"[\w.%+\[\]()-]+", cell)) <= words, cell
    blocks = text.split("\n\n")
    assert (len(blocks) > 1) == (columns < 60)
    assert all("v2-long-name" in block for block in blocks)


def test_a_program_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert len(table(HEADERS, ROWS[:1], "table").splitlines()) == 3
    assert table(HEADERS, ROWS, "markdown").count("\n") == 3


def test_a_table_without_breaks_is_laid_out_as_tabulate_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    luck = random.Random(1)

    def text(most: int, of: str) -> str:
        return "".join(luck.choice(of) for _ in range(luck.randint(1, most)))

    for _ in range(200):
        columns = luck.randint(1, 5)
        headers = [text(9, "ab Z/%") for _ in range(columns)]
        rows = [[text(14, "ab µ±→01.-  |") for _ in range(columns)] for _ in range(luck.randint(0, 4))]
        assert table(headers, rows, "table") == tabulate(rows, headers, tablefmt="simple", disable_numparse=True)
        escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
        assert table(headers, rows, "markdown") == tabulate(escaped, headers, tablefmt="github", disable_numparse=True)


# ── options that every command has ──


@pytest.mark.parametrize("name", commands())
def test_every_command_takes_the_screens_options(name: str) -> None:
    options = {option for parameter in commands()[name].params for option in parameter.opts}
    assert {"--quiet", "--verbose", "--color"} <= options


@pytest.mark.parametrize("name", commands())
def test_every_example_of_the_help_is_a_command_line_that_parses(name: str) -> None:
    example = (commands()[name].help or "").partition("Example:")[2]
    lines = [line.strip() for line in example.splitlines() if "faperf " in line]
    assert lines
    for line in lines:
        words = shlex.split(re.split(r"\s{2,}|\s#\s", line[line.index("faperf ") :])[0].replace(')"', ""))[1:]
        words = words[: words.index(">")] if ">" in words else words
        command = commands()[words.pop(0)]
        while isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        known = [option for p in command.params if isinstance(p, click.Option) for option in p.opts]
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= set(known)
        values = [word for word in words if not word.startswith("-")]
        assert values or not any(isinstance(p, click.Argument) and p.required for p in command.params)


def test_colour_is_for_terminals_and_for_who_wants_it(faperf: Cli, user: UserProject) -> None:
    user.write("manifests/bad.yaml", "schema: 1\n")
    assert ESCAPE not in faperf("list").output
    assert ESCAPE in faperf("list", "--color", "always").stderr
    screen = on_terminal(user.root, "doctor")
    assert f"{ESCAPE}[3" in screen
    for quiet in (on_terminal(user.root, "doctor", NO_COLOR="1"), on_terminal(user.root, "doctor", "--color", "never")):
        assert ESCAPE not in quiet


def on_terminal(directory: Path, *arguments: str, **env: str) -> str:
    """All that a command writes on a terminal of 80 columns, with what needs MISSING to be red in it."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "faperf", *arguments],
        cwd=directory,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "FAPERF_NVCC": "/nowhere/nvcc", **env},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said = b""
    while process.poll() is None or select.select([ours], [], [], 0)[0]:
        if select.select([ours], [], [], 0.05)[0]:
            try:
                said += os.read(ours, 65_536)
            except OSError:
                break
    os.close(ours)
    process.wait(timeout=60)
    return said.decode()


def test_an_error_is_annotated_in_actions_as_one_line(faperf: Cli) -> None:
    answer = faperf("gate", "--baseline", "no\n::add-mask::x", env={"GITHUB_ACTIONS": "true"})
    assert answer.exit_code == 1
    commands_ = [line for line in answer.output.splitlines() if line.lstrip().startswith("::")]
    assert len(commands_) == 1
    assert commands_[0].startswith("::error title=faperf::no commit 'no%0A::add-mask::x' here")
    assert "::error" not in faperf("gate", "--baseline", "nope", env={"GITHUB_ACTIONS": ""}).output


# ── progress ──


@pytest.mark.compile
def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(user: UserProject, toolchain: Toolchain) -> None:
    user.version("t2", "t1", factor="7.0f")
    (user.root / ".faperf/cache").unlink()
    piped = cli_in(user.root)("run", "--no-gpu", "--jobs", "1")
    assert re.search(
        r"^\[1/2\] t\d for sm_90a: built(, about \d+ s left)?\n\[2/2\] t\d for sm_90a: built$", piped.stderr, re.M
    )
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", piped.output)
    again = cli_in(user.root)("run", "--no-gpu", "-v")
    assert re.search(r"^\[1/2\] t\d for sm_90a: built \(known\)$", again.stderr, re.MULTILINE)
    assert again.stderr.startswith(f"nvcc {toolchain.identity.nvcc} (")
    assert cli_in(user.root)("run", "--no-gpu", "--again", "-q").stderr == ""
    user.edit("kernels/t2.cu", "7.0f", "8.0f")
    shown = on_terminal(user.root, "run", "--no-gpu", FAPERF_NVCC=str(toolchain.nvcc))
    assert "━" in shown
    assert "/2" in shown


def test_durations() -> None:
    assert [duration(s) for s in (1.2, 89, 90, 3000, 7200)] == ["1 s", "89 s", "2 min", "50 min", "2.0 h"]


# ── completion ──


def completed(directory: Path, line: str) -> list[str]:
    """What bash would offer for `line`."""
    answer = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'faperf'; from faperf.cli import main; main()"],
        cwd=directory,
        env={
            **os.environ,
            "_FAPERF_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    return [word.partition(",")[2] for word in answer.stdout.split()]


def test_completion_knows_commands_options_and_the_projects_names(user: UserProject) -> None:
    user.version("t10", "t1")
    assert completed(user.root, "faperf ga") == ["gate"]
    assert completed(user.root, "faperf show t") == ["t1", "t10"]
    assert completed(user.root, "faperf run --target ") == ["sm_90a"]
    assert completed(user.root, "faperf gate --trus") == ["--trusted-config"]
    assert completed(user.root.parent, "faperf show t") == []  # no project, no names, no error
    script = cli_in(user.root)("completion", "zsh").stdout
    assert "#compdef faperf" in script


# ── an interrupt ──


@pytest.mark.compile
def test_an_interrupted_gate_says_what_is_kept_and_goes_on_from_there(
    user: UserProject, toolchain: Toolchain, tmp_path: Path
) -> None:
    user.version("t2", "t1", factor="9.0f")
    user.commit("t2")
    (user.root / ".faperf/cache").unlink()
    wait = f'case "$*" in *--dryrun*) ;; *t2.cu*) touch {tmp_path}/compiling; sleep 60 ;; esac'
    slow = script(tmp_path / "slow" / "nvcc", f'{wait}\nexec {toolchain.nvcc} "$@"')
    command = [
        sys.executable,
        "-m",
        "faperf",
        "gate",
        "--no-gpu",
        "--baseline",
        "HEAD",
        "--jobs",
        "1",
        "--nvcc",
        str(slow),
    ]
    process = subprocess.Popen(command, cwd=user.root, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "compiling").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted; finished builds are kept" in stderr
    assert "other commands start again and find them" in stderr
    assert "Traceback" not in stderr
    again = cli_in(user.root)("gate", "--no-gpu", "--baseline", "HEAD")
    assert again.exit_code == 0, again.output
    assert again.stderr.count("built") == 1  # t1 was there
