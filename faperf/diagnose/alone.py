"""Limits that a version has by itself: the launch, power, its path, a bound, what the hardware counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from faperf.chips import chip_of
from faperf.diagnose.compiler import own_spills
from faperf.diagnose.facts import MOST_PLACES, Cause, Effect, Facts, Where
from faperf.judge import Thresholds
from faperf.listing import Place
from faperf.metrics import activity_meaning, corrected_in, flat


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


def _counted(new: Facts, old: Facts | None, limits: Thresholds) -> Iterator[Cause]:
    """What the hardware counted."""
    seen, chip = new.counters, chip_of(new.entry.target)
    if seen is None or chip is None:
        return
    waits = {name: n for name, n in seen.stalls.items() if name not in ("selected", "not_selected")}
    total = sum(seen.stalls.values())
    if waits and total:
        reason = max(waits, key=lambda name: waits[name])
        share = waits[reason] / total
        hot = [h for h in seen.hot if h.reason == reason]
        yield Cause(
            name=f"stalls: {reason.replace('_', ' ')}",
            effect=Effect.LIMIT,
            weight=share,
            claim=f"warps wait most for {STALLS.get(reason, reason.replace('_', ' '))}",
            evidence=[f"{waits[reason]:.2f} warps per issued instruction, {share:.0%} of where warps are (ncu)"],
            advice=STALL_ADVICE.get(reason, ""),
            places=_hot_places(new, [(h.offset, h.samples, h.reason) for h in hot or seen.hot]),
        )
    if seen.shared_pipe and seen.shared_pipe >= 0.65:
        yield Cause(
            name="shared-memory bandwidth",
            effect=Effect.LIMIT,
            weight=seen.shared_pipe,
            claim="the load-store data pipe, which serves shared memory, is nearly full",
            evidence=[f"{seen.shared_pipe:.0%} of its peak (ncu, l1tex data pipe)"],
            advice="Let each warp take more rows, so that K and V are read less often; or wgmma, which reads operands itself.",
        )
    if seen.local_bytes:
        yield Cause(
            name="local-memory traffic",
            effect=Effect.LIMIT,
            weight=0.4,
            claim="values go through local memory while it runs",
            evidence=[f"{seen.local_bytes / 2**20:.1f} MiB to and from local memory in one launch (ncu)"],
        )
    own = corrected_in(new.counted_flops, seen.sm_cycles, seen.sms, chip.tensor_flops_per_clock)
    if seen.tensor_active and own:
        ratio = seen.tensor_active / own
        padded = new.metrics.padding if new.metrics else 1.0
        yield Cause(
            name="tensor-core activity",
            effect=Effect.LIMIT,
            weight=0.3,
            claim=activity_meaning(ratio, new.kernel.path, chip.capability, padded),
            evidence=[f"TCA {seen.tensor_active:.1%}, corrected MFU of that launch {own:.1%}: ratio {ratio:.2f} (ncu)"],
        )


def _hot_places(new: Facts, hot: Sequence[tuple[int, int, str]]) -> list[Where]:
    at = {line.address: line for line in new.lines}
    samples: dict[Place, tuple[int, str]] = {}
    for offset, count, reason in hot:
        if (line := at.get(offset)) and (place := line.place_in(new.source)):
            samples[place] = (samples.get(place, (0, ""))[0] + count, reason)
    ordered = sorted(samples.items(), key=lambda item: -item[1][0])[:MOST_PLACES]
    return [Where(p, f"{n} samples, mostly {reason.replace('_', ' ')}", new.words(p)) for p, (n, reason) in ordered]


STALLS = {
    "long_scoreboard": "L1, global, local or tensor memory to answer (long scoreboard)",
    "short_scoreboard": "shared memory or the special-function unit (short scoreboard)",
    "barrier": "other warps at a barrier",
    "wait": "the fixed latency of their own last instruction (wait)",
    "mio_throttle": "room in the queue to shared memory and special functions (MIO throttle)",
    "math_pipe_throttle": "an arithmetic pipe that is busy",
    "gmma": "a wgmma to finish",
    "sleeping": "the end of their sleep",
    "no_instruction": "instructions to be fetched",
    "dispatch_stall": "the dispatcher",
}
STALL_ADVICE = {
    "long_scoreboard": "Load further ahead: another stage, or more warps to cover the wait.",
    "short_scoreboard": "Fewer or wider shared-memory reads; spread MUFU between the matrix products.",
    "barrier": "Split the barrier by role, or balance what the warps do between two of them.",
    "wait": "Interleave independent work: two rows or two tiles a warp.",
    "mio_throttle": "Fewer shared-memory instructions: wider ones, or operands by descriptor.",
    "math_pipe_throttle": "The pipe binds: do less there, or move exponentials to polynomials.",
    "gmma": "Overlap: issue the next product before waiting for this one.",
}

ALONE = (own_spills, _launch_bound, _power, _ceilings, _counted)
