/* A user's program, outside of the tree: a graph with a call, and one thing from each part of the
 * library, so that a static link must find every library below it. Prints "user: 42". */
#include <troupe/dataset.h>
#include <troupe/kernels.h>
#include <troupe/options.h>
#include <troupe/packing.h>
#include <troupe/reward.h>
#include <troupe/rl.h>
#include <troupe/roles.h>
#include <troupe/tokenizer.h>
#include <troupe/trainer.h>
#include <troupe/troupe.h>

#include <stdio.h>
#include <string.h>

static void
twice(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    troupe_reply_i64(call, 2 * troupe_arg_i64(call, 0));
}

static const troupe_class doubler = {.name = "doubler", .methods = {{"twice", twice}}};

static troupe_status
graph(troupe_graph *g, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    troupe_role_add(g, "doubler", &doubler, .replicas = 2);
    return TROUPE_OK;
}

static int
drive(troupe_ctx *ctx, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    troupe_args args = {0};
    troupe_answer *answer = NULL;
    troupe_args_i64(&args, 21);
    if (troupe_call_wait(ctx, troupe_to(ctx, "doubler", 1), "twice", &args, &answer) != TROUPE_OK) {
        return 1;
    }
    printf("user: %d\n", (int)troupe_arg_i64(answer, 0));
    troupe_answer_free(answer);
    return 0;
}

/* The regular expressions, the JSON reader, the Unicode tables, the device. */
static int
parts(void)
{
    troupe_error err = {0};
    troupe_dataset *rows = NULL;
    const char *line = "{\"prompt\": \"2+2=\", \"answer\": 4}\n";
    if (troupe_dataset_parse(&rows, "rows", line, strlen(line), NULL, &err) != TROUPE_OK) {
        return fprintf(stderr, "%s\n", err.text), 1;
    }
    troupe_dataset_free(rows);

    troupe_reward *reward = NULL;
    double value = 0;
    if (troupe_reward_open(&reward,
            &(troupe_reward_options){
                .size = sizeof(troupe_reward_options), .name = "regex", .pattern = "^[0-9]+$"},
            &err) != TROUPE_OK ||
        troupe_reward_score(reward, &(troupe_reward_input){.text = "42", .text_size = 2}, &value,
            &err) != TROUPE_OK ||
        value < 1) {
        return fprintf(stderr, "%s\n", err.text), 1;
    }
    troupe_reward_close(reward);

    troupe_tokenizer *tokenizer = NULL;
    if (troupe_tokenizer_parse("none", "{", 1, &tokenizer, &err) == TROUPE_OK) {
        return fprintf(stderr, "half a file is no tokenizer\n"), 1;
    }
    troupe_device *device = NULL;
    if (troupe_device_open("cpu", NULL, &device, &err) != TROUPE_OK) {
        return fprintf(stderr, "%s\n", err.text), 1;
    }
    troupe_device_close(device);
    return strcmp(troupe_lm_policy.methods[0].name, "") == 0;
}

int
main(int argc, char **argv)
{
    if (parts() != 0) {
        return 1;
    }
    return troupe_main(argc, argv, &(troupe_app){.graph = graph, .drive = drive});
}
