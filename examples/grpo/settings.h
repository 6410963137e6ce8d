/* What `grpo` was asked to do: the option table, the defaults of the shipped tasks, and the checks
 * that look at more than one option. */
#ifndef GRPO_SETTINGS_H
#define GRPO_SETTINGS_H

#include <troupe/options.h>

extern const troupe_options_spec grpo_spec;

/* Fills in what one option says about another, and checks them together: --task chooses model,
 * prompts, reward and hyper-parameters, --mode sync chooses the lags, --max-lag alone chooses
 * --mean-lag. BAD_INPUT names the option. */
troupe_status grpo_settings_finish(troupe_options *options, troupe_error *err) TROUPE_MUST_USE;

/* Parses the command line and finishes it; with --resume the caller first adds the recorded options
 * as defaults and then calls grpo_settings_finish itself. */
troupe_status grpo_settings_parse(
    int argc, char **argv, troupe_options **out, troupe_error *err) TROUPE_MUST_USE;

/* All settings as one JSON object, each name with its value: what the role classes read, and part
 * of run.json. The caller frees it with free(). */
char *grpo_settings_json(const troupe_options *options);

#endif
