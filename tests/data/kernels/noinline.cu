// Functions that are not inlined. `caller` calls one in its loop that has a loop with two MUFU of its own; `borrower`,
// which is capped at 32 registers, calls one that spills, `churn`.
__device__ __noinline__ float callee(float x, int n) {
#pragma unroll 1
    for (int i = 0; i < n; ++i) asm volatile("ex2.approx.ftz.f32 %0, %0;\n\tex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}

extern "C" __global__ void caller(float* x, int n) {
    float v = x[threadIdx.x];
#pragma unroll 1
    for (int i = 0; i < n; ++i) v = callee(v, i) + 1.0f;
    x[threadIdx.x] = v;
}

__device__ __noinline__ void churn(const float* in, float* out, int n) {
    float v[64];
#pragma unroll
    for (int k = 0; k < 64; ++k) v[k] = in[threadIdx.x * 64 + k];
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int k = 0; k < 64; ++k) v[k] = v[k] * v[(k + 7) % 64] + 2.0f;
    }
#pragma unroll
    for (int k = 0; k < 64; ++k) out[threadIdx.x * 64 + k] = v[k];
}

extern "C" __global__ void __launch_bounds__(1024, 2) borrower(const float* in, float* out, int n) {
    churn(in, out, n);
    churn(out, out, n);
}
