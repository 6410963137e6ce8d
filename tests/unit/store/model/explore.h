/* Runs the store's own code under every order of the accesses of several processes to shared
 * memory, and with the death of one at every access.
 *
 * A process is a coroutine with a handle, a mapping-wide view and a slot of its own. Before
 * each access it yields; the explorer chooses who goes on, or that the victim dies there. It
 * goes through all choices depth first, running each execution from the start, and does not go
 * on from a state that it has seen: the shared words, and for each process what it has read so
 * far (its program is a function of that). A process's last moment may be anywhere; the owner's
 * `reclaim` program starts after it. */
#ifndef TR_TESTS_STORE_EXPLORE_H
#define TR_TESTS_STORE_EXPLORE_H

#include "store/layout.h"

enum {
    PROCS_MAX = 3
};

/* Where orders are tried out; elsewhere a process only may die. Hints are the marks and tops. */
enum region {
    REGION_ENTRIES = 1,
    REGION_LEDGER = 2,
    REGION_PLACES = 4,
    REGION_HINTS = 8
};

typedef struct scenario {
    const char *name;
    unsigned regions;
    uint64_t bytes_max;
    uint32_t entries;
    int procs;       /* 0 is the owner's */
    int victim;      /* may die at any access; 0: nobody dies */
    int preemptions; /* how often one that could go on may be made to wait; 0: any number */
    /* Runs before, on the handle of process 0, not explored. */
    void (*prepare)(troupe_store *const *stores);
    void (*program[PROCS_MAX])(troupe_store *store, int proc);
    /* Runs on the owner's handle after the death, beside the others. */
    void (*reclaim)(troupe_store *store, uint32_t slot);
    /* At the end of each execution, on the owner's handle: NULL when all is well, or what is
     * not. */
    const char *(*verdict)(troupe_store *owner);
} scenario;

/* A place in the store's code that accesses shared memory, and a fault to plant there: the
 * access is not made (a load gives 0, a CAS says that it succeeded) or, for a CAS, made without
 * comparing. */
typedef struct site {
    const char *function;
    const char *file;
    int line;
    tr_access access;
    bool blind;
} site;

typedef struct findings {
    uint64_t executions;
    uint64_t states;
    uint64_t deaths;
    bool complete;   /* false: the limit of states was reached */
    char fault[512]; /* "" when every execution was well */
} findings;

/* Explores; stops at the first fault. `planted` may be NULL. */
void explore(const scenario *scenario, const site *planted, uint64_t states_max, findings *found);
/* The sites that the executions so far passed; at most `max`. */
size_t sites_seen(site *sites, size_t max);

/* For programs: fails the execution. */
void wrong(const char *what);
/* A word of a program's own that the others may read, zeroed at the start of each execution. */
uint64_t *scratch(int proc);

#endif
