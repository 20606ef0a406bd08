"""What a timing means: what share of the hardware's ability it is. Arithmetic alone, over a timing, a workload and a chip.

Clock-corrected MFU is the share of the tensor cores' FLOPs per clock and SM, so a card that lowers its clock, at its power cap
or cold, does not change it. Times are in ms, clocks in MHz, bandwidth in 10¹² bytes a second; shares are of 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from faperf.chips import Chip, memory_tb_s, path_share
from faperf.operations import Operation, exponentials_of, tiled_by
from faperf.record import Counters, Timing

GROWN, FLAT = 1.5, 1.1
"""Work grown by this much and time by no more than that: the time is not the work's."""

NEAR = 0.05
"""A ratio this close to an expected one is put down to it."""


class Bound(msgspec.Struct, frozen=True):
    """The shortest time in ms that one resource allows, and its share of the measured time."""

    what: str
    ms: float
    share: float


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """What a timing is worth. None where the chip's rates or the clock are not known.

    `mfu` is of the vendor's peak; `corrected_mfu` of what the SMs' tensor cores do in the cycles that passed. `path_share` is the
    most that the kernel's tensor path reaches here, `of_path` the share of that. `padding` is FLOPs done over FLOPs counted.
    `bounds` come with the tightest first; those of the SM are at the measured clock.
    """

    mfu: float | None
    corrected_mfu: float | None
    flops_per_clock_sm: float | None
    path: str
    path_share: float | None
    of_path: float | None
    padding: float
    bounds: list[Bound]


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a version's speed on a target beyond its timing: metrics of that, timings of all workloads, counters."""

    metrics: Metrics | None = None
    timings: list[Timing] = []
    counters: Counters | None = None


def tflops(flops: float, ms: float) -> float:
    return flops / ms / 1e9


def mfu(flops: float, ms: float, peak_tflops: float) -> float:
    """Counted FLOPs over what the peak allows in that time."""
    return tflops(flops, ms) / peak_tflops


def corrected(share: float, peak_mhz: float, measured_mhz: float) -> float:
    """An MFU as it would be had the clock stood where the peak is stated: 58.50 % · 1965 / 1586 = 72.48 %."""
    return share * peak_mhz / measured_mhz


def padding(sizes: Sequence[int], tile: Sequence[int]) -> float:
    """FLOPs done over FLOPs counted where extents are filled up to whole tiles: 16384 in tiles of 320 is 1.015625."""
    return math.prod(-(-size // step) * step / size for size, step in zip(sizes, tile, strict=True))


def sms_of(timing: Timing, flops: float) -> int | None:
    """On how many SMs a timing was taken, from its own figures."""
    if not timing.clock_mhz or not timing.flops_per_clock_sm:
        return None
    return round(flops / (timing.ms.value * 1e3 * timing.clock_mhz * timing.flops_per_clock_sm))


def metrics_of(timing: Timing, operation: Operation, tile: tuple[int, int], path: str, chip: Chip) -> Metrics:
    """What `timing` of a kernel on tensor path `path` is worth on `chip`. `tile` is the manifest's (m, n)."""
    shape, ms = timing.shape, timing.ms.value
    flops = operation.flops(shape)
    rate, per_clock = chip.tensor_flops_per_clock, timing.flops_per_clock_sm
    own = per_clock / rate if per_clock and rate else None
    ceiling = path_share(path, chip.capability)
    return Metrics(
        mfu=mfu(flops, ms, chip.peak_tflops) if chip.peak_tflops else None,
        corrected_mfu=own,
        flops_per_clock_sm=per_clock,
        path=path,
        path_share=ceiling,
        of_path=own / ceiling if own and ceiling else None,
        padding=padding(extents, tile) if (extents := tiled_by(operation, shape)) else 1.0,
        bounds=_bounds(timing, operation, chip, ceiling or 1.0),
    )


def _bounds(timing: Timing, operation: Operation, chip: Chip, ceiling: float) -> list[Bound]:
    """Memory, tensor cores by the kernel's path, special-function units: each as if it alone bound, the tightest first."""
    shape, measured = timing.shape, timing.ms.value
    flops = operation.flops(shape)
    found: dict[str, float] = {}
    bandwidth = memory_tb_s(timing.gpu)
    if bandwidth:
        found["memory"] = operation.bytes(shape) / (bandwidth * 1e9)
    sms = sms_of(timing, flops)
    if sms and timing.clock_mhz:
        cycles_per_ms = sms * timing.clock_mhz * 1e3
        if chip.tensor_flops_per_clock:
            found["tensor cores"] = flops / (ceiling * chip.tensor_flops_per_clock * cycles_per_ms)
        if chip.ex2_per_clock and (exponentials := exponentials_of(operation, shape)):
            found["exponentials"] = exponentials / (chip.ex2_per_clock * cycles_per_ms)
    bounds = [Bound(what, ms, ms / measured) for what, ms in found.items()]
    return sorted(bounds, key=lambda bound: -bound.ms)


def corrected_in(flops: float, sm_cycles: float, sms: int, rate: int | None) -> float | None:
    """The clock-corrected MFU of one launch whose cycles were counted, `rate` FLOPs per clock and SM being the whole."""
    return flops / (sm_cycles * sms * rate) if rate and flops and sm_cycles and sms else None


def flat(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Two (FLOPs, ms) of one kernel between which the work grew and the time did not, the widest apart; None without any.

    Then the time is that of the launch, or of a GPU that is not full.
    """
    ordered = sorted(points)
    pairs = [(a, b) for a in ordered for b in ordered if b[0] >= GROWN * a[0] and b[1] <= FLAT * a[1]]
    return max(pairs, key=lambda pair: pair[1][0] / pair[0][0], default=None)


def activity_meaning(ratio: float, path: str, capability: str, padded: float = 1.0) -> str:
    """What tensor-core activity over clock-corrected MFU says. Both must be of the same launch."""
    ceiling = path_share(path, capability) or 1.0
    if ratio < 1 - NEAR:
        return "under 1: the two are not the same quantity (other launches, other FLOPs counted, or another clock)"
    if padded > 1 and _near(ratio, padded / ceiling):
        return f"the tile's padding ({padded:.4f})" + (f", and {_path_meaning(path, ceiling)}" if ceiling < 1 else "")
    if _near(ratio, 1 / ceiling):
        return _path_meaning(path, ceiling) if ceiling < 1 else "about 1: active cycles do full work"
    if _near(ratio, 2 / ceiling):
        return "about 2: half-filled tiles, as a head dimension of 64 in an MMA 128 wide"
    if ratio > 1:
        return f"{ratio:.2f} times as many active cycles as the work needs, for which no path or tile of it accounts"
    return "about 1: active cycles do full work"


def _path_meaning(path: str, ceiling: float) -> str:
    share = f"1/{ceiling:.2f} = {1 / ceiling:.2f}"
    return f"{path} does {ceiling:.0%} of the tensor cores' work in a cycle that counts as active ({share})"


def _near(ratio: float, expected: float) -> bool:
    return abs(ratio / expected - 1) <= NEAR
