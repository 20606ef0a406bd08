// setmaxnreg: `ignored` has no launch bound, so that ptxas ignores it; `heeded` has the one that it needs.
extern "C" __global__ void ignored(float* x) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    x[threadIdx.x] *= 2.0f;
}

extern "C" __global__ void __launch_bounds__(256, 1) heeded(float* x) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    x[threadIdx.x] *= 2.0f;
}
