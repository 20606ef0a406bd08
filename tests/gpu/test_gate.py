"""The gate on a card: a slowdown that was put in is found, accepted and reverted, as CI would meet it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Cli, UserProject, cli_in
from tests.gpu.test_gpu import V12, pytestmark, version

__all__ = ["pytestmark"]

IN_EACH_TILE = "o[n][2 * r] *= alpha;"
MORE_WORK = f"""{IN_EACH_TILE}
            if (n == 0) {{
                float spent = alpha;
                for (int i = 0; i < 40; ++i) asm volatile("fma.rn.f32 %0, %0, %0, %0;" : "+f"(spent));
                if (spent == -1.0f) o[n][2 * r] = spent;
            }}"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> UserProject:
    """v12 and a version that never changes, on the default branch; a branch to work on."""
    user = UserProject(tmp_path_factory.mktemp("gated"))
    shutil.copytree(REPOSITORY / "manifests", user.root / "manifests")
    shutil.copytree(REPOSITORY / "kernels", user.root / "kernels")
    for name in ("v12", "v13"):
        (user.root / f"manifests/{name}.yaml").unlink()
    version(user, "w1", V12, workloads="[published]")
    version(user, "w2", V12, workloads="[published]")
    user.git("init", "--quiet", "--initial-branch=main")
    user.git("config", "user.email", "a@example.com")
    user.git("config", "user.name", "a")
    user.commit("start")
    user.git("checkout", "--quiet", "-b", "topic")
    return user


def gate(user: UserProject, *options: str) -> tuple[int, dict[str, dict]]:
    faperf: Cli = cli_in(user.root)
    answer = faperf("gate", "--format", "json", *options)
    assert answer.stdout, answer.stderr
    return answer.exit_code, {row["version"]: row for row in json.loads(answer.stdout)["rows"]}


def test_a_slowdown_is_found_accepted_and_reverted(project: UserProject) -> None:
    assert IN_EACH_TILE in V12
    project.write("kernels/w2.cu", V12.replace(IN_EACH_TILE, MORE_WORK))
    project.commit("w2: more work in each tile")
    code, rows = gate(project)
    assert (rows["w1"]["verdict"], rows["w2"]["verdict"]) == ("UNCHANGED", "SLOWER")
    assert code == 3
    assert rows["w2"]["cause"] == "the source"
    (regression,) = [r for r in rows["w2"]["regressions"] if r["metric"] == "time"]
    assert 0.003 < regression["amount"] < 0.5

    assert cli_in(project.root)("accept", "w2", "--reason", "a test").exit_code == 0
    project.commit("w2: accepted")
    code, rows = gate(project)
    assert code == 0, rows["w2"]

    project.git("revert", "--no-edit", "HEAD~1")
    code, rows = gate(project)
    assert (code, rows["w2"]["verdict"]) == (0, "UNCHANGED")
    code, rows = gate(project, "--baseline", "topic~1")
    assert (code, rows["w2"]["verdict"]) == (0, "FASTER")


def test_a_comment_costs_no_gpu_time(project: UserProject, tmp_path: Path) -> None:
    project.write("kernels/w1.cu", "// a comment\n" + V12)
    project.commit("w1: a comment")
    code, rows = gate(project)
    assert (code, rows["w1"]["verdict"]) == (0, "UNCHANGED")
