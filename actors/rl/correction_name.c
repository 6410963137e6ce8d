/* The names of corrections: a list of parts, each with bounds that it sets. */
#include "names.h"

#include <string.h>

/* Parts of a correction. `low` and `high` are offsets of what its arguments set; `low` is NONE
 * where it takes one argument, both where it takes none. */
#define NONE ((size_t)-1)

typedef struct tr_part {
    const char *name;
    bool is_weight;
    troupe_rl_weight weight;
    unsigned mask;
    size_t low, high;
    double default_low, default_high;
} tr_part;

#define FIELD(field) offsetof(troupe_rl_options, field)
static const tr_part parts[] = {
    {"none", true, TROUPE_WEIGHT_NONE, 0, NONE, NONE, 0, 0},
    {"token-tis", true, TROUPE_WEIGHT_TOKEN_TIS, 0, NONE, FIELD(weight_high), 0, 2},
    {"seq-tis", true, TROUPE_WEIGHT_SEQ_TIS, 0, NONE, FIELD(weight_high), 0, 2},
    {"token-mis", true, TROUPE_WEIGHT_TOKEN_MIS, 0, FIELD(weight_low), FIELD(weight_high), 0, 2},
    {"seq-mis", true, TROUPE_WEIGHT_SEQ_MIS, 0, FIELD(weight_low), FIELD(weight_high), 0, 3},
    {"icepop", true, TROUPE_WEIGHT_TOKEN_MIS, 0, FIELD(weight_low), FIELD(weight_high), 0.5, 5},
    {"token-rs", false, 0, TROUPE_MASK_TOKEN_RS, FIELD(token_rs_low), FIELD(token_rs_high), 0.5, 2},
    {"seq-rs", false, 0, TROUPE_MASK_SEQ_RS, FIELD(seq_rs_low), FIELD(seq_rs_high), 0.5, 2},
    {"geo-rs", false, 0, TROUPE_MASK_GEO_RS, FIELD(geo_rs_low), FIELD(geo_rs_high), 0.999, 1.001},
    {"k3-rs", false, 0, TROUPE_MASK_K3_RS, NONE, FIELD(k3_rs_max), 0, 1e-2},
    {"veto", false, 0, TROUPE_MASK_VETO, NONE, FIELD(veto_min), 0, 1e-4},
    {"m2po", false, 0, TROUPE_MASK_M2PO, NONE, FIELD(m2po_max), 0, 0.04},
    {"opsm", false, 0, TROUPE_MASK_OPSM, NONE, FIELD(opsm_max), 0, 1e-4},
    {"batch-norm", false, 0, 0, NONE, NONE, 0, 0},
};

static double *
number_at(troupe_rl_options *options, size_t offset)
{
    return (double *)(void *)((char *)options + offset);
}

static double
number_of(const troupe_rl_options *options, size_t offset)
{
    return *(const double *)(const void *)((const char *)options + offset);
}

static const tr_part *
find_part(const char *name)
{
    for (size_t i = 0; i < TR_COUNT(parts); i++) {
        if (strcmp(name, parts[i].name) == 0) {
            return &parts[i];
        }
    }
    return NULL;
}

/* "name", "name:high" or "name:low:high" of one part; `arguments` is what follows the name, or
 * NULL. */
static troupe_status
set_bounds(
    troupe_rl_options *options, const tr_part *part, const char *arguments, troupe_error *err)
{
    if (part->high != NONE) {
        *number_at(options, part->high) = part->default_high;
    }
    if (part->is_weight) {
        options->weight_low = part->default_low;
    } else if (part->low != NONE) {
        *number_at(options, part->low) = part->default_low;
    }
    const size_t want = (size_t)(part->low != NONE) + (size_t)(part->high != NONE);
    double values[2] = {0};
    size_t count = 0;
    char word[TR_WORD_MAX];
    while (tr_rl_next_word(&arguments, ':', word)) {
        if (count == want) {
            return troupe_fail(err, TROUPE_BAD_INPUT, "correction %s takes %s, \"%s\" is too much",
                part->name,
                want == 0   ? "no bound"
                : want == 1 ? "one bound"
                            : "two bounds, low:high",
                word);
        }
        const troupe_status status =
            tr_rl_parse_number(part->name, word, 0, 1e9, &values[count], err);
        if (status != TROUPE_OK) {
            return status;
        }
        count++;
    }
    if (count == 0) {
        return TROUPE_OK;
    }
    if (count < want || (want == 2 && values[0] >= values[1])) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "correction %s takes two bounds, low:high, low below high", part->name);
    }
    if (part->low != NONE) {
        *number_at(options, part->low) = values[0];
    }
    *number_at(options, part->high) = values[count - 1];
    return TROUPE_OK;
}

troupe_status
tr_rl_set_correction(troupe_rl_options *options, const char *list, troupe_error *err)
{
    const char *weight = NULL;
    char word[TR_WORD_MAX];
    while (tr_rl_next_word(&list, '+', word)) {
        char *colon = strchr(word, ':');
        if (colon != NULL) {
            *colon = '\0';
        }
        const tr_part *part = find_part(word);
        if (part == NULL) {
            const char *names[TR_NAMES_MAX];
            for (size_t i = 0; i < TR_COUNT(parts); i++) {
                names[i] = parts[i].name;
            }
            return tr_rl_unknown("correction", word, names, TR_COUNT(parts), err);
        }
        if (part->is_weight && weight != NULL) {
            return troupe_fail(err, TROUPE_INVALID,
                "correction: %s and %s are both weights, which would weigh twice; name one of them",
                weight, part->name);
        }
        if (part->is_weight) {
            weight = part->name;
            options->weight = part->weight;
        }
        options->masks |= part->mask;
        options->batch_norm = options->batch_norm || strcmp(part->name, "batch-norm") == 0;
        const troupe_status status =
            set_bounds(options, part, colon != NULL ? colon + 1 : NULL, err);
        if (status != TROUPE_OK) {
            return status;
        }
    }
    return TROUPE_OK;
}

static void
print_part(const troupe_rl_options *o, const tr_part *part, tr_buf *line)
{
    const bool on = part->is_weight   ? o->weight == part->weight
                    : part->mask != 0 ? (o->masks & part->mask) != 0
                                      : o->batch_norm;
    /* IcePop is token-mis by another name. */
    if (!on || strcmp(part->name, "icepop") == 0) {
        return;
    }
    tr_buf_printf(line, "%s%s", part->is_weight ? " correction=" : "+", part->name);
    if (part->low != NONE) {
        tr_buf_printf(line, ":%g", number_of(o, part->low));
    }
    if (part->high != NONE) {
        tr_buf_printf(line, ":%g", number_of(o, part->high));
    }
}

void
tr_rl_print_correction(const troupe_rl_options *o, tr_buf *line)
{
    for (size_t i = 0; i < TR_COUNT(parts); i++) {
        print_part(o, &parts[i], line);
    }
}
