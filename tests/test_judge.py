"""Verdicts: each rule on both sides of its threshold, and the published ladder with figures worked out by hand."""

from __future__ import annotations

import datetime
import itertools
import math
from typing import Any

import pytest

from faperf.errors import ConfigError
from faperf.history import History
from faperf.judge import (
    Acceptance,
    Cause,
    Finding,
    Rule,
    Severity,
    Status,
    Thresholds,
    Verdict,
    acceptance,
    attribute,
    compare_reported,
    compare_static,
    compare_tensor_work,
    instances_needed,
    judge_pair,
    judge_time,
    less_accurate,
    less_accurate_emulated,
    over_budget,
    overridden,
    stored_change,
    thresholds_from,
    voided,
    worst,
)
from faperf.manifest import Accepted, Budgets
from faperf.project import Project
from faperf.record import Build, Check, Entry, Interval, KernelFacts, Pair, Reported, Timing, replace
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
    found = over_budget(budgets, made, entry())
    assert [(finding.rule, finding.severity, finding.text) for finding in found] == [
        (Rule.BUDGET, REGRESSION, text) for text in texts
    ]


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


# ── time ──


def interval(value: float, low: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high)


AGREE = [0.001] * 10

# (estimate, low, high, instances, verdict): `time_cut` is 0.3 %, half of it 0.15 %, `time_detect` 0.5 %.
TIMES = [
    # at least the cut, and the near end over half of it
    (0.003, 0.0016, 0.9, AGREE, Verdict.SLOWER),
    (0.00299, 0.0016, 0.9, AGREE, Verdict.INCONCLUSIVE),
    (0.003, 0.0015, 0.9, AGREE, Verdict.INCONCLUSIVE),
    (0.003, 0.00151, 0.9, AGREE, Verdict.SLOWER),
    (0.25, 0.24, 0.26, AGREE, Verdict.SLOWER),
    # all instances agree
    (0.01, 0.009, 0.011, [*AGREE, 0.0], Verdict.INCONCLUSIVE),
    (0.01, 0.009, 0.011, [*AGREE, -1e-6], Verdict.INCONCLUSIVE),
    (0.01, 0.009, 0.011, [*AGREE, 1e-6], Verdict.SLOWER),
    # inside of the cut, and the interval inside of what is to be detected, on both sides
    (0.0, -0.0049, 0.0049, [-0.001, 0.001], Verdict.SAME),
    (0.0, -0.0049, 0.005, [-0.001, 0.001], Verdict.INCONCLUSIVE),
    (0.0029, 0.0028, 0.0049, AGREE, Verdict.SAME),
    (0.0029, -0.0051, 0.0049, AGREE, Verdict.INCONCLUSIVE),
    (0.003, 0.001, 0.0049, AGREE, Verdict.INCONCLUSIVE),  # at the cut it is no longer the same
    (0.0, 0.0, 0.0, [0.0] * 8, Verdict.SAME),
    # too few instances
    (0.25, -math.inf, math.inf, [0.25] * 7, Verdict.INCONCLUSIVE),
    (0.0, -math.inf, math.inf, [0.0] * 7, Verdict.INCONCLUSIVE),
]
MIRRORED = {Verdict.SLOWER: Verdict.FASTER}


@pytest.mark.parametrize(("value", "low", "high", "instances", "verdict"), TIMES)
def test_time(value: float, low: float, high: float, instances: list[float], verdict: Verdict) -> None:
    assert judge_time(interval(value, low, high), instances, Thresholds()) is verdict
    mirror = [-instance for instance in instances]
    assert judge_time(interval(-value, -high, -low), mirror, Thresholds()) is MIRRORED.get(verdict, verdict)


def test_time_by_thresholds_of_ones_own() -> None:
    found, limits = interval(0.01, 0.009, 0.011), thresholds_from({"time_cut": 0.02, "time_detect": 0.03})
    assert judge_time(found, AGREE, Thresholds()) is Verdict.SLOWER
    assert judge_time(found, AGREE, limits) is Verdict.SAME
    assert judge_time(interval(0.02, 0.011, 0.03), AGREE, limits) is Verdict.SLOWER


def pair(role: str, instances: list[float], build: str = "", version: str = "") -> Pair:
    """Its interval is from the least to the greatest instance, as that of eight is."""
    middle = (min(instances) + max(instances)) / 2
    return Pair(
        role=role,
        build=build or f"build of the {role}",
        version=version or role,
        time=interval(middle, min(instances), max(instances)),
        instances=instances,
    )


def timing(*pairs: Pair, **facts: Any) -> Timing:
    plain: dict[str, Any] = {
        "schema": 1,
        "build": "key",
        "launch": "launch",
        "workload": "published",
        "shape": {"B": 1, "H": 64, "S": 1024, "D": 128},
        "machine": "nvidia-h200-700w-140gib",
        "gpu": "NVIDIA H200",
        "card": "0123456789ab",
        "driver": "580.0",
        "regime": "burst",
        "protocol": 1,
        "ms": interval(0.2, 0.199, 0.201),
        "tflops": 170.0,
        "gib_s": 300.0,
        "launches": 1000,
        "pairs": list(pairs),
    }
    return Timing(**(plain | facts))


def spread(centre: float, width: float = 0.0004, count: int = 10) -> list[float]:
    """So many values, evenly from half of the width below the centre to half of it above."""
    return [centre + width * (n / (count - 1) - 0.5) for n in range(count)]


def test_each_role_has_a_verdict_of_its_own() -> None:
    found = timing(pair("parent", spread(0.01)), pair("baseline", spread(0)), pair("control", spread(-1)))
    roles = {role: judge_pair(found, role, Thresholds()) for role in ("parent", "baseline", "control", "other")}
    assert roles == {
        "parent": Verdict.SLOWER,
        "baseline": Verdict.SAME,
        "control": Verdict.FASTER,
        "other": Verdict.UNMEASURED,
    }


def test_whose_clock_makes_a_timing_void() -> None:
    """2 % and below are scatter; the control is another kernel; at the power cap the clock is what a kernel costs."""
    apart = [
        replace(pair(role, [0.0] * 8), clock_gap=gap)
        for role, gap in (("parent", 0.02), ("baseline", 0.0312), ("control", 0.5), ("pinned", None))
    ]
    assert voided(timing(*apart)).void == ["the SM clock differs by 3.1% from the baseline's (baseline)"]
    assert voided(timing(*apart, void=["a thermal slowdown"])).void[0] == "a thermal slowdown"
    assert voided(timing(*apart, regime="sustained")).void == []


def test_a_void_timing_says_nothing() -> None:
    for change in (0.0, 0.01, -0.01):
        found = timing(pair("parent", spread(change)), void=["hardware slowdown"])
        assert judge_pair(found, "parent", Thresholds()) is Verdict.INCOMPARABLE
        assert judge_pair(found, "baseline", Thresholds()) is Verdict.UNMEASURED


@pytest.mark.parametrize(
    ("change", "verdict"),
    [(0.01, Verdict.SLOWER), (-0.01, Verdict.FASTER), (0.0, Verdict.SAME), (0.0035, Verdict.SLOWER)],
)
def test_stored_figures_through_the_control(change: float, verdict: Verdict) -> None:
    """Each commit's version stood to the same control; the control's own speed cancels."""
    old, new = timing(pair("control", spread(-1.2))), timing(pair("control", spread(-1.2 + change)), build="other")
    found, time, partner = stored_change(old, new, Thresholds())
    assert found is verdict
    assert time is not None
    assert time.value == pytest.approx(change, abs=1e-12)
    assert partner == "control"


def test_stored_interval_by_hand() -> None:
    """Eight equal values, and eight from 1 % to 1.07 %: each difference is there eight times, and 7 may be left out."""
    old = timing(pair("control", [0.0] * 8))
    new = timing(pair("control", [0.01 + n * 1e-4 for n in range(8)]))
    time = stored_change(old, new, Thresholds())[1]
    assert time is not None
    assert [time.value, time.low, time.high] == pytest.approx([0.01035, 0.01, 0.0107])


@pytest.mark.parametrize(("control", "parent", "partner"), [(0.004, 0.0004, "v12"), (0.0004, 0.004, "control")])
def test_the_partner_that_sees_finer_is_believed(control: float, parent: float, partner: str) -> None:
    def stored(change: float) -> Timing:
        """The two partners tell different changes, so that it shows which was taken."""
        return timing(
            pair("control", spread(2 * change, control)), pair("parent", spread(change, parent), version="v12")
        )

    verdict, time, through = stored_change(stored(0), stored(0.01), Thresholds())
    assert (verdict, through) == (Verdict.SLOWER, partner)
    assert time is not None
    assert time.value == pytest.approx(0.01 if partner == "v12" else 0.02)


def test_a_parent_that_changed_is_no_partner() -> None:
    old = timing(pair("control", spread(0, 0.004)), pair("parent", spread(0), "before"))
    new = timing(pair("control", spread(0.01, 0.004)), pair("parent", spread(0), "after"))
    verdict, _, partner = stored_change(old, new, Thresholds())
    assert (verdict, partner) == (Verdict.SLOWER, "control")


def test_two_partners_of_one_name_that_see_equally_fine() -> None:
    """The parent and the baseline may be builds of one version; that neither sees anything is no reason to fall."""
    old, new = (
        timing(*(pair(role, spread(change, count=4), version="v12") for role, change in changes.items()))
        for changes in ({"parent": 0.0, "baseline": 0.0}, {"parent": 0.02, "baseline": 0.01})
    )
    verdict, time, partner = stored_change(old, new, Thresholds())
    assert (verdict, partner) == (Verdict.INCONCLUSIVE, "v12")
    assert time is not None
    assert math.isinf(time.high)


@pytest.mark.parametrize(("count", "verdict"), [(4, Verdict.INCONCLUSIVE), (5, Verdict.SLOWER)])
def test_stored_figures_of_few_instances(count: int, verdict: Verdict) -> None:
    """4 and 4 values lie wholly apart by chance in 2 of 70 cases, 5 and 5 in 2 of 252."""
    old, new = (timing(pair("control", spread(change, count=count))) for change in (0, 0.01))
    found, time, _ = stored_change(old, new, Thresholds())
    assert found is verdict
    assert time is not None
    assert math.isinf(time.low) == (verdict is Verdict.INCONCLUSIVE)


def test_stored_noise_is_inconclusive() -> None:
    old, new = (timing(pair("control", spread(change, 0.02))) for change in (0, 0.004))
    assert stored_change(old, new, Thresholds())[0] is Verdict.INCONCLUSIVE


CONTROL = [0.0] * 8


@pytest.mark.parametrize(
    "facts",
    [
        {"machine": "nvidia-b200-1000w-180gib"},
        {"protocol": 2},
        {"shape": {"B": 1, "H": 64, "S": 2048, "D": 128}},
        {"void": ["power brake"]},
        {"pairs": []},
        {"pairs": [pair("parent", CONTROL)]},
        {"pairs": [pair("control", CONTROL, "another control")]},
        {"pairs": [pair("baseline", CONTROL, "build of the control")]},  # in another role
    ],
    ids=lambda facts: next(iter(facts)),
)
def test_stored_figures_that_do_not_compare(facts: dict[str, Any]) -> None:
    one, other = (timing(pair("control", CONTROL)) for _ in range(2))
    assert stored_change(one, other, Thresholds())[0] is Verdict.SAME
    other = replace(other, **facts)
    for old, new in ((one, other), (other, one)):
        assert stored_change(old, new, Thresholds()) == (Verdict.INCOMPARABLE, None, "")


def test_what_may_differ_between_stored_figures() -> None:
    """The workload's name, not its numbers; the card of the same class; its driver; the launch, which is the change."""
    one = timing(pair("control", CONTROL))
    other = replace(one, workload="as published", card="ba9876543210", driver="590.1", build="other", launch="other")
    assert stored_change(one, other, Thresholds())[0] is Verdict.SAME


# ── rules that a manifest overrides ──


def test_the_manifest_knows_every_rule() -> None:
    from typing import get_args

    from faperf.manifest import RuleName

    assert set(get_args(RuleName)) == {rule.name.lower() for rule in Rule}


def test_a_manifest_may_silence_a_rule_or_make_it_count() -> None:
    found = [
        Finding(Rule.MMA_SHAPE, REGRESSION, "smaller"),
        Finding(Rule.REGISTERS, WARNING, "more"),
        Finding(Rule.REGISTERS, GAIN, "fewer"),
        Finding(Rule.SPILLS, REGRESSION, "spills"),
    ]
    judged = overridden(found, {"mma_shape": "ignore", "registers": "regression"})
    assert [(finding.text, finding.severity) for finding in judged] == [
        ("more", REGRESSION),
        ("fewer", GAIN),
        ("spills", REGRESSION),
    ]


@pytest.mark.parametrize(
    ("message", "severity"),
    [
        (
            "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register",
            REGRESSION,
        ),
        ("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized", REGRESSION),
        ("ptxas info    : Overriding global maxrregcount 96 with entry-specific value 64", WARNING),
    ],
)
def test_a_message_that_tells_of_lost_speed_counts_between_commits(message: str, severity: Severity) -> None:
    old, new = build(kernel(), code="old"), build(kernel(), code="new", messages=[message])
    assert kinds(compare(old, new)) == [(Rule.PTXAS, severity)]


# ── what decides a gate ──

FINE, ERROR, INCONCLUSIVE, WRONG = Status.FINE, Status.ERROR, Status.INCONCLUSIVE, Status.WRONG
WORST_FIRST = [WRONG, ERROR, Status.REGRESSION, INCONCLUSIVE, FINE]


def test_a_status_is_its_exit_code() -> None:
    assert [int(status) for status in WORST_FIRST] == [5, 1, 3, 4, 0]


@pytest.mark.parametrize(("first", "second"), [*itertools.combinations(WORST_FIRST, 2)])
def test_the_worst_of_two(first: Status, second: Status) -> None:
    assert worst([first, second]) is worst([second, first]) is first
    assert worst([second, second]) is second


def test_the_worst_of_none_and_of_all() -> None:
    assert worst([]) is FINE
    assert worst(reversed(WORST_FIRST)) is WRONG


def signs(agreeing: int, count: int) -> list[float]:
    return [0.01] * agreeing + [-0.0001] * (count - agreeing)


# By hand, P(so many or more agree by chance): 7/7 1/128, 8/8 1/256 = 0.0039, 10/10 0.00098, 9/10 11/1024 = 0.0107,
# 17/20 1351/2^20 = 0.0013, 16/20 6196/2^20 = 0.0059, 18/20 211/2^20 = 0.0002. Two looks share 0.008, or 0.002.
@pytest.mark.parametrize(
    ("agreeing", "count", "comparisons", "alarms", "decided"),
    [
        (7, 7, 1, 0.008, False),
        (8, 8, 1, 0.008, True),
        (8, 8, 2, 0.008, False),
        (9, 9, 2, 0.008, True),
        (9, 10, 1, 0.008, False),
        (10, 10, 4, 0.008, True),
        (10, 10, 5, 0.008, False),
        (16, 20, 1, 0.008, False),
        (17, 20, 1, 0.008, True),
        (17, 20, 4, 0.008, False),
        (18, 20, 4, 0.008, True),
        (10, 10, 1, 0.002, True),
        (10, 10, 2, 0.002, False),
        (17, 20, 1, 0.002, False),
        (18, 20, 1, 0.002, True),
    ],
)
def test_signs(agreeing: int, count: int, comparisons: int, alarms: float, decided: bool) -> None:
    limits = Thresholds(false_alarms=alarms)
    instances = signs(agreeing, count)
    slower = judge_time(interval(0.01, 0.009, 0.011), instances, limits, comparisons)
    faster = judge_time(interval(-0.01, -0.011, -0.009), [-value for value in instances], limits, comparisons)
    assert (slower, faster) == ((Verdict.SLOWER, Verdict.FASTER) if decided else (Verdict.INCONCLUSIVE,) * 2)


def test_an_instance_of_exactly_nothing_agrees_with_nobody() -> None:
    assert judge_time(interval(0.01, 0.009, 0.011), [0.01] * 8 + [0.0], Thresholds()) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("comparisons", "alarms", "least", "needed"),
    [(1, 0.008, 1, 8), (1, 0.008, 10, 10), (2, 0.008, 1, 9), (4, 0.008, 10, 10), (5, 0.008, 10, 11), (20, 0.008, 10, 13),
     (1, 0.002, 1, 10), (1, 0.5, 1, 2), (1, 0.25, 1, 3)],
)  # fmt: skip
def test_instances_needed(comparisons: int, alarms: float, least: int, needed: int) -> None:
    """As many as decide when all agree, and no fewer: 2^-n is at most alarms / (2 · comparisons)."""
    limits = Thresholds(false_alarms=alarms)
    assert instances_needed(comparisons, limits, least) == needed
    slow = interval(0.01, 0.009, 0.011)
    assert judge_time(slow, [0.01] * needed, limits, comparisons) is Verdict.SLOWER
    if needed > least:
        assert judge_time(slow, [0.01] * (needed - 1), limits, comparisons) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("change", "allowed", "verdict"),
    [
        (0.010, 0.0, Verdict.SLOWER),
        (0.010, 0.005, Verdict.SLOWER),  # half a per cent is left
        (0.010, 0.010, Verdict.SAME),
        (0.010, 0.020, Verdict.FASTER),  # than was allowed
        (0.300, 0.350, Verdict.SAME),  # a log ratio of 0.3 is 35 %
    ],
)
def test_what_is_allowed_is_not_counted(change: float, allowed: float, verdict: Verdict) -> None:
    found = timing(pair("pinned", spread(change)))
    assert judge_pair(found, "pinned", Thresholds(), 1, allowed) is verdict


def test_comparisons_share_the_budget() -> None:
    found = timing(pair("baseline", spread(0.01, count=10)))
    assert judge_pair(found, "baseline", Thresholds(), 4) is Verdict.SLOWER
    assert judge_pair(found, "baseline", Thresholds(), 5) is Verdict.INCONCLUSIVE


S, N = Verdict.SLOWER, Verdict.SAME


@pytest.mark.parametrize(
    ("total", "source", "toolchain", "moved", "cause"),
    [
        (S, None, None, False, Cause.SOURCE),
        (S, None, None, True, Cause.SOURCE),  # side by side: the machine is the same for both
        (S, S, N, False, Cause.SOURCE),
        (S, N, S, False, Cause.TOOLCHAIN),
        (S, S, S, False, Cause.BOTH),
        (S, N, N, False, Cause.TOGETHER),
        (S, Verdict.INCONCLUSIVE, S, False, Cause.TOOLCHAIN),
        (N, None, None, True, Cause.MACHINE),
        (N, None, None, False, Cause.NOT_REPRODUCED),
        (Verdict.INCONCLUSIVE, None, None, False, Cause.NOT_REPRODUCED),
    ],
)
def test_causes(total: Verdict, source: Verdict | None, toolchain: Verdict | None, moved: bool, cause: Cause) -> None:
    assert attribute(total, source, toolchain, machine_moved=moved) is cause


# ── accuracy ──


def checks(*errors: float | None, distribution: str = "normal") -> list[Check]:
    return [
        Check(schema=1, build="b", launch="l", workload="tiny", shape={}, operation="attention_forward", operation_version=1,
              by="silicon", distribution=distribution, seed=seed, relative_l2=error)
        for seed, error in enumerate(errors)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "factor"),
    [
        ((4e-4, 5e-4, 6e-4), (7.6e-4, 8e-4, 9e-4), 7.6 / 6),  # 1.25 × 6e-4 is 7.5e-4
        ((4e-4, 5e-4, 6e-4), (7.4e-4, 8e-4, 9e-4), None),  # one seed is within what seeds explain
        ((1e-5, 1e-5, 1e-5), (1.2e-4, 1.2e-4, 1.2e-4), None),  # under the floor of 2^-13 = 1.22e-4
        ((0.0, 0.0, 0.0), (2.0**-12,) * 3, 2.0),  # no error before: in units of the floor
        ((4e-4,), (None,), None),  # it faulted, which is another matter
        ((), (9e-4,), None),
    ],
)
def test_less_accurate(old: tuple[float, ...], new: tuple[float | None, ...], factor: float | None) -> None:
    found = less_accurate(checks(*old), checks(*new), Thresholds())
    assert [(f.rule, f.severity) for f in found] == ([] if factor is None else [(Rule.ACCURACY, REGRESSION)])
    assert [f.amount for f in found] == pytest.approx([] if factor is None else [factor])


def test_accuracy_is_of_each_distribution() -> None:
    old = checks(4e-4) + checks(9e-4, distribution="peaky")
    new = checks(6e-4) + checks(9e-4, distribution="peaky")
    assert [f.text for f in less_accurate(old, new, Thresholds())] == ["normal: relative L2 error 4.00e-04 → 6.00e-04"]


def test_less_accurate_by_what_the_emulator_found() -> None:
    """Compared is what both sides have: the same distribution on the same workload."""
    old = entry(emulated_errors={"normal, emulated[S=64]": 2.6e-4, "ones, emulated[S=64]": 0.0})
    new = entry(
        emulated_errors={"normal, emulated[S=64]": 5.9e-4, "ones, emulated[S=64]": 1.2e-4, "normal, other": 1.0}
    )
    (found,) = less_accurate_emulated(old, new, Thresholds())
    assert (found.rule, found.text) == (
        Rule.ACCURACY,
        "normal, emulated[S=64]: relative L2 error 2.60e-04 → 5.90e-04",
    )
    assert less_accurate_emulated(new, old, Thresholds()) == []


# ── shared memory and tensor work ──


@pytest.mark.parametrize(
    ("before", "now", "found"), [(1000, 1499, []), (1000, 1500, [(Rule.SMEM, WARNING)]), (0, 99, [])]
)
def test_shared_memory_grows(before: int, now: int, found: list[tuple[Rule, Severity]]) -> None:
    assert kinds(compare(kernel(), kernel(), old_entry=entry(smem=before), new_entry=entry(smem=now))) == found


@pytest.mark.parametrize(
    ("path", "shapes", "tile", "text"),
    [
        # v16: QK is 8 of m64n64k16, PV 4 of m64n128k16, which is 2 · D = 256 a score. QK twice: 128 more.
        ("UTCHMMA", {"UTCHMMA m64n128k16": 4, "UTCHMMA m64n64k16": 16}, 64 * 64, "256 → 384"),
        ("UTCHMMA", {"UTCHMMA m128n128k16": 24}, 128 * 128, "256 → 384"),
        ("UTCHMMA", {"UTCHMMA m128n128k16": 16}, 128 * 128, None),  # a larger tile, no more work
        ("UTCHMMA", {"UTCHMMA unknown shape": 24}, 128 * 128, None),
        ("HMMA+UTCHMMA", {"UTCHMMA m128n128k16": 24}, 128 * 128, None),
    ],
)
def test_tensor_work(path: str, shapes: dict[str, int], tile: int, text: str | None) -> None:
    old = build(kernel(path="UTCHMMA", mma_shapes={"UTCHMMA m64n128k16": 4, "UTCHMMA m64n64k16": 8}))
    found = compare_tensor_work(old, 64 * 64, build(kernel(path=path, mma_shapes=shapes)), tile, Thresholds())
    assert kinds(found) == ([(Rule.TENSOR_WORK, WARNING)] if text else [])
    assert not text or text in found[0].text


# ── accepted regressions ──

TODAY = datetime.date(2026, 11, 30)


def accepted(**facts: Any) -> Accepted:
    plain: dict[str, Any] = {
        "metric": "time",
        "from_": "a",
        "to": "b",
        "max": 0.02,
        "reason": "exact rounding",
        "until": TODAY,
    }
    return Accepted(**(plain | facts))


def ask(
    *entries: Accepted, metric: str = "time", amount: float = 0.01, today: datetime.date = TODAY
) -> Acceptance | None:
    """Of a regression from build a to build b. Builds of one first letter are of one code."""
    same = lambda one, other: str(one)[0] == str(other)[0]  # noqa: E731
    return acceptance(entries, metric, amount, ("a", "b"), same, today)


def test_an_entry_covers_up_to_its_amount_on_its_last_day() -> None:
    answer = ask(accepted(), amount=0.02)
    assert answer == Acceptance(True, "time accepted until 2026-11-30: exact rounding")


@pytest.mark.parametrize(
    ("amount", "days", "text"),
    [
        (0.01, 1, "time was accepted until 2026-11-30, which has passed"),
        (0.0201, 0, "time: 0.0201 is over the accepted 0.02"),
        (0.0201, 1, "time was accepted until 2026-11-30, which has passed"),
    ],
)
def test_an_entry_that_does_not_cover_says_why(amount: float, days: int, text: str) -> None:
    answer = ask(accepted(), amount=amount, today=TODAY + datetime.timedelta(days=days))
    assert answer == Acceptance(False, text)


@pytest.mark.parametrize(
    "other", [{"metric": "spills"}, {"from_": "c"}, {"to": "c"}, {"from_": "b", "to": "a"}], ids=str
)
def test_an_entry_about_something_else(other: dict[str, Any]) -> None:
    assert ask(accepted(**other)) is None


def test_an_entry_holds_for_the_same_code_under_another_build_key() -> None:
    answer = ask(accepted(from_="a comment was changed", to="b as well"))
    assert answer is not None
    assert answer.covers


def test_the_newest_entry_wins() -> None:
    strict, generous = accepted(max=0.001), accepted(max=0.5)
    for entries, covers in (((strict, generous), True), ((generous, strict), False)):
        answer = ask(*entries)
        assert answer is not None
        assert answer.covers is covers
    answer = ask(generous, accepted(metric="spills", max=0))  # newer, but about something else
    assert answer is not None
    assert answer.covers
