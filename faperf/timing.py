"""The measuring protocol, over an abstract device that can launch a side and stamp a block of launches.

Sides are interleaved in one process, each partner with the candidate in *quads* of four blocks, A B B A and B A A B, half of each
in an order drawn anew for every instance: a linear drift cancels, each side is as often the neighbour of the other, and a clock
that swings in step with the blocks cannot pass for a difference. (One row of three, A B C C B A, was tried: the
side beside the power-hungry control came out 0.3 % slower than itself.) An *instance* is a fresh load of every module and a
fresh placement of one set of buffers that all sides share; where the buffers lie can fake a 1 % change that repeats, so the
instance, not the block, is the unit of inference.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Protocol as Interface

import msgspec

from faperf.device import Block
from faperf.ranksum import Estimate
from faperf.record import Protocol
from faperf.stats import estimate, hodges_lehmann


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
    steady_mhz: float | None


Quad = tuple[list[Block], list[Block]]
"""The two blocks of the candidate, and the two of a partner."""

Instance = dict[str, list[Quad]]
"""The quads of one instance, by partner."""


def measure(
    device: Device, sides: Sequence[str], protocol: Protocol, draw: random.Random, steady_mhz: float | None = None
) -> Measurement:
    """Warm up, then run every instance of the protocol. `sides[0]` is the candidate; the others are its partners.

    `draw` gives the order of the quads. `steady_mhz` is the clock of a measurement that ended just now on the same card: what
    is still as warm need not warm twice.
    """
    candidate, *partners = sides
    device.renew()
    warm_s, steady_mhz, seconds_a_launch = _warm_up(device, sides, protocol, steady_mhz)
    quads = _quads_within_budget(protocol, len(partners), max(seconds_a_launch.values()))
    blocks = 4 * protocol.instances * quads * len(partners)
    launches = {side: max(1, round(protocol.budget_s / blocks / seconds_a_launch[side])) for side in sides}
    instances: list[Instance] = []
    for number in range(protocol.instances):
        if number:
            device.renew()
        for side in sides:
            device.block(side, 1)  # the first launch of a module pays for loading it
        instance: Instance = {partner: [] for partner in partners}
        for partner in partners:  # one after another: a change of partner is a change of power
            for mirrored in _orientations(quads, first=number % 2 == 1, order=draw):
                instance[partner].append(_quad(device, candidate, partner, launches, mirrored=mirrored))
        instances.append(instance)
    return Measurement(
        series=[_series(side, candidate, instances, launches[side], protocol) for side in sides],
        ratios=[_ratio(partner, instances, protocol) for partner in partners],
        warm_s=warm_s,
        steady_mhz=steady_mhz,
        gpu_s=sum(
            b.elapsed_s for i in instances for quads in i.values() for quad in quads for side in quad for b in side
        ),
    )


def _quads_within_budget(protocol: Protocol, partners: int, seconds: float) -> int:
    """The protocol's quads, or fewer, but two, where a single launch a block is already too much for the budget."""
    affordable = int(protocol.budget_s / (4 * protocol.instances * partners * seconds))
    return min(protocol.quads, max(2, affordable // 2 * 2))


def _orientations(quads: int, *, first: bool, order: random.Random) -> list[bool]:
    """Which quads of an instance are mirrored: half of them, in a drawn order behind the first, which alternates."""
    rest = [n % 2 == 1 for n in range(quads)]
    rest.remove(first) if first in rest else rest.pop()
    return [first, *order.sample(rest, len(rest))]


def _warm_up(
    device: Device, sides: Sequence[str], protocol: Protocol, before: float | None
) -> tuple[float, float | None, dict[str, float]]:
    """Alternate the sides until the clock is steady: as it was a window `before`.

    Returns the seconds spent, the clock in MHz, and each side's seconds a launch.
    """
    for side in sides:
        device.block(side, 1)
    seconds = {side: device.block(side, 3).elapsed_s / 3 for side in sides}
    spent, clock = 0.0, before
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
    return spent, clock, seconds


def _quad(device: Device, candidate: str, partner: str, launches: dict[str, int], *, mirrored: bool) -> Quad:
    order = (candidate, partner, partner, candidate)
    blocks: dict[str, list[Block]] = {candidate: [], partner: []}
    for side in (partner, candidate, candidate, partner) if mirrored else order:
        blocks[side].append(device.block(side, launches[side]))
    return blocks[candidate], blocks[partner]


def _series(side: str, candidate: str, instances: Sequence[Instance], launches: int, protocol: Protocol) -> Series:
    blocks = [_blocks_of(side, candidate, instance) for instance in instances]
    clocks = [block.clock_mhz for own in blocks for block in own if block.clock_mhz]
    reasons = 0
    for block in (block for own in blocks for block in own):
        reasons |= block.reasons
    return Series(
        side=side,
        ms=estimate([median(block.ms for block in own) for own in blocks], protocol.confidence),
        clock_mhz=fmean(clocks) if clocks else None,
        launches=launches * sum(len(own) for own in blocks),
        reasons=reasons,
    )


def _blocks_of(side: str, candidate: str, instance: Instance) -> list[Block]:
    if side == candidate:
        return [block for quads in instance.values() for own, _ in quads for block in own]
    return [block for _, theirs in instance[side] for block in theirs]


def _ratio(partner: str, instances: Sequence[Instance], protocol: Protocol) -> Ratio:
    quads = [instance[partner] for instance in instances]
    in_time = [hodges_lehmann([_log_ratio(quad, _ms) for quad in own]) for own in quads]
    cycles = None
    if all(block.clock_mhz for own in quads for quad in own for side in quad for block in side):
        in_cycles = [hodges_lehmann([_log_ratio(quad, _cycles) for quad in own]) for own in quads]
        cycles = estimate(in_cycles, protocol.confidence)
    return Ratio(partner, estimate(in_time, protocol.confidence), cycles, in_time)


def _ms(block: Block) -> float:
    return block.ms


def _cycles(block: Block) -> float:
    return block.ms * (block.clock_mhz or math.nan)


def _log_ratio(quad: Quad, of: Callable[[Block], float]) -> float:
    own, theirs = quad
    return fmean(math.log(of(block)) for block in own) - fmean(math.log(of(block)) for block in theirs)
