/* The policy role, in parts: policy.c is the order of events,
 * policy_open.c where a new incarnation goes on, policy_state.c and policy_mirror.c what it is,
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
    TR_REASON_MAX = 512,
    TR_ENDS_MAX = 16,
    TR_END_TEXT_MAX = 64,
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
    uint64_t at_ns;                                      /* when it said so; 0: never */
    uint64_t tokens, busy_ns, idle_ns, full_ns, swap_ns; /* full: the store had no room */
} tr_rollout_stats;

/* Over the whole run, resumes included. */
typedef struct tr_policy_counts {
    uint64_t sampled_units, sampled_samples;
    uint64_t trained_units, trained_samples;
    uint64_t wasted_units; /* sampled and not trained on */

    /* Groups by how and why they ended untrained, the beginnings of reasons; the last entry has
     * what found no room. */
    struct {
        char text[TR_END_TEXT_MAX];
        uint64_t groups;
    } ends[TR_ENDS_MAX];
} tr_policy_counts;

typedef enum tr_mirror_mode {
    TR_MIRROR_OFF,
    TR_MIRROR_AUTO, /* where the store has room at once */
    TR_MIRROR_ON,
} tr_mirror_mode;

/* The policy's state beside the arrays, of the step that it is after. */
typedef struct tr_policy_state {
    int64_t step;
    int64_t checkpointed;
    tr_run_offsets offsets;
    tr_policy_counts counts;
    uint64_t restarts;      /* of roles, all of the run */
    uint64_t restarts_base; /* those before the node's present life */
    double wall_s, accuracy_first, accuracy_last, reward_last;
    char *line; /* what is known of the step's line of metrics.jsonl at its commit; owned */
} tr_policy_state;

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
    char save_failure[1024]; /* why the newest checkpoint was not written; empty when it was */
    uint64_t epoch;
    int64_t step;     /* last committed */
    uint64_t version; /* newest published */
    uint64_t next_version;
    bool published_any;
    uint64_t published_digest;
    troupe_object publishing;
    bool initial;  /* nothing was trained since the state that this incarnation began with */
    bool has_line; /* the line of that state's step is in metrics.jsonl already */
    bool refuses;  /* the mirror that it was told of cannot be used */

    tr_mirror_mode mirror_mode;
    troupe_object mirror; /* of the step that is being committed; no object: none */
    uint64_t mirror_digest, mirror_bytes, mirror_ns, mirror_since_ns;
    uint64_t mirrors_missed; /* steps without one for want of room */
    uint64_t restarts, restarts_base;
    tr_buf line; /* what is known of the step's line at its commit */

    int64_t failed_in_a_row; /* groups, since the last batch */
    tr_batch batch;
    uint64_t length_sum, length_max, length_count; /* of the batch's responses, units */
    double lag_head_mean;                          /* of the last step's batch */
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
    tr_policy_counts counts_at_commit;     /* what a checkpoint of that step holds */
    uint64_t started_ns, publish_since_ns; /* of troupe_now_ns, for decisions */
    double tokens_per_s, train_tokens_per_s;
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
/* Sends the commit of the step that was trained. */
void tr_policy_commit(troupe_ctx *ctx, void *user);
/* The role's work is over; the driver, if it is still there, prints the summary. */
void tr_policy_done(troupe_ctx *ctx, tr_policy *p);
/* Value `index` of an answer: the ledger, in the order of troupe_counters. */
bool tr_policy_read_counters(troupe_answer *answer, int index, troupe_counters *counters);

/* policy_open.c: opens the stream, takes up the state that it names, goes on. */
void tr_policy_open(troupe_ctx *ctx, tr_policy *p);

/* policy_state.c */
/* The state as it is now, for step `step`; its text is the caller's to free (json's free). */
char *tr_policy_state_print(const tr_policy *p, const tr_policy_state *state);
/* What will be the state once `step` is committed. */
tr_policy_state tr_policy_state_now(const tr_policy *p, int64_t step);
/* Reads it back; `where` names it in messages. BAD_INPUT names the key. */
troupe_status tr_policy_state_parse(const char *text, size_t size, const char *where,
    tr_policy_state *state, troupe_trainer_progress *progress, troupe_error *err) TROUPE_MUST_USE;
void tr_policy_state_fini(tr_policy_state *state);
/* The policy is in this state from now on. */
void tr_policy_state_apply(tr_policy *p, const tr_policy_state *state);

/* policy_mirror.c: the state of the step just trained becomes one object, then the commit. */
void tr_policy_mirror(troupe_ctx *ctx, tr_policy *p);
void tr_policy_mirror_drop(troupe_ctx *ctx, tr_policy *p);
/* Takes the state from a mirror of `step`; nothing has changed when it fails. */
troupe_status tr_policy_mirror_restore(troupe_ctx *ctx, tr_policy *p, troupe_object object,
    uint64_t digest, int64_t step, troupe_error *err) TROUPE_MUST_USE;

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
/* Adds one sample that has ended to the run's totals, and one group that ended untrained. */
void tr_policy_count(tr_policy *p, uint64_t units, double reward, bool trained);
void tr_policy_count_end(tr_policy_counts *counts, const char *how, const char *why);

/* policy_record.c */
troupe_status tr_policy_write_samples(
    tr_policy *p, int64_t step, troupe_error *err) TROUPE_MUST_USE;
/* The part of the step's line that is known at its commit, into p->line. */
void tr_policy_begin_line(tr_policy *p);
troupe_status tr_policy_write_metrics(
    troupe_ctx *ctx, tr_policy *p, troupe_error *err) TROUPE_MUST_USE;
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
/* Takes the state of `step` from its checkpoint in the run directory, every byte of it checked. */
troupe_status tr_policy_restore(tr_policy *p, int64_t step, troupe_error *err) TROUPE_MUST_USE;
/* Writes checkpoint-STEP; *digest is that of its manifest. */
troupe_status tr_policy_save(tr_policy *p, uint64_t *digest, troupe_error *err) TROUPE_MUST_USE;

#endif
