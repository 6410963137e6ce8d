/* Values that calls and answers carry: built into args, read from a received message. Part of
 * actor.h; one thread, that of the actor. */
#ifndef TROUPE_ARGS_H
#define TROUPE_ARGS_H

#include <troupe/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* A received message: a call inside a method, an answer inside a callback. */
typedef struct troupe_msg troupe_call;
typedef struct troupe_msg troupe_answer;

/* --- arguments ------------------------------------------------------------------------------ */

/* Values to send, built in order. Zeroed it is empty and valid. A successful send or reply takes
 * the contents and leaves it empty; after a failed send it is unchanged, so that the caller can
 * park it. */
typedef struct troupe_args {
    char *data; /* the message being built */
    size_t size;
    size_t capacity;
    uint32_t count;
    uint32_t open[8]; /* values still missing in open arrays */
    uint8_t depth;
    bool bad;               /* too deep or too large; the send says so */
    struct tr_chain *chain; /* values that are not there yet, see troupe_args_answer */
} troupe_args;

struct tr_reader;
struct tr_chain;

/* The name of a call that this actor sent, valid while it is open. Zeroed it names none. */
typedef struct troupe_call_id {
    uint64_t call;
    uint32_t slot;
    uint32_t reserved;
} troupe_call_id;

void troupe_args_nil(troupe_args *args);
void troupe_args_bool(troupe_args *args, bool value);
void troupe_args_i64(troupe_args *args, int64_t value);
void troupe_args_u64(troupe_args *args, uint64_t value);
void troupe_args_f64(troupe_args *args, double value);
void troupe_args_str(troupe_args *args, const char *text);
void troupe_args_bin(troupe_args *args, const void *bytes, size_t size);
/* NULL is no text, no bytes (unless the size is 0) and no tensor: the send is INVALID then. */
/* Objects and tensors: troupe_args_object, troupe_args_tensor (object.h). */
/* An array: the next `count` values are its elements. Arrays nest up to 6 deep. */
void troupe_args_array(troupe_args *args, uint32_t count);
/* Value `value` of the answer to a call of this actor that is still open, or whose callback has
 * not begun: the call that gets these args is sent when the value is there. When the earlier call
 * fails or is cancelled, so does this one, with its status and text, without being sent; when it
 * answers with fewer values, with BAD_INPUT. Only for troupe_call_send; elsewhere INVALID. At most
 * 255 a call. */
void troupe_args_answer(troupe_args *args, troupe_call_id earlier, int value);
/* Drops the contents. */
void troupe_args_fini(troupe_args *args);

/* --- received values ------------------------------------------------------------------------ */

/* Argument `index` of a call, or value `index` of an answer. When it is missing or of another
 * type the result is zero ("" for text) and the message is marked bad: the reply to a bad call
 * becomes BAD_INPUT and names the argument, whatever the method replies. Code with side effects
 * asks troupe_args_ok first. Integers convert when they fit; pointers are valid as long as the
 * message. */
int troupe_arg_count(const troupe_call *call);
bool troupe_arg_bool(troupe_call *call, int index);
int64_t troupe_arg_i64(troupe_call *call, int index);
uint64_t troupe_arg_u64(troupe_call *call, int index);
double troupe_arg_f64(troupe_call *call, int index);
const char *troupe_arg_str(troupe_call *call, int index); /* ended by a zero */
const void *troupe_arg_bin(troupe_call *call, int index, size_t *size);
/* Objects, tensors and samples: troupe_arg_object, troupe_arg_tensor (object.h),
 * troupe_arg_sample. */
bool troupe_arg_is_nil(
    const troupe_call *call, int index); /* true for a missing one too; never bad */
/* A cursor (ext/wire.h) on one argument of any type, for nested arrays. */
bool troupe_arg_reader(troupe_call *call, int index, struct tr_reader *reader);
/* Marks the message bad: the argument does not mean anything to this method. */
void troupe_arg_refuse(troupe_call *call, int index, const char *why);
bool troupe_args_ok(const troupe_call *call);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
