/* Packed and paged attention against the plain device, and against each other to the bit. */
#include "device_kit.h"

static const int mixed[] = {1, 2, 0, 16, 17, 5, 33, 64, -1};
static const int single[] = {1, -1};
static const int odd[] = {129, 33, -1};
static const int nothing[] = {0, 0, -1};
static const int none[] = {-1};

struct packed_shape {
    int sequences, rows, H, KH, E;
};

static const int32_t *
cu_of(const int *lengths, struct packed_shape *s)
{
    int32_t *cu = rig_zalloc(16 * sizeof *cu);
    for (s->sequences = 0; lengths[s->sequences] >= 0; ++s->sequences) {
        cu[s->sequences + 1] = cu[s->sequences] + lengths[s->sequences];
    }
    s->rows = cu[s->sequences];
    return cu;
}

static void
call_packed(troupe_device *d, void *const *a, const void *shape)
{
    const struct packed_shape *s = shape;
    const troupe_ops *ops = troupe_device_ops(d);
    float scale = 1 / sqrtf((float)s->E);
    ops->attention_packed_forward(
        d, a[0], a[1], a[2], a[3], s->sequences, scale, s->H, s->KH, s->E);
    ops->attention_packed_forward(
        d, a[6], NULL, a[2], a[3], s->sequences, scale, s->H, s->KH, s->E);
    ops->attention_packed_backward(
        d, a[4], a[5], a[2], a[0], a[1], a[3], s->sequences, scale, s->H, s->KH, s->E);
}

static void
packed(void **state)
{
    static const int *const lengths[] = {mixed, single, odd, nothing, none};
    static const int heads[][2] = {{1, 1}, {4, 4}, {6, 2}, {8, 1}};
    static const int E_list[] = {2, 16, 33, 64, 80, 128, 256};
    for (size_t i = 0; i < TR_COUNT(lengths) * TR_COUNT(E_list); ++i) {
        if (rig_leaves_out(*state, i)) {
            continue;
        }
        const int *h = heads[(i + i / TR_COUNT(lengths)) % TR_COUNT(heads)];
        struct packed_shape s = {.H = h[0], .KH = h[1], .E = E_list[i / TR_COUNT(lengths)]};
        const int32_t *cu = cu_of(lengths[i % TR_COUNT(lengths)], &s);
        size_t n = (size_t)(s.rows * s.H * s.E), rows = (size_t)(s.rows * s.H);
        size_t wide = (size_t)(s.rows * (s.H + 2 * s.KH) * s.E);
        const struct arg args[] = {{NULL, n, FLOATS, 2e-5}, {NULL, rows, FLOATS, 2e-5},
            {rig_normal(1, wide, 1), wide, READ, 0}, {cu, (size_t)s.sequences + 1, READ, 0},
            {NULL, wide, FLOATS, 5e-5}, {rig_normal(2, n, 1), n, READ, 0}, {NULL, n, FLOATS, 2e-5}};
        rig_check(*state, "attention_packed", call_packed, &s, args, TR_COUNT(args));
    }
}

/* --- paged --- */

enum {
    LAYERS = 3,
    LAYER = 1
};

struct paged_shape {
    int R, sequences, blocks, block_size, stride, H, KH, E;
};

static void
call_paged(troupe_device *d, void *const *a, const void *shape)
{
    const struct paged_shape *s = shape;
    const troupe_ops *ops = troupe_device_ops(d);
    const troupe_kv_cache cache = {.k = a[0],
        .v = a[1],
        .blocks = s->blocks,
        .block_size = s->block_size,
        .KH = s->KH,
        .E = s->E};
    const troupe_paged_rows rows = {
        .R = s->R, .seq = a[4], .pos = a[5], .tables = a[6], .table_stride = s->stride};
    ops->kv_write(d, &cache, LAYER, a[3], &rows, s->H);
    ops->attention_paged_forward(d, a[2], a[3], &cache, LAYER, &rows, 1 / sqrtf((float)s->E), s->H);
    ops->kv_copy_block(d, &cache, LAYERS, s->blocks - 2, s->blocks - 1);
}

/* Blocks of the sequences in a scrambled order, none used twice, the last one nobody's. */
static int32_t *
tables_of(const struct paged_shape *s)
{
    int32_t *tables = rig_zalloc((size_t)(s->sequences * s->stride) * sizeof *tables);
    for (int i = 0; i < s->sequences * s->stride; ++i) {
        tables[i] = (i * 7 + 3) % (s->blocks - 1);
    }
    return tables;
}

/* Rows of sequences of one length, position by position. */
static void
paged_case(const struct rig *rig, struct paged_shape s, int length)
{
    int32_t *seq = rig_zalloc((size_t)(s.sequences * length + 1) * sizeof *seq);
    int32_t *pos = rig_zalloc((size_t)(s.sequences * length + 1) * sizeof *pos);
    s.R = s.sequences * length;
    s.stride = (length + s.block_size - 1) / s.block_size + 1;
    s.blocks = s.sequences * s.stride + 1;
    while ((s.blocks - 1) % 7 == 0) {
        ++s.blocks;
    }
    for (int r = 0; r < s.R; ++r) {
        seq[r] = r / TR_MAX(length, 1);
        pos[r] = r % TR_MAX(length, 1);
    }
    size_t cache = (size_t)(LAYERS * s.blocks * s.block_size * s.KH * s.E);
    size_t n = (size_t)(s.R * s.H * s.E), wide = (size_t)(s.R * (s.H + 2 * s.KH) * s.E);
    size_t R = (size_t)s.R, entries = (size_t)(s.sequences * s.stride);
    const struct arg args[] = {{rig_normal(1, cache, 1), cache, EXACT, 0},
        {rig_normal(2, cache, 1), cache, EXACT, 0}, {NULL, n, FLOATS, 2e-5},
        {rig_normal(3, wide, 1), wide, READ, 0}, {seq, R, READ, 0}, {pos, R, READ, 0},
        {tables_of(&s), entries, READ, 0}};
    rig_check(rig, "attention_paged", call_paged, &s, args, TR_COUNT(args));
}

static void
paged(void **state)
{
    static const int heads[][2] = {{1, 1}, {4, 4}, {6, 2}, {8, 1}};
    static const int E_list[] = {16, 64, 80, 128};
    static const int lengths[] = {0, 1, 33, 129};
    for (size_t i = 0; i < TR_COUNT(E_list) * TR_COUNT(lengths); ++i) {
        if (rig_leaves_out(*state, i)) {
            continue;
        }
        const int *h = heads[(i + i / 4) % TR_COUNT(heads)];
        struct paged_shape s = {.sequences = 2,
            .block_size = i % 2 == 0 ? 16 : 5,
            .H = h[0],
            .KH = h[1],
            .E = E_list[i / 4]};
        paged_case(*state, s, lengths[i % 4]);
    }
}

/* --- one against the other --- */

static void
call_packed_only(troupe_device *d, void *const *a, const void *shape)
{
    const struct packed_shape *s = shape;
    troupe_device_ops(d)->attention_packed_forward(
        d, a[0], NULL, a[1], a[2], s->sequences, 0.3f, s->H, s->KH, s->E);
}

static void
call_paged_only(troupe_device *d, void *const *a, const void *shape)
{
    const struct paged_shape *s = shape;
    const troupe_kv_cache cache = {.k = a[5],
        .v = a[6],
        .blocks = s->blocks,
        .block_size = s->block_size,
        .KH = s->KH,
        .E = s->E};
    const troupe_paged_rows rows = {
        .R = s->R, .seq = a[2], .pos = a[3], .tables = a[4], .table_stride = s->stride};
    troupe_device_ops(d)->kv_write(d, &cache, 0, a[1], &rows, s->H);
    troupe_device_ops(d)->attention_paged_forward(d, a[0], a[1], &cache, 0, &rows, 0.3f, s->H);
}

static void
packed_and_paged_agree_to_the_bit(void **state)
{
    const struct rig *rig = *state;

    enum {
        R = 70,
        H = 6,
        KH = 2,
        E = 80
    };

    const size_t n = R * H * E, wide = R * (H + 2 * KH) * E;
    const float *qkv = rig_normal(1, wide, 1);
    const int32_t cu[] = {0, R};
    const struct packed_shape s = {.sequences = 1, .rows = R, .H = H, .KH = KH, .E = E};
    const struct arg args[] = {{NULL, n, FLOATS, 0}, {qkv, wide, READ, 0}, {cu, 2, READ, 0}};
    const float *want = rig_run(rig->tested, call_packed_only, &s, args, TR_COUNT(args), 0);
    struct paged_shape p = {.R = R,
        .sequences = 1,
        .block_size = 16,
        .stride = 6,
        .blocks = 9,
        .H = H,
        .KH = KH,
        .E = E};
    int32_t seq[R] = {0}, pos[R];
    for (int r = 0; r < R; ++r) {
        pos[r] = r;
    }
    const size_t cache = (size_t)(p.blocks * p.block_size) * KH * E;
    const struct arg paged_args[] = {{NULL, n, FLOATS, 0}, {qkv, wide, READ, 0}, {seq, R, READ, 0},
        {pos, R, READ, 0}, {tables_of(&p), 6, READ, 0}, {NULL, cache, EXACT, 0},
        {NULL, cache, EXACT, 0}};
    rig_same("paged against packed",
        rig_run(rig->tested, call_paged_only, &p, paged_args, TR_COUNT(paged_args), 0), want, n);
}

static int
free_all(void **state)
{
    (void)state;
    rig_free_all();
    return 0;
}

int
run_attention_tests(struct rig *rig)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate_setup_teardown(packed, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(paged, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(
            packed_and_paged_agree_to_the_bit, NULL, free_all, rig),
    };
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}
