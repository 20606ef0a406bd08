// v21 (parent v16-i16): the pipeline that the published series ends by asking for. Ping-pong over two query tiles.
// Change    Every role runs ahead of the others as far as its buffers go: a warp loads, a warp issues MMAs, and two
//           warpgroups do the softmax of a query tile each, so that QK and PV of one run while the other exponentiates.
// Reported  nothing: the text stops before it. Not timed: no card of this kind has run it.
// Tiles     2 x 128 query rows, 64 keys, D = 128, M = 128. Tensor memory: S, P and O of both tiles, 448 of 512 columns.
//           P is A of PV from there; O is added up there, and rescaled only where a row's maximum has grown by over 8
//           (a factor of 256: P <= 256 fits fp16, l and O are fp32), as FlashAttention-4 does.
// Warps     10. 0-3 softmax of tile 0, 4-7 of tile 1, a thread a row; 8 TMA, 9 MMAs, by one lane each.
//           q_full -> QK; k_full -> QK -> k_empty; v_full -> PV -> v_empty, rings of four tiles each;
//           QK -> s_full -> softmax -> s_empty -> next QK; softmax -> p_full -> PV -> pv_done -> rescale, next P.
// Supported as v16, but S a multiple of 256. Emulated, has not run on a card.
// Launch    grid (S / 256, B * H), 320 threads, 196816 bytes of dynamic shared memory.
// Sources   FlashAttention-4 (flash_attn/cute) for the roles and the lazy rescale; PTX ISA manual, "tcgen05".
#include "ptx.cuh"

struct __half;  // only its pointers are used, so <cuda_fp16.h> and its compile time are not needed

constexpr int D = 128, BR = 128, BC = 64;  // head dim, query rows a tile, key rows a tile
constexpr int TILES_Q = 2, STAGES = 4;
constexpr int SOFTMAX_WARPS = 4 * TILES_Q, TMA_WARP = SOFTMAX_WARPS, MMA_WARP = TMA_WARP + 1;
constexpr int THREADS = (SOFTMAX_WARPS + 2) * 32;
constexpr uint32_t Q_HALF = BR * 128, KV_HALF = BC * 128;  // bytes of a 64-wide half of a tile
constexpr uint32_t Q_BYTES = 2 * Q_HALF, KV_BYTES = 2 * KV_HALF;
constexpr uint32_t QK_SHAPE = tcgen05_shape(BR, BC, false, false), PV_SHAPE = tcgen05_shape(BR, D, false, true);
constexpr int S_COLUMN = 0, P_COLUMN = TILES_Q * BC, O_COLUMN = 256, TMEM_COLUMNS = 512;  // a tile's follow each other
constexpr int P_COLUMNS = BC / 2;                                                         // two halves each
constexpr float SCALE_LOG2 = 1.4426950408889634f * 0.08838834764831845f;  // log2(e) / sqrt(D): softmax in base 2
constexpr float GROWTH = 8;                                               // of a maximum that is let be, in log2

static_assert(D == 128 && BR == 128 && BC == 64, "tiles are loaded as two boxes, and P of a row is one 32-wide store");
static_assert(P_COLUMN + TILES_Q * P_COLUMNS <= O_COLUMN && O_COLUMN + TILES_Q * D <= TMEM_COLUMNS, "tensor memory");

struct Shared {
    char q[TILES_Q][Q_BYTES], k[STAGES][KV_BYTES], v[STAGES][KV_BYTES];
    uint64_t q_full, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];  // mbarriers
    uint64_t s_full[TILES_Q], s_empty[TILES_Q], p_full[TILES_Q], pv_done[TILES_Q];
    uint32_t tmem;  // the address of the allocated columns
};
static_assert(sizeof(Shared) == 196816, "what the manifest launches with");

// A place in a ring, and the parity of its round there.
struct Turn {
    int stage, parity;
    __device__ explicit Turn(int j) : stage(j % STAGES), parity(j / STAGES & 1) {}
};

// Rows first .. first + ROWS - 1 of head h, batch b, as two 64-wide halves of HALF bytes.
template <uint32_t HALF>
__device__ __forceinline__ void load_tile(uint32_t tile, const TensorMap* map, int first, int h, int b,
                                          uint32_t barrier) {
#pragma unroll
    for (int half = 0; half < 2; ++half) tma_load_4d(tile + half * HALF, map, 64 * half, h, first, b, barrier);
}

// The TMA warp's lane: Q once, then K and V, each as soon as its ring has room.
__device__ __forceinline__ void load(Shared& shared, const TensorMap* Q, const TensorMap* K, const TensorMap* V,
                                     int first, int h, int b, int tiles) {
    const uint32_t q_full = smem_address(&shared.q_full);
    mbarrier_arrive_expect_tx(q_full, TILES_Q * Q_BYTES);
    for (int t = 0; t < TILES_Q; ++t)
        load_tile<Q_HALF>(smem_address(shared.q[t]), Q, first + t * BR, h, b, q_full);
#pragma unroll 1
    for (int j = 0; j < tiles; ++j) {
        const Turn turn(j);
        const uint32_t k_full = smem_address(&shared.k_full[turn.stage]);
        const uint32_t v_full = smem_address(&shared.v_full[turn.stage]);
        mbarrier_wait(smem_address(&shared.k_empty[turn.stage]), turn.parity ^ 1);  // the first round has room
        mbarrier_arrive_expect_tx(k_full, KV_BYTES);
        load_tile<KV_HALF>(smem_address(shared.k[turn.stage]), K, j * BC, h, b, k_full);
        mbarrier_wait(smem_address(&shared.v_empty[turn.stage]), turn.parity ^ 1);
        mbarrier_arrive_expect_tx(v_full, KV_BYTES);
        load_tile<KV_HALF>(smem_address(shared.v[turn.stage]), V, j * BC, h, b, v_full);
    }
}

// S[128 x 64] of query tile t = Q K^T. 16 of D are 32 bytes of a row; a descriptor counts in 16 bytes.
__device__ __forceinline__ void issue_qk(Shared& shared, uint32_t tmem, int t, int stage) {
    const uint64_t q = tcgen05_operand(smem_address(shared.q[t]), 0, 1024);
    const uint64_t k = tcgen05_operand(smem_address(shared.k[stage]), 0, 1024);
#pragma unroll
    for (int i = 0; i < D / 16; ++i)
        tcgen05_mma(tmem + S_COLUMN + t * BC, q + (i / 4 * Q_HALF + i % 4 * 32) / 16,
                    k + (i / 4 * KV_HALF + i % 4 * 32) / 16, QK_SHAPE, i > 0);
    tcgen05_commit(smem_address(&shared.s_full[t]));
}

// O[128 x 128] of query tile t (+)= P V. V is [key][d]: as B it is MN-major, and 16 keys are 2048 bytes; of P they are 8
// columns.
__device__ __forceinline__ void issue_pv(Shared& shared, uint32_t tmem, int t, int stage, bool add) {
    const uint64_t v = tcgen05_operand(smem_address(shared.v[stage]), KV_HALF, 1024);
#pragma unroll
    for (int i = 0; i < BC / 16; ++i)
        tcgen05_mma(tmem + O_COLUMN + t * D, tmem + P_COLUMN + t * P_COLUMNS + i * 8, v + i * 2048 / 16, PV_SHAPE,
                    add || i > 0);
    tcgen05_commit(smem_address(&shared.pv_done[t]));
}

// The MMA warp's lane. QK is a key tile ahead of PV: it waits for S to be read, PV for P to be written.
__device__ __forceinline__ void issue(Shared& shared, uint32_t tmem, int tiles) {
    mbarrier_wait(smem_address(&shared.q_full), 0);
#pragma unroll 1
    for (int j = -1; j < tiles; ++j) {
        const Turn qk(j + 1), pv(j);
#pragma unroll
        for (int t = 0; t < TILES_Q; ++t) {
            if (j + 1 < tiles) {
                if (t == 0) mbarrier_wait(smem_address(&shared.k_full[qk.stage]), qk.parity);
                mbarrier_wait(smem_address(&shared.s_empty[t]), j & 1);  // before the first S, too, it is empty
                tcgen05_fence_after_sync();
                issue_qk(shared, tmem, t, qk.stage);
                if (t == TILES_Q - 1) tcgen05_commit(smem_address(&shared.k_empty[qk.stage]));
            }
            if (j >= 0) {
                if (t == 0) mbarrier_wait(smem_address(&shared.v_full[pv.stage]), pv.parity);
                mbarrier_wait(smem_address(&shared.p_full[t]), j & 1);
                tcgen05_fence_after_sync();
                issue_pv(shared, tmem, t, pv.stage, j > 0);
                if (t == TILES_Q - 1) tcgen05_commit(smem_address(&shared.v_empty[pv.stage]));
            }
        }
    }
}

// One arrival for this warp, whose lanes have all come here.
__device__ __forceinline__ void warp_arrive(uint32_t barrier) {
    tcgen05_fence_before_sync();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

// O of this thread's row times factor, by a whole warp.
__device__ __forceinline__ void rescale(uint32_t o_tmem, float factor) {
#pragma unroll
    for (int i = 0; i < D; i += 32) {
        float o[32];
        uint32_t scaled[32];
        tmem_load(o, o_tmem + i);
        tcgen05_wait_load();
#pragma unroll
        for (int e = 0; e < 32; ++e) scaled[e] = __float_as_uint(o[e] * factor);
        tmem_store(o_tmem + i, scaled);
    }
}

// A softmax warp: its 32 rows of query tile t, a thread a row, over all keys, then O / l to `out`, the row in memory.
__device__ __forceinline__ void softmax(Shared& shared, uint32_t window, int t, int tiles, uint4* out) {
    const uint32_t s_tmem = window + S_COLUMN + t * BC, p_tmem = window + P_COLUMN + t * P_COLUMNS;
    const uint32_t o_tmem = window + O_COLUMN + t * D;
    const uint32_t pv_done = smem_address(&shared.pv_done[t]);
    float m = -INFINITY, l = 0;  // m is what the row's exponentials are relative to, times SCALE_LOG2
#pragma unroll 1
    for (int j = 0; j < tiles; ++j) {
        mbarrier_wait(smem_address(&shared.s_full[t]), j & 1);
        tcgen05_fence_after_sync();
        float s[BC / 32][32];
#pragma unroll
        for (int i = 0; i < BC / 32; ++i) tmem_load(s[i], s_tmem + 32 * i);
        tcgen05_wait_load();
        warp_arrive(smem_address(&shared.s_empty[t]));

        float row_max = -INFINITY;
#pragma unroll
        for (int e = 0; e < BC; ++e) row_max = fmaxf(row_max, s[e / 32][e % 32]);
        row_max *= SCALE_LOG2;
        const bool grown = row_max > m + GROWTH;  // always in the first tile, where m is -inf
        const float alpha = grown ? ex2(m - row_max) : 1.0f;
        if (grown) m = row_max;
        l *= alpha;
        uint32_t p[P_COLUMNS];
#pragma unroll
        for (int e = 0; e < P_COLUMNS; ++e) {
            const float x = ex2(s[e / 16][2 * e % 32] * SCALE_LOG2 - m);
            const float y = ex2(s[e / 16][2 * e % 32 + 1] * SCALE_LOG2 - m);
            l += x + y;
            p[e] = pack_f16x2(x, y);
        }

        if (j > 0) {
            mbarrier_wait(pv_done, (j - 1) & 1);  // P may be overwritten, and O is whole
            tcgen05_fence_after_sync();
            if (__any_sync(~0u, grown)) rescale(o_tmem, alpha);
        }
        tmem_store(p_tmem, p);
        tcgen05_wait_store();
        warp_arrive(smem_address(&shared.p_full[t]));
    }

    mbarrier_wait(pv_done, (tiles - 1) & 1);
    tcgen05_fence_after_sync();
    const float inverse = 1.0f / l;
#pragma unroll
    for (int i = 0; i < D; i += 32) {
        float o[32];
        tmem_load(o, o_tmem + i);
        tcgen05_wait_load();
#pragma unroll
        for (int e = 0; e < 32; e += 8)
            out[(i + e) / 8] = make_uint4(pack_f16x2(o[e] * inverse, o[e + 1] * inverse),
                                          pack_f16x2(o[e + 2] * inverse, o[e + 3] * inverse),
                                          pack_f16x2(o[e + 4] * inverse, o[e + 5] * inverse),
                                          pack_f16x2(o[e + 6] * inverse, o[e + 7] * inverse));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_forward(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
                  const __grid_constant__ TensorMap V, __half* __restrict__ O, int S, int H) {
    extern __shared__ __align__(1024) char smem[];
    Shared& shared = *reinterpret_cast<Shared*>(smem);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int b = blockIdx.y / H, h = blockIdx.y % H, first = blockIdx.x * TILES_Q * BR, tiles = S / BC;

    if (warp == MMA_WARP) tmem_alloc<TMEM_COLUMNS>(smem_address(&shared.tmem));
    if (threadIdx.x == 0) {
        mbarrier_init(smem_address(&shared.q_full), 1);
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(smem_address(&shared.k_full[i]), 1);
            mbarrier_init(smem_address(&shared.k_empty[i]), 1);
            mbarrier_init(smem_address(&shared.v_full[i]), 1);
            mbarrier_init(smem_address(&shared.v_empty[i]), 1);
        }
        for (int t = 0; t < TILES_Q; ++t) {
            mbarrier_init(smem_address(&shared.s_full[t]), 1);
            mbarrier_init(smem_address(&shared.s_empty[t]), 4);  // a warpgroup's warps
            mbarrier_init(smem_address(&shared.p_full[t]), 4);
            mbarrier_init(smem_address(&shared.pv_done[t]), 1);
        }
        fence_mbarrier_init();
    }
    tcgen05_fence_before_sync();
    __syncthreads();
    tcgen05_fence_after_sync();
    const uint32_t tmem = shared.tmem;

    if (warp == TMA_WARP) {
        if (lane == 0) load(shared, &Q, &K, &V, first, h, b, tiles);
    } else if (warp == MMA_WARP) {
        if (lane == 0) issue(shared, tmem, tiles);
    } else {
        const size_t o_row = (static_cast<size_t>(b) * S + first + threadIdx.x) * H + h;
        softmax(shared, tmem + (warp % 4 * 32 << 16), warp / 4, tiles, reinterpret_cast<uint4*>(O) + o_row * (D / 8));
    }
    tcgen05_fence_before_sync();
    __syncthreads();  // O has been read
    tcgen05_fence_after_sync();
    if (warp == MMA_WARP) tmem_free<TMEM_COLUMNS>(tmem);
}
