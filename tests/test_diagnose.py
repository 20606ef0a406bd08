"""Each cause from facts: those of real builds (data/diagnose.jsonl, nvcc 13.0.88), and what is measured by numbers made up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from faperf import record
from faperf.chips import CHIPS
from faperf.diagnose import Cause, Diagnosis, Effect, Facts, diagnose
from faperf.judge import Thresholds, Verdict
from faperf.metrics import metrics_of
from faperf.operations import BUILT_IN
from faperf.record import Build, Check, Counters, Entry, Hot, Interval, Pair, Reported, Timing
from tests import facts
from tests.conftest import REPOSITORY
from tests.test_metrics import PUBLISHED, timing

LIMITS = Thresholds()


class Recorded(msgspec.Struct):
    build: Build
    entry: Entry


RECORDED = {
    each.entry.version: each
    for line in (REPOSITORY / "tests/data/diagnose.jsonl").read_bytes().splitlines()
    for each in [msgspec.json.decode(line, type=Recorded)]
}


def real(version: str, **more: Any) -> Facts:
    """What nvcc 13.0.88 made of a version of the ladders."""
    found = RECORDED[version]
    return Facts(build=found.build, entry=found.entry, source=f"kernels/{version}.cu", **more)


def made(more: dict[str, Any] | None = None, entry: dict[str, Any] | None = None, **kernel: Any) -> Facts:
    """Facts made by hand: `kernel`'s over plain ones."""
    build = facts.build(facts.kernel(**kernel), code=repr(kernel))
    return Facts(build=build, entry=facts.entry(**(entry or {})), source="kernels/t1.cu", **(more or {}))


def why(new: Facts, old: Facts | None = None) -> Diagnosis:
    return diagnose(new, old, LIMITS)


def named(found: Diagnosis, name: str) -> Cause:
    (cause,) = [cause for cause in found.causes if cause.name == name]
    return cause


def names(found: Diagnosis) -> list[str]:
    return [cause.name for cause in found.causes]


def told(cause: Cause) -> str:
    return "\n".join(cause.evidence)


# ── the ladder on sm_103a ──


def test_v17_computes_qk_twice_and_loses_no_cta() -> None:
    """In a loop of its own without exponentials. Its parent had one CTA per SM already, so that is no cause."""
    found = why(real("v17"), real("v16-i16"))
    first = found.causes[0]
    assert (first.name, first.claim) == ("matrix work done twice", "QK is computed twice")
    assert "UTCHMMA 12 → 24: 16 in the main loop, 8 in another" in first.evidence
    assert "no MUFU" in told(first)
    assert "shared memory 56.5 → 128.5 KiB" in first.evidence
    assert "CTAs per SM" not in told(first)
    assert "fewer CTAs per SM" not in names(found)


def test_two_passes_on_hopper() -> None:
    assert named(why(real("h17"), real("h16")), "matrix work done twice").claim == "QK is computed twice"


def test_at_the_parents_tile_qk_is_told_by_its_shape() -> None:
    cause = named(why(real("v17-t64"), real("v16-i16")), "matrix work done twice")
    assert "UTCHMMA m64n64k16: 8 → 16" in cause.evidence
    assert "shared memory" not in told(cause)


def test_a_cta_less_is_said_where_it_was_computed() -> None:
    new = real("v17")
    fewer = msgspec.structs.replace(new, entry=record.replace(new.entry, ctas_per_sm=1))
    parent = real("v16-i16")
    two = msgspec.structs.replace(parent, entry=record.replace(parent.entry, ctas_per_sm=2))
    assert "CTAs per SM 2 → 1 (limited by registers and shared memory)" in told(
        named(why(fewer, two), "matrix work done twice")
    )


def test_v18_loses_uniformity() -> None:
    first = why(real("v18"), real("v16-i16")).causes[0]
    assert first.name == "uniformity lost"
    assert first.evidence[:2] == ["BSSY in the main loop 3 → 11", "R2UR in the main loop 9 → 49"]
    assert "registers 96 → 128 of 128" in first.evidence


def test_h18_splits_its_warps() -> None:
    first = why(real("h18"), real("h16")).causes[0]
    assert first.name == "uniformity lost"
    assert "BSSY in the main loop 1 → 5" in first.evidence
    assert "WARPSYNC 0 → 4: warps are brought together" in first.evidence


def test_v19_holds_the_block_of_ld_red_and_spills() -> None:
    found = why(real("v19"), real("v16-i16"))
    assert found.causes[0].name == "ld.red's register block"
    assert "32 registers" in found.causes[0].claim
    assert "registers 96 → 128 of 128, the cap" in found.causes[0].evidence
    assert "spills 0 → 28 B; LDL/STL in the main loop 0 → 3" in found.causes[0].evidence
    assert "spills at the register cap" not in names(found)  # the same thing said twice


def test_ld_red_without_a_spill_is_a_lesser_cause() -> None:
    cause = named(why(real("v19-x8"), real("v16-i16")), "ld.red's register block")
    assert "spill" not in cause.claim
    assert cause.weight < named(why(real("v19"), real("v16-i16")), "ld.red's register block").weight


def test_v20_is_faster_and_less_accurate() -> None:
    """As the emulator has it: halves in the loop, and an error that is larger than the parent's."""
    old = real("v19", checks=[check("normal", 2.7e-4)], published=reported("v19", 178.71))
    new = real("v20", checks=[check("normal", 9.2e-4)], published=reported("v20", 220.52, "v19"))
    found = why(new, old)
    assert found.verdict is Verdict.FASTER
    assert found.reported == pytest.approx(220.52 / 178.71 - 1)
    cause = named(found, "precision traded for speed")
    assert cause.effect is Effect.GAIN
    assert "HFMA2 in the main loop 1 → 33" in cause.evidence
    assert "less accurate on normal: relative L2 error 2.70e-04 → 9.20e-04 (emulated)" in cause.evidence
    assert found.causes[0].effect is Effect.GAIN  # the gains stand first where it is faster


def test_v20_without_checks_does_not_claim_an_error() -> None:
    cause = named(why(real("v20"), real("v19")), "precision traded for speed")
    assert cause.evidence[-1] == "accuracy was not measured here"


def test_v15_takes_the_newer_path() -> None:
    assert named(why(real("v15"), real("v14")), "newer tensor path").effect is Effect.GAIN


def test_h20_goes_through_shared_memory() -> None:
    found = why(real("h20"), real("h16"))
    assert any(
        line.startswith("LDS in the main loop 0 → ") for line in named(found, "more shared-memory traffic").evidence
    )
    assert "more shared-memory traffic" not in names(why(real("h16"), real("h20")))


def test_a_part_of_the_work_on_a_newer_path() -> None:
    cause = named(why(real("v14"), real("v13")), "partly newer tensor path")
    assert cause.effect is Effect.GAIN
    assert "UTCHMMA 0 → 8" in cause.evidence
    tma = named(why(made(main_loop={"UTMALDG": 4}), made(main_loop={"LDGSTS": 16})), "copies by TMA")
    assert tma.evidence == ["LDGSTS in the main loop 16 → 0, UTMALDG 0 → 4"]


def test_another_loop_is_not_compared_by_length() -> None:
    """A persistent kernel's main loop is the outer one: twice the tensor instructions, and all else."""
    old = made(path="HGMMA", main_loop={"HGMMA": 16, "IMAD": 100})
    new = made(path="HGMMA", main_loop={"HGMMA": 32, "IMAD": 400})
    assert "more instructions a tile" not in names(why(new, old))
    longer = made(path="HGMMA", main_loop={"HGMMA": 16, "IMAD": 200})
    assert "for each HGMMA 7.2 → 13.5" in told(named(why(longer, old), "more instructions a tile"))


def test_h21_gives_the_copies_to_warps_of_their_own() -> None:
    cause = named(why(real("h21"), real("h16")), "warp specialisation")
    assert cause.effect is Effect.GAIN
    assert "copies (cp.async, TMA) in the main loop 4 → 0, 6 elsewhere in the kernel" in cause.evidence
    assert "CTA-wide barriers (BAR) in the main loop 1 → 0" in cause.evidence
    assert "warp specialisation" not in names(why(real("h16"), real("h21")))


def test_a_loop_for_another_warpgroup_is_no_work_done_twice() -> None:
    """It has exponentials of its own: each warpgroup's code does its own rows."""
    one = {"HGMMA": [0, 32], "MUFU": [0, 66]}
    old = made(path="HGMMA", opcodes=one, main_loop={"HGMMA": 32, "MUFU": 66})
    two = {name: [0, 2 * counts[1]] for name, counts in one.items()}
    new = made(path="HGMMA", opcodes=two, main_loop={"HGMMA": 32, "MUFU": 66})
    assert "matrix work done twice" not in names(why(new, old))


def test_an_older_path_costs_most() -> None:
    first = why(real("v14"), real("v15")).causes[0]
    assert (first.name, first.effect) == ("older tensor path", Effect.COST)
    assert "UTCHMMA → HMMA+UTCHMMA" in told(first)


def test_h15_spills_at_its_cap_and_its_wgmmas_are_serialised() -> None:
    found = why(real("h15"), real("h14"))
    assert named(found, "spills at the register cap").places == []  # no listing, no lines
    assert "192 LDL/STL in the main loop" in told(named(found, "spills at the register cap"))
    assert "serialized" in told(named(found, "wgmma serialised"))


def test_spills_that_went_are_a_gain() -> None:
    assert "spills gone" in names(why(real("h16"), real("h15")))


def test_a_version_against_itself_has_no_cause() -> None:
    found = why(real("v16-i16"), real("v16-i16"))
    assert (found.causes, found.unknown) == ([], None)


def test_slower_without_a_reason_is_unknown() -> None:
    parent = real("v16-i16", published=reported("v16-i16", 204.04))
    new = real("v16-i16", published=reported("v16-i16", 150.0, "v16-i16"))
    found = why(new, parent)
    assert found.verdict is Verdict.SLOWER
    assert found.causes == []
    assert found.unknown is not None
    assert "no counters" in found.unknown


# ── what the compiler did ──

SPILLED: dict[str, Any] = {
    "registers": 64,
    "register_cap": 128,
    "spill_stores": 36,
    "spill_loads": 36,
    "main_loop": {"LDL": 9, "STL": 9},
}
"""Seen with plain `__launch_bounds__(512)`: ptxas kept 64 registers, at which two CTAs fit."""


def test_spills_below_the_cap_are_the_occupancy_heuristic() -> None:
    cause = named(why(made(**SPILLED), made(registers=64)), "spills below the cap")
    assert "another CTA" in cause.claim
    assert "with 64 registers 2 CTAs of 512 threads fit, with 8 more only 1" in cause.evidence
    assert "__launch_bounds__(512, 1)" in cause.advice


def test_spills_below_the_cap_without_a_step_name_no_heuristic() -> None:
    """168 registers of 255 with 12 bytes spilled, 64 threads: eight more would still let as many in."""
    spilled = SPILLED | {"registers": 160, "register_cap": 255}
    cause = named(why(made(**spilled, entry={"threads": 64}), made(registers=160)), "spills below the cap")
    assert "another CTA" not in cause.claim


def test_a_toolchain_that_spills() -> None:
    other = record.Toolchain(nvcc="13.5.37", build="", host="g++ 12.2.0")
    old = made({"inputs": "same"})
    new = made({"inputs": "same"}, **SPILLED)
    new = msgspec.structs.replace(new, build=record.replace(new.build, toolchain=other))
    cause = named(why(new, old), "the toolchain spills")
    assert cause.evidence[0] == "0 B of spills with nvcc 13.0.88, 72 B with nvcc 13.5.37"
    assert "spills below the cap" not in names(why(new, old))
    changed = msgspec.structs.replace(new, inputs="other")  # then it may be the source
    assert "the toolchain spills" not in names(why(changed, old))


def test_setmaxnreg_that_is_ignored() -> None:
    message = "ptxas info : (C7508) setmaxnreg ignored to maintain minimum register requirements for 'k'"
    old, new = made(), made()
    new = msgspec.structs.replace(new, build=record.replace(new.build, messages=[message]))
    cause = named(why(new, old), "setmaxnreg ignored")
    assert cause.effect is Effect.COST
    assert cause.evidence == ["ptxas: (C7508) setmaxnreg ignored to maintain minimum register requirements for 'k'"]
    assert "__launch_bounds__(512, 1)" in cause.advice
    assert named(why(new, new), "setmaxnreg ignored").effect is Effect.LIMIT  # the other side has it too


def test_a_smaller_mma() -> None:
    old = made(path="HGMMA", mma_shapes={"HGMMA m64n128k16": 8})
    new = made(path="HGMMA", mma_shapes={"HGMMA m64n64k16": 16})
    assert "m64n128k16 → HGMMA m64n64k16" in told(named(why(new, old), "smaller MMA"))


def test_fewer_ctas() -> None:
    found = why(real("h20"), real("h16"))
    assert "CTAs per SM 2 → 1 (limited by shared memory)" in told(named(found, "fewer CTAs per SM"))


def test_an_array_in_local_memory_is_no_spill() -> None:
    cause = named(why(made(stack=256, main_loop={"LDL": 1, "STL": 1})), "an array in local memory")
    assert "stack 256 B" in told(cause)


# ── what was measured ──


def test_launch_bound() -> None:
    growing = [timing(0.091, shape=PUBLISHED | {"H": heads}, workload=str(heads)) for heads in (16, 32, 64)]
    cause = named(why(made({"timings": growing})), "launch-bound")
    assert "4.0 times the work takes 1.00 times as long" in told(cause)
    assert "launch-bound" not in names(why(made({"timings": growing[:1]})))


def test_power_capped() -> None:
    capped = timing(events=["power cap"], power_w=699.0, clock_mhz=1500.0)
    cause = named(why(made({"timing": capped}, entry={"target": "sm_90a"})), "power-capped")
    assert "699 W" in told(cause)
    assert "1830" in told(cause)
    assert "power-capped" not in names(why(made({"timing": timing(events=[])})))


def test_a_lower_clock_is_told_from_more_cycles() -> None:
    new = made({"timing": paired(0.03, 0.005, regime="sustained", events=["power cap"])}, entry={"version": "t2"})
    found = why(new, made())
    assert found.verdict is Verdict.SLOWER
    assert "time +3.05 %, but cycles +0.50 %" in told(named(found, "lower clock at the power cap"))
    burst = made({"timing": paired(0.03, 0.005)}, entry={"version": "t2"})
    assert "lower clock at the power cap" not in names(why(burst, made()))


def test_a_timing_against_another_version_is_no_verdict() -> None:
    new = made({"timing": paired(0.03, 0.03)}, entry={"version": "t2"})
    assert why(new, made(entry={"version": "t0"})).verdict is Verdict.UNMEASURED


def test_costs_that_did_not_decide_are_said_to_be_so() -> None:
    old = real("v16-i16", published=reported("v16-i16", 100.0))
    new = real("v18", published=reported("v18", 120.0, "v16-i16"))
    found = why(new, old)
    assert "did not decide" in found.notes[0]
    assert found.unknown is not None  # faster, and nothing says why


def test_path_ceiling_and_padding() -> None:
    measured = timing(shape=PUBLISHED | {"S": 1000})
    worth = metrics_of(measured, BUILT_IN["attention_forward"], (128, 64), "HMMA", CHIPS["90"])
    found = why(made({"timing": measured, "metrics": worth}, entry={"target": "sm_90a"}))
    assert "66%" in named(found, "path ceiling").claim
    assert "1.0486" in told(named(found, "padding"))


def test_at_a_bound() -> None:
    measured = timing(0.055, 1500.0)
    worth = metrics_of(measured, BUILT_IN["attention_forward"], (64, 64), "HGMMA", CHIPS["90"])
    assert (
        "tensor cores alone would need 77%"
        in named(why(made({"timing": measured, "metrics": worth})), "at a bound").claim
    )


# ── what was counted ──


def counted(**more: Any) -> Counters:
    """v13 on an H200, as ncu counted it."""
    plain: dict[str, Any] = {
        "schema": 1, "build": "key", "launch": "launch", "workload": "published", "shape": PUBLISHED, "machine": "class",
        "gpu": "NVIDIA H200", "card": "card", "driver": "580", "ncu": "2025.3.1", "ms": 0.109, "sms": 132,
        "sm_cycles": 186_305.55, "tensor_active": 0.5117, "path_flops": {"HMMA": 2.0**35},
        "stalls": {"long_scoreboard": 1.90, "wait": 1.75, "short_scoreboard": 0.89, "selected": 1.0, "not_selected": 0.44},
        "shared_pipe": 0.73, "hot": [Hot(offset=16, samples=9, reason="long_scoreboard")],
    }  # fmt: skip
    return Counters(**(plain | more))


def test_counters_of_v13() -> None:
    new = made({"counters": counted(), "counted_flops": 2**35}, entry={"target": "sm_90a"}, path="HMMA")
    found = why(new)
    assert "1.90 warps per issued instruction, 32%" in told(named(found, "stalls: long scoreboard"))
    assert "73%" in told(named(found, "shared-memory bandwidth"))
    activity = named(found, "tensor-core activity")
    assert "TCA 51.2%, corrected MFU of that launch 34.1%: ratio 1.50" in told(activity)
    assert "HMMA does 66%" in activity.claim


def test_counters_of_two_sides_tell_which_waits_went_and_came() -> None:
    """h22 against h21 on an H200: two consumers take turns and no longer meet at a barrier of the CTA."""
    h21 = counted(stalls={"barrier": 1.83, "wait": 1.12, "dispatch_stall": 0.05, "selected": 1.0}, tensor_active=0.496)
    h22 = counted(stalls={"barrier": 0.67, "wait": 1.54, "dispatch_stall": 0.06, "selected": 1.2}, tensor_active=0.556)
    found = why(made({"counters": h22}), made({"counters": h21}))
    less, more = named(found, "less waiting: barrier"), named(found, "more waiting: wait")
    assert (less.effect, more.effect) == (Effect.GAIN, Effect.COST)
    assert "1.83 → 0.67 warps per issued instruction, of 4.00 → 3.47 in all" in told(less)
    assert "TCA 49.6% → 55.6%" in told(less)
    assert "Interleave independent work" in more.advice
    assert "waiting" not in " ".join(names(why(made({"counters": h21}), made({"counters": h21}))))
    elsewhere = counted(stalls=h21.stalls, gpu="NVIDIA H100")
    assert "waiting" not in " ".join(names(why(made({"counters": h22}), made({"counters": elsewhere}))))


def test_counters_tell_work_done_twice_where_statics_cannot() -> None:
    old = made(
        {"counters": counted(), "counted_flops": 2**35}, path="HMMA", opcodes={"HMMA": [0, 64]}, main_loop={"HMMA": 64}
    )
    more = counted(path_flops={"HMMA": 1.5 * 2**35})
    new = made(
        {"counters": more, "counted_flops": 2**35}, path="HMMA", opcodes={"HMMA": [0, 64]}, main_loop={"HMMA": 64}
    )
    cause = named(why(new, old), "matrix work done twice")
    assert "1.50 times the counted FLOPs were done (1.00 before)" in told(cause)
    assert "QK" not in cause.claim  # which product it is, nothing says


@pytest.mark.parametrize("version", RECORDED)
def test_no_cause_without_evidence(version: str) -> None:
    for other in RECORDED:
        if RECORDED[other].entry.target == RECORDED[version].entry.target:
            assert all(cause.evidence and all(cause.evidence) for cause in why(real(version), real(other)).causes)


def check(distribution: str, relative_l2: float) -> Check:
    return Check(
        schema=1, build="key", launch="launch", workload="small", shape=PUBLISHED, operation="attention_forward",
        operation_version=1, by="emulator", distribution=distribution, seed=1, relative_l2=relative_l2,
    )  # fmt: skip


def reported(version: str, tflops: float, parent: str | None = None) -> Reported:
    return Reported(version=version, parent=parent, change="", tflops=tflops)


def paired(time: float, cycles: float, **more: Any) -> Timing:
    """Timed against t1; log ratios in time and in cycles."""
    pair = Pair(
        role="parent", build="key", version="t1", time=Interval(value=time, low=time - 1e-3, high=time + 1e-3),
        cycles=Interval(value=cycles, low=cycles - 1e-3, high=cycles + 1e-3), instances=[time] * 10,
    )  # fmt: skip
    return timing(pairs=[pair], **more)
