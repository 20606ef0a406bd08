// The row maximum by tcgen05.ld.red, the 32 loaded values thrown away: 32 registers more than 512 threads have left beside the
// accumulators, so it spills. With -DPLAIN the same by four plain loads of 8, which fits.
__device__ __forceinline__ float largest_of_32(unsigned column) {
    float m;
    asm volatile("{ .reg .b32 d<32>; tcgen05.ld.red.sync.aligned.32x32b.x32.max.f32 "
                 "{d0, d1, d2, d3, d4, d5, d6, d7, d8, d9, d10, d11, d12, d13, d14, d15, d16, d17, d18, d19, d20, d21, d22, d23,"
                 " d24, d25, d26, d27, d28, d29, d30, d31}, %0, [%1]; }" : "=f"(m) : "r"(column));
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
    return m;
}

extern "C" __global__ void __launch_bounds__(512, 1) ldred_spill(unsigned column, const float* in, float* out, int n) {
    float acc[96];
#pragma unroll
    for (int k = 0; k < 96; ++k) acc[k] = in[threadIdx.x * 96 + k];
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        float m = -1e30f;
#ifdef PLAIN
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            float v[8];
            asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                         : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7])
                         : "r"(column + 8 * part));
            asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
            for (int k = 0; k < 8; ++k) m = fmaxf(m, v[k]);
        }
#else
        m = largest_of_32(column);
#endif
#pragma unroll
        for (int k = 0; k < 96; ++k) acc[k] = acc[k] * m + in[i];
    }
#pragma unroll
    for (int k = 0; k < 96; ++k) out[threadIdx.x * 96 + k] = acc[k];
}
