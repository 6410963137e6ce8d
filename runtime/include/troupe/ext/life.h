/* The life page: what a process does at this moment, for whoever watches it from outside and
 * cannot ask, because it is busy, stopped or dead.
 *
 * Each process of a run has one page, shared with the node. Its service loop beats; each of its
 * loops notes which piece of which actor's code it is in. A note is two relaxed stores, so a reader
 * may see the time of one piece beside the name of the next: it is for people, nothing is decided
 * by it but when to complain. */
#ifndef TROUPE_EXT_LIFE_H
#define TROUPE_EXT_LIFE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum {
    TR_LIFE_LOOPS = 32, /* of a process; those beyond are not noted */
    TR_LIFE_BYTES = 4096
};

/* The kinds of a piece of an actor's code. */
typedef enum tr_life_kind {
    TR_LIFE_NONE, /* between two pieces */
    TR_LIFE_INIT,
    TR_LIFE_START,
    TR_LIFE_METHOD, /* the method's id follows */
    TR_LIFE_ANSWER, /* the callback of an answer; the id of the method that was called follows */
    TR_LIFE_IDLE,
    TR_LIFE_STOP
} tr_life_kind;

typedef struct tr_life_loop {
    uint64_t what;     /* tr_life_what of the piece that runs; 0 between two */
    uint64_t since_ns; /* the loop's time when it began */
} tr_life_loop;

typedef struct tr_life {
    uint64_t beat_ns; /* the service loop's last sign of life, monotonic */
    uint64_t reserved[7];
    tr_life_loop loops[TR_LIFE_LOOPS]; /* by the loop's place in its process */
} tr_life;

/* One word: the kind, the role (its index in the directory) and a method's id. */
static inline uint64_t
tr_life_what(tr_life_kind kind, uint16_t role, uint32_t method)
{
    return (uint64_t)kind << 56 | (uint64_t)role << 32 | method;
}

static inline tr_life_kind
tr_life_kind_of(uint64_t what)
{
    return (tr_life_kind)(what >> 56);
}

static inline uint16_t
tr_life_role_of(uint64_t what)
{
    return (uint16_t)(what >> 32);
}

static inline uint32_t
tr_life_method_of(uint64_t what)
{
    return (uint32_t)what;
}

/* The owner of the loop; NULL notes nothing. */
static inline void
tr_life_note(tr_life_loop *loop, uint64_t what, uint64_t now_ns)
{
    if (loop != NULL) {
        __atomic_store_n(&loop->since_ns, now_ns, __ATOMIC_RELAXED);
        __atomic_store_n(&loop->what, what, __ATOMIC_RELAXED);
    }
}

static inline void
tr_life_clear(tr_life_loop *loop)
{
    if (loop != NULL) {
        __atomic_store_n(&loop->what, 0, __ATOMIC_RELAXED);
    }
}

/* Any process that maps the page. */
static inline tr_life_loop
tr_life_read(const tr_life_loop *loop)
{
    tr_life_loop copy;
    copy.what = __atomic_load_n(&loop->what, __ATOMIC_RELAXED);
    copy.since_ns = __atomic_load_n(&loop->since_ns, __ATOMIC_RELAXED);
    return copy;
}

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
