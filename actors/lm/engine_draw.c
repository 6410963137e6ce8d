/* The draws of a step: logits of the selected rows in chunks, one token for each member, and what
 * the token means for it. */
#include "engine_state.h"

#include <troupe/ext/base.h>

/* Bytes of a chunk's inputs and outputs, and where the arrays lie in them. */
struct sampling_arrays {
    double *u;
    troupe_sampling *law;
    int32_t *row;
    float *logprob, *law_logprob;
    int32_t *id;
    uint8_t *bad;
};

size_t
tr_draw_input_bytes(int chunk)
{
    return (size_t)chunk * (sizeof(double) + sizeof(troupe_sampling) + sizeof(int32_t));
}

size_t
tr_draw_output_bytes(int chunk)
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
        tr_lm_upload(device, s->inputs, s->host_inputs, tr_draw_input_bytes(s->chunk), err);
    if (status != TROUPE_OK) {
        return status;
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
        status = tr_lm_download(
            device, s->host_outputs, s->outputs, tr_draw_output_bytes(s->chunk), err);
    }
    if (status == TROUPE_OK) {
        take_draws(engine, draws, count, &host);
    }
    return status;
}

troupe_status
tr_engine_draw(troupe_engine *engine, troupe_error *err)
{
    const struct tr_stage *s = &engine->stage;
    troupe_status status = TROUPE_OK;

    /* Rows grow by at most one from draw to draw, so a chunk of draws has no more rows than
     * draws. */
    for (int first = 0; first < s->draw_count && status == TROUPE_OK; first += s->chunk) {
        int count = TR_MIN(s->chunk, s->draw_count - first);
        int row = s->draws[first].row;
        status =
            draw_chunk(engine, first, count, row, s->draws[first + count - 1].row - row + 1, err);
    }
    return status;
}
