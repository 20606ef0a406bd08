"""Finding the CUDA compiler, the disassembler and the host compiler, and telling which they are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from faperf import record
from faperf.errors import ToolchainError

INSTALL = "pip install 'faperf[toolchain]'"
INSTALL_DISASSEMBLER = "pip install 'faperf[disassembler]'"


@dataclass(frozen=True)
class Toolchain:
    """The tools of a build. `origin` says by which rule nvcc was found.

    `includes` and `host_includes` are the directories of CUDA's and the host's own headers.
    """

    nvcc: Path
    origin: str
    nvdisasm: Path
    host: Path
    includes: tuple[Path, ...]
    host_includes: tuple[Path, ...]
    identity: record.Toolchain


def find_toolchain(nvcc: str | None = None) -> Toolchain:
    """The first nvcc of: `nvcc` or FAPERF_NVCC, the environment's wheels, CUDA_HOME, PATH. Raises ToolchainError."""
    path, origin = _find_nvcc(nvcc)
    path = path.absolute()  # compilers run in the project's root, not where faperf was called
    release = _ask(path, "--version")
    version = re.search(r"\bV(\d+\.\d+\.\d+)", release)
    if version is None:
        raise ToolchainError("does not answer as nvcc does", where=str(path), remedy=INSTALL)
    build = re.search(r"^Build (\S+)", release, re.MULTILINE)
    host = _find_host()
    host_version = _ask(host, "-dumpfullversion", "-dumpversion").strip()
    return Toolchain(
        nvcc=path,
        origin=origin,
        nvdisasm=_find_nvdisasm(path),
        host=host,
        includes=tuple(_toolkit_includes(path)),
        host_includes=tuple(_host_includes(host)),
        identity=record.Toolchain(nvcc=version[1], build=build[1] if build else "", host=f"{host.name} {host_version}"),
    )


def scrubbed_environment() -> dict[str, str]:
    """What a compiler is given: no NVCC_APPEND_FLAGS, CPATH or the like, which would change a build without a trace."""
    keep = ("PATH", "HOME", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT")
    return {name: os.environ[name] for name in keep if name in os.environ} | {"LC_ALL": "C"}


def _find_nvcc(explicit: str | None) -> tuple[Path, str]:
    if explicit or os.environ.get("FAPERF_NVCC"):
        origin = "--nvcc" if explicit else "FAPERF_NVCC"
        found = shutil.which(explicit or os.environ["FAPERF_NVCC"])
        if found is None:
            raise ToolchainError(
                f"'{explicit or os.environ['FAPERF_NVCC']}' is no program", where=origin, remedy="give the path of nvcc"
            )
        return Path(found), origin
    for directory in _wheel_directories():
        if (directory / "nvcc").is_file():
            return directory / "nvcc", "this environment's wheels"
    home = os.environ.get("CUDA_HOME")
    if home and (Path(home) / "bin" / "nvcc").is_file():
        return Path(home) / "bin" / "nvcc", "CUDA_HOME"
    found = shutil.which("nvcc")
    if found:
        return Path(found), "PATH"
    raise ToolchainError(
        "no nvcc: not in --nvcc or FAPERF_NVCC, this environment's wheels, CUDA_HOME or PATH", remedy=INSTALL
    )


def _find_nvdisasm(nvcc: Path) -> Path:
    """Beside nvcc first, so that it knows what that nvcc writes; then as nvcc is found."""
    home = os.environ.get("CUDA_HOME")
    candidates = [
        nvcc.resolve().parent,
        *_wheel_directories(),
        *([Path(home) / "bin"] if home else []),
        *([Path(on_path).parent] if (on_path := shutil.which("nvdisasm")) else []),
    ]
    for directory in candidates:
        if (directory / "nvdisasm").is_file():
            return directory / "nvdisasm"
    raise ToolchainError(
        f"nvcc is at {nvcc}, but there is no nvdisasm to read its cubins with", remedy=INSTALL_DISASSEMBLER
    )


def _wheel_directories() -> Iterator[Path]:
    """The bin/ of NVIDIA's wheels on sys.path, newest CUDA first."""
    for entry in dict.fromkeys(sys.path):
        yield from sorted(Path(entry).glob("nvidia/cu*/bin"), reverse=True)


def _find_host() -> Path:
    for name in ("g++", "clang++", "c++"):
        found = shutil.which(name)
        if found:
            return Path(found)
    raise ToolchainError("no C++ compiler on PATH; nvcc needs one", remedy="apt-get install g++ (or your system's)")


def _toolkit_includes(nvcc: Path) -> Iterator[Path]:
    """The directories that nvcc itself adds, as its dry run prints them; nvcc may be a script that starts another one."""
    plan = _ask(nvcc, "--dryrun", "--cubin", "-x", "cu", os.devnull)
    for line in re.findall(r"^#\$ (?:SYSTEM_)?INCLUDES=(.*)$", plan, re.MULTILINE):
        for directory in re.findall(r'"(?:-I)?(/[^"]+)"', line):
            yield Path(directory).resolve()


def _host_includes(host: Path) -> Iterator[Path]:
    """The directories that the host compiler searches for <…>."""
    listing = _ask(host, "-E", "-v", "-x", "c++", os.devnull)
    section = listing.partition("#include <...> search starts here:")[2].partition("End of search list")[0]
    for line in section.splitlines():
        if line.strip():
            yield Path(line.strip()).resolve()


def _ask(program: Path, *arguments: str) -> str:
    try:
        answer = subprocess.run(
            [program, *arguments],
            env=scrubbed_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError(f"does not run: {error}", where=str(program), remedy=INSTALL) from error
    return answer.stdout
