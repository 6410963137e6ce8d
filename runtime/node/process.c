/* See process.h. */
#include "node/process.h"

#include "sys/share.h"

#include <troupe/ext/guest.h>
#include <troupe/ext/sys.h>
#include <troupe/ext/worker.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    FILES_OF_OWN = 64
};

int
tr_program_complain(const struct tr_program *program, troupe_status status, const troupe_error *err)
{
    fprintf(stderr, "%s: %s\n", program->name,
        err->text[0] != '\0' ? err->text : troupe_status_text(status));
    return status == TROUPE_BAD_INPUT || status == TROUPE_INVALID ? TR_EXIT_INPUT : EXIT_FAILURE;
}

troupe_status
tr_process_plan(int count, struct tr_plan **out, troupe_error *err)
{
    tr_buf bytes = {0};
    bool open = true;
    for (int i = 0; i < count; i++) {
        open = tr_fd_keep(TR_FD_PLAN + i) && open;
    }
    troupe_status status =
        open ? tr_sealed_read(TR_FD_PLAN, TR_PLAN_BYTES_MAX, &bytes, err) : TROUPE_CORRUPT;
    if (status == TROUPE_OK) {
        status = tr_plan_read(bytes.data, bytes.size, out, err);
    }
    tr_buf_fini(&bytes);
    if (status != TROUPE_OK) {
        return troupe_fail(err, TROUPE_INVALID,
            "the environment variable " TR_BIRTH_VARIABLE
            " is set, but no run has started this process; it is for processes that a run starts "
            "itself: unset it");
    }
    return TROUPE_OK;
}

/* Each loop here may be connected to each loop elsewhere, in both directions; the node has pipes
 * and handles of every process besides. The rest is for what the program opens itself. */
static uint64_t
descriptors(const struct tr_run *run)
{
    uint64_t here = 0;
    for (uint32_t i = 0; i < run->layout.loop_count; i++) {
        here += run->layout.loops[i].process == run->process ? 1 : 0;
    }
    uint64_t there = run->layout.loop_count - here;
    return FILES_OF_OWN + here * (there * 2 + 4) + (uint64_t)run->layout.process_count * 4;
}

/* A worker's standard error gets its name from the node. */
static void
say(const struct tr_run *run, const char *text)
{
    char line[1200];
    enum tr_process_kind kind = tr_run_here(run)->kind;
    const char *who = kind == TR_PROCESS_WORKER ? ""
                      : kind == TR_PROCESS_NODE ? "node: "
                                                : "driver: ";
    (void)snprintf(line, sizeof line, "%slink: %s", who, text);
    if (run->options.log != NULL) {
        run->options.log(run->options.user, line);
    } else {
        fprintf(stderr, "%s\n", line);
    }
}

static void
on_refused(void *self, const char *why)
{
    say(self, why);
}

/* Whose data cannot be trusted is to be replaced. Without its node, though, a process can do
 * nothing and would not even hear of the end: it makes room for another. */
static void
on_cut(void *self, tr_address at, tr_address peer, uint32_t epoch, const char *why)
{
    const struct tr_run *run = self;
    const struct tr_layout *layout = &run->layout;
    if (peer.loop >= layout->loop_count) {
        return; /* a guest */
    }
    uint16_t process = layout->loops[peer.loop].process;
    if (process != run->process && layout->processes[process].kind == TR_PROCESS_NODE) {
        say(run, "its node is not understood any more: this process ends");
        _exit(EXIT_FAILURE);
    }
    tr_agent_cut(&run->loops[at.loop], peer, epoch, why);
}

troupe_status
tr_process_open(struct tr_run *run, const struct tr_birth *birth, troupe_error *err)
{
    const tr_unix_options link = {.dir = run->plan->folder,
        .refused = on_refused,
        .refused_self = run,
        .cut = on_cut,
        .guests_first = TR_GUEST_LOOP_FIRST};
    run->epoch = birth->epoch;
    troupe_status status = tr_fd_limit(descriptors(run), err);
    if (status == TROUPE_OK) {
        status = troupe_link_unix(&link, &run->link, err);
    }
    if (status == TROUPE_OK) {
        status = tr_run_open(run, err);
    }
    if (status == TROUPE_OK && tr_run_here(run)->kind != TR_PROCESS_NODE) {
        tr_directory_up(run->directory, run->node_role, 0, tr_controller_ref(birth->node_epoch));
    }
    return status;
}

troupe_status
tr_guard_start(const struct tr_plan *plan, const struct tr_birth *birth,
    const int given[TR_GUARD_GIVEN], tr_worker **out, troupe_error *err)
{
    char birth_text[TR_BIRTH_TEXT_MAX];
    tr_birth_write(birth, birth_text);
    const char *env[] = {birth_text, NULL};
    tr_worker_options options = {.image = given[TR_FD_IMAGE - TR_FD_PLAN],
        .argv = (const char *const *)plan->argv,
        .env_add = env,
        .fds = given,
        .fd_count = TR_GUARD_GIVEN,
        .own_group = true,
        .no_cgroup = true, /* it outlives its maker, whose groups are then anybody's to sweep */
        .capture = false};
    return tr_worker_start(&options, out, err);
}
