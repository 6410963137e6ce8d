/* The list of everything that is waited for in a host: who, for what, since when, until when. */
#include "actor/stream.h"

#include <stdio.h>

struct teller {
    void (*tell)(void *user, const tr_wait *wait);
    void *user;
};

static void
tell_open(const tr_host *host, const struct tr_open *open, const struct teller *teller)
{
    char who[TR_WHO_MAX], target[TR_WHO_MAX], whom[2 * TR_WHO_MAX], chain[2 * TR_WHO_MAX];
    tr_name_actor(open->ctx, who, sizeof who);
    tr_name_target(host, open->to, target, sizeof target);
    (void)snprintf(whom, sizeof whom, "%s.%s", target, open->method);
    const char *last = open->last == NULL ? "" : open->last;
    if (open->chain != NULL) {
        tr_chain_text(host, open, chain, sizeof chain);
        last = chain;
    }
    tr_wait_kind kind = open->chain != NULL ? TR_WAIT_CHAIN : TR_WAIT_ANSWER;
    if (open->in != NULL && open->chain == NULL) {
        const struct tr_in *in = open->in;
        kind = TR_WAIT_ITEM;
        (void)snprintf(chain, sizeof chain, "%u items came, %u of at most %u are not taken%s",
            in->received, in->received - in->taken, in->ahead_max,
            in->end == NULL ? "" : ", it has ended");
        last = chain;
    }
    tr_wait wait = {.kind = kind,
        .who = who,
        .whom = whom,
        .last = last,
        .since_ns = open->since_ns,
        .until_ns = open->deadline_ns,
        .sends = open->sends};
    teller->tell(teller->user, &wait);
}

/* The list is newest first; the wanted order is the other. */
static void
tell_kept(const tr_host *host, const troupe_ctx *ctx, const struct teller *teller)
{
    char who[TR_WHO_MAX], caller[TR_WHO_MAX], whom[2 * TR_WHO_MAX];
    const struct troupe_msg *call = ctx->kept;
    while (call != NULL && call->next != NULL) {
        call = call->next;
    }
    tr_name_actor(ctx, who, sizeof who);
    for (; call != NULL; call = call->prev) {
        tr_name_ref(host, troupe_call_caller(call), caller, sizeof caller);
        (void)snprintf(whom, sizeof whom, "from %s.%s", caller, call->name);
        char last[TR_WHO_MAX] = "";
        const struct tr_out *out = call->extra == NULL ? NULL : call->extra->out;
        bool parked = out != NULL && out->parked;
        tr_wait_kind kind = parked ? TR_WAIT_ROOM : TR_WAIT_REPLY;
        if (parked) {
            (void)snprintf(last, sizeof last, "%u items sent, %u of at most %u are not taken",
                out->sent, out->sent - out->taken, out->ahead_max);
        } else if (call->fate != TROUPE_OK) {
            kind = TR_WAIT_CANCELLED;
            (void)snprintf(last, sizeof last, "%s", troupe_status_text((troupe_status)call->fate));
        }
        tr_wait wait = {.kind = kind,
            .who = who,
            .whom = whom,
            .last = last,
            .since_ns = parked ? out->parked_since_ns : call->since_ns,
            .until_ns = call->deadline_ns};
        teller->tell(teller->user, &wait);
    }
}

/* Calls in the mailbox whose group is full; others are handled in this very round. */
static void
tell_queued(const tr_host *host, const troupe_ctx *ctx, const struct teller *teller)
{
    char who[TR_WHO_MAX], caller[TR_WHO_MAX], whom[2 * TR_WHO_MAX], last[TR_WHO_MAX];
    for (const struct troupe_msg *call = ctx->mailbox.first; call != NULL; call = call->next) {
        if (call->frame.kind != TR_FRAME_CALL || call->group == 0) {
            continue;
        }
        const troupe_group *group = &ctx->type->groups[call->group - 1];
        if (ctx->group_open[call->group - 1] < group->open_max) {
            continue;
        }
        tr_name_actor(ctx, who, sizeof who);
        tr_name_ref(host, troupe_call_caller(call), caller, sizeof caller);
        (void)snprintf(
            whom, sizeof whom, "from %s.%s", caller, ctx->type->methods[call->method_at - 1].name);
        (void)snprintf(last, sizeof last, "group %s: %d of %d open", group->name, group->open_max,
            group->open_max);
        tr_wait wait = {.kind = TR_WAIT_GROUP,
            .who = who,
            .whom = whom,
            .last = last,
            .since_ns = call->since_ns,
            .until_ns = call->deadline_ns};
        teller->tell(teller->user, &wait);
    }
}

const char *
tr_wait_kind_name(tr_wait_kind kind)
{
    static const char *const names[] = {
        "answer", "reply", "timer", "chain", "group", "cancelled", "item", "room", "work"};
    return (size_t)kind < TR_COUNT(names) ? names[kind] : "unknown";
}

static void
tell_timer(const struct tr_timer_entry *entry, const struct teller *teller)
{
    char who[TR_WHO_MAX];
    if (entry->job.run != tr_actor_timer_fired) {
        return; /* of a call, which is told with it */
    }
    tr_name_actor(entry->job.self, who, sizeof who);
    tr_wait wait = {.kind = TR_WAIT_TIMER,
        .who = who,
        .whom = entry->job.reason == NULL ? "" : entry->job.reason,
        .last = "",
        .since_ns = entry->since_ns,
        .until_ns = entry->when_ns};
    teller->tell(teller->user, &wait);
}

struct troupe_waits {
    const struct teller *teller;
    const char *who;
};

void
troupe_waits_add(
    troupe_waits *waits, const char *whom, const char *why, uint64_t since_ns, uint64_t until_ns)
{
    tr_wait wait = {.kind = TR_WAIT_WORK,
        .who = waits->who,
        .whom = whom,
        .last = why,
        .since_ns = since_ns,
        .until_ns = until_ns};
    waits->teller->tell(waits->teller->user, &wait);
}

static void
tell_own(troupe_ctx *ctx, const struct teller *teller)
{
    char who[TR_WHO_MAX];
    if (ctx->type->waits != NULL && !ctx->unmade && !ctx->ending) {
        troupe_waits waits = {.teller = teller, .who = who};
        tr_name_actor(ctx, who, sizeof who);
        ctx->type->waits(ctx, &waits);
    }
}

void
tr_host_waits(tr_host *host, void (*tell)(void *user, const tr_wait *wait), void *user)
{
    struct teller teller = {.tell = tell, .user = user};
    const struct tr_open_table *open = &host->open;
    for (uint32_t at = open->oldest; at != 0; at = open->entries[at - 1].newer) {
        tell_open(host, &open->entries[at - 1], &teller);
    }
    for (uint32_t slot = 0; slot < host->actor_capacity; slot++) {
        if (host->actors[slot] != NULL) {
            tell_kept(host, host->actors[slot], &teller);
            tell_queued(host, host->actors[slot], &teller);
            tell_own(host->actors[slot], &teller);
        }
    }
    const struct tr_timers *timers = &host->loop.timers;
    for (uint32_t i = 0; i < timers->capacity; i++) {
        tell_timer(&timers->entries[i], &teller);
    }
}
