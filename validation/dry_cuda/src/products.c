/* Products of cuBLAS: queued as kernels. Without the library's header, so that one definition does
 * for every list of arguments: only the handle, the first, is read. */
#include "drycuda.h"

void *dry_blas_stream(const void *handle); /* cublas.c */

#define PRODUCT(name) \
    DRY_EXPORT int name(void *handle) { return dry_queue(dry_blas_stream(handle)), 0; }

PRODUCT(cublasSgemm_v2)
PRODUCT(cublasDgemm_v2)
PRODUCT(cublasCgemm_v2)
PRODUCT(cublasZgemm_v2)
PRODUCT(cublasSgemmEx)
PRODUCT(cublasGemmEx)
PRODUCT(cublasGemmStridedBatchedEx)
PRODUCT(cublasSgemmStridedBatched)
PRODUCT(cublasDgemmStridedBatched)
PRODUCT(cublasCgemmStridedBatched)
PRODUCT(cublasZgemmStridedBatched)
PRODUCT(cublasSgemmBatched)
PRODUCT(cublasDgemmBatched)
PRODUCT(cublasSgemv_v2)
PRODUCT(cublasDgemv_v2)
PRODUCT(cublasCgemv_v2)
PRODUCT(cublasZgemv_v2)
PRODUCT(cublasSdot_v2)
PRODUCT(cublasDdot_v2)
PRODUCT(cublasDotEx)
PRODUCT(cublasStrsm_v2)
PRODUCT(cublasDtrsm_v2)
