"""Fixtures: a small project in a temporary git repository, and the CLI as a user calls it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from faperf.errors import ToolchainError
from faperf.project import Project
from faperf.toolchain import Toolchain, find_toolchain

REPOSITORY = Path(__file__).parents[1]

KERNEL = """\
// {id}: O = Q, a stand-in for a kernel.
extern "C" __global__ void copy(const float* Q, float* O, int S) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < S) O[i] = Q[i] * {factor};
}}
"""

SPILLING_KERNEL = """\
// {id}: the same, but with more live values than its register cap holds: it spills.
extern "C" __global__ void __launch_bounds__(1024, 2) copy(const float* Q, float* O, int S) {{
    float v[96];
#pragma unroll
    for (int k = 0; k < 96; ++k) v[k] = Q[threadIdx.x * 96 + k];
    for (int i = 0; i < S; ++i) {{
#pragma unroll
        for (int k = 0; k < 96; ++k) v[k] = v[k] * v[(k + 7) % 96] + {factor};
    }}
#pragma unroll
    for (int k = 0; k < 96; ++k) O[threadIdx.x * 96 + k] = v[k];
}}
"""

MANIFEST = """\
schema: 1
id: {id}
{parent}title: {title}
source: kernels/{id}.cu
targets: [sm_90a]
operation: {{name: attention_forward, layout: BSHD}}
workloads: [tiny]
tile: {{m: 64, n: 64}}
launches:
  - entry: copy
    grid: ["S / 64", "B * H"]
    block: [64]
    args:
      - {{tensor: Q}}
      - {{tensor: O}}
      - {{scalar: S, type: i32}}
"""

WORKLOADS = """\
schema: 1
workloads:
  tiny:
    operation: attention_forward
    shape: {B: 1, H: 2, S: 128, D: 64}
"""


TINY_AND_LENGTHS = f"""\
{WORKLOADS}\
  lengths:
    operation: attention_forward
    shape: {{B: 1, H: 2, S: [64, 256], D: 64}}
"""


@dataclass
class UserProject:
    """A project in a temporary directory, changed as a user would: by writing files and committing them."""

    root: Path

    @property
    def project(self) -> Project:
        return Project(self.root)

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def edit(self, path: str, old: str, new: str) -> None:
        text = (self.root / path).read_text(encoding="utf-8")
        assert old in text, f"{path} has no {old!r}"
        self.write(path, text.replace(old, new))

    def version(self, id: str, parent: str | None = None, *, kernel: str = KERNEL, factor: str = "2.0f") -> None:
        """Write a version's two files."""
        line = f"parent: {parent}\n" if parent else ""
        self.write(f"kernels/{id}.cu", kernel.format(id=id, factor=factor))
        self.write(f"manifests/{id}.yaml", MANIFEST.format(id=id, parent=line, title=f"version {id}"))

    def commit_two_versions(self, cache: Path) -> None:
        """t1 and t2, its child, that was changed; for a fixture that outlives one test, so git's user is the repository's own."""
        self.version("t1")
        self.version("t2", "t1", factor="3.0f")
        self.project.make_state()
        (self.root / ".faperf/cache").symlink_to(cache)
        self.git("init", "--quiet", "--initial-branch", "main")
        self.git("config", "user.name", "Test")
        self.git("config", "user.email", "test@example.invalid")
        self.commit("two versions")

    def git(self, *arguments: str) -> str:
        answer = subprocess.run(["git", *arguments], cwd=self.root, capture_output=True, text=True, check=True)
        return answer.stdout.strip()

    def commit(self, message: str = "change") -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")


@dataclass
class Answer:
    """What a command printed and how it ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


Cli = Callable[..., Answer]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Git that does not depend on the user's settings; no variable that changes what faperf finds."""
    for name in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "CPATH", "COLUMNS"):  # xdist sets COLUMNS to 80
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "gitconfig").write_text(
        "[user]\n\tname = Test\n\temail = test@example.invalid\n[init]\n\tdefaultBranch = main\n"
    )


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    """The machine's compiler; `make test` brings one where there is none."""
    try:
        return find_toolchain()
    except ToolchainError as error:
        pytest.skip(f"cannot compile here: {error}")


@pytest.fixture
def bare(tmp_path: Path) -> UserProject:
    """An empty project without git."""
    user = UserProject(tmp_path / "project")
    user.write("manifests/workloads.yaml", WORKLOADS)
    user.write("pyproject.toml", "[tool.faperf]\nemulate = false\n")  # its kernels compute nothing that is right
    return user


@pytest.fixture
def user(bare: UserProject, shared_cache: Path) -> UserProject:
    """A committed project with one version, t1, whose compiled kernels are shared among the tests."""
    bare.project.make_state()
    (bare.root / ".faperf" / "cache").symlink_to(shared_cache)
    bare.version("t1")
    bare.git("init", "--quiet")
    bare.commit("first")
    return bare


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build key says all that goes into a build, so tests may share what they compile: xdist's workers among them, too."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared-cache"
    cache.mkdir(exist_ok=True)
    return cache


@pytest.fixture
def faperf(user: UserProject) -> Cli:
    """Run a command in the project: `faperf("run", "--no-gpu")`."""
    return cli_here(user.root)


def cli_here(directory: Path, around: Callable[[], AbstractContextManager[object]] = nullcontext) -> Cli:
    """The whole program, its exit code included, in this process, which spares starting one: for tests that ask it often."""
    from faperf.cli import main

    def call(*arguments: str, env: dict[str, str] | None = None) -> Answer:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, around():
            patch.chdir(directory)
            patch.setattr(sys, "argv", ["faperf", *arguments])
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as exited:
                main()
        return Answer(int(exited.value.code or 0), out.getvalue(), err.getvalue())

    return call


def cli_in(directory: Path) -> Cli:
    """The program as a process of its own, as its users start it."""

    def call(*arguments: str, env: dict[str, str] | None = None, timeout: float = 300) -> Answer:
        answer = subprocess.run(
            [sys.executable, "-m", "faperf", *arguments],
            cwd=directory,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Answer(answer.returncode, answer.stdout, answer.stderr)

    return call
