// A `switch` in a loop: its eight cases are reached through a branch table (BRX) alone, one MUFU in each.
extern "C" __global__ void cases(float* x, const int* which, int n) {
    float v = x[threadIdx.x];
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        switch (which[i]) {
#define CASE(k, op) \
    case k: asm volatile(op " %0, %0;" : "+f"(v)); v += which[k]; break;
            CASE(0, "ex2.approx.ftz.f32")
            CASE(1, "lg2.approx.ftz.f32")
            CASE(2, "rsqrt.approx.ftz.f32")
            CASE(3, "rcp.approx.ftz.f32")
            CASE(4, "sin.approx.ftz.f32")
            CASE(5, "cos.approx.ftz.f32")
            CASE(6, "tanh.approx.f32")
            CASE(7, "sqrt.approx.ftz.f32")
            default: v *= 3.0f;
        }
    }
    x[threadIdx.x] = v;
}
