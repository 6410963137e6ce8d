/* The agent: the first actor on every loop. It does there what the controller asks, and tells the
 * controller what happens there. Both speak by calls that are sent again until they are answered.
 * The agent of a service loop also keeps its process's copy of the directory. */
#include "node/run.h"

#include <troupe/ext/wire.h>

#include <stdlib.h>
#include <unistd.h>

/* A driver may be there before its node is. */
#define RESEND_NS UINT64_C(20000000)

enum {
    CAUSE_MAX = 4096,
    WAITS_TOLD_MAX = 4096 /* of one loop, at a time */
};

struct tr_cut {
    struct tr_cut *next;
    uint16_t loop;
    uint32_t epoch;
    char *why;
};

static struct tr_run_loop *
loop_of(troupe_ctx *ctx)
{
    return tr_context(ctx);
}

static troupe_status
init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    (void)config;
    (void)err;
    loop_of(ctx)->agent = ctx;
    return TROUPE_OK;
}

static void
drop_cut(struct tr_run_loop *loop)
{
    struct tr_cut *cut = loop->cuts;
    loop->cuts = cut->next;
    tr_free(cut->why);
    tr_free(cut);
}

static void
fini(troupe_ctx *ctx)
{
    struct tr_run_loop *loop = loop_of(ctx);
    while (loop->cuts != NULL) {
        drop_cut(loop);
    }
    loop->agent = NULL;
}

/* --- the life of the loop's actors ----------------------------------------------------------- */

static void
spawn(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_run_loop *loop = loop_of(ctx);
    const struct tr_run *run = loop->run;
    uint64_t index = troupe_arg_u64(call, 0);
    if (index >= run->layout.planned_count || run->layout.planned[index].loop != loop->index) {
        troupe_arg_refuse(call, 0, "no such actor of this loop in the plan");
        return;
    }
    const struct tr_planned *planned = &run->layout.planned[index];
    tr_spawn what = {.type = planned->spec->type,
        .role = planned->role,
        .replica = planned->replica,
        .config = planned->spec->config,
        .mailbox = planned->spec->mailbox};
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    troupe_ref ref = {0};
    troupe_status status = tr_host_spawn(tr_host_of(ctx), &what, &ref, &err);
    if (status != TROUPE_OK) {
        troupe_reply_error(call, status, "%s", err.text);
        return;
    }
    troupe_args values = {0};
    troupe_args_u64(&values, ref.slot);
    troupe_args_u64(&values, ref.incarnation);
    troupe_reply(call, &values);
}

static void
start(troupe_ctx *ctx, troupe_call *call)
{
    tr_host_start(tr_host_of(ctx));
    troupe_reply(call, NULL);
}

static void
stop(troupe_ctx *ctx, troupe_call *call)
{
    loop_of(ctx)->stop = troupe_defer(call);
    tr_host_stop(tr_host_of(ctx));
}

static void
end(troupe_ctx *ctx, troupe_call *call)
{
    loop_of(ctx)->end = true;
    troupe_reply(call, NULL);
}

/* --- the directory --------------------------------------------------------------------------- */

struct news {
    uint64_t place;
    uint64_t version;
    uint64_t ref[4]; /* node, loop, slot, incarnation */
    char cause[CAUSE_MAX];
};

static bool
read_news(tr_reader *reader, struct news *news)
{
    uint32_t values = 0;
    bool read = tr_read_array(reader, &values) && values == 7;
    read = read && tr_read_u64(reader, &news->place) && tr_read_u64(reader, &news->version);
    for (int i = 0; i < 4 && read; i++) {
        read = tr_read_u64(reader, &news->ref[i]);
    }
    return read && tr_read_text(reader, news->cause, sizeof news->cause) &&
           news->ref[0] <= UINT16_MAX && news->ref[1] <= UINT16_MAX && news->ref[2] <= UINT16_MAX &&
           news->ref[3] <= UINT32_MAX;
}

/* News may come late or twice; only what is newer than what is known counts. Of the actors that
 * live here the process itself knows best. */
static void
take_news(struct tr_run *run, const struct news *news)
{
    const struct tr_planned *planned = &run->layout.planned[news->place];
    if (news->version <= run->versions[news->place] || planned->process == run->process) {
        return;
    }
    run->versions[news->place] = news->version;
    troupe_ref ref = {.node = (uint16_t)news->ref[0],
        .loop = (uint16_t)news->ref[1],
        .slot = (uint16_t)news->ref[2],
        .incarnation = (uint32_t)news->ref[3]};
    troupe_ref known;
    bool was_up = tr_directory_get(run->directory, planned->role, planned->replica, &known);
    if (ref.incarnation != 0 && !(was_up && troupe_ref_equal(known, ref))) {
        tr_directory_up(run->directory, planned->role, planned->replica, ref);
    } else if (ref.incarnation == 0 && was_up) {
        tr_directory_down(run->directory, planned->role, planned->replica, known, news->cause);
    }
}

static void
places(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_run *run = loop_of(ctx)->run;
    uint64_t epoch = troupe_arg_u64(call, 0);
    tr_reader reader;
    uint32_t count = 0;
    if (epoch != run->epoch || !troupe_arg_reader(call, 1, &reader) ||
        !tr_read_array(&reader, &count)) {
        troupe_reply_error(call, TROUPE_INVALID, "news for another life of this process");
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct news news;
        if (!read_news(&reader, &news) || news.place >= run->layout.planned_count) {
            troupe_arg_refuse(call, 1, "no list of places");
            return;
        }
        take_news(run, &news);
    }
    troupe_reply(call, NULL);
}

/* --- the driver's loop ----------------------------------------------------------------------- */

static void
up(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_run *run = loop_of(ctx)->run;
    int64_t pid = troupe_arg_i64(call, 0);
    int64_t fd = troupe_arg_i64(call, 1);
    uint64_t slot = troupe_arg_u64(call, 2);
    if (troupe_args_ok(call) && run->attach != NULL) {
        run->attach(run, (int)pid, (int)fd, (uint32_t)slot);
        run->up = true;
    }
    troupe_reply(call, NULL);
}

static void
over(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_run *run = loop_of(ctx)->run;
    int64_t code = troupe_arg_i64(call, 0);
    int64_t number = troupe_arg_i64(call, 1);
    int64_t status = troupe_arg_i64(call, 2);
    const char *text = troupe_arg_str(call, 3);
    if (troupe_args_ok(call)) {
        run->has_code = true;
        run->code = (int)code;
        atomic_store(&run->signal, (int)number);
        if (status != TROUPE_OK) {
            (void)troupe_fail(&run->error, (troupe_status)status, "%s", text);
        }
        run->done = true;
    }
    troupe_reply(call, NULL);
}

/* --- waits ----------------------------------------------------------------------------------- */

struct listing {
    troupe_args args;
    uint64_t now_ns;
    uint32_t left; /* that will still be listed */
};

static void
count_wait(void *user, const tr_wait *wait)
{
    (void)wait;
    uint32_t *count = user;
    ++*count;
}

static double
seconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns >= from_ns ? (double)(to_ns - from_ns) / 1e9 : -(double)(from_ns - to_ns) / 1e9;
}

static void
list_wait(void *user, const tr_wait *wait)
{
    struct listing *listing = user;
    if (listing->left == 0) {
        return;
    }
    listing->left--;
    troupe_args_array(&listing->args, 7);
    troupe_args_str(&listing->args, tr_wait_kind_name(wait->kind));
    troupe_args_str(&listing->args, wait->who);
    troupe_args_str(&listing->args, wait->whom);
    troupe_args_str(&listing->args, wait->last);
    troupe_args_f64(&listing->args, seconds(wait->since_ns, listing->now_ns));
    troupe_args_f64(&listing->args,
        wait->until_ns == UINT64_MAX ? -1 : seconds(listing->now_ns, wait->until_ns));
    troupe_args_u64(&listing->args, wait->sends);
}

static void
waits(troupe_ctx *ctx, troupe_call *call)
{
    struct listing listing = {.now_ns = troupe_now_ns(ctx)};
    uint32_t count = 0;
    tr_host_waits(tr_host_of(ctx), count_wait, &count);
    listing.left = TR_MIN(count, (uint32_t)WAITS_TOLD_MAX);
    troupe_args_array(&listing.args, listing.left);
    tr_host_waits(tr_host_of(ctx), list_wait, &listing);
    troupe_args_u64(&listing.args, count);
    if (troupe_reply(call, &listing.args) != TROUPE_OK) {
        troupe_args_fini(&listing.args);
        troupe_reply_error(call, TROUPE_FULL, "%u waits are too many for one message", count);
    }
}

const troupe_class tr_agent_class = {
    .name = "agent",
    .init = init,
    .fini = fini,
    .methods = {{TR_METHOD_SPAWN, spawn}, {TR_METHOD_START, start}, {TR_METHOD_STOP, stop},
        {TR_METHOD_END, end}, {TR_METHOD_WAITS, waits}, {TR_METHOD_PLACES, places},
        {TR_METHOD_UP, up}, {TR_METHOD_OVER, over}},
};

/* --- what the controller is told ------------------------------------------------------------- */

/* The controller is there as long as any agent is, or comes back; should its mailbox be full, the
 * call is sent again. */
void
tr_agent_tell(struct tr_run_loop *loop, const char *method, troupe_args *args)
{
    troupe_status status = TROUPE_GONE;
    if (loop->agent != NULL) {
        status = troupe_call_send(loop->agent, troupe_to(loop->agent, TR_ROLE_NODE, 0), method,
            args, .retry = true, .deadline_ns = TROUPE_DEADLINE_MAX_NS, .resend_ns = RESEND_NS);
    }
    if (status != TROUPE_OK) {
        troupe_args_fini(args);
    }
}

static void
tell_cuts(troupe_ctx *ctx, void *user)
{
    struct tr_run_loop *loop = loop_of(ctx);
    (void)user;
    while (loop->cuts != NULL) {
        troupe_args args = {0};
        troupe_args_u64(&args, loop->cuts->loop);
        troupe_args_u64(&args, loop->cuts->epoch);
        troupe_args_str(&args, loop->cuts->why);
        tr_agent_tell(loop, TR_METHOD_CUT, &args);
        drop_cut(loop);
    }
}

/* The link is at work: nothing can be sent from here. */
void
tr_agent_cut(struct tr_run_loop *loop, tr_address peer, uint32_t epoch, const char *why)
{
    if (loop->agent == NULL) {
        return;
    }
    struct tr_cut *cut = tr_zalloc(1, sizeof *cut);
    *cut = (struct tr_cut){
        .next = loop->cuts, .loop = peer.loop, .epoch = epoch, .why = tr_strdup(why)};
    loop->cuts = cut;
    if (troupe_timer_start(loop->agent, 0, tell_cuts, NULL, NULL) != TROUPE_OK) {
        drop_cut(loop); /* the log has it */
    }
}

void
tr_agent_join(struct tr_run *run)
{
    troupe_args args = {0};
    troupe_args_u64(&args, run->process);
    troupe_args_u64(&args, run->epoch);
    troupe_args_i64(&args, getpid());
    tr_agent_tell(tr_run_service(run), TR_METHOD_JOINED, &args);
}

/* --- what the host tells --------------------------------------------------------------------- */

static void
on_ended(void *self, uint16_t role, uint16_t replica, troupe_ref ref, troupe_status status,
    const char *text)
{
    struct tr_run_loop *loop = self;
    if (role == TR_NO_ROLE || role >= loop->run->node_role || tr_host_stopping(loop->host)) {
        return;
    }
    troupe_args args = {0};
    troupe_args_u64(&args, role);
    troupe_args_u64(&args, replica);
    troupe_args_u64(&args, ref.incarnation);
    troupe_args_i64(&args, (int64_t)status);
    troupe_args_str(&args, text);
    tr_agent_tell(loop, TR_METHOD_ENDED, &args);
}

static void
on_quit(void *self, int code)
{
    troupe_args args = {0};
    troupe_args_i64(&args, code);
    tr_agent_tell(self, TR_METHOD_QUIT, &args);
}

/* The driver's own error is told by who runs it. */
static void
on_failed(void *self, troupe_status status, const char *text)
{
    struct tr_run *run = ((struct tr_run_loop *)self)->run;
    if (run->error.status == TROUPE_OK) {
        (void)troupe_fail(&run->error, status, "the driver: %s",
            text[0] != '\0' ? text : troupe_status_text(status));
    }
    on_quit(self, EXIT_FAILURE);
}

static void
on_stopped(void *self)
{
    struct tr_run_loop *loop = self;
    if (loop->stop != NULL) {
        troupe_reply(loop->stop, NULL);
        loop->stop = NULL;
    }
}

static void
on_log(void *self, const char *line)
{
    const struct tr_run_loop *loop = self;
    loop->run->options.log(loop->run->options.user, line);
}

static void
on_round(void *self)
{
    struct tr_run *run = ((struct tr_run_loop *)self)->run;
    run->round(run);
}

tr_host_events
tr_agent_events(struct tr_run_loop *loop)
{
    const struct tr_run *run = loop->run;
    bool first = loop->index == tr_run_here(run)->first_loop;
    return (tr_host_events){.ended = on_ended,
        .quit = on_quit,
        .failed = on_failed,
        .stopped = on_stopped,
        .log = run->options.log == NULL ? NULL : on_log,
        .round = first && run->round != NULL ? on_round : NULL,
        .self = loop};
}
