"""Findings at the lines of the sources that they come from, through a real compiler."""

from __future__ import annotations

import json
from typing import Any

import pytest

from faperf.build import Builder
from faperf.comparison import Annotation
from faperf.locating import Locator
from faperf.manifest import load_manifests
from faperf.toolchain import Toolchain
from tests.conftest import SPILLING_KERNEL, Cli, UserProject, cli_here

pytestmark = pytest.mark.compile


def annotated(answer_json: str) -> list[dict[str, Any]]:
    return [annotation for row in json.loads(answer_json)["rows"] for annotation in row["annotations"]]


@pytest.fixture
def faperf(user: UserProject) -> Cli:
    return cli_here(user.root)


@pytest.fixture
def branch(user: UserProject) -> UserProject:
    """On a branch from main, on which t1 does not spill."""
    user.write("kernels/t1.cu", SPILLING_KERNEL.format(id="t1", factor="2.0f").replace("(1024, 2)", "(64)"))
    user.commit("no spills")
    user.git("switch", "--quiet", "--create", "work")
    return user


def test_spills_stand_at_the_lines_that_spill(branch: UserProject, faperf: Cli) -> None:
    branch.write("kernels/t1.cu", SPILLING_KERNEL.format(id="t1", factor="2.0f"))
    summary = branch.root / "summary.md"
    env = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    sarif, comment = str(branch.root / "out/gate.sarif"), str(branch.root / "gate.md")
    answer = faperf("gate", "--no-gpu", "--format", "json", "--write", sarif, "--write", comment, env=env)
    assert answer.exit_code == 3, answer.output
    found = [a for a in annotated(answer.stdout) if a["rule"] == "spills"]
    lines = (branch.root / "kernels/t1.cu").read_text().splitlines()
    assert {a["file"] for a in found} == {"kernels/t1.cu"}
    assert all(1 < a["line"] <= len(lines) for a in found)
    assert any("v[k]" in lines[a["line"] - 1] for a in found)  # what is kept in local memory
    assert all(a["level"] == "error" and "spills appear: 0 → " in a["text"] for a in found)
    commands = [line for line in answer.stderr.splitlines() if line.startswith("::error ")]
    assert commands[0].startswith(f"::error file=kernels/t1.cu,line={found[0]['line']},title=spills::t1 for sm_90a")
    content = json.loads((branch.root / "out/gate.sarif").read_text())
    assert content["runs"][0]["results"][0]["ruleId"] == "faperf/spills"
    assert summary.read_text().startswith("### REGRESSION: ")
    assert (branch.root / "gate.md").read_text().strip() == summary.read_text().strip()


def test_a_spill_that_was_there_before_is_no_news(branch: UserProject, faperf: Cli) -> None:
    branch.write("kernels/t1.cu", SPILLING_KERNEL.format(id="t1", factor="2.0f"))
    branch.commit("spills")
    answer = faperf("gate", "--no-gpu", "--baseline", "HEAD", "--format", "json", env={"GITHUB_ACTIONS": "true"})
    assert answer.exit_code == 0, answer.output
    found = annotated(answer.stdout)
    assert found
    assert {(a["rule"], a["level"], a["new"]) for a in found} == {("spills", "warning", False)}
    assert "::" not in answer.stderr


def test_what_does_not_compile_stands_where_the_compiler_says(branch: UserProject, faperf: Cli) -> None:
    line = "    int x = 1 / 0 + nowhere; /* ::add-mask::x ##[add-mask]y */\n"
    text = (branch.root / "kernels/t1.cu").read_text()
    branch.write("kernels/t1.cu", text.replace("    float v[96];\n", f"{line}    float v[96];\n"))
    answer = faperf("gate", "--no-gpu", env={"GITHUB_ACTIONS": "true"})
    assert answer.exit_code == 5
    number = text.splitlines().index("    float v[96];") + 1
    commands = [x for x in answer.output.splitlines() if x.lstrip().startswith("::") or "##[" in x]
    assert commands == [
        f"::error file=kernels/t1.cu,line={number},title=compile::t1 for sm_90a: "
        'error: identifier "nowhere" is undefined'
    ]


def test_a_manifest_that_cannot_be_read(branch: UserProject, faperf: Cli) -> None:
    branch.edit("manifests/t1.yaml", "tile:", "tiel:")
    answer = faperf("gate", "--no-gpu", "--format", "json")
    assert answer.exit_code == 5
    (found,) = annotated(answer.stdout)
    lines = (branch.root / "manifests/t1.yaml").read_text().splitlines()
    assert (found["file"], found["rule"]) == ("manifests/t1.yaml", "manifest")
    assert "tiel:" in lines[found["line"] - 1]


def test_paths_count_from_the_repositorys_root(user: UserProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project may be a folder of a repository; annotations and SARIF are about the repository."""
    inner = UserProject(user.root / "deep/er")
    for name in ("kernels/t1.cu", "manifests/t1.yaml", "manifests/workloads.yaml", "pyproject.toml"):
        inner.write(name, (user.root / name).read_text())
    user.commit("a project within")
    inner.edit("kernels/t1.cu", "O[i] =", "O[j] =")
    answer = cli_here(inner.root)("gate", "--no-gpu", "--baseline", "HEAD", "--format", "sarif")
    assert answer.exit_code == 5, answer.output
    (result,) = json.loads(answer.stdout)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "deep/er/kernels/t1.cu"


def test_a_suffix_that_no_format_has(faperf: Cli) -> None:
    answer = faperf("gate", "--write", "gate.pdf")
    assert answer.exit_code == 2
    assert ".sarif" in answer.stderr


def test_messages_of_ptxas_at_their_lines(user: UserProject, toolchain: Toolchain) -> None:
    """A message that names a line of the PTX is put at the source that it was made of."""
    version = load_manifests(user.project).versions["t1"]
    artifact = Builder(user.root, user.root / ".faperf/cache", toolchain).build(version, "sm_90a")
    ptx = artifact.ptx.read_text().splitlines()
    number = next(n for n, line in enumerate(ptx, 1) if "st.global" in line)
    locator = Locator(user.root, "t1", version, artifact, toolchain.nvdisasm)

    def placed(message: str) -> Annotation:
        return locator._message(message, "warning", new=True)

    found = placed(f"ptxas /nowhere/t1.ptx, line {number}; warning : slow")
    assert (found.file, found.line, found.text) == ("kernels/t1.cu", 4, "warning : slow")
    found = placed('kernels/t1.cu(3): warning #177-D: variable "x" was declared but never referenced')
    assert (found.line, found.text[:16]) == (3, "warning #177-D: ")
    found = placed("ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored")
    assert (found.file, found.line) == ("kernels/t1.cu", 2)  # where the kernel begins
    found = placed("/usr/include/x.h(3): warning: nobody's business")
    assert (found.file, found.line) == ("kernels/t1.cu", 2)
