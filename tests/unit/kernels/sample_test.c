/* The sampler: exact supports, the distribution it draws from, log-probs to the bit, hostile rows.
 * Every test runs on the plain device too, unless it compares bits with the LM head of a path. */
#include "kit.h"

#include <float.h>

/* What one row gives. */
struct drawn {
    int32_t id;
    float logprob, law, entropy;
    uint8_t bad;
};

static struct drawn
draw(troupe_device *d, const float *logits, troupe_sampling s, double u, int VV, int V)
{
    struct drawn r = {0};
    troupe_device_ops(d)->sample(
        d, &r.id, &r.logprob, &r.law, &r.entropy, &r.bad, logits, &s, &u, VV, 1, V);
    return r;
}

/* Device i of the kit, the plain one last; NULL at the end. */
static troupe_device *
device_at(const struct kit *kit, int i)
{
    return i < kit->paths ? kit->path[i] : i == kit->paths ? kit->plain : NULL;
}

/* --- supports --- */

/* The ids that some u draws, as a bit set: u runs over a fine grid with both ends. */
static uint64_t
support(troupe_device *d, const float *logits, troupe_sampling s, int V)
{
    uint64_t ids = 0;
    for (int i = 0; i <= 2000; ++i) {
        struct drawn r = draw(d, logits, s, i < 2000 ? i / 2000.0 : nextafter(1, 0), V, V);
        assert_int_equal(r.bad, 0);
        assert_in_range(r.id, 0, V - 1);
        ids |= (uint64_t)1 << r.id;
    }
    return ids;
}

struct support_case {
    const char *what;
    float p[6];
    int V;
    troupe_sampling sampling;
    uint64_t ids;
};

static const struct support_case supports[] = {
    {"top-p .8 of .4 .3 .2 .1 needs the third", {.4f, .3f, .2f, .1f}, 4, {1, .8f, 0}, 0x7},
    {"the same shuffled", {.1f, .3f, .4f, .2f}, 4, {1, .8f, 0}, 0xe},
    {"top-p just below .7 keeps two", {.4f, .3f, .2f, .1f}, 4, {1, .699f, 0}, 0x3},
    {"top-p just above .7 keeps three", {.4f, .3f, .2f, .1f}, 4, {1, .701f, 0}, 0x7},
    {"top-p tiny keeps one", {.1f, .3f, .4f, .2f}, 4, {1, 1e-6f, 0}, 0x4},
    {"top-p 0 keeps one", {.1f, .3f, .4f, .2f}, 4, {1, 0, 0}, 0x4},
    {"negative top-p keeps one", {.25f, .25f, .25f, .25f}, 4, {1, -5, 0}, 0x1},
    {"top-p 1 keeps all", {.1f, .3f, .4f, .2f}, 4, {1, 1, 0}, 0xf},
    {"top-p above 1 keeps all", {.1f, .3f, .4f, .2f}, 4, {1, 1.5f, 0}, 0xf},
    {"top-k 1", {.1f, .3f, .4f, .2f}, 4, {1, 1, 1}, 0x4},
    {"top-k 2", {.1f, .3f, .4f, .2f}, 4, {1, 1, 2}, 0x6},
    {"top-k of all", {.1f, .3f, .4f, .2f}, 4, {1, 1, 4}, 0xf},
    {"top-k beyond all", {.1f, .3f, .4f, .2f}, 4, {1, 1, 400}, 0xf},
    {"ties at top-k go to the lowest ids", {.2f, .2f, .2f, .2f, .2f}, 5, {1, 1, 3}, 0x7},
    {"ties at the edge of top-k", {.1f, .3f, .1f, .4f, .1f}, 5, {1, 1, 3}, 0xb},
    {"ties at top-p go to the lowest ids", {.25f, .25f, .25f, .25f}, 4, {1, .51f, 0}, 0x7},
    {"ties at the edge of top-p", {.15f, .4f, .15f, .15f, .15f}, 5, {1, .6f, 0}, 0x7},
    {"top-p is of what top-k left", {.4f, .3f, .2f, .1f}, 4, {1, .5f, 2}, 0x1},
    {"top-p is of what top-k left, more", {.4f, .3f, .2f, .1f}, 4, {1, .6f, 2}, 0x3},
    {"temperature comes first", {.4f, .3f, .2f, .1f}, 4, {.25f, .71f, 0}, 0x1},
    {"temperature comes first, hot", {.4f, .3f, .2f, .1f}, 4, {4, .6f, 0}, 0x7},
    {"one id", {1}, 1, {1, .5f, 1}, 0x1},
};

static void
truncation_keeps_exactly_the_ids_of_its_definition(void **state)
{
    for (int i = 0; device_at(*state, i) != NULL; ++i) {
        troupe_device *d = device_at(*state, i);
        for (size_t c = 0; c < TR_COUNT(supports); ++c) {
            float logits[6];
            for (int j = 0; j < 6; ++j) {
                logits[j] = logf(supports[c].p[j]) + 3;
            }
            uint64_t ids = support(d, logits, supports[c].sampling, supports[c].V);
            if (ids != supports[c].ids) {
                fail_msg("%s on %s: ids 0x%llx, should be 0x%llx", supports[c].what,
                    troupe_device_name(d), (unsigned long long)ids,
                    (unsigned long long)supports[c].ids);
            }
        }
    }
}

/* --- the law --- */

/* The definition, in double: weights of the kept ids, 0 for the others. */
struct entry {
    double w;
    float logit;
    int id;
};

static int
by_rank(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->logit != y->logit ? (x->logit > y->logit ? -1 : 1) : x->id - y->id;
}

static void
law_of(double *kept, const float *logits, troupe_sampling s, int V)
{
    struct entry *e = calloc((size_t)V, sizeof *e);
    double max = -HUGE_VAL, total = 0, mass = 0;
    for (int i = 0; i < V; ++i) {
        max = fmax(max, (double)logits[i]);
        kept[i] = 0;
    }
    for (int i = 0; i < V; ++i) {
        double w = exp(((double)logits[i] - max) / (double)s.temperature);
        e[i] = (struct entry){.w = w, .logit = logits[i], .id = i};
    }
    qsort(e, (size_t)V, sizeof *e, by_rank);
    int k = s.top_k > 0 && s.top_k < V ? s.top_k : V;
    for (int i = 0; i < k; ++i) {
        total += e[i].w;
    }
    for (int i = 0; i < k && (i == 0 || mass < (double)s.top_p * total || s.top_p >= 1); ++i) {
        mass += e[i].w;
        kept[e[i].id] = e[i].w;
    }
    for (int i = 0; i < V; ++i) {
        kept[i] /= mass;
    }
    free(e);
}

/* Random rows, half of them with many ties, against the definition: the drawn id is kept, u falls
 * into its interval, and its two log-probs are right. */
static void
draws_invert_the_distribution_function_of_the_definition(void **state)
{
    enum {
        ROWS = 400,
        V_MAX = 5000
    };

    static const int V_list[] = {1, 3, 16, 100, 1024, 1030, V_MAX};
    static double kept[V_MAX], whole[V_MAX];
    for (int r = 0; r < ROWS; ++r) {
        uint64_t key = 1000 + (uint64_t)r;
        int V = V_list[r % (int)TR_COUNT(V_list)];
        float *logits = kit_normal(key, (size_t)V, 2);
        for (int i = 0; r % 2 == 0 && i < V; ++i) {
            logits[i] = roundf(logits[i]);
        }
        troupe_sampling s = {.temperature = (float)(0.3 + tr_uniform(key, 1, 0)),
            .top_p = r % 3 == 0 ? 1 : (float)tr_uniform(key, 1, 1),
            .top_k = r % 4 < 2 ? 0 : 1 + (int)tr_below(key, 2, (uint64_t)V)};
        double u = tr_uniform(key, 1, 2);
        law_of(kept, logits, s, V);
        law_of(whole, logits, (troupe_sampling){s.temperature, 1, 0}, V);
        for (int i = 0; device_at(*state, i) != NULL; ++i) {
            struct drawn got = draw(device_at(*state, i), logits, s, u, V, V);
            double before = 0;
            for (int j = 0; j < got.id; ++j) {
                before += kept[j];
            }
            if (!(kept[got.id] > 0 && before <= u + 1e-6 && u <= before + kept[got.id] + 1e-6)) {
                fail_msg("row %d on %s: id %d has [%.9g, %.9g], u is %.9g", r,
                    troupe_device_name(device_at(*state, i)), got.id, before, before + kept[got.id],
                    u);
            }
            if (!(fabs((double)got.logprob - log(whole[got.id])) < 3e-6 &&
                    fabs((double)got.law - log(kept[got.id])) < 3e-6)) {
                fail_msg("row %d: log-probs %.9g %.9g, should be %.9g %.9g", r, (double)got.logprob,
                    (double)got.law, log(whole[got.id]), log(kept[got.id]));
            }
        }
        kit_free_all();
    }
}

/* Pearson's statistic over 100,000 draws with uniform u stays below the 1 - 1e-6 quantile. */
static void
draws_follow_the_truncated_law(void **state)
{
    enum {
        DRAWS = 100000,
        V = 24
    };

    const float *logits = kit_normal(5, V, 1);
    const troupe_sampling s = {.temperature = 0.8f, .top_p = 0.9f, .top_k = 18};
    double kept[V];
    law_of(kept, logits, s, V);
    const struct kit *kit = *state;
    troupe_device *d = kit->path[kit->paths - 1];
    int counts[V] = {0}, cells = 0;
    for (int i = 0; i < DRAWS; ++i) {
        ++counts[draw(d, logits, s, tr_uniform(99, 0, (uint64_t)i), V, V).id];
    }
    double statistic = 0;
    for (int i = 0; i < V; ++i) {
        if (kept[i] > 0) {
            double expected = kept[i] * DRAWS;
            statistic += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
            ++cells;
        } else {
            assert_int_equal(counts[i], 0);
        }
    }
    /* Wilson and Hilferty's approximation of the quantile of chi-square with cells - 1 degrees. */
    double n = cells - 1, q = n * pow(1 - 2 / (9 * n) + 4.753 * sqrt(2 / (9 * n)), 3);
    assert_true(cells > 5);
    if (!(statistic < q)) {
        fail_msg("chi-square %.3f with %d cells, limit %.3f", statistic, cells, q);
    }
}

/* --- bits --- */

static void
log_prob_is_the_lm_heads_to_the_bit_at_any_temperature(void **state)
{
    static const float temperatures[] = {0, 1e-30f, 0.01f, 0.3f, 0.6f, 0.7f, 1, 1.3f, 10, 1e20f};
    static const int V_list[] = {1, 16, 33, 1024, 1025, 4100};
    const struct kit *kit = *state;

    enum {
        R = 9,
        D = 12
    };

    for (int i = 0; device_at(kit, i) != NULL; ++i) {
        troupe_device *d = device_at(kit, i);
        const troupe_ops *ops = troupe_device_ops(d);
        for (size_t v = 0; v < TR_COUNT(V_list); ++v) {
            int V = V_list[v], VV = V > 20 ? V - 3 : V;
            const float *x = kit_normal(1, R * D, 1), *w = kit_normal(2, (size_t)(V * D), 1);
            float *logits = kit_floats((size_t)(R * V));
            troupe_packed_weight *p = troupe_weight_pack(d, w, V, D);
            for (size_t t = 0; t < TR_COUNT(temperatures); ++t) {
                troupe_sampling s[R];
                double u[R];
                float got[R], law[R], entropy[R], want[R], want_entropy[R];
                int32_t id[R];
                uint8_t bad[R];
                for (int r = 0; r < R; ++r) {
                    s[r] = (troupe_sampling){temperatures[t], 1, 0};
                    u[r] = tr_uniform(7, t, (uint64_t)r);
                }
                float inv = temperatures[t] > 0 ? 1.0f / temperatures[t] : 1;
                ops->lm_head_forward(d, NULL, NULL, NULL, logits, x, p, NULL, 1, VV, R);
                ops->sample(d, id, got, law, entropy, bad, logits, s, u, VV, R, V);
                ops->lm_head_forward(d, want, want_entropy, NULL, NULL, x, p, id, inv, VV, R);
                kit_same("sampled log-prob against teacher forcing", got, want, R);
                kit_same("entropy", entropy, want_entropy, R);
                kit_same("the law of the whole row", law, t == 0 ? (float[R]){0} : got, R);
            }
            troupe_weight_free(d, p);
            kit_free_all();
        }
    }
}

static void
run_sample(troupe_device *d, const void *shape, float *out)
{
    const int V = *(const int *)shape;

    enum {
        R = 40
    };

    const float *logits = kit_normal(3, (size_t)(R * V), 3);
    troupe_sampling s[R];
    double u[R];
    int32_t id[R];
    uint8_t bad[R];
    for (int r = 0; r < R; ++r) {
        s[r] = (troupe_sampling){.temperature = (float)(r % 5) * 0.4f,
            .top_p = r % 3 == 0 ? 1 : 0.8f,
            .top_k = r % 4 == 0 ? 7 : 0};
        u[r] = tr_uniform(4, 0, (uint64_t)r);
    }
    troupe_device_ops(d)->sample(
        d, id, out + R, out + 2 * R, out + 3 * R, bad, logits, s, u, V, R, V);
    for (int r = 0; r < R; ++r) {
        out[r] = (float)id[r];
    }
}

static void
all_paths_draw_the_same(void **state)
{
    static const int V_list[] = {1, 2, 17, 1024, 1500, 3000};
    for (size_t i = 0; i < TR_COUNT(V_list); ++i) {
        struct kit_parts parts = {4, {40, 40, 40, 40}};
        kit_check(*state, "sample", run_sample, &V_list[i], parts, 1e-5);
    }
}

/* --- hostile rows --- */

static void
rows_without_a_law_are_flagged_and_no_others(void **state)
{
    enum {
        R = 8,
        V = 1030
    };

    for (int i = 0; device_at(*state, i) != NULL; ++i) {
        troupe_device *d = device_at(*state, i);
        float *logits = kit_normal(1, R * V, 1);
        for (int j = 0; j < V; ++j) {
            logits[3 * V + j] = -INFINITY;
            logits[4 * V + j] = -INFINITY;
            logits[7 * V + j] = j < 1024 ? -INFINITY : 1;
        }
        logits[1 * V + 1029] = NAN; /* in the last, short chunk */
        logits[2 * V + 500] = INFINITY;
        logits[4 * V + 3] = NAN; /* among nothing but -inf */
        logits[6 * V + 0] = NAN;
        logits[7 * V + 3] = NAN; /* in a chunk of -inf, before one with a law */
        static const uint8_t want[R] = {0, 1, 1, 1, 1, 0, 1, 1};
        for (int greedy = 0; greedy < 2; ++greedy) {
            troupe_sampling s[R];
            double u[R];
            int32_t id[R];
            uint8_t bad[R];
            float logprob[R];
            for (int r = 0; r < R; ++r) {
                s[r] = (troupe_sampling){(float)(1 - greedy), 0.9f, 50};
                u[r] = 0.5;
            }
            troupe_device_ops(d)->sample(d, id, logprob, NULL, NULL, bad, logits, s, u, V, R, V);
            for (int r = 0; r < R; ++r) {
                assert_int_equal(bad[r], want[r]);
                assert_true(want[r] != 0 ? id[r] == -1 : id[r] >= 0);
                assert_true(want[r] != 0 ? logprob[r] == 0 : logprob[r] < 0);
            }
        }
    }
}

static void
ids_beyond_the_valid_ones_and_minus_infinity_are_never_drawn(void **state)
{
    enum {
        V = 40,
        VV = 21
    };

    for (int i = 0; device_at(*state, i) != NULL; ++i) {
        troupe_device *d = device_at(*state, i);
        float *logits = kit_normal(1, V, 1);
        for (int j = VV; j < V; ++j) {
            logits[j] = j % 2 == 0 ? NAN : 1e30f;
        }
        logits[0] = logits[20] = logits[7] = -INFINITY;
        for (int k = 0; k <= 1000; ++k) {
            double u = k < 1000 ? k / 1000.0 : nextafter(1, 0);
            troupe_sampling s = {1, k % 2 == 0 ? 1 : 0.9999f, k % 3 == 0 ? 20 : 0};
            struct drawn r = draw(d, logits, s, u, VV, V);
            assert_int_equal(r.bad, 0);
            assert_in_range(r.id, 1, VV - 2);
            assert_int_not_equal(r.id, 7);
        }
    }
}

/* The intervals are closed below and open above: equal weights have exact ends. */
static void
a_draw_on_the_edge_of_two_intervals_takes_the_second(void **state)
{
    const float logits[] = {2, 2, 2, 2};
    for (int i = 0; device_at(*state, i) != NULL; ++i) {
        for (int k = 0; k < 4; ++k) {
            struct drawn r =
                draw(device_at(*state, i), logits, (troupe_sampling){1, 1, 0}, k * 0.25, 4, 4);
            assert_int_equal(r.id, k);
            r = draw(device_at(*state, i), logits, (troupe_sampling){1, 1, 0},
                nextafter((k + 1) * 0.25, 0), 4, 4);
            assert_int_equal(r.id, k);
        }
    }
}

/* With the largest u, rounding may let no running sum exceed it. */
static void
the_largest_u_draws_an_id_that_has_a_weight(void **state)
{
    enum {
        V = 300
    };

    for (uint64_t row = 0; row < 200; ++row) {
        float *logits = kit_normal(row, V, 1);
        logits[V - 1] = logits[V - 2] = logits[V - 40] = -INFINITY;
        for (int i = 0; device_at(*state, i) != NULL; ++i) {
            troupe_sampling s = {1, row % 2 == 0 ? 1 : 0.999f, 0};
            struct drawn r = draw(device_at(*state, i), logits, s, nextafter(1, 0), V, V);
            assert_in_range(r.id, 0, V - 3);
            assert_true(isfinite(r.law));
        }
        kit_free_all();
    }
}

static void
greedy_takes_the_lowest_id_of_the_largest_logit(void **state)
{
    const float logits[] = {1, 3, -2, 3, 3, 0};
    const double want = 3 - log(3 * exp(3) + exp(1) + exp(-2) + 1);
    for (int i = 0; device_at(*state, i) != NULL; ++i) {
        for (double u = 0; u < 1; u += 0.3) {
            struct drawn r =
                draw(device_at(*state, i), logits, (troupe_sampling){0, .5f, 1}, u, 6, 6);
            assert_int_equal(r.id, 1);
            assert_true(fabs((double)r.logprob - want) < 1e-6);
            assert_true(r.law == 0);
        }
    }
}

static void
tiny_temperatures_are_like_greedy_and_never_nan(void **state)
{
    static const float tiny[] = {1e-6f, 1e-20f, FLT_MIN, 1e-40f, 0x1p-149f};
    const float logits[] = {1, 3, -2, 3, 2.9999f, -INFINITY, -1e30f, 0};
    for (int i = 0; device_at(*state, i) != NULL; ++i) {
        for (size_t t = 0; t < TR_COUNT(tiny); ++t) {
            troupe_sampling s = {tiny[t], t % 2 == 0 ? 1 : 0.9f, 0};
            struct drawn low = draw(device_at(*state, i), logits, s, 0.1, 8, 8);
            struct drawn high = draw(device_at(*state, i), logits, s, 0.9, 8, 8);
            assert_int_equal(low.id, 1);
            assert_int_equal(high.id, 3);
            assert_int_equal(low.bad + high.bad, 0);
            assert_true(fabs((double)low.logprob + log(2)) < 1e-6);
            assert_true(fabs((double)low.entropy - log(2)) < 1e-6);
            assert_true(fabs((double)high.law + log(2)) < 1e-6);
        }
    }
}

static void
zero_rows_are_no_rows(void **state)
{
    for (int i = 0; device_at(*state, i) != NULL; ++i) {
        troupe_device *d = device_at(*state, i);
        troupe_device_ops(d)->sample(d, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 5, 0, 5);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(truncation_keeps_exactly_the_ids_of_its_definition),
        cmocka_unit_test(draws_invert_the_distribution_function_of_the_definition),
        cmocka_unit_test(draws_follow_the_truncated_law),
        cmocka_unit_test(log_prob_is_the_lm_heads_to_the_bit_at_any_temperature),
        cmocka_unit_test(all_paths_draw_the_same),
        cmocka_unit_test(rows_without_a_law_are_flagged_and_no_others),
        cmocka_unit_test(ids_beyond_the_valid_ones_and_minus_infinity_are_never_drawn),
        cmocka_unit_test(a_draw_on_the_edge_of_two_intervals_takes_the_second),
        cmocka_unit_test(the_largest_u_draws_an_id_that_has_a_weight),
        cmocka_unit_test(greedy_takes_the_lowest_id_of_the_largest_logit),
        cmocka_unit_test(tiny_temperatures_are_like_greedy_and_never_nan),
        cmocka_unit_test(zero_rows_are_no_rows),
    };
    return cmocka_run_group_tests(tests, kit_setup, kit_teardown);
}
