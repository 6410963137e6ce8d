/* The device table: what a kind of device implements so that kernels.h works on it.
 *
 * A kind is a table of functions, a table of fused operations (troupe_ops) and a way to open. The
 * CPU is built in. Other kinds are shared objects, because the library may not depend on what they
 * need (a GPU's run-time library, its driver): `libtroupe_KIND.so` is looked for when a name of
 * that kind is opened first, and stays loaded. Folders in order:
 *   1. those of the environment variable TROUPE_DEVICE_PATH, separated by ':'; if it is set, no
 *      others are looked at
 *   2. that of the program or library which holds this code, its ../lib/troupe, troupe and
 *      ../troupe (an installation), and kernels/cuda one to three folders up (a build tree)
 * It exports one symbol, `troupe_device_module`, a troupe_device_module.
 *
 * Rules for implementers
 *   - A handle begins with a troupe_device_head. One thread owns a handle; handles of one device
 *     are independent, but memory and packed weights made by one may be read by the others, so what
 *     makes them (alloc, upload, pack, sync) leaves them visible to all.
 *   - alloc, upload, download, and the functions that give a status return NULL or DEVICE on a
 *     failed device; operations return nothing and do nothing there. None of them crashes or hangs.
 *   - The first failure of hardware or driver is kept with the name of the call, the device's UUID
 *     and the remedy; it is what sync reports from then on.
 *   - close and the *_free functions work on a failed device and never report.
 *
 * The suite for implementers is tests/conform/device. */
#ifndef TROUPE_EXT_DEVICE_H
#define TROUPE_EXT_DEVICE_H

#include <troupe/kernels.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define TROUPE_DEVICE_ABI           1u
#define TROUPE_DEVICE_MODULE_SYMBOL "troupe_device_module"

/* Entry by entry the function of the same name in kernels.h. All are there but where it says
 * otherwise; pointers are not NULL, sizes not 0, unless the public function allows no shortcut. */
typedef struct troupe_device_table {
    void (*close)(troupe_device *d);
    void (*get_info)(troupe_device *d, troupe_device_info *info); /* *info is zeroed */
    void *(*alloc)(troupe_device *d, size_t bytes);               /* bytes may be 0 */
    void (*free)(troupe_device *d, void *ptr);
    troupe_status (*upload)(troupe_device *d, void *dst, const void *src, size_t bytes);
    troupe_status (*download)(troupe_device *d, void *dst, const void *src, size_t bytes);
    troupe_status (*copy)(troupe_device *d, void *dst, const void *src, size_t bytes);
    troupe_status (*zero)(troupe_device *d, void *dst, size_t bytes);
    troupe_status (*sync)(troupe_device *d, troupe_error *err);
    /* NULL, all eight: the device has one stream, in which work is done when a call returns. */
    troupe_status (*stream_new)(troupe_device *d, troupe_device_stream **out, troupe_error *err);
    void (*stream_free)(troupe_device *d, troupe_device_stream *stream);
    void (*use)(troupe_device *d, troupe_device_stream *stream);
    troupe_status (*event_new)(troupe_device *d, troupe_device_event **out, troupe_error *err);
    void (*event_free)(troupe_device *d, troupe_device_event *event);
    troupe_status (*event_record)(troupe_device *d, troupe_device_event *event);
    troupe_status (*event_wait)(troupe_device *d, troupe_device_event *event);
    troupe_status (*event_done)(troupe_device *d, troupe_device_event *event, bool *done);
    troupe_packed_weight *(*weight_pack)(troupe_device *d, const float *weight, int N, int K);
    void (*weight_repack)(troupe_device *d, troupe_packed_weight *packed, const float *weight);
    void (*weight_free)(troupe_device *d, troupe_packed_weight *packed);
} troupe_device_table;

/* The beginning of every implementation's struct troupe_device. */
typedef struct troupe_device_head {
    const troupe_device_table *table;
    const troupe_ops *ops;
    const char *name; /* lives as long as the handle */
} troupe_device_head;

/* What a shared object exports. Sizes and version are compared before anything is called. */
typedef struct troupe_device_module {
    uint32_t abi; /* TROUPE_DEVICE_ABI */
    uint32_t table_size, ops_size;
    /* `options` is complete and checked. `name` begins with the kind. */
    troupe_status (*open)(const char *name, const troupe_device_options *options,
        troupe_device **out, troupe_error *err);
} troupe_device_module;

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
