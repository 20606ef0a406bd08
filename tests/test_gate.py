"""The gate's rows, of runs, builds and timings made by hand: each verdict, each status, and what is said of it."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from faperf.building import Outcome, Workshop
from faperf.comparison import GateRow, Measured, diff
from faperf.evidence import Evidence
from faperf.history import History
from faperf.judge import Cause, Status, Thresholds, Verdict
from faperf.judging import Judge, _machine_moved, _up
from faperf.looks import pooled, protocol_for
from faperf.manifest import Accepted, Budgets, Manifests, Version
from faperf.project import Project
from faperf.record import Build, Check, Entry, Interval, Pair, Protocol, Timing, replace
from faperf.trees import Ask, Tree
from tests import facts
from tests.compiling import version_of

LIMITS = Thresholds()
TODAY = datetime.date(2026, 11, 30)
OLD, NEW, THEN = "b-old", "b-new", "b-then"


def version(**keys: Any) -> Version:
    return replace(version_of("kernels/t1.cu"), targets=["sm_103a"], **keys)


def tree(entry: Entry | None, build: Build | None, made: Version | None, *broken: Any) -> Tree:
    outcome = Outcome(facts.run(*([entry] if entry else [])), {build.key: build} if build else {}, {}, [])
    manifests = Manifests({made.id: made} if made else {}, {}, list(broken))
    return Tree(outcome, manifests, [(made, "sm_103a")] if made else [])


def side(key: str, *, made: Version | None = None, kernel: dict[str, Any] | None = None, **keys: Any) -> Tree:
    """A tree whose one version stands at build `key`, with a code of its own."""
    build = facts.build(facts.kernel(**(kernel or {})), key=key, code=f"code of {key}")
    return tree(facts.entry(build=key, **keys), build, made or version())


def pair(role: str, build: str, change: float, *, noise: float = 1e-5, count: int = 10) -> Pair:
    instances = [change + noise * (n - (count - 1) / 2) for n in range(count)]
    time = Interval(value=change, low=instances[0], high=instances[-1])
    return Pair(role=role, build=build, version="t1", time=time, instances=instances)


def timing(*pairs: Pair, **keys: Any) -> Timing:
    plain: dict[str, Any] = {
        "schema": 1, "build": NEW, "launch": "launch", "workload": "published", "shape": {"S": 128}, "machine": "a-class",
        "gpu": "a GPU", "card": "c", "driver": "580.0", "regime": "burst", "protocol": 2,
        "ms": Interval(value=1.0, low=0.999, high=1.001), "tflops": 100.0, "gib_s": 1.0, "launches": 100, "pairs": list(pairs),
    }  # fmt: skip
    return Timing(**(plain | keys))


def check(seed: int = 0, **keys: Any) -> Check:
    plain: dict[str, Any] = {
        "schema": 1, "build": NEW, "launch": "launch", "workload": "published", "shape": {}, "operation": "attention_forward",
        "operation_version": 1, "by": "silicon", "distribution": "normal", "seed": seed, "relative_l2": 4e-4,
    }  # fmt: skip
    return Check(**(plain | keys))


Checks = dict[tuple[str, str], list[Check]]


class Bench:
    """Judges trees, as if git and a GPU had given them."""

    def __init__(self, root: Path) -> None:
        (root / "manifests").mkdir(parents=True)
        self.history = History(Project(root))

    def judge(
        self,
        old: Tree,
        new: Tree,
        pinned: Tree | None = None,
        timings: Sequence[Timing] = (),
        checks: Checks | None = None,
        today: datetime.date = TODAY,
        **ask: Any,
    ) -> Judge:
        for known in (old, new, *([pinned] if pinned else [])):
            for build in known.outcome.builds.values():
                self.history.save_build(build)
        repository = SimpleNamespace(head=lambda: "c" * 40, committed=lambda commit: today, ancestors=lambda c: [c])
        workshop = cast("Workshop", SimpleNamespace(history=self.history, repository=repository, limits=LIMITS))
        names = ("t1@sm_103a", "t1@sm_103a baseline", "t1@sm_103a pinned")
        found = Evidence(
            timings={("t1", "sm_103a", t.workload): t for t in timings},
            checks=checks or {},
            job=facts.job(*(facts.side("t1", name=name, target="sm_103a") for name in names)),
        )
        return Judge(workshop, old, new, pinned, Ask(pinned="v1.0" if pinned else None, **ask), found)

    def rows(self, old: Tree, new: Tree, *rest: Any, **keys: Any) -> list[GateRow]:
        judge = self.judge(old, new, *rest, **keys)
        builds = old.outcome.builds | new.outcome.builds
        return [found for row in diff(old.outcome.run, new.outcome.run, builds, LIMITS) for found in judge.rows(row)]

    def row(self, old: Tree, new: Tree, *rest: Any, **keys: Any) -> GateRow:
        (row,) = self.rows(old, new, *rest, **keys)
        return row


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "project")


def against(change: float, **keys: Any) -> Timing:
    return timing(pair("baseline", OLD, change, **keys))


# ── verdicts and statuses ──


@pytest.mark.parametrize(
    ("measured", "verdict", "status"),
    [
        (against(0.01), Verdict.SLOWER, Status.REGRESSION),
        (against(-0.01), Verdict.FASTER, Status.FINE),
        (against(0.0), Verdict.SAME, Status.FINE),
        (against(0.004, noise=2e-3), Verdict.INCONCLUSIVE, Status.INCONCLUSIVE),
        (replace(against(0.01), void=["thermal"]), Verdict.INCOMPARABLE, Status.INCONCLUSIVE),
        (timing(), Verdict.UNMEASURED, Status.FINE),
    ],
)
def test_times(bench: Bench, measured: Timing, verdict: Verdict, status: Status) -> None:
    row = bench.row(side(OLD), side(NEW), timings=[measured])
    assert (row.verdict, row.status, row.workload, row.tflops) == (verdict, status, "published", 100.0)
    assert row.cause == (Cause.SOURCE if verdict is Verdict.SLOWER else None)


def test_not_measured_is_fine_unless_required(bench: Bench) -> None:
    assert bench.row(side(OLD), side(NEW)).status is Status.FINE
    assert bench.row(side(OLD), side(NEW), require_measured=True).status is Status.INCONCLUSIVE
    unchanged = bench.row(side(OLD), side(OLD), require_measured=True)
    assert (unchanged.verdict, unchanged.status) == (Verdict.UNCHANGED, Status.FINE)


def test_a_wrong_result_outweighs_that_it_is_slower(bench: Bench) -> None:
    checks = {("t1@sm_103a", "published"): [check(failure="all of it")]}
    row = bench.row(side(OLD), side(NEW), timings=[against(0.01)], checks=checks)
    assert (row.status, row.wrong) == (Status.WRONG, ["normal: all of it"])
    partner = {("t1@sm_103a baseline", "published"): [check(failure="all of it")]}
    assert bench.row(side(OLD), side(NEW), timings=[against(0.0)], checks=partner).status is Status.FINE


def test_not_built(bench: Bench) -> None:
    failed = tree(facts.entry(build=None, error="line 3"), None, version())
    nothing = tree(None, None, None)
    cases = [(side(OLD), failed), (nothing, failed), (failed, failed), (failed, side(NEW)), (side(OLD), nothing)]
    found = [bench.row(*case) for case in cases]
    assert [(row.verdict, row.status) for row in found] == [
        (Verdict.BROKEN, Status.WRONG),
        (Verdict.NEW, Status.ERROR),
        (Verdict.INCOMPARABLE, Status.ERROR),
        (Verdict.NEW, Status.FINE),
        (Verdict.GONE, Status.FINE),
    ]
    assert found[3].notes == ["did not build at the baseline"]


# ── budgets, accuracy ──


def budget(limit: int) -> Version:
    return version(budgets=Budgets(registers=limit))


@pytest.mark.parametrize(
    ("was", "now", "counts"),
    [
        ((90, 100), (101, 100), True),
        ((90, 100), (100, 100), False),
        ((104, 100), (102, 100), False),  # broken before, and less so now
        ((102, 100), (104, 100), True),  # worse
        ((95, 100), (92, 90), True),  # the budget was tightened
        ((120, 100), (121, 200), False),  # loosened: a reviewer sees that
    ],
)
def test_budgets(bench: Bench, was: tuple[int, int], now: tuple[int, int], counts: bool) -> None:
    old = side(OLD, made=budget(was[1]), kernel={"registers": was[0]})
    new = side(NEW, made=budget(now[1]), kernel={"registers": now[0]})
    row = bench.row(old, new)
    assert [r.metric for r in row.regressions] == (["budget"] if counts else [])
    assert row.status is (Status.REGRESSION if counts else Status.FINE)


def test_a_new_version_is_judged_by_its_budget_alone(bench: Bench) -> None:
    nothing = tree(None, None, None)
    row = bench.row(nothing, side(NEW, made=budget(95), kernel={"registers": 96}))
    assert (row.verdict, row.status) == (Verdict.NEW, Status.REGRESSION)
    assert row.regressions[0].text == "96 registers, over the budget of 95"
    assert bench.row(nothing, side(NEW, made=budget(96), kernel={"registers": 96})).status is Status.FINE


@pytest.mark.parametrize(("errors", "worse"), [((6e-4, 6e-4, 6e-4), True), ((6e-4, 6e-4, 4.9e-4), False)])
def test_accuracy_over_three_seeds(bench: Bench, errors: tuple[float, ...], worse: bool) -> None:
    """At the baseline 4e-4 at most: 1.25 times that is 5e-4, which one seed stays under."""
    checks = {
        ("t1@sm_103a baseline", "published"): [check(seed, relative_l2=e) for seed, e in enumerate((3e-4, 4e-4, 3e-4))],
        ("t1@sm_103a", "published"): [check(seed, relative_l2=e) for seed, e in enumerate(errors)],
    }
    row = bench.row(side(OLD), side(NEW), timings=[against(0.0)], checks=checks)
    assert [r.metric for r in row.regressions] == (["accuracy"] if worse else [])
    assert [r.limit for r in row.regressions] == pytest.approx([1.5] if worse else [])


def test_a_manifests_rules_hold_at_the_gate(bench: Bench) -> None:
    new: dict[str, Any] = {"kernel": {"registers": 120}}  # 24 more than before: a warning
    assert bench.row(side(OLD), side(NEW, **new)).status is Status.FINE
    strict = side(NEW, made=version(rules={"registers": "regression"}), **new)
    assert bench.row(side(OLD), strict).status is Status.REGRESSION


# ── accepted; the pinned commit ──


def accept(amount: float, metric: str = "time", old: str = OLD, new: str = NEW, **keys: Any) -> Accepted:
    plain: dict[str, Any] = {"metric": metric, "from_": old, "to": new, "max": amount, "reason": "r", "until": TODAY}
    return Accepted(**(plain | keys))


@pytest.mark.parametrize(("amount", "days", "status"), [(0.0101, 0, 0), (0.0072, 0, 0), (0.0065, 0, 3), (0.0101, 1, 3)])
def test_an_accepted_slowdown(bench: Bench, amount: float, days: int, status: int) -> None:
    """A log ratio of 0.01 is 1.005 %: measured again, what is over by less than the cut of 0.3 % is luck."""
    new = side(NEW, made=version(accept=[accept(amount)]))
    row = bench.row(side(OLD), new, timings=[against(0.01)], today=TODAY + datetime.timedelta(days=days))
    assert row.status == status
    assert row.regressions[0].accepted is not None


def since(step: float, total: float) -> list[Timing]:
    return [timing(pair("baseline", OLD, step), pair("pinned", THEN, total))]


@pytest.mark.parametrize(
    ("entries", "status", "limit"),
    [
        ([], Status.REGRESSION, 0.0102),
        ([accept(0.0102)], Status.FINE, None),
        ([accept(0.008, old=THEN, new="b-between")], Status.FINE, None),  # 0.2 % are left, which is under the cut
        ([accept(0.005, old=THEN, new="b-between")], Status.REGRESSION, 0.00510),  # half of it is still to be accepted
        (
            [accept(0.008, old=THEN, new="b-between", until=TODAY - datetime.timedelta(days=1))],
            Status.REGRESSION,
            0.0102,
        ),
        ([accept(0.5, metric="spills")], Status.REGRESSION, 0.0102),
    ],
)
def test_drift(bench: Bench, entries: list[Accepted], status: Status, limit: float | None) -> None:
    """0.1 % in this step, 1 % since the pinned commit."""
    new = side(NEW, made=version(accept=entries))
    row = bench.row(side(OLD), new, side(THEN), timings=since(0.001, 0.01))
    assert (row.verdict, row.status) == (Verdict.SAME, status)
    assert [r.text for r in row.regressions if r.counts] == (["slower than v1.0, by small steps"] if limit else [])
    assert [r.limit for r in row.regressions if r.counts] == pytest.approx([limit] if limit else [], abs=1.5e-4)


def test_what_is_accepted_for_a_step_covers_no_drift_beyond_it(bench: Bench) -> None:
    new = side(NEW, made=version(accept=[accept(0.0102)]))
    row = bench.row(side(OLD), new, side(THEN), timings=since(0.01, 0.03))
    assert (row.verdict, row.status) == (Verdict.SLOWER, Status.REGRESSION)
    (drift,) = (regression for regression in row.regressions if regression.counts)
    assert drift.amount == pytest.approx(math.expm1(0.03) - 0.0102)
    # accepted in place of the step's entry, that is enough
    enough = side(NEW, made=version(accept=[accept(drift.limit)]))
    assert bench.row(side(OLD), enough, side(THEN), timings=since(0.01, 0.03)).status is Status.FINE


def test_what_the_pinned_commit_had_accepted_already_is_in_its_speed(bench: Bench) -> None:
    entry = accept(0.0102)
    then = side(THEN, made=version(accept=[entry]))
    row = bench.row(side(OLD), side(NEW, made=version(accept=[entry])), then, timings=since(0.001, 0.01))
    assert row.status is Status.REGRESSION


def test_the_baseline_stands_for_a_pinned_commit_of_the_same_code_alone(bench: Bench) -> None:
    measured = [against(0.01)]
    same = tree(facts.entry(build=OLD), side(OLD).outcome.builds[OLD], version())
    assert bench.row(side(OLD), side(NEW), same, timings=measured).pinned is Verdict.SLOWER
    absent = tree(None, None, None)
    assert bench.row(side(OLD), side(NEW), absent, timings=measured).pinned is None
    other_launch = tree(
        facts.entry(build=OLD, launches={"published": "other"}), side(OLD).outcome.builds[OLD], version()
    )
    assert bench.row(side(OLD), side(NEW), other_launch, timings=measured).pinned is None


def test_stale_entries(bench: Bench) -> None:
    def notes(entry: Accepted, pinned: Tree | None = None, targets: Sequence[str] = ("sm_103a",)) -> list[str]:
        new = side(NEW, made=version(accept=[entry]))
        only = replace(new.manifests.versions["t1"], targets=list(targets))
        whole = Tree(new.outcome, Manifests({"t1": only}, {}), [(only, "sm_103a")])
        return bench.judge(side(OLD), whole, pinned).notes()

    gone = accept(0.01, new="b-gone")
    assert notes(gone) == ["stale: t1 has an accepted regression of time to build b-gone, which is not here any more"]
    assert notes(accept(0.01)) == []
    assert notes(gone, side(THEN)) == []  # it is still taken off what was lost since the pinned commit
    assert len(notes(gone, side(THEN, made=version(accept=[gone])))) == 1
    assert notes(gone, targets=("sm_103a", "sm_90a")) == []  # it may be about the other one, which was not built


# ── the machine ──


@pytest.mark.parametrize(
    ("now_ms", "control_ms", "moved"),
    [
        (1.02, 1.02, (math.log(1.02), math.log(1.02))),
        (1.02, 1.0, (math.log(1.02), 0.0)),
        (1.0, 0.98, (0.0, -math.log(0.98))),
    ],
)
def test_whether_the_machine_moved(now_ms: float, control_ms: float, moved: tuple[float, float]) -> None:
    """The control took 1 ms when the baseline was recorded, and the baseline 1 ms."""

    def with_control(ms: float, control: float) -> Timing:
        interval = Interval(value=ms, low=ms, high=ms)
        return timing(pair("control", "c", math.log(ms / control)), pair("baseline", OLD, 0.0), ms=interval)

    stored, now = Measured("published", [], with_control(1.0, 1.0)), with_control(now_ms, control_ms)
    assert _machine_moved(stored, now) == pytest.approx(moved)
    others: list[dict[str, Any]] = [
        {"machine": "b"},
        {"shape": {"S": 1}},
        {"protocol": 1},
        {"regime": "sustained"},
        {"pairs": []},
    ]
    others.append({"pairs": [replace(now.pairs[0], build="another control")]})
    for other in others:
        assert _machine_moved(stored, replace(now, **other)) is None


# ── looks ──


def test_two_looks_are_pooled() -> None:
    first = timing(pair("baseline", OLD, 0.01), pair("control", "c", 0.0), ms=Interval(value=9.0, low=9.0, high=9.0))
    second = timing(pair("baseline", OLD, 0.02), pair("control", "c", 0.0), events=["power cap"])
    both = pooled(first, second)
    found = both.pair("baseline")
    assert found is not None
    assert found.instances == [*first.pairs[0].instances, *second.pairs[0].instances]
    assert found.time.value == pytest.approx(0.015, abs=1e-6)  # half of each: the Walsh averages' middle lies between
    assert (found.time.low, found.time.high) == pytest.approx((0.01, 0.02), abs=1e-4)
    assert (both.ms.value, both.events, both.launches) == (1.0, ["power cap"], 200)


def test_a_void_look_counts_for_nothing() -> None:
    good, void = against(0.01), replace(against(0.5), void=["thermal"])
    assert pooled(void, good) == good
    assert pooled(good, void) == good
    assert pooled(void, void) == void


def test_looks_at_other_builds_are_not_pooled() -> None:
    other = timing(pair("baseline", "another", 0.02))
    assert pooled(against(0.01), other).pairs == other.pairs


@pytest.mark.parametrize(
    ("comparisons", "budget_s", "instances", "seconds"),
    [(1, 2.0, 10, 2.0), (4, 2.0, 10, 2.0), (5, 2.0, 11, 2.2), (20, 2.0, 13, 2.6), (1, 4.0, 20, 4.0), (1, 1.0, 8, 1.6)],
)
def test_the_protocol_grows_with_the_comparisons(
    comparisons: int, budget_s: float, instances: int, seconds: float
) -> None:
    """0.8 % among 2 looks each: 2^-10 suffices for 4 comparisons. Fewer than eight instances decide nothing."""
    protocol = protocol_for(comparisons, LIMITS, budget_s)
    assert protocol.instances == instances
    assert protocol.budget_s == pytest.approx(seconds)
    assert protocol.quads == Protocol().quads


@pytest.mark.parametrize(
    ("amount", "limit"), [(0.0123456, 0.0124), (0.0120, 0.012), (1.5, 1.5), (1.2345, 1.24), (16, 16), (0, 0), (-1, -1)]
)
def test_room_to_be_measured_again(amount: float, limit: float) -> None:
    assert _up(amount) == pytest.approx(limit, abs=1e-12)
    assert _up(amount) >= amount
