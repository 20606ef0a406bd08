"""What faperf itself costs, as a user waits for it: whole processes. `make bench` prints the table.

Goals: --help 150 ms; a run of 20 unchanged versions 1 s; a ladder over 1,000 stored runs 0.5 s; cold compilation within
1.1 × of plain nvcc with as many jobs, inspection aside (0.2 s a cubin).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from faperf import record
from faperf.build import Builder
from faperf.manifest import load_manifests
from faperf.record import Run
from faperf.toolchain import Toolchain, find_toolchain
from tests.conftest import REPOSITORY, UserProject, _plain_environment, bare, shared_cache, user  # noqa: F401

VERSIONS = 20
RUNS = 1_000


def faperf(directory: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "faperf", *arguments], cwd=directory, check=True, capture_output=True)


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    return find_toolchain()


@pytest.fixture
def many(user: UserProject) -> UserProject:  # noqa: F811
    """Twenty versions, committed and run."""
    for n in range(2, VERSIONS + 1):
        user.version(f"t{n}", f"t{n - 1}", factor=f"{n}.0f")
    user.commit()
    faperf(user.root, "run", "--no-gpu")
    return user


def test_help(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    benchmark.pedantic(faperf, (tmp_path, "--help"), rounds=20, warmup_rounds=2)


def test_run_unchanged(benchmark: BenchmarkFixture, many: UserProject) -> None:
    benchmark.pedantic(faperf, (many.root, "run", "--no-gpu"), rounds=10, warmup_rounds=1)


def test_ladder_over_stored_runs(benchmark: BenchmarkFixture, many: UserProject) -> None:
    """A thousand commits, each with a run that is on disk."""
    folder = next((many.root / ".faperf/history").glob("*/*.jsonl")).parent
    (stored,) = (msgspec.json.decode(line, type=Run) for line in next(folder.glob("*.jsonl")).read_bytes().splitlines())
    for n in range(RUNS):
        commit = many.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", f"commit {n}")
        many.git("update-ref", "HEAD", commit)
        run = record.replace(stored, commit=commit, id=f"20261130T{n:06d}Zabcdef")
        (folder / f"{commit[:12]}-{run.id}.jsonl").write_bytes(record.encode(run))
    benchmark.pedantic(faperf, (many.root, "ladder"), rounds=10, warmup_rounds=1)


@pytest.mark.parametrize("way", ["plain nvcc", "faperf"])
def test_cold_compilation(benchmark: BenchmarkFixture, toolchain: Toolchain, tmp_path: Path, way: str) -> None:
    """The repository's own kernels, every version × target, as many jobs as there are cores."""
    project = UserProject(tmp_path / "project")
    for folder in ("kernels", "manifests"):
        shutil.copytree(REPOSITORY / folder, project.root / folder)
    steps = [(v, target) for v in load_manifests(project.project).versions.values() for target in v.targets]
    jobs = os.cpu_count() or 1

    def plain(step: tuple) -> None:
        version, target = step
        architecture = f"compute_{target.removeprefix('sm_')}"
        ptx = tmp_path / f"{version.id}.{target}.ptx"
        nvcc = [
            toolchain.nvcc,
            "--ptx",
            "-lineinfo",
            f"-arch={architecture}",
            *version.flags,
            version.source,
            "-o",
            ptx,
        ]
        ptxas = [shutil.which("ptxas") or toolchain.nvcc.with_name("ptxas"), "-v", "-lineinfo", f"-arch={target}", ptx]
        for command in (nvcc, [*ptxas, "-o", ptx.with_suffix(".cubin")]):
            subprocess.run(command, cwd=project.root, check=True, capture_output=True)

    def compile_all() -> None:
        builder = Builder(project.root, tmp_path / "cache", toolchain)
        work = plain if way == "plain nvcc" else lambda step: builder.build(*step)
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(work, steps))

    benchmark.pedantic(compile_all, setup=lambda: shutil.rmtree(tmp_path / "cache", ignore_errors=True), rounds=5)
