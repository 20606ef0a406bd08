"""wgmma on the emulator: operands from shared memory and registers, both majors, both accumulators, all swizzles."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from faperf.emulator import SCHEDULES
from faperf.emulator.fault import MISSING_WAIT, DiagnosisError
from faperf.toolchain import Toolchain
from tests.emulating import run_kernel

KERNEL = r"""
#include <stdint.h>
constexpr int K = 16 * STEPS;
__device__ uint32_t at(uint32_t base, int line, int byte) {  // lines of SWIZZLE bytes, swizzled by their absolute address
    uint32_t a = base + line * SWIZZLE + byte;
    return a ^ ((a >> 7 & (SWIZZLE / 16 - 1)) << 4);
}
__device__ uint64_t descriptor(uint32_t a, uint32_t leading, uint32_t stride) {
    const uint64_t strides = uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32;
    return a >> 4 | strides | uint64_t(SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : 3) << 62;
}
// A[64][K] and B[N][K] (or B[K][N] with MN), one block of `SWIZZLE` bytes of k (or of n) after the other.
extern "C" __global__ void k(const unsigned short* a, const unsigned short* b, ELEMENT* out) {
    extern __shared__ __align__(1024) char smem[];
    const uint32_t A = __cvta_generic_to_shared(smem), B = A + 64 * K * 2;
    constexpr int W = SWIZZLE / 2;
    for (int i = threadIdx.x; i < 64 * K; i += 128) {
        int r = i / K, c = i % K;
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(at(A + c / W * 64 * SWIZZLE, r, c % W * 2)), "h"(a[i]) : "memory");
    }
    for (int i = threadIdx.x; i < N * K; i += 128) {
#ifdef MN
        int line = i / N, c = i % N, lines = K;
#else
        int line = i / K, c = i % K, lines = N;
#endif
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(at(B + c / W * lines * SWIZZLE, line, c % W * 2)), "h"(b[i]) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    REGISTER d[COUNT] = {};
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int s = 0; s < STEPS; ++s) {
        const int c = 16 * s;
        const uint64_t da = descriptor(A + c / W * 64 * SWIZZLE + c % W * 2, 0, 8 * SWIZZLE);
#ifdef MN
        const uint64_t db = descriptor(B + c * SWIZZLE, K * SWIZZLE, 8 * SWIZZLE);
#else
        const uint64_t db = descriptor(B + c / W * N * SWIZZLE + c % W * 2, 0, 8 * SWIZZLE);
#endif
        WGMMA
    }
    asm volatile("wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned WAITS;" ::: "memory");
#ifdef OVERWRITE
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(B + 4 * threadIdx.x), "r"(0) : "memory");
#endif
    const int w = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = 0; i < COUNT; ++i) {
#ifdef SINGLE
        out[(16 * w + g + 8 * (i / 2 % 2)) * N + i / 4 * 8 + 2 * t + i % 2] = d[i];
#else
        for (int e = 0; e < 2; ++e) out[(16 * w + g + 8 * (i % 2)) * N + i / 2 * 8 + 2 * t + e] = d[i] >> 16 * e;
#endif
    }
}
"""


def kernel(
    *,
    single: bool,
    across: bool,
    registers: bool,
    swizzle: int,
    steps: int = 4,
    waits: int = 0,
    n: int = 64,
    more: str = "",
) -> str:
    """The kernel above with its instruction written out."""
    count = n // 2 if single else n // 4
    names = ", ".join(f"%{i}" for i in range(count))
    outs = ", ".join(f'"+{"f" if single else "r"}"(d[{i}])' for i in range(count))
    kind = "f32" if single else "f16"
    a = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}" if registers else f"%{count}"
    b = f"%{count + (4 if registers else 1)}"
    turns = f"{int(across)}" if registers else f"0, {int(across)}"
    inputs = ", ".join(f'"r"(f[{i}])' for i in range(4)) if registers else '"l"(da)'
    load = (
        "const unsigned short* q = a + (16 * (threadIdx.x / 32) + threadIdx.x % 32 / 4) * K + c + threadIdx.x % 4 * 2; "
        "const uint32_t f[4] = {*(const uint32_t*)q, *(const uint32_t*)(q + 8 * K), *(const uint32_t*)(q + 8), "
        "*(const uint32_t*)(q + 8 * K + 8)};"
        if registers
        else ""
    )
    wgmma = (
        f'{load} asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k16.{kind}.f16.f16 '
        f'{{{names}}}, {a}, {b}, 1, 1, 1, {turns};" : {outs} : {inputs}, "l"(db));'
    )
    defines = {
        "N": n, "STEPS": steps, "SWIZZLE": swizzle, "COUNT": count, "ELEMENT": "float" if single else "unsigned short",
        "REGISTER": "float" if single else "uint32_t",
    }  # fmt: skip
    head = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    head += "#define MN\n" * across + "#define SINGLE\n" * single + more
    return head + KERNEL.replace("WGMMA", wgmma).replace("WAITS", str(waits))


def _multiply(
    source: str, across: bool, single: bool, tmp: Path, toolchain: Toolchain, schedule: str, n: int = 64
) -> None:
    random = np.random.default_rng(5)
    a, b = (random.integers(-8, 9, (rows, 64)).astype(np.float16) for rows in (64, n))
    given = {"a": a, "b": np.ascontiguousarray(b.T) if across else b}
    out = np.zeros((64, n), np.float32 if single else np.float16)
    found = run_kernel(
        source, tmp, toolchain, tensors=given, out=out, block=128, smem=8192 + 128 * n, schedule=schedule
    )
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.array_equal(found, expected if single else expected.astype(np.float16))


@pytest.mark.compile
@pytest.mark.parametrize("swizzle", [128, 64, 32])
@pytest.mark.parametrize("across", [False, True])
def test_both_majors_under_every_swizzle(across: bool, swizzle: int, toolchain: Toolchain, tmp_path: Path) -> None:
    source = kernel(single=True, across=across, registers=False, swizzle=swizzle)
    _multiply(source, across, True, tmp_path, toolchain, "lockstep")


@pytest.mark.compile
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("single", [True, False])
def test_a_from_registers_and_half_accumulators(
    single: bool, schedule: str, toolchain: Toolchain, tmp_path: Path
) -> None:
    _multiply(
        kernel(single=single, across=True, registers=True, swizzle=128), True, single, tmp_path, toolchain, schedule
    )


@pytest.mark.compile
@pytest.mark.parametrize(("n", "across"), [(8, False), (176, False), (256, True)])
def test_other_widths_than_64(n: int, across: bool, toolchain: Toolchain, tmp_path: Path) -> None:
    source = kernel(single=n > 8, across=across, registers=n > 8, swizzle=128, n=n)
    _multiply(source, across, n > 8, tmp_path, toolchain, "lockstep", n)


@pytest.mark.compile
def test_an_operand_must_not_change_before_the_wait(toolchain: Toolchain, tmp_path: Path) -> None:
    source = kernel(single=True, across=False, registers=False, swizzle=128, waits=1, more="#define OVERWRITE\n")
    with pytest.raises(DiagnosisError) as found:
        _multiply(source, False, True, tmp_path, toolchain, "lockstep")
    assert found.value.kind == MISSING_WAIT
    assert "k.cu:" in found.value.where


@pytest.mark.compile
def test_a_result_must_be_waited_for(toolchain: Toolchain, tmp_path: Path) -> None:
    """The emulator has the sums at once; that nothing waits for them is found all the same, in every schedule."""
    source = kernel(single=True, across=False, registers=False, swizzle=128, waits=1)
    for schedule in SCHEDULES:
        with pytest.raises(DiagnosisError, match=r"uses an accumulator of wgmma.*wait_group") as found:
            _multiply(source, False, True, tmp_path, toolchain, schedule)
        assert found.value.kind == MISSING_WAIT
        assert "k.cu:" in found.value.where


@pytest.mark.compile
def test_a_missing_proxy_fence_is_a_warning(toolchain: Toolchain, tmp_path: Path) -> None:
    source = kernel(single=True, across=False, registers=False, swizzle=128)
    warned: list[str] = []
    given = {name: np.ones((64, 64), np.float16) for name in "ab"}
    for text in (source, source.replace("fence.proxy.async.shared::cta;", "")):
        run_kernel(
            text,
            tmp_path,
            toolchain,
            tensors=given,
            out=np.zeros((64, 64), np.float32),
            block=128,
            smem=16384,
            warned=warned,
        )
        assert bool(warned) == (text != source)
    assert re.search(r"without a fence.proxy.async between, at \S*k.cu:", warned[0])
