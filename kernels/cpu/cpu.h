/* What the files of the CPU device share: the handle, its scratch memory, packed weights. Private.
 */
#ifndef TR_KERNELS_CPU_H
#define TR_KERNELS_CPU_H

#include <troupe/ext/device.h>
#include <troupe/kernels.h>

enum {
    TR_PANEL = 16
}; /* columns of a packed panel: the lanes of every vector path */

/* Panels of TR_PANEL output columns: element (n, k) is data[((n / 16) * K + k) * 16 + n % 16].
 * Columns beyond N are zero, so that a kernel may compute them and throw them away. */
struct troupe_packed_weight {
    int N, K;
    int panels;
    float *data;
};

/* Memory that lives for one operation. A chain of blocks that only grows: after the first calls of
 * a given size an operation allocates nothing. */
struct tr_scratch {
    char *block;
    size_t size, used;
    struct tr_scratch_old *old; /* outgrown blocks of the running operation */
};

/* cos and sin of position * inv_freq[i], times scale, for positions 0..positions - 1: row p holds
 * E/2 cosines, then E/2 sines. One for each rotary embedding that the device has met. */
struct tr_rope_table {
    float *inv_freq; /* copy, E/2 */
    float scale;
    int E;
    ptrdiff_t positions;
    float *rows;
};

enum {
    TR_ROPE_TABLES = 4
};

struct troupe_device {
    troupe_device_head head;
    troupe_device_options options;
    struct tr_scratch scratch;
    struct tr_rope_table rope[TR_ROPE_TABLES];
    int rope_next;        /* the table that the next unknown embedding takes */
    struct tr_pool *pool; /* NULL: one thread, or already inside a range of a split */
    int depth;            /* of nested operations; the outermost one resets the scratch memory */
};

/* An operation that needs scratch brackets itself with these; they nest. */
void tr_scratch_begin(troupe_device *d);
void tr_scratch_end(troupe_device *d);
/* 64-byte aligned, uninitialised, valid until the outermost tr_scratch_end. */
void *tr_scratch(troupe_device *d, size_t bytes);
void tr_scratch_fini(troupe_device *d);

/* 64-byte aligned, zeroed; NULL when there is none left. Freed with free(). */
void *tr_aligned_alloc(size_t bytes);

/* The rows of the table of `rope` (stride E), grown to cover the R positions of `pos`. Valid until
 * the next call. Positions are below 2^20. */
const float *tr_rope_rows(
    troupe_device *d, const troupe_rope *rope, int E, const int32_t *pos, int R);
void tr_rope_fini(troupe_device *d);

/* Opens "cpu", "cpu:PATH" or "cpu:plain". NOT_FOUND for other names. */
troupe_status tr_cpu_open(const char *name, const troupe_device_options *options,
    troupe_device **out, troupe_error *err) TROUPE_MUST_USE;

extern const troupe_ops tr_plain_ops;

/* The vector paths that this program was built with, best first; the last one runs everywhere. */
struct tr_path {
    const troupe_ops *ops; /* its name is the device's: "cpu:avx2" */
    bool (*supported)(void);
};
const struct tr_path *tr_paths(size_t *count);

#endif
