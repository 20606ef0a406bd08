"""The pages of `faperf report`: files that need no server and no network. Every text is escaped, whoever wrote it."""

from __future__ import annotations

import hashlib
import html
import math
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from faperf.changepoints import Change
from faperf.comparison import Elsewhere, LadderRow, Silicon
from faperf.errors import ConfigError, HistoryError
from faperf.judge import Severity, Verdict
from faperf.manifest import Version
from faperf.metrics import Metrics
from faperf.record import Build, Calibration, Entry, KernelFacts, PeerResult, ReportedLadder, Run, Timing
from faperf.report.peers import HEADERS as PEER_HEADERS
from faperf.report.peers import peer_cells, ranked
from faperf.report.tables import plain
from faperf.report.terminal import (
    ACCURACY_HEADERS,
    LADDER_HEADERS,
    accuracy_rows,
    change_text,
    flag_lines,
    kernel_facts,
    ladder_cells,
    ladder_columns,
    legend,
    timing_facts,
)
from faperf.series import Series

TEMPLATES = Path(__file__).parent / "html"
MOST_POINTS = 2_000
"""A longer series is thinned in its chart and tables: change points, their neighbours and both ends stay."""
MOST_OPCODES = 16
PAGES = (
    ("Ladder", "index.html"),
    ("Series", "series.html"),
    ("Compare", "compare.html"),
    ("Roofline and peers", "peers.html"),
    ("Machines", "machines.html"),
)


class Course(msgspec.Struct, frozen=True):
    """A series with its change points."""

    series: Series
    changes: list[Change]


class Step(msgspec.Struct, frozen=True):
    """A recorded commit: what stands otherwise than at the one before, by (version, target), as a number of `standings`."""

    commit: str
    changed: dict[tuple[str, str], int | None]


class Standing(msgspec.Struct, frozen=True):
    """Where a version stood for a while. `timing` is on the first workload that was measured."""

    entry: Entry
    timing: Timing | None


class VersionPage(msgspec.Struct, frozen=True):
    """`diff` is of the source from the parent's, unified; None without a parent here."""

    version: Version
    children: list[str]
    diff: list[str] | None


class Under(msgspec.Struct, frozen=True):
    """A measured version under a roof: FLOPs per byte that must move, and its TFLOPS."""

    version: str
    workload: str
    intensity: float
    tflops: float


class Roof(msgspec.Struct, frozen=True):
    """`peak_tflops` is the vendor's, dense fp16; `tb_s` the memory's bandwidth in 10¹² bytes a second."""

    gpu: str
    peak_tflops: float
    tb_s: float
    points: list[Under]

    def at(self, intensity: float) -> float:
        return min(self.peak_tflops, intensity * self.tb_s)


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """All that the pages say. `elsewhere` names the entries of `run` that are of another commit, `silicon` and `worth` are by
    workload, `described` gives each commit's date and subject.
    """

    project: str
    faperf: str
    made: str
    run: Run | None
    elsewhere: Elsewhere
    reported: list[ReportedLadder]
    ladders: dict[str, list[LadderRow]]
    versions: list[VersionPage]
    silicon: Mapping[str, Silicon]
    worth: Mapping[str, Mapping[tuple[str, str], Metrics]]
    roofs: list[Roof]
    peers: list[PeerResult]
    courses: list[Course]
    described: Mapping[str, tuple[str, str]]
    commits: int
    steps: list[Step]
    standings: list[Standing]
    builds: Mapping[str, Build]
    stored: list[Timing]
    calibrations: list[Calibration]


Figure = dict[str, Any]
"""Traces and layout as plotly.js takes them; a colour `--better` is the style sheet's."""


def write_pages(content: Content, into: Path) -> None:
    """Write the site into a folder, over what is there. Raises ConfigError where jinja2 or plotly is missing."""
    try:
        import jinja2
        import plotly
    except ImportError as error:
        raise ConfigError(f"the report needs more: {error}", remedy="pip install 'faperf[report]'") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    has_peers = bool(content.roofs or content.peers)
    pages = [page for page in PAGES if page[1] != "peers.html" or has_peers]
    common = {"project": content.project, "faperf": content.faperf, "made": content.made, "pages": pages}

    def page(template: str, file: str, title: str, **values: Any) -> None:
        root = "../" * file.count("/")
        text = environment.get_template(template).render(**common, title=title, page=file, root=root, **values)
        (into / file).write_text(text, encoding="utf-8")

    try:
        for folder in ("versions", "data/series"):
            (into / folder).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(plotly.__file__).parent / "package_data" / "plotly.min.js", into / "plotly.min.js")
        for name in ("site.css", "site.js"):
            shutil.copyfile(TEMPLATES / name, into / name)
        pages_of = {page.version.id: f"versions/{page.version.id}.html" for page in content.versions}
        ladders = [_ladder(content, target, rows, pages_of) for target, rows in content.ladders.items() if rows]
        page("ladder.html", "index.html", "The ladder", ladders=ladders)
        for one in content.versions:
            title = f"{one.version.id}: {one.version.title}"
            page("version.html", pages_of[one.version.id], title, **_version(content, one))
        slugs = [_slug(course.series) for course in content.courses]
        for slug, course in zip(slugs, content.courses, strict=True):
            _script(into / f"data/series/{slug}.js", f"series:{slug}", _course(content, course))
        page("series.html", "series.html", "Series over commits", **_series(content, slugs))
        _script(into / "data/versions.js", "versions", _facts(content))
        _script(into / "data/commits.js", "commits", _steps(content))
        page("compare.html", "compare.html", "Compare")
        if has_peers:
            page(
                "peers.html",
                "peers.html",
                "Roofline and peers",
                roofs=_roofs(content.roofs),
                peers=_peers(content.peers),
            )
        page("machines.html", "machines.html", "Machines and toolchains", **_machines(content))
    except OSError as error:
        raise HistoryError(
            f"cannot write: {error.strerror}",
            where=str(error.filename or into),
            remedy="free some space, or give --output",
        ) from error


def _script(path: Path, name: str, data: object) -> None:
    """Data as a script: a page that was opened as a file may load no other kind."""
    path.write_bytes(b"faperfData(" + msgspec.json.encode(name) + b", " + msgspec.json.encode(data) + b");\n")


def _label(text: str, longest: int = 60) -> str:
    """`text` for a chart, where plotly.js would take some HTML as such."""
    text = plain(text)
    return html.escape(text if len(text) <= longest else text[: longest - 1] + "…", quote=False)


# ── the ladder ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _ladder(content: Content, target: str, rows: Sequence[LadderRow], pages: Mapping[str, str]) -> dict[str, Any]:
    measured = [_bar(row) for row in rows if row.measured and row.measured.timing and not row.measured.failures]
    reported = [_reported_bar(row) for row in rows if row.reported and row.reported.tflops]
    columns = ladder_columns(rows)
    return {
        "target": target,
        "measured": _bars(measured) if measured else None,
        "reported": _bars(reported) if reported else None,
        "emulated": [(r.version, r.entry.emulated) for r in rows if r.entry and r.entry.emulated and not r.measured],
        "flags": [line.removeprefix("- ") for row in rows if row.flagged for line in flag_lines(row)],
        "rows": [
            {
                "version": row.version,
                "page": pages.get(row.version),
                "flagged": row.flagged,
                "cells": ladder_cells(row)[1:columns],
            }
            for row in rows
        ],
        "headers": LADDER_HEADERS[:columns],
        "legend": legend(rows, target, content.run, content.reported, content.elsewhere),
    }


def _bar(row: LadderRow) -> Figure:
    assert row.measured is not None
    assert row.measured.timing is not None
    timing, ms = row.measured.timing, row.measured.timing.ms
    pair = timing.pair("parent")
    slower = row.time_verdict is Verdict.SLOWER
    worse = [finding.text for finding in row.findings if finding.severity is Severity.REGRESSION]
    said = f"{row.time_verdict}, time {change_text(pair.time)} against {row.parent}" if pair else "no parent measured"
    causes = [*worse, *(finding.text for finding in row.less_accurate)]
    more = {"plus": timing.tflops * (ms.value / ms.low - 1), "minus": timing.tflops * (1 - ms.value / ms.high)}
    return {
        "version": row.version, "tflops": timing.tflops, "change": row.change, "said": [said, *causes],
        "worse": slower or bool(worse), "better": row.time_verdict is Verdict.FASTER, **more,
    }  # fmt: skip


def _reported_bar(row: LadderRow) -> Figure:
    assert row.reported is not None
    judged, reported = row.reported_verdict, row.reported
    change = f"{judged.verdict} {judged.change:+.1%} against {reported.parent}" if judged and judged.change else ""
    cause = f"cause as published: {reported.cause}" if reported.cause else ""
    accuracy = f"less accurate: {reported.accuracy}" if reported.accuracy else ""
    return {
        "version": row.version, "tflops": reported.tflops, "change": reported.change,
        "said": [word for word in (change, cause, accuracy) if word],
        "worse": bool(judged and judged.regression), "better": bool(judged and judged.verdict is Verdict.FASTER),
    }  # fmt: skip


def _bars(bars: Sequence[Figure]) -> Figure:
    """A bar a version, the first on top, with what it changed; a regression has its own colour, an edge and a word."""
    colours = ["--worse" if bar["worse"] else "--better" if bar["better"] else "--plain" for bar in bars]
    edges = ["--worse-edge" if bar["worse"] else "--plain" for bar in bars]
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": [bar["version"] for bar in bars],
        "x": [bar["tflops"] for bar in bars],
        "text": [f"{'▼ regression: ' if bar['worse'] else ''}{_label(bar['change'], 48)}" for bar in bars],
        "textposition": "inside",
        "insidetextanchor": "start",
        "constraintext": "none",
        "textangle": 0,
        "insidetextfont": {"color": "--text"},
        "marker": {"color": colours, "line": {"color": edges, "width": [2 if bar["worse"] else 0 for bar in bars]}},
        "hovertext": [_hover(bar) for bar in bars],
        "hovertemplate": "%{hovertext}<br>%{x:.1f} TFLOPS<extra></extra>",
    }  # fmt: skip
    if "plus" in bars[0]:
        trace["error_x"] = {
            "type": "data", "symmetric": False, "thickness": 1.5, "color": "--text",
            "array": [bar["plus"] for bar in bars], "arrayminus": [bar["minus"] for bar in bars],
        }  # fmt: skip
    layout = {
        "height": 34 * len(bars) + 70,
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True, "showgrid": False},
        "xaxis": {"title": {"text": "TFLOPS"}, "rangemode": "tozero"},
        "bargap": 0.25,
    }
    return {"traces": [trace], "layout": layout}


def _hover(bar: Figure) -> str:
    return "<br>".join(
        [f"{_label(bar['version'])}: {_label(bar['change'])}", *(_label(said, 110) for said in bar["said"])]
    )


# ── a version ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _version(content: Content, one: VersionPage) -> dict[str, Any]:
    version, notes = one.version, one.version.notes
    known = {page.version.id for page in content.versions}
    rows = {target: row for target, every in content.ladders.items() for row in every if row.version == version.id}
    reported = next((row.reported for row in rows.values() if row.reported), None)
    words = {"hypothesis": notes.hypothesis, "change": notes.change, "lesson": notes.lesson}
    slugs = [(course.series.place, _slug(course.series)) for course in content.courses]
    return {
        "parent": version.parent if version.parent in known else None,
        "children": one.children,
        "notes": [(name, text) for name, text in words.items() if text],
        "reported": [(n, v) for n in reported.__struct_fields__ if (v := getattr(reported, n)) is not None] if reported else [],
        "targets": [_target(content, rows[target], target, slugs) for target in version.targets if target in rows],
        "diff": None if one.diff is None else [(_kind(line), line) for line in one.diff],
        "accuracy_headers": ACCURACY_HEADERS,
    }  # fmt: skip


def _target(content: Content, row: LadderRow, target: str, slugs: Sequence[tuple[Any, str]]) -> dict[str, Any]:
    place = (row.version, target)
    measured = [
        {
            "workload": workload,
            "carried": found.carried,
            "tflops": found.timing.tflops if found.timing else None,
            "facts": timing_facts(found.timing, content.worth[workload].get(place)) if found.timing else [],
            "accuracy": accuracy_rows(found),
        }
        for workload, each in content.silicon.items()
        if (found := each.get(place))
    ]
    return {
        "name": target,
        "error": row.entry.error if row.entry else None,
        "emulated": row.entry.emulated if row.entry else None,
        "findings": [line.removeprefix(f"- {row.version}: ") for line in flag_lines(row)],
        "measured": measured,
        "kernels": [_kernel(kernel, row.entry) for kernel in row.build.kernels] if row.build and row.entry else [],
        "series": [(f"{p.workload}, {p.regime}", slug) for p, slug in slugs if (p.version, p.target) == place],
    }


def _kernel(kernel: KernelFacts, entry: Entry) -> dict[str, Any]:
    total = {name: sum(counts) for name, counts in kernel.opcodes.items()}
    names = sorted(total, key=lambda name: (-kernel.main_loop.get(name, 0), -total[name], name))
    most = names[:MOST_OPCODES]
    traces = [
        {"type": "bar", "orientation": "h", "name": name, "y": most, "x": values, "marker": {"color": colour}}
        for name, values, colour in (
            ("in the main loop", [kernel.main_loop.get(n, 0) for n in most], "--plain"),
            ("elsewhere", [total[n] - kernel.main_loop.get(n, 0) for n in most], "--soft"),
        )
    ]
    layout = {
        "barmode": "stack", "height": 22 * len(most) + 110, "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True, "showgrid": False},
        "xaxis": {"title": {"text": "instructions"}},
    }  # fmt: skip
    return {
        "entry": kernel.entry,
        "facts": [fact for fact in kernel_facts(kernel, entry) if fact[1] not in (None, "")],
        "opcodes": [(n, total[n], kernel.main_loop.get(n, 0), ", ".join(map(str, kernel.opcodes[n]))) for n in names],
        "chart": {"traces": traces, "layout": layout},
    }


def _kind(line: str) -> str:
    if line.startswith(("+++", "---", "@@")):
        return "place"
    return "added" if line.startswith("+") else "removed" if line.startswith("-") else "same"


# ── series ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _slug(series: Series) -> str:
    place = series.place
    words = (place.version, place.target, place.workload, place.machine, place.regime, str(place.protocol))
    digest = hashlib.blake2b("\0".join(words).encode(), digest_size=3).hexdigest()
    return "_".join([*(re.sub(r"[^\w.=-]+", "-", word) for word in words), digest])


def _series(content: Content, slugs: Sequence[str]) -> dict[str, Any]:
    axes = ("version", "target", "workload", "machine", "regime", "protocol")
    listed: list[dict[str, Any]] = [
        {
            "slug": slug,
            "axes": [str(getattr(course.series.place, axis)) for axis in axes],
            "newest": [course.series.points[-1].position, len(course.series.points)],
        }
        for slug, course in zip(slugs, content.courses, strict=True)
    ]
    changes = [
        (" · ".join(one["axes"][:3]), *_change_cells(content, course, change))
        for one, course in zip(listed, content.courses, strict=True)
        for change in course.changes
    ]
    return {"series": listed, "axes": axes, "changes": changes}


def _change_cells(content: Content, course: Course, change: Change) -> tuple[str, ...]:
    commit = course.series.points[change.at].commit
    date, subject = content.described.get(commit, ("", ""))
    low, high = (f"{100 * math.expm1(end):+.2f}%" for end in (change.size.low, change.size.high))
    word = "slower" if change.size.value > 0 else "faster"
    size = f"{100 * math.expm1(change.size.value):+.2f}% {word}"
    return commit[:12], date[:10], size, f"[{low}, {high}]", f"{change.p:.1g}", plain(subject)


def _course(content: Content, course: Course) -> dict[str, Any]:
    series = course.series
    at = {change.at for change in course.changes}
    kept = _thinned(len(series.points), at)
    points = []
    for number in kept:
        point = series.points[number]
        timing, (date, subject) = point.timing, content.described.get(point.commit, ("", ""))
        ms = timing.ms
        points.append(
            [point.commit[:12], date[:10], plain(subject), point.position, ms.value, ms.low, ms.high, timing.tflops,
             number in at, timing.card, timing.driver]
        )  # fmt: skip
    return {
        "slug": _slug(series),
        "by": series.by,
        "all": len(series.points),
        "void": len(series.void),
        "commits": content.commits,
        "points": points,
        "changes": [_change_cells(content, course, change) for change in course.changes],
    }


def _thinned(count: int, keep: Iterable[int]) -> list[int]:
    if count <= MOST_POINTS:
        return list(range(count))
    stride = math.ceil(count / MOST_POINTS)
    near = {n for at in keep for n in range(at - 3, at + 4) if 0 <= n < count}
    return sorted({*range(0, count, stride), *near, count - 1})


# ── to compare ───────────────────────────────────────────────────────────────────────────────────────────────────────

FACTS = ("against", "change", *LADDER_HEADERS[3:])


def _facts(content: Content) -> dict[str, Any]:
    return {
        "facts": FACTS,
        "targets": {
            target: {row.version: ladder_cells(row)[1:] for row in rows} for target, rows in content.ladders.items()
        },
    }  # fmt: skip


def _steps(content: Content) -> dict[str, Any]:
    """What each commit changed, so that what stood at any of them can be worked out in the browser."""
    standings = []
    for standing in content.standings:
        entry, timing = standing.entry, standing.timing
        build = content.builds.get(entry.build or "")
        control = timing.pair("control") if timing else None
        standings.append([
            build.code[:12] if build else "",
            max((k.registers for k in build.kernels), default=0) if build else None,
            sum(k.spill_bytes for k in build.kernels) if build else None,
            entry.smem, entry.ctas_per_sm, "+".join(dict.fromkeys(k.path for k in build.kernels if k.path)) if build else "",
            build.toolchain.nvcc if build else "",
            [timing.workload, timing.machine, timing.ms.value, timing.tflops] if timing and not timing.void else None,
            [control.build, control.time.value] if control else None,
            (entry.error or "").splitlines()[:1],
        ])  # fmt: skip
    commits = [
        [step.commit[:12], *_described(content, step.commit), {" ".join(place): n for place, n in step.changed.items()}]
        for step in content.steps
    ]
    return {"standings": standings, "commits": commits}


def _described(content: Content, commit: str) -> tuple[str, str]:
    date, subject = content.described.get(commit, ("", ""))
    return date[:10], plain(subject)


# ── roofline, peers, machines ────────────────────────────────────────────────────────────────────────────────────────


def _roofs(roofs: Sequence[Roof]) -> list[dict[str, Any]]:
    found = []
    for roof in roofs:
        ridge = roof.peak_tflops / roof.tb_s
        least = min(1.0, *(point.intensity for point in roof.points))
        most = 2 * max(ridge, *(point.intensity for point in roof.points))
        line = [least, ridge, most]
        traces = [
            {"type": "scatter", "mode": "lines", "name": "roof", "x": line, "y": [roof.at(x) for x in line],
             "line": {"color": "--soft"}, "hovertemplate": "%{x:.0f} FLOPs a byte: %{y:.0f} TFLOPS<extra>roof</extra>"},
            {"type": "scatter", "mode": "markers", "name": "measured", "x": [p.intensity for p in roof.points],
             "y": [p.tflops for p in roof.points], "marker": {"color": "--mark", "size": 10},
             "text": [f"{_label(p.version)}, {_label(p.workload)}" for p in roof.points],
             "hovertemplate": "%{text}<br>%{x:.0f} FLOPs a byte, %{y:.1f} TFLOPS<extra></extra>"},
        ]  # fmt: skip
        layout = {
            "height": 420, "xaxis": {"type": "log", "dtick": 1, "title": {"text": "FLOPs a byte that must move"}},
            "yaxis": {"type": "log", "dtick": 1, "automargin": True, "title": {"text": "TFLOPS"}},
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        }  # fmt: skip
        rows = [
            (p.version, p.workload, f"{p.intensity:.0f}", f"{p.tflops:.1f}", f"{roof.at(p.intensity):.0f} TFLOPS",
             f"{p.tflops / roof.at(p.intensity):.1%}")
            for p in roof.points
        ]  # fmt: skip
        found.append({"gpu": roof.gpu, "figure": {"traces": traces, "layout": layout}, "rows": rows})
    return found


def _peers(results: Sequence[PeerResult]) -> list[dict[str, Any]]:
    """The newest figure of each implementation, by machine class and workload, the fastest beside ours first."""
    newest = {(r.machine, r.workload, r.name if r.name != r.ours else "ours"): r for r in results}
    groups: dict[tuple[str, str], list[PeerResult]] = {}
    for (machine, workload, _), result in newest.items():
        groups.setdefault((machine, workload), []).append(result)
    found = []
    for (machine, workload), rows in sorted(groups.items()):
        rows = ranked(rows)
        bars = [
            {"version": r.name, "tflops": r.timing.tflops, "said": [],
             "change": "ours" if r.name == r.ours else r.timing.build.partition(": ")[2],
             "worse": False, "better": r.name == r.ours}
            for r in rows if r.timing
        ]  # fmt: skip
        gpu = next((f"{r.timing.gpu}, driver {r.timing.driver}" for r in rows if r.timing), machine)
        shape = ", ".join(f"{axis}={size}" for axis, size in rows[0].shape.items())
        found.append(
            {"workload": workload, "where": f"{shape}; {gpu}; {machine}", "figure": _bars(bars),
             "headers": PEER_HEADERS, "rows": [peer_cells(r) for r in rows]}
        )  # fmt: skip
    return found


def _machines(content: Content) -> dict[str, Any]:
    dates: dict[str, list[str]] = {course.series.place.machine: [] for course in content.courses}
    for course in content.courses:
        for point in course.series.points:
            dates[course.series.place.machine].append(content.described.get(point.commit, ("", ""))[0][:10])
    machines = []
    for name in sorted({timing.machine for timing in content.stored}):
        own = [timing for timing in content.stored if timing.machine == name]
        days = sorted(filter(None, dates.get(name, [])))
        sets = [", ".join(sorted({getattr(t, field) for t in own})) for field in ("gpu", "card", "driver", "regime")]
        machines.append((name, *sets, len(own), days[0] if days else None, days[-1] if days else None))
    by_toolchain: dict[tuple[str, str], list[Build]] = {}
    for build in content.builds.values():
        by_toolchain.setdefault((build.toolchain.nvcc, build.toolchain.host), []).append(build)
    toolchains = [
        (*key, len(own), ", ".join(sorted({build.target for build in own})))
        for key, own in sorted(by_toolchain.items())
    ]
    calibrations = [
        (c.machine, c.version, c.workload, c.regime, c.gates, c.false_alarms,
         f"{c.detects:.2%} slower" if c.detects else "nothing up to 5 %", f"{c.load_luck:.3%}")
        for c in content.calibrations
    ]  # fmt: skip
    return {"machines": machines, "toolchains": toolchains, "calibrations": calibrations}
