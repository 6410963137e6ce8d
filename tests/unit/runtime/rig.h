/* A few hosts in one thread, over the in-process link, with a clock that only the test moves.
 * Test code may call on behalf of any actor between two steps, because it runs on the hosts' one
 * thread. */
#ifndef TR_TESTS_RIG_H
#define TR_TESTS_RIG_H

#include "check.h"

#include <troupe/ext/base.h>
#include <troupe/ext/host.h>
#include <troupe/object.h>

enum {
    RIG_HOSTS = 3
};

struct rig_end {
    int count;
    uint16_t role, replica;
    troupe_status status;
    char text[256];
};

struct rig {
    troupe_sys sys;
    uint64_t now_ns;
    tr_directory *directory;
    troupe_link *link;
    troupe_store *store;
    tr_host *hosts[RIG_HOSTS];
    uint32_t calls_max;
    struct rig_end end;
    int quit_code;
    int stopped;
    char log[512];
};

/* Roles "alpha" (3 replicas), "beta" (2) and "node" (1), no actors yet. */
void rig_init(struct rig *rig, uint32_t calls_max);
void rig_fini(struct rig *rig);
/* Makes the host at an address that is free. */
void rig_host(struct rig *rig, uint16_t index, uint32_t epoch);
/* Steps all hosts until none has anything to do now. */
void rig_settle(struct rig *rig);
/* Moves the clock and settles. */
void rig_advance(struct rig *rig, uint64_t ns);
/* Spawns an actor as replica `replica` of `role` (NULL: outside of roles); asserts success. */
troupe_ctx *rig_spawn(
    struct rig *rig, int host, const troupe_class *type, const char *role, uint16_t replica);

/* Answers, in the order in which they came. Pass rig_note as on_answer and a log as user. */
struct rig_answer {
    troupe_status status;
    int64_t value; /* the first, when it is an integer */
    char text[256];
    bool by_method;
};

struct rig_log {
    struct rig_answer answers[4096];
    int count;
};

void rig_note(troupe_ctx *ctx, troupe_answer *answer, void *user);

#endif
