/* Tokens a second of the README's model on one core: generating, scoring and training one step's
 * worth of samples (64 groups of 8, prompts of 6 tokens, answers of at most 5), without actors.
 *
 * usage: bench_lm [steps] [device]      prints a table and one JSON line */
#include <troupe/engine.h>
#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>
#include <troupe/lm.h>
#include <troupe/trainer.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GROUPS = 64,
    MEMBERS = 8,
    SAMPLES = GROUPS * MEMBERS,
    PROMPT = 6,
    ANSWER = 5
};

struct bench {
    troupe_device *device;
    troupe_lm *lm;
    float *params;
    troupe_engine *engine;
    troupe_lm_scorer *scorer;
    troupe_trainer *trainer;
    troupe_lm_weights *reference;
    int32_t prompts[GROUPS][PROMPT];
    int32_t tokens[SAMPLES][ANSWER];
    float behaviour[SAMPLES][ANSWER], scores[SAMPLES][ANSWER];
    troupe_lm_sample samples[SAMPLES];
    uint64_t generate_ns, score_ns, train_ns, publish_ns;
    uint64_t sampled;
};

static void
must(troupe_status status, const troupe_error *err)
{
    if (status != TROUPE_OK) {
        (void)fprintf(stderr, "bench_lm: %s\n", err->text);
        exit(2);
    }
}

static uint64_t
now(void)
{
    const troupe_sys *sys = troupe_sys_posix();
    return sys->now_ns(sys);
}

static void
open_all(struct bench *b, const char *device)
{
    const troupe_lm_config config = {.family = TROUPE_LLAMA,
        .layers = 2,
        .hidden = 64,
        .mlp = 192,
        .heads = 4,
        .kv_heads = 4,
        .head_dim = 16,
        .vocab = 16,
        .context = 32,
        .rms_eps = 1e-5F,
        .rope = {.kind = TROUPE_ROPE_DEFAULT, .theta = 10000.0},
        .bos = -1};
    const troupe_engine_options engine = {
        .size = sizeof engine, .sequences_max = SAMPLES, .rows_max = 2 * SAMPLES};
    troupe_trainer_options trainer;
    troupe_error err = {0};

    troupe_trainer_options_default(&trainer);
    trainer.rl.kl_coef = 0.01;
    must(troupe_device_open(device, NULL, &b->device, &err), &err);
    must(troupe_lm_new(&config, 0, &b->lm, &err), &err);
    const troupe_lm_layout *layout = troupe_lm_get_layout(b->lm);
    b->params = tr_alloc(layout->floats * sizeof(float));
    troupe_lm_params_init(&config, layout, 1, b->params);
    must(troupe_lm_weights_new(b->lm, b->device, b->params, 0, &b->reference, &err), &err);
    must(troupe_engine_new(b->lm, b->device, b->reference, &engine, &b->engine, &err), &err);
    must(troupe_lm_scorer_new(b->lm, b->device, 0, &b->scorer, &err), &err);
    must(troupe_trainer_new(b->lm, b->device, b->params, &trainer, &b->trainer, &err), &err);
}

static void
take(struct bench *b, const troupe_generation *g)
{
    int i = (int)g->id % GROUPS * MEMBERS + g->member;
    size_t n = (size_t)g->count;

    memcpy(b->tokens[i], g->tokens, n * sizeof(int32_t));
    memcpy(b->behaviour[i], g->logprobs, n * sizeof(float));
    b->samples[i] = (troupe_lm_sample){.prompt = b->prompts[g->id % GROUPS],
        .prompt_count = PROMPT,
        .tokens = b->tokens[i],
        .token_count = g->count,
        .behaviour = b->behaviour[i],
        .reference = b->scores[i],
        .group = (int)g->id % GROUPS,
        .advantage = g->tokens[0] % 2 == 0 ? 1.0F : -1.0F};
    b->sampled += (uint64_t)g->count;
}

static void
generate(struct bench *b, uint64_t step)
{
    troupe_error err = {0};

    for (uint64_t g = 0; g < GROUPS; g++) {
        uint64_t seeds[MEMBERS];
        const int32_t stop = 15;
        for (uint64_t i = 0; i < PROMPT; i++) {
            b->prompts[g][i] = (int32_t)tr_below(step, g * PROMPT + i, 15);
        }
        for (uint64_t m = 0; m < MEMBERS; m++) {
            seeds[m] = tr_mix((const uint64_t[]){step, g, m}, 3);
        }
        const troupe_engine_request request = {.size = sizeof request,
            .id = step * GROUPS + g,
            .prompt = b->prompts[g],
            .prompt_count = PROMPT,
            .members = MEMBERS,
            .seeds = seeds,
            .max_new = ANSWER,
            .sampling = {.temperature = 1.0F, .top_p = 1.0F},
            .stop_ids = &stop,
            .stop_count = 1};
        must(troupe_engine_submit(b->engine, &request, &err), &err);
    }
    while (!troupe_engine_idle(b->engine)) {
        const troupe_generation *finished = NULL;
        int count = 0;
        must(troupe_engine_step(b->engine, &finished, &count, &err), &err);
        for (int i = 0; i < count; i++) {
            take(b, &finished[i]);
        }
    }
}

static void
step(struct bench *b, uint64_t n)
{
    troupe_trainer_stats stats;
    troupe_error err = {0};
    float *scores[SAMPLES];
    troupe_lm_weights *weights = NULL;

    uint64_t t0 = now();
    generate(b, n);
    uint64_t t1 = now();
    for (int i = 0; i < SAMPLES; i++) {
        scores[i] = b->scores[i];
    }
    must(troupe_lm_score(b->scorer, b->reference, b->samples, SAMPLES, 1.0F, scores, NULL, &err),
        &err);
    uint64_t t2 = now();
    must(troupe_trainer_rl_step(b->trainer, (int64_t)n, b->samples, SAMPLES, &stats, &err), &err);
    uint64_t t3 = now();
    must(troupe_trainer_get_state(b->trainer, b->params, NULL, NULL, &err), &err);
    must(troupe_lm_weights_new(b->lm, b->device, b->params, (int64_t)n + 1, &weights, &err), &err);
    troupe_engine_set_weights(b->engine, weights);
    troupe_lm_weights_drop(weights, b->device);
    uint64_t t4 = now();
    b->generate_ns += t1 - t0;
    b->score_ns += t2 - t1;
    b->train_ns += t3 - t2;
    b->publish_ns += t4 - t3;
}

int
main(int argc, char **argv)
{
    struct bench *b = tr_zalloc(1, sizeof *b);
    int steps = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 30;

    open_all(b, argc > 2 ? argv[2] : "cpu");
    step(b, 0); /* memory is touched first */
    b->generate_ns = b->score_ns = b->train_ns = b->publish_ns = b->sampled = 0;
    for (int i = 1; i <= steps; i++) {
        step(b, (uint64_t)i);
    }
    double n = (double)b->sampled;

    const struct {
        const char *name;
        uint64_t ns;
    } rows[] = {{"generate", b->generate_ns}, {"score", b->score_ns}, {"train", b->train_ns},
        {"publish", b->publish_ns}};

    printf("%-10s %12s %14s\n", "part", "ms a step", "tokens/s");
    for (size_t i = 0; i < TR_COUNT(rows); i++) {
        printf("%-10s %12.2f %14.0f\n", rows[i].name, (double)rows[i].ns / 1e6 / steps,
            n / ((double)rows[i].ns / 1e9));
    }
    printf("{\"bench\": \"lm\", \"steps\": %d, \"tokens_per_step\": %.1f, \"generate_ms\": %.3f, "
           "\"score_ms\": %.3f, \"train_ms\": %.3f, \"publish_ms\": %.3f}\n",
        steps, n / steps, (double)b->generate_ns / 1e6 / steps, (double)b->score_ns / 1e6 / steps,
        (double)b->train_ns / 1e6 / steps, (double)b->publish_ns / 1e6 / steps);
    troupe_trainer_free(b->trainer);
    troupe_lm_scorer_free(b->scorer);
    troupe_engine_free(b->engine);
    troupe_lm_weights_drop(b->reference, b->device);
    tr_free(b->params);
    troupe_lm_free(b->lm);
    troupe_device_close(b->device);
    tr_free(b);
    return 0;
}
