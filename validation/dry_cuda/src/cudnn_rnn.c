/* cuDNN's recurrent layers: weights as it lays them out, spaces by what the backward needs.
 *
 * The size of the weights is exact. What cuDNN reserves between forward and backward, and its
 * workspace, are its own affair: here the gates, the cell state and the output of every step, and
 * the products of all gates of a layer. That is an estimate, and said once. */
#include <stdlib.h>
#include <string.h>
#include <cudnn.h>
#include "cudnn_tensors.h"
#include "drycuda.h"

typedef struct {
    cudnnRNNMode_t mode;
    cudnnRNNBiasMode_t bias;
    cudnnDataType_t dtype;
    int input, hidden, projected, layers, directions;
} Rnn;
typedef struct {
    int steps, batch, width;
    cudnnDataType_t dtype;
} RnnData;

static size_t bytes_of(cudnnDataType_t dtype) {
    return dtype == CUDNN_DATA_DOUBLE ? 8 : dtype == CUDNN_DATA_FLOAT ? 4 : 2;
}
static int num_gates(const Rnn *r) {
    return r->mode == CUDNN_LSTM ? 4 : r->mode == CUDNN_GRU ? 3 : 1;
}
static int is_projected(const Rnn *r) { return r->projected > 0 && r->projected < r->hidden; }
static int output_width(const Rnn *r) { return is_projected(r) ? r->projected : r->hidden; }
static int input_width(const Rnn *r, int layer) {
    return layer < r->directions ? r->input : output_width(r) * r->directions;
}

#define MAKES(name, type, what) \
    cudnnStatus_t cudnnCreate##name(type *d) { \
        *d = calloc(1, sizeof(what)); \
        return *d ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED; \
    } \
    cudnnStatus_t cudnnDestroy##name(type d) { \
        free(d); \
        return CUDNN_STATUS_SUCCESS; \
    }
MAKES(RNNDescriptor, cudnnRNNDescriptor_t, Rnn)
MAKES(RNNDataDescriptor, cudnnRNNDataDescriptor_t, RnnData)

cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t d, cudnnRNNAlgo_t algorithm,
                                       cudnnRNNMode_t mode, cudnnRNNBiasMode_t bias,
                                       cudnnDirectionMode_t direction, cudnnRNNInputMode_t input,
                                       cudnnDataType_t dtype, cudnnDataType_t precision,
                                       cudnnMathType_t math, int32_t input_size,
                                       int32_t hidden_size, int32_t projected_size,
                                       int32_t num_layers, cudnnDropoutDescriptor_t dropout,
                                       uint32_t flags) {
    if (input != CUDNN_LINEAR_INPUT)
        return dry_unmodelled("a cuDNN RNN that skips its input", CUDNN_STATUS_NOT_SUPPORTED);
    int directions = direction == CUDNN_BIDIRECTIONAL ? 2 : 1;
    *(Rnn *)d = (Rnn){mode,        bias,           dtype,      input_size,
                      hidden_size, projected_size, num_layers, directions};
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t d, cudnnDataType_t dtype,
                                        cudnnRNNDataLayout_t layout, int steps, int batch,
                                        int width, const int lengths[], void *fill) {
    *(RnnData *)d = (RnnData){steps, batch, width, dtype};
    return CUDNN_STATUS_SUCCESS;
}

/* A layer's matrices: one per gate of the input, then of the state, then the projection. Elements
 * of all layers' matrices come first, then those of the biases. */
static size_t matrix(const Rnn *r, int layer, int linear, int *rows, int *columns) {
    int gates = num_gates(r);
    *rows = linear == 2 * gates ? r->projected : r->hidden;
    *columns = linear < gates         ? input_width(r, layer)
               : linear < 2 * gates ? output_width(r)
                                    : r->hidden;
    return (size_t)*rows * (size_t)*columns;
}
static size_t layer_elements(const Rnn *r, int layer, int num_linear) {
    size_t total = 0;
    int rows, columns;
    for (int i = 0; i < num_linear; i++) total += matrix(r, layer, i, &rows, &columns);
    return total;
}
static int linears(const Rnn *r) { return 2 * num_gates(r) + is_projected(r); }
static int biases(const Rnn *r) {
    return r->bias == CUDNN_RNN_NO_BIAS       ? 0
           : r->bias == CUDNN_RNN_DOUBLE_BIAS ? 2 * num_gates(r)
                                              : num_gates(r);
}
static size_t all_matrices(const Rnn *r, int num_layers) {
    size_t total = 0;
    for (int i = 0; i < num_layers; i++) total += layer_elements(r, i, linears(r));
    return total;
}

cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t h, cudnnRNNDescriptor_t d, size_t *size) {
    const Rnn *r = (const Rnn *)d;
    int num = r->layers * r->directions;
    size_t of_biases = (size_t)num * (size_t)biases(r) * (size_t)r->hidden;
    *size = (all_matrices(r, num) + of_biases) * bytes_of(r->dtype);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t h, cudnnRNNDescriptor_t d, int32_t layer,
                                      size_t space, const void *weights, int32_t linear,
                                      cudnnTensorDescriptor_t matrix_d, void **matrix_at,
                                      cudnnTensorDescriptor_t bias_d, void **bias_at) {
    /* The caller may ask for the matrix alone, or for the bias alone. */
    const Rnn *r = (const Rnn *)d;
    int rows, columns, num = r->layers * r->directions;
    size_t item = bytes_of(r->dtype), in_layer = (size_t)biases(r) * (size_t)r->hidden;
    char *start = (char *)weights;
    if (matrix_at) *matrix_at = NULL;
    if (bias_at) *bias_at = NULL;
    if (linear < linears(r) && matrix_at) {
        size_t before = all_matrices(r, layer) + layer_elements(r, layer, linear);
        matrix(r, layer, linear, &rows, &columns);
        *(DryTensor *)matrix_d = (DryTensor){(int)r->dtype, 3, {1, rows, columns}};
        *matrix_at = start + before * item;
    }
    if (linear < biases(r) && bias_at) {
        size_t at = (size_t)layer * in_layer + (size_t)linear * (size_t)r->hidden;
        *(DryTensor *)bias_d = (DryTensor){(int)r->dtype, 3, {1, r->hidden, 1}};
        *bias_at = start + (all_matrices(r, num) + at) * item;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t h, cudnnRNNDescriptor_t d,
                                        cudnnForwardMode_t mode, cudnnRNNDataDescriptor_t x,
                                        size_t *workspace, size_t *reserve) {
    const Rnn *r = (const Rnn *)d;
    const RnnData *data = (const RnnData *)x;
    size_t cells = (size_t)data->steps * (size_t)data->batch * (size_t)r->directions;
    size_t gates = (size_t)num_gates(r) * (size_t)r->hidden;
    size_t kept = gates + (r->mode == CUDNN_LSTM ? (size_t)r->hidden : 0) + (size_t)output_width(r);
    size_t item = bytes_of(r->dtype), training = mode == CUDNN_FWD_MODE_TRAINING;
    if (workspace) *workspace = cells * gates * item;
    if (reserve) *reserve = training ? cells * kept * (size_t)r->layers * item : 0;
    dry_estimated("workspace and reserve of cuDNN's recurrent layers are estimates");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNForward(cudnnHandle_t h, cudnnRNNDescriptor_t d, cudnnForwardMode_t mode,
                              const int32_t lengths[], cudnnRNNDataDescriptor_t xd, const void *x,
                              cudnnRNNDataDescriptor_t yd, void *y, cudnnTensorDescriptor_t hd,
                              const void *hx, void *hy, cudnnTensorDescriptor_t cd, const void *cx,
                              void *cy, size_t weight_size, const void *weights, size_t work_size,
                              void *work, size_t reserve_size, void *reserve) {
    dry_queue(dry_dnn_stream(h));
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnRNNBackwardData_v8(
    cudnnHandle_t h, cudnnRNNDescriptor_t d, const int32_t lengths[], cudnnRNNDataDescriptor_t yd,
    const void *y, const void *dy, cudnnRNNDataDescriptor_t xd, void *dx,
    cudnnTensorDescriptor_t hd, const void *hx, const void *dhy, void *dhx,
    cudnnTensorDescriptor_t cd, const void *cx, const void *dcy, void *dcx, size_t weight_size,
    const void *weights, size_t work_size, void *work, size_t reserve_size, void *reserve) {
    dry_queue(dry_dnn_stream(h));
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t h, cudnnRNNDescriptor_t d,
                                         cudnnWgradMode_t mode, const int32_t lengths[],
                                         cudnnRNNDataDescriptor_t xd, const void *x,
                                         cudnnTensorDescriptor_t hd, const void *hx,
                                         cudnnRNNDataDescriptor_t yd, const void *y,
                                         size_t weight_size, void *weights, size_t work_size,
                                         void *work, size_t reserve_size, void *reserve) {
    dry_queue(dry_dnn_stream(h));
    return CUDNN_STATUS_SUCCESS;
}
