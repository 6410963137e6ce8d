/* The driver of a post-training run: it watches the policy from the main thread, shows a progress
 * line on a terminal or a line a step when piped, keeps the time limit, and prints the summary. */
#include "role.h"

#include <troupe/ext/protocol.h>
#include <troupe/roles.h>
#include <troupe/troupe.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    POLL_NS = 250 * 1000 * 1000,
    LINE_MAX_BYTES = 512,
    WAITS_SHOWN = 3,
    WAITS_EVERY_S = 30
};

/* What the policy's `progress` answers; see policy_record.c. */
typedef struct progress {
    bool done;
    int64_t code, step, steps;
    double reward, accuracy, loss, kl, entropy, lag, tokens_per_s, train_tokens_per_s;
    char phase[64], failure[1024], summary[2048];
} progress;

static bool
read_progress(troupe_answer *a, progress *p)
{
    *p = (progress){
        .done = troupe_arg_bool(a, 0),
        .code = troupe_arg_i64(a, 1),
        .step = troupe_arg_i64(a, 2),
        .steps = troupe_arg_i64(a, 3),
        .reward = troupe_arg_f64(a, 4),
        .accuracy = troupe_arg_f64(a, 5),
        .loss = troupe_arg_f64(a, 6),
        .kl = troupe_arg_f64(a, 7),
        .entropy = troupe_arg_f64(a, 8),
        .lag = troupe_arg_f64(a, 9),
        .tokens_per_s = troupe_arg_f64(a, 10),
        .train_tokens_per_s = troupe_arg_f64(a, 11),
    };
    snprintf(p->phase, sizeof p->phase, "%s", troupe_arg_str(a, 12));
    snprintf(p->failure, sizeof p->failure, "%s", troupe_arg_str(a, 13));
    snprintf(p->summary, sizeof p->summary, "%s", troupe_arg_str(a, 14));
    return troupe_args_ok(a);
}

/* A number, or a dash while it is unknown. */
static const char *
number(char out[32], const char *format, double value)
{
    if (isfinite(value)) {
        switch (format[0]) {
        case '0':
            snprintf(out, 32, "%.0f", value);
            break;
        case '1':
            snprintf(out, 32, "%.1f", value);
            break;
        case '3':
            snprintf(out, 32, "%.3f", value);
            break;
        default:
            snprintf(out, 32, "%.4f", value);
            break;
        }
    } else {
        snprintf(out, 32, "-");
    }
    return out;
}

static void
format_line(const progress *p, char line[LINE_MAX_BYTES])
{
    char reward[32], accuracy[32], kl[32], entropy[32], lag[32], generated[32], trained[32];
    snprintf(line, LINE_MAX_BYTES,
        "step %lld/%lld  reward %s  accuracy %s  kl %s  entropy %s  lag %s  gen %s tok/s  train %s "
        "tok/s  %s",
        (long long)p->step, (long long)p->steps, number(reward, "3", p->reward),
        number(accuracy, "3", p->accuracy), number(kl, "4", p->kl),
        number(entropy, "3", p->entropy), number(lag, "1", p->lag),
        number(generated, "0", p->tokens_per_s), number(trained, "0", p->train_tokens_per_s),
        p->phase);
}

static void
show(const progress *p, bool terminal, int64_t *shown)
{
    char line[LINE_MAX_BYTES];
    format_line(p, line);
    if (terminal) {
        fprintf(stderr, "\r\033[K%.120s", line);
        fflush(stderr);
    } else if (p->step / 10 != *shown / 10 || *shown < 0) {
        printf("%s\n", line);
        fflush(stdout);
        *shown = p->step;
    }
}

static bool
never(void *user)
{
    (void)user;
    return false;
}

/* One question to the policy; false when it did not answer with anything new. */
static bool
ask(troupe_ctx *ctx, const char *policy, progress *p)
{
    troupe_answer *answer = NULL;
    bool fresh = false;
    if (troupe_call_wait(ctx, troupe_to(ctx, policy, 0), "progress", NULL, &answer) == TROUPE_OK) {
        fresh = read_progress(answer, p);
    }
    troupe_answer_free(answer);
    return fresh;
}

/* The first few open waits of the stream as one line: who owes what, since when, until when. */
static void
write_waits(const json_t *status, const progress *p, double quiet_s)
{
    const json_t *waits = json_object_get(status, "waits");
    size_t count = json_array_size(waits);
    fprintf(stderr, "no step for %.0f s, the policy is %s", quiet_s, p->phase);
    for (size_t i = 0; i < count && i < WAITS_SHOWN; i++) {
        const json_t *w = json_array_get(waits, i);
        fprintf(stderr, "; %s[%lld] owes a %s of group %lld, for %.1f s",
            tr_config_text(w, "whom", "?"), (long long)tr_config_int(w, "replica", 0),
            tr_config_text(w, "what", "?"), (long long)tr_config_int(w, "group", 0),
            tr_config_real(w, "since_s", 0));
        if (json_is_number(json_object_get(w, "until_s"))) {
            fprintf(stderr, ", %.1f s left", tr_config_real(w, "until_s", 0));
        }
    }
    if (count > WAITS_SHOWN) {
        fprintf(stderr, "; and %zu more", count - WAITS_SHOWN);
    }
    fputc('\n', stderr);
}

static void
tell_waits(troupe_ctx *ctx, const char *stream, const progress *p, double quiet_s)
{
    troupe_answer *answer = NULL;
    if (troupe_call_wait(ctx, troupe_to(ctx, stream, 0), TROUPE_METHOD_STATUS, NULL, &answer) ==
        TROUPE_OK) {
        json_t *status = json_loads(troupe_arg_str(answer, 0), JSON_REJECT_DUPLICATES, NULL);
        write_waits(status, p, quiet_s);
        json_decref(status);
    }
    troupe_answer_free(answer);
}

/* Tells the policy that its time is over; a new incarnation is told anew. */
static void
tell_end(troupe_ctx *ctx, const char *policy, troupe_ref *told)
{
    troupe_ref now;
    troupe_target to = troupe_to(ctx, policy, 0);
    if (troupe_resolve(ctx, to, &now) && !troupe_ref_equal(now, *told) &&
        troupe_tell(ctx, to, "end", NULL) == TROUPE_OK) {
        *told = now;
    }
}

int
troupe_rl_drive(troupe_ctx *ctx, const troupe_rl_drive_options *options)
{
    bool terminal = isatty(STDERR_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
    progress p = {0};
    int64_t shown = -1;
    uint64_t begun = troupe_now_ns(ctx);
    troupe_ref told_end = {0};
    double every = options->waits_every_s > 0 ? options->waits_every_s : WAITS_EVERY_S;
    uint64_t step_at = begun, told_at = begun;
    int64_t step = 0;
    while (!p.done) {
        if (troupe_wait(ctx, never, NULL, POLL_NS) == TROUPE_STOPPED) {
            break; /* by a signal: the policy saves and tells how the run stands */
        }
        if (ask(ctx, options->policy, &p)) {
            show(&p, terminal, &shown);
        }
        uint64_t now = troupe_now_ns(ctx);
        if (p.step != step) {
            step = p.step;
            step_at = told_at = now;
        }
        if (options->stream != NULL && (double)(now - told_at) / 1e9 >= every) {
            told_at = now;
            tell_waits(ctx, options->stream, &p, (double)(now - step_at) / 1e9);
        }
        double elapsed = (double)(troupe_now_ns(ctx) - begun) / 1e9;
        if (options->time_limit_s > 0 && elapsed > options->time_limit_s) {
            tell_end(ctx, options->policy, &told_end);
        }
    }
    if (terminal) {
        fprintf(stderr, "\r\033[K");
    }
    if (p.done) {
        fputs(p.summary, stdout);
        fflush(stdout);
    }
    if (p.failure[0] != '\0') {
        fprintf(stderr, "%s\n", p.failure);
    }
    return (int)p.code;
}
