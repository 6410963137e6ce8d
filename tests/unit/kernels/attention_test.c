/* Causal attention: packed against the plain form, paged against packed to the bit, and the
 * cache. */
#include "kit.h"

struct shape {
    const int *lengths; /* ends with -1 */
    int H, KH, E;
};

static const int mixed[] = {1, 2, 0, 16, 17, 5, 33, 64, -1};
static const int ones[] = {1, 1, 1, -1};
static const int none[] = {-1};
static const int nothing[] = {0, 0, -1};
static const int single[] = {150, -1};
static const int longer[] = {1050, 3, -1}; /* heads run one by one beyond 1024 keys */

/* cu of the lengths; *sequences and *rows are written. */
static const int32_t *
cu_of(const int *lengths, int *sequences, int *rows)
{
    int32_t *cu = kit_ints(64);
    int n = 0;
    for (; lengths[n] >= 0; ++n) {
        cu[n + 1] = cu[n] + lengths[n];
    }
    *sequences = n;
    *rows = cu[n];
    return cu;
}

static void
run_packed(troupe_device *d, const void *shape, float *out)
{
    const struct shape *s = shape;
    const troupe_ops *ops = troupe_device_ops(d);
    int sequences, rows;
    const int32_t *cu = cu_of(s->lengths, &sequences, &rows);
    size_t n = (size_t)(rows * s->H * s->E), wide = (size_t)(rows * (s->H + 2 * s->KH) * s->E);
    const float *qkv = kit_normal(1, wide, 1), *dout = kit_normal(2, n, 1);
    float scale = 1 / sqrtf((float)s->E), *lse = out + n, *dqkv = lse + rows * s->H;
    for (size_t i = 0; i < wide; ++i) {
        dqkv[i] = 7; /* must be overwritten */
    }
    ops->attention_packed_forward(d, out, lse, qkv, cu, sequences, scale, s->H, s->KH, s->E);
    ops->attention_packed_backward(
        d, dqkv, dout, qkv, out, lse, cu, sequences, scale, s->H, s->KH, s->E);
}

static void
packed_attention_and_its_gradient_match_the_plain_form(void **state)
{
    static const int *const lengths[] = {mixed, ones, none, nothing, single};
    static const int heads[][2] = {{1, 1}, {4, 4}, {6, 2}, {3, 1}, {10, 5}};
    static const int E_list[] = {2, 8, 16, 24, 64, 80, 128};
    for (size_t l = 0; l < TR_COUNT(lengths); ++l) {
        for (size_t e = 0; e < TR_COUNT(E_list); ++e) {
            const int *h = heads[(l + e) % TR_COUNT(heads)];
            struct shape s = {.lengths = lengths[l], .H = h[0], .KH = h[1], .E = E_list[e]};
            int sequences, rows;
            cu_of(s.lengths, &sequences, &rows);
            size_t n = (size_t)rows, E = (size_t)s.E, H = (size_t)s.H;
            struct kit_parts parts = {3, {n * H * E, n * H, n * (H + 2 * (size_t)s.KH) * E}};
            kit_check(*state, "attention", run_packed, &s, parts, 1e-5);
            kit_free_all();
        }
    }
}

static void
attention_accepts_no_lse(void **state)
{
    const struct kit *kit = *state;
    const int32_t cu[] = {0, 3};
    const float *qkv = kit_normal(1, 3 * 3 * 16, 1);
    for (int i = 0; i < kit->paths; ++i) {
        float a[48], b[48], lse[3];
        troupe_device *d = kit->path[i];
        troupe_device_ops(d)->attention_packed_forward(d, a, lse, qkv, cu, 1, 0.25f, 1, 1, 16);
        troupe_device_ops(d)->attention_packed_forward(d, b, NULL, qkv, cu, 1, 0.25f, 1, 1, 16);
        kit_same("attention without lse", b, a, 48);
    }
}

/* Scores of +-2000 overflow any exponential that forgets to subtract the maximum. */
static void
attention_with_huge_scores_picks_the_largest(void **state)
{
    const struct kit *kit = *state;
    const int32_t cu[] = {0, 3};

    enum {
        E = 4
    };

    float qkv[3 * 3 * E] = {0};
    for (int r = 0; r < 3; ++r) {
        qkv[r * 3 * E] = 1000;                        /* q */
        qkv[r * 3 * E + E] = (float)(r == 1) * 4 - 2; /* k: -2, 2, -2 */
        qkv[r * 3 * E + 2 * E] = (float)(r + 1);      /* v */
    }
    for (int i = 0; i < kit->paths; ++i) {
        float out[3 * E], lse[3];
        troupe_device *d = kit->path[i];
        troupe_device_ops(d)->attention_packed_forward(d, out, lse, qkv, cu, 1, 1, 1, 1, E);
        kit_same(
            "value of the largest", (float[]){out[0], out[E], out[2 * E]}, (float[]){1, 2, 2}, 3);
        kit_same("lse", lse, (float[]){-2000, 2000, 2000}, 3);
    }
}

/* A paged cache whose tables scatter each sequence's blocks. */
struct pages {
    troupe_kv_cache cache;
    troupe_paged_rows rows;
    int layer, layers;
};

static struct pages
make_pages(const struct shape *s, int block_size, float fill)
{
    int sequences, rows;
    const int32_t *cu = cu_of(s->lengths, &sequences, &rows);
    int stride = 1;
    for (int q = 0; q < sequences; ++q) {
        stride = TR_MAX(stride, (s->lengths[q] + block_size - 1) / block_size);
    }
    struct pages p = {.layer = 1, .layers = 3};
    p.cache = (troupe_kv_cache){
        .blocks = sequences * stride + 3, .block_size = block_size, .KH = s->KH, .E = s->E};
    size_t floats = (size_t)(p.layers * p.cache.blocks * block_size * s->KH * s->E);
    p.cache.k = kit_floats(floats);
    p.cache.v = kit_floats(floats);
    for (size_t i = 0; i < floats; ++i) {
        p.cache.k[i] = p.cache.v[i] = fill;
    }
    int32_t *tables = kit_ints((size_t)(sequences * stride));
    int32_t *order = kit_ints((size_t)p.cache.blocks);
    for (int i = 0; i < p.cache.blocks; ++i) {
        int j = (int)tr_below(77, (uint64_t)i, (uint64_t)i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    memcpy(tables, order, (size_t)(sequences * stride) * sizeof *tables);
    int32_t *seq = kit_ints((size_t)rows), *pos = kit_ints((size_t)rows);
    for (int q = 0; q < sequences; ++q) {
        for (int r = cu[q]; r < cu[q + 1]; ++r) {
            seq[r] = q;
            pos[r] = r - cu[q];
        }
    }
    p.rows = (troupe_paged_rows){
        .R = rows, .seq = seq, .pos = pos, .tables = tables, .table_stride = stride};
    return p;
}

/* One row of `rows`. */
static troupe_paged_rows
only(const troupe_paged_rows *rows, int r)
{
    troupe_paged_rows one = *rows;
    one.R = 1;
    one.seq += r;
    one.pos += r;
    return one;
}

static void
check_paged(troupe_device *d, const struct shape *s, int block_size)
{
    const troupe_ops *ops = troupe_device_ops(d);
    struct pages p = make_pages(s, block_size, NAN);
    int sequences, rows;
    const int32_t *cu = cu_of(s->lengths, &sequences, &rows);
    size_t width = (size_t)((s->H + 2 * s->KH) * s->E), out_width = (size_t)(s->H * s->E);
    size_t n = (size_t)rows * out_width;
    const float *qkv = kit_normal(3, (size_t)rows * width, 1);
    float *packed = kit_floats(n), *paged = kit_floats(n), *stepped = kit_floats(n);
    ops->attention_packed_forward(d, packed, NULL, qkv, cu, sequences, 0.3f, s->H, s->KH, s->E);
    /* Row by row, as decoding goes: everything after the row's position is still NaN. */
    for (int r = 0; r < rows; ++r) {
        troupe_paged_rows one = only(&p.rows, r);
        const float *x = qkv + (size_t)r * width;
        ops->kv_write(d, &p.cache, p.layer, x, &one, s->H);
        ops->attention_paged_forward(
            d, stepped + (size_t)r * out_width, x, &p.cache, p.layer, &one, 0.3f, s->H);
    }
    kit_same("paged row by row against packed", stepped, packed, n);
    ops->attention_paged_forward(d, paged, qkv, &p.cache, p.layer, &p.rows, 0.3f, s->H);
    kit_same("paged at once against packed", paged, packed, n);
}

static void
paged_attention_gives_the_bits_of_packed_attention(void **state)
{
    const struct kit *kit = *state;
    static const int blocks[] = {1, 2, 3, 7, 16, 20, 64};
    static const int E_list[] = {8, 16, 40, 64};
    for (int i = 0; i < kit->paths; ++i) {
        for (size_t b = 0; b < TR_COUNT(blocks); ++b) {
            for (size_t e = 0; e < TR_COUNT(E_list); ++e) {
                struct shape s = {.lengths = mixed, .H = 4, .KH = 2, .E = E_list[e]};
                check_paged(kit->path[i], &s, blocks[b]);
                kit_free_all();
            }
        }
    }
}

/* Rows of several sequences interleaved and reversed, as a scheduler may mix them. */
static void
paged_attention_does_not_depend_on_the_order_of_rows(void **state)
{
    const struct kit *kit = *state;
    struct shape s = {.lengths = mixed, .H = 2, .KH = 1, .E = 16};
    for (int i = 0; i < kit->paths; ++i) {
        troupe_device *d = kit->path[i];
        const troupe_ops *ops = troupe_device_ops(d);
        struct pages p = make_pages(&s, 5, 0);
        int R = p.rows.R;
        size_t width = 4 * 16, n = (size_t)R * 32;
        const float *qkv = kit_normal(3, (size_t)R * width, 1);
        float *out = kit_floats(n), *mixed_qkv = kit_floats((size_t)R * width);
        float *mixed_out = kit_floats(n), *sorted = kit_floats(n);
        int32_t *seq = kit_ints((size_t)R), *pos = kit_ints((size_t)R);
        ops->kv_write(d, &p.cache, p.layer, qkv, &p.rows, s.H);
        ops->attention_paged_forward(d, out, qkv, &p.cache, p.layer, &p.rows, 0.25f, s.H);
        assert_int_not_equal(R % 37, 0);
        for (int r = 0; r < R; ++r) {
            int from = (r * 37 + 11) % R;
            memcpy(mixed_qkv + (size_t)r * width, qkv + (size_t)from * width, width * sizeof *qkv);
            seq[r] = p.rows.seq[from];
            pos[r] = p.rows.pos[from];
        }
        troupe_paged_rows rows = p.rows;
        rows.seq = seq;
        rows.pos = pos;
        ops->attention_paged_forward(d, mixed_out, mixed_qkv, &p.cache, p.layer, &rows, 0.25f, s.H);
        for (int r = 0; r < R; ++r) {
            memcpy(sorted + ((r * 37 + 11) % R) * 32, mixed_out + r * 32, 32 * sizeof *out);
        }
        kit_same("mixed rows", sorted, out, n);
    }
}

static void
paged_attention_matches_the_plain_form(void **state)
{
    const struct kit *kit = *state;
    struct shape s = {.lengths = mixed, .H = 4, .KH = 2, .E = 24};
    struct pages p = make_pages(&s, 6, 0);
    size_t R = (size_t)p.rows.R, n = R * 4 * 24;
    const float *qkv = kit_normal(3, R * 8 * 24, 1);
    float *want = kit_floats(n);
    const troupe_ops *plain = troupe_device_ops(kit->plain);
    plain->kv_write(kit->plain, &p.cache, 1, qkv, &p.rows, s.H);
    plain->attention_paged_forward(kit->plain, want, qkv, &p.cache, 1, &p.rows, 0.2f, s.H);
    for (int i = 0; i < kit->paths; ++i) {
        struct pages own = make_pages(&s, 6, 0);
        size_t floats = (size_t)(own.layers * own.cache.blocks * 6 * 2 * 24);
        float *got = kit_floats(n);
        troupe_device *d = kit->path[i];
        troupe_device_ops(d)->kv_write(d, &own.cache, 1, qkv, &own.rows, s.H);
        kit_same("keys", own.cache.k, p.cache.k, floats);
        kit_same("values", own.cache.v, p.cache.v, floats);
        troupe_device_ops(d)->attention_paged_forward(
            d, got, qkv, &own.cache, 1, &own.rows, 0.2f, s.H);
        kit_close("paged attention", got, want, n, 1e-5);
    }
}

static void
copying_a_block_copies_it_in_all_layers_and_nothing_else(void **state)
{
    const struct kit *kit = *state;

    enum {
        LAYERS = 3,
        BLOCKS = 4,
        SIZE = 2,
        KH = 2,
        E = 3,
        BLOCK = SIZE * KH * E
    };

    enum {
        FLOATS = LAYERS * BLOCKS * BLOCK
    };

    for (int i = -1; i < kit->paths; ++i) {
        troupe_device *d = i < 0 ? kit->plain : kit->path[i];
        float *k = kit_normal(1, FLOATS, 1), *v = kit_normal(2, FLOATS, 1);
        float *want_k = kit_normal(1, FLOATS, 1), *want_v = kit_normal(2, FLOATS, 1);
        for (int l = 0; l < LAYERS; ++l) {
            for (int j = 0; j < BLOCK; ++j) {
                int base = l * BLOCKS * BLOCK + j;
                want_k[base + 3 * BLOCK] = k[base + BLOCK];
                want_v[base + 3 * BLOCK] = v[base + BLOCK];
            }
        }
        troupe_kv_cache cache = {
            .k = k, .v = v, .blocks = BLOCKS, .block_size = SIZE, .KH = KH, .E = E};
        troupe_device_ops(d)->kv_copy_block(d, &cache, LAYERS, 1, 3);
        kit_same("keys", k, want_k, FLOATS);
        kit_same("values", v, want_v, FLOATS);
    }
}

static void
long_sequences_are_like_short_ones(void **state)
{
    const struct kit *kit = *state;
    const struct shape s = {.lengths = longer, .H = 2, .KH = 1, .E = 4};
    const size_t rows = 1053;
    struct kit_parts parts = {3, {rows * 2 * 4, rows * 2, rows * 4 * 4}};
    kit_check(kit, "long attention", run_packed, &s, parts, 2e-5);
    for (int i = 0; i < kit->paths; ++i) {
        check_paged(kit->path[i], &s, 48);
    }
    kit_free_all();
}

/* One row of more heads than run side by side, with more keys than let them. */
static void
a_row_of_many_heads_sees_a_long_context(void **state)
{
    enum {
        COUNT = 1040,
        HEADS = 9,
        WIDE = 3 * HEADS * 8
    };

    static const int context[] = {COUNT, -1};
    const struct kit *kit = *state;
    const struct shape s = {.lengths = context, .H = HEADS, .KH = HEADS, .E = 8};
    struct pages p = make_pages(&s, 32, 0);
    size_t floats = (size_t)(p.layers * p.cache.blocks * 32 * HEADS * 8);
    p.cache.k = kit_normal(1, floats, 1);
    p.cache.v = kit_normal(2, floats, 1);
    const troupe_paged_rows last = only(&p.rows, COUNT - 1);
    const float *qkv = kit_normal(3, WIDE, 1);
    float want[HEADS * 8], got[HEADS * 8];
    troupe_device_ops(kit->plain)
        ->attention_paged_forward(kit->plain, want, qkv, &p.cache, 1, &last, 0.3f, HEADS);
    for (int i = 0; i < kit->paths; ++i) {
        troupe_device *d = kit->path[i];
        troupe_device_ops(d)->attention_paged_forward(d, got, qkv, &p.cache, 1, &last, 0.3f, HEADS);
        kit_close("long row", got, want, HEADS * 8, 2e-5);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_attention_and_its_gradient_match_the_plain_form),
        cmocka_unit_test(long_sequences_are_like_short_ones),
        cmocka_unit_test(a_row_of_many_heads_sees_a_long_context),
        cmocka_unit_test(attention_accepts_no_lse),
        cmocka_unit_test(attention_with_huge_scores_picks_the_largest),
        cmocka_unit_test(paged_attention_gives_the_bits_of_packed_attention),
        cmocka_unit_test(paged_attention_does_not_depend_on_the_order_of_rows),
        cmocka_unit_test(paged_attention_matches_the_plain_form),
        cmocka_unit_test(copying_a_block_copies_it_in_all_layers_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, kit_setup, kit_teardown);
}
