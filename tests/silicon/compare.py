"""The emulator against what a card gave: how far each probe may be off, and a row of the table for each family."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from faperf.emulator.fault import NotEmulatedError
from faperf.emulator.ptx import Module
from tests.silicon import suites
from tests.silicon.probe import ABSOLUTE, BITS, RELATIVE, SUM, ULP, Distance, Probe, distance, ordered

LIMITS = {
    "ex2": 2, "rcp": 1, "sqrt": 1, "rsqrt": 2, "div": 2, "tanh.approx.f16": 1, "tanh.approx.bf16": 1,  # ulp
    "lg2": 2.0**-22, "sin": 2.0**-20.5, "cos": 2.0**-20.5, "tanh.approx.f32": 2.0**-10.98,
}  # fmt: skip
"""What the PTX ISA allows an approximate function, by the beginning of its name (the emulator's own error aside)."""
SUMS = {"f32": 2.0**-20, "f16": 2.0**-10}
"""A sum of products in another order, by the type of the sum, as a part of Σ|a·b| + |c|."""
NOT_EMULATED: set[str] = set()


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
        unequal = self.probe.how == BITS and self.usual.equal < self.usual.elements  # zeros of another sign
        if self.usual.most > limit or self.usual.strange or unequal:
            found.append(f"{name}: {self.usual}")
        if self.probe.how == SUM and self.exact.equal < self.exact.elements:
            found.append(f"{name}, summed like a tensor core: {self.exact}")
        return found


def findings(suite: str, module: Module, given: Callable[[Probe], Any]) -> Iterator[Finding]:
    """Every probe of a suite that a card runs, emulated and held to what `given` says a card gives."""
    for probe in suites.probes_of(suite):
        if probe.name in suites.recorded(suite)[1]["faults"]:
            continue
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


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────────

UNITS = {BITS: "", ULP: " ulp", ABSOLUTE: "", RELATIVE: " of the value", SUM: " of Σ\\|a·b\\|"}


def table(found: Iterable[Finding]) -> str:
    """A row for each family."""
    families: dict[str, list[Finding]] = {}
    for finding in found:
        families.setdefault(finding.probe.family, []).append(finding)
    lines = ["| instruction | probes | results | equal bits | largest difference |", "|---|---|---|---|---|"]
    lines += [f"| {family} | {_row(members)} |" for family, members in families.items()]
    return "\n".join(lines)


def _row(members: list[Finding]) -> str:
    known = [finding for finding in members if finding.usual and finding.exact]
    if len(known) < len(members):
        return f"{len(members)} | | | not emulated"
    distances = [finding.usual for finding in known if finding.usual]
    elements, equal = sum(d.elements for d in distances), sum(d.equal for d in distances)
    part = "all" if equal == elements else f"{100 * equal / elements:.2f} %"
    how = members[0].probe.how
    text = _amount(max(d.most for d in distances), how)
    if how == SUM and all(finding.exact.equal == finding.exact.elements for finding in known if finding.exact):
        text += "; summed like a tensor core: none"
    return f"{len(members)} | {elements:,} | {part} | {text}"


def _amount(most: float, how: str) -> str:
    if most == 0:
        return "none"
    return f"{most:.0f}{UNITS[how]}" if how in (BITS, ULP) else f"2^{math.log2(most):.1f}{UNITS[how]}"


def attention_table(modules: Mapping[str, Module]) -> str:
    """Each version of this repository that was recorded, by its PTX: elements, and the error of the whole output."""
    lines = [
        "| D = 128, one head | S | results | equal bits | largest difference | relative L2 | summed like a tensor core |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in suites.recorded_attentions():
        card = suites.recorded("attention")[0][case.name]
        usual, exact = (_apart(case.emulated(modules[case.version], exact_sums=sums), card) for sums in (False, True))
        size = f"{case.tensors['Q'].shape[1]} | {card.size:,}"
        lines.append(f"| {case.name} | {size} | {' | '.join(usual)} | {exact[0]}, {exact[2]} |")
    return "\n".join(lines)


def _apart(ours: Any, card: Any) -> tuple[str, str, str]:
    """How many bits are equal, the largest difference, and the relative L2 norm of all."""
    apart = np.abs(ours.astype(np.float64) - card.astype(np.float64))
    if not apart.any():
        return "all", "none", "none"
    ulps = np.abs(ordered(ours.view(np.uint16)) - ordered(card.view(np.uint16)))
    most = f"2^{math.log2(apart.max()):.1f} of values up to {np.abs(card).max():.2f}"
    where = f"{np.median(ulps[ours != card]):.0f} ulp in the middle of those that differ"
    norm = np.linalg.norm(apart) / np.linalg.norm(card.astype(np.float64))
    return f"{100 * (ours == card).mean():.2f} %", f"{most}; {where}", f"2^{math.log2(norm):.1f}"


def summary() -> str:
    about = suites.recorded("elementwise")[1]
    count = sum(len(suites.recorded(suite)[0]) for suite in suites.SUITES)
    faults = len(suites.recorded("copies")[1]["faults"])
    machine = f"{about['card']}, driver {about['driver']}, nvcc {about['nvcc']}, {about['date']}"
    return f"{machine}: {count} results, and {faults} launches that fault there and are diagnosed here."


def limits_table(scans: Mapping[str, Any]) -> str:
    """What `limits.cu` found, for each function with and without .ftz."""
    lines = [
        "| function of the card | largest error in ulp | absolute or relative | infinite, NaN or zero in one alone |",
        "|---|---|---|---|",
    ]
    for name, (worst, most, strange) in scans.items():
        label = f"{name.removesuffix('_ftz').rstrip('_')}.approx{'.ftz' if name.endswith('_ftz') else ''}.f32"
        ulps = f"{int(worst) >> 32:,}" if int(worst) >> 32 < 1000 else "–"
        lines.append(f"| {label} | {ulps} | 2^{math.log2(float(most.view('f8'))):.2f} | {int(strange):,} |")
    return "\n".join(lines)
