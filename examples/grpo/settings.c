/* See settings.h. The table is the documentation: `grpo --help` prints it. */
#include "settings.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef GRPO_DATA_DIR
#    define GRPO_DATA_DIR "examples/data"
#endif

#define FLAG     TROUPE_OPTION_FLAG
#define TEXT     TROUPE_OPTION_TEXT
#define INTEGER  TROUPE_OPTION_INT
#define REAL     TROUPE_OPTION_REAL
#define DURATION TROUPE_OPTION_DURATION
#define CHOICE   TROUPE_OPTION_CHOICE
#define LIMIT    TROUPE_OPTION_LIMIT
#define VALUE    TROUPE_OPTION_VALUE

/* clang-format off */
static const troupe_option table[] = {
    {"task", CHOICE, NULL, "add|sort|none", 0, 0, "a shipped task; add when no --model is given"},
    {"model", TEXT, NULL, "DIR", 0, 0,
        "Hugging Face directory to start from (Llama, Qwen2, Qwen3)"},
    {"prompts", TEXT, NULL, "FILE", 0, 0,
        "JSON Lines with prompt or messages, answer, more fields"},
    {"eval", TEXT, NULL, "FILE", 0, 0, "held-out prompts, decoded greedily"},
    {"skip-bad", FLAG, "no", NULL, 0, 0, "count bad lines of the prompt files and go on"},
    {"chat-template", CHOICE, "auto", "auto|chatml|llama3|plain", 0, 0,
        "how messages become a prompt"},
    {"reward", TEXT, NULL, "NAME", 0, 0, "exact, number, countdown, regex, regex-whole, positions"},
    {"reward-cmd", TEXT, NULL, "CMD", 0, 0, "program that answers one JSON line per sample"},
    {"reward-pattern", TEXT, NULL, "REGEX", 0, 0, "pattern of --reward regex for rows without one"},
    {"reward-timeout", DURATION, "10", "T", 0.01, 86400, "time that one reward may take"},
    {"reward-tries", INTEGER, "3", "N", 1, 100, "tries before a group ends failed"},
    {"algo", TEXT, "grpo", "NAME", 0, 0, "grpo, dr-grpo, rloo, gspo, cispo, ... [,key=value]"},
    {"correction", TEXT, NULL, "NAME", 0, 0,
        "none, token-tis[:cap], seq-tis, icepop, ... joined by +"},
    {"steps", INTEGER, "100", "N", 0, 1e9, "optimiser steps"},
    {"batch", INTEGER, "16", "GROUPS", 1, 65536, "groups a step"},
    {"group-size", INTEGER, "8", "G", 1, 64, "samples of one prompt"},
    {"max-new", INTEGER, "256", "N", 1, 1e6, "response tokens at most"},
    {"temperature", REAL, "1", "T", 0.01, 100,
        "of sampling; log-probs are those at this temperature"},
    {"lr", REAL, "1e-6", "X", 0, 10, "peak learning rate"},
    {"lr-schedule", CHOICE, "constant", "constant|linear|cosine", 0, 0, "after the warm-up"},
    {"warmup", INTEGER, "0", "N", 0, 1e9, "steps of linear warm-up"},
    {"weight-decay", REAL, "0", "X", 0, 10, "of matrices, decoupled"},
    {"beta2", REAL, "0.95", "X", 0, 1, "of AdamW"},
    {"clip-grad", REAL, "1", "X", 0, 1e9, "global norm of the gradient (0 = off)"},
    {"kl-coef", REAL, "0.001", "B", 0, 1e3, "weight of the k3 term to the reference"},
    {"entropy-coef", REAL, "0", "B", -1e3, 1e3, "weight of the entropy bonus"},
    {"filter", CHOICE, "none", "none|zero-variance", 0, 0, "groups that are not trained on"},
    {"mean-lag", REAL, NULL, "X", 0, 1000, "versions that rollouts run ahead on average"},
    {"max-lag", LIMIT, NULL, "N|none", 0, 1000, "hard bound on the lag of what is trained"},
    {"order", CHOICE, "in-order", "in-order|window|drop|ready-first", 0, 0,
        "which groups a step takes"},
    {"window", REAL, "0.5", "F", 0.001, 1, "share of the oldest slots, --order window"},
    {"bound", CHOICE, "group", "group|unit", 0, 0,
        "what max-lag bounds: whole groups, or units (masked)"},
    {"update", CHOICE, "in-flight", "in-flight|recompute|between-sequences", 0, 0,
        "when new weights apply"},
    {"mode", CHOICE, "async", "sync|async", 0, 0, "sync is max-lag 0"},
    {"rollouts", INTEGER, "1", "N", 1, 64, "rollout actors"},
    {"rewards", INTEGER, "1", "N", 1, 64, "reward actors"},
    {"device", TEXT, "cpu", "cpu", 0, 0, "where the models run"},
    {"colocate", FLAG, "no", NULL, 0, 0, "all actors in this one process"},
    {"sequences", INTEGER, "256", "N", 1, 65536, "sequences that a rollout decodes at once"},
    {"tokens-per-batch", INTEGER, "4096", "N", 16, 1e8, "tokens of one micro-batch of the trainer"},
    {"eval-every", INTEGER, "25", "N", 0, 1e9, "steps between evaluations (0 = only the last)"},
    {"eval-limit", INTEGER, "0", "N", 0, 1e9, "held-out prompts used (0 = all)"},
    {"checkpoint-every", INTEGER, "50", "N", 0, 1e9,
        "steps between checkpoints (0 = only the last)"},
    {"keep", INTEGER, "2", "K", 0, 1e6, "checkpoints that stay (0 = all)"},
    {"mirror", CHOICE, "auto", "auto|on|off", 0, 0,
        "keep the optimiser's state in the store too (auto: where it has room)"},
    {"samples-max-bytes", INTEGER, "1073741824", "N", 0, 9e15, "bound of samples.jsonl"},
    {"store-bytes", INTEGER, "0", "N", 0, 9e15,
        "object store (0 = by the model: 4 versions, 2 mirrors and 2 GiB)"},
    {"resume", TEXT, NULL, "DIR", 0, 0, "go on with the run in this directory"},
    {"time-limit", DURATION, NULL, "T", 0, 1e9, "stop with a checkpoint after this time"},
    {"waits-every", DURATION, "30", "T", 0.1, 1e6,
        "tell who waits for whom after so long without a step"},
    {"out", TEXT, NULL, "DIR", 0, 0, "run directory (default: run-TASK)"},
    {"seed", INTEGER, "1", "N", 0, 9e15, "of everything random"},
    {"graph", VALUE, NULL, "text|dot", 0, 0, "draw the actor graph and stop"},
    {NULL, FLAG, NULL, NULL, 0, 0, NULL},
};
/* clang-format on */

const troupe_options_spec grpo_spec = {
    .program = "grpo",
    .synopsis = "[options]",
    .about = "Asynchronous GRPO post-training of a language model. Without options it learns "
             "two-digit addition\n"
             "from the shipped checkpoint:  grpo --out run-add",
    .options = table,
    .positional_min = 0,
    .positional_max = 0,
};

typedef struct task_default {
    const char *task, *name, *value;
} task_default;

/* Hyper-parameters of the shipped tasks; see examples/data/README.md for their curves. The clip
 * is on the ratio to the behaviour policy: with one optimiser step a batch the ratio to the
 * recomputed policy is 1, its clip does nothing, and beyond a lag of two versions truncated
 * weights alone do not hold the policy (bench/results/learning_curves.md). */
static const task_default task_defaults[] = {
    {"add", "reward", "exact"},
    {"add", "steps", "300"},
    {"add", "batch", "64"},
    {"add", "group-size", "8"},
    {"add", "max-new", "5"},
    {"add", "lr", "5e-4"},
    {"add", "warmup", "20"},
    {"add", "algo", "grpo,proximal=behaviour"},
    {"add", "correction", "none"},
    {"sort", "reward", "positions"},
    {"sort", "steps", "200"},
    {"sort", "batch", "64"},
    {"sort", "group-size", "8"},
    {"sort", "max-new", "4"},
    {"sort", "lr", "1e-3"},
    {"sort", "warmup", "20"},
    {"sort", "algo", "grpo,proximal=behaviour"},
    {"sort", "correction", "none"},
};

static troupe_status
apply_task(troupe_options *o, troupe_error *err)
{
    troupe_status status = TROUPE_OK;
    if (!troupe_options_is_set(o, "task")) {
        bool own = troupe_options_is_set(o, "model") || troupe_options_is_set(o, "resume");
        status = troupe_options_default(o, "task", own ? "none" : "add", err);
    }
    const char *task = status == TROUPE_OK ? troupe_options_text(o, "task") : "none";
    for (size_t i = 0; status == TROUPE_OK && i < sizeof task_defaults / sizeof task_defaults[0];
         i++) {
        if (strcmp(task_defaults[i].task, task) == 0) {
            status = troupe_options_default(o, task_defaults[i].name, task_defaults[i].value, err);
        }
    }
    if (status != TROUPE_OK || strcmp(task, "none") == 0) {
        return status;
    }
    static const char *const files[][2] = {
        {"model", "model"}, {"prompts", "prompts.jsonl"}, {"eval", "eval.jsonl"}};
    const char *root = getenv("TROUPE_DATA");
    for (size_t i = 0; status == TROUPE_OK && i < 3; i++) {
        char path[4096];
        snprintf(
            path, sizeof path, "%s/%s/%s", root != NULL ? root : GRPO_DATA_DIR, task, files[i][1]);
        /* Held-out prompts of the task say nothing about somebody's own prompts. */
        bool foreign = strcmp(files[i][0], "eval") == 0 &&
                       troupe_options_origin(o, "prompts") > TROUPE_ORIGIN_DEFAULT;
        if (!foreign) {
            status = troupe_options_default(o, files[i][0], path, err);
        }
    }
    return status;
}

/* mean_lag and max_lag: sync is 0 and 0; only max_lag: half of it; neither: 1 and 2. */
static troupe_status
apply_lags(troupe_options *o, troupe_error *err)
{
    bool sync = strcmp(troupe_options_text(o, "mode"), "sync") == 0;
    troupe_status status = TROUPE_OK;
    if (sync) {
        status = troupe_options_default(o, "max-lag", "0", err);
        if (status == TROUPE_OK) {
            status = troupe_options_default(o, "mean-lag", "0", err);
        }
    } else if (!troupe_options_is_set(o, "max-lag")) {
        char text[32];
        double mean = troupe_options_is_set(o, "mean-lag") ? troupe_options_real(o, "mean-lag") : 1;
        snprintf(text, sizeof text, "%d", (int)(2 * mean + 0.999));
        status = troupe_options_default(o, "max-lag", mean == 1 ? "2" : text, err);
    }
    int64_t max_lag = status == TROUPE_OK ? troupe_options_int(o, "max-lag") : 0;
    if (status == TROUPE_OK && !troupe_options_is_set(o, "mean-lag")) {
        char text[32];
        snprintf(text, sizeof text, "%g", max_lag < 0 ? 1 : (double)max_lag / 2);
        status = troupe_options_default(o, "mean-lag", text, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    double mean_lag = troupe_options_real(o, "mean-lag");
    if (sync && (max_lag != 0 || mean_lag > 0)) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "--mode sync means --max-lag 0 and --mean-lag 0; leave them away");
    }
    if (max_lag >= 0 && (double)max_lag < mean_lag) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "--max-lag %lld is below --mean-lag %g: what is admitted could never be trained; raise "
            "--max-lag to %d, or "
            "lower --mean-lag",
            (long long)max_lag, mean_lag, (int)(mean_lag + 0.999));
    }
    if (strcmp(troupe_options_text(o, "order"), "ready-first") == 0 && max_lag >= 0) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "--order ready-first has no hard bound; say --max-lag none, or choose --order drop");
    }
    return TROUPE_OK;
}

static troupe_status
check_needed(troupe_options *o, troupe_error *err)
{
    static const char *const needed[] = {"model", "prompts"};
    for (size_t i = 0; i < 2; i++) {
        if (!troupe_options_is_set(o, needed[i])) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "--%s is missing: give it, or choose --task add or sort", needed[i]);
        }
    }
    bool name = troupe_options_is_set(o, "reward") &&
                troupe_options_origin(o, "reward") != TROUPE_ORIGIN_DEFAULT;
    bool command = troupe_options_is_set(o, "reward-cmd");
    if (name && command) {
        return troupe_fail(
            err, TROUPE_BAD_INPUT, "--reward and --reward-cmd exclude each other; give one");
    }
    if (!command && !troupe_options_is_set(o, "reward")) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "no reward: give --reward exact|number|countdown|regex, or --reward-cmd PROGRAM");
    }
    if (troupe_options_is_set(o, "resume")) {
        return TROUPE_OK; /* --out is the resumed directory already */
    }
    char out[128];
    snprintf(out, sizeof out, "run-%s", troupe_options_text(o, "task"));
    return troupe_options_default(o, "out", strcmp(out, "run-none") == 0 ? "run" : out, err);
}

troupe_status
grpo_settings_finish(troupe_options *o, troupe_error *err)
{
    /* A resumed run has its task's values on record. */
    troupe_status status = troupe_options_is_set(o, "resume") ? TROUPE_OK : apply_task(o, err);
    if (status == TROUPE_OK) {
        status = apply_lags(o, err);
    }
    return status == TROUPE_OK ? check_needed(o, err) : status;
}

troupe_status
grpo_settings_parse(int argc, char **argv, troupe_options **out, troupe_error *err)
{
    troupe_options *o = NULL;
    troupe_status status = troupe_options_parse(&grpo_spec, argc, argv, &o, err);
    if (status != TROUPE_OK) {
        return status;
    }
    if (!troupe_options_is_set(o, "resume")) {
        status = grpo_settings_finish(o, err);
    } else {
        status = troupe_options_is_set(o, "out")
                     ? troupe_fail(err, TROUPE_BAD_INPUT,
                           "--out does not go with --resume: the run goes on in its own directory")
                     : troupe_options_default(o, "out", troupe_options_text(o, "resume"), err);
    }
    if (status != TROUPE_OK) {
        troupe_options_free(o);
        return status;
    }
    *out = o;
    return TROUPE_OK;
}

static json_t *
value_json(const troupe_options *o, const troupe_option *option)
{
    if (!troupe_options_is_set(o, option->name)) {
        return json_null();
    }
    switch (option->kind) {
    case FLAG:
        return json_boolean(troupe_options_flag(o, option->name));
    case INTEGER:
    case LIMIT:
        return json_integer(troupe_options_int(o, option->name));
    case REAL:
    case DURATION:
        return json_real(troupe_options_real(o, option->name));
    case TEXT:
    case CHOICE:
    case VALUE:
        return json_string(troupe_options_text(o, option->name));
    }
    return json_null();
}

char *
grpo_settings_json(const troupe_options *o)
{
    json_t *object = json_object();
    json_t *origin = json_object();
    for (const troupe_option *option = table; option->name != NULL; option++) {
        json_object_set_new(object, option->name, value_json(o, option));
        json_object_set_new(origin, option->name,
            json_string(troupe_origin_name(troupe_options_origin(o, option->name))));
    }
    json_object_set_new(object, "origin", origin);
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(object);
    return text;
}
