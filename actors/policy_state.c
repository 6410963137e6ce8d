/* The policy's state beside the arrays of the optimiser, as text: train_state.json of a checkpoint,
 * and the same in a mirror. Unknown numbers are null. */
#include "policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

tr_policy_state
tr_policy_state_now(const tr_policy *p, int64_t step)
{
    return (tr_policy_state){
        .step = step,
        .checkpointed = p->checkpointed,
        .offsets = p->offsets,
        .counts = p->counts,
        .restarts = p->restarts,
        .restarts_base = p->restarts_base,
        .wall_s = p->wall_before + (double)(tr_now_ns() - p->begun_ns) / 1e9,
        .accuracy_first = p->accuracy_first,
        .accuracy_last = p->accuracy_last,
        .reward_last = p->reward_mean,
        .line = tr_strdup(p->line.data != NULL ? p->line.data : ""),
    };
}

static void
put_real(json_t *state, const char *key, double value)
{
    json_object_set_new(state, key, isfinite(value) ? json_real(value) : json_null());
}

static void
put_whole(json_t *state, const char *key, uint64_t value)
{
    json_object_set_new(state, key, json_integer((json_int_t)value));
}

char *
tr_policy_state_print(const tr_policy *p, const tr_policy_state *s)
{
    const tr_policy_counts *c = &s->counts;
    troupe_trainer_progress progress;
    troupe_trainer_get_progress(p->trainer, &progress);
    char text[1024];
    troupe_trainer_progress_print(&progress, text, sizeof text);
    json_t *state = json_object();
    put_whole(state, "step", (uint64_t)s->step);
    put_whole(state, "version", p->version);
    put_whole(state, "epoch", p->epoch);
    put_whole(state, "seed", (uint64_t)tr_config_int(p->config, "seed", 1));
    put_whole(state, "metrics_bytes", (uint64_t)s->offsets.metrics);
    put_whole(state, "samples_bytes", (uint64_t)s->offsets.samples);
    put_whole(state, "sampled_units", c->sampled_units);
    put_whole(state, "sampled_samples", c->sampled_samples);
    put_whole(state, "trained_units", c->trained_units);
    put_whole(state, "trained_samples", c->trained_samples);
    put_whole(state, "wasted_tokens", c->wasted_units);
    put_whole(state, "restarts", s->restarts);
    put_whole(state, "restarts_base", s->restarts_base);
    json_object_set_new(state, "checkpointed", json_integer((json_int_t)s->checkpointed));
    put_real(state, "wall_s", s->wall_s);
    put_real(state, "accuracy_first", s->accuracy_first);
    put_real(state, "accuracy_last", s->accuracy_last);
    put_real(state, "reward_last", s->reward_last);
    json_t *ends = json_object();
    for (size_t i = 0; i < TR_ENDS_MAX && c->ends[i].groups > 0; i++) {
        put_whole(ends, c->ends[i].text, c->ends[i].groups);
    }
    json_object_set_new(state, "ends", ends);
    json_object_set_new(state, "line", json_string(s->line));
    json_object_set_new(state, "trainer", json_loads(text, JSON_REJECT_DUPLICATES, NULL));
    char *out = json_dumps(state, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    json_decref(state);
    return out;
}

static void
read_ends(const json_t *ends, tr_policy_counts *counts)
{
    const char *text = NULL;
    json_t *groups = NULL;
    size_t i = 0;
    json_object_foreach((json_t *)(uintptr_t)ends, text, groups)
    {
        if (i < TR_ENDS_MAX && json_integer_value(groups) > 0) {
            snprintf(counts->ends[i].text, TR_END_TEXT_MAX, "%s", text);
            counts->ends[i++].groups = (uint64_t)json_integer_value(groups);
        }
    }
}

static uint64_t
whole(const json_t *state, const char *key)
{
    int64_t value = tr_config_int(state, key, 0);
    return value > 0 ? (uint64_t)value : 0;
}

static void
read_state(const json_t *j, tr_policy_state *s)
{
    *s = (tr_policy_state){
        .step = tr_config_int(j, "step", 0),
        .checkpointed = tr_config_int(j, "checkpointed", -1),
        .offsets = {tr_config_int(j, "metrics_bytes", 0), tr_config_int(j, "samples_bytes", 0)},
        .counts = {.sampled_units = whole(j, "sampled_units"),
            .sampled_samples = whole(j, "sampled_samples"),
            .trained_units = whole(j, "trained_units"),
            .trained_samples = whole(j, "trained_samples"),
            .wasted_units = whole(j, "wasted_tokens")},
        .restarts = whole(j, "restarts"),
        .restarts_base = whole(j, "restarts_base"),
        .wall_s = tr_config_real(j, "wall_s", 0),
        .accuracy_first = tr_config_real(j, "accuracy_first", TR_UNKNOWN),
        .accuracy_last = tr_config_real(j, "accuracy_last", TR_UNKNOWN),
        .reward_last = tr_config_real(j, "reward_last", TR_UNKNOWN),
        .line = tr_strdup(tr_config_text(j, "line", "")),
    };
    read_ends(json_object_get(j, "ends"), &s->counts);
}

static troupe_status
read_progress(
    const json_t *j, const char *where, troupe_trainer_progress *progress, troupe_error *err)
{
    static const char *const needed[] = {"step", "metrics_bytes", "samples_bytes"};
    for (size_t i = 0; i < TR_COUNT(needed); i++) {
        if (!json_is_integer(json_object_get(j, needed[i]))) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "%s: \"%s\" is missing; resume from another checkpoint", where, needed[i]);
        }
    }
    char *text = json_dumps(json_object_get(j, "trainer"), JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (text == NULL) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%s: \"trainer\" is missing; resume from another checkpoint", where);
    }
    troupe_status status = troupe_trainer_progress_parse(text, progress, err);
    free(text); /* from jansson */
    return status;
}

troupe_status
tr_policy_state_parse(const char *text, size_t size, const char *where, tr_policy_state *state,
    troupe_trainer_progress *progress, troupe_error *err)
{
    json_error_t at;
    json_t *j = json_loadb(text, size, JSON_REJECT_DUPLICATES, &at);
    if (!json_is_object(j)) {
        int line = j == NULL ? at.line : 1;
        json_decref(j);
        return troupe_fail(err, TROUPE_BAD_INPUT, "%s line %d: %s; resume from another checkpoint",
            where, line, at.text);
    }
    troupe_status status = read_progress(j, where, progress, err);
    if (status == TROUPE_OK) {
        read_state(j, state);
    }
    json_decref(j);
    return status;
}

void
tr_policy_state_fini(tr_policy_state *state)
{
    tr_free(state->line);
    *state = (tr_policy_state){0};
}

void
tr_policy_state_apply(tr_policy *p, const tr_policy_state *s)
{
    p->step = s->step;
    p->checkpointed = s->checkpointed;
    p->offsets = s->offsets;
    p->counts = p->counts_at_commit = s->counts;
    p->restarts = s->restarts;
    p->restarts_base = s->restarts_base;
    p->wall_before = s->wall_s;
    p->accuracy_first = s->accuracy_first;
    p->accuracy_last = s->accuracy_last;
    p->reward_mean = s->reward_last;
    tr_buf_clear(&p->line);
    tr_buf_puts(&p->line, s->line);
}
