/* See output.h. The lines that wait for a stream are one buffer; its thread takes it whole and
 * writes it while the next one fills. Each stream has its own: one that nobody reads does not hold
 * the other. */
#include "node/output.h"

#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>
#include <troupe/ext/thread.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    WAITING_BYTES_MAX = 1 << 20
};

struct lane {
    int fd;
    struct lane *complaints; /* where it is said that lines were dropped */
    tr_mutex mutex;          /* guards all that follows but the thread */
    tr_cond changed;
    tr_buf waiting;
    uint64_t dropped;
    bool end;
    bool ended;
    tr_thread thread;
};

struct tr_output {
    struct lane *lanes[2]; /* standard output, standard error */
};

static void
write_out(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, bytes, size);
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
add_line(struct lane *lane, const char *prefix, const char *line, size_t size)
{
    tr_mutex_lock(&lane->mutex);
    if (lane->waiting.size + size > WAITING_BYTES_MAX) {
        lane->dropped++;
    } else {
        if (prefix != NULL) {
            tr_buf_puts(&lane->waiting, prefix);
            tr_buf_puts(&lane->waiting, ": ");
        }
        tr_buf_append(&lane->waiting, line, size);
        tr_buf_puts(&lane->waiting, "\n");
    }
    tr_cond_broadcast(&lane->changed);
    tr_mutex_unlock(&lane->mutex);
}

static void
complain(const struct lane *lane, uint64_t dropped)
{
    char line[64];
    int size = snprintf(
        line, sizeof line, "troupe: %llu lines were dropped here", (unsigned long long)dropped);
    add_line(lane->complaints, NULL, line, (size_t)size);
}

static void
run(void *arg)
{
    struct lane *lane = arg;
    sigset_t broken;
    (void)sigemptyset(&broken);
    (void)sigaddset(&broken, SIGPIPE); /* a reader that has gone is no reason to end */
    (void)pthread_sigmask(SIG_BLOCK, &broken, NULL);
    tr_mutex_lock(&lane->mutex);
    for (;;) {
        while (lane->waiting.size == 0 && lane->dropped == 0 && !lane->end) {
            tr_cond_wait(&lane->changed, &lane->mutex);
        }
        if (lane->waiting.size == 0 && lane->dropped == 0) {
            break;
        }
        uint64_t dropped = lane->dropped;
        tr_buf taken = lane->waiting;
        lane->dropped = 0;
        lane->waiting = (tr_buf){0};
        tr_mutex_unlock(&lane->mutex);
        write_out(lane->fd, taken.data, taken.size);
        tr_buf_fini(&taken);
        if (dropped > 0) {
            complain(lane, dropped);
        }
        tr_mutex_lock(&lane->mutex);
    }
    lane->ended = true;
    tr_cond_broadcast(&lane->changed);
    tr_mutex_unlock(&lane->mutex);
}

static void
free_lane(struct lane *lane)
{
    tr_cond_fini(&lane->changed);
    tr_mutex_fini(&lane->mutex);
    tr_buf_fini(&lane->waiting);
    tr_free(lane);
}

static troupe_status
open_lane(int fd, struct lane *complaints, struct lane **out, troupe_error *err)
{
    struct lane *lane = tr_zalloc(1, sizeof *lane);
    lane->fd = fd;
    lane->complaints = complaints == NULL ? lane : complaints;
    tr_mutex_init(&lane->mutex);
    tr_cond_init(&lane->changed);
    troupe_status status = tr_thread_start(&lane->thread, "output", run, lane, err);
    if (status != TROUPE_OK) {
        free_lane(lane);
        return status;
    }
    *out = lane;
    return TROUPE_OK;
}

/* False: its thread is stuck in a write. */
static bool
end_lane(struct lane *lane, uint64_t until)
{
    tr_mutex_lock(&lane->mutex);
    lane->end = true;
    tr_cond_broadcast(&lane->changed);
    while (!lane->ended && tr_cond_wait_until(&lane->changed, &lane->mutex, until)) {
    }
    bool ended = lane->ended;
    tr_mutex_unlock(&lane->mutex);
    if (ended) {
        tr_thread_join(&lane->thread);
    }
    return ended;
}

troupe_status
tr_output_open(struct tr_output **out, troupe_error *err)
{
    struct tr_output *output = tr_zalloc(1, sizeof *output);
    troupe_status status = open_lane(STDERR_FILENO, NULL, &output->lanes[1], err);
    if (status == TROUPE_OK) {
        status = open_lane(STDOUT_FILENO, output->lanes[1], &output->lanes[0], err);
    }
    if (status != TROUPE_OK) {
        tr_output_close(output, 0);
        return status;
    }
    *out = output;
    return TROUPE_OK;
}

void
tr_output_line(
    struct tr_output *output, int stream, const char *prefix, const char *line, size_t size)
{
    add_line(output->lanes[stream == STDOUT_FILENO ? 0 : 1], prefix, line, size);
}

void
tr_output_close(struct tr_output *output, uint64_t limit_ns)
{
    if (output == NULL) {
        return;
    }
    const troupe_sys *sys = troupe_sys_posix();
    uint64_t until = sys->now_ns(sys) + limit_ns;
    bool ended = true; /* standard output first: it may have to say what it dropped */
    for (size_t i = 0; i < TR_COUNT(output->lanes); i++) {
        ended = (output->lanes[i] == NULL || end_lane(output->lanes[i], until)) && ended;
    }
    for (size_t i = 0; i < TR_COUNT(output->lanes) && ended; i++) {
        if (output->lanes[i] != NULL) {
            free_lane(output->lanes[i]);
        }
    }
    tr_free(output);
}
