/* See output.h. The lines that wait are one buffer; the thread takes it whole and writes it while
 * the next one fills. */
#include "node/output.h"

#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>
#include <troupe/ext/thread.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum {
    WAITING_BYTES_MAX = 1 << 20
};

struct tr_output {
    tr_mutex mutex; /* guards all that follows but the thread */
    tr_cond changed;
    tr_buf waiting;
    uint64_t dropped;
    bool end;
    bool ended;
    tr_thread thread;
};

static void
write_out(const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t n = write(STDERR_FILENO, bytes, size);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return; /* nobody is there to read it */
        }
        bytes += n;
        size -= (size_t)n;
    }
}

static void
run(void *arg)
{
    struct tr_output *output = arg;
    tr_mutex_lock(&output->mutex);
    for (;;) {
        while (output->waiting.size == 0 && output->dropped == 0 && !output->end) {
            tr_cond_wait(&output->changed, &output->mutex);
        }
        if (output->waiting.size == 0 && output->dropped == 0) {
            break;
        }
        if (output->dropped > 0) {
            tr_buf_printf(&output->waiting, "troupe: %llu lines were dropped here\n",
                (unsigned long long)output->dropped);
            output->dropped = 0;
        }
        tr_buf taken = output->waiting;
        output->waiting = (tr_buf){0};
        tr_mutex_unlock(&output->mutex);
        write_out(taken.data, taken.size);
        tr_buf_fini(&taken);
        tr_mutex_lock(&output->mutex);
    }
    output->ended = true;
    tr_cond_broadcast(&output->changed);
    tr_mutex_unlock(&output->mutex);
}

troupe_status
tr_output_open(struct tr_output **out, troupe_error *err)
{
    struct tr_output *output = tr_zalloc(1, sizeof *output);
    tr_mutex_init(&output->mutex);
    tr_cond_init(&output->changed);
    troupe_status status = tr_thread_start(&output->thread, "output", run, output, err);
    if (status != TROUPE_OK) {
        tr_cond_fini(&output->changed);
        tr_mutex_fini(&output->mutex);
        tr_free(output);
        return status;
    }
    *out = output;
    return TROUPE_OK;
}

void
tr_output_line(struct tr_output *output, const char *prefix, const char *line, size_t size)
{
    tr_mutex_lock(&output->mutex);
    if (output->waiting.size + size > WAITING_BYTES_MAX) {
        output->dropped++;
    } else {
        if (prefix != NULL) {
            tr_buf_puts(&output->waiting, prefix);
            tr_buf_puts(&output->waiting, ": ");
        }
        tr_buf_append(&output->waiting, line, size);
        tr_buf_puts(&output->waiting, "\n");
    }
    tr_cond_broadcast(&output->changed);
    tr_mutex_unlock(&output->mutex);
}

void
tr_output_close(struct tr_output *output, uint64_t limit_ns)
{
    if (output == NULL) {
        return;
    }
    const troupe_sys *sys = troupe_sys_posix();
    uint64_t until = sys->now_ns(sys) + limit_ns;
    tr_mutex_lock(&output->mutex);
    output->end = true;
    tr_cond_broadcast(&output->changed);
    while (!output->ended && tr_cond_wait_until(&output->changed, &output->mutex, until)) {
    }
    bool ended = output->ended;
    tr_mutex_unlock(&output->mutex);
    if (!ended) {
        return;
    }
    tr_thread_join(&output->thread);
    tr_cond_fini(&output->changed);
    tr_mutex_fini(&output->mutex);
    tr_buf_fini(&output->waiting);
    tr_free(output);
}
