/* cuDNN's graph interface: a store of attributes.
 *
 * A descriptor keeps what it is given and gives it back; heuristics find one engine. What an engine
 * asks for a convolution is cuDNN's own affair and not known: SCHEDSIM_DRY_CONV_WORKSPACE bytes. */
#include <stdlib.h>
#include <string.h>
#include <cudnn.h>
#include "drycuda.h"

#if CUDNN_VERSION < 90200 /* attributes that nobody asks for yet */
#define CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE ((cudnnBackendAttributeName_t)-1)
#define CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED ((cudnnBackendAttributeName_t)-2)
#endif

typedef struct {
    cudnnBackendAttributeName_t name;
    int64_t count;
    size_t size;
    void *data;
} Attribute;
typedef struct {
    cudnnBackendDescriptorType_t type;
    int count, room;
    Attribute *list;
} Descriptor;

void *dry_dnn_stream(const void *handle); /* cudnn_layers.c */

static int64_t workspace_bytes(void) {
    const char *text = getenv("SCHEDSIM_DRY_CONV_WORKSPACE");
    return text ? strtoll(text, NULL, 10) : 0;
}

static size_t size_of(cudnnBackendAttributeType_t type) {
    switch (type) {
    case CUDNN_TYPE_HANDLE: case CUDNN_TYPE_INT64: case CUDNN_TYPE_DOUBLE: case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    case CUDNN_TYPE_BOOLEAN: case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_FRACTION: return 16;
    default: return 4;
    }
}

static Attribute *find(Descriptor *d, cudnnBackendAttributeName_t name) {
    for (int i = 0; i < d->count; i++)
        if (d->list[i].name == name) return &d->list[i];
    return NULL;
}

static cudnnStatus_t keep(Descriptor *d, cudnnBackendAttributeName_t name, int64_t count,
                          size_t size, const void *from) {
    Attribute *a = find(d, name);
    if (!a && d->count == d->room) {
        int room = d->room ? 2 * d->room : 8;
        Attribute *larger = realloc(d->list, (size_t)room * sizeof *larger);
        if (!larger) return CUDNN_STATUS_ALLOC_FAILED;
        d->list = larger, d->room = room;
    }
    if (!a) a = &d->list[d->count++], *a = (Attribute){.name = name};
    void *data = malloc((size_t)count * size + 1);
    if (!data) return CUDNN_STATUS_ALLOC_FAILED;
    if (count) memcpy(data, from, (size_t)count * size);
    free(a->data);
    a->count = count, a->size = size, a->data = data;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *out) {
    Descriptor *made = calloc(1, sizeof *made);
    if (!made) return CUDNN_STATUS_ALLOC_FAILED;
    made->type = type;
    *out = made;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t which) {
    Descriptor *d = which;
    for (int i = 0; d && i < d->count; i++) free(d->list[i].data);
    if (d) free(d->list);
    free(d);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *from) {
    return keep(d, name, count, size_of(type), from);
}

/* Heuristics fill descriptors in that the caller made: the first with an engine. */
static cudnnStatus_t one_engine(int64_t wanted, int64_t *count, void *to) {
    cudnnBackendDescriptor_t engine, configuration = wanted >= 1 && to ? *(void **)to : NULL;
    *count = 1;
    if (!configuration) return CUDNN_STATUS_SUCCESS;
    cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine);
    int64_t index = 0;
    if (status == CUDNN_STATUS_SUCCESS)
        status = keep(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 1, sizeof index, &index);
    if (status == CUDNN_STATUS_SUCCESS)
        status = keep(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, 1, sizeof engine, &engine);
    return status;
}

static cudnnStatus_t one_number(int64_t number, int64_t wanted, int64_t *count, void *to) {
    *count = 1;
    if (wanted >= 1 && to) *(int64_t *)to = number;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const which,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted,
                                       int64_t *count, void *to) {
    Descriptor *d = which;
    int64_t nobody_asks;
    if (!count) count = &nobody_asks;
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: return one_engine(wanted, count, to);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
        return one_number(workspace_bytes(), wanted, count, to);
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED: /* 32 bits; an engine of unknown need is barred */
        *count = 1;
        if (wanted >= 1 && to) *(int32_t *)to = 0;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT: return one_number(1, wanted, count, to);
    default: break;
    }
    Attribute *a = find(d, name);
    *count = a ? a->count : 0; /* knobs and notes: there are none */
    if (!a || wanted < 1 || !to) return CUDNN_STATUS_SUCCESS;
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR && a->count >= 1) {
        /* The caller gives a descriptor of its own to be filled in. */
        Descriptor *target = *(Descriptor **)to, *source = *(Descriptor **)a->data;
        for (int i = 0; target && source && target != source && i < source->count; i++) {
            Attribute *b = &source->list[i];
            cudnnStatus_t status = keep(target, b->name, b->count, b->size, b->data);
            if (status != CUDNN_STATUS_SUCCESS) return status;
        }
        return CUDNN_STATUS_SUCCESS;
    }
    memcpy(to, a->data, (size_t)(wanted < a->count ? wanted : a->count) * a->size);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
    dry_queue(dry_dnn_stream(h));
    return CUDNN_STATUS_SUCCESS;
}
