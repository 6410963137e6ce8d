/* The object store in its in-process form: a table of entries under one lock, memory from the
 * allocator, a byte budget. The lock covers the table only; bytes are written by the creator and
 * read by holders without it, which the states make safe: a reader gets the pointer only after
 * the seal. */
#include "mem/budget.h"

#include <troupe/ext/base.h>
#include <troupe/ext/thread.h>
#include <troupe/object.h>

#include <stdlib.h>

enum {
    ALIGNMENT = 64,
    OBJECTS_MAX = 1 << 24
};

struct entry {
    void *bytes; /* NULL in a free entry */
    size_t size;
    uint32_t generation; /* of the object, or of the last one that was here */
    uint32_t next_free;  /* index + 1 */
    uint32_t holds;
    bool sealed;
};

struct troupe_store {
    tr_mutex mutex;
    struct entry *entries;
    uint32_t capacity;
    uint32_t free; /* index + 1 */
    uint64_t objects;
    uint64_t created;
    struct tr_budget budget;
};

troupe_store *
troupe_store_new(uint64_t bytes_max)
{
    troupe_store *store = tr_zalloc(1, sizeof *store);
    tr_mutex_init(&store->mutex);
    tr_budget_init(&store->budget, bytes_max);
    return store;
}

void
troupe_store_free(troupe_store *store)
{
    if (store == NULL) {
        return;
    }
    for (uint32_t i = 0; i < store->capacity; i++) {
        free(store->entries[i].bytes);
    }
    tr_free(store->entries);
    tr_mutex_fini(&store->mutex);
    tr_free(store);
}

void
troupe_store_get_stats(troupe_store *store, troupe_store_stats *stats)
{
    tr_mutex_lock(&store->mutex);
    *stats = (troupe_store_stats){.objects = store->objects,
        .bytes = atomic_load(&store->budget.used),
        .bytes_high = atomic_load(&store->budget.high),
        .bytes_max = store->budget.max,
        .created = store->created};
    tr_mutex_unlock(&store->mutex);
}

static bool
grow(troupe_store *store)
{
    if (store->capacity == OBJECTS_MAX) {
        return false;
    }
    uint32_t capacity = store->capacity == 0 ? 64 : store->capacity * 2;
    store->entries = tr_realloc(store->entries, capacity, sizeof *store->entries);
    for (uint32_t i = capacity; i > store->capacity; i--) {
        store->entries[i - 1] = (struct entry){.next_free = store->free};
        store->free = i;
    }
    store->capacity = capacity;
    return true;
}

/* NULL for a handle of no living object. */
static struct entry *
find(troupe_store *store, troupe_object object)
{
    if (object.generation == 0 || object.index >= store->capacity) {
        return NULL;
    }
    struct entry *entry = &store->entries[object.index];
    return entry->bytes != NULL && entry->generation == object.generation ? entry : NULL;
}

/* A generation is never used twice: an entry whose generations are used up stays out of use. */
static bool
take_entry(troupe_store *store, void *bytes, size_t size, troupe_object *object)
{
    if (store->free == 0 && !grow(store)) {
        return false;
    }
    uint32_t index = store->free - 1;
    struct entry *entry = &store->entries[index];
    store->free = entry->next_free;
    entry->bytes = bytes;
    entry->size = size;
    entry->generation++;
    entry->holds = 1;
    entry->sealed = false;
    store->objects++;
    store->created++;
    *object = (troupe_object){.index = index, .generation = entry->generation};
    return true;
}

troupe_status
troupe_object_create(troupe_store *store, size_t size, troupe_object *object, void **bytes)
{
    if (size == 0) {
        return TROUPE_INVALID;
    }
    if (size > store->budget.max) {
        return TROUPE_NO_SPACE;
    }
    if (!tr_budget_take(&store->budget, size)) {
        return TROUPE_AGAIN;
    }
    void *memory = NULL;
    if (posix_memalign(&memory, ALIGNMENT, size) != 0) {
        tr_budget_return(&store->budget, size);
        return TROUPE_NO_MEMORY;
    }
    tr_mutex_lock(&store->mutex);
    bool taken = take_entry(store, memory, size, object);
    tr_mutex_unlock(&store->mutex);
    if (!taken) {
        free(memory);
        tr_budget_return(&store->budget, size);
        return TROUPE_AGAIN;
    }
    *bytes = memory;
    return TROUPE_OK;
}

troupe_status
troupe_object_seal(troupe_store *store, troupe_object object)
{
    tr_mutex_lock(&store->mutex);
    struct entry *entry = find(store, object);
    troupe_status status = entry == NULL ? TROUPE_LOST : entry->sealed ? TROUPE_INVALID : TROUPE_OK;
    if (status == TROUPE_OK) {
        entry->sealed = true;
    }
    tr_mutex_unlock(&store->mutex);
    return status;
}

troupe_status
troupe_object_hold(troupe_store *store, troupe_object object, const void **bytes, size_t *size)
{
    tr_mutex_lock(&store->mutex);
    struct entry *entry = find(store, object);
    troupe_status status = entry == NULL    ? TROUPE_LOST
                           : !entry->sealed ? TROUPE_INVALID
                                            : TROUPE_OK;
    if (status == TROUPE_OK) {
        TR_ASSERT(entry->holds < UINT32_MAX);
        entry->holds++;
        if (bytes != NULL) {
            *bytes = entry->bytes;
        }
        if (size != NULL) {
            *size = entry->size;
        }
    }
    tr_mutex_unlock(&store->mutex);
    return status;
}

troupe_status
troupe_object_release(troupe_store *store, troupe_object object)
{
    void *memory = NULL;
    size_t size = 0;
    tr_mutex_lock(&store->mutex);
    struct entry *entry = find(store, object);
    troupe_status status = entry == NULL ? TROUPE_LOST : TROUPE_OK;
    if (entry != NULL && --entry->holds == 0) {
        memory = entry->bytes;
        size = entry->size;
        entry->bytes = NULL;
        store->objects--;
        if (entry->generation < UINT32_MAX) {
            entry->next_free = store->free;
            store->free = object.index + 1;
        }
    }
    tr_mutex_unlock(&store->mutex);
    /* Outside of the lock: giving gigabytes back to the system takes a while. */
    if (memory != NULL) {
        free(memory);
        tr_budget_return(&store->budget, size);
    }
    return status;
}
