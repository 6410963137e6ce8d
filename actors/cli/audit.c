/* `troupe audit`: reads a run's records in order, hands each to the auditor's rules, prints what
 * was derived and every violation by name. */
#include "cli/audit_impl.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* --- the auditor ------------------------------------------------------------------------------ */

tr_audit *
tr_audit_new(tr_audit_fn violation, void *self)
{
    tr_audit *a = tr_zalloc(1, sizeof *a);
    a->violation = violation;
    a->self = self;
    return a;
}

void
tr_audit_free(tr_audit *a)
{
    if (a == NULL) {
        return;
    }
    for (size_t i = 0; i < a->group_count; i++) {
        audit_group_clear(a, &a->groups[i]);
    }
    for (size_t i = 0; i < a->snapshot_count; i++) {
        tr_free(a->snapshots[i].open);
    }
    audit_record_fini(&a->record);
    tr_free(a->groups);
    tr_free(a->snapshots);
    tr_free(a->sources);
    tr_free(a->steps);
    tr_free(a->row_user);
    tr_buf_fini(&a->notes);
    tr_free(a);
}

void
audit_report(tr_audit *a, const char *kind, int64_t group, int64_t step, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    a->violations++;
    a->violation(a->self, kind, group, step, text);
}

static void
take_run(tr_audit *a, const struct audit_record *r)
{
    if (a->has_run) {
        audit_report(a, "record-malformed", AUDIT_NONE, AUDIT_NONE,
            "record %" PRIu64 " is a second \"run\"", a->number);
        return;
    }
    a->has_run = true;
    a->batch = r->batch;
    a->group_size = r->group_size;
    a->mean_lag_milli = r->mean_lag_milli;
    a->max_lag = r->max_lag;
    a->rows = r->rows;
    a->window_milli = r->window_milli;
    a->data_digest = r->data_digest;
    a->seed = r->seed;
    a->stage_count = r->stage_count;
    memcpy(a->run_id, r->run_id, sizeof a->run_id);
    memcpy(a->order, r->order, sizeof a->order);
    memcpy(a->bound, r->bound, sizeof a->bound);
    memcpy(a->stages, r->stages, sizeof a->stages);
}

static void
judge(tr_audit *a, const struct audit_record *r)
{
    static void (*const rules[AUDIT_KINDS])(tr_audit *, const struct audit_record *) = {
        [AUDIT_RUN] = take_run,
        [AUDIT_DISPATCHED] = audit_dispatched,
        [AUDIT_LEASED] = audit_leased,
        [AUDIT_SEALED] = audit_sealed,
        [AUDIT_STAGED] = audit_staged,
        [AUDIT_TAKEN] = audit_taken,
        [AUDIT_COMMITTED] = audit_committed,
        [AUDIT_FILTERED] = audit_group_ended,
        [AUDIT_STALE] = audit_group_ended,
        [AUDIT_FAILED] = audit_group_ended,
        [AUDIT_PUBLISHED] = audit_published,
        [AUDIT_APPLIED] = audit_applied,
        [AUDIT_DURABLE] = audit_durable,
        [AUDIT_RELEASED] = audit_released,
        [AUDIT_ROLLED_BACK] = audit_rolled_back,
        [AUDIT_SNAPSHOT] = audit_snapshot_record,
        [AUDIT_ENDED] = audit_ended_record,
        [AUDIT_MIRRORED] = audit_mirrored,
        [AUDIT_REOPENED] = audit_reopened,
    };
    if (!a->has_run && r->kind != AUDIT_RUN) {
        audit_report(a, "record-malformed", AUDIT_NONE, AUDIT_NONE,
            "the journal does not begin with a \"run\" record");
        take_run(a, &(struct audit_record){
                        .batch = 1, .group_size = AUDIT_GROUP_SIZE_MAX, .rows = UINT64_MAX});
    }
    if (a->ended && r->kind != AUDIT_ROLLED_BACK) {
        audit_report(a, "record-after-end", AUDIT_NONE, AUDIT_NONE,
            "record %" PRIu64 " (\"%s\") comes after the end of the job", a->number,
            audit_kind_name(r->kind));
    }
    rules[r->kind](a, r);
}

void
tr_audit_record(tr_audit *a, const void *body, size_t size)
{
    if (audit_decode(body, size, &a->record)) {
        judge(a, &a->record);
    } else {
        audit_report(a, "record-malformed", AUDIT_NONE, AUDIT_NONE,
            "record %" PRIu64 " of the journal does not parse", a->number);
    }
    a->number++;
}

void
tr_audit_end(tr_audit *a)
{
    audit_finish(a);
}

/* --- a run ------------------------------------------------------------------------------------ */

struct report {
    tr_audit *audit;
    FILE *out;
    const tr_audit_options *options;
    json_t *list; /* of violations, for --json */
    uint64_t torn_bytes, samples, metrics, checkpoints;
    struct audit_record record; /* for --dump */
};

static void
on_violation(void *self, const char *kind, int64_t group, int64_t step, const char *text)
{
    struct report *r = self;
    if (r->list != NULL) {
        json_t *entry = json_pack("{s:s}", "kind", kind);
        json_object_set_new(entry, "group", group < 0 ? json_null() : json_integer(group));
        json_object_set_new(entry, "step", step < 0 ? json_null() : json_integer(step));
        json_t *string = json_string(text);
        json_object_set_new(entry, "text", string != NULL ? string : json_string("(not UTF-8)"));
        json_array_append_new(r->list, entry);
        return;
    }
    (void)fprintf(r->out, "violation %s:", kind);
    if (group >= 0) {
        (void)fprintf(r->out, " group %" PRId64, group);
    }
    if (step >= 0) {
        (void)fprintf(r->out, "%s step %" PRId64, group >= 0 ? "," : "", step);
    }
    (void)fprintf(r->out, "%s %s\n", group >= 0 || step >= 0 ? ":" : "", text);
}

static void
on_body(void *self, const void *body, size_t size)
{
    struct report *r = self;
    tr_audit_record(r->audit, body, size);
}

static void
on_broken(void *self, uint64_t record, uint64_t offset, const char *what)
{
    struct report *r = self;
    audit_report(r->audit, "chain-broken", AUDIT_NONE, AUDIT_NONE,
        "record %" PRIu64 " at byte %" PRIu64 " of the journal %s", record, offset, what);
}

static void
on_dump(void *self, const void *body, size_t size)
{
    struct report *r = self;
    if (audit_decode(body, size, &r->record)) {
        audit_dump(&r->record, r->out);
    } else {
        audit_report(r->audit, "record-malformed", AUDIT_NONE, AUDIT_NONE, "does not parse");
    }
}

static json_t *
lags_json(const tr_audit *a)
{
    size_t used = AUDIT_LAG_BUCKETS;
    while (used > 0 && a->lags[used - 1] == 0) {
        used--;
    }
    json_t *lags = json_array();
    for (size_t i = 0; i < used; i++) {
        json_array_append_new(lags, json_integer((json_int_t)a->lags[i]));
    }
    return lags;
}

static void
print_json(struct report *r)
{
    const tr_audit *a = r->audit;
    const struct audit_counters *c = &a->counters;
    json_t *counters = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "dispatched",
        (json_int_t)c->dispatched, "trained", (json_int_t)c->trained, "filtered",
        (json_int_t)c->filtered, "stale", (json_int_t)c->stale, "failed", (json_int_t)c->failed,
        "queued", (json_int_t)c->queued, "in_flight", (json_int_t)c->in_flight);
    json_t *root =
        json_pack("{s:i, s:I, s:I, s:I, s:I, s:b, s:I, s:I, s:I, s:I, s:o, s:o, s:s, s:O}",
            "schema", 1, "records", (json_int_t)a->number, "epochs", (json_int_t)a->epochs + 1,
            "step", (json_int_t)a->step, "version", (json_int_t)a->version, "ended",
            a->ended ? 1 : 0, "torn_bytes", (json_int_t)r->torn_bytes, "samples",
            (json_int_t)r->samples, "metrics", (json_int_t)r->metrics, "checkpoints",
            (json_int_t)r->checkpoints, "counters", counters, "lags", lags_json(a), "notes",
            a->notes.size > 0 ? a->notes.data : "", "violations", r->list);
    char *text = json_dumps(root, JSON_INDENT(2));
    (void)fprintf(r->out, "%s\n", text != NULL ? text : "{}");
    free(text); /* from jansson */
    json_decref(root);
}

static void
print_text(struct report *r)
{
    const tr_audit *a = r->audit;
    const struct audit_counters *c = &a->counters;
    FILE *out = r->out;
    (void)fprintf(out,
        "run %s: %" PRIu64 " records, %" PRIu64 " epochs, step %" PRIu64 ", version %" PRIu64
        ", %s\n",
        a->run_id, a->number, a->epochs + 1, a->step, a->version, a->ended ? "ended" : "not ended");
    (void)fprintf(out,
        "ledger: dispatched %" PRIu64 " = trained %" PRIu64 " + filtered %" PRIu64
        " + stale %" PRIu64 " + failed %" PRIu64 " + queued %" PRIu64 " + in flight %" PRIu64 "\n",
        c->dispatched, c->trained, c->filtered, c->stale, c->failed, c->queued, c->in_flight);
    (void)fprintf(out, "head lag of trained groups:");
    for (size_t i = 0; i < AUDIT_LAG_BUCKETS; i++) {
        if (a->lags[i] > 0) {
            (void)fprintf(
                out, " %zu%s: %" PRIu64, i, i + 1 == AUDIT_LAG_BUCKETS ? "+" : "", a->lags[i]);
        }
    }
    (void)fprintf(out, " (max_lag ");
    if (a->max_lag < 0) {
        (void)fprintf(out, "none)\n");
    } else {
        (void)fprintf(out, "%" PRId64 ", by %s)\n", a->max_lag, a->bound);
    }
    (void)fprintf(out,
        "compared: %" PRIu64 " lines of samples.jsonl, %" PRIu64 " of metrics.jsonl, %" PRIu64
        " checkpoints\n",
        r->samples, r->metrics, r->checkpoints);
    if (r->torn_bytes > 0) {
        (void)fprintf(out,
            "note: %" PRIu64
            " bytes of an unfinished record at the end; it was never acknowledged\n",
            r->torn_bytes);
    }
    for (const char *at = a->notes.size > 0 ? a->notes.data : ""; *at != '\0';) {
        size_t size = strcspn(at, "\n");
        (void)fprintf(out, "note: %.*s\n", (int)size, at);
        at += size + 1;
    }
    (void)fprintf(out, "%" PRIu64 " violations\n", a->violations);
}

/* The journal with what stands beside it. */
static void
compare(struct report *r, const char *run_dir)
{
    audit_run_json(r->audit, run_dir);
    audit_samples(r->audit, run_dir, &r->samples);
    audit_metrics(r->audit, run_dir, &r->metrics);
    audit_checkpoints(r->audit, run_dir, r->options->quick, &r->checkpoints);
}

int
troupe_audit(const char *run_dir, FILE *out, const tr_audit_options *options, troupe_error *err)
{
    struct report r = {.out = out, .options = options};
    r.list = options->json && !options->dump ? json_array() : NULL;
    r.audit = tr_audit_new(on_violation, &r);
    tr_buf path = {0};
    tr_buf_printf(&path, "%s/journal", run_dir);
    struct audit_file_events events = {
        .body = options->dump ? on_dump : on_body, .broken = on_broken, .self = &r};
    int result = -1;
    if (audit_file_read(path.data, &events, err)) {
        r.torn_bytes = events.torn_bytes;
        if (!options->dump) {
            tr_audit_end(r.audit);
            if (!options->journal_only) {
                compare(&r, run_dir);
            }
            (options->json ? print_json : print_text)(&r);
        }
        result = (int)TR_MIN(r.audit->violations, (uint64_t)INT32_MAX);
    }
    tr_buf_fini(&path);
    audit_record_fini(&r.record);
    json_decref(r.list);
    tr_audit_free(r.audit);
    return result;
}

int
troupe_cli_audit(int argc, char **argv)
{
    static const char *const known[] = {"--json", "--dump", "--quick", "--help"};
    tr_audit_options options = {.size = sizeof options};
    const char *run = NULL;
    for (int i = 1; i < argc; i++) {
        options.json = options.json || strcmp(argv[i], "--json") == 0;
        options.dump = options.dump || strcmp(argv[i], "--dump") == 0;
        options.quick = options.quick || strcmp(argv[i], "--quick") == 0;
        bool is_known = false;
        for (size_t k = 0; k < TR_COUNT(known); k++) {
            is_known = is_known || strcmp(argv[i], known[k]) == 0;
        }
        if (strcmp(argv[i], "--help") == 0) {
            printf(
                "usage: troupe audit RUN [--json] [--dump] [--quick]\n"
                "Checks a run's journal, samples, metrics and checkpoints against each other.\n");
            return 0;
        }
        if (!is_known && (argv[i][0] == '-' || run != NULL)) {
            const char *near = tr_nearest(argv[i], known, TR_COUNT(known));
            fprintf(stderr, "troupe audit: unknown option %s%s%s\n", argv[i],
                near != NULL ? ", did you mean " : "", near != NULL ? near : "");
            return 2;
        }
        run = is_known ? run : argv[i];
    }
    if (run == NULL) {
        fprintf(stderr, "usage: troupe audit RUN [--json] [--dump] [--quick]\n");
        return 2;
    }
    troupe_error err = {0};
    int violations = troupe_audit(run, stdout, &options, &err);
    if (violations < 0) {
        fprintf(stderr, "troupe audit: %s\n", err.text);
        return 2;
    }
    return violations == 0 ? 0 : 1;
}
