/* Where a generation ends: stop ids and stop strings, and what of it is kept.
 *
 * The rule, the same for ids, log-probs and text: the id that completes the end is the last one
 * kept, since it is an action that the policy took (a stop id is; so is the token in which a stop
 * string became whole). The text ends before the stop id's text or the stop string. Generated
 * text is never tokenised again. */
#ifndef TROUPE_STOP_H
#define TROUPE_STOP_H

#include <troupe/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct troupe_stop_options {
    size_t size; /* sizeof(troupe_stop_options) */
    const int32_t *ids;
    size_t id_count;
    const char *const *strings; /* UTF-8, none empty; searched for in text without special tokens */
    size_t string_count;
} troupe_stop_options;

typedef enum troupe_stop_reason {
    TROUPE_STOP_NONE,  /* goes on */
    TROUPE_STOP_ID,    /* one of the ids */
    TROUPE_STOP_STRING /* one of the strings became whole */
} troupe_stop_reason;

/* One sequence. Belongs to one thread; borrows the tokenizer, copies the options. */
typedef struct troupe_stopper troupe_stopper;

/* INVALID when a string is empty, is not UTF-8 or is over 1 KiB. */
troupe_status troupe_stopper_new(const troupe_tokenizer *tokenizer,
    const troupe_stop_options *options, troupe_stopper **out, troupe_error *err) TROUPE_MUST_USE;
void troupe_stopper_free(troupe_stopper *stopper);

/* Takes the next sampled id. Once it has stopped, further ids are refused: they change nothing
 * and the same reason comes back. */
troupe_stop_reason troupe_stopper_push(troupe_stopper *stopper, int32_t id);

/* Ends a sequence that did not stop (its length limit was reached): characters that were held
 * back join the text. No effect after a stop. */
void troupe_stopper_finish(troupe_stopper *stopper);

/* How many ids were taken: those to keep. */
size_t troupe_stopper_count(const troupe_stopper *stopper);

/* The text so far, special tokens left out. Borrowed until the next call. `stable` (may be NULL)
 * becomes the size of the beginning that no later id can take away, for showing text while it
 * grows. */
const char *troupe_stopper_text(const troupe_stopper *stopper, size_t *size, size_t *stable);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
