/* What a run of flow_toy leaves: a line of metrics.jsonl a step, a line of samples.jsonl for each
 * sample that reached its end, checkpoints, and the summary on the screen. */
#include "policy.h"

#include <troupe/ext/wire.h>

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SAMPLES_BYTES_MAX (INT64_C(1) << 30)

/* --- files ------------------------------------------------------------------------------------ */

static troupe_status
open_lines(const policy *p, const char *name, FILE **file, troupe_error *err)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", p->config.out, name);
    *file = fopen(path, "abe");
    return *file != NULL
               ? TROUPE_OK
               : troupe_fail(err, TROUPE_IO, "%s: cannot be opened: %s; give another --out", path,
                     strerror(errno));
}

troupe_status
policy_open_records(policy *p, troupe_error *err)
{
    troupe_status status = open_lines(p, "metrics.jsonl", &p->metrics, err);
    return status == TROUPE_OK ? open_lines(p, "samples.jsonl", &p->samples, err) : status;
}

void
policy_close_records(policy *p)
{
    FILE *files[] = {p->metrics, p->samples};
    for (size_t i = 0; i < TR_COUNT(files); i++) {
        if (files[i] != NULL) {
            (void)fclose(files[i]); /* each line was flushed when it was written */
        }
    }
}

static troupe_status
flush(const policy *p, FILE *file, const char *name, troupe_error *err)
{
    return fflush(file) == 0 && !ferror(file)
               ? TROUPE_OK
               : troupe_fail(err, TROUPE_IO, "%s/%s: cannot be written: %s; make room",
                     p->config.out, name, strerror(errno));
}

/* --- samples.jsonl ---------------------------------------------------------------------------- */

typedef struct sample_line {
    int64_t step;
    uint64_t group, row;
    int member;
    uint32_t attempt;
    double reward;
    const char *status, *reason;
    const troupe_sample *sample;
} sample_line;

/* There are no ids and no text: the sample is no language. */
static void
write_sample(policy *p, const sample_line *line)
{
    if (p->samples_bytes > SAMPLES_BYTES_MAX) {
        return;
    }
    size_t count = 0;
    const troupe_span *spans = troupe_sample_spans(line->sample, &count);
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(
            list, json_pack("[I, I]", (json_int_t)spans[i].unit, (json_int_t)spans[i].version));
    }
    json_t *object = json_pack("{s:I, s:I, s:I, s:i, s:I, s:I, s:n, s:n, s:n, s:o, s:s, s:s, s:o}",
        "step", (json_int_t)line->step, "epoch", (json_int_t)p->epoch, "group",
        (json_int_t)line->group, "member", line->member, "attempt", (json_int_t)line->attempt,
        "row", (json_int_t)line->row, "prompt", "ids", "text", "reward",
        isfinite(line->reward) ? json_real(line->reward) : json_null(), "status", line->status,
        "finish", troupe_sample_finish(line->sample), "spans", list);
    if (line->reason[0] != '\0') {
        (void)json_object_set_new(object, "reason", json_string(line->reason));
    }
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(17));
    int n = fprintf(p->samples, "%s\n", text != NULL ? text : "null");
    free(text); /* from jansson */
    json_decref(object);
    p->samples_bytes += n;
    if (p->samples_bytes > SAMPLES_BYTES_MAX) {
        (void)fprintf(p->samples, "{\"truncated\":true}\n");
    }
}

troupe_status
policy_write_samples(policy *p, troupe_error *err)
{
    for (int g = 0; g < p->count; g++) {
        for (int m = 0; m < p->config.group_size; m++) {
            const member *s = &p->members[g * p->config.group_size + m];
            const group *of = &p->groups[g];
            write_sample(p, &(sample_line){.step = p->step + 1,
                                .group = of->id,
                                .row = of->row,
                                .member = m,
                                .attempt = s->attempt,
                                .reward = s->reward,
                                .status = group_verdict(of),
                                .reason = of->refused == NULL ? "" : of->reason,
                                .sample = s->sample});
        }
    }
    return flush(p, p->samples, "samples.jsonl", err);
}

/* [member, attempt, object or nil, array of stage values (number or nil)]; a member that was never
 * sealed leaves no line. */
static bool
write_retired(troupe_ctx *ctx, policy *p, tr_reader *in, sample_line *line)
{
    uint32_t fields = 0, stages = 0;
    uint64_t index = 0, attempt = 0, word = 0;
    line->reward = (double)NAN;
    bool ok =
        tr_read_array(in, &fields) && fields == 4 && tr_read_u64(in, &index) &&
        tr_read_u64(in, &attempt) &&
        (tr_reader_peek(in) == TR_WIRE_NIL ? tr_read_nil(in) : tr_read_u64(in, &word)) &&
        tr_read_array(in, &stages) && stages == 1 &&
        (tr_reader_peek(in) == TR_WIRE_NIL ? tr_read_nil(in) : tr_read_f64(in, &line->reward));
    troupe_sample *sample = NULL;
    if (ok && word != 0 &&
        troupe_sample_open(troupe_ctx_store(ctx), troupe_object_of_word(word), &sample, NULL) ==
            TROUPE_OK) {
        line->member = (int)index;
        line->attempt = (uint32_t)attempt;
        line->sample = sample;
        write_sample(p, line);
    }
    troupe_sample_close(sample);
    return ok;
}

void
policy_retired(troupe_ctx *ctx, troupe_call *call)
{
    policy *p = troupe_state(ctx);
    sample_line line = {.group = troupe_arg_u64(call, 1),
        .step = troupe_arg_i64(call, 2),
        .row = troupe_arg_u64(call, 3),
        .status = troupe_arg_str(call, 4),
        .reason = troupe_arg_str(call, 5)};
    tr_reader in;
    uint32_t members = 0;
    bool ok =
        troupe_args_ok(call) && troupe_arg_reader(call, 6, &in) && tr_read_array(&in, &members);
    for (uint32_t m = 0; ok && m < members; m++) {
        ok = write_retired(ctx, p, &in, &line);
    }
    troupe_error err = {0};
    if (!ok) {
        troupe_arg_refuse(call, 6, "does not parse");
    } else if (flush(p, p->samples, "samples.jsonl", &err) != TROUPE_OK) {
        (void)troupe_reply_error(call, TROUPE_IO, "%s", err.text);
        return;
    }
    (void)troupe_reply(call, NULL);
}

/* --- metrics.jsonl and the screen ------------------------------------------------------------- */

static double
distance(const policy *p)
{
    double sum = 0;
    for (int j = 0; j < FLOW_DIM; j++) {
        double off = (double)p->m[j] - (double)p->offset[j];
        sum += off * off;
    }
    return sqrt(sum / FLOW_DIM);
}

/* At the best centre the expected reward is -TAU2, up to what the finite steps of the sampler
 * change. */
static void
note_progress(policy *p)
{
    if (p->lags.units == 0) {
        p->reward_first = p->reward;
    }
    if (p->step_90 == 0 && p->reward >= p->reward_first + 0.9 * (-FLOW_TAU2 - p->reward_first)) {
        p->step_90 = p->step;
    }
    troupe_lag_add(&p->lags, &p->lag);
}

/* A number, null when it is not known. */
static void
put_real(const policy *p, const char *name, bool known, double value)
{
    if (known) {
        (void)fprintf(p->metrics, ",\"%s\":%.9g", name, value);
    } else {
        (void)fprintf(p->metrics, ",\"%s\":null", name);
    }
}

static void
put_counters(FILE *file, const troupe_counters *c)
{
    const char *const names[] = {
        "dispatched", "trained", "filtered", "stale", "failed", "queued", "in_flight"};
    const uint64_t values[] = {
        c->dispatched, c->trained, c->filtered, c->stale, c->failed, c->queued, c->in_flight};
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        (void)fprintf(file, ",\"%s\":%" PRIu64, names[i], values[i]);
    }
}

troupe_status
policy_write_metrics(policy *p, troupe_error *err)
{
    bool any = p->trained > 0;
    if (any) {
        note_progress(p);
    }
    const troupe_lag *lag = &p->lag;
    (void)fprintf(p->metrics, "{\"step\":%" PRId64 ",\"version\":%" PRIu64, p->step, p->version);
    put_real(p, "reward_mean", any, p->reward);
    put_real(p, "distance", true, distance(p));
    put_real(p, "lag_head_max", any, (double)lag->head);
    put_real(p, "lag_tail_max", any, (double)lag->tail);
    put_real(p, "lag_token_mean", any, any ? (double)lag->unit_sum / (double)lag->units : 0);
    put_counters(p->metrics, &p->counters);
    (void)fprintf(p->metrics, "}\n");
    if (p->step % 10 == 0 && any) {
        printf("step %" PRId64 "/%d  reward %.3f  distance %.3f  lag %" PRIu64 "\n", p->step,
            p->config.steps, p->reward, distance(p), lag->head);
        (void)fflush(stdout);
    }
    return flush(p, p->metrics, "metrics.jsonl", err);
}

void
policy_print_summary(const policy *p)
{
    double units = (double)TR_MAX(p->lags.units, 1), ratios = (double)TR_MAX(p->sums.ratios, 1);
    printf("%s: %" PRId64 " of %d steps, version %" PRIu64 "\n",
        p->step < p->config.steps ? "stopped" : "done", p->step, p->config.steps, p->version);
    printf("  reward: %.3f at the start, %.3f at the end; 90 %% of the gain ", p->reward_first,
        p->reward);
    if (p->step_90 > 0) {
        printf("at step %" PRId64 "\n", p->step_90);
    } else {
        printf("not reached\n");
    }
    printf("  rms(m - target): %.3f\n", distance(p));
    printf("  lag: mean %.2f, max %" PRIu64 "; clipped %.3f of the ratios\n",
        (double)p->lags.unit_sum / units, p->lags.head, (double)p->sums.clipped / ratios);
    printf("  log-probs computed again at equal weights: %" PRIu64 ", largest difference %g\n",
        p->sums.compared, p->sums.mismatch);
    const troupe_counters *c = &p->counters;
    printf("  groups: %" PRIu64 " dispatched = %" PRIu64 " trained + %" PRIu64 " stale + %" PRIu64
           " failed + %" PRIu64 " filtered\n",
        c->dispatched, c->trained, c->stale, c->failed, c->filtered);
    (void)fflush(stdout);
}

/* --- checkpoints ------------------------------------------------------------------------------ */

static void
add_numbers(tr_buf *out, const char *name, const double *values)
{
    tr_buf_printf(out, ",\"%s\":[", name);
    for (int j = 0; j < FLOW_DIM; j++) {
        tr_buf_printf(out, "%s%.17g", j > 0 ? "," : "", values[j]);
    }
    tr_buf_puts(out, "]");
}

static troupe_status
save_files(const policy *p, const char *dir, uint64_t *digest, troupe_error *err)
{
    double m[FLOW_DIM];
    for (int j = 0; j < FLOW_DIM; j++) {
        m[j] = (double)p->m[j];
    }
    tr_buf state = {0}, manifest = {0};
    tr_buf_printf(&state, "{\"step\":%" PRId64 ",\"version\":%" PRIu64 ",\"updates\":%" PRId64,
        p->step, p->version, p->adam.updates);
    add_numbers(&state, "m", m);
    add_numbers(&state, "adam_m", p->adam.first);
    add_numbers(&state, "adam_v", p->adam.second);
    tr_buf_puts(&state, "}\n");
    tr_buf_printf(&manifest,
        "{\"format\":1,\"hash\":\"xxh3-64\",\"files\":{"
        "\"ledger.json\":{\"size\":%zu,\"xxh3\":\"%016" PRIx64 "\"},"
        "\"policy.json\":{\"size\":%zu,\"xxh3\":\"%016" PRIx64 "\"}}}\n",
        strlen(p->ledger), tr_xxh3(p->ledger, strlen(p->ledger), 0), state.size,
        tr_xxh3(state.data, state.size, 0));
    *digest = tr_xxh3(manifest.data, manifest.size, 0);
    troupe_status status = toy_write_file(dir, "policy.json", state.data, state.size, err);
    if (status == TROUPE_OK) {
        status = toy_write_file(dir, "ledger.json", p->ledger, strlen(p->ledger), err);
    }
    if (status == TROUPE_OK) {
        status = toy_write_file(dir, "manifest.json", manifest.data, manifest.size, err);
    }
    tr_buf_fini(&state);
    tr_buf_fini(&manifest);
    return status;
}

/* The directory gets its name when it is complete. */
troupe_status
policy_save(policy *p, uint64_t *digest, troupe_error *err)
{
    char dir[4000], fresh[4096];
    (void)snprintf(dir, sizeof dir, "%s/checkpoint-%" PRId64, p->config.out, p->step);
    (void)snprintf(fresh, sizeof fresh, "%s.tmp-%ld", dir, (long)getpid());
    bool ok =
        fsync(fileno(p->metrics)) == 0 && fsync(fileno(p->samples)) == 0 && mkdir(fresh, 0777) == 0;
    if (ok) {
        troupe_status status = save_files(p, fresh, digest, err);
        if (status != TROUPE_OK) {
            return status;
        }
        ok = rename(fresh, dir) == 0;
    }
    if (!ok) {
        return troupe_fail(
            err, TROUPE_IO, "%s: cannot be written: %s; make room", dir, strerror(errno));
    }
    return toy_sync_dir(p->config.out, err);
}
