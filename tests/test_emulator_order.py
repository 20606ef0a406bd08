"""What is in order without being told so: lanes of one warp, and phases of an mbarrier after each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from faperf.emulator import SCHEDULES
from faperf.emulator.fault import RACE, DiagnosisError
from faperf.toolchain import Toolchain
from tests.emulating import run_kernel

LANES = """
extern "C" __global__ void k(int* out, int order) {
    __shared__ int tile[64];
    __shared__ short half[32];
    const int lane = threadIdx.x % 32, other = lane ^ 1;
    int* mine = tile + threadIdx.x / 32 * 32;
    int found = 0;
    switch (order) {
    case 0: mine[lane] = lane; __syncwarp(); found = mine[other]; break;
    case 1: mine[lane] = lane; found = mine[lane]; break;
    case 2: mine[0] = 7; found = mine[0]; break;
    case 3: mine[lane] = lane; found = __shfl_xor_sync(~0u, lane, 1) + mine[other]; break;
    case 4: if (threadIdx.x < 32) { half[lane] = lane; found = half[lane]; } break;
    case 5: if (lane == 0) mine[5] = 9; __syncwarp(); found = mine[5]; break;
    case 6: mine[lane] = lane; found = mine[other]; break;
    case 7: if (lane == 0) mine[5] = 9; found = mine[5]; break;
    case 8: for (int i = 0; i < 3; ++i) { __syncwarp(); mine[lane] = i; found += mine[other]; } break;
    }
    out[threadIdx.x] = found;
}
"""
ROUNDS = """
__device__ void wait(unsigned bar, int parity) {
    asm volatile("{ .reg .pred p; again_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again_%=; }"
                 :: "r"(bar), "r"(parity) : "memory");
}
extern "C" __global__ void k(int* out, int meet) {
    __shared__ alignas(8) long long barrier;
    const unsigned bar = __cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
    __syncthreads();
    for (int round = 0; round < 3; ++round) {
        if (threadIdx.x == 0)
            asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }" :: "r"(bar) : "memory");
        wait(bar, round & 1);
        if (meet) __syncthreads();
    }
    out[threadIdx.x] = 1;
}
"""


@pytest.mark.compile
def test_lanes_of_a_warp_are_to_meet(tmp_path: Path, toolchain: Toolchain) -> None:
    for order in range(9):
        for schedule in SCHEDULES[: 1 if order % 3 else 3]:
            given = {"out": np.zeros(64, np.int32), "block": 64, "scalars": (order,), "schedule": schedule}
            if order < 6:
                run_kernel(LANES, tmp_path, toolchain, **given)  # type: ignore[arg-type]
                continue
            with pytest.raises(DiagnosisError, match="no __syncwarp between") as raised:
                run_kernel(LANES, tmp_path, toolchain, **given)  # type: ignore[arg-type]
            assert raised.value.kind == RACE
            assert ".cu:" in raised.value.where


@pytest.mark.compile
def test_a_phase_that_may_end_unseen_is_a_warning(tmp_path: Path, toolchain: Toolchain) -> None:
    """Where warps do not meet, the first may bring a phase to its end before the second has seen the last one."""
    for meet, warns in ((1, False), (0, True)):
        warned: list[str] = []
        out = np.zeros(64, np.int32)
        run_kernel(ROUNDS, tmp_path, toolchain, out=out, block=64, scalars=(meet,), warned=warned)
        assert [("before warp 1 has seen" in warning) and ".cu:" in warning for warning in warned] == [True] * warns
