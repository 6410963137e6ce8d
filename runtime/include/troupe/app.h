/* Programs: from main() to a running graph and back to an exit code.
 *
 * What runs where. Unless a run is colocated it is several processes of one image: the program as
 * it was typed (the driver), the node that owns the run, and a worker for each replica of a role,
 * or for those that share a place. A process that is lost is replaced by another.
 *
 * main(), static constructors and whatever else stands before troupe_main run in every one of
 * them, with the same arguments, and again in each replacement. Nothing there may be what must
 * happen once (to empty a file, to take a port): that belongs into `graph`.
 *
 * `graph` runs once, in the process that was typed. What it notes in the graph reaches the others,
 * as text; what it writes into a global does not: no memory is shared but objects.
 *
 * `drive` runs in the driver. A driver that was lost is replaced and runs it again from its
 * beginning, while the actors went on: let it find out how far they are. exit() inside it counts
 * as such a loss, so return instead.
 *
 * Classes are static and constant, in the program or in a shared library that it has loaded; their
 * hooks and methods run in the worker, those of a stream's coordinator in the node. A worker's
 * standard output and error are pipes to the node, which passes them on in whole lines, each to
 * where it belongs; its standard input is empty. */
#ifndef TROUPE_APP_H
#define TROUPE_APP_H

#include <troupe/graph.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct troupe_app {
    const char *name; /* for messages; default: the program's file name */
    /* Declares the graph, once in a run. It sees the command line without the options that
     * troupe_main knows. Anything but OK ends the program: BAD_INPUT and INVALID with exit code 2,
     * the rest with 1. The reason is the one given to troupe_graph_refuse, or was printed by
     * `graph` itself. */
    troupe_status (*graph)(troupe_graph *graph, int argc, char **argv);
    /* Optional: runs on the main thread once all actors are up; may call and wait. Its result is
     * the exit code, and its return ends the run. A driver that dies is replaced, and its drive
     * begins anew. Signals are seen while it waits (troupe_wait, troupe_call_wait), so it should
     * not block otherwise. Without it the run ends by
     * troupe_quit or by a signal. */
    int (*drive)(troupe_ctx *ctx, int argc, char **argv);
    const troupe_stream_class *streams; /* needed when the graph declares a stream */
    uint64_t store_bytes;               /* budget of the object store; 0: 4 GiB */
    int pool_loops;    /* threads for pooled actors; 0: one per processor, at most 8 */
    uint64_t grace_ns; /* for the stop hooks; 0: 30 s */
    bool colocate;     /* all actors in this one process, as with --colocate */
    /* The run's own process (the node part) is named when it gives no sign of life for 5 s, and
     * killed and replaced after so long; 0: 60 s; below 0: never. Of workers: see graph.h. */
    double silent_s;
} troupe_app;

/* Runs a program: builds and checks the graph, prints it when --graph or --graph=dot is given,
 * starts the loops, drives, stops in order. SIGINT, SIGTERM and SIGHUP ask every actor to stop; a
 * second one kills. Result, for main() to return: 0 done, or what drive or troupe_quit gave; 1
 * failed; 2 bad input; 129, 130, 143 ended by a signal. */
int troupe_main(int argc, char **argv, const troupe_app *app);

/* How a run ended. */
typedef struct troupe_run_result {
    int code;              /* as given to troupe_quit or returned by drive */
    int signal;            /* SIGINT, SIGTERM or SIGHUP when one ended the run, else 0 */
    uint64_t objects_left; /* objects that nobody released */
} troupe_run_result;

typedef struct troupe_run_options {
    size_t size;
    int (*drive)(troupe_ctx *ctx, void *user); /* as in troupe_app */
    void *user;
    const troupe_stream_class *streams;
    uint64_t store_bytes;
    int pool_loops;
    uint64_t grace_ns;
    bool signals; /* end by SIGINT and SIGTERM */
    void (*log)(
        void *user, const char *line); /* NULL: standard error; called from any loop's thread */
} troupe_run_options;

/* Runs a graph without main(), always in this one process: for tests and for programs that embed
 * troupe. It returns when
 * every loop has ended. A failure (the graph is wrong, an actor could not be made, one died with
 * no restarts left) is the status and is told in *err. The graph stays the caller's. */
troupe_status troupe_run(const troupe_graph *graph, const troupe_run_options *options,
    troupe_run_result *result, troupe_error *err) TROUPE_MUST_USE;

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
