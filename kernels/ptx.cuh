// Thin wrappers over the PTX instructions that the kernels use. Each names its section of the PTX ISA manual
// (https://docs.nvidia.com/cuda/parallel-thread-execution/). All exist from sm_80 on, but for the sections that name
// another architecture. Shared-memory addresses are 32-bit, in the .shared window.
#pragma once
#include <stdint.h>

// "Generic Addressing": a generic pointer into shared memory, as an address in the .shared state space.
__device__ __forceinline__ uint32_t smem_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- asynchronous copies ------------------------------------------------------------------------------------------

// "cp.async": 16 bytes global -> shared, through L2 only (.cg).
__device__ __forceinline__ void cp_async_16(uint32_t dst, const void* src) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}

// "cp.async.commit_group": closes a group over this thread's copies since the last one.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// "cp.async.wait_group": until at most PENDING of this thread's newest groups are still in flight.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// "cp.async.mbarrier.arrive": arrives on the barrier once all earlier cp.async of this thread have landed. With
// .noinc the arrival counts against the barrier's own count, so the barrier expects one per producer thread.
__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// ---- mbarrier -----------------------------------------------------------------------------------------------------

// "mbarrier.init": a phase completes after `count` arrivals.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// "mbarrier.arrive": one arrival with release semantics.
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}

// "mbarrier.test_wait, mbarrier.try_wait": spins until the phase of this parity has completed. try_wait, which may
// suspend the thread, is sm_90's; sm_80 polls.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    do {
#if __CUDA_ARCH__ >= 900
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
#else
        asm volatile(
            "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
#endif
    } while (!done);
}

// ---- tensor memory accelerator: sm_90 on --------------------------------------------------------------------------

// A CUtensorMap, passed by value as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
    char opaque[128];
};

// "mbarrier.arrive" with .expect_tx: one arrival, and `bytes` more that the phase waits for.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }"
                 ::"r"(barrier), "r"(bytes) : "memory");
}

// "fence": the mbarriers that this thread has initialised are there for the asynchronous proxy too.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// "fence.proxy": this thread's ordinary accesses of shared memory come before later ones by TMA or a tensor core.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// "cp.async.bulk.tensor": one box of a 4D tensor map, global -> shared; its bytes count on the barrier.
__device__ __forceinline__ void tma_load_4d(uint32_t dst, const TensorMap* map, int c0, int c1, int c2, int c3,
                                            uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];"
                 ::"r"(dst), "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier) : "memory");
}

// ---- roles of warpgroups: sm_90a ----------------------------------------------------------------------------------

// "setmaxnreg": a warpgroup gives registers back, or waits until it gets more; N a multiple of 8. Wants a cap at entry.
template <int N>
__device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
__device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// "barrier.sync" and "barrier.arrive" on one of the CTA's barriers 1 to 15, for THREADS threads in all.
__device__ __forceinline__ void named_barrier_sync(int number, int threads) {
    asm volatile("barrier.sync.aligned %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(int number, int threads) {
    asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// ---- tcgen05: sm_100a and sm_103a ---------------------------------------------------------------------------------
// Tensor memory: 128 lanes x 512 columns of 32 bits; an address is lane << 16 | column. Warp w reaches lanes
// 32 (w % 4) to 32 (w % 4) + 31 only, and adds that to the address itself.

// "tcgen05.alloc": a warp gets COLUMNS (a power of two from 32 on); their address goes to shared memory.
template <int COLUMNS>
__device__ __forceinline__ void tmem_alloc(uint32_t address_to) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(address_to), "n"(COLUMNS)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}

// "tcgen05.dealloc": by a warp, before the CTA ends.
template <int COLUMNS>
__device__ __forceinline__ void tmem_free(uint32_t tmem) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tmem), "n"(COLUMNS) : "memory");
}

// "tcgen05.fence": the tcgen05 instructions of this thread so far come before the barrier that follows ...
__device__ __forceinline__ void tcgen05_fence_before_sync() {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

// ... and those from here on after the barrier that went before.
__device__ __forceinline__ void tcgen05_fence_after_sync() {
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

// "Matrix descriptor": a 128-byte-swizzled operand in shared memory. K-major: leading 0, stride 1024 (8 rows).
// MN-major: leading is from one 64-element atom to the next, stride 1024 (8 of K).
__device__ __forceinline__ uint64_t tcgen05_operand(uint32_t address, uint32_t leading, uint32_t stride) {
    return (address & 0x3FFFF) >> 4 | static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(stride >> 4) << 32 | 1ull << 46 | 2ull << 61;
}

// "Instruction descriptor" of kind::f16: f16 · f16 -> f32.
constexpr uint32_t tcgen05_shape(int m, int n, bool a_mn_major, bool b_mn_major) {
    return 1u << 4 | static_cast<uint32_t>(a_mn_major) << 15 | static_cast<uint32_t>(b_mn_major) << 16 |
           static_cast<uint32_t>(n / 8) << 17 | static_cast<uint32_t>(m / 16) << 24;
}

// "tcgen05.mma": d[M x N] in tensor memory = a[M x 16] b[16 x N] (+ d), by one thread. Row r is lane r with M = 128,
// lane 32 (r / 16) + r % 16 with M = 64.
__device__ __forceinline__ void tcgen05_mma(uint32_t d, uint64_t a, uint64_t b, uint32_t shape, bool add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }"
                 ::"r"(d), "l"(a), "l"(b), "r"(shape), "r"(static_cast<uint32_t>(add)) : "memory");
}

// The same with a[M x 16] in tensor memory, two halves a column.
__device__ __forceinline__ void tcgen05_mma(uint32_t d, uint32_t a, uint64_t b, uint32_t shape, bool add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p; }"
                 ::"r"(d), "r"(a), "l"(b), "r"(shape), "r"(static_cast<uint32_t>(add)) : "memory");
}

// "tcgen05.commit": one arrival on the barrier when all MMAs of this thread so far are done.
__device__ __forceinline__ void tcgen05_commit(uint32_t barrier) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
                 : "memory");
}

// "tcgen05.wait": the values of this thread's loads are there.
__device__ __forceinline__ void tcgen05_wait_load() { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }

// "tcgen05.ld", 32x32b: 8, 16 or 32 columns of this thread's lane, by a whole warp.
__device__ __forceinline__ void tmem_load(float (&v)[8], uint32_t address) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7])
                 : "r"(address) : "memory");
}

__device__ __forceinline__ void tmem_load(float (&v)[16], uint32_t address) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x16.b32 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7]),
                   "=f"(v[8]), "=f"(v[9]), "=f"(v[10]), "=f"(v[11]), "=f"(v[12]), "=f"(v[13]), "=f"(v[14]), "=f"(v[15])
                 : "r"(address) : "memory");
}

__device__ __forceinline__ void tmem_load(float (&v)[32], uint32_t address) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7]),
                   "=f"(v[8]), "=f"(v[9]), "=f"(v[10]), "=f"(v[11]), "=f"(v[12]), "=f"(v[13]), "=f"(v[14]),
                   "=f"(v[15]), "=f"(v[16]), "=f"(v[17]), "=f"(v[18]), "=f"(v[19]), "=f"(v[20]), "=f"(v[21]),
                   "=f"(v[22]), "=f"(v[23]), "=f"(v[24]), "=f"(v[25]), "=f"(v[26]), "=f"(v[27]), "=f"(v[28]),
                   "=f"(v[29]), "=f"(v[30]), "=f"(v[31])
                 : "r"(address) : "memory");
}

// "tcgen05.st", 32x32b: 32 columns of this thread's lane, by a whole warp.
__device__ __forceinline__ void tmem_store(uint32_t address, const uint32_t (&v)[32]) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x32.b32 [%0], "
                 "{%1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32};"
                 ::"r"(address), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(v[4]), "r"(v[5]), "r"(v[6]), "r"(v[7]),
                   "r"(v[8]), "r"(v[9]), "r"(v[10]), "r"(v[11]), "r"(v[12]), "r"(v[13]), "r"(v[14]), "r"(v[15]),
                   "r"(v[16]), "r"(v[17]), "r"(v[18]), "r"(v[19]), "r"(v[20]), "r"(v[21]), "r"(v[22]), "r"(v[23]),
                   "r"(v[24]), "r"(v[25]), "r"(v[26]), "r"(v[27]), "r"(v[28]), "r"(v[29]), "r"(v[30]), "r"(v[31])
                 : "memory");
}

// "tcgen05.wait": this thread's stores are there.
__device__ __forceinline__ void tcgen05_wait_store() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }

// "tcgen05.ld" with .red (sm_103a): as above, and gives the largest of the columns.
__device__ __forceinline__ float tmem_load_max(float (&v)[32], uint32_t address) {
    float largest;
    asm volatile("tcgen05.ld.red.sync.aligned.32x32b.x32.max.f32 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, [%33];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7]),
                   "=f"(v[8]), "=f"(v[9]), "=f"(v[10]), "=f"(v[11]), "=f"(v[12]), "=f"(v[13]), "=f"(v[14]), "=f"(v[15]),
                   "=f"(v[16]), "=f"(v[17]), "=f"(v[18]), "=f"(v[19]), "=f"(v[20]), "=f"(v[21]), "=f"(v[22]),
                   "=f"(v[23]), "=f"(v[24]), "=f"(v[25]), "=f"(v[26]), "=f"(v[27]), "=f"(v[28]), "=f"(v[29]),
                   "=f"(v[30]), "=f"(v[31]), "=f"(largest)
                 : "r"(address) : "memory");
    return largest;
}

// The same, for the largest alone. There is no form without the values: they get registers all the same.
template <int COLUMNS>
__device__ float tmem_max(uint32_t address);

template <>
__device__ __forceinline__ float tmem_max<8>(uint32_t address) {
    float largest;
    asm volatile("{ .reg .b32 d<8>; tcgen05.ld.red.sync.aligned.32x32b.x8.max.f32 "
                 "{d0, d1, d2, d3, d4, d5, d6, d7}, %0, [%1]; }"
                 : "=f"(largest) : "r"(address) : "memory");
    return largest;
}

template <>
__device__ __forceinline__ float tmem_max<32>(uint32_t address) {
    float largest;
    asm volatile("{ .reg .b32 d<32>; tcgen05.ld.red.sync.aligned.32x32b.x32.max.f32 "
                 "{d0, d1, d2, d3, d4, d5, d6, d7, d8, d9, d10, d11, d12, d13, d14, d15, d16, d17, d18, "
                 "d19, d20, d21, d22, d23, d24, d25, d26, d27, d28, d29, d30, d31}, %0, [%1]; }"
                 : "=f"(largest) : "r"(address) : "memory");
    return largest;
}

// ---- matrix fragments ---------------------------------------------------------------------------------------------

// "ldmatrix": four 8x8 b16 matrices; lanes 8i..8i+7 give the 16-byte rows of matrix i. Lane t gets row t/4, columns
// 2(t%4) and +1 of each.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// "ldmatrix .trans": the same, each matrix transposed on its way.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// "Matrix Fragments for mma.m16n8k16": c[16x8] += a[16x16] * b[16x8], f16 in, f32 accumulate. With g = lane / 4 and
// t = lane % 4: c0, c1 are row g, columns 2t and 2t+1; c2, c3 are row g+8. a0 is row g, k 2t and 2t+1; a1 is row g+8;
// a2, a3 are the same rows at k+8. b0 is column g, k 2t and 2t+1; b1 is k+8.
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- arithmetic ---------------------------------------------------------------------------------------------------

// "ex2": 2^x, approximate, flushing subnormals; ex2(-inf) = +0.
__device__ __forceinline__ float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// "cvt": two floats rounded to nearest into one f16x2, `lo` in the lower half.
__device__ __forceinline__ uint32_t pack_f16x2(float lo, float hi) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

// "mul.f16x2": a b, half by half.
__device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

// "fma.f16x2": a b + c, half by half.
__device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// "add.f16x2": a + b, half by half.
__device__ __forceinline__ uint32_t add_f16x2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

// "ex2.f16x2": 2^x, half by half, approximate.
__device__ __forceinline__ uint32_t ex2_f16x2(uint32_t x) {
    uint32_t y;
    asm("ex2.approx.f16x2 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// "cvt": the two halves of an f16x2 as floats.
__device__ __forceinline__ void unpack_f16x2(float& lo, float& hi, uint32_t x) {
    asm("{ .reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(lo), "=f"(hi) : "r"(x));
}
