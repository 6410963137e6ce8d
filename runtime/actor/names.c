/* Names of actors for people: role and replica where there is one. */
#include "actor/made.h"

#include <stdio.h>

void
tr_name_actor(const troupe_ctx *ctx, char *out, size_t capacity)
{
    if (ctx->role != TR_NO_ROLE) {
        (void)snprintf(out, capacity, "%s[%u]", ctx->role_name, ctx->replica);
    } else {
        (void)snprintf(out, capacity, "%s",
            ctx->made != NULL && ctx->made->name != NULL ? ctx->made->name : ctx->type->name);
    }
}

static void
name_role(const tr_host *host, uint16_t role, uint16_t replica, char *out, size_t capacity)
{
    (void)snprintf(
        out, capacity, "%s[%u]", tr_directory_name(host->options.directory, role), replica);
}

void
tr_name_ref(const tr_host *host, troupe_ref ref, char *out, size_t capacity)
{
    size_t places = tr_directory_places(host->options.directory);
    for (size_t i = 0; i < places && ref.incarnation != 0; i++) {
        if (troupe_ref_equal(host->refs[i], ref)) {
            uint16_t role = 0, replica = 0;
            tr_directory_place(host->options.directory, i, &role, &replica);
            name_role(host, role, replica, out, capacity);
            return;
        }
    }
    (void)snprintf(
        out, capacity, "actor %u.%u.%u#%u", ref.node, ref.loop, ref.slot, ref.incarnation);
}

void
tr_name_target(const tr_host *host, troupe_target to, char *out, size_t capacity)
{
    if (to.role == TR_NAMED && to.replica < host->known_count) {
        (void)snprintf(out, capacity, "%s", host->known[to.replica].name);
    } else if (to.role != 0) {
        name_role(host, (uint16_t)(to.role - 1), to.replica, out, capacity);
    } else {
        tr_name_ref(host, to.ref, out, capacity);
    }
}
