"""sm_80: cp.async, ldmatrix, stmatrix, mma.m16n8k16, mbarrier and the barriers of a CTA."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from faperf.emulator import tensor_core
from faperf.emulator.barrier import PhaseWait, WaitEach, meetings
from faperf.emulator.batch import PURE, READ, WRITE
from faperf.emulator.decode import Blocking, Decoder, Operation, addresses, all_addresses, blocks, handles
from faperf.emulator.fault import NotEmulatedError
from faperf.emulator.ops_common import in_turn_where_wrong, only, own, selected, spaces, together
from faperf.emulator.provenance import origins
from faperf.emulator.ptx import Instruction
from faperf.emulator.rounding import from_brain, halves_of
from faperf.emulator.state import CLOCK_BITS, COPY, DTYPES, WARP, Array, Path

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
        for key, part in meetings(path, path.pick(path.r["u32"][number])):
            count = None if threads is None else part.pick(part.r["u32"][threads])
            waits.append((part.lanes(), path.wave.barriers.sync(part, key, count, ins, wait)))
        return waits

    return run


# ── mbarrier ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def barrier_address(path: Path, address: Any, ins: Instruction, later: bool = False) -> Array:
    """Each lane's address of an mbarrier, checked to be 8 aligned bytes of shared memory."""
    space = "shared" if any(part.startswith("shared") for part in ins.parts) else ""
    _, at = spaces(path, space, addresses(path, address), ins)
    path.wave.shared.locate(path, at, 8, ins, later=later)
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
        own(path, at, ins)
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
    """cp.async of some lanes: their groups, and what is to land where; arrays are [instruction, lane]."""

    def __init__(self, path: Path, group: Array, offset: Array, data: Array) -> None:
        self.wave, self.lanes, self.group, self.offset, self.data = path.wave, path.lanes(), group, offset, data
        self.there = False

    def land(self) -> None:
        if not self.there:
            self.there = True
            size = self.data.shape[-1] * 4
            self.wave.shared.view(4, size // 4)[self.offset // size] = self.data
            self.wave.shared.landed(self.offset, size)


def copies(path: Path) -> Copies:
    return path.wave.extra.setdefault("copies", Copies(path.wave.lanes))  # type: ignore[no-any-return]


class CopyAsync:
    """Copies 4, 8 or 16 bytes a lane; `src-size` fewer, and zeros after them; `ignore-src` only zeros."""

    def __init__(self, d: Decoder, ins: Instruction) -> None:
        operands = [text for text in ins.operands if text != "_"]
        if "L2::cache_hint" in ins:
            operands.pop()
        self.ins, self.to, self.source, self.size = (
            ins,
            d.address(operands[0]),
            d.address(operands[1]),
            d.number(operands[2]),
        )
        by_size = len(operands) > 3 and d.bits(operands[3], 32) == 32
        self.fewer = d.row(operands[3], 32) if by_size else None
        self.ignored = d.row(operands[3], 1) if len(operands) > 3 and not by_size else None
        self.whole = len(operands) == 3
        self.key = ("cp.async", self.size, self.to.kind, self.source.kind) if self.whole else object()

    def run(self, path: Path) -> None:
        CopyAsync.do(path, [self])

    @staticmethod
    def together(parts: list[CopyAsync]) -> Operation:
        return in_turn_where_wrong(lambda path: CopyAsync.do(path, parts), parts)

    @staticmethod
    def do(path: Path, parts: list[CopyAsync]) -> None:
        wave, one = path.wave, parts[0]
        size, ins = one.size, one.ins
        to = all_addresses(path, [part.to for part in parts])
        own(path, to, ins)
        offset = wave.shared.locate(path, to, size, ins)
        at = all_addresses(path, [part.source for part in parts])
        if one.whole:
            where = wave.memory.locate(path, at, size, ins)
            data = wave.memory.view(4, size // 4).take(where // size, axis=0)
        else:
            data = one.some(path, at[0])[None]
        warps = path.flat_warps
        agent = COPY * wave.warps + warps // len(wave.ctas)
        wave.shared.write_later(warps, offset, size, agent << CLOCK_BITS | wave.async_clock[warps, COPY], ins)
        known = copies(path)
        copy = Copy(path, known.group[path.lanes()], offset, data)
        known.open.append(copy)
        if wave.scheduler.lands_early:
            wave.scheduler.take_off(copy.land, "copy")

    def some(self, path: Path, at: Array) -> Array:
        """What fewer bytes than whole give, [lane, word]."""
        memory, data = path.wave.memory, np.zeros((len(at), self.size), np.uint8)
        if self.fewer is not None:
            count = np.minimum(path.pick(path.r["u32"][self.fewer]).astype(np.int64), self.size)
        else:
            count = np.where(path.pick(path.r["pred"][self.ignored or 0]), 0, self.size)
        for lane in np.flatnonzero(count):
            part = memory.locate(path, at[lane : lane + 1], int(count[lane]), self.ins, align=self.size)
            data[lane, : count[lane]] = memory.bytes[part[0] : part[0] + count[lane]]
        return data.view(np.uint32)


@handles("cp.async.ca", "cp.async.cg", memory=WRITE)
def _copy(d: Decoder, ins: Instruction) -> CopyAsync:
    return CopyAsync(d, ins)


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


class Matrices(ABC):
    """ldmatrix or stmatrix: an address, the registers, how many matrices of 8 × 8 halves, whether transposed."""

    def __init__(self, d: Decoder, ins: Instruction, address: str, rows: list[int]) -> None:
        only(ins, "aligned", "m8n8", "trans", "x1", "x2", "x4")
        self.ins, self.rows, self.transposed = ins, rows, "trans" in ins
        self.count = next(int(part[1:]) for part in ins.parts if part in ("x1", "x2", "x4"))
        self.address = d.address(address)
        self.key = (type(self), ins.parts, self.address.kind)

    def places(self, path: Path, parts: list[Any]) -> tuple[Array, Array]:
        """(offset, warp) of each 16-byte row that the instructions name: lanes 0 … 8·count-1, [instruction, warp, row]."""
        together(path, self.ins)
        at = all_addresses(path, [part.address for part in parts])
        at = at.reshape(len(parts), -1, WARP)[:, :, : 8 * self.count]
        lanes = path.lanes().reshape(-1, WARP)[:, : 8 * self.count]
        space = "shared" if any(p.startswith("shared") for p in self.ins.parts) else ""
        _, at = spaces(path, space, at, self.ins, lanes)
        return path.wave.shared.locate(path, at, 16, self.ins, lanes=lanes), path.wave.flat_warp[lanes[:, :1]]

    def run(self, path: Path) -> None:
        self.do(path, [self], self.picked([self]))

    @classmethod
    def together(cls, parts: list[Any]) -> Operation:
        rows = cls.picked(parts)
        return in_turn_where_wrong(lambda path: cls.do(path, parts, rows), parts)

    @staticmethod
    def picked(parts: list[Any]) -> Any:
        return selected([row for part in parts for row in part.rows], each=True)

    @staticmethod
    @abstractmethod
    def do(path: Path, parts: list[Any], rows: Any) -> None:
        """Several of the instructions at once, over the registers that `picked` chose."""


class LoadMatrix(Matrices):
    """PTX ISA "ldmatrix": lane 4r + c gets row r, columns 2c and 2c+1 of each 8x8 matrix of 16 bits (of its transpose)."""

    @staticmethod
    def do(path: Path, parts: list[Any], rows: Any) -> None:
        one = parts[0]
        offset, warps = one.places(path, parts)
        path.wave.shared.read(path, offset, 16, one.ins, warps)
        found = path.wave.shared.view(4, 4).take(offset >> 4, axis=0).reshape(len(parts), -1, one.count, 8, 4)
        if one.transposed:  # [matrix, row, column] of halves
            halves = found.view(np.uint16).transpose(0, 2, 1, 4, 3)
            found = np.ascontiguousarray(halves).view(np.uint32)
        else:
            found = found.transpose(0, 2, 1, 3, 4)
        values, table = found.reshape(len(parts) * one.count, -1), path.r.tables["u32"]
        if path.mask is True:
            table[rows] = values
            return
        kept = table[rows]
        kept = kept.copy() if isinstance(rows, slice) else kept
        kept[:, path.mask] = values
        table[rows] = kept


class StoreMatrix(Matrices):
    """PTX ISA "stmatrix": the other way round."""

    @staticmethod
    def do(path: Path, parts: list[Any], rows: Any) -> None:
        one = parts[0]
        offset, warps = one.places(path, parts)
        path.wave.shared.write(path, offset, 16, one.ins, warps)
        values = path.r.tables["u32"][rows]
        values = values if path.mask is True else values[:, path.mask]
        values = values.reshape(len(parts), one.count, -1, 8, 4).transpose(0, 2, 1, 3, 4)
        if one.transposed:
            halves = np.ascontiguousarray(values).view(np.uint16).transpose(0, 1, 2, 4, 3)
            values = np.ascontiguousarray(halves).view(np.uint32)
        path.wave.shared.view(4, 4)[(offset >> 4).reshape(-1)] = values.reshape(-1, 4)


@handles("ldmatrix", memory=READ)
def _load_matrix(d: Decoder, ins: Instruction) -> LoadMatrix:
    return LoadMatrix(d, ins, ins.operands[1], [d.out(text, 32) for text in d.vector(ins.operands[0])])


@handles("stmatrix", memory=WRITE)
def _store_matrix(d: Decoder, ins: Instruction) -> StoreMatrix:
    return StoreMatrix(d, ins, ins.operands[0], [d.row(text, 32) for text in d.vector(ins.operands[1])])


class Mma:
    """PTX ISA "Matrix Fragments for mma.m16n8k16": D[16x8] = A[16x16]·B[16x8] + C, f16 or bf16 in, f32 or f16 out.

    With g = lane / 4 and t = lane % 4: A's registers hold rows g and g+8, then the same at k+8; B's hold column g at k 2t and
    2t+1, then at k+8; D's hold row g, columns 2t and 2t+1, then row g+8. `tensor_core` says how it sums.
    """

    def __init__(self, d: Decoder, ins: Instruction) -> None:
        only(ins, "aligned", "row", "col", "m16n8k16", "m16n8k8", "bf16")
        if ins.parts[2:6] != ("aligned", ins.parts[3], "row", "col") or ins.parts[3] not in ("m16n8k16", "m16n8k8"):
            raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
        kind_d, kind_a, kind_b, kind_c = ins.parts[6:10]
        if kind_a not in ("f16", "bf16") or kind_b != kind_a or kind_d != kind_c or kind_d not in ("f16", "f32"):
            raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
        self.ins, self.single, self.brain = ins, kind_d == "f32", kind_a == "bf16"
        self.halves = 2 if ins.parts[3] == "m16n8k16" else 1
        self.a, self.b, self.c = ([d.row(text, 32) for text in d.vector(operand)] for operand in ins.operands[1:])
        self.outs = [d.out(text, 32) for text in d.vector(ins.operands[0])]
        self.key = ("mma", ins.parts)

    def run(self, path: Path) -> None:
        Mma.together([self])(path)

    @staticmethod
    def together(parts: list[Mma]) -> Operation:
        """Those that share an A become one product with their B side by side."""
        one = parts[0]
        groups: dict[tuple[int, ...], list[Mma]] = {}
        for part in parts:
            groups.setdefault(tuple(part.a), []).append(part)
        plan = [
            (
                selected(list(a), each=True), len(group), selected([row for part in group for row in part.b], each=True),
                selected([row for part in group for row in part.c]), selected([row for part in group for row in part.outs]),
            )
            for a, group in groups.items()
        ]  # fmt: skip
        ins, halves, depth, unpack = one.ins, one.halves, 8 * one.halves, _unpack_brain if one.brain else _unpack
        single, kind, least = one.single, "f32" if one.single else "f16", -126 if one.brain else -14
        lines = (2, 2, 1) if single else (2, 1, 2)  # row g or g+8, then columns 2t and 2t+1: registers, halves in them

        def run(path: Path) -> None:
            together(path, ins)
            table, mask = path.r.tables["u32"], path.mask
            warps = (path.stop - path.start) // WARP
            exact = bool(path.wave.extra.get("exact_sums"))
            for a, n, b, c, outs in plan:
                if single and not one.brain and not exact and origins(path.wave) is None:
                    product = _in_quads(table[a], table[b], n, halves, warps)
                    if mask is True and isinstance(outs, slice):
                        np.add(product, table[c].view(np.float32), out=table[outs].view(np.float32))
                    else:
                        made = (product + table[c].view(np.float32)).view(np.uint32)
                        table[outs] = made if mask is True else np.where(mask, made, table[outs])
                    continue
                left = np.empty((warps, 2, 8, halves, 4, 2), np.float32)
                left.transpose(3, 1, 0, 2, 4, 5)[...] = unpack(table[a], halves, 2, warps)
                right = np.empty((warps, n, 8, halves, 4, 2), np.float32)
                right.transpose(1, 3, 0, 2, 4, 5)[...] = unpack(table[b], n, halves, warps)
                if (kept := origins(path.wave)) is not None:
                    for operand, rows in ((left, 16), (right, 8)):
                        kept.look_at(halves_of(operand.reshape(-1, rows, depth), one.brain), ins)
                held = np.broadcast_to(table[c], (n * lines[0] * lines[1], table.shape[1])).view(DTYPES[kind])
                before = held.reshape(n, *lines[:2], warps, 8, 4, lines[2]).transpose(3, 1, 4, 0, 5, 2, 6)
                total = tensor_core.multiply(
                    left.reshape(warps, 16, depth), right.reshape(warps, 8 * n, depth), before.reshape(warps, 16, 8 * n),
                    not single, least, exact,
                )  # fmt: skip
                total = total.reshape(warps, 2, 8, n, 4, *lines[1:]).transpose(3, 1, 5, 0, 2, 4, 6)
                made = np.ascontiguousarray(total).view(np.uint32).reshape(-1, table.shape[1])
                table[outs] = made if mask is True else np.where(mask, made, table[outs])

        return run


def _in_quads(a: Array, b: Array, n: int, halves: int, warps: int) -> Array:
    """n products of f16 as D's registers lie, [4n, lane] of float32; of A's and B's registers, [register, lane].

    The four lanes of a row move together, 16 bytes in all: B's columns stand as (odd or even, lane), as D's registers do.
    """
    rows, columns = (np.ascontiguousarray(each).view(np.complex128) for each in (a, b))
    left = rows.reshape(halves, 2, warps, 8).transpose(2, 1, 3, 0)  # [warp, 2, g, k / 8]
    right = columns.reshape(n, halves, warps, 4, 2).transpose(2, 0, 4, 3, 1)  # [warp, n, odd, t, k / 8]
    x, y = (np.ascontiguousarray(each).view(np.float16).astype(np.float32) for each in (left, right))
    total = tensor_core.multiply(
        x.reshape(warps, 16, 8 * halves), y.reshape(warps, 8 * n, 8 * halves), None, False, -14, False
    )
    quads = total.view(np.complex128).reshape(warps, 2, 8, n, 2).transpose(3, 1, 4, 0, 2)
    return np.ascontiguousarray(quads).view(np.float32).reshape(4 * n, -1)


def _unpack(rows: Array, first: int, second: int, warps: int) -> Array:
    """Registers [first · second, lane] of two halves each → [first, second, warp, g, t, 2]."""
    return np.ascontiguousarray(rows).view(np.float16).reshape(first, second, warps, 8, 4, 2)


def _unpack_brain(rows: Array, first: int, second: int, warps: int) -> Array:
    return from_brain(np.ascontiguousarray(rows).view(np.uint16)).reshape(first, second, warps, 8, 4, 2)


@handles("mma.sync", memory=PURE)
def _mma(d: Decoder, ins: Instruction) -> Mma:
    return Mma(d, ins)
