/* States that outlive an incarnation. An actor whose class has a restore hook is held after its
 * init until the node's actor has said whether a state is kept, so the hook runs before any
 * message. A state travels as the bytes of a message's body: one message, so all of it or none. */
#include "actor/made.h"

#include <troupe/ext/wire.h>
#include <troupe/spawn.h>

#include <stdio.h>
#include <string.h>

/* "rollout[2]" of a role, "@name" of a named one; false for an actor of which nobody could ask. */
static bool
key_of(const troupe_ctx *ctx, char *out, size_t capacity)
{
    if (ctx->role != TR_NO_ROLE) {
        (void)snprintf(out, capacity, "%s[%u]", ctx->role_name, ctx->replica);
        return true;
    }
    if (ctx->made != NULL && ctx->made->name != NULL) {
        (void)snprintf(out, capacity, "@%s", ctx->made->name);
        return true;
    }
    return false;
}

static bool
has_keeper(const troupe_ctx *ctx)
{
    return tr_directory_find(ctx->host->options.directory, TR_ROLE_NODE) >= 0;
}

static void
begin_args(const troupe_ctx *ctx, troupe_args *args)
{
    char key[TR_WHO_MAX] = "";
    (void)key_of(ctx, key, sizeof key);
    troupe_args_str(args, key);
    tr_args_ref(args, troupe_self(ctx));
}

/* --- keep ----------------------------------------------------------------------------------- */

static troupe_status
send_state(troupe_ctx *ctx, const struct troupe_msg *state, troupe_answer_fn on_answer, void *user)
{
    troupe_args args = {0};
    begin_args(ctx, &args);
    troupe_args_u64(&args, ++ctx->checkpoints);
    troupe_args_bin(&args, tr_msg_body_const(state), state->frame.length);
    troupe_status status = troupe_call_send(ctx, troupe_to(ctx, TR_ROLE_NODE, 0),
        TR_METHOD_KEPT_PUT, &args, .on_answer = on_answer, .user = user, .retry = true);
    if (status != TROUPE_OK) {
        troupe_args_fini(&args);
    }
    return status;
}

troupe_status
troupe_checkpoint(troupe_ctx *ctx, troupe_answer_fn on_answer, void *user)
{
    char key[TR_WHO_MAX];
    if (ctx->type->checkpoint == NULL || ctx->writing || !key_of(ctx, key, sizeof key)) {
        return TROUPE_INVALID;
    }
    troupe_args state = {0};
    struct troupe_msg *msg = NULL;
    ctx->writing = true;
    ctx->type->checkpoint(ctx, &state);
    ctx->writing = false;
    troupe_status status = tr_args_seal(&state, &msg);
    if (status == TROUPE_OK) {
        status = send_state(ctx, msg, on_answer, user);
    }
    troupe_args_fini(&state);
    return status;
}

static void checkpoint_later(troupe_ctx *ctx);

static void
on_kept(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)user;
    if (troupe_answer_status(answer) != TROUPE_OK) {
        troupe_log(ctx, "its state was not kept: %s", troupe_answer_text(answer));
    }
    checkpoint_later(ctx);
}

/* The next one is due only when the one before has been answered: they cannot pile up. */
static void
checkpoint_now(troupe_ctx *ctx, void *user)
{
    (void)user;
    if (troupe_checkpoint(ctx, on_kept, NULL) != TROUPE_OK) {
        checkpoint_later(ctx);
    }
}

static void
checkpoint_later(troupe_ctx *ctx)
{
    if (troupe_timer_start_for(ctx, ctx->type->checkpoint_every_ns, "the next checkpoint",
            checkpoint_now, NULL, NULL) != TROUPE_OK) {
        troupe_log(ctx, "no timer is left for its checkpoints");
    }
}

/* --- restore -------------------------------------------------------------------------------- */

static void
go_on(troupe_ctx *ctx)
{
    ctx->held = false;
    ctx->blocked = false;
    if (ctx->type->checkpoint_every_ns != 0 && ctx->type->checkpoint != NULL) {
        checkpoint_later(ctx);
    }
    tr_actor_stir(ctx);
}

static void
restore(troupe_ctx *ctx, troupe_answer *answer)
{
    size_t size = 0;
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    const void *bytes = troupe_arg_bin(answer, 0, &size);
    if (size > TR_FRAME_BODY_MAX || bytes == NULL) {
        troupe_exit(ctx, TROUPE_CORRUPT, "its state came without bytes");
        return;
    }
    struct troupe_msg *state = tr_msg_new(size);
    state->frame.kind = TR_FRAME_ANSWER;
    state->frame.length = (uint32_t)size;
    state->owner = ctx;
    memcpy(tr_msg_body(state), bytes, size);
    troupe_status status = ctx->type->restore(ctx, state, &err);
    if (status == TROUPE_OK && state->bad != NULL) {
        status = troupe_fail(&err, TROUPE_BAD_INPUT, "%s", state->bad);
    }
    tr_msg_free(state);
    if (status != TROUPE_OK) {
        troupe_exit(ctx, status, "its state could not be restored: %s",
            err.text[0] != '\0' ? err.text : troupe_status_text(status));
        return;
    }
    go_on(ctx);
}

static void
on_state(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)user;
    troupe_status status = troupe_answer_status(answer);
    if (status == TROUPE_OK) {
        restore(ctx, answer);
    } else if (status == TROUPE_NOT_FOUND && troupe_answer_by_method(answer)) {
        go_on(ctx);
    } else {
        troupe_exit(
            ctx, status, "its kept state could not be asked for: %s", troupe_answer_text(answer));
    }
}

void
tr_restore_begin(troupe_ctx *ctx)
{
    char key[TR_WHO_MAX];
    if (ctx->type->restore == NULL || !key_of(ctx, key, sizeof key) || !has_keeper(ctx)) {
        go_on(ctx);
        return;
    }
    ctx->held = true;
    troupe_args args = {0};
    begin_args(ctx, &args);
    if (troupe_call_send(ctx, troupe_to(ctx, TR_ROLE_NODE, 0), TR_METHOD_KEPT_GET, &args,
            .on_answer = on_state, .retry = true) != TROUPE_OK) {
        troupe_args_fini(&args);
        troupe_exit(ctx, TROUPE_FULL, "its kept state could not be asked for");
    }
}

void
tr_state_drop(troupe_ctx *ctx)
{
    troupe_args args = {0};
    if (ctx->type->checkpoint == NULL || !has_keeper(ctx)) {
        return;
    }
    begin_args(ctx, &args);
    if (troupe_tell(ctx, troupe_to(ctx, TR_ROLE_NODE, 0), TR_METHOD_KEPT_DROP, &args) !=
        TROUPE_OK) {
        troupe_args_fini(&args);
    }
}
