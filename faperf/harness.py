"""The main path: build → inspect → record. (Verify, measure and gate join it with the GPU.)"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from faperf import __version__, record
from faperf.build import Artifact, Builder
from faperf.chips import chip_of, occupancy
from faperf.device import NO_GPU_CLASS, find_gpu
from faperf.errors import FaperfError, HistoryError, ManifestError, SelectionError
from faperf.history import History, new_run_id, now
from faperf.job import kernel_for, launch_digest, resolve
from faperf.manifest import Manifests, Version, ladder_key, load_manifests
from faperf.operations import Operation, load_operations
from faperf.project import Project
from faperf.record import Build, Entry, Run
from faperf.sass import inspect
from faperf.toolchain import Toolchain, find_toolchain

if TYPE_CHECKING:
    from faperf.gitinfo import Repository

MANIFEST_FILES = "manifests/*.yaml"
ERROR_LIMIT = 4_000
"""Characters of a compiler's message that a record keeps."""

Step = tuple[Version, str]
"""A version and one of its targets."""


@dataclass(frozen=True)
class Selection:
    """What to run: version ids and targets; empty means all."""

    versions: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def steps(self, manifests: Manifests) -> list[Step]:
        """Version × target, in ladder order. Raises SelectionError for a version or target that no manifest has."""
        for name in self.versions:
            if name not in manifests.versions:
                broken = any(name in str(error) for error in manifests.broken)
                raise SelectionError(
                    f"no version '{name}'" + (" that can be read" if broken else ""),
                    remedy="faperf check" if broken else f"there are: {', '.join(manifests.versions) or 'none'}",
                )
        everything = [(v, target) for v in manifests.versions.values() for target in v.targets]
        for target in self.targets:
            if all(target != t for _, t in everything):
                known = sorted({t for _, t in everything})
                raise SelectionError(f"no version is for target '{target}'", remedy=f"there are: {', '.join(known)}")
        return [step for step in everything if self.includes(step)]

    def includes(self, step: Step) -> bool:
        version, target = step
        return (not self.versions or version.id in self.versions) and (not self.targets or target in self.targets)


@dataclass(frozen=True)
class Progress:
    """Called as work goes on. `begin(total)`, then `step(label)` once for each finished step; `cached` ones cost nothing."""

    begin: Callable[[int], None] = lambda total: None
    step: Callable[[str, bool], None] = lambda label, cached: None


@dataclass
class Outcome:
    """A run and what it stands on. `failures` are the versions that did not build, with the compiler's own words."""

    run: Run
    builds: dict[str, Build]
    artifacts: dict[str, Artifact]
    failures: list[FaperfError]
    recorded: Path | None = None


@dataclass
class Workshop:
    """What a command works with, opened once: the project, its history, its repository and the tools."""

    project: Project
    history: History
    toolchain: Toolchain
    jobs: int
    repository: Repository | None = None
    progress: Progress = field(default_factory=Progress)

    @classmethod
    def open(
        cls, project: Project, *, nvcc: str | None = None, jobs: int | None = None, progress: Progress | None = None
    ) -> Workshop:
        """Find git and the tools. Raises ToolchainError where there is no compiler."""
        return cls(
            project=project,
            history=History(project),
            toolchain=find_toolchain(nvcc),
            jobs=jobs or os.cpu_count() or 1,
            repository=open_repository(project),
            progress=progress or Progress(),
        )


def open_repository(project: Project) -> Repository | None:
    """The project's repository, or None where there is no git at all."""
    if shutil.which("git") is None:
        return None
    from faperf.gitinfo import Repository

    return Repository.find(project.root)


def run_tree(workshop: Workshop, selection: Selection, *, no_gpu: bool = False, resume: bool = False) -> Outcome:
    """`faperf run`: the working tree, recorded for HEAD (or as dirty)."""
    project, history = workshop.project, workshop.history
    manifests = load_manifests(project)
    steps = selection.steps(manifests)
    commit = workshop.repository.head() if workshop.repository else None
    header = _header(workshop, commit, no_gpu=no_gpu, resume=resume)
    history.begin(header)
    outcome = _build(workshop, project.root, manifests, steps, header)
    if workshop.repository:
        inputs = {name for artifact in outcome.artifacts.values() for name in artifact.inputs}
        inputs |= {version.source for version, _ in steps}
        outcome.run = record.replace(outcome.run, dirty=workshop.repository.dirty(inputs, MANIFEST_FILES))
    _record(workshop, outcome)
    return outcome


def run_commit(workshop: Workshop, commit: str, selection: Selection) -> Outcome:
    """A commit's versions, built from its files in git and recorded for it. Nothing is checked out."""
    if workshop.repository is None:
        raise SelectionError("there is no git repository here, so there are no commits")
    tree = workshop.repository.export(commit, workshop.project.make_state() / "trees")
    header = _header(workshop, commit, no_gpu=True, resume=False)
    if not (tree / "manifests").is_dir():
        outcome = Outcome(header, {}, {}, [])
    else:
        manifests = load_manifests(Project(tree))
        steps = [step for step in Selection().steps(manifests) if selection.includes(step)]
        outcome = _build(workshop, tree, manifests, steps, header)
    _record(workshop, outcome)
    return outcome


def run_of(workshop: Workshop, commit: str) -> tuple[Run, dict[str, Build]]:
    """A commit's run and builds from history; built from git where history lacks it."""
    run = workshop.history.newest_run(commit, dirty=False)
    if run is not None and not run.partial:
        builds = builds_of(workshop.history, run)
        if all(entry.build in builds for entry in run.entries if entry.build):
            return run, builds
    outcome = run_commit(workshop, commit, Selection())
    return outcome.run, outcome.builds


def builds_of(history: History, run: Run) -> dict[str, Build]:
    """The build records that a run stands on; those that history lost are left out."""
    found = {entry.build: history.build(entry.build) for entry in run.entries if entry.build}
    return {key: build for key, build in found.items() if build is not None}


def latest_run(history: History, repository: Repository | None) -> Run | None:
    """The newest run of HEAD, clean or dirty; of the nearest first-parent ancestor that has one where HEAD has none."""
    if repository is None or repository.head() is None:
        return history.newest_run(None)
    recorded = {run_file.commit12 for run_file in history.run_files()}
    for commit in repository.first_parents():
        if commit[:12] in recorded and (run := history.newest_run(commit)) is not None:
            return run
    return None


# ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _header(workshop: Workshop, commit: str | None, *, no_gpu: bool, resume: bool) -> Run:
    """A new run, or with `resume` the newest unfinished one of the same commit."""
    if resume:
        unfinished = [run for run in workshop.history.pending() if run.commit == commit]
        if not unfinished:
            raise HistoryError("no unfinished run of this commit to resume", remedy="faperf run")
        return unfinished[-1]
    gpu, reason = (None, "--no-gpu was given") if no_gpu else find_gpu()
    if gpu is not None:
        reason = f"this release compiles and inspects; it does not time kernels yet (found {gpu.name})"
    machine = workshop.history.machine()
    return Run(
        schema=record.SCHEMA,
        id=new_run_id(),
        commit=commit,
        when=now(),
        faperf=__version__,
        machine=machine.machine_class if machine else gpu.machine_class if gpu else NO_GPU_CLASS,
        unmeasured=reason,
        entries=[],
    )


def _build(workshop: Workshop, root: Path, manifests: Manifests, steps: Sequence[Step], header: Run) -> Outcome:
    """Build and inspect `steps` in parallel; a version that fails does not stop the others.

    Versions that were not asked for are taken along where the cache has them, so that a run of one version still leaves a
    record of all.
    """
    workshop.project.make_state()
    builder = Builder(root, workshop.project.state / "cache", workshop.toolchain)
    operations = load_operations(workshop.project.config.operations)
    outcome = Outcome(header, {}, {}, [])
    entries: list[Entry] = []

    def take(step: Step, artifact: Artifact) -> None:
        build = _build_record(step, artifact, workshop.toolchain)
        outcome.builds[build.key] = build
        outcome.artifacts[build.key] = artifact
        entries.append(_entry(step, build, manifests, operations))
        workshop.history.save_build(build)

    def fail(step: Step, error: FaperfError) -> None:
        outcome.failures.append(error)
        what = error.what[:ERROR_LIMIT]
        entries.append(Entry(version=step[0].id, target=step[1], parent=step[0].parent, error=what))

    workshop.progress.begin(len(steps))
    with contextlib.closing(_build_all(workshop, builder, steps)) as results:
        for step, artifact, error in results:
            if error is not None:
                fail(step, error)
            elif artifact is not None:
                try:
                    take(step, artifact)
                except ManifestError as unresolved:
                    fail(step, unresolved)
    for step in Selection().steps(manifests):
        if step not in steps and (found := builder.find(*step)) and (found.directory / "facts.json").exists():
            take(step, found)
    everything = [(version.id, target) for version, target in Selection().steps(manifests)]
    entries.sort(key=lambda entry: (ladder_key(entry.version), entry.target))
    outcome.run = record.replace(header, entries=entries, partial=len(entries) < len(everything))
    return outcome


def _build_all(
    workshop: Workshop, builder: Builder, steps: Sequence[Step]
) -> Generator[tuple[Step, Artifact | None, FaperfError | None]]:
    """Each step with its artifact or its error, as they finish. Closed early, it ends the compilers that are running."""

    def work(step: Step) -> Artifact:
        artifact = builder.build(*step)
        inspect(artifact.directory, workshop.toolchain.nvdisasm)
        return artifact

    pool = ThreadPoolExecutor(workshop.jobs)
    try:
        waiting: dict[Future[Artifact], Step] = {pool.submit(work, step): step for step in steps}
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                version, target = step = waiting.pop(future)
                error = future.exception()
                if error is not None and not isinstance(error, FaperfError):
                    raise error
                artifact = None if error else future.result()
                outcome = "does not build" if error else "built"
                workshop.progress.step(f"{version.id} for {target}: {outcome}", bool(artifact and artifact.cached))
                yield step, artifact, error
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        builder.stop()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _build_record(step: Step, artifact: Artifact, toolchain: Toolchain) -> Build:
    version, target = step
    facts = inspect(artifact.directory, toolchain.nvdisasm)
    return Build(
        schema=record.SCHEMA,
        key=artifact.key,
        version=version.id,
        target=target,
        source=version.source,
        flags=version.flags,
        toolchain=toolchain.identity,
        kernels=facts.kernels,
        code=facts.code,
        messages=facts.messages,
    )


def _entry(step: Step, build: Build, manifests: Manifests, operations: Mapping[str, Operation]) -> Entry:
    """Where a version stands: its build, its launch for each workload, its occupancy. Raises ManifestError."""
    version, target = step
    if version.operation.name not in operations:
        raise ManifestError(
            f"unknown operation '{version.operation.name}' (known: {', '.join(operations)})",
            where=f"manifests/{version.id}.yaml, operation",
        )
    workloads = manifests.workloads_of(version)
    resolved = {workload.name: resolve(version, workload) for workload in workloads}
    entry = Entry(
        version=version.id,
        target=target,
        parent=version.parent,
        build=build.key,
        launches={name: launch_digest(launches) for name, launches in resolved.items()},
    )
    chip = chip_of(target)
    if chip is None or not workloads:
        return entry
    tightest = None
    for launch in resolved[workloads[0].name]:
        kernel = kernel_for(version, launch, build)
        smem = kernel.static_smem + launch.smem
        fits = occupancy(
            chip,
            threads=launch.threads,
            registers=kernel.registers,
            smem=smem,
            barriers=kernel.barriers,
            tmem_columns=kernel.tmem_columns or 0,
        )
        if tightest is None or fits.ctas_per_sm < tightest[0].ctas_per_sm:
            tightest = (fits, launch.threads, smem)
    assert tightest is not None  # a version has at least one launch
    fits, threads, smem = tightest
    return record.replace(entry, threads=threads, smem=smem, ctas_per_sm=fits.ctas_per_sm, limiter=fits.limiter)


def _record(workshop: Workshop, outcome: Outcome) -> None:
    """Publish the run, unless the newest one of this commit already says as much.

    A partial run of a clean commit is completed from that one: the same commit has the same versions.
    """
    history, run = workshop.history, outcome.run
    before = history.newest_run(run.commit, dirty=bool(run.dirty))
    if before is not None and run.partial and run.commit and not run.dirty:
        missing = [entry for entry in before.entries if run.entry(entry.version, entry.target) is None]
        entries = sorted([*run.entries, *missing], key=lambda entry: (ladder_key(entry.version), entry.target))
        run = outcome.run = record.replace(run, entries=entries, partial=before.partial)
        outcome.builds.update(builds_of(history, before))
    if before is not None and (before.entries, before.dirty) == (run.entries, run.dirty):
        history.abandon(run.id)
        return
    outcome.recorded = history.finish(run)
