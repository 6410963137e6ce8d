/* Simulated jobs: seeds of every scenario keep the laws, and a run is a function of its seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the headers above first. */
#include <cmocka.h>
#include <inttypes.h>
#include <sim/sim.h>

enum {
    SWARM_SEEDS = 200,
    OTHER_SEEDS = 40,
};

static void
run_seeds(const struct sim_scenario *scenario, uint64_t count)
{
    struct sim_result sum = {0};
    for (uint64_t seed = 0; seed < count; seed++) {
        struct sim_job job;
        struct sim_result r;
        sim_job_draw(&job, scenario, seed);
        sim_run_lives(&job, stdout, false, &r);
        sum.events += r.events;
        sum.faults += r.faults;
        sum.violations += r.violations;
    }
    print_message("%s: %" PRIu64 " seeds, %" PRIu64 " events, %" PRIu64 " faults\n", scenario->name,
        count, sum.events, sum.faults);
    assert_int_equal(sum.violations, 0);
}

static void
test_the_swarm_breaks_no_law(void **state)
{
    (void)state;
    run_seeds(&sim_scenarios[0], SWARM_SEEDS);
}

static void
test_no_other_scenario_breaks_a_law(void **state)
{
    (void)state;
    for (size_t i = 1; i < sim_scenario_count; i++) {
        run_seeds(&sim_scenarios[i], OTHER_SEEDS);
    }
}

static void
test_a_run_is_a_function_of_its_seed(void **state)
{
    (void)state;
    for (size_t i = 0; i < sim_scenario_count; i++) {
        struct sim_job job;
        struct sim_result first;
        struct sim_result again;
        struct sim_result other;
        sim_job_draw(&job, &sim_scenarios[i], 77);
        sim_run_lives(&job, NULL, false, &first);
        /* Memory elsewhere, so that an address in a message or in an order would show. */
        char *shift = malloc(12345);
        sim_run_lives(&job, NULL, false, &again);
        free(shift);
        assert_true(first.hash == again.hash);
        assert_int_equal(first.events, again.events);
        sim_job_draw(&job, &sim_scenarios[i], 78);
        sim_run_lives(&job, NULL, false, &other);
        assert_true(first.hash != other.hash);
    }
}

/* Seeds that once failed stay here, with what they had found. */
static void
test_seeds_that_found_something_stay_quiet(void **state)
{
    (void)state;

    static const struct {
        const char *scenario;
        uint64_t seed;
    } found[] = {
        {"quiet", 5},        /* a refusal was taken for a lost message and sent for ever */
        {"sync", 1},         /* weights were let go under a receiver at the end of the job */
        {"kill-policy", 28}, /* a sink killed while it waited for the end could not learn of it */
        {"resume", 4} /* versions went back when the sink died before a resumed run's first */
    };

    for (size_t i = 0; i < TR_COUNT(found); i++) {
        for (size_t k = 0; k < sim_scenario_count; k++) {
            if (strcmp(found[i].scenario, sim_scenarios[k].name) == 0) {
                struct sim_job job;
                struct sim_result r;
                sim_job_draw(&job, &sim_scenarios[k], found[i].seed);
                sim_run_lives(&job, stdout, false, &r);
                assert_int_equal(r.violations, 0);
            }
        }
    }
}

static int
run_main(const char *a, const char *b, const char *c)
{
    char words[4][32];
    char *argv[4] = {words[0], words[1], words[2], words[3]};
    int argc = 0;
    const char *given[4] = {"sim", a, b, c};
    for (int i = 0; i < 4 && given[i] != NULL; i++) {
        (void)snprintf(words[i], sizeof words[i], "%s", given[i]);
        argc++;
    }
    return troupe_sim_main(argc, argv);
}

static void
test_the_command_line_says_what_is_wrong_with_it(void **state)
{
    (void)state;
    assert_int_equal(run_main(NULL, NULL, NULL), 2);
    assert_int_equal(run_main("--sed", "1", NULL), 2);
    assert_int_equal(run_main("--seed", "x", NULL), 2);
    assert_int_equal(run_main("--seeds", "9..3", NULL), 2);
    assert_int_equal(run_main("--seed=1", "--scenario", "none"), 2);
    assert_int_equal(run_main("--list", NULL, NULL), 0);
    assert_int_equal(run_main("--seed=3", "--scenario=quiet", "--nodes=2"), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_swarm_breaks_no_law),
        cmocka_unit_test(test_no_other_scenario_breaks_a_law),
        cmocka_unit_test(test_a_run_is_a_function_of_its_seed),
        cmocka_unit_test(test_seeds_that_found_something_stay_quiet),
        cmocka_unit_test(test_the_command_line_says_what_is_wrong_with_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
