"""What is measured for a gate: the versions that changed, interleaved with their partners."""

from __future__ import annotations

from dataclasses import dataclass, field

from faperf import record
from faperf.building import Workshop
from faperf.job import Job
from faperf.looks import Looks, protocol_for
from faperf.measuring import SEED, against, job_of
from faperf.operations import load_operations
from faperf.peers import MARK, controlled
from faperf.power import foresee
from faperf.record import Check, Place, Timing
from faperf.trees import Ask, Tree
from faperf.worker import Here

SEEDS = [SEED, SEED + 1, SEED + 2]
"""Of the inputs that both sides are verified on: what these explain is no loss of accuracy."""


@dataclass
class Evidence:
    """What was measured of the changed versions: by (version, target, workload), and each side's checks by its name."""

    timings: dict[tuple[str, str, str], Timing] = field(default_factory=dict)
    checks: dict[tuple[str, str], list[Check]] = field(default_factory=dict)
    job: Job | None = None
    comparisons: int = 1
    unmeasured: str | None = None
    notes: list[str] = field(default_factory=list)


def measure(
    workshop: Workshop,
    new: Tree,
    partners: dict[str, Tree],
    changed: set[Place],
    ask: Ask,
    here: Here,
    *,
    foreseeing: bool = False,
) -> Evidence:
    """Time the changed versions against their partners; what is inconclusive or void once more, then no further.

    `foreseeing`: raises ConfigError where this machine's calibration says that the budget cannot see `time_detect`.
    """
    gpu, limits = here.gpu, workshop.limits
    found = Evidence(unmeasured=here.reason)
    if gpu is None or here.reason is not None or not changed:
        return found
    operations = load_operations(workshop.project)

    def job_for(tree: Tree) -> Job:
        steps = [step for step in tree.steps if (step[0].id, step[1]) in changed and gpu.runs(step[1])]
        return job_of(operations, tree.manifests, tree.outcome, steps, ask.workloads)

    job = against(job_for(new), {role: job_for(tree) for role, tree in partners.items()}, gpu.machine_class)
    job = controlled(job, workshop.project)
    if not job.tasks:
        return Evidence(unmeasured=f"nothing that changed runs on the {gpu.name} (compute capability {gpu.capability})")
    found.comparisons = ask.sharing * sum(len(task.partners) for task in job.tasks)
    protocol = protocol_for(found.comparisons, limits, ask.budget_s)
    if foreseeing:
        shapes = {task.workload: job.workload(task.workload).shape for task in job.tasks}
        known = workshop.history.calibrations(workshop.history.class_here(gpu.machine_class))
        found.notes = foresee(known, shapes, protocol, found.comparisons, limits)
        if protocol.budget_s > ask.budget_s != Ask.budget_s:
            what = (
                f"{found.comparisons} comparisons share the false alarms, so each version takes {protocol.budget_s:g} s"
            )
            found.notes.append(f"{what} of GPU time instead of {ask.budget_s:g}")
    found.job = job = record.replace(job, seeds=SEEDS, protocol=protocol)
    looks = Looks(limits, found.comparisons)
    looks.take(job, gpu.card, operations, workshop.progress, here.worker, timed=ask.timed)
    found.checks = looks.checks
    for task in job.tasks:
        side = job.side(task.side)
        for look in looks.at(task):
            found.timings[side.version, side.target, task.workload] = look.both
    if job.control:
        controls = {pair.build for timing in found.timings.values() if (pair := timing.pair("control"))}
        found.notes = [*found.notes, *(f"control: {build.removeprefix(MARK)}" for build in sorted(controls))]
    return found
