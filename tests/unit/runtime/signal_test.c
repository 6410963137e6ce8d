/* Signals and threads that do not end: each case is a process of its own. */
#include "check.h"

#include <troupe/troupe.h>

#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

struct facts {
    atomic_int stops, late, finis;
};

static struct facts facts;

static void
finish_late(troupe_ctx *ctx, void *user)
{
    (void)user;
    atomic_fetch_add(&facts.late, 1);
    troupe_stopped(ctx);
}

static bool
stop_late(troupe_ctx *ctx)
{
    atomic_fetch_add(&facts.stops, 1);
    return troupe_timer_start(ctx, 5 * MS, finish_late, NULL, NULL) != TROUPE_OK;
}

static bool
stop_never(troupe_ctx *ctx)
{
    (void)ctx;
    (void)kill(getpid(), SIGTERM); /* so soon after the first it is no second one */
    (void)kill(getpid(), SIGINT);
    return false;
}

static void
signal_oneself(troupe_ctx *ctx)
{
    (void)ctx;
    (void)kill(getpid(), SIGTERM);
}

static void
interrupt_oneself(troupe_ctx *ctx)
{
    (void)ctx;
    (void)kill(getpid(), SIGINT);
}

static void
count_fini(troupe_ctx *ctx)
{
    (void)ctx;
    atomic_fetch_add(&facts.finis, 1);
}

static bool
never_return(troupe_ctx *ctx)
{
    (void)kill(getpid(), SIGTERM);
    while (troupe_self(ctx).incarnation != 0) { /* that is, for ever */
        (void)pause();
    }
    return true;
}

static const troupe_class polite = {.name = "polite",
    .start = signal_oneself,
    .stop = stop_late,
    .fini = count_fini,
    .own_loop = true};
static const troupe_class interrupted = {.name = "interrupted", .start = interrupt_oneself};
static const troupe_class stubborn = {
    .name = "stubborn", .start = signal_oneself, .stop = stop_never, .own_loop = true};
static const troupe_class stuck = {.name = "stuck", .idle = never_return, .own_loop = true};

static const troupe_class *chosen;

static troupe_status
graph(troupe_graph *g, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    troupe_role_add(g, "w", chosen);
    return TROUPE_OK;
}

/* 100 when the polite one was treated as it should be. */
static int
run(uint64_t grace_ns)
{
    char name[] = "program";
    char *argv[] = {name, NULL};
    troupe_app app = {
        .name = "program", .graph = graph, .pool_loops = 1, .grace_ns = grace_ns, .colocate = true};
    int code = troupe_main(1, argv, &app);
    bool in_order = atomic_load(&facts.stops) == 1 && atomic_load(&facts.late) == 1 &&
                    atomic_load(&facts.finis) == 1;
    return chosen == &polite && in_order ? code - 43 : code;
}

static int
run_apart(const troupe_class *type, uint64_t grace_ns)
{
    chosen = type;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        _exit(run(grace_ns));
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void
a_signal_stops_in_order_waits_for_the_hooks_and_gives_its_code(void **state)
{
    (void)state;
    int status = run_apart(&polite, 5000 * MS);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 100); /* 143 - 43 */
    status = run_apart(&interrupted, 5000 * MS);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 130);
}

static void
a_second_signal_kills(void **state)
{
    (void)state;
    int status = run_apart(&stubborn, 60000 * MS);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGINT);
}

static void
a_thread_that_never_returns_ends_with_the_process(void **state)
{
    (void)state;
    int status = run_apart(&stuck, 30 * MS);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_signal_stops_in_order_waits_for_the_hooks_and_gives_its_code),
        cmocka_unit_test(a_second_signal_kills),
        cmocka_unit_test(a_thread_that_never_returns_ends_with_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
