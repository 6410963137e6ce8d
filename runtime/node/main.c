/* troupe_main: a program's command line, its graph, its run, its exit code. */
#include "node/graph.h"

#include <troupe/app.h>
#include <troupe/ext/base.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    EXIT_INPUT = 2,
    EXIT_SIGNAL = 128
};

struct program {
    const troupe_app *app;
    const char *name;
    int argc;
    char **argv;         /* without the options that are ours */
    const char *picture; /* NULL, "text" or "dot" */
};

static const char *
base_name(const char *path)
{
    const char *slash = path == NULL ? NULL : strrchr(path, '/');
    return path == NULL ? "troupe" : slash == NULL ? path : slash + 1;
}

static troupe_status
take_options(struct program *program, int argc, char **argv, troupe_error *err)
{
    program->argv = tr_zalloc((size_t)argc + 1, sizeof(char *));
    bool ours = true;
    for (int i = 0; i < argc; i++) {
        const char *value = NULL;
        ours = ours && strcmp(argv[i], "--") != 0;
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
complain(const struct program *program, troupe_status status, const troupe_error *err)
{
    fprintf(stderr, "%s: %s\n", program->name,
        err->text[0] != '\0' ? err->text : troupe_status_text(status));
    return status == TROUPE_BAD_INPUT || status == TROUPE_INVALID ? EXIT_INPUT : EXIT_FAILURE;
}

static int
drive(troupe_ctx *ctx, void *user)
{
    const struct program *program = user;
    return program->app->drive(ctx, program->argc, program->argv);
}

static int
run(const struct program *program, const troupe_graph *graph)
{
    const troupe_app *app = program->app;
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    troupe_run_result result = {0};

    union {
        const struct program *in;
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
        return complain(program, status, &err);
    }
    return result.signal != 0 ? EXIT_SIGNAL + result.signal : result.code;
}

static int
draw(const struct program *program, const troupe_graph *graph)
{
    bool dot = strcmp(program->picture, "dot") == 0;
    char *text = dot ? troupe_graph_dot(graph) : troupe_graph_text(graph);
    bool written = fputs(text, stdout) >= 0 && fflush(stdout) == 0;
    free(text);
    return written ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* The graph function may have told its reason itself; then nothing was noted in the graph. */
static int
refuse(const struct program *program, const troupe_graph *graph, troupe_status status)
{
    if (graph->error.status != TROUPE_OK) {
        return complain(program, status, &graph->error);
    }
    return status == TROUPE_BAD_INPUT || status == TROUPE_INVALID ? EXIT_INPUT : EXIT_FAILURE;
}

static int
build_and_run(const struct program *program, troupe_graph *graph)
{
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    graph->drawing = program->picture != NULL;
    troupe_status status = program->app->graph(graph, program->argc, program->argv);
    if (status != TROUPE_OK) {
        return refuse(program, graph, status);
    }
    status = troupe_graph_check(graph, program->app->streams, &err);
    if (status != TROUPE_OK) {
        return complain(program, status, &err);
    }
    return program->picture != NULL ? draw(program, graph) : run(program, graph);
}

int
troupe_main(int argc, char **argv, const troupe_app *app)
{
    struct program program = {
        .app = app, .name = app->name != NULL ? app->name : base_name(argc > 0 ? argv[0] : NULL)};
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    troupe_status status = take_options(&program, argc, argv, &err);
    int code = EXIT_INPUT;
    if (status != TROUPE_OK) {
        code = complain(&program, status, &err);
    } else {
        troupe_graph *graph = troupe_graph_new();
        code = build_and_run(&program, graph);
        troupe_graph_free(graph);
    }
    tr_free(program.argv);
    return code;
}
