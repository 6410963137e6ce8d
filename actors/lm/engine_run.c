/* The forward pass of a planned step, and the draws that follow it. */
#include "engine_state.h"

#include <troupe/ext/base.h>

#include <string.h>

enum {
    LOGITS_FLOATS = 4 << 20 /* of one chunk of rows that are sampled */
};

/* --- memory ------------------------------------------------------------------------------------ */

/* Bytes of a chunk's inputs and outputs, and where the arrays lie in them. */
struct sampling_arrays {
    double *u;
    troupe_sampling *law;
    int32_t *row;
    float *logprob, *law_logprob;
    int32_t *id;
    uint8_t *bad;
};

static size_t
input_bytes(int chunk)
{
    return (size_t)chunk * (sizeof(double) + sizeof(troupe_sampling) + sizeof(int32_t));
}

static size_t
output_bytes(int chunk)
{
    return (size_t)chunk * (2 * sizeof(float) + sizeof(int32_t) + sizeof(uint8_t));
}

static struct sampling_arrays
arrays_of(void *inputs, void *outputs, int chunk)
{
    struct sampling_arrays a;

    a.u = inputs;
    a.law = (troupe_sampling *)(void *)(a.u + chunk);
    a.row = (int32_t *)(void *)(a.law + chunk);
    a.logprob = outputs;
    a.law_logprob = a.logprob + chunk;
    a.id = (int32_t *)(void *)(a.law_logprob + chunk);
    a.bad = (uint8_t *)(void *)(a.id + chunk);
    return a;
}

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
    s->host_inputs = tr_zalloc(1, input_bytes(s->chunk));
    s->host_outputs = tr_zalloc(1, output_bytes(s->chunk));
    s->inputs = troupe_device_alloc(device, input_bytes(s->chunk));
    s->outputs = troupe_device_alloc(device, output_bytes(s->chunk));
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

/* --- laying the step out -------------------------------------------------------------------------- */

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
    return troupe_device_upload(
        engine->device, s->device_tables, s->tables, ints * sizeof *s->tables);
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
        status =
            troupe_device_upload(engine->device, s->device, s->host, 4 * rows * sizeof *s->host);
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

/* --- draws --------------------------------------------------------------------------------------- */

static bool
is_stop(const struct tr_group *g, int32_t id)
{
    for (int i = 0; i < g->stop_count; i++) {
        if (g->stops[i] == id) {
            return true;
        }
    }
    return false;
}

static void
append(struct tr_member *m, int32_t id, float logprob, float law, int64_t version)
{
    if (m->count == m->capacity) {
        m->capacity = TR_MAX(16, TR_MIN(2 * m->capacity, m->group->limit));
        size_t capacity = (size_t)m->capacity;
        m->tokens = tr_realloc(m->tokens, capacity, sizeof *m->tokens);
        m->logprobs = tr_realloc(m->logprobs, capacity, sizeof *m->logprobs);
        if (m->group->truncates) {
            m->laws = tr_realloc(m->laws, capacity, sizeof *m->laws);
        }
    }
    if (m->span_count == 0 || m->spans[m->span_count - 1].version != version) {
        if (m->span_count == m->span_capacity) {
            m->span_capacity = TR_MAX(2, 2 * m->span_capacity);
            m->spans = tr_realloc(m->spans, (size_t)m->span_capacity, sizeof *m->spans);
        }
        m->spans[m->span_count++] = (troupe_lm_span){.first = m->count, .version = version};
    }
    m->tokens[m->count] = id;
    m->logprobs[m->count] = logprob;
    if (m->group->truncates) {
        m->laws[m->count] = law;
    }
    m->count++;
}

/* Gives the drawn tokens of a chunk to their members. */
static void
take_draws(troupe_engine *engine, const struct tr_draw *draws, int count,
    const struct sampling_arrays *out)
{
    int64_t version = troupe_lm_weights_version(engine->weights);

    for (int i = 0; i < count; i++) {
        struct tr_member *m = draws[i].member;
        if (out->bad[i] != 0) {
            tr_engine_finish(engine, m, TROUPE_FINISH_NAN);
            continue;
        }
        append(m, out->id[i], out->logprob[i], out->law_logprob[i], version);
        engine->stats.sampled++;
        if (is_stop(m->group, out->id[i])) {
            tr_engine_finish(engine, m, TROUPE_FINISH_STOP);
        } else if (m->count == m->group->limit) {
            tr_engine_finish(engine, m, TROUPE_FINISH_LENGTH);
        }
    }
}

/* Draws [first, first + count), whose rows begin at `row` and are `rows` different ones. */
static troupe_status
draw_chunk(troupe_engine *engine, int first, int count, int row, int rows, troupe_error *err)
{
    struct tr_stage *s = &engine->stage;
    troupe_device *device = engine->device;
    const troupe_ops *ops = troupe_device_ops(device);
    const troupe_lm *lm = engine->lm;
    const struct tr_draw *draws = s->draws + first;
    struct sampling_arrays host = arrays_of(s->host_inputs, s->host_outputs, s->chunk);
    struct sampling_arrays dev = arrays_of(s->inputs, s->outputs, s->chunk);
    const float *logits = s->logits;
    int V = lm->config.vocab;
    bool truncates = false;

    for (int i = 0; i < count; i++) {
        const struct tr_member *m = draws[i].member;
        host.u[i] = tr_uniform(m->seed, 0, (uint64_t)m->count);
        host.law[i] = m->group->sampling;
        host.row[i] = draws[i].row - row;
        truncates = truncates || m->group->truncates;
    }
    troupe_status status =
        troupe_device_upload(device, s->inputs, s->host_inputs, input_bytes(s->chunk));
    if (status != TROUPE_OK) {
        return troupe_fail(err, status, "copying to %s failed", troupe_device_name(device));
    }
    ops->lm_head_forward(device, NULL, NULL, NULL, s->logits,
        engine->acts.hidden + (size_t)row * (size_t)lm->config.hidden,
        tr_lm_packed_head(engine->weights), NULL, 1.0F, lm->valid_ids, rows);
    if (rows < count) {
        /* Members that share a prompt's last row: a copy of its logits for each. */
        ops->embed_forward(device, s->copies, s->logits, dev.row, count, V);
        logits = s->copies;
    }
    ops->sample(device, dev.id, dev.logprob, truncates ? dev.law_logprob : NULL, NULL, dev.bad,
        logits, dev.law, dev.u, lm->valid_ids, count, V);
    status = troupe_device_sync(device, err);
    if (status == TROUPE_OK) {
        status =
            troupe_device_download(device, s->host_outputs, s->outputs, output_bytes(s->chunk));
    }
    if (status == TROUPE_OK) {
        take_draws(engine, draws, count, &host);
    }
    return status;
}

static troupe_status
draw_all(troupe_engine *engine, troupe_error *err)
{
    const struct tr_stage *s = &engine->stage;
    troupe_status status = TROUPE_OK;

    /* Rows grow by at most one from draw to draw, so a chunk of draws has no more rows than draws. */
    for (int first = 0; first < s->draw_count && status == TROUPE_OK; first += s->chunk) {
        int count = TR_MIN(s->chunk, s->draw_count - first);
        int row = s->draws[first].row;
        status =
            draw_chunk(engine, first, count, row, s->draws[first + count - 1].row - row + 1, err);
    }
    return status;
}

troupe_status
tr_engine_run(troupe_engine *engine, troupe_error *err)
{
    troupe_status status = forward(engine, err);
    if (status == TROUPE_OK) {
        status = draw_all(engine, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    /* Between steps everything in `running` runs: groups of ended members may be freed. */
    tr_engine_sweep(engine);
    engine->stats.steps++;
    return troupe_device_sync(engine->device, err);
}
