/* The driver: contexts, modules and launches, as PyTorch, NVRTC and Triton use them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include "drycuda.h"

static char context[64], module[64];

CUresult cuInit(unsigned int flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice *d, int ordinal) {
    *d = 0;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetCount(int *n) {
    *n = 1;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char *name, int length, CUdevice d) {
    snprintf(name, (size_t)length, "%s", dry_settings.name);
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t *n, CUdevice d) {
    *n = dry_settings.total_bytes;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid *u, CUdevice d) {
    memcpy(u->bytes, "schedsim-dry-gpu", 16);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice d) {
    *value = dry_attribute((int)which);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned int *flags, int *active) {
    *flags = 0, *active = 1;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) {
    *c = (CUcontext)context;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice d) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *c) {
    *c = (CUcontext)context;
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext c) { return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext c) { return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext *c) {
    if (c) *c = (CUcontext)context;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *d) {
    *d = 0;
    return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream s, CUcontext *c) {
    *c = (CUcontext)context;
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult e, const char **text) {
    *text = e == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
            : e == CUDA_ERROR_NOT_SUPPORTED ? dry_last_unmodelled()
            : e                             ? "unknown error"
                                            : "no error";
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult e, const char **text) { return cuGetErrorString(e, text); }

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute which, CUdeviceptr p) {
    switch (which) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = dry_is_device((void *)p) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = (CUcontext)context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = p;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = 0;
        return CUDA_SUCCESS;
    default: break;
    }
    return dry_unmodelled("cuPointerGetAttribute of another kind", CUDA_ERROR_NOT_SUPPORTED);
}
CUresult cuMemsetD32Async(CUdeviceptr p, unsigned int value, size_t n, CUstream s) {
    if (dry_runs_past_end((void *)p, 4 * n)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (4 * n <= dry_settings.copy_bytes)
        for (size_t i = 0; i < n; i++) ((unsigned *)p)[i] = value;
    dry_queue(s);
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream s, void **arguments,
                        void **extra) {
    dry_queue(s);
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **arguments, void **extra) {
    dry_queue(c->hStream);
    return CUDA_SUCCESS;
}
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                   unsigned by, unsigned bz, unsigned shared, CUstream s,
                                   void **arguments) {
    dry_queue(s);
    return CUDA_SUCCESS;
}
CUresult cuModuleLoad(CUmodule *m, const char *name) {
    *m = (CUmodule)module;
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule *m, const void *image) {
    *m = (CUmodule)module;
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadDataEx(CUmodule *m, const void *image, unsigned n, CUjit_option *o, void **v) {
    *m = (CUmodule)module;
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule m) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) {
    *f = (CUfunction)module;
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction f) {
    *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
             : which == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute which, int value) {
    return CUDA_SUCCESS;
}
CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache cache) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, CUfunction f, int num_threads,
                                                     size_t shared) {
    *n = dry_blocks_per_sm(num_threads, shared);
    return CUDA_SUCCESS;
}
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
    *value = limit == CU_LIMIT_PRINTF_FIFO_SIZE ? DRY_MIB : 0;
    return CUDA_SUCCESS;
}
#if CUDART_VERSION >= 13000
/* The driver's log has no entries. */
CUresult cuLogsRegisterCallback(CUlogsCallback f, void *data, CUlogsCallbackHandle *handle) {
    if (handle) *handle = (CUlogsCallbackHandle)module;
    return CUDA_SUCCESS;
}
CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle) { return CUDA_SUCCESS; }
#endif
/* Private tables. NVRTC asks for one before it compiles, goes without it where the call fails, and
 * crashes where the call is missing. A library with a CUDA runtime of its own (NCCL) fails. */
CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    dry_estimated("cuGetExportTable is not modelled: NVRTC goes without it, NCCL fails");
    *table = NULL;
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* The driver's functions by name. cuda.h calls the newer forms of one name_v2, name_v3. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found) {
    static const char *const suffixes[] = {"", "_v2", "_v3"};
    *function = NULL;
    for (int i = 0; i < 3 && !*function; i++) {
        char text[128];
        snprintf(text, sizeof text, "%s%s", name, suffixes[i]);
        *function = dlsym(RTLD_DEFAULT, text);
    }
    if (!*function) {
        dry_log(1, "the driver's %s is asked for, and not modelled", name);
        *function = dry_unmodelled_driver_call(name);
    }
    if (found) *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
#if CUDART_VERSION < 13000
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *found) {
    return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, found);
}
#endif
CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *found) {
    cudaGetDriverEntryPointByVersion(name, function, (unsigned)version, flags, NULL);
    if (found) *found = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
}
