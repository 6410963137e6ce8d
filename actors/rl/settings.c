/* Single settings, key=value: two tables, of names and of numbers with their ranges. */
#include "names.h"

#include <string.h>

/* Enumerations: the value is the index, in the order of the header. */
static const char *const advantages[] = {"reward", "grpo", "dr-grpo", "batch-std", "rloo",
    "reinforce++", "reinforce++-baseline", "gae", "vtrace"};
static const char *const losses[] = {
    "ppo", "gspo", "cispo", "aipo", "reinforce", "dppo-tv", "sapo", "kimi"};
static const char *const aggregations[] = {
    "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-const"};
static const char *const proximals[] = {"recomputed", "behaviour", "loglinear"};
static const char *const kls[] = {"k1", "k2", "k3", "k3-unbiased"};
static const char *const stds[] = {"biased", "unbiased"};

typedef struct tr_choice {
    const char *key;
    const char *const *names;
    size_t count;
} tr_choice;

enum {
    CHOICE_ADVANTAGE,
    CHOICE_LOSS,
    CHOICE_AGGREGATION,
    CHOICE_PROXIMAL,
    CHOICE_KL,
    CHOICE_STD
};

static const tr_choice choices[] = {
    [CHOICE_ADVANTAGE] = {"advantage", advantages, TR_COUNT(advantages)},
    [CHOICE_LOSS] = {"loss", losses, TR_COUNT(losses)},
    [CHOICE_AGGREGATION] = {"aggregation", aggregations, TR_COUNT(aggregations)},
    [CHOICE_PROXIMAL] = {"proximal", proximals, TR_COUNT(proximals)},
    [CHOICE_KL] = {"kl", kls, TR_COUNT(kls)},
    [CHOICE_STD] = {"std", stds, TR_COUNT(stds)},
};

typedef struct tr_number {
    const char *key;
    size_t offset;
    double min, max; /* inclusive */
} tr_number;

#define NUMBER(key, field, min, max)                      \
    {                                                     \
        key, offsetof(troupe_rl_options, field), min, max \
    }

static const tr_number numbers[] = {
    NUMBER("kl-coef", kl_coef, 0, 1e3),
    NUMBER("entropy-coef", entropy_coef, -1e3, 1e3),
    NUMBER("clip-low", clip_low, 0, 1),
    NUMBER("clip-high", clip_high, 0, 1e6),
    NUMBER("dual-clip", dual_clip, 0, 1e6),
    NUMBER("aipo-cap", aipo_cap, 1e-6, 1e6),
    NUMBER("dppo-delta", dppo_delta, 0, 1),
    NUMBER("dppo-penalty", dppo_penalty, 0, 1e3),
    NUMBER("sapo-tau-pos", sapo_tau_pos, 1e-6, 1e3),
    NUMBER("sapo-tau-neg", sapo_tau_neg, 1e-6, 1e3),
    NUMBER("kimi-tau", kimi_tau, 0, 1e3),
    NUMBER("length-const", length_const, 1, 1e9),
    NUMBER("std-eps", std_eps, 0, 1),
    NUMBER("gamma", gamma, 0, 1),
    NUMBER("lambda", lambda, 0, 1),
    NUMBER("vtrace-rho", vtrace_rho, 1e-6, 1e6),
    NUMBER("vtrace-c", vtrace_c, 1e-6, 1e6),
};

static void
set_choice(troupe_rl_options *options, size_t choice, size_t value)
{
    switch (choice) {
    case CHOICE_ADVANTAGE:
        options->advantage = (troupe_rl_advantage)value;
        break;
    case CHOICE_LOSS:
        options->loss = (troupe_rl_loss)value;
        break;
    case CHOICE_AGGREGATION:
        options->aggregation = (troupe_rl_aggregation)value;
        break;
    case CHOICE_PROXIMAL:
        options->proximal = (troupe_rl_proximal)value;
        break;
    case CHOICE_KL:
        options->kl = (troupe_rl_kl)value;
        break;
    default:
        options->std_unbiased = value == 1;
        break;
    }
}

troupe_status
troupe_rl_options_set(
    troupe_rl_options *options, const char *key, const char *value, troupe_error *err)
{
    for (size_t i = 0; i < TR_COUNT(numbers); i++) {
        if (strcmp(key, numbers[i].key) == 0) {
            return tr_rl_parse_number(key, value, numbers[i].min, numbers[i].max,
                (double *)(void *)((char *)options + numbers[i].offset), err);
        }
    }
    for (size_t i = 0; i < TR_COUNT(choices); i++) {
        if (strcmp(key, choices[i].key) != 0) {
            continue;
        }
        for (size_t v = 0; v < choices[i].count; v++) {
            if (strcmp(value, choices[i].names[v]) == 0) {
                set_choice(options, i, v);
                return TROUPE_OK;
            }
        }
        return tr_rl_unknown(key, value, choices[i].names, choices[i].count, err);
    }
    const char *names[TR_NAMES_MAX];
    size_t count = 0;
    for (size_t i = 0; i < TR_COUNT(choices); i++) {
        names[count++] = choices[i].key;
    }
    for (size_t i = 0; i < TR_COUNT(numbers); i++) {
        names[count++] = numbers[i].key;
    }
    return tr_rl_unknown("setting", key, names, count, err);
}

troupe_status
tr_rl_set_list(troupe_rl_options *options, const char *list, troupe_error *err)
{
    char word[TR_WORD_MAX];
    while (tr_rl_next_word(&list, ',', word)) {
        char *equals = strchr(word, '=');
        if (equals == NULL) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "setting \"%s\" has no value; write key=value, as in grpo,clip-high=0.28", word);
        }
        *equals = '\0';
        const troupe_status status = troupe_rl_options_set(options, word, equals + 1, err);
        if (status != TROUPE_OK) {
            return status;
        }
    }
    return TROUPE_OK;
}

void
tr_rl_print_choices(const troupe_rl_options *o, tr_buf *line)
{
    tr_buf_printf(line, "advantage=%s loss=%s aggregation=%s proximal=%s kl=%s std=%s",
        advantages[o->advantage], losses[o->loss], aggregations[o->aggregation],
        proximals[o->proximal], kls[o->kl], stds[o->std_unbiased ? 1 : 0]);
}

void
tr_rl_print_numbers(const troupe_rl_options *o, tr_buf *line)
{
    for (size_t i = 0; i < TR_COUNT(numbers); i++) {
        const char *at = (const char *)o + numbers[i].offset;
        tr_buf_printf(line, " %s=%g", numbers[i].key, *(const double *)(const void *)at);
    }
}

const char *
tr_rl_loss_name(troupe_rl_loss loss)
{
    return losses[loss];
}
