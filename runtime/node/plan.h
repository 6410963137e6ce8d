/* The plan of a run: what the graph declared and how it is to be run, as data that every process
 * of the run has, and where everything lives, which follows from it.
 *
 *   plan.c         from the graph
 *   plan_wire.c    as bytes, and back
 *   layout.c       which process has which loops and actors */
#ifndef TR_NODE_PLAN_H
#define TR_NODE_PLAN_H

#include "node/graph.h"

#include <troupe/app.h>
#include <troupe/ext/base.h>

enum {
    TR_POOL_LOOPS_MAX = 8,
    TR_LOOPS_MAX = 8192,
    TR_PROCESSES_MAX = 256, /* each has a slot in the store */
    TR_PLAN_ROLES_MAX = TROUPE_ROLES_MAX + TR_STREAMS_MAX,
    TR_PLAN_BYTES_MAX = 256 << 20,
    TR_PROCESS_NAME_MAX = TROUPE_NAME_MAX + 16
};

/* A class as another process of the same image finds it. */
struct tr_plan_class {
    char *module; /* "": the main image */
    uint64_t offset;
    char *name;
};

/* A role of the graph, or the actor of a stream. */
struct tr_plan_role {
    char *name;
    char *config;
    char *place;
    struct tr_plan_class where;
    const troupe_class *type; /* in this process; NULL until it was looked up */
    int replicas;
    int mailbox;
    int restarts;
    double restart_window_s;
    int backoff_ms;
    int cpus;
    double devices;
    uint64_t memory;
    uint64_t silent_ns; /* UINT64_MAX: never too long */
    bool own_loop;
    bool system; /* lives in the node */
};

struct tr_plan {
    char *name;    /* of the run's folder; "" when it has none */
    char *folder;  /* its path; "" */
    char *title;   /* what people call it besides; "" for nothing */
    char *logs;    /* directory for what processes print, absolute; "": the folder */
    char *program; /* for messages */
    char **argv;   /* of the first driver, NULL-ended */
    uint32_t argc;
    struct tr_plan_role *roles; /* in the order of the directory */
    uint32_t role_count;
    uint64_t store_bytes;
    uint64_t grace_ns;
    int pool_loops; /* at most this many shared loops in a process */
};

/* From a graph that passed its check. BAD_INPUT when it declares streams and `options` names no
 * class for them. The plan is the caller's. */
troupe_status tr_plan_of_graph(const troupe_graph *graph, const troupe_run_options *options,
    struct tr_plan **out, troupe_error *err) TROUPE_MUST_USE;
/* Tells the streams' actors which life of the node they are in: key "life" of their configs. */
void tr_plan_set_life(struct tr_plan *plan, uint32_t life);
void tr_plan_free(struct tr_plan *plan); /* NULL is allowed */

/* Finds the module and offset of each class. INVALID names the role whose class is not static. */
troupe_status tr_plan_locate(struct tr_plan *plan, troupe_error *err) TROUPE_MUST_USE;
/* The other way, in another process: fills in `type`. CORRUPT when something else lies there. */
troupe_status tr_plan_resolve(struct tr_plan *plan, troupe_error *err) TROUPE_MUST_USE;

/* Appends the plan's bytes; and reads them: CORRUPT names what is wrong. Any bytes may be read. */
void tr_plan_write(const struct tr_plan *plan, tr_buf *out);
troupe_status tr_plan_read(
    const void *bytes, size_t size, struct tr_plan **out, troupe_error *err) TROUPE_MUST_USE;

/* --- where everything lives ------------------------------------------------------------------ */

enum tr_process_kind {
    TR_PROCESS_ALL, /* colocated: everything in one */
    TR_PROCESS_NODE,
    TR_PROCESS_DRIVER,
    TR_PROCESS_WORKER
};

struct tr_process {
    enum tr_process_kind kind;
    char name[TR_PROCESS_NAME_MAX]; /* "rollout[1]", of a shared one "PLACE[1]" */
    uint16_t first_loop;            /* its service loop: the first thread's */
    uint16_t loop_count;
    uint32_t actors;    /* of the graph that live in it */
    uint64_t memory;    /* ceiling in bytes: the sum of what its roles need; 0: none */
    uint64_t silent_ns; /* it is killed when it gives no sign of life for so long */
    const char *place;  /* NULL: own */
    uint16_t replica;
};

/* One actor of the graph, or a stream's. */
struct tr_planned {
    const struct tr_plan_role *spec;
    uint16_t role; /* in the plan and in the directory */
    uint16_t replica;
    uint16_t process;
    uint16_t loop;
};

struct tr_planned_loop {
    uint16_t process;
    const char *name; /* of its thread */
    bool shared;      /* by several actors of the graph */
};

struct tr_layout {
    struct tr_process *processes; /* the node is 0, the driver 1; colocated there is only 0 */
    struct tr_planned *planned;
    struct tr_planned_loop *loops;
    uint32_t process_count;
    uint32_t planned_count;
    uint32_t loop_count;
};

/* The same in every process of a run. BAD_INPUT when it needs more loops or processes than there
 * can be. */
troupe_status tr_layout_make(const struct tr_plan *plan, bool colocate, struct tr_layout *out,
    troupe_error *err) TROUPE_MUST_USE;
void tr_layout_fini(struct tr_layout *layout);

#endif
