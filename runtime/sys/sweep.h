/* Finding and ending processes that hide: in other groups, in other sessions, without parent. Each
 * worker gets a mark in its environment, which its descendants inherit; a mark names the process
 * that set it, when that began, and the worker. Marks are added to those that we carry ourselves,
 * so whoever is further up recognises all that lives below. */
#ifndef TR_SYS_SWEEP_H
#define TR_SYS_SWEEP_H

#include <troupe/ext/base.h>

#include <sys/types.h>

enum {
    TR_MARK_MAX = 96
};

/* The beginning of every mark that this process sets: ":PID-START-". False without /proc. */
bool tr_mark_of_us(char out[TR_MARK_MAX]);
/* One for a new worker; "" without /proc. */
void tr_mark_new(char out[TR_MARK_MAX]);

/* Our environment, with "K=V" of `add` (may be NULL) in place of what has the same name, and with
 * the mark appended to ours. One block, to be freed. */
char **tr_environ_marked(const char *const *add, const char *mark);

typedef struct tr_prey {
    const char *mark; /* carries it, */
    pid_t root;       /* or descends from this one (0: nobody) or is it; */
    const int *keep;  /* but neither is nor descends from one of these */
    size_t keep_count;
    uint64_t
        since_ticks; /* whoever began before it, in ticks as in /proc, is none; 0: look at all */
} tr_prey;

/* Stops them one after the other until none runs, kills them, and reaps those that are children of
 * ours. Returns when none is found, after 2 s at most; how many were killed. */
size_t tr_hunt(const tr_prey *prey);

#endif
