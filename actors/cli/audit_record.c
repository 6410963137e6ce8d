/* Decoding and dumping of journal records: the auditor's own reading of the format. */
#include "cli/audit_impl.h"

#include <troupe/ext/wire.h>

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[AUDIT_KINDS] = {"run", "dispatched", "leased", "sealed", "staged",
    "taken", "committed", "filtered", "stale", "failed", "published", "applied", "durable",
    "released", "rolled_back", "snapshot", "ended", "mirrored", "reopened"};

const char *
audit_kind_name(enum audit_kind kind)
{
    return names[kind];
}

void
audit_record_fini(struct audit_record *r)
{
    tr_free(r->spans);
    tr_free(r->listed);
    *r = (struct audit_record){0};
}

/* --- decoding --------------------------------------------------------------------------------- */

/* Copies a string, cut to the room: reasons are for people. */
static bool
read_text(tr_reader *in, char *out, size_t room)
{
    const char *text = NULL;
    size_t size = 0;
    if (!tr_read_str(in, &text, &size)) {
        return false;
    }
    size = TR_MIN(size, room - 1);
    memcpy(out, text, size);
    out[size] = '\0';
    return true;
}

static bool
read_run(tr_reader *in, struct audit_record *r)
{
    uint32_t stages = 0;
    bool ok = tr_read_u64(in, &r->format) && read_text(in, r->run_id, sizeof r->run_id) &&
              tr_read_u64(in, &r->seed) && tr_read_u64(in, &r->batch) &&
              tr_read_u64(in, &r->group_size) && tr_read_u64(in, &r->mean_lag_milli) &&
              tr_read_i64(in, &r->max_lag) && read_text(in, r->order, sizeof r->order) &&
              read_text(in, r->bound, sizeof r->bound) && tr_read_u64(in, &r->data_digest) &&
              tr_read_u64(in, &r->rows) && tr_read_u64(in, &r->window_milli) &&
              tr_read_array(in, &stages) && stages <= AUDIT_STAGES_MAX;
    r->stage_count = stages;
    for (uint32_t i = 0; ok && i < stages; i++) {
        ok = read_text(in, r->stages[i], sizeof r->stages[i]);
    }
    return ok && r->format == 1 && r->group_size >= 1 && r->group_size <= AUDIT_GROUP_SIZE_MAX &&
           r->batch >= 1 && r->rows >= 1;
}

static bool
read_spans(tr_reader *in, struct audit_record *r)
{
    uint32_t count = 0;
    if (!tr_read_array(in, &count)) {
        return false;
    }
    if (count > r->span_capacity) {
        r->span_capacity = count;
        r->spans = tr_realloc(r->spans, count, sizeof r->spans[0]);
    }
    r->span_count = count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t pair = 0;
        if (!tr_read_array(in, &pair) || pair != 2 || !tr_read_u64(in, &r->spans[i].unit) ||
            !tr_read_u64(in, &r->spans[i].version)) {
            return false;
        }
    }
    return true;
}

static bool
read_listed_members(tr_reader *in, enum audit_kind kind, struct audit_listed *listed)
{
    uint32_t pair = 0;
    if (kind == AUDIT_ROLLED_BACK) {
        return tr_read_u64(in, &listed->attempt);
    }
    if (!tr_read_array(in, &listed->members) || listed->members > AUDIT_GROUP_SIZE_MAX) {
        return false;
    }
    for (uint32_t m = 0; m < listed->members; m++) {
        if (kind == AUDIT_TAKEN &&
            (!tr_read_array(in, &pair) || pair != 2 || !tr_read_u64(in, &listed->attempts[m]))) {
            return false;
        }
        if (!tr_read_u64(in, &listed->digests[m])) {
            return false;
        }
    }
    return true;
}

static bool
read_listed(tr_reader *in, struct audit_record *r)
{
    uint32_t count = 0;
    if (!tr_read_array(in, &count)) {
        return false;
    }
    if (count > r->listed_capacity) {
        r->listed_capacity = count;
        r->listed = tr_realloc(r->listed, count, sizeof r->listed[0]);
    }
    r->listed_count = count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t pair = 0;
        r->listed[i] = (struct audit_listed){0};
        if (!tr_read_array(in, &pair) || pair != 2 || !tr_read_u64(in, &r->listed[i].group) ||
            !read_listed_members(in, r->kind, &r->listed[i])) {
            return false;
        }
    }
    return true;
}

static bool
read_staged(tr_reader *in, struct audit_record *r)
{
    bool ok = tr_read_u64(in, &r->epoch) && tr_read_u64(in, &r->group) &&
              tr_read_u64(in, &r->member) && tr_read_u64(in, &r->attempt) &&
              tr_read_u64(in, &r->stage);
    r->has_value = ok && tr_reader_peek(in) != TR_WIRE_NIL;
    ok = ok && (r->has_value ? tr_read_f64(in, &r->value) : tr_read_nil(in));
    r->has_digest = ok && tr_reader_peek(in) != TR_WIRE_NIL;
    return ok && (r->has_digest ? tr_read_u64(in, &r->digest) : tr_read_nil(in));
}

static bool
read_words(tr_reader *in, uint64_t *const *into, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!tr_read_u64(in, into[i])) {
            return false;
        }
    }
    return true;
}

#define WORDS(...)                                   \
    read_words(in, (uint64_t *const[]){__VA_ARGS__}, \
        sizeof((uint64_t *const[]){__VA_ARGS__}) / sizeof(uint64_t *))

static bool
read_fields(tr_reader *in, struct audit_record *r)
{
    switch (r->kind) {
    case AUDIT_RUN:
        return read_run(in, r);
    case AUDIT_DISPATCHED:
        return WORDS(&r->epoch, &r->group, &r->item);
    case AUDIT_LEASED:
        return WORDS(&r->epoch, &r->group, &r->attempt, &r->members, &r->source);
    case AUDIT_SEALED:
        return WORDS(&r->epoch, &r->group, &r->member, &r->attempt, &r->units, &r->digest,
                   &r->ids_digest) &&
               read_spans(in, r) && WORDS(&r->held);
    case AUDIT_STAGED:
        return read_staged(in, r);
    case AUDIT_TAKEN:
    case AUDIT_COMMITTED:
        return WORDS(&r->epoch, &r->step, &r->version) && read_listed(in, r);
    case AUDIT_FILTERED:
    case AUDIT_STALE:
    case AUDIT_FAILED:
        return WORDS(&r->epoch, &r->group, &r->step) && read_text(in, r->reason, AUDIT_REASON_MAX);
    case AUDIT_PUBLISHED:
        return WORDS(&r->epoch, &r->step, &r->version, &r->digest);
    case AUDIT_APPLIED:
        return WORDS(&r->source, &r->version);
    case AUDIT_DURABLE:
        return WORDS(&r->epoch, &r->step, &r->digest);
    case AUDIT_RELEASED:
        return WORDS(&r->epoch, &r->group);
    case AUDIT_ROLLED_BACK:
        return WORDS(&r->epoch, &r->step, &r->version, &r->next_version, &r->next_group) &&
               read_listed(in, r);
    case AUDIT_SNAPSHOT:
        return WORDS(&r->epoch, &r->step, &r->next_group);
    case AUDIT_ENDED:
        return WORDS(&r->epoch, &r->step) && read_text(in, r->reason, AUDIT_REASON_MAX);
    case AUDIT_MIRRORED:
        return WORDS(&r->epoch, &r->step, &r->digest, &r->bytes);
    case AUDIT_REOPENED:
        return WORDS(&r->epoch, &r->step, &r->version) &&
               read_text(in, r->reason, AUDIT_REASON_MAX) && WORDS(&r->digest, &r->kept);
    case AUDIT_KINDS:
        break;
    }
    return false;
}

bool
audit_decode(const void *body, size_t size, struct audit_record *r)
{
    struct audit_record kept = {.spans = r->spans,
        .span_capacity = r->span_capacity,
        .listed = r->listed,
        .listed_capacity = r->listed_capacity};
    *r = kept;
    tr_reader in;
    uint32_t count = 0;
    uint64_t kind = 0;
    tr_reader_init(&in, body, size);
    if (!tr_read_array(&in, &count) || !tr_read_u64(&in, &kind) || kind >= AUDIT_KINDS ||
        !tr_read_u64(&in, &r->time_ns)) {
        return false;
    }
    r->kind = (enum audit_kind)kind;
    return read_fields(&in, r) && tr_reader_done(&in);
}

/* --- dumping ---------------------------------------------------------------------------------- */

static void
put_word(json_t *o, const char *key, uint64_t value)
{
    json_object_set_new(o, key, json_integer((json_int_t)value));
}

static void
put_hex(json_t *o, const char *key, uint64_t value)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%016" PRIx64, value);
    json_object_set_new(o, key, json_string(text));
}

/* A reason comes from outside and may be no UTF-8: then its bytes are shown as they are not. */
static void
put_text(json_t *o, const char *key, const char *text)
{
    json_t *string = json_string(text);
    json_object_set_new(o, key, string != NULL ? string : json_string("(not UTF-8)"));
}

static json_t *
dump_spans(const struct audit_record *r)
{
    json_t *spans = json_array();
    for (size_t i = 0; i < r->span_count; i++) {
        json_array_append_new(spans,
            json_pack("[I, I]", (json_int_t)r->spans[i].unit, (json_int_t)r->spans[i].version));
    }
    return spans;
}

static json_t *
dump_listed(const struct audit_record *r)
{
    json_t *groups = json_array();
    for (size_t i = 0; i < r->listed_count; i++) {
        const struct audit_listed *listed = &r->listed[i];
        json_t *group = json_object();
        put_word(group, "group", listed->group);
        if (r->kind == AUDIT_ROLLED_BACK) {
            put_word(group, "attempt", listed->attempt);
        }
        json_t *members = json_array();
        for (uint32_t m = 0; m < listed->members; m++) {
            json_t *member = json_object();
            if (r->kind == AUDIT_TAKEN) {
                put_word(member, "attempt", listed->attempts[m]);
            }
            put_hex(member, "digest", listed->digests[m]);
            json_array_append_new(members, member);
        }
        if (r->kind != AUDIT_ROLLED_BACK) {
            json_object_set_new(group, "members", members);
        } else {
            json_decref(members);
        }
        json_array_append_new(groups, group);
    }
    return groups;
}

static void
dump_run(json_t *o, const struct audit_record *r)
{
    put_text(o, "run_id", r->run_id);
    put_word(o, "format", r->format);
    put_word(o, "seed", r->seed);
    put_word(o, "groups_per_step", r->batch);
    put_word(o, "group_size", r->group_size);
    put_word(o, "mean_lag_milli", r->mean_lag_milli);
    json_object_set_new(o, "max_lag", json_integer((json_int_t)r->max_lag));
    put_text(o, "order", r->order);
    put_text(o, "bound", r->bound);
    put_hex(o, "data_digest", r->data_digest);
    put_word(o, "rows", r->rows);
    put_word(o, "window_milli", r->window_milli);
    json_t *stages = json_array();
    for (uint32_t i = 0; i < r->stage_count; i++) {
        json_array_append_new(stages, json_string(r->stages[i]));
    }
    json_object_set_new(o, "stages", stages);
}

static void
dump_member(json_t *o, const struct audit_record *r)
{
    put_word(o, "member", r->member);
    put_word(o, "attempt", r->attempt);
    if (r->kind == AUDIT_STAGED) {
        put_word(o, "stage", r->stage);
        json_object_set_new(
            o, "value", r->has_value && isfinite(r->value) ? json_real(r->value) : json_null());
        if (r->has_digest) {
            put_hex(o, "digest", r->digest);
        }
        return;
    }
    put_word(o, "units", r->units);
    put_hex(o, "digest", r->digest);
    put_hex(o, "ids_digest", r->ids_digest);
    json_object_set_new(o, "spans", dump_spans(r));
    put_word(o, "held", r->held);
}

static void
dump_step(json_t *o, const struct audit_record *r)
{
    put_word(o, "step", r->step);
    if (r->kind == AUDIT_TAKEN || r->kind == AUDIT_COMMITTED || r->kind == AUDIT_PUBLISHED ||
        r->kind == AUDIT_ROLLED_BACK || r->kind == AUDIT_REOPENED) {
        put_word(o, "version", r->version);
    }
    if (r->kind == AUDIT_ROLLED_BACK) {
        put_word(o, "next_version", r->next_version);
    }
    if (r->kind == AUDIT_REOPENED) {
        put_text(o, "from", r->reason);
        put_word(o, "kept", r->kept);
    }
    if (r->kind == AUDIT_MIRRORED) {
        put_word(o, "bytes", r->bytes);
    }
    if (r->kind == AUDIT_ROLLED_BACK || r->kind == AUDIT_SNAPSHOT) {
        put_word(o, "next_group", r->next_group);
    }
    if (r->kind == AUDIT_PUBLISHED || r->kind == AUDIT_DURABLE || r->kind == AUDIT_MIRRORED ||
        r->kind == AUDIT_REOPENED) {
        put_hex(o, "digest", r->digest);
    }
    if (r->kind == AUDIT_TAKEN || r->kind == AUDIT_COMMITTED || r->kind == AUDIT_ROLLED_BACK) {
        json_object_set_new(o, "groups", dump_listed(r));
    }
}

static void
dump_fields(json_t *o, const struct audit_record *r)
{
    if (r->kind != AUDIT_RUN && r->kind != AUDIT_APPLIED) {
        put_word(o, "epoch", r->epoch);
    }
    switch (r->kind) {
    case AUDIT_RUN:
        dump_run(o, r);
        break;
    case AUDIT_DISPATCHED:
        put_word(o, "group", r->group);
        put_word(o, "item", r->item);
        break;
    case AUDIT_LEASED:
        put_word(o, "group", r->group);
        put_word(o, "attempt", r->attempt);
        put_hex(o, "members", r->members);
        put_word(o, "source", r->source);
        break;
    case AUDIT_SEALED:
    case AUDIT_STAGED:
        put_word(o, "group", r->group);
        dump_member(o, r);
        break;
    case AUDIT_FILTERED:
    case AUDIT_STALE:
    case AUDIT_FAILED:
        put_word(o, "group", r->group);
        put_word(o, "step", r->step);
        put_text(o, "reason", r->reason);
        break;
    case AUDIT_APPLIED:
        put_word(o, "source", r->source);
        put_word(o, "version", r->version);
        break;
    case AUDIT_RELEASED:
        put_word(o, "group", r->group);
        break;
    case AUDIT_ENDED:
        put_word(o, "step", r->step);
        put_text(o, "reason", r->reason);
        break;
    case AUDIT_TAKEN:
    case AUDIT_COMMITTED:
    case AUDIT_PUBLISHED:
    case AUDIT_DURABLE:
    case AUDIT_ROLLED_BACK:
    case AUDIT_SNAPSHOT:
    case AUDIT_MIRRORED:
    case AUDIT_REOPENED:
        dump_step(o, r);
        break;
    case AUDIT_KINDS:
        break;
    }
}

void
audit_dump(const struct audit_record *r, FILE *out)
{
    json_t *o = json_object();
    put_text(o, "kind", names[r->kind]);
    put_word(o, "time_ns", r->time_ns);
    dump_fields(o, r);
    char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (text != NULL) {
        (void)fprintf(out, "%s\n", text);
    }
    free(text); /* from jansson */
    json_decref(o);
}
