/* Names of actors: which one has each. A part of the node's actor, which has one struct tr_names in
 * its state and passes the calls on. A name is had by an actor as long as that keeps a hold call
 * open; for a short while after the death of one that will be made again. */
#ifndef TR_NODE_NAMES_H
#define TR_NODE_NAMES_H

#include <troupe/ext/host.h>

enum {
    TR_NAMES_MAX = 65536
};

struct tr_name;

/* Zeroed is empty and valid. */
struct tr_names {
    struct tr_name *entries; /* by name */
    size_t count;
    troupe_call **askers; /* kept until a name changes */
    size_t asker_count;
};

/* The methods TR_METHOD_NAME_CLAIM, _HOLD and _FIND (ext/host.h); each answers or keeps a call. */
void tr_names_claim(struct tr_names *names, troupe_ctx *ctx, troupe_call *call);
void tr_names_hold(struct tr_names *names, troupe_ctx *ctx, troupe_call *call);
void tr_names_find(struct tr_names *names, troupe_ctx *ctx, troupe_call *call);
/* In the actor's fini; the calls that are kept are answered by its end. */
void tr_names_fini(struct tr_names *names);

#endif
