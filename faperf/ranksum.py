"""The rank-sum test of two independent samples (Mann and Whitney), and the interval that goes with it. Needs no array library.

Hollander, Wolfe and Chicken, *Nonparametric Statistical Methods*, chapter 4. Under the null hypothesis the number of ways in
which U comes to u is the coefficient of q^u in the Gaussian binomial of the sample sizes, which a product of
(1 − q^(n+i)) / (1 − q^i) gives exactly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

MOST_EXACT = 2_500
"""Up to so many pairs of values the distribution is counted out; beyond, it is normal to far more digits than matter."""


@dataclass(frozen=True)
class Estimate:
    """A centre with the bounds of its interval, in the unit of the values."""

    value: float
    low: float
    high: float


def shift(first: Sequence[float], second: Sequence[float], confidence: float = 0.99) -> Estimate:
    """How far `second` lies above `first`: the median of all differences, with the narrowest rank-sum interval of at least
    `confidence`. The whole line where both are too few. Raises ValueError when there is no value.
    """
    differences = sorted(b - a for a in first for b in second)
    if not differences:
        raise ValueError("no values")
    cut = _cut(len(first), len(second), confidence)
    if cut is None:
        return Estimate(_middle(differences), -math.inf, math.inf)
    return Estimate(_middle(differences), differences[cut], differences[-1 - cut])


def p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """How probable it is that two samples of one distribution lie apart at least so far, in either direction."""
    m, n = len(first), len(second)
    u = sum((b > a) + (a == b) / 2 for a in first for b in second)
    least = min(u, m * n - u)
    if m * n <= MOST_EXACT:
        tail = _tail(m, n)
        return min(1.0, 2 * tail[math.floor(least)] / tail[-1])
    from statistics import NormalDist  # seldom needed

    spread = math.sqrt(m * n * (m + n + 1) / 12)
    return min(1.0, 2 * NormalDist().cdf((least + 0.5 - m * n / 2) / spread))


def least_p_value(m: int, n: int) -> float:
    """The p-value of samples of these sizes that do not overlap: no smaller one can come about."""
    return 2 / math.comb(m + n, m)


def _cut(m: int, n: int, confidence: float) -> int | None:
    """How many differences may be left out at each end: the largest c with P(U ≤ c) ≤ (1 − confidence) / 2."""
    if m * n <= MOST_EXACT:
        tail = _tail(m, n)
        return found - 1 if (found := bisect_right(tail, tail[-1] * (1 - confidence) / 2)) else None
    from statistics import NormalDist

    spread = math.sqrt(m * n * (m + n + 1) / 12)
    return max(0, math.floor(m * n / 2 - 0.5 + spread * NormalDist().inv_cdf((1 - confidence) / 2)))


def _middle(ordered: Sequence[float]) -> float:
    """The median of values in order."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@cache
def _tail(m: int, n: int) -> list[int]:
    """In how many of the C(m + n, m) orders U is at most u, for u of 0 to m·n."""
    ways = [1] + [0] * (m * n)
    for i in range(1, m + 1):
        for u in range(m * n, n + i - 1, -1):  # times 1 − q^(n + i)
            ways[u] -= ways[u - n - i]
        for u in range(i, m * n + 1):  # over 1 − q^i
            ways[u] += ways[u - i]
    return list(accumulate(ways))
