/* A simulated policy: opens the stream, publishes, takes, checks everything that it was granted
 * by its own means, trains for a while, commits, saves a checkpoint now and then, finishes.
 * Killed, it comes back and goes on from where the coordinator says that it must. */
#include "sim/sim.h"

#include <troupe/ext/protocol.h>
#include <troupe/ext/wire.h>
#include <troupe/sample.h>

#include <inttypes.h>
#include <string.h>

enum {
    AGAIN_NS = 10 * 1000 * 1000,
    SPANS_MAX = 64,
};

struct granted {
    uint64_t group;
    uint32_t attempts[SIM_GROUP_MAX];
    uint64_t digests[SIM_GROUP_MAX];
    const char *verdict;
};

struct sink {
    struct sim *sim;
    troupe_target stream;
    uint64_t epoch;
    uint64_t step;
    uint64_t version;
    uint64_t next_version;
    troupe_object weights;
    struct granted batch[SIM_BATCH_MAX];
    uint32_t batch_count;
};

static void open_stream(troupe_ctx *ctx, void *user);
static void publish(troupe_ctx *ctx, void *user);
static void take(troupe_ctx *ctx, void *user);
static void commit(troupe_ctx *ctx, void *user);
static void durable(troupe_ctx *ctx, void *user);
static void finish(troupe_ctx *ctx, void *user);

static troupe_status
sink_init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    struct sink *s = troupe_state(ctx);
    (void)config;
    (void)err;
    s->sim = tr_context(ctx);
    s->stream = troupe_to(ctx, "samples", 0);
    return TROUPE_OK;
}

static void
sink_start(troupe_ctx *ctx)
{
    open_stream(ctx, NULL);
}

static void
sink_fini(troupe_ctx *ctx)
{
    struct sink *s = troupe_state(ctx);
    if (troupe_object_word(s->weights) != 0) {
        (void)troupe_object_release(troupe_ctx_store(ctx), s->weights);
    }
}

static void
later(troupe_ctx *ctx, troupe_timer_fn what)
{
    struct sink *s = troupe_state(ctx);
    if (troupe_timer_start(ctx, AGAIN_NS, what, NULL, NULL) != TROUPE_OK) {
        sim_violation(s->sim, "timers", "the sink ran out of timers");
    }
}

/* Sends a call whose answer is the next event of the sink's life; with no room now, a little
 * later. */
static void
ask(troupe_ctx *ctx, const char *method, troupe_args *args, troupe_answer_fn next,
    troupe_timer_fn again)
{
    struct sink *s = troupe_state(ctx);
    if (troupe_call_send(ctx, s->stream, method, args, .on_answer = next, .retry = true,
            .deadline_ns = s->sim->job->patience_ns) != TROUPE_OK) {
        later(ctx, again);
    }
    troupe_args_fini(args);
}

/* Nothing was decided: asked again. Anything else that is not OK is a fault of the coordinator. */
static bool
again(troupe_ctx *ctx, troupe_answer *answer, troupe_timer_fn what, const char *name)
{
    struct sink *s = troupe_state(ctx);
    troupe_status status = troupe_answer_status(answer);
    if (status == TROUPE_OK) {
        return false;
    }
    if (status == TROUPE_TIMEOUT || status == TROUPE_AGAIN || status == TROUPE_NOT_FOUND ||
        status == TROUPE_CANCELLED || status == TROUPE_GONE || status == TROUPE_DIED) {
        later(ctx, what);
        return true;
    }
    sim_violation(s->sim, "sink-refused", "%s was answered %s: %s", name,
        troupe_status_name(status), troupe_answer_text(answer));
    return true;
}

/* --- open, publish ---------------------------------------------------------------------------- */

static void
opened(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    if (troupe_answer_status(answer) == TROUPE_STOPPED) {
        finish(ctx, NULL); /* killed between the end and the word of it */
        return;
    }
    if (again(ctx, answer, open_stream, "open")) {
        return;
    }
    s->epoch = troupe_arg_u64(answer, 0);
    s->step = troupe_arg_u64(answer, 1);
    s->next_version = troupe_arg_u64(answer, 2);
    if (s->step > s->sim->disk_step) {
        sim_violation(s->sim, "acknowledged-not-durable",
            "told to go on from step %" PRIu64 ", the newest checkpoint is of step %" PRIu64,
            s->step, s->sim->disk_step);
    }
    publish(ctx, NULL);
}

static void
open_stream(troupe_ctx *ctx, void *user)
{
    (void)user;
    troupe_args args = {0};
    ask(ctx, TROUPE_METHOD_OPEN, &args, opened, open_stream);
}

static void
published(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    bool done = troupe_answer_status(answer) == TROUPE_DUPLICATE;
    if (!done && again(ctx, answer, publish, "publish")) {
        return;
    }
    (void)troupe_object_release(troupe_ctx_store(ctx), s->weights);
    s->weights = (troupe_object){0};
    s->version = s->next_version++;
    s->sim->newest_version = TR_MAX(s->sim->newest_version, s->version);
    if (s->step >= s->sim->job->steps) {
        finish(ctx, NULL);
    } else {
        take(ctx, NULL);
    }
}

static void
publish(troupe_ctx *ctx, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    if (troupe_object_word(s->weights) == 0) {
        void *bytes = NULL;
        if (troupe_object_create(troupe_ctx_store(ctx), SIM_WEIGHTS_WORDS * sizeof(uint64_t),
                &s->weights, &bytes) != TROUPE_OK) {
            s->weights = (troupe_object){0};
            later(ctx, publish);
            return;
        }
        sim_weights(s->next_version, bytes);
        (void)!troupe_object_seal(troupe_ctx_store(ctx), s->weights);
    }
    troupe_args args = {0};
    troupe_args_u64(&args, s->next_version);
    troupe_args_u64(&args, s->step);
    troupe_args_object(&args, s->weights);
    troupe_args_u64(&args, 1 + s->next_version);
    ask(ctx, TROUPE_METHOD_PUBLISH, &args, published, publish);
}

/* --- take: everything is checked again -------------------------------------------------------- */

struct granted_member {
    uint64_t attempt;
    uint64_t word;
    uint64_t digest;
    uint64_t units;
    double reward;
};

/* [number or nil, object or nil, digest] of each stage; the rewards are remembered. */
static bool
read_stages(struct sink *s, tr_reader *in, struct granted_member *member)
{
    uint32_t stages = 0;
    bool ok = tr_read_array(in, &stages) && stages == s->sim->job->stages;
    for (uint32_t i = 0; ok && i < stages; i++) {
        uint32_t fields = 0;
        uint64_t digest = 0;
        uint64_t word = 0;
        double value = 0;
        ok = tr_read_array(in, &fields) && fields == 3;
        bool number = ok && tr_reader_peek(in) != TR_WIRE_NIL;
        ok = ok && (number ? tr_read_f64(in, &value) : tr_read_nil(in));
        bool object = ok && tr_reader_peek(in) != TR_WIRE_NIL;
        ok = ok && (object ? tr_read_u64(in, &word) : tr_read_nil(in)) && tr_read_u64(in, &digest);
        if (i == 0) {
            member->reward = value;
        }
        if (ok && (i == 0 ? !number : !object)) {
            sim_violation(s->sim, "stage-missing", "stage %u gave nothing", i);
        }
        if (ok && object &&
            troupe_object_hold(s->sim->store, troupe_object_of_word(word), NULL, NULL) ==
                TROUPE_OK) {
            (void)troupe_object_release(s->sim->store, troupe_object_of_word(word));
        } else if (ok && object) {
            sim_violation(s->sim, "freed-in-use", "a stage's answer was let go before its step");
        }
    }
    return ok;
}

static void
check_sample(
    struct sink *s, const struct granted *g, uint32_t m, const struct granted_member *member)
{
    const struct sim_job *job = s->sim->job;
    troupe_sample *sample = NULL;
    troupe_error err = {0};
    if (troupe_sample_open(s->sim->store, troupe_object_of_word(member->word), &sample, &err) !=
            TROUPE_OK ||
        troupe_sample_verify(sample, member->digest, &err) != TROUPE_OK) {
        sim_violation(s->sim, "freed-in-use",
            "member %u of group %" PRIu64 " cannot be read as sealed: %s", m, g->group, err.text);
        troupe_sample_close(sample);
        return;
    }
    size_t count = 0;
    const troupe_span *spans = troupe_sample_spans(sample, &count);
    uint8_t mask[SPANS_MAX];
    troupe_bound_member bound = {
        .spans = spans, .span_count = count, .units = troupe_sample_units(sample), .mask = mask};
    troupe_lag lag = {0};
    troupe_status status = troupe_bound_test(job->bound, job->max_lag, s->version, &bound, 1, &lag);
    if (status != TROUPE_OK) {
        sim_violation(s->sim, "bound",
            "member %u of group %" PRIu64 " has lag %" PRIu64 ", max_lag is %" PRId64, m, g->group,
            lag.head, job->max_lag);
    }
    if (job->stages > 0 && member->reward != sim_reward(g->group, m, (uint32_t)member->attempt)) {
        sim_violation(s->sim, "answers-mixed",
            "member %u of group %" PRIu64 " was given another sample's reward", m, g->group);
    }
    troupe_sample_close(sample);
}

static bool
read_group(struct sink *s, tr_reader *in, struct granted *g)
{
    uint32_t fields = 0;
    uint32_t members = 0;
    uint64_t row = 0;
    bool ok = tr_read_array(in, &fields) && fields == 3 && tr_read_u64(in, &g->group) &&
              tr_read_u64(in, &row) && tr_read_array(in, &members) &&
              members == s->sim->job->group_size;
    for (uint32_t m = 0; ok && m < members; m++) {
        struct granted_member member = {0};
        ok = tr_read_array(in, &fields) && fields == 5 && tr_read_u64(in, &member.attempt) &&
             tr_read_u64(in, &member.word) && tr_read_u64(in, &member.digest) &&
             tr_read_u64(in, &member.units) && read_stages(s, in, &member);
        if (ok) {
            g->attempts[m] = (uint32_t)member.attempt;
            g->digests[m] = member.digest;
            check_sample(s, g, m, &member);
        }
    }
    return ok;
}

static void
judge(struct sink *s, struct granted *g)
{
    static const char *const verdicts[] = {"filtered", "stale", "failed"};
    uint64_t word = sim_word(s->sim, g->group, s->step, 3000);
    g->verdict = sim_chance(word, s->sim->job->verdict_fails) ? verdicts[word % 3] : "trained";
}

static void
taken(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    if (again(ctx, answer, take, "take")) {
        return;
    }
    tr_reader in;
    uint32_t count = 0;
    bool ok = troupe_arg_reader(answer, 1, &in) && tr_read_array(&in, &count) &&
              count == s->sim->job->groups_per_step;
    s->batch_count = count;
    for (uint32_t i = 0; ok && i < count; i++) {
        ok = read_group(s, &in, &s->batch[i]);
        judge(s, &s->batch[i]);
    }
    if (!ok) {
        sim_violation(s->sim, "batch", "the granted batch does not parse");
        return;
    }
    uint64_t word = sim_word(s->sim, s->step, s->epoch, 4000);
    if (troupe_timer_start(ctx, sim_tail(word, s->sim->job->train_ns), commit, NULL, NULL) !=
        TROUPE_OK) {
        commit(ctx, NULL);
    }
}

static void
take(troupe_ctx *ctx, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    troupe_args args = {0};
    troupe_args_u64(&args, s->step + 1);
    troupe_args_u64(&args, s->version);
    ask(ctx, TROUPE_METHOD_TAKE, &args, taken, take);
}

/* --- commit, durable, finish ------------------------------------------------------------------ */

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
    struct sink *s = troupe_state(ctx);
    troupe_counters c = {0};
    (void)user;
    if (again(ctx, answer, commit, "commit")) {
        return;
    }
    if (!read_counters(answer, &c) || !troupe_counters_hold(&c)) {
        sim_violation(s->sim, "ledger", "the ledger in the answer to a commit does not add up");
    }
    s->step++;
    bool last = s->step >= s->sim->job->steps;
    if (last || s->step % s->sim->job->checkpoint_every == 0) {
        sim_checkpoint(s->sim, s->step, troupe_arg_str(answer, 1));
        durable(ctx, NULL);
    } else {
        publish(ctx, NULL);
    }
}

static void
commit(troupe_ctx *ctx, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    troupe_args args = {0};
    troupe_args_u64(&args, s->step + 1);
    troupe_args_array(&args, s->batch_count);
    for (uint32_t i = 0; i < s->batch_count; i++) {
        const struct granted *g = &s->batch[i];
        bool trained = strcmp(g->verdict, "trained") == 0;
        troupe_args_array(&args, 4);
        troupe_args_u64(&args, g->group);
        troupe_args_str(&args, g->verdict);
        if (trained) {
            troupe_args_nil(&args);
        } else {
            troupe_args_str(&args, "by the policy");
        }
        troupe_args_array(&args, s->sim->job->group_size);
        for (uint32_t m = 0; m < s->sim->job->group_size; m++) {
            troupe_args_u64(&args, g->digests[m]);
        }
    }
    troupe_args_bool(&args, true);
    ask(ctx, TROUPE_METHOD_COMMIT, &args, committed, commit);
}

static void
made_durable(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)user;
    if (!again(ctx, answer, durable, "durable")) {
        publish(ctx, NULL);
    }
}

static void
durable(troupe_ctx *ctx, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    troupe_args args = {0};
    troupe_args_u64(&args, s->step);
    troupe_args_u64(&args, 100 + s->step);
    ask(ctx, TROUPE_METHOD_DURABLE, &args, made_durable, durable);
}

static void
finished(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    if (again(ctx, answer, finish, "finish")) {
        return;
    }
    if (!read_counters(answer, &s->sim->final)) {
        sim_violation(s->sim, "ledger", "the final ledger does not parse");
    }
    s->sim->finished = true;
}

static void
finish(troupe_ctx *ctx, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    s->sim->ending = true;
    troupe_args args = {0};
    troupe_args_str(&args, "all steps done");
    ask(ctx, TROUPE_METHOD_FINISH, &args, finished, finish);
}

/* A group has ended without the sink: its samples must still be there to be shown. */
static void
retired(troupe_ctx *ctx, troupe_call *call)
{
    struct sink *s = troupe_state(ctx);
    tr_reader in;
    uint32_t members = 0;
    bool ok = troupe_arg_reader(call, 6, &in) && tr_read_array(&in, &members);
    for (uint32_t m = 0; ok && m < members; m++) {
        uint32_t fields = 0;
        uint64_t index = 0, attempt = 0, word = 0;
        ok = tr_read_array(&in, &fields) && fields == 4 && tr_read_u64(&in, &index) &&
             tr_read_u64(&in, &attempt) &&
             (tr_reader_peek(&in) == TR_WIRE_NIL ? tr_read_nil(&in) : tr_read_u64(&in, &word)) &&
             tr_read_skip(&in);
        if (ok && word != 0) {
            troupe_object object = troupe_object_of_word(word);
            if (troupe_object_hold(s->sim->store, object, NULL, NULL) != TROUPE_OK) {
                sim_violation(s->sim, "freed-in-use",
                    "a sample was let go before the sink was told of its group");
            } else {
                (void)troupe_object_release(s->sim->store, object);
            }
        }
    }
    if (!ok) {
        sim_violation(s->sim, "retired", "the list of members does not parse");
    }
    (void)troupe_reply(call, NULL);
}

const troupe_class sim_sink_class = {
    .name = "sim_sink",
    .state_size = sizeof(struct sink),
    .init = sink_init,
    .start = sink_start,
    .fini = sink_fini,
    .methods = {{TROUPE_METHOD_RETIRED, retired}},
};
