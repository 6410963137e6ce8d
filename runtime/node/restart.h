/* When a replica that was lost is made anew, and when the run gives up: a pure function of the
 * deaths so far. One limit for each role, one back-off for each replica. */
#ifndef TR_NODE_RESTART_H
#define TR_NODE_RESTART_H

#include <stdbool.h>
#include <stdint.h>

#define TR_BACKOFF_MAX_NS UINT64_C(10000000000)
/* A replica that was up for ten times its last pause, at least and at most for these times (and at
 * most for a window), begins with the first pause again. One that never was, death after death, is
 * given up. */
#define TR_QUIET_MIN_NS UINT64_C(1000000000)
#define TR_QUIET_MAX_NS UINT64_C(10000000000)

enum {
    /* Restarts, or half of what the role may have: about half a minute of pauses from 100 ms on. */
    TR_IN_A_ROW_MAX = 10
};

/* What a role may lose. */
struct tr_restart_limits {
    int restarts;        /* within a window; -1: any number */
    uint64_t window_ns;  /* > 0 */
    uint64_t backoff_ns; /* > 0; the first pause */
};

/* The restarts of a role within the last window. Zeroed is a role that lost nobody. */
struct tr_restart_role {
    uint64_t *times; /* ring of limits.restarts entries, made when first needed */
    uint32_t first;
    uint32_t count;
};

/* Of one replica. Zeroed is one that has never died. */
struct tr_restart_replica {
    uint64_t pause_ns; /* before its last restart */
    uint64_t died_ns;
    uint32_t in_a_row; /* deaths since it was last up for long enough */
    bool died;
};

void tr_restart_role_fini(struct tr_restart_role *role);

/* A replica has died at now_ns: true when it is to be made anew, *pause_ns from now; false when
 * the role has used up what it may lose, or (unless that is any number) the replica dies of its
 * start. Times do not go back. */
bool tr_restart_decide(const struct tr_restart_limits *limits, struct tr_restart_role *role,
    struct tr_restart_replica *replica, uint64_t now_ns, uint64_t *pause_ns);

/* Restarts that the role has left at now_ns; -1: any number. */
int tr_restart_left(
    const struct tr_restart_limits *limits, struct tr_restart_role *role, uint64_t now_ns);

#endif
