// A stand-in for libcudart and the part of libcuda that these programs use: everything that touches the device is handed to the
// functions that the emulator's side sets (host.py). Built as a shared library, against which an unmodified host program links.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

extern "C" {

struct Host {
    uint64_t (*allocate)(uint64_t bytes);
    int (*release)(uint64_t address);
    int (*copy)(uint64_t to, uint64_t from, uint64_t bytes, int kind);
    int (*fill)(uint64_t to, int value, uint64_t bytes);
    int (*launch)(const char* kernel, const unsigned* shape, uint64_t smem, void** args);  // grid, block, cluster
    int (*encode)(void* map, int type, unsigned rank, uint64_t address, const uint64_t* sizes, const uint64_t* strides,
                  const unsigned* box, const unsigned* steps, int interleave, int swizzle);
    int major, minor, processors;
};
}

namespace {

Host host;
cudaError_t last = cudaSuccess;
std::map<const void*, std::string>& kernels() {
    static std::map<const void*, std::string> all;
    return all;
}
struct Call {
    dim3 grid, block;
    size_t smem;
};
std::vector<Call> calls;

cudaError_t told(int failed, cudaError_t what = cudaErrorLaunchFailure) { return failed ? last = what : cudaSuccess; }

cudaError_t launch(const void* kernel, dim3 grid, dim3 block, dim3 cluster, size_t smem, void** args) {
    auto found = kernels().find(kernel);
    if (found == kernels().end()) return told(1, cudaErrorInvalidDeviceFunction);
    const unsigned shape[] = {grid.x, grid.y, grid.z, block.x, block.y, block.z, cluster.x, cluster.y, cluster.z};
    return told(host.launch(found->second.c_str(), shape, smem, args));
}

[[noreturn]] void unknown(const char* what) {
    fprintf(stderr, "the stand-in for libcudart does not know %s\n", what);
    exit(99);
}

}  // namespace

extern "C" {

void stand_in(const Host* given) { host = *given; }

// ---- what nvcc's own code calls ------------------------------------------------------------------------------------

void** __cudaRegisterFatBinary(void* binary) { return static_cast<void**>(binary); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
    kernels()[function] = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t smem, cudaStream_t) {
    calls.push_back({grid, block, smem});
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* smem, void* stream) {
    *grid = calls.back().grid, *block = calls.back().block, *smem = calls.back().smem;
    *static_cast<cudaStream_t*>(stream) = nullptr;
    calls.pop_back();
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args, size_t smem, cudaStream_t) {
    return launch(reinterpret_cast<const void*>(kernel), grid, block, dim3(1, 1, 1), smem, args);
}
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** args, size_t smem, cudaStream_t s) {
    return __cudaLaunchKernel(kernel, grid, block, args, smem, s);
}

// ---- launches ------------------------------------------------------------------------------------------------------

cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** args, size_t smem, cudaStream_t) {
    return launch(kernel, grid, block, dim3(1, 1, 1), smem, args);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** args) {
    dim3 cluster(1, 1, 1);
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        const auto& attribute = config->attrs[i];
        if (attribute.id == cudaLaunchAttributeClusterDimension)
            cluster = dim3(attribute.val.clusterDim.x, attribute.val.clusterDim.y, attribute.val.clusterDim.z);
    }
    return launch(kernel, config->gridDim, config->blockDim, cluster, config->dynamicSmemBytes, args);
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->ptxVersion = attributes->binaryVersion = 10 * host.major + host.minor;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
    *blocks = 1;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
    *blocks = 1;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
    *clusters = host.processors;
    return cudaSuccess;
}

// ---- memory --------------------------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** address, size_t bytes) {
    *address = reinterpret_cast<void*>(host.allocate(bytes));
    return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t) { return cudaMalloc(address, bytes); }
cudaError_t cudaFree(void* address) { return told(host.release(reinterpret_cast<uint64_t>(address)), cudaErrorInvalidValue); }
cudaError_t cudaFreeAsync(void* address, cudaStream_t) { return cudaFree(address); }
cudaError_t cudaMallocHost(void** address, size_t bytes) {
    *address = malloc(bytes);
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* address) {
    free(address);
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return told(host.copy(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), bytes, kind), cudaErrorInvalidValue);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
    return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    return told(host.fill(reinterpret_cast<uint64_t>(to), value, bytes), cudaErrorInvalidValue);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) { return cudaMemset(to, value, bytes); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    *free = *total = size_t(1) << 32;
    return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { unknown("cudaMemcpyToSymbol"); }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    memset(attributes, 0, sizeof *attributes);
    attributes->type = cudaMemoryTypeDevice;
    attributes->devicePointer = const_cast<void*>(address);
    return cudaSuccess;
}

// ---- the device ----------------------------------------------------------------------------------------------------

cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "emulated sm_%d%d", host.major, host.minor);
    properties->major = host.major, properties->minor = host.minor;
    properties->multiProcessorCount = host.processors;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = 227 << 10;
    properties->sharedMemPerMultiprocessor = 228 << 10;
    properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxGridSize[0] = 0x7fffffff, properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024, properties->maxThreadsDim[2] = 64;
    properties->totalGlobalMem = size_t(1) << 32;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    switch (attribute) {
        case cudaDevAttrMultiProcessorCount: *value = host.processors; break;
        case cudaDevAttrComputeCapabilityMajor: *value = host.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = host.minor; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 << 10; break;
        case cudaDevAttrMaxGridDimX: *value = 0x7fffffff; break;
        case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
        case cudaDevAttrWarpSize: *value = 32; break;
        case cudaDevAttrClusterLaunch: *value = 1; break;
        default: *value = 0;
    }
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return last; }
cudaError_t cudaDriverGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaGetLastError() {
    const cudaError_t error = last;
    last = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError() { return last; }
const char* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "the emulator found an error"; }
const char* cudaGetErrorName(cudaError_t error) { return error == cudaSuccess ? "cudaSuccess" : "cudaErrorEmulated"; }

// ---- streams and events: everything is over when it was called -----------------------------------------------------

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    *stream = nullptr;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return last; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
    *event = reinterpret_cast<cudaEvent_t>(new double(0));
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete reinterpret_cast<double*>(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    *reinterpret_cast<double*>(event) = std::chrono::duration<double, std::milli>(now).count();
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return last; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t first, cudaEvent_t second) {
    *ms = float(*reinterpret_cast<double*>(second) - *reinterpret_cast<double*>(first));
    return cudaSuccess;
}

// ---- the driver ----------------------------------------------------------------------------------------------------

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* sizes,
                                const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
    const int failed = host.encode(map, type, rank, reinterpret_cast<uint64_t>(address), reinterpret_cast<const uint64_t*>(sizes),
                                   reinterpret_cast<const uint64_t*>(strides), box, steps, interleave, swizzle);
    return failed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
    const bool known = !strcmp(name, "cuTensorMapEncodeTiled");
    *function = known ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
    if (result) *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
}
