/* What the two files that read tokenizer.json share: where an error is, and typed access to
 * values. */
#ifndef TR_LM_TOKENIZER_LOAD_H
#define TR_LM_TOKENIZER_LOAD_H

#include "tokenizer_impl.h"

#include <jansson.h>

/* The largest tokenizer.json in use is about 35 MB. */
#define TR_TOKENIZER_JSON_MAX ((size_t)128 << 20)

struct tr_load {
    const char *name; /* the file, for errors */
    troupe_tokenizer *tokenizer;
    troupe_error *err;
};

/* Fails with "NAME: KEY text". */
troupe_status tr_load_fail(const struct tr_load *load, troupe_status status, const char *key,
    const char *format, ...) TROUPE_PRINTF(4, 5);

/* A token as it can stand in a message: quoted, control characters escaped, cut when long. */
enum {
    TR_QUOTED_MAX = 80
};

const char *tr_load_quote(char out[TR_QUOTED_MAX], const char *text, size_t size);

/* object[key] as a boolean; absent and null give the fallback. `where` is the object's key. */
troupe_status tr_load_bool(const struct tr_load *load, const json_t *object, const char *where,
    const char *key, bool fallback, bool *out);

/* object[key] as a short text that must be there; it may be empty when `empty` allows it. */
troupe_status tr_load_text(const struct tr_load *load, const json_t *object, const char *where,
    const char *key, bool empty, struct tr_step_text *out);

/* Fill the tokenizer from the values of the four keys (NULL and JSON null: none). The vocabulary is
 * complete when the post-processor is read. */
troupe_status tr_load_normalizer(const struct tr_load *load, const json_t *value);
troupe_status tr_load_pre_tokenizer(const struct tr_load *load, const json_t *value);
troupe_status tr_load_post_processor(const struct tr_load *load, const json_t *value);
troupe_status tr_load_decoder(const struct tr_load *load, const json_t *value);

#endif
