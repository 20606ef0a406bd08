"""The two axes: a version against its parent (the ladder), and a commit against another (the diff)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from faperf.judge import (
    Finding,
    ReportedVerdict,
    Severity,
    Thresholds,
    Verdict,
    compare_reported,
    compare_static,
    over_budget,
)
from faperf.manifest import Manifests, ladder_key
from faperf.record import Build, Entry, Reported, ReportedLadder, Run

Builds = Mapping[str, Build]
"""Build records by build key."""


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

    @property
    def flagged(self) -> bool:
        """Whether the row has something that a reader must see: a regression, measured statically or reported."""
        reported = self.reported_verdict
        return any(f.severity is not Severity.GAIN for f in self.findings) or bool(
            reported and (reported.regression or reported.less_accurate)
        )


def ladder(
    target: str,
    manifests: Manifests,
    run: Run | None,
    builds: Builds,
    reported: Iterable[ReportedLadder],
    thresholds: Thresholds,
) -> list[LadderRow]:
    """Every version that has a manifest for `target` or published figures on it, in the order of their ids."""
    published = {row.version: row for file in reported if file.target == target for row in file.rows}
    own = {name: version for name, version in manifests.versions.items() if target in version.targets}

    def built(name: str | None) -> tuple[Entry | None, Build | None]:
        entry = run.entry(name, target) if run and name else None
        return entry, builds.get(entry.build or "") if entry else None

    rows = []
    for name in sorted({*published, *own}, key=ladder_key):
        version, row = own.get(name), published.get(name)
        parent = version.parent if version else row.parent if row else None
        entry, build = built(name)
        parent_entry, parent_build = built(parent)
        findings: list[Finding] = []
        if entry and build and parent_entry and parent_build:
            findings += compare_static(parent_build, parent_entry, build, entry, thresholds, same_version=False)
        if entry and build and version:
            findings += over_budget(version.budgets, build, entry)
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
            )
        )
    return rows


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

    @property
    def regression(self) -> bool:
        return any(finding.severity is Severity.REGRESSION for finding in self.findings)


def diff(old: Run, new: Run, builds: Builds, thresholds: Thresholds) -> list[DiffRow]:
    """Version by version: NEW, GONE, BROKEN (built before, does not now), UNCHANGED (same code and launch), or changed.

    A changed version is UNMEASURED in time; its `findings` say what the compiler made of it.
    """
    names = {(entry.version, entry.target) for run in (old, new) for entry in run.entries}
    rows = []
    for version, target in sorted(names, key=lambda name: (ladder_key(name[0]), name[1])):
        before, after = old.entry(version, target), new.entry(version, target)
        old_build = builds.get(before.build or "") if before else None
        new_build = builds.get(after.build or "") if after else None
        rows.append(_diff_row(version, target, before, after, old_build, new_build, thresholds))
    return rows


def _diff_row(
    version: str,
    target: str,
    before: Entry | None,
    after: Entry | None,
    old_build: Build | None,
    new_build: Build | None,
    thresholds: Thresholds,
) -> DiffRow:
    findings: list[Finding] = []
    if before is None:
        verdict = Verdict.NEW
    elif after is None:
        verdict = Verdict.GONE
    elif new_build is None:
        verdict = Verdict.BROKEN if old_build is not None else Verdict.INCOMPARABLE
    elif old_build is None:
        verdict = Verdict.INCOMPARABLE
    elif old_build.code == new_build.code and before.launches == after.launches:
        verdict = Verdict.UNCHANGED
    else:
        verdict = Verdict.UNMEASURED
        findings = compare_static(old_build, before, new_build, after, thresholds, same_version=True)
    return DiffRow(version, target, verdict, before, after, old_build, new_build, findings)
