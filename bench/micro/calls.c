/* Instructions of a call and its answer between two actors of one loop, for callgrind: the counts
 * are the same on every run and every machine of one kind, loaded or not.
 *
 *   valgrind --tool=callgrind --toggle-collect=round_trips bench_call_count 1000
 *
 * prints what was collected; divided by the argument it is the price of one round trip. */
#include <troupe/ext/base.h>
#include <troupe/ext/host.h>
#include <troupe/ext/sys.h>

#include <stdio.h>
#include <stdlib.h>

static void
echo(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    troupe_reply_i64(call, troupe_arg_i64(call, 0));
}

static const troupe_class answerer = {.name = "answerer", .methods = {{"echo", echo}}};
static const troupe_class asker = {.name = "asker"};

static void
count_answer(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)ctx;
    int64_t *sum = user;
    *sum += troupe_arg_i64(answer, 0);
}

__attribute__((noinline)) static void
round_trips(tr_host *host, troupe_ctx *from, troupe_target to, long count, int64_t *sum)
{
    for (long i = 0; i < count; i++) {
        troupe_args args = {0};
        troupe_args_i64(&args, i);
        TR_ASSERT(troupe_call_send(from, to, "echo", &args, .on_answer = count_answer,
                      .user = sum) == TROUPE_OK);
        while (tr_host_step(host, 256) == 0) {
        }
    }
}

int
main(int argc, char **argv)
{
    long count = argc > 1 ? strtol(argv[1], NULL, 10) : 1000;
    tr_directory *directory = tr_directory_new();
    (void)tr_directory_add(directory, "answerer", 1);
    troupe_link *link = troupe_link_local();
    tr_host_options options = {
        .sys = troupe_sys_posix(), .link = link, .directory = directory, .epoch = 1};
    tr_host *host = NULL;
    TR_ASSERT(tr_host_new(&options, &host, NULL) == TROUPE_OK);
    tr_spawn spawn = {.type = &answerer, .role = 0};
    troupe_ref ref;
    TR_ASSERT(tr_host_spawn(host, &spawn, NULL, NULL) == TROUPE_OK);
    spawn = (tr_spawn){.type = &asker, .role = TR_NO_ROLE};
    TR_ASSERT(tr_host_spawn(host, &spawn, &ref, NULL) == TROUPE_OK);
    tr_host_start(host);
    troupe_ctx *from = tr_host_actor(host, ref);
    int64_t sum = 0;
    round_trips(host, from, troupe_to(from, "answerer", 0), count, &sum);
    printf("%ld round trips, sum %lld\n", count, (long long)sum);
    tr_host_free(host);
    link->free(link);
    tr_directory_free(directory);
    return sum == count * (count - 1) / 2 ? 0 : 1;
}
