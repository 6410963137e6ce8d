/* Actors that actors make, and names. An actor with a name is held until the node's actor has
 * noted it; then it keeps a call open there (the hold), whose end tells that the name is free. A
 * target that means a name is looked up when a call needs it and forgotten when its bearer dies. */
#include "actor/made.h"

#include <troupe/spawn.h>

#include <stdio.h>
#include <string.h>

enum {
    KNOWN_MAX = 4096,
    NAME_MAX_BYTES = 63
};

#define HOLD_NS UINT64_C(60000000000)

/* --- addresses as values -------------------------------------------------------------------- */

void
tr_args_ref(troupe_args *args, troupe_ref ref)
{
    troupe_args_u64(args, ref.node);
    troupe_args_u64(args, ref.loop);
    troupe_args_u64(args, ref.slot);
    troupe_args_u64(args, ref.incarnation);
}

troupe_ref
tr_arg_ref(troupe_call *call, int index)
{
    uint64_t word[4];
    for (int i = 0; i < 4; i++) {
        word[i] = troupe_arg_u64(call, index + i);
        if (word[i] > (i == 3 ? UINT32_MAX : UINT16_MAX)) {
            troupe_arg_refuse(call, index + i, "a part of an address is wanted");
            return (troupe_ref){0};
        }
    }
    return (troupe_ref){.node = (uint16_t)word[0],
        .loop = (uint16_t)word[1],
        .slot = (uint16_t)word[2],
        .incarnation = (uint32_t)word[3]};
}

troupe_ref
troupe_answer_ref(troupe_answer *answer)
{
    if (answer == NULL || troupe_answer_status(answer) != TROUPE_OK ||
        troupe_arg_count(answer) < 4) {
        return (troupe_ref){0};
    }
    return tr_arg_ref(answer, 0);
}

/* --- a name for an actor -------------------------------------------------------------------- */

void
tr_made_free(struct tr_made *made)
{
    if (made != NULL) {
        tr_free(made->name);
        tr_free(made->config);
        tr_free(made);
    }
}

static troupe_status
ask_node(troupe_ctx *ctx, const char *method, troupe_args *args, uint64_t deadline_ns,
    troupe_answer_fn on_answer, void *user, troupe_call_id *id)
{
    troupe_status status = troupe_call_send(ctx, troupe_to(ctx, TR_ROLE_NODE, 0), method, args,
        .on_answer = on_answer, .user = user, .retry = true, .deadline_ns = deadline_ns, .id = id);
    if (status != TROUPE_OK) {
        troupe_args_fini(args);
    }
    return status;
}

/* It ended because nobody at the node waits for it any more, or its time is over: once more. A node
 * that forgot the name lost it to another. */
static void hold(troupe_ctx *ctx);

static void
on_hold_end(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)user;
    switch ((int)troupe_answer_status(answer)) {
    case TROUPE_CANCELLED:
        break;
    case TROUPE_EXISTS:
    case TROUPE_NOT_FOUND:
        troupe_exit(ctx, TROUPE_EXISTS, "%s", troupe_answer_text(answer));
        break;
    default:
        hold(ctx);
        break;
    }
}

static void
hold(troupe_ctx *ctx)
{
    troupe_args args = {0};
    troupe_args_str(&args, ctx->made->name);
    tr_args_ref(&args, troupe_self(ctx));
    troupe_args_bool(&args, ctx->made->restarts_left > 0);
    (void)ask_node(ctx, TR_METHOD_NAME_HOLD, &args, HOLD_NS, on_hold_end, NULL, &ctx->made->hold);
}

static void
on_claimed(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)user;
    if (troupe_answer_status(answer) != TROUPE_OK) {
        ctx->nameless = troupe_answer_status(answer) == TROUPE_EXISTS;
        troupe_exit(ctx, ctx->nameless ? TROUPE_STOPPED : troupe_answer_status(answer), "%s",
            troupe_answer_text(answer));
        return;
    }
    hold(ctx);
    tr_restore_begin(ctx);
}

static troupe_status
claim(troupe_ctx *ctx)
{
    troupe_args args = {0};
    troupe_args_str(&args, ctx->made->name);
    tr_args_ref(&args, troupe_self(ctx));
    tr_args_ref(&args, ctx->made->follows);
    ctx->held = true;
    return ask_node(ctx, TR_METHOD_NAME_CLAIM, &args, 0, on_claimed, NULL, NULL);
}

/* --- made and made again -------------------------------------------------------------------- */

/* Takes `made`, also when it fails. */
static troupe_status
make(tr_host *host, const troupe_class *type, struct tr_made *made, troupe_ref *ref,
    troupe_error *err)
{
    tr_spawn spawn = {.type = type,
        .role = TR_NO_ROLE,
        .config = made->config,
        .mailbox = made->mailbox,
        .made = made};
    troupe_status status = tr_host_spawn(host, &spawn, ref, err);
    if (status != TROUPE_OK) {
        return status;
    }
    troupe_ctx *ctx = tr_host_actor(host, *ref);
    ctx->start_due = true;
    status = made->name == NULL ? TROUPE_OK : claim(ctx);
    if (status != TROUPE_OK) {
        tr_actor_end(ctx, TROUPE_STOPPED, "its name could not be asked for");
        return troupe_fail(err, status, "%s: nobody keeps names in this run", type->name);
    }
    return TROUPE_OK;
}

struct tr_made *
tr_made_leave(troupe_ctx *ctx, troupe_status status)
{
    struct tr_made *made = ctx->made;
    tr_host *host = ctx->host;
    ctx->made = NULL;
    bool again = made != NULL && made->restarts_left > 0 && status != TROUPE_STOPPED &&
                 !ctx->unmade && !host->killed && !host->stopping && !host->stop_told;
    if (again) {
        made->restarts_left--;
        made->follows = troupe_self(ctx);
        made->hold = (troupe_call_id){0};
        return made;
    }
    if (made != NULL && made->name != NULL && !host->killed && made->hold.call != 0) {
        ctx->made = made;
        tr_state_drop(ctx);
        ctx->made = NULL;
        (void)troupe_cancel(ctx, made->hold); /* for good: the name is free at once */
    }
    tr_made_free(made);
    return NULL;
}

void
tr_made_again(tr_host *host, const troupe_class *type, struct tr_made *made)
{
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    troupe_ref ref;
    if (make(host, type, made, &ref, &err) != TROUPE_OK) {
        tr_host_log(host, err.text);
    }
}

troupe_status
troupe_spawn_with(troupe_ctx *ctx, const troupe_class *type, const troupe_spawn_options *given,
    troupe_ref *out, troupe_error *err)
{
    troupe_spawn_options options;
    if (type == NULL || type->name == NULL) {
        return troupe_fail(err, TROUPE_INVALID, "an actor is made of a class with a name");
    }
    if (ctx->host->closing) {
        return troupe_fail(err, TROUPE_STOPPED, "%s: the run has ended", type->name);
    }
    if (!tr_options_copy(&options, sizeof options, given) || options.restarts < 0 ||
        options.mailbox < 0 ||
        (options.name != NULL &&
            (options.name[0] == '\0' || strlen(options.name) > NAME_MAX_BYTES))) {
        return troupe_fail(err, TROUPE_INVALID,
            "%s: options of another size, a negative number, or a name not of 1 to %d bytes",
            type->name, NAME_MAX_BYTES);
    }
    struct tr_made *made = tr_zalloc(1, sizeof *made);
    made->name = options.name == NULL ? NULL : tr_strdup(options.name);
    made->config = options.config == NULL ? NULL : tr_strdup(options.config);
    made->mailbox = options.mailbox;
    made->restarts_left = options.restarts;
    troupe_ref ref;
    troupe_status status = make(ctx->host, type, made, &ref, err);
    if (status != TROUPE_OK) {
        return status;
    }
    if (out != NULL) {
        *out = ref;
    }
    if (options.on_answer != NULL) {
        status = troupe_call_send(ctx, troupe_to_ref(ref), TR_METHOD_AT_UP, NULL,
            .on_answer = options.on_answer, .user = options.user);
        if (status != TROUPE_OK) {
            tr_host_end(ctx->host, ref, TROUPE_STOPPED, "its maker cannot be told");
            return troupe_fail(err, status, "%s: no room for one more call", type->name);
        }
    }
    return TROUPE_OK;
}

/* --- the runtime's own methods -------------------------------------------------------------- */

static void
run_stop(troupe_ctx *ctx, struct troupe_msg *call)
{
    call->name = TR_METHOD_AT_STOP;
    (void)troupe_defer(call); /* answered STOPPED by the end */
    if (ctx->stop_asked) {
        return;
    }
    ctx->stop_asked = true;
    if (ctx->stopped || ctx->type->stop == NULL || ctx->type->stop(ctx)) {
        troupe_stopped(ctx);
    }
}

bool
tr_run_own(troupe_ctx *ctx, struct troupe_msg *call)
{
    if (call->frame.method == tr_method_id(TR_METHOD_AT_UP)) {
        troupe_args args = {0};
        tr_args_ref(&args, troupe_self(ctx));
        (void)troupe_reply(call, &args);
        return true;
    }
    if (call->frame.method == tr_method_id(TR_METHOD_AT_STOP)) {
        run_stop(ctx, call);
        return true;
    }
    return false;
}

troupe_status
troupe_stop_actor(troupe_ctx *ctx, troupe_target actor, troupe_answer_fn on_answer, void *user)
{
    return troupe_call_send(
        ctx, actor, TR_METHOD_AT_STOP, NULL, .on_answer = on_answer, .user = user);
}

/* --- whom a name means ---------------------------------------------------------------------- */

troupe_status
troupe_find(troupe_ctx *ctx, const char *name, troupe_answer_fn on_answer, void *user)
{
    troupe_args args = {0};
    if (name == NULL) {
        return TROUPE_INVALID;
    }
    troupe_args_str(&args, name);
    tr_args_ref(&args, (troupe_ref){0});
    return ask_node(ctx, TR_METHOD_NAME_FIND, &args, 0, on_answer, user, NULL);
}

troupe_status
troupe_to_name(troupe_ctx *ctx, const char *name, troupe_target *target)
{
    tr_host *host = ctx->host;
    uint32_t at = 0;
    *target = (troupe_target){0};
    if (name == NULL) {
        return TROUPE_INVALID;
    }
    while (at < host->known_count && strcmp(host->known[at].name, name) != 0) {
        at++;
    }
    if (at == KNOWN_MAX) {
        return TROUPE_FULL;
    }
    if (at == host->known_count) {
        host->known = tr_realloc(host->known, (size_t)at + 1, sizeof *host->known);
        host->known[host->known_count++] = (struct tr_known){.name = tr_strdup(name)};
    }
    *target = (troupe_target){.role = TR_NAMED, .replica = (uint16_t)at};
    return TROUPE_OK;
}

void
tr_known_fini(tr_host *host)
{
    for (uint32_t i = 0; i < host->known_count; i++) {
        tr_free(host->known[i].name);
    }
    tr_free(host->known);
}

void
tr_name_forget(tr_host *host, troupe_ref ref)
{
    for (uint32_t i = 0; i < host->known_count && ref.incarnation != 0; i++) {
        if (troupe_ref_equal(host->known[i].ref, ref)) {
            host->known[i].gone = ref;
            host->known[i].ref = (troupe_ref){0};
        }
    }
}

/* Every call that waits for this name goes, or hears why not. */
static void
send_waiting(tr_host *host, uint16_t at, troupe_status status, const char *text)
{
    uint64_t last = host->open.last_call;
    for (uint32_t next = host->open.oldest;
         next != 0 && host->open.entries[next - 1].call <= last;) {
        uint32_t index = next - 1;
        const struct tr_open *open = &host->open.entries[index];
        next = open->newer;
        if (open->to.role != TR_NAMED || open->to.replica != at || open->sent_to.incarnation != 0 ||
            open->chain != NULL) {
            continue;
        }
        if (status != TROUPE_OK && open->resend_ns == 0) {
            tr_open_fail(host, index, status, text);
        } else if (status == TROUPE_OK) {
            status = tr_call_transmit(host, index);
            if (status != TROUPE_OK) {
                tr_open_setback(host, index, status, troupe_status_text(status));
            }
            status = TROUPE_OK;
        }
    }
}

static void
on_found(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    tr_host *host = ctx->host;
    uint16_t at = (uint16_t)(uintptr_t)user;
    host->known[at].asking = false;
    host->known[at].ref = troupe_answer_ref(answer);
    troupe_status status = troupe_answer_status(answer);
    const char *text = "nobody has this name";
    send_waiting(host, at, status, status == TROUPE_NOT_FOUND ? text : troupe_answer_text(answer));
}

/* The question is asked by the actor whose call needs it. Should that end first, the next call, or
 * the next try of another, asks again. */
void
tr_name_ask(tr_host *host, uint32_t index)
{
    const struct tr_open *open = &host->open.entries[index];
    uint16_t at = open->to.replica;
    if (host->known[at].asking &&
        tr_actor_at(host, host->known[at].asker.slot, host->known[at].asker.incarnation) != NULL) {
        return;
    }
    troupe_ctx *ctx = open->ctx;
    uint64_t call = open->call;
    troupe_args args = {0};
    troupe_args_str(&args, host->known[at].name);
    tr_args_ref(&args, host->known[at].gone);
    host->known[at].asking = true;
    host->known[at].asker = troupe_self(ctx);
    troupe_status status =
        ask_node(ctx, TR_METHOD_NAME_FIND, &args, 0, on_found, (void *)(uintptr_t)at, NULL);
    if (status != TROUPE_OK) {
        host->known[at].asking = false;
        if (host->open.entries[index].call == call && host->open.entries[index].resend_ns == 0) {
            tr_open_fail(host, index, status, "nobody keeps names in this run");
        }
    }
}
