"""Facts of a version, and of the one it is compared with → why it is as fast as it is, ranked, each with its evidence.

A rule looks at facts and says nothing where they do not show its cause: no evidence, no cause. What the rules cannot tell is
*unknown*. Costs (what the new side pays that the old one did not) come before gains where the version is slower, behind them
where it is faster; limits, which need no other side, come last.
"""

from __future__ import annotations

from collections.abc import Sequence

from faperf.diagnose.alone import ALONE
from faperf.diagnose.between import COMPARING, rest
from faperf.diagnose.facts import Cause, Diagnosis, Effect, Facts, Where, main_kernel
from faperf.judge import Thresholds, Verdict, compare_reported, judge_pair
from faperf.record import Interval

__all__ = ["Cause", "Diagnosis", "Effect", "Facts", "Where", "diagnose", "main_kernel"]


def diagnose(new: Facts, old: Facts | None, limits: Thresholds) -> Diagnosis:
    """Why `new` is as it is, against `old` where there is one."""
    verdict, change, share = _verdict(new, old, limits)
    found: list[Cause] = []
    if old is not None:
        for compare in COMPARING:
            found += compare(new, old, limits)
        found += rest(new, old, limits, found)
    for look in ALONE:
        found += look(new, old, limits)
    first = Effect.GAIN if verdict is Verdict.FASTER else Effect.COST
    order = [first, *[effect for effect in Effect if effect is not first]]
    found.sort(key=lambda cause: (order.index(cause.effect), -cause.weight))
    assert all(cause.evidence for cause in found)
    return Diagnosis(
        version=new.name,
        against=old.name if old else None,
        target=new.entry.target,
        verdict=verdict,
        change=change,
        reported=share,
        causes=found,
        unknown=_unknown(verdict, found, new, old),
        notes=_notes(new, verdict, found),
    )


def _verdict(new: Facts, old: Facts | None, limits: Thresholds) -> tuple[Verdict, Interval | None, float | None]:
    """As measured, interleaved; else as published; else UNMEASURED."""
    pair = new.timing.pair("parent") if new.timing else None
    if new.timing and pair and old and pair.version == old.name:
        return judge_pair(new.timing, "parent", limits), pair.time, None
    judged = compare_reported(new.published, old.published, limits) if new.published and old else None
    if judged and judged.change is not None:
        return judged.verdict, None, judged.change
    return Verdict.UNMEASURED, None, None


def _unknown(verdict: Verdict, found: Sequence[Cause], new: Facts, old: Facts | None) -> str | None:
    effects = {cause.effect for cause in found}
    wanted = {Verdict.SLOWER: Effect.COST, Verdict.FASTER: Effect.GAIN}.get(verdict)
    if old is None or wanted is None or wanted in effects:
        return None
    missing = [] if new.counters else ["no counters were taken (faperf run --counters, on a GPU)"]
    return f"unknown: nothing that is known of both says why it is {verdict}" + "".join(f"; {m}" for m in missing)


def _notes(new: Facts, verdict: Verdict, found: Sequence[Cause]) -> list[str]:
    notes = []
    if verdict in (Verdict.FASTER, Verdict.SAME) and any(cause.effect is Effect.COST for cause in found):
        notes.append(f"What costs something below did not decide: it is {verdict} all the same.")
    if not new.lines:
        notes.append("Source lines are not shown: it was not built here.")
    return notes
