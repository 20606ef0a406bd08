// How far each approximate function of the card is from the exact value, over all 2^32 arguments: the reference is float64's
// result as float32. With FTZ arguments and results that are subnormal count as zeros. out[0] is the largest distance in ulp of
// results that are normal in both, with an argument that has it in the lower half; out[1] the largest difference, absolute or as
// a part of the value, whichever is less, as a float64; out[2] how many results are infinite, NaN or zero in one of them alone.
#include <stdint.h>

constexpr float TINY = 1.17549435e-38f;

__device__ int64_t ordered(float x) {
    const int64_t bits = __float_as_uint(x);
    return bits >> 31 ? -(bits & 0x7fffffff) : bits;
}

template <bool FTZ>
__device__ float flushed(float x) {
    return FTZ && fabsf(x) < TINY ? copysignf(0.0f, x) : x;
}

template <bool FTZ, typename Approximate, typename Exact>
__device__ void scan(Approximate approximate, Exact exact, unsigned long long* out) {
    unsigned long long worst = 0, most = 0, strange = 0;
    const uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t bits = blockIdx.x * blockDim.x + threadIdx.x; bits < (1ull << 32); bits += step) {
        const float x = __uint_as_float(uint32_t(bits));
        const double wide = exact(double(flushed<FTZ>(x)));
        const float y = approximate(x), z = flushed<FTZ>(float(wide));
        if (isnan(y) || isnan(z) || isinf(y) || isinf(z) || y == 0 || z == 0) {
            strange += !(isnan(y) && isnan(z)) && y != z;
            continue;
        }
        const double apart = fabs(y - wide), part = apart / fabs(wide);
        const unsigned long long difference = __double_as_longlong(apart < part ? apart : part);
        most = difference > most ? difference : most;
        if (fabsf(y) < TINY || fabsf(z) < TINY) continue;
        const int64_t steps = ordered(y) - ordered(z);
        const unsigned long long ulp = steps < 0 ? -steps : steps;
        if ((ulp << 32) > (worst | 0xffffffffull)) worst = ulp << 32 | bits;
    }
    atomicMax(out, worst);
    atomicMax(out + 1, most);
    atomicAdd(out + 2, strange);
}

#define SCAN(NAME, ASM, FTZ, EXACT)                                                                              \
    extern "C" __global__ void NAME(unsigned long long* out) {                                                   \
        scan<FTZ>([](float x) { float y; asm(ASM " %0, %1;" : "=f"(y) : "f"(x)); return y; },                    \
                  [](double x) { return EXACT; }, out);                                                          \
    }

SCAN(ex2, "ex2.approx.f32", false, exp2(x))
SCAN(ex2_ftz, "ex2.approx.ftz.f32", true, exp2(x))
SCAN(lg2, "lg2.approx.f32", false, log2(x))
SCAN(lg2_ftz, "lg2.approx.ftz.f32", true, log2(x))
SCAN(rcp, "rcp.approx.f32", false, 1.0 / x)
SCAN(rcp_ftz, "rcp.approx.ftz.f32", true, 1.0 / x)
SCAN(sqrt_, "sqrt.approx.f32", false, sqrt(x))
SCAN(sqrt_ftz, "sqrt.approx.ftz.f32", true, sqrt(x))
SCAN(rsqrt_, "rsqrt.approx.f32", false, 1.0 / sqrt(x))
SCAN(rsqrt_ftz, "rsqrt.approx.ftz.f32", true, 1.0 / sqrt(x))
SCAN(tanh_, "tanh.approx.f32", false, tanh(x))
