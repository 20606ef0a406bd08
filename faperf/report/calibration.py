"""Calibrations as people read them: false alarms with their bound, how figures scatter, and what a gate sees."""

from __future__ import annotations

from collections.abc import Sequence

from faperf.power import POWER, Tally, at_most
from faperf.record import Calibration
from faperf.report.tables import as_json, table

HEADERS = (
    "version", "target", "workload", "regime", "gates", "false alarms", "at most", "inconclusive", "void",
    "load luck", "estimate's sd", "budget", "sees", "budget needed",
)  # fmt: skip


def calibration_text(calibrations: Sequence[Calibration], tallies: Sequence[Tally], style: str) -> str:
    """One row a series, then all gates of a machine class together. A rate's bound is exact, one-sided, at 95 %."""
    if style == "json":
        return as_json({"calibrations": calibrations, "tallies": tallies})
    parts = []
    for place in dict.fromkeys((c.machine, c.protocol) for c in calibrations):
        own = [c for c in calibrations if (c.machine, c.protocol) == place]
        title = f"Calibration of {place[0]} ({own[-1].gpu}, driver {own[-1].driver}), protocol {place[1]}"
        parts.append(f"### {title}" if style == "markdown" else title)
        parts.append(table(HEADERS, [_cells(c) for c in own], style))
    if calibrations:
        needed = ", ".join(sorted({f"{c.time_detect:.2%}" for c in calibrations}))
        parts.append(
            f"Each gate is a build against itself. sees: the smallest slowdown that the budget catches with {POWER:.0%} "
            f"probability; budget needed: for {needed} (time_detect), in GPU time a version."
        )
    parts += [
        f"{tally.machine}, protocol {tally.protocol}, all calibrations: {tally.false_alarms} false alarms in {tally.gates} "
        f"gates, {tally.inconclusive} inconclusive; the rate of false alarms is at most {tally.at_most:.2%} (95 %)."
        for tally in tallies
    ]
    return "\n\n".join(parts) or "Nothing is calibrated yet: faperf calibrate, on a machine with a GPU."


def _cells(found: Calibration) -> list[object]:
    return [
        found.version,
        found.target,
        found.workload,
        found.regime,
        found.gates,
        found.false_alarms,
        f"{at_most(found):.2%}",
        found.inconclusive,
        found.void,
        f"{found.load_luck:.3%}",
        f"{found.estimate_sd:.3%}",
        f"{found.budget_s:g} s",
        f"{found.detects:.2%}" if found.detects else "none to 5 %",
        f"{found.needed_s:g} s" if found.needed_s else "over 10 s",
    ]
