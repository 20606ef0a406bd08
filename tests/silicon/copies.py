"""cp.async, bulk copies, tensor copies of 1 to 5 dimensions under every swizzle, and what the CTAs of a cluster share."""

from __future__ import annotations

import numpy as np

from faperf.launch import ResolvedArgument
from tests.silicon.probe import Probe, generator, numbers, tensors

# ── cp.async ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def copy_async(cache: str, size: int, fewer: str) -> Probe:
    """`fewer`: nothing, src-size by thread, or ignore-src by thread."""
    entry = f"cp_async_{cache}_{size}_{fewer or 'whole'}"
    last = {"": "", "size": ", %2", "ignore": ", p"}[fewer]
    asm = f"cp.async.{cache}.shared.global [%0], [%1], {size}{last};"
    if fewer == "ignore":
        asm = f"{{ .reg .pred p; setp.ne.u32 p, %2, 0; {asm} }}"
    given = ', "r"(n[threadIdx.x])' if fewer else ""
    source = f"""extern "C" __global__ void {entry}(const uint8_t* in, const uint32_t* n, uint8_t* out) {{
    __shared__ __align__(128) uint8_t smem[{32 * size}];
    uint32_t at = __cvta_generic_to_shared(smem + threadIdx.x * {size});
    asm volatile("{asm}" :: "r"(at), "l"(in + threadIdx.x * {size}){given} : "memory");
    asm volatile("cp.async.commit_group;\\n cp.async.wait_group 0;" ::: "memory");
    for (int i = 0; i < {size}; ++i) out[threadIdx.x * {size} + i] = smem[threadIdx.x * {size} + i];
}}"""
    random = generator(entry)
    arrays = {
        "in": random.randint(1, 256, 32 * size).astype(np.uint8),
        "n": random.randint(0, size + 1 if fewer == "size" else 2, 32).astype(np.uint32),
        "out": np.zeros(32 * size, np.uint8),
    }
    return Probe(f"cp.async.{cache} {size} {fewer}".strip(), "cp.async", source, entry, arrays, tensors(*arrays))


# ── TMA ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

FLOATS = {2: np.float16, 4: np.float32}
SHAPES = {
    1: ((200,), (64,), ((0,), (144,), (-24,), (150,), (37,))),
    2: ((37, 96), (32, 16), ((0, 0), (64, 24), (80, 30), (-8, -3), (3, 5))),
    3: ((5, 19, 64), (16, 8, 2), ((0, 0, 0), (16, 13, 4), (56, -3, -1))),
    4: ((2, 13, 3, 64), (64, 1, 8, 1), ((0, 1, 2, 1), (32, 2, 9, 0), (0, 2, -4, 1))),
    5: ((2, 3, 4, 9, 32), (16, 4, 2, 2, 1), ((0, 0, 0, 0, 0), (16, 3, 1, 1, 1), (24, -2, 3, 2, 1))),
}
"""Dimensions → the tensor's shape, the box (innermost first), and corners: inside, over the end, before the start; at no
multiple of 16 bytes."""


def _box(dimensions: int, swizzle: int, unit: int) -> tuple[int, ...]:
    box = list(SHAPES[dimensions][1])
    if swizzle:
        box[0] = swizzle // unit
    return tuple(min(b, s) for b, s in zip(box, reversed(SHAPES[dimensions][0]), strict=True))


def _coordinates(dimensions: int, first: int) -> tuple[str, str]:
    names = ", ".join(f"%{first + i}" for i in range(dimensions))
    return names, ", ".join(f'"r"(c{i})' for i in range(dimensions))


def tensor_load(dimensions: int, swizzle: int, corner: tuple[int, ...], which: int, unit: int = 2) -> Probe:
    """Elements of `unit` bytes: f16 or f32."""
    box = _box(dimensions, swizzle, unit)
    entry = f"tma_load_{dimensions}d"
    names, given = _coordinates(dimensions, 3)
    source = f"""extern "C" __global__ void {entry}(const __grid_constant__ Map x, uint16_t* out, int n, {
        ", ".join(f"int c{i}" for i in range(dimensions))
    }) {{
    extern __shared__ __align__(1024) uint16_t smem[];
    __shared__ uint64_t bar;
    const uint32_t at = __cvta_generic_to_shared(smem), b = __cvta_generic_to_shared(&bar);
    if (threadIdx.x == 0) {{
        begin(b, 1);
        arm(b, 2 * n);
        asm volatile("cp.async.bulk.tensor.{
        dimensions
    }d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {{{
        names
    }}}], [%2];" :: "r"(at), "l"(&x), "r"(b), {given} : "memory");
    }}
    __syncthreads();
    await(b);
    for (int i = threadIdx.x; i < n; i += 32) out[i] = smem[i];
}}"""
    count = int(np.prod(box)) * unit // 2
    random = generator(f"{entry} {swizzle} {which} {unit}")
    shape = SHAPES[dimensions][0]
    content = random.randint(1, 0x7BFF, (*shape[:-1], shape[-1] * unit // 2)).astype(np.uint16)
    arrays = {
        "x": content.view(FLOATS[unit]),
        "out": np.zeros(count, np.uint16),
    }
    args = [ResolvedArgument(tensor_map="x", box=list(box), swizzle=swizzle), *tensors("out"), *numbers(count, *corner)]
    name = f"tensor load {dimensions}D of f{8 * unit} swizzle {swizzle} at {corner}"
    return Probe(
        name, f"tensor load, swizzle {swizzle or 'none'}", source, entry,
        arrays, args, smem=-(-2 * count // 128) * 128,
    )  # fmt: skip


def tensor_store(dimensions: int, swizzle: int, corner: tuple[int, ...], which: int, unit: int = 2) -> Probe:
    """Elements of `unit` bytes: f16 or f32."""
    box = _box(dimensions, swizzle, unit)
    entry = f"tma_store_{dimensions}d"
    names, given = _coordinates(dimensions, 2)
    source = f"""extern "C" __global__ void {entry}(const __grid_constant__ Map y, const uint16_t* in, int n, {
        ", ".join(f"int c{i}" for i in range(dimensions))
    }) {{
    extern __shared__ __align__(1024) uint16_t smem[];
    for (int i = threadIdx.x; i < n; i += 32) smem[i] = in[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {{
        asm volatile("cp.async.bulk.tensor.{dimensions}d.global.shared::cta.bulk_group [%0, {{{names}}}], [%1];"
                     :: "l"(&y), "r"((uint32_t)__cvta_generic_to_shared(smem)), {given} : "memory");
        asm volatile("cp.async.bulk.commit_group;\\n cp.async.bulk.wait_group 0;" ::: "memory");
    }}
}}"""
    count = int(np.prod(box)) * unit // 2
    random = generator(f"{entry} {swizzle} {which} {unit}")
    arrays = {
        "y": np.full(SHAPES[dimensions][0], 0.5, FLOATS[unit]),
        "in": random.randint(1, 0x7BFF, count).astype(np.uint16),
    }
    args = [ResolvedArgument(tensor_map="y", box=list(box), swizzle=swizzle), *tensors("in"), *numbers(count, *corner)]
    name = f"tensor store {dimensions}D of f{8 * unit} swizzle {swizzle} at {corner}"
    return Probe(
        name, f"tensor store, swizzle {swizzle or 'none'}", source,
        entry, arrays, args, out="y", kind=f"f{8 * unit}", smem=-(-2 * count // 128) * 128,
    )  # fmt: skip


def bulk() -> list[Probe]:
    """There, and back, 48 bytes into a row of 4096."""
    source = """extern "C" __global__ void bulk_copy(const uint8_t* in, uint8_t* out, int n) {
    extern __shared__ __align__(1024) uint16_t smem[];
    __shared__ uint64_t bar;
    const uint32_t at = __cvta_generic_to_shared(smem), b = __cvta_generic_to_shared(&bar);
    if (threadIdx.x == 0) {
        begin(b, 1);
        arm(b, n);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :: "r"(at), "l"(in + 48), "r"(n), "r"(b) : "memory");
        await(b);
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(out + 16), "r"(at), "r"(n) : "memory");
        asm volatile("cp.async.bulk.commit_group;\\n cp.async.bulk.wait_group 0;" ::: "memory");
    }
}"""
    random = generator("bulk copy")
    found = []
    for n in (16, 2000):
        arrays = {"in": random.randint(0, 256, 4096).astype(np.uint8), "out": np.zeros(4096, np.uint8)}
        found.append(
            Probe(
                f"bulk copy of {n}", "bulk copy", source, "bulk_copy", arrays, tensors(*arrays) + numbers(n), smem=2048
            )
        )
    return found


# ── clusters ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SYNC = 'asm volatile("barrier.cluster.arrive.aligned;\\n barrier.cluster.wait.aligned;" ::: "memory");'


def exchange() -> Probe:
    """Each of two CTAs reads what the other wrote into its own shared memory, and writes into the other's."""
    source = f"""extern "C" __global__ void __cluster_dims__(2, 1, 1) exchange(const uint32_t* in, uint32_t* out) {{
    __shared__ uint32_t mine[32], theirs[32];
    uint32_t rank, far, value, size;
    asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %cluster_nctarank;" : "=r"(size));
    mine[threadIdx.x] = in[blockIdx.x * 32 + threadIdx.x];
    {SYNC}
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(far) : "r"((uint32_t)__cvta_generic_to_shared(mine + threadIdx.x)), "r"(rank ^ 1));
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(far) : "memory");
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(far) : "r"((uint32_t)__cvta_generic_to_shared(theirs + threadIdx.x)), "r"(rank ^ 1));
    asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(far), "r"(value * 3 + threadIdx.x) : "memory");
    {SYNC}
    out[(blockIdx.x * 3 + 0) * 32 + threadIdx.x] = value;
    out[(blockIdx.x * 3 + 1) * 32 + threadIdx.x] = theirs[threadIdx.x];
    out[(blockIdx.x * 3 + 2) * 32 + threadIdx.x] = rank + 16 * size;
}}"""
    arrays = {"in": generator("exchange").randint(0, 1 << 30, 128).astype(np.uint32), "out": np.zeros(384, np.uint32)}
    return Probe("exchange", "cluster", source, "exchange", arrays, tensors(*arrays), grid=4, cluster=2)


def multicast() -> Probe:
    """Each CTA loads half of a tile into both; then a warp of each arrives on the other's barrier."""
    names, given = _coordinates(2, 4)
    source = f"""extern "C" __global__ void __cluster_dims__(2, 1, 1) multicast(const __grid_constant__ Map x, uint16_t* out) {{
    extern __shared__ __align__(1024) uint16_t smem[];
    __shared__ uint64_t bar, done;
    const uint32_t at = __cvta_generic_to_shared(smem), b = __cvta_generic_to_shared(&bar), e = __cvta_generic_to_shared(&done);
    uint32_t rank;
    asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {{
        begin(b, 1);
        begin(e, 32);
        arm(b, 2 * 64 * 16);
    }}
    {SYNC}
    if (threadIdx.x == 0) {{
        const int c0 = 0, c1 = blockIdx.x * 8;
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1, {{{
        names
    }}}], [%2], %3;" :: "r"(at + rank * 1024), "l"(&x), "r"(b), "h"((uint16_t)3), {given} : "memory");
    }}
    await(b);
    asm volatile("{{ .reg .b32 far; mapa.shared::cluster.u32 far, %0, %1; "
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [far]; }}"
                 :: "r"(e), "r"(rank ^ 1) : "memory");
    await(e);
    for (int i = threadIdx.x; i < 1024; i += 32) out[blockIdx.x * 1024 + i] = smem[i];
    {SYNC}
}}"""
    random = generator("multicast")
    arrays = {
        "x": random.randint(1, 0x7BFF, (32, 64)).astype(np.uint16).view(np.float16), "out": np.zeros((4, 1024), np.uint16),
    }  # fmt: skip
    args = [ResolvedArgument(tensor_map="x", box=[64, 8], swizzle=128), *tensors("out")]
    return Probe("multicast", "cluster", source, "multicast", arrays, args, grid=4, cluster=2, smem=2048)


def probes() -> list[Probe]:
    found = [copy_async("ca", size, fewer) for size in (4, 8, 16) for fewer in ("", "size", "ignore")]
    found += [copy_async("cg", 16, fewer) for fewer in ("", "size", "ignore")]
    for make in (tensor_load, tensor_store):
        for dimensions, (_, _, corners) in SHAPES.items():
            for swizzle in (0, 32, 64, 128):
                for unit in (2, 4) if dimensions == 2 else (2,):
                    if not swizzle or _box(dimensions, swizzle, unit)[0] * unit == swizzle:
                        found += [
                            make(dimensions, swizzle, corner, which, unit) for which, corner in enumerate(corners)
                        ]
    return [*found, *bulk(), exchange(), multicast()]
