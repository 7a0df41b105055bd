/* Settings, from the environment that the launcher makes. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "drycuda.h"

DrySettings dry_settings;

static size_t number(const char *variable, size_t otherwise) {
    const char *text = getenv(variable);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

__attribute__((constructor)) static void configure(void) {
    DrySettings *s = &dry_settings;
    const char *name = getenv("SCHEDSIM_DRY_NAME");
    snprintf(s->name, sizeof s->name, "%s", name && *name ? name : "dry CUDA device");
    s->major = (int)number("SCHEDSIM_DRY_MAJOR", 8);
    s->minor = (int)number("SCHEDSIM_DRY_MINOR", 0);
    s->num_sms = (int)number("SCHEDSIM_DRY_SMS", 108);
    s->total_bytes = number("SCHEDSIM_DRY_MEMORY", 85094105088ull);
    s->context_bytes = number("SCHEDSIM_DRY_CONTEXT", 512 * DRY_MIB);
    s->copy_bytes = number("SCHEDSIM_DRY_COPY", 16 * DRY_MIB);
    s->shared_per_block = number("SCHEDSIM_DRY_SHARED_PER_BLOCK", 166912);
    s->shared_per_sm = number("SCHEDSIM_DRY_SHARED_PER_SM", 167936);
    s->threads_per_sm = (int)number("SCHEDSIM_DRY_THREADS_PER_SM", 2048);
    s->blocks_per_sm = (int)number("SCHEDSIM_DRY_BLOCKS_PER_SM", 32);
    s->l2_bytes = number("SCHEDSIM_DRY_L2", 41943040);
    s->bus_bits = (int)number("SCHEDSIM_DRY_BUS_BITS", 5120);
    s->late_events = (int)number("SCHEDSIM_DRY_LATE_EVENTS", 0);
    s->verbose = (int)number("SCHEDSIM_DRY_VERBOSE", 0);
}

void dry_log(int level, const char *format, ...) {
    if (dry_settings.verbose < level) return;
    va_list list;
    va_start(list, format);
    fprintf(stderr, "dry_cuda: ");
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
}
