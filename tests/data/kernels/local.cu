// A volatile array lives in local memory: 64 words of stack and no spill. `inside` stores to it and loads from it once
// a step of its loop; `outside` stores twice before its loop and loads once behind it.
extern "C" __global__ void inside(const int* in, int* out, int n) {
    volatile int table[64];
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        table[in[i] & 63] = i;
        out[i] = table[in[n] & 63];
    }
}

extern "C" __global__ void outside(const int* in, int* out, int n) {
    volatile int table[64];
    table[in[0] & 63] = 1;
    table[in[1] & 63] = 2;
    int sum = 0;
#pragma unroll 1
    for (int i = 0; i < n; ++i) sum += in[i];
    out[threadIdx.x] = sum + table[in[n] & 63];
}
