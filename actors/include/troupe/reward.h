/* Rewards: a number for a sample, or an error; never one in the place of the other.
 *
 * Built in, by name:
 *   exact        1 when the text, blanks trimmed at both ends, equals the row's answer, else 0
 *   number       1 when the last number of the text (of its last \boxed{} if it has one) equals
 *                the last number of the answer, as exact decimals: 1,000 = 1000.0 = 1e3
 *   countdown    1 when the text (inside its last <answer></answer> if it has one, up to the
 *                first '=') is an expression over + - * / ( ) of the row's `numbers` (or `nums`),
 *                each used at most once, whose exact value is the row's `target`
 *   regex        1 when the row's `regex`, else options.pattern, matches somewhere in the text
 *   regex-whole  the same, but the whole text must match
 *
 * A program may add its own C functions by name, or name a command. */
#ifndef TROUPE_REWARD_H
#define TROUPE_REWARD_H

#include <troupe/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Every reward lies within +-this: sums and variances over a group must stay finite. */
#define TROUPE_REWARD_MAX 1e30

/* Borrowed for the call. `text` may hold any bytes; the other strings are UTF-8. */
typedef struct troupe_reward_input {
    const char *id;     /* names the sample in messages and to the command; NULL: numbered */
    const char *prompt; /* NULL: empty */
    const char *text;   /* the response */
    size_t text_size;
    const char *answer; /* NULL: the row has none */
    const char *fields; /* JSON object of the row's other fields, or NULL */
} troupe_reward_input;

/* A reward written in C. Returns OK and *value, or an error and its text. Called by one thread at a
 * time for one troupe_reward; several rewards may share `user`. */
typedef troupe_status (*troupe_reward_fn)(
    void *user, const troupe_reward_input *input, double *value, troupe_error *err);

typedef struct troupe_reward_function {
    const char *name;
    troupe_reward_fn fn;
    void *user;
} troupe_reward_function;

/* Exactly one of name and command. */
typedef struct troupe_reward_options {
    size_t size;         /* sizeof(troupe_reward_options) */
    const char *name;    /* a built-in one or one of `functions` */
    const char *command; /* see "the command" below */
    const char *pattern; /* regex: PCRE2 pattern for rows without one, or NULL */
    uint64_t timeout_ns; /* command: 0 is 10 s */
    const troupe_reward_function *functions; /* copied; the names and users are borrowed */
    size_t function_count;
} troupe_reward_options;

typedef struct troupe_reward troupe_reward;

/* Opens a reward; a command is started at once. BAD_INPUT for an unknown name (with the nearest
 * one), a bad pattern, or a command that cannot be split; NOT_FOUND or DENIED when the program is
 * missing or may not be run. A reward is used by one thread at a time; its command dies with the
 * thread that opened it or called troupe_reward_score last after a failure. */
TROUPE_MUST_USE troupe_status troupe_reward_open(
    troupe_reward **out, const troupe_reward_options *options, troupe_error *err);
void troupe_reward_close(troupe_reward *reward); /* NULL is allowed; leaves no process behind */

/* Scores one sample. *value is finite, within +-TROUPE_REWARD_MAX, and written only with OK. A
 * wrong answer is OK and 0. Errors:
 *   BAD_INPUT  the row lacks what this reward needs, or has it malformed
 *   FAILED     the function or program reported an error; a regex ran into its match limit
 *   TIMEOUT    the program did not answer in time
 *   DIED       it ended
 *   CORRUPT    it answered with something else than one line {"id": ID, "reward": NUMBER}: no
 *              JSON, no number, NaN, a number out of range, another id, a second line; the C
 *              function gave such a number
 *   LINK       it closed its input or output
 *   FULL       a line over 1 MiB, or 16 MiB of stderr for one sample
 *   CANCELLED  troupe_reward_interrupt
 * Every error of a program but FAILED ends its process group with SIGKILL and starts it anew; the
 * text carries the last lines that it wrote to stderr. */
TROUPE_MUST_USE troupe_status troupe_reward_score(
    troupe_reward *reward, const troupe_reward_input *input, double *value, troupe_error *err);

/* Any thread: a score in progress, and every later one, returns CANCELLED soon. For stopping. */
void troupe_reward_interrupt(troupe_reward *reward);

/* How often a command had to be started again. */
uint64_t troupe_reward_restarts(const troupe_reward *reward);

/* --- the command --------------------------------------------------------------------------- */

/* An argv, never given to a shell. It is split at blanks; '...' keeps everything, "..." keeps
 * everything but \" and \\, and a backslash outside quotes keeps the next character. Nothing is
 * expanded, and a stand-alone unquoted | & ; < > && || is refused, since it would not do what it
 * looks like.
 *
 * The program is kept running. For each sample it is sent one line on stdin, a JSON object with
 * `id`, `prompt`, `text`, `answer` (null when the row has none) and the row's other fields (a field
 * named id or text comes as row_id or row_text; bytes of the text that are no UTF-8 come as
 * U+FFFD), and must answer with one line on stdout, {"id": the same, "reward": number} or {"id":
 * the same, "error": "why"}; other keys are ignored. Lines are at most 1 MiB. It ends when its
 * stdin ends. */

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
