/* A post-training run as a whole: its inputs are checked before any actor starts, its directory
 * made, its record (run.json) written. For programs such as examples/grpo. */
#ifndef TROUPE_RL_RUN_H
#define TROUPE_RL_RUN_H

#include <troupe/status.h>

#include <stdint.h>

struct json_t;

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Opens everything that `config` (the roles' JSON object, see roles.h) names and looks at all of
 * it: model, tokenizer, chat template, every prompt against the context, the reward, algorithm and
 * correction. Adds the keys rows, data-digest, model-digest and valid-ids. The error is the one
 * that a person should see. */
troupe_status troupe_rl_run_check(struct json_t *config, troupe_error *err) TROUPE_MUST_USE;

/* Makes the run directory and writes run.json: command line, `config` with the origin of each
 * option, versions, digests. EXISTS when the directory holds a run, or another process makes one of
 * it at the same time; nothing is left behind on failure. */
troupe_status troupe_rl_run_create(const char *dir, int argc, char **argv, struct json_t *config,
    troupe_error *err) TROUPE_MUST_USE;

/* Reads DIR/run.json; the caller frees it with json_decref. */
troupe_status troupe_rl_run_read(
    const char *dir, struct json_t **out, troupe_error *err) TROUPE_MUST_USE;

/* A policy that did not begin the run but went on with it. */
typedef struct troupe_rl_resumption {
    uint64_t realtime_ns;
    int64_t step;
    uint64_t epoch;
    const char *from; /* "mirror", "checkpoint", "model" */
    const char *why;
} troupe_rl_resumption;

/* Adds it to the array "resumptions" of DIR/run.json, which is replaced at once. The newest 100 are
 * kept, each `why` cut to 500 bytes; "resumptions-older" counts the others. */
troupe_status troupe_rl_run_note(
    const char *dir, const troupe_rl_resumption *what, troupe_error *err) TROUPE_MUST_USE;

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
