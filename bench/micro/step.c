/* One decode step and one training step of a model, made of fused operations on made-up numbers:
 * what each operation costs per token, so that the dear ones show.
 *
 *   bench_step [demo|0.5B] [SECONDS] [THREADS] [DEVICE]        default demo 2 1 cpu
 *
 * demo is the README's model: D 64, 2 layers, 4 heads of 16, F 192, V 16; 512 sequences at position
 * 10 (decode), 512 sequences of 10 tokens (training). 0.5B has the sizes of Qwen2.5-0.5B; 32 rows,
 * 16 x 32. */
#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>
#include <troupe/kernels.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model {
    const char *name;
    int layers, D, H, KH, E, F, V;
    int rows;              /* of a decode step */
    int pos;               /* of each of them */
    int sequences, length; /* of a training step */
};

static const struct model models[] = {
    {"demo", 2, 64, 4, 4, 16, 192, 16, 512, 10, 512, 10},
    {"0.5B", 24, 896, 14, 2, 64, 4864, 151936, 32, 200, 16, 32},
};

enum {
    OPS_MAX = 24,
    ARRAYS_MAX = 64,
};

/* Time by operation. */
struct meter {
    const troupe_sys *sys;
    const char *name[OPS_MAX];
    uint64_t ns[OPS_MAX];
    int count;
    uint64_t mark;
};

/* Adds the time since the last mark to `name`. */
static void
lap(struct meter *m, const char *name)
{
    uint64_t now = m->sys->now_ns(m->sys);
    int i = 0;
    while (i < m->count && strcmp(m->name[i], name) != 0) {
        ++i;
    }
    TR_ASSERT(i < OPS_MAX);
    m->name[i] = name;
    m->ns[i] += now - m->mark;
    m->count = i == m->count ? i + 1 : m->count;
    m->mark = m->sys->now_ns(m->sys);
}

/* Everything that a step reads and writes. All layers share one set of weights (the small model's
 * do not leave the caches anyway; the large one's largest matrices are larger than any). */
struct state {
    const struct model *m;
    troupe_device *d;
    const troupe_ops *ops;
    troupe_packed_weight *qkv_w, *o_w, *gu_w, *down_w, *head_w;
    float *w_qkv, *w_o, *w_gu, *w_down, *w_head, *norm_w;
    float *g_qkv, *g_o, *g_gu, *g_down, *g_head, *g_norm;
    float *x, *resid, *rstd, *qkv, *att, *lse, *gu, *act, *out, *dx, *dqkv, *dgu, *dact;
    float *logits, *logprob, *entropy, *head_lse, *slope;
    int32_t *ids, *pos, *cu, *target, *seq, *tables;
    uint8_t *bad;
    double *u;
    troupe_sampling *sampling;
    troupe_kv_cache cache;
    troupe_paged_rows paged;
    troupe_rope rope;
    struct meter meter;
    void *owned[ARRAYS_MAX]; /* every array above */
    int owned_count;
};

static void *
bytes(struct state *s, size_t size)
{
    void *x = troupe_device_alloc(s->d, size);
    TR_ASSERT(x != NULL && s->owned_count < ARRAYS_MAX);
    s->owned[s->owned_count++] = x;
    return x;
}

static float *
floats(struct state *s, size_t count, double scale)
{
    float *x = bytes(s, count * sizeof *x);
    for (size_t i = 0; scale > 0 && i < count; ++i) {
        x[i] = (float)((tr_uniform(1, count, i) - 0.5) * 2 * scale);
    }
    return x;
}

static int32_t *
ints(struct state *s, size_t count)
{
    return bytes(s, count * sizeof(int32_t));
}

static void
give_back(struct state *s)
{
    for (int i = 0; i < s->owned_count; ++i) {
        troupe_device_free(s->d, s->owned[i]);
    }
    troupe_packed_weight *weights[] = {s->qkv_w, s->o_w, s->gu_w, s->down_w, s->head_w};
    for (size_t i = 0; i < TR_COUNT(weights); ++i) {
        troupe_weight_free(s->d, weights[i]);
    }
    troupe_device_close(s->d);
}

static void
make_weights(struct state *s)
{
    const struct model *m = s->m;
    size_t D = (size_t)m->D, F = (size_t)m->F, V = (size_t)m->V;
    size_t W = (size_t)((m->H + 2 * m->KH) * m->E), A = (size_t)(m->H * m->E);
    s->w_qkv = floats(s, W * D, 0.1);
    s->w_o = floats(s, D * A, 0.1);
    s->w_gu = floats(s, 2 * F * D, 0.1);
    s->w_down = floats(s, D * F, 0.1);
    s->w_head = floats(s, V * D, 0.1);
    s->norm_w = floats(s, D, 1);
    s->qkv_w = troupe_weight_pack(s->d, s->w_qkv, (int)W, m->D);
    s->o_w = troupe_weight_pack(s->d, s->w_o, m->D, (int)A);
    s->gu_w = troupe_weight_pack(s->d, s->w_gu, 2 * m->F, m->D);
    s->down_w = troupe_weight_pack(s->d, s->w_down, m->D, m->F);
    s->head_w = troupe_weight_pack(s->d, s->w_head, m->V, m->D);
    s->g_qkv = floats(s, W * D, 0);
    s->g_o = floats(s, D * A, 0);
    s->g_gu = floats(s, 2 * F * D, 0);
    s->g_down = floats(s, D * F, 0);
    s->g_head = floats(s, V * D, 0);
    s->g_norm = floats(s, D, 0);
}

static void
make_rows(struct state *s, int rows)
{
    const struct model *m = s->m;
    size_t R = (size_t)rows, W = (size_t)((m->H + 2 * m->KH) * m->E);
    size_t A = (size_t)(m->H * m->E), D = (size_t)m->D, F = (size_t)m->F;
    s->x = floats(s, R * D, 1);
    s->resid = floats(s, R * D, 1);
    s->rstd = floats(s, R, 0);
    s->qkv = floats(s, R * W, 1);
    s->att = floats(s, R * A, 1);
    s->lse = floats(s, R * (size_t)m->H, 0);
    s->gu = floats(s, R * 2 * F, 1);
    s->act = floats(s, R * F, 1);
    s->out = floats(s, R * D, 1);
    s->dx = floats(s, R * D, 1);
    s->dqkv = floats(s, R * W, 1);
    s->dgu = floats(s, R * 2 * F, 1);
    s->dact = floats(s, R * F, 1);
    s->logprob = floats(s, R, 0);
    s->entropy = floats(s, R, 0);
    s->head_lse = floats(s, R, 0);
    s->slope = floats(s, R, 1);
    s->ids = ints(s, R);
    s->pos = ints(s, R);
    s->target = ints(s, R);
}

/* What a step reads before it writes, as it was at first. */
static void
reset_rows(struct state *s, int rows)
{
    const struct model *m = s->m;
    for (int r = 0; r < rows; ++r) {
        s->ids[r] = s->target[r] = r % m->V;
        for (int i = 0; i < m->D; ++i) {
            s->out[r * m->D + i] = (float)((r + i) % 7) * 0.1f;
        }
    }
}

static void
make_decode(struct state *s)
{
    const struct model *m = s->m;
    size_t R = (size_t)m->rows;
    int blocks_each = m->pos / 16 + 1;
    s->logits = floats(s, R * (size_t)m->V, 0);
    s->seq = ints(s, R);
    s->tables = ints(s, R * (size_t)blocks_each);
    s->bad = bytes(s, R);
    s->u = bytes(s, R * sizeof *s->u);
    s->sampling = bytes(s, R * sizeof *s->sampling);
    for (int r = 0; r < m->rows; ++r) {
        s->seq[r] = r;
        s->pos[r] = m->pos;
        s->u[r] = tr_uniform(2, 0, (uint64_t)r);
        s->sampling[r] = (troupe_sampling){1, 1, 0};
        for (int b = 0; b < blocks_each; ++b) {
            s->tables[r * blocks_each + b] = r * blocks_each + b;
        }
    }
    s->cache = (troupe_kv_cache){
        .blocks = m->rows * blocks_each, .block_size = 16, .KH = m->KH, .E = m->E};
    size_t positions = R * (size_t)blocks_each * 16;
    s->cache.k = floats(s, positions * (size_t)(m->KH * m->E), 1);
    s->cache.v = floats(s, positions * (size_t)(m->KH * m->E), 1);
    s->paged = (troupe_paged_rows){.R = m->rows,
        .seq = s->seq,
        .pos = s->pos,
        .tables = s->tables,
        .table_stride = blocks_each};
}

static void
decode_step(struct state *s)
{
    const struct model *m = s->m;
    const troupe_ops *o = s->ops;
    struct meter *t = &s->meter;
    const int R = m->rows, D = m->D;
    const float scale = 0.25f;
    o->embed_forward(s->d, s->resid, s->w_head, s->ids, R, D);
    lap(t, "embed");
    for (int l = 0; l < m->layers; ++l) {
        o->add_rmsnorm_forward(s->d, s->x, s->resid, NULL, s->out, s->norm_w, 1e-6f, R, D);
        lap(t, "norm");
        o->linear_forward(s->d, s->qkv, s->x, s->qkv_w, NULL, false, R);
        lap(t, "linear qkv");
        o->qk_norm_rope_forward(
            s->d, s->qkv, NULL, NULL, NULL, NULL, 0, s->pos, &s->rope, R, m->H, m->KH, m->E);
        lap(t, "rope");
        o->kv_write(s->d, &s->cache, 0, s->qkv, &s->paged, m->H);
        lap(t, "kv write");
        o->attention_paged_forward(s->d, s->att, s->qkv, &s->cache, 0, &s->paged, scale, m->H);
        lap(t, "attention");
        o->linear_forward(s->d, s->out, s->att, s->o_w, NULL, false, R);
        lap(t, "linear out");
        o->add_rmsnorm_forward(s->d, s->x, s->resid, NULL, s->out, s->norm_w, 1e-6f, R, D);
        lap(t, "norm");
        o->linear_forward(s->d, s->gu, s->x, s->gu_w, NULL, false, R);
        lap(t, "linear gate+up");
        o->swiglu_forward(s->d, s->act, s->gu, R, m->F);
        lap(t, "swiglu");
        o->linear_forward(s->d, s->out, s->act, s->down_w, NULL, false, R);
        lap(t, "linear down");
    }
    o->lm_head_forward(s->d, NULL, NULL, NULL, s->logits, s->x, s->head_w, NULL, 1, m->V, R);
    lap(t, "lm head");
    o->sample(s->d, s->ids, s->logprob, NULL, s->entropy, s->bad, s->logits, s->sampling, s->u,
        m->V, R, m->V);
    lap(t, "sample");
}

/* Forward of the training step: packed rows, everything saved that backward needs (in place
 * here). */
static void
train_forward(struct state *s, int R)
{
    const struct model *m = s->m;
    const troupe_ops *o = s->ops;
    struct meter *t = &s->meter;
    const int D = m->D;
    o->embed_forward(s->d, s->resid, s->w_head, s->ids, R, D);
    for (int l = 0; l < m->layers; ++l) {
        o->add_rmsnorm_forward(s->d, s->x, s->resid, s->rstd, s->out, s->norm_w, 1e-6f, R, D);
        lap(t, "norm");
        o->linear_forward(s->d, s->qkv, s->x, s->qkv_w, NULL, false, R);
        lap(t, "linear");
        o->qk_norm_rope_forward(
            s->d, s->qkv, NULL, NULL, NULL, NULL, 0, s->pos, &s->rope, R, m->H, m->KH, m->E);
        lap(t, "rope");
        o->attention_packed_forward(
            s->d, s->att, s->lse, s->qkv, s->cu, m->sequences, 0.25f, m->H, m->KH, m->E);
        lap(t, "attention");
        o->linear_forward(s->d, s->out, s->att, s->o_w, NULL, false, R);
        lap(t, "linear");
        o->add_rmsnorm_forward(s->d, s->x, s->resid, s->rstd, s->out, s->norm_w, 1e-6f, R, D);
        lap(t, "norm");
        o->linear_forward(s->d, s->gu, s->x, s->gu_w, NULL, false, R);
        lap(t, "linear");
        o->swiglu_forward(s->d, s->act, s->gu, R, m->F);
        lap(t, "swiglu");
        o->linear_forward(s->d, s->out, s->act, s->down_w, NULL, false, R);
        lap(t, "linear");
    }
    o->lm_head_forward(
        s->d, s->logprob, s->entropy, s->head_lse, NULL, s->x, s->head_w, s->target, 1, m->V, R);
    lap(t, "lm head");
}

static void
train_backward(struct state *s, int R)
{
    const struct model *m = s->m;
    const troupe_ops *o = s->ops;
    struct meter *t = &s->meter;
    const int D = m->D, W = (m->H + 2 * m->KH) * m->E, A = m->H * m->E;
    o->lm_head_backward(s->d, s->dx, s->g_head, s->slope, NULL, s->x, s->w_head, s->head_w,
        s->head_lse, NULL, s->target, 1, m->V, R, m->V, D);
    lap(t, "lm head, gradient");
    for (int l = 0; l < m->layers; ++l) {
        o->linear_backward_weight(s->d, s->g_down, NULL, s->dx, s->act, R, D, m->F);
        lap(t, "linear, dw");
        o->linear_backward_input(s->d, s->dact, s->dx, s->w_down, false, R, D, m->F);
        lap(t, "linear, dx");
        o->swiglu_backward(s->d, s->dgu, s->dact, s->gu, R, m->F);
        lap(t, "swiglu, gradient");
        o->linear_backward_weight(s->d, s->g_gu, NULL, s->dgu, s->x, R, 2 * m->F, D);
        lap(t, "linear, dw");
        o->linear_backward_input(s->d, s->out, s->dgu, s->w_gu, false, R, 2 * m->F, D);
        lap(t, "linear, dx");
        o->rmsnorm_backward(s->d, s->dx, s->g_norm, s->out, s->resid, s->norm_w, s->rstd, R, D);
        lap(t, "norm, gradient");
        o->linear_backward_weight(s->d, s->g_o, NULL, s->dx, s->att, R, D, A);
        lap(t, "linear, dw");
        o->linear_backward_input(s->d, s->dact, s->dx, s->w_o, false, R, D, A);
        lap(t, "linear, dx");
        o->attention_packed_backward(s->d, s->dqkv, s->dact, s->qkv, s->att, s->lse, s->cu,
            m->sequences, 0.25f, m->H, m->KH, m->E);
        lap(t, "attention, gradient");
        o->qk_norm_rope_backward(s->d, s->dqkv, NULL, NULL, NULL, NULL, NULL, NULL, s->pos,
            &s->rope, R, m->H, m->KH, m->E);
        lap(t, "rope, gradient");
        o->linear_backward_weight(s->d, s->g_qkv, NULL, s->dqkv, s->x, R, W, D);
        lap(t, "linear, dw");
        o->linear_backward_input(s->d, s->out, s->dqkv, s->w_qkv, false, R, W, D);
        lap(t, "linear, dx");
        o->rmsnorm_backward(s->d, s->dx, s->g_norm, s->out, s->resid, s->norm_w, s->rstd, R, D);
        lap(t, "norm, gradient");
    }
    o->embed_backward(s->d, s->g_head, s->dx, s->ids, R, D);
    lap(t, "embed, gradient");
}

static void
train_step(struct state *s)
{
    int R = s->m->sequences * s->m->length;
    train_forward(s, R);
    train_backward(s, R);
}

/* What the first step computed, as one number: the same on every path, processor and number of
 * threads. */
static uint64_t
checksum(const struct state *s, bool training)
{
    const struct model *m = s->m;
    const size_t D = (size_t)m->D, W = (size_t)((m->H + 2 * m->KH) * m->E);
    uint64_t sums[] = {
        s->ops->checksum(s->d, s->logprob, (size_t)m->rows),
        training ? 0 : s->ops->checksum(s->d, s->logits, (size_t)(m->rows * m->V)),
        training ? s->ops->checksum(s->d, s->g_qkv, W * D) : 0,
        training ? s->ops->checksum(s->d, s->g_gu, 2 * (size_t)m->F * D) : 0,
        training ? s->ops->checksum(s->d, s->g_head, (size_t)m->V * D) : 0,
    };
    TR_ASSERT(isfinite(s->logprob[0]) && isfinite(s->g_qkv[0]));
    return tr_mix(sums, TR_COUNT(sums));
}

static void
measure(struct state *s, const char *what, void (*step)(struct state *), int tokens, double seconds)
{
    const troupe_sys *sys = s->meter.sys;
    reset_rows(s, tokens);
    step(s);
    const uint64_t sum = checksum(s, step == train_step);
    uint64_t begin = sys->now_ns(sys), now = begin, best = UINT64_MAX, all = 0;
    struct meter meter = {0}; /* of the best step */
    int steps = 0;
    while ((double)(now - begin) < seconds * 1e9) {
        s->meter = (struct meter){.sys = sys, .mark = now};
        step(s);
        uint64_t took = s->meter.mark - now;
        if (took < best) {
            best = took;
            meter = s->meter;
        }
        all += took;
        now = sys->now_ns(sys);
        ++steps;
    }
    printf("%s, %s, %d rows: best step %.3f ms, %.0f tokens/s; mean %.3f ms; first step %016llx\n",
        s->m->name, what, tokens, (double)best * 1e-6, tokens / ((double)best * 1e-9),
        (double)all / steps * 1e-6, (unsigned long long)sum);
    for (int i = 0; i < meter.count; ++i) {
        printf("  %-22s %9.1f ns a token  %5.1f %%\n", meter.name[i], (double)meter.ns[i] / tokens,
            100.0 * (double)meter.ns[i] / (double)best);
    }
}

int
main(int argc, char **argv)
{
    const struct model *m = argc > 1 && strcmp(argv[1], "0.5B") == 0 ? &models[1] : &models[0];
    double seconds = argc > 2 ? strtod(argv[2], NULL) : 2;
    struct state s = {.m = m, .meter = {.sys = troupe_sys_posix()}};
    troupe_error err;
    troupe_device_options options = {
        .size = sizeof options, .threads = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 1};
    const char *name = argc > 4 ? argv[4] : "cpu";
    if (troupe_device_open(name, &options, &s.d, &err) != TROUPE_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    s.ops = troupe_device_ops(s.d);
    printf("device %s, threads %d\n", s.ops->name, options.threads);
    s.rope = (troupe_rope){.inv_freq = floats(&s, (size_t)m->E / 2, 1), .scale = 1};
    make_weights(&s);
    make_rows(&s, TR_MAX(m->rows, m->sequences * m->length));
    make_decode(&s);
    measure(&s, "decode", decode_step, m->rows, seconds);
    s.cu = ints(&s, (size_t)m->sequences + 1);
    for (int i = 0; i <= m->sequences; ++i) {
        s.cu[i] = i * m->length;
    }
    for (int r = 0; r < m->sequences * m->length; ++r) {
        s.pos[r] = r % m->length;
    }
    measure(&s, "training", train_step, m->sequences * m->length, seconds);
    give_back(&s);
    return 0;
}
