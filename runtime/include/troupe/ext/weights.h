/* Published weights: one policy publishes numbered versions, each an immutable object; receivers
 * are told, flip between two steps of theirs, and acknowledge. A pure state machine under the same
 * rules as the stream (ext/stream.h): no clock, no I/O, idempotent under lost, repeated and
 * reordered messages. */
#ifndef TROUPE_EXT_WEIGHTS_H
#define TROUPE_EXT_WEIGHTS_H

#include <troupe/ext/journal.h>
#include <troupe/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define TROUPE_WEIGHTS_RECEIVERS_MAX 1024
#define TROUPE_WEIGHTS_LIVE_MAX      16 /* versions whose objects are still held */

typedef enum troupe_weights_effect_kind {
    TROUPE_WEIGHTS_RECORD,   /* append `record` to the journal before any later effect */
    TROUPE_WEIGHTS_SEND,     /* tell `receiver` to apply `version` from `object` */
    TROUPE_WEIGHTS_RETIRE,   /* no receiver needs `object` of `version` any more */
    TROUPE_WEIGHTS_COMPLETE, /* every live receiver has applied `version`, `elapsed_ns` after its
                                publish */
} troupe_weights_effect_kind;

typedef struct troupe_weights_effect {
    troupe_weights_effect_kind kind;
    uint32_t receiver;
    uint64_t incarnation;
    uint64_t version;
    uint64_t step;
    uint64_t object;
    uint64_t digest;
    uint64_t deadline_ns;
    uint64_t elapsed_ns;
    const troupe_record *record;
} troupe_weights_effect;

typedef struct troupe_weights_options {
    size_t size;
    uint32_t receivers; /* replicas; 0 .. receivers - 1 */
    uint64_t resend_ns; /* a version that is not acknowledged is sent again after this */
    void (*effect)(void *self, const troupe_weights_effect *effect); /* must not call the machine */
    void *effect_self;
} troupe_weights_options;

typedef struct troupe_weights troupe_weights;

/* A machine that has published nothing; version 0 is published like any other. INVALID names the
 * option. */
troupe_status troupe_weights_new(
    const troupe_weights_options *options, troupe_weights **weights, troupe_error *err);
void troupe_weights_free(troupe_weights *weights); /* NULL is allowed */

/* Publishes `version` (the next one) of optimiser `step`. OK: the machine counts on the object
 * until RETIRE. DUPLICATE: published already. STALE: older than the newest. INVALID: not the next
 * one. AGAIN: too many older versions are still held by receivers; publish again later. */
troupe_status troupe_weights_publish(troupe_weights *weights, uint64_t now_ns, uint64_t epoch,
    uint64_t step, uint64_t version, uint64_t object, uint64_t digest);
/* A receiver is up in a new, larger incarnation (it holds nothing), or is gone. */
troupe_status troupe_weights_receiver_up(
    troupe_weights *weights, uint64_t now_ns, uint32_t receiver, uint64_t incarnation);
troupe_status troupe_weights_receiver_down(
    troupe_weights *weights, uint64_t now_ns, uint32_t receiver, uint64_t incarnation);
/* The receiver samples with `version` from now on and will never use an older one. */
troupe_status troupe_weights_ack(troupe_weights *weights, uint64_t now_ns, uint32_t receiver,
    uint64_t incarnation, uint64_t version);
/* After a rollback the next version is `next_version`, above all published before. */
troupe_status troupe_weights_rollback(
    troupe_weights *weights, uint64_t now_ns, uint64_t next_version);
/* The run is over: nothing more is published or recorded. Each object is retired when every
 * receiver that lives has applied it. */
void troupe_weights_stop(troupe_weights *weights, uint64_t now_ns);
void troupe_weights_tick(troupe_weights *weights, uint64_t now_ns);
uint64_t troupe_weights_deadline(const troupe_weights *weights); /* UINT64_MAX: nothing waits */

/* True while the newest version was sent to the receiver and is not acknowledged: which, published
 * when, and when it is sent again. */
bool troupe_weights_waits(const troupe_weights *weights, uint32_t receiver, uint64_t *version,
    uint64_t *since_ns, uint64_t *until_ns);
/* The newest version, false when none was published; and what `receiver` last acknowledged. */
bool troupe_weights_newest(const troupe_weights *weights, uint64_t *version);
bool troupe_weights_held(const troupe_weights *weights, uint32_t receiver, uint64_t *version);
/* Versions whose objects are still held, and the objects. */
uint32_t troupe_weights_live(const troupe_weights *weights);
void troupe_weights_objects(
    const troupe_weights *weights, void (*each)(void *self, uint64_t object), void *self);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
