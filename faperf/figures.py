"""What history tells of a project's versions: the latest run, its builds, and the measured figures, wherever they lie.

Reads records alone, so that a ladder need not load what compiles and measures.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from faperf import record
from faperf.chips import chip_of
from faperf.comparison import Elsewhere, Figure, Measured, Silicon
from faperf.history import NO_GIT, NO_GPU_CLASS, History
from faperf.index import RunFile
from faperf.manifest import Manifests, family_of
from faperf.metrics import Metrics, Worth, metrics_of
from faperf.operations import Operation
from faperf.project import Project
from faperf.record import Build, Check, Counters, Entry, Run, Timing

if TYPE_CHECKING:
    from faperf.gitinfo import Repository

EARLIER_RUNS = 100
"""How many run files are looked through for figures to carry forward."""


def open_repository(project: Project) -> Repository | None:
    """The project's repository, or None where there is no git at all."""
    from faperf.gitinfo import Repository

    return Repository.find(project.root)


def latest_run(history: History, repository: Repository | None) -> Run | None:
    """The newest run of HEAD, clean or dirty; of the nearest first-parent ancestor that has one where HEAD has none; of a merged
    branch where none of them has.
    """
    if repository is None or repository.head() is None:
        return history.newest_run(None)
    for walk in (repository.first_parents, repository.ancestors):
        for commit in _perhaps_recorded(history, walk()):
            if (run := history.newest_run(commit)) is not None:
                return run
    return None


def _perhaps_recorded(history: History, commits: Iterable[str]) -> Iterator[str]:
    """The first of `commits`, which often is enough, and those of the others that have a run."""
    recorded = None
    for commit in commits:
        if recorded is None or commit[:12] in recorded:
            yield commit
        if recorded is None:
            recorded = history.index.commits()


def recorded(history: History, commit: str) -> tuple[Run, dict[str, Build]] | None:
    """A clean commit's complete run with its builds; None where history has not all of it."""
    run = history.newest_run(commit, dirty=False)
    if run is None or run.partial:
        return None
    builds = builds_of(history, run)
    return (run, builds) if all(entry.build in builds for entry in run.entries if entry.build) else None


def builds_of(history: History, run: Run) -> dict[str, Build]:
    """The build records that a run stands on; those that history lost are left out."""
    keys = {entry.build for entry in run.entries if entry.build}
    return {key: build for key in keys if (build := history.build(key)) is not None}


def silicon_of(history: History, run: Run, workload: str | None = None) -> dict[tuple[str, str], Measured]:
    """The measured figures of a run's versions on a workload (by default each version's first), wherever they lie.

    A family's name stands for the first of its points that was measured.
    """
    records: dict[str, list[record.Record]] = {}
    silicon = {}
    for entry in run.entries:
        points = [name for name in entry.launches if workload in (None, name, family_of(name))]
        name = next((name for name in points if name in entry.measured or workload is None), "")
        run_id = entry.measured.get(name)
        if run_id is None:
            continue
        if run_id not in records:
            records[run_id] = history.records_of(run_id)
        key = (entry.launches.get(name), name)
        here = [f for f in records[run_id] if isinstance(f, Check | Timing) and (f.launch, f.workload) == key]
        measured = _measured_build(history, entry, records[run_id], {f.build for f in here})
        own = [f for f in here if f.build == measured]
        silicon[entry.version, entry.target] = Measured(
            workload=name,
            checks=[f for f in own if isinstance(f, Check)],
            timing=next((f for f in reversed(own) if isinstance(f, Timing)), None),
            carried=run_id != run.id,
        )
    return silicon


def timings_of(history: History, run: Run, version: str, target: str) -> list[Timing]:
    """What a run knows of a version's time, one a workload."""
    entry = run.entry(version, target)
    found = [silicon_of(history, run, name).get((version, target)) for name in (entry.measured if entry else ())]
    return [measured.timing for measured in found if measured and measured.timing]


def metrics_by_version(
    manifests: Manifests, operations: Mapping[str, Operation], builds: Mapping[str, Build], silicon: Silicon
) -> dict[tuple[str, str], Metrics]:
    """What each timing of `silicon` is worth, for versions whose manifest and build are known."""
    found = {}
    for (name, target), measured in silicon.items():
        version, chip, timing = manifests.versions.get(name), chip_of(target), measured.timing
        build = builds.get(timing.build) if timing else None
        if timing and version and chip and build and version.operation.name in operations:
            tile = (version.tile.m, version.tile.n)
            path = path_of(build)
            found[name, target] = metrics_of(timing, operations[version.operation.name], tile, path, chip)
    return found


def worth_of(
    history: History,
    manifests: Manifests,
    operations: Mapping[str, Operation],
    run: Run,
    builds: Mapping[str, Build],
    silicon: Silicon,
    version: str,
) -> dict[str, Worth]:
    """What the timings and counters of a version say, by target."""
    builds = dict(builds)
    for measured in silicon.values():  # one of equal code may have been measured for another
        if measured.timing and measured.timing.build not in builds and (build := history.build(measured.timing.build)):
            builds[build.key] = build
    metrics = metrics_by_version(manifests, operations, builds, silicon)
    return {
        entry.target: Worth(
            metrics=metrics.get((version, entry.target)),
            timings=timings_of(history, run, version, entry.target),
            counters=counters_of(history, entry),
        )
        for entry in run.entries
        if entry.version == version
    }


def counters_of(history: History, entry: Entry, workload: str | None = None) -> Counters | None:
    """The newest counters of an entry's code and launch, on a workload (None: on any)."""
    wanted = [(launch, name) for name, launch in entry.launches.items() if workload in (None, name)]
    found = [
        counted
        for counted in history.counters()
        if (counted.launch, counted.workload) in wanted and history.same_code(counted.build, entry.build)
    ]
    return found[-1] if found else None


def path_of(build: Build) -> str:
    """The tensor paths of all of a build's kernels, joined by `+`."""
    return "+".join(dict.fromkeys(name for kernel in build.kernels for name in kernel.path.split("+") if name))


def figures_of(history: History, run: Run) -> list[Figure]:
    """All that a run knows, one figure a version × target × measured workload; one for a version that was not measured."""
    builds = builds_of(history, run)
    names = dict.fromkeys(name for entry in run.entries for name in entry.measured)
    silicon = {name: silicon_of(history, run, name) for name in names}
    found = []
    for entry in run.entries:
        place = entry.place
        own: list[Measured | None] = [silicon[name][place] for name in entry.measured if place in silicon[name]]
        for measured in own or [None]:
            found.append(
                Figure(
                    version=entry.version,
                    target=entry.target,
                    workload=measured.workload if measured else next(iter(entry.launches), None),
                    run=run,
                    entry=entry,
                    build=builds.get(entry.build or ""),
                    timing=measured.timing if measured else None,
                    carried=bool(measured and measured.carried),
                )
            )
    return found


def _measured_build(history: History, entry: Entry, found: list[record.Record], builds: set[str]) -> str | None:
    """Which of the builds that a run measured stands for `entry`: its own, or the one that its version had in that run, or
    another of the same code (versions with equal code keep their figures apart).
    """
    then = [e.build for run in found if isinstance(run, Run) if (e := run.entry(*entry.place))]
    candidates = [entry.build, *then, *sorted(builds)]
    return next((b for b in candidates if b in builds and history.same_code(b, entry.build)), None)


def informed(history: History, repository: Repository | None, run: Run) -> Run:
    """`run`, whose entries name the figures that earlier runs have of the same code and launch: those of its commit and its
    ancestors, newest first. Records that were pulled or imported later are found as well.
    """
    for number, earlier in enumerate(_earlier_runs(history, repository, run.commit)):
        if number >= EARLIER_RUNS or all(entry.measured for entry in run.entries if entry.build):
            break
        run = carry_figures(run, earlier, history.same_code)
    return run


def completed(history: History, repository: Repository | None, run: Run) -> tuple[Run, Elsewhere]:
    """A partial run with the entries that it lacks, each from the newest clean run of an ancestor that has it: who builds here
    and measures there has half of the versions in each run. What is theirs is said, as their sources may be older.
    """
    have = {entry.place for entry in run.entries}
    entries, elsewhere = list(run.entries), {}
    files = _files_of(history, repository, run.commit) if run.partial and run.commit else iter(())
    for run_file in islice((file for file in files if not file.dirty and file.run_id != run.id), EARLIER_RUNS):
        earlier = history.load_run(run_file, glance=True)
        for entry in earlier.entries if earlier else ():
            if earlier and earlier.commit and entry.place not in have:
                have.add(entry.place)
                entries.append(entry)
                elsewhere[entry.place] = earlier.commit
    return record.replace(run, entries=entries), elsewhere


def carry_figures(
    run: Run, before: Run | None, same_code: Callable[[str | None, str | None], bool] = operator.eq
) -> Run:
    """`run`, whose entries keep naming the figures that `before` has of the same code and launch."""
    entries = []
    for entry in run.entries:
        old = before.entry(*entry.place) if before else None
        if old is not None and old.measured and same_code(old.build, entry.build):
            same = {w: run_id for w, run_id in old.measured.items() if old.launches.get(w) == entry.launches.get(w)}
            entry = record.replace(entry, measured=same | entry.measured)
        entries.append(entry)
    return record.replace(run, entries=entries)


def _earlier_runs(history: History, repository: Repository | None, commit: str | None) -> Iterator[Run]:
    for run_file in _files_of(history, repository, commit):
        if run_file.path.parent.name == NO_GPU_CLASS:
            continue  # measured nothing itself, so all that it names is found where it was measured
        if (run := history.load_run(run_file, glance=True)) is not None:
            yield run


def _files_of(history: History, repository: Repository | None, commit: str | None) -> Iterator[RunFile]:
    """The run files of a commit and its ancestors, newest first."""
    ancestors = repository.ancestors(commit) if repository and commit else [NO_GIT]
    for ancestor in _perhaps_recorded(history, ancestors):
        yield from reversed(history.run_files(ancestor))
