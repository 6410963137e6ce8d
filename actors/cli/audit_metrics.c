/* metrics.jsonl against what the journal says: the counters and lags to the digit, what hangs on
 * when the policy heard of an end within the bounds that the journal sets. */
#include "cli/audit_impl.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#define S(step) ((int64_t)(step))

static void
check_count(tr_audit *a, const json_t *line, uint64_t step, const char *key, uint64_t derived)
{
    uint64_t value = 0;
    const json_t *entry = json_object_get(line, key);
    if (json_is_null(entry)) {
        return; /* unknown is null */
    }
    if (!audit_line_u64(line, key, &value) || value != derived) {
        audit_report(a, "metrics-mismatch", AUDIT_NONE, S(step),
            "metrics.jsonl says %s %" PRIu64 ", the journal says %" PRIu64, key, value, derived);
    }
}

static void
check_real(tr_audit *a, const json_t *line, uint64_t step, const char *key, double derived)
{
    const json_t *entry = json_object_get(line, key);
    if (entry == NULL || json_is_null(entry)) {
        return;
    }
    double value = json_number_value(entry);
    if (!json_is_number(entry) || fabs(value - derived) > 1e-6 * fmax(1, fabs(derived))) {
        audit_report(a, "metrics-mismatch", AUDIT_NONE, S(step),
            "metrics.jsonl says %s %.9g, the journal says %.9g", key, value, derived);
    }
}

/* Restarts are counted up, over resumes too. */
static void
check_restarts(tr_audit *a, const json_t *line, uint64_t step)
{
    uint64_t restarts = 0;
    if (json_object_get(line, "restarts") == NULL) {
        return;
    }
    if (!audit_line_u64(line, "restarts", &restarts) || restarts < a->metrics_restarts) {
        audit_report(a, "metrics-mismatch", AUDIT_NONE, S(step),
            "metrics.jsonl says restarts %" PRIu64 ", the line before said %" PRIu64, restarts,
            a->metrics_restarts);
    }
    a->metrics_restarts = restarts;
}

/* A role that was restarted, or a rollback, leaves it open which samples the policy had counted. */
static bool
is_undisturbed(const tr_audit *a)
{
    return a->metrics_restarts == 0 && a->epochs == 0;
}

/* The journal says what had ended by the commit and by the next one; the policy heard of it in
 * between. */
static void
check_waste(tr_audit *a, const json_t *line, uint64_t step, const struct audit_step *s)
{
    uint64_t wasted = 0;
    if (json_object_get(line, "wasted_tokens") == NULL || !is_undisturbed(a)) {
        return;
    }
    if (!audit_line_u64(line, "wasted_tokens", &wasted) || wasted > s->wasted_units_most ||
        wasted < a->metrics_wasted) {
        audit_report(a, "metrics-mismatch", AUDIT_NONE, S(step),
            "metrics.jsonl says wasted_tokens %" PRIu64 ", the line before said %" PRIu64
            " and the journal has at most %" PRIu64,
            wasted, a->metrics_wasted, s->wasted_units_most);
        return;
    }
    a->metrics_wasted = wasted;
    const json_t *entry = json_object_get(line, "len_ratio");
    uint64_t samples = s->counters.trained * a->group_size;
    if (samples == 0 || s->trained_units == 0 || entry == NULL || json_is_null(entry)) {
        return;
    }
    double ratio = json_number_value(entry);
    double mean = (double)s->trained_units / (double)samples;
    double all = (double)(s->trained_units + wasted);
    double least = mean * (double)samples / all;
    double most = mean * (double)(samples + (wasted > 0 ? s->wasted_samples_most : 0)) / all;
    if (!json_is_number(entry) || ratio < least - 1e-6 || ratio > most + 1e-6) {
        audit_report(a, "metrics-mismatch", AUDIT_NONE, S(step),
            "metrics.jsonl says len_ratio %.9g, by the journal it is %.9g to %.9g", ratio, least,
            most);
    }
}

/* While nothing ended without being trained on, what was sampled since the last line is the
 * batch. */
static void
check_reward_sampled(tr_audit *a, const json_t *line, uint64_t step, const struct audit_step *s)
{
    uint64_t before = step > 2 ? a->steps[step - 2].wasted_samples : 0;
    if (is_undisturbed(a) && s->reward_count > 0 && before == s->wasted_samples_most) {
        check_real(a, line, step, "reward_sampled", s->reward_sum / (double)s->reward_count);
    }
}

/* Of the model's own numbers the journal knows nothing, but not every number is possible. */
static void
check_model(tr_audit *a, const json_t *line, uint64_t step)
{
    const json_t *accuracy = json_object_get(line, "accuracy");
    double value = json_number_value(accuracy);
    if (json_is_number(accuracy) && (value < 0 || value > 1)) {
        audit_report(a, "metrics-mismatch", AUDIT_NONE, S(step),
            "metrics.jsonl says accuracy %.9g, which is no share", value);
    }
    const json_t *most = json_object_get(line, "mismatch_max");
    const json_t *kl = json_object_get(line, "mismatch_kl");
    if (json_is_number(most) && json_is_number(kl) && json_number_value(most) == 0 &&
        json_number_value(kl) != 0) {
        audit_report(a, "metrics-mismatch", AUDIT_NONE, S(step),
            "metrics.jsonl says mismatch_kl %.9g and mismatch_max 0", json_number_value(kl));
    }
}

static void
check_metrics(tr_audit *a, const json_t *line, uint64_t number)
{
    uint64_t step = 0;
    if (!audit_line_u64(line, "step", &step)) {
        audit_report(a, "line-malformed", AUDIT_NONE, AUDIT_NONE,
            "metrics.jsonl line %" PRIu64 " has no step", number);
        return;
    }
    if (a->metrics_any ? step != a->metrics_step + 1 : step > 1) {
        audit_report(a, "step-order", AUDIT_NONE, S(step),
            "metrics.jsonl goes from step %" PRIu64 " to step %" PRIu64, a->metrics_step, step);
    }
    a->metrics_any = true;
    a->metrics_step = step;
    if (step == 0) {
        return; /* a line before the first step has nothing of the ledger to compare */
    }
    const struct audit_step *s = step < a->step_capacity ? &a->steps[step] : NULL;
    if (s == NULL || !s->committed) {
        audit_report(a, "metrics-mismatch", AUDIT_NONE, S(step),
            "metrics.jsonl shows a step that the journal does not have");
        return;
    }
    const struct audit_counters *c = &s->counters;
    check_count(a, line, step, "dispatched", c->dispatched);
    check_count(a, line, step, "trained", c->trained);
    check_count(a, line, step, "filtered", c->filtered);
    check_count(a, line, step, "stale", c->stale);
    check_count(a, line, step, "failed", c->failed);
    check_count(a, line, step, "queued", c->queued);
    check_count(a, line, step, "in_flight", c->in_flight);
    if (s->published) {
        check_count(a, line, step, "version", s->next_version);
    } else {
        audit_report(a, "metrics-mismatch", AUDIT_NONE, S(step),
            "metrics.jsonl shows a step whose weights the journal did not publish: the end of the "
            "journal is gone");
    }
    if (s->groups > 0) {
        check_real(a, line, step, "lag_head_mean", (double)s->head_sum / (double)s->groups);
        check_real(a, line, step, "lag_head_max", (double)s->head_max);
        check_real(a, line, step, "lag_tail_max", (double)s->tail_max);
        check_real(a, line, step, "lag_token_mean", (double)s->unit_sum / (double)s->units);
    }
    if (s->reward_count > 0) {
        check_real(a, line, step, "reward_mean", s->reward_sum / (double)s->reward_count);
    }
    check_restarts(a, line, step);
    check_waste(a, line, step, s);
    check_reward_sampled(a, line, step, s);
    check_model(a, line, step);
}

void
audit_metrics(tr_audit *a, const char *run_dir, uint64_t *lines)
{
    if (!audit_each_line(a, run_dir, "metrics.jsonl", check_metrics, lines)) {
        return;
    }
    /* A line is written before the next batch is asked for. */
    uint64_t due = a->taken || a->ended ? a->step : TR_MAX(a->step, 1) - 1;
    if (a->metrics_step < due || (a->ended && a->metrics_step > due)) {
        audit_report(a, "step-order", AUDIT_NONE, S(due),
            "metrics.jsonl ends with step %" PRIu64 ", the run %s step %" PRIu64, a->metrics_step,
            a->ended ? "ended after" : "had the line of", due);
    }
}
