"""sm_100a and sm_103a: tcgen05.mma and tcgen05.commit, of one CTA and of two.

What an MMA reads and writes belongs to an asynchronous agent of the warp that issued it, until an mbarrier that a commit arrived
on tells of its end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from faperf.emulator import tensor_core
from faperf.emulator.batch import WRITE
from faperf.emulator.decode import Decoder, Operation, addresses, handles
from faperf.emulator.fault import (
    BAD_DESCRIPTOR,
    TMEM,
    UNINITIALISED,
    DiagnosisError,
    NotEmulatedError,
)
from faperf.emulator.matrix import footprints, tcgen05_descriptor
from faperf.emulator.ops_common import in_turn_where_wrong, only, spread, within
from faperf.emulator.ops_sm80 import barrier_address
from faperf.emulator.ops_sm100 import LANES, WINDOWS, group_of, tensor_memory
from faperf.emulator.provenance import origins
from faperf.emulator.ptx import Instruction
from faperf.emulator.state import CLOCK_BITS, RANK_BIT, TENSOR, WARP, Array, Path


class TensorMma:
    """PTX ISA "tcgen05.mma", kind::f16: D[M x N] in tensor memory (+)= A[M x 16]·B[16 x N].

    A from shared or tensor memory (two halves a column), B from shared memory. M = 128: row r is lane r. M = 64 (layout F):
    row r is lane 32·(r / 16) + r mod 16, or 16 further where the address says lane 16; so is A in tensor memory. An f16 D takes
    the lower half of a column.

    With cta_group::2 two CTAs, of ranks 2i and 2i + 1, each hold half of A's rows, half of B's and half of D's, at the same
    places. M = 256: their row r is lane r (layout A). M = 128: row r is lane r of the columns of the first N / 2, and lane 64 + r
    of those of the others (layout B).
    """

    def __init__(self, d: Decoder, ins: Instruction) -> None:
        self.pair = group_of(ins)
        only(ins, "mma", "cta_group::1", "cta_group::2", "kind::f16")
        if len(ins.operands) not in (5, 6):
            raise NotEmulatedError(f"{ins.opcode} with {len(ins.operands)} operands", ins.place)
        self.masks = [d.row(text, 32) for text in d.vector(ins.operands[4])] if len(ins.operands) == 6 else []
        self.ins, self.from_tmem = ins, ins.operands[1].startswith("[")
        self.to = d.address(ins.operands[0])
        self.left: Any = d.address(ins.operands[1]) if self.from_tmem else d.row(ins.operands[1], 64)
        self.rows = (d.row(ins.operands[2], 64), d.row(ins.operands[3], 32), d.row(ins.operands[-1], 1))
        self.key = (ins.parts, self.from_tmem)

    def given(self, path: Path) -> Array:
        """[address of D, that of A (or descriptor), descriptor of B, instruction descriptor, whether it adds] by lane."""
        if any(path.pick(path.r["u32"][row]).any() for row in self.masks):
            raise NotEmulatedError(f"{self.ins.opcode} with lanes of its output disabled", self.ins.place)
        left = addresses(path, self.left) if self.from_tmem else path.pick(path.r["u64"][self.left])
        others = [path.pick(path.r[kind][row]) for kind, row in zip(("u64", "u32", "pred"), self.rows, strict=True)]
        return np.array([part.astype(np.uint64) for part in (addresses(path, self.to), left, *others)])

    def run(self, path: Path) -> None:
        TensorMma.do(path, [self])

    @staticmethod
    def together(parts: list[TensorMma]) -> Operation:
        return in_turn_where_wrong(lambda path: TensorMma.do(path, parts), parts)

    @staticmethod
    def do(path: Path, parts: list[TensorMma]) -> None:
        """Those that add to the accumulator of the one before become one product over all their k."""
        warps, given = path.flat_warps, [part.given(path) for part in parts]
        apart = bool(path.wave.extra.get("exact_sums"))  # by the k of one instruction
        pairs = set((path.homes // parts[0].pair).tolist())
        alike = all((each == each[:, :1]).all() for each in given) and len(pairs) == len(warps)
        for lanes in [slice(None)] if alike else [slice(n, n + 1) for n in range(len(warps))]:
            chain: list[tuple[TensorMma, list[int]]] = []
            for part, each in zip(parts, given, strict=True):
                mine = each[:, lanes][:, 0].tolist()
                if chain and (apart or not (mine[0] == chain[0][1][0] and mine[3] == chain[0][1][3] and mine[4])):
                    Product(path, warps[lanes], chain).run()
                    chain = []
                chain.append((part, mine))
            Product(path, warps[lanes], chain).run()


@handles("tcgen05.mma", memory=WRITE)
def _mma(d: Decoder, ins: Instruction) -> TensorMma:
    return TensorMma(d, ins)


class Product:
    """tcgen05.mma that add up to one product, by a thread of each of some CTAs: `flat` are their warps."""

    def __init__(self, path: Path, flat: Array, chain: list[tuple[TensorMma, list[int]]]) -> None:
        self.path, self.wave, self.tmem, self.chain = path, path.wave, tensor_memory(path.wave), chain
        first, (goal, _, _, bits, adds) = chain[0]
        self.ins, self.goal, self.adds, self.pair = first.ins, goal, bool(adds), first.pair
        homes = path.wave.home_of_warp[flat]
        if path.wave.size % self.pair:
            raise DiagnosisError(TMEM, f"an MMA of two CTAs in a cluster of {path.wave.size}", self.ins.place)
        if self.pair == 2:
            flat, homes = np.repeat(flat, 2), (homes[:, None] & ~1 | np.arange(2)).reshape(-1)
        self.flat, self.ctas = flat[:, None], homes[:, None]
        self.m, self.n, self.single = _instruction(bits, self.pair, self.ins)
        self.folds = 2 if self.pair == 2 and self.m == LANES else 1
        """How many columns of D a lane has for one of tensor memory, those of one half of the lanes after those of the other."""
        self.across_a, self.across_b = bool(bits >> 15 & 1), bool(bits >> 16 & 1)
        self.agent = TENSOR * self.wave.warps + self.flat // len(self.wave.ctas)
        self.stamp = self.agent << CLOCK_BITS | self.wave.async_clock[self.flat, TENSOR]
        if self.pair == 2 and (visits := self.wave.shared.visits) is not None:
            visits.visit(flat, homes, self.ins, later=True)
            visits.comes(flat, homes, self.agent[:, 0], self.wave.async_clock[flat, TENSOR], self.ins)
        every = len(flat) == len(self.wave.ctas) * self.wave.size and bool((np.diff(self.ctas[:, 0]) > 0).all())
        self.which: Any = slice(None) if every else self.ctas[:, 0]

    def run(self) -> None:
        wave, tmem = self.wave, self.tmem
        half = self._half(self.goal >> 16, "accumulates from")
        first = self.goal & 0xFFFF
        columns = np.arange(first, first + self.n // self.folds)
        tmem.check(self.flat, self.ctas, columns, self.ins)
        place = (self.ctas[..., None], WINDOWS[:, None], columns)
        before = wave.clocks[self.flat, self.agent]
        wave.clocks[self.flat, self.agent] = wave.async_clock[self.flat, TENSOR]  # one thread's MMAs run in their order
        try:
            tmem.told(self.flat[..., None], *place, self.ins)
            tmem.unread(self.flat[..., None], *place, self.ins)
            if (kept := origins(wave)) is None:
                left, right = self._operands(self.chain)
            else:  # one after the other: each may be named
                pairs = []
                for part in self.chain:
                    self.ins = part[0].ins
                    pairs.append(self._operands([part]))
                    if not part[0].from_tmem:
                        kept.look_at_pair(self.ins)
                left, right = (np.concatenate(parts, axis=2) for parts in zip(*pairs, strict=True))
        finally:
            wave.clocks[self.flat, self.agent] = before
        lanes = self.m * self.folds // self.pair // 4  # of each window
        at = (slice(first, first + len(columns)), slice(None), self.which, slice(half, half + lanes))
        shape = (-1, self.pair, len(columns), self.folds, self.m // self.pair)
        before = None
        if self.adds:
            if not tmem.written[at].all():
                raise DiagnosisError(
                    UNINITIALISED, f"{self.who} adds to an accumulator that nothing has written", self.ins.place
                )
            old = (
                tmem.cells[at].transpose(2, 0, 1, 3).reshape(shape).transpose(0, 3, 2, 1, 4).reshape(-1, self.n, self.m)
            )
            before = old.view(np.float32) if self.single else old.astype(np.uint16).view(np.float16)
        exact = bool(wave.extra.get("exact_sums"))
        total = tensor_core.multiply(
            right, left, before, not self.single, -14, exact
        )  # of D, the transpose: as cells lie
        total = total.view(np.uint32 if self.single else np.uint16)
        total = total.reshape(-1, self.folds, len(columns), self.pair, self.m // self.pair).transpose(0, 3, 2, 1, 4)
        tmem.cells[at] = total.reshape(-1, len(columns), 4, lanes).transpose(1, 2, 0, 3)
        tmem.written[at] = True
        tmem.stamp[place], tmem.line[place] = self.stamp[..., None], self.ins.index

    @property
    def who(self) -> str:
        return self.wave.name_of(int(self.flat[0, 0]) * WARP)

    def _half(self, lane: int, does: str) -> int:
        if lane not in ((0, 16) if self.m == LANES // 2 else (0,)):
            raise DiagnosisError(
                TMEM, f"{self.who} {does} lane {lane} of tensor memory on with M = {self.m}", self.ins.place
            )
        return lane

    def _operands(self, chain: list[tuple[TensorMma, list[int]]]) -> tuple[Array, Array]:
        """A and B of neighbours in the chain, side by side along k."""
        lefts, rights = ([given[which] for _, given in chain] for which in (1, 2))
        if not chain[0][0].from_tmem:
            left = self._from_shared(lefts, self.m, self.across_a)
        elif lefts == list(range(lefts[0], lefts[0] + 8 * len(lefts), 8)):
            left = self._from_tmem(lefts[0], 8 * len(lefts))
        else:
            left = np.concatenate([self._from_tmem(address, 8) for address in lefts], axis=2)
        return left, self._from_shared(rights, self.n, self.across_b)

    def _from_tmem(self, address: int, count: int) -> Array:
        """A: [product, M, 2 · count] from `count` columns."""
        if self.folds > 1:
            raise NotEmulatedError(f"{self.ins.opcode} of M = {self.m} with A in tensor memory", self.ins.place)
        tmem, first = self.tmem, address & 0xFFFF
        half = self._half(address >> 16, "reads A from")
        columns = np.arange(first, first + count)
        tmem.check(self.flat, self.ctas, columns, self.ins)
        place = (self.ctas[..., None], WINDOWS[:, None], columns)
        tmem.told(self.flat[..., None], *place, self.ins)
        rows = slice(half, half + self.m // self.pair // 4)
        if not tmem.written[first : first + count, :, self.which, rows].all():
            raise DiagnosisError(
                UNINITIALISED, f"{self.who} multiplies columns from {first} on, not all written", self.ins.place
            )
        tmem.async_read[place] = self.stamp[..., None]
        cells = tmem.cells[first : first + count, :, self.which, rows].transpose(2, 1, 3, 0)
        halves: Array = np.ascontiguousarray(cells).view(np.float16).reshape(-1, self.m, 2 * count)
        return halves.astype(np.float32)

    def _from_shared(self, descriptors: list[int], rows: int, across: bool) -> Array:
        """[product, rows, 16 · descriptors] in shared memory, which the tensor pipe reads from now on."""
        shared = self.wave.shared
        each = tuple(tcgen05_descriptor(bits, self.ins) for bits in descriptors)
        place = footprints(each, rows // self.pair, 16, across)
        within(self.path, place, self.ins)
        base = self.ctas * (shared.size >> 4)
        shared.read_later(self.flat, base + place.chunks.reshape(-1), self.stamp, self.ins)
        if (kept := origins(self.wave)) is not None:
            kept.look(place, base[:, 0], self.wave, self.ins)
        return place.gather(shared.view(2, 8), base[:, 0]).reshape(-1, rows, 16 * len(each))


def _instruction(bits: int, pair: int, ins: Instruction) -> tuple[int, int, bool]:
    """(M, N, f32 accumulators) of an instruction descriptor of kind::f16. Raises DiagnosisError for one that is none."""
    kind_d, kind_a, kind_b = bits >> 4 & 3, bits >> 7 & 7, bits >> 10 & 7
    n, m = (bits >> 17 & 63) << 3, (bits >> 24 & 31) << 4
    if bits & 0b1111 or bits >> 13 & 3 or kind_a or kind_b or bits >> 23 & 1 or bits >> 29:
        raise NotEmulatedError(f"instruction descriptor {bits:#010x}", ins.place)
    if m not in (64 * pair, 128 * pair) or kind_d > 1 or not 8 <= n <= 256 or n % (8 if m == 64 else 16):
        what = f"instruction descriptor {bits:#010x}: M = {m}, N = {n}, D of type {kind_d} with cta_group::{pair}"
        raise DiagnosisError(BAD_DESCRIPTOR, what, ins.place)
    if n % (16 * pair) and pair == 2:
        raise NotEmulatedError(f"{ins.opcode} with N = {n}", ins.place)
    return m, n, kind_d == 1


@handles("tcgen05.commit")
def _commit(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "tcgen05.commit": an mbarrier gets one arrival when all MMAs of the thread so far are over."""
    group_of(ins)
    only(
        ins, "commit", "cta_group::1", "cta_group::2", "mbarrier::arrive::one", "shared::cluster", "multicast::cluster"
    )
    address = d.address(ins.operands[0])
    mask = d.row(ins.operands[1], 16) if "multicast::cluster" in ins else None

    def run(path: Path) -> None:
        wave, at = path.wave, barrier_address(path, address, ins, later=True)
        warps, ctas = path.flat_warps, path.ctas
        if mask is not None:
            which, at = spread(path, at, path.pick(path.r["u16"][mask]), 8, ins)
            warps, ctas = warps[which], ctas[which]
        agents = TENSOR * wave.warps + warps // len(wave.ctas)
        clock = wave.async_clock[warps, TENSOR].copy()
        wave.async_clock[np.unique(warps), TENSOR] += 1
        if wave.shared.visits is not None:
            wave.shared.visits.comes(warps, ctas * wave.size + (at >> RANK_BIT), agents, clock, ins)
        knew = wave.clocks[warps].copy()

        def land() -> None:
            for index in range(len(at)):
                counter = wave.barriers.mbarrier(int(at[index]), ctas[index : index + 1], ins)
                heard = counter.gathered[ctas[index]]
                np.maximum(heard, knew[index], out=heard)
                heard[agents[index]] = max(heard[agents[index]], clock[index])
            wave.barriers.arrive(path, at, ins, warps=warps, ctas=ctas, tell=False)

        wave.scheduler.take_off(land, "commit")

    return run
