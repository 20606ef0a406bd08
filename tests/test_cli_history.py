"""`faperf history` as a user calls it, over a history of real commits whose steps are known."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.synthetic import CLASS, Synthetic, make
from tests.conftest import Cli, cli_in


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Synthetic:
    """Three versions, 120 commits: each version is measured 40 times and changes its speed at its 15th and 30th."""
    return make(tmp_path_factory.mktemp("history") / "project", 120, 3, step_every=15)


@pytest.fixture
def faperf(made: Synthetic) -> Cli:
    return cli_in(made.root)


def test_the_changes_are_named_with_their_commits(made: Synthetic, faperf: Cli) -> None:
    answer = faperf("history", "v2")
    assert answer.exit_code == 0, answer.output
    title, line, *_ = answer.stdout.split("\n\n")
    assert title == f"v2 for sm_90a on tiny, {CLASS}, burst"
    assert "40 measurements" in line
    assert len(line.split()[0]) == 40
    changed = answer.stdout.partition("Changed at:")[2].partition("The newest")[0]
    for commit, step in made.steps["v2"]:
        (row,) = [row for row in changed.splitlines() if commit[:12] in row]
        assert ("slower" if step > 0 else "faster") in row
        assert "v2: edit" in row
    assert len(made.steps["v2"]) == 2
    assert "The newest 20:" in answer.stdout


def test_json_has_the_sizes(made: Synthetic, faperf: Cli) -> None:
    content = json.loads(faperf("history", "v3", "--format", "json", "--last", "5").stdout)
    assert content["count"] == 40
    assert len(content["points"]) == 5
    assert content["by"] == "control"
    assert [change["commit"] for change in content["changes"]] == [commit for commit, _ in made.steps["v3"]]
    for change, (_, step) in zip(content["changes"], made.steps["v3"], strict=True):
        assert change["change"]["low"] <= step <= change["change"]["high"]


def test_markdown(faperf: Cli) -> None:
    assert faperf("history", "v1", "--format", "markdown").stdout.startswith("### v1 for sm_90a")


def test_a_second_look_finds_the_changes_remembered(faperf: Cli) -> None:
    assert faperf("history", "v1").stdout == faperf("history", "v1").stdout


def test_a_void_timing_is_no_point(made: Synthetic, faperf: Cli, tmp_path: Path) -> None:
    """The newest measurement of v3 is the last commit's."""
    copy = tmp_path / "copy"
    shutil.copytree(made.root, copy)
    (last,) = (copy / "history" / CLASS).glob(f"{made.commits[-1][:12]}-*")
    last.write_text(last.read_text().replace('"launches":800', '"launches":800,"void":["clock"]'))
    answer = cli_in(copy)("history", "v3")
    assert "39 measurements" in answer.stdout
    assert "Left out, as they must not be judged: 1." in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["v9"], "no timing of 'v9' at a first-parent commit"),
        (["v1", "--workload", "nosuch"], "there are: sm_90a, tiny"),
        (["v1", "--class", "other"], "no timing of 'v1' of that kind"),
    ],
)
def test_what_is_not_there(faperf: Cli, arguments: list[str], said: str) -> None:
    answer = faperf("history", *arguments)
    assert answer.exit_code == 2
    assert said in answer.stderr


def test_without_git(faperf: Cli, tmp_path: Path, made: Synthetic) -> None:
    shutil.copytree(made.root / "manifests", tmp_path / "bare/manifests")
    answer = cli_in(tmp_path / "bare")("history", "v1")
    assert answer.exit_code == 2
    assert "no git repository" in answer.stderr


def test_a_branch_that_was_rewritten_or_grew_is_walked_anew(made: Synthetic, tmp_path: Path) -> None:
    """The index remembers HEAD's ancestors: after a reset, and after a commit, they are others."""
    copy = tmp_path / "copy"
    shutil.copytree(made.root, copy)
    faperf, git = cli_in(copy), ["git", "-C", str(copy), "-c", "user.name=T", "-c", "user.email=t@example.invalid"]
    assert "40 measurements" in faperf("history", "v3").stdout
    subprocess.run([*git, "reset", "--quiet", "--hard", made.commits[-31]], check=True)
    assert "30 measurements" in faperf("history", "v3").stdout
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "another way"], check=True)
    assert "30 measurements" in faperf("history", "v3").stdout
    subprocess.run([*git, "reset", "--quiet", "--hard", made.commits[-1]], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "one more"], check=True)
    assert "40 measurements" in faperf("history", "v3").stdout
