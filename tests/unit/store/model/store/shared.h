/* In place of runtime/store/shared.h when the store is built for the model test: every access to
 * shared memory goes through step.c, which may run another process first, or end this one. */
#ifndef TR_STORE_SHARED_H
#define TR_STORE_SHARED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef _Atomic uint64_t tr_word;

typedef enum tr_access {
    TR_ACCESS_LOAD,
    TR_ACCESS_STORE,
    TR_ACCESS_CAS,
    TR_ACCESS_OR,
    TR_ACCESS_AND,
    TR_ACCESS_ADD
} tr_access;

/* Performs one access and gives the value before it (for a CAS: 1 or 0). */
uint64_t tr_step(tr_access access, tr_word *word, uint64_t a, uint64_t b, const char *function,
    const char *file, int line);

#define TR_STEP(access, word, a, b) tr_step(access, word, a, b, __func__, __FILE__, __LINE__)

#define tr_word_load(word)           TR_STEP(TR_ACCESS_LOAD, word, 0, 0)
#define tr_word_peek(word)           TR_STEP(TR_ACCESS_LOAD, word, 0, 0)
#define tr_word_store(word, value)   ((void)TR_STEP(TR_ACCESS_STORE, word, value, 0))
#define tr_word_publish(word, value) ((void)TR_STEP(TR_ACCESS_STORE, word, value, 0))
#define tr_word_cas(word, from, to)  (TR_STEP(TR_ACCESS_CAS, word, from, to) != 0)
#define tr_word_or(word, bits)       TR_STEP(TR_ACCESS_OR, word, bits, 0)
#define tr_word_and(word, bits)      TR_STEP(TR_ACCESS_AND, word, bits, 0)
#define tr_word_add(word, value)     TR_STEP(TR_ACCESS_ADD, word, value, 0)

#endif
