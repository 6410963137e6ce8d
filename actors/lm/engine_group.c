/* Groups in and members out: requests checked and copied, ended members reported, memory freed. */
#include "engine_state.h"

#include <troupe/ext/base.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum {
    MEMBERS_MOST = 1 << 20
};

/* --- groups in --- */

static struct tr_group *
find_group(const troupe_engine *engine, uint64_t id)
{
    for (int i = 0; i < engine->group_count; i++) {
        if (engine->groups[i]->id == id && engine->groups[i]->live > 0) {
            return engine->groups[i];
        }
    }
    return NULL;
}

static troupe_status
check_law(const troupe_engine_request *r, troupe_error *err)
{
    const troupe_sampling *s = &r->sampling;

    if (!isfinite(s->temperature) || s->temperature < 0.0F) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "group %" PRIu64 ": the temperature is %g; take 0 (greedy) or more", r->id,
            (double)s->temperature);
    }
    if (!(s->top_p > 0.0F && s->top_p <= 1.0F)) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "group %" PRIu64 ": top_p is %g; take more than 0 and at most 1 (all)", r->id,
            (double)s->top_p);
    }
    if (s->top_k < 0) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "group %" PRIu64 ": top_k is %d; take 0 (all) or more", r->id, s->top_k);
    }
    if (s->temperature > 0.0F && r->seeds == NULL) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "group %" PRIu64 ": drawing at temperature %g takes a seed for each member", r->id,
            (double)s->temperature);
    }
    return TROUPE_OK;
}

static troupe_status
check_request(const troupe_engine *engine, const troupe_engine_request *r, troupe_error *err)
{
    int context = engine->lm->config.context;

    if (r->size != sizeof *r) {
        return troupe_fail(err, TROUPE_INVALID,
            "an engine request of %zu bytes where %zu are known; set size to "
            "sizeof(troupe_engine_request)",
            r->size, sizeof *r);
    }
    if (r->prompt_count < 1 || r->members < 1 || r->members > MEMBERS_MOST || r->max_new < 1 ||
        r->stop_count < 0) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "group %" PRIu64 " has %d prompt tokens, %d members, %d new tokens and %d stop ids; "
            "the first three have to be at least 1",
            r->id, r->prompt_count, r->members, r->max_new, r->stop_count);
    }
    if (r->prompt_count >= context) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "group %" PRIu64
            ": the prompt has %d tokens and the model's context %d: no room for an "
            "answer; shorten the prompt or take a model with a longer context",
            r->id, r->prompt_count, context);
    }
    for (int i = 0; i < r->prompt_count; i++) {
        if (r->prompt[i] < 0 || r->prompt[i] >= engine->lm->valid_ids) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "group %" PRIu64 ": prompt token %d is id %d, but only ids below %d exist; was it "
                "made with another tokenizer?",
                r->id, i, r->prompt[i], engine->lm->valid_ids);
        }
    }
    if (find_group(engine, r->id) != NULL) {
        return troupe_fail(err, TROUPE_EXISTS,
            "group %" PRIu64 " is being generated already; abort it first", r->id);
    }
    return check_law(r, err);
}

/* Response tokens that fit: the last one is never an input, so it needs no place in the cache. */
static int
limit_of(const troupe_engine *engine, const troupe_engine_request *r)
{
    return TR_MIN(r->max_new, engine->lm->config.context - r->prompt_count);
}

static void
add_group(troupe_engine *engine, const troupe_engine_request *r)
{
    struct tr_group *g = tr_zalloc(1, sizeof *g);

    g->id = r->id;
    g->arrival = engine->arrivals++;
    g->prompt_count = r->prompt_count;
    g->prompt = tr_alloc((size_t)r->prompt_count * sizeof *g->prompt);
    memcpy(g->prompt, r->prompt, (size_t)r->prompt_count * sizeof *g->prompt);
    g->stop_count = r->stop_count;
    g->stops = tr_alloc((size_t)r->stop_count * sizeof *g->stops);
    if (r->stop_count > 0) {
        memcpy(g->stops, r->stop_ids, (size_t)r->stop_count * sizeof *g->stops);
    }
    g->limit = limit_of(engine, r);
    g->sampling = r->sampling;
    g->truncates = r->sampling.top_k > 0 || r->sampling.top_p < 1.0F;
    g->count = r->members;
    g->live = r->members;
    g->waiting = r->members;
    g->members = tr_zalloc((size_t)r->members, sizeof *g->members);
    for (int i = 0; i < r->members; i++) {
        g->members[i] = (struct tr_member){.group = g,
            .index = i,
            .label = r->indices == NULL ? i : r->indices[i],
            .seed = r->seeds == NULL ? 0 : r->seeds[i]};
    }
    if (engine->group_count == engine->group_capacity) {
        engine->group_capacity = TR_MAX(64, 2 * engine->group_capacity);
        engine->groups =
            tr_realloc(engine->groups, (size_t)engine->group_capacity, sizeof(engine->groups[0]));
    }
    engine->groups[engine->group_count++] = g;
    engine->live += r->members;
}

troupe_status
troupe_engine_submit(troupe_engine *engine, const troupe_engine_request *request, troupe_error *err)
{
    troupe_status status = check_request(engine, request, err);
    if (status != TROUPE_OK) {
        return status;
    }
    int positions = request->prompt_count + limit_of(engine, request) - 1;
    int32_t blocks = tr_engine_blocks(engine, positions);
    if (blocks > engine->pool.blocks) {
        return troupe_fail(err, TROUPE_FULL,
            "group %" PRIu64 ": %d prompt and %d new tokens take %d cache blocks of %d positions, "
            "and the pool has %d; give the engine more blocks or lower the response limit",
            request->id, request->prompt_count, limit_of(engine, request), blocks,
            engine->options.block_size, engine->pool.blocks);
    }
    add_group(engine, request);
    return TROUPE_OK;
}

/* --- members out --- */

void
tr_engine_finish(troupe_engine *engine, struct tr_member *member, troupe_finish finish)
{
    struct tr_group *g = member->group;

    TR_ASSERT(member->state != TR_MEMBER_DONE);
    (void)tr_kv_release(&engine->pool, &member->table);
    if (member->state == TR_MEMBER_WAITING && --g->waiting == 0) {
        (void)tr_engine_release_hold(engine, g);
    }
    member->state = TR_MEMBER_DONE;
    member->finish = finish;
    member->want = 0;
    g->live--;
    engine->live--;
    engine->stats.finished[finish]++;
    if (engine->ended_count == engine->ended_capacity) {
        engine->ended_capacity = TR_MAX(64, 2 * engine->ended_capacity);
        engine->ended =
            tr_realloc(engine->ended, (size_t)engine->ended_capacity, sizeof(engine->ended[0]));
    }
    engine->ended[engine->ended_count++] = member;
}

troupe_status
troupe_engine_abort(troupe_engine *engine, uint64_t id)
{
    struct tr_group *g = find_group(engine, id);

    if (g == NULL) {
        return TROUPE_NOT_FOUND;
    }
    for (int i = 0; i < g->count; i++) {
        if (g->members[i].state != TR_MEMBER_DONE) {
            tr_engine_finish(engine, &g->members[i], TROUPE_FINISH_ABORTED);
        }
    }
    tr_engine_sweep(engine);
    tr_engine_flip_when_allowed(engine);
    return TROUPE_OK;
}

void
tr_engine_purge(troupe_engine *engine)
{
    int kept = 0;

    for (int i = 0; i < engine->group_count; i++) {
        struct tr_group *g = engine->groups[i];
        if (g->reported == g->count) {
            tr_group_free(engine, g);
        } else {
            engine->groups[kept++] = g;
        }
    }
    engine->group_count = kept;
}

static troupe_generation
view(const struct tr_member *m)
{
    return (troupe_generation){.id = m->group->id,
        .member = m->label,
        .finish = m->finish,
        .prompt = m->group->prompt,
        .prompt_count = m->group->prompt_count,
        .count = m->count,
        .tokens = m->tokens,
        .logprobs = m->logprobs,
        .logprobs_law = m->laws,
        .spans = m->spans,
        .span_count = m->span_count,
        .preemptions = m->preemptions};
}

troupe_status
troupe_engine_peek(const troupe_engine *engine, uint64_t id, int member, troupe_generation *out)
{
    const struct tr_group *g = find_group(engine, id);

    for (int i = 0; g != NULL && i < g->count; i++) {
        const struct tr_member *m = &g->members[i];
        if (m->label == member && m->state != TR_MEMBER_DONE) {
            *out = view(m);
            return TROUPE_OK;
        }
    }
    return TROUPE_NOT_FOUND;
}

void
tr_engine_report(troupe_engine *engine, const troupe_generation **finished, int *count)
{
    if (engine->ended_count > engine->finished_capacity) {
        engine->finished_capacity = engine->ended_capacity;
        engine->finished = tr_realloc(
            engine->finished, (size_t)engine->finished_capacity, sizeof *engine->finished);
    }
    for (int i = 0; i < engine->ended_count; i++) {
        engine->finished[i] = view(engine->ended[i]);
        engine->ended[i]->group->reported++;
    }
    *count = engine->ended_count;
    if (finished != NULL) {
        *finished = engine->finished;
    }
    engine->ended_count = 0;
}

void
tr_group_free(troupe_engine *engine, struct tr_group *g)
{
    for (int i = 0; i < g->count; i++) {
        struct tr_member *m = &g->members[i];
        tr_kv_table_fini(&engine->pool, &m->table);
        tr_free(m->tokens);
        tr_free(m->logprobs);
        tr_free(m->laws);
        tr_free(m->spans);
    }
    tr_kv_table_fini(&engine->pool, &g->hold);
    tr_free(g->members);
    tr_free(g->prompt);
    tr_free(g->stops);
    tr_free(g);
}

const char *
troupe_finish_name(troupe_finish finish)
{
    static const char *const names[] = {"stop", "length", "aborted", "nan"};
    return (size_t)finish < TR_COUNT(names) ? names[finish] : "unknown";
}
