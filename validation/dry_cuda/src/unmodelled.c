/* Calls that are not modelled: each fails, and says its name. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "drycuda.h"

static __thread char last[160];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define MOST 1024
static const char *said[MOST];
static int num_said;

static int first_time(const char *text) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < num_said && !found; i++) found = !strcmp(said[i], text);
    if (!found && num_said < MOST) said[num_said++] = text;
    pthread_mutex_unlock(&lock);
    return !found;
}

int dry_unmodelled(const char *name, int code) {
    snprintf(last, sizeof last, "dry CUDA device: %s is not modelled", name);
    if (first_time(name)) fprintf(stderr, "dry_cuda: %s is not modelled: it fails\n", name);
    return code;
}

const char *dry_last_unmodelled(void) { return *last ? last : "operation not supported"; }

void dry_estimated(const char *what) {
    if (first_time(what)) fprintf(stderr, "dry_cuda: %s\n", what);
}

/* Driver calls are asked for by name, at run time: each such name gets a function of its own. */
#define CUDA_ERROR_IS_NOT_SUPPORTED 801
#define NUM_SLOTS 512
static char slot_names[NUM_SLOTS][96];
static int num_slots;

#define SLOT(i) \
    static int slot_##i(void) { return dry_unmodelled(slot_names[i], CUDA_ERROR_IS_NOT_SUPPORTED); }
#define EIGHT(m, t) m(t##0) m(t##1) m(t##2) m(t##3) m(t##4) m(t##5) m(t##6) m(t##7)
#define MANY(m, t) EIGHT(m, t##0) EIGHT(m, t##1) EIGHT(m, t##2) EIGHT(m, t##3) EIGHT(m, t##4) \
    EIGHT(m, t##5) EIGHT(m, t##6) EIGHT(m, t##7)
#define ALL(m) MANY(m, 0) MANY(m, 01) MANY(m, 02) MANY(m, 03) MANY(m, 04) MANY(m, 05) \
    MANY(m, 06) MANY(m, 07) /* octal numerals: 000 to 0777; NCCL alone asks for a hundred calls */
ALL(SLOT)
#define NAME(i) slot_##i,
static int (*const slots[NUM_SLOTS])(void) = {ALL(NAME)};

void *dry_unmodelled_driver_call(const char *name) {
    int at = 0;
    pthread_mutex_lock(&lock);
    while (at < num_slots && strcmp(slot_names[at], name)) at++;
    if (at == num_slots && num_slots < NUM_SLOTS - 1) num_slots++;
    const char *text = at < NUM_SLOTS - 1 ? name : "a driver call (more than 511 are unknown)";
    snprintf(slot_names[at], sizeof slot_names[at], "%s", text);
    pthread_mutex_unlock(&lock);
    return (void *)slots[at];
}

/* The profiler's library: its calls fail (stubs.py), and this one says so in words. */
DRY_EXPORT int cuptiGetResultString(int status, const char **text) {
    (void)status;
    *text = "the profiler is not modelled on a dry CUDA device";
    return 0;
}
