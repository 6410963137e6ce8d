/* The policy role, in parts: policy.c is the order of events,
 * policy_publish.c a version on its way, policy_step.c a batch and its step,
 * policy_record.c the lines of metrics.jsonl and samples.jsonl, policy_eval.c the held-out prompts,
 * policy_checkpoint.c what lasts. */
#ifndef TR_POLICY_H
#define TR_POLICY_H

#include "role.h"
#include "run_dir.h"

#include <troupe/engine.h>
#include <troupe/ext/ledger.h>
#include <troupe/trainer.h>
#include <troupe/troupe.h>

#include <math.h>

/* A number that is not known (yet): null in the records. */
#define TR_UNKNOWN ((double)NAN)

enum {
    TR_REASON_MAX = 128,
    TR_ROLLOUTS_MAX = 64
};

/* One granted sample. The opened samples hold their objects until the batch is closed. */
typedef struct tr_batch_member {
    uint32_t attempt;
    uint64_t digest; /* as the coordinator says; as computed here once verified */
    double reward;
    bool lost; /* an object of it is not there or does not parse: its group ends failed */
    troupe_sample *sample;    /* NULL when lost */
    troupe_sample *reference; /* NULL without a reference stage */
    troupe_lm_span *spans;
    uint8_t *mask; /* units within the bound; NULL when all are */
    troupe_lm_sample tokens;
} tr_batch_member;

typedef struct tr_batch_group {
    uint64_t group;
    uint64_t row;
    const char *verdict; /* "trained", "stale", "failed", "filtered" */
    char reason[TR_REASON_MAX];
    tr_batch_member *members;
} tr_batch_group;

typedef struct tr_batch {
    tr_batch_group *groups;
    int count;
    int group_size;
    troupe_lag lag; /* of what is trained */
    uint64_t head_sum;
    int trained; /* groups */
} tr_batch;

/* What one rollout said of itself last, and at the last line of metrics. */
typedef struct tr_rollout_stats {
    uint64_t tokens, busy_ns, idle_ns, full_ns, swap_ns; /* full: the store had no room */
} tr_rollout_stats;

/* Over the whole run, resumes included. */
typedef struct tr_policy_counts {
    uint64_t sampled_units, sampled_samples;
    uint64_t trained_units, trained_samples;
    uint64_t wasted_units; /* sampled and not trained on */
} tr_policy_counts;

typedef enum tr_policy_phase {
    TR_POLICY_OPENING,
    TR_POLICY_PUBLISHING,
    TR_POLICY_TAKING,
    TR_POLICY_TRAINING,
    TR_POLICY_COMMITTING,
    TR_POLICY_EVALUATING,
    TR_POLICY_SAVING,
    TR_POLICY_FINISHING,
    TR_POLICY_DONE,
} tr_policy_phase;

typedef struct tr_eval tr_eval;

typedef struct tr_policy {
    json_t *config;
    char run[4096];
    tr_prompts prompts;
    troupe_lm_config model;
    troupe_lm *lm;
    troupe_device *device;
    troupe_trainer *trainer;
    troupe_trainer_options options;
    float *params; /* of the newest version, host */
    tr_run_dir *files;
    troupe_target stream;
    int group_size, stage_reward, stage_reference;
    int64_t max_lag;
    troupe_bound bound;
    int64_t steps, eval_every, checkpoint_every;

    tr_policy_phase phase;
    bool stopping, asked_to_stop;
    int code; /* of the program, when done */
    char failure[1024];
    uint64_t epoch;
    int64_t step;     /* last committed */
    uint64_t version; /* newest published */
    uint64_t next_version;
    bool published_any;
    uint64_t published_digest;
    troupe_object publishing;
    bool initial; /* the version being published is the first of this process */

    int64_t failed_in_a_row; /* groups, since the last batch */
    tr_batch batch;
    troupe_lag lag_line; /* of the last step's batch, for its line */
    uint64_t head_line;
    int trained_line;
    troupe_trainer_stats stats;
    double reward_mean, reward_sampled;
    uint64_t reward_count;
    double reward_sum; /* over everything sampled since the last line */
    int zero_variance;

    troupe_counters counters;
    char *ledger; /* JSON of the last commit */
    double publish_ms;
    double accuracy; /* NaN when not evaluated at this step */
    double accuracy_last, accuracy_first;
    uint64_t eval_errors;
    tr_eval *eval;
    tr_eval *eval_abandoned;
    int64_t checkpointed; /* step of the newest checkpoint, -1 none */
    uint64_t checkpoint_errors;
    tr_run_offsets offsets; /* covered by `ledger`'s step */

    tr_rollout_stats rollouts[TR_ROLLOUTS_MAX], rollouts_before[TR_ROLLOUTS_MAX];
    uint64_t begun_ns, line_ns, waiting_ns, training_ns, other_ns, mark_ns;
    double wall_before; /* seconds of earlier processes of this run */
    uint64_t trained_tokens, trained_tokens_before;
    tr_policy_counts counts;
    tr_policy_counts counts_at_commit; /* what a checkpoint of that step holds */
    uint64_t publish_since_ns;
    double tokens_per_s, train_tokens_per_s, lag_head_mean;
} tr_policy;

/* policy.c: ends the role's work with a reason; the driver turns it into the program's exit. */
void tr_policy_fail(
    troupe_ctx *ctx, tr_policy *p, troupe_status status, const char *what, const char *why);

/* Sends a call to the stream, whose answer continues the run; without it the run cannot go on.
 * Takes the args. */
void tr_policy_ask(
    troupe_ctx *ctx, tr_policy *p, const char *method, troupe_args *args, troupe_answer_fn next);
/* Time since the last mark goes to *into. */
void tr_policy_account(tr_policy *p, uint64_t *into);
/* The version is published: evaluate, record, save, next. */
void tr_policy_published(troupe_ctx *ctx, tr_policy *p);

/* policy_publish.c: the masters of step p->step as p->next_version, then tr_policy_published. */
void tr_policy_publish(troupe_ctx *ctx, tr_policy *p);

/* policy_step.c */
/* Reads the answer of a take into p->batch: opens every sample, verifies digests, tests the
 * bound. */
troupe_status tr_policy_read_batch(
    troupe_ctx *ctx, tr_policy *p, troupe_answer *answer, troupe_error *err) TROUPE_MUST_USE;
/* Advantages and one trainer step over the groups whose verdict is "trained". */
troupe_status tr_policy_train(tr_policy *p, troupe_error *err) TROUPE_MUST_USE;
void tr_policy_close_batch(tr_policy *p);
/* Adds one sample that has ended to the run's totals. */
void tr_policy_count(tr_policy *p, uint64_t units, double reward, bool trained);

/* policy_record.c */
troupe_status tr_policy_write_samples(
    tr_policy *p, int64_t step, troupe_error *err) TROUPE_MUST_USE;
troupe_status tr_policy_write_metrics(tr_policy *p, troupe_error *err) TROUPE_MUST_USE;
/* A group that ended without the policy's verdict. */
void tr_policy_retired(troupe_ctx *ctx, troupe_call *call);
/* How the run stands, a few lines for a person. */
void tr_policy_summary(const tr_policy *p, tr_buf *out);
/* Answers with what a progress line shows; see policy_record.c for the order. */
void tr_policy_progress(troupe_ctx *ctx, troupe_call *call);

/* policy_eval.c: greedy decoding of the held-out prompts with p->params, then `done` with
 * p->accuracy set. */
troupe_status tr_policy_eval_start(troupe_ctx *ctx, tr_policy *p,
    void (*done)(troupe_ctx *ctx, tr_policy *p), troupe_error *err) TROUPE_MUST_USE;
/* One slice; true while there is more to decode. */
bool tr_policy_eval_slice(troupe_ctx *ctx, tr_policy *p);
/* Gives a running evaluation up; `done` is not called. */
void tr_policy_eval_abandon(tr_policy *p);
void tr_policy_eval_free(troupe_ctx *ctx, tr_policy *p);

/* policy_checkpoint.c */
troupe_status tr_policy_restore(tr_policy *p, const char *dir, troupe_error *err) TROUPE_MUST_USE;
/* Writes checkpoint-STEP; *digest is that of its manifest. */
troupe_status tr_policy_save(tr_policy *p, uint64_t *digest, troupe_error *err) TROUPE_MUST_USE;

#endif
