// mma.sync: one before the loop, four in it, and a longer loop without any behind it.
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

extern "C" __global__ void hmma(const unsigned* in, float* out, int n) {
    unsigned a[4], b[2];
    for (int k = 0; k < 4; ++k) a[k] = in[threadIdx.x + 32 * k];
    for (int k = 0; k < 2; ++k) b[k] = in[threadIdx.x + 32 * k + 128];
    float c[4] = {};
    mma(c, a, b);
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) mma(c, a, b);
    }
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int k = 0; k < 40; ++k) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(c[k % 4]));
    }
    for (int k = 0; k < 4; ++k) out[threadIdx.x + 32 * k] = c[k];
}
