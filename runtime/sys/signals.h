/* SIGINT and SIGTERM as events, for the one thread of a program that owns them. */
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
    void *self;
};

/* Blocks both signals in the calling thread (and so in all that it starts) and runs got() on a
 * thread of its own when one comes. The second one ends the process as if nobody had caught it. */
troupe_status tr_signals_open(struct tr_signals *signals, void (*got)(void *self, int number),
    void *self, troupe_error *err) TROUPE_MUST_USE;
/* Restores the mask of the calling thread. */
void tr_signals_close(struct tr_signals *signals);

#endif
