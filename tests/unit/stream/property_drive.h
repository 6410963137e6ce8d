/* What surrounds the machine in the property test: sources, stages and a policy that act at random,
 * and a bag of messages that are on their way. */
#ifndef TEST_STREAM_PROPERTY_DRIVE_H
#define TEST_STREAM_PROPERTY_DRIVE_H

#include "model.h"

enum {
    SEEDS = 3000,
    CHAOS_EVENTS = 300,
    FAIR_STEPS = 6,
    FAIR_EVENTS = 20000,
    BAG = 4096,
    WORKERS = 3,
};

enum what {
    MSG_SEALED,
    MSG_MEMBER_FAILED,
    MSG_STAGED,
    MSG_STAGE_ERROR,
    MSG_APPLIED,
    MSG_TAKE,
    MSG_COMMIT,
    MSG_DURABLE,
    MSG_PUBLISHED,
    WORK_MEMBER, /* not a message: a source still has to make this member */
    WORK_STAGE,
};

struct msg {
    enum what what;
    uint64_t epoch;
    uint64_t group;
    uint64_t step;
    uint64_t version;
    uint64_t incarnation;
    uint64_t object;
    uint32_t member;
    uint32_t attempt;
    uint32_t stage;
    uint32_t try_no;
    uint32_t peer;
    troupe_span spans[2];
    size_t span_count;
};

struct drive {
    tr_rng rng;
    uint64_t now;
    troupe_stream_options opt;
    troupe_stream *s;
    struct model model;
    struct msg bag[BAG];
    size_t bag_count;
    uint64_t next_object;
    uint64_t incarnation; /* the last one given to anybody */
    uint64_t source_incarnation[MODEL_SOURCES];
    bool source_lives[MODEL_SOURCES];
    uint64_t worker_incarnation[MODEL_STAGES][WORKERS];
    bool worker_lives[MODEL_STAGES][WORKERS];
    uint64_t durable_step;
    troupe_ledger durable_ledger;
    bool has_durable_ledger;
    troupe_ledger commit_ledger; /* of the last commit */
    bool has_commit_ledger;
    uint64_t granted; /* step that a GRANT effect named last */
    bool fair;
};

uint64_t draw(struct drive *d, uint64_t bound);
bool chance(struct drive *d, uint64_t percent);
void put(struct drive *d, const struct msg *m);
void draw_options(struct drive *d);
void source_up(struct drive *d, uint32_t peer);
void source_down(struct drive *d, uint32_t peer);
void deliver_applied(struct drive *d, uint32_t peer, uint64_t incarnation, uint64_t version);
void worker_up(struct drive *d, uint32_t stage, uint32_t peer);
void worker_down(struct drive *d, uint32_t stage, uint32_t peer);
struct msg finish_member(struct drive *d, const struct msg *work);
void deliver_sealed(struct drive *d, const struct msg *m);
void deliver_staged(struct drive *d, const struct msg *m);
void policy_publish(struct drive *d, bool must);
void policy_commit(struct drive *d);
void policy_durable(struct drive *d);
void policy_take(struct drive *d);
void policy_dies(struct drive *d);

#endif
