"""ldmatrix, stmatrix and mma.sync, one warp a CTA; fragments are taken from, and put into, plain matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.silicon.probe import SUM, Probe, bell, float_of, generator, tensors

TILES = 24
BRAIN = "bf16"


def _stores(count: int) -> str:
    return "".join(f" out[(blockIdx.x * 32 + threadIdx.x) * {count} + {i}] = r[{i}];" for i in range(count))


def load_matrix(count: int, turned: bool) -> Probe:
    """32 rows of 16 bytes, which the lanes name in a shuffled order."""
    form = f"x{count}" + (".trans" if turned else "")
    entry = f"ldmatrix_{form.replace('.', '_')}"
    outs = ", ".join(f'"=r"(r[{i}])' for i in range(count))
    names = ", ".join(f"%{i}" for i in range(count))
    source = f"""extern "C" __global__ void {entry}(const uint4* in, const uint32_t* order, uint32_t* out) {{
    __shared__ __align__(128) uint4 smem[32];
    smem[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    uint32_t r[{count}], at = __cvta_generic_to_shared(smem + order[threadIdx.x]);
    asm volatile("ldmatrix.sync.aligned.m8n8.{form}.shared.b16 {{{names}}}, [%{count}];" : {outs} : "r"(at) : "memory");
   {_stores(count)}
}}"""
    random = generator(entry)
    arrays = {
        "in": random.randint(0, 1 << 16, (32, 8)).astype(np.uint16),
        "order": random.permutation(32).astype(np.uint32),
        "out": np.zeros((32, count), np.uint32),
    }
    return Probe(f"ldmatrix.{form}", "ldmatrix", source, entry, arrays, tensors(*arrays))


def store_matrix(count: int, turned: bool) -> Probe:
    form = f"x{count}" + (".trans" if turned else "")
    entry = f"stmatrix_{form.replace('.', '_')}"
    names = ", ".join(f"%{i + 1}" for i in range(count))
    ins = ", ".join(f'"r"(in[threadIdx.x * {count} + {i}])' for i in range(count))
    source = f"""extern "C" __global__ void {entry}(const uint32_t* in, const uint32_t* order, uint4* out) {{
    __shared__ __align__(128) uint4 smem[32];
    smem[threadIdx.x] = uint4{{1, 2, 3, 4}};
    __syncthreads();
    uint32_t at = __cvta_generic_to_shared(smem + order[threadIdx.x]);
    asm volatile("stmatrix.sync.aligned.m8n8.{form}.shared.b16 [%0], {{{names}}};" :: "r"(at), {ins} : "memory");
    __syncthreads();
    out[threadIdx.x] = smem[threadIdx.x];
}}"""
    random = generator(entry)
    arrays = {
        "in": random.randint(0, 1 << 16, (32, count, 2)).astype(np.uint16),
        "order": random.permutation(32).astype(np.uint32),
        "out": np.zeros((32, 8), np.uint16),
    }
    return Probe(f"stmatrix.{form}", "stmatrix", source, entry, arrays, tensors(*arrays))


# ── mma.sync ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SORTS = ("normal", "wide", "cancelling", "special")
"""Everyday numbers; exponents far apart; sums much smaller than their terms; infinities, NaN, subnormals, overflow."""


def halves(kind: str, sort: str, shape: tuple[int, ...], random: Any) -> Any:
    """Bits of f16 or bf16."""
    x = bell(shape, random)
    if sort == "wide":
        x = np.ldexp(x, random.randint(-11, 12, shape))
    if sort == "cancelling":
        x[..., 1::2] = -x[..., ::2] * (1 + 2.0**-9 * bell(x[..., ::2].shape, random))
    if kind == BRAIN:
        bits = (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        odd = [0x7F80, 0xFF80, 0x7FC0, 0x0001, 0x8001, 0x007F, 0x7F7F, 0x0000, 0x8000]
    else:
        with np.errstate(over="ignore"):
            bits = x.astype(np.float16).view(np.uint16)
        odd = [0x7C00, 0xFC00, 0x7E00, 0x0001, 0x8001, 0x03FF, 0x7BFF, 0x0000, 0x8000]
    if sort == "special":
        chosen = random.uniform(size=shape) < 0.04
        bits = np.where(chosen, random.choice(np.array(odd, np.uint16), shape), bits).astype(np.uint16)
    return bits


def multiply(kind: str, total: str, depth: int) -> Probe:
    """D[16 x 8] = A[16 x depth]·B[depth x 8] + C; A by rows, B by columns."""
    entry = f"mma_m16n8k{depth}_{total}_{kind}"
    count_a, count_b, count_c = depth // 4, depth // 8, 4 if total == "f32" else 2
    names = [f"%{i}" for i in range(count_c + count_a + count_b + count_c)]
    groups, at = [], 0
    for count in (count_c, count_a, count_b, count_c):
        groups.append("{" + ", ".join(names[at : at + count]) + "}")
        at += count
    reg = "float" if total == "f32" else "uint32_t"
    letter = "f" if total == "f32" else "r"
    outs = ", ".join(f'"={letter}"(d[{i}])' for i in range(count_c))
    ins = ", ".join(
        [f'"r"(x[{i}])' for i in range(count_a)] + [f'"r"(y[{i}])' for i in range(count_b)]
        + [f'"{letter}"(z[{i}])' for i in range(count_c)]
    )  # fmt: skip
    place = "(g + 8 * (i / 2)) * 8 + 2 * t + i % 2" if total == "f32" else "((g + 8 * i) * 8 + 2 * t) / 2"
    source = f"""extern "C" __global__ void {entry}(const uint16_t* a, const uint16_t* b, const {reg}* c, {reg}* out) {{
    const int g = threadIdx.x / 4, t = threadIdx.x % 4, tile = blockIdx.x;
    uint32_t x[{count_a}], y[{count_b}];
    {reg} z[{count_c}], d[{count_c}];
    for (int i = 0; i < {count_a}; ++i)
        x[i] = *(const uint32_t*)(a + (tile * 16 + g + 8 * (i % 2)) * {depth} + 2 * t + 8 * (i / 2));
    for (int i = 0; i < {count_b}; ++i) y[i] = *(const uint32_t*)(b + (tile * 8 + g) * {depth} + 2 * t + 8 * i);
    for (int i = 0; i < {count_c}; ++i) z[i] = c[tile * {128 if total == "f32" else 64} + {place}];
    asm volatile("mma.sync.aligned.m16n8k{depth}.row.col.{total}.{kind}.{kind}.{total} {", ".join(groups)};" : {outs} : {ins});
    for (int i = 0; i < {count_c}; ++i) out[tile * {128 if total == "f32" else 64} + {place}] = d[i];
}}"""
    random = generator(entry)
    each = TILES // len(SORTS)
    a = np.concatenate([halves(kind, sort, (each, 16, depth), random) for sort in SORTS])
    b = np.concatenate([halves(kind, sort, (each, 8, depth), random) for sort in SORTS])
    store = np.float32 if total == "f32" else np.float16
    with np.errstate(invalid="ignore"):
        x, y = float_of(a, kind), float_of(b, kind)
        size = np.abs(x) @ np.abs(y).transpose(0, 2, 1)
        c = (bell((TILES, 16, 8), random) * np.where(np.arange(TILES) % 3, 1, 64)[:, None, None]).astype(store)
    c[::4] = 0
    arrays = {"a": a, "b": b, "c": c, "out": np.zeros((TILES, 16, 8), store)}
    return Probe(
        f"mma.m16n8k{depth}.{total}.{kind}", f"mma.sync, {kind}, sums in {total}", source, entry, arrays, tensors(*arrays),
        kind=total, how=SUM, grid=TILES, magnitude=size + np.abs(c.astype(np.float64)),
    )  # fmt: skip


def probes() -> list[Probe]:
    found = [
        make(count, turned) for make in (load_matrix, store_matrix) for turned in (False, True) for count in (1, 2, 4)
    ]
    found += [multiply(*form, depth) for form in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32")) for depth in (8, 16)]
    return found
