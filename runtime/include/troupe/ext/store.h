/* The object store between processes: who may use it, what a death does, what is in it.
 *
 * A store is one sealed memfd that its owner (the node) makes and every process of the run
 * maps. Each process has a slot in it, 1 to 255; the owner has slot 0. What a process holds,
 * writes or is about to free is written down under its slot's number in words that are moved by
 * compare-and-swap; there is no lock between processes, so one that is stopped or killed
 * between any two instructions blocks nobody, and what it had can be found and returned. How:
 * see docs/design/0005-store.md. The objects themselves: troupe/object.h.
 *
 * A process may write all of the memory: a hostile one can spoil bytes of others. What stands
 * in the tables is checked by whoever reads it, so garbage there gives CORRUPT or LOST and
 * never leads outside of the mapping. */
#ifndef TROUPE_EXT_STORE_H
#define TROUPE_EXT_STORE_H

#include <troupe/object.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum {
    TR_STORE_SLOTS = 256,
    TR_STORE_OWNER = 0, /* the owner's slot */
    TR_STORE_LIVES_MAX = 127
};

/* --- making and sharing --------------------------------------------------------------------- */

/* Makes a store of at most `bytes_max` bytes of objects; this process owns it. Memory is taken
 * from the system when objects need it, not now. NO_SPACE, NO_MEMORY and INVALID (0, or
 * above 2^42) say what the system refused. troupe_store_new is this and ends the process
 * when it fails. */
troupe_status tr_store_make(
    uint64_t bytes_max, troupe_store **out, troupe_error *err) TROUPE_MUST_USE;
/* The store of the `life`th owner of a run, 1 to TR_STORE_LIVES_MAX: no handle of the store of
 * one life names an object in that of another, so one that was kept is LOST. */
troupe_status tr_store_make_life(
    uint64_t bytes_max, uint32_t life, troupe_store **out, troupe_error *err) TROUPE_MUST_USE;
/* The memfd, close-on-exec, to be inherited or sent; the store keeps it. */
int tr_store_fd(const troupe_store *store);

/* Owner only: reserves a slot for a process that is to come. FULL when all 255 are in use. */
troupe_status tr_store_slot_open(
    troupe_store *store, uint32_t *slot, troupe_error *err) TROUPE_MUST_USE;
/* In that process: maps the store of `fd` as `slot`. Takes the fd, also when it fails. CORRUPT: not
 * a store, or of another version; DENIED: the slot is not open (fenced already, or used). The
 * result is freed with troupe_store_free, which detaches: what the process still held
 * returns when the owner reclaims the slot. */
troupe_status tr_store_attach(
    int fd, uint32_t slot, troupe_store **out, troupe_error *err) TROUPE_MUST_USE;

/* --- death ---------------------------------------------------------------------------------- */

/* Stage 1, owner only, when the process may be dead or must do no more: its operations answer
 * DENIED from now on (one that is running may still finish). Nothing is taken from it: its
 * other threads or a device may still be writing. Safe for a slot in any state. */
void tr_store_fence(troupe_store *store, uint32_t slot);

typedef struct tr_store_reclaimed {
    uint64_t unsealed; /* objects that it was still writing, or had half freed */
    uint64_t holds;    /* objects of which it held a hold */
    uint64_t freed;    /* objects, of both kinds, that nobody else held: freed now */
    uint64_t bytes;    /* of the freed */
} tr_store_reclaimed;

/* Stage 2, owner only, when the process has exited (its pidfd says so): all that the slot had
 * returns, the slot is free for another process. Others go on meanwhile. Calling it again, or
 * for a slot that nobody used, does nothing. `what` may be NULL. */
void tr_store_reclaim(troupe_store *store, uint32_t slot, tr_store_reclaimed *what);

/* The owner of `old` is gone and `store` is of its next life, in a process that outlives it. What
 * this process holds of `old` stays readable until it is released, by either handle; all other
 * memory of `old` goes back to the system, and whatever else is asked of it is LOST or DENIED.
 * `old` is freed after `store` was last used. It may be NULL. */
void tr_store_succeed(troupe_store *store, troupe_store *old);

/* --- looking -------------------------------------------------------------------------------- */

typedef enum tr_store_state {
    TR_STORE_WRITING = 1,
    TR_STORE_SEALED = 2,
    TR_STORE_FREEING = 3 /* nobody holds it; its memory is on the way back */
} tr_store_state;

typedef struct tr_store_item {
    troupe_object object;
    uint64_t size;
    uint64_t age_ns; /* since its creation */
    tr_store_state state;
    uint32_t creator;      /* slot */
    uint32_t holder_count; /* processes */
    uint64_t holders[4];   /* bit s of the 256: slot s holds it */
} tr_store_item;

/* Tells each object in the store, in index order, until `tell` returns false; any process may ask.
 * What changes meanwhile is told as it was or as it is. */
void tr_store_list(
    troupe_store *store, bool (*tell)(void *self, const tr_store_item *item), void *self);
/* Walks all of the store and compares every word with every other: false names the first thing that
 * does not fit. Meant for a store in which nobody is at work: an operation in progress elsewhere
 * is named as a fault. */
bool tr_store_check(troupe_store *store, troupe_error *err);
/* Why the last creation in this process answered AGAIN or NO_SPACE, as a sentence; "" when none
 * did. Static memory. */
const char *tr_store_refusal(const troupe_store *store);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
