/* The engine's public face: opening, new weights, the step. */
#include "engine_state.h"

#include <troupe/ext/base.h>

#include <string.h>

enum {
    BLOCK_DEFAULT = 16,
    SEQUENCES_DEFAULT = 256,
    ROWS_LEAST = 512,
    BLOCKS_MOST = 1 << 24
};

static const size_t CACHE_DEFAULT_BYTES = (size_t)256 << 20;

/* --- opening --- */

static size_t
block_floats(const troupe_lm_config *c, int block_size)
{
    return (size_t)c->layers * (size_t)block_size * (size_t)c->kv_heads * (size_t)c->head_dim;
}

static void
fill_defaults(troupe_engine_options *o, const troupe_lm_config *c)
{
    o->block_size = o->block_size == 0 ? BLOCK_DEFAULT : o->block_size;
    o->sequences_max = o->sequences_max == 0 ? SEQUENCES_DEFAULT : o->sequences_max;
    if (o->rows_max == 0) {
        o->rows_max = TR_MAX(ROWS_LEAST, 2 * o->sequences_max);
    }
    if (o->blocks == 0) {
        size_t one = ((size_t)c->context + (size_t)o->block_size - 1) / (size_t)o->block_size;
        size_t budget = CACHE_DEFAULT_BYTES / (2 * sizeof(float) * block_floats(c, o->block_size));
        size_t blocks = TR_MAX(one, TR_MIN(one * (size_t)o->sequences_max, budget));
        o->blocks = (int)TR_MIN(blocks, (size_t)BLOCKS_MOST);
    }
}

static troupe_status
check_options(const troupe_engine_options *o, troupe_error *err)
{
    const struct {
        const char *name;
        int value, min, max;
    } ranges[] = {{"blocks", o->blocks, 0, BLOCKS_MOST}, {"block_size", o->block_size, 0, 4096},
        {"sequences_max", o->sequences_max, 0, 1 << 16}, {"rows_max", o->rows_max, 0, 1 << 20},
        {"update", (int)o->update, TROUPE_ENGINE_IN_FLIGHT, TROUPE_ENGINE_BETWEEN}};

    if (o->size != sizeof *o) {
        return troupe_fail(err, TROUPE_INVALID,
            "engine options of %zu bytes where %zu are known; set size to "
            "sizeof(troupe_engine_options)",
            o->size, sizeof *o);
    }
    for (size_t i = 0; i < TR_COUNT(ranges); i++) {
        if (ranges[i].value < ranges[i].min || ranges[i].value > ranges[i].max) {
            return troupe_fail(err, TROUPE_INVALID, "the engine's %s is %d; take %d to %d",
                ranges[i].name, ranges[i].value, ranges[i].min, ranges[i].max);
        }
    }
    int sequences = o->sequences_max == 0 ? SEQUENCES_DEFAULT : o->sequences_max;
    if (o->rows_max != 0 && o->rows_max < sequences) {
        return troupe_fail(err, TROUPE_INVALID,
            "the engine's rows_max is %d, below its sequences_max of %d; each running sequence "
            "takes a row of every step",
            o->rows_max, sequences);
    }
    return TROUPE_OK;
}

static troupe_status
open_cache(troupe_engine *engine, troupe_error *err)
{
    const troupe_lm_config *c = &engine->lm->config;
    const troupe_engine_options *o = &engine->options;
    size_t bytes = (size_t)o->blocks * block_floats(c, o->block_size) * sizeof(float);

    engine->cache = (troupe_kv_cache){.k = troupe_device_alloc(engine->device, bytes),
        .v = troupe_device_alloc(engine->device, bytes),
        .blocks = o->blocks,
        .block_size = o->block_size,
        .KH = c->kv_heads,
        .E = c->head_dim};
    if (engine->cache.k == NULL || engine->cache.v == NULL) {
        return troupe_fail(err, TROUPE_NO_MEMORY,
            "%s has no %zu MiB left for %d cache blocks of %d positions; lower blocks",
            troupe_device_name(engine->device), 2 * bytes >> 20, o->blocks, o->block_size);
    }
    tr_kv_pool_init(&engine->pool, o->blocks);
    return TROUPE_OK;
}

troupe_status
troupe_engine_new(const troupe_lm *lm, troupe_device *device, troupe_lm_weights *weights,
    const troupe_engine_options *options, troupe_engine **out, troupe_error *err)
{
    troupe_status status = check_options(options, err);
    if (status != TROUPE_OK) {
        return status;
    }
    TR_ASSERT(tr_lm_same_shape(weights->lm, lm));
    troupe_engine *engine = tr_zalloc(1, sizeof *engine);
    engine->lm = lm;
    engine->device = device;
    engine->options = *options;
    fill_defaults(&engine->options, &lm->config);
    engine->weights = troupe_lm_weights_hold(weights);
    engine->running = tr_zalloc((size_t)engine->options.sequences_max, sizeof(engine->running[0]));
    status = open_cache(engine, err);
    if (status == TROUPE_OK) {
        status = tr_stage_init(engine, err);
    }
    if (status != TROUPE_OK) {
        troupe_engine_free(engine);
        return status;
    }
    *out = engine;
    return TROUPE_OK;
}

void
troupe_engine_free(troupe_engine *engine)
{
    if (engine == NULL) {
        return;
    }
    for (int i = 0; i < engine->group_count; i++) {
        tr_group_free(engine, engine->groups[i]);
    }
    tr_stage_fini(engine);
    troupe_device_free(engine->device, engine->cache.k);
    troupe_device_free(engine->device, engine->cache.v);
    tr_kv_pool_fini(&engine->pool);
    troupe_lm_weights_drop(engine->weights, engine->device);
    troupe_lm_weights_drop(engine->pending, engine->device);
    tr_free(engine->groups);
    tr_free(engine->running);
    tr_free(engine->ended);
    tr_free(engine->finished);
    tr_free(engine);
}

/* --- weights --- */

/* A member has begun when a token of it was sampled. */
static bool
any_begun(const troupe_engine *engine)
{
    for (int i = 0; i < engine->group_count; i++) {
        const struct tr_group *g = engine->groups[i];
        for (int j = 0; j < g->count; j++) {
            if (g->members[j].state != TR_MEMBER_DONE && g->members[j].count > 0) {
                return true;
            }
        }
    }
    return false;
}

/* Holds go, so that nobody starts on blocks of the old version. */
static void
flip(troupe_engine *engine)
{
    for (int i = 0; i < engine->group_count; i++) {
        (void)tr_engine_release_hold(engine, engine->groups[i]);
    }
    if (engine->options.update == TROUPE_ENGINE_RECOMPUTE) {
        for (int i = 0; i < engine->running_count; i++) {
            if (engine->running[i]->state == TR_MEMBER_RUNNING) {
                tr_engine_preempt(engine, engine->running[i]);
            }
        }
        tr_engine_sweep(engine);
    }
    troupe_lm_weights_drop(engine->weights, engine->device);
    engine->weights = engine->pending;
    engine->pending = NULL;
    engine->stats.flips++;
}

void
tr_engine_flip_when_allowed(troupe_engine *engine)
{
    if (engine->pending != NULL &&
        (engine->options.update != TROUPE_ENGINE_BETWEEN || !any_begun(engine))) {
        flip(engine);
    }
}

void
troupe_engine_set_weights(troupe_engine *engine, troupe_lm_weights *weights)
{
    TR_ASSERT(tr_lm_same_shape(weights->lm, engine->lm));
    (void)troupe_lm_weights_hold(weights);
    troupe_lm_weights_drop(engine->pending, engine->device);
    engine->pending = weights;
    tr_engine_flip_when_allowed(engine);
}

int64_t
troupe_engine_version(const troupe_engine *engine)
{
    return troupe_lm_weights_version(engine->weights);
}

/* --- the step --- */

troupe_status
troupe_engine_step(
    troupe_engine *engine, const troupe_generation **finished, int *count, troupe_error *err)
{
    troupe_status status = TROUPE_OK;

    *count = 0;
    tr_engine_purge(engine);
    if (tr_engine_plan(engine) > 0) {
        status = tr_engine_run(engine, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    tr_engine_flip_when_allowed(engine);
    tr_engine_report(engine, finished, count);
    return TROUPE_OK;
}

bool
troupe_engine_idle(const troupe_engine *engine)
{
    return engine->live == 0 && engine->ended_count == 0;
}

void
troupe_engine_get_stats(const troupe_engine *engine, troupe_engine_stats *stats)
{
    *stats = engine->stats;
    stats->running = engine->running_count;
    stats->waiting = engine->live - engine->running_count;
    stats->groups = engine->group_count;
    stats->blocks = engine->pool.blocks;
    stats->blocks_free = engine->pool.free_count;
}
