/* Which rows a step computes: members that wait start, running ones go on, prompts take the rest.
 *
 * Everything goes by age (arrival of the group, then index). Whoever needs a block that is not
 * there takes it from the youngest: first holds of groups that are not older, then running members
 * that are younger; when there is none it gives up its own. So the oldest always gets on, and with
 * a pool that fits one member (checked at submit) everybody ends. */
#include "engine_state.h"

#include <troupe/ext/base.h>

static bool
younger(const struct tr_member *a, const struct tr_member *b)
{
    return a->group->arrival != b->group->arrival ? a->group->arrival > b->group->arrival
                                                  : a->index > b->index;
}

/* Tokens of a member, prompt included. */
static int
total(const struct tr_member *m)
{
    return m->group->prompt_count + m->count;
}

void
tr_engine_sweep(troupe_engine *engine)
{
    int kept = 0;

    for (int i = 0; i < engine->running_count; i++) {
        if (engine->running[i]->state == TR_MEMBER_RUNNING) {
            engine->running[kept++] = engine->running[i];
        }
    }
    engine->running_count = kept;
}

int32_t
tr_engine_release_hold(troupe_engine *engine, struct tr_group *group)
{
    group->computed = 0;
    group->want = 0;
    return tr_kv_release(&engine->pool, &group->hold);
}

void
tr_engine_preempt(troupe_engine *engine, struct tr_member *member)
{
    TR_ASSERT(member->state == TR_MEMBER_RUNNING);
    (void)tr_kv_release(&engine->pool, &member->table);
    member->state = TR_MEMBER_WAITING;
    member->computed = 0;
    member->want = 0;
    member->group->waiting++;
}

/* --- blocks from the youngest --- */

/* Releases holds of groups that arrived at `arrival` or later, youngest first, until a block is
 * free. */
static bool
reclaim_holds(troupe_engine *engine, uint64_t arrival)
{
    for (int i = engine->group_count - 1; i >= 0; i--) {
        struct tr_group *g = engine->groups[i];
        if (g->arrival < arrival) {
            return false;
        }
        if (g->hold.count > 0 && tr_engine_release_hold(engine, g) > 0) {
            return true;
        }
    }
    return false;
}

/* Preempts the youngest running member younger than `member`. */
static bool
reclaim_member(troupe_engine *engine, const struct tr_member *member)
{
    struct tr_member *victim = NULL;

    for (int i = 0; i < engine->running_count; i++) {
        struct tr_member *m = engine->running[i];
        if (m->state == TR_MEMBER_RUNNING && younger(m, member) &&
            (victim == NULL || younger(m, victim))) {
            victim = m;
        }
    }
    if (victim == NULL) {
        return false;
    }
    tr_engine_preempt(engine, victim);
    victim->preemptions++;
    engine->stats.preemptions++;
    return true;
}

/* Blocks for the first `positions` of a running member, at the cost of younger ones. */
static bool
grow(troupe_engine *engine, struct tr_member *member, int positions)
{
    int32_t blocks = tr_engine_blocks(engine, positions);

    while (!tr_kv_grow(&engine->pool, &member->table, blocks)) {
        if (!reclaim_holds(engine, member->group->arrival) && !reclaim_member(engine, member)) {
            return false;
        }
    }
    return true;
}

/* --- members that wait --- */

/* Puts a member into the batch on its group's computed prompt, with room for the tokens that it
 * has. It copies the hold's partial block, or takes the whole hold when it is the last that waits,
 * or when nothing else runs and a copy is more than the pool has: then the others compute the
 * prompt again. False when blocks are missing. */
static bool
start(troupe_engine *engine, struct tr_member *m)
{
    struct tr_group *g = m->group;
    int full = g->prompt_count / engine->options.block_size;
    bool tail = g->prompt_count % engine->options.block_size != 0;
    bool take = g->waiting == 1;
    int32_t blocks = tr_engine_blocks(engine, total(m));

    TR_ASSERT(m->table.count == 0 && m->count > 0 && g->computed == g->prompt_count);
    while (blocks - (take ? g->hold.count : full) > engine->pool.free_count) {
        if (reclaim_holds(engine, g->arrival + 1)) {
            continue;
        }
        if (take || engine->running_count > 0) {
            return false;
        }
        take = true;
    }
    tr_kv_share(&engine->pool, &m->table, &g->hold, take ? g->hold.count : full);
    if (!take && tail) {
        bool grown = tr_kv_grow(&engine->pool, &m->table, full + 1);
        TR_ASSERT(grown);
        troupe_device_ops(engine->device)
            ->kv_copy_block(engine->device, &engine->cache, engine->lm->config.layers,
                g->hold.blocks[full], m->table.blocks[full]);
    }
    g->waiting--;
    if (take) {
        (void)tr_engine_release_hold(engine, g);
    }
    bool grown = tr_kv_grow(&engine->pool, &m->table, blocks);
    TR_ASSERT(grown);
    m->computed = g->prompt_count;
    m->state = TR_MEMBER_RUNNING;
    engine->running[engine->running_count++] = m;
    engine->stats.shared_rows += (uint64_t)g->prompt_count;
    return true;
}

/* Starts members whose prompt is computed, oldest first. False when one lacks blocks: then nobody
 * younger may take some. */
static bool
start_waiting(troupe_engine *engine)
{
    for (int i = 0; i < engine->group_count; i++) {
        struct tr_group *g = engine->groups[i];
        if (g->waiting == 0 || g->computed < g->prompt_count) {
            continue;
        }
        for (int j = 0; j < g->count; j++) {
            if (g->members[j].state != TR_MEMBER_WAITING) {
                continue;
            }
            if (engine->running_count == engine->options.sequences_max) {
                return true;
            }
            if (!start(engine, &g->members[j])) {
                return false;
            }
            if (g->hold.count == 0) {
                break; /* taken: those that are left compute the prompt again */
            }
        }
    }
    return true;
}

/* --- running members --- */

/* One row for each member that only lacks its last token (`single`), else chunks for those that are
 * computed again. Returns what is left of the budget. */
static int
plan_running(troupe_engine *engine, bool single, int budget)
{
    for (int i = 0; i < engine->running_count && budget > 0; i++) {
        struct tr_member *m = engine->running[i];
        if (m->state != TR_MEMBER_RUNNING || (total(m) - m->computed == 1) != single) {
            continue;
        }
        int rows = TR_MIN(total(m) - m->computed, budget);
        if (grow(engine, m, m->computed + rows)) {
            m->want = rows;
            budget -= rows;
        } else {
            tr_engine_preempt(engine, m);
            m->preemptions++;
            engine->stats.preemptions++;
        }
    }
    return budget;
}

/* --- prompts --- */

/* A group that began sampling with the old weights has to end with them. */
static bool
held_back(const troupe_engine *engine, const struct tr_group *g)
{
    if (engine->pending == NULL) {
        return false;
    }
    for (int i = 0; i < g->count; i++) {
        if (g->members[i].state != TR_MEMBER_DONE && g->members[i].count > 0) {
            return false;
        }
    }
    return true;
}

/* Blocks for the next `rows` positions of a prompt, at the cost of younger holds only. */
static bool
grow_hold(troupe_engine *engine, struct tr_group *g, int rows)
{
    /* A prompt begins when it fits whole, with a block to spare while others grow. */
    int32_t spare = engine->running_count > 0 ? 1 : 0;
    int32_t whole = tr_engine_blocks(engine, g->prompt_count) - g->hold.count + spare;

    while (engine->pool.free_count < whole) {
        if (!reclaim_holds(engine, g->arrival + 1)) {
            return false;
        }
    }
    return tr_kv_grow(&engine->pool, &g->hold, tr_engine_blocks(engine, g->computed + rows));
}

static void
plan_prompts(troupe_engine *engine, int budget)
{
    /* Prompts for more members than can run would only hold blocks. */
    int places = engine->options.sequences_max - engine->running_count;

    for (int i = 0; i < engine->group_count && budget > 0 && places > 0; i++) {
        struct tr_group *g = engine->groups[i];
        if (g->waiting == 0 || held_back(engine, g)) {
            continue;
        }
        places -= g->waiting;
        int rows = TR_MIN(g->prompt_count - g->computed, budget);
        if (rows == 0) {
            continue;
        }
        if (!grow_hold(engine, g, rows)) {
            return;
        }
        g->want = rows;
        budget -= rows;
    }
}

int
tr_engine_plan(troupe_engine *engine)
{
    int budget = engine->options.rows_max;

    bool unblocked = start_waiting(engine);
    budget = plan_running(engine, true, budget);
    budget = plan_running(engine, false, budget);
    tr_engine_sweep(engine);
    if (unblocked) {
        plan_prompts(engine, budget);
    }
    int rows = 0;
    for (int i = 0; i < engine->running_count; i++) {
        rows += engine->running[i]->want;
    }
    for (int i = 0; i < engine->group_count; i++) {
        rows += engine->groups[i]->want;
    }
    return rows;
}
