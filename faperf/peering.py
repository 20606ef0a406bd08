"""`faperf peers`: other implementations beside ours, verified by the same reference and timed by the same protocol."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from faperf import record
from faperf.building import Selection, Workshop
from faperf.chips import chip_of
from faperf.counters import TENSOR_ACTIVE, Ncu
from faperf.device import CANNOT, Gpu, required_gpu
from faperf.errors import ForbiddenError, MeasuringError, SelectionError
from faperf.figures import informed, latest_run, silicon_of
from faperf.harness import bundle_tree
from faperf.history import new_run_id, now
from faperf.job import Job, Task
from faperf.manifest import Manifests, Version, load_manifests
from faperf.measuring import Found, perform, the_card, write_bundle
from faperf.metrics import corrected_in
from faperf.operations import load_operations
from faperf.peers import CHILD, find_peer, locations, peer_side
from faperf.record import Check, PeerResult, Timing
from faperf.worker import Worker

OURS = "ours"
COUNTING_S = 120.0
"""So long a profiled child may take; what a peer compiled while it was timed is in its cache by then."""


class Activity(msgspec.Struct, frozen=True):
    """Of one launch: the share of cycles with the tensor pipe active, and clock-corrected MFU in these cycles."""

    tensor_active: float
    corrected_mfu: float


class Peering(msgspec.Struct, frozen=True):
    """What `faperf peers` found: a result for ours and for each peer on each workload. `refused`: whose activity is missing, and
    why.
    """

    results: list[PeerResult]
    refused: list[str]
    recorded: Path | None


def run_peers(
    workshop: Workshop,
    wanted: str | None,
    target: str | None,
    workloads: tuple[str, ...],
    names: Sequence[str],
    budget_s: float | None = None,
    *,
    counted: bool = True,
) -> Peering:
    """Our version (the fastest that was measured here, unless one is `wanted`) and the peers (all, unless `names`), recorded.

    Raises MeasuringError without a GPU, SelectionError for a peer or version that is not there.
    """
    gpu = required_gpu("peers needs a GPU and cupy")
    manifests = load_manifests(workshop.project)
    known = locations(workshop.project.config.peers)
    for name in names:
        if name not in known:
            raise SelectionError(f"no peer '{name}'", remedy=f"there are: {', '.join(known)}")
    version, target = _ours(workshop, manifests, gpu, wanted, target)
    outcome, job = bundle_tree(workshop, Selection((version.id,), (target,)), workloads)
    for failure in outcome.failures:
        raise failure
    if not job.tasks:
        raise SelectionError(f"{version.id} has no workload {', '.join(workloads)}", remedy="faperf list")
    modules = str(workshop.project.modules)
    chosen = {name: known[name] for name in (names or known)}
    job = _with_peers(job, chosen, modules, version.operation.name, budget_s)
    job = record.replace(job, run=record.replace(job.run, machine=workshop.history.class_here(gpu.machine_class)))
    found: list[tuple[str, Found]] = []
    with Worker(job, (*CHILD, modules)) as worker:
        perform(
            job,
            gpu.card,
            load_operations(workshop.project),
            lambda side, each: found.append((side, each)),
            workshop.progress.say,
            worker,
            progress=workshop.progress,
        )
    activity, refused = _activity(workshop, job, found, gpu, modules) if counted else ({}, [])
    results = _results(job, found, activity)
    return Peering(results, refused, workshop.history.file_peers(results) if results else None)


def _ours(
    workshop: Workshop, manifests: Manifests, gpu: Gpu, wanted: str | None, target: str | None
) -> tuple[Version, str]:
    """The version that stands for us, and its target that runs here."""
    if wanted:
        Selection((wanted,)).steps(manifests)
        version = manifests.versions[wanted]
        targets = [t for t in version.targets if gpu.runs(t) and target in (None, t)]
        if not targets:
            raise SelectionError(f"no target of {wanted} runs on the {gpu.name}; it has: {', '.join(version.targets)}")
        return version, targets[0]
    run = latest_run(workshop.history, workshop.repository)
    run = informed(workshop.history, workshop.repository, run) if run else None
    best = [
        (-measured.timing.tflops, name, own)
        for (name, own), measured in (silicon_of(workshop.history, run) if run else {}).items()
        if measured.timing and not measured.failures and name in manifests.versions and gpu.runs(own)
        if target in (None, own)
    ]
    if not best:
        raise SelectionError("nothing was measured here yet", remedy="faperf run, or name a version: faperf peers v13")
    _, name, own = min(best)
    return manifests.versions[name], own


def _with_peers(job: Job, chosen: dict[str, str], modules: str, operation: str, budget_s: float | None) -> Job:
    """`job`, whose tasks are ours alone and each peer against ours on every workload."""
    (ours,) = {task.side for task in job.tasks}
    side = job.side(ours)
    sides, tasks = [side], []
    for name, location in chosen.items():
        peer = find_peer(location, modules)
        if peer.operation == operation:
            sides.append(peer_side(name, location, side))
    for task in job.tasks:
        tasks.append(Task(ours, task.workload, {}))
        tasks += [Task(other.name, task.workload, {OURS: ours}) for other in sides[1:]]
    protocol = record.replace(job.protocol, budget_s=budget_s) if budget_s else job.protocol
    return record.replace(job, sides=sides, tasks=tasks, protocol=protocol)


def _activity(
    workshop: Workshop, job: Job, found: Sequence[tuple[str, Found]], gpu: Gpu, modules: str
) -> tuple[dict[tuple[str, str], Activity], list[str]]:
    """(side, workload) → the activity of one launch, for what was timed; and what was not counted, and why.

    Each side in a child of its own, so that one that ncu cannot profile, or that hangs under it, costs its own row alone.
    """
    activity: dict[tuple[str, str], Activity] = {}
    timed: dict[str, list[str]] = {}
    for name, each in found:
        if isinstance(each, Timing):
            timed.setdefault(name, []).append(each.workload)
    operations = load_operations(workshop.project)
    refused: list[str] = []
    try:
        ncu = Ncu(gpu.capability, limit_s=COUNTING_S)
    except MeasuringError as error:
        return activity, [str(error)]
    with tempfile.TemporaryDirectory() as folder, the_card(gpu.card, workshop.progress.say):
        bundle = Path(folder) / "job"
        write_bundle(job, bundle)
        for name, workloads in timed.items():
            side = job.side(name)
            works = [part for workload in workloads for part in (name, workload)]
            workshop.progress.say(f"counting a launch of {side.version}")
            try:
                counted = ncu.activities([*CHILD, modules, "--each", str(bundle), *works], os.environ)
            except ForbiddenError as error:
                return activity, [str(error)]
            except MeasuringError as error:
                refused.append(f"TCA of {side.version}: {error}")
                continue
            chip = chip_of(side.target)
            for workload, seen in zip(workloads, counted, strict=False):
                flops = operations[side.operation].flops(job.workload(workload).shape)
                own = (
                    corrected_in(flops, seen.sm_cycles, seen.sms, chip.tensor_flops_per_clock)
                    if seen and chip
                    else None
                )
                if seen and own and TENSOR_ACTIVE in seen.shares:
                    activity[name, workload] = Activity(seen.shares[TENSOR_ACTIVE], own)
            if missed := [workload for workload in workloads if (name, workload) not in activity]:
                refused.append(f"TCA of {side.version}: ncu counted nothing on {', '.join(missed)}")
    return activity, refused


def _results(
    job: Job, found: Sequence[tuple[str, Found]], activity: dict[tuple[str, str], Activity]
) -> list[PeerResult]:
    """One for each side and workload, in the order of the tasks."""
    (ours,) = {task.side for task in job.tasks if not task.partners}
    identity, when = new_run_id(), now()
    results = []
    for task in job.tasks:
        own = [each for side, each in found if side == task.side and each.workload == task.workload]
        checks = [each for each in own if isinstance(each, Check)]
        timing = next((each for each in own if isinstance(each, Timing)), None)
        failure = next((check for check in checks if not check.ok), None)
        said = failure.failure if failure else None
        if failure and failure.fault is None:
            said = f"WRONG on {failure.distribution}: {failure.failure}"
        seen = activity.get((task.side, task.workload))
        workload = job.workload(task.workload)
        results.append(
            PeerResult(
                schema=record.SCHEMA,
                id=identity,
                when=when,
                commit=job.commit,
                machine=job.run.machine,
                name=job.side(task.side).version,
                ours=job.side(ours).version,
                target=job.side(ours).target,
                workload=task.workload,
                shape=workload.shape,
                failure=said.removeprefix(f"{CANNOT}: ") if said else None,
                relative_l2={c.distribution: c.relative_l2 for c in checks if c.relative_l2 is not None},
                timing=timing,
                tensor_active=seen.tensor_active if seen else None,
                corrected_there=seen.corrected_mfu if seen else None,
            )
        )
    return results
