/* The runtime's memory: device, pinned and registered. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cuda_runtime_api.h>
#include "drycuda.h"

static size_t rounded(size_t size, size_t to) { return (size + to - 1) / to * to; }

static cudaError_t allocate(void **pointer, size_t size, int host) {
    size_t grain = host ? 4096 : DRY_GRAIN, whole = rounded(size, grain);
    *pointer = NULL;
    if (!size) return cudaSuccess;
    dry_lock();
    int fits = host || dry_charge(whole);
    void *start = fits ? dry_reserve(whole, grain) : NULL;
    if (start)
        dry_add_region((DryRegion){(uintptr_t)start, whole, host ? 0 : whole,
                                   host ? DRY_HOST : DRY_DEVICE});
    else if (fits && !host) dry_discharge(whole);
    dry_unlock();
    dry_log(3, "%s of %zu bytes: %p", host ? "pinned memory" : "device memory", size, start);
    if (!start) return dry_fail(cudaErrorMemoryAllocation);
    *pointer = start;
    return cudaSuccess;
}

static cudaError_t release(void *pointer) {
    if (!pointer) return cudaSuccess;
    dry_lock();
    DryRegion *region = dry_region_of(pointer);
    int ours = region && region->start == (uintptr_t)pointer &&
               (region->kind == DRY_DEVICE || region->kind == DRY_HOST);
    if (ours) {
        dry_discharge(region->charged);
        munmap(pointer, region->size);
        dry_drop_region(region);
    }
    dry_unlock();
    return ours ? cudaSuccess : dry_fail(cudaErrorInvalidValue);
}

cudaError_t cudaMalloc(void **p, size_t n) { return allocate(p, n, 0); }
cudaError_t cudaFree(void *p) { return release(p); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned int flags) { return allocate(p, n, 1); }
cudaError_t cudaMallocHost(void **p, size_t n) { return allocate(p, n, 1); }
cudaError_t cudaFreeHost(void *p) { return release(p); }

cudaError_t cudaHostRegister(void *p, size_t n, unsigned int flags) {
    dry_lock();
    int known = dry_region_of(p) != NULL;
    if (!known) dry_add_region((DryRegion){(uintptr_t)p, n, 0, DRY_REGISTERED});
    dry_unlock();
    return known ? dry_fail(cudaErrorHostMemoryAlreadyRegistered) : cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p) {
    dry_lock();
    DryRegion *region = dry_region_of(p);
    int ours = region && region->kind == DRY_REGISTERED && region->start == (uintptr_t)p;
    if (ours) dry_drop_region(region);
    dry_unlock();
    return ours ? cudaSuccess : dry_fail(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags) {
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    dry_lock();
    *total = dry_settings.total_bytes;
    *available = *total - dry_settings.context_bytes - dry_used_bytes();
    dry_unlock();
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *pointer) {
    memset(a, 0, sizeof *a);
    dry_lock();
    DryRegion *region = dry_region_of(pointer);
    int host = region && (region->kind == DRY_HOST || region->kind == DRY_REGISTERED);
    a->type = !region ? cudaMemoryTypeUnregistered
              : host  ? cudaMemoryTypeHost
                      : cudaMemoryTypeDevice;
    a->device = region ? 0 : -2;
    if (region) a->devicePointer = (void *)pointer;
    if (host) a->hostPointer = (void *)pointer;
    dry_unlock();
    return cudaSuccess;
}

int dry_is_device(const void *pointer) {
    dry_lock();
    DryRegion *region = dry_region_of(pointer);
    int device = region && (region->kind == DRY_DEVICE || region->kind == DRY_VIRTUAL);
    dry_unlock();
    return device;
}

int dry_runs_past_end(const void *pointer, size_t size) {
    dry_lock();
    DryRegion *region = dry_region_of(pointer);
    int past = region && region->kind != DRY_REGISTERED &&
               (uintptr_t)pointer + size > region->start + region->size;
    dry_unlock();
    return past;
}
