/* troupe_main: a program's command line, its graph, its run, its exit code. Each process of a run
 * comes through here and turns off where it is told what it is. */
#include "node/process.h"
#include "sys/share.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *
base_name(const char *path)
{
    const char *slash = path == NULL ? NULL : strrchr(path, '/');
    return path == NULL ? "troupe" : slash == NULL ? path : slash + 1;
}

static troupe_status
take_options(struct tr_program *program, int argc, char **argv, troupe_error *err)
{
    program->full_argc = argc;
    program->full_argv = argv;
    program->argv = tr_zalloc((size_t)argc + 1, sizeof(char *));
    program->colocate = program->app->colocate;
    bool ours = true;
    for (int i = 0; i < argc; i++) {
        const char *value = NULL;
        ours = ours && strcmp(argv[i], "--") != 0;
        if (ours && strcmp(argv[i], "--colocate") == 0) {
            program->colocate = true;
            continue;
        }
        if (ours && strcmp(argv[i], "--graph") == 0) {
            value = "text";
        } else if (ours && strncmp(argv[i], "--graph=", 8) == 0) {
            value = argv[i] + 8;
        }
        if (value == NULL) {
            program->argv[program->argc++] = argv[i];
        } else if (strcmp(value, "text") == 0 || strcmp(value, "dot") == 0) {
            program->picture = value;
        } else {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "--graph=%s: unknown picture; use --graph or --graph=dot", value);
        }
    }
    return TROUPE_OK;
}

static int
drive(troupe_ctx *ctx, void *user)
{
    const struct tr_program *program = user;
    return program->app->drive(ctx, program->argc, program->argv);
}

static int
run(const struct tr_program *program, const troupe_graph *graph)
{
    const troupe_app *app = program->app;
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    troupe_run_result result = {0};

    union {
        const struct tr_program *in;
        void *out;
    } user = {.in = program};

    troupe_run_options options = {.size = sizeof options,
        .drive = app->drive == NULL ? NULL : drive,
        .user = user.out,
        .streams = app->streams,
        .store_bytes = graph->store_bytes != 0 ? graph->store_bytes : app->store_bytes,
        .pool_loops = app->pool_loops,
        .grace_ns = app->grace_ns,
        .signals = true};
    troupe_status status = troupe_run(graph, &options, &result, &err);
    if (status != TROUPE_OK) {
        return tr_program_complain(program, status, &err);
    }
    return result.signal != 0 ? TR_EXIT_SIGNAL + result.signal : result.code;
}

static int
draw(const struct tr_program *program, const troupe_graph *graph)
{
    bool dot = strcmp(program->picture, "dot") == 0;
    char *text = dot ? troupe_graph_dot(graph) : troupe_graph_text(graph);
    bool written = fputs(text, stdout) >= 0 && fflush(stdout) == 0;
    free(text);
    return written ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* The graph function may have told its reason itself; then nothing was noted in the graph. */
static int
refuse(const struct tr_program *program, const troupe_graph *graph, troupe_status status)
{
    if (graph->error.status != TROUPE_OK) {
        return tr_program_complain(program, status, &graph->error);
    }
    return status == TROUPE_BAD_INPUT || status == TROUPE_INVALID ? TR_EXIT_INPUT : EXIT_FAILURE;
}

static int
build_and_run(const struct tr_program *program, troupe_graph *graph)
{
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    graph->drawing = program->picture != NULL;
    troupe_status status = program->app->graph(graph, program->argc, program->argv);
    if (status != TROUPE_OK) {
        return refuse(program, graph, status);
    }
    status = troupe_graph_check(graph, program->app->streams, &err);
    if (status != TROUPE_OK) {
        return tr_program_complain(program, status, &err);
    }
    if (program->picture != NULL) {
        return draw(program, graph);
    }
    return program->colocate ? run(program, graph) : tr_driver_first(program, graph);
}

/* The variable is for this process alone: what it starts must not take it for its own. */
static int
become(const struct tr_program *program, const char *value)
{
    struct tr_birth birth;
    bool known = tr_birth_read(value, &birth);
    (void)unsetenv(TR_BIRTH_VARIABLE);
    if (!known) {
        fprintf(stderr,
            "%s: the environment variable " TR_BIRTH_VARIABLE
            " is for processes that a run starts itself; unset it\n",
            program->name);
        return TR_EXIT_INPUT;
    }
    switch (birth.kind) {
    case TR_PROCESS_NODE:
        return tr_node_main(program, &birth);
    case TR_PROCESS_DRIVER:
        return tr_driver_again(program, &birth);
    default:
        return tr_worker_main(program, &birth);
    }
}

int
troupe_main(int argc, char **argv, const troupe_app *app)
{
    struct tr_program program = {
        .app = app, .name = app->name != NULL ? app->name : base_name(argc > 0 ? argv[0] : NULL)};
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    tr_process_steady();
    troupe_status status = take_options(&program, argc, argv, &err);
    const char *born = getenv(TR_BIRTH_VARIABLE);
    int code = TR_EXIT_INPUT;
    if (status != TROUPE_OK) {
        code = tr_program_complain(&program, status, &err);
    } else if (born != NULL) {
        code = become(&program, born);
    } else {
        troupe_graph *graph = troupe_graph_new();
        code = build_and_run(&program, graph);
        troupe_graph_free(graph);
    }
    tr_free(program.argv);
    return code;
}
