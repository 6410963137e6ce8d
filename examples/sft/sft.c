/* Supervised warm-up: trains a model directory on prompt and answer pairs by cross-entropy until it
 * answers a wanted share of the held-out prompts. It made the checkpoints in examples/data, and
 * shows the library without any actor: a dataset, a tokenizer, a trainer, an engine.
 *
 *   sft --base examples/data/base --prompts P --eval E --out DIR     fresh weights
 *   sft --model DIR --prompts P --eval E --out DIR2                  continues from weights */
#include <troupe/dataset.h>
#include <troupe/engine.h>
#include <troupe/ext/ledger.h>
#include <troupe/options.h>
#include <troupe/tokenizer.h>
#include <troupe/trainer.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    EVAL_AT_ONCE = 256
};

static const troupe_option table[] = {
    {"base", TROUPE_OPTION_TEXT, NULL, "DIR", 0, 0,
        "config.json and tokenizer.json; weights are drawn from --seed"},
    {"model", TROUPE_OPTION_TEXT, NULL, "DIR", 0, 0, "model directory to start from"},
    {"prompts", TROUPE_OPTION_TEXT, NULL, "FILE", 0, 0, "JSON Lines with prompt and answer"},
    {"eval", TROUPE_OPTION_TEXT, NULL, "FILE", 0, 0, "held-out lines"},
    {"out", TROUPE_OPTION_TEXT, NULL, "DIR", 0, 0,
        "where the model directory is written; must not exist"},
    {"steps", TROUPE_OPTION_INT, "400", "N", 0, 1e9, "steps at most"},
    {"batch", TROUPE_OPTION_INT, "256", "N", 1, 1e6, "pairs a step"},
    {"lr", TROUPE_OPTION_REAL, "3e-3", "X", 0, 1, "learning rate"},
    {"stop-accuracy", TROUPE_OPTION_REAL, "0.5", "X", 0, 1,
        "end when this share of held-out answers is right"},
    {"eval-every", TROUPE_OPTION_INT, "5", "N", 1, 1e9, "steps between evaluations"},
    {"seed", TROUPE_OPTION_INT, "1", "N", 0, 9e15, "of weights and order"},
    {NULL, TROUPE_OPTION_FLAG, NULL, NULL, 0, 0, NULL},
};
static const troupe_options_spec spec = {
    .program = "sft",
    .synopsis = "--base DIR|--model DIR --prompts FILE --eval FILE --out DIR [options]",
    .about = "Trains on prompt and answer pairs until a wanted share of held-out answers is right.",
    .options = table,
};

typedef struct pair {
    int32_t *ids; /* prompt, then answer and stop id */
    int prompt_count, answer_count;
} pair;

typedef struct sft {
    troupe_options *options;
    const char *dir;
    troupe_lm_config config;
    troupe_lm_layout layout;
    float *params;
    troupe_tokenizer *tokenizer;
    troupe_lm *lm;
    troupe_device *device;
    troupe_trainer *trainer;
    pair *train, *held_out;
    int train_count, held_out_count;
    int32_t stop;
} sft;

static troupe_status
read_pairs(const sft *s, const char *path, pair **out, int *count, troupe_error *err)
{
    troupe_dataset *data = NULL;
    troupe_status status = troupe_dataset_load(&data, path, NULL, err);
    if (status != TROUPE_OK) {
        return status;
    }
    *count = (int)troupe_dataset_count(data);
    *out = tr_zalloc((size_t)*count, sizeof **out);
    for (int i = 0; i < *count && status == TROUPE_OK; i++) {
        troupe_row row = troupe_dataset_row(data, (size_t)i);
        troupe_ids ids = {0};
        if (row.prompt == NULL || row.answer == NULL) {
            status = troupe_fail(err, TROUPE_BAD_INPUT, "%s:%llu: needs prompt and answer", path,
                (unsigned long long)row.line);
            break;
        }
        status = troupe_tokenizer_encode(
            s->tokenizer, row.prompt, strlen(row.prompt), TROUPE_ENCODE_ADD_SPECIAL, &ids, err);
        (*out)[i].prompt_count = (int)ids.count;
        if (status == TROUPE_OK) {
            status =
                troupe_tokenizer_encode(s->tokenizer, row.answer, strlen(row.answer), 0, &ids, err);
        }
        troupe_ids_append(&ids, s->stop);
        (*out)[i].answer_count = (int)ids.count - (*out)[i].prompt_count;
        (*out)[i].ids = ids.data; /* owned by the pair from here on */
        if (status == TROUPE_OK && ids.count > (size_t)s->config.context) {
            status = troupe_fail(err, TROUPE_BAD_INPUT,
                "%s:%llu: %zu tokens do not fit the context of %d", path,
                (unsigned long long)row.line, ids.count, s->config.context);
        }
    }
    troupe_dataset_free(data);
    return status;
}

static troupe_status
load_weights(sft *s, troupe_error *err)
{
    troupe_lm_layout_init(&s->layout, &s->config);
    s->params = tr_zalloc(s->layout.floats, sizeof *s->params);
    if (troupe_options_is_set(s->options, "model")) {
        return troupe_lm_params_read(s->dir, &s->config, &s->layout, s->params, err);
    }
    troupe_lm_params_init(
        &s->config, &s->layout, (uint64_t)troupe_options_int(s->options, "seed"), s->params);
    return TROUPE_OK;
}

static troupe_status
open_all(sft *s, troupe_error *err)
{
    bool has_model = troupe_options_is_set(s->options, "model");
    if (has_model == troupe_options_is_set(s->options, "base")) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "give either --base or --model");
    }
    static const char *const needed[] = {"prompts", "eval", "out"};
    for (int i = 0; i < 3; i++) {
        if (!troupe_options_is_set(s->options, needed[i])) {
            return troupe_fail(err, TROUPE_BAD_INPUT, "--%s is missing", needed[i]);
        }
    }
    if (access(troupe_options_text(s->options, "out"), F_OK) == 0) {
        return troupe_fail(err, TROUPE_EXISTS, "--out %s: exists already; give another directory",
            troupe_options_text(s->options, "out"));
    }
    s->dir = troupe_options_text(s->options, has_model ? "model" : "base");
    troupe_status status = troupe_lm_config_read(s->dir, &s->config, err);
    if (status == TROUPE_OK) {
        status = troupe_tokenizer_load(s->dir, &s->tokenizer, err);
    }
    if (status == TROUPE_OK) {
        s->stop = s->config.stop_count > 0 ? s->config.stop_ids[0]
                                           : troupe_tokenizer_role(s->tokenizer, TROUPE_TOKEN_EOS);
        status = s->stop < 0
                     ? troupe_fail(err, TROUPE_BAD_INPUT,
                           "%s: no eos_token_id; add one to config.json or generation_config.json",
                           s->dir)
                     : load_weights(s, err);
    }
    if (status == TROUPE_OK) {
        status = troupe_lm_new(&s->config, troupe_tokenizer_vocab(s->tokenizer), &s->lm, err);
    }
    troupe_device_options device = {.size = sizeof device, .threads = 1};
    if (status == TROUPE_OK) {
        status = troupe_device_open("cpu", &device, &s->device, err);
    }
    if (status == TROUPE_OK) {
        troupe_trainer_options options;
        troupe_trainer_options_default(&options);
        options.lr = troupe_options_real(s->options, "lr");
        options.rows_max = 4096;
        status = troupe_trainer_new(s->lm, s->device, s->params, &options, &s->trainer, err);
    }
    if (status == TROUPE_OK) {
        status = read_pairs(
            s, troupe_options_text(s->options, "prompts"), &s->train, &s->train_count, err);
    }
    if (status == TROUPE_OK) {
        status = read_pairs(
            s, troupe_options_text(s->options, "eval"), &s->held_out, &s->held_out_count, err);
    }
    return status;
}

static void
free_pairs(pair *pairs, int count)
{
    for (int i = 0; i < count; i++) {
        tr_free(pairs[i].ids);
    }
    tr_free(pairs);
}

static void
close_all(sft *s)
{
    free_pairs(s->train, s->train_count);
    free_pairs(s->held_out, s->held_out_count);
    troupe_trainer_free(s->trainer);
    troupe_lm_free(s->lm);
    troupe_device_close(s->device);
    troupe_tokenizer_free(s->tokenizer);
    troupe_lm_layout_fini(&s->layout);
    tr_free(s->params);
    troupe_options_free(s->options);
}

/* One step on `batch` pairs; each pass over the data is a permutation drawn from the seed. */
static troupe_status
train_step(sft *s, int64_t step, troupe_trainer_stats *stats, troupe_error *err)
{
    int batch = (int)troupe_options_int(s->options, "batch");
    uint64_t seed = (uint64_t)troupe_options_int(s->options, "seed");
    troupe_lm_sample *samples = tr_zalloc((size_t)batch, sizeof *samples);
    for (int i = 0; i < batch; i++) {
        uint64_t at = (uint64_t)step * (uint64_t)batch + (uint64_t)i;
        const pair *p = &s->train[troupe_row_of_group(seed, (uint64_t)s->train_count, at)];
        samples[i] = (troupe_lm_sample){.prompt = p->ids,
            .prompt_count = p->prompt_count,
            .tokens = p->ids + p->prompt_count,
            .token_count = p->answer_count,
            .group = i};
    }
    troupe_status status = troupe_trainer_sft_step(s->trainer, samples, batch, stats, err);
    tr_free(samples);
    return status;
}

static bool
is_right(const pair *p, const troupe_generation *g)
{
    return g->count == p->answer_count &&
           memcmp(g->tokens, p->ids + p->prompt_count, (size_t)g->count * sizeof *g->tokens) == 0;
}

static troupe_status
count_right(sft *s, troupe_engine *engine, int *right, troupe_error *err)
{
    troupe_status status = TROUPE_OK;
    int submitted = 0, decoded = 0;
    *right = 0;
    while (status == TROUPE_OK && decoded < s->held_out_count) {
        for (; status == TROUPE_OK && submitted < s->held_out_count &&
               submitted - decoded < EVAL_AT_ONCE;
             submitted++) {
            const pair *p = &s->held_out[submitted];
            troupe_engine_request request = {.size = sizeof request,
                .id = (uint64_t)submitted + 1,
                .prompt = p->ids,
                .prompt_count = p->prompt_count,
                .members = 1,
                .max_new = p->answer_count + 1,
                .sampling = {.temperature = 0, .top_p = 1},
                .stop_ids = &s->stop,
                .stop_count = 1};
            status = troupe_engine_submit(engine, &request, err);
        }
        const troupe_generation *done = NULL;
        int count = 0;
        if (status == TROUPE_OK) {
            status = troupe_engine_step(engine, &done, &count, err);
        }
        for (int i = 0; status == TROUPE_OK && i < count; i++, decoded++) {
            *right += is_right(&s->held_out[done[i].id - 1], &done[i]);
        }
    }
    return status;
}

static troupe_status
evaluate(sft *s, double *accuracy, troupe_error *err)
{
    troupe_lm_weights *weights = NULL;
    troupe_engine *engine = NULL;
    int right = 0;
    troupe_status status = troupe_trainer_get_state(s->trainer, s->params, NULL, NULL, err);
    if (status == TROUPE_OK) {
        status = troupe_lm_weights_new(s->lm, s->device, s->params, 0, &weights, err);
    }
    if (status == TROUPE_OK) {
        troupe_engine_options options = {.size = sizeof options, .sequences_max = EVAL_AT_ONCE};
        status = troupe_engine_new(s->lm, s->device, weights, &options, &engine, err);
    }
    if (status == TROUPE_OK) {
        status = count_right(s, engine, &right, err);
    }
    troupe_engine_free(engine);
    troupe_lm_weights_drop(weights, s->device);
    *accuracy = (double)right / s->held_out_count;
    return status;
}

static troupe_status
run(sft *s, troupe_error *err)
{
    int64_t steps = troupe_options_int(s->options, "steps");
    int64_t every = troupe_options_int(s->options, "eval-every");
    double wanted = troupe_options_real(s->options, "stop-accuracy");
    double accuracy = 0;
    troupe_trainer_stats stats = {0};
    troupe_status status = evaluate(s, &accuracy, err);
    for (int64_t step = 0; status == TROUPE_OK && step < steps && accuracy < wanted; step++) {
        status = train_step(s, step, &stats, err);
        if (status == TROUPE_OK && ((step + 1) % every == 0 || step + 1 == steps)) {
            status = evaluate(s, &accuracy, err);
            printf("step %4lld  loss %.4f  held-out accuracy %.3f\n", (long long)step + 1,
                stats.loss, accuracy);
        }
    }
    if (status != TROUPE_OK) {
        return status;
    }
    troupe_checkpoint_parts parts = {.copy_from = s->dir};
    const char *out = troupe_options_text(s->options, "out");
    status = troupe_checkpoint_write(out, &s->config, &s->layout, s->params, &parts, err);
    if (status == TROUPE_OK) {
        printf("%s: %zu parameters, held-out accuracy %.3f\n", out, s->layout.parameters, accuracy);
    }
    return status;
}

int
main(int argc, char **argv)
{
    sft s = {0};
    troupe_error err = {0};
    troupe_status status = troupe_options_parse(&spec, argc, argv, &s.options, &err);
    if (status == TROUPE_OK && troupe_options_wants_help(s.options)) {
        troupe_options_help(&spec, stdout);
        troupe_options_free(s.options);
        return 0;
    }
    if (status == TROUPE_OK) {
        status = open_all(&s, &err);
    }
    bool input = status != TROUPE_OK;
    if (status == TROUPE_OK) {
        status = run(&s, &err);
    }
    if (status != TROUPE_OK) {
        fprintf(stderr, "sft: %s\n", err.text);
    }
    close_all(&s);
    return status == TROUPE_OK ? 0 : input ? 2 : 1;
}
