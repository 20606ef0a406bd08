"""The rank-sum test's p-values, held against counting by hand and against SciPy. Intervals: test_stats.py."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from faperf.ranksum import least_p_value, p_value, shift


def by_counting(m: int, n: int, u: int) -> float:
    """P(U ≤ u), of all orders of m and n values."""
    orders = list(itertools.combinations(range(m + n), m))
    below = sum(sum(rank - i for i, rank in enumerate(order)) <= u for order in orders)
    return below / len(orders)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 9), (3, 4), (5, 5), (6, 3)])
def test_p_values_by_counting(m: int, n: int) -> None:
    luck = random.Random(m * n)
    for _ in range(20):
        first, second = [luck.random() for _ in range(m)], [luck.random() for _ in range(n)]
        u = sum(b > a for a in first for b in second)
        expected = min(1.0, 2 * by_counting(m, n, min(u, m * n - u)))
        assert p_value(first, second) == pytest.approx(expected)
        assert p_value(second, first) == pytest.approx(expected)


@pytest.mark.parametrize("size", [4, 20, 50, 51, 120])
def test_p_values_by_scipy(size: int) -> None:
    """On both sides of where counting ends."""
    scipy_stats = pytest.importorskip("scipy.stats", reason="scipy is not installed: pip install 'faperf[report]'")
    luck = random.Random(size)
    first, second = [luck.gauss(0, 1) for _ in range(size)], [luck.gauss(0.4, 1) for _ in range(size)]
    method = "exact" if size <= 50 else "asymptotic"
    expected = scipy_stats.mannwhitneyu(first, second, method=method).pvalue
    assert p_value(first, second) == pytest.approx(expected, rel=1e-6)


def test_equal_values_count_half() -> None:
    assert p_value([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]) == pytest.approx(1.0)
    assert p_value([1.0], [1.0]) == 1.0


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 3), (10, 10)])
def test_no_p_value_is_smaller_than_that_of_samples_apart(m: int, n: int) -> None:
    apart = p_value(list(range(m)), list(range(100, 100 + n)))
    assert apart == pytest.approx(least_p_value(m, n)) == pytest.approx(2 / math.comb(m + n, m))


def test_the_interval_of_large_samples_is_that_of_the_exact_ones() -> None:
    """The normal approximation at 51 × 50 leaves out within a per cent as many differences as counting does at 50 × 50."""
    luck = random.Random(1)
    first, second = [luck.gauss(0, 1) for _ in range(51)], [luck.gauss(1, 1) for _ in range(50)]
    exact, approximate = shift(first[:50], second), shift(first, second)
    assert approximate.low == pytest.approx(exact.low, abs=0.05)
    assert approximate.high == pytest.approx(exact.high, abs=0.05)
