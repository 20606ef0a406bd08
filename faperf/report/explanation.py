"""Why a version is as fast as it is, and the SASS of a loop that changed, for people."""

from __future__ import annotations

import math
from collections.abc import Mapping

from faperf.diagnose import Cause, Diagnosis, Effect
from faperf.judge import Verdict
from faperf.listing import LoopDiff
from faperf.report.tables import as_json

WORDS = {Effect.COST: "costs", Effect.GAIN: "gains", Effect.LIMIT: "limits"}


def explanation_text(diagnosis: Diagnosis, sass: LoopDiff | None, style: str) -> str:
    """The verdict, the causes by rank with their evidence, source lines and advice, and what stays unknown."""
    if style == "json":
        return as_json({"diagnosis": diagnosis, "sass": sass})
    title = f"{diagnosis.version} for {diagnosis.target}"
    if diagnosis.against:
        title = f"{diagnosis.version} against {diagnosis.against} for {diagnosis.target}: {_verdict(diagnosis)}"
    parts = [f"### {title}" if style == "markdown" else title]
    parts += [_cause(number, cause, style) for number, cause in enumerate(diagnosis.causes, 1)]
    if diagnosis.unknown:
        parts.append(diagnosis.unknown)
    elif not diagnosis.causes:
        parts.append("unknown: no rule finds anything in what is known; faperf run --counters, on a GPU, tells more")
    parts += diagnosis.notes
    if sass is not None:
        parts.append(loop_text(sass, style))
    return "\n\n".join(parts)


def _verdict(diagnosis: Diagnosis) -> str:
    if diagnosis.change is not None:
        value, low, high = (
            100 * math.expm1(n) for n in (diagnosis.change.value, diagnosis.change.low, diagnosis.change.high)
        )
        return f"{diagnosis.verdict}, time {value:+.2f}% [{low:+.2f}, {high:+.2f}] (measured)"
    if diagnosis.reported is not None:
        return f"{diagnosis.verdict}, throughput {diagnosis.reported:+.1%} (reported, not measured here)"
    if diagnosis.verdict is Verdict.UNMEASURED:
        return "time unmeasured; what follows is what changed"
    return str(diagnosis.verdict)


def _cause(number: int, cause: Cause, style: str) -> str:
    name = f"**{cause.name}**" if style == "markdown" else cause.name
    lines = [f"{number}. {name} ({WORDS[cause.effect]}): {cause.claim}"]
    lines += [f"   - {text}" for text in cause.evidence]
    for where in cause.places:
        code = f"  `{where.text}`" if where.text and style == "markdown" else f"  {where.text}" if where.text else ""
        lines.append(f"   - at {where.place}: {where.what}{code}")
    if cause.advice:
        lines.append(f"   - try: {cause.advice}")
    return "\n".join(lines)


def loops_text(loops: Mapping[str, LoopDiff], style: str) -> str:
    """Those of `faperf diff --sass`, by target."""
    return "\n\n".join(f"{target}: {loop_text(loop, style)}" for target, loop in loops.items())


def loop_text(loop: LoopDiff, style: str) -> str:
    """What changed in a loop: sizes, opcode counts, and the changed instructions with a few around them."""
    if not loop.hunks:
        return f"SASS: the instructions of both are the same ({loop.new})."
    counts = ", ".join(f"{name} {old} → {new}" for name, (old, new) in loop.counts.items())
    head = f"SASS, {loop.part}: {loop.old} → {loop.new} instructions" + (f" ({counts})" if counts else "")
    body = "\n".join(["```diff", *loop.hunks, "```"] if style == "markdown" else loop.hunks)
    return f"{head}\nRegisters without their numbers; each part is headed by its source line.\n\n{body}"
