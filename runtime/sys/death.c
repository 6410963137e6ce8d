/* What a worker died of, as far as the kernel tells, and how it is said. */
#include "procfs.h"
#include "spawn.h"
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    KMSG_RECORDS_MAX = 65536
};

/* --- the last lines --------------------------------------------------------------------------- */

void
tr_death_keep_line(tr_worker *worker, const char *line, size_t size)
{
    const size_t room = sizeof worker->tail - 2; /* for a newline and a zero */
    if (size > room) {
        size_t from = size - room;
        while (from < size && ((unsigned char)line[from] & 0xC0U) == 0x80U) {
            from++; /* not in the middle of a character */
        }
        line += from;
        size -= from;
    }
    /* Whole lines go, the oldest first. */
    size_t drop = 0;
    while (worker->tail_size - drop + size > room) {
        const char *end = memchr(worker->tail + drop, '\n', worker->tail_size - drop);
        TR_ASSERT(end != NULL);
        drop = (size_t)(end - worker->tail) + 1;
    }
    worker->tail_size -= drop;
    memmove(worker->tail, worker->tail + drop, worker->tail_size);
    memcpy(worker->tail + worker->tail_size, line, size);
    worker->tail_size += size;
    worker->tail[worker->tail_size++] = '\n';
}

/* --- the out-of-memory killer ----------------------------------------------------------------- */

/* Does a record of the kernel's log, not older than `since_us`, say that it killed `pid`? */
static bool
record_names(const char *record, pid_t pid, uint64_t since_us)
{
    char wanted[48];
    unsigned long long time_us = 0;
    (void)snprintf(wanted, sizeof wanted, "Killed process %d (", (int)pid);
    return sscanf(record, "%*u,%*u,%llu", &time_us) == 1 && time_us >= since_us &&
           strstr(record, wanted) != NULL;
}

/* 1 yes, 0 no, -1 the log is not ours to read. */
static int
kernel_log_names(pid_t pid, uint64_t since_ns)
{
    int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    /* Its clock is not quite ours; a number is not used again within a second. */
    const uint64_t since_us = since_ns > 1000000000 ? (since_ns - 1000000000) / 1000 : 0;
    int found = 0;
    for (int i = 0; i < KMSG_RECORDS_MAX && found == 0; i++) {
        char record[8192];
        const ssize_t got = read(fd, record, sizeof record - 1);
        if (got < 0 && (errno == EPIPE || errno == EINTR)) {
            continue; /* overwritten while we read: the next record is there */
        }
        if (got <= 0) {
            found = errno == EAGAIN || got == 0 ? 0 : -1;
            break;
        }
        record[got] = '\0';
        found = record_names(record, pid, since_us) ? 1 : 0;
    }
    tr_fd_close(&fd);
    return found;
}

static void
note_oom(tr_worker *worker)
{
    if (tr_cgroup_oom_kills(&worker->cgroup) > 0) {
        worker->oom = true;
        return;
    }
    const uint64_t kills = tr_proc_oom_kills();
    if (kills == worker->oom_kills && kills != 0) {
        return; /* it has killed nobody meanwhile */
    }
    const int named = kernel_log_names(worker->pid, worker->started_ns);
    worker->oom = named == 1;
    worker->oom_possible = named < 0;
}

void
tr_death_note_usage(tr_worker *worker, const struct rusage *usage)
{
    /* Until exec the child ran in the memory of its parent, whose peak the kernel counts as the
     * child's; only what is above it was the child's own for certain. */
    const uint64_t peak = (uint64_t)usage->ru_maxrss * 1024;
    if (peak > worker->parent_peak_bytes) {
        worker->peak_bytes = TR_MAX(worker->peak_bytes, peak);
    }
    if (WIFSIGNALED(worker->status) && WTERMSIG(worker->status) == SIGKILL && !worker->ceiling &&
        !worker->stopped) {
        note_oom(worker);
    }
}

/* --- the record ------------------------------------------------------------------------------- */

void
tr_worker_death(const tr_worker *worker, tr_death *death)
{
    const bool known = worker->reaped && worker->status_known;
    *death = (tr_death){.pid = worker->pid,
        .signal = known && WIFSIGNALED(worker->status) ? WTERMSIG(worker->status) : 0,
        .exit_code = known && WIFEXITED(worker->status) ? WEXITSTATUS(worker->status) : -1,
        .ceiling = worker->ceiling,
        .oom = worker->oom,
        .oom_possible = worker->oom_possible,
        .stopped = worker->stopped,
        .memory_bytes_max = worker->memory_bytes_max,
        .anon_bytes = worker->anon_bytes,
        .rss_bytes = worker->rss_bytes,
        .rss_peak_bytes = worker->peak_bytes,
        .wall_ns = (worker->reaped ? worker->exited_ns : tr_monotonic_ns()) - worker->started_ns,
        .state = worker->state};
    const size_t size = worker->tail_size > 0 ? worker->tail_size - 1 : 0;
    memcpy(death->last_lines, worker->tail, size);
    death->last_lines[size] = '\0';
}

static double
mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

static void
say_how(const tr_death *d, tr_buf *text)
{
    if (d->ceiling) {
        tr_buf_printf(text,
            "was killed: its memory ceiling of %.0f MiB was exceeded: %.0f MiB anonymous resident",
            mib(d->memory_bytes_max), mib(d->anon_bytes));
        return;
    }
    if (d->signal == 0) {
        if (d->exit_code >= 0) {
            tr_buf_printf(text, "ended with exit code %d", d->exit_code);
        } else {
            tr_buf_puts(text, "is gone, it is not known how");
        }
        return;
    }
    const char *name = sigabbrev_np(d->signal);
    tr_buf_printf(text, "was killed by signal %d (SIG%s)", d->signal, name != NULL ? name : "?");
    if (d->signal != SIGKILL) {
        return;
    }
    tr_buf_puts(text, d->stopped        ? ", by its node"
                      : d->oom          ? ", by the kernel's OOM killer"
                      : d->oom_possible ? ", by the OOM killer or by somebody"
                                        : "");
}

void
tr_death_text(const tr_death *death, const char *doing, char *out, size_t size)
{
    tr_buf text = {0};
    tr_buf_printf(&text, "(pid %d) ", death->pid);
    say_how(death, &text);
    if (doing != NULL && doing[0] != '\0') {
        tr_buf_printf(&text, " %s", doing);
    }
    if (death->state == 'T' || death->state == 't') {
        tr_buf_puts(&text, "; it was stopped");
    }
    if (death->rss_bytes > 0 && !death->ceiling) {
        tr_buf_printf(&text, "; resident %.0f MiB", mib(death->rss_bytes));
    } else if (death->rss_peak_bytes > 0 && !death->ceiling) {
        tr_buf_printf(&text, "; resident %.0f MiB at most", mib(death->rss_peak_bytes));
    }
    if (death->last_lines[0] == '\0') {
        tr_buf_puts(&text, "; it printed nothing");
    } else {
        /* On one line, and the newest lines are the ones that are kept. */
        const size_t spare = size > text.size + 24 ? size - text.size - 24 : 0;
        const char *from = death->last_lines;
        while (strlen(from) * 2 > spare && strchr(from, '\n') != NULL) {
            from = strchr(from, '\n') + 1;
        }
        tr_buf_puts(&text, "; last lines: ");
        for (const char *c = from; *c != '\0'; c++) {
            tr_buf_append(&text, *c == '\n' ? " | " : c, *c == '\n' ? 3 : 1);
        }
    }
    (void)snprintf(out, size, "%s", text.data);
    tr_buf_fini(&text);
}

/* --- for doctor ------------------------------------------------------------------------------- */

void
tr_worker_limits_text(char *out, size_t size)
{
    struct tr_cgroup cgroup;
    const bool made = tr_cgroup_make(&cgroup, 1ULL << 40, false);
    int pidfd = tr_pidfd_open(getpid());
    (void)snprintf(out, size,
        "workers: killed %s; memory: anonymous resident memory sampled%s; end: noticed by %s",
        made ? "by control group" : "by process group and mark (no control group can be made here)",
        !made           ? ""
        : cgroup.memory ? ", and memory.max"
                        : " (the control group has no memory controller)",
        pidfd >= 0 ? "pidfd" : "polling (no pidfd_open)");
    tr_fd_close(&pidfd);
    tr_cgroup_remove(&cgroup);
}
