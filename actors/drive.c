/* The driver of a post-training run: it watches the policy from the main thread, shows a progress
 * line on a terminal or a line a step when piped, keeps the time limit, and prints the summary. */
#include "role.h"

#include <troupe/roles.h>
#include <troupe/troupe.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    POLL_NS = 250 * 1000 * 1000,
    LINE_MAX_BYTES = 512
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

int
troupe_rl_drive(troupe_ctx *ctx, const troupe_rl_drive_options *options)
{
    bool terminal = isatty(STDERR_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
    progress p = {0};
    int64_t shown = -1;
    uint64_t begun = troupe_now_ns(ctx);
    bool limited = false;
    while (!p.done) {
        if (troupe_wait(ctx, never, NULL, POLL_NS) == TROUPE_STOPPED) {
            break; /* by a signal: the policy saves, and says how the run stands, within the grace time */
        }
        if (ask(ctx, options->policy, &p)) {
            show(&p, terminal, &shown);
        }
        double elapsed = (double)(troupe_now_ns(ctx) - begun) / 1e9;
        if (!limited && options->time_limit_s > 0 && elapsed > options->time_limit_s) {
            limited =
                troupe_tell(ctx, troupe_to(ctx, options->policy, 0), "end", NULL) == TROUPE_OK;
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
