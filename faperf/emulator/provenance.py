"""Where the bytes of an operand come from: names a tile whose order is not the one that a matrix descriptor describes.

Each chunk of 16 bytes that an asynchronous copy fills has the global address that it came from. The rows of an operand come from
addresses a stride of their tensor apart, from the first on; a chunk that does not is named by its tensor. An order of rows that
is meant looks the same, so this is only looked at where a result is wrong.
"""

from __future__ import annotations

import numpy as np

from faperf.emulator.matrix import Footprint
from faperf.emulator.memory import CHUNK
from faperf.emulator.ptx import Instruction
from faperf.emulator.state import Array, Wave

ENOUGH = 3
"""Notes of a launch."""


class Origins:
    """Of each chunk of a wave's shared memory, the global address that it was copied from; 0: from nowhere."""

    def __init__(self, wave: Wave) -> None:
        self.wave, self.notes = wave, dict[str, None]()
        self.address = np.zeros(len(wave.shared.bytes) // CHUNK, np.int64)
        self._copies = np.array([ins.parts[0] == "cp" for ins in wave.program.kernel.instructions])

    def fill(self, chunks: Array, addresses: Array) -> None:
        self.address[chunks] = addresses

    def look(self, place: Footprint, base: Array, ins: Instruction) -> None:
        """Note what is out of order in the operand of the CTA whose first chunk is `base[0]`."""
        chunks = int(base[0]) + place.chunks  # [row, k] or, across, [k, row]
        shared = self.wave.shared
        if len(self.notes) >= ENOUGH or not self._copies[shared.line[chunks * (CHUNK // 4)]].all():
            return
        found = self.address[chunks]
        if not found.all() or len(found) < 2:
            return
        usual = float(np.median(np.diff(found[:, 0])))
        step = min(
            self.wave.memory.strides(int(found[0, 0])), key=lambda stride: abs(stride - usual), default=int(usual)
        )
        expected = found[0, 0] + np.arange(len(found))[:, None] * step + np.arange(found.shape[1]) * CHUNK
        wrong = found != expected
        if wrong.any():
            line, chunk = (int(n) for n in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
            name = self.wave.memory.name_of
            what = f"k = {line}, row {8 * chunk}" if place.across else f"row {line}, k = {8 * chunk}"
            self.notes.setdefault(
                f"an operand of {ins.opcode} ({ins.place}) does not lie in the order that its descriptor describes: at {what} it "
                f"finds {name(int(found[line, chunk]))} where those before ask for {name(int(expected[line, chunk]))}"
            )


def origins(wave: Wave) -> Origins | None:
    """Those of a wave, where they are kept."""
    found: Origins | None = wave.extra.get("origins")
    return found
