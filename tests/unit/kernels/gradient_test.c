/* Every gradient against central differences of the forward pass, written once more in double. The
 * loss is sum(c * outputs) with random c, so one run checks a whole Jacobian against the chain
 * rule. */
#include "kit.h"

enum {
    MAX = 4096
};

/* Copies floats to doubles. */
static void
widen(double *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        to[i] = (double)from[i];
    }
}

static double
weighted(const float *c, const double *y, int n)
{
    double sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += (double)c[i] * y[i];
    }
    return sum;
}

/* --- RMSNorm: x[R, D], then w[D] --- */

enum {
    NORM_R = 3,
    NORM_D = 19
};

static void
norm_forward(double *y, const double *x, const double *w, int n, double eps)
{
    double sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += x[i] * x[i];
    }
    for (int i = 0; i < n; ++i) {
        y[i] = x[i] / sqrt(sum / n + eps) * w[i];
    }
}

static double
norm_loss(const double *in, const void *c)
{
    double y[NORM_R * NORM_D];
    for (int r = 0; r < NORM_R; ++r) {
        norm_forward(y + r * NORM_D, in + r * NORM_D, in + NORM_R * NORM_D, NORM_D, 0.01);
    }
    return weighted(c, y, NORM_R * NORM_D);
}

static void
gradient_of_rmsnorm(void **state)
{
    enum {
        R = NORM_R,
        D = NORM_D,
        N = R * D
    };
    const struct kit *kit = *state;
    const float *x = kit_normal(1, N, 2), *w = kit_normal(2, D, 1), *c = kit_normal(3, N, 1);
    double in[N + D], want[N + D];
    widen(in, x, N);
    widen(in + N, w, D);
    kit_gradient(want, norm_loss, in, N + D, c);
    for (int i = -1; i < kit->paths; ++i) {
        troupe_device *d = i < 0 ? kit->plain : kit->path[i];
        float y[N], resid[N], rstd[R], dx[N] = {0}, dw[D] = {0};
        memcpy(resid, x, sizeof resid);
        troupe_device_ops(d)->add_rmsnorm_forward(d, y, resid, rstd, NULL, w, 0.01f, R, D);
        troupe_device_ops(d)->rmsnorm_backward(d, dx, dw, c, resid, w, rstd, R, D);
        kit_close_to_double("dx", dx, want, N, 1e-5);
        kit_close_to_double("dw", dw, want + N, D, 1e-5);
    }
}

/* --- linear: x[R, K], w[N, K], bias[N] --- */

enum {
    LIN_R = 5,
    LIN_K = 7,
    LIN_N = 18
};

static double
linear_loss(const double *in, const void *c)
{
    const double *w = in + LIN_R * LIN_K, *bias = w + LIN_N * LIN_K;
    double y[LIN_R * LIN_N];
    for (int i = 0; i < LIN_R * LIN_N; ++i) {
        y[i] = bias[i % LIN_N];
        for (int k = 0; k < LIN_K; ++k) {
            y[i] += in[i / LIN_N * LIN_K + k] * w[i % LIN_N * LIN_K + k];
        }
    }
    return weighted(c, y, LIN_R * LIN_N);
}

static void
gradient_of_linear(void **state)
{
    enum {
        R = LIN_R,
        K = LIN_K,
        N = LIN_N,
        ALL = R * K + N * K + N
    };
    const struct kit *kit = *state;
    const float *x = kit_normal(1, R * K, 1), *w = kit_normal(2, N * K, 1);
    const float *c = kit_normal(3, R * N, 1);
    double in[ALL] = {0}, want[ALL];
    widen(in, x, R * K);
    widen(in + R * K, w, N * K);
    kit_gradient(want, linear_loss, in, ALL, c);
    for (int i = -1; i < kit->paths; ++i) {
        troupe_device *d = i < 0 ? kit->plain : kit->path[i];
        float dx[R * K], dw[N * K] = {0}, dbias[N] = {0};
        troupe_device_ops(d)->linear_backward_input(d, dx, c, w, false, R, N, K);
        troupe_device_ops(d)->linear_backward_weight(d, dw, dbias, c, x, R, N, K);
        kit_close_to_double("dx", dx, want, R * K, 1e-5);
        kit_close_to_double("dw", dw, want + R * K, N * K, 1e-5);
        kit_close_to_double("dbias", dbias, want + R * K + N * K, N, 1e-5);
    }
}

/* --- q/k norm and rotary embedding: qkv[R, width], qw[E], kw[E] --- */

enum {
    ROPE_R = 3,
    ROPE_H = 3,
    ROPE_KH = 2,
    ROPE_E = 6,
    ROPE_W = (ROPE_H + 2 * ROPE_KH) * ROPE_E
};

static const float rope_freq[ROPE_E / 2] = {1, 0.25f, 0.0625f};
static const int32_t rope_pos[ROPE_R] = {0, 5, 17};

struct rope_context {
    const float *c;
    bool normed;
};

static void
rotate(double *y, double angle, double scale)
{
    double a = y[0], b = y[ROPE_E / 2], s = sin(angle) * scale, t = cos(angle) * scale;
    y[0] = a * t - b * s;
    y[ROPE_E / 2] = b * t + a * s;
}

static double
rope_loss(const double *in, const void *context)
{
    const struct rope_context *t = context;
    const double *w = in + ROPE_R * ROPE_W;
    double y[ROPE_R * ROPE_W];
    memcpy(y, in, sizeof y);
    for (int r = 0; r < ROPE_R; ++r) {
        for (int h = 0; h < ROPE_H + ROPE_KH; ++h) {
            double *head = y + r * ROPE_W + h * ROPE_E;
            if (t->normed) {
                norm_forward(
                    head, in + r * ROPE_W + h * ROPE_E, h < ROPE_H ? w : w + ROPE_E, ROPE_E, 0.01);
            }
            for (int i = 0; i < ROPE_E / 2; ++i) {
                rotate(head + i, rope_pos[r] * (double)rope_freq[i], 1.5);
            }
        }
    }
    return weighted(t->c, y, ROPE_R * ROPE_W);
}

static void
check_rope(const struct kit *kit, bool normed)
{
    enum {
        R = ROPE_R,
        H = ROPE_H,
        KH = ROPE_KH,
        E = ROPE_E,
        N = R * ROPE_W
    };

    const float *x = kit_normal(1, N, 1), *w = kit_normal(2, 2 * E, 1), *c = kit_normal(3, N, 1);
    const troupe_rope rope = {.inv_freq = rope_freq, .scale = 1.5f};
    double in[N + 2 * E], want[N + 2 * E];
    widen(in, x, N);
    widen(in + N, w, 2 * E);
    kit_gradient(want, rope_loss, in, N + 2 * E, &(struct rope_context){c, normed});
    const float *qw = normed ? w : NULL, *kw = normed ? w + E : NULL;
    for (int i = -1; i < kit->paths; ++i) {
        troupe_device *d = i < 0 ? kit->plain : kit->path[i];
        float y[N], dy[N], pre[R * (H + KH) * E], rstd[R * (H + KH)], dw[2 * E] = {0};
        memcpy(y, x, sizeof y);
        memcpy(dy, c, sizeof dy);
        troupe_device_ops(d)->qk_norm_rope_forward(
            d, y, pre, rstd, qw, kw, 0.01f, rope_pos, &rope, R, H, KH, E);
        troupe_device_ops(d)->qk_norm_rope_backward(
            d, dy, dw, dw + E, pre, rstd, qw, kw, rope_pos, &rope, R, H, KH, E);
        kit_close_to_double("dqkv", dy, want, N, 1e-5);
        kit_close_to_double("dqw, dkw", dw, want + N, 2 * E, 1e-5);
    }
}

static void
gradient_of_rotary_embedding(void **state)
{
    check_rope(*state, false);
}

static void
gradient_of_head_norms_and_rotary_embedding(void **state)
{
    check_rope(*state, true);
}

/* --- attention: qkv[R, width] --- */

struct attention {
    int H, KH, E;
    const float *c;
};

static const int32_t attention_cu[] = {0, 1, 1, 7, 11};

enum {
    ATT_SEQUENCES = 4,
    ATT_R = 11
};

/* One query row against its sequence. */
static void
attend(double *out, const double *qkv, const struct attention *t, int first, int r, int h)
{
    int E = t->E, width = (t->H + 2 * t->KH) * E, kv = (t->H + h / (t->H / t->KH)) * E;
    double p[ATT_R], sum = 0;
    for (int j = first; j <= r; ++j) {
        double dot = 0;
        for (int i = 0; i < E; ++i) {
            dot += qkv[r * width + h * E + i] * qkv[j * width + kv + i];
        }
        p[j] = exp(dot * 0.25);
        sum += p[j];
    }
    for (int i = 0; i < E; ++i) {
        out[i] = 0;
        for (int j = first; j <= r; ++j) {
            out[i] += p[j] / sum * qkv[j * width + kv + t->KH * E + i];
        }
    }
}

static double
attention_loss(const double *qkv, const void *context)
{
    const struct attention *t = context;
    double loss = 0, out[64];
    for (int s = 0; s < ATT_SEQUENCES; ++s) {
        for (int r = attention_cu[s]; r < attention_cu[s + 1]; ++r) {
            for (int h = 0; h < t->H; ++h) {
                attend(out, qkv, t, attention_cu[s], r, h);
                loss += weighted(t->c + (r * t->H + h) * t->E, out, t->E);
            }
        }
    }
    return loss;
}

static void
gradient_of_attention(void **state)
{
    static const int shapes[][3] = {{1, 1, 16}, {4, 2, 8}, {2, 1, 18}, {3, 3, 5}};
    const struct kit *kit = *state;
    for (size_t s = 0; s < TR_COUNT(shapes); ++s) {
        struct attention t = {.H = shapes[s][0], .KH = shapes[s][1], .E = shapes[s][2]};
        size_t n = (size_t)(ATT_R * (t.H + 2 * t.KH) * t.E), m = (size_t)(ATT_R * t.H * t.E);
        static double in[MAX], want[MAX];
        const float *qkv = kit_normal(s, n, 1);
        t.c = kit_normal(50 + s, m, 1);
        assert_true(n <= MAX);
        widen(in, qkv, n);
        kit_gradient(want, attention_loss, in, n, &t);
        for (int i = -1; i < kit->paths; ++i) {
            troupe_device *d = i < 0 ? kit->plain : kit->path[i];
            float *out = kit_floats(m), *lse = kit_floats(m), *dqkv = kit_floats(n);
            troupe_device_ops(d)->attention_packed_forward(
                d, out, lse, qkv, attention_cu, ATT_SEQUENCES, 0.25f, t.H, t.KH, t.E);
            troupe_device_ops(d)->attention_packed_backward(
                d, dqkv, t.c, qkv, out, lse, attention_cu, ATT_SEQUENCES, 0.25f, t.H, t.KH, t.E);
            kit_close_to_double("dqkv", dqkv, want, n, 1e-5);
        }
    }
}

/* --- SwiGLU: gu[R, 2F] --- */

enum {
    GLU_R = 3,
    GLU_F = 21
};

static double
swiglu_loss(const double *in, const void *c)
{
    double y[GLU_R * GLU_F];
    for (int i = 0; i < GLU_R * GLU_F; ++i) {
        const double *row = in + i / GLU_F * 2 * GLU_F;
        double g = row[i % GLU_F], u = row[GLU_F + i % GLU_F];
        y[i] = g / (1 + exp(-g)) * u;
    }
    return weighted(c, y, GLU_R * GLU_F);
}

static void
gradient_of_swiglu(void **state)
{
    enum {
        R = GLU_R,
        F = GLU_F
    };
    const struct kit *kit = *state;
    const float *gu = kit_normal(1, R * 2 * F, 2), *c = kit_normal(2, R * F, 1);
    double in[R * 2 * F], want[R * 2 * F];
    widen(in, gu, R * 2 * F);
    kit_gradient(want, swiglu_loss, in, R * 2 * F, c);
    for (int i = -1; i < kit->paths; ++i) {
        troupe_device *d = i < 0 ? kit->plain : kit->path[i];
        float dgu[R * 2 * F];
        troupe_device_ops(d)->swiglu_backward(d, dgu, c, gu, R, F);
        kit_close_to_double("dgu", dgu, want, R * 2 * F, 1e-5);
    }
}

/* --- LM head: x[R, D], w[V, D] --- */

enum {
    HEAD_R = 3,
    HEAD_D = 5,
    HEAD_V = 21,
    HEAD_VV = 19
};

static const int32_t head_target[HEAD_R] = {0, 18, 7};

struct head {
    const float *c; /* dL/dlogprob[R], then dL/dentropy[R] */
    double inv;
};

static double
head_loss(const double *in, const void *context)
{
    const struct head *t = context;
    const double *w = in + HEAD_R * HEAD_D;
    double loss = 0;
    for (int r = 0; r < HEAD_R; ++r) {
        double z[HEAD_VV], sum = 0, entropy = 0;
        for (int n = 0; n < HEAD_VV; ++n) {
            z[n] = 0;
            for (int k = 0; k < HEAD_D; ++k) {
                z[n] += in[r * HEAD_D + k] * w[n * HEAD_D + k] * t->inv;
            }
            sum += exp(z[n]);
        }
        for (int n = 0; n < HEAD_VV; ++n) {
            entropy -= exp(z[n]) / sum * (z[n] - log(sum));
        }
        loss += (double)t->c[r] * (z[head_target[r]] - log(sum));
        loss += (double)t->c[HEAD_R + r] * entropy;
    }
    return loss;
}

static void
gradient_of_log_prob_and_entropy(void **state)
{
    enum {
        R = HEAD_R,
        D = HEAD_D,
        V = HEAD_V,
        VV = HEAD_VV,
        N = R * D + V * D
    };
    const struct kit *kit = *state;
    const float *x = kit_normal(1, R * D, 1), *w = kit_normal(2, V * D, 0.7);
    for (int c = 0; c < 3; ++c) {
        struct head t = {.c = kit_normal(3, 2 * R, 1), .inv = c == 0 ? 1 : 1.5};
        double in[N], want[N];
        widen(in, x, R * D);
        widen(in + R * D, w, V * D);
        float *slope = kit_normal(3, 2 * R, 1);
        for (int r = 0; c == 2 && r < R; ++r) {
            slope[R + r] = 0; /* no entropy term: passed as NULL */
        }
        t.c = slope;
        kit_gradient(want, head_loss, in, N, &t);
        for (int i = -1; i < kit->paths; ++i) {
            troupe_device *d = i < 0 ? kit->plain : kit->path[i];
            float lp[R], entropy[R], lse[R], dx[R * D], dw[V * D] = {0}, inv = (float)t.inv;
            troupe_packed_weight *p = troupe_weight_pack(d, w, V, D);
            troupe_device_ops(d)->lm_head_forward(
                d, lp, entropy, lse, NULL, x, p, head_target, inv, VV, R);
            troupe_device_ops(d)->lm_head_backward(d, dx, dw, slope, c == 2 ? NULL : slope + R, x,
                w, p, lse, c == 2 ? NULL : entropy, head_target, inv, VV, R, V, D);
            kit_close_to_double("dx", dx, want, R * D, 1e-5);
            kit_close_to_double("dw", dw, want + R * D, V * D, 1e-5);
            troupe_weight_free(d, p);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_of_rmsnorm),
        cmocka_unit_test(gradient_of_linear),
        cmocka_unit_test(gradient_of_rotary_embedding),
        cmocka_unit_test(gradient_of_head_norms_and_rotary_embedding),
        cmocka_unit_test(gradient_of_attention),
        cmocka_unit_test(gradient_of_swiglu),
        cmocka_unit_test(gradient_of_log_prob_and_entropy),
    };
    return cmocka_run_group_tests(tests, kit_setup, kit_teardown);
}
