/* SIGINT, SIGTERM, SIGHUP and SIGQUIT (the last two unless they were ignored, as SIGHUP is by
 * nohup) as events, for the one thread of a program that owns them: of the driver and of the node.
 * Workers are asked to end by their node, and ignore the first three. The SIGINT of a terminal
 * (Ctrl-C) does not reach them, since each leads a group of its own (tr_worker_options.own_group);
 * but a service manager or a batch system that ends a job sends SIGTERM to every process of it, and
 * a policy that died of that could not save its last step. A node in a group of its own is told by
 * its driver. */
#ifndef TR_SYS_SIGNALS_H
#define TR_SYS_SIGNALS_H

#include <troupe/ext/thread.h>

#include <signal.h>
#include <stdatomic.h>

struct tr_signals {
    tr_thread thread;
    sigset_t before; /* the mask of the thread that opened it */
    int signal_fd;
    int end_fd;
    void (*got)(void *self, int number);
    void (*last)(void *self, int number); /* at the second signal, before it ends the process; may
                                           * be NULL; set after the opening */
    void *self;
    void (*_Atomic tick)(void *self); /* every half second, for who watches; may be NULL, set after
                                       * the opening */
    atomic_int relay_pid;             /* who passes on what it gets, maybe late; 0: nobody */
};

/* Blocks the signals in the calling thread (and so in all that it starts) and runs got() on a
 * thread of its own when one comes. The second one ends the process as if nobody had caught it, and
 * so does SIGQUIT at once. One that comes within a second of the first is the same one, as is any
 * of the relay's; but a SIGINT is not where there is no relay: somebody pressed Ctrl-C twice. */
troupe_status tr_signals_open(struct tr_signals *signals, void (*got)(void *self, int number),
    void *self, troupe_error *err) TROUPE_MUST_USE;
/* Whether it is one of the four. */
bool tr_signals_is_end(int number);
/* For a worker, before it has threads: nothing but SIGKILL ends it. Programs that it starts begin
 * with the defaults (tr_spawn). */
void tr_signals_ignore(void);
/* Restores the mask of the calling thread. */
void tr_signals_close(struct tr_signals *signals);

#endif
