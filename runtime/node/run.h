/* A run as one of its processes sees it: the plan, where everything lives, and the loops that live
 * here. Shared by the files of this folder.
 *
 *   plan*.c layout.c  what the run is and where everything lives (plan.h)
 *   hosts.c           the loops of this process: hosts, threads, their end
 *   agent.c           one actor on each loop: makes actors, starts, stops, ends the loop, lists
 *                     waits; on a service loop also keeps the directory of its process
 *   controller*.c     the actor "node" on the first loop: takes the run from first spawn to end
 *   run.c             everything in one process
 *   driver.c node.c worker.c   the three kinds of processes of a run that has several
 *   process.c birth.c          what these share: plan, folder, guards; how one is told what it is
 *   launcher.c output.c        the node's workers, and the lines that they print
 *   names.c kept.c             what the controller keeps: names of actors, their checkpoints
 *   guest.c                    who asks a run from outside: `troupe status` and `stop`
 *
 * What can be known without asking: the agent of a loop is its first actor, and the controller the
 * second one on loop 0, so their addresses follow from the loops' epochs. */
#ifndef TR_NODE_RUN_H
#define TR_NODE_RUN_H

#include "node/plan.h"

#include <troupe/app.h>
#include <troupe/ext/host.h>
#include <troupe/ext/life.h>
#include <troupe/ext/thread.h>
#include <troupe/object.h>

#include <stdatomic.h>

struct tr_run;
struct tr_launcher;
struct tr_cut;

struct tr_run_loop {
    struct tr_run *run;
    uint16_t index;
    tr_host *host; /* NULL: of another process */
    tr_thread thread;
    troupe_ctx *agent;   /* owned by the host */
    struct tr_cut *cuts; /* peers that the controller is to be told of */
    troupe_call *stop;   /* to be answered when all actors have stopped; kept by the agent */
    bool end;            /* its thread is to leave */
    bool running;        /* it has a thread */
};

struct tr_run {
    const struct tr_plan *plan;
    struct tr_layout layout;
    uint16_t process; /* of the layout: which one this is */
    uint32_t epoch;   /* of the loops here */
    troupe_run_options options;
    tr_directory *directory;
    troupe_link *link;
    troupe_store *store; /* NULL in a driver of its own */
    const troupe_sys *sys;
    struct tr_life *life;      /* of this process; NULL when nobody watches */
    uint64_t *versions;        /* of the directory's places, as told by the controller */
    struct tr_run_loop *loops; /* of the layout */
    uint16_t node_role;
    uint16_t loop_role;
    struct tr_launcher *launcher; /* of a node that has workers; else NULL */
    /* Written by the signal thread, read by the first thread. */
    atomic_int signal;
    /* Of the first thread: how it stands and how it ended. */
    troupe_ctx *controller;
    troupe_ctx *driver;
    bool up;   /* every actor is started */
    bool done; /* every loop has been told to end */
    bool has_code;
    int code;
    bool stuck; /* a loop did not end in time: its thread cannot be joined */
    troupe_error error;
    /* Of a driver of its own: the store that the node with this pid has as that descriptor is to be
     * used as `slot`. */
    void (*attach)(struct tr_run *run, int pid, int fd, uint32_t slot);
    /* Runs on the first thread at the beginning of each of its rounds; may be NULL. */
    void (*round)(struct tr_run *run);
};

/* The process that this is. */
static inline const struct tr_process *
tr_run_here(const struct tr_run *run)
{
    return &run->layout.processes[run->process];
}

/* Its first loop, the service loop. */
static inline struct tr_run_loop *
tr_run_service(const struct tr_run *run)
{
    return &run->loops[tr_run_here(run)->first_loop];
}

/* --- hosts.c --------------------------------------------------------------------------------- */

/* Makes the directory and the hosts of this process, each with its agent. The fields up to `life`
 * are set. */
troupe_status tr_run_open(struct tr_run *run, troupe_error *err);
/* A thread for each loop but the first. */
troupe_status tr_run_threads(struct tr_run *run, troupe_error *err);
/* The driver's actor, on the first loop. */
troupe_status tr_run_driver(struct tr_run *run, troupe_error *err);
/* Runs the first loop until one of the two is true. */
void tr_run_until(struct tr_run *run, const bool *this_one, const bool *or_that);
/* Joins the threads, which were told to end, and frees the hosts. The process exits here when a
 * thread is stuck. */
void tr_run_join(struct tr_run *run);
/* Frees the link, the store, the directory and the layout. */
void tr_run_close(struct tr_run *run);

/* The addresses of an agent and of the controller. */
troupe_ref tr_agent_ref(uint16_t loop, uint32_t epoch);
troupe_ref tr_controller_ref(uint32_t epoch);

/* --- agent.c --------------------------------------------------------------------------------- */

extern const troupe_class tr_agent_class;
/* The host events of a loop. */
tr_host_events tr_agent_events(struct tr_run_loop *loop);
/* Tells the controller that this process is there. On the first thread. */
void tr_agent_join(struct tr_run *run);
/* A call to the controller that is sent again until it is answered; takes the args. */
void tr_agent_tell(struct tr_run_loop *loop, const char *method, troupe_args *args);
/* Tells the controller, a moment later, that this loop has cut a peer and why. On its thread. */
void tr_agent_cut(struct tr_run_loop *loop, tr_address peer, uint32_t epoch, const char *why);

/* --- controller.c ---------------------------------------------------------------------------- */

extern const troupe_class tr_controller_class;
/* Spawns it on the first loop of the node, after the agent. */
troupe_status tr_run_controller(struct tr_run *run, troupe_error *err);
/* Begins the orderly end, once. On the first thread; `ctx` is the controller. */
void tr_controller_stop(troupe_ctx *ctx);
/* Ends the run with a code, as troupe_quit does. */
void tr_controller_quit(troupe_ctx *ctx, int code);

/* Methods of the agent. */
#define TR_METHOD_SPAWN "spawn" /* planned index; answers slot, incarnation */
#define TR_METHOD_START "start"
#define TR_METHOD_STOP  "stop"
#define TR_METHOD_END   "end"
/* Of an agent: arrays [kind, who, whom, last, age s, left s, sends]. */
#define TR_METHOD_WAITS "waits"
/* Of a service loop's agent: the epoch it is meant for, then arrays [place, version, node, loop,
 * slot, incarnation, cause]: what is known of places of the directory. */
#define TR_METHOD_PLACES "places"
/* Of the driver's agent: the node's pid, its descriptor of the store, and a slot in it. */
#define TR_METHOD_UP   "up"
#define TR_METHOD_OVER "over" /* code, signal, status, text */

/* Methods of the controller. */
#define TR_METHOD_JOINED "joined" /* process, epoch, pid */
#define TR_METHOD_ENDED  "ended"  /* role, replica, incarnation, status, text */
#define TR_METHOD_QUIT   "quit"   /* code */
#define TR_METHOD_CUT    "cut"    /* loop, epoch, text: it has sent what nobody may send */

#endif
