"""Finding the CUDA compiler, the disassembler and the host compiler, and telling which they are."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from faperf import record
from faperf.errors import ToolchainError

INSTALL = "pip install 'faperf[toolchain]'"
INSTALL_DISASSEMBLER = "pip install 'faperf[disassembler]'"

RELEASE = re.compile(r"\d+\.\d+(\.\d+)?")
"""How a compiler is named: a CUDA release ("13.5") or nvcc's own version ("13.5.37")."""

ADDED = "faperf toolchain add"
"""The origin of those that `compilers` installed."""


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


def find_toolchain(nvcc: str | None = None, *, installed: Path | None = None) -> Toolchain:
    """The tools around the first nvcc of: `nvcc` or FAPERF_NVCC, the environment's wheels, CUDA_HOME, PATH.

    `nvcc` and FAPERF_NVCC are each a path, a program on PATH, or a release: "13.5" is the newest 13.5 of those that were
    added under `installed` (a project's `toolchains`), else the one that would be found without a name, if it is a 13.5.
    A file of such a name is meant by "./13.5". Downloads nothing. Raises ToolchainError; for a release that is not here
    its remedy is the command that adds it.
    """
    path, origin = _find_nvcc(nvcc, installed)
    path = path.absolute()  # compilers run in the project's root, not where faperf was called
    version, build = _identify(path)
    host = _find_host()
    host_version = _ask(host, "-dumpfullversion", "-dumpversion").strip()
    return Toolchain(
        nvcc=path,
        origin=origin,
        nvdisasm=_find_nvdisasm(path),
        host=host,
        includes=tuple(_toolkit_includes(path)),
        host_includes=tuple(_host_includes(host)),
        identity=record.Toolchain(nvcc=version, build=build, host=f"{host.name} {host_version}"),
    )


def added_toolchains(installed: Path | None) -> dict[str, Path]:
    """nvcc's version → nvcc, of those that were added under `installed`; oldest first."""
    found = installed.glob("*/nvidia/cu*/bin/nvcc") if installed else ()
    by_version = {version: nvcc for nvcc in found if RELEASE.fullmatch(version := nvcc.parents[3].name)}
    return {version: by_version[version] for version in sorted(by_version, key=_numbers)}


def is_release(version: str, release: str) -> bool:
    """Whether nvcc `version` is one of `release`: 13.5.37 of 13.5 and of 13.5.37, but not of 13.50."""
    wanted = _numbers(release)
    return _numbers(version)[: len(wanted)] == wanted


def prove(toolchain: Toolchain) -> None:
    """Compile an empty kernel for sm_80 and disassemble it. Raises ToolchainError in the tool's own words."""
    with tempfile.TemporaryDirectory() as scratch:
        source, cubin = Path(scratch) / "empty.cu", Path(scratch) / "empty.cubin"
        source.write_text('#include <cuda_fp16.h>\nextern "C" __global__ void empty() {}\n', encoding="utf-8")
        _ask(toolchain.nvcc, "--cubin", "-arch=sm_80", f"-ccbin={toolchain.host}", str(source), "-o", str(cubin))
        if "empty" not in _ask(toolchain.nvdisasm, str(cubin)):
            raise ToolchainError(
                f"does not read what {toolchain.nvcc} compiles",
                where=str(toolchain.nvdisasm),
                remedy=INSTALL_DISASSEMBLER,
            )


def scrubbed_environment() -> dict[str, str]:
    """What a compiler is given: no NVCC_APPEND_FLAGS, CPATH or the like, which would change a build without a trace."""
    keep = ("PATH", "HOME", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT")
    return {name: os.environ[name] for name in keep if name in os.environ} | {"LC_ALL": "C"}


def _find_nvcc(explicit: str | None, installed: Path | None) -> tuple[Path, str]:
    named = explicit or os.environ.get("FAPERF_NVCC")
    if not named:
        return _find_unnamed()
    if RELEASE.fullmatch(named):
        return _find_release(named, installed, explicit=bool(explicit))
    origin = "--nvcc" if explicit else "FAPERF_NVCC"
    found = shutil.which(named)
    if found is None:
        raise ToolchainError(
            f"'{named}' is no program", where=origin, remedy="give the path of nvcc, or a release as in 13.5"
        )
    return Path(found), origin


def _find_release(release: str, installed: Path | None, *, explicit: bool) -> tuple[Path, str]:
    added = added_toolchains(installed)
    for version in reversed(added):
        if is_release(version, release):
            return added[version], ADDED
    with contextlib.suppress(ToolchainError):
        path, origin = _find_nvcc(None, installed) if explicit else _find_unnamed()
        if is_release(_identify(path)[0], release):
            return path, origin
    raise ToolchainError(
        f"no CUDA {release} is at hand (added: {', '.join(added) or 'none'})",
        where=None if explicit else "FAPERF_NVCC",
        remedy=f"{ADDED} {release}",
    )


def _find_unnamed() -> tuple[Path, str]:
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


def _identify(nvcc: Path) -> tuple[str, str]:
    """nvcc's version ("13.5.37") and NVIDIA's own build string."""
    answer = _ask(nvcc, "--version")
    version = re.search(r"\bV(\d+\.\d+\.\d+)", answer)
    if version is None:
        raise ToolchainError("does not answer as nvcc does", where=str(nvcc), remedy=INSTALL)
    build = re.search(r"^Build (\S+)", answer, re.MULTILINE)
    return version[1], build[1] if build else ""


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


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
    except subprocess.CalledProcessError as error:
        raise ToolchainError(
            f"does not run: exit status {error.returncode}\n{error.output.strip()}".strip(),
            where=str(program),
            remedy=INSTALL,
        ) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError(f"does not run: {error}", where=str(program), remedy=INSTALL) from error
    return answer.stdout
