/* The fused operations that the language-model layer is built from, one table per kind of device.
 *
 * Conventions for every entry
 *   - All arrays are row-major, fp32, and live in the device's memory; ids and positions are int32.
 *   - R is a number of rows (tokens, packed without padding), D the hidden size, F the MLP size, H
 *     and KH the numbers of query and key/value heads (H a multiple of KH), E the head size, V the
 *     number of rows of the LM head, VV <= V the number of valid ids: ids >= VV do not exist, in
 *     the sampler and in the trainer alike.
 *   - "+=" accumulates into its target, "=" overwrites it. Inputs and outputs do not overlap unless
 *     the entry says "in place".
 *   - Row invariance: the bits of an output row depend on that row's inputs only, never on R, on
 *     the other rows, or on how rows were batched. So the log-prob of a sampled token equals the
 *     one that teacher forcing computes, to the bit. Gradients of parameters add row after row to
 *     what is there: the bits of a sum over two batches, one accumulated after the other, are
 *     those of both in one. On "cpu" they depend on neither the processor nor the number of threads
 *     either. ("cpu:plain", the reference, keeps only the promise about output rows.)
 *   - Entries return nothing: shapes are checked by assertions (they come from code, not from
 *     files). A device error is found by `sync`, which names the operation.
 *   - Thread: the one that owns the device handle. Scratch comes from the device, not from malloc
 *     per call. An entry that is NULL is not supported, and is refused at placement. */
#ifndef TROUPE_KERNELS_H
#define TROUPE_KERNELS_H

#include <troupe/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct troupe_device troupe_device;
typedef struct troupe_ops troupe_ops;
typedef struct troupe_packed_weight troupe_packed_weight;

/* --- devices --- */

typedef struct troupe_device_options {
    size_t size; /* sizeof(troupe_device_options) */
    int threads; /* CPU: threads of this handle, the caller's included (0 means 1) */
} troupe_device_options;

/* Opens a device. "cpu" is the fastest form that this processor runs, "cpu:plain" the reference
 * forms. "cuda" is the first GPU, "cuda:1" the second in the driver's order, "cuda:GPU-..." the one
 * with that UUID; its code is a shared object that is looked for at run time (ext/device.h says
 * where). An unknown name is NOT_FOUND with the names that there are; a kind whose shared object,
 * driver or hardware is missing is UNSUPPORTED or NOT_FOUND and names what is missing and the
 * remedy. Caller owns *out. */
troupe_status troupe_device_open(const char *name, const troupe_device_options *options,
    troupe_device **out, troupe_error *err) TROUPE_MUST_USE;
void troupe_device_close(troupe_device *device); /* NULL is allowed */
const troupe_ops *troupe_device_ops(const troupe_device *device);
/* "cpu", "cpu:avx2", ...; a GPU by its UUID: "cuda:GPU-2f3c...". */
const char *troupe_device_name(const troupe_device *device);

/* What a device is, for people and for records. */
typedef struct troupe_device_info {
    char kind[16];         /* "cpu", "cuda" */
    char uuid[48];         /* "" for a CPU */
    char model[96];        /* the hardware's name for itself; "" when it has none */
    char versions[96];     /* of driver and runtime; "" without */
    uint64_t memory_bytes; /* of its own; 0 for a CPU, which shares the host's */
    uint64_t memory_free_bytes;
} troupe_device_info;

void troupe_device_get_info(troupe_device *device, troupe_device_info *info);

/* --- memory and copies
 *
 * What a handle is asked to do (operations, copies, zeroing) is done in the order in which it was
 * asked, as far as one stream goes. Pointers of a GPU's memory mean nothing on the host, but
 * offsets may be added to them. */

/* Device memory, 64-byte aligned, zeroed. NULL when there is none left, and on a device that has
 * failed for good (troupe_device_sync says so). */
void *troupe_device_alloc(troupe_device *device, size_t bytes);
/* Waits for work that may use it where the device needs that. NULL is allowed. */
void troupe_device_free(troupe_device *device, void *ptr);
/* Between host and device; returns when the host's memory may be used again. A download waits for
 * the work before it. The cause of a failure is told by troupe_device_sync. */
troupe_status troupe_device_upload(troupe_device *device, void *dst, const void *src, size_t bytes);
troupe_status troupe_device_download(
    troupe_device *device, void *dst, const void *src, size_t bytes);
/* Inside the device's memory; no overlap. Submitted, not waited for. */
troupe_status troupe_device_copy(troupe_device *device, void *dst, const void *src, size_t bytes);
troupe_status troupe_device_zero(troupe_device *device, void *dst, size_t bytes);
/* Waits for all submitted work of all streams of the handle; the first error since the last sync,
 * with the operation's name. After an error of the hardware or driver every later call on the
 * device, this one included, fails with the same DEVICE error: such errors are sticky, so the
 * process that owns the handle has to be replaced. */
troupe_status troupe_device_sync(troupe_device *device, troupe_error *err) TROUPE_MUST_USE;

/* --- streams and events
 *
 * A handle begins with one stream. Work in different streams may run at the same time; an event
 * orders it: recorded in one stream, waited for in another. A CPU has finished each piece of work
 * when the call returns, so there every order holds by itself. */

typedef struct troupe_device_stream troupe_device_stream;
typedef struct troupe_device_event troupe_device_event;

troupe_status troupe_device_stream_new(
    troupe_device *device, troupe_device_stream **out, troupe_error *err) TROUPE_MUST_USE;
/* Waits for its work. A stream in use is left for the first one. NULL is allowed. */
void troupe_device_stream_free(troupe_device *device, troupe_device_stream *stream);
/* From now on the handle's work goes to `stream`; NULL = the one that it began with. */
void troupe_device_use(troupe_device *device, troupe_device_stream *stream);
troupe_status troupe_device_event_new(
    troupe_device *device, troupe_device_event **out, troupe_error *err) TROUPE_MUST_USE;
void troupe_device_event_free(troupe_device *device, troupe_device_event *event);
/* Marks the end of what was submitted so far to the stream in use. */
troupe_status troupe_device_event_record(troupe_device *device, troupe_device_event *event);
/* What is submitted to the stream in use from now on begins after the event. */
troupe_status troupe_device_event_wait(troupe_device *device, troupe_device_event *event);
/* Whether the work before the event is done; one never recorded is done. Does not wait. */
troupe_status troupe_device_event_done(
    troupe_device *device, troupe_device_event *event, bool *done);

/* --- packed weights --- */

/* A weight matrix [N, K] in the layout that the device's row-invariant GEMM reads (CPU: panels of
 * columns). Made once per published version, shared read-only by any number of threads. NULL when
 * there is no memory left. */
troupe_packed_weight *troupe_weight_pack(troupe_device *device, const float *weight, int N, int K);
/* Writes new values into an existing packed weight of the same shape. */
void troupe_weight_repack(troupe_device *device, troupe_packed_weight *packed, const float *weight);
void troupe_weight_free(troupe_device *device, troupe_packed_weight *packed);

/* --- descriptors --- */

/* Rotary position embedding, half-split ("NeoX") pairs (i, i + E/2): angle = position *
 * inv_freq[i], both cos and sin multiplied by `scale` (1 except for yarn-like types). inv_freq has
 * E/2 entries and is computed by the caller in double (default, linear and llama3 rope types),
 * stored fp32. */
typedef struct troupe_rope {
    const float *inv_freq;
    float scale;
} troupe_rope;

/* Paged keys and values: block b holds `block_size` positions; K and V of layer l, block b, offset
 * o, head h start at ((l * blocks + b) * block_size + o) * KH * E + h * E of `k` and `v`. */
typedef struct troupe_kv_cache {
    float *k;
    float *v;
    int blocks;
    int block_size;
    int KH, E;
} troupe_kv_cache;

/* Rows that attend through a paged cache: row r belongs to sequence seq[r] and has position pos[r];
 * it sees positions 0..pos[r] of its sequence, through tables[seq * table_stride + position /
 * block_size]. */
typedef struct troupe_paged_rows {
    int R;
    const int32_t *seq;
    const int32_t *pos;
    const int32_t *tables;
    int table_stride;
} troupe_paged_rows;

/* How a next token is drawn from a row of logits. temperature 0 is greedy (ties: lowest id).
 * Order: divide by temperature, keep the top_k largest (0 = all), renormalise, then keep the
 * smallest set whose probability reaches top_p (1 = all; the crossing token is kept, and always one
 * token); ties are ordered by (probability descending, id ascending); renormalise; inverse-CDF draw
 * in id order with uniform u in [0, 1). temperature and top_k are >= 0, top_p is no NaN: the caller
 * checks. */
typedef struct troupe_sampling {
    float temperature;
    float top_p;
    int top_k;
} troupe_sampling;

typedef struct troupe_adamw {
    float lr, beta1, beta2, eps, weight_decay; /* decoupled decay: p -= lr * weight_decay * p */
    float grad_scale;                          /* multiplies the gradient first (clipping) */
    int64_t step; /* 1 for the first update; bias correction in double */
} troupe_adamw;

/* --- the table --- */

struct troupe_ops {
    const char *name;

    /* out[R,D] = table[ids[r], :]. */
    void (*embed_forward)(
        troupe_device *d, float *out, const float *table, const int32_t *ids, int R, int D);
    /* dtable[ids[r], :] += dout[r, :], rows in order. */
    void (*embed_backward)(
        troupe_device *d, float *dtable, const float *dout, const int32_t *ids, int R, int D);

    /* Residual and RMSNorm in one pass: if x is not NULL, resid[R,D] += x; then
     * out = resid * rstd * w, rstd[r] = 1 / sqrt(mean(resid^2) + eps). rstd may be NULL. */
    void (*add_rmsnorm_forward)(troupe_device *d, float *out, float *resid, float *rstd,
        const float *x, const float *w, float eps, int R, int D);
    /* dresid[R,D] += gradient through the norm of dout[R,D]; dw[D] += . `resid` is the sum that the
     * forward pass left. */
    void (*rmsnorm_backward)(troupe_device *d, float *dresid, float *dw, const float *dout,
        const float *resid, const float *w, const float *rstd, int R, int D);

    /* y[R,N] = x[R,K] * W[N,K]^T (+ bias[N] when not NULL); y += when `accumulate`. Every sum is
     * one chain of fused multiply-adds over K in index order, from 0 or from y; the bias comes
     * last. */
    void (*linear_forward)(troupe_device *d, float *y, const float *x,
        const troupe_packed_weight *w, const float *bias, bool accumulate, int R);
    /* dx[R,K] = dy[R,N] * W[N,K], W unpacked; dx += when `accumulate`. */
    void (*linear_backward_input)(troupe_device *d, float *dx, const float *dy, const float *w,
        bool accumulate, int R, int N, int K);
    /* dw[N,K] += dy^T * x, a chain over the rows in order; dbias[N] += column sums of dy when not
     * NULL. */
    void (*linear_backward_weight)(troupe_device *d, float *dw, float *dbias, const float *dy,
        const float *x, int R, int N, int K);

    /* In place on qkv[R, (H + 2 KH) E] laid out [q heads | k heads | v heads]: optional per-head
     * RMSNorm of q and k (Qwen3; qw, kw [E], NULL = none), then rotary embedding at pos[r]. When
     * normed, pre[R, (H + KH) E] (may be NULL at inference) receives the values before the norm and
     * rstd[R, H + KH] its scales. */
    void (*qk_norm_rope_forward)(troupe_device *d, float *qkv, float *pre, float *rstd,
        const float *qw, const float *kw, float eps, const int32_t *pos, const troupe_rope *rope,
        int R, int H, int KH, int E);
    /* dqkv in place: from the gradient after rope to the gradient of the projection's output;
     * dqw, dkw += when normed. */
    void (*qk_norm_rope_backward)(troupe_device *d, float *dqkv, float *dqw, float *dkw,
        const float *pre, const float *rstd, const float *qw, const float *kw, const int32_t *pos,
        const troupe_rope *rope, int R, int H, int KH, int E);

    /* Causal attention over packed sequences: sequence s owns rows cu[s]..cu[s+1]-1. Scores are
     * q.k * scale. out[R, H E]; lse[R, H] = log-sum-exp of the scores (may be NULL). */
    void (*attention_packed_forward)(troupe_device *d, float *out, float *lse, const float *qkv,
        const int32_t *cu, int sequences, float scale, int H, int KH, int E);
    /* dqkv[R, (H + 2 KH) E] = gradient with respect to q, k and v. */
    void (*attention_packed_backward)(troupe_device *d, float *dqkv, const float *dout,
        const float *qkv, const float *out, const float *lse, const int32_t *cu, int sequences,
        float scale, int H, int KH, int E);

    /* Writes the k and v parts of qkv[R, (H + 2 KH) E] to the rows' positions in `layer` of the
     * cache. */
    void (*kv_write)(troupe_device *d, const troupe_kv_cache *cache, int layer, const float *qkv,
        const troupe_paged_rows *rows, int H);
    /* out[R, H E]: each row attends to positions 0..pos of its sequence in the cache. The same bits
     * as attention_packed_forward gives for the same sequence. */
    void (*attention_paged_forward)(troupe_device *d, float *out, const float *qkv,
        const troupe_kv_cache *cache, int layer, const troupe_paged_rows *rows, float scale, int H);
    /* Copies one block (all layers) to another, for the tail of a forked group. */
    void (*kv_copy_block)(
        troupe_device *d, const troupe_kv_cache *cache, int layers, int from, int to);

    /* out[R,F] = silu(gu[R, 0:F]) * gu[R, F:2F]. */
    void (*swiglu_forward)(troupe_device *d, float *out, const float *gu, int R, int F);
    /* dgu[R,2F] = gradient. */
    void (*swiglu_backward)(
        troupe_device *d, float *dgu, const float *dout, const float *gu, int R, int F);

    /* LM head fused with log-prob and entropy, logits in fp32, never stored for all rows unless
     * asked: with z = (x W^T) * inv_temperature over valid ids: logprob[r] = z[target] - lse,
     * entropy[r] of softmax(z). lse[R] and entropy may be NULL. logits[R,V] when not NULL receives
     * the unscaled logits (verification and sampling; ids >= VV get -inf). target NULL: only
     * logits. */
    void (*lm_head_forward)(troupe_device *d, float *logprob, float *entropy, float *lse,
        float *logits, const float *x, const troupe_packed_weight *w, const int32_t *target,
        float inv_temperature, int VV, int R);
    /* Gradient of L with dL/dlogprob[r] = dlogprob[r] and dL/dentropy[r] = dentropy[r] (NULL = 0):
     * dx[R,D] =, dw[V,D] += . Recomputes logits in chunks from x, W and lse. */
    void (*lm_head_backward)(troupe_device *d, float *dx, float *dw, const float *dlogprob,
        const float *dentropy, const float *x, const float *w, const troupe_packed_weight *packed,
        const float *lse, const float *entropy, const int32_t *target, float inv_temperature,
        int VV, int R, int V, int D);

    /* One next token per row of logits[R,V]: sampling[r], uniform u[r] -> id[r]; logprob[r] under
     * softmax(logits / temperature) over valid ids, exactly the number that lm_head_forward gives
     * for that target (at temperature 0: as for temperature 1); logprob_law[r] under the truncated,
     * renormalised law (0 when greedy); entropy[r] of the untruncated one. bad[r] = 1 when the row
     * holds a NaN, +inf or no finite logit: id is then -1 and the numbers are 0. logprob_law and
     * entropy may be NULL. */
    void (*sample)(troupe_device *d, int32_t *id, float *logprob, float *logprob_law,
        float *entropy, uint8_t *bad, const float *logits, const troupe_sampling *sampling,
        const double *u, int VV, int R, int V);

    /* AdamW (Loshchilov and Hutter, 2019) on fp32 masters, n elements. */
    void (*adamw)(troupe_device *d, float *param, float *m, float *v, const float *grad,
        const troupe_adamw *o, size_t n);
    /* Sum of squares in double, in index order by fixed blocks: deterministic. NaN and inf
     * propagate. */
    double (*square_sum)(troupe_device *d, const float *x, size_t n);
    /* y[n] += x[n]. */
    void (*add)(troupe_device *d, float *y, const float *x, size_t n);
    /* XXH3 of the bytes of n floats. */
    uint64_t (*checksum)(troupe_device *d, const float *x, size_t n);
};

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
