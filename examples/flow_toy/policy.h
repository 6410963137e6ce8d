/* The policy of flow_toy in two parts: policy.c is the order of events and the objective, record.c
 * what is written. */
#ifndef FLOW_POLICY_H
#define FLOW_POLICY_H

#include "objective.h"

#include <troupe/ext/base.h>
#include <troupe/ext/ledger.h>

#include <stdio.h>

typedef struct member {
    uint32_t attempt;
    uint64_t digest;
    double reward;
    troupe_sample *sample; /* holds its object */
    toy_sample path;
} member;

typedef struct group {
    uint64_t id, row;
    const char *refused; /* NULL: trained; else "stale" or "failed" */
    const char *reason;
} group;

typedef struct policy {
    toy_config config;
    troupe_target stream;
    float m[FLOW_DIM]; /* what is learnt */
    toy_adam adam;
    int64_t step, saved;
    uint64_t epoch, version, next_version;
    troupe_object weights; /* being published */
    bool stopping, done;
    group *groups;   /* [groups], `count` of them granted now */
    member *members; /* [groups][group_size] */
    int count;
    char *ledger; /* JSON, as of the last commit, like the counters */
    troupe_counters counters;
    int trained;    /* of them */
    double reward;  /* mean of what was trained last */
    troupe_lag lag; /* likewise */

    float offset[FLOW_DIM]; /* the hidden answer; only the report looks at it */
    FILE *metrics, *samples;
    int64_t samples_bytes;
    toy_sums sums; /* of the whole run, as what follows */
    troupe_lag lags;
    double reward_first;
    int64_t step_90; /* first step with 90 % of the possible gain, 0 none yet */
} policy;

/* "trained", or why not. */
static inline const char *
group_verdict(const group *g)
{
    return g->refused == NULL ? "trained" : g->refused;
}

troupe_status policy_open_records(policy *p, troupe_error *err) TROUPE_MUST_USE;
void policy_close_records(policy *p);
/* samples.jsonl: one line for each member of the batch. */
troupe_status policy_write_samples(policy *p, troupe_error *err) TROUPE_MUST_USE;
/* metrics.jsonl: one line for the step just published; every tenth is printed. */
troupe_status policy_write_metrics(policy *p, troupe_error *err) TROUPE_MUST_USE;
/* checkpoint-STEP: policy.json, ledger.json, and last manifest.json, whose digest is *digest. */
troupe_status policy_save(policy *p, uint64_t *digest, troupe_error *err) TROUPE_MUST_USE;
void policy_print_summary(const policy *p);
/* The method `retired`: groups that ended without a verdict of ours go to samples.jsonl too. */
void policy_retired(troupe_ctx *ctx, troupe_call *call);

#endif
