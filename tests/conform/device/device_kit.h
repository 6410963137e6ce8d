/* What the conformance suite of devices shares: the device under test and the plain one, and a way
 * to run an operation on both with all of its arrays in their memory. */
#ifndef CONFORM_DEVICE_KIT_H
#define CONFORM_DEVICE_KIT_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the headers above first. */
#include <troupe/ext/base.h>
#include <troupe/kernels.h>

#include <cmocka.h>

struct rig {
    troupe_device *tested, *plain;
    bool is_plain; /* the device under test is the reference itself */
    bool small;    /* a few shapes of each operation, for a memory checker */
};

enum {
    ARGS_MAX = 12
};

/* An array of an operation. `data` has what it holds before; NULL: it must be written, and is
 * filled with NaN (and -1) so that it shows when it was not. */
struct arg {
    const void *data;
    size_t count;

    enum {
        READ,   /* must stay as it is */
        FLOATS, /* within `tolerance` of the plain device's, relative to their RMS */
        EXACT,  /* 4-byte elements with the plain device's bits */
        BYTES   /* 1-byte elements, likewise */
    } kind;

    double tolerance;
};

/* Runs one operation; array[i] is the device's memory of arg i, 256-byte aligned. */
typedef void call_fn(troupe_device *d, void *const *array, const void *shape);

/* Runs `call` on both devices, on the tested one twice. Fails when an output differs from the plain
 * one's, when the two runs differ in a bit, when a READ array or the bytes behind any array have
 * changed, or when the device has an error. */
void rig_check(const struct rig *rig, const char *what, call_fn *call, const void *shape,
    const struct arg *args, int count);

/* Runs `call` on `d` alone and gives back the array `out` of the args: freed by rig_free_all. */
float *rig_run(
    troupe_device *d, call_fn *call, const void *shape, const struct arg *args, int count, int out);

/* Whether a small run leaves shape `index` of a list out. */
static inline bool
rig_leaves_out(const struct rig *rig, size_t index)
{
    return rig->small && index % 7 != 3;
}

/* Fails unless all bits agree. */
void rig_same(const char *what, const float *got, const float *want, size_t count);

/* Numbers that are freed all at once by rig_free_all: normal ones times `scale`, integers below
 * `bound`; the same for the same seed. */
float *rig_normal(uint64_t seed, size_t count, double scale);
int32_t *rig_below(uint64_t seed, size_t count, int bound);
void *rig_zalloc(size_t bytes);
void rig_free_all(void);

/* One device memory array with `count` floats of `data` (NULL = zeros). */
float *rig_upload(troupe_device *d, const float *data, size_t count);
float *rig_download(troupe_device *d, const float *device, size_t count);

/* The groups: each returns its failures. `rig` is their state. */
int run_memory_tests(struct rig *rig);
int run_row_tests(struct rig *rig);
int run_attention_tests(struct rig *rig);
int run_head_tests(struct rig *rig);
int run_invariance_tests(struct rig *rig);
/* In a process of its own: breaks the device for good. */
int run_failure_tests(struct rig *rig);

#endif
