/* A run: the plan of which actor lives on which loop, and what its threads share. Shared by the
 * files of this folder.
 *
 *   plan.c        from the graph to actors, loops and the directory
 *   agent.c       one actor on each loop: makes actors, starts, stops, ends the loop, lists waits
 *   controller.c  the actor "node" on the main thread: takes the run from first spawn to end
 *   run.c         threads, the main thread, the result */
#ifndef TR_NODE_RUN_H
#define TR_NODE_RUN_H

#include "node/graph.h"

#include <troupe/app.h>
#include <troupe/ext/host.h>
#include <troupe/ext/thread.h>
#include <troupe/object.h>

#include <stdatomic.h>

enum {
    TR_POOL_LOOPS_MAX = 8,
    TR_LOOPS_MAX = 8192
};

/* One actor of the graph, or a system actor of a stream. */
struct tr_planned {
    const troupe_class *type;
    const char *config;
    uint16_t role; /* in the directory */
    uint16_t replica;
    uint16_t loop;
    int mailbox;
};

/* What a role may still lose; only the controller touches it. */
struct tr_role_state {
    int restarts_left;
};

struct tr_run;

struct tr_run_loop {
    struct tr_run *run;
    uint16_t index;
    const char *name;
    bool shared; /* by several actors of the graph */
    tr_host *host;
    tr_thread thread;
    troupe_ctx *agent; /* owned by the host */
    troupe_call *stop; /* to be answered when all actors have stopped; kept by the agent */
    bool end;          /* its thread is to leave */
    bool running;      /* it has a thread */
};

struct tr_run {
    const troupe_graph *graph;
    troupe_run_options options;
    tr_directory *directory;
    troupe_link *link;
    troupe_store *store;
    const troupe_sys *sys;
    char *configs[TR_STREAMS_MAX]; /* of the streams' actors */
    struct tr_planned *planned;
    size_t planned_count;
    struct tr_run_loop *loops; /* 0 is the main thread's */
    int loop_count;
    struct tr_role_state *roles; /* by index in the directory */
    uint16_t node_role;
    uint16_t loop_role;
    /* Written by the signal thread, read by the main thread. */
    atomic_int signal;
    /* Of the main thread: how it stands and how it ended. */
    troupe_ctx *controller;
    troupe_ctx *driver;
    bool up;   /* every actor is started */
    bool done; /* every loop has been told to end */
    bool has_code;
    int code;
    bool stuck; /* a loop did not end in time: its thread cannot be joined */
    troupe_error error;
};

/* plan.c */
troupe_status tr_run_plan(struct tr_run *run, troupe_error *err);
void tr_run_unplan(struct tr_run *run);

/* agent.c */
extern const troupe_class tr_agent_class;
/* The host events of a loop. */
tr_host_events tr_agent_events(struct tr_run_loop *loop);

/* controller.c */
extern const troupe_class tr_controller_class;
/* Begins the orderly end, once. On the main thread; `ctx` is the controller. */
void tr_controller_stop(troupe_ctx *ctx);
/* Ends the run with a code, as troupe_quit does. */
void tr_controller_quit(troupe_ctx *ctx, int code);

/* Methods of the agent and of the controller. */
#define TR_METHOD_SPAWN "spawn" /* planned index */
#define TR_METHOD_START "start"
#define TR_METHOD_STOP  "stop"
#define TR_METHOD_END   "end"
#define TR_METHOD_WAITS \
    "waits" /* of an agent: arrays [kind, who, whom, last, age s, left s, sends] */
#define TR_METHOD_ENDED "ended" /* role, replica, status, text */
#define TR_METHOD_QUIT  "quit"  /* code */

#endif
