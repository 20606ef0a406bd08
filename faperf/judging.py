"""Rows of a comparison, and what was measured of them → rows of the gate."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from faperf import record
from faperf.building import Workshop
from faperf.comparison import DiffRow, GateRow, Measured, Regression
from faperf.evidence import Evidence
from faperf.figures import informed, silicon_of
from faperf.judge import (
    TIME,
    UNDECIDED,
    Cause,
    Finding,
    Severity,
    Status,
    Verdict,
    acceptance,
    attribute,
    judge_pair,
    less_accurate,
    over_budget,
    overridden,
    worst,
)
from faperf.locating import Locator
from faperf.looks import BASELINE
from faperf.manifest import Accepted, Budgets, Version
from faperf.measuring import side_name
from faperf.record import EmulatorVerdict, Interval, Pair, Place, Timing
from faperf.trees import Ask, Tree

PINNED = "pinned"


@dataclass
class Judge:
    """Rows of a comparison → rows of the gate."""

    workshop: Workshop
    old: Tree
    new: Tree
    pinned: Tree | None
    ask: Ask
    found: Evidence

    def __post_init__(self) -> None:
        history, repository = self.workshop.history, self.workshop.repository
        assert repository is not None
        self.limits, head = self.workshop.limits, repository.head()
        self.today = repository.committed(head) if head else datetime.date.today()
        self._known = silicon_of(history, informed(history, repository, self.new.outcome.run))
        self._before = silicon_of(history, informed(history, repository, self.old.outcome.run))
        self._broken = {
            Path(str(error.where).partition(":")[0]).stem: str(error) for error in self.new.manifests.broken
        }

    def rows(self, row: DiffRow) -> list[GateRow]:
        """One row a workload that was timed; one for the version where none was."""
        row = self._ruled(row)
        workloads: list[str | None] = [w for *where, w in self.found.timings if tuple(where) == row.place]
        workloads += [w for name, w in self.found.checks if self._is(name, row.place) and w not in workloads]
        return [self._row(row, workload) for workload in workloads or [None]]

    def annotated(self, row: DiffRow) -> list[GateRow]:
        """The same, with what is to be said at lines of the sources."""
        artifact = self.new.outcome.artifacts.get(row.new.build or "") if row.new else None
        root, nvdisasm = self.workshop.project.root, self.workshop.toolchain.nvdisasm
        locator = Locator(root, row.version, self.new.version(row.place), artifact, nvdisasm)
        ruled = self._ruled(row)
        return [record.replace(each, annotations=locator.annotations(ruled, each)) for each in self.rows(row)]

    def _ruled(self, row: DiffRow) -> DiffRow:
        """By the severities that the version's manifest gives."""
        return record.replace(row, findings=overridden(row.findings, self._rules(row.place)))

    def _row(self, row: DiffRow, workload: str | None) -> GateRow:
        place, verdict = row.place, row.verdict
        timing = self.found.timings.get((*place, workload)) if workload else None
        error = row.new.error if row.new else None
        if verdict in (Verdict.GONE, Verdict.INCOMPARABLE) and row.version in self._broken:
            verdict, error = Verdict.BROKEN, self._broken[row.version]
        notes = [f.text for f in row.findings if f.severity is not Severity.REGRESSION]
        notes += [f"void: {reason}" for reason in timing.void] if timing else []
        if row.old is not None and row.old.build is None and row.new_build is not None:
            verdict, notes = Verdict.NEW, [*notes, "did not build at the baseline"]
        since = self._since_pinned(timing, place)
        drift = None
        if timing is not None:
            verdict = judge_pair(timing, BASELINE, self.limits, self.found.comparisons)
            drift = self._drift(timing, since.role, place) if since else None
            if timing.pair(BASELINE) is None:
                notes.append("not timed against the baseline, whose result is wrong")
        wrong = self._wrong(place, workload)
        entry = self.new.outcome.run.entry(*place)
        if entry is not None and entry.emulated is not None:  # no GPU here ran it
            refused = entry.emulated.verdict is EmulatorVerdict.REFUSED
            said = wrong if entry.emulated.verdict is EmulatorVerdict.WRONG else notes
            said.append(f"{'' if refused else 'emulated: '}{entry.emulated}")
        drifted = since.time if since and drift is Verdict.SLOWER else None
        regressions = self._regressions(row, workload, timing, verdict, drifted)
        undecided = (*UNDECIDED, *([Verdict.UNMEASURED] if self.ask.require_measured else []))
        statuses = {
            Status.WRONG: verdict is Verdict.BROKEN or bool(wrong),
            Status.ERROR: bool(error),
            Status.REGRESSION: any(regression.counts for regression in regressions),
            Status.INCONCLUSIVE: verdict in undecided or drift in UNDECIDED,
        }
        known = self._known.get(place)
        last = known.timing if known and verdict in (Verdict.UNCHANGED, Verdict.UNMEASURED) else None
        pair = timing.pair(BASELINE) if timing else None
        return GateRow(
            version=row.version,
            target=row.target,
            workload=workload or (known.workload if last and known else None),
            status=worst(status for status, holds in statuses.items() if holds),
            verdict=verdict,
            old_build=row.old.build if row.old else None,
            new_build=row.new.build if row.new else None,
            change=pair.time if pair else None,
            pinned=drift,
            since_pinned=since.time if since else None,
            regressions=regressions,
            notes=notes,
            wrong=wrong,
            error=error,
            cause=self._cause(place, timing, verdict, regressions),
            tflops=timing.tflops if timing else last.tflops if last else None,
            carried=timing is None and last is not None,
        )

    def _is(self, side: str, place: Place) -> bool:
        job = self.found.job
        return job is not None and job.side(side).place == place

    def _wrong(self, place: Place, workload: str | None) -> list[str]:
        checks = self.found.checks.get((side_name(*place), workload or ""), [])
        return list(dict.fromkeys(f"{c.distribution}: {c.failure}" for c in checks if not c.ok))

    def _drift(self, timing: Timing, role: str, place: Place) -> Verdict:
        """Time since the pinned commit, beside what has been accepted since then."""
        allowed = sum(entry.max for entry in self._accepted_since(place))
        return judge_pair(timing, role, self.limits, self.found.comparisons, allowed)

    def _since_pinned(self, timing: Timing | None, place: Place) -> Pair | None:
        """The pair with the pinned commit; the baseline's stands for it where both are the same code and launch."""
        if timing is None or self.pinned is None:
            return None
        then, old = (tree.outcome.run.entry(*place) for tree in (self.pinned, self.old))
        if pair := timing.pair(PINNED):
            return pair
        launches = [entry.launches.get(timing.workload) for entry in (then, old) if entry]
        same = then and old and launches[0] == launches[1] and self.workshop.history.same_code(then.build, old.build)
        return timing.pair(BASELINE) if same else None

    def _accepted_since(self, place: Place) -> list[Accepted]:
        """The slowdowns that were accepted after the pinned commit, and still are."""
        version, then = self.new.version(place), self.pinned.version(place) if self.pinned else None
        known = then.accept if then else []
        entries = version.accept if version else []
        return [e for e in entries if e.metric == TIME and e not in known and self.today <= e.until]

    def _regressions(
        self,
        row: DiffRow,
        workload: str | None,
        timing: Timing | None,
        verdict: Verdict,
        drifted: Interval | None,
    ) -> list[Regression]:
        version, same = self.new.version(row.place), self.workshop.history.same_code
        old, new = (str(entry.build) if entry else "None" for entry in (row.old, row.new))

        def regression(
            metric: str, text: str, amount: float, most: float, over: Callable[[float], bool] | None = None
        ) -> Regression:
            entries = version.accept if version else []
            accepted = acceptance(entries, metric, amount, (old, new), same, self.today, over)
            return Regression(metric=metric, text=text, amount=amount, limit=_up(most), accepted=accepted)

        judged = [*self._over_budget(row), *self._less_accurate(row.place, workload)]
        regressions = [
            regression(finding.rule.name.lower(), finding.text, finding.amount, finding.amount)
            for finding in [*row.findings, *overridden(judged, self._rules(row.place))]
            if finding.severity is Severity.REGRESSION
        ]
        pair = timing.pair(BASELINE) if timing else None
        if timing is not None and pair is not None and verdict is Verdict.SLOWER:
            amount, most = math.expm1(pair.time.value), math.expm1(pair.time.high)

            def over(accepted: float) -> bool:  # measured again, the same two codes differ by luck
                return judge_pair(timing, BASELINE, self.limits, self.found.comparisons, accepted) is Verdict.SLOWER

            regressions.append(regression(TIME, "slower than the baseline", amount, most, over))
        if drifted is not None and not any(r.metric == TIME and r.counts for r in regressions):
            # What was accepted is taken off already, so no entry is asked again. A new entry for this step replaces its old one.
            accepted = self._accepted_since(row.place)
            others = sum(e.max for e in accepted if not (same(e.from_, old) and same(e.to, new)))
            regressions.append(
                Regression(
                    metric=TIME,
                    text=f"slower than {self.ask.pinned}, by small steps",
                    amount=math.expm1(drifted.value) - sum(e.max for e in accepted),
                    limit=_up(math.expm1(drifted.high) - others),
                )
            )
        return regressions

    def _rules(self, place: Place) -> dict[str, str]:
        version = self.new.version(place)
        return {str(rule): severity for rule, severity in version.rules.items()} if version else {}

    def _over_budget(self, row: DiffRow) -> list[Finding]:
        """What breaks a budget now, and did not at the baseline. Unchanged versions are not asked again."""
        version, then = self.new.version(row.place), self.old.version(row.place)
        if version is None or row.new is None or row.new_build is None or row.verdict is Verdict.UNCHANGED:
            return []
        findings = []
        for name in Budgets.__struct_fields__:
            now = over_budget(_only(version.budgets, name), row.new_build, row.new)
            if then and row.old and row.old_build:
                before = over_budget(_only(then.budgets, name), row.old_build, row.old)
                now = [f for f in now if all(f.amount > known.amount for known in before)]
            findings += now
        return findings

    def _less_accurate(self, place: Place, workload: str | None) -> list[Finding]:
        name = side_name(*place)
        new = self.found.checks.get((name, workload or ""), [])
        old = self.found.checks.get((f"{name} {BASELINE}", workload or ""), [])
        return less_accurate(old, new, self.limits)

    def _cause(
        self, place: Place, timing: Timing | None, verdict: Verdict, regressions: Sequence[Regression]
    ) -> Cause | None:
        """With one toolchain: the source, or what moved the stored figures where nothing is slower side by side."""
        if verdict is Verdict.SLOWER or any(regression.counts for regression in regressions):
            return attribute(Verdict.SLOWER, None, None, machine_moved=False)
        if timing is None:
            return None
        stored = self._before.get(place)
        if stored is None or stored.timing is None or verdict is not Verdict.SAME:
            return None
        if (moved := _machine_moved(stored, timing)) is None or moved[0] < self.limits.time_detect:
            return None
        return attribute(verdict, None, None, machine_moved=moved[1] > self.limits.drift)

    def notes(self) -> list[str]:
        """Manifests that cannot be read, and accepted regressions that are about no build that is here any more."""
        same = self.workshop.history.same_code
        here: dict[str, list[str | None]] = {}
        for entry in self.new.outcome.run.entries:
            here.setdefault(entry.version, []).append(entry.build)
        pinned = self.pinned.manifests.versions if self.pinned else None

        def needed(version: Version, entry: Accepted) -> bool:
            if any(same(entry.to, build) for build in here.get(version.id, [])):
                return True
            then = pinned.get(version.id) if pinned is not None else None
            return pinned is not None and (then is None or entry not in then.accept)

        stale = [
            f"stale: {version.id} has an accepted regression of {entry.metric} to build {entry.to}, which is not here any more"
            for version in self.new.manifests.versions.values()
            if len(here.get(version.id, [])) == len(version.targets)  # else it may be about one that was not asked for
            for entry in version.accept
            if not needed(version, entry)
        ]
        return [*(str(error) for error in self.new.manifests.broken), *stale]


def _only(budgets: Budgets, name: str) -> Budgets:
    return Budgets(**{name: getattr(budgets, name)})


def _up(amount: float) -> float:
    """An amount with room to be measured again: to the next of three digits."""
    if amount <= 0 or amount == int(amount):
        return amount
    step = 10.0 ** (math.floor(math.log10(amount)) - 2)
    return round(math.ceil(amount / step) * step, 12)


def _machine_moved(stored: Measured, now: Timing) -> tuple[float, float] | None:
    """By how much the candidate's and the control's own time differ from the baseline's stored ones, as log ratios."""
    then = stored.timing
    if then is None or any(getattr(then, f) != getattr(now, f) for f in ("machine", "shape", "protocol", "regime")):
        return None
    controls = [(timing.ms.value, pair) for timing in (then, now) if (pair := timing.pair("control"))]
    if len({pair.build for _, pair in controls}) != 1 or len(controls) != 2:
        return None  # not interleaved with the same control
    before, after = (ms / math.exp(pair.time.value) for ms, pair in controls)
    return math.log(now.ms.value / then.ms.value), abs(math.log(after / before))
