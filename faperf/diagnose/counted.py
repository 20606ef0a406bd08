"""Causes that the hardware's counters show: of one side, and between two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from faperf.chips import chip_of
from faperf.diagnose.facts import MOST_PLACES, Cause, Effect, Facts, Where
from faperf.judge import Thresholds
from faperf.listing import Place
from faperf.metrics import activity_meaning, corrected_in

ISSUING = ("selected", "not_selected")
"""Reasons of warps that do not wait: they issue, or could."""
LEAST_SHIFT = 0.05
"""Of where a side's warps are; what moves by less says nothing."""


def counted(new: Facts, old: Facts | None, limits: Thresholds) -> Iterator[Cause]:
    """What the hardware counted."""
    seen, chip = new.counters, chip_of(new.entry.target)
    if seen is None or chip is None:
        return
    waits = {name: n for name, n in seen.stalls.items() if name not in ISSUING}
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
    "branch_resolving": "a branch to be resolved",
    "lg_throttle": "room in the queue to local and global memory (LG throttle)",
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
    "branch_resolving": "Fewer branches in the loop, and none that a part of a warp takes.",
    "lg_throttle": "Fewer and wider accesses to global memory; none to local memory (spills).",
    "barrier": "Split the barrier by role, or balance what the warps do between two of them.",
    "wait": "Interleave independent work: two rows or two tiles a warp.",
    "mio_throttle": "Fewer shared-memory instructions: wider ones, or operands by descriptor.",
    "math_pipe_throttle": "The pipe binds: do less there, or move exponentials to polynomials.",
    "gmma": "Overlap: issue the next product before waiting for this one.",
}


def waits(new: Facts, old: Facts, limits: Thresholds) -> Iterator[Cause]:
    """The reason for which warps wait most more, and the one for which they wait most less, in launches counted alike."""
    seen, before = new.counters, old.counters
    if seen is None or before is None or (seen.shape, seen.gpu) != (before.shape, before.gpu):
        return
    total, was = sum(seen.stalls.values()), sum(before.stalls.values())
    shifts = {
        r: seen.stalls.get(r, 0.0) - before.stalls.get(r, 0.0) for r in {*seen.stalls, *before.stalls} - {*ISSUING}
    }
    if not shifts or not was:
        return
    for reason, effect in (
        (min(shifts, key=lambda r: shifts[r]), Effect.GAIN),
        (max(shifts, key=lambda r: shifts[r]), Effect.COST),
    ):
        shift = shifts[reason] if effect is Effect.COST else -shifts[reason]
        if shift < LEAST_SHIFT * was:
            continue
        words = STALLS.get(reason, reason.replace("_", " "))
        evidence = [
            f"{before.stalls.get(reason, 0.0):.2f} → {seen.stalls.get(reason, 0.0):.2f} warps per issued instruction, of "
            f"{was:.2f} → {total:.2f} in all (ncu)"
        ]
        if before.tensor_active and seen.tensor_active:
            evidence.append(f"TCA {before.tensor_active:.1%} → {seen.tensor_active:.1%}")
        hot = [(h.offset, h.samples, h.reason) for h in seen.hot if h.reason == reason]
        yield Cause(
            name=f"{'more' if effect is Effect.COST else 'less'} waiting: {reason.replace('_', ' ')}",
            effect=effect,
            weight=min(0.5, shift / was),
            claim=f"warps wait {'longer' if effect is Effect.COST else 'less'} for {words}",
            evidence=evidence,
            advice=STALL_ADVICE.get(reason, "") if effect is Effect.COST else "",
            places=_hot_places(new, hot) if effect is Effect.COST else [],
        )
