/* The probes, the world around the coordinator, and the usual messages to it. */
#include "coordinator_rig.h"

#include <troupe/ext/ledger.h>
#include <troupe/ext/protocol.h>
#include <troupe/ext/wire.h>
#include <troupe/graph.h>
#include <troupe/sample.h>

#include <stdio.h>
#include <string.h>

struct rig rig;

/* --- probes ---------------------------------------------------------------------------------- */

static struct asked *
note(const char *method)
{
    assert_true(rig.asked_count < ASKED_MAX);
    struct asked *a = &rig.asked[rig.asked_count++];
    *a = (struct asked){0};
    (void)snprintf(a->method, sizeof a->method, "%s", method);
    return a;
}

static void
probe_lease(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    struct asked *a = note("lease");
    a->group = troupe_arg_u64(call, 1);
    a->attempt = troupe_arg_u64(call, 2);
    a->members = troupe_arg_u64(call, 4);
    if (rig.lease_status != TROUPE_OK) {
        (void)troupe_reply_error(call, rig.lease_status, "as the test says");
    } else {
        (void)troupe_reply(call, NULL);
    }
}

static void
probe_cancel(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    note("cancel")->group = troupe_arg_u64(call, 1);
    (void)troupe_reply(call, NULL);
}

static void
probe_update(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    note("update")->version = troupe_arg_u64(call, 0);
    (void)troupe_reply(call, NULL);
}

static void
probe_score(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    note("score")->group = troupe_arg_u64(call, 3);
    if (rig.reward_status != TROUPE_OK) {
        (void)troupe_reply_error(call, rig.reward_status, "as the test says");
    } else {
        (void)troupe_reply_f64(call, rig.reward);
    }
}

static void
probe_retired(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    note("retired")->group = troupe_arg_u64(call, 1);
    (void)troupe_reply(call, NULL);
}

/* The world's time moves from event to event; a beat keeps the steps small. */
static void
beat(troupe_ctx *ctx, void *user)
{
    assert_int_equal(troupe_timer_start(ctx, SECOND / 200, beat, user, NULL), TROUPE_OK);
}

static void
probe_start(troupe_ctx *ctx)
{
    beat(ctx, NULL);
}

static const troupe_class probe = {.name = "probe",
    .start = probe_start,
    .methods = {{TROUPE_METHOD_LEASE, probe_lease}, {TROUPE_METHOD_CANCEL, probe_cancel},
        {TROUPE_METHOD_UPDATE, probe_update}, {TROUPE_METHOD_SCORE, probe_score},
        {TROUPE_METHOD_RETIRED, probe_retired}}};

/* --- the rig --------------------------------------------------------------------------------- */

static const char *const roles[] = {"samples", "policy", "rollout", "reward"};

static void
on_record(void *self, const troupe_record *record, uint64_t realtime_ns)
{
    (void)self;
    (void)realtime_ns;
    rig.records[record->kind]++;
}

static void
populate(void *self, tr_host *host, int loop, uint32_t epoch)
{
    (void)self;
    (void)epoch;
    tr_spawn spawn = {.type = loop == 0 ? troupe_coordinator()->type : &probe,
        .role = (uint16_t)tr_directory_find(rig.directory, roles[loop]),
        .config = loop == 0 ? rig.config : NULL,
        .context = loop == 0 ? (void *)&rig.hooks : NULL};
    troupe_status status = tr_host_spawn(host, &spawn, NULL, &rig.spawn_error);
    if (loop == 0) {
        rig.spawn_status = status;
    }
}

static void
quiet(void *self, const char *line)
{
    (void)self;
    (void)line;
}

static void
ended(void *self, uint16_t role, uint16_t replica, troupe_ref ref, troupe_status status,
    const char *text)
{
    (void)self;
    (void)role;
    (void)replica;
    (void)ref;
    (void)status;
    (void)text;
}

/* `inner` is the program's own object in the config, `outer` what the graph adds to it. */
void
make_rig(const char *inner, const char *outer)
{
    memset(&rig, 0, sizeof rig);
    rig.reward = 0.5;
    bool sized = strstr(inner, "groups_per_step") != NULL;
    (void)snprintf(rig.config, sizeof rig.config,
        "{\"stream\":\"samples\",\"source\":\"rollout\",\"stages\":[\"reward\"],\"sink\":"
        "\"policy\","
        "\"mean_lag\":1,\"weights\":[{\"name\":\"w\",\"from\":\"policy\",\"to\":\"rollout\"}],"
        "%s\"config\":{\"rows\":10,%s\"lease_s\":5,\"stage_s\":2%s}}",
        outer, sized ? "" : "\"groups_per_step\":1,\"group_size\":2,", inner);
    rig.directory = tr_directory_new();
    for (size_t i = 0; i < TR_COUNT(roles); i++) {
        (void)tr_directory_add(rig.directory, roles[i], 1);
    }
    rig.store = troupe_store_new(1 << 20);
    rig.hooks = (tr_coordinator_hooks){.record = on_record};
    tr_world_options options = {.seed = 1, .directory = rig.directory, .store = rig.store};
    rig.world = tr_world_new(&options);
    for (size_t i = 0; i < TR_COUNT(roles); i++) {
        tr_world_loop loop = {.populate = populate, .events = {.ended = ended, .log = quiet}};
        (void)tr_world_add(rig.world, &loop);
    }
    tr_world_start(rig.world);
}

int
drop_rig(void **state)
{
    (void)state;
    troupe_store_stats stats;
    for (int i = 0; rig.world != NULL && i < tr_world_loops(rig.world); i++) {
        tr_world_kill(rig.world, i);
    }
    if (troupe_object_word(rig.weights) != 0) {
        (void)troupe_object_release(rig.store, rig.weights);
    }
    troupe_store_get_stats(rig.store, &stats);
    tr_world_free(rig.world);
    troupe_store_free(rig.store);
    tr_directory_free(rig.directory);
    assert_int_equal(stats.objects, 0);
    return 0;
}

static troupe_ctx *
actor_of(int loop)
{
    troupe_ref ref;
    assert_true(tr_directory_get(
        rig.directory, (uint16_t)tr_directory_find(rig.directory, roles[loop]), 0, &ref));
    return tr_host_actor(tr_world_host(rig.world, loop), ref);
}

static void
on_answer(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct answer *a = user;
    (void)ctx;
    a->there = true;
    a->status = troupe_answer_status(answer);
    (void)snprintf(a->text, sizeof a->text, "%s", troupe_answer_text(answer));
    tr_reader in;
    uint32_t count = 0;
    if (a->status == TROUPE_OK && troupe_arg_count(answer) > 16) { /* of `open` */
        (void)snprintf(a->json, sizeof a->json, "%s", troupe_arg_str(answer, 3));
        a->published = troupe_arg_bool(answer, 4);
        a->mirrored = !troupe_arg_is_nil(answer, 5);
        a->voided = troupe_arg_bool(answer, 7);
        a->ended = troupe_arg_bool(answer, 11);
        a->restarts = troupe_arg_u64(answer, 14);
        if (troupe_arg_reader(answer, 8, &in) && tr_read_array(&in, &count) && count == 7) {
            (void)(tr_read_u64(&in, &a->trained) && tr_read_u64(&in, &a->trained)); /* the 2nd */
        }
        (void)snprintf(a->text, sizeof a->text, "%s", troupe_arg_str(answer, 16));
    }
    if (a->status == TROUPE_OK && troupe_arg_count(answer) > 0 &&
        troupe_arg_reader(answer, 0, &in) && tr_reader_peek(&in) == TR_WIRE_INT) {
        for (int i = 0; i < troupe_arg_count(answer) && i < 3; i++) {
            tr_reader one;
            if (troupe_arg_reader(answer, i, &one) && tr_reader_peek(&one) == TR_WIRE_INT) {
                a->words[i] = troupe_arg_u64(answer, i);
            } else if (troupe_arg_reader(answer, i, &one) && tr_read_array(&one, &count)) {
                a->batch = count;
            }
        }
    } else if (a->status == TROUPE_OK && troupe_arg_count(answer) > 1) {
        (void)snprintf(a->json, sizeof a->json, "%s",
            troupe_arg_is_nil(answer, 1) ? "" : troupe_arg_str(answer, 1));
    } else if (a->status == TROUPE_OK && troupe_arg_count(answer) == 1) {
        tr_reader one;
        if (troupe_arg_reader(answer, 0, &one) && tr_reader_peek(&one) == TR_WIRE_STR) {
            (void)snprintf(a->json, sizeof a->json, "%s", troupe_arg_str(answer, 0));
        }
    }
}

static bool
is_there(void *user)
{
    return ((struct answer *)user)->there;
}

/* Sends a call from a role's probe; the world runs for at most a second or until it is answered. */
struct answer *
call(int loop, const char *method, troupe_args *args)
{
    assert_true(rig.answer_count < CALLS_MAX);
    struct answer *a = &rig.answers[rig.answer_count++];
    troupe_ctx *ctx = actor_of(loop);
    assert_int_equal(troupe_call_send(ctx, troupe_to(ctx, "samples", 0), method, args,
                         .on_answer = on_answer, .user = a),
        TROUPE_OK);
    tr_host_wake(tr_world_host(rig.world, loop));
    (void)tr_world_run(rig.world, tr_world_now_ns(rig.world) + SECOND, is_there, a);
    return a;
}

void
let_time_pass(uint64_t ns)
{
    (void)tr_world_run(rig.world, tr_world_now_ns(rig.world) + ns, NULL, NULL);
}

size_t
count_asked(const char *method)
{
    size_t count = 0;
    for (size_t i = 0; i < rig.asked_count; i++) {
        count += strcmp(rig.asked[i].method, method) == 0;
    }
    return count;
}

/* --- the usual messages ---------------------------------------------------------------------- */

struct answer *
say_source(uint64_t capacity)
{
    troupe_args args = {0};
    troupe_args_u64(&args, capacity);
    return call(2, "source", &args);
}

struct answer *
say_publish(uint64_t version, uint64_t step)
{
    if (troupe_object_word(rig.weights) == 0) {
        void *bytes = NULL;
        assert_int_equal(troupe_object_create(rig.store, 8, &rig.weights, &bytes), TROUPE_OK);
        memset(bytes, 0, 8);
        assert_int_equal(troupe_object_seal(rig.store, rig.weights), TROUPE_OK);
    }
    troupe_args args = {0};
    troupe_args_u64(&args, version);
    troupe_args_u64(&args, step);
    troupe_args_object(&args, rig.weights);
    troupe_args_u64(&args, 9);
    return call(1, "publish", &args);
}

struct answer *
say_two(int loop, const char *method, uint64_t a, uint64_t b)
{
    troupe_args args = {0};
    troupe_args_u64(&args, a);
    troupe_args_u64(&args, b);
    return call(loop, method, &args);
}

struct answer *
say_sealed(uint64_t group, uint64_t member, uint64_t attempt, uint64_t version)
{
    int32_t ids[UNITS] = {(int32_t)group, (int32_t)member, (int32_t)attempt};
    troupe_named_tensor tensor = {
        "tokens", {.type = TROUPE_TENSOR_I32, .rank = 1, .shape = {UNITS}, .data = ids}};
    troupe_span span = {0, version};
    troupe_sample_spec spec = {.tensors = &tensor,
        .tensor_count = 1,
        .units = UNITS,
        .spans = &span,
        .span_count = 1,
        .finish = "stop"};
    troupe_object object;
    uint64_t digest = 0;
    assert_int_equal(troupe_sample_seal(rig.store, &spec, &object, &digest, NULL), TROUPE_OK);
    rig.digests[group][member] = digest;
    troupe_args args = {0};
    troupe_args_u64(&args, 0);
    troupe_args_u64(&args, group);
    troupe_args_u64(&args, member);
    troupe_args_u64(&args, attempt);
    troupe_args_object(&args, object);
    troupe_args_u64(&args, digest);
    troupe_args_u64(&args, troupe_ids_digest(ids, UNITS));
    troupe_args_u64(&args, UNITS);
    troupe_args_u64(&args, version);
    troupe_args_array(&args, 1);
    troupe_args_array(&args, 2);
    troupe_args_u64(&args, 0);
    troupe_args_u64(&args, version);
    struct answer *a = call(2, "sealed", &args);
    assert_int_equal(troupe_object_release(rig.store, object), TROUPE_OK);
    return a;
}

struct answer *
say_commit(uint64_t step, uint64_t group, const char *verdict, uint64_t change)
{
    return say_commit_mirrored(step, group, verdict, change, (troupe_object){0});
}

struct answer *
say_commit_mirrored(
    uint64_t step, uint64_t group, const char *verdict, uint64_t change, troupe_object mirror)
{
    troupe_args args = {0};
    troupe_args_u64(&args, step);
    troupe_args_array(&args, 1);
    troupe_args_array(&args, 4);
    troupe_args_u64(&args, group);
    troupe_args_str(&args, verdict);
    troupe_args_nil(&args);
    troupe_args_array(&args, 2);
    troupe_args_u64(&args, rig.digests[group][0]);
    troupe_args_u64(&args, rig.digests[group][1] ^ change);
    troupe_args_bool(&args, true);
    if (troupe_object_word(mirror) != 0) {
        troupe_args_object(&args, mirror);
        troupe_args_u64(&args, 55);
    }
    return call(1, "commit", &args);
}

/* Up to version 0 applied, both groups leased. */
void
begin(const char *inner, const char *outer)
{
    make_rig(inner, outer);
    if (rig.spawn_status != TROUPE_OK) {
        fail_msg("%s", rig.spawn_error.text);
    }
    assert_int_equal(say_source(8)->status, TROUPE_OK);
    struct answer *open = call(1, "open", NULL);
    assert_int_equal(open->status, TROUPE_OK);
    assert_int_equal(open->words[0], 0);
    assert_int_equal(open->words[2], 0);
    assert_int_equal(say_publish(0, 0)->status, TROUPE_OK);
    let_time_pass(SECOND);
    assert_int_equal(count_asked("update"), 1);
    assert_int_equal(count_asked("lease"), 2);
}

void
finish_group(uint64_t group, uint64_t version)
{
    assert_int_equal(say_sealed(group, 0, 0, version)->status, TROUPE_OK);
    assert_int_equal(say_sealed(group, 1, 0, version)->status, TROUPE_OK);
    let_time_pass(SECOND / 10);
}
