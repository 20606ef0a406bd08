"""The bytes that an mbarrier's phases expected and those that were copied to it: names an expect_tx that is wrong.

A phase that expects more than is copied never ends; one that expects less ends while a copy is under way, which then counts for
the next phase. Copies are held against the expect_tx of their round: where a barrier's first use is an expect_tx, a round is from
one in a new phase to the next; where it is a copy, or another CTA copies to it, a round is a phase. Several expect_tx of a phase
add up.

Threads that expect and copy in no order among them may mix rounds up: a ledger says what is wrong, not whether anything is.
"""

from __future__ import annotations

import numpy as np

from faperf.emulator.ptx import Instruction, Kernel
from faperf.emulator.state import Array


class Ledger:
    """Of one mbarrier; arrays are by CTA. `expected` and `copied` bytes of the round that began in phase `since`."""

    def __init__(self, count: int) -> None:
        self.expected, self.copied, self.since = np.zeros((3, count), np.int64)
        self.expect, self.copy = np.full((2, count), -1)
        """The instructions that expected and copied last."""
        self.used, self.copies_first, self.wrong = np.zeros((3, count), bool)
        """`wrong`: a round is over to which more was copied than it expected; it stays."""

    def reset(self, ctas: Array) -> None:
        self.used[ctas] = self.copies_first[ctas] = self.wrong[ctas] = False
        self.expect[ctas] = -1

    def expects(self, amount: Array, phase: Array, ins: Instruction) -> None:
        """`amount` more bytes by CTA."""
        self._begin((amount > 0) & (~self.used | (self.since != phase)), phase)
        its = (amount > 0) & ~self.wrong
        self.expected[its] += amount[its]
        self.expect[its] = ins.index

    def copies(self, ctas: Array, amount: int, phase: Array, ins: Instruction, foreign: bool = False) -> None:
        """A copy of `amount` bytes begins for each of some CTAs, by themselves or by others (`foreign`)."""
        its = np.zeros(len(self.used), bool)
        its[ctas] = True
        self.copies_first |= its & (~self.used | foreign)
        self._begin(its & (~self.used | (self.copies_first & (self.since != phase))), phase)
        its &= ~self.wrong
        self.copied[its] += amount
        self.copy[its] = ins.index

    def _begin(self, new: Array, phase: Array) -> None:
        self.wrong |= new & self.used & (self.copied > self.expected)
        new = new & ~self.wrong
        self.used |= new
        self.expected[new] = self.copied[new] = 0
        self.since[new] = phase[new]

    def too_few(self, cta: int, phase: int) -> bool:
        """A phase is over whose copies are more than it expected."""
        over = phase > self.since[cta] or (self.expect[cta] < 0 and phase > 0)
        return bool(self.wrong[cta] or (self.used[cta] and over and self.copied[cta] > self.expected[cta]))

    def describe(self, cta: int, address: int, kernel: Kernel) -> tuple[str, str]:
        """What is wrong, and the source line of the expect_tx (of the copy where there is none)."""
        expect, copy = (int(which[cta]) for which in (self.expect, self.copy))
        where = kernel.instructions[expect if expect >= 0 else copy].place
        ins = kernel.instructions[copy]
        expected, copied = int(self.expected[cta]), int(self.copied[cta])
        if expected == copied:
            return (
                f"more bytes are copied to mbarrier {address:#x} ({ins.opcode}, {ins.place}) than its phases expect",
                where,
            )
        return (
            f"a phase of mbarrier {address:#x} expects {expected} bytes and {copied} are copied to it ({ins.opcode}, {ins.place})"
        ), where
