"""`pytest --faperf` as a user runs it: a process of its own, in a project of its own, warnings as errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from faperf.toolchain import Toolchain
from tests import fake_gpu
from tests.compiling import script
from tests.conftest import Answer, UserProject
from tests.fake_gpu import timed
from tests.own_operation import add_matrix_product

STRICT = '[tool.pytest.ini_options]\nfilterwarnings = ["error"]\naddopts = "--strict-markers --strict-config"\n'


def run_pytest(root: Path, *arguments: str, env: dict[str, str] | None = None) -> Answer:
    outside = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }  # it is no xdist worker
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *arguments],
        cwd=root,
        env=outside | {"COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"} | (env or {}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Answer(answer.returncode, answer.stdout, answer.stderr)


def outcomes(answer: Answer) -> dict[str, str]:
    """Test → outcome, of `pytest -v`."""
    found = re.findall(r"^(?:\[gw\d+\].*?)?(\S+::\S+) (PASSED|FAILED|SKIPPED|ERROR)", answer.stdout, re.MULTILINE)
    found += [(name, word) for word, name in re.findall(r"\] (PASSED|FAILED|SKIPPED|ERROR) (\S+::\S+)", answer.stdout)]
    return {name.removeprefix("manifests/"): word for name, word in found}


@pytest.fixture
def products(user: UserProject) -> UserProject:
    """t1, which is not emulated, and m1, a product of matrices that is; committed twice, on a branch of main."""
    add_matrix_product(user)
    config = (user.root / "pyproject.toml").read_text()
    user.write("pyproject.toml", f'{config}default-branch = "main"\n{STRICT}')
    user.write("tests/test_own.py", "def test_own():\n    pass\n")
    (user.root / "manifests/t1.yaml").unlink()
    user.commit("a product")
    user.git("switch", "--quiet", "--create", "work")
    user.commit("work")
    return user


@pytest.mark.compile
def test_each_fact_is_a_test(products: UserProject) -> None:
    answer = run_pytest(products.root, "--faperf", "-v", "--benchmark-disable")
    assert answer.exit_code == 0, answer.output
    assert outcomes(answer) == {
        "m1.yaml::compile[sm_90a]": "PASSED",
        "m1.yaml::verify[sm_90a]": "PASSED",
        "m1.yaml::gate[sm_90a]": "PASSED",
        "m1.yaml::time[m1-sm_90a-small]": "SKIPPED",
        "tests/test_own.py::test_own": "PASSED",
    }
    assert list((products.root / ".faperf/pytest").iterdir()) == []
    assert products.git("status", "--porcelain") == ""


@pytest.mark.compile
def test_failures_say_what_is_wrong_and_what_to_do(products: UserProject) -> None:
    products.edit("kernels/m1.cu", "k < K", "k < K - 1")
    products.edit("manifests/m1.yaml", "tile:", "budgets: {registers: 8}\ntile:")
    products.write("kernels/m2.cu", (products.root / "kernels/m1.cu").read_text().replace("K - 1", "nowhere"))
    products.write("manifests/m2.yaml", (products.root / "manifests/m1.yaml").read_text().replace("m1", "m2"))
    answer = run_pytest(products.root, "--faperf", "-v", "--tb=short", "-k", "m1 or compile")
    assert answer.exit_code == 1, answer.output
    found = outcomes(answer)
    assert found["m1.yaml::compile[sm_90a]"] == "PASSED"
    assert {found[f"m1.yaml::{what}[sm_90a]"] for what in ("budgets", "verify", "gate")} == {"FAILED"}
    assert found["m2.yaml::compile[sm_90a]"] == "FAILED"
    assert "m2.yaml::verify[sm_90a]" not in found
    assert "manifests/m1.yaml, budgets: " in answer.stdout
    assert "registers, over the budget of 8" in answer.stdout
    assert "m1 for sm_90a is wrong by emulator on uniform (M=8, N=128, K=48): relative L2 error" in answer.stdout
    assert "→ faperf emulate m1 --target sm_90a --distribution uniform --schedule lockstep --seed " in answer.stdout
    assert "m1 for sm_90a: WRONG" in answer.stdout
    assert 'identifier "nowhere" is undefined' in answer.stdout
    assert "Traceback" not in answer.output
    assert "site-packages" not in answer.stdout.partition("short test summary")[0].partition("FAILURES")[2]


def test_what_is_selected_alone_is_collected(bare: UserProject) -> None:
    """By a target, by -k and -x; and a manifest that cannot be read is one test."""
    bare.version("t1")
    bare.write("manifests/bad.yaml", "schema: 1\nid: bad\nnope: 1\n")
    listed = run_pytest(bare.root, "--faperf", "--collect-only", "-q", "manifests", "--faperf-target", "sm_80")
    assert listed.stdout.splitlines()[0] == "manifests/bad.yaml::manifest"
    assert "t1" not in listed.stdout
    bad = run_pytest(bare.root, "--faperf", "-x", "-k", "bad or verify")
    assert bad.exit_code == 1
    assert "manifests/bad.yaml:3" in bad.stdout
    assert "1 failed, " in bad.stdout  # and with -x nothing after it


@pytest.mark.compile
def test_xdist_does_nothing_twice(products: UserProject, toolchain: Toolchain, tmp_path: Path) -> None:
    products.write(
        "kernels/m2.cu", (products.root / "kernels/m1.cu").read_text().replace("float sum = 0", "float sum = 0.f")
    )
    products.write("manifests/m2.yaml", (products.root / "manifests/m1.yaml").read_text().replace("m1", "m2"))
    products.edit("pyproject.toml", "[tool.faperf]\n", "[tool.faperf]\nemulate = false\n")
    (products.root / ".faperf/cache").unlink()
    count = 'case "$*" in *--dryrun*) ;; *--cubin*) echo x >> ' + f'"{tmp_path}/compiled" ;; esac'
    counting = script(tmp_path / "counting" / "nvcc", f'{count}\nexec {toolchain.nvcc} "$@"')
    answer = run_pytest(
        products.root, "--faperf", "-v", "-n2", "-p", "no:benchmark", env={"FAPERF_NVCC": str(counting)}
    )
    assert answer.exit_code == 0, answer.output
    found = outcomes(answer)
    assert len(found) == 7
    assert {name.partition("::")[2] for name, word in found.items() if word == "SKIPPED"} == {"verify[sm_90a]"}
    assert "emulate is off" in answer.stdout
    assert (tmp_path / "compiled").read_text().split() == ["x", "x"]
    assert list((products.root / ".faperf/pytest").iterdir()) == []


@pytest.mark.compile
def test_times_go_to_pytest_benchmark(user: UserProject, tmp_path: Path) -> None:
    """On a GPU host that is made up: saved twice, and read by pytest-benchmark's own compare."""
    env = fake_gpu.install(tmp_path / "gpu")
    env["PYTHONPATH"] = f"{tmp_path / 'gpu/python'}:{env['PYTHONPATH']}"
    site = tmp_path / "gpu/python/sitecustomize.py"
    site.write_text(site.read_text().replace("{'run', ", "{'pytest', 'run', "))
    user.version("t2", "t1", factor="7.0f")
    for ms in (1.0, 2.0):
        fake_gpu.plan(tmp_path / "gpu", t1={"ms": ms}, t2={"wrong": "all of it"})
        answer = run_pytest(user.root, "--faperf", "-v", "--benchmark-save", "run", "-k", "verify or time", env=env)
        found = outcomes(answer)
        assert (found["t1.yaml::verify[sm_90a]"], found["t1.yaml::time[t1-sm_90a-tiny]"]) == ("PASSED", "PASSED")
        assert (found["t2.yaml::verify[sm_90a]"], found["t2.yaml::time[t2-sm_90a-tiny]"]) == ("FAILED", "FAILED")
        assert "what is wrong is not timed" in answer.stdout
    assert timed(tmp_path / "gpu") == ["t1@sm_90a"] * 2  # once a session, though two tests asked
    first, second = sorted((user.root / ".benchmarks").rglob("*.json"))
    (kept,) = json.loads(second.read_text())["benchmarks"]
    assert kept["stats"]["mean"] == pytest.approx(2e-3)
    assert kept["extra_info"]["tflops"] == pytest.approx(4 * 2 * 128**2 * 64 / 2e-3 / 1e12)
    command = [str(Path(sys.executable).with_name("pytest-benchmark")), "compare", str(first), str(second)]
    compared = subprocess.run(command, cwd=user.root, capture_output=True, text=True, check=True)
    assert compared.stdout.count("time[t1-sm_90a-tiny]") == 2
    assert "(2.00)" in compared.stdout


def test_without_the_option_nothing_is_collected_and_nothing_is_loaded(bare: UserProject) -> None:
    bare.version("t1")
    bare.write("pyproject.toml", STRICT)
    program = (
        "import sys, pytest\n"
        "code = pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider'])\n"
        "print(code, *sorted(name for name in sys.modules if name.partition('.')[0] in ('faperf', 'msgspec', 'yaml', 'git')))\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], cwd=bare.root, capture_output=True, text=True)
    assert answer.stdout.splitlines()[-1] == "5 faperf faperf.pytest_plugin", answer.stdout + answer.stderr


def test_where_there_is_no_baseline_the_gate_is_skipped(bare: UserProject) -> None:
    from faperf.checking import Checker
    from faperf.errors import SelectionError

    checker = Checker(bare.project, bare.root / "shared")
    bare.version("t1")
    step = (checker.manifests.versions["t1"], "sm_90a")
    with pytest.raises(SelectionError, match="no git repository"):
        checker.gate(step)
    bare.git("init", "--quiet")
    bare.commit("first")
    with pytest.raises(SelectionError, match="first commit"):
        Checker(bare.project, bare.root / "shared").gate(step)
