"""Which path runs next, when a transfer lands, and what it means when nothing can run.

A path runs until it has to wait, meets its siblings or ends. When no path can run: a transfer lands; else a path of which some
warps can go on is taken apart; else warps that wait for their siblings only because they were run together go on alone; else a
poll (`mbarrier.test_wait`, `try_wait`) answers false; else the kernel has locked up.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from faperf.emulator import LAZY, LOCKSTEP, RANDOM
from faperf.emulator.fault import DEADLOCK, DiagnosisError
from faperf.emulator.pending import follow
from faperf.emulator.ptx import Instruction
from faperf.emulator.state import WARP, Array, Join, Path, Wave

INSTRUCTION_LIMIT = 400_000_000
"""Warp-instructions a wave may take: a kernel that spins on memory would never end."""


class Wait(Protocol):
    """What a path waits for. Arrays are by lane of the path's slice."""

    ins: Instruction

    def ready(self, path: Path) -> Array:
        """For each lane that takes part, whether it may go on."""

    def proceed(self, path: Path) -> None:
        """The path goes on: it learns what the others have told."""

    def give_up(self, path: Path) -> bool:
        """Nothing else can run: go on with the answer "not yet" if that is allowed."""

    def describe(self, path: Path) -> str: ...


@dataclass
class Flight:
    """An asynchronous transfer on its way. `wanted` says whether a path that waits would go on with it."""

    land: Callable[[], None]
    what: str


class Scheduler:
    """Runs a wave to its end. Raises DiagnosisError and NotEmulatedError."""

    def __init__(self, wave: Wave, schedule: str, seed: int = 0) -> None:
        self.wave, self.schedule = wave, schedule
        self.random = random.Random(seed)
        self.flights: list[Flight] = []
        self.traced: Callable[[Path, Instruction], None] | None = None
        wave.scheduler = self
        lanes = np.flatnonzero(wave.exists)
        warps = [lanes[lanes // WARP // len(wave.ctas) == warp] for warp in range(wave.warps)]
        parts = [lanes] if schedule == LOCKSTEP else warps
        self.paths = [Path(wave, part, 0, None) for part in parts]
        self.moved = 0
        """Counts what happened: a poll that comes again with nothing changed has locked up."""

    @property
    def lands_early(self) -> bool:
        """Transfers may land before anyone waits for them."""
        return self.schedule != LAZY

    def take_off(self, land: Callable[[], None], what: str) -> None:
        """A transfer begins. Eager transfers are there at once."""
        if self.schedule == LOCKSTEP:
            self.moved += 1
            land()
        else:
            self.flights.append(Flight(land, what))

    def run(self) -> None:
        with np.errstate(all="ignore"):
            while self.paths:
                if self.schedule == RANDOM:
                    self._step_at_random()
                else:
                    went = False
                    for path in list(self.paths):
                        went = self._go_on(path) or went
                    if not went:
                        self._unblock()

    def _step_at_random(self) -> None:
        if self.flights and self.random.random() < 0.3:
            self._land(self.random.randrange(len(self.flights)))
        order = list(self.paths)
        self.random.shuffle(order)
        for path in order:
            if self._go_on(path, self.random.randrange(1, 8)):
                return
        self._unblock()

    def _land(self, which: int) -> None:
        self.moved += 1
        self.flights.pop(which).land()

    # ── one path ──

    def _go_on(self, path: Path, blocks: int = 1 << 30) -> bool:
        """Run a path for a while, if it can. Says whether it could."""
        if path.wait is not None:
            if path.asked == self.moved:
                return False
            if not path.wait.ready(path).all():
                path.asked = self.moved
                return False
            self._resume(path)
        program, wave = self.wave.program, self.wave
        while path in self.paths and path.wait is None and blocks > 0:
            blocks -= 1
            block = program.code[path.pc]
            wave.executed += block.length * path.warps
            if wave.executed > INSTRUCTION_LIMIT:
                last = program.kernel.instructions[block.stop - 1]
                raise DiagnosisError(DEADLOCK, f"still running after {wave.executed:,} warp-instructions", last.place)
            if self.traced is not None:
                for index in range(block.first, block.stop):
                    self.traced(path, program.kernel.instructions[index])
            if block.events:
                follow(path, block.events)
            for operation in block.operations:
                operation(path)
            if block.meetings:
                wave.moments.met[path.start // WARP : path.stop // WARP] += block.meetings
            block.end(path)
            self._settle(path)
        return True

    def _settle(self, path: Path) -> None:
        """A wait that is over at once."""
        while path.wait is not None and path.wait.ready(path).all():
            self._resume(path)

    def _resume(self, path: Path) -> None:
        assert path.wait is not None
        self.moved += 1
        wait, path.wait = path.wait, None
        wait.proceed(path)
        self.go(path, path.pc + 1)

    def go(self, path: Path, block: int) -> None:
        """Move a path to a block; where it meets its siblings it waits for them."""
        path.pc = block
        if path.join is not None and path.join.at == block:
            join = path.join
            self.paths.remove(path)
            join.came.append(path.lanes())
            join.missing -= 1
            self._meet(join)

    def _meet(self, join: Join) -> None:
        if join.missing == 0 and join.came:
            lanes = np.sort(np.concatenate(join.came))
            join.came = []
            self._start(lanes, join.at, join.outer)
        elif join.missing == 0 and join.outer is not None:  # all of them ended
            join.outer.missing -= 1
            self._meet(join.outer)

    def _start(self, lanes: Array, block: int, join: Join | None) -> Path:
        path = Path(self.wave, lanes, 0, join)
        self.paths.append(path)
        self.go(path, block)
        return path

    def end(self, path: Path) -> None:
        """The lanes of a path exit."""
        self.moved += 1
        wave, lanes = self.wave, path.lanes()
        wave.exited[lanes] = True
        self.paths.remove(path)
        warps = np.unique(lanes // WARP)
        gone = (wave.exited | ~wave.exists).reshape(-1, WARP)[warps].all(1)
        wave.barriers.exited(warps[gone])
        if wave.shared.visits is not None:
            wave.shared.visits.exited(warps[gone])
        if path.join is not None:
            path.join.missing -= 1
            self._meet(path.join)

    def fork(self, path: Path, taken: Array, there: int | None, here: int | None, meet: int | None) -> None:
        """The lanes of `taken` (by lane that takes part) go to block `there`, the others `here`; None: they exit."""
        lanes = path.lanes()
        self.paths.remove(path)
        join = path.join
        if join is not None and join.at == meet:
            join.missing += 1
        elif meet is not None:
            join = Join(meet, join, 2)
        elif join is not None:
            join.missing += 1
        for part, target in ((lanes[taken], there), (lanes[~taken], here)):
            child = self._child(path, part, join)
            if target is None:
                self.end(child)
            else:
                self.go(child, target)

    def _child(self, path: Path, lanes: Array, join: Join | None) -> Path:
        """Some lanes of a path go on alone, from where it is."""
        child, pending = Path(self.wave, lanes, path.pc, join), self.wave.pending
        before, after = path.start // WARP, child.start // WARP
        if before in pending and after != before:
            pending[after] = pending[before].copy()
        self.paths.append(child)
        return child

    # ── nothing can run ──

    def _unblock(self) -> None:
        if self.flights:
            self._land(0 if self.schedule == LAZY else self.random.randrange(len(self.flights)))
            return
        if self._part_the_ready() or self._part_the_waiting():
            return
        for path in self.paths:
            if path.wait is not None and path.wait.give_up(path):
                path.wait = None
                self.go(path, path.pc + 1)
                return
        self._locked_up()

    def _part_the_ready(self) -> bool:
        for path in self.paths:
            assert path.wait is not None
            ready = path.wait.ready(path)
            if ready.any():
                lanes, wait = path.lanes(), path.wait
                self.paths.remove(path)
                if path.join is not None:
                    path.join.missing += 1
                for part in (lanes[ready], lanes[~ready]):
                    self._child(path, part, path.join).wait = wait
                return True
        return False

    def _part_the_waiting(self) -> bool:
        """Whole warps that only wait for other warps at a join go on."""
        alive: Array = np.zeros(self.wave.lanes, bool)
        for path in self.paths:
            alive[path.lanes()] = True
        busy: Array = alive.reshape(-1, WARP).any(1)
        for join in {id(join): join for path in self.paths for join in _chain(path.join)}.values():
            if not join.came:
                continue
            came = np.sort(np.concatenate(join.came))
            free = ~busy[came // WARP]
            if free.any():
                join.came = [came[~free]] if not free.all() else []
                if join.outer is not None:
                    join.outer.missing += 1
                self._start(came[free], join.at, join.outer)
                return True
        return False

    def _locked_up(self) -> None:
        lines, first = [], ""
        for path in self.paths:
            wait, lanes, homes = path.wait, path.lanes(), path.homes
            assert wait is not None
            first = first or wait.ins.place
            more = " …" if len(np.unique(path.ctas)) > 1 else ""
            for home in np.unique(homes[path.ctas == path.ctas.min()]).tolist():
                part = Path(self.wave, lanes[homes == home], path.pc, None)
                warps = sorted({int(w) for w in self.wave.warp[part.lanes()]})
                lines.append(
                    f"warp {_ranges(warps)} of CTA {self.wave.place_of(home)}{more} waits {wait.describe(part)} "
                    f"({wait.ins.place})"
                )
        what = "nothing can run and nothing is on its way; " + "; ".join(lines)
        self.wave.barriers.hold_to_bytes(stuck=what)
        raise DiagnosisError(DEADLOCK, what, first)


def _chain(join: Join | None) -> list[Join]:
    found = []
    while join is not None:
        found.append(join)
        join = join.outer
    return found


def _ranges(numbers: list[int]) -> str:
    """`0-3, 5`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
