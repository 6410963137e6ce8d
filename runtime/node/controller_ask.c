/* What guests ask of the controller: how the run stands, who waits for whom, and that it stop. */
#include "node/controller.h"
#include "node/launcher.h"
#include "sys/procfs.h"

#include <troupe/ext/guest.h>
#include <troupe/ext/wire.h>

#include <assert.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOP_ANSWERS_NS UINT64_C(1000000000)

enum {
    TR_STOPPED_BY = SIGTERM /* who asks a run to stop is like one who sends it this */
};

static void
reply_json(troupe_call *call, json_t *json)
{
    char *text = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(6));
    troupe_args args = {0};
    troupe_args_str(&args, text == NULL ? "{}" : text);
    if (troupe_reply(call, &args) != TROUPE_OK) {
        troupe_args_fini(&args);
        troupe_reply_error(call, TROUPE_FULL, "the answer is too long for one message");
    }
    free(text); /* from jansson */
    json_decref(json);
}

/* --- status ---------------------------------------------------------------------------------- */

static const char *
state_name(enum tr_member_state state)
{
    static const char *const names[] = {
        "down", "coming", "learning", "making actors", "made", "starting", "up", "ended"};
    return names[state];
}

static json_t *
process_status(const struct tr_controller *self, uint32_t index, uint64_t now_ns)
{
    const struct tr_process *process = &self->run->layout.processes[index];
    const struct tr_member *member = &self->members[index];
    int pid = tr_is_here(self, index) ? getpid() : member->pid;
    bool worker = process->kind == TR_PROCESS_WORKER;
    json_t *json = json_pack("{s:s, s:s, s:i, s:i}", "name", process->name, "state",
        state_name(member->state), "pid", pid, "starts",
        (int)(worker ? member->lives : member->epoch)); /* which life: each start is one */
    if (!worker || self->run->launcher == NULL) {
        struct tr_proc_memory memory;
        if (pid > 0 && tr_proc_memory_read(pid, &memory)) {
            const char state[2] = {memory.state, '\0'};
            json_object_set_new(json, "process_state", json_string(state));
            json_object_set_new(json, "rss_bytes", json_integer((json_int_t)memory.rss));
        }
        return json;
    }
    struct tr_launched_facts facts;
    char doing[160];
    tr_launcher_facts(self->run->launcher, index, now_ns, &facts);
    const char state[2] = {facts.state, '\0'};
    json_object_set_new(json, "process_state", json_string(state));
    json_object_set_new(json, "rss_bytes", json_integer((json_int_t)facts.rss_bytes));
    json_object_set_new(json, "silent_s", json_real((double)facts.silent_ns / 1e9));
    json_object_set_new(json, "answers", json_boolean(facts.answers));
    if (tr_launcher_doing(self->run->launcher, index, now_ns, doing, sizeof doing)) {
        json_object_set_new(json, "doing", json_string(doing));
    }
    return json;
}

static json_t *
role_status(const struct tr_controller *self, uint32_t index)
{
    const struct tr_role_books *books = &self->books[index];
    double deaths = TR_MAX(books->deaths, 1U);
    double backs = TR_MAX(books->backs, 1U);
    return json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f}", "name",
        self->run->plan->roles[index].name, "replicas", self->run->plan->roles[index].replicas,
        "deaths", (int)books->deaths, "restarts", (int)books->restarts, "notice_mean_ms",
        (double)books->notice_sum_ns / 1e6 / deaths, "notice_max_ms",
        (double)books->notice_max_ns / 1e6, "back_mean_ms",
        (double)books->back_sum_ns / 1e6 / backs, "back_max_ms", (double)books->back_max_ns / 1e6);
}

void
tr_controller_status(troupe_ctx *ctx, troupe_call *call)
{
    static const char *const phases[] = {
        "making actors", "starting", "running", "stopping", "ending", "done"};
    const struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_plan *plan = self->run->plan;
    json_t *processes = json_array();
    json_t *roles = json_array();
    for (uint32_t i = 0; i < self->run->layout.process_count; i++) {
        json_array_append_new(processes, process_status(self, i, troupe_now_ns(ctx)));
    }
    for (uint32_t i = 0; i < plan->role_count; i++) {
        json_array_append_new(roles, role_status(self, i));
    }
    troupe_store_stats stats;
    troupe_store_get_stats(self->run->store, &stats);
    reply_json(call, json_pack("{s:i, s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:o, s:o}", "format", 1,
                         "name", plan->name, "title", plan->title, "program", plan->program,
                         "phase", phases[self->phase], "life", (int)self->run->epoch, "objects",
                         (json_int_t)stats.objects, "object_bytes", (json_int_t)stats.bytes,
                         "processes", processes, "roles", roles));
}

void
tr_controller_stop_asked(troupe_ctx *ctx, troupe_call *call)
{
    double grace_s = troupe_arg_f64(call, 0);
    if (!troupe_args_ok(call) || !(grace_s * 1e9 <= (double)TROUPE_DEADLINE_MAX_NS)) {
        troupe_arg_refuse(call, 0, "seconds of grace are wanted, at most 3600");
        return;
    }
    reply_json(call, json_pack("{s:b}", "stopping", 1));
    struct tr_controller *self = tr_controller_of(ctx);
    int none = 0;
    (void)atomic_compare_exchange_strong(&self->run->signal, &none, TR_STOPPED_BY);
    tr_controller_stop_within(ctx, grace_s < 0 ? self->grace_ns : (uint64_t)(grace_s * 1e9));
}

/* --- waits ----------------------------------------------------------------------------------- */

/* One question in progress; freed with its last answer. */
struct asking {
    troupe_call *call;
    json_t *loops;
    uint32_t waiting;
};

struct asked_loop {
    struct asking *asking;
    uint32_t loop;
};

static void
finish(struct asking *asking)
{
    if (--asking->waiting == 0) {
        reply_json(asking->call, json_pack("{s:i, s:o}", "format", 1, "loops", asking->loops));
        tr_free(asking);
    }
}

static json_t *
read_wait(tr_reader *reader)
{
    static const char *const keys[] = {"kind", "who", "whom", "last"};
    uint32_t values = 0;
    double age = 0, left = 0;
    uint64_t sends = 0;
    json_t *json = json_object();
    (void)tr_read_array(reader, &values);
    for (size_t i = 0; i < TR_COUNT(keys); i++) {
        char text[512];
        if (tr_read_text(reader, text, sizeof text)) {
            json_object_set_new(json, keys[i], json_string(text));
        }
    }
    if (tr_read_f64(reader, &age) && tr_read_f64(reader, &left) && tr_read_u64(reader, &sends)) {
        json_object_set_new(json, "since_s", json_real(age));
        json_object_set_new(json, "left_s", left < 0 ? json_null() : json_real(left));
        json_object_set_new(json, "sends", json_integer((json_int_t)sends));
    }
    return json;
}

/* The calls that a question consists of are no news to who asks it. */
static bool
is_of_the_question(const json_t *wait)
{
    const char *who = json_string_value(json_object_get(wait, "who"));
    const char *whom = json_string_value(json_object_get(wait, "whom"));
    const char *dot = whom == NULL ? NULL : strrchr(whom, '.');
    return who != NULL && dot != NULL && strcmp(dot, "." TR_METHOD_WAITS) == 0 &&
           strncmp(who, TR_ROLE_NODE, strlen(TR_ROLE_NODE)) == 0;
}

/* `waits`: all that there are; of very many the first are told. */
static json_t *
read_waits(troupe_answer *answer, uint64_t *waits)
{
    static_assert(sizeof TR_METHOD_WAITS == sizeof TR_GUEST_WAITS, "one name for both questions");
    json_t *list = json_array();
    *waits = troupe_arg_u64(answer, 1);
    tr_reader reader;
    uint32_t count = 0;
    if (troupe_arg_reader(answer, 0, &reader) && tr_read_array(&reader, &count)) {
        for (uint32_t i = 0; i < count && !reader.failed; i++) {
            json_t *wait = read_wait(&reader);
            if (is_of_the_question(wait)) {
                --*waits;
            } else {
                json_array_append(list, wait);
            }
            json_decref(wait);
        }
    }
    return list;
}

static void
on_waits(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct asked_loop *asked = user;
    const struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_planned_loop *loop = &self->run->layout.loops[asked->loop];
    json_t *json =
        json_pack("{s:s, s:s, s:i}", "process", self->run->layout.processes[loop->process].name,
            "loop", loop->name, "index", (int)asked->loop);
    if (troupe_answer_status(answer) == TROUPE_OK) {
        uint64_t count = 0;
        json_object_set_new(json, "waits", read_waits(answer, &count));
        json_object_set_new(json, "count", json_integer((json_int_t)count));
    } else if (troupe_answer_by_method(answer)) {
        json_object_set_new(json, "silent", json_string(troupe_answer_text(answer)));
    } else {
        char doing[160] = "";
        bool busy = self->run->launcher != NULL && !tr_is_here(self, loop->process) &&
                    tr_launcher_doing(self->run->launcher, loop->process, troupe_now_ns(ctx), doing,
                        sizeof doing);
        json_object_set_new(
            json, "silent", json_string(busy ? doing : "does not answer within 1 s"));
    }
    json_array_append_new(asked->asking->loops, json);
    finish(asked->asking);
    tr_free(asked);
}

static void
ask_loop(troupe_ctx *ctx, struct asking *asking, uint32_t loop)
{
    const struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_member *member = &self->members[self->run->layout.loops[loop].process];
    if (member->state < TR_MEMBER_LEARNING || member->state == TR_MEMBER_ENDED) {
        return;
    }
    struct asked_loop *asked = tr_zalloc(1, sizeof *asked);
    *asked = (struct asked_loop){.asking = asking, .loop = loop};
    troupe_target to = troupe_to_ref(tr_agent_ref((uint16_t)loop, member->epoch));
    if (troupe_call_send(ctx, to, TR_METHOD_WAITS, NULL, .on_answer = on_waits, .user = asked,
            .deadline_ns = LOOP_ANSWERS_NS) == TROUPE_OK) {
        asking->waiting++;
    } else {
        tr_free(asked);
    }
}

void
tr_controller_waits(troupe_ctx *ctx, troupe_call *call)
{
    const struct tr_controller *self = tr_controller_of(ctx);
    struct asking *asking = tr_zalloc(1, sizeof *asking);
    *asking = (struct asking){.call = troupe_defer(call), .loops = json_array(), .waiting = 1};
    for (uint32_t i = 0; i < self->run->layout.loop_count; i++) {
        ask_loop(ctx, asking, i);
    }
    finish(asking);
}

/* --- the file `run` -------------------------------------------------------------------------- */

void
tr_run_facts_write(const struct tr_run *run, int driver_pid)
{
    char path[512], next[512];
    (void)snprintf(path, sizeof path, "%s/run", run->plan->folder);
    (void)snprintf(next, sizeof next, "%s/run.log", run->plan->folder);
    char directory[PATH_MAX];
    if (getcwd(directory, sizeof directory) == NULL) {
        directory[0] = '\0';
    }
    json_t *json = json_pack("{s:i, s:s, s:s, s:s, s:s, s:i, s:i, s:i}", "format", 1, "name",
        run->plan->name, "title", run->plan->title, "program", run->plan->program, "directory",
        directory, "node_pid", getpid(), "driver_pid", driver_pid, "life", (int)run->epoch);
    if (json_dump_file(json, next, JSON_INDENT(1)) != 0 || rename(next, path) != 0) {
        fprintf(stderr, "troupe: %s cannot be written: the run is not found by its name\n", path);
    }
    json_decref(json);
}
