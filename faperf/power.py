"""What a gate can see: its rule played on made-up figures that scatter as a calibration found this machine's do.

The share of plays that end in SLOWER is the power. Draws come from one seed, so the same question has the same answer.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING

import msgspec

from faperf import record
from faperf.errors import ConfigError
from faperf.judge import Thresholds, Verdict, instances_needed, judge_time
from faperf.record import PROTOCOL_VERSION, Calibration, Interval, Protocol

if TYPE_CHECKING:
    from faperf.ranksum import Estimate

POWER = 0.99
PLAYS = 2000
SEED = 20_261_130
STEP, STEPS = 1e-4, 500
"""Changes are told apart by 0.01 %, up to 5 %."""
MOST_INSTANCES = 50
"""What needs more is not asked for: 10 s a version."""


class _Play:
    """The instances of a gate's two looks, drawn with mean 0 and standard deviation 1, and what they come to."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    @cached_property
    def first(self) -> Estimate:
        from faperf.stats import estimate  # numpy, for those who calibrated

        return estimate(self.values[: len(self.values) // 2])

    @cached_property
    def both(self) -> Estimate:
        from faperf.stats import estimate

        return estimate(self.values)


@cache
def _plays(instances: int) -> list[_Play]:
    import numpy as np

    return [_Play(values) for values in np.random.default_rng(SEED).standard_normal((PLAYS, 2 * instances)).tolist()]


def caught(change: float, spread: float, instances: int, limits: Thresholds, comparisons: int = 1) -> float:
    """The share of gates that call a slowdown by `change` SLOWER, the second look included.

    `spread` is the standard deviation of an instance, a log ratio; a look has so many `instances`. Estimates shift and stretch
    with their values, so each play is estimated once, whatever the change and the spread.
    """
    shift = math.log1p(change)

    def judged(found: Estimate, values: list[float]) -> Verdict:
        value, low, high = (shift + spread * end for end in (found.value, found.low, found.high))
        moved = [shift + spread * value for value in values]
        return judge_time(Interval(value=value, low=low, high=high), moved, limits, comparisons)

    slower = 0
    for play in _plays(instances):
        verdict = judged(play.first, play.values[:instances])
        if verdict is Verdict.INCONCLUSIVE:
            verdict = judged(play.both, play.values)
        slower += verdict is Verdict.SLOWER
    return slower / PLAYS


def smallest_change(spread: float, instances: int, limits: Thresholds, comparisons: int = 1) -> float | None:
    """The smallest slowdown that is caught with a probability of POWER; None where it is over 5 %."""
    return _smallest(lambda change: caught(change, spread, instances, limits, comparisons))


def smallest_threshold(spread: float, instances: int, limits: Thresholds, comparisons: int = 1) -> float | None:
    """The smallest `time_detect` that is caught so surely. Not `smallest_change`: a larger one calls more gates SAME."""
    return _smallest(
        lambda change: caught(
            change, spread, instances, msgspec.structs.replace(limits, time_detect=change), comparisons
        )
    )


def _smallest(share: Callable[[float], float]) -> float | None:
    changes = [round(step * STEP, 6) for step in range(1, STEPS + 1)]
    at = bisect_left(changes, True, key=lambda change: share(change) >= POWER)
    return changes[at] if at < len(changes) else None


def instances_for(change: float, spread: float, limits: Thresholds, comparisons: int = 1) -> int | None:
    """How many instances a look needs for `change` to be caught so surely; None where they are over MOST_INSTANCES."""
    counts = range(instances_needed(comparisons, limits, 1), MOST_INSTANCES + 1)
    at = bisect_left(counts, True, key=lambda count: caught(change, spread, count, limits, comparisons) >= POWER)
    return counts[at] if at < len(counts) else None


def budget_for(instances: int | None) -> float | None:
    """The GPU time a version, in seconds, that gives a look so many instances."""
    usual = Protocol()
    return round(usual.budget_s * instances / usual.instances, 3) if instances else None


def spread_of(calibration: Calibration) -> float:
    """How an instance scatters; more than its own luck says where whole gates scatter more than their instances explain."""
    return max(calibration.load_luck, calibration.estimate_sd * math.sqrt(calibration.instances))


# ── calibrations ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """The gates of all calibrations of a machine class by one protocol; void ones are not counted among `gates`."""

    machine: str
    protocol: int
    gates: int
    false_alarms: int
    inconclusive: int
    at_most: float


def at_most(calibration: Calibration) -> float:
    """The bound of a calibration's false-alarm rate, at 95 %."""
    from faperf.stats import rate_at_most

    return rate_at_most(calibration.false_alarms, calibration.gates - calibration.void)


def added_up(calibrations: Iterable[Calibration]) -> list[Calibration]:
    """One a series: the gates of all runs added up, and the newest one's figures. Oldest first."""
    series: dict[tuple[object, ...], Calibration] = {}
    for found in calibrations:
        shape = tuple(sorted(found.shape.items()))
        key = (found.machine, found.protocol, found.version, found.target, shape, found.regime)
        before = series.get(key)
        if before is not None:
            counts = ("gates", "false_alarms", "inconclusive", "void", "second_looks")
            found = record.replace(found, **{name: getattr(before, name) + getattr(found, name) for name in counts})
        series[key] = found
    return list(series.values())


def tallies(calibrations: Iterable[Calibration]) -> list[Tally]:
    """All that count the same: gates of one machine class by one protocol."""
    from faperf.stats import rate_at_most

    groups: dict[tuple[str, int], list[Calibration]] = {}
    for found in calibrations:
        groups.setdefault((found.machine, found.protocol), []).append(found)
    tallied = []
    for (machine, protocol), own in groups.items():
        gates, alarms = sum(c.gates - c.void for c in own), sum(c.false_alarms for c in own)
        tallied.append(
            Tally(
                machine=machine,
                protocol=protocol,
                gates=gates,
                false_alarms=alarms,
                inconclusive=sum(c.inconclusive for c in own),
                at_most=rate_at_most(alarms, gates),
            )
        )
    return tallied


def newest(calibrations: Iterable[Calibration], shape: Mapping[str, int]) -> list[Calibration]:
    """Those that count for a workload: of each regime the newest run's, by today's protocol. `calibrations`: oldest first."""
    own = [found for found in calibrations if found.shape == shape and found.protocol == PROTOCOL_VERSION]
    last = {found.regime: found.id for found in own}
    return [found for found in own if found.id == last[found.regime]]


def foresee(
    calibrations: Sequence[Calibration],
    workloads: Mapping[str, Mapping[str, int]],
    protocol: Protocol,
    comparisons: int,
    limits: Thresholds,
) -> list[str]:
    """Whether a gate by `protocol` can see `time_detect` on these workloads (name → shape); notes on those not calibrated.

    Raises ConfigError where the calibrations of this machine say that it cannot: the worst version and regime counts.
    """
    missing = []
    for name, shape in workloads.items():
        own = newest(calibrations, shape)
        if not own:
            missing.append(name)
            continue
        worst = max(own, key=spread_of)
        if caught(limits.time_detect, spread_of(worst), protocol.instances, limits, comparisons) < POWER:
            raise _too_small(worst, name, protocol, comparisons, limits)
    return [f"not calibrated on this machine for {', '.join(missing)}: faperf calibrate"] if missing else []


def _too_small(
    worst: Calibration, workload: str, protocol: Protocol, comparisons: int, limits: Thresholds
) -> ConfigError:
    spread = spread_of(worst)
    sees = smallest_change(spread, protocol.instances, limits, comparisons)
    seen = f"from {sees:.2%} on" if sees else f"none up to {STEP * STEPS:.0%}"
    budget = budget_for(instances_for(limits.time_detect, spread, limits, comparisons))
    threshold = smallest_threshold(spread, protocol.instances, limits, comparisons)
    raised = f"set time_detect = {threshold:.4f}" if threshold else "measure on another workload"
    most = budget_for(MOST_INSTANCES)
    return ConfigError(
        f"time_detect is {limits.time_detect:.2%}, but with {protocol.budget_s:g} s of GPU time a version this machine "
        f"sees changes on {workload} {seen} ({POWER:.0%} of them; {worst.version}, {worst.regime}, calibrated {worst.when})",
        where="pyproject.toml, [tool.faperf.thresholds]",
        remedy=f"--budget {budget:g} would do; or {raised}"
        if budget
        else f"no budget up to {most:g} s would do: {raised}",
    )
