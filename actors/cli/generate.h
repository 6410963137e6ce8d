/* `troupe model generate`: one answer to one prompt. */
#ifndef TR_CLI_GENERATE_H
#define TR_CLI_GENERATE_H

/* argv[0] is the command's name. Returns the exit code: 0 done, 1 it ran and failed, 2 usage or bad
 * input. Prints the answer to stdout as it grows, errors to stderr. */
int troupe_cli_generate(int argc, char **argv);

#endif
