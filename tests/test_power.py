"""The rule played on made-up figures: against an independent simulation, limits by hand, and what the gate refuses."""

from __future__ import annotations

import numpy as np
import pytest

from faperf.errors import ConfigError
from faperf.judge import Thresholds
from faperf.power import (
    Tally,
    added_up,
    at_most,
    budget_for,
    caught,
    foresee,
    instances_for,
    newest,
    smallest_change,
    smallest_threshold,
    spread_of,
    tallies,
)
from faperf.record import PROTOCOL_VERSION, SCHEMA, Calibration, Protocol, replace
from tests.conftest import REPOSITORY

LIMITS = Thresholds()
SHAPE = {"B": 1, "S": 1024}
QUIET = Calibration(
    schema=SCHEMA,
    id="1",
    when="2026-11-30T03:00:00+00:00",
    build="b",
    launch="l",
    version="v13",
    target="sm_90a",
    workload="published",
    shape=SHAPE,
    machine="h200",
    gpu="H200",
    card="c",
    driver="580",
    regime="burst",
    protocol=PROTOCOL_VERSION,
    budget_s=2.0,
    instances=10,
    gates=20,
    load_luck=0.001,
    estimate_sd=0.0003,
    time_detect=0.005,
)
LOUD = replace(QUIET, load_luck=0.004)


# ── the rule played ──


def simulated(change: float, spread: float, plays: int) -> float:
    """Ten instances a look, written down anew: Walsh averages cut at the tabulated 1 % points of Wilcoxon's statistic (3 for
    ten values, 37 for twenty), and the signs that 0.008 / 2 allows: ten of ten, 17 of twenty.
    """
    values = np.log1p(change) + spread * np.random.default_rng(99).normal(size=(plays, 20))

    def look(x: np.ndarray, cut: int, least: int) -> tuple[np.ndarray, np.ndarray]:
        n = x.shape[1]
        walsh = np.sort([(x[:, i] + x[:, j]) / 2 for i in range(n) for j in range(i, n)], axis=0)
        value, low, high = np.median(walsh, axis=0), walsh[cut], walsh[-1 - cut]
        up, down = (x > 0).sum(axis=1) >= least, (x < 0).sum(axis=1) >= least
        slower = (value >= 0.003) & (low > 0.0015) & up
        faster = (value <= -0.003) & (high < -0.0015) & down
        same = (np.abs(value) < 0.003) & (np.maximum(-low, high) < 0.005)
        return slower, slower | faster | same

    first, decided = look(values[:, :10], 3, 10)
    second, _ = look(values, 37, 17)
    return float(np.mean(first | (~decided & second)))


@pytest.mark.parametrize(
    ("change", "spread"),
    [(0.005, 0.001), (0.005, 0.003), (0.005, 0.005), (0.0035, 0.001), (0.003, 0.0005), (0.01, 0.008), (0.0, 0.004)],
)
def test_the_power_is_that_of_an_independent_simulation(change: float, spread: float) -> None:
    expected = simulated(change, spread, 20_000)
    assert caught(change, spread, 10, LIMITS) == pytest.approx(
        expected, abs=4 * (expected * (1 - expected) / 2000) ** 0.5 + 0.002
    )


def test_a_change_is_caught_as_surely_each_time_it_is_asked() -> None:
    assert caught(0.004, 0.002, 10, LIMITS) == caught(0.004, 0.002, 10, LIMITS)


def test_without_any_scatter_the_cut_decides() -> None:
    """log(1.0030) < 0.003 < log(1.0031)."""
    assert (caught(0.0030, 0.0, 10, LIMITS), caught(0.0031, 0.0, 10, LIMITS)) == (0.0, 1.0)
    assert smallest_change(0.0, 10, LIMITS) == 0.0031
    assert smallest_change(0.0, 10, Thresholds(time_cut=0.01)) == 0.0101


@pytest.mark.parametrize(
    ("spread", "seen"),
    [(0.0005, 0.0034), (0.001, 0.0038), (0.0015, 0.0042), (0.002, 0.0045), (0.003, 0.0054), (0.005, 0.0087)],
)
def test_the_table_of_the_docs(spread: float, seen: float) -> None:
    assert smallest_change(spread, 10, LIMITS) == seen
    table = (REPOSITORY / "docs/measuring.md").read_text(encoding="utf-8").partition("| load luck |")[2]
    lucks, _, seens = (line.split("|") for line in table.splitlines()[:3])
    assert (f"{100 * spread:g} %", f"{seen:.2%}".replace("%", " %")) in [
        (luck.strip(), cell.strip()) for luck, cell in zip(lucks[:-1], seens[2:-1], strict=True)
    ]


def test_what_is_seen_grows_with_the_scatter_and_shrinks_with_the_budget() -> None:
    seen = {(spread, n): smallest_change(spread, n, LIMITS) for spread in (0.001, 0.004) for n in (10, 40)}
    assert all(seen.values())
    assert seen[0.004, 40] < seen[0.004, 10]  # type: ignore[operator]
    assert seen[0.001, 10] < seen[0.004, 10]  # type: ignore[operator]
    assert caught(seen[0.004, 10] or 0, 0.004, 10, LIMITS) >= 0.99
    assert caught((seen[0.004, 10] or 0) - 1e-4, 0.004, 10, LIMITS) < 0.99


def test_more_comparisons_ask_for_more_agreement() -> None:
    """Forty share the budget of false alarms: of ten instances not even all may do, by signs; of twenty, 19 must agree."""
    assert caught(0.005, 0.004, 10, LIMITS, comparisons=40) < caught(0.005, 0.004, 10, LIMITS) - 0.1


def test_the_instances_that_a_change_needs() -> None:
    assert instances_for(0.005, 0.0, LIMITS) == 8  # fewer that all agree say nothing: 2^-7 > 0.008 / 2
    count = instances_for(0.005, 0.004, LIMITS)
    assert count is not None
    assert caught(0.005, 0.004, count, LIMITS) >= 0.99 > caught(0.005, 0.004, count - 1, LIMITS)
    assert budget_for(count) == pytest.approx(0.2 * count)


@pytest.mark.parametrize(("change", "spread"), [(0.002, 0.0), (0.005, 0.02)])
def test_what_no_budget_shows(change: float, spread: float) -> None:
    assert instances_for(change, spread, LIMITS) is None
    assert budget_for(None) is None


def test_a_scatter_beyond_all_bounds_shows_nothing() -> None:
    assert smallest_change(0.1, 10, LIMITS) is None


# ── calibrations ──


def test_whole_gates_that_scatter_more_than_their_instances_count() -> None:
    assert spread_of(QUIET) == 0.001  # 0.0003 · √10 = 0.00095
    assert spread_of(replace(QUIET, estimate_sd=0.001)) == pytest.approx(0.001 * 10**0.5)


def test_runs_of_a_series_add_up_and_the_newest_figures_stand() -> None:
    later = replace(LOUD, id="2", gates=40, false_alarms=1, inconclusive=2, void=3, second_looks=4)
    other = replace(QUIET, regime="sustained")
    assert added_up([QUIET, other, later]) == [
        replace(later, gates=60, false_alarms=1, inconclusive=2, void=3, second_looks=4),
        other,
    ]


def test_all_gates_of_a_machine_class_bound_the_rate() -> None:
    old = replace(QUIET, protocol=1, false_alarms=2)
    more = replace(QUIET, id="2", version="v12", gates=183, void=3, inconclusive=1)
    assert at_most(QUIET) == pytest.approx(1 - 0.05 ** (1 / 20))
    before, now = tallies([old, QUIET, more])
    assert before == Tally(machine="h200", protocol=1, gates=20, false_alarms=2, inconclusive=0, at_most=before.at_most)
    assert before.at_most == pytest.approx(0.28262, abs=1e-5)  # 2 of 20, as tabulated
    assert now == Tally(
        machine="h200", protocol=PROTOCOL_VERSION, gates=200, false_alarms=0, inconclusive=1, at_most=now.at_most
    )
    assert now.at_most == pytest.approx(1 - 0.05 ** (1 / 200))


def test_the_newest_run_of_each_regime_counts() -> None:
    sustained, v12 = replace(LOUD, regime="sustained"), replace(QUIET, id="2", version="v12")
    again = replace(QUIET, id="2")
    elsewhere = replace(LOUD, id="3", shape={"B": 2, "S": 1024})
    before = replace(LOUD, id="3", protocol=PROTOCOL_VERSION - 1)
    assert newest([LOUD, sustained, v12, again, elsewhere, before], SHAPE) == [sustained, v12, again]


# ── before a gate ──

WORKLOADS = {"published": SHAPE}


def test_a_gate_that_sees_its_threshold_may_go_on() -> None:
    assert foresee([QUIET], WORKLOADS, Protocol(), 1, LIMITS) == []


def test_without_a_calibration_nothing_is_refused() -> None:
    notes = foresee([QUIET], WORKLOADS | {"long": {"B": 1, "S": 8192}}, Protocol(), 1, LIMITS)
    assert notes == ["not calibrated on this machine for long: faperf calibrate"]
    stale = replace(LOUD, protocol=PROTOCOL_VERSION - 1)
    assert foresee([stale], WORKLOADS, Protocol(), 1, LIMITS) == [
        "not calibrated on this machine for published: faperf calibrate"
    ]


def test_a_threshold_that_the_budget_does_not_see_is_refused_and_the_budget_that_it_names_would_do() -> None:
    worse = replace(LOUD, regime="sustained", version="v12")
    with pytest.raises(ConfigError) as refused:
        foresee([QUIET, worse], WORKLOADS, Protocol(), 1, LIMITS)
    sees, count = smallest_change(0.004, 10, LIMITS), instances_for(0.005, 0.004, LIMITS)
    threshold = smallest_threshold(0.004, 10, LIMITS)
    assert sees is not None
    assert count is not None
    assert threshold is not None
    assert str(refused.value) == (
        "pyproject.toml, [tool.faperf.thresholds]: time_detect is 0.50%, but with 2 s of GPU time a version this machine "
        f"sees changes on published from {sees:.2%} on (99% of them; v12, sustained, calibrated 2026-11-30T03:00:00+00:00)\n"
        f"  → --budget {count / 5:g} would do; or set time_detect = {threshold:.4f}"
    )
    enough = Protocol(instances=count, budget_s=count / 5)
    assert foresee([QUIET, worse], WORKLOADS, enough, 1, LIMITS) == []
    assert foresee([QUIET, worse], WORKLOADS, Protocol(), 1, Thresholds(time_detect=threshold)) == []


def test_a_machine_too_loud_for_any_budget() -> None:
    with pytest.raises(ConfigError, match=r"no budget up to 10 s would do: set time_detect = 0\.0"):
        foresee([replace(QUIET, load_luck=0.02)], WORKLOADS, Protocol(), 1, LIMITS)
    with pytest.raises(ConfigError, match=r"none up to 5% .*\n  → no budget up to 10 s would do: measure on another"):
        foresee([replace(QUIET, load_luck=0.1)], WORKLOADS, Protocol(), 1, LIMITS)
