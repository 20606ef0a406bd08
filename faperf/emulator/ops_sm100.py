"""sm_100a and sm_103a: tensor memory and tcgen05, for one CTA (cta_group::1).

Tensor memory has 128 lanes of 512 columns of 32 bits. What an MMA writes belongs to an asynchronous agent of the warp that
issued it, until an mbarrier that a commit arrived on tells of its end; a warp that reads it earlier misses a wait. A load's
values are in its registers at once: a missing wait::ld is not found, nor is a missing fence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from faperf.emulator import tensor_core
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
        self.unread(np.full(4, warp), np.full(4, cta), WINDOWS, np.arange(first, first + columns), ins)
        self.owner[cta, first : first + columns] = FREE

    def check(self, cta: int, first: int, columns: int, who: str, ins: Instruction) -> None:
        if first + columns > COLUMNS or (self.owner[cta, first : first + columns] == FREE).any():
            raise DiagnosisError(
                OUT_OF_BOUNDS, f"{who} accesses columns {first} to {first + columns - 1} of tensor memory, which are not all "
                "allocated", ins.place,
            )  # fmt: skip

    def told(self, warps: Array, ctas: Array, windows: Array, columns: Array, ins: Instruction) -> None:
        """Each warp must have been told of the last write of what it touches in a window."""
        stamp = self.stamp[ctas[:, None], windows[:, None], columns]
        known = self.wave.clocks[warps[:, None], stamp >> CLOCK_BITS] >= stamp & ((1 << CLOCK_BITS) - 1)
        if not known.all():
            one, column = (int(n) for n in np.unravel_index(int(np.argmin(known)), known.shape))
            agent = int(stamp[one, column]) >> CLOCK_BITS
            line = int(self.line[ctas[one], windows[one], columns[column]])
            maker = self.wave.program.kernel.instructions[line]
            kind = RACE if agent < self.wave.warps else MISSING_WAIT
            how = "no barrier between" if kind == RACE else "not waited for"
            raise DiagnosisError(
                kind, f"{self._name(warps[one])} touches column {columns[column]} of tensor memory, which warp "
                f"{agent % self.wave.warps} wrote ({maker.opcode}, {maker.place}): {how}", ins.place,
            )  # fmt: skip

    def unread(self, warps: Array, ctas: Array, windows: Array, columns: Array, ins: Instruction) -> None:
        """A write must be told of every read."""
        late = self.reads[ctas[:, None], windows[:, None], columns] > self.wave.clocks[warps, None, : self.wave.warps]
        if late.any():
            one, column, reader = (int(n) for n in np.argwhere(late)[0])
            raise DiagnosisError(
                RACE, f"{self._name(warps[one])} overwrites or frees column {columns[column]} of tensor memory, which "
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

_THREAD = np.arange(WARP)
SHAPES: dict[str, tuple[int, Any, Any]] = {
    "32x32b": (1, lambda j: _THREAD, lambda j, split: j),
    "16x64b": (1, lambda j: _THREAD // 4 + _THREAD % 2 * 8, lambda j, split: 2 * j + _THREAD // 2 % 2),
    "16x128b": (2, lambda j: _THREAD // 4 + j % 2 * 8, lambda j, split: j // 2 * 4 + _THREAD % 4),
    "16x256b": (4, lambda j: _THREAD // 4 + j // 2 % 2 * 8, lambda j, split: j // 4 * 8 + _THREAD % 4 * 2 + j % 2),
    "16x32bx2": (1, lambda j: _THREAD % 16, lambda j, split: _THREAD // 16 * split + j),
}
"""Registers of .x1, then lane and column of each thread's register j ("Matrix fragments for shape …")."""


@dataclass(frozen=True)
class Form:
    """A form of tcgen05.ld or st: where each thread's register lies, [registers, 32], relative to the address.

    With `packed` a register holds the lower halves of two neighbouring columns. `touched` are the columns in ascending order.
    """

    registers: int
    lane: Array
    column: Array
    packed: bool
    whole: bool

    @property
    def touched(self) -> Array:
        columns = np.unique(self.column)
        return np.unique(np.concatenate([2 * columns, 2 * columns + 1])) if self.packed else columns


def _form(d: Decoder, ins: Instruction) -> Form:
    only(
        ins, "ld", "st", "aligned", *SHAPES, "red", "min", "max", "pack::16b", "unpack::16b", *(f"x{1 << n}" for n in range(8))
    )  # fmt: skip
    shape = next(part for part in ins.parts if part in SHAPES)
    times = next(int(part[1:]) for part in ins.parts if re.fullmatch(r"x\d+", part))
    each, lane, column = SHAPES[shape]
    split = d.number(ins.operands[1 if ins.parts[1] == "st" else -1]) if shape == "16x32bx2" else 0
    whole = shape == "32x32b"
    registers = np.arange(each * times)
    return Form(
        len(registers),
        np.array([np.broadcast_to(lane(j), WARP) for j in registers]),
        np.array([np.broadcast_to(column(j, split), WARP) for j in registers]),
        any(part.endswith("pack::16b") for part in ins.parts),
        whole,
    )


@dataclass(frozen=True)
class Access:
    """Warps that access the same columns, each its own window. `lanes` are theirs among those that take part, [warps, 32]."""

    flat: Array
    warp: Array
    cta: Array
    window: Array
    lanes: Array
    first: int
    half: int
    """Lane within the window at which the access starts, 0 or 16."""


def _accesses(path: Path, address: Any, form: Form, touched: Array, ins: Instruction) -> list[Access]:
    """What each warp accesses, from its address on. Raises DiagnosisError."""
    together(path, ins)
    at, lanes = addresses(path, address).reshape(-1, WARP)[:, 0], path.lanes()
    flat = lanes[::WARP] // WARP
    warp, cta = flat // len(path.wave.ctas), flat % len(path.wave.ctas)
    inside = (at >> 16) - WARP * (warp % 4)
    wrong = inside != 0 if form.whole else (inside != 0) & (inside != 16)
    if wrong.any():
        one = int(np.argmax(wrong))
        base, who = WARP * int(warp[one] % 4), path.wave.name_of(int(flat[one]) * WARP)
        raise DiagnosisError(
            TMEM, f"{who} accesses tensor memory from lane {int(at[one]) >> 16}; its window is lanes {base} to "
            f"{base + WARP - 1}: add the warp's base to the address", ins.place,
        )  # fmt: skip
    found, numbers = [], np.arange(len(lanes)).reshape(-1, WARP)
    place = (at & 0xFFFF) | inside << 16
    for key in np.unique(place).tolist():
        its = np.flatnonzero(place == key)
        first = key & 0xFFFF
        for each in its:
            tensor_memory(path.wave).check(
                int(cta[each]), first, int(touched[-1]) + 1, path.wave.name_of(int(flat[each]) * WARP), ins
            )
        found.append(Access(flat[its], warp[its], cta[its], warp[its] % 4, numbers[its], first, key >> 16))
    return found


@handles("tcgen05.ld")
def _load(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "tcgen05.ld" in every shape for 32-bit data. With .red also the min or max of a thread's values."""
    form, reduces = _form(d, ins), "red" in ins
    outs = [d.out(text, 32) for text in d.vector(ins.operands[0])]
    reduced = d.out(ins.operands[1], 32) if reduces else 0
    kind = "f32" if "f32" in ins else "s32" if "s32" in ins else "u32"
    function: Any = None
    if reduces:
        table = {"min": (np.fmin, np.minimum), "max": (np.fmax, np.maximum)}
        function = table["min" if "min" in ins else "max"][kind != "f32"]
    address = d.address(ins.operands[2 if reduces else 1])
    touched = form.touched
    if len(outs) != form.registers or (reduces and not form.whole):
        raise NotEmulatedError(f"{ins.opcode} with {len(outs)} registers", ins.place)

    def run(path: Path) -> None:
        tmem, wave = tensor_memory(path.wave), path.wave
        values = np.zeros((form.registers, len(path.lanes())), np.uint32)
        for its in _accesses(path, address, form, touched, ins):
            columns = touched + its.first
            tmem.told(its.flat, its.cta, its.window, columns, ins)
            lane, column = form.lane + its.half, its.first + (2 * form.column if form.packed else form.column)
            cta, window = its.cta[:, None, None], its.window[:, None, None]
            seen, found = tmem.written[cta, window, lane, column], tmem.cells[cta, window, lane, column]
            if form.packed:
                seen = seen & tmem.written[cta, window, lane, column + 1]
                found = found & np.uint32(0xFFFF) | tmem.cells[cta, window, lane, column + 1] << np.uint32(16)
            if not seen.any(2).all():
                what = f"{wave.name_of(int(its.flat[0]) * WARP)} (or another warp) reads columns of tensor memory from "
                raise DiagnosisError(UNINITIALISED, f"{what}{its.first} on, which nothing has written", ins.place)
            tmem.reads[its.cta[:, None], its.window[:, None], columns, its.warp[:, None]] = wave.clocks[
                its.flat, its.warp
            ][:, None]
            values[:, its.lanes] = found.transpose(1, 0, 2)
        r = path.r["u32"]
        for index, out in enumerate(outs):
            path.put(r[out], values[index])
        if reduces:
            path.put(path.r[kind][reduced], function.reduce(values.view(path.r[kind][reduced].dtype), axis=0))

    return run


@handles("tcgen05.st")
def _store(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "tcgen05.st" in every shape for 32-bit data."""
    form = _form(d, ins)
    address, sources = d.address(ins.operands[0]), [d.row(text, 32) for text in d.vector(ins.operands[-1])]
    touched = form.touched
    if len(sources) != form.registers:
        raise NotEmulatedError(f"{ins.opcode} with {len(sources)} registers", ins.place)

    def run(path: Path) -> None:
        tmem, wave = tensor_memory(path.wave), path.wave
        values = np.stack([path.pick(path.r["u32"][source]) for source in sources])
        for its in _accesses(path, address, form, touched, ins):
            columns = touched + its.first
            tmem.told(its.flat, its.cta, its.window, columns, ins)
            tmem.unread(its.flat, its.cta, its.window, columns, ins)
            lane, column = form.lane + its.half, its.first + (2 * form.column if form.packed else form.column)
            cta, window = its.cta[:, None, None], its.window[:, None, None]
            mine = values[:, its.lanes].transpose(1, 0, 2)
            parts = [(column, mine)]
            if form.packed:
                parts = [(column, mine & np.uint32(0xFFFF)), (column + 1, mine >> np.uint32(16))]
            for where, what in parts:
                tmem.cells[cta, window, lane, where] = what
                tmem.written[cta, window, lane, where] = True
            place = (its.cta[:, None], its.window[:, None], columns)
            tmem.stamp[place] = (its.warp << CLOCK_BITS | wave.clocks[its.flat, its.warp])[:, None]
            tmem.line[place] = ins.index

    return run


# ── MMA ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@handles("tcgen05.mma")
def _mma(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "tcgen05.mma", kind::f16: D[M x N] in tensor memory (+)= A[M x 16]·B[16 x N].

    A from shared or tensor memory (two halves a column), B from shared memory. M = 128: row r is lane r. M = 64 (layout F):
    row r is lane 32·(r / 16) + r mod 16, or 16 further where the address says lane 16; so is A in tensor memory. An f16 D takes
    the lower half of a column.
    """
    _group(ins)
    only(ins, "mma", "cta_group::1", "kind::f16")
    if len(ins.operands) not in (5, 6):
        raise NotEmulatedError(f"{ins.opcode} with {len(ins.operands)} operands", ins.place)
    masks = [d.row(text, 32) for text in d.vector(ins.operands[4])] if len(ins.operands) == 6 else []
    from_tmem = ins.operands[1].startswith("[")
    to = d.address(ins.operands[0])
    left: Any = d.address(ins.operands[1]) if from_tmem else d.row(ins.operands[1], 64)
    right, shape, keep = d.row(ins.operands[2], 64), d.row(ins.operands[3], 32), d.row(ins.operands[-1], 1)

    def run(path: Path) -> None:
        if any(path.pick(path.r["u32"][row]).any() for row in masks):
            raise NotEmulatedError(f"{ins.opcode} with lanes of its output disabled", ins.place)
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
    columns, numbers = slice(first, first + n), np.arange(first, first + n)
    if goal >> 16 not in ((0,) if m == LANES else (0, 16)):
        raise DiagnosisError(
            TMEM, f"{who} accumulates from lane {goal >> 16} of tensor memory on with M = {m}", ins.place
        )
    tmem.check(cta, first, n, who, ins)
    every = slice(0, 4)
    here = (np.full(4, flat), np.full(4, cta), WINDOWS)
    cells, written = tmem.cells[cta].reshape(LANES, COLUMNS), tmem.written[cta].reshape(LANES, COLUMNS)
    row = np.arange(m)
    place = row if m == LANES else WARP * (row // 16) + row % 16 + (goal >> 16)
    issuer = flat // len(wave.ctas)
    agent = TENSOR * wave.warps + issuer
    before = int(wave.clocks[flat, agent])
    wave.clocks[flat, agent] = wave.async_clock[
        flat, TENSOR
    ]  # MMAs of one thread run in the order in which it issued them
    try:
        tmem.told(*here, numbers, ins)
        tmem.unread(*here, numbers, ins)
        if from_tmem:
            source, its = a & 0xFFFF, place - (goal >> 16) + (a >> 16)
            if a >> 16 not in ((0,) if m == LANES else (0, 16)):
                raise DiagnosisError(
                    TMEM, f"{who} reads A from lane {a >> 16} of tensor memory with M = {m}", ins.place
                )
            tmem.check(cta, source, 8, who, ins)
            tmem.told(*here, np.arange(source, source + 8), ins)
            if not written[its, source : source + 8].all():
                raise DiagnosisError(
                    UNINITIALISED, f"{who} multiplies columns from {source} on, not all written", ins.place
                )
            halves = np.ascontiguousarray(cells[its, source : source + 8]).view(np.float16)
        else:
            halves = _operand(path, a, m, bool(bits >> 15 & 1), ins)
        other = _operand(path, b, n, bool(bits >> 16 & 1), ins)
    finally:
        wave.clocks[flat, agent] = before
    old = None
    if adds:
        if not written[place, columns].all():
            raise DiagnosisError(UNINITIALISED, f"{who} adds to an accumulator that nothing has written", ins.place)
        old = np.ascontiguousarray(cells[place, columns])
        old = old.view(np.float32) if single else old.astype(np.uint16).view(np.float16)
    exact = bool(wave.extra.get("exact_sums"))
    total = tensor_core.multiply(halves.astype(np.float32), other.astype(np.float32), old, not single, -14, exact)
    cells[place, columns] = total.view(np.uint32 if single else np.uint16)
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
