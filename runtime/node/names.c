/* A sorted table. What an entry says holds until its hold call ends; the end's reason decides:
 * taken back, the name is free; the bearer's death keeps it for its next incarnation if there is
 * to be one; a hold that only ran out of time is about to be renewed. */
#include "node/names.h"

#include <troupe/ext/base.h>

#include <string.h>

#define SUCCESSION_NS UINT64_C(5000000000)   /* a new incarnation has claimed its name by then */
#define RENEWAL_NS    UINT64_C(120000000000) /* and an old one has renewed its hold */

struct tr_name {
    char *name;
    troupe_ref ref;
    troupe_call *hold; /* kept, or NULL */
    uint64_t until_ns; /* without a hold: the name is free then */
    bool orphan;       /* the bearer is dead, and another incarnation may follow */
};

/* --- the table ------------------------------------------------------------------------------- */

/* Where the name is, or belongs. */
static size_t
place_of(const struct tr_names *names, const char *name, bool *found)
{
    size_t low = 0, high = names->count;
    *found = false;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(names->entries[middle].name, name);
        if (order == 0) {
            *found = true;
            return middle;
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void
remove_at(struct tr_names *names, size_t at)
{
    tr_free(names->entries[at].name);
    names->count--;
    memmove(
        &names->entries[at], &names->entries[at + 1], (names->count - at) * sizeof *names->entries);
}

static bool
is_free(const struct tr_name *entry, uint64_t now_ns)
{
    return entry->hold == NULL && entry->until_ns <= now_ns;
}

/* The entry, if somebody has the name. */
static struct tr_name *
find(struct tr_names *names, const char *name, uint64_t now_ns)
{
    bool found = false;
    size_t at = place_of(names, name, &found);
    return found && !is_free(&names->entries[at], now_ns) ? &names->entries[at] : NULL;
}

static struct tr_name *
add(struct tr_names *names, const char *name)
{
    bool found = false;
    size_t at = place_of(names, name, &found);
    if (found) {
        return &names->entries[at];
    }
    if (names->count == TR_NAMES_MAX) {
        return NULL;
    }
    names->entries = tr_realloc(names->entries, names->count + 1, sizeof *names->entries);
    memmove(
        &names->entries[at + 1], &names->entries[at], (names->count - at) * sizeof *names->entries);
    names->count++;
    names->entries[at] = (struct tr_name){.name = tr_strdup(name)};
    return &names->entries[at];
}

/* --- who asks -------------------------------------------------------------------------------- */

static void
drop_asker(struct tr_names *names, size_t at)
{
    names->askers[at] = names->askers[--names->asker_count];
}

/* Answers a find when there is something to say. */
static bool
answer(struct tr_names *names, troupe_ctx *ctx, troupe_call *call)
{
    const char *name = troupe_arg_str(call, 0);
    troupe_ref gone = tr_arg_ref(call, 1);
    const struct tr_name *entry = find(names, name, troupe_now_ns(ctx));
    if (entry == NULL) {
        troupe_reply_error(call, TROUPE_NOT_FOUND, "no actor has the name %s", name);
        return true;
    }
    if (entry->orphan || troupe_ref_equal(entry->ref, gone)) {
        return false;
    }
    troupe_args args = {0};
    tr_args_ref(&args, entry->ref);
    (void)troupe_reply(call, &args);
    return true;
}

static void
tell_askers(struct tr_names *names, troupe_ctx *ctx, const char *name)
{
    for (size_t i = names->asker_count; i > 0; i--) {
        troupe_call *call = names->askers[i - 1];
        if (strcmp(troupe_arg_str(call, 0), name) == 0 && answer(names, ctx, call)) {
            drop_asker(names, i - 1);
        }
    }
}

static void
asker_gone(troupe_ctx *ctx, troupe_call *call, void *user)
{
    (void)ctx;
    struct tr_names *names = user;
    for (size_t i = 0; i < names->asker_count; i++) {
        if (names->askers[i] == call) {
            drop_asker(names, i);
            break;
        }
    }
    (void)troupe_reply(call, NULL);
}

void
tr_names_find(struct tr_names *names, troupe_ctx *ctx, troupe_call *call)
{
    (void)troupe_arg_str(call, 0);
    (void)tr_arg_ref(call, 1);
    if (!troupe_args_ok(call) || answer(names, ctx, call)) {
        return;
    }
    names->askers = tr_realloc(names->askers, names->asker_count + 1, sizeof(troupe_call *));
    names->askers[names->asker_count++] = troupe_defer(call);
    (void)troupe_on_cancel(call, asker_gone, names);
}

/* --- who has --------------------------------------------------------------------------------- */

static void
refuse(troupe_call *call, const struct tr_name *entry)
{
    troupe_reply_error(call, TROUPE_EXISTS,
        "the name %s is actor %u.%u.%u's; choose another, or end that one first", entry->name,
        entry->ref.node, entry->ref.loop, entry->ref.slot);
}

/* Gives the name to `ref`, unless another has it; NULL: it was answered why not. */
static struct tr_name *
give(struct tr_names *names, troupe_ctx *ctx, troupe_call *call, troupe_ref ref, troupe_ref follows)
{
    const char *name = troupe_arg_str(call, 0);
    uint64_t now = troupe_now_ns(ctx);
    struct tr_name *entry = find(names, name, now);
    if (entry != NULL && !troupe_ref_equal(entry->ref, ref) &&
        !(follows.incarnation != 0 && troupe_ref_equal(entry->ref, follows))) {
        refuse(call, entry);
        return NULL;
    }
    if (entry == NULL) {
        entry = add(names, name);
    }
    if (entry == NULL) {
        troupe_reply_error(call, TROUPE_FULL, "a run has at most %d names", TR_NAMES_MAX);
        return NULL;
    }
    if (!troupe_ref_equal(entry->ref, ref)) {
        entry->hold = NULL; /* of the incarnation before; its end is told to itself */
    }
    entry->ref = ref;
    entry->orphan = false;
    entry->until_ns = now + RENEWAL_NS;
    return entry;
}

void
tr_names_claim(struct tr_names *names, troupe_ctx *ctx, troupe_call *call)
{
    const char *name = troupe_arg_str(call, 0);
    troupe_ref ref = tr_arg_ref(call, 1), follows = tr_arg_ref(call, 5);
    if (!troupe_args_ok(call) || give(names, ctx, call, ref, follows) == NULL) {
        return;
    }
    tell_askers(names, ctx, name);
    (void)troupe_reply(call, NULL);
}

static void
sweep(troupe_ctx *ctx, void *user)
{
    struct tr_names *names = user;
    for (size_t i = names->count; i > 0; i--) {
        if (is_free(&names->entries[i - 1], troupe_now_ns(ctx))) {
            char *name = tr_strdup(names->entries[i - 1].name);
            remove_at(names, i - 1);
            tell_askers(names, ctx, name);
            tr_free(name);
        }
    }
}

static void
hold_ended(troupe_ctx *ctx, troupe_call *call, void *user)
{
    struct tr_names *names = user;
    bool follows = troupe_arg_bool(call, 5);
    troupe_status why = troupe_call_cancelled(call);
    struct tr_name *entry = find(names, troupe_arg_str(call, 0), troupe_now_ns(ctx));
    if (entry != NULL && entry->hold == call) {
        uint64_t left = why == TROUPE_TIMEOUT ? RENEWAL_NS : 0;
        entry->orphan = why == TROUPE_DIED && follows;
        left = entry->orphan ? SUCCESSION_NS : left;
        entry->hold = NULL;
        entry->until_ns = troupe_now_ns(ctx) + left;
        /* Without a timer the name is free all the same; who asks for it hears that later. */
        if (left == 0 || troupe_timer_start_for(ctx, left, "whoever still wants a name", sweep,
                             names, NULL) != TROUPE_OK) {
            sweep(ctx, names);
        }
    }
    (void)troupe_reply(call, NULL);
}

void
tr_names_hold(struct tr_names *names, troupe_ctx *ctx, troupe_call *call)
{
    (void)troupe_arg_str(call, 0);
    (void)troupe_arg_bool(call, 5);
    troupe_ref ref = tr_arg_ref(call, 1);
    if (!troupe_args_ok(call)) {
        return;
    }
    struct tr_name *entry = give(names, ctx, call, ref, (troupe_ref){0});
    if (entry != NULL) {
        entry->hold = troupe_defer(call);
        (void)troupe_on_cancel(call, hold_ended, names);
        tell_askers(names, ctx, entry->name);
    }
}

void
tr_names_fini(struct tr_names *names)
{
    for (size_t i = 0; i < names->count; i++) {
        tr_free(names->entries[i].name);
    }
    tr_free(names->entries);
    tr_free(names->askers);
    *names = (struct tr_names){0};
}
