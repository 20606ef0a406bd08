"""sm_90a: bulk and tensor copies (TMA), wgmma and setmaxnreg.

What a copy fills or reads belongs to an asynchronous agent until an mbarrier, or a wait for a group, tells of its end. A
wgmma's result is in its registers at once: that it was not waited for is not found.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from faperf.emulator import tensor_core
from faperf.emulator.barrier import WaitEach, by_value, meetings
from faperf.emulator.cluster import WITHIN
from faperf.emulator.decode import PARAM_WINDOW, Blocking, Decoder, Operation, addresses, blocks, handles
from faperf.emulator.fault import (
    BAD_BARRIER,
    BAD_DESCRIPTOR,
    MISALIGNED,
    OUT_OF_BOUNDS,
    DiagnosisError,
    NotEmulatedError,
)
from faperf.emulator.matrix import HALF, footprint, swizzled, wgmma_descriptor
from faperf.emulator.memory import CHUNK, GLOBAL_BASE, SHARED_WINDOW, UNITS, Global
from faperf.emulator.ops_common import only, own, spread, together, within
from faperf.emulator.provenance import origins
from faperf.emulator.ptx import Instruction, split_operands
from faperf.emulator.rounding import from_brain, halves_of
from faperf.emulator.state import BULK, CLOCK_BITS, RANK_BIT, TENSOR, WARP, Array, Path, Wave

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
        "bulk_group", "L2::cache_hint", "cta_group::1", "cta_group::2", "multicast::cluster",
    )  # fmt: skip
    load = ins.operands[0].count("{") == 0
    place, shared = (ins.operands[1], ins.operands[0]) if load else ins.operands[:2]
    head, _, rest = place.strip()[1:-1].partition(",")
    base, coordinates = d.address(f"[{head}]"), [d.row(text, 32) for text in split_operands(rest.strip().strip("{}"))]
    to, barrier = d.address(shared), d.address(ins.operands[2]) if load else None
    targets = Targets(d, ins, 3)

    def run(path: Path) -> None:
        wave, lanes = path.wave, path.lanes()
        maps, at = addresses(path, base), _shared(addresses(path, to))
        corner = np.stack([path.pick(path.r["s32"][row]) for row in coordinates], axis=1).astype(np.int64)
        bars = _shared(addresses(path, barrier)) if barrier is not None else None
        if bars is not None and wave.size == 1 and _load_alike(path, maps, at, corner, bars, ins):
            return
        for index in range(len(lanes)):
            tensor = map_at(path, int(maps[index]), ins)
            if len(tensor.box) != len(coordinates):
                raise NotEmulatedError(f"a tensor map of {len(tensor.box)} dimensions", ins.place)
            _check_corner(tensor, corner[index], load, ins)
            lane = lanes[index : index + 1]
            box = Box(tensor, corner[index])
            _check_alignment(path, lane, tensor, int(at[index]), ins)
            if bars is None:
                own(path, at[index : index + 1], ins, lane)
                first = int(wave.shared.locate(path, at[index : index + 1], box.bytes, ins, lanes=lane, align=16)[0])
                _begin_read(wave, lane, first, box.bytes, ins)
                box.store(wave.memory, wave.shared.bytes[first : first + box.bytes], int(at[index]))
                continue
            content = box.load(wave.memory, int(at[index]))
            for first, bar in targets.of(path, index, at, bars, box.bytes):
                _fill_later(wave, lane, np.array([first]), content[None], bar, ins)

    return run


def _load_alike(path: Path, maps: Array, at: Array, corner: Array, bars: Array, ins: Instruction) -> bool:
    """Whole boxes for the same place in each of several CTAs are loaded at once. False where they are none, or one is wrong."""
    wave, lanes = path.wave, path.lanes()
    ctas = wave.cta[lanes]
    if len(lanes) < 2 or (np.diff(ctas) <= 0).any() or any((v != v[0]).any() for v in (maps, at, bars)):
        return False
    try:
        tensor, place = map_at(path, int(maps[0]), ins), int(at[0])
        boxes = [Box(tensor, each) for each in corner] if len(tensor.box) == corner.shape[1] else []
        if not boxes or any(box.chunks is None for box in boxes):
            return False
        for each in corner:
            _check_corner(tensor, each, True, ins)
        _check_alignment(path, lanes[:1], tensor, place, ins)
        first = wave.shared.locate(path, at, boxes[0].bytes, ins, lanes=lanes, align=16)
    except DiagnosisError:  # one lane after the other says whose it is
        return False
    start = np.array([box.start >> 4 for box in boxes])
    chunks = wave.memory.view(8, 2).take(start[:, None] + boxes[0].within(place), axis=0)
    _fill_later(wave, lanes, first, chunks.reshape(len(lanes), -1).view(np.uint8), int(bars[0]), ins)
    return True


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


def _check_alignment(path: Path, lane: Array, tensor: TensorMap, at: int, ins: Instruction) -> None:
    """Raises DiagnosisError where the shared address of a box has not the alignment that the swizzle needs."""
    align = {0: 128, 32: 256, 64: 512, 128: 1024}[tensor.swizzle]
    if at % align:
        raise DiagnosisError(
            MISALIGNED, f"{path.wave.name_of(int(lane[0]))} begins a tensor copy with swizzle {tensor.swizzle} at shared address "
            f"{at:#x}: no multiple of {align}", ins.place,
        )  # fmt: skip


class Targets:
    """Where a copy to shared memory goes, and which mbarrier is told of it, CTA by CTA.

    With .multicast::cluster to the same place in each CTA of the mask (operand `at`), and the mbarrier at its place there is
    told. With .cta_group::2 it is the mbarrier of that CTA of a destination's pair that has the parity of the one given.
    """

    def __init__(self, d: Decoder, ins: Instruction, at: int) -> None:
        self.ins, self.pair = ins, "cta_group::2" in ins
        self.mask = d.row(ins.operands[at], 16) if "multicast::cluster" in ins else None

    def of(self, path: Path, index: int, to: Array, bars: Array, size: int) -> Iterator[tuple[int, int]]:
        """(offset, address of the mbarrier) for the lane `index` that takes part. Raises DiagnosisError."""
        wave, lane, ins, bar = path.wave, path.lanes()[index : index + 1], self.ins, int(bars[index])
        given = to[index : index + 1]
        if self.mask is not None:
            mask = path.pick(path.r["u16"][self.mask])[index : index + 1]
            given = spread(Path(wave, lane, 0, None), given, mask, size, ins)[1]
        elif int(given[0]) >> RANK_BIT >> self.pair != bar >> RANK_BIT >> self.pair:
            what = f"a copy to shared address {int(given[0]):#x} tells an mbarrier of another CTA, {bar:#x}"
            raise DiagnosisError(BAD_BARRIER, what, ins.place)
        for address in given:
            rank = int(address) >> RANK_BIT
            there = (rank & ~1) | (bar >> RANK_BIT & 1) if self.pair else rank
            first = int(wave.shared.locate(path, address[None], size, ins, lanes=lane, align=16, later=True)[0])
            yield first, there << RANK_BIT | bar & WITHIN


class Box:
    """A box of a tensor and its place in it, moved in chunks of 16 bytes where it lies inside, else by elements."""

    def __init__(self, tensor: TensorMap, corner: Array) -> None:
        self.tensor, self.corner = tensor, corner
        sizes, box = np.array(tensor.sizes), np.array(tensor.box)
        self.bytes = math.prod(tensor.box) * tensor.unit
        self.start = tensor.address - GLOBAL_BASE + int((corner * tensor.strides).sum())
        inside = bool((corner >= 0).all() and (corner + box <= sizes).all())
        self.chunks = _offsets(tensor.strides, tensor.box, tensor.unit) if inside and self.start % 16 == 0 else None

    def load(self, memory: Global, at: int) -> Array:
        """Its bytes as they are to lie in shared memory from address `at` on."""
        content = np.zeros(self.bytes, np.uint8)
        if self.chunks is not None:
            content.view(np.uint64).reshape(-1, 2)[self._order(at, 16)] = memory.view(8, 2).take(
                (self.start >> 4) + self.chunks, axis=0
            )
        else:
            where, inside, unit = *self._elements(), self.tensor.unit
            elements = memory.bytes.view(UNITS[unit])
            content.view(UNITS[unit])[self._order(at, unit)[inside]] = elements[where[inside] // unit]
        return content

    def within(self, at: int) -> Array:
        """Of a box that lies inside, from its first chunk: which lies where, in shared memory from address `at` on."""
        found = np.empty_like(self.chunks)
        found[self._order(at, CHUNK)] = self.chunks
        return found

    def store(self, memory: Global, content: Array, at: int) -> None:
        """What lies in shared memory goes to the tensor; what is outside of it is dropped."""
        where, inside, unit = *self._elements(), self.tensor.unit
        memory.put(unit, 1, where[inside], content.view(UNITS[unit])[self._order(at, unit)[inside], None])

    def _order(self, at: int, unit: int) -> Array:
        return _swizzled_order(self.bytes, at % 1024, self.tensor.swizzle, unit)

    def _elements(self) -> tuple[Array, Array]:
        """(offset in global memory, whether inside the tensor) of each element."""
        tensor = self.tensor
        place = np.indices(tensor.box[::-1]).reshape(len(tensor.box), -1)[::-1] + self.corner[:, None]
        inside = ((place >= 0) & (place < np.array(tensor.sizes)[:, None])).all(0)
        return tensor.address - GLOBAL_BASE + (place * np.array(tensor.strides)[:, None]).sum(0), inside


@lru_cache(maxsize=256)
def _offsets(strides: tuple[int, ...], box: tuple[int, ...], unit: int) -> Array | None:
    """The chunks of a box, from its first one, or None where they are not whole."""
    if box[0] * unit % 16 or any(stride % 16 for stride in strides[1:]):
        return None
    place = np.indices((*box[:0:-1], box[0] * unit // 16)).reshape(len(box), -1)[::-1]
    chunks: Array = (place * np.array([16, *strides[1:]])[:, None]).sum(0) >> 4
    return chunks


@lru_cache(maxsize=256)
def _swizzled_order(size: int, at: int, swizzle: int, unit: int) -> Array:
    """The place of each unit of a box within it."""
    return (swizzled(at + np.arange(0, size, unit), swizzle) - at) // unit


def _fill_later(wave: Wave, lanes: Array, first: Array, content: Array, barrier: int, ins: Instruction) -> None:
    """An agent of an mbarrier fills the same bytes of some CTAs, [cta, byte], then tells the barrier of their number.

    `first` says where they begin; `lanes` are those that asked, one of each CTA.
    """
    warps, ctas, size = wave.flat_warp[lanes], wave.cta[lanes], content.shape[1]
    counter = wave.barriers.mbarrier(barrier, ctas, ins, warps)
    agent = wave.shared.barrier_agent(counter.slot)
    clock = counter.phase[ctas] + 1
    foreign = barrier >> RANK_BIT != int(wave.home_of_warp[warps[0]]) % wave.size
    counter.ledger.copies(ctas, size, counter.phase, ins, foreign)
    homes, start = first // wave.shared.size, int(first[0]) % wave.shared.size
    place = wave.shared.write_run_later(warps, homes, start, size, agent << CLOCK_BITS | clock, ins)
    if wave.shared.visits is not None:
        for home in (homes, ctas * wave.size + (barrier >> RANK_BIT)):
            wave.shared.visits.comes(warps, home, agent, clock, ins)

    def land() -> None:
        wave.shared.run_landed(place, content)
        wave.barriers.deliver(counter, ctas, size, agent, clock)

    wave.scheduler.take_off(land, "bulk copy")


def _begin_read(wave: Wave, lane: Array, first: int, size: int, ins: Instruction) -> None:
    """An agent of the warp reads bytes until the warp is told that its group of bulk copies is over."""
    warps = wave.flat_warp[lane]
    agent = BULK * wave.warps + warps // len(wave.ctas)
    chunks = np.arange(first >> 4, (first + size) >> 4)
    wave.shared.read_later(warps, chunks, agent << CLOCK_BITS | wave.async_clock[warps, BULK], ins)


def _read_until(wave: Wave, lane: Array, first: int, size: int, barrier: int, ins: Instruction) -> None:
    """The agent of an mbarrier reads bytes until it tells the barrier so."""
    warps, ctas = wave.flat_warp[lane], wave.cta[lane]
    counter = wave.barriers.mbarrier(barrier, ctas, ins, warps)
    stamp = wave.shared.barrier_agent(counter.slot) << CLOCK_BITS | counter.phase[ctas] + 1
    wave.shared.read_later(warps, np.arange(first >> 4, (first + size) >> 4), stamp, ins)


@handles("cp.async.bulk.shared::cluster", "cp.async.bulk.shared::cta", "cp.async.bulk.global")
def _bulk_copy(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "cp.async.bulk": a run of bytes, to shared memory with an mbarrier or from there to global memory in a group."""
    only(
        ins, "async", "bulk", "shared::cluster", "mbarrier::complete_tx::bytes", "bulk_group", "L2::cache_hint",
        "multicast::cluster",
    )  # fmt: skip
    load = ins.parts[3] != "global"
    inside = load and ins.parts[4] == "shared::cta"
    to, source, size = d.address(ins.operands[0]), d.address(ins.operands[1]), d.row(ins.operands[2], 32)
    barrier = d.address(ins.operands[3]) if load else None
    targets = Targets(d, ins, 4)

    def run(path: Path) -> None:
        wave, lanes = path.wave, path.lanes()
        a, b, count = addresses(path, to), addresses(path, source), path.pick(path.r["u32"][size])
        bars = _shared(addresses(path, barrier)) if barrier is not None else None
        for index in range(len(lanes)):
            lane, n = lanes[index : index + 1], int(count[index])
            if n % 16:
                raise DiagnosisError(MISALIGNED, f"a bulk copy of {n} bytes: no multiple of 16", ins.place)
            if inside or bars is None:
                its = _shared(b[index : index + 1])
                own(path, its, ins, lane)
                near = int(wave.shared.locate(path, its, n, ins, lanes=lane, align=16)[0])
            if not inside:
                far = int(wave.memory.locate(path, (b if load else a)[index : index + 1], n, ins, align=16)[0])
            if bars is None:
                _begin_read(wave, lane, near, n, ins)
                wave.memory.put(1, 1, np.arange(far, far + n), wave.shared.bytes[near : near + n, None])
                continue
            for first, bar in targets.of(path, index, _shared(a), bars, n):
                if inside:
                    _read_until(wave, lane, near, n, bar, ins)
                content = wave.shared.bytes[near : near + n] if inside else wave.memory.bytes[far : far + n]
                _fill_later(wave, lane, np.array([first]), content.copy()[None], bar, ins)

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
    for key, part in meetings(path, numbers):
        threads = np.full(len(part.lanes()), 4 * WARP)
        waits.append((part.lanes(), path.wave.barriers.sync(part, key, threads, ins, wait=True)))
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

    def operand(path: Path, bits: Array, rows: int, across: int, mine: Array | None = None) -> Array:
        """[warp, rows, 16] of each warp's descriptor in float32, of the 16 rows from `mine` on where that is given."""
        wave, warps = path.wave, path.lanes()[::WARP] // WARP
        stamp = (TENSOR * wave.warps + warps // len(wave.ctas)) << CLOCK_BITS | wave.async_clock[warps, TENSOR]
        result = np.empty((len(bits), rows if mine is None else 16, 16), np.float32)
        memory, homes = wave.shared.view(HALF, 8), wave.home_of_warp[warps]
        base = homes * (wave.shared.size >> 4)
        for value, its in by_value(bits):
            place = footprint(wgmma_descriptor(value, ins), rows, 16, bool(across))
            within(path, place, ins)
            if (kept := origins(wave)) is not None:
                kept.look(place, base, wave, ins)
            its = np.arange(len(bits))[its]
            chunks = (base[its, None] + place.chunks.reshape(-1)).reshape(len(its), -1)
            wave.shared.read_later(warps[its, None], chunks, stamp[its, None], ins)
            for home in np.unique(homes[its]):
                one = place.gather(memory, np.array([home * (wave.shared.size >> 4)]), least == -126)[0]
                for warp in its[homes[its] == home]:
                    result[warp] = one if mine is None else one[mine[warp] : mine[warp] + 16]
        return result

    def run(path: Path) -> None:
        together(path, ins)
        for part in [path] if path.mask is True else path.runs():
            multiply(part)

    def multiply(path: Path) -> None:
        r, wave = path.r["u32"], path.wave
        lanes = path.lanes()
        if path.mask is not True:
            raise NotEmulatedError(f"{ins.opcode} by a part of the lanes of a warp", ins.place)
        warps = len(lanes) // WARP
        member = wave.warp[lanes[::WARP]] % 4
        b = operand(path, path.r["u64"][right][::WARP], n, across_b)
        if from_registers:
            a: Array = np.empty((warps, 2, 8, 2, 4, 2), np.float32)
            for index, row in enumerate(fragment):
                a[:, index % 2, :, index // 2] = values(np.ascontiguousarray(r[row]).view(np.uint16)).reshape(
                    -1, 8, 4, 2
                )
            a = a.reshape(warps, 16, 16)
            if (kept := origins(wave)) is not None:
                kept.look_at(halves_of(a, least == -126), ins)
        else:
            a = operand(path, path.r["u64"][left][::WARP], 64, across_a, member * 16)
            if (kept := origins(wave)) is not None:
                kept.look_at_pair(ins)
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
