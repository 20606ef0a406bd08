"""Where a series of measurements changed its level: proposed by a search, confirmed by a test.

The search is PELT (Killick, Fearnhead and Eckley 2012) with squared errors, as ruptures has it; its penalty for a change is
3·ln n times the variance of the noise. Among n measurements each of the n − 1 gaps could be a change by chance, so a change
counts only if the rank-sum test (Mann and Whitney) of the measurements on its two sides has a p-value of at most `ALPHA` /
(n − 1), and if the shift (Hodges and Lehmann) is as large as `time_cut`. Where a side has too few measurements for any such
p-value, as at the newest commit, their instances are tested, and the measurements of the two sides must not overlap at all.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from faperf.errors import ConfigError
from faperf.ranksum import least_p_value, p_value, shift
from faperf.record import Interval

ALPHA = 0.01
PENALTY = 3.0
METHOD = 1
"""Raised when the same series may get other change points: what was found before is then found anew."""
NEAR = 5
"""So many measurements next to a change give the instances that are tested where a side has too few measurements."""
LEAST_NOISE = 1e-4
FEW = 8
"""With fewer measurements the noise between them cannot be told from the changes."""


class Level(msgspec.Struct, frozen=True):
    """A measurement: its log time, and the instances that it was made of (fresh loads and placements)."""

    value: float
    instances: list[float]


class Change(msgspec.Struct, frozen=True):
    """`at` is the index of the first measurement after it. `size` in log time: above 0 is slower. `p` is the test's."""

    at: int
    size: Interval
    p: float


def change_points(levels: Sequence[Level], least: float) -> list[Change]:
    """The confirmed changes of at least `least` (log time), oldest first."""
    if len(levels) < 2:
        return []
    found = _search([level.value for level in levels], _noise(levels))
    while found:
        judged = [_judge(levels, found, number, least) for number in range(len(found))]
        doubtful = [number for number, (_, sure) in enumerate(judged) if not sure]
        if not doubtful:
            return [change for change, _ in judged]
        weakest = max(doubtful, key=lambda number: (judged[number][0].p, -abs(judged[number][0].size.value)))
        del found[weakest]
    return []


def _search(values: Sequence[float], noise: float) -> list[int]:
    try:
        import numpy as np
        import ruptures
    except ImportError as error:
        raise ConfigError(f"change points need ruptures: {error}", remedy="pip install 'faperf[report]'") from error
    signal = np.asarray(values, dtype=float).reshape(-1, 1) / noise
    search = ruptures.KernelCPD(kernel="linear", min_size=1).fit(signal)
    return [int(end) for end in search.predict(pen=PENALTY * math.log(len(values)))][:-1]


def _noise(levels: Sequence[Level]) -> float:
    """The standard deviation of a measurement: from neighbours' differences, or from its instances where there are few."""
    from statistics import median

    within = [
        _spread(level.instances) / math.sqrt(len(level.instances)) for level in levels if len(level.instances) > 1
    ]
    noise = median(within) if within else 0.0
    if len(levels) >= FEW:
        steps = [after.value - before.value for before, after in pairwise(levels)]
        noise = max(noise, _spread(steps) / math.sqrt(2))
    return max(noise, LEAST_NOISE)


def _spread(values: Sequence[float]) -> float:
    """The median absolute deviation, scaled to be the standard deviation of normal values."""
    from statistics import median

    middle = median(values)
    return 1.4826 * median(abs(value - middle) for value in values)


def _judge(levels: Sequence[Level], found: Sequence[int], number: int, least: float) -> tuple[Change, bool]:
    """A proposed change with its size and p-value, and whether it is sure."""
    start = found[number - 1] if number else 0
    at = found[number]
    end = found[number + 1] if number + 1 < len(found) else len(levels)
    left, right = levels[start:at], levels[at:end]
    alpha = ALPHA / (len(levels) - 1)
    before, after = ([level.value for level in side] for side in (left, right))
    apart = max(before) < min(after) or max(after) < min(before)
    enough = least_p_value(len(before), len(after)) <= alpha
    if not enough:
        before = [value for level in left[-NEAR:] for value in level.instances or [level.value]]
        after = [value for level in right[:NEAR] for value in level.instances or [level.value]]
    moved, p = shift(before, after), p_value(before, after)
    size = Interval(value=moved.value, low=moved.low, high=moved.high)
    return Change(at, size, p), p <= alpha and abs(moved.value) >= least and (enough or apart)
