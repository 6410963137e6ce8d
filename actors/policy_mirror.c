/* The mirror: what a checkpoint holds of the policy, as one flat object of the store that goes to
 * the coordinator with the commit of its step. A policy that is killed loses the step under way
 * and no more: the next one takes its state from here.
 *
 *   64 bytes of header, the state's text padded to 64, masters, first and second moments (fp32)
 *
 * The digest covers everything behind the header, whose own fields are compared one by one. */
#include "policy.h"

#include <stdlib.h>
#include <string.h>

enum {
    PAUSE_NS = 5 * 1000 * 1000,
    ALIGN = 64,
    FORMAT = 1
};

#define ROOM_NS UINT64_C(120000000000) /* --mirror on: room must come within this */

typedef struct header {
    char magic[8];
    uint32_t format;
    uint32_t text_bytes;
    uint64_t step;
    uint64_t floats; /* of each array */
    uint64_t digest;
    uint64_t zero[3];
} header;

_Static_assert(sizeof(header) == ALIGN, "the text begins behind the header");

static const char magic[8] = {'T', 'R', 'M', 'I', 'R', 'R', 'O', 'R'};

static size_t
arrays_at(size_t text_bytes)
{
    return sizeof(header) + (text_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t
size_of(size_t text_bytes, size_t floats)
{
    return arrays_at(text_bytes) + 3 * floats * sizeof(float);
}

void
tr_policy_mirror_drop(troupe_ctx *ctx, tr_policy *p)
{
    if (troupe_object_word(p->mirror) != 0) {
        (void)troupe_object_release(troupe_ctx_store(ctx), p->mirror);
    }
    p->mirror = (troupe_object){0};
}

/* --- making one ------------------------------------------------------------------------------- */

static troupe_status
fill(tr_policy *p, const char *text, size_t text_bytes, char *bytes, troupe_error *err)
{
    size_t floats = troupe_lm_get_layout(p->lm)->floats;
    size_t at = arrays_at(text_bytes);
    float *arrays = (float *)(void *)(bytes + at);
    memset(bytes, 0, at);
    memcpy(bytes + sizeof(header), text, text_bytes);
    troupe_status status =
        troupe_trainer_get_state(p->trainer, arrays, arrays + floats, arrays + 2 * floats, err);
    header h = {.format = FORMAT,
        .text_bytes = (uint32_t)text_bytes,
        .step = (uint64_t)p->step + 1,
        .floats = floats,
        .digest = tr_xxh3(bytes + sizeof h, size_of(text_bytes, floats) - sizeof h, 0)};
    memcpy(h.magic, magic, sizeof magic);
    memcpy(bytes, &h, sizeof h);
    p->mirror_digest = h.digest;
    return status;
}

static troupe_status
make(troupe_ctx *ctx, tr_policy *p, troupe_error *err)
{
    tr_policy_state state = tr_policy_state_now(p, p->step + 1);
    troupe_status status = tr_run_dir_offsets(p->files, false, &state.offsets, err);
    char *text = tr_policy_state_print(p, &state);
    size_t bytes = size_of(strlen(text), troupe_lm_get_layout(p->lm)->floats);
    void *data = NULL;
    uint64_t begun = tr_now_ns();
    if (status == TROUPE_OK) {
        status = troupe_object_create(troupe_ctx_store(ctx), bytes, &p->mirror, &data);
        p->mirror = status == TROUPE_OK ? p->mirror : (troupe_object){0};
    }
    if (status == TROUPE_OK) {
        status = fill(p, text, strlen(text), data, err);
        if (status == TROUPE_OK) {
            status = troupe_object_seal(troupe_ctx_store(ctx), p->mirror);
        }
        p->mirror_bytes = bytes;
        p->mirror_ns = tr_now_ns() - begun;
    }
    free(text); /* from jansson */
    tr_policy_state_fini(&state);
    return status;
}

static void
try_again(troupe_ctx *ctx, void *user)
{
    tr_policy *p = user;
    if (p->phase == TR_POLICY_COMMITTING) {
        tr_policy_mirror(ctx, p);
    }
}

void
tr_policy_mirror(troupe_ctx *ctx, tr_policy *p)
{
    troupe_error err = {0};
    p->mirror_bytes = p->mirror_ns = 0;
    if (p->phase != TR_POLICY_COMMITTING) {
        p->phase = TR_POLICY_COMMITTING;
        p->mirror_since_ns = troupe_now_ns(ctx);
    }
    troupe_status status = p->mirror_mode == TR_MIRROR_OFF ? TROUPE_OK : make(ctx, p, &err);
    bool full = status == TROUPE_AGAIN || status == TROUPE_NO_SPACE;
    if (full && p->mirror_mode == TR_MIRROR_AUTO) {
        p->mirrors_missed++;
        status = TROUPE_OK;
    }
    if (status == TROUPE_OK) {
        tr_policy_commit(ctx, p);
        return;
    }
    tr_policy_mirror_drop(ctx, p);
    bool wait = status == TROUPE_AGAIN && troupe_now_ns(ctx) - p->mirror_since_ns < ROOM_NS;
    if (!wait || troupe_timer_start_for(ctx, PAUSE_NS, "room for the mirror in the store",
                     try_again, p, NULL) != TROUPE_OK) {
        tr_policy_fail(ctx, p, status, "mirror",
            full ? "the store has no room for the optimiser's state; raise --store-bytes, or say "
                   "--mirror auto"
                 : err.text);
    }
}

/* --- reading one ------------------------------------------------------------------------------ */

static troupe_status
check(const tr_policy *p, const char *bytes, size_t size, uint64_t digest, int64_t step, header *h,
    troupe_error *err)
{
    size_t floats = troupe_lm_get_layout(p->lm)->floats;
    if (size < sizeof *h) {
        return troupe_fail(err, TROUPE_CORRUPT, "the mirror has %zu bytes", size);
    }
    memcpy(h, bytes, sizeof *h);
    if (memcmp(h->magic, magic, sizeof magic) != 0 || h->format != FORMAT || h->floats != floats ||
        h->step != (uint64_t)step || size != size_of(h->text_bytes, floats)) {
        return troupe_fail(err, TROUPE_CORRUPT, "the mirror is not one of step %lld of this model",
            (long long)step);
    }
    if (h->digest != digest || tr_xxh3(bytes + sizeof *h, size - sizeof *h, 0) != digest) {
        return troupe_fail(err, TROUPE_CORRUPT, "the mirror's bytes have changed");
    }
    return TROUPE_OK;
}

static troupe_status
take_up(tr_policy *p, const char *bytes, const header *h, troupe_error *err)
{
    tr_policy_state state = {0};
    troupe_trainer_progress progress;
    const float *arrays = (const float *)(const void *)(bytes + arrays_at(h->text_bytes));
    troupe_status status = tr_policy_state_parse(
        bytes + sizeof *h, h->text_bytes, "the mirror", &state, &progress, err);
    if (status == TROUPE_OK) {
        status = troupe_trainer_set_state(
            p->trainer, arrays, arrays + h->floats, arrays + 2 * h->floats, &progress, err);
    }
    if (status == TROUPE_OK) {
        tr_policy_state_apply(p, &state);
    }
    tr_policy_state_fini(&state);
    return status;
}

troupe_status
tr_policy_mirror_restore(troupe_ctx *ctx, tr_policy *p, troupe_object object, uint64_t digest,
    int64_t step, troupe_error *err)
{
    const void *bytes = NULL;
    size_t size = 0;
    header h = {0};
    troupe_status status = troupe_object_hold(troupe_ctx_store(ctx), object, &bytes, &size);
    if (status != TROUPE_OK) {
        return troupe_fail(err, status, "the mirror is %s", troupe_status_text(status));
    }
    status = check(p, bytes, size, digest, step, &h, err);
    if (status == TROUPE_OK) {
        status = take_up(p, bytes, &h, err);
    }
    (void)troupe_object_release(troupe_ctx_store(ctx), object);
    return status;
}
