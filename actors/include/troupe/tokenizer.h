/* Text to token ids and back, by the rules of a Hugging Face tokenizer.json.
 *
 * Supported: the BPE model, byte-level (GPT-2, Qwen2, Qwen3, Llama 3) and of the metaspace and
 * byte- fallback kind (Llama 2); anything else in the file is refused by name, never
 * approximated. Ids agree with the `tokenizers` library. `truncation` and `padding` of the file
 * are not applied: a text is always encoded whole.
 *
 * A tokenizer is read-only once loaded: any number of threads may use it at once. Decoders and
 * stoppers belong to one thread each. Texts are bytes with a size; they may hold zero bytes.
 * Bytes that are not UTF-8 are no error: a byte-level tokenizer encodes them one by one and gives
 * them back, any other takes them as unknown characters. */
#ifndef TROUPE_TOKENIZER_H
#define TROUPE_TOKENIZER_H

#include <troupe/ext/base.h>
#include <troupe/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct troupe_tokenizer troupe_tokenizer;

/* A growing array of ids. Zeroed is empty and valid. */
typedef struct troupe_ids {
    int32_t *data;
    size_t count;
    size_t capacity;
} troupe_ids;

void troupe_ids_append(troupe_ids *ids, int32_t id);
void troupe_ids_fini(troupe_ids *ids); /* frees and zeroes */

/* --- loading -------------------------------------------------------------------------------- */

/* Loads `path`, a tokenizer.json or a directory that holds one. The begin, end, padding and
 * unknown tokens come from tokenizer_config.json beside it, or else special_tokens_map.json,
 * where there is one. On success *out is the caller's, to be freed; on failure it is not written,
 * and the error names file, key and what is supported: NOT_FOUND, IO, BAD_INPUT (malformed),
 * UNSUPPORTED (another kind). */
troupe_status troupe_tokenizer_load(
    const char *path, troupe_tokenizer **out, troupe_error *err) TROUPE_MUST_USE;

/* The same from memory: `json` is the text of a tokenizer.json, `name` stands for it in errors.
 * The begin, end and padding tokens are unknown then. */
troupe_status troupe_tokenizer_parse(const char *name, const char *json, size_t size,
    troupe_tokenizer **out, troupe_error *err) TROUPE_MUST_USE;

void troupe_tokenizer_free(troupe_tokenizer *tokenizer); /* NULL is allowed */

/* --- the vocabulary ------------------------------------------------------------------------- */

/* The largest id + 1. A model's embedding may have more rows: a sampler must not draw those. */
int troupe_tokenizer_vocab(const troupe_tokenizer *tokenizer);

/* One byte for each id below troupe_tokenizer_vocab: 1 if it names a token, 0 if it is a gap.
 * Borrowed. */
const uint8_t *troupe_tokenizer_valid_ids(const troupe_tokenizer *tokenizer);

/* The id of a token by its text in the file (byte-level texts are in the file's own alphabet), or
 * -1. */
int32_t troupe_tokenizer_id(const troupe_tokenizer *tokenizer, const char *token, size_t size);

/* A token's text in the file, or NULL when the id names none. Borrowed, followed by a zero byte. */
const char *troupe_tokenizer_token(const troupe_tokenizer *tokenizer, int32_t id, size_t *size);

/* True when decoding with skip_special leaves the id out. */
bool troupe_tokenizer_is_special(const troupe_tokenizer *tokenizer, int32_t id);

typedef enum troupe_token_role {
    TROUPE_TOKEN_BOS,
    TROUPE_TOKEN_EOS,
    TROUPE_TOKEN_PAD,
    TROUPE_TOKEN_UNK
} troupe_token_role;

/* The id that has a role, or -1. Generation configs may name more ends than EOS. */
int32_t troupe_tokenizer_role(const troupe_tokenizer *tokenizer, troupe_token_role role);

/* --- encoding and decoding ------------------------------------------------------------------ */

enum {
    TROUPE_ENCODE_ADD_SPECIAL =
        1, /* what the file's post_processor adds; nothing if it adds nothing */
    TROUPE_DECODE_SKIP_SPECIAL = 2
};

/* Appends the ids of a text. Added tokens in it are recognised in any case. Text that a chat
 * template made has its special tokens already and is encoded without ADD_SPECIAL. INVALID when
 * the text is over 256 MiB. */
troupe_status troupe_tokenizer_encode(const troupe_tokenizer *tokenizer, const char *text,
    size_t size, unsigned flags, troupe_ids *ids, troupe_error *err) TROUPE_MUST_USE;

/* Appends the text of ids: always valid UTF-8, bytes that are none become U+FFFD. Ids that name
 * no token add nothing. */
void troupe_tokenizer_decode(const troupe_tokenizer *tokenizer, const int32_t *ids, size_t count,
    unsigned flags, tr_buf *text);

/* True when the ids begin with two begin tokens, which shifts every position of a model by one.
 * It happens when a text that holds one already is encoded with ADD_SPECIAL. */
bool troupe_tokenizer_double_bos(
    const troupe_tokenizer *tokenizer, const int32_t *ids, size_t count);

/* --- decoding while ids arrive -------------------------------------------------------------- */

/* Gives the text of a growing sequence piece by piece. The pieces are whole characters and add up
 * to exactly what troupe_tokenizer_decode gives for all ids: what a later id could still change
 * (the beginning of a character, a run of byte tokens) is held back. */
typedef struct troupe_decoder troupe_decoder;

/* Flags: TROUPE_DECODE_SKIP_SPECIAL or 0. Borrows the tokenizer. */
troupe_decoder *troupe_decoder_new(const troupe_tokenizer *tokenizer, unsigned flags);
void troupe_decoder_free(troupe_decoder *decoder);

/* Appends what is certain after one more id. */
void troupe_decoder_push(troupe_decoder *decoder, int32_t id, tr_buf *text);

/* Appends what is held back as far as it is whole characters now, and changes nothing: what the
 * text would be if it ended here, less a broken character at its end. */
void troupe_decoder_peek(const troupe_decoder *decoder, tr_buf *text);

/* Appends what was held back and begins anew. */
void troupe_decoder_finish(troupe_decoder *decoder, tr_buf *text);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
