"""Where the operands of a matrix product come from: names a tile whose order is not the one that it is multiplied in.

What is moved is not changed: 16 bytes of an operand that stand at one place alone of global memory came from there, whether TMA,
cp.async or a thread's own loads and stores brought them, and whether a descriptor names them or ldmatrix took them to registers.
The rows of an operand come from addresses a stride of their tensor apart, from the first on; a chunk that does not is named by
its tensor. An order of rows that is meant looks the same, so this is only looked at where a result is wrong.
"""

from __future__ import annotations

import numpy as np

from faperf.emulator.fault import LAYOUT
from faperf.emulator.matrix import Footprint
from faperf.emulator.memory import CHUNK, GLOBAL_BASE, Global
from faperf.emulator.ptx import Instruction
from faperf.emulator.state import CLOCK_BITS, Array, Wave

ENOUGH = 3
"""Notes of a launch."""


class Origins:
    """The chunks of global memory, as it is now, by what they hold; `notes` by source line of what is found out of order."""

    def __init__(self, memory: Global) -> None:
        self.memory, self.notes = memory, dict[str, str]()
        self._pairs: list[Array | None] = []
        chunks = memory.bytes.view(np.uint64).reshape(-1, 2)
        keys = _key(chunks)
        order = np.argsort(keys, kind="stable")
        again = keys[order][1:] == keys[order][:-1]
        alone = np.ones(len(keys), bool)
        alone[1:] &= ~again
        alone[:-1] &= ~again
        self._keys, self._place = keys[order][alone], order[alone]

    def find(self, chunks: Array) -> Array:
        """The global address of each chunk, [.., 8] of 16 bits; 0 where there is none, or several."""
        keys = _key(np.ascontiguousarray(chunks).view(np.uint64))
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        found: Array = np.where(self._keys[at] == keys, GLOBAL_BASE + self._place[at] * CHUNK, 0)
        return found

    def look(self, place: Footprint, base: Array, wave: Wave, ins: Instruction) -> None:
        """Note what is out of order in the operand of the CTA whose first chunk is `base[0]`."""
        if len(self.notes) < ENOUGH and ins.where not in self.notes:
            content = wave.shared.view(2, 8)[int(base[0]) + place.chunks]  # [row, k] or, across, [k, row]
            found = self.find(content)
            self._hold(found[None], place.across, "its descriptor describes", ins)
            if not found.any() and not place.across:
                self._hold_stores(int(base[0]) + place.chunks, wave, ins)
            self._pairs = [*self._pairs[-1:], found[0] if found.all() and not place.across else None]

    def look_at_pair(self, ins: Instruction) -> None:
        """Note where the last two operands of `look`, both along k, begin at different places of their rows."""
        if len(self._pairs) == 2 and ins.where not in self.notes:
            one, other = self._pairs
            if one is not None and other is not None and len(self.notes) < ENOUGH:
                names = [self.memory.name_of(int(each[0])) for each in (one, other)]
                if len({name.rpartition(", ")[2] for name in names}) > 1:
                    self._note(f"{ins.opcode} ({ins.place}) multiplies {names[0]} … with {names[1]} …", ins)
        self._pairs = []

    def look_at(self, operands: Array, ins: Instruction) -> None:
        """The same of operands in registers, [operand, row, k] of 16 bits."""
        for across in (False, True):
            if len(self.notes) < ENOUGH and ins.where not in self.notes:
                lines = operands.transpose(0, 2, 1) if across else operands
                chunks = np.ascontiguousarray(lines).reshape(*lines.shape[:2], -1, 8)
                self._hold(self.find(chunks), across, "its fragment has", ins)

    def _hold_stores(self, chunks: Array, wave: Wave, ins: Instruction) -> None:
        """What threads worked out: the stores of an unrolled loop are to lie in the same order along k in every row.

        (Two ways through the program may have stored it: only more than two orders are named.)
        """
        words, code = chunks * (CHUNK // 4), wave.program.kernel.instructions
        lines = wave.shared.line[words]
        plain = (wave.shared.stamp[words] >> CLOCK_BITS < wave.warps).all()
        wrong = lines != lines[0]
        orders = len(np.unique(lines, axis=0))
        if plain and orders > 2:
            row, chunk = (int(n) for n in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
            one, other = (code[int(lines[r, chunk])] for r in (0, row))
            self._note(
                f"an operand of {ins.opcode} ({ins.place}) does not lie in the order that its descriptor describes: its rows are "
                f"stored in different orders, k = {8 * chunk} of row 0 by {one.opcode} ({one.place}), that of row {row} by "
                f"{other.opcode} ({other.place})", ins,
            )  # fmt: skip

    def _hold(self, found: Array, across: bool, order: str, ins: Instruction) -> None:
        """Addresses of chunks [operand, line, along], a line being a row or, across, a k."""
        found = found[found.all((1, 2))]
        if not len(found):
            return
        first, lines, along = found[:, :1, :1], np.arange(found.shape[1]), np.arange(found.shape[2])
        strides = np.outer((1, -1), self.memory.strides(int(found[0, 0, 0]))).reshape(-1)
        usual = np.median(np.diff(found[:, :, 0], axis=1), axis=1)
        step = strides[np.abs(strides - usual[:, None]).argmin(1)]
        expected = first + step[:, None, None] * lines[:, None] + along * CHUNK
        wrong = found != expected
        if wrong.any():
            at = _, line, chunk = tuple(int(n) for n in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
            name = self.memory.name_of
            what = f"k = {line}, row {8 * chunk}" if across else f"row {line}, k = {8 * chunk}"
            self._note(
                f"an operand of {ins.opcode} ({ins.place}) does not lie in the order that {order}: at {what} it finds "
                f"{name(int(found[at]))} where those before ask for {name(int(expected[at]))}", ins,
            )  # fmt: skip

    def _note(self, what: str, ins: Instruction) -> None:
        self.notes[ins.where] = f"{LAYOUT}: {what}"


def _key(chunks: Array) -> Array:
    """64 bits of each [.., 2]: equal where the chunks are, and hardly ever else."""
    mixed = chunks[..., 0] * np.uint64(0x9E3779B97F4A7C15)
    key: Array = (mixed ^ (mixed >> np.uint64(29))) + chunks[..., 1] * np.uint64(0xC2B2AE3D27D4EB4F)
    return key


def origins(wave: Wave) -> Origins | None:
    """Those of a launch, where they are kept."""
    found: Origins | None = wave.extra.get("origins")
    return found
