/* The words of the store and their moves: which state may follow which, by whom. Pure: a function
 * takes the word that was read and gives the word to compare-and-swap in its place, or says
 * that there is no such move. docs/design/0005-store.md has the pictures and the reasons. */
#ifndef TR_STORE_WORDS_H
#define TR_STORE_WORDS_H

#include <stdbool.h>
#include <stdint.h>

/* --- an entry: generation 32, owner 8, state 8, 16 zero -------------------------------------- */

enum tr_entry_state {
    TR_FREE = 0,    /* of no object; the generation is that of the last one */
    TR_WRITING = 1, /* the owner slot writes it */
    TR_SEALED = 2,  /* readable; owner 0 */
    TR_DYING = 3,  /* no holder was seen; the owner slot looks again. Whoever holds takes it back */
    TR_FREEING = 4 /* nobody can get it any more; the owner slot returns its memory */
    /* 5, 6: claimed and consumed, of objects with one consumer: not in use */
};

static inline uint64_t
tr_entry_word(uint32_t generation, uint32_t owner, enum tr_entry_state state)
{
    return (uint64_t)generation << 32 | (uint64_t)(owner & 0xff) << 24 | (uint64_t)state << 16;
}

static inline uint32_t
tr_entry_generation(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

static inline uint32_t
tr_entry_owner(uint64_t word)
{
    return (uint32_t)(word >> 24) & 0xff;
}

static inline uint32_t
tr_entry_state(uint64_t word)
{
    return (uint32_t)(word >> 16) & 0xff;
}

/* FREE -> WRITING by `slot`, of the next generation. A generation is never used twice: an entry
 * whose generations are used up stays out of use. */
static inline bool
tr_entry_claim(uint64_t word, uint32_t slot, uint64_t *next)
{
    uint32_t generation = tr_entry_generation(word);
    *next = tr_entry_word(generation + 1, slot, TR_WRITING);
    return tr_entry_state(word) == TR_FREE && generation < UINT32_MAX;
}

/* WRITING -> SEALED by the slot that writes. */
static inline bool
tr_entry_seal(uint64_t word, uint32_t slot, uint64_t *next)
{
    *next = tr_entry_word(tr_entry_generation(word), 0, TR_SEALED);
    return tr_entry_state(word) == TR_WRITING && tr_entry_owner(word) == slot;
}

/* SEALED -> DYING by any slot that saw no holder's bit. */
static inline bool
tr_entry_doubt(uint64_t word, uint32_t slot, uint64_t *next)
{
    *next = tr_entry_word(tr_entry_generation(word), slot, TR_DYING);
    return tr_entry_state(word) == TR_SEALED;
}

/* DYING -> SEALED by anyone who has a bit set, or who sees one. */
static inline bool
tr_entry_rescue(uint64_t word, uint64_t *next)
{
    *next = tr_entry_word(tr_entry_generation(word), 0, TR_SEALED);
    return tr_entry_state(word) == TR_DYING;
}

/* DYING -> FREEING by the slot in doubt, after it saw no bit again; WRITING -> FREEING by the
 * writer that gives up. `slot` is who frees, `from` the owner in the word: they differ when the
 * store's owner takes over from a dead process, which may also have been freeing already. */
static inline bool
tr_entry_end(uint64_t word, uint32_t from, uint32_t slot, uint64_t *next)
{
    uint32_t state = tr_entry_state(word);
    *next = tr_entry_word(tr_entry_generation(word), slot, TR_FREEING);
    return tr_entry_owner(word) == from &&
           (state == TR_DYING || state == TR_WRITING || (state == TR_FREEING && from != slot));
}

/* FREEING -> FREE by the slot that frees; WRITING -> FREE by a writer that got no memory for it. */
static inline bool
tr_entry_freed(uint64_t word, uint32_t slot, uint64_t *next)
{
    uint32_t state = tr_entry_state(word);
    *next = tr_entry_word(tr_entry_generation(word), 0, TR_FREE);
    return tr_entry_owner(word) == slot && (state == TR_FREEING || state == TR_WRITING);
}

/* --- an extent: kind 8, then by kind ---------------------------------------------------------- */

enum tr_extent_kind {
    TR_EXTENT_FREE = 0,
    TR_EXTENT_OBJECT = 1,   /* index 24, generation 32: all of it is this object's */
    TR_EXTENT_NEW = 2,      /* class 8, slot 8, head 32: the slot makes a slab of it */
    TR_EXTENT_SLAB = 3,     /* class 8, 0, head 32: head of a slab; blocks may be taken from it */
    TR_EXTENT_TAIL = 4,     /* class 8, 0, head 32: the rest of a slab */
    TR_EXTENT_CLOSING = 5,  /* class 8, slot 8, head 32: a head that seemed empty; see DYING */
    TR_EXTENT_RELEASING = 6 /* class 8, slot 8, head 32: a head whose extents are on the way back */
};

static inline uint64_t
tr_extent_of_object(uint64_t handle)
{
    return (uint64_t)TR_EXTENT_OBJECT << 56 | (handle & 0xffffff) << 32 | handle >> 32;
}

static inline uint64_t
tr_extent_of_slab(enum tr_extent_kind kind, uint32_t class, uint32_t slot, uint32_t head)
{
    return (uint64_t)kind << 56 | (uint64_t)(class & 0xff) << 48 | (uint64_t)(slot & 0xff) << 40 |
           head;
}

static inline uint32_t
tr_extent_kind(uint64_t word)
{
    return (uint32_t)(word >> 56);
}

static inline uint32_t
tr_extent_class(uint64_t word)
{
    return (uint32_t)(word >> 48) & 0xff;
}

static inline uint32_t
tr_extent_slot(uint64_t word)
{
    return (uint32_t)(word >> 40) & 0xff;
}

static inline uint32_t
tr_extent_head(uint64_t word)
{
    return (uint32_t)word;
}

/* The handle of the object that an OBJECT word names. */
static inline uint64_t
tr_extent_handle(uint64_t word)
{
    return word << 32 | ((word >> 32) & 0xffffff);
}

/* SLAB -> CLOSING by `slot`, CLOSING -> SLAB by whoever has a block in it, CLOSING -> RELEASING by
 * the slot that closes: the moves of SEALED, DYING and FREEING, with blocks for holders. */
static inline bool
tr_extent_doubt(uint64_t word, uint32_t slot, uint64_t *next)
{
    *next = tr_extent_of_slab(TR_EXTENT_CLOSING, tr_extent_class(word), slot, tr_extent_head(word));
    return tr_extent_kind(word) == TR_EXTENT_SLAB;
}

static inline bool
tr_extent_rescue(uint64_t word, uint64_t *next)
{
    *next = tr_extent_of_slab(TR_EXTENT_SLAB, tr_extent_class(word), 0, tr_extent_head(word));
    return tr_extent_kind(word) == TR_EXTENT_CLOSING;
}

static inline bool
tr_extent_end(uint64_t word, uint32_t slot, uint64_t *next)
{
    *next =
        tr_extent_of_slab(TR_EXTENT_RELEASING, tr_extent_class(word), slot, tr_extent_head(word));
    return tr_extent_kind(word) == TR_EXTENT_CLOSING && tr_extent_slot(word) == slot;
}

/* --- where an object lies: kind 8, class 8, block 8, 8 zero, first extent 32 ----------------- */

enum tr_place_kind {
    TR_PLACE_NONE = 0,
    TR_PLACE_RUN = 1,  /* whole extents, as many as the size takes */
    TR_PLACE_BLOCK = 2 /* one block of the slab whose head is the first extent */
};

static inline uint64_t
tr_place_word(enum tr_place_kind kind, uint32_t class, uint32_t block, uint32_t first)
{
    return (uint64_t)kind << 56 | (uint64_t)(class & 0xff) << 48 | (uint64_t)(block & 0xff) << 40 |
           first;
}

static inline uint32_t
tr_place_kind(uint64_t word)
{
    return (uint32_t)(word >> 56);
}

static inline uint32_t
tr_place_class(uint64_t word)
{
    return (uint32_t)(word >> 48) & 0xff;
}

static inline uint32_t
tr_place_block(uint64_t word)
{
    return (uint32_t)(word >> 40) & 0xff;
}

static inline uint32_t
tr_place_first(uint64_t word)
{
    return (uint32_t)word;
}

#endif
