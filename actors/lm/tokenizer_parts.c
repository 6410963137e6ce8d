/* The four pipelines of tokenizer.json: normalizer, pre_tokenizer, post_processor and decoder.
 * Each is a step or a (nested) Sequence of steps, which is flattened here. A step of a kind that
 * is not known is refused, since leaving it out would give other ids in silence. */
#include "tokenizer_load.h"
#include "unicode.h"

#include <string.h>

enum {
    SEQUENCE_DEPTH_MAX = 8
};

/* A pipeline: its key in the file, the key of its Sequence's list and how to read one step. */
struct pipeline {
    const char *key, *list;
    troupe_status (*step)(const struct tr_load *load, const json_t *value, const char *type);
};

static troupe_status
walk(const struct tr_load *load, const struct pipeline *pipe, const json_t *value, int depth)
{
    if (value == NULL || json_is_null(value)) {
        return TROUPE_OK;
    }
    const json_t *type = json_object_get(value, "type");
    if (!json_is_string(type)) {
        return tr_load_fail(
            load, TROUPE_BAD_INPUT, pipe->key, "must be null or an object with a \"type\"");
    }
    if (strcmp(json_string_value(type), "Sequence") != 0) {
        return pipe->step(load, value, json_string_value(type));
    }
    const json_t *list = json_object_get(value, pipe->list);
    if (!json_is_array(list)) {
        return tr_load_fail(load, TROUPE_BAD_INPUT, pipe->key,
            "is a Sequence whose \"%s\" is not an array", pipe->list);
    }
    if (depth == SEQUENCE_DEPTH_MAX) {
        return tr_load_fail(load, TROUPE_BAD_INPUT, pipe->key,
            "nests more than %d Sequences; flatten them", SEQUENCE_DEPTH_MAX);
    }
    troupe_status status = TROUPE_OK;
    for (size_t i = 0; i < json_array_size(list) && status == TROUPE_OK; i++) {
        status = walk(load, pipe, json_array_get(list, i), depth + 1);
    }
    return status;
}

static troupe_status
too_many(const struct tr_load *load, const char *key)
{
    return tr_load_fail(
        load, TROUPE_UNSUPPORTED, key, "has more than %d steps; this is the limit", TR_STEPS_MAX);
}

/* The pattern of a Replace: a literal text. */
static troupe_status
literal_pattern(
    const struct tr_load *load, const json_t *step, const char *key, struct tr_step_text *out)
{
    const json_t *pattern = json_object_get(step, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    if (json_is_string(regex)) {
        return tr_load_fail(load, TROUPE_UNSUPPORTED, key,
            "replaces the regular expression \"%.200s\"; only literal patterns (\"String\") are "
            "supported in Replace",
            json_string_value(regex));
    }
    return tr_load_text(load, pattern, key, "String", false, out);
}

static bool
is_one_character(const struct tr_step_text *text)
{
    size_t length = 0;
    return text->size > 0 && tr_utf8_next(text->data, text->size, &length) >= 0 &&
           length == text->size;
}

/* --- normalizer ----------------------------------------------------------------------------- */

static troupe_status
normalizer_step(const struct tr_load *load, const json_t *value, const char *type)
{
    static const char key[] = "normalizer";
    troupe_tokenizer *t = load->tokenizer;
    if (t->normalizer_count == TR_STEPS_MAX) {
        return too_many(load, key);
    }
    struct tr_normalizer_step *step = &t->normalizers[t->normalizer_count];
    troupe_status status = TROUPE_OK;
    if (strcmp(type, "NFC") == 0) {
        step->kind = TR_NORMALIZER_NFC;
    } else if (strcmp(type, "Prepend") == 0) {
        step->kind = TR_NORMALIZER_PREPEND;
        status = tr_load_text(load, value, key, "prepend", true, &step->to);
    } else if (strcmp(type, "Replace") == 0) {
        step->kind = TR_NORMALIZER_REPLACE;
        status = literal_pattern(load, value, key, &step->from);
        if (status == TROUPE_OK) {
            status = tr_load_text(load, value, key, "content", true, &step->to);
        }
    } else {
        return tr_load_fail(load, TROUPE_UNSUPPORTED, key,
            "has a step of type \"%.60s\"; supported are NFC, Prepend, Replace and Sequence", type);
    }
    t->normalizer_count += status == TROUPE_OK;
    return status;
}

troupe_status
tr_load_normalizer(const struct tr_load *load, const json_t *value)
{
    static const struct pipeline pipe = {"normalizer", "normalizers", normalizer_step};
    return walk(load, &pipe, value, 0);
}

/* --- pre_tokenizer -------------------------------------------------------------------------- */

static troupe_status
regex_splitter(const struct tr_load *load, const json_t *value, struct tr_splitter_step *step)
{
    static const char key[] = "pre_tokenizer";
    const char *pattern =
        json_string_value(json_object_get(json_object_get(value, "pattern"), "Regex"));
    if (pattern == NULL || !tr_split_recognise(pattern, &step->split)) {
        return tr_load_fail(load, TROUPE_UNSUPPORTED, key,
            "splits by %s%.300s; only the regular expressions of GPT-2, Qwen2 and Llama 3 are "
            "supported, to the letter",
            pattern == NULL ? "something that is no regular expression" : "",
            pattern == NULL ? "" : pattern);
    }
    const char *behavior = json_string_value(json_object_get(value, "behavior"));
    bool invert = false;
    troupe_status status = tr_load_bool(load, value, key, "invert", false, &invert);
    if (status != TROUPE_OK) {
        return status;
    }
    /* The expressions match every character of a text, so these two say the same. */
    bool isolated = behavior != NULL && strcmp(behavior, "Isolated") == 0 && !invert;
    bool inverted = behavior != NULL && strcmp(behavior, "Removed") == 0 && invert;
    if (!isolated && !inverted) {
        return tr_load_fail(load, TROUPE_UNSUPPORTED, key,
            "is a Split with behavior \"%.40s\" and invert %s; supported is \"Isolated\" and false",
            behavior == NULL ? "" : behavior, invert ? "true" : "false");
    }
    step->kind = TR_SPLITTER_REGEX;
    return TROUPE_OK;
}

static troupe_status
prepend_scheme(
    const struct tr_load *load, const json_t *value, const char *key, enum tr_prepend *out)
{
    const json_t *scheme = json_object_get(value, "prepend_scheme");
    bool legacy = true; /* files of before 2024 have add_prefix_space instead */
    troupe_status status = tr_load_bool(load, value, key, "add_prefix_space", true, &legacy);
    if (status != TROUPE_OK) {
        return status;
    }
    const char *name = scheme == NULL ? "always" : json_string_value(scheme);
    static const char *const names[] = {"never", "first", "always"};
    for (size_t i = 0; name != NULL && i < TR_COUNT(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = legacy ? (enum tr_prepend)i : TR_PREPEND_NEVER;
            if (!legacy && scheme != NULL && i != TR_PREPEND_NEVER) {
                return tr_load_fail(load, TROUPE_BAD_INPUT, key,
                    "has add_prefix_space false but prepend_scheme \"%s\"; remove one of them",
                    name);
            }
            return TROUPE_OK;
        }
    }
    return tr_load_fail(load, TROUPE_BAD_INPUT, key,
        "has a prepend_scheme that is none of \"always\", \"first\" and \"never\"");
}

/* `replacement` of a Metaspace: one character. */
static troupe_status
metaspace_mark(
    const struct tr_load *load, const json_t *value, const char *key, struct tr_step_text *mark)
{
    troupe_status status = tr_load_text(load, value, key, "replacement", false, mark);
    if (status == TROUPE_OK && !is_one_character(mark)) {
        status = tr_load_fail(
            load, TROUPE_BAD_INPUT, key, "has a replacement that is not one character");
    }
    return status;
}

static troupe_status
metaspace_splitter(const struct tr_load *load, const json_t *value, struct tr_splitter_step *step)
{
    static const char key[] = "pre_tokenizer";
    step->kind = TR_SPLITTER_METASPACE;
    troupe_status status = metaspace_mark(load, value, key, &step->mark);
    if (status == TROUPE_OK) {
        status = prepend_scheme(load, value, key, &step->prepend);
    }
    if (status == TROUPE_OK) {
        status = tr_load_bool(load, value, key, "split", true, &step->splits);
    }
    return status;
}

static troupe_status
byte_level_splitter(const struct tr_load *load, const json_t *value, struct tr_splitter_step *step)
{
    static const char key[] = "pre_tokenizer";
    step->kind = TR_SPLITTER_BYTE_LEVEL;
    troupe_status status =
        tr_load_bool(load, value, key, "add_prefix_space", true, &step->add_prefix_space);
    if (status == TROUPE_OK) {
        status = tr_load_bool(load, value, key, "use_regex", true, &step->splits);
    }
    return status;
}

static troupe_status
digits_splitter(const struct tr_load *load, const json_t *value, struct tr_splitter_step *step)
{
    bool individual = false;
    step->kind = TR_SPLITTER_REGEX;
    troupe_status status =
        tr_load_bool(load, value, "pre_tokenizer", "individual_digits", false, &individual);
    step->split = individual ? TR_SPLIT_DIGITS : TR_SPLIT_DIGIT_RUNS;
    return status;
}

static troupe_status
splitter_step(const struct tr_load *load, const json_t *value, const char *type)
{
    static const char key[] = "pre_tokenizer";
    troupe_tokenizer *t = load->tokenizer;
    if (t->splitter_count == TR_STEPS_MAX) {
        return too_many(load, key);
    }
    struct tr_splitter_step *step = &t->splitters[t->splitter_count];
    troupe_status status = TROUPE_OK;
    if (strcmp(type, "Split") == 0) {
        status = regex_splitter(load, value, step);
    } else if (strcmp(type, "ByteLevel") == 0) {
        status = byte_level_splitter(load, value, step);
    } else if (strcmp(type, "Metaspace") == 0) {
        status = metaspace_splitter(load, value, step);
    } else if (strcmp(type, "Digits") == 0) {
        status = digits_splitter(load, value, step);
    } else {
        return tr_load_fail(load, TROUPE_UNSUPPORTED, key,
            "has a step of type \"%.60s\"; supported are ByteLevel, Split, Metaspace, Digits and "
            "Sequence",
            type);
    }
    t->splitter_count += status == TROUPE_OK;
    return status;
}

troupe_status
tr_load_pre_tokenizer(const struct tr_load *load, const json_t *value)
{
    static const struct pipeline pipe = {"pre_tokenizer", "pretokenizers", splitter_step};
    return walk(load, &pipe, value, 0);
}

/* --- post_processor ------------------------------------------------------------------------- */

/* The ids of one special token of a template, appended to `ids`. */
static troupe_status
template_token(const struct tr_load *load, const json_t *value, const json_t *piece, int32_t *ids,
    size_t *count)
{
    static const char key[] = "post_processor";
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *list =
        json_object_get(json_object_get(json_object_get(value, "special_tokens"), name), "ids");
    if (name == NULL || !json_is_array(list)) {
        return tr_load_fail(load, TROUPE_BAD_INPUT, key,
            "uses the token \"%.60s\", which its special_tokens do not describe",
            name == NULL ? "" : name);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t id = json_integer_value(json_array_get(list, i));
        if (!json_is_integer(json_array_get(list, i)) || id < 0 || id > TR_VOCAB_ID_MAX ||
            tr_vocab_flags(&load->tokenizer->vocab, (int32_t)id) == 0) {
            return tr_load_fail(load, TROUPE_BAD_INPUT, key,
                "gives the token \"%.60s\" an id that names no token of the vocabulary", name);
        }
        if (*count == TR_TEMPLATE_MAX) {
            return tr_load_fail(load, TROUPE_UNSUPPORTED, key,
                "adds more than %d tokens on one side of the text", TR_TEMPLATE_MAX);
        }
        ids[(*count)++] = (int32_t)id;
    }
    return TROUPE_OK;
}

static troupe_status
template_step(const struct tr_load *load, const json_t *value)
{
    static const char key[] = "post_processor";
    const json_t *single = json_object_get(value, "single");
    troupe_tokenizer *t = load->tokenizer;
    int32_t *around[2] = {t->prefix, t->suffix};
    size_t *counts[2] = {&t->prefix_count, &t->suffix_count};
    size_t side = 0; /* 0 before the text, 1 after it */
    bool valid = json_is_array(single);
    if (t->has_template) {
        return tr_load_fail(
            load, TROUPE_UNSUPPORTED, key, "has two templates; which goes outside is not defined");
    }
    for (size_t i = 0; valid && i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *token = json_object_get(piece, "SpecialToken");
        const char *sequence =
            json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
        if (token != NULL) {
            troupe_status status = template_token(load, value, token, around[side], counts[side]);
            if (status != TROUPE_OK) {
                return status;
            }
            continue;
        }
        valid = side == 0 && sequence != NULL && strcmp(sequence, "A") == 0;
        side = 1;
    }
    if (!valid || side == 0) {
        return tr_load_fail(load, TROUPE_BAD_INPUT, key,
            "has a template whose \"single\" is not a list of special tokens around one "
            "Sequence \"A\"");
    }
    t->has_template = true;
    return TROUPE_OK;
}

static troupe_status
post_step(const struct tr_load *load, const json_t *value, const char *type)
{
    if (strcmp(type, "ByteLevel") == 0) {
        return TROUPE_OK; /* it trims offsets, which are not kept here */
    }
    if (strcmp(type, "TemplateProcessing") == 0) {
        return template_step(load, value);
    }
    return tr_load_fail(load, TROUPE_UNSUPPORTED, "post_processor",
        "has a step of type \"%.60s\"; supported are ByteLevel, TemplateProcessing and Sequence",
        type);
}

troupe_status
tr_load_post_processor(const struct tr_load *load, const json_t *value)
{
    static const struct pipeline pipe = {"post_processor", "processors", post_step};
    return walk(load, &pipe, value, 0);
}

/* --- decoder -------------------------------------------------------------------------------- */

static troupe_status
strip_decoder(const struct tr_load *load, const json_t *value, struct tr_decode_step *step)
{
    static const char key[] = "decoder";
    troupe_status status = tr_load_text(load, value, key, "content", false, &step->from);
    if (status != TROUPE_OK) {
        return status;
    }
    json_int_t start = json_integer_value(json_object_get(value, "start"));
    json_int_t stop = json_integer_value(json_object_get(value, "stop"));
    if (!is_one_character(&step->from) || start < 0 || stop < 0 || start > 1000 || stop > 1000) {
        return tr_load_fail(load, TROUPE_BAD_INPUT, key,
            "has a Strip whose content is not one character, or whose start and stop are not "
            "within "
            "0 and 1000");
    }
    step->kind = TR_DECODE_STRIP;
    step->start = (size_t)start;
    step->stop = (size_t)stop;
    return TROUPE_OK;
}

/* Reads a step that works on tokens one by one. */
static troupe_status
token_decoder(
    const struct tr_load *load, const json_t *value, const char *type, struct tr_decode_step *step)
{
    static const char key[] = "decoder";
    troupe_status status = TROUPE_OK;
    enum tr_prepend prepend = TR_PREPEND_ALWAYS;
    if (strcmp(type, "ByteLevel") == 0) {
        step->kind = TR_DECODE_BYTE_LEVEL;
    } else if (strcmp(type, "ByteFallback") == 0) {
        step->kind = TR_DECODE_BYTE_FALLBACK;
    } else if (strcmp(type, "Replace") == 0) {
        step->kind = TR_DECODE_REPLACE;
        status = literal_pattern(load, value, key, &step->from);
        if (status == TROUPE_OK) {
            status = tr_load_text(load, value, key, "content", true, &step->to);
        }
    } else if (strcmp(type, "Metaspace") == 0) {
        step->kind = TR_DECODE_METASPACE;
        status = metaspace_mark(load, value, key, &step->from);
        if (status == TROUPE_OK) {
            status = prepend_scheme(load, value, key, &prepend);
        }
        step->drops_first = prepend != TR_PREPEND_NEVER;
    } else {
        status = tr_load_fail(load, TROUPE_UNSUPPORTED, key,
            "has a step of type \"%.60s\"; supported are ByteLevel, ByteFallback, Fuse, Metaspace, "
            "Replace, Strip and Sequence",
            type);
    }
    return status;
}

/* `fused` says that an earlier step made one text of the tokens: only Strip has a meaning then
 * that does not need the whole text at once. */
static troupe_status
decoder_step(const struct tr_load *load, const json_t *value, const char *type)
{
    static const char key[] = "decoder";
    troupe_tokenizer *t = load->tokenizer;
    if (t->decoder_count == TR_STEPS_MAX) {
        return too_many(load, key);
    }
    struct tr_decode_step *step = &t->decoders[t->decoder_count];
    if (strcmp(type, "Fuse") == 0) {
        step->fused = true; /* a mark on the slot that the next step takes */
        return TROUPE_OK;
    }
    troupe_status status = TROUPE_OK;
    if (strcmp(type, "Strip") == 0) {
        status = strip_decoder(load, value, step);
    } else if (step->fused) {
        status = tr_load_fail(load, TROUPE_UNSUPPORTED, key,
            "has a step of type \"%.60s\" after Fuse or ByteLevel; only Strip may follow them",
            type);
    } else {
        status = token_decoder(load, value, type, step);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    bool fused = step->fused || step->kind == TR_DECODE_BYTE_LEVEL;
    if (++t->decoder_count < TR_STEPS_MAX) {
        t->decoders[t->decoder_count].fused = fused;
    }
    return TROUPE_OK;
}

troupe_status
tr_load_decoder(const struct tr_load *load, const json_t *value)
{
    static const struct pipeline pipe = {"decoder", "decoders", decoder_step};
    if (value == NULL || json_is_null(value)) {
        load->tokenizer->decoders[load->tokenizer->decoder_count++].kind = TR_DECODE_JOIN;
        return TROUPE_OK;
    }
    return walk(load, &pipe, value, 0);
}
