/* The reward object: one of the kinds behind one call, which makes sure of what holds for all of
 * them: a value is finite, and an error is never a value. */
#include "kinds.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    NAMES_MAX = 256
};

typedef troupe_status (*tr_builtin)(
    const troupe_reward_input *input, double *value, troupe_error *err);

static const struct {
    const char *name;
    tr_builtin score; /* NULL: a regex */
} builtins[] = {
    {"exact", tr_reward_exact},
    {"number", tr_reward_number},
    {"countdown", tr_reward_countdown},
    {"regex", NULL},
    {"regex-whole", NULL},
};

/* One of the four is set. */
struct troupe_reward {
    tr_builtin builtin;
    tr_regex *regex;
    tr_program *program;
    troupe_reward_function function;
    uint64_t scored;
    bool interrupted; /* written by any thread */
};

static troupe_status open_named(
    troupe_reward *reward, const troupe_reward_options *options, troupe_error *err);
static troupe_status score(
    troupe_reward *reward, const troupe_reward_input *input, double *value, troupe_error *err);

troupe_status
troupe_reward_open(troupe_reward **out, const troupe_reward_options *options, troupe_error *err)
{
    if (options->size != sizeof *options) {
        return troupe_fail(err, TROUPE_INVALID,
            "reward options: size is %zu, not sizeof(troupe_reward_options)", options->size);
    }
    if ((options->name == NULL) == (options->command == NULL)) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "reward: give %s",
            options->name == NULL ? "a name or a command" : "a name or a command, not both");
    }
    troupe_reward *reward = tr_zalloc(1, sizeof *reward);
    const troupe_status status =
        options->command != NULL
            ? tr_program_open(&reward->program, options->command, options->timeout_ns, err)
            : open_named(reward, options, err);
    if (status != TROUPE_OK) {
        troupe_reward_close(reward);
        return status;
    }
    *out = reward;
    return TROUPE_OK;
}

static troupe_status
unknown(const troupe_reward_options *options, troupe_error *err)
{
    const char *names[NAMES_MAX];
    size_t count = 0;
    tr_buf list = {0};
    for (size_t i = 0; i < TR_COUNT(builtins); i++) {
        names[count++] = builtins[i].name;
    }
    for (size_t i = 0; i < options->function_count && count < NAMES_MAX; i++) {
        names[count++] = options->functions[i].name;
    }
    for (size_t i = 0; i < count; i++) {
        tr_buf_printf(&list, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    const char *nearest = tr_nearest(options->name, names, count);
    const troupe_status status = troupe_fail(err, TROUPE_BAD_INPUT,
        "unknown reward \"%.64s\"%s%s%s; known: %s, and a program by --reward-cmd", options->name,
        nearest != NULL ? "; did you mean \"" : "", nearest != NULL ? nearest : "",
        nearest != NULL ? "\"?" : "", list.data);
    tr_buf_fini(&list);
    return status;
}

/* A function of the program goes before a built-in one of the same name. */
static troupe_status
open_named(troupe_reward *reward, const troupe_reward_options *options, troupe_error *err)
{
    for (size_t i = 0; i < options->function_count; i++) {
        if (strcmp(options->name, options->functions[i].name) == 0) {
            reward->function = options->functions[i];
            return TROUPE_OK;
        }
    }
    for (size_t i = 0; i < TR_COUNT(builtins); i++) {
        if (strcmp(options->name, builtins[i].name) != 0) {
            continue;
        }
        reward->builtin = builtins[i].score;
        if (reward->builtin != NULL) {
            return TROUPE_OK;
        }
        const bool whole = strcmp(options->name, "regex-whole") == 0;
        return tr_regex_open(&reward->regex, options->pattern, whole, err);
    }
    return unknown(options, err);
}

void
troupe_reward_close(troupe_reward *reward)
{
    if (reward == NULL) {
        return;
    }
    tr_program_close(reward->program);
    tr_regex_close(reward->regex);
    tr_free(reward);
}

void
troupe_reward_interrupt(troupe_reward *reward)
{
    __atomic_store_n(&reward->interrupted, true, __ATOMIC_RELAXED);
    if (reward->program != NULL) {
        tr_program_interrupt(reward->program);
    }
}

uint64_t
troupe_reward_restarts(const troupe_reward *reward)
{
    return reward->program != NULL ? tr_program_restarts(reward->program) : 0;
}

troupe_status
troupe_reward_score(
    troupe_reward *reward, const troupe_reward_input *input, double *value, troupe_error *err)
{
    char number[32];
    troupe_reward_input named = *input;
    reward->scored++;
    if (named.id == NULL) {
        (void)snprintf(number, sizeof number, "%llu", (unsigned long long)reward->scored);
        named.id = number;
    }
    if (__atomic_load_n(&reward->interrupted, __ATOMIC_RELAXED)) {
        return tr_reward_fail(err, TROUPE_CANCELLED, &named, "scoring was interrupted");
    }
    double found = (double)NAN;
    const troupe_status status = score(reward, &named, &found, err);
    if (status != TROUPE_OK) {
        return status;
    }
    if (!isfinite(found) || fabs(found) > TROUPE_REWARD_MAX) {
        return tr_reward_fail(err, TROUPE_CORRUPT, &named,
            "the function \"%.64s\" gave %g, which is no finite number within +-1e30",
            reward->function.name, found);
    }
    *value = found;
    return TROUPE_OK;
}

static troupe_status
score(troupe_reward *reward, const troupe_reward_input *input, double *value, troupe_error *err)
{
    if (reward->program != NULL) {
        return tr_program_score(reward->program, input, input->id, value, err);
    }
    if (reward->regex != NULL) {
        return tr_regex_score(reward->regex, input, value, err);
    }
    if (reward->builtin != NULL) {
        return reward->builtin(input, value, err);
    }
    troupe_error said = {0};
    const troupe_status status = reward->function.fn(reward->function.user, input, value, &said);
    if (status == TROUPE_OK) {
        return TROUPE_OK;
    }
    return tr_reward_fail(err, status, input, "the function \"%.64s\" failed: %s",
        reward->function.name, said.text[0] != '\0' ? said.text : troupe_status_text(status));
}
