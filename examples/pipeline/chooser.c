/* The sink: takes a batch of whole groups, moves the centre, commits, publishes.
 *
 *   open -> publish -> [ take -> commit -> publish -> ] durable -> finish */
#include "points.h"

#include <troupe/ext/base.h>
#include <troupe/ext/protocol.h>
#include <troupe/ext/wire.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct scored {
    double value, x[2];
} scored;

typedef struct chooser {
    region region;
    troupe_object object; /* the region, while it is published */
    uint64_t version;     /* the next one to publish */
    int64_t step;         /* the last one committed */
    uint64_t groups[GROUPS];
    uint64_t digests[GROUPS][MEMBERS];
    scored points[GROUPS * MEMBERS];
    char result[128];   /* "" while it runs */
    troupe_call *asked; /* who waits for the result */
} chooser;

static void publish(troupe_ctx *ctx, chooser *c);

static void
tell_result(chooser *c)
{
    if (c->asked != NULL && c->result[0] != '\0') {
        troupe_args values = {0};
        troupe_args_str(&values, c->result);
        (void)troupe_reply(c->asked, &values);
        c->asked = NULL;
    }
}

static void
finished(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    chooser *c = user;
    if (agreed(ctx, answer)) {
        (void)snprintf(c->result, sizeof c->result, "after %d steps: lowest near %.1f %.1f",
            (int)c->step, c->region.centre[0], c->region.centre[1]);
        tell_result(c);
    }
}

static int
lower_first(const void *a, const void *b)
{
    double x = ((const scored *)a)->value, y = ((const scored *)b)->value;
    return (x > y) - (x < y);
}

/* The centre moves to the best half; the width shrinks. */
static void
choose(chooser *c)
{
    int half = GROUPS * MEMBERS / 2;
    qsort(c->points, GROUPS * MEMBERS, sizeof c->points[0], lower_first);
    for (int i = 0; i < 2; i++) {
        double sum = 0;
        for (int p = 0; p < half; p++) {
            sum += c->points[p].x[i];
        }
        c->region.centre[i] = sum / half;
    }
    c->region.width *= 0.85;
}

static void
durable(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)user;
    if (agreed(ctx, answer)) {
        troupe_args args = {0};
        troupe_args_str(&args, "done");
        ask(ctx, TROUPE_METHOD_FINISH, &args, finished, troupe_state(ctx));
    }
}

static void
committed(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    chooser *c = user;
    if (!agreed(ctx, answer)) {
        return;
    }
    c->step++;
    if (c->step < STEPS) {
        publish(ctx, c);
        return;
    }
    troupe_args args = {0}; /* nothing will go back behind this step: the stream may let go */
    troupe_args_i64(&args, c->step);
    troupe_args_u64(&args, 0);
    ask(ctx, TROUPE_METHOD_DURABLE, &args, durable, c);
}

/* Every group of the batch ends as trained; its digests show that its bytes were seen. */
static void
commit(troupe_ctx *ctx, chooser *c)
{
    troupe_args args = {0};
    troupe_args_i64(&args, c->step + 1);
    troupe_args_array(&args, GROUPS);
    for (int g = 0; g < GROUPS; g++) {
        troupe_args_array(&args, 4);
        troupe_args_u64(&args, c->groups[g]);
        troupe_args_str(&args, "trained");
        troupe_args_nil(&args);
        troupe_args_array(&args, MEMBERS);
        for (int m = 0; m < MEMBERS; m++) {
            troupe_args_u64(&args, c->digests[g][m]);
        }
    }
    troupe_args_bool(&args, true); /* "durable" below needs the ledger */
    ask(ctx, TROUPE_METHOD_COMMIT, &args, committed, c);
}

/* [attempt, object, digest, units, [[number, object or nil, digest]]] */
static bool
read_point(troupe_ctx *ctx, tr_reader *in, uint64_t *digest, scored *point)
{
    uint32_t fields = 0, stages = 0, parts = 0;
    uint64_t attempt = 0, word = 0, units = 0;
    troupe_sample *sample = NULL;
    troupe_tensor x;
    bool ok = tr_read_array(in, &fields) && tr_read_u64(in, &attempt) && tr_read_u64(in, &word) &&
              tr_read_u64(in, digest) && tr_read_u64(in, &units) && tr_read_array(in, &stages) &&
              tr_read_array(in, &parts) && tr_read_f64(in, &point->value) && tr_read_skip(in) &&
              tr_read_skip(in) &&
              troupe_sample_open(
                  troupe_ctx_store(ctx), troupe_object_of_word(word), &sample, NULL) == TROUPE_OK;
    ok = ok && troupe_sample_verify(sample, *digest, NULL) == TROUPE_OK &&
         troupe_sample_find(sample, "x", TROUPE_TENSOR_F32, &x);
    for (int i = 0; ok && i < 2; i++) {
        point->x[i] = (double)((const float *)x.data)[i];
    }
    troupe_sample_close(sample);
    return ok;
}

static void
taken(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    chooser *c = user;
    tr_reader in;
    uint32_t groups = 0, fields = 0, members = 0;
    uint64_t row = 0;
    if (!agreed(ctx, answer)) {
        return;
    }
    bool ok = troupe_arg_reader(answer, 1, &in) && tr_read_array(&in, &groups) && groups == GROUPS;
    for (int g = 0; ok && g < GROUPS; g++) {
        ok = tr_read_array(&in, &fields) && tr_read_u64(&in, &c->groups[g]) &&
             tr_read_u64(&in, &row) && tr_read_array(&in, &members) && members == MEMBERS;
        for (int m = 0; ok && m < MEMBERS; m++) {
            ok = read_point(ctx, &in, &c->digests[g][m], &c->points[g * MEMBERS + m]);
        }
    }
    if (!ok) {
        troupe_exit(ctx, TROUPE_CORRUPT, "the batch does not read as one");
        return;
    }
    choose(c);
    commit(ctx, c);
}

static void
published(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    chooser *c = user;
    (void)troupe_object_release(troupe_ctx_store(ctx), c->object);
    if (agreed(ctx, answer)) {
        troupe_args args = {0};
        troupe_args_i64(&args, c->step + 1);
        troupe_args_u64(&args, c->version++);
        ask(ctx, TROUPE_METHOD_TAKE, &args, taken, c);
    }
}

static void
publish(troupe_ctx *ctx, chooser *c)
{
    void *bytes = NULL;
    troupe_store *store = troupe_ctx_store(ctx);
    troupe_status status = troupe_object_create(store, sizeof c->region, &c->object, &bytes);
    if (status == TROUPE_OK) {
        memcpy(bytes, &c->region, sizeof c->region);
        status = troupe_object_seal(store, c->object);
    }
    if (status != TROUPE_OK) {
        troupe_exit(ctx, status, "no room for a region");
        return;
    }
    troupe_args args = {0};
    troupe_args_u64(&args, c->version);
    troupe_args_i64(&args, c->step);
    troupe_args_object(&args, c->object);
    troupe_args_u64(&args, tr_xxh3(&c->region, sizeof c->region, 0));
    ask(ctx, TROUPE_METHOD_PUBLISH, &args, published, c);
}

static void
opened(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    chooser *c = user;
    if (agreed(ctx, answer)) {
        c->version = troupe_arg_u64(answer, 2);
        publish(ctx, c);
    }
}

static void
chooser_start(troupe_ctx *ctx)
{
    chooser *c = troupe_state(ctx);
    c->region.width = 2;
    troupe_args args = {0};
    ask(ctx, TROUPE_METHOD_OPEN, &args, opened, c);
}

static void
retired(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx; /* a group that ended without this sink: nothing to write down here */
    (void)troupe_reply(call, NULL);
}

static void
result(troupe_ctx *ctx, troupe_call *call)
{
    chooser *c = troupe_state(ctx);
    c->asked = troupe_defer(call);
    tell_result(c);
}

const troupe_class chooser_class = {
    .name = "chooser",
    .state_size = sizeof(chooser),
    .start = chooser_start,
    .methods = {{TROUPE_METHOD_RETIRED, retired}, {"result", result}},
};
