// h22 (parent h21): two consumer warpgroups of 64 rows take turns (ping-pong), and QK overlaps the softmax.
// Change    Each starts QK of tile j and PV of tile j-1 together, and works on the softmax of j while PV runs. Named
//           barriers 1 and 2 give the turns: one issues its wgmma while the other does its softmax. Key tiles of 128,
//           one CTA an SM.
// Gain      time -8.7 % [-9.1, -8.4] against h21, 500 TFLOPS (H200, published shape; history/), 0.92 of the speed of
//           torch's cuDNN attention; 1.02 at S = 8192 (644). ncu: tensor pipe active 61 %, at S = 8192 80 %: a CTA
//           fills and drains its pipeline once for 8 tiles, and with one an SM nobody works meanwhile. So at S = 512 it
//           is 4.2 % slower than h21.
// Tried     without turns 472, without overlap 457, 64 keys and three stages 472, 176 keys 476 TFLOPS (of 500).
// Tiles     Br = 128 (64 a warpgroup), Bc = 128, D = 128 or 64; Q 32, two K and two V of 32 KiB.
// Warps     0-7 consumers, 240 registers; 8-11 producers, 24, of which one thread works.
// Supported as h15, and D = 64 (h22-d64).
// Launch    grid (S / 128, B * H), 384 threads, 163912 bytes of dynamic shared memory (D = 128).
// Sources   FlashAttention-3 (arXiv:2407.08608) for both overlaps; as h21.
#include "ptx.cuh"
#include "wgmma.cuh"

struct __half;  // only its pointers are used, so <cuda_fp16.h> and its compile time are not needed

#ifndef D
#define D 128                                     // head dim: 64 or 128
#endif
constexpr int BC = 128, STAGES = 2;               // key rows a tile; K buffers, and as many V buffers
constexpr int CONSUMERS = 2;                      // warpgroups of 64 query rows
constexpr int BR = 64 * CONSUMERS;                // query rows a CTA
constexpr int THREADS = (CONSUMERS + 1) * 128;    // consumers, then producers
constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;  // 128 (24 + 2 x 240) = 384 x 168, the cap below
constexpr int CHUNKS = D * 2 / 16;                // 16-byte chunks a row
constexpr int BOXES = D / 64;                     // of 64 columns, that make up a tile; swizzled by TMA
constexpr uint32_t ROW_BYTES = D * 2;
constexpr uint32_t Q_BOX = 64 * 128, KV_BOX = BC * 128, Q_BYTES = BOXES * Q_BOX, KV_BYTES = BOXES * KV_BOX;
constexpr float SCALE_LOG2 = 1.4426950408889634f * (D == 64 ? 0.125f : 0.08838834764831845f);  // log2(e) / sqrt(D)

static_assert(D == 64 || D == 128, "the scale is written for these, and a tile is made of boxes of 64 columns");

// Byte offset in O's tile. Eight rows at one chunk column touch all 32 banks, and so do eight chunks of a row.
__device__ __forceinline__ uint32_t swizzle(int row, int chunk) {
    return row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
}

// Starts the copy of a tile of a head, from `row` on, as boxes of `box` bytes; the barrier waits for them.
__device__ __forceinline__ void load_tile(uint32_t tile, uint32_t box, const TensorMap* map, int head, int row,
                                          int batch, uint32_t barrier) {
#pragma unroll
    for (int i = 0; i < BOXES; ++i) tma_load_4d(tile + i * box, map, 64 * i, head, row, batch, barrier);
}

// Starts S[64 x Bc] = Q K^T. A step of 16 along D is 32 bytes of a box.
__device__ __forceinline__ void start_qk(float (&s)[BC / 8][4], uint32_t q_tile, uint32_t k_tile) {
    keep_in_place(s);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
        wgmma_ss(s, wgmma_operand(q_tile + k / 4 * Q_BOX + k % 4 * 32, 0, 1024),
                 wgmma_operand(k_tile + k / 4 * KV_BOX + k % 4 * 32, 0, 1024), k > 0);
    wgmma_commit();
}

// Starts O[64 x D] += P V. V is [key][d]: MN-major. A step of 16 keys is 16 rows of 128 bytes.
__device__ __forceinline__ void start_pv(float (&o)[D / 8][4], uint32_t (&p)[BC / 16][4], uint32_t v_tile) {
    keep_in_place(o);
    keep_in_place(p);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BC / 16; ++k)
        wgmma_rs<1>(o, p[k], wgmma_operand(v_tile + k * 16 * 128, KV_BOX, 1024), true);
    wgmma_commit();
}

// Online softmax: the new maxima of this thread's two rows, what rescales O, and S made P before rounding. m is kept
// times SCALE_LOG2, so that an element costs one FFMA and one ex2; l is this thread's share of the row sum.
__device__ __forceinline__ void softmax(float (&s)[BC / 8][4], float (&m)[2], float (&l)[2], float (&alpha)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float row_max = fmaxf(s[0][2 * r], s[0][2 * r + 1]);
#pragma unroll
        for (int n = 1; n < BC / 8; ++n) row_max = fmaxf(row_max, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, 1));
        row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, 2));
        const float m_new = fmaxf(m[r], row_max * SCALE_LOG2);
        alpha[r] = ex2(m[r] - m_new);  // 0 on the first tile, where m is -inf
        m[r] = m_new;
        l[r] *= alpha[r];
#pragma unroll
        for (int n = 0; n < BC / 8; ++n) {
            s[n][2 * r] = ex2(s[n][2 * r] * SCALE_LOG2 - m_new);
            s[n][2 * r + 1] = ex2(s[n][2 * r + 1] * SCALE_LOG2 - m_new);
            l[r] += s[n][2 * r] + s[n][2 * r + 1];
        }
    }
}

// P, packed into the A operand, whose layout the accumulator S has.
__device__ __forceinline__ void pack(uint32_t (&p)[BC / 16][4], const float (&s)[BC / 8][4]) {
#pragma unroll
    for (int k = 0; k < BC / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // register i of A: row half i % 2, key half i / 2
            const float* pair = &s[2 * k + i / 2][i % 2 * 2];
            p[k][i] = pack_f16x2(pair[0], pair[1]);
        }
}

__device__ __forceinline__ void rescale(float (&o)[D / 8][4], const float (&alpha)[2]) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[n][i] *= alpha[i / 2];
}


// O / l to the warp's own 16 rows of a shared tile, then out in 16-byte chunks, whole rows an instruction.
__device__ __forceinline__ void store_o(char* o_global, uint32_t row_stride, char* tile, const float (&o)[D / 8][4],
                                        const float (&l)[2], int warp, int lane) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float row_sum = l[r] + __shfl_xor_sync(~0u, l[r], 1);
        row_sum += __shfl_xor_sync(~0u, row_sum, 2);
        const float inverse = 1.0f / row_sum;
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
            *reinterpret_cast<uint32_t*>(tile + swizzle(warp * 16 + r * 8 + lane / 4, n) + lane % 4 * 4) =
                pack_f16x2(o[n][2 * r] * inverse, o[n][2 * r + 1] * inverse);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i += 32 / CHUNKS) {
        const int row = warp * 16 + i + lane / CHUNKS, chunk = lane % CHUNKS;
        *reinterpret_cast<uint4*>(o_global + (row * row_stride + chunk * 16)) =
            *reinterpret_cast<const uint4*>(tile + swizzle(row, chunk));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_forward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                  const __grid_constant__ TensorMap v_map, __half* __restrict__ O, int S, int H) {
    extern __shared__ __align__(1024) char smem[];
    const uint32_t q_tiles = smem_address(smem), k_ring = q_tiles + CONSUMERS * Q_BYTES;
    const uint32_t v_ring = k_ring + STAGES * KV_BYTES;
    const uint32_t k_full = v_ring + STAGES * KV_BYTES, k_empty = k_full + STAGES * 8;  // barriers, 8 bytes each
    const uint32_t v_full = k_empty + STAGES * 8, v_empty = v_full + STAGES * 8, q_full = v_empty + STAGES * 8;
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int batch = blockIdx.y / H, head = blockIdx.y % H, tiles = S / BC;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(k_full + i * 8, 1);
            mbarrier_init(v_full + i * 8, 1);
            mbarrier_init(k_empty + i * 8, CONSUMERS * 4);  // one arrival of each consumer warp
            mbarrier_init(v_empty + i * 8, CONSUMERS * 4);
        }
        mbarrier_init(q_full, 1);
        fence_mbarrier_init();
    }
    __syncthreads();

    if (group == CONSUMERS) {  // producers, of which one thread works
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x == CONSUMERS * 128) {
            mbarrier_arrive_expect_tx(q_full, CONSUMERS * Q_BYTES);
            for (int i = 0; i < CONSUMERS; ++i)
                load_tile(q_tiles + i * Q_BYTES, Q_BOX, &q_map, head, blockIdx.x * BR + i * 64, batch, q_full);
            for (int j = 0; j < tiles; ++j) {
                const int stage = j % STAGES, phase = j / STAGES % 2;
                mbarrier_wait(k_empty + stage * 8, phase ^ 1);  // on the first round nothing has to be emptied
                mbarrier_arrive_expect_tx(k_full + stage * 8, KV_BYTES);
                load_tile(k_ring + stage * KV_BYTES, KV_BOX, &k_map, head, j * BC, batch, k_full + stage * 8);
                mbarrier_wait(v_empty + stage * 8, phase ^ 1);
                mbarrier_arrive_expect_tx(v_full + stage * 8, KV_BYTES);
                load_tile(v_ring + stage * KV_BYTES, KV_BOX, &v_map, head, j * BC, batch, v_full + stage * 8);
            }
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const uint32_t q_tile = q_tiles + group * Q_BYTES;
        const int own_turn = 1 + group, other_turn = 2 - group;
        float o[D / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {}, alpha[2];
        float s[BC / 8][4];
        uint32_t p[BC / 16][4];

        mbarrier_wait(q_full, 0);
        if (group == 1) named_barrier_arrive(other_turn, 256);
        mbarrier_wait(k_full, 0);
        start_qk(s, q_tile, k_ring);
        wgmma_wait<0>();
        keep_in_place(s);
        if (lane == 0) mbarrier_arrive(k_empty);
        softmax(s, m, l, alpha);
        pack(p, s);
        for (int j = 1; j < tiles; ++j) {  // QK of tile j, PV of tile j - 1
            const int stage = j % STAGES, before = (j - 1) % STAGES;
            mbarrier_wait(k_full + stage * 8, j / STAGES % 2);
            named_barrier_sync(own_turn, 256);
            start_qk(s, q_tile, k_ring + stage * KV_BYTES);
            mbarrier_wait(v_full + before * 8, (j - 1) / STAGES % 2);
            start_pv(o, p, v_ring + before * KV_BYTES);
            if (group == 0 || j + 1 < tiles) named_barrier_arrive(other_turn, 256);
            wgmma_wait<1>();
            keep_in_place(s);
            if (lane == 0) mbarrier_arrive(k_empty + stage * 8);
            softmax(s, m, l, alpha);
            wgmma_wait<0>();
            keep_in_place(o);
            if (lane == 0) mbarrier_arrive(v_empty + before * 8);
            rescale(o, alpha);
            pack(p, s);
        }
        const int last = (tiles - 1) % STAGES;
        mbarrier_wait(v_full + last * 8, (tiles - 1) / STAGES % 2);
        start_pv(o, p, v_ring + last * KV_BYTES);
        wgmma_wait<0>();
        keep_in_place(o);

        // The warpgroup's tile of Q carries its O once all four warps are past their last QK.
        named_barrier_sync(3 + group, 128);
        const size_t row = (static_cast<size_t>(batch) * S + blockIdx.x * BR + group * 64) * H + head;
        store_o(reinterpret_cast<char*>(O) + row * ROW_BYTES, H * ROW_BYTES, smem + group * Q_BYTES, o, l, warp, lane);
    }
}
