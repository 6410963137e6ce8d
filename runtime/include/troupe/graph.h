/* The actor graph: which roles there are, how many replicas each has, and how samples and
 * weights flow between them. It is data: nothing runs before it was checked. One thread. */
#ifndef TROUPE_GRAPH_H
#define TROUPE_GRAPH_H

#include <troupe/actor.h>
#include <troupe/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct troupe_graph troupe_graph;
typedef struct troupe_role troupe_role;

enum {
    TROUPE_ROLES_MAX = 64,
    TROUPE_REPLICAS_MAX = 4096,
    TROUPE_STAGES_MAX = 8,
    TROUPE_NAME_MAX = 63
};

troupe_graph *troupe_graph_new(void);
void troupe_graph_free(troupe_graph *graph); /* NULL is allowed */
/* Says why the program's own options make no graph: kept, the first one, and told by
 * troupe_graph_check. Returns `status`, so that a graph function can end with `return
 * troupe_graph_refuse(...)`. */
troupe_status troupe_graph_refuse(
    troupe_graph *graph, troupe_status status, const char *format, ...) TROUPE_PRINTF(3, 4);

/* True in a graph function whose graph is only drawn (--graph): it makes nothing on disk then. */
bool troupe_graph_is_drawn(const troupe_graph *graph);

/* Budget of the object store in bytes; 0: what troupe_app says. */
void troupe_graph_store(troupe_graph *graph, uint64_t bytes);
/* What people call this run besides its folder's name: its output directory, say. `troupe stop`
 * and `troupe status` find it by either. Copied; NULL or "": none. */
void troupe_graph_name(troupe_graph *graph, const char *name);
/* Where what the processes of a run print is kept: DIR/ROLE-REPLICA.log (or PLACE-REPLICA.log), up
 * to four files of 16 MiB for each process (.log.1 is the one before). The directory and its parent
 * are made when they are not there; a run that goes on appends. Copied; NULL or "": in the run's
 * folder, which is removed at its end. What a run in one process prints is not kept. */
void troupe_graph_logs(troupe_graph *graph, const char *dir);

/* --- roles ---------------------------------------------------------------------------------- */

/* Zero means the default everywhere. Text is copied. */
typedef struct troupe_role_spec {
    size_t size; /* sizeof(troupe_role_spec) */
    const troupe_class *type;
    int replicas;       /* default 1 */
    const char *config; /* JSON object given to each replica's init; default "{}" */
    double devices;     /* of each replica; a part below 1 shares a device */
    int cpus;           /* of each replica */
    uint64_t memory;    /* bytes of each replica; its process is killed, and named, above it */
    const char *labels; /* "k=v,k=v": where it may run */
    int mailbox;        /* messages that a replica lets wait; default 1024 */
    /* Replicas that the role may lose and get anew within restart_window_s; -1: any number;
     * default 0: the first death ends the run. */
    int restarts;
    double restart_window_s; /* default 60 */
    int backoff_ms;          /* pause before a replica is made anew; doubles with each of its deaths
                              * up to 10 s, until it stays up for ten times as long; default 100 */
    /* The process of a replica: NULL or "own" (default), one for each; another name: replica i
     * shares one with replica i of every role of the same place. Without effect when colocated. */
    const char *place;
    /* Without a sign of life (it is stopped, or swapped out) for so long, a process of this role is
     * killed and named, which counts as any other death: roles that share one, the longest. An
     * actor that computes for long gives signs of life all the same. Default 60; -1: never. */
    double silent_s;
} troupe_role_spec;

/* Declares a role. Mistakes are kept in the graph and told by troupe_graph_check, so the result
 * is never NULL and needs no test. */
troupe_role *troupe_role_add_with(
    troupe_graph *graph, const char *name, const troupe_role_spec *spec);
/* troupe_role_add(graph, "reward", &reward, .replicas = 8) */
#define troupe_role_add(graph, name, ...) \
    troupe_role_add_with((graph), (name), \
        &(troupe_role_spec){.size = sizeof(troupe_role_spec), .type = __VA_ARGS__})

/* --- streams and weights -------------------------------------------------------------------- */

typedef struct troupe_stream_spec {
    size_t size;
    troupe_role *source;                    /* makes samples */
    troupe_role *stages[TROUPE_STAGES_MAX]; /* add fields to them, in parallel */
    troupe_role *sink;                      /* takes whole groups */
    double mean_lag;                        /* versions; steers admission */
    int max_lag;        /* versions; the hard bound; TROUPE_NO_BOUND: none; 0: synchronous */
    const char *order;  /* "in-order" (default), "window", "drop", "ready-first" */
    double window;      /* share of the slots, (0, 1]; order "window" */
    const char *bound;  /* "group" (default), "unit" */
    const char *config; /* JSON object, passed on to the stream's own actor */
} troupe_stream_spec;

#define TROUPE_NO_BOUND (-1)

void troupe_stream_add_with(troupe_graph *graph, const char *name, const troupe_stream_spec *spec);
#define troupe_stream_add(graph, name, ...) \
    troupe_stream_add_with(                 \
        (graph), (name), &(troupe_stream_spec){.size = sizeof(troupe_stream_spec), __VA_ARGS__})

typedef enum troupe_update {
    TROUPE_IN_FLIGHT,        /* receivers flip between two of their steps, sequences go on */
    TROUPE_BETWEEN_SEQUENCES /* a sequence ends with the version that it began with */
} troupe_update;

typedef struct troupe_weights_spec {
    size_t size;
    troupe_role *from;
    troupe_role *to;
    troupe_update update;
} troupe_weights_spec;

void troupe_weights_add_with(
    troupe_graph *graph, const char *name, const troupe_weights_spec *spec);
#define troupe_weights_add(graph, name, ...) \
    troupe_weights_add_with(                 \
        (graph), (name), &(troupe_weights_spec){.size = sizeof(troupe_weights_spec), __VA_ARGS__})

/* --- what the runtime does with it ---------------------------------------------------------- */

/* The class that owns a stream, and what it expects of the roles that it joins: method names,
 * ended by NULL. It is instantiated once per declared stream, as an actor that goes by the
 * stream's name, with a config of {"stream", "source", "stages", "sink", "mean_lag", "max_lag"
 * (null: none), "order", "window", "bound", "weights": [{"name", "from", "to", "update"}],
 * "config"}. */
typedef struct troupe_stream_class {
    const troupe_class *type;
    const char *source_methods[8];
    const char *stage_methods[8];
    const char *sink_methods[8];
    const char *receiver_methods[8]; /* of the roles that weights go to */
} troupe_stream_class;

/* OK, or BAD_INPUT with the first mistake: no role, a bad or repeated name, a count out of
 * range, text that is not a JSON object, a class without name or with a repeated method, a
 * stream without source or sink, a role of another graph, lags that contradict each other, an
 * unknown order or bound, a cycle of streams, methods that `streams` (may be NULL) expects and a
 * class lacks. */
troupe_status troupe_graph_check(const troupe_graph *graph, const troupe_stream_class *streams,
    troupe_error *err) TROUPE_MUST_USE;

/* A picture: text for people, or Graphviz. The caller frees it with free(). */
char *troupe_graph_text(const troupe_graph *graph);
char *troupe_graph_dot(const troupe_graph *graph);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
