/* Reads the text of a tokenizer.json: the vocabulary, the merges, the added tokens. Bytes of
 * files are never trusted: sizes are checked before memory is taken, every value before it is
 * used, and whatever would be a guess is an error. */
#include "tokenizer_load.h"

#include "json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    TOKEN_SIZE_MAX = 1 << 16,
    ADDED_SIZE_MAX = 1024
};

static const char kind_remedy[] =
    "use a model whose tokenizer.json has a byte-level BPE or the BPE of Llama 2";

/* --- errors and typed access ---------------------------------------------------------------- */

troupe_status
tr_load_fail(
    const struct tr_load *load, troupe_status status, const char *key, const char *format, ...)
{
    char text[800];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return troupe_fail(load->err, status, "%.200s: %s %s", load->name, key, text);
}

const char *
tr_load_quote(char out[TR_QUOTED_MAX], const char *text, size_t size)
{
    size_t at = 0;
    out[at++] = '"';
    size_t i = 0;
    for (; i < size && at + 10 < TR_QUOTED_MAX; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7f) {
            at += (size_t)snprintf(out + at, 7, "\\u%04x", c);
        } else {
            out[at++] = text[i];
        }
    }
    (void)snprintf(out + at, TR_QUOTED_MAX - at, i < size ? "...\"" : "\"");
    return out;
}

troupe_status
tr_load_bool(const struct tr_load *load, const json_t *object, const char *where, const char *key,
    bool fallback, bool *out)
{
    const json_t *value = json_object_get(object, key);
    if (value != NULL && !json_is_boolean(value) && !json_is_null(value)) {
        return tr_load_fail(
            load, TROUPE_BAD_INPUT, where, "has a \"%s\" that is neither true nor false", key);
    }
    *out = json_is_boolean(value) ? json_is_true(value) : fallback;
    return TROUPE_OK;
}

troupe_status
tr_load_text(const struct tr_load *load, const json_t *object, const char *where, const char *key,
    bool empty, struct tr_step_text *out)
{
    const json_t *value = json_object_get(object, key);
    size_t size = json_string_length(value);
    if (!json_is_string(value) || size > TR_STEP_TEXT_MAX || (size == 0 && !empty)) {
        return tr_load_fail(load, TROUPE_BAD_INPUT, where,
            "needs a \"%s\" that is a text of %d to %d bytes", key, empty ? 0 : 1,
            TR_STEP_TEXT_MAX);
    }
    memcpy(out->data, json_string_value(value), size);
    out->data[size] = '\0';
    out->size = size;
    return TROUPE_OK;
}

/* A key of the model that must be absent, null, or have no effect. */
static troupe_status
refuse_text(const struct tr_load *load, const json_t *model, const char *key)
{
    const json_t *value = json_object_get(model, key);
    if (value == NULL || json_is_null(value) ||
        (json_is_string(value) && json_string_length(value) == 0)) {
        return TROUPE_OK;
    }
    return tr_load_fail(load, TROUPE_UNSUPPORTED, "model", "has a %s, which is not supported; %s",
        key, kind_remedy);
}

/* --- the model ------------------------------------------------------------------------------ */

static troupe_status
load_vocab(const struct tr_load *load, json_t *vocab)
{
    const char *token = NULL;
    json_t *value = NULL;
    char quoted[TR_QUOTED_MAX], other[TR_QUOTED_MAX];
    json_object_foreach(vocab, token, value)
    {
        size_t size = strlen(token);
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id > TR_VOCAB_ID_MAX || size > TOKEN_SIZE_MAX) {
            return tr_load_fail(load, TROUPE_BAD_INPUT, "model.vocab",
                "gives the token %s an id that is no integer from 0 to %d, or the token is over %d "
                "bytes",
                tr_load_quote(quoted, token, size), TR_VOCAB_ID_MAX, TOKEN_SIZE_MAX);
        }
        struct tr_vocab *table = &load->tokenizer->vocab;
        if (tr_vocab_add(table, token, size, (int32_t)id, TR_TOKEN_MODEL) < 0) {
            const char *held = tr_vocab_text(table, (int32_t)id, &size);
            return tr_load_fail(load, TROUPE_BAD_INPUT, "model.vocab",
                "gives the id %d to two tokens, %s and %s", (int)id,
                tr_load_quote(other, held, size), tr_load_quote(quoted, token, strlen(token)));
        }
    }
    return TROUPE_OK;
}

/* The two sides of a merge, given as an array of two texts or as one text with a space between
 * them. */
static bool
merge_sides(const json_t *merge, const char *sides[2], size_t sizes[2])
{
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        for (size_t i = 0; i < 2; i++) {
            const json_t *side = json_array_get(merge, i);
            sides[i] = json_string_value(side);
            sizes[i] = json_string_length(side);
        }
        return sides[0] != NULL && sides[1] != NULL;
    }
    const char *text = json_string_value(merge);
    const char *space = text == NULL ? NULL : memchr(text, ' ', json_string_length(merge));
    if (space == NULL) {
        return false;
    }
    sides[0] = text;
    sizes[0] = (size_t)(space - text);
    sides[1] = space + 1;
    sizes[1] = json_string_length(merge) - sizes[0] - 1;
    return memchr(sides[1], ' ', sizes[1]) == NULL;
}

static troupe_status
load_merge(const struct tr_load *load, size_t index, const json_t *merge, tr_buf *joined)
{
    const char *sides[2] = {NULL, NULL};
    size_t sizes[2] = {0, 0};
    char key[48], quoted[TR_QUOTED_MAX];
    (void)snprintf(key, sizeof key, "model.merges[%zu]", index);
    if (!merge_sides(merge, sides, sizes)) {
        return tr_load_fail(load, TROUPE_BAD_INPUT, key,
            "is neither an array of two tokens nor two tokens with one space between them");
    }
    tr_buf_clear(joined);
    tr_buf_append(joined, sides[0], sizes[0]);
    tr_buf_append(joined, sides[1], sizes[1]);
    const char *texts[3] = {sides[0], sides[1], joined->data};
    size_t lengths[3] = {sizes[0], sizes[1], joined->size};
    int32_t ids[3];
    for (size_t i = 0; i < 3; i++) {
        ids[i] = tr_vocab_find(&load->tokenizer->vocab, texts[i], lengths[i], TR_TOKEN_MODEL);
        if (ids[i] < 0) {
            return tr_load_fail(load, TROUPE_BAD_INPUT, key,
                "%s %s, which is not in model.vocab; vocabulary and merges are not of one "
                "tokenizer",
                i < 2 ? "merges" : "makes", tr_load_quote(quoted, texts[i], lengths[i]));
        }
    }
    tr_bpe_add_merge(&load->tokenizer->bpe, ids[0], ids[1], ids[2]);
    return TROUPE_OK;
}

static troupe_status
load_merges(const struct tr_load *load, const json_t *merges)
{
    tr_buf joined = {0};
    troupe_status status = TROUPE_OK;
    for (size_t i = 0; i < json_array_size(merges) && status == TROUPE_OK; i++) {
        const json_t *merge = json_array_get(merges, i);
        /* A list of texts may carry the header line of merges.txt along. */
        const char *text = json_string_value(merge);
        if (text == NULL || strncmp(text, "#version", 8) != 0) {
            status = load_merge(load, i, merge, &joined);
        }
    }
    tr_buf_fini(&joined);
    return status;
}

static troupe_status
load_model_options(const struct tr_load *load, const json_t *model)
{
    struct tr_bpe *bpe = &load->tokenizer->bpe;
    const json_t *dropout = json_object_get(model, "dropout");
    if (json_is_number(dropout) && json_number_value(dropout) != 0) {
        return tr_load_fail(
            load, TROUPE_UNSUPPORTED, "model.dropout", "makes encoding random; set it to null");
    }
    troupe_status status = refuse_text(load, model, "continuing_subword_prefix");
    if (status == TROUPE_OK) {
        status = refuse_text(load, model, "end_of_word_suffix");
    }
    if (status == TROUPE_OK) {
        status = tr_load_bool(load, model, "model", "fuse_unk", false, &bpe->fuse_unk);
    }
    if (status == TROUPE_OK) {
        status = tr_load_bool(load, model, "model", "byte_fallback", false, &bpe->byte_fallback);
    }
    if (status == TROUPE_OK) {
        status = tr_load_bool(load, model, "model", "ignore_merges", false, &bpe->ignore_merges);
    }
    return status;
}

static troupe_status
load_unk(const struct tr_load *load, const json_t *model)
{
    const json_t *unk = json_object_get(model, "unk_token");
    struct tr_bpe *bpe = &load->tokenizer->bpe;
    bpe->unk = -1;
    if (unk == NULL || json_is_null(unk)) {
        return TROUPE_OK;
    }
    char quoted[TR_QUOTED_MAX];
    if (json_is_string(unk)) {
        bpe->unk = tr_vocab_find(
            bpe->vocab, json_string_value(unk), json_string_length(unk), TR_TOKEN_MODEL);
    }
    if (bpe->unk < 0) {
        const char *text = json_is_string(unk) ? json_string_value(unk) : "";
        return tr_load_fail(load, TROUPE_BAD_INPUT, "model.unk_token",
            "is %s, which is not in model.vocab", tr_load_quote(quoted, text, strlen(text)));
    }
    load->tokenizer->roles[TROUPE_TOKEN_UNK] = bpe->unk;
    return TROUPE_OK;
}

static troupe_status
load_model(const struct tr_load *load, const json_t *model)
{
    json_t *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    const json_t *type = json_object_get(model, "type");
    /* Files of early versions of the library have no type; a merge list tells BPE from the
     * others. */
    bool untyped = type == NULL && json_is_array(merges);
    if (!json_is_object(model)) {
        return tr_load_fail(load, TROUPE_BAD_INPUT, "model", "is missing or no object");
    }
    if (!untyped && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0)) {
        return tr_load_fail(load, TROUPE_UNSUPPORTED, "model.type",
            "is \"%.60s\"; only \"BPE\" is supported: %s",
            json_is_string(type) ? json_string_value(type) : "", kind_remedy);
    }
    if (!json_is_object(vocab) || !json_is_array(merges)) {
        return tr_load_fail(load, TROUPE_BAD_INPUT, "model",
            "needs \"vocab\", an object of tokens and ids, and \"merges\", an array");
    }
    troupe_status status = load_model_options(load, model);
    if (status == TROUPE_OK) {
        status = load_vocab(load, vocab);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    tr_bpe_init(&load->tokenizer->bpe, &load->tokenizer->vocab, json_array_size(merges));
    status = load_unk(load, model);
    return status == TROUPE_OK ? load_merges(load, merges) : status;
}

/* --- added tokens --------------------------------------------------------------------------- */

/* One entry of added_tokens, checked. */
struct added_token {
    const char *text;
    size_t size;
    int32_t id;
    uint8_t flags; /* TR_ADDED_... */
    bool special, normalized;
};

static troupe_status
read_added_flags(
    const struct tr_load *load, const json_t *entry, const char *key, struct added_token *out)
{
    static const struct {
        const char *name;
        uint8_t flag;
    } names[] = {{"lstrip", TR_ADDED_LSTRIP}, {"rstrip", TR_ADDED_RSTRIP},
        {"single_word", TR_ADDED_SINGLE_WORD}};

    troupe_status status = tr_load_bool(load, entry, key, "special", false, &out->special);
    if (status == TROUPE_OK) {
        status = tr_load_bool(load, entry, key, "normalized", !out->special, &out->normalized);
    }
    for (size_t i = 0; i < TR_COUNT(names) && status == TROUPE_OK; i++) {
        bool set = false;
        status = tr_load_bool(load, entry, key, names[i].name, false, &set);
        out->flags |= set ? names[i].flag : 0;
    }
    return status;
}

static troupe_status
read_added(const struct tr_load *load, size_t index, const json_t *entry, struct added_token *out)
{
    char key[48], quoted[TR_QUOTED_MAX], other[TR_QUOTED_MAX];
    (void)snprintf(key, sizeof key, "added_tokens[%zu]", index);
    const json_t *content = json_object_get(entry, "content");
    const json_t *number = json_object_get(entry, "id");
    json_int_t id = json_integer_value(number);
    *out = (struct added_token){
        .text = json_string_value(content), .size = json_string_length(content)};
    if (out->text == NULL || out->size > ADDED_SIZE_MAX) {
        return tr_load_fail(load, TROUPE_BAD_INPUT, key,
            "needs a \"content\" that is a text of at most %d bytes", ADDED_SIZE_MAX);
    }
    if (!json_is_integer(number) || id < 0 || id > TR_VOCAB_ID_MAX) {
        return tr_load_fail(load, TROUPE_BAD_INPUT, key,
            "needs an \"id\" that is an integer from 0 to %d", TR_VOCAB_ID_MAX);
    }
    out->id = (int32_t)id;
    troupe_status status = read_added_flags(load, entry, key, out);
    if (status != TROUPE_OK || out->size == 0) {
        return status; /* an empty one is nowhere in any text: it is passed over */
    }
    struct tr_vocab *vocab = &load->tokenizer->vocab;
    uint8_t flags = (uint8_t)(TR_TOKEN_ADDED | (out->special ? TR_TOKEN_SPECIAL : 0));
    int32_t held = tr_vocab_add(vocab, out->text, out->size, out->id, flags);
    if (held == out->id) {
        return TROUPE_OK;
    }
    (void)tr_load_quote(quoted, out->text, out->size);
    if (held >= 0) {
        return tr_load_fail(load, TROUPE_BAD_INPUT, key,
            "gives %s the id %d, but it has the id %d already", quoted, (int)id, (int)held);
    }
    size_t size = 0;
    const char *text = tr_vocab_text(vocab, out->id, &size);
    return tr_load_fail(load, TROUPE_BAD_INPUT, key, "gives %s the id %d, which is the id of %s",
        quoted, (int)id, tr_load_quote(other, text, size));
}

/* Puts a token where the text is searched for it. A normalised token is looked for in normalised
 * text, so it is normalised itself, and that is what it decodes to. (The library then no longer
 * knows it as special; here skip_special leaves every special token out.) */
static void
insert_added(troupe_tokenizer *t, const struct added_token *token)
{
    if (!token->normalized) {
        tr_added_insert(&t->raw, token->text, token->size, token->id, token->flags);
        return;
    }
    tr_buf text = {0};
    tr_normalize_append(t, token->text, token->size, &text);
    if (text.size > 0) {
        tr_added_insert(&t->normalized, text.data, text.size, token->id, token->flags);
        tr_vocab_show(&t->vocab, token->id, text.data, text.size);
    }
    tr_buf_fini(&text);
}

/* The normalizer is loaded already. Special tokens go first, since of two that look the same in
 * normalised text the first is taken. */
static troupe_status
load_added(const struct tr_load *load, const json_t *list)
{
    if (list == NULL || json_is_null(list)) {
        return TROUPE_OK;
    }
    if (!json_is_array(list)) {
        return tr_load_fail(load, TROUPE_BAD_INPUT, "added_tokens", "is no array");
    }
    size_t count = json_array_size(list);
    struct added_token *tokens = tr_zalloc(count, sizeof *tokens);
    troupe_status status = TROUPE_OK;
    for (size_t i = 0; i < count && status == TROUPE_OK; i++) {
        status = read_added(load, i, json_array_get(list, i), &tokens[i]);
    }
    for (size_t i = 0; i < 2 * count && status == TROUPE_OK; i++) {
        const struct added_token *token = &tokens[i % count];
        if (token->special == (i < count) && token->size > 0) {
            insert_added(load->tokenizer, token);
        }
    }
    tr_free(tokens);
    return status;
}

/* --- the file ------------------------------------------------------------------------------- */

static troupe_status
check_top(const struct tr_load *load, json_t *root)
{
    static const char *const known[] = {"version", "truncation", "padding", "added_tokens",
        "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"};
    if (!json_is_object(root)) {
        return tr_load_fail(load, TROUPE_BAD_INPUT, "the file", "is no JSON object");
    }
    const char *version = json_string_value(json_object_get(root, "version"));
    if (json_object_get(root, "version") != NULL &&
        (version == NULL || strcmp(version, "1.0") != 0)) {
        return tr_load_fail(load, TROUPE_UNSUPPORTED, "version", "is not \"1.0\"");
    }
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(root, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < TR_COUNT(known); i++) {
            found = found || strcmp(key, known[i]) == 0;
        }
        if (!found) {
            char quoted[TR_QUOTED_MAX];
            return tr_load_fail(load, TROUPE_UNSUPPORTED, tr_load_quote(quoted, key, strlen(key)),
                "is no key of this format that is known here");
        }
    }
    return TROUPE_OK;
}

static troupe_status
load_all(const struct tr_load *load, json_t *root)
{
    troupe_status status = check_top(load, root);
    if (status == TROUPE_OK) {
        status = load_model(load, json_object_get(root, "model"));
    }
    if (status == TROUPE_OK) {
        status = tr_load_normalizer(load, json_object_get(root, "normalizer"));
    }
    if (status == TROUPE_OK) {
        status = load_added(load, json_object_get(root, "added_tokens"));
    }
    if (status == TROUPE_OK) {
        status = tr_load_pre_tokenizer(load, json_object_get(root, "pre_tokenizer"));
    }
    if (status == TROUPE_OK) {
        status = tr_load_post_processor(load, json_object_get(root, "post_processor"));
    }
    if (status == TROUPE_OK) {
        status = tr_load_decoder(load, json_object_get(root, "decoder"));
    }
    if (status == TROUPE_OK && load->tokenizer->vocab.count == 0) {
        status = tr_load_fail(load, TROUPE_BAD_INPUT, "model.vocab", "is empty");
    }
    return status;
}

troupe_status
troupe_tokenizer_parse(
    const char *name, const char *json, size_t size, troupe_tokenizer **out, troupe_error *err)
{
    if (size > TR_TOKENIZER_JSON_MAX) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%.200s: has %zu bytes; a tokenizer.json of over %zu is not read", name, size,
            TR_TOKENIZER_JSON_MAX);
    }
    /* A vocabulary of a million tokens with as many merges, both as arrays, stays below these. */
    static const tr_json_limits limits = {
        .depth = 32, .containers = 2000000, .separators = 8000000};
    troupe_status status = tr_json_scan(name, json, size, &limits, err);
    if (status != TROUPE_OK) {
        return status;
    }
    json_error_t parse;
    json_t *root = json_loadb(json, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &parse);
    if (root == NULL) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "%.200s:%d:%d: is no valid JSON: %s", name,
            parse.line, parse.column, parse.text);
    }
    troupe_tokenizer *tokenizer = tr_zalloc(1, sizeof *tokenizer);
    for (size_t i = 0; i < TR_COUNT(tokenizer->roles); i++) {
        tokenizer->roles[i] = -1;
    }
    struct tr_load load = {.name = name, .tokenizer = tokenizer, .err = err};
    status = load_all(&load, root);
    json_decref(root);
    if (status != TROUPE_OK) {
        troupe_tokenizer_free(tokenizer);
        return status;
    }
    tokenizer->valid = tr_zalloc(tokenizer->vocab.count, 1);
    for (size_t id = 0; id < tokenizer->vocab.count; id++) {
        tokenizer->valid[id] = tr_vocab_flags(&tokenizer->vocab, (int32_t)id) != 0;
    }
    *out = tokenizer;
    return TROUPE_OK;
}
