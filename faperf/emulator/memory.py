"""Global, shared and local memory, with what is known of each byte.

Shared memory knows for each 4-byte word whether it was written, who wrote it last and at which of his clocks, and when each
warp read it last. A read that was not told of the write is a race between warps, or a missing wait where the writer is an
asynchronous agent; so is a write that was not told of an earlier read. (Accesses of less than a word take part as readers and
writers but are not held against writes of the same word's other bytes.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from faperf.emulator.fault import MISALIGNED, MISSING_WAIT, OUT_OF_BOUNDS, RACE, UNINITIALISED, DiagnosisError
from faperf.emulator.ptx import Instruction
from faperf.emulator.state import BARRIER_AGENTS, COPY, TENSOR, Array, Path

if TYPE_CHECKING:
    from faperf.emulator.state import Wave

GLOBAL_BASE = 0x7F00_0000_0000
SHARED_WINDOW = 0x0100_0000_0000
LOCAL_WINDOW = 0x0200_0000_0000
GUARD = 4096
SHARED_START = 1024
"""Shared memory of a CTA begins with a KiB of the system's."""
UNITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
CLOCK_BITS = 24


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
        """Offsets of `size` bytes at each lane's address. Raises DiagnosisError."""
        offset = address.astype(np.int64) - GLOBAL_BASE
        inside = (offset >= 0) & (offset <= len(self.bytes) - size)
        safe = np.where(inside, offset, 0)
        inside &= self.valid[safe] & self.valid[safe + size - 1]
        if not inside.all():
            which = int(np.argmin(inside))
            raise DiagnosisError(OUT_OF_BOUNDS, self._outside(path, which, int(address[which]), size), ins.place)
        if (offset & ((align or size) - 1)).any():
            raise DiagnosisError(MISALIGNED, misaligned(path, address, align or size, "global"), ins.place)
        return offset

    def _outside(self, path: Path, which: int, address: int, size: int) -> str:
        offset, before = address - GLOBAL_BASE, "before all of memory"
        for name, start, content in self._parts:
            if offset >= start:
                before = f"{offset - start} bytes after the start of {name}, which has {content.nbytes}"
        return f"{path.wave.name_of(int(path.lanes()[which]))} accesses {size} bytes at global address {address:#x}: {before}"

    def view(self, size: int, count: int) -> Array:
        """All of it as units of `size` bytes, `count` in a row."""
        return self.bytes.view(UNITS[size]).reshape(-1, count)


class Shared:
    """Shared memory of every CTA of a wave, one after the other, with the shadow of each word."""

    def __init__(self, wave: Wave, dynamic: int) -> None:
        self.wave, self.dynamic = wave, dynamic
        self.end = wave.program.dynamic_smem + dynamic
        self.size = -(-self.end // 1024) * 1024
        total = self.size * len(wave.ctas)
        self.bytes = np.zeros(total, np.uint8)
        self.written = np.zeros(total // 4, np.uint8)  # a bit a byte
        self.stamp = np.zeros(total // 4, np.int32)  # agent << CLOCK_BITS | clock of the last write
        self.line = np.zeros(total // 4, np.int32)  # the instruction that wrote
        self.reads = np.zeros((total // 4, wave.warps), np.int32)  # each warp's clock at its last read
        self.async_read = np.zeros(total // 4, np.int32)  # agent << CLOCK_BITS | clock of the last asynchronous read
        self.read_line = np.zeros(total // 4, np.int32)

    def view(self, size: int, count: int) -> Array:
        return self.bytes.view(UNITS[size]).reshape(-1, count)

    def put(self, size: int, count: int, offset: Array, values: Array) -> None:
        self.view(size, count)[offset // (size * count)] = values

    def locate(self, path: Path, address: Array, size: int, ins: Instruction, align: int | None = None) -> Array:
        """Offsets of `size` bytes at each lane's shared address. Raises DiagnosisError."""
        offset = address.astype(np.int64)
        inside = (offset >= SHARED_START) & (offset <= self.end - size)
        if not inside.all():
            which = int(np.argmin(inside))
            raise DiagnosisError(
                OUT_OF_BOUNDS,
                f"{path.wave.name_of(int(path.lanes()[which]))} accesses {size} bytes at shared address "
                f"{int(address[which]):#x}; the CTA has {SHARED_START:#x} to {self.end:#x}",
                ins.place,
            )
        if (offset & ((align or size) - 1)).any():
            raise DiagnosisError(MISALIGNED, misaligned(path, address, align or size, "shared"), ins.place)
        offset += path.ctas * self.size
        return offset

    # ── who knows of what ──

    def read(self, path: Path, offset: Array, size: int, ins: Instruction, warps: Array | None = None) -> None:
        """Each warp (of a lane) reads `size` bytes at its offset, now and by itself. Raises DiagnosisError."""
        warps = path.flat_warps if warps is None else warps
        words = words_of(offset, size)
        self._check_told(warps, words, ins, "reads")
        self._check_written(warps, offset, words, size, ins)
        wave, column = self.wave, warps // len(self.wave.ctas)
        clock = wave.clocks[warps, column]
        self.reads.reshape(-1)[words * wave.warps + column[:, None]] = clock[:, None]

    def write(self, path: Path, offset: Array, size: int, ins: Instruction, warps: Array | None = None) -> None:
        """Each warp writes `size` bytes at its offset, now and by itself."""
        warps = path.flat_warps if warps is None else warps
        column = warps // len(self.wave.ctas)
        words = words_of(offset, size)
        if size >= 4:
            self.check_write(warps, words, ins)
        stamp = (column << CLOCK_BITS) | self.wave.clocks[warps, column]
        self._mark(offset, words, size, stamp[:, None], ins)

    def write_later(self, warps: Array, words: Array, agent: Array, clock: Array, ins: Instruction) -> None:
        """An asynchronous agent begins to write whole words on behalf of a warp; `landed` says when they are there."""
        self.check_write(warps, words, ins)
        self.stamp[words] = ((agent << CLOCK_BITS) | clock)[:, None]
        self.line[words] = ins.index
        self.written[words] = 0

    def landed(self, words: Array) -> None:
        self.written[words] = 15

    def read_later(self, warps: Array, words: Array, agent: Array, clock: Array, ins: Instruction) -> None:
        """An asynchronous agent reads whole words on behalf of a warp, until the warp is told that it is done."""
        self._check_told(warps, words, ins, "starts a read of")
        self._check_written(warps, words[:, 0] * 4, words, 4, ins)
        self.async_read[words] = ((agent << CLOCK_BITS) | clock)[:, None]
        self.read_line[words] = ins.index

    def _mark(self, offset: Array, words: Array, size: int, stamp: Array, ins: Instruction) -> None:
        self.stamp[words] = stamp
        self.line[words] = ins.index
        if size >= 4:
            self.written[words] = 15
        else:
            np.bitwise_or.at(self.written, words[:, 0], (((1 << size) - 1) << (offset & 3)).astype(np.uint8))

    def _told(self, warps: Array, stamps: Array) -> Array:
        known = self.wave.clocks.reshape(-1)[(warps * self.wave.agents)[:, None] + (stamps >> CLOCK_BITS)]
        return known >= (stamps & ((1 << CLOCK_BITS) - 1))

    def _check_told(self, warps: Array, words: Array, ins: Instruction, does: str) -> None:
        told = self._told(warps, self.stamp[words])
        if not told.all():
            at = np.unravel_index(int(np.argmin(told)), told.shape)
            self._not_told(int(warps[at[0]]), int(words[at]), ins, does)

    def check_write(self, warps: Array, words: Array, ins: Instruction) -> None:
        """A write must be told of the word's last write and of every read of it."""
        self._check_told(warps, words, ins, "writes")
        wave = self.wave
        told = self.reads[words] <= wave.clocks[warps, None, : wave.warps]
        if not told.all():
            lane, k, reader = (int(n) for n in np.unravel_index(int(np.argmin(told)), told.shape))
            raise DiagnosisError(
                RACE,
                f"{self._warp(int(warps[lane]))} writes shared address {self._address(int(words[lane, k])):#x} while warp "
                f"{reader} may still read it: no barrier between",
                ins.place,
            )
        late = self._told(warps, self.async_read[words])
        if not late.all():
            at = np.unravel_index(int(np.argmin(late)), late.shape)
            word = int(words[at])
            raise DiagnosisError(
                MISSING_WAIT,
                f"{self._warp(int(warps[at[0]]))} writes shared address {self._address(word):#x}, which the "
                f"asynchronous {self._writer(int(self.async_read[word]), int(self.read_line[word]))} may still read",
                ins.place,
            )

    def _not_told(self, warp: int, word: int, ins: Instruction, does: str) -> None:
        stamp, line = int(self.stamp[word]), int(self.line[word])
        agent = stamp >> CLOCK_BITS
        what = f"{self._warp(warp)} {does} shared address {self._address(word):#x}, "
        kind, writer = divmod(agent, self.wave.warps)
        issuer = writer * len(self.wave.ctas) + warp % len(self.wave.ctas)
        waited = kind == COPY and self.wave.clocks[issuer, agent] >= stamp & ((1 << CLOCK_BITS) - 1)
        if kind == 0 or waited:
            raise DiagnosisError(RACE, f"{what}which {self._writer(stamp, line)} wrote: no barrier between", ins.place)
        raise DiagnosisError(
            MISSING_WAIT, f"{what}which the asynchronous {self._writer(stamp, line)} fills: not waited for", ins.place
        )

    def _check_written(self, warps: Array, offset: Array, words: Array, size: int, ins: Instruction) -> None:
        bits = self.written[words]
        if size < 4:
            bits = bits | ~(((1 << size) - 1) << (offset & 3))[:, None].astype(np.uint8) & 15
        if not (bits == 15).all():
            at = np.unravel_index(int(np.argmax(bits != 15)), bits.shape)
            raise DiagnosisError(
                UNINITIALISED,
                f"{self._warp(int(warps[at[0]]))} reads shared address {self._address(int(words[at])):#x}, "
                "which nothing has written",
                ins.place,
            )

    def _address(self, word: int) -> int:
        return word * 4 % self.size

    def _warp(self, flat_warp: int) -> str:
        return self.wave.name_of(flat_warp * 32)

    def _writer(self, stamp: int, line: int) -> str:
        agent, place = stamp >> CLOCK_BITS, self.wave.program.kernel.instructions[line]
        kind, warp = divmod(agent, self.wave.warps)
        who = {0: f"warp {warp}", COPY: f"copy of warp {warp}", TENSOR: f"MMA of warp {warp}"}.get(kind, "bulk copy")
        return f"{who} ({place.opcode}, {place.place})"

    def barrier_agent(self, slot: int) -> int:
        """The agent that fills shared memory and tells a barrier of it."""
        return 4 * self.wave.warps + slot % BARRIER_AGENTS


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


def words_of(offset: Array, size: int) -> Array:
    """The words that `size` bytes at each offset touch, [lanes, words]."""
    return (offset >> 2)[:, None] + np.arange(max(1, size // 4))


def misaligned(path: Path, address: Array, align: int, space: str) -> str:
    which = int(np.argmax((address.astype(np.int64) & (align - 1)) != 0))
    who = path.wave.name_of(int(path.lanes()[which]))
    return f"{who} accesses {space} address {int(address[which]):#x}, which is no multiple of {align}"
