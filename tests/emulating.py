"""What the emulator's tests share: a version of this repository, or a test kernel, built and made a subject."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from faperf.build import Builder
from faperf.emulating import Subject
from faperf.emulator.emulate import Device
from faperf.emulator.ptx import parse
from faperf.launch import ResolvedArgument, ResolvedLaunch
from faperf.manifest import Workload, load_manifests
from faperf.project import Project
from faperf.resolve import resolve
from faperf.toolchain import Toolchain
from tests.compiling import version_of
from tests.conftest import REPOSITORY


def subject_of(
    version_id: str, target: str, shape: dict[str, int], toolchain: Toolchain, cache: Path, root: Path = REPOSITORY
) -> Subject:
    """A version of this repository on a workload of its own, by its own manifest."""
    version = load_manifests(Project(REPOSITORY)).versions[version_id]
    artifact = Builder(root, cache, toolchain).build(version, target)
    return Subject(
        build=artifact.key,
        ptx=artifact.ptx.read_text(),
        launches=launches_of(version_id, shape),
        workload="small",
        shape=shape,
        layout=version.operation.layout,
    )


def launches_of(version_id: str, shape: dict[str, int]) -> list[ResolvedLaunch]:
    version = load_manifests(Project(REPOSITORY)).versions[version_id]
    return resolve(version, Workload("small", "small", version.operation.name, shape))


def run_kernel(
    source: str,
    tmp: Path,
    toolchain: Toolchain,
    *,
    out: np.ndarray,
    block: int = 32,
    grid: int = 1,
    smem: int = 0,
    schedule: str = "lockstep",
    target: str = "sm_90a",
    tensors: dict[str, np.ndarray] | None = None,
    seed: int = 0,
    scalars: tuple[int, ...] = (),
    flags: tuple[str, ...] = (),
    warned: list[str] | None = None,
) -> np.ndarray:
    """Compile `extern "C" __global__ void k(in…, out, int…)` and run it; gives what `out` holds then."""  # fmt: skip
    (tmp / "k.cu").write_text(source)
    artifact = Builder(tmp, tmp / "cache", toolchain).build(version_of("k.cu", *flags), target)
    arrays = {**(tensors or {}), "out": out}
    device = Device(parse(artifact.ptx.read_text()), arrays)
    arguments = [ResolvedArgument(tensor=name) for name in arrays]
    arguments += [ResolvedArgument(scalar=value, type="i32") for value in scalars]
    device.launch(ResolvedLaunch("k", (grid, 1, 1), (block, 1, 1), (1, 1, 1), smem, arguments), schedule, seed)
    if warned is not None:
        warned.extend(device.warnings)
    result: np.ndarray = device.memory.content("out")
    return result


TCGEN05 = "tests/data/kernels/tcgen05_attention.cu"
TCGEN05_ROWS = 128


def tcgen05_subject(
    shape: dict[str, int], toolchain: Toolchain, cache: Path, root: Path = REPOSITORY, *flags: str
) -> Subject:
    """The tcgen05 test kernel for sm_103a on a workload."""
    artifact = Builder(root, cache, toolchain).build(version_of(TCGEN05, *flags), "sm_103a")
    return Subject(
        build=artifact.key,
        ptx=artifact.ptx.read_text(),
        launches=[tcgen05_launch(shape)],
        workload="small",
        shape=shape,
        layout="BSHD",
    )


def tcgen05_launch(shape: dict[str, int]) -> ResolvedLaunch:
    s, h, rows = shape["S"], shape["H"], TCGEN05_ROWS
    boxes = {"Q": rows, "K": 64, "V": 64}
    arguments = [ResolvedArgument(tensor_map=name, box=[64, 1, box, 1], swizzle=128) for name, box in boxes.items()]
    arguments += [ResolvedArgument(tensor="O")] + [ResolvedArgument(scalar=value, type="i32") for value in (s, h)]
    return ResolvedLaunch(
        "tcgen05_attention", (s // rows, shape["B"] * h, 1), (128, 1, 1), (1, 1, 1), 64 * 1024, arguments
    )
