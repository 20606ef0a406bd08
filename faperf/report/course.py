"""A series in the terminal: a sparkline, the commits at which it changed, and its newest points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from faperf.changepoints import Change
from faperf.judge import Thresholds, compare_static
from faperf.record import Build, Counters
from faperf.report.tables import as_json, plain, table
from faperf.report.terminal import STATIC_HEADERS, static_cells
from faperf.series import Point, Series, Stand

BARS = "▁▂▃▄▅▆▇█"
WIDEST = 60
CHANGE_HEADERS = ("commit", "date", "time", "99 % interval", "p", "subject")
POINT_HEADERS = ("commit", "date", "ms", "99 % interval", "TFLOPS", "since the one before", "regs", "spill B")

Described = Mapping[str, tuple[str, str]]
"""Date and subject of each commit."""


class Seen(msgspec.Struct, frozen=True):
    """What is known of a timed build beside its time. `tensor_active`: as counted on the series' workload."""

    registers: int | None = None
    spill_bytes: int | None = None
    tensor_active: float | None = None


def seen_of(build: Build | None, counters: Sequence[Counters]) -> Seen:
    """Of a build; `counters` are its own, the newest last."""
    active = counters[-1].tensor_active if counters else None
    if build is None:
        return Seen(tensor_active=active)
    registers = max((kernel.registers for kernel in build.kernels), default=0)
    return Seen(registers, sum(kernel.spill_bytes for kernel in build.kernels), active)


def course_text(
    series: Series,
    changes: Sequence[Change],
    described: Described,
    fitting: Sequence[Series],
    seen: Mapping[str, Seen],
    last: int,
    style: str,
) -> str:
    """Of a series and its change points. `fitting` are all series that were asked for, `seen` is by build key."""
    place = series.place
    if style == "json":
        shown = [_point_as_json(series, number, described, seen) for number in range(len(series.points))][-last:]
        found = [{"commit": series.points[c.at].commit, "change": c.size, "p": c.p, "index": c.at} for c in changes]
        return as_json(
            {"series": place, "by": series.by, "count": len(series.points), "points": shown, "changes": found}
        )
    title = f"{place.version} for {place.target} on {place.workload}, {place.machine}, {place.regime}"
    parts = [f"### {title}" if style == "markdown" else title]
    levels = [point.level.value for point in series.points]
    by = "against the control" if series.by == "control" else "as measured"
    count = f"{len(levels)} measurements" if len(levels) > 1 else "1 measurement"
    parts.append(f"{sparkline(levels)}  time {by}, higher is slower; {count}, oldest first")
    if changes:
        rows = [_change_cells(series.points[change.at], change, described) for change in changes]
        parts += ["Changed at:", table(CHANGE_HEADERS, rows, style)]
    else:
        parts.append("No change point.")
    first = max(0, len(levels) - last)
    cells = [_point_cells(series, number, described, seen) for number in range(first, len(levels))]
    counted = any(row[-2] for row in cells)  # few points are counted
    headers = (*POINT_HEADERS, *(["tensor active"] if counted else []), "subject")
    cells = cells if counted else [(*row[:-2], row[-1]) for row in cells]
    parts += [f"The newest {len(cells)}:" if first else "All:", table(headers, cells, style)]
    if series.void:
        parts.append(f"Left out, as they must not be judged: {len(series.void)}.")
    others = [s.place for s in fitting if s is not series]
    if others:
        lines = [
            f"  --target {p.target} --workload '{p.workload}' --class {p.machine} --regime {p.regime}" for p in others
        ]
        parts.append("\n".join(["Other series:", *dict.fromkeys(lines)]))
    return "\n\n".join(parts)


STAND_HEADERS = ("commit", "date", *STATIC_HEADERS, "emulated", "against the one before", "subject")


def stands_text(
    version: str, stands: Mapping[str, Sequence[Stand]], described: Described, limits: Thresholds, last: int, style: str
) -> str:
    """A version's static facts by target, a row for each commit at which they changed."""
    if style == "json":
        return as_json(
            [_stands_as_json(version, target, own[-last:], described, limits) for target, own in stands.items()]
        )
    parts = []
    for target, own in stands.items():
        title = f"{version} for {target}, static facts: no time was measured at these commits"
        parts.append(f"### {title}" if style == "markdown" else title)
        registers = [max(kernel.registers for kernel in s.build.kernels) for s in own if s.build and s.build.kernels]
        if len(registers) > 1:
            parts.append(f"{sparkline(registers)}  registers a thread, at each change, oldest first")
        rows = [
            (
                stand.commit[:12],
                described.get(stand.commit, ("", ""))[0][:10],
                *static_cells(stand.build, stand.entry),
                stand.entry.emulated,
                "; ".join(_changes(before, stand, limits)) if before else None,
                plain(described.get(stand.commit, ("", ""))[1]),
            )
            for before, stand in list(zip([None, *own], own, strict=False))[-last:]
        ]
        wrap = {"against the one before": 60, "emulated": 30}
        parts.append(table(STAND_HEADERS, rows, style, wrap))
    return "\n\n".join(parts)


def _changes(before: Stand, stand: Stand, limits: Thresholds) -> list[str]:
    if before.build is None or stand.build is None:
        return []
    found = compare_static(before.build, before.entry, stand.build, stand.entry, limits, same_version=True)
    return [finding.text for finding in found]


def _stands_as_json(
    version: str, target: str, stands: Sequence[Stand], described: Described, limits: Thresholds
) -> dict[str, object]:
    facts = [
        {
            "commit": stand.commit, "date": described.get(stand.commit, ("", ""))[0],
            "subject": described.get(stand.commit, ("", ""))[1], "entry": stand.entry,
            "kernels": [
                {"entry": k.entry, "registers": k.registers, "spill_bytes": k.spill_bytes, "path": k.path}
                for k in (stand.build.kernels if stand.build else ())
            ],
            "changes": _changes(before, stand, limits) if before else [],
        }
        for before, stand in zip([None, *stands], stands, strict=False)
    ]  # fmt: skip
    return {"version": version, "target": target, "facts": facts}


def sparkline(values: Sequence[float], width: int = WIDEST) -> str:
    """A bar a value, or a bar for the mean of each of `width` equal parts."""
    if len(values) > width:
        ends = [round(part * len(values) / width) for part in range(width + 1)]
        parts = [values[start:end] for start, end in pairwise(ends)]
        values = [math.fsum(part) / len(part) for part in parts]
    low, high = min(values), max(values)
    if high == low:
        return BARS[3] * len(values)
    return "".join(BARS[min(7, int(8 * (value - low) / (high - low)))] for value in values)


def _change_cells(point: Point, change: Change, described: Described) -> tuple[object, ...]:
    size = change.size
    words = "slower" if size.value > 0 else "faster"
    interval = f"[{_percent(size.low)}, {_percent(size.high)}]"
    return (
        point.commit[:12],
        *_when(point, described),
        f"{_percent(size.value)} {words}",
        interval,
        f"{change.p:.1g}",
        _what(point, described),
    )


def _point_cells(series: Series, number: int, described: Described, seen: Mapping[str, Seen]) -> tuple[object, ...]:
    point = series.points[number]
    ms = point.timing.ms
    of = seen.get(point.timing.build, Seen())
    step = _percent(point.level.value - series.points[number - 1].level.value) if number else None
    interval = f"[{ms.low:.4f}, {ms.high:.4f}]"
    return (
        point.commit[:12], *_when(point, described), f"{ms.value:.4f}", interval, f"{point.timing.tflops:.1f}", step,
        of.registers, of.spill_bytes, None if of.tensor_active is None else f"{of.tensor_active:.1%}",
        _what(point, described),
    )  # fmt: skip


def _point_as_json(series: Series, number: int, described: Described, seen: Mapping[str, Seen]) -> dict[str, object]:
    point = series.points[number]
    date, subject = described.get(point.commit, ("", ""))
    return {
        "commit": point.commit,
        "date": date,
        "subject": subject,
        "level": point.level.value,
        "timing": point.timing,
        "seen": seen.get(point.timing.build),
    }


def _when(point: Point, described: Described) -> tuple[str]:
    return (described.get(point.commit, ("", ""))[0][:10],)


def _what(point: Point, described: Described) -> str:
    return plain(described.get(point.commit, ("", ""))[1])


def _percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.2f}%"
