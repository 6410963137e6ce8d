/* When a lost replica is made anew: a table of deaths and what follows each. */
#include "check.h"
#include "node/restart.h"

#include <troupe/ext/base.h>

#define MS UINT64_C(1000000)
#define S  UINT64_C(1000000000)

struct death {
    uint64_t at_ns;
    int replica;
    int64_t pause_ms; /* -1: the role has used up what it may lose */
    int left;         /* after it */
};

struct story {
    const char *name;
    struct tr_restart_limits limits;
    struct death deaths[8];
    int count;
};

static const struct story stories[] = {
    {"none", {0, 60 * S, 100 * MS}, {{1 * S, 0, -1, 0}}, 1},
    {"one", {1, 60 * S, 100 * MS}, {{1 * S, 0, 100, 0}, {2 * S, 0, -1, 0}}, 2},
    {"one for all replicas", {1, 60 * S, 100 * MS}, {{1 * S, 0, 100, 0}, {2 * S, 1, -1, 0}}, 2},
    {"a window later", {1, 60 * S, 100 * MS}, {{1 * S, 0, 100, 0}, {61 * S, 1, 100, 0}}, 2},
    {"just within the window", {1, 60 * S, 100 * MS}, {{1 * S, 0, 100, 0}, {61 * S - 1, 1, -1, 0}},
        2},
    {"doubling for one replica, not for another", {-1, 60 * S, 100 * MS},
        {{1 * S, 0, 100, -1}, {2 * S, 0, 200, -1}, {3 * S, 1, 100, -1}, {4 * S, 0, 400, -1}}, 4},
    {"up to ten seconds", {-1, 600 * S, 4000 * MS},
        {{1 * S, 0, 4000, -1}, {2 * S, 0, 8000, -1}, {3 * S, 0, 10000, -1}, {4 * S, 0, 10000, -1}},
        4},
    {"a long first pause is cut", {-1, 60 * S, 30000 * MS}, {{1 * S, 0, 10000, -1}}, 1},
    {"up for ten pauses after its restart", {-1, 10 * S, 100 * MS},
        {{1 * S, 0, 100, -1}, {2 * S, 0, 200, -1}, {4 * S + 200 * MS, 0, 100, -1}}, 3},
    {"not quite for ten pauses", {-1, 10 * S, 100 * MS},
        {{1 * S, 0, 100, -1}, {2 * S, 0, 200, -1}, {4 * S + 199 * MS, 0, 400, -1}}, 3},
    {"up for a second after a short pause", {-1, 10 * S, 1 * MS},
        {{1 * S, 0, 1, -1}, {2 * S, 0, 2, -1}, {3 * S + 2 * MS, 0, 1, -1}}, 3},
    {"up for ten seconds after a long pause", {-1, 20 * S, 4000 * MS},
        {{1 * S, 0, 4000, -1}, {14 * S, 0, 8000, -1}, {32 * S, 0, 4000, -1}}, 3},
    {"the ring turns", {3, 10 * S, 1 * MS},
        {{1 * S, 0, 1, 2}, {2 * S, 1, 1, 1}, {3 * S, 2, 1, 0}, {11 * S, 3, 1, 0},
            {11 * S + 1, 4, -1, 0}, {12 * S, 5, 1, 0}, {40 * S, 6, 1, 2}},
        7},
};

static void
every_story_goes_as_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(stories); i++) {
        const struct story *story = &stories[i];
        struct tr_restart_role role = {0};
        struct tr_restart_replica replicas[8] = {0};
        for (int k = 0; k < story->count; k++) {
            const struct death *death = &story->deaths[k];
            uint64_t pause_ns = 0;
            bool again = tr_restart_decide(
                &story->limits, &role, &replicas[death->replica], death->at_ns, &pause_ns);
            int left = tr_restart_left(&story->limits, &role, death->at_ns);
            if (again != (death->pause_ms >= 0) || left != death->left ||
                (again && pause_ns != (uint64_t)death->pause_ms * MS)) {
                fail_msg("%s, death %d: again %d, pause %llu ms, left %d", story->name, k, again,
                    (unsigned long long)(pause_ns / MS), left);
            }
        }
        tr_restart_role_fini(&role);
    }
}

/* The pauses of one that dies of its start leave fewer deaths in a window than its role may have.
 */
static void
who_dies_of_its_start_is_given_up(void **state)
{
    (void)state;
    const struct tr_restart_limits limits = {20, 60 * S, 100 * MS};
    struct tr_restart_role role = {0};
    struct tr_restart_replica replica = {0}, other = {0};
    uint64_t now = 1 * S, pause = 0;
    int restarts = 0;
    while (restarts < 100 && tr_restart_decide(&limits, &role, &replica, now, &pause)) {
        now += pause + 50 * MS;
        restarts++;
    }
    assert_int_equal(restarts, TR_IN_A_ROW_MAX);
    assert_true(tr_restart_left(&limits, &role, now) > 0);
    assert_true(tr_restart_decide(&limits, &role, &other, now, &pause));
    tr_restart_role_fini(&role);
}

/* However many die, never more than the limit come back within any window. */
static void
no_window_has_more_restarts_than_allowed(void **state)
{
    (void)state;
    tr_rng rng = {.key = 11};
    for (int round = 0; round < 50; round++) {
        struct tr_restart_limits limits = {
            (int)tr_rng_below(&rng, 6) + 1, (1 + tr_rng_below(&rng, 20)) * S, 1 * MS};
        struct tr_restart_role role = {0};
        struct tr_restart_replica replica = {0};
        uint64_t times[400];
        size_t count = 0;
        uint64_t now = 0;
        for (int i = 0; i < 400; i++) {
            uint64_t pause = 0;
            now += tr_rng_below(&rng, 5 * S);
            if (tr_restart_decide(&limits, &role, &replica, now, &pause)) {
                times[count++] = now;
                size_t first = count - 1;
                while (first > 0 && now - times[first - 1] < limits.window_ns) {
                    first--;
                }
                assert_true(count - first <= (size_t)limits.restarts);
            }
        }
        assert_true(count > 0);
        tr_restart_role_fini(&role);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_story_goes_as_told),
        cmocka_unit_test(who_dies_of_its_start_is_given_up),
        cmocka_unit_test(no_window_has_more_restarts_than_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
