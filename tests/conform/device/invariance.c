/* The promises about bits: a row's output is the same in any batch, and a parameter's gradient over
 * two batches, one after the other, is that over both in one. */
#include "device_kit.h"

enum {
    R = 33,
    D = 70,
    N = 45,
    H = 4,
    KH = 2,
    E = 24,
    WIDE = (H + 2 * KH) * E,
    ARRAYS = 9
};

/* Rows [first, first + count) of everything. */
struct part {
    int first, count;
};

/* out: norm, linear, SwiGLU, rope, log-probs; all of `count` rows. */
static void
call_rows(troupe_device *d, void *const *a, const void *shape)
{
    const struct part *p = shape;
    const troupe_ops *ops = troupe_device_ops(d);
    const troupe_rope rope = {.inv_freq = a[8], .scale = 1};
    const float *x = (const float *)a[5] + p->first * D;
    float *w = a[6];
    const int32_t *pos = (const int32_t *)a[7] + p->first;
    troupe_packed_weight *packed = troupe_weight_pack(d, w, N, D);
    assert_non_null(packed);
    float *norm = a[0], *linear = a[1], *mlp = a[2], *qkv = a[3], *logprob = a[4];
    float *resid = troupe_device_alloc(d, (size_t)(p->count * D) * sizeof *resid);
    assert_non_null(resid);
    ops->add_rmsnorm_forward(d, norm, resid, NULL, x, w, 1e-6f, p->count, D);
    ops->linear_forward(d, linear, x, packed, w, false, p->count);
    ops->swiglu_forward(d, mlp, x, p->count, D / 2);
    assert_int_equal(troupe_device_copy(d, qkv, (const float *)a[9] + p->first * WIDE,
                         (size_t)(p->count * WIDE) * sizeof *qkv),
        TROUPE_OK);
    ops->qk_norm_rope_forward(d, qkv, NULL, NULL, w, w + E, 1e-6f, pos, &rope, p->count, H, KH, E);
    ops->lm_head_forward(d, logprob, NULL, NULL, NULL, x, packed, pos, 1.25f, N, p->count);
    troupe_weight_free(d, packed);
    troupe_device_free(d, resid);
}

static void
a_row_is_the_same_in_any_batch(void **state)
{
    static const size_t width[] = {D, N, D / 2, WIDE, 1};
    static const struct part parts[] = {{0, R}, {7, 1}, {20, 13}};
    const struct rig *rig = *state;
    float *inv = rig_zalloc(E / 2 * sizeof *inv);
    for (int i = 0; i < E / 2; ++i) {
        inv[i] = 1 / (float)(1 + i);
    }
    float *out[TR_COUNT(parts)][TR_COUNT(width)];
    for (size_t i = 0; i < TR_COUNT(parts); ++i) {
        size_t n = (size_t)parts[i].count;
        const struct arg args[] = {{NULL, n * width[0], FLOATS, 0}, {NULL, n * width[1], FLOATS, 0},
            {NULL, n * width[2], FLOATS, 0}, {NULL, n * width[3], FLOATS, 0},
            {NULL, n * width[4], FLOATS, 0}, {rig_normal(1, R * D, 1), R * D, READ, 0},
            {rig_normal(2, N * D, 1), N * D, READ, 0}, {rig_below(3, R, N), R, READ, 0},
            {inv, E / 2, READ, 0}, {rig_normal(4, R * WIDE, 1), R * WIDE, READ, 0}};
        for (int o = 0; o < (int)TR_COUNT(width); ++o) {
            out[i][o] = rig_run(rig->tested, call_rows, &parts[i], args, TR_COUNT(args), o);
        }
    }
    for (size_t i = 1; i < TR_COUNT(parts); ++i) {
        for (size_t o = 0; o < TR_COUNT(width); ++o) {
            char what[64];
            snprintf(what, sizeof what, "rows from %d on, output %zu", parts[i].first, o);
            rig_same(what, out[i][o], out[0][o] + (size_t)parts[i].first * width[o],
                (size_t)parts[i].count * width[o]);
        }
    }
}

/* Gradients of parameters over rows [0, R) in as many parts as `shape` says. */
static void
call_gradients(troupe_device *d, void *const *a, const void *shape)
{
    const int *parts = shape;
    const troupe_ops *ops = troupe_device_ops(d);
    const troupe_rope rope = {.inv_freq = a[8], .scale = 1};
    const float *x = a[6], *w = a[7], *rstd = a[8];
    float *dx = troupe_device_alloc(d, R * D * sizeof *dx);
    float *dqkv = troupe_device_alloc(d, R * WIDE * sizeof *dqkv);
    troupe_packed_weight *packed = troupe_weight_pack(d, w, N, D);
    assert_true(dx != NULL && dqkv != NULL && packed != NULL);
    for (int p = 0, first = 0; p < *parts; ++p) {
        int end = p + 1 == *parts ? R : 10, count = end - first;
        const float *rows = x + first * D;
        const int32_t *ids = (const int32_t *)a[9] + first;
        ops->embed_backward(d, a[0], rows, ids, count, D);
        ops->rmsnorm_backward(d, dx, a[1], rows, rows, w, rstd, count, D);
        ops->linear_backward_weight(d, a[2], a[3], x + first * N, rows, count, N, D);
        ops->lm_head_backward(d, dx, a[4], rstd + first, NULL, rows, w, packed, rstd + first, NULL,
            ids, 1, N, count, N, D);
        assert_int_equal(troupe_device_copy(d, dqkv, (const float *)a[10] + first * WIDE,
                             (size_t)(count * WIDE) * sizeof *dqkv),
            TROUPE_OK);
        ops->qk_norm_rope_backward(d, dqkv, a[5], (float *)a[5] + E,
            (const float *)a[10] + first * (H + KH) * E, rstd, w, w + E, ids, &rope, count, H, KH,
            E);
        first = end;
    }
    troupe_weight_free(d, packed);
    troupe_device_free(d, dx);
    troupe_device_free(d, dqkv);
}

/* The second part reads `rstd` from its beginning again, so it is the same number everywhere. */
static void
a_gradient_is_the_same_however_the_batch_is_cut(void **state)
{
    static const size_t size[] = {N * D, D, N * D, N, N * D, 2 * E};
    const struct rig *rig = *state;
    if (rig->is_plain) {
        return; /* the reference adds a part's sum, which it promises nothing about */
    }
    float *rstd = rig_zalloc(R * (H + KH) * sizeof *rstd);
    for (int i = 0; i < R * (H + KH); ++i) {
        rstd[i] = 0.75f;
    }
    for (int o = 0; o < (int)TR_COUNT(size); ++o) {
        const struct arg args[] = {{rig_normal(1, size[0], 1), size[0], FLOATS, 0},
            {rig_normal(2, size[1], 1), size[1], FLOATS, 0},
            {rig_normal(3, size[2], 1), size[2], FLOATS, 0},
            {rig_normal(4, size[3], 1), size[3], FLOATS, 0},
            {rig_normal(5, size[4], 1), size[4], FLOATS, 0},
            {rig_normal(6, size[5], 1), size[5], FLOATS, 0},
            {rig_normal(7, R * D, 1), R * D, READ, 0}, {rig_normal(8, N * D, 0.1), N * D, READ, 0},
            {rstd, R * (H + KH), READ, 0}, {rig_below(9, R, N), R, READ, 0},
            {rig_normal(10, R * WIDE, 1), R * WIDE, READ, 0}};
        const int whole = 1, cut = 2;
        char what[32];
        snprintf(what, sizeof what, "gradient %d in two parts", o);
        rig_same(what, rig_run(rig->tested, call_gradients, &cut, args, TR_COUNT(args), o),
            rig_run(rig->tested, call_gradients, &whole, args, TR_COUNT(args), o), size[o]);
    }
}

static int
free_all(void **state)
{
    (void)state;
    rig_free_all();
    return 0;
}

int
run_invariance_tests(struct rig *rig)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate_setup_teardown(
            a_row_is_the_same_in_any_batch, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(
            a_gradient_is_the_same_however_the_batch_is_cut, NULL, free_all, rig),
    };
    return cmocka_run_group_tests_name("bits", tests, NULL, NULL);
}
