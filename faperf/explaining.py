"""`faperf explain`, and the SASS of two commits compared: builds what is to be looked at, and gathers all that is known of it."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import msgspec

from faperf import record
from faperf.build import Artifact
from faperf.building import Outcome, Selection, Step, Workshop, build_steps
from faperf.diagnose import Diagnosis, Facts, diagnose, main_kernel
from faperf.errors import SelectionError
from faperf.figures import (
    EARLIER_RUNS,
    carry_figures,
    counters_of,
    informed,
    metrics_by_version,
    silicon_of,
    timings_of,
)
from faperf.harness import run_commit
from faperf.history import NO_GPU_CLASS, History, new_run
from faperf.listing import Line, LoopDiff, compare, lines_of
from faperf.manifest import Manifests, Version, load_manifests
from faperf.operations import load_operations
from faperf.project import Project
from faperf.record import Build, Check, Run
from faperf.toolchain import find_toolchain


class Question(msgspec.Struct, frozen=True):
    """What to explain: a version, against its parent unless another is named, or against itself built by `against_nvcc`."""

    version: str
    against: str | None = None
    target: str | None = None
    workload: str | None = None
    against_nvcc: str | None = None


class Explanation(msgspec.Struct, frozen=True):
    """The diagnosis, and how the loop changed (None without another side)."""

    diagnosis: Diagnosis
    sass: LoopDiff | None


def explain(workshop: Workshop, question: Question) -> Explanation:
    """Build both sides (nothing is recorded) and diagnose. Raises SelectionError, and CompileError of either side."""
    manifests = load_manifests(workshop.project)
    Selection((question.version, *([question.against] if question.against else []))).steps(manifests)
    version = manifests.versions[question.version]
    other = manifests.versions.get(question.against or version.parent or "")
    target = _target(workshop, version, question.target)
    if question.against_nvcc:
        other = version
    if other is not None and target not in other.targets:
        if question.against:
            raise SelectionError(f"{other.id} is not for {target}", remedy=f"--target {', '.join(other.targets)}")
        other = None
    elsewhere = workshop
    if question.against_nvcc:
        toolchain = find_toolchain(question.against_nvcc, installed=workshop.project.toolchains)
        elsewhere = dataclasses.replace(workshop, toolchain=toolchain)
    new = gather(workshop, manifests, (version, target), question.workload)
    old = gather(elsewhere, manifests, (other, target), question.workload) if other else None
    limits = workshop.limits
    sass = compare(old.lines, new.lines, old.source, new.source) if old else None
    return Explanation(diagnose(new, old, limits), sass)


def _target(workshop: Workshop, version: Version, wanted: str | None) -> str:
    if wanted and wanted not in version.targets:
        raise SelectionError(f"{version.id} is not for {wanted}", remedy=f"it is for: {', '.join(version.targets)}")
    default = workshop.project.config.default_target
    return wanted or (default if default in version.targets else version.targets[0])


def gather(workshop: Workshop, manifests: Manifests, step: Step, workload: str | None = None) -> Facts:
    """A version built for a target here, with what history knows of that code on a workload (its first by default)."""
    version, target = step
    outcome = _built(workshop, manifests, step)
    entry = outcome.run.entry(version.id, target)
    assert entry is not None
    build, artifact = outcome.builds[entry.build or ""], outcome.artifacts[entry.build or ""]
    run = record.replace(outcome.run, entries=[entry])
    run = measured_anywhere(workshop.history, informed(workshop.history, workshop.repository, run))
    operations = load_operations(workshop.project)
    silicon = silicon_of(workshop.history, run, workload)
    measured = silicon.get((version.id, target))
    timing = measured.timing if measured else None
    builds = outcome.builds | ({timing.build: build} if timing else {})
    counters = counters_of(workshop.history, entry, workload)
    published = [file for file in workshop.history.reported() if file.target == target]
    return Facts(
        build=build,
        entry=entry,
        source=version.source,
        tile=(version.tile.m, version.tile.n),
        inputs=_digest(workshop.project.root, artifact),
        checks=measured.checks if measured else _emulated(workshop, build),
        timing=timing,
        timings=timings_of(workshop.history, run, version.id, target),
        metrics=metrics_by_version(manifests, operations, builds, silicon).get((version.id, target)),
        counters=counters,
        published=next((row for file in published for row in file.rows if row.version == version.id), None),
        counted_flops=operations[version.operation.name].flops(counters.shape) if counters else 0,
        lines=lines_of(artifact.cubin, workshop.toolchain.nvdisasm, main_kernel(build).entry, workshop.project.root),
        text=(workshop.project.root / version.source).read_text(encoding="utf-8", errors="replace").splitlines(),
    )


def _built(workshop: Workshop, manifests: Manifests, step: Step) -> Outcome:
    """One version of the tree, from the cache where it can; no run is begun. Raises what stopped it."""
    commit = workshop.repository.head() if workshop.repository else None
    outcome = build_steps(workshop, workshop.project.root, manifests, [step], new_run(commit, NO_GPU_CLASS))
    for failure in outcome.failures:
        raise failure
    return outcome


def measured_anywhere(history: History, run: Run) -> Run:
    """`run` with what any run has of the same code: a branch's commits are no first-parent ancestors once it is merged."""
    for run_file in history.run_files()[: -EARLIER_RUNS - 1 : -1]:
        if all(entry.measured for entry in run.entries):
            break
        run = carry_figures(run, history.load_run(run_file, glance=True), history.same_code)
    return run


def _emulated(workshop: Workshop, build: Build) -> list[Check]:
    """What the emulator found of this code, in the newest run that has something of it."""
    for run_file in reversed(workshop.history.run_files()):
        records = workshop.history.records_of(run_file.run_id)
        checks = [found for found in records if isinstance(found, Check) and found.by == "emulator"]
        same = {key for key in {check.build for check in checks} if workshop.history.same_code(key, build.key)}
        if same:
            return [check for check in checks if check.build in same]
    return []


def _digest(root: Path, artifact: Artifact) -> str:
    digest = hashlib.sha256()
    for name in artifact.inputs:
        digest.update(f"{name}\0".encode() + (root / name).read_bytes() + b"\0")
    return digest.hexdigest()


# ── two commits ──────────────────────────────────────────────────────────────────────────────────────────────────────


def loops_of_commits(workshop: Workshop, old: str, new: str | None, version: str) -> dict[str, LoopDiff]:
    """How a version's instructions changed from commit `old` to `new` (None: the working tree), by target that both have."""
    before, after = (_listings(workshop, commit, version) for commit in (old, new))
    common = [target for target in before if target in after]
    if not common:
        raise SelectionError(f"no version '{version}' on both sides", remedy="faperf diff names what each side has")
    return {
        target: compare(before[target].lines, after[target].lines, before[target].source, after[target].source)
        for target in common
    }


class _Listing(msgspec.Struct):
    lines: list[Line]
    source: str


def _listings(workshop: Workshop, commit: str | None, name: str) -> dict[str, _Listing]:
    """A version's listing at a commit, by target."""
    root = workshop.commit_tree(commit) if commit else workshop.project.root
    manifests = load_manifests(Project(root))
    version = manifests.versions.get(name)
    if version is None:
        return {}
    found = {}
    for target in version.targets:
        if commit:
            outcome = run_commit(workshop, commit, Selection((name,), (target,)), recorded=False)
        else:
            outcome = _built(workshop, manifests, (version, target))
        entry = outcome.run.entry(name, target)
        if entry and entry.build in outcome.artifacts:
            build, artifact = outcome.builds[entry.build], outcome.artifacts[entry.build]
            lines = lines_of(artifact.cubin, workshop.toolchain.nvdisasm, main_kernel(build).entry, root)
            found[target] = _Listing(lines, version.source)
    return found
