/* Kernels: registered by the libraries, queued when launched, never run. */
#include <string.h>
#include <cuda_runtime_api.h>
#include "drycuda.h"

void **__cudaRegisterFatBinary(void *binary) {
    static void *handle;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int limit, void *a, void *b, void *c, void *d, int *e) {}
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int extern_,
                       size_t size, int constant, int global) {}

/* kernel<<<grid, block, shared, stream>>>() pushes its configuration, then asks for it again. */
typedef struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} Configuration;
#define DEEPEST 16
static __thread Configuration pushed[DEEPEST];
static __thread int num_pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                     struct CUstream_st *stream) {
    if (num_pushed == DEEPEST) return 1;
    pushed[num_pushed++] = (Configuration){grid, block, shared, stream};
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    if (!num_pushed) return dry_fail(cudaErrorInvalidConfiguration);
    Configuration c = pushed[--num_pushed];
    *grid = c.grid, *block = c.block, *shared = c.shared;
    *(cudaStream_t *)stream = c.stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *entry) {
    *kernel = (cudaKernel_t)entry;
    return cudaSuccess;
}

/* What a device would refuse is refused here too. */
static cudaError_t launch(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    unsigned long long threads = (unsigned long long)block.x * block.y * block.z;
    if (!grid.x || !grid.y || !grid.z || !threads || threads > 1024 || block.z > 64 ||
        grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535 ||
        shared > dry_settings.shared_per_block)
        return dry_fail(cudaErrorInvalidConfiguration);
    dry_queue(stream);
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void **arguments,
                               size_t shared, cudaStream_t s) {
    return launch(grid, block, shared, s);
}
cudaError_t cudaLaunchKernel(const void *k, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t s) {
    return launch(grid, block, shared, s);
}
cudaError_t cudaLaunchCooperativeKernel(const void *k, dim3 grid, dim3 block, void **arguments,
                                        size_t shared, cudaStream_t s) {
    return launch(grid, block, shared, s);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *k, void **arguments) {
    return launch(c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *function) {
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024, a->numRegs = 32;
    a->ptxVersion = a->binaryVersion = dry_settings.major * 10 + dry_settings.minor;
    a->maxDynamicSharedSizeBytes = 49152;
    a->preferredShmemCarveout = -1;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute which, int value) {
    return cudaSuccess;
}
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t k, enum cudaFuncAttribute which, int value,
                                            int device) {
    return cudaSuccess;
}

/* Of kernels with 32 registers a thread, what fits beside each other. */
int dry_blocks_per_sm(int num_threads, size_t shared_bytes) {
    int warps = (num_threads + 31) / 32;
    if (warps < 1) return 0;
    int most = dry_settings.blocks_per_sm;
    int by_threads = dry_settings.threads_per_sm / (warps * 32);
    int by_shared = (int)(dry_settings.shared_per_sm / (shared_bytes + 1024));
    int by_registers = 65536 / (32 * warps * 32);
    if (by_threads < most) most = by_threads;
    if (by_shared < most) most = by_shared;
    return by_registers < most ? by_registers : most;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int num_threads,
                                                          size_t shared) {
    *n = dry_blocks_per_sm(num_threads, shared);
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f,
                                                                   int num_threads, size_t shared,
                                                                   unsigned int flags) {
    *n = dry_blocks_per_sm(num_threads, shared);
    return cudaSuccess;
}
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }
