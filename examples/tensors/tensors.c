/* Tensors both ways: a differentiable reward answers with a number and its gradient.
 *
 * A learner looks for the vector x whose rewards are best. Each judge has a batch of targets of its
 * own, given to it once as an object of the store (by handle: nothing is copied). A step sends x to
 * every judge as a tensor inside the message and gets back the reward, minus half the mean squared
 * distance, and its gradient, a tensor again. The learner climbs.
 *
 *   ./tensors            ./tensors --graph */
#include <troupe/troupe.h>

#include <stdio.h>
#include <string.h>

enum {
    DIM = 3,
    TARGETS = 1000, /* of one judge */
    JUDGES = 2,
    STEPS = 40
};

/* --- the judge -------------------------------------------------------------------------------- */

typedef struct judge {
    troupe_object object; /* held until fini */
    const float *targets; /* [TARGETS, DIM], inside the object */
} judge;

/* Takes a hold of its own on the object, so that the sender may let go of it. */
static void
set_targets(troupe_ctx *ctx, troupe_call *call)
{
    judge *j = troupe_state(ctx);
    troupe_object object = troupe_arg_object(call, 0);
    const void *bytes = NULL;
    size_t size = 0;
    troupe_status status = troupe_object_hold(troupe_ctx_store(ctx), object, &bytes, &size);
    if (status != TROUPE_OK || size != sizeof(float[TARGETS][DIM])) {
        troupe_reply_error(call, TROUPE_BAD_INPUT, "no object with %d targets", TARGETS);
        return;
    }
    j->object = object;
    j->targets = bytes;
    troupe_reply(call, NULL);
}

static void
score(troupe_ctx *ctx, troupe_call *call)
{
    const judge *j = troupe_state(ctx);
    troupe_tensor x;
    if (!troupe_arg_tensor(call, 0, &x) || x.type != TROUPE_TENSOR_F32 || x.rank != 1 ||
        x.shape[0] != DIM || j->targets == NULL) {
        troupe_reply_error(call, TROUPE_BAD_INPUT, "score takes a tensor of %d floats", DIM);
        return;
    }
    const float *value = x.data;
    double reward = 0;
    float gradient[DIM] = {0};
    for (int t = 0; t < TARGETS; t++) {
        for (int i = 0; i < DIM; i++) {
            float distance = value[i] - j->targets[t * DIM + i];
            reward -= 0.5 * (double)(distance * distance) / TARGETS;
            gradient[i] -= distance / TARGETS;
        }
    }
    troupe_args values = {0};
    troupe_args_f64(&values, reward);
    troupe_args_tensor(&values,
        &(troupe_tensor){.type = TROUPE_TENSOR_F32, .rank = 1, .shape = {DIM}, .data = gradient});
    troupe_reply(call, &values);
}

static void
judge_fini(troupe_ctx *ctx)
{
    judge *j = troupe_state(ctx);
    if (j->targets != NULL) {
        (void)troupe_object_release(troupe_ctx_store(ctx), j->object);
    }
}

static const troupe_class judge_class = {
    .name = "judge",
    .state_size = sizeof(judge),
    .fini = judge_fini,
    .own_loop = true, /* it computes: its thread is its own */
    .methods = {{"set_targets", set_targets}, {"score", score}},
};

/* --- the learner, in the driver --------------------------------------------------------------- */

/* Judge n wants every coordinate near n; a spread that has mean 0 is added. */
static int
give_targets(troupe_ctx *ctx, int replica)
{
    troupe_store *store = troupe_ctx_store(ctx);
    troupe_object object;
    void *bytes = NULL;
    if (troupe_object_create(store, sizeof(float[TARGETS][DIM]), &object, &bytes) != TROUPE_OK) {
        return 1;
    }
    float *targets = bytes;
    for (int t = 0; t < TARGETS; t++) {
        for (int i = 0; i < DIM; i++) {
            targets[t * DIM + i] = (float)(replica + i) + (t % 2 ? 0.25f : -0.25f);
        }
    }
    troupe_status status = troupe_object_seal(store, object);
    troupe_args args = {0};
    troupe_args_object(&args, object);
    if (status == TROUPE_OK) {
        status =
            troupe_call_wait(ctx, troupe_to(ctx, "judge", replica), "set_targets", &args, NULL);
    }
    troupe_args_fini(&args);
    (void)troupe_object_release(store, object); /* the judge has a hold of its own by now */
    return status == TROUPE_OK ? 0 : 1;
}

/* One judge's opinion of x; adds to the reward and the gradient. */
static int
ask(troupe_ctx *ctx, int replica, const float x[DIM], double *reward, float gradient[DIM])
{
    troupe_args args = {0};
    troupe_answer *answer = NULL;
    troupe_args_tensor(
        &args, &(troupe_tensor){.type = TROUPE_TENSOR_F32, .rank = 1, .shape = {DIM}, .data = x});
    if (troupe_call_wait(ctx, troupe_to(ctx, "judge", replica), "score", &args, &answer) !=
        TROUPE_OK) {
        fprintf(stderr, "%s\n", troupe_answer_text(answer));
        troupe_answer_free(answer);
        return 1;
    }
    troupe_tensor g;
    *reward += troupe_arg_f64(answer, 0);
    bool ok = troupe_arg_tensor(answer, 1, &g) && g.shape[0] == DIM;
    for (int i = 0; ok && i < DIM; i++) {
        gradient[i] += ((const float *)g.data)[i];
    }
    troupe_answer_free(answer);
    return ok ? 0 : 1;
}

static int
drive(troupe_ctx *ctx, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    float x[DIM] = {0};
    for (int j = 0; j < JUDGES; j++) {
        if (give_targets(ctx, j) != 0) {
            return 1;
        }
    }
    for (int step = 0; step <= STEPS; step++) {
        double reward = 0;
        float gradient[DIM] = {0};
        for (int j = 0; j < JUDGES; j++) {
            if (ask(ctx, j, x, &reward, gradient) != 0) {
                return 1;
            }
        }
        if (step % 10 == 0) {
            printf("step %2d  reward %8.4f  x %.3f %.3f %.3f\n", step, reward, (double)x[0],
                (double)x[1], (double)x[2]);
        }
        for (int i = 0; i < DIM; i++) {
            x[i] += 0.1f * gradient[i];
        }
    }
    return 0;
}

static troupe_status
graph(troupe_graph *g, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    troupe_role_add(g, "judge", &judge_class, .replicas = JUDGES);
    return TROUPE_OK;
}

int
main(int argc, char **argv)
{
    return troupe_main(argc, argv, &(troupe_app){.graph = graph, .drive = drive});
}
