/* See device_kit.h. */
#include "device_kit.h"

enum {
    GUARD = 64 /* bytes behind an array that nobody may touch */
};

static const uint8_t GUARD_BYTE = 0xA5, POISON_BYTE = 0xFF;

static void **owned;
static size_t owned_count;

void *
rig_zalloc(size_t bytes)
{
    owned = realloc(owned, (owned_count + 1) * sizeof *owned);
    assert_non_null(owned);
    owned[owned_count] = calloc(1, bytes + 1);
    assert_non_null(owned[owned_count]);
    return owned[owned_count++];
}

void
rig_free_all(void)
{
    for (size_t i = 0; i < owned_count; ++i) {
        free(owned[i]);
    }
    free(owned);
    owned = NULL;
    owned_count = 0;
}

float *
rig_normal(uint64_t seed, size_t count, double scale)
{
    float *x = rig_zalloc(count * sizeof *x);
    for (size_t i = 0; i < count; ++i) {
        x[i] = (float)(tr_normal(seed, 0, i) * scale);
    }
    return x;
}

int32_t *
rig_below(uint64_t seed, size_t count, int bound)
{
    int32_t *x = rig_zalloc(count * sizeof *x);
    for (size_t i = 0; i < count; ++i) {
        x[i] = (int32_t)tr_below(seed, i, (uint64_t)bound);
    }
    return x;
}

static size_t
bytes_of(const struct arg *a)
{
    return a->count * (a->kind == BYTES ? 1 : 4);
}

static void
need_ok(troupe_device *d, troupe_status status, const char *what)
{
    troupe_error err = {0};
    troupe_status synced = troupe_device_sync(d, &err);
    if (status != TROUPE_OK || synced != TROUPE_OK) {
        fail_msg("%s on %s: %s: %s", what, troupe_device_name(d),
            troupe_status_name(status != TROUPE_OK ? status : synced), err.text);
    }
}

/* The array's bytes before a run, its guard behind them. */
static uint8_t *
image_of(const struct arg *a)
{
    size_t bytes = bytes_of(a);
    uint8_t *image = rig_zalloc(bytes + GUARD);
    memset(image, POISON_BYTE, bytes);
    memset(image + bytes, GUARD_BYTE, GUARD);
    if (a->data != NULL) {
        memcpy(image, a->data, bytes);
    }
    return image;
}

/* Uploads, runs, downloads. result[i] gets the bytes of array i with its guard. */
static void
run_on(troupe_device *d, const char *what, call_fn *call, const void *shape, const struct arg *args,
    int count, uint8_t **result)
{
    void *array[ARGS_MAX] = {0};
    assert_true(count <= ARGS_MAX);
    for (int i = 0; i < count; ++i) {
        result[i] = image_of(&args[i]);
        array[i] = troupe_device_alloc(d, bytes_of(&args[i]) + GUARD);
        assert_non_null(array[i]);
        need_ok(d, troupe_device_upload(d, array[i], result[i], bytes_of(&args[i]) + GUARD), what);
    }
    call(d, array, shape);
    need_ok(d, TROUPE_OK, what);
    for (int i = 0; i < count; ++i) {
        need_ok(
            d, troupe_device_download(d, result[i], array[i], bytes_of(&args[i]) + GUARD), what);
        troupe_device_free(d, array[i]);
    }
}

static void
check_guard(const char *what, int index, const struct arg *a, const uint8_t *result)
{
    size_t bytes = bytes_of(a);
    for (size_t i = 0; i < GUARD; ++i) {
        if (result[bytes + i] != GUARD_BYTE) {
            fail_msg("%s: wrote behind array %d, byte %zu past its %zu", what, index, i, bytes);
        }
    }
    if (a->kind == READ && a->data != NULL && memcmp(result, a->data, bytes) != 0) {
        fail_msg("%s: changed array %d, which it only reads", what, index);
    }
}

static void
check_floats(const char *what, int index, const struct arg *a, const float *got, const float *want)
{
    double square = 0;
    for (size_t i = 0; i < a->count; ++i) {
        square += isfinite(want[i]) ? (double)want[i] * (double)want[i] : 0;
    }
    double allowed = a->tolerance * sqrt(square / (double)(a->count > 0 ? a->count : 1)) +
                     (a->tolerance > 0 ? 1e-6 : 0);
    for (size_t i = 0; i < a->count; ++i) {
        bool same = memcmp(&got[i], &want[i], sizeof *got) == 0;
        if (!same && !(fabs((double)got[i] - (double)want[i]) <= allowed)) {
            fail_msg("%s: array %d, element %zu of %zu is %.9g, plain has %.9g (allowed %.3g)",
                what, index, i, a->count, (double)got[i], (double)want[i], allowed);
        }
    }
}

void
rig_check(const struct rig *rig, const char *what, call_fn *call, const void *shape,
    const struct arg *args, int count)
{
    uint8_t *want[ARGS_MAX], *got[ARGS_MAX], *again[ARGS_MAX];
    run_on(rig->plain, what, call, shape, args, count, want);
    run_on(rig->tested, what, call, shape, args, count, got);
    run_on(rig->tested, what, call, shape, args, count, again);
    for (int i = 0; i < count; ++i) {
        size_t bytes = bytes_of(&args[i]);
        check_guard(what, i, &args[i], got[i]);
        if (memcmp(got[i], again[i], bytes) != 0) {
            fail_msg("%s: array %d differs between two runs", what, i);
        }
        if (args[i].kind == FLOATS) {
            check_floats(what, i, &args[i], (const float *)(const void *)got[i],
                (const float *)(const void *)want[i]);
        } else if (args[i].kind != READ && memcmp(got[i], want[i], bytes) != 0) {
            fail_msg("%s: array %d is not the plain device's", what, i);
        }
    }
    rig_free_all();
}

float *
rig_run(
    troupe_device *d, call_fn *call, const void *shape, const struct arg *args, int count, int out)
{
    uint8_t *result[ARGS_MAX];
    run_on(d, "a run by itself", call, shape, args, count, result);
    return (float *)(void *)result[out];
}

void
rig_same(const char *what, const float *got, const float *want, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        if (memcmp(&got[i], &want[i], sizeof *got) != 0) {
            fail_msg("%s: element %zu of %zu is %.9g (%a), should be %.9g (%a)", what, i, count,
                (double)got[i], (double)got[i], (double)want[i], (double)want[i]);
        }
    }
}

float *
rig_upload(troupe_device *d, const float *data, size_t count)
{
    float *ptr = troupe_device_alloc(d, count * sizeof *ptr);
    assert_non_null(ptr);
    if (data != NULL) {
        need_ok(d, troupe_device_upload(d, ptr, data, count * sizeof *ptr), "an upload");
    }
    return ptr;
}

float *
rig_download(troupe_device *d, const float *device, size_t count)
{
    float *host = rig_zalloc(count * sizeof *host);
    need_ok(d, troupe_device_download(d, host, device, count * sizeof *host), "a download");
    return host;
}
