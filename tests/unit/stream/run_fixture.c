/* The scripted run. One source samples every group at the version that it holds, but for two: one
 * loses a member to the death of the source, one is kept running over two updates. */
#include "run_fixture.h"

#include <cli/audit.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    UNITS = 6,
    RETRIED = 3,
    MIXED = 6,
};

struct player {
    struct run *run;
    troupe_stream *stream;
    troupe_weights *weights;
    uint64_t now;
    uint64_t version;
    uint64_t step;
    uint64_t incarnation;
    uint64_t objects;
    /* Leases to be finished. */
    troupe_effect leases[64];
    size_t lease_count;

    struct {
        uint32_t receiver;
        uint64_t incarnation;
        uint64_t version;
    } sends[64];

    size_t send_count;
    troupe_staged stages[256];
    size_t stage_count;
    uint64_t lease_versions[64];
};

static void
keep(struct run *run, const troupe_record *record)
{
    assert_true(run->count < RUN_RECORDS);
    struct kept *k = &run->records[run->count++];
    memset(k, 0, sizeof *k);
    k->record = *record;
    assert_true(record->span_count <= RUN_SPANS && record->group_count <= RUN_LISTED);
    for (size_t i = 0; i < record->span_count; i++) {
        k->spans[i] = record->spans[i];
    }
    for (size_t i = 0; i < record->group_count; i++) {
        k->groups[i] = record->groups[i];
        for (size_t m = 0; m < RUN_GROUP; m++) {
            k->attempts[i][m] =
                record->groups[i].attempts != NULL ? record->groups[i].attempts[m] : 0;
            k->digests[i][m] = record->groups[i].digests != NULL ? record->groups[i].digests[m] : 0;
        }
    }
    if (record->reason != NULL) {
        (void)snprintf(k->reason, sizeof k->reason, "%s", record->reason);
    }
}

static void
stream_effect(void *self, const troupe_effect *e)
{
    struct player *p = self;
    switch (e->kind) {
    case TROUPE_EFFECT_RECORD:
        keep(p->run, e->record);
        break;
    case TROUPE_EFFECT_LEASE:
        p->lease_versions[p->lease_count] = p->version;
        p->leases[p->lease_count++] = *e;
        break;
    case TROUPE_EFFECT_STAGE:
        p->stages[p->stage_count++] =
            (troupe_staged){e->epoch, e->group, e->member, e->attempt, e->stage, e->try_no};
        break;
    default:
        break;
    }
}

static void
weights_effect(void *self, const troupe_weights_effect *e)
{
    struct player *p = self;
    if (e->kind == TROUPE_WEIGHTS_RECORD) {
        keep(p->run, e->record);
    } else if (e->kind == TROUPE_WEIGHTS_SEND) {
        p->sends[p->send_count].receiver = e->receiver;
        p->sends[p->send_count].incarnation = e->incarnation;
        p->sends[p->send_count++].version = e->version;
    }
}

static double
reward_of(uint64_t group, uint32_t member)
{
    return (double)((group + member) % 4) / 4;
}

static void
make_ids(uint64_t group, uint32_t member, uint32_t attempt, int32_t ids[UNITS])
{
    for (int32_t i = 0; i < UNITS; i++) {
        ids[i] = (int32_t)(100 * group + 10 * member + attempt) + i;
    }
}

static void
answer_stages(struct player *p)
{
    for (size_t i = 0; i < p->stage_count; i++) {
        const troupe_staged *what = &p->stages[i];
        troupe_stage_value value = {
            .has_value = true, .value = reward_of(what->group, what->member)};
        (void)troupe_stream_staged(p->stream, p->now, what, &value);
    }
    p->stage_count = 0;
}

static void
seal(struct player *p, const troupe_effect *lease, uint32_t member, const troupe_span *spans,
    size_t count)
{
    int32_t ids[UNITS];
    make_ids(lease->group, member, lease->attempt, ids);
    troupe_sealed sealed = {.epoch = lease->epoch,
        .group = lease->group,
        .member = member,
        .attempt = lease->attempt,
        .object = ++p->objects,
        .digest = tr_xxh3(ids, sizeof ids, lease->group),
        .ids_digest = troupe_ids_digest(ids, UNITS),
        .units = UNITS,
        .held = spans[count - 1].version,
        .spans = spans,
        .span_count = count};
    troupe_status status = troupe_stream_sealed(p->stream, p->now, &sealed);
    assert_true(status == TROUPE_OK || status == TROUPE_GONE || status == TROUPE_STALE);
    char text[128] = "";
    size_t length = 0;
    for (size_t i = 0; i < count; i++) {
        length += (size_t)snprintf(text + length, sizeof text - length,
            "%s[%" PRIu64 ",%" PRIu64 "]", i > 0 ? "," : "", spans[i].unit, spans[i].version);
    }
    if (status != TROUPE_OK) {
        return;
    }
    /* The line as the sink would write it when the group has ended; step and status come then. */
    struct line *line = &p->run->samples[p->run->sample_count++];
    (void)snprintf(line->text, sizeof line->text,
        "\"group\":%" PRIu64 ",\"member\":%u,\"attempt\":%u,\"epoch\":%" PRIu64
        ",\"prompt\":\"p\",\"ids\":[%d,%d,%d,%d,"
        "%d,%d],\"text\":\"t\",\"reward\":%.17g,\"spans\":[%s],\"finish\":\"stop\"}",
        lease->group, member, lease->attempt, lease->epoch, ids[0], ids[1], ids[2], ids[3], ids[4],
        ids[5], reward_of(lease->group, member), text);
}

static void
seal_lease(struct player *p, size_t index)
{
    troupe_effect lease = p->leases[index];
    uint64_t began = p->lease_versions[index];
    for (uint32_t m = 0; m < RUN_GROUP; m++) {
        if ((lease.members >> m & 1) == 0) {
            continue;
        }
        troupe_span spans[3] = {{0, began}, {2, began + 1}, {4, began + 2}};
        bool mixed = lease.group == MIXED && m == 0 && p->version >= began + 2;
        size_t count = mixed ? 3 : 1;
        if (!mixed && p->version > began) {
            spans[1] = (troupe_span){5, p->version};
            count = 2;
        }
        seal(p, &lease, m, spans, count);
    }
}

static void
source_up(struct player *p)
{
    p->incarnation++;
    assert_int_equal(troupe_stream_source_up(p->stream, p->now, 0, p->incarnation, 100), TROUPE_OK);
    assert_int_equal(troupe_weights_receiver_up(p->weights, p->now, 0, p->incarnation), TROUPE_OK);
}

static void
apply_sends(struct player *p)
{
    for (size_t i = 0; i < p->send_count; i++) {
        if (troupe_weights_ack(p->weights, p->now, p->sends[i].receiver, p->sends[i].incarnation,
                p->sends[i].version) == TROUPE_OK) {
            assert_int_equal(troupe_stream_applied(p->stream, p->now, p->sends[i].receiver,
                                 p->sends[i].incarnation, p->sends[i].version),
                TROUPE_OK);
        }
    }
    p->send_count = 0;
}

/* The source dies between the two members of the retried group. */
static void
lose_member(struct player *p, size_t index)
{
    troupe_effect lease = p->leases[index];
    const troupe_span span = {0, p->lease_versions[index]};
    seal(p, &lease, 0, &span, 1);
    p->lease_count = 0;
    assert_int_equal(troupe_stream_source_down(p->stream, p->now, 0, p->incarnation), TROUPE_OK);
    assert_int_equal(
        troupe_weights_receiver_down(p->weights, p->now, 0, p->incarnation), TROUPE_OK);
    source_up(p);
    apply_sends(p);
}

static void
finish_leases(struct player *p)
{
    size_t held = 0;
    for (size_t i = 0; i < p->lease_count; i++) {
        troupe_effect lease = p->leases[i];
        if (lease.group == RETRIED && lease.attempt == 0 && lease.epoch == 0) {
            lose_member(p, i);
            i = SIZE_MAX; /* all leases were made anew */
            held = 0;
            continue;
        }
        if (lease.group == MIXED && p->version < p->lease_versions[i] + 2) {
            p->lease_versions[held] = p->lease_versions[i];
            p->leases[held++] = lease;
            continue;
        }
        seal_lease(p, i);
    }
    p->lease_count = held;
    answer_stages(p);
}

static void
publish(struct player *p)
{
    uint64_t epoch = troupe_stream_epoch(p->stream);
    p->version = troupe_stream_next_version(p->stream);
    assert_int_equal(
        troupe_weights_publish(p->weights, p->now, epoch, p->step, p->version, 1, 5 + p->version),
        TROUPE_OK);
    assert_int_equal(
        troupe_stream_published(p->stream, p->now, epoch, p->step, p->version), TROUPE_OK);
    apply_sends(p);
}

static void
metrics_line(struct player *p, const troupe_counters *c, uint64_t head_sum, uint64_t head_max)
{
    struct line *line = &p->run->metrics[p->run->metric_count++];
    (void)snprintf(line->text, sizeof line->text,
        "{\"step\":%" PRIu64 ",\"version\":%" PRIu64 ",\"lag_head_mean\":%.17g,\"lag_head_max\":"
        "%" PRIu64 ",\"accuracy\":null,\"dispatched\":%" PRIu64 ",\"trained\":%" PRIu64
        ",\"filtered\":%" PRIu64 ",\"stale\":%" PRIu64 ",\"failed\":%" PRIu64 ",\"queued\":%" PRIu64
        ",\"in_flight\":%" PRIu64 "}",
        p->step, p->version, (double)head_sum / RUN_BATCH, head_max, c->dispatched, c->trained,
        c->filtered, c->stale, c->failed, c->queued, c->in_flight);
}

static void
one_step(struct player *p)
{
    uint64_t epoch = troupe_stream_epoch(p->stream);
    troupe_status status = troupe_stream_take(p->stream, p->now, epoch, p->step + 1, p->version);
    assert_true(status == TROUPE_OK);
    size_t count = 0;
    const troupe_group_view *const *batch = troupe_stream_batch(p->stream, &count);
    troupe_verdict verdicts[RUN_BATCH];
    uint64_t digests[RUN_BATCH][RUN_GROUP];
    uint64_t head_sum = 0;
    uint64_t head_max = 0;
    for (size_t i = 0; i < count; i++) {
        for (uint32_t m = 0; m < RUN_GROUP; m++) {
            digests[i][m] = batch[i]->members[m].digest;
        }
        verdicts[i] = (troupe_verdict){.group = batch[i]->group, .digests = digests[i]};
        head_sum += p->version - batch[i]->head;
        head_max = TR_MAX(head_max, p->version - batch[i]->head);
    }
    troupe_commit commit = {
        .epoch = epoch, .step = p->step + 1, .verdicts = verdicts, .count = count};
    troupe_counters counters;
    assert_int_equal(troupe_stream_commit(p->stream, p->now, &commit, &counters), TROUPE_OK);
    p->step++;
    troupe_ledger_fini(&p->run->ledgers[p->step]);
    troupe_stream_snapshot(p->stream, &p->run->ledgers[p->step]);
    publish(p);
    metrics_line(p, &counters, head_sum, head_max);
    if (p->step % 3 == 0) {
        p->run->has_checkpoint[p->step] = true;
        assert_int_equal(troupe_stream_durable(p->stream, p->now, epoch, p->step, 0), TROUPE_OK);
    }
}

static void
make_machines(struct player *p)
{
    troupe_stream_options opt = {.size = sizeof opt,
        .seed = 4,
        .rows = 50,
        .data_digest = 77,
        .groups_per_step = RUN_BATCH,
        .group_size = RUN_GROUP,
        .mean_lag_milli = 2000,
        .max_lag = 3,
        .order = TROUPE_DROP,
        .sources = 1,
        .stages = 1,
        .stage_names = {"reward"},
        .stage_workers = {1},
        .lease_ns = 1000000,
        .stage_ns = 1000000,
        .lease_attempts = 5,
        .stage_tries = 3,
        .retained_steps = 8,
        .effect = stream_effect,
        .effect_self = p};
    troupe_weights_options weights = {.size = sizeof weights,
        .receivers = 1,
        .resend_ns = 1000000,
        .effect = weights_effect,
        .effect_self = p};
    troupe_error err = {0};
    assert_int_equal(troupe_stream_new(&opt, &p->stream, &err), TROUPE_OK);
    assert_int_equal(troupe_weights_new(&weights, &p->weights, &err), TROUPE_OK);
}

/* Back to the checkpoint of step 3, as a policy does that was killed after step 4. */
static void
roll_back(struct player *p)
{
    struct run *run = p->run;
    troupe_error err = {0};
    p->lease_count = 0;
    p->stage_count = 0;
    assert_int_equal(
        troupe_stream_rollback(p->stream, p->now, &run->ledgers[3], 0, 0, &err), TROUPE_OK);
    assert_int_equal(
        troupe_weights_rollback(p->weights, p->now, troupe_stream_next_version(p->stream)),
        TROUPE_OK);
    run->metric_count = 3;
    p->step = 3;
    /* Lines of groups that the ledger has open, or does not know, are moved aside. */
    size_t kept = 0;
    for (size_t i = 0; i < run->sample_count; i++) {
        unsigned long long group = 0;
        assert_int_equal(sscanf(run->samples[i].text, "\"group\":%llu", &group), 1);
        bool open = group >= run->ledgers[3].next_group;
        for (size_t k = 0; k < run->ledgers[3].open_count; k++) {
            open = open || run->ledgers[3].open[k].group == group;
        }
        if (!open) {
            run->samples[kept++] = run->samples[i];
        }
    }
    run->sample_count = kept;
    publish(p);
}

/* Now that it is known what became of each group, the lines get it. */
static void
finish_lines(struct run *run)
{
    static struct line lines[RUN_LINES];
    uint64_t steps[RUN_LINES];
    unsigned long long groups[RUN_LINES];
    for (size_t i = 0; i < run->sample_count; i++) {
        unsigned long long group = 0;
        uint64_t row = 0;
        const char *status = "failed";
        uint64_t step = RUN_STEPS;
        assert_int_equal(sscanf(run->samples[i].text, "\"group\":%llu", &group), 1);
        for (size_t r = 0; r < run->count; r++) {
            const troupe_record *record = &run->records[r].record;
            for (size_t g = 0; record->kind == TROUPE_RECORD_COMMITTED && g < record->group_count;
                 g++) {
                if (run->records[r].groups[g].group == group) {
                    status = "trained";
                    step = record->step;
                }
            }
            if (record->kind == TROUPE_RECORD_DISPATCHED && record->group == group) {
                row = record->item;
            }
        }
        (void)snprintf(lines[i].text, sizeof lines[i].text,
            "{\"step\":%" PRIu64 ",\"status\":\"%s\",\"row\":%" PRIu64 ",%.400s", step, status, row,
            run->samples[i].text);
        steps[i] = step;
        groups[i] = group;
    }
    /* A group's lines are written together, when it has ended. */
    for (size_t i = 0; i < run->sample_count; i++) {
        size_t at = 0;
        for (size_t k = 0; k < run->sample_count; k++) {
            bool before = steps[k] != steps[i]     ? steps[k] < steps[i]
                          : groups[k] != groups[i] ? groups[k] < groups[i]
                                                   : k < i;
            at += before ? 1 : 0;
        }
        run->samples[at] = lines[i];
    }
}

void
run_play(struct run *run, bool rolled_back)
{
    memset(run, 0, sizeof *run);
    struct player p = {.run = run};
    make_machines(&p);
    run->retried_group = RETRIED;
    run->mixed_group = MIXED;
    static const char *const stages[] = {"reward"};
    static const troupe_record_run about = {.run_id = "fixture",
        .seed = 4,
        .groups_per_step = RUN_BATCH,
        .group_size = RUN_GROUP,
        .mean_lag_milli = 2000,
        .max_lag = 3,
        .order = "drop",
        .bound = "group",
        .data_digest = 77,
        .rows = 50,
        .stages = stages,
        .stage_count = 1};
    keep(run, &(troupe_record){.kind = TROUPE_RECORD_RUN, .run = &about});
    source_up(&p);
    assert_int_equal(troupe_stream_worker_up(p.stream, 0, 0, 0, 1, 100), TROUPE_OK);
    publish(&p);
    while (p.step < RUN_STEPS) {
        p.now += 10;
        finish_leases(&p);
        one_step(&p);
        if (rolled_back && p.step == 4) {
            roll_back(&p);
            rolled_back = false;
        }
    }
    finish_leases(&p);
    assert_int_equal(troupe_stream_stop(p.stream, p.now, "all steps done"), TROUPE_OK);
    troupe_stream_free(p.stream);
    troupe_weights_free(p.weights);
    finish_lines(run);
}

void
run_free(struct run *run)
{
    for (size_t i = 0; i <= RUN_STEPS; i++) {
        troupe_ledger_fini(&run->ledgers[i]);
    }
    if (run->dir[0] != '\0') {
        char command[128];
        (void)snprintf(command, sizeof command, "rm -r %s", run->dir);
        assert_int_equal(system(command), 0);
    }
}

/* --- writing --------------------------------------------------------------------------------- */

static FILE *
create(const char *dir, const char *name)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    return file;
}

static void
write_lines(struct run *run, const char *name, const struct line *lines, size_t count)
{
    FILE *file = create(run->dir, name);
    for (size_t i = 0; i < count; i++) {
        (void)fprintf(file, "%s\n", lines[i].text);
    }
    assert_int_equal(fclose(file), 0);
}

/* Returns the digest of its manifest. */
static uint64_t
write_checkpoint(struct run *run, size_t step)
{
    char dir[128];
    (void)snprintf(dir, sizeof dir, "%s/checkpoint-%zu", run->dir, step);
    assert_int_equal(mkdir(dir, 0755), 0);
    char *ledger = troupe_ledger_to_json(&run->ledgers[step]);
    FILE *file = create(dir, "ledger.json");
    assert_int_equal(fputs(ledger, file) >= 0, 1);
    assert_int_equal(fclose(file), 0);
    char manifest[256];
    int size = snprintf(manifest, sizeof manifest,
        "{\"format\": 1, \"hash\": \"xxh3-64\", \"files\": {\"ledger.json\": {\"size\": %zu, "
        "\"xxh3\": \"%016" PRIx64 "\"}}}\n",
        strlen(ledger), tr_xxh3(ledger, strlen(ledger), 0));
    tr_free(ledger);
    file = create(dir, "manifest.json");
    assert_int_equal(fputs(manifest, file) >= 0, 1);
    assert_int_equal(fclose(file), 0);
    return tr_xxh3(manifest, (size_t)size, 0);
}

static void
write_record(struct run *run, struct kept *k, troupe_journal *journal)
{
    troupe_record record = k->record;
    troupe_record_group groups[RUN_LISTED];
    record.spans = k->spans;
    record.reason = k->reason;
    for (size_t i = 0; i < record.group_count; i++) {
        groups[i] = k->groups[i];
        groups[i].attempts = k->attempts[i];
        groups[i].digests = k->digests[i];
    }
    record.groups = groups;
    troupe_error err = {0};
    (void)run;
    assert_int_equal(troupe_journal_append(journal, &record, 1000, &err), TROUPE_OK);
}

void
run_write(struct run *run)
{
    (void)snprintf(run->dir, sizeof run->dir, "/tmp/troupe-audit-XXXXXX");
    assert_non_null(mkdtemp(run->dir));
    for (size_t step = 1; step <= RUN_STEPS; step++) {
        if (!run->has_checkpoint[step]) {
            continue;
        }
        uint64_t digest = write_checkpoint(run, step);
        for (size_t i = 0; i < run->count; i++) {
            troupe_record *record = &run->records[i].record;
            if (record->kind == TROUPE_RECORD_DURABLE && record->step == step &&
                record->digest == 0) {
                record->digest = digest;
            }
        }
    }
    char path[128];
    (void)snprintf(path, sizeof path, "%s/journal", run->dir);
    troupe_journal *journal = NULL;
    troupe_error err = {0};
    assert_int_equal(
        troupe_journal_create(path, run->records[0].record.run, 1000, &journal, &err), TROUPE_OK);
    for (size_t i = 1; i < run->count; i++) {
        write_record(run, &run->records[i], journal);
    }
    assert_int_equal(troupe_journal_close(journal, &err), TROUPE_OK);
    write_lines(run, "samples.jsonl", run->samples, run->sample_count);
    write_lines(run, "metrics.jsonl", run->metrics, run->metric_count);
    FILE *file = create(run->dir, "run.json");
    assert_int_equal(
        fputs("{\"format\": 1, \"options\": {\"seed\": 4, \"batch\": 2, \"group-size\": 2, "
              "\"max-lag\": 3, \"mean-lag\": 2.0, \"order\": \"drop\", \"rows\": 50}}\n",
            file) >= 0,
        1);
    assert_int_equal(fclose(file), 0);
}

int
run_judge(struct run *run, const char *expected)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    tr_audit_options options = {.size = sizeof options};
    troupe_error err = {0};
    int violations = troupe_audit(run->dir, out, &options, &err);
    assert_int_equal(fclose(out), 0);
    char named[80];
    (void)snprintf(named, sizeof named, "violation %s:", expected != NULL ? expected : "");
    bool as_expected =
        expected == NULL ? violations == 0 : violations > 0 && strstr(text, named) != NULL;
    if (!as_expected) {
        print_error("expected %s, got %d violations:\n%s%s\n",
            expected != NULL ? expected : "a clean run", violations, text, err.text);
        free(text);
        fail();
    }
    free(text);
    return violations;
}

void
run_judge_gone(struct run *run)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    tr_audit_options options = {.size = sizeof options};
    troupe_error err = {0};
    assert_true(troupe_audit(run->dir, out, &options, &err) >= 0);
    assert_int_equal(fclose(out), 0);
    for (const char *at = strstr(text, "violation "); at != NULL;
         at = strstr(at + 1, "\nviolation ")) {
        at += *at == '\n' ? 1 : 0;
        if (strncmp(at, "violation file-missing:", 23) != 0 &&
            strncmp(at, "violation checkpoint-missing:", 29) != 0) {
            fail_msg("%s", at);
        }
    }
    free(text);
}

int
run_audit(struct run *run, const char *expected)
{
    run_write(run);
    return run_judge(run, expected);
}

/* --- changing -------------------------------------------------------------------------------- */

struct kept *
run_find(struct run *run, troupe_record_kind kind, size_t n)
{
    for (size_t i = 0; i < run->count; i++) {
        if (run->records[i].record.kind == kind && n-- == 0) {
            return &run->records[i];
        }
    }
    fail_msg("no such record");
    return NULL;
}

struct kept *
run_find_group(struct run *run, troupe_record_kind kind, uint64_t group, size_t n)
{
    for (size_t i = 0; i < run->count; i++) {
        if (run->records[i].record.kind == kind && run->records[i].record.group == group &&
            n-- == 0) {
            return &run->records[i];
        }
    }
    fail_msg("no such record");
    return NULL;
}

void
run_remove(struct run *run, struct kept *kept)
{
    size_t at = (size_t)(kept - run->records);
    memmove(kept, kept + 1, (run->count - at - 1) * sizeof *kept);
    run->count--;
}

void
run_insert(struct run *run, const struct kept *before, const struct kept *what)
{
    struct kept copy = *what;
    size_t at = (size_t)(before - run->records);
    memmove(&run->records[at + 1], &run->records[at], (run->count - at) * sizeof copy);
    run->records[at] = copy;
    run->count++;
}

void
run_replace(struct line *lines, size_t count, const char *in, const char *from, const char *to)
{
    for (size_t i = 0; i < count; i++) {
        char *at = strstr(lines[i].text, in) != NULL ? strstr(lines[i].text, from) : NULL;
        if (at != NULL) {
            char rest[512];
            (void)snprintf(rest, sizeof rest, "%s", at + strlen(from));
            (void)snprintf(
                at, sizeof lines[i].text - (size_t)(at - lines[i].text), "%s%.300s", to, rest);
            return;
        }
    }
    fail_msg("no line has %s and %s", in, from);
}
