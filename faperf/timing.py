"""The measuring protocol, over an abstract device that can launch a side and stamp a block of launches.

Sides are interleaved in one process: candidate, parent, control, control, parent, candidate — a *quad* in which a linear
drift cancels. An *instance* is a fresh load of every module and a fresh placement of one set of buffers that all sides
share; where the buffers lie can fake a 1 % change that repeats, so the instance, not the block, is the unit of inference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Protocol as Interface

import msgspec

from faperf.device import Block
from faperf.record import Protocol
from faperf.stats import Estimate, estimate, hodges_lehmann


class Device(Interface):
    """What the protocol needs of a device; sides are named."""

    def renew(self) -> None:
        """Load every module anew and place the buffers anew."""

    def block(self, side: str, launches: int) -> Block:
        """Launch `side` so many times, the L2 cache flushed before each, and stamp them."""


class Ratio(msgspec.Struct, frozen=True):
    """How a side's time stands to a partner's: log(side / partner), so above 0 is slower. One value an instance."""

    partner: str
    time: Estimate
    cycles: Estimate | None
    instances: list[float]


class Series(msgspec.Struct, frozen=True):
    """One side's own figures: milliseconds a launch and SM clock, with the interval over instances."""

    side: str
    ms: Estimate
    clock_mhz: float | None
    launches: int
    reasons: int


class Measurement(msgspec.Struct, frozen=True):
    """All sides, and the first one's ratio to each of the others."""

    series: list[Series]
    ratios: list[Ratio]
    warm_s: float
    gpu_s: float


def measure(device: Device, sides: Sequence[str], protocol: Protocol) -> Measurement:
    """Warm up, then run every instance of the protocol. `sides[0]` is the candidate; the others are its partners."""
    device.renew()
    warm_s, seconds_a_launch = _warm_up(device, sides, protocol)
    blocks = protocol.instances * protocol.quads * 2 * len(sides)
    launches = {side: max(1, round(protocol.budget_s / blocks / seconds_a_launch[side])) for side in sides}
    instances: list[list[dict[str, tuple[Block, Block]]]] = []
    for instance in range(protocol.instances):
        if instance:
            device.renew()
        for side in sides:
            device.block(side, 1)  # the first launch of a module pays for loading it
        instances.append([_quad(device, sides, launches) for _ in range(protocol.quads)])
    return Measurement(
        series=[_series(side, instances, launches[side], protocol) for side in sides],
        ratios=[_ratio(sides[0], partner, instances, protocol) for partner in sides[1:]],
        warm_s=warm_s,
        gpu_s=sum(block.elapsed_s for quads in instances for quad in quads for pair in quad.values() for block in pair),
    )


def _warm_up(device: Device, sides: Sequence[str], protocol: Protocol) -> tuple[float, dict[str, float]]:
    """Alternate the sides until the clock is steady. Returns the seconds spent, and each side's seconds a launch."""
    for side in sides:
        device.block(side, 1)
    seconds = {side: device.block(side, 3).elapsed_s / 3 for side in sides}
    spent, before = 0.0, None
    while spent < protocol.most_warm_s:
        clocks, window = [], 0.0
        while window < protocol.warm_window_s:
            for side in sides:
                launches = max(1, round(protocol.warm_window_s / len(sides) / seconds[side]))
                block = device.block(side, launches)
                seconds[side] = block.elapsed_s / launches
                window += block.elapsed_s
                if block.clock_mhz:
                    clocks.append(block.clock_mhz)
        spent += window
        clock = fmean(clocks) if clocks else None
        if clock is None or (before is not None and abs(clock / before - 1) < protocol.warm_tolerance):
            break
        before = clock
    return spent, seconds


def _quad(device: Device, sides: Sequence[str], launches: dict[str, int]) -> dict[str, tuple[Block, Block]]:
    first = {side: device.block(side, launches[side]) for side in sides}
    second = {side: device.block(side, launches[side]) for side in reversed(sides)}
    return {side: (first[side], second[side]) for side in sides}


Instances = Sequence[Sequence[dict[str, tuple[Block, Block]]]]


def _series(side: str, instances: Instances, launches: int, protocol: Protocol) -> Series:
    blocks = [[block for quad in quads for block in quad[side]] for quads in instances]
    clocks = [block.clock_mhz for instance in blocks for block in instance if block.clock_mhz]
    reasons = 0
    for block in (block for instance in blocks for block in instance):
        reasons |= block.reasons
    return Series(
        side=side,
        ms=estimate([median(block.ms for block in instance) for instance in blocks], protocol.confidence),
        clock_mhz=fmean(clocks) if clocks else None,
        launches=launches * sum(len(instance) for instance in blocks),
        reasons=reasons,
    )


def _ratio(side: str, partner: str, instances: Instances, protocol: Protocol) -> Ratio:
    in_time = [hodges_lehmann([_log_ratio(quad, side, partner, _ms) for quad in quads]) for quads in instances]
    clocked = all(block.clock_mhz for quads in instances for q in quads for s in (side, partner) for block in q[s])
    cycles = None
    if clocked:
        values = [hodges_lehmann([_log_ratio(quad, side, partner, _cycles) for quad in quads]) for quads in instances]
        cycles = estimate(values, protocol.confidence)
    return Ratio(partner, estimate(in_time, protocol.confidence), cycles, in_time)


def _ms(block: Block) -> float:
    return block.ms


def _cycles(block: Block) -> float:
    return block.ms * (block.clock_mhz or math.nan)


def _log_ratio(quad: dict[str, tuple[Block, Block]], side: str, partner: str, of: Callable[[Block], float]) -> float:
    a, b = quad[side], quad[partner]
    return fmean(math.log(of(block)) for block in a) - fmean(math.log(of(block)) for block in b)
