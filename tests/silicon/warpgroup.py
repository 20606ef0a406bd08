"""wgmma: one warpgroup, 64 x N x 64 in four steps. Shared memory is laid out here, from the PTX ISA's canonical layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.silicon.fragments import halves
from tests.silicon.probe import BITS, SUM, Probe, float_of, generator, tensors

M, DEPTH, STEPS = 64, 64, 4


@dataclass(frozen=True)
class Layout:
    """An operand of `rows` x DEPTH in shared memory: swizzle in bytes (0: none), and whether rows lie along lines (MN-major)."""

    rows: int
    swizzle: int
    across: bool

    @property
    def leading(self) -> int:
        if self.across:
            return DEPTH * self.swizzle if self.swizzle else 128
        return 16 if self.swizzle else 16 * self.rows

    @property
    def stride(self) -> int:
        if self.across:
            return 8 * self.swizzle if self.swizzle else DEPTH * 16
        return 8 * self.swizzle if self.swizzle else 128

    def place(self, row: Any, k: Any) -> Any:
        """The byte of each element, before the swizzle."""
        s = self.swizzle
        if self.across:
            if s:
                return row // (s // 2) * self.leading + k // 8 * self.stride + k % 8 * s + row % (s // 2) * 2
            return row // 8 * self.stride + k // 8 * self.leading + k % 8 * 16 + row % 8 * 2
        if s:
            return k * 2 // s * self.rows * s + row // 8 * self.stride + row % 8 * s + k * 2 % s
        return row // 8 * self.stride + k // 8 * self.leading + row % 8 * 16 + k % 8 * 2

    def image(self, matrix: Any) -> Any:
        """The bytes of a matrix [rows, DEPTH] of 16 bits, as it must lie at a multiple of 1024."""
        row, k = np.indices((self.rows, DEPTH))
        at = self.place(row, k)
        at ^= (at >> 7 & {0: 0, 32: 1, 64: 3, 128: 7}[self.swizzle]) << 4
        laid = np.zeros(self.rows * DEPTH, np.uint16)
        laid[at // 2] = matrix
        return laid

    def step(self, number: int) -> int:
        """Where the descriptor of k = 16·number starts."""
        return int(self.place(0, 16 * number))


def multiply(
    n: int, kind: str = "f16", total: str = "f32", *, swizzle: int = 128, across: tuple[bool, bool] = (False, False),
    registers: bool = False, exact: bool = True, negative: bool = False, adds: bool = False,
) -> Probe:  # fmt: skip
    """`exact`: small integers, of which every sum is exact, so that the layout alone is at stake."""
    a_layout, b_layout = Layout(M, swizzle, across[0]), Layout(n, swizzle, across[1])
    turns = "".join("mk"[not turned] for turned in across)
    name = f"wgmma.m64n{n}k16.{total}.{kind} {'RS' if registers else 'SS'} {turns} {swizzle}"
    name += "".join(f" {word}" for word, on in (("normal", not exact), ("negative", negative), ("adds", adds)) if on)
    entry = "".join(c if c.isalnum() else "_" for c in name)
    single = total == "f32"
    count = n // 2 if single else n // 4
    reg, letter = ("float", "f") if single else ("uint32_t", "r")
    field = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle]
    accumulators = "{" + ", ".join(f"%{i}" for i in range(count)) + "}"
    a_text = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}" if registers else f"%{count}"
    b_at = count + (4 if registers else 1)
    turned = f"{int(across[1])}" if registers else f"{int(across[0])}, {int(across[1])}"
    signs = "-1, 1" if negative else "1, 1"
    given = ", ".join(f'"r"(f[s][{i}])' for i in range(4)) if registers else '"l"(da)'
    asm = (
        f"{{ .reg .pred p; setp.ne.b32 p, %{b_at + 1}, 0; wgmma.mma_async.sync.aligned.m64n{n}k16.{total}.{kind}.{kind} "
        f"{accumulators}, {a_text}, %{b_at}, p, {signs}, {turned}; }}"
    )
    outs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    offsets = [", ".join(str(layout.step(s)) for s in range(STEPS)) for layout in (a_layout, b_layout)]
    place = (
        f"(16 * w + g + 8 * (i / 2 % 2)) * {n} + i / 4 * 8 + 2 * t + i % 2" if single
        else f"((16 * w + g + 8 * (i % 2)) * {n} + i / 2 * 8 + 2 * t) / 2"
    )  # fmt: skip
    fragments = (
        f"""uint32_t f[{STEPS}][4];
    for (int s = 0; s < {STEPS}; ++s)
        for (int i = 0; i < 4; ++i)
            f[s][i] = *(const uint32_t*)(a + (16 * w + g + 8 * (i % 2)) * {DEPTH} + 16 * s + 2 * t + 8 * (i / 2));"""
        if registers
        else ""
    )
    source = f"""extern "C" __global__ void __launch_bounds__(128)
{entry}(const uint16_t* a, const uint16_t* b, const {reg}* c, {reg}* out) {{
    extern __shared__ __align__(1024) uint16_t smem[];
    const int w = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = threadIdx.x; i < {M * DEPTH}; i += 128) smem[i] = a[i];
    for (int i = threadIdx.x; i < {n * DEPTH}; i += 128) smem[{M * DEPTH} + i] = b[i];
    {fragments}
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    {reg} d[{count}];
    for (int i = 0; i < {count}; ++i) d[i] = c[{place}];
    const uint32_t at = __cvta_generic_to_shared(smem);
    [[maybe_unused]] constexpr int OFF_A[] = {{{offsets[0]}}}, OFF_B[] = {{{offsets[1]}}};
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int s = 0; s < {STEPS}; ++s) {{
        [[maybe_unused]] const uint64_t da = (uint64_t(at + OFF_A[s]) >> 4) | uint64_t({a_layout.leading >> 4}) << 16 |
                            uint64_t({a_layout.stride >> 4}) << 32 | uint64_t({field}) << 62;
        const uint64_t db = (uint64_t(at + {M * DEPTH * 2} + OFF_B[s]) >> 4) | uint64_t({b_layout.leading >> 4}) << 16 |
                            uint64_t({b_layout.stride >> 4}) << 32 | uint64_t({field}) << 62;
        asm volatile("{asm}" : {outs} : {given}, "l"(db), "r"({"1" if adds else "int(s > 0)"}));
    }}
    asm volatile("wgmma.commit_group.sync.aligned;\\n wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < {count}; ++i) out[{place}] = d[i];
}}"""
    random = generator(name)
    store = np.float32 if single else np.float16
    if exact:
        whole = [random.randint(-4, 5, (rows, DEPTH)).astype(np.float32) for rows in (M, n)]
        if kind == "bf16":
            a, b = ((x.view(np.uint32) >> 16).astype(np.uint16) for x in whole)
        else:
            a, b = (x.astype(np.float16).view(np.uint16) for x in whole)
    else:
        a = np.concatenate(
            [halves(kind, sort, (16, DEPTH), random) for sort in ("normal", "wide", "cancelling", "special")]
        )
        b = halves(kind, "normal", (n, DEPTH), random)
    c = random.randint(-99, 100, (M, n)).astype(store)
    with np.errstate(invalid="ignore"):
        size = np.abs(float_of(a, kind)) @ np.abs(float_of(b, kind)).T + (np.abs(c.astype(np.float64)) if adds else 0)
    arrays = {
        "a": a if registers else a_layout.image(a), "b": b_layout.image(b), "c": c, "out": np.full((M, n), 7, store),
    }  # fmt: skip
    operands = f"wgmma, {'A in registers' if registers else 'A in shared memory'}, {kind}, sums in {total}"
    family = operands + (", small integers" if exact else "")
    return Probe(
        name, family, source, entry, arrays, tensors(*arrays), kind=total, how=BITS if exact else SUM, block=128,
        smem=(M + n) * DEPTH * 2, magnitude=size,
    )  # fmt: skip


def probes() -> list[Probe]:
    found = [multiply(n) for n in (8, 16, 24, 32, 40, 64, 96, 128, 176, 192, 256)]
    found += [multiply(n, total="f16") for n in (8, 24, 64, 256)]
    found += [
        multiply(64, swizzle=swizzle, across=(a, b))
        for swizzle in (0, 32, 64, 128) for a in (False, True) for b in (False, True)
    ][:-4] + [multiply(64, across=across) for across in ((False, True), (True, False), (True, True))]  # fmt: skip
    found += [multiply(128, swizzle=swizzle, across=(True, True)) for swizzle in (0, 32, 64, 128)]
    found += [multiply(64, total="f16", across=(True, True))]
    found += [
        multiply(64, registers=True, across=(False, across), total=total)
        for across in (False, True)
        for total in ("f32", "f16")
    ]
    found += [
        multiply(64, "bf16"),
        multiply(64, "bf16", registers=True),
        multiply(64, negative=True),
        multiply(64, adds=True),
    ]
    found += [multiply(64, total="f16", adds=True), multiply(64, registers=True, adds=True, negative=True)]
    found += [
        multiply(64, exact=False),
        multiply(64, exact=False, registers=True, adds=True),
        multiply(64, "bf16", exact=False),
    ]
    found += [multiply(64, total="f16", exact=False), multiply(64, total="f16", exact=False, registers=True, adds=True)]
    return found
