/* The insides of the controller, shared by its files.
 *
 *   controller.c       phases: make every actor, start them, let them work; the table of methods
 *   controller_end.c   stop them, end the loops and the processes
 *   controller_death.c an actor or a process is lost: who is told, what is made anew, what is kept
 *                      in the books
 *   controller_ask.c   what guests ask: status, waits, stop
 *   controller_news.c  the directory: what every process is told of every place
 *
 * Every phase and every member waits for answers that are counted, every call has a deadline, and
 * an answer counts only for the state of the member in which it was asked for. */
#ifndef TR_NODE_CONTROLLER_H
#define TR_NODE_CONTROLLER_H

#include "node/kept.h"
#include "node/names.h"
#include "node/restart.h"
#include "node/run.h"

enum tr_phase {
    TR_SPAWNING, /* the actors of all processes are being made */
    TR_STARTING, /* ... and their start hooks run */
    TR_RUNNING,
    TR_STOPPING,
    TR_ENDING,
    TR_DONE
};

/* A process of the run, as the controller sees it. */
enum tr_member_state {
    TR_MEMBER_DOWN,     /* not started, or waiting to be started again, or lost for good */
    TR_MEMBER_COMING,   /* its process was started and has not joined */
    TR_MEMBER_LEARNING, /* it is told what the directory holds */
    TR_MEMBER_SPAWNING, /* its actors are being made */
    TR_MEMBER_MADE,     /* they are; it waits for those of the others */
    TR_MEMBER_STARTING, /* the start hooks are being run */
    TR_MEMBER_UP,
    TR_MEMBER_ENDED /* it has ended as it should */
};

struct tr_member {
    enum tr_member_state state;
    uint32_t epoch; /* of its loops, 0 before its first start */
    uint32_t lives;
    int pid;
    int waiting;  /* answers that its state, or the run's phase, still needs */
    bool told_up; /* the driver: that every actor is started */
    bool again;   /* lost, and to be started again at again_ns */
    uint64_t again_ns;
    uint64_t lost_ns; /* when its last death was noticed; 0: it is up since */
    struct tr_restart_replica restart;
};

/* The books of a role. */
struct tr_role_books {
    struct tr_restart_role restart;
    uint32_t deaths;
    uint32_t restarts;
    uint64_t notice_max_ns;
    uint64_t notice_sum_ns;
    uint64_t back_max_ns; /* from notice to up again */
    uint64_t back_sum_ns;
    uint32_t backs;
};

/* An actor of the plan. */
struct tr_actor_state {
    bool up;
    bool finished;    /* it ended by itself and well: it is not made anew */
    uint64_t version; /* of the last news about it */
    struct tr_restart_replica restart;
};

struct tr_controller {
    struct tr_run *run;
    enum tr_phase phase;
    struct tr_member *members;     /* by process */
    struct tr_actor_state *actors; /* by planned index */
    struct tr_role_books *books;   /* by role */
    uint64_t last_version;
    struct tr_names names;
    struct tr_kept_states kept;
    uint64_t grace_ns;
    uint64_t stop_by_ns;  /* when the grace time ends, once it has begun */
    uint32_t driver_slot; /* in the store; 0: none */
    bool driver_gone;     /* and not there again */
    uint64_t
        driver_by_ns; /* until then the end waits for a driver that has not joined; 0: not yet */
    bool driver_told; /* that the run is over */
    bool own_ended;   /* the loops of this process were told to end */
};

static inline struct tr_controller *
tr_controller_of(troupe_ctx *ctx)
{
    return troupe_state(ctx);
}

static inline bool
tr_is_here(const struct tr_controller *self, uint32_t process)
{
    return process == self->run->process;
}

/* --- controller.c ---------------------------------------------------------------------------- */

struct tr_ask {
    troupe_answer_fn on_answer;
    uint64_t deadline_ns;
    uint32_t planned; /* given back by tr_asked_planned */
};

/* Calls the agent of a loop and counts the answer that its member waits for. Takes the args. */
void tr_member_call(troupe_ctx *ctx, uint32_t loop, const char *method, troupe_args *args,
    const struct tr_ask *ask);
/* An answer has come: its member, or NULL when it was asked for in another state or life. */
struct tr_member *tr_member_arrived(struct tr_controller *self, const void *user, uint32_t *index);
uint32_t tr_asked_planned(const void *user);
/* All answers that the member waited for are there: on to its next state. */
void tr_member_advance(troupe_ctx *ctx, uint32_t index);
/* The first failure is the run's; the run stops. */
void tr_run_fail(troupe_ctx *ctx, troupe_status status, const char *text);
/* Makes the planned actor in its living process. */
void tr_member_spawn(troupe_ctx *ctx, uint32_t planned);
/* Starts the process of a member. */
void tr_member_launch(troupe_ctx *ctx, uint32_t index);
/* Whether a call failed because its process is dying. It is told when it is dead; should it not be
 * dying, it is made to. */
bool tr_member_is_dying(troupe_ctx *ctx, uint32_t index, troupe_status status);

/* The driver is gone; true when it is to be replaced. */
bool tr_controller_driver_lost(troupe_ctx *ctx, const char *text);

/* --- controller_end.c ------------------------------------------------------------------------ */

void tr_controller_stop_within(troupe_ctx *ctx, uint64_t grace_ns);
/* Something has changed while the run stops or ends: goes on when it can. */
void tr_controller_look_end(troupe_ctx *ctx);

/* --- controller_death.c ---------------------------------------------------------------------- */

/* Method "ended": an actor has ended by itself. */
void tr_controller_ended(troupe_ctx *ctx, troupe_call *call);
/* Method "cut": a peer has sent what nobody may send, and is heard no more by who says so. */
void tr_controller_cut(troupe_ctx *ctx, troupe_call *call);
/* An actor could not be made. */
void tr_actor_unmade(troupe_ctx *ctx, uint32_t planned, troupe_status status, const char *text);
/* The member is up; writes in the books how long it took when it was lost before. */
void tr_member_is_back(troupe_ctx *ctx, uint32_t index);
/* One log line for each role that lost somebody. */
void tr_books_log(troupe_ctx *ctx);

/* --- controller_ask.c ------------------------------------------------------------------------ */

/* The methods for guests (ext/guest.h). */
void tr_controller_status(troupe_ctx *ctx, troupe_call *call);
void tr_controller_waits(troupe_ctx *ctx, troupe_call *call);
void tr_controller_stop_asked(troupe_ctx *ctx, troupe_call *call);
/* Writes the file by which guests find the node. */
void tr_run_facts_write(const struct tr_run *run, int driver_pid);

/* --- controller_news.c ----------------------------------------------------------------------- */

/* The planned actor is up at `ref`, or down: in the node's directory, and told to the others. */
void tr_news_up(troupe_ctx *ctx, uint32_t planned, troupe_ref ref);
void tr_news_down(troupe_ctx *ctx, uint32_t planned, const char *cause);
/* All that is up, to one member; counts the answers that it waits for. */
void tr_news_all(troupe_ctx *ctx, uint32_t index, troupe_answer_fn on_answer);

#endif
