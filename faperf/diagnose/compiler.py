"""Causes that the compiler made: what ptxas says, spills and whose they are."""

from __future__ import annotations

import re
from collections.abc import Iterator

from faperf.chips import chip_of, occupancy
from faperf.diagnose.facts import Cause, Effect, Facts, Where
from faperf.judge import PERFORMANCE_LOSS, Thresholds
from faperf.listing import Line, defined_at
from faperf.record import KernelFacts

BLOCK = 32
"""Registers that `tcgen05.ld.red …x32` writes."""


def messages(new: Facts, old: Facts, limits: Thresholds) -> Iterator[Cause]:
    """setmaxnreg ignored, wgmma serialised: ptxas says so itself."""
    known = set(old.build.messages)
    for message in new.build.messages:
        if message not in known and PERFORMANCE_LOSS.search(message):
            yield _ptxas(message, Effect.COST, new)


def _ptxas(message: str, effect: Effect, new: Facts) -> Cause:
    threads = new.entry.threads or new.kernel.max_threads or 0
    if "setmaxnreg" in message:
        name, claim = (
            "setmaxnreg ignored",
            "setmaxnreg does nothing: every warp keeps the registers that the kernel starts with",
        )
        advice = f"Cap the registers at entry: __launch_bounds__({threads or 'threads'}, 1)."
    else:
        name, claim = "wgmma serialised", "each wgmma waits for the one before it: ptxas serialised them"
        advice = "Do not touch an accumulator between its wgmma and the wait, nor pass it through a call."
        if "register" in message:
            advice = "Free registers first: fewer accumulators or operands a warpgroup."
    words = re.sub(r"^ptxas \w+\s*: ", "", message)
    return Cause(name=name, effect=effect, weight=0.95, claim=claim, evidence=[f"ptxas: {words}"], advice=advice)


def toolchain(new: Facts, old: Facts, limits: Thresholds) -> Iterator[Cause]:
    """The same source spills with one compiler and not with another."""
    ours, theirs = new.build.toolchain, old.build.toolchain
    same = new.inputs is not None and new.inputs == old.inputs and new.build.flags == old.build.flags
    if same and ours != theirs and new.spill_bytes > old.spill_bytes:
        yield Cause(
            name="the toolchain spills",
            effect=Effect.COST,
            weight=0.9,
            claim="the compiler spills, not the source: both sides are built of the same files with the same flags",
            evidence=[
                f"{old.spill_bytes} B of spills with nvcc {theirs.nvcc}, {new.spill_bytes} B with nvcc {ours.nvcc}",
                f"registers {old.kernel.registers} → {new.kernel.registers} of {new.kernel.register_cap}",
            ],
            advice=f"Stay with nvcc {theirs.nvcc} for this version, or free registers where the listing is tightest.",
            places=_spilled(new),
        )


def block_of_ld_red(new: Facts, old: Facts, limits: Thresholds) -> Iterator[Cause]:
    """tcgen05.ld.red allocates what it loads, even where that is thrown away."""
    stat, before = (sum(side.kernel.opcodes.get("LDTM.STAT", [])) for side in (new, old))
    grown = new.kernel.registers - old.kernel.registers
    at_cap = new.kernel.registers >= new.kernel.register_cap
    if stat <= before or not (new.spill_bytes > old.spill_bytes or grown >= limits.registers_up):
        return
    loads = [line for line in new.lines if line.name == "LDTM.STAT"]
    widths = {m for line in loads for m in line.instruction.opcode.split(".") if m[:1] == "x" and m[1:].isdigit()}
    width = max((int(w[1:]) for w in widths), default=0)
    spills = new.spill_bytes > old.spill_bytes
    evidence = [f"LDTM.STAT (tcgen05.ld.red) {before} → {stat}" + (f", {width} registers each" if width else "")]
    evidence.append(
        f"registers {old.kernel.registers} → {new.kernel.registers} of {new.kernel.register_cap}"
        + (", the cap" if at_cap else "")
    )
    evidence += [spill_evidence(new, old)] if spills else []
    block = f"its whole block of {width or BLOCK} registers"
    yield Cause(
        name="ld.red's register block",
        effect=Effect.COST,
        weight=0.92 if spills else 0.5,
        claim=f"tcgen05.ld.red holds {block}, used or discarded" + (", and the kernel spills" if spills else ""),
        evidence=evidence,
        advice="Use the loaded values instead of loading them again, or reduce in narrower reads (x8).",
        places=[*new.where(loads, lambda n: f"{n} LDTM.STAT"), *(_spilled(new) if spills else [])],
    )


def spills(new: Facts, old: Facts, limits: Thresholds) -> Iterator[Cause]:
    if new.spill_bytes > old.spill_bytes:
        yield _spill(new, Effect.COST, spill_evidence(new, old))


def _spill(new: Facts, effect: Effect, evidence: str) -> Cause:
    kernel = new.kernel
    inside = local(kernel)
    loop = f"{inside} LDL/STL in the main loop" if inside else "none of it in the main loop"
    weight = 0.85 if inside else 0.3
    if kernel.registers >= kernel.register_cap:
        return Cause(
            name="spills at the register cap",
            effect=effect,
            weight=weight,
            claim=f"more values are alive than {kernel.register_cap} registers hold",
            evidence=[evidence, f"{kernel.registers} registers, the cap", loop],
            advice="Keep fewer values alive at the lines below: read in smaller batches, recompute, or store elsewhere.",
            places=_spilled(new),
        )
    steps = _steps(new)
    why = steps or f"{kernel.registers} registers of {kernel.register_cap}; no CTA more fits for it"
    claim = "ptxas spilled to let another CTA in, not for want of registers" if steps else "it spilled below the cap"
    return Cause(
        name="spills below the cap",
        effect=effect,
        weight=weight + (0.02 if steps else -0.05),
        claim=claim,
        evidence=[evidence, why, loop],
        advice=f"__launch_bounds__({new.entry.threads or kernel.max_threads or 'threads'}, 1) lets it have the registers.",
        places=_spilled(new),
    )


def _steps(new: Facts) -> str | None:
    """In words, that so few registers let more CTAs in than the cap would; None where they do not."""
    chip, kernel, entry = chip_of(new.entry.target), new.kernel, new.entry
    threads = entry.threads or kernel.max_threads
    if chip is None or not threads:
        return None

    def fit(registers: int) -> int:
        return occupancy(
            chip, threads=threads, registers=registers, smem=entry.smem, barriers=kernel.barriers
        ).ctas_per_sm

    few, many = fit(kernel.registers), fit(min(kernel.registers + 8, kernel.register_cap))
    if few > many:
        return f"with {kernel.registers} registers {few} CTAs of {threads} threads fit, with 8 more only {many}"
    few, many = _by_registers(kernel.registers, threads), _by_registers(kernel.registers + 8, threads)
    if few > many:  # ptxas does not know the dynamic shared memory, and aims at what registers alone would let in
        return f"{kernel.registers} registers would let {few} CTAs of {threads} threads in, 8 more only {many}"
    return None


def _by_registers(registers: int, threads: int) -> int:
    """CTAs per SM by registers alone."""
    return 65_536 // (-(-registers // 8) * 8 * threads)


def spill_evidence(new: Facts, old: Facts) -> str:
    return f"spills {old.spill_bytes} → {new.spill_bytes} B; LDL/STL in the main loop {local(old.kernel)} → {local(new.kernel)}"


def local(kernel: KernelFacts) -> int:
    return kernel.main_loop.get("LDL", 0) + kernel.main_loop.get("STL", 0)


def _spilled(new: Facts) -> list[Where]:
    """Where values go to local memory and come back, what was spilled, and where most registers are alive."""
    origins = [
        origin
        for index, line in enumerate(new.lines)
        if line.name == "STL" and (register := _stored(line)) is not None
        for origin in [defined_at(new.lines, index, register)]
        if origin
    ]
    places = new.where(origins, lambda n: f"{n} value(s) computed here are spilled")
    inside = [line for line in new.lines if line.name in ("LDL", "STL") and line.main]
    places += new.where(inside, lambda n: f"{n} LDL/STL in the main loop")
    tight = max((line for line in new.lines if line.live), key=lambda line: line.live or 0, default=None)
    if tight and (place := tight.place_in(new.source)):
        places.append(Where(place, f"{tight.live} registers are alive, the most", new.words(place)))
    return places


def _stored(line: Line) -> int | None:
    last = line.instruction.operands.replace(".reuse", "").split(",")[-1].strip()
    return int(last[1:]) if last[:1] == "R" and last[1:].isdigit() else None


def own_spills(new: Facts, old: Facts | None, limits: Thresholds) -> Iterator[Cause]:
    """Spills, or messages, that are there whatever the other side has."""
    if new.spill_bytes and (old is None or new.spill_bytes <= old.spill_bytes):
        yield _spill(new, Effect.LIMIT, f"{new.spill_bytes} B of spills")
    elif not new.spill_bytes and local(new.kernel):
        inside = [line for line in new.lines if line.name in ("LDL", "STL") and line.main]
        yield Cause(
            name="an array in local memory",
            effect=Effect.LIMIT,
            weight=0.7,
            claim="an array is indexed by what the compiler does not know, so it lies in local memory",
            evidence=[f"{local(new.kernel)} LDL/STL in the main loop and no spill; stack {new.kernel.stack} B"],
            advice="Index it by constants only: unroll the loop over it.",
            places=new.where(inside, lambda n: f"{n} LDL/STL"),
        )
    for message in new.build.messages:
        if PERFORMANCE_LOSS.search(message) and (old is None or message in old.build.messages):
            yield _ptxas(message, Effect.LIMIT, new)
