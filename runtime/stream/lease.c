/* Sources: who is up, what they may be leased, what they seal.
 *
 * A lease is (group, attempt, set of members) at one source. An attempt number belongs to one
 * lease, so it alone fences late messages. When a source dies, a lease expires or a member fails,
 * sealed members stay and the missing ones are leased again under the group's next attempt.
 *
 * Admission is tested against the version that the receiving source itself has applied: the
 * newest of them opens the door for all, but a source that is a version behind may not sample
 * groups that only the newer version admits, or in-order consumption would exceed its lag by
 * construction (and sync mode, where both limits are 0, would throw every such group away). */
#include "stream/machine.h"

#include <inttypes.h>
#include <stdio.h>

static uint64_t
steps_of(const troupe_stream *s, uint64_t version)
{
    return version - s->base_version + s->base_step;
}

static bool
may_sample(const troupe_stream *s, const struct tr_peer *source)
{
    return source->up && source->has_applied && source->applied >= s->base_version;
}

static bool
has_room(const struct tr_peer *source, uint32_t members, uint32_t limit)
{
    /* An idle source may always have one lease, or a group larger than its capacity never
     * started. */
    return source->load == 0 || source->load + members <= limit;
}

/* No source may hold more than its even share of the open groups: the first to apply a version
 * would otherwise be leased everything that the version admits, a moment before the others apply
 * it too. */
static uint32_t
share_of(const troupe_stream *s)
{
    uint64_t up = 0;
    for (uint32_t i = 0; i < s->opt.sources; i++) {
        up += s->sources[i].up ? 1 : 0;
    }
    uint64_t groups = up > 0 ? (s->open_max + up - 1) / up : s->open_max;
    uint64_t members = groups * s->opt.group_size;
    return members > UINT32_MAX ? UINT32_MAX : (uint32_t)members;
}

/* What the formula says for a source with these weights. */
static uint64_t
admission_limit(const troupe_stream *s, const struct tr_peer *source)
{
    return troupe_admission_limit(
        s->opt.mean_lag_milli, steps_of(s, source->applied), s->opt.groups_per_step);
}

/* The least loaded source that may sample `members` of a group with this floor, or NULL. For a
 * group not yet dispatched (`admit`) the source's own version must admit it. */
static struct tr_peer *
choose_source(troupe_stream *s, uint32_t members, uint64_t floor, bool admit)
{
    uint32_t share = admit ? share_of(s) : UINT32_MAX;
    struct tr_peer *best = NULL;
    for (uint32_t i = 0; i < s->opt.sources; i++) {
        struct tr_peer *source = &s->sources[i];
        if (!may_sample(s, source) || source->applied < floor ||
            !has_room(source, members, TR_MIN(source->capacity, share))) {
            continue;
        }
        if (admit && !troupe_admission_open(&s->counters, admission_limit(s, source))) {
            continue;
        }
        if (best == NULL || source->load < best->load) {
            best = source;
        }
    }
    return best;
}

/* Leases the missing members of `g` to `source`. */
static void
lease(troupe_stream *s, struct tr_group *g, struct tr_peer *source)
{
    uint32_t peer = (uint32_t)(source - s->sources);
    uint32_t attempt = g->next_attempt++;
    uint64_t deadline = s->now_ns + s->opt.lease_ns;
    uint64_t members = 0;
    g->leases_used++;
    for (uint32_t m = 0; m < s->opt.group_size; m++) {
        if (g->members[m].state != TR_MEMBER_MISSING) {
            continue;
        }
        members |= (uint64_t)1 << m;
        g->members[m] = (struct tr_member){.state = TR_MEMBER_LEASED,
            .source = peer,
            .since_ns = s->now_ns,
            .deadline_ns = deadline};
        g->views[m].attempt = attempt;
        source->load++;
    }
    TR_ASSERT(members != 0);
    g->missing = 0;
    s->missing_groups--;
    tr_stream_note_deadline(s, deadline);
    tr_stream_record(s, &(troupe_record){.kind = TROUPE_RECORD_LEASED,
                            .epoch = s->epoch,
                            .group = g->view.group,
                            .attempt = attempt,
                            .members = members,
                            .source = peer});
    tr_stream_emit(s, &(troupe_effect){.kind = TROUPE_EFFECT_LEASE,
                          .peer = peer,
                          .incarnation = source->incarnation,
                          .epoch = s->epoch,
                          .group = g->view.group,
                          .item = g->view.item,
                          .attempt = attempt,
                          .members = members,
                          .deadline_ns = deadline});
}

/* Groups that lost members come first, the oldest before the others; out of budget they fail. */
static void
lease_missing(troupe_stream *s)
{
    uint32_t i = 0;
    while (i < s->open_count && s->missing_groups > 0) {
        struct tr_group *g = &s->groups[s->open[i]];
        if (g->missing == 0) {
            i++;
            continue;
        }
        if (g->leases_used >= s->opt.lease_attempts) {
            char reason[TR_REASON_BYTES + 32];
            (void)snprintf(
                reason, sizeof reason, "after %" PRIu32 " leases: %s", g->leases_used, g->reason);
            tr_group_end(s, g, TROUPE_RECORD_FAILED, s->step, reason);
            continue;
        }
        struct tr_peer *source = choose_source(s, g->missing, g->version_floor, false);
        if (source != NULL) {
            lease(s, g, source);
        }
        i++;
    }
}

/* Groups that may be open: what admission makes room for, and no more than the steps to come can
 * take. */
static uint64_t
open_limit(const troupe_stream *s)
{
    if (s->opt.steps == 0) {
        return s->open_max;
    }
    uint64_t left = s->opt.steps > s->step ? s->opt.steps - s->step : 0;
    return left > s->open_max ? s->open_max : TR_MIN(left * s->opt.groups_per_step, s->open_max);
}

/* All the capacity at once: a version that opens B slots must not open one per event. */
static void
dispatch(troupe_stream *s)
{
    while (s->open_count < open_limit(s)) {
        struct tr_peer *source = choose_source(s, s->opt.group_size, s->base_version, true);
        if (source == NULL) {
            return;
        }
        uint64_t group = s->next_group++;
        uint64_t item = troupe_row_of_group(s->opt.seed, s->opt.rows, group);
        struct tr_group *g = tr_group_add(s, group, item);
        g->version_floor = source->applied;
        s->counters.dispatched++;
        s->counters.in_flight++;
        tr_stream_record(s,
            &(troupe_record){
                .kind = TROUPE_RECORD_DISPATCHED, .epoch = s->epoch, .group = group, .item = item});
        lease(s, g, source);
    }
}

void
tr_lease_pump(troupe_stream *s)
{
    lease_missing(s);
    dispatch(s);
}

/* The lease over one member ends without it. */
static void
lose_member(troupe_stream *s, struct tr_group *g, uint32_t member, const char *reason)
{
    struct tr_member *m = &g->members[member];
    TR_ASSERT(m->state == TR_MEMBER_LEASED && s->sources[m->source].load > 0);
    s->sources[m->source].load--;
    m->state = TR_MEMBER_MISSING;
    s->missing_groups += g->missing == 0 ? 1 : 0;
    g->missing++;
    tr_group_set_reason(g, reason);
}

void
tr_lease_tick(troupe_stream *s, struct tr_group *g)
{
    for (uint32_t m = 0; m < s->opt.group_size; m++) {
        if (g->members[m].state != TR_MEMBER_LEASED) {
            continue;
        }
        if (g->members[m].deadline_ns > s->now_ns) {
            tr_stream_note_deadline(s, g->members[m].deadline_ns);
            continue;
        }
        uint32_t attempt = g->views[m].attempt;
        uint32_t peer = g->members[m].source;
        for (uint32_t n = m; n < s->opt.group_size; n++) {
            if (g->members[n].state == TR_MEMBER_LEASED && g->views[n].attempt == attempt) {
                lose_member(s, g, n, "the lease expired");
            }
        }
        tr_stream_emit(s, &(troupe_effect){.kind = TROUPE_EFFECT_CANCEL,
                              .peer = peer,
                              .incarnation = s->sources[peer].incarnation,
                              .epoch = s->epoch,
                              .group = g->view.group,
                              .attempt = attempt});
    }
}

static void
source_lost(troupe_stream *s, uint32_t peer)
{
    s->sources[peer].up = false;
    s->sources[peer].has_applied = false;
    for (uint32_t i = 0; i < s->open_count; i++) {
        struct tr_group *g = &s->groups[s->open[i]];
        for (uint32_t m = 0; m < s->opt.group_size; m++) {
            if (g->members[m].state == TR_MEMBER_LEASED && g->members[m].source == peer) {
                lose_member(s, g, m, "the source died");
            }
        }
    }
    TR_ASSERT(s->sources[peer].load == 0);
}

troupe_status
troupe_stream_source_up(
    troupe_stream *s, uint64_t now_ns, uint32_t peer, uint64_t incarnation, uint32_t capacity)
{
    if (peer >= s->opt.sources || incarnation == 0 || capacity == 0) {
        return TROUPE_INVALID;
    }
    struct tr_peer *source = &s->sources[peer];
    if (incarnation <= source->incarnation) {
        return incarnation == source->incarnation && source->up ? TROUPE_DUPLICATE : TROUPE_GONE;
    }
    tr_stream_enter(s, now_ns);
    if (source->up) {
        source_lost(s, peer);
    }
    *source = (struct tr_peer){.up = true, .capacity = capacity, .incarnation = incarnation};
    tr_stream_pump(s);
    return tr_stream_leave(s, TROUPE_OK);
}

troupe_status
troupe_stream_source_down(troupe_stream *s, uint64_t now_ns, uint32_t peer, uint64_t incarnation)
{
    if (peer >= s->opt.sources || incarnation == 0) {
        return TROUPE_INVALID;
    }
    struct tr_peer *source = &s->sources[peer];
    if (incarnation < source->incarnation) {
        return TROUPE_GONE;
    }
    if (incarnation == source->incarnation && !source->up) {
        return TROUPE_DUPLICATE;
    }
    tr_stream_enter(s, now_ns);
    if (source->up) {
        source_lost(s, peer);
    }
    /* Death may be known before birth; that incarnation must never come up after it. */
    source->incarnation = incarnation;
    tr_stream_pump(s);
    return tr_stream_leave(s, TROUPE_OK);
}

troupe_status
troupe_stream_applied(
    troupe_stream *s, uint64_t now_ns, uint32_t peer, uint64_t incarnation, uint64_t version)
{
    if (peer >= s->opt.sources) {
        return TROUPE_INVALID;
    }
    struct tr_peer *source = &s->sources[peer];
    if (incarnation != source->incarnation || !source->up || s->stopped) {
        return incarnation > source->incarnation ? TROUPE_NOT_FOUND : TROUPE_GONE;
    }
    if (!s->ever_published || version > s->last_published) {
        return TROUPE_INVALID;
    }
    if (source->has_applied && version <= source->applied) {
        return version == source->applied ? TROUPE_DUPLICATE : TROUPE_STALE;
    }
    tr_stream_enter(s, now_ns);
    source->applied = version;
    source->has_applied = true;
    tr_stream_pump(s);
    return tr_stream_leave(s, TROUPE_OK);
}

static bool
too_old(const troupe_stream *s, const struct tr_group *g, uint64_t version)
{
    return s->opt.max_lag >= 0 && s->opt.bound == TROUPE_BOUND_GROUP && g->sealed > 0 &&
           version > g->view.head && version - g->view.head > (uint64_t)s->opt.max_lag;
}

static void
end_stale(troupe_stream *s, struct tr_group *g)
{
    tr_group_end(s, g, TROUPE_RECORD_STALE, s->step, "head lag above max_lag");
}

void
tr_lease_sweep(troupe_stream *s, uint64_t version)
{
    uint32_t i = 0;
    while (i < s->open_count) {
        struct tr_group *g = &s->groups[s->open[i]];
        if (g->state != TR_GROUP_TAKEN && too_old(s, g, version)) {
            end_stale(s, g);
        } else {
            i++;
        }
    }
}

/* What the sealed member says of its versions must be possible: sampled from weights that were
 * published, not older than those the lease was given for, and the last unit by those that the
 * source says it held. */
static bool
spans_possible(const troupe_stream *s, const struct tr_group *g, const troupe_sealed *sealed)
{
    if (troupe_spans_check(sealed->spans, sealed->span_count, sealed->units) != TROUPE_OK ||
        sealed->units == 0) {
        return false;
    }
    uint64_t last = sealed->spans[sealed->span_count - 1].version;
    return sealed->spans[0].version >= g->version_floor && last <= s->last_published &&
           last == sealed->held;
}

static void
seal(troupe_stream *s, struct tr_group *g, const troupe_sealed *sealed)
{
    struct tr_member *m = &g->members[sealed->member];
    troupe_member_view *view = &g->views[sealed->member];
    s->sources[m->source].load--;
    m->state = TR_MEMBER_SEALED;
    g->sealed++;
    view->sealed = true;
    view->object = sealed->object;
    view->digest = sealed->digest;
    view->ids_digest = sealed->ids_digest;
    view->units = sealed->units;
    view->head = sealed->spans[0].version;
    view->tail = sealed->spans[sealed->span_count - 1].version;
    g->view.head = TR_MIN(g->view.head, view->head);
    /* Progress: what is left of this lease has its full time again. */
    for (uint32_t n = 0; n < s->opt.group_size; n++) {
        if (g->members[n].state == TR_MEMBER_LEASED && g->views[n].attempt == sealed->attempt) {
            g->members[n].deadline_ns = s->now_ns + s->opt.lease_ns;
        }
    }
    tr_stream_record(s, &(troupe_record){.kind = TROUPE_RECORD_SEALED,
                            .epoch = s->epoch,
                            .group = sealed->group,
                            .member = sealed->member,
                            .attempt = sealed->attempt,
                            .units = sealed->units,
                            .held = sealed->held,
                            .digest = sealed->digest,
                            .ids_digest = sealed->ids_digest,
                            .spans = sealed->spans,
                            .span_count = sealed->span_count});
    if (g->sealed == s->opt.group_size) {
        g->state = TR_GROUP_COMPLETE;
        s->counters.in_flight--;
        s->counters.queued++;
    }
    tr_stage_ready(s, g, sealed->member);
}

troupe_status
troupe_stream_sealed(troupe_stream *s, uint64_t now_ns, const troupe_sealed *sealed)
{
    struct tr_group *g = NULL;
    troupe_status status = tr_group_lookup(s, sealed->epoch, sealed->group, &g);
    if (status != TROUPE_OK) {
        return status;
    }
    if (sealed->member >= s->opt.group_size) {
        return TROUPE_INVALID;
    }
    const struct tr_member *m = &g->members[sealed->member];
    if (sealed->attempt != g->views[sealed->member].attempt || m->state == TR_MEMBER_MISSING) {
        return sealed->attempt >= g->next_attempt ? TROUPE_INVALID : TROUPE_STALE;
    }
    if (m->state == TR_MEMBER_SEALED) {
        return TROUPE_DUPLICATE;
    }
    if (!spans_possible(s, g, sealed)) {
        return TROUPE_INVALID;
    }
    tr_stream_enter(s, now_ns);
    seal(s, g, sealed);
    if (too_old(s, g, s->last_published)) {
        end_stale(s, g);
    }
    tr_stream_pump(s);
    return tr_stream_leave(s, TROUPE_OK);
}

troupe_status
troupe_stream_member_failed(troupe_stream *s, uint64_t now_ns, uint64_t epoch, uint64_t group,
    uint32_t member, uint32_t attempt, const char *reason)
{
    struct tr_group *g = NULL;
    troupe_status status = tr_group_lookup(s, epoch, group, &g);
    if (status != TROUPE_OK) {
        return status;
    }
    if (member >= s->opt.group_size || attempt >= g->next_attempt) {
        return TROUPE_INVALID;
    }
    if (attempt != g->views[member].attempt || g->members[member].state != TR_MEMBER_LEASED) {
        return TROUPE_STALE;
    }
    tr_stream_enter(s, now_ns);
    lose_member(s, g, member, reason);
    tr_stream_pump(s);
    return tr_stream_leave(s, TROUPE_OK);
}

bool
troupe_stream_lease_is_open(
    const troupe_stream *s, uint64_t epoch, uint64_t group, uint32_t attempt)
{
    const struct tr_group *g = epoch == s->epoch && !s->stopped ? tr_group_find(s, group) : NULL;
    for (uint32_t m = 0; g != NULL && m < s->opt.group_size; m++) {
        if (g->members[m].state == TR_MEMBER_LEASED && g->views[m].attempt == attempt) {
            return true;
        }
    }
    return false;
}
