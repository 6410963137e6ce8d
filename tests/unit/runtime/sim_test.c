/* The simulated world: determinism, and the laws of calls under everything that can go wrong. */
#include "check.h"

#include <troupe/ext/base.h>
#include <troupe/ext/sim.h>

enum {
    CLIENTS = 3,
    SERVERS = 3,
    OPS = 40
};

#define SECOND UINT64_C(1000000000)

/* --- what is checked from outside ----------------------------------------------------------- */

/* Of one operation: a client's call of a server, under a number that nothing else has. */
struct op {
    int answers;
    troupe_status status;
    int64_t value;
    int runs;
    uint32_t ran_in[64]; /* incarnations */
};

struct scene {
    int64_t salt; /* a value in every call, without effect */
    struct op ops[CLIENTS][OPS];
    int done;
    int64_t last_tell[SERVERS][CLIENTS];
    int out_of_order;
};

static struct scene scene;

/* --- the server ----------------------------------------------------------------------------- */

struct server {
    troupe_call *kept[CLIENTS * OPS];
    int kept_count;
};

static void
answer_kept(troupe_ctx *ctx, void *user)
{
    (void)user;
    struct server *self = troupe_state(ctx);
    for (int i = 0; i < self->kept_count; i++) {
        troupe_reply_i64(self->kept[i], -1);
    }
    self->kept_count = 0;
}

static void
work(troupe_ctx *ctx, troupe_call *call)
{
    struct server *self = troupe_state(ctx);
    int64_t client = troupe_arg_i64(call, 0), number = troupe_arg_i64(call, 1);
    assert_true(troupe_args_ok(call));
    struct op *op = &scene.ops[client][number];
    assert_true(op->runs < (int)TR_COUNT(op->ran_in));
    op->ran_in[op->runs++] = troupe_self(ctx).incarnation;
    if (number % 4 == 3) { /* every fourth is answered later */
        if (self->kept_count == 0) {
            assert_int_equal(
                troupe_timer_start(ctx, SECOND / 100, answer_kept, NULL, NULL), TROUPE_OK);
        }
        self->kept[self->kept_count++] = troupe_defer(call);
        return;
    }
    troupe_reply_i64(call, client * 1000 + number);
}

static void
hear(troupe_ctx *ctx, troupe_call *call)
{
    int64_t client = troupe_arg_i64(call, 0), number = troupe_arg_i64(call, 1);
    int64_t *last = &scene.last_tell[troupe_self_replica(ctx)][client];
    scene.out_of_order += number <= *last ? 1 : 0;
    *last = number;
}

static const troupe_class server = {.name = "server",
    .state_size = sizeof(struct server),
    .methods = {{"work", work}, {"hear", hear}}};

/* --- the client ----------------------------------------------------------------------------- */

struct client {
    int next;
    int told;
};

static void
on_answer(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct op *op = user;
    op->answers++;
    op->status = troupe_answer_status(answer);
    op->value = op->status == TROUPE_OK ? troupe_arg_i64(answer, 0) : 0;
    scene.done++;
    (void)ctx;
}

static void
send_next(troupe_ctx *ctx, void *user)
{
    (void)user;
    struct client *self = troupe_state(ctx);
    int me = troupe_self_replica(ctx);
    troupe_args args = {0};
    troupe_args_i64(&args, me);
    troupe_args_i64(&args, self->next);
    troupe_args_i64(&args, scene.salt);
    assert_int_equal(troupe_call_send(ctx, troupe_to(ctx, "server", self->next % SERVERS), "work",
                         &args, .on_answer = on_answer, .user = &scene.ops[me][self->next],
                         .retry = true, .resend_ns = SECOND / 20, .deadline_ns = 600 * SECOND),
        TROUPE_OK);
    self->next++;
    for (int i = 0; i < SERVERS; i++) {
        troupe_args_i64(&args, me);
        troupe_args_i64(&args, ++self->told);
        if (troupe_tell(ctx, troupe_to(ctx, "server", i), "hear", &args) != TROUPE_OK) {
            troupe_args_fini(&args);
        }
    }
    if (self->next < OPS) {
        assert_int_equal(troupe_timer_start(ctx, SECOND / 10, send_next, NULL, NULL), TROUPE_OK);
    }
}

static void
begin(troupe_ctx *ctx)
{
    send_next(ctx, NULL);
}

static const troupe_class client = {
    .name = "client", .state_size = sizeof(struct client), .start = begin};

/* --- a run ---------------------------------------------------------------------------------- */

static void
populate(void *self, tr_host *host, int loop, uint32_t epoch)
{
    (void)self;
    (void)epoch;
    bool is_server = loop >= CLIENTS;
    tr_spawn spawn = {.type = is_server ? &server : &client,
        .role = is_server ? 1 : 0,
        .replica = (uint16_t)(is_server ? loop - CLIENTS : loop)};
    assert_int_equal(tr_host_spawn(host, &spawn, NULL, NULL), TROUPE_OK);
}

static bool
all_done(void *user)
{
    (void)user;
    return scene.done == CLIENTS * OPS;
}

struct outcome {
    uint64_t hash;
    uint64_t events;
    uint64_t faults;
    bool done;
};

/* A time of faults, then healing, and progress is demanded. */
static struct outcome
play(uint64_t seed, const tr_faults *faults)
{
    int64_t salt = scene.salt;
    memset(&scene, 0, sizeof scene);
    scene.salt = salt;
    tr_directory *directory = tr_directory_new();
    (void)tr_directory_add(directory, "client", CLIENTS);
    (void)tr_directory_add(directory, "server", SERVERS);
    tr_world_options options = {.seed = seed, .faults = *faults, .directory = directory};
    tr_world *world = tr_world_new(&options);
    for (int i = 0; i < CLIENTS + SERVERS; i++) {
        tr_world_loop loop = {.populate = populate, .killable = i >= CLIENTS};
        assert_int_equal(tr_world_add(world, &loop), i);
    }
    tr_world_start(world);
    (void)tr_world_run(world, tr_world_now_ns(world) + 20 * SECOND, all_done, NULL);
    tr_world_heal(world);
    uint64_t faults_at_healing = tr_world_faults(world);
    bool done = tr_world_run(world, tr_world_now_ns(world) + 60 * SECOND, all_done, NULL);
    (void)tr_world_run(world, tr_world_now_ns(world) + 5 * SECOND, NULL, NULL);
    struct outcome outcome = {.hash = tr_world_hash(world),
        .events = tr_world_events(world),
        .faults = tr_world_faults(world),
        .done = done};
    assert_int_equal(outcome.faults, faults_at_healing);
    tr_world_free(world);
    tr_directory_free(directory);
    return outcome;
}

static void
check_op(uint64_t seed, int c, int n)
{
    const struct op *op = &scene.ops[c][n];
    if (op->answers != 1 || op->status != TROUPE_OK) {
        fail_msg("seed %llu: operation %d.%d has %d answers, the last %s", (unsigned long long)seed,
            c, n, op->answers, troupe_status_name(op->status));
    }
    assert_int_equal(op->value, n % 4 == 3 ? -1 : c * 1000 + n);
    assert_true(op->runs >= 1);
    for (int i = 0; i < op->runs; i++) {
        for (int k = 0; k < i; k++) {
            if (op->ran_in[i] == op->ran_in[k]) {
                fail_msg("seed %llu: operation %d.%d ran twice in incarnation %x",
                    (unsigned long long)seed, c, n, op->ran_in[i]);
            }
        }
    }
}

static void
check_all(uint64_t seed, const struct outcome *outcome)
{
    if (!outcome->done) {
        fail_msg("seed %llu: %d of %d operations done after healing", (unsigned long long)seed,
            scene.done, CLIENTS * OPS);
    }
    for (int c = 0; c < CLIENTS; c++) {
        for (int n = 0; n < OPS; n++) {
            check_op(seed, c, n);
        }
    }
}

/* --- tests ---------------------------------------------------------------------------------- */

static void
a_perfect_network_answers_all_in_order_and_without_a_fault(void **state)
{
    (void)state;
    tr_faults none = {.delay_ns = 1000000};
    struct outcome outcome = play(1, &none);
    check_all(1, &outcome);
    assert_int_equal(outcome.faults, 0);
    assert_int_equal(scene.out_of_order, 0);
    for (int s = 0; s < SERVERS; s++) {
        for (int c = 0; c < CLIENTS; c++) {
            assert_int_equal(scene.last_tell[s][c], (OPS - 1) * SERVERS + s + 1);
        }
    }
}

static void
one_seed_gives_one_history_and_another_seed_another(void **state)
{
    (void)state;
    uint64_t hashes[20];
    for (uint64_t seed = 0; seed < 20; seed++) {
        tr_faults faults = tr_faults_swarm(seed);
        struct outcome a = play(seed, &faults), b = play(seed, &faults);
        assert_true(a.hash == b.hash);
        assert_true(a.events == b.events && a.faults == b.faults);
        hashes[seed] = a.hash;
        for (uint64_t i = 0; i < seed; i++) {
            assert_true(hashes[i] != a.hash);
        }
    }
}

static void
the_hash_covers_what_the_messages_say(void **state)
{
    (void)state;
    tr_faults none = {.delay_ns = 1000000};
    scene.salt = 1;
    struct outcome a = play(5, &none);
    scene.salt = 2;
    struct outcome b = play(5, &none);
    scene.salt = 0;
    assert_true(a.events == b.events);
    assert_true(a.hash != b.hash);
}

/* Each fault alone and strong, so that a failure names its cause. */
static void
each_fault_alone_is_survived(void **state)
{
    (void)state;
    tr_faults faults[] = {
        {.delay_ns = 1000000, .loss = 400},
        {.delay_ns = 1000000, .repeat = 1000},
        {.delay_ns = 1000000, .damage = 400},
        {.delay_ns = 50000000, .reorder = 1000},
        {.delay_ns = 1000000, .slow = 300, .slow_ns = 5 * SECOND},
        {.delay_ns = 1000000, .partition_every_ns = SECOND / 10, .partition_ns = 2 * SECOND},
        {.delay_ns = 1000000, .pause_every_ns = SECOND / 10, .pause_ns = 2 * SECOND},
        {.delay_ns = 1000000, .kill_every_ns = SECOND, .restart_ns = SECOND, .notice_ns = SECOND},
        {.delay_ns = 1000000,
            .kill_every_ns = SECOND / 4,
            .restart_ns = 1,
            .notice_ns = 3 * SECOND},
    };
    for (size_t i = 0; i < TR_COUNT(faults); i++) {
        struct outcome outcome = play(100 + i, &faults[i]);
        check_all(100 + i, &outcome);
        assert_true(outcome.faults > 0 || faults[i].reorder > 0 || faults[i].slow > 0);
    }
}

static void
mixtures_of_faults_are_survived(void **state)
{
    (void)state;
    uint64_t faults_seen = 0;
    for (uint64_t seed = 1000; seed < 1300; seed++) {
        tr_faults faults = tr_faults_swarm(seed);
        struct outcome outcome = play(seed, &faults);
        check_all(seed, &outcome);
        faults_seen += outcome.faults;
    }
    assert_true(faults_seen > 3000);
}

static void
a_swarm_leaves_each_fault_out_of_about_half_of_its_seeds(void **state)
{
    (void)state;
    int loss = 0, kill = 0, both = 0;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        tr_faults faults = tr_faults_swarm(seed);
        loss += faults.loss > 0 ? 1 : 0;
        kill += faults.kill_every_ns > 0 ? 1 : 0;
        both += faults.loss > 0 && faults.kill_every_ns > 0 ? 1 : 0;
        assert_true(faults.loss <= 202 && faults.repeat <= 202 && faults.damage <= 52);
    }
    assert_true(loss > 420 && loss < 580);
    assert_true(kill > 420 && kill < 580);
    assert_true(both > 180 && both < 320);
}

/* --- by hand -------------------------------------------------------------------------------- */

static int traced;

static void
trace(void *self, const char *line)
{
    (void)self;
    assert_true(strlen(line) > 10);
    traced++;
}

static void
a_killed_loop_comes_back_in_a_new_epoch_and_a_blocked_way_is_silent(void **state)
{
    (void)state;
    memset(&scene, 0, sizeof scene);
    traced = 0;
    tr_directory *directory = tr_directory_new();
    (void)tr_directory_add(directory, "client", CLIENTS);
    (void)tr_directory_add(directory, "server", SERVERS);
    tr_world_options options = {.seed = 3,
        .faults = {.delay_ns = 1000000, .notice_ns = SECOND / 10},
        .directory = directory,
        .trace = trace};
    tr_world *world = tr_world_new(&options);
    tr_world_loop loop = {.populate = populate};
    for (int i = 0; i < CLIENTS + SERVERS; i++) {
        (void)tr_world_add(world, &loop);
    }
    troupe_ref first, second;
    assert_true(tr_directory_get(directory, 1, 0, &first));
    tr_world_kill(world, CLIENTS);
    assert_null(tr_world_host(world, CLIENTS));
    assert_true(tr_directory_get(directory, 1, 0, &second)); /* nobody knows yet */
    tr_world_kill(world, CLIENTS);
    (void)tr_world_run(world, tr_world_now_ns(world) + SECOND, NULL, NULL);
    assert_false(tr_directory_get(directory, 1, 0, &second));
    tr_world_restart(world, CLIENTS);
    tr_world_restart(world, CLIENTS);
    assert_int_equal(tr_world_epoch(world, CLIENTS), 2);
    assert_true(tr_directory_get(directory, 1, 0, &second));
    assert_true(second.incarnation != first.incarnation);
    /* Killed again and back before anybody has noticed: the late notice does not concern the new
     * one. */
    tr_world_kill(world, CLIENTS);
    tr_world_restart(world, CLIENTS);
    (void)tr_world_run(world, tr_world_now_ns(world) + SECOND, NULL, NULL);
    assert_int_equal(tr_world_epoch(world, CLIENTS), 3);
    assert_true(tr_directory_get(directory, 1, 0, &second));
    assert_int_equal(second.incarnation >> 16, 3);
    /* Client 0 cannot reach server 1 (its operation 1), all others go through. */
    tr_world_block(world, 0, CLIENTS + 1, true);
    tr_world_start(world);
    (void)tr_world_run(world, tr_world_now_ns(world) + 10 * SECOND, NULL, NULL);
    assert_int_equal(scene.ops[0][1].answers, 0);
    assert_int_equal(scene.ops[0][1].runs, 0);
    assert_int_equal(scene.ops[0][2].answers, 1);
    assert_int_equal(scene.ops[1][1].answers, 1);
    tr_world_block(world, 0, CLIENTS + 1, false);
    (void)tr_world_run(world, tr_world_now_ns(world) + 10 * SECOND, all_done, NULL);
    assert_int_equal(scene.done, CLIENTS * OPS);
    assert_true(traced > 1000 && (uint64_t)traced == tr_world_events(world));
    tr_world_free(world);
    tr_directory_free(directory);
}

static void
a_paused_loop_does_nothing_until_its_pause_is_over(void **state)
{
    (void)state;
    memset(&scene, 0, sizeof scene);
    tr_directory *directory = tr_directory_new();
    (void)tr_directory_add(directory, "client", CLIENTS);
    (void)tr_directory_add(directory, "server", SERVERS);
    tr_world_options options = {.seed = 3, .directory = directory};
    tr_world *world = tr_world_new(&options);
    tr_world_loop loop = {.populate = populate};
    for (int i = 0; i < CLIENTS + SERVERS; i++) {
        (void)tr_world_add(world, &loop);
    }
    tr_world_start(world);
    tr_world_pause(world, CLIENTS, 5 * SECOND);
    (void)tr_world_run(world, tr_world_now_ns(world) + 4 * SECOND, NULL, NULL);
    assert_int_equal(scene.ops[0][0].runs, 0);
    assert_int_equal(scene.ops[0][1].runs, 1);
    (void)tr_world_run(world, tr_world_now_ns(world) + 2 * SECOND, NULL, NULL);
    assert_int_equal(scene.ops[0][0].runs, 1);
    assert_int_equal(scene.ops[0][0].answers, 1);
    tr_world_free(world);
    tr_directory_free(directory);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_perfect_network_answers_all_in_order_and_without_a_fault),
        cmocka_unit_test(one_seed_gives_one_history_and_another_seed_another),
        cmocka_unit_test(the_hash_covers_what_the_messages_say),
        cmocka_unit_test(each_fault_alone_is_survived),
        cmocka_unit_test(mixtures_of_faults_are_survived),
        cmocka_unit_test(a_swarm_leaves_each_fault_out_of_about_half_of_its_seeds),
        cmocka_unit_test(a_killed_loop_comes_back_in_a_new_epoch_and_a_blocked_way_is_silent),
        cmocka_unit_test(a_paused_loop_does_nothing_until_its_pause_is_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
