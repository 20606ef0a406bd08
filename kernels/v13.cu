// v13 (parent v12): warp specialization. Two producer warps feed K and V through mbarrier rings, four only compute.
// Change    In v12 every thread issues a share of every copy and meets the others at two __syncthreads a tile. Here a
//           consumer waits only for the tile that it reads, runs ahead of its neighbours, and computes no addresses in
//           global memory. full[i]: one arrival by cp.async.mbarrier.arrive.noinc of each producer thread; empty[i]:
//           one by each consumer warp. Q gets a tile of its own.
// Gain      reported, not measured here: +3.5 %, to 226.83 TFLOPS on B300 with 58 KB of shared memory, someone else's
//           kernel of this design. Measured on an H200 (history/): time -3.96 % [-4.20, -3.80] against v12, 316 TFLOPS, 1.03
//           of FA2's speed. Tried: a single producer is ~2 % slower, a third stage no gain.
// Tiles     as v12.
// Warps     0-3 consumers, 16 query rows each; 4 loads K; 5 loads Q, then V. 168 registers, 2 CTAs an SM: a producer
//           holds as many registers as a consumer (setmaxnreg wants sm_90 and whole warpgroups): 12 warps fill the SM.
// Supported as v12.
// Launch    grid (S / 64, B * H), 192 threads, 81992 bytes of dynamic shared memory.
// Sources   as v12; "cp.async.mbarrier.arrive" in the PTX ISA manual; CUTLASS's PipelineAsync for full and empty.
#include "ptx.cuh"

struct __half;  // only its pointers are used, so <cuda_fp16.h> and its compile time are not needed

constexpr int D = 128, BR = 64, BC = 64;          // head dim, query rows a CTA, key rows a tile
constexpr int STAGES = 2;                         // K buffers, and as many V buffers
constexpr int CONSUMERS = BR / 16 * 32, THREADS = CONSUMERS + 2 * 32;
constexpr int LOADERS = 32;                       // threads that share the load of a tile
constexpr int CHUNKS = D * 2 / 16;                // 16-byte chunks a row
constexpr uint32_t ROW_BYTES = D * 2, TILE_BYTES = BC * ROW_BYTES;
constexpr uint32_t SMEM_BYTES = (2 * STAGES + 1) * TILE_BYTES + (4 * STAGES + 1) * 8;
constexpr float SCALE_LOG2 = 1.4426950408889634f * 0.08838834764831845f;  // log2(e) / sqrt(D): softmax in base 2

static_assert(D == 128, "the scale and the fragment loops are written for D = 128");
static_assert(BR == BC, "one tile loader serves Q, K and V, and O leaves through a tile of the same size");
static_assert(LOADERS % CHUNKS == 0 && (BC * CHUNKS) % LOADERS == 0, "each loader copies one chunk column of the tile");
static_assert(2 * (SMEM_BYTES + 1024) <= 227 * 1024, "two CTAs must fit the shared memory of an SM");

// Byte offset in a tile. Eight rows at one chunk column, as ldmatrix reads, touch all 32 banks, and so do eight
// neighbouring chunks of a row, as cp.async writes.
__device__ __forceinline__ uint32_t swizzle(int row, int chunk) {
    return row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
}

// From the swizzled address of chunk 0 or 1 to that of chunk + 2 * step: only bits 5 and 6 take part in the XOR.
__device__ __forceinline__ uint32_t chunk_step(uint32_t address, int step) {
    return (address ^ ((step & 3) << 5)) + (step >> 2) * 128;
}

// Starts the copy of one tile. `offset` is this loader's first chunk relative to `head`.
__device__ __forceinline__ void load_tile(uint32_t tile, const char* head, uint32_t offset, uint32_t row_stride,
                                          int loader) {
    constexpr int ROWS = LOADERS / CHUNKS;
#pragma unroll
    for (int i = 0; i < BC / ROWS; ++i)
        cp_async_16(tile + swizzle(loader / CHUNKS + i * ROWS, loader % CHUNKS),
                    head + (offset + i * ROWS * row_stride));
}

// S[16 x Bc] = Q K^T. K is [key][d], which is already the column-major B operand.
__device__ __forceinline__ void compute_qk(float (&s)[BC / 8][4], const uint32_t (&q)[D / 16][4], uint32_t k_address) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
#pragma unroll
        for (int n = 0; n < BC / 16; ++n) {
            uint32_t b[4];
            ldmatrix_x4(b, chunk_step(k_address, k) + n * 16 * ROW_BYTES);
            mma_m16n8k16(s[2 * n], q[k], b[0], b[1]);
            mma_m16n8k16(s[2 * n + 1], q[k], b[2], b[3]);
        }
}

// Online softmax, first half: the new maxima of this thread's two rows, and O and l rescaled to them. m is kept
// times SCALE_LOG2, so that an element costs one FFMA and one ex2 later; l is this thread's share of the row sum.
__device__ __forceinline__ void rescale(const float (&s)[BC / 8][4], float (&o)[D / 8][4], float (&m)[2],
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
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            o[n][2 * r] *= alpha;
            o[n][2 * r + 1] *= alpha;
        }
    }
}

// Second half and O[16 x D] += P V, 16 keys at a time, so that the exponentials of one slice overlap the HMMA of
// another. V is [key][d]: ldmatrix.trans makes it the B operand. P is the S accumulator, packed into the A operand.
__device__ __forceinline__ void compute_pv(float (&o)[D / 8][4], float (&s)[BC / 8][4], const float (&m)[2],
                                           float (&l)[2], uint32_t v_address) {
#pragma unroll
    for (int k = 0; k < BC / 16; ++k) {
        uint32_t p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // register i of A: row half i % 2, key half i / 2
            float* pair = &s[2 * k + i / 2][i % 2 * 2];
            pair[0] = ex2(pair[0] * SCALE_LOG2 - m[i % 2]);
            pair[1] = ex2(pair[1] * SCALE_LOG2 - m[i % 2]);
            l[i % 2] += pair[0] + pair[1];
            p[i] = pack_f16x2(pair[0], pair[1]);
        }
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, chunk_step(v_address, n) + k * 16 * ROW_BYTES);
            mma_m16n8k16(o[2 * n], p, b[0], b[1]);
            mma_m16n8k16(o[2 * n + 1], p, b[2], b[3]);
        }
    }
}

// O / l to the warp's own 16 rows of a shared tile, then out in 16-byte chunks, two whole rows an instruction.
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

extern "C" __global__ void __launch_bounds__(THREADS, 2)
attention_forward(const __half* __restrict__ Q, const __half* __restrict__ K, const __half* __restrict__ V,
                  __half* __restrict__ O, int S, int H) {
    extern __shared__ __align__(1024) char smem[];
    const uint32_t q_tile = smem_address(smem), k_ring = q_tile + TILE_BYTES, v_ring = k_ring + STAGES * TILE_BYTES;
    const uint32_t k_full = v_ring + STAGES * TILE_BYTES, k_empty = k_full + STAGES * 8;  // barriers, 8 bytes each
    const uint32_t v_full = k_empty + STAGES * 8, v_empty = v_full + STAGES * 8, q_full = v_empty + STAGES * 8;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    // Byte offsets: a head's first row from the tensor's start, and this CTA's query rows from there.
    const uint32_t row_stride = H * ROW_BYTES;
    const size_t head = (static_cast<size_t>(blockIdx.y / H) * S * H + blockIdx.y % H) * ROW_BYTES;
    const size_t query = head + static_cast<size_t>(blockIdx.x) * BR * row_stride;

    const int tiles = S / BC;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(k_full + i * 8, LOADERS);
            mbarrier_init(v_full + i * 8, LOADERS);
            mbarrier_init(k_empty + i * 8, CONSUMERS / 32);
            mbarrier_init(v_empty + i * 8, CONSUMERS / 32);
        }
        mbarrier_init(q_full, LOADERS);
    }
    __syncthreads();

    if (threadIdx.x >= CONSUMERS) {  // producers
        const bool loads_k = threadIdx.x < CONSUMERS + LOADERS;
        const char* kv_head = reinterpret_cast<const char*>(loads_k ? K : V) + head;
        const uint32_t ring = loads_k ? k_ring : v_ring, full = loads_k ? k_full : v_full, empty = full + STAGES * 8;
        uint32_t offset = lane / CHUNKS * row_stride + lane % CHUNKS * 16;
        if (!loads_k) {
            load_tile(q_tile, reinterpret_cast<const char*>(Q) + query, offset, row_stride, lane);
            cp_async_mbarrier_arrive_noinc(q_full);
        }
#pragma unroll 1
        for (int j = 0; j < tiles; ++j) {
            const int stage = j % STAGES, phase = j / STAGES % 2;
            mbarrier_wait(empty + stage * 8, phase ^ 1);  // on the first round nothing has to be emptied
            load_tile(ring + stage * TILE_BYTES, kv_head, offset, row_stride, lane);
            cp_async_mbarrier_arrive_noinc(full + stage * 8);
            offset += BC * row_stride;
        }
        return;
    }

    // This lane's row and chunk in an ldmatrix.x4: matrices 1 and 2 swap places between K and the other two.
    const uint32_t k_lane = swizzle(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    const uint32_t qv_lane = swizzle(lane % 16, lane / 16);

    mbarrier_wait(q_full, 0);
    uint32_t q[D / 16][4];
#pragma unroll
    for (int k = 0; k < D / 16; ++k) ldmatrix_x4(q[k], chunk_step(q_tile + warp * 16 * ROW_BYTES + qv_lane, k));

    float o[D / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {};
    for (int j = 0; j < tiles; ++j) {
        const int stage = j % STAGES, phase = j / STAGES % 2;

        mbarrier_wait(k_full + stage * 8, phase);
        float s[BC / 8][4] = {};
        compute_qk(s, q, k_ring + stage * TILE_BYTES + k_lane);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(k_empty + stage * 8);
        rescale(s, o, m, l);

        mbarrier_wait(v_full + stage * 8, phase);
        compute_pv(o, s, m, l, v_ring + stage * TILE_BYTES + qv_lane);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(v_empty + stage * 8);
    }

    // A warp's 16 rows of Q were read by that warp alone, so they can carry its O with no barrier of the CTA.
    __syncwarp();
    store_o(reinterpret_cast<char*>(O) + query, row_stride, smem, o, l, warp, lane);
}
