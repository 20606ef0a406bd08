"""Clusters of CTAs in the emulator: a kernel that shares tiles among them, right and made wrong, and launches that cannot be."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from faperf.emulator import SCHEDULES
from faperf.emulator.emulate import Device
from faperf.emulator.fault import ENDED, OUT_OF_BOUNDS, DiagnosisError, NotEmulatedError
from faperf.emulator.ptx import Module, parse
from faperf.launch import ResolvedArgument, ResolvedLaunch
from faperf.toolchain import Toolchain
from tests.emulating import run_kernel, subject_of
from tests.mutations_cluster import CLUSTER, SHAPES, build, found, is_right

pytestmark = pytest.mark.compile


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory, toolchain: Toolchain) -> dict[str, Module]:
    return {version: build(version, tmp_path_factory.mktemp(version), toolchain) for version in ("cluster", "pair")}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ctas_share_what_they_load(kernels: dict[str, Module], schedule: str, seed: int) -> None:
    assert is_right(kernels["cluster"], "share", schedule, seed)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_two_ctas_multiply_as_one(kernels: dict[str, Module], m: int, n: int, schedule: str) -> None:
    assert is_right(kernels["pair"], f"pair_{m}x{n}", schedule)


@pytest.mark.parametrize("number", range(len(CLUSTER)), ids=[mutation.what for mutation in CLUSTER])
def test_a_mutation_is_found(kernels: dict[str, Module], number: int) -> None:
    kind, message = found(kernels[CLUSTER[number].version], number)
    assert kind == CLUSTER[number].finds, message


def test_a_deadlock_says_whose_barrier_lacks_what(kernels: dict[str, Module]) -> None:
    message = found(kernels["cluster"], 0)[1]
    assert (
        "warp 1 of CTA (1, 0, 0) … waits for parity 0 of mbarrier 0x1000400 of CTA (1, 0, 0), which is in phase 0 with"
        in message
    )
    assert "0 of 1 arrivals and 2048 bytes missing" in message


@pytest.mark.parametrize(
    ("grid", "cluster", "said"),
    [
        (3, 2, r"a grid of \(3, 1, 1\) in clusters of \(2, 1, 1\), which do not divide it"),
        (4, 4, r"a launch in clusters of \(4, 1, 1\) of a kernel that was compiled for \(2, 1, 1\)"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(kernels: dict[str, Module], grid: int, cluster: int, said: str) -> None:
    device = Device(kernels["cluster"], {"x": np.zeros((160, 64), np.float16), "out": np.zeros((4, 32), np.float32)})
    arguments = [ResolvedArgument(tensor_map="x", box=[64, 8], swizzle=0), ResolvedArgument(tensor="out")]
    with pytest.raises(NotEmulatedError, match=said):
        device.launch(ResolvedLaunch("share", (grid, 1, 1), (64, 1, 1), (cluster, 1, 1), 4096, arguments))


READ_THE_OTHER = """extern "C" __global__ void __cluster_dims__(2, 1, 1) k(unsigned* out, int own) {
    __shared__ unsigned mine[32];
    unsigned rank, far, value;
    asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    mine[threadIdx.x] = threadIdx.x;
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    if (rank == 0) return;
    asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(far) : "r"((unsigned)__cvta_generic_to_shared(mine + threadIdx.x)));
    if (own) asm volatile("ld.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(far) : "memory");
    else asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(far) : "memory");
    out[threadIdx.x] = value;
}"""


def test_a_ctas_memory_is_reached_while_it_runs(tmp_path: Path, toolchain: Toolchain) -> None:
    """In one schedule it has ended, in another not; nothing tells it to wait. ld.shared::cta faults so on an H200."""
    for own, kind, said in (
        (0, ENDED, r"accesses the shared memory of CTA \(0, 0, 0\), which has ended|ends while"),
        (1, OUT_OF_BOUNDS, "of another CTA, without .shared::cluster"),
    ):
        for schedule in SCHEDULES:
            with pytest.raises(DiagnosisError, match=said) as error:
                run_kernel(
                    READ_THE_OTHER, tmp_path, toolchain,
                    out=np.zeros(32, np.uint32), grid=2, schedule=schedule, scalars=(own,),
                )  # fmt: skip
            assert error.value.kind == kind


def test_clusters_are_numbered_as_on_a_card() -> None:
    """Ranks run along x, then y, within a cluster; a grid of 4 x 4 in clusters of 2 x 2."""
    names = [
        f"%{name}.{axis}"
        for name in ("ctaid", "clusterid", "cluster_ctaid", "nclusterid", "cluster_nctaid")
        for axis in "xyz"
    ]
    names += ["%cluster_ctarank", "%cluster_nctarank"]
    lines = "\n".join(f"mov.u32 %r1, {name}; st.global.u32 [%rd3+{4 * i}], %r1;" for i, name in enumerate(names))
    text = f""".version 8.0\n.target sm_90a\n.address_size 64
.visible .entry k(.param .u64 out) {{
.reg .b32 %r<6>; .reg .b64 %rd<4>;
ld.param.u64 %rd1, [out];
mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y; mad.lo.s32 %r4, %r3, 4, %r2;
mul.wide.u32 %rd2, %r4, {4 * len(names)}; add.s64 %rd3, %rd1, %rd2;
{lines}
ret;
}}"""
    device = Device(parse(text), {"out": np.zeros((4, 4, len(names)), np.uint32)})
    device.launch(ResolvedLaunch("k", (4, 4, 1), (1, 1, 1), (2, 2, 1), 0, [ResolvedArgument(tensor="out")]))
    found_there = device.memory.content("out")
    for y in range(4):
        for x in range(4):
            rank = y % 2 * 2 + x % 2
            within = (x, y, 0, x // 2, y // 2, 0, x % 2, y % 2, 0)
            assert tuple(found_there[y, x]) == (*within, 2, 2, 1, 2, 2, 1, rank, 4)


@pytest.mark.parametrize(("version", "target"), [("h21", "sm_90a"), ("v21", "sm_103a")])
def test_ctas_that_share_nothing_are_the_same_in_a_cluster(
    version: str, target: str, shared_cache: Path, toolchain: Toolchain
) -> None:
    """A producer and consumers in each CTA, all CTAs of a cluster in one path: wgmma, tcgen05, rings of mbarriers."""
    subject = subject_of(version, target, {"B": 1, "H": 1, "S": 512, "D": 128}, toolchain, shared_cache)
    random, module, results = np.random.RandomState(0), parse(subject.ptx), []
    inputs = {name: random.randn(1, 512, 1, 128).astype(np.float16) for name in "QKV"}
    for cluster in ((1, 1, 1), (2, 1, 1)):
        device = Device(module, {**inputs, "O": np.zeros((1, 512, 1, 128), np.float16)})
        for launch in subject.launches:
            device.launch(msgspec.structs.replace(launch, cluster=cluster))
        results.append(device.memory.content("O"))
    np.testing.assert_array_equal(*results)
