/* A class to call and one to call from, for the tests of calls. */
#ifndef TR_TESTS_SERVER_H
#define TR_TESTS_SERVER_H

#include "rig.h"

struct server {
    int runs;
    int64_t seen[4096];
    troupe_call *kept;
};

/* Methods: add(a, b); keep (the call, in the state); forget (to answer); refuse; twice
 * (answers); leave (ends the actor). */
extern const troupe_class server;
extern const troupe_class client;

#define ASSERT_ANSWER(log, index, wanted, words)                                        \
    do {                                                                                \
        assert_true((log).count > (index));                                             \
        assert_int_equal((log).answers[index].status, (wanted));                        \
        if (strstr((log).answers[index].text, (words)) == NULL) {                       \
            fail_msg("\"%s\" does not say \"%s\"", (log).answers[index].text, (words)); \
        }                                                                               \
    } while (0)

#endif
