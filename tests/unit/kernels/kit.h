/* What the tests of the kernels share: the plain device and every vector path that this processor
 * runs, reproducible inputs, comparisons that print both values. */
#ifndef KERNELS_KIT_H
#define KERNELS_KIT_H

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

enum {
    KIT_PATHS_MAX = 4
};

struct kit {
    troupe_device *plain;
    troupe_device *path[KIT_PATHS_MAX]; /* scalar first, then what the processor has */
    int paths;
};

/* cmocka group fixtures: *state is a struct kit. Prints the paths that are tested. */
int kit_setup(void **state);
int kit_teardown(void **state);

/* Floats that are freed all at once by kit_free_all: tests make many. Zeroed. */
float *kit_floats(size_t count);
int32_t *kit_ints(size_t count);
void kit_free_all(void);

/* count normal numbers times `scale`, the same for the same seed. */
float *kit_normal(uint64_t seed, size_t count, double scale);
/* count integers in [0, bound). */
int32_t *kit_below(uint64_t seed, size_t count, int bound);

/* Fails unless |got - want| <= tolerance * rms(want) + 1e-7 everywhere (a NaN never is); equal,
 * when the tolerance is 0. */
void kit_close(
    const char *what, const float *got, const float *want, size_t count, double tolerance);
/* The same against doubles. */
void kit_close_to_double(
    const char *what, const float *got, const double *want, size_t count, double tolerance);
/* Fails unless all bits agree. */
void kit_same(const char *what, const float *got, const float *want, size_t count);

/* Runs `run` on the plain device and on every path: the results (the parts one after another at
 * out, zeroed before) must be close to the plain ones, part by part, and the same on all paths to
 * the bit. */
typedef void kit_run(troupe_device *d, const void *shape, float *out);

struct kit_parts {
    int count;
    size_t size[8];
};

void kit_check(const struct kit *kit, const char *what, kit_run *run, const void *shape,
    struct kit_parts parts, double tolerance);

/* Central differences in double of a scalar function of n numbers. */
typedef double kit_loss(const double *x, const void *context);
void kit_gradient(double *gradient, kit_loss *loss, double *x, size_t n, const void *context);

#endif
