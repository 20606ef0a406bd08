"""Change points: found where they are and not where they are not, also with few measurements."""

from __future__ import annotations

import builtins
import random
from typing import Any

import pytest

from faperf import changepoints
from faperf.changepoints import Level, change_points
from faperf.errors import ConfigError
from faperf.judge import Thresholds

LEAST = Thresholds().time_cut


def levels(luck: random.Random, *means: float, session: float = 0.0005) -> list[Level]:
    """A measurement a mean: noise of 0.2 % between its ten instances, `session` between measurements."""
    found = []
    for mean in means:
        here = mean + luck.gauss(0, session)
        instances = [here + luck.gauss(0, 0.002) for _ in range(10)]
        found.append(Level(sorted(instances)[5], instances))
    return found


def places(found: list[Level]) -> list[int]:
    return [change.at for change in change_points(found, LEAST)]


@pytest.mark.parametrize("size", [-0.05, -0.01, 0.01, 0.3])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 1), (1, 4), (20, 1), (40, 40), (200, 1)])
def test_a_change_is_found_where_it_is(before: int, after: int, size: float) -> None:
    luck = random.Random(f"{before} {after} {size}")
    (change,) = change_points(levels(luck, *[0.1] * before, *[0.1 + size] * after), LEAST)
    assert change.at == before
    assert change.size.low - 0.002 < size < change.size.high + 0.002  # instances know nothing of what runs differ by
    assert change.size.value == pytest.approx(size, abs=0.003)
    assert change.p < 0.01


def test_several_changes_and_one_that_is_undone() -> None:
    found = levels(random.Random(1), *[0.0] * 10, *[0.02] * 12, *[0.0] * 9, *[-0.05] * 15)
    assert places(found) == [10, 22, 31]


def test_a_change_smaller_than_a_verdict_counts_is_none() -> None:
    assert places(levels(random.Random(2), *[0.0] * 60, *[0.6 * LEAST] * 60, session=0.0002)) == []


def test_false_alarms_are_rare() -> None:
    """Of 300 series without a change, at most one in a hundred may be said to have one; with session noise and without."""
    alarms = 0
    for seed in range(300):
        luck = random.Random(seed)
        flat = levels(luck, *[0.0] * luck.choice((2, 5, 10, 30, 100)), session=luck.choice((0, 0.0005, 0.001)))
        alarms += bool(places(flat))
    assert alarms <= 3


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_to_compare(count: int) -> None:
    assert places(levels(random.Random(3), *[0.0] * count)) == []


def test_times_without_instances_are_tested_by_themselves() -> None:
    luck = random.Random(4)
    found = [Level((0.0 if n < 12 else 0.04) + luck.gauss(0, 0.001), []) for n in range(24)]
    assert places(found) == [12]
    assert places(found[10:14]) == []  # two against two can happen by chance


def test_equal_values() -> None:
    assert places([Level(0.5, [])] * 30) == []


def test_without_ruptures_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "ruptures":
            raise ImportError("No module named 'ruptures'")
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match="ruptures") as caught:
        change_points(levels(random.Random(5), 0.0, 0.1), LEAST)
    assert "faperf[report]" in str(caught.value)
    assert changepoints.change_points([], LEAST) == []
