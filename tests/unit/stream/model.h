/* A second, naive ledger: it sees only the records and effects that the machine emits, one after
 * the other, and keeps each group's story in plain arrays. It knows the laws, not the machine. */
#ifndef TEST_STREAM_MODEL_H
#define TEST_STREAM_MODEL_H

#include "cmocka_all.h"

#include <troupe/ext/base.h>
#include <troupe/ext/stream.h>

enum {
    MODEL_GROUPS = 4096,
    MODEL_MEMBERS = 8,
    MODEL_STAGES = 3,
    MODEL_OBJECTS = 1 << 17,
    MODEL_SOURCES = 8,
};

enum story {
    NEVER,
    OPEN,
    TAKEN,
    TRAINED,
    FILTERED,
    STALE,
    FAILED,
};

struct model_group {
    enum story story;
    uint64_t item;
    uint64_t step;
    uint32_t attempt; /* the newest leased */
    uint64_t floor;   /* version that its source had applied when it was first leased */
    bool released;
    bool has_lease[MODEL_MEMBERS];
    uint32_t lease[MODEL_MEMBERS]; /* attempt of the newest lease of each member */
    bool sealed[MODEL_MEMBERS];
    uint32_t sealed_attempt[MODEL_MEMBERS];
    uint64_t digest[MODEL_MEMBERS];
    uint64_t head[MODEL_MEMBERS];
    bool staged[MODEL_MEMBERS][MODEL_STAGES];
};

struct model {
    const troupe_stream_options *opt;
    struct model_group groups[MODEL_GROUPS];
    uint64_t next_group;
    uint64_t epoch;
    uint64_t step;
    uint64_t taken_step;
    uint64_t durable;
    bool published;
    uint64_t version; /* newest published */
    uint64_t base_version;
    uint64_t base_step;
    bool source_up[MODEL_SOURCES]; /* and has applied `applied` */
    uint64_t applied[MODEL_SOURCES];
    bool ended;
    uint64_t records;
    uint64_t last_lag_max; /* of the newest taken batch */
    /* Snapshots by step, to be restored by rolled_back. */
    troupe_ledger snapshot;
    bool has_snapshot;
    uint8_t objects[MODEL_OBJECTS]; /* 0 unknown, 1 the machine counts on it, 2 released */
};

void model_init(struct model *m, const troupe_stream_options *opt);
void model_record(struct model *m, const troupe_record *record);
/* The ledger as the model sees it. */
troupe_counters model_counters(const struct model *m);
void model_expect(const struct model *m, const troupe_stream *s);
void model_accept(struct model *m, uint64_t object);
void model_release(struct model *m, uint64_t object);
uint64_t model_held(const struct model *m);

#endif
