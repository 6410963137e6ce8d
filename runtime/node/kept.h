/* States that actors have had kept (troupe_checkpoint): the latest one of each. A part of the
 * node's actor, which has one struct tr_kept_states in its state and passes the calls on. What is
 * kept lives as long as the node. */
#ifndef TR_NODE_KEPT_H
#define TR_NODE_KEPT_H

#include <troupe/ext/host.h>

enum {
    TR_KEPT_MAX = 8192 /* actors */
};

#define TR_KEPT_BYTES_MAX       ((size_t)256 << 20)
#define TR_KEPT_ACTOR_BYTES_MAX ((size_t)8 << 20)

struct tr_kept_state;

/* Zeroed is empty and valid. */
struct tr_kept_states {
    struct tr_kept_state *entries;
    size_t count;
    size_t bytes;
};

/* The methods TR_METHOD_KEPT_GET, _PUT and _DROP (ext/host.h); each answers the call. */
void tr_kept_get(struct tr_kept_states *kept, troupe_ctx *ctx, troupe_call *call);
void tr_kept_put(struct tr_kept_states *kept, troupe_ctx *ctx, troupe_call *call);
void tr_kept_drop(struct tr_kept_states *kept, troupe_ctx *ctx, troupe_call *call);
void tr_kept_fini(struct tr_kept_states *kept);

#endif
