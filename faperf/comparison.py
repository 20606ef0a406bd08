"""The two axes: a version against its parent (the ladder), and a commit against another (the diff)."""

import datetime
import enum
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from faperf.judge import (
    Acceptance,
    Cause,
    Finding,
    ReportedVerdict,
    Severity,
    Status,
    Thresholds,
    Verdict,
    compare_reported,
    compare_static,
    compare_tensor_work,
    judge_pair,
    less_accurate,
    less_accurate_emulated,
    over_budget,
    stored_change,
)
from faperf.manifest import Manifests, in_ladder_order, ladder_key
from faperf.record import Build, Check, EmulatorVerdict, Entry, Interval, Place, Reported, ReportedLadder, Run, Timing

Builds = Mapping[str, Build]
"""Build records by build key."""


class Measured(msgspec.Struct, frozen=True):
    """What silicon said of a build and launch on one workload. `carried` when an earlier run measured it."""

    workload: str
    checks: list[Check]
    timing: Timing | None
    carried: bool = False

    @property
    def failures(self) -> list[Check]:
        return [check for check in self.checks if not check.ok]


Silicon = Mapping[tuple[str, str], Measured]
"""Measured figures by (version, target)."""


Elsewhere = Mapping[tuple[str, str], str]
"""The commit of each (version, target) that the newest run lacks and an earlier one has."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What a run knows of a version × target on one workload; `timing` is None where it was not measured."""

    version: str
    target: str
    workload: str | None
    run: Run
    entry: Entry
    build: Build | None
    timing: Timing | None = None
    carried: bool = False


class LadderRow(msgspec.Struct, frozen=True):
    """A version on the ladder. `entry` and `build` are None when it was not built; `reported` when nobody published it."""

    version: str
    parent: str | None
    change: str
    entry: Entry | None
    build: Build | None
    findings: list[Finding]
    reported: Reported | None
    reported_verdict: ReportedVerdict | None
    measured: Measured | None = None
    time_verdict: Verdict | None = None
    less_accurate: list[Finding] = []

    @property
    def flagged(self) -> bool:
        """Whether the row has something that a reader must see: a regression, measured statically or reported."""
        reported = self.reported_verdict
        wrong = self.measured is not None and bool(self.measured.failures)
        emulated = self.entry.emulated if self.entry else None
        wrong = wrong or bool(emulated and emulated.verdict is not EmulatorVerdict.RIGHT)
        published = reported is not None and (reported.regression or reported.less_accurate)
        noted = any(finding.severity is not Severity.GAIN for finding in self.findings)
        noted = noted or bool(self.less_accurate)
        return noted or published or wrong or self.time_verdict in (Verdict.SLOWER, Verdict.INCOMPARABLE)


def ladder(
    target: str,
    manifests: Manifests,
    run: Run | None,
    builds: Builds,
    reported: Iterable[ReportedLadder],
    thresholds: Thresholds,
    silicon: Silicon | None = None,
) -> list[LadderRow]:
    """Every version that has a manifest for `target` or published figures on it, in ladder order."""
    published = {row.version: row for file in reported if file.target == target for row in file.rows}
    own = {name: version for name, version in manifests.versions.items() if target in version.targets}

    def built(name: str | None) -> tuple[Entry | None, Build | None]:
        entry = run.entry(name, target) if run and name else None
        return entry, builds.get(entry.build or "") if entry else None

    rows = []
    parents = {name: row.parent for name, row in published.items()} | {name: v.parent for name, v in own.items()}
    for name in in_ladder_order(parents):
        version, row, parent = own.get(name), published.get(name), parents[name]
        entry, build = built(name)
        parent_entry, parent_build = built(parent)
        findings: list[Finding] = []
        if entry and build and parent_entry and parent_build:
            findings += compare_static(parent_build, parent_entry, build, entry, thresholds, same_version=False)
        if build and parent_build and version and (older := own.get(parent or "")):
            tiles = [each.tile.m * each.tile.n for each in (older, version)]
            findings += compare_tensor_work(parent_build, tiles[0], build, tiles[1], thresholds)
        if entry and build and version:
            findings += over_budget(version.budgets, build, entry)
        measured = (silicon or {}).get((name, target))
        timing = measured.timing if measured else None
        pair = timing.pair("parent") if timing else None
        outdated = pair is not None and parent_build is not None and not _same_code(pair.build, parent_build, builds)
        theirs = (silicon or {}).get((parent or "", target))
        worse: list[Finding] = []
        if measured:
            worse = less_accurate(theirs.checks, measured.checks, thresholds) if theirs else []
        elif entry and parent_entry:
            worse = less_accurate_emulated(parent_entry, entry, thresholds)
        rows.append(
            LadderRow(
                version=name,
                parent=parent,
                change=version.title if version else row.change if row else "",
                entry=entry,
                build=build,
                findings=findings,
                reported=row,
                reported_verdict=compare_reported(row, published.get(row.parent or ""), thresholds) if row else None,
                measured=measured,
                time_verdict=_against_parent(timing, outdated, thresholds) if timing else None,
                less_accurate=worse,
            )
        )
    return rows


def _same_code(key: str, build: Build, builds: Builds) -> bool:
    known = builds.get(key)
    return key == build.key or (known is not None and known.code == build.code)


def _against_parent(timing: Timing, outdated: bool, thresholds: Thresholds) -> Verdict:
    """A carried timing against a parent that has changed since says nothing of the parent that is here."""
    return Verdict.UNMEASURED if outdated else judge_pair(timing, "parent", thresholds)


class DiffRow(msgspec.Struct, frozen=True):
    """One version × target on two commits."""

    version: str
    target: str
    verdict: Verdict
    old: Entry | None
    new: Entry | None
    old_build: Build | None
    new_build: Build | None
    findings: list[Finding]
    time_change: Interval | None = None
    time_basis: str = ""

    @property
    def place(self) -> Place:
        return self.version, self.target

    @property
    def regression(self) -> bool:
        return self.verdict is Verdict.SLOWER or any(
            finding.severity is Severity.REGRESSION for finding in self.findings
        )


def diff(
    old: Run,
    new: Run,
    builds: Builds,
    thresholds: Thresholds,
    old_silicon: Silicon | None = None,
    new_silicon: Silicon | None = None,
) -> list[DiffRow]:
    """Version by version: NEW, GONE, BROKEN (built before, does not now), UNCHANGED (same code and launch), or changed.

    INCOMPARABLE where a side is not known: it did not build, its record is lost, or a partial run left it out. A changed
    version's time is judged by stored figures, through a common partner (`time_basis` "stored, through …"); without them it is
    UNMEASURED. Its `findings` say what the compiler made of it.
    """
    names = {entry.place for run in (old, new) for entry in run.entries}
    rows = []
    for version, target in sorted(names, key=lambda name: (ladder_key(name[0]), name[1])):
        before, after = old.entry(version, target), new.entry(version, target)
        old_build = builds.get(before.build or "") if before else None
        new_build = builds.get(after.build or "") if after else None
        row = diff_row(version, target, before, after, old_build, new_build, thresholds)
        if (before is None and old.partial) or (after is None and new.partial):
            row = msgspec.structs.replace(row, verdict=Verdict.INCOMPARABLE)
        was, now = ((silicon or {}).get((version, target)) for silicon in (old_silicon, new_silicon))
        if row.verdict is Verdict.UNMEASURED and was and now and was.timing and now.timing:
            verdict, change, partner = stored_change(was.timing, now.timing, thresholds)
            basis = f"stored, through {partner}" if partner else "stored"
            row = msgspec.structs.replace(row, verdict=verdict, time_change=change, time_basis=basis)
        rows.append(row)
    return rows


def rerun(rows: Iterable[DiffRow], timings: Iterable[Timing], thresholds: Thresholds) -> list[DiffRow]:
    """`rows` with the verdicts of both commits' builds interleaved here, where there is such a timing."""
    by_builds = {(pair.build, timing.build): (timing, pair) for timing in timings if (pair := timing.pair("baseline"))}
    judged = []
    for row in rows:
        keys = (row.old_build.key, row.new_build.key) if row.old_build and row.new_build else ("", "")
        if keys in by_builds:
            timing, pair = by_builds[keys]
            verdict = judge_pair(timing, "baseline", thresholds)
            row = msgspec.structs.replace(row, verdict=verdict, time_change=pair.time, time_basis="rerun")
        judged.append(row)
    return judged


def diff_row(
    version: str,
    target: str,
    before: Entry | None,
    after: Entry | None,
    old_build: Build | None,
    new_build: Build | None,
    thresholds: Thresholds,
) -> DiffRow:
    """One row of `diff`, without stored figures."""
    findings: list[Finding] = []
    if before is None:
        verdict = Verdict.NEW
    elif after is None:
        verdict = Verdict.GONE
    elif before.build is not None and after.build is None:
        verdict = Verdict.BROKEN
    elif old_build is None or new_build is None:
        verdict = Verdict.INCOMPARABLE
    elif old_build.code == new_build.code and set(before.launches.values()) == set(after.launches.values()):
        verdict = Verdict.UNCHANGED
    else:
        verdict = Verdict.UNMEASURED
        findings = compare_static(old_build, before, new_build, after, thresholds, same_version=True)
    return DiffRow(version, target, verdict, before, after, old_build, new_build, findings)


# ── the gate ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Regression(msgspec.Struct, frozen=True, kw_only=True):
    """Something that got worse, in a metric of `judge.METRICS`. `limit` is what `faperf accept` would allow for it.

    `accepted` is what the manifest's `accept` says of it, if it does.
    """

    metric: str
    text: str
    amount: float
    limit: float
    accepted: Acceptance | None = None

    @property
    def counts(self) -> bool:
        return self.accepted is None or not self.accepted.covers


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be said at a place of the sources. `rule` is a metric, or compile, manifest or wrong result.

    `file` is relative to the project; `line` is None where the whole file is meant. `level`: error for what fails the gate,
    note for what is accepted. `new`: it was not so at the baseline.
    """

    level: Literal["error", "warning", "note"]
    rule: str
    text: str
    file: str
    line: int | None = None
    new: bool = True


class GateRow(msgspec.Struct, frozen=True, kw_only=True):
    """A version × target × workload at the gate.

    `verdict` is of time against the baseline, interleaved; `pinned` of time since the pinned commit. `wrong` says what is
    wrong with the result. `tflops` is measured here, or `carried` from the last run that measured this code.
    """

    version: str
    target: str
    workload: str | None
    status: Status
    verdict: Verdict
    old_build: str | None = None
    new_build: str | None = None
    change: Interval | None = None
    pinned: Verdict | None = None
    since_pinned: Interval | None = None
    regressions: list[Regression] = []
    notes: list[str] = []
    wrong: list[str] = []
    error: str | None = None
    cause: Cause | None = None
    tflops: float | None = None
    carried: bool = False
    annotations: list[Annotation] = []

    @property
    def place(self) -> Place:
        return self.version, self.target


class GateReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `faperf gate` found. `unmeasured` says why there are no times; `notes` what concerns the whole.

    `command` asks the same again; `folder` is the project's in its repository, where it is not its root.
    """

    schema: int
    baseline: str
    head: str | None
    dirty: list[str]
    pinned: str | None
    toolchains: list[str]
    unmeasured: str | None
    status: Status
    rows: list[GateRow]
    notes: list[str] = []
    command: str = "faperf gate"
    folder: str = ""


# ── a bisection ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Fate(enum.StrEnum):
    """What a step of a bisection found of a commit."""

    FINE = "fine"
    WORSE = "worse"
    SKIPPED = "skipped"


class Commit(msgspec.Struct, frozen=True):
    """A commit as people name it. `date` is the author's."""

    hash: str
    subject: str
    date: datetime.datetime


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a commit is worse than the good one, and by what evidence. `why` is for one that was skipped.

    `change` is of time, interleaved with the good commit's build, with its verdict on one workload.
    """

    fate: Fate
    why: str | None = None
    workload: str | None = None
    verdict: Verdict | None = None
    change: Interval | None = None
    findings: list[Finding] = []


class BisectStep(msgspec.Struct, frozen=True):
    """A commit that was looked at. `same_as` names the tested one whose code and launch it has, where there is one."""

    commit: Commit
    judgement: Judgement
    same_as: str | None = None


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """What `faperf bisect` found. `steps` begins with the bad end.

    `first` is the commit that made the version worse, `predecessor` the last one that was fine, `diff` what changed between
    them by static facts, `sass` by the instructions of kernel `kernel` (a unified diff). Where only skipped commits remain,
    `candidates` are the commits of which one is guilty, and `first` is None.
    """

    schema: int
    version: str
    target: str
    metric: str
    good: Commit
    bad: Commit
    commits: int
    status: Status
    steps: list[BisectStep]
    first: Commit | None = None
    predecessor: Commit | None = None
    judgement: Judgement | None = None
    candidates: list[Commit] = []
    diff: DiffRow | None = None
    kernel: str | None = None
    sass: list[str] = []
    sass_file: str | None = None
