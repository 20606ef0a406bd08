"""sm_80: cp.async, ldmatrix, stmatrix, mma.m16n8k16, mbarrier and the barriers of a CTA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from faperf.emulator import tensor_core
from faperf.emulator.barrier import PhaseWait, WaitEach, by_value
from faperf.emulator.decode import Blocking, Decoder, Operation, addresses, blocks, handles
from faperf.emulator.fault import NotEmulatedError
from faperf.emulator.memory import words_of
from faperf.emulator.ops_common import only, spaces, together
from faperf.emulator.ptx import Instruction
from faperf.emulator.state import COPY, WARP, Array, Path

# ── barriers of the CTA ("barrier{.cta}") ────────────────────────────────────────────────────────────────────────────


@blocks("bar.sync", "bar.cta.sync", "barrier.sync", "barrier.cta.sync")
def _sync(d: Decoder, ins: Instruction) -> Blocking:
    meet = _meeting(d, ins, wait=True)
    return lambda path: WaitEach(path, meet(path))


@handles("bar.arrive", "bar.cta.arrive", "barrier.arrive", "barrier.cta.arrive")
def _arrive_cta(d: Decoder, ins: Instruction) -> Operation:
    meet = _meeting(d, ins, wait=False)

    def run(path: Path) -> None:
        meet(path)

    return run


def _meeting(d: Decoder, ins: Instruction, wait: bool) -> Callable[[Path], list[tuple[Array, Any]]]:
    """Warps come to the barriers whose numbers they give, for as many threads as they give: (lanes, what they wait for) each."""
    number = d.row(ins.operands[0], 32)
    threads = d.row(ins.operands[1], 32) if len(ins.operands) > 1 else None

    def run(path: Path) -> list[tuple[Array, Any]]:
        waits = []
        for value, which in by_value(path.pick(path.r["u32"][number])):
            part = Path(path.wave, path.lanes()[which], 0, None)
            count = None if threads is None else part.pick(part.r["u32"][threads])
            waits.append((part.lanes(), path.wave.barriers.sync(part, value, count, ins, wait)))
        return waits

    return run


# ── mbarrier ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def barrier_address(path: Path, address: Any, ins: Instruction) -> Array:
    """Each lane's address of an mbarrier, checked to be 8 aligned bytes of shared memory."""
    space = "shared" if any(part.startswith("shared") for part in ins.parts) else ""
    _, at = spaces(path, space, addresses(path, address), ins)
    path.wave.shared.locate(path, at, 8, ins)
    return at


@handles("mbarrier.init")
def _init(d: Decoder, ins: Instruction) -> Operation:
    address, count = d.address(ins.operands[0]), d.row(ins.operands[1], 32)

    def run(path: Path) -> None:
        at = barrier_address(path, address, ins)
        path.wave.barriers.init(path, at, path.pick(path.r["u32"][count]).astype(np.int64), ins)

    return run


@handles("mbarrier.inval")
def _invalidate(d: Decoder, ins: Instruction) -> Operation:
    address = d.address(ins.operands[0])
    return lambda path: path.wave.barriers.invalidate(path, barrier_address(path, address, ins), ins)


@handles("mbarrier.arrive", "mbarrier.arrive_drop")
def _arrive(d: Decoder, ins: Instruction) -> Operation:
    """Also with .expect_tx: first the bytes, then one arrival; else `count` arrivals."""
    if ins.parts[1] == "arrive_drop" or "noComplete" in ins:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    operands = list(ins.operands)
    state = None
    if not operands[0].startswith("["):
        first = operands.pop(0)
        state = None if first == "_" else d.out(first, 64)
    address = d.address(operands[0])
    amount = d.row(operands[1], 32) if len(operands) > 1 else None
    expects = "expect_tx" in ins

    def run(path: Path) -> None:
        at = barrier_address(path, address, ins)
        number: Any = 1 if amount is None else path.pick(path.r["u32"][amount]).astype(np.int64)
        if expects:
            phases = path.wave.barriers.arrive(path, at, ins, 1, number)
        else:
            phases = path.wave.barriers.arrive(path, at, ins, number)
        if state is not None:
            path.put(path.r["u64"][state], phases)

    return run


@handles("mbarrier.expect_tx")
def _expect(d: Decoder, ins: Instruction) -> Operation:
    address, amount = d.address(ins.operands[0]), d.row(ins.operands[1], 32)

    def run(path: Path) -> None:
        at = barrier_address(path, address, ins)
        path.wave.barriers.expect(path, at, path.pick(path.r["u32"][amount]), ins)

    return run


@blocks("mbarrier.try_wait", "mbarrier.test_wait")
def _poll(d: Decoder, ins: Instruction) -> Blocking:
    """A poll waits for its phase; where nothing else can run it answers false, once."""
    out, address = d.out(ins.operands[0], 1), d.address(ins.operands[1])
    parity = d.row(ins.operands[2], 32) if "parity" in ins else None
    state = None if "parity" in ins else d.row(ins.operands[2], 64)

    def run(path: Path) -> PhaseWait:
        at = barrier_address(path, address, ins)
        if parity is not None:
            return PhaseWait(path, at, path.pick(path.r["u32"][parity]) & 1, None, ins, out)
        return PhaseWait(path, at, None, path.pick(path.r["u64"][state or 0]), ins, out)

    return run


# ── cp.async ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Copies:
    """The cp.async of a wave that their threads have not waited for."""

    def __init__(self, lanes: int) -> None:
        self.group = np.zeros(lanes, np.int64)
        """The group that each lane's next copy belongs to."""
        self.open: list[Copy] = []


class Copy:
    """One cp.async: its lanes, their groups, and what is to land where."""

    def __init__(self, path: Path, lanes: Array, group: Array, offset: Array, data: Array) -> None:
        self.wave, self.lanes, self.group, self.offset, self.data = path.wave, lanes, group, offset, data
        self.there = False

    def land(self) -> None:
        if not self.there:
            self.there = True
            size = self.data.shape[1] * 4
            self.wave.shared.view(4, size // 4)[self.offset // size] = self.data
            self.wave.shared.landed(words_of(self.offset, size))


def copies(path: Path) -> Copies:
    return path.wave.extra.setdefault("copies", Copies(path.wave.lanes))  # type: ignore[no-any-return]


@handles("cp.async.ca", "cp.async.cg")
def _copy(d: Decoder, ins: Instruction) -> Operation:
    """Copies 4, 8 or 16 bytes a lane; `src-size` fewer, and zeros after them; `ignore-src` only zeros."""
    operands = [text for text in ins.operands if text != "_"]
    if "L2::cache_hint" in ins:
        operands.pop()
    to, source, size = d.address(operands[0]), d.address(operands[1]), d.number(operands[2])
    fewer = d.row(operands[3], 32) if len(operands) > 3 and d.bits(operands[3], 32) == 32 else None
    ignored = d.row(operands[3], 1) if len(operands) > 3 and fewer is None else None

    def run(path: Path) -> None:
        wave = path.wave
        offset = wave.shared.locate(path, addresses(path, to), size, ins)
        at, lanes = addresses(path, source), path.lanes()
        if fewer is None and ignored is None:
            where = wave.memory.locate(path, at, size, ins)
            data = wave.memory.view(4, size // 4).take(where // size, axis=0)
        else:
            data = np.zeros((len(lanes), size), np.uint8)
            if fewer is not None:
                count = np.minimum(path.pick(path.r["u32"][fewer]).astype(np.int64), size)
            else:
                count = np.where(path.pick(path.r["pred"][ignored or 0]), 0, size)
            for lane in np.flatnonzero(count):
                part = wave.memory.locate(path, at[lane : lane + 1], int(count[lane]), ins, align=size)
                data[lane, : count[lane]] = wave.memory.bytes[part[0] : part[0] + count[lane]]
            data = data.view(np.uint32)
        warps = path.flat_warps
        agent = COPY * wave.warps + warps // len(wave.ctas)
        words = words_of(offset, size)
        wave.shared.write_later(warps, words, agent, wave.async_clock[warps, COPY], ins)
        known = copies(path)
        copy = Copy(path, lanes, known.group[lanes], offset, data)
        known.open.append(copy)
        wave.scheduler.take_off(copy.land, "copy") if wave.scheduler.lands_early else None

    return run


@handles("cp.async.commit_group")
def _commit(d: Decoder, ins: Instruction) -> Operation:
    def run(path: Path) -> None:
        copies(path).group[path.lanes()] += 1
        warps = np.unique(path.flat_warps)
        path.wave.async_clock[warps, COPY] += 1

    return run


@handles("cp.async.wait_group", "cp.async.wait_all")
def _wait(d: Decoder, ins: Instruction) -> Operation:
    """Waits by landing what is waited for: nothing else can hold it up."""
    left = d.number(ins.operands[0]) if ins.operands else -1

    def run(path: Path) -> None:
        wave, known = path.wave, copies(path)
        warps = np.unique(path.flat_warps)
        if left < 0:
            known.group[path.lanes()] += 1
            wave.async_clock[warps, COPY] += 1
        finish(path, known.group - max(left, 0))
        agents = COPY * wave.warps + warps // len(wave.ctas)
        done = wave.async_clock[warps, COPY] - 1 - max(left, 0)
        wave.clocks[warps, agents] = np.maximum(wave.clocks[warps, agents], done)

    return run


def finish(path: Path, before: Array) -> None:
    """Land the copies of this path's lanes of groups below `before` (by flat lane)."""
    known = copies(path)
    here = np.zeros(path.wave.lanes, bool)
    here[path.lanes()] = True
    still = []
    for copy in known.open:
        if (here[copy.lanes] & (copy.group < before[copy.lanes])).any():
            copy.land()
        else:
            still.append(copy)
    known.open = still


@handles("cp.async.mbarrier.arrive")
def _arrive_after_copies(d: Decoder, ins: Instruction) -> Operation:
    """Arrives once all earlier copies of the thread have landed; without .noinc the pending count grows by one first."""
    address, more = d.address(ins.operands[0]), "noinc" not in ins

    def run(path: Path) -> None:
        wave, known = path.wave, copies(path)
        at, lanes = barrier_address(path, address, ins), path.lanes()
        warps, ctas = path.flat_warps, path.ctas
        for key in np.unique(at):
            counter = wave.barriers.mbarrier(int(key), ctas[at == key], ins, warps[at == key])
            if more:
                np.add.at(counter.pending, ctas[at == key], 1)
        here = np.zeros(wave.lanes, bool)
        here[lanes] = True
        mine = [copy for copy in known.open if here[copy.lanes].any()]
        known.open = [copy for copy in known.open if not any(copy is other for other in mine)]
        each = np.unique(warps)
        clock = wave.async_clock[each, COPY].copy()
        wave.async_clock[each, COPY] += 1
        agents = COPY * wave.warps + each // len(wave.ctas)

        def land() -> None:
            for copy in mine:
                copy.land()
            for key in np.unique(at):
                counter = wave.barriers.mbarrier(int(key), ctas[at == key], ins)
                its = np.isin(each, warps[at == key])
                np.maximum.at(counter.gathered, (each[its] % len(wave.ctas), agents[its]), clock[its])
            wave.barriers.arrive(path, at, ins, warps=warps, ctas=ctas)

        wave.scheduler.take_off(land, "copy")

    return run


# ── matrices ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _matrix_rows(path: Path, ins: Instruction, address: Any, count: int) -> tuple[Array, Array]:
    """(offset, warp) of each 16-byte row that a matrix instruction names: lanes 0 … 8·count-1 of each warp."""
    together(path, ins)
    at = addresses(path, address).reshape(-1, WARP)[:, : 8 * count].reshape(-1)
    lanes = path.lanes().reshape(-1, WARP)[:, : 8 * count].reshape(-1)
    _, at = spaces(path, "shared" if any(p.startswith("shared") for p in ins.parts) else "", at, ins)
    part = Path(path.wave, lanes, 0, None) if len(lanes) < len(path.lanes()) else path
    return path.wave.shared.locate(part, at, 16, ins), path.wave.flat_warp[lanes]


def _matrices(ins: Instruction) -> int:
    only(ins, "aligned", "m8n8", "trans", "x1", "x2", "x4")
    return next(int(part[1:]) for part in ins.parts if part in ("x1", "x2", "x4"))


@handles("ldmatrix")
def _load_matrix(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "ldmatrix": lane 4r + c gets row r, columns 2c and 2c+1 of each 8x8 matrix of 16 bits (of its transpose)."""
    count, transposed = _matrices(ins), "trans" in ins
    outs = [d.out(text, 32) for text in d.vector(ins.operands[0])]
    address = d.address(ins.operands[1])

    def run(path: Path) -> None:
        offset, warps = _matrix_rows(path, ins, address, count)
        path.wave.shared.read(path, offset, 16, ins, warps)
        rows = path.wave.shared.view(4, 4).take(offset >> 4, axis=0).reshape(-1, count, 8, 4)
        if transposed:
            halves = rows.view(np.uint16).transpose(0, 1, 3, 2)
            rows = np.ascontiguousarray(halves).view(np.uint32)
        r = path.r["u32"]
        for index, out in enumerate(outs):
            path.put(r[out], rows[:, index].reshape(-1))

    return run


@handles("stmatrix")
def _store_matrix(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "stmatrix": the other way round."""
    count, transposed = _matrices(ins), "trans" in ins
    address, sources = d.address(ins.operands[0]), [d.row(text, 32) for text in d.vector(ins.operands[1])]

    def run(path: Path) -> None:
        offset, warps = _matrix_rows(path, ins, address, count)
        path.wave.shared.write(path, offset, 16, ins, warps)
        r = path.r["u32"]
        rows = np.stack([path.pick(r[source]).reshape(-1, 8, 4) for source in sources], axis=1)
        if transposed:
            halves = np.ascontiguousarray(rows).view(np.uint16).transpose(0, 1, 3, 2)
            rows = np.ascontiguousarray(halves).view(np.uint32)
        path.wave.shared.view(4, 4)[offset >> 4] = rows.reshape(-1, 4)

    return run


@handles("mma.sync")
def _mma(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "Matrix Fragments for mma.m16n8k16": D[16x8] = A[16x16]·B[16x8] + C, f16 or bf16 in, f32 or f16 out.

    With g = lane / 4 and t = lane % 4: A's registers hold rows g and g+8, then the same at k+8; B's hold column g at k 2t and
    2t+1, then at k+8; D's hold row g, columns 2t and 2t+1, then row g+8. `tensor_core` says how it sums.
    A fragment that several instructions of a block use is unpacked once.
    """
    only(ins, "aligned", "row", "col", "m16n8k16", "m16n8k8", "bf16")
    if ins.parts[2:6] != ("aligned", ins.parts[3], "row", "col") or ins.parts[3] not in ("m16n8k16", "m16n8k8"):
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    kind_d, kind_a, kind_b, kind_c = ins.parts[6:10]
    if kind_a not in ("f16", "bf16") or kind_b != kind_a or kind_d != kind_c or kind_d not in ("f16", "f32"):
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    halves_of_k = 2 if ins.parts[3] == "m16n8k16" else 1
    a, b, c = ([d.row(text, 32) for text in d.vector(operand)] for operand in ins.operands[1:])
    key = ("a", *((row, 32) for row in a))
    ready = key in d.fragments
    d.fragments[key] = True
    outs = [d.out(text, 32) for text in d.vector(ins.operands[0])]
    single, brain = kind_d == "f32", kind_a == "bf16"
    depth, least = 8 * halves_of_k, -126 if brain else -14

    def unpack(register: Array) -> Array:
        """[warp, g, t, 2] of one register."""
        if brain:
            words = register.reshape(-1, 8, 4)
            both = np.empty((*words.shape, 2), np.uint32)
            both[..., 0], both[..., 1] = words << np.uint32(16), words & np.uint32(0xFFFF0000)
            return both.view(np.float32)
        return np.ascontiguousarray(register).view(np.float16).reshape(-1, 8, 4, 2)

    def exact(path: Path, left: Array, right: Array) -> None:
        r, parts = path.r["u32"], len(c)
        held: Array = np.stack([r[row] for row in c]).view(np.float32 if single else np.float16)
        held = held.reshape(2, 2 if single else 1, -1, 8, 4, 1 if single else 2)  # row g or g+8, column 2t or 2t+1
        before = held.transpose(2, 0, 3, 4, 1, 5).reshape(-1, 16, 8)
        total = tensor_core.multiply(left, right, before, not single, least, True)
        total = total.reshape(-1, 2, 8, 4, 2 if single else 1, 1 if single else 2).transpose(1, 4, 0, 2, 3, 5)
        rows = np.ascontiguousarray(total).view(np.uint32).reshape(parts, -1)
        for index, out in enumerate(outs):
            np.copyto(r[out], rows[index], where=path.mask)

    def run(path: Path) -> None:
        together(path, ins)
        r = path.r["u32"]
        warps = (path.stop - path.start) // WARP
        left = path.cache.get(key) if ready else None
        if left is None:
            left = np.empty((warps, 2, 8, halves_of_k, 4, 2), np.float32)
            for index, row in enumerate(a):
                left[:, index % 2, :, index // 2] = unpack(r[row])
            left = left.reshape(warps, 16, depth)
            path.cache[key] = left
        right: Array = np.empty((warps, 8, halves_of_k, 4, 2), np.float32)
        for index, row in enumerate(b):
            right[:, :, index] = unpack(r[row])
        right = right.reshape(warps, 8, depth)
        if path.wave.extra.get("exact_sums"):
            exact(path, left, right)
            return
        product = tensor_core.multiply(left, right, None, False, least, False).reshape(warps, 2, 8, 4, 2)
        if single:
            f = path.r["f32"]
            if path.mask is True:
                for index in range(4):
                    np.add(
                        product[:, index // 2, :, :, index % 2], f[c[index]].reshape(-1, 8, 4),
                        out=f[outs[index]].reshape(-1, 8, 4),
                    )  # fmt: skip
            else:
                sums = [product[:, i // 2, :, :, i % 2].reshape(-1) + f[c[i]] for i in range(4)]
                for index in range(4):
                    np.copyto(f[outs[index]], sums[index], where=path.mask)
            return
        for index in range(2):
            before = r[c[index]].view(np.float16).astype(np.float32)
            total = (product[:, index].reshape(-1) + before).astype(np.float16)
            np.copyto(r[outs[index]], total.view(np.uint32), where=path.mask)

    return run
