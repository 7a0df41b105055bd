/* cuDNN's older interface: handles, descriptors, batch norm, dropout. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cudnn.h>
#include "cudnn_tensors.h"
#include "drycuda.h"

typedef struct {
    cudaStream_t stream;
} Dnn;

void *dry_dnn_stream(const void *handle) { return ((const Dnn *)handle)->stream; }

cudnnStatus_t cudnnCreate(cudnnHandle_t *h) {
    *h = calloc(1, sizeof(Dnn));
    return *h ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t h) {
    free(h);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t s) {
    ((Dnn *)h)->stream = s;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t h, cudaStream_t *s) {
    *s = ((Dnn *)h)->stream;
    return CUDNN_STATUS_SUCCESS;
}
size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
cudnnStatus_t cudnnGetProperty(libraryPropertyType which, int *value) {
    *value = which == MAJOR_VERSION   ? CUDNN_MAJOR
             : which == MINOR_VERSION ? CUDNN_MINOR
                                      : CUDNN_PATCHLEVEL;
    return CUDNN_STATUS_SUCCESS;
}
const char *cudnnGetErrorString(cudnnStatus_t status) {
    return status == CUDNN_STATUS_SUCCESS         ? "CUDNN_STATUS_SUCCESS"
           : status == CUDNN_STATUS_NOT_SUPPORTED ? dry_last_unmodelled()
                                                  : "an error of cuDNN";
}
void cudnnGetLastErrorString(char *text, size_t length) {
    if (length) snprintf(text, length, "%s", dry_last_unmodelled());
}

#define MAKES(name, type) \
    cudnnStatus_t cudnnCreate##name(type *d) { \
        *d = calloc(1, sizeof(DryTensor)); \
        return *d ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED; \
    } \
    cudnnStatus_t cudnnDestroy##name(type d) { \
        free(d); \
        return CUDNN_STATUS_SUCCESS; \
    }
MAKES(TensorDescriptor, cudnnTensorDescriptor_t)
MAKES(FilterDescriptor, cudnnFilterDescriptor_t)
MAKES(ActivationDescriptor, cudnnActivationDescriptor_t)
MAKES(DropoutDescriptor, cudnnDropoutDescriptor_t)

static cudnnStatus_t fill(DryTensor *t, cudnnDataType_t dtype, int num, const int *dims) {
    if (num > CUDNN_DIM_MAX) return CUDNN_STATUS_BAD_PARAM;
    t->dtype = dtype, t->num_dims = num;
    for (int i = 0; i < num; i++) t->dims[i] = dims[i];
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t d, cudnnDataType_t dtype, int num,
                                         const int dims[], const int strides[]) {
    return fill((DryTensor *)d, dtype, num, dims);
}
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t dtype,
                                         cudnnTensorFormat_t format, int num, const int dims[]) {
    return fill((DryTensor *)d, dtype, num, dims);
}
static void give(const DryTensor *t, int wanted, cudnnDataType_t *dtype, int *num, int dims[]) {
    *dtype = (cudnnDataType_t)t->dtype, *num = t->num_dims;
    for (int i = 0; i < wanted && i < t->num_dims; i++) dims[i] = t->dims[i];
}
cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t d, int wanted,
                                         cudnnDataType_t *dtype, int *num, int dims[],
                                         int strides[]) {
    const DryTensor *t = (const DryTensor *)d;
    give(t, wanted, dtype, num, dims);
    int stride = 1;
    for (int i = t->num_dims - 1; i >= 0; stride *= t->dims[i--])
        if (i < wanted) strides[i] = stride;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetFilterNdDescriptor(const cudnnFilterDescriptor_t d, int wanted,
                                         cudnnDataType_t *dtype, cudnnTensorFormat_t *format,
                                         int *num, int dims[]) {
    *format = CUDNN_TENSOR_NCHW;
    give((const DryTensor *)d, wanted, dtype, num, dims);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t d,
                                           cudnnActivationMode_t mode, cudnnNanPropagation_t nan,
                                           double coefficient) {
    return CUDNN_STATUS_SUCCESS;
}

/* Dropout of recurrent layers: states of the generator, whose size cuDNN sets. */
cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t h, size_t *size) {
    *size = (size_t)dry_settings.num_sms * (size_t)dry_settings.threads_per_sm * 16;
    dry_estimated("the size of cuDNN's dropout states is an estimate");
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t d, cudnnHandle_t h, float p,
                                        void *states, size_t size, unsigned long long seed) {
    dry_queue(dry_dnn_stream(h));
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t d, cudnnHandle_t h, float p,
                                            void *states, size_t size, unsigned long long seed) {
    return CUDNN_STATUS_SUCCESS;
}

/* Batch norm of NCHW tensors takes no space of its own. (Of NHWC ones it may: not known.) */
cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t h, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
    const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t z,
    const cudnnTensorDescriptor_t y, const cudnnTensorDescriptor_t b,
    const cudnnActivationDescriptor_t a, size_t *size) {
    *size = 0;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t h, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
    const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y,
    const cudnnTensorDescriptor_t dy, const cudnnTensorDescriptor_t dz,
    const cudnnTensorDescriptor_t dx, const cudnnTensorDescriptor_t b,
    const cudnnActivationDescriptor_t a, size_t *size) {
    *size = 0;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t h, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
    const cudnnActivationDescriptor_t a, const cudnnTensorDescriptor_t x, size_t *size) {
    *size = 0;
    return CUDNN_STATUS_SUCCESS;
}
