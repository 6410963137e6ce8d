/* Where parameters lie in the flat buffer, and what fresh ones look like. */
#include "support.h"

#include <math.h>
#include <string.h>

/* --- the layout --- */

static void
layouts_have_as_many_parameters_as_the_published_models(void **state)
{
    (void)state;

    static const struct {
        troupe_lm_config config;
        size_t parameters;
    } models[] = {
        /* Llama 3.1 8B, Qwen2.5 0.5B, Qwen3 0.6B: as counted on their model cards. */
        {{.family = TROUPE_LLAMA,
             .layers = 32,
             .hidden = 4096,
             .mlp = 14336,
             .heads = 32,
             .kv_heads = 8,
             .head_dim = 128,
             .vocab = 128256},
            8030261248u},
        {{.family = TROUPE_QWEN2,
             .layers = 24,
             .hidden = 896,
             .mlp = 4864,
             .heads = 14,
             .kv_heads = 2,
             .head_dim = 64,
             .vocab = 151936,
             .tied = true,
             .qkv_bias = true},
            494032768u},
        {{.family = TROUPE_QWEN3,
             .layers = 28,
             .hidden = 1024,
             .mlp = 3072,
             .heads = 16,
             .kv_heads = 8,
             .head_dim = 128,
             .vocab = 151936,
             .tied = true,
             .qk_norm = true},
            596049920u},
    };

    for (size_t i = 0; i < TR_COUNT(models); i++) {
        troupe_lm_layout l;
        troupe_lm_layout_init(&l, &models[i].config);
        assert_int_equal(l.parameters, models[i].parameters);
        troupe_lm_layout_fini(&l);
    }
}

static void
tensors_are_aligned_ordered_and_do_not_overlap(void **state)
{
    (void)state;
    /* Odd sizes, so that there are gaps, and every kind of tensor. */
    const troupe_lm_config odd = {.family = TROUPE_LLAMA,
        .layers = 2,
        .hidden = 5,
        .mlp = 7,
        .heads = 3,
        .kv_heads = 1,
        .head_dim = 2,
        .vocab = 11,
        .qkv_bias = true,
        .o_bias = true,
        .mlp_bias = true,
        .qk_norm = true};
    troupe_lm_layout l;
    troupe_lm_layout_init(&l, &odd);
    size_t end = 0;
    size_t total = 0;
    for (int i = 0; i < l.count; i++) {
        const troupe_lm_tensor *t = &l.tensors[i];
        assert_int_equal(t->offset % 16, 0);
        assert_true(t->offset >= end && t->offset < end + 16);
        assert_int_equal(t->count, t->shape[0] * t->shape[1]);
        assert_int_equal(t->decay, t->rank == 2);
        assert_int_equal(troupe_lm_layout_find(&l, t->name), i);
        end = t->offset + t->count;
        total += t->count;
    }
    assert_true(l.floats >= end && l.floats < end + 16);
    assert_int_equal(l.parameters, total);
    assert_int_equal(l.count, 1 + 2 * 18 + 2);
    assert_int_equal(troupe_lm_layout_find(&l, "model.layers.2.mlp.up_proj.weight"), -1);
    int q = troupe_lm_layout_find(&l, "model.layers.0.self_attn.q_proj.weight");
    assert_string_equal(l.tensors[q + 1].name, "model.layers.0.self_attn.k_proj.weight");
    assert_string_equal(l.tensors[q + 2].name, "model.layers.0.self_attn.v_proj.weight");
    assert_string_equal(l.tensors[q + 3].name, "model.layers.0.self_attn.q_proj.bias");
    int gate = troupe_lm_layout_find(&l, "model.layers.1.mlp.gate_proj.weight");
    assert_string_equal(l.tensors[gate + 1].name, "model.layers.1.mlp.up_proj.weight");
    troupe_lm_layout_fini(&l);
}

/* --- fresh parameters --- */

/* Qwen2-like, with and without a second layer. */
static troupe_lm_config config;
static troupe_lm_layout layout;

static float *
draw(int layers, int vocab, uint64_t seed)
{
    config = (troupe_lm_config){.family = TROUPE_QWEN2,
        .layers = layers,
        .hidden = 96,
        .mlp = 256,
        .heads = 6,
        .kv_heads = 2,
        .head_dim = 16,
        .vocab = vocab,
        .tied = true,
        .qkv_bias = true};
    troupe_lm_layout_fini(&layout);
    troupe_lm_layout_init(&layout, &config);
    float *params = tr_alloc(layout.floats * sizeof *params);
    memset(params, 0xff, layout.floats * sizeof *params);
    troupe_lm_params_init(&config, &layout, seed, params);
    return params;
}

static const troupe_lm_tensor *
tensor_of(const char *name)
{
    int index = troupe_lm_layout_find(&layout, name);
    if (index < 0) {
        fail_msg("no %s in the layout", name);
    }
    return &layout.tensors[index];
}

static void
expect_spread(const float *params, const char *name, double wanted)
{
    const troupe_lm_tensor *tensor = tensor_of(name);
    double sum = 0;
    double squares = 0;
    for (size_t i = 0; i < tensor->count; i++) {
        double x = (double)params[tensor->offset + i];
        sum += x;
        squares += x * x;
    }
    double n = (double)tensor->count;
    double deviation = sqrt(squares / n);
    /* Five standard errors of mean and deviation. */
    if (fabs(sum / n) > 5 * wanted / sqrt(n) ||
        fabs(deviation - wanted) > 5 * wanted / sqrt(2 * n)) {
        fail_msg("%s: mean %g, deviation %g, expected 0 and %g", name, sum / n, deviation, wanted);
    }
}

static void
expect_all(const float *params, const char *name, float wanted)
{
    const troupe_lm_tensor *tensor = tensor_of(name);
    for (size_t i = 0; i < tensor->count; i++) {
        if (fabsf(params[tensor->offset + i] - wanted) > 0) {
            fail_msg("%s[%zu] is %g, expected %g", name, i, (double)params[tensor->offset + i],
                (double)wanted);
        }
    }
}

static void
fresh_parameters_have_the_stated_spread(void **state)
{
    (void)state;
    float *params = draw(2, 643, 1);
    expect_spread(params, "model.embed_tokens.weight", 0.02);
    expect_spread(params, "model.layers.1.self_attn.q_proj.weight", 0.02);
    expect_spread(params, "model.layers.1.mlp.gate_proj.weight", 0.02);
    expect_spread(params, "model.layers.1.self_attn.o_proj.weight", 0.01);
    expect_spread(params, "model.layers.0.mlp.down_proj.weight", 0.01);
    expect_all(params, "model.norm.weight", 1.0f);
    expect_all(params, "model.layers.1.post_attention_layernorm.weight", 1.0f);
    expect_all(params, "model.layers.0.self_attn.q_proj.bias", 0.0f);
    expect_all(params, "model.layers.1.self_attn.v_proj.bias", 0.0f);
    tr_free(params);
}

static void
the_gaps_between_fresh_tensors_are_zero(void **state)
{
    (void)state;
    float *params = draw(2, 643, 1);
    size_t gaps = 0;
    for (int i = 0; i < layout.count; i++) {
        size_t end = layout.tensors[i].offset + layout.tensors[i].count;
        size_t next = i + 1 < layout.count ? layout.tensors[i + 1].offset : layout.floats;
        for (; end < next; end++) {
            assert_float_equal(params[end], 0.0f, 0);
            gaps++;
        }
    }
    assert_int_equal(layout.floats - layout.parameters, gaps);
    tr_free(params);
}

static void
fresh_parameters_depend_on_seed_and_name_alone(void **state)
{
    (void)state;
    float *one = draw(2, 643, 1);
    float *same = draw(2, 643, 1);
    assert_memory_equal(one, same, layout.floats * sizeof *one);
    float *other = draw(2, 643, 2);
    const troupe_lm_tensor *up = tensor_of("model.layers.0.mlp.up_proj.weight");
    const troupe_lm_tensor *up1 = tensor_of("model.layers.1.mlp.up_proj.weight");
    size_t bytes = up->count * sizeof *one;
    assert_int_not_equal(memcmp(one + up->offset, other + up->offset, bytes), 0);
    assert_int_not_equal(memcmp(one + up->offset, one + up1->offset, bytes), 0);
    size_t offset = up->offset;
    float *shallow = draw(1, 600, 1); /* every offset differs */
    up = tensor_of("model.layers.0.mlp.up_proj.weight");
    assert_int_not_equal(up->offset, offset);
    assert_memory_equal(one + offset, shallow + up->offset, bytes);
    tr_free(one);
    tr_free(same);
    tr_free(other);
    tr_free(shallow);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_have_as_many_parameters_as_the_published_models),
        cmocka_unit_test(tensors_are_aligned_ordered_and_do_not_overlap),
        cmocka_unit_test(fresh_parameters_have_the_stated_spread),
        cmocka_unit_test(the_gaps_between_fresh_tensors_are_zero),
        cmocka_unit_test(fresh_parameters_depend_on_seed_and_name_alone),
    };
    int failed = cmocka_run_group_tests_name("layout", tests, NULL, NULL);
    troupe_lm_layout_fini(&layout);
    return failed;
}
