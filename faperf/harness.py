"""The main path: build → inspect → verify → measure → record."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from faperf import __version__, record
from faperf.building import Outcome, Progress, Selection, Step, Workshop, build_steps, with_parents
from faperf.comparison import DiffRow
from faperf.device import Gpu, required_gpu
from faperf.errors import HistoryError, MeasuringError, SelectionError
from faperf.figures import builds_of, carry_figures, informed, recorded
from faperf.history import NO_GPU_CLASS, History, new_run, new_run_id
from faperf.job import Job, Task
from faperf.manifest import Manifests, Version, check_workloads, ladder_key, load_manifests
from faperf.measuring import (
    Found,
    Results,
    against,
    carried_forward,
    job_of,
    launch_once,
    perform,
    tasks_left,
    with_measured,
)
from faperf.operations import Operations, load_operations
from faperf.peers import controlled
from faperf.project import Project
from faperf.record import Build, Check, EmulatorVerdict, Entry, Run, Timing
from faperf.worker import Here, Worker

MANIFEST_FILES = "manifests/*.yaml"
NOWHERE = Here()
"""Nothing is measured."""


@dataclass(frozen=True)
class Wish:
    """What a run is asked for besides versions. `commit` labels it where there is no git; `again` measures what was measured;
    `emulate` verifies on the CPU what no GPU here runs.
    """

    resume: bool = False
    again: bool = False
    workloads: tuple[str, ...] = ()
    commit: str | None = None
    emulate: bool = False


def run_tree(workshop: Workshop, selection: Selection, wish: Wish, here: Here = NOWHERE) -> Outcome:
    """`faperf run`: the working tree, recorded for HEAD (or as dirty)."""
    outcome, manifests, steps = build_tree(workshop, selection, wish, here, parents=here.gpu is not None)
    before = informed(workshop.history, workshop.repository, outcome.run)
    if here.gpu is not None and outcome.run.unmeasured is None:
        _measure(workshop, manifests, outcome, steps, wish, here.gpu, before, here.worker)
    if wish.emulate and workshop.project.config.emulate:
        emulate(workshop, manifests, outcome, steps, here.gpu, workshop.history.append)
    outcome.run = carry_figures(outcome.run, before, workshop.history.same_code)
    _record(workshop, outcome)
    return outcome


def build_tree(
    workshop: Workshop, selection: Selection, wish: Wish, here: Here = NOWHERE, *, parents: bool = False
) -> tuple[Outcome, Manifests, list[Step]]:
    """The first half of a run: the working tree built and inspected, with its commit and what differs from it.

    With `parents`, those of the selected versions are built as well: what is timed is timed against them.
    """
    project, history = workshop.project, workshop.history
    manifests = load_manifests(project)
    steps = selection.steps(manifests)
    check_workloads(wish.workloads, [w.name for version, _ in steps for w in manifests.workloads_of(version)])
    commit = workshop.repository.head() if workshop.repository else wish.commit
    header = _unfinished(history, commit) if wish.resume else _header(workshop, commit, here)
    history.begin(header)
    wanted = with_parents(steps, manifests) if parents else steps
    outcome = build_steps(workshop, project.root, manifests, wanted, header)
    if workshop.repository:
        inputs = {name for artifact in outcome.artifacts.values() for name in artifact.inputs}
        inputs |= {version.source for version, _ in steps}
        outcome.run = record.replace(outcome.run, dirty=workshop.repository.dirty(inputs, MANIFEST_FILES))
    return outcome, manifests, steps


def run_commit(workshop: Workshop, commit: str, selection: Selection, *, recorded: bool = True) -> Outcome:
    """A commit's versions, built from its files in git, and by default recorded for it. Nothing is checked out."""
    tree = workshop.commit_tree(commit)
    header = _header(workshop, commit, NOWHERE)
    if not (tree / "manifests").is_dir():
        outcome = Outcome(header, {}, {}, [])
    else:
        manifests = load_manifests(Project(tree))
        steps = [step for step in Selection().steps(manifests) if selection.includes(step)]
        outcome = build_steps(workshop, tree, manifests, steps, header)
        outcome.run = carry_figures(
            outcome.run, workshop.history.newest_run(commit, dirty=False), workshop.history.same_code
        )
    if recorded:
        _record(workshop, outcome)
    return outcome


def bundle_tree(workshop: Workshop, selection: Selection, workloads: tuple[str, ...]) -> tuple[Outcome, Job]:
    """`faperf bundle`: the working tree built, and all that has to be measured of it as one job. Nothing is recorded yet."""
    outcome, manifests, steps = build_tree(workshop, selection, Wish(workloads=workloads), parents=True)
    workshop.history.abandon(outcome.run.id)
    operations = load_operations(workshop.project)
    return outcome, job_of(operations, manifests, outcome, steps, workloads)


def run_bundle(job: Job, operations: Operations, progress: Progress) -> Results:
    """`faperf run --bundle`: a job measured here, where neither git nor nvcc nor the sources need be.

    `operations` are this host's: a bundle brings no code.
    """
    gpu = required_gpu("a bundle is measured on a GPU")
    for name, version in sorted({(side.operation, side.operation_version) for side in job.sides}):
        if name not in operations or operations[name].version != version:
            raise MeasuringError(
                f"there is no operation {name}, version {version}, here (faperf {__version__})",
                remedy=f"install faperf {job.faperf}, as on the host that made the bundle; for a project's own operation, "
                "run the bundle in a directory of that project, whose [tool.faperf] operations names it",
            )
    run = record.replace(job.run, machine=gpu.machine_class, unmeasured=None)
    job = record.replace(job, run=run, tasks=[t for t in job.tasks if gpu.runs(job.side(t.side).target)])
    if not job.tasks:
        raise MeasuringError(f"nothing in the bundle runs on the {gpu.name} (compute capability {gpu.capability})")
    found: list[Found] = []
    perform(job, gpu.card, operations, lambda _, measured: found.append(measured), progress.say, progress=progress)
    return Results(record.SCHEMA, with_measured(run, found, {}), found)


def import_results(history: History, results: Results) -> Path:
    """`faperf import`: file what a bundle's measuring gave, under the class of the machine that measured.

    Where the commit was run again meanwhile it becomes the newest run, so that a ladder shows it.
    """
    run, newest = results.run, history.newest_run(results.run.commit, dirty=bool(results.run.dirty))
    if newest is not None and newest.id > run.id:
        run_id = new_run_id()
        entries = [record.replace(e, measured=dict.fromkeys(e.measured, run_id)) for e in run.entries]
        run = record.replace(run, id=run_id, entries=entries)
    return history.publish(_completed(carry_figures(run, newest, history.same_code), newest), results.records)


def exec_once(workshop: Workshop, versions: Sequence[Version], target: str | None, workload: str | None) -> None:
    """`faperf exec`: build versions and launch each once in this process, for ncu and compute-sanitizer."""
    gpu = required_gpu("exec needs a GPU and cupy")
    ids = tuple(version.id for version in versions)
    common = [t for t in versions[0].targets if all(t in version.targets for version in versions)]
    chosen = target or next((t for t in common if gpu.runs(t)), None)
    if chosen is None:
        raise SelectionError(f"no target of {', '.join(ids)} runs on the {gpu.name}; it has: {', '.join(common)}")
    outcome, job = bundle_tree(workshop, Selection(ids, (chosen,)), (workload,) if workload else ())
    for failure in outcome.failures:
        raise failure
    first: dict[str, Task] = {}
    for task in job.tasks:
        first.setdefault(job.side(task.side).version, task)
    for name in ids:
        if name not in first:
            raise SelectionError(f"{name} has no workload '{workload}'", remedy="faperf list")
    launch_once(record.replace(job, tasks=[first[name] for name in ids]), load_operations(workshop.project))


def rerun_commits(
    workshop: Workshop, old: str, new: str, rows: Sequence[DiffRow], workloads: tuple[str, ...]
) -> list[Timing]:
    """Build the changed versions of two commits from git and time them interleaved here. Raises MeasuringError without a GPU."""
    gpu = required_gpu("--rerun needs a GPU and cupy")
    changed = {
        row.place
        for row in rows
        if row.old_build and row.new_build and row.old_build.code != row.new_build.code and gpu.runs(row.target)
    }
    operations = load_operations(workshop.project)
    jobs = []
    for commit in (old, new):
        outcome = run_commit(workshop, commit, Selection())
        manifests = load_manifests(Project(workshop.commit_tree(commit)))
        steps = [step for step in Selection().steps(manifests) if (step[0].id, step[1]) in changed]
        jobs.append(job_of(operations, manifests, outcome, steps, workloads))
    job = controlled(against(jobs[1], {"baseline": jobs[0]}, gpu.machine_class), workshop.project)
    timings: list[Timing] = []
    if job.tasks:
        keep = lambda _, found: timings.append(found) if isinstance(found, Timing) else None  # noqa: E731
        perform(job, gpu.card, operations, keep, workshop.progress.say, progress=workshop.progress)
    return timings


def run_of(workshop: Workshop, commit: str) -> tuple[Run, dict[str, Build]]:
    """A commit's run and builds from history; built from git where history lacks it."""
    if (known := recorded(workshop.history, commit)) is not None:
        return known
    outcome = run_commit(workshop, commit, Selection())
    return outcome.run, outcome.builds


# ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _unfinished(history: History, commit: str | None) -> Run:
    """The newest unfinished run of a commit."""
    unfinished = [run for run in history.pending() if run.commit == commit]
    if not unfinished:
        raise HistoryError("no unfinished run of this commit to resume", remedy="faperf run")
    return unfinished[-1]


def _header(workshop: Workshop, commit: str | None, here: Here) -> Run:
    """A new run, on the GPU that is here or without one and the reason why."""
    machine = workshop.history.machine()
    of_gpu = here.gpu.machine_class if here.gpu else NO_GPU_CLASS
    run = new_run(commit, machine.machine_class if machine else of_gpu)
    return record.replace(run, unmeasured=here.reason)


def _measure(
    workshop: Workshop,
    manifests: Manifests,
    outcome: Outcome,
    steps: Sequence[Step],
    wish: Wish,
    gpu: Gpu,
    before: Run,
    worker: Worker | None,
) -> None:
    """Verify and time what runs on `gpu`, and enter it into the run; what is known already is carried forward."""
    operations = load_operations(workshop.project)
    job = controlled(job_of(operations, manifests, outcome, steps, wish.workloads), workshop.project)
    job = record.replace(job, tasks=[task for task in job.tasks if gpu.runs(job.side(task.side).target)])
    if not job.tasks:
        targets = ", ".join(sorted({target for _, target in steps}))
        reason = f"nothing was built for the {gpu.name} here (compute capability {gpu.capability}; targets: {targets})"
        outcome.run = record.replace(outcome.run, unmeasured=reason)
        return
    kept = workshop.history.kept(outcome.run.id)
    known = {} if wish.again else carried_forward(workshop.history, before, job)
    todo = tasks_left(job, kept, known)

    def found(_: str, measured: Found) -> None:
        workshop.history.append(measured)
        kept.append(measured)

    if todo:
        job = record.replace(job, tasks=todo)
        perform(job, gpu.card, operations, found, workshop.progress.say, worker, progress=workshop.progress)
    outcome.run = with_measured(outcome.run, kept, known)
    outcome.measured_anew = bool(todo)
    outcome.wrong = any(isinstance(f, Check) and not f.ok for f in kept)


def emulate(
    workshop: Workshop,
    manifests: Manifests,
    outcome: Outcome,
    steps: Sequence[Step],
    gpu: Gpu | None,
    found: Callable[[Check], None],
) -> None:
    """Verify on the CPU what `gpu` does not run, and enter what it comes to into the run. `found` gets each check."""
    from faperf.emulating import Ask, answers, asked, summary  # numpy is for those who emulate

    operations = load_operations(workshop.project)
    kept = workshop.project.make_state() / "emulated"

    asks: list[tuple[Entry, Ask]] = []
    for entry in outcome.run.entries:
        version = manifests.versions.get(entry.version)
        if version is None or (version, entry.target) not in steps or (gpu and gpu.runs(entry.target)):
            continue
        if entry.build and (workloads := manifests.workloads_of(version)):
            ptx = outcome.artifacts[entry.build].ptx.read_text(encoding="utf-8")
            asks.append((entry, asked(operations, version, entry.build, ptx, workloads[0], kept)))
    workshop.progress.begin("emulating", len(asks))
    emulated = {}
    for (entry, _), verdicts in zip(asks, answers([ask for _, ask in asks], workshop.jobs), strict=True):
        said, name = summary(verdicts), f"{entry.version} for {entry.target}"
        checks = [verdict.check for verdict in verdicts if verdict.check]
        for check in checks:
            found(check)
        errors = {f"{c.distribution}, {c.workload}": c.relative_l2 for c in checks}  # the same in every schedule
        errors = {place: error for place, error in errors.items() if error is not None and math.isfinite(error)}
        outcome.wrong |= said.verdict is EmulatorVerdict.WRONG
        known = all(verdict.known for verdict in verdicts) and said.verdict is EmulatorVerdict.RIGHT
        words = str(said) if said.verdict is EmulatorVerdict.REFUSED else f"{said} (emulated)"
        workshop.progress.step(f"{name}: {words}", known)
        for warning in dict.fromkeys(warning for check in checks for warning in check.warnings):
            workshop.progress.say(f"{name}: warning: {warning}")
        emulated[entry.place] = record.replace(entry, emulated_words=str(said), emulated_errors=errors)
    entries = [emulated.get(entry.place, entry) for entry in outcome.run.entries]
    outcome.run = record.replace(outcome.run, entries=entries)


def _record(workshop: Workshop, outcome: Outcome) -> None:
    """Publish the run, unless the newest one of this commit already says as much."""
    history = workshop.history
    before = history.newest_run(outcome.run.commit, dirty=bool(outcome.run.dirty))
    run = _completed(outcome.run, before)
    if run is not outcome.run and before is not None:
        outcome.builds.update(builds_of(history, before))
    outcome.run = run
    unchanged = before is not None and (before.entries, before.dirty) == (run.entries, run.dirty)
    if unchanged and not outcome.measured_anew:
        history.abandon(run.id)
        return
    outcome.recorded = history.finish(run)


def _completed(run: Run, before: Run | None) -> Run:
    """A partial run of a clean commit, with what it lacks from an earlier one: the same commit has the same versions."""
    if before is None or not run.partial or not run.commit or run.dirty:
        return run
    missing = [entry for entry in before.entries if run.entry(*entry.place) is None]
    entries = sorted([*run.entries, *missing], key=lambda entry: (ladder_key(entry.version), entry.target))
    return record.replace(run, entries=entries, partial=before.partial)
