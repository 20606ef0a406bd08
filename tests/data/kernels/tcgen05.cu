// tcgen05: 256 columns of TMEM; `whole` runs m128n128k16, four a step of its loop; `half_height` one m64n128k16;
// `literal` writes its numbers into the assembly, m32n128k16 with .ws among them.
constexpr unsigned M128_N128 = 0x08200010, M64_N128 = 0x04200010;  // f16 x f16 -> f32, both K-major

__device__ __forceinline__ unsigned alloc() {
    __shared__ unsigned column;
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(&column));
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(address), "n"(256) : "memory");
    __syncthreads();
    return column;
}

__device__ __forceinline__ void release(unsigned column) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(column), "n"(256));
}

__device__ __forceinline__ void mma(unsigned d, unsigned long long a, unsigned long long b, unsigned shape, unsigned sum) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }"
        ::"r"(d), "l"(a), "l"(b), "r"(shape), "r"(sum) : "memory");
}

extern "C" __global__ void whole(unsigned long long a, unsigned long long b, int n) {
    const unsigned column = alloc();
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) mma(column, a + 2 * k, b + 2 * k, M128_N128, i + k);
    }
    release(column);
}

extern "C" __global__ void half_height(unsigned long long a, unsigned long long b) {
    const unsigned column = alloc();
    mma(column, a, b, M64_N128, 0);
    release(column);
}

extern "C" __global__ void literal(unsigned long long a, unsigned long long b) {
    __shared__ unsigned column;
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 0x40;"
                 ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(&column))) : "memory");
    asm volatile(
        "{ .reg .b32 shape; .reg .pred p; setp.ne.b32 p, 0, 0; mov.b32 shape, 0x02200010;"
        "  tcgen05.mma.ws.cta_group::1.kind::f16 [%0], %1, %2, shape, p; }"
        ::"r"(column), "l"(a), "l"(b) : "memory");
    release(column);
}
