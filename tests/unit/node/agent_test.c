/* A process's copy of the directory: its agent takes news in any order and only its own life's. */
#include "node/run.h"
#include "rig.h"

struct world {
    struct tr_run run;
    struct tr_run_loop loop;
    struct tr_planned planned[2];
    uint64_t versions[2];
    troupe_ctx *from;
    troupe_ref agent;
};

static struct rig rig;
static struct rig_log answers;
static struct world world;

static const troupe_class client = {.name = "client"};
static const troupe_ref first = {.loop = 5, .slot = 1, .incarnation = 0x10001};
static const troupe_ref second = {.loop = 5, .slot = 1, .incarnation = 0x20001};
static const troupe_ref nowhere = {0};

/* Process 1 in its epoch 7; alpha[0] lives in process 2, alpha[1] in it. */
static int
setup(void **state)
{
    (void)state;
    answers.count = 0;
    rig_init(&rig, 0);
    world = (struct world){.planned = {{.replica = 0, .process = 2}, {.replica = 1, .process = 1}}};
    world.run = (struct tr_run){.process = 1,
        .epoch = 7,
        .directory = tr_directory_new(),
        .versions = world.versions,
        .layout = {.planned = world.planned, .planned_count = 2}};
    world.loop = (struct tr_run_loop){.run = &world.run};
    assert_int_equal(tr_directory_add(world.run.directory, "alpha", 2), 0);
    tr_spawn agent = {.type = &tr_agent_class, .role = TR_NO_ROLE, .context = &world.loop};
    assert_int_equal(tr_host_spawn(rig.hosts[0], &agent, &world.agent, NULL), TROUPE_OK);
    world.from = rig_spawn(&rig, 1, &client, NULL, 0);
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    rig_fini(&rig);
    tr_directory_free(world.run.directory);
    return 0;
}

static troupe_status
tell(uint64_t epoch, uint64_t place, uint64_t version, troupe_ref ref)
{
    troupe_args args = {0};
    troupe_args_u64(&args, epoch);
    troupe_args_array(&args, 1);
    troupe_args_array(&args, 7);
    troupe_args_u64(&args, place);
    troupe_args_u64(&args, version);
    troupe_args_u64(&args, ref.node);
    troupe_args_u64(&args, ref.loop);
    troupe_args_u64(&args, ref.slot);
    troupe_args_u64(&args, ref.incarnation);
    troupe_args_str(&args, "a cause");
    assert_int_equal(troupe_call_send(world.from, troupe_to_ref(world.agent), TR_METHOD_PLACES,
                         &args, .on_answer = rig_note, .user = &answers),
        TROUPE_OK);
    rig_settle(&rig);
    return answers.answers[answers.count - 1].status;
}

static troupe_ref
known(uint16_t replica)
{
    troupe_ref ref;
    (void)tr_directory_get(world.run.directory, 0, replica, &ref);
    return ref;
}

static void
in_whatever_order_news_come_the_newest_stands(void **state)
{
    (void)state;
    static const int orders[6][3] = {
        {0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const troupe_ref said[3] = {first, nowhere, second};
    for (uint64_t round = 0; round < 6; round++) {
        for (int i = 0; i < 3; i++) {
            int at = orders[round][i];
            uint64_t version = 10 * round + 1 + (uint64_t)at;
            assert_int_equal(tell(7, 0, version, said[at]), TROUPE_OK);
            assert_int_equal(tell(7, 0, version, said[at]), TROUPE_OK);
        }
        assert_true(troupe_ref_equal(known(0), second));
    }
    assert_int_equal(tell(7, 0, 100, nowhere), TROUPE_OK);
    assert_true(troupe_ref_equal(known(0), nowhere));
}

static void
of_its_own_actors_a_process_knows_best(void **state)
{
    (void)state;
    assert_int_equal(tell(7, 1, 1, first), TROUPE_OK);
    assert_true(troupe_ref_equal(known(1), nowhere));
}

static void
news_for_another_life_are_refused(void **state)
{
    (void)state;
    assert_int_equal(tell(6, 0, 1, first), TROUPE_INVALID);
    assert_int_equal(tell(8, 0, 1, first), TROUPE_INVALID);
    assert_true(troupe_ref_equal(known(0), nowhere));
    assert_int_equal(tell(7, 2, 1, first), TROUPE_BAD_INPUT);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            in_whatever_order_news_come_the_newest_stands, setup, teardown),
        cmocka_unit_test_setup_teardown(of_its_own_actors_a_process_knows_best, setup, teardown),
        cmocka_unit_test_setup_teardown(news_for_another_life_are_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
