"""sm_100a and sm_103a: tensor memory and tcgen05, for one CTA (cta_group::1).

Tensor memory has 128 lanes of 512 columns of 32 bits. What an MMA writes belongs to an asynchronous agent of the warp that
issued it, until an mbarrier that a commit arrived on tells of its end; a warp that reads it earlier misses a wait. A load's
values are in its registers at once: a missing wait::ld is not found, nor is a missing fence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from faperf.emulator.decode import Decoder, Operation, addresses, handles
from faperf.emulator.fault import (
    BAD_DESCRIPTOR,
    MISSING_WAIT,
    OUT_OF_BOUNDS,
    RACE,
    TMEM,
    UNINITIALISED,
    DiagnosisError,
    NotEmulatedError,
)
from faperf.emulator.matrix import addresses_of, tcgen05_descriptor
from faperf.emulator.memory import CLOCK_BITS
from faperf.emulator.ops_common import only, spaces, together
from faperf.emulator.ops_sm80 import barrier_address
from faperf.emulator.ptx import Instruction
from faperf.emulator.state import TENSOR, WARP, Array, Path, Wave

LANES, COLUMNS = 128, 512
WINDOWS = np.arange(4)
FREE = -1


class TensorMemory:
    """Tensor memory of every CTA of a wave: cells, which are written, who wrote each column of a warp's window, who owns it."""

    def __init__(self, wave: Wave) -> None:
        count = len(wave.ctas)
        self.wave = wave
        self.cells = np.zeros((count, 4, WARP, COLUMNS), np.uint32)
        self.written = np.zeros((count, 4, WARP, COLUMNS), bool)
        self.owner = np.full((count, COLUMNS), FREE)  # the first column of the allocation
        self.stamp = np.zeros((count, 4, COLUMNS), np.int64)  # by window: agent << CLOCK_BITS | clock of the last write
        self.reads = np.zeros((count, 4, COLUMNS, wave.warps), np.int64)  # each warp's clock at its last read
        self.relinquished = np.zeros(count, bool)
        self.line = np.zeros((count, 4, COLUMNS), np.int64)

    def allocate(self, cta: int, columns: int, who: str, ins: Instruction) -> int:
        """The first column of a new allocation. Raises DiagnosisError."""
        if columns < 32 or columns > COLUMNS or columns & (columns - 1):
            raise DiagnosisError(
                TMEM, f"{who} allocates {columns} columns: not a power of two from 32 to 512", ins.place
            )
        if self.relinquished[cta]:
            raise DiagnosisError(TMEM, f"{who} allocates after its CTA has relinquished the permit", ins.place)
        for first in range(0, COLUMNS - columns + 1, columns):
            if (self.owner[cta, first : first + columns] == FREE).all():
                self.owner[cta, first : first + columns] = first
                self.written[cta, :, :, first : first + columns] = False
                return first
        raise DiagnosisError(
            TMEM, f"{who} allocates {columns} columns and there is no room: it would wait for ever", ins.place
        )

    def free(self, warp: int, cta: int, first: int, columns: int, who: str, ins: Instruction) -> None:
        """Also a read that the warp was not told of is in the way. Raises DiagnosisError."""
        owned = self.owner[cta] == first
        if first >= COLUMNS or owned.sum() != columns or not owned[first : first + columns].all():
            raise DiagnosisError(TMEM, f"{who} frees {columns} columns at {first}, which is no allocation", ins.place)
        self.unread(np.full(4, warp), np.full(4, cta), WINDOWS, slice(first, first + columns), ins)
        self.owner[cta, first : first + columns] = FREE

    def check(self, cta: int, first: int, columns: int, who: str, ins: Instruction) -> None:
        if first + columns > COLUMNS or (self.owner[cta, first : first + columns] == FREE).any():
            raise DiagnosisError(
                OUT_OF_BOUNDS, f"{who} accesses columns {first} to {first + columns - 1} of tensor memory, which are not all "
                "allocated", ins.place,
            )  # fmt: skip

    def told(self, warps: Array, ctas: Array, windows: Array, columns: slice, ins: Instruction) -> None:
        """Each warp must have been told of the last write of what it touches in a window."""
        stamp = self.stamp[ctas, windows, columns]
        known = self.wave.clocks[warps[:, None], stamp >> CLOCK_BITS] >= stamp & ((1 << CLOCK_BITS) - 1)
        if not known.all():
            one, column = (int(n) for n in np.unravel_index(int(np.argmin(known)), known.shape))
            agent = int(stamp[one, column]) >> CLOCK_BITS
            line = int(self.line[ctas[one], windows[one], columns][column])
            maker = self.wave.program.kernel.instructions[line]
            kind = RACE if agent < self.wave.warps else MISSING_WAIT
            how = "no barrier between" if kind == RACE else "not waited for"
            raise DiagnosisError(
                kind, f"{self._name(warps[one])} touches column {columns.start + column} of tensor memory, which warp "
                f"{agent % self.wave.warps} wrote ({maker.opcode}, {maker.place}): {how}", ins.place,
            )  # fmt: skip

    def unread(self, warps: Array, ctas: Array, windows: Array, columns: slice, ins: Instruction) -> None:
        """A write must be told of every read."""
        late = self.reads[ctas, windows, columns] > self.wave.clocks[warps, None, : self.wave.warps]
        if late.any():
            one, column, reader = (int(n) for n in np.argwhere(late)[0])
            raise DiagnosisError(
                RACE, f"{self._name(warps[one])} overwrites or frees column {columns.start + column} of tensor memory, which "
                f"warp {reader} may still read: no barrier between", ins.place,
            )  # fmt: skip

    def _name(self, flat_warp: int) -> str:
        return self.wave.name_of(int(flat_warp) * WARP)

    def finish(self) -> None:
        """A CTA must free what it allocated before it ends. Raises DiagnosisError."""
        for cta, owner in enumerate(self.owner):
            if (owner != FREE).any():
                first = int(owner[owner != FREE][0])
                what = f"CTA {self.wave.ctas[cta]} ends without freeing its columns of tensor memory at {first}"
                raise DiagnosisError(TMEM, what)


def tensor_memory(wave: Wave) -> TensorMemory:
    if "tmem" not in wave.extra:
        wave.extra["tmem"] = TensorMemory(wave)
    found: TensorMemory = wave.extra["tmem"]
    return found


def _warps(path: Path) -> list[tuple[int, int, int, Any]]:
    """(flat warp, warp, CTA, lanes within the path) of each warp that takes part."""
    lanes = path.lanes()
    parts = []
    for flat in np.unique(lanes // WARP):
        which = np.flatnonzero(lanes // WARP == flat)
        count = len(path.wave.ctas)
        parts.append((int(flat), int(flat) // count, int(flat) % count, which))
    return parts


# ── allocation ───────────────────────────────────────────────────────────────────────────────────────────────────────


@handles("tcgen05.alloc")
def _allocate(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "tcgen05.alloc": a warp gets columns; their address goes to shared memory."""
    _group(ins)
    to, count = d.address(ins.operands[0]), d.row(ins.operands[1], 32)

    def run(path: Path) -> None:
        together(path, ins)
        _, at = spaces(
            path, "shared" if any(p.startswith("shared") for p in ins.parts) else "", addresses(path, to), ins
        )
        columns = path.pick(path.r["u32"][count])
        for flat, _, cta, which in _warps(path):
            who = path.wave.name_of(flat * WARP)
            first = tensor_memory(path.wave).allocate(cta, int(columns[which[0]]), who, ins)
            one = Path(path.wave, path.lanes()[which[:1]], 0, None)
            offset = path.wave.shared.locate(one, at[which[:1]], 4, ins)
            path.wave.shared.write(one, offset, 4, ins)
            path.wave.shared.view(4, 1)[offset // 4] = first

    return run


@handles("tcgen05.dealloc")
def _free(d: Decoder, ins: Instruction) -> Operation:
    _group(ins)
    address, count = d.row(ins.operands[0], 32), d.row(ins.operands[1], 32)

    def run(path: Path) -> None:
        together(path, ins)
        first, columns = path.pick(path.r["u32"][address]), path.pick(path.r["u32"][count])
        for flat, _, cta, which in _warps(path):
            who = path.wave.name_of(flat * WARP)
            tensor_memory(path.wave).free(flat, cta, int(first[which[0]]) & 0xFFFF, int(columns[which[0]]), who, ins)

    return run


@handles("tcgen05.relinquish_alloc_permit")
def _relinquish(d: Decoder, ins: Instruction) -> Operation:
    _group(ins)

    def run(path: Path) -> None:
        tensor_memory(path.wave).relinquished[np.unique(path.ctas)] = True

    return run


def _group(ins: Instruction) -> None:
    if "cta_group::1" not in ins:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)


@handles(
    "tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync", "tcgen05.wait::ld", "tcgen05.wait::st"
)
def _order(d: Decoder, ins: Instruction) -> Operation:
    return lambda path: None


# ── load and store ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Access:
    """Warps that access the same columns, each its own window. `lanes` are theirs among those that take part, [warps, 32]."""

    flat: Array
    warp: Array
    cta: Array
    window: Array
    lanes: Array
    columns: slice


def _accesses(path: Path, address: Any, count: int, ins: Instruction) -> list[Access]:
    """What each warp accesses, `count` columns from its address on. Raises DiagnosisError."""
    together(path, ins)
    at, lanes = addresses(path, address).reshape(-1, WARP)[:, 0], path.lanes()
    flat = lanes[::WARP] // WARP
    warp, cta = flat // len(path.wave.ctas), flat % len(path.wave.ctas)
    wrong = at >> 16 != WARP * (warp % 4)
    if wrong.any():
        one = int(np.argmax(wrong))
        base, who = WARP * int(warp[one] % 4), path.wave.name_of(int(flat[one]) * WARP)
        raise DiagnosisError(
            TMEM, f"{who} accesses tensor memory from lane {int(at[one]) >> 16}; its window is lanes {base} to "
            f"{base + WARP - 1}: add the warp's base to the address", ins.place,
        )  # fmt: skip
    found, numbers = [], np.arange(len(lanes)).reshape(-1, WARP)
    for first in np.unique(at & 0xFFFF).tolist():
        its = np.flatnonzero(at & 0xFFFF == first)
        for each in its:
            tensor_memory(path.wave).check(
                int(cta[each]), int(first), count, path.wave.name_of(int(flat[each]) * WARP), ins
            )
        columns = slice(int(first), int(first) + count)
        found.append(Access(flat[its], warp[its], cta[its], warp[its] % 4, numbers[its], columns))
    return found


def _shape(ins: Instruction) -> int:
    """N of 32x32b.xN."""
    only(ins, "ld", "st", "aligned", "32x32b", "red", "min", "max", *(f"x{1 << n}" for n in range(8)))
    if "32x32b" not in ins:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    return next(int(part[1:]) for part in ins.parts if part[0] == "x" and part[1:].isdigit())


@handles("tcgen05.ld")
def _load(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "tcgen05.ld", 32x32b.xN: register j of a thread is column j of its lane. With .red also their min or max."""
    count, reduces = _shape(ins), "red" in ins
    outs = [d.out(text, 32) for text in d.vector(ins.operands[0])]
    reduced = d.out(ins.operands[1], 32) if reduces else 0
    kind = "f32" if "f32" in ins else "s32" if "s32" in ins else "u32"
    function: Any = None
    if reduces:
        table = {"min": (np.fmin, np.minimum), "max": (np.fmax, np.maximum)}
        function = table["min" if "min" in ins else "max"][kind != "f32"]
    address = d.address(ins.operands[-1])
    if len(outs) != count:
        raise NotEmulatedError(f"{ins.opcode} with {len(outs)} registers", ins.place)

    def run(path: Path) -> None:
        tmem, wave = tensor_memory(path.wave), path.wave
        values = np.zeros((len(path.lanes()), count), np.uint32)
        for its in _accesses(path, address, count, ins):
            place = (its.cta, its.window, its.columns)
            tmem.told(its.flat, *place, ins)
            if not tmem.written[its.cta, its.window, :, its.columns].any(1).all():
                what = f"{wave.name_of(int(its.flat[0]) * WARP)} (or another warp) reads columns of tensor memory from "
                raise DiagnosisError(
                    UNINITIALISED, f"{what}{its.columns.start} on, which nothing has written", ins.place
                )
            tmem.reads[
                its.cta[:, None], its.window[:, None], np.arange(count) + its.columns.start, its.warp[:, None]
            ] = wave.clocks[its.flat, its.warp][:, None]
            values[its.lanes] = tmem.cells[its.cta, its.window, :, its.columns]
        r = path.r["u32"]
        for index, out in enumerate(outs):
            path.put(r[out], values[:, index])
        if reduces:
            path.put(path.r[kind][reduced], function.reduce(values.view(path.r[kind][reduced].dtype), axis=1))

    return run


@handles("tcgen05.st")
def _store(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "tcgen05.st", 32x32b.xN."""
    count = _shape(ins)
    address, sources = d.address(ins.operands[0]), [d.row(text, 32) for text in d.vector(ins.operands[1])]
    if len(sources) != count:
        raise NotEmulatedError(f"{ins.opcode} with {len(sources)} registers", ins.place)

    def run(path: Path) -> None:
        tmem, wave = tensor_memory(path.wave), path.wave
        values = np.stack([path.pick(path.r["u32"][source]) for source in sources], axis=1)
        for its in _accesses(path, address, count, ins):
            place = (its.cta, its.window, its.columns)
            tmem.told(its.flat, *place, ins)
            tmem.unread(its.flat, *place, ins)
            tmem.cells[its.cta, its.window, :, its.columns] = values[its.lanes]
            tmem.written[its.cta, its.window, :, its.columns] = True
            tmem.stamp[place] = (its.warp << CLOCK_BITS | wave.clocks[its.flat, its.warp])[:, None]
            tmem.line[place] = ins.index

    return run


# ── MMA ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@handles("tcgen05.mma")
def _mma(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "tcgen05.mma", kind::f16: D[M x N] in tensor memory (+)= A[M x 16]·B[16 x N].

    A from shared or tensor memory (two halves a column), B from shared memory. M = 128: row r is lane r. M = 64 (layout F):
    row r is lane 32·(r / 16) + r mod 16. An f16 D takes the lower half of a column.
    """
    _group(ins)
    only(ins, "mma", "cta_group::1", "kind::f16")
    if len(ins.operands) != 5:
        raise NotEmulatedError(f"{ins.opcode} with {len(ins.operands)} operands", ins.place)
    from_tmem = ins.operands[1].startswith("[")
    to = d.address(ins.operands[0])
    left: Any = d.address(ins.operands[1]) if from_tmem else d.row(ins.operands[1], 64)
    right, shape, keep = d.row(ins.operands[2], 64), d.row(ins.operands[3], 32), d.row(ins.operands[4], 1)

    def run(path: Path) -> None:
        wave, lanes = path.wave, path.lanes()
        goal = addresses(path, to)
        a = addresses(path, left) if from_tmem else path.pick(path.r["u64"][left])
        b, bits, adds = (path.pick(path.r[k][row]) for k, row in (("u64", right), ("u32", shape), ("pred", keep)))
        for index in range(len(lanes)):
            one = Path(wave, lanes[index : index + 1], 0, None)
            _one_mma(
                one, int(goal[index]), int(a[index]), int(b[index]), int(bits[index]), bool(adds[index]), from_tmem, ins
            )

    return run


def _one_mma(path: Path, goal: int, a: int, b: int, bits: int, adds: bool, from_tmem: bool, ins: Instruction) -> None:
    wave, tmem = path.wave, tensor_memory(path.wave)
    flat, cta = int(path.flat_warps[0]), int(path.ctas[0])
    who = wave.name_of(flat * WARP)
    m, n, single = _instruction(bits, ins)
    first = goal & 0xFFFF
    columns = slice(first, first + n)
    if goal >> 16:
        raise NotEmulatedError(f"an accumulator at lane {goal >> 16} of tensor memory", ins.place)
    tmem.check(cta, first, n, who, ins)
    every = slice(0, 4)
    here = (np.full(4, flat), np.full(4, cta), WINDOWS)
    cells, written = tmem.cells[cta].reshape(LANES, COLUMNS), tmem.written[cta].reshape(LANES, COLUMNS)
    row = np.arange(m)
    place = row if m == LANES else WARP * (row // 16) + row % 16
    issuer = flat // len(wave.ctas)
    agent = TENSOR * wave.warps + issuer
    before = int(wave.clocks[flat, agent])
    wave.clocks[flat, agent] = wave.async_clock[
        flat, TENSOR
    ]  # MMAs of one thread run in the order in which it issued them
    try:
        tmem.told(*here, columns, ins)
        tmem.unread(*here, columns, ins)
        if from_tmem:
            if m != LANES:
                raise NotEmulatedError("A from tensor memory with M = 64", ins.place)
            source = a & 0xFFFF
            tmem.check(cta, source, 8, who, ins)
            tmem.told(*here, slice(source, source + 8), ins)
            if not written[:, source : source + 8].all():
                raise DiagnosisError(
                    UNINITIALISED, f"{who} multiplies columns from {source} on, not all written", ins.place
                )
            halves = np.ascontiguousarray(cells[:, source : source + 8]).view(np.float16)
        else:
            halves = _operand(path, a, m, bool(bits >> 15 & 1), ins)
        other = _operand(path, b, n, bool(bits >> 16 & 1), ins)
    finally:
        wave.clocks[flat, agent] = before
    total = halves.astype(np.float32) @ other.astype(np.float32).T
    if adds:
        if not written[place, columns].all():
            raise DiagnosisError(UNINITIALISED, f"{who} adds to an accumulator that nothing has written", ins.place)
        old = np.ascontiguousarray(cells[place, columns])
        total += old.view(np.float32) if single else old.astype(np.uint16).view(np.float16).astype(np.float32)
    cells[place, columns] = total.view(np.uint32) if single else total.astype(np.float16).view(np.uint16)
    written[place, columns] = True
    tmem.stamp[cta, every, columns] = agent << CLOCK_BITS | int(wave.async_clock[flat, TENSOR])
    tmem.line[cta, every, columns] = ins.index


def _instruction(bits: int, ins: Instruction) -> tuple[int, int, bool]:
    """(M, N, f32 accumulators) of an instruction descriptor of kind::f16. Raises DiagnosisError for one that is none."""
    kind_d, kind_a, kind_b = bits >> 4 & 3, bits >> 7 & 7, bits >> 10 & 7
    n, m = (bits >> 17 & 63) << 3, (bits >> 24 & 31) << 4
    if bits & 0b1111 or bits >> 13 & 3 or kind_a or kind_b or bits >> 23 & 1 or bits >> 29:
        raise NotEmulatedError(f"instruction descriptor {bits:#010x}", ins.place)
    if m not in (64, LANES) or kind_d > 1 or not 8 <= n <= 256 or n % (16 if m == LANES else 8):
        what = f"instruction descriptor {bits:#010x}: M = {m}, N = {n}, D of type {kind_d}"
        raise DiagnosisError(BAD_DESCRIPTOR, what, ins.place)
    return m, n, kind_d == 1


def _operand(path: Path, bits: int, rows: int, across: bool, ins: Instruction) -> Array:
    """[rows, 16] halves in shared memory, which the tensor pipe reads from now on."""
    wave = path.wave
    address = addresses_of(tcgen05_descriptor(bits, ins), rows, 16, across, ins)
    wave.shared.locate(path, np.array([address.min()]), 2, ins)
    wave.shared.locate(path, np.array([address.max()]), 2, ins)
    offset = address + int(path.ctas[0]) * wave.shared.size
    warps = path.flat_warps
    agent = TENSOR * wave.warps + warps // len(wave.ctas)
    wave.shared.read_later(warps, np.unique(offset >> 2)[None, :], agent, wave.async_clock[warps, TENSOR], ins)
    return wave.shared.bytes.view(np.float16)[offset >> 1]


@handles("tcgen05.commit")
def _commit(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "tcgen05.commit": an mbarrier gets one arrival when all MMAs of the thread so far are over."""
    _group(ins)
    if any(part.startswith("multicast") for part in ins.parts):
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    address = d.address(ins.operands[0])

    def run(path: Path) -> None:
        wave, at = path.wave, barrier_address(path, address, ins)
        warps, ctas = path.flat_warps, path.ctas
        agents = TENSOR * wave.warps + warps // len(wave.ctas)
        clock = wave.async_clock[warps, TENSOR].copy()
        wave.async_clock[np.unique(warps), TENSOR] += 1
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
