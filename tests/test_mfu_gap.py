"""The published account's figures from its own readings, and a run of whose parts some fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import mfu_gap
from benchmarks.mfu_gap import HEADERS, WORKS, cells, figures, tile_of
from faperf.report.tables import table
from tests import fake_gpu
from tests.compiling import script
from tests.conftest import REPOSITORY
from tests.test_counters import fake_ncu

FLOPS = 2 * 4096**3


def test_an_h100_as_published() -> None:
    """16384×4096×16384: clock64's 1340 MHz, NVML's 1471, MFU 63.07 %, TCA 94.70 %, a tile of 320×128.

    Its correction takes 1980 MHz for the clock of 989 TFLOPS, which 132 SMs reach at 1830: ours is that much lower.
    """
    work = WORKS["matmul 16384×4096×16384"]
    row = {
        "ms": work.flops / (0.6307 * 989e9),
        "clock_mhz": 1340.0,
        "nvml_mhz": 1471.0,
        "sms": 132,
        "tca": 0.9470,
        "cycles": 1.0,
        "counted_sms": 132,
        "kernel": "nvjet_tst_320x128_64x3_2x1_v_bz_TNT",
    }
    found = figures(row, work, "9.0")
    assert found["mfu"] == pytest.approx(0.6307)
    assert found["nvml_high"] == pytest.approx(0.098, abs=5e-4)
    assert found["padding"] == 1.015625
    clock_of_peak = 989e12 / (132 * 4096) / 1e6
    assert found["corrected"] == pytest.approx(0.6307 * clock_of_peak / 1340)
    assert found["corrected"] * 1980 / clock_of_peak == pytest.approx(0.9320, abs=5e-4)  # it says 93.07 %
    assert found["corrected_by_nvml"] == pytest.approx(0.6307 * clock_of_peak / 1471)
    assert found["left"] == pytest.approx(0.9470 - found["corrected"] * 1.015625)


def test_the_paths_share_is_no_gap() -> None:
    """FA2 in one launch counted on an H200: 2³⁵ FLOPs in 193,143.4 cycles, TCA 49.35 %."""
    row = {"tca": 0.4935, "cycles": 193_143.4, "counted_sms": 132, "kernel": "flash_fwd_kernel"}
    found = figures(row, WORKS["FA2 S=1024 D=128"], "9.0")
    assert abs(found["left_there"]) < 0.006  # the probe reached 66.0 % of the rate, these cycles did 66.7 %
    assert "left" not in found  # it was not timed


def test_the_docs_show_what_was_measured() -> None:
    rows = json.loads((REPOSITORY / "benchmarks/mfu_gap-nvidia-h200.json").read_text())["rows"]
    for row in rows:
        assert row == row | figures(row, WORKS[row["name"]], "9.0")
    assert table(HEADERS, [cells(row) for row in rows], "markdown") in (REPOSITORY / "docs/mfu.md").read_text()


@pytest.mark.parametrize(
    ("kernel", "tile"), [("nvjet_sm90_hsh_192x192_64x4_2x1_v_bz_coopB_NNN", (192, 192)), ("flash_fwd_kernel", None)]
)
def test_cublas_says_its_tile(kernel: str, tile: tuple[int, int] | None) -> None:
    assert tile_of(kernel) == tile


def test_a_part_that_fails_or_hangs_costs_its_own_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in fake_gpu.install(tmp_path).items():
        monkeypatch.setenv(name, value)
    child = script(
        tmp_path / "child",
        """\
case "$2" in
  *FA2*) sleep 60 ;;
  *16384*) echo 'CUDA error: out of memory' >&2; exit 1 ;;
  *) echo '{"ms": 0.2, "clock_mhz": 1500.0, "nvml_mhz": 1650.0, "sms": 132, "watts": 690.0}' ;;
esac""",
    )
    monkeypatch.setattr(mfu_gap, "CHILD", [str(child)])
    fake_ncu(tmp_path / "bin", 'case "$*" in *cuDNN*) sleep 60 ;; esac')
    out = tmp_path / "rows.json"
    mfu_gap.compare(list(WORKS), 1.0, out)
    rows = json.loads(out.read_text())["rows"]
    assert [row["name"] for row in rows] == list(WORKS)
    small, large, fa2, cudnn = rows
    assert small["corrected"] == pytest.approx(FLOPS / 0.2e-3 / 1500e6 / 132 / 4096)
    assert small["tca"] == 0.5117
    assert "failed" not in small
    assert large["failed"] == {"timed": "exit 1: CUDA error: out of memory"}
    assert fa2["failed"] == {"timed": "not done within 1 s"}
    assert (fa2["tca"], "mfu" in fa2) == (0.5117, False)
    assert list(cudnn["failed"]) == ["counted"]
    assert cudnn["mfu"] == pytest.approx(2**35 / 0.2e-3 / 989e12)
    assert "| matmul 4096³ " in capsys.readouterr().out
