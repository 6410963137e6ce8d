// The sampler: a block for each row. Truncation finds the key of the last id that is kept by
// bisection over the bits of the logits, 32 passes over the row; the draw walks spans of ids, one a
// thread, then the ids of one span.
#include "cuda/law.cuh"
#include "cuda/ops.cuh"

struct sampling {
    int32_t *id;
    float *logprob, *logprob_law, *entropy;
    uint8_t *bad;
    const float *logits;
    const troupe_sampling *law;
    const double *u;
    int VV, V;
};

// The kept ids: those whose key is above, and of those whose key is equal the `ties` lowest.
struct cut {
    uint32_t key;
    int ties;
};

// Unsigned keys in the order of the floats; -0 and +0 get the same.
static __device__ uint32_t
key_of(float logit)
{
    uint32_t bits = __float_as_uint(logit + 0.0f);
    return bits ^ ((0u - (bits >> 31)) | 0x80000000u);
}

struct row {
    const float *logits;
    int n;
    tr_law law;
};

// Whether id i with `before` equal keys before it is kept.
static __device__ bool
keeps(const cut &c, uint32_t key, int before)
{
    return key > c.key || (key == c.key && before < c.ties);
}

// All ids that exist: no number has key 0.
static __device__ cut
keep_all(void)
{
    return {.key = 0, .ties = 0};
}

static __device__ double
weight_of_key(const row &r, uint32_t key)
{
    uint32_t bits = key >> 31 != 0 ? key ^ 0x80000000u : ~key;
    return tr_law_weight(r.law, __uint_as_float(bits));
}

// What of the ids that `kept` keeps has a key of at least `key`: their weight, or their number.
// Equal keys have equal weights, so its ties need no walk.
static __device__ double
measure(const row &r, const cut &kept, uint32_t key, bool by_count)
{
    double sum = 0;
    for (int i = (int)threadIdx.x; i < r.n; i += TR_BLOCK) {
        uint32_t k = key_of(r.logits[i]);
        if (k >= key && k > kept.key) {
            sum += by_count ? 1 : tr_law_weight(r.law, r.logits[i]);
        }
    }
    sum = tr_block_sum(sum);
    if (key <= kept.key && kept.ties > 0) {
        sum += kept.ties * (by_count ? 1 : weight_of_key(r, kept.key));
    }
    return sum;
}

// The shortest beginning of `kept`, in the order (logit descending, id ascending), whose measure
// reaches `goal`: at least one id, all when rounding keeps the sum below the goal.
static __device__ cut
shorten(const row &r, const cut &kept, bool by_count, double goal)
{
    uint32_t key = 0; // the highest from which on the measure reaches the goal
    goal = fmax(goal, DBL_MIN);
    for (int bit = 31; bit >= 0; --bit) {
        uint32_t higher = key | 1u << bit;
        key = measure(r, kept, higher, by_count) >= goal ? higher : key;
    }
    double equal = 0;
    for (int i = (int)threadIdx.x; i < r.n; i += TR_BLOCK) {
        equal += key_of(r.logits[i]) == key ? 1 : 0;
    }
    cut last = {.key = key, .ties = (int)tr_block_sum(equal)};
    last = key > kept.key ? last : kept;
    const double above = measure(r, kept, last.key + 1, by_count);
    const double one = by_count || last.ties == 0 ? 1 : weight_of_key(r, last.key);
    int wanted = last.ties > 0 ? 1 : 0;
    while (wanted < last.ties && above + wanted * one < goal) {
        ++wanted;
    }
    last.ties = wanted;
    return last;
}

// Ids are walked in spans, one a thread.
struct spans {
    double weight[TR_BLOCK]; // of the kept ids
    int equal[TR_BLOCK];     // ids with the cut's key
    int size;
};

static __device__ void
fill_spans(spans *s, const row &r, const cut &kept)
{
    const int me = (int)threadIdx.x, size = (r.n + TR_BLOCK - 1) / TR_BLOCK;
    const int first = me * size, end = min(first + size, r.n);
    int count = 0, seen = 0;
    double sum = 0;
    for (int i = first; i < end; ++i) {
        count += key_of(r.logits[i]) == kept.key;
    }
    s->equal[me] = count;
    s->size = size;
    __syncthreads();
    for (int t = 0; t < me; ++t) {
        seen += s->equal[t];
    }
    for (int i = first; i < end; ++i) {
        uint32_t key = key_of(r.logits[i]);
        sum += keeps(kept, key, seen) ? tr_law_weight(r.law, r.logits[i]) : 0;
        seen += key == kept.key;
    }
    s->weight[me] = sum;
    __syncthreads();
}

// The first id, in id order, at which the running weight of the kept ids exceeds u times their
// total; where rounding lets none exceed it, the last id with a weight. *total gets the sum. One
// thread's work.
static __device__ int
walk(const spans *s, const row &r, const cut &kept, double u, double *total)
{
    double all = 0, before = 0;
    int seen = 0, id = -1, last = 0;
    for (int t = 0; t < TR_BLOCK; ++t) {
        all += s->weight[t];
        last = s->weight[t] > 0 ? t : last;
    }
    *total = all;
    for (int t = 0; t <= last; ++t) {
        if (before + s->weight[t] > u * all || t == last) {
            double sum = before;
            for (int i = t * s->size, ties = seen; i < min((t + 1) * s->size, r.n); ++i) {
                uint32_t key = key_of(r.logits[i]);
                double e = keeps(kept, key, ties) ? tr_law_weight(r.law, r.logits[i]) : 0;
                ties += key == kept.key;
                sum += e;
                id = e > 0 ? i : id;
                if (e > 0 && sum > u * all) {
                    return i;
                }
            }
        }
        before += s->weight[t];
        seen += s->equal[t];
    }
    return id;
}

static __device__ int
draw(const row &r, const cut &kept, double u, double *total)
{
    __shared__ spans s;
    __shared__ int chosen;
    fill_spans(&s, r, kept);
    if (threadIdx.x == 0) {
        chosen = walk(&s, r, kept, u, total);
    }
    __syncthreads();
    return chosen;
}

// The lowest id of the largest logit.
static __device__ int
argmax(const row &r)
{
    int id = r.n;
    for (int i = (int)threadIdx.x; i < r.n && id == r.n; i += TR_BLOCK) {
        id = (double)r.logits[i] == r.law.max ? i : id;
    }
    return (int)-tr_block_max(-(float)id);
}

static __global__ void
sample(sampling t)
{
    __shared__ double total;
    const size_t at = blockIdx.x;
    const troupe_sampling s = t.law[at];
    const bool greedy = !(s.temperature > 0);
    row r = {.logits = t.logits + at * t.V, .n = t.VV};
    r.law = tr_law_of(r.logits, r.n, greedy ? 1.0f : 1.0f / s.temperature);
    const bool good = r.law.sum > 0;
    const bool whole = (s.top_k == 0 || s.top_k >= r.n) && s.top_p >= 1;
    int id = -1;
    if (good && greedy) {
        id = argmax(r);
    } else if (good) {
        cut kept = keep_all();
        if (s.top_k > 0 && s.top_k < r.n) {
            kept = shorten(r, kept, true, (double)s.top_k);
        }
        if (s.top_p < 1) {
            double mass = measure(r, kept, 0, false);
            kept = shorten(r, kept, false, fmax((double)s.top_p, 0.0) * mass);
        }
        id = draw(r, kept, t.u[at], &total);
    }
    if (threadIdx.x == 0) {
        const double log_sum = good ? log(r.law.sum) : 0;
        const double logprob = good ? tr_law_logprob(r.law, r.logits[id], log_sum) : 0;
        t.id[at] = id;
        t.bad[at] = !good;
        t.logprob[at] = (float)logprob;
        if (t.logprob_law != NULL) {
            const bool cut_off = good && !greedy && !whole;
            const double law = cut_off ? tr_law_logprob(r.law, r.logits[id], log(total)) : logprob;
            t.logprob_law[at] = (float)(greedy ? 0 : law);
        }
        if (t.entropy != NULL) {
            t.entropy[at] = (float)(good ? tr_law_entropy(r.law, log_sum) : 0);
        }
    }
}

void
tr_cuda_sample(troupe_device *d, int32_t *id, float *logprob, float *logprob_law, float *entropy,
    uint8_t *bad, const float *logits, const troupe_sampling *law, const double *u, int VV, int R,
    int V)
{
    // Ids travel through a float in argmax.
    TR_ASSERT(VV > 0 && VV <= V && VV < 1 << 24);
    if (R == 0 || !tr_cuda_begin(d, "sample")) {
        return;
    }
    const sampling t = {.id = id,
        .logprob = logprob,
        .logprob_law = logprob_law,
        .entropy = entropy,
        .bad = bad,
        .logits = logits,
        .law = law,
        .u = u,
        .VV = VV,
        .V = V};
    sample<<<(unsigned)R, TR_BLOCK, 0, d->stream>>>(t);
    tr_cuda_end(d, "sample");
}
