"""`faperf bisect` end to end: in temporary repositories without a GPU, and on a GPU host that is made up (`fake_gpu`)."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from faperf.toolchain import Toolchain
from tests import fake_gpu
from tests.compiling import script
from tests.conftest import SPILLING_KERNEL, WORKLOADS, Answer, UserProject, cli_here, cli_in

pytestmark = pytest.mark.compile

SUBJECTS = (
    "first",
    "a comment",
    "another factor",
    "a comment again",
    "does not compile",
    "mended",
    "unrolled further",
    "a comment at last",
)
FACTOR, COMMENT_AGAIN, BROKEN, MENDED, SPILL, LAST = 2, 3, 4, 5, 6, 7


@dataclass
class Story:
    """A project whose commits are SUBJECTS, and the environment in which it is bisected."""

    user: UserProject
    commits: list[str]
    env: dict[str, str]

    gpu: Path | None = None
    """The folder of a GPU host that is made up; without one no GPU is seen."""
    alone: bool = False
    """Whether each command is a process of its own."""

    def __call__(self, *arguments: str) -> Answer:
        gpu = self.gpu
        around = nullcontext if gpu is None else lambda: fake_gpu.seen_here(gpu)
        call = cli_in(self.user.root) if self.alone else cli_here(self.user.root, around)
        return call(*arguments, env={"CUDA_VISIBLE_DEVICES": "", **self.env})

    def bisect(self, *arguments: str, good: int = 0, bad: int = LAST) -> Answer:
        ends = ("--good", self.commits[good], "--bad", self.commits[bad])
        return self("bisect", "t1", *ends, *arguments)

    def found(self, *arguments: str, exit_code: int = 0) -> dict[str, Any]:
        answer = self.bisect("--format", "json", *arguments)
        assert answer.exit_code == exit_code, answer.output
        return json.loads(answer.stdout)

    def name(self, number: int) -> str:
        return f"{self.commits[number][:12]} {SUBJECTS[number]}"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, toolchain: Toolchain) -> Path:
    """The project that each test has a copy of."""
    folder = tmp_path_factory.mktemp("template")
    user = UserProject(folder / "project")
    user.write("manifests/workloads.yaml", WORKLOADS)
    user.project.make_state()
    (user.root / ".faperf/cache").symlink_to(shared_cache)
    (folder / "gitconfig").write_text("[user]\n\tname = Test\n\temail = test@example.invalid\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", str(folder / "gitconfig"))
        patch.setenv("GIT_AUTHOR_DATE", "2026-10-05T12:30:00+02:00")
        user.version("t1")
        user.git("init", "--quiet")
        user.commit(SUBJECTS[0])
        user.edit("kernels/t1.cu", "// t1", "// said better: t1")
        user.commit(SUBJECTS[1])
        user.version("t1", factor="3.0f")
        user.commit(SUBJECTS[2])
        user.edit("kernels/t1.cu", "// t1", "// said better: t1")
        user.commit(SUBJECTS[3])
        user.edit("kernels/t1.cu", "O[i] =", "O[j] =")
        user.commit(SUBJECTS[4])
        user.version("t1", factor="3.0f")
        user.commit(SUBJECTS[5])
        user.version("t1", kernel=SPILLING_KERNEL)
        user.commit(SUBJECTS[6])
        user.edit("kernels/t1.cu", "the same", "nearly the same")
        user.commit(SUBJECTS[7])
    return user.root


@pytest.fixture
def story(template: Path, tmp_path: Path) -> Story:
    user = UserProject(shutil.copytree(template, tmp_path / "project", symlinks=True))
    return Story(user, user.git("rev-list", "--reverse", "HEAD").split(), {})


# ── without a GPU ──


def test_a_spill_is_found_among_comments_and_past_what_does_not_compile(story: Story) -> None:
    story.user.write("kernels/t1.cu", "// being edited\n")
    answer = story.bisect()
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.startswith(f"{story.commits[SPILL][:12]} made t1 for sm_90a worse (static)\n")
    assert "unrolled further (2026-10-05 12:30 +0200)" in answer.stdout
    assert "worse: spills appear: 0 → " in answer.stdout
    assert f"static fact    {story.commits[MENDED][:12]}" in answer.stdout
    assert "regs           10/255                   32/32" in answer.stdout
    assert f"--- copy at {story.commits[MENDED][:12]}\n+++ copy at {story.commits[SPILL][:12]}\n@@ " in answer.stdout
    assert "-S2UR UR,SR_CTAID.X" in answer.stdout
    file = story.user.root / f".faperf/bisect/t1-sm_90a-{story.commits[SPILL][:12]}.diff"
    assert f"more lines of it in .faperf/bisect/{file.name}." in answer.stdout
    assert "\n+STL [R+" in file.read_text()
    steps = [line for line in answer.stderr.splitlines() if " of about " in line]
    assert [line.partition("x:")[0].split(": ")[:2] for line in steps] == [
        ["1 of about 4", story.name(LAST)],
        ["2 of about 5", story.name(BROKEN)],
        ["3 of about 5", story.name(COMMENT_AGAIN)],
        ["4 of about 5", story.name(SPILL)],
        ["5 of about 5", story.name(MENDED)],
    ]
    assert 'skipped: does not compile: kernels/t1.cu(4): error: identifier "j" is undefined' in steps[1]
    assert steps[2].endswith(": fine")
    assert steps[3].endswith(f"(same code as {story.commits[LAST][:12]})")
    assert steps[4].endswith(f": fine (same code as {story.commits[COMMENT_AGAIN][:12]})")
    assert (story.user.root / "kernels/t1.cu").read_text() == "// being edited\n"
    assert story.user.git("status", "--porcelain") == "M kernels/t1.cu"
    recorded = {path.name[:12] for path in (story.user.root / ".faperf/history/no-gpu").iterdir()}
    assert recorded == {story.commits[number][:12] for number in (0, COMMENT_AGAIN, BROKEN, MENDED, SPILL, LAST)}

    again = story.bisect("--format", "json", "--metric", "static")
    assert "built" not in again.stderr  # records know it all
    found = json.loads(again.stdout)
    assert found["first"]["hash"] == story.commits[SPILL]
    assert found["first"]["date"] == "2026-10-05T12:30:00+02:00"
    assert found["predecessor"]["hash"] == story.commits[MENDED]
    assert found["candidates"] == []
    assert {finding["rule"] for finding in found["judgement"]["findings"]} >= {"spills"}
    assert [step["judgement"]["fate"] for step in found["steps"]] == ["worse", "skipped", "fine", "worse", "fine"]


def test_a_commit_that_does_not_build_before_the_bad_one_leaves_both(story: Story) -> None:
    user = story.user
    user.git("checkout", "--quiet", story.commits[BROKEN])
    user.version("t1", kernel=SPILLING_KERNEL)
    spill = user.commit("mended, and unrolled further")
    answer = story("bisect", "t1", "--good", story.commits[COMMENT_AGAIN])
    assert answer.exit_code == 4, answer.output
    assert answer.stdout.startswith("INCONCLUSIVE: t1 for sm_90a became worse (static) in one of 2 commits\n")
    assert f"- {story.name(BROKEN)}\n- {spill[:12]} mended, and unrolled further\n" in answer.stdout
    markdown = story("bisect", "t1", "--good", story.commits[COMMENT_AGAIN], "--format", "markdown")
    assert markdown.exit_code == 4
    assert markdown.stdout.startswith("### INCONCLUSIVE")
    assert "```diff\n--- copy at " in markdown.stdout


def test_a_rule_that_the_manifest_silences_makes_nothing_worse(story: Story) -> None:
    user = story.user
    user.edit("manifests/t1.yaml", "tile:", "rules: {spills: ignore, loop_local_memory: ignore}\ntile:")
    user.commit("spills are known")
    answer = story("bisect", "t1", "--good", story.commits[0])
    assert answer.exit_code == 1
    assert "is not worse at" in answer.stderr


@pytest.mark.parametrize(
    ("good", "bad", "arguments", "exit_code", "words"),
    [
        (0, FACTOR, (), 1, "by static: fine\n  → give other ends, or another --metric"),
        (0, 1, (), 1, "same code, same launch"),
        (BROKEN, LAST, (), 1, "cannot be judged: does not compile: kernels/t1.cu(4)"),
        (0, BROKEN, (), 1, "give --bad a commit where t1 builds"),
        (LAST, 0, (), 1, "is no ancestor of"),
        (0, 0, (), 2, "--good and --bad are the same commit"),
        (0, LAST, ("--target", "sm_80"), 2, "it is for: sm_90a"),
        (0, LAST, ("--workload", "nope"), 2, "no workload 'nope'"),
        (0, LAST, ("--metric", "time"), 1, "--metric time cannot be measured here: "),
        (0, LAST, ("--metric", "accuracy"), 1, "→ --metric static compares what the compiler made of it"),
    ],
)
def test_what_cannot_be_answered_is_an_error_that_says_why(
    story: Story, good: int, bad: int, arguments: tuple[str, ...], exit_code: int, words: str
) -> None:
    answer = story.bisect(*arguments, good=good, bad=bad)
    assert answer.exit_code == exit_code, answer.output
    assert words in answer.stderr
    assert answer.stdout == ""


def test_an_unknown_version_is_a_usage_error(story: Story) -> None:
    answer = story("bisect", "t9", "--good", story.commits[0])
    assert answer.exit_code == 2
    assert f"no version 't9' at {story.commits[LAST][:12]}\n  → there are: t1" in answer.stderr


def test_what_was_built_before_an_interrupt_is_not_built_again(
    story: Story, tmp_path: Path, toolchain: Toolchain
) -> None:
    (story.user.root / ".faperf/cache").unlink()
    compiled = tmp_path / "compiled"
    questions = "*--version*|*--dryrun*"
    body = (
        f'case "$*" in {questions}) ;; *) echo >> {compiled}; [ $(wc -l < {compiled}) = 2 ] && kill -INT $PPID ;; esac'
    )
    story.alone = True  # for it interrupts the process that started it
    nvcc = str(script(tmp_path / "bin/nvcc", f'{body}\nexec {toolchain.nvcc} "$@"'))
    answer = story.bisect("--nvcc", nvcc, good=MENDED, bad=SPILL)
    assert answer.exit_code == 130, answer.output
    assert "finished builds are kept" in answer.stderr
    assert compiled.read_text().count("\n") == 2
    answer = story.bisect("--nvcc", nvcc, good=MENDED, bad=SPILL)
    assert answer.exit_code == 0, answer.output
    assert compiled.read_text().count("\n") == 3


# ── on a GPU ──


@dataclass
class Gpu:
    """The story on a GPU host. `builds` are the commits' build keys, by which the host's plan tells them apart."""

    story: Story
    folder: Path
    builds: list[str | None]

    def plan(self, *numbers: int, **fate: Any) -> None:
        fake_gpu.plan(self.folder, **{str(self.builds[number]): fate for number in numbers})
        (self.folder / "log").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def recorded(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story with a record of each commit."""
    root = shutil.copytree(template, tmp_path_factory.mktemp("recorded") / "project", symlinks=True)
    first = UserProject(root).git("rev-list", "--max-parents=0", "HEAD")
    answer = cli_here(root)("run", "--commits", f"{first}..HEAD")
    assert answer.exit_code == 1, answer.output  # one does not compile
    return root


@pytest.fixture
def gpu(story: Story, recorded: Path, tmp_path: Path) -> Gpu:
    shutil.copytree(recorded / ".faperf/history", story.user.root / ".faperf/history")
    builds: dict[str, str | None] = {}
    for path in (recorded / ".faperf/history/no-gpu").iterdir():
        run = json.loads(path.read_text().splitlines()[-1])
        builds[run["commit"]] = run["entries"][0].get("build")
    story.gpu = tmp_path / "gpu"
    story.env = {**fake_gpu.install(story.gpu), "CUDA_VISIBLE_DEVICES": "0"}
    return Gpu(story, tmp_path / "gpu", [builds.get(commit) for commit in story.commits])


def test_a_slowdown_is_bisected_by_time(gpu: Gpu) -> None:
    gpu.plan(FACTOR, COMMENT_AGAIN, MENDED, SPILL, LAST, ms=1.02)
    found = gpu.story.found()
    assert found["metric"] == "time"
    assert found["first"]["hash"] == gpu.story.commits[FACTOR]
    assert found["predecessor"]["hash"] == gpu.story.commits[1]
    assert found["judgement"]["verdict"] == "SLOWER"
    assert found["judgement"]["change"]["value"] == pytest.approx(0.0198, abs=1e-4)
    assert "+FMUL R,R,3" in found["sass"]
    assert fake_gpu.timed(gpu.folder) == ["t1@sm_90a"] * 2  # the bad end and one more: the others run the same code
    table = gpu.story.bisect("--metric", "time", "--workload", "tiny")
    assert table.exit_code == 0
    assert "worse: SLOWER, time +2.00% [" in table.stdout


def test_ends_that_run_as_fast_are_an_error_with_the_interval(gpu: Gpu) -> None:
    gpu.plan(SPILL, ms=1.02)  # and mended since
    answer = gpu.story.bisect()
    assert answer.exit_code == 1
    assert "is not worse at" in answer.stderr
    assert "by time: fine: SAME, time +0.00% [-" in answer.stderr


def test_a_bad_end_that_stays_inconclusive_after_a_second_look_exits_with_4(gpu: Gpu) -> None:
    gpu.plan(LAST, ms=1.004, noise=4e-3)
    found = gpu.story.found(exit_code=4)
    assert found["judgement"]["verdict"] == "INCONCLUSIVE"
    assert [commit["hash"] for commit in found["candidates"]] == gpu.story.commits[1:]
    assert fake_gpu.timed(gpu.folder) == ["t1@sm_90a"] * 2


def test_an_inconclusive_step_is_skipped(gpu: Gpu) -> None:
    fates = {FACTOR: {"noise": 4e-3}, COMMENT_AGAIN: {"noise": 4e-3}, MENDED: {"noise": 4e-3}}
    fates |= {SPILL: {"ms": 1.1}, LAST: {"ms": 1.1}}
    fake_gpu.plan(gpu.folder, **{str(gpu.builds[number]): fate for number, fate in fates.items()})
    found = gpu.story.found(exit_code=4)
    assert [commit["hash"] for commit in found["candidates"]] == gpu.story.commits[FACTOR : SPILL + 1]
    assert found["judgement"]["verdict"] == "SLOWER"
    unclear = [step for step in found["steps"] if step["judgement"]["verdict"] == "INCONCLUSIVE"]
    assert {step["judgement"]["fate"] for step in unclear} == {"skipped"}
    assert fake_gpu.timed(gpu.folder) == ["t1@sm_90a"] * 3  # the bad end, and one of the noisy code, twice


def test_accuracy_is_bisected_without_timing(gpu: Gpu) -> None:
    gpu.plan(SPILL, LAST, relative_l2=1e-2)
    found = gpu.story.found("--metric", "accuracy")
    assert found["first"]["hash"] == gpu.story.commits[SPILL]
    assert "relative L2 error 1.00e-04 → 1.00e-02" in found["judgement"]["findings"][0]["text"]
    assert fake_gpu.timed(gpu.folder) == []


def test_a_wrong_result_is_no_time_but_it_is_less_accurate(gpu: Gpu) -> None:
    gpu.plan(SPILL, LAST, wrong="O[3] is 7")
    answer = gpu.story.bisect()
    assert answer.exit_code == 1
    assert "cannot be judged by time" in answer.stderr
    assert "it is wrong on tiny, normal: O[3] is 7" in answer.stderr
    found = gpu.story.found("--metric", "accuracy")
    assert found["first"]["hash"] == gpu.story.commits[SPILL]
    fake_gpu.plan(gpu.folder, **{"t1@sm_90a baseline": {"wrong": "O[3] is 7"}})
    answer = gpu.story.bisect()
    assert answer.exit_code == 1
    assert "t1 is wrong at the good end" in answer.stderr
