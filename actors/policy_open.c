/* Opening the stream. No incarnation is the first to its own knowledge: the answer says which step
 * is committed and where its state is - the model (step 0), a mirror in the store, or the
 * checkpoint of that step in the run directory - and the files of the run are brought to what that
 * state covers. A run begun, one resumed, and one whose policy was killed go the same way. */
#include "policy.h"

#include <troupe/ext/protocol.h>
#include <troupe/rl_run.h>

#include <math.h>
#include <string.h>

enum {
    PAUSE_NS = 50 * 1000 * 1000
};

#define KNOWN_NS UINT64_C(60000000000) /* the stream must have heard of this incarnation by then */

typedef struct opening {
    int64_t step;
    const char *origin, *why, *ledger;
    bool published, voided;
    uint64_t opens;
} opening;

static void opened(troupe_ctx *ctx, troupe_answer *answer, void *user);

void
tr_policy_open(troupe_ctx *ctx, tr_policy *p)
{
    p->phase = TR_POLICY_OPENING;
    troupe_args args = {0};
    troupe_args_bool(&args, p->refuses);
    tr_policy_ask(ctx, p, TROUPE_METHOD_OPEN, &args, opened);
}

/* --- files ------------------------------------------------------------------------------------ */

/* A group that ended by itself after the state was made. */
static void
count_kept(void *self, const tr_kept_sample *sample)
{
    tr_policy *p = self;
    tr_policy_count(p, sample->units, sample->reward, false);
    if (sample->first) {
        tr_policy_count_end(&p->counts, sample->status, sample->reason);
    }
    if (sample->step < p->step) {
        p->counts_at_commit = p->counts; /* before the commit: its ledger knows of it */
    }
}

static troupe_status
bring_files(tr_policy *p, const opening *o, troupe_error *err)
{
    troupe_status status = TROUPE_OK;
    if (o->voided && p->epoch > 0) {
        status = tr_run_dir_rewind(p->run, p->offsets, p->epoch - 1, err);
    } else if (!o->voided) {
        tr_reopening r = {.offsets = p->offsets,
            .epoch = p->epoch,
            .step = p->step,
            .line = strcmp(o->origin, "mirror") == 0,
            .kept = count_kept,
            .self = p};
        status = tr_run_dir_reopen(p->run, &r, err);
        p->has_line = r.has_line;
        p->offsets.samples = r.samples_at;
    }
    /* Checkpoints that the stream never heard of are of a lineage that may be over. */
    if (status == TROUPE_OK && (o->opens > 1 || p->epoch > 0)) {
        status = troupe_checkpoint_remove_from(p->run, p->checkpointed + 1, err);
    }
    if (status == TROUPE_OK) {
        status = tr_run_dir_open(
            p->run, tr_config_int(p->config, "samples-max-bytes", INT64_MAX), &p->files, err);
    }
    return status;
}

static void
note_restart(troupe_ctx *ctx, const tr_policy *p, const opening *o)
{
    troupe_rl_resumption what = {.realtime_ns = troupe_realtime_ns(ctx),
        .step = p->step,
        .epoch = p->epoch,
        .from = o->origin,
        .why = o->why};
    troupe_error err = {0};
    if ((o->opens > 1 || p->epoch > 0) && troupe_rl_run_note(p->run, &what, &err) != TROUPE_OK) {
        troupe_log(ctx, "the restart is not in run.json: %s", err.text);
    }
}

/* --- state ------------------------------------------------------------------------------------ */

/* False: asked anew, or the run is over. */
static bool
take_state(troupe_ctx *ctx, tr_policy *p, troupe_answer *answer, const opening *o)
{
    troupe_error err = {0};
    troupe_status status = TROUPE_OK;
    if (strcmp(o->origin, "mirror") == 0) {
        status = tr_policy_mirror_restore(
            ctx, p, troupe_arg_object(answer, 5), troupe_arg_u64(answer, 6), o->step, &err);
        if (status != TROUPE_OK && !p->refuses) {
            troupe_log(ctx, "%s; going back to a checkpoint", err.text);
            p->refuses = true;
            tr_policy_open(ctx, p);
            return false;
        }
        /* A ledger that was not given out again has become durable. */
        p->checkpointed = o->ledger == NULL ? o->step : p->checkpointed;
    } else if (strcmp(o->origin, "checkpoint") == 0) {
        status = tr_policy_restore(p, o->step, &err);
        p->checkpointed = o->step;
    }
    if (status == TROUPE_OK && p->step != o->step) {
        status = troupe_fail(&err, TROUPE_CORRUPT,
            "the stream's ledger is of step %lld, the policy's state of step %lld",
            (long long)o->step, (long long)p->step);
    }
    if (status == TROUPE_OK) {
        status = troupe_trainer_get_state(p->trainer, p->params, NULL, NULL, &err);
    }
    if (status != TROUPE_OK) {
        tr_policy_fail(ctx, p, status, "open", err.text);
    }
    return status == TROUPE_OK;
}

/* The stream has ended before: this incarnation has only to say how. */
static void
tell_end(troupe_ctx *ctx, tr_policy *p, troupe_answer *answer, const opening *o)
{
    p->step = o->step;
    p->code = (int)troupe_arg_i64(answer, 13);
    (void)tr_policy_read_counters(answer, 8, &p->counters);
    if (p->code != 0 && !troupe_arg_is_nil(answer, 12)) {
        snprintf(p->failure, sizeof p->failure, "%s", troupe_arg_str(answer, 12));
    }
    troupe_error err = {0};
    if (o->step > 0 && tr_policy_restore(p, o->step, &err) == TROUPE_OK) {
        p->checkpointed = o->step;
    }
    tr_policy_done(ctx, p);
}

static void
begin(troupe_ctx *ctx, tr_policy *p, troupe_answer *answer, const opening *o)
{
    p->initial = strcmp(o->origin, "mirror") != 0;
    if (!p->initial) {
        (void)tr_policy_read_counters(answer, 8, &p->counters);
        p->ledger = o->ledger != NULL ? tr_strdup(o->ledger) : NULL;
        p->publish_ms = troupe_arg_is_nil(answer, 10) ? TR_UNKNOWN : troupe_arg_f64(answer, 10);
    }
    if (o->published) {
        p->version = p->next_version - 1;
        tr_policy_published(ctx, p);
    } else {
        tr_policy_publish(ctx, p);
    }
}

static void
count_restarts(tr_policy *p, const opening *o, uint64_t restarts)
{
    p->restarts_base = o->opens == 1 ? p->restarts : p->restarts_base;
    p->restarts = p->restarts_base + restarts;
}

static void
open_again(troupe_ctx *ctx, void *user)
{
    tr_policy *p = user;
    if (p->phase == TR_POLICY_OPENING) {
        tr_policy_open(ctx, p);
    }
}

static void
opened(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    tr_policy *p = user;
    if (p->phase != TR_POLICY_OPENING) {
        return; /* the run is being finished */
    }
    troupe_status answered = troupe_answer_status(answer);
    if (answered == TROUPE_NOT_FOUND && troupe_now_ns(ctx) - p->started_ns < KNOWN_NS &&
        troupe_timer_start_for(ctx, PAUSE_NS, "the stream to know this incarnation", open_again, p,
            NULL) == TROUPE_OK) {
        return; /* the news that this incarnation is up travels by another way */
    }
    if (answered != TROUPE_OK) {
        tr_policy_fail(ctx, p, answered, "open", troupe_answer_text(answer));
        return;
    }
    p->epoch = troupe_arg_u64(answer, 0);
    p->next_version = troupe_arg_u64(answer, 2);
    opening o = {.step = troupe_arg_i64(answer, 1),
        .origin = troupe_arg_str(answer, 3),
        .published = troupe_arg_bool(answer, 4),
        .voided = troupe_arg_bool(answer, 7),
        .ledger = troupe_arg_is_nil(answer, 9) ? NULL : troupe_arg_str(answer, 9),
        .opens = troupe_arg_u64(answer, 15),
        .why = troupe_arg_str(answer, 16)};
    if (troupe_arg_bool(answer, 11)) {
        tell_end(ctx, p, answer, &o);
        return;
    }
    if (!take_state(ctx, p, answer, &o)) {
        return;
    }
    count_restarts(p, &o, troupe_arg_u64(answer, 14));
    troupe_error err = {0};
    troupe_status status = bring_files(p, &o, &err);
    if (status != TROUPE_OK) {
        tr_policy_fail(ctx, p, status, "run directory", err.text);
        return;
    }
    note_restart(ctx, p, &o);
    begin(ctx, p, answer, &o);
}
