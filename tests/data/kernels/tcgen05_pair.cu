// One product by two CTAs, C[M x N] = A[M x 64]·B[N x 64]ᵀ for M = 128 or 256: each CTA loads half of A's rows and half of B's into its
// own shared memory and tells the leader's barrier; the leader's one thread multiplies for both and tells both that it is done.
// Grid: 2 CTAs. Block: 128. sm_103a. M and N are defined around it.
#include <stdint.h>

struct alignas(64) Map { char content[128]; };

constexpr int K = 64, A_BYTES = M / 2 * K * 2, B_BYTES = N / 2 * K * 2, COLUMNS = M == 256 ? N : N / 2;
constexpr uint16_t BOTH = 3;
constexpr uint32_t LEADERS = 0xFEFFFFFF;  // the bit of an address that the second CTA of a pair has and the first has not

__device__ inline uint32_t address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ inline void init(uint32_t barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n fence.mbarrier_init.release.cluster;" :: "r"(barrier) : "memory");
}

__device__ inline void expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

__device__ inline void wait(uint32_t barrier) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra again; }"
                 :: "r"(barrier) : "memory");
}

__device__ inline void load(uint32_t to, const Map& map, int row, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 :: "r"(to), "l"(&map), "r"(barrier), "r"(0), "r"(row) : "memory");
}

__device__ inline uint64_t operand(uint32_t at) {  // K-major, rows of 128 bytes
    return (at & 0x3FFFF) >> 4 | 64ull << 32 | 1ull << 46 | 2ull << 61;
}

__device__ inline void multiply(uint32_t to, uint64_t a, uint64_t b, uint32_t instruction, uint32_t adds) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %4, 0; tcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, p; }"
                 :: "r"(to), "l"(a), "l"(b), "r"(instruction), "r"(adds) : "memory");
}

__device__ inline void commit(uint32_t barrier, uint16_t ctas) {
    asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;"
                 :: "r"(barrier), "h"(ctas) : "memory");
}

__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) pair(const __grid_constant__ Map a_map, const __grid_constant__ Map b_map, float* c) {
    extern __shared__ __align__(1024) uint8_t tiles[];
    __shared__ uint64_t full, done;
    __shared__ uint32_t columns;
    const uint32_t warp = threadIdx.x / 32, rank = blockIdx.x % 2;
    const uint32_t a = address(tiles), b = a + A_BYTES;
    if (threadIdx.x == 0) {
        init(address(&full));
        init(address(&done));
    }
    __syncwarp();
    if (warp == 0)
        asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;"
                     :: "r"(address(&columns)), "n"(COLUMNS < 32 ? 32 : COLUMNS) : "memory");
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    cluster_sync();
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    const uint32_t tmem = columns;
    if (threadIdx.x == 0) {
        if (rank == 0) expect(address(&full), 2 * (A_BYTES + B_BYTES));
        load(a, a_map, rank * (M / 2), address(&full) & LEADERS);
        load(b, b_map, rank * (N / 2), address(&full) & LEADERS);
        if (rank == 0) {
            wait(address(&full));
            for (int k = 0; k < K / 16; ++k)
                multiply(tmem, operand(a + 32 * k), operand(b + 32 * k), 1 << 4 | N / 8 << 17 | M / 16 << 24, k);
            commit(address(&done), BOTH);
        }
    }
    __syncwarp();
    wait(address(&done));
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    // M = 256: a thread has a row. M = 128: the upper half of the lanes has the second half of the columns.
    const int row = rank * (M / 2) + (M == 256 ? threadIdx.x : threadIdx.x % 64), first = M == 256 ? 0 : threadIdx.x / 64 * (N / 2);
    for (int n = 0; n < COLUMNS; ++n) {
        float value;
        asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];\n tcgen05.wait::ld.sync.aligned;"
                     : "=f"(value) : "r"(tmem + (warp * 32 << 16) + n) : "memory");
        c[row * N + first + n] = value;
    }
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    cluster_sync();
    if (warp == 0) {
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;" ::: "memory");
        asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" :: "r"(tmem), "n"(COLUMNS < 32 ? 32 : COLUMNS) : "memory");
    }
}
