"""`faperf run` end to end, in temporary repositories, with exact exit codes."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from faperf.toolchain import Toolchain
from tests.conftest import SPILLING_KERNEL, Cli, UserProject, cli_in

pytestmark = pytest.mark.compile


def records(user: UserProject, root: str = ".faperf/history") -> list[Path]:
    return sorted((user.root / root).glob("*/*.jsonl"))


def last_run(user: UserProject, root: str = ".faperf/history") -> dict:
    newest = max(records(user, root), key=lambda path: path.stem.rsplit("-", 1)[-1])
    return json.loads(newest.read_text().splitlines()[-1])


@pytest.fixture
def slow_nvcc(tmp_path: Path, toolchain: Toolchain) -> str:
    """An nvcc that takes its time to compile, so that a run can be caught at it."""
    wrapper = tmp_path / "slow" / "nvcc"
    wrapper.parent.mkdir()
    marker = tmp_path / "compiling"
    wrapper.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*|*--dryrun*) ;; *) touch {marker}; sleep 6 ;; esac\nexec {toolchain.nvcc} "$@"\n'
    )
    wrapper.chmod(0o755)
    return str(wrapper)


def start(user: UserProject, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "faperf", *arguments]
    return subprocess.Popen(command, cwd=user.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path, limit_s: float = 20) -> None:
    end = time.monotonic() + limit_s
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} did not appear"
        time.sleep(0.02)


def test_run_compiles_prints_and_records(faperf: Cli, user: UserProject) -> None:
    answer = faperf("run")
    assert answer.exit_code == 0, answer.output
    assert "Ladder for sm_90a" in answer.stdout
    assert "t1" in answer.stdout
    assert "Measured: nothing in this run: " in answer.stdout
    assert user.git("status", "--porcelain") == ""
    run = last_run(user)
    assert run["commit"] == user.git("rev-parse", "HEAD")
    assert "dirty" not in run
    (entry,) = run["entries"]
    assert (entry["version"], entry["target"], entry["threads"]) == ("t1", "sm_90a", 64)
    assert entry["ctas_per_sm"] == 32  # 64 threads: 64 warps / 2 a CTA = 32, and 32 CTAs is the chip's limit too


def test_a_second_run_compiles_and_records_nothing(faperf: Cli, user: UserProject, toolchain: Toolchain) -> None:
    faperf("run")
    answer = faperf("run", "--nvcc", str(toolchain.nvcc))
    assert answer.exit_code == 0
    assert "built" not in answer.stderr
    assert "Nothing new to record" in answer.stderr
    assert len(records(user)) == 1


def test_no_gpu_says_so(faperf: Cli) -> None:
    assert "nothing in this run: --no-gpu was given" in faperf("run", "--no-gpu").stdout


def test_a_version_that_does_not_compile_is_shown_and_the_others_go_on(faperf: Cli, user: UserProject) -> None:
    user.version("t2", "t1")
    user.edit("kernels/t2.cu", "O[i] =", "O[j] =")
    answer = faperf("run")
    assert answer.exit_code == 1
    assert 'kernels/t2.cu(4): error: identifier "j" is undefined' in answer.stderr
    assert "t2 for sm_90a: does not compile" in answer.stderr
    entries = {entry["version"]: entry for entry in last_run(user)["entries"]}
    assert entries["t1"]["build"]
    assert "undefined" in entries["t2"]["error"]
    assert "does not build" in answer.stdout


def test_a_broken_manifest_is_shown_and_the_others_go_on(faperf: Cli, user: UserProject) -> None:
    user.version("t2", "t1")
    user.edit("manifests/t2.yaml", "title:", "titel:")
    answer = faperf("run")
    assert answer.exit_code == 1
    assert "manifests/t2.yaml:4" in answer.stderr
    assert "did you mean 'title'?" in answer.stderr
    assert [entry["version"] for entry in last_run(user)["entries"]] == ["t1"]


def test_a_launch_that_does_not_fit_the_kernel_is_an_error_of_that_version(faperf: Cli, user: UserProject) -> None:
    user.version("t2", "t1")
    user.edit("manifests/t2.yaml", "      - {tensor: O}\n", "")
    answer = faperf("run")
    assert answer.exit_code == 1
    assert "copy takes arguments of [8, 8, 4] bytes; the manifest gives [8, 4]" in answer.stderr
    assert [entry.get("build") is not None for entry in last_run(user)["entries"]] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "nope"), "no version 'nope'"),
        (("run", "--target", "sm_80"), "no version is for target 'sm_80'"),
        (("run", "--resume", "--commits", "A..B"), "--skip-existing"),
        (("run", "--skip-existing"), "--commits"),
        (("run", "--jobs", "0"), "--jobs"),
        (("show", "nope"), "no version 'nope'"),
        (("nope",), "No such command"),
        (("new", "t1/../x", "--from", "t1"), "cannot be an id"),
    ],
)
def test_usage_errors_exit_with_2(faperf: Cli, arguments: tuple[str, ...], words: str) -> None:
    answer = faperf(*arguments)
    assert answer.exit_code == 2, answer.output
    assert words in answer.stderr


def test_no_project_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    answer = cli_in(tmp_path)("run")
    assert answer.exit_code == 1
    assert "no manifests/ here" in answer.stderr
    assert "faperf new NAME" in answer.stderr


def test_a_dirty_tree_is_recorded_as_such(faperf: Cli, user: UserProject) -> None:
    user.edit("kernels/t1.cu", "2.0f", "3.0f")
    user.write("notes.txt", "no build input")
    user.write("history/x/note.txt", "nor is history")
    assert faperf("run").exit_code == 0
    assert last_run(user)["dirty"] == ["kernels/t1.cu"]
    assert "-dirty-" in records(user)[-1].name


def test_one_version_takes_the_cached_others_along(faperf: Cli, user: UserProject) -> None:
    user.version("t2", "t1")
    user.commit()
    faperf("run")
    user.edit("kernels/t2.cu", "2.0f", "5.0f")
    user.commit()
    answer = faperf("run", "t2")
    assert answer.exit_code == 0
    run = last_run(user)
    assert [entry["version"] for entry in run["entries"]] == ["t1", "t2"]
    assert "partial" not in run


def test_a_partial_run_of_a_commit_is_completed_from_its_record(faperf: Cli, user: UserProject) -> None:
    user.version("t2", "t1")
    user.commit()
    faperf("run")
    (user.root / ".faperf" / "cache").unlink()  # the link to the shared cache: nothing can be taken along from it
    faperf("run", "t2")
    assert [entry["version"] for entry in last_run(user)["entries"]] == ["t1", "t2"]
    assert "partial" not in last_run(user)


def test_without_git_it_runs_and_records_no_commit(bare: UserProject) -> None:
    bare.version("t1")
    answer = cli_in(bare.root)("run", env={"GIT_CEILING_DIRECTORIES": str(bare.root.parent)})
    assert answer.exit_code == 0, answer.output
    assert last_run(bare)["commit"] is None
    assert "no git commit" in answer.stdout


def test_before_the_first_commit_and_detached(faperf: Cli, user: UserProject) -> None:
    user.git("checkout", "--quiet", "--detach")
    assert faperf("run").exit_code == 0
    assert last_run(user)["commit"] == user.git("rev-parse", "HEAD")
    user.git("checkout", "--quiet", "--orphan", "empty")
    assert faperf("run").exit_code == 0
    assert last_run(user)["commit"] is None


def test_in_a_subdirectory_of_a_repository(user: UserProject, tmp_path: Path) -> None:
    outer = UserProject(tmp_path / "outer")
    outer.root.mkdir()
    shutil.copytree(user.root, outer.root / "gpu" / "attention", symlinks=True, ignore=shutil.ignore_patterns(".git"))
    outer.git("init", "--quiet")
    outer.commit("first")
    inner = UserProject(outer.root / "gpu" / "attention")
    call = cli_in(inner.root / "kernels")  # started further down still
    assert call("run").exit_code == 0
    assert "dirty" not in last_run(inner)
    inner.edit("kernels/t1.cu", "2.0f", "9.0f")
    outer.commit("second")
    answer = call("diff", "HEAD~1", "HEAD", "--format", "json")
    assert [row["verdict"] for row in json.loads(answer.stdout)["rows"]] == ["UNMEASURED"]


def test_commits_are_run_from_git_without_a_checkout(faperf: Cli, user: UserProject) -> None:
    first = user.git("rev-parse", "HEAD")
    for factor in ("3.0f", "4.0f"):
        user.version("t1", factor=factor)
        user.commit(f"factor {factor}")
    user.write("kernels/t1.cu", "// being edited\n")
    answer = faperf("run", "--commits", f"{first}..HEAD")
    assert answer.exit_code == 0, answer.output
    assert "factor 3.0f: 1 built, 0 failed" in answer.stdout
    assert (user.root / "kernels/t1.cu").read_text() == "// being edited\n"
    assert user.git("status", "--porcelain") == "M kernels/t1.cu"
    assert len(records(user)) == 2
    again = faperf("run", "--commits", f"{first}..HEAD", "--skip-existing")
    assert again.stdout.count("has a record") == 2
    assert len(records(user)) == 2


def test_commits_that_fail_or_have_no_versions_do_not_stop_the_others(faperf: Cli, user: UserProject) -> None:
    first = user.git("rev-parse", "HEAD")
    user.edit("kernels/t1.cu", "O[i]", "O[j]")
    user.commit("broken")
    shutil.rmtree(user.root / "manifests")
    user.commit("nothing there")
    user.git("revert", "--no-edit", "HEAD")
    user.version("t1", factor="7.0f")
    user.commit("mended")
    answer = faperf("run", "--commits", f"{first}..HEAD")
    assert answer.exit_code == 1
    assert "broken: 0 built, 1 failed" in answer.stdout
    assert "nothing there: 0 built, 0 failed" in answer.stdout
    assert "mended: 1 built, 0 failed" in answer.stdout


def test_bad_ranges(faperf: Cli) -> None:
    assert "is not a range" in faperf("run", "--commits", "HEAD").stderr
    assert "no commit 'nope' here" in faperf("run", "--commits", "nope..HEAD").stderr


def test_interrupt_exits_with_130_and_keeps_what_was_built(user: UserProject, slow_nvcc: str, tmp_path: Path) -> None:
    (user.root / ".faperf" / "cache").unlink()
    user.version("t2", "t1")
    user.commit()
    process = start(user, "run", "--jobs", "1", "--nvcc", slow_nvcc)
    assert process.stderr is not None
    assert "built" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "faperf run --resume" in stderr
    assert "Traceback" not in stderr
    assert records(user) == []
    answer = cli_in(user.root)("run", "--resume")
    assert answer.exit_code == 0, answer.output
    assert answer.stderr.count("built") == 1  # the other one was kept
    assert len(records(user)) == 1


def test_a_killed_run_is_resumed_and_leaves_no_debris(user: UserProject, slow_nvcc: str, tmp_path: Path) -> None:
    (user.root / ".faperf" / "cache").unlink()
    process = start(user, "run", "--nvcc", slow_nvcc)
    wait_for(tmp_path / "compiling")
    process.kill()
    process.communicate()
    assert records(user) == []
    call = cli_in(user.root)
    pending = [path.stem for path in (user.root / ".faperf/pending").iterdir()]
    answer = call("run", "--resume")
    assert answer.exit_code == 0, answer.output
    assert [last_run(user)["id"]] == pending
    assert list((user.root / ".faperf/pending").iterdir()) == []
    assert "no unfinished run" in call("run", "--resume").stderr


def test_a_run_says_that_an_unfinished_one_is_there(user: UserProject, slow_nvcc: str, tmp_path: Path) -> None:
    (user.root / ".faperf" / "cache").unlink()
    process = start(user, "run", "--nvcc", slow_nvcc)
    wait_for(tmp_path / "compiling")
    process.kill()
    process.communicate()
    assert "An unfinished run of this commit is there" in cli_in(user.root)("run").stderr


def test_two_runs_at_once(user: UserProject) -> None:
    (user.root / ".faperf" / "cache").unlink()
    runs = [start(user, "run") for _ in range(2)]
    for run in runs:
        _, stderr = run.communicate(timeout=120)
        assert run.returncode == 0, stderr
    assert records(user)
    assert cli_in(user.root)("ladder").exit_code == 0
    builds = list((user.root / ".faperf/cache/builds").iterdir())
    assert len(builds) == 1
    assert sorted(file.name for file in builds[0].iterdir()) == [
        "build.log",
        "facts.json",
        "kernel.cubin",
        "kernel.ptx",
    ]


def test_a_full_disk_is_an_error_and_the_next_run_is_right(user: UserProject) -> None:
    """A limit on file size stands in for the disk: writing fails half-way, in nvcc and in faperf."""
    (user.root / ".faperf" / "cache").unlink()

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, 65_536))

    answer = subprocess.run(
        [sys.executable, "-m", "faperf", "run"], cwd=user.root, capture_output=True, text=True, preexec_fn=limit
    )
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    assert "t1 for sm_90a" in answer.stderr
    again = cli_in(user.root)("run")
    assert again.exit_code == 0, again.output


def test_an_unwritable_state_folder_is_named(user: UserProject) -> None:
    shutil.rmtree(user.root / ".faperf")
    (user.root / ".faperf").write_text("a file where a folder should be")
    answer = cli_in(user.root)("run")
    assert answer.exit_code == 1
    assert ".faperf" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_no_compiler_is_an_error_with_the_line_that_installs_it(user: UserProject, tmp_path: Path) -> None:
    """A Python without the wheels, a PATH without nvcc."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("git", "g++", "sh"):
        (tools / name).symlink_to(shutil.which(name) or name)
    code = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [{!r}]; {}"
    site = tmp_path / "site"
    site.mkdir()
    for module in Path(click.__file__).parents[1].iterdir():
        if module.name != "nvidia":
            (site / module.name).symlink_to(module)
    start_up = "sys.argv = ['faperf', 'run']; from faperf.cli import main; main()"
    root = str(Path(__file__).parents[1])
    answer = subprocess.run(
        [sys.executable, "-S", "-c", code.format(str(site), start_up)],
        cwd=user.root,
        env={"PATH": str(tools), "PYTHONPATH": root, "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 1, answer.stderr
    assert "no nvcc" in answer.stderr
    assert "pip install 'faperf[toolchain]'" in answer.stderr


def test_a_strangers_manifest_runs_no_code_and_reads_no_file(faperf: Cli, user: UserProject, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    attacks = {
        "a1": ('    grid: ["S / 64", "B * H"]', f"    grid: [\"__import__('os').system('touch {marker}')\"]"),
        "a2": ("title: version a2", f'title: !!python/object/apply:os.system ["touch {marker}"]'),
        "a3": ("workloads: [tiny]", f'flags: ["-Xcompiler=-fplugin={marker}"]\nworkloads: [tiny]'),
        "a4": ("source: kernels/a4.cu", "source: ../../../../etc/passwd"),
        "a5": ("name: attention_forward", "name: 'os:system'"),
    }
    for name, (old, new) in attacks.items():
        user.version(name)
        user.edit(f"manifests/{name}.yaml", old, new)
    user.version("a6", kernel='#include "/etc/passwd"\n' + SPILLING_KERNEL)
    secret = Path("/etc/passwd").read_text().splitlines()[0]
    answer = faperf("run")
    assert answer.exit_code == 1
    assert not marker.exists()
    assert secret not in answer.output
    assert [entry["version"] for entry in last_run(user)["entries"] if entry.get("build")] == ["t1"]


def test_enrolled_records_travel_through_git(faperf: Cli, user: UserProject, tmp_path: Path) -> None:
    answer = faperf("machine", "add", "--class", "ci-box")
    assert answer.exit_code == 0
    assert "history/ci-box/" in answer.stdout
    assert faperf("run").exit_code == 0
    assert [path.parent.name for path in records(user, "history")] == ["ci-box"]
    assert len(list((user.root / "history/builds").iterdir())) == 1
    user.commit("records")
    user.git("clone", "--quiet", str(user.root), str(tmp_path / "clone"))
    ladder = cli_in(tmp_path / "clone")("ladder")
    assert ladder.exit_code == 0
    assert "10/255" in ladder.stdout  # registers and cap, with nothing built there
    there = UserProject(tmp_path / "clone")
    assert there.git("status", "--porcelain") == ""  # the index of its history is not git's
    assert not (there.root / ".faperf/cache").exists()


@pytest.mark.parametrize("name", ["builds", "reported", "Upper", "a b", "../x"])
def test_bad_machine_classes(faperf: Cli, name: str) -> None:
    assert faperf("machine", "add", "--class", name).exit_code == 2
