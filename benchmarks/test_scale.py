"""What a long history costs, as a user waits for it: whole processes. `make bench` prints the table.

Goals: `ladder`, `diff` and `history` 150 ms over 100,000 records; the report of 10,000 commits of 25 versions 10 s. asv loads
results of the same number, one file a commit, as `asv publish` and `asv show` do, in the same run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.synthetic import RECORDS_A_COMMIT, Synthetic, make

VERSIONS = 25
RECORDS = 100_000
SITE_COMMITS = 10_000
SETTLED_S = 2.5
"""What changed so shortly ago is looked at again by the index."""

LOAD_ALL = """
import sys
from asv.results import iter_results
print(sum(len(result.get_all_result_keys()) for result in iter_results(sys.argv[1])))
"""


def run(*command: str, at: Path) -> str:
    """A process as users start it: with its bytecode kept, and without a terminal."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(command, cwd=at, env=environment, check=True, capture_output=True, text=True).stdout


def faperf(at: Path, *arguments: str) -> str:
    return run(str(Path(sys.executable).with_name("faperf")), *arguments, at=at)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Synthetic:
    return make(tmp_path_factory.mktemp("large") / "project", RECORDS // RECORDS_A_COMMIT, VERSIONS)


def test_the_first_question(benchmark: BenchmarkFixture, large: Synthetic) -> None:
    """Every run file is read, and the change points of one version are searched."""

    def forget() -> None:
        (large.root / ".faperf/index.sqlite").unlink(missing_ok=True)

    benchmark.pedantic(faperf, (large.root, "history", "v7"), setup=forget, rounds=2)


@pytest.mark.parametrize("command", ["ladder", "diff HEAD~25 HEAD", "history v7"])
def test_a_question(benchmark: BenchmarkFixture, large: Synthetic, command: str) -> None:
    said = faperf(large.root, *command.split())
    assert "v7" in said
    time.sleep(SETTLED_S)
    benchmark.pedantic(faperf, (large.root, *command.split()), rounds=20, warmup_rounds=2)


def test_asv_loads_as_many_results(benchmark: BenchmarkFixture, large: Synthetic, tmp_path: Path) -> None:
    pytest.importorskip("asv", reason="asv is not installed: pip install 'faperf[scale]'")
    machine = tmp_path / "machine"
    machine.mkdir()
    columns = ["result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b"]
    for number, commit in enumerate(large.commits):
        results = {
            f"v{n}": [[0.0002 + number * 1e-9], [], "1", 1767225600000, 1.0, [0.00019], [0.00021]]
            for n in range(RECORDS_A_COMMIT)
        }
        content = {
            "commit_hash": commit, "env_name": "env", "date": 1767225600000 + number, "params": {"machine": "machine"},
            "python": "3.11", "requirements": {}, "env_vars": {}, "result_columns": columns, "results": results,
            "durations": {}, "version": 2,
        }  # fmt: skip
        (machine / f"{commit[:8]}-{number}-env.json").write_text(json.dumps(content))
    (machine / "machine.json").write_text('{"machine": "machine", "version": 1}')
    command = (sys.executable, "-c", LOAD_ALL, str(tmp_path))
    assert int(run(*command, at=tmp_path)) == RECORDS
    benchmark.pedantic(run, command, {"at": tmp_path}, rounds=3)


@pytest.mark.parametrize("index", ["without an index", "with it"])
def test_the_site(benchmark: BenchmarkFixture, tmp_path_factory: pytest.TempPathFactory, index: str) -> None:
    made = make(tmp_path_factory.mktemp("site") / "project", SITE_COMMITS, VERSIONS)
    if index == "with it":
        faperf(made.root, "report")
        time.sleep(SETTLED_S)
    said = benchmark.pedantic(faperf, (made.root, "report"), rounds=1)
    assert f"{SITE_COMMITS} recorded commits" in said
