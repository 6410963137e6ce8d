/* What a simulated policy is: one word, folded from all that it has trained on, so that two that
 * have trained on the same steps are the same. A mirror is that word as an object of the store. */
#include "sim/sim.h"

#include <string.h>

enum {
    MIRROR_WORDS = 4
};

#define MIRROR_MAGIC UINT64_C(0x6d6972726f72)

uint64_t
sim_trained(uint64_t state, uint64_t step, uint64_t group, const uint64_t *digests, uint32_t count)
{
    uint64_t words[3] = {state, step, group};
    state = tr_mix(words, TR_COUNT(words));
    for (uint32_t i = 0; i < count; i++) {
        uint64_t pair[2] = {state, digests[i]};
        state = tr_mix(pair, TR_COUNT(pair));
    }
    return state;
}

bool
sim_mirror_make(
    troupe_store *store, uint64_t step, uint64_t state, troupe_object *object, uint64_t *digest)
{
    uint64_t words[MIRROR_WORDS] = {MIRROR_MAGIC, step, state, ~state};
    void *bytes = NULL;
    if (troupe_object_create(store, sizeof words, object, &bytes) != TROUPE_OK) {
        *object = (troupe_object){0};
        return false;
    }
    memcpy(bytes, words, sizeof words);
    *digest = tr_xxh3(words, sizeof words, 0);
    return troupe_object_seal(store, *object) == TROUPE_OK;
}

bool
sim_mirror_read(
    troupe_store *store, troupe_object object, uint64_t digest, uint64_t step, uint64_t *state)
{
    const void *bytes = NULL;
    size_t size = 0;
    uint64_t words[MIRROR_WORDS] = {0};
    if (troupe_object_hold(store, object, &bytes, &size) != TROUPE_OK) {
        return false;
    }
    bool ok = size == sizeof words && tr_xxh3(bytes, size, 0) == digest;
    if (ok) {
        memcpy(words, bytes, sizeof words);
    }
    (void)troupe_object_release(store, object);
    *state = words[2];
    return ok && words[0] == MIRROR_MAGIC && words[1] == step && words[3] == ~words[2];
}
