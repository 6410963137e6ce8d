/* Shared by the files of cases: classes, one rig, the answers that came. */
#ifndef TR_TESTS_CASES_H
#define TR_TESTS_CASES_H

#include "server.h"

extern struct rig rig;
extern struct rig_log answers;

int cases_setup(void **state);
int cases_teardown(void **state);
#define TEST(name) cmocka_unit_test_setup_teardown(name, cases_setup, cases_teardown)

/* Methods: count (1, 2, 3, ...). */
extern const troupe_class counter;

/* Methods: fetch (group io, at most 2; keeps the call), score (group compute, at most 1; answers
 * 7), plain (no group; answers 8). */
struct grouped {
    int fetching;
    troupe_call *kept[16];
};

extern const troupe_class grouped;
void plain(troupe_ctx *ctx, troupe_call *call);

/* The node's actor as far as it keeps names and states. */
extern const troupe_class keeper_node;

/* Calls without arguments; the answers are noted. */
troupe_status call(troupe_ctx *ctx, troupe_target to, const char *method);
troupe_status call_retried(troupe_ctx *ctx, troupe_target to, const char *method);
troupe_status call_limited(troupe_ctx *ctx, troupe_target to, uint32_t pending_max); /* "count" */
/* The same, with the call's name. */
troupe_call_id call_named(troupe_ctx *ctx, troupe_target to, const char *method);

/* Waits of a host of a kind whose text holds `words`; each is checked to have who and a limit. */
int count_waits(int host, tr_wait_kind kind, const char *words);

#endif
