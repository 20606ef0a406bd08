"""The statistics of paired measurements: Hodges–Lehmann estimates and exact signed-rank intervals.

Hollander, Wolfe and Chicken, *Nonparametric Statistical Methods*, chapter 3: the estimate is the median of the Walsh
averages, and the interval is bounded by two of them, counted in from both ends by the quantile of the signed-rank
statistic under the null hypothesis.
"""

from __future__ import annotations

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
