/* The CPU device: its handle, its memory, the choice of a table of operations, packed weights. */
#include "cpu/cpu.h"
#include "cpu/pool.h"

#include <troupe/ext/base.h>

#include <stdlib.h>
#include <string.h>

enum {
    NAMES_MAX = 8
};

/* All names that troupe_device_open knows, "cpu" first. */
static size_t
list_names(const char *names[NAMES_MAX])
{
    size_t paths, count = 0;
    const struct tr_path *path = tr_paths(&paths);
    TR_ASSERT(paths + 2 <= NAMES_MAX);
    names[count++] = "cpu";
    for (size_t i = 0; i < paths; ++i) {
        names[count++] = path[i].ops->name;
    }
    names[count++] = tr_plain_ops.name;
    return count;
}

static troupe_status
fail_unknown(const char *name, troupe_error *err)
{
    const char *names[NAMES_MAX];
    size_t count = list_names(names);
    tr_buf known = {0};
    for (size_t i = 0; i < count; ++i) {
        tr_buf_printf(&known, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    const char *near = tr_nearest(name, names, count);
    troupe_status status = troupe_fail(err, TROUPE_NOT_FOUND,
        "device \"%s\" is not built into this program%s%s%s; it has: %s", name,
        near != NULL ? " (did you mean " : "", near != NULL ? near : "", near != NULL ? "?)" : "",
        known.data);
    tr_buf_fini(&known);
    return status;
}

/* The operations of a name: "cpu" takes the first path that this processor runs. */
static troupe_status
find_ops(const char *name, const troupe_ops **ops, troupe_error *err)
{
    size_t paths;
    const struct tr_path *path = tr_paths(&paths);
    bool any = strcmp(name, "cpu") == 0;
    for (size_t i = 0; i < paths; ++i) {
        bool named = strcmp(name, path[i].ops->name) == 0;
        if ((any || named) && path[i].supported()) {
            *ops = path[i].ops;
            return TROUPE_OK;
        }
        if (named) {
            return troupe_fail(err, TROUPE_UNSUPPORTED,
                "this processor does not run device \"%s\"; use \"cpu\", which takes what it has",
                name);
        }
    }
    if (strcmp(name, tr_plain_ops.name) == 0) {
        *ops = &tr_plain_ops;
        return TROUPE_OK;
    }
    return fail_unknown(name, err);
}

troupe_status
troupe_device_open(
    const char *name, const troupe_device_options *options, troupe_device **out, troupe_error *err)
{
    TR_ASSERT(name != NULL && out != NULL);
    troupe_device_options given = {.size = sizeof given, .threads = 1};
    if (options != NULL) {
        if (options->size != sizeof given || options->threads < 0 ||
            options->threads > TR_THREADS_MAX) {
            return troupe_fail(err, TROUPE_INVALID,
                "device options: size %zu and %d threads; set size to "
                "sizeof(troupe_device_options) and threads to 0..%d",
                options->size, options->threads, TR_THREADS_MAX);
        }
        given = *options;
    }
    const troupe_ops *ops = NULL;
    troupe_status status = find_ops(name, &ops, err);
    if (status != TROUPE_OK) {
        return status;
    }
    troupe_device *d = tr_zalloc(1, sizeof *d);
    d->ops = ops;
    d->name = strcmp(name, "cpu") == 0 ? "cpu" : ops->name;
    d->options = given;
    status = tr_pool_open(&d->pool, d, given.threads, err);
    if (status != TROUPE_OK) {
        tr_free(d);
        return status;
    }
    *out = d;
    return TROUPE_OK;
}

struct tr_scratch_old {
    struct tr_scratch_old *next;
    char *block;
};

static void
free_old(struct tr_scratch *s)
{
    while (s->old != NULL) {
        struct tr_scratch_old *next = s->old->next;
        free(s->old->block);
        tr_free(s->old);
        s->old = next;
    }
}

void
troupe_device_close(troupe_device *device)
{
    if (device == NULL) {
        return;
    }
    tr_pool_close(device->pool);
    tr_rope_fini(device);
    tr_scratch_fini(device);
    tr_free(device);
}

const troupe_ops *
troupe_device_ops(const troupe_device *device)
{
    return device->ops;
}

const char *
troupe_device_name(const troupe_device *device)
{
    return device->name;
}

void *
tr_aligned_alloc(size_t bytes)
{
    if (bytes > (size_t)PTRDIFF_MAX - 64) {
        return NULL;
    }
    size_t rounded = (TR_MAX(bytes, (size_t)1) + 63) / 64 * 64;
    void *ptr = aligned_alloc(64, rounded);
    if (ptr != NULL) {
        memset(ptr, 0, rounded);
    }
    return ptr;
}

void *
troupe_device_alloc(troupe_device *device, size_t bytes)
{
    (void)device;
    return tr_aligned_alloc(bytes);
}

void
troupe_device_free(troupe_device *device, void *ptr)
{
    (void)device;
    free(ptr);
}

troupe_status
troupe_device_upload(troupe_device *device, void *dst, const void *src, size_t bytes)
{
    (void)device;
    if (bytes > 0) {
        memcpy(dst, src, bytes);
    }
    return TROUPE_OK;
}

troupe_status
troupe_device_download(troupe_device *device, void *dst, const void *src, size_t bytes)
{
    return troupe_device_upload(device, dst, src, bytes);
}

troupe_status
troupe_device_sync(troupe_device *device, troupe_error *err)
{
    (void)device;
    (void)err;
    return TROUPE_OK; /* every operation has finished when it returns, and none can fail */
}

troupe_packed_weight *
troupe_weight_pack(troupe_device *device, const float *weight, int N, int K)
{
    TR_ASSERT(N > 0 && K > 0);
    troupe_packed_weight *packed = tr_zalloc(1, sizeof *packed);
    packed->N = N;
    packed->K = K;
    packed->panels = (N + TR_PANEL - 1) / TR_PANEL;
    packed->data = tr_aligned_alloc((size_t)packed->panels * (size_t)K * TR_PANEL * sizeof(float));
    if (packed->data == NULL) {
        tr_free(packed);
        return NULL;
    }
    troupe_weight_repack(device, packed, weight);
    return packed;
}

void
troupe_weight_repack(troupe_device *device, troupe_packed_weight *packed, const float *weight)
{
    (void)device;
    ptrdiff_t K = packed->K;
    for (ptrdiff_t n = 0; n < packed->N; ++n) {
        float *panel = packed->data + n / TR_PANEL * K * TR_PANEL + n % TR_PANEL;
        for (ptrdiff_t k = 0; k < K; ++k) {
            panel[k * TR_PANEL] = weight[n * K + k];
        }
    }
}

void
troupe_weight_free(troupe_device *device, troupe_packed_weight *packed)
{
    (void)device;
    if (packed != NULL) {
        free(packed->data);
        tr_free(packed);
    }
}

/* --- scratch memory --- */

void
tr_scratch_begin(troupe_device *d)
{
    ++d->depth;
}

void
tr_scratch_end(troupe_device *d)
{
    TR_ASSERT(d->depth > 0);
    if (--d->depth == 0) {
        free_old(&d->scratch);
        d->scratch.used = 0;
    }
}

void *
tr_scratch(troupe_device *d, size_t bytes)
{
    struct tr_scratch *s = &d->scratch;
    TR_ASSERT(d->depth > 0 && bytes < SIZE_MAX / 4);
    size_t need = (bytes + 63) / 64 * 64;
    if (s->used + need > s->size) {
        if (s->block != NULL) {
            struct tr_scratch_old *old = tr_alloc(sizeof *old);
            *old = (struct tr_scratch_old){.next = s->old, .block = s->block};
            s->old = old;
        }
        /* Room for all that this operation has asked for, so that its next run needs one block. */
        s->size = TR_MAX(2 * s->size, s->used + need);
        s->block = tr_aligned_alloc(s->size);
        TR_ASSERT(s->block != NULL);
        s->used = 0;
    }
    void *ptr = s->block + s->used;
    s->used += need;
    return ptr;
}

void
tr_scratch_fini(troupe_device *d)
{
    TR_ASSERT(d->depth == 0);
    free_old(&d->scratch);
    free(d->scratch.block);
    d->scratch = (struct tr_scratch){0};
}
