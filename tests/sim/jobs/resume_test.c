/* Jobs that are killed as a whole and resumed: the journal is a real file, the checkpoint's
 * ledger too. After any number of lives the records alone must tell one clean story. */
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
#include <sys/stat.h>
#include <unistd.h>

enum {
    SEEDS = 60,
    LIVES_MAX = 5,
};

static char dir[64];

static int
make_dir(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/troupe-resume-XXXXXX");
    assert_non_null(mkdtemp(dir));
    return 0;
}

static void
empty_dir(void)
{
    static const char *const names[] = {"journal", "ledger.json", "ledger.json.tmp"};
    char path[128];
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
}

static int
remove_dir(void **state)
{
    (void)state;
    empty_dir();
    return rmdir(dir);
}

/* Tears some bytes off the end of the journal, as a machine that stops does. */
static void
tear(tr_rng *rng)
{
    char path[128];
    struct stat info;
    (void)snprintf(path, sizeof path, "%s/journal", dir);
    assert_int_equal(stat(path, &info), 0);
    char junk[32] = {0};
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    /* The beginning of a frame that was never finished: a length that is longer than what
     * follows. */
    junk[0] = 120;
    assert_int_equal(fwrite(junk, 1, 1 + tr_rng_below(rng, 30), file) > 0, 1);
    assert_int_equal(fclose(file), 0);
}

static void
live_and_die(uint64_t seed, uint64_t *lives)
{
    tr_rng rng = {.key = seed};
    struct sim_job job;
    struct sim_result r = {0};
    sim_job_draw(&job, &sim_scenarios[seed % sim_scenario_count], seed);
    job.run_dir = dir;
    for (int life = 0; life < LIVES_MAX && !r.finished; life++) {
        bool last = life + 1 == LIVES_MAX;
        job.kill_all_ns = last ? 0 : 1 + tr_rng_below(&rng, UINT64_C(3000000000));
        job.resume = life > 0;
        job.disk_step = r.disk_step;
        sim_run(&job, stdout, false, &r);
        assert_int_equal(r.violations, 0);
        (*lives)++;
        if (!r.finished && tr_rng_below(&rng, 3) == 0) {
            tear(&rng);
        }
    }
    assert_true(r.finished);
    tr_audit_options options = {.size = sizeof options};
    troupe_error err = {0};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    int violations = troupe_audit(dir, out, &options, &err);
    assert_int_equal(fclose(out), 0);
    if (violations != 0) {
        fail_msg("seed %" PRIu64 ": %s%s", seed, text, err.text);
    }
    assert_non_null(strstr(text, ", ended"));
    free(text);
    empty_dir();
}

static void
test_a_job_killed_at_any_time_goes_on_with_clean_records(void **state)
{
    (void)state;
    uint64_t lives = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        live_and_die(seed, &lives);
    }
    print_message("%d jobs, %" PRIu64 " lives\n", SEEDS, lives);
    assert_true(lives > 2 * SEEDS);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_a_job_killed_at_any_time_goes_on_with_clean_records, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
