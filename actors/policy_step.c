/* A batch of the policy: from the answer of a take to one trainer step. Every sample is checked
 * here again, by code that the stream does not share: its digest against what was sealed, its
 * versions against the hard bound. */
#include "policy.h"

#include <troupe/ext/wire.h>
#include <troupe/reward.h>

#include <math.h>
#include <string.h>

/* --- reading the grant ----------------------------------------------------------------------- */

typedef struct grant_reader {
    troupe_ctx *ctx;
    tr_policy *p;
    tr_reader in;
    troupe_error *err;
} grant_reader;

static troupe_status
malformed(grant_reader *g)
{
    return troupe_fail(g->err, TROUPE_CORRUPT, "the granted batch does not parse");
}

/* One stage's answer: [number or nil, object or nil, digest]. */
static troupe_status
read_stage(grant_reader *g, tr_batch_member *member, int stage)
{
    uint32_t count = 0;
    double value = TR_UNKNOWN;
    uint64_t word = 0, digest = 0;
    bool ok = tr_read_array(&g->in, &count) && count == 3;
    if (ok) {
        ok = tr_reader_peek(&g->in) == TR_WIRE_NIL ? tr_read_nil(&g->in)
                                                   : tr_read_f64(&g->in, &value);
    }
    if (ok) {
        ok = tr_reader_peek(&g->in) == TR_WIRE_NIL ? tr_read_nil(&g->in)
                                                   : tr_read_u64(&g->in, &word);
    }
    if (!ok || !tr_read_u64(&g->in, &digest)) {
        return malformed(g);
    }
    if (stage == g->p->stage_reward) {
        member->reward = value;
    }
    if (stage == g->p->stage_reference && word != 0) {
        troupe_error err = {0};
        troupe_status status = troupe_sample_open(
            troupe_ctx_store(g->ctx), troupe_object_of_word(word), &member->reference, &err);
        member->lost = member->lost || status != TROUPE_OK ||
                       troupe_sample_verify(member->reference, digest, &err) != TROUPE_OK;
    }
    return TROUPE_OK;
}

static troupe_status
read_member(grant_reader *g, tr_batch_member *member)
{
    uint32_t count = 0, stages = 0;
    uint64_t attempt = 0, word = 0, units = 0;
    if (!tr_read_array(&g->in, &count) || count != 5 || !tr_read_u64(&g->in, &attempt) ||
        !tr_read_u64(&g->in, &word) || !tr_read_u64(&g->in, &member->digest) ||
        !tr_read_u64(&g->in, &units) || !tr_read_array(&g->in, &stages)) {
        return malformed(g);
    }
    member->attempt = (uint32_t)attempt;
    member->reward = TR_UNKNOWN;
    troupe_error err = {0};
    member->lost = troupe_sample_open(troupe_ctx_store(g->ctx), troupe_object_of_word(word),
                       &member->sample, &err) != TROUPE_OK;
    troupe_status status = TROUPE_OK;
    for (uint32_t s = 0; status == TROUPE_OK && s < stages; s++) {
        status = read_stage(g, member, (int)s);
    }
    return status;
}

static void
refuse(tr_batch_group *group, const char *verdict, const char *reason)
{
    if (strcmp(group->verdict, "trained") == 0) {
        group->verdict = verdict;
        snprintf(group->reason, sizeof group->reason, "%.*s", TR_REASON_MAX - 1, reason);
    }
}

static void
copy_spans(tr_batch_member *member)
{
    size_t count = 0;
    const troupe_span *spans = troupe_sample_spans(member->sample, &count);
    member->spans = tr_zalloc(count + 1, sizeof *member->spans);
    for (size_t i = 0; i < count; i++) {
        member->spans[i] =
            (troupe_lm_span){.first = (int32_t)spans[i].unit, .version = (int64_t)spans[i].version};
    }
    member->tokens.spans = member->spans;
    member->tokens.span_count = (int)count;
}

/* Verifies one group's samples and makes them ready for the trainer. */
static void
check_members(tr_policy *p, tr_batch_group *group, int index)
{
    for (int m = 0; m < p->group_size; m++) {
        tr_batch_member *member = &group->members[m];
        troupe_error err = {0};
        if (member->lost) {
            refuse(group, "failed", "an object of the group is lost or damaged");
            continue;
        }
        if (troupe_sample_verify(member->sample, member->digest, &err) != TROUPE_OK) {
            refuse(group, "failed", "a sample's bytes changed after it was sealed");
            continue;
        }
        if (tr_lm_sample_of(member->sample, &member->tokens, &err) != TROUPE_OK) {
            refuse(group, "failed", err.text);
            continue;
        }
        if (!isfinite(member->reward)) {
            refuse(group, "failed", "no reward");
        } else if (fabs(member->reward) > TROUPE_REWARD_MAX) {
            refuse(group, "failed", "a reward beyond +-1e30");
        }
        copy_spans(member);
        member->tokens.group = index;
        troupe_tensor tensor;
        if (member->reference != NULL) {
            if (!troupe_sample_find(member->reference, "value", TROUPE_TENSOR_F32, &tensor) ||
                tensor.shape[0] != member->tokens.token_count) {
                refuse(group, "failed", "the reference answered for another length");
            } else {
                member->tokens.reference = tensor.data;
            }
        }
    }
}

/* The hard bound, by the policy's own test. */
static troupe_status
bound_group(tr_policy *p, tr_batch_group *group, troupe_error *err)
{
    troupe_bound_member members[TROUPE_GROUP_SIZE_MAX];
    for (int m = 0; m < p->group_size; m++) {
        tr_batch_member *member = &group->members[m];
        size_t count = 0;
        const troupe_span *spans = troupe_sample_spans(member->sample, &count);
        uint64_t units = troupe_sample_units(member->sample);
        if (p->bound == TROUPE_BOUND_UNIT) {
            member->mask = tr_alloc(units + 1);
            memset(member->mask, 1, units + 1);
        }
        members[m] = (troupe_bound_member){
            .spans = spans, .span_count = count, .units = units, .mask = member->mask};
        member->tokens.mask = member->mask;
    }
    troupe_lag lag = {0};
    troupe_status status =
        troupe_bound_test(p->bound, p->max_lag, p->version, members, (size_t)p->group_size, &lag);
    if (status == TROUPE_STALE) {
        refuse(group, "stale", "head lag above max_lag");
        return TROUPE_OK;
    }
    if (status != TROUPE_OK) {
        return troupe_fail(err, status,
            "group %llu: its version spans are malformed or of the future",
            (unsigned long long)group->group);
    }
    troupe_lag_add(&p->batch.lag, &lag);
    p->batch.head_sum += lag.head;
    return TROUPE_OK;
}

static troupe_status
read_group(grant_reader *g, tr_batch_group *group)
{
    uint32_t count = 0, members = 0;
    group->verdict = "trained";
    group->members = tr_zalloc((size_t)g->p->group_size, sizeof *group->members);
    if (!tr_read_array(&g->in, &count) || count != 3 || !tr_read_u64(&g->in, &group->group) ||
        !tr_read_u64(&g->in, &group->row) || !tr_read_array(&g->in, &members) ||
        members != (uint32_t)g->p->group_size) {
        return malformed(g);
    }
    troupe_status status = TROUPE_OK;
    for (uint32_t m = 0; status == TROUPE_OK && m < members; m++) {
        status = read_member(g, &group->members[m]);
    }
    return status;
}

troupe_status
tr_policy_read_batch(troupe_ctx *ctx, tr_policy *p, troupe_answer *answer, troupe_error *err)
{
    grant_reader g = {.ctx = ctx, .p = p, .err = err};
    uint32_t count = 0;
    if (!troupe_arg_reader(answer, 1, &g.in) || !tr_read_array(&g.in, &count) ||
        count > UINT16_MAX) {
        return malformed(&g);
    }
    p->batch = (tr_batch){.group_size = p->group_size};
    p->batch.groups = tr_zalloc(count + 1, sizeof *p->batch.groups);
    p->batch.count = (int)count;
    for (uint32_t i = 0; i < count; i++) {
        p->batch.groups[i].verdict =
            "failed"; /* until it is read: closing a half-read batch is safe */
    }
    troupe_status status = TROUPE_OK;
    for (uint32_t i = 0; status == TROUPE_OK && i < count; i++) {
        tr_batch_group *group = &p->batch.groups[i];
        status = read_group(&g, group);
        if (status == TROUPE_OK) {
            check_members(p, group, (int)i);
        }
        if (status == TROUPE_OK && strcmp(group->verdict, "trained") == 0) {
            status = bound_group(p, group, err);
        }
    }
    return status;
}

void
tr_policy_close_batch(tr_policy *p)
{
    for (int g = 0; g < p->batch.count; g++) {
        tr_batch_group *group = &p->batch.groups[g];
        for (int m = 0; group->members != NULL && m < p->batch.group_size; m++) {
            troupe_sample_close(group->members[m].sample);
            troupe_sample_close(group->members[m].reference);
            tr_free(group->members[m].spans);
            tr_free(group->members[m].mask);
        }
        tr_free(group->members);
    }
    tr_free(p->batch.groups);
    p->batch = (tr_batch){0};
}

/* --- the step -------------------------------------------------------------------------------- */

/* The batch's members that are trained on, group after group, in `samples`; their rewards in
 * `rewards`. */
static int
collect(const tr_policy *p, troupe_lm_sample *samples, double *rewards)
{
    int count = 0;
    for (int g = 0; g < p->batch.count; g++) {
        const tr_batch_group *group = &p->batch.groups[g];
        for (int m = 0; m < p->group_size && strcmp(group->verdict, "trained") == 0; m++) {
            samples[count] = group->members[m].tokens;
            rewards[count++] = group->members[m].reward;
        }
    }
    return count;
}

/* Adds the batch to the run's totals, by the verdicts that it ended with. */
static void
count_batch(tr_policy *p)
{
    p->length_sum = p->length_max = p->length_count = 0;
    for (int g = 0; g < p->batch.count; g++) {
        const tr_batch_group *group = &p->batch.groups[g];
        bool trained = strcmp(group->verdict, "trained") == 0;
        p->batch.trained += trained;
        if (!trained) {
            tr_policy_count_end(&p->counts, group->verdict, group->reason);
        }
        for (int m = 0; m < p->group_size; m++) {
            const tr_batch_member *member = &group->members[m];
            if (member->sample != NULL) {
                uint64_t units = troupe_sample_units(member->sample);
                tr_policy_count(p, units, member->reward, trained);
                p->length_sum += units;
                p->length_max = TR_MAX(p->length_max, units);
                p->length_count++;
            }
        }
    }
}

void
tr_policy_count(tr_policy *p, uint64_t units, double reward, bool trained)
{
    p->counts.sampled_units += units;
    p->counts.sampled_samples++;
    p->counts.trained_units += trained ? units : 0;
    p->counts.trained_samples += trained;
    p->counts.wasted_units += trained ? 0 : units;
    if (isfinite(reward)) {
        p->reward_sum += reward;
        p->reward_count++;
    }
}

void
tr_policy_count_end(tr_policy_counts *counts, const char *how, const char *why)
{
    char text[TR_END_TEXT_MAX];
    snprintf(text, sizeof text, "%s: %.*s", how, (int)strcspn(why, "\n"), why);
    for (char *at = text; *at != '\0'; at++) {
        *at = *at < ' ' || *at > '~' ? '?' : *at; /* it may come from a program, and was cut */
    }
    size_t i = 0;
    while (i + 1 < TR_ENDS_MAX && counts->ends[i].groups > 0 &&
           strcmp(counts->ends[i].text, text) != 0) {
        i++;
    }
    if (counts->ends[i].groups == 0) {
        snprintf(counts->ends[i].text, TR_END_TEXT_MAX, "%s",
            i + 1 < TR_ENDS_MAX ? text : "for other reasons");
    }
    counts->ends[i].groups++;
}

/* A step that the guard skipped has trained nobody. */
static void
mark_skipped(tr_policy *p)
{
    for (int g = 0; g < p->batch.count; g++) {
        char reason[TR_REASON_MAX];
        snprintf(reason, sizeof reason, "step skipped: %s", p->stats.skip_reason);
        refuse(&p->batch.groups[g], "filtered", reason);
    }
    p->reward_mean = TR_UNKNOWN;
}

troupe_status
tr_policy_train(tr_policy *p, troupe_error *err)
{
    size_t most = (size_t)p->batch.count * (size_t)p->group_size;
    troupe_lm_sample *samples = tr_zalloc(most + 1, sizeof *samples);
    double *rewards = tr_zalloc(most + 1, sizeof *rewards);
    float *advantages = tr_zalloc(most + 1, sizeof *advantages);
    int count = collect(p, samples, rewards);
    p->stats = (troupe_trainer_stats){.loss = TR_UNKNOWN, .grad_norm = TR_UNKNOWN};
    p->reward_mean = TR_UNKNOWN;
    p->zero_variance = 0;
    troupe_status status = TROUPE_OK;
    if (count > 0) {
        troupe_rl_advantage_stats advantage = {0};
        status = troupe_rl_advantages(&p->options.rl, rewards, count / p->group_size, p->group_size,
            advantages, &advantage, err);
        p->reward_mean = advantage.reward_mean;
        p->zero_variance = advantage.zero_variance;
        for (int i = 0; i < count; i++) {
            samples[i].advantage = advantages[i];
        }
        if (status == TROUPE_OK) {
            status = troupe_trainer_rl_step(
                p->trainer, (int64_t)p->version, samples, count, &p->stats, err);
        }
        if (status == TROUPE_OK && p->stats.skipped) {
            mark_skipped(p);
        }
        p->trained_tokens += (uint64_t)p->stats.tokens;
    }
    count_batch(p);
    p->lag_head_mean =
        p->batch.trained > 0 ? (double)p->batch.head_sum / p->batch.trained : TR_UNKNOWN;
    tr_free(samples);
    tr_free(rewards);
    tr_free(advantages);
    return status;
}
