/* Roles and who is behind their replicas. The list of roles is fixed before threads start and is
 * read without a lock; the places are guarded by one. Readers keep copies and compare versions,
 * so a call costs no lock here. */
#include "actor/directory.h"

#include <troupe/ext/base.h>
#include <troupe/ext/thread.h>

#include <stdatomic.h>
#include <string.h>

struct role {
    char *name;
    size_t first;
    int replicas;
};

struct tr_directory {
    tr_mutex mutex; /* guards places' contents and subscribers */
    struct role *roles;
    int role_count;
    struct tr_place *places;
    size_t place_count;
    struct tr_subscriber *subscribers;
    atomic_uint_least64_t version;
};

tr_directory *
tr_directory_new(void)
{
    tr_directory *directory = tr_zalloc(1, sizeof *directory);
    tr_mutex_init(&directory->mutex);
    atomic_init(&directory->version, 1);
    return directory;
}

void
tr_directory_free(tr_directory *directory)
{
    if (directory == NULL) {
        return;
    }
    TR_ASSERT(directory->subscribers == NULL);
    for (int i = 0; i < directory->role_count; i++) {
        tr_free(directory->roles[i].name);
    }
    for (size_t i = 0; i < directory->place_count; i++) {
        tr_free(directory->places[i].cause);
    }
    tr_free(directory->roles);
    tr_free(directory->places);
    tr_mutex_fini(&directory->mutex);
    tr_free(directory);
}

uint16_t
tr_directory_add(tr_directory *directory, const char *name, int replicas)
{
    TR_ASSERT(replicas > 0 && replicas < UINT16_MAX && directory->role_count < UINT16_MAX - 1);
    TR_ASSERT(directory->subscribers == NULL);
    size_t first = directory->place_count;
    size_t total = first + (size_t)replicas;
    directory->places = tr_realloc(directory->places, total, sizeof *directory->places);
    for (size_t i = first; i < total; i++) {
        directory->places[i] = (struct tr_place){.cause = tr_strdup("")};
    }
    directory->place_count = total;
    size_t roles = (size_t)directory->role_count + 1;
    directory->roles = tr_realloc(directory->roles, roles, sizeof *directory->roles);
    directory->roles[directory->role_count] =
        (struct role){.name = tr_strdup(name), .first = first, .replicas = replicas};
    return (uint16_t)directory->role_count++;
}

int
tr_directory_find(const tr_directory *directory, const char *name)
{
    for (int i = 0; name != NULL && i < directory->role_count; i++) {
        if (strcmp(directory->roles[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

int
tr_directory_roles(const tr_directory *directory)
{
    return directory->role_count;
}

static const struct role *
role_at(const tr_directory *directory, uint16_t role)
{
    TR_ASSERT(role < directory->role_count);
    return &directory->roles[role];
}

const char *
tr_directory_name(const tr_directory *directory, uint16_t role)
{
    return role_at(directory, role)->name;
}

int
tr_directory_replicas(const tr_directory *directory, uint16_t role)
{
    return role_at(directory, role)->replicas;
}

size_t
tr_directory_places(const tr_directory *directory)
{
    return directory->place_count;
}

size_t
tr_directory_first(const tr_directory *directory, uint16_t role)
{
    return role_at(directory, role)->first;
}

void
tr_directory_place(const tr_directory *directory, size_t place, uint16_t *role, uint16_t *replica)
{
    uint16_t at = 0;
    while (place >= directory->roles[at].first + (size_t)directory->roles[at].replicas) {
        at++;
    }
    *role = at;
    *replica = (uint16_t)(place - directory->roles[at].first);
}

/* Release: who reads the new version sees what was sent before the change. */
static void
publish(tr_directory *directory)
{
    atomic_fetch_add_explicit(&directory->version, 1, memory_order_release);
    for (struct tr_subscriber *s = directory->subscribers; s != NULL; s = s->next) {
        s->changed(s->self);
    }
}

static struct tr_place *
place_of(tr_directory *directory, uint16_t role, uint16_t replica)
{
    TR_ASSERT(replica < role_at(directory, role)->replicas);
    return &directory->places[directory->roles[role].first + replica];
}

static void
set_cause(struct tr_place *place, const char *cause)
{
    tr_free(place->cause);
    place->cause = tr_strdup(cause);
}

void
tr_directory_up(tr_directory *directory, uint16_t role, uint16_t replica, troupe_ref ref)
{
    TR_ASSERT(ref.incarnation != 0);
    tr_mutex_lock(&directory->mutex);
    struct tr_place *place = place_of(directory, role, replica);
    /* Who missed the death of the one before must not read an older cause for it. */
    if (place->ref.incarnation != 0) {
        set_cause(place, "another incarnation took its place");
    }
    place->ref = ref;
    publish(directory);
    tr_mutex_unlock(&directory->mutex);
}

void
tr_directory_down(
    tr_directory *directory, uint16_t role, uint16_t replica, troupe_ref ref, const char *cause)
{
    tr_mutex_lock(&directory->mutex);
    struct tr_place *place = place_of(directory, role, replica);
    if (troupe_ref_equal(place->ref, ref)) {
        place->ref = (troupe_ref){0};
        set_cause(place, cause);
        publish(directory);
    }
    tr_mutex_unlock(&directory->mutex);
}

bool
tr_directory_get(tr_directory *directory, uint16_t role, uint16_t replica, troupe_ref *ref)
{
    tr_mutex_lock(&directory->mutex);
    *ref = place_of(directory, role, replica)->ref;
    tr_mutex_unlock(&directory->mutex);
    return ref->incarnation != 0;
}

void
tr_directory_subscribe(tr_directory *directory, struct tr_subscriber *subscriber)
{
    tr_mutex_lock(&directory->mutex);
    subscriber->next = directory->subscribers;
    directory->subscribers = subscriber;
    tr_mutex_unlock(&directory->mutex);
}

void
tr_directory_unsubscribe(tr_directory *directory, struct tr_subscriber *subscriber)
{
    tr_mutex_lock(&directory->mutex);
    struct tr_subscriber **at = &directory->subscribers;
    while (*at != subscriber) {
        at = &(*at)->next;
    }
    *at = subscriber->next;
    tr_mutex_unlock(&directory->mutex);
}

uint64_t
tr_directory_version(const tr_directory *directory)
{
    return atomic_load_explicit(&directory->version, memory_order_acquire);
}

uint64_t
tr_directory_diff(
    tr_directory *directory, troupe_ref *refs, struct tr_change **changes, size_t *count)
{
    *changes = NULL;
    *count = 0;
    tr_mutex_lock(&directory->mutex);
    for (size_t i = 0; i < directory->place_count; i++) {
        const struct tr_place *place = &directory->places[i];
        if (troupe_ref_equal(place->ref, refs[i])) {
            continue;
        }
        *changes = tr_realloc(*changes, *count + 1, sizeof **changes);
        (*changes)[(*count)++] = (struct tr_change){
            .place = i, .before = refs[i], .after = place->ref, .cause = tr_strdup(place->cause)};
        refs[i] = place->ref;
    }
    uint64_t version = atomic_load_explicit(&directory->version, memory_order_relaxed);
    tr_mutex_unlock(&directory->mutex);
    return version;
}
