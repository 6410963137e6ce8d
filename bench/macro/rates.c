/* Calls and objects between processes, row for row beside Ray's own microbenchmark
 * (bench/peers/ray_rates.py has its rows and its timing rule). Servers and clients are roles, each
 * replica a process of its own; the driver is the caller of the 1:1 rows.
 *
 *   bench_rates [--quick] [--colocate]
 *
 * A row is warmed up, then measured in repeats of two seconds (--quick: two of one second), and
 * told as the mean of them. */
#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>
#include <troupe/ext/thread.h>
#include <troupe/troupe.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BATCH = 1000, /* calls of one asynchronous round */
    CLIENTS = 2,
    SERVERS_MAX = 8,
    REPEATS_MAX = 4
};

#define BIG_BYTES   ((size_t)84 << 20)
#define PIECE_BYTES ((size_t)1 << 20)

static uint64_t
now(void)
{
    return troupe_sys_posix()->now_ns(troupe_sys_posix());
}

static int
servers(void)
{
    return TR_MIN(TR_MAX(tr_cpu_count() / 2, 1), (int)SERVERS_MAX);
}

/* --- server --------------------------------------------------------------------------------- */

static void
small_value(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    troupe_args args = {0};
    troupe_args_bin(&args, "ok", 2);
    (void)troupe_reply(call, &args);
    troupe_args_fini(&args);
}

/* The argument is an object, as in Ray's row: it is held, read and released. */
static void
small_value_arg(troupe_ctx *ctx, troupe_call *call)
{
    const void *bytes = NULL;
    size_t size = 0;
    troupe_object object = troupe_arg_object(call, 0);
    troupe_status status = troupe_object_hold(troupe_ctx_store(ctx), object, &bytes, &size);
    if (status != TROUPE_OK || size != sizeof(int64_t)) {
        (void)troupe_reply_error(call, TROUPE_LOST, "the argument cannot be read");
        return;
    }
    (void)troupe_object_release(troupe_ctx_store(ctx), object);
    small_value(ctx, call);
}

static const troupe_class server = {.name = "server",
    .own_loop = true,
    .methods = {{"small_value", small_value}, {"small_value_arg", small_value_arg}}};

/* --- rounds of calls ------------------------------------------------------------------------ */

/* Calls `targets` in turn, `total` times, with as many open as there is room for. */
struct round {
    int64_t total, sent, answered, failed;
    int targets;
    const char *method;
    troupe_object object; /* the argument; zeroed: none */
    troupe_call *asked;   /* answered when the round is over; NULL: somebody waits for it */
};

static void pour(troupe_ctx *ctx, struct round *round);

static void
answered(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct round *round = user;
    round->failed += troupe_answer_status(answer) != TROUPE_OK ? 1 : 0;
    round->answered++;
    pour(ctx, round);
    if (round->answered == round->total && round->asked != NULL) {
        (void)troupe_reply_i64(round->asked, round->failed);
        round->asked = NULL;
    }
}

static void
pour(troupe_ctx *ctx, struct round *round)
{
    while (round->sent < round->total) {
        troupe_args args = {0};
        if (troupe_object_word(round->object) != 0) {
            troupe_args_object(&args, round->object);
        }
        troupe_target to = troupe_to(ctx, "server", (int)(round->sent % round->targets));
        troupe_status status =
            troupe_call_send(ctx, to, round->method, &args, .on_answer = answered, .user = round);
        troupe_args_fini(&args);
        if (status == TROUPE_AGAIN) {
            return; /* the next answer makes room */
        }
        round->sent++;
        if (status != TROUPE_OK) {
            round->failed++;
            round->answered++;
        }
    }
}

static bool
is_over(void *user)
{
    const struct round *round = user;
    return round->answered == round->total;
}

/* --- client --------------------------------------------------------------------------------- */

static void
batch(troupe_ctx *ctx, troupe_call *call)
{
    struct round *round = troupe_state(ctx);
    *round = (struct round){.total = troupe_arg_i64(call, 0),
        .targets = troupe_replicas(ctx, "server"),
        .method = "small_value",
        .asked = troupe_defer(call)};
    pour(ctx, round);
}

static const troupe_class client = {.name = "client",
    .state_size = sizeof(struct round),
    .own_loop = true,
    .methods = {{"batch", batch}}};

/* --- rows ----------------------------------------------------------------------------------- */

struct bench {
    troupe_ctx *ctx;
    troupe_object small;
    uint8_t *source; /* what the puts copy */
    bool failed;
};

static void
need(struct bench *b, bool ok, const char *what)
{
    if (!ok && !b->failed) {
        fprintf(stderr, "bench_rates: %s\n", what);
        b->failed = true;
    }
}

static void
sync_call(struct bench *b)
{
    need(b,
        troupe_call_wait(b->ctx, troupe_to(b->ctx, "server", 0), "small_value", NULL, NULL) ==
            TROUPE_OK,
        "a call failed");
}

static void
async_calls(struct bench *b, troupe_object object)
{
    struct round round = {.total = BATCH,
        .targets = 1,
        .method = troupe_object_word(object) != 0 ? "small_value_arg" : "small_value",
        .object = object};
    pour(b->ctx, &round);
    troupe_status status = troupe_wait(b->ctx, is_over, &round, TROUPE_DEADLINE_DEFAULT_NS);
    need(b, status == TROUPE_OK && round.failed == 0, "a round of calls failed");
    if (status != TROUPE_OK) {
        exit(EXIT_FAILURE); /* calls are open on a dead frame */
    }
}

static void
one_to_one(struct bench *b)
{
    async_calls(b, (troupe_object){0});
}

static void
with_object(struct bench *b)
{
    async_calls(b, b->small);
}

struct count {
    int open;
    int64_t failed;
};

static void
batch_done(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)ctx;
    struct count *count = user;
    count->open--;
    count->failed +=
        troupe_answer_status(answer) == TROUPE_OK ? troupe_arg_i64(answer, 0) : INT64_C(1);
}

static bool
all_done(void *user)
{
    const struct count *count = user;
    return count->open == 0;
}

static void
clients_call(struct bench *b, int clients, int64_t calls)
{
    struct count count = {0};
    for (int i = 0; i < clients; i++) {
        troupe_args args = {0};
        troupe_args_i64(&args, calls);
        need(b,
            troupe_call_send(b->ctx, troupe_to(b->ctx, "client", i), "batch", &args,
                .on_answer = batch_done, .user = &count) == TROUPE_OK,
            "a client cannot be called");
        troupe_args_fini(&args);
        count.open++;
    }
    if (troupe_wait(b->ctx, all_done, &count, TROUPE_DEADLINE_DEFAULT_NS) != TROUPE_OK) {
        fprintf(stderr, "bench_rates: clients do not answer\n");
        exit(EXIT_FAILURE);
    }
    need(b, count.failed == 0, "a client's calls failed");
}

static void
one_to_n(struct bench *b)
{
    clients_call(b, 1, (int64_t)BATCH * servers());
}

static void
n_to_n(struct bench *b)
{
    clients_call(b, CLIENTS, BATCH);
}

static void
get_small(struct bench *b)
{
    const void *bytes = NULL;
    troupe_store *store = troupe_ctx_store(b->ctx);
    need(b, troupe_object_hold(store, b->small, &bytes, NULL) == TROUPE_OK, "a hold failed");
    (void)troupe_object_release(store, b->small);
}

static void
put(struct bench *b, size_t size, bool write)
{
    troupe_store *store = troupe_ctx_store(b->ctx);
    troupe_object object;
    void *bytes = NULL;
    if (troupe_object_create(store, size, &object, &bytes) != TROUPE_OK) {
        need(b, false, "the store has no room");
        return;
    }
    if (write) {
        memcpy(bytes, b->source, size);
    }
    need(b, troupe_object_seal(store, object) == TROUPE_OK, "a seal failed");
    (void)troupe_object_release(store, object);
}

static void
put_small(struct bench *b)
{
    put(b, sizeof(int64_t), true);
}

static void
put_piece(struct bench *b)
{
    put(b, PIECE_BYTES, true);
}

static void
put_big(struct bench *b)
{
    put(b, BIG_BYTES, true);
}

struct row {
    const char *name;
    void (*run)(struct bench *b);
    double multiplier;
};

static double
repeat(struct bench *b, const struct row *row, double seconds, int64_t step)
{
    uint64_t begin = now();
    int64_t count = 0;
    while ((double)(now() - begin) / 1e9 < seconds) {
        for (int64_t i = 0; i < step; i++) {
            row->run(b);
        }
        count += step;
    }
    return row->multiplier * (double)count / ((double)(now() - begin) / 1e9);
}

static void
measure(struct bench *b, const struct row *row, int repeats, double seconds)
{
    int64_t warm = 0;
    uint64_t begin = now();
    for (; (double)(now() - begin) / 1e9 < seconds / 2; warm++) {
        row->run(b);
    }
    double sum = 0, least = 0, most = 0;
    for (int i = 0; i < repeats; i++) {
        double rate = repeat(b, row, seconds, warm / 10 + 1);
        sum += rate;
        least = i == 0 || rate < least ? rate : least;
        most = rate > most ? rate : most;
    }
    printf("%-44s %14.2f /s   %.2f to %.2f\n", row->name, sum / repeats, least, most);
    fflush(stdout);
}

/* --- the program ---------------------------------------------------------------------------- */

static int
drive(troupe_ctx *ctx, int argc, char **argv)
{
    static const struct row rows[] = {
        {"1:1 actor calls sync", sync_call, 1},
        {"1:1 actor calls async", one_to_one, BATCH},
        {"1:1 actor calls with object", with_object, BATCH},
        {"1:n actor calls async", one_to_n, BATCH},
        {"n:n actor calls async", n_to_n, (double)BATCH * CLIENTS},
        {"get calls (small object)", get_small, 1},
        {"put calls (small object)", put_small, 1},
        {"put 1 MiB, written (GB/s)", put_piece, (double)PIECE_BYTES / 1e9},
        {"put 84 MiB, written (GB/s)", put_big, (double)BIG_BYTES / 1e9},
    };
    bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    struct bench b = {.ctx = ctx, .source = tr_zalloc(BIG_BYTES, 1)};
    memset(b.source, 7, BIG_BYTES);
    void *bytes = NULL;
    troupe_store *store = troupe_ctx_store(ctx);
    need(&b, troupe_object_create(store, sizeof(int64_t), &b.small, &bytes) == TROUPE_OK,
        "the store has no room");
    if (!b.failed) {
        memset(bytes, 0, sizeof(int64_t));
        need(&b, troupe_object_seal(store, b.small) == TROUPE_OK, "a seal failed");
    }
    for (size_t i = 0; i < TR_COUNT(rows) && !b.failed; i++) {
        struct row row = rows[i];
        row.multiplier *= row.run == one_to_n ? servers() : 1;
        measure(&b, &row, quick ? 2 : REPEATS_MAX, quick ? 1.0 : 2.0);
    }
    (void)troupe_object_release(store, b.small);
    tr_free(b.source);
    return b.failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static troupe_status
graph(troupe_graph *g, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    troupe_role_add(g, "server", &server, .replicas = servers(), .mailbox = 1 << 16);
    troupe_role_add(g, "client", &client, .replicas = CLIENTS);
    return TROUPE_OK;
}

int
main(int argc, char **argv)
{
    return troupe_main(
        argc, argv, &(troupe_app){.name = "bench_rates", .graph = graph, .drive = drive});
}
