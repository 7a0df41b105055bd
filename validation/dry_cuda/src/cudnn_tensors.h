/* What the descriptors of cuDNN's older interface hold here. */
#ifndef DRYCUDA_CUDNN_TENSORS_H
#define DRYCUDA_CUDNN_TENSORS_H

typedef struct {
    int dtype, num_dims, dims[8]; /* of CUDNN_DIM_MAX */
} DryTensor;

void *dry_dnn_stream(const void *handle);

#endif
