/* Real processes that put, hand over, read and release through one store, and are killed and
 * stopped at any instruction; what the dead had is reclaimed while the others go on. At the end
 * nothing may be left, nothing may have been wrong, and nobody may have waited for a dead or
 * stopped one.
 *
 *   test_store_kill [SECONDS]      default 4 */
#include "support.h"

#include <troupe/ext/sys.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    WORKERS = 5,
    BUDGET = 8 << 20,
    POCKET = 24,
    EXIT_WRONG = 77
};

/* What the processes tell the test. */
typedef struct row {
    _Atomic uint64_t rounds;
    _Atomic uint64_t puts;
    _Atomic uint64_t reads;
    _Atomic uint64_t lost;
    _Atomic uint64_t refused;
} row;

typedef struct stage {
    troupe_store *owner;
    row *rows;
    int pipes[WORKERS][2]; /* handles for worker i; anybody writes, i reads */
    pid_t pid[WORKERS];
    uint32_t slot[WORKERS];
    uint64_t seed;
} stage;

static uint64_t
now_ns(void)
{
    const troupe_sys *sys = troupe_sys_posix();
    return sys->now_ns(sys);
}

/* --- a worker -------------------------------------------------------------------------------- */

typedef struct worker {
    const stage *stage;
    troupe_store *store;
    row *row;
    tr_rng rng;
    int index;
    troupe_object pocket[POCKET]; /* that it holds */
} worker;

static void
must(const worker *w, bool condition, const char *what)
{
    if (!condition) {
        (void)fprintf(stderr, "worker %d: %s\n", w->index, what);
        _exit(EXIT_WRONG);
    }
}

static size_t
draw_size(worker *w)
{
    static const size_t scale[] = {200, 4000, 30000, 100000, 1500000};
    return 1 + tr_rng_below(&w->rng, scale[tr_rng_below(&w->rng, TR_COUNT(scale))]);
}

/* The node fences a worker that is about to die; then it is denied everything. */
static bool
is(const worker *w, troupe_status status, troupe_status expected)
{
    if (status == TROUPE_DENIED) {
        for (;;) {
            (void)pause();
        }
    }
    if (status != expected && status != TROUPE_OK) {
        (void)fprintf(stderr, "worker %d: %s\n", w->index, troupe_status_name(status));
        _exit(EXIT_WRONG);
    }
    return status == TROUPE_OK;
}

static void
put_one(worker *w, troupe_object *at)
{
    void *bytes = NULL;
    troupe_object object = {0};
    size_t size = draw_size(w);
    if (!is(w, troupe_object_create(w->store, size, &object, &bytes), TROUPE_AGAIN)) {
        atomic_fetch_add(&w->row->refused, 1);
        return;
    }
    fill(bytes, size, object);
    if (tr_rng_below(&w->rng, 10) == 0) {
        (void)is(w, troupe_object_release(w->store, object), TROUPE_OK); /* given up */
        return;
    }
    (void)is(w, troupe_object_seal(w->store, object), TROUPE_OK);
    atomic_fetch_add(&w->row->puts, 1);
    *at = object;
}

/* Hands a handle to a neighbour, who takes a hold of its own, or finds it gone. */
static void
hand_over(worker *w, troupe_object object)
{
    uint64_t word = troupe_object_word(object);
    int to = (int)tr_rng_below(&w->rng, WORKERS);
    ssize_t wrote = write(w->stage->pipes[to][1], &word, sizeof word);
    must(w, wrote == (ssize_t)sizeof word || errno == EAGAIN, "a pipe failed");
}

static void
look(worker *w, troupe_object object)
{
    const void *bytes = NULL;
    size_t size = 0;
    if (!is(w, troupe_object_hold(w->store, object, &bytes, &size), TROUPE_LOST)) {
        atomic_fetch_add(&w->row->lost, 1);
        return;
    }
    must(w, is_filled(bytes, size, object), "bytes of an object that is held are wrong");
    atomic_fetch_add(&w->row->reads, 1);
    troupe_object *at = &w->pocket[tr_rng_below(&w->rng, POCKET)];
    if (at->generation == 0 && tr_rng_below(&w->rng, 2) == 0) {
        *at = object;
        return;
    }
    must(w, is_filled(bytes, size, object), "bytes changed while they were held");
    (void)is(w, troupe_object_release(w->store, object), TROUPE_OK);
}

static void
act(worker *w)
{
    uint64_t word = 0;
    troupe_object *at = &w->pocket[tr_rng_below(&w->rng, POCKET)];
    switch (tr_rng_below(&w->rng, 4)) {
    case 0:
        if (at->generation == 0) {
            put_one(w, at);
        }
        break;
    case 1:
        if (at->generation != 0) {
            hand_over(w, *at);
        }
        break;
    case 2:
        if (read(w->stage->pipes[w->index][0], &word, sizeof word) == (ssize_t)sizeof word) {
            look(w, troupe_object_of_word(word));
        }
        break;
    default:
        if (at->generation != 0) {
            (void)is(w, troupe_object_release(w->store, *at), TROUPE_OK);
            *at = (troupe_object){0};
        }
        break;
    }
    atomic_fetch_add(&w->row->rounds, 1);
}

static void
work(const stage *s, int index, uint64_t seed)
{
    static worker w;
    troupe_error error = {0};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    w = (worker){.stage = s, .row = &s->rows[index], .rng = {.key = seed}, .index = index};
    troupe_status status =
        tr_store_attach(dup(tr_store_fd(s->owner)), s->slot[index], &w.store, &error);
    (void)is(&w, status, TROUPE_OK);
    for (;;) {
        act(&w);
    }
}

/* --- the node -------------------------------------------------------------------------------- */

static void
start(stage *s, int index)
{
    uint32_t slot = 0;
    assert_int_equal(tr_store_slot_open(s->owner, &slot, NULL), TROUPE_OK);
    s->slot[index] = slot;
    s->seed++;
    s->pid[index] = fork();
    assert_true(s->pid[index] >= 0);
    if (s->pid[index] == 0) {
        work(s, index, s->seed);
    }
}

/* Ends worker `index`, with or without a fence before; it must not have found anything wrong. */
static void
bury(stage *s, int index, bool fence)
{
    int status = 0;
    if (fence) {
        tr_store_fence(s->owner, s->slot[index]);
    }
    assert_int_equal(kill(s->pid[index], SIGKILL), 0);
    assert_int_equal(waitpid(s->pid[index], &status, 0), s->pid[index]);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
        fail_msg("worker %d ended with status %x", index, (unsigned)status);
    }
    tr_store_reclaim(s->owner, s->slot[index], NULL);
}

static void
set_up(stage *s, uint64_t seed)
{
    *s = (stage){.owner = troupe_store_new(BUDGET), .seed = seed};
    s->rows = mmap(
        NULL, WORKERS * sizeof(row), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(s->rows, MAP_FAILED);
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(pipe2(s->pipes[i], O_NONBLOCK), 0);
    }
    for (int i = 0; i < WORKERS; i++) {
        start(s, i);
    }
}

/* A stopped process holds nobody up, and may be killed while it is stopped. */
static void
stop_one(stage *s, tr_rng *rng, uint64_t ns)
{
    int index = (int)tr_rng_below(rng, WORKERS);
    uint64_t before[WORKERS];
    assert_int_equal(kill(s->pid[index], SIGSTOP), 0);
    for (int i = 0; i < WORKERS; i++) {
        before[i] = atomic_load(&s->rows[i].rounds);
    }
    troupe_sleep_ns(ns);
    for (int i = 0; i < WORKERS && ns >= 500000000; i++) {
        assert_true(i == index || atomic_load(&s->rows[i].rounds) > before[i]);
    }
    if (tr_rng_below(rng, 2) == 0) {
        bury(s, index, true);
        start(s, index);
    } else {
        assert_int_equal(kill(s->pid[index], SIGCONT), 0);
    }
}

static void
tear_down(stage *s)
{
    for (int i = 0; i < WORKERS; i++) {
        bury(s, i, false);
    }
    for (int i = 0; i < WORKERS; i++) {
        (void)close(s->pipes[i][0]);
        (void)close(s->pipes[i][1]);
    }
    assert_int_equal(bytes_in(s->owner), 0);
    assert_int_equal(objects_in(s->owner), 0);
    must_check(s->owner);
    troupe_object all = put(s->owner, BUDGET); /* and all of it can be had again */
    must_read(s->owner, all);
    troupe_store_free(s->owner);
    (void)munmap(s->rows, WORKERS * sizeof(row));
}

static void
report(const stage *s, int kills, int stops)
{
    uint64_t sum[5] = {0};
    for (int i = 0; i < WORKERS; i++) {
        sum[0] += atomic_load(&s->rows[i].rounds);
        sum[1] += atomic_load(&s->rows[i].puts);
        sum[2] += atomic_load(&s->rows[i].reads);
        sum[3] += atomic_load(&s->rows[i].lost);
        sum[4] += atomic_load(&s->rows[i].refused);
    }
    print_message("%d killed, %d stopped; %llu rounds, %llu puts, %llu reads, %llu lost, %llu "
                  "refused\n",
        kills, stops, (unsigned long long)sum[0], (unsigned long long)sum[1],
        (unsigned long long)sum[2], (unsigned long long)sum[3], (unsigned long long)sum[4]);
    assert_true(sum[1] > 500 && sum[2] > 500);
}

static void
killed_and_stopped_anywhere_nothing_is_lost_or_wrong(void **state)
{
    static stage s;
    const double *seconds = *state;
    tr_rng rng = {.key = now_ns()};
    print_message("seed %llu\n", (unsigned long long)rng.key);
    set_up(&s, rng.key);
    uint64_t end_ns = now_ns() + (uint64_t)(*seconds * 1e9);
    int kills = 0, stops = 0;
    while (now_ns() < end_ns) {
        troupe_sleep_ns(tr_rng_below(&rng, 3000000));
        if (tr_rng_below(&rng, 12) == 0) {
            stop_one(&s, &rng, stops == 0 ? 1000000000 : tr_rng_below(&rng, 4000000));
            stops++;
            continue;
        }
        int index = (int)tr_rng_below(&rng, WORKERS);
        bury(&s, index, tr_rng_below(&rng, 2) == 0);
        start(&s, index);
        kills++;
        assert_true(objects_in(s.owner) < 10000);
    }
    report(&s, kills, stops);
    tear_down(&s);
}

int
main(int argc, char **argv)
{
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 4;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(killed_and_stopped_anywhere_nothing_is_lost_or_wrong, &seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
