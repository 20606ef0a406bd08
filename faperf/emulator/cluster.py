"""What the CTAs of a cluster do in each other's shared memory ("State Spaces: .shared::cluster", "mapa", "barrier.cluster").

A shared address names its CTA by the rank in its upper bits. A CTA must not end while others may still come to its shared memory:
each visit, of a warp or of an asynchronous agent, must have been told to one of its warps by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from faperf.emulator.fault import ENDED, OUT_OF_BOUNDS, DiagnosisError
from faperf.emulator.state import RANK_BIT, WARP, Array, Path

if TYPE_CHECKING:
    from faperf.emulator.ptx import Instruction
    from faperf.emulator.state import Wave

WITHIN = (1 << RANK_BIT) - 1
"""The bits of a shared address that say where in its CTA's shared memory it lies."""


class Visits:
    """By the CTA that is visited (its number in the wave) and the agent that visits: at which of his clocks last, and by what."""

    def __init__(self, wave: Wave) -> None:
        self.wave = wave
        homes = len(wave.ctas) * wave.size
        self.clock, self.line = np.zeros((2, homes, wave.agents), np.int32)
        self.gone = np.zeros(homes, np.int64)
        """Warps that have ended."""
        self.ended = np.zeros(homes, bool)

    def locate(
        self, path: Path, address: Array, ins: Instruction, lanes: Array | None, later: bool
    ) -> tuple[Array, Array]:  # fmt: skip
        """(the CTA that each address lies in, the address within it). Raises DiagnosisError.

        `later`: not the lanes come, but an agent of theirs, who `comes`.
        """
        wave, lanes = self.wave, path.lanes() if lanes is None else lanes
        warps = np.broadcast_to(wave.flat_warp[lanes], address.shape)
        rank = address >> RANK_BIT
        if (rank < 0).any() or (rank >= wave.size).any():
            which = int(np.argmax((rank < 0) | (rank >= wave.size)))
            raise DiagnosisError(
                OUT_OF_BOUNDS, f"{wave.name_of(int(warps.flat[which]) * WARP)} accesses shared address "
                f"{int(address.flat[which]):#x}: its cluster has {wave.size} CTAs", ins.place,
            )  # fmt: skip
        own = wave.home_of_warp[warps]
        home = own // wave.size * wave.size + rank
        abroad = home != own
        if abroad.any():
            self.visit(warps[abroad], home[abroad], ins, later)
        return home, address & WITHIN

    def visit(self, warps: Array, homes: Array, ins: Instruction, later: bool) -> None:
        """Warps, or agents of theirs, come to other CTAs. Raises DiagnosisError for one that has ended."""
        wave = self.wave
        if self.ended[homes].any():
            which = int(np.argmax(self.ended[homes]))
            raise DiagnosisError(
                ENDED, f"{wave.name_of(int(warps[which]) * WARP)} accesses the shared memory of CTA "
                f"{wave.place_of(int(homes[which]))}, which has ended: no barrier.cluster before its end", ins.place,
            )  # fmt: skip
        if not later:
            agents = warps // len(wave.ctas)
            np.maximum.at(self.clock, (homes, agents), wave.clocks[warps, agents])
            self.line[homes, agents] = ins.index

    def comes(self, warps: Array, homes: Array, agents: Array, clocks: Array, ins: Instruction) -> None:
        """Agents come on behalf of warps; a CTA that is told of these clocks of theirs knows that they are gone."""
        abroad = self.wave.home_of_warp[warps] != homes
        to, who = homes[abroad], np.broadcast_to(agents, homes.shape)[abroad]
        np.maximum.at(self.clock, (to, who), clocks[abroad])
        self.line[to, who] = ins.index

    def exited(self, warps: Array) -> None:
        """Flat warps have ended. Raises DiagnosisError where somebody may still come to their CTA."""
        wave = self.wave
        np.add.at(self.gone, wave.home_of_warp[warps], 1)
        for home in np.flatnonzero(~self.ended & (self.gone == wave.cta_warps)).tolist():
            column, rank = divmod(home, wave.size)
            warps = (rank * wave.cta_warps + np.arange(wave.cta_warps)) * len(wave.ctas) + column
            late = self.clock[home] > wave.clocks[warps].max(0)
            if late.any():
                agent = int(np.argmax(late))
                ins = wave.program.kernel.instructions[int(self.line[home, agent])]
                kind, number = divmod(agent, wave.warps)
                who = wave.warp_name(number) if kind == 0 else f"the MMA of {wave.warp_name(number)}"
                who = "a copy" if kind > 3 else who
                raise DiagnosisError(
                    ENDED, f"CTA {wave.place_of(home)} ends while {who} may still access its shared memory ({ins.opcode}): "
                    "nothing has told it that this is over (barrier.cluster)", ins.place,
                )  # fmt: skip
            self.ended[home] = True
