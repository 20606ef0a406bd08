// Shared memory, barriers and parameters, one kernel each. Sizes are powers of two, so that a sum tells its parts.
extern "C" __global__ void static_and_dynamic(float* out) {
    __shared__ float fixed[1024];  // 4096 bytes
    extern __shared__ float open[];
    fixed[threadIdx.x] = out[threadIdx.x];
    open[threadIdx.x] = out[threadIdx.x + 1];
    __syncthreads();
    out[threadIdx.x] = fixed[1023 - threadIdx.x] + open[1023 - threadIdx.x];
}

extern "C" __global__ void three_barriers() {
    asm volatile("bar.sync 0;" ::: "memory");
    asm volatile("bar.sync 1, 64;" ::: "memory");
    asm volatile("bar.sync 2, 64;" ::: "memory");
}

struct alignas(64) TensorMap {
    unsigned long long words[16];
};

extern "C" __global__ void parameters(const __grid_constant__ TensorMap map, char c, double d, int* out, short s) {
    out[threadIdx.x] = static_cast<int>(map.words[threadIdx.x & 15]) + c + static_cast<int>(d) + s;
}

extern "C" __global__ void nothing() {}
