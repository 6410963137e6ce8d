/* A simulated source: takes leases, makes each member after a while with a heavy tail, stamps it
 * with the versions that it held, seals it and sends it until it is answered. It flips to new
 * weights between two of its steps, and checks that their bytes are there when it does. It has the
 * manners of the real one: no more members than it announced, nothing of an epoch that is over. */
#include "sim/sim.h"

#include <troupe/ext/protocol.h>
#include <troupe/sample.h>

#include <inttypes.h>
#include <string.h>

#define HANGS_NS UINT64_C(30000000000) /* longer than any lease in a world where some hang */

enum {
    WORKS_MAX = 256,
    FLIP_NS = 3 * 1000 * 1000,
    AGAIN_NS = 10 * 1000 * 1000,
    UNITS_MAX = 12,
    VERSIONS_MAX = 6, /* that one member remembers to have been sampled with */
    LIES = 8,
    LATE_MS = 150, /* for a cancellation to arrive in a reliable world */
};

enum work_state {
    WORK_FREE,
    WORK_RUNNING, /* being sampled */
    WORK_SEALED,  /* an object is there, its message is under way or waits for room */
};

struct work {
    enum work_state state;
    uint64_t epoch;
    uint64_t group;
    uint32_t member;
    uint32_t attempt;
    uint64_t versions[VERSIONS_MAX]; /* that it was sampled with, the newest ones */
    uint32_t version_count;
    troupe_timer timer;
    troupe_object object;
    uint64_t digest;
    uint64_t ids_digest;
    uint64_t units;
    uint64_t held;
    troupe_span spans[VERSIONS_MAX];
    uint32_t span_count;
};

struct source {
    struct sim *sim;
    troupe_target stream;
    uint64_t epoch;
    bool has_version;
    uint64_t version;
    troupe_object weights;
    troupe_call *update; /* the newest one, answered at the flip */
    uint64_t update_version;
    troupe_object update_object;
    struct work works[WORKS_MAX];
};

static void send_sealed(troupe_ctx *ctx, struct work *work);

static troupe_status
source_init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    struct source *s = troupe_state(ctx);
    (void)config;
    (void)err;
    s->sim = tr_context(ctx);
    s->stream = troupe_to(ctx, "samples", 0);
    return TROUPE_OK;
}

static void announce(troupe_ctx *ctx, void *user);

/* Not known there yet, or not heard: it says so again. */
static void
announced(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    if (troupe_answer_status(answer) != TROUPE_OK) {
        (void)!troupe_timer_start(ctx, AGAIN_NS, announce, user, NULL);
    }
}

static void
announce(troupe_ctx *ctx, void *user)
{
    struct source *s = troupe_state(ctx);
    (void)user;
    troupe_args args = {0};
    troupe_args_u64(&args, s->sim->job->capacity);
    if (troupe_call_send(ctx, s->stream, TROUPE_METHOD_SOURCE, &args, .on_answer = announced,
            .retry = true) != TROUPE_OK) {
        (void)!troupe_timer_start(ctx, AGAIN_NS, announce, NULL, NULL);
    }
    troupe_args_fini(&args);
}

static void
source_start(troupe_ctx *ctx)
{
    const struct source *s = troupe_state(ctx);
    s->sim->born_ns[troupe_self_replica(ctx)] = tr_world_now_ns(s->sim->world);
    announce(ctx, NULL);
}

static void
source_fini(troupe_ctx *ctx)
{
    struct source *s = troupe_state(ctx);
    for (int i = 0; i < WORKS_MAX; i++) {
        if (s->works[i].state == WORK_SEALED) {
            (void)troupe_object_release(troupe_ctx_store(ctx), s->works[i].object);
        }
    }
}

/* --- sampling --------------------------------------------------------------------------------- */

static void
sealed_answered(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct work *work = user;
    troupe_status status = troupe_answer_status(answer);
    if (status == TROUPE_TIMEOUT || status == TROUPE_AGAIN) {
        send_sealed(ctx, work);
        return;
    }
    (void)troupe_object_release(troupe_ctx_store(ctx), work->object);
    *work = (struct work){0};
    struct source *s = troupe_state(ctx);
    if (status == TROUPE_INVALID || status == TROUPE_NOT_FOUND || status == TROUPE_BAD_INPUT ||
        status == TROUPE_LOST) {
        sim_violation(
            s->sim, "sealed-refused", "a good sample was refused: %s", troupe_answer_text(answer));
    }
}

static void
sealed_again(troupe_ctx *ctx, void *user)
{
    send_sealed(ctx, user);
}

static troupe_status
send_work(troupe_ctx *ctx, const struct work *work, troupe_answer_fn on_answer, void *user)
{
    struct source *s = troupe_state(ctx);
    troupe_args args = {0};
    troupe_args_u64(&args, work->epoch);
    troupe_args_u64(&args, work->group);
    troupe_args_u64(&args, work->member);
    troupe_args_u64(&args, work->attempt);
    troupe_args_object(&args, work->object);
    troupe_args_u64(&args, work->digest);
    troupe_args_u64(&args, work->ids_digest);
    troupe_args_u64(&args, work->units);
    troupe_args_u64(&args, work->held);
    troupe_args_array(&args, work->span_count);
    for (uint32_t i = 0; i < work->span_count; i++) {
        troupe_args_array(&args, 2);
        troupe_args_u64(&args, work->spans[i].unit);
        troupe_args_u64(&args, work->spans[i].version);
    }
    troupe_status status =
        troupe_call_send(ctx, s->stream, TROUPE_METHOD_SEALED, &args, .on_answer = on_answer,
            .user = user, .retry = true, .deadline_ns = s->sim->job->patience_ns);
    troupe_args_fini(&args);
    return status;
}

static void
send_sealed(troupe_ctx *ctx, struct work *work)
{
    if (send_work(ctx, work, sealed_answered, work) != TROUPE_OK) {
        (void)!troupe_timer_start(ctx, AGAIN_NS, sealed_again, work, NULL);
    }
}

static void
lie_answered(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    const struct source *s = troupe_state(ctx);
    (void)user;
    if (troupe_answer_status(answer) == TROUPE_OK) {
        sim_violation(s->sim, "impossible-accepted", "a sample that cannot be was accepted");
    }
}

/* What a source gone wrong might say of a member that it has made. None of it may be accepted. */
static void
lie(troupe_ctx *ctx, const struct work *work, uint64_t kind)
{
    struct work false_work = *work;
    troupe_span *last = &false_work.spans[false_work.span_count - 1];
    switch (kind) {
    case 0: /* the engine stamped another version than the source held */
        false_work.held++;
        break;
    case 1: /* a version that nobody has published */
        false_work.held = last->version += 1000;
        break;
    case 2:
        false_work.member = 1000;
        break;
    case 3: /* an attempt that was never leased */
        false_work.attempt += 1000;
        break;
    case 4:
        false_work.group += 1000000;
        break;
    case 5:
        false_work.epoch += 1000;
        break;
    case 6: /* nothing was sampled */
        false_work.units = 0;
        false_work.span_count = 0;
        break;
    default: /* a span beyond the end */
        last->unit = false_work.units;
        break;
    }
    (void)!send_work(ctx, &false_work, lie_answered, NULL);
}

static void
report_failure(troupe_ctx *ctx, struct work *work)
{
    struct source *s = troupe_state(ctx);
    troupe_args args = {0};
    troupe_args_u64(&args, work->epoch);
    troupe_args_u64(&args, work->group);
    troupe_args_u64(&args, work->member);
    troupe_args_u64(&args, work->attempt);
    troupe_args_str(&args, "simulated failure of a sample");
    sim_shadow_reported(s->sim->shadow, work->epoch, work->group, work->member, work->attempt);
    (void)!troupe_call_send(ctx, s->stream, TROUPE_METHOD_FAILED, &args, .retry = true);
    troupe_args_fini(&args);
    *work = (struct work){0};
}

/* Units are spread evenly over the versions, as many of the newest as there are units. */
static void
stamp(const struct source *s, struct work *work, uint64_t word)
{
    work->units = 1 + word % UNITS_MAX;
    work->held = s->version;
    work->span_count = (uint32_t)TR_MIN((uint64_t)work->version_count, work->units);
    uint32_t skip = work->version_count - work->span_count;
    for (uint32_t i = 0; i < work->span_count; i++) {
        work->spans[i] =
            (troupe_span){i * work->units / work->span_count, work->versions[skip + i]};
    }
}

/* In a world that loses nothing a source has heard long ago that nobody waits for this any more. */
static void
check_wanted(const struct source *s, const struct work *work)
{
    uint64_t closed =
        sim_shadow_closed_ns(s->sim->shadow, work->epoch, work->group, work->member, work->attempt);
    uint64_t now = tr_world_now_ns(s->sim->world);
    uint64_t late = LATE_MS * UINT64_C(1000000) + 2 * s->sim->job->faults.delay_ns;
    if (sim_is_reliable(s->sim->job) && now > closed && now - closed > late) {
        sim_violation(s->sim, "not-cancelled",
            "member %u of group %" PRIu64 " was made, %.3f s after its lease was over",
            work->member, work->group, (double)(now - closed) / 1e9);
    }
}

/* The version that a source samples with is never let go, but at the end of the job. */
static void
check_held(troupe_ctx *ctx, struct source *s)
{
    if (troupe_object_hold(troupe_ctx_store(ctx), s->weights, NULL, NULL) == TROUPE_OK) {
        (void)troupe_object_release(troupe_ctx_store(ctx), s->weights);
    } else if (!s->sim->ending) {
        sim_violation(s->sim, "weights-retired-in-use",
            "version %" PRIu64 " was let go while it was sampled with", s->version);
    }
}

static void
worked(troupe_ctx *ctx, void *user)
{
    struct source *s = troupe_state(ctx);
    struct work *work = user;
    uint64_t word = sim_word(s->sim, work->group, work->member, work->attempt);
    if (sim_chance(tr_mix(&word, 1), s->sim->job->work_fails)) {
        report_failure(ctx, work);
        return;
    }
    check_held(ctx, s);
    check_wanted(s, work);
    stamp(s, work, word);
    int32_t ids[UNITS_MAX];
    for (uint64_t i = 0; i < work->units; i++) {
        ids[i] = (int32_t)(uint32_t)(word >> 8) + (int32_t)i;
    }
    troupe_named_tensor tensor = {"tokens",
        {.type = TROUPE_TENSOR_I32, .rank = 1, .shape = {(int64_t)work->units}, .data = ids}};
    troupe_sample_spec spec = {.tensors = &tensor,
        .tensor_count = 1,
        .units = work->units,
        .spans = work->spans,
        .span_count = work->span_count,
        .finish = "stop"};
    troupe_error err = {0};
    troupe_status status =
        troupe_sample_seal(troupe_ctx_store(ctx), &spec, &work->object, &work->digest, &err);
    if (status != TROUPE_OK) {
        sim_violation(s->sim, "seal", "%s", err.text);
        *work = (struct work){0};
        return;
    }
    work->ids_digest = troupe_ids_digest(ids, work->units);
    work->state = WORK_SEALED;
    if (sim_chance(tr_mix(&work->digest, 1), s->sim->job->lies)) {
        lie(ctx, work, work->digest % LIES);
    }
    send_sealed(ctx, work);
}

/* --- leases ----------------------------------------------------------------------------------- */

static void
drop_work(troupe_ctx *ctx, struct work *work)
{
    if (work->state == WORK_RUNNING) {
        (void)troupe_timer_cancel(ctx, work->timer);
        *work = (struct work){0};
    }
}

static bool
is_known(const struct source *s, uint64_t epoch, uint64_t group, uint32_t attempt)
{
    for (int i = 0; i < WORKS_MAX; i++) {
        const struct work *w = &s->works[i];
        if (w->state != WORK_FREE && w->epoch == epoch && w->group == group &&
            w->attempt == attempt) {
            return true;
        }
    }
    return false;
}

/* Members that are leased, or whose sample nobody has answered for. */
static uint32_t
in_flight(const struct source *s)
{
    uint32_t count = 0;
    for (int i = 0; i < WORKS_MAX; i++) {
        count += s->works[i].state != WORK_FREE ? 1 : 0;
    }
    return count;
}

/* A new epoch voids what was leased before it. */
static void
enter_epoch(troupe_ctx *ctx, struct source *s, uint64_t epoch)
{
    for (int i = 0; i < WORKS_MAX; i++) {
        if (s->works[i].epoch < epoch) {
            drop_work(ctx, &s->works[i]);
        }
    }
    s->epoch = epoch;
}

/* Nothing comes of it, and when the cancellation was lost nobody asks for the place any more. */
static void
gave_up(troupe_ctx *ctx, void *user)
{
    struct work *work = user;
    (void)ctx;
    *work = (struct work){0};
}

static bool
begin_work(troupe_ctx *ctx, const struct work *what)
{
    struct source *s = troupe_state(ctx);
    for (int i = 0; i < WORKS_MAX; i++) {
        struct work *work = &s->works[i];
        if (work->state != WORK_FREE) {
            continue;
        }
        *work = *what;
        work->state = WORK_RUNNING;
        work->versions[0] = s->version;
        work->version_count = 1;
        uint64_t word = sim_word(s->sim, work->group, work->member, work->attempt);
        bool hangs = sim_chance(~word, s->sim->job->work_hangs);
        uint64_t takes = hangs ? HANGS_NS : sim_tail(word, s->sim->job->work_ns);
        if (troupe_timer_start(ctx, takes, hangs ? gave_up : worked, work, &work->timer) ==
            TROUPE_OK) {
            return true;
        }
        *work = (struct work){0};
        return false;
    }
    return false;
}

static void
lease(troupe_ctx *ctx, troupe_call *call)
{
    struct source *s = troupe_state(ctx);
    struct work what = {.epoch = troupe_arg_u64(call, 0),
        .group = troupe_arg_u64(call, 1),
        .attempt = (uint32_t)troupe_arg_u64(call, 2)};
    uint64_t row = troupe_arg_u64(call, 3);
    uint64_t members = troupe_arg_u64(call, 4);
    if (!troupe_args_ok(call)) {
        return;
    }
    if (what.epoch < s->epoch) {
        (void)troupe_reply_error(call, TROUPE_GONE, "that epoch is over");
        return;
    }
    if (!s->has_version) {
        sim_violation(s->sim, "lease-without-version",
            "group %" PRIu64 " was leased to a source without weights", what.group);
    }
    if (row != troupe_row_of_group(s->sim->job->seed, SIM_ROWS, what.group)) {
        sim_violation(
            s->sim, "row", "group %" PRIu64 " was leased with row %" PRIu64, what.group, row);
    }
    if (what.epoch > s->epoch) {
        enter_epoch(ctx, s, what.epoch);
    }
    if (!is_known(s, what.epoch, what.group, what.attempt)) {
        uint32_t here = in_flight(s);
        uint32_t count = (uint32_t)__builtin_popcountll(members);
        if (here > 0 && here + count > s->sim->job->capacity) {
            (void)troupe_reply_error(call, TROUPE_AGAIN, "no room");
            return;
        }
        for (uint32_t m = 0; m < s->sim->job->group_size; m++) {
            what.member = m;
            if ((members >> m & 1) != 0 && !begin_work(ctx, &what)) {
                sim_violation(s->sim, "timers", "a source ran out of timers");
            }
        }
    }
    (void)troupe_reply(call, NULL);
}

static void
cancel(troupe_ctx *ctx, troupe_call *call)
{
    struct source *s = troupe_state(ctx);
    uint64_t epoch = troupe_arg_u64(call, 0);
    uint64_t group = troupe_arg_u64(call, 1);
    uint64_t attempt = troupe_arg_u64(call, 2);
    for (int i = 0; i < WORKS_MAX; i++) {
        struct work *w = &s->works[i];
        if (w->epoch == epoch && w->group == group && w->attempt == attempt) {
            drop_work(ctx, w);
        }
    }
    (void)troupe_reply(call, NULL);
}

/* --- weights ---------------------------------------------------------------------------------- */

static void
sampled_with(struct work *work, uint64_t version)
{
    if (work->state != WORK_RUNNING) {
        return;
    }
    if (work->version_count == VERSIONS_MAX) {
        work->version_count--;
        memmove(work->versions, &work->versions[1], work->version_count * sizeof work->versions[0]);
    }
    work->versions[work->version_count++] = version;
}

static void
flip(troupe_ctx *ctx, void *user)
{
    struct source *s = troupe_state(ctx);
    (void)user;
    if (s->update != NULL) {
        s->version = s->update_version;
        s->weights = s->update_object;
        s->has_version = true;
        for (int i = 0; i < WORKS_MAX; i++) {
            sampled_with(&s->works[i], s->version);
        }
        (void)troupe_reply(s->update, NULL);
        s->update = NULL;
    }
}

static bool
check_weights(troupe_ctx *ctx, troupe_call *call, uint64_t version, troupe_object object)
{
    struct source *s = troupe_state(ctx);
    const void *bytes = NULL;
    size_t size = 0;
    uint64_t expected[SIM_WEIGHTS_WORDS];
    sim_weights(version, expected);
    troupe_status status = troupe_object_hold(troupe_ctx_store(ctx), object, &bytes, &size);
    if (status != TROUPE_OK) {
        sim_violation(s->sim, "weights-retired-in-use",
            "version %" PRIu64 " was let go before its receiver could apply it", version);
        (void)troupe_reply_error(call, status, "the weights are gone");
        return false;
    }
    const uint64_t *words = bytes;
    bool same = size == sizeof expected;
    for (size_t i = 0; same && i < SIM_WEIGHTS_WORDS; i++) {
        same = words[i] == expected[i];
    }
    (void)troupe_object_release(troupe_ctx_store(ctx), object);
    if (!same) {
        sim_violation(
            s->sim, "weights-mixed", "the bytes of version %" PRIu64 " are not its own", version);
    }
    return same;
}

static void
update(troupe_ctx *ctx, troupe_call *call)
{
    struct source *s = troupe_state(ctx);
    uint64_t version = troupe_arg_u64(call, 0);
    troupe_object object = troupe_arg_object(call, 2);
    if (!troupe_args_ok(call)) {
        return;
    }
    if (s->has_version && version <= s->version) {
        (void)troupe_reply(call, NULL); /* applied before, or never needed */
        return;
    }
    if (s->update != NULL && version <= s->update_version) {
        (void)troupe_reply_error(call, TROUPE_AGAIN, "it is being applied");
        return;
    }
    if (!check_weights(ctx, call, version, object)) {
        return;
    }
    if (s->update != NULL) {
        (void)troupe_reply_error(s->update, TROUPE_STALE, "a newer version has come");
    }
    s->update = troupe_defer(call);
    s->update_version = version;
    s->update_object = object;
    uint64_t delay = 1 + sim_word(s->sim, version, (uint64_t)troupe_self_replica(ctx), 7) % FLIP_NS;
    if (troupe_timer_start(ctx, delay, flip, NULL, NULL) != TROUPE_OK) {
        flip(ctx, NULL);
    }
}

const troupe_class sim_source_class = {
    .name = "sim_source",
    .state_size = sizeof(struct source),
    .init = source_init,
    .start = source_start,
    .fini = source_fini,
    .methods = {{TROUPE_METHOD_LEASE, lease}, {TROUPE_METHOD_CANCEL, cancel},
        {TROUPE_METHOD_UPDATE, update}},
};
