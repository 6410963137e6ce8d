/* A simulated policy: opens the stream, publishes, takes, checks everything that it was granted
 * by its own means, trains for a while, commits, saves a checkpoint now and then, finishes.
 * Killed, it comes back and goes on from where the coordinator says that it must. Like the real
 * one it may be asked to end at any time, then gives up a take that is pending, and may fail to
 * write a checkpoint. */
#include "sim/sim.h"

#include <troupe/ext/protocol.h>
#include <troupe/ext/wire.h>

#include <inttypes.h>
#include <string.h>

enum {
    AGAIN_NS = 10 * 1000 * 1000,
    LIES = 4,
};

struct sink {
    struct sim *sim;
    troupe_target stream;
    bool opener; /* of the epoch that stands */
    bool published;
    bool stopping;
    bool taking;
    bool due;     /* a checkpoint of `step`, whose ledger is here */
    char *ledger; /* NULL: none was asked for */
    uint64_t epoch;
    uint64_t step;
    uint64_t version;
    uint64_t next_version;
    uint64_t calls;     /* made in this life */
    uint64_t told_step; /* whose true commit was sent last */
    uint64_t state;     /* what it is, see mirror.c */
    bool refuses;       /* the mirror that it was told of */
    troupe_object weights;
    troupe_object mirror; /* on its way with a commit */
    uint64_t mirror_digest;
    struct sim_granted batch[SIM_BATCH_MAX];
    uint32_t batch_count;
    /* Samples of steps that no durable point covers: they must all be there until one does. */
    uint64_t *kept;
    size_t kept_count;
};

static void open_stream(troupe_ctx *ctx, void *user);
static void publish(troupe_ctx *ctx, void *user);
static void take(troupe_ctx *ctx, void *user);
static void commit(troupe_ctx *ctx, void *user);
static void durable(troupe_ctx *ctx, void *user);
static void finish(troupe_ctx *ctx, void *user);

static void
stop_now(troupe_ctx *ctx, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    s->stopping = true;
    if (s->taking) {
        s->taking = false; /* the take is given up, its groups end with the job */
        finish(ctx, NULL);
    }
}

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
    struct sink *s = troupe_state(ctx);
    uint64_t stop_ns = s->sim->job->stop_ns;
    uint64_t lived_ns = tr_world_now_ns(s->sim->world) - s->sim->begin_ns;
    if (stop_ns > 0 && lived_ns >= stop_ns) {
        s->stopping = true;
    } else if (stop_ns > 0) {
        (void)!troupe_timer_start(ctx, stop_ns - lived_ns, stop_now, NULL, NULL);
    }
    open_stream(ctx, NULL);
}

static void
drop_mirror(struct sink *s)
{
    if (troupe_object_word(s->mirror) != 0) {
        (void)troupe_object_release(s->sim->store, s->mirror);
    }
    s->mirror = (troupe_object){0};
}

static void
sink_fini(troupe_ctx *ctx)
{
    struct sink *s = troupe_state(ctx);
    if (troupe_object_word(s->weights) != 0) {
        (void)troupe_object_release(troupe_ctx_store(ctx), s->weights);
    }
    drop_mirror(s);
    tr_free(s->ledger);
    tr_free(s->kept);
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
    s->calls++;
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

static bool
chance(const struct sink *s, uint64_t what, uint32_t thousandths)
{
    return sim_chance(sim_word(s->sim, s->step, s->epoch, what + s->calls), thousandths);
}

/* --- what comes next -------------------------------------------------------------------------- */

static void
check_kept(struct sink *s)
{
    for (size_t i = 0; i < s->kept_count; i++) {
        troupe_object object = troupe_object_of_word(s->kept[i]);
        if (troupe_object_hold(s->sim->store, object, NULL, NULL) == TROUPE_OK) {
            (void)troupe_object_release(s->sim->store, object);
        } else {
            sim_violation(s->sim, "freed-before-durable",
                "a sample was let go before step %" PRIu64 " was durable", s->step);
            break;
        }
    }
    s->kept_count = 0;
}

static void
proceed(troupe_ctx *ctx)
{
    struct sink *s = troupe_state(ctx);
    const struct sim_job *job = s->sim->job;
    if (s->due && (s->published || !job->late_durable)) {
        sim_checkpoint(s->sim, s->step, s->ledger);
        s->due = false;
        durable(ctx, NULL);
    } else if (!s->published) {
        publish(ctx, NULL);
    } else if (s->stopping || s->step >= job->steps) {
        finish(ctx, NULL);
    } else {
        take(ctx, NULL);
    }
}

/* --- open, publish ---------------------------------------------------------------------------- */

static bool
read_counters(troupe_answer *answer, int index, troupe_counters *c)
{
    uint64_t *into[] = {&c->dispatched, &c->trained, &c->filtered, &c->stale, &c->failed,
        &c->queued, &c->in_flight};
    tr_reader in;
    uint32_t count = 0;
    bool ok = troupe_arg_reader(answer, index, &in) && tr_read_array(&in, &count) &&
              count == TR_COUNT(into);
    for (size_t i = 0; ok && i < TR_COUNT(into); i++) {
        ok = tr_read_u64(&in, into[i]);
    }
    return ok;
}

static bool
is_due(const struct sink *s, uint64_t step)
{
    const struct sim_job *job = s->sim->job;
    return s->stopping || step >= job->steps || step % job->checkpoint_every == 0;
}

/* The state of the step that it is told: from the mirror, else from the disk, where the checkpoint
 * of no other step may be meant. False: the mirror is not fit to be used. */
static bool
restore(struct sink *s, troupe_answer *answer, const struct sim_opened *o)
{
    struct sim *sim = s->sim;
    s->state = sim_shadow_state(sim->shadow, o->step);
    if (o->mirrored) {
        uint64_t state = 0;
        if (!sim_mirror_read(sim->store, troupe_arg_object(answer, 5), troupe_arg_u64(answer, 6),
                o->step, &state) ||
            state != s->state) {
            sim_violation(
                sim, "mirror", "the mirror of step %" PRIu64 " is another state", o->step);
        }
        return !sim_chance(sim_word(sim, o->step, o->epoch, 9000), sim->job->mirrors_torn);
    }
    if (o->step != sim->durable_step && o->step != sim->disk_step) {
        sim_violation(sim, "acknowledged-not-durable",
            "told to go on from step %" PRIu64 ", the newest checkpoint is of step %" PRIu64
            ", the newest that was acknowledged of step %" PRIu64,
            o->step, sim->disk_step, sim->durable_step);
    }
    sim->durable_step = o->step;
    return true;
}

static void
opened(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    if (again(ctx, answer, open_stream, "open")) {
        return;
    }
    if (troupe_arg_bool(answer, 11)) {
        finish(ctx, NULL); /* killed between the end and the word of it */
        return;
    }
    struct sim_opened o = {.epoch = troupe_arg_u64(answer, 0),
        .step = troupe_arg_u64(answer, 1),
        .next_version = troupe_arg_u64(answer, 2),
        .published = troupe_arg_bool(answer, 4),
        .mirrored = !troupe_arg_is_nil(answer, 5),
        .voided = troupe_arg_bool(answer, 7)};
    if (!read_counters(answer, 8, &o.counters)) {
        sim_violation(s->sim, "ledger", "the answer to a new policy does not parse");
    }
    sim_shadow_opened(s->sim->shadow, &o);
    s->refuses = !restore(s, answer, &o);
    s->sim->refusing = s->refuses;
    if (s->refuses) {
        open_stream(ctx, NULL);
        return;
    }
    s->opener = o.voided;
    s->epoch = o.epoch;
    s->step = o.step;
    s->next_version = o.next_version;
    s->published = o.published;
    s->version = o.published ? o.next_version - 1 : 0;
    s->sim->committed_step = s->step;
    tr_free(s->ledger);
    s->ledger = troupe_arg_is_nil(answer, 9) ? NULL : tr_strdup(troupe_arg_str(answer, 9));
    bool fails = chance(s, 6000, s->sim->job->disk_fails);
    s->due = s->ledger != NULL && is_due(s, s->step) && !fails;
    proceed(ctx);
}

static void
open_stream(troupe_ctx *ctx, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    troupe_args args = {0};
    troupe_args_bool(&args, s->refuses);
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
    s->published = true;
    proceed(ctx);
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

/* --- take ------------------------------------------------------------------------------------- */

static void
judge(struct sink *s, struct sim_granted *g)
{
    static const char *const verdicts[] = {"filtered", "stale", "failed"};
    uint64_t word = sim_word(s->sim, g->group, s->step, 3000);
    g->verdict = sim_chance(word, s->sim->job->verdict_fails) ? verdicts[word % 3] : "trained";
}

/* The samples of as many steps as the stream holds wait for a durable point: it is time for a
 * checkpoint. */
static bool
is_full(troupe_ctx *ctx, troupe_answer *answer)
{
    struct sink *s = troupe_state(ctx);
    if (troupe_answer_status(answer) != TROUPE_FAILED) {
        return false;
    }
    uint64_t waiting = s->step - s->sim->durable_step;
    if (waiting < s->sim->job->retained_steps || s->ledger == NULL) {
        sim_violation(s->sim, "refused-too-early",
            "a take was refused while the samples of %" PRIu64 " steps wait: %s", waiting,
            troupe_answer_text(answer));
        return false;
    }
    s->due = true;
    proceed(ctx);
    return true;
}

static void
taken(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    if (!s->taking) {
        return; /* it is ending */
    }
    s->taking = false;
    if (is_full(ctx, answer) || again(ctx, answer, take, "take")) {
        return;
    }
    if (!sim_batch_read(s->sim, answer, s->version, s->batch, &s->batch_count)) {
        sim_violation(s->sim, "batch", "the granted batch does not parse");
        return;
    }
    sim_shadow_granted(s->sim->shadow, s->batch, s->batch_count, s->step + 1);
    for (uint32_t i = 0; i < s->batch_count; i++) {
        judge(s, &s->batch[i]);
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
    if (s->stopping) {
        proceed(ctx);
        return;
    }
    s->taking = true;
    troupe_args args = {0};
    troupe_args_u64(&args, s->step + 1);
    troupe_args_u64(&args, s->version);
    ask(ctx, TROUPE_METHOD_TAKE, &args, taken, take);
}

/* --- commit, durable, finish ------------------------------------------------------------------ */

static bool
read_lags(troupe_answer *answer, uint64_t lags[TROUPE_LAG_BUCKETS])
{
    tr_reader in;
    uint32_t count = 0;
    bool ok = troupe_arg_reader(answer, 3, &in) && tr_read_array(&in, &count) &&
              count == TROUPE_LAG_BUCKETS;
    for (size_t i = 0; ok && i < TROUPE_LAG_BUCKETS; i++) {
        ok = tr_read_u64(&in, &lags[i]);
    }
    return ok;
}

static void
keep_samples(struct sink *s)
{
    size_t most = (size_t)s->batch_count * TR_COUNT(s->batch[0].objects);
    s->kept = tr_realloc(s->kept, s->kept_count + most + 1, sizeof s->kept[0]);
    for (uint32_t i = 0; i < s->batch_count; i++) {
        const struct sim_granted *g = &s->batch[i];
        for (uint32_t k = 0; k < g->object_count && strcmp(g->verdict, "trained") == 0; k++) {
            s->kept[s->kept_count++] = g->objects[k];
        }
    }
}

static bool
wants_ledger(const struct sink *s)
{
    return s->sim->job->asks_always || is_due(s, s->step + 1);
}

/* What it is once the batch is trained on. */
static uint64_t
state_after(const struct sink *s)
{
    uint64_t state = s->state;
    for (uint32_t i = 0; i < s->batch_count; i++) {
        const struct sim_granted *g = &s->batch[i];
        if (strcmp(g->verdict, "trained") == 0) {
            state = sim_trained(state, s->step + 1, g->group, g->digests, s->sim->job->group_size);
        }
    }
    return state;
}

static void
committed(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct sink *s = troupe_state(ctx);
    struct sim_committed c = {.batch = s->batch, .batch_count = s->batch_count};
    (void)user;
    if (again(ctx, answer, commit, "commit")) {
        return;
    }
    s->state = state_after(s);
    c.step = ++s->step;
    drop_mirror(s);
    s->sim->committed_step = s->step;
    s->published = false;
    tr_free(s->ledger);
    s->ledger = troupe_arg_is_nil(answer, 1) ? NULL : tr_strdup(troupe_arg_str(answer, 1));
    c.ledger = s->ledger;
    if (!read_counters(answer, 0, &c.counters) || !troupe_counters_hold(&c.counters) ||
        !read_lags(answer, c.lags)) {
        sim_violation(s->sim, "ledger", "the answer to a commit does not parse or add up");
    } else {
        sim_shadow_commit(s->sim->shadow, &c);
    }
    keep_samples(s);
    bool fails = chance(s, 6000, s->sim->job->disk_fails);
    s->due = s->ledger != NULL && is_due(s, s->step) && !fails;
    proceed(ctx);
}

static void
put_verdict(const struct sink *s, troupe_args *args, const struct sim_granted *g, uint64_t twist)
{
    bool trained = strcmp(g->verdict, "trained") == 0;
    troupe_args_array(args, 4);
    troupe_args_u64(args, g->group);
    troupe_args_str(args, g->verdict);
    if (trained) {
        troupe_args_nil(args);
    } else {
        troupe_args_str(args, SIM_VERDICT_REASON);
    }
    troupe_args_array(args, s->sim->job->group_size);
    for (uint32_t m = 0; m < s->sim->job->group_size; m++) {
        troupe_args_u64(args, g->digests[m] ^ twist);
    }
}

static void tell_truth(troupe_ctx *ctx, void *user);

static void
lie_answered(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    if (troupe_answer_status(answer) == TROUPE_OK ||
        troupe_answer_status(answer) == TROUPE_DUPLICATE) {
        sim_violation(s->sim, "impossible-accepted",
            "a commit of step %" PRIu64 " that cannot be (%" PRIu64 ") was answered %s",
            s->step + 1, sim_word(s->sim, s->step, s->epoch, 7000) % LIES,
            troupe_status_name(troupe_answer_status(answer)));
    }
    tell_truth(ctx, NULL);
}

/* A commit that a policy gone wrong might send: of bytes that were never granted, of too few
 * groups, of one group twice, of another step. It must be refused, and change nothing. */
static void
lie(troupe_ctx *ctx)
{
    struct sink *s = troupe_state(ctx);
    uint64_t kind = sim_word(s->sim, s->step, s->epoch, 7000) % LIES;
    if (kind == 0 && strcmp(s->batch[s->batch_count - 1].verdict, "trained") != 0) {
        kind = 3; /* digests count for what was trained only */
    }
    if (kind == 2 && s->batch_count == 1) {
        kind = 1;
    }
    troupe_args args = {0};
    troupe_args_u64(&args, s->step + (kind == 3 ? 2 : 1));
    troupe_args_array(&args, s->batch_count - (kind == 1 ? 1 : 0));
    for (uint32_t i = 0; i < s->batch_count; i++) {
        bool last = i + 1 == s->batch_count;
        if (kind == 1 && last) {
            break;
        }
        put_verdict(s, &args, &s->batch[kind == 2 && last ? 0 : i], kind == 0 && last ? 1 : 0);
    }
    troupe_args_bool(&args, true);
    ask(ctx, TROUPE_METHOD_COMMIT, &args, lie_answered, tell_truth);
}

static void
tell_truth(troupe_ctx *ctx, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    s->told_step = s->step + 1;
    troupe_args args = {0};
    troupe_args_u64(&args, s->step + 1);
    troupe_args_array(&args, s->batch_count);
    for (uint32_t i = 0; i < s->batch_count; i++) {
        put_verdict(s, &args, &s->batch[i], 0);
    }
    troupe_args_bool(&args, wants_ledger(s));
    bool mirrored = sim_chance(sim_word(s->sim, s->step, s->epoch, 9100), s->sim->job->mirrors);
    if (mirrored && troupe_object_word(s->mirror) == 0) {
        (void)!sim_mirror_make(
            s->sim->store, s->step + 1, state_after(s), &s->mirror, &s->mirror_digest);
    }
    if (troupe_object_word(s->mirror) != 0) {
        troupe_args_object(&args, s->mirror);
        troupe_args_u64(&args, s->mirror_digest);
    }
    ask(ctx, TROUPE_METHOD_COMMIT, &args, committed, commit);
}

static void
commit(troupe_ctx *ctx, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    /* Once the truth is out, a lie about the same step is answered as the truth was. */
    if (s->told_step != s->step + 1 && chance(s, 5000, s->sim->job->lies)) {
        lie(ctx);
    } else {
        tell_truth(ctx, NULL);
    }
}

static void
made_durable(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    if (!again(ctx, answer, durable, "durable")) {
        s->sim->durable_step = s->step;
        tr_free(s->sim->durable_ledger);
        s->sim->durable_ledger = tr_strdup(s->ledger);
        proceed(ctx);
    }
}

static void
durable(troupe_ctx *ctx, void *user)
{
    struct sink *s = troupe_state(ctx);
    (void)user;
    check_kept(s);
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
    if (!read_counters(answer, 0, &s->sim->final)) {
        sim_violation(s->sim, "ledger", "the final ledger does not parse");
    } else {
        sim_shadow_finish(s->sim->shadow, s->opener, &s->sim->final);
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
    troupe_args_str(&args, s->stopping ? "stopped" : "all steps done");
    ask(ctx, TROUPE_METHOD_FINISH, &args, finished, finish);
}

/* --- groups that end without it --------------------------------------------------------------- */

static void
check_retired(struct sink *s, uint64_t word)
{
    troupe_object object = troupe_object_of_word(word);
    if (troupe_object_hold(s->sim->store, object, NULL, NULL) == TROUPE_OK) {
        (void)troupe_object_release(s->sim->store, object);
    } else {
        sim_violation(
            s->sim, "freed-in-use", "a sample was let go before the sink was told of its group");
    }
}

/* A group has ended without the sink: its samples must still be there to be shown. */
static void
retired(troupe_ctx *ctx, troupe_call *call)
{
    struct sink *s = troupe_state(ctx);
    tr_reader in;
    uint32_t members = 0;
    uint64_t epoch = troupe_arg_u64(call, 0);
    uint64_t group = troupe_arg_u64(call, 1);
    bool ok = troupe_args_ok(call) && troupe_arg_reader(call, 6, &in) &&
              tr_read_array(&in, &members) && members == s->sim->job->group_size;
    for (uint32_t m = 0; ok && m < members; m++) {
        uint32_t fields = 0;
        uint64_t index = 0, attempt = 0, word = 0;
        ok = tr_read_array(&in, &fields) && fields == 4 && tr_read_u64(&in, &index) && index == m &&
             tr_read_u64(&in, &attempt) &&
             (tr_reader_peek(&in) == TR_WIRE_NIL ? tr_read_nil(&in) : tr_read_u64(&in, &word)) &&
             tr_read_skip(&in);
        if (ok && word != 0) {
            check_retired(s, word);
        }
    }
    if (!ok) {
        sim_violation(s->sim, "retired", "the list of members does not parse");
    }
    sim_shadow_told(s->sim->shadow, epoch, group);
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
