/* See lm_support.h. */
#include "lm_support.h"

#include "engine_state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void
check(troupe_status status, const troupe_error *err)
{
    if (status != TROUPE_OK) {
        fail_msg("%s: %s", troupe_status_name(status), err->text);
    }
}

troupe_lm_config
small_config(void)
{
    return (troupe_lm_config){.family = TROUPE_LLAMA,
        .layers = 2,
        .hidden = 32,
        .mlp = 48,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 8,
        .vocab = 24,
        .context = 128,
        .rms_eps = 1e-6F,
        .rope = {.kind = TROUPE_ROPE_DEFAULT, .theta = 10000.0},
        .bos = -1};
}

troupe_lm_config
crooked_config(void)
{
    return (troupe_lm_config){.family = TROUPE_QWEN3,
        .layers = 3,
        .hidden = 10,
        .mlp = 14,
        .heads = 3,
        .kv_heads = 1,
        .head_dim = 6,
        .vocab = 13,
        .context = 64,
        .rms_eps = 1e-5F,
        .tied = true,
        .qkv_bias = true,
        .o_bias = true,
        .mlp_bias = true,
        .qk_norm = true,
        .rope = {.kind = TROUPE_ROPE_DEFAULT, .theta = 1000.0},
        .bos = -1};
}

/* Everything random, biases and norms too, so that no term of a gradient is zero by chance. */
static void
randomize(const troupe_lm *lm, uint64_t seed, float *params)
{
    const troupe_lm_layout *layout = troupe_lm_get_layout(lm);

    memset(params, 0, layout->floats * sizeof *params);
    for (int i = 0; i < layout->count; i++) {
        const troupe_lm_tensor *t = &layout->tensors[i];
        double scale = t->rank == 2 ? 0.9 / sqrt((double)t->shape[1]) : 0.2;
        bool norm = t->rank == 1 && strstr(t->name, "norm") != NULL;
        if (strcmp(t->name, "lm_head.weight") == 0 || strstr(t->name, "embed") != NULL) {
            scale = 0.6;
        }
        for (size_t j = 0; j < t->count; j++) {
            double x = scale * tr_normal(seed, (uint64_t)i, j);
            params[t->offset + j] = (float)(norm ? 1.0 + x : x);
        }
    }
}

static void
open_device(struct fixture *f)
{
    troupe_error err = {0};
    check(troupe_device_open("cpu", NULL, &f->device, &err), &err);
}

void
fixture_open(struct fixture *f, const troupe_lm_config *config, int valid_ids, uint64_t seed)
{
    troupe_error err = {0};

    open_device(f);
    check(troupe_lm_new(config, valid_ids, &f->lm, &err), &err);
    f->params = tr_zalloc(troupe_lm_get_layout(f->lm)->floats, sizeof(float));
    randomize(f->lm, seed, f->params);
    check(troupe_lm_weights_new(f->lm, f->device, f->params, 0, &f->weights, &err), &err);
}

void
fixture_load(struct fixture *f, const char *name)
{
    troupe_error err = {0};
    char path[512];

    (void)snprintf(path, sizeof path, "%s/hf/%s", TROUPE_TEST_DATA, name);
    open_device(f);
    check(troupe_lm_load(path, 0, &f->lm, &f->params, &err), &err);
    check(troupe_lm_weights_new(f->lm, f->device, f->params, 0, &f->weights, &err), &err);
}

void
fixture_close(struct fixture *f)
{
    troupe_lm_weights_drop(f->weights, f->device);
    tr_free(f->params);
    troupe_lm_free(f->lm);
    troupe_device_close(f->device);
}

troupe_lm_weights *
fixture_weights(const struct fixture *f, uint64_t seed, int64_t version)
{
    troupe_lm_weights *weights = NULL;
    troupe_error err = {0};
    float *params = tr_zalloc(troupe_lm_get_layout(f->lm)->floats, sizeof(float));

    randomize(f->lm, seed, params);
    check(troupe_lm_weights_new(f->lm, f->device, params, version, &weights, &err), &err);
    tr_free(params);
    return weights;
}

static void *
copy(const void *from, size_t size)
{
    void *to = tr_alloc(size);
    if (size > 0) {
        memcpy(to, from, size);
    }
    return to;
}

void
results_add(struct results *r, const troupe_generation *g, int count)
{
    r->items = tr_realloc(r->items, (size_t)(r->count + count), sizeof *r->items);
    for (int i = 0; i < count; i++) {
        size_t n = (size_t)g[i].count;
        r->items[r->count++] = (struct result){.id = g[i].id,
            .member = g[i].member,
            .finish = g[i].finish,
            .count = g[i].count,
            .span_count = g[i].span_count,
            .preemptions = g[i].preemptions,
            .tokens = copy(g[i].tokens, n * sizeof(int32_t)),
            .logprobs = copy(g[i].logprobs, n * sizeof(float)),
            .spans = copy(g[i].spans, (size_t)g[i].span_count * sizeof(troupe_lm_span))};
    }
}

const struct result *
results_find(const struct results *r, uint64_t id, int member)
{
    for (int i = 0; i < r->count; i++) {
        if (r->items[i].id == id && r->items[i].member == member) {
            return &r->items[i];
        }
    }
    fail_msg("group %llu member %d was not reported", (unsigned long long)id, member);
    return NULL;
}

void
results_fini(struct results *r)
{
    for (int i = 0; i < r->count; i++) {
        tr_free(r->items[i].tokens);
        tr_free(r->items[i].logprobs);
        tr_free(r->items[i].spans);
    }
    tr_free(r->items);
    *r = (struct results){0};
}

void
assert_same_results(const struct results *a, const struct results *b)
{
    assert_int_equal(a->count, b->count);
    for (int i = 0; i < a->count; i++) {
        const struct result *x = &a->items[i];
        const struct result *y = results_find(b, x->id, x->member);
        if (x->count != y->count || x->finish != y->finish) {
            fail_msg("group %llu member %d: %d tokens, %s; and %d tokens, %s",
                (unsigned long long)x->id, x->member, x->count, troupe_finish_name(x->finish),
                y->count, troupe_finish_name(y->finish));
        }
        for (int t = 0; t < x->count; t++) {
            if (x->tokens[t] != y->tokens[t] ||
                memcmp(&x->logprobs[t], &y->logprobs[t], sizeof(float)) != 0) {
                fail_msg("group %llu member %d token %d: %d (%.9g) and %d (%.9g)",
                    (unsigned long long)x->id, x->member, t, x->tokens[t], (double)x->logprobs[t],
                    y->tokens[t], (double)y->logprobs[t]);
            }
        }
    }
}

void
engine_drain(troupe_engine *engine, struct results *r, int limit)
{
    for (int step = 0; !troupe_engine_idle(engine); step++) {
        const troupe_generation *finished = NULL;
        troupe_error err = {0};
        int count = 0;
        if (step == limit) {
            fail_msg("not done after %d steps", limit);
        }
        check(troupe_engine_step(engine, &finished, &count, &err), &err);
        assert_pool_conserved(engine);
        if (r != NULL) {
            results_add(r, finished, count);
        }
    }
}

void
assert_pool_conserved(const troupe_engine *engine)
{
    const struct tr_kv_pool *pool = &engine->pool;
    int32_t *held = tr_zalloc((size_t)pool->blocks, sizeof *held);
    int32_t used = 0;

    for (int i = 0; i < engine->group_count; i++) {
        const struct tr_group *g = engine->groups[i];
        assert_true(g->hold.count == 0 || g->waiting > 0);
        for (int b = 0; b < g->hold.count; b++) {
            held[g->hold.blocks[b]]++;
        }
        for (int j = 0; j < g->count; j++) {
            const struct tr_kv_table *t = &g->members[j].table;
            assert_true(t->count == 0 || g->members[j].state == TR_MEMBER_RUNNING);
            for (int b = 0; b < t->count; b++) {
                held[t->blocks[b]]++;
            }
        }
    }
    for (int32_t b = 0; b < pool->blocks; b++) {
        if (held[b] != pool->counts[b]) {
            fail_msg("block %d: %d tables hold it, %d are counted", b, held[b], pool->counts[b]);
        }
        used += held[b] > 0;
    }
    for (int32_t i = 0; i < pool->free_count; i++) {
        if (held[pool->free[i]] != 0) {
            fail_msg("block %d is free and held", pool->free[i]);
        }
        held[pool->free[i]] = -1; /* a second time on the stack would show as not 0 */
    }
    if (used + pool->free_count != pool->blocks) {
        fail_msg("%d blocks used and %d free of %d", used, pool->free_count, pool->blocks);
    }
    tr_free(held);
}

void
random_ids(int32_t *ids, int count, int limit, uint64_t seed)
{
    for (int i = 0; i < count; i++) {
        ids[i] = (int32_t)tr_below(seed, (uint64_t)i, (uint64_t)limit);
    }
}
