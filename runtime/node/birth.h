/* How a process of a run is told what it is: one environment variable, which it removes at once,
 * and descriptors from 3 on. The command line is that of the first driver in all of them, so a
 * program's main() does the same everywhere until it calls troupe_main. */
#ifndef TR_NODE_BIRTH_H
#define TR_NODE_BIRTH_H

#include "node/plan.h"

#define TR_BIRTH_VARIABLE "TROUPE_PROCESS"

enum {
    TR_FD_PLAN = 3,
    /* Of a worker. */
    TR_FD_LIFE = 4,
    TR_FD_STORE = 5,
    TR_WORKER_GIVEN = 3,
    /* Of a node and of a driver that was started by one. */
    TR_FD_IMAGE = 4,
    TR_FD_LOCK = 5,
    TR_FD_PEER = 6, /* a pidfd of the process that started it */
    TR_FD_PULSE = 7,
    TR_GUARD_GIVEN = 5,
    TR_BIRTH_TEXT_MAX = 96,
    TR_LIVES_MAX = 100, /* of the node, and of the driver */
    TR_SHORT_MAX = 12   /* short ones in a row: then it is not chance */
};

/* A life that ends so soon after its start is a short one. */
#define TR_SHORT_NS UINT64_C(3000000000)

struct tr_birth {
    enum tr_process_kind kind;
    uint32_t process;      /* of the layout */
    uint32_t epoch;        /* of its loops */
    uint32_t node_epoch;   /* which life of the node it belongs to */
    uint32_t driver_epoch; /* which life of the driver */
    uint32_t slot;         /* in the store; of a worker */
    int peer;              /* pid of the one who starts it */
};

/* "TROUPE_PROCESS=..." for the environment of a child. */
void tr_birth_write(const struct tr_birth *birth, char out[TR_BIRTH_TEXT_MAX]);
/* The value of the variable; false when it is none of ours. */
bool tr_birth_read(const char *value, struct tr_birth *birth);

#endif
