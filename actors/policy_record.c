/* What a run leaves for people and for the auditor: metrics.jsonl, one line a step, samples.jsonl,
 * one line a sample that reached its end, and the numbers of the progress line. Unknown is null;
 * counters are cumulative over resumes. */
#include "policy.h"

#include <troupe/ext/wire.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- samples.jsonl --------------------------------------------------------------------------- */

typedef struct sample_line {
    int64_t step;
    uint64_t group;
    int member;
    uint32_t attempt;
    uint64_t row;
    double reward;
    const char *status;
    const char *reason;
    const troupe_sample *sample;
} sample_line;

static void
write_ids(tr_buf *out, const int32_t *ids, int count)
{
    tr_buf_puts(out, "[");
    for (int i = 0; i < count; i++) {
        tr_buf_printf(out, i > 0 ? ",%d" : "%d", ids[i]);
    }
    tr_buf_puts(out, "]");
}

static void
write_line(tr_policy *p, tr_buf *out, const sample_line *line)
{
    tr_buf text = {0};
    troupe_error err = {0};
    troupe_lm_sample tokens = {0};
    tr_buf_printf(out,
        "{\"step\":%lld,\"epoch\":%llu,\"group\":%llu,\"member\":%d,\"attempt\":%u,\"row\":%llu",
        (long long)line->step, (unsigned long long)p->epoch, (unsigned long long)line->group,
        line->member, line->attempt, (unsigned long long)line->row);
    tr_buf_puts(out, ",\"prompt\":");
    if (tr_prompts_text(&p->prompts, line->row, &text, &err) == TROUPE_OK) {
        tr_line_string(out, text.data != NULL ? text.data : "", text.size);
    } else {
        tr_buf_puts(out, "null");
    }
    if (tr_lm_sample_of(line->sample, &tokens, &err) == TROUPE_OK) {
        tr_buf_clear(&text);
        troupe_tokenizer_decode(p->prompts.tokenizer, tokens.tokens, (size_t)tokens.token_count,
            TROUPE_DECODE_SKIP_SPECIAL, &text);
        tr_buf_puts(out, ",\"ids\":");
        write_ids(out, tokens.tokens, tokens.token_count);
        tr_buf_puts(out, ",\"text\":");
        tr_line_string(out, text.data != NULL ? text.data : "", text.size);
    } else {
        tr_buf_puts(out, ",\"ids\":null,\"text\":null");
    }
    tr_buf_puts(out, ",\"reward\":");
    tr_line_real(out, line->reward);
    tr_buf_printf(out, ",\"status\":\"%s\"", line->status);
    if (line->reason != NULL && line->reason[0] != '\0') {
        tr_buf_puts(out, ",\"reason\":");
        tr_line_string(out, line->reason, strlen(line->reason));
    }
    size_t count = 0;
    const troupe_span *spans = troupe_sample_spans(line->sample, &count);
    tr_buf_puts(out, ",\"spans\":[");
    for (size_t i = 0; i < count; i++) {
        tr_buf_printf(out, "%s[%llu,%llu]", i > 0 ? "," : "", (unsigned long long)spans[i].unit,
            (unsigned long long)spans[i].version);
    }
    tr_buf_printf(out, "],\"finish\":\"%s\"}\n", troupe_sample_finish(line->sample));
    tr_buf_fini(&text);
}

troupe_status
tr_policy_write_samples(tr_policy *p, int64_t step, troupe_error *err)
{
    tr_buf lines = {0};
    for (int g = 0; g < p->batch.count; g++) {
        const tr_batch_group *group = &p->batch.groups[g];
        for (int m = 0; m < p->group_size; m++) {
            const tr_batch_member *member = &group->members[m];
            sample_line line = {step, group->group, m, member->attempt, group->row, member->reward,
                group->verdict, group->reason, member->sample};
            if (member->sample != NULL) {
                write_line(p, &lines, &line);
            }
        }
    }
    troupe_status status = tr_run_dir_samples(p->files, &lines, err);
    tr_buf_fini(&lines);
    return status;
}

/* One member of a `retired` call: [member, attempt, object or nil, array of stage values]. */
static bool
retired_member(troupe_ctx *ctx, tr_policy *p, tr_reader *in, sample_line *line, tr_buf *lines)
{
    uint32_t fields = 0, stages = 0;
    uint64_t member = 0, attempt = 0, word = 0;
    if (!tr_read_array(in, &fields) || fields != 4 || !tr_read_u64(in, &member) ||
        !tr_read_u64(in, &attempt)) {
        return false;
    }
    bool ok = tr_reader_peek(in) == TR_WIRE_NIL ? tr_read_nil(in) : tr_read_u64(in, &word);
    ok = ok && tr_read_array(in, &stages);
    line->reward = TR_UNKNOWN;
    for (uint32_t s = 0; ok && s < stages; s++) {
        double value = TR_UNKNOWN;
        ok = tr_reader_peek(in) == TR_WIRE_NIL ? tr_read_nil(in) : tr_read_f64(in, &value);
        line->reward = (int)s == p->stage_reward ? value : line->reward;
    }
    troupe_sample *sample = NULL;
    if (!ok || word == 0 ||
        troupe_sample_open(troupe_ctx_store(ctx), troupe_object_of_word(word), &sample, NULL) !=
            TROUPE_OK) {
        return ok; /* never sealed: there is nothing to show */
    }
    line->member = (int)member;
    line->attempt = (uint32_t)attempt;
    line->sample = sample;
    tr_policy_count(p, troupe_sample_units(sample), line->reward, false);
    write_line(p, lines, line);
    troupe_sample_close(sample);
    return true;
}

enum {
    FAILED_BATCHES_MAX = 10
};

/* A run in which every group fails would go on for ever and never train. */
static void
count_failure(troupe_ctx *ctx, tr_policy *p, const char *reason)
{
    int64_t batch = tr_config_int(p->config, "batch", 1);
    if (++p->failed_in_a_row >= FAILED_BATCHES_MAX * batch) {
        tr_policy_fail(
            ctx, p, TROUPE_FAILED, "no batch could be made, the last groups all failed", reason);
    }
}

void
tr_policy_retired(troupe_ctx *ctx, troupe_call *call)
{
    tr_policy *p = troupe_state(ctx);
    sample_line line = {
        .group = troupe_arg_u64(call, 1),
        .step = troupe_arg_i64(call, 2),
        .row = troupe_arg_u64(call, 3),
        .status = troupe_arg_str(call, 4),
        .reason = troupe_arg_str(call, 5),
    };
    tr_reader in;
    uint32_t members = 0;
    bool ok =
        troupe_args_ok(call) && troupe_arg_reader(call, 6, &in) && tr_read_array(&in, &members);
    tr_buf lines = {0};
    for (uint32_t m = 0; ok && m < members; m++) {
        ok = retired_member(ctx, p, &in, &line, &lines);
    }
    troupe_error err = {0};
    troupe_status status = TROUPE_OK;
    if (!ok) {
        troupe_arg_refuse(call, 6, "does not parse");
    } else if (p->files != NULL) {
        status = tr_run_dir_samples(p->files, &lines, &err);
    }
    tr_buf_fini(&lines);
    if (ok) {
        bool stopped = strcmp(line.reason, "job ended") == 0;
        tr_policy_count_end(&p->counts, stopped ? "cancelled" : line.status,
            stopped ? "by the end of the run" : line.reason);
    }
    if (ok && strcmp(line.status, "failed") == 0 && !p->stopping) {
        count_failure(ctx, p, line.reason);
    }
    if (status != TROUPE_OK) {
        tr_policy_fail(ctx, p, status, "samples.jsonl", err.text);
        (void)troupe_reply_error(call, status, "%s", err.text);
        return;
    }
    (void)troupe_reply(call, NULL);
}

/* --- metrics.jsonl --------------------------------------------------------------------------- */

static double
resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long pages = 0;
    if (file != NULL) {
        if (fscanf(file, "%*s %ld", &pages) != 1) {
            pages = 0;
        }
        fclose(file);
    }
    return pages > 0 ? (double)pages * 4096 : TR_UNKNOWN;
}

static void
real(tr_buf *out, const char *name, double value)
{
    tr_buf_printf(out, ",\"%s\":", name);
    tr_line_real(out, value);
}

static void
whole(tr_buf *out, const char *name, uint64_t value)
{
    tr_buf_printf(out, ",\"%s\":%llu", name, (unsigned long long)value);
}

/* What the rollouts did between their two newest answers, all replicas together: shares of time,
 * and in *tokens_per_s the sum of their rates. A rollout that has not answered since the last line,
 * or began anew, adds nothing. */
static tr_rollout_stats
rollouts_since(tr_policy *p, double *tokens_per_s)
{
    tr_rollout_stats sum = {0};
    double rate = 0;
    bool any = false;
    for (int i = 0; i < TR_ROLLOUTS_MAX; i++) {
        const tr_rollout_stats *now = &p->rollouts[i];
        tr_rollout_stats *before = &p->rollouts_before[i];
        bool usable = before->at_ns != 0 && now->at_ns > before->at_ns &&
                      now->tokens >= before->tokens && now->busy_ns >= before->busy_ns;
        if (usable) {
            double elapsed_s = (double)(now->at_ns - before->at_ns) / 1e9;
            rate += (double)(now->tokens - before->tokens) / elapsed_s;
            sum.busy_ns += now->busy_ns - before->busy_ns;
            sum.idle_ns += now->idle_ns - before->idle_ns;
            sum.full_ns += now->full_ns - before->full_ns;
            sum.swap_ns += now->swap_ns - before->swap_ns;
            any = true;
        }
        *before = *now;
    }
    *tokens_per_s = any ? rate : TR_UNKNOWN;
    return sum;
}

static double
share(double part, double of)
{
    return of > 0 ? part / of : TR_UNKNOWN;
}

static void
lag_fields(tr_buf *out, const tr_policy *p)
{
    const troupe_lag *lag = &p->batch.lag;
    bool any = p->batch.trained > 0;
    real(out, "lag_head_mean", p->lag_head_mean);
    real(out, "lag_head_max", any ? (double)lag->head : TR_UNKNOWN);
    real(out, "lag_tail_max", any ? (double)lag->tail : TR_UNKNOWN);
    real(
        out, "lag_token_mean", any ? share((double)lag->unit_sum, (double)lag->units) : TR_UNKNOWN);
    real(out, "mean_lag", tr_config_real(p->config, "mean-lag", TR_UNKNOWN));
    if (p->max_lag < 0) {
        tr_buf_puts(out, ",\"max_lag\":null");
    } else {
        whole(out, "max_lag", (uint64_t)p->max_lag);
    }
}

static void
time_fields(tr_buf *out, tr_policy *p)
{
    uint64_t now = tr_now_ns();
    double wall = (double)(now - p->line_ns) / 1e9;
    tr_rollout_stats rollouts = rollouts_since(p, &p->tokens_per_s);
    p->train_tokens_per_s = share((double)(p->trained_tokens - p->trained_tokens_before), wall);
    double total = (double)(p->waiting_ns + p->training_ns + p->other_ns);
    real(out, "tokens_per_s", p->tokens_per_s);
    real(out, "train_tokens_per_s", p->train_tokens_per_s);
    double trainer_idle = share((double)p->waiting_ns, total);
    double rollout_total = (double)(rollouts.idle_ns + rollouts.full_ns + rollouts.busy_ns);
    double rollout_idle = share((double)(rollouts.idle_ns + rollouts.full_ns), rollout_total);
    real(out, "trainer_idle", trainer_idle);
    real(out, "rollout_idle", rollout_idle);
    tr_buf_puts(out, ",\"idle\":{\"trainer_no_batch\":");
    tr_line_real(out, trainer_idle);
    tr_buf_puts(out, ",\"trainer_publish_eval_save\":");
    tr_line_real(out, share((double)p->other_ns, total));
    tr_buf_puts(out, ",\"rollout_not_admitted\":");
    tr_line_real(out, share((double)rollouts.idle_ns, rollout_total));
    tr_buf_puts(out, ",\"rollout_store_full\":");
    tr_line_real(out, share((double)rollouts.full_ns, rollout_total));
    tr_buf_puts(out, "}");
    real(out, "publish_ms", p->publish_ms);
    real(out, "swap_stall_ms", (double)rollouts.swap_ns / 1e6);
    real(out, "rss_bytes", resident_bytes());
    real(out, "wall_s", p->wall_before + (double)(now - p->begun_ns) / 1e9);
    p->line_ns = now;
    p->trained_tokens_before = p->trained_tokens;
    p->waiting_ns = p->training_ns = p->other_ns = 0;
}

void
tr_policy_begin_line(tr_policy *p)
{
    const troupe_rl_report *rl = &p->stats.rl;
    bool stepped = p->stats.tokens > 0;
    double unknown = TR_UNKNOWN;
    tr_buf *out = &p->line;
    tr_buf_clear(out);
    real(out, "reward_mean", p->reward_mean);
    real(out, "loss", stepped ? p->stats.loss : unknown);
    real(out, "kl", stepped ? rl->kl : unknown);
    real(out, "entropy", stepped ? rl->entropy : unknown);
    real(out, "clip_frac", stepped ? rl->clip_frac : unknown);
    real(out, "ess", stepped ? rl->ess : unknown);
    real(out, "mismatch_kl", stepped ? rl->mismatch_kl : unknown);
    real(out, "mismatch_max", stepped ? rl->mismatch_max : unknown);
    real(out, "grad_norm", stepped ? p->stats.grad_norm : unknown);
    real(out, "lr", stepped ? p->stats.lr : unknown);
    whole(out, "zero_variance", (uint64_t)p->zero_variance);
    tr_buf_puts(out, p->stats.skipped ? ",\"skipped\":true" : ",\"skipped\":false");
    lag_fields(out, p);
    real(out, "length_mean", share((double)p->length_sum, (double)p->length_count));
    real(out, "length_max", p->length_count > 0 ? (double)p->length_max : unknown);
}

/* A mirror of 0 bytes is none: not asked for, or no room for it. */
static void
mirror_fields(tr_buf *out, const tr_policy *p)
{
    whole(out, "mirror_bytes", p->mirror_bytes);
    real(out, "mirror_ms", p->mirror_bytes > 0 ? (double)p->mirror_ns / 1e6 : TR_UNKNOWN);
    whole(out, "mirrors_missed", p->mirrors_missed);
    whole(out, "restarts", p->restarts);
}

troupe_status
tr_policy_write_metrics(troupe_ctx *ctx, tr_policy *p, troupe_error *err)
{
    tr_buf out = {0};
    tr_buf_printf(&out, "{\"step\":%lld,\"version\":%llu", (long long)p->step,
        (unsigned long long)p->version);
    real(&out, "time_s", (double)(troupe_realtime_ns(ctx) / 1000000) / 1e3);
    tr_buf_append(&out, p->line.data, p->line.size);
    real(&out, "reward_sampled", share(p->reward_sum, (double)p->reward_count));
    real(&out, "accuracy", p->accuracy);
    whole(&out, "eval_errors", p->eval_errors);
    whole(&out, "dispatched", p->counters.dispatched);
    whole(&out, "trained", p->counters.trained);
    whole(&out, "filtered", p->counters.filtered);
    whole(&out, "stale", p->counters.stale);
    whole(&out, "failed", p->counters.failed);
    whole(&out, "queued", p->counters.queued);
    whole(&out, "in_flight", p->counters.in_flight);
    double trained = share((double)p->counts.trained_units, (double)p->counts.trained_samples);
    real(&out, "len_ratio",
        trained / share((double)p->counts.sampled_units, (double)p->counts.sampled_samples));
    whole(&out, "wasted_tokens", p->counts.wasted_units);
    mirror_fields(&out, p);
    time_fields(&out, p);
    tr_buf_puts(&out, "}\n");
    p->reward_sum = 0;
    p->reward_count = 0;
    troupe_status status = tr_run_dir_metrics(p->files, &out, err);
    tr_buf_fini(&out);
    return status;
}

/* --- progress ------------------------------------------------------------ */

/* A number, or a dash while it is unknown. */
static void
shown(tr_buf *out, const char *before, double value, int digits)
{
    if (isfinite(value)) {
        tr_buf_printf(out, "%s%.*f", before, digits, value);
    } else {
        tr_buf_printf(out, "%s-", before);
    }
}

void
tr_policy_summary(const tr_policy *p, tr_buf *out)
{
    const troupe_counters *c = &p->counters;
    const char *how = p->code != 0 ? "failed" : p->step >= p->steps ? "done" : "stopped";
    tr_buf_printf(out, "%s: %lld of %lld steps", how, (long long)p->step, (long long)p->steps);
    shown(out, " in ", p->wall_before + (double)(tr_now_ns() - p->begun_ns) / 1e9, 1);
    tr_buf_printf(out, " s, version %llu\n", (unsigned long long)p->version);
    shown(out, "  held-out accuracy ", p->accuracy_last, 3);
    shown(out, ", before training ", p->accuracy_first, 3);
    shown(out, "; reward of the last step ", p->reward_mean, 3);
    tr_buf_printf(out,
        "\n  groups: %llu dispatched = %llu trained + %llu filtered + %llu stale + %llu failed + "
        "%llu queued + %llu in flight",
        (unsigned long long)c->dispatched, (unsigned long long)c->trained,
        (unsigned long long)c->filtered, (unsigned long long)c->stale,
        (unsigned long long)c->failed, (unsigned long long)c->queued,
        (unsigned long long)c->in_flight);
    double trained = share((double)p->counts.trained_units, (double)p->counts.trained_samples);
    tr_buf_printf(out, "\n  wasted tokens %llu", (unsigned long long)p->counts.wasted_units);
    shown(out, ", trained/sampled length ",
        trained / share((double)p->counts.sampled_units, (double)p->counts.sampled_samples), 3);
    for (size_t i = 0; i < TR_ENDS_MAX && p->counts.ends[i].groups > 0; i++) {
        tr_buf_printf(out, "%s %llu %s", i == 0 ? "\n  not trained on:" : ";",
            (unsigned long long)p->counts.ends[i].groups, p->counts.ends[i].text);
    }
    if (p->restarts > 0) {
        tr_buf_printf(out, "\n  roles restarted %llu times", (unsigned long long)p->restarts);
    }
    if (p->checkpointed >= 0) {
        tr_buf_printf(out, "\n  %s/checkpoint-%lld; go on with --resume %s", p->run,
            (long long)p->checkpointed, p->run);
    }
    tr_buf_puts(out, "\n");
}

/* Answers: done, code, step, steps, reward, accuracy, loss, kl, entropy, head lag, generated
 * tokens/s, trained tokens/s, phase, failure, and, when done, the summary. */
void
tr_policy_progress(troupe_ctx *ctx, troupe_call *call)
{
    static const char *const phases[] = {"opening", "publishing", "waiting for a batch", "training",
        "committing", "evaluating", "saving", "finishing", "done"};
    tr_policy *p = troupe_state(ctx);
    bool done = p->phase == TR_POLICY_DONE;
    tr_buf summary = {0};
    if (done) {
        tr_policy_summary(p, &summary);
    }
    troupe_args args = {0};
    troupe_args_bool(&args, done);
    troupe_args_i64(&args, p->code);
    troupe_args_i64(&args, p->step);
    troupe_args_i64(&args, p->steps);
    troupe_args_f64(&args, p->reward_mean);
    troupe_args_f64(&args, p->accuracy_last);
    troupe_args_f64(&args, p->stats.loss);
    troupe_args_f64(&args, p->stats.tokens > 0 ? p->stats.rl.kl : TR_UNKNOWN);
    troupe_args_f64(&args, p->stats.tokens > 0 ? p->stats.rl.entropy : TR_UNKNOWN);
    troupe_args_f64(&args, p->lag_head_mean);
    troupe_args_f64(&args, p->tokens_per_s);
    troupe_args_f64(&args, p->train_tokens_per_s);
    troupe_args_str(&args, phases[p->phase]);
    troupe_args_str(&args, p->failure);
    troupe_args_str(&args, done ? summary.data : "");
    (void)troupe_reply(call, &args);
    tr_buf_fini(&summary);
}
