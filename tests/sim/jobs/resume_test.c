/* Jobs that are killed as a whole and resumed: the journal is a real file, the checkpoint's ledger
 * too. After any number of lives the records alone must tell one clean story. */
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
    SEEDS = 60,
    LIVES_MAX = 5,
};

static void
test_a_job_killed_at_any_time_goes_on_with_clean_records(void **state)
{
    (void)state;
    uint64_t lives = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct sim_job job;
        struct sim_result r;
        sim_job_draw(&job, &sim_scenarios[seed % sim_scenario_count], seed);
        job.lives = LIVES_MAX;
        job.stop_ns = 0;
        sim_run_lives(&job, stdout, false, &r);
        assert_int_equal(r.violations, 0);
        assert_true(r.finished);
        lives += r.lives;
    }
    print_message("%d jobs, %" PRIu64 " lives\n", SEEDS, lives);
    assert_true(lives > 2 * SEEDS);
}

static void
test_the_lives_of_a_job_are_a_function_of_its_seed(void **state)
{
    (void)state;
    struct sim_job job;
    struct sim_result first;
    struct sim_result again;
    sim_job_draw(&job, &sim_scenarios[0], 5);
    job.lives = LIVES_MAX;
    sim_run_lives(&job, stdout, false, &first);
    sim_run_lives(&job, stdout, false, &again);
    assert_true(first.hash == again.hash);
    assert_int_equal(first.events, again.events);
    assert_int_equal(first.lives, again.lives);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_job_killed_at_any_time_goes_on_with_clean_records),
        cmocka_unit_test(test_the_lives_of_a_job_are_a_function_of_its_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
