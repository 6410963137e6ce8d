/* Pictures of a graph: text for a terminal, dot for Graphviz. */
#include "node/graph.h"

#include <troupe/ext/base.h>

#include <string.h>

static void
draw_role(tr_buf *out, const troupe_role *role, int width)
{
    const troupe_role_spec *spec = &role->spec;
    tr_buf_printf(out, "  %-*s x%-4d class %s", width, role->name, spec->replicas,
        spec->type == NULL || spec->type->name == NULL ? "?" : spec->type->name);
    if (spec->devices > 0) {
        tr_buf_printf(out, ", devices %g", spec->devices);
    }
    if (spec->cpus > 0) {
        tr_buf_printf(out, ", cpus %d", spec->cpus);
    }
    if (spec->memory > 0) {
        tr_buf_printf(out, ", memory %llu MiB", (unsigned long long)(spec->memory >> 20));
    }
    if (spec->labels[0] != '\0') {
        tr_buf_printf(out, ", on %s", spec->labels);
    }
    if (spec->restarts > 0) {
        tr_buf_printf(out, ", restarts %d", spec->restarts);
    } else if (spec->restarts < 0) {
        tr_buf_puts(out, ", restarts without limit");
    }
    if (strcmp(spec->place, TR_PLACE_OWN) != 0) {
        tr_buf_printf(out, ", in place %s", spec->place);
    }
    if (spec->type != NULL && spec->type->own_loop) {
        tr_buf_puts(out, ", own thread");
    }
    tr_buf_puts(out, "\n");
}

static const char *
name_of(const troupe_role *role)
{
    return role == NULL ? "?" : role->name;
}

static void
draw_stream(tr_buf *out, const struct tr_stream *stream)
{
    const troupe_stream_spec *spec = &stream->spec;
    tr_buf_printf(out, "  %s: %s --> ", stream->name, name_of(spec->source));
    for (int i = 0; i < stream->stage_count; i++) {
        tr_buf_printf(out, "%s%s", i == 0 ? "[" : " | ", name_of(spec->stages[i]));
    }
    tr_buf_printf(out, "%s%s    ", stream->stage_count > 0 ? "] --> " : "", name_of(spec->sink));
    tr_buf_printf(out, "mean_lag %g, max_lag ", spec->mean_lag);
    if (spec->max_lag == TROUPE_NO_BOUND) {
        tr_buf_puts(out, "none");
    } else {
        tr_buf_printf(out, "%d", spec->max_lag);
    }
    tr_buf_printf(out, ", %s, bound %s\n", spec->order, spec->bound);
}

static const char *
update_name(troupe_update update)
{
    return update == TROUPE_IN_FLIGHT ? "in flight" : "between sequences";
}

char *
troupe_graph_text(const troupe_graph *graph)
{
    tr_buf out = {0};
    int width = 1;
    for (int i = 0; i < graph->role_count; i++) {
        width = TR_MAX(width, (int)strlen(graph->roles[i]->name));
    }
    tr_buf_puts(&out, "roles\n");
    for (int i = 0; i < graph->role_count; i++) {
        draw_role(&out, graph->roles[i], width);
    }
    tr_buf_puts(&out, graph->stream_count > 0 ? "streams\n" : "");
    for (int i = 0; i < graph->stream_count; i++) {
        draw_stream(&out, &graph->streams[i]);
    }
    tr_buf_puts(&out, graph->weights_count > 0 ? "weights\n" : "");
    for (int i = 0; i < graph->weights_count; i++) {
        const struct tr_weights *weights = &graph->weights[i];
        tr_buf_printf(&out, "  %s: %s ==> %s    %s\n", weights->name, name_of(weights->spec.from),
            name_of(weights->spec.to), update_name(weights->spec.update));
    }
    return out.data;
}

char *
troupe_graph_dot(const troupe_graph *graph)
{
    tr_buf out = {0};
    tr_buf_puts(&out, "digraph troupe {\n  rankdir=LR;\n  node [shape=box];\n");
    for (int i = 0; i < graph->role_count; i++) {
        const troupe_role *role = graph->roles[i];
        tr_buf_printf(
            &out, "  \"%s\" [label=\"%s x%d\"];\n", role->name, role->name, role->spec.replicas);
    }
    for (int i = 0; i < graph->stream_count; i++) {
        const struct tr_stream *stream = &graph->streams[i];
        const troupe_stream_spec *spec = &stream->spec;
        tr_buf_printf(&out, "  \"%s\" [shape=ellipse];\n", stream->name);
        tr_buf_printf(&out, "  \"%s\" -> \"%s\";\n", name_of(spec->source), stream->name);
        for (int j = 0; j < stream->stage_count; j++) {
            tr_buf_printf(
                &out, "  \"%s\" -> \"%s\" [dir=both];\n", stream->name, name_of(spec->stages[j]));
        }
        tr_buf_printf(&out, "  \"%s\" -> \"%s\";\n", stream->name, name_of(spec->sink));
    }
    for (int i = 0; i < graph->weights_count; i++) {
        const struct tr_weights *weights = &graph->weights[i];
        tr_buf_printf(&out, "  \"%s\" -> \"%s\" [style=dashed, label=\"%s\"];\n",
            name_of(weights->spec.from), name_of(weights->spec.to), weights->name);
    }
    tr_buf_puts(&out, "}\n");
    return out.data;
}
