/* Whole runs on real threads: drivers, deaths, restarts, stops, signals, exit codes. */
#include "check.h"

#include <troupe/ext/base.h>
#include <troupe/ext/wire.h>
#include <troupe/troupe.h>

#include <stdatomic.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

/* What actors on several threads leave for the test. */
struct facts {
    atomic_int inits, starts, finis;
    atomic_int runs;
    _Atomic(pid_t) threads[8];
    char log[1024];
};

static struct facts facts;
static int pool_loops = 2;

static void
log_line(void *user, const char *line)
{
    (void)user;
    size_t at = strlen(facts.log);
    (void)snprintf(facts.log + at, sizeof facts.log - at, "%s\n", line);
}

static troupe_status
run_graph(troupe_graph *g, int (*drive)(troupe_ctx *ctx, void *user), troupe_run_result *result,
    troupe_error *err)
{
    troupe_run_options options = {.size = sizeof options,
        .drive = drive,
        .pool_loops = pool_loops,
        .grace_ns = 5000 * MS,
        .log = log_line};
    *result = (troupe_run_result){.code = -1};
    *err = (troupe_error){.status = TROUPE_OK, .text = ""};
    troupe_status status = troupe_run(g, &options, result, err);
    troupe_graph_free(g);
    return status;
}

static int
setup(void **state)
{
    (void)state;
    memset(&facts, 0, sizeof facts);
    return 0;
}

/* --- a worker ------------------------------------------------------------------------------- */

static troupe_status
worker_init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    atomic_fetch_add(&facts.inits, 1);
    if (strstr(config, "refuse") != NULL && troupe_self_replica(ctx) >= 1) {
        return troupe_fail(err, TROUPE_NO_SPACE, "no place for me");
    }
    return TROUPE_OK;
}

static void
worker_start(troupe_ctx *ctx)
{
    (void)ctx;
    atomic_fetch_add(&facts.starts, 1);
}

static void
worker_fini(troupe_ctx *ctx)
{
    (void)ctx;
    atomic_fetch_add(&facts.finis, 1);
}

static void
who(troupe_ctx *ctx, troupe_call *call)
{
    atomic_store(&facts.threads[troupe_self_replica(ctx)], gettid());
    atomic_fetch_add(&facts.runs, 1);
    troupe_reply_i64(call, 100 + troupe_self_replica(ctx));
}

static void
die(troupe_ctx *ctx, troupe_call *call)
{
    (void)call;
    troupe_exit(ctx, TROUPE_DEVICE, "asked to");
}

static void
finish(troupe_ctx *ctx, troupe_call *call)
{
    (void)call;
    troupe_exit(ctx, TROUPE_OK, "my work is done");
}

static void
quit(troupe_ctx *ctx, troupe_call *call)
{
    troupe_reply(call, NULL);
    troupe_quit(ctx, 7);
    troupe_quit(ctx, 8); /* the first counts */
}

static void
leak(troupe_ctx *ctx, troupe_call *call)
{
    troupe_object object;
    void *bytes = NULL;
    assert_int_equal(troupe_object_create(troupe_ctx_store(ctx), 10, &object, &bytes), TROUPE_OK);
    troupe_reply(call, NULL);
}

static void
keep(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    (void)troupe_defer(call);
}

#define WORKER_METHODS                                                              \
    {                                                                               \
        {"who", who}, {"die", die}, {"quit", quit}, {"leak", leak}, {"keep", keep}, \
        {                                                                           \
            "finish", finish                                                        \
        }                                                                           \
    }

static const troupe_class worker = {.name = "worker",
    .init = worker_init,
    .start = worker_start,
    .fini = worker_fini,
    .methods = WORKER_METHODS};
static const troupe_class lonely = {.name = "lonely",
    .init = worker_init,
    .start = worker_start,
    .fini = worker_fini,
    .own_loop = true,
    .methods = WORKER_METHODS};

/* --- runs that end well --------------------------------------------------------------------- */

static int
ask_all(troupe_ctx *ctx, void *user)
{
    (void)user;
    assert_int_equal(atomic_load(&facts.starts), 3);
    for (int i = 0; i < 3; i++) {
        troupe_answer *answer = NULL;
        assert_int_equal(
            troupe_call_wait(ctx, troupe_to(ctx, "w", i), "who", NULL, &answer), TROUPE_OK);
        assert_int_equal(troupe_arg_i64(answer, 0), 100 + i);
        troupe_answer_free(answer);
    }
    assert_int_equal(
        troupe_call_wait(ctx, troupe_to(ctx, "w", 0), "none", NULL, NULL), TROUPE_UNSUPPORTED);
    assert_int_equal(
        troupe_call_wait(ctx, troupe_to(ctx, "x", 0), "who", NULL, NULL), TROUPE_NOT_FOUND);
    return 5;
}

static void
the_driver_calls_and_its_result_is_the_code(void **state)
{
    (void)state;
    troupe_graph *g = troupe_graph_new();
    troupe_role_add(g, "w", &worker, .replicas = 3);
    troupe_run_result result;
    troupe_error err;
    assert_int_equal(run_graph(g, ask_all, &result, &err), TROUPE_OK);
    assert_int_equal(result.code, 5);
    assert_int_equal(result.signal, 0);
    assert_int_equal(result.objects_left, 0);
    assert_int_equal(atomic_load(&facts.inits), 3);
    assert_int_equal(atomic_load(&facts.finis), 3);
}

static void
replicas_that_ask_for_it_have_threads_of_their_own(void **state)
{
    (void)state;
    troupe_graph *g = troupe_graph_new();
    troupe_role_add(g, "w", &lonely, .replicas = 3);
    troupe_run_result result;
    troupe_error err;
    assert_int_equal(run_graph(g, ask_all, &result, &err), TROUPE_OK);
    for (int i = 0; i < 3; i++) {
        assert_true(atomic_load(&facts.threads[i]) != getpid());
        for (int k = 0; k < i; k++) {
            assert_true(atomic_load(&facts.threads[i]) != atomic_load(&facts.threads[k]));
        }
    }
}

static int
quit_from_an_actor(troupe_ctx *ctx, void *user)
{
    (void)user;
    assert_int_equal(troupe_call_wait(ctx, troupe_to(ctx, "w", 0), "quit", NULL, NULL), TROUPE_OK);
    /* The wait ends with the run, not with its own time. */
    assert_int_equal(troupe_wait(ctx, NULL, NULL, 60000 * MS), TROUPE_STOPPED);
    return 3;
}

static void
the_first_code_given_is_the_code_and_waits_end_with_the_run(void **state)
{
    (void)state;
    troupe_graph *g = troupe_graph_new();
    troupe_role_add(g, "w", &worker);
    troupe_run_result result;
    troupe_error err;
    assert_int_equal(run_graph(g, quit_from_an_actor, &result, &err), TROUPE_OK);
    assert_int_equal(result.code, 7);
}

static void
start_and_quit(troupe_ctx *ctx)
{
    troupe_quit(ctx, 9);
}

static void
a_run_without_driver_ends_by_quit(void **state)
{
    (void)state;
    static const troupe_class brief = {.name = "brief", .start = start_and_quit};
    troupe_graph *g = troupe_graph_new();
    troupe_role_add(g, "w", &brief);
    troupe_run_result result;
    troupe_error err;
    assert_int_equal(run_graph(g, NULL, &result, &err), TROUPE_OK);
    assert_int_equal(result.code, 9);
}

static int
leak_one(troupe_ctx *ctx, void *user)
{
    (void)user;
    assert_int_equal(troupe_call_wait(ctx, troupe_to(ctx, "w", 0), "leak", NULL, NULL), TROUPE_OK);
    return 0;
}

static void
objects_that_nobody_released_are_counted(void **state)
{
    (void)state;
    troupe_graph *g = troupe_graph_new();
    troupe_role_add(g, "w", &worker);
    troupe_run_result result;
    troupe_error err;
    assert_int_equal(run_graph(g, leak_one, &result, &err), TROUPE_OK);
    assert_int_equal(result.objects_left, 1);
}

static bool
never(void *user)
{
    (void)user;
    return false;
}

static int
wait_a_little(troupe_ctx *ctx, void *user)
{
    (void)user;
    uint64_t begin = troupe_now_ns(ctx);
    assert_int_equal(troupe_wait(ctx, never, NULL, 3 * MS), TROUPE_TIMEOUT);
    assert_true(troupe_now_ns(ctx) >= begin + 3 * MS);
    /* A call that is kept ends by its deadline. */
    troupe_args args = {0};
    assert_int_equal(
        troupe_call_send(ctx, troupe_to(ctx, "w", 0), "keep", &args, .deadline_ns = 2 * MS),
        TROUPE_OK);
    assert_int_equal(troupe_wait(ctx, never, NULL, 5 * MS), TROUPE_TIMEOUT);
    return 0;
}

static void
the_driver_waits_no_longer_than_it_says(void **state)
{
    (void)state;
    troupe_graph *g = troupe_graph_new();
    troupe_role_add(g, "w", &worker);
    troupe_run_result result;
    troupe_error err;
    assert_int_equal(run_graph(g, wait_a_little, &result, &err), TROUPE_OK);
}

/* --- failures ------------------------------------------------------------------------------- */

static int
not_reached(troupe_ctx *ctx, void *user)
{
    (void)ctx;
    (void)user;
    fail_msg("the driver ran although an actor is missing");
    return 0;
}

static void
an_actor_that_cannot_be_made_fails_the_run_by_name(void **state)
{
    (void)state;
    troupe_graph *g = troupe_graph_new();
    troupe_role_add(g, "w", &worker, .replicas = 3, .config = "{\"refuse\": true}");
    pool_loops = 1; /* so that the first of two failures is always the same */
    troupe_run_result result;
    troupe_error err;
    assert_int_equal(run_graph(g, not_reached, &result, &err), TROUPE_NO_SPACE);
    pool_loops = 2;
    assert_string_equal(err.text, "w[1]: no place for me");
    assert_int_equal(atomic_load(&facts.starts), 0);
    assert_int_equal(atomic_load(&facts.inits), atomic_load(&facts.finis));
}

static int
kill_one(troupe_ctx *ctx, void *user)
{
    (void)user;
    troupe_answer *answer = NULL;
    troupe_status status = troupe_call_wait(ctx, troupe_to(ctx, "w", 0), "die", NULL, &answer);
    assert_true(status == TROUPE_DIED || status == TROUPE_STOPPED);
    (void)troupe_wait(ctx, NULL, NULL, 60000 * MS);
    troupe_answer_free(answer);
    return 0;
}

static void
a_death_without_restarts_fails_the_run_with_its_cause(void **state)
{
    (void)state;
    troupe_graph *g = troupe_graph_new();
    troupe_role_add(g, "w", &worker, .replicas = 2);
    troupe_run_result result;
    troupe_error err;
    assert_int_equal(run_graph(g, kill_one, &result, &err), TROUPE_DEVICE);
    assert_string_equal(err.text, "w[0] ended: asked to");
    assert_int_equal(atomic_load(&facts.finis), 2);
}

static int
let_one_finish(troupe_ctx *ctx, void *user)
{
    (void)user;
    assert_int_equal(
        troupe_call_wait(ctx, troupe_to(ctx, "w", 0), "finish", NULL, NULL), TROUPE_STOPPED);
    assert_int_equal(troupe_wait(ctx, never, NULL, 5 * MS), TROUPE_TIMEOUT);
    assert_int_equal(troupe_call_wait(ctx, troupe_to(ctx, "w", 1), "who", NULL, NULL), TROUPE_OK);
    return 4;
}

static void
an_actor_that_has_finished_is_no_failure(void **state)
{
    (void)state;
    troupe_graph *g = troupe_graph_new();
    troupe_role_add(g, "w", &worker, .replicas = 2);
    troupe_run_result result;
    troupe_error err;
    assert_int_equal(run_graph(g, let_one_finish, &result, &err), TROUPE_OK);
    assert_int_equal(result.code, 4);
}

static bool
twice_made(void *user)
{
    (void)user;
    return atomic_load(&facts.starts) == 2;
}

static int
kill_and_call_again(troupe_ctx *ctx, void *user)
{
    (void)user;
    troupe_ref before, after;
    assert_true(troupe_resolve(ctx, troupe_to(ctx, "w", 0), &before));
    assert_int_equal(troupe_call_wait(ctx, troupe_to(ctx, "w", 0), "die", NULL, NULL), TROUPE_DIED);
    for (int i = 0; i < 1000 && !twice_made(NULL); i++) {
        (void)troupe_wait(ctx, twice_made, NULL, 5 * MS);
    }
    assert_int_equal(troupe_call_wait(ctx, troupe_to(ctx, "w", 0), "who", NULL, NULL), TROUPE_OK);
    assert_true(troupe_resolve(ctx, troupe_to(ctx, "w", 0), &after));
    assert_false(troupe_ref_equal(before, after));
    assert_int_equal(troupe_call_wait(ctx, troupe_to_ref(before), "who", NULL, NULL), TROUPE_GONE);
    return 0;
}

static void
a_role_with_restarts_is_made_again_and_its_handle_follows(void **state)
{
    (void)state;
    troupe_graph *g = troupe_graph_new();
    troupe_role_add(g, "w", &worker, .restarts = 1);
    troupe_run_result result;
    troupe_error err;
    if (run_graph(g, kill_and_call_again, &result, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(atomic_load(&facts.inits), 2);
    assert_non_null(strstr(facts.log, "node[0]: w[0] ended: asked to; it is made again"));
}

static void
a_stream_needs_a_class_that_runs_streams(void **state)
{
    (void)state;
    troupe_graph *g = troupe_graph_new();
    troupe_role *a = troupe_role_add(g, "a", &worker);
    troupe_role *b = troupe_role_add(g, "b", &worker);
    troupe_stream_add(g, "s", .source = a, .sink = b);
    troupe_run_result result;
    troupe_error err;
    assert_int_equal(run_graph(g, not_reached, &result, &err), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "stream s: the program names no class"));
}

/* --- the stream's actor --------------------------------------------------------------------- */

static char stream_config[1024];

static troupe_status
stream_init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    (void)err;
    assert_string_equal(troupe_self_role(ctx), "samples");
    (void)snprintf(stream_config, sizeof stream_config, "%s", config);
    return TROUPE_OK;
}

static const troupe_class stream_actor = {
    .name = "stream", .init = stream_init, .methods = {{"who", who}}};

static int
call_stream(troupe_ctx *ctx, void *user)
{
    (void)user;
    assert_int_equal(
        troupe_call_wait(ctx, troupe_to(ctx, "samples", 0), "who", NULL, NULL), TROUPE_OK);
    return 0;
}

static void
a_stream_is_an_actor_that_goes_by_its_name(void **state)
{
    (void)state;
    static const troupe_stream_class streams = {.type = &stream_actor};
    troupe_graph *g = troupe_graph_new();
    troupe_role *a = troupe_role_add(g, "a", &worker);
    troupe_role *b = troupe_role_add(g, "b", &lonely);
    troupe_stream_add(g, "samples", .source = a, .sink = b, .max_lag = 2);
    troupe_run_options options = {
        .size = sizeof options, .drive = call_stream, .streams = &streams, .pool_loops = 2};
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    assert_int_equal(troupe_run(g, &options, NULL, &err), TROUPE_OK);
    troupe_graph_free(g);
    assert_non_null(strstr(stream_config, "\"source\":\"a\""));
    assert_non_null(strstr(stream_config, "\"max_lag\":2"));
}

/* --- stops ---------------------------------------------------------------------------------- */

static bool
stop_never(troupe_ctx *ctx)
{
    (void)ctx;
    return false;
}

static int
leave_at_once(troupe_ctx *ctx, void *user)
{
    (void)ctx;
    (void)user;
    return 0;
}

static void
an_actor_that_never_stops_is_ended_after_the_grace_time_and_named(void **state)
{
    (void)state;
    static const troupe_class stubborn = {
        .name = "stubborn", .stop = stop_never, .fini = worker_fini};
    troupe_graph *g = troupe_graph_new();
    troupe_role_add(g, "w", &stubborn);
    troupe_run_options options = {.size = sizeof options,
        .drive = leave_at_once,
        .pool_loops = 1,
        .grace_ns = 20 * MS,
        .log = log_line};
    assert_int_equal(troupe_run(g, &options, NULL, NULL), TROUPE_OK);
    troupe_graph_free(g);
    assert_int_equal(atomic_load(&facts.finis), 1);
    assert_non_null(strstr(facts.log, "not everybody stopped in time"));
}

/* --- traffic between threads ---------------------------------------------------------------- */

struct pinger {
    int left;
};

static void
ping_back(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)user;
    struct pinger *self = troupe_state(ctx);
    assert_int_equal(troupe_answer_status(answer), TROUPE_OK);
    if (--self->left == 0) {
        troupe_quit(ctx, 0);
        return;
    }
    assert_int_equal(troupe_call_send(ctx, troupe_to(ctx, "w", self->left % 4), "who", NULL,
                         .on_answer = ping_back, .retry = self->left % 3 == 0),
        TROUPE_OK);
}

static void
ping_begin(troupe_ctx *ctx)
{
    struct pinger *self = troupe_state(ctx);
    self->left = 3000;
    assert_int_equal(
        troupe_call_send(ctx, troupe_to(ctx, "w", 0), "who", NULL, .on_answer = ping_back),
        TROUPE_OK);
}

static void
calls_cross_threads_both_ways(void **state)
{
    (void)state;
    static const troupe_class pinger = {.name = "pinger",
        .state_size = sizeof(struct pinger),
        .start = ping_begin,
        .own_loop = true};
    troupe_graph *g = troupe_graph_new();
    troupe_role_add(g, "p", &pinger);
    troupe_role_add(g, "w", &worker, .replicas = 4);
    troupe_run_result result;
    troupe_error err;
    assert_int_equal(run_graph(g, NULL, &result, &err), TROUPE_OK);
    assert_int_equal(atomic_load(&facts.runs), 3000);
}

/* --- waits ---------------------------------------------------------------------------------- */

static int
list_waits(troupe_ctx *ctx, void *user)
{
    (void)user;
    assert_int_equal(
        troupe_call_send(ctx, troupe_to(ctx, "w", 0), "keep", NULL, .deadline_ns = 5000 * MS),
        TROUPE_OK);
    bool listed = false;
    for (int i = 0; i < troupe_replicas(ctx, "loop"); i++) {
        troupe_answer *answer = NULL;
        tr_reader reader;
        uint32_t count = 0, fields = 0;
        char kind[16], who_waits[64], whom[64];
        assert_int_equal(
            troupe_call_wait(ctx, troupe_to(ctx, "loop", i), "waits", NULL, &answer), TROUPE_OK);
        assert_true(troupe_arg_reader(answer, 0, &reader) && tr_read_array(&reader, &count));
        for (uint32_t k = 0; k < count; k++) {
            assert_true(tr_read_array(&reader, &fields) && fields == 7);
            assert_true(tr_read_text(&reader, kind, sizeof kind));
            assert_true(tr_read_text(&reader, who_waits, sizeof who_waits));
            assert_true(tr_read_text(&reader, whom, sizeof whom));
            listed = listed || (strcmp(kind, "reply") == 0 && strcmp(who_waits, "w[0]") == 0 &&
                                   strstr(whom, ".keep") != NULL);
            for (int skip = 0; skip < 4; skip++) {
                assert_true(tr_read_skip(&reader));
            }
        }
        troupe_answer_free(answer);
    }
    assert_true(listed);
    return 0;
}

static void
open_waits_can_be_listed_in_a_running_graph(void **state)
{
    (void)state;
    troupe_graph *g = troupe_graph_new();
    troupe_role_add(g, "w", &worker);
    troupe_run_result result;
    troupe_error err;
    assert_int_equal(run_graph(g, list_waits, &result, &err), TROUPE_OK);
}

/* --- troupe_main ---------------------------------------------------------------------------- */

static bool drawn;
static uint64_t store_max;

static troupe_status
main_graph(troupe_graph *g, int argc, char **argv)
{
    drawn = troupe_graph_is_drawn(g);
    troupe_graph_store(g, 12345);
    if (argc > 1 && strcmp(argv[1], "--graph") == 0) {
        troupe_role_add(g, "late", &worker);
        return TROUPE_OK; /* behind "--" options belong to the program */
    }
    if (argc > 1) {
        return troupe_graph_refuse(g, TROUPE_BAD_INPUT, "%s: not known here", argv[1]);
    }
    troupe_role_add(g, "w", &worker, .replicas = 3);
    return TROUPE_OK;
}

static int
main_drive(troupe_ctx *ctx, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    troupe_store_stats stats;
    troupe_store_get_stats(troupe_ctx_store(ctx), &stats);
    store_max = stats.bytes_max;
    return troupe_replicas(ctx, "w") == 3 ? ask_all(ctx, NULL) : 6;
}

static int
run_main(const char *a, const char *b)
{
    char name[] = "program", first[64], second[64];
    (void)snprintf(first, sizeof first, "%s", a == NULL ? "" : a);
    (void)snprintf(second, sizeof second, "%s", b == NULL ? "" : b);
    char *argv[] = {name, a == NULL ? NULL : first, b == NULL ? NULL : second, NULL};
    troupe_app app = {.name = "program",
        .graph = main_graph,
        .drive = main_drive,
        .pool_loops = 2,
        .colocate = true};
    return troupe_main(a == NULL ? 1 : b == NULL ? 2 : 3, argv, &app);
}

static void
a_program_ends_with_the_code_of_its_end(void **state)
{
    (void)state;
    assert_int_equal(run_main(NULL, NULL), 5);
    assert_false(drawn);
    assert_int_equal(store_max, 12345); /* the graph's word counts before the program's */
    assert_int_equal(run_main("--wrong", NULL), 2);
    assert_int_equal(run_main("--graph=png", NULL), 2);
    assert_int_equal(run_main("--graph", NULL), 0);
    assert_true(drawn);
    assert_int_equal(run_main("--graph=dot", NULL), 0);
    assert_int_equal(run_main("--", "--graph"), 2);
}

static void
a_store_that_cannot_be_made_is_an_error(void **state)
{
    (void)state;
    troupe_graph *g = troupe_graph_new();
    troupe_role_add(g, "w", &worker);
    troupe_run_options options = {.size = sizeof options, .store_bytes = UINT64_MAX};
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    assert_int_equal(troupe_run(g, &options, NULL, &err), TROUPE_INVALID);
    assert_non_null(strstr(err.text, "a store of 18446744073709551615 bytes"));
    troupe_graph_free(g);
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_driver_calls_and_its_result_is_the_code),
        TEST(replicas_that_ask_for_it_have_threads_of_their_own),
        TEST(the_first_code_given_is_the_code_and_waits_end_with_the_run),
        TEST(a_run_without_driver_ends_by_quit),
        TEST(objects_that_nobody_released_are_counted),
        TEST(the_driver_waits_no_longer_than_it_says),
        TEST(an_actor_that_cannot_be_made_fails_the_run_by_name),
        TEST(a_death_without_restarts_fails_the_run_with_its_cause),
        TEST(an_actor_that_has_finished_is_no_failure),
        TEST(a_role_with_restarts_is_made_again_and_its_handle_follows),
        TEST(a_stream_needs_a_class_that_runs_streams),
        TEST(a_stream_is_an_actor_that_goes_by_its_name),
        TEST(an_actor_that_never_stops_is_ended_after_the_grace_time_and_named),
        TEST(calls_cross_threads_both_ways),
        TEST(open_waits_can_be_listed_in_a_running_graph),
        TEST(a_program_ends_with_the_code_of_its_end),
        TEST(a_store_that_cannot_be_made_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
