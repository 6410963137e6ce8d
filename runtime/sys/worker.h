/* What worker.c and death.c share. */
#ifndef TR_SYS_WORKER_H
#define TR_SYS_WORKER_H

#include "cgroup.h"
#include "lines.h"
#include "sweep.h"

#include <troupe/ext/worker.h>

#include <sys/resource.h>

struct tr_worker {
    void (*line)(void *self, int stream, const char *line, size_t size);
    void *self;
    uint64_t memory_bytes_max;
    bool own_group;
    pid_t pid;
    int pidfd;  /* -1: tr_worker_check looks */
    int out[2]; /* our ends of its stdout and stderr; -1: not captured */
    bool out_ended[2];
    struct tr_cgroup cgroup; /* dir_fd -1: none */
    char mark[TR_MARK_MAX];
    uint64_t start_ticks; /* as /proc has it; 0: not known */
    struct tr_lines lines[2];
    char tail[sizeof((tr_death *)0)->last_lines];
    size_t tail_size;

    bool reaped;
    bool done; /* as tr_worker_exited */
    bool ceiling, stopped, oom, oom_possible;
    bool status_known;
    int status; /* of wait4 */
    uint64_t started_ns, exited_ns;
    uint64_t oom_kills; /* on this machine, when it was started */
    uint64_t rss_bytes, anon_bytes, peak_bytes;
    uint64_t parent_peak_bytes; /* see tr_death_note_usage */
    char state;
};

/* After wait4: the peak, and whose SIGKILL it was. */
void tr_death_note_usage(tr_worker *worker, const struct rusage *usage);
/* Keeps the end of what was printed. */
void tr_death_keep_line(tr_worker *worker, const char *line, size_t size);

#endif
