// `spins`: a wait on an mbarrier in the loop, whose spinning is placed behind the kernel's end, and one before the loop.
// `sines`: sinf's path for large arguments has a loop of its own within the loop of the kernel.
__device__ __forceinline__ void wait(unsigned barrier, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!done);
}

extern "C" __global__ void spins(float* x, int n) {
    __shared__ unsigned long long barrier;
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
    wait(address, 1);
    float v = x[threadIdx.x];
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        wait(address, i & 1);
#pragma unroll
        for (int k = 0; k < 5; ++k) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(v));
    }
    x[threadIdx.x] = v;
}

extern "C" __global__ void sines(float* x, int n) {
    float v = x[threadIdx.x];
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(v));
        v = sinf(v * 1000.0f);
    }
    x[threadIdx.x] = v;
}
