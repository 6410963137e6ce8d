/* The shadow: a second account of the job, kept from the records and from what the fakes saw,
 * and compared with what the coordinator says to them. The auditor follows the same records for
 * what may be in them at all; here are the promises that need more than records: the job's
 * options, the time, and the answers. */
#include "sim/sim.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MS UINT64_C(1000000)

enum {
    FIRST_SOURCE_LOOP = 2,
    ROUNDING_NS = 1000, /* of seconds in the coordinator's config */
};

enum group_state {
    GROUP_VOID,
    GROUP_OPEN,
    GROUP_TAKEN,
    GROUP_TRAINED,
    GROUP_FILTERED,
    GROUP_STALE,
    GROUP_FAILED,
};

/* What a stage was asked about a member last. */
struct asked {
    uint32_t times;  /* how often it came to that */
    uint32_t worker; /* of the newest try, and the life of its process */
    uint32_t life;
    uint64_t sent_ns; /* 0: none */
    bool refused;
};

struct member {
    bool leased;
    bool sealed;
    bool reported; /* its source has said that this attempt failed */
    uint32_t attempt;
    uint32_t source;
    uint32_t life; /* of the source's process when it was leased */
    uint64_t leased_ns;
    uint64_t progress_ns; /* of its lease: the newest sealed member, or the beginning */
    uint64_t head;
    double value; /* of stage 0 */
    struct asked asked[SIM_STAGES_MAX];
};

struct group {
    enum group_state state;
    bool by_machine; /* ended without the sink's verdict */
    bool told;       /* the sink was told of that */
    bool staged;
    uint64_t item;
    uint32_t attempt; /* the last one leased, in any epoch */
    uint32_t leases;  /* in this epoch */
    uint32_t sealed;
    uint32_t answers;
    uint64_t staged_number;
    uint64_t epoch; /* of its end */
    uint64_t ended_ns;
    struct member members[SIM_GROUP_MAX];
};

struct listed {
    uint64_t group;
    uint64_t item;
    uint32_t attempt;
};

struct sim_shadow {
    struct sim *sim;
    struct group *groups;
    size_t count; /* dispatched in the lineage that stands */
    size_t capacity;
    uint64_t epoch;
    uint64_t step; /* last committed */
    uint64_t rolled_ns;
    uint64_t staged_count;
    troupe_counters counters;
    uint64_t taken_lags[TROUPE_LAG_BUCKETS];
    /* As they stood at the last commit, and at the last snapshot. */
    troupe_counters commit_counters;
    uint64_t commit_lags[TROUPE_LAG_BUCKETS];
    uint64_t snapshot_step;
    uint64_t snapshot_groups;
    troupe_counters snapshot_counters;
    struct listed *snapshot;
    size_t snapshot_count;
};

struct sim_shadow *
sim_shadow_new(void)
{
    return tr_zalloc(1, sizeof(struct sim_shadow));
}

void
sim_shadow_free(struct sim_shadow *s)
{
    if (s != NULL) {
        tr_free(s->groups);
        tr_free(s->snapshot);
        tr_free(s);
    }
}

void
sim_shadow_attach(struct sim_shadow *s, struct sim *sim)
{
    s->sim = sim;
}

static uint64_t
now_ns(const struct sim_shadow *s)
{
    return tr_world_now_ns(s->sim->world);
}

/* So long after it came back a process may be taken for the one before. */
static uint64_t
news_ns(const struct sim_job *job)
{
    return sim_is_reliable(job) ? job->faults.notice_ns + 100 * MS : 5000 * MS;
}

static struct group *
group_at(struct sim_shadow *s, uint64_t group)
{
    return group < s->count ? &s->groups[group] : NULL;
}

static struct member *
member_at(struct sim_shadow *s, uint64_t group, uint32_t member)
{
    struct group *g = group_at(s, group);
    return g != NULL && member < s->sim->job->group_size ? &g->members[member] : NULL;
}

/* --- the ledger ------------------------------------------------------------------------------- */

static uint64_t *
counter_of(struct sim_shadow *s, const struct group *g)
{
    switch (g->state) {
    case GROUP_OPEN:
    case GROUP_TAKEN:
        return g->sealed < s->sim->job->group_size ? &s->counters.in_flight : &s->counters.queued;
    case GROUP_TRAINED:
        return &s->counters.trained;
    case GROUP_FILTERED:
        return &s->counters.filtered;
    case GROUP_STALE:
        return &s->counters.stale;
    case GROUP_FAILED:
        return &s->counters.failed;
    case GROUP_VOID:
        break;
    }
    return NULL;
}

static void
recount(struct sim_shadow *s)
{
    s->counters = (troupe_counters){.dispatched = s->count};
    for (size_t i = 0; i < s->count; i++) {
        uint64_t *counter = counter_of(s, &s->groups[i]);
        if (counter != NULL) {
            (*counter)++;
        }
    }
}

static bool
same_counters(const troupe_counters *a, const troupe_counters *b)
{
    return a->dispatched == b->dispatched && a->trained == b->trained &&
           a->filtered == b->filtered && a->stale == b->stale && a->failed == b->failed &&
           a->queued == b->queued && a->in_flight == b->in_flight;
}

static void
compare_counters(struct sim_shadow *s, const char *where, const troupe_counters *told,
    const troupe_counters *expected)
{
    if (!same_counters(told, expected)) {
        sim_violation(s->sim, "ledger-told",
            "%s tells %" PRIu64 " = %" PRIu64 " + %" PRIu64 " + %" PRIu64 " + %" PRIu64
            " + %" PRIu64 " + %" PRIu64 ", the records say %" PRIu64 " = %" PRIu64 " + %" PRIu64
            " + %" PRIu64 " + %" PRIu64 " + %" PRIu64 " + %" PRIu64,
            where, told->dispatched, told->trained, told->filtered, told->stale, told->failed,
            told->queued, told->in_flight, expected->dispatched, expected->trained,
            expected->filtered, expected->stale, expected->failed, expected->queued,
            expected->in_flight);
    }
}

/* --- dispatch and leases ---------------------------------------------------------------------- */

static void
dispatched(struct sim_shadow *s, const troupe_record *r)
{
    const struct sim_job *job = s->sim->job;
    if (r->group != s->count) {
        return; /* the auditor says so */
    }
    if (s->count == s->capacity) {
        s->capacity = TR_MAX(s->capacity * 2, (size_t)256);
        s->groups = tr_realloc(s->groups, s->capacity, sizeof s->groups[0]);
    }
    s->groups[s->count++] = (struct group){.state = GROUP_OPEN, .item = r->item};
    recount(s);
    uint64_t open = s->counters.queued + s->counters.in_flight;
    uint64_t left = job->steps > s->step ? (job->steps - s->step) * job->groups_per_step : 0;
    if (job->known_steps && open > left) {
        sim_violation(s->sim, "begun-in-vain",
            "group %" PRIu64 " is open with %" PRIu64 " others, the steps to come take %" PRIu64,
            r->group, open - 1, left);
    }
}

/* True when the lease over a member may have been given up by now. */
static bool
may_be_lost(const struct sim_shadow *s, const struct member *m)
{
    int loop = FIRST_SOURCE_LOOP + (int)m->source;
    return m->reported || now_ns(s) - m->progress_ns + ROUNDING_NS >= s->sim->job->lease_ns ||
           tr_world_host(s->sim->world, loop) == NULL ||
           tr_world_epoch(s->sim->world, loop) != m->life ||
           s->sim->born_ns[m->source] + news_ns(s->sim->job) > m->leased_ns;
}

static void
lease_member(struct sim_shadow *s, const troupe_record *r, struct member *m, uint32_t index)
{
    if (m->leased && !m->sealed && !may_be_lost(s, m)) {
        sim_violation(s->sim, "lease-cut-short",
            "member %u of group %" PRIu64 " is leased again %.3f s after its last lease moved on",
            index, r->group, (double)(now_ns(s) - m->progress_ns) / 1e9);
    }
    *m = (struct member){.leased = true,
        .attempt = r->attempt,
        .source = r->source,
        .life = tr_world_epoch(s->sim->world, FIRST_SOURCE_LOOP + (int)r->source),
        .leased_ns = now_ns(s),
        .progress_ns = now_ns(s)};
}

static void
leased(struct sim_shadow *s, const troupe_record *r)
{
    const struct sim_job *job = s->sim->job;
    struct group *g = group_at(s, r->group);
    if (g == NULL || r->source >= job->sources) {
        return;
    }
    g->attempt = r->attempt;
    if (++g->leases > job->lease_attempts) {
        sim_violation(s->sim, "lease-budget", "group %" PRIu64 " is leased %u times, it has %u",
            r->group, g->leases, job->lease_attempts);
    }
    if (job->flawless && g->leases > 1) {
        sim_violation(s->sim, "done-twice",
            "group %" PRIu64 " is leased again and nothing is wrong", r->group);
    }
    for (uint32_t m = 0; m < job->group_size; m++) {
        if ((r->members >> m & 1) != 0) {
            lease_member(s, r, &g->members[m], m);
        }
    }
}

/* --- members and stages ----------------------------------------------------------------------- */

static bool
all_equal(const struct sim_shadow *s, const struct group *g)
{
    for (uint32_t m = 1; m < s->sim->job->group_size; m++) {
        if (g->members[m].value < g->members[0].value ||
            g->members[m].value > g->members[0].value) {
            return false;
        }
    }
    return true;
}

static void
check_staged(struct sim_shadow *s, struct group *g)
{
    const struct sim_job *job = s->sim->job;
    if (!g->staged && g->sealed == job->group_size && g->answers >= job->group_size * job->stages) {
        g->staged = true;
        g->staged_number = s->staged_count++;
    }
}

static void
sealed(struct sim_shadow *s, const troupe_record *r)
{
    struct group *g = group_at(s, r->group);
    struct member *m = member_at(s, r->group, r->member);
    if (m == NULL || m->sealed || r->span_count == 0) {
        return;
    }
    m->sealed = true;
    m->head = r->spans[0].version;
    g->sealed++;
    for (uint32_t i = 0; i < s->sim->job->group_size; i++) {
        if (g->members[i].leased && g->members[i].attempt == r->attempt) {
            g->members[i].progress_ns = now_ns(s);
        }
    }
    recount(s);
    check_staged(s, g);
}

static void
staged(struct sim_shadow *s, const troupe_record *r)
{
    struct group *g = group_at(s, r->group);
    struct member *m = member_at(s, r->group, r->member);
    if (m == NULL) {
        return;
    }
    m->value = r->stage == 0 ? r->value : m->value;
    g->answers++;
    check_staged(s, g);
}

/* --- steps ------------------------------------------------------------------------------------ */

/* Where a group stands in the line: by id, or by when it was staged. */
static uint64_t
turn_of(const struct sim_shadow *s, uint64_t group)
{
    return s->sim->job->order == TROUPE_READY_FIRST ? s->groups[group].staged_number : group;
}

/* drop takes the oldest of the staged groups, ready-first those that were staged first. The
 * other orders wait for groups that are not staged; the auditor follows them. */
static void
check_turns(struct sim_shadow *s, const troupe_record *r)
{
    troupe_order order = s->sim->job->order;
    uint64_t last = 0;
    for (size_t i = 0; i < r->group_count; i++) {
        last = TR_MAX(last, turn_of(s, r->groups[i].group));
    }
    for (size_t i = 0; i < s->count && (order == TROUPE_DROP || order == TROUPE_READY_FIRST); i++) {
        if (s->groups[i].state == GROUP_OPEN && s->groups[i].staged && turn_of(s, i) < last) {
            sim_violation(s->sim, "out-of-turn",
                "step %" PRIu64 " was granted another group before group %zu, in %s order", r->step,
                i, troupe_order_name(order));
            return;
        }
    }
}

static void
taken(struct sim_shadow *s, const troupe_record *r)
{
    const struct sim_job *job = s->sim->job;
    memset(s->taken_lags, 0, sizeof s->taken_lags);
    for (size_t i = 0; i < r->group_count; i++) {
        struct group *g = group_at(s, r->groups[i].group);
        if (g == NULL) {
            return;
        }
        uint64_t lag = 0;
        for (uint32_t m = 0; m < job->group_size; m++) {
            uint64_t head = TR_MIN(g->members[m].head, r->version);
            lag = TR_MAX(lag, r->version - head);
        }
        s->taken_lags[TR_MIN(lag, (uint64_t)TROUPE_LAG_BUCKETS - 1)]++;
        if (job->filter && all_equal(s, g)) {
            sim_violation(s->sim, "filter", "group %" PRIu64 " was granted, its rewards are equal",
                r->groups[i].group);
        }
        g->state = GROUP_TAKEN;
    }
    check_turns(s, r);
}

static void
committed(struct sim_shadow *s, const troupe_record *r)
{
    for (size_t i = 0; i < r->group_count; i++) {
        struct group *g = group_at(s, r->groups[i].group);
        if (g != NULL) {
            g->state = GROUP_TRAINED;
            g->ended_ns = now_ns(s);
        }
    }
    s->step = r->step;
    recount(s);
    s->commit_counters = s->counters;
    memcpy(s->commit_lags, s->taken_lags, sizeof s->commit_lags);
}

static void
check_failed(struct sim_shadow *s, const troupe_record *r, const struct group *g)
{
    const struct sim_job *job = s->sim->job;
    if (strncmp(r->reason, "after ", 6) == 0 && g->leases < job->lease_attempts) {
        sim_violation(s->sim, "failed-too-early",
            "group %" PRIu64 " failed after %u leases, it has %u", r->group, g->leases,
            job->lease_attempts);
    }
    if (job->flawless && strcmp(r->reason, "job ended") != 0) {
        sim_violation(
            s->sim, "failed-for-nothing", "group %" PRIu64 " failed: %s", r->group, r->reason);
    }
}

static void
ended(struct sim_shadow *s, const troupe_record *r)
{
    struct group *g = group_at(s, r->group);
    if (g == NULL) {
        return;
    }
    g->by_machine = strcmp(r->reason, SIM_VERDICT_REASON) != 0;
    g->state = r->kind == TROUPE_RECORD_FILTERED ? GROUP_FILTERED
               : r->kind == TROUPE_RECORD_STALE  ? GROUP_STALE
                                                 : GROUP_FAILED;
    g->epoch = r->epoch;
    g->ended_ns = now_ns(s);
    recount(s);
    if (g->by_machine && g->state == GROUP_FAILED) {
        check_failed(s, r, g);
    }
    if (g->by_machine && g->state == GROUP_FILTERED && !all_equal(s, g)) {
        sim_violation(
            s->sim, "filter", "group %" PRIu64 " was filtered, its rewards differ", r->group);
    }
}

/* --- snapshots and rollbacks ------------------------------------------------------------------ */

static void
snapshot(struct sim_shadow *s, const troupe_record *r)
{
    s->snapshot_step = r->step;
    s->snapshot_groups = s->count;
    s->snapshot_counters = s->counters;
    s->snapshot_count = 0;
    s->snapshot = tr_realloc(s->snapshot, s->count + 1, sizeof s->snapshot[0]);
    for (size_t i = 0; i < s->count; i++) {
        const struct group *g = &s->groups[i];
        if (g->state == GROUP_OPEN || g->state == GROUP_TAKEN) {
            s->snapshot[s->snapshot_count++] = (struct listed){i, g->item, g->attempt};
        }
    }
}

/* What is not listed keeps the end that it had before the snapshot: what ended later was open in
 * it. */
static void
rolled_back(struct sim_shadow *s, const troupe_record *r)
{
    s->epoch = r->epoch;
    s->step = r->step;
    s->rolled_ns = now_ns(s);
    s->count = TR_MIN(s->count, (size_t)r->next_group);
    for (size_t i = 0; i < r->group_count; i++) {
        struct group *g = group_at(s, r->groups[i].group);
        if (g != NULL) {
            *g = (struct group){
                .state = GROUP_OPEN, .item = g->item, .attempt = r->groups[i].attempt};
        }
    }
    recount(s);
}

void
sim_shadow_record(struct sim_shadow *s, const troupe_record *r)
{
    switch (r->kind) {
    case TROUPE_RECORD_DISPATCHED:
        dispatched(s, r);
        break;
    case TROUPE_RECORD_LEASED:
        leased(s, r);
        break;
    case TROUPE_RECORD_SEALED:
        sealed(s, r);
        break;
    case TROUPE_RECORD_STAGED:
        staged(s, r);
        break;
    case TROUPE_RECORD_TAKEN:
        taken(s, r);
        break;
    case TROUPE_RECORD_COMMITTED:
        committed(s, r);
        break;
    case TROUPE_RECORD_FILTERED:
    case TROUPE_RECORD_STALE:
    case TROUPE_RECORD_FAILED:
        ended(s, r);
        break;
    case TROUPE_RECORD_SNAPSHOT:
        snapshot(s, r);
        break;
    case TROUPE_RECORD_ROLLED_BACK:
        rolled_back(s, r);
        break;
    case TROUPE_RECORD_RUN:
    case TROUPE_RECORD_PUBLISHED:
    case TROUPE_RECORD_APPLIED:
    case TROUPE_RECORD_DURABLE:
    case TROUPE_RECORD_RELEASED:
    case TROUPE_RECORD_ENDED:
        break;
    }
}

/* --- what the fakes saw ----------------------------------------------------------------------- */

void
sim_shadow_reported(
    struct sim_shadow *s, uint64_t epoch, uint64_t group, uint32_t member, uint32_t attempt)
{
    struct member *m = member_at(s, group, member);
    if (epoch == s->epoch && m != NULL && m->attempt == attempt) {
        m->reported = true;
    }
}

uint64_t
sim_shadow_closed_ns(
    struct sim_shadow *s, uint64_t epoch, uint64_t group, uint32_t member, uint32_t attempt)
{
    const struct group *g = group_at(s, group);
    const struct member *m = member_at(s, group, member);
    if (epoch < s->epoch || m == NULL) {
        return s->rolled_ns;
    }
    if (g->state >= GROUP_TRAINED) {
        return g->ended_ns;
    }
    return m->leased && m->attempt != attempt ? m->leased_ns : UINT64_MAX;
}

static struct asked *
asked_at(struct sim_shadow *s, const struct sim_asked *what)
{
    struct member *m = member_at(s, what->group, what->member);
    return what->epoch == s->epoch && m != NULL && m->attempt == what->attempt
               ? &m->asked[what->stage]
               : NULL;
}

static int
worker_loop(const struct sim_job *job, uint32_t stage, uint32_t worker)
{
    return FIRST_SOURCE_LOOP + (int)(job->sources + stage * job->workers + worker);
}

struct search {
    const struct sim_asked *what;
    uint64_t since_ns; /* 0: the stream has given it up */
    uint32_t worker;
};

static void
find_wait(void *self, const troupe_stream_wait *wait)
{
    struct search *search = self;
    if (wait->what[0] == 's' && wait->group == search->what->group &&
        wait->member == search->what->member && wait->stage == search->what->stage) {
        search->since_ns = wait->since_ns;
        search->worker = wait->peer;
    }
}

/* Another try needs a reason: the last one failed, its worker died, its time is over. What arrives
 * may have been on its way for long, so it is the stream that says when it sent the newest try. */
static void
check_asked(struct sim_shadow *s, const struct sim_asked *what, const struct asked *last,
    const struct search *newest)
{
    const struct sim_job *job = s->sim->job;
    int loop = worker_loop(job, what->stage, last->worker);
    bool reason =
        last->refused || tr_world_host(s->sim->world, loop) == NULL ||
        tr_world_epoch(s->sim->world, loop) != last->life ||
        s->sim->worker_born_ns[what->stage][last->worker] + news_ns(job) > last->sent_ns ||
        newest->since_ns - last->sent_ns + ROUNDING_NS >= job->stage_ns;
    if (!reason || job->flawless) {
        sim_violation(s->sim, "done-twice",
            "stage %u is asked again about member %u of group %" PRIu64 " %.3f s after the last "
            "time, and nothing was wrong",
            what->stage, what->member, what->group,
            (double)(newest->since_ns - last->sent_ns) / 1e9);
    }
}

void
sim_shadow_asked(struct sim_shadow *s, const struct sim_asked *what)
{
    const struct sim_job *job = s->sim->job;
    struct search newest = {.what = what};
    struct asked *asked = asked_at(s, what);
    if (asked == NULL) {
        return;
    }
    if (++asked->times > job->stage_tries) {
        sim_violation(s->sim, "stage-budget",
            "stage %u is asked %u times about member %u of group %" PRIu64 ", it has %u",
            what->stage, asked->times, what->member, what->group, job->stage_tries);
    }
    troupe_stream_waits(s->sim->stream, find_wait, &newest);
    if (newest.since_ns == 0 || newest.since_ns == asked->sent_ns) {
        return;
    }
    if (asked->sent_ns != 0) {
        check_asked(s, what, asked, &newest);
    }
    *asked = (struct asked){.times = asked->times,
        .worker = newest.worker,
        .life = tr_world_epoch(s->sim->world, worker_loop(job, what->stage, newest.worker)),
        .sent_ns = newest.since_ns};
}

void
sim_shadow_refused(struct sim_shadow *s, const struct sim_asked *what)
{
    struct asked *asked = asked_at(s, what);
    if (asked != NULL && asked->worker == what->worker) {
        asked->refused = true;
    }
}

void
sim_shadow_told(struct sim_shadow *s, uint64_t epoch, uint64_t group)
{
    struct group *g = group_at(s, group);
    if (epoch == s->epoch && g != NULL) {
        g->told = true;
    }
}

/* --- what the sink was answered --------------------------------------------------------------- */

static void
compare_ledger(struct sim_shadow *s, const troupe_ledger *l)
{
    const struct sim_job *job = s->sim->job;
    bool same = l->epoch == s->epoch && l->step == s->step && l->step == s->snapshot_step &&
                l->next_group == s->snapshot_groups && l->open_count == s->snapshot_count &&
                l->groups_per_step == job->groups_per_step && l->group_size == job->group_size &&
                l->rows == SIM_ROWS;
    compare_counters(s, "the checkpoint's ledger", &l->counters, &s->snapshot_counters);
    for (size_t i = 0; same && i < s->snapshot_count; i++) {
        const struct listed *at = &s->snapshot[i];
        same = l->open[i].group == at->group && l->open[i].item == at->item &&
               l->open[i].attempt == at->attempt;
    }
    if (!same) {
        sim_violation(s->sim, "ledger-told",
            "the checkpoint's ledger of step %" PRIu64 " with %zu open groups is not what the "
            "records say of step %" PRIu64 " with %zu",
            l->step, l->open_count, s->snapshot_step, s->snapshot_count);
    }
}

/* Each group has ended as the sink has said. */
static void
compare_verdicts(struct sim_shadow *s, const struct sim_committed *what)
{
    static const char *const names[] = {[GROUP_TRAINED] = "trained",
        [GROUP_FILTERED] = "filtered",
        [GROUP_STALE] = "stale",
        [GROUP_FAILED] = "failed"};
    for (uint32_t i = 0; i < what->batch_count; i++) {
        const struct group *g = group_at(s, what->batch[i].group);
        if (g == NULL || g->state < GROUP_TRAINED ||
            strcmp(names[g->state], what->batch[i].verdict) != 0) {
            sim_violation(s->sim, "verdict",
                "group %" PRIu64 " was committed as %s, the records say otherwise",
                what->batch[i].group, what->batch[i].verdict);
        }
    }
}

void
sim_shadow_commit(struct sim_shadow *s, const struct sim_committed *what)
{
    if (s->step != what->step) {
        sim_violation(s->sim, "ledger-told",
            "the commit of step %" PRIu64 " was answered, the records end with step %" PRIu64,
            what->step, s->step);
        return;
    }
    compare_verdicts(s, what);
    compare_counters(s, "the answer to a commit", &what->counters, &s->commit_counters);
    if (memcmp(what->lags, s->commit_lags, sizeof s->commit_lags) != 0) {
        sim_violation(s->sim, "lags-told",
            "the answer to the commit of step %" PRIu64 " tells other lags than the records",
            what->step);
    }
    troupe_ledger read = {0};
    troupe_error err = {0};
    if (what->ledger == NULL) {
        return;
    }
    if (troupe_ledger_from_json(what->ledger, strlen(what->ledger), "ledger.json", &read, &err) !=
        TROUPE_OK) {
        sim_violation(s->sim, "ledger-told", "%s", err.text);
        return;
    }
    compare_ledger(s, &read);
    troupe_ledger_fini(&read);
}

void
sim_shadow_finish(struct sim_shadow *s, bool opener, const troupe_counters *counters)
{
    compare_counters(s, "the answer to the end", counters, &s->counters);
    for (size_t i = 0; opener && i < s->count; i++) {
        const struct group *g = &s->groups[i];
        if (g->by_machine && g->epoch == s->epoch && g->state > GROUP_TRAINED && !g->told) {
            sim_violation(s->sim, "not-told",
                "the sink was never told that group %zu had ended without it", i);
        }
    }
}
