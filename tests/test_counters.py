"""Counters read off what ncu 2025.3.1 wrote of v13 on an H200 (data/ncu), and an ncu that is not there or may not look."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faperf import measuring
from faperf.counters import MARKER, STALLS, TABLE, Counted, Ncu, by_work
from faperf.errors import MeasuringError
from faperf.job import Side
from faperf.metrics import corrected_in
from faperf.operations import Operations
from tests import facts, fake_gpu
from tests.compiling import script
from tests.conftest import REPOSITORY, Cli, UserProject, cli_in

DATA = REPOSITORY / "tests/data/ncu"
METRICS = TABLE["9.0"] | {r: [f"smsp__average_warps_issue_stalled_{r}_per_issue_active.ratio"] for r in STALLS}


def page(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def fake_ncu(folder: Path, run: str = "") -> Path:
    """An `ncu` that answers as the real one did, and runs what it is given to profile."""
    return script(
        folder / "ncu",
        f"""\
case "$*" in
  --query-metrics) cat {DATA}/query-gh100.txt ;;
  --version) echo 'Version 2025.3.1.0 (build 36398880) (public-release)' ;;
  *--import*raw*)
     head -3 {DATA}/v13-raw.csv
     for work in $(cat {folder}/works); do
       sed -n '3s/attention_forward/{MARKER}/p' {DATA}/v13-raw.csv; sed -n 3p {DATA}/v13-raw.csv
     done ;;
  *--import*source*) cat {DATA}/v13-source.csv ;;
  *) echo "$@" > {folder}/asked
     {run}
     for word in "$@"; do case "$word" in peer:*|t1@*|t1) works="$works x" ;; esac; done
     echo $works > {folder}/works
     while [ "$1" != --export ]; do shift; done; touch "$2" ;;
esac""",
    )


def counted(raw: str, source: str = "") -> Counted:
    """The one work of a report."""
    (seen,) = by_work(raw, source, METRICS)
    assert seen is not None
    return seen


def test_v13_as_ncu_counted_it() -> None:
    seen = counted(page("v13-raw.csv"))
    assert seen.entry == "attention_forward"
    assert seen.ms == pytest.approx(0.109088)
    assert (seen.sms, seen.sm_cycles) == (132, 186_305.55)
    assert seen.shares["tensor_active"] == pytest.approx(0.5117)
    assert seen.shares["occupancy"] == pytest.approx(0.1731)
    assert seen.shares["shared_pipe"] == pytest.approx(0.7302)
    assert max(seen.stalls, key=lambda reason: seen.stalls[reason]) == "long_scoreboard"
    assert seen.stalls["wait"] == pytest.approx(1.75)
    # 51.17 % active, 34.1 % of the FLOPs that these cycles allow: HMMA's 2/3 on Hopper
    own = corrected_in(2**35, seen.sm_cycles, seen.sms, 4096)
    assert own == pytest.approx(2**35 / (186_305.55 * 132 * 4096))
    assert own is not None
    assert seen.shares["tensor_active"] / own == pytest.approx(1.5, abs=0.005)


def test_where_warps_waited() -> None:
    source = page("v13-source.csv")
    hot = counted(page("v13-raw.csv"), source).hot
    assert hot
    assert counted(page("v13-raw.csv"), source.replace("attention_forward", "stamp") + source).hot == hot
    assert (
        counted(page("v13-raw.csv"), source + source).hot == []
    )  # two launches of that name: which is whose, nothing says
    assert [h.samples for h in hot] == sorted((h.samples for h in hot), reverse=True)
    assert all(h.offset % 16 == 0 and h.reason in STALLS and h.reason != "selected" for h in hot)


def test_two_kernels_are_added_up_and_averaged_by_time() -> None:
    names, units, row = page("v13-raw.csv").splitlines()
    other = row.replace('"attention_forward"', '"combine"').replace('"109,088"', '"10,908.8"').replace('"51.17"', '"0"')
    seen = counted("\n".join(["a line of the program's", names, units, row, other]))
    assert seen.entry == "attention_forward"
    assert seen.ms == pytest.approx(0.109088 * 1.1)
    assert seen.sm_cycles == pytest.approx(2 * 186_305.55)
    assert seen.shares["tensor_active"] == pytest.approx(0.5117 / 1.1)


def test_works_are_told_apart_by_the_marker_behind_each() -> None:
    names, units, row = page("v13-raw.csv").splitlines()
    mark = row.replace("attention_forward", MARKER)
    half = row.replace('"109,088"', '"54,544"').replace('"51.17"', '"20.00"')
    raw = "\n".join([names, units, row, half, mark, mark, half, mark])
    first, second, third = by_work(raw, "", METRICS)
    assert first is not None
    assert first.shares["tensor_active"] == pytest.approx((2 * 0.5117 + 0.2) / 3)
    assert second is None
    assert third is not None
    assert third.shares["tensor_active"] == pytest.approx(0.2)


def test_peers_as_counted_on_an_h200() -> None:
    """Of the published 2³⁵ FLOPs: TCA over corrected MFU says the path; Math's fp32 products leave the tensor cores idle."""
    ours, cudnn, fa4, fa2, flex, efficient, unfused = by_work(page("peers-raw.csv"), "", METRICS)
    for seen, ratio in ((ours, 1.0), (cudnn, 1.0), (fa4, 1.0), (fa2, 1.5), (flex, 1.0), (efficient, 2.0)):
        assert seen is not None
        own = corrected_in(2**35, seen.sm_cycles, seen.sms, 4096)
        assert own is not None
        assert seen.shares["tensor_active"] / own == pytest.approx(ratio, abs=5e-3)
    assert cudnn is not None
    assert corrected_in(2**35, cudnn.sm_cycles, cudnn.sms, 4096) == pytest.approx(0.6100, abs=5e-5)
    assert unfused is not None
    assert unfused.shares["tensor_active"] < 0.005
    assert unfused.entry.startswith("sm80_xmma_gemm_f32f32")
    assert unfused.ms == pytest.approx(1.484256)  # 14 kernels


def test_several_launches_have_a_marker_behind_each(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Card:
        def mark(self) -> None:
            done.append("mark")

    class Bench:
        def __init__(self, *_: object) -> None:
            self.card = Card()

        def launch(self, side: Side, *_: object, profiled: bool) -> None:
            assert profiled
            done.append(side.version)

    monkeypatch.setattr(measuring, "Bench", Bench)
    measuring.launch_once(facts.job(facts.side("a"), facts.side("b")), Operations({}))
    assert done == ["a", "mark", "b", "mark"]
    done.clear()
    measuring.launch_once(facts.job(facts.side("a")), Operations({}))
    assert done == ["a"]


def test_nothing_launched() -> None:
    assert by_work('"ID"\n""', "", METRICS) == []


@pytest.mark.parametrize(("chip", "capability"), [("gh100", "9.0"), ("gb100", "10.0"), ("gb110", "10.3")])
def test_every_name_of_the_table_is_known_to_ncu(chip: str, capability: str) -> None:
    known = {line.split()[0] for line in page(f"query-{chip}.txt").splitlines()[5:]}
    assert {n.partition(".")[0] for names in TABLE[capability].values() for n in names} <= known


def test_what_this_ncu_does_not_know_is_left_out_and_named(tmp_path: Path) -> None:
    program = fake_ncu(tmp_path)
    ncu = Ncu("10.0", str(program))  # a table of another chip than the one that it lists
    assert "sm__pipe_tensor_subpipe_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed" in ncu.missing
    assert ncu.metrics["UTCHMMA"] == []
    assert ncu.metrics["sm_cycles"] == ["sm__cycles_elapsed.avg"]
    assert Ncu("9.0", str(program)).missing == []


def test_the_clock_is_left_alone_and_one_launch_is_profiled(tmp_path: Path) -> None:
    Ncu("9.0", str(fake_ncu(tmp_path))).count(["program", "argument"], os.environ)
    asked = (tmp_path / "asked").read_text()
    assert "--clock-control none" in asked
    assert "--profile-from-start off" in asked
    assert asked.rstrip().endswith("program argument")


def test_no_permission_says_how_to_get_it(tmp_path: Path) -> None:
    program = fake_ncu(tmp_path, "echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'; exit 1")
    with pytest.raises(MeasuringError, match="NVreg_RestrictProfilingToAdminUsers=0") as caught:
        Ncu("9.0", str(program)).count(["program"], os.environ)
    assert "\n" not in caught.value.what


def test_what_hangs_under_ncu_is_ended_with_it(tmp_path: Path) -> None:
    program = fake_ncu(tmp_path, f"sleep 600 & echo $! > {tmp_path}/profiled; wait")
    with pytest.raises(MeasuringError, match="not done within 1 s"):
        Ncu("9.0", str(program), limit_s=1.0).activities(["program"], os.environ)
    profiled = Path(f"/proc/{(tmp_path / 'profiled').read_text().strip()}/stat")
    assert not profiled.exists() or " Z " in profiled.read_text()


def test_no_ncu() -> None:
    with pytest.raises(MeasuringError, match="not on PATH"):
        Ncu("9.0", "no-such-ncu")


@pytest.mark.compile
def test_run_counts_and_records_and_explain_uses_it(user: UserProject, faperf: Cli, tmp_path: Path) -> None:
    gpu = tmp_path / "gpu"
    environment = fake_gpu.install(gpu)
    fake_ncu(gpu / "bin")
    answer = cli_in(user.root)("run", "--counters", env=environment)
    assert answer.exit_code == 0, answer.output
    assert "TCA" in answer.stdout
    assert "51.2%" in answer.stdout
    asked = (gpu / "bin/asked").read_text()
    assert "exec t1 --once --target sm_90a --workload tiny" in asked
    assert "counters/" in answer.stderr
    shown = faperf("show", "t1").stdout
    assert "no faster than" in shown
    assert "tensor-core activity (TCA)" in shown
    assert "memory 0.0000 ms" in shown  # 128 KiB at 4.8 TB/s
    explained = faperf("explain", "t1").stdout
    assert "stalls: long scoreboard (limits)" in explained
    assert "shared-memory bandwidth" in explained

    fake_ncu(gpu / "bin", "echo ERR_NVGPUCTRPERM; exit 1")
    refused = faperf("run", "--counters", "--again", env=environment)
    assert refused.exit_code == 0
    assert "NVreg_RestrictProfilingToAdminUsers" in refused.stderr
    assert "counters/" not in refused.stderr


@pytest.mark.compile
def test_counters_without_a_gpu_or_without_ncu(user: UserProject, faperf: Cli, tmp_path: Path) -> None:
    answer = faperf("run", "--counters", "--no-gpu")
    assert (answer.exit_code, "no counters: there is no GPU here" in answer.stderr) == (0, True)
