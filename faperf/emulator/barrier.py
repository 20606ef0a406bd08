"""mbarriers ("Parallel Synchronization and Communication Instructions: mbarrier") and the barriers of a CTA ("barrier{.cta}").

Both carry a vector clock: who arrives tells what he knows, who waits is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from faperf.emulator.fault import BAD_BARRIER, DIVERGENT, EXPECT_TX, RACE, DiagnosisError
from faperf.emulator.overrun import Waiters
from faperf.emulator.ptx import Instruction
from faperf.emulator.state import BARRIER_AGENTS, RANK_BIT, WARP, Array, Path, Wave
from faperf.emulator.transactions import Ledger

CLUSTER = -1 << 20
"""The cluster's barrier, among those of the CTAs."""


class Counter:
    """A barrier at one place of every CTA of a wave; arrays are by CTA. `told` is known to all who saw the phase complete."""

    def __init__(self, wave: Wave, slot: int, waiters: Waiters | None = None) -> None:
        count = len(wave.ctas)
        self.waiters = waiters
        self.init = ""
        self.slot = slot
        self.whole = False
        self.live = np.zeros(count, bool)
        self.maker = np.zeros(count, np.int64)
        self.made = np.zeros(count, np.int64)
        self.count = np.zeros(count, np.int64)
        self.pending = np.zeros(count, np.int64)
        self.bytes = np.zeros(count, np.int64)
        self.phase = np.zeros(count, np.int64)
        self.ledger = Ledger(count)
        self.gathered = np.zeros((count, wave.agents), np.int32)
        self.told = np.zeros((count, wave.agents), np.int32)

    def complete(self) -> None:
        done = self.live & (self.pending == 0) & (self.bytes == 0)
        if done.any():
            if self.waiters is not None:
                self.waiters.hold(done, self.phase, self.gathered)
            self.phase[done] += 1
            self.pending[done] = self.count[done]
            self.told[done] = self.gathered[done]


class Barriers:
    """Every barrier of a wave, by shared address (mbarrier) or number (barrier of the CTA)."""

    def __init__(self, wave: Wave) -> None:
        self.wave = wave
        self._mbarriers: dict[int, Counter] = {}
        self._cta: dict[int, Counter] = {}

    # ── clocks ──

    def release(self, counter: Counter, warps: Array) -> None:
        """Warps tell a barrier what they know, and begin a new interval."""
        warps = np.unique(warps)
        ctas = warps % len(self.wave.ctas)
        np.maximum.at(counter.gathered, ctas, self.wave.clocks[warps])
        self.wave.clocks[warps, warps // len(self.wave.ctas)] += 1

    def acquire(self, told: Array, warps: Array, ctas: Array) -> None:
        warps, first = np.unique(warps, return_index=True)
        self.wave.clocks[warps] = np.maximum(self.wave.clocks[warps], told[ctas[first]])

    # ── mbarrier ──

    def init(self, path: Path, address: Array, count: Array, ins: Instruction) -> None:
        for at, lanes in by_value(address):
            if at not in self._mbarriers:
                self._mbarriers[at] = Counter(self.wave, len(self._mbarriers), Waiters(self.wave, at))
            counter = self._mbarriers[at]
            ctas = path.ctas[lanes]
            if (count[lanes] < 1).any():
                raise DiagnosisError(
                    BAD_BARRIER, f"mbarrier {at:#x} gets a count of {int(count[lanes].min())}", ins.place
                )
            warps = path.flat_warps[lanes]
            counter.maker[ctas] = warps // len(self.wave.ctas)
            counter.made[ctas] = self.wave.clocks[warps, warps // len(self.wave.ctas)]
            counter.live[ctas] = True
            counter.count[ctas] = counter.pending[ctas] = count[lanes]
            counter.bytes[ctas] = 0
            counter.phase[ctas] = 0
            counter.ledger.reset(ctas)
            counter.init = ins.place
            counter.waiters = Waiters(self.wave, at)

    def invalidate(self, path: Path, address: Array, ins: Instruction) -> None:
        for at, lanes in by_value(address):
            self.mbarrier(at, path.ctas[lanes], ins).live[path.ctas[lanes]] = False

    def mbarrier(self, address: int, ctas: Array, ins: Instruction, warps: Array | None = None) -> Counter:
        """The barrier at an address. `warps` are to have been told that it was initialised."""
        counter = self._mbarriers.get(address)
        if counter is None or not counter.live[ctas].all():
            raise DiagnosisError(BAD_BARRIER, f"shared address {address:#x} holds no initialised mbarrier", ins.place)
        if warps is not None and (self.wave.clocks[warps, counter.maker[ctas]] < counter.made[ctas]).any():
            raise DiagnosisError(
                RACE,
                f"mbarrier {address:#x} is used by a warp that was not told of its initialisation by "
                f"{self.wave.warp_name(int(counter.maker[ctas][0]))}: no barrier between",
                ins.place,
            )
        return counter

    def arrive(
        self,
        path: Path,
        address: Array,
        ins: Instruction,
        count: Array | int = 1,
        expect: Array | int = 0,
        warps: Array | None = None,
        ctas: Array | None = None,
        tell: bool = True,
    ) -> Array:
        """One arrival (of `count`) a lane, after `expect` more bytes. Gives each lane the phase it arrived in.

        Without `tell` the barrier was told already what there is to tell.
        """  # fmt: skip
        warps = path.flat_warps if warps is None else warps
        ctas = path.ctas if ctas is None else ctas
        count, expect = np.broadcast_to(count, address.shape), np.broadcast_to(expect, address.shape)
        phases = np.zeros(len(address), np.uint64)
        size = len(self.wave.ctas)
        for at, lanes in by_value(address):
            counter = self.mbarrier(at, ctas[lanes], ins, warps[lanes])
            phases[lanes] = counter.phase[ctas[lanes]]
            if tell:
                self.release(counter, warps[lanes])
            more = np.bincount(ctas[lanes], expect[lanes], size).astype(np.int64)
            if more.any():
                counter.ledger.expects(more, counter.phase, ins)
                counter.bytes += more
            left = np.bincount(ctas[lanes], count[lanes], size).astype(np.int64)
            while left.any():
                step = np.minimum(left, counter.pending)
                if ((left > 0) & (counter.pending == 0)).any():
                    raise DiagnosisError(
                        BAD_BARRIER,
                        f"mbarrier {at:#x} gets an arrival more than its count of {int(counter.count.max())} in one phase "
                        f"(bytes still expected: {int(counter.bytes.max())})",
                        ins.place,
                    )
                counter.pending -= step
                left -= step
                counter.complete()
        self.wave.scheduler.moved += 1
        return phases

    def expect(self, path: Path, address: Array, amount: Array, ins: Instruction) -> None:
        for at, lanes in by_value(address):
            counter = self.mbarrier(at, path.ctas[lanes], ins)
            more = np.bincount(path.ctas[lanes], amount[lanes], len(self.wave.ctas)).astype(np.int64)
            counter.ledger.expects(more, counter.phase, ins)
            counter.bytes += more
            counter.complete()

    def deliver(self, counter: Counter, ctas: Array, amount: int, agent: int, clock: Array) -> None:
        """An asynchronous agent brought `amount` bytes to each of some CTAs, for the phase `clock` - 1."""
        if (counter.phase[ctas] >= clock).any():
            self.hold_to_bytes(counter.slot)
        np.maximum.at(counter.gathered, (ctas, agent), clock)
        np.subtract.at(counter.bytes, ctas, amount)
        counter.complete()
        self.wave.scheduler.moved += 1

    def hold_to_bytes(self, slot: int | None = None, stuck: str = "") -> None:
        """Something is wrong: raises DiagnosisError where it is that a phase expected other bytes than were copied to it.

        Of the barriers of an agent's `slot`, where that is given. `stuck` says how the kernel has locked up, where it has: then a
        phase that lacks nothing but bytes expected too many.
        """
        for at, counter in self._mbarriers.items():
            if slot is not None and counter.slot % BARRIER_AGENTS != slot % BARRIER_AGENTS:
                continue
            ledger = counter.ledger
            for cta in np.flatnonzero(counter.live & ledger.used).tolist():
                wrong = ledger.too_few(cta, int(counter.phase[cta]))
                if stuck and counter.pending[cta] == 0 and counter.bytes[cta] and ledger.expect[cta] >= 0:
                    wrong = wrong or bool(ledger.copied[cta])
                if wrong:
                    self._expected_otherwise(counter, at, cta, stuck)

    def finish(self) -> None:
        """The wave is over. Raises DiagnosisError where bytes were copied that no phase expected."""
        for at, counter in self._mbarriers.items():
            for cta in np.flatnonzero(counter.live & (counter.bytes < 0)).tolist():
                self._expected_otherwise(counter, at, cta)

    def _expected_otherwise(self, counter: Counter, at: int, cta: int, stuck: str = "") -> None:
        what, where = counter.ledger.describe(cta, at, self.wave.program.kernel)
        wave, home = self.wave, cta * self.wave.size + (at >> RANK_BIT)
        who = f" of CTA {wave.place_of(home)}" if len(wave.ctas) * wave.size > 1 else ""
        raise DiagnosisError(EXPECT_TX, f"{what}{who}{stuck and '; '}{stuck}", where)

    # ── the barriers of a CTA ──

    def sync(
        self, path: Path, key: int, threads: Array | None, ins: Instruction, wait: bool, relaxed: bool = False
    ) -> Any:
        """Arrive at the barrier `key` (`meetings`, or CLUSTER); gives the wait for the others, if there is to be one.

        `relaxed` tells only what the last fence has covered.
        """
        number, rank = (key, None) if key == CLUSTER else divmod(key, self.wave.size)
        if not path.whole_warps():
            raise DiagnosisError(
                DIVERGENT,
                f"{path.wave.name_of(int(path.lanes()[0]))} comes to barrier {number} without some of its lanes",
                ins.place,
            )
        counter = self._cta.setdefault(key, Counter(self.wave, 0))
        warps, first = np.unique(path.flat_warps, return_index=True)
        ctas = path.ctas[first]
        counter.live[ctas] = True
        counter.whole = threads is None
        whole = threads[first].astype(np.int64) if threads is not None else self._present(ctas, rank)
        expected = -(-whole // WARP)
        fresh = counter.pending[ctas] == counter.count[ctas]
        if (~fresh & (counter.count[ctas] != expected)).any():
            was = int(counter.count[ctas].max()) * WARP
            raise DiagnosisError(
                DIVERGENT,
                f"barrier {number} is for {was} threads to one warp and {int(whole.max())} to another",
                ins.place,
            )
        counter.count[ctas] = np.where(fresh, expected, counter.count[ctas])
        counter.pending[ctas] = np.where(fresh, expected, counter.pending[ctas])
        phase = counter.phase[path.ctas].copy()
        arrived = np.bincount(ctas, minlength=len(self.wave.ctas))
        if (arrived > counter.pending).any():
            raise DiagnosisError(
                DIVERGENT, f"more warps come to barrier {number} than its {int(whole.max())} threads", ins.place
            )
        if relaxed:
            np.maximum.at(counter.gathered, ctas, self.wave.released[warps])
        else:
            self.release(counter, warps)
        counter.pending -= arrived
        counter.complete()
        self.wave.scheduler.moved += 1
        return CtaWait(counter, number, path, phase, ins) if wait else None

    def cluster(self) -> Counter | None:
        """That of the cluster, if somebody has come to it."""
        return self._cta.get(CLUSTER)

    def _present(self, ctas: Array, rank: int | None) -> Array:
        """The threads of the warps of a CTA (without a rank: of a cluster) that have not exited."""
        wave = self.wave
        gone = (wave.exited | ~wave.exists).reshape(-1, WARP).all(1).reshape(wave.warps, -1)
        if rank is not None:
            gone = gone[rank * wave.cta_warps : (rank + 1) * wave.cta_warps]
        present: Array = (len(gone) - gone.sum(0)[ctas]) * WARP
        return present

    def exited(self, warps: Array) -> None:
        """Warps that have ended are not waited for at a barrier for all threads of the CTA."""
        count, ranks = len(self.wave.ctas), self.wave.home_of_warp[warps] % self.wave.size
        for key, counter in self._cta.items():
            if counter.whole:
                its = warps if key == CLUSTER else warps[ranks == key % self.wave.size]
                begun = np.bincount(its % count, minlength=count) * (counter.pending < counter.count)
                counter.pending -= begun
                counter.count -= begun
                counter.complete()


class CtaWait:
    """For the other warps at a barrier of the CTA."""

    def __init__(self, counter: Counter, number: int, path: Path, phase: Array, ins: Instruction) -> None:
        self.counter, self.number, self.ins = counter, number, ins
        self.phase = np.zeros(path.wave.lanes, np.int64)
        self.phase[path.lanes()] = phase

    def ready(self, path: Path) -> Array:
        ready: Array = self.counter.phase[path.ctas] > self.phase[path.lanes()]
        return ready

    def proceed(self, path: Path) -> None:
        path.wave.barriers.acquire(self.counter.told, path.flat_warps, path.ctas)

    def give_up(self, path: Path) -> bool:  # noqa: ARG002
        return False

    def describe(self, path: Path) -> str:
        cta = int(path.ctas[0])
        which = "the cluster's barrier" if self.number == CLUSTER else f"barrier {self.number} of the CTA"
        return f"at {which}, where {int(self.counter.pending[cta])} of {int(self.counter.count[cta])} warps are missing"


class WaitEach:
    """Warps that run together and wait at barriers of different numbers."""

    def __init__(self, path: Path, waits: list[tuple[Array, CtaWait]]) -> None:
        self.waits = [wait for _, wait in waits]
        self.ins = self.waits[0].ins
        self._which = np.zeros(path.wave.lanes, np.int64)
        for index, (lanes, _) in enumerate(waits):
            self._which[lanes] = index

    def _parts(self, path: Path) -> Iterator[tuple[CtaWait, Array, Path]]:
        """(wait, which of the path's lanes, a path of them)."""
        lanes = path.lanes()
        for index, wait in enumerate(self.waits):
            which = np.flatnonzero(self._which[lanes] == index)
            if len(which):
                yield wait, which, Path(path.wave, lanes[which], 0, None)

    def ready(self, path: Path) -> Array:
        ready = np.zeros(len(path.lanes()), bool)
        for wait, which, part in self._parts(path):
            ready[which] = wait.ready(part)
        return ready

    def proceed(self, path: Path) -> None:
        for wait, _, part in self._parts(path):
            wait.proceed(part)

    def give_up(self, path: Path) -> bool:  # noqa: ARG002
        return False

    def describe(self, path: Path) -> str:
        return next(wait.describe(part) for wait, _, part in self._parts(path))


class PhaseWait:
    """A poll of an mbarrier's phase: by parity, or by the state that an arrival gave. `answer` gets what it comes to."""

    def __init__(self, path: Path, address: Array, parity: Array, state: Array, ins: Instruction,
                 answer: int) -> None:  # fmt: skip
        wave = path.wave
        self.ins, self.answer = ins, answer
        self.address, self.wanted = np.zeros((2, wave.lanes), np.int64)
        self.by_parity = parity is not None
        self.address[path.lanes()] = address
        self.wanted[path.lanes()] = state if parity is None else parity
        for at, lanes in by_value(address):
            flat = path.flat_warps[lanes]
            counter = wave.barriers.mbarrier(at, path.ctas[lanes], ins, flat)
            if counter.waiters is not None:
                phase = counter.phase[path.ctas[lanes]]
                asked = state[lanes] if parity is None else phase - ((phase & 1) != parity[lanes])
                counter.waiters.ask(flat, asked, ins)

    def ready(self, path: Path) -> Array:
        lanes, ctas = path.lanes(), path.ctas
        ready = np.zeros(len(lanes), bool)
        for at, which in by_value(self.address[lanes]):
            phase = path.wave.barriers.mbarrier(at, ctas[which], self.ins).phase[ctas[which]]
            wanted = self.wanted[lanes[which]]
            ready[which] = (phase & 1) != wanted if self.by_parity else phase > wanted
        return ready

    def proceed(self, path: Path) -> None:
        path.wave.moments.wait(path)
        lanes, barriers = path.lanes(), path.wave.barriers
        for at, which in by_value(self.address[lanes]):
            counter = barriers.mbarrier(at, path.ctas[which], self.ins)
            barriers.acquire(counter.told, path.flat_warps[which], path.ctas[which])
            if counter.waiters is not None:
                counter.waiters.see(path.flat_warps[which], counter.phase[path.ctas[which]])
        path.put(path.r["pred"][self.answer], np.True_)

    def give_up(self, path: Path) -> bool:
        """Answers false once; a poll that comes again with nothing changed has locked up."""
        scheduler = path.wave.scheduler
        known = path.wave.extra.setdefault("polls", {})
        key = (self.ins.line, path.start, path.stop)
        if known.get(key) == scheduler.moved:
            return False
        known[key] = scheduler.moved
        path.put(path.r["pred"][self.answer], np.False_)
        return True

    def describe(self, path: Path) -> str:
        lanes, cta = path.lanes(), int(path.ctas[0])
        counter = path.wave.barriers.mbarrier(int(self.address[lanes[0]]), path.ctas[:1], self.ins)
        wanted, flat = int(self.wanted[lanes[0]]), int(path.flat_warps[0])
        what = f"parity {wanted}" if self.by_parity else f"phase {wanted}"
        whose = f" of CTA {path.wave.place_of(int(path.homes[0]))}" if path.wave.size > 1 else ""
        missed = ""
        if self.by_parity and counter.waiters is not None:
            missed = counter.waiters.missed(flat, wanted, int(counter.phase[cta]))
        counted = f" (its count, {counter.init})" if counter.pending[cta] else ""
        return (
            f"for {what} of mbarrier {int(self.address[lanes[0]]):#x}{whose}, which is in phase {int(counter.phase[cta])} with "
            f"{int(counter.pending[cta])} of {int(counter.count[cta])} arrivals{counted} and "
            f"{int(counter.bytes[cta])} bytes missing{missed}"
        )


def meetings(path: Path, numbers: Array) -> list[tuple[int, Path]]:
    """For barriers of the CTA that the lanes of a path come to: (key for `sync`, a path of those who come there)."""
    keys = numbers.astype(np.int64) * path.wave.size + path.ranks if path.wave.size > 1 else numbers
    return [(key, Path(path.wave, path.lanes()[which], 0, None)) for key, which in by_value(keys)]


def by_value(values: Array) -> list[tuple[int, Any]]:
    """Each value with the places where it stands (a slice where that is everywhere)."""
    first = values[0]
    if (values == first).all():
        return [(int(first), slice(None))]
    return [(int(value), np.flatnonzero(values == value)) for value in np.unique(values)]
