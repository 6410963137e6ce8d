/* A good run for the auditor's tests: the real machines play a short scripted run, their records
 * are kept as copies that a test may change, and are then written out as a run directory with
 * journal, samples.jsonl, metrics.jsonl and two checkpoints. */
#ifndef TEST_STREAM_RUN_FIXTURE_H
#define TEST_STREAM_RUN_FIXTURE_H

#include "cmocka_all.h"

#include <troupe/ext/base.h>
#include <troupe/ext/stream.h>
#include <troupe/ext/weights.h>

enum {
    RUN_BATCH = 2,
    RUN_GROUP = 2,
    RUN_STEPS = 6,
    RUN_RECORDS = 4096,
    RUN_SPANS = 4,
    RUN_LISTED = 8,
    RUN_LINES = 256,
};

/* A record with its own memory, so that it can be changed and moved. */
struct kept {
    troupe_record record;
    troupe_span spans[RUN_SPANS];
    troupe_record_group groups[RUN_LISTED];
    uint32_t attempts[RUN_LISTED][RUN_GROUP];
    uint64_t digests[RUN_LISTED][RUN_GROUP];
    char reason[64];
};

struct line {
    char text[512];
};

struct run {
    struct kept records[RUN_RECORDS];
    size_t count;
    struct line samples[RUN_LINES];
    size_t sample_count;
    struct line metrics[RUN_LINES];
    size_t metric_count;
    troupe_ledger ledgers[RUN_STEPS + 1]; /* of each step */
    bool has_checkpoint[RUN_STEPS + 1];
    uint64_t retried_group; /* its member 1 was sealed by attempt 1 */
    uint64_t mixed_group;   /* its member 0 has three spans */
    char dir[64];
};

/* The whole run to its end; `rolled_back` lets it go back once, from step 4 to the checkpoint of
 * 3. */
void run_play(struct run *run, bool rolled_back);
void run_free(struct run *run);
/* Writes the directory (a new temporary one) and audits it. Prints the auditor's output to the
 * test's log when `expected` (a kind of violation, or NULL for a clean run) is not what it names.
 * Returns how many violations there were. */
int run_audit(struct run *run, const char *expected);
/* The same in two parts, for tests that damage files. */
void run_write(struct run *run);
int run_judge(struct run *run, const char *expected);
/* No violation but of files that are not there. */
void run_judge_gone(struct run *run);

/* The n-th record of a kind, or one about a group; the test fails when it is not there. */
struct kept *run_find(struct run *run, troupe_record_kind kind, size_t n);
struct kept *run_find_group(struct run *run, troupe_record_kind kind, uint64_t group, size_t n);
void run_remove(struct run *run, struct kept *kept);
/* Puts a copy of `what` before `before`. */
void run_insert(struct run *run, const struct kept *before, const struct kept *what);
/* Replaces text in the first line that has it. */
void run_replace(
    struct line *lines, size_t count, const char *in, const char *from, const char *to);

#endif
