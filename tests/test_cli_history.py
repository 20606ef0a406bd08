"""`faperf history` as a user calls it, over a history of real commits whose steps are known."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.synthetic import CLASS, Synthetic, make
from faperf import record
from faperf.history import History
from faperf.project import Project
from faperf.record import Counters
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
        (["v9"], "no record of 'v9' at a commit of HEAD's line"),
        (["v1", "--workload", "nosuch"], "there are: sm_90a, tiny"),
        (["v1", "--class", "other"], "no timing of 'v1' of that kind"),
    ],
)
def test_what_is_not_there(faperf: Cli, arguments: list[str], said: str) -> None:
    answer = faperf("history", *arguments)
    assert answer.exit_code == 2
    assert said in answer.stderr


def test_a_timed_build_is_shown_with_its_registers_and_what_was_counted(made: Synthetic, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made.root, copy)
    counted = Counters(
        schema=1, build=f"b{118:019d}", launch="launch", workload="tiny", shape={}, machine=CLASS, gpu="NVIDIA H200", card="c",
        driver="d", ncu="2025.3", ms=0.2, sms=132, sm_cycles=1e5, tensor_active=0.57,
    )  # fmt: skip
    History(Project(copy)).file_counters([counted])
    table = cli_in(copy)("history", "v2", "--last", "3").stdout.partition("The newest 3:")[2].strip().splitlines()
    assert "regs" in table[0]
    assert "tensor active" in table[0]
    first, _, last = (line.split() for line in table[2:])
    assert (first[-4:], last[-5:]) == (["–", "v2:", "edit", "112"], ["0", "57.0%", "v2:", "edit", "118"])
    assert last[-6] == "128"  # 90 + 118 % 40


def test_without_a_time_the_static_facts_are_shown(made: Synthetic, faperf: Cli, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made.root, copy)
    for file in (copy / "history" / CLASS).iterdir():
        lines = [line for line in file.read_bytes().splitlines(keepends=True) if b'"kind":"timing"' not in line]
        file.write_bytes(b"".join(lines))
    said = cli_in(copy)("history", "v1", "--last", "4").stdout
    assert said.startswith("v1 for sm_90a, static facts")
    assert [line.split()[2] for line in said.splitlines()[-4:]] == ["118/255", "121/255", "124/255", "127/255"]
    assert said == faperf("history", "v1", "--last", "4", "--static").stdout
    (found,) = json.loads(faperf("history", "v1", "--static", "--last", "40", "--format", "json").stdout)
    facts = found["facts"]
    assert len(facts) == 40
    assert [fact["kernels"][0]["registers"] for fact in facts[-2:]] == [124, 127]


def test_what_was_measured_on_a_merged_branch_stands_at_the_merge(made: Synthetic, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made.root, copy)
    git = ["git", "-C", str(copy), "-c", "user.name=T", "-c", "user.email=t@example.invalid"]
    before = made.commits[-31]
    subprocess.run([*git, "reset", "--quiet", "--hard", before], check=True)
    subprocess.run([*git, "merge", "--quiet", "--no-ff", "-m", "the branch", made.commits[-1]], check=True)
    said = cli_in(copy)("history", "v3", "--last", "40").stdout
    assert "40 measurements" in said
    assert made.commits[-1][:12] in said  # the commit that was measured is named
    ladder = cli_in(copy)("ladder").stdout
    assert f"commit {before[:12]}" in ladder  # the newest run along first parents


def test_a_partial_run_is_completed_from_earlier_ones_and_says_so(made: Synthetic, tmp_path: Path) -> None:
    """As where a machine without a GPU builds one target and another measured the other."""
    copy = tmp_path / "copy"
    shutil.copytree(made.root, copy)
    history, head = History(Project(copy)), made.commits[-1]
    full = history.newest_run(head)
    assert full is not None
    git = ["git", "-C", str(copy), "-c", "user.name=T", "-c", "user.email=t@example.invalid"]
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "x"], check=True)
    newer = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    own = [entry for entry in full.entries if entry.version == "v1"]
    run = record.replace(
        full, id="20270101T000000000000Z0000", commit=newer.stdout.strip(), machine="no-gpu", partial=True
    )
    history.publish(record.replace(run, entries=own), [])
    said = cli_in(copy)("ladder").stdout
    rows = {line.split()[0]: line for line in said.splitlines() if line.startswith("v")}
    assert ["HMMA" in rows[name] for name in ("v1", "v2", "v3")] == [True, True, True]
    assert f"as recorded at commit {head[:12]}: v2, v3." in said
    content = json.loads(cli_in(copy)("ladder", "--format", "json").stdout)
    assert {(e["version"], e["commit"]) for e in content["elsewhere"]} == {("v2", head), ("v3", head)}


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
