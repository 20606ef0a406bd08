"""Clusters of CTAs: whose shared memory an address is in, the cluster's barrier, and stores that tell an mbarrier there."""

from __future__ import annotations

from typing import Any

import numpy as np

from faperf.emulator.barrier import CLUSTER, CtaWait, by_value
from faperf.emulator.batch import PURE
from faperf.emulator.cluster import WITHIN
from faperf.emulator.decode import LOCAL_WINDOW, PARAM_WINDOW, Blocking, Decoder, Operation, addresses, blocks, handles
from faperf.emulator.fault import BAD_BARRIER, DIVERGENT, OUT_OF_BOUNDS, DiagnosisError, NotEmulatedError
from faperf.emulator.memory import GLOBAL_BASE, SHARED_WINDOW
from faperf.emulator.ops_common import computed, only
from faperf.emulator.ops_sm80 import barrier_address
from faperf.emulator.ptx import Instruction
from faperf.emulator.state import CLOCK_BITS, RANK_BIT, Path

# ── addresses ────────────────────────────────────────────────────────────────────────────────────────────────────────


@handles("mapa")
def _map_address(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "mapa": the same address in the CTA of a rank, shared or generic as the one that is given."""
    only(ins, "shared::cluster")
    kind = f"u{ins.parts[-1][1:]}"
    bits = int(kind[1:])
    row, to, rank = d.row(ins.operands[1], bits), d.out(ins.operands[0], bits), d.row(ins.operands[2], 32)

    def run(path: Path) -> None:
        address, ranks = path.pick(path.r[kind][row]), path.pick(path.r["u32"][rank])
        if (ranks >= path.wave.size).any():
            raise DiagnosisError(
                OUT_OF_BOUNDS, f"{path.wave.name_of(int(path.lanes()[0]))} maps an address to rank {int(ranks.max())} of a "
                f"cluster of {path.wave.size} CTAs", ins.place,
            )  # fmt: skip
        whole = address.dtype.type(0xFFFF_FFFF_FFFF_FFFF >> (64 - bits))
        kept = address & (whole ^ address.dtype.type(0xFFFF_FFFF ^ WITHIN))
        path.put(path.r[kind][to], kept | ranks.astype(address.dtype) << address.dtype.type(RANK_BIT))

    return run


@handles("getctarank", memory=PURE)
def _rank_of_address(d: Decoder, ins: Instruction) -> Any:
    only(ins, "shared::cluster")
    kind = f"u{ins.parts[-1][1:]}"

    def rank(address: Any) -> Any:
        return (address >> address.dtype.type(RANK_BIT) & address.dtype.type(0xFF)).astype(np.uint32)

    return computed(d, "u32", [(kind, ins.operands[1])], ins.operands[0], rank, ins)


@handles("isspacep")
def _is_in_space(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "isspacep", of a generic address. `shared` is `shared::cta`: the CTA's own."""
    space = ins.parts[1]
    if space not in ("global", "shared", "shared::cta", "shared::cluster", "local"):
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    kind = f"u{d.bits(ins.operands[1], 64)}"
    to, row = d.out(ins.operands[0], 1), d.row(ins.operands[1], int(kind[1:]))

    def run(path: Path) -> None:
        address = path.pick(path.r[kind][row]).astype(np.int64)
        window = {"global": GLOBAL_BASE, "local": LOCAL_WINDOW}.get(space, SHARED_WINDOW)
        inside = (address >= window) & ((address < window + 2**32) | (space == "global"))
        if space in ("shared", "shared::cta"):
            inside &= (address & 0xFFFF_FFFF) >> RANK_BIT == path.ranks
        path.put(path.r["pred"][to], inside)

    assert SHARED_WINDOW < LOCAL_WINDOW < PARAM_WINDOW < GLOBAL_BASE
    return run


# ── the barrier ──────────────────────────────────────────────────────────────────────────────────────────────────────


@handles("barrier.cluster.arrive")
def _arrive(d: Decoder, ins: Instruction) -> Operation:
    """With .relaxed it tells what the warp's last fence has covered."""
    only(ins, "cluster", "arrive", "aligned")

    def run(path: Path) -> None:
        if "aligned" not in ins and not path.whole_warps():
            raise NotEmulatedError(f"{ins.opcode} by a part of a warp", ins.place)
        wait = path.wave.barriers.sync(path, CLUSTER, None, ins, wait=True, relaxed="relaxed" in ins)
        phases = path.wave.extra.setdefault("cluster", np.full(path.wave.lanes, -1))
        if (phases[path.lanes()] >= 0).any():
            raise DiagnosisError(
                DIVERGENT, f"{path.wave.name_of(int(path.lanes()[0]))} arrives twice at the cluster's barrier without waiting",
                ins.place,
            )  # fmt: skip
        phases[path.lanes()] = wait.phase[path.lanes()]

    return run


class ClusterWait(CtaWait):
    """For the other warps of the cluster."""

    def proceed(self, path: Path) -> None:
        super().proceed(path)
        path.wave.extra["cluster"][path.lanes()] = -1


@blocks("barrier.cluster.wait")
def _wait(d: Decoder, ins: Instruction) -> Blocking:
    only(ins, "cluster", "wait", "aligned")

    def run(path: Path) -> CtaWait:
        counter, phases = path.wave.barriers.cluster(), path.wave.extra.get("cluster")
        if counter is None or phases is None or (phases[path.lanes()] < 0).any():
            raise DiagnosisError(DIVERGENT, "waits at the cluster's barrier without having arrived", ins.place)
        return ClusterWait(counter, CLUSTER, path, phases[path.lanes()], ins)

    return run


@handles("membar", "fence.acq_rel", "fence.sc", "fence.mbarrier_init")
def _fence(d: Decoder, ins: Instruction) -> Operation:
    """What a relaxed arrival at the cluster's barrier then tells; fence.mbarrier_init more than it need."""

    def run(path: Path) -> None:
        wave = path.wave
        if wave.size > 1:
            warps = np.unique(path.flat_warps)
            wave.released[warps] = wave.clocks[warps]
            wave.clocks[warps, warps // len(wave.ctas)] += 1

    return run


# ── asynchronous stores ──────────────────────────────────────────────────────────────────────────────────────────────


@handles("st.async")
def _store_later(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "st.async": each lane's values go to a CTA of the cluster, whose mbarrier is told of their bytes."""
    only(ins, "async", "shared::cluster", "mbarrier::complete_tx::bytes", "v2", "v4", "cluster")
    if "shared::cluster" not in ins or "mbarrier::complete_tx::bytes" not in ins:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    size = int(ins.parts[-1][1:]) // 8
    rows = [d.row(text, 8 * size) for text in d.vector(ins.operands[1])]
    to, barrier, whole = d.address(ins.operands[0]), d.address(ins.operands[2]), size * len(rows)

    def run(path: Path) -> None:
        wave, shared = path.wave, path.wave.shared
        at, bars = addresses(path, to), barrier_address(path, barrier, ins, later=True)
        offset = shared.locate(path, at, whole, ins, later=True)
        if (at >> RANK_BIT != bars >> RANK_BIT).any():
            raise DiagnosisError(
                BAD_BARRIER, "a store to one CTA of the cluster tells an mbarrier of another", ins.place
            )
        values = np.stack([path.pick(path.r[f"u{8 * size}"][row]) for row in rows], axis=-1)
        for bar, lanes in by_value(bars):
            warps, ctas, its = path.flat_warps[lanes], path.ctas[lanes], offset[lanes]
            counter = wave.barriers.mbarrier(bar, ctas, ins, warps)
            agent, clock = shared.barrier_agent(counter.slot), counter.phase[ctas] + 1
            for cta, count in zip(*np.unique(ctas, return_counts=True), strict=True):
                counter.ledger.copies(cta[None], whole * int(count), counter.phase, ins, foreign=True)
            shared.write_later(warps, its, whole, agent << CLOCK_BITS | clock, ins)
            if shared.visits is not None:
                shared.visits.comes(warps, its // shared.size, agent, clock, ins)

            def land(
                counter: Any = counter, ctas: Any = ctas, its: Any = its, what: Any = values[lanes], agent: int = agent,
                clock: Any = clock,
            ) -> None:  # fmt: skip
                shared.put(size, len(rows), its, what)
                shared.landed(its, whole)
                wave.barriers.deliver(counter, ctas, whole, agent, clock)

            wave.scheduler.take_off(land, "store")

    return run
