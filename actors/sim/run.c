/* One simulated job, from its options to its verdict. */
#include "sim/sim.h"

#include <troupe/ext/protocol.h>
#include <troupe/graph.h>

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOLD_MAX = 20, /* violations printed of one run */
    STORE_BYTES = 64 << 20,
    WASTE_MAX = 1000000,  /* the brake on waste is not what is tried here */
    EVENTS_MAX = 1000000, /* of one job; a hundred times what one takes */
    SLACK_NS = 20 * 1000 * 1000,
};

#define SECOND UINT64_C(1000000000)

/* --- what the actors share -------------------------------------------------------------------- */

void
sim_violation(struct sim *sim, const char *kind, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    sim->violations++;
    if (sim->out != NULL && sim->told++ < TOLD_MAX) {
        (void)fprintf(sim->out, "seed %" PRIu64 ": %.6f s: violation %s: %s\n", sim->job->seed,
            (double)tr_world_now_ns(sim->world) / 1e9, kind, text);
    }
}

uint64_t
sim_word(const struct sim *sim, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t words[4] = {sim->job->seed, a, b, c};
    return tr_mix(words, TR_COUNT(words));
}

uint64_t
sim_tail(uint64_t word, uint64_t median_ns)
{
    uint64_t longer = 0;
    while (longer < 6 && (word >> longer & 1) != 0) {
        longer++;
    }
    uint64_t scale = median_ns << longer;
    return scale / 2 + (word >> 16) % (scale / 2 + 1);
}

bool
sim_chance(uint64_t word, uint32_t thousandths)
{
    return (word >> 32) % 1000 < thousandths;
}

void
sim_weights(uint64_t version, uint64_t words[SIM_WEIGHTS_WORDS])
{
    for (uint64_t i = 0; i < SIM_WEIGHTS_WORDS; i++) {
        uint64_t mixed[2] = {version, i};
        words[i] = tr_mix(mixed, TR_COUNT(mixed));
    }
}

double
sim_reward(const struct sim *sim, uint64_t group, uint32_t member, uint32_t attempt)
{
    uint64_t kind = sim_word(sim, group, 0, 8000) % 4;
    bool last = member + 1 == sim->job->group_size;
    if (kind == 0 || (kind == 1 && !last)) {
        return (double)(group % 1000) / 8;
    }
    return (double)((1 + group * 31 + member * 7 + attempt) % 1000) / 8 + 1000;
}

bool
sim_is_reliable(const struct sim_job *job)
{
    const tr_faults *f = &job->faults;
    return f->loss == 0 && f->damage == 0 && f->reorder == 0 && f->slow == 0 &&
           f->partition_every_ns == 0 && f->pause_every_ns == 0;
}

static void
path_of(const struct sim *sim, const char *name, tr_buf *path)
{
    tr_buf_printf(path, "%s/%s", sim->job->run_dir, name);
}

static void
checkpoint_path(const struct sim *sim, uint64_t step, tr_buf *path)
{
    tr_buf_printf(path, "%s/ledger-%" PRIu64 ".json", sim->job->run_dir, step);
}

void
sim_checkpoint(struct sim *sim, uint64_t step, const char *ledger)
{
    sim->disk_step = step;
    if (sim->job->run_dir == NULL) {
        return;
    }
    tr_buf name = {0};
    tr_buf temporary = {0};
    checkpoint_path(sim, step, &name);
    path_of(sim, "ledger.json.tmp", &temporary);
    FILE *file = ledger != NULL ? fopen(temporary.data, "w") : NULL;
    bool ok = file != NULL && fputs(ledger, file) >= 0;
    ok = file != NULL && fclose(file) == 0 && ok;
    if (ledger != NULL && (!ok || rename(temporary.data, name.data) != 0)) {
        sim_violation(sim, "disk", "cannot write %s", name.data);
    }
    tr_buf_fini(&name);
    tr_buf_fini(&temporary);
}

/* The ledger of a checkpoint that is on the disk. */
static void
read_checkpoint(struct sim *sim, uint64_t step)
{
    tr_buf name = {0};
    tr_buf text = {0};
    char piece[4096];
    size_t n = 0;
    tr_free(sim->durable_ledger);
    sim->durable_ledger = NULL;
    if (step == 0) {
        return;
    }
    checkpoint_path(sim, step, &name);
    FILE *file = fopen(name.data, "r");
    while (file != NULL && (n = fread(piece, 1, sizeof piece, file)) > 0) {
        tr_buf_append(&text, piece, n);
    }
    if (file == NULL || fclose(file) != 0 || text.size == 0) {
        sim_violation(sim, "disk", "cannot read %s", name.data);
    }
    tr_buf_append(&text, "", 1);
    sim->durable_ledger = tr_strdup(text.data);
    tr_buf_fini(&name);
    tr_buf_fini(&text);
}

/* --- records go to the auditor ---------------------------------------------------------------- */

static void
on_record(void *self, const troupe_record *record, uint64_t realtime_ns)
{
    struct sim *sim = self;
    sim->records++;
    sim_shadow_record(sim->shadow, record);
    if (record->kind == TROUPE_RECORD_ROLLED_BACK && record->step < sim->disk_step &&
        record->step == sim->durable_step) {
        /* The stream never heard of the newest checkpoint. It is of a lineage that is over now,
         * and a run must not be resumed from it. */
        if (sim->job->run_dir != NULL) {
            read_checkpoint(sim, record->step);
        }
        sim->disk_step = record->step;
    }
    if (sim->job->run_dir != NULL) {
        return; /* there it is the file that is audited, over all lives */
    }
    tr_buf_clear(&sim->record);
    troupe_record_encode(record, realtime_ns, &sim->record);
    tr_audit_record(sim->audit, sim->record.data, sim->record.size);
}

static void
on_made(void *self, struct troupe_stream *stream)
{
    struct sim *sim = self;
    sim->stream = stream;
}

static void
on_audit(void *self, const char *kind, int64_t group, int64_t step, const char *text)
{
    sim_violation(self, kind, "group %" PRId64 ", step %" PRId64 ": %s", group, step, text);
}

/* --- the world -------------------------------------------------------------------------------- */

static const char *const stage_names[SIM_STAGES_MAX] = {"reward", "reference"};

static char *
coordinator_config(const struct sim_job *job)
{
    json_t *stages = json_array();
    for (uint32_t i = 0; i < job->stages; i++) {
        json_array_append_new(stages, json_string(stage_names[i]));
    }
    json_t *inner =
        json_pack("{s:n, s:I, s:I, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I}",
            "journal", "seed", (json_int_t)(job->seed & INT64_MAX), "rows", (json_int_t)SIM_ROWS,
            "data_digest", "77", "groups_per_step", (json_int_t)job->groups_per_step, "group_size",
            (json_int_t)job->group_size, "lease_s", (double)job->lease_ns / 1e9, "stage_s",
            (double)job->stage_ns / 1e9, "update_s", 0.7, "sink_s", 600.0, "lease_attempts",
            (json_int_t)job->lease_attempts, "stage_tries", (json_int_t)job->stage_tries,
            "retained_steps", (json_int_t)job->retained_steps, "worker_capacity",
            (json_int_t)job->worker_capacity, "waste_max", (json_int_t)WASTE_MAX);
    json_object_set_new(inner, "filter", json_string(job->filter ? "zero-variance" : "none"));
    json_object_set_new(
        inner, "steps", json_integer(job->known_steps ? (json_int_t)job->steps : 0));
    if (job->run_dir != NULL) {
        tr_buf path = {0};
        tr_buf_printf(&path, "%s/journal", job->run_dir);
        json_object_set_new(inner, "journal", json_string(path.data));
        tr_buf_clear(&path);
        tr_buf_printf(&path, "%s/ledger-%" PRIu64 ".json", job->run_dir, job->disk_step);
        json_object_set_new(inner, "resume", json_boolean(job->resume));
        json_object_set_new(inner, "ledger",
            job->resume && job->disk_step > 0 ? json_string(path.data) : json_null());
        tr_buf_clear(&path);
        tr_buf_printf(&path, "%s/ledger-{step}.json", job->run_dir);
        json_object_set_new(inner, "ledgers", json_string(path.data));
        json_object_set_new(
            inner, "life", json_integer(job->by_itself ? (json_int_t)job->life + 1 : 1));
        tr_buf_fini(&path);
    }
    json_t *root = json_pack("{s:s, s:s, s:o, s:s, s:f, s:s, s:f, s:s, s:[{s:s, s:s, s:s}], s:o}",
        "stream", "samples", "source", "rollout", "stages", stages, "sink", "policy", "mean_lag",
        (double)job->mean_lag_milli / 1000, "order", troupe_order_name(job->order), "window",
        (double)job->window_milli / 1000, "bound", troupe_bound_name(job->bound), "weights", "name",
        "policy", "from", "policy", "to", "rollout", "config", inner);
    json_object_set_new(
        root, "max_lag", job->max_lag < 0 ? json_null() : json_integer(job->max_lag));
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    TR_ASSERT(text != NULL);
    return text;
}

/* Loop 0 has the coordinator, loop 1 the sink, then come sources, then workers. */
struct place {
    const troupe_class *type;
    const char *role;
    int replica;
};

int
sim_source_loop(uint32_t source)
{
    return 2 + (int)source;
}

int
sim_worker_loop(const struct sim_job *job, uint32_t stage, uint32_t worker)
{
    return sim_source_loop(job->sources + stage * job->workers + worker);
}

static struct place
place_of(const struct sim_job *job, int loop)
{
    if (loop == 0) {
        return (struct place){troupe_coordinator()->type, "samples", 0};
    }
    if (loop == 1) {
        return (struct place){&sim_sink_class, "policy", 0};
    }
    uint32_t index = (uint32_t)loop - 2;
    if (index < job->sources) {
        return (struct place){&sim_source_class, "rollout", (int)index};
    }
    index -= job->sources;
    return (struct place){
        &sim_stage_class, stage_names[index / job->workers], (int)(index % job->workers)};
}

static void
populate(void *self, tr_host *host, int loop, uint32_t epoch)
{
    struct sim *sim = self;
    struct place place = place_of(sim->job, loop);
    char *config = loop == 0 ? coordinator_config(sim->job) : NULL;
    (void)epoch;
    tr_spawn spawn = {.type = place.type,
        .role = (uint16_t)tr_directory_find(sim->directory, place.role),
        .replica = (uint16_t)place.replica,
        .config = config,
        .context = loop == 0 ? (void *)&sim->hooks : sim};
    troupe_error err = {0};
    if (tr_host_spawn(host, &spawn, NULL, &err) != TROUPE_OK) {
        sim_violation(sim, "spawn", "%s", err.text);
    }
    free(config); /* from jansson */
}

static void
on_log(void *self, const char *line)
{
    struct sim *sim = self;
    if (sim->verbose && sim->out != NULL) {
        (void)fprintf(sim->out, "%.6f s: %s\n", (double)tr_world_now_ns(sim->world) / 1e9, line);
    }
}

static void
on_ended(void *self, uint16_t role, uint16_t replica, troupe_ref ref, troupe_status status,
    const char *text)
{
    (void)role;
    (void)replica;
    (void)ref;
    (void)status;
    (void)text;
    (void)self; /* the end of the world, or a kill: both are meant */
}

static bool
is_killable(const struct sim_job *job, int loop)
{
    const troupe_class *type = place_of(job, loop).type;
    return (type == &sim_sink_class && job->kill_sink) ||
           (type == &sim_source_class && job->kill_sources) ||
           (type == &sim_stage_class && job->kill_workers);
}

static void
on_trace(void *self, const char *line)
{
    struct sim *sim = self;
    (void)fprintf(sim->out, "%s\n", line);
}

static void
make_world(struct sim *sim)
{
    const struct sim_job *job = sim->job;
    sim->directory = tr_directory_new();
    (void)tr_directory_add(sim->directory, "samples", 1);
    (void)tr_directory_add(sim->directory, "policy", 1);
    (void)tr_directory_add(sim->directory, "rollout", (int)job->sources);
    for (uint32_t i = 0; i < job->stages; i++) {
        (void)tr_directory_add(sim->directory, stage_names[i], (int)job->workers);
    }
    sim->store = troupe_store_new(STORE_BYTES);
    sim->audit = tr_audit_new(on_audit, sim);
    sim->hooks = (tr_coordinator_hooks){.record = on_record, .made = on_made, .self = sim};
    tr_world_options options = {.seed = job->seed + (job->life << 40),
        .faults = job->faults,
        .directory = sim->directory,
        .store = sim->store,
        .trace = sim->verbose ? on_trace : NULL,
        .trace_self = sim};
    sim->world = tr_world_new(&options);
    int loops = 2 + (int)(job->sources + job->stages * job->workers);
    for (int i = 0; i < loops; i++) {
        tr_world_loop loop = {.populate = populate,
            .events = {.ended = on_ended, .log = on_log, .self = sim},
            .self = sim,
            .killable = is_killable(job, i)};
        (void)tr_world_add(sim->world, &loop);
    }
}

/* --- the two phases --------------------------------------------------------------------------- */

/* One that never ends without time passing would otherwise not end here either. */
static bool
is_livelocked(const struct sim *sim)
{
    return tr_world_events(sim->world) > EVENTS_MAX;
}

static void
check_owner(struct sim *sim, const troupe_stream_wait *wait)
{
    uint64_t now = tr_world_now_ns(sim->world);
    int loop = wait->what[0] == 'l' ? sim_source_loop(wait->peer)
                                    : sim_worker_loop(sim->job, wait->stage, wait->peer);
    uint64_t dead = sim->dead_ns[loop];
    if (dead != 0 && wait->since_ns < dead && sim_is_reliable(sim->job) &&
        now - dead > sim->job->faults.notice_ns + SLACK_NS && !sim->overdue) {
        sim->overdue = true;
        sim_violation(sim, "waits-for-the-dead",
            "the %s of group %" PRIu64 " is waited for %.3f s after its owner died", wait->what,
            wait->group, (double)(now - dead) / 1e9);
    }
}

static void
check_wait(void *self, const troupe_stream_wait *wait)
{
    struct sim *sim = self;
    uint64_t now = tr_world_now_ns(sim->world);
    sim_shadow_waits(sim->shadow, wait);
    if (sim->job->faults.pause_every_ns != 0 || wait->deadline_ns == UINT64_MAX || sim->overdue) {
        return;
    }
    if (wait->deadline_ns < now && now - wait->deadline_ns > SLACK_NS) {
        sim->overdue = true;
        sim_violation(sim, "overdue",
            "the %s of group %" PRIu64 " was to end %.3f s ago and nothing has been done",
            wait->what, wait->group, (double)(now - wait->deadline_ns) / 1e9);
    }
    check_owner(sim, wait);
}

/* The loops that are dead, since when as far as was seen. */
static void
look_around(struct sim *sim)
{
    for (int i = 0; i < tr_world_loops(sim->world); i++) {
        bool lives = tr_world_host(sim->world, i) != NULL;
        if (lives || sim->dead_ns[i] == 0) {
            sim->dead_ns[i] = lives ? 0 : tr_world_now_ns(sim->world);
        }
    }
}

/* No wait outlives its deadline, nor the news that its owner is dead, while nobody stands still. */
static bool
is_finished(void *self)
{
    struct sim *sim = self;
    if (sim->stream != NULL) {
        look_around(sim);
        troupe_stream_waits(sim->stream, check_wait, sim);
    }
    return sim->finished || is_livelocked(sim);
}

/* Every object has been let go; what is under way brings more of it about. */
static bool
is_empty(void *self)
{
    const struct sim *sim = self;
    troupe_store_stats stats;
    troupe_store_get_stats(sim->store, &stats);
    return stats.objects == 0 || is_livelocked(sim);
}

static void
check_end(struct sim *sim)
{
    const struct sim_job *job = sim->job;
    const troupe_counters *c = &sim->final;
    if (!troupe_counters_hold(c) || c->queued + c->in_flight != 0) {
        sim_violation(sim, "ledger",
            "the job ended with %" PRIu64 " queued and %" PRIu64 " in flight", c->queued,
            c->in_flight);
    }
    uint64_t steps = sim->committed_step;
    if (job->stop_ns == 0 && steps != job->steps) {
        sim_violation(
            sim, "ledger", "the job ended after %" PRIu64 " steps of %" PRIu64, steps, job->steps);
    }
    if (c->trained > steps * job->groups_per_step ||
        (job->verdict_fails == 0 && c->trained != steps * job->groups_per_step)) {
        sim_violation(sim, "ledger", "%" PRIu64 " groups were trained in %" PRIu64 " steps of %u",
            c->trained, steps, job->groups_per_step);
    }
    if (job->run_dir == NULL) {
        tr_audit_end(sim->audit);
    }
}

static void
run_phases(struct sim *sim)
{
    uint64_t begin = tr_world_now_ns(sim->world);
    sim->begin_ns = begin;
    tr_world_start(sim->world);
    if (sim->job->kill_all_ns > 0) {
        (void)tr_world_run(sim->world, begin + sim->job->kill_all_ns, is_finished, sim);
        return;
    }
    (void)tr_world_run(sim->world, begin + sim->job->chaos_ns, is_finished, sim);
    tr_world_heal(sim->world);
    uint64_t healed = tr_world_now_ns(sim->world);
    /* Enough for every step to wait for the longest member, lease and try there is. */
    uint64_t bound = healed + (sim->job->steps + 4) * 60 * SECOND;
    if (!tr_world_run(sim->world, bound, is_finished, sim)) {
        sim_violation(sim, "liveness", "the world is whole for %.0f s and the job has not finished",
            (double)(tr_world_now_ns(sim->world) - healed) / 1e9);
        return;
    }
    if (is_livelocked(sim)) {
        return;
    }
    uint64_t finished = tr_world_now_ns(sim->world);
    if (!tr_world_run(sim->world, finished + 120 * SECOND, is_empty, sim) && !is_empty(sim)) {
        troupe_store_stats stats;
        troupe_store_get_stats(sim->store, &stats);
        sim_violation(sim, "leak", "%" PRIu64 " objects are held for ever", stats.objects);
    }
    check_end(sim);
}

/* With the last process its last object goes: a daemon would sweep it, and so must the fini
 * hooks. */
static void
check_memory(struct sim *sim)
{
    troupe_store_stats stats;
    troupe_store_get_stats(sim->store, &stats);
    if (stats.objects > 0) {
        sim_violation(sim, "leak", "%" PRIu64 " objects outlive the job", stats.objects);
    }
}

void
sim_run(const struct sim_job *job, FILE *out, bool verbose, struct sim_result *result)
{
    struct sim sim = {.job = job,
        .out = out,
        .verbose = verbose,
        .disk_step = job->disk_step,
        .durable_step = job->by_itself ? job->durable_step : job->disk_step,
        .shadow = job->shadow != NULL ? job->shadow : sim_shadow_new()};
    sim_shadow_attach(sim.shadow, &sim);
    make_world(&sim);
    if (job->disk_step > 0) {
        read_checkpoint(&sim, job->disk_step);
    }
    run_phases(&sim);
    *result = (struct sim_result){.events = tr_world_events(sim.world),
        .faults = tr_world_faults(sim.world),
        .violations = sim.violations,
        .hash = tr_world_hash(sim.world),
        .finished = sim.finished,
        .disk_step = sim.disk_step,
        .durable_step = sim.durable_step,
        .counters = sim.final};
    for (int i = 0; i < tr_world_loops(sim.world); i++) {
        tr_world_kill(sim.world, i);
    }
    check_memory(&sim);
    if (is_livelocked(&sim)) {
        sim_violation(
            &sim, "livelock", "%" PRIu64 " events and no end", tr_world_events(sim.world));
    }
    result->violations = sim.violations;
    if (job->shadow == NULL) {
        sim_shadow_free(sim.shadow);
    }
    tr_world_free(sim.world);
    tr_audit_free(sim.audit);
    troupe_store_free(sim.store);
    tr_directory_free(sim.directory);
    tr_free(sim.durable_ledger);
    tr_buf_fini(&sim.record);
}
