/* Address space that stands for memory of the device and pinned memory of the host. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "drycuda.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static DryRegion *regions; /* sorted by start, disjoint */
static size_t num_regions, room;
static size_t used, peak_used;

void dry_lock(void) { pthread_mutex_lock(&lock); }
void dry_unlock(void) { pthread_mutex_unlock(&lock); }

/* Each reservation lies above the one before. Among free blocks of one size PyTorch's allocator takes
   the lowest, so that what is reserved would depend on where the kernel has room. */
static void *next_address(size_t size) {
    static const uintptr_t first = 0x100000000000, end = 0x500000000000, step = 0x200000;
    static uintptr_t next = first;
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    uintptr_t whole = (size + step - 1) & ~(step - 1);
    pthread_mutex_lock(&turn);
    if (next + whole > end) next = first; /* the kernel passes over what is still in use */
    uintptr_t chosen = next;
    next += whole;
    pthread_mutex_unlock(&turn);
    return (void *)chosen;
}

/* Readable and writable, committed page by page where it is touched. */
void *dry_reserve(size_t size, size_t align) {
    size_t whole = size + align;
    char *raw = mmap(next_address(whole), whole, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    char *start = (char *)(((uintptr_t)raw + align - 1) / align * align);
    if (start > raw) munmap(raw, (size_t)(start - raw));
    size_t tail = (size_t)(raw + whole - (start + size));
    if (tail) munmap(start + size, tail);
    madvise(start, size, MADV_NOHUGEPAGE); /* a touch commits 4 KiB, not 2 MiB */
    return start;
}

/* The first region that ends after `address`. */
static size_t place_of(uintptr_t address) {
    size_t low = 0, high = num_regions;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (regions[middle].start + regions[middle].size <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

DryRegion *dry_region_of(const void *pointer) {
    size_t i = place_of((uintptr_t)pointer);
    return i < num_regions && regions[i].start <= (uintptr_t)pointer ? &regions[i] : NULL;
}

void dry_add_region(DryRegion region) {
    if (num_regions == room) {
        room = room ? 2 * room : 256;
        DryRegion *larger = realloc(regions, room * sizeof *regions);
        if (!larger) {
            perror("dry_cuda");
            abort();
        }
        regions = larger;
    }
    size_t i = place_of(region.start);
    memmove(regions + i + 1, regions + i, (num_regions - i) * sizeof *regions);
    regions[i] = region;
    num_regions++;
}

void dry_drop_region(DryRegion *region) {
    size_t i = (size_t)(region - regions);
    memmove(regions + i, regions + i + 1, (num_regions - i - 1) * sizeof *regions);
    num_regions--;
}

int dry_charge(size_t size) {
    if (used + size + dry_settings.context_bytes > dry_settings.total_bytes) return 0;
    used += size;
    if (used > peak_used) peak_used = used;
    return 1;
}

void dry_discharge(size_t size) { used -= size; }
size_t dry_used_bytes(void) { return used; }

/* For tests: bytes taken from the device now, and the most ever. */
DRY_EXPORT size_t drycuda_used_bytes(void) { return used; }
DRY_EXPORT size_t drycuda_peak_bytes(void) { return peak_used; }
