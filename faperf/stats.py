"""The statistics of paired measurements: Hodges–Lehmann estimates and exact signed-rank intervals; and of rates.

Hollander, Wolfe and Chicken, *Nonparametric Statistical Methods*, chapter 3: the estimate is the median of the Walsh
averages, and the interval is bounded by two of them, counted in from both ends by the quantile of the signed-rank
statistic under the null hypothesis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

LEAST_FOR_99 = 8
"""Fewer values have no 99 % interval: seven give 98.4 % at most."""


@dataclass(frozen=True)
class Estimate:
    """A centre with the bounds of its interval, in the unit of the values."""

    value: float
    low: float
    high: float


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


def shift(first: Sequence[float], second: Sequence[float], confidence: float = 0.99) -> Estimate:
    """How far `second` lies above `first`, two independent samples: the median of all differences, with the narrowest exact
    rank-sum interval of at least `confidence` (Hollander, Wolfe and Chicken, chapter 4). The whole line where both are too few.
    """
    differences = np.sort(np.subtract.outer(np.asarray(second, float), np.asarray(first, float)).ravel())
    if differences.size == 0:
        raise ValueError("no values")
    cut = _rank_sum_cut(len(first), len(second), confidence)
    if cut is None:
        return Estimate(float(np.median(differences)), -np.inf, np.inf)
    return Estimate(float(np.median(differences)), float(differences[cut]), float(differences[-1 - cut]))


@cache
def _rank_sum_cut(m: int, n: int, confidence: float) -> int | None:
    """How many differences may be left out at each end: the largest c with P(U ≤ c) ≤ (1 − confidence) / 2, U Mann–Whitney's."""
    # ways[k][u]: k of the values seen so far belong to the first sample, and u is the statistic
    ways = np.zeros((m + 1, m * n + 1))
    ways[0, 0] = 1
    for value in range(m + n):
        for k in range(min(m, value + 1), 0, -1):
            above = value - (k - 1)  # values of the second sample below this one
            if above <= n:
                ways[k, above:] = ways[k, above:] + ways[k - 1, : m * n + 1 - above]
    tail = np.cumsum(ways[m]) / ways[m].sum()
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
