"""What runs in other people's CI: the action and the docs' examples, by their schemas, and their commands for real."""

from __future__ import annotations

import importlib.resources
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from tests import fake_gpu
from tests.compiling import script
from tests.conftest import REPOSITORY, Answer, UserProject
from tests.fake_gpu import log

ACTION = YAML(typ="safe").load((REPOSITORY / "action.yml").read_text(encoding="utf-8"))
EXAMPLES = re.findall(r"```yaml\n(.*?)```", (REPOSITORY / "docs/ci.md").read_text(encoding="utf-8"), re.DOTALL)
WORKFLOWS = [YAML(typ="safe").load(text) for text in EXAMPLES if "runs-on:" in text]
(GITLAB,) = (YAML(typ="safe").load(text) for text in EXAMPLES if "stages:" in text)


def schema(name: str) -> Any:
    """One of those that check-jsonschema carries."""
    place = importlib.resources.files("check_jsonschema") / "builtin_schemas/vendor" / f"{name}.json"
    return json.loads(place.read_text(encoding="utf-8"))


def validate(content: Any, name: str) -> None:
    known = schema(name)
    jsonschema.validators.validator_for(known)(known).validate(content)


def test_the_action_is_one() -> None:
    validate(ACTION, "github-actions")
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"], "inputs reach a script by its environment alone"


@pytest.mark.parametrize("number", range(len(WORKFLOWS)))
def test_the_workflows_of_the_docs_are_such(number: int) -> None:
    validate(WORKFLOWS[number], "github-workflows")
    for job in WORKFLOWS[number]["jobs"].values():
        for step in job["steps"]:
            if str(step.get("uses", "")).startswith("OWNER/faperf"):
                assert set(step["with"]) <= set(ACTION["inputs"])


def test_gitlabs_example_is_one() -> None:
    validate(GITLAB, "gitlab-ci")
    with pytest.raises(jsonschema.ValidationError):
        validate({**GITLAB, "gate": {"scripts": []}}, "gitlab-ci")


# ── the commands, for real ──


@pytest.fixture
def runner(user: UserProject, tmp_path: Path) -> Path:
    """A workspace as a runner has it: on a branch, with `faperf` on PATH and a `gh` that keeps what it is told."""
    user.git("switch", "--quiet", "--create", "work")
    bin_ = tmp_path / "bin"
    script(bin_ / "faperf", f'exec {sys.executable} -m faperf "$@"')
    script(
        bin_ / "gh",
        f'echo "$@" >> {tmp_path}/gh.log\n'
        f'case "$*" in *--paginate*) cat {tmp_path}/comments 2>/dev/null || true ;; esac',
    )
    for name in ("output", "summary"):
        (tmp_path / name).touch()
    return user.root


def step(name: str, runner: Path, **env: str) -> Answer:
    """One of the action's steps, as bash runs it for GitHub."""
    (found,) = [s for s in ACTION["runs"]["steps"] if s["name"] == name]
    assert set(found["env"]) <= set(env)
    answer = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", found["run"]],
        cwd=runner,
        env={
            **os.environ,
            "PATH": f"{runner.parent / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(runner),
            "GITHUB_REPOSITORY": "owner/kernels",
            "GITHUB_OUTPUT": str(runner.parent / "output"),
            "GITHUB_STEP_SUMMARY": str(runner.parent / "summary"),
            **env,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Answer(answer.returncode, answer.stdout, answer.stderr)


@pytest.mark.compile
def test_the_action_gates_and_comments(user: UserProject, runner: Path) -> None:
    user.edit("kernels/t1.cu", "O[i] =", "O[j] =")
    gate = {"BASELINE": "main", "ARGUMENTS": "--no-gpu --target sm_90a", "DIRECTORY": ".", "REPORTS": "out put"}
    answer = step("Gate", runner, **gate)
    assert answer.exit_code == 0, answer.output  # the verdict comes last
    assert (runner.parent / "output").read_text() == "exit-code=5\n"
    assert {path.name for path in (runner / "out put").iterdir()} == {
        "comment.md",
        "gate.json",
        "gate.sarif",
        "junit.xml",
    }
    assert "::error file=kernels/t1.cu,line=4," in answer.stderr
    assert (runner.parent / "summary").read_text().startswith("### WRONG")
    assert step("Verdict", runner, CODE="5").exit_code == 5
    assert step("Verdict", runner, CODE="0").exit_code == 0

    comment = {"GH_TOKEN": "t", "NUMBER": "7", "REPORTS": "out put"}
    assert step("Comment", runner, **comment).exit_code == 0
    told = (runner.parent / "gh.log").read_text().splitlines()
    assert told[-1] == (
        f"api --silent --method POST repos/owner/kernels/issues/7/comments --field body=@{runner}/out put/comment.md"
    )
    (runner.parent / "comments").write_text("41\n42\n")
    assert step("Comment", runner, **comment).exit_code == 0
    told = (runner.parent / "gh.log").read_text().splitlines()
    assert told[-1].startswith("api --silent --method PATCH repos/owner/kernels/issues/comments/42 --field body=@")


def test_an_input_is_no_command(runner: Path) -> None:
    evil = "main; touch owned; $(touch owned) `touch owned`"
    step("Gate", runner, BASELINE=evil, ARGUMENTS="; touch owned", DIRECTORY=".", REPORTS="out")
    assert not (runner / "owned").exists()
    assert (runner.parent / "output").read_text() == "exit-code=1\n"  # no such commit


def test_the_action_installs_with_its_extras(runner: Path) -> None:
    script(runner.parent / "bin/python3", f'echo "$@" > {runner.parent}/pip.log')
    assert step("Install faperf", runner, EXTRAS="toolchain,gpu", GITHUB_ACTION_PATH="/action").exit_code == 0
    assert (runner.parent / "pip.log").read_text() == "-m pip install --quiet /action[toolchain,gpu]\n"


GITHUB_JOBS = {
    name: [step["run"] for step in job["steps"] if "run" in step]
    for workflow in WORKFLOWS
    if "measure" in workflow["jobs"]
    for name, job in workflow["jobs"].items()
}
GITLAB_JOBS = {name: GITLAB[name]["script"] for name in ("gate", "measure", "record")}


@pytest.mark.compile
@pytest.mark.parametrize("jobs", [GITHUB_JOBS, GITLAB_JOBS], ids=["GitHub", "GitLab"])
def test_the_jobs_of_the_docs_hand_a_bundle_on(
    jobs: dict[str, list[str]], user: UserProject, runner: Path, tmp_path: Path
) -> None:
    """Build and gate here, measure on another (made-up) host that has the bundle alone, file its figures here."""
    # GitLab's jobs have the gate among their commands, GitHub's in the action: there the kernel must be right.
    user.edit("kernels/t1.cu", "* 2.0f", "* 2.5f" if jobs is GITHUB_JOBS else "* (2.0f)")
    user.commit("another factor")
    user.git("remote", "add", "origin", str(user.root))
    elsewhere = tmp_path / "gpu host"
    elsewhere.mkdir()
    gpu = fake_gpu.install(tmp_path / "gpu")
    said = ""
    for name, commands in jobs.items():
        directory, env = (elsewhere, gpu) if name == "measure" else (runner, {})
        for command in commands:
            if "pip install" in command:
                continue
            path = f"{runner.parent / 'bin'}:{env.get('PATH', os.environ['PATH'])}"
            python = f"{env.get('PYTHONPATH', '')}:{REPOSITORY}"
            ci = {"GITHUB_STEP_SUMMARY": str(runner.parent / "summary"), "CI_DEFAULT_BRANCH": "main"}
            full = {**os.environ, **env, **ci, "PATH": path, "PYTHONPATH": python}
            answer = subprocess.run(
                ["bash", "-ec", command], cwd=directory, env=full, capture_output=True, text=True, timeout=120
            )
            assert answer.returncode == 0, f"{command}: {answer.stdout}{answer.stderr}"
            said = answer.stdout
        for moved in ("job.faperf", "job.results"):  # the artefacts
            if (directory / moved).exists():
                shutil.move(directory / moved, (elsewhere if moved == "job.faperf" else runner) / moved)
    assert [line for line in log(tmp_path / "gpu") if line.startswith("time ")]
    assert re.search(r"^\|? ?t1 .* \d+\.\d", said or (runner.parent / "summary").read_text(), re.MULTILINE)
    assert {path.name for path in elsewhere.iterdir()} == {"job.faperf"}
