"""The kernels of this repository, and small ones, on the emulator."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from faperf.emulating import Emulation
from faperf.emulator import SCHEDULES
from faperf.emulator.decode import decode
from faperf.emulator.fault import DiagnosisError, NotEmulatedError
from faperf.emulator.memory import SHARED_START
from faperf.emulator.ptx import parse
from faperf.operations import BUILT_IN
from faperf.toolchain import Toolchain
from tests.emulating import run_kernel, subject_of

ATTENTION = BUILT_IN["attention_forward"]
ONE_TILE = {"B": 2, "H": 1, "S": 64, "D": 128}
THREE_TILES = {"B": 2, "H": 2, "S": 192, "D": 128}


@pytest.mark.compile
@pytest.mark.parametrize("target", ["sm_103a", "sm_90a"])
@pytest.mark.parametrize("version", ["v12", "v13"])
def test_the_ladder_is_right_on_every_distribution(
    version: str, target: str, toolchain: Toolchain, shared_cache: Path
) -> None:
    emulation = Emulation(ATTENTION)
    for shape in (ONE_TILE, THREE_TILES):
        subject = subject_of(version, target, shape, toolchain, shared_cache)
        for distribution in ATTENTION.distributions:
            check = emulation.check(subject, distribution)
            assert check.failure is None
            assert check.by == "emulator"
            assert check.relative_l2 is not None
            assert check.baseline_l2 is not None
            assert check.relative_l2 < 1.5 * check.baseline_l2 or distribution == "ones"


@pytest.mark.compile
@pytest.mark.parametrize("version", ["v12", "v13"])
def test_every_schedule_gives_the_same(version: str, toolchain: Toolchain, shared_cache: Path) -> None:
    subject = subject_of(version, "sm_103a", THREE_TILES, toolchain, shared_cache)
    found = {
        (check.relative_l2, check.max_abs, check.failure)
        for seed in (1,)
        for check in (Emulation(ATTENTION, seed).check(subject, "growing", schedule) for schedule in SCHEDULES)
    }
    assert len(found) == 1
    assert next(iter(found))[2] is None


@pytest.mark.compile
def test_a_sample_of_ctas_is_held_to_what_it_stored(toolchain: Toolchain, shared_cache: Path) -> None:
    subject = subject_of("v12", "sm_103a", THREE_TILES, toolchain, shared_cache)
    emulation = Emulation(ATTENTION)
    part = emulation.check(subject, "normal", sample=3)
    executed = emulation.executed
    whole = emulation.check(subject, "normal")
    assert part.failure is None
    assert executed * 4 == emulation.executed - executed, "3 of 12 CTAs"
    assert part.relative_l2 is not None
    assert part.relative_l2 != whole.relative_l2
    assert part.relative_l2 == pytest.approx(whole.relative_l2, rel=0.2)
    silent = msgspec.structs.replace(subject, build="b2", ptx=re.sub(r"(?m)^.*st\.global.*$", "", subject.ptx))
    assert "stored nothing" in str(emulation.check(silent, "normal", sample=1).failure)


@pytest.mark.compile
def test_a_scaled_operand_is_wrong(toolchain: Toolchain, shared_cache: Path) -> None:
    """The negative control: the same kernel with one constant changed must not pass."""
    subject = subject_of("v12", "sm_103a", ONE_TILE, toolchain, shared_cache)
    scale = f"0f{np.float32(np.log2(np.e) / np.sqrt(128)).view(np.uint32):08X}"
    assert scale in subject.ptx
    broken = msgspec.structs.replace(subject, build="b1", ptx=subject.ptx.replace(scale, "0f3E82943E"))
    check = Emulation(ATTENTION).check(broken, "normal")
    assert check.failure is not None
    assert "relative L2 error" in check.failure


TWO_KERNELS = """
.version 9.0
.target sm_90a
.address_size 64
.shared .align 8 .b8 of_a[16];
.shared .align 16 .b8 of_b[64];
.extern .shared .align 16 .b8 smem[];
.entry a() { .reg .b32 %r<2>; mov.u32 %r1, of_a; ret; }
.entry b() { .reg .b32 %r<2>; mov.u32 %r1, of_b; ret; }
"""


def test_shared_variables_of_other_kernels_take_no_room() -> None:
    module = parse(TWO_KERNELS)
    assert [decode(module, name).dynamic_smem - SHARED_START for name in "ab"] == [16, 64]


ARITHMETIC = """
extern "C" __global__ void k(const int* in, int* out) {
    int i = threadIdx.x, a = in[i], b = in[i + 32];
    unsigned u = a, v = b, w;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(w) : "r"(u), "r"(v), "r"(u));
    float f = __int_as_float(a), g = __int_as_float(b);
    int* o = out + i;
    o[0] = a / (b | 1); o[32] = a % (b | 1); o[64] = u / (v | 1); o[96] = __mulhi(a, b); o[128] = __umulhi(u, v);
    o[160] = __popc(u); o[192] = __clz(a); o[224] = __brev(u); o[256] = __funnelshift_l(u, v, a & 63);
    o[288] = __funnelshift_rc(u, v, a & 63); o[320] = w; o[352] = a << (b & 31);
    o[384] = a >> (b & 31); o[416] = u >> (v & 31); o[448] = (int)f; o[480] = __float_as_int((float)a);
    o[512] = (signed char)a; o[544] = (int)((long long)a * b >> 20); o[576] = max(a, b); o[608] = f < g;
    o[640] = __float_as_int(fmaxf(f, g)); o[672] = (unsigned)((short)b); o[704] = __float_as_int(rintf(f));
}
"""


@pytest.mark.compile
def test_integer_arithmetic_as_c_defines_it(toolchain: Toolchain, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    given = random.integers(-(2**31), 2**31, 64, dtype=np.int64).astype(np.int32)
    given[:4] = [0, -1, 2**31 - 1, -(2**31)]
    out = run_kernel(ARITHMETIC, tmp_path, toolchain, tensors={"in": given}, out=np.zeros(736, np.int32)).reshape(
        23, 32
    )
    for lane in range(32):
        a, b = int(given[lane]), int(given[lane + 32])
        u, v, odd = a & 0xFFFFFFFF, b & 0xFFFFFFFF, b | 1
        quotient = abs(a) // abs(odd) * (1 if (a < 0) == (odd < 0) else -1)
        both, n = v << 32 | u, u & 63
        f, g = (float(np.int32(x).view(np.float32)) for x in (a, b))
        nibbles = [(v << 32 | u) >> 8 * (u >> 4 * i & 7) & 255 for i in range(4)]
        signs = [255 * (byte >> 7) if u >> 4 * i & 8 else byte for i, byte in enumerate(nibbles)]
        expected = [
            quotient, a - quotient * odd, u // (v | 1), a * b >> 32, u * v >> 32, u.bit_count(), 32 - u.bit_length(),
            int(f"{u:032b}"[::-1], 2), both << (n & 31) >> 32, both >> min(n, 32), sum(s << 8 * i for i, s in enumerate(signs)),
            a << (b & 31), a >> (b & 31), u >> (v & 31), None, int(np.float32(a).view(np.int32)), (a & 255 ^ 128) - 128,
            a * b >> 20, max(a, b), int(f < g), None, (b & 65535 ^ 32768) - 32768, None,
        ]  # fmt: skip
        for index, value in enumerate(expected):
            if value is not None:
                assert int(out[index, lane]) & 0xFFFFFFFF == value & 0xFFFFFFFF, (index, lane)
        if np.isfinite(f) and abs(f) < 2**31:
            assert out[14, lane] == int(f)
            assert out[22, lane].view(np.float32) == np.rint(np.float32(f))


DIVERGENT = """
extern "C" __global__ void k(const int* in, int* out) {
    int i = threadIdx.x, n = in[i], sum = 0;
    for (int j = 0; j < n; ++j) { if (j % 3 == i % 3) continue; sum += j; if (sum > 200) break; }
    int other = __shfl_xor_sync(~0u, sum, 5);
    unsigned odd = __ballot_sync(~0u, sum & 1);
    if (i % 2) sum += other; else if (i % 5 == 0) sum -= other;
    out[i] = sum + (odd >> (i & 31) & 1) * 1000;
}
"""


@pytest.mark.compile
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lanes_part_and_meet(schedule: str, toolchain: Toolchain, tmp_path: Path) -> None:
    given = np.random.default_rng(4).integers(0, 60, 96).astype(np.int32)
    out = run_kernel(
        DIVERGENT, tmp_path, toolchain, tensors={"in": given}, out=np.zeros(96, np.int32), block=96, schedule=schedule
    )
    sums = []
    for i, n in enumerate(given):
        total = 0
        for j in range(n):
            if j % 3 == i % 3:
                continue
            total += j
            if total > 200:
                break
        sums.append(total)
    for i, total in enumerate(sums):
        other = sums[i ^ 5]
        result = total + other if i % 2 else total - other if i % 5 == 0 else total
        assert out[i] == result + (total & 1) * 1000


@pytest.mark.compile
def test_an_unknown_opcode_is_named_with_its_source_line(toolchain: Toolchain, tmp_path: Path) -> None:
    source = 'extern "C" __global__ void k(int* out) {\n    out[0] = clock();\n}\n'
    with pytest.raises(NotEmulatedError, match=r"clock.*k\.cu:2.*PTX line \d+"):
        run_kernel(source, tmp_path, toolchain, out=np.zeros(1, np.int32))


IN_PAIRS = """
extern "C" __global__ void k(const int* in, int* out) {
    __shared__ int cells[128];
    const int i = threadIdx.x, pair = i / 64;
    cells[i] = in[i];
    asm volatile("barrier.sync %0, %1;" ::"r"(1 + pair), "r"(64) : "memory");
    out[i] = cells[i ^ 32];
    if (pair == 0) asm volatile("barrier.arrive %0, 128;" ::"r"(1 + in[0]) : "memory");
    else asm volatile("barrier.sync %0, 128;" ::"r"(3 - in[1]) : "memory");
    out[i] += 1000 * cells[0];
}
"""


@pytest.mark.compile
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warps_meet_at_the_barrier_whose_number_they_give(schedule: str, toolchain: Toolchain, tmp_path: Path) -> None:
    """Warps 0 and 1 at barrier 1, warps 2 and 3 at barrier 2; then 0 and 1 let 2 and 3 go on at one that memory names."""
    given = np.arange(128, dtype=np.int32) % 77 + 2
    given[:2] = [2, 0]  # barrier 3 in both

    def run() -> np.ndarray:
        out = np.zeros(128, np.int32)
        return run_kernel(IN_PAIRS, tmp_path, toolchain, tensors={"in": given}, out=out, block=128, schedule=schedule)

    assert np.array_equal(run(), given[np.arange(128) ^ 32] + 2000)
    given[1] = 1  # 2 and 3 wait at barrier 2, where nobody comes
    with pytest.raises(DiagnosisError, match=r"at barrier 2 of the CTA, where 2 of 4 warps are missing"):
        run()
