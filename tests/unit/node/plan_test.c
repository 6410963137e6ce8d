/* Plans: from a graph, as bytes and back, refused when a byte is wrong; classes found again; what a
 * process is told at its birth. */
#include "check.h"
#include "node/birth.h"

#include <troupe/troupe.h>

static const troupe_class source = {.name = "source", .own_loop = true};
static const troupe_class sink = {.name = "sink"};
static const troupe_class keeper = {.name = "keeper", .own_loop = true};
static const troupe_stream_class streams = {.type = &keeper};

static struct tr_plan *
make(const troupe_class *first)
{
    troupe_graph *g = troupe_graph_new();
    troupe_role *s = troupe_role_add(g, "source", first, .replicas = 3, .restarts = -1,
        .restart_window_s = 12.5, .backoff_ms = 7, .memory = 123456789, .mailbox = 5,
        .silent_s = 2.5, .config = "{\"a\": 1}", .place = "gpu", .devices = 0.5, .cpus = 2);
    troupe_role *k = troupe_role_add(g, "sink", &sink);
    troupe_stream_add(g, "samples", .source = s, .sink = k, .max_lag = 2);
    troupe_graph_name(g, "out/run");
    troupe_graph_logs(g, "/out/run/log");
    troupe_run_options options = {
        .size = sizeof options, .streams = &streams, .grace_ns = 77, .pool_loops = 3};
    struct tr_plan *plan = NULL;
    troupe_error err;
    if (tr_plan_of_graph(g, &options, &plan, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    troupe_graph_free(g);
    tr_free(plan->argv);
    plan->argc = 2;
    plan->argv = tr_zalloc(3, sizeof *plan->argv);
    plan->argv[0] = tr_strdup("program");
    plan->argv[1] = tr_strdup("--x=\xc3\xa4");
    return plan;
}

static void
a_plan_survives_its_bytes(void **state)
{
    (void)state;
    struct tr_plan *plan = make(&source);
    struct tr_plan *read = NULL;
    troupe_error err;
    tr_buf bytes = {0}, again = {0};
    if (tr_plan_locate(plan, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    tr_plan_write(plan, &bytes);
    if (tr_plan_read(bytes.data, bytes.size, &read, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    assert_string_equal(read->title, "out/run");
    assert_string_equal(read->logs, "/out/run/log");
    assert_string_equal(read->argv[1], "--x=\xc3\xa4");
    assert_null(read->argv[2]);
    assert_int_equal(read->grace_ns, 77);
    assert_int_equal(read->pool_loops, 3);
    assert_int_equal(read->role_count, 3);
    const struct tr_plan_role *role = &read->roles[0];
    assert_string_equal(role->name, "source");
    assert_string_equal(role->config, "{\"a\": 1}");
    assert_string_equal(role->place, "gpu");
    assert_int_equal(role->restarts, -1);
    assert_true(role->restart_window_s == 12.5 && role->devices == 0.5);
    assert_int_equal(role->memory, 123456789);
    assert_int_equal(role->silent_ns, 2500000000);
    assert_int_equal(read->roles[1].silent_ns, 60000000000);
    assert_true(role->own_loop && !role->system && read->roles[2].system);
    tr_plan_write(read, &again);
    assert_int_equal(again.size, bytes.size);
    assert_memory_equal(again.data, bytes.data, bytes.size);
    assert_null(role->type);
    assert_int_equal(tr_plan_resolve(read, &err), TROUPE_OK);
    assert_ptr_equal(read->roles[0].type, &source);
    assert_ptr_equal(read->roles[2].type, &keeper);
    tr_buf_fini(&bytes);
    tr_buf_fini(&again);
    tr_plan_free(plan);
    tr_plan_free(read);
}

static void
no_changed_byte_and_no_shorter_plan_is_read(void **state)
{
    (void)state;
    struct tr_plan *plan = make(&source);
    struct tr_plan *read = NULL;
    tr_buf bytes = {0};
    tr_plan_write(plan, &bytes);
    for (size_t i = 0; i < bytes.size; i++) {
        bytes.data[i] = (char)(bytes.data[i] ^ 0x20);
        assert_int_equal(tr_plan_read(bytes.data, bytes.size, &read, NULL), TROUPE_CORRUPT);
        bytes.data[i] = (char)(bytes.data[i] ^ 0x20);
        assert_int_equal(tr_plan_read(bytes.data, i, &read, NULL), TROUPE_CORRUPT);
    }
    tr_buf_fini(&bytes);
    tr_plan_free(plan);
}

static void
a_class_that_no_other_process_has_is_refused(void **state)
{
    (void)state;
    troupe_class local = source;
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    struct tr_plan *plan = make(&local);
    assert_int_equal(tr_plan_locate(plan, &err), TROUPE_INVALID);
    assert_non_null(strstr(err.text, "role source: its class source is neither in the program"));
    assert_non_null(strstr(err.text, "--colocate"));
    tr_plan_free(plan);
}

static void
a_class_that_is_another_one_is_refused(void **state)
{
    (void)state;
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    struct tr_plan *plan = make(&source);
    assert_int_equal(tr_plan_locate(plan, &err), TROUPE_OK);
    uint64_t right = plan->roles[0].where.offset;
    plan->roles[0].where.offset = plan->roles[1].where.offset;
    assert_int_equal(tr_plan_resolve(plan, &err), TROUPE_CORRUPT);
    assert_non_null(strstr(err.text, "role source: its class source is not at offset"));
    plan->roles[0].where.offset = right + 1;
    assert_int_equal(tr_plan_resolve(plan, &err), TROUPE_CORRUPT);
    plan->roles[0].where.offset = UINT64_MAX - 7;
    assert_int_equal(tr_plan_resolve(plan, &err), TROUPE_CORRUPT);
    plan->roles[0].where.offset = right;
    plan->roles[0].own_loop = false;
    assert_int_equal(tr_plan_resolve(plan, &err), TROUPE_CORRUPT);
    tr_plan_free(plan);
}

static void
only_streams_learn_the_life_of_the_node(void **state)
{
    (void)state;
    struct tr_plan *plan = make(&source);
    tr_plan_set_life(plan, 3);
    assert_string_equal(plan->roles[0].config, "{\"a\": 1}");
    assert_non_null(strstr(plan->roles[2].config, "\"life\":3"));
    tr_plan_free(plan);
}

static void
a_birth_survives_its_text_and_nothing_else_is_one(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "1", "x", "1 all 0 1 1 1 0 1", "2 node 0 1 1 1 0 1",
        "1 node 0 0 1 1 0 1", "1 node 0 1 101 1 0 1", "1 node 0 1 1 0 0 1", "1 node 0 1 1 1 0",
        "1 node 0 1 1 1 0 1 ", "1 worker 256 1 1 1 0 1", "1 worker 2 65536 1 1 0 1",
        "1 driver 1 1 1 1 0 x"};
    struct tr_birth birth = {.kind = TR_PROCESS_WORKER,
        .process = 17,
        .epoch = 3001,
        .node_epoch = 1,
        .driver_epoch = 2,
        .slot = 9,
        .peer = 4711};
    struct tr_birth read;
    char text[TR_BIRTH_TEXT_MAX];
    tr_birth_write(&birth, text);
    assert_true(tr_birth_read(strchr(text, '=') + 1, &read));
    assert_memory_equal(&read, &birth, sizeof birth);
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        if (tr_birth_read(bad[i], &read)) {
            fail_msg("\"%s\" was taken", bad[i]);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_survives_its_bytes),
        cmocka_unit_test(no_changed_byte_and_no_shorter_plan_is_read),
        cmocka_unit_test(a_class_that_no_other_process_has_is_refused),
        cmocka_unit_test(a_class_that_is_another_one_is_refused),
        cmocka_unit_test(only_streams_learn_the_life_of_the_node),
        cmocka_unit_test(a_birth_survives_its_text_and_nothing_else_is_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
