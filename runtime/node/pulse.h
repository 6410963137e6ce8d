/* The node's sign of life for its driver: a page that the first driver makes and every later node
 * and driver inherits. A node that is stopped or hangs looks from outside like one that has much to
 * do, and nobody but its driver can end it. */
#ifndef TR_NODE_PULSE_H
#define TR_NODE_PULSE_H

#include "node/silence.h"

#include <troupe/ext/base.h>

#define TR_PULSE_BYTES 4096

struct tr_pulse {
    uint64_t beat_ns; /* monotonic, written in each round of the node's service loop */
};

static inline void
tr_pulse_beat(struct tr_pulse *pulse, uint64_t now_ns)
{
    __atomic_store_n(&pulse->beat_ns, now_ns, __ATOMIC_RELAXED);
}

/* What the driver knows of a node; one thread. */
struct tr_pulse_watch {
    const char *program; /* for messages */
    uint64_t limit_ns;   /* a node that is silent for so long is to be killed */
    struct tr_silence silence;
    int pid; /* of the node that it is about */
    bool named, over;
};

/* Every half second, at the time now_ns. It says on standard error that the node is silent, and
 * that it answers again. True once, when it has been silent too long. */
bool tr_pulse_look(
    struct tr_pulse_watch *watch, const struct tr_pulse *pulse, int pid, uint64_t now_ns);

/* "stopped", for a process's state as in ps. */
const char *tr_state_name(char state);

#endif
