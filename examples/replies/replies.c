/* An answer in pieces, and a caller that has had enough. The maker answers one call with a stream
 * of primes that has no end. It may be three items ahead of the one who takes them, then it waits
 * for room: nobody's memory fills up. After ten primes the reader cancels; the maker is told and
 * gives the work up.
 *
 *   ./replies            ./replies --graph */
#include <troupe/troupe.h>

#include <stdio.h>

enum {
    AHEAD = 3,
    ENOUGH = 10
};

/* --- the maker -------------------------------------------------------------------------------- */

typedef struct maker {
    int64_t prime; /* the last one sent */
    int rooms;     /* times that it waited for room */
    int given_up;
} maker;

static int64_t
prime_after(int64_t n)
{
    for (int64_t d = 2; n++ != 0; d = 2) {
        while (d * d <= n && n % d != 0) {
            d++;
        }
        if (d * d > n) {
            break;
        }
    }
    return n;
}

/* Sends while there is room; goes on when there is again. */
static void
go_on(troupe_ctx *ctx, troupe_call *call, void *user)
{
    maker *m = troupe_state(ctx);
    (void)user;
    troupe_status status = TROUPE_OK;
    while (status == TROUPE_OK) {
        int64_t next = prime_after(m->prime);
        troupe_args item = {0};
        troupe_args_i64(&item, next);
        status = troupe_item(call, &item);
        troupe_args_fini(&item);
        m->prime = status == TROUPE_OK ? next : m->prime;
    }
    if (status == TROUPE_AGAIN) {
        m->rooms++;
        status = troupe_on_room(call, go_on, NULL);
    } /* otherwise nobody waits any more, and the hook below is told of that */
    (void)status;
}

static void
primes(troupe_ctx *ctx, troupe_call *call)
{
    maker *m = troupe_state(ctx);
    m->prime = 1;
    go_on(ctx, troupe_defer(call), NULL);
}

/* Nobody waits for a kept call. It is answered all the same: that frees it. */
static void
cancelled(troupe_ctx *ctx, troupe_call *call)
{
    maker *m = troupe_state(ctx);
    m->given_up++;
    (void)troupe_reply(call, NULL);
}

static void
report(troupe_ctx *ctx, troupe_call *call)
{
    const maker *m = troupe_state(ctx);
    troupe_args values = {0};
    troupe_args_bool(&values, m->rooms > 0);
    troupe_args_i64(&values, m->given_up);
    (void)troupe_reply(call, &values);
}

static const troupe_class maker_class = {
    .name = "maker",
    .state_size = sizeof(maker),
    .cancelled = cancelled,
    .methods = {{"primes", primes}, {"report", report}},
};

/* --- the reader ------------------------------------------------------------------------------- */

typedef struct reader {
    troupe_call_id stream;
    int count;
    int64_t primes[ENOUGH];
    troupe_status status; /* with which it ended */
    troupe_call *asked;
} reader;

/* Items are there: take them, but no more than enough. */
static void
items(troupe_ctx *ctx, troupe_call_id id, void *user)
{
    reader *r = user;
    troupe_answer *item = NULL;
    while (r->count < ENOUGH && troupe_take(ctx, id, &item) == TROUPE_OK) {
        r->primes[r->count++] = troupe_arg_i64(item, 0);
        troupe_answer_free(item);
    }
    if (r->count == ENOUGH) {
        (void)troupe_cancel(ctx, id);
    }
}

/* What the maker says of it; the driver gets all of it. */
static void
reported(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)ctx;
    reader *r = user;
    troupe_args values = {0};
    troupe_args_str(&values, troupe_status_name(r->status));
    troupe_args_bool(&values, troupe_arg_bool(answer, 0));
    troupe_args_i64(&values, troupe_arg_i64(answer, 1));
    for (int i = 0; i < r->count; i++) {
        troupe_args_i64(&values, r->primes[i]);
    }
    (void)troupe_reply(r->asked, &values);
}

/* The stream has ended: here, because of the cancel. What is sent to the maker now comes after
 * that. */
static void
ended(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    reader *r = user;
    r->status = troupe_answer_status(answer);
    troupe_status status = troupe_call_send(
        ctx, troupe_to(ctx, "maker", 0), "report", NULL, .on_answer = reported, .user = r);
    if (status != TROUPE_OK) {
        (void)troupe_reply_error(r->asked, status, "the maker cannot be called");
    }
}

static void
read_primes(troupe_ctx *ctx, troupe_call *call)
{
    reader *r = troupe_state(ctx);
    troupe_status status = troupe_call_send(ctx, troupe_to(ctx, "maker", 0), "primes", NULL,
        .on_answer = ended, .user = r, .id = &r->stream, .ahead_max = AHEAD, .on_item = items);
    if (status != TROUPE_OK) {
        (void)troupe_reply_error(call, status, "the maker cannot be called");
        return;
    }
    r->asked = troupe_defer(call);
}

static const troupe_class reader_class = {
    .name = "reader", .state_size = sizeof(reader), .methods = {{"read", read_primes}}};

/* --- the program ------------------------------------------------------------------------------ */

static troupe_status
graph(troupe_graph *g, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    troupe_role_add(g, "maker", &maker_class);
    troupe_role_add(g, "reader", &reader_class);
    return TROUPE_OK;
}

static int
drive(troupe_ctx *ctx, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    troupe_answer *answer = NULL;
    if (troupe_call_wait(ctx, troupe_to(ctx, "reader", 0), "read", NULL, &answer) != TROUPE_OK) {
        fprintf(stderr, "%s\n", troupe_answer_text(answer));
        return 1;
    }
    printf("primes:");
    for (int i = 3; i < troupe_arg_count(answer); i++) {
        printf(" %d", (int)troupe_arg_i64(answer, i));
    }
    printf("\nthe stream ended: %s\n", troupe_arg_str(answer, 0));
    printf("the maker waited for room: %s; was told to stop: %d\n",
        troupe_arg_bool(answer, 1) ? "yes" : "no", (int)troupe_arg_i64(answer, 2));
    troupe_answer_free(answer);
    return 0;
}

int
main(int argc, char **argv)
{
    return troupe_main(argc, argv, &(troupe_app){.graph = graph, .drive = drive});
}
