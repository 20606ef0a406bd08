"""The measuring protocol on a simulated card, whose truth is known: drift, throttling, load luck, noise and neighbours.

Magnitudes are those of shared/measurement.md: 0.15 % of luck a placement, 3 % of slow drift, a throttle step of 10 %.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from faperf.device import Block
from faperf.judge import Thresholds, Verdict, judge_time
from faperf.record import Interval, Protocol
from faperf.timing import Ratio, measure

MHZ = 1800.0
LUCK = 0.0015
PROTOCOL = Protocol()
FAST = Protocol(budget_s=0.5, warm_window_s=0.01)
"""For the hundreds of simulated measurements: only what they cost here is less."""


@dataclass
class FakeCard:
    """A card that answers as `true_ms` and its troubles say. `log` has each block as (instance, side, launches).

    Troubles slow the clock, so they leave cycles alone; luck does not. `after` gives how much slower a block runs by which
    side ran before it and which runs now.
    """

    true_ms: Mapping[str, float]
    seed: int = 0
    noise: float = 0.0005
    shared_luck: float = 0.0
    own_luck: float = 0.0
    drift_per_s: float = 0.0
    step_at_s: float = math.inf
    step: float = 0.10
    after: Callable[[str, str], float] = lambda before, now: 0.0
    first_launch: float = 0.0
    quantum_ms: float = 0.0
    flush_ms: float = 0.03
    clock: Callable[[float], float | None] = lambda now: MHZ
    own_clock: Mapping[str, float] = field(default_factory=dict)
    reasons: Callable[[int, str], int] = lambda number, side: 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now = 0.0
        self.before = ""
        self.renewed = 0
        self.log: list[tuple[int, str, int]] = []
        self.blocks: list[Block] = []
        self.luck: dict[str, float] = {}
        self.fresh: set[str] = set()

    def renew(self) -> None:
        self.renewed += 1
        luck = random.Random(f"{self.seed} {self.renewed}")  # the same however many blocks are run
        shared = luck.gauss(0, self.shared_luck)
        self.luck = {side: shared + luck.gauss(0, self.own_luck) for side in self.true_ms}
        self.fresh = set(self.true_ms)

    def block(self, side: str, launches: int) -> Block:
        assert self.renewed, "launched before anything was loaded"
        assert launches >= 1
        slow = (1 + self.drift_per_s * self.now) * (1 + self.step * (self.now >= self.step_at_s))
        slow *= 1 + self.after(self.before, side)
        slow /= self.own_clock.get(side, 1.0)
        clock = self.clock(self.now)
        if clock:
            slow *= MHZ / clock
        ms = self.true_ms[side] * math.exp(self.luck[side] + self.random.gauss(0, self.noise)) * slow
        ms *= 1 + self.first_launch * (side in self.fresh)
        if self.quantum_ms:
            ms = max(1, round(ms / self.quantum_ms)) * self.quantum_ms
        block = Block(
            ms=ms,
            elapsed_s=launches * (ms + self.flush_ms) / 1000,
            clock_mhz=clock and MHZ / (slow / (1 + self.first_launch * (side in self.fresh))),
            reasons=self.reasons(len(self.log), side),
        )
        self.now += block.elapsed_s
        self.before = side
        self.fresh.discard(side)
        self.log.append((self.renewed, side, launches))
        self.blocks.append(block)
        return block

    def timed(self, sides: int, protocol: Protocol = PROTOCOL) -> list[list[tuple[str, Block]]]:
        """The blocks that count, by instance: the last ones of each, after one launch of each side."""
        count = 4 * protocol.quads * (sides - 1)
        instances: list[list[tuple[str, Block]]] = [[] for _ in range(protocol.instances)]
        for (instance, side, _), block in zip(self.log, self.blocks, strict=True):
            instances[instance - 1].append((side, block))
        return [blocks[-count:] for blocks in instances]


def two(change: float = 0.0, ms: float = 0.5, **troubles: Any) -> FakeCard:
    """A candidate that is slower than its parent by `change`."""
    return FakeCard({"new": ms * (1 + change), "old": ms}, **troubles)


def ratio_of(card: FakeCard, protocol: Protocol = PROTOCOL) -> Ratio:
    (ratio,) = measure(card, ["new", "old"], protocol, random.Random(1)).ratios
    return ratio


def verdict_of(ratio: Ratio) -> Verdict:
    time = Interval(value=ratio.time.value, low=ratio.time.low, high=ratio.time.high)
    return judge_time(time, ratio.instances, Thresholds())


# ── what it finds ──


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("change", [-0.01, -0.005, 0.0, 0.005, 0.01, 0.25])
def test_the_true_change_is_found_through_all_troubles(change: float, seed: int) -> None:
    card = two(change, seed=seed, shared_luck=LUCK, drift_per_s=0.015, step_at_s=0.5 + 0.37 * seed, quantum_ms=32e-6)
    ratio = ratio_of(card)
    assert ratio.partner == "old"
    assert ratio.time.value == pytest.approx(math.log1p(change), abs=5e-4)
    assert ratio.time.low <= ratio.time.value <= ratio.time.high
    assert len(ratio.instances) == PROTOCOL.instances


@pytest.mark.parametrize(
    "trouble", [{"drift_per_s": 0.015}, {"drift_per_s": -0.015}, {"step_at_s": 1.1}, {"step_at_s": 0.7}]
)
def test_a_against_a_is_the_same(trouble: dict[str, float]) -> None:
    for seed in range(5):
        ratio = ratio_of(two(seed=seed, shared_luck=LUCK, **trouble))
        assert verdict_of(ratio) is Verdict.SAME, ratio


def test_a_linear_drift_cancels() -> None:
    """3 % in 2 s: what is left is of second order in what passes during a quad."""
    for value in ratio_of(two(noise=0, drift_per_s=0.015)).instances:
        assert abs(value) < 1e-6


@pytest.mark.parametrize("at", [0.3, 0.61, 0.917, 1.5])
def test_a_step_spoils_one_quad_and_no_instance(at: float) -> None:
    for value in ratio_of(two(noise=0, step_at_s=at)).instances:
        assert abs(value) < 1e-6


def test_luck_that_both_sides_share_cancels_and_their_own_does_not() -> None:
    shared, own = ratio_of(two(noise=0, shared_luck=0.01)), ratio_of(two(noise=0, own_luck=0.01))
    assert max(map(abs, shared.instances)) < 1e-9
    assert own.time.high - own.time.low > 0.01


def test_the_first_launch_of_a_module_is_not_timed() -> None:
    assert max(map(abs, ratio_of(two(noise=0, first_launch=50)).instances)) < 1e-9


def test_every_figure_of_a_measurement_by_hand() -> None:
    """Without any trouble: 1 ms and 0.8 ms, launches of 1 ms and 0.8 ms."""
    card = FakeCard({"new": 1.0, "old": 0.8}, noise=0, flush_ms=0)
    found = measure(card, ["new", "old"], PROTOCOL, random.Random(1))
    new, old = found.series
    assert (new.side, old.side) == ("new", "old")
    assert (new.ms.value, new.ms.low, new.ms.high) == (1, 1, 1)
    assert old.ms.value == pytest.approx(0.8)
    assert (new.clock_mhz, new.reasons) == (MHZ, 0)
    blocks = 10 * 4 * 4  # instances, quads, blocks a quad: 12.5 ms each
    assert (new.launches, old.launches) == (blocks // 2 * 12, blocks // 2 * 16)
    assert found.gpu_s == pytest.approx(blocks // 2 * (12 * 0.001 + 16 * 0.0008))
    assert found.ratios[0].time.value == pytest.approx(math.log(1 / 0.8))
    assert found.ratios[0].instances == pytest.approx([math.log(1 / 0.8)] * 10)


def test_one_value_an_instance_however_many_blocks() -> None:
    """Placement luck does not shrink with the number of quads: blocks are not taken for independent."""
    few, many = (
        ratio_of(two(noise=0, own_luck=0.01, seed=3), Protocol(quads=quads, budget_s=0.5)).time for quads in (1, 16)
    )
    assert many.high - many.low == pytest.approx(few.high - few.low)


# ── the order ──


def test_each_partner_has_quads_of_its_own() -> None:
    card = FakeCard({"new": 0.5, "old": 0.5, "control": 0.1})
    measure(card, ["new", "old", "control"], PROTOCOL, random.Random(1))
    for blocks in card.timed(3):
        sides = [side for side, _ in blocks]
        quads = ["".join(side[0] for side in sides[at : at + 4]) for at in range(0, len(sides), 4)]
        assert Counter(quads[:4]) == {"noon": 2, "onno": 2}
        assert Counter(quads[4:]) == {"nccn": 2, "cnnc": 2}


def test_the_order_is_balanced() -> None:
    """Each side begins as often, and follows the other and itself nearly as often: the order within an instance is drawn."""
    card = two()
    measure(card, ["new", "old"], PROTOCOL, random.Random(1))
    begins: Counter[str] = Counter()
    follows: Counter[tuple[str, str]] = Counter()
    for instance in card.timed(2):
        sides = [side for side, _ in instance]
        begins[sides[0]] += 1
        follows.update(pairwise(sides))
    assert begins == {"new": 5, "old": 5}
    assert abs(follows["new", "old"] - follows["old", "new"]) <= 2
    assert abs(follows["new", "new"] - follows["old", "old"]) <= 4
    assert min(follows.values()) >= 20


HUNGRY = 0.003
"""How much slower a block was after the power-hungry control (H200)."""


def test_a_change_of_side_costs_both_nearly_the_same() -> None:
    """A sixteenth of it stays: half of the instances begin with the side that the launch before them was of."""
    ratio = ratio_of(two(noise=0, after=lambda before, now: HUNGRY * (before != now)))
    assert abs(ratio.time.value) < HUNGRY / 15


def after_control(before: str, now: str) -> float:
    return HUNGRY * (before == "control")


def test_a_hungry_control_leaves_the_parents_ratio_alone() -> None:
    card = FakeCard({"new": 0.5, "old": 0.5, "control": 0.1}, noise=0, after=after_control)
    parent, control = measure(card, ["new", "old", "control"], PROTOCOL, random.Random(1)).ratios
    assert parent.partner == "old"
    assert max(map(abs, parent.instances)) < HUNGRY / 10
    # against the hungry one itself half of it stays: the candidate follows it three times in four, it itself once
    assert abs(control.time.value - math.log(5)) <= HUNGRY / 2 + 1e-6


# ── instances and launches ──


@pytest.mark.parametrize("instances", [1, 8, 16])
def test_every_instance_is_loaded_and_placed_anew_once(instances: int) -> None:
    card = two()
    ratio = ratio_of(card, Protocol(instances=instances))
    assert card.renewed == instances
    assert len(ratio.instances) == instances
    for number in range(2, instances + 1):
        blocks = [(side, launches) for instance, side, launches in card.log if instance == number]
        assert blocks[:2] == [("new", 1), ("old", 1)]
        assert len(blocks) == 2 + 4 * PROTOCOL.quads


def test_fewer_than_eight_instances_conclude_nothing() -> None:
    ratio = ratio_of(two(0.25), Protocol(instances=7))
    assert (ratio.time.low, ratio.time.high) == (-math.inf, math.inf)
    assert verdict_of(ratio) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("budget_s", [0.5, 2.0])
@pytest.mark.parametrize("ms", [0.005, 0.02, 0.1, 0.5, 2.0, 3.5])
def test_gpu_time_stays_near_the_budget(ms: float, budget_s: float) -> None:
    found = measure(two(ms=ms), ["new", "old"], Protocol(budget_s=budget_s), random.Random(1))
    assert budget_s / 1.5 < found.gpu_s < budget_s * 1.5


@pytest.mark.parametrize("ms", [5.0, 10.0, 20.0])
def test_gpu_time_of_long_kernels_stays_near_the_default_budget(ms: float) -> None:
    found = measure(two(ms=ms), ["new", "old"], PROTOCOL, random.Random(1))
    assert PROTOCOL.budget_s / 1.5 < found.gpu_s < PROTOCOL.budget_s * 1.5


def test_a_long_kernel_is_launched_once_a_block_at_least() -> None:
    """And two quads an instance; then it costs what it costs: 160 blocks with two partners, the candidate in half of them."""
    card = FakeCard({"new": 100.0, "old": 100.0, "control": 0.1}, noise=0, flush_ms=0)
    found = measure(card, ["new", "old", "control"], PROTOCOL, random.Random(1))
    assert [s.launches for s in found.series[:2]] == [80, 40]
    assert found.gpu_s == pytest.approx(120 * 0.1 + 40 * 0.0125, rel=0.01)


def test_a_slow_and_a_fast_side_get_the_same_time() -> None:
    card = FakeCard({"new": 2.5, "old": 0.05})
    found = measure(card, ["new", "old"], PROTOCOL, random.Random(1))
    spent = {
        side: sum(block.elapsed_s for instance in card.timed(2) for name, block in instance if name == side)
        for side in card.true_ms
    }
    assert spent["new"] == pytest.approx(spent["old"], rel=0.1)
    assert found.gpu_s == pytest.approx(sum(spent.values()))


def test_launches_are_counted_as_they_were_made() -> None:
    card = FakeCard({"new": 0.5, "old": 0.4, "control": 0.1})
    found = measure(card, ["new", "old", "control"], PROTOCOL, random.Random(1))
    for series in found.series:
        timed = {launches for instance, side, launches in card.log if side == series.side and instance == 8} - {1}
        (launches,) = timed
        blocks = sum(name == series.side for instance in card.timed(3) for name, _ in instance)
        assert series.launches == launches * blocks


# ── warming up ──


def steady_after(seconds: float) -> Callable[[float], float]:
    """Down from the boost clock by a fifth, then level."""
    return lambda now: MHZ * (1 + 0.2 * max(0.0, 1 - now / seconds))


def warm_s(card: FakeCard, protocol: Protocol = PROTOCOL) -> float:
    return measure(card, ["new", "old"], protocol, random.Random(1)).warm_s


WINDOWS = 2.1 * PROTOCOL.warm_window_s
"""A window is one round of both sides, or two where the first fell just short of it."""


def test_a_steady_clock_takes_two_windows() -> None:
    assert 2 * PROTOCOL.warm_window_s <= warm_s(two()) < 2 * WINDOWS


def test_what_is_still_warm_takes_one_window_and_what_has_cooled_down_does_not() -> None:
    def spent(steady_mhz: float) -> float:
        return measure(two(), ["new", "old"], PROTOCOL, random.Random(1), steady_mhz).warm_s

    assert PROTOCOL.warm_window_s <= spent(MHZ * 1.005) < WINDOWS
    assert 2 * PROTOCOL.warm_window_s <= spent(MHZ * 1.02) < 2 * WINDOWS


@pytest.mark.parametrize("seconds", [0.4, 0.8])
def test_warms_up_until_the_clock_is_steady(seconds: float) -> None:
    """The clock falls by over 1 % a window until then."""
    spent = warm_s(two(clock=steady_after(seconds)))
    assert seconds - WINDOWS < spent < seconds + 2 * WINDOWS


def test_a_clock_that_never_settles_is_given_up() -> None:
    restless = two(clock=lambda now: MHZ * math.exp(-now / 2))
    assert PROTOCOL.most_warm_s <= warm_s(restless) < PROTOCOL.most_warm_s + WINDOWS


def test_without_a_clock_one_window_is_all_that_can_be_done() -> None:
    spent = warm_s(two(clock=lambda now: None))
    assert PROTOCOL.warm_window_s <= spent < WINDOWS


def test_both_sides_warm_the_card() -> None:
    card = FakeCard({"new": 5.0, "old": 0.05})
    warm_s(card)
    first_instance = [side for instance, side, _ in card.log if instance == 1]
    warm = first_instance[4 : -2 - 4 * PROTOCOL.quads]
    assert len(warm) >= 4
    assert warm == ["new", "old"] * (len(warm) // 2)


def test_launches_are_scaled_to_the_warm_clock() -> None:
    """A kernel that runs at half speed once the card is warm still gets its budget, not twice of it."""
    card = two(clock=lambda now: MHZ if now < 0.02 else MHZ / 2)
    found = measure(card, ["new", "old"], PROTOCOL, random.Random(1))
    assert found.gpu_s == pytest.approx(PROTOCOL.budget_s, rel=0.1)


# ── cycles and reasons ──


def test_cycles_beside_time() -> None:
    """A side that lowers the clock by 2 % takes longer and as many cycles."""
    ratio = ratio_of(two(own_clock={"new": 0.98}))
    assert ratio.time.value == pytest.approx(-math.log(0.98), abs=2e-4)
    assert ratio.cycles is not None
    assert ratio.cycles.value == pytest.approx(0, abs=2e-4)


def test_more_cycles_at_the_same_clock() -> None:
    ratio = ratio_of(two(0.01, drift_per_s=0.015))
    assert ratio.cycles is not None
    assert ratio.cycles.value == pytest.approx(math.log(1.01), abs=2e-4)


def test_clocks_of_the_sides() -> None:
    new, old = measure(two(own_clock={"new": 0.9}), ["new", "old"], PROTOCOL, random.Random(1)).series
    assert new.clock_mhz == pytest.approx(0.9 * MHZ)
    assert old.clock_mhz == pytest.approx(MHZ)


def test_without_a_clock_there_are_no_cycles() -> None:
    found = measure(two(0.01, clock=lambda now: None), ["new", "old"], PROTOCOL, random.Random(1))
    assert [s.clock_mhz for s in found.series] == [None, None]
    assert found.ratios[0].cycles is None
    assert found.ratios[0].time.value == pytest.approx(math.log(1.01), abs=2e-4)


def test_a_clock_that_is_lost_on_the_way_gives_no_cycles() -> None:
    found = measure(two(clock=lambda now: MHZ if now < 1 else None), ["new", "old"], PROTOCOL, random.Random(1))
    assert found.ratios[0].cycles is None
    assert found.series[0].clock_mhz == pytest.approx(MHZ, rel=1e-6)


def test_reasons_are_gathered_by_side() -> None:
    quiet = measure(two(), ["new", "old"], PROTOCOL, random.Random(1))
    assert [s.reasons for s in quiet.series] == [0, 0]
    card = two(
        reasons=lambda number, side: {("new", 0): 0x4, ("new", 1): 0x20, ("old", 0): 0x1}.get((side, number % 2), 0)
    )
    assert [s.reasons for s in measure(card, ["new", "old"], PROTOCOL, random.Random(1)).series] == [0x24, 0x1]


def test_one_block_is_enough_for_a_reason_and_warming_up_does_not_count() -> None:
    """The very last block of all, against all that come before the first that is timed."""
    count = len(logged(two()))
    last = measure(
        two(reasons=lambda number, side: 0x8 * (number == count - 1)), ["new", "old"], PROTOCOL, random.Random(1)
    )
    assert sorted(s.reasons for s in last.series) == [0, 0x8]
    warm = count - 10 * 16 - 9 * 2
    early = measure(two(reasons=lambda number, side: 0x8 * (number < warm)), ["new", "old"], PROTOCOL, random.Random(1))
    assert [s.reasons for s in early.series] == [0, 0]


def logged(card: FakeCard) -> list[tuple[int, str, int]]:
    measure(card, ["new", "old"], PROTOCOL, random.Random(1))
    return card.log


# ── how sure its verdicts are ──


def simulate(change: float, count: int = 200, **troubles: Any) -> Counter[Verdict]:
    """Verdicts of so many measurements, half of them with a throttle step somewhere and all with drift and noise."""
    verdicts: Counter[Verdict] = Counter()
    for seed in range(count):
        step_at_s = random.Random(seed).uniform(0, 1.2)  # half of them after the end
        card = two(change, seed=seed, drift_per_s=0.05, step_at_s=step_at_s, **troubles)
        verdicts[verdict_of(ratio_of(card, FAST))] += 1
    return verdicts


@pytest.mark.parametrize("luck", [{"shared_luck": LUCK}, {"own_luck": LUCK / math.sqrt(2)}], ids=["shared", "own"])
def test_no_false_alarm(luck: dict[str, Any]) -> None:
    """200 times A against A. (No alarm in 200 only says that under 1.5 % are false.)"""
    found = simulate(0.0, **luck)
    assert found[Verdict.SLOWER] == found[Verdict.FASTER] == 0
    assert found[Verdict.SAME] >= 190


@pytest.mark.parametrize(("change", "least"), [(0.005, 190), (-0.005, 190), (0.01, 198), (-0.01, 198)])
def test_a_small_change_is_caught(change: float, least: int) -> None:
    found = simulate(change, shared_luck=LUCK)
    assert found[Verdict.SLOWER if change > 0 else Verdict.FASTER] >= least


def test_half_a_percent_with_luck_of_the_sides_own() -> None:
    """0.15 % on the ratio itself. Ten instances: the interval may leave out one average at each end, so that 99.8 % are caught
    (eight: Φ(0.35 / 0.15)⁸ = 92 %). What is missed is INCONCLUSIVE, never SAME.
    """
    found = simulate(0.005, own_luck=LUCK / math.sqrt(2))
    assert found[Verdict.SLOWER] >= 197
    assert found[Verdict.SLOWER] + found[Verdict.INCONCLUSIVE] == 200


def test_one_percent_with_luck_of_the_sides_own() -> None:
    assert simulate(0.01, own_luck=LUCK / math.sqrt(2))[Verdict.SLOWER] >= 198


@pytest.mark.parametrize("ms", [0.005, 0.02])
def test_the_grain_of_the_timer_raises_no_alarm(ms: float) -> None:
    """Medians of a kernel of 5 µs come in steps of 0.64 %; A and A are rounded alike."""
    verdicts: Counter[Verdict] = Counter()
    for seed in range(40):
        card = two(ms=ms * (1 + 0.01 * random.Random(seed).random()), seed=seed, shared_luck=LUCK, quantum_ms=32e-6)
        verdicts[verdict_of(ratio_of(card, FAST))] += 1
    assert verdicts[Verdict.SLOWER] == verdicts[Verdict.FASTER] == 0


def test_a_clock_that_swings_in_step_with_the_quads_raises_no_alarm() -> None:
    """By 5 % each 50 ms: two periods and more an instance. The order of the quads is drawn anew in each, so these are all
    INCONCLUSIVE or SAME; with a fixed order a third of them were FASTER or SLOWER.
    """
    verdicts: Counter[Verdict] = Counter()
    for seed in range(60):
        phase = random.Random(seed).random()
        card = two(
            seed=seed, shared_luck=LUCK, clock=lambda now, phase=phase: MHZ * (1 - 0.05 * (int(now / 0.05 + phase) % 2))
        )
        verdicts[verdict_of(ratio_of(card))] += 1
    assert verdicts[Verdict.SLOWER] == verdicts[Verdict.FASTER] == 0
