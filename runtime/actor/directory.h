/* The directory as hosts use it: a version to compare, changes to collect, subscribers to wake. */
#ifndef TR_ACTOR_DIRECTORY_H
#define TR_ACTOR_DIRECTORY_H

#include <troupe/ext/host.h>

/* One replica of one role; all replicas of all roles form one flat list. */
struct tr_place {
    troupe_ref ref; /* zeroed when it is down */
    char *cause;    /* why it is down; "" at first */
};

/* A host that wants to hear of changes; `changed` runs under the directory's lock. */
struct tr_subscriber {
    struct tr_subscriber *next;
    void (*changed)(void *self);
    void *self;
};

void tr_directory_subscribe(tr_directory *directory, struct tr_subscriber *subscriber);
void tr_directory_unsubscribe(tr_directory *directory, struct tr_subscriber *subscriber);

/* Grows with every change; what was pushed to a link before a change is there to be polled once
 * the new version is seen. */
uint64_t tr_directory_version(const tr_directory *directory);
/* Number of places, and where a role's begin. */
size_t tr_directory_places(const tr_directory *directory);
size_t tr_directory_first(const tr_directory *directory, uint16_t role);
/* Which role and replica a place is. */
void tr_directory_place(
    const tr_directory *directory, size_t place, uint16_t *role, uint16_t *replica);

struct tr_change {
    size_t place;
    troupe_ref before;
    troupe_ref after;
    char *cause; /* the caller frees it */
};

/* Lists where `refs`, the caller's copy, differs, brings it up to date and returns the version
 * that it shows. *changes is the caller's to free. */
uint64_t tr_directory_diff(
    tr_directory *directory, troupe_ref *refs, struct tr_change **changes, size_t *count);

#endif
