/* A language model on disk and in memory: its configuration, its parameters, and the Hugging Face
 * directory that holds both. Families: Llama, Qwen2, Qwen3. */
#ifndef TROUPE_MODEL_H
#define TROUPE_MODEL_H

#include <troupe/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef enum troupe_dtype {
    TROUPE_F32 = 0,
    TROUPE_BF16 = 1,
    TROUPE_F16 = 2
} troupe_dtype;

typedef enum troupe_family {
    TROUPE_LLAMA = 0,
    TROUPE_QWEN2 = 1,
    TROUPE_QWEN3 = 2
} troupe_family;

typedef enum troupe_rope_kind {
    TROUPE_ROPE_DEFAULT = 0,
    TROUPE_ROPE_LINEAR = 1,
    TROUPE_ROPE_LLAMA3 = 2
} troupe_rope_kind;

enum {
    TROUPE_STOP_IDS_MAX = 16,
    TROUPE_TENSOR_NAME_MAX = 128
};

/* What config.json (and generation_config.json, for the stop ids) says, old and transformers-5 keys
 * alike. A plain value: copying it is fine. */
typedef struct troupe_lm_config {
    troupe_family family;
    troupe_dtype dtype; /* of the checkpoint; exports use it again */
    int layers;
    int hidden;   /* D */
    int mlp;      /* F */
    int heads;    /* H */
    int kv_heads; /* KH */
    int head_dim; /* E; explicit, not hidden / heads */
    int vocab;    /* V, rows of the embedding */
    int context;  /* max_position_embeddings */
    float rms_eps;
    bool tied;     /* the LM head is the embedding */
    bool qkv_bias; /* Qwen2, or Llama with attention_bias */
    bool o_bias;   /* Llama with attention_bias */
    bool mlp_bias;
    bool qk_norm; /* Qwen3 */

    struct {
        troupe_rope_kind kind;
        double theta;
        double factor;           /* linear, llama3 */
        double low_freq_factor;  /* llama3 */
        double high_freq_factor; /* llama3 */
        double original_context; /* llama3 */
    } rope;

    int bos;                           /* -1 none */
    int stop_ids[TROUPE_STOP_IDS_MAX]; /* union of config, generation_config; the tokenizer adds its
                                          own */
    int stop_count;
} troupe_lm_config;

/* One parameter tensor inside the flat buffer. */
typedef struct troupe_lm_tensor {
    char name[TROUPE_TENSOR_NAME_MAX]; /* the Hugging Face name */
    size_t offset; /* in floats from the start of the buffer, 16-float aligned */
    size_t count;
    int rank;
    int shape[2];
    bool decay; /* takes weight decay: two or more dimensions */
} troupe_lm_tensor;

/* Where each parameter lies in one flat fp32 buffer; a pure function of the configuration, in a
 * fixed order, so that two processes agree without talking. Weights, gradients, moments and
 * published versions all use the same layout. Gaps between tensors are zero. */
typedef struct troupe_lm_layout {
    troupe_lm_tensor *tensors;
    int count;
    size_t floats;     /* of the whole buffer */
    size_t parameters; /* sum of count */
} troupe_lm_layout;

/* Fills *layout; free with troupe_lm_layout_fini. */
void troupe_lm_layout_init(troupe_lm_layout *layout, const troupe_lm_config *config);
void troupe_lm_layout_fini(troupe_lm_layout *layout);
/* Index of a name, or -1. */
int troupe_lm_layout_find(const troupe_lm_layout *layout, const char *name);

/* Statuses of the reading functions below: NOT_FOUND a file that is not there; BAD_INPUT one
 * that is malformed, contradicts itself or belongs to another model; UNSUPPORTED a kind of model
 * that this code does not compute; CORRUPT a checkpoint that differs from its manifest; DENIED,
 * IO. The text names file, key or tensor, and the remedy. All of them may be called from any
 * thread; outputs are written on success only, except where a caller's buffer is filled. */

/* Reads DIR/config.json (and generation_config.json if there). Defaults are those of
 * transformers for the family; the sizes must be stated. A value that would make transformers
 * compute something else (an unknown rope type, a sliding window in use, another activation) is
 * refused. Without a dtype key the model counts as float32. When DIR holds weights, and they are
 * too few bytes for the configuration, the answer is that of troupe_lm_params_check: so a
 * hostile config.json makes nobody allocate more than its weights justify. Without weights the
 * sizes are bounded only by what a model can have. */
troupe_status troupe_lm_config_read(
    const char *dir, troupe_lm_config *config, troupe_error *err) TROUPE_MUST_USE;

/* Rotary frequencies of the configuration: head_dim / 2 floats, computed in double and rounded
 * once. default: theta^(-2 i / head_dim); linear: that / factor; llama3: Llama 3.1's rule. */
void troupe_lm_inv_freq(const troupe_lm_config *config, float *inv_freq);

/* Compares the names, shapes and dtypes of all weight files of DIR with the layout, from their
 * headers alone. The values of a redundant head are not compared. */
troupe_status troupe_lm_params_check(const char *dir, const troupe_lm_config *config,
    const troupe_lm_layout *layout, troupe_error *err) TROUPE_MUST_USE;

/* Reads all parameters of DIR into `params` (layout->floats floats, caller-owned, zeroed first):
 * single file or sharded, by the index alone; bf16, fp16 and fp32 convert exactly to fp32. A tied
 * model may hold its matrix as embedding, as head, or as both if equal. Checks everything before it
 * writes to `params`. */
troupe_status troupe_lm_params_read(const char *dir, const troupe_lm_config *config,
    const troupe_lm_layout *layout, float *params, troupe_error *err) TROUPE_MUST_USE;

/* Draws fresh parameters: normal(0, 0.02) for matrices (1/sqrt(2 layers) of it for o_proj and
 * down_proj), ones for norms, zeros for biases; a pure function of seed and name. */
void troupe_lm_params_init(
    const troupe_lm_config *config, const troupe_lm_layout *layout, uint64_t seed, float *params);

/* Extra parts of a checkpoint that is more than a model; any may be NULL. */
typedef struct troupe_checkpoint_parts {
    const float *master, *m, *v;  /* layout->floats each: optimizer.safetensors (fp32) */
    const char *train_state_json; /* train_state.json */
    const char *ledger_json;      /* ledger.json */
    const char *copy_from;        /* a model directory whose tokenizer files are copied */
} troupe_checkpoint_parts;

/* Writes a complete checkpoint to `dir` (its parent exists, `dir` does not): into `dir`.tmp-PID,
 * every file fsynced, manifest.json (sizes and XXH3 of all files) last, rename to `dir`, fsync of
 * the parent. On any error, a full disk included, the temporary folder is removed and nothing else
 * has changed. `params` are rounded to config->dtype. */
troupe_status troupe_checkpoint_write(const char *dir, const troupe_lm_config *config,
    const troupe_lm_layout *layout, const float *params, const troupe_checkpoint_parts *parts,
    troupe_error *err) TROUPE_MUST_USE;

/* Checks the manifest: every file is there with its size and hash. Reads all bytes. NOT_FOUND
 * without a manifest, CORRUPT with the file that differs. */
troupe_status troupe_checkpoint_verify(const char *dir, troupe_error *err) TROUPE_MUST_USE;

/* XXH3 of manifest.json, which holds the hashes of all files: one number for the whole
 * checkpoint. */
troupe_status troupe_checkpoint_digest(
    const char *dir, uint64_t *digest, troupe_error *err) TROUPE_MUST_USE;

/* A text of the checkpoint, such as "train_state.json": zero-terminated, freed by the caller with
 * tr_free. NOT_FOUND when the directory has none. */
troupe_status troupe_checkpoint_read_text(
    const char *dir, const char *name, char **text, troupe_error *err) TROUPE_MUST_USE;

/* The newest complete checkpoint-N of a run directory, or NOT_FOUND. `path` gets its directory.
 * Complete means: the manifest is there and all files have their sizes; others (no manifest,
 * *.tmp-*) are passed over. Hashes are not read: call troupe_checkpoint_verify before using it. */
troupe_status troupe_checkpoint_latest(const char *run_dir, char *path, size_t path_size,
    int64_t *step, troupe_error *err) TROUPE_MUST_USE;

/* Removes all but the newest `keep` complete checkpoints (keep 0 = all stay), and leftovers of
 * interrupted writes whose process is gone. */
troupe_status troupe_checkpoint_prune(
    const char *run_dir, int keep, troupe_error *err) TROUPE_MUST_USE;

/* Removes the complete checkpoints of step `first` and of later ones: their lineage is void. */
troupe_status troupe_checkpoint_remove_from(
    const char *run_dir, int64_t first, troupe_error *err) TROUPE_MUST_USE;

/* Reads the optimiser's part back: each array layout->floats floats. NOT_FOUND when the directory
 * has none. */
troupe_status troupe_checkpoint_read_optimizer(const char *dir, const troupe_lm_config *config,
    const troupe_lm_layout *layout, float *master, float *m, float *v,
    troupe_error *err) TROUPE_MUST_USE;

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
