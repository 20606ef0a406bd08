"""CUDA compilers that a project adds beside the one at hand: wheels from PyPI, installed by pip. All that downloads.

    .faperf/toolchains/13.5.37/nvidia/cu13/    bin (nvcc, ptxas, nvdisasm), nvvm, include, lib: by nvcc's own version

A compiler appears by a rename, once it has compiled a kernel. `toolchain.find_toolchain` finds it by its release.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from faperf.errors import SelectionError, ToolchainError
from faperf.toolchain import ADDED, RELEASE, Toolchain, added_toolchains, find_toolchain, is_release, prove


class Compiler(msgspec.Struct, frozen=True):
    """An nvcc at hand: its version, by which rule it was found, where it is. `size` in bytes where faperf installed it."""

    nvcc: str
    origin: str
    path: str
    size: int | None = None

    @property
    def megabytes(self) -> str:
        return f"{self.size / 1e6:.0f} MB" if self.size is not None else ""


def default(installed: Path) -> Compiler:
    """The one that is used when none is named. Raises ToolchainError."""
    found = find_toolchain(installed=installed)
    return Compiler(found.identity.nvcc, f"{found.origin} (default)", str(found.nvcc))


def added(installed: Path) -> list[Compiler]:
    """Those that were added, oldest release first."""
    return [
        Compiler(version, ADDED, str(nvcc), _size(installed / version))
        for version, nvcc in added_toolchains(installed).items()
    ]


def add(installed: Path, release: str) -> Compiler:
    """Install the newest nvcc of `release`, unless one is there; interrupted, it leaves nothing.

    Raises SelectionError for what is no release, ToolchainError where pip refuses or the compiler does not work here.
    """
    if not RELEASE.fullmatch(release):
        raise SelectionError(f"'{release}' is no release of CUDA", remedy=f"as in {ADDED} 13.5")
    if there := _of_release(installed, release):
        return there[-1]
    try:
        installed.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=installed) as scratch:
            tree = Path(scratch) / "toolchain"
            _install(release, tree, temporary=Path(scratch))
            version = _proven(release, tree).identity.nvcc
            if version not in added_toolchains(installed):  # a second one at work may have been faster
                shutil.rmtree(installed / version, ignore_errors=True)  # what someone left without an nvcc
                tree.rename(installed / version)
    except OSError as error:
        raise ToolchainError(
            f"cannot write: {error.strerror}", where=str(installed), remedy="free some space or fix the permissions"
        ) from error
    return _of_release(installed, version)[0]


def remove(installed: Path, release: str) -> Compiler:
    """Remove the added compiler of `release`. Raises SelectionError unless there is exactly one."""
    there = _of_release(installed, release)
    if len(there) != 1:
        known = ", ".join(compiler.nvcc for compiler in there or added(installed))
        raise SelectionError(
            f"{release} is more than one" if there else f"no CUDA {release} was added",
            remedy=f"name one of {known}" if known else None,
        )
    try:
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=installed) as scratch:
            (installed / there[0].nvcc).rename(Path(scratch) / "removed")
    except OSError as error:
        raise ToolchainError(f"cannot remove: {error.strerror}", where=str(installed / there[0].nvcc)) from error
    return there[0]


def _of_release(installed: Path, release: str) -> list[Compiler]:
    if not RELEASE.fullmatch(release):
        return []
    return [compiler for compiler in added(installed) if is_release(compiler.nvcc, release)]


def _install(release: str, tree: Path, temporary: Path) -> None:
    """Wheels of one CUDA release into `tree`, as NVIDIA's own cuda-toolkit pins them: their numbers differ.

    It names no disassembler before 13.2; a newer one reads the older cubins. Wheels only: a source package runs code.
    """
    major, minor = release.split(".")[:2]
    answer = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pip", "install"),  # -P: no module of this directory stands in for pip's
            *("--disable-pip-version-check", "--no-input", "--no-compile", "--no-warn-conflicts"),
            *("--only-binary=:all:", "--target", str(tree)),
            f"nvidia-cuda-nvcc=={release}.*",
            f"cuda-toolkit[cccl,crt,cudart,nvcc,nvdisasm,nvvm]=={major}.{minor}.*",
            f"nvidia-cuda-nvdisasm=={major}.*",
        ],
        env={**os.environ, "TMPDIR": str(temporary)},  # so that nothing stays when pip is killed
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),  # its progress
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    if answer.returncode != 0:
        raise _refusal(release, answer.stderr)


def _refusal(release: str, said: str) -> ToolchainError:
    if "No module named pip" in said:
        return ToolchainError(
            "this Python has no pip", where=sys.executable, remedy=f"{sys.executable} -m ensurepip, then again"
        )
    versions = re.search(r"requirement nvidia-cuda-nvcc\S* \(from versions: (.*)\)", said)
    there = [version for version in versions[1].split(", ") if RELEASE.fullmatch(version)] if versions else []
    if there:
        return ToolchainError(f"PyPI has no nvcc {release}", remedy=f"there are: {', '.join(there)}")
    return ToolchainError(
        f"cannot install CUDA {release}: {said.strip().rpartition(chr(10))[2].removeprefix('ERROR: ')}",
        remedy="is there a connection to PyPI, or to the index that `pip config list` names?",
    )


def _proven(release: str, tree: Path) -> Toolchain:
    """The tools in `tree`, which compile, with headers and a disassembler of their own."""
    nvcc = next(tree.glob("nvidia/cu*/bin/nvcc"), None)
    if nvcc is None:
        raise ToolchainError(f"the wheels of CUDA {release} lay down no nvcc")
    try:
        toolchain = find_toolchain(str(nvcc))
        used = [toolchain.nvdisasm, *toolchain.includes]
        strangers = [str(path) for path in used if not path.resolve().is_relative_to(tree.resolve())]
        if strangers:
            raise ToolchainError(f"it would use what is not its own: {', '.join(strangers)}")
        prove(toolchain)
    except ToolchainError as error:
        tool = f"{Path(error.where).name} " if error.where else ""
        raise ToolchainError(
            f"CUDA {release} does not work here: {tool}{error.what}",
            remedy="check the host compiler (faperf doctor), or take another release",
        ) from error
    return toolchain


def _size(directory: Path) -> int:
    return sum(file.lstat().st_size for file in directory.rglob("*") if file.is_file())
