"""Phases of an mbarrier that end before a warp that waits for them has seen the one before: by parity it would wait for ever.

A warp says that it has seen a phase by what it tells afterwards (an arrival, a barrier). Where those who bring a phase to its end
were not told, it may come too early, whether or not it does in this run: a warning, for time often makes up for it.
"""

from __future__ import annotations

import numpy as np

from faperf.emulator.ptx import Instruction
from faperf.emulator.state import Array, Wave


class Waiters:
    """Of one mbarrier; arrays are by CTA and warp. Phases count from 0; `seen` have ended to a warp's knowledge."""

    def __init__(self, wave: Wave, address: int) -> None:
        self.wave, self.address = wave, address
        self.seen, self.clock, self.line = np.zeros((3, len(wave.ctas), wave.warps), np.int64)
        self.asked = np.full(self.seen.shape, -1)
        self.warned = False

    def ask(self, flat_warps: Array, phase: Array, ins: Instruction) -> None:
        """Warps begin to wait for the end of a phase."""
        each = np.flatnonzero(np.diff(flat_warps, prepend=-1))
        warps, ctas = np.divmod(flat_warps[each], len(self.wave.ctas))
        self.asked[ctas, warps] = phase[each]
        self.line[ctas, warps] = ins.index

    def see(self, flat_warps: Array, phase: Array) -> None:
        """Warps go on, `phase` having ended."""
        each = np.flatnonzero(np.diff(flat_warps, prepend=-1))
        warps, ctas = np.divmod(flat_warps[each], len(self.wave.ctas))
        self.asked[ctas, warps] = -1
        self.seen[ctas, warps] = phase[each]
        self.clock[ctas, warps] = self.wave.clocks[flat_warps[each], warps]

    def hold(self, done: Array, phase: Array, gathered: Array) -> None:
        """A phase ends in the CTAs of `done`, brought about by those who know what is `gathered`."""
        if self.warned:
            return
        late = (self.asked >= 0) & (self.asked < phase[:, None])
        late |= (self.seen == phase[:, None]) & (self.clock > gathered[:, : self.wave.warps])
        late &= done[:, None]
        if late.any():
            self.warned = True
            cta, warp = (int(n) for n in np.unravel_index(int(np.argmax(late)), late.shape))
            self.wave.warn(
                f"mbarrier {self.address:#x} may end a phase before {self.wave.warp_name(warp)} has seen the end of the last "
                "one: those who arrive are not told that it has",
                self.wave.program.kernel.instructions[int(self.line[cta, warp])],
            )

    def missed(self, flat_warp: int, parity: int, phase: int) -> str:
        """` (…)` where the phase that a warp waits for by parity is long over."""
        warp, cta = divmod(flat_warp, len(self.wave.ctas))
        wanted = int(self.seen[cta, warp])
        wanted += (wanted & 1) != parity
        return f" (phase {wanted} and the next ended before it looked)" if phase >= wanted + 2 else ""
