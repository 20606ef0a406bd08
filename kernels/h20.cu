// h20 (parent h16): O is summed up in halves in shared memory by HFMA2; exponentials and row sums are halves too.
// Change    PV of a tile starts from zero; O = alpha O + PV is an HFMA2 in shared memory, where a thread keeps its
//           elements as chunks of 16 bytes. ex2.f16x2 gives P as PV takes it. Maxima and scaled scores stay fp32. The
//           room for O comes from key tiles of 64 (with 128 one CTA fits an SM: 276 TFLOPS).
// Loss      time +33.7 % [+33.1, +34.0] against h16, 337 TFLOPS (H200, published shape; history/), and LESS ACCURATE:
//           relative L2 error 9.3e-4 on normal inputs where h16 has 2.8e-4. 119 registers instead of 239 buy nothing:
//           shared memory allows two CTAs all the same, and all of O goes through it every tile.
// Tiles     Br = 128, Bc = 64, D = 128; Q 32, K and V 16, O 32 KiB.
// Warps     as h16.
// Supported as h15; a row's sum of exponentials must stay below 65504. (No h19: tcgen05.ld.red has no like on Hopper.)
// Launch    grid (S / 128, B * H), 128 threads, 98328 bytes of dynamic shared memory.
// Sources   as h14.
#include "ptx.cuh"
#include "wgmma.cuh"

struct __half;  // only its pointers are used, so <cuda_fp16.h> and its compile time are not needed

constexpr int D = 128, BR = 128, BC = 64;         // head dim, query rows a CTA, key rows a tile
constexpr int BLOCKS = BR / 64;                   // of rows: a wgmma has 64
constexpr int THREADS = 128;
constexpr int CHUNKS = D * 2 / 16;                // 16-byte chunks a row
constexpr uint32_t ROW_BYTES = D * 2;
constexpr uint32_t Q_HALF = BR * 128, KV_HALF = BC * 128;  // a tile is two boxes of 64 columns, swizzled by TMA
constexpr float SCALE_LOG2 = 1.4426950408889634f * 0.08838834764831845f;  // log2(e) / sqrt(D): softmax in base 2

static_assert(D == 128, "the scale and the fragment loops are written for D = 128");

// Byte offset in O's tile. Eight rows at one chunk column touch all 32 banks, and so do eight chunks of a row.
__device__ __forceinline__ uint32_t swizzle(int row, int chunk) {
    return row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
}

// Starts the copy of a tile of a head, from `row` on, as two boxes of `half` bytes; the barrier waits for them.
__device__ __forceinline__ void load_tile(uint32_t tile, uint32_t half, const TensorMap* map, int head, int row,
                                          int batch, uint32_t barrier) {
    mbarrier_arrive_expect_tx(barrier, 2 * half);
    tma_load_4d(tile, map, 0, head, row, batch, barrier);
    tma_load_4d(tile + half, map, 64, head, row, batch, barrier);
}

// S[64 x Bc] = Q K^T for one block of rows. A step of 16 along D is 32 bytes of a half.
__device__ __forceinline__ void compute_qk(float (&s)[BC / 8][4], uint32_t q_block, uint32_t k_tile) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
        wgmma_ss(s, wgmma_operand(q_block + k / 4 * Q_HALF + k % 4 * 32, 0, 1024),
                 wgmma_operand(k_tile + k / 4 * KV_HALF + k % 4 * 32, 0, 1024), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    keep_in_place(s);
}

// Online softmax of one block, first half: the new maxima of this thread's two rows, and what rescales O and l. m is
// kept times SCALE_LOG2, so that an element costs one FFMA and half an ex2 later.
__device__ __forceinline__ void raise(const float (&s)[BC / 8][4], float (&m)[2], uint32_t (&alpha)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float row_max = fmaxf(s[0][2 * r], s[0][2 * r + 1]);
#pragma unroll
        for (int n = 1; n < BC / 8; ++n) row_max = fmaxf(row_max, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, 1));
        row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, 2));
        const float m_new = fmaxf(m[r], row_max * SCALE_LOG2);
        const float factor = ex2(m[r] - m_new);  // 0 on the first tile, where m is -inf
        m[r] = m_new;
        alpha[r] = pack_f16x2(factor, factor);
    }
}

// Second half: P, packed into the A operand, whose layout the accumulator S has. l is this thread's share of the row
// sum, even and odd columns apart.
__device__ __forceinline__ void exponentials(uint32_t (&p)[BC / 16][4], const float (&s)[BC / 8][4],
                                             const float (&m)[2], const uint32_t (&alpha)[2], uint32_t (&l)[2]) {
    l[0] = mul_f16x2(l[0], alpha[0]);
    l[1] = mul_f16x2(l[1], alpha[1]);
#pragma unroll
    for (int k = 0; k < BC / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // register i of A: row half i % 2, key half i / 2
            const float* pair = &s[2 * k + i / 2][i % 2 * 2];
            p[k][i] = ex2_f16x2(pack_f16x2(pair[0] * SCALE_LOG2 - m[i % 2], pair[1] * SCALE_LOG2 - m[i % 2]));
            l[i % 2] = add_f16x2(l[i % 2], p[k][i]);
        }
}

// P V[64 x D] of one tile and block. V is [key][d]: MN-major. A step of 16 keys is 16 rows of 128 bytes.
__device__ __forceinline__ void compute_pv(float (&pv)[D / 8][4], const uint32_t (&p)[BC / 16][4], uint32_t v_tile) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BC / 16; ++k)
        wgmma_rs<1>(pv, p[k], wgmma_operand(v_tile + k * 16 * 128, KV_HALF, 1024), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    keep_in_place(pv);
}

// O = alpha O + P V in halves. A thread has its elements of a block as D / 16 chunks of 16 bytes, THREADS chunks apart.
__device__ __forceinline__ void accumulate(uint4* o, const float (&pv)[D / 8][4], const uint32_t (&alpha)[2]) {
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
        const float(&left)[4] = pv[2 * i], (&right)[4] = pv[2 * i + 1];
        uint4 sum = o[i * THREADS];
        sum.x = fma_f16x2(sum.x, alpha[0], pack_f16x2(left[0], left[1]));
        sum.y = fma_f16x2(sum.y, alpha[1], pack_f16x2(left[2], left[3]));
        sum.z = fma_f16x2(sum.z, alpha[0], pack_f16x2(right[0], right[1]));
        sum.w = fma_f16x2(sum.w, alpha[1], pack_f16x2(right[2], right[3]));
        o[i * THREADS] = sum;
    }
}

// O / l to the warp's own 16 rows of a shared tile, then out in 16-byte chunks, two whole rows an instruction.
__device__ __forceinline__ void store_o(char* o_global, uint32_t row_stride, char* tile, const uint4* o,
                                        const uint32_t (&l)[2], int warp, int lane) {
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float even, odd;
        unpack_f16x2(even, odd, l[r]);
        float row_sum = even + odd;
        row_sum += __shfl_xor_sync(~0u, row_sum, 1);
        row_sum += __shfl_xor_sync(~0u, row_sum, 2);
        inverse[r] = 1.0f / row_sum;
    }
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
        const uint4 sum = o[i * THREADS];
        const uint32_t pairs[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float left, right;
            unpack_f16x2(left, right, pairs[e]);
            *reinterpret_cast<uint32_t*>(tile + swizzle(warp * 16 + e % 2 * 8 + lane / 4, 2 * i + e / 2) +
                                         lane % 4 * 4) = pack_f16x2(left * inverse[e % 2], right * inverse[e % 2]);
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i += 32 / CHUNKS) {
        const int row = warp * 16 + i + lane / CHUNKS, chunk = lane % CHUNKS;
        *reinterpret_cast<uint4*>(o_global + (row * row_stride + chunk * 16)) =
            *reinterpret_cast<const uint4*>(tile + swizzle(row, chunk));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
attention_forward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                  const __grid_constant__ TensorMap v_map, __half* __restrict__ O, int S, int H) {
    extern __shared__ __align__(1024) char smem[];
    const uint32_t q_tile = smem_address(smem), k_tile = q_tile + 2 * Q_HALF, v_tile = k_tile + 2 * KV_HALF;
    const uint32_t o_tile = v_tile + 2 * KV_HALF;  // halves
    const uint32_t q_full = o_tile + 2 * Q_HALF, k_full = q_full + 8, v_full = k_full + 8;  // barriers, 8 bytes each
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int batch = blockIdx.y / H, head = blockIdx.y % H;

    if (threadIdx.x == 0) {
        for (uint32_t barrier = q_full; barrier <= v_full; barrier += 8) mbarrier_init(barrier, 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) load_tile(q_tile, Q_HALF, &q_map, head, blockIdx.x * BR, batch, q_full);

    uint4* o = reinterpret_cast<uint4*>(smem + (o_tile - q_tile)) + threadIdx.x;  // only this thread's own chunks
    constexpr int O_BLOCK = D / 16 * THREADS;
#pragma unroll
    for (int i = 0; i < BLOCKS * D / 16; ++i) o[i * THREADS] = uint4{};
    float m[BLOCKS][2];
    uint32_t l[BLOCKS][2] = {};
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) m[block][0] = m[block][1] = -INFINITY;
    mbarrier_wait(q_full, 0);
    for (int j = 0; j < S / BC; ++j) {
        if (threadIdx.x == 0) {
            load_tile(k_tile, KV_HALF, &k_map, head, j * BC, batch, k_full);
            load_tile(v_tile, KV_HALF, &v_map, head, j * BC, batch, v_full);
        }
        mbarrier_wait(k_full, j % 2);
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            float s[BC / 8][4];
            uint32_t p[BC / 16][4], alpha[2];
            compute_qk(s, q_tile + block * 64 * 128, k_tile);
            raise(s, m[block], alpha);
            exponentials(p, s, m[block], alpha, l[block]);
            if (block == 0) mbarrier_wait(v_full, j % 2);
            float pv[D / 8][4];
            compute_pv(pv, p, v_tile);
            accumulate(o + block * O_BLOCK, pv, alpha);
        }
        __syncthreads();  // all are past this tile of K and V
    }

    // Nobody reads Q any more: its tile carries O.
    const size_t row = (static_cast<size_t>(batch) * S + blockIdx.x * BR) * H + head;
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
        store_o(reinterpret_cast<char*>(O) + (row + static_cast<size_t>(block) * 64 * H) * ROW_BYTES, H * ROW_BYTES,
                smem + block * 64 * ROW_BYTES, o + block * O_BLOCK, l[block], warp, lane);
}
