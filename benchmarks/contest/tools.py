"""The tools that play in this process: triton's do_bench, cupyx's benchmark, and faperf; and the weather they play in."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from benchmarks.contest.kernels import Kernel, Loaded, placed
from benchmarks.contest.plan import CHANGES, Decision, Pair, Reading, State, Stopwatch
from benchmarks.contest.trials import customary
from faperf.device import Block, Card
from faperf.judge import Thresholds, Verdict, judge_time
from faperf.record import Interval, Protocol
from faperf.timing import measure

A, B, CONTROL = "A", "B", "control"
CUPYX_S = 0.3
"""cupyx's own default is 10,000 launches, which take some seconds; this is about what do_bench and NVBench take."""


class Weather:
    """Brings the card into a state: idle after a pause, hot right after a burn at the power cap, or cooling behind it."""

    REST_S, BURN_S, PAUSE_S = 0.6, 0.3, 0.2

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        factor = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)  # zeros would not draw the power
        self._operands = factor, factor.T.contiguous(), torch.empty_like(factor)

    def hold(self, state: State) -> None:
        if state is State.IDLE:
            time.sleep(self.REST_S)
            return
        self._burn()
        if state is State.COOLING:
            time.sleep(self.PAUSE_S)

    def _burn(self) -> None:
        a, b, out = self._operands
        end = time.perf_counter() + self.BURN_S
        while time.perf_counter() < end:
            for _ in range(10):
                self._torch.matmul(a, b, out=out)
            self._torch.cuda.synchronize()


def one_figure(
    name: str, loaded: dict[str, Loaded], weather: Weather, ms: Callable[[Callable[[], None]], float]
) -> Stopwatch:
    """A tool that gives one figure for a launch, judged by the customary rule."""

    def read(kernel: str) -> Reading:
        begin = time.perf_counter()
        figure = ms(loaded[kernel].launch)
        return Reading(time.perf_counter() - begin, figure)

    def compare(a: float, b: float) -> list[tuple[str, float, Verdict, dict[str, Any]]]:
        return [(name, b / a - 1, customary(b / a - 1), {"a_ms": a, "b_ms": b})]

    # its first use compiles or loads something
    return Stopwatch((name,), weather.hold, read, compare, cache(lambda: ms(next(iter(loaded.values())).launch)))


def by_do_bench(launch: Callable[[], None]) -> float:
    """By its defaults, the median as its tutorials take it. Milliseconds."""
    from triton.testing import do_bench

    return float(do_bench(launch, return_mode="median"))


def by_cupyx(launch: Callable[[], None]) -> float:
    """The median GPU time. Milliseconds."""
    import numpy as np
    from cupyx.profiler import benchmark

    return float(np.median(benchmark(launch, max_duration=CUPYX_S).gpu_times) * 1000)


class Faperf:
    """Its own protocol and verdict: A, B and the control interleaved, in a state of the card that varies between rounds."""

    methods: tuple[str, ...] = ("faperf",)

    def __init__(self, kernels: dict[str, Kernel], card: Card, weather: Weather) -> None:
        self._kernels, self._card, self._weather = kernels, card, weather
        self._random = random.Random(1)

    def trial(self, pair: Pair, number: int) -> list[Decision]:
        state = CHANGES[number % len(CHANGES)][0]
        self._weather.hold(state)
        begin = time.perf_counter()
        sides = {A: self._kernels[pair.a], B: self._kernels[pair.b]}
        found = measure(_Interleaved(sides, self._card, self._random), [B, A, CONTROL], Protocol(), self._random)
        seconds = time.perf_counter() - begin
        ratio = found.ratios[0]
        interval = Interval(value=ratio.time.value, low=ratio.time.low, high=ratio.time.high)
        verdict = judge_time(interval, ratio.instances, Thresholds())
        b, a, _ = (series.ms.value for series in found.series)
        raw = {"a_ms": a, "b_ms": b, "low": interval.low, "high": interval.high, "instances": ratio.instances}
        return [Decision("faperf", math.expm1(interval.value), verdict, [state], seconds, raw)]


class _Interleaved:
    """The protocol's device: as in the worker, all modules loaded anew and the shared buffers placed anew an instance."""

    def __init__(self, sides: dict[str, Kernel], card: Card, spread: random.Random) -> None:
        self._sides, self._card, self._random = sides, card, spread
        self._loaded: dict[str, Loaded] = {}
        self._control: list[Any] = []

    def renew(self) -> None:
        self._loaded = {}
        arena = placed(self._sides[A], self._random)
        self._loaded = {side: Loaded(kernel, arena) for side, kernel in self._sides.items()}
        self._control = self._card.control()
        self._card.wait()

    def block(self, side: str, launches: int) -> Block:
        return self._card.block(self._control if side == CONTROL else self._loaded[side].bound, launches)
