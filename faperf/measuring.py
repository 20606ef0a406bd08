"""A job and its outcome: what to verify and time, made of builds, and worked off by a worker on the card that is here."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from faperf import __version__, record
from faperf.bench import Bench
from faperf.build import Artifact
from faperf.building import Outcome, Progress, Step
from faperf.device import CANNOT, LaunchError
from faperf.errors import HistoryError, MeasuringError
from faperf.history import History, write_atomically
from faperf.job import Job, JobWorkload, Side, Task, blank_check, launch_of
from faperf.judge import voided
from faperf.manifest import Manifests, Version, Workload
from faperf.operations import Operation, Operations
from faperf.peers import CHILD
from faperf.record import PROTOCOL_VERSION, Build, Check, Protocol, Run, Timing
from faperf.resolve import resolve
from faperf.worker import FaultError, Worker

SEED = 20_261_130

Found = Check | Timing


def side_name(version: str, target: str) -> str:
    return f"{version}@{target}"


def make_side(
    name: str,
    version: Version,
    operation: Operation,
    build: Build,
    artifact: Artifact,
    workloads: Sequence[Workload],
) -> Side:
    return Side(
        name=name,
        version=version.id,
        target=build.target,
        build=build.key,
        code=build.code,
        cubin=artifact.cubin.read_bytes(),
        operation=operation.name,
        operation_version=operation.version,
        launches={workload.name: resolve(version, workload) for workload in workloads},
        layout=version.operation.layout,
        ratio_to_fp16=version.tolerance.ratio_to_fp16,
        bound=version.tolerance.bound,
        timeout_s=version.timeout_s,
    )


def make_job(run: Run, sides: Sequence[Side], workloads: Sequence[Workload], tasks: Sequence[Task]) -> Job:
    return Job(
        schema=record.SCHEMA,
        faperf=__version__,
        commit=run.commit,
        dirty=run.dirty,
        seeds=[SEED],
        protocol=Protocol(),
        sides=list(sides),
        workloads=[JobWorkload(w.name, w.digest, w.shape) for w in workloads],
        tasks=list(tasks),
        run=run,
    )


def workloads_to_measure(version: Version, manifests: Manifests, wanted: Sequence[str]) -> list[Workload]:
    """Those of `wanted` that the version has (a family's name stands for all its points); its first one by default."""
    own = manifests.workloads_of(version)
    if not wanted:
        return own[:1]
    return [workload for workload in own if workload.name in wanted or workload.family in wanted]


Key = tuple[str, str, str]
"""(version, target, workload)."""


def job_of(
    operations: Mapping[str, Operation],
    manifests: Manifests,
    outcome: Outcome,
    steps: Sequence[Step],
    wanted: Sequence[str],
) -> Job:
    """All that `steps` have to be measured for: each version against its parent, on the workloads that are wanted."""
    sides: dict[str, Side] = {}
    tasks: list[Task] = []
    workloads: dict[str, Workload] = {}

    def side(version: Version, target: str) -> str | None:
        entry = outcome.run.entry(version.id, target)
        if entry is None or entry.build is None or entry.build not in outcome.artifacts:
            return None  # a record may name more than was built here
        name = side_name(version.id, target)
        if name not in sides:
            build, artifact = outcome.builds[entry.build], outcome.artifacts[entry.build]
            operation = operations[version.operation.name]
            sides[name] = make_side(name, version, operation, build, artifact, manifests.workloads_of(version))
        return name

    for version, target in steps:
        name = side(version, target)
        parent = manifests.versions.get(version.parent or "")
        partner = side(parent, target) if parent and target in parent.targets else None
        for workload in workloads_to_measure(version, manifests, wanted) if name else []:
            workloads[workload.name] = workload
            comparable = partner and parent and workload in manifests.workloads_of(parent)
            tasks.append(Task(str(name), workload.name, {"parent": str(partner)} if comparable else {}))
    return make_job(outcome.run, list(sides.values()), list(workloads.values()), tasks)


def against(new: Job, others: Mapping[str, Job], machine_class: str) -> Job:
    """The tasks of `new`, each against the same version of other jobs instead of its parent; `others` maps roles to them.

    A partner that runs the code and the launch of an earlier role's is left out, and a task without any partner as well.
    """
    sides = {side.name: side for side in new.sides}
    tasks = []
    for task in new.tasks:
        side, workload = new.side(task.side), new.workload(task.workload)
        partners: dict[str, Side] = {}
        for role, job in others.items():
            at = side.place
            other = next((s for s in job.sides if s.place == at and task.workload in s.launches), None)
            if other is None or workload not in job.workloads:  # not one that changed its shape
                continue
            here = (other.code, launch_of(other, workload))
            if here not in [(known.code, launch_of(known, workload)) for known in partners.values()]:
                partners[role] = record.replace(other, name=f"{side.name} {role}")
        if partners:
            sides |= {partner.name: partner for partner in partners.values()}
            tasks.append(Task(task.side, task.workload, {role: partner.name for role, partner in partners.items()}))
    return record.replace(
        new, sides=list(sides.values()), tasks=tasks, run=record.replace(new.run, machine=machine_class)
    )


def carried_forward(history: History, before: Run, job: Job) -> dict[Key, str]:
    """Tasks whose figures an earlier run has: same code, launch, partner, machine class, protocol → that run's id."""
    run_ids = {run_id for entry in before.entries for run_id in entry.measured.values()}
    timings = [(run_id, f) for run_id in sorted(run_ids) for f in history.records_of(run_id) if isinstance(f, Timing)]
    known: dict[Key, str] = {}
    for task in job.tasks:
        side, workload, parent = job.side(task.side), job.workload(task.workload), task.partners.get("parent")
        partner = job.side(parent).build if parent else None
        _, launch, name = _place(job, task)
        wanted = (launch, name, workload.shape, job.run.machine, PROTOCOL_VERSION)
        for run_id, timing in timings:
            pair = timing.pair("parent")
            has = (timing.launch, timing.workload, timing.shape, timing.machine, timing.protocol)
            same = history.same_code(timing.build, side.build) and history.same_code(
                pair.build if pair else None, partner
            )
            if same and has == wanted and not timing.void:
                known[side.version, side.target, task.workload] = run_id
    return known


def tasks_left(job: Job, kept: Sequence[record.Record], known: Mapping[Key, str]) -> list[Task]:
    """The tasks of `job` that no earlier run has, and that were not finished before this one was cut off."""
    finished = {_where(f) for f in kept if isinstance(f, Timing) or (isinstance(f, Check) and not f.ok)}
    left = []
    for task in job.tasks:
        side = job.side(task.side)
        if (side.version, side.target, task.workload) in known:
            continue
        if _place(job, task) not in finished:
            left.append(task)
    return left


def _place(job: Job, task: Task) -> tuple[str, str, str]:
    """What a task measures: build, launch, workload. (A launch alone may stand for several: B and H enter as B · H.)"""
    side = job.side(task.side)
    return side.build, launch_of(side, job.workload(task.workload)), task.workload


def _where(found: Found) -> tuple[str, str, str]:
    return found.build, found.launch, found.workload


def with_measured(run: Run, found: Sequence[record.Record], known: Mapping[Key, str]) -> Run:
    """`run` with each entry's `measured` naming the run that has its figures: this one where it timed the version or found it
    wrong, else an earlier one. (A version that was only verified as somebody's partner keeps its earlier figures.)
    """
    timed = {_where(f) for f in found if isinstance(f, Timing)}
    wrong = {_where(f) for f in found if isinstance(f, Check) and not f.ok}
    entries = []
    for entry in run.entries:
        place = entry.place
        measured = {workload: run_id for (*where, workload), run_id in known.items() if tuple(where) == place}
        here = [name for name, launch in entry.launches.items() if (entry.build, launch, name) in timed | wrong]
        entries.append(record.replace(entry, measured=measured | dict.fromkeys(here, run.id)))
    return record.replace(run, entries=entries)


def perform(
    job: Job,
    card: str,
    operations: Operations,
    found: Callable[[str, Found], None],
    say: Callable[[str], None],
    spawned: Worker | None = None,
    *,
    timed: bool = True,
    progress: Progress | None = None,
) -> None:
    """Every task of a job, one after another: verify on each distribution, then time what is right (unless not `timed`).

    Faults and hangs become failed checks; the next task goes on in a new worker. `found` gets each record as it comes,
    with its side's name: two sides may be one build. `spawned` is a worker whose child may be up already. `progress` counts the
    tasks; without it `say` tells what came of each.
    """
    progress = progress or Progress(step=lambda label, cached: say(label))
    progress.begin("measuring", len(job.tasks))
    right: dict[tuple[str, str], bool] = {}
    with the_card(card, say), spawned or Worker() as worker:
        worker.job, worker.places = job, operations.places_of(side.operation for side in job.sides)
        if job.control:
            worker.use((*CHILD, job.control.modules))
        ready = worker.start()
        if ready.others:
            say(f"warning: {len(ready.others)} other process(es) compute on this card; timings will be void")
        if job.control and timed:
            _verify_control(job, job.control.side, worker, operations)
        for task in job.tasks:
            for name in [task.side, *task.partners.values()]:
                if (name, task.workload) not in right:
                    distributions = operations[job.side(name).operation].distributions
                    checks = list(_verify(job, name, task.workload, worker, distributions, say))
                    right[name, task.workload] = all(check.ok for check in checks)
                    for check in checks:
                        found(name, check)
            came = "right" if right[task.side, task.workload] else "WRONG"
            if timed and right[task.side, task.workload]:
                partners = {role: name for role, name in task.partners.items() if right[name, task.workload]}
                last = _time(job, record.replace(task, partners=partners), worker)
                found(task.side, last)
                came = last.failure or "" if isinstance(last, Check) else _figures(last)
            progress.step(f"{task.side} on {task.workload}: {came}", False)


def _verify_control(job: Job, control: Side, worker: Worker, operations: Operations) -> None:
    """Raises MeasuringError where the peer that stands for the control does not run, or is wrong, on what is to be timed."""
    distribution = operations[control.operation].distributions[0]
    timed = [task.workload for task in job.tasks if job.side(task.side).operation == control.operation]
    for workload in dict.fromkeys(timed):
        try:
            why = worker.verify(control.name, workload, distribution, job.seeds[0]).failure
        except FaultError as fault:
            why = fault.detail if fault.kind == CANNOT else f"{fault.kind}: {fault.detail}"
        if why:
            raise MeasuringError(
                f"{control.name} cannot be the control on {workload}: {why}",
                where="pyproject.toml, [tool.faperf] control",
                remedy="pip install 'faperf[peers]', or name another peer, or leave `control` out",
            )


def _verify(
    job: Job, name: str, workload: str, worker: Worker, distributions: Sequence[str], say: Callable[[str], None]
) -> Iterator[Check]:
    """A side's checks, one a distribution and seed; after a fault the kernel is not asked again."""
    for distribution, seed in itertools.product(distributions, job.seeds):
        try:
            check = worker.verify(name, workload, distribution, seed)
        except FaultError as fault:
            blank = blank_check(job, job.side(name), job.workload(workload), distribution, seed)
            check = record.replace(blank, fault=fault.kind, failure=f"{fault.kind}: {fault.detail}")
        if not check.ok:
            say(f"{name} on {workload}: WRONG on {distribution}: {check.failure}")
        yield check
        if check.fault:
            return


def _time(job: Job, task: Task, worker: Worker) -> Found:
    """The timing; a failed check where the kernel did not live through it."""
    try:
        return voided(worker.time(task))
    except FaultError as fault:
        blank = blank_check(job, job.side(task.side), job.workload(task.workload), "timing", job.seeds[0])
        return record.replace(blank, fault=fault.kind, failure=f"while timing: {fault.kind}: {fault.detail}")


def _figures(timing: Timing) -> str:
    return f"{timing.ms.value:.4f} ms, {timing.tflops:.1f} TFLOPS"


def launch_once(job: Job, operations: Operations) -> None:
    """Each task's kernel once, on the inputs that are timed, in this process; a marker for profilers behind each of several.

    Raises MeasuringError.
    """
    bench = Bench(job, operations, lambda answer: None)
    for task in job.tasks:
        side, workload = job.side(task.side), job.workload(task.workload)
        try:
            distribution = operations[side.operation].distributions[0]
            bench.launch(side, workload, distribution, job.seeds[0], profiled=True)
        except LaunchError as fault:
            raise MeasuringError(f"{side.name} on {workload.name}: {fault.kind}: {fault.detail}") from fault
        if len(job.tasks) > 1:
            bench.card.mark()


@contextlib.contextmanager
def the_card(card: str, say: Callable[[str], None]) -> Iterator[None]:
    """One measuring job at a time on a card, among all faperfs of this machine, whoever runs them. Waits for its turn."""
    path = Path(tempfile.gettempdir()) / f"faperf-{card}.lock"
    try:
        lock = os.open(path, os.O_RDONLY)  # another user's file opens for reading only, and must not be created
    except FileNotFoundError:
        lock = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting: another faperf is measuring on this card")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


class Results(msgspec.Struct, frozen=True):
    """What a bundle's measuring gave: the run it belongs to, and its records."""

    schema: int
    run: Run
    records: list[Found]

    @property
    def wrong(self) -> bool:
        return any(isinstance(found, Check) and not found.ok for found in self.records)


def write_bundle(job: Job, path: Path) -> None:
    write_atomically(path, msgspec.msgpack.encode(job))


def write_results(results: Results, path: Path) -> None:
    write_atomically(path, msgspec.msgpack.encode(results))


def read_bundle(path: Path) -> Job:
    return _read(path, Job, "bundle")


def read_results(path: Path) -> Results:
    return _read(path, Results, "results file")


T = TypeVar("T", Job, Results)


def _read(path: Path, kind: type[T], what: str) -> T:
    try:
        packed = path.read_bytes()
        record.refuse_newer(msgspec.msgpack.decode(packed, type=record.Schema).schema, str(path))
        content: T = msgspec.msgpack.decode(packed, type=kind)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise HistoryError(f"not a {what}: {error}", where=str(path), remedy="make it again") from error
    return content
