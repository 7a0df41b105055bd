/* The driver's virtual memory, which expandable segments are made of: a handle is a charged size,
 * counted by its maps, and gone with the last of them. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <cuda.h>
#include "drycuda.h"

typedef struct {
    size_t size;
    int num_users;
    CUmemAllocationProp properties;
} Handle;
typedef struct {
    uintptr_t start;
    Handle *handle;
} Map;
static Map *maps;
static size_t num_maps, room;

CUresult cuMemAddressReserve(CUdeviceptr *p, size_t size, size_t align, CUdeviceptr at,
                             unsigned long long flags) {
    void *start = dry_reserve(size, align ? align : DRY_GRAIN);
    if (!start) return CUDA_ERROR_OUT_OF_MEMORY;
    dry_lock();
    dry_add_region((DryRegion){(uintptr_t)start, size, 0, DRY_VIRTUAL});
    dry_unlock();
    *p = (CUdeviceptr)start;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr p, size_t size) {
    dry_lock();
    DryRegion *region = dry_region_of((void *)p);
    int ours = region && region->kind == DRY_VIRTUAL && region->start == p && region->size == size;
    if (ours) {
        dry_drop_region(region);
        munmap((void *)p, size);
    }
    dry_unlock();
    return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t size,
                     const CUmemAllocationProp *properties, unsigned long long flags) {
    if (!size || size % DRY_GRAIN) return CUDA_ERROR_INVALID_VALUE;
    int host = properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    if (host) return dry_unmodelled("cuMemCreate of host memory", CUDA_ERROR_NOT_SUPPORTED);
    dry_lock();
    int fits = dry_charge(size);
    dry_unlock();
    Handle *made = fits ? calloc(1, sizeof *made) : NULL;
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (Handle){size, 1, *properties};
    *h = (CUmemGenericAllocationHandle)made;
    return CUDA_SUCCESS;
}

static void let_go(Handle *handle) {
    if (--handle->num_users) return;
    dry_discharge(handle->size);
    free(handle);
}

CUresult cuMemMap(CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle h,
                  unsigned long long flags) {
    Handle *handle = (Handle *)h;
    if (offset || size != handle->size) return CUDA_ERROR_INVALID_VALUE;
    dry_lock();
    if (num_maps == room) {
        room = room ? 2 * room : 256;
        Map *larger = realloc(maps, room * sizeof *maps);
        if (!larger) {
            perror("dry_cuda");
            abort();
        }
        maps = larger;
    }
    maps[num_maps++] = (Map){(uintptr_t)p, handle};
    handle->num_users++;
    dry_unlock();
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr p, size_t size) {
    dry_lock();
    for (size_t i = 0; i < num_maps;)
        if (maps[i].start >= p && maps[i].start < p + size) {
            let_go(maps[i].handle);
            maps[i] = maps[--num_maps];
        } else i++;
    madvise((void *)p, size, MADV_DONTNEED);
    dry_unlock();
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle h) {
    dry_lock();
    let_go((Handle *)h);
    dry_unlock();
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr p, size_t size, const CUmemAccessDesc *d, size_t n) {
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *n, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option) {
    *n = DRY_GRAIN;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                CUmemGenericAllocationHandle h) {
    *properties = ((Handle *)h)->properties;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr p) {
    dry_lock();
    DryRegion *region = dry_region_of((void *)p);
    if (region && base) *base = region->start;
    if (region && size) *size = region->size;
    dry_unlock();
    return region ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
