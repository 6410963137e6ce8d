/* What a message costs: round trips on one loop and between two threads, and one-way messages
 * between threads. Prints one line each; run it on an idle machine.
 *
 *   bench_calls [ROUND_TRIPS] */
#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>
#include <troupe/troupe.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    SAMPLES_MAX = 200000
};

struct bench {
    int64_t total;
    int window; /* calls open at once */
    bool one_way;
    uint64_t begin_ns;
    uint64_t end_ns;
    int64_t sent;
    int64_t answered;
    int64_t heard;
    uint64_t sent_ns;
    uint32_t rtt_ns[SAMPLES_MAX];
    int samples;
};

static struct bench *
bench_of(const char *config)
{
    uintptr_t word = 0;
    TR_ASSERT(sscanf(config, "{\"bench\": %" SCNuPTR "}", &word) == 1);
    return (struct bench *)word;
}

static uint64_t
now(void)
{
    const troupe_sys *sys = troupe_sys_posix();
    return sys->now_ns(sys);
}

/* --- the one who answers -------------------------------------------------------------------- */

static troupe_status
init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    (void)err;
    struct bench **self = troupe_state(ctx);
    *self = bench_of(config);
    return TROUPE_OK;
}

static void
echo(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    troupe_reply_i64(call, troupe_arg_i64(call, 0));
}

static void
hear(troupe_ctx *ctx, troupe_call *call)
{
    struct bench **self = troupe_state(ctx);
    if (troupe_arg_i64(call, 0) != (*self)->heard) {
        troupe_exit(ctx, TROUPE_CORRUPT, "a message was lost or overtaken");
    }
    if (++(*self)->heard == (*self)->total) {
        (*self)->end_ns = now();
        troupe_quit(ctx, 0);
    }
}

static const troupe_class answerer = {.name = "answerer",
    .state_size = sizeof(struct bench *),
    .init = init,
    .methods = {{"echo", echo}, {"hear", hear}}};

/* --- the one who asks ----------------------------------------------------------------------- */

static void answered(troupe_ctx *ctx, troupe_answer *answer, void *user);

static void
ask(troupe_ctx *ctx, struct bench *bench)
{
    troupe_args args = {0};
    troupe_args_i64(&args, bench->sent);
    bench->sent_ns = bench->window == 1 ? now() : 0;
    TR_ASSERT(troupe_call_send(ctx, troupe_to(ctx, "answerer", 0), "echo", &args,
                  .on_answer = answered, .user = bench) == TROUPE_OK);
    bench->sent++;
}

static void
answered(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct bench *bench = user;
    TR_ASSERT(troupe_answer_status(answer) == TROUPE_OK);
    TR_ASSERT(troupe_arg_i64(answer, 0) == bench->answered);
    if (bench->window == 1 && bench->samples < SAMPLES_MAX) {
        bench->rtt_ns[bench->samples++] = (uint32_t)(now() - bench->sent_ns);
    }
    if (++bench->answered == bench->total) {
        bench->end_ns = now();
        troupe_quit(ctx, 0);
    } else if (bench->sent < bench->total) {
        ask(ctx, bench);
    }
}

static void
begin(troupe_ctx *ctx)
{
    struct bench **self = troupe_state(ctx);
    struct bench *bench = *self;
    bench->begin_ns = now();
    for (int i = 0; i < bench->window && !bench->one_way; i++) {
        ask(ctx, bench);
    }
}

/* One-way messages are sent in slices; without room at the other end the slice is over. */
static bool
pour(troupe_ctx *ctx)
{
    struct bench **self = troupe_state(ctx);
    struct bench *bench = *self;
    for (int i = 0; i < 256 && bench->one_way && bench->sent < bench->total; i++) {
        troupe_args args = {0};
        troupe_args_i64(&args, bench->sent);
        if (troupe_tell(ctx, troupe_to(ctx, "answerer", 0), "hear", &args) != TROUPE_OK) {
            troupe_args_fini(&args);
            return true;
        }
        bench->sent++;
    }
    return bench->one_way && bench->sent < bench->total;
}

static const troupe_class asker = {.name = "asker",
    .state_size = sizeof(struct bench *),
    .init = init,
    .start = begin,
    .idle = pour};
static const troupe_class threaded_asker = {.name = "asker",
    .state_size = sizeof(struct bench *),
    .init = init,
    .start = begin,
    .idle = pour,
    .own_loop = true};

/* --- runs ----------------------------------------------------------------------------------- */

static int
by_size(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void
measure(const char *what, const struct bench *setting, bool across)
{
    struct bench *bench = tr_alloc(sizeof *bench);
    char config[64];
    *bench = *setting;
    (void)snprintf(config, sizeof config, "{\"bench\": %" PRIuPTR "}", (uintptr_t)bench);
    troupe_graph *graph = troupe_graph_new();
    troupe_role_add(graph, "asker", across ? &threaded_asker : &asker, .config = config);
    /* One-way messages wait in the mailbox: it holds them all, the link's credit is the bound. */
    troupe_role_add(
        graph, "answerer", &answerer, .config = config, .mailbox = (int)setting->total + 16);
    troupe_run_options options = {.size = sizeof options, .pool_loops = 1};
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    if (troupe_run(graph, &options, NULL, &err) != TROUPE_OK) {
        fprintf(stderr, "bench_calls: %s\n", err.text);
        exit(EXIT_FAILURE);
    }
    troupe_graph_free(graph);
    double seconds = (double)(bench->end_ns - bench->begin_ns) / 1e9;
    printf("%-44s %10.0f /s", what, (double)bench->total / seconds);
    if (bench->samples > 0) {
        qsort(bench->rtt_ns, (size_t)bench->samples, sizeof bench->rtt_ns[0], by_size);
        printf("   p50 %.2f us   p99 %.2f us", bench->rtt_ns[bench->samples / 2] / 1e3,
            bench->rtt_ns[bench->samples / 100 * 99] / 1e3);
    }
    printf("\n");
    tr_free(bench);
}

int
main(int argc, char **argv)
{
    static struct bench one, many, pour_all;
    int64_t total = argc > 1 ? strtoll(argv[1], NULL, 10) : 100000;
    if (total < 1 || total > 100000000) {
        fprintf(stderr, "bench_calls: give a number of round trips, 1 to 100000000\n");
        return 2;
    }
    one = (struct bench){.total = total, .window = 1};
    many = (struct bench){.total = total * 10, .window = 64};
    pour_all = (struct bench){.total = total * 10, .one_way = true};
    measure("round trips, same loop, one at a time", &one, false);
    measure("round trips, same loop, 64 open", &many, false);
    measure("round trips, two threads, one at a time", &one, true);
    measure("round trips, two threads, 64 open", &many, true);
    measure("one-way messages, two threads", &pour_all, true);
    return 0;
}
