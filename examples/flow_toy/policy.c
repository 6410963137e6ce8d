/* The sink of flow_toy: it takes whole groups, checks them, trains the centre of the flow,
 * commits, publishes and saves.
 *
 *   open -> publish -> [ take -> train -> commit -> publish -> save when due -> ] finish
 *
 * Each step is a call whose answer starts the next; record.c has what is written down. */
#include "policy.h"

#include <troupe/ext/protocol.h>
#include <troupe/ext/wire.h>

#include <math.h>
#include <string.h>

enum {
    PAUSE_NS = 200 * 1000,
    UPDATES = 2 /* optimiser updates on one batch: one step, one published version */
};

static void publish(troupe_ctx *ctx, void *user);
static void next(troupe_ctx *ctx, void *user);

/* Sends a call to the stream, whose answer continues the run; without it the run cannot go on. */
static void
ask(troupe_ctx *ctx, policy *p, const char *method, troupe_args *args, troupe_answer_fn answered)
{
    troupe_status status = troupe_call_send(ctx, p->stream, method, args, .on_answer = answered,
        .user = p, .retry = true, .deadline_ns = TROUPE_DEADLINE_MAX_NS);
    troupe_args_fini(args);
    if (status != TROUPE_OK) {
        troupe_exit(ctx, status, "%s: the stream cannot be reached", method);
    }
}

/* True when the stream agreed; otherwise the run ends with its reason. */
static bool
agreed(troupe_ctx *ctx, const char *method, troupe_answer *answer)
{
    troupe_status status = troupe_answer_status(answer);
    if (status != TROUPE_OK && status != TROUPE_DUPLICATE) {
        troupe_exit(ctx, status, "%s: %s", method, troupe_answer_text(answer));
        return false;
    }
    return true;
}

/* Calls `then` a little later. */
static void
pause_then(troupe_ctx *ctx, policy *p, troupe_timer_fn then)
{
    if (troupe_timer_start(ctx, PAUSE_NS, then, p, NULL) != TROUPE_OK) {
        troupe_exit(ctx, TROUPE_FULL, "no timer is left to wait with");
    }
}

/* --- a granted batch -------------------------------------------------------------------------- */

static void
refuse(group *g, const char *verdict, const char *reason)
{
    if (g->refused == NULL) {
        g->refused = verdict;
        g->reason = reason;
    }
}

/* [attempt, object, digest, units, array of stages [number or nil, object or nil, digest]] */
static bool
read_member(troupe_ctx *ctx, tr_reader *in, member *m)
{
    uint32_t fields = 0, stages = 0, parts = 0;
    uint64_t attempt = 0, word = 0, units = 0;
    *m = (member){.reward = (double)NAN};
    bool ok = tr_read_array(in, &fields) && fields == 5 && tr_read_u64(in, &attempt) &&
              tr_read_u64(in, &word) && tr_read_u64(in, &m->digest) && tr_read_u64(in, &units) &&
              tr_read_array(in, &stages) && stages == 1 && tr_read_array(in, &parts) && parts == 3;
    if (ok) {
        ok = tr_reader_peek(in) == TR_WIRE_NIL ? tr_read_nil(in) : tr_read_f64(in, &m->reward);
    }
    m->attempt = (uint32_t)attempt;
    troupe_object object = troupe_object_of_word(word);
    return ok && tr_read_skip(in) && tr_read_skip(in) &&
           troupe_sample_open(troupe_ctx_store(ctx), object, &m->sample, NULL) == TROUPE_OK;
}

/* Nothing is believed: bytes against the digest, tensors against their shapes, versions against
 * the hard bound. */
static void
check_group(policy *p, group *g, member *members)
{
    troupe_bound_member bound[TROUPE_GROUP_SIZE_MAX];
    for (int i = 0; i < p->config.group_size; i++) {
        member *m = &members[i];
        bound[i] = (troupe_bound_member){.units = troupe_sample_units(m->sample)};
        bound[i].spans = troupe_sample_spans(m->sample, &bound[i].span_count);
        if (troupe_sample_verify(m->sample, m->digest, NULL) != TROUPE_OK) {
            refuse(g, "failed", "a sample's bytes changed after it was sealed");
        } else if (toy_sample_of(m->sample, &m->path, NULL) != TROUPE_OK) {
            refuse(g, "failed", "a sample is no path of this flow");
        } else if (!isfinite(m->reward)) {
            refuse(g, "failed", "no reward");
        }
    }
    troupe_lag lag = {0};
    troupe_status status = troupe_bound_test(TROUPE_BOUND_GROUP, p->config.max_lag, p->version,
        bound, (size_t)p->config.group_size, &lag);
    if (status == TROUPE_STALE) {
        refuse(g, "stale", "head lag above max_lag");
    } else if (status != TROUPE_OK) {
        refuse(g, "failed", "its version spans are malformed or of the future");
    }
    if (g->refused == NULL) {
        troupe_lag_add(&p->lag, &lag);
    }
}

static bool
read_batch(troupe_ctx *ctx, policy *p, troupe_answer *answer)
{
    tr_reader in;
    uint32_t count = 0, fields = 0, members = 0;
    if (!troupe_arg_reader(answer, 1, &in) || !tr_read_array(&in, &count) ||
        count > (uint32_t)p->config.groups) {
        return false;
    }
    p->lag = (troupe_lag){0};
    for (p->count = 0; p->count < (int)count; p->count++) {
        group *g = &p->groups[p->count];
        *g = (group){0};
        if (!tr_read_array(&in, &fields) || fields != 3 || !tr_read_u64(&in, &g->id) ||
            !tr_read_u64(&in, &g->row) || !tr_read_array(&in, &members) ||
            members != (uint32_t)p->config.group_size) {
            return false;
        }
        member *first = p->members + p->count * p->config.group_size;
        for (uint32_t m = 0; m < members; m++) {
            if (!read_member(ctx, &in, &first[m])) {
                return false;
            }
        }
        check_group(p, g, first);
    }
    return true;
}

static void
close_batch(policy *p)
{
    for (int i = 0; i < p->config.groups * p->config.group_size; i++) {
        troupe_sample_close(p->members[i].sample);
        p->members[i] = (member){0};
    }
    p->count = 0;
}

/* --- a step ----------------------------------------------------------------------------------- */

/* The steps that the version now held has sampled, as bits. */
static uint32_t
fresh_steps(const policy *p, const troupe_sample *sample)
{
    size_t count = 0;
    const troupe_span *spans = troupe_sample_spans(sample, &count);
    bool fresh = count > 0 && spans[count - 1].version == p->version;
    return fresh ? ~0u << spans[count - 1].unit : 0;
}

/* The members that are trained on, group after group; returns the number of groups. */
static int
collect(policy *p, toy_term *terms, double *rewards)
{
    int count = 0;
    for (int i = 0; i < p->count * p->config.group_size; i++) {
        const member *m = &p->members[i];
        if (p->groups[i / p->config.group_size].refused == NULL) {
            terms[count] = (toy_term){.path = m->path, .fresh = fresh_steps(p, m->sample)};
            rewards[count++] = m->reward;
        }
    }
    return count / p->config.group_size;
}

static void
train(policy *p)
{
    size_t most = (size_t)(p->config.groups * p->config.group_size);
    toy_term *terms = tr_zalloc(most, sizeof *terms);
    double *rewards = tr_zalloc(2 * most, sizeof *rewards), *advantages = rewards + most;
    p->trained = collect(p, terms, rewards);
    int count = p->trained * p->config.group_size;
    if (count > 0) {
        p->reward = toy_advantages(rewards, p->trained, p->config.group_size, advantages);
    }
    for (int u = 0; u < UPDATES && count > 0; u++) {
        double grad[FLOW_DIM];
        for (int i = 0; i < count; i++) {
            terms[i].advantage = advantages[i];
            terms[i].fresh = u == 0 ? terms[i].fresh : 0;
        }
        (void)toy_objective(p->m, terms, count, grad, &p->sums);
        toy_adam_update(&p->adam, p->config.lr, grad, p->m);
    }
    tr_free(terms);
    tr_free(rewards);
}

/* --- the order of events ---------------------------------------------------------------------- */

static void
opened(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    policy *p = user;
    if (agreed(ctx, TROUPE_METHOD_OPEN, answer)) {
        p->epoch = troupe_arg_u64(answer, 0);
        p->next_version = troupe_arg_u64(answer, 2);
        publish(ctx, p);
    }
}

static void
start(troupe_ctx *ctx)
{
    troupe_args args = {0};
    ask(ctx, troupe_state(ctx), TROUPE_METHOD_OPEN, &args, opened);
}

static void
published(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    policy *p = user;
    (void)troupe_object_release(troupe_ctx_store(ctx), p->weights);
    p->weights = (troupe_object){0};
    if (troupe_answer_status(answer) == TROUPE_AGAIN) { /* too many older versions are in use */
        pause_then(ctx, p, publish);
    } else if (agreed(ctx, TROUPE_METHOD_PUBLISH, answer)) {
        p->version = p->next_version++;
        troupe_error err = {0};
        troupe_status status = p->step > 0 ? policy_write_metrics(p, &err) : TROUPE_OK;
        if (status != TROUPE_OK) {
            troupe_exit(ctx, status, "%s", err.text);
            return;
        }
        next(ctx, p);
    }
}

/* The weights as they are, as the next version. */
static void
publish(troupe_ctx *ctx, void *user)
{
    policy *p = user;
    void *bytes = NULL;
    troupe_store *store = troupe_ctx_store(ctx);
    troupe_status status = troupe_object_create(store, sizeof p->m, &p->weights, &bytes);
    if (status == TROUPE_AGAIN) {
        pause_then(ctx, p, publish);
        return;
    }
    if (status == TROUPE_OK) {
        memcpy(bytes, p->m, sizeof p->m);
        status = troupe_object_seal(store, p->weights);
    }
    if (status != TROUPE_OK) {
        troupe_exit(ctx, status, "the weights cannot be published");
        return;
    }
    troupe_args args = {0};
    troupe_args_u64(&args, p->next_version);
    troupe_args_i64(&args, p->step);
    troupe_args_object(&args, p->weights);
    troupe_args_u64(&args, tr_xxh3(p->m, sizeof p->m, 0));
    ask(ctx, p, TROUPE_METHOD_PUBLISH, &args, published);
}

/* Value 0 of an answer: the ledger, in the order of troupe_counters. */
static bool
read_counters(troupe_answer *answer, troupe_counters *c)
{
    uint64_t *into[] = {&c->dispatched, &c->trained, &c->filtered, &c->stale, &c->failed,
        &c->queued, &c->in_flight};
    tr_reader in;
    uint32_t count = 0;
    bool ok =
        troupe_arg_reader(answer, 0, &in) && tr_read_array(&in, &count) && count == TR_COUNT(into);
    for (size_t i = 0; ok && i < TR_COUNT(into); i++) {
        ok = tr_read_u64(&in, into[i]);
    }
    return ok;
}

static void
committed(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    policy *p = user;
    if (!agreed(ctx, TROUPE_METHOD_COMMIT, answer)) {
        return;
    }
    tr_free(p->ledger);
    p->ledger = tr_strdup(troupe_arg_str(answer, 1));
    if (!read_counters(answer, &p->counters) || !troupe_args_ok(answer)) {
        troupe_exit(ctx, TROUPE_CORRUPT, "commit: the answer does not parse");
        return;
    }
    p->step++;
    close_batch(p);
    publish(ctx, p);
}

static void
commit(troupe_ctx *ctx, policy *p)
{
    troupe_args args = {0};
    troupe_args_i64(&args, p->step + 1);
    troupe_args_array(&args, (uint32_t)p->count);
    for (int g = 0; g < p->count; g++) {
        troupe_args_array(&args, 4);
        troupe_args_u64(&args, p->groups[g].id);
        troupe_args_str(&args, group_verdict(&p->groups[g]));
        if (p->groups[g].refused == NULL) {
            troupe_args_nil(&args);
        } else {
            troupe_args_str(&args, p->groups[g].reason);
        }
        troupe_args_array(&args, (uint32_t)p->config.group_size);
        for (int m = 0; m < p->config.group_size; m++) {
            troupe_args_u64(&args, p->members[g * p->config.group_size + m].digest);
        }
    }
    troupe_args_bool(&args, true);
    ask(ctx, p, TROUPE_METHOD_COMMIT, &args, committed);
}

static void
taken(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    policy *p = user;
    if (troupe_answer_status(answer) == TROUPE_TIMEOUT) {
        next(ctx, p);
        return;
    }
    troupe_error err = {.text = "the batch does not parse"};
    troupe_status status = TROUPE_CORRUPT;
    if (!agreed(ctx, TROUPE_METHOD_TAKE, answer)) {
        return;
    }
    if (read_batch(ctx, p, answer)) {
        train(p);
        status = policy_write_samples(p, &err);
    }
    if (status != TROUPE_OK) {
        troupe_exit(ctx, status, "take: %s", err.text);
        return;
    }
    commit(ctx, p);
}

static void
take(troupe_ctx *ctx, policy *p)
{
    troupe_args args = {0};
    troupe_args_i64(&args, p->step + 1);
    troupe_args_u64(&args, p->version);
    ask(ctx, p, TROUPE_METHOD_TAKE, &args, taken);
}

static void
finished(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    policy *p = user;
    if (agreed(ctx, TROUPE_METHOD_FINISH, answer)) {
        p->done = true;
        (void)read_counters(answer, &p->counters);
        policy_print_summary(p);
        if (p->stopping) {
            troupe_stopped(ctx);
        } else {
            troupe_quit(ctx, 0);
        }
    }
}

static void
durable(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    if (agreed(ctx, TROUPE_METHOD_DURABLE, answer)) {
        next(ctx, user);
    }
}

static void
save(troupe_ctx *ctx, policy *p)
{
    uint64_t digest = 0;
    troupe_error err = {0};
    troupe_status status = policy_save(p, &digest, &err);
    if (status != TROUPE_OK) {
        troupe_exit(ctx, status, "%s", err.text);
        return;
    }
    p->saved = p->step;
    troupe_args args = {0};
    troupe_args_i64(&args, p->step);
    troupe_args_u64(&args, digest);
    ask(ctx, p, TROUPE_METHOD_DURABLE, &args, durable);
}

/* What comes after a published version: a checkpoint when one is due, another step, or the end. */
static void
next(troupe_ctx *ctx, void *user)
{
    policy *p = user;
    bool last = p->stopping || p->step >= p->config.steps;
    bool due = p->config.checkpoint_every > 0 && p->step % p->config.checkpoint_every == 0;
    troupe_args args = {0};
    if ((last || due) && p->saved != p->step) {
        save(ctx, p);
    } else if (last) {
        troupe_args_str(&args, p->stopping ? "stopped" : "all steps done");
        ask(ctx, p, TROUPE_METHOD_FINISH, &args, finished);
    } else {
        take(ctx, p);
    }
}

static troupe_status
init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    policy *p = troupe_state(ctx);
    troupe_status status = toy_config_parse(config, &p->config, err);
    if (status != TROUPE_OK) {
        return status;
    }
    size_t groups = (size_t)p->config.groups;
    p->groups = tr_zalloc(groups, sizeof *p->groups);
    p->members = tr_zalloc(groups * (size_t)p->config.group_size, sizeof *p->members);
    p->stream = troupe_to(ctx, TOY_STREAM, 0);
    flow_offset(p->config.seed, p->offset);
    return policy_open_records(p, err);
}

/* The step that runs is finished, its batch waited for: a step takes milliseconds here. */
static bool
stop(troupe_ctx *ctx)
{
    policy *p = troupe_state(ctx);
    p->stopping = !p->done;
    return p->done;
}

static void
fini(troupe_ctx *ctx)
{
    policy *p = troupe_state(ctx);
    if (p->members != NULL) {
        close_batch(p);
    }
    policy_close_records(p);
    tr_free(p->groups);
    tr_free(p->members);
    tr_free(p->ledger);
}

const troupe_class toy_policy = {
    .name = "flow_policy",
    .state_size = sizeof(policy),
    .init = init,
    .start = start,
    .stop = stop,
    .fini = fini,
    .own_loop = true,
    .methods = {{TROUPE_METHOD_RETIRED, policy_retired}},
};
