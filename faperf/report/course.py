"""A series in the terminal: a sparkline, the commits at which it changed, and its newest points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from faperf.changepoints import Change
from faperf.report.tables import as_json, plain, table
from faperf.series import Point, Series

BARS = "▁▂▃▄▅▆▇█"
WIDEST = 60
CHANGE_HEADERS = ("commit", "date", "time", "99 % interval", "p", "subject")
POINT_HEADERS = ("commit", "date", "ms", "99 % interval", "TFLOPS", "since the one before", "subject")

Described = Mapping[str, tuple[str, str]]
"""Date and subject of each commit."""


def course_text(
    series: Series, changes: Sequence[Change], described: Described, fitting: Sequence[Series], last: int, style: str
) -> str:
    """Of a series and its change points. `fitting` are all series that were asked for."""
    place = series.place
    if style == "json":
        shown = [_point_as_json(series, number, described) for number in range(len(series.points))][-last:]
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
    rows = [_point_cells(series, number, described) for number in range(first, len(levels))]
    parts += [f"The newest {len(rows)}:" if first else "All:", table(POINT_HEADERS, rows, style)]
    if series.void:
        parts.append(f"Left out, as they must not be judged: {len(series.void)}.")
    others = [s.place for s in fitting if s is not series]
    if others:
        lines = [
            f"  --target {p.target} --workload '{p.workload}' --class {p.machine} --regime {p.regime}" for p in others
        ]
        parts.append("\n".join(["Other series:", *dict.fromkeys(lines)]))
    return "\n\n".join(parts)


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


def _point_cells(series: Series, number: int, described: Described) -> tuple[object, ...]:
    point = series.points[number]
    ms = point.timing.ms
    step = _percent(point.level.value - series.points[number - 1].level.value) if number else None
    interval = f"[{ms.low:.4f}, {ms.high:.4f}]"
    return (
        point.commit[:12], *_when(point, described), f"{ms.value:.4f}", interval, f"{point.timing.tflops:.1f}", step,
        _what(point, described),
    )  # fmt: skip


def _point_as_json(series: Series, number: int, described: Described) -> dict[str, object]:
    point = series.points[number]
    date, subject = described.get(point.commit, ("", ""))
    return {
        "commit": point.commit,
        "date": date,
        "subject": subject,
        "level": point.level.value,
        "timing": point.timing,
    }


def _when(point: Point, described: Described) -> tuple[str]:
    return (described.get(point.commit, ("", ""))[0][:10],)


def _what(point: Point, described: Described) -> str:
    return plain(described.get(point.commit, ("", ""))[1])


def _percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.2f}%"
