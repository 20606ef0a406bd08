// How far each approximate function of the card is from the exact value: all 2^32 arguments, the result of float64 rounded to
// float32 as the reference. out[0] holds the largest distance in ulp over normal results (upper half) and an argument that has it,
// out[1] how many results are infinite, NaN, zero or subnormal where the reference is not the same.
#include <stdint.h>

__device__ int64_t ordered(float x) {
    const int64_t bits = __float_as_uint(x);
    return bits >> 31 ? -(bits & 0x7fffffff) : bits;
}

template <typename Approximate, typename Exact>
__device__ void scan(Approximate approximate, Exact exact, unsigned long long* out) {
    unsigned long long worst = 0, strange = 0;
    const uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t bits = blockIdx.x * blockDim.x + threadIdx.x; bits < (1ull << 32); bits += step) {
        const float x = __uint_as_float(uint32_t(bits)), y = approximate(x), z = float(exact(double(x)));
        if (isnan(y) && isnan(z)) continue;
        const bool odd = !(fabsf(y) >= 1.17549435e-38f && fabsf(y) <= 3.4e38f && fabsf(z) >= 1.17549435e-38f && fabsf(z) <= 3.4e38f);
        if (odd) {
            strange += __float_as_uint(y) != __float_as_uint(z);
            continue;
        }
        const int64_t apart = ordered(y) - ordered(z);
        const unsigned long long ulp = apart < 0 ? -apart : apart;
        if ((ulp << 32) > (worst | 0xffffffffull)) worst = ulp << 32 | bits;
    }
    atomicMax(out, worst);
    atomicAdd(out + 1, strange);
}

#define SCAN(NAME, ASM, EXACT)                                                                                   \
    extern "C" __global__ void NAME(unsigned long long* out) {                                                   \
        scan([](float x) { float y; asm(ASM " %0, %1;" : "=f"(y) : "f"(x)); return y; },                         \
             [](double x) { return EXACT; }, out);                                                               \
    }

SCAN(ex2, "ex2.approx.f32", exp2(x))
SCAN(ex2_ftz, "ex2.approx.ftz.f32", exp2(x))
SCAN(lg2, "lg2.approx.f32", log2(x))
SCAN(rcp, "rcp.approx.f32", 1.0 / x)
SCAN(rcp_ftz, "rcp.approx.ftz.f32", 1.0 / x)
SCAN(sqrt_, "sqrt.approx.f32", sqrt(x))
SCAN(rsqrt_, "rsqrt.approx.f32", 1.0 / sqrt(x))
SCAN(rsqrt_ftz, "rsqrt.approx.ftz.f32", 1.0 / sqrt(x))
SCAN(tanh_, "tanh.approx.f32", tanh(x))
