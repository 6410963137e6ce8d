/* What the files of the engine share.
 *
 * A group's life: its prompt is computed into the group's own table (its *hold*). With the prompt's
 * last row each member gets its first token at once. Members then start one by one: they share the
 * hold's full blocks and copy the partial one; the last to start takes the hold over. A member that
 * is preempted waits again, and the prompt is computed again for all members that wait. So there is
 * one way into the batch, and one rule keeps versions apart: new weights release every hold. */
#ifndef TR_LM_ENGINE_STATE_H
#define TR_LM_ENGINE_STATE_H

#include "decoder.h"
#include "kv.h"

#include <troupe/engine.h>

enum tr_member_state {
    TR_MEMBER_WAITING,
    TR_MEMBER_RUNNING,
    TR_MEMBER_DONE
};

struct tr_member {
    struct tr_group *group;
    int index;
    int32_t label; /* what the caller calls it */
    uint64_t seed;
    enum tr_member_state state;
    troupe_finish finish;
    int32_t *tokens;
    float *logprobs;
    float *laws; /* NULL when the sampling law is not truncated */
    int count, capacity;
    troupe_lm_span *spans;
    int span_count, span_capacity;
    struct tr_kv_table table;
    int computed;      /* positions whose keys and values are in the cache */
    int computed_most; /* the most it ever had: what is below is computed again */
    int want;          /* rows in the step being planned */
    int preemptions;
};

struct tr_group {
    uint64_t id;
    uint64_t arrival;
    int32_t *prompt;
    int prompt_count;
    int limit; /* response tokens at most */
    troupe_sampling sampling;
    bool truncates;
    int32_t *stops;
    int stop_count;
    struct tr_member *members;
    int count;
    int waiting;  /* members */
    int live;     /* members not done */
    int reported; /* members that a step has handed out */
    struct tr_kv_table hold;
    int computed; /* positions of the prompt in the hold */
    int computed_most;
    int want;
};

/* A draw: `member` gets its next token from selected row `row` of the step. */
struct tr_draw {
    struct tr_member *member;
    int row;
};

/* The step's rows on the host and on the device, and what sampling reads and writes. */
struct tr_stage {
    int R, M, sequences, stride;
    int32_t *host; /* one block of 4 rows_max: ids, pos, seq, select */
    int32_t *ids, *pos, *seq, *select;
    int32_t *device;
    int32_t *tables, *device_tables;
    size_t tables_capacity;
    struct tr_draw *draws;
    int draw_count, draw_capacity;
    /* Sampling goes in chunks of `chunk` rows. */
    int chunk;
    float *logits, *copies; /* device [chunk, V]; copies where members share a row */
    void *inputs;           /* device: double u, troupe_sampling, int32 row [chunk] */
    void *outputs;          /* device: float logprob, law; int32 id; uint8 bad [chunk] */
    void *host_inputs, *host_outputs;
};

struct troupe_engine {
    const troupe_lm *lm;
    troupe_device *device;
    troupe_lm_weights *weights;
    troupe_lm_weights *pending; /* given, not applied */
    troupe_engine_options options;
    troupe_kv_cache cache;
    struct tr_kv_pool pool;
    struct tr_group **groups; /* by arrival */
    int group_count, group_capacity;
    uint64_t arrivals;
    struct tr_member **running;
    int running_count;
    int live;                 /* members of all groups */
    struct tr_member **ended; /* not yet reported */
    int ended_count, ended_capacity;
    troupe_generation *finished; /* what the last step handed out */
    int finished_capacity;
    struct tr_lm_acts acts;
    struct tr_stage stage;
    troupe_engine_stats stats;
};

/* Decides which rows the next step computes, and gives them blocks. Returns their number. */
int tr_engine_plan(troupe_engine *engine);
/* Takes a running member's blocks and lets it wait. */
void tr_engine_preempt(troupe_engine *engine, struct tr_member *member);
/* Lets a group's hold go; returns the blocks that became free. */
int32_t tr_engine_release_hold(troupe_engine *engine, struct tr_group *group);
/* Drops members that run no more from `running`. */
void tr_engine_sweep(troupe_engine *engine);
/* Ends a member that is not done: its blocks go, the next report has it. */
void tr_engine_finish(troupe_engine *engine, struct tr_member *member, troupe_finish finish);

/* Applies pending weights as soon as the update mode allows, so that between two steps the engine's
 * version is always the one that the next step samples with. */
void tr_engine_flip_when_allowed(troupe_engine *engine);
/* Frees groups all of whose members were handed out by an earlier step. */
void tr_engine_purge(troupe_engine *engine);
/* Turns the ended members into what the caller sees. */
void tr_engine_report(troupe_engine *engine, const troupe_generation **finished, int *count);
void tr_group_free(troupe_engine *engine, struct tr_group *group);

/* Memory of the step; NO_MEMORY. */
troupe_status tr_stage_init(troupe_engine *engine, troupe_error *err) TROUPE_MUST_USE;
void tr_stage_fini(troupe_engine *engine);
/* Draws the next token of every member whose last row was computed, and ends members. */
troupe_status tr_engine_draw(troupe_engine *engine, troupe_error *err) TROUPE_MUST_USE;
/* Bytes of what sampling reads and writes for `chunk` rows. */
size_t tr_draw_input_bytes(int chunk);
size_t tr_draw_output_bytes(int chunk);
/* Computes what the plan wants, then draws. */
troupe_status tr_engine_run(troupe_engine *engine, troupe_error *err) TROUPE_MUST_USE;

/* Blocks for `positions`. */
static inline int32_t
tr_engine_blocks(const troupe_engine *engine, int positions)
{
    return (positions + engine->options.block_size - 1) / engine->options.block_size;
}

#endif
