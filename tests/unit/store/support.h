/* A store and processes of it that are all this process: each has a handle, a mapping and a slot of
 * its own, which is all that tells processes apart. */
#ifndef TR_TESTS_STORE_SUPPORT_H
#define TR_TESTS_STORE_SUPPORT_H

#include "runtime/check.h"
#include "store/layout.h"

#include <troupe/ext/base.h>
#include <troupe/ext/store.h>

enum {
    CAST_MAX = 8
};

typedef struct tr_cast {
    troupe_store *owner;
    troupe_store *store[CAST_MAX]; /* [0] is the owner */
    uint32_t slot[CAST_MAX];
    int count;
} tr_cast;

/* An owner and `others` more. */
void cast_open(tr_cast *cast, uint64_t bytes_max, int others);
void cast_open_geometry(tr_cast *cast, const tr_geometry *geometry, int others);
/* A new process in the place of number `which`, whose death was reclaimed. */
void cast_join(tr_cast *cast, int which);
/* Its death, as the node sees it: the handle is gone, then fence and reclaim. */
void cast_kill(tr_cast *cast, int which, tr_store_reclaimed *what);
void cast_close(tr_cast *cast);

/* An object of `size` bytes, each of which follows from the handle; sealed; one hold. */
troupe_object put(troupe_store *store, size_t size);
troupe_status try_put(troupe_store *store, size_t size, troupe_object *object);
/* Fails the test unless the bytes are right. */
void must_read(troupe_store *store, troupe_object object);
void fill(void *bytes, size_t size, troupe_object object);
bool is_filled(const void *bytes, size_t size, troupe_object object);
/* Fails the test with the reason. */
void must_check(troupe_store *store);
uint64_t bytes_in(troupe_store *store);
uint64_t objects_in(troupe_store *store);

#endif
