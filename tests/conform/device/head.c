/* LM head and sampler against the plain device. */
#include "device_kit.h"

struct head_shape {
    int R, D, V, VV;
    float inv_temperature;
    bool entropy, logits;
};

static void
call_head(troupe_device *d, void *const *a, const void *shape)
{
    const struct head_shape *s = shape;
    const troupe_ops *ops = troupe_device_ops(d);
    troupe_packed_weight *packed = troupe_weight_pack(d, a[5], s->V, s->D);
    assert_non_null(packed);
    ops->lm_head_forward(d, a[0], a[1], a[2], s->logits ? a[3] : NULL, a[4], packed, a[6],
        s->inv_temperature, s->VV, s->R);
    ops->lm_head_backward(d, a[7], a[8], a[9], s->entropy ? a[10] : NULL, a[4], a[5], packed, a[2],
        a[1], a[6], s->inv_temperature, s->VV, s->R, s->V, s->D);
    troupe_weight_free(d, packed);
}

static void
lm_head(void **state)
{
    static const int V_list[][2] = {{3, 2}, {33, 30}, {300, 300}, {1500, 1250}};
    static const int D_list[] = {1, 33, 64};
    static const int R_list[] = {0, 1, 33, 129};
    for (size_t i = 0; i < TR_COUNT(V_list) * TR_COUNT(D_list) * TR_COUNT(R_list); ++i) {
        if (rig_leaves_out(*state, i)) {
            continue;
        }
        const int *v = V_list[i / 12];
        struct head_shape s = {.R = R_list[i % 4],
            .D = D_list[i / 4 % 3],
            .V = v[0],
            .VV = v[1],
            .inv_temperature = i % 3 == 0 ? 1.0f : 1.0f / 0.7f,
            .entropy = i % 2 == 0,
            .logits = i % 5 < 2};
        size_t R = (size_t)s.R, D = (size_t)s.D, V = (size_t)s.V;
        const struct arg args[] = {{NULL, R, FLOATS, 1e-5}, {NULL, R, FLOATS, 1e-5},
            {NULL, R, FLOATS, 1e-5}, {NULL, R * V, FLOATS, 1e-5},
            {rig_normal(1, R * D, 1), R * D, READ, 0}, {rig_normal(2, V * D, 0.4), V * D, READ, 0},
            {rig_below(3, R, s.VV), R, READ, 0}, {NULL, R * D, FLOATS, 3e-5},
            {rig_normal(4, V * D, 1), V * D, FLOATS, 3e-5}, {rig_normal(5, R, 1), R, READ, 0},
            {rig_normal(6, R, 1), R, READ, 0}};
        rig_check(*state, "lm_head", call_head, &s, args, TR_COUNT(args));
    }
}

/* --- the sampler --- */

struct draw_shape {
    int R, V, VV;
};

static void
call_sample(troupe_device *d, void *const *a, const void *shape)
{
    const struct draw_shape *s = shape;
    troupe_device_ops(d)->sample(
        d, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], s->VV, s->R, s->V);
}

static const troupe_sampling laws[] = {{.temperature = 0, .top_p = 1},
    {.temperature = 1, .top_p = 1}, {.temperature = 0.6f, .top_p = 1, .top_k = 5},
    {.temperature = 1.3f, .top_p = 0.8f}, {.temperature = 1, .top_p = 0.5f, .top_k = 20},
    {.temperature = 1, .top_p = 1e-6f}, {.temperature = 1, .top_p = 1, .top_k = 1},
    {.temperature = 1e-3f, .top_p = 0.9f}, {.temperature = 2, .top_p = 0.99f, .top_k = 1 << 20}};

/* The device's numbers of R draws from `logits` must be the plain device's. */
static void
check_draws(const struct rig *rig, const char *what, const float *logits, int R, int V, int VV)
{
    const struct draw_shape s = {.R = R, .V = V, .VV = VV};
    size_t rows = (size_t)R;
    troupe_sampling *law = rig_zalloc(rows * sizeof *law);
    double *u = rig_zalloc(rows * sizeof *u);
    for (size_t r = 0; r < rows; ++r) {
        law[r] = laws[r % TR_COUNT(laws)];
        u[r] = r % 17 == 3 ? 0 : r % 17 == 4 ? nextafter(1, 0) : tr_uniform(9, 0, r);
    }
    const struct arg args[] = {{NULL, rows, EXACT, 0}, {NULL, rows, FLOATS, 1e-5},
        {NULL, rows, FLOATS, 1e-5}, {NULL, rows, FLOATS, 1e-5}, {NULL, rows, BYTES, 0},
        {logits, rows * (size_t)V, READ, 0}, {law, rows * sizeof *law / 4, READ, 0},
        {u, rows * 2, READ, 0}};
    rig_check(rig, what, call_sample, &s, args, TR_COUNT(args));
}

static void
sampling(void **state)
{
    static const int V_list[][2] = {{1, 1}, {33, 30}, {700, 700}, {5000, 4900}};
    static const int R_list[] = {0, 1, 33, 129};
    for (size_t i = 0; i < TR_COUNT(V_list) * TR_COUNT(R_list); ++i) {
        if (rig_leaves_out(*state, i)) {
            continue;
        }
        const int *v = V_list[i / 4];
        size_t n = (size_t)R_list[i % 4] * (size_t)v[0];
        check_draws(*state, "sample", rig_normal(i, n, 2), R_list[i % 4], v[0], v[1]);
    }
}

static void
sampling_with_ties(void **state)
{
    enum {
        R = 90,
        V = 400
    };

    float *logits = rig_zalloc(R * V * sizeof *logits);
    const int32_t *level = rig_below(1, R * V, 4);
    for (size_t i = 0; i < R * V; ++i) {
        logits[i] = i / V % 3 == 0 ? 1.5f : 0.5f * (float)level[i];
    }
    check_draws(*state, "sample with ties", logits, R, V, V);
}

static void
sampling_of_hostile_rows(void **state)
{
    enum {
        R = 45,
        V = 300
    };

    float *logits = rig_normal(1, R * V, 1);
    for (size_t r = 0; r < R; ++r) {
        float *row = logits + r * V;
        for (size_t i = 0; i < V; ++i) {
            row[i] = r % 5 == 0 || (r % 5 == 1 && i != 77) ? -INFINITY : row[i];
        }
        if (r % 5 == 2) {
            row[r] = NAN;
        } else if (r % 5 == 3) {
            row[r] = INFINITY;
        } else if (r % 5 == 4) {
            row[r] = 3e38f;
        }
    }
    check_draws(*state, "sample of hostile rows", logits, R, V, V - 10);
}

struct both_shape {
    int R, D, V;
};

static void
call_both(troupe_device *d, void *const *a, const void *shape)
{
    const struct both_shape *s = shape;
    const troupe_ops *ops = troupe_device_ops(d);
    troupe_packed_weight *packed = troupe_weight_pack(d, a[7], s->V, s->D);
    assert_non_null(packed);
    ops->lm_head_forward(d, NULL, NULL, NULL, a[5], a[6], packed, NULL, 1, s->V, s->R);
    ops->sample(d, a[0], a[1], NULL, a[9], a[2], a[5], a[3], a[4], s->V, s->R, s->V);
    ops->lm_head_forward(d, a[8], a[10], NULL, NULL, a[6], packed, a[0], 1 / 0.7f, s->V, s->R);
    troupe_weight_free(d, packed);
}

static void
sampled_log_probs_are_the_heads_to_the_bit(void **state)
{
    const struct rig *rig = *state;

    enum {
        R = 40,
        D = 24,
        V = 1333
    };

    const struct both_shape s = {.R = R, .D = D, .V = V};
    troupe_sampling law[R];
    double u[R];
    for (size_t r = 0; r < R; ++r) {
        law[r] = (troupe_sampling){.temperature = 0.7f, .top_p = r % 2 == 0 ? 1 : 0.9f};
        u[r] = tr_uniform(2, 1, r);
    }
    const struct arg args[] = {{NULL, R, EXACT, 0}, {NULL, R, FLOATS, 1e-5}, {NULL, R, BYTES, 0},
        {law, sizeof law / 4, READ, 0}, {u, 2 * R, READ, 0}, {NULL, R * V, FLOATS, 1e-5},
        {rig_normal(3, R * D, 1), R * D, READ, 0}, {rig_normal(4, V * D, 0.4), V * D, READ, 0},
        {NULL, R, FLOATS, 1e-5}, {NULL, R, FLOATS, 1e-5}, {NULL, R, FLOATS, 1e-5}};
    const float *sampled = rig_run(rig->tested, call_both, &s, args, TR_COUNT(args), 1);
    const float *forced = rig_run(rig->tested, call_both, &s, args, TR_COUNT(args), 8);
    rig_same("log-prob of the sampler", sampled, forced, R);
    rig_same("entropy of the sampler", rig_run(rig->tested, call_both, &s, args, TR_COUNT(args), 9),
        rig_run(rig->tested, call_both, &s, args, TR_COUNT(args), 10), R);
}

static int
free_all(void **state)
{
    (void)state;
    rig_free_all();
    return 0;
}

int
run_head_tests(struct rig *rig)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate_setup_teardown(lm_head, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(sampling, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(sampling_with_ties, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(sampling_of_hostile_rows, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(
            sampled_log_probs_are_the_heads_to_the_bit, NULL, free_all, rig),
    };
    return cmocka_run_group_tests_name("head and sampler", tests, NULL, NULL);
}
