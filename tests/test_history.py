"""Where records live: what is lost when a file is damaged (only that), when a process dies, when the disk is full."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from faperf import record
from faperf.errors import HistoryError
from faperf.history import NO_GIT, History, in_use, new_run_id, write_atomically
from faperf.index import RunFile
from faperf.project import Project
from faperf.record import Build, Entry, KernelFacts, Run, Toolchain
from tests.conftest import REPOSITORY, UserProject

RECORDS = Path(__file__).parent / "data" / "records"
COMMIT = "e0d042f0" * 5
OTHER = "0badcafe" * 5


def run(run_id: str = "20261130T024100Z000001", commit: str | None = COMMIT, **changes: Any) -> Run:
    plain: dict[str, Any] = {
        "schema": 1,
        "id": run_id,
        "commit": commit,
        "when": "2026-11-30T02:41:00+00:00",
        "faperf": "0.1.0",
        "machine": "no-gpu",
        "entries": [Entry(version="t1", target="sm_90a", build="key1")],
    }
    return Run(**(plain | changes))


def build(key: str = "key1", **changes: Any) -> Build:
    plain: dict[str, Any] = {
        "schema": 1,
        "key": key,
        "version": "t1",
        "target": "sm_90a",
        "source": "kernels/t1.cu",
        "toolchain": Toolchain(nvcc="13.0.88", build="", host="g++ 12.2.0"),
        "kernels": [KernelFacts(entry="copy", registers=8, register_cap=255)],
        "code": "c",
    }
    return Build(**(plain | changes))


@pytest.fixture
def project(bare: UserProject) -> Project:
    return bare.project


@pytest.fixture
def history(project: Project) -> History:
    return History(project)


def files(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


# ── where ──


def test_a_machine_that_is_not_enrolled_writes_under_its_state(history: History, project: Project) -> None:
    path = history.finish(run())
    history.save_build(build())
    assert path == project.state / "history/no-gpu/e0d042f0e0d0-20261130T024100Z000001.jsonl"
    assert (project.state / "history/builds/key1.json").is_file()
    assert not project.history.exists()


def test_an_enrolled_machine_writes_to_history(history: History, project: Project) -> None:
    assert history.machine() is None
    history.enrol("h200-a")
    path = history.finish(run(machine="h200-a"))
    history.save_build(build())
    assert path == project.history / "h200-a/e0d042f0e0d0-20261130T024100Z000001.jsonl"
    assert files(project.history) == {"builds/key1.json", "h200-a/e0d042f0e0d0-20261130T024100Z000001.jsonl"}
    machine = History(project).machine()
    assert machine is not None
    assert machine.machine_class == "h200-a"


def test_both_places_are_read(history: History, project: Project) -> None:
    history.finish(run("20261130T000000Z000001"))
    history.save_build(build("mine"))
    history.enrol("h200-a")
    history.finish(run("20261130T000001Z000001", machine="h200-a"))
    history.save_build(build("shared"))
    assert [found.run_id for found in History(project).run_files()] == [
        "20261130T000000Z000001",
        "20261130T000001Z000001",
    ]
    assert history.build("mine") == build("mine")
    assert history.build("shared") == build("shared")


def test_a_damaged_enrolment_is_an_error_with_a_remedy(history: History, project: Project) -> None:
    project.make_state()
    (project.state / "machine.json").write_text("{")
    with pytest.raises(HistoryError) as caught:
        history.machine()
    assert caught.value.where == ".faperf/machine.json"
    assert "faperf machine add" in (caught.value.remedy or "")


def test_files_are_readable_by_others(history: History) -> None:
    assert history.finish(run()).stat().st_mode & 0o777 == 0o644


# ── builds ──


def test_a_build_is_stored_once(history: History, project: Project) -> None:
    assert history.build("key1") is None
    assert history.save_build(build()) is True
    before = (project.state / "history/builds/key1.json").stat()
    assert history.save_build(build(version="t2")) is False
    assert (project.state / "history/builds/key1.json").stat() == before
    assert history.build("key1") == build()


def test_a_build_that_is_shared_already_is_not_stored_again(history: History, project: Project) -> None:
    write_atomically(project.history / "builds/key1.json", record.encode(build()))
    assert history.save_build(build()) is False
    assert not (project.state / "history/builds").exists()


def test_a_damaged_build_counts_as_absent_and_is_stored_anew(history: History, project: Project) -> None:
    path = project.state / "history/builds/key1.json"
    write_atomically(path, record.encode(build())[:40])
    assert history.build("key1") is None
    assert history.warnings[0].startswith(".faperf/history/builds/key1.json:1: not a record: Input data was truncated")
    assert history.save_build(build()) is True
    assert History(project).build("key1") == build()


def test_a_build_of_a_newer_faperf_is_not_replaced(history: History, project: Project) -> None:
    path = project.state / "history/builds/key1.json"
    newer = record.encode(build()).replace(b'"schema":1', b'"schema":2')
    write_atomically(path, newer)
    with pytest.raises(HistoryError, match="schema 2; this faperf reads up to 1") as caught:
        history.save_build(build())
    assert (caught.value.where, caught.value.remedy) == (".faperf/history/builds/key1.json", "upgrade faperf")
    assert path.read_bytes() == newer


def test_a_build_under_another_key_is_not_believed(history: History, project: Project) -> None:
    write_atomically(project.history / "builds/key1.json", record.encode(build("key2")))
    assert history.build("key1") is None


# ── names and order ──


def test_run_ids_sort_by_time_and_differ() -> None:
    ids = [new_run_id() for _ in range(200)]
    assert len(set(ids)) == 200
    assert [found[:16] for found in ids] == sorted(found[:16] for found in ids)
    assert not [found for found in ids if "-" in found]


def test_run_files_sort_by_time_whatever_the_commit_and_class(history: History) -> None:
    history.finish(run("20261130T000003Z000000", commit="1" * 40, machine="a"))
    history.finish(run("20261130T000001Z000000", commit="f" * 40, machine="b"))
    history.finish(run("20261130T000002Z000000", commit=None, machine="a"))
    history.finish(run("20261130T000004Z000000", commit="0" * 40, machine="b", dirty=["kernels/t1.cu"]))
    found = history.run_files()
    assert [name.run_id[:16] for name in found] == [f"20261130T00000{n}Z" for n in (1, 2, 3, 4)]
    assert [name.commit12 for name in found] == ["f" * 12, NO_GIT, "1" * 12, "0" * 12]
    assert [name.dirty for name in found] == [False, False, False, True]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("e0d042f0e0d0-20261130T0Z1.jsonl", ("e0d042f0e0d0", False, "20261130T0Z1")),
        ("e0d042f0e0d0-dirty-20261130T0Z1.jsonl", ("e0d042f0e0d0", True, "20261130T0Z1")),
        ("nogit-20261130T0Z1.jsonl", ("nogit", False, "20261130T0Z1")),
        ("export.jsonl", None),
        ("-x.jsonl", None),
        ("x-.jsonl", None),
        ("-.jsonl", None),
    ],
)
def test_what_a_run_files_name_tells(name: str, expected: tuple[str, bool, str] | None) -> None:
    found = RunFile.parse(Path(name))
    assert (found and (found.commit12, found.dirty, found.run_id)) == expected


def test_a_strangers_file_among_the_runs_is_left_alone(history: History, project: Project) -> None:
    history.finish(run())
    (project.state / "history/no-gpu/export.jsonl").write_text("hello\n")
    (project.state / "history/no-gpu/notes.txt").write_text("hello\n")
    assert [found.commit12 for found in history.run_files()] == [COMMIT[:12]]


# ── which run ──


def test_newest_run(history: History) -> None:
    history.finish(run("20261130T000001Z000000"))
    history.finish(run("20261130T000002Z000000", unmeasured="newest clean one"))
    history.finish(run("20261130T000003Z000000", dirty=["kernels/t1.cu"]))
    history.finish(run("20261130T000004Z000000", commit=OTHER))
    history.finish(run("20261130T000005Z000000", commit=None))

    def newest(commit: str | None, dirty: bool | None = None) -> str | None:
        found = history.newest_run(commit, dirty=dirty)
        return found.id[14:15] if found else None

    assert newest(COMMIT) == "3"
    assert newest(COMMIT, dirty=False) == "2"
    assert newest(COMMIT, dirty=True) == "3"
    assert newest(OTHER, dirty=True) is None
    assert newest(None) == "5"
    assert newest("f" * 40) is None


def test_a_commit_that_shares_twelve_digits_is_another(history: History) -> None:
    history.finish(run())
    assert history.newest_run(COMMIT[:12] + "0" * 28) is None


def test_the_newest_readable_run_counts(history: History) -> None:
    history.finish(run("20261130T000001Z000000"))
    path = history.finish(run("20261130T000002Z000000"))
    path.write_bytes(path.read_bytes()[:50])
    found = history.newest_run(COMMIT)
    assert found is not None
    assert found.id == "20261130T000001Z000000"
    assert history.warnings == [
        f".faperf/history/no-gpu/{path.name}:1: not a record: Input data was truncated; line ignored "
        "(restore the line from git, or delete it)",
        f".faperf/history/no-gpu/{path.name}: holds no run record; ignored",
    ]


# ── damage ──


def run_file(project: Project, *lines: bytes) -> RunFile:
    path = project.history / "m" / "e0d042f0e0d0-20261130T024100Z000001.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(lines))
    found = RunFile.parse(path)
    assert found is not None
    return found


NAME = "history/m/e0d042f0e0d0-20261130T024100Z000001.jsonl"
BUILD_LINE = (RECORDS / "build-1.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        (record.encode(run())[:60], "not a record: Input data was truncated"),
        (record.encode(run()).replace(b'"entries":', b'"entires":'), "missing required field `entries`"),
        (b"\x00\xff\xfe\x80\x81 binary junk", "not a record"),
        (b"<<<<<<< HEAD", "not a record"),
        (b'{"kind":"run","schema":2}', "schema 2; this faperf reads up to 1; line ignored (upgrade faperf)"),
    ],
)
def test_a_damaged_line_is_a_warning_and_the_rest_loads(
    damaged: bytes, words: str, history: History, project: Project
) -> None:
    good = record.encode(run())
    found = run_file(project, BUILD_LINE, damaged + b"\n", good)
    assert history.load_run(found) == run()
    assert len(history.warnings) == 1
    assert history.warnings[0].startswith(f"{NAME}:2: ")
    assert words in history.warnings[0]


def test_a_truncated_last_line(history: History, project: Project) -> None:
    good = record.encode(run())
    assert history.load_run(run_file(project, good, good[:-20])) == run()
    assert history.warnings == [
        f"{NAME}:2: not a record: Input data was truncated; line ignored (restore the line from git, or delete it)"
    ]


def test_a_warning_is_said_once(history: History, project: Project) -> None:
    found = run_file(project, record.encode(run()), b"junk\n")
    history.load_run(found)
    history.load_run(found)
    assert len(history.warnings) == 1


def test_blank_lines_and_line_ends_of_windows_do_no_harm(history: History, project: Project) -> None:
    good = record.encode(run()).rstrip(b"\n")
    assert history.load_run(run_file(project, b"\r\n", good + b"\r\n", b"\n  \n")) == run()
    assert history.warnings == []


@pytest.mark.parametrize("content", [b"", b"\n\n", BUILD_LINE])
def test_a_file_without_a_run(content: bytes, history: History, project: Project) -> None:
    assert history.load_run(run_file(project, content)) is None
    assert history.warnings == [f"{NAME}: holds no run record; ignored"]


def test_a_newer_schema_is_a_warning_and_older_runs_still_load(history: History, project: Project) -> None:
    history.finish(run("20261130T000001Z000000"))
    path = history.finish(run("20261130T000002Z000000"))
    path.write_bytes(path.read_bytes().replace(b'"schema":1', b'"schema":7'))
    found = history.newest_run(COMMIT)
    assert found is not None
    assert found.id == "20261130T000001Z000000"
    assert "schema 7; this faperf reads up to 1; line ignored (upgrade faperf)" in history.warnings[0]


def test_every_damaged_run_is_named_and_none_stops_the_others(history: History) -> None:
    for n in range(6):
        path = history.finish(run(f"20261130T00000{n}Z000000"))
        if n % 2:
            path.write_bytes(os.urandom(200))
    loaded = [history.load_run(found) for found in history.run_files()]
    assert [found and found.id[14] for found in loaded] == ["0", None, "2", None, "4", None]
    assert len([text for text in history.warnings if "holds no run record" in text]) == 3


# ── a run under way ──


def test_a_finished_run_leaves_no_journal(history: History, project: Project) -> None:
    history.begin(run(entries=[]))
    assert files(project.state / "pending") == {"20261130T024100Z000001.jsonl"}
    history.finish(run())
    assert files(project.state / "pending") == set()
    assert History(project).pending() == []


def test_an_abandoned_run_leaves_nothing(history: History, project: Project) -> None:
    history.begin(run(entries=[]))
    history.abandon(run().id)
    assert files(project.state / "pending") == set()
    assert history.run_files() == []


def test_state_is_ignored_by_git_from_the_first_run(user: UserProject) -> None:
    history = History(user.project)
    history.begin(run())
    assert user.git("status", "--porcelain") == ""
    history.finish(run())
    assert user.git("status", "--porcelain") == ""


BEGIN = """
import sys, time
from pathlib import Path
from faperf.history import History
from faperf.index import RunFile
from faperf.project import Project
from tests.test_history import run
history = History(Project(Path(sys.argv[1])))
history.begin(run(sys.argv[2], entries=[]))
print("begun", flush=True)
sys.stdin.read()
history.finish(run(sys.argv[2], commit=sys.argv[3]))
"""


def begin_elsewhere(project: Project, run_id: str, commit: str = COMMIT) -> subprocess.Popen[str]:
    """Another process that has begun a run, and finishes it when its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN, str(project.root), run_id, commit],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def test_a_killed_run_is_pending_and_a_living_one_is_not(history: History, project: Project) -> None:
    with begin_elsewhere(project, "20261130T000001Z000000") as process:
        assert history.pending() == []
        assert in_use(project.state / "pending/20261130T000001Z000000.jsonl")
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert history.pending() == [run("20261130T000001Z000000", entries=[])]
    assert not in_use(project.state / "pending/20261130T000001Z000000.jsonl")


def test_a_killed_run_can_be_resumed_and_finished(history: History, project: Project) -> None:
    with begin_elsewhere(project, "20261130T000001Z000000") as process:
        process.kill()
        process.communicate()
    (header,) = history.pending()
    history.begin(header)
    assert History(project).pending() == []  # it is ours now
    path = history.finish(record.replace(header, entries=run().entries))
    assert History(project).pending() == []
    assert [found.path for found in history.run_files()] == [path]


def test_a_run_cannot_be_resumed_twice(history: History, project: Project) -> None:
    with begin_elsewhere(project, "20261130T000001Z000000") as process:
        with pytest.raises(HistoryError, match="under way in another process"):
            history.begin(run("20261130T000001Z000000", entries=[]))
        process.communicate()
        assert process.returncode == 0
    assert len(history.run_files()) == 1


def test_two_runs_at_once_both_survive(history: History, project: Project) -> None:
    first = begin_elsewhere(project, "20261130T000001Z000000")
    second = begin_elsewhere(project, "20261130T000001Z000001")
    for process in (first, second):
        process.communicate()  # closes stdin: both finish
        assert process.returncode == 0
    runs = [history.load_run(found) for found in history.run_files()]
    assert [found and found.id for found in runs] == ["20261130T000001Z000000", "20261130T000001Z000001"]
    assert history.pending() == []
    assert history.warnings == []


def test_pending_runs_come_oldest_first_and_a_damaged_journal_is_a_warning(history: History, project: Project) -> None:
    for run_id in ("20261130T000002Z000000", "20261130T000001Z000000"):
        write_atomically(project.state / f"pending/{run_id}.jsonl", record.encode(run(run_id)))
    write_atomically(project.state / "pending/20261130T000003Z000000.jsonl", b"{")
    assert [header.id[14] for header in history.pending()] == ["1", "2"]
    assert history.warnings[0].startswith(".faperf/pending/20261130T000003Z000000.jsonl:1: not a record")


# ── a full disk ──


@pytest.fixture(params=["mkdir", "open", "fsync", "replace", "chmod"])
def full_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """ENOSPC at each step of writing a file."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    step = str(request.param)
    if step == "open":
        monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    elif step == "mkdir":
        monkeypatch.setattr(Path, "mkdir", refuse)
    else:
        monkeypatch.setattr(os, step, refuse)
    return step


def test_a_full_disk_is_an_error_without_debris(full_disk: str, tmp_path: Path) -> None:
    target = tmp_path / "out" / "file.jsonl"
    before = files(tmp_path)
    with pytest.raises(HistoryError) as caught:
        write_atomically(target, b"new")
    assert caught.value.what == "cannot write: No space left on device"
    assert caught.value.where == str(target)
    assert "free some space" in (caught.value.remedy or "")
    assert files(tmp_path) == before


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file.json"
    write_atomically(target, b"old")

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(HistoryError):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"


def test_a_run_that_cannot_be_written_keeps_its_journal(
    history: History, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that `run --resume` goes on with it when there is space again."""
    history.begin(run(entries=[]))

    def refuse(*paths: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(HistoryError):
            history.finish(run())
    assert files(project.state / "pending") == {"20261130T024100Z000001.jsonl"}
    assert history.run_files() == []
    history.finish(run())
    assert len(history.run_files()) == 1


def test_a_directory_that_may_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HistoryError, match=r"cannot write: (Not a directory|File exists)"):
        write_atomically(tmp_path / "file" / "x.json", b"new")


# ── reported ──

REPORTED = """\
schema: 1
title: t
url: https://example.invalid
published: 2026-07-30
gpu: B300
target: sm_103a
operation: attention_forward
layout: BSHD
shape: {B: 1, H: 64, S: 1024, D: 128}
workload_inferred: "yes"
unknown: []
rows:
  - {version: v12, parent: null, change: c, tflops: 219.16}
"""


def test_reported(history: History, bare: UserProject) -> None:
    bare.write("history/reported/a.yaml", REPORTED)
    (ladder,) = history.reported()
    assert (ladder.gpu, ladder.rows[0].tflops) == ("B300", 219.16)
    found = history.reported_row("v12")
    assert found is not None
    assert found[1].change == "c"
    assert history.reported_row("v13") is None


def test_no_reported_figures(history: History) -> None:
    assert history.reported() == []
    assert history.reported_row("v12") is None


def test_a_broken_reported_file_is_a_warning_and_the_others_are_shown(history: History, bare: UserProject) -> None:
    bare.write("history/reported/a.yaml", REPORTED.replace("tflops:", "tflop:"))
    bare.write("history/reported/b.yaml", REPORTED)
    bare.write("history/reported/c.yaml", "schema: [")
    for _ in range(2):
        assert len(history.reported()) == 1
    assert len(history.warnings) == 2
    assert history.warnings[0].startswith("history/reported/a.yaml:13: line 13: unknown key 'rows[0].tflop'")
    assert "did you mean 'tflops'?" in history.warnings[0]
    assert history.warnings[0].endswith("not shown")
    assert history.warnings[1].startswith("history/reported/c.yaml:2: not valid YAML")


def test_the_published_ladder_of_this_repository_loads() -> None:
    history = History(Project(REPOSITORY))
    (ladder,) = [file for file in history.reported() if file.target == "sm_103a"]
    assert history.warnings == []
    figures = {row.version: row.tflops for row in ladder.rows}
    # as printed in shared/versions.md
    assert figures == {
        "v12": 219.16, "v13": 226.83, "v14": 179.81, "v15": 182.50, "v16": 201.13, "v16-l32": 190.56,
        "v16-i16": 204.04, "v17": 175.88, "v18": 152.96, "v19": 178.71, "v20": 220.52,
    }  # fmt: skip


def test_the_published_figures_fit_the_workload_that_was_inferred() -> None:
    """TFLOPS · ms = 4·B·H·S²·D FLOPs, GiB/s · ms = four tensors of halves; to the digits that are printed."""
    (ladder,) = History(Project(REPOSITORY)).reported()
    b, h, s, d = (ladder.shape[name] for name in "BHSD")
    flops, size = 4 * b * h * s * s * d, 4 * b * h * s * d * 2
    timed = [row for row in ladder.rows if row.ms]
    assert len(timed) == 9
    for row in timed:
        assert row.ms is not None
        assert row.tflops is not None
        assert row.gib_s is not None
        assert row.tflops * row.ms == pytest.approx(flops / 1e9, rel=0.004)
        assert row.gib_s / row.tflops == pytest.approx(size / 2**30 / flops * 1e12, rel=1e-4)
