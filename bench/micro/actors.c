/* What actors that actors make cost: made per second, bytes each, ended per second.
 *
 *   bench_actors [COUNT] */
#include <troupe/ext/base.h>
#include <troupe/ext/host.h>
#include <troupe/ext/sys.h>
#include <troupe/spawn.h>

#include <stdio.h>
#include <stdlib.h>

struct small {
    int64_t value;
};

static void
add(troupe_ctx *ctx, troupe_call *call)
{
    struct small *self = troupe_state(ctx);
    self->value += troupe_arg_i64(call, 0);
    troupe_reply_i64(call, self->value);
}

static const troupe_class small = {
    .name = "small", .state_size = sizeof(struct small), .methods = {{"add", add}}};
static const troupe_class maker = {.name = "maker"};

static double
seconds(void)
{
    const troupe_sys *sys = troupe_sys_posix();
    return (double)sys->now_ns(sys) / 1e9;
}

/* Resident memory in bytes. */
static long
resident(void)
{
    long pages = 0, skipped = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file != NULL) {
        (void)!fscanf(file, "%ld %ld", &skipped, &pages);
        (void)fclose(file);
    }
    return pages * 4096;
}

static void
settle(tr_host *host)
{
    while (tr_host_step(host, 256) == 0) {
    }
}

int
main(int argc, char **argv)
{
    long count = argc > 1 ? strtol(argv[1], NULL, 10) : 50000;
    tr_directory *directory = tr_directory_new();
    troupe_link *link = troupe_link_local();
    tr_host_options options = {
        .sys = troupe_sys_posix(), .link = link, .directory = directory, .epoch = 1};
    tr_host *host = NULL;
    troupe_ref ref;
    TR_ASSERT(tr_host_new(&options, &host, NULL) == TROUPE_OK);
    tr_spawn spawn = {.type = &maker, .role = TR_NO_ROLE};
    TR_ASSERT(tr_host_spawn(host, &spawn, &ref, NULL) == TROUPE_OK);
    tr_host_start(host);
    troupe_ctx *from = tr_host_actor(host, ref);
    troupe_ref *refs = tr_zalloc((size_t)count, sizeof *refs);
    for (int round = 0; round < 2; round++) {
        long before = resident();
        double begin = seconds();
        for (long i = 0; i < count; i++) {
            TR_ASSERT(troupe_spawn(from, &small, &refs[i], NULL, .config = NULL) == TROUPE_OK);
        }
        settle(host);
        double made = seconds();
        long bytes = resident() - before;
        for (long i = 0; i < count; i++) {
            TR_ASSERT(troupe_stop_actor(from, troupe_to_ref(refs[i]), NULL, NULL) == TROUPE_OK);
            if (i % 1000 == 999) {
                settle(host);
            }
        }
        settle(host);
        double ended = seconds();
        printf("%ld actors: %.0f made a second, %.0f ended a second", count,
            (double)count / (made - begin), (double)count / (ended - made));
        if (round == 0) {
            printf(", %.0f bytes each", (double)bytes / (double)count);
        }
        printf("\n");
    }
    tr_free(refs);
    tr_host_free(host);
    link->free(link);
    tr_directory_free(directory);
    return 0;
}
