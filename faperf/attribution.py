"""What made a version worse where two toolchains are compared: its source, the toolchain, or both."""

from __future__ import annotations

from collections.abc import Sequence

from faperf import record
from faperf.building import Selection, Workshop
from faperf.comparison import GateRow, diff
from faperf.evidence import measure
from faperf.judge import TIME, Cause, Status, Verdict, attribute
from faperf.judging import Judge
from faperf.looks import BASELINE
from faperf.record import Place
from faperf.trees import Ask, Tree, distrusted, tree_at, working_tree
from faperf.worker import Here


def attributed(
    shops: Sequence[Workshop],
    commit: str,
    selection: Selection,
    old: Tree,
    new: Tree,
    rows: list[GateRow],
    ask: Ask,
    here: Here,
) -> list[GateRow]:
    """Rows that got worse, with what did it: both sources are built with both toolchains, and what was timed is timed."""
    worse = {row.place for row in rows if row.status is Status.REGRESSION}
    if not worse:
        return rows
    new_with_old = working_tree(shops[0], selection, ask)
    old_with_new = tree_at(shops[1], commit, selection, recorded=False)
    if ask.trusted_config:
        new_with_old = distrusted(new_with_old, old)
    by_source = _Effect(shops[1], old, new_with_old, worse, ask, here)
    by_toolchain = _Effect(shops[1], old, old_with_new, worse, ask, here)

    def cause(row: GateRow) -> Cause | None:
        place = row.place
        if place not in worse:
            return row.cause
        metrics = {regression.metric for regression in row.regressions if regression.counts}
        if TIME in metrics:
            metrics = {TIME}
            if row.verdict is not Verdict.SLOWER:
                return row.cause  # since the pinned commit, which one compiler built with the working tree
        source, toolchain = (effect.on(row, metrics) for effect in (by_source, by_toolchain))
        return attribute(Verdict.SLOWER, source, toolchain, machine_moved=False)

    return [record.replace(row, cause=cause(row)) for row in rows]


class _Effect:
    """How one change alone (the source's, or the toolchain's) bears on a version: SLOWER where it makes it worse."""

    def __init__(
        self,
        workshop: Workshop,
        old: Tree,
        new: Tree,
        worse: set[Place],
        ask: Ask,
        here: Here,
    ) -> None:
        builds = old.outcome.builds | new.outcome.builds
        rows = [r for r in diff(old.outcome.run, new.outcome.run, builds, workshop.limits) if r.place in worse]
        changed = {row.place for row in rows if row.verdict is Verdict.UNMEASURED}
        found = measure(workshop, new, {BASELINE: old}, changed, ask, here)

        judge = Judge(workshop, old, new, None, ask, found)
        self._rows = [judged for row in rows for judged in judge.rows(row)]

    def on(self, worse: GateRow, metrics: set[str]) -> Verdict:
        """Whether it makes `worse` worse in one of `metrics`."""
        here = [row for row in self._rows if row.place == worse.place]
        rows = [row for row in here if row.workload == worse.workload] or here
        guilty = any(regression.metric in metrics for row in rows for regression in row.regressions)
        return Verdict.SLOWER if guilty else Verdict.SAME
