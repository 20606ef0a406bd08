"""Metrics by numbers worked out by hand, and by those that others published."""

from __future__ import annotations

import json
from typing import Any

import pytest

from faperf.chips import CHIPS, PATH_SHARE, memory_tb_s, path_share
from faperf.metrics import activity_meaning, corrected, flat, metrics_of, mfu, padding, sms_of, tflops
from faperf.operations import BUILT_IN
from faperf.record import Interval, Timing
from faperf.report.worth import flat_line
from tests.conftest import REPOSITORY

ATTENTION = BUILT_IN["attention_forward"]
PUBLISHED = {"B": 1, "H": 64, "S": 1024, "D": 128}
H200 = CHIPS["90"]


def timing(ms: float = 0.1, clock_mhz: float | None = 1500.0, sms: int = 132, **facts: Any) -> Timing:
    shape = facts.pop("shape", PUBLISHED)
    flops = ATTENTION.flops(shape)
    plain: dict[str, Any] = {
        "schema": 1,
        "build": "key",
        "launch": "launch",
        "workload": "published",
        "shape": shape,
        "machine": "class",
        "gpu": "NVIDIA H200",
        "card": "card",
        "driver": "580",
        "regime": "burst",
        "protocol": 2,
        "ms": Interval(value=ms, low=ms, high=ms),
        "tflops": flops / ms / 1e9,
        "gib_s": 1.0,
        "clock_mhz": clock_mhz,
        "flops_per_clock_sm": flops / (ms * 1e-3) / (clock_mhz * 1e6) / sms if clock_mhz else None,
        "launches": 100,
    }
    return Timing(**(plain | facts))


def test_throughput_of_the_published_v14() -> None:
    assert tflops(2**35, 0.191) == pytest.approx(179.9, abs=0.01)


def test_mfu_of_a_publications_b200() -> None:
    assert mfu(2**35, 0.200, 2250) == pytest.approx(0.0763, abs=1e-4)  # FA2 there: 0.200 ms, 7.63 %


@pytest.mark.parametrize(
    ("share", "peak", "measured", "expected"),
    [(0.5850, 1965, 1586, 0.7248), (0.4663, 1939, 1939, 0.4663), (0.0966, 1965, 1965, 0.0966)],
)
def test_clock_corrected_mfu(share: float, peak: float, measured: float, expected: float) -> None:
    assert corrected(share, peak, measured) == pytest.approx(expected, abs=5e-5)


def test_the_correction_is_the_share_of_flops_per_clock() -> None:
    """Two ways to the same figure: MFU by the peak's clock over the measured one, and FLOPs per clock and SM over 4096."""
    found = metrics_of(timing(0.1, 1500.0), ATTENTION, (64, 64), "HMMA", H200)
    peak_mhz = 989e12 / (132 * 4096) / 1e6
    assert found.mfu is not None
    assert found.corrected_mfu == pytest.approx(corrected(found.mfu, peak_mhz, 1500.0))
    assert found.corrected_mfu == pytest.approx(2**35 / (1e-4 * 1500e6 * 132 * 4096))


@pytest.mark.parametrize(
    ("sizes", "tile", "expected"),
    [
        ((16384, 16384), (320, 128), 1.015625),  # cuBLAS on an H100, as published: 1.01563
        ((4096, 4096), (256, 128), 1.0),
        ((16384, 16384), (192, 192), (86 * 192 / 16384) ** 2),  # cuBLAS on an H200: 86 tiles
        ((64,), (128,), 2.0),  # a head dimension of 64 in an MMA 128 wide
        ((1000, 1000), (64, 64), (1024 / 1000) ** 2),
    ],
)
def test_padding(sizes: tuple[int, ...], tile: tuple[int, ...], expected: float) -> None:
    assert padding(sizes, tile) == pytest.approx(expected, rel=1e-12)


def test_padding_is_of_the_workload_and_the_tile() -> None:
    shape = PUBLISHED | {"S": 1000}
    assert metrics_of(timing(shape=shape), ATTENTION, (128, 64), "HMMA", H200).padding == pytest.approx(
        1024 / 1000 * 1024 / 1000
    )


def test_bounds_by_hand() -> None:
    """2³⁵ FLOPs, 2²⁶ exponentials, 2²⁶ bytes on 132 SMs at 1500 MHz and 4.8 TB/s, in 0.1 ms."""
    found = metrics_of(timing(0.1, 1500.0), ATTENTION, (64, 64), "HGMMA", H200)
    by_name = {bound.what: bound for bound in found.bounds}
    assert by_name["tensor cores"].ms == pytest.approx(2**35 / (132 * 4096 * 1500e6) * 1e3)
    assert by_name["exponentials"].ms == pytest.approx(2**26 / (132 * 16 * 1500e6) * 1e3)
    assert by_name["memory"].ms == pytest.approx(2**26 / 4.8e12 * 1e3)
    assert [bound.what for bound in found.bounds] == ["tensor cores", "exponentials", "memory"]
    assert found.bounds[0].share == pytest.approx(0.4237, abs=1e-4)


def test_a_path_lifts_the_bound_of_the_tensor_cores() -> None:
    """HMMA does a quarter on Blackwell: its bound is four times as high, and its share of the ceiling too."""
    b200 = timing(0.2, 1900.0, sms=148, gpu="NVIDIA B200")
    by_path = {path: metrics_of(b200, ATTENTION, (64, 64), path, CHIPS["100"]) for path in ("HMMA", "UTCHMMA")}
    old, new = by_path["HMMA"], by_path["UTCHMMA"]
    assert old.path_share == 0.25
    assert old.of_path == pytest.approx(4 * (new.of_path or 0))
    tensor = [next(b.ms for b in m.bounds if b.what == "tensor cores") for m in (old, new)]
    assert tensor[0] == pytest.approx(4 * tensor[1])


def test_what_is_not_known_is_none_and_not_zero() -> None:
    found = metrics_of(timing(clock_mhz=None, gpu="NVIDIA A10"), ATTENTION, (64, 64), "HMMA", CHIPS["86"])
    assert (found.mfu, found.corrected_mfu, found.path_share, found.of_path, found.bounds) == (None,) * 4 + ([],)
    b300 = metrics_of(timing(sms=148, gpu="NVIDIA B300"), ATTENTION, (64, 64), "UTCHMMA", CHIPS["103"])
    assert b300.mfu is None
    assert b300.corrected_mfu is not None


def test_the_number_of_sms_is_in_a_timing() -> None:
    assert sms_of(timing(0.0731, 1711.5, sms=132), 2**35) == 132
    assert sms_of(timing(clock_mhz=None), 2**35) is None


def test_rates_of_the_chips_agree_with_their_peaks() -> None:
    for chip, sms in (("80", 108), ("90", 132), ("100", 148)):
        known = CHIPS[chip]
        assert known.tensor_flops_per_clock is not None
        assert known.peak_mhz is not None
        peak = sms * known.tensor_flops_per_clock * known.peak_mhz / 1e6
        assert peak == pytest.approx(known.peak_tflops, rel=1e-3)


def test_memory_is_told_by_the_gpus_name() -> None:
    assert memory_tb_s("NVIDIA H200") == 4.8
    assert memory_tb_s("NVIDIA H100 80GB HBM3") == 3.35
    assert memory_tb_s("NVIDIA A10") is None


def test_path_shares_on_hopper_are_what_the_probe_measured() -> None:
    probe = json.loads((REPOSITORY / "benchmarks/path_ceiling-nvidia-h200.json").read_text())
    for path in ("HMMA", "HGMMA"):
        assert PATH_SHARE[path, "9.0"] == pytest.approx(probe["paths"][path]["share"], abs=5e-4)
    assert path_share("HMMA+UTCHMMA", "10.3") == pytest.approx(0.4)  # half at a quarter of the rate: 2 / (4 + 1)
    assert path_share("HMMA+QMMA", "10.3") is None
    assert path_share("", "9.0") is None


def test_flat_time_over_growing_work() -> None:
    """A publication's FA4: 0.091 ms at 34.4 GFLOP and at 68.7."""
    assert flat([(2**35, 0.091), (2**36, 0.091)]) == ((2**35, 0.091), (2**36, 0.091))
    assert flat([(2**35, 0.099), (2**36, 0.191)]) is None
    assert flat([(2**35, 0.099)]) is None
    assert flat([(2**35, 0.091), (1.2 * 2**35, 0.091)]) is None  # the work hardly grew


def test_flat_time_is_warned_about_by_name() -> None:
    small, large = timing(0.091, workload="h16", shape=PUBLISHED | {"H": 16}), timing(0.092, workload="h64")
    line = flat_line([small, large])
    assert line is not None
    assert "h64 has 4.0 times the work of h16 and takes 1.01 times as long" in line
    assert flat_line([large]) is None


@pytest.mark.parametrize(
    ("ratio", "path", "capability", "padded", "words"),
    [
        (1.0, "UTCHMMA", "10.0", 1.0, "full work"),
        (1 / 0.254, "HMMA", "10.0", 1.0, "HMMA does 25%"),
        (1.5, "HMMA", "9.0", 1.0, "HMMA does 66%"),  # v13 on an H200
        (1.96, "UTCHMMA", "10.0", 1.0, "half-filled"),
        (1.2, "UTCHMMA", "10.0", 1.2, "padding (1.2000)"),
        (0.8, "HMMA", "9.0", 1.0, "not the same quantity"),
        (2.6, "HGMMA", "9.0", 1.0, "no path or tile"),
    ],
)
def test_what_activity_over_corrected_mfu_means(
    ratio: float, path: str, capability: str, padded: float, words: str
) -> None:
    assert words in activity_meaning(ratio, path, capability, padded)
