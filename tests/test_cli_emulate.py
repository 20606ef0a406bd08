"""`faperf run` and `faperf emulate` on a machine without a GPU."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from faperf.history import History
from faperf.record import Check, EmulatorVerdict
from tests.conftest import REPOSITORY, Cli, UserProject, cli_here, cli_in
from tests.own_operation import add_matrix_product

pytestmark = pytest.mark.compile


@pytest.fixture
def emulated(user: UserProject) -> Cli:
    """The project with v12 beside t1, which computes nothing that is right, and emulation not turned off."""
    for name in ("v12.cu", "ptx.cuh"):
        shutil.copy(REPOSITORY / "kernels" / name, user.root / "kernels" / name)
    manifest = (REPOSITORY / "manifests" / "v12.yaml").read_text(encoding="utf-8")
    user.write("manifests/v12.yaml", manifest.replace("[published, lengths]", "[published]"))
    user.write("manifests/workloads.yaml", (REPOSITORY / "manifests" / "workloads.yaml").read_text(encoding="utf-8"))
    user.edit("manifests/t1.yaml", "workloads: [tiny]", "workloads: [published]")
    (user.root / "pyproject.toml").unlink()
    user.commit()
    return cli_here(user.root)


def test_run_verifies_without_a_gpu_and_once(emulated: Cli, user: UserProject) -> None:
    first = emulated("run", "v12", "--target", "sm_103a")
    assert first.exit_code == 0, first.output
    assert "emulated: right" in first.stdout
    run = History(user.project).newest_run(user.git("rev-parse", "HEAD"))
    assert run is not None
    checks = [found for found in History(user.project).records_of(run.id) if isinstance(found, Check)]
    assert {check.by for check in checks} == {"emulator"}
    assert {check.distribution for check in checks} == {"normal", "growing", "peaked", "large", "ones"}
    assert {check.schedule for check in checks} == {"lockstep", "lazy", "random"}
    assert all(check.shape["S"] in (64, 192) for check in checks)
    assert "warning" not in first.output
    for path in (user.root / ".faperf" / "emulated").iterdir():
        path.write_text(path.read_text().replace('"schedule":', '"warnings":["a race, at v12.cu:7"],"schedule":'))
    kept = {path.name: path.stat().st_mtime_ns for path in (user.root / ".faperf" / "emulated").iterdir()}
    again = emulated("run", "v12", "--target", "sm_103a", "--again")
    assert again.exit_code == 0
    assert again.output.count("v12 for sm_103a: warning: a race, at v12.cu:7") == 1
    assert {path.name: path.stat().st_mtime_ns for path in (user.root / ".faperf" / "emulated").iterdir()} == kept
    assert "Emulated: right" in emulated("show", "v12").stdout
    assert user.git("status", "--porcelain") == ""


def test_several_are_emulated_at_a_time_and_say_the_same(emulated: Cli, user: UserProject) -> None:
    user.edit("kernels/v12.cu", "cp_async_wait<2>();", "cp_async_wait<3>();")
    said = []
    for jobs in ("2", "1"):
        assert cli_in(user.root)("run", "v12", "t1", "--jobs", jobs).exit_code == 5
        run = History(user.project).newest_run(user.git("rev-parse", "HEAD"))
        assert run is not None
        said.append({(entry.version, entry.target): entry.emulated for entry in run.entries})
        shutil.rmtree(user.root / ".faperf" / "emulated")
    assert said[0] == said[1]
    assert {*said[0]} == {("t1", "sm_90a"), ("v12", "sm_90a"), ("v12", "sm_103a")}
    assert all(emulated and emulated.verdict is EmulatorVerdict.WRONG for emulated in said[0].values())


def test_wrong_in_emulation_is_wrong(emulated: Cli, user: UserProject) -> None:
    user.edit("kernels/v12.cu", "cp_async_wait<2>();", "cp_async_wait<3>();")
    answer = emulated("run", "v12", "--target", "sm_103a")
    assert answer.exit_code == 5
    assert "missing wait" in answer.stderr
    assert "kernels/v12.cu:169" in answer.stderr
    assert "emulated: WRONG" in answer.stdout
    one = ("--schedule", "lockstep", "--distribution", "normal")
    assert emulated("emulate", "v12", *one).exit_code == 5
    user.edit("kernels/v12.cu", "cp_async_wait<3>();", "cp_async_wait<2>();")
    answer = emulated("emulate", "v12", *one, "--ctas", "1")
    assert answer.exit_code == 0, answer.output
    assert "emulated[S=192], lockstep, normal: right" in answer.stdout
    assert "(1 of 6 CTAs" in answer.stdout


def test_the_gate_emulates_what_changed(emulated: Cli, user: UserProject) -> None:
    """A wait that is dropped makes no static difference; t1, which computes nothing that is right, has not changed."""
    user.edit("kernels/v12.cu", "cp_async_wait<2>();", "cp_async_wait<3>();")
    user.commit("one wait less")
    answer = emulated("gate", "--baseline", "HEAD~1", "--target", "sm_103a")
    assert answer.exit_code == 5, answer.output
    assert "missing wait" in answer.stdout
    assert emulated("gate", "--baseline", "HEAD~1", "--target", "sm_103a", "--no-gpu").exit_code == 0
    user.edit("kernels/v12.cu", "cp_async_wait<3>();", "cp_async_wait<1>();")  # more than is needed
    answer = emulated("gate", "--baseline", "HEAD~1", "--target", "sm_103a")
    assert answer.exit_code == 0, answer.output
    assert "emulated: right" in answer.stdout


def test_a_projects_own_operation_is_emulated(user: UserProject) -> None:
    """Its three tensors differ in shape, and the output is float32. The installed command finds the module too."""
    add_matrix_product(user)
    faperf = cli_in(user.root)
    answer = faperf("run", "m1", env={"PYTHONSAFEPATH": "1"})
    assert answer.exit_code == 0, answer.output
    assert "emulated: right" in answer.stdout
    user.edit("kernels/m1.cu", "k < K", "k < K - 1")
    answer = faperf("run", "m1")
    assert answer.exit_code == 5
    assert "WRONG on uniform, small: relative L2 error" in answer.stderr
    assert "worst at [M=" in answer.stderr
    user.edit("kernels/m1.cu", "k < K - 1", "k < K")
    user.edit("kernels/m1.cu", "C[m * N + n] = sum", "if (m) C[m * N + n] = sum")
    answer = faperf("run", "m1")
    assert "left 128 of 1024 elements unwritten, the first at [M=0, N=0]" in answer.stderr


def test_what_cannot_be_emulated_holds_nothing_up(emulated: Cli, user: UserProject) -> None:
    user.edit("kernels/v12.cu", "    const int tiles =", "    if (clock() == 7) return;\n    const int tiles =")
    answer = emulated("run", "v12", "--target", "sm_103a")
    assert answer.exit_code == 0, answer.output
    assert "not emulated" in answer.stdout
    assert "clock" in answer.output


def test_workloads_are_as_large_as_the_manifests_clusters_need(emulated: Cli, user: UserProject) -> None:
    user.edit("manifests/v12.yaml", "    block: [128]", "    block: [128]\n    cluster: [2]")
    answer = emulated("emulate", "v12", "--target", "sm_90a", "--schedule", "lockstep", "--distribution", "normal")
    assert answer.exit_code == 0, answer.output
    assert "S=128" in answer.stdout
    assert "S=384" in answer.stdout


def test_no_gpu_and_the_project_can_turn_it_off(emulated: Cli, user: UserProject) -> None:
    assert "emulated" not in emulated("run", "v12", "--no-gpu").stdout
    user.write("pyproject.toml", "[tool.faperf]\nemulate = false\n")
    assert "emulated" not in emulated("run", "v12").stdout


def test_emulate_looks_closer(emulated: Cli, tmp_path: Path) -> None:
    large = ("emulate", "v12", "--schedule", "lockstep", "--distribution", "large")
    errors = []
    for sums in ((), ("--exact-sums",)):
        answer = emulated(*large, *sums)
        assert answer.exit_code == 0, answer.output
        errors.append(re.findall(r"right, relative L2 (\S+)", answer.stdout))
    assert len(errors[0]) == len(errors[1]) == 2
    assert errors[0] != errors[1], "tensor cores cut what numpy rounds"
    traced = emulated(*large, "--trace", "--ctas", "1")
    assert "mma.sync.aligned.m16n8k16" in traced.stdout
    assert len(set(re.findall(r"of CTA (\([0-9, ]+\))", traced.stdout))) == 1, "the one that was drawn"
    for wrong in (("--distribution", "x"), ("--workload", "x")):
        assert emulated("emulate", "v12", *wrong).exit_code == 2
    assert emulated("emulate", "nope").exit_code == 2
