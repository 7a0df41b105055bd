/* Streams and events: order without time.
 *
 * Each stream counts the work queued on it. What a stream, or an event recorded on it, comes after
 * is a vector of such counts, one per stream. Work is over at once; or, where events are late, when
 * the host has waited for it: the slowest device there can be. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <cuda_runtime_api.h>
#include "drycuda.h"

#define MOST_STREAMS 256
#define KERNEL_US 10.0 /* what events' differences are made of: no time of any device */
#define PATIENCE 1000  /* queries after which a late event is over: a loop that polls ends */

typedef struct {
    int number, priority, num_queries;
    double now_us;
    uint64_t after[MOST_STREAMS];
} Stream;
typedef struct {
    int recorded, num_queries;
    double at_us;
    uint64_t after[MOST_STREAMS];
} Event;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Stream main_stream;
static uint64_t queued[MOST_STREAMS], over[MOST_STREAMS];
static int num_streams = 1;
static int spare[MOST_STREAMS], num_spare; /* numbers of destroyed streams */

/* 0, cudaStreamLegacy and cudaStreamPerThread are one stream here. */
static Stream *stream_of(const void *stream) {
    return (uintptr_t)stream <= 2 ? &main_stream : (Stream *)stream;
}

void dry_queue(void *which) {
    pthread_mutex_lock(&lock);
    Stream *stream = stream_of(which);
    stream->after[stream->number] = ++queued[stream->number];
    stream->now_us += KERNEL_US;
    pthread_mutex_unlock(&lock);
}

static void finish(const uint64_t *after) {
    for (int i = 0; i < num_streams; i++)
        if (over[i] < after[i]) over[i] = after[i];
}

static int is_over(const uint64_t *after, int *num_queries) {
    int done = 1;
    for (int i = 0; i < num_streams && dry_settings.late_events; i++)
        done = done && over[i] >= after[i];
    if (!done && ++*num_queries >= PATIENCE) finish(after), done = 1;
    if (done) *num_queries = 0;
    return done;
}

void dry_wait_for_stream(void *which) {
    pthread_mutex_lock(&lock);
    finish(stream_of(which)->after);
    pthread_mutex_unlock(&lock);
}

static cudaError_t make_stream(cudaStream_t *stream, int priority) {
    Stream *made = calloc(1, sizeof *made);
    if (!made) return dry_fail(cudaErrorMemoryAllocation);
    pthread_mutex_lock(&lock);
    int number = num_spare ? spare[--num_spare] : num_streams < MOST_STREAMS ? num_streams++ : -1;
    if (number >= 0) made->after[number] = queued[number];
    pthread_mutex_unlock(&lock);
    if (number < 0) {
        free(made);
        return dry_fail(dry_unmodelled("a stream besides 255 others", cudaErrorNotSupported));
    }
    made->number = number, made->priority = priority;
    *stream = (cudaStream_t)made;
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *s) { return make_stream(s, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned int flags) {
    return make_stream(s, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned int flags, int priority) {
    return make_stream(s, priority);
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    Stream *stream = stream_of(s);
    if (stream == &main_stream) return dry_fail(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    finish(stream->after);
    spare[num_spare++] = stream->number;
    pthread_mutex_unlock(&lock);
    free(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority) {
    *priority = stream_of(s)->priority;
    return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t s, unsigned int *flags) {
    *flags = stream_of(s) == &main_stream ? cudaStreamDefault : cudaStreamNonBlocking;
    return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t s, unsigned long long *id) {
    *id = (unsigned long long)stream_of(s)->number + 1;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    dry_wait_for_stream(s);
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
    pthread_mutex_lock(&lock);
    int done = is_over(stream_of(s)->after, &stream_of(s)->num_queries);
    pthread_mutex_unlock(&lock);
    return done ? cudaSuccess : dry_fail(cudaErrorNotReady);
}
cudaError_t cudaDeviceSynchronize(void) {
    pthread_mutex_lock(&lock);
    memcpy(over, queued, sizeof over);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned int flags) {
    if (!e) return dry_fail(cudaErrorInvalidResourceHandle);
    Event *event = (Event *)e;
    pthread_mutex_lock(&lock);
    Stream *stream = stream_of(s);
    for (int i = 0; i < num_streams; i++)
        if (stream->after[i] < event->after[i]) stream->after[i] = event->after[i];
    if (stream->now_us < event->at_us) stream->now_us = event->at_us;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return cudaSuccess;
}

/* The host's functions run when they are queued, behind work that is over. */
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void *data,
                                  unsigned int flags) {
    dry_wait_for_stream(s);
    f(s, cudaSuccess, data);
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *data) {
    dry_wait_for_stream(s);
    f(data);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned int flags) {
    *e = (cudaEvent_t)calloc(1, sizeof(Event));
    return *e ? cudaSuccess : dry_fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    free(e);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    Event *event = (Event *)e;
    pthread_mutex_lock(&lock);
    Stream *stream = stream_of(s);
    memcpy(event->after, stream->after, sizeof event->after);
    event->at_us = stream->now_us, event->recorded = 1, event->num_queries = 0;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned int flags) {
    return cudaEventRecord(e, s);
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    pthread_mutex_lock(&lock);
    int done = is_over(((Event *)e)->after, &((Event *)e)->num_queries);
    pthread_mutex_unlock(&lock);
    return done ? cudaSuccess : dry_fail(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    pthread_mutex_lock(&lock);
    finish(((Event *)e)->after);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
    Event *from = (Event *)a, *to = (Event *)b;
    if (!from || !to || !from->recorded || !to->recorded)
        return dry_fail(cudaErrorInvalidResourceHandle);
    dry_estimated("times between events are the host's: the device has none");
    *ms = (float)((to->at_us - from->at_us) / 1e3);
    return cudaSuccess;
}

/* CUDA graphs: nothing is ever captured; the calls that begin one are not modelled. */
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes,
#if CUDART_VERSION >= 13000
                                     const cudaGraphEdgeData **edges,
#endif
                                     size_t *count) {
    *status = cudaStreamCaptureStatusNone;
    if (id) *id = 0;
    if (graph) *graph = NULL;
    if (nodes) *nodes = NULL;
#if CUDART_VERSION >= 13000
    if (edges) *edges = NULL;
#endif
    if (count) *count = 0;
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    return cudaSuccess;
}
