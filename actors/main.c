/* The `troupe` command: the one place that knows all parts. It finds the sub-command and hands over
 * the rest of the words; each sub-command prints its own help and returns the exit code. */
#include "cli/commands.h"

#include <troupe/ext/base.h>

#include <stdio.h>
#include <string.h>

enum {
    EXIT_USAGE = 2
};

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *synopsis;
    const char *help;
} command;

static const command model_commands[] = {
    {"info", troupe_cli_model_info, "DIR [--json]", "sizes, dtype, rope, stop ids, files, memory"},
    {"verify", troupe_cli_verify, "DIR [--device D] [--dtype fp32|bf16] [--expected FILE]",
        "computes what expected.safetensors holds and compares"},
    {"generate", troupe_cli_generate,
        "DIR --prompt TEXT|--prompt-ids LIST|--messages FILE [options]", "samples from a model"},
    {"tokenize", troupe_cli_tokenize, "DIR|tokenizer.json [--decode [--skip-special]]",
        "JSON strings to ids, a line each, or back"},
};

static const command commands[] = {
    {"audit", troupe_cli_audit, "RUN [--json] [--dump]",
        "re-derives a run's ledger from its records; 1 = violations"},
    {"status", troupe_cli_status, "[--waits] [--json] [RUN]",
        "runs of this machine, their processes, who waits for whom"},
    {"stop", troupe_cli_stop, "RUN [--grace SECONDS]", "ends a run in order and waits for it"},
    {"clean", troupe_cli_clean, "", "removes the folders that dead runs have left"},
    {"sim", troupe_sim_main, "--seed N [--scenario S] [--nodes N] [--steps N], --list",
        "the production machines under a virtual clock, with faults"},
};

static void
print_commands(FILE *out)
{
    fprintf(out, "usage: troupe COMMAND [...]\n\n");
    for (size_t i = 0; i < TR_COUNT(commands); i++) {
        fprintf(out, "  troupe %s %s\n      %s\n", commands[i].name, commands[i].synopsis,
            commands[i].help);
    }
    for (size_t i = 0; i < TR_COUNT(model_commands); i++) {
        fprintf(out, "  troupe model %s %s\n      %s\n", model_commands[i].name,
            model_commands[i].synopsis, model_commands[i].help);
    }
    fprintf(out, "  troupe version\n\nJobs are programs of their own, such as examples/grpo: run "
                 "one with --help.\n");
}

static int
unknown(const char *what, const char *word, const command *table, size_t count)
{
    const char *names[16];
    TR_ASSERT(count <= TR_COUNT(names));
    for (size_t i = 0; i < count; i++) {
        names[i] = table[i].name;
    }
    const char *nearest = tr_nearest(word, names, count);
    if (nearest != NULL) {
        fprintf(stderr, "troupe: unknown %s \"%s\"; did you mean \"%s\"?\n", what, word, nearest);
    } else {
        fprintf(stderr, "troupe: unknown %s \"%s\"; troupe --help lists them\n", what, word);
    }
    return EXIT_USAGE;
}

static const command *
find(const command *table, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(table[i].name, name) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

int
main(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : "";
    if (argc < 2 || strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 ||
        strcmp(word, "-h") == 0) {
        print_commands(argc < 2 ? stderr : stdout);
        return argc < 2 ? EXIT_USAGE : 0;
    }
    if (strcmp(word, "version") == 0 || strcmp(word, "--version") == 0) {
        printf("troupe %s\n", TROUPE_VERSION);
        return 0;
    }
    if (strcmp(word, "model") != 0) {
        const command *c = find(commands, TR_COUNT(commands), word);
        return c != NULL ? c->run(argc - 1, argv + 1)
                         : unknown("command", word, commands, TR_COUNT(commands));
    }
    if (argc < 3 || strcmp(argv[2], "--help") == 0) {
        print_commands(argc < 3 ? stderr : stdout);
        return argc < 3 ? EXIT_USAGE : 0;
    }
    const command *c = find(model_commands, TR_COUNT(model_commands), argv[2]);
    return c != NULL ? c->run(argc - 2, argv + 2)
                     : unknown("model command", argv[2], model_commands, TR_COUNT(model_commands));
}
