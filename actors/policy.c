/* The policy role: the sink of the stream. It takes whole groups, trains, commits, publishes,
 * evaluates and saves. This file is the order of events; each step is a call whose answer starts
 * the next:
 *
 *   open -> publish -> [ take -> train -> commit -> publish -> evaluate -> record -> save -> ]
 *   finish
 *
 * A new incarnation enters this circle where the one before left it (policy_open.c).
 * The only long work, a training step and the decoding of held-out prompts, runs in idle slices, so
 * that the progress of a run can be asked for between them. */
#include "policy.h"

#include <troupe/ext/protocol.h>
#include <troupe/ext/wire.h>
#include <troupe/roles.h>

#include <math.h>
#include <string.h>

enum {
    STORE_FULL_PERCENT = 70 /* from here on a checkpoint is due, which frees what it covers */
};

static void next_step(troupe_ctx *ctx, tr_policy *p);
static void save_if_due(troupe_ctx *ctx, tr_policy *p);
static void finish(troupe_ctx *ctx, tr_policy *p);

/* Time since the last mark goes to `account`. */
void
tr_policy_account(tr_policy *p, uint64_t *into)
{
    uint64_t now = tr_now_ns();
    *into += now - p->mark_ns;
    p->mark_ns = now;
}

/* The role's work is over. A driver that is still there prints the summary; after a signal it is
 * not. */
void
tr_policy_done(troupe_ctx *ctx, tr_policy *p)
{
    p->phase = TR_POLICY_DONE;
    if (p->asked_to_stop) {
        tr_buf text = {0};
        tr_policy_summary(p, &text);
        fputs(text.data, stdout);
        fflush(stdout);
        tr_buf_fini(&text);
        troupe_stopped(ctx);
    }
}

void
tr_policy_fail(
    troupe_ctx *ctx, tr_policy *p, troupe_status status, const char *what, const char *why)
{
    if (p->phase == TR_POLICY_DONE) {
        return;
    }
    if (p->failure[0] == '\0') {
        bool unsaved = strcmp(what, "take") == 0 && p->save_failure[0] != '\0';
        snprintf(p->failure, sizeof p->failure, "%s: %.400s (%s)%s%.400s", what, why,
            troupe_status_name(status), unsaved ? "; no checkpoint could be written: " : "",
            unsaved ? p->save_failure : "");
    }
    p->code = 1;
    if (p->phase == TR_POLICY_FINISHING) {
        tr_policy_done(ctx, p); /* the stream does not answer either */
        return;
    }
    p->stopping = true;
    finish(ctx, p); /* the ledger is closed in any case */
}

/* Sends a call to the stream, whose answer continues the run; without it the run cannot go on. */
void
tr_policy_ask(
    troupe_ctx *ctx, tr_policy *p, const char *method, troupe_args *args, troupe_answer_fn next)
{
    troupe_status status = troupe_call_send(ctx, p->stream, method, args, .on_answer = next,
        .user = p, .retry = true, .deadline_ns = TROUPE_DEADLINE_MAX_NS);
    troupe_args_fini(args);
    if (status != TROUPE_OK) {
        tr_policy_fail(ctx, p, status, method, "the stream cannot be reached");
    }
}

/* --- life ------------------------------------------------------------------------------------ */

static troupe_status
read_options(tr_policy *p, troupe_error *err)
{
    const json_t *c = p->config;
    troupe_trainer_options *o = &p->options;
    troupe_trainer_options_default(o);
    o->lr = tr_config_real(c, "lr", 1e-6);
    o->beta2 = tr_config_real(c, "beta2", o->beta2);
    o->weight_decay = tr_config_real(c, "weight-decay", 0);
    o->clip_norm = tr_config_real(c, "clip-grad", 1);
    o->warmup_steps = tr_config_int(c, "warmup", 0);
    o->schedule_steps = tr_config_int(c, "steps", 0);
    o->rows_max = (int)tr_config_int(c, "tokens-per-batch", 4096);
    o->temperature = (float)tr_config_real(c, "temperature", 1);
    o->cache_recomputed = strcmp(tr_config_text(c, "update", ""), "recompute") == 0;
    troupe_status status =
        troupe_lr_schedule_parse(tr_config_text(c, "lr-schedule", "constant"), &o->schedule, err);
    if (status == TROUPE_OK) {
        status = troupe_rl_options_parse(
            &o->rl, tr_config_text(c, "algo", "grpo"), tr_config_text(c, "correction", NULL), err);
    }
    o->rl.kl_coef = p->stage_reference >= 0 ? tr_config_real(c, "kl-coef", 0) : 0;
    o->rl.entropy_coef = tr_config_real(c, "entropy-coef", o->rl.entropy_coef);
    o->rl.length_const = (double)tr_config_int(c, "max-new", 256);
    p->group_size = (int)tr_config_int(c, "group-size", 8);
    p->max_lag = tr_config_int(c, "max-lag", TROUPE_MAX_LAG_NONE);
    p->bound = strcmp(tr_config_text(c, "bound", "group"), "unit") == 0 ? TROUPE_BOUND_UNIT
                                                                        : TROUPE_BOUND_GROUP;
    p->steps = tr_config_int(c, "steps", 0);
    p->eval_every = tr_config_int(c, "eval-every", 0);
    p->checkpoint_every = tr_config_int(c, "checkpoint-every", 0);
    return status;
}

static void
find_stages(tr_policy *p)
{
    p->stage_reward = p->stage_reference = -1;
    size_t i = 0;
    json_t *name = NULL;
    json_array_foreach(json_object_get(p->config, "stages"), i, name)
    {
        if (strcmp(json_string_value(name), "reward") == 0) {
            p->stage_reward = (int)i;
        } else if (strcmp(json_string_value(name), "reference") == 0) {
            p->stage_reference = (int)i;
        }
    }
}

static troupe_status
policy_init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    tr_policy *p = troupe_state(ctx);
    p->checkpointed = -1;
    p->reward_mean = p->accuracy = p->accuracy_last = p->accuracy_first = p->publish_ms =
        p->lag_head_mean = TR_UNKNOWN;
    troupe_status status = tr_config_parse(config, &p->config, err);
    if (status != TROUPE_OK) {
        return status;
    }
    find_stages(p);
    const char *mirror = tr_config_text(p->config, "mirror", "off");
    p->mirror_mode = strcmp(mirror, "auto") == 0 ? TR_MIRROR_AUTO
                     : strcmp(mirror, "on") == 0 ? TR_MIRROR_ON
                                                 : TR_MIRROR_OFF;
    snprintf(p->run, sizeof p->run, "%s", tr_config_text(p->config, "run", "."));
    status = read_options(p, err);
    if (status == TROUPE_OK) {
        status = tr_prompts_open(p->config, &p->prompts, err);
    }
    if (status == TROUPE_OK) {
        status = troupe_lm_load(tr_config_text(p->config, "model", ""),
            (int)tr_config_int(p->config, "valid-ids", 0), &p->lm, &p->params, err);
    }
    if (status == TROUPE_OK) {
        p->model = *troupe_lm_get_config(p->lm);
        troupe_device_options options = {.size = sizeof options, .threads = 1};
        status = troupe_device_open(
            tr_config_text(p->config, "device", "cpu"), &options, &p->device, err);
    }
    if (status == TROUPE_OK) {
        status = troupe_trainer_new(p->lm, p->device, p->params, &p->options, &p->trainer, err);
    }
    p->stream = troupe_to(ctx, tr_config_text(p->config, "stream", "samples"), 0);
    return status;
}

static void
policy_fini(troupe_ctx *ctx)
{
    tr_policy *p = troupe_state(ctx);
    tr_policy_eval_free(ctx, p);
    tr_policy_close_batch(p);
    if (troupe_object_word(p->publishing) != 0) {
        (void)troupe_object_release(troupe_ctx_store(ctx), p->publishing);
    }
    tr_policy_mirror_drop(ctx, p);
    tr_buf_fini(&p->line);
    troupe_trainer_free(p->trainer);
    troupe_lm_free(p->lm);
    troupe_device_close(p->device);
    tr_prompts_close(&p->prompts);
    tr_run_dir_close(p->files);
    tr_free(p->params);
    tr_free(p->ledger);
    json_decref(p->config);
}

static void
policy_start(troupe_ctx *ctx)
{
    tr_policy *p = troupe_state(ctx);
    p->begun_ns = p->line_ns = p->mark_ns = tr_now_ns();
    p->started_ns = troupe_now_ns(ctx);
    tr_policy_open(ctx, p);
}

/* --- publish --------------------------------------------------------------------------------- */

static void
evaluated(troupe_ctx *ctx, tr_policy *p)
{
    if (p->phase == TR_POLICY_FINISHING || p->phase == TR_POLICY_DONE) {
        return;
    }
    tr_policy_account(p, &p->other_ns);
    p->accuracy_last = isfinite(p->accuracy) ? p->accuracy : p->accuracy_last;
    if (p->initial && !isfinite(p->accuracy_first)) {
        p->accuracy_first = p->accuracy;
    }
    troupe_error err = {0};
    troupe_status status = p->initial ? TROUPE_OK : tr_policy_write_metrics(ctx, p, &err);
    if (status != TROUPE_OK) {
        tr_policy_fail(ctx, p, status, "metrics.jsonl", err.text);
        return;
    }
    bool initial = p->initial;
    p->initial = false;
    if (initial) {
        next_step(ctx, p);
    } else {
        save_if_due(ctx, p);
    }
}

static bool
evaluation_is_due(const tr_policy *p)
{
    if (tr_prompts_held_out_rows(&p->prompts) == 0) {
        return false;
    }
    if (p->asked_to_stop) {
        return false; /* the grace time is for the checkpoint */
    }
    bool last = p->step >= p->steps;
    return last || p->stopping || (p->eval_every > 0 && p->step % p->eval_every == 0);
}

void
tr_policy_published(troupe_ctx *ctx, tr_policy *p)
{
    p->accuracy = TR_UNKNOWN;
    if (p->has_line) {
        p->has_line = false; /* the incarnation before has evaluated and written it */
        save_if_due(ctx, p);
        return;
    }
    if (!evaluation_is_due(p)) {
        evaluated(ctx, p);
        return;
    }
    p->phase = TR_POLICY_EVALUATING;
    troupe_error err = {0};
    troupe_status status = tr_policy_eval_start(ctx, p, evaluated, &err);
    if (status != TROUPE_OK) {
        tr_policy_fail(ctx, p, status, "evaluation", err.text);
    }
}

/* --- take, train, commit --------------------------------------------------------------------- */

static void
taken(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    tr_policy *p = user;
    tr_policy_account(p, &p->waiting_ns);
    if (p->phase != TR_POLICY_TAKING || p->stopping) {
        return; /* the run is being finished; the groups end with it */
    }
    troupe_status status = troupe_answer_status(answer);
    if (status == TROUPE_TIMEOUT) {
        next_step(ctx, p);
        return;
    }
    troupe_error err = {0};
    if (status != TROUPE_OK) {
        tr_policy_fail(ctx, p, status, "take", troupe_answer_text(answer));
        return;
    }
    status = tr_policy_read_batch(ctx, p, answer, &err);
    if (status != TROUPE_OK) {
        tr_policy_fail(ctx, p, status, "take", err.text);
        return;
    }
    p->failed_in_a_row = 0;
    p->phase = TR_POLICY_TRAINING;
}

static void ask_rollouts(troupe_ctx *ctx, tr_policy *p);

bool
tr_policy_read_counters(troupe_answer *answer, int index, troupe_counters *c)
{
    uint64_t *into[] = {&c->dispatched, &c->trained, &c->filtered, &c->stale, &c->failed,
        &c->queued, &c->in_flight};
    tr_reader reader;
    uint32_t count = 0;
    bool ok = troupe_arg_reader(answer, index, &reader) && tr_read_array(&reader, &count) &&
              count == TR_COUNT(into);
    for (size_t i = 0; ok && i < TR_COUNT(into); i++) {
        ok = tr_read_u64(&reader, into[i]);
    }
    return ok;
}

static void
committed(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    tr_policy *p = user;
    troupe_status status = troupe_answer_status(answer);
    tr_policy_mirror_drop(ctx, p); /* the stream has a hold of its own */
    if (status != TROUPE_OK && status != TROUPE_DUPLICATE) {
        tr_policy_fail(ctx, p, status, "commit", troupe_answer_text(answer));
        return;
    }
    if (!tr_policy_read_counters(answer, 0, &p->counters)) {
        tr_policy_fail(ctx, p, TROUPE_CORRUPT, "commit", "the stream's answer does not parse");
        return;
    }
    if (!troupe_arg_is_nil(answer, 1)) {
        tr_free(p->ledger);
        p->ledger = tr_strdup(troupe_arg_str(answer, 1));
    }
    p->publish_ms = troupe_arg_is_nil(answer, 2) ? TR_UNKNOWN : troupe_arg_f64(answer, 2);
    p->restarts = p->restarts_base + troupe_arg_u64(answer, 4);
    p->step++;
    /* What is written from here on is not covered by the ledger that this answer holds. */
    tr_run_offsets written = {0};
    troupe_error err = {0};
    status = tr_run_dir_offsets(p->files, false, &written, &err);
    if (status != TROUPE_OK) {
        tr_policy_fail(ctx, p, status, "samples.jsonl", err.text);
        return;
    }
    p->offsets.samples = written.samples;
    p->counts_at_commit = p->counts;
    tr_policy_close_batch(p);
    ask_rollouts(ctx, p);
    tr_policy_account(p, &p->other_ns);
    tr_policy_publish(ctx, p);
}

void
tr_policy_commit(troupe_ctx *ctx, void *user)
{
    tr_policy *p = user;
    troupe_args args = {0};
    troupe_args_i64(&args, p->step + 1);
    troupe_args_array(&args, (uint32_t)p->batch.count);
    for (int g = 0; g < p->batch.count; g++) {
        const tr_batch_group *group = &p->batch.groups[g];
        troupe_args_array(&args, 4);
        troupe_args_u64(&args, group->group);
        troupe_args_str(&args, group->verdict);
        if (strcmp(group->verdict, "trained") == 0) {
            troupe_args_nil(&args);
        } else {
            troupe_args_str(&args, group->reason);
        }
        troupe_args_array(&args, (uint32_t)p->group_size);
        for (int m = 0; m < p->group_size; m++) {
            troupe_args_u64(&args, group->members[m].digest);
        }
    }
    troupe_args_bool(&args, true);
    if (troupe_object_word(p->mirror) != 0) {
        troupe_args_object(&args, p->mirror);
        troupe_args_u64(&args, p->mirror_digest);
    }
    tr_policy_ask(ctx, p, TROUPE_METHOD_COMMIT, &args, committed);
}

static void
train(troupe_ctx *ctx, tr_policy *p)
{
    troupe_error err = {0};
    tr_policy_account(p, &p->other_ns);
    troupe_status status = tr_policy_train(p, &err);
    tr_policy_account(p, &p->training_ns);
    if (status == TROUPE_OK) {
        status = tr_policy_write_samples(p, p->step + 1, &err);
    }
    if (status != TROUPE_OK) {
        tr_policy_fail(ctx, p, status, "training", err.text);
        return;
    }
    tr_policy_begin_line(p);
    tr_policy_mirror(ctx, p);
}

static void
next_step(troupe_ctx *ctx, tr_policy *p)
{
    if (p->stopping || p->step >= p->steps) {
        p->stopping = true;
        save_if_due(ctx, p);
        return;
    }
    p->phase = TR_POLICY_TAKING;
    tr_policy_account(p, &p->other_ns);
    troupe_args args = {0};
    troupe_args_i64(&args, p->step + 1);
    troupe_args_u64(&args, p->version);
    tr_policy_ask(ctx, p, TROUPE_METHOD_TAKE, &args, taken);
}

/* --- save, finish ---------------------------------------------------------------------------- */

static void
durable(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    tr_policy *p = user;
    troupe_status status = troupe_answer_status(answer);
    if (status != TROUPE_OK && status != TROUPE_DUPLICATE) {
        tr_policy_fail(ctx, p, status, "durable", troupe_answer_text(answer));
        return;
    }
    troupe_error err = {0};
    if (troupe_checkpoint_prune(p->run, (int)tr_config_int(p->config, "keep", 0), &err) !=
        TROUPE_OK) {
        troupe_log(ctx, "old checkpoints stay: %s", err.text);
    }
    if (p->stopping) {
        finish(ctx, p);
    } else {
        next_step(ctx, p);
    }
}

static bool
store_is_filling(troupe_ctx *ctx)
{
    troupe_store_stats stats;
    troupe_store_get_stats(troupe_ctx_store(ctx), &stats);
    return stats.bytes > stats.bytes_max / 100 * STORE_FULL_PERCENT;
}

/* A checkpoint when one is due, then what comes next. A failed one is no end: the old one is still
 * good and the next is due after as many steps; only the last must succeed. Samples stay in the
 * store until a checkpoint covers them, so a filling store makes one due. */
static void
save_if_due(troupe_ctx *ctx, tr_policy *p)
{
    bool last = p->stopping || p->step >= p->steps;
    bool regular = p->checkpoint_every > 0 && p->step % p->checkpoint_every == 0;
    bool due = p->checkpointed != p->step && p->ledger != NULL &&
               (last || regular || store_is_filling(ctx));
    if (!due) {
        if (p->stopping) {
            finish(ctx, p);
        } else {
            next_step(ctx, p);
        }
        return;
    }
    p->phase = TR_POLICY_SAVING;
    tr_policy_account(p, &p->other_ns);
    uint64_t digest = 0;
    troupe_error err = {0};
    troupe_status status = tr_policy_save(p, &digest, &err);
    tr_policy_account(p, &p->other_ns);
    if (status != TROUPE_OK) {
        p->checkpoint_errors++;
        snprintf(p->save_failure, sizeof p->save_failure, "%s", err.text);
        troupe_log(ctx, "checkpoint-%lld was not written: %s", (long long)p->step, err.text);
        if (last) {
            p->code = 1;
            snprintf(p->failure, sizeof p->failure, "the last checkpoint was not written: %.900s",
                err.text);
            p->stopping = true;
            finish(ctx, p);
        } else {
            next_step(ctx, p);
        }
        return;
    }
    p->checkpointed = p->step;
    p->save_failure[0] = '\0';
    troupe_args args = {0};
    troupe_args_i64(&args, p->step);
    troupe_args_u64(&args, digest);
    tr_policy_ask(ctx, p, TROUPE_METHOD_DURABLE, &args, durable);
}

static void
finished(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    tr_policy *p = user;
    if (troupe_answer_status(answer) != TROUPE_OK) {
        tr_policy_fail(ctx, p, troupe_answer_status(answer), "finish", troupe_answer_text(answer));
        return;
    }
    (void)tr_policy_read_counters(answer, 0, &p->counters);
    tr_policy_done(ctx, p);
}

static void
finish(troupe_ctx *ctx, tr_policy *p)
{
    p->phase = TR_POLICY_FINISHING;
    troupe_args args = {0};
    const char *how = p->step >= p->steps ? "all steps done" : "stopped";
    troupe_args_str(&args, p->failure[0] != '\0' ? p->failure : how);
    troupe_args_i64(&args, p->code);
    tr_policy_ask(ctx, p, TROUPE_METHOD_FINISH, &args, finished);
}

/* The run ends after what is under way: a pending take is given up, a step is finished. */
static void
begin_end(troupe_ctx *ctx, tr_policy *p)
{
    p->stopping = true;
    if (p->phase == TR_POLICY_TAKING) {
        save_if_due(ctx, p);
    } else if (p->phase == TR_POLICY_EVALUATING) {
        tr_policy_eval_abandon(p);
        p->accuracy = TR_UNKNOWN;
        evaluated(ctx, p);
    }
}

static bool
policy_stop(troupe_ctx *ctx)
{
    tr_policy *p = troupe_state(ctx);
    if (p->phase == TR_POLICY_DONE || p->begun_ns == 0) {
        return true; /* begun_ns 0: another actor failed before this one was started */
    }
    p->asked_to_stop = true;
    begin_end(ctx, p);
    return false; /* `done` says when */
}

static void
end(troupe_ctx *ctx, troupe_call *call)
{
    begin_end(ctx, troupe_state(ctx));
    (void)troupe_reply(call, NULL);
}

/* --- the rest -------------------------------------------------------------------------------- */

static void
rollout_said(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    tr_rollout_stats *stats = user;
    (void)ctx;
    if (troupe_answer_status(answer) == TROUPE_OK) {
        *stats = (tr_rollout_stats){.at_ns = tr_now_ns(),
            .tokens = troupe_arg_u64(answer, 0),
            .busy_ns = troupe_arg_u64(answer, 1),
            .idle_ns = troupe_arg_u64(answer, 2),
            .full_ns = troupe_arg_u64(answer, 3),
            .swap_ns = troupe_arg_u64(answer, 4)};
    }
}

/* Asks the rollouts how they fare; the answers are for the next line of metrics, nobody waits for
 * them. */
static void
ask_rollouts(troupe_ctx *ctx, tr_policy *p)
{
    int count = TR_MIN(troupe_replicas(ctx, "rollout"), TR_ROLLOUTS_MAX);
    for (int i = 0; i < count; i++) {
        troupe_status status = troupe_call_send(ctx, troupe_to(ctx, "rollout", i), "stats", NULL,
            .on_answer = rollout_said, .user = &p->rollouts[i]);
        if (status != TROUPE_OK) {
            return; /* the line of this step shows what was known before */
        }
    }
}

static bool
policy_idle(troupe_ctx *ctx)
{
    tr_policy *p = troupe_state(ctx);
    if (p->phase == TR_POLICY_TRAINING) {
        train(ctx, p);
        return false;
    }
    return p->phase == TR_POLICY_EVALUATING && tr_policy_eval_slice(ctx, p);
}

const troupe_class troupe_lm_policy = {
    .name = "lm_policy",
    .state_size = sizeof(tr_policy),
    .init = policy_init,
    .start = policy_start,
    .idle = policy_idle,
    .stop = policy_stop,
    .fini = policy_fini,
    .own_loop = true,
    .methods = {{TROUPE_METHOD_RETIRED, tr_policy_retired}, {"progress", tr_policy_progress},
        {"end", end}},
};
