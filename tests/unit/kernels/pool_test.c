/* Worker threads: every item is run once, and no bit of any operation depends on how many there
 * are. */
#include "cpu/cpu.h"
#include "cpu/pool.h"
#include "kit.h"

static troupe_device *
open_with(const char *name, int threads)
{
    troupe_device *d = NULL;
    troupe_error err;
    troupe_device_options o = {.size = sizeof o, .threads = threads};
    if (troupe_device_open(name, &o, &d, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    return d;
}

/* --- the pool --- */

struct visits {
    int *of;          /* by item: how often */
    ptrdiff_t *range; /* by item: length of the range it was in */
    ptrdiff_t items;
};

static void
visit(troupe_device *d, const void *context, ptrdiff_t first, ptrdiff_t count)
{
    const struct visits *v = context;
    /* A split inside a range stays on its thread. (No assertions of cmocka's outside its own.) */
    bool alone = d->pool == NULL || count == v->items;
    tr_scratch_begin(d);
    float *x = tr_scratch(d, 1000 * sizeof *x);
    for (ptrdiff_t i = first; i < first + count; ++i) {
        x[i % 1000] = (float)i;
        v->of[i] += alone && x[i % 1000] == (float)i;
        v->range[i] = count;
    }
    tr_scratch_end(d);
}

static void
a_split_runs_each_item_once_in_ranges_no_shorter_than_the_grain(void **state)
{
    (void)state;
    static int of[1000];
    static ptrdiff_t range[1000];
    struct visits v = {.of = of, .range = range};
    for (int threads = 1; threads <= 5; ++threads) {
        troupe_device *d = open_with("cpu", threads);
        for (ptrdiff_t items = 0; items < 1000; items = items * 3 / 2 + 1) {
            for (ptrdiff_t grain = 1; grain < 500; grain = grain * 3 + 1) {
                memset(of, 0, sizeof of);
                v.items = items;
                tr_split(d, items, grain, visit, &v);
                ptrdiff_t parts = TR_MIN(TR_MAX(items / grain, 1), threads);
                for (ptrdiff_t i = 0; i < items; ++i) {
                    assert_int_equal(of[i], 1);
                    assert_true(range[i] >= items / parts && range[i] <= items / parts + 1);
                }
            }
        }
        troupe_device_close(d);
    }
}

static void
too_many_threads_are_refused(void **state)
{
    (void)state;
    troupe_device *d = NULL;
    troupe_error err;
    troupe_device_options o = {.size = sizeof o, .threads = TR_THREADS_MAX + 1};
    assert_int_equal(troupe_device_open("cpu", &o, &d, &err), TROUPE_INVALID);
    assert_non_null(strstr(err.text, "threads"));
    assert_null(d);
}

/* --- operations --- */

/* Large enough that every operation that splits does, by its own grain. */
enum {
    R = 700,
    D = 96,
    F = 160,
    H = 6,
    KH = 3,
    E = 16,
    V = 1500,
    VV = 1490,
    LENGTH = 35
};

enum {
    WIDTH = (H + 2 * KH) * E,
    SEQUENCES = R / LENGTH
};

/* Room for all outputs; `next` hands it out. */
struct outputs {
    float *at;
    size_t used, size;
};

static float *
next(struct outputs *o, size_t count)
{
    float *x = o->at + o->used;
    o->used += count;
    assert_true(o->used <= o->size);
    return x;
}

static void
run_attention(troupe_device *d, struct outputs *o)
{
    const troupe_ops *ops = troupe_device_ops(d);
    const float *qkv = kit_normal(1, R * WIDTH, 1), *dout = kit_normal(2, R * H * E, 1);
    int32_t cu[SEQUENCES + 1], seq[R], pos[R], tables[R];
    for (int s = 0; s <= SEQUENCES; ++s) {
        cu[s] = s * LENGTH;
    }
    for (int r = 0; r < R; ++r) {
        seq[r] = r / LENGTH;
        pos[r] = r % LENGTH;
        tables[r] = r;
    }
    float *out = next(o, R * H * E), *lse = next(o, R * H), *dqkv = next(o, R * WIDTH);
    ops->attention_packed_forward(d, out, lse, qkv, cu, SEQUENCES, 0.25f, H, KH, E);
    ops->attention_packed_backward(d, dqkv, dout, qkv, out, lse, cu, SEQUENCES, 0.25f, H, KH, E);
    troupe_kv_cache cache = {.k = kit_floats(R * KH * E),
        .v = kit_floats(R * KH * E),
        .blocks = R,
        .block_size = 1,
        .KH = KH,
        .E = E};
    troupe_paged_rows rows = {
        .R = R, .seq = seq, .pos = pos, .tables = tables, .table_stride = LENGTH};
    ops->kv_write(d, &cache, 0, qkv, &rows, H);
    ops->attention_paged_forward(d, next(o, R * H * E), qkv, &cache, 0, &rows, 0.25f, H);
}

static void
run_rows(troupe_device *d, struct outputs *o)
{
    const troupe_ops *ops = troupe_device_ops(d);
    const float *x = kit_normal(3, R * D, 1), *w = kit_normal(4, 2 * F * D, 0.2);
    const float *gu_bias = kit_normal(5, 2 * F, 1), *norm = kit_normal(6, D, 1);
    troupe_packed_weight *packed = troupe_weight_pack(d, w, 2 * F, D);
    float *resid = next(o, R * D), *y = next(o, R * D), *rstd = next(o, R);
    ops->add_rmsnorm_forward(d, y, resid, rstd, x, norm, 1e-6f, R, D);
    float *gu = next(o, R * 2 * F), *act = next(o, R * F), *dgu = next(o, R * 2 * F);
    ops->linear_forward(d, gu, y, packed, gu_bias, false, R);
    ops->linear_forward(d, next(o, 9 * 2 * F), y, packed, NULL, false, 9); /* by columns */
    ops->swiglu_forward(d, act, gu, R, F);
    ops->swiglu_backward(d, dgu, kit_normal(7, R * F, 1), gu, R, F);
    ops->linear_backward_input(d, next(o, R * D), dgu, w, false, R, 2 * F, D);
    ops->linear_backward_weight(d, next(o, 2 * F * D), next(o, 2 * F), dgu, y, R, 2 * F, D);
    troupe_weight_free(d, packed);
}

static void
run_head(troupe_device *d, struct outputs *o)
{
    const troupe_ops *ops = troupe_device_ops(d);
    const float *x = kit_normal(8, R * D, 1), *w = kit_normal(9, V * D, 0.2);
    const int32_t *target = kit_below(10, R, VV);
    troupe_packed_weight *packed = troupe_weight_pack(d, w, V, D);
    float *lp = next(o, R), *entropy = next(o, R), *lse = next(o, R), *logits = next(o, R * V);
    ops->lm_head_forward(d, lp, entropy, lse, logits, x, packed, target, 1.1f, VV, R);
    ops->lm_head_backward(d, next(o, R * D), next(o, V * D), kit_normal(11, R, 1),
        kit_normal(12, R, 1), x, w, packed, lse, entropy, target, 1.1f, VV, R, V, D);
    troupe_sampling s[R];
    double u[R];
    int32_t id[R];
    uint8_t bad[R];
    for (int r = 0; r < R; ++r) {
        s[r] = (troupe_sampling){0.7f, r % 2 == 0 ? 1 : 0.9f, r % 3 == 0 ? 40 : 0};
        u[r] = tr_uniform(13, 0, (uint64_t)r);
    }
    ops->sample(d, id, next(o, R), next(o, R), next(o, R), bad, logits, s, u, VV, R, V);
    float *ids = next(o, R);
    for (int r = 0; r < R; ++r) {
        ids[r] = (float)id[r];
    }
    for (int i = 0; i < R * V; ++i) {
        logits[i] = isfinite(logits[i]) ? logits[i] : 0;
    }
    troupe_weight_free(d, packed);
}

static void
run_adamw(troupe_device *d, struct outputs *o)
{
    enum {
        N = 60001
    };

    troupe_adamw step = {.lr = 1e-2f,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .grad_scale = 0.7f,
        .step = 3};
    troupe_device_ops(d)->adamw(
        d, next(o, N), next(o, N), next(o, N), kit_normal(14, N, 1), &step, N);
}

static void
no_bit_depends_on_the_number_of_threads(void **state)
{
    const struct kit *kit = *state;

    enum {
        SIZE = 3500000
    };
    struct outputs one = {.at = kit_floats(SIZE), .size = SIZE};
    troupe_device *d = open_with(troupe_device_name(kit->path[kit->paths - 1]), 1);
    run_attention(d, &one);
    run_rows(d, &one);
    run_head(d, &one);
    run_adamw(d, &one);
    troupe_device_close(d);
    for (int threads = 2; threads <= 7; threads += threads == 3 ? 4 : 1) {
        for (int round = 0; round < 2; ++round) {
            struct outputs many = {.at = kit_floats(SIZE), .size = SIZE};
            d = open_with(troupe_device_name(kit->path[kit->paths - 1]), threads);
            run_attention(d, &many);
            run_rows(d, &many);
            run_head(d, &many);
            run_adamw(d, &many);
            troupe_device_close(d);
            assert_int_equal(many.used, one.used);
            kit_same("threads", many.at, one.at, one.used);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_runs_each_item_once_in_ranges_no_shorter_than_the_grain),
        cmocka_unit_test(too_many_threads_are_refused),
        cmocka_unit_test(no_bit_depends_on_the_number_of_threads),
    };
    return cmocka_run_group_tests(tests, kit_setup, kit_teardown);
}
