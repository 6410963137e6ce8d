/* What the simulator and tests may hang on a stream's coordinator (ext/protocol.h). */
#ifndef TROUPE_EXT_COORDINATOR_H
#define TROUPE_EXT_COORDINATOR_H

#include <troupe/ext/journal.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct troupe_stream;

/* Given to the actor as tr_spawn.context; NULL there means none. */
typedef struct tr_coordinator_hooks {
    /* Every record, when it is written to the journal, or would be. */
    void (*record)(void *self, const troupe_record *record, uint64_t realtime_ns);
    /* The machine behind the actor, once it is made. May be NULL. */
    void (*made)(void *self, struct troupe_stream *stream);
    void *self;
} tr_coordinator_hooks;

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
