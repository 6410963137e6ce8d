/* What child.c and child_start.c share. */
#ifndef TR_SYS_CHILD_H
#define TR_SYS_CHILD_H

#include "sweep.h"

#include <troupe/ext/child.h>

#include <sys/types.h>

enum {
    TR_TAIL_MAX = 4096
};

struct tr_child {
    char *name;       /* argv[0] */
    pid_t pid;        /* -1 once reaped */
    int pidfd;        /* readable when the process has ended */
    int in, out, err; /* our ends; -1 when closed */
    int cancel_fd;    /* -1: none */
    int exit_status;  /* as of waitpid, once reaped; -1: unknown */
    size_t answer_bytes_max;
    size_t stderr_bytes_max;
    size_t stderr_bytes;    /* of this ask */
    char tail[TR_TAIL_MAX]; /* the end of stderr */
    size_t tail_size;
    char mark[TR_MARK_MAX]; /* of it and whatever it starts */
};

/* Waits until the process has ended, at most until `deadline_ns`; true when it has. */
bool tr_child_wait(const tr_child *child, uint64_t deadline_ns);
/* Kills the group and whatever has left it, and reaps the leader. */
void tr_child_kill(tr_child *child);

#endif
