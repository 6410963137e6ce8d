/* The check of a graph, before anything starts: each rule is one function, and says the remedy. */
#include "node/graph.h"

#include <troupe/ext/base.h>
#include <troupe/ext/frame.h>

#include <jansson.h>
#include <math.h>
#include <string.h>

enum {
    CONFIG_BYTES_MAX = 1 << 20,
    RESTARTS_MAX = 1 << 16,
    WINDOW_S_MAX = 1000000,
    BACKOFF_MS_MAX = 10000
};

static troupe_status
check_name(const char *kind, const char *name, troupe_error *err)
{
    size_t length = strlen(name);
    if (length == 0 || length > TROUPE_NAME_MAX) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "%s \"%s\": a name has 1 to %d characters", kind,
            name, TROUPE_NAME_MAX);
    }
    for (size_t i = 0; i < length; i++) {
        char c = name[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        bool digit = c >= '0' && c <= '9';
        if (!letter && !(i > 0 && (digit || c == '_' || c == '-'))) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "%s \"%s\": a name is made of letters, digits, - and _, and begins with a letter",
                kind, name);
        }
    }
    if (strcmp(name, TR_ROLE_NODE) == 0 || strcmp(name, TR_ROLE_LOOP) == 0) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%s \"%s\": the runtime uses this name itself; choose another", kind, name);
    }
    return TROUPE_OK;
}

static troupe_status
check_object(const char *kind, const char *name, const char *text, troupe_error *err)
{
    size_t size = strlen(text);
    if (size > CONFIG_BYTES_MAX) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "%s %s: config of %zu bytes, at most %d", kind,
            name, size, CONFIG_BYTES_MAX);
    }
    json_error_t where;
    json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES, &where);
    if (json == NULL) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "%s %s: config is not JSON: %s (line %d)", kind,
            name, where.text, where.line);
    }
    bool object = json_is_object(json);
    json_decref(json);
    if (!object) {
        return troupe_fail(
            err, TROUPE_BAD_INPUT, "%s %s: config must be a JSON object, { ... }", kind, name);
    }
    return TROUPE_OK;
}

static bool
has_method(const troupe_class *type, const char *name)
{
    for (const troupe_method *method = type->methods; method->name != NULL; method++) {
        if (strcmp(method->name, name) == 0) {
            return true;
        }
    }
    return false;
}

static troupe_status
check_class(const troupe_role *role, troupe_error *err)
{
    const troupe_class *type = role->spec.type;
    if (type == NULL || type->name == NULL || type->name[0] == '\0') {
        return troupe_fail(
            err, TROUPE_BAD_INPUT, "role %s: its class is missing or has no name", role->name);
    }
    for (int i = 0; i <= TROUPE_METHODS_MAX && type->methods[i].name != NULL; i++) {
        if (i == TROUPE_METHODS_MAX) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "class %s: the list of methods does not end with an empty one", type->name);
        }
        if (type->methods[i].run == NULL) {
            return troupe_fail(err, TROUPE_BAD_INPUT, "class %s: method %s has no function",
                type->name, type->methods[i].name);
        }
        for (int j = 0; j < i; j++) {
            if (tr_method_id(type->methods[i].name) == tr_method_id(type->methods[j].name)) {
                return troupe_fail(err, TROUPE_BAD_INPUT,
                    "class %s: methods %s and %s have one name or one id; rename one", type->name,
                    type->methods[j].name, type->methods[i].name);
            }
        }
    }
    return TROUPE_OK;
}

static troupe_status
check_numbers(const troupe_role *role, troupe_error *err)
{
    const troupe_role_spec *spec = &role->spec;
    if (spec->replicas < 1 || spec->replicas > TROUPE_REPLICAS_MAX) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "role %s: %d replicas; give 1 to %d", role->name,
            spec->replicas, TROUPE_REPLICAS_MAX);
    }
    if (!isfinite(spec->devices) || spec->devices < 0 || spec->cpus < 0) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "role %s: needs of devices and cpus are numbers from 0 on", role->name);
    }
    if (spec->devices > 1 && spec->devices != floor(spec->devices)) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "role %s: %g devices; a part of a device is below 1, more than one are whole",
            role->name, spec->devices);
    }
    if (spec->mailbox < 0 || spec->restarts < -1 || spec->restarts > RESTARTS_MAX) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "role %s: mailbox is a number from 0 on, restarts from 0 to %d (-1: no limit)",
            role->name, RESTARTS_MAX);
    }
    if (!(spec->restart_window_s > 0 && spec->restart_window_s <= WINDOW_S_MAX) ||
        spec->backoff_ms < 1 || spec->backoff_ms > BACKOFF_MS_MAX) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "role %s: restart_window_s is a number of seconds above 0 and up to %d, backoff_ms one "
            "of milliseconds from 1 to %d",
            role->name, WINDOW_S_MAX, BACKOFF_MS_MAX);
    }
    if (!(spec->silent_s >= 1 && spec->silent_s <= WINDOW_S_MAX) && spec->silent_s != -1) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "role %s: silent_s is a number of seconds from 1 to %d, or -1: never", role->name,
            WINDOW_S_MAX);
    }
    return TROUPE_OK;
}

static troupe_status
check_role(const troupe_graph *graph, int index, troupe_error *err)
{
    const troupe_role *role = graph->roles[index];
    troupe_status status = check_name("role", role->name, err);
    for (int i = 0; i < index && status == TROUPE_OK; i++) {
        if (strcmp(graph->roles[i]->name, role->name) == 0) {
            status = troupe_fail(err, TROUPE_BAD_INPUT,
                "role %s is declared twice; give one another name, or use replicas", role->name);
        }
    }
    status = status == TROUPE_OK ? check_class(role, err) : status;
    status = status == TROUPE_OK ? check_numbers(role, err) : status;
    status = status == TROUPE_OK ? check_name("place", role->spec.place, err) : status;
    return status == TROUPE_OK ? check_object("role", role->name, role->spec.config, err) : status;
}

static troupe_status
check_known(const troupe_graph *graph, const char *what, const char *name, const char *part,
    const troupe_role *role, troupe_error *err)
{
    if (role == NULL) {
        return troupe_fail(
            err, TROUPE_BAD_INPUT, "%s %s: it has no %s; give .%s", what, name, part, part);
    }
    if (tr_graph_index(graph, role) < 0) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%s %s: its %s is not a role of this graph; add it with troupe_role_add", what, name,
            part);
    }
    return TROUPE_OK;
}

static troupe_status
check_methods(const struct tr_stream *stream, const char *part, const troupe_role *role,
    const char *const methods[8], troupe_error *err)
{
    for (int i = 0; i < 8 && methods[i] != NULL; i++) {
        if (!has_method(role->spec.type, methods[i])) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "stream %s: role %s (class %s) cannot be its %s: it has no method \"%s\"",
                stream->name, role->name, role->spec.type->name, part, methods[i]);
        }
    }
    return TROUPE_OK;
}

static troupe_status
check_parts(const troupe_graph *graph, const struct tr_stream *stream,
    const troupe_stream_class *type, troupe_error *err)
{
    const troupe_stream_spec *spec = &stream->spec;
    troupe_status status = check_known(graph, "stream", stream->name, "source", spec->source, err);
    if (status == TROUPE_OK) {
        status = check_known(graph, "stream", stream->name, "sink", spec->sink, err);
    }
    for (int i = 0; i < stream->stage_count && status == TROUPE_OK; i++) {
        status = check_known(graph, "stream", stream->name, "stages", spec->stages[i], err);
    }
    if (status != TROUPE_OK || type == NULL) {
        return status;
    }
    status = check_methods(stream, "source", spec->source, type->source_methods, err);
    if (status == TROUPE_OK) {
        status = check_methods(stream, "sink", spec->sink, type->sink_methods, err);
    }
    for (int i = 0; i < stream->stage_count && status == TROUPE_OK; i++) {
        status = check_methods(stream, "stage", spec->stages[i], type->stage_methods, err);
    }
    return status;
}

static troupe_status
check_distinct(const struct tr_stream *stream, troupe_error *err)
{
    const troupe_stream_spec *spec = &stream->spec;
    if (spec->source == spec->sink) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "stream %s: role %s is its source and its sink",
            stream->name, spec->source->name);
    }
    for (int i = 0; i < stream->stage_count; i++) {
        bool twice = spec->stages[i] == spec->source || spec->stages[i] == spec->sink;
        for (int j = 0; j < i; j++) {
            twice = twice || spec->stages[i] == spec->stages[j];
        }
        if (twice) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "stream %s: role %s appears twice; a sample passes each role once", stream->name,
                spec->stages[i]->name);
        }
    }
    if (spec->sink->spec.replicas != 1) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "stream %s: its sink %s has %d replicas, not 1",
            stream->name, spec->sink->name, spec->sink->spec.replicas);
    }
    return TROUPE_OK;
}

static troupe_status
check_choice(const char *stream, const char *key, const char *value, const char *const *choices,
    size_t count, troupe_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(value, choices[i]) == 0) {
            return TROUPE_OK;
        }
    }
    const char *nearest = tr_nearest(value, choices, count);
    return troupe_fail(err, TROUPE_BAD_INPUT, "stream %s: unknown %s \"%s\"%s%s%s", stream, key,
        value, nearest == NULL ? "" : "; did you mean \"", nearest == NULL ? "" : nearest,
        nearest == NULL ? "" : "\"?");
}

static troupe_status
check_lags(const struct tr_stream *stream, troupe_error *err)
{
    const troupe_stream_spec *spec = &stream->spec;
    bool bounded = spec->max_lag != TROUPE_NO_BOUND;
    if (!isfinite(spec->mean_lag) || spec->mean_lag < 0 || spec->max_lag < TROUPE_NO_BOUND) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "stream %s: mean_lag and max_lag are versions, from 0 on (max_lag %d: none)",
            stream->name, TROUPE_NO_BOUND);
    }
    if (bounded && spec->max_lag < spec->mean_lag) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "stream %s: max_lag %d is below mean_lag %g; raise the one or lower the other",
            stream->name, spec->max_lag, spec->mean_lag);
    }
    if (bounded && strcmp(spec->order, "ready-first") == 0) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "stream %s: order ready-first has no hard bound; give max_lag none or another order",
            stream->name);
    }
    bool window = strcmp(spec->order, "window") == 0;
    if (window && !(spec->window > 0 && spec->window <= 1)) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "stream %s: order window needs .window, a share above 0 and up to 1", stream->name);
    }
    return TROUPE_OK;
}

static troupe_status
check_stream(
    const troupe_graph *graph, int index, const troupe_stream_class *type, troupe_error *err)
{
    static const char *const orders[] = {"in-order", "window", "drop", "ready-first"};
    static const char *const bounds[] = {"group", "unit"};
    const struct tr_stream *stream = &graph->streams[index];
    troupe_status status = check_name("stream", stream->name, err);
    for (int i = 0; i < index && status == TROUPE_OK; i++) {
        if (strcmp(graph->streams[i].name, stream->name) == 0) {
            status =
                troupe_fail(err, TROUPE_BAD_INPUT, "stream %s is declared twice", stream->name);
        }
    }
    for (int i = 0; i < graph->role_count && status == TROUPE_OK; i++) {
        if (strcmp(graph->roles[i]->name, stream->name) == 0) {
            status = troupe_fail(err, TROUPE_BAD_INPUT,
                "stream %s has the name of a role; both are called by name, so rename one",
                stream->name);
        }
    }
    status = status == TROUPE_OK ? check_parts(graph, stream, type, err) : status;
    status = status == TROUPE_OK ? check_distinct(stream, err) : status;
    status = status == TROUPE_OK ? check_choice(stream->name, "order", stream->spec.order, orders,
                                       TR_COUNT(orders), err)
                                 : status;
    status = status == TROUPE_OK ? check_choice(stream->name, "bound", stream->spec.bound, bounds,
                                       TR_COUNT(bounds), err)
                                 : status;
    status = status == TROUPE_OK ? check_lags(stream, err) : status;
    return status == TROUPE_OK ? check_object("stream", stream->name, stream->spec.config, err)
                               : status;
}

static troupe_status
check_weights(
    const troupe_graph *graph, int index, const troupe_stream_class *type, troupe_error *err)
{
    const struct tr_weights *weights = &graph->weights[index];
    const troupe_weights_spec *spec = &weights->spec;
    troupe_status status = check_name("weights", weights->name, err);
    for (int i = 0; i < index && status == TROUPE_OK; i++) {
        if (strcmp(graph->weights[i].name, weights->name) == 0) {
            status =
                troupe_fail(err, TROUPE_BAD_INPUT, "weights %s are declared twice", weights->name);
        }
    }
    if (status == TROUPE_OK) {
        status = check_known(graph, "weights", weights->name, "from", spec->from, err);
    }
    if (status == TROUPE_OK) {
        status = check_known(graph, "weights", weights->name, "to", spec->to, err);
    }
    if (status == TROUPE_OK && spec->from == spec->to) {
        status = troupe_fail(err, TROUPE_BAD_INPUT, "weights %s: role %s would send to itself",
            weights->name, spec->from->name);
    }
    for (int i = 0; type != NULL && i < 8 && status == TROUPE_OK; i++) {
        const char *method = type->receiver_methods[i];
        if (method != NULL && !has_method(spec->to->spec.type, method)) {
            status = troupe_fail(err, TROUPE_BAD_INPUT,
                "weights %s: role %s (class %s) cannot receive them: it has no method \"%s\"",
                weights->name, spec->to->name, spec->to->spec.type->name, method);
        }
    }
    return status;
}

/* Whether samples that leave `role` come back to `target` through further streams. Weights do
 * not count: that the policy feeds the rollout is the point. */
static bool
leads_to(const troupe_graph *graph, const troupe_role *role, const troupe_role *target, int depth)
{
    for (int i = 0; i < graph->stream_count && depth > 0; i++) {
        const troupe_stream_spec *spec = &graph->streams[i].spec;
        if (spec->source == role &&
            (spec->sink == target || leads_to(graph, spec->sink, target, depth - 1))) {
            return true;
        }
    }
    return false;
}

static troupe_status
check_cycles(const troupe_graph *graph, troupe_error *err)
{
    for (int i = 0; i < graph->stream_count; i++) {
        const troupe_stream_spec *spec = &graph->streams[i].spec;
        if (leads_to(graph, spec->sink, spec->source, graph->stream_count)) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "stream %s: its samples come back to their source %s through other streams; "
                "break the cycle",
                graph->streams[i].name, spec->source->name);
        }
    }
    return TROUPE_OK;
}

troupe_status
troupe_graph_check(const troupe_graph *graph, const troupe_stream_class *streams, troupe_error *err)
{
    if (graph->error.status != TROUPE_OK) {
        return troupe_fail(err, graph->error.status, "%s", graph->error.text);
    }
    if (graph->role_count == 0) {
        return troupe_fail(
            err, TROUPE_BAD_INPUT, "the graph has no role; add one with troupe_role_add");
    }
    troupe_status status = TROUPE_OK;
    for (int i = 0; i < graph->role_count && status == TROUPE_OK; i++) {
        status = check_role(graph, i, err);
    }
    for (int i = 0; i < graph->stream_count && status == TROUPE_OK; i++) {
        status = check_stream(graph, i, streams, err);
    }
    for (int i = 0; i < graph->weights_count && status == TROUPE_OK; i++) {
        status = check_weights(graph, i, streams, err);
    }
    return status == TROUPE_OK ? check_cycles(graph, err) : status;
}
