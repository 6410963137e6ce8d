/* Sequences to micro-batches (first-fit decreasing) and costs to ranks (Karmarkar-Karp
 * differencing). Both first decide a bin for every item and then lay the items out by bin, in one
 * place. Every tie is broken by the lowest index, so that all ranks compute the same answer without
 * talking. */
#include <troupe/ext/base.h>
#include <troupe/packing.h>

#include <stdlib.h>
#include <string.h>

static const int64_t sum_max = (int64_t)1 << 62;

/* What first-fit places: one item, or all items of a group. */
typedef struct tr_unit {
    int64_t length;
    int32_t first; /* its lowest item: breaks ties */
    int32_t bin;
} tr_unit;

static troupe_status check_lengths(
    const int32_t *lengths, int32_t count, int64_t budget, troupe_error *err);
static int32_t group_units(const int32_t *lengths, const int32_t *group_of, int32_t count,
    tr_unit *units, int32_t *unit_of);
static int32_t first_fit(tr_unit *const *order, int32_t count, int64_t budget);
static int by_length(const void *a, const void *b);
static void lay_out(troupe_packing *packing, const int32_t *bin_of, int32_t count, int32_t bins,
    const int64_t *weights);

void
troupe_packing_fini(troupe_packing *packing)
{
    if (packing == NULL) {
        return;
    }
    tr_free(packing->starts);
    tr_free(packing->items);
    tr_free(packing->loads);
    *packing = (troupe_packing){0};
}

int64_t
troupe_pack_cost(int32_t length, int32_t linear, int32_t quadratic)
{
    TR_ASSERT(length >= 0 && linear >= 0 && quadratic >= 0);
    const int64_t l = length;
    const int64_t first = l * linear; /* both products of two are below 2^62 */
    const int64_t square = l * l;
    if (quadratic > 0 && square > (sum_max - first) / quadratic) {
        return sum_max;
    }
    return first + square * quadratic;
}

/* --- first-fit decreasing -------------------------------------------------------------------- */

troupe_status
troupe_pack_tokens(troupe_packing *packing, const int32_t *lengths, const int32_t *group_of,
    int32_t count, int64_t budget, troupe_error *err)
{
    TR_ASSERT(packing != NULL && count >= 0 && (lengths != NULL || count == 0));
    troupe_status status = check_lengths(lengths, count, budget, err);
    if (status != TROUPE_OK) {
        return status;
    }
    tr_unit *units = tr_zalloc((size_t)count, sizeof *units);
    tr_unit **order = tr_zalloc((size_t)count, sizeof(tr_unit *));
    int32_t *bin_of = tr_zalloc((size_t)count, sizeof *bin_of);
    int64_t *weights = tr_zalloc((size_t)count, sizeof *weights);
    int32_t bins = 0;
    const int32_t n = group_units(lengths, group_of, count, units, bin_of);
    for (int32_t i = 0; i < n; i++) {
        order[i] = &units[i];
    }
    qsort(order, (size_t)n, sizeof(tr_unit *), by_length);
    if (n > 0 && order[0]->length > budget) {
        status = troupe_fail(err, TROUPE_BAD_INPUT,
            "packing: group %d has %lld tokens together, more than the budget of %lld of a "
            "micro-batch; raise the budget or let groups be split",
            (int)group_of[order[0]->first], (long long)order[0]->length, (long long)budget);
        goto done;
    }
    bins = first_fit(order, n, budget);
    for (int32_t i = 0; i < count; i++) {
        bin_of[i] = units[bin_of[i]].bin; /* it named the unit until here */
        weights[i] = lengths[i];
    }
    lay_out(packing, bin_of, count, bins, weights);
done:
    tr_free(weights);
    tr_free(bin_of);
    tr_free(order);
    tr_free(units);
    return status;
}

static troupe_status
check_lengths(const int32_t *lengths, int32_t count, int64_t budget, troupe_error *err)
{
    if (budget < 1) {
        return troupe_fail(err, TROUPE_INVALID,
            "packing: the token budget of a micro-batch is %lld; it must be at least 1",
            (long long)budget);
    }
    for (int32_t i = 0; i < count; i++) {
        if (lengths[i] < 1) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "packing: sequence %d has length %d; it must be at least 1", (int)i,
                (int)lengths[i]);
        }
        if (lengths[i] > budget) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "packing: sequence %d has %d tokens, more than the budget of %lld of a "
                "micro-batch; raise the budget or shorten prompts and responses",
                (int)i, (int)lengths[i], (long long)budget);
        }
    }
    return TROUPE_OK;
}

typedef struct tr_member {
    int32_t group;
    int32_t item;
} tr_member;

static int
by_group(const void *a, const void *b)
{
    const tr_member *x = a;
    const tr_member *y = b;
    if (x->group != y->group) {
        return x->group < y->group ? -1 : 1;
    }
    return x->item < y->item ? -1 : 1;
}

/* Fills units, and for each item the index of its unit; returns the number of units. */
static int32_t
group_units(const int32_t *lengths, const int32_t *group_of, int32_t count, tr_unit *units,
    int32_t *unit_of)
{
    if (group_of == NULL) {
        for (int32_t i = 0; i < count; i++) {
            units[i] = (tr_unit){.length = lengths[i], .first = i};
            unit_of[i] = i;
        }
        return count;
    }
    tr_member *members = tr_zalloc((size_t)count, sizeof *members);
    for (int32_t i = 0; i < count; i++) {
        members[i] = (tr_member){.group = group_of[i], .item = i};
    }
    qsort(members, (size_t)count, sizeof *members, by_group);
    int32_t n = 0;
    for (int32_t i = 0; i < count; i++) {
        if (i == 0 || members[i].group != members[i - 1].group) {
            units[n] = (tr_unit){.first = members[i].item};
            n++;
        }
        units[n - 1].length += lengths[members[i].item];
        unit_of[members[i].item] = n - 1;
    }
    tr_free(members);
    return n;
}

/* Longest first; among equals the one that holds the lowest item. Never 0 for two units. */
static int
by_length(const void *a, const void *b)
{
    const tr_unit *x = *(tr_unit *const *)a;
    const tr_unit *y = *(tr_unit *const *)b;
    if (x->length != y->length) {
        return x->length > y->length ? -1 : 1;
    }
    return (x->first > y->first) - (x->first < y->first);
}

/* The first bin with room is found in a tree over the bins' room: node i holds the larger room of
 * its children 2i and 2i + 1, leaves are the bins. Returns the number of bins that were opened. */
static int32_t
first_fit(tr_unit *const *order, int32_t count, int64_t budget)
{
    size_t leaves = 1;
    while (leaves < (size_t)count) {
        leaves *= 2;
    }
    int64_t *room = tr_zalloc(2 * leaves, sizeof *room);
    for (size_t i = 0; i < 2 * leaves; i++) {
        room[i] = budget;
    }
    int32_t bins = 0;
    for (int32_t i = 0; i < count; i++) {
        size_t node = 1;
        while (node < leaves) {
            node = room[2 * node] >= order[i]->length ? 2 * node : 2 * node + 1;
        }
        TR_ASSERT(room[node] >= order[i]->length);
        order[i]->bin = (int32_t)(node - leaves);
        bins = TR_MAX(bins, order[i]->bin + 1);
        room[node] -= order[i]->length;
        for (node /= 2; node > 0; node /= 2) {
            room[node] = TR_MAX(room[2 * node], room[2 * node + 1]);
        }
    }
    tr_free(room);
    return bins;
}

/* --- Karmarkar-Karp -------------------------------------------------------------------------- */

/* One subset of a partial partition: its sum and its items, a chain through `next`. */
typedef struct tr_part {
    int64_t sum;
    int32_t first;      /* lowest item, INT32_MAX when empty: breaks ties */
    int32_t head, tail; /* -1 when empty */
} tr_part;

/* Partial partitions in a heap by spread; partition p has the parts p * ways .. p * ways + ways -
 * 1, largest sum first. */
typedef struct tr_differencing {
    int32_t ways;
    int32_t count; /* partitions in the heap */
    int32_t *heap;
    tr_part *parts;
    int32_t *next;
} tr_differencing;

static int64_t
spread(const tr_differencing *d, int32_t p)
{
    const tr_part *parts = &d->parts[(size_t)p * (size_t)d->ways];
    return parts[0].sum - parts[d->ways - 1].sum;
}

static bool
wider(const tr_differencing *d, int32_t p, int32_t q)
{
    const int64_t x = spread(d, p);
    const int64_t y = spread(d, q);
    return x != y ? x > y : p < q;
}

static void
sift_down(tr_differencing *d, int32_t at)
{
    for (;;) {
        int32_t top = at;
        for (int32_t child = 2 * at + 1; child <= 2 * at + 2; child++) {
            if (child < d->count && wider(d, d->heap[child], d->heap[top])) {
                top = child;
            }
        }
        if (top == at) {
            return;
        }
        const int32_t held = d->heap[at];
        d->heap[at] = d->heap[top];
        d->heap[top] = held;
        at = top;
    }
}

static int
by_sum(const void *a, const void *b)
{
    const tr_part *x = a;
    const tr_part *y = b;
    if (x->sum != y->sum) {
        return x->sum > y->sum ? -1 : 1;
    }
    return (x->first > y->first) - (x->first < y->first);
}

/* Adds the parts of q to those of p, the largest of one to the smallest of the other. */
static void
merge(tr_differencing *d, int32_t p, int32_t q)
{
    tr_part *into = &d->parts[(size_t)p * (size_t)d->ways];
    const tr_part *from = &d->parts[(size_t)q * (size_t)d->ways];
    for (int32_t i = 0; i < d->ways; i++) {
        tr_part *part = &into[i];
        const tr_part *other = &from[d->ways - 1 - i];
        part->sum += other->sum;
        part->first = TR_MIN(part->first, other->first);
        if (other->head < 0) {
            continue;
        }
        if (part->head < 0) {
            part->head = other->head;
        } else {
            d->next[part->tail] = other->head;
        }
        part->tail = other->tail;
    }
    qsort(into, (size_t)d->ways, sizeof *into, by_sum);
}

static void
differencing_init(tr_differencing *d, const int64_t *costs, int32_t count, int32_t ways)
{
    *d = (tr_differencing){.ways = ways, .count = count};
    d->heap = tr_zalloc((size_t)count, sizeof *d->heap);
    d->next = tr_zalloc((size_t)count, sizeof *d->next);
    d->parts = tr_zalloc((size_t)count, (size_t)ways * sizeof *d->parts);
    for (int32_t p = 0; p < count; p++) {
        d->heap[p] = p;
        d->next[p] = -1;
        tr_part *parts = &d->parts[(size_t)p * (size_t)ways];
        parts[0] = (tr_part){.sum = costs[p], .first = p, .head = p, .tail = p};
        for (int32_t i = 1; i < ways; i++) {
            parts[i] = (tr_part){.first = INT32_MAX, .head = -1, .tail = -1};
        }
    }
    for (int32_t at = count / 2 - 1; at >= 0; at--) {
        sift_down(d, at);
    }
}

/* Joins the two widest partitions until one is left; writes each item's bin. */
static void
difference(const int64_t *costs, int32_t count, int32_t ways, int32_t *bin_of)
{
    tr_differencing d;
    differencing_init(&d, costs, count, ways);
    while (d.count > 1) {
        const int32_t p = d.heap[0];
        d.count--;
        d.heap[0] = d.heap[d.count];
        sift_down(&d, 0);
        const int32_t q = d.heap[0];
        merge(&d, TR_MIN(p, q), TR_MAX(p, q));
        d.heap[0] = TR_MIN(p, q);
        sift_down(&d, 0);
    }
    for (int32_t bin = 0; count > 0 && bin < ways; bin++) {
        const tr_part *part = &d.parts[(size_t)d.heap[0] * (size_t)ways + (size_t)bin];
        for (int32_t item = part->head; item >= 0; item = d.next[item]) {
            bin_of[item] = bin;
        }
    }
    tr_free(d.parts);
    tr_free(d.next);
    tr_free(d.heap);
}

troupe_status
troupe_pack_balance(
    troupe_packing *packing, const int64_t *costs, int32_t count, int32_t ways, troupe_error *err)
{
    TR_ASSERT(packing != NULL && count >= 0 && (costs != NULL || count == 0));
    if (ways < 1) {
        return troupe_fail(
            err, TROUPE_INVALID, "packing: %d ranks to balance over; give at least 1", (int)ways);
    }
    int64_t sum = 0;
    for (int32_t i = 0; i < count; i++) {
        if (costs[i] < 0 || costs[i] > sum_max - sum) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "packing: cost %lld of item %d is below 0 or takes the sum beyond 2^62; scale the "
                "costs down",
                (long long)costs[i], (int)i);
        }
        sum += costs[i];
    }
    int32_t *bin_of = tr_zalloc((size_t)count, sizeof *bin_of);
    difference(costs, count, ways, bin_of);
    lay_out(packing, bin_of, count, ways, costs);
    tr_free(bin_of);
    return TROUPE_OK;
}

/* --- the answer ------------------------------------------------------------------------------ */

/* A counting sort by bin: stable, so that the items of a bin come in ascending order. */
static void
lay_out(troupe_packing *packing, const int32_t *bin_of, int32_t count, int32_t bins,
    const int64_t *weights)
{
    packing->bins = bins;
    packing->count = count;
    packing->starts = tr_zalloc((size_t)bins + 1, sizeof *packing->starts);
    packing->items = tr_zalloc((size_t)count, sizeof *packing->items);
    packing->loads = tr_zalloc((size_t)bins, sizeof *packing->loads);
    for (int32_t i = 0; i < count; i++) {
        packing->starts[bin_of[i] + 1]++;
        packing->loads[bin_of[i]] += weights[i];
    }
    for (int32_t b = 0; b < bins; b++) {
        packing->starts[b + 1] += packing->starts[b];
    }
    int32_t *at = tr_zalloc((size_t)bins, sizeof *at);
    memcpy(at, packing->starts, (size_t)bins * sizeof *at);
    for (int32_t i = 0; i < count; i++) {
        packing->items[at[bin_of[i]]] = i;
        at[bin_of[i]]++;
    }
    tr_free(at);
}
