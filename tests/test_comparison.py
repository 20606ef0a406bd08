"""The two axes: the ladder (version against parent) and the diff (commit against commit)."""

from __future__ import annotations

from pathlib import Path

import pytest

from faperf.comparison import DiffRow, LadderRow, diff, ladder
from faperf.history import History
from faperf.judge import Rule, Severity, Thresholds, Verdict
from faperf.manifest import Manifests, load_manifests
from faperf.project import Project
from faperf.record import Build, Run
from tests.conftest import REPOSITORY, UserProject
from tests.facts import build, entry, kernel, run

LIMITS = Thresholds()


def compare(old: Run, new: Run, *builds: Build) -> list[DiffRow]:
    return diff(old, new, {made.key: made for made in builds}, LIMITS)


def verdicts(rows: list[DiffRow]) -> dict[str, Verdict]:
    return {row.version: row.verdict for row in rows}


# ── diff ──


def test_the_same_build_is_unchanged() -> None:
    (row,) = compare(run(entry()), run(entry()), build())
    assert row.verdict is Verdict.UNCHANGED
    assert row.findings == []
    assert not row.regression


def test_another_build_of_the_same_code_is_unchanged() -> None:
    """A comment was changed: another build key, the same code and launch."""
    (row,) = compare(run(entry(build="a")), run(entry(build="b")), build(key="a"), build(key="b"))
    assert row.verdict is Verdict.UNCHANGED


def test_changed_code_is_unmeasured_and_judged_statically() -> None:
    old, new = build(key="a", code="1"), build(kernel(spill_stores=8), key="b", code="2")
    (row,) = compare(run(entry(build="a")), run(entry(build="b")), old, new)
    assert row.verdict is Verdict.UNMEASURED
    assert [(finding.rule, finding.severity) for finding in row.findings] == [(Rule.SPILLS, Severity.REGRESSION)]
    assert row.regression
    assert (row.old_build, row.new_build) == (old, new)


def test_changed_code_without_a_finding_is_no_regression() -> None:
    (row,) = compare(run(entry(build="a")), run(entry(build="b")), build(key="a", code="1"), build(key="b", code="2"))
    assert (row.verdict, row.findings, row.regression) == (Verdict.UNMEASURED, [], False)


def test_only_the_launch_changed() -> None:
    """Same code at another launch is not the same kernel; occupancy may tell, the rest of the code cannot."""
    before, after = entry(launches={"w": "1"}), entry(launches={"w": "2"})
    (row,) = compare(run(before), run(after), build())
    assert (row.verdict, row.findings) == (Verdict.UNMEASURED, [])
    fewer = entry(launches={"w": "2"}, ctas_per_sm=0)
    (row,) = compare(run(before), run(fewer), build())
    assert [finding.rule for finding in row.findings] == [Rule.OCCUPANCY]
    assert row.regression


def test_one_launch_of_several_changed() -> None:
    before, after = entry(launches={"v": "1", "w": "1"}), entry(launches={"v": "1", "w": "2"})
    assert compare(run(before), run(after), build())[0].verdict is Verdict.UNMEASURED


def test_between_commits_less_occupancy_is_a_regression() -> None:
    old, new = build(key="a", code="1"), build(key="b", code="2")
    (row,) = compare(run(entry(build="a", ctas_per_sm=2)), run(entry(build="b", ctas_per_sm=1)), old, new)
    assert row.regression


def test_new_and_gone() -> None:
    rows = compare(run(entry("v1"), entry("v2")), run(entry("v2"), entry("v3")), build())
    assert verdicts(rows) == {"v1": Verdict.GONE, "v2": Verdict.UNCHANGED, "v3": Verdict.NEW}
    gone, _, new = rows
    assert (gone.new, gone.new_build, gone.findings) == (None, None, [])
    assert (new.old, new.old_build, new.findings) == (None, None, [])
    assert not any(row.regression for row in rows)


def test_broken() -> None:
    """Built before, does not now."""
    (row,) = compare(run(entry()), run(entry(build=None, error="does not compile")), build())
    assert row.verdict is Verdict.BROKEN
    assert row.new is not None
    assert row.new.error == "does not compile"


def test_mended() -> None:
    (row,) = compare(run(entry(build=None, error="does not compile")), run(entry()), build())
    assert row.verdict is Verdict.INCOMPARABLE


def test_broken_though_the_baselines_record_is_lost() -> None:
    assert compare(run(entry(build="lost")), run(entry(build=None, error="x")))[0].verdict is Verdict.BROKEN


def test_broken_on_both_sides() -> None:
    failed = entry(build=None, error="does not compile")
    assert compare(run(failed), run(failed))[0].verdict is Verdict.INCOMPARABLE


def test_a_new_version_that_does_not_build_is_new() -> None:
    assert compare(run(), run(entry(build=None, error="x")))[0].verdict is Verdict.NEW


def test_the_baselines_build_record_is_lost() -> None:
    (row,) = compare(run(entry(build="lost")), run(entry()), build())
    assert row.verdict is Verdict.INCOMPARABLE


def test_the_new_build_record_is_lost() -> None:
    (row,) = compare(run(entry()), run(entry(build="lost")), build())
    assert row.verdict is Verdict.INCOMPARABLE


def test_targets_are_compared_each_with_its_own() -> None:
    old = run(entry(target="sm_90a", build="a"), entry(target="sm_103a", build="b"))
    new = run(entry(target="sm_90a", build="a"), entry(target="sm_103a", build="c"))
    made = [build(key=key, code=key) for key in "abc"]
    rows = compare(old, new, *made)
    assert [(row.target, row.verdict) for row in rows] == [
        ("sm_103a", Verdict.UNMEASURED),
        ("sm_90a", Verdict.UNCHANGED),
    ]


def test_rows_are_in_ladder_order() -> None:
    versions = ("v16-i16", "v9", "v16", "v12")
    rows = compare(run(*map(entry, versions)), run(*map(entry, versions)), build())
    assert [row.version for row in rows] == ["v9", "v12", "v16", "v16-i16"]


def test_nothing_to_compare() -> None:
    assert compare(run(), run()) == []


def test_a_version_that_a_partial_run_left_out_is_neither_gone_nor_new() -> None:
    some, all_ = run(entry("v1"), partial=True), run(entry("v1"), entry("v2"))
    for old, new in ((all_, some), (some, all_)):
        assert verdicts(compare(old, new, build())) == {"v1": Verdict.UNCHANGED, "v2": Verdict.INCOMPARABLE}


def test_a_renamed_workload_changes_nothing() -> None:
    (row,) = compare(run(entry(launches={"published": "1"})), run(entry(launches={"renamed": "1"})), build())
    assert row.verdict is Verdict.UNCHANGED


# ── ladder ──


@pytest.fixture
def manifests(bare: UserProject) -> Manifests:
    """v1 ← v2 ← v3 for sm_90a, with a register budget on v3."""
    bare.version("v1")
    bare.version("v2", "v1")
    bare.version("v3", "v2")
    bare.edit("manifests/v3.yaml", "tile:", "budgets: {registers: 100}\ntile:")
    return load_manifests(bare.project)


def climb(manifests: Manifests, made: Run | None, *builds: Build, target: str = "sm_90a") -> dict[str, LadderRow]:
    rows = ladder(target, manifests, made, {b.key: b for b in builds}, [], LIMITS)
    return {row.version: row for row in rows}


def test_a_version_is_compared_with_its_parent(manifests: Manifests) -> None:
    made = run(*(entry(f"v{n}", build=f"b{n}", target="sm_90a") for n in (1, 2, 3)))
    builds = [
        build(kernel(registers=64), key="b1", code="1"),
        build(kernel(registers=64, spill_stores=8), key="b2", code="2"),
        build(kernel(registers=100), key="b3", code="3"),
    ]
    rows = climb(manifests, made, *builds)
    assert list(rows) == ["v1", "v2", "v3"]
    assert rows["v1"].findings == []
    assert [finding.text for finding in rows["v2"].findings] == ["spills appear: 0 → 8 bytes"]
    assert [finding.rule for finding in rows["v3"].findings] == [Rule.REGISTERS, Rule.SPILLS]
    assert [rows[name].flagged for name in rows] == [False, True, True]
    assert (rows["v2"].parent, rows["v2"].change) == ("v1", "version v2")
    assert (rows["v2"].build, rows["v2"].reported) == (builds[1], None)


def test_gains_alone_are_not_flagged(manifests: Manifests) -> None:
    made = run(entry("v1", build="b1", target="sm_90a"), entry("v2", build="b2", target="sm_90a"))
    rows = climb(manifests, made, build(kernel(spill_stores=8), key="b1", code="1"), build(key="b2", code="2"))
    assert [finding.severity for finding in rows["v2"].findings] == [Severity.GAIN]
    assert not rows["v2"].flagged


def test_a_parents_occupancy_is_a_warning(manifests: Manifests) -> None:
    made = run(
        entry("v1", build="b1", target="sm_90a", ctas_per_sm=2), entry("v2", build="b2", target="sm_90a", ctas_per_sm=1)
    )
    rows = climb(manifests, made, build(key="b1", code="1"), build(key="b2", code="2"))
    assert [(f.rule, f.severity) for f in rows["v2"].findings] == [(Rule.OCCUPANCY, Severity.WARNING)]


def test_a_budget_counts_without_a_parent_that_was_built(manifests: Manifests) -> None:
    rows = climb(manifests, run(entry("v3", build="b3", target="sm_90a")), build(kernel(registers=101), key="b3"))
    assert [finding.text for finding in rows["v3"].findings] == ["101 registers, over the budget of 100"]
    assert rows["v3"].flagged
    assert rows["v1"].entry is None


def test_nothing_was_run(manifests: Manifests) -> None:
    rows = climb(manifests, None)
    assert list(rows) == ["v1", "v2", "v3"]
    assert all(row.entry is None and row.build is None and row.findings == [] for row in rows.values())


def test_a_version_that_did_not_build_keeps_its_row(manifests: Manifests) -> None:
    failed = entry("v2", build=None, error="does not compile", target="sm_90a")
    rows = climb(manifests, run(entry("v1", target="sm_90a"), failed), build())
    assert rows["v2"].entry == failed
    assert (rows["v2"].build, rows["v2"].findings) == (None, [])


def test_a_target_has_its_own_ladder(manifests: Manifests) -> None:
    assert climb(manifests, None, target="sm_103a") == {}


def test_a_parent_for_another_target_is_no_baseline(manifests: Manifests) -> None:
    made = run(entry("v1", build="b1", target="sm_103a"), entry("v2", build="b2", target="sm_90a"))
    rows = climb(manifests, made, build(key="b1", code="1"), build(kernel(spill_stores=8), key="b2", code="2"))
    assert rows["v2"].findings == []


def test_the_published_ladder_without_a_manifest(tmp_path: Path) -> None:
    reported = History(Project(REPOSITORY)).reported()
    rows = ladder("sm_103a", Manifests({}, {}), None, {}, reported, LIMITS)
    assert [row.version for row in rows] == [
        "v12", "v13", "v14", "v15", "v16", "v16-i16", "v16-l32", "v17", "v18", "v19", "v20",
    ]  # fmt: skip
    assert [row.version for row in rows if row.flagged] == ["v14", "v17", "v18", "v19", "v20"]
    changes = {row.version: row.reported_verdict for row in rows}
    assert changes["v17"] is not None
    assert changes["v17"].change == pytest.approx(-0.138, abs=5e-4)
    assert rows[-1].parent == "v19"
    assert ladder("sm_90a", Manifests({}, {}), None, {}, reported, LIMITS) == []


def test_published_and_own_versions_stand_on_one_ladder(bare: UserProject) -> None:
    """The manifest's parent and title count; the published verdict is against the published parent."""
    bare.version("v17", "v16")
    bare.edit("manifests/v17.yaml", "[sm_90a]", "[sm_103a]")
    bare.version("v16-t64", "v16")
    bare.edit("manifests/v16-t64.yaml", "[sm_90a]", "[sm_103a]")
    reported = History(Project(REPOSITORY)).reported()
    rows = {row.version: row for row in ladder("sm_103a", load_manifests(bare.project), None, {}, reported, LIMITS)}
    assert len(rows) == 12
    assert (rows["v17"].parent, rows["v17"].change) == ("v16", "version v17")
    verdict = rows["v17"].reported_verdict
    assert verdict is not None
    assert verdict.change == pytest.approx(-0.138, abs=5e-4)
    assert rows["v16-t64"].reported is None
