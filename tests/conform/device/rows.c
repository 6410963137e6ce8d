/* Operations on rows and on flat buffers against the plain device: odd shapes, one row, none. */
#include "device_kit.h"

static const int rows_list[] = {0, 1, 33, 129};

/* --- embedding --- */

struct rows_shape {
    int R, D, N;
    bool option;
};

static void
call_embed(troupe_device *d, void *const *a, const void *shape)
{
    const struct rows_shape *s = shape;
    troupe_device_ops(d)->embed_forward(d, a[0], a[1], a[2], s->R, s->D);
    troupe_device_ops(d)->embed_backward(d, a[3], a[4], a[2], s->R, s->D);
}

static void
embedding(void **state)
{
    static const int D_list[] = {1, 33, 300};
    for (size_t i = 0; i < TR_COUNT(rows_list) * TR_COUNT(D_list); ++i) {
        if (rig_leaves_out(*state, i)) {
            continue;
        }
        struct rows_shape s = {.R = rows_list[i % 4], .D = D_list[i / 4], .N = 7};
        size_t n = (size_t)(s.R * s.D), table = (size_t)(s.N * s.D);
        const struct arg args[] = {{NULL, n, EXACT, 0}, {rig_normal(1, table, 1), table, READ, 0},
            {rig_below(2, (size_t)s.R, s.N), (size_t)s.R, READ, 0},
            {rig_normal(3, table, 1), table, FLOATS, 1e-5}, {rig_normal(4, n, 1), n, READ, 0}};
        rig_check(*state, "embed", call_embed, &s, args, TR_COUNT(args));
    }
}

/* --- norm --- */

static void
call_norm(troupe_device *d, void *const *a, const void *shape)
{
    const struct rows_shape *s = shape;
    const troupe_ops *ops = troupe_device_ops(d);
    ops->add_rmsnorm_forward(
        d, a[0], a[1], s->N == 0 ? NULL : a[2], s->option ? a[3] : NULL, a[4], 1e-5f, s->R, s->D);
    if (s->N != 0) {
        ops->rmsnorm_backward(d, a[5], a[6], a[7], a[1], a[4], a[2], s->R, s->D);
    }
}

static void
rmsnorm(void **state)
{
    static const int D_list[] = {1, 7, 64, 256, 897};
    for (size_t i = 0; i < TR_COUNT(rows_list) * TR_COUNT(D_list); ++i) {
        if (rig_leaves_out(*state, i)) {
            continue;
        }
        /* N says whether rstd is wanted. */
        struct rows_shape s = {
            .R = rows_list[i % 4], .D = D_list[i / 4], .option = i % 2 == 0, .N = i % 3 != 0};
        size_t R = (size_t)s.R, D = (size_t)s.D, n = R * D;
        const struct arg args[] = {{NULL, n, FLOATS, 1e-5}, {rig_normal(1, n, 3), n, FLOATS, 1e-6},
            {NULL, R, FLOATS, 1e-5}, {rig_normal(2, n, 1), n, READ, 0},
            {rig_normal(3, D, 1), D, READ, 0}, {rig_normal(4, n, 1), n, FLOATS, 1e-5},
            {rig_normal(5, D, 1), D, FLOATS, 1e-5}, {rig_normal(6, n, 1), n, READ, 0}};
        rig_check(*state, "rmsnorm", call_norm, &s, args, TR_COUNT(args));
    }
}

/* --- linear --- */

static void
call_linear(troupe_device *d, void *const *a, const void *shape)
{
    const struct rows_shape *s = shape;
    const troupe_ops *ops = troupe_device_ops(d);
    const bool biased = s->N % 2 == 0;
    troupe_packed_weight *packed = troupe_weight_pack(d, a[1], s->N, s->D);
    assert_non_null(packed);
    ops->linear_forward(d, a[0], a[2], packed, biased ? a[3] : NULL, s->option, s->R);
    ops->linear_backward_input(d, a[4], a[5], a[1], s->option, s->R, s->N, s->D);
    ops->linear_backward_weight(d, a[6], biased ? a[7] : NULL, a[5], a[2], s->R, s->N, s->D);
    troupe_weight_free(d, packed);
}

static void
linear(void **state)
{
    static const int K_list[] = {1, 5, 16, 100, 257};
    static const int N_list[] = {1, 17, 64, 130};
    for (size_t i = 0; i < TR_COUNT(rows_list) * TR_COUNT(K_list) * TR_COUNT(N_list); ++i) {
        if (rig_leaves_out(*state, i)) {
            continue;
        }
        struct rows_shape s = {.R = rows_list[i % 4],
            .D = K_list[i / 4 % TR_COUNT(K_list)],
            .N = N_list[i / 4 / TR_COUNT(K_list)],
            .option = i % 3 == 0};
        size_t R = (size_t)s.R, K = (size_t)s.D, N = (size_t)s.N;
        const struct arg args[] = {{rig_normal(1, R * N, 1), R * N, FLOATS, 1e-5},
            {rig_normal(2, N * K, 1), N * K, READ, 0}, {rig_normal(3, R * K, 1), R * K, READ, 0},
            {rig_normal(4, N, 1), N, READ, 0}, {rig_normal(5, R * K, 1), R * K, FLOATS, 1e-5},
            {rig_normal(6, R * N, 1), R * N, READ, 0},
            {rig_normal(7, N * K, 1), N * K, FLOATS, 1e-5}, {rig_normal(8, N, 1), N, FLOATS, 1e-5}};
        rig_check(*state, "linear", call_linear, &s, args, TR_COUNT(args));
    }
}

/* --- SwiGLU --- */

static void
call_swiglu(troupe_device *d, void *const *a, const void *shape)
{
    const struct rows_shape *s = shape;
    troupe_device_ops(d)->swiglu_forward(d, a[0], a[1], s->R, s->D);
    troupe_device_ops(d)->swiglu_backward(d, a[2], a[3], a[1], s->R, s->D);
}

static void
swiglu(void **state)
{
    static const int F_list[] = {1, 33, 200};
    for (size_t i = 0; i < TR_COUNT(rows_list) * TR_COUNT(F_list); ++i) {
        if (rig_leaves_out(*state, i)) {
            continue;
        }
        struct rows_shape s = {.R = rows_list[i % 4], .D = F_list[i / 4]};
        size_t n = (size_t)(s.R * s.D);
        const struct arg args[] = {{NULL, n, FLOATS, 1e-5},
            {rig_normal(1, 2 * n, 3), 2 * n, READ, 0}, {NULL, 2 * n, FLOATS, 1e-5},
            {rig_normal(2, n, 1), n, READ, 0}};
        rig_check(*state, "swiglu", call_swiglu, &s, args, TR_COUNT(args));
    }
    /* Gates at the ends of the range, then ups. */
    const float gu[] = {-1e30f, -200, -88.8f, -87, 87, 88.8f, 200, 1e30f, 2, 2, 2, 2, 2, 2, 2, 2};
    const struct rows_shape ends = {.R = 1, .D = 8};
    const struct arg args[] = {{NULL, 8, FLOATS, 1e-6}, {gu, 16, READ, 0}, {NULL, 16, FLOATS, 1e-5},
        {rig_normal(2, 8, 1), 8, READ, 0}};
    rig_check(*state, "swiglu at the ends", call_swiglu, &ends, args, TR_COUNT(args));
}

/* --- norm of heads and rotation --- */

struct rope_shape {
    int R, H, KH, E;
    bool q, k, keep;
};

static void
call_rope(troupe_device *d, void *const *a, const void *shape)
{
    const struct rope_shape *s = shape;
    const troupe_ops *ops = troupe_device_ops(d);
    const troupe_rope rope = {.inv_freq = a[6], .scale = 1.25f};
    const float *qw = s->q ? a[3] : NULL, *kw = s->k ? a[4] : NULL;
    ops->qk_norm_rope_forward(d, a[0], s->keep ? a[1] : NULL, s->keep ? a[2] : NULL, qw, kw, 1e-6f,
        a[5], &rope, s->R, s->H, s->KH, s->E);
    if (s->keep) {
        ops->qk_norm_rope_backward(d, a[7], s->q ? a[8] : NULL, s->k ? a[9] : NULL, a[1], a[2], qw,
            kw, a[5], &rope, s->R, s->H, s->KH, s->E);
    }
}

static void
norm_and_rope(void **state)
{
    static const int heads[][2] = {{1, 1}, {6, 2}, {4, 4}, {8, 1}};
    static const int E_list[] = {2, 16, 64, 80, 128};
    for (size_t i = 0; i < TR_COUNT(rows_list) * TR_COUNT(E_list); ++i) {
        if (rig_leaves_out(*state, i)) {
            continue;
        }
        const int *h = heads[(i + i / 4) % TR_COUNT(heads)];
        bool normed = i % 3 != 0;
        struct rope_shape s = {.R = rows_list[i % 4],
            .H = h[0],
            .KH = h[1],
            .E = E_list[i / 4],
            .q = normed,
            .k = normed,
            .keep = i % 5 != 0};
        size_t R = (size_t)s.R, E = (size_t)s.E, n = R * (size_t)(s.H + 2 * s.KH) * E;
        size_t qk = R * (size_t)(s.H + s.KH);
        float *inv = rig_zalloc(E * sizeof *inv);
        for (size_t e = 0; e < E / 2; ++e) {
            inv[e] = (float)pow(10000, -2.0 * (double)e / (double)E);
        }
        const struct arg args[] = {{rig_normal(1, n, 1), n, FLOATS, 1e-5},
            {NULL, qk * E, FLOATS, 1e-6}, {NULL, qk, FLOATS, 1e-5},
            {rig_normal(2, E, 1), E, READ, 0}, {rig_normal(3, E, 1), E, READ, 0},
            {rig_below(4, R, 3000), R, READ, 0}, {inv, E / 2, READ, 0},
            {rig_normal(5, n, 1), n, FLOATS, 1e-5}, {rig_normal(6, E, 1), E, FLOATS, 1e-5},
            {rig_normal(7, E, 1), E, FLOATS, 1e-5}};
        rig_check(*state, "qk_norm_rope", call_rope, &s, args, TR_COUNT(args));
    }
}

/* --- flat buffers --- */

struct flat_shape {
    troupe_adamw step;
    size_t n;
};

static void
call_adamw(troupe_device *d, void *const *a, const void *shape)
{
    const struct flat_shape *s = shape;
    troupe_adamw step = s->step;
    troupe_device_ops(d)->adamw(d, a[0], a[1], a[2], a[3], &step, s->n);
    step.step += 1;
    troupe_device_ops(d)->adamw(d, a[0], a[1], a[2], a[3], &step, s->n);
    troupe_device_ops(d)->add(d, a[4], a[3], s->n);
}

static void
adamw_and_add(void **state)
{
    static const size_t sizes[] = {0, 1, 33, 1000, 70001};
    for (size_t i = 0; i < TR_COUNT(sizes); ++i) {
        size_t n = sizes[i];
        float *v = rig_normal(3, n, 1);
        for (size_t j = 0; j < n; ++j) {
            v[j] = v[j] * v[j];
        }
        const struct flat_shape s = {.n = n,
            .step = {.lr = 1e-2f,
                .beta1 = 0.9f,
                .beta2 = 0.95f,
                .eps = 1e-8f,
                .weight_decay = 0.1f,
                .grad_scale = 0.5f,
                .step = 1 + (int64_t)i * 10}};
        const struct arg args[] = {{rig_normal(1, n, 1), n, FLOATS, 1e-5},
            {rig_normal(2, n, 1), n, FLOATS, 1e-5}, {v, n, FLOATS, 1e-5},
            {rig_normal(4, n, 1), n, READ, 0}, {rig_normal(5, n, 1), n, EXACT, 0}};
        rig_check(*state, "adamw", call_adamw, &s, args, TR_COUNT(args));
    }
}

static void
sums_and_hashes(void **state)
{
    const struct rig *rig = *state;
    static const size_t sizes[] = {0, 1, 15, 4096, 4097, 1000003};
    const troupe_ops *ops = troupe_device_ops(rig->tested);
    const troupe_ops *plain = troupe_device_ops(rig->plain);
    for (size_t i = 0; i < TR_COUNT(sizes); ++i) {
        float *host = rig_normal(i, sizes[i], 2), *x = rig_upload(rig->tested, host, sizes[i]);
        double want = plain->square_sum(rig->plain, host, sizes[i]);
        double got = ops->square_sum(rig->tested, x, sizes[i]);
        assert_true(fabs(got - want) <= 1e-12 * want);
        assert_true(got == ops->square_sum(rig->tested, x, sizes[i]));
        assert_true(
            ops->checksum(rig->tested, x, sizes[i]) == plain->checksum(rig->plain, host, sizes[i]));
        if (sizes[i] > 0) {
            const float nan = NAN;
            size_t at = sizes[i] - 1;
            assert_int_equal(
                troupe_device_upload(rig->tested, x + at, &nan, sizeof nan), TROUPE_OK);
            assert_true(isnan(ops->square_sum(rig->tested, x, sizes[i])));
        }
        troupe_device_free(rig->tested, x);
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
run_row_tests(struct rig *rig)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate_setup_teardown(embedding, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(rmsnorm, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(linear, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(swiglu, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(norm_and_rope, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(adamw_and_add, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(sums_and_hashes, NULL, free_all, rig),
    };
    return cmocka_run_group_tests_name("rows and flat buffers", tests, NULL, NULL);
}
