"""What the CTAs of a cluster share: addresses, atomics, asynchronous stores and copies, multicast to some, remote arrivals."""

from __future__ import annotations

from typing import Any

import numpy as np

from faperf.launch import ResolvedArgument
from tests.silicon.probe import Probe, generator, tensors

PRELUDE = r"""
__device__ inline uint32_t own_rank() { uint32_t r; asm("mov.u32 %0, %cluster_ctarank;" : "=r"(r)); return r; }
__device__ inline uint32_t at(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ inline uint32_t at_rank(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
__device__ inline void meet() {
    asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
}
"""


def _probe(name: str, body: str, cluster: int, arrays: dict[str, Any], **more: Any) -> Probe:
    """`body` is that of a kernel over `in` and `out`, in clusters of so many CTAs and two of them."""
    entry = "cluster_" + name.replace(" ", "_").replace(".", "_")
    signature = more.pop("signature", "const uint32_t* in, uint32_t* out")
    source = f"""namespace {entry}_ {{ {PRELUDE}
extern "C" __global__ void __cluster_dims__({cluster}, 1, 1) {entry}({signature}) {{
    const uint32_t rank = own_rank(), t = threadIdx.x;
{body}
}} }}"""
    args = more.pop("args", tensors(*arrays))
    return Probe(name, "cluster", source, entry, arrays, args, grid=2 * cluster, cluster=cluster, **more)


def _arrays(name: str, ctas: int, values: int) -> dict[str, Any]:
    """32 numbers a CTA in, and `values` times as many out."""
    given = generator(name).randint(0, 1 << 30, ctas * 32).astype(np.uint32)
    return {"in": given, "out": np.zeros(ctas * 32 * values, np.uint32)}


def registers() -> Probe:
    names = ["cluster_ctarank", "cluster_nctarank"]
    names += [
        f"{name}.{axis}" for name in ("cluster_ctaid", "clusterid", "cluster_nctaid", "nclusterid") for axis in "xyz"
    ]
    reads = "\n".join(
        f'    asm("mov.u32 %0, %{name};" : "=r"(v)); out[(blockIdx.x * {len(names)} + {n}) * 32 + t] = v;'
        for n, name in enumerate(names)
    )
    body = f"    uint32_t v;\n{reads}"
    return _probe("registers", body, 4, _arrays("registers", 8, len(names)))


def places() -> Probe:
    """Whose memory an address is in: of each CTA of the cluster in turn, as a shared and as a generic address."""
    body = """    __shared__ uint32_t mine[32];
    uint32_t found = 0, rank_there, rank_generic;
    const uint32_t there = at_rank(at(mine + t), t % 4);
    uint64_t generic = reinterpret_cast<uint64_t>(mine + t);
    asm("mapa.u64 %0, %1, %2;" : "=l"(generic) : "l"(generic), "r"(t % 4));
    asm("getctarank.shared::cluster.u32 %0, %1;" : "=r"(rank_there) : "r"(there));
    asm("getctarank.u64 %0, %1;" : "=r"(rank_generic) : "l"(generic));
    asm("{ .reg .pred p; isspacep.shared::cta p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(found) : "l"(generic));
    uint32_t bit;
    asm("{ .reg .pred p; isspacep.shared::cluster p, %1; selp.u32 %0, 2, 0, p; }" : "=r"(bit) : "l"(generic));
    found |= bit;
    asm("{ .reg .pred p; isspacep.global p, %1; selp.u32 %0, 4, 0, p; }" : "=r"(bit) : "l"(generic));
    found |= bit;
    asm("{ .reg .pred p; isspacep.shared p, %1; selp.u32 %0, 8, 0, p; }" : "=r"(bit) : "l"(generic));
    found |= bit;
    asm("{ .reg .pred p; isspacep.global p, %1; selp.u32 %0, 16, 0, p; }" : "=r"(bit) : "l"(out + t));
    found |= bit;
    const uint32_t row = blockIdx.x * 5 * 32 + t;
    out[row] = found;
    out[row + 32] = rank_there * 16 + rank_generic;
    out[row + 64] = there - at(mine + t);
    out[row + 96] = at(mine) >> 24;
    out[row + 128] = uint32_t(generic - reinterpret_cast<uint64_t>(mine + t));
    meet();"""
    return _probe("places of addresses", body, 4, _arrays("places", 8, 5))


def atomics() -> Probe:
    """Every CTA adds to, and takes the maximum of, numbers of the next one; generic loads bring back what they came to."""
    body = """    __shared__ uint32_t sums[32], most[32];
    sums[t] = in[blockIdx.x * 32 + t]; most[t] = 0;
    meet();
    const uint32_t next = (rank + 1) % 4, value = in[blockIdx.x * 32 + (t ^ 5)];
    uint32_t before;
    asm volatile("atom.shared::cluster.add.u32 %0, [%1], %2;"
                 : "=r"(before) : "r"(at_rank(at(sums + t), next)), "r"(value) : "memory");
    asm volatile("red.shared::cluster.max.u32 [%0], %1;" :: "r"(at_rank(at(most + t), 0)), "r"(value) : "memory");
    meet();
    uint64_t generic = reinterpret_cast<uint64_t>(most + t);
    asm("mapa.u64 %0, %1, 0;" : "=l"(generic) : "l"(generic));
    const uint32_t row = blockIdx.x * 3 * 32 + t;
    out[row] = before;
    out[row + 32] = sums[t];
    out[row + 64] = *reinterpret_cast<uint32_t*>(generic);
    meet();"""
    return _probe("atomics of others", body, 4, _arrays("atomics", 8, 3))


def stores_later() -> Probe:
    """st.async of one, two and four numbers a lane to the next CTA, which waits for all of their bytes."""
    body = """    __shared__ __align__(16) uint32_t here[7 * 32];
    __shared__ uint64_t bar;
    if (t == 0) { begin(at(&bar), 1); arm(at(&bar), 7 * 32 * 4); }
    meet();
    const uint32_t next = (rank + 1) % 2, far = at_rank(at(here), next), b = at_rank(at(&bar), next);
    const uint32_t v = in[blockIdx.x * 32 + t];
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
                 :: "r"(far + 4 * t), "r"(v), "r"(b) : "memory");
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1, %2}, [%3];"
                 :: "r"(far + 128 + 8 * t), "r"(v + 1), "r"(v + 2), "r"(b) : "memory");
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(far + 384 + 16 * t), "r"(v + 3), "r"(v + 4), "r"(v + 5), "r"(v + 6), "r"(b) : "memory");
    await(at(&bar));
    for (int i = 0; i < 7; ++i) out[(blockIdx.x * 7 + i) * 32 + t] = here[i * 32 + t];
    meet();"""
    return _probe("st.async", body, 2, _arrays("st.async", 4, 7))


def copy_inside() -> Probe:
    """A bulk copy from shared memory to that of the next CTA."""
    body = """    __shared__ __align__(128) uint32_t mine[64], theirs[64];
    __shared__ uint64_t bar;
    if (t == 0) { begin(at(&bar), 1); arm(at(&bar), 256); }
    mine[t] = in[blockIdx.x * 32 + t]; mine[t + 32] = ~mine[t];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    meet();
    const uint32_t next = (rank + 1) % 4;
    if (t == 0)
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :: "r"(at_rank(at(theirs), next)), "r"(at(mine)), "r"(256), "r"(at_rank(at(&bar), next)) : "memory");
    await(at(&bar));
    out[blockIdx.x * 64 + t] = theirs[t];
    out[blockIdx.x * 64 + 32 + t] = theirs[t + 32];
    meet();"""
    return _probe("bulk copy between CTAs", body, 4, _arrays("inside", 8, 2))


def bulk_multicast() -> Probe:
    """Rank r copies 128 bytes to the CTAs of a mask of its own, some of which are not its own; each waits for what comes."""
    body = """    __shared__ __align__(128) uint32_t here[4 * 32];
    __shared__ uint64_t bar;
    const uint16_t mask = 0x5EB7 >> (4 * rank) & 15;  // 7, 11, 14, 5
    uint32_t senders = 0;
    for (int r = 0; r < 4; ++r) senders += 0x5EB7 >> (4 * r + rank) & 1;
    for (int i = 0; i < 4; ++i) here[i * 32 + t] = 0;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (t == 0) { begin(at(&bar), 1); arm(at(&bar), 128 * senders); }
    meet();
    if (t == 0)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1], %2, [%3], %4;"
                     :: "r"(at(here + 32 * rank)), "l"(in + blockIdx.x * 32), "r"(128), "r"(at(&bar)), "h"(mask) : "memory");
    await(at(&bar));
    for (int i = 0; i < 4; ++i) out[(blockIdx.x * 4 + i) * 32 + t] = here[i * 32 + t];
    meet();"""
    return _probe("bulk multicast to some", body, 4, _arrays("bulk multicast", 8, 4))


def tensor_multicast() -> Probe:
    """Rank 1 loads a box, of swizzle 64, into itself and rank 2 alone; their barriers are told, nobody else's."""
    body = """    extern __shared__ __align__(1024) uint16_t smem[];
    __shared__ uint64_t bar;
    for (int i = t; i < 512; i += 32) smem[i] = 0;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (t == 0) { begin(at(&bar), 1); if (rank == 1 || rank == 2) arm(at(&bar), 1024); }
    meet();
    if (t == 0 && rank == 1)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, {%3, %4}], [%2], %5;"
                     :: "r"(at(smem)), "l"(&x), "r"(at(&bar)), "r"(8), "r"(int(blockIdx.x)), "h"((uint16_t)6) : "memory");
    if (rank == 1 || rank == 2) await(at(&bar));
    meet();
    for (int i = t; i < 512; i += 32) out[blockIdx.x * 512 + i] = smem[i];"""
    content = generator("tensor multicast").randint(1, 0x7BFF, (32, 64)).astype(np.uint16)
    arrays = {"x": content.view(np.float16), "out": np.zeros((8, 512), np.uint16)}
    args = [ResolvedArgument(tensor_map="x", box=[32, 16], swizzle=64), *tensors("out")]
    signature = "const __grid_constant__ Map x, uint16_t* out"
    return _probe("tensor multicast to some", body, 4, arrays, args=args, signature=signature, smem=1024, kind="u16")


def arrivals() -> Probe:
    """Rank 0 waits for an arrival of every thread of the cluster, and for bytes that another CTA expects for it."""
    body = """    __shared__ uint64_t bar, later;
    __shared__ uint32_t here[128];
    if (t == 0) { begin(at(&bar), 4 * 32); begin(at(&later), 1); }
    meet();
    asm volatile("st.shared::cluster.u32 [%0], %1;"
                 :: "r"(at_rank(at(here + 32 * rank + t), 0)), "r"(in[blockIdx.x * 32 + t]) : "memory");
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(at_rank(at(&bar), 0)) : "memory");
    if (rank == 0) {
        asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0; "
                     "@!p bra again; }"
                     :: "r"(at(&bar)) : "memory");
        for (int i = 0; i < 4; ++i) out[(blockIdx.x * 4 + i) * 32 + t] = here[32 * i + t];
    }
    if (rank == 3 && t == 0)
        asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], %1;"
                     :: "r"(at_rank(at(&later), 0)), "r"(128) : "memory");
    if (rank == 2)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
                     :: "r"(at_rank(at(here + t), 1)), "r"(t * 7), "r"(at_rank(at(&later), 1)) : "memory");
    if (rank == 1) {
        if (t == 0) arm(at(&later), 128);
        await(at(&later));
        out[blockIdx.x * 4 * 32 + t] = here[t];
    }
    meet();"""
    return _probe("remote arrivals", body, 4, _arrays("arrivals", 8, 4))


def probes() -> list[Probe]:
    return [
        registers(), places(), atomics(), stores_later(), copy_inside(), bulk_multicast(), tensor_multicast(), arrivals(),
    ]  # fmt: skip
