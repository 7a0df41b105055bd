/* cuDNN's batch norm: queued. Without the library's header, so that one definition does for every
 * list of arguments: only the handle, the first, is read. */
#include "cudnn_tensors.h"
#include "drycuda.h"

#define LAYER(name) \
    DRY_EXPORT int name(void *handle) { return dry_queue(dry_dnn_stream(handle)), 0; }

LAYER(cudnnBatchNormalizationForwardTrainingEx)
LAYER(cudnnBatchNormalizationForwardInference)
LAYER(cudnnBatchNormalizationBackwardEx)
