"""What an emulation may end with: a diagnosis of the kernel, or an instruction that is not emulated."""

from __future__ import annotations

DEADLOCK = "deadlock"
OUT_OF_BOUNDS = "out of bounds"
MISALIGNED = "misaligned address"
UNINITIALISED = "uninitialised memory"
MISSING_WAIT = "missing wait"
RACE = "race"
DIVERGENT = "divergent barrier"
BAD_BARRIER = "bad mbarrier"
EXPECT_TX = "wrong expect_tx"
BAD_DESCRIPTOR = "bad descriptor"
TMEM = "tensor memory"
ENDED = "ended CTA"
ASSERTION = "assertion"
LAYOUT = "operand layout"
"""No fault of its own: what stands behind a wrong result (`provenance`)."""


class DiagnosisError(Exception):
    """The kernel is wrong. `kind` is one of this module's names; `where` is the source line with what it was inlined from."""

    def __init__(self, kind: str, what: str, where: str = "") -> None:
        super().__init__(f"{what}, at {where}" if where else what)
        self.kind = kind
        self.what = what
        self.where = where


class NotEmulatedError(Exception):
    """An instruction, or a use of one, that this emulator does not know. Never a wrong answer instead."""

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(f"{what}, at {where}" if where else what)
