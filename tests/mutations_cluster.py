"""tests/data/kernels/cluster.cu, right and made wrong, built in one go and run in the emulator."""

# ruff: noqa: E501 (a mutation is a row of a table)
from __future__ import annotations

from pathlib import Path

import numpy as np

from faperf.build import Builder
from faperf.emulator import SCHEDULES
from faperf.emulator.emulate import Device
from faperf.emulator.fault import (
    BAD_BARRIER,
    DEADLOCK,
    ENDED,
    MISSING_WAIT,
    OUT_OF_BOUNDS,
    RACE,
    DiagnosisError,
)
from faperf.emulator.ptx import Module, parse
from faperf.launch import ResolvedArgument, ResolvedLaunch
from faperf.toolchain import Toolchain
from tests.compiling import version_of
from tests.conftest import REPOSITORY
from tests.mutations import MISSED, WRONG, Mutation

KERNEL = REPOSITORY / "tests/data/kernels/cluster.cu"
TILES, CLUSTERS = 5, 2

CLUSTER = [
    Mutation("cluster", "the multicast leaves out a CTA", "address(full + stage), 3)", "address(full + stage), 1)", DEADLOCK),
    Mutation("cluster", "the full barrier expects its own CTA's half", "expect(address(full + stage), TILE)", "expect(address(full + stage), HALF)", MISSING_WAIT),
    Mutation("cluster", "both halves to one place", "stage * TILE + rank * HALF", "stage * TILE", MISSING_WAIT),
    Mutation("cluster", "both CTAs load one half", "* 16 + rank * 8;", "* 16;", WRONG),
    Mutation("cluster", "a tile is given back to one's own CTA twice", "at_rank(address(empty + stage), lane)", "at_rank(address(empty + stage), rank)", MISSING_WAIT),
    Mutation("cluster", "a tile is given back to a CTA that is not there", "at_rank(address(empty + stage), lane)", "at_rank(address(empty + stage), lane * 2)", OUT_OF_BOUNDS),
    Mutation("cluster", "the empty barriers count one consumer", "init(address(empty + stage), 2)", "init(address(empty + stage), 1)", DEADLOCK),
    Mutation("cluster", "the loader does not wait for room", "            wait(address(empty + stage), phase ^ 1);\n", "", MISSING_WAIT),
    Mutation("cluster", "only the CTA meets after the initialisation", "cluster_arrive_relaxed();\n    cluster_wait();", "__syncthreads();", RACE),
    Mutation("cluster", "no fence after the initialisation", "        fence_init();\n", "", RACE),
    Mutation("cluster", "the sums of the other CTA are not waited for", "        wait(address(&sums_full), 0);\n", "", MISSING_WAIT),
    Mutation("cluster", "the sums go to one's own CTA", "at_rank(address(theirs + lane), peer), sum, at_rank(address(&sums_full), peer)", "address(theirs + lane), sum, address(&sums_full)", WRONG),
    Mutation("cluster", "the sums' barrier is one's own", "sum, at_rank(address(&sums_full), peer)", "sum, address(&sums_full)", BAD_BARRIER),
    Mutation("cluster", "no cluster barrier at the end", "    cluster_arrive();\n    cluster_wait();\n", "", ENDED),
]  # fmt: skip


def build(tmp: Path, toolchain: Toolchain) -> Module:
    """The kernel as `share`, and mutation n of it as `share_n`."""
    text = KERNEL.read_text(encoding="utf-8")
    head, kernel, body = text.partition('extern "C"')
    parts = [head, kernel, body]
    for number, mutation in enumerate(CLUSTER):
        changed = mutation.applied(kernel + body)
        parts.append(changed.replace("share(", f"share_{number}("))
    (tmp / "cluster.cu").write_text("".join(parts), encoding="utf-8")
    artifact = Builder(tmp, tmp / "cache", toolchain).build(version_of("cluster.cu"), "sm_90a")
    return parse(artifact.ptx.read_text())


def inputs() -> np.ndarray:
    """[cluster, tile, row, column] as bits of f16, small whole numbers for the kernel."""
    return np.random.RandomState(0).randint(0, 64, (CLUSTERS * TILES * 16, 64)).astype(np.uint16)


def expected() -> np.ndarray:
    """[CTA, 32]."""
    elements = inputs().astype(np.float64).reshape(CLUSTERS, TILES, 32, 32)
    weights = np.arange(1, 3)[:, None] + np.arange(32) % 2  # [rank, i]
    sums = np.einsum("ctil,ri->crl", elements, weights)
    return (3 * sums + sums[:, ::-1]).reshape(-1, 32)


def run(module: Module, entry: str, schedule: str, seed: int = 0) -> np.ndarray:
    """[CTA, 32]. Raises DiagnosisError."""
    device = Device(module, {"x": inputs().view(np.float16), "out": np.zeros((2 * CLUSTERS, 32), np.float32)})
    arguments = [ResolvedArgument(tensor_map="x", box=[64, 8], swizzle=0), ResolvedArgument(tensor="out")]
    device.launch(ResolvedLaunch(entry, (2 * CLUSTERS, 1, 1), (64, 1, 1), (2, 1, 1), 4096, arguments), schedule, seed)
    result: np.ndarray = device.memory.content("out")
    return result


def found(module: Module, number: int) -> tuple[str, str]:
    """(what mutation `number` is found as in the first schedule that finds anything, the message)."""
    for schedule in SCHEDULES:
        try:
            if not np.array_equal(run(module, f"share_{number}", schedule), expected()):
                return WRONG, ""
        except DiagnosisError as error:
            return error.kind, str(error)
    return MISSED, ""
