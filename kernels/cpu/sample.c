/* The sampler. One pass over a row gives its law (law.h), one makes the weights; then a draw. No
 * sort: truncation finds a threshold by radix selection over the bits of the logits, three passes
 * whatever the row looks like, ties included. */
#include "cpu/law.h"
#include "cpu/ops.h"
#include "cpu/pool.h"

#include <troupe/ext/base.h>

enum {
    BUCKETS = 2048
};

/* The kept ids: those whose key is above, and of those whose key is equal the `ties` lowest. */
struct cut {
    uint32_t key;
    ptrdiff_t ties;
};

/* A row in work: e[i] = exp((logit - max) * inv), the weight of id i. */
struct row {
    const float *logits;
    float *e;
    ptrdiff_t n;
};

struct bucket {
    double mass;
    ptrdiff_t count;
};

/* Unsigned keys in the order of the floats; -0 and +0 get the same. */
static uint32_t
key_of(float logit)
{
    uint32_t bits;
    float x = logit + 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

static void
make_weights(const struct row *row, const struct law *law)
{
    for (ptrdiff_t i = 0; i < row->n; i += 16) {
        int lanes = lanes_at(i, row->n);
        v16 z = law_exponent(v16_load_n(row->logits + i, lanes), law->max, law->inv);
        v16_store_n(row->e + i, v16_exp(z), lanes);
    }
}

/* What a selection counts: the mass of the weights, or their number. */
TR_INLINE double
measure(const struct bucket *b, bool by_count)
{
    return by_count ? (double)b->count : b->mass;
}

/* Sorts the keys that agree with `prefix` under `mask` into buckets by the bits above `shift`. */
static void
fill_buckets(
    struct bucket *buckets, const struct row *row, uint32_t prefix, uint32_t mask, int shift)
{
    memset(buckets, 0, BUCKETS * sizeof *buckets);
    for (ptrdiff_t i = 0; i < row->n; ++i) {
        uint32_t key = key_of(row->logits[i]);
        if ((key & mask) == prefix) {
            struct bucket *b = &buckets[(key >> shift) % BUCKETS];
            b->mass += (double)row->e[i];
            b->count += 1;
        }
    }
}

/* The shortest beginning of the order (logit descending, id ascending) whose measure reaches
 * `goal`: at least one id; all, when rounding keeps the sum below the goal. Each level fixes 11
 * bits of the key of the last id (the third takes one bit that the second has fixed already). */
static struct cut
select_cut(const struct row *row, struct bucket *buckets, bool by_count, double goal)
{
    static const int shifts[] = {21, 10, 0};
    uint32_t prefix = 0, mask = 0;
    double above = 0; /* measure of the ids before the chosen bucket */
    struct bucket chosen = {0};
    for (size_t level = 0; level < TR_COUNT(shifts); ++level) {
        fill_buckets(buckets, row, prefix, mask, shifts[level]);
        ptrdiff_t at = BUCKETS;
        for (ptrdiff_t b = BUCKETS - 1; b >= 0; --b) {
            if (buckets[b].count == 0) {
                continue;
            }
            above += at < BUCKETS ? measure(&chosen, by_count) : 0;
            at = b;
            chosen = buckets[b];
            if (above + measure(&chosen, by_count) >= goal) {
                break;
            }
        }
        prefix |= (uint32_t)at << shifts[level];
        mask |= (uint32_t)(BUCKETS - 1) << shifts[level];
    }
    struct cut cut = {.key = prefix, .ties = chosen.count};
    double each = measure(&chosen, by_count) / (double)chosen.count;
    for (ptrdiff_t t = 1; t < chosen.count; ++t) {
        above += each;
        if (above >= goal) {
            cut.ties = t;
            break;
        }
    }
    return cut;
}

/* Sets the weights of the ids that a cut drops to zero. */
static void
apply_cut(const struct row *row, struct cut cut)
{
    ptrdiff_t ties = cut.ties;
    for (ptrdiff_t i = 0; i < row->n; ++i) {
        uint32_t key = key_of(row->logits[i]);
        bool kept = key > cut.key || (key == cut.key && ties-- > 0);
        row->e[i] = kept ? row->e[i] : 0;
    }
}

/* Sums of the weights of each LAW_CHUNK ids; returns the sum of all. */
static double
sum_chunks(double *chunks, const struct row *row)
{
    double total = 0;
    for (ptrdiff_t first = 0; first < row->n; first += LAW_CHUNK) {
        ptrdiff_t end = TR_MIN(first + LAW_CHUNK, row->n);
        v16 sum = v16_set1(0);
        for (ptrdiff_t i = first; i < end; i += 16) {
            sum = v16_add(sum, v16_load_n(row->e + i, lanes_at(i, end)));
        }
        chunks[first / LAW_CHUNK] = (double)v16_sum(sum);
        total += chunks[first / LAW_CHUNK];
    }
    return total;
}

/* The first id at which the running sum of the weights, in id order, exceeds u times their total;
 * where rounding lets none exceed it, the last id with a weight. */
static int32_t
draw(const struct row *row, const double *chunks, double total, double u)
{
    double goal = u * total, before = 0;
    for (ptrdiff_t first = 0; first < row->n; first += LAW_CHUNK) {
        double sum = before;
        before += chunks[first / LAW_CHUNK];
        for (ptrdiff_t i = first; before > goal && i < TR_MIN(first + LAW_CHUNK, row->n); ++i) {
            sum += (double)row->e[i];
            if (row->e[i] > 0 && sum > goal) {
                return (int32_t)i;
            }
        }
    }
    int32_t id = (int32_t)row->n - 1;
    while (id > 0 && !(row->e[id] > 0)) {
        --id;
    }
    return id;
}

/* Top-k, then top-p of what is left. */
static void
truncate_row(
    const struct row *row, const troupe_sampling *s, struct bucket *buckets, double *chunks)
{
    if (s->top_k > 0 && s->top_k < row->n) {
        apply_cut(row, select_cut(row, buckets, true, (double)s->top_k));
    }
    if (s->top_p < 1) {
        double goal = (double)s->top_p * sum_chunks(chunks, row);
        apply_cut(row, select_cut(row, buckets, false, goal));
    }
}

/* The lowest id of the largest logit. */
static int32_t
argmax(const float *logits, ptrdiff_t n, float max)
{
    int32_t id = 0;
    while (id < n && logits[id] != max) {
        ++id;
    }
    return id;
}

/* The law of a whole row, gathered as the LM head gathers it. */
static struct law
law_of(const float *logits, ptrdiff_t n, float inv_temperature)
{
    struct law law = law_begin(inv_temperature);
    for (ptrdiff_t first = 0; first < n; first += LAW_CHUNK) {
        law_add(&law, logits + first, TR_MIN(LAW_CHUNK, n - first));
    }
    return law;
}

struct scratch {
    float *e;
    double *chunks;
    struct bucket *buckets;
};

struct drawn {
    int32_t id;
    double logprob, logprob_law, entropy;
};

static struct drawn
sample_row(const float *logits, const troupe_sampling *s, double u, ptrdiff_t n,
    const struct scratch *scratch)
{
    bool greedy = s->temperature == 0;
    struct law law = law_of(logits, n, greedy ? 1.0f : 1.0f / s->temperature);
    struct drawn drawn = {.id = -1};
    if (!law_is_good(&law)) {
        return drawn;
    }
    double log_sum = tr_log(law.sum);
    drawn.entropy = law_entropy(&law, log_sum);
    if (greedy) {
        drawn.id = argmax(logits, n, law.max);
        drawn.logprob = law_logprob(&law, logits[drawn.id], log_sum);
        return drawn;
    }
    struct row row = {.logits = logits, .e = scratch->e, .n = n};
    make_weights(&row, &law);
    bool whole = (s->top_k == 0 || s->top_k >= n) && s->top_p >= 1;
    if (!whole) {
        truncate_row(&row, s, scratch->buckets, scratch->chunks);
    }
    double total = sum_chunks(scratch->chunks, &row);
    drawn.id = draw(&row, scratch->chunks, total, u);
    drawn.logprob = law_logprob(&law, logits[drawn.id], log_sum);
    drawn.logprob_law = whole ? drawn.logprob : law_logprob(&law, logits[drawn.id], tr_log(total));
    return drawn;
}

/* The arguments; a thread takes a range of rows. */
struct sampling {
    int32_t *id;
    float *logprob, *logprob_law, *entropy;
    uint8_t *bad;
    const float *logits;
    const troupe_sampling *sampling;
    const double *u;
    ptrdiff_t VV, V;
};

static void
sample_range(troupe_device *d, const void *context, ptrdiff_t first, ptrdiff_t count)
{
    const struct sampling *t = context;
    tr_scratch_begin(d);
    struct scratch scratch = {.e = tr_scratch(d, (size_t)t->VV * sizeof(float)),
        .chunks = tr_scratch(d, (size_t)(t->VV / LAW_CHUNK + 1) * sizeof(double)),
        .buckets = tr_scratch(d, BUCKETS * sizeof(struct bucket))};
    for (ptrdiff_t r = first; r < first + count; ++r) {
        const troupe_sampling *s = &t->sampling[r];
        TR_ASSERT(s->temperature >= 0 && s->top_k >= 0 && !isnan(s->top_p));
        struct drawn drawn = sample_row(t->logits + r * t->V, s, t->u[r], t->VV, &scratch);
        t->id[r] = drawn.id;
        t->bad[r] = drawn.id < 0;
        t->logprob[r] = (float)drawn.logprob;
        if (t->logprob_law != NULL) {
            t->logprob_law[r] = (float)drawn.logprob_law;
        }
        if (t->entropy != NULL) {
            t->entropy[r] = (float)drawn.entropy;
        }
    }
    tr_scratch_end(d);
}

void
TR_FN(sample)(troupe_device *d, int32_t *id, float *logprob, float *logprob_law, float *entropy,
    uint8_t *bad, const float *logits, const troupe_sampling *sampling, const double *u, int VV,
    int R, int V)
{
    TR_ASSERT(VV > 0 && VV <= V);
    struct sampling t = {.id = id,
        .logprob = logprob,
        .logprob_law = logprob_law,
        .entropy = entropy,
        .bad = bad,
        .logits = logits,
        .sampling = sampling,
        .u = u,
        .VV = VV,
        .V = V};
    tr_split(d, R, tr_grain(100.0 * VV), sample_range, &t);
}
