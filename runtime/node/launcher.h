/* The workers of a node: started, watched, their output forwarded and kept, their deaths told to
 * the controller. On the node's first thread. */
#ifndef TR_NODE_LAUNCHER_H
#define TR_NODE_LAUNCHER_H

#include "node/run.h"

struct tr_output;

struct tr_launcher_options {
    struct tr_run *run;
    int image; /* borrowed, as the others */
    int plan_fd;
    const char *folder;    /* of the run: log files go there */
    uint32_t driver_epoch; /* for the births of workers */
    struct tr_output *output;
};

/* Makes the life pages; run->life becomes that of this process. */
troupe_status tr_launcher_new(const struct tr_launcher_options *options, struct tr_launcher **out,
    troupe_error *err) TROUPE_MUST_USE;
/* Kills and reaps what is left. NULL is allowed. */
void tr_launcher_free(struct tr_launcher *launcher);
/* A child that is none of the workers and is not to be swept; 0: none. */
void tr_launcher_keep(struct tr_launcher *launcher, int pid);
/* Every 250 ms, at the monotonic time now_ns: memory, signs of life, limits of time. */
void tr_launcher_tick(struct tr_launcher *launcher, uint64_t now_ns);
/* Kills all at once, without waiting. Any thread. */
void tr_launcher_kill_all(struct tr_launcher *launcher);

/* Starts the process of the layout as a life whose loops have `epoch`. */
troupe_status tr_launcher_start(struct tr_launcher *launcher, uint32_t process, uint32_t epoch,
    int *pid, troupe_error *err) TROUPE_MUST_USE;
/* Kills a process and all that it started; its death is told as any other. Nothing when there is
 * none. */
void tr_launcher_kill(struct tr_launcher *launcher, uint32_t process);
/* The run is ending: who gives no sign of life cannot be asked to stop, and is killed soon. */
void tr_launcher_ending(struct tr_launcher *launcher);
/* It is to exit by that time: it is killed, and named, when it does not. */
void tr_launcher_end_by(struct tr_launcher *launcher, uint32_t process, uint64_t when_ns);

/* The same; its death record says why. */
void tr_launcher_kill_for(struct tr_launcher *launcher, uint32_t process, const char *why);
/* The process has joined: it is no longer expected to. */
void tr_launcher_joined(struct tr_launcher *launcher, uint32_t process);

/* What a process is doing, by its life page: "lm_rollout.lease for 0.2 s"; false when nothing. */
bool tr_launcher_doing(
    const struct tr_launcher *launcher, uint32_t process, uint64_t now_ns, char *out, size_t size);

/* "lm_rollout.lease for 0.2 s": what a loop's note says (describe.c). */
void tr_life_describe(
    const struct tr_plan *plan, tr_life_loop note, uint64_t now_ns, char *out, size_t size);

/* The process as it is. */
struct tr_launched_facts {
    bool running;
    bool answers; /* its service loop beats */
    int pid;
    char state; /* as in ps */
    uint64_t rss_bytes;
    uint64_t silent_ns; /* since its last beat */
};

void tr_launcher_facts(struct tr_launcher *launcher, uint32_t process, uint64_t now_ns,
    struct tr_launched_facts *facts);

/* --- what it tells the controller (controller_death.c) --------------------------------------- */

/* The process of a member has exited: `text` is its death record, from its name on, `notice_ns` the
 * time from its last sign of life to now, `expected` whether it was told to end. `ctx` is the
 * controller. */
void tr_member_died(
    troupe_ctx *ctx, uint32_t index, uint64_t notice_ns, bool expected, const char *text);

#endif
