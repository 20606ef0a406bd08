// h20-acc16 (parent h16): wgmma sums PV up in halves, in registers.
// Change    wgmma ...f16.f16.f16 for PV: O takes 64 registers instead of 128 and is rescaled by HMUL2. Softmax is fp32,
//           and so is S, for raw scores do not fit into halves.
// Gain      time -1.8 % [-2.0, -1.6] against h16, 460 TFLOPS (H200, published shape; history/): 175 registers instead
//           of 239 buy no third CTA (168 would be needed, and shared memory for it), and wgmma is as fast either way.
//           LESS ACCURATE: relative L2 error 1.23e-3 on normal inputs where h16 has 2.8e-4, over the default bound
//           (9.8e-4).
// Tiles     as h16.
// Warps     as h16.
// Supported as h15; sums of PV must stay below 65504.
// Launch    as h16.
// Sources   as h14.
#include "ptx.cuh"
#include "wgmma.cuh"

struct __half;  // only its pointers are used, so <cuda_fp16.h> and its compile time are not needed

constexpr int D = 128, BR = 128, BC = 128;        // head dim, query rows a CTA, key rows a tile
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

// Online softmax of one block, first half: the new maxima of this thread's two rows, and O and l rescaled to them. m is
// kept times SCALE_LOG2, so that an element costs one FFMA and one ex2 later; l is this thread's share of the row sum.
__device__ __forceinline__ void rescale(const float (&s)[BC / 8][4], uint32_t (&o)[D / 8][2], float (&m)[2],
                                        float (&l)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float row_max = fmaxf(s[0][2 * r], s[0][2 * r + 1]);
#pragma unroll
        for (int n = 1; n < BC / 8; ++n) row_max = fmaxf(row_max, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, 1));
        row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, 2));
        const float m_new = fmaxf(m[r], row_max * SCALE_LOG2);
        const float alpha = ex2(m[r] - m_new);  // 0 on the first tile, where m is -inf
        m[r] = m_new;
        l[r] *= alpha;
        const uint32_t alpha2 = pack_f16x2(alpha, alpha);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) o[n][r] = mul_f16x2(o[n][r], alpha2);
    }
}

// Second half: P, packed into the A operand, whose layout the accumulator S has.
__device__ __forceinline__ void exponentials(uint32_t (&p)[BC / 16][4], const float (&s)[BC / 8][4],
                                             const float (&m)[2], float (&l)[2]) {
#pragma unroll
    for (int k = 0; k < BC / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // register i of A: row half i % 2, key half i / 2
            const float* pair = &s[2 * k + i / 2][i % 2 * 2];
            const float x = ex2(pair[0] * SCALE_LOG2 - m[i % 2]), y = ex2(pair[1] * SCALE_LOG2 - m[i % 2]);
            l[i % 2] += x + y;
            p[k][i] = pack_f16x2(x, y);
        }
}

// O[64 x D] += P V for one block. V is [key][d]: MN-major. A step of 16 keys is 16 rows of 128 bytes.
__device__ __forceinline__ void compute_pv(uint32_t (&o)[D / 8][2], const uint32_t (&p)[BC / 16][4], uint32_t v_tile) {
    keep_in_place(o);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BC / 16; ++k)
        wgmma_rs<1>(o, p[k], wgmma_operand(v_tile + k * 16 * 128, KV_HALF, 1024), true);
    wgmma_commit();
    wgmma_wait<0>();
    keep_in_place(o);
}

// O / l to the warp's own 16 rows of a shared tile, then out in 16-byte chunks, two whole rows an instruction.
__device__ __forceinline__ void store_o(char* o_global, uint32_t row_stride, char* tile,
                                        const uint32_t (&o)[D / 8][2], const float (&l)[2], int warp, int lane) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float row_sum = l[r] + __shfl_xor_sync(~0u, l[r], 1);
        row_sum += __shfl_xor_sync(~0u, row_sum, 2);
        const float inverse = 1.0f / row_sum;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            float left, right;
            unpack_f16x2(left, right, o[n][r]);
            *reinterpret_cast<uint32_t*>(tile + swizzle(warp * 16 + r * 8 + lane / 4, n) + lane % 4 * 4) =
                pack_f16x2(left * inverse, right * inverse);
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
    const uint32_t q_full = v_tile + 2 * KV_HALF, k_full = q_full + 8, v_full = k_full + 8;  // barriers, 8 bytes each
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int batch = blockIdx.y / H, head = blockIdx.y % H;

    if (threadIdx.x == 0) {
        for (uint32_t barrier = q_full; barrier <= v_full; barrier += 8) mbarrier_init(barrier, 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) load_tile(q_tile, Q_HALF, &q_map, head, blockIdx.x * BR, batch, q_full);

    uint32_t o[BLOCKS][D / 8][2] = {};  // two halves each
    float m[BLOCKS][2], l[BLOCKS][2] = {};
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
            uint32_t p[BC / 16][4];
            compute_qk(s, q_tile + block * 64 * 128, k_tile);
            rescale(s, o[block], m[block], l[block]);
            exponentials(p, s, m[block], l[block]);
            if (block == 0) mbarrier_wait(v_full, j % 2);
            compute_pv(o[block], p, v_tile);
        }
        __syncthreads();  // all are past this tile of K and V
    }

    // Nobody reads Q any more: its tile carries O.
    const size_t row = (static_cast<size_t>(batch) * S + blockIdx.x * BR) * H + head;
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
        store_o(reinterpret_cast<char*>(O) + (row + static_cast<size_t>(block) * 64 * H) * ROW_BYTES, H * ROW_BYTES,
                smem + block * 64 * ROW_BYTES, o[block], l[block], warp, lane);
}
