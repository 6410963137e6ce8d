/* A program for tests of real processes: actors that echo, count, compute, block, print, leak, fail
 * and die in every way, and a driver that does one thing by name.
 *
 *   cast [KEY=VALUE...]
 *
 *   drive=NAME replicas=N restarts=N window=S backoff=MS place=NAME pooled=0|1 heap=0|1
 *   memory=BYTES grace=MS init=PATH (an init fails while that file is there) title=S
 *   hold=PATH (the init that takes that file away waits until PATH.held is gone)
 *   quit=init|start (troupe_quit(9) there)  fini=spawn (makes an actor as it is freed)
 *   early=PATH (a worker waits, before it is one, while that file is there)
 *   drive=one: method=NAME number=N or text=S, after=MS, counts=N, code=N */
#include <troupe/troupe.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

static const char *
value(int argc, char **argv, const char *key, const char *otherwise)
{
    size_t length = strlen(key);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], key, length) == 0 && argv[i][length] == '=') {
            return argv[i] + length + 1;
        }
    }
    return otherwise;
}

static int
number(int argc, char **argv, const char *key, int otherwise)
{
    const char *text = value(argc, argv, key, NULL);
    return text == NULL ? otherwise : (int)strtol(text, NULL, 10);
}

static void
sleep_ms(int64_t ms)
{
    struct timespec t = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&t, &t) != 0) {
    }
}

/* --- actors ---------------------------------------------------------------------------------- */

struct state {
    int64_t count;
    bool stubborn; /* never stops */
    bool quits;    /* as it starts */
    bool spawns;   /* in fini */
};

/* The path that the config has for the key; empty for none. */
static void
read_path(const char *config, const char *key, char path[256])
{
    char mark[32];
    (void)snprintf(mark, sizeof mark, "\"%s\":\"", key);
    const char *at = strstr(config, mark);
    path[0] = '\0';
    if (at != NULL) {
        at += strlen(mark);
        (void)snprintf(path, 256, "%.*s", (int)strcspn(at, "\""), at);
    }
}

static void
wait_while_there(const char *path, const char *what)
{
    if (access(path, F_OK) == 0) {
        fprintf(stderr, "%s\n", what);
        while (access(path, F_OK) == 0) {
            sleep_ms(5);
        }
    }
}

static troupe_status
init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    char path[256], held[300];
    struct state *state = troupe_state(ctx);
    read_path(config, "fini", path);
    state->spawns = strcmp(path, "spawn") == 0;
    read_path(config, "quit", path);
    state->quits = strcmp(path, "start") == 0;
    if (strcmp(path, "init") == 0) {
        troupe_quit(ctx, 9);
    }
    read_path(config, "hold", path);
    (void)snprintf(held, sizeof held, "%s.held", path);
    if (path[0] != '\0' && rename(path, held) == 0) {
        wait_while_there(held, "held in init");
    }
    read_path(config, "init", path);
    if (path[0] != '\0' && access(path, F_OK) == 0) {
        return troupe_fail(err, TROUPE_DEVICE, "the file is there");
    }
    return TROUPE_OK;
}

static void
start(troupe_ctx *ctx)
{
    if (((struct state *)troupe_state(ctx))->quits) {
        troupe_quit(ctx, 9);
    }
}

static void
fini(troupe_ctx *ctx)
{
    static const troupe_class child = {.name = "child"};
    const struct state *state = troupe_state(ctx);
    if (state->spawns) {
        troupe_log(ctx, "spawn in fini: %s",
            troupe_status_name(troupe_spawn(ctx, &child, NULL, NULL, .name = NULL)));
    }
}

static void
echo(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    troupe_args values = {0};
    troupe_args_str(&values, troupe_arg_str(call, 0));
    troupe_reply(call, &values);
}

static void
count(troupe_ctx *ctx, troupe_call *call)
{
    struct state *state = troupe_state(ctx);
    troupe_reply_i64(call, ++state->count);
}

static void
count_slowly(troupe_ctx *ctx, troupe_call *call)
{
    sleep_ms(3);
    count(ctx, call);
}

static void
pid(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    troupe_reply_i64(call, getpid());
}

static void
on_peer(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    troupe_call *call = user;
    (void)ctx;
    if (troupe_answer_status(answer) == TROUPE_OK) {
        troupe_reply_i64(call, troupe_arg_i64(answer, 0));
    } else {
        troupe_reply_error(call, troupe_answer_status(answer), "%s", troupe_answer_text(answer));
    }
}

/* The pid of w[1], as it is known from here. */
static void
peer(troupe_ctx *ctx, troupe_call *call)
{
    call = troupe_defer(call);
    troupe_status status = troupe_call_send(
        ctx, troupe_to(ctx, "w", 1), "pid", NULL, .on_answer = on_peer, .user = call);
    if (status != TROUPE_OK) {
        troupe_reply_error(call, status, "w[1] is not known here");
    }
}

static void
crash(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    (void)call;
    printf("last words\n");
    fprintf(stderr, "about to crash\n");
    abort();
}

/* exit(code) of the whole process, in the middle of a method. */
static void
leave(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    _exit((int)troupe_arg_i64(call, 0));
}

static void
fail(troupe_ctx *ctx, troupe_call *call)
{
    (void)call;
    troupe_exit(ctx, TROUPE_DEVICE, "asked to fail");
}

static void
answer_and_fail(troupe_ctx *ctx, troupe_call *call)
{
    troupe_reply(call, NULL);
    sleep_ms(20);
    troupe_exit(ctx, TROUPE_DEVICE, "failed after its answer");
}

static void
finish(troupe_ctx *ctx, troupe_call *call)
{
    troupe_reply(call, NULL);
    troupe_exit(ctx, TROUPE_OK, "its work is done");
}

static void
block(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    sleep_ms(troupe_arg_i64(call, 0));
    troupe_reply(call, NULL);
}

static void
print(troupe_ctx *ctx, troupe_call *call)
{
    printf("out: %s\n", troupe_arg_str(call, 0));
    fflush(stdout);
    fprintf(stderr, "err: %s\n", troupe_arg_str(call, 0));
    troupe_log(ctx, "log: %s", troupe_arg_str(call, 0));
    troupe_reply(call, NULL);
}

/* Much output, fast. */
static void
flood(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    for (int64_t i = 0; i < troupe_arg_i64(call, 0); i++) {
        fprintf(stderr, "line %lld of a flood ........................................\n",
            (long long)i);
    }
    troupe_reply(call, NULL);
}

static void
leak(troupe_ctx *ctx, troupe_call *call)
{
    troupe_object object;
    void *bytes = NULL;
    troupe_status status = troupe_object_create(troupe_ctx_store(ctx), 1 << 16, &object, &bytes);
    if (status == TROUPE_OK && troupe_arg_i64(call, 0) != 0) {
        memset(bytes, 7, 1 << 16);
        status = troupe_object_seal(troupe_ctx_store(ctx), object);
    }
    troupe_reply_i64(call, status);
}

static void
objects(troupe_ctx *ctx, troupe_call *call)
{
    troupe_store_stats stats;
    troupe_store_get_stats(troupe_ctx_store(ctx), &stats);
    troupe_reply_i64(call, (int64_t)stats.objects);
}

static void
grow(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    for (int i = 0; i < 64; i++) {
        char *bytes = malloc(8 << 20);
        memset(bytes, i, 8 << 20);
        sleep_ms(50);
    }
    troupe_reply(call, NULL);
}

static void
stay(troupe_ctx *ctx, troupe_call *call)
{
    struct state *state = troupe_state(ctx);
    state->stubborn = true;
    troupe_reply(call, NULL);
}

static void
quit(troupe_ctx *ctx, troupe_call *call)
{
    int64_t code = troupe_arg_i64(call, 0);
    troupe_reply(call, NULL);
    troupe_quit(ctx, (int)code);
}

static bool
stop(troupe_ctx *ctx)
{
    struct state *state = troupe_state(ctx);
    troupe_log(ctx, "asked to stop");
    return !state->stubborn;
}

#define METHODS                                                                         \
    {                                                                                   \
        {"echo", echo}, {"count", count}, {"count_slowly", count_slowly}, {"pid", pid}, \
            {"peer", peer}, {"crash", crash}, {"leave", leave}, {"fail", fail},         \
            {"answer_and_fail", answer_and_fail}, {"finish", finish}, {"block", block}, \
            {"print", print}, {"flood", flood}, {"leak", leak}, {"objects", objects},   \
            {"grow", grow}, {"stay", stay}, {"quit", quit},                             \
        {                                                                               \
            NULL, NULL                                                                  \
        }                                                                               \
    }

static const troupe_class player = {.name = "player",
    .state_size = sizeof(struct state),
    .init = init,
    .start = start,
    .fini = fini,
    .stop = stop,
    .own_loop = true,
    .methods = METHODS};
static const troupe_class pooled = {.name = "pooled",
    .state_size = sizeof(struct state),
    .init = init,
    .start = start,
    .fini = fini,
    .stop = stop,
    .methods = METHODS};

static troupe_status
graph(troupe_graph *g, int argc, char **argv)
{
    char config[1024];
    const char *place = value(argc, argv, "place", NULL);
    (void)snprintf(config, sizeof config,
        "{\"init\":\"%s\", \"hold\":\"%s\", \"quit\":\"%s\", \"fini\":\"%s\"}",
        value(argc, argv, "init", ""), value(argc, argv, "hold", ""), value(argc, argv, "quit", ""),
        value(argc, argv, "fini", ""));
    const troupe_class *type = number(argc, argv, "pooled", 0) != 0 ? &pooled : &player;
    troupe_class *copy = NULL;
    if (number(argc, argv, "heap", 0) != 0) {
        copy = malloc(sizeof *copy);
        *copy = player;
        type = copy;
    }
    troupe_role_add(g, "w", type, .replicas = number(argc, argv, "replicas", 2), .config = config,
        .restarts = number(argc, argv, "restarts", 0),
        .restart_window_s = (double)number(argc, argv, "window", 0),
        .backoff_ms = number(argc, argv, "backoff", 0), .place = place,
        .memory = (uint64_t)number(argc, argv, "memory", 0),
        .silent_s = (double)number(argc, argv, "silent", 0));
    if (place != NULL) {
        troupe_role_add(g, "v", &pooled, .replicas = number(argc, argv, "replicas", 2),
            .config = config, .restarts = number(argc, argv, "restarts", 0), .place = place);
    }
    troupe_graph_name(g, value(argc, argv, "title", NULL));
    troupe_graph_logs(g, value(argc, argv, "logs", NULL));
    return TROUPE_OK;
}

/* --- drives ---------------------------------------------------------------------------------- */

static troupe_status
ask(troupe_ctx *ctx, int replica, const char *method, int64_t number_, const char *text,
    int64_t *result)
{
    troupe_args args = {0};
    troupe_answer *answer = NULL;
    if (text != NULL) {
        troupe_args_str(&args, text);
    } else {
        troupe_args_i64(&args, number_);
    }
    troupe_status status =
        troupe_call_wait(ctx, troupe_to(ctx, "w", replica), method, &args, &answer);
    if (status != TROUPE_OK) {
        troupe_args_fini(&args);
        printf("%s: %s %s\n", method, troupe_status_name(status),
            answer == NULL ? "" : troupe_answer_text(answer));
        fflush(stdout);
    } else if (result != NULL) {
        *result = troupe_arg_i64(answer, 0);
    }
    troupe_answer_free(answer);
    return status;
}

static bool
never(void *user)
{
    (void)user;
    return false;
}

/* Prints the pids (or what else a method says) once, and again whenever they have changed; ends
 * when it is stopped. */
static int
drive_serve(troupe_ctx *ctx, const char *method)
{
    int64_t known[64] = {0};
    while (troupe_wait(ctx, never, NULL, 50 * MS) != TROUPE_STOPPED) {
        for (int i = 0; i < troupe_replicas(ctx, "w") && i < 64; i++) {
            int64_t now = 0;
            if (ask(ctx, i, method, 0, NULL, &now) == TROUPE_OK && now != known[i]) {
                known[i] = now;
                printf("pid w[%d] %lld\n", i, (long long)now);
                fflush(stdout);
            }
        }
    }
    printf("stopped\n");
    fflush(stdout);
    return 0;
}

/* Calls again and again, never waiting for anything else; prints the pid of each life. */
static int
drive_insist(troupe_ctx *ctx)
{
    int64_t known = 0;
    for (int i = 0; i < 1000; i++) {
        int64_t now = 0;
        troupe_answer *answer = NULL;
        troupe_status status = troupe_call_wait(ctx, troupe_to(ctx, "w", 0), "pid", NULL, &answer);
        now = status == TROUPE_OK ? troupe_arg_i64(answer, 0) : known;
        troupe_answer_free(answer);
        if (status == TROUPE_STOPPED) {
            return 0;
        }
        if (now != known) {
            known = now;
            printf("pid w[0] %lld\n", (long long)now);
            fflush(stdout);
        }
        sleep_ms(20);
    }
    return 3;
}

/* One call, then some more of another kind. */
static int
drive_one(troupe_ctx *ctx, int argc, char **argv)
{
    int64_t result = -1;
    const char *text = value(argc, argv, "text", NULL);
    troupe_status status = ask(ctx, 0, value(argc, argv, "method", "echo"),
        number(argc, argv, "number", 0), text, &result);
    printf("status %s result %lld\n", troupe_status_name(status), (long long)result);
    fflush(stdout);
    if (number(argc, argv, "after", -1) >= 0) {
        (void)troupe_wait(ctx, never, NULL, (uint64_t)number(argc, argv, "after", 0) * MS);
    }
    for (int i = 0; i < number(argc, argv, "counts", 0); i++) {
        status = ask(ctx, 0, "count", 0, NULL, &result);
        printf("count %s %lld\n", troupe_status_name(status), (long long)result);
    }
    fflush(stdout);
    return number(argc, argv, "code", 0);
}

/* A hundred calls that may be sent again, all at once; after the first ten answers the worker is
 * killed. Prints the answers in their order. */
struct queue {
    int answered;
    int failed;
    int64_t pid;
};

static void
on_counted(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)ctx;
    struct queue *queue = user;
    if (troupe_answer_status(answer) == TROUPE_OK) {
        printf(" %lld", (long long)troupe_arg_i64(answer, 0));
    } else {
        queue->failed++;
        printf(" %s", troupe_status_name(troupe_answer_status(answer)));
    }
    if (++queue->answered == 10) {
        (void)kill((pid_t)queue->pid, SIGKILL);
    }
}

static bool
all_answered(void *user)
{
    return ((struct queue *)user)->answered == 100;
}

static int
drive_queue(troupe_ctx *ctx, bool retry)
{
    struct queue queue = {0};
    (void)ask(ctx, 0, "pid", 0, NULL, &queue.pid);
    printf("answers");
    for (int i = 0; i < 100; i++) {
        if (troupe_call_send(ctx, troupe_to(ctx, "w", 0), "count_slowly", NULL,
                .on_answer = on_counted, .user = &queue, .retry = retry) != TROUPE_OK) {
            return 1;
        }
    }
    troupe_status status = troupe_wait(ctx, all_answered, &queue, 20000 * MS);
    printf("\nwait %s failed %d\n", troupe_status_name(status), queue.failed);
    fflush(stdout);
    return 0;
}

/* Two hundred calls one after the other; at each of the counts given the actor leaves. */
static int
drive_steps(troupe_ctx *ctx)
{
    printf("answers");
    for (int i = 0; i < 200; i++) {
        troupe_answer *answer = NULL;
        troupe_status status =
            troupe_call_wait(ctx, troupe_to(ctx, "w", 0), "count", NULL, &answer);
        if (status == TROUPE_OK && troupe_arg_i64(answer, 0) == 100 &&
            troupe_tell(ctx, troupe_to(ctx, "w", 0), "fail", NULL) != TROUPE_OK) {
            return 3;
        }
        if (status == TROUPE_OK) {
            printf(" %lld", (long long)troupe_arg_i64(answer, 0));
        } else {
            printf(" %s", troupe_status_name(status));
            (void)troupe_wait(ctx, never, NULL, 20 * MS);
        }
        troupe_answer_free(answer);
    }
    printf("\n");
    fflush(stdout);
    return 0;
}

/* Objects that w[0] makes and never releases are back when it is dead. */
static int
drive_leaks(troupe_ctx *ctx, int argc, char **argv)
{
    int64_t result = -1;
    (void)ask(ctx, 1, "objects", 0, NULL, &result);
    printf("objects before %lld\n", (long long)result);
    for (int i = 0; i < 3; i++) {
        (void)ask(ctx, 0, "leak", number(argc, argv, "number", 0), NULL, &result);
    }
    (void)ask(ctx, 1, "objects", 0, NULL, &result);
    printf("objects with %lld\n", (long long)result);
    (void)ask(ctx, 0, "crash", 0, NULL, NULL);
    (void)ask(ctx, 1, "objects", 0, NULL, &result);
    printf("objects after %lld\n", (long long)result);
    fflush(stdout);
    return 0;
}

/* Makes an object and keeps it, says how many there are, and waits for the end. */
static int
drive_hoard(troupe_ctx *ctx)
{
    troupe_object object;
    void *bytes = NULL;
    troupe_store_stats stats = {0};
    if (troupe_object_create(troupe_ctx_store(ctx), 1 << 16, &object, &bytes) != TROUPE_OK ||
        troupe_object_seal(troupe_ctx_store(ctx), object) != TROUPE_OK) {
        return 1;
    }
    troupe_store_get_stats(troupe_ctx_store(ctx), &stats);
    printf("objects %llu\n", (unsigned long long)stats.objects);
    fflush(stdout);
    while (troupe_wait(ctx, never, NULL, 1000 * MS) != TROUPE_STOPPED) {
    }
    return 0;
}

static troupe_object
make_object(troupe_ctx *ctx, char content)
{
    troupe_object object = {0};
    void *bytes = NULL;
    if (troupe_object_create(troupe_ctx_store(ctx), 1 << 20, &object, &bytes) != TROUPE_OK) {
        return object;
    }
    memset(bytes, content, 1 << 20);
    if (troupe_object_seal(troupe_ctx_store(ctx), object) != TROUPE_OK) {
        printf("not sealed\n");
    }
    return object;
}

static int64_t
pid_that_is_not(troupe_ctx *ctx, int64_t known)
{
    int64_t now = known;
    while (now == known && troupe_wait(ctx, never, NULL, 20 * MS) != TROUPE_STOPPED) {
        (void)ask(ctx, 0, "pid", 0, NULL, &now);
    }
    return now;
}

/* Holds an object over the death of the node; the next node's store has another at its place. */
static int
drive_keep(troupe_ctx *ctx)
{
    const void *bytes = NULL;
    int64_t pid_ = pid_that_is_not(ctx, 0);
    troupe_object mine = make_object(ctx, 'a'), left = make_object(ctx, 'b');
    if (troupe_object_hold(troupe_ctx_store(ctx), mine, &bytes, NULL) != TROUPE_OK) {
        return 1;
    }
    printf("kept\n");
    fflush(stdout);
    (void)pid_that_is_not(ctx, pid_);
    troupe_store *store = troupe_ctx_store(ctx);
    troupe_object other = make_object(ctx, 'c');
    printf("same place %d\n", other.index == mine.index);
    printf("hold %s %s\n", troupe_status_name(troupe_object_hold(store, mine, NULL, NULL)),
        troupe_status_name(troupe_object_hold(store, left, NULL, NULL)));
    printf("bytes %c%c\n", ((const char *)bytes)[0], ((const char *)bytes)[(1 << 20) - 1]);
    printf("release %s", troupe_status_name(troupe_object_release(store, mine)));
    printf(" %s", troupe_status_name(troupe_object_release(store, mine)));
    printf(" %s\n", troupe_status_name(troupe_object_release(store, mine)));
    return 0;
}

static void *
reap(void *arg)
{
    (void)wait(NULL);
    return arg;
}

/* Waits for any child, as a program does that has children of its own; then serves. */
static int
drive_reap(troupe_ctx *ctx)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, reap, NULL) != 0 || pthread_detach(thread) != 0) {
        return 1;
    }
    return drive_serve(ctx, "pid");
}

static int
drive(troupe_ctx *ctx, int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(troupe_ctx *ctx);
    } plain[] = {{"steps", drive_steps}, {"reap", drive_reap}, {"insist", drive_insist},
        {"hoard", drive_hoard}, {"keep", drive_keep}};

    const char *name = value(argc, argv, "drive", "one");
    printf("driver %d\n", getpid());
    fflush(stdout);
    if (strncmp(name, "queue", 5) == 0) {
        return drive_queue(ctx, strcmp(name, "queue-retry") == 0);
    }
    if (strcmp(name, "quit") == 0) {
        troupe_quit(ctx, 77);
        return 3;
    }
    if (strcmp(name, "exit") == 0) {
        troupe_exit(ctx, TROUPE_DEVICE, "it has enough");
        return troupe_wait(ctx, never, NULL, 20000 * MS) == TROUPE_STOPPED ? 3 : 4;
    }
    if (strcmp(name, "crash") == 0) {
        abort();
    }
    if (strcmp(name, "serve") == 0) {
        return drive_serve(ctx, value(argc, argv, "method", "pid"));
    }
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        if (strcmp(name, plain[i].name) == 0) {
            return plain[i].run(ctx);
        }
    }
    return strcmp(name, "leaks") == 0 ? drive_leaks(ctx, argc, argv) : drive_one(ctx, argc, argv);
}

int
main(int argc, char **argv)
{
    const char *born = getenv("TROUPE_PROCESS");
    if (born != NULL && strncmp(born, "1 worker", 8) == 0) {
        wait_while_there(value(argc, argv, "early", ""), "held before it is a worker");
    }
    return troupe_main(argc, argv,
        &(troupe_app){.graph = graph,
            .drive = drive,
            .silent_s = (double)number(argc, argv, "silent", 0),
            .grace_ns = (uint64_t)number(argc, argv, "grace", 5000) * MS});
}
