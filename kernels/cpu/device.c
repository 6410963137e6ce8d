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
    TR_ASSERT(paths + 3 <= NAMES_MAX);
    names[count++] = "cpu";
    for (size_t i = 0; i < paths; ++i) {
        names[count++] = path[i].ops->name;
    }
    names[count++] = tr_plain_ops.name;
    names[count++] = "cuda";
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

static const troupe_device_table cpu_table;

troupe_status
tr_cpu_open(
    const char *name, const troupe_device_options *options, troupe_device **out, troupe_error *err)
{
    const troupe_ops *ops = NULL;
    troupe_status status = find_ops(name, &ops, err);
    if (status != TROUPE_OK) {
        return status;
    }
    troupe_device *d = tr_zalloc(1, sizeof *d);
    d->head.table = &cpu_table;
    d->head.ops = ops;
    d->head.name = strcmp(name, "cpu") == 0 ? "cpu" : ops->name;
    d->options = *options;
    status = tr_pool_open(&d->pool, d, options->threads, err);
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

static void
cpu_close(troupe_device *device)
{
    tr_pool_close(device->pool);
    tr_rope_fini(device);
    tr_scratch_fini(device);
    tr_free(device);
}

static void
cpu_info(troupe_device *device, troupe_device_info *info)
{
    (void)device;
    memcpy(info->kind, "cpu", sizeof "cpu");
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

static void *
cpu_alloc(troupe_device *device, size_t bytes)
{
    (void)device;
    return tr_aligned_alloc(bytes);
}

static void
cpu_free(troupe_device *device, void *ptr)
{
    (void)device;
    free(ptr);
}

/* Host and device memory are one, and zeroed and copied alike. */
static troupe_status
cpu_copy(troupe_device *device, void *dst, const void *src, size_t bytes)
{
    (void)device;
    memcpy(dst, src, bytes);
    return TROUPE_OK;
}

static troupe_status
cpu_zero(troupe_device *device, void *dst, size_t bytes)
{
    (void)device;
    memset(dst, 0, bytes);
    return TROUPE_OK;
}

static troupe_status
cpu_sync(troupe_device *device, troupe_error *err)
{
    (void)device;
    (void)err;
    return TROUPE_OK; /* every operation has finished when it returns, and none can fail */
}

static void
cpu_repack(troupe_device *device, troupe_packed_weight *packed, const float *weight)
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

static troupe_packed_weight *
cpu_pack(troupe_device *device, const float *weight, int N, int K)
{
    troupe_packed_weight *packed = tr_zalloc(1, sizeof *packed);
    packed->N = N;
    packed->K = K;
    packed->panels = (N + TR_PANEL - 1) / TR_PANEL;
    packed->data = tr_aligned_alloc((size_t)packed->panels * (size_t)K * TR_PANEL * sizeof(float));
    if (packed->data == NULL) {
        tr_free(packed);
        return NULL;
    }
    cpu_repack(device, packed, weight);
    return packed;
}

static void
cpu_weight_free(troupe_device *device, troupe_packed_weight *packed)
{
    (void)device;
    free(packed->data);
    tr_free(packed);
}

static const troupe_device_table cpu_table = {
    .close = cpu_close,
    .get_info = cpu_info,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_copy,
    .download = cpu_copy,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .sync = cpu_sync,
    .weight_pack = cpu_pack,
    .weight_repack = cpu_repack,
    .weight_free = cpu_weight_free,
};

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
