/* See run.h. */
#include "run.h"

#include "settings.h"

#include <troupe/ext/ledger.h>
#include <troupe/model.h>
#include <troupe/rl_run.h>

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool
grpo_help(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            troupe_options_help(&grpo_spec, stdout);
            return true;
        }
    }
    return false;
}

static bool
is_one_of(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether a given option says what is on record, by value where it is a number. */
static bool
same_value(const troupe_options *o, const troupe_option *option, const char *recorded)
{
    char *end = NULL;
    double number = strtod(recorded, &end);
    if (end != recorded && *end == '\0' && option->kind != TROUPE_OPTION_TEXT) {
        return troupe_options_real(o, option->name) == number;
    }
    return strcmp(troupe_options_text(o, option->name), recorded) == 0;
}

/* The options of the run that is resumed are the defaults of this one. */
static troupe_status
inherit(troupe_options *o, const json_t *recorded, troupe_error *err)
{
    static const char *const own[] = {"resume", "out", "graph", "time-limit"};
    /* What may differ from the recorded run without its records contradicting each other. */
    static const char *const free_to_change[] = {"steps", "eval-every", "eval-limit",
        "checkpoint-every", "keep", "samples-max-bytes", "store-bytes", "rollouts", "rewards",
        "sequences", "reward-timeout", "reward-tries", "skip-bad", "waits-every", "mirror"};
    troupe_status status = TROUPE_OK;
    for (const troupe_option *option = grpo_spec.options;
         option->name != NULL && status == TROUPE_OK; option++) {
        const json_t *value = json_object_get(recorded, option->name);
        bool skip = value == NULL || json_is_null(value);
        skip = skip || is_one_of(option->name, own, sizeof own / sizeof own[0]);
        char text[4096];
        if (skip) {
            continue;
        }
        if (json_is_string(value)) {
            snprintf(text, sizeof text, "%s", json_string_value(value));
        } else if (json_is_boolean(value)) {
            snprintf(text, sizeof text, "%s", json_is_true(value) ? "yes" : "no");
        } else if (option->kind == TROUPE_OPTION_LIMIT && json_integer_value(value) < 0) {
            snprintf(text, sizeof text, "none");
        } else if (json_is_integer(value)) {
            snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
        } else {
            snprintf(text, sizeof text, "%.17g", json_number_value(value));
        }
        if (troupe_options_origin(o, option->name) > TROUPE_ORIGIN_DEFAULT &&
            !is_one_of(
                option->name, free_to_change, sizeof free_to_change / sizeof *free_to_change) &&
            !same_value(o, option, text)) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "--%s %s: the run has %s, and a resumed run keeps it; leave it away, or begin "
                "another run",
                option->name, troupe_options_text(o, option->name), text);
        }
        status = troupe_options_default(o, option->name, text, err);
    }
    return status;
}

/* Whether the directory has anything by the name of a checkpoint, whole or not. */
static bool
has_checkpoint_names(const char *dir)
{
    DIR *folder = opendir(dir);
    bool found = false;
    for (struct dirent *e; folder != NULL && !found && (e = readdir(folder)) != NULL;) {
        found = strncmp(e->d_name, "checkpoint-", 11) == 0 && strstr(e->d_name, ".tmp-") == NULL;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return found;
}

/* The newest complete checkpoint, every byte of it checked: a run never goes on from a damaged
 * one, nor from the beginning because of one. */
static troupe_status
find_checkpoint(const char *dir, json_t *config, troupe_error *err)
{
    char path[4096];
    int64_t step = 0;
    troupe_status status = troupe_checkpoint_latest(dir, path, sizeof path, &step, err);
    if (status == TROUPE_NOT_FOUND && has_checkpoint_names(dir)) {
        return troupe_fail(err, TROUPE_CORRUPT,
            "%s: none of its checkpoints is complete; move them away to begin again from step 0, "
            "or "
            "restore one",
            dir);
    }
    if (status == TROUPE_NOT_FOUND) {
        fprintf(stderr, "%s has no checkpoint yet: resuming from step 0\n", dir);
        json_object_set_new(config, "checkpoint", json_null());
        return TROUPE_OK;
    }
    troupe_error why = {0};
    if (status == TROUPE_OK && troupe_checkpoint_verify(path, &why) != TROUPE_OK) {
        return troupe_fail(err, TROUPE_CORRUPT,
            "%s is damaged (%s); move it away to resume from an older one", path, why.text);
    }
    if (status == TROUPE_OK) {
        fprintf(stderr, "resuming from %s\n", path);
        json_object_set_new(config, "checkpoint", json_string(path));
    }
    return status;
}

static char *
stream_config(const grpo_run *run, const json_t *config)
{
    const troupe_options *o = run->options;
    const char *checkpoint = json_string_value(json_object_get(config, "checkpoint"));
    char journal[4200], ledger[4200], ledgers[4200];
    const char *digest = json_string_value(json_object_get(config, "data-digest"));
    snprintf(journal, sizeof journal, "%s/journal", troupe_options_text(o, "out"));
    snprintf(ledger, sizeof ledger, "%s/ledger.json", checkpoint != NULL ? checkpoint : "");
    snprintf(
        ledgers, sizeof ledgers, "%s/checkpoint-{step}/ledger.json", troupe_options_text(o, "out"));
    /* A program takes its samples in turn, so few are sent ahead, and each may wait for those. */
    int64_t capacity = troupe_options_is_set(o, "reward-cmd") ? 4 : 64;
    double stage_s = troupe_options_real(o, "reward-timeout") * (double)capacity + 60;
    json_t *c = json_pack("{s:s, s:I, s:I, s:s, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:s}", "journal",
        journal, "seed", (json_int_t)troupe_options_int(o, "seed"), "rows",
        json_integer_value(json_object_get(config, "rows")), "data_digest", digest,
        "groups_per_step", (json_int_t)troupe_options_int(o, "batch"), "group_size",
        (json_int_t)troupe_options_int(o, "group-size"), "lease_s", 600.0, "stage_s", stage_s,
        "stage_tries", (json_int_t)troupe_options_int(o, "reward-tries"), "lease_attempts",
        (json_int_t)5, "retained_steps",
        (json_int_t)(troupe_options_int(o, "checkpoint-every") > 0
                         ? troupe_options_int(o, "checkpoint-every") * 2 + 2
                         : troupe_options_int(o, "steps") + 2),
        "filter", troupe_options_text(o, "filter"));
    json_object_set_new(c, "steps", json_integer((json_int_t)troupe_options_int(o, "steps")));
    json_object_set_new(c, "worker_capacity", json_integer((json_int_t)capacity));
    json_object_set_new(c, "ledger", checkpoint != NULL ? json_string(ledger) : json_null());
    json_object_set_new(c, "ledgers", json_string(ledgers));
    json_object_set_new(c, "resume", json_boolean(troupe_options_is_set(o, "resume")));
    char *text = json_dumps(c, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(c);
    return text;
}

static void
fill(grpo_run *run)
{
    const troupe_options *o = run->options;
    run->rollouts = (int)troupe_options_int(o, "rollouts");
    run->rewards = (int)troupe_options_int(o, "rewards");
    run->reference = troupe_options_real(o, "kl-coef") > 0;
    run->mean_lag = troupe_options_real(o, "mean-lag");
    run->window = troupe_options_real(o, "window");
    int64_t max_lag = troupe_options_int(o, "max-lag");
    run->max_lag = max_lag < 0 ? TROUPE_NO_BOUND : (int)max_lag;
    run->order = troupe_options_text(o, "order");
    run->bound = troupe_options_text(o, "bound");
    run->update = strcmp(troupe_options_text(o, "update"), "between-sequences") == 0
                      ? TROUPE_BETWEEN_SEQUENCES
                      : TROUPE_IN_FLIGHT;
}

/* Room for four versions and what samples take, and for two mirrors (each masters and moments)
 * where they are no more than a quarter of the memory, or asked for. */
static uint64_t
store_bytes(const troupe_options *o, uint64_t version)
{
    const char *mode = troupe_options_text(o, "mirror");
    uint64_t mirrors = 2 * 3 * version;
    long pages = sysconf(_SC_PHYS_PAGES);
    uint64_t memory = pages > 0 ? (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) : UINT64_MAX;
    bool wanted = strcmp(mode, "on") == 0 || (strcmp(mode, "auto") == 0 && mirrors <= memory / 4);
    return 4 * version + (wanted ? mirrors + (1 << 20) : 0) + (UINT64_C(2) << 30);
}

/* Options, then those of a resumed run below them, then the checks again. */
static troupe_status
parse(grpo_run *run, int argc, char **argv, troupe_error *err)
{
    troupe_status status = grpo_settings_parse(argc, argv, &run->options, err);
    if (status != TROUPE_OK || !troupe_options_is_set(run->options, "resume")) {
        return status;
    }
    json_t *recorded = NULL;
    status = troupe_rl_run_read(troupe_options_text(run->options, "resume"), &recorded, err);
    if (status == TROUPE_OK) {
        status = inherit(run->options, json_object_get(recorded, "options"), err);
    }
    json_decref(recorded);
    return status == TROUPE_OK ? grpo_settings_finish(run->options, err) : status;
}

troupe_status
grpo_run_open(grpo_run *run, int argc, char **argv, bool drawing, troupe_error *err)
{
    *run = (grpo_run){0};
    troupe_status status = parse(run, argc, argv, err);
    if (status != TROUPE_OK) {
        grpo_run_close(run);
        return status;
    }
    fill(run);
    char *text = grpo_settings_json(run->options);
    json_t *config = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    const char *out = troupe_options_text(run->options, "out");
    json_object_set_new(config, "run", json_string(out));
    json_object_set_new(config, "reward-functions", json_pack("[s]", "positions"));
    json_object_set_new(config, "stream", json_string("samples"));
    json_object_set_new(config, "stages",
        run->reference ? json_pack("[s, s]", "reward", "reference") : json_pack("[s]", "reward"));
    status = troupe_rl_run_check(config, err);
    bool resume = troupe_options_is_set(run->options, "resume");
    if (status == TROUPE_OK && resume) {
        status = find_checkpoint(out, config, err);
    }
    if (status == TROUPE_OK && !resume && !drawing) {
        status = troupe_rl_run_create(out, argc, argv, config, err);
    }
    if (status == TROUPE_OK) {
        run->stream_config = stream_config(run, config);
        json_object_del(config, "checkpoint"); /* the policy is told by the stream */
        run->role_config = json_dumps(config, JSON_COMPACT | JSON_REAL_PRECISION(17));
        uint64_t version = 4 * (uint64_t)json_integer_value(json_object_get(config, "parameters"));
        uint64_t asked = (uint64_t)troupe_options_int(run->options, "store-bytes");
        run->store_bytes = asked != 0 ? asked : store_bytes(run->options, version);
    }
    json_decref(config);
    if (status != TROUPE_OK) {
        grpo_run_close(run);
    }
    return status;
}

void
grpo_run_close(grpo_run *run)
{
    free(run->role_config); /* both from jansson */
    free(run->stream_config);
    troupe_options_free(run->options);
    *run = (grpo_run){0};
}
