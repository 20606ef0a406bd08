"""Lanes of one warp, which are in step here and need not be on a card.

They meet at what a warp executes as one (`decode.meets`); between two meetings they are in one moment, in which no lane can rely
on what another has stored or waited for. (Accesses of less than a word are not followed.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from faperf.emulator.fault import MISSING_WAIT, RACE, DiagnosisError
from faperf.emulator.ptx import Instruction
from faperf.emulator.state import CLOCK_BITS, WARP, Array, Path

if TYPE_CHECKING:
    from faperf.emulator.state import Wave


class Moments:
    """Of a wave. Offsets are those of shared memory, [instruction, lane]; one of `instructions` for each."""

    def __init__(self, wave: Wave) -> None:
        self.wave, self.shared, warps = wave, wave.shared, len(wave.clocks)
        self.met = np.zeros(warps, np.int32)
        """How often the lanes of each warp have met, up to the block that it runs."""
        self.lane = np.zeros(len(wave.shared.stamp), np.uint8)
        self.stored = np.full(len(wave.shared.stamp), -1, np.int32)
        """Of each word the lane that stored last, and the moment of its warp; -1: not followed."""
        self.waited = np.full(warps, -1, np.int32)
        self.waiters, self.knew = np.zeros((warps, WARP), bool), np.zeros_like(wave.clocks)
        """The moment in which some lanes of a warp alone waited for an mbarrier, which they were, and what the others know."""

    def now(self, path: Path, instructions: Sequence[Instruction]) -> Array:
        """The moment of each lane at each instruction."""
        before = np.array([self.wave.program.meetings[ins.index] for ins in instructions], np.int32)
        moments: Array = self.met.take(path.flat_warps) + before[:, None]
        return moments

    def wait(self, path: Path) -> None:
        """Lanes are about to be told what an mbarrier knows."""
        if path.mask is True:
            return
        part, there = slice(path.start, path.stop), path.mask.reshape(-1, WARP)
        others = (self.wave.exists & ~self.wave.exited)[part].reshape(-1, WARP) & ~there
        alone = there.any(1) & others.any(1)
        warps = path.start // WARP + np.flatnonzero(alone)
        self.waited[warps], self.waiters[warps], self.knew[warps] = (
            self.met[warps],
            there[alone],
            self.wave.clocks[warps],
        )

    def store(self, path: Path, offset: Array, size: int, instructions: Sequence[Instruction]) -> None:
        words = (offset >> 2)[..., None] + np.arange(max(1, size // 4))
        if size < 4:
            self.stored[words] = -1
            return
        lanes = (path.lanes() % WARP).astype(np.uint8)[:, None]
        self.lane[words], self.stored[words] = lanes, self.now(path, instructions)[..., None]
        several = self.lane[words] != lanes  # one word by several lanes: one and the same to each of them
        if several.any():
            self.stored[words[several]] = -1

    def load(self, path: Path, offset: Array, size: int, instructions: Sequence[Instruction]) -> None:
        """Raises DiagnosisError for what only another lane of the warp stored, or waited for, in this moment."""
        words, moment = (offset >> 2)[..., None] + np.arange(size // 4), self.now(path, instructions)[..., None]
        fresh, alone = self.stored.take(words) == moment, self.waited.take(path.flat_warps) == moment[..., 0]
        if not (fresh.any() or alone.any()):
            return
        warps, lanes = path.flat_warps[:, None], (path.lanes() % WARP)[:, None]
        stamps = self.shared.stamp[words]
        agent, clock = stamps >> CLOCK_BITS, stamps & ((1 << CLOCK_BITS) - 1)
        own = agent == warps // len(self.wave.ctas)
        late = (alone & ~self.waiters[warps, lanes][:, 0])[..., None] & (self.knew[warps, agent] < clock)
        for stored, wrong in ((True, fresh & own & (self.lane[words] != lanes)), (False, late & ~own)):
            if wrong.any():
                which, reader, word = (int(n) for n in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
                place = int(warps[reader, 0]), int(lanes[reader, 0]), int(words[which, reader, word])
                self._tell(*place, stored, instructions[which])

    def _tell(self, warp: int, lane: int, word: int, stored: bool, ins: Instruction) -> None:
        writer = self.wave.program.kernel.instructions[int(self.shared.line[word])]
        how = f"({writer.opcode}, {writer.place})"
        raise DiagnosisError(
            RACE if stored else MISSING_WAIT,
            f"lane {lane} of {self.wave.name_of(warp * WARP)} reads shared address {word * 4 % self.shared.size:#x}, which "
            + (
                f"lane {int(self.lane[word])} of it wrote {how}"
                if stored
                else f"{how} fills and only lane {int(np.argmax(self.waiters[warp]))} has waited for"
            )
            + ": no __syncwarp between",
            ins.place,
        )
