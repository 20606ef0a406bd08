"""`faperf gate` and `faperf accept` end to end, in temporary repositories, with exact exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faperf.toolchain import Toolchain
from tests import fake_gpu
from tests.compiling import script
from tests.conftest import Answer, Cli, UserProject, cli_here, cli_in
from tests.fake_gpu import log, timed

pytestmark = pytest.mark.compile

LIVE_KERNEL = """\
// {id}: forty live values, which 255 registers hold and 32 do not.
extern "C" __global__ void copy(const float* Q, float* O, int S) {{
    float v[40];
#pragma unroll
    for (int k = 0; k < 40; ++k) v[k] = Q[threadIdx.x * 40 + k];
    for (int i = 0; i < S; ++i) {{
#pragma unroll
        for (int k = 0; k < 40; ++k) v[k] = v[k] * v[(k + 7) % 40] + {factor};
    }}
#pragma unroll
    for (int k = 0; k < 40; ++k) O[threadIdx.x * 40 + k] = v[k];
}}
"""
TIGHT = ("tile:", "flags: [-maxrregcount=32]\ntile:")
"""What makes it spill."""
CONFIG = '[tool.faperf]\ndefault-branch = "main"\nemulate = false\n'  # its kernels compute nothing that is right


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, toolchain: Toolchain) -> Path:
    """A project on a branch: main has one commit with t1 and t2, which both hold their values in registers."""
    root = tmp_path_factory.mktemp("template") / "project"
    user = UserProject(root)
    user.write("manifests/workloads.yaml", "schema: 1\nworkloads:\n" + TINY)
    user.write("pyproject.toml", CONFIG)
    user.version("t1", kernel=LIVE_KERNEL)
    user.version("t2", "t1")
    user.project.make_state()
    (root / ".faperf/cache").symlink_to(shared_cache)
    (root.parent / "gitconfig").write_text(
        "[user]\n\tname = Test\n\temail = test@example.invalid\n[init]\n\tdefaultBranch = main\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", str(root.parent / "gitconfig"))
        user.git("init", "--quiet")
        user.commit("first")
        user.git("switch", "--quiet", "--create", "work")
        user.commit("work begins")
    return root


TINY = """\
  tiny:
    operation: attention_forward
    shape: {B: 1, H: 2, S: 128, D: 64}
"""


@pytest.fixture
def branch(template: Path, tmp_path: Path) -> UserProject:
    return UserProject(shutil.copytree(template, tmp_path / "project", symlinks=True))


@pytest.fixture
def faperf(branch: UserProject) -> Cli:
    return cli_here(branch.root)


@pytest.fixture
def spilling(branch: UserProject) -> UserProject:
    """On the branch t1 spills."""
    branch.edit("manifests/t1.yaml", *TIGHT)
    branch.commit("fewer registers")
    return branch


def rows(answer: Answer) -> dict[str, dict[str, Any]]:
    assert answer.stdout, answer.stderr
    return {row["version"]: row for row in json.loads(answer.stdout)["rows"]}


def dated(user: UserProject, date: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty commit of that committer's date."""
    with monkeypatch.context() as patch:
        patch.setenv("GIT_COMMITTER_DATE", f"{date}T12:00:00+0000")
        user.commit("later")


@pytest.fixture(autouse=True)
def _nothing_is_checked_out(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test does, no gate of it may have moved HEAD, a branch, the index or a stash."""
    if "untouched" not in request.fixturenames:
        yield
        return
    user: UserProject = request.getfixturevalue("branch")
    before = state(user)
    yield
    assert state(user) == before


@pytest.fixture
def untouched() -> None:
    """For tests that commit nothing themselves."""


def state(user: UserProject) -> list[str]:
    asked = (
        ("status", "--porcelain", "--branch"),
        ("for-each-ref",),
        ("reflog",),
        ("stash", "list"),
        ("ls-files", "-s"),
    )
    return [user.git(*arguments) for arguments in asked]


# ── what the compiler tells ──


def test_what_changed_nothing_passes(faperf: Cli, branch: UserProject, untouched: None) -> None:
    branch.edit("kernels/t1.cu", "forty live", "40 live")  # a comment
    answer = faperf("gate")
    branch.edit("kernels/t1.cu", "40 live", "forty live")
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.startswith("PASSED: ")
    assert ", dirty against " in answer.stdout
    assert "2 unchanged (same code, same launch): no GPU time was spent on them." in answer.stdout


def test_a_spill_is_a_regression_and_nothing_is_checked_out(faperf: Cli, spilling: UserProject) -> None:
    before = state(spilling)
    answer = faperf("gate")
    assert answer.exit_code == 3, answer.output
    assert answer.stdout.startswith("REGRESSION: ")
    assert "spills appear: 0 → " in answer.stdout
    assert "cause: the source" in answer.stdout
    assert "1 unchanged" in answer.stdout
    assert 'To accept it: faperf accept t1 --reason "…"' in answer.stdout
    assert "Throughput unmeasured: " in answer.stdout
    assert state(spilling) == before


def test_its_revert_passes(faperf: Cli, spilling: UserProject) -> None:
    spilling.git("revert", "--no-edit", "HEAD")
    assert faperf("gate").exit_code == 0
    back = faperf("gate", "--baseline", "HEAD~1", "--format", "json")
    assert [r["metric"] for r in rows(back)["t1"]["regressions"]] == ["occupancy"]  # the spills are a gain
    assert any(note.startswith("spills shrink") for note in rows(back)["t1"]["notes"])


@pytest.mark.usefixtures("spilling")
def test_every_format_says_the_same(faperf: Cli) -> None:
    table, markdown, as_json = (faperf("gate", "--format", style) for style in ("table", "markdown", "json"))
    assert {table.exit_code, markdown.exit_code, as_json.exit_code} == {3}
    assert markdown.stdout.splitlines()[0] == f"### {table.stdout.splitlines()[0]}"
    assert markdown.stdout.startswith("### REGRESSION: ")
    report = json.loads(as_json.stdout)
    assert report["status"] == 3
    found = rows(as_json)
    assert [(row["status"], row["verdict"]) for row in found.values()] == [(3, "UNMEASURED"), (0, "UNCHANGED")]
    texts = [regression["text"] for regression in found["t1"]["regressions"]]
    assert texts
    for text in texts:
        assert text in markdown.stdout
        assert text in table.stdout.replace("\n", " ") or text.split(" → ")[0] in table.stdout
    assert (report["baseline"][:12] in table.stdout, report["head"][:12] in table.stdout) == (True, True)


def test_only_what_was_asked_for(faperf: Cli, spilling: UserProject) -> None:
    assert faperf("gate", "t2").exit_code == 0
    assert faperf("gate", "t1").exit_code == 3
    for arguments in (("nope",), ("--target", "sm_80"), ("--workload", "nope")):
        answer = faperf("gate", *arguments)
        assert answer.exit_code == 2, answer.output
    assert not list((spilling.root / ".faperf/pending").glob("*"))


def test_a_new_version_alone_is_new(faperf: Cli, branch: UserProject) -> None:
    """Though nothing else was asked for, so that the baseline's run knows none of its versions."""
    branch.version("t3", "t1", factor="5.0f")
    answer = faperf("gate", "t3", "--format", "json")
    assert answer.exit_code == 0, answer.output
    assert {name: row["verdict"] for name, row in rows(answer).items()} == {"t3": "NEW"}


def test_a_new_version_over_its_budget(faperf: Cli, branch: UserProject) -> None:
    branch.version("t3", "t1", factor="5.0f")
    branch.edit("manifests/t3.yaml", "tile:", "budgets: {registers: 4}\ntile:")
    answer = faperf("gate")
    assert answer.exit_code == 3, answer.output
    assert "registers, over the budget of 4" in answer.stdout


def test_what_built_and_no_longer_does_is_exit_code_5(faperf: Cli, branch: UserProject) -> None:
    branch.edit("kernels/t2.cu", "O[i] =", "O[j] =")
    answer = faperf("gate")
    assert answer.exit_code == 5, answer.output
    assert answer.stdout.startswith("WRONG: ")
    assert "BROKEN" in answer.stdout
    assert 'identifier "j" is undefined' in answer.stdout


def test_a_manifest_that_no_longer_reads_is_exit_code_5(faperf: Cli, branch: UserProject) -> None:
    branch.edit("manifests/t2.yaml", "title:", "titel:")
    answer = faperf("gate")
    assert answer.exit_code == 5, answer.output
    assert "did you mean 'title'?" in answer.stdout


def test_a_new_version_that_does_not_build_is_an_error(faperf: Cli, branch: UserProject) -> None:
    branch.version("t3", "t1")
    branch.edit("kernels/t3.cu", "O[i] =", "O[j] =")
    answer = faperf("gate")
    assert answer.exit_code == 1, answer.output
    assert answer.stdout.startswith("ERROR: ")


def test_a_version_that_is_mended_is_judged_as_a_new_one(faperf: Cli, branch: UserProject) -> None:
    branch.version("t3", "t1", factor="5.0f")
    branch.edit("kernels/t3.cu", "O[i] =", "O[j] =")
    branch.commit("broken")
    branch.edit("kernels/t3.cu", "O[j] =", "O[i] =")
    answer = faperf("gate", "--baseline", "HEAD")
    assert answer.exit_code == 0, answer.output
    assert "did not build at the baseline" in answer.stdout


def test_a_compiler_that_does_not_run_is_an_error_and_no_pass(
    faperf: Cli, branch: UserProject, tmp_path: Path, toolchain: Toolchain
) -> None:
    version = f"{toolchain.nvcc} --version | sed s/V{toolchain.identity.nvcc}/V99.9.9/"
    body = f'case "$*" in *--version*) {version} ;; *--dryrun*) exec {toolchain.nvcc} "$@" ;; *) kill -9 $$ ;; esac'
    answer = faperf("gate", "--nvcc", str(script(tmp_path / "nvcc", body)))
    assert answer.exit_code == 1, answer.output
    assert not answer.stdout.startswith("PASSED")


def test_a_removed_version_is_gone(faperf: Cli, branch: UserProject) -> None:
    (branch.root / "manifests/t2.yaml").unlink()
    (branch.root / "kernels/t2.cu").unlink()
    answer = faperf("gate")
    assert answer.exit_code == 0, answer.output
    assert "GONE" in answer.stdout


# ── accept ──


@pytest.fixture
def accepted(spilling: UserProject, faperf: Cli) -> UserProject:
    assert faperf("gate").exit_code == 3
    answer = faperf("accept", "t1", "--reason", "worth: it\n# really", "--until", "2027-06-01")
    assert answer.exit_code == 0, answer.output
    assert "manifests/t1.yaml: spills, at most " in answer.stdout
    spilling.commit("accepted")
    return spilling


def test_accepted_passes_then_expires(accepted: UserProject, faperf: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = faperf("gate", "--format", "markdown")
    assert answer.exit_code == 0, answer.output
    assert "accepted until 2027-06-01: worth: it # really" in answer.stdout
    dated(accepted, "2027-06-01", monkeypatch)
    assert faperf("gate").exit_code == 0
    dated(accepted, "2027-06-02", monkeypatch)
    answer = faperf("gate", "--format", "markdown")
    assert answer.exit_code == 3, answer.output
    assert "spills was accepted until 2027-06-01, which has passed" in answer.stdout
    again = faperf("accept", "t1", "--reason", "still")  # in place of the one that has expired
    assert again.exit_code == 0
    assert "until 2027-08-31" in again.stdout  # 90 days after HEAD's date
    text = (accepted.root / "manifests/t1.yaml").read_text()
    assert text.count("metric: spills") == 1
    assert faperf("gate").exit_code == 0


def test_a_regression_that_exceeds_what_was_accepted(accepted: UserProject, faperf: Cli) -> None:
    text = (accepted.root / "manifests/t1.yaml").read_text()
    amount = next(line for line in text.partition("metric: spills")[2].splitlines() if "max:" in line)
    accepted.write("manifests/t1.yaml", text.replace(amount, "    max: 3", 1))
    answer = faperf("gate", "--format", "markdown")
    assert answer.exit_code == 3, answer.output
    assert "is over the accepted 3" in answer.stdout


def test_an_accepted_regression_that_is_mended_is_stale(accepted: UserProject, faperf: Cli) -> None:
    accepted.edit("manifests/t1.yaml", "flags: [-maxrregcount=32]\n", "")
    answer = faperf("gate")
    assert answer.exit_code == 0, answer.output
    assert "stale: t1 has an accepted regression of spills to build " in answer.stdout


def test_nothing_to_accept(branch: UserProject, faperf: Cli) -> None:
    answer = faperf("accept", "t1", "--reason", "none")
    assert answer.exit_code == 1
    assert "no gate has run here yet" in answer.stderr
    faperf("gate")
    answer = faperf("accept", "t1", "--reason", "none")
    assert answer.exit_code == 2
    assert "found nothing of t1 to accept" in answer.stderr
    assert faperf("accept", "nope", "--reason", "none").exit_code == 2
    assert branch.git("status", "--porcelain") == ""


# ── the baseline ──


def baseline_of(answer: Answer) -> str:
    return str(json.loads(answer.stdout)["baseline"])


def gated_against(faperf: Cli, *arguments: str) -> str:
    answer = faperf("gate", "--format", "json", *arguments)
    assert answer.exit_code in (0, 3), answer.output
    return baseline_of(answer)


def test_where_the_branch_left_main_though_main_went_on(faperf: Cli, spilling: UserProject) -> None:
    first = spilling.git("rev-parse", "main")
    spilling.git("switch", "--quiet", "main")
    moved = spilling.commit("main goes on")
    spilling.git("switch", "--quiet", "work")
    assert gated_against(faperf) == first
    assert gated_against(faperf, "--baseline", "main") == moved
    spilling.git("switch", "--quiet", "--detach")
    assert gated_against(faperf) == first
    spilling.git("switch", "--quiet", "main")  # on the default branch: the first parent
    assert gated_against(faperf) == first
    spilling.git("merge", "--quiet", "--no-edit", "work")
    assert gated_against(faperf) == moved


def test_uncommitted_changes_on_main_are_gated_against_head(faperf: Cli, branch: UserProject) -> None:
    """HEAD's own change is no longer asked about; before the second commit there is a baseline, too."""
    branch.git("switch", "--quiet", "main")
    branch.edit("manifests/t1.yaml", *TIGHT)
    first = branch.git("rev-parse", "HEAD")
    answer = faperf("gate", "--format", "json")
    assert (answer.exit_code, baseline_of(answer)) == (3, first), answer.output
    head = branch.commit("fewer registers")
    answer = faperf("gate", "--format", "json")
    assert (answer.exit_code, baseline_of(answer)) == (3, first), answer.output
    branch.write("README.md", "no build input\n")
    assert baseline_of(faperf("gate", "--format", "json")) == first
    branch.edit("kernels/t1.cu", "forty live", "40 live")  # a comment
    answer = faperf("gate", "--format", "json")
    assert (answer.exit_code, baseline_of(answer)) == (0, head), answer.output


def test_refs_that_are_not_there(faperf: Cli, branch: UserProject, untouched: None) -> None:
    for option in ("--baseline", "--pinned"):
        answer = faperf("gate", option, "nope")
        assert answer.exit_code == 1
        assert "no commit 'nope' here" in answer.stderr


def test_the_first_commit_has_no_baseline(faperf: Cli, branch: UserProject) -> None:
    branch.git("switch", "--quiet", "main")
    answer = faperf("gate")
    assert answer.exit_code == 1
    assert "HEAD is the first commit" in answer.stderr


def test_no_git_is_a_usage_error(faperf: Cli, branch: UserProject) -> None:
    shutil.rmtree(branch.root / ".git")
    answer = faperf("gate")
    assert answer.exit_code == 2
    assert "no git repository" in answer.stderr


def clone(user: UserProject, into: Path, *options: str) -> UserProject:
    command = ["git", "clone", "--quiet", *options, f"file://{user.root}", str(into)]
    subprocess.run(command, check=True, capture_output=True)
    cloned = UserProject(into)
    cloned.project.make_state()
    (into / ".faperf/cache").symlink_to((user.root / ".faperf/cache").resolve())
    return cloned


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--branch=main",), "git fetch --depth=2"),
        (("--branch=work",), "git fetch --unshallow origin"),
        (("--branch=work", "--no-single-branch"), "git fetch --unshallow origin"),
    ],
    ids=["main", "branch alone", "both branches"],
)
def test_a_shallow_clone_names_what_to_fetch_and_that_helps(
    spilling: UserProject, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    spilling.git("switch", "--quiet", "main")
    first = spilling.git("rev-parse", "HEAD")
    spilling.commit("main goes on")
    cloned = clone(spilling, tmp_path / "clone", "--depth=1", *options)
    answer = cli_in(cloned.root)("gate")
    assert answer.exit_code == 1, answer.output
    assert words in answer.stderr
    assert "fetch-depth: " in answer.stderr
    remedy = answer.stderr.partition("→ git ")[2].partition(" (")[0]
    cloned.git(*remedy.split())
    assert gated_against(cli_in(cloned.root)) == first


# ── not measured ──


@pytest.mark.usefixtures("untouched")
def test_required_figures_that_are_not_there(faperf: Cli, branch: UserProject) -> None:
    assert faperf("gate", "--require", "measured").exit_code == 0  # nothing changed
    branch.edit("kernels/t2.cu", "* 2.0f", "* 2.5f")
    codes = {
        arguments: faperf("gate", "--no-gpu", *arguments).exit_code
        for arguments in ((), ("--require", "measured"), ("--require", "measured", "--inconclusive", "pass"))
    }
    branch.edit("kernels/t2.cu", "* 2.5f", "* 2.0f")
    assert list(codes.values()) == [0, 4, 0]


def test_inconclusive_may_pass_and_a_regression_may_not(faperf: Cli, spilling: UserProject) -> None:
    assert faperf("gate", "--require", "measured", "--inconclusive", "pass").exit_code == 3


# ── a stranger's pull request ──


def test_a_strangers_leniency_counts_only_where_it_is_trusted(faperf: Cli, branch: UserProject) -> None:
    branch.git("switch", "--quiet", "main")
    branch.edit("manifests/t2.yaml", "tile:", "budgets: {registers: 12}\ntile:")
    branch.commit("a budget")
    branch.git("switch", "--quiet", "--force-create", "stranger")
    branch.write("kernels/t2.cu", LIVE_KERNEL.format(id="t2", factor="2.0f"))
    assert faperf("gate").exit_code == 3
    branch.edit(
        "manifests/t2.yaml",
        "budgets: {registers: 12}",
        "budgets: {registers: 255}\nrules: {registers: ignore, occupancy: ignore}",
    )
    branch.commit("a looser budget")
    assert faperf("gate").exit_code == 0
    answer = faperf("gate", "--trusted-config", "--baseline", "main")
    assert answer.exit_code == 3, answer.output
    assert "over the budget of 12" in answer.stdout


def test_what_a_stranger_accepts_is_not_accepted(faperf: Cli, accepted: UserProject) -> None:
    assert faperf("gate").exit_code == 0
    assert faperf("gate", "--trusted-config", "--baseline", "main").exit_code == 3


def test_a_strangers_operation_is_not_imported(branch: UserProject) -> None:
    faperf = cli_in(branch.root)
    branch.write("evil.py", "import pathlib\npathlib.Path('owned').touch()\nOPERATION = None\n")
    branch.write("pyproject.toml", CONFIG + '[tool.faperf.operations]\nx = "evil:OPERATION"\n')
    branch.commit("an operation")
    assert faperf("gate", "--trusted-config", "--baseline", "main").exit_code == 0
    assert not (branch.root / "owned").exists()
    faperf("gate")
    assert (branch.root / "owned").exists()


def test_a_strangers_thresholds_and_pinned_commit(faperf: Cli, branch: UserProject) -> None:
    branch.write("pyproject.toml", CONFIG + 'pinned = "nope"\n[tool.faperf.thresholds]\nnope = 1\n')
    assert faperf("gate").exit_code == 1
    assert faperf("gate", "--trusted-config", "--baseline", "main").exit_code == 0


# ── source or toolchain ──


@pytest.fixture
def nvccs(tmp_path: Path, toolchain: Toolchain) -> dict[str, str]:
    """The compiler, a newer one that makes the same code, and a newer one that has 32 registers only."""

    def wrapped(name: str, version: str, flags: str) -> str:
        parts = toolchain.identity.nvcc
        body = (
            f'case "$*" in *--version*) {toolchain.nvcc} --version | sed s/V{parts}/V{version}/; exit ;; esac\n'
            f'exec {toolchain.nvcc} {flags} "$@"'
        )
        return str(script(tmp_path / name / "nvcc", body))

    return {
        "old": str(toolchain.nvcc),
        "same": wrapped("same", "99.1.1", ""),
        "worse": wrapped("worse", "99.2.2", "-maxrregcount=32"),
    }


def test_the_toolchain_did_it(faperf: Cli, branch: UserProject, nvccs: dict[str, str], untouched: None) -> None:
    answer = faperf("gate", "t1", "--toolchain", nvccs["old"], "--toolchain", nvccs["worse"])
    assert answer.exit_code == 3, answer.output
    assert "cause: the toolchain\n" in answer.stdout or "cause: the toolchain " in answer.stdout
    assert "the working tree with nvcc 99.2.2." in answer.stdout


def test_the_source_did_it(faperf: Cli, spilling: UserProject, nvccs: dict[str, str]) -> None:
    answer = faperf("gate", "t1", "--toolchain", nvccs["old"], "--toolchain", nvccs["same"], "--format", "json")
    assert answer.exit_code == 3, answer.output
    assert rows(answer)["t1"]["cause"] == "the source"


def test_a_budget_that_no_verdict_could_come_of_is_a_usage_error(faperf: Cli, branch: UserProject) -> None:
    """Eight that agree are a false alarm once in 128 times, seven are one too often."""
    answer = faperf("gate", "--budget", "1.4")
    assert answer.exit_code == 2
    assert (
        "--budget 1.4 is too little: a verdict takes 8 instances of 0.2 s each\n  → --budget 1.6 or more"
        in answer.stderr
    )
    assert faperf("gate", "--budget", "1.6").exit_code == 0


def test_usage_of_toolchains(faperf: Cli, nvccs: dict[str, str]) -> None:
    assert faperf("gate", *(["--toolchain", nvccs["old"]] * 3)).exit_code == 2
    assert faperf("gate", "--toolchain", nvccs["old"], "--nvcc", nvccs["old"]).exit_code == 2


# ── measured ──


class Host:
    """The project on a GPU host that is made up."""

    def __init__(self, user: UserProject, folder: Path) -> None:
        self.user, self.folder, self.env = user, folder, fake_gpu.install(folder)

    def __call__(self, *arguments: str) -> Answer:
        (self.folder / "log").unlink(missing_ok=True)
        return cli_here(self.user.root, lambda: fake_gpu.seen_here(self.folder))(*arguments, env=self.env)

    def gate(self, *arguments: str, **fates: dict[str, Any]) -> tuple[int, dict[str, dict[str, Any]]]:
        """Exit code and rows of a gate; a fate's `base_` stands for the side's partner at the baseline."""
        sides = {
            f"{name.removeprefix('base_').removeprefix('pin_')}@sm_90a{role}": fate
            for name, fate in fates.items()
            for role in [" baseline" if name.startswith("base_") else " pinned" if name.startswith("pin_") else ""]
        }
        fake_gpu.plan(self.folder, **sides)
        answer = self("gate", "--format", "json", *arguments)
        return answer.exit_code, rows(answer)


@pytest.fixture
def host(branch: UserProject, tmp_path: Path) -> Host:
    """On the branch t2 has changed."""
    branch.edit("kernels/t2.cu", "* 2.0f", "* 2.5f")
    branch.commit("another factor")
    return Host(branch, tmp_path / "gpu")


def test_slower_and_the_unchanged_version_costs_nothing(host: Host) -> None:
    before = state(host.user)
    code, found = host.gate(t2={"ms": 1.01})
    assert (code, found["t2"]["verdict"], found["t2"]["cause"]) == (3, "SLOWER", "the source")
    assert found["t2"]["workload"] == "tiny"
    (regression,) = found["t2"]["regressions"]
    assert regression["amount"] == pytest.approx(0.01)
    assert (found["t1"]["verdict"], found["t1"]["status"]) == ("UNCHANGED", 0)
    assert timed(host.folder) == ["t2@sm_90a"]
    assert {line.split()[1] for line in log(host.folder)} == {"t2@sm_90a"}  # and its partner, of the same first word
    assert sum(line.startswith("check t2@sm_90a normal") for line in log(host.folder)) == 3  # three seeds of it
    assert sum(line.startswith("check t2@sm_90a baseline normal") for line in log(host.folder)) == 3
    assert state(host.user) == before


def test_a_peer_is_the_control_and_one_that_cannot_run_is_an_error_of_nobodys(host: Host) -> None:
    host.user.write("pyproject.toml", '[tool.faperf]\nemulate = false\ncontrol = "peer:cudnn"\n')
    code, found = host.gate(t2={"ms": 1.01})
    assert (code, found["t2"]["verdict"]) == (3, "SLOWER")
    assert log(host.folder)[0] == "check peer:cuDNN normal tiny"  # verified before it is timed, once
    assert sum("peer:" in line for line in log(host.folder)) == 1
    fake_gpu.plan(host.folder, **{"peer:cuDNN": {"fault": "cannot run here"}})
    answer = host("gate")
    assert (answer.exit_code, timed(host.folder)) == (1, [])
    assert (
        "[tool.faperf] control: peer:cuDNN cannot be the control on tiny: cuDNN meets cannot run here" in answer.stderr
    )
    assert "pip install 'faperf[peers]'" in answer.stderr


def test_figures_of_what_is_unchanged_are_carried(host: Host) -> None:
    fake_gpu.plan(host.folder, t1={"ms": 2.0}, t2={"ms": 1.0})
    host("run")
    code, found = host.gate(t2={"ms": 1.0})
    assert (code, found["t2"]["verdict"]) == (0, "SAME")
    assert (found["t1"]["carried"], found["t2"]["carried"]) == (True, False)
    assert found["t1"]["tflops"] == pytest.approx(4 * 2 * 128**2 * 64 / 2e-3 / 1e12)


def test_a_slowdown_is_accepted_with_room_to_be_measured_again(host: Host) -> None:
    assert host.gate(t2={"ms": 1.01})[0] == 3
    answer = host("accept", "t2", "--reason", "needed")
    assert answer.exit_code == 0, answer.output
    assert "time, at most 0.01" in answer.stdout
    assert host.gate(t2={"ms": 1.0101})[0] == 0
    assert host.gate(t2={"ms": 1.02})[0] == 3


def test_inconclusive_is_measured_once_more_and_no_further(host: Host) -> None:
    code, found = host.gate(t2={"noise": 0.01})
    assert (code, found["t2"]["verdict"]) == (4, "INCONCLUSIVE")
    assert timed(host.folder) == ["t2@sm_90a"] * 2
    assert host.gate("--inconclusive", "pass", t2={"noise": 0.01})[0] == 0
    code, found = host.gate(t2={"noise": 0.01, "again": {"noise": 1e-4, "ms": 1.03}})
    assert (code, found["t2"]["verdict"]) == (4, "INCONCLUSIVE")  # five of the first ten still say otherwise
    assert timed(host.folder) == ["t2@sm_90a"] * 2


def test_void_and_then_good(host: Host) -> None:
    code, found = host.gate(t2={"void": ["power brake"], "ms": 2.0, "again": {"void": [], "ms": 1.0}})
    assert (code, found["t2"]["verdict"]) == (0, "SAME")
    assert timed(host.folder) == ["t2@sm_90a"] * 2
    code, found = host.gate(t2={"void": ["power brake"]})
    assert (code, found["t2"]["verdict"]) == (4, "INCOMPARABLE")
    assert found["t2"]["notes"] == ["void: power brake"]


def test_a_wrong_result_is_exit_code_5_and_not_timed(host: Host) -> None:
    code, found = host.gate(t2={"wrong": "relative L2 error 0.7"})
    assert (code, found["t2"]["status"]) == (5, 5)
    assert "normal: relative L2 error 0.7" in found["t2"]["wrong"]
    assert timed(host.folder) == []


def test_a_baseline_that_is_wrong_is_no_partner_and_is_named(host: Host) -> None:
    code, found = host.gate(base_t2={"wrong": "all of it"})
    assert (code, found["t2"]["verdict"], found["t2"]["wrong"]) == (0, "UNMEASURED", [])
    assert found["t2"]["notes"] == ["not timed against the baseline, whose result is wrong"]
    assert host.gate("--require", "measured", base_t2={"wrong": "all of it"})[0] == 4


def test_less_accurate_is_a_regression(host: Host) -> None:
    code, found = host.gate(base_t2={"relative_l2": 4e-4}, t2={"relative_l2": 6e-4})
    assert code == 3
    assert {r["metric"] for r in found["t2"]["regressions"]} == {"accuracy"}
    assert found["t2"]["cause"] == "the source"


def test_small_steps_since_the_pinned_commit(host: Host) -> None:
    """0.25 % a step is not called; two of them are."""
    host.user.edit("kernels/t2.cu", "* 2.5f", "* 3.0f")
    host.user.commit("and another")
    steps = {"t2": {"ms": 1.005}, "base_t2": {"ms": 1.0025}, "pin_t2": {"ms": 1.0}}
    code, found = host.gate("--baseline", "HEAD~1", "--pinned", "main", **steps)
    assert (code, found["t2"]["verdict"], found["t2"]["pinned"]) == (3, "SAME", "SLOWER")
    assert [r["text"] for r in found["t2"]["regressions"]] == ["slower than main, by small steps"]
    assert log(host.folder)[-1] == ("time t2@sm_90a baseline=t2@sm_90a baseline pinned=t2@sm_90a pinned on tiny")
    assert host("accept", "t2", "--reason", "both were worth it").exit_code == 0
    assert host.gate("--baseline", "HEAD~1", "--pinned", "main", **steps)[0] == 0
    steps["t2"] = {"ms": 1.012}
    steps["base_t2"] = {"ms": 1.0097}
    assert host.gate("--baseline", "HEAD~1", "--pinned", "main", **steps)[0] == 3  # beyond what was accepted


def test_a_wrong_result_that_is_the_pinned_commits_build(host: Host) -> None:
    """The change takes the last one back: candidate and pinned are one build, and both are wrong."""
    host.user.edit("kernels/t2.cu", "* 2.5f", "* 2.0f")
    wrong = {"wrong": "all of it"}
    code, found = host.gate("--baseline", "HEAD", "--pinned", "main", t2=wrong, pin_t2=wrong)
    assert (code, found["t2"]["status"]) == (5, 5)


def test_nothing_is_measured_when_told_so(host: Host) -> None:
    answer = host("gate", "--no-gpu", "--require", "measured")
    assert answer.exit_code == 4
    assert "Throughput unmeasured: --no-gpu was given" in answer.stdout
    assert log(host.folder) == []


def test_trusted_configuration_needs_a_baseline_that_is_not_the_strangers_word(
    faperf: Cli, branch: UserProject
) -> None:
    answer = faperf("gate", "--trusted-config")
    assert answer.exit_code == 2
    assert "needs --baseline" in answer.stderr


def test_what_is_accepted_is_code_so_that_another_host_compiler_accepts_it_too(
    faperf: Cli, accepted: UserProject
) -> None:
    import yaml

    entries = yaml.safe_load((accepted.root / "manifests/t1.yaml").read_text(encoding="utf-8"))["accept"]
    builds = [json.loads(path.read_text()) for path in accepted.root.glob(".faperf/history/builds/*.json")]
    codes, keys = ({build[name] for build in builds} for name in ("code", "key"))
    for entry in entries:
        assert {entry["from"], entry["to"]} <= codes
        assert not {entry["from"], entry["to"]} & keys


def test_a_gate_records_nothing_but_builds(faperf: Cli, branch: UserProject) -> None:
    branch.edit("kernels/t1.cu", "2.0f", "5.0f")
    branch.commit("another factor")
    before = sorted(branch.root.glob(".faperf/history/*/*.jsonl"))
    assert faperf("gate").exit_code == 0
    assert sorted(branch.root.glob(".faperf/history/*/*.jsonl")) == before


TWO_WAYS = """\
// What it computes depends on its source and on its compiler.
#ifndef NEWER
#define NEWER 0
#endif
extern "C" __global__ void copy(const float* Q, float* O, int S) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < S) O[i] = Q[i] * ({factor} + 16 * NEWER);
}}
"""


@pytest.mark.parametrize(
    ("new_source", "new_compiler", "both", "cause"),
    [
        (1.1, 1.0, 1.1, "the source"),
        (1.0, 1.1, 1.1, "the toolchain"),
        (1.1, 1.1, 1.2, "the source and the toolchain"),
        (1.0, 1.0, 1.1, "the source and the toolchain together, neither alone"),
    ],
)
def test_what_is_slower_is_timed_in_all_four_combinations(
    host: Host, tmp_path: Path, toolchain: Toolchain, new_source: float, new_compiler: float, both: float, cause: str
) -> None:
    host.user.write("kernels/t2.cu", TWO_WAYS.format(factor="2.0f"))
    host.user.commit("t2 by both")
    host.user.write("kernels/t2.cu", TWO_WAYS.format(factor="3.0f"))
    host.user.commit("another factor")
    compilers = [str(toolchain.nvcc)]
    version = f"{toolchain.nvcc} --version | sed s/V{toolchain.identity.nvcc}/V99.3.3/"
    body = f'case "$*" in *--version*) {version}; exit ;; esac\nexec {toolchain.nvcc} -DNEWER=1 "$@"'
    compilers.append(str(script(tmp_path / "newer" / "nvcc", body)))
    keys = []
    for compiler in compilers:
        answer = host("gate", "t2", "--baseline", "HEAD~1", "--no-gpu", "--nvcc", compiler, "--format", "json")
        keys += [rows(answer)["t2"]["old_build"], rows(answer)["t2"]["new_build"]]
    assert len(set(keys)) == 4
    fake_gpu.plan(
        host.folder, **dict(zip(keys, [{"ms": ms} for ms in (1.0, new_source, new_compiler, both)], strict=True))
    )
    asked = [option for compiler in compilers for option in ("--toolchain", compiler)]
    answer = host("gate", "t2", "--baseline", "HEAD~1", *asked, "--format", "json")
    row = rows(answer)["t2"]
    assert (answer.exit_code, row["verdict"], row["cause"]) == (3, "SLOWER", cause)
    assert row["regressions"][0]["amount"] == pytest.approx(both - 1)
