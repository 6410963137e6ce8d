/* The simulated policy reads what it was granted, and believes none of it: bytes, versions,
 * rows, rewards are computed anew. The bound is tested twice, by the policy's own function and
 * unit by unit here, at the version that it holds and at versions to come. */
#include "sim/sim.h"

#include <troupe/ext/wire.h>
#include <troupe/sample.h>

#include <inttypes.h>
#include <string.h>

enum {
    UNITS_MAX = 64,
    VERSIONS_AHEAD = 6, /* at which the bound test is asked as well */
};

struct reading {
    struct sim *sim;
    uint64_t version;
    tr_reader in;
    struct sim_granted *g;
    uint64_t row;
};

struct granted_member {
    uint64_t attempt;
    uint64_t word;
    uint64_t digest;
    uint64_t units;
    double reward;
};

/* --- the hard bound, unit by unit ------------------------------------------------------------- */

static uint64_t
version_of_unit(const troupe_span *spans, size_t count, uint64_t unit)
{
    uint64_t version = spans[0].version;
    for (size_t i = 0; i < count && spans[i].unit <= unit; i++) {
        version = spans[i].version;
    }
    return version;
}

/* What the policy's function should say of one sample at `version`. */
static void
check_bound_at(struct reading *r, const troupe_bound_member *member, uint64_t version)
{
    const struct sim_job *job = r->sim->job;
    uint8_t mask[UNITS_MAX];
    memset(mask, 7, sizeof mask);
    troupe_bound_member asked = *member;
    asked.mask = mask;
    troupe_lag lag = {0};
    troupe_status status = troupe_bound_test(job->bound, job->max_lag, version, &asked, 1, &lag);
    troupe_lag mine = {.units = member->units};
    bool same = true;
    for (uint64_t u = 0; u < member->units; u++) {
        uint64_t age = version - version_of_unit(member->spans, member->span_count, u);
        bool over = job->max_lag >= 0 && age > (uint64_t)job->max_lag;
        mine.head = TR_MAX(mine.head, age);
        mine.tail = age;
        mine.unit_sum += age;
        mine.units_over += over ? 1 : 0;
        same = same && mask[u] == (job->bound == TROUPE_BOUND_UNIT ? (over ? 0 : 1) : 7);
    }
    bool stale = job->bound == TROUPE_BOUND_GROUP && mine.units_over > 0;
    same = same && memcmp(&mine, &lag, sizeof mine) == 0 &&
           status == (stale ? TROUPE_STALE : TROUPE_OK);
    if (!same) {
        sim_violation(r->sim, "bound-test",
            "at version %" PRIu64 " group %" PRIu64 " has a sample with %" PRIu64
            " units above max_lag %" PRId64 ", the bound test says %s and %" PRIu64,
            version, r->g->group, mine.units_over, job->max_lag, troupe_status_name(status),
            lag.units_over);
    }
    if (stale && version == r->version) {
        sim_violation(r->sim, "bound",
            "group %" PRIu64 " was granted with lag %" PRIu64 ", max_lag is %" PRId64, r->g->group,
            mine.head, job->max_lag);
    }
}

static void
check_bound(struct reading *r, const troupe_sample *sample, uint32_t m)
{
    size_t count = 0;
    const troupe_span *spans = troupe_sample_spans(sample, &count);
    troupe_bound_member member = {
        .spans = spans, .span_count = count, .units = troupe_sample_units(sample)};
    if (member.units == 0 || member.units > UNITS_MAX || count == 0 ||
        spans[count - 1].version > r->version) {
        sim_violation(r->sim, "bound", "member %u of group %" PRIu64 " has versions of the future",
            m, r->g->group);
        return;
    }
    for (uint64_t ahead = 0; ahead < VERSIONS_AHEAD; ahead++) {
        check_bound_at(r, &member, r->version + ahead);
    }
}

/* --- objects and numbers ---------------------------------------------------------------------- */

static void
remember(struct reading *r, uint64_t word)
{
    if (r->g->object_count < TR_COUNT(r->g->objects)) {
        r->g->objects[r->g->object_count++] = word;
    }
}

static void
check_sample(struct reading *r, uint32_t m, const struct granted_member *member)
{
    troupe_sample *sample = NULL;
    troupe_error err = {0};
    remember(r, member->word);
    if (troupe_sample_open(r->sim->store, troupe_object_of_word(member->word), &sample, &err) !=
            TROUPE_OK ||
        troupe_sample_verify(sample, member->digest, &err) != TROUPE_OK) {
        sim_violation(r->sim, "freed-in-use",
            "member %u of group %" PRIu64 " cannot be read as sealed: %s", m, r->g->group,
            err.text);
        troupe_sample_close(sample);
        return;
    }
    if (member->units != troupe_sample_units(sample)) {
        sim_violation(r->sim, "answers-mixed",
            "member %u of group %" PRIu64 " was granted with %" PRIu64 " units", m, r->g->group,
            member->units);
    }
    check_bound(r, sample, m);
    double earned = sim_reward(r->sim, r->g->group, m, (uint32_t)member->attempt);
    if (r->sim->job->stages > 0 && member->reward != earned) {
        sim_violation(r->sim, "answers-mixed",
            "member %u of group %" PRIu64 " was given another sample's reward", m, r->g->group);
    }
    troupe_sample_close(sample);
}

static void
check_object(struct reading *r, uint64_t word)
{
    remember(r, word);
    troupe_object object = troupe_object_of_word(word);
    if (troupe_object_hold(r->sim->store, object, NULL, NULL) == TROUPE_OK) {
        (void)troupe_object_release(r->sim->store, object);
    } else {
        sim_violation(r->sim, "freed-in-use", "a stage's answer was let go before its step");
    }
}

/* --- reading ---------------------------------------------------------------------------------- */

/* [number or nil, object or nil, digest] of each stage; the reward is remembered. */
static bool
read_stages(struct reading *r, struct granted_member *member)
{
    tr_reader *in = &r->in;
    uint32_t stages = 0;
    bool ok = tr_read_array(in, &stages) && stages == r->sim->job->stages;
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
        member->reward = i == 0 ? value : member->reward;
        if (ok && (i == 0 ? !number : !object)) {
            sim_violation(r->sim, "stage-missing", "stage %u gave nothing", i);
        }
        if (ok && object) {
            check_object(r, word);
        }
    }
    return ok;
}

static bool
read_group(struct reading *r)
{
    tr_reader *in = &r->in;
    uint32_t fields = 0;
    uint32_t members = 0;
    struct sim_granted *g = r->g;
    *g = (struct sim_granted){0};
    bool ok = tr_read_array(in, &fields) && fields == 3 && tr_read_u64(in, &g->group) &&
              tr_read_u64(in, &r->row) && tr_read_array(in, &members) &&
              members == r->sim->job->group_size;
    if (ok && r->row != troupe_row_of_group(r->sim->job->seed, SIM_ROWS, g->group)) {
        sim_violation(
            r->sim, "row", "group %" PRIu64 " was granted with row %" PRIu64, g->group, r->row);
    }
    for (uint32_t m = 0; ok && m < members; m++) {
        struct granted_member member = {0};
        ok = tr_read_array(in, &fields) && fields == 5 && tr_read_u64(in, &member.attempt) &&
             tr_read_u64(in, &member.word) && tr_read_u64(in, &member.digest) &&
             tr_read_u64(in, &member.units) && read_stages(r, &member);
        if (ok) {
            g->attempts[m] = (uint32_t)member.attempt;
            g->digests[m] = member.digest;
            check_sample(r, m, &member);
        }
    }
    return ok;
}

bool
sim_batch_read(struct sim *sim, troupe_answer *answer, uint64_t version,
    struct sim_granted batch[SIM_BATCH_MAX], uint32_t *count)
{
    struct reading r = {.sim = sim, .version = version};
    bool ok = troupe_arg_reader(answer, 1, &r.in) && tr_read_array(&r.in, count) &&
              *count == sim->job->groups_per_step;
    for (uint32_t i = 0; ok && i < *count; i++) {
        r.g = &batch[i];
        ok = read_group(&r);
    }
    return ok;
}
