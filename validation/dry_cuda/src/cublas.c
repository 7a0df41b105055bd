/* cuBLAS and cuBLASLt: handles, descriptors, workspaces; no arithmetic.
 *
 * PyTorch gives these libraries their workspaces from the caching allocator, so that their bytes
 * are true. */
#include <stdlib.h>
#include <string.h>
#include <cublasLt.h>
#include <cublas_v2.h>
#include "drycuda.h"

typedef struct {
    cudaStream_t stream;
    cublasMath_t math;
    cublasPointerMode_t pointers;
} Blas;

void *dry_blas_stream(const void *handle) { return ((const Blas *)handle)->stream; }

cublasStatus_t cublasCreate_v2(cublasHandle_t *h) {
    *h = calloc(1, sizeof(Blas));
    return *h ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t h) {
    free(h);
    return CUBLAS_STATUS_SUCCESS;
}
#define SETS(name, type, field) \
    cublasStatus_t name(cublasHandle_t h, type value) { \
        ((Blas *)h)->field = value; \
        return CUBLAS_STATUS_SUCCESS; \
    }
#define GETS(name, type, field) \
    cublasStatus_t name(cublasHandle_t h, type *value) { \
        *value = ((Blas *)h)->field; \
        return CUBLAS_STATUS_SUCCESS; \
    }
SETS(cublasSetStream_v2, cudaStream_t, stream)
GETS(cublasGetStream_v2, cudaStream_t, stream)
SETS(cublasSetMathMode, cublasMath_t, math)
GETS(cublasGetMathMode, cublasMath_t, math)
SETS(cublasSetPointerMode_v2, cublasPointerMode_t, pointers)
GETS(cublasGetPointerMode_v2, cublasPointerMode_t, pointers)

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t h, void *workspace, size_t size) {
    return dry_runs_past_end(workspace, size) ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetVersion_v2(cublasHandle_t h, int *version) {
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }

/* Descriptors are opaque to the caller, who reads none back: room is all they need. */
#define ROOM 256
static cublasStatus_t describe(void **d) {
    *d = calloc(1, ROOM);
    return *d ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}
static cublasStatus_t forget(void *d) {
    free(d);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    return describe((void **)d);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return forget(d); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void *value, size_t size) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *d, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
    return describe((void **)d);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t d) { return forget(d); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t d,
                                                cublasLtMatrixLayoutAttribute_t which,
                                                const void *value, size_t size) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *d) {
    return describe((void **)d);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t d) { return forget(d); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t d,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void *value, size_t size) {
    return CUBLAS_STATUS_SUCCESS;
}

/* Heuristics find one algorithm, which needs no workspace: PyTorch allocates the workspace that it
 * allows the library before it asks, whatever the answer. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t A, cublasLtMatrixLayout_t B,
                                              cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results,
                                              int *found) {
    memset(results, 0, sizeof *results);
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t Ad, const void *B,
                              cublasLtMatrixLayout_t Bd, const void *beta, const void *C,
                              cublasLtMatrixLayout_t Cd, void *D, cublasLtMatrixLayout_t Dd,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t size,
                              cudaStream_t s) {
    if (dry_runs_past_end(workspace, size)) return CUBLAS_STATUS_INVALID_VALUE;
    dry_queue(s);
    return CUBLAS_STATUS_SUCCESS;
}
