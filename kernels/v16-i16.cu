// v16-i16 (parent v16): ablation. Readback 16 columns at a time; the base of v17, v18 and v19.
// Change    Two 16-wide loads instead of four 8-wide ones, and a warp barrier after each: published because the
//           compiler had fused the two loads into one. (bar.warp, as published, does not assemble; bar.warp.sync does.)
// Reported  204.04 TFLOPS on B300, +1.5 %. Here 96 registers, and nvcc 13.0 fuses nothing, with the barrier or without;
//           it is kept because it was published. Not measured here.
// Tiles, warps, supported shapes, launch: as v15. Emulated, has not run on a card.
#include "ptx.cuh"

struct __half;  // only its pointers are used, so <cuda_fp16.h> and its compile time are not needed

constexpr int D = 128, BR = 64, BC = 64;  // head dim, query rows a CTA, key rows a tile
constexpr int WARPS = 16, THREADS = WARPS * 32;
constexpr int ROWS = BR / 4, COLUMNS = D / (WARPS / 4);                 // of O, a warp
constexpr uint32_t HALF_BYTES = BC * 128, TILE_BYTES = 2 * HALF_BYTES;  // a tile is two halves, each 64 wide
constexpr uint32_t QK_SHAPE = tcgen05_shape(BR, BC, false, false);
constexpr uint32_t PV_SHAPE = tcgen05_shape(BR, D, false, true);
constexpr int PV_COLUMN = BC, TMEM_COLUMNS = 256;  // S and P V take 192, which is no power of two
constexpr float SCALE_LOG2 = 1.4426950408889634f * 0.08838834764831845f;  // log2(e) / sqrt(D): softmax in base 2

static_assert(D == 128 && BR == 64 && BC == 64, "tiles are loaded as two boxes of 64 x 64, and rows placed for M = 64");

struct Shared {
    char q[TILE_BYTES], k[TILE_BYTES], v[TILE_BYTES], p[BR * BC * 2];
    float alpha[BR], sum[BR];
    uint64_t q_full, k_full, v_full, qk_done, pv_done;  // mbarriers
    uint32_t tmem;                             // the address of the allocated columns
};
static_assert(sizeof(Shared) == 57904, "what the manifest launches with");

// Byte offset of a 16-byte chunk in a tile of 64-wide halves, each with the 128-byte swizzle of TMA and tcgen05.
__device__ __forceinline__ uint32_t swizzle(int row, int chunk) {
    return chunk / 8 * HALF_BYTES + row * 128 + ((chunk % 8 ^ (row & 7)) << 4);
}

// Rows first .. first + 63 of head h, batch b, as two halves: the canonical layout of a K-major operand has rows of
// 128 bytes, so D = 128 in one box would lie the wrong way.
__device__ __forceinline__ void load_tile(uint32_t tile, const TensorMap* map, int first, int h, int b,
                                          uint32_t barrier) {
    mbarrier_arrive_expect_tx(barrier, TILE_BYTES);
#pragma unroll
    for (int half = 0; half < 2; ++half) tma_load_4d(tile + half * HALF_BYTES, map, 64 * half, h, first, b, barrier);
}

// S[64 x 64] = Q K^T, by one thread. 16 of D are 32 bytes of a row; a descriptor counts in 16 bytes.
__device__ __forceinline__ void issue_qk(uint32_t s_tmem, uint64_t q, uint64_t k) {
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
        const uint32_t step = (i / 4 * HALF_BYTES + i % 4 * 32) / 16;
        tcgen05_mma(s_tmem, q + step, k + step, QK_SHAPE, i > 0);
    }
}

// Online softmax of one row by one thread. m is kept times SCALE_LOG2. P goes to shared memory if the lane has a row.
// Gives the factor for what was summed up so far.
__device__ __forceinline__ float softmax(uint32_t s_tmem, char* p_tile, int row, bool has_row, float& m, float& l) {
    float row_max = -INFINITY;
#pragma unroll
    for (int i = 0; i < BC / 16; ++i) {
        float s[16];
        tmem_load(s, s_tmem + 16 * i);
        tcgen05_wait_load();
#pragma unroll
        for (int e = 0; e < 16; ++e) row_max = fmaxf(row_max, s[e]);
    }
    const float m_new = fmaxf(m, row_max * SCALE_LOG2);
    const float alpha = ex2(m - m_new);  // 0 on the first tile, where m is -inf
    m = m_new;
    l *= alpha;
#pragma unroll
    for (int i = 0; i < BC / 16; ++i) {
        float s[16];
        tmem_load(s, s_tmem + 16 * i);
        tcgen05_wait_load();
        uint32_t p[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const float x = ex2(s[2 * e] * SCALE_LOG2 - m), y = ex2(s[2 * e + 1] * SCALE_LOG2 - m);
            l += x + y;
            p[e] = pack_f16x2(x, y);
        }
        if (has_row) {
            *reinterpret_cast<uint4*>(p_tile + swizzle(row, 2 * i)) = make_uint4(p[0], p[1], p[2], p[3]);
            *reinterpret_cast<uint4*>(p_tile + swizzle(row, 2 * i + 1)) = make_uint4(p[4], p[5], p[6], p[7]);
        }
    }
    return alpha;
}

// P V[64 x 128], by one thread. V is [key][d]: as B it is MN-major, and 16 keys are 2048 bytes.
__device__ __forceinline__ void issue_pv(uint32_t pv_tmem, uint64_t p, uint64_t v) {
#pragma unroll
    for (int i = 0; i < BC / 16; ++i) {
        const uint32_t step = (i / 4 * HALF_BYTES + i % 4 * 32) / 16;
        tcgen05_mma(pv_tmem, p + step, v + i * 2048 / 16, PV_SHAPE, i > 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_forward(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
                  const __grid_constant__ TensorMap V, __half* __restrict__ O, int S, int H) {
    extern __shared__ __align__(1024) char smem[];
    Shared& shared = *reinterpret_cast<Shared*>(smem);
    const uint32_t q_tile = smem_address(shared.q), k_tile = smem_address(shared.k), v_tile = smem_address(shared.v);
    const uint32_t q_full = smem_address(&shared.q_full), k_full = smem_address(&shared.k_full);
    const uint32_t v_full = smem_address(&shared.v_full), qk_done = smem_address(&shared.qk_done);
    const uint32_t pv_done = smem_address(&shared.pv_done);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int b = blockIdx.y / H, h = blockIdx.y % H, first = blockIdx.x * BR;

    if (warp == 0) tmem_alloc<TMEM_COLUMNS>(smem_address(&shared.tmem));
    if (threadIdx.x == 0) {
        mbarrier_init(q_full, 1);
        mbarrier_init(k_full, 1);
        mbarrier_init(v_full, 1);
        mbarrier_init(qk_done, 1);
        mbarrier_init(pv_done, 1);
        fence_mbarrier_init();
    }
    tcgen05_fence_before_sync();
    __syncthreads();
    tcgen05_fence_after_sync();
    const uint32_t tmem = shared.tmem;
    const uint32_t window = tmem + (warp % 4 * 32 << 16);  // this warp's lanes

    if (threadIdx.x == 0) load_tile(q_tile, &Q, first, h, b, q_full);
    mbarrier_wait(q_full, 0);

    float o[COLUMNS] = {}, m = -INFINITY, l = 0;
    const int row = warp % 4 * ROWS + lane;
    const bool has_row = lane < ROWS;  // half of the lanes have none
    const int tiles = S / BC;
    for (int j = 0; j < tiles; ++j) {
        if (threadIdx.x == 0) {
            load_tile(k_tile, &K, j * BC, h, b, k_full);
            load_tile(v_tile, &V, j * BC, h, b, v_full);
        }
        mbarrier_wait(k_full, j & 1);
        if (threadIdx.x == 0) {
            const uint64_t q_operand = tcgen05_operand(q_tile, 0, 1024), k_operand = tcgen05_operand(k_tile, 0, 1024);
            issue_qk(tmem, q_operand, k_operand);
            tcgen05_commit(qk_done);
        }
        mbarrier_wait(qk_done, j & 1);
        tcgen05_fence_after_sync();

        if (warp < 4) {
            const float alpha = softmax(window, shared.p, row, has_row, m, l);
            if (has_row) shared.alpha[row] = alpha;
            fence_proxy_async();  // P is read by the tensor core
        }
        tcgen05_fence_before_sync();
        __syncthreads();  // P and alpha are there

        mbarrier_wait(v_full, j & 1);
        if (threadIdx.x == 0) {
            tcgen05_fence_after_sync();
            const uint64_t p_operand = tcgen05_operand(smem_address(shared.p), 0, 1024);
            const uint64_t v_operand = tcgen05_operand(v_tile, HALF_BYTES, 1024);
            issue_pv(tmem + PV_COLUMN, p_operand, v_operand);
            tcgen05_commit(pv_done);
        }
        mbarrier_wait(pv_done, j & 1);
        tcgen05_fence_after_sync();

        const float alpha = shared.alpha[warp % 4 * ROWS + lane % ROWS];
#pragma unroll
        for (int i = 0; i < COLUMNS; i += 16) {
            float pv[16];
            tmem_load(pv, window + PV_COLUMN + warp / 4 * COLUMNS + i);
            tcgen05_wait_load();
#pragma unroll
            for (int e = 0; e < 16; ++e) o[i + e] = o[i + e] * alpha + pv[e];
            __syncwarp();  // keeps the two loads apart
        }
        tcgen05_fence_before_sync();
        __syncthreads();  // alpha, and what was read back, may be overwritten
        tcgen05_fence_after_sync();
    }

    if (warp < 4 && has_row) shared.sum[row] = l;
    __syncthreads();
    if (has_row) {
        const float inverse = 1.0f / shared.sum[row];
        const size_t o_row = (static_cast<size_t>(b) * S + first + row) * H + h;
        uint4* const out = reinterpret_cast<uint4*>(O) + o_row * (D / 8) + warp / 4 * (COLUMNS / 8);
#pragma unroll
        for (int i = 0; i < COLUMNS; i += 8)
            out[i / 8] = make_uint4(pack_f16x2(o[i] * inverse, o[i + 1] * inverse),
                                    pack_f16x2(o[i + 2] * inverse, o[i + 3] * inverse),
                                    pack_f16x2(o[i + 4] * inverse, o[i + 5] * inverse),
                                    pack_f16x2(o[i + 6] * inverse, o[i + 7] * inverse));
    }
    if (warp == 0) tmem_free<TMEM_COLUMNS>(tmem);
}
