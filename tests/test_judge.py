"""Verdicts: each rule on both sides of its threshold, and the published ladder with figures worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from faperf.errors import ConfigError
from faperf.history import History
from faperf.judge import (
    Finding,
    Rule,
    Severity,
    Thresholds,
    Verdict,
    compare_reported,
    compare_static,
    over_budget,
    thresholds_from,
)
from faperf.manifest import Budgets
from faperf.project import Project
from faperf.record import Build, Entry, KernelFacts, Reported, replace
from tests.conftest import REPOSITORY
from tests.facts import build, entry, kernel

REGRESSION, WARNING, GAIN = Severity.REGRESSION, Severity.WARNING, Severity.GAIN


def compare(
    old: Build | KernelFacts,
    new: Build | KernelFacts,
    *,
    old_entry: Entry | None = None,
    new_entry: Entry | None = None,
    limits: Thresholds | None = None,
    same_version: bool = True,
) -> list[Finding]:
    """`compare_static` of two builds, or of two kernels alone in builds of different code."""
    old = build(old, code="old") if isinstance(old, KernelFacts) else old
    new = build(new, code="new") if isinstance(new, KernelFacts) else new
    return compare_static(
        old, old_entry or entry(), new, new_entry or entry(), limits or Thresholds(), same_version=same_version
    )


def kinds(findings: list[Finding]) -> list[tuple[Rule, Severity]]:
    return [(finding.rule, finding.severity) for finding in findings]


Facts = dict[str, Any]
HMMA, UTCHMMA = {"path": "HMMA"}, {"path": "UTCHMMA"}

# (what was, what is, the findings); each rule fires and, one step before its threshold, does not.
RULES: list[tuple[Facts, Facts, list[tuple[Rule, Severity]]]] = [
    ({}, {}, []),
    # spills, by one instruction of 4 bytes
    ({}, {"spill_stores": 4}, [(Rule.SPILLS, REGRESSION)]),
    ({}, {"spill_loads": 4}, [(Rule.SPILLS, REGRESSION)]),
    ({"spill_stores": 4, "spill_loads": 4}, {"spill_stores": 8, "spill_loads": 4}, [(Rule.SPILLS, REGRESSION)]),
    ({"spill_stores": 8}, {"spill_stores": 4, "spill_loads": 4}, []),
    ({"spill_stores": 8}, {"spill_stores": 4}, [(Rule.SPILLS, GAIN)]),
    ({"spill_stores": 8}, {}, [(Rule.SPILLS, GAIN)]),
    # local memory in the main loop
    ({}, {"main_loop": {"LDL": 1}}, [(Rule.LOOP_LOCAL_MEMORY, REGRESSION)]),
    ({}, {"main_loop": {"STL": 1}}, [(Rule.LOOP_LOCAL_MEMORY, REGRESSION)]),
    ({"main_loop": {"LDL": 1}}, {"main_loop": {"LDL": 1, "STL": 1}}, [(Rule.LOOP_LOCAL_MEMORY, REGRESSION)]),
    ({"main_loop": {"LDL": 2}}, {"main_loop": {"LDL": 1, "STL": 1}}, []),
    ({"main_loop": {"LDL": 2}}, {}, []),
    ({}, {"opcodes": {"LDL": [4]}}, []),  # outside the loop
    # the register cap
    ({"registers": 127}, {"registers": 128}, [(Rule.CAP_REACHED, WARNING)]),
    ({"registers": 126}, {"registers": 127}, []),
    ({"registers": 128}, {"registers": 128}, []),
    ({"registers": 128}, {"registers": 127}, []),
    ({"registers": 120}, {"registers": 120, "register_cap": 120}, [(Rule.CAP_REACHED, WARNING)]),  # a new, lower cap
    # registers, 16 by default
    ({"registers": 96}, {"registers": 111}, []),
    ({"registers": 96}, {"registers": 112}, [(Rule.REGISTERS, WARNING)]),
    ({"registers": 111}, {"registers": 96}, []),
    ({"registers": 112}, {"registers": 96}, [(Rule.REGISTERS, GAIN)]),
    # the tensor path
    (UTCHMMA, HMMA, [(Rule.TENSOR_PATH, REGRESSION)]),
    (UTCHMMA, {"path": "HMMA+UTCHMMA"}, [(Rule.TENSOR_PATH, REGRESSION)]),
    ({"path": "HGMMA"}, HMMA, [(Rule.TENSOR_PATH, REGRESSION)]),
    (HMMA, {}, [(Rule.TENSOR_PATH, REGRESSION)]),
    (HMMA, UTCHMMA, [(Rule.TENSOR_PATH, GAIN)]),
    ({"path": "HMMA+UTCHMMA"}, UTCHMMA, [(Rule.TENSOR_PATH, GAIN)]),
    (HMMA, {"path": "HMMA+UTCHMMA"}, []),  # v13 → v14: the slower half is as it was
    ({}, HMMA, []),
    (UTCHMMA, UTCHMMA, []),
    # MMA shapes
    (
        UTCHMMA | {"mma_shapes": {"f16 128x64x16": 8}},
        UTCHMMA | {"mma_shapes": {"f16 64x64x16": 16}},
        [(Rule.MMA_SHAPE, REGRESSION)],
    ),
    (
        UTCHMMA | {"mma_shapes": {"f16 128x64x16": 8, "f16 64x64x16": 8}},
        UTCHMMA | {"mma_shapes": {"f16 64x64x16": 8}},
        [(Rule.MMA_SHAPE, REGRESSION)],
    ),
    (UTCHMMA | {"mma_shapes": {"f16 64x64x16": 8}}, UTCHMMA | {"mma_shapes": {"f16 128x64x16": 8}}, []),
    (UTCHMMA | {"mma_shapes": {"f16 128x64x16": 8}}, UTCHMMA | {"mma_shapes": {"f16 64x128x16": 8}}, []),
    # a path that steps down tells more than the shapes of another instruction
    (
        UTCHMMA | {"mma_shapes": {"f16 128x64x16": 8}},
        HMMA | {"mma_shapes": {"16x8x16": 8}},
        [(Rule.TENSOR_PATH, REGRESSION)],
    ),
    # uniformity and divergence: twice as many and at least 4 more
    ({"main_loop": {"R2UR": 4}}, {"main_loop": {"R2UR": 8}}, [(Rule.UNIFORMITY, WARNING)]),
    ({"main_loop": {"R2UR": 4}}, {"main_loop": {"R2UR": 7}}, []),
    ({"main_loop": {"R2UR": 3}}, {"main_loop": {"R2UR": 6}}, []),  # twice, but 3 more
    ({"main_loop": {"R2UR": 9}}, {"main_loop": {"R2UR": 17}}, []),  # 8 more, but not twice
    ({}, {"main_loop": {"R2UR": 4}}, [(Rule.UNIFORMITY, WARNING)]),
    ({}, {"main_loop": {"R2UR": 3}}, []),
    ({}, {"main_loop": {"BSSY": 4}}, [(Rule.DIVERGENCE, WARNING)]),
    # v18 as it was compiled: BSSY 3 → 7, R2UR 9 → 49, registers 80 → 128 of 128
    (
        {"registers": 80, "main_loop": {"BSSY": 3, "R2UR": 9, "SYNCS": 5}},
        {"registers": 128, "main_loop": {"BSSY": 7, "R2UR": 49, "SYNCS": 5}},
        [
            (Rule.CAP_REACHED, WARNING),
            (Rule.REGISTERS, WARNING),
            (Rule.UNIFORMITY, WARNING),
            (Rule.DIVERGENCE, WARNING),
        ],
    ),
]


@pytest.mark.parametrize(("was", "now", "expected"), RULES)
def test_rule(was: Facts, now: Facts, expected: list[tuple[Rule, Severity]]) -> None:
    assert kinds(compare(kernel(**was), kernel(**now))) == expected


@pytest.mark.parametrize(
    ("was", "now", "text"),
    [
        ({}, {"spill_stores": 4, "spill_loads": 8}, "spills appear: 0 → 12 bytes"),
        ({"spill_stores": 4}, {"spill_stores": 8}, "spills grow: 4 → 8 bytes"),
        ({"spill_stores": 4}, {}, "spills shrink: 4 → 0 bytes"),
        ({}, {"main_loop": {"LDL": 2, "STL": 3}}, "0 → 5 LDL/STL in the main loop"),
        ({"registers": 120}, {"registers": 128}, "registers at their cap: 120 → 128 of 128"),
        (HMMA, {}, "tensor path steps down: HMMA → none"),
        (
            {"main_loop": {"R2UR": 9}},
            {"main_loop": {"R2UR": 49}},
            "R2UR in the main loop 9 → 49: values that were uniform",
        ),
    ],
)
def test_the_evidence_is_in_the_text(was: Facts, now: Facts, text: str) -> None:
    (finding,) = compare(kernel(**was), kernel(**now))
    assert finding.text.startswith(text)


def test_the_same_code_has_no_findings() -> None:
    """Facts cannot differ where the code is the same; should a record say so, the code is believed."""
    assert compare(build(kernel(), code="c"), build(kernel(spill_stores=8), code="c")) == []


def test_worst_first() -> None:
    was = kernel(registers=112, main_loop={"LDL": 0}, **HMMA)
    now = kernel(registers=96, spill_stores=4, main_loop={"BSSY": 4}, **UTCHMMA)
    found = kinds(compare(was, now))
    assert [severity for _, severity in found] == [REGRESSION, WARNING, GAIN, GAIN]


def test_kernels_are_matched_by_name_then_by_place() -> None:
    old = build(kernel("a", spill_stores=8), kernel("b"), code="old")
    assert compare(old, build(kernel("b"), kernel("a", spill_stores=8), code="new")) == []
    assert kinds(compare(old, build(kernel("b", spill_stores=8), kernel("a", spill_stores=8), code="new"))) == [
        (Rule.SPILLS, REGRESSION)
    ]
    renamed = build(kernel("a2", spill_stores=12), kernel("b"), code="new")
    assert kinds(compare(old, renamed)) == [(Rule.SPILLS, REGRESSION)]


def test_a_further_kernel_has_nothing_to_be_compared_with() -> None:
    old, new = build(kernel("a"), code="old"), build(kernel("a"), kernel("b", spill_stores=8), code="new")
    assert compare(old, new) == []


# ── occupancy ──


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        ((2, 256), (2, 256), None),
        ((2, 256), (1, 256), REGRESSION),
        ((1, 256), (2, 256), GAIN),
        ((2, 256), (1, 512), None),  # as many threads
        ((1, 512), (2, 256), None),
        ((4, 128), (1, 256), REGRESSION),  # 512 threads → 256
        ((3, 128), (2, 256), None),  # 384 → 512, in fewer CTAs
        ((2, 256), (3, 128), None),  # 512 → 384, in more CTAs
        ((1, 256), (0, 256), REGRESSION),
    ],
)
def test_occupancy(was: tuple[int, int], now: tuple[int, int], expected: Severity | None) -> None:
    before = entry(ctas_per_sm=was[0], threads=was[1])
    after = entry(ctas_per_sm=now[0], threads=now[1], limiter="shared memory")
    found = compare(kernel(), kernel(), old_entry=before, new_entry=after)
    assert kinds(found) == ([(Rule.OCCUPANCY, expected)] if expected else [])
    if expected is REGRESSION:
        assert found[0].text == f"CTAs per SM {was[0]} → {now[0]} (limited by shared memory)"


def test_occupancy_counts_though_the_code_is_the_same() -> None:
    """More dynamic shared memory in the manifest, not a byte of code changed."""
    before, after = entry(ctas_per_sm=2), entry(ctas_per_sm=1)
    same = build(code="c")
    assert kinds(compare(same, same, old_entry=before, new_entry=after)) == [(Rule.OCCUPANCY, REGRESSION)]


def test_unknown_occupancy_is_not_compared() -> None:
    unknown = entry(ctas_per_sm=None)
    assert compare(kernel(), kernel(), old_entry=unknown) == []
    assert compare(kernel(), kernel(), new_entry=unknown) == []


def test_against_the_parent_the_experiment_itself_is_a_warning() -> None:
    before, after = entry(ctas_per_sm=2), entry(ctas_per_sm=1)
    was = kernel(mma_shapes={"f16 128x64x16": 8}, **UTCHMMA)
    now = kernel(mma_shapes={"f16 64x64x16": 8}, **UTCHMMA)
    assert kinds(compare(was, now, old_entry=before, new_entry=after, same_version=False)) == [
        (Rule.MMA_SHAPE, WARNING),
        (Rule.OCCUPANCY, WARNING),
    ]
    # spills and a slower path are never what was wanted
    assert kinds(compare(kernel(), kernel(spill_stores=4), same_version=False)) == [(Rule.SPILLS, REGRESSION)]
    assert kinds(compare(kernel(**UTCHMMA), kernel(**HMMA), same_version=False)) == [(Rule.TENSOR_PATH, REGRESSION)]


def test_ptxas_messages_that_are_new() -> None:
    old = build(code="old", messages=["setmaxnreg ignored"])
    new = build(code="new", messages=["setmaxnreg ignored", "wgmma serialised"])
    assert compare(old, new) == [Finding(Rule.PTXAS, WARNING, "new: wgmma serialised")]
    assert compare(new, old) == []


# ── budgets ──


@pytest.mark.parametrize(
    ("budgets", "texts"),
    [
        (Budgets(), []),
        (Budgets(registers=96, spill_bytes=12, smem_bytes=59392, ctas_per_sm=1), []),
        (Budgets(registers=95), ["96 registers, over the budget of 95"]),
        (Budgets(spill_bytes=11), ["12 spill bytes, over the budget of 11"]),
        (Budgets(spill_bytes=0), ["12 spill bytes, over the budget of 0"]),
        (Budgets(smem_bytes=59391), ["59392 bytes of shared memory, over the budget of 59391"]),
        (Budgets(ctas_per_sm=2), ["1 CTAs per SM, under the budget of 2"]),
        (
            Budgets(registers=1, ctas_per_sm=2),
            ["96 registers, over the budget of 1", "1 CTAs per SM, under the budget of 2"],
        ),
    ],
)
def test_budgets(budgets: Budgets, texts: list[str]) -> None:
    made = build(kernel(spill_stores=4, spill_loads=8))
    assert over_budget(budgets, made, entry()) == [Finding(Rule.BUDGET, REGRESSION, text) for text in texts]


def test_a_budget_is_for_the_largest_kernel_and_for_all_spills() -> None:
    made = build(kernel("a", registers=64, spill_stores=4), kernel("b", registers=80, spill_stores=4))
    found = over_budget(Budgets(registers=79, spill_bytes=4), made, entry())
    assert [finding.text for finding in found] == [
        "80 registers, over the budget of 79",
        "8 spill bytes, over the budget of 4",
    ]


def test_an_unknown_occupancy_breaks_no_budget() -> None:
    assert over_budget(Budgets(ctas_per_sm=2), build(), entry(ctas_per_sm=None)) == []


# ── thresholds ──


def test_thresholds_are_overridden() -> None:
    limits = thresholds_from({"registers_up": 8, "uniformity_factor": 1.5, "uniformity_least": 2, "reported_same": 0.2})
    assert kinds(compare(kernel(registers=96), kernel(registers=104), limits=limits)) == [(Rule.REGISTERS, WARNING)]
    assert compare(kernel(registers=96), kernel(registers=103), limits=limits) == []
    was, now = kernel(main_loop={"R2UR": 4}), kernel(main_loop={"R2UR": 6})
    assert kinds(compare(was, now, limits=limits)) == [(Rule.UNIFORMITY, WARNING)]
    assert compare(was, kernel(main_loop={"R2UR": 5}), limits=limits) == []
    assert compare_reported(reported("b", 85), reported("a", 100), limits).verdict is Verdict.SAME
    assert thresholds_from({}) == Thresholds()
    assert thresholds_from({"registers_up": 8}).reported_same == Thresholds().reported_same


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"register_up": 8}, "register_up"),
        ({"registers_up": "8"}, "Expected `int`, got `str` - at `$.registers_up`"),
        ({"registers_up": 8.5}, "registers_up"),
    ],
)
def test_a_bad_threshold(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        thresholds_from(table)
    assert words in str(caught.value)
    assert caught.value.where == "pyproject.toml, [tool.faperf.thresholds]"
    assert "known keys: registers_up, uniformity_factor" in (caught.value.remedy or "")


# ── the published ladder ──


def reported(version: str, tflops: float | None, **facts: Any) -> Reported:
    return Reported(version=version, parent=None, change="", tflops=tflops, **facts)


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        # same within 1 % in time: 100 / 1.01 = 99.0099 is the edge of SLOWER, 100 / 0.99 = 101.0101 that of FASTER
        (100, Verdict.SAME),
        (99.02, Verdict.SAME),
        (99.0, Verdict.SLOWER),
        (101.0, Verdict.SAME),
        (101.02, Verdict.FASTER),
        (None, Verdict.INCOMPARABLE),
    ],
)
def test_reported_threshold(figure: float | None, verdict: Verdict) -> None:
    assert compare_reported(reported("b", figure), reported("a", 100), Thresholds()).verdict is verdict


def test_without_a_parents_figure_there_is_nothing_to_compare() -> None:
    for parent in (None, reported("a", None)):
        answer = compare_reported(reported("b", 100), parent, Thresholds())
        assert (answer.verdict, answer.change, answer.regression) == (Verdict.INCOMPARABLE, None, False)


# Throughput against the parent, by hand from shared/versions.md:
#   v13 226.83/219.16 = 1.0350    v14 179.81/226.83 = 0.7927    v15 182.50/179.81 = 1.0150    v16 201.13/182.50 = 1.1021
#   v16-l32 190.56/182.50 = 1.0442    v16-i16 204.04/201.13 = 1.0145
#   v17 175.88/204.04 = 0.8620    v18 152.96/204.04 = 0.7497    v19 178.71/204.04 = 0.8759    v20 220.52/178.71 = 1.2340
PUBLISHED = {
    "v12": (Verdict.INCOMPARABLE, None),
    "v13": (Verdict.FASTER, 0.0350),
    "v14": (Verdict.SLOWER, -0.2073),
    "v15": (Verdict.FASTER, 0.0150),
    "v16": (Verdict.FASTER, 0.1021),
    "v16-l32": (Verdict.FASTER, 0.0442),
    "v16-i16": (Verdict.FASTER, 0.0145),
    "v17": (Verdict.SLOWER, -0.1380),
    "v18": (Verdict.SLOWER, -0.2503),
    "v19": (Verdict.SLOWER, -0.1241),
    "v20": (Verdict.FASTER, 0.2340),
}


@pytest.mark.parametrize("version", PUBLISHED)
def test_published(version: str) -> None:
    (ladder,) = [file for file in History(Project(REPOSITORY)).reported() if file.target == "sm_103a"]
    rows = {row.version: row for row in ladder.rows}
    row = rows[version]
    answer = compare_reported(row, rows.get(row.parent or ""), Thresholds())
    verdict, change = PUBLISHED[version]
    assert answer.verdict is verdict
    assert answer.change == (None if change is None else pytest.approx(change, abs=6e-5))
    assert answer.regression == (verdict is Verdict.SLOWER)
    assert answer.less_accurate == (version == "v20")
    assert (answer.accepted is not None) == (version == "v14")


def test_the_published_regressions_are_against_the_ablation() -> None:
    (ladder,) = [file for file in History(Project(REPOSITORY)).reported() if file.target == "sm_103a"]
    assert {row.version for row in ladder.rows if row.parent == "v16-i16"} == {"v17", "v18", "v19"}


def test_faster_but_less_accurate() -> None:
    row = replace(reported("b", 120), accuracy="fp16 accumulator")
    answer = compare_reported(row, reported("a", 100), Thresholds())
    assert (answer.verdict, answer.less_accurate) == (Verdict.FASTER, True)
