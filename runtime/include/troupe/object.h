/* The object store of a process, and tensors: typed, shaped views of bytes.
 *
 * An object is created with a size, written once by its creator, sealed, and from then on
 * immutable. Whoever has a hold may read it; with the last hold the memory returns and the
 * handle becomes stale for ever: generations make a stale handle fail with LOST instead of
 * reaching a later object. The store has a byte budget; when it is spent, creation answers AGAIN
 * and the producer waits. All functions may be called from any thread. */
#ifndef TROUPE_OBJECT_H
#define TROUPE_OBJECT_H

#include <troupe/actor.h>
#include <troupe/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct troupe_store troupe_store;

/* A handle; zeroed it names no object. */
typedef struct troupe_object {
    uint32_t index;
    uint32_t generation;
} troupe_object;

/* The same as one word, for tables and messages; 0 is no object. */
static inline uint64_t
troupe_object_word(troupe_object object)
{
    return (uint64_t)object.generation << 32 | object.index;
}

static inline troupe_object
troupe_object_of_word(uint64_t word)
{
    troupe_object object;
    object.index = (uint32_t)word;
    object.generation = (uint32_t)(word >> 32);
    return object;
}

typedef struct troupe_store_stats {
    uint64_t objects;
    uint64_t bytes;
    uint64_t bytes_high; /* high-water mark */
    uint64_t bytes_max;  /* the budget */
    uint64_t created;    /* since the store was made */
} troupe_store_stats;

/* A store of at most `bytes_max` bytes. */
troupe_store *troupe_store_new(uint64_t bytes_max);
/* Frees the store and whatever is left in it; no other thread may use it any more. NULL is
 * allowed. */
void troupe_store_free(troupe_store *store);
void troupe_store_get_stats(troupe_store *store, troupe_store_stats *stats);

/* The store of the actor's process. */
troupe_store *troupe_ctx_store(troupe_ctx *ctx);

/* Makes an object of `size` > 0 bytes, 64-byte aligned, not zeroed, with one hold that is the
 * caller's; *bytes is writable until the seal. AGAIN: the budget is spent now. NO_SPACE: the object
 * would not fit an empty store. */
troupe_status troupe_object_create(
    troupe_store *store, size_t size, troupe_object *object, void **bytes) TROUPE_MUST_USE;
/* Makes the object readable and ends its creator's right to write. INVALID when it is sealed
 * already, LOST for a stale handle. */
troupe_status troupe_object_seal(troupe_store *store, troupe_object object) TROUPE_MUST_USE;
/* Takes a hold and gives the bytes, valid until that hold is released. LOST for a stale handle,
 * INVALID when the object is not sealed yet. `bytes` and `size` may be NULL. */
troupe_status troupe_object_hold(
    troupe_store *store, troupe_object object, const void **bytes, size_t *size) TROUPE_MUST_USE;
/* Gives one hold back; an unsealed object is thereby given up. LOST for a stale handle: it was
 * released before. Holds are counted, not named: releasing a hold that is not yours takes
 * another's. */
troupe_status troupe_object_release(troupe_store *store, troupe_object object);

/* --- tensors -------------------------------------------------------------------------------- */

typedef enum troupe_tensor_type {
    TROUPE_TENSOR_F32 = 1,
    TROUPE_TENSOR_I32 = 2,
    TROUPE_TENSOR_I64 = 3,
    TROUPE_TENSOR_U8 = 4,
    TROUPE_TENSOR_F64 = 5
} troupe_tensor_type;

enum {
    TROUPE_TENSOR_RANK_MAX = 4
};

/* Row-major and dense; it borrows `data`. A rank of 0 is a scalar. */
typedef struct troupe_tensor {
    troupe_tensor_type type;
    int rank;
    int64_t shape[TROUPE_TENSOR_RANK_MAX];
    const void *data;
} troupe_tensor;

/* Bytes of one element; 0 for an unknown type. */
size_t troupe_tensor_element(troupe_tensor_type type);
/* Number of elements and bytes. Both fail with INVALID for an unknown type, a rank or a
 * dimension out of range, or a product above 2^40. */
troupe_status troupe_tensor_count(const troupe_tensor *tensor, size_t *count) TROUPE_MUST_USE;
troupe_status troupe_tensor_bytes(const troupe_tensor *tensor, size_t *bytes) TROUPE_MUST_USE;

/* --- in messages ---------------------------------------------------------------------------- */

/* A handle. The message holds nothing: the sender keeps its hold until the answer is there, a
 * receiver that wants the object takes one of its own. */
void troupe_args_object(troupe_args *args, troupe_object object);
/* A copy of a tensor's data inside the message; for small ones. */
void troupe_args_tensor(troupe_args *args, const troupe_tensor *tensor);
/* As troupe_arg_i64. A tensor's data is aligned for its type and lives as long as the message. */
troupe_object troupe_arg_object(troupe_call *call, int index);
bool troupe_arg_tensor(troupe_call *call, int index, troupe_tensor *tensor);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
