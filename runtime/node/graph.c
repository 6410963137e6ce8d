/* Building a graph. Declarations cannot fail: what is wrong is noted, and told by the check. */
#include "node/graph.h"

#include <troupe/ext/base.h>

#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

troupe_graph *
troupe_graph_new(void)
{
    return tr_zalloc(1, sizeof(troupe_graph));
}

void
troupe_graph_free(troupe_graph *graph)
{
    if (graph == NULL) {
        return;
    }
    for (int i = 0; i < graph->role_count; i++) {
        troupe_role *role = graph->roles[i];
        tr_free(role->name);
        tr_free((void *)(uintptr_t)role->spec.config);
        tr_free((void *)(uintptr_t)role->spec.labels);
        tr_free((void *)(uintptr_t)role->spec.place);
        tr_free(role);
    }
    for (int i = 0; i < graph->stream_count; i++) {
        struct tr_stream *stream = &graph->streams[i];
        tr_free(stream->name);
        tr_free((void *)(uintptr_t)stream->spec.order);
        tr_free((void *)(uintptr_t)stream->spec.bound);
        tr_free((void *)(uintptr_t)stream->spec.config);
    }
    for (int i = 0; i < graph->weights_count; i++) {
        tr_free(graph->weights[i].name);
    }
    tr_free(graph->name);
    tr_free(graph->logs);
    tr_free(graph);
}

bool
troupe_graph_is_drawn(const troupe_graph *graph)
{
    return graph->drawing;
}

void
troupe_graph_store(troupe_graph *graph, uint64_t bytes)
{
    graph->store_bytes = bytes;
}

void
troupe_graph_name(troupe_graph *graph, const char *name)
{
    tr_free(graph->name);
    graph->name = name == NULL || name[0] == '\0' ? NULL : tr_strdup(name);
}

void
troupe_graph_logs(troupe_graph *graph, const char *dir)
{
    char here[PATH_MAX];
    tr_buf path = {0};
    tr_free(graph->logs);
    graph->logs = NULL;
    if (dir == NULL || dir[0] == '\0' || (dir[0] != '/' && getcwd(here, sizeof here) == NULL)) {
        return;
    }
    if (dir[0] != '/') {
        tr_buf_printf(&path, "%s/", here);
    }
    tr_buf_puts(&path, dir);
    graph->logs = tr_strdup(path.data);
    tr_buf_fini(&path);
}

troupe_status
troupe_graph_refuse(troupe_graph *graph, troupe_status status, const char *format, ...)
{
    if (graph->error.status != TROUPE_OK) {
        return status;
    }
    va_list args;
    va_start(args, format);
    graph->error.status = status == TROUPE_OK ? TROUPE_INVALID : status;
    if (vsnprintf(graph->error.text, sizeof graph->error.text, format, args) < 0) {
        graph->error.text[0] = '\0';
    }
    va_end(args);
    return status;
}

int
tr_graph_index(const troupe_graph *graph, const troupe_role *role)
{
    for (int i = 0; i < graph->role_count; i++) {
        if (graph->roles[i] == role) {
            return i;
        }
    }
    return -1;
}

static char *
copy(const char *text, const char *otherwise)
{
    return tr_strdup(text == NULL ? otherwise : text);
}

static void
note_options(troupe_graph *graph, const char *kind, const char *name, bool known)
{
    if (!known) {
        (void)troupe_graph_refuse(graph, TROUPE_INVALID,
            "%s %s: its options are of another version; set .size, or use the macro", kind, name);
    }
}

/* The result is never NULL: a role beyond the limit is the last one again, and the graph is
 * refused. */
troupe_role *
troupe_role_add_with(troupe_graph *graph, const char *name, const troupe_role_spec *given)
{
    troupe_role_spec spec = {0};
    note_options(graph, "role", name, tr_options_copy(&spec, sizeof spec, given));
    if (graph->role_count == TROUPE_ROLES_MAX) {
        (void)troupe_graph_refuse(graph, TROUPE_BAD_INPUT,
            "role %s: a graph has at most %d roles; use replicas", name, TROUPE_ROLES_MAX);
        return graph->roles[TROUPE_ROLES_MAX - 1];
    }
    troupe_role *role = tr_zalloc(1, sizeof *role);
    role->graph = graph;
    role->name = copy(name, "");
    role->spec = spec;
    role->spec.replicas = spec.replicas == 0 ? 1 : spec.replicas;
    role->spec.config = copy(spec.config, "{}");
    role->spec.labels = copy(spec.labels, "");
    role->spec.place = copy(spec.place, TR_PLACE_OWN);
    role->spec.restart_window_s = spec.restart_window_s == 0 ? 60 : spec.restart_window_s;
    role->spec.backoff_ms = spec.backoff_ms == 0 ? 100 : spec.backoff_ms;
    role->spec.silent_s = spec.silent_s == 0 ? 60 : spec.silent_s;
    graph->roles[graph->role_count++] = role;
    return role;
}

void
troupe_stream_add_with(troupe_graph *graph, const char *name, const troupe_stream_spec *given)
{
    troupe_stream_spec spec = {0};
    note_options(graph, "stream", name, tr_options_copy(&spec, sizeof spec, given));
    if (graph->stream_count == TR_STREAMS_MAX) {
        (void)troupe_graph_refuse(graph, TROUPE_BAD_INPUT,
            "stream %s: a graph has at most %d streams", name, TR_STREAMS_MAX);
        return;
    }
    struct tr_stream *stream = &graph->streams[graph->stream_count++];
    stream->name = copy(name, "");
    stream->spec = spec;
    stream->spec.order = copy(spec.order, "in-order");
    stream->spec.bound = copy(spec.bound, "group");
    stream->spec.config = copy(spec.config, "{}");
    while (stream->stage_count < TROUPE_STAGES_MAX && spec.stages[stream->stage_count] != NULL) {
        stream->stage_count++;
    }
}

void
troupe_weights_add_with(troupe_graph *graph, const char *name, const troupe_weights_spec *given)
{
    troupe_weights_spec spec = {0};
    note_options(graph, "weights", name, tr_options_copy(&spec, sizeof spec, given));
    if (graph->weights_count == TR_WEIGHTS_MAX) {
        (void)troupe_graph_refuse(graph, TROUPE_BAD_INPUT,
            "weights %s: a graph has at most %d sets of weights", name, TR_WEIGHTS_MAX);
        return;
    }
    struct tr_weights *weights = &graph->weights[graph->weights_count++];
    weights->name = copy(name, "");
    weights->spec = spec;
}

static json_t *
weights_of(const troupe_graph *graph, const struct tr_stream *stream)
{
    json_t *list = json_array();
    for (int i = 0; i < graph->weights_count; i++) {
        const struct tr_weights *weights = &graph->weights[i];
        if (weights->spec.from == stream->spec.sink) {
            json_array_append_new(list,
                json_pack("{s:s, s:s, s:s, s:s}", "name", weights->name, "from",
                    weights->spec.from->name, "to", weights->spec.to->name, "update",
                    weights->spec.update == TROUPE_IN_FLIGHT ? "in-flight" : "between-sequences"));
        }
    }
    return list;
}

char *
tr_stream_config(const troupe_graph *graph, const struct tr_stream *stream)
{
    const troupe_stream_spec *spec = &stream->spec;
    json_t *stages = json_array();
    for (int i = 0; i < stream->stage_count; i++) {
        json_array_append_new(stages, json_string(spec->stages[i]->name));
    }
    json_t *config =
        json_pack("{s:s, s:s, s:o, s:s, s:f, s:s, s:f, s:s, s:o, s:o}", "stream", stream->name,
            "source", spec->source->name, "stages", stages, "sink", spec->sink->name, "mean_lag",
            spec->mean_lag, "order", spec->order, "window", spec->window, "bound", spec->bound,
            "weights", weights_of(graph, stream), "config", json_loads(spec->config, 0, NULL));
    TR_ASSERT(config != NULL);
    json_object_set_new(config, "max_lag",
        spec->max_lag == TROUPE_NO_BOUND ? json_null() : json_integer(spec->max_lag));
    char *text = json_dumps(config, JSON_COMPACT);
    json_decref(config);
    TR_ASSERT(text != NULL);
    return text;
}
