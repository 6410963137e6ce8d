/* What the three kinds of processes of a run have in common. */
#ifndef TR_NODE_PROCESS_H
#define TR_NODE_PROCESS_H

#include "node/birth.h"
#include "node/run.h"

#include <troupe/ext/runfolder.h>

/* What troupe_main knows of the program in each of its processes. */
struct tr_program {
    const troupe_app *app;
    const char *name;
    int argc;
    char **argv;   /* without the options that are ours */
    int full_argc; /* as it was given */
    char **full_argv;
    const char *picture; /* NULL, "text" or "dot" */
    bool colocate;
};

/* Exit codes besides 0 and 1: usage or bad input; ended by signal N: the sum. */
enum {
    TR_EXIT_INPUT = 2,
    TR_EXIT_SIGNAL = 128
};

/* Prints "NAME: TEXT"; the exit code for the status. */
int tr_program_complain(
    const struct tr_program *program, troupe_status status, const troupe_error *err);

/* --- the three ------------------------------------------------------------------------------- */

/* The first driver: makes the run of a checked graph and is its terminal. The exit code. */
int tr_driver_first(const struct tr_program *program, const troupe_graph *graph);
/* A driver that a node has started in the place of one that was lost. */
int tr_driver_again(const struct tr_program *program, const struct tr_birth *birth);
int tr_node_main(const struct tr_program *program, const struct tr_birth *birth);
int tr_worker_main(const struct tr_program *program, const struct tr_birth *birth);

/* --- common parts ---------------------------------------------------------------------------- */

/* Keeps the inherited descriptors 3 to 3 + count - 1 from further children and reads the plan.
 * INVALID: this process was not started by a run. */
troupe_status tr_process_plan(int count, struct tr_plan **out, troupe_error *err) TROUPE_MUST_USE;
/* Fills in run->epoch and run->link and opens the run (tr_run_open), with the controller known. The
 * plan, layout, process, store, life and options are set. */
troupe_status tr_process_open(
    struct tr_run *run, const struct tr_birth *birth, troupe_error *err) TROUPE_MUST_USE;

/* --- guards ---------------------------------------------------------------------------------- */

/* Starts a node or a driver: the guards' common part. `given` are the descriptors from 3 on. */
struct tr_worker;
troupe_status tr_guard_start(const struct tr_plan *plan, const struct tr_birth *birth,
    const int given[TR_GUARD_GIVEN], struct tr_worker **out, troupe_error *err) TROUPE_MUST_USE;

#endif
