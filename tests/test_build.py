"""The build key, the cache, and what is said of a source that does not build. nvcc is the machine's, behind a script that
counts its runs.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from faperf.build import Artifact, Builder
from faperf.errors import CompileError, HistoryError
from faperf.record import replace
from faperf.sass import inspect
from faperf.toolchain import Toolchain
from tests.compiling import script, version_of

pytestmark = pytest.mark.compile

TARGET = "sm_90a"
SOURCE = "kernels/k.cu"
KERNEL = """\
#include "x.cuh"
extern "C" __global__ void k(float* out) { out[threadIdx.x] *= FACTOR; }
"""
HEADER = "#define FACTOR 2.0f\n"


class Tree:
    """A project with one kernel and one header, its cache, and an nvcc whose runs are counted."""

    def __init__(self, root: Path, toolchain: Toolchain, cache: Path | None = None) -> None:
        self.root = root
        self.cache = cache or root / ".faperf" / "cache"
        self.real = toolchain
        self.runs_file = root / "runs"
        self.toolchain = self.wrapped("")
        self.write(SOURCE, KERNEL)
        self.write("kernels/x.cuh", HEADER)

    def wrapped(self, before: str, after: str = "") -> Toolchain:
        """The toolchain with an nvcc that does something `before` and `after` it compiles."""
        run = f'{shlex.quote(str(self.real.nvcc))} "$@"; status=$?; {after or ":"}; exit $status'
        count = f"echo run >> {shlex.quote(str(self.runs_file))}"
        nvcc = script(self.root / ".tools" / "nvcc", f"{count}\n{before}\n{run}")
        return dataclasses.replace(self.real, nvcc=nvcc)

    @property
    def runs(self) -> int:
        return len(self.runs_file.read_text().splitlines()) if self.runs_file.exists() else 0

    def write(self, path: str, text: str) -> Path:
        """A file as an editor leaves it; it is older than any build that follows."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def build(self, source: str = SOURCE, *flags: str, target: str = TARGET) -> Artifact:
        """By a new Builder each time, as a new run of faperf has one."""
        return Builder(self.root, self.cache, self.toolchain).build(version_of(source, *flags), target)

    def refused(self, source: str = SOURCE, *flags: str) -> CompileError:
        with pytest.raises(CompileError) as caught:
            self.build(source, *flags)
        assert caught.value.where == f"{Path(source).stem} for {TARGET}"
        assert self.rubbish() == []
        return caught.value

    def rubbish(self) -> list[Path]:
        return list(self.cache.rglob(".tmp-*"))

    def stored(self) -> set[str]:
        return {path.name for path in (self.cache / "builds").iterdir()}


@pytest.fixture
def tree(tmp_path: Path, toolchain: Toolchain) -> Tree:
    return Tree(tmp_path / "project", toolchain)


# ── what a build leaves ──────────────────────────────────────────────────────────────────────────────────────────────


def test_cubin_ptx_and_log_lie_side_by_side(tree: Tree) -> None:
    built = tree.build()
    assert not built.cached
    assert built.directory == tree.cache / "builds" / built.key
    assert {path.name for path in built.directory.iterdir()} == {"kernel.cubin", "kernel.ptx", "build.log"}
    assert built.cubin.read_bytes()[:4] == b"\x7fELF"
    assert ".target sm_90a" in built.ptx.read_text()
    assert "Used " in built.log.read_text()
    assert built.inputs == (SOURCE, "kernels/x.cuh")
    assert tree.rubbish() == []


@pytest.mark.parametrize("name", ["my project", "it's größe"])
def test_a_project_in_a_directory_with_an_odd_name(tmp_path: Path, toolchain: Toolchain, name: str) -> None:
    tree = Tree(tmp_path / name, toolchain)
    assert tree.build().inputs == (SOURCE, "kernels/x.cuh")
    assert tree.build().cached


@pytest.mark.parametrize("source", ["kernels/kernel.cu", "kernels/alias.cu"])
def test_a_source_with_an_odd_name(tree: Tree, source: str) -> None:
    """One named as the files of the cache are; a link within the project."""
    if source.endswith("alias.cu"):
        (tree.root / source).symlink_to("k.cu")
    else:
        tree.write(source, KERNEL)
    built = tree.build(source)
    assert "k(" in built.ptx.read_text()
    assert tree.build(source).cached


# ── the key ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_unchanged_tree_starts_no_compiler(tree: Tree) -> None:
    first = tree.build()
    again = tree.build()
    assert (again.key, again.directory, again.inputs) == (first.key, first.directory, first.inputs)
    assert again.cached
    assert tree.runs == 1


def test_what_has_no_part_in_a_build_leaves_its_key(tree: Tree) -> None:
    first = tree.build()
    tree.write("kernels/unrelated.cuh", "#error never read\n")
    tree.write("README.md", "changed\n")
    for name in (SOURCE, "kernels/x.cuh"):
        os.utime(tree.root / name, (4e9, 4e9))  # in the year 2096
    assert tree.build().key == first.key
    assert tree.runs == 1


def test_a_source_dated_in_the_future_is_built(tree: Tree) -> None:
    os.utime(tree.root / SOURCE, (4e9, 4e9))
    assert not tree.build().cached


def test_the_same_files_elsewhere_have_the_same_key(tree: Tree, tmp_path: Path, toolchain: Toolchain) -> None:
    other = Tree(tmp_path / "elsewhere" / "copy", toolchain)
    assert other.build().key == tree.build().key


def test_a_cache_serves_several_trees(tree: Tree, tmp_path: Path, toolchain: Toolchain) -> None:
    """As the trees of other commits, which are exported side by side."""
    first = tree.build()
    other = Tree(tmp_path / "copy", toolchain, tree.cache)
    assert other.build() == dataclasses.replace(first, cached=True)
    assert other.runs == 0


def test_what_has_a_part_in_a_build_changes_its_key(tree: Tree) -> None:
    keys = {"plain": tree.build().key}
    keys["target"] = tree.build(target="sm_80").key
    keys["flag"] = tree.build(SOURCE, "-DBR=128").key
    keys["other flag"] = tree.build(SOURCE, "-DBR=64").key
    tree.write("kernels/x.cuh", HEADER.replace("2.0f", "3.0f"))
    keys["header"] = tree.build().key
    tree.write(SOURCE, KERNEL + "// a comment\n")
    keys["source"] = tree.build().key
    assert len(set(keys.values())) == len(keys), keys
    assert tree.runs == len(keys)
    assert tree.stored() == set(keys.values())


@pytest.mark.parametrize("tool", ["nvcc", "build", "host"])
def test_another_compiler_changes_the_key(tree: Tree, tool: str) -> None:
    first = tree.build()
    identity = replace(tree.toolchain.identity, **{tool: "another one"})
    tree.toolchain = dataclasses.replace(tree.toolchain, identity=identity)
    second = tree.build()
    assert second.key != first.key
    assert not second.cached


def test_a_header_changed_back_is_found_again(tree: Tree) -> None:
    first = tree.build()
    tree.write("kernels/x.cuh", "#define FACTOR 3.0f\n")
    second = tree.build()
    tree.write("kernels/x.cuh", HEADER)
    third = tree.build()
    assert second.key != first.key
    assert (third.key, third.cached) == (first.key, True)
    assert tree.runs == 2


def test_a_header_that_comes_and_goes(tree: Tree) -> None:
    """The list of files that a build read is part of what is remembered."""
    first = tree.build()
    tree.write("kernels/y.cuh", HEADER)
    tree.write("kernels/x.cuh", '#include "y.cuh"\n')
    second = tree.build()
    assert second.inputs == (SOURCE, "kernels/x.cuh", "kernels/y.cuh")
    tree.write("kernels/y.cuh", "#define FACTOR 4.0f\n")
    third = tree.build()
    assert len({first.key, second.key, third.key}) == 3
    tree.write("kernels/x.cuh", HEADER)
    (tree.root / "kernels" / "y.cuh").unlink()
    assert tree.build() == dataclasses.replace(first, cached=True)
    assert tree.runs == 3


def test_the_environment_changes_nothing(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With any of these heeded FACTOR would be another one, or the build would fail."""
    plain = tree.build()
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "cuda_runtime.h").write_text("#error planted\n")
    for name in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"):
        monkeypatch.setenv(name, "-include /nonexistent.h")
    for name in ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"):
        monkeypatch.setenv(name, str(tmp_path / "planted"))
    assert tree.build().cached
    elsewhere = Tree(tmp_path / "copy", tree.real).build()
    assert not elsewhere.cached
    assert elsewhere.key == plain.key
    assert elsewhere.ptx.read_text().replace("/copy/", "/project/") == plain.ptx.read_text()


def test_the_compiler_is_loaded_at_the_same_addresses_each_time(tree: Tree) -> None:
    """Else ptxas numbers some registers of v18 otherwise each time: same build key, another code."""
    fixed = ["setarch", "--addr-no-randomize", "true"]
    if subprocess.run(fixed, capture_output=True).returncode:
        pytest.skip("this sandbox does not let programs ask for fixed addresses")
    before = Path("/proc/thread-self/personality").read_text()
    tree.toolchain = tree.wrapped("cat /proc/self/personality; exit 1")
    assert int(tree.refused().what.split()[-1], 16) & 0x0040000
    assert Path("/proc/thread-self/personality").read_text() == before


def test_a_header_of_the_toolkit_within_the_project_is_no_input(tree: Tree) -> None:
    """NVIDIA's wheels in a .venv under the root: they count for the key, not for what git should know."""
    wheel = tree.root / ".venv" / "lib" / "nvidia" / "cu13" / "include"
    header = tree.write(".venv/lib/nvidia/cu13/include/wheel.h", "#define EXTRA 1.0f\n")
    tree.write("kernels/x.cuh", f'#include "../{header.relative_to(tree.root)}"\n#define FACTOR EXTRA\n')
    tree.toolchain = dataclasses.replace(tree.toolchain, includes=(wheel, *tree.toolchain.includes))
    first = tree.build()
    assert first.inputs == (SOURCE, "kernels/x.cuh")
    header.write_text("#define EXTRA 2.0f\n")
    assert tree.build().key != first.key


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_error_is_shown_with_file_and_line(tree: Tree) -> None:
    tree.write(SOURCE, KERNEL + '\nextern "C" __global__ void broken() { undeclared = 1; }\n')
    error = tree.refused()
    assert "does not compile" in error.what
    assert 'kernels/k.cu(4): error: identifier "undeclared" is undefined' in error.what
    assert tree.stored() == set()
    tree.write(SOURCE, KERNEL)
    assert not tree.build().cached


def test_an_error_of_the_assembler_is_shown(tree: Tree) -> None:
    tree.write(SOURCE, 'extern "C" __global__ void k() { asm volatile("no.such.instruction;"); }\n')
    assert "Not a name of any known instruction: 'no'" in tree.refused().what


def test_a_header_that_does_not_exist(tree: Tree) -> None:
    (tree.root / "kernels" / "x.cuh").unlink()
    error = tree.refused()
    assert "kernels/k.cu:1" in error.what
    assert "x.cuh: No such file" in error.what


def test_a_source_that_does_not_exist(tree: Tree) -> None:
    assert "'kernels/gone.cu' does not exist" in tree.refused("kernels/gone.cu").what
    assert tree.runs == 0


@pytest.mark.parametrize("how", ["absolute", "dots", "symlink"])
def test_a_source_outside_the_project(tree: Tree, tmp_path: Path, how: str) -> None:
    outside = tmp_path / "outside.cu"
    outside.write_text('extern "C" __global__ void k() {}\n')
    if how == "symlink":
        (tree.root / "kernels" / "outside.cu").symlink_to(outside)
    source = {"absolute": str(outside), "dots": "../outside.cu", "symlink": "kernels/outside.cu"}[how]
    assert "outside the project" in tree.refused(source).what
    assert tree.runs == 0


@pytest.mark.parametrize("how", ["absolute", "dots", "symlink"])
@pytest.mark.parametrize("content", ["", "password = hunter2\n"])
def test_an_include_outside_the_project(tree: Tree, tmp_path: Path, how: str, content: str) -> None:
    """Neither built with it, nor, where it is no C++, quoted from it."""
    secret = tmp_path / "secret.txt"
    secret.write_text(content)
    if how == "symlink":
        (tree.root / "kernels" / "link.cuh").symlink_to(secret)
    name = {"absolute": str(secret), "dots": "../../secret.txt", "symlink": "link.cuh"}[how]
    tree.write("kernels/x.cuh", f'#include "{name}"\n{HEADER}')
    error = tree.refused()
    assert f"includes {secret}" in error.what
    assert "hunter2" not in str(error)
    assert error.remedy
    assert tree.stored() == set()


# ── at once, interrupted, disturbed ──────────────────────────────────────────────────────────────────────────────────


def test_two_threads_build_the_same(tree: Tree) -> None:
    """Both compile, as each began before the other was done; one of the two is kept."""
    together = threading.Barrier(2)
    builder = Builder(tree.root, tree.cache, tree.toolchain)

    def build() -> Artifact:
        assert builder.find(version_of(SOURCE), TARGET) is None
        together.wait(10)
        return builder.build(version_of(SOURCE), TARGET)

    with ThreadPoolExecutor(2) as pool:
        first, second = [future.result() for future in [pool.submit(build), pool.submit(build)]]
    assert first.key == second.key
    assert tree.stored() == {first.key}
    assert tree.rubbish() == []
    assert tree.build().cached


PROCESS = """\
import sys
from pathlib import Path
from faperf.build import Builder
from faperf.toolchain import find_toolchain
from tests.compiling import version_of
root, cache, nvcc = sys.argv[1:]
toolchain = find_toolchain(nvcc)
print(Builder(Path(root), Path(cache), toolchain).build(version_of("kernels/k.cu"), "sm_90a").key)
"""


def another_process(tree: Tree) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROCESS, str(tree.root), str(tree.cache), str(tree.toolchain.nvcc)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True)


def test_two_processes_build_the_same(tree: Tree) -> None:
    processes = [another_process(tree), another_process(tree)]
    keys = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert tree.stored() == {keys[0]} == {keys[1]}
    assert tree.rubbish() == []
    assert tree.build().cached


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_killed_build_leaves_nothing_that_counts(tree: Tree) -> None:
    """nvcc is killed with it, at the worst moment: when all its files are written."""
    mark = tree.root / "compiled"
    compiles = 'case "$*" in *--keep*)'
    tree.toolchain = tree.wrapped(
        "", after=f"{compiles} echo $$ > {shlex.quote(str(mark))}.part; mv {mark}.part {mark}; exec sleep 60;; esac"
    )
    process = another_process(tree)
    wait_until(mark.exists)
    compiler = int(mark.read_text())
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    os.killpg(compiler, signal.SIGKILL)
    assert tree.stored() == set()
    assert not list(tree.cache.rglob("requests/*"))
    tree.toolchain = tree.wrapped("")
    built = tree.build()
    assert not built.cached
    assert tree.stored() == {built.key}
    assert inspect(built.directory, tree.toolchain.nvdisasm).kernels[0].entry == "k"


def test_a_compiler_that_is_stopped(tree: Tree) -> None:
    started = tree.root / "started"
    tree.toolchain = tree.wrapped(f"touch {shlex.quote(str(started))}; sleep 60")
    builder = Builder(tree.root, tree.cache, tree.toolchain)
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(builder.build, version_of(SOURCE), TARGET)
        wait_until(started.exists)
        builder.stop()
        assert isinstance(building.exception(timeout=10), CompileError)
    assert tree.stored() == set()
    assert tree.rubbish() == []


def test_a_compiler_that_does_not_end(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faperf.build.COMPILE_LIMIT_S", 0.2)
    tree.toolchain = tree.wrapped("sleep 60")
    assert "ran past 0.2 s" in tree.refused().what


@pytest.mark.parametrize("how", ["saved", "replaced by an older file", "removed"])
def test_a_file_changed_during_the_build_is_noticed(tree: Tree, how: str) -> None:
    """What nvcc read was the old one: the result must not be kept under the new one's key."""
    older = tree.write("older.cuh", "#define FACTOR 7.0f\n")
    os.utime(older, (1e9, 1e9))
    action = {
        "saved": "printf '#define FACTOR 5.0f\\n' > kernels/x.cuh",
        "replaced by an older file": "mv older.cuh kernels/x.cuh",
        "removed": "rm kernels/x.cuh",
    }[how]
    tree.toolchain = tree.wrapped("", after=action)
    error = tree.refused()
    assert error.what.startswith("kernels/x.cuh " + ("vanished" if how == "removed" else "changed"))
    assert error.remedy == "run again"
    assert tree.stored() == set()
    tree.toolchain = tree.wrapped("")
    if how == "removed":
        tree.write("kernels/x.cuh", HEADER)
    fresh = tree.build()
    tree.write("kernels/x.cuh", "#define FACTOR 9.0f\n")
    assert tree.build().key != fresh.key


# ── a cache that cannot be written, or was damaged ───────────────────────────────────────────────────────────────────


def test_a_cache_that_cannot_be_created(tree: Tree) -> None:
    tree.write(".faperf", "a file is in the way\n")
    with pytest.raises(CompileError, match="cannot write the cache: Not a directory") as caught:
        tree.build()
    assert caught.value.remedy
    assert tree.runs == 0


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_full_disk(tree: Tree, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if moment == "before":
            patch.setattr(tempfile, "mkdtemp", full)
        else:
            patch.setattr(Path, "write_text", full)
        with pytest.raises((CompileError, HistoryError), match="cannot write the cache: No space left") as caught:
            tree.build()
    assert caught.value.where
    assert caught.value.remedy
    assert tree.stored() == set()
    assert not tree.build().cached


def test_the_list_of_files_was_damaged(tree: Tree) -> None:
    first = tree.build()
    (request,) = (tree.cache / "requests").iterdir()
    for damage in ("[[", "[[1]]"):
        request.write_text(damage)
        again = tree.build()
        assert (again.key, again.cached) == (first.key, False)


def test_a_build_that_lost_its_cubin_is_made_again(tree: Tree) -> None:
    first = tree.build()
    first.cubin.unlink()
    again = tree.build()
    assert (again.key, again.cached) == (first.key, False)
    assert again.cubin.is_file()
    assert again.ptx.is_file()
