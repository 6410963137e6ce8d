/* Operations on flat buffers: AdamW against its definition in double, sums, checksums. */
#include "kit.h"

/* PyTorch's AdamW, one element, in double. */
struct element {
    double p, m, v;
};

static void
step(struct element *e, double g, const troupe_adamw *o)
{
    double b1 = (double)o->beta1, b2 = (double)o->beta2, lr = (double)o->lr, t = (double)o->step;
    g *= (double)o->grad_scale;
    e->p -= lr * (double)o->weight_decay * e->p;
    e->m = b1 * e->m + (1 - b1) * g;
    e->v = b2 * e->v + (1 - b2) * g * g;
    double m_hat = e->m / (1 - pow(b1, t)), v_hat = e->v / (1 - pow(b2, t));
    e->p -= lr * m_hat / (sqrt(v_hat) + (double)o->eps);
}

static void
adamw_follows_its_definition(void **state)
{
    static const size_t sizes[] = {0, 1, 15, 16, 17, 100};
    const struct kit *kit = *state;
    for (int i = -1; i < kit->paths; ++i) {
        troupe_device *d = i < 0 ? kit->plain : kit->path[i];
        for (size_t z = 0; z < TR_COUNT(sizes); ++z) {
            size_t n = sizes[z];
            float *p = kit_normal(1, n, 1), *m = kit_floats(n + 1), *v = kit_floats(n + 1);
            struct element e[100] = {0};
            m[n] = v[n] = 5; /* must stay */
            for (size_t j = 0; j < n; ++j) {
                e[j].p = (double)p[j];
            }
            for (int64_t t = 1; t <= 40; ++t) {
                const float *g = kit_normal((uint64_t)(100 + t), n, t < 20 ? 1 : 1e-4);
                troupe_adamw o = {.lr = 1e-2f,
                    .beta1 = 0.9f,
                    .beta2 = 0.95f,
                    .eps = 1e-8f,
                    .weight_decay = 0.1f,
                    .grad_scale = 0.7f,
                    .step = t};
                troupe_device_ops(d)->adamw(d, p, m, v, g, &o, n);
                for (size_t j = 0; j < n; ++j) {
                    step(&e[j], (double)g[j], &o);
                }
            }
            for (size_t j = 0; j < n; ++j) {
                if (!(fabs((double)p[j] - e[j].p) < 5e-6 && fabs((double)m[j] - e[j].m) < 1e-7 &&
                        fabs((double)v[j] - e[j].v) < 1e-6 * e[j].v + 1e-12)) {
                    fail_msg("%s: element %zu is %.9g %.9g %.9g, should be %.9g %.9g %.9g",
                        troupe_device_name(d), j, (double)p[j], (double)m[j], (double)v[j], e[j].p,
                        e[j].m, e[j].v);
                }
            }
            assert_true(m[n] == 5 && v[n] == 5);
        }
    }
}

/* The first step of a fresh element moves by lr * sign(g) whatever the size of g, and eps is added
 * to the corrected root: with g = eps the step is half. */
static void
adamw_corrects_its_bias(void **state)
{
    const struct kit *kit = *state;
    for (int i = -1; i < kit->paths; ++i) {
        troupe_device *d = i < 0 ? kit->plain : kit->path[i];
        float p[3] = {1, 1, 1}, m[3] = {0}, v[3] = {0};
        const float g[3] = {1e3f, -1e-3f, 1e-6f};
        troupe_adamw o = {
            .lr = 0.125f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-6f, .grad_scale = 1, .step = 1};
        troupe_device_ops(d)->adamw(d, p, m, v, g, &o, 3);
        assert_true(fabs((double)p[0] - 0.875) < 1e-6);
        assert_true(fabs((double)p[1] - (1 + 0.125 / 1.001)) < 1e-6);
        assert_true(fabs((double)p[2] - (1 - 0.0625)) < 1e-6);
    }
}

static void
run_adamw(troupe_device *d, const void *shape, float *out)
{
    size_t n = *(const size_t *)shape;
    memcpy(out, kit_normal(1, n, 1), n * sizeof *out);
    for (int64_t t = 1; t <= 5; ++t) {
        troupe_adamw o = {.lr = 1e-3f,
            .beta1 = 0.9f,
            .beta2 = 0.999f,
            .eps = 1e-8f,
            .weight_decay = 0.01f,
            .grad_scale = 0.5f,
            .step = t * 1000};
        troupe_device_ops(d)->adamw(
            d, out, out + n, out + 2 * n, kit_normal((uint64_t)t, n, 1), &o, n);
    }
}

static void
adamw_has_the_same_bits_on_all_paths(void **state)
{
    for (size_t n = 0; n < 70; n += 23) {
        kit_check(*state, "adamw", run_adamw, &n, (struct kit_parts){3, {n, n, n}}, 1e-5);
    }
}

static void
square_sum_is_the_sum_of_squares_on_all_paths(void **state)
{
    static const size_t sizes[] = {0, 1, 15, 16, 17, 4095, 4096, 4097, 20000};
    const struct kit *kit = *state;
    for (size_t z = 0; z < TR_COUNT(sizes); ++z) {
        float *x = kit_normal(z, sizes[z], 3);
        double want = 0, first = 0;
        for (size_t i = 0; i < sizes[z]; ++i) {
            want += (double)x[i] * (double)x[i];
        }
        for (int i = -1; i < kit->paths; ++i) {
            troupe_device *d = i < 0 ? kit->plain : kit->path[i];
            double got = troupe_device_ops(d)->square_sum(d, x, sizes[z]);
            if (!(fabs(got - want) <= 1e-13 * want)) {
                fail_msg("%zu elements: %.17g, should be %.17g", sizes[z], got, want);
            }
            first = i == 0 ? got : first;
            assert_true(i < 0 || got == first);
        }
        for (int i = -1; sizes[z] > 0 && i < kit->paths; ++i) {
            troupe_device *d = i < 0 ? kit->plain : kit->path[i];
            x[sizes[z] - 1] = NAN;
            assert_true(isnan(troupe_device_ops(d)->square_sum(d, x, sizes[z])));
            x[sizes[z] - 1] = -INFINITY;
            assert_true(isinf(troupe_device_ops(d)->square_sum(d, x, sizes[z])));
        }
    }
}

static void
addition_adds_each_element_once(void **state)
{
    const struct kit *kit = *state;
    for (size_t n = 0; n < 50; n += 7) {
        const float *x = kit_normal(1, n, 1), *y = kit_normal(2, n, 1);
        for (int i = -1; i < kit->paths; ++i) {
            troupe_device *d = i < 0 ? kit->plain : kit->path[i];
            float *got = kit_normal(2, n, 1), *want = kit_floats(n);
            troupe_device_ops(d)->add(d, got, x, n);
            for (size_t j = 0; j < n; ++j) {
                want[j] = x[j] + y[j];
            }
            kit_same("sum", got, want, n);
        }
    }
}

static void
checksum_is_xxh3_of_the_bytes(void **state)
{
    const struct kit *kit = *state;
    const float *x = kit_normal(1, 1000, 1);
    for (int i = -1; i < kit->paths; ++i) {
        troupe_device *d = i < 0 ? kit->plain : kit->path[i];
        for (size_t n = 0; n <= 1000; n += 125) {
            assert_true(troupe_device_ops(d)->checksum(d, x, n) == tr_xxh3(x, 4 * n, 0));
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_follows_its_definition),
        cmocka_unit_test(adamw_corrects_its_bias),
        cmocka_unit_test(adamw_has_the_same_bits_on_all_paths),
        cmocka_unit_test(square_sum_is_the_sum_of_squares_on_all_paths),
        cmocka_unit_test(addition_adds_each_element_once),
        cmocka_unit_test(checksum_is_xxh3_of_the_bytes),
    };
    return cmocka_run_group_tests(tests, kit_setup, kit_teardown);
}
