/* Streams and cancelled calls under loss, repetition, disorder, damage, pauses and deaths. An
 * oracle outside of the runtime counts: every call ends once, items come in order and once each, a
 * stream that ends well is whole, and nobody stays parked. */
#include "check.h"

#include <troupe/ext/base.h>
#include <troupe/ext/sim.h>

enum {
    CLIENTS = 3, /* the last one is mortal: its calls may end with it */
    SERVERS = 2,
    OPS = 24
};

#define SECOND UINT64_C(1000000000)

struct op {
    bool sent, dropped;
    int answers;
    troupe_status status;
    int64_t value;
    int64_t taken; /* items */
    int64_t wanted;
    troupe_call_id id;
    uint32_t ran_in; /* the last incarnation that ran it */
    int twice;
};

struct scene {
    struct op ops[CLIENTS][OPS];
    int done;
    int disorder;
    int too_far;
    int begun, released;
    int parked[SERVERS];
};

static struct scene scene;

/* Over all seeds: that the interesting things did happen. */
static struct {
    int whole, cancelled, died, items;
} seen;

/* --- the server ----------------------------------------------------------------------------- */

struct work {
    troupe_call *call;
    int64_t next, wanted;
    bool over;
};

struct server {
    struct work works[512];
    int count;
};

static void
go_on(troupe_ctx *ctx, struct work *work)
{
    (void)ctx;
    while (work->next <= work->wanted) {
        troupe_args args = {0};
        troupe_args_i64(&args, work->next);
        troupe_status status = troupe_item(work->call, &args);
        troupe_args_fini(&args);
        if (status == TROUPE_AGAIN) {
            return;
        }
        work->next++;
    }
    work->over = true;
    scene.released++;
    troupe_reply_i64(work->call, work->wanted);
}

static void
on_room(troupe_ctx *ctx, troupe_call *call, void *user)
{
    struct work *work = user;
    assert_ptr_equal(work->call, call);
    go_on(ctx, work);
}

static void
note_run(troupe_ctx *ctx, struct op *op)
{
    uint32_t me = troupe_self(ctx).incarnation;
    op->twice += op->ran_in == me ? 1 : 0;
    op->ran_in = me;
}

static void
stream(troupe_ctx *ctx, troupe_call *call)
{
    struct server *self = troupe_state(ctx);
    int64_t client = troupe_arg_i64(call, 0), number = troupe_arg_i64(call, 1);
    assert_true(troupe_args_ok(call) && self->count < (int)TR_COUNT(self->works));
    struct op *op = &scene.ops[client][number];
    note_run(ctx, op);
    struct work *work = &self->works[self->count++];
    *work = (struct work){.call = troupe_defer(call), .next = 1, .wanted = op->wanted};
    assert_int_equal(troupe_on_room(call, on_room, work), TROUPE_OK);
    scene.begun++;
    go_on(ctx, work);
}

static void
work_once(troupe_ctx *ctx, troupe_call *call)
{
    int64_t client = troupe_arg_i64(call, 0), number = troupe_arg_i64(call, 1);
    note_run(ctx, &scene.ops[client][number]);
    troupe_reply_i64(call, number);
}

/* An actor that dies leaves its works; those of a loop that is killed never come back. */
static void
leave(troupe_ctx *ctx)
{
    const struct server *self = troupe_state(ctx);
    for (int i = 0; i < self->count; i++) {
        scene.released += self->works[i].over ? 0 : 1;
    }
}

static const troupe_class server = {.name = "server",
    .state_size = sizeof(struct server),
    .fini = leave,
    .methods = {{"stream", stream}, {"work", work_once}}};

/* --- the client ----------------------------------------------------------------------------- */

struct client {
    int next;
};

static void
on_answer(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)ctx;
    struct op *op = user;
    op->answers++;
    op->status = troupe_answer_status(answer);
    op->value = op->status == TROUPE_OK ? troupe_arg_i64(answer, 0) : -1;
    scene.done++;
}

static void
take_all(troupe_ctx *ctx, struct op *op, int most)
{
    troupe_answer *item = NULL;
    while (most-- > 0 && troupe_take(ctx, op->id, &item) == TROUPE_OK) {
        scene.disorder += troupe_arg_i64(item, 0) != op->taken + 1 ? 1 : 0;
        op->taken++;
        troupe_answer_free(item);
    }
}

static void
take_later(troupe_ctx *ctx, void *user)
{
    take_all(ctx, user, 1000);
}

static void
on_item(troupe_ctx *ctx, troupe_call_id id, void *user)
{
    struct op *op = user;
    assert_true(op->id.call == id.call);
    take_all(ctx, op, 1);
    assert_int_equal(troupe_timer_start(ctx, SECOND / 50, take_later, op, NULL), TROUPE_OK);
}

static void
drop(troupe_ctx *ctx, void *user)
{
    struct op *op = user;
    op->dropped = troupe_cancel(ctx, op->id);
}

static void
send_next(troupe_ctx *ctx, void *user)
{
    (void)user;
    struct client *self = troupe_state(ctx);
    int me = troupe_self_replica(ctx), n = self->next++;
    struct op *op = &scene.ops[me][n];
    bool streams = n % 3 != 0;
    troupe_args args = {0};
    troupe_args_i64(&args, me);
    troupe_args_i64(&args, n);
    op->sent = true;
    op->wanted = n * 7 % 23;
    assert_int_equal(
        troupe_call_send(ctx, troupe_to(ctx, "server", n % SERVERS), streams ? "stream" : "work",
            &args, .on_answer = on_answer, .user = op, .id = &op->id, .retry = true,
            .resend_ns = SECOND / 20, .deadline_ns = 100 * SECOND,
            .ahead_max = streams ? 1 + n % 6 : 0, .on_item = on_item),
        TROUPE_OK);
    if (n % 5 == 2) {
        assert_int_equal(
            troupe_timer_start(ctx, (uint64_t)n % 4 * SECOND / 100, drop, op, NULL), TROUPE_OK);
    }
    if (self->next < OPS) {
        assert_int_equal(troupe_timer_start(ctx, SECOND / 10, send_next, NULL, NULL), TROUPE_OK);
    }
}

static void
begin(troupe_ctx *ctx)
{
    /* A mortal that came back asks nothing: its numbers are used. */
    if (!scene.ops[troupe_self_replica(ctx)][0].sent) {
        send_next(ctx, NULL);
    }
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
    return scene.done >= CLIENTS * OPS;
}

static void
count_kept(void *user, const tr_wait *wait)
{
    int *count = user;
    *count += wait->kind == TR_WAIT_TIMER ? 0 : 1;
}

static void
check_op(uint64_t seed, int c, int n)
{
    const struct op *op = &scene.ops[c][n];
    bool streams = n % 3 != 0;
    const char *wrong = NULL;
    seen.whole += op->status == TROUPE_OK && streams ? 1 : 0;
    seen.cancelled += op->status == TROUPE_CANCELLED ? 1 : 0;
    seen.died += op->status == TROUPE_DIED ? 1 : 0;
    seen.items += (int)op->taken;
    if (op->twice > 0) {
        wrong = "ran twice in one incarnation";
    } else if (op->answers != 1) {
        wrong = "did not end once";
    } else if (op->dropped != (op->status == TROUPE_CANCELLED)) {
        wrong = "is cancelled though nobody did, or the reverse";
    } else if (op->status == TROUPE_OK && op->value != (streams ? op->wanted : n)) {
        wrong = "ended with another value";
    } else if (op->status == TROUPE_OK && streams && op->taken != op->wanted) {
        wrong = "lost or gained items";
    } else if (op->taken > op->wanted) {
        wrong = "gained items";
    } else if (op->status == TROUPE_DIED && (!streams || op->taken == 0)) {
        wrong = "died though it could begin again";
    } else if (op->status != TROUPE_OK && op->status != TROUPE_CANCELLED &&
               op->status != TROUPE_DIED) {
        wrong = "ended with another status";
    }
    if (wrong != NULL) {
        fail_msg("seed %llu: operation %d.%d %s: %d answers, %s, %d of %d items",
            (unsigned long long)seed, c, n, wrong, op->answers, troupe_status_name(op->status),
            (int)op->taken, (int)op->wanted);
    }
}

static uint64_t
play(uint64_t seed, const tr_faults *faults, bool mortal)
{
    memset(&scene, 0, sizeof scene);
    tr_directory *directory = tr_directory_new();
    (void)tr_directory_add(directory, "client", CLIENTS);
    (void)tr_directory_add(directory, "server", SERVERS);
    tr_world_options options = {.seed = seed, .faults = *faults, .directory = directory};
    tr_world *world = tr_world_new(&options);
    for (int i = 0; i < CLIENTS + SERVERS; i++) {
        tr_world_loop loop = {
            .populate = populate, .killable = i >= CLIENTS || (mortal && i == CLIENTS - 1)};
        assert_int_equal(tr_world_add(world, &loop), i);
    }
    tr_world_start(world);
    (void)tr_world_run(world, tr_world_now_ns(world) + 10 * SECOND, all_done, NULL);
    tr_world_heal(world);
    (void)tr_world_run(world, tr_world_now_ns(world) + 60 * SECOND, all_done, NULL);
    /* The last words are said well before any deadline: nobody is released by a deadline alone. */
    (void)tr_world_run(world, tr_world_now_ns(world) + 10 * SECOND, NULL, NULL);
    uint64_t hash = tr_world_hash(world);
    for (int c = 0; c < CLIENTS - (mortal ? 1 : 0); c++) {
        for (int n = 0; n < OPS; n++) {
            check_op(seed, c, n);
        }
    }
    int open = 0;
    for (int i = 0; i < CLIENTS + SERVERS && !mortal; i++) {
        tr_host_waits(tr_world_host(world, i), count_kept, &open);
    }
    if (open != 0 || scene.disorder != 0) {
        fail_msg("seed %llu: %d waits are left, %d items out of order", (unsigned long long)seed,
            open, scene.disorder);
    }
    (void)tr_world_run(world, tr_world_now_ns(world) + 110 * SECOND, NULL, NULL);
    for (int i = 0; i < CLIENTS + SERVERS; i++) {
        tr_host_waits(tr_world_host(world, i), count_kept, &open);
    }
    assert_int_equal(open, 0); /* not even of the dead */
    tr_world_free(world);
    tr_directory_free(directory);
    assert_int_equal(scene.released, scene.begun);
    return hash;
}

/* --- tests ---------------------------------------------------------------------------------- */

static void
streams_and_cancels_survive_each_fault_alone(void **state)
{
    (void)state;
    tr_faults faults[] = {
        {.delay_ns = 1000000},
        {.delay_ns = 1000000, .loss = 400},
        {.delay_ns = 1000000, .repeat = 1000},
        {.delay_ns = 1000000, .damage = 400},
        {.delay_ns = 50000000, .reorder = 1000},
        {.delay_ns = 1000000, .slow = 300, .slow_ns = 5 * SECOND},
        {.delay_ns = 1000000, .partition_every_ns = SECOND / 10, .partition_ns = 2 * SECOND},
        {.delay_ns = 1000000, .pause_every_ns = SECOND / 10, .pause_ns = 2 * SECOND},
        {.delay_ns = 1000000, .kill_every_ns = SECOND, .restart_ns = SECOND, .notice_ns = SECOND},
    };
    for (size_t i = 0; i < TR_COUNT(faults); i++) {
        for (int mortal = 0; mortal < 2; mortal++) {
            (void)play(100 + i, &faults[i], mortal != 0);
        }
    }
}

static void
streams_and_cancels_survive_mixtures_of_faults(void **state)
{
    (void)state;
    for (uint64_t seed = 2000; seed < 2300; seed++) {
        tr_faults faults = tr_faults_swarm(seed);
        (void)play(seed, &faults, seed % 2 != 0);
    }
    assert_true(seen.whole > 5000 && seen.items > 50000 && seen.cancelled > 500 && seen.died > 20);
}

static void
a_history_of_streams_and_cancels_is_one_with_its_seed(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++) {
        tr_faults faults = tr_faults_swarm(seed);
        assert_true(play(seed, &faults, false) == play(seed, &faults, false));
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_and_cancels_survive_each_fault_alone),
        cmocka_unit_test(streams_and_cancels_survive_mixtures_of_faults),
        cmocka_unit_test(a_history_of_streams_and_cancels_is_one_with_its_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
