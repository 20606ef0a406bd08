// NVIDIA's own occupancy calculator as a filter: a line of numbers in, CTAs per SM out (−1 where it refuses).
// In: cc major, cc minor, threads per SM, smem per SM, smem per CTA (opt-in), reserved smem, threads, registers, smem, barriers.
#include <cstddef>
#include <cstdio>

#include "cuda_occupancy.h"

int main() {
    int major, minor, threads_per_sm, smem_per_sm, smem_optin, reserved, threads, registers, smem, barriers;
    while (std::scanf("%d %d %d %d %d %d %d %d %d %d", &major, &minor, &threads_per_sm, &smem_per_sm, &smem_optin,
                      &reserved, &threads, &registers, &smem, &barriers) == 10) {
        cudaOccDeviceProp device;
        device.computeMajor = major;
        device.computeMinor = minor;
        device.maxThreadsPerBlock = 1024;
        device.maxThreadsPerMultiprocessor = threads_per_sm;
        device.regsPerBlock = 65536;
        device.regsPerMultiprocessor = 65536;
        device.warpSize = 32;
        device.sharedMemPerBlock = 48 * 1024;
        device.sharedMemPerMultiprocessor = smem_per_sm;
        device.numSms = 1;
        device.sharedMemPerBlockOptin = smem_optin;
        device.reservedSharedMemPerBlock = reserved;

        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024;
        kernel.numRegs = registers;
        kernel.sharedSizeBytes = 0;
        kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = smem_optin;
        kernel.numBlockBarriers = barriers;

        cudaOccDeviceState state;
        cudaOccResult result;
        cudaOccError status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, smem);
        std::printf("%d\n", status == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -1);
    }
}
