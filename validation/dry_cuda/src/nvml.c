/* NVML, as far as PyTorch asks: one device, no processes, no links. A library of its own. */
#include <stdio.h>

#define NOT_SUPPORTED 3
#define INVALID 2

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int error) { return error ? "not supported" : "success"; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 1;
    return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {
    *handle = (void *)1;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)1;
    return index ? INVALID : 0;
}
int nvmlDeviceGetHandleByUUID(const char *id, void **handle) {
    *handle = (void *)1;
    return 0;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned length) {
    snprintf(text, length, "GPU-73636865-6473-696d-2d64-72792d677075");
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, void *to) {
    *count = 0;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, void *to) {
    *count = 0;
    return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, int *type) {
    return NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, void *to) {
    return NOT_SUPPORTED;
}
int nvmlDeviceGetGpuFabricInfoV(void *handle, void *to) { return NOT_SUPPORTED; }
int nvmlDeviceGetP2PStatus(void *a, void *b, int kind, int *status) {
    *status = 1;
    return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13020;
    return 0;
}
