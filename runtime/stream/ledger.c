/* ledger.json: the ledger of a checkpoint as text. 64-bit values that are no counts (seeds,
 * digests) are written as 16 hexadecimal digits, since many JSON readers keep only 53 bits of a
 * number. What is read is checked in full, the ledger's identity included: a resumed run trusts
 * it. */
#include <troupe/ext/base.h>
#include <troupe/ext/ledger.h>

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum {
    LEDGER_FORMAT = 1,
    LEDGER_BYTES_MAX = 256 << 20,
    ERROR_POSITION = 160,
};

void
troupe_ledger_fini(troupe_ledger *ledger)
{
    tr_free(ledger->open);
    tr_free(ledger->member_attempts);
    *ledger = (troupe_ledger){0};
}

static void
put_group(tr_buf *out, const troupe_ledger *ledger, size_t index)
{
    const troupe_ledger_group *g = &ledger->open[index];
    tr_buf_printf(out,
        "%s\n    {\"group\": %" PRIu64 ", \"item\": %" PRIu64 ", \"attempt\": %" PRIu32
        ", \"members\": [",
        index > 0 ? "," : "", g->group, g->item, g->attempt);
    for (uint64_t m = 0; m < ledger->group_size; m++) {
        tr_buf_printf(out, "%s%" PRIu32, m > 0 ? ", " : "",
            ledger->member_attempts[index * ledger->group_size + m]);
    }
    tr_buf_puts(out, "]}");
}

char *
troupe_ledger_to_json(const troupe_ledger *ledger)
{
    const troupe_counters *c = &ledger->counters;
    tr_buf out = {0};
    tr_buf_printf(&out,
        "{\n  \"format\": %d,\n  \"epoch\": %" PRIu64 ",\n  \"step\": %" PRIu64
        ",\n  \"version\": %" PRIu64 ",\n  \"next_group\": %" PRIu64 ",\n",
        LEDGER_FORMAT, ledger->epoch, ledger->step, ledger->version, ledger->next_group);
    tr_buf_printf(&out,
        "  \"groups_per_step\": %" PRIu64 ",\n  \"group_size\": %" PRIu64 ",\n  \"rows\": %" PRIu64
        ",\n  \"data_digest\": \"%016" PRIx64 "\",\n  \"permutation_seed\": \"%016" PRIx64 "\",\n",
        ledger->groups_per_step, ledger->group_size, ledger->rows, ledger->data_digest,
        ledger->permutation_seed);
    tr_buf_printf(&out,
        "  \"counters\": {\"dispatched\": %" PRIu64 ", \"trained\": %" PRIu64
        ", \"filtered\": %" PRIu64 ", \"stale\": %" PRIu64 ", \"failed\": %" PRIu64
        ", \"queued\": %" PRIu64 ", \"in_flight\": %" PRIu64 "},\n  \"open\": [",
        c->dispatched, c->trained, c->filtered, c->stale, c->failed, c->queued, c->in_flight);
    for (size_t i = 0; i < ledger->open_count; i++) {
        put_group(&out, ledger, i);
    }
    tr_buf_puts(&out, ledger->open_count > 0 ? "\n  ]\n}\n" : "]\n}\n");
    return out.data;
}

/* Reading: a context that remembers the first error, so that the fields can be listed one after the
 * other. `where` names the object that a key is in, for the message. */
struct reading {
    const char *name;
    troupe_error *err;
    troupe_status status;
};

static void
refuse(struct reading *r, const char *where, const char *key, const char *what)
{
    if (r->status == TROUPE_OK) {
        r->status = troupe_fail(r->err, TROUPE_BAD_INPUT,
            "%s: key \"%s%s\" %s; the checkpoint is damaged or of another version: resume from an "
            "older one",
            r->name, where, key, what);
    }
}

static uint64_t
get_u64(struct reading *r, const json_t *object, const char *where, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        refuse(r, where, key, "must be an integer of at least 0");
        return 0;
    }
    return (uint64_t)json_integer_value(value);
}

static uint64_t
get_hex(struct reading *r, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (text == NULL || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) {
        refuse(r, "", key, "must be a string of 16 hexadecimal digits");
        return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < 16; i++) {
        unsigned digit =
            text[i] <= '9' ? (unsigned)(text[i] - '0') : (unsigned)(text[i] - 'a' + 10);
        value = value << 4 | digit;
    }
    return value;
}

static uint32_t
get_u32(struct reading *r, const json_t *value, const char *where, const char *key)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > UINT32_MAX) {
        refuse(r, where, key, "must be an integer from 0 to 4294967295");
        return 0;
    }
    return (uint32_t)json_integer_value(value);
}

static void
get_counters(struct reading *r, const json_t *root, troupe_counters *c)
{
    const json_t *counters = json_object_get(root, "counters");
    if (!json_is_object(counters)) {
        refuse(r, "", "counters", "must be an object");
        return;
    }
    *c = (troupe_counters){
        .dispatched = get_u64(r, counters, "counters.", "dispatched"),
        .trained = get_u64(r, counters, "counters.", "trained"),
        .filtered = get_u64(r, counters, "counters.", "filtered"),
        .stale = get_u64(r, counters, "counters.", "stale"),
        .failed = get_u64(r, counters, "counters.", "failed"),
        .queued = get_u64(r, counters, "counters.", "queued"),
        .in_flight = get_u64(r, counters, "counters.", "in_flight"),
    };
    uint64_t largest = TR_MAX(TR_MAX(c->trained, c->filtered), TR_MAX(c->stale, c->failed));
    largest = TR_MAX(largest, TR_MAX(c->queued, c->in_flight));
    if (r->status == TROUPE_OK && (!troupe_counters_hold(c) || largest > c->dispatched)) {
        refuse(r, "", "counters", "must add up: dispatched is the sum of the other six");
    }
}

static void
get_group(struct reading *r, const json_t *entry, troupe_ledger *ledger, size_t index)
{
    char where[32];
    (void)snprintf(where, sizeof where, "open[%zu].", index);
    troupe_ledger_group *g = &ledger->open[index];
    g->group = get_u64(r, entry, where, "group");
    g->item = get_u64(r, entry, where, "item");
    g->attempt = get_u32(r, json_object_get(entry, "attempt"), where, "attempt");
    const json_t *members = json_object_get(entry, "members");
    if (json_array_size(members) != ledger->group_size) {
        refuse(r, where, "members", "must be an array with one attempt per member");
        return;
    }
    for (size_t m = 0; m < ledger->group_size; m++) {
        uint32_t attempt = get_u32(r, json_array_get(members, m), where, "members");
        ledger->member_attempts[index * ledger->group_size + m] = attempt;
        if (attempt > g->attempt) {
            refuse(r, where, "members", "must not hold an attempt above the group's");
        }
    }
    if (g->group >= ledger->next_group || g->item >= ledger->rows) {
        refuse(r, where, "group", "must be below next_group, and its item below rows");
    }
    if (index > 0 && g->group <= ledger->open[index - 1].group) {
        refuse(r, where, "group", "must grow from entry to entry");
    }
}

static void
get_open(struct reading *r, const json_t *root, troupe_ledger *ledger)
{
    const json_t *open = json_object_get(root, "open");
    if (!json_is_array(open)) {
        refuse(r, "", "open", "must be an array");
        return;
    }
    if (json_array_size(open) != ledger->counters.queued + ledger->counters.in_flight) {
        refuse(r, "", "open", "must have queued + in_flight entries");
        return;
    }
    ledger->open_count = json_array_size(open);
    if (ledger->open_count == 0) {
        return;
    }
    ledger->open = tr_zalloc(ledger->open_count, sizeof ledger->open[0]);
    ledger->member_attempts = tr_zalloc(
        ledger->open_count * (size_t)ledger->group_size, sizeof ledger->member_attempts[0]);
    for (size_t i = 0; i < ledger->open_count; i++) {
        get_group(r, json_array_get(open, i), ledger, i);
    }
}

static void
get_ledger(struct reading *r, const json_t *root, troupe_ledger *ledger)
{
    if (get_u64(r, root, "", "format") != LEDGER_FORMAT) {
        refuse(r, "", "format", "must be 1");
    }
    *ledger = (troupe_ledger){
        .epoch = get_u64(r, root, "", "epoch"),
        .step = get_u64(r, root, "", "step"),
        .version = get_u64(r, root, "", "version"),
        .next_group = get_u64(r, root, "", "next_group"),
        .groups_per_step = get_u64(r, root, "", "groups_per_step"),
        .group_size = get_u64(r, root, "", "group_size"),
        .rows = get_u64(r, root, "", "rows"),
        .data_digest = get_hex(r, root, "data_digest"),
        .permutation_seed = get_hex(r, root, "permutation_seed"),
    };
    if (ledger->group_size == 0 || ledger->group_size > TROUPE_GROUP_SIZE_MAX) {
        refuse(r, "", "group_size", "must be from 1 to 64");
    }
    get_counters(r, root, &ledger->counters);
    if (ledger->counters.dispatched != ledger->next_group) {
        refuse(r, "", "next_group", "must equal counters.dispatched");
    }
    if (r->status == TROUPE_OK) {
        get_open(r, root, ledger);
    }
}

troupe_status
troupe_ledger_from_json(
    const char *text, size_t size, const char *name, troupe_ledger *ledger, troupe_error *err)
{
    if (size > LEDGER_BYTES_MAX) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%s: %zu bytes are more than a ledger can have; resume from another checkpoint", name,
            size);
    }
    json_error_t at;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &at);
    if (root == NULL) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%s:%d: %.*s; the checkpoint is damaged: resume from an older one", name, at.line,
            ERROR_POSITION, at.text);
    }
    struct reading r = {.name = name, .err = err, .status = TROUPE_OK};
    troupe_ledger read = {0};
    if (json_is_object(root)) {
        get_ledger(&r, root, &read);
    } else {
        refuse(&r, "", "", "must be an object");
    }
    json_decref(root);
    if (r.status != TROUPE_OK) {
        troupe_ledger_fini(&read);
        return r.status;
    }
    *ledger = read;
    return TROUPE_OK;
}
