/* The synchronous job as plain functions in one loop, without actors, stream or store, against
 * `grpo --mode sync`: the optimiser's masters and moments after some steps must be the same bits.
 * Usage: test_plain PATH-OF-GRPO DATA-DIR */
#include <troupe/dataset.h>
#include <troupe/engine.h>
#include <troupe/ext/ledger.h>
#include <troupe/model.h>
#include <troupe/tokenizer.h>
#include <troupe/trainer.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    STEPS = 6,
    GROUPS = 8,
    SIZE = 4,
    MEMBERS = GROUPS * SIZE,
    MAX_NEW = 5,
    SEED = 5
};

typedef struct member {
    int32_t prompt[64], tokens[MAX_NEW];
    float behaviour[MAX_NEW], reference[MAX_NEW];
    int prompt_count, token_count;
    double reward;
} member;

typedef struct plain {
    troupe_lm *lm;
    troupe_device *device;
    troupe_tokenizer *tokenizer;
    troupe_dataset *rows;
    float *params;
    troupe_lm_weights *reference;
    troupe_lm_scorer *scorer;
    troupe_trainer *trainer;
    troupe_trainer_options options;
    member members[MEMBERS];
} plain;

static void
must(troupe_status status, const troupe_error *err)
{
    if (status != TROUPE_OK) {
        fprintf(stderr, "%s: %s\n", troupe_status_name(status), err->text);
        exit(1);
    }
}

static void
open_plain(plain *p, const char *data)
{
    troupe_error err = {0};
    char path[4096];
    snprintf(path, sizeof path, "%s/add/model", data);
    must(troupe_tokenizer_load(path, &p->tokenizer, &err), &err);
    must(
        troupe_lm_load(path, troupe_tokenizer_vocab(p->tokenizer), &p->lm, &p->params, &err), &err);
    snprintf(path, sizeof path, "%s/add/prompts.jsonl", data);
    must(troupe_dataset_load(&p->rows, path, NULL, &err), &err);
    troupe_device_options device = {.size = sizeof device, .threads = 1};
    must(troupe_device_open("cpu", &device, &p->device, &err), &err);
    must(troupe_lm_weights_new(p->lm, p->device, p->params, 0, &p->reference, &err), &err);
    must(troupe_lm_scorer_new(p->lm, p->device, 4096, &p->scorer, &err), &err);
    troupe_trainer_options_default(&p->options);
    p->options.lr = 1e-3;
    p->options.rows_max = 4096;
    p->options.temperature = 1;
    must(troupe_rl_options_parse(&p->options.rl, "grpo", NULL, &err), &err);
    p->options.rl.kl_coef = 0.01;
    p->options.rl.length_const = MAX_NEW;
    must(troupe_trainer_new(p->lm, p->device, p->params, &p->options, &p->trainer, &err), &err);
}

static void
submit_group(plain *p, troupe_engine *engine, uint64_t group, int first)
{
    troupe_error err = {0};
    troupe_row row = troupe_dataset_row(
        p->rows, troupe_row_of_group(SEED, troupe_dataset_count(p->rows), group));
    troupe_ids ids = {0};
    must(troupe_tokenizer_encode(
             p->tokenizer, row.prompt, strlen(row.prompt), TROUPE_ENCODE_ADD_SPECIAL, &ids, &err),
        &err);
    uint64_t seeds[SIZE];
    for (uint32_t m = 0; m < SIZE; m++) {
        seeds[m] = troupe_sample_seed(SEED, group, m, 0);
        memcpy(p->members[first + (int)m].prompt, ids.data, ids.count * sizeof *ids.data);
        p->members[first + (int)m].prompt_count = (int)ids.count;
    }
    int32_t stop = troupe_tokenizer_role(p->tokenizer, TROUPE_TOKEN_EOS);
    troupe_engine_request request = {.size = sizeof request,
        .id = group + 1,
        .prompt = ids.data,
        .prompt_count = (int)ids.count,
        .members = SIZE,
        .seeds = seeds,
        .max_new = MAX_NEW,
        .sampling = {.temperature = 1, .top_p = 1},
        .stop_ids = &stop,
        .stop_count = 1};
    must(troupe_engine_submit(engine, &request, &err), &err);
    troupe_ids_fini(&ids);
}

static void
keep(plain *p, const troupe_generation *g, uint64_t first_group)
{
    member *m = &p->members[(int)(g->id - 1 - first_group) * SIZE + g->member];
    m->token_count = g->count;
    memcpy(m->tokens, g->tokens, (size_t)g->count * sizeof *g->tokens);
    memcpy(m->behaviour, g->logprobs, (size_t)g->count * sizeof *g->logprobs);
    troupe_row row = troupe_dataset_row(
        p->rows, troupe_row_of_group(SEED, troupe_dataset_count(p->rows), g->id - 1));
    tr_buf text = {0};
    troupe_tokenizer_decode(
        p->tokenizer, g->tokens, (size_t)g->count, TROUPE_DECODE_SKIP_SPECIAL, &text);
    m->reward = text.data != NULL && strcmp(text.data, row.answer) == 0 ? 1 : 0;
    tr_buf_fini(&text);
}

/* One group after the other, each alone in the engine: batching must not matter. */
static void
generate(plain *p, uint64_t first_group)
{
    troupe_error err = {0};
    troupe_lm_weights *weights = NULL;
    must(troupe_trainer_get_state(p->trainer, p->params, NULL, NULL, &err), &err);
    must(troupe_lm_weights_new(p->lm, p->device, p->params, 0, &weights, &err), &err);
    troupe_engine *engine = NULL;
    troupe_engine_options options = {.size = sizeof options, .sequences_max = SIZE};
    must(troupe_engine_new(p->lm, p->device, weights, &options, &engine, &err), &err);
    for (int g = 0; g < GROUPS; g++) {
        submit_group(p, engine, first_group + (uint64_t)g, g * SIZE);
        while (!troupe_engine_idle(engine)) {
            const troupe_generation *done = NULL;
            int count = 0;
            must(troupe_engine_step(engine, &done, &count, &err), &err);
            for (int i = 0; i < count; i++) {
                keep(p, &done[i], first_group);
            }
        }
    }
    troupe_engine_free(engine);
    troupe_lm_weights_drop(weights, p->device);
}

static void
train(plain *p)
{
    troupe_error err = {0};
    troupe_lm_sample samples[MEMBERS];
    double rewards[MEMBERS];
    float advantages[MEMBERS];
    for (int i = 0; i < MEMBERS; i++) {
        member *m = &p->members[i];
        samples[i] = (troupe_lm_sample){.prompt = m->prompt,
            .prompt_count = m->prompt_count,
            .tokens = m->tokens,
            .token_count = m->token_count,
            .behaviour = m->behaviour,
            .group = i / SIZE};
        float *reference = m->reference;
        must(troupe_lm_score(p->scorer, p->reference, &samples[i], 1, 1, &reference, NULL, &err),
            &err);
        samples[i].reference = m->reference;
        rewards[i] = m->reward;
    }
    must(troupe_rl_advantages(&p->options.rl, rewards, GROUPS, SIZE, advantages, NULL, &err), &err);
    for (int i = 0; i < MEMBERS; i++) {
        samples[i].advantage = advantages[i];
    }
    troupe_trainer_stats stats;
    must(troupe_trainer_rl_step(p->trainer, 0, samples, MEMBERS, &stats, &err), &err);
    if (stats.rl.mismatch_max != 0) {
        fprintf(stderr, "behaviour and recomputed log-probs differ by %g\n", stats.rl.mismatch_max);
        exit(1);
    }
}

static void
run_grpo(const char *grpo, const char *out, const char *rollouts)
{
    char steps[16], groups[16], size[16], max_new[16], seed[16];
    snprintf(steps, sizeof steps, "%d", STEPS);
    snprintf(groups, sizeof groups, "%d", GROUPS);
    snprintf(size, sizeof size, "%d", SIZE);
    snprintf(max_new, sizeof max_new, "%d", MAX_NEW);
    snprintf(seed, sizeof seed, "%d", SEED);
    pid_t child = fork();
    if (child == 0) {
        execl(grpo, grpo, "--task", "add", "--mode", "sync", "--steps", steps, "--batch", groups,
            "--group-size", size, "--max-new", max_new, "--seed", seed, "--lr", "1e-3", "--warmup",
            "0", "--kl-coef", "0.01", "--eval-limit", "10", "--eval-every", "0",
            "--checkpoint-every", "0", "--rollouts", rollouts, "--algo", "grpo", "--correction",
            "token-tis", "--out", out, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "grpo ended with status %d\n", status);
        exit(1);
    }
}

static int
compare(plain *p, const char *out)
{
    troupe_error err = {0};
    char dir[4200];
    size_t floats = troupe_lm_get_layout(p->lm)->floats;
    float *theirs = calloc(3 * floats, sizeof *theirs);
    float *ours = calloc(3 * floats, sizeof *ours);
    if (theirs == NULL || ours == NULL) {
        return 1;
    }
    snprintf(dir, sizeof dir, "%s/checkpoint-%d", out, STEPS);
    must(troupe_checkpoint_read_optimizer(dir, troupe_lm_get_config(p->lm),
             troupe_lm_get_layout(p->lm), theirs, theirs + floats, theirs + 2 * floats, &err),
        &err);
    must(troupe_trainer_get_state(p->trainer, ours, ours + floats, ours + 2 * floats, &err), &err);
    size_t different = 0;
    for (size_t i = 0; i < 3 * floats; i++) {
        different += memcmp(&ours[i], &theirs[i], sizeof ours[i]) != 0;
    }
    printf("%s: %zu of %zu values of masters and moments differ\n", out, different, 3 * floats);
    free(theirs);
    free(ours);
    return different != 0;
}

int
main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s GRPO DATA\n", argv[0]);
        return 2;
    }
    static plain p;
    open_plain(&p, argv[2]);
    for (uint64_t step = 0; step < STEPS; step++) {
        generate(&p, step * GROUPS);
        train(&p);
    }
    char root[] = "/tmp/troupe-plain-XXXXXX", out[64], command[96];
    if (mkdtemp(root) == NULL) {
        return 1;
    }
    int bad = 0;
    for (int rollouts = 1; rollouts <= 2; rollouts++) {
        char count[8];
        snprintf(count, sizeof count, "%d", rollouts);
        snprintf(out, sizeof out, "%s/run-%d", root, rollouts);
        run_grpo(argv[1], out, count);
        bad |= compare(&p, out);
    }
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    bad |= system(command);
    troupe_trainer_free(p.trainer);
    troupe_lm_scorer_free(p.scorer);
    troupe_lm_weights_drop(p.reference, p.device);
    troupe_device_close(p.device);
    troupe_dataset_free(p.rows);
    troupe_tokenizer_free(p.tokenizer);
    troupe_lm_free(p.lm);
    tr_free(p.params);
    return bad;
}
