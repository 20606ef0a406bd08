// The pair for caps and spills: both keep 96 values alive; `fits` may use 255 registers, `spills` is capped at 32.
__device__ __forceinline__ void churn(const float* in, float* out, int n) {
    float v[96];
#pragma unroll
    for (int k = 0; k < 96; ++k) v[k] = in[threadIdx.x * 96 + k];
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int k = 0; k < 96; ++k) v[k] = v[k] * v[(k + 7) % 96] + 2.0f;
    }
#pragma unroll
    for (int k = 0; k < 96; ++k) out[threadIdx.x * 96 + k] = v[k];
}

extern "C" __global__ void __launch_bounds__(64) fits(const float* in, float* out, int n) { churn(in, out, n); }
extern "C" __global__ void __launch_bounds__(1024, 2) spills(const float* in, float* out, int n) { churn(in, out, n); }
