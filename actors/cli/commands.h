/* The sub-commands of `troupe`: each gets its own words (argv[0] is its name), prints to
 * standard output what was asked for and to standard error what went wrong, and returns the exit
 * code: 0 done, 1 it ran and failed, 2 usage or bad input. */
#ifndef TR_COMMANDS_H
#define TR_COMMANDS_H

int troupe_cli_model_info(int argc, char **argv);
int troupe_cli_verify(int argc, char **argv);
int troupe_cli_generate(int argc, char **argv);
int troupe_cli_tokenize(int argc, char **argv);
int troupe_cli_audit(int argc, char **argv);
int troupe_cli_stop(int argc, char **argv);
int troupe_cli_status(int argc, char **argv);
int troupe_cli_clean(int argc, char **argv);
int troupe_sim_main(int argc, char **argv);

#endif
