"""TMA, tcgen05 and tensor memory on the emulator: a small attention kernel, and products whose place is worked out here."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from faperf.emulating import Emulation
from faperf.emulator import SCHEDULES
from faperf.emulator.fault import TMEM, DiagnosisError
from faperf.operations import BUILT_IN
from faperf.toolchain import Toolchain
from tests.emulating import TCGEN05, run_kernel, tcgen05_subject

ATTENTION = BUILT_IN["attention_forward"]
SHAPE = {"B": 2, "H": 2, "S": 256, "D": 128}


@pytest.mark.compile
def test_tcgen05_attention_is_right_in_every_schedule(toolchain: Toolchain, shared_cache: Path) -> None:
    subject = tcgen05_subject(SHAPE, toolchain, shared_cache)
    for schedule in SCHEDULES:
        for distribution in ATTENTION.distributions if schedule == "lockstep" else ["growing"]:
            check = Emulation(ATTENTION).check(subject, distribution, schedule)
            assert check.failure is None, (schedule, distribution)
            assert check.relative_l2 is not None
            assert check.relative_l2 < 1e-3


@pytest.mark.compile
def test_the_maximum_of_a_load_is_that_of_its_values(toolchain: Toolchain, shared_cache: Path) -> None:
    reduced = Emulation(ATTENTION).check(tcgen05_subject(SHAPE, toolchain, shared_cache), "normal")
    plain = tcgen05_subject(SHAPE, toolchain, shared_cache, Path(__file__).parents[1], "-DPLAIN_MAX")
    assert "ld.red" not in plain.ptx
    assert Emulation(ATTENTION).check(plain, "normal").relative_l2 == reduced.relative_l2


@pytest.mark.compile
def test_a_tile_in_another_order_than_its_descriptor_is_named(toolchain: Toolchain, tmp_path: Path) -> None:
    """A stride that skips half of each group of rows; and a tile that TMA does not swizzle, which the descriptor says it does."""
    shape = {"B": 1, "H": 1, "S": 128, "D": 128}
    source = (Path(__file__).parents[1] / TCGEN05).read_text()
    (tmp_path / TCGEN05).parent.mkdir(parents=True)
    (tmp_path / TCGEN05).write_text(source.replace("KV_HALF + within, 0, 1024)", "KV_HALF + within, 0, 512)"))
    skipping = tcgen05_subject(shape, toolchain, tmp_path / "cache", tmp_path)
    plain = tcgen05_subject(shape, toolchain, tmp_path / "cache")
    (launch,) = plain.launches
    arguments = [msgspec.structs.replace(a, swizzle=0) if a.tensor_map == "K" else a for a in launch.args]
    straight = msgspec.structs.replace(plain, launches=[msgspec.structs.replace(launch, args=arguments)])
    for subject, named in (
        (skipping, r"at row 8, k = 0 it finds K\[0, 4, 0, \d+\] where those before ask for K\[0, 8, 0, 0\]"),
        (straight, r"at row 1, k = 0 it finds K\[0, 1, 0, 8\] where those before ask for K\[0, 1, 0, 0\]"),
    ):
        check = Emulation(ATTENTION).check(subject, "normal")
        assert check.fault is None
        assert re.search(r"tcgen05_attention\.cu:\d+.*" + named, str(check.failure)), check.failure


PRODUCT = r"""
#include <stdint.h>
// D[M][N] = A[M][64] · B[N][64]ᵀ by one thread, both K-major in rows of 128 swizzled bytes; then what the test makes of it.
__device__ uint32_t at(uint32_t base, int row, int byte) {
    uint32_t a = base + row * 128 + byte;
    return a ^ ((a >> 7 & 7) << 4);
}
__device__ uint64_t descriptor(uint32_t a) { return a >> 4 | 64ull << 32 | 1ull << 46 | 2ull << 61; }
extern "C" __global__ void k(const unsigned short* a, const unsigned short* b, uint32_t* out) {
    extern __shared__ __align__(1024) char smem[];
    __shared__ alignas(8) uint64_t barrier;
    __shared__ uint32_t where;
    const uint32_t A = __cvta_generic_to_shared(smem), B = A + M * 128, done = __cvta_generic_to_shared(&barrier);
    const int warp = threadIdx.x / 32;
    for (int i = threadIdx.x; i < M * 64; i += blockDim.x)
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(at(A, i / 64, i % 64 * 2)), "h"(a[i]) : "memory");
    for (int i = threadIdx.x; i < N * 64; i += blockDim.x)
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(at(B, i / 64, i % 64 * 2)), "h"(b[i]) : "memory");
    const uint32_t slot = __cvta_generic_to_shared(&where);
    if (warp == 0) asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 512;" ::"r"(slot) : "memory");
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(done) : "memory");
    asm volatile("fence.proxy.async.shared::cta;\n tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    const uint32_t tmem = where, mine = tmem + (warp % 4 * 32 << 16);
    if (threadIdx.x == 0) {
        for (int k = 0; k < 4; ++k)
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }"
                         ::"r"(tmem + D_AT), "l"(descriptor(A + 32 * k)), "l"(descriptor(B + 32 * k)),
                           "r"(SINGLE << 4 | (N / 8) << 17 | (M / 16) << 24), "r"(k) : "memory");
        asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(done) : "memory");
    }
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra again; }"
                 ::"r"(done) : "memory");
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    AFTER
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    if (warp == 0) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 512;" ::"r"(tmem) : "memory");
}
"""


def load(form: str, registers: int, address: str, out: str, more: str = "") -> str:
    """Every warp loads `registers` registers a thread and writes them to out[thread * registers + i]."""
    names, outs = (", ".join(f(i) for i in range(registers)) for f in (lambda i: f"%{i}", lambda i: f'"=r"(v[{i}])'))
    asm = f'"tcgen05.ld.sync.aligned.{form}.b32 {{{names}}}, [%{registers}]{more};"'
    wait = 'asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");'
    return (
        f'{{ uint32_t v[{registers}]; asm volatile({asm} : {outs} : "r"({address}) : "memory"); {wait} '
        f"for (int i = 0; i < {registers}; ++i) ({out})[threadIdx.x * {registers} + i] = v[i]; }}\n"
    )


def store(form: str, registers: int, address: str, given: str, more: str = "") -> str:
    """Every warp stores given[thread * registers + i] from `registers` registers a thread."""
    names = ", ".join(f"%{i + 1}" for i in range(registers))
    ins = ", ".join(f'"r"(({given})[threadIdx.x * {registers} + {i}])' for i in range(registers))
    asm = f'"tcgen05.st.sync.aligned.{form}.b32 [%0]{more}, {{{names}}};\\n tcgen05.wait::st.sync.aligned;"'
    return f'asm volatile({asm} :: "r"({address}), {ins} : "memory");\n'


def product(
    m: int, n: int, single: bool, after: str, words: int, block: int, toolchain: Toolchain, tmp: Path, **more: str
) -> tuple[np.ndarray, np.ndarray]:
    """(A·Bᵀ in float64, `words` words that the kernel wrote)."""
    random = np.random.default_rng(6)
    a, b = (random.integers(-8, 9, (rows, 64)).astype(np.float16) for rows in (m, n))
    source = f"#define M {m}\n#define N {n}\n#define SINGLE {int(single)}\n#define D_AT {more.get('at', '0')}\n"
    source += PRODUCT.replace("AFTER", after)
    found = run_kernel(
        source, tmp, toolchain, target="sm_103a", tensors={"a": a, "b": b}, out=np.zeros(words, np.uint32), block=block,
        smem=(m + n) * 128, schedule=more.get("schedule", "lockstep"),
    )  # fmt: skip
    return a.astype(np.float64) @ b.astype(np.float64).T, found


@pytest.mark.compile
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_64_rows_by_512_threads(schedule: str, toolchain: Toolchain, tmp_path: Path) -> None:
    """M = 64: row r is at lane 32·(r / 16) + r mod 16; each of four warpgroups reads 16 of 64 columns."""
    after = load("32x32b.x16", 16, "mine + warp / 4 * 16", "out")
    with pytest.raises(DiagnosisError) as found:  # the idle lanes hold nothing, but a group may start at any column
        product(64, 64, True, after.replace("mine +", "tmem +"), 512 * 16, 512, toolchain, tmp_path)
    assert found.value.kind == TMEM
    expected, out = product(64, 64, True, after, 512 * 16, 512, toolchain, tmp_path, schedule=schedule)
    lanes = out.view(np.float32).reshape(4, 4, 32, 16).transpose(1, 2, 0, 3).reshape(128, 64)
    for row in range(64):
        assert np.array_equal(lanes[32 * (row // 16) + row % 16], expected[row])


@pytest.mark.compile
def test_an_accumulator_in_the_other_16_lanes(toolchain: Toolchain, tmp_path: Path) -> None:
    after = load("32x32b.x8", 8, "mine + 8", "out")
    expected, out = product(64, 16, True, after, 128 * 8, 128, toolchain, tmp_path, at="(16 << 16)")
    lanes = out.view(np.float32).reshape(128, 8)
    for row in range(64):
        assert np.array_equal(lanes[32 * (row // 16) + row % 16 + 16], expected[row, 8:])


def _thread_of(shape: str, lane: int, column: int, half: int = 0) -> tuple[int, int]:
    """(thread, register) that holds an element of a warp's window, as the figures of the PTX ISA show it, for .x4."""
    if shape == "32x32b":
        return lane, column
    row = lane % 16
    if shape == "16x64b":  # eight rows by even threads, eight by odd ones; two columns by neighbouring pairs
        return row % 8 * 4 + column % 2 * 2 + row // 8, column // 2
    if shape == "16x128b":
        return row % 8 * 4 + column % 4, column // 4 * 2 + row // 8
    if shape == "16x256b":
        return row % 8 * 4 + column % 8 // 2, column // 8 * 4 + row // 8 * 2 + column % 2
    return (row + 16, column - half) if column >= half else (row, column)


COLUMNS = {"32x32b": 4, "16x64b": 8, "16x128b": 16, "16x256b": 32, "16x32bx2": 8}
"""Of .x4."""


@pytest.mark.compile
def test_every_shape_of_load_and_store(toolchain: Toolchain, tmp_path: Path) -> None:
    """128 × 32 sums in halves, each read by every shape; then what was read is stored by that shape and read plainly."""
    after, at, slots = "", 0, {}
    for shape, columns in COLUMNS.items():
        for half in (0, 16) if shape != "32x32b" else (0,):
            registers, more = columns // (1 if shape == "32x32b" else 2), ", 4" if shape == "16x32bx2" else ""
            after += load(f"{shape}.x4", registers, f"mine + ({half} << 16)", f"out + {at}", more)
            after += store(f"{shape}.x4", registers, f"mine + ({half} << 16) + 64", f"out + {at}", more)
            after += (
                load("32x32b.x32", 32, "mine + 64", f"out + {at + 128 * registers}") if half or columns == 4 else ""
            )
            slots[shape, half] = (at, registers)
            at += 128 * registers + (128 * 32 if half or columns == 4 else 0)
    first = store("32x32b.x32", 32, "mine + 64", "out")  # so that all of it is written
    after += load("32x32b.x4.pack::16b", 4, "mine", f"out + {at}")
    after += store("32x32b.x4.unpack::16b", 4, "mine + 64", f"out + {at}")
    after += load("32x32b.x8", 8, "mine + 64", f"out + {at + 512}")
    expected, out = product(128, 32, False, first + after, at + 512 + 1024, 128, toolchain, tmp_path)
    halves = expected.astype(np.float16).view(np.uint16)
    for (shape, half), (start, registers) in slots.items():
        got = out[start : start + 128 * registers].reshape(4, 32, registers)
        for row in range(128):
            if shape == "32x32b" or row % 32 // 16 == half // 16:
                for column in range(COLUMNS[shape]):
                    thread, register = _thread_of(shape, row % 32, column, 4)
                    assert got[row // 32, thread, register] == halves[row, column], (shape, row, column)
        if half or shape == "32x32b":
            again = out[start + 128 * registers :][: 128 * 32].reshape(128, 32)
            assert np.array_equal(again[:, : COLUMNS[shape]], halves[:, : COLUMNS[shape]])
    packed = out[at : at + 512].reshape(128, 4)
    assert np.array_equal(packed.view(np.uint16), halves[:, :8])
    assert np.array_equal(out[at + 512 :].reshape(128, 8), halves[:, :8])
