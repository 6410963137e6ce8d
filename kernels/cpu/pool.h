/* The worker threads of a CPU device. Private.
 *
 * Operations cut their output (rows, columns, sequences, elements) into ranges, one for each
 * thread, and no output is the work of two. Since a row's bits depend on that row alone, they do
 * not depend on the number of threads. Workers sleep between operations; waking one costs about 15
 * us, so an operation says how little is not worth it. */
#ifndef TR_KERNELS_CPU_POOL_H
#define TR_KERNELS_CPU_POOL_H

#include <troupe/kernels.h>

struct tr_pool;

enum {
    TR_THREADS_MAX = 256
};

/* Work on items first..first + count - 1. `d` is the thread's own device: its scratch memory, no
 * pool. */
typedef void tr_range_fn(troupe_device *d, const void *context, ptrdiff_t first, ptrdiff_t count);

/* A pool of `threads` - 1 workers for device `d`; NULL in *pool for one thread. */
troupe_status tr_pool_open(
    struct tr_pool **pool, const troupe_device *d, int threads, troupe_error *err) TROUPE_MUST_USE;
void tr_pool_close(struct tr_pool *pool); /* NULL is allowed */

/* Runs fn over [0, items) in as many ranges as there are threads, but no range of fewer than
 * `grain` items; returns when all are done. Called by the owner of `d`, not from inside a range. */
void tr_split(
    troupe_device *d, ptrdiff_t items, ptrdiff_t grain, tr_range_fn *fn, const void *context);

/* Items whose cost is about 20 us when one costs `operations` floating-point operations. */
static inline ptrdiff_t
tr_grain(double operations)
{
    double grain = 1e6 / (operations > 1 ? operations : 1);
    return grain > 1 ? (ptrdiff_t)grain : 1;
}

#endif
