/* LM head: log-prob, entropy, logits and gradients against the plain form, and masks of invalid
 * ids. */
#include "kit.h"

struct shape {
    int R, V, VV, D;
    float inv;
    bool entropy; /* has a gradient too */
};

static const struct shape shapes[] = {
    {.R = 0, .V = 16, .VV = 16, .D = 8, .inv = 1},
    {.R = 1, .V = 1, .VV = 1, .D = 8, .inv = 1, .entropy = true},
    {.R = 5, .V = 16, .VV = 16, .D = 64, .inv = 1, .entropy = true},
    {.R = 40, .V = 16, .VV = 13, .D = 64, .inv = 1.25f, .entropy = true},
    {.R = 7, .V = 33, .VV = 32, .D = 20, .inv = 0.5f},
    {.R = 3, .V = 1024, .VV = 1024, .D = 16, .inv = 1, .entropy = true},
    {.R = 3, .V = 1025, .VV = 1025, .D = 16, .inv = 2, .entropy = true},
    {.R = 2, .V = 3000, .VV = 2900, .D = 30, .inv = 1, .entropy = true},
    {.R = 300, .V = 70, .VV = 61, .D = 24, .inv = 1, .entropy = true},
    {.R = 270, .V = 1100, .VV = 1090, .D = 10, .inv = 1.5f, .entropy = true},
};

static void
run_head(troupe_device *d, const void *shape, float *out)
{
    const struct shape *s = shape;
    const troupe_ops *ops = troupe_device_ops(d);
    size_t R = (size_t)s->R, V = (size_t)s->V, D = (size_t)s->D;
    const float *x = kit_normal(1, R * D, 1), *w = kit_normal(2, V * D, 2 / sqrt((double)D));
    const float *dlogprob = kit_normal(3, R, 1), *dentropy = kit_normal(4, R, 1);
    const int32_t *target = kit_below(5, R, s->VV);
    float *entropy = out + R, *lse = entropy + R, *dx = lse + R, *dw = dx + R * D;
    for (size_t i = 0; i < R * D; ++i) {
        dx[i] = 9; /* must be overwritten */
    }
    troupe_packed_weight *packed = troupe_weight_pack(d, w, s->V, s->D);
    ops->lm_head_forward(d, out, entropy, lse, NULL, x, packed, target, s->inv, s->VV, s->R);
    memcpy(dw, kit_normal(6, V * D, 1), V * D * sizeof *dw);
    ops->lm_head_backward(d, dx, dw, dlogprob, s->entropy ? dentropy : NULL, x, w, packed, lse,
        s->entropy ? entropy : NULL, target, s->inv, s->VV, s->R, s->V, s->D);
    troupe_weight_free(d, packed);
}

static void
log_probs_entropies_and_gradients_match_the_plain_form(void **state)
{
    for (size_t i = 0; i < TR_COUNT(shapes); ++i) {
        const struct shape *s = &shapes[i];
        size_t R = (size_t)s->R, V = (size_t)s->V, D = (size_t)s->D;
        struct kit_parts parts = {5, {R, R, R, R * D, V * D}};
        kit_check(*state, "lm head", run_head, s, parts, 5e-5);
        kit_free_all();
    }
}

/* Rows of ids that do not exist get no gradient. */
static void
invalid_ids_have_no_gradient(void **state)
{
    const struct kit *kit = *state;

    enum {
        R = 4,
        V = 20,
        VV = 17,
        D = 8
    };

    const float *x = kit_normal(1, R * D, 1), *w = kit_normal(2, V * D, 1);
    const int32_t *target = kit_below(3, R, VV);
    for (int i = -1; i < kit->paths; ++i) {
        troupe_device *d = i < 0 ? kit->plain : kit->path[i];
        const troupe_ops *ops = troupe_device_ops(d);
        float logprob[R], entropy[R], lse[R], dx[R * D], dw[V * D] = {0};
        troupe_packed_weight *packed = troupe_weight_pack(d, w, V, D);
        ops->lm_head_forward(d, logprob, entropy, lse, NULL, x, packed, target, 1, VV, R);
        ops->lm_head_backward(d, dx, dw, kit_normal(4, R, 1), kit_normal(5, R, 1), x, w, packed,
            lse, entropy, target, 1, VV, R, V, D);
        float zero[(V - VV) * D] = {0};
        kit_same("gradient of invalid ids", dw + VV * D, zero, (V - VV) * D);
        assert_true(dw[(VV - 1) * D] != 0);
        troupe_weight_free(d, packed);
    }
}

static void
logits_are_written_when_asked_and_change_nothing(void **state)
{
    const struct kit *kit = *state;
    for (int i = 0; i < kit->paths; ++i) {
        for (size_t j = 0; j < TR_COUNT(shapes); ++j) {
            const struct shape *s = &shapes[j];
            troupe_device *d = kit->path[i];
            const troupe_ops *ops = troupe_device_ops(d);
            size_t R = (size_t)s->R, V = (size_t)s->V, D = (size_t)s->D;
            const float *x = kit_normal(1, R * D, 1), *w = kit_normal(2, V * D, 1);
            const int32_t *target = kit_below(5, R, s->VV);
            float *a = kit_floats(3 * R), *b = kit_floats(3 * R), *linear = kit_floats(R * V);
            float *both = kit_floats(R * V), *alone = kit_floats(R * V);
            troupe_packed_weight *p = troupe_weight_pack(d, w, s->V, s->D);
            ops->lm_head_forward(d, a, a + R, a + 2 * R, NULL, x, p, target, s->inv, s->VV, s->R);
            ops->lm_head_forward(d, b, b + R, b + 2 * R, both, x, p, target, s->inv, s->VV, s->R);
            ops->lm_head_forward(d, NULL, NULL, NULL, alone, x, p, NULL, s->inv, s->VV, s->R);
            ops->linear_forward(d, linear, x, p, NULL, false, s->R);
            for (size_t k = 0; k < R * V; ++k) {
                linear[k] = k % V < (size_t)s->VV ? linear[k] : -INFINITY;
            }
            kit_same("numbers with and without logits", b, a, 3 * R);
            kit_same("logits with log-probs", both, linear, R * V);
            kit_same("logits alone", alone, linear, R * V);
            troupe_weight_free(d, p);
            kit_free_all();
        }
    }
}

/* A peaked row: the log-prob of the likely token is near 0, where max + log(sum) would cancel. */
static void
log_prob_of_a_near_certain_token_is_precise(void **state)
{
    const struct kit *kit = *state;

    enum {
        V = 16
    };

    float w[V] = {0};
    w[3] = 1; /* logits: 0 but 12 at id 3, with x = 12 */
    const float x[1] = {12};
    const int32_t target[1] = {3};
    const double want = -log1p(15 * exp(-12.0));
    for (int i = 0; i < kit->paths; ++i) {
        float logprob[1];
        troupe_device *d = kit->path[i];
        troupe_packed_weight *p = troupe_weight_pack(d, w, V, 1);
        troupe_device_ops(d)->lm_head_forward(d, logprob, NULL, NULL, NULL, x, p, target, 1, V, 1);
        if (!(fabs((double)logprob[0] - want) < 1e-7 * 12)) {
            fail_msg("log-prob %.9g, should be %.9g", (double)logprob[0], want);
        }
        /* Within the float error of a sum near 1, not of numbers near 12. */
        assert_true(fabs((double)logprob[0] - want) < 1.3e-7);
        troupe_weight_free(d, p);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_probs_entropies_and_gradients_match_the_plain_form),
        cmocka_unit_test(invalid_ids_have_no_gradient),
        cmocka_unit_test(logits_are_written_when_asked_and_change_nothing),
        cmocka_unit_test(log_prob_of_a_near_certain_token_is_precise),
    };
    return cmocka_run_group_tests(tests, kit_setup, kit_teardown);
}
