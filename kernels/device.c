/* The public functions of devices: each goes through the handle's table. Names to kinds. */
#include "cpu/cpu.h"
#include "cpu/pool.h"
#include "cuda/load.h"

#include <troupe/ext/base.h>
#include <troupe/ext/device.h>

#include <string.h>

static const troupe_device_head *
head_of(const troupe_device *device)
{
    return (const troupe_device_head *)(const void *)device;
}

static const troupe_device_table *
table_of(const troupe_device *device)
{
    return head_of(device)->table;
}

/* Whether `name` is `kind` or begins with "kind:". */
static bool
is_of_kind(const char *name, const char *kind)
{
    size_t size = strlen(kind);
    return strncmp(name, kind, size) == 0 && (name[size] == '\0' || name[size] == ':');
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
    return is_of_kind(name, "cuda") ? tr_module_open("cuda", name, &given, out, err)
                                    : tr_cpu_open(name, &given, out, err);
}

void
troupe_device_close(troupe_device *device)
{
    if (device != NULL) {
        table_of(device)->close(device);
    }
}

const troupe_ops *
troupe_device_ops(const troupe_device *device)
{
    return head_of(device)->ops;
}

const char *
troupe_device_name(const troupe_device *device)
{
    return head_of(device)->name;
}

void
troupe_device_get_info(troupe_device *device, troupe_device_info *info)
{
    *info = (troupe_device_info){0};
    table_of(device)->get_info(device, info);
}

/* --- memory and copies --- */

void *
troupe_device_alloc(troupe_device *device, size_t bytes)
{
    return table_of(device)->alloc(device, bytes);
}

void
troupe_device_free(troupe_device *device, void *ptr)
{
    if (ptr != NULL) {
        table_of(device)->free(device, ptr);
    }
}

troupe_status
troupe_device_upload(troupe_device *device, void *dst, const void *src, size_t bytes)
{
    return bytes == 0 ? TROUPE_OK : table_of(device)->upload(device, dst, src, bytes);
}

troupe_status
troupe_device_download(troupe_device *device, void *dst, const void *src, size_t bytes)
{
    return bytes == 0 ? TROUPE_OK : table_of(device)->download(device, dst, src, bytes);
}

troupe_status
troupe_device_copy(troupe_device *device, void *dst, const void *src, size_t bytes)
{
    return bytes == 0 ? TROUPE_OK : table_of(device)->copy(device, dst, src, bytes);
}

troupe_status
troupe_device_zero(troupe_device *device, void *dst, size_t bytes)
{
    return bytes == 0 ? TROUPE_OK : table_of(device)->zero(device, dst, bytes);
}

troupe_status
troupe_device_sync(troupe_device *device, troupe_error *err)
{
    return table_of(device)->sync(device, err);
}

/* --- streams and events; without them a handle is a stream whose work is done at once --- */

struct troupe_device_stream {
    char unused;
};

struct troupe_device_event {
    char unused;
};

troupe_status
troupe_device_stream_new(troupe_device *device, troupe_device_stream **out, troupe_error *err)
{
    if (table_of(device)->stream_new != NULL) {
        return table_of(device)->stream_new(device, out, err);
    }
    *out = tr_zalloc(1, sizeof **out);
    return TROUPE_OK;
}

void
troupe_device_stream_free(troupe_device *device, troupe_device_stream *stream)
{
    if (stream == NULL) {
        return;
    }
    if (table_of(device)->stream_free != NULL) {
        table_of(device)->stream_free(device, stream);
    } else {
        tr_free(stream);
    }
}

void
troupe_device_use(troupe_device *device, troupe_device_stream *stream)
{
    if (table_of(device)->use != NULL) {
        table_of(device)->use(device, stream);
    }
}

troupe_status
troupe_device_event_new(troupe_device *device, troupe_device_event **out, troupe_error *err)
{
    if (table_of(device)->event_new != NULL) {
        return table_of(device)->event_new(device, out, err);
    }
    *out = tr_zalloc(1, sizeof **out);
    return TROUPE_OK;
}

void
troupe_device_event_free(troupe_device *device, troupe_device_event *event)
{
    if (event == NULL) {
        return;
    }
    if (table_of(device)->event_free != NULL) {
        table_of(device)->event_free(device, event);
    } else {
        tr_free(event);
    }
}

troupe_status
troupe_device_event_record(troupe_device *device, troupe_device_event *event)
{
    const troupe_device_table *t = table_of(device);
    return t->event_record != NULL ? t->event_record(device, event) : TROUPE_OK;
}

troupe_status
troupe_device_event_wait(troupe_device *device, troupe_device_event *event)
{
    const troupe_device_table *t = table_of(device);
    return t->event_wait != NULL ? t->event_wait(device, event) : TROUPE_OK;
}

troupe_status
troupe_device_event_done(troupe_device *device, troupe_device_event *event, bool *done)
{
    const troupe_device_table *t = table_of(device);
    *done = true;
    return t->event_done != NULL ? t->event_done(device, event, done) : TROUPE_OK;
}

/* --- packed weights --- */

troupe_packed_weight *
troupe_weight_pack(troupe_device *device, const float *weight, int N, int K)
{
    TR_ASSERT(N > 0 && K > 0);
    return table_of(device)->weight_pack(device, weight, N, K);
}

void
troupe_weight_repack(troupe_device *device, troupe_packed_weight *packed, const float *weight)
{
    table_of(device)->weight_repack(device, packed, weight);
}

void
troupe_weight_free(troupe_device *device, troupe_packed_weight *packed)
{
    if (packed != NULL) {
        table_of(device)->weight_free(device, packed);
    }
}
