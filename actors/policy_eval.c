/* Held-out prompts, decoded greedily with the policy's own newest weights and scored by the reward
 * role. Outside of the stream: evaluation is no training, it takes no part in admission and the
 * ledger does not know it. */
#include "policy.h"

#include <troupe/ext/protocol.h>

#include <math.h>
#include <string.h>

enum {
    SCORES_OPEN_MAX = 64,        /* rewards asked for at once */
    PROGRAM_SCORES_OPEN_MAX = 4, /* the same of one external program, which takes them in turn */
    SUBMITTED_MAX = 256,
    PAUSE_NS = 20 * 1000 * 1000 /* before a score that could not be sent is asked for again */
};

struct tr_eval {
    tr_policy *p;
    troupe_engine *engine;
    troupe_lm_weights *weights;
    void (*done)(troupe_ctx *ctx, tr_policy *p);
    int64_t rows, submitted, decoded;
    int64_t scored; /* rows that have an answer, an error included */
    int64_t right, errors;
    bool abandoned; /* nobody waits for it; it lives until its last answer can have come */
    bool resting;   /* a timer will ask for scores */
    int open_max;
    uint64_t deadline_ns; /* of one score, with those that are before it in the queue */
    int open;             /* scores asked for and not answered */
    int64_t *order;       /* row of each finished prompt, waiting to be scored */
    troupe_object *objects;
    int64_t waiting_first, waiting_count;
    int32_t stop_ids[TROUPE_STOP_IDS_MAX];
    int stop_count;
};

typedef struct score_call {
    tr_eval *eval;
    troupe_object object;
} score_call;

static void
eval_free(troupe_ctx *ctx, tr_policy *p, tr_eval *e)
{
    if (e == NULL) {
        return;
    }
    for (int64_t i = e->waiting_first; i < e->waiting_count; i++) {
        (void)troupe_object_release(troupe_ctx_store(ctx), e->objects[i]);
    }
    troupe_engine_free(e->engine);
    troupe_lm_weights_drop(e->weights, p->device);
    tr_free(e->order);
    tr_free(e->objects);
    tr_free(e);
}

void
tr_policy_eval_free(troupe_ctx *ctx, tr_policy *p)
{
    eval_free(ctx, p, p->eval);
    eval_free(ctx, p, p->eval_abandoned);
    p->eval = p->eval_abandoned = NULL;
}

void
tr_policy_eval_abandon(tr_policy *p)
{
    TR_ASSERT(p->eval != NULL && p->eval_abandoned == NULL);
    p->eval->abandoned = true;
    p->eval_abandoned = p->eval;
    p->eval = NULL;
}

troupe_status
tr_policy_eval_start(
    troupe_ctx *ctx, tr_policy *p, void (*done)(troupe_ctx *ctx, tr_policy *p), troupe_error *err)
{
    tr_eval *e = tr_zalloc(1, sizeof *e);
    p->eval = e;
    e->p = p;
    e->done = done;
    int64_t limit = tr_config_int(p->config, "eval-limit", 0);
    e->rows = (int64_t)tr_prompts_held_out_rows(&p->prompts);
    e->rows = limit > 0 ? TR_MIN(limit, e->rows) : e->rows;
    e->order = tr_zalloc((size_t)e->rows, sizeof *e->order);
    e->objects = tr_zalloc((size_t)e->rows, sizeof *e->objects);
    bool program = tr_config_text(p->config, "reward-cmd", NULL) != NULL;
    int each = program ? PROGRAM_SCORES_OPEN_MAX : SCORES_OPEN_MAX;
    double timeout_s = tr_config_real(p->config, "reward-timeout", 10);
    e->open_max = each * TR_MAX(troupe_replicas(ctx, "reward"), 1);
    e->deadline_ns = (uint64_t)((timeout_s * 2 * PROGRAM_SCORES_OPEN_MAX + 60) * 1e9);
    e->stop_count = tr_stop_ids(&p->model, &p->prompts, e->stop_ids);
    troupe_status status =
        troupe_lm_weights_new(p->lm, p->device, p->params, (int64_t)p->version, &e->weights, err);
    if (status == TROUPE_OK) {
        troupe_engine_options options = {.size = sizeof options,
            .sequences_max = SUBMITTED_MAX,
            .blocks = tr_kv_blocks(p->config, &p->model, SUBMITTED_MAX)};
        status = troupe_engine_new(p->lm, p->device, e->weights, &options, &e->engine, err);
    }
    if (status != TROUPE_OK) {
        eval_free(ctx, p, e);
        p->eval = NULL;
    }
    return status;
}

/* Counts one more row that has its score (or will never have one); the last ends the evaluation. */
static void
count_score(troupe_ctx *ctx, tr_eval *e, bool right, bool error)
{
    tr_policy *p = e->p;
    e->right += right;
    e->errors += error;
    p->eval_errors += error;
    if (++e->scored < e->rows) {
        return;
    }
    /* A reward that could not be had says nothing about the answer. */
    int64_t known = e->rows - e->errors;
    p->accuracy = known > 0 ? (double)e->right / (double)known : (double)NAN;
    void (*done)(troupe_ctx *, tr_policy *) = e->done;
    eval_free(ctx, p, e);
    p->eval = NULL;
    done(ctx, p);
}

static void ask_scores(troupe_ctx *ctx, tr_eval *e);
static void rested(troupe_ctx *ctx, void *user);

static void
scored(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    score_call call = *(score_call *)user;
    tr_free(user);
    (void)troupe_object_release(troupe_ctx_store(ctx), call.object);
    tr_eval *e = call.eval;
    e->open--;
    if (e->abandoned) {
        return;
    }
    bool error = troupe_answer_status(answer) != TROUPE_OK;
    bool right = !error && troupe_arg_f64(answer, 0) >= 1 - 1e-9;
    if (error && e->p->eval_errors == 0) {
        troupe_log(ctx, "an evaluation reward failed, its row does not count: %s",
            troupe_answer_text(answer));
    }
    bool more = e->scored + 1 < e->rows;
    count_score(ctx, e, right, error);
    if (more) {
        ask_scores(ctx, e);
    }
}

/* Keeps a bounded number of rewards open. */
static void
ask_scores(troupe_ctx *ctx, tr_eval *e)
{
    int replicas = troupe_replicas(ctx, "reward");
    while (e->open < e->open_max && e->waiting_first < e->waiting_count) {
        int64_t at = e->waiting_first;
        score_call *call = tr_zalloc(1, sizeof *call);
        *call = (score_call){e, e->objects[at]};
        troupe_args args = {0};
        troupe_args_object(&args, e->objects[at]);
        troupe_args_u64(&args, tr_prompts_train_rows(&e->p->prompts) + (uint64_t)e->order[at]);
        for (int i = 0; i < 4; i++) {
            troupe_args_u64(&args, 0);
        }
        troupe_status status = troupe_call_send(ctx,
            troupe_to(ctx, "reward", (int)(at % TR_MAX(replicas, 1))), TROUPE_METHOD_SCORE, &args,
            .on_answer = scored, .user = call, .retry = true, .deadline_ns = e->deadline_ns);
        if (status != TROUPE_OK) {
            troupe_args_fini(&args);
            tr_free(call);
            break; /* an answer that is open, or the timer, tries again */
        }
        e->waiting_first++;
        e->open++;
    }
    bool stuck = e->waiting_first < e->waiting_count && e->open == 0;
    if (stuck && !e->resting) {
        e->resting = troupe_timer_start_for(ctx, PAUSE_NS, "room for the calls of the evaluation",
                         rested, e->p, NULL) == TROUPE_OK;
    }
}

static troupe_status
submit_row(tr_eval *e, troupe_error *err)
{
    tr_policy *p = e->p;
    troupe_ids ids = {0};
    troupe_status status = tr_prompts_ids(
        &p->prompts, tr_prompts_train_rows(&p->prompts) + (uint64_t)e->submitted, &ids, err);
    if (status == TROUPE_OK) {
        troupe_engine_request request = {
            .size = sizeof request,
            .id = (uint64_t)e->submitted + 1,
            .prompt = ids.data,
            .prompt_count = (int)ids.count,
            .members = 1,
            .max_new = (int)tr_config_int(p->config, "max-new", 256),
            .sampling = {.temperature = 0, .top_p = 1},
            .stop_ids = e->stop_ids,
            .stop_count = e->stop_count,
        };
        status = troupe_engine_submit(e->engine, &request, err);
    }
    troupe_ids_fini(&ids);
    e->submitted++;
    return status;
}

static troupe_status
keep_sample(troupe_ctx *ctx, tr_eval *e, const troupe_generation *g, troupe_error *err)
{
    troupe_span span = {0, e->p->version};
    troupe_named_tensor tensors[] = {
        {TR_TENSOR_PROMPT, {TROUPE_TENSOR_I32, 1, {g->prompt_count}, g->prompt}},
        {TR_TENSOR_TOKENS, {TROUPE_TENSOR_I32, 1, {g->count}, g->tokens}},
        {TR_TENSOR_LOGPROBS, {TROUPE_TENSOR_F32, 1, {g->count}, g->logprobs}},
    };
    troupe_sample_spec spec = {.tensors = tensors,
        .tensor_count = TR_COUNT(tensors),
        .units = (uint64_t)g->count,
        .spans = &span,
        .span_count = 1,
        .finish = troupe_finish_name(g->finish)};
    troupe_status status =
        troupe_sample_seal(troupe_ctx_store(ctx), &spec, &e->objects[e->waiting_count], NULL, err);
    if (status == TROUPE_OK) {
        e->order[e->waiting_count++] = (int64_t)g->id - 1;
    }
    return status;
}

static void
rested(troupe_ctx *ctx, void *user)
{
    tr_policy *p = user;
    if (p->eval != NULL) {
        p->eval->resting = false;
        ask_scores(ctx, p->eval);
    }
}

bool
tr_policy_eval_slice(troupe_ctx *ctx, tr_policy *p)
{
    tr_eval *e = p->eval;
    troupe_error err = {0};
    while (e->submitted < e->rows && e->submitted - e->decoded < SUBMITTED_MAX) {
        troupe_status status = submit_row(e, &err);
        if (status != TROUPE_OK) {
            if (p->eval_errors == 0) {
                troupe_log(ctx, "a held-out prompt does not count: %s", err.text);
            }
            e->decoded++;
            bool more = e->scored + 1 < e->rows;
            count_score(ctx, e, false, true);
            if (!more) {
                return false;
            }
        }
    }
    const troupe_generation *finished = NULL;
    int count = 0;
    troupe_status status = troupe_engine_step(e->engine, &finished, &count, &err);
    for (int i = 0; status == TROUPE_OK && i < count; i++) {
        e->decoded++;
        if (finished[i].count == 0 || keep_sample(ctx, e, &finished[i], &err) != TROUPE_OK) {
            bool more = e->scored + 1 < e->rows;
            count_score(ctx, e, false, true);
            if (!more) {
                return false;
            }
        }
    }
    if (status != TROUPE_OK) {
        tr_policy_fail(ctx, p, status, "evaluation", err.text);
        return false;
    }
    ask_scores(ctx, e);
    bool stuck = e->waiting_first < e->waiting_count && e->open == 0 && !e->resting;
    return !troupe_engine_idle(e->engine) || e->submitted < e->rows || stuck;
}
