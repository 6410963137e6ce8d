/* One entry for each actor that ever asked for its state or gave one, in a plain list: they are few
 * and ask seldom. An incarnation that begins asks first and thereby becomes the owner, so that
 * nothing that an earlier one sent can replace what the new one began with. A state arrives in one
 * message: the one before stays until the next is whole. */
#include "node/kept.h"

#include <troupe/ext/base.h>

#include <string.h>

struct tr_kept_state {
    char *key;
    troupe_ref owner;
    uint64_t number; /* of the owner's; states of one owner may arrive out of order */
    void *bytes;     /* NULL: none yet */
    size_t size;
};

static struct tr_kept_state *
find(struct tr_kept_states *kept, const char *key)
{
    for (size_t i = 0; i < kept->count; i++) {
        if (strcmp(kept->entries[i].key, key) == 0) {
            return &kept->entries[i];
        }
    }
    return NULL;
}

static struct tr_kept_state *
find_or_add(struct tr_kept_states *kept, troupe_call *call, const char *key, troupe_ref owner)
{
    struct tr_kept_state *state = find(kept, key);
    if (state != NULL) {
        return state;
    }
    if (kept->count == TR_KEPT_MAX) {
        troupe_reply_error(
            call, TROUPE_FULL, "states of %d actors are kept, which is the most", TR_KEPT_MAX);
        return NULL;
    }
    kept->entries = tr_realloc(kept->entries, kept->count + 1, sizeof *kept->entries);
    kept->entries[kept->count] = (struct tr_kept_state){.key = tr_strdup(key), .owner = owner};
    return &kept->entries[kept->count++];
}

void
tr_kept_get(struct tr_kept_states *kept, troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    const char *key = troupe_arg_str(call, 0);
    troupe_ref owner = tr_arg_ref(call, 1);
    struct tr_kept_state *state = troupe_args_ok(call) ? find_or_add(kept, call, key, owner) : NULL;
    if (state == NULL) {
        return;
    }
    if (!troupe_ref_equal(state->owner, owner)) {
        state->owner = owner;
        state->number = 0;
    }
    if (state->bytes == NULL) {
        troupe_reply_error(call, TROUPE_NOT_FOUND, "no state of %s is kept", key);
        return;
    }
    troupe_args args = {0};
    troupe_args_bin(&args, state->bytes, state->size);
    (void)troupe_reply(call, &args);
}

static bool
has_room(const struct tr_kept_states *kept, const struct tr_kept_state *state, troupe_call *call,
    size_t size)
{
    if (size > TR_KEPT_ACTOR_BYTES_MAX) {
        troupe_reply_error(call, TROUPE_FULL,
            "a state of %zu bytes, at most %zu are kept of an actor; put the bulk into objects",
            size, TR_KEPT_ACTOR_BYTES_MAX);
        return false;
    }
    if (kept->bytes - state->size + size > TR_KEPT_BYTES_MAX) {
        troupe_reply_error(call, TROUPE_FULL,
            "%zu bytes of states are kept, and with this one of %zu it were more than %zu",
            kept->bytes, size, TR_KEPT_BYTES_MAX);
        return false;
    }
    return true;
}

void
tr_kept_put(struct tr_kept_states *kept, troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    size_t size = 0;
    const char *key = troupe_arg_str(call, 0);
    troupe_ref owner = tr_arg_ref(call, 1);
    uint64_t number = troupe_arg_u64(call, 5);
    const void *bytes = troupe_arg_bin(call, 6, &size);
    struct tr_kept_state *state = troupe_args_ok(call) ? find_or_add(kept, call, key, owner) : NULL;
    if (state == NULL) {
        return;
    }
    if (!troupe_ref_equal(state->owner, owner)) {
        troupe_reply_error(call, TROUPE_STALE, "a later incarnation has begun");
        return;
    }
    if (number <= state->number) { /* a later one is kept, which covers it */
        (void)troupe_reply(call, NULL);
        return;
    }
    if (!has_room(kept, state, call, size)) {
        return;
    }
    void *copy = tr_alloc(size);
    memcpy(copy, bytes, size);
    kept->bytes += size - state->size;
    tr_free(state->bytes);
    state->bytes = copy;
    state->size = size;
    state->number = number;
    (void)troupe_reply(call, NULL);
}

void
tr_kept_drop(struct tr_kept_states *kept, troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    const char *key = troupe_arg_str(call, 0);
    troupe_ref owner = tr_arg_ref(call, 1);
    struct tr_kept_state *state = troupe_args_ok(call) ? find(kept, key) : NULL;
    if (state != NULL && troupe_ref_equal(state->owner, owner)) {
        kept->bytes -= state->size;
        tr_free(state->key);
        tr_free(state->bytes);
        *state = kept->entries[--kept->count];
    }
    (void)troupe_reply(call, NULL);
}

void
tr_kept_fini(struct tr_kept_states *kept)
{
    for (size_t i = 0; i < kept->count; i++) {
        tr_free(kept->entries[i].key);
        tr_free(kept->entries[i].bytes);
    }
    tr_free(kept->entries);
    *kept = (struct tr_kept_states){0};
}
