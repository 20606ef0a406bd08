"""benchmarks/contest, but for what needs a GPU: the rules, the order of play, and the table that docs/measuring.md shows."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.contest.__main__ import MEASURED, PAGE
from benchmarks.contest.kernels import ADDED, ROUNDS, known_work
from benchmarks.contest.nvbench import verdict_in
from benchmarks.contest.plan import CHANGES, Decision, Pair, Reading, State, Stopwatch, play
from benchmarks.contest.table import caught, detail, error, false_alarms, p95, report, summary
from benchmarks.contest.trials import Results, Run, Trial, customary
from docs.marked import block, write_block
from faperf.judge import Verdict
from faperf.toolchain import Toolchain

SAME, SLOWER, FASTER, UNSURE = Verdict.SAME, Verdict.SLOWER, Verdict.FASTER, Verdict.INCONCLUSIVE

RUN = Run(
    when="2026-11-30", command="python -m …", gpu="H200", card="c0ffee", driver="580", versions={"triton": "3.6.0"}
)


def trial(method: str, true: float, change: float, verdict: Verdict, seconds: float = 1.0) -> Trial:
    pair = f"loop, +{100 * true:g} %" if true else "loop, A/A"
    states = ["idle", "hot"]
    return Trial(
        run=0, method=method, pair=pair, true=true, states=states, change=change, verdict=verdict, seconds=seconds
    )


TRIALS = [
    trial("watch", 0.0, 0.02, SLOWER),
    trial("watch", 0.0, -0.03, FASTER, 3.0),
    trial("watch", 0.0, 0.001, SAME, 2.0),
    trial("watch", 0.01, 0.015, SLOWER),
    trial("watch", 0.01, -0.02, FASTER),
    trial("faperf", 0.0, 0.0001, SAME),
    trial("faperf", 0.01, 0.0098, SLOWER),
    trial("faperf", 0.01, 0.0101, UNSURE),
]


# ── rules ──


@pytest.mark.parametrize(
    ("change", "verdict"),
    [(0.0101, SLOWER), (0.0099, SAME), (0.0, SAME), (-0.0099, SAME), (-0.0101, FASTER)],
)
def test_the_customary_rule(change: float, verdict: Verdict) -> None:
    assert customary(change) is verdict


ROBUST = """\
# kernel

## [0] H200

|                        Ref |                         Cmp |   Change |  Status  |
|----------------------------|-----------------------------|----------|----------|
| 99.994 [-0.704, +0.130] us | 110.008 [-0.741, +0.155] us | >= +9.1% | 🔴 SLOW  |

# Summary

- Total Matches: 1
  - Unchanged   (classified as SAME): 0
"""
LEGACY = """\
['a.json', 'b.json']
# kernel

|   Ref Time |   Ref Noise |   Cmp Time |   Cmp Noise |     Diff |   %Diff |  Status  |
|------------|-------------|------------|-------------|----------|---------|----------|
|  99.989 us |       0.20% | 100.016 us |       0.20% | 0.026 us |   0.03% | 🔵 SAME  |

# Summary

- Total Matches: 1
  - Pass    (diff <= min_noise): 1
"""


def test_what_nvbench_prints_is_understood() -> None:
    assert verdict_in(ROBUST) is SLOWER
    assert verdict_in(LEGACY) is SAME
    assert verdict_in(ROBUST.replace("🔴 SLOW", "🟢 FAST")) is FASTER
    assert verdict_in(ROBUST.replace("🔴 SLOW", "🟡 AMBG")) is UNSURE
    assert verdict_in(LEGACY.replace("🔵 SAME", "🟡 ????")) is UNSURE


def test_a_comparison_of_nothing_is_no_verdict() -> None:
    with pytest.raises(ValueError, match="0 rows"):
        verdict_in("# Summary\n\n- Total Matches: 0\n")


# ── play ──

PAIRS = [Pair("A/A", 0.0, "a", "a"), Pair("+1 %", 0.01, "a", "b"), Pair("other, A/A", 0.0, "c", "c")]


class Lab:
    """A stopwatch that notes what it is asked, on a card that is 10 % slower when hot, and a clock of one second a trial."""

    def __init__(self) -> None:
        self.state: State | None = None
        self.log: list[tuple[str, State | None]] = []
        self.now = 0.0

    def stopwatch(self) -> Stopwatch:
        return Stopwatch(("watch",), self.hold, self.read, self.compare)

    def hold(self, state: State) -> None:
        self.state = state

    def read(self, kernel: str) -> Reading:
        self.log.append((kernel, self.state))
        self.now += 1
        return Reading(1.0, 1.1 if self.state is State.HOT else 1.0)

    @staticmethod
    def compare(a: float, b: float) -> list[tuple[str, float, Verdict, dict[str, Any]]]:
        return [("watch", b / a - 1, customary(b / a - 1), {})]


def played(lab: Lab, tools: list[Any], rounds: int = 6, seconds: float = 1e9) -> tuple[list[Any], list[str]]:
    noted: list[Any] = []
    failures: list[str] = []
    play(
        PAIRS,
        tools,
        note=lambda pair, decision: noted.append((pair, decision)),
        failed=lambda tool, error: failures.append(f"{tool.methods[0]}: {error}"),
        over=lambda done: done == rounds or lab.now >= seconds,
        order=random.Random(1),
    )
    return noted, failures


def test_every_pair_is_played_in_every_round_and_every_change_of_state() -> None:
    lab = Lab()
    noted, _ = played(lab, [lab.stopwatch()])
    assert Counter(pair.name for pair, _ in noted) == {"A/A": 6, "+1 %": 6, "other, A/A": 6}
    assert {tuple(decision.states) for _, decision in noted} == set(CHANGES)
    assert len(CHANGES) == 6
    assert all(before is not after for before, after in CHANGES)


def test_a_is_read_once_a_round_in_the_state_before() -> None:
    lab = Lab()
    played(lab, [lab.stopwatch()], rounds=1)
    before, after = CHANGES[0]
    assert Counter(lab.log) == {("a", before): 1, ("c", before): 1, ("a", after): 1, ("b", after): 1, ("c", after): 1}


def test_a_stopwatch_takes_heat_for_a_slowdown() -> None:
    lab = Lab()
    noted, _ = played(lab, [lab.stopwatch()])
    for _, decision in noted:
        before, after = decision.states
        heated = (after is State.HOT) - (before is State.HOT)
        assert decision.verdict is {1: SLOWER, 0: SAME, -1: FASTER}[heated]
        assert decision.seconds == 2.0


def test_play_ends_with_its_time_whatever_is_left_of_the_round() -> None:
    lab = Lab()
    noted, _ = played(lab, [lab.stopwatch()], seconds=3)
    assert len(noted) == 2


class Broken:
    methods = ("broken",)

    def __init__(self) -> None:
        self.asked = 0

    def trial(self, *_: object) -> list[Decision]:
        self.asked += 1
        raise RuntimeError("needs root")


def test_a_tool_that_fails_is_told_once_and_the_others_go_on() -> None:
    lab, broken = Lab(), Broken()
    noted, failures = played(lab, [broken, lab.stopwatch()], rounds=2)
    assert failures == ["broken: needs root"]
    assert broken.asked == 1
    assert len(noted) == 6


def test_play_ends_when_no_tool_is_left() -> None:
    noted, failures = played(Lab(), [Broken()], rounds=10**9)
    assert (noted, len(failures)) == ([], 1)


@pytest.mark.compile
def test_the_added_work_is_exactly_what_it_is_called(toolchain: Toolchain) -> None:
    kernels, pairs = known_work(toolchain.nvcc, "sm_90a", sms=132)
    rounds = {kernel.name: kernel.launches[0].args[1].scalar for kernel in kernels}
    assert {kernel.cubin for kernel in kernels} == {kernels[0].cubin}
    for added, pair in zip(ADDED, pairs, strict=True):
        assert pair.a == f"{ROUNDS}"
        assert rounds[pair.b] == ROUNDS + {0.0: 0, 0.0025: 25, 0.005: 50, 0.01: 100, 0.02: 200}[added]
    assert [pair.name.partition(", ")[2] for pair in pairs] == ["A/A", "+0.25 %", "+0.5 %", "+1 %", "+2 %"]


# ── the table ──


def test_error_is_against_the_truth() -> None:
    assert error(trial("watch", 0.01, 0.015, SLOWER)) == pytest.approx(0.005)
    assert error(trial("watch", 0.01, -0.02, FASTER)) == pytest.approx(0.03)


def test_p95_is_by_nearest_rank() -> None:
    assert p95([float(n) for n in range(100, 0, -1)]) == 95
    assert p95([3.0, 1.0, 2.0]) == 3.0


def test_only_equal_kernels_raise_false_alarms_and_only_slower_ones_are_caught() -> None:
    watch = [trial for trial in TRIALS if trial.method == "watch"]
    assert false_alarms(watch) == "2 of 3"  # FASTER is as false as SLOWER
    assert caught(watch) == "1 of 2"  # FASTER is not caught
    assert false_alarms([]) == caught([]) == ""


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_summary_has_a_row_for_each_method() -> None:
    header, _, *rows = cells(summary(Results([RUN], TRIALS)))
    assert header == ["method", "trials", "error p95", "max", "false alarms", "caught +1 %", "undecided", "s a trial"]
    assert rows == [
        ["watch", "5", "3.00 %", "3.00 %", "2 of 3", "1 of 2", "0 of 5", "1.0"],
        ["faperf", "3", "0.02 %", "0.02 %", "0 of 1", "1 of 2", "1 of 3", "1.0"],
    ]


def test_the_detail_has_a_row_for_each_pair_and_method() -> None:
    _, _, *rows = cells(detail(Results([RUN], TRIALS)))
    assert rows == [
        ["loop, A/A", "watch", "3", "3.00 %", "3.00 %", "2 of 3", "", "", "0 of 3", "2.0"],
        ["loop, A/A", "faperf", "1", "0.01 %", "0.01 %", "0 of 1", "", "", "0 of 1", "1.0"],
        ["loop, +1 %", "watch", "2", "3.00 %", "3.00 %", "", "1 of 2", "1 of 2", "0 of 2", "1.0"],
        ["loop, +1 %", "faperf", "2", "0.02 %", "0.02 %", "", "1 of 2", "0 of 2", "1 of 2", "1.0"],
    ]


def test_a_method_that_could_not_play_keeps_its_row_and_its_reason() -> None:
    run = msgspec.structs.replace(RUN, missing={"NVBench": "RuntimeError: needs root"})
    text = report(Results([run], TRIALS))
    assert "NVBench failed in that run: RuntimeError: needs root" in text
    assert ["NVBench", "0", "", "", "", "", "", ""] in cells(text)


def test_results_are_read_as_they_were_written_one_record_a_line(tmp_path: Path) -> None:
    results = Results([RUN], TRIALS)
    results.save(tmp_path / "r.json")
    assert Results.load(tmp_path / "r.json") == results
    assert len((tmp_path / "r.json").read_text().splitlines()) == 3 + len(TRIALS) + 1


def test_the_page_is_written_between_its_markers_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- contest: begin -->\nold\n<!-- contest: end -->\nafter\n")
    write_block(page, "contest", report(Results([RUN], TRIALS)))
    text = page.read_text()
    assert text.startswith("before\n<!-- contest: begin -->\n- `python -m …`: H200")
    assert text.endswith("\n<!-- contest: end -->\nafter\n")
    assert block(page, "contest") == report(Results([RUN], TRIALS))
    page.write_text("no markers")
    with pytest.raises(ValueError, match="has no"):
        write_block(page, "contest", "new")
    assert page.read_text() == "no markers"


def test_the_docs_show_what_was_measured() -> None:
    assert block(PAGE, "contest") == report(Results.load(MEASURED)), "python -m benchmarks.contest docs"


def test_the_measured_trials_obey_their_rules() -> None:
    results = Results.load(MEASURED)
    for one in results.trials:
        assert one.run < len(results.runs)
        if one.method in ("triton do_bench", "cupyx benchmark"):
            assert one.verdict is customary(one.change)
            assert one.change == pytest.approx(one.raw["b_ms"] / one.raw["a_ms"] - 1)
        if one.method == "faperf":
            assert len(one.raw["instances"]) == 10
    played = itertools.groupby(sorted(results.trials, key=lambda t: t.method), key=lambda t: t.method)
    assert len(list(played)) == 5
