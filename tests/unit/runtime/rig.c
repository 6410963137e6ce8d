#include "rig.h"

static uint64_t
rig_now(const troupe_sys *sys)
{
    const struct rig *rig = sys->self;
    return rig->now_ns;
}

static void
on_ended(void *self, uint16_t role, uint16_t replica, troupe_ref ref, troupe_status status,
    const char *text)
{
    struct rig *rig = self;
    (void)ref;
    rig->end.count++;
    rig->end.role = role;
    rig->end.replica = replica;
    rig->end.status = status;
    (void)snprintf(rig->end.text, sizeof rig->end.text, "%s", text);
}

static void
on_quit(void *self, int code)
{
    struct rig *rig = self;
    rig->quit_code = code;
}

static void
on_stopped(void *self)
{
    struct rig *rig = self;
    rig->stopped++;
}

static void
on_log(void *self, const char *line)
{
    struct rig *rig = self;
    (void)snprintf(rig->log, sizeof rig->log, "%s", line);
}

void
rig_init(struct rig *rig, uint32_t calls_max)
{
    *rig = (struct rig){.now_ns = 1000};
    rig->sys = (troupe_sys){.name = "rig", .now_ns = rig_now, .realtime_ns = rig_now, .self = rig};
    rig->directory = tr_directory_new();
    (void)tr_directory_add(rig->directory, "alpha", 3);
    (void)tr_directory_add(rig->directory, "beta", 2);
    (void)tr_directory_add(rig->directory, "node", 1);
    rig->link = troupe_link_local();
    rig->store = troupe_store_new(1 << 20);
    rig->calls_max = calls_max;
    for (uint16_t i = 0; i < RIG_HOSTS; i++) {
        rig_host(rig, i, 1);
    }
}

void
rig_host(struct rig *rig, uint16_t index, uint32_t epoch)
{
    tr_host_options options = {.sys = &rig->sys,
        .link = rig->link,
        .directory = rig->directory,
        .store = rig->store,
        .address = {.node = 0, .loop = index},
        .epoch = epoch,
        .calls_max = rig->calls_max,
        .events = {
            .ended = on_ended, .quit = on_quit, .stopped = on_stopped, .log = on_log, .self = rig}};
    assert_int_equal(tr_host_new(&options, &rig->hosts[index], NULL), TROUPE_OK);
    tr_host_start(rig->hosts[index]);
}

void
rig_fini(struct rig *rig)
{
    for (int i = 0; i < RIG_HOSTS; i++) {
        tr_host_free(rig->hosts[i]);
    }
    rig->link->free(rig->link);
    troupe_store_stats stats;
    troupe_store_get_stats(rig->store, &stats);
    assert_int_equal(stats.objects, 0);
    troupe_store_free(rig->store);
    tr_directory_free(rig->directory);
}

/* Several quiet rounds: what one host sends in a round, an earlier one polls in the next, and
 * a chain of calls goes back and forth. */
void
rig_settle(struct rig *rig)
{
    int quiet = 0;
    for (int round = 0; quiet < 12; round++) {
        bool busy = false;
        if (round == 100000) {
            fail_msg("the hosts do not come to rest");
        }
        for (int i = 0; i < RIG_HOSTS; i++) {
            busy = (rig->hosts[i] != NULL && tr_host_step(rig->hosts[i], 8) == 0) || busy;
        }
        quiet = busy ? 0 : quiet + 1;
    }
}

void
rig_advance(struct rig *rig, uint64_t ns)
{
    rig->now_ns += ns;
    rig_settle(rig);
}

troupe_ctx *
rig_spawn(struct rig *rig, int host, const troupe_class *type, const char *role, uint16_t replica)
{
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    troupe_ref ref;
    tr_spawn spawn = {.type = type,
        .role = role == NULL ? TR_NO_ROLE : (uint16_t)tr_directory_find(rig->directory, role),
        .replica = replica};
    troupe_status status = tr_host_spawn(rig->hosts[host], &spawn, &ref, &err);
    if (status != TROUPE_OK) {
        fail_msg("spawn: %s", err.text);
    }
    rig_settle(rig);
    return tr_host_actor(rig->hosts[host], ref);
}

void
rig_note(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)ctx;
    struct rig_log *log = user;
    assert_true(log->count < (int)TR_COUNT(log->answers));
    struct rig_answer *note = &log->answers[log->count++];
    note->status = troupe_answer_status(answer);
    note->by_method = troupe_answer_by_method(answer);
    note->value =
        note->status == TROUPE_OK && troupe_arg_count(answer) > 0 ? troupe_arg_i64(answer, 0) : 0;
    (void)snprintf(note->text, sizeof note->text, "%s", troupe_answer_text(answer));
}
