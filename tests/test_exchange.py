"""Figures for other tools and from them: `faperf export`, `faperf import`."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from faperf import record
from faperf.comparison import Figure
from faperf.errors import HistoryError
from faperf.history import History
from faperf.nvbench import figures_in, is_nvbench
from faperf.record import Entry, Run
from faperf.report.export import to_csv, to_github_action_benchmark
from tests import fake_gpu
from tests.conftest import REPOSITORY, Cli, UserProject, cli_in

NVBENCH = REPOSITORY / "tests/data/nvbench/axes.json"
NVBENCH_TODAY = NVBENCH.with_name("softmax-h200.json")


@pytest.fixture
def measured(user: UserProject, tmp_path: Path) -> Cli:
    """A project whose two commits were timed on a GPU host that is made up: t1 takes 1 ms, and then 2."""
    env = fake_gpu.install(tmp_path / "gpu")
    for ms, factor in ((1.0, "2.0f"), (2.0, "2.5f")):
        user.version("t1", factor=factor)
        user.commit("another factor")
        fake_gpu.plan(tmp_path / "gpu", t1={"ms": ms})
        answer = cli_in(user.root)("run", env=env)
        assert answer.exit_code == 0, answer.output
    return cli_in(user.root)


@pytest.mark.compile
def test_exports_say_what_was_measured(measured: Cli, user: UserProject) -> None:
    rows = list(csv.DictReader(io.StringIO(measured("export", "csv", "--all").stdout)))
    assert [float(row["ms"]) for row in rows] == [1.0, 2.0]
    assert rows[1]["commit"] == user.git("rev-parse", "HEAD")
    assert (rows[0]["version"], rows[0]["target"], rows[0]["workload"]) == ("t1", "sm_90a", "tiny")
    assert float(rows[1]["tflops"]) == pytest.approx(4 * 2 * 128**2 * 64 / 2e-3 / 1e12)
    assert int(rows[0]["registers"]) > 0
    assert (rows[0]["spill_bytes"], rows[0]["carried"]) == ("0", "False")

    charted = json.loads(measured("export", "github-action-benchmark", "--commit", "HEAD~1").stdout)
    (entry,) = charted
    assert {key: entry[key] for key in ("name", "unit", "value", "range")} == {
        "name": "t1 sm_90a tiny",
        "unit": "ms",
        "value": 1.0,
        "range": "± 0.001",
    }
    for name, commit in (("before", "HEAD~1"), ("after", "HEAD")):
        answer = measured("export", "pytest-benchmark", "--commit", commit, "--out", f"{name}.json")
        assert answer.stdout == f"{name}.json: 1 figures, 1 of them timed\n"
    command = [str(Path(sys.executable).with_name("pytest-benchmark")), "compare", "before.json", "after.json"]
    compared = subprocess.run(command, cwd=user.root, capture_output=True, text=True, check=True).stdout
    assert compared.count("time[t1-sm_90a-tiny]") == 2
    assert "1.0000 (1.0)" in compared
    assert "2.0000 (2.00)" in compared
    assert measured("export", "pytest-benchmark", "--all").exit_code == 2


def test_nothing_to_export(user: UserProject) -> None:
    answer = cli_in(user.root)("export", "pytest-benchmark")
    assert answer.exit_code == 1
    assert "nothing to export" in answer.stderr


def test_no_cell_is_a_formula() -> None:
    run = Run(schema=1, id="r", commit=None, when="=1+1", faperf="1", machine="@evil", entries=[])
    figure = Figure(
        version="v1", target="sm_90a", workload="-w", run=run, entry=Entry(version="v1", target="sm_90a"), build=None
    )
    (row,) = csv.DictReader(io.StringIO(to_csv([figure])))
    assert (row["when"], row["machine"], row["workload"]) == ("'=1+1", "'@evil", "'-w")
    assert json.loads(to_github_action_benchmark([figure])) == []  # not timed


# ── nvbench ──


def test_what_nvbench_wrote_is_a_kind_of_its_own(user: UserProject) -> None:
    faperf = cli_in(user.root)
    answer = faperf("import", str(NVBENCH), "--version", "t1")
    assert answer.exit_code == 0, answer.output
    assert (
        "4 figures of nvbench 0.1.0 (old-cmake-63-g348acbd) for t1, by its protocol: .faperf/history/external/nvbench/"
        in answer.stdout
    )
    first, second, *_ = History(user.project).external("t1")
    assert (first.gpu, second.gpu) == ("Quadro GV100", "Quadro GP100")
    assert first.ms == pytest.approx(1.0034715849794225)  # as nvbench's own table has it: 1.003 ms
    assert first.batch_ms == pytest.approx(1.001475909284053)
    assert first.noise == pytest.approx(0.0005782350585973689)
    assert first.samples == 499
    shown = faperf("show", "t1").stdout
    assert "By nvbench 0.1.0 (old-cmake-63-g348acbd) and its protocol, not by faperf's: not to be compared" in shown
    assert "BlockSize=64, NumBlocks=64" in shown
    kept = list((user.root / ".faperf/history/external/nvbench").iterdir())
    before = kept[0].read_bytes()
    assert faperf("import", str(NVBENCH), "--version", "t1").exit_code == 0
    assert [path.read_bytes() for path in (user.root / ".faperf/history/external/nvbench").iterdir()] == [before]
    assert faperf("export", "csv").exit_code == 1  # nothing of ours was measured, and theirs is not ours


def test_what_nvbench_writes_today(user: UserProject) -> None:
    """cuda-bench 0.3.0 on an H200 (tests/data/nvbench): a state is skipped, a benchmark is not batched, samples lie beside it."""
    faperf = cli_in(user.root)
    answer = faperf("import", str(NVBENCH_TODAY), "--version", "t1")
    assert answer.exit_code == 0, answer.output
    assert "3 figures of nvbench 0.1.0 (python-0.3.0) for t1" in answer.stdout
    assert "Left out, as nvbench skipped them: 2 states (too few rows to fill the chip)" in answer.stderr
    small, _, once = History(user.project).external("t1")
    assert small.axes == {"Rows": "4096", "Columns": "4096"}
    assert (small.gpu, small.samples, once.benchmark, once.batch_ms) == ("NVIDIA H200", 6768, "softmax_once", None)
    assert small.ms == pytest.approx(0.07397594796515683)
    assert small.batch_ms == pytest.approx(0.07288640955151287)
    assert small.clock_mhz == pytest.approx(1973.061786855792)
    assert "1973 MHz" in faperf("show", "t1").stdout


def test_whose_figures_they_are_must_be_said(user: UserProject) -> None:
    faperf = cli_in(user.root)
    answer = faperf("import", str(NVBENCH))
    assert answer.exit_code == 2
    assert "no version is called as a benchmark of it: simple, copy_sweep_grid_shape" in answer.stderr
    renamed = user.write("bench.json", NVBENCH.read_text().replace('"simple"', '"t1"'))
    answer = faperf("import", str(renamed))
    assert answer.exit_code == 0, answer.output
    assert "2 figures" in answer.stdout
    assert "Left out, as no version is called so: copy_sweep_grid_shape" in answer.stderr
    assert faperf("import", str(NVBENCH), "--version", "nope").exit_code == 2


def test_files_are_told_apart_by_their_content(user: UserProject) -> None:
    faperf = cli_in(user.root)
    other = user.write("other.json", '{"benchmarks": []}')
    answer = faperf("import", str(other))
    assert answer.exit_code == 1
    assert "not a results file" in answer.stderr or "results file" in answer.stderr
    assert is_nvbench(NVBENCH.read_bytes())
    assert not is_nvbench(b"\x00\xff")


def test_states_without_a_figure_are_left_out() -> None:
    content = json.loads(NVBENCH.read_text())
    states = content["benchmarks"][0]["states"]
    states[0] |= {"is_skipped": True, "summaries": None}
    states[1]["summaries"] = [{"tag": "nv/cold/time/gpu/mean", "data": [{"name": "value", "value": "nan"}]}]
    found = figures_in(json.dumps(content).encode(), {"simple": "t1"}, None, "now")
    assert found == []
    content["benchmarks"] = "all"
    with pytest.raises(HistoryError, match="nvbench"):
        figures_in(json.dumps(content).encode(), {}, None, "now")


def test_a_record_of_another_tool_is_read_back() -> None:
    (figure, *_) = figures_in(NVBENCH.read_bytes(), {"simple": "t1"}, "c" * 40, "2026-11-30T00:00:00+00:00")
    assert record.decode(record.encode(figure).strip()) == figure
