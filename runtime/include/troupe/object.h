/* The object store of a machine, and tensors: typed, shaped views of bytes.
 *
 * An object is created with a size, written once by its creator, sealed, and from then on
 * immutable. Whoever has a hold may read it, in whichever process; with the last hold the memory
 * returns and the handle becomes stale for ever: generations make a stale handle fail with LOST
 * instead of reaching a later object. Holds are counted within a process; a process that dies
 * loses its holds and what it had not sealed, and nobody else's. When the node dies its store ends:
 * in a driver, which lives on, every handle is LOST and only the bytes that it holds just then can
 * be read until they are released. The store has a byte budget
 * for all processes together; when it is spent, creation answers AGAIN and the producer waits. All
 * functions may be called from any thread, and each answers DENIED once this process was cut off
 * from the store (ext/store.h: fence). Memory is shared, not copied: a handle that travels
 * in a message is all that another process needs. */
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
    uint64_t committed;  /* bytes of memory taken from the system for objects, used or not */
    uint64_t processes;  /* that are attached, the owner included */
} troupe_store_stats;

/* A store of at most `bytes_max` bytes, owned by this process; never NULL. */
troupe_store *troupe_store_new(uint64_t bytes_max);
/* The owner ends the store and whatever is left in it (other processes keep their mapping until
 * they end); another process detaches from it. No other thread may use the handle any more.
 * NULL is allowed. */
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
 * already, LOST for a stale handle, DENIED in a process that did not create it. */
troupe_status troupe_object_seal(troupe_store *store, troupe_object object) TROUPE_MUST_USE;
/* Takes a hold and gives the bytes, valid until that hold is released. LOST for a stale handle,
 * INVALID when the object is not sealed yet, CORRUPT when its place is none (a process wrote
 * where it may not). `bytes` and `size` may be NULL. */
troupe_status troupe_object_hold(
    troupe_store *store, troupe_object object, const void **bytes, size_t *size) TROUPE_MUST_USE;
/* Gives one hold back; an unsealed object is thereby given up. LOST for a stale handle: it was
 * released before. INVALID: the object lives, but this process holds none of it. Within a process
 * holds are counted, not named: releasing a hold that is not yours takes that of another part
 * of the same process, never another process's. */
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
    TROUPE_TENSOR_RANK_MAX = 4,
    TROUPE_TENSOR_ALIGNMENT = 64 /* of the data of a tensor that is an object */
};

/* Row-major and dense; it borrows `data`. A rank of 0 is a scalar.
 *
 * The fields mean what those of a DLPack tensor mean: `type` is its dtype (code kDLFloat for
 * F32 and F64, kDLInt for I32 and I64, kDLUInt for U8; bits 8 times the element size; one
 * lane), `rank` its ndim, `shape` its shape; strides are NULL (compact), byte_offset is 0, the
 * device is kDLCPU. */
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
/* "f32", ...; "?" for an unknown type. Static memory. */
const char *troupe_tensor_type_name(troupe_tensor_type type);

/* Makes an object that holds one tensor of the type and shape of `form` (its data is not read): 64
 * bytes that say what it is and the elements, *data, 64-byte aligned, to be written before the
 * seal. Statuses as of troupe_object_create; INVALID also for a form that troupe_tensor_count
 * refuses. */
troupe_status troupe_tensor_create(troupe_store *store, const troupe_tensor *form,
    troupe_object *object, void **data) TROUPE_MUST_USE;
/* Takes a hold of such an object; *tensor is valid until that hold is released
 * (troupe_object_release). CORRUPT, and no hold, when the object is none or does not fit its size;
 * other statuses as of troupe_object_hold. */
troupe_status troupe_tensor_hold(
    troupe_store *store, troupe_object object, troupe_tensor *tensor) TROUPE_MUST_USE;
/* INVALID, with a sentence about `name`, unless the tensor has the type, the rank and the shape of
 * `form`, in which a negative dimension fits any. */
troupe_status troupe_tensor_expect(const troupe_tensor *tensor, const char *name,
    const troupe_tensor *form, troupe_error *err) TROUPE_MUST_USE;

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
