// What a tensor path can do at most: one CTA an SM issues nothing but MMAs on registers (mma.sync) or shared memory (wgmma)
// and reads its SM's cycle counter before and after. Operands are random halves below 1. FLOPs over cycles is the ceiling.
#include <stdint.h>

constexpr int INDEPENDENT = 8;  // accumulators a warp keeps in flight

extern "C" __global__ void __launch_bounds__(1024, 1) hmma(const uint32_t* in, float* out, uint64_t* cycles, int rounds) {
    uint32_t a[4], b[2];
    float c[INDEPENDENT][4] = {};
    for (int k = 0; k < 4; ++k) a[k] = in[(threadIdx.x * 4 + k) % 65536] & 0x3bff3bffu;
    for (int k = 0; k < 2; ++k) b[k] = in[(threadIdx.x * 2 + k + 8192) % 65536] & 0x3bff3bffu;
    uint64_t begin = 0;
    for (int r = -64; r < rounds; ++r) {
        if (r == 0) {
            __syncthreads();
            begin = clock64();
        }
#pragma unroll
        for (int n = 0; n < INDEPENDENT; ++n)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                         "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    float sum = 0;
    for (int n = 0; n < INDEPENDENT; ++n) sum += c[n][0] + c[n][1] + c[n][2] + c[n][3];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - begin;
}

#define C(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])

__device__ __forceinline__ void wgmma(float (&c)[64], uint64_t a, uint64_t b) {  // m64n128k16, A and B from shared memory
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, 1, 1, 1, 0, 0;"
        : C(0), C(8), C(16), C(24), C(32), C(40), C(48), C(56)
        : "l"(a), "l"(b));
}

__device__ __forceinline__ uint64_t descriptor(const void* p) {  // K-major, rows of 128 B swizzled, 1024 B from eight rows to the next
    return (uint32_t(__cvta_generic_to_shared(p)) & 0x3FFFF) >> 4 | uint64_t(1024 >> 4) << 32 | 1ull << 62;
}

extern "C" __global__ void __launch_bounds__(512, 1) hgmma(const uint32_t* in, float* out, uint64_t* cycles, int rounds) {
    extern __shared__ __align__(1024) uint32_t tiles[];  // B of 128 rows, then a warpgroup's own A of 64 rows, each 128 B long
    const int words = (128 + 64 * (blockDim.x / 128)) * 32;
    for (int i = threadIdx.x; i < words; i += blockDim.x) tiles[i] = in[i % 65536] & 0x3bff3bffu;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const uint64_t b = descriptor(tiles), a = descriptor(tiles + (128 + 64 * (threadIdx.x / 128)) * 32);
    float c[64] = {};
    uint64_t begin = 0;
    for (int r = -16; r < rounds; ++r) {
        if (r == 0) {
            __syncthreads();
            begin = clock64();
        }
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < INDEPENDENT; ++k) wgmma(c, a + 2 * (k % 4), b + 2 * (k % 4));
        asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    float sum = 0;
    for (int k = 0; k < 64; ++k) sum += c[k];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - begin;
}
