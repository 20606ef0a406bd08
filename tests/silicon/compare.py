"""The emulator against what a card gave: a row for each family of probes, and what may differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from faperf.emulator.fault import NotEmulatedError
from faperf.emulator.ptx import Module
from tests.silicon import suites
from tests.silicon.probe import BITS, SUM, ULP, Distance, Probe, distance

ULPS = {"ex2": 2, "lg2": 2, "rcp": 1, "sqrt": 1, "rsqrt": 2, "tanh": 2, "div": 2}
"""By the opcode's first part: how far an approximate function may be."""
RELATIVE = 2.0
"""A sum of products, in 2^-24 of the sum of their magnitudes."""
NOT_EMULATED: set[str] = set()


@dataclass(frozen=True)
class Finding:
    """A probe's distance, or None where it is not emulated."""

    probe: Probe
    distance: Distance | None

    @property
    def wrong(self) -> str | None:
        """What is worse than it may be."""
        d = self.distance
        if d is None:
            return None if self.probe.name in NOT_EMULATED else f"{self.probe.name}: not emulated"
        if self.probe.name in NOT_EMULATED:
            return f"{self.probe.name}: is emulated; NOT_EMULATED says that it is not"
        allowed = {BITS: d.equal == d.elements, ULP: d.ulp <= ULPS.get(self.probe.name.split(".")[0], 0) and not d.strange,
                   SUM: (d.relative or 0) <= RELATIVE and not d.strange}  # fmt: skip
        return None if allowed[self.probe.how] else f"{self.probe.name}: {d}"


def findings(suite: str, module: Module, given: Callable[[Probe], Any]) -> Iterator[Finding]:
    """Every probe of a suite, emulated and held to what `given` says a card gives."""
    for probe in suites.probes_of(suite):
        try:
            yield Finding(probe, distance(probe, given(probe), suites.emulated(module, probe)))
        except NotEmulatedError:
            yield Finding(probe, None)
