// One marker instruction a loop depth: POPC stands at 0, FLO at 1, MUFU (two of them) at 2, BREV at 3.
__device__ __forceinline__ unsigned popc(unsigned x) { asm volatile("popc.b32 %0, %0;" : "+r"(x)); return x; }
__device__ __forceinline__ unsigned bfind(unsigned x) { asm volatile("bfind.u32 %0, %0;" : "+r"(x)); return x; }
__device__ __forceinline__ float ex2(float x) { asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x)); return x; }
__device__ __forceinline__ unsigned brev(unsigned x) { asm volatile("brev.b32 %0, %0;" : "+r"(x)); return x; }

extern "C" __global__ void nested(unsigned* x, float* y, int n) {
    unsigned a = popc(x[threadIdx.x]);
    float b = y[threadIdx.x];
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        a = bfind(a);
#pragma unroll 1
        for (int j = 0; j < n; ++j) {
            b = ex2(ex2(b));
#pragma unroll 1
            for (int k = 0; k < n; ++k) a = brev(a + k);
        }
    }
    x[threadIdx.x] = a;
    y[threadIdx.x] = b;
}
