"""printf and assert in a kernel; functions that are not inlined; memory that grows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from faperf.emulator.fault import ASSERTION, DiagnosisError, NotEmulatedError
from faperf.emulator.memory import GLOBAL_BASE, Global
from faperf.toolchain import Toolchain
from tests.emulating import run_kernel

KERNEL = """
#include <assert.h>
#include <stdio.h>
__device__ __noinline__ int apart(int x) { return x * x; }
extern "C" __global__ void k(int* out, int how) {
    if (threadIdx.x == 0) printf("%d of %s\\n", how, "three");
    assert(how != 1 || threadIdx.x != 5);
    int value = how == 2 ? apart(threadIdx.x) : threadIdx.x;
    out[threadIdx.x] = value + 1;
}
"""


def _run(how: int, tmp: Path, toolchain: Toolchain) -> np.ndarray:
    return run_kernel(KERNEL, tmp, toolchain, out=np.zeros(32, np.int32), scalars=(how,))


@pytest.mark.compile
def test_a_kernel_that_prints_and_asserts(tmp_path: Path, toolchain: Toolchain) -> None:
    assert _run(0, tmp_path, toolchain).tolist() == list(range(1, 33))
    with pytest.raises(DiagnosisError, match="assert") as found:
        _run(1, tmp_path, toolchain)
    assert found.value.kind == ASSERTION
    assert "k.cu:7" in found.value.where
    with pytest.raises(NotEmulatedError, match="apart"):
        _run(2, tmp_path, toolchain)


def test_memory_grows_and_is_given_back() -> None:
    memory = Global()
    first = memory.add("first", np.arange(5, dtype=np.int32))
    memory.seal()
    second = memory.allocate("second", np.arange(7, dtype=np.int32))
    assert second > first
    assert memory.content("first").tolist() == [0, 1, 2, 3, 4]
    assert memory.content("second").tolist() == [0, 1, 2, 3, 4, 5, 6]
    memory.release(first)
    assert not memory.valid[first - GLOBAL_BASE : first - GLOBAL_BASE + 20].any()
    assert memory.valid[second - GLOBAL_BASE : second - GLOBAL_BASE + 28].all()


PAIRS = """
extern "C" __global__ void k(const unsigned long long* in, unsigned long long* out) {
    const unsigned long long a = in[threadIdx.x], b = in[threadIdx.x + 32], c = in[threadIdx.x + 64];
    unsigned long long d;
    asm("add.rn.f32x2 %0, %1, %2;" : "=l"(d) : "l"(a), "l"(b));
    out[threadIdx.x] = d;
    asm("mul.rn.f32x2 %0, %1, %2;" : "=l"(d) : "l"(a), "l"(b));
    out[threadIdx.x + 32] = d;
    asm("fma.rn.f32x2 %0, %1, %2, %3;" : "=l"(d) : "l"(a), "l"(b), "l"(c));
    out[threadIdx.x + 64] = d;
}
"""


@pytest.mark.compile
def test_pairs_of_floats(tmp_path: Path, toolchain: Toolchain) -> None:
    a, b, c = np.random.default_rng(2).standard_normal((3, 64)).astype(np.float32)
    given = np.stack([a, b, c]).view(np.uint64)
    out = run_kernel(
        PAIRS, tmp_path, toolchain, tensors={"in": given}, out=np.zeros((3, 32), np.uint64), target="sm_103a"
    )
    once = (a.astype(np.float64) * b + c).astype(np.float32)
    assert np.array_equal(out.view(np.float32), np.stack([a + b, a * b, once]))
