/* Row invariance: the bits of a row do not depend on how many rows stand beside it, nor on which.
 * Every forward operation on R rows is compared with the same rows one at a time, in uneven pieces,
 * and in another order. (Attention has its own tests; so has the sampler, which sees rows alone.)
 * And gradients of parameters do not depend on how a batch is cut. */
#include "kit.h"

enum {
    R = 301,
    D = 48,
    N = 150,
    F = 56,
    H = 4,
    KH = 2,
    E = 12,
    V = 1100,
    VV = 1090
};

/* Inputs of all operations: row r of each belongs to row r. */
struct inputs {
    const float *x, *gu, *qkv, *w, *norm, *head, *bias;
    const int32_t *pos, *target;
    troupe_rope rope;
};

static struct inputs
make_inputs(void)
{
    static float inv_freq[E / 2] = {1, 0.3f, 0.1f, 0.03f, 0.01f, 0.003f};
    return (struct inputs){.x = kit_normal(1, R * D, 1),
        .gu = kit_normal(2, R * 2 * F, 2),
        .qkv = kit_normal(3, R * (H + 2 * KH) * E, 1),
        .w = kit_normal(4, N * D, 1),
        .norm = kit_normal(5, D, 1),
        .head = kit_normal(6, V * D, 0.3),
        .bias = kit_normal(7, N, 1),
        .pos = kit_below(8, R, 300),
        .target = kit_below(9, R, VV),
        .rope = {.inv_freq = inv_freq, .scale = 1}};
}

/* Outputs of one operation, `width` floats a row. */
typedef void op_run(troupe_device *d, const struct inputs *in, float *out, int first, int rows,
    const troupe_packed_weight *w, const troupe_packed_weight *head);

struct op {
    const char *name;
    op_run *run;
    int width;
};

static void
run_norm(troupe_device *d, const struct inputs *in, float *out, int first, int rows,
    const troupe_packed_weight *w, const troupe_packed_weight *head)
{
    (void)w;
    (void)head;
    float *resid = kit_floats((size_t)(rows * D)), *y = kit_floats((size_t)(rows * D));
    float *rstd = kit_floats((size_t)rows);
    troupe_device_ops(d)->add_rmsnorm_forward(
        d, y, resid, rstd, in->x + first * D, in->norm, 1e-6f, rows, D);
    for (int r = 0; r < rows; ++r) {
        memcpy(out + r * (D + 1), y + r * D, D * sizeof *out);
        out[r * (D + 1) + D] = rstd[r];
    }
}

static void
run_linear(troupe_device *d, const struct inputs *in, float *out, int first, int rows,
    const troupe_packed_weight *w, const troupe_packed_weight *head)
{
    (void)head;
    for (int i = 0; i < rows * N; ++i) {
        out[i] = 1;
    }
    troupe_device_ops(d)->linear_forward(d, out, in->x + first * D, w, in->bias, true, rows);
}

static void
run_swiglu(troupe_device *d, const struct inputs *in, float *out, int first, int rows,
    const troupe_packed_weight *w, const troupe_packed_weight *head)
{
    (void)w;
    (void)head;
    troupe_device_ops(d)->swiglu_forward(d, out, in->gu + first * 2 * F, rows, F);
}

static void
run_rope(troupe_device *d, const struct inputs *in, float *out, int first, int rows,
    const troupe_packed_weight *w, const troupe_packed_weight *head)
{
    (void)w;
    (void)head;

    enum {
        WIDTH = (H + 2 * KH) * E
    };

    memcpy(out, in->qkv + first * WIDTH, (size_t)(rows * WIDTH) * sizeof *out);
    troupe_device_ops(d)->qk_norm_rope_forward(d, out, NULL, NULL, in->norm, in->norm + E, 1e-6f,
        in->pos + first, &in->rope, rows, H, KH, E);
}

static void
run_head(troupe_device *d, const struct inputs *in, float *out, int first, int rows,
    const troupe_packed_weight *w, const troupe_packed_weight *head)
{
    (void)w;
    size_t n = (size_t)rows;
    float *numbers = kit_floats(3 * n);
    troupe_device_ops(d)->lm_head_forward(d, numbers, numbers + n, numbers + 2 * n, NULL,
        in->x + first * D, head, in->target + first, 1.25f, VV, rows);
    for (size_t r = 0; r < n; ++r) {
        for (size_t j = 0; j < 3; ++j) {
            out[3 * r + j] = numbers[j * n + r];
        }
    }
}

static const struct op ops[] = {
    {"norm", run_norm, D + 1},
    {"linear", run_linear, N},
    {"swiglu", run_swiglu, F},
    {"rope", run_rope, (H + 2 * KH) * E},
    {"lm head", run_head, 3},
};

static void
rows_do_not_depend_on_how_they_are_batched(void **state)
{
    const struct kit *kit = *state;
    /* Pieces on either side of every tile height and of the LM head's blocks of 256. */
    static const int pieces[] = {1, 1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 16, 17, 28, 29, 33, 99};
    for (int i = 0; i < kit->paths; ++i) {
        troupe_device *d = kit->path[i];
        struct inputs in = make_inputs();
        troupe_packed_weight *w = troupe_weight_pack(d, in.w, N, D);
        troupe_packed_weight *head = troupe_weight_pack(d, in.head, V, D);
        for (size_t o = 0; o < TR_COUNT(ops); ++o) {
            const struct op *op = &ops[o];
            size_t count = (size_t)(R * op->width);
            float *whole = kit_floats(count), *single = kit_floats(count);
            float *pieced = kit_floats(count);
            op->run(d, &in, whole, 0, R, w, head);
            for (int r = 0; r < R; ++r) {
                op->run(d, &in, single + r * op->width, r, 1, w, head);
            }
            int first = 0;
            for (size_t p = 0; p < TR_COUNT(pieces); first += pieces[p++]) {
                op->run(d, &in, pieced + first * op->width, first, pieces[p], w, head);
            }
            assert_int_equal(first, R);
            kit_same(op->name, single, whole, count);
            kit_same(op->name, pieced, whole, count);
        }
        troupe_weight_free(d, w);
        troupe_weight_free(d, head);
        kit_free_all();
    }
}

/* The same rows in another order, and with NaN beside them. */
static void
linear_rows_do_not_depend_on_their_neighbours(void **state)
{
    const struct kit *kit = *state;
    for (int i = 0; i < kit->paths; ++i) {
        troupe_device *d = kit->path[i];
        const troupe_ops *ops_d = troupe_device_ops(d);
        struct inputs in = make_inputs();
        troupe_packed_weight *w = troupe_weight_pack(d, in.w, N, D);
        float *x = kit_floats(R * D), *y = kit_floats(R * N), *whole = kit_floats(R * N);
        ops_d->linear_forward(d, whole, in.x, w, NULL, false, R);
        for (int r = 0; r < R; ++r) {
            int from = (r * 100 + 7) % R;
            for (int k = 0; k < D; ++k) {
                x[r * D + k] = r % 3 == 1 ? NAN : in.x[from * D + k];
            }
        }
        ops_d->linear_forward(d, y, x, w, NULL, false, R);
        for (int r = 0; r < R; ++r) {
            if (r % 3 == 1) {
                assert_true(isnan(y[r * N]));
            } else {
                kit_same("row among others", y + r * N, whole + (r * 100 + 7) % R * N, N);
            }
        }
        troupe_weight_free(d, w);
    }
}

/* Each element of a product is one chain of fmaf over k, from what was there, then the bias. */
static void
linear_is_one_chain_of_fused_multiply_adds(void **state)
{
    const struct kit *kit = *state;
    struct inputs in = make_inputs();
    float *want = kit_floats(R * N);
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) {
            float sum = 1;
            for (int k = 0; k < D; ++k) {
                sum = fmaf(in.x[r * D + k], in.w[n * D + k], sum);
            }
            want[r * N + n] = sum + in.bias[n];
        }
    }
    for (int i = 0; i < kit->paths; ++i) {
        troupe_device *d = kit->path[i];
        troupe_packed_weight *w = troupe_weight_pack(d, in.w, N, D);
        float *got = kit_floats(R * N);
        run_linear(d, &in, got, 0, R, w, NULL);
        kit_same("chain", got, want, R * N);
        troupe_weight_free(d, w);
    }
}

/* --- gradients of parameters --- */

/* Gradients of all parameters from rows first..first + rows - 1, added to what is at `out`. */
enum {
    GRAD_W = N * D,
    GRAD_BIAS = N,
    GRAD_NORM = D,
    GRAD_QK = 2 * E,
    GRAD_HEAD = V * D,
    GRAD_TABLE = VV * D,
    GRAD_ALL = GRAD_W + GRAD_BIAS + GRAD_NORM + GRAD_QK + GRAD_HEAD + GRAD_TABLE,
};

static void
add_gradients(troupe_device *d, const struct inputs *in, float *out, int first, int rows,
    const troupe_packed_weight *head)
{
    const troupe_ops *o = troupe_device_ops(d);

    enum {
        WIDTH = (H + 2 * KH) * E
    };

    const size_t n = (size_t)rows;
    const float *x = in->x + first * D, *dy = kit_normal(20, R * N, 1) + first * N;
    const float *dlogprob = kit_normal(21, R, 1) + first, *dentropy = kit_normal(22, R, 1) + first;
    float *dw = out, *dbias = dw + GRAD_W, *dnorm = dbias + GRAD_BIAS, *dqk = dnorm + GRAD_NORM;
    float *dhead = dqk + GRAD_QK, *dtable = dhead + GRAD_HEAD;
    o->linear_backward_weight(d, dw, dbias, dy, x, rows, N, D);
    float *resid = kit_floats(n * D), *y = kit_floats(n * D), *rstd = kit_floats(n);
    float *dx = kit_floats(n * D);
    o->add_rmsnorm_forward(d, y, resid, rstd, x, in->norm, 1e-6f, rows, D);
    o->rmsnorm_backward(
        d, dx, dnorm, kit_normal(23, R * D, 1) + first * D, resid, in->norm, rstd, rows, D);
    float *qkv = kit_floats(n * WIDTH), *pre = kit_floats(n * WIDTH), *scale = kit_floats(n * 8);
    float *dqkv = kit_floats(n * WIDTH);
    memcpy(qkv, in->qkv + first * WIDTH, n * WIDTH * sizeof *qkv);
    memcpy(dqkv, in->qkv + first * WIDTH, n * WIDTH * sizeof *qkv);
    o->qk_norm_rope_forward(d, qkv, pre, scale, in->norm, in->norm + E, 1e-6f, in->pos + first,
        &in->rope, rows, H, KH, E);
    o->qk_norm_rope_backward(d, dqkv, dqk, dqk + E, pre, scale, in->norm, in->norm + E,
        in->pos + first, &in->rope, rows, H, KH, E);
    float *lp = kit_floats(n), *entropy = kit_floats(n), *lse = kit_floats(n);
    o->lm_head_forward(d, lp, entropy, lse, NULL, x, head, in->target + first, 1.25f, VV, rows);
    o->lm_head_backward(d, dx, dhead, dlogprob, dentropy, x, in->head, head, lse, entropy,
        in->target + first, 1.25f, VV, rows, V, D);
    o->embed_backward(d, dtable, x, in->target + first, rows, D);
}

/* A batch in one, or in pieces that are accumulated: the trainer may cut it as memory allows. */
static void
parameter_gradients_do_not_depend_on_how_the_batch_is_cut(void **state)
{
    const struct kit *kit = *state;
    static const int pieces[] = {1, 2, 14, 3, 100, 17, 64, 100};
    for (int i = 0; i < kit->paths; ++i) {
        troupe_device *d = kit->path[i];
        struct inputs in = make_inputs();
        troupe_packed_weight *head = troupe_weight_pack(d, in.head, V, D);
        float *whole = kit_normal(30, GRAD_ALL, 1), *pieced = kit_normal(30, GRAD_ALL, 1);
        add_gradients(d, &in, whole, 0, R, head);
        int first = 0;
        for (size_t p = 0; p < TR_COUNT(pieces); first += pieces[p++]) {
            add_gradients(d, &in, pieced, first, pieces[p], head);
        }
        assert_int_equal(first, R);
        kit_same("gradients", pieced, whole, GRAD_ALL);
        troupe_weight_free(d, head);
        kit_free_all();
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_do_not_depend_on_how_they_are_batched),
        cmocka_unit_test(linear_rows_do_not_depend_on_their_neighbours),
        cmocka_unit_test(linear_is_one_chain_of_fused_multiply_adds),
        cmocka_unit_test(parameter_gradients_do_not_depend_on_how_the_batch_is_cut),
    };
    return cmocka_run_group_tests(tests, kit_setup, kit_teardown);
}
