/* Calls that wait for answers to earlier calls of the same actor. They wait on the caller's side,
 * in the table of open calls, with a nil in the place of each missing value. An answer is handed
 * on while it lies in the actor's mailbox, before its own callback runs. Failures run down a chain
 * through a list, not by recursion: a chain may be as long as the table. */
#include "actor/chain.h"

#include "actor/host.h"

#include <troupe/ext/wire.h>

#include <stdio.h>
#include <string.h>

void
tr_chain_free(struct tr_chain *chain)
{
    for (uint32_t i = 0; chain != NULL && i < chain->count; i++) {
        tr_free(chain->awaits[i].bytes);
    }
    tr_free(chain);
}

/* --- an answer is there --------------------------------------------------------------------- */

/* The bytes of one value; NULL when there is none. */
static const uint8_t *
value_bytes(const struct troupe_msg *answer, int value, size_t *size)
{
    tr_reader reader;
    uint32_t count = 0;
    tr_reader_init(&reader, tr_msg_body_const(answer), answer->frame.length);
    if (!tr_read_array(&reader, &count) || (uint32_t)value >= count) {
        return NULL;
    }
    for (int i = 0; i < value; i++) {
        if (!tr_read_skip(&reader)) {
            return NULL;
        }
    }
    const uint8_t *first = reader.next;
    if (!tr_read_skip(&reader)) {
        return NULL;
    }
    *size = (size_t)(reader.next - first);
    return first;
}

static void
fail_for(tr_host *host, uint32_t index, const struct troupe_msg *answer)
{
    tr_buf text = {0};
    tr_buf_printf(&text, "it waited for the answer of %s", answer->text);
    tr_open_fail(host, index, (troupe_status)answer->frame.status, text.data);
    tr_buf_fini(&text);
}

static void
fail_value(tr_host *host, uint32_t index, const struct troupe_msg *answer, int value)
{
    char text[TR_WHO_MAX];
    (void)snprintf(text, sizeof text, "it waited for value %d of the answer of %s, which has %d",
        value, answer->name, troupe_arg_count(answer));
    tr_open_fail(host, index, TROUPE_BAD_INPUT, text);
}

/* Takes over the values of `answer`; false when that ended the call. */
static bool
fill(tr_host *host, uint32_t index, const struct troupe_msg *answer)
{
    struct tr_chain *chain = host->open.entries[index].chain;
    for (uint32_t i = 0; i < chain->count; i++) {
        struct tr_await *await = &chain->awaits[i];
        if (await->of.call != answer->frame.call || await->bytes != NULL) {
            continue;
        }
        if (answer->frame.status != TROUPE_OK) {
            fail_for(host, index, answer);
            return false;
        }
        const uint8_t *bytes = value_bytes(answer, await->value, &await->size);
        if (bytes == NULL) {
            fail_value(host, index, answer, await->value);
            return false;
        }
        await->bytes = tr_alloc(await->size);
        memcpy(await->bytes, bytes, await->size);
        chain->missing--;
    }
    return true;
}

/* The message with the values in their places; NULL when it is too large. */
static struct troupe_msg *
splice(const struct troupe_msg *with_nils, const struct tr_chain *chain)
{
    size_t total = with_nils->frame.length;
    for (uint32_t i = 0; i < chain->count; i++) {
        total += chain->awaits[i].size - 1;
    }
    if (total > TR_FRAME_BODY_MAX) {
        return NULL;
    }
    struct troupe_msg *msg = tr_msg_new(total);
    const uint8_t *from = tr_msg_body_const(with_nils);
    uint8_t *to = tr_msg_body(msg);
    size_t at = 0;
    msg->frame = with_nils->frame;
    msg->frame.length = (uint32_t)total;
    for (uint32_t i = 0; i < chain->count; i++) {
        const struct tr_await *await = &chain->awaits[i];
        memcpy(to, from + at, await->offset - at);
        to += await->offset - at;
        memcpy(to, await->bytes, await->size);
        to += await->size;
        at = await->offset + 1;
    }
    memcpy(to, from + at, with_nils->frame.length - at);
    return msg;
}

static void
send_spliced(tr_host *host, uint32_t index)
{
    struct tr_open *open = &host->open.entries[index];
    struct troupe_msg *msg = splice(open->copy, open->chain);
    if (msg == NULL) {
        tr_open_fail(host, index, TROUPE_INVALID, "with the values that came it is too large");
        return;
    }
    tr_msg_free(open->copy);
    tr_chain_free(open->chain);
    open->copy = msg;
    open->chain = NULL;
    troupe_status status = tr_call_transmit(host, index);
    if (status != TROUPE_OK) {
        tr_open_setback(host, index, status, troupe_status_text(status));
    }
}

static void
offer(tr_host *host, uint32_t index, const struct troupe_msg *answer)
{
    if (fill(host, index, answer) && host->open.entries[index].chain->missing == 0) {
        send_spliced(host, index);
    }
}

static bool
still_waits(const tr_host *host, const struct tr_waiter *waiter)
{
    const struct tr_open *open = &host->open.entries[waiter->index];
    return open->call == waiter->call && open->chain != NULL;
}

void
tr_waiters_free(struct tr_waiters *waiters)
{
    if (waiters != NULL) {
        tr_free(waiters->list);
        tr_free(waiters);
    }
}

/* A call that many others wait for, and that they give up, would collect them: those that have
 * ended leave before the list grows. */
static void
make_room(const tr_host *host, struct tr_waiters *waiters)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < waiters->count; i++) {
        if (still_waits(host, &waiters->list[i])) {
            waiters->list[kept++] = waiters->list[i];
        }
    }
    waiters->count = kept;
    if (kept >= waiters->capacity / 2) {
        waiters->capacity = TR_MAX(waiters->capacity * 2, (uint32_t)2);
        waiters->list = tr_realloc(waiters->list, waiters->capacity, sizeof *waiters->list);
    }
}

static void
add_waiter(tr_host *host, uint32_t of, uint32_t index)
{
    struct tr_open *open = &host->open.entries[of];
    if (open->waiters == NULL) {
        open->waiters = tr_zalloc(1, sizeof *open->waiters);
    }
    struct tr_waiters *waiters = open->waiters;
    uint64_t call = host->open.entries[index].call;
    if (waiters->count > 0 && waiters->list[waiters->count - 1].call == call) {
        return; /* a second value of the same answer */
    }
    if (waiters->count == waiters->capacity) {
        make_room(host, waiters);
    }
    waiters->list[waiters->count++] = (struct tr_waiter){.call = call, .index = index};
}

static void
hand_on(tr_host *host, const struct tr_settled *settled)
{
    for (uint32_t i = 0; i < settled->waiters->count; i++) {
        const struct tr_waiter *waiter = &settled->waiters->list[i];
        if (still_waits(host, waiter)) {
            offer(host, waiter->index, settled->answer);
        }
    }
    tr_waiters_free(settled->waiters);
}

void
tr_chain_settle(tr_host *host, struct troupe_msg *answer, struct tr_waiters *waiters)
{
    host->settled =
        tr_realloc(host->settled, (size_t)host->settled_count + 1, sizeof *host->settled);
    host->settled[host->settled_count++] =
        (struct tr_settled){.answer = answer, .waiters = waiters};
    if (host->settling) {
        return;
    }
    host->settling = true;
    for (uint32_t i = 0; i < host->settled_count; i++) {
        struct tr_settled settled = host->settled[i]; /* the array may move */
        hand_on(host, &settled);
    }
    host->settled_count = 0;
    host->settling = false;
}

/* --- the beginning -------------------------------------------------------------------------- */

/* An answer that has come and whose callback has not begun. */
static const struct troupe_msg *
find_unread(const troupe_ctx *ctx, troupe_call_id of)
{
    const struct troupe_msg *msg = ctx->mailbox.first;
    while (msg != NULL && (msg->frame.kind != TR_FRAME_ANSWER || msg->frame.call != of.call)) {
        msg = msg->next;
    }
    return msg;
}

troupe_status
tr_chain_begin(tr_host *host, uint32_t index, struct tr_chain *chain, struct troupe_msg *msg)
{
    troupe_ctx *ctx = host->open.entries[index].ctx;
    for (uint32_t i = 0; i < chain->count; i++) {
        troupe_call_id of = chain->awaits[i].of;
        if (tr_open_find(ctx, of) < 0 && find_unread(ctx, of) == NULL) {
            return TROUPE_NOT_FOUND;
        }
    }
    uint64_t call = host->open.entries[index].call;
    host->open.entries[index].chain = chain;
    host->open.entries[index].copy = msg;
    const struct troupe_msg *unread[TR_CHAIN_MAX];
    uint32_t unread_count = 0;
    for (uint32_t i = 0; i < chain->count; i++) {
        int64_t of = tr_open_find(ctx, chain->awaits[i].of);
        if (of >= 0) {
            add_waiter(host, (uint32_t)of, index);
        } else {
            unread[unread_count++] = find_unread(ctx, chain->awaits[i].of);
        }
    }
    /* An answer of which two values are wanted fills both the first time. */
    for (uint32_t i = 0; i < unread_count && host->open.entries[index].call == call &&
                         host->open.entries[index].chain != NULL;
         i++) {
        offer(host, index, unread[i]);
    }
    return TROUPE_OK;
}

void
tr_chain_text(const tr_host *host, const struct tr_open *open, char *out, size_t capacity)
{
    char who[TR_WHO_MAX] = "";
    const char *method = "";
    for (uint32_t i = 0; i < open->chain->count; i++) {
        const struct tr_await *await = &open->chain->awaits[i];
        int64_t of = await->bytes != NULL ? -1 : tr_open_find(open->ctx, await->of);
        if (of >= 0) {
            tr_name_target(host, host->open.entries[of].to, who, sizeof who);
            method = host->open.entries[of].method;
            break;
        }
    }
    (void)snprintf(
        out, capacity, "%u values, the first of %s.%s", open->chain->missing, who, method);
}
