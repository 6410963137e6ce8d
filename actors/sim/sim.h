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
    SIM_ROWS = 97, /* of the prompt set */
};

#define SIM_VERDICT_REASON "by the policy"

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
    uint64_t patience_ns; /* after which a role asks anew, under another call id */
    /* Limits of the stream. */
    uint64_t lease_ns;
    uint64_t stage_ns;
    uint32_t lease_attempts;
    uint32_t stage_tries;
    uint32_t worker_capacity;
    uint32_t retained_steps;
    /* What goes wrong in the roles, in thousandths. */
    uint32_t work_fails;
    uint32_t work_hangs; /* members that an attempt never finishes */
    uint32_t score_fails;
    uint32_t score_lies;    /* answers that are no number at all */
    uint32_t verdict_fails; /* groups that the policy itself ends */
    uint32_t disk_fails;    /* checkpoints that cannot be written */
    uint32_t lies;          /* a message that cannot be true is sent before the true one */
    /* Habits of the policy. */
    bool late_durable;     /* it saves after it has published, as the real one does, or before */
    bool asks_always;      /* for a ledger at each commit, or only when a checkpoint is due */
    uint64_t stop_ns;      /* it is asked to end after this virtual time; 0: never */
    uint32_t mirrors;      /* commits that its state is handed over with, in thousandths */
    uint32_t mirrors_torn; /* mirrors that a new policy cannot use */
    bool filter;
    bool flawless; /* nothing at all goes wrong */
    bool kill_sources, kill_workers, kill_sink;
    uint64_t chaos_ns;
    tr_faults faults;
    /* For lives that follow each other; NULL and zero: one life, nothing on the disk. */
    uint64_t lives;            /* how many there may be */
    uint64_t life;             /* which one this is */
    const char *run_dir;       /* has journal and ledger-N.json, the checkpoints' ledgers */
    bool resume;               /* go on from what is there */
    bool by_itself;            /* the coordinator is told which life it is, and finds the rest */
    uint64_t disk_step;        /* of the newest ledger; 0: none */
    uint64_t durable_step;     /* the newest that the coordinator has acknowledged */
    uint64_t kill_all_ns;      /* the whole job is killed after this virtual time */
    struct sim_shadow *shadow; /* of all lives; NULL: the life makes its own */
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
    uint64_t lives;
    uint64_t disk_step;
    uint64_t durable_step;
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
    const troupe_stream *stream;          /* NULL before it is made */
    bool overdue;                         /* something was, and was told */
    uint64_t dead_ns[TR_WORLD_LOOPS_MAX]; /* since when a loop is dead; 0: it lives */
    struct sim_shadow *shadow;
    uint64_t violations;
    uint64_t told;
    uint64_t begin_ns;
    uint64_t born_ns[SIM_SOURCES_MAX]; /* when each source's life began, and each worker's */
    uint64_t worker_born_ns[SIM_STAGES_MAX][SIM_WORKERS_MAX];
    /* What the sink has said, over its lives. */
    bool ending; /* the sink has asked for the end */
    bool finished;
    troupe_counters final;
    uint64_t records;
    /* A checkpoint on the job's disk survives the death of the sink. */
    uint64_t disk_step;
    char *durable_ledger;    /* of the step below; NULL: step 0 */
    uint64_t durable_step;   /* the newest that the coordinator has acknowledged */
    bool refusing;           /* a sink has said that it cannot use the mirror */
    uint64_t committed_step; /* the newest of the lineage that stands */
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
/* Puts a checkpoint's ledger on the job's disk: all of it or the old one. NULL: there is none any
 * more. */
void sim_checkpoint(struct sim *sim, uint64_t step, const char *ledger);
/* The number that a sample earns, exactly. One group in four has the same for all members, and
 * one in four for all but the last. */
double sim_reward(const struct sim *sim, uint64_t group, uint32_t member, uint32_t attempt);
/* A policy's state in one word: what it was before, and the groups that a step has trained on. */
uint64_t sim_trained(
    uint64_t state, uint64_t step, uint64_t group, const uint64_t *digests, uint32_t count);
/* Makes a mirror of it; false when there is no room. And reads one: false when it is none. */
bool sim_mirror_make(
    troupe_store *store, uint64_t step, uint64_t state, troupe_object *object, uint64_t *digest);
bool sim_mirror_read(
    troupe_store *store, troupe_object object, uint64_t digest, uint64_t step, uint64_t *state);
/* Where a role's replica lives. */
int sim_source_loop(uint32_t source);
int sim_worker_loop(const struct sim_job *job, uint32_t stage, uint32_t worker);
/* No message is lost, late or out of turn, and nobody stands still; processes may die. */
bool sim_is_reliable(const struct sim_job *job);

/* --- a granted batch (batch.c) ---------------------------------------------------------------- */

struct sim_granted {
    uint64_t group;
    uint32_t attempts[SIM_GROUP_MAX];
    uint64_t digests[SIM_GROUP_MAX];
    uint64_t objects[SIM_GROUP_MAX * (1 + SIM_STAGES_MAX)]; /* words */
    uint32_t object_count;
    const char *verdict;
};

/* Reads the answer of a take by the policy that holds `version`, and checks all of it by its own
 * means. False when it does not parse. */
bool sim_batch_read(struct sim *sim, troupe_answer *answer, uint64_t version,
    struct sim_granted batch[SIM_BATCH_MAX], uint32_t *count);

/* --- the shadow (shadow.c) -------------------------------------------------------------------- */

struct sim_shadow *sim_shadow_new(void);
void sim_shadow_free(struct sim_shadow *shadow); /* NULL is allowed */
/* The life that it follows from now on. */
void sim_shadow_attach(struct sim_shadow *shadow, struct sim *sim);
void sim_shadow_record(struct sim_shadow *shadow, const troupe_record *record);
/* A source has reported that it cannot make this member. */
void sim_shadow_reported(
    struct sim_shadow *shadow, uint64_t epoch, uint64_t group, uint32_t member, uint32_t attempt);
/* When the lease that a source still works on was over at the latest; UINT64_MAX: it may be
 * current. */
uint64_t sim_shadow_closed_ns(
    struct sim_shadow *shadow, uint64_t epoch, uint64_t group, uint32_t member, uint32_t attempt);

/* One sample at one worker of a stage. */
struct sim_asked {
    uint64_t epoch;
    uint64_t group;
    uint32_t member;
    uint32_t attempt;
    uint32_t stage;
    uint32_t worker;
};

/* The stream waits for this, between two events. */
void sim_shadow_waits(struct sim_shadow *shadow, const troupe_stream_wait *wait);
void sim_shadow_asked(struct sim_shadow *shadow, const struct sim_asked *what);
/* The worker has answered with what is no answer. */
void sim_shadow_refused(struct sim_shadow *shadow, const struct sim_asked *what);
/* The sink was told of a group that ended without it. */
void sim_shadow_told(struct sim_shadow *shadow, uint64_t epoch, uint64_t group);

/* What a policy's state must be after a step of the lineage that stands; 0 after step 0. */
uint64_t sim_shadow_state(const struct sim_shadow *shadow, uint64_t step);

/* What a sink was answered when it opened the stream. */
struct sim_opened {
    uint64_t epoch;
    uint64_t step;
    uint64_t next_version;
    bool published;
    bool mirrored;
    bool voided;
    troupe_counters counters; /* of the last commit */
};

void sim_shadow_opened(struct sim_shadow *shadow, const struct sim_opened *what);
/* A step was granted these groups. */
void sim_shadow_granted(
    struct sim_shadow *shadow, const struct sim_granted *batch, uint32_t count, uint64_t step);

/* A commit as the sink meant it, and its answer as the sink heard it. */
struct sim_committed {
    uint64_t step;
    const struct sim_granted *batch;
    uint32_t batch_count;
    troupe_counters counters;
    uint64_t lags[TROUPE_LAG_BUCKETS];
    const char *ledger; /* NULL: none was in it */
};

void sim_shadow_commit(struct sim_shadow *shadow, const struct sim_committed *what);
/* The answer to the end; `opener`: the same sink has opened the epoch that stands. */
void sim_shadow_finish(struct sim_shadow *shadow, bool opener, const troupe_counters *counters);

extern const troupe_class sim_source_class;
extern const troupe_class sim_stage_class;
extern const troupe_class sim_sink_class;

/* One life. */
void sim_run(const struct sim_job *job, FILE *out, bool verbose, struct sim_result *result);
/* All of them; the violations are those of the records on the disk as well. */
void sim_run_lives(const struct sim_job *job, FILE *out, bool verbose, struct sim_result *result);

/* `troupe sim`: see --help. */
int troupe_sim_main(int argc, char **argv);

#endif
