/* The graph as data, for the files of this folder. */
#ifndef TR_NODE_GRAPH_H
#define TR_NODE_GRAPH_H

#include <troupe/graph.h>

#include <stddef.h>

enum {
    TR_STREAMS_MAX = 16,
    TR_WEIGHTS_MAX = 16
};

struct troupe_role {
    const troupe_graph *graph;
    char *name;
    troupe_role_spec spec; /* texts are copies; defaults are filled in */
};

struct tr_stream {
    char *name;
    troupe_stream_spec spec; /* texts are copies */
    int stage_count;
};

struct tr_weights {
    char *name;
    troupe_weights_spec spec;
};

struct troupe_graph {
    bool drawing;         /* it will be shown, not run */
    uint64_t store_bytes; /* 0: not given */
    char *name;           /* NULL: not given */
    char *logs;           /* absolute; NULL: not given */
    troupe_error error;   /* the first mistake; status OK when there is none */
    troupe_role *roles[TROUPE_ROLES_MAX];
    int role_count;
    struct tr_stream streams[TR_STREAMS_MAX];
    int stream_count;
    struct tr_weights weights[TR_WEIGHTS_MAX];
    int weights_count;
};

/* Names that the runtime itself uses in the directory. */
#define TR_ROLE_NODE "node"
#define TR_ROLE_LOOP "loop"

/* The place of a role whose replicas have a process each. */
#define TR_PLACE_OWN "own"

/* The index of a role in its graph. */
int tr_graph_index(const troupe_graph *graph, const troupe_role *role);
/* The config of a stream's actor; the caller frees it with free(). */
char *tr_stream_config(const troupe_graph *graph, const struct tr_stream *stream);

#endif
