/* `troupe sim`: the command line of the simulated jobs. */
#include "sim/sim.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct arguments {
    uint64_t first;
    uint64_t last;
    bool range;
    bool verbose;
    uint64_t nodes;
    uint64_t steps;
    const struct sim_scenario *scenario;
};

static const char usage[] =
    "usage: troupe sim --seed N [--scenario S] [--nodes N] [--steps N] [--trace]\n"
    "       troupe sim --seeds A..B [...]\n"
    "       troupe sim --list\n"
    "Runs a whole job in one thread with virtual time and faults, as a function of its seed.\n"
    "The last line tells events, faults, violations and the hash of everything that happened;\n"
    "the exit code is 1 when there was a violation.\n";

static bool
parse_number(const char *text, uint64_t high, uint64_t *value)
{
    char *end = NULL;
    errno = 0;
    unsigned long long number = text != NULL ? strtoull(text, &end, 10) : 0;
    if (text == NULL || end == text || *end != '\0' || text[0] == '-' || errno != 0 ||
        number > high) {
        return false;
    }
    *value = number;
    return true;
}

static bool
parse_range(const char *text, struct arguments *a)
{
    char first[32];
    const char *dots = text != NULL ? strstr(text, "..") : NULL;
    if (dots == NULL || (size_t)(dots - text) >= sizeof first) {
        return false;
    }
    memcpy(first, text, (size_t)(dots - text));
    first[dots - text] = '\0';
    a->range = true;
    return parse_number(first, INT64_MAX, &a->first) &&
           parse_number(dots + 2, INT64_MAX, &a->last) && a->first <= a->last;
}

static const struct sim_scenario *
find_scenario(const char *name)
{
    for (size_t i = 0; name != NULL && i < sim_scenario_count; i++) {
        if (strcmp(sim_scenarios[i].name, name) == 0) {
            return &sim_scenarios[i];
        }
    }
    return NULL;
}

static int
refuse(const char *option, const char *value)
{
    static const char *const known[] = {
        "--seed", "--seeds", "--scenario", "--nodes", "--steps", "--list", "--trace", "--help"};
    for (size_t i = 0; i < TR_COUNT(known); i++) {
        if (strcmp(option, known[i]) == 0) {
            fprintf(stderr, "troupe sim: %s: \"%s\" is not a value for it; see --help\n", option,
                value != NULL ? value : "");
            return 2;
        }
    }
    const char *near = tr_nearest(option, known, TR_COUNT(known));
    fprintf(stderr, "troupe sim: unknown option %s%s%s\n", option,
        near != NULL ? ", did you mean " : "", near != NULL ? near : "");
    return 2;
}

/* "--key value" and "--key=value". */
static bool
is_option(int *i, int argc, char **argv, const char *key, const char **value)
{
    size_t length = strlen(key);
    if (strncmp(argv[*i], key, length) != 0) {
        return false;
    }
    if (argv[*i][length] == '=') {
        *value = argv[*i] + length + 1;
        return true;
    }
    if (argv[*i][length] != '\0') {
        return false;
    }
    *value = *i + 1 < argc ? argv[++*i] : NULL;
    return true;
}

/* 0, or the exit code of a mistake. */
static int
parse(int argc, char **argv, struct arguments *a)
{
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        const char *value = NULL;
        bool ok = true;
        if (is_option(&i, argc, argv, "--seeds", &value)) {
            ok = parse_range(value, a);
        } else if (is_option(&i, argc, argv, "--seed", &value)) {
            ok = parse_number(value, INT64_MAX, &a->first);
            a->last = a->first;
        } else if (is_option(&i, argc, argv, "--scenario", &value)) {
            a->scenario = find_scenario(value);
            ok = a->scenario != NULL;
        } else if (is_option(&i, argc, argv, "--nodes", &value)) {
            ok = parse_number(value, SIM_SOURCES_MAX, &a->nodes) && a->nodes > 0;
        } else if (is_option(&i, argc, argv, "--steps", &value)) {
            ok = parse_number(value, 100000, &a->steps) && a->steps > 0;
        } else if (strcmp(option, "--trace") == 0) {
            a->verbose = true;
        } else {
            return refuse(option, NULL);
        }
        if (!ok) {
            return refuse(option, value);
        }
    }
    return 0;
}

static void
print_line(const char *what, const struct sim_result *r)
{
    printf("%s: %" PRIu64 " events, %" PRIu64 " faults, %" PRIu64 " violations, hash %016" PRIx64
           "\n",
        what, r->events, r->faults, r->violations, r->hash);
}

static int
run_all(const struct arguments *a)
{
    struct sim_result sum = {0};
    uint64_t failed = 0;
    char what[64];
    for (uint64_t seed = a->first; seed <= a->last; seed++) {
        struct sim_job job;
        struct sim_result r;
        sim_job_draw(&job, a->scenario, seed);
        job.sources = a->nodes > 0 ? (uint32_t)a->nodes : job.sources;
        job.steps = a->steps > 0 ? a->steps : job.steps;
        sim_run_lives(&job, stdout, a->verbose, &r);
        sum.events += r.events;
        sum.faults += r.faults;
        sum.violations += r.violations;
        sum.hash = tr_mix((const uint64_t[]){sum.hash, r.hash}, 2);
        failed += r.violations > 0 ? 1 : 0;
        if (!a->range || r.violations > 0) {
            (void)snprintf(what, sizeof what, "seed %" PRIu64, seed);
            print_line(what, &r);
        }
    }
    if (a->range) {
        printf(
            "%" PRIu64 " of %" PRIu64 " seeds with violations\n", failed, a->last - a->first + 1);
        (void)snprintf(what, sizeof what, "seeds %" PRIu64 "..%" PRIu64, a->first, a->last);
        print_line(what, &sum);
    }
    return sum.violations == 0 ? 0 : 1;
}

int
troupe_sim_main(int argc, char **argv)
{
    struct arguments a = {.first = UINT64_MAX, .scenario = &sim_scenarios[0]};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return 0;
        }
        if (strcmp(argv[i], "--list") == 0) {
            for (size_t k = 0; k < sim_scenario_count; k++) {
                printf("%-14s %s\n", sim_scenarios[k].name, sim_scenarios[k].about);
            }
            return 0;
        }
    }
    int code = parse(argc, argv, &a);
    if (code != 0) {
        return code;
    }
    if (a.first == UINT64_MAX) {
        fputs(usage, stderr);
        return 2;
    }
    return run_all(&a);
}
