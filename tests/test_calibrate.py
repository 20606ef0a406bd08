"""What calibrating comes to, by hand; and the command on a GPU host that is made up, with what the gate makes of it."""

from __future__ import annotations

import json
import math
import shutil
import signal
from pathlib import Path

import pytest

from faperf import record
from faperf.calibrate import summed
from faperf.history import History
from faperf.judge import Thresholds
from faperf.looks import BASELINE, Look, pooled
from faperf.power import caught, smallest_change
from faperf.record import Calibration, Interval, Pair, Protocol, Timing
from faperf.toolchain import Toolchain
from tests import fake_gpu
from tests.conftest import UserProject
from tests.fake_gpu import log, timed
from tests.test_cli_measure import Host, started

LIMITS = Thresholds()


def look(instances: list[float], value: float, void: bool = False) -> Timing:
    time = Interval(value=value, low=value - 1e-4, high=value + 1e-4)
    return Timing(
        schema=record.SCHEMA,
        build="b13",
        launch="l",
        workload="published",
        shape={"S": 1024},
        machine="h200",
        gpu="H200",
        card="c",
        driver="580",
        regime="burst",
        protocol=record.PROTOCOL_VERSION,
        ms=Interval(value=1, low=1, high=1),
        tflops=1,
        gib_s=1,
        launches=1,
        void=["thermal"] if void else [],
        pairs=[Pair(role=BASELINE, build="b13", version="v13", time=time, instances=instances)],
    )


def test_what_gates_come_to_by_hand() -> None:
    same, alarm = look([0.001, -0.001] * 5, 0.001), look([-0.006] * 10, -0.006)
    void, unsure = look([9.0] * 10, 9.0, void=True), look([0.01, -0.01] * 5, -0.002)
    gates = [
        Look(same, same),
        Look(alarm, alarm),
        Look(void, same),
        Look(void, void),
        Look(unsure, pooled(unsure, same)),
    ]
    found = summed(gates, "v13", "sm_90a", Protocol(), LIMITS)
    assert (found.gates, found.false_alarms, found.inconclusive, found.void, found.second_looks) == (5, 1, 1, 1, 2)
    # first looks that are not void, in thousandths: ten of ±1, −6 and ±10 each; 1, −6 and −2
    assert found.load_luck == pytest.approx(1e-3 * math.sqrt((1 + 36 + 100) / 3))
    assert found.estimate_sd == pytest.approx(1e-3 * math.sqrt((1 + 36 + 4) / 3))
    spread = 1e-3 * math.sqrt(41 / 3) * math.sqrt(10)  # the estimates scatter by more than so many instances explain
    assert found.detects == smallest_change(spread, 10, LIMITS)
    assert found.needed_s is None  # no budget sees 0.5 % through that
    assert (found.version, found.workload, found.regime, found.budget_s, found.instances) == (
        *("v13", "published", "burst"),
        *(2.0, 10),
    )


# ── the command ──

WORKLOADS = """\
schema: 1
workloads:
  tiny:
    operation: attention_forward
    shape: {B: 1, H: 2, S: 128, D: 64}
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, toolchain: Toolchain) -> Path:
    """A committed project of t1 and t2, its child, on main."""
    folder = tmp_path_factory.mktemp("template")
    user = UserProject(folder / "project")
    user.write("manifests/workloads.yaml", WORKLOADS)
    user.commit_two_versions(shared_cache)
    return user.root


@pytest.fixture
def host(template: Path, tmp_path: Path) -> Host:
    root = shutil.copytree(template, tmp_path / "project", symlinks=True)
    return Host(UserProject(root), tmp_path / "gpu", fake_gpu.install(tmp_path / "gpu"))


def recorded(host: Host) -> list[Calibration]:
    return History(host.user.project).calibrations()


@pytest.mark.compile
def test_every_version_takes_turns_with_itself(host: Host) -> None:
    answer = host("calibrate", "--gates", "3")
    assert answer.exit_code == 0, answer.output
    assert timed(host.folder) == ["t1@sm_90a", "t2@sm_90a"] * 3
    times = [line for line in log(host.folder) if line.startswith("time ")]
    assert times[0] == "time t1@sm_90a baseline=t1@sm_90a baseline on tiny"
    checked = [line.split(" ", 1)[1] for line in log(host.folder) if line.startswith("check ")]
    assert len([line for line in checked if line.startswith("t1@sm_90a baseline")]) == 5
    t1, t2 = recorded(host)
    assert [(c.version, c.gates, c.false_alarms, c.inconclusive, c.second_looks) for c in (t1, t2)] == [
        ("t1", 3, 0, 0, 0),
        ("t2", 3, 0, 0, 0),
    ]
    assert t1.load_luck == pytest.approx(1e-4 * math.sqrt(8.25))  # ±0.5, ±1.5 … ±4.5
    assert (t1.machine, t1.regime, t1.id) == (fake_gpu.CLASS, "burst", t2.id)
    (path,) = (host.user.root / ".faperf/history").glob("*/calibrations/*.jsonl")
    assert (path.parent.parent.name, path.stem) == (fake_gpu.CLASS, t1.id)
    assert "0 false alarms in 6 gates, 0 inconclusive; the rate of false alarms is at most 39.30%" in answer.stdout
    assert host("ladder").exit_code == 0  # which does not take it for a run
    assert host.user.git("status", "--porcelain") == ""


@pytest.mark.compile
def test_calibrations_of_several_runs_add_up_without_a_gpu(host: Host) -> None:
    assert "Nothing is calibrated yet" in host("calibrate", "--show").stdout
    for _ in range(2):
        assert host("calibrate", "t1", "--gates", "2").exit_code == 0
    assert len(recorded(host)) == 2
    shown = host("calibrate", "--show", "--format", "json", env={"CUDA_VISIBLE_DEVICES": "-1"})
    assert shown.exit_code == 0
    found = json.loads(shown.stdout)
    assert [(c["version"], c["gates"]) for c in found["calibrations"]] == [("t1", 4)]
    (tally,) = found["tallies"]
    assert (tally["gates"], tally["at_most"]) == (4, pytest.approx(1 - 0.05**0.25))


@pytest.mark.compile
def test_an_enrolled_machine_shares_its_calibrations_under_its_own_class(host: Host) -> None:
    assert host("machine", "add", "--class", "our-h200").exit_code == 0
    assert host("calibrate", "t1", "--gates", "2").exit_code == 0
    (path,) = (host.user.root / "history").glob("*/calibrations/*.jsonl")
    assert path.parent.parent.name == "our-h200"
    assert [c.machine for c in recorded(host)] == ["our-h200"]


@pytest.mark.compile
def test_false_alarms_are_counted(host: Host) -> None:
    host.plan(**{"t1@sm_90a baseline": {"ms": 0.99}})
    answer = host("calibrate", "t1", "--gates", "2")
    assert answer.exit_code == 0, answer.output
    (found,) = recorded(host)
    assert (found.gates, found.false_alarms, found.inconclusive) == (2, 2, 0)
    assert "2 false alarms in 2 gates, 0 inconclusive; the rate of false alarms is at most 100.00%" in answer.stdout


@pytest.mark.compile
def test_what_is_inconclusive_gets_its_second_look(host: Host) -> None:
    """Over ±0.45 % the interval reaches beyond ±0.5 % with a shift of 0.2 %; twenty of them decide."""
    host.plan(**{"t1": {"noise": 1e-3}, "t1@sm_90a baseline": {"ms": math.exp(-0.002)}})
    answer = host("calibrate", "t1", "--gates", "2", "--budget", "2")
    assert answer.exit_code == 0, answer.output
    assert "inconclusive: 2 measured once more" in answer.stderr
    assert timed(host.folder) == ["t1@sm_90a"] * 4
    (found,) = recorded(host)
    assert (found.gates, found.second_looks, found.false_alarms, found.inconclusive) == (2, 2, 0, 0)


@pytest.mark.compile
def test_a_wrong_kernel_is_not_calibrated_and_the_others_are(host: Host) -> None:
    host.plan(t1={"wrong": "O[0] is nan"})
    answer = host("calibrate", "--gates", "2")
    assert answer.exit_code == 5, answer.output
    assert "a kernel is wrong, so it was not calibrated" in answer.stderr
    assert [c.version for c in recorded(host)] == ["t2"]


@pytest.mark.compile
def test_what_was_measured_before_an_interrupt_is_kept(host: Host) -> None:
    """t1's first gate is done, and undecided without a second look; t2 is being verified."""
    assert host("calibrate", "--budget", "1").exit_code == 2
    assert log(host.folder) == []
    host.plan(t1={"noise": 1e-3}, t2={"until": "never"}, **{"t1@sm_90a baseline": {"ms": math.exp(-0.002)}})
    process = started(host, "calibrate", until="check t2@sm_90a")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    (found,) = recorded(host)
    assert (found.version, found.gates, found.inconclusive, found.second_looks) == ("t1", 1, 1, 0)
    (path,) = (host.user.root / ".faperf/history").glob("*/calibrations/*.jsonl")
    assert f"Recorded: {path.relative_to(host.user.root)}" in stderr


@pytest.mark.compile
def test_without_a_gpu_it_says_so(host: Host) -> None:
    answer = host("calibrate", env={"CUDA_VISIBLE_DEVICES": "-1"})
    assert answer.exit_code == 1
    assert "calibrate needs a GPU and cupy: CUDA_VISIBLE_DEVICES hides every GPU" in answer.stderr
    assert "→ faperf doctor" in answer.stderr
    assert recorded(host) == []


# ── the gate ──


def changed(host: Host) -> str:
    """A new t1 on a branch, to be gated against the commit before."""
    before = host.user.git("rev-parse", "HEAD").strip()
    host.user.edit("kernels/t1.cu", "2.0f", "5.0f")
    host.user.commit("another factor")
    return before


@pytest.mark.compile
def test_the_gate_refuses_a_threshold_that_its_budget_does_not_see(host: Host) -> None:
    before = changed(host)
    host.plan(t1={"noise": 1.4e-3})  # ±0.63 %: a standard deviation of 0.4 %
    assert host("calibrate", "t1", "--gates", "2").exit_code == 0
    (found,) = recorded(host)
    assert caught(0.005, found.load_luck, 10, LIMITS) < 0.99
    assert found.needed_s is not None
    host.forget()
    answer = host("gate", "--baseline", before)
    assert answer.exit_code == 1
    assert "time_detect is 0.50%, but with 2 s of GPU time a version this machine sees" in answer.stderr
    assert f"→ --budget {found.needed_s:g} would do" in answer.stderr
    assert log(host.folder) == []
    bisected = host("bisect", "t1", "--good", before)  # may still look for a change that is larger
    assert "time_detect" not in bisected.output
    assert timed(host.folder) != []
    host.plan()
    answer = host("gate", "--baseline", before, "--budget", f"{found.needed_s:g}")
    assert answer.exit_code == 0, answer.output
    assert "not calibrated" not in answer.stdout


@pytest.mark.compile
def test_a_gate_on_a_machine_that_is_not_calibrated_says_so(host: Host) -> None:
    before = changed(host)
    answer = host("gate", "--baseline", before)
    assert answer.exit_code == 0, answer.output
    assert "not calibrated on this machine for tiny: faperf calibrate" in answer.stdout
    unmeasured = host("gate", "--baseline", before, "--no-gpu")
    assert "not calibrated" not in unmeasured.stdout
