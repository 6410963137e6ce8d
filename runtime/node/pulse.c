/* See pulse.h. */
#include "node/pulse.h"

#include "sys/procfs.h"

#include <stdio.h>

/* Above what a node with much to do takes for a round. */
#define NAMED_NS UINT64_C(5000000000)

const char *
tr_state_name(char state)
{
    switch (state) {
    case 'T':
    case 't':
        return "stopped";
    case 'D':
        return "waiting for the kernel";
    case 'R':
        return "running";
    case 'Z':
        return "dead";
    default:
        return "sleeping";
    }
}

bool
tr_pulse_look(struct tr_pulse_watch *watch, const struct tr_pulse *pulse, int pid, uint64_t now_ns)
{
    if (pid != watch->pid) {
        watch->pid = pid;
        watch->silence = (struct tr_silence){0};
        watch->named = false;
        watch->over = false;
    }
    uint64_t before_ns = watch->silence.silent_ns;
    uint64_t beat_ns = __atomic_load_n(&pulse->beat_ns, __ATOMIC_RELAXED);
    uint64_t silent_ns = tr_silence_look(&watch->silence, beat_ns, now_ns);
    struct tr_proc proc = {.state = '?'};
    if (silent_ns >= NAMED_NS && !watch->named && tr_proc_read(pid, &proc)) {
        fprintf(stderr,
            "%s: the node part (pid %d) has not answered for %.0f s: its process is %s (state "
            "%c)\n",
            watch->program, pid, (double)silent_ns / 1e9, tr_state_name(proc.state), proc.state);
        watch->named = true;
    } else if (silent_ns < NAMED_NS && watch->named) {
        fprintf(stderr, "%s: the node part (pid %d) answers again after %.0f s\n", watch->program,
            pid, (double)before_ns / 1e9);
        watch->named = false;
        watch->over = false;
    }
    if (silent_ns < watch->limit_ns || watch->over) {
        return false;
    }
    fprintf(stderr, "%s: the node part (pid %d) has not answered for %.0f s: it is killed\n",
        watch->program, pid, (double)silent_ns / 1e9);
    watch->over = true;
    return true;
}
