"""Measuring as a user does it, with a GPU host that is made up (`fake_gpu`): nvidia-smi, cupy and the worker's child."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from faperf.cli import cli
from faperf.launch import ResolvedArgument
from faperf.measuring import read_bundle
from faperf.toolchain import Toolchain
from tests import fake_gpu
from tests.conftest import TINY_AND_LENGTHS, Answer, UserProject, cli_here, cli_in
from tests.fake_gpu import log, timed
from tests.own_operation import add_matrix_product

pytestmark = pytest.mark.compile


@dataclass
class Host:
    """A project on a GPU host. `folder` holds the host's plan and log."""

    user: UserProject
    folder: Path
    env: dict[str, str]

    def __call__(self, *arguments: str, env: dict[str, str] | None = None) -> Answer:
        call = cli_here(self.user.root, lambda: fake_gpu.seen_here(self.folder))
        return call(*arguments, env=self.env | (env or {}))

    def plan(self, **sides: dict[str, Any]) -> None:
        fake_gpu.plan(self.folder, **sides)

    def forget(self) -> None:
        (self.folder / "log").unlink(missing_ok=True)

    def rows(self, *arguments: str) -> dict[str, dict[str, Any]]:
        """The rows that a command prints as JSON, by version."""
        answer = self(*arguments, "--format", "json")
        assert answer.stdout, answer.stderr
        return {row["version"]: row for row in json.loads(answer.stdout)["rows"]}

    def ladder(self, *arguments: str) -> dict[str, dict[str, Any]]:
        """What is on record, read in this process: it is asked for often."""
        command = ["-C", str(self.user.root), "ladder", "--format", "json", *arguments]
        answer = CliRunner().invoke(cli, command, catch_exceptions=False)
        return {row["version"]: row for row in json.loads(answer.stdout)["rows"]}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, toolchain: Toolchain) -> Path:
    """A committed project of t1 and t2, its child, that was run once: t2 was 10 % slower."""
    folder = tmp_path_factory.mktemp("template")
    user = UserProject(folder / "project")
    user.write("pyproject.toml", "[tool.faperf]\nemulate = false\n")  # its kernels compute nothing that is right
    user.write("manifests/workloads.yaml", TINY_AND_LENGTHS)
    user.commit_two_versions(shared_cache)
    host = Host(user, folder / "gpu", fake_gpu.install(folder / "gpu"))
    host.plan(t2={"ms": 1.1})
    assert host("run").exit_code == 0
    return user.root


@pytest.fixture
def measured(template: Path, tmp_path: Path) -> Host:
    """That project with the figures of its run, on a host of its own."""
    root = shutil.copytree(template, tmp_path / "project", symlinks=True)
    folder = tmp_path / "gpu"
    host = Host(UserProject(root), folder, fake_gpu.install(folder))
    host.plan(t1={"ms": 1.0}, t2={"ms": 1.1})
    return host


@pytest.fixture
def host(measured: Host) -> Host:
    """That project before its first run."""
    shutil.rmtree(measured.user.root / ".faperf/history")
    return measured


def tflops(row: dict[str, Any]) -> float:
    measured = row["measured"]
    assert measured is not None, row
    return float(measured["timing"]["tflops"])


def ms(row: dict[str, Any]) -> float:
    return float(row["measured"]["timing"]["ms"]["value"])


# ── run, and what shows its figures ──


def test_run_measures_records_and_prints(host: Host) -> None:
    answer = host("run")
    assert answer.exit_code == 0, answer.output
    assert "SLOWER, time +10.00%" in answer.stdout
    assert f"Measured on {fake_gpu.NAME}, driver 580.0" in answer.stdout
    assert "(carried)" not in answer.stdout
    assert timed(host.folder) == ["t1@sm_90a", "t2@sm_90a"]
    assert sum(line.startswith("check t1@sm_90a") for line in log(host.folder)) == 5  # once, though it is a partner too
    (path,) = (host.user.root / ".faperf/history").glob("*/*.jsonl")
    assert path.parent.name == fake_gpu.CLASS
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["check"] * 5 + ["timing"] + ["check"] * 5 + ["timing", "run"]
    assert host.user.git("status", "--porcelain") == ""


def test_ladder_and_show_tell_what_was_measured(measured: Host) -> None:
    row = measured.ladder()["t2"]
    assert (ms(row), row["time_verdict"]) == (1.1, "SLOWER")
    assert tflops(row) == pytest.approx(4 * 2 * 128**2 * 64 / 1.1e-3 / 1e12)
    table = measured("ladder").stdout
    assert "- t2: SLOWER than t1, time +10.00%" in table
    shown = json.loads(measured("show", "t2", "--format", "json").stdout)
    assert shown["targets"][0]["measured"]["timing"]["ms"]["value"] == 1.1
    assert len(shown["targets"][0]["measured"]["checks"]) == 5
    text = measured("show", "t2").stdout
    assert "1.1000 ms" in text
    assert "against parent t1" in text


def test_a_projects_own_operation_is_measured_beside_the_built_in_one(host: Host) -> None:
    add_matrix_product(host.user)
    answer = host("run")
    assert answer.exit_code == 0, answer.output
    assert timed(host.folder) == ["m1@sm_90a", "t1@sm_90a", "t2@sm_90a"]
    assert [line for line in log(host.folder) if line.startswith("check m1")] == [
        "check m1@sm_90a uniform small", "check m1@sm_90a integers small",
    ]  # fmt: skip
    (path,) = (host.user.root / ".faperf/history").glob(f"{fake_gpu.CLASS}/*.jsonl")
    checks = [json.loads(line) for line in path.read_text().splitlines() if '"check"' in line]
    assert {(c["operation"], c["operation_version"]) for c in checks} == {
        ("attention_forward", 1),
        ("matrix_product", 3),
    }


def test_a_bundle_brings_no_operation(host: Host, away: Path) -> None:
    """It is measured where the project is, or in no place: a bundle runs no Python."""
    add_matrix_product(host.user)
    assert host("bundle", "m1", "--out", str(away / "job")).exit_code == 0
    answer = cli_in(away)("run", "--bundle", "job", env=host.env)
    assert answer.exit_code == 1
    assert "there is no operation matrix_product, version 3, here" in answer.stderr
    assert "[tool.faperf] operations" in answer.stderr
    assert host("run", "--bundle", str(away / "job")).exit_code == 0
    assert timed(host.folder) == ["m1@sm_90a"]


def test_what_was_measured_is_not_measured_again(measured: Host) -> None:
    answer = measured("run")
    assert answer.exit_code == 0
    assert log(measured.folder) == []
    assert "Nothing new to record" in answer.stderr


def test_figures_of_an_earlier_commit_are_carried_and_marked(measured: Host) -> None:
    measured.user.version("t3", "t2", factor="4.0f")
    measured.user.commit("a third")
    measured.plan(t3={"ms": 0.5})
    answer = measured("run")
    assert answer.exit_code == 0, answer.output
    assert timed(measured.folder) == ["t3@sm_90a"]
    cells = {line.split()[0]: line for line in answer.stdout.splitlines() if line.startswith("t")}
    assert "(carried)" in cells["t1"]
    assert "(carried)" in cells["t2"]
    assert "(carried)" not in cells["t3"]
    assert "FASTER" in cells["t3"]
    rows = measured.ladder()
    assert {name: row["measured"]["carried"] for name, row in rows.items()} == {"t1": True, "t2": True, "t3": False}
    assert ms(rows["t2"]) == 1.1


def test_a_comment_changes_no_code_so_nothing_is_measured(measured: Host) -> None:
    for name in ("t1", "t2"):
        measured.user.edit(f"kernels/{name}.cu", "// ", "// another word: ")
    measured.user.commit("comments")
    answer = measured("run")
    assert answer.exit_code == 0, answer.output
    assert log(measured.folder) == []
    rows = measured.ladder()
    assert {name: (ms(row), row["measured"]["carried"]) for name, row in rows.items()} == {
        "t1": (1.0, True),
        "t2": (1.1, True),
    }
    assert rows["t2"]["time_verdict"] == "SLOWER"  # the parent's code is the same as well


def test_versions_of_equal_code_keep_their_figures_apart(host: Host) -> None:
    host.user.version("t3", "t2")
    host.user.version("t1")  # the same factor: the same code as t3
    host.plan(t1={"ms": 1.0}, t2={"ms": 1.1}, t3={"ms": 1.0})
    assert host("run").exit_code == 0
    rows = host.ladder()
    assert {name: len(row["measured"]["checks"]) for name, row in rows.items()} == {"t1": 5, "t2": 5, "t3": 5}
    assert rows["t3"]["time_verdict"] == "FASTER"
    assert rows["t1"]["time_verdict"] == "UNMEASURED"  # it has no parent


def test_again_measures_all_anew(measured: Host) -> None:
    measured.plan(t1={"ms": 2.0}, t2={"ms": 1.0})
    answer = measured("run", "--again")
    assert timed(measured.folder) == ["t1@sm_90a", "t2@sm_90a"]
    assert "(carried)" not in answer.stdout
    rows = measured.ladder()
    assert (ms(rows["t1"]), rows["t2"]["time_verdict"]) == (2.0, "FASTER")


def test_a_changed_parent_has_its_children_measured_again(measured: Host) -> None:
    measured.user.version("t1", factor="5.0f")
    measured.user.commit("another t1")
    measured("run")
    assert timed(measured.folder) == ["t1@sm_90a", "t2@sm_90a"]


def test_no_gpu_keeps_the_figures_of_what_did_not_change(measured: Host) -> None:
    measured.user.version("t2", "t1", factor="6.0f")
    measured.user.commit("another t2")
    assert measured("run", "--no-gpu").exit_code == 0
    assert log(measured.folder) == []
    rows = measured.ladder()
    assert (ms(rows["t1"]), rows["t1"]["measured"]["carried"]) == (1.0, True)
    assert rows["t2"]["measured"] is None


def test_figures_against_a_parent_that_has_changed_are_no_verdict(measured: Host) -> None:
    measured.user.version("t1", factor="5.0f")
    measured.user.commit("another t1")
    measured("run", "--no-gpu")
    row = measured.ladder()["t2"]
    assert (ms(row), row["time_verdict"]) == (1.1, "UNMEASURED")  # its own time still stands
    table = measured("ladder").stdout
    assert "SLOWER" not in table
    assert "+10.00%" not in table


def test_one_version_is_measured_and_the_others_keep_theirs(measured: Host) -> None:
    measured.user.version("t2", "t1", factor="6.0f")
    measured.user.commit("another t2")
    assert measured("run", "t2").exit_code == 0
    assert timed(measured.folder) == ["t2@sm_90a"]
    assert {name: row["measured"]["carried"] for name, row in measured.ladder().items()} == {"t1": True, "t2": False}


def test_a_version_alone_is_timed_against_a_parent_that_nobody_has_built_yet(host: Host) -> None:
    cache = host.user.root / ".faperf/cache"
    cache.unlink()  # the shared one has everything
    cache.mkdir()
    answer = host("run", "t2")
    assert answer.exit_code == 0, answer.output
    assert [line for line in log(host.folder) if line.startswith("time ")] == [
        "time t2@sm_90a parent=t1@sm_90a on tiny"
    ]
    assert "SLOWER, time +10.00%" in answer.stdout


def test_enrolled_figures_travel_through_git(host: Host, tmp_path: Path) -> None:
    host("machine", "add")
    host("run")
    host.user.commit("records")
    assert list((host.user.root / "history" / fake_gpu.CLASS).glob("*.jsonl"))
    host.user.git("clone", "--quiet", str(host.user.root), str(tmp_path / "clone"))
    clone = json.loads(cli_in(tmp_path / "clone")("ladder", "--format", "json").stdout)
    assert [ms(row) for row in clone["rows"]] == [1.0, 1.1]


# ── workloads ──


@pytest.fixture
def lengths(host: Host) -> Host:
    """t2 has two workloads more than t1."""
    host.user.edit("manifests/t2.yaml", "workloads: [tiny]", "workloads: [tiny, lengths]")
    host.user.commit("lengths")
    return host


def test_a_familys_name_measures_all_its_points(lengths: Host) -> None:
    answer = lengths("run", "--workload", "lengths")
    assert answer.exit_code == 0, answer.output
    asked = [line.partition(" on ")[2] for line in log(lengths.folder) if line.startswith("time ")]
    assert asked == ["lengths[S=64]", "lengths[S=256]"]
    assert "lengths[S=64] (" in answer.stdout  # the ladder shows one, and says which
    assert (
        "t2 for sm_90a: lengths[S=256] has 16.0 times the work of lengths[S=64] and takes 1.00 times" in answer.stderr
    )
    point = lengths.ladder("--workload", "lengths[S=256]")["t2"]["measured"]
    assert point["timing"]["shape"]["S"] == 256
    assert lengths.ladder()["t2"]["measured"] is None  # nothing on its first workload


def test_a_second_workload_leaves_the_first_ones_figures(measured: Host) -> None:
    lengths = measured
    lengths.user.edit("manifests/t2.yaml", "workloads: [tiny]", "workloads: [tiny, lengths]")
    lengths.user.commit("lengths")
    lengths("run", "--workload", "lengths[S=256]")
    assert timed(lengths.folder) == ["t2@sm_90a"]
    assert lengths.ladder()["t2"]["measured"]["workload"] == "tiny"
    assert lengths.ladder("--workload", "lengths")["t2"]["measured"]["workload"] == "lengths[S=256]"


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--workload", "length"),
        ("run", "--workload", "tiny", "--workload", "lengths[S=65]"),
        ("run", "t1", "--workload", "lengths"),
        ("bundle", "--out", "job", "--workload", "length"),
        ("ladder", "--workload", "length"),
        ("diff", "HEAD~1", "HEAD", "--workload", "length"),
        ("exec", "t1", "--once", "--workload", "lengths"),
    ],
    ids=" ".join,
)
def test_an_unknown_workload_is_a_usage_error(lengths: Host, arguments: tuple[str, ...]) -> None:
    answer = lengths(*arguments)
    assert answer.exit_code == 2, answer.output
    assert "no workload 'length" in answer.stderr
    assert "there are: tiny" in answer.stderr
    assert log(lengths.folder) == []
    assert not list((lengths.user.root / ".faperf/pending").glob("*"))  # no unfinished run is left behind


# ── what is wrong ──


def test_a_wrong_version_is_exit_code_5_and_not_timed(host: Host) -> None:
    host.plan(t2={"wrong": "relative L2 error 0.7, bound 0.001"})
    for _ in range(2):  # and again, though it is on record
        answer = host("run")
        assert answer.exit_code == 5, answer.output
        assert "t2@sm_90a on tiny: WRONG on normal: relative L2 error 0.7" in answer.stderr
        assert "- t2: WRONG on normal: relative L2 error 0.7, bound 0.001 (measured)" in answer.stdout
    assert timed(host.folder) == ["t1@sm_90a"]
    assert host.ladder()["t2"]["measured"]["timing"] is None


def test_a_wrong_parent_is_no_partner(host: Host) -> None:
    host.plan(t1={"wrong": "all of it"})
    assert host("run").exit_code == 5
    row = host.ladder()["t2"]
    assert [pair["role"] for pair in row["measured"]["timing"]["pairs"]] == ["control"]
    assert row["time_verdict"] == "UNMEASURED"


@pytest.mark.parametrize(
    ("fate", "fault"),
    [({"sleep_s": 60}, "hang"), ({"fault": "illegal address"}, "illegal address"), ({"fault": "launch refused"}, None)],
    ids=["hang", "context lost", "context kept"],
)
def test_faults_are_survived(host: Host, fate: dict[str, Any], fault: str | None) -> None:
    """In the first version; the second is measured as if nothing had happened."""
    host.user.edit("manifests/t1.yaml", "schema: 1\n", "schema: 1\ntimeout_s: 0.5\n")
    host.plan(t1=fate, t2={"ms": 1.1})
    answer = host("run")
    assert answer.exit_code == 5, answer.output
    rows = host.ladder()
    (check,) = rows["t1"]["measured"]["checks"]
    assert check["fault"] == (fault or "launch refused")
    assert ms(rows["t2"]) == 1.1


def test_a_worker_that_does_not_start_is_an_error_and_blames_no_version(host: Host) -> None:
    broken = host.folder / "python/sitecustomize.py"
    broken.write_text(broken.read_text().replace(str(Path(fake_gpu.__file__)), "/nowhere/fake_gpu.py"))
    answer = cli_in(host.user.root)("run", env=host.env)
    assert answer.exit_code == 1
    assert "the worker does not start: worker died: exit 2" in answer.stderr
    assert "faperf doctor" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not list((host.user.root / ".faperf/history").glob("*/*.jsonl"))


def test_a_gpu_of_another_kind_measures_nothing_and_says_so(host: Host) -> None:
    smi = host.folder / "bin/nvidia-smi"
    smi.write_text(smi.read_text().replace("9.0", "10.3"))
    answer = host("run")
    assert answer.exit_code == 0
    assert f"nothing was built for the {fake_gpu.NAME} here (compute capability 10.3; targets: sm_90a)" in answer.stdout
    assert log(host.folder) == []


def test_without_cupy_it_says_how_to_get_it(host: Host) -> None:
    shutil.rmtree(host.folder / "python/cupy")
    answer = host("run")
    assert answer.exit_code == 0
    assert f"there is a {fake_gpu.NAME}, but cupy is not installed (pip install 'faperf[gpu]')" in answer.stdout
    assert "faperf doctor" in host("exec", "t1", "--once").stderr


# ── interrupted ──


def started(host: Host, *arguments: str, until: str) -> subprocess.Popen[str]:
    """A faperf that is caught when the host's log shows `until`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "faperf", *arguments],
        cwd=host.user.root,
        env=os.environ | host.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 60
    while not any(line.startswith(until) for line in log(host.folder)):
        assert time.monotonic() < end, log(host.folder)
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


def children(folder: Path) -> list[int]:
    """The process ids of the worker's children on this made-up host."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("torn", [False, True], ids=["whole journal", "torn journal"])
def test_a_killed_run_is_resumed_where_it_was(host: Host, torn: bool) -> None:
    host.user.version("t3", "t2", factor="4.0f")
    host.user.commit("a third")
    host.plan(t1={"ms": 1.0}, t2={"until": "never"})
    process = started(host, "run", until="check t2@sm_90a")
    assert children(host.folder)
    process.kill()
    process.communicate()
    end = time.monotonic() + 10
    while children(host.folder):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert timed(host.folder) == ["t1@sm_90a"]
    (journal,) = (host.user.root / ".faperf/pending").glob("*.jsonl")
    if torn:  # killed in the middle of a line, or the disk was full: the timing is lost
        journal.write_bytes(journal.read_bytes()[:-20])
    host.forget()
    host.plan(t1={"ms": 9.0}, t2={"ms": 1.1}, t3={"ms": 1.2})
    answer = host("run", "--resume")
    assert answer.exit_code == 0, answer.output
    assert timed(host.folder) == [*(["t1@sm_90a"] if torn else []), "t2@sm_90a", "t3@sm_90a"]
    rows = host.ladder()
    assert [ms(row) for row in rows.values()] == [9.0 if torn else 1.0, 1.1, 1.2]
    assert not any(row["measured"]["carried"] for row in rows.values())
    (path,) = (host.user.root / ".faperf/history").glob("*/*.jsonl")
    assert path.stem.endswith(journal.stem)
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert (kinds.count("check"), kinds.count("timing")) == (20, 3)  # t1 was verified twice, once as a partner or anew
    assert not list((host.user.root / ".faperf/pending").glob("*"))


def test_an_interrupt_exits_with_130_and_leaves_no_child(host: Host) -> None:
    host.plan(t2={"until": "never"})
    process = started(host, "run", until="check t2@sm_90a")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "faperf run --resume goes on" in stderr
    assert "Traceback" not in stderr
    assert children(host.folder) == []


def test_two_runs_at_once_take_turns(host: Host) -> None:
    host.plan(t2={"until": "go"})
    first = started(host, "run", until="check t2@sm_90a")
    second = started(host, "run", "--again", until="check t2@sm_90a")
    assert second.stderr is not None
    assert second.stderr.readline() == "waiting: another faperf is measuring on this card\n"
    (host.folder / "go").touch()
    for process in (first, second):
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    assert timed(host.folder) == ["t1@sm_90a", "t2@sm_90a"] * 2


# ── diff ──


@pytest.fixture
def slower(measured: Host) -> Host:
    """Two commits with figures; in the second t2 takes 21 % more time, and t1 is as it was."""
    host = measured
    host.user.version("t2", "t1", factor="6.0f")
    host.user.commit("another t2")
    host.plan(t1={"ms": 1.0}, t2={"ms": 1.331})
    host("run")
    return host


def test_a_stored_diff_compares_through_a_common_partner(slower: Host) -> None:
    slower.forget()
    answer = slower("diff", "HEAD~1", "HEAD")
    assert answer.exit_code == 0
    assert "SLOWER" in answer.stdout
    assert "+21.00%" in answer.stdout
    assert "1 unchanged" in answer.stdout
    row = slower.rows("diff", "HEAD~1", "HEAD")["t2"]
    assert row["time_basis"] in ("stored, through control", "stored, through t1")
    assert row["time_change"]["value"] == pytest.approx(math.log(1.21))
    assert log(slower.folder) == []


def test_exit_code_3_for_a_slower_one(slower: Host) -> None:
    assert slower("diff", "HEAD~1", "HEAD", "--exit-code").exit_code == 3
    assert slower("diff", "HEAD", "HEAD~1", "--exit-code").exit_code == 0  # the other way round it got faster
    assert slower("diff", "HEAD", "HEAD", "--exit-code").exit_code == 0


def test_rerun_interleaves_both_commits_builds(slower: Host) -> None:
    slower.forget()
    slower.plan(**{"t2@sm_90a baseline": {"ms": 2.0}, "t2@sm_90a": {"ms": 1.0}})  # the stored figures said otherwise
    answer = slower("diff", "HEAD~1", "HEAD", "--rerun", "--exit-code")
    assert answer.exit_code == 0, answer.output
    assert "FASTER" in answer.stdout
    assert "-50.00%" in answer.stdout
    assert "rerun" in answer.stdout
    timings = [line for line in log(slower.folder) if line.startswith("time ")]
    assert timings == ["time t2@sm_90a baseline=t2@sm_90a baseline on tiny"]  # t1 did not change
    assert slower.rows("diff", "HEAD~1", "HEAD")["t2"]["verdict"] == "SLOWER"  # and what is on record stays
    slower.plan(**{"t2@sm_90a baseline": {"ms": 1.0}, "t2@sm_90a": {"ms": 1.1}})
    assert slower("diff", "HEAD~1", "HEAD", "--rerun", "--exit-code").exit_code == 3


def test_rerun_needs_two_commits_and_a_gpu(slower: Host) -> None:
    answer = slower("diff", "HEAD~1", "--rerun")
    assert answer.exit_code == 2
    assert "compares two commits" in answer.stderr
    (slower.folder / "bin/nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    answer = slower("diff", "HEAD~1", "HEAD", "--rerun")
    assert answer.exit_code == 1
    assert "--rerun needs a GPU and cupy: nvidia-smi does not answer" in answer.stderr


# ── build here, measure there ──


@pytest.fixture
def away(tmp_path: Path) -> Path:
    folder = tmp_path / "away"
    folder.mkdir()
    return folder


def test_a_bundle_is_measured_elsewhere_and_imported(host: Host, away: Path) -> None:
    """Built on a machine without a GPU; measured where there is no git, no nvcc and no project; brought home."""
    home = cli_in(host.user.root)
    job = away / "job.faperf"
    answer = home("bundle", "--out", str(job))
    assert answer.exit_code == 0, answer.output
    assert "2 to measure" in answer.stdout
    tools = away / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").symlink_to(host.folder / "bin/nvidia-smi")
    (tools / "sh").symlink_to("/bin/sh")
    there = cli_in(away)
    measured = there("run", "--bundle", "job.faperf", env=host.env | {"PATH": str(tools)})
    assert measured.exit_code == 0, measured.output
    assert "12 records" in measured.stdout
    assert sorted(path.name for path in away.iterdir()) == ["bin", "job.faperf", "job.faperf.results"]
    home("run")  # the commit has a record meanwhile, without figures
    imported = home("import", str(away / "job.faperf.results"))
    assert imported.exit_code == 0, imported.output
    assert f"/{fake_gpu.CLASS}/" in imported.stdout
    rows = host.ladder()
    assert [ms(row) for row in rows.values()] == [1.0, 1.1]
    assert rows["t2"]["time_verdict"] == "SLOWER"
    assert "(carried)" not in host("ladder").stdout
    again = home("run")  # and a later run keeps them
    assert again.exit_code == 0
    assert ms(host.ladder()["t2"]) == 1.1


def test_tensor_maps_and_clusters_go_to_where_it_is_measured(host: Host, away: Path) -> None:
    """A bundle says what a map is made of, not the map: it belongs to an address."""
    kernel = 'struct Map { char bytes[128]; };\nextern "C" __global__ void copy(const __grid_constant__ Map, float*, int) {}\n'
    host.user.version("t3", "t2", kernel=kernel.replace("{", "{{").replace("}", "}}"))
    host.user.edit("manifests/t3.yaml", "{tensor: Q}", "{tensor_map: Q, box: [64, 1, 128, 1], swizzle: 128}")
    host.user.edit("manifests/t3.yaml", "    block: [64]", "    block: [64]\n    cluster: [2]")
    host.user.commit("tensor maps, in clusters")
    assert host("run", "t3").exit_code == 0
    assert timed(host.folder) == ["t3@sm_90a"]
    assert host("bundle", "t3", "--out", str(away / "job")).exit_code == 0
    (launch,) = read_bundle(away / "job").side("t3@sm_90a").launches["tiny"]
    assert launch.cluster == (2, 1, 1)
    assert launch.args[0] == ResolvedArgument(tensor_map="Q", box=[64, 1, 128, 1], swizzle=128)
    host.forget()
    assert cli_in(away)("run", "--bundle", "job", env=host.env).exit_code == 0
    assert timed(host.folder) == ["t3@sm_90a"]


def test_a_wrong_version_in_a_bundle_is_exit_code_5(host: Host, away: Path) -> None:
    host.plan(t2={"wrong": "all of it"})
    host("bundle", "t2", "--out", str(away / "job"))
    answer = cli_in(away)("run", "--bundle", "job", "--out", "sub/results", env=host.env)
    assert answer.exit_code == 5
    assert (away / "sub/results").exists()  # the figures are there all the same
    assert host("import", str(away / "sub/results")).exit_code == 0
    assert host.ladder()["t2"]["measured"]["checks"][0]["failure"] == "all of it"


def test_a_damaged_bundle_and_what_does_not_go_with_one_are_errors(host: Host, away: Path) -> None:
    host("bundle", "--out", str(away / "job"))
    whole = (away / "job").read_bytes()
    (away / "job").write_bytes(whole[: len(whole) // 2])
    answer = cli_in(away)("run", "--bundle", "job", env=host.env)
    assert answer.exit_code == 1
    assert "job: not a bundle" in answer.stderr
    assert host("import", str(away / "job")).exit_code == 1
    for beside, named in ((("t1",), "VERSIONS"), (("--target", "sm_90a"), "--target"), (("--no-gpu",), "--no-gpu")):
        answer = cli_in(away)("run", "--bundle", "job", *beside, env=host.env)
        assert (answer.exit_code, f"{named} does not go with --bundle" in answer.stderr) == (2, True)
    assert host("run", "--out", "results").exit_code == 2
    assert log(host.folder) == []


def test_a_bundle_needs_a_gpu(host: Host, away: Path) -> None:
    host("bundle", "--out", str(away / "job"))
    answer = cli_in(away)("run", "--bundle", "job")
    assert answer.exit_code == 1
    assert "a bundle is measured on a GPU" in answer.stderr
