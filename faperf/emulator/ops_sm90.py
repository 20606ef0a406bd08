"""sm_90a: bulk and tensor copies (TMA), wgmma, setmaxnreg, and a cluster of one CTA.

What a copy fills or reads belongs to an asynchronous agent until an mbarrier, or a wait for a group, tells of its end. A
wgmma's result is in its registers at once: that it was not waited for is not found.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from faperf.emulator import tensor_core
from faperf.emulator.barrier import CtaWait, WaitEach, by_value
from faperf.emulator.decode import PARAM_WINDOW, Blocking, Decoder, Operation, addresses, blocks, handles
from faperf.emulator.fault import BAD_DESCRIPTOR, DIVERGENT, MISALIGNED, OUT_OF_BOUNDS, DiagnosisError, NotEmulatedError
from faperf.emulator.matrix import HALF, addresses_of, swizzled, wgmma_descriptor
from faperf.emulator.memory import GLOBAL_BASE, SHARED_WINDOW, UNITS, words_of
from faperf.emulator.ops_common import only, together
from faperf.emulator.ptx import Instruction, split_operands
from faperf.emulator.rounding import from_brain
from faperf.emulator.state import BULK, TENSOR, WARP, Array, Path

CLUSTER = -1
"""The cluster's barrier, among those of the CTA."""
WARPGROUP = -2
"""The first warpgroup's barrier; the others' follow below it."""


@dataclass(frozen=True)
class TensorMap:
    """A tensor of elements of `unit` bytes: address, sizes, strides in bytes (innermost first), the box, the swizzle in bytes."""

    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    unit: int = HALF


MAP_MAGIC = b"faperf tensormap"


def map_at(path: Path, address: int, ins: Instruction) -> TensorMap:
    """The tensor map that a kernel parameter holds at a generic address."""
    content = path.wave.extra["parameters"]
    offset = address - PARAM_WINDOW
    if not 0 <= offset <= len(content) - 128 or content[offset : offset + 16] != MAP_MAGIC:
        raise DiagnosisError(BAD_DESCRIPTOR, f"there is no tensor map at {address:#x}", ins.place)
    found: TensorMap = path.wave.extra["maps"][int.from_bytes(content[offset + 16 : offset + 20], "little")]
    return found


@handles("cp.async.bulk.tensor")
def _tensor_copy(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "cp.async.bulk.tensor", tiled, of 1 to 5 dimensions; what lies outside the tensor is filled with zeros."""
    only(
        ins, "async", "bulk", "tensor", "tile", "1d", "2d", "3d", "4d", "5d", "shared::cluster", "mbarrier::complete_tx::bytes",
        "bulk_group", "L2::cache_hint", "cta_group::1",
    )  # fmt: skip
    load = ins.operands[0].count("{") == 0
    place, shared = (ins.operands[1], ins.operands[0]) if load else ins.operands[:2]
    head, _, rest = place.strip()[1:-1].partition(",")
    base, coordinates = d.address(f"[{head}]"), [d.row(text, 32) for text in split_operands(rest.strip().strip("{}"))]
    to, barrier = d.address(shared), d.address(ins.operands[2]) if load else None

    def run(path: Path) -> None:
        wave, lanes = path.wave, path.lanes()
        maps, at = addresses(path, base), _shared(addresses(path, to))
        corner = np.stack([path.pick(path.r["s32"][row]) for row in coordinates], axis=1).astype(np.int64)
        bars = _shared(addresses(path, barrier)) if barrier is not None else None
        for index, lane in enumerate(lanes):
            tensor = map_at(path, int(maps[index]), ins)
            one = Path(wave, lanes[index : index + 1], 0, None)
            if len(tensor.box) != len(coordinates):
                raise NotEmulatedError(f"a tensor map of {len(tensor.box)} dimensions", ins.place)
            _check_corner(tensor, corner[index], load, ins)
            where, inside, offset = _box(one, tensor, corner[index], int(at[index]), ins)
            words = np.unique(offset >> 2)[None, :]
            unit = tensor.unit
            cells, outside = (memory.bytes.view(UNITS[unit]) for memory in (wave.shared, wave.memory))
            if bars is None:
                _begin_read(one, words, BULK, ins)
                wave.memory.put(unit, 1, where[inside], cells[offset[inside] // unit, None])
                continue
            data = np.zeros(len(offset), UNITS[unit])
            data[inside] = outside[where[inside] // unit]

            def fill(cells: Array = cells, index: Array = offset // unit, data: Array = data) -> None:
                cells[index] = data

            _fill_later(one, words, fill, int(bars[index]), unit * len(offset), ins)
            del lane

    return run


def _check_corner(tensor: TensorMap, corner: Array, load: bool, ins: Instruction) -> None:
    """What ends in an illegal instruction on an H200, though the PTX ISA does not say so (tests/data/silicon)."""
    if corner[0] * tensor.unit % 16:
        raise DiagnosisError(
            MISALIGNED, f"a tensor copy at coordinate {corner[0]} of the innermost dimension, {corner[0] * tensor.unit} bytes: "
            "no multiple of 16", ins.place,
        )  # fmt: skip
    if not load and (corner < 0).any():
        what = (
            f"a tensor is stored at the coordinates {tuple(corner.tolist())}: one is negative, which only a load may be"
        )
        raise DiagnosisError(OUT_OF_BOUNDS, what, ins.place)


def _shared(address: Array) -> Array:
    """Shared addresses of the CTA, whether they come as such or as generic ones."""
    return np.where(address >= SHARED_WINDOW, address - SHARED_WINDOW, address)


def _box(path: Path, tensor: TensorMap, corner: Array, at: int, ins: Instruction) -> tuple[Array, Array, Array]:
    """(offset in global memory, whether it lies inside, offset in shared memory) of each element of a box."""
    align = 1024 if tensor.swizzle == 128 else 512 if tensor.swizzle == 64 else 256 if tensor.swizzle else 128
    if at % 128 or (tensor.swizzle and at % align):
        raise DiagnosisError(
            MISALIGNED, f"a tensor copy with swizzle {tensor.swizzle} at shared address {at:#x}: no multiple of {align}",
            ins.place,
        )  # fmt: skip
    grid = np.indices(tensor.box[::-1]).reshape(len(tensor.box), -1)[::-1]
    place = grid + corner[:, None]
    sizes, strides = np.array(tensor.sizes)[:, None], np.array(tensor.strides)[:, None]
    inside = ((place >= 0) & (place < sizes)).all(0)
    where = tensor.address - GLOBAL_BASE + (place * strides).sum(0)
    address = swizzled(at + np.arange(grid.shape[1]) * tensor.unit, tensor.swizzle)
    wave = path.wave
    first = wave.shared.locate(path, np.array([at]), grid.shape[1] * tensor.unit, ins, align=16)[0]
    return where, inside, address - at + first


def _fill_later(
    path: Path, words: Array, fill: Callable[[], None], barrier: int, amount: int, ins: Instruction
) -> None:
    """An agent of an mbarrier fills words of one CTA, then tells the barrier of its bytes. `path` is the lane that asked."""
    wave, warps, ctas = path.wave, path.flat_warps, path.ctas
    counter = wave.barriers.mbarrier(barrier, ctas, ins, warps)
    agent = wave.shared.barrier_agent(counter.slot)
    clock = counter.phase[ctas] + 1
    wave.shared.write_later(warps, words, np.array([agent]), clock, ins)

    def land() -> None:
        fill()
        wave.shared.landed(words)
        wave.barriers.deliver(counter, ctas, amount, agent, clock)

    wave.scheduler.take_off(land, "bulk copy")


def _begin_read(path: Path, words: Array, kind: int, ins: Instruction, warps: Array | None = None) -> None:
    """An agent of the warp reads words until the warp is told that its group is over."""
    wave = path.wave
    warps = path.flat_warps if warps is None else warps
    agent = kind * wave.warps + warps // len(wave.ctas)
    wave.shared.read_later(warps, words, agent, wave.async_clock[warps, kind], ins)


@handles("cp.async.bulk.shared::cluster", "cp.async.bulk.shared::cta", "cp.async.bulk.global")
def _bulk_copy(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "cp.async.bulk": a run of bytes, from global memory with an mbarrier or to it in a group."""
    only(ins, "async", "bulk", "shared::cluster", "mbarrier::complete_tx::bytes", "bulk_group", "L2::cache_hint")
    load = ins.parts[3] != "global"
    to, source, size = d.address(ins.operands[0]), d.address(ins.operands[1]), d.row(ins.operands[2], 32)
    barrier = d.address(ins.operands[3]) if load else None
    if load and ins.parts[4] != "global":
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)

    def run(path: Path) -> None:
        wave, lanes = path.wave, path.lanes()
        a, b, count = addresses(path, to), addresses(path, source), path.pick(path.r["u32"][size])
        bars = _shared(addresses(path, barrier)) if barrier is not None else None
        for index in range(len(lanes)):
            one, n = Path(wave, lanes[index : index + 1], 0, None), int(count[index])
            if n % 16:
                raise DiagnosisError(MISALIGNED, f"a bulk copy of {n} bytes: no multiple of 16", ins.place)
            inner, outer = (a, b) if load else (b, a)
            near = wave.shared.locate(one, _shared(inner[index : index + 1]), n, ins, align=16)[0]
            far = wave.memory.locate(one, outer[index : index + 1], n, ins, align=16)[0]
            words = words_of(np.array([near]), n)
            if bars is None:
                _begin_read(one, words, BULK, ins)
                wave.memory.put(1, 1, np.arange(far, far + n), wave.shared.bytes[near : near + n, None])
                continue
            data = wave.memory.bytes[far : far + n].copy()

            def fill(near: int = near, n: int = n, data: Array = data) -> None:
                wave.shared.bytes[near : near + n] = data

            _fill_later(one, words, fill, int(bars[index]), n, ins)

    return run


def _next_group(kind: int) -> Operation:
    def run(path: Path) -> None:
        path.wave.async_clock[np.unique(path.flat_warps), kind] += 1

    return run


def _told_of_groups(kind: int, left: int) -> Operation:
    """The warp learns that all groups but the last `left` are over."""

    def run(path: Path) -> None:
        wave, warps = path.wave, np.unique(path.flat_warps)
        agents = kind * wave.warps + warps // len(wave.ctas)
        done = wave.async_clock[warps, kind] - 1 - left
        wave.clocks[warps, agents] = np.maximum(wave.clocks[warps, agents], done)

    return run


@handles("cp.async.bulk.commit_group")
def _commit_bulk(d: Decoder, ins: Instruction) -> Operation:
    return _next_group(BULK)


@handles("cp.async.bulk.wait_group")
def _wait_bulk(d: Decoder, ins: Instruction) -> Operation:
    return _told_of_groups(BULK, d.number(ins.operands[0]))


# ── wgmma ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@handles("setmaxnreg")
def _nothing(d: Decoder, ins: Instruction) -> Operation:
    return lambda path: together(path, ins)


def _warpgroups(path: Path, ins: Instruction) -> WaitEach:
    """The four warps of each warpgroup meet."""
    numbers = WARPGROUP - path.pick(path.wave.warp[path.start : path.stop]) // 4
    waits = []
    for number, which in by_value(numbers):
        part = Path(path.wave, path.lanes()[which], 0, None)
        threads = np.full(len(part.lanes()), 4 * WARP)
        waits.append((part.lanes(), path.wave.barriers.sync(part, number, threads, ins, wait=True)))
    return WaitEach(path, waits)


@blocks("wgmma.fence")
def _begin_mma(d: Decoder, ins: Instruction) -> Blocking:
    """SASS has it as WARPGROUP.ARRIVE: an MMA is one of all four warps, and begins when they have come.

    Kernels rely on it: what each warp waited for (its own cp.async, say) all four may multiply, with no other barrier.
    """

    def run(path: Path) -> WaitEach:
        together(path, ins)
        return _warpgroups(path, ins)

    return run


@handles("wgmma.commit_group")
def _commit_mma(d: Decoder, ins: Instruction) -> Operation:
    return _next_group(TENSOR)


@blocks("wgmma.wait_group")
def _wait_mma(d: Decoder, ins: Instruction) -> Blocking:
    """An MMA is over for all four warps at once: what it read may be overwritten by any of them."""
    told = _told_of_groups(TENSOR, d.number(ins.operands[0]))

    def run(path: Path) -> WaitEach:
        together(path, ins)
        told(path)
        return _warpgroups(path, ins)

    return run


@handles("wgmma.mma_async")
def _wgmma(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "Asynchronous Warpgroup Level Matrix": D[64 x N] (+)= A[64 x 16]·B[16 x N], f16 or bf16 in, f32 or f16 out.

    Warp w of the group has rows 16w … 16w+15 of A and D, in the fragments of mma.m16n8k16 side by side; it reads all of B. A
    comes from its registers or, like B, from shared memory. `imm-trans` 1 is MN-major.
    """
    shape = re.fullmatch(r"m64n(\d+)k16", ins.parts[4])
    kinds = ins.parts[5:]
    if shape is None or ".".join(kinds) not in ("f32.f16.f16", "f16.f16.f16", "f32.bf16.bf16"):
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    n, single, least = int(shape[1]), kinds[0] == "f32", -126 if kinds[1] == "bf16" else -14
    registers = d.vector(ins.operands[0])
    outs = [d.row(text, 32) for text in registers]
    for text in registers:
        d.out(text, 32)
    from_registers = ins.operands[1].startswith("{")
    fragment = [d.row(text, 32) for text in d.vector(ins.operands[1])] if from_registers else []
    left = 0 if from_registers else d.row(ins.operands[1], 64)
    right = d.row(ins.operands[2], 64)
    scale = d.row(ins.operands[3], 1 if d.bits(ins.operands[3], 32) == 1 else 32)
    keep_kind = "pred" if d.bits(ins.operands[3], 32) == 1 else "u32"
    signs = [-1.0 if d.number(text) == 0xFFFFFFFF else 1.0 for text in ins.operands[4:6]]
    turns = [d.number(text) for text in ins.operands[6:]]
    across_a, across_b = (0, turns[0]) if from_registers and turns else turns or (0, 0)

    def values(halves: Array) -> Array:
        return from_brain(halves) if least == -126 else halves.view(np.float16).astype(np.float32)

    def operand(path: Path, bits: Array, rows: int, first: Array, across: int, count: int) -> Array:
        """[warp, rows, 16] of a descriptor; each warp from row `first` on, as float32."""
        wave = path.wave
        result = np.empty((len(bits), count, 16), np.float32)
        warps = path.lanes()[::WARP] // WARP
        cells = wave.shared.bytes.view(np.uint16)
        for value in np.unique(bits):
            mine = np.flatnonzero(bits == value)
            where = addresses_of(wgmma_descriptor(int(value), ins), rows, 16, bool(across), ins)
            for start in np.unique(first[mine]):
                its = mine[first[mine] == start]
                part = where[start : start + count].reshape(-1)
                one = Path(wave, path.lanes()[::WARP][its[:1]], 0, None)
                wave.shared.locate(one, np.array([part.min(), part.max()])[:1], HALF, ins)
                base = wave.flat_warp[warps[its] * WARP] % len(wave.ctas) * wave.shared.size
                offset = base[:, None] + part[None, :]
                _begin_read(path, np.unique(part >> 2)[None, :] + (base >> 2)[:, None], TENSOR, ins, warps[its])
                result[its] = values(cells[offset // HALF]).reshape(len(its), count, 16)
        return result

    def run(path: Path) -> None:
        together(path, ins)
        r, wave = path.r["u32"], path.wave
        lanes = path.lanes()
        if path.mask is not True:
            raise NotEmulatedError(f"{ins.opcode} by a part of the lanes that run together", ins.place)
        warps = len(lanes) // WARP
        member = wave.warp[lanes[::WARP]] % 4
        zero = np.zeros(warps, np.int64)
        b = operand(path, path.r["u64"][right][::WARP], n, zero, across_b, n)
        if from_registers:
            a: Array = np.empty((warps, 2, 8, 2, 4, 2), np.float32)
            for index, row in enumerate(fragment):
                a[:, index % 2, :, index // 2] = values(np.ascontiguousarray(r[row]).view(np.uint16)).reshape(
                    -1, 8, 4, 2
                )
            a = a.reshape(warps, 16, 16)
        else:
            a = operand(path, path.r["u64"][left][::WARP], 64, member * 16, across_a, 16)
        keep = (path.r[keep_kind][scale] != 0)[::WARP]
        before = np.stack([r[out] for out in outs]).view(np.float32 if single else np.float16)
        lines = (
            (n // 8, 2, 2, warps, 8, 4, 1) if single else (n // 8, 2, 1, warps, 8, 4, 2)
        )  # of 8 columns, row, column
        before = before.reshape(lines).transpose(3, 1, 4, 0, 5, 2, 6).reshape(warps, 16, n)
        before = np.where(keep[:, None, None], before, before.dtype.type(0))
        exact = bool(wave.extra.get("exact_sums"))
        total = tensor_core.multiply(a * np.float32(signs[0] * signs[1]), b, before, not single, least, exact)
        total = total.reshape(warps, 2, 8, n // 8, 4, *lines[2::4]).transpose(3, 1, 5, 0, 2, 4, 6)
        rows = np.ascontiguousarray(total).view(np.uint32).reshape(len(outs), -1)
        for index, out in enumerate(outs):
            r[out][...] = rows[index]

    return run


# ── a cluster of one ─────────────────────────────────────────────────────────────────────────────────────────────────


@handles("mapa")
def _map_address(d: Decoder, ins: Instruction) -> Operation:
    """The address in a CTA of the cluster: there is only this one."""
    bits = int(ins.parts[-1][1:])
    row, to, rank = d.row(ins.operands[1], bits), d.out(ins.operands[0], bits), d.row(ins.operands[2], 32)

    def run(path: Path) -> None:
        if path.pick(path.r["u32"][rank]).any():
            raise DiagnosisError(DIVERGENT, "maps an address to a CTA that the cluster does not have", ins.place)
        np.copyto(path.r[f"u{bits}"][to], path.r[f"u{bits}"][row], where=path.mask)

    return run


@handles("barrier.cluster.arrive")
def _cluster_arrive(d: Decoder, ins: Instruction) -> Operation:
    def run(path: Path) -> None:
        wait: Any = path.wave.barriers.sync(path, CLUSTER, None, ins, wait=True)
        phases = path.wave.extra.setdefault("cluster", np.zeros(path.wave.lanes, np.int64))
        phases[path.lanes()] = wait.phase[path.lanes()]

    return run


@blocks("barrier.cluster.wait")
def _cluster_wait(d: Decoder, ins: Instruction) -> Blocking:
    def run(path: Path) -> CtaWait:
        counter = path.wave.barriers.cta(CLUSTER)
        phases = path.wave.extra.get("cluster")
        if counter is None or phases is None:
            raise DiagnosisError(DIVERGENT, "waits at the cluster's barrier without having arrived", ins.place)
        return CtaWait(counter, CLUSTER, path, phases[path.lanes()], ins)

    return run
