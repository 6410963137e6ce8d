/* SIGINT and SIGTERM as events, for the one thread of a program that owns them: of the driver and
 * of the node. Workers need none of it: the SIGINT of a terminal (Ctrl-C) goes to its foreground
 * process group, which is the driver's, and a worker leads a group of its own
 * (tr_worker_options.own_group), so it gets none and is asked to end by its node. A node in a group
 * of its own is told by its driver in the same way. A worker begins with both signals unblocked and
 * at their defaults, whatever mask the thread had that started it: a SIGTERM by hand ends it. */
#ifndef TR_SYS_SIGNALS_H
#define TR_SYS_SIGNALS_H

#include <troupe/ext/thread.h>

#include <signal.h>

struct tr_signals {
    tr_thread thread;
    sigset_t before; /* the mask of the thread that opened it */
    int signal_fd;
    int end_fd;
    void (*got)(void *self, int number);
    void (*last)(void *self, int number); /* at the second signal, before it ends the process; may
                                           * be NULL; set after the opening */
    void *self;
};

/* Blocks both signals in the calling thread (and so in all that it starts) and runs got() on a
 * thread of its own when one comes. The second one ends the process as if nobody had caught it. */
troupe_status tr_signals_open(struct tr_signals *signals, void (*got)(void *self, int number),
    void *self, troupe_error *err) TROUPE_MUST_USE;
/* Restores the mask of the calling thread. */
void tr_signals_close(struct tr_signals *signals);

#endif
