/* The sampler. One pass over a row gives its law (law.h), one makes the weights; then a draw. No
 * sort of the vocabulary: truncation finds a threshold by radix selection over the bits of the
 * logits, at most three passes whatever the row looks like, and each over fewer ids. */
#include "cpu/law.h"
#include "cpu/ops.h"
#include "cpu/pool.h"

#include <troupe/ext/base.h>

enum {
    BUCKETS = 2048,
    SORT_MAX = 48 /* so few ids are sorted instead */
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

/* An id that may be the last one kept; in id order. */
struct candidate {
    uint32_t key;
    float e;
};

struct scratch {
    float *e;
    double *chunks;
    struct bucket *buckets;
    struct candidate *candidates; /* VV + 1 */
};

/* Unsigned keys in the order of the floats; -0 and +0 get the same. */
static inline uint32_t
key_of(float logit)
{
    uint32_t bits;
    float x = logit + 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return bits ^ ((0u - (bits >> 31)) | 0x80000000u);
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
measure(double mass, double count, bool by_count)
{
    return by_count ? count : mass;
}

/* The ids of at least this weight. The loops that gather write first and count then: whether an id
 * is taken is a coin toss, which no processor predicts. */
static ptrdiff_t
collect(struct candidate *c, const struct row *row, double least)
{
    ptrdiff_t count = 0;
    for (ptrdiff_t i = 0; i < row->n; ++i) {
        c[count] = (struct candidate){.key = key_of(row->logits[i]), .e = row->e[i]};
        count += (double)row->e[i] >= least;
    }
    return count;
}

/* Sorts the candidates by the 11 bits of their keys above `shift`, walks from the highest bucket
 * down to the one where `above` plus the measure so far reaches the goal, or to the last, and keeps
 * its candidates only. `above` grows by the buckets passed. */
static ptrdiff_t
narrow(struct candidate *c, ptrdiff_t count, struct bucket *buckets, int shift, bool by_count,
    double *above, double goal)
{
    memset(buckets, 0, BUCKETS * sizeof *buckets);
    for (ptrdiff_t i = 0; i < count; ++i) {
        struct bucket *b = &buckets[(c[i].key >> shift) % BUCKETS];
        b->mass += (double)c[i].e;
        b->count += 1;
    }
    ptrdiff_t chosen = -1;
    double here = 0;
    for (ptrdiff_t b = BUCKETS - 1; b >= 0; --b) {
        if (buckets[b].count > 0) {
            *above += here;
            here = measure(buckets[b].mass, (double)buckets[b].count, by_count);
            chosen = b;
            if (*above + here >= goal) {
                break;
            }
        }
    }
    ptrdiff_t kept = 0;
    for (ptrdiff_t i = 0; i < count; ++i) {
        struct candidate one = c[i];
        c[kept] = one;
        kept += (ptrdiff_t)((one.key >> shift) % BUCKETS) == chosen;
    }
    return kept;
}

/* Highest key first; equal keys stay in id order. */
static void
sort_few(struct candidate *c, ptrdiff_t count)
{
    for (ptrdiff_t i = 1; i < count; ++i) {
        struct candidate one = c[i];
        ptrdiff_t j = i;
        for (; j > 0 && c[j - 1].key < one.key; --j) {
            c[j] = c[j - 1];
        }
        c[j] = one;
    }
}

/* The shortest beginning of the order (logit descending, id ascending) whose measure reaches
 * `goal`: at least one id; all, when rounding keeps the sum below the goal. Only ids of at least
 * the weight `least`, which the caller knows to hold the answer. Each narrowing fixes 11 bits of
 * the key of the last id (the third takes one bit that the second has fixed already); after three
 * all keys left are equal. */
static struct cut
select_cut(const struct row *row, const struct scratch *s, bool by_count, double goal, double least)
{
    static const int shifts[] = {21, 10, 0};
    struct candidate *c = s->candidates;
    ptrdiff_t count = collect(c, row, least);
    double above = 0; /* measure of the ids before the candidates */
    for (size_t level = 0; level < TR_COUNT(shifts) && count > SORT_MAX; ++level) {
        count = narrow(c, count, s->buckets, shifts[level], by_count, &above, goal);
    }
    if (count <= SORT_MAX) {
        sort_few(c, count);
    }
    struct cut cut = {.key = c[0].key};
    for (ptrdiff_t i = 0; i < count; ++i) {
        cut.ties = c[i].key == cut.key ? cut.ties + 1 : 1;
        cut.key = c[i].key;
        above += measure((double)c[i].e, 1, by_count);
        if (above >= goal) {
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
        bool equal = key == cut.key;
        bool kept = key > cut.key || (equal && ties > 0);
        ties -= equal;
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

/* Top-k, then top-p of what is left. For the latter, ids of less weight than (1 - p) / n of the
 * mass have less than 1 - p of it together, so none of them is kept: of a peaked row that leaves
 * few to look at. (Half of it, for the rounding.) */
static void
truncate_row(const struct row *row, const troupe_sampling *sampling, const struct scratch *s)
{
    if (sampling->top_k > 0 && sampling->top_k < row->n) {
        apply_cut(row, select_cut(row, s, true, (double)sampling->top_k, 0));
    }
    if (sampling->top_p < 1) {
        double mass = sum_chunks(s->chunks, row);
        double p = TR_MAX((double)sampling->top_p, 0.0);
        double least = 0.5 * (1 - p) * mass / (double)row->n;
        apply_cut(row, select_cut(row, s, false, p * mass, least));
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
        truncate_row(&row, s, scratch);
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
        .buckets = tr_scratch(d, BUCKETS * sizeof(struct bucket)),
        .candidates = tr_scratch(d, (size_t)(t->VV + 1) * sizeof(struct candidate))};
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
