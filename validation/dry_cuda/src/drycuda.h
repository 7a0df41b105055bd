/* What the parts of the dry device share.
 *
 * The library answers the CUDA runtime, the parts of the driver that PyTorch and Triton fetch by
 * name, cuBLAS, cuBLASLt and cuDNN. Device memory is address space of this process that nobody
 * touches; kernels are queued and never run. A call that is not modelled fails and says its name. */
#ifndef DRYCUDA_H
#define DRYCUDA_H

#include <stddef.h>
#include <stdint.h>

#define DRY_MIB (1ull << 20)
#define DRY_GRAIN (2 * DRY_MIB) /* of device memory, as the driver hands it out */
#define DRY_EXPORT __attribute__((visibility("default")))

typedef struct {
    char name[256];
    int major, minor, num_sms, driver_version;
    size_t total_bytes;   /* of the device */
    size_t context_bytes; /* of them the driver's own, for nobody */
    size_t copy_bytes;    /* longer copies and fills are not done, so that they touch nothing */
    size_t shared_per_block, shared_per_sm, l2_bytes;
    int threads_per_sm, blocks_per_sm, bus_bits;
    int late_events;      /* an event is over when the host waits for it, not before */
    int verbose;
} DrySettings;
extern DrySettings dry_settings;

/* settings.c */
void dry_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* unmodelled.c: say the name of a call that is not modelled, once each, and keep it for the text of
 * the error; `code` is what the library in question calls "not supported". */
int dry_unmodelled(const char *name, int code);
const char *dry_last_unmodelled(void);
void *dry_unmodelled_driver_call(const char *name);
void dry_estimated(const char *what); /* a size that is an estimate: said once */

/* regions.c: address space by its start. The caller holds the lock. */
typedef struct {
    uintptr_t start;
    size_t size, charged;
    enum { DRY_DEVICE, DRY_HOST, DRY_REGISTERED, DRY_VIRTUAL } kind;
} DryRegion;
void dry_lock(void);
void dry_unlock(void);
void *dry_reserve(size_t size, size_t align);
DryRegion *dry_region_of(const void *pointer);
void dry_add_region(DryRegion region);
void dry_drop_region(DryRegion *region);
int dry_charge(size_t size); /* 0 where the device has not as much left */
void dry_discharge(size_t size);
size_t dry_used_bytes(void);

/* memory.c */
int dry_is_device(const void *pointer);
int dry_runs_past_end(const void *pointer, size_t size);

/* streams.c */
void dry_queue(void *stream);         /* a kernel's worth of work */
void dry_wait_for_stream(void *stream);

/* device.c */
int dry_attribute(int which); /* the runtime's and the driver's numbers are the same */
int dry_fail(int error);      /* remembers it for cudaGetLastError */
int dry_blocks_per_sm(int num_threads, size_t shared_bytes);

#endif
