"""Estimates and intervals against brute force over every sign pattern or split, published tables, and simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, product
from statistics import median

import numpy as np
import pytest

from faperf.ranksum import Estimate, shift
from faperf.stats import LEAST_FOR_99, estimate, hodges_lehmann, rate_at_least, rate_at_most

WHOLE_LINE = (-math.inf, math.inf)
RNG = np.random.SeedSequence(20_261_130)


def draw(count: int, seed: int = 0) -> list[float]:
    return [float(x) for x in np.random.default_rng([seed, count]).standard_normal(count)]


def walsh(values: Sequence[float]) -> list[float]:
    return sorted((a + b) / 2 for i, a in enumerate(values) for b in values[i:])


def differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return sorted(b - a for a in first for b in second)


def signed_rank(values: Sequence[float]) -> int:
    """The smaller of the rank sums of the positive and of the negative values."""
    ranked = sorted(values, key=abs)
    above = sum(rank for rank, value in enumerate(ranked, 1) if value > 0)
    return min(above, len(ranked) * (len(ranked) + 1) // 2 - above)


def signed_rank_p(values: Sequence[float]) -> float:
    """Two-sided, by every pattern of signs: each is as likely as any other when the centre is 0."""
    patterns = [
        signed_rank([s * abs(v) for s, v in zip(signs, values, strict=True)])
        for signs in product((-1, 1), repeat=len(values))
    ]
    return sum(w <= signed_rank(values) for w in patterns) / len(patterns)


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> int:
    above = sum(b > a for a in first for b in second)
    return min(above, len(first) * len(second) - above)


def mann_whitney_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided, by every split of the pooled values."""
    pooled = [*first, *second]
    own = mann_whitney(first, second)
    splits = [
        mann_whitney([pooled[i] for i in chosen], [pooled[i] for i in range(len(pooled)) if i not in chosen])
        for chosen in combinations(range(len(pooled)), len(first))
    ]
    return sum(u <= own for u in splits) / len(splits)


# ── one sample ──


@pytest.mark.parametrize(
    ("values", "centre"),
    [
        ([3.0], 3.0),
        ([1.0, 2.0], 1.5),
        ([1.0, 2.0, 9.0], 3.5),  # means 1 1.5 2 5 5.5 9
        ([0.0, 0.0, 0.0, 1.0], 0.0),  # means: six 0, three ½, one 1
        ([0.0, 0.0, 0.0, 1e9], 0.0),
        ([0.0, 1.0, 4.0, 9.0], 3.25),  # 0 ½ 1 2 2½ 4 4½ 5 6½ 9
    ],
)
def test_hodges_lehmann_by_hand(values: list[float], centre: float) -> None:
    assert hodges_lehmann(values) == centre
    assert estimate(values).value == centre


@pytest.mark.parametrize("count", range(1, 11))
def test_hodges_lehmann_is_the_median_of_all_means(count: int) -> None:
    values = draw(count)
    assert hodges_lehmann(values) == pytest.approx(median(walsh(values)), abs=1e-15)


# Two-sided 1 % and 5 % critical values of the signed-rank statistic, as statistics textbooks print them.
SIGNED_RANK = {
    0.99: {8: 0, 9: 1, 10: 3, 11: 5, 12: 7, 14: 12, 16: 19, 20: 37},
    0.95: {6: 0, 7: 2, 8: 3, 9: 5, 10: 8, 12: 13, 16: 29, 20: 52},
}


@pytest.mark.parametrize(
    ("confidence", "count", "critical"), [(c, n, t) for c, table in SIGNED_RANK.items() for n, t in table.items()]
)
def test_interval_by_published_critical_values(confidence: float, count: int, critical: int) -> None:
    """A statistic up to the critical value is rejected: so many means are left out at each end."""
    values = draw(count)
    found = estimate(values, confidence)
    means = walsh(values)
    assert [found.low, found.high] == pytest.approx([means[critical], means[-1 - critical]])


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("count", [4, 6, 8, 9, 10])
def test_interval_holds_what_the_exact_test_accepts(count: int, confidence: float) -> None:
    """A centre just inside each bound is accepted, one just outside rejected."""
    values, step = draw(count, seed=1), 1e-9
    found = estimate(values, confidence)

    def rejected(centre: float) -> bool:
        return signed_rank_p([value - centre for value in values]) <= 1 - confidence

    if math.isinf(found.low):
        assert (found.low, found.high) == WHOLE_LINE
        assert not rejected(-100) and not rejected(100)  # noqa: PT018
        return
    assert rejected(found.low - step)
    assert not rejected(found.low + step)
    assert not rejected(found.high - step)
    assert rejected(found.high + step)


@pytest.mark.parametrize("count", range(1, LEAST_FOR_99))
def test_too_few_values_conclude_nothing(count: int) -> None:
    values = draw(count)
    found = estimate(values)
    assert (found.low, found.high) == WHOLE_LINE
    assert found.value == pytest.approx(median(walsh(values)))


def test_eight_values_reach_from_the_least_to_the_greatest() -> None:
    values = draw(LEAST_FOR_99)
    found = estimate(values)
    assert (found.low, found.high) == (min(values), max(values))


def test_no_values() -> None:
    for call in (hodges_lehmann, estimate):
        with pytest.raises(ValueError, match="no values"):
            call([])


def bounds(found: Estimate) -> list[float]:
    return [found.value, found.low, found.high]


@pytest.mark.parametrize("count", [8, 9, 16])
def test_invariance(count: int) -> None:
    values = draw(count)
    value, low, high = bounds(estimate(values))
    assert low < value < high
    assert bounds(estimate([v + 7 for v in values])) == pytest.approx([value + 7, low + 7, high + 7])
    assert bounds(estimate([-v for v in values])) == pytest.approx([-value, -high, -low])
    assert bounds(estimate([3 * v for v in values])) == pytest.approx([3 * value, 3 * low, 3 * high])
    assert bounds(estimate(values[::-1])) == pytest.approx([value, low, high])


def test_more_confidence_is_never_narrower() -> None:
    for count in (8, 12, 20):
        found = [estimate(draw(count), confidence) for confidence in (0.5, 0.8, 0.9, 0.95, 0.99)]
        widths = [f.high - f.low for f in found]
        assert widths == sorted(widths)
        assert widths[0] < widths[-1]


def test_one_wild_value_moves_the_centre_little() -> None:
    values = draw(8)
    assert abs(hodges_lehmann([*values[:-1], 1e6]) - hodges_lehmann(values)) < 1


@pytest.mark.parametrize("kind", ["normal", "laplace", "two masses"])
@pytest.mark.parametrize(("count", "confidence", "expected"), [(8, 0.99, 1 - 2 / 256), (12, 0.95, None)])
def test_coverage(kind: str, count: int, confidence: float, expected: float | None) -> None:
    """The interval of a symmetric distribution has its centre as often as it says; ties only make it safer."""
    rng, trials = np.random.default_rng(RNG), 2000
    samples = {
        "normal": lambda: rng.standard_normal((trials, count)),
        "laplace": lambda: rng.laplace(size=(trials, count)),
        "two masses": lambda: rng.choice([-1.0, 1.0], (trials, count)) + 0.1 * rng.standard_normal((trials, count)),
    }[kind]()
    found = [estimate(sample.tolist(), confidence) for sample in samples]
    share = np.mean([f.low <= 0 <= f.high for f in found])
    sd = math.sqrt(confidence * (1 - confidence) / trials)
    assert share >= confidence - 3 * sd
    assert share < 1
    if expected is not None:
        assert share == pytest.approx(expected, abs=4 * sd)


# ── two samples ──


@pytest.mark.parametrize(
    ("first", "second", "centre"),
    [
        ([1.0], [4.0], 3.0),
        ([1.0, 2.0], [4.0, 8.0], 4.5),  # 2 3 6 7
        ([0.0, 0.0, 0.0], [5.0, 5.0, 1e9], 5.0),
    ],
)
def test_shift_by_hand(first: list[float], second: list[float], centre: float) -> None:
    found = shift(first, second)
    assert (found.value, found.low, found.high) == (centre, *WHOLE_LINE)


# Two-sided 1 % critical values of Mann–Whitney's U, as statistics textbooks print them.
MANN_WHITNEY = {
    (4, 6): 0, (5, 5): 0, (5, 8): 2, (5, 10): 4, (6, 6): 2, (7, 7): 4, (8, 8): 7, (8, 10): 11, (9, 9): 11, (10, 10): 16,
    (12, 12): 27, (15, 15): 51, (16, 16): 60, (20, 20): 105,
}  # fmt: skip


@pytest.mark.parametrize("sizes", MANN_WHITNEY)
def test_shift_by_published_critical_values(sizes: tuple[int, int]) -> None:
    for m, n in (sizes, sizes[::-1]):
        first, second = draw(m, seed=2), draw(n, seed=3)
        found, gaps, critical = shift(first, second), differences(first, second), MANN_WHITNEY[sizes]
        assert (found.low, found.high) == (gaps[critical], gaps[-1 - critical])
        assert found.value == pytest.approx(median(gaps))


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize(("m", "n"), [(2, 3), (3, 5), (4, 6), (5, 5), (6, 4)])
def test_shift_holds_what_the_exact_test_accepts(m: int, n: int, confidence: float) -> None:
    first, second, step = draw(m, seed=4), draw(n, seed=5), 1e-9
    found = shift(first, second, confidence)

    def rejected(by: float) -> bool:
        return mann_whitney_p(first, [value - by for value in second]) <= 1 - confidence

    if math.isinf(found.low):
        assert (found.low, found.high) == WHOLE_LINE
        assert not rejected(-100) and not rejected(100)  # noqa: PT018
        return
    assert rejected(found.low - step)
    assert not rejected(found.low + step)
    assert not rejected(found.high - step)
    assert rejected(found.high + step)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 50), (2, 8), (3, 7), (4, 4), (4, 5)])
def test_too_few_to_see_a_shift(m: int, n: int) -> None:
    """Even a sample wholly above the other is likelier than 1 % by chance: 2 / (m + n over m)."""
    found = shift(draw(m), [x + 100 for x in draw(n)])
    assert 2 / math.comb(m + n, m) > 0.01
    assert (found.low, found.high) == WHOLE_LINE
    assert found.value == pytest.approx(100, abs=5)


def test_no_values_to_shift() -> None:
    for first, second in (([], [1.0]), ([1.0], []), ([], [])):
        with pytest.raises(ValueError, match="no values"):
            shift(first, second)


def test_invariance_of_a_shift() -> None:
    first, second = draw(8, seed=6), draw(10, seed=7)
    value, low, high = bounds(shift(first, second))
    assert low < value < high
    assert bounds(shift([v + 2 for v in first], [v + 7 for v in second])) == pytest.approx(
        [value + 5, low + 5, high + 5]
    )
    assert bounds(shift(second, first)) == pytest.approx([-value, -high, -low])
    assert bounds(shift([3 * v for v in first], [3 * v for v in second])) == pytest.approx(
        [3 * value, 3 * low, 3 * high]
    )
    assert bounds(shift(first[::-1], second[::-1])) == pytest.approx([value, low, high])


@pytest.mark.parametrize("skewed", [False, True])
def test_coverage_of_a_shift(skewed: bool) -> None:
    """Any distribution will do, as long as both samples have the same."""
    rng, trials = np.random.default_rng(RNG), 2000
    shape = (trials, 8)
    first, second = (rng.exponential(size=shape) if skewed else rng.standard_normal(shape) for _ in range(2))
    found = [shift(a.tolist(), (b + 3).tolist()) for a, b in zip(first, second, strict=True)]
    share = np.mean([f.low <= 3 <= f.high for f in found])
    assert share == pytest.approx(0.993, abs=0.007)  # 1 − 2 P(U ≤ 7) = 0.9930 for 8 and 8
    assert share < 1


# ── rates ──


@pytest.mark.parametrize(
    ("hits", "count", "bound"),
    [
        (0, 1, 0.95),
        (0, 20, 1 - 0.05 ** (1 / 20)),
        (0, 200, 1 - 0.05 ** (1 / 200)),
        (1, 1, 1.0),
        (0, 0, 1.0),
        (9, 10, 0.95 ** (1 / 10)),  # P(X ≤ 9) = 1 − p^10
        # scipy.stats.beta.ppf(0.95, hits + 1, count − hits), scipy 1.17
        (1, 10, 0.39416330243650466),
        (5, 10, 0.7775588989918706),
        (3, 500, 0.015433734876752685),
    ],
)
def test_the_exact_bound_of_a_rate(hits: int, count: int, bound: float) -> None:
    assert rate_at_most(hits, count) == pytest.approx(bound, abs=1e-12)
    assert rate_at_least(count - hits, count) == pytest.approx(1 - bound, abs=1e-12)


def test_another_confidence_moves_the_bound() -> None:
    assert rate_at_most(0, 10, 0.99) == pytest.approx(1 - 0.01**0.1, abs=1e-12)
