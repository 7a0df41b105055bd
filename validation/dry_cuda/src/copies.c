/* Copies and fills: done at once where they are short enough to be worth the memory they touch. */
#include <string.h>
#include <cuda_runtime_api.h>
#include "drycuda.h"

static int done(size_t size) {
    if (size <= dry_settings.copy_bytes) return 1;
    dry_log(2, "a copy or fill of %zu bytes is left out", size);
    return 0;
}

/* Beyond the end of an allocation is what a device would call an illegal address. */
static cudaError_t copy(void *to, const void *from, size_t size, cudaStream_t stream, int wait) {
    if (dry_runs_past_end(to, size) || dry_runs_past_end(from, size))
        return dry_fail(cudaErrorIllegalAddress);
    dry_queue(stream);
    if (wait) dry_wait_for_stream(stream);
    if (done(size)) memmove(to, from, size);
    return cudaSuccess;
}

/* As the runtime: a copy between the device and memory that is not pinned waits for its stream. */
static int waits(const void *to, const void *from) {
    struct cudaPointerAttributes a, b;
    cudaPointerGetAttributes(&a, to);
    cudaPointerGetAttributes(&b, from);
    return a.type == cudaMemoryTypeUnregistered || b.type == cudaMemoryTypeUnregistered;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind) {
    return copy(to, from, n, 0, 1);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t s) {
    return copy(to, from, n, s, waits(to, from));
}
cudaError_t cudaMemcpyPeerAsync(void *to, int i, const void *from, int j, size_t n,
                                cudaStream_t s) {
    return copy(to, from, n, s, 0);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t s) {
    if (!width || !height) return cudaSuccess;
    if (dry_runs_past_end(to, (height - 1) * to_pitch + width) ||
        dry_runs_past_end(from, (height - 1) * from_pitch + width))
        return dry_fail(cudaErrorIllegalAddress);
    dry_queue(s);
    if (waits(to, from)) dry_wait_for_stream(s);
    if (done(width * height))
        for (size_t i = 0; i < height; i++)
            memmove((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    return cudaSuccess;
}

static cudaError_t fill(void *to, int value, size_t size, cudaStream_t stream) {
    if (dry_runs_past_end(to, size)) return dry_fail(cudaErrorIllegalAddress);
    dry_queue(stream);
    if (done(size)) memset(to, value, size);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t n) { return fill(to, value, n, 0); }
cudaError_t cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t s) {
    return fill(to, value, n, s);
}

/* Constants and globals of kernels: there are no kernels to read them. */
cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t n, size_t offset,
                               enum cudaMemcpyKind kind) {
    return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void **p, const void *symbol) {
    static char space[1 << 16];
    *p = space;
    return cudaSuccess;
}
