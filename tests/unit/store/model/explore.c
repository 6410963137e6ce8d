#include "explore.h"

#include <troupe/ext/base.h>

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

enum {
    STACK_SIZE = 256 << 10,
    DEPTH_MAX = 20000,
    STEPS_MAX = 20000, /* of one execution: no operation of the store waits for another */
    SITES_MAX = 400,
    DIE = 100 /* as a choice: the victim's death */
};

enum proc_state {
    WAITING, /* for its turn; its next access is known */
    ENDED,
    DEAD
};

typedef struct proc {
    ucontext_t context; /* to enter it; after that it is left and continued by `point` */
    jmp_buf point;
    char *stack;
    enum proc_state state;
    troupe_store *store;
    troupe_store saved; /* the handle at the start */
    tr_local_hold *local;
    uint32_t *populated;
    uint64_t history; /* of what it has read */
    uint64_t scratch[1];
    unsigned region; /* of its next access */
    bool reclaims;   /* this coroutine runs the reclaim program */
} proc;

typedef struct decision {
    uint8_t options[PROCS_MAX + 2];
    uint8_t count;
    uint8_t next;
} decision;

typedef struct explorer {
    const scenario *scenario;
    const site *planted;
    proc procs[PROCS_MAX + 1]; /* the last is the reclaimer */
    ucontext_t begun;
    jmp_buf scheduler;
    int steps; /* accesses in this execution */
    int preemptions;
    int running; /* -1: not exploring, accesses are made at once */
    uint8_t *snapshot;
    uint64_t shared_size; /* the tables, and the extent in which small objects lie */
    tr_layout layout;
    uint64_t state_hash;
    bool died;
    bool judging; /* the verdict runs: nobody yields, but what it writes is put back */
    char fault[512];
    decision *path;
    size_t depth;   /* decisions made in this execution */
    size_t length;  /* decisions that are known from before */
    uint64_t *seen; /* hash set of states */
    uint64_t seen_capacity;
    uint64_t seen_count;
    size_t touched_count;
    uint64_t touched[65536]; /* offsets written in this execution */
} explorer;

/* The accesses come from code that knows nothing of an explorer, so there is one for the
 * program. */
static explorer X;
static site seen_sites[SITES_MAX];
static size_t seen_site_count;

/* --- sites ----------------------------------------------------------------------------------- */

static void
note_site(tr_access access, const char *function, const char *file, int line)
{
    for (size_t i = 0; i < seen_site_count; i++) {
        if (seen_sites[i].line == line && seen_sites[i].access == access &&
            strcmp(seen_sites[i].file, file) == 0 &&
            strcmp(seen_sites[i].function, function) == 0) {
            return;
        }
    }
    TR_ASSERT(seen_site_count < SITES_MAX);
    seen_sites[seen_site_count++] =
        (site){.function = function, .file = file, .line = line, .access = access};
}

size_t
sites_seen(site *sites, size_t max)
{
    size_t count = seen_site_count < max ? seen_site_count : max;
    memcpy(sites, seen_sites, count * sizeof *sites);
    return count;
}

static bool
is_planted(tr_access access, const char *file, int line)
{
    const site *p = X.planted;
    return p != NULL && X.running >= 0 && p->line == line && p->access == access &&
           strcmp(p->file, file) == 0;
}

/* --- one access ------------------------------------------------------------------------------ */

static uint64_t
mix(uint64_t a, uint64_t b)
{
    uint64_t h = (a ^ (b + UINT64_C(0x9e3779b97f4a7c15) + (a << 6) + (a >> 2))) *
                 UINT64_C(0xff51afd7ed558ccd);
    return h ^ h >> 33;
}

static uint64_t
offset_of(const tr_word *word)
{
    const troupe_store *store = X.procs[X.running].store;
    return (uint64_t)((uintptr_t)word - (uintptr_t)store->base);
}

static unsigned
region_of(uint64_t offset)
{
    const tr_layout *at = &X.layout;
    if (offset < at->slots) {
        return REGION_HINTS;
    }
    if (offset < at->entry_marks) {
        return REGION_LEDGER;
    }
    if (offset >= at->entries && offset < at->extent_marks) {
        return REGION_ENTRIES;
    }
    return offset >= at->extents ? REGION_PLACES : REGION_HINTS;
}

static uint64_t
perform(tr_access access, tr_word *word, uint64_t a, uint64_t b, bool blind)
{
    uint64_t old = *word;
    switch (access) {
    case TR_ACCESS_LOAD:
        return old;
    case TR_ACCESS_STORE:
        *word = a;
        return 0;
    case TR_ACCESS_CAS:
        if (old != a && !blind) {
            return 0;
        }
        *word = b;
        return 1;
    case TR_ACCESS_OR:
        *word = old | a;
        return old;
    case TR_ACCESS_AND:
        *word = old & a;
        return old;
    case TR_ACCESS_ADD:
        *word = old + a;
        return old;
    }
    return 0;
}

/* Keeps the hash of all shared words and the list of those written. */
static void
account(uint64_t offset, uint64_t old, uint64_t now)
{
    if (old == now) {
        return;
    }
    TR_ASSERT(X.touched_count < TR_COUNT(X.touched));
    X.touched[X.touched_count++] = offset;
    X.state_hash ^= mix(offset, old) ^ mix(offset, now);
}

/* To the scheduler, and on when it says so. */
static void
yield(proc *p)
{
    if (_setjmp(p->point) == 0) {
        _longjmp(X.scheduler, 1);
    }
}

uint64_t
tr_step(tr_access access, tr_word *word, uint64_t a, uint64_t b, const char *function,
    const char *file, int line)
{
    if (X.running < 0) {
        uint64_t was = *word;
        uint64_t plain = perform(access, word, a, b, false);
        if (X.judging) {
            account((uint64_t)((uintptr_t)word - (uintptr_t)X.procs[0].store->base), was, *word);
        }
        return plain;
    }
    note_site(access, function, file, line);
    uint64_t offset = offset_of(word);
    proc *p = &X.procs[X.running];
    p->region = region_of(offset);
    if (++X.steps > STEPS_MAX) {
        wrong("an execution does not end");
    }
    if ((p->region & X.scenario->regions) != 0 || (X.running == X.scenario->victim && !X.died) ||
        X.fault[0] != '\0') {
        yield(p);
    }
    uint64_t old = *word, result = 0;
    if (is_planted(access, file, line) && !X.planted->blind) {
        result = access == TR_ACCESS_CAS ? 1 : 0;
    } else {
        result = perform(access, word, a, b, is_planted(access, file, line));
    }
    account(offset, old, *word);
    p->history = mix(mix(p->history, result), (uint64_t)line << 32 | offset);
    return result;
}

/* --- coroutines ------------------------------------------------------------------------------ */

void
wrong(const char *what)
{
    if (X.fault[0] == '\0') {
        (void)snprintf(X.fault, sizeof X.fault, "%s", what);
    }
}

uint64_t *
scratch(int index)
{
    return X.procs[index].scratch;
}

static void
enter(void)
{
    int index = X.running;
    proc *p = &X.procs[index];
    if (p->reclaims) {
        X.scenario->reclaim(p->store, X.procs[X.scenario->victim].store->slot);
    } else {
        X.scenario->program[index](p->store, index);
    }
    p->state = ENDED;
    _longjmp(X.scheduler, 1);
}

/* Runs it up to its first access at which it yields. */
static void
begin(int index)
{
    proc *p = &X.procs[index];
    TR_ASSERT(getcontext(&p->context) == 0);
    p->context.uc_stack.ss_sp = p->stack;
    p->context.uc_stack.ss_size = STACK_SIZE;
    p->context.uc_link = NULL;
    makecontext(&p->context, enter, 0);
    p->state = WAITING;
    X.running = index;
    if (_setjmp(X.scheduler) == 0) {
        (void)swapcontext(&X.begun, &p->context);
    }
    X.running = -1;
}

static void
go_on(int index)
{
    X.running = index;
    if (_setjmp(X.scheduler) == 0) {
        _longjmp(X.procs[index].point, 1);
    }
    X.running = -1;
}

/* --- the world before an execution ----------------------------------------------------------- */

static void
keep_handle(proc *p)
{
    const tr_geometry *g = &p->store->geometry;
    p->saved = *p->store;
    memcpy(p->local, p->store->local, g->entries * sizeof *p->local);
    memcpy(p->populated, p->store->populated, g->extents / TR_CHUNK_EXTENTS * sizeof(uint32_t));
}

static void
restore_handle(proc *p)
{
    const tr_geometry *g = &p->store->geometry;
    *p->store = p->saved;
    memcpy(p->store->local, p->local, g->entries * sizeof *p->local);
    memcpy(p->store->populated, p->populated, g->extents / TR_CHUNK_EXTENTS * sizeof(uint32_t));
    p->history = 0;
    memset(p->scratch, 0, sizeof p->scratch);
}

static uint64_t
fixed_now(const troupe_sys *sys)
{
    (void)sys;
    return 1;
}

static void
open_stores(const scenario *s)
{
    static const troupe_sys fixed = {.name = "fixed", .now_ns = fixed_now};
    tr_geometry geometry = {.bytes_max = s->bytes_max,
        .slots = PROCS_MAX,
        .entries = s->entries,
        .extents = TR_CHUNK_EXTENTS};
    troupe_store *stores[PROCS_MAX] = {NULL};
    TR_ASSERT(tr_store_make_geometry(&geometry, &stores[0], NULL) == TROUPE_OK);
    for (int i = 1; i < s->procs; i++) {
        uint32_t slot = 0;
        TR_ASSERT(tr_store_slot_open(stores[0], &slot, NULL) == TROUPE_OK);
        TR_ASSERT(
            tr_store_attach(dup(tr_store_fd(stores[0])), slot, &stores[i], NULL) == TROUPE_OK);
    }
    for (int i = 0; i < s->procs; i++) {
        stores[i]->sys = &fixed;
        X.procs[i].store = stores[i];
    }
    if (s->prepare != NULL) {
        s->prepare(stores);
    }
    X.procs[PROCS_MAX].store = stores[0]; /* the reclaimer works on the owner's handle */
    X.procs[PROCS_MAX].reclaims = true;
}

static void
set_up(const scenario *s)
{
    X.scenario = s;
    X.running = -1;
    open_stores(s);
    tr_layout_of(&X.procs[0].store->geometry, &X.layout);
    X.shared_size = X.layout.arena + TR_EXTENT_SIZE;
    X.snapshot = tr_alloc(X.shared_size);
    memcpy(X.snapshot, X.procs[0].store->base, X.shared_size);
    for (int i = 0; i <= PROCS_MAX; i++) {
        proc *p = &X.procs[i];
        if (p->store != NULL) {
            p->stack = tr_alloc(STACK_SIZE);
            p->local = tr_zalloc(s->entries, sizeof *p->local);
            p->populated = tr_zalloc(1, sizeof *p->populated);
            keep_handle(p);
        }
    }
    X.path = tr_zalloc(DEPTH_MAX, sizeof *X.path);
    X.seen_capacity = 1 << 16;
    X.seen = tr_zalloc(X.seen_capacity, sizeof *X.seen);
}

static void
restore_world(void)
{
    uint8_t *base = X.procs[0].store->base;
    for (size_t i = 0; i < X.touched_count; i++) {
        memcpy(base + X.touched[i], X.snapshot + X.touched[i], 8);
    }
    memcpy(base + X.layout.arena, X.snapshot + X.layout.arena, TR_EXTENT_SIZE);
    X.touched_count = 0;
    X.state_hash = 0;
    X.died = false;
    X.depth = 0;
    for (int i = 0; i <= PROCS_MAX; i++) {
        if (X.procs[i].store != NULL) {
            restore_handle(&X.procs[i]);
            X.procs[i].state = ENDED;
        }
    }
    X.steps = 0;
    X.preemptions = 0;
}

static void
tear_down(const scenario *s)
{
    restore_world(); /* the last execution may have ended anywhere */
    for (int i = 0; i <= PROCS_MAX; i++) {
        tr_free(X.procs[i].stack);
        tr_free(X.procs[i].local);
        tr_free(X.procs[i].populated);
    }
    for (int i = s->procs - 1; i >= 0; i--) {
        troupe_store_free(X.procs[i].store);
    }
    tr_free(X.snapshot);
    tr_free(X.path);
    tr_free(X.seen);
    memset(&X, 0, sizeof X);
    X.running = -1;
}

/* --- the search ------------------------------------------------------------------------------ */

static void
seen_grow(void)
{
    uint64_t capacity = X.seen_capacity * 2;
    uint64_t *larger = tr_zalloc(capacity, sizeof *larger);
    for (uint64_t i = 0; i < X.seen_capacity; i++) {
        for (uint64_t at = X.seen[i]; X.seen[i] != 0; at++) {
            if (larger[at % capacity] == 0) {
                larger[at % capacity] = X.seen[i];
                break;
            }
        }
    }
    tr_free(X.seen);
    X.seen = larger;
    X.seen_capacity = capacity;
}

/* True when the state is new. */
static bool
see_state(int last)
{
    uint64_t h = mix(X.state_hash, X.died ? 77 : 5);
    for (int i = 0; i <= PROCS_MAX; i++) {
        h = mix(h, mix(X.procs[i].history, (uint64_t)X.procs[i].state));
        h = mix(h, X.procs[i].scratch[0]);
    }
    /* Where orders are not tried out, who goes on is part of the state. */
    h = mix(h, (uint64_t)last + 1);
    h = mix(h, X.scenario->preemptions > 0 ? (uint64_t)X.preemptions : 0);
    h = h == 0 ? 1 : h;
    for (uint64_t at = h;; at++) {
        uint64_t *slot = &X.seen[at % X.seen_capacity];
        if (*slot == h) {
            return false;
        }
        if (*slot == 0) {
            *slot = h;
            break;
        }
    }
    if (++X.seen_count * 2 > X.seen_capacity) {
        seen_grow();
    }
    return true;
}

static void
offer(decision *d, int option)
{
    d->options[d->count++] = (uint8_t)option;
}

/* Whether the one that moved last must go on: it is at no access of interest, or has had its
 * share of interruptions. */
static bool
is_forced(int last)
{
    const scenario *s = X.scenario;
    return last >= 0 && X.procs[last].state == WAITING &&
           ((X.procs[last].region & s->regions) == 0 ||
               (s->preemptions > 0 && X.preemptions >= s->preemptions));
}

/* Who may go on; `last` moved last. */
static void
list_options(decision *d, int last)
{
    const scenario *s = X.scenario;
    *d = (decision){.count = 0};
    bool goes_on = last >= 0 && X.procs[last].state == WAITING;
    bool forced = is_forced(last);
    if (goes_on) {
        offer(d, last);
    }
    for (int i = 0; i <= PROCS_MAX && !forced; i++) {
        if (i != last && X.procs[i].store != NULL && X.procs[i].state == WAITING) {
            offer(d, i);
        }
    }
    /* The victim dies where it would go on: elsewhere it is the same death, noticed later. */
    if (s->victim > 0 && !X.died && X.procs[s->victim].state == WAITING &&
        (!goes_on || last == s->victim)) {
        offer(d, DIE);
    }
}

static void
let_die(findings *found)
{
    X.procs[X.scenario->victim].state = DEAD;
    X.procs[X.scenario->victim].scratch[0] = 0;
    X.died = true;
    found->deaths++;
    begin(PROCS_MAX);
}

/* One execution, along the known path and then along first choices, up to its end or a state
 * that was seen. */
static void
execute(findings *found)
{
    restore_world();
    for (int i = 0; i < X.scenario->procs; i++) {
        if (X.scenario->program[i] != NULL) {
            begin(i);
        }
    }
    int last = -1;
    for (;;) {
        decision now;
        list_options(&now, last);
        if (now.count == 0) {
            break;
        }
        int choice = now.options[0];
        if (now.count > 1) {
            TR_ASSERT(X.depth < DEPTH_MAX);
            if (X.depth == X.length) {
                if (!see_state(X.scenario->preemptions > 0 || is_forced(last) ? last : -1)) {
                    return;
                }
                X.path[X.length++] = now;
            }
            decision *d = &X.path[X.depth++];
            choice = d->options[d->next];
        }
        if (choice == DIE) {
            let_die(found);
            last = -1;
        } else {
            bool preempts = last >= 0 && last != choice && X.procs[last].state == WAITING;
            X.preemptions += preempts;
            go_on(choice);
            last = choice;
        }
        if (X.fault[0] != '\0') {
            return;
        }
    }
    X.judging = true;
    const char *verdict = X.scenario->verdict(X.procs[0].store);
    X.judging = false;
    if (verdict != NULL) {
        wrong(verdict);
    }
}

/* The last decision that has another choice becomes that one; false when all was tried. */
static bool
next_path(void)
{
    while (X.length > 0) {
        decision *d = &X.path[X.length - 1];
        if (++d->next < d->count) {
            return true;
        }
        X.length--;
    }
    return false;
}

void
explore(const scenario *s, const site *planted, uint64_t states_max, findings *found)
{
    *found = (findings){0};
    set_up(s);
    X.planted = planted;
    do {
        execute(found);
        found->executions++;
    } while (X.fault[0] == '\0' && X.seen_count < states_max && next_path());
    found->states = X.seen_count;
    found->complete = X.fault[0] == '\0' && X.seen_count < states_max;
    memcpy(found->fault, X.fault, sizeof found->fault);
    tear_down(s);
}
