// Two CTAs share what they load: each loads half of every tile into both of them, adds up the elements with weights of its own,
// and sends its sums to the other. A ring of two tiles, whose empty barriers count the consumers of both CTAs.
// Grid: 2 CTAs for each run of TILES tiles. Block: a warp that loads, a warp that adds. sm_90a.
#include <stdint.h>

struct alignas(64) Map { char content[128]; };

constexpr int TILES = 5, STAGES = 2, HALF = 8 * 64 * 2, TILE = 2 * HALF;

__device__ inline uint32_t address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ inline uint32_t rank_of_cta() {
    uint32_t rank;
    asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ inline uint32_t at_rank(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

__device__ inline void init(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
}

__device__ inline void expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

__device__ inline void arrive_at(uint32_t barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(barrier) : "memory");
}

__device__ inline void wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }"
                 :: "r"(barrier), "r"(parity) : "memory");
}

__device__ inline void load_half(uint32_t to, const Map& map, int row, uint32_t barrier, uint16_t ctas) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;"
                 :: "r"(to), "l"(&map), "r"(barrier), "r"(0), "r"(row), "h"(ctas) : "memory");
}

__device__ inline void send(uint32_t to, float value, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
                 :: "r"(to), "f"(value), "r"(barrier) : "memory");
}

__device__ inline void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

extern "C" __global__ void __cluster_dims__(2, 1, 1) share(const __grid_constant__ Map x, float* out) {
    extern __shared__ __align__(1024) uint8_t tiles[];
    __shared__ uint64_t full[STAGES], empty[STAGES], sums_full;
    __shared__ float theirs[32];
    const uint32_t rank = rank_of_cta(), peer = rank ^ 1, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init(address(full + stage), 1);
            init(address(empty + stage), 2);  // the consumer of each CTA
        }
        init(address(&sums_full), 1);
        expect(address(&sums_full), 32 * sizeof(float));
        fence_init();
    }
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
    if (threadIdx.x == 0) {
        for (int tile = 0; tile < TILES; ++tile) {
            const int stage = tile % STAGES, phase = tile / STAGES & 1;
            wait(address(empty + stage), phase ^ 1);
            expect(address(full + stage), TILE);
            const int row = (blockIdx.x / 2 * TILES + tile) * 16 + rank * 8;
            load_half(address(tiles + stage * TILE + rank * HALF), x, row, address(full + stage), 3);
        }
    } else if (threadIdx.x >= 32) {
        float sum = 0;
        for (int tile = 0; tile < TILES; ++tile) {
            const int stage = tile % STAGES, phase = tile / STAGES & 1;
            wait(address(full + stage), phase);
            const uint16_t* elements = reinterpret_cast<const uint16_t*>(tiles + stage * TILE);
            for (int i = 0; i < TILE / 64; ++i) sum += float(elements[i * 32 + lane]) * (rank + 1 + i % 2);
            __syncwarp();
            if (lane < 2) arrive_at(at_rank(address(empty + stage), lane));
        }
        send(at_rank(address(theirs + lane), peer), sum, at_rank(address(&sums_full), peer));
        wait(address(&sums_full), 0);
        out[blockIdx.x * 32 + lane] = 3 * sum + theirs[lane];
    }
    __syncwarp();
    cluster_arrive();
    cluster_wait();
}
