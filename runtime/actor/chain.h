/* The values of a call's arguments that are still to come: where they go and what they are of.
 * Built by troupe_args_answer, owned by the args and then by the open call. */
#ifndef TR_ACTOR_CHAIN_H
#define TR_ACTOR_CHAIN_H

#include <troupe/actor.h>

enum {
    TR_CHAIN_MAX = 255
};

struct tr_await {
    troupe_call_id of;
    int value;
    size_t offset; /* in the body, of the nil that stands for it */
    void *bytes;   /* the value, once it is there */
    size_t size;
};

/* The calls whose chains wait for one answer, in the order of their ids; ended ones among them. */
struct tr_waiter {
    uint64_t call;
    uint32_t index;
};

struct tr_waiters {
    uint32_t count;
    uint32_t capacity;
    struct tr_waiter *list;
};

struct tr_settled {
    struct troupe_msg *answer;
    struct tr_waiters *waiters;
};

struct tr_chain {
    uint32_t count;
    uint32_t missing;
    struct tr_await awaits[TR_CHAIN_MAX]; /* by offset; allocated as far as used */
};

#endif
