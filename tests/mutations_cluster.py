"""tests/data/kernels/cluster.cu and tcgen05_pair.cu, right and made wrong, built in one go each and run in the emulator."""

# ruff: noqa: E501 (a mutation is a row of a table)
from __future__ import annotations

from pathlib import Path

import numpy as np

from faperf.build import Builder
from faperf.emulator import SCHEDULES
from faperf.emulator.emulate import Device
from faperf.emulator.fault import (
    BAD_BARRIER,
    BAD_DESCRIPTOR,
    DEADLOCK,
    ENDED,
    EXPECT_TX,
    MISSING_WAIT,
    OUT_OF_BOUNDS,
    RACE,
    TMEM,
    DiagnosisError,
)
from faperf.emulator.ptx import Module, parse
from faperf.launch import ResolvedArgument, ResolvedLaunch
from faperf.toolchain import Toolchain
from tests.compiling import version_of
from tests.conftest import REPOSITORY
from tests.mutations import MISSED, WRONG, Mutation

KERNELS = REPOSITORY / "tests/data/kernels"
TILES, CLUSTERS = 5, 2
SHAPES = [(128, 64), (256, 32), (256, 128)]

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
    Mutation("pair", "the leader's barrier expects its own bytes", "2 * (A_BYTES + B_BYTES)", "A_BYTES + B_BYTES", EXPECT_TX),
    Mutation("pair", "each CTA tells its own barrier", " & LEADERS", "", EXPECT_TX, nth=0),
    Mutation("pair", "the leader alone is told of the end", "commit(address(&done), BOTH)", "commit(address(&done), 1)", DEADLOCK),
    Mutation("pair", "the other CTA does not wait for the end", "    wait(address(&done));", "    if (rank == 0) wait(address(&done));", MISSING_WAIT),
    Mutation("pair", "the other CTA ends while it is read", "    wait(address(&done));", "    if (rank == 1) return;\n    wait(address(&done));", ENDED),
    Mutation("pair", "each CTA meets by itself before it begins", "    cluster_sync();\n    asm", "    __syncthreads();\n    asm", RACE),
    Mutation("pair", "M of one CTA", "M / 16 << 24", "M / 32 << 24", BAD_DESCRIPTOR),
    Mutation("pair", "both CTAs load the same half of B", "rank * (N / 2), address(&full)", "0, address(&full)", WRONG),
    Mutation("pair", "rows as with M = 256", "threadIdx.x % 64), first", "threadIdx.x), first", OUT_OF_BOUNDS),
    Mutation("pair", "the leader alone frees", "    if (warp == 0) {\n        asm volatile(\"tcgen05.relinq", "    if (warp == 0 && rank == 0) {\n        asm volatile(\"tcgen05.relinq", TMEM),
]  # fmt: skip


def build(version: str, tmp: Path, toolchain: Toolchain) -> Module:
    """The kernel as it is, for each of its shapes, and CLUSTER's mutation n of it as its entry and `_n`."""
    file, entry, target = {
        "cluster": ("cluster.cu", "share", "sm_90a"),
        "pair": ("tcgen05_pair.cu", "pair", "sm_103a"),
    }[version]
    text = (KERNELS / file).read_text(encoding="utf-8").replace("#include <stdint.h>\n", "")
    parts = ["#include <stdint.h>\n"]

    def add(name: str, what: str, m: int = 128, n: int = 64) -> None:
        parts.append(
            f"namespace {name}_ {{ constexpr int M = {m}, N = {n};\n{what.replace(f'{entry}(', f'{name}(')} }}\n"
        )

    for m, n in SHAPES if version == "pair" else [(0, 0)]:
        add(f"{entry}_{m}x{n}" if m else entry, text, m, n)
    for number, mutation in enumerate(CLUSTER):
        if mutation.version == version:
            add(f"{entry}_{number}", mutation.applied(text))
    (tmp / file).write_text("".join(parts), encoding="utf-8")
    return parse(Builder(tmp, tmp / "cache", toolchain).build(version_of(file), target).ptx.read_text())


def inputs() -> np.ndarray:
    """[cluster, tile, row, column] as bits of f16, small whole numbers for the kernel."""
    return np.random.RandomState(0).randint(0, 64, (CLUSTERS * TILES * 16, 64)).astype(np.uint16)


def expected() -> np.ndarray:
    """[CTA, 32]."""
    elements = inputs().astype(np.float64).reshape(CLUSTERS, TILES, 32, 32)
    weights = np.arange(1, 3)[:, None] + np.arange(32) % 2  # [rank, i]
    sums = np.einsum("ctil,ri->crl", elements, weights)
    return (3 * sums + sums[:, ::-1]).reshape(-1, 32)


def is_right(module: Module, entry: str, schedule: str, seed: int = 0) -> bool:
    """Whether a kernel of `build` gives what it is to give. Raises DiagnosisError."""
    if entry.startswith("pair"):
        m, n = (int(size) for size in entry[5:].split("x")) if "x" in entry else (128, 64)
        return _multiplies(module, entry, m, n, schedule, seed)
    device = Device(module, {"x": inputs().view(np.float16), "out": np.zeros((2 * CLUSTERS, 32), np.float32)})
    arguments = [ResolvedArgument(tensor_map="x", box=[64, 8], swizzle=0), ResolvedArgument(tensor="out")]
    device.launch(ResolvedLaunch(entry, (2 * CLUSTERS, 1, 1), (64, 1, 1), (2, 1, 1), 4096, arguments), schedule, seed)
    return np.array_equal(device.memory.content("out"), expected())


def _multiplies(module: Module, entry: str, m: int, n: int, schedule: str, seed: int) -> bool:
    """Whole numbers, so that every sum is exact."""
    random = np.random.RandomState(1)
    a, b = (random.randint(-8, 9, (rows, 64)).astype(np.float16) for rows in (m, n))
    device = Device(module, {"a": a, "b": b, "c": np.zeros((m, n), np.float32)})
    arguments = [
        *(ResolvedArgument(tensor_map=name, box=[64, rows // 2], swizzle=128) for name, rows in (("a", m), ("b", n))),
        ResolvedArgument(tensor="c"),
    ]
    smem = (m + n) * 64
    device.launch(ResolvedLaunch(entry, (2, 1, 1), (128, 1, 1), (2, 1, 1), smem, arguments), schedule, seed)
    return np.array_equal(device.memory.content("c"), a.astype(np.float32) @ b.astype(np.float32).T)


def found(module: Module, number: int) -> tuple[str, str]:
    """(what mutation `number` is found as in the first schedule that finds anything, the message)."""
    for schedule in SCHEDULES:
        try:
            if not is_right(module, f"{'pair' if CLUSTER[number].version == 'pair' else 'share'}_{number}", schedule):
                return WRONG, ""
        except DiagnosisError as error:
            return error.kind, str(error)
    return MISSED, ""
