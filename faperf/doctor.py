"""What faperf needs, what of it is here, and how to get the rest."""

from __future__ import annotations

import platform
import sys

import msgspec

from faperf.device import find_gpu, missing_libraries
from faperf.errors import FaperfError
from faperf.figures import open_repository
from faperf.history import History
from faperf.project import Project
from faperf.toolchain import find_toolchain


class Diagnosis(msgspec.Struct, frozen=True):
    """`ok` False with `needed` True stops faperf; otherwise something is merely not available."""

    what: str
    ok: bool
    needed: bool
    found: str
    remedy: str = ""


def examine(project: Project, nvcc: str | None) -> list[Diagnosis]:
    """Every tool and library, in the order in which a new user meets them."""
    return [
        Diagnosis(
            "python", sys.version_info >= (3, 11), True, platform.python_version(), "install Python 3.11 or newer"
        ),
        *_toolchain(project, nvcc),
        _git(project),
        _machine(project),
        *_gpu(),
    ]


def _toolchain(project: Project, nvcc: str | None) -> list[Diagnosis]:
    try:
        tools = find_toolchain(nvcc, installed=project.toolchains)
    except FaperfError as error:
        return [Diagnosis("CUDA compiler", False, True, error.what, error.remedy or "")]
    identity = tools.identity
    return [
        Diagnosis("nvcc", True, True, f"{identity.nvcc} at {tools.nvcc} (from {tools.origin})"),
        Diagnosis("nvdisasm", True, True, str(tools.nvdisasm)),
        Diagnosis("C++ compiler", True, True, f"{identity.host} at {tools.host}"),
    ]


def _git(project: Project) -> Diagnosis:
    remedy = "git init: without it records carry no commit, and diff has nothing to compare"
    try:
        repository = open_repository(project)
    except FaperfError as error:
        return Diagnosis("git", False, False, error.what, remedy)
    if repository is None:
        return Diagnosis("git", False, False, "no repository here", remedy)
    head = repository.head()
    return Diagnosis("git", True, False, f"HEAD {head[:12]}" if head else "no commit yet")


def _machine(project: Project) -> Diagnosis:
    machine = History(project).machine()
    if machine is None:
        return Diagnosis(
            "enrolled", False, False, "no: records stay in .faperf/", "faperf machine add, to share records through git"
        )
    return Diagnosis("enrolled", True, False, f"as {machine.machine_class}: records go to history/")


def _gpu() -> list[Diagnosis]:
    gpu, reason = find_gpu()
    found = [
        Diagnosis("GPU", True, False, f"{gpu.name}, compute capability {gpu.capability}")
        if gpu
        else Diagnosis("GPU", False, False, reason or "", "nothing is measured here; compiling and inspecting work")
    ]
    for package in missing_libraries() if gpu else []:
        found.append(Diagnosis(package, False, False, "not installed", "pip install 'faperf[gpu]'"))
    return found
