/* The only way in which the store touches words that several processes share. All accesses
 * are sequentially consistent but for two: tr_word_store is a release (a row of such stores becomes
 * visible in its order, which is what a reader of a killed process's record relies on), and
 * tr_word_peek is relaxed, for hints. The model test puts a file of this name before this one and
 * so stands between every two accesses. */
#ifndef TR_STORE_SHARED_H
#define TR_STORE_SHARED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef _Atomic uint64_t tr_word;

static inline uint64_t
tr_word_load(tr_word *word)
{
    return atomic_load(word);
}

static inline uint64_t
tr_word_peek(tr_word *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static inline void
tr_word_store(tr_word *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

/* A store that no later load overtakes. */
static inline void
tr_word_publish(tr_word *word, uint64_t value)
{
    (void)atomic_exchange(word, value);
}

static inline bool
tr_word_cas(tr_word *word, uint64_t expected, uint64_t value)
{
    return atomic_compare_exchange_strong(word, &expected, value);
}

/* Both give the value before. */
static inline uint64_t
tr_word_or(tr_word *word, uint64_t bits)
{
    return atomic_fetch_or(word, bits);
}

static inline uint64_t
tr_word_and(tr_word *word, uint64_t bits)
{
    return atomic_fetch_and(word, bits);
}

/* Wraps, so that adding the complement subtracts. */
static inline uint64_t
tr_word_add(tr_word *word, uint64_t value)
{
    return atomic_fetch_add(word, value);
}

#endif
