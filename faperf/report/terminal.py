"""What commands print of records: tables for the terminal, Markdown and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from faperf.comparison import (
    Bisection,
    Commit,
    DiffRow,
    Elsewhere,
    Judgement,
    LadderRow,
    Measured,
    Silicon,
)
from faperf.judge import Finding, Severity, Verdict
from faperf.manifest import Manifests, Version
from faperf.metrics import Metrics, Worth
from faperf.record import (
    Build,
    EmulatorVerdict,
    Entry,
    External,
    Interval,
    KernelFacts,
    Reported,
    ReportedLadder,
    Run,
    Timing,
)
from faperf.report.tables import NOTHING, as_json, table
from faperf.report.worth import counter_facts, flat_line, metrics_facts

# ── the ladder ───────────────────────────────────────────────────────────────────────────────────────────────────────

STATIC_HEADERS = ("regs", "spill B", "smem KiB", "CTAs/SM", "path")
LADDER_HEADERS = (
    "version", "against", "change", *STATIC_HEADERS,
    "measured TFLOPS", "measured, against parent", "reported TFLOPS", "reported, against parent",
)  # fmt: skip


def ladder_text(
    rows: Sequence[LadderRow],
    target: str,
    run: Run | None,
    reported: Sequence[ReportedLadder],
    style: str,
    elsewhere: Elsewhere,
) -> str:
    """The ladder, the flagged versions with their evidence, and what was measured, reported and left out."""
    if style == "json":
        others = [{"version": v, "target": t, "commit": commit} for (v, t), commit in elsewhere.items() if t == target]
        return as_json({"target": target, "run": run, "rows": rows, "elsewhere": others})
    columns = ladder_columns(rows)
    cells = [ladder_cells(row)[:columns] for row in rows]
    body = table(LADDER_HEADERS[:columns], cells, style, {"change": 34})
    title = f"Ladder for {target}"
    parts = [f"### {title}" if style == "markdown" else title, body]
    flags = [line for row in rows if row.flagged for line in flag_lines(row)]
    if flags:
        parts.append("\n".join(["Flagged:", *(["", *flags] if style == "markdown" else flags)]))
    parts.append("\n\n".join(legend(rows, target, run, reported, elsewhere)))
    return "\n\n".join(parts)


def ladder_columns(rows: Sequence[LadderRow]) -> int:
    """How many of the headers stand: what was published has columns where something was."""
    return len(LADDER_HEADERS) if any(row.reported for row in rows) else LADDER_HEADERS.index("reported TFLOPS")


def ladder_cells(row: LadderRow) -> list[object]:
    registers, spills, smem, ctas, path = static_cells(row.build, row.entry)
    reported = row.reported
    tflops = f"{'≈' if reported.derived else ''}{reported.tflops:.2f}" if reported and reported.tflops else None
    return [
        row.version,
        row.parent,
        row.change,
        registers,
        spills,
        smem,
        ctas,
        path,
        *measured_cells(row),
        tflops,
        reported_cell(row),
    ]


def measured_cells(row: LadderRow) -> tuple[str | None, str | None]:
    """TFLOPS, and how the time of a launch changed against the parent's with its interval; or what was wrong."""
    if row.measured is None:
        return _emulated_cell(row.entry), "LESS ACCURATE (emulated)" if row.less_accurate else None
    if row.measured.failures:
        return row.measured.failures[0].fault or "WRONG", None
    timing = row.measured.timing
    if timing is None:
        return None, None
    pair = timing.pair("parent")
    words = (
        [f"{row.time_verdict}, time {change_text(pair.time)}"]
        if pair and row.time_verdict is not Verdict.UNMEASURED
        else []
    )
    words += ["LESS ACCURATE"] if row.less_accurate else []
    return f"{timing.tflops:.1f}" + (" (carried)" if row.measured.carried else ""), ", ".join(words) or None


def _emulated_cell(entry: Entry | None) -> str | None:
    """What the emulator says of a version that was not measured."""
    if entry is None or entry.emulated is None:
        return None
    verdict = entry.emulated.verdict
    return str(verdict) if verdict is EmulatorVerdict.REFUSED else f"emulated: {verdict}"


def change_text(ratio: Interval) -> str:
    """A log ratio in per cent, with its interval."""
    value, low, high = (100 * math.expm1(number) for number in (ratio.value, ratio.low, ratio.high))
    return f"{value:+.2f}% [{low:+.2f}, {high:+.2f}]"


def static_cells(build: Build | None, entry: Entry | None) -> tuple[str | None, ...]:
    if build is None or entry is None:
        return ("does not build" if entry and entry.error else None, None, None, None, None)
    kernels = build.kernels
    widest = max(kernels, key=lambda kernel: kernel.registers)
    spills = sum(kernel.spill_bytes for kernel in kernels)
    ctas = f"{entry.ctas_per_sm} ({entry.limiter})" if entry.ctas_per_sm is not None else None
    path = "+".join(dict.fromkeys(kernel.path for kernel in kernels if kernel.path))
    return (
        f"{widest.registers}/{widest.register_cap}",
        str(spills),
        f"{entry.smem / 1024:.1f}".removesuffix(".0"),
        ctas,
        path,
    )


def reported_cell(row: LadderRow) -> str | None:
    judged = row.reported_verdict
    if judged is None or judged.change is None:
        return None
    words = [f"{judged.verdict} {judged.change:+.1%}"]
    if judged.less_accurate:
        words.append("LESS ACCURATE")
    if judged.accepted:
        words.append("accepted")
    return ", ".join(words)


def flag_lines(row: LadderRow) -> list[str]:
    lines = [
        f"- {row.version}: {_finding(finding)}" for finding in row.findings if finding.severity is not Severity.GAIN
    ]
    emulated = row.entry.emulated if row.entry else None
    if emulated and emulated.verdict is not EmulatorVerdict.RIGHT:
        lines.append(f"- {row.version}: {emulated}{' (emulated)' if emulated.verdict is EmulatorVerdict.WRONG else ''}")
    if row.measured:
        failed = [f"{check.distribution}: {check.failure}" for check in row.measured.failures]
        lines += [f"- {row.version}: WRONG on {text} (measured)" for text in failed]
        timing = row.measured.timing
        if timing and (pair := timing.pair("parent")) and row.time_verdict in (Verdict.SLOWER, Verdict.INCOMPARABLE):
            why = f"; void: {', '.join(timing.void)}" if timing.void else ""
            lines.append(
                f"- {row.version}: {row.time_verdict} than {pair.version}, time {change_text(pair.time)} (measured){why}"
            )
    how = "measured" if row.measured else "emulated"
    lines += [f"- {row.version}: LESS ACCURATE than {row.parent} on {f.text} ({how})" for f in row.less_accurate]
    judged, reported = row.reported_verdict, row.reported
    if judged and reported and (judged.regression or judged.less_accurate):
        change = (
            f"{judged.verdict} than {reported.parent}, throughput {judged.change:+.1%} (reported)"
            if judged.change
            else ""
        )
        accuracy = f"LESS ACCURATE (reported): {reported.accuracy}" if judged.less_accurate else ""
        accepted = f"accepted: {judged.accepted}" if judged.accepted else ""
        cause = f"cause as published: {reported.cause}" if judged.regression and reported.cause else ""
        words = [part for part in (change, accuracy, accepted, cause) if part]
        lines.append(f"- {row.version}: {'; '.join(words)}")
    return lines


def _finding(finding: Finding) -> str:
    return f"{finding.text} [{finding.rule}, {finding.severity}]"


def legend(
    rows: Sequence[LadderRow], target: str, run: Run | None, reported: Sequence[ReportedLadder], elsewhere: Elsewhere
) -> list[str]:
    """What the columns stand on."""
    lines = []
    earlier: dict[str, list[str]] = {}
    for row in rows:
        if row.entry and (commit := elsewhere.get((row.version, target))):
            earlier.setdefault(commit, []).append(row.version)
    if run is None:
        lines.append("Static facts: nothing was built here yet (faperf run).")
    else:
        dirty = f", with uncommitted changes in {', '.join(run.dirty)}" if run.dirty else ""
        commit = f"commit {run.commit[:12]}{dirty}" if run.commit else "no git commit"
        here = any(row.entry and (row.version, target) not in elsewhere for row in rows)
        nvcc = sorted({row.build.toolchain.nvcc for row in rows if row.build})
        compiler = f" with nvcc {', '.join(nvcc)}" if nvcc else ""
        where = commit if here or not earlier else "of earlier runs"
        lines.append(
            f"Static facts (regs of cap, spill B, smem, CTAs/SM, path): compiled for {target}{compiler}; {where}."
        )
        lines += [
            f"Not in the newest run; as recorded at commit {commit[:12]}: {', '.join(names)}."
            for commit, names in earlier.items()
        ]
        lines.append(f"Measured: nothing in this run: {run.unmeasured}." if run.unmeasured and here else "")
        lines += _measured_legend(rows)
        if any(row.entry and row.entry.emulated for row in rows):
            lines.append("Emulated: verified on the CPU on small workloads in three schedules; says nothing of time.")
    missing = [row.version for row in rows if row.entry is None]
    if missing and run is not None:
        lines.append(f"No kernel here, or not built: {', '.join(missing)}.")
    for file in reported:
        if file.target == target:
            shape = ", ".join(f"{key}={value}" for key, value in file.shape.items())
            lines.append(
                f"Reported, not measured here: {file.title} ({file.published}, {file.gpu}, {shape}); {file.url}. "
                f"Not said there: {'; '.join(file.unknown)}."
            )
    return [line for line in lines if line]


def _measured_legend(rows: Sequence[LadderRow]) -> list[str]:
    timings = [row.measured.timing for row in rows if row.measured and row.measured.timing]
    if not timings:
        return []
    places = sorted({f"{t.gpu}, driver {t.driver}, card {t.card}, {t.regime}" for t in timings})
    shapes = sorted({f"{t.workload} ({', '.join(f'{k}={v}' for k, v in t.shape.items())})" for t in timings})
    text = f"Measured on {'; '.join(places)}; {'; '.join(shapes)}; L2 flushed, interleaved with parent and control"
    return [text + "; 99 % signed-rank intervals over instances."]


# ── a diff ───────────────────────────────────────────────────────────────────────────────────────────────────────────

DIFF_HEADERS = ("version", "target", "verdict", "time", *STATIC_HEADERS, "findings")


def diff_text(
    rows: Sequence[DiffRow],
    old: Run,
    new: Run,
    style: str,
    *,
    show_unchanged: bool = False,
    sass: Mapping[str, object] | None = None,
) -> str:
    """What changed between two runs, version by version. `sass` goes into JSON alone."""
    if style == "json":
        return as_json({"old": old, "new": new, "rows": rows} | ({"sass": sass} if sass else {}))
    changed = [row for row in rows if show_unchanged or row.verdict is not Verdict.UNCHANGED]
    title = f"{_run_name(old)} → {_run_name(new)}"
    parts = [f"### {title}" if style == "markdown" else title]
    if changed:
        parts.append(table(DIFF_HEADERS, [_diff_cells(row) for row in changed], style, {"findings": 50}))
    unchanged = len(rows) - len(changed)
    if unchanged:
        parts.append(f"{unchanged} unchanged (same code, same launch).")
    if not rows:
        parts.append("Neither side has a version.")
    broken = [f"{row.version} for {row.target}: {row.new.error}" for row in rows if row.new and row.new.error]
    parts += broken
    toolchains = [_toolchains(rows, side) for side in ("old", "new")]
    if all(toolchains) and toolchains[0] != toolchains[1]:
        parts.append(f"The toolchain differs too: {', '.join(toolchains[0])} → {', '.join(toolchains[1])}.")
    if any(row.verdict is Verdict.UNMEASURED for row in rows):
        parts.append("UNMEASURED: only static facts were compared.")
    if any(row.time_basis.startswith("stored") for row in rows):
        parts.append(
            "stored: figures of two runs, each relative to a partner that both have; --rerun interleaves both and sees finer."
        )
    return "\n\n".join(parts)


def _run_name(run: Run) -> str:
    commit = run.commit[:12] if run.commit else "no commit"
    return f"{commit}, dirty" if run.dirty else commit


def _toolchains(rows: Sequence[DiffRow], side: str) -> list[str]:
    builds = (row.old_build if side == "old" else row.new_build for row in rows)
    return sorted({f"nvcc {b.toolchain.nvcc}, {b.toolchain.host}" for b in builds if b})


def _diff_cells(row: DiffRow) -> list[object]:
    old = static_cells(row.old_build, row.old)
    new = static_cells(row.new_build, row.new)
    facts = [a if a == b else f"{a or NOTHING} → {b or NOTHING}" for a, b in zip(old, new, strict=True)]
    findings = "\n".join(_finding(finding) for finding in row.findings)
    time = f"{change_text(row.time_change)} {row.time_basis}" if row.time_change else None
    return [row.version, row.target, row.verdict, time, *facts, findings]


# ── a bisection ──────────────────────────────────────────────────────────────────────────────────────────────────────

SASS_LINES = 40
"""So much of a SASS diff is shown; all of it is in a file."""


def judgement_text(judgement: Judgement) -> str:
    """What a step of a bisection found: the fate, and why."""
    parts = [judgement.why] if judgement.why else []
    if judgement.verdict is not None:
        change = f", time {change_text(judgement.change)}" if judgement.change else ""
        parts.append(f"{judgement.verdict}{change} on {judgement.workload}")
    parts += [finding.text for finding in judgement.findings if finding.severity is Severity.REGRESSION]
    return f"{judgement.fate}: {'; '.join(parts)}" if parts else str(judgement.fate)


def bisect_text(found: Bisection, style: str) -> str:
    """The commit and the verdict first; then the static diff and the SASS diff, and the steps that led there."""
    if style == "json":
        return as_json(found)
    what = f"{found.version} for {found.target}"
    if found.first:
        title = f"{found.first.hash[:12]} made {what} worse ({found.metric})"
        facts = [f"{found.first.subject} ({found.first.date:%Y-%m-%d %H:%M %z})"]
    else:
        title = f"INCONCLUSIVE: {what} became worse ({found.metric}) in one of {len(found.candidates)} commits"
        facts = [f"- {_commit(commit)}" for commit in found.candidates]
    parts = [f"### {title}" if style == "markdown" else title, "\n".join(facts)]
    if found.judgement:
        parts.append(f"Against {found.good.hash[:12]}: {judgement_text(found.judgement)}")
    if found.diff and found.predecessor:
        until = (found.first or found.candidates[-1]).hash[:12]
        parts.append(_static_diff(found.diff, found.predecessor.hash[:12], until, style))
        parts += ["\n".join(f"- {_finding(finding)}" for finding in found.diff.findings)] if found.diff.findings else []
        parts.append(_sass_diff(found, style))
    steps = [
        (_commit(step.commit), judgement_text(step.judgement), step.same_as[:12] if step.same_as else None)
        for step in found.steps
    ]
    parts.append(f"Looked at {len(steps)} of {found.commits} commits since {_commit(found.good)}:")
    parts.append(table(("commit", "is", "same code as"), steps, style, {"commit": 50, "is": 60}))
    return "\n\n".join(parts)


def _commit(commit: Commit) -> str:
    return f"{commit.hash[:12]} {commit.subject}"


def _static_diff(row: DiffRow, old: str, new: str, style: str) -> str:
    cells = (static_cells(row.old_build, row.old), static_cells(row.new_build, row.new))
    facts = list(zip(DIFF_HEADERS[4:9], *cells, strict=True))
    return table(("static fact", old, new), facts, style)


def _sass_diff(found: Bisection, style: str) -> str:
    if not found.sass:
        return f"The instructions of {found.kernel} are the same: constants, attributes, another kernel or the launch differ."
    lines = found.sass[:SASS_LINES]
    more = len(found.sass) - len(lines)
    rest = f"{more} more lines of it" if more else "It is"
    text = "\n".join(["```diff", *lines, "```"] if style == "markdown" else lines)
    return f"SASS of {found.kernel}, registers without their numbers:\n\n{text}\n\n{rest} in {found.sass_file}."


# ── versions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def list_text(manifests: Manifests, style: str) -> str:
    versions = list(manifests.versions.values())
    if style == "json":
        return as_json({"versions": versions, "workloads": list(manifests.workloads.values())})
    rows = [
        (v.id, v.parent, v.title, ", ".join(v.targets), ", ".join(w.name for w in manifests.workloads_of(v)))
        for v in versions
    ]
    return table(("version", "parent", "title", "targets", "workloads"), rows, style, {"title": 40, "workloads": 40})


def show_text(
    version: Version | None,
    version_id: str,
    found: Sequence[tuple[Entry, Build | None]],
    findings: dict[str, list[Finding]],
    reported: tuple[ReportedLadder, Reported] | None,
    silicon: Silicon,
    worth: Mapping[str, Worth],
    external: Sequence[External],
    style: str,
) -> str:
    """All that is known of one version: manifest, notes, static facts and measured figures by target, published figures.

    `worth` is by target.
    """
    if style == "json":
        targets = [
            {
                "entry": entry,
                "build": build,
                "findings": findings.get(entry.target, []),
                "measured": silicon.get(entry.place),
                "worth": worth.get(entry.target),
            }
            for entry, build in found
        ]
        published = reported[1] if reported else None
        return as_json({"version": version, "targets": targets, "reported": published, "external": external})
    heading = "## " if style == "markdown" else ""
    parts = [f"{heading}{version_id}: {version.title if version else 'published only; no kernel here'}"]
    if version:
        facts = [("parent", version.parent), ("source", version.source), ("flags", " ".join(version.flags))]
        facts += [("workloads", ", ".join(version.workloads)), ("tile", f"{version.tile.m} × {version.tile.n}")]
        notes = version.notes
        facts += [("hypothesis", notes.hypothesis), ("change", notes.change), ("lesson", notes.lesson)]
        parts.append(table(("", ""), [fact for fact in facts if fact[1]], style, {"": 90}))
    for entry, build in found:
        title = f"{entry.target} (build {entry.build})" if entry.build else f"{entry.target}: does not build"
        parts.append(f"#{heading}{title}" if heading else title)
        if build is None:
            parts.append(entry.error or "its build record is not in this history")
            continue
        for kernel in build.kernels:
            parts.append(table(("fact", "value"), kernel_facts(kernel, entry), style, {"value": 90}))
        if entry.emulated:
            parts.append(f"Emulated: {entry.emulated}")
        if measured := silicon.get(entry.place):
            known = worth.get(entry.target, Worth())
            parts += _measured_facts(measured, known.metrics, style)
            line = flat_line(known.timings)
            parts += [f"warning: {line}"] if line else []
            parts += [table(("counted", "value"), counter_facts(known.counters), style)] if known.counters else []
        lines = [*build.messages, *(_finding(finding) for finding in findings.get(entry.target, []))]
        if lines:
            parts.append("\n".join(f"- {line}" for line in lines))
    if version and not found:
        parts.append("Not built here yet: faperf run " + version_id)
    if external:
        parts += _external(external, style)
    if reported:
        file, row = reported
        words = [(name, value) for name in row.__struct_fields__ if (value := getattr(row, name)) is not None]
        parts.append(f"Reported on {file.gpu}, not measured here ({file.url})")
        parts.append(table(("reported", "value"), words, style, {"value": 90}))
    return "\n\n".join(parts)


def _external(figures: Sequence[External], style: str) -> list[str]:
    """Other tools' figures, under their own heading."""
    rows = [
        (
            f.benchmark,
            ", ".join(f"{name}={value}" for name, value in f.axes.items()),
            f.gpu,
            f"{f.ms:.4f} ms",
            f"{f.batch_ms:.4f} ms" if f.batch_ms else None,
            f"{f.noise:.2%}" if f.noise is not None else None,
            f.samples,
            f"{f.clock_mhz:.0f} MHz" if f.clock_mhz else None,
        )
        for f in figures
    ]
    tools = ", ".join(dict.fromkeys(f.tool for f in figures))
    headers = ("benchmark", "axes", "GPU", "cold", "batch", "noise", "samples", "clock")
    return [f"By {tools} and its protocol, not by faperf's: not to be compared", table(headers, rows, style)]


ACCURACY_HEADERS = ("distribution", "relative L2", "max abs", "bound", "verdict")


def _measured_facts(measured: Measured, metrics: Metrics | None, style: str) -> list[str]:
    """Accuracy by distribution, and the timing with its partners."""
    carried = ", carried forward from an earlier run" if measured.carried else ""
    title = f"measured on {measured.workload}{carried}"
    parts = [title, table(ACCURACY_HEADERS, accuracy_rows(measured), style, {"verdict": 60})]
    if measured.timing is None:
        return parts
    return [*parts, table(("figure", "value"), timing_facts(measured.timing, metrics), style, {"value": 90})]


def accuracy_rows(measured: Measured) -> list[tuple[object, ...]]:
    """What ACCURACY_HEADERS name, of each check."""
    return [
        (c.distribution, _number(c.relative_l2), _number(c.max_abs), _number(c.bound), c.failure or "right")
        for c in measured.checks
    ]


def timing_facts(timing: Timing, metrics: Metrics | None) -> list[tuple[str, str | None]]:
    """The figures of a timing with what they are worth, each with its name; those that are not known are left out."""
    ms = timing.ms
    facts: list[tuple[str, str | None]] = [
        ("time", f"{ms.value:.4f} ms [{ms.low:.4f}, {ms.high:.4f}], {timing.launches} launches, {timing.regime}"),
        ("throughput", f"{timing.tflops:.1f} TFLOPS, {timing.gib_s:.1f} GiB/s"),
        ("SM clock", f"{timing.clock_mhz:.0f} MHz" if timing.clock_mhz else None),
        *(metrics_facts(metrics) if metrics else ()),
        ("power", f"{timing.power_w:.0f} W at most" if timing.power_w else None),
        ("clock events", ", ".join(timing.events)),
        ("void", "; ".join(timing.void)),
        ("GPU", f"{timing.gpu}, driver {timing.driver}, card {timing.card}"),
    ]
    for pair in timing.pairs:
        if pair.role == "control":
            value, low, high = (math.exp(log) for log in (pair.time.value, pair.time.low, pair.time.high))
            what = f"{value:.4f} [{low:.4f}, {high:.4f}] times the control's, through which stored figures compare"
            facts.append(("against the control", what))
            continue
        cycles = f"; cycles {change_text(pair.cycles)}" if pair.cycles else ""
        facts.append((f"against {pair.role} {pair.version}", f"time {change_text(pair.time)}{cycles}"))
    return [fact for fact in facts if fact[1]]


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.2e}"


def kernel_facts(kernel: KernelFacts, entry: Entry) -> list[tuple[str, object]]:
    depths = {name: counts for name, counts in kernel.opcodes.items() if name in kernel.main_loop}
    loop = ", ".join(f"{name} {kernel.main_loop[name]}" for name in sorted(depths, key=lambda n: -kernel.main_loop[n]))
    return [
        ("kernel", kernel.entry),
        ("registers", f"{kernel.registers} of {kernel.register_cap}"),
        ("spills", f"{kernel.spill_stores} B stored, {kernel.spill_loads} B loaded; stack {kernel.stack} B"),
        ("shared memory", f"{entry.smem} B, of it {kernel.static_smem} static"),
        ("barriers", kernel.barriers),
        ("CTAs per SM", f"{entry.ctas_per_sm}, limited by {entry.limiter}" if entry.ctas_per_sm is not None else None),
        ("tensor path", kernel.path),
        ("MMA shapes", ", ".join(f"{shape} × {count}" for shape, count in kernel.mma_shapes.items())),
        ("TMEM columns", kernel.tmem_columns),
        ("instructions", kernel.instructions),
        ("main loop", loop),
    ]
