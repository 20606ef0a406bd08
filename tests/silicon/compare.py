"""The emulator against what a card gave: how far each probe may be off, and a row of the table for each family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from faperf.emulator.fault import NotEmulatedError
from faperf.emulator.ptx import Module
from tests.silicon import suites
from tests.silicon.probe import BITS, SUM, Distance, Probe, distance

LIMITS = {
    "ex2": 2, "rcp": 1, "sqrt": 1, "rsqrt": 2, "div": 2, "tanh.approx.f16": 1, "tanh.approx.bf16": 1,  # ulp
    "lg2": 2.0**-22, "sin": 2.0**-20.5, "cos": 2.0**-20.5, "tanh.approx.f32": 2.0**-10.98,
}  # fmt: skip
"""What the PTX ISA allows an approximate function, by the beginning of its name (the emulator's own error aside)."""
SUMS = {"f32": 2.0**-20, "f16": 2.0**-11}
"""A sum of products in another order, by the type of the sum, as a part of Σ|a·b| + |c|."""
NOT_EMULATED = {"exchange", "multicast"}


@dataclass(frozen=True)
class Finding:
    """A probe's distances: as the emulator usually runs, and with the sums of a tensor core. None: it is not emulated."""

    probe: Probe
    usual: Distance | None
    exact: Distance | None

    @property
    def wrong(self) -> list[str]:
        """What is worse than it may be."""
        name = self.probe.name
        if self.usual is None or self.exact is None:
            return [] if name in NOT_EMULATED else [f"{name}: not emulated"]
        if name in NOT_EMULATED:
            return [f"{name}: is emulated; NOT_EMULATED says that it is not"]
        limit = SUMS[self.probe.kind] if self.probe.how == SUM else max(
            (most for start, most in LIMITS.items() if self.probe.how != BITS and name.startswith(start)), default=0
        )  # fmt: skip
        found = []
        if self.usual.most > limit or self.usual.strange:
            found.append(f"{name}: {self.usual}")
        if self.probe.how == SUM and self.exact.equal < self.exact.elements:
            found.append(f"{name}, summed like a tensor core: {self.exact}")
        return found


def findings(suite: str, module: Module, given: Callable[[Probe], Any]) -> Iterator[Finding]:
    """Every probe of a suite, emulated and held to what `given` says a card gives."""
    for probe in suites.probes_of(suite):
        truth = given(probe)
        try:
            usual = distance(probe, truth, suites.emulated(module, probe))
        except NotEmulatedError:
            yield Finding(probe, None, None)
            continue
        summed = probe.how == SUM
        yield Finding(
            probe, usual, distance(probe, truth, suites.emulated(module, probe, exact_sums=True)) if summed else usual
        )
