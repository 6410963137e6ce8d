/* The shadow, its second half: what the fakes saw is kept, and what the coordinator told the sink
 * is compared with the account that the records gave. */
#include "sim/shadow.h"

#include <inttypes.h>
#include <string.h>

/* --- what the fakes saw ----------------------------------------------------------------------- */

void
sim_shadow_reported(
    struct sim_shadow *s, uint64_t epoch, uint64_t group, uint32_t member, uint32_t attempt)
{
    struct shadow_member *m = sim_shadow_member(s, group, member);
    if (epoch == s->epoch && m != NULL && m->attempt == attempt) {
        m->reported = true;
    }
}

uint64_t
sim_shadow_closed_ns(
    struct sim_shadow *s, uint64_t epoch, uint64_t group, uint32_t member, uint32_t attempt)
{
    const struct shadow_group *g = sim_shadow_group(s, group);
    const struct shadow_member *m = sim_shadow_member(s, group, member);
    if (epoch < s->epoch || m == NULL) {
        return s->rolled_ns;
    }
    if (g->state >= GROUP_TRAINED) {
        return g->ended_ns;
    }
    return m->leased && m->attempt != attempt ? m->leased_ns : UINT64_MAX;
}

static struct shadow_asked *
asked_at(struct sim_shadow *s, const struct sim_asked *what)
{
    struct shadow_member *m = sim_shadow_member(s, what->group, what->member);
    return what->epoch == s->epoch && m != NULL && m->attempt == what->attempt
               ? &m->asked[what->stage]
               : NULL;
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
check_asked(struct sim_shadow *s, const struct sim_asked *what, const struct shadow_asked *last,
    const struct search *newest)
{
    const struct sim_job *job = s->sim->job;
    int loop = sim_worker_loop(job, what->stage, last->worker);
    bool reason =
        last->refused || tr_world_host(s->sim->world, loop) == NULL ||
        tr_world_epoch(s->sim->world, loop) != last->life ||
        s->sim->worker_born_ns[what->stage][last->worker] + sim_news_ns(job) > last->sent_ns ||
        newest->since_ns - last->sent_ns + SIM_ROUNDING_NS >= job->stage_ns;
    if (!reason || job->flawless) {
        sim_violation(s->sim, "done-twice",
            "stage %u is asked again about member %u of group %" PRIu64 " %.3f s after the last "
            "time, and nothing was wrong",
            what->stage, what->member, what->group,
            (double)(newest->since_ns - last->sent_ns) / 1e9);
    }
}

/* A try that is needed lasts from one event to another at least: who gives it up within the one in
 * which it was sent has mistaken it for another. */
void
sim_shadow_waits(struct sim_shadow *s, const troupe_stream_wait *wait)
{
    struct shadow_member *m = sim_shadow_member(s, wait->group, wait->member);
    if (wait->what[0] != 's' || m == NULL || m->asked[wait->stage].seen_ns == wait->since_ns) {
        return;
    }
    m->asked[wait->stage].seen_ns = wait->since_ns;
    m->asked[wait->stage].sends++;
}

void
sim_shadow_asked(struct sim_shadow *s, const struct sim_asked *what)
{
    const struct sim_job *job = s->sim->job;
    struct search newest = {.what = what};
    struct shadow_asked *asked = asked_at(s, what);
    if (asked == NULL) {
        return;
    }
    if (++asked->times > job->stage_tries) {
        sim_violation(s->sim, "stage-budget",
            "stage %u is asked %u times about member %u of group %" PRIu64 ", it has %u",
            what->stage, asked->times, what->member, what->group, job->stage_tries);
    }
    bool open = s->groups[what->group].state == GROUP_OPEN && !asked->answered;
    if (open && asked->times > asked->sends) {
        sim_violation(s->sim, "done-twice",
            "stage %u is asked %u times about member %u of group %" PRIu64
            ", the stream has waited for %u answers",
            what->stage, asked->times, what->member, what->group, asked->sends);
    }
    troupe_stream_waits(s->sim->stream, find_wait, &newest);
    if (newest.since_ns == 0 || newest.since_ns == asked->sent_ns) {
        return;
    }
    if (asked->sent_ns != 0) {
        check_asked(s, what, asked, &newest);
    }
    asked->worker = newest.worker;
    asked->life = tr_world_epoch(s->sim->world, sim_worker_loop(job, what->stage, newest.worker));
    asked->sent_ns = newest.since_ns;
    asked->refused = false;
}

void
sim_shadow_refused(struct sim_shadow *s, const struct sim_asked *what)
{
    struct shadow_asked *asked = asked_at(s, what);
    if (asked != NULL && asked->worker == what->worker) {
        asked->refused = true;
    }
}

void
sim_shadow_told(struct sim_shadow *s, uint64_t epoch, uint64_t group)
{
    struct shadow_group *g = sim_shadow_group(s, group);
    if (epoch == s->epoch && g != NULL) {
        g->told = true;
    }
}

/* --- what the sink was answered --------------------------------------------------------------- */

/* The batch that is out, all of it and nothing else. */
void
sim_shadow_granted(
    struct sim_shadow *s, const struct sim_granted *batch, uint32_t count, uint64_t step)
{
    bool same = step == s->taken_step && count == s->sim->job->groups_per_step;
    for (uint32_t i = 0; same && i < count; i++) {
        const struct shadow_group *g = sim_shadow_group(s, batch[i].group);
        same = g != NULL && g->state == GROUP_TAKEN;
    }
    if (!same) {
        sim_violation(s->sim, "granted-other",
            "step %" PRIu64 " was answered with %u groups that are not the ones on record for it",
            step, count);
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

void
sim_shadow_opened(struct sim_shadow *s, const struct sim_opened *what)
{
    bool published = s->published_step == s->step;
    bool mirrored = s->mirrored_step == s->step;
    if (what->epoch != s->epoch || what->step != s->step || what->published != published ||
        what->mirrored != mirrored) {
        sim_violation(s->sim, "opened-elsewhere",
            "told to go on from epoch %" PRIu64 ", step %" PRIu64 "%s%s, the records say epoch "
            "%" PRIu64 ", step %" PRIu64 "%s%s",
            what->epoch, what->step, what->published ? ", published" : "",
            what->mirrored ? ", mirrored" : "", s->epoch, s->step, published ? ", published" : "",
            mirrored ? ", mirrored" : "");
    }
    if (!what->voided && s->reopened == s->reopened_told) {
        sim_violation(s->sim, "reopened-unrecorded",
            "a new policy goes on from step %" PRIu64 ", which is not on record", what->step);
    }
    s->reopened_told = s->reopened;
    if (mirrored) { /* else it may be the beginning of an epoch, in which nothing was committed */
        compare_counters(s, "the answer to a new policy", &what->counters, &s->commit_counters);
    }
}

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
        const struct shadow_listed *at = &s->snapshot[i];
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
        const struct shadow_group *g = sim_shadow_group(s, what->batch[i].group);
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
        const struct shadow_group *g = &s->groups[i];
        if (g->by_machine && g->epoch == s->epoch && g->state > GROUP_TRAINED && !g->told) {
            sim_violation(s->sim, "not-told",
                "the sink was never told that group %zu had ended without it", i);
        }
    }
}
