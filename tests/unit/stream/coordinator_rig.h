/* A world with a coordinator and probes around it: they record what they are asked and say what the
 * test tells them. */
#ifndef TEST_STREAM_COORDINATOR_RIG_H
#define TEST_STREAM_COORDINATOR_RIG_H

#include "cmocka_all.h"

#include <troupe/ext/base.h>
#include <troupe/ext/coordinator.h>
#include <troupe/ext/sim.h>
#include <troupe/object.h>

#define SECOND UINT64_C(1000000000)

enum {
    ASKED_MAX = 512,
    CALLS_MAX = 64,
    UNITS = 3,
};

struct asked {
    char method[16];
    uint64_t group;
    uint64_t attempt;
    uint64_t members;
    uint64_t version;
};

struct answer {
    bool there;
    troupe_status status;
    char text[512];
    uint64_t words[8];
    char json[4096];
    uint32_t batch;
    /* Of `open`; `json` is then the origin, `text` why. */
    bool published, mirrored, voided, ended;
    uint64_t restarts;
    uint64_t trained; /* by the ledger of the committed step */
};

/* One world with a coordinator (loop 0), a policy (1), a rollout (2) and a reward (3). */
struct rig {
    tr_world *world;
    tr_directory *directory;
    troupe_store *store;
    troupe_object weights;
    char config[2048];
    struct asked asked[ASKED_MAX];
    size_t asked_count;
    struct answer answers[CALLS_MAX];
    size_t answer_count;
    troupe_status lease_status; /* what the rollout says to a lease */
    double reward;              /* what the reward says to a sample */
    troupe_status reward_status;
    uint64_t digests[8][2]; /* of sealed members */
    troupe_error spawn_error;
    troupe_status spawn_status;
    tr_coordinator_hooks hooks;
    size_t records[32];
};

extern struct rig rig; /* a test has one at a time */

void make_rig(const char *inner, const char *outer);
int drop_rig(void **state);
struct answer *call(int loop, const char *method, troupe_args *args);
void let_time_pass(uint64_t ns);
size_t count_asked(const char *method);
struct answer *say_source(uint64_t capacity);
struct answer *say_publish(uint64_t version, uint64_t step);
struct answer *say_two(int loop, const char *method, uint64_t a, uint64_t b);
struct answer *say_sealed(uint64_t group, uint64_t member, uint64_t attempt, uint64_t version);
struct answer *say_commit(uint64_t step, uint64_t group, const char *verdict, uint64_t change);
struct answer *say_commit_mirrored(
    uint64_t step, uint64_t group, const char *verdict, uint64_t change, troupe_object mirror);
void begin(const char *inner, const char *outer);
void finish_group(uint64_t group, uint64_t version);

#endif
