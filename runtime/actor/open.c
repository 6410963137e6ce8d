/* Open calls: what was sent and is not answered. Each ends in exactly one of the ways at the end
 * of this file, by an answer, a failure or the end of its own actor. */
#include "actor/made.h"
#include "actor/stream.h"

#include <stdio.h>
#include <string.h>

static bool
grow(struct tr_open_table *table)
{
    if (table->capacity == table->capacity_max) {
        return false;
    }
    uint32_t capacity = TR_MIN(TR_MAX(table->capacity * 2, (uint32_t)64), table->capacity_max);
    table->entries = tr_realloc(table->entries, capacity, sizeof *table->entries);
    for (uint32_t i = capacity; i > table->capacity; i--) {
        table->entries[i - 1] = (struct tr_open){.newer = table->free};
        table->free = i;
    }
    table->capacity = capacity;
    return true;
}

struct tr_open *
tr_open_add(struct tr_open_table *table, uint32_t *index)
{
    if (table->free == 0 && !grow(table)) {
        return NULL;
    }
    *index = table->free - 1;
    struct tr_open *open = &table->entries[*index];
    table->free = open->newer;
    *open = (struct tr_open){.call = ++table->last_call, .older = table->newest};
    if (table->newest == 0) {
        table->oldest = *index + 1;
    } else {
        table->entries[table->newest - 1].newer = *index + 1;
    }
    table->newest = *index + 1;
    table->count++;
    return open;
}

void
tr_open_remove(struct tr_open_table *table, uint32_t index)
{
    struct tr_open *open = &table->entries[index];
    TR_ASSERT(open->call != 0);
    if (open->older == 0) {
        table->oldest = open->newer;
    } else {
        table->entries[open->older - 1].newer = open->newer;
    }
    if (open->newer == 0) {
        table->newest = open->older;
    } else {
        table->entries[open->newer - 1].older = open->older;
    }
    *open = (struct tr_open){.newer = table->free};
    table->free = index + 1;
    table->count--;
}

uint64_t
tr_open_oldest(const struct tr_open_table *table, uint64_t otherwise)
{
    return table->oldest == 0 ? otherwise : table->entries[table->oldest - 1].call;
}

void
tr_open_fini(struct tr_open_table *table)
{
    TR_ASSERT(table->count == 0);
    tr_free(table->entries);
    *table = (struct tr_open_table){0};
}

/* Frees what the entry holds besides its place in the table. */
static void
release(tr_host *host, uint32_t index)
{
    struct tr_open *open = &host->open.entries[index];
    (void)tr_timers_cancel(&host->loop.timers, open->deadline_timer);
    open->ctx->open_count--;
    if (open->handle != 0) {
        open->ctx->handles[open->handle - 1].open--;
    }
    if (open->resend_ns != 0 || open->copy != NULL) {
        (void)tr_timers_cancel(&host->loop.timers, open->resend_timer);
        tr_chain_free(open->chain);
        tr_msg_free(open->copy);
        tr_free(open->last);
    }
    if (open->in != NULL) {
        tr_in_free(host, open->in);
    }
    tr_waiters_free(open->waiters);
    tr_open_remove(&host->open, index);
}

int64_t
tr_open_find(const troupe_ctx *ctx, troupe_call_id id)
{
    const struct tr_open_table *table = &ctx->host->open;
    if (id.call == 0 || id.slot >= table->capacity || table->entries[id.slot].call != id.call ||
        table->entries[id.slot].ctx != ctx) {
        return -1;
    }
    return id.slot;
}

void
tr_open_drop(tr_host *host, uint32_t index)
{
    release(host, index);
}

/* An error is told with the name of who was called: the one who answers does not know it, and
 * the one who reads the log needs it. */
static void
name_error(tr_host *host, const struct tr_open *open, struct troupe_msg *answer)
{
    char text[512], who[TR_WHO_MAX];
    tr_msg_text(answer, text, sizeof text);
    tr_name_target(host, open->to, who, sizeof who);
    tr_buf full = {0};
    tr_buf_printf(&full, "%s.%s: %s", who, open->method,
        text[0] != '\0' ? text : troupe_status_text((troupe_status)answer->frame.status));
    answer->text = full.data;
    tr_msg_attach(answer, tr_free, full.data);
}

void
tr_open_finish(tr_host *host, uint32_t index, struct troupe_msg *answer)
{
    struct tr_open *open = &host->open.entries[index];
    troupe_ctx *ctx = open->ctx;
    struct tr_waiters *waiters = open->waiters;
    open->waiters = NULL;
    answer->text = "";
    if (answer->frame.status != 0) {
        name_error(host, open, answer);
    }
    answer->frame.trace = open->trace;
    answer->owner = ctx;
    answer->name = open->method;
    answer->on_answer = open->on_answer;
    answer->user = open->user;
    answer->since_ns = open->since_ns;
    answer->deadline_ns = open->deadline_ns;
    release(host, index);
    tr_mailbox_push(&ctx->mailbox, answer);
    ctx->blocked = false;
    tr_loop_queue(&host->loop, &ctx->task);
    if (waiters != NULL) {
        tr_chain_settle(host, answer, waiters);
    }
}

void
tr_open_fail(tr_host *host, uint32_t index, troupe_status status, const char *text)
{
    struct troupe_msg *answer = tr_msg_of_text(text);
    answer->frame.kind = TR_FRAME_ANSWER;
    answer->frame.flags = TR_FRAME_RUNTIME;
    answer->frame.status = (uint8_t)status;
    answer->frame.call = host->open.entries[index].call;
    tr_open_finish(host, index, answer);
}

/* What was sent to an incarnation that lives arrives, once, and so does its answer or the news of
 * its end: sending again could only be taken for a repetition. */
static bool
is_on_its_way(const tr_host *host, const struct tr_open *open)
{
    tr_address to = {.node = open->sent_to.node, .loop = open->sent_to.loop};
    return open->sent_to.incarnation != 0 &&
           (host->options.link->exact || tr_address_equal(to, host->options.address));
}

static void
resend(const struct tr_timer_job *job)
{
    tr_host *host = job->self;
    uint32_t index = (uint32_t)(uintptr_t)job->user;
    struct tr_open *open = &host->open.entries[index];
    open->resend_timer = (troupe_timer){0};
    if (is_on_its_way(host, open)) {
        return;
    }
    troupe_status status = tr_call_transmit(host, index);
    if (status != TROUPE_OK) {
        tr_open_setback(host, index, status, troupe_status_text(status));
    }
}

/* The pause before the next send doubles each time, up to eight times the first. */
void
tr_open_arm(tr_host *host, uint32_t index)
{
    struct tr_open *open = &host->open.entries[index];
    if (open->resend_ns == 0 || open->resend_timer.slot != 0 || is_on_its_way(host, open)) {
        return;
    }
    uint64_t when = host->loop.now_ns + open->resend_ns;
    struct tr_timer_job job = {.run = resend, .self = host, .user = (void *)(uintptr_t)index};
    open->resend_ns = TR_MIN(open->resend_ns * 2, open->resend_max_ns);
    /* Without a free timer the call is not sent again; its deadline still ends it. */
    (void)tr_timers_add(&host->loop.timers, host->loop.now_ns, when, &job, &open->resend_timer);
}

/* Whether sending again may help: there was no room, or the role's replica will be replaced. */
static bool
has_hope(const struct tr_open *open, troupe_status status)
{
    if (open->resend_ns == 0) {
        return false;
    }
    switch ((int)status) {
    case TROUPE_AGAIN:
    case TROUPE_LINK:
        return true;
    case TROUPE_GONE:
    case TROUPE_DIED:
    case TROUPE_NOT_FOUND:
        return open->to.role != 0;
    default:
        return false;
    }
}

void
tr_open_setback(tr_host *host, uint32_t index, troupe_status status, const char *text)
{
    struct tr_open *open = &host->open.entries[index];
    /* No room is one word for the caller, wherever the one who was called lives. */
    status = status == TROUPE_FULL ? TROUPE_AGAIN : status;
    if (open->to.role == TR_NAMED) {
        tr_name_forget(host, open->sent_to);
    }
    if (open->in != NULL && tr_in_lost(host, index, status, text)) {
        return;
    }
    bool unheard = open->to.role == TR_NAMED && open->copy != NULL &&
                   (status == TROUPE_GONE || (status == TROUPE_NOT_FOUND && open->last == NULL));
    if (!unheard && !has_hope(open, status)) {
        tr_open_fail(host, index, status, text);
        return;
    }
    tr_free(open->last);
    open->last = tr_strdup(text);
    open->last_status = status;
    open->sent_to = (troupe_ref){0};
    tr_open_arm(host, index);
    if (open->to.role == TR_NAMED) {
        tr_name_ask(host, index);
    }
}

/* Walks from the oldest to the newest; an entry may end, and so may new ones begin, while it is
 * visited. */
static void
for_each(
    tr_host *host, bool (*visit)(tr_host *host, uint32_t index, const void *user), const void *user)
{
    uint64_t last = host->open.last_call;
    uint32_t at = host->open.oldest;
    while (at != 0 && host->open.entries[at - 1].call <= last) {
        uint32_t newer = host->open.entries[at - 1].newer;
        (void)visit(host, at - 1, user);
        at = newer;
    }
}

struct down {
    troupe_ref ref;
    const char *cause;
};

static bool
visit_down(tr_host *host, uint32_t index, const void *user)
{
    const struct down *down = user;
    if (!troupe_ref_equal(host->open.entries[index].sent_to, down->ref)) {
        return false;
    }
    tr_open_setback(host, index, TROUPE_DIED, down->cause);
    return true;
}

void
tr_open_down(tr_host *host, troupe_ref ref, const char *cause)
{
    struct down down = {.ref = ref, .cause = cause};
    for_each(host, visit_down, &down);
}

struct gone {
    tr_address peer;
    uint32_t epoch;
};

static bool
visit_gone(tr_host *host, uint32_t index, const void *user)
{
    const struct gone *gone = user;
    troupe_ref to = host->open.entries[index].sent_to;
    tr_address address = {.node = to.node, .loop = to.loop};
    if (to.incarnation == 0 || !tr_address_equal(address, gone->peer) ||
        to.incarnation >> 16 > gone->epoch) {
        return false;
    }
    tr_open_setback(host, index, TROUPE_DIED, "the loop that it was on is gone");
    return true;
}

void
tr_open_gone(tr_host *host, tr_address peer, uint32_t epoch)
{
    struct gone gone = {.peer = peer, .epoch = epoch};
    for_each(host, visit_gone, &gone);
}

/* A call that waits for this replica is sent at once; the timer of its next try starts anew. */
static bool
visit_up(tr_host *host, uint32_t index, const void *user)
{
    const troupe_target *up = user;
    struct tr_open *open = &host->open.entries[index];
    if (open->to.role != up->role || open->to.replica != up->replica ||
        open->sent_to.incarnation != 0 || open->chain != NULL) {
        return false;
    }
    (void)tr_timers_cancel(&host->loop.timers, open->resend_timer);
    open->resend_timer = (troupe_timer){0};
    troupe_status status = tr_call_transmit(host, index);
    if (status != TROUPE_OK) {
        tr_open_setback(host, index, status, troupe_status_text(status));
    }
    return true;
}

void
tr_open_up(tr_host *host, uint16_t role, uint16_t replica)
{
    troupe_target up = {.role = (uint16_t)(role + 1), .replica = replica};
    for_each(host, visit_up, &up);
}
