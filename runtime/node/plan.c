/* From a checked graph to a plan, and from a class to where it lies and back. */
#include "node/plan.h"

#include <troupe/ext/module.h>
#include <troupe/ext/thread.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define STORE_BYTES_DEFAULT (UINT64_C(4) << 30)
#define GRACE_DEFAULT_NS    UINT64_C(30000000000)

enum {
    MODULE_PATH_MAX = 4096
};

static void
plan_role(struct tr_plan_role *out, const troupe_role *role)
{
    const troupe_role_spec *spec = &role->spec;
    *out = (struct tr_plan_role){.name = tr_strdup(role->name),
        .config = tr_strdup(spec->config),
        .place = tr_strdup(spec->place),
        .where = {.module = tr_strdup(""), .name = tr_strdup(spec->type->name)},
        .type = spec->type,
        .replicas = spec->replicas,
        .mailbox = spec->mailbox,
        .restarts = spec->restarts,
        .restart_window_s = spec->restart_window_s,
        .backoff_ms = spec->backoff_ms,
        .cpus = spec->cpus,
        .devices = spec->devices,
        .memory = spec->memory,
        .silent_ns = spec->silent_s < 0 ? UINT64_MAX : (uint64_t)(spec->silent_s * 1e9),
        .own_loop = spec->type->own_loop};
}

static void
plan_stream(struct tr_plan_role *out, const troupe_graph *graph, const struct tr_stream *stream,
    const troupe_class *type)
{
    char *config = tr_stream_config(graph, stream);
    *out = (struct tr_plan_role){.name = tr_strdup(stream->name),
        .config = tr_strdup(config),
        .place = tr_strdup(TR_PLACE_OWN),
        .where = {.module = tr_strdup(""), .name = tr_strdup(type->name)},
        .type = type,
        .replicas = 1,
        .restart_window_s = 60,
        .backoff_ms = 100,
        .own_loop = type->own_loop,
        .system = true};
    free(config); /* from jansson */
}

troupe_status
tr_plan_of_graph(const troupe_graph *graph, const troupe_run_options *options, struct tr_plan **out,
    troupe_error *err)
{
    if (graph->stream_count > 0 && options->streams == NULL) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "stream %s: the program names no class that runs streams; set .streams of its options",
            graph->streams[0].name);
    }
    struct tr_plan *plan = tr_zalloc(1, sizeof *plan);
    plan->name = tr_strdup("");
    plan->folder = tr_strdup("");
    plan->title = tr_strdup(graph->name == NULL ? "" : graph->name);
    plan->logs = tr_strdup(graph->logs == NULL ? "" : graph->logs);
    plan->program = tr_strdup("");
    plan->argv = tr_zalloc(1, sizeof *plan->argv);
    plan->role_count = (uint32_t)(graph->role_count + graph->stream_count);
    plan->roles = tr_zalloc(plan->role_count, sizeof *plan->roles);
    for (int i = 0; i < graph->role_count; i++) {
        plan_role(&plan->roles[i], graph->roles[i]);
    }
    for (int i = 0; i < graph->stream_count; i++) {
        plan_stream(
            &plan->roles[graph->role_count + i], graph, &graph->streams[i], options->streams->type);
    }
    plan->store_bytes = options->store_bytes == 0 ? STORE_BYTES_DEFAULT : options->store_bytes;
    plan->grace_ns = options->grace_ns == 0 ? GRACE_DEFAULT_NS : options->grace_ns;
    int pool = options->pool_loops > 0 ? options->pool_loops : tr_cpu_count();
    plan->pool_loops = TR_MIN(pool, TR_POOL_LOOPS_MAX);
    *out = plan;
    return TROUPE_OK;
}

void
tr_plan_set_life(struct tr_plan *plan, uint32_t life)
{
    for (uint32_t i = 0; i < plan->role_count; i++) {
        struct tr_plan_role *role = &plan->roles[i];
        json_t *config = role->system ? json_loads(role->config, 0, NULL) : NULL;
        if (config != NULL && json_is_object(config)) {
            json_object_set_new(config, "life", json_integer(life));
            char *text = json_dumps(config, JSON_COMPACT);
            tr_free(role->config);
            role->config = tr_strdup(text);
            free(text); /* from jansson */
        }
        json_decref(config);
    }
}

void
tr_plan_free(struct tr_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    for (uint32_t i = 0; i < plan->role_count; i++) {
        struct tr_plan_role *role = &plan->roles[i];
        tr_free(role->name);
        tr_free(role->config);
        tr_free(role->place);
        tr_free(role->where.module);
        tr_free(role->where.name);
    }
    for (uint32_t i = 0; i < plan->argc; i++) {
        tr_free(plan->argv[i]);
    }
    tr_free(plan->argv);
    tr_free(plan->roles);
    tr_free(plan->name);
    tr_free(plan->folder);
    tr_free(plan->title);
    tr_free(plan->logs);
    tr_free(plan->program);
    tr_free(plan);
}

/* --- classes across processes ---------------------------------------------------------------- */

troupe_status
tr_plan_locate(struct tr_plan *plan, troupe_error *err)
{
    char path[MODULE_PATH_MAX];
    for (uint32_t i = 0; i < plan->role_count; i++) {
        struct tr_plan_role *role = &plan->roles[i];
        if (!tr_module_find(role->type, path, sizeof path, &role->where.offset)) {
            return troupe_fail(err, TROUPE_INVALID,
                "role %s: its class %s is neither in the program nor in a library, so that the "
                "processes of its replicas cannot find it; make it a static constant, or run with "
                "--colocate",
                role->name, role->where.name);
        }
        tr_free(role->where.module);
        role->where.module = tr_strdup(path);
    }
    return TROUPE_OK;
}

troupe_status
tr_plan_resolve(struct tr_plan *plan, troupe_error *err)
{
    for (uint32_t i = 0; i < plan->role_count; i++) {
        struct tr_plan_role *role = &plan->roles[i];
        const troupe_class *type = NULL;
        if (role->where.offset % _Alignof(troupe_class) == 0) {
            type = tr_module_address(role->where.module, role->where.offset);
        }
        if (type == NULL || type->name == NULL || strcmp(type->name, role->where.name) != 0 ||
            type->own_loop != role->own_loop) {
            return troupe_fail(err, TROUPE_CORRUPT,
                "role %s: its class %s is not at offset %llu of %s; the file is not the one that "
                "the run was started from",
                role->name, role->where.name, (unsigned long long)role->where.offset,
                role->where.module[0] == '\0' ? "the program" : role->where.module);
        }
        role->type = type;
    }
    return TROUPE_OK;
}
