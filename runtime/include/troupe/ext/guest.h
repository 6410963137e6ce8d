/* Asking a run that is going on, from a process that is no part of it: what `troupe status` and
 * `troupe stop` do. A guest has an address above those of the run's own loops and is let in when it
 * belongs to the same user. Any thread, one guest at a time. */
#ifndef TROUPE_EXT_GUEST_H
#define TROUPE_EXT_GUEST_H

#include <troupe/actor.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum {
    TR_GUEST_LOOP_FIRST = 60000,
    TR_GUEST_LOOPS = 5000
};

/* What the file `run` in a run's folder says. */
typedef struct tr_run_facts {
    char name[64];
    char title[512]; /* what people call it besides; "" */
    char program[256];
    char directory[512]; /* in which the program was started */
    int node_pid;
    int driver_pid; /* of the first driver */
    unsigned life;  /* of the node */
} tr_run_facts;

/* Reads it. NOT_FOUND: there is none (yet); CORRUPT: it is none of ours. */
troupe_status tr_run_facts_read(
    const char *folder, tr_run_facts *facts, troupe_error *err) TROUPE_MUST_USE;

/* Calls a method of the run's node and gives its answer, one text, which the caller frees with
 * free(). Takes the args. What the node answers is passed on; TIMEOUT or GONE when it does not. */
troupe_status tr_guest_ask(const char *folder, const char *method, troupe_args *args,
    uint64_t timeout_ns, char **text, troupe_error *err) TROUPE_MUST_USE;

/* Methods for guests, each answered with a JSON text.
 *   status  what the run is, its processes, its roles with their deaths
 *   waits   every open wait of every loop; a loop that does not answer within a second is named
 *   stop    seconds of grace, below 0 for the run's own: begins the orderly end */
#define TR_GUEST_STATUS "status"
#define TR_GUEST_WAITS  "waits"
#define TR_GUEST_STOP   "stop"

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
