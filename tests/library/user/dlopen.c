/* Loads and unloads the library many times in a plain program that is not linked with it, runs a
 * graph each time, and looks whether anything stays: memory, descriptors, mappings, threads.
 *
 *   dlopen LIBRARY [TIMES] */
#include <troupe/troupe.h>

#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

/* What a plugin host would keep: the functions that it looked up. */
typedef struct functions {
    __typeof__(troupe_graph_new) *graph_new;
    __typeof__(troupe_graph_free) *graph_free;
    __typeof__(troupe_role_add_with) *role_add_with;
    __typeof__(troupe_run) *run;
    __typeof__(troupe_reply_i64) *reply_i64;
    __typeof__(troupe_arg_i64) *arg_i64;
    __typeof__(troupe_args_i64) *args_i64;
    __typeof__(troupe_to) *to;
    __typeof__(troupe_call_wait) *call_wait;
    __typeof__(troupe_answer_free) *answer_free;
} functions;

/* A method has no other way to what this program looked up. */
static functions troupe;

static void
echo(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    troupe.reply_i64(call, troupe.arg_i64(call, 0));
}

static const troupe_class echoer = {
    .name = "echoer", .own_loop = true, .methods = {{"echo", echo}}};

static int
drive(troupe_ctx *ctx, void *user)
{
    troupe_args args = {0};
    troupe_answer *answer = NULL;
    troupe.args_i64(&args, *(const int *)user);
    if (troupe.call_wait(ctx, troupe.to(ctx, "echoer", 0), "echo", &args, &answer) != TROUPE_OK) {
        return 1;
    }
    int code = troupe.arg_i64(answer, 0) == *(const int *)user ? 0 : 1;
    troupe.answer_free(answer);
    return code;
}

static void *
look_up(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return symbol;
}

/* One life of the library in this process. */
static int
cycle(const char *path, int number)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    *(void **)&troupe.graph_new = look_up(library, "troupe_graph_new");
    *(void **)&troupe.graph_free = look_up(library, "troupe_graph_free");
    *(void **)&troupe.role_add_with = look_up(library, "troupe_role_add_with");
    *(void **)&troupe.run = look_up(library, "troupe_run");
    *(void **)&troupe.reply_i64 = look_up(library, "troupe_reply_i64");
    *(void **)&troupe.arg_i64 = look_up(library, "troupe_arg_i64");
    *(void **)&troupe.args_i64 = look_up(library, "troupe_args_i64");
    *(void **)&troupe.to = look_up(library, "troupe_to");
    *(void **)&troupe.call_wait = look_up(library, "troupe_call_wait");
    *(void **)&troupe.answer_free = look_up(library, "troupe_answer_free");

    troupe_error err = {0};
    troupe_run_result result = {0};
    troupe_graph *graph = troupe.graph_new();
    troupe_role_spec spec = {.size = sizeof spec, .type = &echoer};
    troupe.role_add_with(graph, "echoer", &spec);
    troupe_run_options options = {.size = sizeof options,
        .drive = drive,
        .user = &number,
        .pool_loops = 1,
        .store_bytes = 1 << 20};
    troupe_status status = troupe.run(graph, &options, &result, &err);
    troupe.graph_free(graph);
    if (status != TROUPE_OK || result.code != 0) {
        fprintf(stderr, "run %d: %s\n", number, err.text);
        return 1;
    }
    return dlclose(library);
}

static int
entries(const char *folder)
{
    int count = 0;
    DIR *dir = opendir(folder);
    while (dir != NULL && readdir(dir) != NULL) {
        count++;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

static int
mappings(void)
{
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    for (int c = 0; maps != NULL && (c = fgetc(maps)) != EOF;) {
        count += c == '\n';
    }
    if (maps != NULL) {
        fclose(maps);
    }
    return count;
}

typedef struct footprint {
    size_t heap;
    int descriptors, threads, mappings;
} footprint;

static footprint
measure(void)
{
    return (footprint){.heap = mallinfo2().uordblks,
        .descriptors = entries("/proc/self/fd"),
        .threads = entries("/proc/self/task"),
        .mappings = mappings()};
}

int
main(int argc, char **argv)
{
    int times = argc > 2 ? atoi(argv[2]) : 100;
    footprint first = {0};
    for (int i = 0; i < times; i++) {
        if (cycle(argv[1], i) != 0) {
            return 1;
        }
        if (i == 4) {
            first = measure(); /* what the C library keeps for ever is there by now */
        }
    }
    void *left = dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD);
    footprint last = measure();
    printf("dlopen: %d times; heap %zu -> %zu, descriptors %d -> %d, threads %d -> %d, mappings %d "
           "-> %d%s\n",
        times, first.heap, last.heap, first.descriptors, last.descriptors, first.threads,
        last.threads, first.mappings, last.mappings, left != NULL ? ", still loaded" : "");
    /* A leak of the smallest block a cycle would be 3040 bytes. */
    return left != NULL || last.heap > first.heap + 1024 || last.descriptors != first.descriptors ||
           last.threads != first.threads || last.mappings > first.mappings + 4;
}
