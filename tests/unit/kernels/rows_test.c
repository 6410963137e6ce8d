/* Operations on rows (embedding, norm, linear, SwiGLU, rotary embedding): every path against the
 * plain forms, and all paths to the bit. */
#include "kit.h"

struct shape {
    int R, D, N;
    bool option; /* accumulation, a given x: what the operation has */
};

static const int rows_list[] = {0, 1, 2, 3, 5, 8, 15, 16, 29, 100};

static void
run_embed(troupe_device *d, const void *shape, float *out)
{
    const struct shape *s = shape;
    size_t n = (size_t)(s->R * s->D), table = (size_t)(s->N * s->D);
    const int32_t *ids = kit_below(1, (size_t)s->R, s->N);
    troupe_device_ops(d)->embed_forward(d, out, kit_normal(2, table, 1), ids, s->R, s->D);
    memcpy(out + n, kit_normal(3, table, 1), table * sizeof *out);
    troupe_device_ops(d)->embed_backward(d, out + n, kit_normal(4, n, 1), ids, s->R, s->D);
}

static void
embedding_gathers_and_scatters(void **state)
{
    for (size_t i = 0; i < TR_COUNT(rows_list); ++i) {
        for (int D = 1; D < 70; D += 23) {
            struct shape s = {.R = rows_list[i], .D = D, .N = 7};
            struct kit_parts parts = {2, {(size_t)(s.R * D), (size_t)(s.N * D)}};
            kit_check(*state, "embed", run_embed, &s, parts, 0);
        }
    }
}

static void
run_norm(troupe_device *d, const void *shape, float *out)
{
    const struct shape *s = shape;
    size_t n = (size_t)(s->R * s->D), D = (size_t)s->D;
    const troupe_ops *ops = troupe_device_ops(d);
    const float *w = kit_normal(1, D, 1), *x = kit_normal(2, n, 1), *dout = kit_normal(3, n, 1);
    float *resid = out + n, *rstd = resid + n, *dresid = rstd + s->R, *dw = dresid + n;
    memcpy(resid, kit_normal(4, n, 3), n * sizeof *out);
    memcpy(dresid, kit_normal(5, n, 1), n * sizeof *out);
    memcpy(dw, kit_normal(6, D, 1), D * sizeof *out);
    ops->add_rmsnorm_forward(d, out, resid, rstd, s->option ? x : NULL, w, 1e-5f, s->R, s->D);
    ops->rmsnorm_backward(d, dresid, dw, dout, resid, w, rstd, s->R, s->D);
}

static void
rmsnorm_and_its_gradient_match_the_plain_form(void **state)
{
    static const int D_list[] = {1, 7, 16, 33, 64, 100, 896, 1000};
    for (size_t i = 0; i < TR_COUNT(rows_list); ++i) {
        for (size_t j = 0; j < TR_COUNT(D_list); ++j) {
            struct shape s = {.R = rows_list[i], .D = D_list[j], .option = j % 2 == 0};
            size_t n = (size_t)(s.R * s.D);
            struct kit_parts parts = {5, {n, n, (size_t)s.R, n, (size_t)s.D}};
            kit_check(*state, "rmsnorm", run_norm, &s, parts, 1e-5);
        }
    }
}

static void
norm_accepts_no_rstd(void **state)
{
    const struct kit *kit = *state;

    enum {
        R = 3,
        D = 20
    };

    const float *w = kit_normal(1, D, 1), *x = kit_normal(2, R * D, 1);
    for (int i = 0; i < kit->paths; ++i) {
        float *a = kit_normal(3, R * D, 1), *b = kit_normal(3, R * D, 1), rstd[R];
        float *out_a = kit_floats(R * D), *out_b = kit_floats(R * D);
        troupe_device *d = kit->path[i];
        troupe_device_ops(d)->add_rmsnorm_forward(d, out_a, a, rstd, x, w, 1e-6f, R, D);
        troupe_device_ops(d)->add_rmsnorm_forward(d, out_b, b, NULL, x, w, 1e-6f, R, D);
        kit_same("output without rstd", out_b, out_a, R * D);
        kit_same("residual without rstd", b, a, R * D);
    }
}

static void
run_linear(troupe_device *d, const void *shape, float *out)
{
    const struct shape *s = shape;
    size_t R = (size_t)s->R, K = (size_t)s->D, N = (size_t)s->N;
    const troupe_ops *ops = troupe_device_ops(d);
    const float *w = kit_normal(1, N * K, 1), *x = kit_normal(2, R * K, 1);
    const float *bias = kit_normal(3, N, 1), *dy = kit_normal(4, R * N, 1);
    float *dx = out + R * N, *dw = dx + R * K, *dbias = dw + N * K;
    memcpy(out, kit_normal(5, R * N, 1), R * N * sizeof *out);
    memcpy(dx, kit_normal(6, R * K, 1), R * K * sizeof *out);
    memcpy(dw, kit_normal(7, N * K, 1), N * K * sizeof *out);
    memcpy(dbias, kit_normal(8, N, 1), N * sizeof *out);
    troupe_packed_weight *packed = troupe_weight_pack(d, w, s->N, s->D);
    const bool biased = s->N % 2 == 0;
    ops->linear_forward(d, out, x, packed, biased ? bias : NULL, s->option, s->R);
    ops->linear_backward_input(d, dx, dy, w, s->option, s->R, s->N, s->D);
    ops->linear_backward_weight(d, dw, biased ? dbias : NULL, dy, x, s->R, s->N, s->D);
    troupe_weight_free(d, packed);
}

static struct kit_parts
linear_parts(const struct shape *s)
{
    size_t R = (size_t)s->R, K = (size_t)s->D, N = (size_t)s->N;
    return (struct kit_parts){4, {R * N, R * K, N * K, N}};
}

static void
linear_and_its_gradients_match_the_plain_form(void **state)
{
    static const int K_list[] = {1, 5, 16, 64, 100};
    static const int N_list[] = {1, 15, 16, 17, 33, 64, 130};
    for (size_t i = 0; i < TR_COUNT(rows_list); ++i) {
        for (size_t j = 0; j < TR_COUNT(K_list) * TR_COUNT(N_list); ++j) {
            struct shape s = {.R = rows_list[i],
                .D = K_list[j % TR_COUNT(K_list)],
                .N = N_list[j / TR_COUNT(K_list)],
                .option = j % 2 == 0};
            kit_check(*state, "linear", run_linear, &s, linear_parts(&s), 1e-5);
        }
        kit_free_all();
    }
}

/* Sums of more than one block of 1024 terms, and strides at which the product copies its operands
 * first, in slabs of 128 rows or so. */
static void
linear_matches_the_plain_form_at_large_strides(void **state)
{
    static const struct shape shapes[] = {
        {.R = 40, .D = 512, .N = 100},
        {.R = 40, .D = 2100, .N = 100},
        {.R = 5, .D = 2100, .N = 33},
        {.R = 30, .D = 100, .N = 2100},
        {.R = 2100, .D = 40, .N = 98},
        {.R = 17, .D = 2048, .N = 97, .option = true},
        {.R = 130, .D = 1100, .N = 96, .option = true},
        {.R = 600, .D = 33, .N = 520},
    };
    for (size_t i = 0; i < TR_COUNT(shapes); ++i) {
        const struct shape *s = &shapes[i];
        kit_check(*state, "linear, large", run_linear, s, linear_parts(s), 1e-5);
        kit_free_all();
    }
}

static void
run_swiglu(troupe_device *d, const void *shape, float *out)
{
    const struct shape *s = shape;
    size_t n = (size_t)(s->R * s->D);
    const float *gu = kit_normal(1, 2 * n, 4), *dout = kit_normal(2, n, 1);
    troupe_device_ops(d)->swiglu_forward(d, out, gu, s->R, s->D);
    troupe_device_ops(d)->swiglu_backward(d, out + n, dout, gu, s->R, s->D);
}

static void
swiglu_and_its_gradient_match_the_plain_form(void **state)
{
    for (size_t i = 0; i < TR_COUNT(rows_list); ++i) {
        for (int F = 1; F < 200; F += 37) {
            struct shape s = {.R = rows_list[i], .D = F};
            size_t n = (size_t)(s.R * F);
            kit_check(*state, "swiglu", run_swiglu, &s, (struct kit_parts){2, {n, 2 * n}}, 1e-5);
        }
    }
}

static void
swiglu_is_finite_at_the_ends(void **state)
{
    const struct kit *kit = *state;
    /* gates, then ups */
    const float gu[] = {-1e30f, -200, -88.8f, -87, 87, 88.8f, 200, 1e30f, 2, 2, 2, 2, 2, 2, 2, 2};
    for (int i = 0; i < kit->paths; ++i) {
        float out[8], dgu[16], dout[8] = {1, 1, 1, 1, 1, 1, 1, 1};
        troupe_device *d = kit->path[i];
        troupe_device_ops(d)->swiglu_forward(d, out, gu, 1, 8);
        troupe_device_ops(d)->swiglu_backward(d, dgu, dout, gu, 1, 8);
        for (int j = 0; j < 8; ++j) {
            double want = gu[j] > 0 ? 2 * (double)gu[j] : 0;
            assert_true(fabs((double)out[j] - want) <= 1e-6 * fabs(want) + 1e-30);
            assert_true(fabs((double)dgu[j] - (gu[j] > 0 ? 2 : 0)) <= 1e-6);
        }
    }
}

struct rope_shape {
    int R, H, KH, E;
    bool normed;
};

static void
run_rope(troupe_device *d, const void *shape, float *out)
{
    const struct rope_shape *s = shape;
    const troupe_ops *ops = troupe_device_ops(d);
    size_t R = (size_t)s->R, E = (size_t)s->E, heads = (size_t)(s->H + s->KH);
    size_t wide = R * (heads + (size_t)s->KH) * E, narrow = R * heads * E;
    float *inv_freq = kit_floats(E / 2);
    for (size_t i = 0; i < E / 2; ++i) {
        inv_freq[i] = (float)pow(10000, -(double)(2 * i) / (double)E);
    }
    const troupe_rope rope = {.inv_freq = inv_freq, .scale = s->normed ? 1.25f : 1.0f};
    const int32_t *pos = kit_below(1, R, s->normed ? 40 : 5000);
    const float *qw = s->normed ? kit_normal(2, E, 1) : NULL;
    const float *kw = s->normed ? kit_normal(3, E, 1) : NULL;
    float *qkv = out, *pre = qkv + wide, *rstd = pre + narrow, *dqkv = rstd + R * heads;
    float *dqw = dqkv + wide, *dkw = dqw + E;
    memcpy(qkv, kit_normal(4, wide, 1), wide * sizeof *out);
    memcpy(dqkv, kit_normal(5, wide, 1), wide * sizeof *out);
    ops->qk_norm_rope_forward(
        d, qkv, pre, rstd, qw, kw, 1e-6f, pos, &rope, s->R, s->H, s->KH, s->E);
    ops->qk_norm_rope_backward(
        d, dqkv, dqw, dkw, pre, rstd, qw, kw, pos, &rope, s->R, s->H, s->KH, s->E);
}

static void
rotary_embedding_and_head_norms_match_the_plain_form(void **state)
{
    static const int E_list[] = {2, 8, 16, 24, 64, 128};
    for (size_t i = 0; i < TR_COUNT(rows_list); ++i) {
        for (size_t j = 0; j < 2 * TR_COUNT(E_list); ++j) {
            struct rope_shape s = {.R = rows_list[i],
                .H = 4,
                .KH = j % 2 == 0 ? 2 : 4,
                .E = E_list[j / 2],
                .normed = j % 2 == 0};
            size_t R = (size_t)s.R, E = (size_t)s.E, heads = (size_t)(s.H + s.KH);
            size_t wide = R * (heads + (size_t)s.KH) * E;
            struct kit_parts parts = {6, {wide, R * heads * E, R * heads, wide, E, E}};
            kit_check(*state, "rope", run_rope, &s, parts, 1e-5);
        }
        kit_free_all();
    }
}

/* More embeddings than the device keeps tables for, in turn: each must find its own angles
 * again. */
static void
rotary_tables_of_many_embeddings_do_not_mix(void **state)
{
    const struct kit *kit = *state;

    enum {
        E = 8,
        KINDS = 6
    };

    const int32_t pos[] = {300};
    for (int round = 0; round < 3 * KINDS; ++round) {
        float inv_freq[E / 2];
        for (int i = 0; i < E / 2; ++i) {
            inv_freq[i] = 1.0f / (float)(1 + i + round % KINDS);
        }
        troupe_rope rope = {.inv_freq = inv_freq, .scale = 1};
        float *want = kit_normal(9, 3 * E, 1);
        troupe_device_ops(kit->plain)
            ->qk_norm_rope_forward(
                kit->plain, want, NULL, NULL, NULL, NULL, 0, pos, &rope, 1, 1, 1, E);
        for (int i = 0; i < kit->paths; ++i) {
            float *got = kit_normal(9, 3 * E, 1);
            troupe_device_ops(kit->path[i])
                ->qk_norm_rope_forward(
                    kit->path[i], got, NULL, NULL, NULL, NULL, 0, pos, &rope, 1, 1, 1, E);
            kit_close("rope of many", got, want, 3 * E, 1e-6);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_gathers_and_scatters),
        cmocka_unit_test(rmsnorm_and_its_gradient_match_the_plain_form),
        cmocka_unit_test(norm_accepts_no_rstd),
        cmocka_unit_test(linear_and_its_gradients_match_the_plain_form),
        cmocka_unit_test(linear_matches_the_plain_form_at_large_strides),
        cmocka_unit_test(swiglu_and_its_gradient_match_the_plain_form),
        cmocka_unit_test(swiglu_is_finite_at_the_ends),
        cmocka_unit_test(rotary_embedding_and_head_norms_match_the_plain_form),
        cmocka_unit_test(rotary_tables_of_many_embeddings_do_not_mix),
    };
    return cmocka_run_group_tests(tests, kit_setup, kit_teardown);
}
