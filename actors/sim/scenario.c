/* What jobs are simulated: a common draw, then what each scenario makes of it. */
#include "sim/sim.h"

#define MS UINT64_C(1000000)

static uint64_t
upto(tr_rng *rng, uint64_t low, uint64_t high)
{
    return low + tr_rng_below(rng, high - low + 1);
}

static bool
one_in(tr_rng *rng, uint64_t n)
{
    return tr_rng_below(rng, n) == 0;
}

static void
draw_policy(tr_rng *rng, struct sim_job *job)
{
    job->order = (troupe_order)tr_rng_below(rng, 4);
    job->bound = (troupe_bound)tr_rng_below(rng, 2);
    job->window_milli = upto(rng, 1, 1000);
    job->mean_lag_milli = 500 * upto(rng, 0, 6);
    job->max_lag = one_in(rng, 4) ? TROUPE_MAX_LAG_NONE
                                  : (int64_t)((job->mean_lag_milli + 999) / 1000 + upto(rng, 0, 2));
    if (job->order == TROUPE_READY_FIRST && job->bound == TROUPE_BOUND_GROUP) {
        job->max_lag = TROUPE_MAX_LAG_NONE;
    }
}

/* Who asks for ledgers only when a checkpoint is due has none when one could not be written. */
static void
draw_habits(tr_rng *rng, struct sim_job *job)
{
    job->late_durable = one_in(rng, 2);
    job->asks_always = one_in(rng, 2);
    job->disk_fails = job->asks_always && one_in(rng, 2) ? (uint32_t)upto(rng, 0, 500) : 0;
    job->retained_steps =
        (uint32_t)(job->checkpoint_every + (one_in(rng, 2) ? 0 : upto(rng, 0, 4)));
    job->lies = one_in(rng, 3) ? (uint32_t)upto(rng, 0, 200) : 0;
    job->score_lies = one_in(rng, 3) ? (uint32_t)upto(rng, 0, 100) : 0;
    job->stop_ns = one_in(rng, 6) ? upto(rng, 1, 15000) * MS : 0;
}

/* Drawn by themselves: whether there are mirrors changes nothing else of a job. */
static void
draw_mirrors(struct sim_job *job)
{
    uint64_t words[2] = {job->seed, 0x317};
    tr_rng rng = {.key = tr_mix(words, TR_COUNT(words))};
    job->mirrors = one_in(&rng, 3) ? 0 : one_in(&rng, 2) ? 1000 : (uint32_t)upto(&rng, 0, 1000);
    job->mirrors_torn = one_in(&rng, 4) ? (uint32_t)upto(&rng, 0, 500) : 0;
}

void
sim_job_draw(struct sim_job *job, const struct sim_scenario *scenario, uint64_t seed)
{
    uint64_t words[2] = {seed, 0x10b};
    tr_rng rng = {.key = tr_mix(words, TR_COUNT(words))};
    *job = (struct sim_job){.seed = seed,
        .sources = (uint32_t)upto(&rng, 1, 4),
        .stages = (uint32_t)upto(&rng, 0, SIM_STAGES_MAX),
        .workers = (uint32_t)upto(&rng, 1, 2),
        .groups_per_step = (uint32_t)upto(&rng, 1, 4),
        .group_size = (uint32_t)upto(&rng, 1, 4),
        .steps = upto(&rng, 8, 40),
        .known_steps = one_in(&rng, 2),
        .checkpoint_every = upto(&rng, 1, 4),
        .capacity = (uint32_t)upto(&rng, 2, 24),
        .work_ns = upto(&rng, 5, 150) * MS,
        .train_ns = upto(&rng, 1, 200) * MS,
        .score_ns = upto(&rng, 1, 20) * MS,
        .patience_ns = one_in(&rng, 2) ? 3600 * 1000 * MS : upto(&rng, 200, 3000) * MS,
        .lease_ns = upto(&rng, 400, 5000) * MS,
        .stage_ns = upto(&rng, 200, 2000) * MS,
        .worker_capacity = (uint32_t)upto(&rng, 1, 6),
        .lease_attempts = (uint32_t)upto(&rng, 2, 12),
        .stage_tries = (uint32_t)upto(&rng, 2, 10),
        .kill_sources = true,
        .kill_workers = true,
        .kill_sink = true,
        .chaos_ns = upto(&rng, 2000, 20000) * MS,
        .faults = tr_faults_swarm(seed)};
    job->work_fails = one_in(&rng, 2) ? (uint32_t)upto(&rng, 0, 60) : 0;
    job->work_hangs = one_in(&rng, 3) ? (uint32_t)upto(&rng, 0, 30) : 0;
    job->score_fails = one_in(&rng, 2) ? (uint32_t)upto(&rng, 0, 100) : 0;
    job->verdict_fails = one_in(&rng, 2) ? (uint32_t)upto(&rng, 0, 100) : 0;
    draw_habits(&rng, job);
    draw_policy(&rng, job);
    draw_mirrors(job);
    scenario->draw(&rng, job);
    job->filter = job->filter && job->stages > 0 && job->group_size > 1;
}

/* --- scenarios -------------------------------------------------------------------------------- */

static void
swarm(tr_rng *rng, struct sim_job *job)
{
    job->filter = one_in(rng, 4);
}

static void
quiet(tr_rng *rng, struct sim_job *job)
{
    (void)rng;
    job->faults = (tr_faults){.delay_ns = MS};
    job->work_fails = job->work_hangs = job->score_fails = job->score_lies = 0;
    job->verdict_fails = job->disk_fails = job->lies = 0;
    job->lease_ns = 60000 * MS; /* longer than the longest member takes */
    job->stage_ns = 30000 * MS;
    job->flawless = true;
}

static void
sync_mode(tr_rng *rng, struct sim_job *job)
{
    (void)rng;
    job->mean_lag_milli = 0;
    job->max_lag = 0;
    job->order = TROUPE_IN_ORDER;
    job->bound = TROUPE_BOUND_GROUP;
}

static void
lossy(tr_rng *rng, struct sim_job *job)
{
    tr_faults f = {.delay_ns = 20 * MS, .notice_ns = MS};
    f.loss = (uint32_t)upto(rng, 10, 300);
    f.repeat = (uint32_t)upto(rng, 10, 300);
    f.damage = (uint32_t)upto(rng, 0, 50);
    f.reorder = (uint32_t)upto(rng, 10, 700);
    f.slow = (uint32_t)upto(rng, 0, 50);
    f.slow_ns = 2000 * MS;
    job->faults = f;
}

static void
kills_only(tr_rng *rng, struct sim_job *job)
{
    job->faults = (tr_faults){.delay_ns = 2 * MS,
        .kill_every_ns = upto(rng, 150, 1500) * MS,
        .restart_ns = upto(rng, 1, 1500) * MS,
        .notice_ns = upto(rng, 1, 300) * MS};
}

static void
kill_sources(tr_rng *rng, struct sim_job *job)
{
    kills_only(rng, job);
    job->kill_workers = job->kill_sink = false;
}

static void
kill_stages(tr_rng *rng, struct sim_job *job)
{
    kills_only(rng, job);
    job->kill_sources = job->kill_sink = false;
    job->stages = SIM_STAGES_MAX;
}

static void
kill_sink(tr_rng *rng, struct sim_job *job)
{
    kills_only(rng, job);
    job->kill_workers = job->kill_sources = false;
}

/* No policy ever loses more than the step under way. */
static void
mirror(tr_rng *rng, struct sim_job *job)
{
    kill_sink(rng, job);
    job->mirrors = 1000;
    job->mirrors_torn = 0;
    job->faults.kill_every_ns = upto(rng, 20, 600) * MS;
    job->faults.restart_ns = upto(rng, 1, 300) * MS;
}

/* Who dies is back before the others know, and its last messages arrive after that. */
static void
phoenix(tr_rng *rng, struct sim_job *job)
{
    job->faults = (tr_faults){.delay_ns = upto(rng, 1, 60) * MS,
        .reorder = one_in(rng, 2) ? (uint32_t)upto(rng, 100, 900) : 0,
        .kill_every_ns = upto(rng, 20, 300) * MS,
        .restart_ns = upto(rng, 1, 20) * MS,
        .notice_ns = upto(rng, 1, 500) * MS};
    job->kill_sources = job->kill_workers = one_in(rng, 2);
    job->chaos_ns = upto(rng, 2000, 6000) * MS;
    job->score_fails = (uint32_t)upto(rng, 0, 400);
    job->verdict_fails = (uint32_t)upto(rng, 0, 500);
}

static void
partitions(tr_rng *rng, struct sim_job *job)
{
    job->faults = (tr_faults){.delay_ns = 5 * MS,
        .notice_ns = MS,
        .partition_every_ns = upto(rng, 100, 1000) * MS,
        .partition_ns = upto(rng, 100, 4000) * MS};
}

static void
pauses(tr_rng *rng, struct sim_job *job)
{
    job->faults = (tr_faults){.delay_ns = 5 * MS,
        .notice_ns = MS,
        .pause_every_ns = upto(rng, 50, 500) * MS,
        .pause_ns = upto(rng, 50, 3000) * MS};
}

static void
failing(tr_rng *rng, struct sim_job *job)
{
    job->faults = (tr_faults){.delay_ns = 5 * MS};
    job->stages = SIM_STAGES_MAX;
    job->work_fails = (uint32_t)upto(rng, 50, 300);
    job->score_fails = (uint32_t)upto(rng, 50, 400);
    job->score_lies = (uint32_t)upto(rng, 0, 200);
    job->lies = (uint32_t)upto(rng, 0, 500);
    job->verdict_fails = (uint32_t)upto(rng, 50, 500);
    job->filter = one_in(rng, 2);
}

static void
resumed(tr_rng *rng, struct sim_job *job)
{
    if (one_in(rng, 2)) {
        swarm(rng, job);
    } else {
        phoenix(rng, job);
    }
    job->lives = upto(rng, 2, 5);
    job->stop_ns = 0; /* a life of its own is not long enough for it */
}

/* The node dies and comes back, and its coordinator finds by itself where the run stood. */
static void
lives(tr_rng *rng, struct sim_job *job)
{
    resumed(rng, job);
    job->by_itself = true;
    job->lives = upto(rng, 2, 8);
}

const struct sim_scenario sim_scenarios[] = {
    {"swarm", "a mixture of everything, drawn anew for each seed", swarm},
    {"quiet", "no faults: the job as it should be", quiet},
    {"sync", "mean_lag 0, max_lag 0, under the mixture", sync_mode},
    {"lossy", "messages lost, repeated, damaged, late and out of order", lossy},
    {"kill-rollouts", "sources die and come back", kill_sources},
    {"kill-stages", "workers of both stages die and come back", kill_stages},
    {"kill-policy", "the policy dies and goes back to its newest checkpoint", kill_sink},
    {"mirror", "the policy dies at any moment, and its state never with it", mirror},
    {"phoenix", "processes die and are back before the news of it", phoenix},
    {"partition", "pairs of loops cannot reach each other for a while", partitions},
    {"slow", "loops stand still for a while", pauses},
    {"resume", "the whole job is killed and resumed from its disk, several times", resumed},
    {"lives", "the same, and the coordinator finds by itself what to go on from", lives},
    {"failing", "samples, rewards and groups fail by themselves", failing},
};
const size_t sim_scenario_count = TR_COUNT(sim_scenarios);
