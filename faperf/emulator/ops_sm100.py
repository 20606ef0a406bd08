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
from faperf.emulator.batch import WRITE
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
from faperf.emulator.matrix import footprints, tcgen05_descriptor
from faperf.emulator.ops_common import in_turn_where_wrong, only, selected, spaces, spread, together, within
from faperf.emulator.ops_sm80 import barrier_address
from faperf.emulator.provenance import origins
from faperf.emulator.ptx import Instruction
from faperf.emulator.state import CLOCK_BITS, RANK_BIT, TENSOR, WARP, Array, Path, Wave

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
    """PTX ISA "tcgen05.alloc": a warp gets columns; their address goes to shared memory."""
    _group(ins)
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
    _group(ins)
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
    _group(ins)

    def run(path: Path) -> None:
        tensor_memory(path.wave).relinquished[np.unique(path.homes)] = True

    return run


def _group(ins: Instruction) -> None:
    if "cta_group::1" not in ins:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)


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


# ── MMA ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class TensorMma:
    """PTX ISA "tcgen05.mma", kind::f16: D[M x N] in tensor memory (+)= A[M x 16]·B[16 x N].

    A from shared or tensor memory (two halves a column), B from shared memory. M = 128: row r is lane r. M = 64 (layout F):
    row r is lane 32·(r / 16) + r mod 16, or 16 further where the address says lane 16; so is A in tensor memory. An f16 D takes
    the lower half of a column.
    """

    def __init__(self, d: Decoder, ins: Instruction) -> None:
        _group(ins)
        only(ins, "mma", "cta_group::1", "kind::f16")
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
        alike = all((each == each[:, :1]).all() for each in given) and len(set(path.homes.tolist())) == len(warps)
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
        self.flat, self.ctas = flat[:, None], path.wave.home_of_warp[flat][:, None]
        first, (goal, _, _, bits, adds) = chain[0]
        self.ins, self.goal, self.adds = first.ins, goal, bool(adds)
        self.m, self.n, self.single = _instruction(bits, self.ins)
        self.across_a, self.across_b = bool(bits >> 15 & 1), bool(bits >> 16 & 1)
        self.agent = TENSOR * self.wave.warps + self.flat // len(self.wave.ctas)
        self.stamp = self.agent << CLOCK_BITS | self.wave.async_clock[self.flat, TENSOR]
        every = len(flat) == len(self.wave.ctas) * self.wave.size and bool((np.diff(self.ctas[:, 0]) > 0).all())
        self.which: Any = slice(None) if every else self.ctas[:, 0]

    def run(self) -> None:
        wave, tmem = self.wave, self.tmem
        half = self._half(self.goal >> 16, "accumulates from")
        first = self.goal & 0xFFFF
        columns = np.arange(first, first + self.n)
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
        at = (slice(first, first + self.n), slice(None), self.which, slice(half, half + self.m // 4))
        before = None
        if self.adds:
            if not tmem.written[at].all():
                raise DiagnosisError(
                    UNINITIALISED, f"{self.who} adds to an accumulator that nothing has written", self.ins.place
                )
            old = tmem.cells[at].transpose(2, 0, 1, 3).reshape(-1, self.n, self.m)
            before = old.view(np.float32) if self.single else old.astype(np.uint16).view(np.float16)
        exact = bool(wave.extra.get("exact_sums"))
        total = tensor_core.multiply(
            right, left, before, not self.single, -14, exact
        )  # of D, the transpose: as cells lie
        total = total.view(np.uint32 if self.single else np.uint16)
        tmem.cells[at] = total.reshape(-1, self.n, 4, self.m // 4).transpose(1, 2, 0, 3)
        tmem.written[at] = True
        tmem.stamp[place], tmem.line[place] = self.stamp[..., None], self.ins.index

    @property
    def who(self) -> str:
        return self.wave.name_of(int(self.flat[0, 0]) * WARP)

    def _half(self, lane: int, does: str) -> int:
        if lane not in ((0,) if self.m == LANES else (0, 16)):
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
        """A: [cta, M, 2 · count] from `count` columns."""
        tmem, first = self.tmem, address & 0xFFFF
        half = self._half(address >> 16, "reads A from")
        columns = np.arange(first, first + count)
        tmem.check(self.flat, self.ctas, columns, self.ins)
        place = (self.ctas[..., None], WINDOWS[:, None], columns)
        tmem.told(self.flat[..., None], *place, self.ins)
        rows = slice(half, half + self.m // 4)
        if not tmem.written[first : first + count, :, self.which, rows].all():
            raise DiagnosisError(
                UNINITIALISED, f"{self.who} multiplies columns from {first} on, not all written", self.ins.place
            )
        tmem.async_read[place] = self.stamp[..., None]
        cells = tmem.cells[first : first + count, :, self.which, rows].transpose(2, 1, 3, 0)
        halves: Array = np.ascontiguousarray(cells).view(np.float16).reshape(-1, self.m, 2 * count)
        return halves.astype(np.float32)

    def _from_shared(self, descriptors: list[int], rows: int, across: bool) -> Array:
        """[cta, rows, 16 · descriptors] in shared memory, which the tensor pipe reads from now on."""
        shared = self.wave.shared
        place = footprints(tuple(tcgen05_descriptor(bits, self.ins) for bits in descriptors), rows, 16, across)
        within(self.path, place, self.ins)
        base = self.ctas * (shared.size >> 4)
        shared.read_later(self.flat, base + place.chunks.reshape(-1), self.stamp, self.ins)
        if (kept := origins(self.wave)) is not None:
            kept.look(place, base[:, 0], self.wave, self.ins)
        return place.gather(shared.view(2, 8), base[:, 0])


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


@handles("tcgen05.commit")
def _commit(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "tcgen05.commit": an mbarrier gets one arrival when all MMAs of the thread so far are over."""
    _group(ins)
    only(ins, "commit", "cta_group::1", "mbarrier::arrive::one", "shared::cluster", "multicast::cluster")
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
