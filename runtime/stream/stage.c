/* Stages: each sealed sample is sent to one worker of each stage, as soon as it is sealed,
 * whether or not its group is complete. The first answer counts, of whichever try. An error, a
 * deadline or the death of a worker is tried again, on another worker where there is one; out of
 * budget the whole group fails, since a group without one of its answers must never be trained
 * on. */
#include "stream/machine.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void
tr_stage_ready(troupe_stream *s, struct tr_group *g, uint32_t member)
{
    for (uint32_t stage = 0; stage < s->opt.stages; stage++) {
        TR_ASSERT(tr_group_call(s, g, member, stage)->state == TR_CALL_IDLE);
        s->idle_calls[stage]++;
    }
    tr_stage_check(s, g);
}

/* The least loaded worker with room; `but` (or none) only when no other one is left. */
static struct tr_peer *
choose_worker(troupe_stream *s, uint32_t stage, const struct tr_call *call)
{
    struct tr_peer *best = NULL;
    struct tr_peer *last = NULL;
    for (uint32_t i = 0; i < s->opt.stage_workers[stage]; i++) {
        struct tr_peer *worker = &s->workers[stage][i];
        if (!worker->up || worker->load >= worker->capacity) {
            continue;
        }
        if (call->failed_once && call->worker == i) {
            last = worker;
        } else if (best == NULL || worker->load < best->load) {
            best = worker;
        }
    }
    return best != NULL ? best : last;
}

static void
send_call(
    troupe_stream *s, struct tr_group *g, uint32_t member, uint32_t stage, struct tr_peer *worker)
{
    struct tr_call *call = tr_group_call(s, g, member, stage);
    call->state = TR_CALL_SENT;
    call->worker = (uint32_t)(worker - s->workers[stage]);
    call->tries++;
    call->since_ns = s->now_ns;
    call->deadline_ns = s->now_ns + s->opt.stage_ns;
    worker->load++;
    TR_ASSERT(s->idle_calls[stage] > 0);
    s->idle_calls[stage]--;
    tr_stream_note_deadline(s, call->deadline_ns);
    tr_stream_emit(s, &(troupe_effect){.kind = TROUPE_EFFECT_STAGE,
                          .peer = call->worker,
                          .incarnation = worker->incarnation,
                          .stage = stage,
                          .epoch = s->epoch,
                          .group = g->view.group,
                          .item = g->view.item,
                          .member = member,
                          .attempt = g->views[member].attempt,
                          .try_no = call->tries,
                          .object = g->views[member].object,
                          .deadline_ns = call->deadline_ns});
}

/* Sends what one group still has to ask of one stage; false when no worker has room. */
static bool
send_group(troupe_stream *s, struct tr_group *g, uint32_t stage)
{
    for (uint32_t m = 0; m < s->opt.group_size; m++) {
        const struct tr_call *call = tr_group_call(s, g, m, stage);
        if (g->members[m].state != TR_MEMBER_SEALED || call->state != TR_CALL_IDLE) {
            continue;
        }
        struct tr_peer *worker = choose_worker(s, stage, call);
        if (worker == NULL) {
            return false;
        }
        send_call(s, g, m, stage, worker);
    }
    return true;
}

void
tr_stage_pump(troupe_stream *s)
{
    for (uint32_t stage = 0; stage < s->opt.stages; stage++) {
        for (uint32_t i = 0; i < s->open_count && s->idle_calls[stage] > 0; i++) {
            if (!send_group(s, &s->groups[s->open[i]], stage)) {
                break;
            }
        }
    }
}

void
tr_stage_check(troupe_stream *s, struct tr_group *g)
{
    if (g->state != TR_GROUP_COMPLETE || g->answered < s->opt.group_size * s->opt.stages) {
        return;
    }
    const char *reason = s->opt.filter != NULL ? s->opt.filter(s->opt.filter_self, &g->view) : NULL;
    if (reason != NULL) {
        tr_group_end(s, g, TROUPE_RECORD_FILTERED, s->step, reason);
        return;
    }
    g->state = TR_GROUP_STAGED;
    g->staged_number = s->staged_count++;
}

static void
call_ended(troupe_stream *s, const struct tr_call *call, uint32_t stage)
{
    struct tr_peer *worker = &s->workers[stage][call->worker];
    TR_ASSERT(call->state == TR_CALL_SENT && worker->load > 0);
    worker->load--;
}

/* One try came to nothing. Returns false when the budget is used up and the group has failed and
 * is gone. */
static bool
call_failed(
    troupe_stream *s, struct tr_group *g, uint32_t member, uint32_t stage, const char *reason)
{
    struct tr_call *call = tr_group_call(s, g, member, stage);
    call_ended(s, call, stage);
    call->state = TR_CALL_IDLE;
    call->failed_once = true;
    s->idle_calls[stage]++;
    if (call->tries < s->opt.stage_tries) {
        return true;
    }
    char text[TR_REASON_BYTES + 96];
    char why[TR_REASON_BYTES];
    tr_reason_copy(why, reason);
    (void)snprintf(text, sizeof text, "stage %.64s after %" PRIu32 " tries: %s",
        s->opt.stage_names[stage], call->tries, why);
    tr_group_end(s, g, TROUPE_RECORD_FAILED, s->step, text);
    return false;
}

void
tr_stage_forget(troupe_stream *s, struct tr_group *g)
{
    for (uint32_t m = 0; m < s->opt.group_size; m++) {
        if (g->members[m].state != TR_MEMBER_SEALED) {
            continue;
        }
        for (uint32_t stage = 0; stage < s->opt.stages; stage++) {
            struct tr_call *call = tr_group_call(s, g, m, stage);
            if (call->state == TR_CALL_SENT) {
                call_ended(s, call, stage);
                call->state = TR_CALL_IDLE;
                s->idle_calls[stage]++;
            }
            if (call->state == TR_CALL_IDLE) {
                TR_ASSERT(s->idle_calls[stage] > 0);
                s->idle_calls[stage]--;
            }
        }
    }
}

void
tr_stage_tick(troupe_stream *s, struct tr_group *g)
{
    for (uint32_t m = 0; m < s->opt.group_size; m++) {
        for (uint32_t stage = 0; stage < s->opt.stages; stage++) {
            const struct tr_call *call = tr_group_call(s, g, m, stage);
            if (call->state != TR_CALL_SENT) {
                continue;
            }
            if (call->deadline_ns > s->now_ns) {
                tr_stream_note_deadline(s, call->deadline_ns);
            } else if (!call_failed(s, g, m, stage, "deadline passed")) {
                return;
            }
        }
    }
}

static void
worker_lost(troupe_stream *s, uint32_t stage, uint32_t peer)
{
    s->workers[stage][peer].up = false;
    uint32_t i = 0;
    while (i < s->open_count) {
        struct tr_group *g = &s->groups[s->open[i]];
        bool alive = true;
        for (uint32_t m = 0; alive && m < s->opt.group_size; m++) {
            const struct tr_call *call = tr_group_call(s, g, m, stage);
            if (call->state == TR_CALL_SENT && call->worker == peer) {
                alive = call_failed(s, g, m, stage, "the worker died");
            }
        }
        i += alive ? 1 : 0;
    }
    TR_ASSERT(s->workers[stage][peer].load == 0);
}

troupe_status
troupe_stream_worker_up(troupe_stream *s, uint64_t now_ns, uint32_t stage, uint32_t peer,
    uint64_t incarnation, uint32_t capacity)
{
    if (stage >= s->opt.stages || peer >= s->opt.stage_workers[stage] || incarnation == 0 ||
        capacity == 0) {
        return TROUPE_INVALID;
    }
    struct tr_peer *worker = &s->workers[stage][peer];
    if (incarnation <= worker->incarnation) {
        return incarnation == worker->incarnation && worker->up ? TROUPE_DUPLICATE : TROUPE_GONE;
    }
    tr_stream_enter(s, now_ns);
    if (worker->up) {
        worker_lost(s, stage, peer);
    }
    *worker = (struct tr_peer){.up = true, .capacity = capacity, .incarnation = incarnation};
    tr_stream_pump(s);
    return tr_stream_leave(s, TROUPE_OK);
}

troupe_status
troupe_stream_worker_down(
    troupe_stream *s, uint64_t now_ns, uint32_t stage, uint32_t peer, uint64_t incarnation)
{
    if (stage >= s->opt.stages || peer >= s->opt.stage_workers[stage] || incarnation == 0) {
        return TROUPE_INVALID;
    }
    struct tr_peer *worker = &s->workers[stage][peer];
    if (incarnation < worker->incarnation) {
        return TROUPE_GONE;
    }
    if (incarnation == worker->incarnation && !worker->up) {
        return TROUPE_DUPLICATE;
    }
    tr_stream_enter(s, now_ns);
    if (worker->up) {
        worker_lost(s, stage, peer);
    }
    worker->incarnation = incarnation;
    tr_stream_pump(s);
    return tr_stream_leave(s, TROUPE_OK);
}

/* The group and call that a stage's message is about, or the answer to it. */
static troupe_status
find_call(troupe_stream *s, const troupe_staged *what, struct tr_group **g, struct tr_call **call)
{
    troupe_status status = tr_group_lookup(s, what->epoch, what->group, g);
    if (status != TROUPE_OK) {
        return status;
    }
    if (what->member >= s->opt.group_size || what->stage >= s->opt.stages) {
        return TROUPE_INVALID;
    }
    if (what->attempt != (*g)->views[what->member].attempt ||
        (*g)->members[what->member].state != TR_MEMBER_SEALED) {
        return what->attempt >= (*g)->next_attempt ? TROUPE_INVALID : TROUPE_STALE;
    }
    *call = tr_group_call(s, *g, what->member, what->stage);
    if (what->try_no == 0 || what->try_no > (*call)->tries) {
        return TROUPE_INVALID;
    }
    return (*call)->state == TR_CALL_DONE ? TROUPE_DUPLICATE : TROUPE_OK;
}

troupe_status
troupe_stream_staged(
    troupe_stream *s, uint64_t now_ns, const troupe_staged *what, const troupe_stage_value *value)
{
    struct tr_group *g = NULL;
    struct tr_call *call = NULL;
    troupe_status status = find_call(s, what, &g, &call);
    if (status != TROUPE_OK) {
        return status;
    }
    if ((value->has_value && !isfinite(value->value)) ||
        (!value->has_value && !value->has_object)) {
        return TROUPE_INVALID;
    }
    tr_stream_enter(s, now_ns);
    if (call->state == TR_CALL_SENT) {
        call_ended(s, call, what->stage);
    } else {
        s->idle_calls[what->stage]--; /* an earlier try answered before the next was sent */
    }
    call->state = TR_CALL_DONE;
    *tr_group_value(s, g, what->member, what->stage) = *value;
    g->answered++;
    tr_stream_record(s, &(troupe_record){.kind = TROUPE_RECORD_STAGED,
                            .epoch = s->epoch,
                            .group = what->group,
                            .member = what->member,
                            .attempt = what->attempt,
                            .stage = what->stage,
                            .has_value = value->has_value,
                            .value = value->value,
                            .has_digest = value->has_object,
                            .digest = value->digest});
    tr_stage_check(s, g);
    tr_stream_pump(s);
    return tr_stream_leave(s, TROUPE_OK);
}

troupe_status
troupe_stream_stage_error(
    troupe_stream *s, uint64_t now_ns, const troupe_staged *what, const char *reason)
{
    struct tr_group *g = NULL;
    struct tr_call *call = NULL;
    troupe_status status = find_call(s, what, &g, &call);
    if (status != TROUPE_OK) {
        return status;
    }
    if (call->state != TR_CALL_SENT || what->try_no != call->tries) {
        return TROUPE_STALE; /* that try was given up before */
    }
    tr_stream_enter(s, now_ns);
    (void)call_failed(s, g, what->member, what->stage, reason);
    tr_stream_pump(s);
    return tr_stream_leave(s, TROUPE_OK);
}

bool
troupe_stream_call_is_open(const troupe_stream *s, const troupe_staged *what)
{
    const struct tr_group *g =
        what->epoch == s->epoch && !s->stopped ? tr_group_find(s, what->group) : NULL;
    if (g == NULL || what->member >= s->opt.group_size || what->stage >= s->opt.stages ||
        g->views[what->member].attempt != what->attempt) {
        return false;
    }
    const struct tr_call *call = tr_group_call(s, g, what->member, what->stage);
    return call->state == TR_CALL_SENT && call->tries == what->try_no;
}
