"""The kernels of the contest as plain data, and loaded. Imports cupy only where it launches."""

from __future__ import annotations

import random
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.contest.plan import Pair
from faperf.building import Selection, Workshop
from faperf.device import Arena, Kernels
from faperf.harness import bundle_tree
from faperf.job import Job
from faperf.launch import ResolvedArgument, ResolvedLaunch
from faperf.operations import BUILT_IN, tensors_of
from faperf.toolchain import scrubbed_environment

OPERATION = "attention_forward"
VERSION, WORKLOAD = "v13", "published"
ROUNDS = 10_000
ADDED = (0.0, 0.0025, 0.005, 0.01, 0.02)
THREADS, CTAS_AN_SM = 256, 2


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """What another process needs to launch the same. `shape` is the operation's whose inputs fill the tensors, if any."""

    name: str
    cubin: bytes
    launches: list[ResolvedLaunch]
    tensors: dict[str, tuple[tuple[int, ...], str]]
    shape: dict[str, int] | None = None
    layout: str = ""


class Loaded:
    """A kernel on the card, its buffers filled."""

    def __init__(self, kernel: Kernel, arena: Arena | None = None) -> None:
        self.arena = arena or placed(kernel)
        self.kernels = Kernels(kernel.cubin, kernel.launches)
        self.bound = self.kernels.bind(self.arena.tensors)

    def launch(self, stream: Any = None) -> None:
        """On cupy's current stream unless told otherwise."""
        for function, grid, block, arguments, smem in self.bound:
            function(grid, block, arguments, shared_mem=smem, stream=stream)


def placed(kernel: Kernel, spread: random.Random | None = None) -> Arena:
    arena = Arena(kernel.tensors, spread=spread)
    if kernel.shape is not None:
        for name, values in _inputs(kernel.layout, **kernel.shape).items():
            arena.tensors[name][...] = values
    return arena


@cache
def _inputs(layout: str, **shape: int) -> dict[str, Any]:
    import cupy

    return BUILT_IN[OPERATION].inputs(cupy, shape, layout, "normal", 1)


def known_work(nvcc: Path, target: str, sms: int) -> tuple[list[Kernel], list[Pair]]:
    """The kernel of known work with as many rounds as each pair wants: all from one cubin, only an argument differs."""
    source = Path(__file__).with_name("known_work.cu")
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "known_work.cubin"
        command: list[str | Path] = [nvcc, "-cubin", f"-arch={target}", source, "-o", cubin]
        subprocess.run(command, check=True, env=scrubbed_environment())
        content = cubin.read_bytes()
    kernels, pairs = [], []
    for added in ADDED:
        rounds = round(ROUNDS * (1 + added))
        launch = ResolvedLaunch(
            entry="known_work",
            grid=(CTAS_AN_SM * sms, 1, 1),
            block=(THREADS, 1, 1),
            cluster=(1, 1, 1),
            smem=0,
            args=[ResolvedArgument(tensor="O"), ResolvedArgument(scalar=rounds, type="i32")],
        )
        size = (CTAS_AN_SM * sms * THREADS,)
        kernels.append(Kernel(name=f"{rounds}", cubin=content, launches=[launch], tensors={"O": (size, "float32")}))
        pairs.append(Pair(f"FMA loop, {f'+{100 * added:g} %' if added else 'A/A'}", added, f"{ROUNDS}", f"{rounds}"))
    return kernels, pairs


def attention(workshop: Workshop, target: str) -> tuple[Kernel, Pair, Job]:
    """The repository's attention kernel against itself, and the job to verify it by."""
    _, job = bundle_tree(workshop, Selection((VERSION,), (target,)), (WORKLOAD,))
    side, workload = next(side for side in job.sides if side.version == VERSION), job.workload(WORKLOAD)
    operation = BUILT_IN[OPERATION]
    kernel = Kernel(
        name=VERSION,
        cubin=side.cubin,
        launches=side.launches[WORKLOAD],
        tensors=tensors_of(operation, workload.shape, side.layout),
        shape=workload.shape,
        layout=side.layout,
    )
    return kernel, Pair(f"{VERSION}, A/A", 0.0, VERSION, VERSION), job
