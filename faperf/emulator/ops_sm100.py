"""sm_100a and sm_103a: tensor memory, and tcgen05 but for its MMA (`ops_sm100_mma`).

Tensor memory has 128 lanes of 512 columns of 32 bits. What an MMA writes belongs to an asynchronous agent of the warp that
issued it, until an mbarrier that a commit arrived on tells of its end; a warp that reads it earlier misses a wait. A load's
values are in its registers at once: a missing wait::ld is not found, nor is a missing fence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from faperf.emulator.decode import Decoder, Operation, addresses, handles
from faperf.emulator.fault import (
    MISSING_WAIT,
    OUT_OF_BOUNDS,
    RACE,
    TMEM,
    UNINITIALISED,
    DiagnosisError,
    NotEmulatedError,
)
from faperf.emulator.ops_common import only, selected, spaces, together
from faperf.emulator.ptx import Instruction
from faperf.emulator.state import CLOCK_BITS, TENSOR, WARP, Array, Path, Wave

LANES, COLUMNS = 128, 512
WINDOWS = np.arange(4)
FREE = -1


class TensorMemory:
    """Tensor memory of every CTA (`home`) of a wave: cells, which are written, who wrote each column of a window, who owns it.

    Cells are [column, window, cta, lane], so that one column of some warps lies as their registers do.
    """

    def __init__(self, wave: Wave) -> None:
        count = len(wave.ctas) * wave.size
        self.wave = wave
        self.cells = np.zeros((COLUMNS, 4, count, WARP), np.uint32)
        self.written = np.zeros((COLUMNS, 4, count, WARP), bool)
        self.owner = np.full((count, COLUMNS), FREE)  # the first column of the allocation
        self.stamp = np.zeros((count, 4, COLUMNS), np.int32)  # by window: agent << CLOCK_BITS | clock of the last write
        self.quads = -(-wave.cta_warps // 4)
        self.reads = np.zeros(
            (count, 4, COLUMNS, self.quads), np.int32
        )  # clock of the last read by each warp of a window
        self.async_read = np.zeros(
            (count, 4, COLUMNS), np.int32
        )  # agent << CLOCK_BITS | clock of the last MMA that reads
        self.relinquished = np.zeros(count, bool)
        self.line = np.zeros((count, 4, COLUMNS), np.int32)

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
                self.written[first : first + columns, :, cta] = False
                return first
        raise DiagnosisError(
            TMEM, f"{who} allocates {columns} columns and there is no room: it would wait for ever", ins.place
        )

    def free(self, warp: int, cta: int, first: int, columns: int, who: str, ins: Instruction) -> None:
        """Also a read that the warp was not told of is in the way. Raises DiagnosisError."""
        owned = self.owner[cta] == first
        if first >= COLUMNS or owned.sum() != columns or not owned[first : first + columns].all():
            raise DiagnosisError(TMEM, f"{who} frees {columns} columns at {first}, which is no allocation", ins.place)
        numbers = np.arange(first, first + columns)
        self.unread(np.full((4, 1), warp), np.full((4, 1), cta), WINDOWS[:, None], numbers, ins)
        self.owner[cta, first : first + columns] = FREE

    # Below, arrays of warps, CTAs, windows and columns may have any shapes that can be broadcast together.

    def check(self, warps: Array, ctas: Array, columns: Array, ins: Instruction) -> None:
        """Columns must be there and allocated."""
        free: Array = columns >= COLUMNS
        if not free.any():
            free = self.owner[ctas, columns] == FREE
        if free.any():
            shape = np.broadcast_shapes(warps.shape, ctas.shape, columns.shape)
            at = np.unravel_index(int(np.argmax(np.broadcast_to(free, shape))), shape)
            its = np.broadcast_to(columns, shape)[at[:-1]]
            raise DiagnosisError(
                OUT_OF_BOUNDS, f"{self._name(np.broadcast_to(warps, shape)[at])} accesses columns {its.min()} to {its.max()} of "
                "tensor memory, which are not all allocated", ins.place,
            )  # fmt: skip

    def told(self, warps: Array, ctas: Array, windows: Array, columns: Array, ins: Instruction) -> None:
        """Each warp must have been told of the last write of what it touches in a window."""
        stamp = every = self.stamp[ctas, windows, columns]
        if not np.count_nonzero(stamp != stamp[..., :1]):  # all columns at once
            stamp = stamp[..., :1]
        known = self.wave.clocks[warps, stamp >> CLOCK_BITS] >= stamp & ((1 << CLOCK_BITS) - 1)
        if not known.all():
            stamp, known = every, np.broadcast_to(known, every.shape)
            at = np.unravel_index(int(np.argmin(known)), known.shape)
            warp, cta, window, column = (
                int(np.broadcast_to(part, known.shape)[at]) for part in (warps, ctas, windows, columns)
            )
            agent, line = int(stamp[at]) >> CLOCK_BITS, int(self.line[cta, window, column])
            maker = self.wave.program.kernel.instructions[line]
            kind = RACE if agent < self.wave.warps else MISSING_WAIT
            how = "no barrier between" if kind == RACE else "not waited for"
            raise DiagnosisError(
                kind, f"{self._name(warp)} touches column {column} of tensor memory, which "
                f"{self.wave.warp_name(agent % self.wave.warps)} wrote ({maker.opcode}, {maker.place}): {how}", ins.place,
            )  # fmt: skip

        self._check_fenced(warps, ctas, stamp, columns[..., : stamp.shape[-1]], ins)

    def _check_fenced(self, warps: Array, ctas: Array, stamp: Array, columns: Array, ins: Instruction) -> None:
        """Tensor memory is ordered between threads by tcgen05.fence::before_thread_sync of the one, ::after of the other."""
        wave, agent, clock = self.wave, stamp >> CLOCK_BITS, stamp & ((1 << CLOCK_BITS) - 1)
        count = len(wave.ctas)
        own = warps // count
        mine = (agent == own) | ((agent == TENSOR * wave.warps + own) & ("mma" in ins.parts))
        other = ~mine & (clock > 0)
        late = other & (wave.fenced[warps, agent] < clock)
        writer = np.minimum(agent, wave.warps - 1) * count + ctas // wave.size
        early = other & (agent < wave.warps) & (wave.sealed[writer] < clock)
        for missing, fence in ((late, "after_thread_sync"), (early, "before_thread_sync")):
            if missing.any():
                at = np.unravel_index(int(np.argmax(missing)), missing.shape)
                where = int(np.broadcast_to(columns, missing.shape)[at])
                wave.warn(
                    f"column {where} of tensor memory, which {wave.warp_name(int(agent[at]) % wave.warps)} wrote, is touched "
                    f"without a tcgen05.fence::{fence} between", ins,
                )  # fmt: skip

    def unread(self, warps: Array, ctas: Array, windows: Array, columns: Array, ins: Instruction) -> None:
        """A write must be told of every read."""
        own = np.minimum(4 * np.arange(self.quads) + windows[..., None], self.wave.cta_warps - 1)
        readers = (ctas % self.wave.size * self.wave.cta_warps)[..., None] + own
        late = self.reads[ctas, windows, columns] > self.wave.clocks[warps[..., None], readers]
        if late.any():
            *at, quad = np.unravel_index(int(np.argmax(late)), late.shape)
            shape = late.shape[:-1]
            warp, window, column = (int(np.broadcast_to(part, shape)[tuple(at)]) for part in (warps, windows, columns))
            raise DiagnosisError(
                RACE, f"{self._name(warp)} overwrites or frees column {column} of tensor memory, which warp "
                f"{4 * int(quad) + window} may still read: no barrier between", ins.place,
            )  # fmt: skip
        stamp = self.async_read[ctas, windows, columns]
        busy = self.wave.clocks[warps, stamp >> CLOCK_BITS] < stamp & ((1 << CLOCK_BITS) - 1)
        if busy.any():
            at = list(np.unravel_index(int(np.argmax(busy)), busy.shape))
            warp, column = (int(np.broadcast_to(part, busy.shape)[tuple(at)]) for part in (warps, columns))
            raise DiagnosisError(
                MISSING_WAIT, f"{self._name(warp)} overwrites or frees column {column} of tensor memory, which an MMA of "
                f"{self.wave.warp_name((int(stamp[tuple(at)]) >> CLOCK_BITS) % self.wave.warps)} may still read: not waited for",
                ins.place,
            )  # fmt: skip

    def _name(self, flat_warp: int) -> str:
        return self.wave.name_of(int(flat_warp) * WARP)

    def finish(self) -> None:
        """A CTA must free what it allocated before it ends. Raises DiagnosisError."""
        for cta, owner in enumerate(self.owner):
            if (owner != FREE).any():
                first = int(owner[owner != FREE][0])
                what = f"CTA {self.wave.place_of(cta)} ends without freeing its columns of tensor memory at {first}"
                raise DiagnosisError(TMEM, what)


def tensor_memory(wave: Wave) -> TensorMemory:
    if "tmem" not in wave.extra:
        wave.extra["tmem"] = TensorMemory(wave)
    found: TensorMemory = wave.extra["tmem"]
    return found


def _warps(path: Path) -> list[tuple[int, int, Any]]:
    """(flat warp, CTA, lanes within the path) of each warp that takes part."""
    lanes = path.lanes()
    parts = []
    for flat in np.unique(lanes // WARP):
        which = np.flatnonzero(lanes // WARP == flat)
        parts.append((int(flat), int(path.wave.home_of_warp[flat]), which))
    return parts


# ── allocation ───────────────────────────────────────────────────────────────────────────────────────────────────────


@handles("tcgen05.alloc")
def _allocate(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "tcgen05.alloc": a warp gets columns; their address goes to shared memory.

    With cta_group::2 a warp of each of two CTAs does so, each for its own; an MMA of both finds out where one has not.
    """
    group_of(ins)
    to, count = d.address(ins.operands[0]), d.row(ins.operands[1], 32)

    def run(path: Path) -> None:
        together(path, ins)
        _, at = spaces(
            path, "shared" if any(p.startswith("shared") for p in ins.parts) else "", addresses(path, to), ins
        )
        columns = path.pick(path.r["u32"][count])
        for flat, cta, which in _warps(path):
            who = path.wave.name_of(flat * WARP)
            first = tensor_memory(path.wave).allocate(cta, int(columns[which[0]]), who, ins)
            one = Path(path.wave, path.lanes()[which[:1]], 0, None)
            offset = path.wave.shared.locate(one, at[which[:1]], 4, ins)
            path.wave.shared.write(one, offset, 4, ins)
            path.wave.shared.view(4, 1)[offset // 4] = first

    return run


@handles("tcgen05.dealloc")
def _free(d: Decoder, ins: Instruction) -> Operation:
    group_of(ins)
    address, count = d.row(ins.operands[0], 32), d.row(ins.operands[1], 32)

    def run(path: Path) -> None:
        together(path, ins)
        first, columns = path.pick(path.r["u32"][address]), path.pick(path.r["u32"][count])
        for flat, cta, which in _warps(path):
            who = path.wave.name_of(flat * WARP)
            tensor_memory(path.wave).free(flat, cta, int(first[which[0]]) & 0xFFFF, int(columns[which[0]]), who, ins)

    return run


@handles("tcgen05.relinquish_alloc_permit")
def _relinquish(d: Decoder, ins: Instruction) -> Operation:
    group_of(ins)

    def run(path: Path) -> None:
        tensor_memory(path.wave).relinquished[np.unique(path.homes)] = True

    return run


def group_of(ins: Instruction) -> int:
    """Over how many CTAs an instruction goes. Raises NotEmulatedError where it does not say."""
    found = next((part for part in ins.parts if part in ("cta_group::1", "cta_group::2")), None)
    if found is None:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    return int(found[-1])


@handles("tcgen05.wait::ld", "tcgen05.wait::st")
def _waited(d: Decoder, ins: Instruction) -> Operation:
    """Values are there at once; whether a wait is missing `pending` follows."""
    return lambda path: None


@handles("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def _order(d: Decoder, ins: Instruction) -> Operation:
    """Only whether it is missing is followed (`TensorMemory.told`)."""
    before = ins.parts[1].endswith("before_thread_sync")

    def run(path: Path) -> None:
        wave, warps = path.wave, np.unique(path.flat_warps)
        if before:
            wave.sealed[warps] = wave.clocks[warps, warps // len(wave.ctas)]
        else:
            wave.fenced[warps] = wave.clocks[warps]

    return run


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
    """What each warp accesses: arrays [warp, 1] but for `columns`, [warp, column]; `half` is the first lane in the window.

    `warp` is that of the CTA, `agent` that of the cluster.
    """

    flat: Array
    agent: Array
    warp: Array
    cta: Array
    window: Array
    first: Array
    half: Array
    columns: Array


def _access(path: Path, address: Any, form: Form, touched: Array, ins: Instruction) -> Access:
    """Raises DiagnosisError."""
    together(path, ins)
    lanes = path.lanes()
    at, flat = addresses(path, address)[::WARP, None], lanes[::WARP, None] // WARP
    agent, cta = flat // len(path.wave.ctas), path.wave.home_of_warp[flat]
    warp = agent % path.wave.cta_warps
    half = (at >> 16) - WARP * (warp % 4)
    wrong = half != 0 if form.whole else (half != 0) & (half != 16)
    if wrong.any():
        one = int(np.argmax(wrong))
        base, who = WARP * int(warp[one, 0] % 4), path.wave.name_of(int(flat[one, 0]) * WARP)
        raise DiagnosisError(
            TMEM, f"{who} accesses tensor memory from lane {int(at[one, 0]) >> 16}; its window is lanes {base} to "
            f"{base + WARP - 1}: add the warp's base to the address", ins.place,
        )  # fmt: skip
    first = at & 0xFFFF
    tensor_memory(path.wave).check(flat, cta, first + touched, ins)
    return Access(flat, agent, warp, cta, warp % 4, first, half, first + touched)


def _cells(access: Access, form: Form) -> list[tuple[Any, ...]]:
    """Indices into cells, [register, warp, lane]; where two halves share a register, of both columns."""
    window, cta, half = (part[None] for part in (access.window, access.cta, access.half))
    if form.whole and not form.packed:  # whole lanes
        return [(access.first[:, 0] + form.column[:, :1], access.window[:, 0], access.cta[:, 0])]
    column = access.first[None] + (2 if form.packed else 1) * form.column[:, None, :]
    lane = half + form.lane[:, None, :]
    return [(column + n, window, cta, lane) for n in range(2 if form.packed else 1)]


@handles("tcgen05.ld")
def _load(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "tcgen05.ld" in every shape for 32-bit data. With .red also the min or max of a thread's values."""
    form, reduces = _form(d, ins), "red" in ins
    outs = [d.out(text, 32) for text in d.vector(ins.operands[0])]
    rows = selected(outs, each=True)
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
        its = _access(path, address, form, touched, ins)
        tmem.told(its.flat, its.cta, its.window, its.columns, ins)
        tmem.reads[its.cta, its.window, its.columns, its.warp // 4] = wave.clocks[its.flat, its.agent]
        cells = _cells(its, form)
        values, seen = tmem.cells[cells[0]], tmem.written[cells[0]]
        for upper in cells[1:]:
            values = values & np.uint32(0xFFFF) | tmem.cells[upper] << np.uint32(16)
            seen = seen & tmem.written[upper]
        missing = ~seen.any(2)
        if missing.any():
            register, one = np.unravel_index(int(np.argmax(missing)), missing.shape)
            raise DiagnosisError(
                UNINITIALISED, f"{wave.name_of(int(its.flat[one, 0]) * WARP)} reads column "
                f"{int(its.first[one, 0]) + int(form.column[register, 0])} of tensor memory, which nothing has written",
                ins.place,
            )  # fmt: skip
        values = values.reshape(form.registers, -1)
        r = path.r
        if path.mask is True:
            r.tables["u32"][rows] = values
        else:
            for row, mine in zip(outs, values, strict=True):
                path.put(r["u32"][row], mine)
        if reduces:
            path.put(r[kind][reduced], function.reduce(values.view(r[kind][reduced].dtype), axis=0))

    return run


@handles("tcgen05.st")
def _store(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "tcgen05.st" in every shape for 32-bit data."""
    form = _form(d, ins)
    address, sources = d.address(ins.operands[0]), [d.row(text, 32) for text in d.vector(ins.operands[-1])]
    touched, rows = form.touched, selected(sources, each=True)
    if len(sources) != form.registers:
        raise NotEmulatedError(f"{ins.opcode} with {len(sources)} registers", ins.place)

    def run(path: Path) -> None:
        tmem, wave = tensor_memory(path.wave), path.wave
        its = _access(path, address, form, touched, ins)
        tmem.told(its.flat, its.cta, its.window, its.columns, ins)
        tmem.unread(its.flat, its.cta, its.window, its.columns, ins)
        values = path.r.tables["u32"][rows]
        values = (values if path.mask is True else values[:, path.mask]).reshape(form.registers, -1, WARP)
        for shift, where in enumerate(_cells(its, form)):
            mine = values if not form.packed else values >> np.uint32(16) if shift else values & np.uint32(0xFFFF)
            tmem.cells[where] = mine
            tmem.written[where] = True
        place = (its.cta, its.window, its.columns)
        tmem.stamp[place] = its.agent << CLOCK_BITS | wave.clocks[its.flat, its.agent]
        tmem.line[place] = ins.index

    return run
