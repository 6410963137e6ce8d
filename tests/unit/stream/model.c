/* The naive ledger: every record is checked against the laws as it comes. */
#include "model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LAW(condition, ...)                              \
    do {                                                 \
        if (!(condition)) {                              \
            print_error("law broken: %s: ", #condition); \
            print_error(__VA_ARGS__);                    \
            print_error("\n");                           \
            fail();                                      \
        }                                                \
    } while (0)

void
model_init(struct model *m, const troupe_stream_options *opt)
{
    memset(m, 0, sizeof *m);
    m->opt = opt;
    assert_true(opt->group_size <= MODEL_MEMBERS && opt->stages <= MODEL_STAGES);
    assert_true(opt->sources <= MODEL_SOURCES);
}

static struct model_group *
group_of(struct model *m, const troupe_record *r)
{
    LAW(r->group < m->next_group, "group %" PRIu64, r->group);
    LAW(r->epoch == m->epoch, "epoch %" PRIu64, r->epoch);
    return &m->groups[r->group];
}

static void
dispatched(struct model *m, const troupe_record *r)
{
    LAW(r->group == m->next_group, "group %" PRIu64, r->group);
    assert_true(r->group < MODEL_GROUPS);
    uint64_t pass = r->group / m->opt->rows;
    for (uint64_t g = pass * m->opt->rows; g < r->group; g++) {
        LAW(m->groups[g].item != r->item, "row %" PRIu64 " twice in a pass", r->item);
    }
    m->groups[m->next_group++] = (struct model_group){.story = OPEN, .item = r->item};
    /* Admission, by the newest version that any live source has applied. */
    uint64_t newest = 0;
    bool any = false;
    for (uint32_t i = 0; i < m->opt->sources; i++) {
        if (m->source_up[i] && m->applied[i] >= m->base_version) {
            newest = TR_MAX(newest, m->applied[i]);
            any = true;
        }
    }
    LAW(any, "dispatched to nobody");
    troupe_counters c = model_counters(m);
    uint64_t steps = newest - m->base_version + m->base_step;
    uint64_t limit = (m->opt->mean_lag_milli + 1000 * (steps + 1)) * m->opt->groups_per_step / 1000;
    uint64_t counted = c.dispatched - c.filtered - c.stale - c.failed;
    LAW(counted <= limit, "%" PRIu64 " admitted, limit %" PRIu64, counted, limit);
}

static void
leased(struct model *m, const troupe_record *r)
{
    struct model_group *g = group_of(m, r);
    LAW(g->story == OPEN, "group %" PRIu64, r->group);
    bool first = r->attempt == 0 && m->epoch == 0;
    LAW(first || r->attempt > g->attempt || (g->attempt == 0 && r->attempt == 0),
        "attempt %u after %u", r->attempt, g->attempt);
    g->attempt = r->attempt;
    LAW(r->members != 0, "empty lease");
    for (uint32_t i = 0; i < m->opt->group_size; i++) {
        if ((r->members >> i & 1) != 0) {
            LAW(!g->sealed[i], "member %u is sealed and leased again", i);
            g->has_lease[i] = true;
            g->lease[i] = r->attempt;
        }
    }
    LAW(r->members >> m->opt->group_size == 0, "members beyond the group");
    LAW(m->source_up[r->source] && m->applied[r->source] >= m->base_version, "to source %u",
        r->source);
    if (r->attempt == 0) {
        g->floor = m->applied[r->source];
    }
}

static void
sealed(struct model *m, const troupe_record *r)
{
    struct model_group *g = group_of(m, r);
    LAW(g->story == OPEN, "group %" PRIu64, r->group);
    LAW(g->has_lease[r->member] && g->lease[r->member] == r->attempt,
        "member %u of attempt %u, leased was %u", r->member, r->attempt, g->lease[r->member]);
    LAW(!g->sealed[r->member], "member %u sealed twice", r->member);
    g->sealed[r->member] = true;
    g->sealed_attempt[r->member] = r->attempt;
    g->digest[r->member] = r->digest;
    g->head[r->member] = r->spans[0].version;
    LAW(r->spans[r->span_count - 1].version <= m->version, "sampled by a version of the future");
    LAW(r->spans[0].version >= m->base_version, "sampled by a version of an abandoned lineage");
}

static void
staged(struct model *m, const troupe_record *r)
{
    struct model_group *g = group_of(m, r);
    LAW(g->story == OPEN && g->sealed[r->member], "group %" PRIu64, r->group);
    LAW(g->sealed_attempt[r->member] == r->attempt, "attempt %u", r->attempt);
    LAW(!g->staged[r->member][r->stage], "stage %u twice", r->stage);
    g->staged[r->member][r->stage] = true;
}

static void
taken(struct model *m, const troupe_record *r)
{
    LAW(r->step == m->step + 1 && m->taken_step <= m->step, "step %" PRIu64, r->step);
    LAW(r->version == m->version && m->published, "version %" PRIu64, r->version);
    LAW(r->group_count == m->opt->groups_per_step, "a batch of %zu", r->group_count);
    m->taken_step = r->step;
    m->last_lag_max = 0;
    for (size_t i = 0; i < r->group_count; i++) {
        const troupe_record_group *t = &r->groups[i];
        LAW(i == 0 || r->groups[i - 1].group < t->group, "batch out of order");
        LAW(t->group < m->next_group, "group %" PRIu64, t->group);
        struct model_group *g = &m->groups[t->group];
        LAW(g->story == OPEN, "group %" PRIu64 " in state %d", t->group, (int)g->story);
        for (uint32_t k = 0; k < m->opt->group_size; k++) {
            LAW(g->sealed[k] && g->sealed_attempt[k] == t->attempts[k], "member %u", k);
            LAW(g->digest[k] == t->digests[k], "digest of member %u", k);
            for (uint32_t stage = 0; stage < m->opt->stages; stage++) {
                LAW(g->staged[k][stage], "stage %u of member %u", stage, k);
            }
            LAW(g->head[k] <= r->version, "version of the future");
            uint64_t lag = r->version - g->head[k];
            m->last_lag_max = TR_MAX(m->last_lag_max, lag);
            LAW(m->opt->max_lag < 0 || m->opt->bound == TROUPE_BOUND_UNIT ||
                    lag <= (uint64_t)m->opt->max_lag,
                "lag %" PRIu64, lag);
        }
        g->story = TAKEN;
        g->step = r->step;
    }
    if (m->opt->order == TROUPE_WINDOW) {
        uint64_t slots = (m->opt->mean_lag_milli + 1000) * m->opt->groups_per_step / 1000;
        uint64_t window = (m->opt->window_milli * slots + 999) / 1000;
        uint64_t last = r->groups[r->group_count - 1].group;
        for (uint64_t g = 0; g + TR_MAX(window, 1) <= last; g++) {
            LAW(m->groups[g].story != OPEN, "group %" PRIu64 " was overtaken from afar", g);
        }
    }
    /* In order means: nothing older is left open. */
    if (m->opt->order == TROUPE_IN_ORDER) {
        uint64_t last = r->groups[r->group_count - 1].group;
        for (uint64_t g = 0; g < last; g++) {
            LAW(m->groups[g].story != OPEN, "group %" PRIu64 " was overtaken", g);
        }
    }
}

static void
committed(struct model *m, const troupe_record *r)
{
    LAW(r->step == m->taken_step && r->step == m->step + 1, "step %" PRIu64, r->step);
    m->step = r->step;
    for (size_t i = 0; i < r->group_count; i++) {
        struct model_group *g = &m->groups[r->groups[i].group];
        LAW(g->story == TAKEN && g->step == r->step, "group %" PRIu64, r->groups[i].group);
        for (uint32_t k = 0; k < m->opt->group_size; k++) {
            LAW(g->digest[k] == r->groups[i].digests[k], "digest of member %u", k);
        }
        g->story = TRAINED;
    }
    for (uint64_t g = 0; g < m->next_group; g++) {
        LAW(m->groups[g].story != TAKEN, "group %" PRIu64 " was taken and forgotten", g);
    }
}

static void
ended_as(struct model *m, const troupe_record *r, enum story story)
{
    struct model_group *g = group_of(m, r);
    LAW(g->story == OPEN || g->story == TAKEN, "group %" PRIu64 " ends twice", r->group);
    LAW(r->reason != NULL && r->reason[0] != '\0', "no reason");
    g->story = story;
}

static void
released(struct model *m, const troupe_record *r)
{
    struct model_group *g = &m->groups[r->group];
    LAW(!g->released, "group %" PRIu64 " released twice", r->group);
    LAW(g->story > TAKEN, "group %" PRIu64 " released while open", r->group);
    LAW(g->story != TRAINED || g->step <= m->durable, "released before durable");
    g->released = true;
}

static void
rolled_back(struct model *m, const troupe_record *r)
{
    LAW(r->epoch > m->epoch, "epoch %" PRIu64, r->epoch);
    LAW(r->version == m->version, "last published");
    uint64_t jump = m->opt->max_lag < 0 ? 2 : (uint64_t)m->opt->max_lag + 1;
    LAW(r->next_version == m->version + jump, "next version %" PRIu64, r->next_version);
    m->epoch = r->epoch;
    m->step = r->step;
    m->taken_step = r->step;
    m->durable = r->step;
    m->base_version = r->next_version;
    m->base_step = r->step;
    m->published = false;
    bool listed[MODEL_GROUPS] = {false};
    for (size_t i = 0; i < r->group_count; i++) {
        LAW(r->groups[i].group < r->next_group, "open group");
        listed[r->groups[i].group] = true;
        struct model_group *g = &m->groups[r->groups[i].group];
        *g = (struct model_group){.story = OPEN, .item = g->item, .attempt = r->groups[i].attempt};
    }
    for (uint64_t g = 0; g < m->next_group; g++) {
        if (g >= r->next_group) {
            m->groups[g] = (struct model_group){0};
        } else if (!listed[g]) {
            LAW(m->groups[g].story > TAKEN, "group %" PRIu64 " lost in a rollback", g);
            LAW(m->groups[g].story != TRAINED || m->groups[g].step <= r->step,
                "group %" PRIu64 " of an undone step is trained", g);
        }
    }
    m->next_group = r->next_group;
}

void
model_record(struct model *m, const troupe_record *r)
{
    LAW(!m->ended, "a record after the end");
    m->records++;
    switch (r->kind) {
    case TROUPE_RECORD_DISPATCHED:
        dispatched(m, r);
        break;
    case TROUPE_RECORD_LEASED:
        leased(m, r);
        break;
    case TROUPE_RECORD_SEALED:
        sealed(m, r);
        break;
    case TROUPE_RECORD_STAGED:
        staged(m, r);
        break;
    case TROUPE_RECORD_TAKEN:
        taken(m, r);
        break;
    case TROUPE_RECORD_COMMITTED:
        committed(m, r);
        break;
    case TROUPE_RECORD_FILTERED:
        ended_as(m, r, FILTERED);
        break;
    case TROUPE_RECORD_STALE:
        ended_as(m, r, STALE);
        break;
    case TROUPE_RECORD_FAILED:
        ended_as(m, r, FAILED);
        break;
    case TROUPE_RECORD_DURABLE:
        LAW(r->step > m->durable && r->step <= m->step, "durable %" PRIu64, r->step);
        m->durable = r->step;
        break;
    case TROUPE_RECORD_RELEASED:
        released(m, r);
        break;
    case TROUPE_RECORD_ROLLED_BACK:
        rolled_back(m, r);
        break;
    case TROUPE_RECORD_SNAPSHOT:
        LAW(r->step == m->step && r->next_group == m->next_group, "snapshot");
        break;
    case TROUPE_RECORD_ENDED:
        m->ended = true;
        break;
    case TROUPE_RECORD_RUN:
    case TROUPE_RECORD_PUBLISHED:
    case TROUPE_RECORD_APPLIED:
    case TROUPE_RECORD_MIRRORED:
    case TROUPE_RECORD_REOPENED:
        fail_msg("the stream does not write %d", (int)r->kind);
    }
}

troupe_counters
model_counters(const struct model *m)
{
    troupe_counters c = {.dispatched = m->next_group};
    for (uint64_t i = 0; i < m->next_group; i++) {
        const struct model_group *g = &m->groups[i];
        bool whole = true;
        for (uint32_t k = 0; k < m->opt->group_size; k++) {
            whole = whole && g->sealed[k];
        }
        c.trained += g->story == TRAINED;
        c.filtered += g->story == FILTERED;
        c.stale += g->story == STALE;
        c.failed += g->story == FAILED;
        c.queued += g->story == TAKEN || (g->story == OPEN && whole);
        c.in_flight += g->story == OPEN && !whole;
    }
    return c;
}

void
model_expect(const struct model *m, const troupe_stream *s)
{
    troupe_counters theirs = model_counters(m);
    troupe_counters ours = troupe_stream_counters(s);
    LAW(memcmp(&theirs, &ours, sizeof ours) == 0,
        "model %" PRIu64 "/%" PRIu64 "/%" PRIu64 "/%" PRIu64 "/%" PRIu64 "/%" PRIu64 "/%" PRIu64
        ", machine %" PRIu64 "/%" PRIu64 "/%" PRIu64 "/%" PRIu64 "/%" PRIu64 "/%" PRIu64
        "/%" PRIu64,
        theirs.dispatched, theirs.trained, theirs.filtered, theirs.stale, theirs.failed,
        theirs.queued, theirs.in_flight, ours.dispatched, ours.trained, ours.filtered, ours.stale,
        ours.failed, ours.queued, ours.in_flight);
}

void
model_accept(struct model *m, uint64_t object)
{
    assert_true(object < MODEL_OBJECTS);
    LAW(m->objects[object] == 0, "object %" PRIu64 " accepted twice", object);
    m->objects[object] = 1;
}

void
model_release(struct model *m, uint64_t object)
{
    assert_true(object < MODEL_OBJECTS);
    LAW(m->objects[object] == 1, "object %" PRIu64 " released in state %d", object,
        m->objects[object]);
    m->objects[object] = 2;
}

uint64_t
model_held(const struct model *m)
{
    uint64_t held = 0;
    for (size_t i = 0; i < MODEL_OBJECTS; i++) {
        held += m->objects[i] == 1;
    }
    return held;
}
