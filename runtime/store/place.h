/* Where objects lie. The arena is a row of extents of 16 KiB, each named by one word. An object
 * above 32 KiB takes as many neighbouring extents as it needs and writes its handle in each
 * word. A smaller one takes a block of a slab: 1, 4 or 16 extents that are cut into up to 64
 * blocks of one size class, each with a word that is 0 or the handle of its object. A handle is
 * never used twice, so every return is a compare-and-swap of that handle by 0 and can be done
 * again after a death. Nobody owns a slab: any process takes blocks of any slab, lowest first,
 * so that memory that is warm is used again. */
#ifndef TR_STORE_PLACE_H
#define TR_STORE_PLACE_H

#include "store/layout.h"

enum {
    TR_SLOT_NONE = TR_STORE_SLOTS /* no slot */
};

uint32_t tr_class_of(uint64_t size); /* size 1 to TR_BLOCK_SIZE_MAX */
uint32_t tr_class_block(uint32_t class);
uint32_t tr_class_extents(uint32_t class);
uint32_t tr_class_blocks(uint32_t class);
/* Extents that an object of whole extents takes. */
uint64_t tr_run_extents(uint64_t size);

/* Finds room for the object `handle` and writes it into the entry, before each word that is taken.
 * False: there is none now. The ledger's lock is held, here and in the next. */
bool tr_place_claim(troupe_store *store, tr_entry *entry, uint64_t handle, uint64_t size);
/* Gives back what of `place` still names the object. */
void tr_place_return(troupe_store *store, uint64_t handle, uint64_t place, uint64_t size);
/* The bytes of a place, or NULL when it does not lie in the arena or cannot hold `size`. */
uint8_t *tr_place_bytes(troupe_store *store, uint64_t place, uint64_t size);
/* Brings the extents in order, words and marks: what the dead slot was in the middle of
 * (TR_SLOT_NONE: nobody died), slabs that are empty, marks that do not fit. Others may be at
 * work. */
void tr_place_heal(troupe_store *store, uint32_t dead);

/* --- slab.c ---------------------------------------------------------------------------------- */

bool tr_slab_claim(troupe_store *store, tr_entry *entry, uint64_t handle, uint64_t size);
void tr_slab_return(troupe_store *store, uint64_t handle, uint64_t place);
/* Releases the slab if it is empty; with `keep_one` only if its class has another one with room. */
void tr_slab_settle(troupe_store *store, uint32_t head, bool keep_one);
/* Returns the extents of a slab whose head is RELEASING as `word`. */
void tr_slab_release(troupe_store *store, uint32_t head, uint64_t word);
bool tr_slab_has(troupe_store *store, uint32_t head, uint32_t class, bool used);
/* Takes `count` neighbouring extents with the object's word (`entry` given), or as a new slab of
 * `class`. */
bool tr_extents_claim(troupe_store *store, tr_entry *entry, uint64_t handle, uint32_t class,
    uint32_t count, uint32_t *first);

/* --- commit.c -------------------------------------------------------------------------------- */

/* Whether the machine can be expected to have memory for one more object of `size` bytes: of
 * large ones this is asked before anything is taken, since the kernel would rather end a
 * process than refuse. */
bool tr_place_affordable(troupe_store *store, uint64_t size);
/* Sees to it that the place has memory and that this process has it mapped. False: the system has
 * none. No lock is held: it may take a second for a gigabyte. */
bool tr_place_commit(troupe_store *store, uint64_t place, uint64_t size);
/* When the store has more memory than its budget explains: gives back that of a large object
 * that is about to be freed. */
void tr_place_trim(troupe_store *store, uint64_t place, uint64_t size);

#endif
