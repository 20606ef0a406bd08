"""Limits that a version has by itself: the launch, power, its path, a bound, what the hardware counted."""

from __future__ import annotations

from collections.abc import Iterator

from faperf.chips import chip_of
from faperf.diagnose.compiler import own_spills
from faperf.diagnose.counted import counted
from faperf.diagnose.facts import Cause, Effect, Facts
from faperf.judge import Thresholds
from faperf.metrics import flat


def _launch_bound(new: Facts, old: Facts | None, limits: Thresholds) -> Iterator[Cause]:
    found = flat([(t.tflops * t.ms.value, t.ms.value) for t in new.timings])
    if found:
        (small, before), (large, after) = found
        yield Cause(
            name="launch-bound",
            effect=Effect.LIMIT,
            weight=0.9,
            claim="the time is that of a launch, or of a GPU that is not full: it does not grow with the work",
            evidence=[
                f"{large / small:.1f} times the work takes {after / before:.2f} times as long ({before:.4f} → {after:.4f} ms)"
            ],
            advice="Measure where the GPU is full. Fewer launches, a graph, or more CTAs for small shapes (split-KV).",
        )


def _power(new: Facts, old: Facts | None, limits: Thresholds) -> Iterator[Cause]:
    chip = chip_of(new.entry.target)
    if new.timing and "power cap" in new.timing.events and new.timing.clock_mhz:
        at = f"SM clock {new.timing.clock_mhz:.0f} MHz while measured"
        peak = f", where the peak is stated at {chip.peak_mhz:.0f}" if chip and chip.peak_mhz else ""
        watts = f"; at most {new.timing.power_w:.0f} W" if new.timing.power_w else ""
        yield Cause(
            name="power-capped",
            effect=Effect.LIMIT,
            weight=0.5,
            claim="the card lowers its clock to stay within its power limit",
            evidence=[f"clock event: power cap{watts}", at + peak],
            advice="Judge by clock-corrected MFU or FLOPs per clock; time follows power here.",
        )


def _ceilings(new: Facts, old: Facts | None, limits: Thresholds) -> Iterator[Cause]:
    """The path's ceiling, padding, and the bound that is nearly met."""
    found = new.metrics
    if found is None:
        return
    if found.path_share and found.path_share < 1 and found.of_path:
        yield Cause(
            name="path ceiling",
            effect=Effect.LIMIT,
            weight=0.8,
            claim=f"{found.path} cannot go beyond {found.path_share:.0%} of this chip's tensor rate",
            evidence=[f"clock-corrected MFU {found.corrected_mfu:.1%}, {found.of_path:.1%} of that ceiling"],
            advice="The chip's own instruction has the whole rate: wgmma on Hopper, tcgen05.mma on Blackwell.",
        )
    if found.padding >= 1.02:
        yield Cause(
            name="padding",
            effect=Effect.LIMIT,
            weight=min(0.9, found.padding - 1),
            claim="tiles that are not full are computed all the same",
            evidence=[f"{found.padding:.4f} times the counted FLOPs, by the tile and the workload's extents"],
            advice="A tile that divides the extents, or a smaller one for the last rows.",
        )
    if found.bounds and found.bounds[0].share >= 0.7:
        bound = found.bounds[0]
        yield Cause(
            name="at a bound",
            effect=Effect.LIMIT,
            weight=bound.share,
            claim=f"{bound.what} alone would need {bound.share:.0%} of the time",
            evidence=[f"no faster than {bound.ms:.4f} ms by {bound.what}"],
            advice="Little is left here by overlapping; the work of that unit itself has to shrink.",
        )


ALONE = (own_spills, _launch_bound, _power, _ceilings, counted)
