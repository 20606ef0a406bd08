"""`faperf calibrate`: many gates of a build against itself on the GPU that is here. What they call a change is a false alarm,
and how they scatter tells the smallest change that a gate can see.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from faperf import record
from faperf.building import Selection, Workshop
from faperf.errors import FaperfError, MeasuringError
from faperf.harness import Wish, build_tree
from faperf.history import now
from faperf.job import Job
from faperf.judge import Thresholds, Verdict, judge_pair
from faperf.looks import BASELINE, Look, Looks, Work, check_budget, protocol_for
from faperf.measuring import against, job_of
from faperf.operations import load_operations
from faperf.peers import controlled
from faperf.power import budget_for, instances_for, smallest_change, spread_of
from faperf.record import Calibration, Pair, Protocol, Timing
from faperf.worker import Here

ALARMS = (Verdict.SLOWER, Verdict.FASTER)


@dataclass
class Calibrated:
    """What a calibration found; `failures` did not build, `wrong` kernels were not timed."""

    calibrations: list[Calibration] = field(default_factory=list)
    failures: list[FaperfError] = field(default_factory=list)
    wrong: bool = False


def calibrate(
    workshop: Workshop, selection: Selection, workloads: tuple[str, ...], gates: int, budget_s: float, here: Here
) -> Calibrated:
    """So many gates of each version × workload against itself, recorded even where they are cut short.

    Raises MeasuringError where nothing can be measured, SelectionError for a budget that is too little.
    """
    gpu, history = here.gpu, workshop.history
    if gpu is None or here.reason is not None:
        raise MeasuringError(f"calibrate needs a GPU and cupy: {here.reason}", remedy="faperf doctor")
    limits = workshop.limits
    check_budget(budget_s, limits)
    outcome, manifests, steps = build_tree(workshop, selection, Wish(workloads=workloads), here)
    history.abandon(outcome.run.id)
    operations = load_operations(workshop.project)
    job = job_of(operations, manifests, outcome, [step for step in steps if gpu.runs(step[1])], workloads)
    if not job.tasks:
        raise MeasuringError(f"nothing that built runs on the {gpu.name} (compute capability {gpu.capability})")
    job = against(job, {BASELINE: job}, history.class_here(gpu.machine_class))
    job = record.replace(job, protocol=protocol_for(1, limits, budget_s))
    job = controlled(job, workshop.project)
    looks = Looks(limits)
    rounds = record.replace(job, tasks=[task for _ in range(gates) for task in job.tasks])
    calibrated = Calibrated(failures=outcome.failures)
    try:
        looks.take(rounds, gpu.card, operations, workshop.progress, here.worker)
    finally:  # what was measured is kept, however it ended
        wrong = {work for work, checks in looks.checks.items() if not all(check.ok for check in checks)}
        calibrated.wrong = bool(wrong)
        calibrated.calibrations = list(_calibrations(job, looks, wrong, outcome.run.id))
        if calibrated.calibrations:
            path = history.file_calibrations(calibrated.calibrations)
            workshop.progress.say(f"Recorded: {workshop.project.relative(path)}")
    return calibrated


def _calibrations(job: Job, looks: Looks, wrong: set[Work], run_id: str) -> Iterator[Calibration]:
    """One for each task and regime, without those of wrong kernels. A second look that was not taken leaves a gate undecided."""
    when = now()
    for task in job.tasks:
        if wrong & {(name, task.workload) for name in (task.side, *task.partners.values())}:
            continue
        side, own = job.side(task.side), looks.at(task)
        for regime in sorted({look.both.regime for look in own}):
            some = [look for look in own if look.both.regime == regime]
            if any(not look.first.void for look in some):
                summary = summed(some, side.version, side.target, job.protocol, looks.limits)
                yield record.replace(summary, id=run_id, when=when)


def summed(gates: Sequence[Look], version: str, target: str, protocol: Protocol, limits: Thresholds) -> Calibration:
    """What the gates of one version, workload and regime come to. Some first look is not void."""
    timing = gates[-1].both
    verdicts = [judge_pair(gate.both, BASELINE, limits) for gate in gates]
    pairs = [_pair(gate.first) for gate in gates if not gate.first.void]
    found = Calibration(
        schema=record.SCHEMA,
        id="",
        when="",
        build=timing.build,
        launch=timing.launch,
        version=version,
        target=target,
        workload=timing.workload,
        shape=timing.shape,
        machine=timing.machine,
        gpu=timing.gpu,
        card=timing.card,
        driver=timing.driver,
        regime=timing.regime,
        protocol=timing.protocol,
        budget_s=protocol.budget_s,
        instances=protocol.instances,
        gates=len(gates),
        false_alarms=sum(verdict in ALARMS for verdict in verdicts),
        inconclusive=verdicts.count(Verdict.INCONCLUSIVE),
        void=verdicts.count(Verdict.INCOMPARABLE),
        second_looks=sum(gate.both is not gate.first for gate in gates),
        load_luck=_from_zero([value for pair in pairs for value in pair.instances]),
        estimate_sd=_from_zero([pair.time.value for pair in pairs]),
        time_detect=limits.time_detect,
    )
    spread = spread_of(found)
    return record.replace(
        found,
        detects=smallest_change(spread, protocol.instances, limits),
        needed_s=budget_for(instances_for(limits.time_detect, spread, limits)),
    )


def _pair(timing: Timing) -> Pair:
    pair = timing.pair(BASELINE)
    assert pair is not None
    return pair


def _from_zero(values: Sequence[float]) -> float:
    """The standard deviation of values whose true mean is known: 0."""
    return math.sqrt(fmean(value * value for value in values))
