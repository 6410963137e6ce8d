/* See troupe/rl_run.h. */
#include "role.h"
#include "run_dir.h"

#include <troupe/reward.h>
#include <troupe/rl.h>
#include <troupe/rl_run.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    RUN_JSON_BYTES_MAX = 16 << 20,
    RESUMPTIONS_MAX = 100, /* the newest ones are kept, the older ones counted */
    WHY_MAX = 500,
    PATH_BYTES = 4400
};

/* --- check ------------------------------------------------------------ */

static troupe_status
check_rl(const json_t *config, troupe_error *err)
{
    troupe_rl_options options;
    troupe_status status = troupe_rl_options_parse(&options, tr_config_text(config, "algo", "grpo"),
        tr_config_text(config, "correction", NULL), err);
    if (status != TROUPE_OK) {
        return status;
    }
    if (options.advantage == TROUPE_ADV_GAE || options.advantage == TROUPE_ADV_VTRACE ||
        options.advantage == TROUPE_ADV_REINFORCE_PP ||
        options.advantage == TROUPE_ADV_REINFORCE_PP_BASELINE) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "--algo %s needs per-token advantages or a value function, which this graph has not; "
            "choose grpo, dr-grpo, "
            "rloo, gspo, cispo, reinforce or another with one reward a sample",
            tr_config_text(config, "algo", "grpo"));
    }
    if (tr_config_int(config, "group-size", 8) < 2 && options.advantage != TROUPE_ADV_REWARD) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "--group-size 1 leaves nothing to compare a sample with; give at least 2, or --algo "
            "reinforce");
    }
    return TROUPE_OK;
}

static troupe_status
never_called(void *user, const troupe_reward_input *input, double *value, troupe_error *err)
{
    (void)user;
    (void)input;
    (void)value;
    return troupe_fail(err, TROUPE_UNSUPPORTED, "a check does not score");
}

/* Opens the reward once, to see that it can be opened. C functions are known to the program alone:
 * it names them in the key reward-functions, and they stand in here as functions that are never
 * called. */
static troupe_status
check_reward(const json_t *config, troupe_error *err)
{
    troupe_reward_function own[16];
    size_t count = 0;
    size_t i = 0;
    json_t *name = NULL;
    json_array_foreach(json_object_get(config, "reward-functions"), i, name)
    {
        if (count < TR_COUNT(own)) {
            own[count++] = (troupe_reward_function){json_string_value(name), never_called, NULL};
        }
    }
    const char *command = tr_config_text(config, "reward-cmd", NULL);
    troupe_reward_options options = {
        .size = sizeof options,
        .name = command == NULL ? tr_config_text(config, "reward", "exact") : NULL,
        .command = command,
        .pattern = tr_config_text(config, "reward-pattern", NULL),
        .functions = own,
        .function_count = count,
    };
    troupe_reward *reward = NULL;
    troupe_status status = troupe_reward_open(&reward, &options, err);
    troupe_reward_close(reward);
    return status;
}

/* A run's own copy of the model's identity: XXH3 over config.json and the first shard's header
 * would do, but the whole parameters are read anyway when the roles start, so the digest is of
 * those. */
static troupe_status
model_digest(const char *dir, const troupe_lm_config *model, uint64_t *digest, uint64_t *parameters,
    troupe_error *err)
{
    troupe_lm_layout layout;
    troupe_lm_layout_init(&layout, model);
    float *params = tr_zalloc(layout.floats, sizeof *params);
    troupe_status status = troupe_lm_params_read(dir, model, &layout, params, err);
    *digest = status == TROUPE_OK ? tr_xxh3(params, layout.floats * sizeof *params, 0) : 0;
    *parameters = layout.floats;
    tr_free(params);
    troupe_lm_layout_fini(&layout);
    return status;
}

/* The store holds the version that rollouts sample with, the next one, and samples. */
static troupe_status
check_store(const json_t *config, uint64_t parameters, troupe_error *err)
{
    uint64_t asked = (uint64_t)tr_config_int(config, "store-bytes", 0);
    uint64_t needed = 3 * parameters * sizeof(float);
    if (asked != 0 && asked < needed) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "--store-bytes %llu: three versions of this model take %llu; give more, or leave it "
            "away",
            (unsigned long long)asked, (unsigned long long)needed);
    }
    return TROUPE_OK;
}

static troupe_status
check_device(const json_t *config, troupe_error *err)
{
    troupe_device *device = NULL;
    troupe_device_options options = {.size = sizeof options, .threads = 1};
    troupe_status status =
        troupe_device_open(tr_config_text(config, "device", "cpu"), &options, &device, err);
    troupe_device_close(device);
    return status;
}

troupe_status
troupe_rl_run_check(struct json_t *config, troupe_error *err)
{
    troupe_lm_config model;
    tr_prompts prompts = {0};
    uint64_t digest = 0, parameters = 0, longest = 0;
    const char *dir = tr_config_text(config, "model", "");
    troupe_status status = check_rl(config, err);
    if (status == TROUPE_OK) {
        status = check_device(config, err);
    }
    if (status == TROUPE_OK) {
        status = troupe_lm_config_read(dir, &model, err);
    }
    if (status == TROUPE_OK) {
        status = tr_prompts_open(config, &prompts, err);
    }
    if (status == TROUPE_OK) {
        status = tr_prompts_check(&prompts, config, model.context, &longest, err);
    }
    int32_t stop_ids[TROUPE_STOP_IDS_MAX];
    if (status == TROUPE_OK && tr_stop_ids(&model, &prompts, stop_ids) == 0) {
        status = troupe_fail(err, TROUPE_BAD_INPUT,
            "%s: no eos_token_id in config.json, generation_config.json or the tokenizer, so no "
            "response would ever end; "
            "add one to generation_config.json",
            dir);
    }
    if (status == TROUPE_OK) {
        status = model_digest(dir, &model, &digest, &parameters, err);
    }
    if (status == TROUPE_OK) {
        status = check_store(config, parameters, err);
    }
    if (status == TROUPE_OK) {
        status = check_reward(config, err);
    }
    if (status == TROUPE_OK) {
        char text[32];
        snprintf(text, sizeof text, "%016llx", (unsigned long long)digest);
        json_object_set_new(config, "model-digest", json_string(text));
        snprintf(
            text, sizeof text, "%016llx", (unsigned long long)troupe_dataset_digest(prompts.train));
        json_object_set_new(config, "data-digest", json_string(text));
        json_object_set_new(
            config, "rows", json_integer((json_int_t)tr_prompts_train_rows(&prompts)));
        json_object_set_new(
            config, "valid-ids", json_integer(tr_valid_ids(&model, prompts.tokenizer)));
        json_object_set_new(config, "parameters", json_integer((json_int_t)parameters));
        json_object_set_new(config, "longest-prompt", json_integer((json_int_t)longest));
        uint64_t skipped = troupe_dataset_skipped(prompts.train);
        if (prompts.held_out != NULL) {
            skipped += troupe_dataset_skipped(prompts.held_out);
        }
        json_object_set_new(config, "skipped-lines", json_integer((json_int_t)skipped));
        if (skipped > 0) {
            fprintf(stderr, "%llu bad lines skipped, the first: %s\n", (unsigned long long)skipped,
                troupe_dataset_first_skipped(prompts.train));
        }
    }
    tr_prompts_close(&prompts);
    return status;
}

/* --- the directory ------------------------------------------------------------ */

/* XXH3 of the running program, so that a record says which build made it. */
static uint64_t
build_digest(void)
{
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    uint64_t digest = 0;
    char *block = tr_alloc(1 << 16);
    ssize_t n = 0;
    while (fd >= 0 && (n = read(fd, block, 1 << 16)) > 0) {
        digest = tr_xxh3(block, (size_t)n, digest);
    }
    if (fd >= 0) {
        close(fd);
    }
    tr_free(block);
    return digest;
}

troupe_status
troupe_rl_run_create(
    const char *dir, int argc, char **argv, struct json_t *config, troupe_error *err)
{
    struct stat st;
    bool was_there = stat(dir, &st) == 0;
    troupe_status status = tr_run_dir_create(dir, err);
    if (status != TROUPE_OK) {
        return status;
    }
    json_t *words = json_array();
    for (int i = 0; i < argc; i++) {
        json_array_append_new(words, json_string(argv[i]));
    }
    char build[32];
    snprintf(build, sizeof build, "%016llx", (unsigned long long)build_digest());
    json_t *record = json_pack("{s:i, s:o, s:O, s:s, s:s}", "format", 1, "argv", words, "options",
        config, "build-digest", build, "troupe", TROUPE_VERSION);
    char *text = json_dumps(record, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    /* Another run may have been given the same directory a moment ago. */
    status = tr_run_dir_write_new(dir, "run.json", text, strlen(text), err);
    free(text); /* from jansson */
    json_decref(record);
    if (status != TROUPE_OK && !was_there) {
        (void)rmdir(dir);
    }
    return status;
}

troupe_status
troupe_rl_run_read(const char *dir, struct json_t **out, troupe_error *err)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/run.json", dir);
    struct stat st;
    if (stat(path, &st) != 0) {
        return troupe_fail(err, TROUPE_NOT_FOUND,
            "%s: there is no run here; give --resume the directory of one", path);
    }
    if (st.st_size > RUN_JSON_BYTES_MAX) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "%s: over 16 MiB; that is no run.json", path);
    }
    json_error_t where;
    json_t *record = json_load_file(path, JSON_REJECT_DUPLICATES, &where);
    if (record == NULL || !json_is_object(json_object_get(record, "options"))) {
        json_decref(record);
        return troupe_fail(err, TROUPE_BAD_INPUT, "%s line %d: %s; it cannot be resumed", path,
            record == NULL ? where.line : 1,
            record == NULL ? where.text : "\"options\" is missing");
    }
    *out = record;
    return TROUPE_OK;
}

/* What a dead process said last may be long, and no UTF-8. */
static json_t *
short_text(const char *text)
{
    char cut[WHY_MAX + 4];
    size_t size = strlen(text);
    if (size > WHY_MAX) {
        for (size = WHY_MAX; size > 0 && ((unsigned char)text[size] & 0xc0) == 0x80; size--) {
        }
        (void)snprintf(cut, sizeof cut, "%.*s...", (int)size, text);
        text = cut;
    }
    json_t *string = json_string(text);
    return string != NULL ? string : json_string("(not UTF-8)");
}

troupe_status
troupe_rl_run_note(const char *dir, const troupe_rl_resumption *what, troupe_error *err)
{
    json_t *record = NULL;
    troupe_status status = troupe_rl_run_read(dir, &record, err);
    if (status != TROUPE_OK) {
        return status;
    }
    json_t *list = json_object_get(record, "resumptions");
    if (!json_is_array(list)) {
        list = json_array();
        json_object_set_new(record, "resumptions", list);
    }
    json_t *why = short_text(what->why);
    json_t *entry = json_pack("{s:f, s:I, s:I, s:s, s:o}", "time_s",
        (double)(what->realtime_ns / 1000000) / 1e3, "step", (json_int_t)what->step, "epoch",
        (json_int_t)what->epoch, "from", what->from, "why", why);
    json_array_append_new(list, entry);
    while (json_array_size(list) > RESUMPTIONS_MAX) {
        json_int_t older = json_integer_value(json_object_get(record, "resumptions-older"));
        json_object_set_new(record, "resumptions-older", json_integer(older + 1));
        json_array_remove(list, 0);
    }
    char *text = json_dumps(record, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    status = tr_run_dir_write_file(dir, "run.json", text, strlen(text), err);
    free(text); /* from jansson */
    json_decref(record);
    return status;
}
