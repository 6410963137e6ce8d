/* A worker that dies, and what its caller learns. The till adds up payments and falls over whenever
 * the 3rd payment of its life arrives: before that one is booked.
 *
 * A plain call to a till that dies is answered DIED. A call with .retry is sent again, under the
 * same id, to the till that the role starts in its place. A method runs at most once in one life,
 * so nothing is booked twice; what a life had booked is gone with it, if nobody wrote it down.
 *
 *   ./retry            ./retry --graph */
#include <troupe/troupe.h>

#include <stdio.h>
#include <string.h>

/* --- the till --------------------------------------------------------------------------------- */

typedef struct till {
    int64_t sum;
    int payments;
} till;

static void
pay(troupe_ctx *ctx, troupe_call *call)
{
    till *t = troupe_state(ctx);
    int64_t amount = troupe_arg_i64(call, 0);
    if (++t->payments == 3) {
        troupe_exit(ctx, TROUPE_FAILED, "out of paper at a payment of %d", (int)amount);
        return; /* the call stays without an answer, as if the machine had burnt down */
    }
    t->sum += amount;
    troupe_reply_i64(call, t->sum);
}

static const troupe_class till_class = {
    .name = "till", .state_size = sizeof(till), .methods = {{"pay", pay}}};

/* --- the cashier ------------------------------------------------------------------------------ */

enum {
    PAYMENTS = 5
};

typedef struct cashier {
    int sent;
    char told[PAYMENTS][64]; /* how each ended */
    int lives;               /* of the till, as told by the watch */
    int life;                /* that the running payment was sent to */
    bool retry, waiting;
    troupe_call *asked; /* the driver's call: answered when the last payment is through */
} cashier;

static void next(troupe_ctx *ctx, cashier *c);

/* The till came up or went down. */
static void
till_changed(troupe_ctx *ctx, int replica, troupe_ref ref, bool up, const char *cause, void *user)
{
    (void)replica;
    (void)ref;
    (void)cause;
    cashier *c = user;
    c->lives += up ? 1 : 0;
    if (up && c->waiting) {
        c->waiting = false;
        next(ctx, c);
    }
}

static void
start(troupe_ctx *ctx)
{
    if (troupe_watch(ctx, "till", till_changed, troupe_state(ctx)) != TROUPE_OK) {
        troupe_exit(ctx, TROUPE_FAILED, "there is no till to watch");
    }
}

static void
paid(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    cashier *c = user;
    char *told = c->told[c->sent - 1];
    if (troupe_answer_status(answer) == TROUPE_OK) {
        (void)snprintf(
            told, sizeof c->told[0], "the till holds %d", (int)troupe_arg_i64(answer, 0));
    } else {
        (void)snprintf(
            told, sizeof c->told[0], "%s", troupe_status_name(troupe_answer_status(answer)));
        c->waiting = c->lives == c->life; /* until there is a till again */
    }
    if (!c->waiting) {
        next(ctx, c);
    }
}

static void
next(troupe_ctx *ctx, cashier *c)
{
    if (c->sent == PAYMENTS) {
        troupe_args values = {0};
        for (int i = 0; i < PAYMENTS; i++) {
            troupe_args_str(&values, c->told[i]);
        }
        troupe_reply(c->asked, &values);
        return;
    }
    c->life = c->lives;
    troupe_args args = {0};
    troupe_args_i64(&args, 10 * ++c->sent);
    troupe_status status = troupe_call_send(ctx, troupe_to(ctx, "till", 0), "pay", &args,
        .on_answer = paid, .user = c, .retry = c->retry, .deadline_ns = UINT64_C(10000000000));
    if (status != TROUPE_OK) {
        troupe_args_fini(&args);
        troupe_exit(ctx, status, "the till cannot be called");
    }
}

/* Sells five things; the answer, how each was paid, comes when all five calls have ended. */
static void
sell(troupe_ctx *ctx, troupe_call *call)
{
    cashier *c = troupe_state(ctx);
    c->sent = 0;
    c->retry = troupe_arg_bool(call, 0);
    c->asked = troupe_defer(call);
    next(ctx, c);
}

static const troupe_class cashier_class = {
    .name = "cashier", .state_size = sizeof(cashier), .start = start, .methods = {{"sell", sell}}};

/* --- the program ------------------------------------------------------------------------------ */

static troupe_status
graph(troupe_graph *g, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    troupe_role_add(g, "till", &till_class, .restarts = 5);
    troupe_role_add(g, "cashier", &cashier_class);
    return TROUPE_OK;
}

static int
drive(troupe_ctx *ctx, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    for (int retry = 0; retry <= 1; retry++) {
        printf(retry ? "with retry\n" : "without retry\n");
        troupe_args args = {0};
        troupe_answer *answer = NULL;
        troupe_args_bool(&args, retry);
        if (troupe_call_wait(ctx, troupe_to(ctx, "cashier", 0), "sell", &args, &answer) !=
            TROUPE_OK) {
            return 1;
        }
        for (int i = 0; i < PAYMENTS; i++) {
            printf("  payment %d: %s\n", i + 1, troupe_arg_str(answer, i));
        }
        troupe_answer_free(answer);
    }
    return 0;
}

int
main(int argc, char **argv)
{
    return troupe_main(argc, argv, &(troupe_app){.graph = graph, .drive = drive});
}
