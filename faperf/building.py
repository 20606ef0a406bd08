"""Versions × targets → builds: compiled and inspected in parallel, one failure stopping no other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from faperf import record
from faperf.build import Artifact, Builder
from faperf.chips import chip_of, occupancy
from faperf.errors import CompileError, FaperfError, ManifestError, SelectionError
from faperf.figures import open_repository
from faperf.history import History
from faperf.judge import Thresholds, thresholds_from
from faperf.launch import launch_digest
from faperf.manifest import Manifests, Version, ladder_key
from faperf.operations import Operation, load_operations
from faperf.project import Project
from faperf.record import Build, Entry, Run
from faperf.resolve import kernel_for, resolve
from faperf.sass import inspect
from faperf.toolchain import Toolchain, find_toolchain

if TYPE_CHECKING:
    from faperf.gitinfo import Repository

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


def with_parents(steps: Sequence[Step], manifests: Manifests) -> list[Step]:
    """`steps`, and the parent of each for the same target where it has one."""
    parents = [(manifests.versions.get(version.parent or ""), target) for version, target in steps]
    more = [(parent, target) for parent, target in parents if parent and target in parent.targets]
    return list({(version.id, target): (version, target) for version, target in [*steps, *more]}.values())


@dataclass(frozen=True)
class Progress:
    """Called as work goes on. `begin(what, total)`, then `step(label, cached)` once for each finished step; `cached` ones cost
    nothing. `say` is for what concerns no step's end.
    """

    begin: Callable[[str, int], None] = lambda what, total: None
    say: Callable[[str], None] = lambda line: None
    detail: Callable[[str], None] = lambda line: None
    step: Callable[[str, bool], None] = lambda label, cached: None


@dataclass
class Outcome:
    """A run and what it stands on. `failures` are the versions that did not build, with the compiler's own words."""

    run: Run
    builds: dict[str, Build]
    artifacts: dict[str, Artifact]
    failures: list[FaperfError]
    recorded: Path | None = None
    measured_anew: bool = False
    wrong: bool = False


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
        progress = progress or Progress()
        toolchain = find_toolchain(nvcc, installed=project.toolchains)
        tools = toolchain.identity
        progress.detail(f"nvcc {tools.nvcc} ({toolchain.origin}: {toolchain.nvcc}), {tools.host}; {toolchain.nvdisasm}")
        return cls(
            project=project,
            history=History(project),
            toolchain=toolchain,
            jobs=jobs or os.cpu_count() or 1,
            repository=open_repository(project),
            progress=progress,
        )

    @property
    def limits(self) -> Thresholds:
        """The project's thresholds. Raises ConfigError."""
        return thresholds_from(self.project.config.thresholds)

    def commit_tree(self, commit: str) -> Path:
        """The project's files as they stood at a commit. Raises SelectionError where there is no git."""
        if self.repository is None:
            raise SelectionError("there is no git repository here, so there are no commits")
        return self.repository.export(commit, self.project.make_state() / "trees")


def build_steps(workshop: Workshop, root: Path, manifests: Manifests, steps: Sequence[Step], header: Run) -> Outcome:
    """Build and inspect `steps` in parallel; a version that fails does not stop the others.

    Versions that were not asked for are taken along where the cache has them, so that a run of one version still leaves a
    record of all.
    """
    workshop.project.make_state()
    builder = Builder(root, workshop.project.state / "cache", workshop.toolchain)
    operations = load_operations(workshop.project)
    outcome = Outcome(header, {}, {}, [])
    entries: list[Entry] = []

    def take(step: Step, artifact: Artifact) -> None:
        build = build_record(step, artifact, workshop.toolchain)
        outcome.builds[build.key] = build
        outcome.artifacts[build.key] = artifact
        entries.append(entry_of(step, build, manifests, operations))
        workshop.history.save_build(build)

    def fail(step: Step, error: FaperfError) -> None:
        """Show an error; record it where it is the version's own and not a full disk's or the toolchain's."""
        outcome.failures.append(error)
        if not isinstance(error, CompileError | ManifestError):
            return
        what = error.what[:ERROR_LIMIT]
        entries.append(Entry(version=step[0].id, target=step[1], parent=step[0].parent, error=what))

    workshop.progress.begin("building", len(steps))
    with contextlib.closing(_build_all(workshop, builder, steps)) as results:
        for step, artifact, error in results:
            if error is not None:
                fail(step, error)
            elif artifact is not None:
                try:
                    take(step, artifact)
                except ManifestError as unresolved:
                    fail(step, unresolved)
    everything = Selection().steps(manifests)
    for step in everything:
        if step not in steps and (found := builder.find(*step)) and (found.directory / "facts.json").exists():
            with contextlib.suppress(ManifestError):  # not asked for, so not complained of
                take(step, found)
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


def build_record(step: Step, artifact: Artifact, toolchain: Toolchain) -> Build:
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


def entry_of(step: Step, build: Build, manifests: Manifests, operations: Mapping[str, Operation]) -> Entry:
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
