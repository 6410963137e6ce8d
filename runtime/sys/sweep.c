/* A process that forks faster than we can look is not caught by killing what is seen: so what is
 * seen is stopped first. A stopped one forks no more, keeps its place under the limit of processes,
 * and leaves more of the processor to us, so each look finds fewer that run. */
#include "sweep.h"

#include "procfs.h"
#include "spawn.h"

#include <troupe/ext/sys.h>
#include <troupe/ext/worker.h>

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint64_t hunt_ns = 2000000000; /* longest */
static const uint64_t reap_ns = 200000000;  /* of what was killed */

static const char variable[] = "TROUPE_WORKER_OF=";

enum {
    MARKS_MAX = 512 /* bytes of those that we carry; the oldest are dropped */
};

/* --- marks ------------------------------------------------------------------------------------ */

bool
tr_mark_of_us(char out[TR_MARK_MAX])
{
    struct tr_proc self;
    out[0] = '\0';
    if (!tr_proc_read(getpid(), &self)) {
        return false;
    }
    (void)snprintf(out, TR_MARK_MAX, ":%d-%" PRIu64 "-", (int)self.pid, self.start_ticks);
    return true;
}

void
tr_mark_new(char out[TR_MARK_MAX])
{
    if (tr_mark_of_us(out)) {
        const size_t length = strlen(out);
        (void)snprintf(out + length, TR_MARK_MAX - length, "%" PRIu64 ";", tr_monotonic_ns());
    }
}

/* Both are "K=V": is K the same? */
static bool
same_name(const char *a, const char *b)
{
    const size_t length = strcspn(a, "=");
    return length == strcspn(b, "=") && strncmp(a, b, length) == 0;
}

static bool
replaced(const char *entry, const char *const *add)
{
    for (size_t i = 0; add != NULL && add[i] != NULL; i++) {
        if (same_name(entry, add[i])) {
            return true;
        }
    }
    return same_name(entry, variable);
}

char **
tr_environ_marked(const char *const *add, const char *mark)
{
    size_t ours = 0;
    size_t more = 0;
    while (environ != NULL && environ[ours] != NULL) {
        ours++;
    }
    while (add != NULL && add[more] != NULL) {
        more++;
    }
    const char *old = getenv("TROUPE_WORKER_OF");
    old = old != NULL ? old : "";
    while (strlen(old) > MARKS_MAX) {
        const char *next = strchr(old + 1, ':');
        old = next != NULL ? next : "";
    }
    const size_t text = sizeof variable + strlen(old) + strlen(mark);
    char **out = tr_alloc((ours + more + 2) * sizeof *out + text);
    size_t count = 0;
    char *marks = (char *)(out + ours + more + 2);
    (void)snprintf(marks, text, "%s%s%s", variable, old, mark);
    out[count++] = marks;
    for (size_t i = 0; i < ours; i++) {
        if (!replaced(environ[i], add)) {
            out[count++] = environ[i];
        }
    }
    for (size_t i = 0; i < more; i++) {
        memcpy(&out[count++], &add[i], sizeof *out); /* exec changes none of it */
    }
    out[count] = NULL;
    return out;
}

/* --- looking ---------------------------------------------------------------------------------- */

typedef struct caught {
    pid_t pid;
    uint64_t start_ticks;
    bool reaped;
} caught;

typedef struct hunt {
    const tr_prey *prey;
    caught *all;
    size_t count, room;
} hunt;

static int
by_pid(const void *a, const void *b)
{
    const struct tr_proc *x = a;
    const struct tr_proc *y = b;
    return (x->pid > y->pid) - (x->pid < y->pid);
}

enum kin {
    KIN_UNKNOWN = 0,
    KIN_NONE,
    KIN_ROOT,
    KIN_KEPT
};

static enum kin
kin_itself(const tr_prey *prey, pid_t pid)
{
    for (size_t i = 0; i < prey->keep_count; i++) {
        if (prey->keep[i] == pid) {
            return KIN_KEPT;
        }
    }
    return prey->root > 0 && pid == prey->root ? KIN_ROOT : KIN_UNKNOWN;
}

/* For each of the sorted processes, from whom it descends. Each is visited once or twice: what was
 * found for one holds for all between. */
static void
find_kin(const tr_prey *prey, const struct tr_proc *list, size_t count, unsigned char *kin)
{
    for (size_t i = 0; i < count; i++) {
        kin[i] = (unsigned char)kin_itself(prey, list[i].pid);
    }
    for (size_t i = 0; i < count; i++) {
        unsigned char found = KIN_UNKNOWN;
        for (int pass = 0; pass < 2; pass++) {
            size_t at = i;
            for (size_t steps = 0; kin[at] == KIN_UNKNOWN && steps <= count; steps++) {
                if (pass == 1) {
                    kin[at] = found;
                }
                const struct tr_proc key = {.pid = list[at].parent};
                const struct tr_proc *up = bsearch(&key, list, count, sizeof *list, by_pid);
                if (up == NULL || up->pid == list[at].pid) {
                    break;
                }
                at = (size_t)(up - list);
            }
            found = pass == 0 ? (kin[at] == KIN_UNKNOWN ? KIN_NONE : kin[at]) : found;
        }
    }
}

static bool
is_caught(const hunt *h, const struct tr_proc *p)
{
    for (size_t i = 0; i < h->count; i++) {
        if (h->all[i].pid == p->pid && h->all[i].start_ticks == p->start_ticks) {
            return true;
        }
    }
    return false;
}

static void
catch_one(hunt *h, const struct tr_proc *p)
{
    if (h->count == h->room) {
        h->room = TR_MAX(h->room * 2, (size_t)64);
        h->all = tr_realloc(h->all, h->room, sizeof *h->all);
    }
    h->all[h->count++] = (caught){.pid = p->pid, .start_ticks = p->start_ticks};
}

/* Stops all that it finds running; how many that were. */
static size_t
look(hunt *h)
{
    struct tr_proc *list = NULL;
    const size_t count = tr_proc_list(&list);
    unsigned char *kin = tr_alloc(count);
    size_t running = 0;
    if (count > 0) {
        qsort(list, count, sizeof *list, by_pid);
        find_kin(h->prey, list, count, kin);
    }
    for (size_t i = 0; i < count; i++) {
        const struct tr_proc *p = &list[i];
        if (p->pid == getpid() || p->state == 'Z' || p->state == 'X' || kin[i] == KIN_KEPT) {
            continue;
        }
        /* One that sleeps in the kernel stops before it does anything else. */
        const bool known = is_caught(h, p);
        if (!known && kin[i] != KIN_ROOT && p->start_ticks < h->prey->since_ticks) {
            continue; /* older than what we look for: most of the machine */
        }
        if (known ? p->state != 'R' && p->state != 'S'
                  : kin[i] != KIN_ROOT && !tr_proc_env_has(p->pid, h->prey->mark)) {
            continue;
        }
        running++;
        (void)kill(p->pid, SIGSTOP);
        if (p->group == p->pid && p->group != getpgrp()) {
            (void)kill(-p->group, SIGSTOP); /* its group was made by it, so it is all of its kind */
        }
        if (!known) {
            catch_one(h, p);
        }
    }
    tr_free(kin);
    tr_free(list);
    return running;
}

static bool
lives(const caught *c)
{
    struct tr_proc now;
    return tr_proc_read(c->pid, &now) && now.start_ticks == c->start_ticks && now.state != 'X';
}

/* Until none is left but zombies of other parents, which are theirs to reap. */
static void
reap(hunt *h)
{
    const uint64_t deadline_ns = tr_monotonic_ns() + reap_ns;
    size_t left = h->count;
    while (left > 0) {
        left = 0;
        for (size_t i = 0; i < h->count; i++) {
            caught *c = &h->all[i];
            struct tr_proc now;
            if (c->reaped || !tr_proc_read(c->pid, &now) || now.start_ticks != c->start_ticks) {
                continue;
            }
            c->reaped = c->pid != h->prey->root && waitpid(c->pid, NULL, WNOHANG) == c->pid;
            left += !c->reaped && now.state != 'Z' ? 1 : 0;
        }
        if (left == 0 || tr_monotonic_ns() >= deadline_ns) {
            return;
        }
        troupe_sleep_ns(500000);
    }
}

/* Against many that run, one has no chance as their equal; where we may, we are more. Sessions
 * share the processor among each other before their threads do (autogroups), so that a nicer value
 * alone would not help against many of them. */
typedef struct urgency {
    int policy;
    struct sched_param param;
    bool raised;
} urgency;

static urgency
hurry(void)
{
    urgency before = {.policy = sched_getscheduler(0)};
    const struct sched_param least = {.sched_priority = sched_get_priority_min(SCHED_FIFO)};
    before.raised = before.policy >= 0 && sched_getparam(0, &before.param) == 0 &&
                    sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &least) == 0;
    return before;
}

static void
calm_down(urgency before)
{
    if (before.raised) {
        (void)sched_setscheduler(0, before.policy, &before.param);
    }
}

size_t
tr_hunt(const tr_prey *prey)
{
    if (prey->mark[0] == '\0') {
        return 0; /* no /proc, so nothing to look in */
    }
    hunt h = {.prey = prey};
    const uint64_t deadline_ns = tr_monotonic_ns() + hunt_ns;
    const urgency before = hurry();
    /* One that is just executing has no environment for a moment, so a second look confirms. */
    for (int quiet = 0; quiet < 2 && tr_monotonic_ns() < deadline_ns;) {
        const size_t running = look(&h);
        quiet = running > 0 ? 0 : h.count == 0 ? 2 : quiet + 1;
    }
    for (size_t i = 0; i < h.count; i++) {
        if (lives(&h.all[i])) {
            (void)kill(h.all[i].pid, SIGKILL);
        }
    }
    reap(&h);
    calm_down(before);
    tr_free(h.all);
    return h.count;
}

/* --- orphans ---------------------------------------------------------------------------------- */

troupe_status
tr_subreaper(troupe_error *err)
{
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
        return troupe_fail(err, TROUPE_UNSUPPORTED,
            "orphans cannot be adopted: %s; Linux 3.4 or newer is needed", strerror(errno));
    }
    return TROUPE_OK;
}

/* Zombies have no environment any more; one in another group than ours was not made by a library's
 * system() or popen(). *others: there are children that live and are not kept. */
static size_t
reap_zombies(const int *keep_pids, size_t count, bool *others)
{
    struct tr_proc *list = NULL;
    const size_t all = tr_proc_list(&list);
    size_t gone = 0;
    *others = false;
    for (size_t i = 0; i < all; i++) {
        const struct tr_proc *p = &list[i];
        bool kept = p->parent != getpid();
        for (size_t k = 0; k < count && !kept; k++) {
            kept = keep_pids[k] == p->pid;
        }
        if (kept || (p->state == 'Z' && p->group == getpgrp())) {
            continue;
        }
        *others = *others || p->state != 'Z';
        gone += p->state == 'Z' && waitpid(p->pid, NULL, WNOHANG) == p->pid ? 1 : 0;
    }
    tr_free(list);
    return gone;
}

size_t
tr_sweep_orphans(const int *keep_pids, size_t count)
{
    char mark[TR_MARK_MAX];
    struct tr_proc self;
    if (!tr_mark_of_us(mark) || !tr_proc_read(getpid(), &self)) {
        return 0;
    }
    bool others = false;
    int adopts = 0;
    const size_t gone = reap_zombies(keep_pids, count, &others);
    /* What is orphaned is our child, if we adopt; so where there is none there is nothing to look
     * for, and the environments of the whole machine need not be read every second. */
    if (!others && prctl(PR_GET_CHILD_SUBREAPER, &adopts) == 0 && adopts != 0) {
        return gone;
    }
    const tr_prey prey = {
        .mark = mark, .keep = keep_pids, .keep_count = count, .since_ticks = self.start_ticks};
    return gone + tr_hunt(&prey);
}
