/* See restart.h. A restart counts for exactly one window from the death that it followed. */
#include "node/restart.h"

#include <troupe/ext/base.h>

void
tr_restart_role_fini(struct tr_restart_role *role)
{
    tr_free(role->times);
    *role = (struct tr_restart_role){0};
}

static void
forget_old(const struct tr_restart_limits *limits, struct tr_restart_role *role, uint64_t now_ns)
{
    while (role->count > 0 && now_ns - role->times[role->first] >= limits->window_ns) {
        role->first = (role->first + 1) % (uint32_t)limits->restarts;
        role->count--;
    }
}

static void
back_off(
    const struct tr_restart_limits *limits, struct tr_restart_replica *replica, uint64_t now_ns)
{
    /* It was up since the end of its pause. Who stayed up for ten times as long as it was kept
     * waiting did not die of its start. */
    uint64_t quiet_ns = TR_MIN(TR_MAX(replica->pause_ns * 10, TR_QUIET_MIN_NS), TR_QUIET_MAX_NS);
    quiet_ns = TR_MIN(quiet_ns, limits->window_ns);
    bool quiet = !replica->died || now_ns - replica->died_ns >= quiet_ns + replica->pause_ns;
    replica->in_a_row = quiet ? 1 : replica->in_a_row + 1;
    uint64_t doubled = TR_MIN(replica->pause_ns * 2, TR_BACKOFF_MAX_NS);
    replica->pause_ns = quiet ? TR_MIN(limits->backoff_ns, TR_BACKOFF_MAX_NS) : doubled;
    replica->died_ns = now_ns;
    replica->died = true;
}

bool
tr_restart_decide(const struct tr_restart_limits *limits, struct tr_restart_role *role,
    struct tr_restart_replica *replica, uint64_t now_ns, uint64_t *pause_ns)
{
    /* The pauses alone keep a replica that dies at each start below any limit of its window. */
    back_off(limits, replica, now_ns);
    uint32_t in_a_row_max = (uint32_t)TR_MAX(limits->restarts / 2, (int)TR_IN_A_ROW_MAX);
    bool crash_loop = limits->restarts > 0 && replica->in_a_row > in_a_row_max;
    if (tr_restart_left(limits, role, now_ns) == 0 || crash_loop) {
        return false;
    }
    if (limits->restarts > 0) {
        uint32_t capacity = (uint32_t)limits->restarts;
        if (role->times == NULL) {
            role->times = tr_zalloc(capacity, sizeof *role->times);
        }
        role->times[(role->first + role->count) % capacity] = now_ns;
        role->count++;
    }
    *pause_ns = replica->pause_ns;
    return true;
}

int
tr_restart_left(
    const struct tr_restart_limits *limits, struct tr_restart_role *role, uint64_t now_ns)
{
    if (limits->restarts <= 0) {
        return limits->restarts < 0 ? -1 : 0;
    }
    forget_old(limits, role, now_ns);
    return limits->restarts - (int)role->count;
}
