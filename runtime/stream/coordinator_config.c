/* The coordinator's config: what the graph declares of the stream, and inside it the program's
 * own object "config". Every mistake names its key. */
#include "stream/coordinator.h"

#include <troupe/ext/frame.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    CONFIG_BYTES_MAX = 1 << 20,
    LEASE_S = 600,
    STAGE_S = 60,
    LEASE_ATTEMPTS = 5,
    STAGE_TRIES = 3,
    RETAINED_STEPS = 1000,
    WORKER_CAPACITY = 64,
    WASTE_STEPS = 100,
    UPDATE_S = 60,
    SINK_S = 30,
    SECONDS_MAX = 100000,
};

struct reading {
    const json_t *object;
    troupe_error *err;
    troupe_status status;
};

static void
refuse(struct reading *r, const char *key, const char *what)
{
    if (r->status == TROUPE_OK) {
        r->status = troupe_fail(r->err, TROUPE_BAD_INPUT,
            "the stream's config: key \"%s\" %s; correct it where the graph is declared", key,
            what);
    }
}

/* A missing or null key has the default. */
static double
get_real(struct reading *r, const char *key, double value, double low, double high)
{
    const json_t *entry = json_object_get(r->object, key);
    if (entry == NULL || json_is_null(entry)) {
        return value;
    }
    double given = json_number_value(entry);
    if (!json_is_number(entry) || !(given >= low && given <= high)) {
        char what[96];
        (void)snprintf(what, sizeof what, "must be a number from %g to %g", low, high);
        refuse(r, key, what);
        return value;
    }
    return given;
}

static uint64_t
get_u64(struct reading *r, const char *key, uint64_t value, uint64_t high)
{
    const json_t *entry = json_object_get(r->object, key);
    if (entry == NULL || json_is_null(entry)) {
        return value;
    }
    if (!json_is_integer(entry) || json_integer_value(entry) < 0 ||
        (uint64_t)json_integer_value(entry) > high) {
        char what[96];
        (void)snprintf(
            what, sizeof what, "must be a whole number up to %llu", (unsigned long long)high);
        refuse(r, key, what);
        return value;
    }
    return (uint64_t)json_integer_value(entry);
}

static uint64_t
get_seconds(struct reading *r, const char *key, double value)
{
    return (uint64_t)(get_real(r, key, value, 1e-6, SECONDS_MAX) * 1e9);
}

static const char *
get_text(struct reading *r, const char *key, const char *value)
{
    const json_t *entry = json_object_get(r->object, key);
    if (entry == NULL || json_is_null(entry)) {
        return value;
    }
    if (!json_is_string(entry)) {
        refuse(r, key, "must be a string");
        return value;
    }
    return json_string_value(entry);
}

static char *
copy_of(const char *text)
{
    return text == NULL ? NULL : tr_strdup(text);
}

static void
get_order(struct reading *r, troupe_stream_options *o)
{
    const char *order = get_text(r, "order", "in-order");
    const char *bound = get_text(r, "bound", "group");
    bool known = false;
    for (int i = TROUPE_IN_ORDER; i <= TROUPE_READY_FIRST; i++) {
        if (strcmp(order, troupe_order_name((troupe_order)i)) == 0) {
            o->order = (troupe_order)i;
            known = true;
        }
    }
    if (!known) {
        refuse(r, "order", "must be in-order, window, drop or ready-first");
    }
    if (strcmp(bound, "group") != 0 && strcmp(bound, "unit") != 0) {
        refuse(r, "bound", "must be group or unit");
    }
    o->bound = strcmp(bound, "unit") == 0 ? TROUPE_BOUND_UNIT : TROUPE_BOUND_GROUP;
    o->mean_lag_milli = (uint64_t)llround(1000 * get_real(r, "mean_lag", 1, 0, 1e6));
    o->window_milli = (uint64_t)llround(1000 * get_real(r, "window", 0, 0, 1));
    o->max_lag = TROUPE_MAX_LAG_NONE;
    const json_t *max_lag = json_object_get(r->object, "max_lag");
    if (max_lag != NULL && !json_is_null(max_lag)) {
        o->max_lag = (int64_t)get_u64(r, "max_lag", 0, 1u << 30);
    }
}

static void
get_stages(struct reading *r, troupe_stream_options *o)
{
    const json_t *stages = json_object_get(r->object, "stages");
    if (json_array_size(stages) > TROUPE_STREAM_STAGES_MAX) {
        refuse(r, "stages", "must be at most 8 roles");
        return;
    }
    size_t i = 0;
    const json_t *name = NULL;
    json_array_foreach(stages, i, name)
    {
        if (!json_is_string(name)) {
            refuse(r, "stages", "must be names of roles");
            return;
        }
        o->stage_names[o->stages++] = tr_strdup(json_string_value(name));
    }
}

/* Weights must go from the sink to the source: nothing else is a stream of this kind. */
static void
check_weights(struct reading *r, const char *source, const char *sink)
{
    size_t i = 0;
    const json_t *entry = NULL;
    const json_t *weights = json_object_get(r->object, "weights");
    json_array_foreach(weights, i, entry)
    {
        const char *from = json_string_value(json_object_get(entry, "from"));
        const char *to = json_string_value(json_object_get(entry, "to"));
        if (from != NULL && to != NULL && strcmp(from, sink) == 0 && strcmp(to, source) == 0) {
            return;
        }
    }
    refuse(r, "weights", "must lead from the stream's sink to its source");
}

/* A batch travels as one answer, in the longest form that its numbers can have. */
static void
check_batch(struct reading *r, const troupe_stream_options *o)
{
    const uint64_t word = 9, array = 5;
    uint64_t member = array + 4 * word + array + o->stages * (array + 3 * word);
    uint64_t group = array + 2 * word + array + o->group_size * member;
    uint64_t batch = word + array + o->groups_per_step * group;
    if (batch > TR_FRAME_BODY_MAX - 64) {
        char what[160];
        (void)snprintf(what, sizeof what,
            "with group_size %u gives a batch of up to %llu bytes, and a message holds %u",
            o->group_size, (unsigned long long)batch, TR_FRAME_BODY_MAX - 64);
        refuse(r, "groups_per_step", what);
    }
}

static uint64_t
get_hex(struct reading *r, const char *key)
{
    const char *text = get_text(r, key, "0");
    uint64_t value = 0;
    if (strlen(text) == 0 || strlen(text) > 16 ||
        strspn(text, "0123456789abcdef") != strlen(text)) {
        refuse(r, key, "must be up to 16 hexadecimal digits");
        return 0;
    }
    for (; *text != '\0'; text++) {
        value = value << 4 | (uint64_t)(*text <= '9' ? *text - '0' : *text - 'a' + 10);
    }
    return value;
}

static void
get_program_part(struct reading *r, struct tr_coordinator_config *c)
{
    troupe_stream_options *o = &c->stream;
    o->seed = get_u64(r, "seed", 1, INT64_MAX);
    o->rows = get_u64(r, "rows", 0, INT64_MAX);
    o->data_digest = get_hex(r, "data_digest");
    o->groups_per_step = (uint32_t)get_u64(r, "groups_per_step", 0, TROUPE_STREAM_OPEN_MAX);
    o->group_size = (uint32_t)get_u64(r, "group_size", 0, TROUPE_GROUP_SIZE_MAX);
    check_batch(r, o);
    o->lease_ns = get_seconds(r, "lease_s", LEASE_S);
    o->stage_ns = get_seconds(r, "stage_s", STAGE_S);
    o->lease_attempts = (uint32_t)get_u64(r, "lease_attempts", LEASE_ATTEMPTS, 1u << 20);
    o->stage_tries = (uint32_t)get_u64(r, "stage_tries", STAGE_TRIES, 1u << 20);
    o->retained_steps = (uint32_t)get_u64(r, "retained_steps", RETAINED_STEPS, 1u << 24);
    c->worker_capacity = get_u64(r, "worker_capacity", WORKER_CAPACITY, 1u << 20);
    o->steps = get_u64(r, "steps", 0, INT64_MAX);
    c->waste_max = get_u64(r, "waste_max", WASTE_STEPS * (uint64_t)o->groups_per_step, INT64_MAX);
    c->update_ns = get_seconds(r, "update_s", UPDATE_S);
    c->sink_ns = get_seconds(r, "sink_s", SINK_S);
    c->journal = copy_of(get_text(r, "journal", NULL));
    c->ledger = copy_of(get_text(r, "ledger", NULL));
    c->ledgers = copy_of(get_text(r, "ledgers", NULL));
    c->life = get_u64(r, "life", c->life, INT64_MAX);
    if (c->ledgers != NULL && strstr(c->ledgers, "{step}") == NULL) {
        refuse(r, "ledgers", "must have {step} where the step's number goes");
    }
    c->resume = json_is_true(json_object_get(r->object, "resume")) || c->ledger != NULL;
    const char *filter = get_text(r, "filter", "none");
    c->filter_zero_variance = strcmp(filter, "zero-variance") == 0;
    if (!c->filter_zero_variance && strcmp(filter, "none") != 0) {
        refuse(r, "filter", "must be none or zero-variance");
    }
    if (c->filter_zero_variance && (o->stages == 0 || o->group_size == 1)) {
        refuse(r, "filter",
            "zero-variance needs a stage whose values it can compare, and groups of two or more");
    }
}

troupe_status
tr_coordinator_config_parse(
    const char *text, struct tr_coordinator_config *config, troupe_error *err)
{
    *config = (struct tr_coordinator_config){0};
    json_error_t at;
    json_t *root =
        strlen(text) > CONFIG_BYTES_MAX ? NULL : json_loads(text, JSON_REJECT_DUPLICATES, &at);
    if (!json_is_object(root) || !json_is_object(json_object_get(root, "config"))) {
        json_decref(root);
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "the stream's config is no JSON object with a \"config\" object in it; correct it "
            "where "
            "the graph is declared");
    }
    struct reading r = {.object = root, .err = err, .status = TROUPE_OK};
    const char *source = get_text(&r, "source", "");
    const char *sink = get_text(&r, "sink", "");
    config->source = tr_strdup(source);
    config->sink = tr_strdup(sink);
    config->stream.size = sizeof config->stream;
    get_order(&r, &config->stream);
    get_stages(&r, &config->stream);
    check_weights(&r, source, sink);
    config->life = get_u64(&r, "life", 1, INT64_MAX);
    r.object = json_object_get(root, "config");
    get_program_part(&r, config);
    json_decref(root);
    if (r.status != TROUPE_OK) {
        tr_coordinator_config_fini(config);
    }
    return r.status;
}

void
tr_coordinator_config_fini(struct tr_coordinator_config *config)
{
    tr_free(config->source);
    tr_free(config->sink);
    tr_free(config->journal);
    tr_free(config->ledger);
    tr_free(config->ledgers);
    for (uint32_t i = 0; i < config->stream.stages; i++) {
        /* Ours: the machine only borrows names. */
        union {
            const char *borrowed;
            char *owned;
        } name = {config->stream.stage_names[i]};

        tr_free(name.owned);
    }
    *config = (struct tr_coordinator_config){0};
}

const char *
tr_filter_zero_variance(void *self, const troupe_group_view *group)
{
    const struct tr_coordinator_config *config = self;
    for (uint32_t m = 0; m < config->stream.group_size; m++) {
        const troupe_stage_value *value = &group->members[m].stages[0];
        const troupe_stage_value *first = &group->members[0].stages[0];
        /* Compared, not computed with: equal means the same number. */
        bool same = value->has_value && first->has_value && value->value >= first->value &&
                    value->value <= first->value;
        if (!same) {
            return NULL;
        }
    }
    return "all members have the same reward";
}
