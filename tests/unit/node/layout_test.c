/* Where everything lives: colocated, and in processes of their own. */
#include "check.h"
#include "node/plan.h"

#include <troupe/troupe.h>

static const troupe_class alone = {.name = "alone", .own_loop = true};
static const troupe_class pooled = {.name = "pooled"};
static const troupe_class keeper = {.name = "keeper"};
static const troupe_stream_class streams = {.type = &keeper};

static troupe_status
lay_out(troupe_graph *g, bool colocate, struct tr_plan **plan, struct tr_layout *layout)
{
    troupe_run_options options = {.size = sizeof options, .streams = &streams, .pool_loops = 2};
    assert_int_equal(tr_plan_of_graph(g, &options, plan, NULL), TROUPE_OK);
    troupe_graph_free(g);
    return tr_layout_make(*plan, colocate, layout, NULL);
}

static troupe_graph *
two_roles_and_a_stream(const char *place)
{
    troupe_graph *g = troupe_graph_new();
    troupe_role *a = troupe_role_add(g, "a", &alone, .replicas = 2, .place = place, .memory = 100);
    troupe_role *b = troupe_role_add(g, "b", &pooled, .replicas = 3, .place = place, .memory = 50);
    troupe_stream_add(g, "s", .source = b, .sink = a, .max_lag = 1);
    return g;
}

/* Loops are numbered without a gap, each belongs to the process that says so, and no actor of the
 * graph is on a service loop. */
static void
check_whole(const struct tr_layout *l)
{
    uint32_t next = 0;
    for (uint32_t p = 0; p < l->process_count; p++) {
        assert_int_equal(l->processes[p].first_loop, next);
        for (uint32_t i = 0; i < l->processes[p].loop_count; i++) {
            assert_int_equal(l->loops[next + i].process, p);
        }
        next += l->processes[p].loop_count;
    }
    assert_int_equal(next, l->loop_count);
    for (uint32_t i = 0; i < l->planned_count; i++) {
        const struct tr_planned *planned = &l->planned[i];
        assert_int_equal(l->loops[planned->loop].process, planned->process);
        assert_int_not_equal(planned->loop, l->processes[planned->process].first_loop);
        for (uint32_t k = 0; k < i; k++) {
            bool same = l->planned[k].loop == planned->loop;
            assert_true(!same || (!planned->spec->own_loop && !l->planned[k].spec->own_loop));
        }
    }
}

static void
colocated_everything_is_in_one(void **state)
{
    (void)state;
    struct tr_plan *plan = NULL;
    struct tr_layout l;
    assert_int_equal(lay_out(two_roles_and_a_stream(NULL), true, &plan, &l), TROUPE_OK);
    check_whole(&l);
    assert_int_equal(l.process_count, 1);
    assert_int_equal(l.loop_count, 1 + 2 + 2);
    /* Roles in order, then streams; own loops after the shared ones, which are taken in turn. */
    static const uint16_t loops[] = {3, 4, 1, 2, 1, 2};
    for (uint32_t i = 0; i < l.planned_count; i++) {
        assert_int_equal(l.planned[i].loop, loops[i]);
    }
    tr_layout_fini(&l);
    tr_plan_free(plan);
}

static void
apart_each_replica_has_a_process(void **state)
{
    (void)state;
    struct tr_plan *plan = NULL;
    struct tr_layout l;
    assert_int_equal(lay_out(two_roles_and_a_stream(NULL), false, &plan, &l), TROUPE_OK);
    check_whole(&l);
    assert_int_equal(l.process_count, 2 + 5);
    assert_int_equal(l.processes[0].loop_count, 2); /* the stream's actor has a loop of its own */
    assert_int_equal(l.processes[1].loop_count, 1);
    assert_string_equal(l.processes[2].name, "a[0]");
    assert_string_equal(l.processes[6].name, "b[2]");
    assert_int_equal(l.processes[6].loop_count, 2);
    assert_int_equal(l.processes[6].memory, 50);
    assert_int_equal(l.planned[5].process, 0);
    tr_layout_fini(&l);
    tr_plan_free(plan);
}

static void
a_place_is_shared_by_replicas_of_one_number(void **state)
{
    (void)state;
    struct tr_plan *plan = NULL;
    struct tr_layout l;
    assert_int_equal(lay_out(two_roles_and_a_stream("gpu"), false, &plan, &l), TROUPE_OK);
    check_whole(&l);
    assert_int_equal(l.process_count, 2 + 3);
    assert_string_equal(l.processes[2].name, "gpu[0]");
    assert_int_equal(l.processes[2].actors, 2);
    assert_int_equal(l.processes[2].memory, 150);
    assert_int_equal(l.processes[2].loop_count, 3);
    assert_int_equal(l.processes[4].actors, 1);
    assert_int_equal(l.planned[1].process, l.planned[3].process);
    tr_layout_fini(&l);
    tr_plan_free(plan);
}

static void
one_without_a_ceiling_leaves_the_process_without(void **state)
{
    (void)state;
    struct tr_plan *plan = NULL;
    struct tr_layout l;
    troupe_graph *g = troupe_graph_new();
    troupe_role_add(g, "a", &alone, .place = "x", .memory = 100, .silent_s = 90);
    troupe_role_add(g, "b", &alone, .place = "x");
    troupe_role_add(g, "c", &alone, .place = "x", .memory = 100);
    assert_int_equal(lay_out(g, false, &plan, &l), TROUPE_OK);
    assert_int_equal(l.processes[2].memory, 0);
    assert_int_equal(l.processes[2].silent_ns, 90000000000);
    tr_layout_fini(&l);
    tr_plan_free(plan);
}

static void
too_many_processes_or_threads_are_refused(void **state)
{
    (void)state;
    struct tr_plan *plan = NULL;
    struct tr_layout l;
    troupe_graph *g = troupe_graph_new();
    troupe_role_add(g, "a", &pooled, .replicas = TR_PROCESSES_MAX - 2);
    assert_int_equal(lay_out(g, false, &plan, &l), TROUPE_OK);
    tr_layout_fini(&l);
    tr_plan_free(plan);
    g = troupe_graph_new();
    troupe_role_add(g, "a", &pooled, .replicas = TR_PROCESSES_MAX - 1);
    assert_int_equal(lay_out(g, false, &plan, &l), TROUPE_BAD_INPUT);
    tr_plan_free(plan);
    g = troupe_graph_new();
    troupe_role_add(g, "a", &alone, .replicas = 4096);
    troupe_role_add(g, "b", &alone, .replicas = 4096);
    assert_int_equal(lay_out(g, true, &plan, &l), TROUPE_BAD_INPUT);
    tr_plan_free(plan);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(colocated_everything_is_in_one),
        cmocka_unit_test(apart_each_replica_has_a_process),
        cmocka_unit_test(a_place_is_shared_by_replicas_of_one_number),
        cmocka_unit_test(one_without_a_ceiling_leaves_the_process_without),
        cmocka_unit_test(too_many_processes_or_threads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
