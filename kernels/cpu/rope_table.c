/* Tables of rotary angles. A decode step asks for the cosines and sines of the same few positions
 * in each layer, so they are computed once, in double, and kept by the device. */
#include "cpu/cpu.h"
#include "cpu/scalar_math.h"

#include <troupe/ext/base.h>

static bool
table_matches(const struct tr_rope_table *t, const troupe_rope *rope, int E)
{
    return t->rows != NULL && t->E == E && memcmp(&t->scale, &rope->scale, sizeof t->scale) == 0 &&
           memcmp(t->inv_freq, rope->inv_freq, (size_t)(E / 2) * sizeof(float)) == 0;
}

static void
table_fini(struct tr_rope_table *t)
{
    tr_free(t->inv_freq);
    tr_free(t->rows);
    *t = (struct tr_rope_table){0};
}

static struct tr_rope_table *
table_find(troupe_device *d, const troupe_rope *rope, int E)
{
    for (int i = 0; i < TR_ROPE_TABLES; ++i) {
        if (table_matches(&d->rope[i], rope, E)) {
            return &d->rope[i];
        }
    }
    struct tr_rope_table *t = &d->rope[d->rope_next];
    d->rope_next = (d->rope_next + 1) % TR_ROPE_TABLES;
    table_fini(t);
    t->inv_freq = tr_alloc((size_t)(E / 2) * sizeof(float));
    memcpy(t->inv_freq, rope->inv_freq, (size_t)(E / 2) * sizeof(float));
    t->scale = rope->scale;
    t->E = E;
    return t;
}

static void
table_grow(struct tr_rope_table *t, ptrdiff_t positions)
{
    ptrdiff_t half = t->E / 2;
    t->rows = tr_realloc(t->rows, (size_t)(positions * t->E), sizeof(float));
    for (ptrdiff_t p = t->positions; p < positions; ++p) {
        for (ptrdiff_t i = 0; i < half; ++i) {
            double s, c;
            tr_sincos((double)p * (double)t->inv_freq[i], &s, &c);
            t->rows[p * t->E + i] = (float)(c * (double)t->scale);
            t->rows[p * t->E + half + i] = (float)(s * (double)t->scale);
        }
    }
    t->positions = positions;
}

const float *
tr_rope_rows(troupe_device *d, const troupe_rope *rope, int E, const int32_t *pos, int R)
{
    TR_ASSERT(E > 0 && E % 2 == 0);
    ptrdiff_t last = 0;
    for (ptrdiff_t r = 0; r < R; ++r) {
        TR_ASSERT(pos[r] >= 0);
        last = TR_MAX(last, (ptrdiff_t)pos[r]);
    }
    TR_ASSERT(last < 1 << 20);
    struct tr_rope_table *t = table_find(d, rope, E);
    if (last >= t->positions) {
        table_grow(t, TR_MAX(last + 1, TR_MAX(2 * t->positions, (ptrdiff_t)128)));
    }
    return t->rows;
}

void
tr_rope_fini(troupe_device *d)
{
    for (int i = 0; i < TR_ROPE_TABLES; ++i) {
        table_fini(&d->rope[i]);
    }
}
