/* The inside of the shadow, shared by its files: shadow.c follows the records, shadow_told.c what
 * the fakes saw and what the sink was answered. */
#ifndef TR_JOB_SHADOW_H
#define TR_JOB_SHADOW_H

#include "sim/sim.h"

enum {
    SIM_ROUNDING_NS = 1000, /* of seconds in the coordinator's config */
};

enum shadow_state {
    GROUP_VOID,
    GROUP_OPEN,
    GROUP_TAKEN,
    GROUP_TRAINED,
    GROUP_FILTERED,
    GROUP_STALE,
    GROUP_FAILED,
};

/* What a stage was asked about a member last. */
struct shadow_asked {
    uint32_t times;   /* that it came to a worker */
    uint32_t sends;   /* tries that the stream was seen to wait for */
    uint64_t seen_ns; /* when the newest of them was sent */
    uint32_t worker;  /* of the newest try that came, and the life of its process */
    uint32_t life;
    uint64_t sent_ns; /* 0: none came */
    bool refused;
    bool answered; /* for good */
};

struct shadow_member {
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
    struct shadow_asked asked[SIM_STAGES_MAX];
};

struct shadow_group {
    enum shadow_state state;
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
    struct shadow_member members[SIM_GROUP_MAX];
};

struct shadow_listed {
    uint64_t group;
    uint64_t item;
    uint32_t attempt;
};

struct sim_shadow {
    struct sim *sim;
    struct shadow_group *groups;
    size_t count; /* dispatched in the lineage that stands */
    size_t capacity;
    uint64_t epoch;
    uint64_t step;  /* last committed */
    uint64_t state; /* of the policy after it, and after each step before */
    uint64_t *states;
    size_t state_capacity;
    uint64_t mirrored_step;           /* of this epoch; UINT64_MAX: none */
    uint64_t published_step;          /* of this epoch; UINT64_MAX: none */
    uint64_t reopened, reopened_told; /* records, and those that a sink has been told of */
    uint64_t taken_step;              /* whose batch is out; 0: none */
    uint64_t rolled_ns;
    /* Versions count steps from here; what each source has applied, if it is of this epoch. */
    uint64_t base_version;
    uint64_t base_step;
    uint64_t applied[SIM_SOURCES_MAX];
    uint64_t staged_count;
    troupe_counters counters;
    uint64_t taken_lags[TROUPE_LAG_BUCKETS];
    /* As they stood at the last commit, and at the last snapshot. */
    troupe_counters commit_counters;
    uint64_t commit_lags[TROUPE_LAG_BUCKETS];
    uint64_t snapshot_step;
    uint64_t snapshot_groups;
    troupe_counters snapshot_counters;
    struct shadow_listed *snapshot;
    size_t snapshot_count;
};

static inline uint64_t
sim_shadow_now_ns(const struct sim_shadow *s)
{
    return tr_world_now_ns(s->sim->world);
}

/* So long after it came back a process may be taken for the one before. */
static inline uint64_t
sim_news_ns(const struct sim_job *job)
{
    return sim_is_reliable(job) ? job->faults.notice_ns + 100 * UINT64_C(1000000)
                                : 5000 * UINT64_C(1000000);
}

static inline struct shadow_group *
sim_shadow_group(struct sim_shadow *s, uint64_t group)
{
    return group < s->count ? &s->groups[group] : NULL;
}

static inline struct shadow_member *
sim_shadow_member(struct sim_shadow *s, uint64_t group, uint32_t member)
{
    struct shadow_group *g = sim_shadow_group(s, group);
    return g != NULL && member < s->sim->job->group_size ? &g->members[member] : NULL;
}

#endif
