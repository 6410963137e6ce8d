/* A stream of something else than training: a source, a stage, a sink.
 *
 * The program looks for the lowest point of a function by the cross-entropy method. The guesser
 * (the source) draws points around a centre, the meter (a stage, two of them) measures each, the
 * chooser (the sink) takes batches of whole groups, moves the centre to the best half and publishes
 * it as the next version. The stream between them leases, retries, bounds the staleness (max_lag)
 * and keeps a ledger in which every group ends exactly once. What they say to each other is in
 * <troupe/ext/protocol.h>.
 *
 *   ./pipeline            ./pipeline --graph */
#include "points.h"

#include <troupe/ext/protocol.h>

#include <stdio.h>

#define CONFIG \
    "{\"groups_per_step\": 8, \"group_size\": 4, \"rows\": 1, \"steps\": 30, \"seed\": 1}"

void
ask(troupe_ctx *ctx, const char *method, troupe_args *args, troupe_answer_fn answered, void *user)
{
    troupe_status status = troupe_call_send(ctx, troupe_to(ctx, STREAM, 0), method, args,
        .on_answer = answered, .user = user, .retry = true, .deadline_ns = UINT64_C(60000000000));
    troupe_args_fini(args);
    if (status != TROUPE_OK) {
        troupe_exit(ctx, status, "%s: the stream cannot be called", method);
    }
}

bool
agreed(troupe_ctx *ctx, troupe_answer *answer)
{
    if (troupe_answer_status(answer) != TROUPE_OK) {
        troupe_exit(ctx, troupe_answer_status(answer), "%s", troupe_answer_text(answer));
        return false;
    }
    return true;
}

static troupe_status
graph(troupe_graph *g, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    troupe_role *guessers = troupe_role_add(g, "guesser", &guesser_class, .replicas = 2);
    troupe_role *meters = troupe_role_add(g, "meter", &meter_class, .replicas = 2);
    troupe_role *chooser_role = troupe_role_add(g, "chooser", &chooser_class);
    troupe_stream_add(g, STREAM, .source = guessers, .stages = {meters}, .sink = chooser_role,
        .mean_lag = 1, .max_lag = 2, .config = CONFIG);
    troupe_weights_add(g, "region", .from = chooser_role, .to = guessers);
    return TROUPE_OK;
}

static int
drive(troupe_ctx *ctx, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    troupe_answer *answer = NULL;
    troupe_status status =
        troupe_call_wait(ctx, troupe_to(ctx, "chooser", 0), "result", NULL, &answer);
    printf("%s\n", status == TROUPE_OK ? troupe_arg_str(answer, 0) : troupe_answer_text(answer));
    troupe_answer_free(answer);
    return status == TROUPE_OK ? 0 : 1;
}

int
main(int argc, char **argv)
{
    return troupe_main(
        argc, argv, &(troupe_app){.graph = graph, .drive = drive, .streams = troupe_coordinator()});
}
