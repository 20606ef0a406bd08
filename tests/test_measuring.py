"""What is measured, what is carried forward, and how a job is worked off: with a worker whose answers are canned."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from faperf import measuring, record
from faperf.build import Artifact
from faperf.building import Outcome, Progress, Selection
from faperf.errors import FaperfError, HistoryError, MeasuringError, SelectionError
from faperf.explaining import measured_anywhere
from faperf.figures import carry_figures, silicon_of
from faperf.frames import Ready
from faperf.harness import import_results, run_bundle
from faperf.history import History
from faperf.job import Job, JobWorkload, Task, blank_check, launch_of
from faperf.manifest import Manifests, check_workloads, load_manifests
from faperf.measuring import (
    Results,
    against,
    carried_forward,
    job_of,
    perform,
    read_bundle,
    read_results,
    tasks_left,
    with_measured,
    workloads_to_measure,
    write_bundle,
    write_results,
)
from faperf.operations import BUILT_IN, Operations
from faperf.operations.attention_forward import AttentionForward
from faperf.record import Check, Run, Timing
from faperf.worker import FaultError
from tests import facts
from tests.conftest import REPOSITORY, TINY_AND_LENGTHS, UserProject
from tests.fake_gpu import timing as canned

DISTRIBUTIONS = ("normal", "growing", "ones")


class _OnThree(AttentionForward):
    distributions = DISTRIBUTIONS


OPERATIONS = Operations({})
OPERATIONS["attention_forward"] = _OnThree()
OTHER_SHAPE = {"B": 2, "H": 1, "S": 128, "D": 64}


def timing(job: Job, task: Task, **changes: Any) -> Timing:
    return record.replace(canned(job, task, lambda name: 1.0), **changes)


def check(job: Job, task: Task, distribution: str = "normal", **changes: Any) -> Check:
    return record.replace(
        blank_check(job, job.side(task.side), job.workload(task.workload), distribution, 7), **changes
    )


# ── the job ──


@pytest.fixture
def manifests(bare: UserProject) -> Manifests:
    """t1 ← t2 ← t3; t3 has a target and a workload that its parent lacks; t4's parent has no manifest."""
    bare.write("manifests/workloads.yaml", TINY_AND_LENGTHS)
    for name, parent in (("t1", None), ("t2", "t1"), ("t3", "t2"), ("t4", "t0")):
        bare.version(name, parent)
    bare.edit("manifests/t3.yaml", "workloads: [tiny]", "workloads: [tiny, lengths]")
    bare.edit("manifests/t3.yaml", "targets: [sm_90a]", "targets: [sm_90a, sm_103a]")
    return load_manifests(bare.project)


@pytest.fixture
def outcome(manifests: Manifests, tmp_path: Path) -> Outcome:
    """All of it built."""
    steps = Selection().steps(manifests)
    builds, artifacts, entries = {}, {}, []
    for version, target in steps:
        key = f"b-{version.id}-{target}"
        directory = tmp_path / "builds" / key
        directory.mkdir(parents=True)
        (directory / "kernel.cubin").write_bytes(f"cubin of {key}".encode())
        builds[key] = facts.build(key=key, version=version.id, target=target, code=f"code of {key}")
        artifacts[key] = Artifact(key, directory, cached=False, inputs=())
        entries.append(facts.entry(version.id, key, target=target, parent=version.parent))
    return Outcome(facts.run(*entries, machine="a-class", dirty=["kernels/t1.cu"]), builds, artifacts, [])


def make(manifests: Manifests, outcome: Outcome, wanted: Sequence[str] = (), *versions: str, target: str = "") -> Job:
    steps = Selection(versions, (target,) if target else ()).steps(manifests)
    return job_of(BUILT_IN, manifests, outcome, steps, wanted)


def test_a_parent_that_is_on_record_but_was_not_built_here_is_no_partner(
    manifests: Manifests, outcome: Outcome
) -> None:
    (task,) = make(manifests, outcome, (), "t2", target="sm_90a").tasks
    assert task.partners == {"parent": "t1@sm_90a"}
    del outcome.artifacts["b-t1-sm_90a"]
    (task,) = make(manifests, outcome, (), "t2", target="sm_90a").tasks
    assert task.partners == {}


def test_each_version_is_measured_against_its_parent(manifests: Manifests, outcome: Outcome) -> None:
    job = make(manifests, outcome, target="sm_90a")
    assert job.tasks == [
        Task("t1@sm_90a", "tiny", {}),
        Task("t2@sm_90a", "tiny", {"parent": "t1@sm_90a"}),
        Task("t3@sm_90a", "tiny", {"parent": "t2@sm_90a"}),
        Task("t4@sm_90a", "tiny", {}),  # its parent has no manifest
    ]
    assert [workload.name for workload in job.workloads] == ["tiny"]


def test_a_parent_without_the_target_is_no_partner(manifests: Manifests, outcome: Outcome) -> None:
    job = make(manifests, outcome, target="sm_103a")
    assert job.tasks == [Task("t3@sm_103a", "tiny", {})]
    assert [side.name for side in job.sides] == ["t3@sm_103a"]


def test_a_parent_without_the_workload_is_no_partner(manifests: Manifests, outcome: Outcome) -> None:
    job = make(manifests, outcome, ["lengths", "tiny"], "t3", target="sm_90a")
    assert job.tasks == [
        Task("t3@sm_90a", "tiny", {"parent": "t2@sm_90a"}),
        Task("t3@sm_90a", "lengths[S=64]", {}),
        Task("t3@sm_90a", "lengths[S=256]", {}),
    ]


def test_a_parent_that_was_not_asked_for_comes_along_as_a_side_and_not_as_a_task(
    manifests: Manifests, outcome: Outcome
) -> None:
    job = make(manifests, outcome, (), "t2")
    assert job.tasks == [Task("t2@sm_90a", "tiny", {"parent": "t1@sm_90a"})]
    assert {side.name for side in job.sides} == {"t1@sm_90a", "t2@sm_90a"}


@pytest.mark.parametrize("broken", ["t1", "t2"])
def test_what_did_not_build_is_neither_task_nor_partner(manifests: Manifests, outcome: Outcome, broken: str) -> None:
    entries = [record.replace(e, build=None) if e.version == broken else e for e in outcome.run.entries]
    outcome.run = record.replace(outcome.run, entries=entries)
    tasks = {task.side: task.partners for task in make(manifests, outcome, (), "t1", "t2", "t3", target="sm_90a").tasks}
    assert f"{broken}@sm_90a" not in tasks
    orphan = {"t1": "t2@sm_90a", "t2": "t3@sm_90a"}[broken]
    assert tasks[orphan] == {}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([], ["tiny"]),
        (["lengths"], ["lengths[S=64]", "lengths[S=256]"]),
        (["lengths[S=256]"], ["lengths[S=256]"]),
        (["lengths[S=256]", "tiny"], ["tiny", "lengths[S=256]"]),
        (["length"], []),
    ],
)
def test_workloads_by_name_and_by_family(manifests: Manifests, wanted: list[str], expected: list[str]) -> None:
    found = workloads_to_measure(manifests.versions["t3"], manifests, wanted)
    assert [workload.name for workload in found] == expected


def test_unknown_workloads() -> None:
    there = ["tiny", "lengths[S=64]", "lengths[S=256]"]
    check_workloads(["tiny", "lengths", "lengths[S=64]"], there)
    for name in ("length", "lengths[S=65]", "Tiny", ""):
        with pytest.raises(SelectionError) as caught:
            check_workloads(["tiny", name], there)
        assert f"no workload '{name}'" in caught.value.what
        assert caught.value.remedy == "there are: tiny, lengths, lengths[S=64], lengths[S=256]"


def test_a_side_is_self_contained(manifests: Manifests, outcome: Outcome) -> None:
    job = make(manifests, outcome, (), "t3", target="sm_90a")
    side = job.side("t3@sm_90a")
    assert (side.version, side.target, side.build) == ("t3", "sm_90a", "b-t3-sm_90a")
    assert side.cubin == b"cubin of b-t3-sm_90a"
    assert side.code == "code of b-t3-sm_90a"
    assert {name: launches[0].grid for name, launches in side.launches.items()} == {
        "tiny": (2, 2, 1),
        "lengths[S=64]": (1, 2, 1),
        "lengths[S=256]": (4, 2, 1),
    }
    assert (job.commit, job.dirty) == (outcome.run.commit, ["kernels/t1.cu"])
    assert job.workload("tiny").shape == {"B": 1, "H": 2, "S": 128, "D": 64}
    assert {(side.operation, side.operation_version) for side in job.sides} == {("attention_forward", 1)}


def test_two_operations_in_one_run(manifests: Manifests, outcome: Outcome) -> None:
    other = record.replace(
        manifests.versions["t2"], operation=record.replace(manifests.versions["t2"].operation, name="x")
    )
    versions = {**manifests.versions, "t2": other}
    job = job_of(
        {**BUILT_IN, "x": OPERATIONS["attention_forward"]},
        Manifests(versions, manifests.workloads),
        outcome,
        [(version, "sm_90a") for version in versions.values()],
        (),
    )
    assert {side.version: side.operation for side in job.sides}["t1"] == "attention_forward"


def test_no_steps_no_tasks(manifests: Manifests, outcome: Outcome) -> None:
    assert job_of(BUILT_IN, manifests, outcome, [], ()).tasks == []


# ── against a baseline ──


def test_the_same_version_of_another_commit_takes_the_parents_place() -> None:
    old = facts.job(facts.side("t1", build="old1"), facts.side("t2", build="old2"), facts.side("t9"))
    tasks = [Task("t1@sm_90a", "tiny", {}), Task("t2@sm_90a", "tiny", {"parent": "t1@sm_90a"})]
    new = facts.job(facts.side("t1", build="new1"), facts.side("t2", build="new2"), tasks=tasks)
    job = against(new, {"baseline": old}, "this-class")
    assert job.tasks == [
        Task("t1@sm_90a", "tiny", {"baseline": "t1@sm_90a baseline"}),
        Task("t2@sm_90a", "tiny", {"baseline": "t2@sm_90a baseline"}),
    ]
    assert job.side("t1@sm_90a").build == "new1"
    assert job.side("t1@sm_90a baseline").build == "old1"
    assert job.run.machine == "this-class"
    assert "t9@sm_90a baseline" not in {side.name for side in job.sides}


@pytest.mark.parametrize("lacks", ["version", "target", "workload", "shape"])
def test_without_the_same_on_the_other_side_there_is_nothing_to_time(lacks: str) -> None:
    new = facts.job()
    old = {
        "version": facts.job(facts.side("t2")),
        "target": facts.job(facts.side("t1", target="sm_103a")),
        "workload": facts.job(facts.side("t1", launches={"other": [facts.launch()]})),
        "shape": facts.job(workloads=[JobWorkload("tiny", "another", OTHER_SHAPE)]),
    }[lacks]
    assert against(new, {"baseline": old}, "this-class").tasks == []


# ── what is known already ──

PAIR = facts.job(facts.side("t1"), facts.side("t2"), tasks=[Task("t2@sm_90a", "tiny", {"parent": "t1@sm_90a"})])
ALONE = facts.job(facts.side("t2"))
KNOWN = {("t2", "sm_90a", "tiny"): "20261130T010000Z000001"}


def recorded(history: History, *records: record.Record, run_id: str = "20261130T010000Z000001") -> Run:
    """A finished run that measured t2 on tiny."""
    entry = facts.entry("t2", "build-t2", target="sm_90a", measured={"tiny": run_id})
    run = facts.run(entry, id=run_id, machine="a-class")
    history.publish(run, records)
    return run


@pytest.fixture
def history(bare: UserProject) -> History:
    return History(bare.project)


def test_figures_of_the_same_build_launch_and_partner_are_carried(history: History) -> None:
    before = recorded(history, timing(PAIR, PAIR.tasks[0]))
    assert carried_forward(history, before, PAIR) == KNOWN
    assert tasks_left(PAIR, [], KNOWN) == []


def test_figures_without_a_partner_are_carried_to_a_task_without_one(history: History) -> None:
    before = recorded(history, timing(ALONE, ALONE.tasks[0]))
    assert carried_forward(history, before, ALONE) == KNOWN
    assert carried_forward(history, before, PAIR) == {}


def test_figures_of_an_earlier_run_are_found_through_the_last_one(history: History) -> None:
    recorded(history, timing(PAIR, PAIR.tasks[0]))
    entry = facts.entry("t2", "build-t2", target="sm_90a", measured={"tiny": "20261130T010000Z000001"})
    last = facts.run(entry, id="20261130T020000Z000002", machine="a-class")
    history.publish(last, [])
    assert carried_forward(history, last, PAIR) == KNOWN


@pytest.mark.parametrize(
    "changes",
    [
        {"build": "another"},
        {"launch": "another"},
        {"workload": "another"},
        {"shape": OTHER_SHAPE},
        {"machine": "another"},
        {"protocol": record.PROTOCOL_VERSION + 1},
        {"pairs": []},
        {"void": ["hardware slowdown"]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_figures_of_something_else_are_not_carried(history: History, changes: dict[str, Any]) -> None:
    before = recorded(history, timing(PAIR, PAIR.tasks[0], **changes))
    assert carried_forward(history, before, PAIR) == {}


def test_figures_against_another_build_of_the_parent_are_not_carried(history: History) -> None:
    before = recorded(history, timing(PAIR, PAIR.tasks[0]))
    changed = record.replace(PAIR, sides=[facts.side("t1", build="new-t1"), facts.side("t2")])
    assert carried_forward(history, before, changed) == {}


def test_explain_finds_what_was_measured_on_a_branch_that_was_merged(history: History) -> None:
    """Its commit is no first-parent ancestor of any."""
    recorded(history, timing(ALONE, ALONE.tasks[0]))
    now, changed = (facts.run(facts.entry("t2", build, target="sm_90a")) for build in ("build-t2", "another"))
    assert measured_anywhere(history, now).entries[0].measured == {"tiny": KNOWN["t2", "sm_90a", "tiny"]}
    assert measured_anywhere(history, changed).entries[0].measured == {}


def test_checks_alone_are_not_carried(history: History) -> None:
    """What was found wrong is found wrong again, and the exit code says so again."""
    before = recorded(history, check(PAIR, PAIR.tasks[0], failure="wrong"))
    assert carried_forward(history, before, PAIR) == {}


def test_a_run_whose_file_is_lost_carries_nothing(history: History, bare: UserProject) -> None:
    before = recorded(history, timing(PAIR, PAIR.tasks[0]))
    for path in (bare.root / ".faperf/history").glob("*/*.jsonl"):
        path.unlink()
    assert carried_forward(history, before, PAIR) == {}


# ── what is left of a run that was cut off ──

TWO = facts.job(
    facts.side("t1"),
    facts.side("t2"),
    tasks=[Task("t1@sm_90a", "tiny", {}), Task("t2@sm_90a", "tiny", {"parent": "t1@sm_90a"})],
)


@pytest.mark.parametrize(
    ("kept", "left"),
    [
        ([], ["t1", "t2"]),
        ([timing(TWO, TWO.tasks[0])], ["t2"]),
        ([timing(TWO, TWO.tasks[1])], ["t1"]),
        ([check(TWO, TWO.tasks[0])], ["t1", "t2"]),  # right so far, not timed yet
        ([check(TWO, TWO.tasks[0], failure="wrong")], ["t2"]),
        ([timing(TWO, TWO.tasks[0], build="an older tree's")], ["t1", "t2"]),
        ([timing(TWO, TWO.tasks[0], launch="an older tree's")], ["t1", "t2"]),
    ],
)
def test_tasks_left(kept: list[record.Record], left: list[str]) -> None:
    assert [task.side.partition("@")[0] for task in tasks_left(TWO, kept, {})] == left


SAME_LAUNCH = facts.job(
    facts.side("t1", launches={"tiny": [facts.launch()], "turned": [facts.launch()]}),
    workloads=[JobWorkload("tiny", "1", {"B": 1, "H": 2, "S": 128, "D": 64}), JobWorkload("turned", "2", OTHER_SHAPE)],
    tasks=[Task("t1@sm_90a", "tiny", {}), Task("t1@sm_90a", "turned", {})],
)
"""Two shapes whose grids and arguments come to the same: B and H only enter as B · H."""


def test_two_workloads_of_one_launch_are_two_tasks(history: History) -> None:
    tiny, turned = SAME_LAUNCH.tasks
    assert tasks_left(SAME_LAUNCH, [timing(SAME_LAUNCH, tiny)], {}) == [turned]
    launch = launch_of(SAME_LAUNCH.sides[0], SAME_LAUNCH.workloads[0])
    entry = facts.entry("t1", "build-t1", target="sm_90a", launches={"tiny": launch, "turned": launch})
    found: list[record.Record] = [
        check(SAME_LAUNCH, tiny),
        timing(SAME_LAUNCH, tiny),
        check(SAME_LAUNCH, turned, failure="wrong"),
    ]
    assert set(with_measured(facts.run(entry), found[:2], {}).entries[0].measured) == {"tiny"}
    run = with_measured(facts.run(entry), found, {})
    assert set(run.entries[0].measured) == {"tiny", "turned"}
    history.publish(run, found)
    assert silicon_of(history, run, "tiny")["t1", "sm_90a"].failures == []
    assert silicon_of(history, run, "turned")["t1", "sm_90a"].timing is None


# ── which run has whose figures ──


def placed(job: Job, **changes: Any) -> record.Entry:
    """t1's entry in a run that `job` belongs to."""
    launch = launch_of(job.sides[0], job.workloads[0])
    return facts.entry("t1", "build-t1", target="sm_90a", launches={"tiny": launch}, **changes)


def test_what_this_run_timed_or_found_wrong_is_named_after_it() -> None:
    run = facts.run(placed(TWO), id="now")
    assert with_measured(run, [timing(TWO, TWO.tasks[0])], {}).entries[0].measured == {"tiny": "now"}
    assert with_measured(run, [check(TWO, TWO.tasks[0], failure="wrong")], {}).entries[0].measured == {"tiny": "now"}
    assert with_measured(run, [check(TWO, TWO.tasks[0])], {}).entries[0].measured == {}  # as somebody's partner
    assert with_measured(run, [timing(TWO, TWO.tasks[1])], {}).entries[0].measured == {}  # somebody else's


def test_what_is_known_is_named_after_the_run_that_has_it() -> None:
    run = facts.run(placed(TWO), id="now")
    known = {("t1", "sm_90a", "tiny"): "then", ("t1", "sm_103a", "tiny"): "elsewhere"}
    assert with_measured(run, [], known).entries[0].measured == {"tiny": "then"}
    assert with_measured(run, [timing(TWO, TWO.tasks[0])], known).entries[0].measured == {"tiny": "now"}


def test_figures_are_named_on_while_build_and_launch_stay() -> None:
    before = facts.run(placed(TWO, measured={"tiny": "then"}))
    launch = before.entries[0].launches["tiny"]
    assert carry_figures(facts.run(placed(TWO)), before).entries[0].measured == {"tiny": "then"}
    assert carry_figures(facts.run(placed(TWO, measured={"tiny": "now"})), before).entries[0].measured == {
        "tiny": "now"
    }
    rebuilt = facts.entry("t1", "another", target="sm_90a", launches={"tiny": launch})
    assert carry_figures(facts.run(rebuilt), before).entries[0].measured == {}
    relaunched = facts.entry("t1", "build-t1", target="sm_90a", launches={"tiny": "another"})
    assert carry_figures(facts.run(relaunched), before).entries[0].measured == {}
    assert carry_figures(facts.run(facts.entry("t2", target="sm_90a")), before).entries[0].measured == {}
    assert carry_figures(facts.run(placed(TWO)), None).entries[0].measured == {}


# ── bundles ──

FULL = facts.job(
    facts.side("t1", cubin=bytes(range(256)), bound=1e-3),
    facts.side("t2", launches={"tiny": [facts.launch(smem=1024), facts.launch(entry="combine")]}),
    tasks=PAIR.tasks,
)
RESULTS = Results(1, facts.run(placed(TWO)), [check(TWO, TWO.tasks[0]), timing(TWO, TWO.tasks[0])])


def test_a_bundle_comes_back_as_it_was(tmp_path: Path) -> None:
    first, second = tmp_path / "new/folder/job.faperf", tmp_path / "again.faperf"
    write_bundle(FULL, first)
    assert read_bundle(first) == FULL
    write_bundle(read_bundle(first), second)
    assert first.read_bytes() == second.read_bytes()


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    first, second = tmp_path / "results", tmp_path / "again"
    write_results(RESULTS, first)
    assert read_results(first) == RESULTS
    write_results(read_results(first), second)
    assert first.read_bytes() == second.read_bytes()
    assert [type(found) for found in read_results(first).records] == [Check, Timing]


@pytest.mark.parametrize("shape", ["as now", "another"])
def test_a_bundle_of_a_newer_faperf(tmp_path: Path, shape: str) -> None:
    content = msgspec.to_builtins(FULL) | {"schema": record.SCHEMA + 1}
    if shape == "another":
        content = {"schema": record.SCHEMA + 1, "faperf": "9.0", "units": []}
    path = tmp_path / "job"
    path.write_bytes(msgspec.msgpack.encode(content))
    with pytest.raises(HistoryError) as caught:
        read_bundle(path)
    assert caught.value.what == f"schema {record.SCHEMA + 1}; this faperf reads up to {record.SCHEMA}"
    assert (caught.value.where, caught.value.remedy) == (str(path), "upgrade faperf")


PACKED = msgspec.msgpack.encode(FULL)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        PACKED[:1],
        PACKED[:200],
        PACKED[:-1],
        PACKED + b"\x00",
        b"\x7fELF\x02\x01\x01" + bytes(100),
        b'{"schema": 1}',
        msgspec.msgpack.encode({"schema": 1}),
        msgspec.msgpack.encode({"schema": "1"}),
        msgspec.msgpack.encode([1, 2]),
        b"\x81\xa1x" + b"\x91" * 100_000,
        msgspec.msgpack.encode(RESULTS),
    ],
    ids=["empty", "1", "200", "all but one", "one more", "elf", "json", "no fields", "text", "list", "deep", "results"],
)
def test_a_truncated_or_foreign_bundle(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "job"
    path.write_bytes(content)
    with pytest.raises(HistoryError, match="not a bundle") as caught:
        read_bundle(path)
    assert caught.value.where == str(path)


def test_a_bundle_is_no_results_file(tmp_path: Path) -> None:
    write_bundle(FULL, tmp_path / "job")
    with pytest.raises(HistoryError, match="not a results file"):
        read_results(tmp_path / "job")


@pytest.mark.parametrize("changes", [{"operation": "my_own"}, {"operation_version": 2}])
def test_a_bundle_of_an_operation_that_is_not_here_is_refused(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verified by other inputs or another reference, its figures would mean something else."""
    import faperf.harness as harness
    from faperf.device import Gpu

    monkeypatch.setattr(harness, "required_gpu", lambda why: Gpu("a GPU", "9.0", 700.0, 1024, CARD))
    sides = [record.replace(side, **changes) for side in FULL.sides]
    with pytest.raises(MeasuringError, match="there is no operation") as caught:
        run_bundle(record.replace(FULL, sides=sides), OPERATIONS, Progress())
    assert "0.1.0" in str(caught.value.remedy)


@pytest.mark.parametrize("rerun", [False, True], ids=["newest", "run again meanwhile"])
def test_imported_figures_are_what_the_newest_run_shows(history: History, rerun: bool) -> None:
    entry = placed(TWO, measured={"tiny": "20261130T010000Z000001"})
    run = facts.run(entry, id="20261130T010000Z000001", machine="b-class")
    if rerun:
        history.publish(facts.run(placed(TWO), id="20261130T020000Z000002"), [])
    path = import_results(history, Results(1, run, RESULTS.records))
    assert path.parent.name == "b-class"
    newest = history.newest_run(run.commit)
    assert newest is not None
    shown = silicon_of(history, newest)["t1", "sm_90a"]
    assert shown.timing == RESULTS.records[1]
    assert shown.carried is False


def test_imported_twice_is_there_once(history: History) -> None:
    for _ in range(2):
        import_results(history, RESULTS)
    assert len(history.run_files()) == 1


def test_a_partial_bundle_is_completed_from_the_commits_record(history: History) -> None:
    others = [placed(TWO), facts.entry("t2", "build-t2", target="sm_90a", measured={"tiny": "20261130T010000Z000001"})]
    history.publish(facts.run(*others, id="20261130T010000Z000001"), [])
    import_results(history, Results(1, facts.run(placed(TWO), id="20261130T020000Z000002", partial=True), []))
    newest = history.newest_run(RESULTS.run.commit)
    assert newest is not None
    assert [entry.version for entry in newest.entries] == ["t1", "t2"]
    assert newest.entries[1].measured == {"tiny": "20261130T010000Z000001"}
    assert not newest.partial


# ── working a job off ──


class FakeWorker:
    """Answers at once; `fates` maps (what, side, distribution) to a failure's words or to a fault."""

    asked: list[tuple[str, ...]]
    fates: dict[tuple[str, ...], str | BaseException]
    others: list[int]
    stopped: int
    clock_gap = 0.0

    job: Job

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Ready:
        if error := self.fates.get(("start",)):
            assert isinstance(error, BaseException)
            raise error
        return Ready("a GPU", "card", "580.0", "9.0", self.others)

    def verify(self, side: str, workload: str, distribution: str, seed: int) -> Check:
        failure = self._ask("verify", side, distribution)
        found = blank_check(self.job, self.job.side(side), self.job.workload(workload), distribution, seed)
        return record.replace(found, failure=failure)

    def time(self, task: Task) -> Timing:
        self._ask("time", task.side, *(f"{role}={name}" for role, name in task.partners.items()))
        found = timing(self.job, task)
        return record.replace(found, pairs=[record.replace(pair, clock_gap=self.clock_gap) for pair in found.pairs])

    def stop(self) -> None:
        type(self).stopped += 1

    def _ask(self, *what: str) -> str | None:
        self.asked.append(what)
        fate = self.fates.get(what)
        if isinstance(fate, BaseException):
            raise fate
        return fate


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeWorker]:
    fresh = type("Fresh", (FakeWorker,), {"asked": [], "fates": {}, "others": [], "stopped": 0})
    monkeypatch.setattr(measuring, "Worker", fresh)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a card of its own
    return fresh


THREE = facts.job(
    facts.side("t1"),
    facts.side("t2"),
    facts.side("t3"),
    tasks=[
        Task("t1@sm_90a", "tiny", {}),
        Task("t2@sm_90a", "tiny", {"parent": "t1@sm_90a"}),
        Task("t3@sm_90a", "tiny", {"parent": "t1@sm_90a"}),
    ],
)
CARD = "0123456789ab"
T1, T2, T3 = (side.name for side in THREE.sides)


def work(job: Job = THREE) -> tuple[list[Check | Timing], list[str]]:
    found: list[Check | Timing] = []
    said: list[str] = []
    perform(job, CARD, OPERATIONS, lambda _, measured: found.append(measured), said.append)
    return found, said


def test_each_side_is_verified_once_and_before_it_is_timed(fake: type[FakeWorker]) -> None:
    found, said = work()
    verified = [(side, distribution) for what, side, distribution in [a[:3] for a in fake.asked if a[0] == "verify"]]
    assert verified == [(side, distribution) for side in (T1, T2, T3) for distribution in DISTRIBUTIONS]
    assert [a for a in fake.asked if a[0] == "time"] == [
        ("time", T1),
        ("time", T2, f"parent={T1}"),
        ("time", T3, f"parent={T1}"),
    ]
    assert fake.asked.index(("verify", T2, "ones")) < fake.asked.index(("time", T2, f"parent={T1}"))
    assert [type(f) for f in found] == [Check, Check, Check, Timing] * 3
    assert sum(" TFLOPS" in line for line in said) == 3
    assert fake.stopped == 1


def test_a_partner_without_a_task_of_its_own_is_verified_and_not_timed(fake: type[FakeWorker]) -> None:
    work(record.replace(THREE, tasks=[THREE.tasks[1]]))
    assert [a[:2] for a in fake.asked] == [("verify", T2)] * 3 + [("verify", T1)] * 3 + [("time", T2)]


def test_a_side_is_verified_on_each_workload(fake: type[FakeWorker]) -> None:
    work(SAME_LAUNCH)
    assert [a[0] for a in fake.asked] == (["verify"] * 3 + ["time"]) * 2


def test_what_is_wrong_is_not_timed(fake: type[FakeWorker]) -> None:
    fake.fates["verify", T2, "growing"] = "relative L2 error 1"
    found, said = work()
    assert ("time", T2, f"parent={T1}") not in fake.asked
    assert ("verify", T2, "ones") in fake.asked  # a wrong result stops no other distribution
    assert ("time", T3, f"parent={T1}") in fake.asked
    assert [f.failure for f in found if isinstance(f, Check) and not f.ok] == ["relative L2 error 1"]
    assert f"{T2} on tiny: WRONG on growing: relative L2 error 1" in said


def test_a_timing_at_two_clocks_is_void(fake: type[FakeWorker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "clock_gap", 0.03)
    timings = [found for found in work()[0] if isinstance(found, Timing)]
    assert [found.void for found in timings] == [[], *[["the SM clock differs by 3.0% from the parent's (t1)"]] * 2]


def test_a_wrong_partner_is_left_out_of_the_timing(fake: type[FakeWorker]) -> None:
    fake.fates["verify", T1, "normal"] = "wrong"
    found, _ = work()
    assert [a for a in fake.asked if a[0] == "time"] == [("time", T2), ("time", T3)]
    assert [[pair.role for pair in f.pairs] for f in found if isinstance(f, Timing)] == [["control"]] * 2


@pytest.mark.parametrize("kind", ["hang", "illegal address", "worker died"])
def test_a_fault_in_verification_stops_that_sides_other_distributions(fake: type[FakeWorker], kind: str) -> None:
    fake.fates["verify", T2, "growing"] = FaultError(kind, "in detail")
    found, said = work()
    assert [a for a in fake.asked if a[1] == T2] == [("verify", T2, "normal"), ("verify", T2, "growing")]
    (failed,) = [f for f in found if isinstance(f, Check) and not f.ok]
    assert (failed.build, failed.distribution, failed.fault) == ("build-t2", "growing", kind)
    assert failed.failure == f"{kind}: in detail"
    assert ("time", T3, f"parent={T1}") in fake.asked
    assert any(f"WRONG on growing: {kind}: in detail" in line for line in said)


def test_a_fault_while_timing_is_a_failed_check_and_the_next_task_goes_on(fake: type[FakeWorker]) -> None:
    fake.fates["time", T1] = FaultError("trap", "in detail")
    found, said = work()
    (failed,) = [f for f in found if isinstance(f, Check) and not f.ok]
    assert (failed.build, failed.distribution, failed.fault) == ("build-t1", "timing", "trap")
    assert failed.failure == "while timing: trap: in detail"
    assert [f.build for f in found if isinstance(f, Timing)] == ["build-t2", "build-t3"]
    assert f"{T1} on tiny: while timing: trap: in detail" in said
    assert tasks_left(THREE, list(found), {}) == []


def test_others_on_the_card_are_told(fake: type[FakeWorker]) -> None:
    fake.others = [1, 2]
    assert "2 other process(es) compute on this card" in work()[1][0]


@pytest.mark.parametrize(
    ("what", "error"),
    [
        (("start",), MeasuringError("the worker does not start")),
        (("start",), KeyboardInterrupt()),
        (("verify", T2, "normal"), KeyboardInterrupt()),
        (("verify", T2, "normal"), MeasuringError("the worker does not start")),
        (("time", T1), KeyboardInterrupt()),
    ],
    ids=str,
)
def test_whatever_happens_the_worker_is_stopped_and_the_card_free(
    fake: type[FakeWorker], what: tuple[str, ...], error: BaseException
) -> None:
    fake.fates[what] = error
    with pytest.raises(type(error)):
        work()
    assert fake.stopped == 1
    fake.fates.clear()
    work()  # would wait for ever


def test_a_disk_that_is_full_ends_the_run_and_not_the_version(fake: type[FakeWorker]) -> None:
    def full(name: str, found: Check | Timing) -> None:
        raise HistoryError("no space")

    with pytest.raises(FaperfError):
        perform(THREE, CARD, OPERATIONS, full, print)
    assert fake.stopped == 1


# ── the card's lock ──

HOLDER = """\
import sys, time
from pathlib import Path
from faperf.measuring import the_card

name, until = sys.argv[1], Path(sys.argv[2])
with the_card("0123456789ab", lambda line: print(name, "is told:", line, flush=True)):
    print(name, "in", flush=True)
    while not until.exists():
        time.sleep(0.02)
    print(name, "out", flush=True)
"""


def hold(folder: Path, name: str, until: str, out: Any) -> subprocess.Popen[bytes]:
    """A process that has the card until that file is in `folder`."""
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen([sys.executable, "-c", HOLDER, name, str(folder / until)], env=environment, stdout=out)


def wait_for_line(path: Path, line: str) -> None:
    end = time.monotonic() + 20
    while line not in path.read_text().splitlines():
        assert time.monotonic() < end, path.read_text()
        time.sleep(0.02)


def test_two_processes_take_turns_on_the_card(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("ab") as out:
        first = hold(tmp_path, "first", "go", out)
        wait_for_line(path, "first in")
        second = hold(tmp_path, "second", "go", out)
        wait_for_line(path, "second is told: waiting: another faperf is measuring on this card")
        (tmp_path / "go").touch()
        assert (first.wait(20), second.wait(20)) == (0, 0)
    assert path.read_text().splitlines() == [
        "first in",
        "second is told: waiting: another faperf is measuring on this card",
        "first out",
        "second in",
        "second out",
    ]


def test_a_killed_process_leaves_the_card_free(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("ab") as out:
        first = hold(tmp_path, "first", "never", out)
        wait_for_line(path, "first in")
        first.kill()
        first.wait()
        assert hold(tmp_path, "second", "log", out).wait(20) == 0


def test_the_lock_of_another_user_is_respected_too(tmp_path: Path) -> None:
    """A file that we may only read."""
    (tmp_path / f"faperf-{CARD}.lock").touch(mode=0o444)
    reading = "import os, faperf.measuring\nreal = os.open\n" + (
        "def only_reading(path, flags, *rest):\n"
        "    if str(path).endswith('.lock') and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT): raise PermissionError\n"
        "    return real(path, flags, *rest)\n"
        "os.open = only_reading\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    answer = subprocess.run(
        [sys.executable, "-c", reading + HOLDER, "we", "."], env=environment, capture_output=True, text=True
    )
    assert answer.stdout.split("\n")[:2] == ["we in", "we out"], answer.stderr
