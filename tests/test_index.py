"""The index of run files: quick, and never trusted over the files, whatever happens to them or to it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faperf import index, record
from faperf.history import History
from faperf.project import Project
from faperf.record import Entry, Run, Timing
from tests import facts
from tests.conftest import UserProject

COMMITS = [f"{n:012x}" + 28 * "0" for n in range(1, 4)]


def timing(ms: float, **changes: object) -> Timing:
    return record.replace(facts.timing(ms=ms, build="b1", launch="l", workload="tiny"), **changes)


def write(project: Project, commit: str, run_id: str, *timings: Timing, version: str = "t1") -> Path:
    """A finished run of one version, which measured `timings`."""
    measured = {found.workload: run_id for found in timings}
    entry = Entry(
        version=version, target="sm_90a", build="b1", launches=dict.fromkeys(measured, "l"), measured=measured
    )
    run = Run(
        schema=1, id=run_id, commit=commit, when="2026-11-30T00:00:00+00:00", faperf="0.1.0", machine="h200", entries=[entry]
    )  # fmt: skip
    return History(project).publish(run, timings)


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written a moment ago counts as settled, so that the index is used; one test says otherwise."""
    monkeypatch.setattr(index, "DOUBTFUL_NS", -1)


@pytest.fixture
def project(bare: UserProject) -> Project:
    for number, commit in enumerate(COMMITS):
        write(bare.project, commit, f"2026113{number}T000000Z0000", timing(0.1 * (number + 1)))
    return bare.project


def times(project: Project, version: str = "t1") -> list[float]:
    return [round(stored.timing.ms.value, 3) for stored in History(project).timings(version)]


def folder(project: Project) -> Path:
    return project.state / "history" / "h200"


def in_place(path: Path, content: bytes) -> None:
    """Changed as `echo >` does: the directory does not tell."""
    with path.open("r+b") as file:
        file.truncate()
        file.write(content)


def reads(project: Project, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that a question about timings reads."""
    history, read = History(project), []
    contents = history._contents

    def spy(path: Path) -> index.Contents:
        read.append(path.name[:12])
        return contents(path)

    monkeypatch.setattr(history, "_contents", spy)
    history.timings("t1")
    return read


def test_the_timings_of_a_version_oldest_first(project: Project) -> None:
    stored = History(project).timings("t1")
    assert [(s.file.commit12, s.target, round(s.timing.ms.value, 3)) for s in stored] == [
        (commit[:12], "sm_90a", ms) for commit, ms in zip(COMMITS, (0.1, 0.2, 0.3), strict=True)
    ]
    assert stored[0].timing == timing(0.1)
    assert History(project).timings("t2") == []
    assert History(project).timings("t1", "sm_103a") == []
    assert len(History(project).timings()) == 3


def test_a_timing_that_an_earlier_run_made_is_not_told_twice(project: Project) -> None:
    entry = Entry(
        version="t1", target="sm_90a", build="b1", launches={"tiny": "l"}, measured={"tiny": "20261130T000000Z0000"}
    )
    carried = Run(
        schema=1, id="20261139T000000Z0000", commit="f" * 40, when="", faperf="0.1.0", machine="h200", entries=[entry]
    )  # fmt: skip
    History(project).publish(carried, [])
    assert times(project) == [0.1, 0.2, 0.3]


def test_a_file_is_read_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(reads(project, monkeypatch)) == 3
    assert reads(project, monkeypatch) == []
    assert times(project) == [0.1, 0.2, 0.3]


def test_what_changed_a_moment_ago_is_looked_at_again(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may change again within the grain of the file system's clock."""
    monkeypatch.setattr(index, "DOUBTFUL_NS", 3_600_000_000_000)
    assert len(reads(project, monkeypatch)) == 3
    assert len(reads(project, monkeypatch)) == 3


def test_a_deleted_file_is_forgotten(project: Project) -> None:
    assert len(times(project)) == 3
    next(folder(project).glob(f"{COMMITS[1][:12]}-*")).unlink()
    assert times(project) == [0.1, 0.3]
    assert History(project).index.commits() == {COMMITS[0][:12], COMMITS[2][:12]}


def test_a_deleted_folder_is_forgotten(project: Project) -> None:
    assert len(times(project)) == 3
    folder(project).rename(project.root / "elsewhere")
    assert times(project) == []
    assert History(project).run_files() == []


def test_an_added_file_is_seen(project: Project) -> None:
    assert len(times(project)) == 3
    write(project, "d" * 40, "20261201T000000Z0000", timing(0.4))
    assert times(project) == [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize("same_size", [True, False])
def test_a_file_that_was_edited_in_place_is_read_again(project: Project, same_size: bool) -> None:
    """Of the same size and with its old time stamp put back, as `touch -r` does: the time of change tells."""
    assert times(project) == [0.1, 0.2, 0.3]
    path = next(folder(project).glob(f"{COMMITS[0][:12]}-*"))
    before = path.stat()
    text = path.read_bytes().replace(b'"value":0.1', b'"value":0.7' if same_size else b'"value":0.777')
    in_place(path, text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert times(project)[0] == (0.7 if same_size else 0.777)


def test_a_truncated_file_loses_what_it_lost_and_says_so_each_time(project: Project) -> None:
    assert len(times(project)) == 3
    path = next(folder(project).glob(f"{COMMITS[0][:12]}-*"))
    in_place(path, path.read_bytes()[:-40])
    for _ in range(2):
        history = History(project)
        assert [s.file.commit12 for s in history.timings("t1")] == [c[:12] for c in COMMITS[1:]]
        (warning,) = history.warnings
        assert path.name in warning


def test_a_line_of_a_newer_schema_is_named_each_time_and_the_rest_is_used(project: Project) -> None:
    path = next(folder(project).glob(f"{COMMITS[0][:12]}-*"))
    in_place(path, b'{"kind":"timing","schema":99}\n' + path.read_bytes())
    for _ in range(2):
        history = History(project)
        assert len(history.timings("t1")) == 3
        assert "upgrade faperf" in history.warnings[0]


def test_a_run_that_changed_owner_moves_its_timings(project: Project) -> None:
    assert len(times(project)) == 3
    path = next(folder(project).glob(f"{COMMITS[0][:12]}-*"))
    in_place(path, path.read_bytes().replace(b'"version":"t1"', b'"version":"t2"'))
    assert times(project) == [0.2, 0.3]
    assert times(project, "t2") == [0.1]


def test_a_hand_in_another_versions_file_is_seen_where_all_are_looked_at(project: Project) -> None:
    """A question about one version looks at the files that hold it. All are looked at with the next run, or for the report."""
    write(project, "d" * 40, "20261201T000000Z0000", timing(0.4), version="t2")
    assert (times(project), times(project, "t2")) == ([0.1, 0.2, 0.3], [0.4])
    path = next(folder(project).glob(f"{COMMITS[0][:12]}-*"))
    in_place(path, path.read_bytes().replace(b'"version":"t1"', b'"version":"t2"'))
    assert times(project, "t2") == [0.4]
    write(project, "e" * 40, "20261202T000000Z0000", timing(0.5), version="t3")
    assert (times(project, "t2"), times(project)) == ([0.1, 0.4], [0.2, 0.3])


@pytest.mark.parametrize("damage", ["garbage", "truncated", "empty", "another layout", "no tables"])
def test_a_damaged_index_is_made_anew(project: Project, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(times(project)) == 3
    database = project.state / "index.sqlite"
    if damage in ("another layout", "no tables"):
        with sqlite3.connect(database) as db:
            db.execute("PRAGMA user_version = 7" if damage == "another layout" else "DROP TABLE timings")
        db.close()
    else:
        content = database.read_bytes()
        database.write_bytes(
            {"garbage": b"\x13" * 5000, "truncated": content[: len(content) // 2], "empty": b""}[damage]
        )
    assert times(project) == [0.1, 0.2, 0.3]
    assert len(History(project).run_files()) == 3


def test_where_the_index_cannot_be_written_it_is_in_memory(project: Project) -> None:
    (project.state / "index.sqlite").mkdir()
    assert times(project) == [0.1, 0.2, 0.3]
    write(project, "d" * 40, "20261201T000000Z0000", timing(0.4))
    assert times(project) == [0.1, 0.2, 0.3, 0.4]


def test_a_read_only_index_serves_as_far_as_it_goes(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(times(project)) == 3
    write(project, "d" * 40, "20261201T000000Z0000", timing(0.4))
    connect = sqlite3.connect

    def read_only(where: str, **options: object) -> sqlite3.Connection:
        uri = where if str(where).startswith(("file:", ":memory:")) else f"{Path(where).as_uri()}?mode=ro"
        return connect(uri, **(options | {"uri": True}))  # type: ignore[call-overload]

    monkeypatch.setattr(sqlite3, "connect", read_only)
    before = (project.state / "index.sqlite").read_bytes()
    assert reads(project, monkeypatch) == ["d" * 12]
    assert times(project) == [0.1, 0.2, 0.3, 0.4]
    assert (project.state / "index.sqlite").read_bytes() == before


def test_an_index_that_another_process_holds_is_not_waited_for_long(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(times(project)) == 3
    monkeypatch.setattr(index, "WAIT_S", 0.05)
    with sqlite3.connect(project.state / "index.sqlite", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        assert times(project) == [0.1, 0.2, 0.3]
        assert time.monotonic() - began < 2
    other.close()


READER = """
import sys
from pathlib import Path
from faperf.history import History
from faperf.project import Project
print(len(History(Project(Path(sys.argv[1]))).timings("t1")))
"""


def test_readers_and_writers_at_once(project: Project) -> None:
    """Six processes read while runs appear; each finds at least what was there when it began, and the last all."""
    readers = []
    for number in range(6):
        for more in range(5):
            write(project, f"{number:06x}{more:06x}" + 28 * "a", f"202612{number:02}T0000{more:02}Z0000", timing(0.5))
        command = [sys.executable, "-c", READER, str(project.root)]
        readers.append((3 + 5 * (number + 1), subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
    for least, process in readers:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert least <= int(said) <= 33
    assert len(times(project)) == 33


def test_a_project_without_history_gets_no_state(bare: UserProject) -> None:
    assert History(bare.project).run_files() == []
    assert not bare.project.state.exists()
