"""Global, shared and local memory, with what is known of each byte.

Shared memory knows for each 4-byte word whether it was written, who wrote it last and at which of his clocks, and when each
warp read it last. A read that was not told of the write is a race between warps, or a missing wait where the writer is an
asynchronous agent; so is a write that was not told of an earlier read. (Accesses of less than a word take part as readers and
writers but are not held against writes of the same word's other bytes.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from faperf.emulator.cluster import Visits
from faperf.emulator.fault import MISALIGNED, MISSING_WAIT, OUT_OF_BOUNDS, RACE, UNINITIALISED, DiagnosisError
from faperf.emulator.ptx import Instruction
from faperf.emulator.state import BARRIER_AGENTS, CLOCK_BITS, COPY, FIRST_BARRIER, RANK_BIT, TENSOR, Array, Path

if TYPE_CHECKING:
    from faperf.emulator.state import Wave

GLOBAL_BASE = 0x7F00_0000_0000
SHARED_WINDOW = 0x0100_0000_0000
LOCAL_WINDOW = 0x0200_0000_0000
GUARD = 4096
SHARED_START = 1024
"""Shared memory of a CTA begins with a KiB of the system's."""
UNITS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Global:
    """Device memory: allocations of 1 KiB alignment with guard gaps between them."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, int, Array]] = []
        self._end = GUARD
        self.bytes = np.zeros(0, np.uint8)
        self.valid = np.zeros(0, bool)
        self._stored = np.zeros(0, bool)

    def add(self, name: str, content: Array) -> int:
        """Take in a copy of an array; gives its address. All of them before `seal`."""
        start = -(-self._end // 1024) * 1024
        self._parts.append((name, start, np.ascontiguousarray(content)))
        self._end = start + content.nbytes + GUARD
        return GLOBAL_BASE + start

    def seal(self) -> None:
        self.bytes = np.zeros(-(-self._end // 1024) * 1024, np.uint8)
        self.valid = np.zeros(len(self.bytes), bool)
        self._stored = np.zeros(len(self.bytes), bool)
        for _, start, content in self._parts:
            self.bytes[start : start + content.nbytes] = content.reshape(-1).view(np.uint8)
            self.valid[start : start + content.nbytes] = True

    def allocate(self, name: str, content: Array) -> int:
        """The same as `add`, after `seal`: memory grows."""
        address = self.add(name, content)
        start, more = address - GLOBAL_BASE, -(-self._end // 1024) * 1024 - len(self.bytes)
        self.bytes, self.valid, self._stored = (
            np.concatenate([held, np.zeros(more, held.dtype)]) for held in (self.bytes, self.valid, self._stored)
        )
        self.bytes[start : start + content.nbytes] = self._parts[-1][2].reshape(-1).view(np.uint8)
        self.valid[start : start + content.nbytes] = True
        return address

    def release(self, address: int) -> None:
        """An allocation is over: an access to it is out of bounds. Raises StopIteration where there is none."""
        part = next(part for part in self._parts if GLOBAL_BASE + part[1] == address)
        self.valid[part[1] : part[1] + part[2].nbytes] = False

    def content(self, name: str) -> Array:
        """An allocation as it stands now, in its own type and shape."""
        start, content = self._part(name)
        raw: Array = self.bytes[start : start + content.nbytes].copy()
        return raw.view(content.dtype).reshape(content.shape)

    def stored(self, name: str) -> Array:
        """For each element of an allocation, whether a kernel has stored all of it."""
        start, content = self._part(name)
        marks = self._stored[start : start + content.nbytes].reshape(-1, content.itemsize)
        return marks.all(1).reshape(content.shape)

    def _part(self, name: str) -> tuple[int, Array]:
        return next((start, content) for n, start, content in self._parts if n == name)

    def put(self, size: int, count: int, offset: Array, values: Array) -> None:
        """Store `count` units of `size` bytes at each offset."""
        self.view(size, count)[offset // (size * count)] = values
        self._stored.reshape(-1, size * count)[offset // (size * count)] = True

    def locate(self, path: Path, address: Array, size: int, ins: Instruction, align: int | None = None) -> Array:
        """Offsets of `size` bytes at each lane's address, [lane] or [instruction, lane]. Raises DiagnosisError."""
        offset = address.astype(np.int64) - GLOBAL_BASE
        if offset.min() < 0 or offset.max() > len(self.bytes) - size:
            inside = (offset >= 0) & (offset <= len(self.bytes) - size)
        else:
            inside = self.valid[offset] & self.valid[offset + (size - 1)]
        if not inside.all():
            which = int(np.argmin(inside))
            raise DiagnosisError(OUT_OF_BOUNDS, self._outside(path, which, int(address.flat[which]), size), ins.place)
        if int(np.bitwise_or.reduce(offset, axis=None)) & ((align or size) - 1):
            raise DiagnosisError(MISALIGNED, misaligned(path, address, align or size, "global"), ins.place)
        return offset

    def name_of(self, address: int) -> str:
        """`K[0, 17, 3, 64]` for the address of an element."""
        offset = address - GLOBAL_BASE
        for name, start, content in self._parts:
            if start <= offset < start + content.nbytes:
                place = np.unravel_index((offset - start) // content.itemsize, content.shape)
                return f"{name}[{', '.join(str(int(n)) for n in place)}]"
        return f"global address {address:#x}, which is in no tensor"

    def strides(self, address: int) -> tuple[int, ...]:
        """Those of the tensor that an address lies in, in bytes."""
        offset = address - GLOBAL_BASE
        return next((c.strides for _, start, c in self._parts if start <= offset < start + c.nbytes), ())

    def _outside(self, path: Path, which: int, address: int, size: int) -> str:
        offset, before = address - GLOBAL_BASE, "before all of memory"
        for name, start, content in self._parts:
            if offset >= start:
                before = f"{offset - start} bytes after the start of {name}, which has {content.nbytes}"
        return f"{path.wave.name_of(_lane(path, which))} accesses {size} bytes at global address {address:#x}: {before}"

    def view(self, size: int, count: int) -> Array:
        """All of it as units of `size` bytes, `count` in a row."""
        return self.bytes.view(UNITS[size]).reshape(-1, count)


CHUNK = 16
"""Bytes that TMA and the tensor core move together, whatever the swizzle."""
WRITTEN = {1: 0x0F, 2: 0x0F0F, 4: 0x0F0F_0F0F, 8: 0x0F0F_0F0F_0F0F_0F0F}
"""All bits of so many words."""


Place = tuple[Any, slice]
"""Which CTAs, and a run of bytes in the shared memory of each."""


class Shared:
    """Shared memory of every CTA of a wave, one after the other, with the shadow of each word.

    Offsets count bytes from its start. Arrays of offsets may have any shape that those of warps can be broadcast to; chunks are
    of 16 bytes.
    """

    def __init__(self, wave: Wave, dynamic: int) -> None:
        self.wave, self.dynamic = wave, dynamic
        self.end = wave.program.dynamic_smem + dynamic
        self.size = -(-self.end // 1024) * 1024
        total = self.size * len(wave.ctas) * wave.size
        self.bytes = np.zeros(total, np.uint8)
        self.written = np.zeros(total // 4, np.uint8)  # a bit a byte
        self.stamp = np.zeros(total // 4, np.int32)  # agent << CLOCK_BITS | clock of the last write
        self.line = np.zeros(total // 4, np.int32)  # the instruction that wrote
        self.reads = np.zeros((total // CHUNK, wave.warps), np.int32)  # each warp's clock at its last read of a chunk
        self.small_reads = np.zeros((total // 4, wave.warps), np.int32)  # the same of a word by itself
        self.read_small = np.zeros(total // 4, bool)
        self.latest = np.zeros(total // CHUNK, np.int32)  # the largest clock of any warp at the last read of a chunk
        self.async_read = np.zeros(
            total // CHUNK, np.int32
        )  # agent << CLOCK_BITS | clock of the last asynchronous read
        self.read_line = np.zeros(total // CHUNK, np.int32)
        self._flat_clocks = wave.clocks.reshape(-1)
        self.visits: Visits | None = Visits(wave) if wave.size > 1 else None

    def view(self, size: int, count: int) -> Array:
        return self.bytes.view(UNITS[size]).reshape(-1, count)

    def put(self, size: int, count: int, offset: Array, values: Array) -> None:
        self.view(size, count)[offset // (size * count)] = values

    def locate(
        self, path: Path, address: Array, size: int, ins: Instruction, align: int | None = None, lanes: Array | None = None,
        later: bool = False,
    ) -> Array:  # fmt: skip
        """Offsets of `size` bytes at shared addresses of the path's lanes, or of `lanes`. Raises DiagnosisError.

        `later`: for an asynchronous agent.
        """
        offset = address.astype(np.int64)
        if self.visits is not None:
            home, offset = self.visits.locate(path, offset, ins, lanes, later)
        else:
            home = path.ctas if lanes is None else self.wave.cta[lanes]
        if offset.min() < SHARED_START or offset.max() > self.end - size:
            inside = (offset >= SHARED_START) & (offset <= self.end - size)
            which = int(np.argmin(inside))
            who = path.wave.name_of(_lane(path, which, lanes, offset.shape))
            raise DiagnosisError(
                OUT_OF_BOUNDS,
                f"{who} accesses {size} bytes at shared address {int(address.flat[which]):#x}; the CTA has "
                f"{SHARED_START:#x} to {self.end:#x}",
                ins.place,
            )
        if int(np.bitwise_or.reduce(offset, axis=None)) & ((align or size) - 1):
            raise DiagnosisError(MISALIGNED, misaligned(path, address, align or size, "shared", lanes), ins.place)
        offset += home * self.size
        return offset

    # ── who knows of what ──

    def read(self, path: Path, offset: Array, size: int, ins: Instruction, warps: Array | None = None) -> None:
        """Each warp (of a lane) reads `size` bytes at its offset, now and by itself. Raises DiagnosisError."""
        warps = path.flat_warps if warps is None else warps
        self._check_told(warps, offset, size, ins, "reads")
        self._check_written(warps, offset, size, ins)
        column = warps // len(self.wave.ctas)
        clock = self.wave.clocks[warps, column]
        self.latest[offset >> 4] = self.wave.clocks[:, : self.wave.warps].max()
        if size == CHUNK:
            self.reads[offset >> 4, column] = clock
            return
        for word in range(max(1, size // 4)):
            self.small_reads[(offset >> 2) + word, column] = clock
            self.read_small[(offset >> 2) + word] = True

    def write(self, path: Path, offset: Array, size: int, ins: Instruction, warps: Array | None = None) -> None:
        """Each warp writes `size` bytes at its offset, now and by itself."""
        warps = path.flat_warps if warps is None else warps
        column = warps // len(self.wave.ctas)
        if size >= 4:
            self.check_write(warps, offset, size, ins)
        stamp = (column << CLOCK_BITS) | self.wave.clocks[warps, column]
        if size >= 4:
            self._mark(offset, size, stamp, ins)
            self.landed(offset, size)
            return
        self.stamp[offset >> 2], self.line[offset >> 2] = stamp, ins.index
        np.bitwise_or.at(self.written, offset >> 2, (((1 << size) - 1) << (offset & 3)).astype(np.uint8))

    def write_later(self, warps: Array, offset: Array, size: int, stamp: Array, ins: Instruction) -> None:
        """An asynchronous agent begins to write on behalf of warps; `landed` says when it is done. `stamp` has its clock."""
        self.check_write(warps, offset, size, ins)
        self._mark(offset, size, stamp, ins)
        words = max(1, size // 4)
        self.written.view(UNITS[words])[offset // size] = 0

    def write_run_later(
        self, warps: Array, homes: Array, start: int, size: int, stamp: Array, ins: Instruction
    ) -> Place:
        """The same of `size` bytes from `start` on, whole chunks, in each of some CTAs (`homes` ascend). Gives their place."""
        which = slice(None) if len(homes) == len(self.wave.ctas) * self.wave.size else homes
        words, chunks = ((which, slice(start // unit, (start + size) // unit)) for unit in (4, CHUNK))
        floor = self._floor(warps)
        quick = (
            self._all_told(floor, self._by_cta(self.stamp)[words])
            and self._by_cta(self.latest)[chunks].max() <= floor[: self.wave.warps].min()
            and self._all_told(floor, self._by_cta(self.async_read)[chunks])
        )
        if not quick:
            offset = homes[:, None] * self.size + np.arange(start, start + size, CHUNK)
            self.check_write(warps[:, None], offset, CHUNK, ins)
        self._by_cta(self.stamp)[words] = stamp[:, None]
        self._by_cta(self.line)[words] = ins.index
        self._by_cta(self.written)[words] = 0
        return which, slice(start, start + size)

    def run_landed(self, place: Place, content: Array) -> None:
        """What was to be written there lies there now: [cta, byte]."""
        which, run = place
        self._by_cta(self.bytes)[which, run] = content
        self._by_cta(self.written)[which, run.start // 4 : run.stop // 4] = WRITTEN[1]

    def _by_cta(self, table: Array) -> Array:
        return table.reshape(len(self.wave.ctas) * self.wave.size, -1)

    def landed(self, offset: Array, size: int) -> None:
        words = max(1, size // 4)
        self.written.view(UNITS[words])[offset // size] = WRITTEN[words]

    def read_later(self, warps: Array, chunks: Array, stamp: Array, ins: Instruction) -> None:
        """An asynchronous agent reads chunks on behalf of warps, until they are told that it is done."""
        offset = chunks << 4
        stamps = self._check_told(warps, offset, CHUNK, ins, "starts a read of")
        self._check_written(warps, offset, CHUNK, ins)
        whole = (stamps == stamps[..., :1]).all()
        self._check_fenced(warps[..., None], stamps[..., :1] if whole else stamps, offset, ins)
        self.async_read[chunks] = stamp
        self.read_line[chunks] = ins.index

    def _check_fenced(self, warps: Array, stamps: Array, offset: Array, ins: Instruction) -> None:
        """What threads wrote, the async proxy sees after a fence.proxy.async of the writer, or of the reader later on."""
        wave, agent = self.wave, stamps >> CLOCK_BITS
        clock = stamps & ((1 << CLOCK_BITS) - 1)
        plain = (agent < wave.warps) & (clock > 0)
        if not plain.any():
            return
        count = len(wave.ctas)
        seen = wave.proxied[np.minimum(agent, wave.warps - 1) * count + warps % count] >= clock
        missing = plain & ~seen & (wave.proxy_fenced[warps, agent] < clock)
        if missing.any():
            at = np.unravel_index(int(np.argmax(missing)), missing.shape)
            word = (int(np.broadcast_to(offset[..., None], missing.shape)[at]) >> 2) + int(at[-1])
            wave.warn(
                f"shared memory that {self._writer(int(stamps[at]), int(self.line[word]))} wrote is read without a "
                "fence.proxy.async between",
                ins,
            )

    def _mark(self, offset: Array, size: int, stamp: Array, ins: Instruction) -> None:
        words = size // 4
        if words == 1:
            self.stamp[offset >> 2], self.line[offset >> 2] = stamp, ins.index
        else:
            self.stamp.reshape(-1, words)[offset // size] = stamp[..., None]
            self.line.reshape(-1, words)[offset // size] = ins.index

    def _floor(self, warps: Array) -> Array:
        """Of each agent the clock that the warps, and those between the first and the last of them, have all been told of.

        What is not beyond it need not be looked at warp by warp.
        """
        floor: Array = self.wave.clocks[int(warps.min()) : int(warps.max()) + 1].min(0)
        return floor

    def _told(self, warps: Array, stamps: Array) -> Array:
        known = self._flat_clocks.take(warps * self.wave.agents + (stamps >> CLOCK_BITS))
        told: Array = known >= (stamps & ((1 << CLOCK_BITS) - 1))
        return told

    def _all_told(self, floor: Array, stamps: Array) -> bool:
        last = int(stamps.max())
        if last == int(stamps.min()):
            return last & ((1 << CLOCK_BITS) - 1) <= int(floor[last >> CLOCK_BITS])
        limit = np.arange(len(floor), dtype=np.int32) << CLOCK_BITS | floor
        return not np.count_nonzero(stamps > limit.take(stamps >> CLOCK_BITS))

    def _check_told(
        self, warps: Array, offset: Array, size: int, ins: Instruction, does: str, floor: Array | None = None
    ) -> Array:  # fmt: skip
        """The stamps of the words, [.., word]."""
        words = max(1, size // 4)
        stamps = self.stamp.reshape(-1, words).take(offset // max(4, size), axis=0)
        if self._all_told(self._floor(warps) if floor is None else floor, stamps):
            return stamps
        told = self._told(warps[..., None], stamps)
        if not told.all():
            at = np.unravel_index(int(np.argmin(told)), told.shape)
            warp = int(np.broadcast_to(warps[..., None], told.shape)[at])
            self._not_told(warp, (int(offset[at[:-1]]) >> 2) + int(at[-1]), ins, does)
        return stamps

    def check_write(self, warps: Array, offset: Array, size: int, ins: Instruction) -> None:
        """A write must be told of the last write there and of every read."""
        floor, chunks = self._floor(warps), offset >> 4
        self._check_told(warps, offset, size, ins, "writes", floor)
        if self.latest.take(chunks).max() > floor[: self.wave.warps].min():
            self._check_each_read(warps, offset, size, ins)
        stamps = self.async_read.take(chunks)
        if self._all_told(floor, stamps):
            return
        late = ~self._told(warps, stamps)
        if late.any():
            at = np.unravel_index(int(np.argmax(late)), late.shape)
            chunk = int(chunks[at])
            raise DiagnosisError(
                MISSING_WAIT,
                f"{self._warp(_at(warps, late, at))} writes shared address {self._address(int(offset[at]) >> 2):#x}, which the "
                f"asynchronous {self._writer(int(self.async_read[chunk]), int(self.read_line[chunk]))} may still read",
                ins.place,
            )

    def _check_each_read(self, warps: Array, offset: Array, size: int, ins: Instruction) -> None:
        known = self.wave.clocks[warps, : self.wave.warps]
        self._check_read(warps, offset, self.reads.take(offset >> 4, axis=0) > known, ins)
        words = max(1, size // 4)
        small = self.read_small.view(UNITS[words]).take(offset // max(4, size))
        for word in range(size // 4) if np.count_nonzero(small) else ():
            at = (offset >> 2) + word
            if self.read_small[at].any():
                self._check_read(warps, at << 2, self.small_reads[at] > known, ins)

    def _check_read(self, warps: Array, offset: Array, late: Array, ins: Instruction) -> None:
        if late.any():
            *at, reader = np.unravel_index(int(np.argmax(late)), late.shape)
            raise DiagnosisError(
                RACE,
                f"{self._warp(_at(warps, late[..., 0], tuple(at)))} writes shared address "
                f"{self._address(int(offset[tuple(at)]) >> 2):#x} while {self.wave.warp_name(int(reader))} may still read it: no "
                "barrier between",
                ins.place,
            )

    def _not_told(self, warp: int, word: int, ins: Instruction, does: str) -> None:
        stamp, line = int(self.stamp[word]), int(self.line[word])
        agent = stamp >> CLOCK_BITS
        what = f"{self._warp(warp)} {does} shared address {self._address(word):#x}, "
        kind, writer = divmod(agent, self.wave.warps)
        if kind >= FIRST_BARRIER:
            self.wave.barriers.hold_to_bytes(agent - FIRST_BARRIER * self.wave.warps)
        issuer = writer * len(self.wave.ctas) + warp % len(self.wave.ctas)
        waited = kind == COPY and self.wave.clocks[issuer, agent] >= stamp & ((1 << CLOCK_BITS) - 1)
        if kind == 0 or waited:
            raise DiagnosisError(RACE, f"{what}which {self._writer(stamp, line)} wrote: no barrier between", ins.place)
        raise DiagnosisError(
            MISSING_WAIT, f"{what}which the asynchronous {self._writer(stamp, line)} fills: not waited for", ins.place
        )

    def _check_written(self, warps: Array, offset: Array, size: int, ins: Instruction) -> None:
        words = max(1, size // 4)
        bits = self.written.view(UNITS[words]).take(offset // max(4, size))
        if size < 4:
            bits = bits | ~(((1 << size) - 1) << (offset & 3)).astype(np.uint8) & 15
        missing = bits != WRITTEN[words]
        if missing.any():
            at = np.unravel_index(int(np.argmax(missing)), missing.shape)
            first = int(offset[at]) >> 2
            word = first + int(np.argmin(self.written[first : first + words]))
            agent = int(self.stamp[word]) >> CLOCK_BITS
            if agent >= FIRST_BARRIER * self.wave.warps:
                self.wave.barriers.hold_to_bytes(agent - FIRST_BARRIER * self.wave.warps)
            raise DiagnosisError(
                UNINITIALISED,
                f"{self._warp(int(np.broadcast_to(warps, missing.shape)[at]))} reads shared address "
                f"{self._address(word):#x}, which nothing has written",
                ins.place,
            )

    def _address(self, word: int) -> int:
        """As the kernel has it."""
        home, address = divmod(word * 4, self.size)
        return home % self.wave.size << RANK_BIT | address

    def _warp(self, flat_warp: int) -> str:
        return self.wave.name_of(flat_warp * 32)

    def _writer(self, stamp: int, line: int) -> str:
        agent, place = stamp >> CLOCK_BITS, self.wave.program.kernel.instructions[line]
        kind, number = divmod(agent, self.wave.warps)
        warp = self.wave.warp_name(number)
        who = {0: warp, COPY: f"copy of {warp}", TENSOR: f"MMA of {warp}"}.get(kind, "bulk copy")
        return f"{who} ({place.opcode}, {place.place})"

    def barrier_agent(self, slot: int) -> int:
        """The agent that fills shared memory and tells a barrier of it."""
        return FIRST_BARRIER * self.wave.warps + slot % BARRIER_AGENTS


def _at(values: Array, like: Array, at: Any) -> int:
    """An element of `values`, broadcast to the shape of `like`."""
    return int(np.broadcast_to(values, like.shape)[at])


def _lane(path: Path, which: int, lanes: Array | None = None, shape: tuple[int, ...] = ()) -> int:
    """The flat lane of the element `which` of an array whose last axis is by lane (or as `lanes` says)."""
    if lanes is not None:
        return int(np.broadcast_to(lanes, shape).flat[which])
    own = path.lanes()
    return int(own[which % len(own)])


class Local:
    """Each lane's own memory: variables in the .local space."""

    def __init__(self, wave: Wave) -> None:
        self.size = -(-wave.program.local_size // 16) * 16
        self.bytes = np.zeros(self.size * wave.lanes, np.uint8)

    def locate(self, path: Path, address: Array, size: int, ins: Instruction, align: int | None = None) -> Array:
        offset = address.astype(np.int64)
        if ((offset < 0) | (offset > self.size - size)).any():
            raise DiagnosisError(OUT_OF_BOUNDS, "accesses local memory outside of its variables", ins.place)
        if (offset & ((align or size) - 1)).any():
            raise DiagnosisError(MISALIGNED, misaligned(path, address, align or size, "local"), ins.place)
        return offset + path.lanes() * self.size

    def view(self, size: int, count: int) -> Array:
        return self.bytes.view(UNITS[size]).reshape(-1, count)

    def put(self, size: int, count: int, offset: Array, values: Array) -> None:
        self.view(size, count)[offset // (size * count)] = values


def misaligned(path: Path, address: Array, align: int, space: str, lanes: Array | None = None) -> str:
    which = int(np.argmax((address.astype(np.int64) & (align - 1)) != 0))
    who = path.wave.name_of(_lane(path, which, lanes, address.shape))
    return f"{who} accesses {space} address {int(address.flat[which]):#x}, which is no multiple of {align}"
