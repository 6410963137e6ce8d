/* Rotary embedding: what the configuration says about it, in the spelling of transformers 4
 * (rope_theta beside rope_scaling) or 5 (all inside rope_parameters), and the frequencies that
 * follow. A key that is dropped or misread here gives a model that is right for short prompts
 * and wrong for long ones, so everything that is not understood is an error. */
#include "config.h"
#include "file.h"

#include <math.h>
#include <string.h>

#define ABSENT ((double)NAN)

/* What one spelling says; ABSENT = nothing. */
typedef struct rope_source {
    bool present;
    int kind; /* troupe_rope_kind */
    double theta, factor, low, high, original;
} rope_source;

static const char *const kind_names[] = {[TROUPE_ROPE_DEFAULT] = "default",
    [TROUPE_ROPE_LINEAR] = "linear",
    [TROUPE_ROPE_LLAMA3] = "llama3"};

const char *
tr_lm_rope_name(troupe_rope_kind kind)
{
    TR_ASSERT((size_t)kind < TR_COUNT(kind_names));
    return kind_names[kind];
}

static int
read_kind(tr_json_reader *reader)
{
    const char *now = tr_json_text(reader, "rope_type");
    const char *old = tr_json_text(reader, "type");
    if (now != NULL && old != NULL && strcmp(now, old) != 0) {
        char a[TR_PRINTABLE_MAX];
        char b[TR_PRINTABLE_MAX];
        tr_json_fail(reader, TROUPE_BAD_INPUT, "rope_type",
            "'%s' contradicts type '%s'; remove the wrong one", tr_printable(a, now),
            tr_printable(b, old));
    }
    const char *name = now != NULL ? now : old;
    for (size_t i = 0; name != NULL && i < TR_COUNT(kind_names); i++) {
        if (strcmp(kind_names[i], name) == 0) {
            return (int)i;
        }
    }
    if (name != NULL) {
        char shown[TR_PRINTABLE_MAX];
        tr_json_fail(reader, TROUPE_UNSUPPORTED, now != NULL ? "rope_type" : "type",
            "'%s' is not supported; default, linear and llama3 are: use another model, or remove "
            "the scaling and lower max_position_embeddings to the trained length",
            tr_printable(shown, name));
    }
    return TROUPE_ROPE_DEFAULT;
}

static void
refuse_unknown_keys(tr_json_reader *reader)
{
    static const char *const known[] = {"rope_type", "type", "rope_theta", "factor",
        "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
        "partial_rotary_factor"};
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(reader->object, key, value)
    {
        bool found = json_is_null(value);
        for (size_t i = 0; !found && i < TR_COUNT(known); i++) {
            found = strcmp(known[i], key) == 0;
        }
        if (!found) {
            char shown[TR_PRINTABLE_MAX];
            tr_json_fail(reader, TROUPE_UNSUPPORTED, tr_printable(shown, key),
                "a rope setting that is not supported; use a model without it");
        }
    }
}

/* A whole number of positions; ABSENT when it is not there. */
static double
read_length(tr_json_reader *reader, const char *key)
{
    int length = tr_json_int(reader, key, 0, 1, TR_CONTEXT_MAX);
    return length > 0 ? length : ABSENT;
}

/* The object under `key` of config.json; its failures become the outer reader's. */
static rope_source
read_source(tr_json_reader *outer, const char *key, const char *inside)
{
    rope_source source = {.kind = TROUPE_ROPE_DEFAULT,
        .theta = ABSENT,
        .factor = ABSENT,
        .low = ABSENT,
        .high = ABSENT,
        .original = ABSENT};
    json_t *object = tr_json_get(outer, key);
    if (object == NULL || outer->status != TROUPE_OK) {
        return source;
    }
    if (!json_is_object(object)) {
        tr_json_fail(outer, TROUPE_BAD_INPUT, key, "not an object; correct it or set it to null");
        return source;
    }
    tr_json_reader reader = {
        .file = outer->file, .inside = inside, .object = object, .err = outer->err};
    source.present = true;
    source.kind = read_kind(&reader);
    source.theta = tr_json_real(&reader, "rope_theta", ABSENT, 1.0, 1e15);
    source.factor = tr_json_real(&reader, "factor", ABSENT, 1.0, 1e6);
    source.low = tr_json_real(&reader, "low_freq_factor", ABSENT, 1e-6, 1e6);
    source.high = tr_json_real(&reader, "high_freq_factor", ABSENT, 1e-6, 1e6);
    source.original = read_length(&reader, "original_max_position_embeddings");
    (void)tr_json_real(&reader, "partial_rotary_factor", 1.0, 1.0, 1.0);
    refuse_unknown_keys(&reader);
    outer->status = reader.status;
    return source;
}

/* The number that two places state; both may, if they agree. ABSENT when neither does. */
static double
agree(tr_json_reader *reader, const char *key, double a, double b)
{
    if (!isnan(a) && !isnan(b) && fabs(a - b) > 0) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, key,
            "stated twice, as %.17g and as %.17g (the old spelling and rope_parameters); remove "
            "the wrong one",
            a, b);
    }
    return isnan(a) ? b : a;
}

/* A kind that needs a number must have it, and one that does not must not: a scaling whose type was
 * lost on the way is not ignored. */
static void
check_kind(tr_json_reader *reader, const rope_source *rope)
{
    const char *kind = kind_names[rope->kind];
    bool llama3 = rope->kind == TROUPE_ROPE_LLAMA3;
    bool scaled = rope->kind != TROUPE_ROPE_DEFAULT;
    if (scaled && isnan(rope->factor)) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, "factor",
            "missing, rope type %s needs it; add it to rope_scaling or rope_parameters", kind);
    } else if (!scaled && rope->factor > 1.0) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, "factor",
            "%g contradicts rope type default, which does not scale; state the type or remove it",
            rope->factor);
    } else if (llama3 && (isnan(rope->low) || isnan(rope->high))) {
        tr_json_fail(reader, TROUPE_BAD_INPUT,
            isnan(rope->low) ? "low_freq_factor" : "high_freq_factor",
            "missing, rope type llama3 needs it; add it to rope_scaling or rope_parameters");
    } else if (llama3 && rope->high <= rope->low) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, "high_freq_factor",
            "%g is not above low_freq_factor %g; correct the wrong one", rope->high, rope->low);
    } else if (!llama3 && !(isnan(rope->low) && isnan(rope->high))) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, "low_freq_factor",
            "contradicts rope type %s; only llama3 has it: state the type or remove it", kind);
    }
}

static double
or_else(double value, double fallback)
{
    return isnan(value) ? fallback : value;
}

void
tr_lm_rope_parse(tr_json_reader *outer, troupe_lm_config *config)
{
    rope_source now = read_source(outer, "rope_parameters", "rope_parameters.");
    rope_source old = read_source(outer, "rope_scaling", "rope_scaling.");
    double beside = tr_json_real(outer, "rope_theta", ABSENT, 1.0, 1e15);
    double original = read_length(outer, "original_max_position_embeddings");
    (void)tr_json_real(outer, "partial_rotary_factor", 1.0, 1.0, 1.0);

    tr_json_reader reader = *outer;
    reader.inside = "rope: ";
    if (now.present && old.present && now.kind != old.kind) {
        tr_json_fail(&reader, TROUPE_BAD_INPUT, "rope_type",
            "'%s' in rope_parameters contradicts '%s' in rope_scaling; remove the wrong one",
            kind_names[now.kind], kind_names[old.kind]);
    }
    rope_source rope = {.kind = now.present ? now.kind : old.kind};
    rope.theta =
        agree(&reader, "rope_theta", agree(&reader, "rope_theta", now.theta, old.theta), beside);
    rope.factor = agree(&reader, "factor", now.factor, old.factor);
    rope.low = agree(&reader, "low_freq_factor", now.low, old.low);
    rope.high = agree(&reader, "high_freq_factor", now.high, old.high);
    rope.original = agree(&reader, "original_max_position_embeddings",
        agree(&reader, "original_max_position_embeddings", now.original, old.original), original);
    check_kind(&reader, &rope);
    outer->status = reader.status;

    bool llama3 = rope.kind == TROUPE_ROPE_LLAMA3;
    config->rope.kind = (troupe_rope_kind)rope.kind;
    config->rope.theta = or_else(rope.theta, 10000.0);
    config->rope.factor = or_else(rope.factor, 1.0);
    config->rope.low_freq_factor = llama3 ? or_else(rope.low, 1.0) : 1.0;
    config->rope.high_freq_factor = llama3 ? or_else(rope.high, 1.0) : 1.0;
    config->rope.original_context =
        llama3 ? or_else(rope.original, (double)config->context) : (double)config->context;
}

/* Llama 3.1's rule (transformers, modeling_rope_utils, "llama3"): wavelengths that fit the
 * trained context high_freq_factor times are kept, those that do not fit low_freq_factor times
 * are slowed by `factor`, and those between go linearly from one to the other. */
static double
llama3_frequency(const troupe_lm_config *config, double frequency)
{
    double turns = config->rope.original_context * frequency / (2.0 * 3.14159265358979323846);
    double low = config->rope.low_freq_factor;
    double high = config->rope.high_freq_factor;
    if (turns > high) {
        return frequency;
    }
    if (turns < low) {
        return frequency / config->rope.factor;
    }
    double keep = (turns - low) / (high - low);
    return (1.0 - keep) * frequency / config->rope.factor + keep * frequency;
}

void
troupe_lm_inv_freq(const troupe_lm_config *config, float *inv_freq)
{
    for (int i = 0; i < config->head_dim / 2; i++) {
        double exponent = 2.0 * i / config->head_dim;
        double frequency = 1.0 / pow(config->rope.theta, exponent);
        switch (config->rope.kind) {
        case TROUPE_ROPE_DEFAULT:
            break;
        case TROUPE_ROPE_LINEAR:
            frequency /= config->rope.factor;
            break;
        case TROUPE_ROPE_LLAMA3:
            frequency = llama3_frequency(config, frequency);
            break;
        }
        inv_freq[i] = (float)frequency;
    }
}
