"""`faperf calibrate`: many gates of a build against itself on the GPU that is here. What they call a change is a false alarm,
and how they scatter tells the smallest change that a gate can see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean

from faperf import record
from faperf.building import Progress, Selection, Workshop
from faperf.errors import FaperfError, MeasuringError
from faperf.gate import BASELINE, pooled, protocol_for
from faperf.harness import Wish, build_tree
from faperf.history import now
from faperf.job import Job
from faperf.judge import UNDECIDED, Thresholds, Verdict, judge_pair, thresholds_from
from faperf.measuring import Found, against, job_of, perform
from faperf.operations import Operations, load_operations
from faperf.power import budget_for, instances_for, smallest_change, spread_of
from faperf.record import Calibration, Pair, Protocol, Timing
from faperf.worker import Here

GATES = 20
ALARMS = (Verdict.SLOWER, Verdict.FASTER)
Place = tuple[str, str]
"""(side, workload)."""


@dataclass(frozen=True)
class Gate:
    """Its first look, `both` together where there were two (else the first again), and what it said."""

    first: Timing
    both: Timing
    verdict: Verdict


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
    found, wrong = _gates(job, gates, limits, gpu.card, operations, workshop.progress, here)
    calibrated = Calibrated(failures=outcome.failures, wrong=wrong)
    when = now()
    for task in job.tasks:
        side = job.side(task.side)
        own = found.get((task.side, task.workload), [])
        for regime in sorted({gate.both.regime for gate in own}):
            some = [gate for gate in own if gate.both.regime == regime]
            if any(not gate.first.void for gate in some):
                summary = summed(some, side.version, side.target, protocol, limits)
                calibrated.calibrations.append(record.replace(summary, id=outcome.run.id, when=when))
    if calibrated.calibrations:
        calibrated.recorded = history.file_calibrations(calibrated.calibrations)
    return calibrated


def _gates(
    job: Job,
    gates: int,
    limits: Thresholds,
    card: str,
    operations: Operations,
    progress: Progress,
    here: Here,
) -> tuple[dict[Place, list[Gate]], bool]:
    """The gates of each task, which take turns, and whether some kernel was wrong: a task with such a one has none."""
    looks: list[dict[Place, list[Timing]]] = [{}, {}]
    wrong: set[Place] = set()

    def keep(look: int, name: str, measured: Found) -> None:
        place = (name, measured.workload)
        if isinstance(measured, Timing):
            looks[look].setdefault(place, []).append(measured)
        elif not measured.ok:
            wrong.add(place)

    rounds = record.replace(job, tasks=[task for _ in range(gates) for task in job.tasks])
    perform(rounds, card, operations, partial(keep, 0), progress.say, here.worker, progress=progress)
    again = [
        task
        for task in job.tasks
        for timing in looks[0].get((task.side, task.workload), [])
        if judge_pair(timing, BASELINE, limits) in UNDECIDED
    ]
    if again:
        progress.say(f"inconclusive: {len(again)} measured once more")
        second = record.replace(job, tasks=again)
        perform(second, card, operations, partial(keep, 1), progress.say, progress=progress)
    right = [
        (task.side, task.workload)
        for task in job.tasks
        if not wrong & {(name, task.workload) for name in (task.side, *task.partners.values())}
    ]
    return {place: _with_second(looks[0][place], looks[1].get(place, []), limits) for place in right}, bool(wrong)


def _with_second(first: Sequence[Timing], second: Sequence[Timing], limits: Thresholds) -> list[Gate]:
    """Gates of their first looks, and of as many second ones as were undecided, in the same order."""
    left, gates = iter(second), []
    for timing in first:
        both = pooled(timing, next(left)) if judge_pair(timing, BASELINE, limits) in UNDECIDED else timing
        gates.append(Gate(timing, both, judge_pair(both, BASELINE, limits)))
    return gates


def summed(gates: Sequence[Gate], version: str, target: str, protocol: Protocol, limits: Thresholds) -> Calibration:
    """What the gates of one version, workload and regime come to. Some first look is not void."""
    timing = gates[-1].both
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
        false_alarms=sum(gate.verdict in ALARMS for gate in gates),
        inconclusive=sum(gate.verdict is Verdict.INCONCLUSIVE for gate in gates),
        void=sum(gate.verdict is Verdict.INCOMPARABLE for gate in gates),
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
