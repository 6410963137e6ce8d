/* From the options to a run: inputs are checked before anything starts, the run directory is made
 * or found again, and the configurations of the roles and of the stream are written as JSON. */
#ifndef GRPO_RUN_H
#define GRPO_RUN_H

#include <troupe/graph.h>
#include <troupe/options.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct grpo_run {
    troupe_options *options;
    char *role_config;   /* JSON for every role */
    char *stream_config; /* JSON for the coordinator */
    int rollouts, rewards;
    uint64_t store_bytes;
    bool reference; /* a KL term, so a reference role */
    double mean_lag, window;
    int max_lag; /* TROUPE_NO_BOUND: none */
    const char *order, *bound;
    troupe_update update;
} grpo_run;

/* BAD_INPUT, or what made an input or the directory unusable; nothing is left behind then. With
 * `drawing` the inputs are checked and no directory is made. */
troupe_status grpo_run_open(
    grpo_run *run, int argc, char **argv, bool drawing, troupe_error *err) TROUPE_MUST_USE;
void grpo_run_close(grpo_run *run);

/* Prints the help when it was asked for. */
bool grpo_help(int argc, char **argv);

#endif
