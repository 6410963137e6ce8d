/* The forward pass of a planned step: its rows and block tables laid out, uploaded, computed. */
#include "engine_state.h"

#include <troupe/ext/base.h>

#include <string.h>

enum {
    LOGITS_FLOATS = 4 << 20 /* of one chunk of rows that are sampled */
};

/* --- memory --- */

troupe_status
tr_stage_init(troupe_engine *engine, troupe_error *err)
{
    struct tr_stage *s = &engine->stage;
    int rows = engine->options.rows_max, V = engine->lm->config.vocab;
    troupe_device *device = engine->device;

    s->chunk = TR_MAX(1, TR_MIN(rows, LOGITS_FLOATS / V));
    s->host = tr_zalloc(4 * (size_t)rows, sizeof *s->host);
    s->device = troupe_device_alloc(device, 4 * (size_t)rows * sizeof *s->device);
    s->logits = troupe_device_alloc(device, (size_t)s->chunk * (size_t)V * sizeof *s->logits);
    s->copies = troupe_device_alloc(device, (size_t)s->chunk * (size_t)V * sizeof *s->copies);
    s->host_inputs = tr_zalloc(1, tr_draw_input_bytes(s->chunk));
    s->host_outputs = tr_zalloc(1, tr_draw_output_bytes(s->chunk));
    s->inputs = troupe_device_alloc(device, tr_draw_input_bytes(s->chunk));
    s->outputs = troupe_device_alloc(device, tr_draw_output_bytes(s->chunk));
    if (s->device == NULL || s->logits == NULL || s->copies == NULL || s->inputs == NULL ||
        s->outputs == NULL) {
        return troupe_fail(err, TROUPE_NO_MEMORY,
            "%s has no memory left for steps of %d rows; lower rows_max",
            troupe_device_name(device), rows);
    }
    return tr_lm_acts_reserve(&engine->acts, engine->lm, device, rows, rows, false, err);
}

void
tr_stage_fini(troupe_engine *engine)
{
    struct tr_stage *s = &engine->stage;
    troupe_device *device = engine->device;

    tr_lm_acts_fini(&engine->acts, device);
    troupe_device_free(device, s->device);
    troupe_device_free(device, s->device_tables);
    troupe_device_free(device, s->logits);
    troupe_device_free(device, s->copies);
    troupe_device_free(device, s->inputs);
    troupe_device_free(device, s->outputs);
    tr_free(s->host);
    tr_free(s->tables);
    tr_free(s->draws);
    tr_free(s->host_inputs);
    tr_free(s->host_outputs);
    *s = (struct tr_stage){0};
}

static void
push_draw(struct tr_stage *s, struct tr_member *member)
{
    if (s->draw_count == s->draw_capacity) {
        s->draw_capacity = TR_MAX(64, 2 * s->draw_capacity);
        s->draws = tr_realloc(s->draws, (size_t)s->draw_capacity, sizeof *s->draws);
    }
    s->draws[s->draw_count++] = (struct tr_draw){.member = member, .row = s->M - 1};
}

/* --- laying the step out --- */

/* Rows of one sequence: positions [from, from + rows) of a prompt and the tokens after it. */
static void
place(
    troupe_engine *engine, const struct tr_group *g, const struct tr_member *m, int from, int rows)
{
    struct tr_stage *s = &engine->stage;

    for (int i = 0; i < rows; i++) {
        int p = from + i;
        s->ids[s->R] = p < g->prompt_count ? g->prompt[p] : m->tokens[p - g->prompt_count];
        s->pos[s->R] = p;
        s->seq[s->R] = s->sequences;
        s->R++;
    }
    s->sequences++;
    engine->stats.rows += (uint64_t)rows;
}

static void
place_member(troupe_engine *engine, struct tr_member *m)
{
    struct tr_stage *s = &engine->stage;
    const struct tr_group *g = m->group;
    int again = TR_MIN(m->computed_most, m->computed + m->want) - m->computed;

    place(engine, g, m, m->computed, m->want);
    engine->stats.recomputed_rows += (uint64_t)TR_MAX(again, 0);
    if (m->computed + m->want == g->prompt_count + m->count) {
        s->select[s->M++] = s->R - 1;
        push_draw(s, m);
    }
}

static void
place_prompt(troupe_engine *engine, struct tr_group *g)
{
    struct tr_stage *s = &engine->stage;
    int again = TR_MIN(g->computed_most, g->computed + g->want) - g->computed;
    bool selected = false;

    place(engine, g, NULL, g->computed, g->want);
    engine->stats.prompt_rows += (uint64_t)g->want;
    engine->stats.recomputed_rows += (uint64_t)TR_MAX(again, 0);
    if (g->computed + g->want < g->prompt_count) {
        return;
    }
    for (int i = 0; i < g->count; i++) {
        struct tr_member *m = &g->members[i];
        if (m->state == TR_MEMBER_WAITING && m->count == 0) {
            if (!selected) {
                s->select[s->M++] = s->R - 1;
                selected = true;
            }
            push_draw(s, m);
        }
    }
}

/* The block tables of the step's sequences, in the order in which they were placed. */
static troupe_status
place_tables(troupe_engine *engine, troupe_error *err)
{
    struct tr_stage *s = &engine->stage;

    s->stride = 1;
    for (int i = 0; i < engine->running_count; i++) {
        s->stride = TR_MAX(s->stride, engine->running[i]->table.count);
    }
    for (int i = 0; i < engine->group_count; i++) {
        s->stride = TR_MAX(s->stride, engine->groups[i]->hold.count);
    }
    size_t ints = (size_t)s->stride * (size_t)s->sequences;
    if (ints > s->tables_capacity) {
        s->tables_capacity = 2 * ints;
        troupe_device_free(engine->device, s->device_tables);
        s->device_tables =
            troupe_device_alloc(engine->device, s->tables_capacity * sizeof *s->device_tables);
        s->tables = tr_realloc(s->tables, s->tables_capacity, sizeof *s->tables);
        if (s->device_tables == NULL) {
            return troupe_fail(err, TROUPE_NO_MEMORY,
                "%s has no memory left for the block tables of %d sequences; lower sequences_max",
                troupe_device_name(engine->device), s->sequences);
        }
    }
    int32_t *row = s->tables;
    for (int i = 0; i < engine->running_count; i++) {
        const struct tr_member *m = engine->running[i];
        if (m->want > 0) {
            memcpy(row, m->table.blocks, (size_t)m->table.count * sizeof *row);
            row += s->stride;
        }
    }
    for (int i = 0; i < engine->group_count; i++) {
        const struct tr_group *g = engine->groups[i];
        if (g->want > 0) {
            memcpy(row, g->hold.blocks, (size_t)g->hold.count * sizeof *row);
            row += s->stride;
        }
    }
    TR_ASSERT((size_t)(row - s->tables) == ints);
    return tr_lm_upload(engine->device, s->device_tables, s->tables, ints * sizeof *s->tables, err);
}

static void
place_all(troupe_engine *engine)
{
    struct tr_stage *s = &engine->stage;
    int rows = engine->options.rows_max;

    s->R = 0;
    s->M = 0;
    s->sequences = 0;
    s->draw_count = 0;
    s->ids = s->host;
    s->pos = s->ids + rows;
    s->seq = s->pos + rows;
    s->select = s->seq + rows;
    for (int i = 0; i < engine->running_count; i++) {
        if (engine->running[i]->want > 0) {
            place_member(engine, engine->running[i]);
        }
    }
    for (int i = 0; i < engine->group_count; i++) {
        if (engine->groups[i]->want > 0) {
            place_prompt(engine, engine->groups[i]);
        }
    }
    TR_ASSERT(s->R <= rows);
}

static void
note_computed(troupe_engine *engine)
{
    for (int i = 0; i < engine->running_count; i++) {
        struct tr_member *m = engine->running[i];
        m->computed += m->want;
        m->computed_most = TR_MAX(m->computed_most, m->computed);
        m->want = 0;
    }
    for (int i = 0; i < engine->group_count; i++) {
        struct tr_group *g = engine->groups[i];
        g->computed += g->want;
        g->computed_most = TR_MAX(g->computed_most, g->computed);
        g->want = 0;
    }
}

static troupe_status
forward(troupe_engine *engine, troupe_error *err)
{
    struct tr_stage *s = &engine->stage;
    size_t rows = (size_t)engine->options.rows_max;

    place_all(engine);
    troupe_status status = place_tables(engine, err);
    if (status == TROUPE_OK) {
        status = tr_lm_upload(engine->device, s->device, s->host, 4 * rows * sizeof *s->host, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    const struct tr_lm_rows step = {.R = s->R,
        .M = s->M,
        .ids = s->device,
        .pos = s->device + rows,
        .select = s->device + 3 * rows,
        .cache = &engine->cache,
        .paged = {.R = s->R,
            .seq = s->device + 2 * rows,
            .pos = s->device + rows,
            .tables = s->device_tables,
            .table_stride = s->stride}};
    tr_lm_forward(engine->device, engine->weights, &engine->acts, &step);
    note_computed(engine);
    return TROUPE_OK;
}

troupe_status
tr_engine_run(troupe_engine *engine, troupe_error *err)
{
    troupe_status status = forward(engine, err);
    if (status == TROUPE_OK) {
        status = tr_engine_draw(engine, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    /* Between steps everything in `running` runs: groups of ended members may be freed. */
    tr_engine_sweep(engine);
    engine->stats.steps++;
    return troupe_device_sync(engine->device, err);
}
