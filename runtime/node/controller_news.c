/* The directory of the run. The controller's own process has it as its directory; the others are
 * told. What is told of a place is its whole state with a version that only grows, so it does not
 * matter in which order news arrive, or whether some come twice. */
#include "node/controller.h"

enum {
    PLACES_A_CALL = 512
};

static void
put_place(const struct tr_controller *self, troupe_args *args, uint32_t planned, const char *cause)
{
    const struct tr_planned *actor = &self->run->layout.planned[planned];
    troupe_ref ref;
    (void)tr_directory_get(self->run->directory, actor->role, actor->replica, &ref);
    troupe_args_array(args, 7);
    troupe_args_u64(args, planned);
    troupe_args_u64(args, self->actors[planned].version);
    troupe_args_u64(args, ref.node);
    troupe_args_u64(args, ref.loop);
    troupe_args_u64(args, ref.slot);
    troupe_args_u64(args, ref.incarnation);
    troupe_args_str(args, cause);
}

/* To everybody who has been told what there was before; nobody waits for the answers. */
static void
tell_others(troupe_ctx *ctx, uint32_t planned, const char *cause)
{
    const struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_layout *layout = &self->run->layout;
    for (uint32_t i = 0; i < layout->process_count && self->phase >= TR_STARTING; i++) {
        const struct tr_member *member = &self->members[i];
        if (tr_is_here(self, i) || i == layout->planned[planned].process ||
            member->state < TR_MEMBER_LEARNING || member->state == TR_MEMBER_ENDED) {
            continue;
        }
        troupe_args args = {0};
        troupe_args_u64(&args, member->epoch);
        troupe_args_array(&args, 1);
        put_place(self, &args, planned, cause);
        troupe_ref agent = tr_agent_ref(layout->processes[i].first_loop, member->epoch);
        if (troupe_call_send(ctx, troupe_to_ref(agent), TR_METHOD_PLACES, &args, .retry = true,
                .deadline_ns = TROUPE_DEADLINE_MAX_NS) != TROUPE_OK) {
            troupe_args_fini(&args); /* it is dying */
        }
    }
}

void
tr_news_up(troupe_ctx *ctx, uint32_t planned, troupe_ref ref)
{
    struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_planned *actor = &self->run->layout.planned[planned];
    troupe_ref known;
    bool was_up = tr_directory_get(self->run->directory, actor->role, actor->replica, &known);
    if (!tr_is_here(self, actor->process) && !(was_up && troupe_ref_equal(known, ref))) {
        tr_directory_up(self->run->directory, actor->role, actor->replica, ref);
    }
    self->actors[planned].up = true;
    self->actors[planned].version = ++self->last_version;
    tell_others(ctx, planned, "");
}

void
tr_news_down(troupe_ctx *ctx, uint32_t planned, const char *cause)
{
    struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_planned *actor = &self->run->layout.planned[planned];
    troupe_ref known;
    if (!self->actors[planned].up) {
        return;
    }
    if (!tr_is_here(self, actor->process) &&
        tr_directory_get(self->run->directory, actor->role, actor->replica, &known)) {
        tr_directory_down(self->run->directory, actor->role, actor->replica, known, cause);
    }
    self->actors[planned].up = false;
    self->actors[planned].version = ++self->last_version;
    tell_others(ctx, planned, cause);
}

void
tr_news_all(troupe_ctx *ctx, uint32_t index, troupe_answer_fn on_answer)
{
    const struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_layout *layout = &self->run->layout;
    if (tr_is_here(self, index)) {
        return;
    }
    uint32_t next = 0;
    while (next < layout->planned_count) {
        uint32_t chosen[PLACES_A_CALL];
        uint32_t count = 0;
        for (; next < layout->planned_count && count < PLACES_A_CALL; next++) {
            if (self->actors[next].up && layout->planned[next].process != index) {
                chosen[count++] = next;
            }
        }
        if (count == 0) {
            return;
        }
        troupe_args args = {0};
        troupe_args_u64(&args, self->members[index].epoch);
        troupe_args_array(&args, count);
        for (uint32_t i = 0; i < count; i++) {
            put_place(self, &args, chosen[i], "");
        }
        tr_member_call(ctx, layout->processes[index].first_loop, TR_METHOD_PLACES, &args,
            &(struct tr_ask){.on_answer = on_answer, .deadline_ns = TROUPE_DEADLINE_MAX_NS});
    }
}
