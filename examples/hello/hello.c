/* The smallest actor graph: one greeter for each language, and a driver that asks them all.
 *
 *   ./hello [NAME]            ./hello --graph */
#include <troupe/troupe.h>

#include <stdio.h>

/* A method gets a call and answers it. Arguments are checked for it: a call without a text here is
 * answered BAD_INPUT. */
static void
greet(troupe_ctx *ctx, troupe_call *call)
{
    static const char *const words[] = {"Hello", "Bonjour", "Guten Tag"};
    char line[128];
    (void)snprintf(
        line, sizeof line, "%s, %s!", words[troupe_self_replica(ctx)], troupe_arg_str(call, 0));
    troupe_args values = {0};
    troupe_args_str(&values, line);
    troupe_reply(call, &values);
}

static const troupe_class greeter = {.name = "greeter", .methods = {{"greet", greet}}};

static troupe_status
graph(troupe_graph *g, int argc, char **argv)
{
    (void)argv;
    if (argc > 2) {
        return troupe_graph_refuse(g, TROUPE_BAD_INPUT, "give one name at most");
    }
    troupe_role_add(g, "greeter", &greeter, .replicas = 3);
    return TROUPE_OK;
}

/* Runs on the main thread when every actor is up. */
static int
drive(troupe_ctx *ctx, int argc, char **argv)
{
    for (int i = 0; i < troupe_replicas(ctx, "greeter"); i++) {
        troupe_args args = {0};
        troupe_answer *answer = NULL;
        troupe_args_str(&args, argc > 1 ? argv[1] : "world");
        if (troupe_call_wait(ctx, troupe_to(ctx, "greeter", i), "greet", &args, &answer) !=
            TROUPE_OK) {
            return 1;
        }
        printf("%s\n", troupe_arg_str(answer, 0));
        troupe_answer_free(answer);
    }
    return 0;
}

int
main(int argc, char **argv)
{
    return troupe_main(argc, argv, &(troupe_app){.graph = graph, .drive = drive});
}
