"""The statistics of paired measurements: Hodges–Lehmann estimates and exact signed-rank intervals; and of rates.

Hollander, Wolfe and Chicken, *Nonparametric Statistical Methods*, chapter 3: the estimate is the median of the Walsh
averages, and the interval is bounded by two of them, counted in from both ends by the quantile of the signed-rank
statistic under the null hypothesis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from faperf.ranksum import Estimate

LEAST_FOR_99 = 8
"""Fewer values have no 99 % interval: seven give 98.4 % at most."""


def hodges_lehmann(values: Sequence[float]) -> float:
    """The median of all pairwise means, each value with itself included. Raises ValueError when there is no value."""
    return float(np.median(_walsh_averages(values)))


def estimate(values: Sequence[float], confidence: float = 0.99) -> Estimate:
    """Hodges–Lehmann with the narrowest exact signed-rank interval of at least `confidence`.

    Where there are too few values for it, the interval is the whole line: nothing may be concluded from them.
    """
    averages = np.sort(_walsh_averages(values))
    cut = _rank_cut(len(values), confidence)
    if cut is None:
        return Estimate(float(np.median(averages)), -np.inf, np.inf)
    return Estimate(float(np.median(averages)), float(averages[cut]), float(averages[len(averages) - 1 - cut]))


def _walsh_averages(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if array.size == 0:
        raise ValueError("no values")
    i, j = np.triu_indices(array.size)
    averages: np.ndarray = (array[i] + array[j]) / 2
    return averages


@cache
def _rank_cut(count: int, confidence: float) -> int | None:
    """How many Walsh averages may be left out at each end: the largest c with P(W ≤ c) ≤ (1 − confidence) / 2, W signed-rank.

    None where even leaving out none has less than `confidence`: the extremes miss the centre with probability 2 / 2^count.
    """
    # ways[w]: subsets of the ranks 1 … count that sum to w
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 1
    for rank in range(1, count + 1):
        ways[rank:] = ways[rank:] + ways[:-rank]
    tail = np.cumsum(ways) / 2.0**count
    allowed = np.flatnonzero(tail <= (1 - confidence) / 2)
    return int(allowed[-1]) if allowed.size else None


def rate_at_most(hits: int, count: int, confidence: float = 0.95) -> float:
    """Clopper and Pearson's upper bound of a rate, one-sided: under a higher one, `hits` or fewer of `count` would come about
    with a probability of less than 1 − `confidence`. For no hits it is 1 − (1 − confidence)^(1 / count).
    """
    if hits >= count:
        return 1.0
    low, high = hits / count, 1.0
    for _ in range(60):  # halvings: more than a float can tell apart
        middle = (low + high) / 2
        low, high = (low, middle) if _binomial(hits, count, middle) < 1 - confidence else (middle, high)
    return high


def rate_at_least(hits: int, count: int, confidence: float = 0.95) -> float:
    """Clopper and Pearson's lower bound of a rate, one-sided."""
    return 1 - rate_at_most(count - hits, count, confidence)


def _binomial(hits: int, count: int, rate: float) -> float:
    """The probability of at most so many hits. `rate` lies between 0 and 1."""
    ways = (math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(hits + 1))
    hit, miss = math.log(rate), math.log1p(-rate)
    return math.fsum(math.exp(way + k * hit + (count - k) * miss) for k, way in enumerate(ways))
