"""Bytes that an mbarrier expects and bytes that are copied to it: right in every order, and named where they differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from faperf.emulator import RANDOM, SCHEDULES
from faperf.emulator.fault import EXPECT_TX, MISSING_WAIT, DiagnosisError
from faperf.toolchain import Toolchain
from tests.emulating import run_kernel

KERNEL = """
#define FIRST copy(to, from, 256, bar);
#define SECOND copy(to + 256, from + 64, 256, bar);
__device__ void expect(unsigned bar, int bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ void arrive(unsigned bar) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }" :: "r"(bar) : "memory");
}
__device__ void arrive_expect(unsigned bar, int bytes) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ void copy(unsigned to, const void* from, int bytes, unsigned bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
__device__ void wait(unsigned bar, int parity) {
    asm volatile("{ .reg .pred p; again_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again_%=; }"
                 :: "r"(bar), "r"(parity) : "memory");
}
extern "C" __global__ void k(const int* in, int* out, int order) {
    __shared__ alignas(16) int tile[2][64];
    __shared__ alignas(8) long long barrier;
    const unsigned bar = __cvta_generic_to_shared(&barrier), to = __cvta_generic_to_shared(&tile[0][0]);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
    __syncthreads();
    for (int round = 0; round < 3; ++round) {
        const int* from = in + 128 * round;
        if (threadIdx.x == 0) {
            switch (order) {
            case 0: case 10: case 11: FIRST SECOND arrive_expect(bar, 512); break;
            case 1: expect(bar, 256); FIRST arrive_expect(bar, 256); SECOND break;
            case 2: FIRST expect(bar, 256); SECOND expect(bar, 256); arrive(bar); break;
            case 3: arrive_expect(bar, 256); FIRST SECOND break;
            case 4: arrive_expect(bar, 528); FIRST SECOND break;
            case 5: FIRST SECOND arrive_expect(bar, 256); break;
            case 6: FIRST SECOND arrive_expect(bar, 528); break;
            case 7: arrive(bar); FIRST SECOND break;
            case 8: arrive_expect(bar, 512); break;
            case 9: arrive_expect(bar, 256); break;
            }
        }
        if (threadIdx.x == 32 && (order == 8 || order == 9)) { FIRST SECOND }
        if (order < 10 || threadIdx.x % 32 == 0) wait(bar, round & 1);
        if (order == 10) __syncwarp();
        if (threadIdx.x < 64) out[128 * round + threadIdx.x] = tile[0][threadIdx.x];
        __syncthreads();
    }
}
"""
RIGHT = (0, 1, 2, 8, 10)
EXPECTS = {3: 256, 4: 528, 5: 256, 6: 528, 7: 0, 9: 256}


def run(order: int, schedule: str, tmp_path: Path, toolchain: Toolchain, seed: int = 0) -> np.ndarray:
    values, out = np.arange(384, dtype=np.int32), np.full(384, -1, np.int32)
    return run_kernel(
        KERNEL, tmp_path, toolchain, out=out, block=128, schedule=schedule, tensors={"in": values}, scalars=(order,), seed=seed
    )  # fmt: skip


@pytest.mark.compile
def test_expected_and_copied_bytes(tmp_path: Path, toolchain: Toolchain) -> None:
    """Also where no schedule reads too early or locks up: the second copy is read by nobody here."""
    for schedule in SCHEDULES:
        for order in RIGHT:
            for seed in range(6) if order == 8 and schedule == RANDOM else (0,):  # two warps, in either order
                assert (run(order, schedule, tmp_path, toolchain, seed)[:64] == np.arange(64)).all(), (order, schedule)
        for order, expected in EXPECTS.items():
            bytes_said = f"expects {expected} bytes and (256|512|768) are copied" if order != 9 else "mbarrier 0x"
            with pytest.raises(DiagnosisError, match=bytes_said) as raised:
                run(order, schedule, tmp_path, toolchain)
            assert raised.value.kind == EXPECT_TX, (order, schedule)
            assert ".cu:" in raised.value.where
        with pytest.raises(
            DiagnosisError, match=r"lane 1 of warp . .* and only lane 0 has waited for: no __syncwarp"
        ) as raised:
            run(11, schedule, tmp_path, toolchain)
        assert raised.value.kind == MISSING_WAIT
