// Attention forward on tcgen05, as plain as can be: TMA → QK → softmax → PV, one stage, for the emulator's tests.
// 128 query rows and 64 keys a tile, D = 128; 128 threads, a row each; P goes through tensor memory, O stays in registers.
#include <stdint.h>

struct __half;
struct alignas(64) TensorMap { char opaque[128]; };

constexpr int D = 128, BR = 128, BC = 64;
constexpr uint32_t Q_HALF = BR * 128, KV_HALF = BC * 128;  // bytes of a 64-wide half of a tile
constexpr uint32_t QK_SHAPE = 1 << 4 | (BC / 8) << 17 | (BR / 16) << 24;            // f16 · f16 → f32, both K-major
constexpr uint32_t PV_SHAPE = 1 << 4 | 1 << 16 | (D / 8) << 17 | (BR / 16) << 24;   // B MN-major
constexpr int S_COLUMN = 0, P_COLUMN = 64, O_COLUMN = 128, COLUMNS = 256;
constexpr float SCALE_LOG2 = 1.4426950408889634f * 0.08838834764831845f;

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }"
                 ::"r"(barrier), "r"(parity) : "memory");
}

__device__ __forceinline__ void load_box(uint32_t to, const TensorMap* map, int d, int h, int s, int b, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];"
                 ::"r"(to), "l"(map), "r"(d), "r"(h), "r"(s), "r"(b), "r"(barrier) : "memory");
}

__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
    return (address & 0x3FFFF) >> 4 | uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32 | 1ull << 46 | 2ull << 61;
}

__device__ __forceinline__ void mma(uint32_t d, uint64_t a, uint64_t b, uint32_t shape, uint32_t add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }"
                 ::"r"(d), "l"(a), "l"(b), "r"(shape), "r"(add) : "memory");
}

__device__ __forceinline__ void mma_ts(uint32_t d, uint32_t a, uint64_t b, uint32_t shape, uint32_t add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p; }"
                 ::"r"(d), "r"(a), "l"(b), "r"(shape), "r"(add) : "memory");
}

__device__ __forceinline__ void commit(uint32_t barrier) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void load8(float (&v)[8], uint32_t address) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7]) : "r"(address));
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ float load8_max(float (&v)[8], uint32_t address) {
#ifdef PLAIN_MAX
    load8(v, address);
    float m = v[0];
    for (int i = 1; i < 8; ++i) m = fmaxf(m, v[i]);
#else
    float m;
    asm volatile("tcgen05.ld.red.sync.aligned.32x32b.x8.max.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, [%9];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7]), "=f"(m) : "r"(address));
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#endif
    return m;
}

__device__ __forceinline__ void store4(uint32_t address, const uint32_t (&v)[4]) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x4.b32 [%0], {%1, %2, %3, %4};"
                 ::"r"(address), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

__device__ __forceinline__ float ex2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

__device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

extern "C" __global__ void __launch_bounds__(128)
tcgen05_attention(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                  const __grid_constant__ TensorMap v_map, __half* O, int S, int H) {
    extern __shared__ __align__(1024) char smem[];
    __shared__ alignas(8) uint64_t barriers[3];
    __shared__ uint32_t tmem_address;
    const uint32_t q_tile = shared_address(smem), k_tile = q_tile + 2 * Q_HALF, v_tile = k_tile + 2 * KV_HALF;
    const uint32_t q_full = shared_address(&barriers[0]), kv_full = q_full + 8, done = q_full + 16;
    const int warp = threadIdx.x / 32, b = blockIdx.y / H, h = blockIdx.y % H, row = blockIdx.x * BR;

    if (warp == 0)
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(shared_address(&tmem_address)), "n"(COLUMNS) : "memory");
    if (threadIdx.x == 0) {
        for (int i = 0; i < 3; ++i) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(q_full + 8 * i) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    const uint32_t tmem = tmem_address, mine = tmem + (warp * 32 << 16);

    if (threadIdx.x == 0) {
        asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }" ::"r"(q_full), "r"(2 * Q_HALF) : "memory");
        for (int half = 0; half < 2; ++half) load_box(q_tile + half * Q_HALF, &q_map, 64 * half, h, row, b, q_full);
    }
    float o[D] = {}, m = -INFINITY, l = 0;
    for (int j = 0; j < S / BC; ++j) {
        if (threadIdx.x == 0) {
            asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }" ::"r"(kv_full), "r"(4 * KV_HALF) : "memory");
            for (int half = 0; half < 2; ++half) {
                load_box(k_tile + half * KV_HALF, &k_map, 64 * half, h, j * BC, b, kv_full);
                load_box(v_tile + half * KV_HALF, &v_map, 64 * half, h, j * BC, b, kv_full);
            }
            wait(q_full, 0);
            wait(kv_full, j & 1);
            for (int k = 0; k < D / 16; ++k) {
                const uint32_t within = k % 4 * 32;
                mma(tmem + S_COLUMN, descriptor(q_tile + k / 4 * Q_HALF + within, 0, 1024),
                    descriptor(k_tile + k / 4 * KV_HALF + within, 0, 1024), QK_SHAPE, k > 0);
            }
            commit(done);
        }
        wait(done, 0);  // the even phase of this tile: QK
        asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
        float s[BC], tile_max = -INFINITY;
#pragma unroll
        for (int i = 0; i < BC / 8; ++i)
            tile_max = fmaxf(tile_max, load8_max(reinterpret_cast<float(&)[8]>(s[8 * i]), mine + S_COLUMN + 8 * i));
        const float m_new = fmaxf(m, tile_max * SCALE_LOG2), alpha = ex2(m - m_new);
        m = m_new;
        l *= alpha;
#pragma unroll
        for (int i = 0; i < BC / 8; ++i) {
            uint32_t p[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float x = ex2(s[8 * i + 2 * e] * SCALE_LOG2 - m), y = ex2(s[8 * i + 2 * e + 1] * SCALE_LOG2 - m);
                l += x + y;
                p[e] = pack(x, y);
            }
            store4(mine + P_COLUMN + 4 * i, p);
        }
        asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
        asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0) {
            asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
            for (int k = 0; k < BC / 16; ++k)
                mma_ts(tmem + O_COLUMN, tmem + P_COLUMN + 8 * k, descriptor(v_tile + k * 2048, KV_HALF, 1024), PV_SHAPE, k > 0);
            commit(done);
        }
        wait(done, 1);  // the odd phase: PV
        asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
#pragma unroll
        for (int i = 0; i < D / 8; ++i) {
            float v[8];
            load8(v, mine + O_COLUMN + 8 * i);
#pragma unroll
            for (int e = 0; e < 8; ++e) o[8 * i + e] = o[8 * i + e] * alpha + v[e];
        }
        asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
        __syncthreads();
    }
    uint32_t* out = reinterpret_cast<uint32_t*>(O) + ((static_cast<size_t>(b) * S + row + threadIdx.x) * H + h) * (D / 2);
#pragma unroll
    for (int i = 0; i < D / 2; ++i) out[i] = pack(o[2 * i] / l, o[2 * i + 1] / l);
    __syncthreads();
    if (warp == 0) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tmem), "n"(COLUMNS));
}
