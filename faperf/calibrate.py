"""`faperf calibrate`: many gates of a build against itself on the GPU that is here. What they call a change is a false alarm,
and how they scatter tells the smallest change that a gate can see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from faperf import record
from faperf.building import Selection, Workshop
from faperf.errors import FaperfError, MeasuringError
from faperf.harness import Wish, build_tree
from faperf.history import now
from faperf.judge import Thresholds, Verdict, judge_pair, thresholds_from
from faperf.looks import BASELINE, Look, Looks, protocol_for
from faperf.measuring import against, job_of
from faperf.operations import load_operations
from faperf.power import budget_for, instances_for, smallest_change, spread_of
from faperf.record import Calibration, Pair, Protocol, Timing
from faperf.worker import Here

GATES = 20
ALARMS = (Verdict.SLOWER, Verdict.FASTER)


@dataclass
class Calibrated:
    """What a calibration found, and where it is recorded; `failures` did not build, `wrong` kernels were not timed."""

    calibrations: list[Calibration] = field(default_factory=list)
    failures: list[FaperfError] = field(default_factory=list)
    wrong: bool = False
    recorded: Path | None = None


def calibrate(
    workshop: Workshop, selection: Selection, workloads: tuple[str, ...], gates: int, budget_s: float, here: Here
) -> Calibrated:
    """So many gates of each version × workload against itself. Raises MeasuringError where nothing can be measured."""
    gpu, history = here.gpu, workshop.history
    if gpu is None or here.reason is not None:
        raise MeasuringError(f"calibrate needs a GPU and cupy: {here.reason}", remedy="faperf doctor")
    outcome, manifests, steps = build_tree(workshop, selection, Wish(workloads=workloads), here)
    history.abandon(outcome.run.id)
    operations = load_operations(workshop.project)
    limits = thresholds_from(workshop.project.config.thresholds)
    job = job_of(operations, manifests, outcome, [step for step in steps if gpu.runs(step[1])], workloads)
    if not job.tasks:
        raise MeasuringError(f"nothing that built runs on the {gpu.name} (compute capability {gpu.capability})")
    protocol = protocol_for(1, limits, budget_s)
    job = against(job, {BASELINE: job}, history.class_here(gpu.machine_class))
    job = record.replace(job, protocol=protocol)
    looks = Looks(limits)
    rounds = record.replace(job, tasks=[task for _ in range(gates) for task in job.tasks])
    looks.take(rounds, gpu.card, operations, workshop.progress, here.worker)
    wrong = {work for work, checks in looks.checks.items() if not all(check.ok for check in checks)}
    calibrated = Calibrated(failures=outcome.failures, wrong=bool(wrong))
    when = now()
    for task in job.tasks:
        if wrong & {(name, task.workload) for name in (task.side, *task.partners.values())}:
            continue
        side = job.side(task.side)
        own = looks.at(task)
        for regime in sorted({look.both.regime for look in own}):
            some = [look for look in own if look.both.regime == regime]
            if any(not look.first.void for look in some):
                summary = summed(some, side.version, side.target, protocol, limits)
                calibrated.calibrations.append(record.replace(summary, id=outcome.run.id, when=when))
    if calibrated.calibrations:
        calibrated.recorded = history.file_calibrations(calibrated.calibrations)
    return calibrated


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
