// s1: softmax of each row, one warp a row, which is read three times.
#include <cuda_fp16.h>

__device__ float warp_max(float v) {
    for (int lane = 16; lane; lane /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, lane));
    return v;
}

__device__ float warp_sum(float v) {
    for (int lane = 16; lane; lane /= 2) v += __shfl_xor_sync(~0u, v, lane);
    return v;
}

extern "C" __global__ void softmax(const __half* X, __half* Y, int C) {
    X += size_t(blockIdx.x) * C, Y += size_t(blockIdx.x) * C;
    float top = -INFINITY, sum = 0;
    for (int c = threadIdx.x; c < C; c += 32) top = fmaxf(top, __half2float(X[c]));
    top = warp_max(top);
    for (int c = threadIdx.x; c < C; c += 32) sum += __expf(__half2float(X[c]) - top);
    sum = warp_sum(sum);
    for (int c = threadIdx.x; c < C; c += 32) Y[c] = __float2half(__expf(__half2float(X[c]) - top) / sum);
}
