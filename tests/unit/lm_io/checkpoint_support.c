/* Shared by the tests of checkpoints; see checkpoint_support.h. */
#include "checkpoint_support.h"

#include <stdio.h>
#include <string.h>

const char *
in_folder(const char *folder, const char *name)
{
    static char paths[16][2 * PATH_MAX];
    static int next;
    char *path = paths[next++ % 16];
    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static float *
draw(const toy *t, uint64_t seed)
{
    float *values = tr_alloc(t->layout.floats * sizeof *values);
    troupe_lm_params_init(&t->config, &t->layout, seed, values);
    return values;
}

void
toy_init(toy *t, troupe_dtype dtype)
{
    *t = (toy){.config = {.family = TROUPE_QWEN3,
                   .dtype = dtype,
                   .layers = 2,
                   .hidden = 10,
                   .mlp = 18,
                   .heads = 3,
                   .kv_heads = 1,
                   .head_dim = 6,
                   .vocab = 67,
                   .context = 99,
                   .rms_eps = 3e-6f,
                   .qk_norm = true,
                   .rope = {.kind = TROUPE_ROPE_LLAMA3,
                       .theta = 5e5,
                       .factor = 8,
                       .low_freq_factor = 1,
                       .high_freq_factor = 4,
                       .original_context = 64},
                   .bos = 1,
                   .stop_ids = {2, 66},
                   .stop_count = 2}};
    troupe_lm_layout_init(&t->layout, &t->config);
    t->params = draw(t, 1);
    t->master = draw(t, 2);
    t->m = draw(t, 3);
    t->v = draw(t, 4);
    t->parts = (troupe_checkpoint_parts){.master = t->master,
        .m = t->m,
        .v = t->v,
        .train_state_json = "{\"step\": 7}\n",
        .ledger_json = "{\"epoch\": 0}\n"};
}

void
toy_fini(toy *t)
{
    troupe_lm_layout_fini(&t->layout);
    tr_free(t->params);
    tr_free(t->master);
    tr_free(t->m);
    tr_free(t->v);
}

void
toy_write(const toy *t, const char *folder, const char *name)
{
    troupe_error err = {0};
    expect_ok(troupe_checkpoint_write(
                  in_folder(folder, name), &t->config, &t->layout, t->params, &t->parts, &err),
        &err);
}

static float
rounded(troupe_dtype dtype, float value)
{
    switch (dtype) {
    case TROUPE_BF16:
        return tr_bf16_to_f32(tr_f32_to_bf16(value));
    case TROUPE_F16:
        return tr_f16_to_f32(tr_f32_to_f16(value));
    case TROUPE_F32:
        break;
    }
    return value;
}

static void
expect_params(const toy *t, const char *dir)
{
    troupe_error err = {0};
    float *back = tr_alloc(t->layout.floats * sizeof *back);
    memset(back, 0xff, t->layout.floats * sizeof *back);
    expect_ok(troupe_lm_params_read(dir, &t->config, &t->layout, back, &err), &err);
    for (size_t i = 0; i < t->layout.floats; i++) {
        float wanted = rounded(t->config.dtype, t->params[i]);
        if (memcmp(&back[i], &wanted, sizeof wanted) != 0) {
            fail_msg("%s: float %zu is %a, expected %a", dir, i, (double)back[i], (double)wanted);
        }
    }
    tr_free(back);
}

static void
expect_optimizer(const toy *t, const char *dir)
{
    troupe_error err = {0};
    size_t bytes = t->layout.floats * sizeof(float);
    float *back[3];
    for (int i = 0; i < 3; i++) {
        back[i] = tr_alloc(bytes);
        memset(back[i], 0xff, bytes);
    }
    expect_ok(troupe_checkpoint_read_optimizer(
                  dir, &t->config, &t->layout, back[0], back[1], back[2], &err),
        &err);
    assert_memory_equal(back[0], t->master, bytes);
    assert_memory_equal(back[1], t->m, bytes);
    assert_memory_equal(back[2], t->v, bytes);
    for (int i = 0; i < 3; i++) {
        tr_free(back[i]);
    }
}

static void
expect_text(const char *dir, const char *name, const char *wanted)
{
    troupe_error err = {0};
    char *text = NULL;
    expect_ok(troupe_checkpoint_read_text(dir, name, &text, &err), &err);
    assert_string_equal(text, wanted);
    tr_free(text);
}

void
toy_expect(const toy *t, const char *folder, const char *name)
{
    char dir[2 * PATH_MAX];
    troupe_error err = {0};
    troupe_lm_config config;
    (void)snprintf(dir, sizeof dir, "%s/%s", folder, name);
    expect_ok(troupe_checkpoint_verify(dir, &err), &err);
    expect_ok(troupe_lm_config_read(dir, &config, &err), &err);
    expect_same_config(&config, &t->config);
    expect_params(t, dir);
    expect_optimizer(t, dir);
    expect_text(dir, "train_state.json", t->parts.train_state_json);
    expect_text(dir, "ledger.json", t->parts.ledger_json);
}
