// A kernel of known work: `rounds` rounds of arithmetic on registers, one store a thread at the end. The time of a launch is
// proportional to `rounds` but for some microseconds of starting and ending it. Launched as one wave: two CTAs an SM.
constexpr int CHAINS = 8;  // independent chains a thread, so that latency is hidden

extern "C" __global__ void __launch_bounds__(256, 2) known_work(float* out, int rounds) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    float v[CHAINS];
#pragma unroll
    for (int k = 0; k < CHAINS; ++k) v[k] = 0.1f + 0.0007f * ((i * CHAINS + k) % 1021);
#pragma unroll 1
    for (int r = 0; r < rounds; ++r)
#pragma unroll
        for (int k = 0; k < CHAINS; ++k) v[k] = fmaf(-1.9f * v[k], v[k], 1.0f);  // chaotic in [-1, 1]: the bits never rest
    float sum = 0;
#pragma unroll
    for (int k = 0; k < CHAINS; ++k) sum += v[k];
    out[i] = sum;
}
