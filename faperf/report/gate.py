"""A gate's report as people read it: the verdict first, what changed and why, how to ask again, how to accept it."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Callable, Sequence

from faperf.comparison import GateReport, GateRow
from faperf.judge import Status, Verdict
from faperf.report.actions import annotations_of
from faperf.report.junit import gate_junit
from faperf.report.sarif import gate_sarif
from faperf.report.tables import as_json, plain, table
from faperf.report.terminal import change_text

HEADERS = ("version", "target", "workload", "verdict", "time against baseline", "since pinned", "TFLOPS", "why")
HEADLINES = {
    Status.FINE: "PASSED",
    Status.ERROR: "ERROR",
    Status.REGRESSION: "REGRESSION",
    Status.INCONCLUSIVE: "INCONCLUSIVE",
    Status.WRONG: "WRONG",
}
LONGEST_COMMENT = 60_000
"""Characters: GitHub takes 65,536 in a comment."""
LONGEST_MESSAGE = 1_500
MOST_PLACES = 20
MARKER = "<!-- faperf gate -->"
"""By which a later comment finds the one that it replaces."""


def gate_text(report: GateReport, style: str) -> str:
    """`style` is one of FORMATS."""
    return FORMATS[style](report)


def _table_text(report: GateReport) -> str:
    changed = _changed(report)
    parts = [_title(report)]
    if changed:
        parts.append(table(HEADERS, [_cells(row, plain) for row in changed], "table", {"why": 60}, keys=2))
    parts += _facts(report, plain)
    parts += [f"To accept it: {command}" for command in _accepting(report)]
    return "\n\n".join(parts)


# ── a comment on a pull request ──────────────────────────────────────────────────────────────────────────────────────


def escaped(text: str) -> str:
    """Text of a stranger as Markdown that says the same and does nothing: no markup, HTML, link, mention or reference."""
    text = re.sub(r"\s+", " ", plain(text)).strip()
    return _unlinked(re.sub(r"([\\`*\[\]<>&~$]|(?<!\w)_|_(?!\w))", r"\\\1", text))


def _unlinked(text: str) -> str:
    """GitHub makes links of @names, #1 and addresses, unless something stands between."""
    return re.sub(r"(@|#(?=\w)|\bGH-|\bwww|:(?=//))", "\\1\N{ZERO WIDTH SPACE}", text)


def fenced(text: str, language: str = "") -> str:
    """Text as a block of code that it cannot leave."""
    text = plain(text)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def gate_markdown(report: GateReport) -> str:
    """A comment: short enough for GitHub, whatever there is to say."""
    changed = _changed(report)
    parts = [f"### {_title(report)}"]
    if changed:
        parts.append(_markdown_table(changed))
    parts += _facts(report, escaped)
    parts += [
        _folded(f"{row.version} for {row.target}", [fenced(_shortened(row.error))]) for row in changed if row.error
    ]
    parts += _places(report)
    parts.append(_folded("How to reproduce it, and how to accept it", [*_how(report)]))
    if len(report.rows) > len(changed):
        everything = _folded(f"All {len(report.rows)} rows", [_markdown_table(report.rows)])
        fits = len("\n\n".join([*parts, everything])) < LONGEST_COMMENT
        parts.append(everything if fits else f"The table of all {len(report.rows)} rows is too long for a comment.")
    text = "\n\n".join([*parts, MARKER])
    if len(text) <= LONGEST_COMMENT:
        return text
    return f"{parts[0]}\n\n{len(changed)} rows changed, too many for a comment: `{report.command}` prints them.\n\n{MARKER}"


def _markdown_table(rows: Sequence[GateRow]) -> str:
    """Without the columns in which nothing stands."""
    content = [_cells(row, escaped) for row in rows]
    used = [n for n in range(len(HEADERS)) if any(cells[n] for cells in content)]
    return table([HEADERS[n] for n in used], [[cells[n] for n in used] for cells in content], "markdown")


def _places(report: GateReport) -> list[str]:
    """Where in the sources it is, as far as it is new."""
    found = [annotation for annotation in annotations_of(report) if annotation.new and annotation.line]
    lines = [f"- {escaped(f'{a.file}:{a.line}')}: {escaped(_shortened(a.text))}" for a in found[:MOST_PLACES]]
    lines += [f"- and {len(found) - MOST_PLACES} more"] if len(found) > MOST_PLACES else []
    return [_folded(f"Where in the sources ({len(found)})", ["\n".join(lines)])] if lines else []


def _how(report: GateReport) -> list[str]:
    head = (report.head or "")[:12]
    lines = [*([f"git switch --detach {head}"] if head else []), report.command]
    if report.dirty:
        lines.insert(1, " ".join(["# and the uncommitted changes in", *", ".join(report.dirty).split()]))
    parts = ["Ask again:", fenced("\n".join(lines), "sh")]
    if accepting := _accepting(report):
        parts += [
            "Accept it, with a reason for the reviewer, and commit the manifest:",
            fenced("\n".join(accepting), "sh"),
        ]
    return parts


def _folded(summary: str, parts: Sequence[str]) -> str:
    return "\n\n".join([f"<details><summary>{_unlinked(html.escape(plain(summary)))}</summary>", *parts, "</details>"])


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]} …"


# ── what both say ────────────────────────────────────────────────────────────────────────────────────────────────────


def _changed(report: GateReport) -> list[GateRow]:
    """What a reader must see, the worst first."""
    rows = [row for row in report.rows if row.verdict is not Verdict.UNCHANGED or row.status is not Status.FINE]
    order = [Status.WRONG, Status.ERROR, Status.REGRESSION, Status.INCONCLUSIVE, Status.FINE]
    return sorted(rows, key=lambda row: order.index(row.status))


def _title(report: GateReport) -> str:
    against = report.baseline[:12] + (f", pinned {report.pinned[:12]}" if report.pinned else "")
    head = (report.head or "no commit")[:12] + (", dirty" if report.dirty else "")
    return f"{HEADLINES[report.status]}: {head} against {against}"


def _facts(report: GateReport, said: Callable[[str], str]) -> list[str]:
    """What concerns the whole. `said` makes others' words harmless."""
    parts = []
    unchanged = len(report.rows) - len(_changed(report))
    if unchanged:
        parts.append(f"{unchanged} unchanged (same code, same launch): no GPU time was spent on them.")
    if not report.rows:
        parts.append("Neither side has a version.")
    parts += [said(note) for note in report.notes]
    if report.unmeasured and any(row.verdict is Verdict.UNMEASURED for row in report.rows):
        parts.append(f"Throughput unmeasured: {said(report.unmeasured)}. Static facts alone were compared.")
    if len(report.toolchains) == 2:
        parts.append(f"Baseline built with {report.toolchains[0]}, the working tree with {report.toolchains[1]}.")
    return parts


def _accepting(report: GateReport) -> list[str]:
    names = [row.version for row in report.rows if any(regression.counts for regression in row.regressions)]
    return [f'faperf accept {shlex.quote(name)} --reason "…"' for name in dict.fromkeys(names)]


def row_text(row: GateRow) -> str:
    """One row in words, for a test's failure."""
    version, target, workload, verdict, change, since, tflops, why = _cells(row, plain)
    facts = [("workload", workload), ("time against the baseline", change), ("since pinned", since), ("TFLOPS", tflops)]
    lines = [f"{version} for {target}: {verdict}", *(f"  {name}: {value}" for name, value in facts if value)]
    lines += [f"  {line}" for line in str(why).splitlines()]
    if any(regression.counts for regression in row.regressions):
        lines.append(f'  → faperf accept {shlex.quote(row.version)} --reason "…" accepts it')
    return "\n".join(lines)


def verdict_of(row: GateRow) -> str:
    """One word: of time, or of what is worse than that."""
    own_word = row.verdict is Verdict.BROKEN or row.status in (Status.FINE, Status.INCONCLUSIVE)
    return str(row.verdict) if own_word else HEADLINES[row.status]


def _cells(row: GateRow, said: Callable[[str], str]) -> list[object]:
    tflops = f"{row.tflops:.1f}" + (" (carried)" if row.carried else "") if row.tflops else None
    change = f"{row.verdict} {change_text(row.change)}" if row.change else None
    since = f"{row.pinned} {change_text(row.since_pinned)}" if row.since_pinned else None
    in_markdown = said is escaped
    error = row.error.strip().splitlines() if row.error else []
    why = [*row.wrong, *(error[:1] if in_markdown else ["\n".join(error)] if error else [])]
    for regression in row.regressions:
        accepted = f" ({regression.accepted.text})" if regression.accepted else ""
        why.append(f"{regression.text}{accepted}")
    why += [f"cause: {row.cause}"] if row.cause else []
    lines = [said(line) for line in [*why, *row.notes]]
    return [
        said(row.version),
        said(row.target),
        said(row.workload) if row.workload else None,
        verdict_of(row),
        change,
        since,
        tflops,
        ("<br>" if in_markdown else "\n").join(lines),
    ]


FORMATS: dict[str, Callable[[GateReport], str]] = {
    "table": _table_text,
    "markdown": gate_markdown,
    "json": as_json,
    "junit": gate_junit,
    "sarif": gate_sarif,
}
"""By their names on the command line."""
