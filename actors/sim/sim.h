/* Simulated jobs: the production coordinator, stream, weights, ledger and admission, driven by
 * simple sources, stages and sinks over a world that loses, repeats, delays, damages and reorders
 * messages, pauses loops and kills processes. A run is a function of its seed.
 *
 * A job has two phases. In the first anything may go wrong and nothing may be broken (safety);
 * then the world heals and the job must come to its end in bounded virtual time (liveness), with
 * nothing left. */
#ifndef TR_JOB_SIM_H
#define TR_JOB_SIM_H

#include "cli/audit.h"

#include <troupe/ext/base.h>
#include <troupe/ext/coordinator.h>
#include <troupe/ext/sim.h>
#include <troupe/ext/stream.h>
#include <troupe/object.h>

#include <stdio.h>

enum {
    SIM_SOURCES_MAX = 32,
    SIM_WORKERS_MAX = 4,
    SIM_STAGES_MAX = 2,
    SIM_GROUP_MAX = 8,
    SIM_BATCH_MAX = 8,
};

/* What a job is made of, drawn from its seed by a scenario. */
struct sim_job {
    uint64_t seed;
    uint32_t sources;
    uint32_t stages;
    uint32_t workers;
    uint32_t groups_per_step;
    uint32_t group_size;
    uint64_t mean_lag_milli;
    int64_t max_lag;
    troupe_order order;
    troupe_bound bound;
    uint64_t window_milli;
    uint64_t steps;
    bool known_steps; /* the coordinator knows how many there will be */
    uint64_t checkpoint_every;
    uint32_t capacity; /* members a source takes */
    uint64_t work_ns;  /* median time of a member; the tail reaches 64 times that */
    uint64_t train_ns;
    uint64_t score_ns;
    uint64_t patience_ns;   /* after which a role asks anew, under another call id */
    uint32_t work_fails;    /* thousandths */
    uint32_t work_hangs;    /* thousandths of members that an attempt never finishes */
    uint32_t score_fails;   /* thousandths */
    uint32_t verdict_fails; /* thousandths of groups that the policy itself ends */
    bool filter;
    bool kill_sources, kill_workers, kill_sink;
    uint64_t chaos_ns;
    tr_faults faults;
    /* For lives that follow each other; NULL and zero: one life, nothing on the disk. */
    const char
        *run_dir; /* the journal is run_dir/journal, the checkpoint's ledger run_dir/ledger.json */
    bool resume;  /* go on from what is there */
    uint64_t disk_step;   /* of that ledger; 0: none */
    uint64_t kill_all_ns; /* the whole job is killed after this virtual time */
};

typedef void (*sim_draw_fn)(tr_rng *rng, struct sim_job *job);

struct sim_scenario {
    const char *name;
    const char *about;
    sim_draw_fn draw; /* changes what the common draw has chosen */
};

extern const struct sim_scenario sim_scenarios[];
extern const size_t sim_scenario_count;

void sim_job_draw(struct sim_job *job, const struct sim_scenario *scenario, uint64_t seed);

/* --- the run ---------------------------------------------------------------------------------- */

/* What became of a run. */
struct sim_result {
    uint64_t events;
    uint64_t faults;
    uint64_t violations;
    uint64_t hash;
    bool finished;
    uint64_t disk_step;
    troupe_counters counters;
};

/* Everything that the actors of one run share. Only the fakes and the checkers see it: the
 * coordinator sees its hooks and messages. */
struct sim {
    const struct sim_job *job;
    FILE *out; /* violations are told here */
    bool verbose;
    tr_world *world;
    tr_directory *directory;
    troupe_store *store;
    tr_audit *audit;
    tr_buf record;
    tr_coordinator_hooks hooks;
    uint64_t violations;
    uint64_t told;
    /* What the sink has said, over its lives. */
    bool ending; /* the sink has asked for the end */
    bool finished;
    troupe_counters final;
    uint64_t records;
    /* A checkpoint on the job's disk survives the death of the sink. */
    uint64_t disk_step;
    uint64_t newest_version; /* ever published */
};

void sim_violation(struct sim *sim, const char *kind, const char *format, ...) TROUPE_PRINTF(3, 4);
/* A word that depends on the job's seed and these three only. */
uint64_t sim_word(const struct sim *sim, uint64_t a, uint64_t b, uint64_t c);
/* Median `median_ns`, one in two as long or longer than twice that, one in four..., up to 64
 * times. */
uint64_t sim_tail(uint64_t word, uint64_t median_ns);
bool sim_chance(uint64_t word, uint32_t thousandths);

/* The bytes of a published version, as the sink makes and the sources check them. */
enum {
    SIM_WEIGHTS_WORDS = 8
};

void sim_weights(uint64_t version, uint64_t words[SIM_WEIGHTS_WORDS]);
/* Puts a checkpoint's ledger on the job's disk: all of it or the old one. */
void sim_checkpoint(struct sim *sim, uint64_t step, const char *ledger);
/* The number that a sample earns, exactly. */
double sim_reward(uint64_t group, uint32_t member, uint32_t attempt);

extern const troupe_class sim_source_class;
extern const troupe_class sim_stage_class;
extern const troupe_class sim_sink_class;

void sim_run(const struct sim_job *job, FILE *out, bool verbose, struct sim_result *result);

/* `troupe sim`: see --help. */
int troupe_sim_main(int argc, char **argv);

#endif
