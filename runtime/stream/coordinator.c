/* The coordinator's life, its records, its timer; the messages are in the other files of that
 * name. */
#include "stream/coordinator.h"

#include <troupe/ext/host.h>
#include <troupe/ext/protocol.h>
#include <troupe/graph.h>

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    AGAIN_NS = 20 * 1000 * 1000, /* between two tries to send what found no room */
    LEDGER_BYTES_MAX = 256 << 20,
};

/* --- records ---------------------------------------------------------------------------------- */

void
tr_coordinator_record(struct tr_coordinator *c, const troupe_record *record)
{
    if (c->broken != TROUPE_OK) {
        return;
    }
    uint64_t now = troupe_realtime_ns(c->ctx);
    if (c->journal != NULL) {
        c->broken = troupe_journal_append(c->journal, record, now, &c->why);
        if (c->broken != TROUPE_OK) {
            troupe_log(c->ctx, "%s", c->why.text);
        }
    }
    if (c->broken == TROUPE_OK && c->hooks != NULL) {
        c->hooks->record(c->hooks->self, record, now);
    }
}

bool
tr_coordinator_sync(struct tr_coordinator *c)
{
    if (c->broken == TROUPE_OK && c->journal != NULL) {
        c->broken = troupe_journal_sync(c->journal, &c->why);
        if (c->broken != TROUPE_OK) {
            troupe_log(c->ctx, "%s", c->why.text);
        }
    }
    return c->broken == TROUPE_OK;
}

bool
tr_coordinator_refuses(struct tr_coordinator *c, troupe_call *call)
{
    if (c->broken == TROUPE_OK) {
        return false;
    }
    (void)troupe_reply_error(call, c->broken, "%s", c->why.text);
    return true;
}

void
tr_coordinator_reply(troupe_call *call, troupe_args *args, const char *what)
{
    if (troupe_reply(call, args) == TROUPE_INVALID) {
        (void)troupe_reply_error(call, TROUPE_FULL,
            "%s: the answer is too large for one message; make groups_per_step, group_size or "
            "retained_steps smaller",
            what);
    }
    troupe_args_fini(args);
}

/* To its caller an epoch that is over is STALE, whichever machine says so; GONE is the actor
 * layer's word for an incarnation that is no more. */
void
tr_coordinator_answer(troupe_call *call, troupe_status status, const char *what)
{
    if (status == TROUPE_OK) {
        (void)troupe_reply(call, NULL);
    } else if (status == TROUPE_GONE) {
        (void)troupe_reply_error(
            call, TROUPE_STALE, "%s: of an epoch or incarnation that is over", what);
    } else {
        (void)troupe_reply_error(call, status, "%s: %s", what, troupe_status_text(status));
    }
}

/* The tables of the store are memory that every process writes: what one of them has spoiled there
 * costs an object, not the node. */
void
tr_coordinator_release(struct tr_coordinator *c, uint64_t object)
{
    troupe_status status =
        troupe_object_release(troupe_ctx_store(c->ctx), troupe_object_of_word(object));
    if (status != TROUPE_OK) {
        troupe_log(c->ctx,
            "an object that this stream holds cannot be released (%s): the store's tables are "
            "damaged",
            troupe_status_name(status));
    }
}

/* --- notes ------------------------------------------------------------------------------------ */

struct tr_note *
tr_note_new(struct tr_coordinator *c, enum tr_note_kind kind)
{
    struct tr_note *note = tr_zalloc(1, sizeof *note);
    note->kind = kind;
    note->next = c->notes;
    if (c->notes != NULL) {
        c->notes->previous = note;
    }
    c->notes = note;
    return note;
}

void
tr_note_free(struct tr_coordinator *c, struct tr_note *note)
{
    if (note->previous != NULL) {
        note->previous->next = note->next;
    } else {
        c->notes = note->next;
    }
    if (note->next != NULL) {
        note->next->previous = note->previous;
    }
    for (uint32_t i = 0; i < note->object_count; i++) {
        tr_coordinator_release(c, note->objects[i]);
    }
    tr_free(note->objects);
    tr_free(note);
}

static void
send_note(struct tr_coordinator *c, struct tr_note *note)
{
    switch (note->kind) {
    case TR_NOTE_LEASE:
        tr_source_lease(c, note);
        break;
    case TR_NOTE_STAGE:
        tr_stage_score(c, note);
        break;
    case TR_NOTE_UPDATE:
        tr_source_update(c, note);
        break;
    case TR_NOTE_RETIRED:
        tr_note_free(c, note); /* never sent twice: it is told or it is not */
        break;
    }
}

static void
again_fired(troupe_ctx *ctx, void *user)
{
    struct tr_coordinator *c = troupe_state(ctx);
    send_note(c, user);
    tr_coordinator_settle(c);
}

void
tr_note_again(struct tr_coordinator *c, struct tr_note *note)
{
    if (troupe_timer_start_for(c->ctx, AGAIN_NS, "room at the one who is called, or in the store",
            again_fired, note, NULL) != TROUPE_OK) {
        tr_note_free(c, note); /* the machine's own deadline asks again */
    }
}

/* --- effects ---------------------------------------------------------------------------------- */

static void
stream_effect(void *self, const troupe_effect *e)
{
    struct tr_coordinator *c = self;
    struct tr_note *note = NULL;
    if (c->broken != TROUPE_OK && e->kind != TROUPE_EFFECT_RELEASE) {
        return;
    }
    switch (e->kind) {
    case TROUPE_EFFECT_RECORD:
        tr_coordinator_record(c, e->record);
        break;
    case TROUPE_EFFECT_LEASE:
    case TROUPE_EFFECT_STAGE:
        note = tr_note_new(c, e->kind == TROUPE_EFFECT_LEASE ? TR_NOTE_LEASE : TR_NOTE_STAGE);
        note->effect = *e;
        send_note(c, note);
        break;
    case TROUPE_EFFECT_CANCEL:
        tr_source_cancel(c, e);
        break;
    case TROUPE_EFFECT_GRANT:
        tr_sink_grant(c);
        break;
    case TROUPE_EFFECT_RETIRED:
        tr_sink_retired(c, e);
        break;
    case TROUPE_EFFECT_RELEASE:
        tr_coordinator_release(c, e->object);
        break;
    case TROUPE_EFFECT_ENDED:
        c->ended = true;
        break;
    }
}

static void
weights_effect(void *self, const troupe_weights_effect *e)
{
    struct tr_coordinator *c = self;
    struct tr_note *note = NULL;
    if (c->broken != TROUPE_OK && e->kind != TROUPE_WEIGHTS_RETIRE) {
        return;
    }
    switch (e->kind) {
    case TROUPE_WEIGHTS_RECORD:
        tr_coordinator_record(c, e->record);
        break;
    case TROUPE_WEIGHTS_SEND:
        note = tr_note_new(c, TR_NOTE_UPDATE);
        note->weights = *e;
        send_note(c, note);
        break;
    case TROUPE_WEIGHTS_RETIRE:
        tr_coordinator_release(c, e->object);
        break;
    case TROUPE_WEIGHTS_COMPLETE:
        c->publish_ms = (double)e->elapsed_ns / 1e6;
        break;
    }
}

/* --- time ------------------------------------------------------------------------------------- */

static void
timer_fired(troupe_ctx *ctx, void *user)
{
    struct tr_coordinator *c = user;
    uint64_t now = troupe_now_ns(ctx);
    c->timer_ns = UINT64_MAX;
    troupe_stream_tick(c->stream, now);
    troupe_weights_tick(c->weights, now);
    tr_coordinator_settle(c);
}

void
tr_coordinator_settle(struct tr_coordinator *c)
{
    if (c->broken != TROUPE_OK && c->take != NULL) {
        (void)tr_coordinator_refuses(c, c->take);
        c->take = NULL;
    }
    uint64_t next = TR_MIN(troupe_stream_deadline(c->stream), troupe_weights_deadline(c->weights));
    if (next == UINT64_MAX || next >= c->timer_ns) {
        return; /* an earlier timer looks again by itself */
    }
    uint64_t now = troupe_now_ns(c->ctx);
    if (c->timer_ns != UINT64_MAX) {
        (void)troupe_timer_cancel(c->ctx, c->timer);
    }
    c->timer_ns = next;
    uint64_t delay = next > now ? next - now : 0;
    if (troupe_timer_start_for(c->ctx, delay, "the next deadline of the stream", timer_fired, c,
            &c->timer) != TROUPE_OK) {
        c->timer_ns = UINT64_MAX; /* the next message tries again */
    }
}

/* --- making it -------------------------------------------------------------------------------- */

static troupe_status
make_role(troupe_ctx *ctx, const char *name, struct tr_role *role, troupe_error *err)
{
    int count = troupe_replicas(ctx, name);
    if (count <= 0) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "the stream's config names a role \"%s\" that the graph does not have", name);
    }
    role->name = tr_strdup(name);
    role->count = (uint32_t)count;
    role->replicas = tr_zalloc((size_t)count, sizeof role->replicas[0]);
    return TROUPE_OK;
}

static troupe_status
make_machines(struct tr_coordinator *c, troupe_error *err)
{
    troupe_stream_options *o = &c->config.stream;
    troupe_status status = make_role(c->ctx, c->config.source, &c->source, err);
    if (status == TROUPE_OK) {
        status = make_role(c->ctx, c->config.sink, &c->sinks, err);
    }
    o->sources = c->source.count;
    for (uint32_t i = 0; status == TROUPE_OK && i < o->stages; i++) {
        status = make_role(c->ctx, o->stage_names[i], &c->stages[i], err);
        c->stages[i].stage = i;
        o->stage_workers[i] = c->stages[i].count;
    }
    if (status != TROUPE_OK) {
        return status;
    }
    o->effect = stream_effect;
    o->effect_self = c;
    o->filter = c->config.filter_zero_variance ? tr_filter_zero_variance : NULL;
    o->filter_self = &c->config;
    status = troupe_stream_new(o, &c->stream, err);
    if (status != TROUPE_OK) {
        return status;
    }
    troupe_weights_options weights = {.size = sizeof weights,
        .receivers = c->source.count,
        .resend_ns = c->config.update_ns,
        .effect = weights_effect,
        .effect_self = c};
    return troupe_weights_new(&weights, &c->weights, err);
}

/* Sixteen digits that name the run. */
static void
make_run_id(const struct tr_coordinator *c, char *text, size_t size)
{
    uint64_t words[2] = {c->config.stream.seed, troupe_realtime_ns(c->ctx)};
    (void)snprintf(text, size, "%016" PRIx64, tr_mix(words, TR_COUNT(words)));
}

static troupe_status
read_ledger(const char *path, troupe_ledger *ledger, troupe_error *err)
{
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        return troupe_fail(err, TROUPE_NOT_FOUND,
            "%s: cannot open the checkpoint's ledger: %s; resume from another checkpoint", path,
            strerror(errno));
    }
    tr_buf text = {0};
    char piece[4096];
    size_t n = 0;
    while (text.size <= LEDGER_BYTES_MAX && (n = fread(piece, 1, sizeof piece, file)) > 0) {
        tr_buf_append(&text, piece, n);
    }
    (void)fclose(file);
    troupe_status status = troupe_ledger_from_json(text.data, text.size, path, ledger, err);
    tr_buf_fini(&text);
    return status;
}

/* The ledger's path with the step in it. */
static void
ledger_path(const struct tr_coordinator *c, uint64_t step, tr_buf *path)
{
    static const char mark[] = "{step}";
    const char *at = strstr(c->config.ledgers, mark);
    TR_ASSERT(at != NULL); /* the config's reading has seen to it */
    tr_buf_clear(path);
    tr_buf_append(path, c->config.ledgers, (size_t)(at - c->config.ledgers));
    tr_buf_printf(path, "%" PRIu64 "%s", step, at + sizeof mark - 1);
}

/* A later life of the node: the journal says which steps are durable, the newest of them whose
 * ledger can be read is gone back to. Never to the beginning because of an unreadable one. */
static troupe_status
find_durable(struct tr_coordinator *c, const troupe_journal_tail *tail, troupe_error *err)
{
    tr_buf path = {0};
    troupe_status status = TROUPE_OK;
    for (size_t i = tail->durable_count; i > 0 && !c->has_durable; i--) {
        ledger_path(c, tail->durable[i - 1], &path);
        status = read_ledger(path.data, &c->durable, err);
        if (status == TROUPE_OK && c->durable.step != tail->durable[i - 1]) {
            troupe_ledger_fini(&c->durable);
            status = troupe_fail(err, TROUPE_CORRUPT, "%s: is of another step", path.data);
        }
        c->has_durable = status == TROUPE_OK;
        if (!c->has_durable) {
            troupe_log(c->ctx, "%s", err->text);
        }
    }
    tr_buf_fini(&path);
    return status;
}

/* Goes on after an earlier process: its journal says up to where versions and epochs were used, the
 * checkpoint's ledger which groups are open. */
static troupe_status
resume(struct tr_coordinator *c, const troupe_journal_tail *tail, troupe_error *err)
{
    troupe_status status = TROUPE_OK;
    if (c->config.life > 1 && c->config.ledgers != NULL) {
        status = find_durable(c, tail, err);
    } else if (c->config.ledger != NULL) {
        status = read_ledger(c->config.ledger, &c->durable, err);
        c->has_durable = status == TROUPE_OK;
    }
    if (status == TROUPE_OK) {
        status = troupe_stream_rollback(c->stream, troupe_now_ns(c->ctx),
            c->has_durable ? &c->durable : NULL, tail->last_epoch, tail->last_published, err);
    }
    if (status == TROUPE_OK) {
        status = troupe_weights_rollback(
            c->weights, troupe_now_ns(c->ctx), troupe_stream_next_version(c->stream));
        TR_ASSERT(status == TROUPE_OK);
        c->commit_counters = troupe_stream_counters(c->stream);
    }
    if (tail->cut_bytes > 0) {
        troupe_log(c->ctx, "%s: cut %" PRIu64 " bytes of a record that was never finished",
            c->config.journal, tail->cut_bytes);
    }
    return c->broken != TROUPE_OK ? troupe_fail(err, c->broken, "%s", c->why.text) : status;
}

/* Whether any ledger lies where the config says that they lie, of whatever step. */
static bool
has_ledger(const struct tr_coordinator *c)
{
    static const char mark[] = "{step}";
    const char *pattern = c->config.ledgers;
    const char *at = pattern != NULL ? strstr(pattern, mark) : NULL;
    const char *slash = at;
    while (slash != NULL && slash > pattern && *slash != '/') {
        slash--;
    }
    if (at == NULL || *slash != '/') {
        return false;
    }
    tr_buf path = {0};
    tr_buf_append(&path, pattern, (size_t)(slash - pattern) + 1);
    size_t before = (size_t)(at - slash) - 1; /* of the name, in front of the number */
    size_t folder_size = path.size;
    tr_buf_append(&path, "", 1);
    bool found = false;
    DIR *folder = opendir(path.data);
    for (struct dirent *e; folder != NULL && !found && (e = readdir(folder)) != NULL;) {
        size_t digits = strncmp(e->d_name, slash + 1, before) == 0
                            ? strspn(e->d_name + before, "0123456789")
                            : 0;
        const char *rest = at + sizeof mark - 1;
        size_t own = strcspn(rest, "/");
        if (digits > 0 && strlen(e->d_name) == before + digits + own &&
            strncmp(e->d_name + before + digits, rest, own) == 0) {
            path.size = folder_size;
            tr_buf_printf(&path, "%s%s", e->d_name, rest + own);
            found = access(path.data, F_OK) == 0;
        }
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    tr_buf_fini(&path);
    return found;
}

static troupe_status
open_journal(struct tr_coordinator *c, troupe_error *err)
{
    const troupe_stream_options *o = &c->config.stream;
    char run_id[24];
    make_run_id(c, run_id, sizeof run_id);
    troupe_record_run run = {.run_id = run_id,
        .seed = o->seed,
        .groups_per_step = o->groups_per_step,
        .group_size = o->group_size,
        .mean_lag_milli = o->mean_lag_milli,
        .max_lag = o->max_lag,
        .order = troupe_order_name(o->order),
        .bound = troupe_bound_name(o->bound),
        .data_digest = o->data_digest,
        .rows = o->rows,
        .window_milli = o->window_milli,
        .stages = o->stage_names,
        .stage_count = o->stages};
    if (c->config.journal == NULL) {
        tr_coordinator_record(c, &(troupe_record){.kind = TROUPE_RECORD_RUN, .run = &run});
        return TROUPE_OK;
    }
    troupe_status status = TROUPE_NOT_FOUND;
    troupe_journal_tail tail;
    if (c->config.resume || c->config.life > 1) {
        status = troupe_journal_open(c->config.journal, &run, &c->journal, &tail, err);
    }
    /* An earlier life of the node may have ended before it had written anything. */
    if (status == TROUPE_NOT_FOUND && !c->config.resume) {
        if (c->config.life > 1 && has_ledger(c)) {
            return troupe_fail(err, TROUPE_CORRUPT,
                "%s: is gone, and the run has checkpoints: it was removed while the run was going "
                "on. It does not begin again at step 0; put the journal back, or begin another run",
                c->config.journal);
        }
        return troupe_journal_create(
            c->config.journal, &run, troupe_realtime_ns(c->ctx), &c->journal, err);
    }
    return status == TROUPE_OK ? resume(c, &tail, err) : status;
}

static troupe_status
watch_roles(struct tr_coordinator *c, troupe_error *err)
{
    troupe_status status = troupe_watch(c->ctx, c->source.name, tr_source_watch, &c->source);
    if (status == TROUPE_OK) {
        status = troupe_watch(c->ctx, c->sinks.name, tr_sink_watch, &c->sinks);
    }
    for (uint32_t i = 0; status == TROUPE_OK && i < c->config.stream.stages; i++) {
        status = troupe_watch(c->ctx, c->stages[i].name, tr_stage_watch, &c->stages[i]);
    }
    return status == TROUPE_OK
               ? TROUPE_OK
               : troupe_fail(err, status, "cannot watch the roles around the stream");
}

static troupe_status
coordinator_init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    struct tr_coordinator *c = troupe_state(ctx);
    c->ctx = ctx;
    c->hooks = tr_context(ctx);
    c->timer_ns = UINT64_MAX;
    c->publish_ms = -1;
    troupe_status status = tr_coordinator_config_parse(config, &c->config, err);
    if (status == TROUPE_OK) {
        status = make_machines(c, err);
    }
    if (status == TROUPE_OK && c->hooks != NULL && c->hooks->made != NULL) {
        c->hooks->made(c->hooks->self, c->stream);
    }
    if (status == TROUPE_OK) {
        status = open_journal(c, err);
    }
    return status == TROUPE_OK ? watch_roles(c, err) : status;
}

static void
release_object(void *self, uint64_t object)
{
    tr_coordinator_release(self, object);
}

static void
role_fini(struct tr_role *role)
{
    tr_free(role->name);
    tr_free(role->replicas);
}

static void
coordinator_fini(troupe_ctx *ctx)
{
    struct tr_coordinator *c = troupe_state(ctx);
    if (c->stream != NULL) {
        troupe_stream_objects(c->stream, release_object, c);
    }
    if (c->weights != NULL) {
        troupe_weights_objects(c->weights, release_object, c);
    }
    while (c->notes != NULL) {
        tr_note_free(c, c->notes);
    }
    (void)troupe_journal_close(c->journal, NULL);
    troupe_stream_free(c->stream);
    troupe_weights_free(c->weights);
    tr_mirror_drop(c, &c->mirror);
    role_fini(&c->source);
    role_fini(&c->sinks);
    tr_free(c->sink_cause);
    tr_free(c->end_reason);
    for (uint32_t i = 0; i < TROUPE_STREAM_STAGES_MAX; i++) {
        role_fini(&c->stages[i]);
    }
    tr_free(c->commit_json);
    troupe_ledger_fini(&c->commit_ledger);
    troupe_ledger_fini(&c->durable);
    tr_coordinator_config_fini(&c->config);
}

const struct troupe_stream_class *
troupe_coordinator(void)
{
    static const troupe_class type = {
        .name = "coordinator",
        .state_size = sizeof(struct tr_coordinator),
        .init = coordinator_init,
        .fini = coordinator_fini,
        .waits = tr_coordinator_waits,
        .methods = {{TROUPE_METHOD_SOURCE, tr_source_announced},
            {TROUPE_METHOD_SEALED, tr_source_sealed}, {TROUPE_METHOD_FAILED, tr_source_failed},
            {TROUPE_METHOD_OPEN, tr_sink_open}, {TROUPE_METHOD_PUBLISH, tr_sink_publish},
            {TROUPE_METHOD_TAKE, tr_sink_take}, {TROUPE_METHOD_COMMIT, tr_sink_commit},
            {TROUPE_METHOD_DURABLE, tr_sink_durable}, {TROUPE_METHOD_FINISH, tr_sink_finish},
            {TROUPE_METHOD_STATUS, tr_coordinator_status}},
    };
    static const troupe_stream_class stream_class = {
        .type = &type,
        .source_methods = {TROUPE_METHOD_LEASE, TROUPE_METHOD_CANCEL},
        .stage_methods = {TROUPE_METHOD_SCORE},
        .sink_methods = {TROUPE_METHOD_RETIRED},
        .receiver_methods = {TROUPE_METHOD_UPDATE},
    };
    return &stream_class;
}
