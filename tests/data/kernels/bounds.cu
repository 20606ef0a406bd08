// With `-maxrregcount=40`: `unbound` takes the flag as its cap, `bound` overrides it by its launch bound.
extern "C" __global__ void unbound(float* out) { out[threadIdx.x] *= 2.0f; }
extern "C" __global__ void __launch_bounds__(256, 2) bound(float* out) { out[threadIdx.x] *= 2.0f; }
