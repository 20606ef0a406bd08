"""Causes that two sides' facts show: work, uniformity, path, residency, precision, clock."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from faperf.chips import path_generation
from faperf.diagnose.compiler import block_of_ld_red, messages, spill_evidence, spills, toolchain
from faperf.diagnose.counted import waits
from faperf.diagnose.facts import Cause, Effect, Facts
from faperf.judge import Rule, Severity, Thresholds, compare_static, less_accurate
from faperf.listing import Line
from faperf.record import KernelFacts


def work_twice(new: Facts, old: Facts, limits: Thresholds) -> Iterator[Cause]:
    """Tensor work for a tile grew: another loop has it too, or the counters say that more FLOPs were done than counted."""
    path = new.kernel.path.split("+")[-1]
    if not path or path_generation(new.kernel.path) != path_generation(old.kernel.path):
        return
    outside, before = _outside(new.kernel, path), _outside(old.kernel, path)
    # A loop of tensor instructions with exponentials of its own may be the same code for another warpgroup.
    scores_alone = outside > before and not _outside(new.kernel, "MUFU")
    done, did = _done(new), _done(old)
    counted = done is not None and done > 1.2 and (did is None or done > 1.2 * did)
    if not (scores_alone or counted):
        return
    total, was = (sum(side.kernel.opcodes.get(path, [])) for side in (new, old))
    evidence = []
    if scores_alone:
        evidence.append(f"{path} {was} → {total}: {total - outside} in the main loop, {outside} in another")
        evidence.append(
            "that other loop has no MUFU: it computes scores and no probabilities, so QK is done there and again"
        )
    shapes = [shape for shape, n in new.kernel.mma_shapes.items() if n > old.kernel.mma_shapes.get(shape, 0) > 0]
    evidence += [f"{s}: {old.kernel.mma_shapes[s]} → {new.kernel.mma_shapes[s]}" for s in shapes]
    if counted:
        evidence.append(
            f"counters: {done:.2f} times the counted FLOPs were done" + (f" ({did:.2f} before)" if did else "")
        )
    evidence += _memory_evidence(new, old)
    yield Cause(
        name="matrix work done twice",
        effect=Effect.COST,
        weight=0.9,
        claim="QK is computed twice" if scores_alone else "a part of the matrix work is done more than once",
        evidence=evidence,
        advice="Recomputing does not hide a wait. Keep one pass and rescale, or rescale only when the maximum grew.",
        places=new.where(
            [line for line in new.lines if line.name == path and not line.main],
            lambda n: f"{n} {path} outside of the main loop",
        ),
    )


def _outside(kernel: KernelFacts, opcode: str) -> int:
    """How many stand in loops, but not in the main loop."""
    return sum(kernel.opcodes.get(opcode, [])[1:]) - kernel.main_loop.get(opcode, 0)


def _done(side: Facts) -> float | None:
    """FLOPs that the tensor paths did, over those counted."""
    total = sum(side.counters.path_flops.values()) if side.counters else 0.0
    return total / side.counted_flops if total and side.counted_flops else None


def _memory_evidence(new: Facts, old: Facts) -> list[str]:
    """Shared memory that grew, and CTAs per SM where that took one."""
    smem, was = new.entry.smem, old.entry.smem
    evidence = [f"shared memory {was / 1024:.1f} → {smem / 1024:.1f} KiB"] if smem > 1.25 * was else []
    now, before = new.entry.ctas_per_sm, old.entry.ctas_per_sm
    if now is not None and before is not None and now < before:
        evidence.append(f"CTAs per SM {before} → {now} (limited by {new.entry.limiter})")
    return evidence


UNIFORM = {
    "BSSY": "the warp no longer runs as one: it splits and meets again more often",
    "R2UR": "values that were uniform to the warp go through general registers",
}


UNIFORM_ADVICE = {
    "BSSY": "Let every lane wait on the barrier, or give the waiting to a warp of its own; keep loop state uniform.",
    "R2UR": "Derive addresses at these lines from what the whole warp shares (block index, constants, loop counter).",
}


def uniformity(new: Facts, old: Facts, limits: Thresholds) -> Iterator[Cause]:
    """R2UR and BSSY grown in the main loop: what was one value a warp is one a thread."""
    counts = {name: (old.kernel.main_loop.get(name, 0), new.kernel.main_loop.get(name, 0)) for name in UNIFORM}
    grown = {
        name: pair
        for name, pair in counts.items()
        if pair[1] >= limits.uniformity_factor * pair[0] and pair[1] - pair[0] >= limits.uniformity_least
    }
    twice = _outside(new.kernel, new.kernel.path.split("+")[-1]) > 0  # a loop more has its own
    if not grown:
        return
    evidence = [f"{name} in the main loop {a} → {b}" for name, (a, b) in counts.items() if b > a]
    more = {"WARPSYNC": "warps are brought together", "SHFL": "lanes pass values", "VOTE": "lanes vote"}
    evidence += [f"{name} {a} → {b}: {more[name]}" for name, a, b in _grown(new, old, *more)]
    registers = new.kernel.registers - old.kernel.registers
    if registers > 0:
        evidence.append(f"registers {old.kernel.registers} → {new.kernel.registers} of {new.kernel.register_cap}")
    both = len(grown) == 2
    lines = [line for line in new.lines if line.main and line.name in grown]
    names = "/".join(grown)
    yield Cause(
        name="uniformity lost",
        effect=Effect.COST,
        weight=0.9 if both and registers > 0 else 0.8 if both else 0.4 if twice else 0.6,
        claim=" and ".join(UNIFORM[name] for name in grown),
        evidence=evidence,
        advice=UNIFORM_ADVICE["BSSY" if "BSSY" in grown else "R2UR"],
        places=new.where(lines, lambda n: f"{n} {names}"),
    )


def _either(
    gain: bool, better: tuple[str, str], worse: tuple[str, str], *, weight: float, evidence: list[str], advice: str
) -> Cause:
    """A cause by its name and claim, whichever way it went; `advice` is for what got worse."""
    name, claim = better if gain else worse
    effect, advice = (Effect.GAIN, "") if gain else (Effect.COST, advice)
    return Cause(name=name, effect=effect, weight=weight, claim=claim, evidence=evidence, advice=advice)


def path(new: Facts, old: Facts, limits: Thresholds) -> Iterator[Cause]:
    """The tensor path's generation, up or down, and MMA shapes that shrank."""
    for finding in compare_static(old.build, old.entry, new.build, new.entry, limits, same_version=False):
        if finding.rule is Rule.TENSOR_PATH:
            yield _either(
                finding.severity is Severity.GAIN,
                ("newer tensor path", "the matrix products take a newer path"),
                ("older tensor path", "the matrix products take an older, slower path"),
                weight=1.0,
                evidence=[finding.text],
                advice="Issue the products by the chip's own instruction: wgmma on Hopper, tcgen05.mma on Blackwell.",
            )
        elif finding.rule is Rule.MMA_SHAPE:
            yield Cause(
                name="smaller MMA",
                effect=Effect.COST,
                weight=0.7,
                claim="each MMA does less, so more are issued and operands are read more often",
                evidence=[finding.text],
                advice="Keep the shape of the parent, or check that the larger tile's registers and shared memory fit.",
            )


def partly(new: Facts, old: Facts, limits: Thresholds) -> Iterator[Cause]:
    """A part of the matrix work took a newer path while the oldest one stays; the copies took TMA."""
    paths, before = (set(side.kernel.path.split("+")) - {""} for side in (new, old))
    newest, was = (max((path_generation(name) for name in names), default=0) for names in (paths, before))
    if newest > was > 0 and path_generation(new.kernel.path) == path_generation(old.kernel.path):
        counts = {
            name: [sum(side.kernel.opcodes.get(name, [])) for side in (old, new)] for name in sorted(paths | before)
        }
        yield Cause(
            name="partly newer tensor path",
            effect=Effect.GAIN,
            weight=0.8,
            claim="a part of the matrix products takes a newer path",
            evidence=[f"{name} {a} → {b}" for name, (a, b) in counts.items()],
        )
    asynchronous, bulk = ([side.kernel.main_loop.get(name, 0) for side in (old, new)] for name in ("LDGSTS", "UTMALDG"))
    if asynchronous[0] and not asynchronous[1] and bulk[1] > bulk[0]:
        yield Cause(
            name="copies by TMA",
            effect=Effect.GAIN,
            weight=0.5,
            claim="one thread's TMA loads do what every thread's cp.async did, addresses included",
            evidence=[f"LDGSTS in the main loop {asynchronous[0]} → 0, UTMALDG {bulk[0]} → {bulk[1]}"],
        )


def shared_traffic(new: Facts, old: Facts, limits: Thresholds) -> Iterator[Cause]:
    """More loads and stores of shared memory in the main loop."""
    counts = {
        name: [side.kernel.main_loop.get(name, 0) for side in (old, new)] for name in ("LDS", "STS", "LDSM", "STSM")
    }
    before, now = (sum(pair[n] for pair in counts.values()) for n in (0, 1))
    if now >= 2 * before and now - before >= 16:
        lines = [line for line in new.lines if line.main and line.name in counts]
        yield Cause(
            name="more shared-memory traffic",
            effect=Effect.COST,
            weight=0.6,
            claim="the main loop reads and writes more of shared memory",
            evidence=[f"{name} in the main loop {a} → {b}" for name, (a, b) in counts.items() if a != b],
            advice="Keep what every tile touches in registers or tensor memory, or touch it less often.",
            places=new.where(lines, lambda n: f"{n} shared-memory instructions"),
        )


def ctas(new: Facts, old: Facts, limits: Thresholds) -> Iterator[Cause]:
    for finding in compare_static(old.build, old.entry, new.build, new.entry, limits, same_version=False):
        if finding.rule is Rule.OCCUPANCY:
            yield _either(
                finding.severity is Severity.GAIN,
                ("more CTAs per SM", "more threads are resident"),
                ("fewer CTAs per SM", "fewer threads are resident to cover each other's waits"),
                weight=0.6,
                evidence=[finding.text, f"threads a CTA {old.entry.threads} → {new.entry.threads}"],
                advice=f"It is {new.entry.limiter} that binds; unless the kernel overlaps its own waits, free some.",
            )


def accuracy(new: Facts, old: Facts, limits: Thresholds) -> Iterator[Cause]:
    """Speed that was bought with precision. The time's own verdict stands beside it."""
    worse = less_accurate(old.checks, new.checks, limits)
    before, now = (_half_arithmetic(side) for side in (old, new))
    halves = [f"{name} in the main loop {before[name]} → {n}" for name, n in now.items() if n >= before[name] + 4]
    exps = [side.kernel.main_loop.get("MUFU", 0) for side in (old, new)]
    if halves and exps[1] < exps[0]:
        halves.append(f"MUFU in the main loop {exps[0]} → {exps[1]}")
    said = new.published.accuracy if new.published else None
    if not (worse or halves or said):
        return
    by = "" if all(check.by == "silicon" for check in new.checks) else " (emulated)"
    evidence = [*halves, *(f"less accurate on {finding.text}{by}" for finding in worse)]
    evidence += [f"as published: {said}"] if said else []
    if not worse:
        evidence.append("no check here shows it" if new.checks and old.checks else "accuracy was not measured here")
    lines = [line for line in new.lines if line.main and _computes_in_halves(line)]
    yield Cause(
        name="precision traded for speed",
        effect=Effect.GAIN,
        weight=0.9 if halves and (worse or said) else 0.7,
        claim="arithmetic went from float32 to halves" if halves else "the result is less accurate",
        evidence=evidence,
        advice="Keep sums and the accumulator in float32 for long sequences; the error grows with their length.",
        places=new.where(lines, lambda n: f"{n} half-precision") if halves else [],
    )


HALVES = ("HFMA2", "HADD2", "HMUL2")


def _computes_in_halves(line: Line) -> bool:
    """HADD2.F32 only widens a half to float32."""
    return line.name in HALVES and not line.instruction.opcode.startswith("HADD2.F32")


def _half_arithmetic(side: Facts) -> Counter[str]:
    """Instructions of the main loop; without a listing HADD2 may be either kind, and does not count."""
    if side.lines:
        return Counter(line.name for line in side.lines if line.main and _computes_in_halves(line))
    return Counter({name: side.kernel.main_loop.get(name, 0) for name in HALVES if name != "HADD2"})


def _grown(new: Facts, old: Facts, *opcodes: str) -> Iterator[tuple[str, int, int]]:
    """Those of `opcodes` of which the main loop has more than before: how many it had and has."""
    for name in opcodes:
        before, now = (side.kernel.main_loop.get(name, 0) for side in (old, new))
        if now > before:
            yield name, before, now


COPIES = ("LDGSTS", "UTMALDG")
"""cp.async and TMA loads."""


def specialised(new: Facts, old: Facts, limits: Thresholds) -> Iterator[Cause]:
    """The copies left the main loop for warps of their own, or no CTA-wide barrier stands in it any more."""
    inside, before = (sum(side.kernel.main_loop.get(name, 0) for name in COPIES) for side in (new, old))
    there = sum(sum(new.kernel.opcodes.get(name, [])) for name in COPIES)
    if not (before and not inside and there):
        return
    evidence = [f"copies (cp.async, TMA) in the main loop {before} → 0, {there} elsewhere in the kernel"]
    bars = [side.kernel.main_loop.get("BAR", 0) for side in (old, new)]
    evidence += [f"CTA-wide barriers (BAR) in the main loop {bars[0]} → {bars[1]}"] if bars[1] < bars[0] else []
    registers = sum(new.kernel.opcodes.get("USETMAXREG", []))
    evidence += [f"setmaxnreg × {registers}: warps have registers by their role"] if registers else []
    yield Cause(
        name="warp specialisation",
        effect=Effect.GAIN,
        weight=0.75,
        claim="warps of their own do the copies, so the others need not wait for these together",
        evidence=evidence,
        places=new.where(
            [line for line in new.lines if line.name in COPIES and not line.main], lambda n: f"{n} copies"
        ),
    )


def gains(new: Facts, old: Facts, limits: Thresholds) -> Iterator[Cause]:
    """Spills that went, registers that were freed."""
    if new.spill_bytes < old.spill_bytes:
        yield Cause(
            name="spills gone" if not new.spill_bytes else "fewer spills",
            effect=Effect.GAIN,
            weight=0.8,
            claim="less goes through local memory",
            evidence=[spill_evidence(new, old)],
        )


def clock(new: Facts, old: Facts, limits: Thresholds) -> Iterator[Cause]:
    """At the power cap a side that draws more runs at a lower clock: time and cycles then tell different stories."""
    pair = new.timing.pair("parent") if new.timing else None
    if not (new.timing and pair and pair.cycles and pair.version == old.name and new.timing.regime == "sustained"):
        return
    lost = pair.time.value - pair.cycles.value
    if lost >= limits.time_cut and pair.time.value > 0:
        yield Cause(
            name="lower clock at the power cap",
            effect=Effect.COST,
            weight=0.75 if lost > pair.cycles.value else 0.45,
            claim="it draws more power than the other, so the card lowers its clock",
            evidence=[
                f"time {_percent(pair.time.value)}, but cycles {_percent(pair.cycles.value)}, interleaved with {pair.version}",
                f"clock events: {', '.join(new.timing.events)}"
                + (f"; at most {new.timing.power_w:.0f} W" if new.timing.power_w else ""),
            ],
            advice="Compare by cycles as well; fewer bytes moved and fewer instructions issued draw less.",
        )


def rest(new: Facts, old: Facts, limits: Thresholds, found: Sequence[Cause]) -> Iterator[Cause]:
    """What stands only where no nearer cause does: spills in general, a longer loop."""
    names = {cause.name for cause in found}
    if not names & {"ld.red's register block", "the toolchain spills"} or new.spill_bytes <= old.spill_bytes:
        yield from spills(new, old, limits)
    work, was = (_loop_per_tensor(side) for side in (new, old))
    tensor = new.kernel.path.split("+")[-1]
    same = set(new.kernel.mma_shapes) == set(old.kernel.mma_shapes)
    same = same and new.kernel.main_loop.get(tensor) == old.kernel.main_loop.get(tensor)  # else it is another loop
    if same and work and was and max(work, was) >= 1.1 * min(work, was):
        more = work > was
        a, b = (sum(side.kernel.main_loop.values()) for side in (old, new))
        changed = {
            n: new.kernel.main_loop.get(n, 0) - old.kernel.main_loop.get(n, 0)
            for n in {*new.kernel.main_loop, *old.kernel.main_loop}
        }
        top = sorted(changed.items(), key=lambda item: -item[1] if more else item[1])[:4]
        words = ", ".join(f"{name} {n:+d}" for name, n in top if (n > 0) == more and n)
        yield _either(
            not more,
            ("fewer instructions a tile", "fewer instructions are issued for the same matrix work"),
            ("more instructions a tile", "more instructions are issued for the same matrix work"),
            weight=0.35,
            evidence=[
                f"main loop {a} → {b} instructions; for each {new.kernel.path.split('+')[-1]} {was:.1f} → {work:.1f}",
                words,
            ],
            advice="See the loop's diff: faperf explain shows it with --sass.",
        )


def _loop_per_tensor(side: Facts) -> float | None:
    """Instructions of the main loop over its tensor instructions of the newest path."""
    path = side.kernel.path.split("+")[-1]
    tensor = side.kernel.main_loop.get(path, 0)
    return sum(side.kernel.main_loop.values()) / tensor if tensor else None


def _percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.2f} %"


COMPARING = (
    messages, toolchain, block_of_ld_red, work_twice, uniformity, path, partly, ctas, specialised, shared_traffic,
    accuracy, gains, clock, waits,
)  # fmt: skip
"""What is looked for between two sides; `rest` comes behind."""
