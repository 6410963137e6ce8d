/* What lies where in the store's memory, and the handle of a process to it. Sizes follow from the
 * geometry alone, so every process computes them itself and reads only words from the memory. */
#ifndef TR_STORE_LAYOUT_H
#define TR_STORE_LAYOUT_H

#include "store/shared.h"
#include "store/words.h"

#include <troupe/ext/store.h>
#include <troupe/ext/sys.h>
#include <troupe/ext/thread.h>

#include <assert.h>
#include <stdatomic.h>

enum {
    TR_STORE_VERSION = 2,
    TR_EXTENT_SIZE = 16 << 10,
    TR_CHUNK_EXTENTS = 16, /* memory comes from the system in chunks of this many extents */
    TR_CHUNK_SIZE = TR_CHUNK_EXTENTS * TR_EXTENT_SIZE,
    TR_BLOCKS_MAX = 64,           /* of a slab */
    TR_BLOCK_SIZE_MIN = 256,      /* smallest class */
    TR_BLOCK_SIZE_MAX = 32 << 10, /* above it an object takes whole extents */
    TR_CLASSES = 29,
    TR_ENTRIES_MAX = 1 << 20,
    TR_STRIPES = 64
};

#define TR_STORE_MAGIC     UINT64_C(0x31524f5453525454) /* "TTRSTOR1" */
#define TR_STORE_BYTES_MAX (UINT64_C(1) << 42)

/* Everything that decides the layout; tests make small ones. */
typedef struct tr_geometry {
    uint64_t bytes_max;
    uint32_t slots;   /* <= 256 */
    uint32_t entries; /* multiple of 64, or less than 64 */
    uint32_t extents; /* multiple of TR_CHUNK_EXTENTS */
    uint32_t before;  /* generations that stores of earlier lives of the node may have used */
    uint32_t last;    /* generation of this store; 0: there is no later store */
} tr_geometry;

/* A bitmap of hints with the lowest index that may be clear (or set: see marks.h) beside it. */
typedef struct tr_marks {
    tr_word *words;
    tr_word *hint; /* version 32, index 32 */
    uint32_t count;
} tr_marks;

enum tr_slot_state {
    TR_SLOT_FREE = 0,
    TR_SLOT_OPEN = 1, /* for a process to come */
    TR_SLOT_ATTACHED = 2,
    TR_SLOT_DETACHED = 3,
    TR_SLOT_FENCED = 4
};

/* A process. The counters only grow and each is written by its own process alone, under its ledger
 * lock; so they can be put back to the values before an operation that a death cut short. */
typedef struct tr_slot {
    tr_word word; /* life 32, state 32 */
    tr_word pid;
    uint64_t unused_first[6];
    tr_word charged;  /* bytes of the objects that this process created, ever */
    tr_word returned; /* bytes of the objects that this process freed, ever */
    tr_word created;  /* objects */
    tr_word freed;
    tr_word pending;   /* the operation in progress: see ledger.h; 0 none */
    tr_word before[2]; /* both counters that it moves, before it */
    uint64_t unused_second;
} tr_slot;

static_assert(sizeof(tr_slot) == 128, "two lines");

typedef struct tr_entry {
    tr_word word;
    tr_word holders[4]; /* a bit for each slot */
    tr_word place;
    tr_word size;
    tr_word created_ns;
    tr_word creator;
    uint64_t unused[7];
} tr_entry;

static_assert(sizeof(tr_entry) == 128, "two lines");

typedef struct tr_store_header {
    uint64_t magic;
    uint64_t version;
    uint64_t bytes_max;
    uint64_t slots;
    uint64_t entries;
    uint64_t extents;
    uint64_t before;
    uint64_t last;
    tr_word bytes_high;
    tr_word committed; /* bytes, a sum of what the chunks say */
    tr_word slots_top; /* no slot at or above it was ever used; likewise the others */
    tr_word entries_top;
    tr_word extents_top;
    uint64_t unused_second[3];
    tr_word entry_hint;
    uint64_t unused_third[7];
    tr_word extent_hint;
    uint64_t unused_fourth[7];
    tr_word class_hint[TR_CLASSES];
} tr_store_header;

/* Where each table begins, from the start of the memory. */
typedef struct tr_layout {
    uint64_t slots;
    uint64_t entry_marks;
    uint64_t entries;
    uint64_t extent_marks;
    uint64_t class_marks;
    uint64_t extents;
    uint64_t blocks;
    uint64_t chunks;
    uint64_t arena;
    uint64_t size;
} tr_layout;

/* How often this process holds an object. */
typedef struct tr_local_hold {
    uint32_t generation;
    uint32_t count;
} tr_local_hold;

enum tr_refusal {
    TR_REFUSED_NOT,
    TR_REFUSED_BUDGET,
    TR_REFUSED_SIZE,
    TR_REFUSED_ENTRIES,
    TR_REFUSED_ROOM,
    TR_REFUSED_SYSTEM
};

struct troupe_store {
    tr_geometry geometry;
    int fd;
    uint32_t slot;      /* of this process */
    uint64_t slot_word; /* what the slot says while this process may work */
    const troupe_sys *sys;
    uint8_t *base;
    uint64_t size;

    tr_store_header *header;
    tr_slot *slots;
    tr_entry *entries;
    tr_word *extents;
    tr_word *blocks; /* TR_BLOCKS_MAX for each extent; a slab uses those of its head */
    tr_word *chunks; /* even: not there; odd: there, the how manieth time */
    uint8_t *arena;
    tr_marks entry_marks;             /* set: taken */
    tr_marks extent_marks;            /* set: taken */
    tr_marks class_marks[TR_CLASSES]; /* set: the slab with this head may have a free block */

    /* This process's own. A hold's lock is taken before the ledger's. */
    tr_mutex ledger;              /* one creation or freeing at a time; see ledger.h */
    tr_mutex stripes[TR_STRIPES]; /* by entry: `local` and this slot's bits */
    tr_mutex reclaiming;
    tr_local_hold *local;        /* for each entry */
    _Atomic uint32_t *populated; /* for each chunk: its word when this process mapped it */
    _Atomic uint32_t refusal;    /* enum tr_refusal */

    /* See strand.c. */
    troupe_store *before; /* of the owner's life before; NULL: none that this process saw */
    atomic_bool stranded; /* its owner is gone; changes under all stripes */
    _Atomic uint32_t stranded_holds; /* objects that this process still holds then */
};

/* --- store.c, for the other files here ------------------------------------------------------- */

/* A store of any geometry, on which the tables are as small as a test wants. */
troupe_status tr_store_make_geometry(
    const tr_geometry *geometry, troupe_store **out, troupe_error *err) TROUPE_MUST_USE;
void tr_layout_of(const tr_geometry *geometry, tr_layout *layout);
/* False when this process was fenced, or its slot has a new life. */
bool tr_store_allowed(troupe_store *store);
/* The entry of a handle, or NULL for an index that is none. */
tr_entry *tr_store_entry(troupe_store *store, troupe_object object);

/* The last generation of an entry; what has had it stays out of use. */
static inline uint32_t
tr_store_last(const troupe_store *store)
{
    return store->geometry.last == 0 ? UINT32_MAX : store->geometry.last;
}

/* Raises a word that only grows to at least `value`. */
void tr_word_raise(tr_word *word, uint64_t value);

/* --- hold.c ---------------------------------------------------------------------------------- */

/* Looks whether anybody still holds the object of this entry, if it is sealed, and frees it when
 * nobody does. Whoever cleared a holder's bit calls it. True when this call freed. */
bool tr_entry_settle(troupe_store *store, tr_entry *entry);
bool tr_entry_is_held(troupe_store *store, tr_entry *entry);
/* The creator's hold, of an object that nobody else knows yet. */
void tr_hold_first(troupe_store *store, tr_entry *entry, troupe_object object);

/* --- strand.c -------------------------------------------------------------------------------- */

/* A release in a store that has a successor. */
troupe_status tr_strand_release(troupe_store *store, troupe_object object);

/* --- object.c -------------------------------------------------------------------------------- */

/* Ends an object whose word this process just moved to FREEING (`word`); returns memory and budget.
 * `charged` is false for a creation that was cut short before it counted. */
void tr_entry_free(troupe_store *store, tr_entry *entry, uint64_t word, bool charged);

#endif
