/* What the Unix link costs beside bare SOCK_SEQPACKET sockets, between two processes: round trips,
 * and messages one way. The two are measured in turns, so that a busy moment of the machine falls
 * on both; of the turns of each the median is shown. A link's message of SIZE has a body of SIZE
 * bytes; the bare packet is as long as header and body together.
 *
 *   bench_link [--json] [TURNS] */
#include <troupe/ext/base.h>
#include <troupe/ext/link.h>
#include <troupe/ext/sys.h>

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    TURNS_MAX = 99,
    BARE_MAX = (64 << 10) + 64
};

static const tr_address here = {.node = 0, .loop = 0};
static const tr_address there = {.node = 1, .loop = 0};

struct side {
    troupe_link *link;
    troupe_endpoint *at;
    tr_address to;
    tr_address self;
    uint64_t heard;
    bool echoes;
};

static uint64_t
now(void)
{
    const troupe_sys *sys = troupe_sys_posix();
    return sys->now_ns(sys);
}

/* --- the link --------------------------------------------------------------------------------- */

static void
post(struct side *side, tr_frame_kind kind, uint32_t size)
{
    for (;;) {
        struct troupe_msg *msg = tr_msg_new(size);
        memset(tr_msg_body(msg), 7, size);
        msg->frame.kind = (uint8_t)kind;
        msg->frame.length = size;
        msg->frame.source = side->self;
        msg->frame.target = side->to;
        troupe_status status = side->link->send(side->at, side->to, msg);
        if (status == TROUPE_OK) {
            return;
        }
        tr_msg_free(msg);
        TR_ASSERT(status == TROUPE_AGAIN);
        tr_link_events none = {0};
        (void)side->link->poll(side->at, 0, &none);
        side->link->wait(side->at, now() + 10000000);
    }
}

static void
deliver(void *self, struct troupe_msg *msg)
{
    struct side *side = self;
    side->heard++;
    if (side->echoes && (msg->frame.flags & TR_FRAME_ONE_WAY) == 0) {
        uint32_t size = msg->frame.length;
        tr_msg_free(msg);
        post(side, TR_FRAME_ANSWER, size);
        return;
    }
    tr_msg_free(msg);
}

static void
gone(void *self, tr_address peer, uint32_t epoch)
{
    (void)peer;
    (void)epoch;
    (void)self;
    _exit(0);
}

/* As a loop does it. */
static void
step(struct side *side)
{
    tr_link_events events = {.deliver = deliver, .gone = gone, .self = side};
    side->link->wait(side->at, UINT64_MAX);
    (void)side->link->poll(side->at, 64, &events);
}

static void
open_side(struct side *side, const char *dir, tr_address self, tr_address to)
{
    tr_unix_options options = {.dir = dir, .node = self.node};
    tr_listen_options listen = {.address = self, .epoch = 1};
    *side = (struct side){.self = self, .to = to};
    troupe_error err;
    if (troupe_link_unix(&options, &side->link, &err) != TROUPE_OK ||
        side->link->listen(side->link, &listen, &side->at, &err) != TROUPE_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
}

static void
dial(struct side *side)
{
    while (side->link->dial(side->at, side->to) != TROUPE_OK) {
        troupe_sleep_ns(1000000);
    }
}

static double
link_round_trips(struct side *side, uint32_t size, int count)
{
    uint64_t begin = now();
    for (int i = 0; i < count; i++) {
        uint64_t want = side->heard + 1;
        post(side, TR_FRAME_CALL, size);
        while (side->heard < want) {
            step(side);
        }
    }
    return (double)(now() - begin) / count;
}

/* The last one is answered, when all before it were heard. */
static double
link_one_way(struct side *side, uint32_t size, int count)
{
    uint64_t begin = now();
    for (int i = 0; i < count; i++) {
        struct troupe_msg *msg = NULL;
        for (;;) {
            msg = tr_msg_new(size);
            memset(tr_msg_body(msg), 7, size);
            msg->frame.kind = TR_FRAME_CALL;
            msg->frame.flags = i + 1 < count ? TR_FRAME_ONE_WAY : 0;
            msg->frame.length = size;
            msg->frame.source = side->self;
            msg->frame.target = side->to;
            if (side->link->send(side->at, side->to, msg) == TROUPE_OK) {
                break;
            }
            tr_msg_free(msg);
            step(side);
        }
    }
    uint64_t want = side->heard + 1;
    while (side->heard < want) {
        step(side);
    }
    return (double)(now() - begin) / count;
}

/* --- bare sockets ----------------------------------------------------------------------------- */

struct request {
    uint32_t count;
    uint32_t echoes; /* 0: only the last is sent back */
};

static void
bare_serve(int fd)
{
    static uint8_t bytes[BARE_MAX];
    struct request request;
    while (recv(fd, &request, sizeof request, 0) == sizeof request) {
        ssize_t got = 0;
        for (uint32_t i = 0; i < request.count; i++) {
            got = recv(fd, bytes, sizeof bytes, 0);
            if (request.echoes || i + 1 == request.count) {
                TR_ASSERT(send(fd, bytes, (size_t)got, MSG_NOSIGNAL) == got);
            }
        }
    }
}

static double
bare_run(int fd, uint32_t size, uint32_t count, bool one_way)
{
    static uint8_t bytes[BARE_MAX];
    size += (uint32_t)sizeof(tr_frame);
    struct request request = {.count = count, .echoes = one_way ? 0 : 1};
    TR_ASSERT(send(fd, &request, sizeof request, MSG_NOSIGNAL) == sizeof request);
    uint64_t begin = now();
    for (uint32_t i = 0; i < count; i++) {
        TR_ASSERT(send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size);
        if (!one_way || i + 1 == count) {
            TR_ASSERT(recv(fd, bytes, sizeof bytes, 0) == (ssize_t)size);
        }
    }
    return (double)(now() - begin) / count;
}

/* --- the table -------------------------------------------------------------------------------- */

struct row {
    const char *what;
    uint32_t size;
    int count;
    bool one_way;
    double bare[TURNS_MAX];
    double link[TURNS_MAX];
};

static int
by_value(const void *a, const void *b)
{
    const double *x = a;
    const double *y = b;
    return (*x > *y) - (*x < *y);
}

static double
median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

static void
print_row(struct row *row, int turns, bool json, bool last)
{
    double bare = median(row->bare, turns);
    double link = median(row->link, turns);
    if (json) {
        printf("  {\"what\": \"%s\", \"bytes\": %" PRIu32 ", \"bare_ns\": %.0f, \"link_ns\": %.0f, "
               "\"ratio\": %.3f}%s\n",
            row->what, row->size, bare, link, link / bare, last ? "" : ",");
    } else if (row->one_way) {
        printf("| %s, %" PRIu32 " B | %.0f k/s | %.0f k/s | %.2f |\n", row->what, row->size,
            1e6 / bare, 1e6 / link, link / bare);
    } else {
        printf("| %s, %" PRIu32 " B | %.1f us | %.1f us | %.2f |\n", row->what, row->size,
            bare * 1e-3, link * 1e-3, link / bare);
    }
}

static void
serve_link(const char *dir)
{
    struct side side;
    open_side(&side, dir, there, here);
    side.echoes = true;
    dial(&side);
    for (;;) {
        step(&side);
    }
}

/* Two helpers, of which one always sleeps. */
static void
start(const char *dir, const int bare[2])
{
    for (int which = 0; which < 2; which++) {
        (void)fflush(stdout);
        pid_t pid = fork();
        TR_ASSERT(pid >= 0);
        if (pid > 0) {
            continue;
        }
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(bare[0]);
        if (which == 0) {
            bare_serve(bare[1]);
        } else {
            serve_link(dir);
        }
        _exit(0);
    }
}

static void
remove_files(const char *dir)
{
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", dir);
    TR_ASSERT(system(command) == 0);
}

int
main(int argc, char **argv)
{
    bool json = argc > 1 && strcmp(argv[1], "--json") == 0;
    int turns = argc > 1 + json ? atoi(argv[1 + json]) : 5;
    turns = turns < 1 ? 1 : TR_MIN(turns, (int)TURNS_MAX);
    struct row rows[] = {
        {.what = "round trip", .size = 64, .count = 5000},
        {.what = "round trip", .size = 1024, .count = 5000},
        {.what = "round trip", .size = 64 << 10, .count = 2000},
        {.what = "one way", .size = 64, .count = 100000, .one_way = true},
        {.what = "one way", .size = 1024, .count = 100000, .one_way = true},
        {.what = "one way", .size = 64 << 10, .count = 10000, .one_way = true},
    };
    char dir[] = "/tmp/troupe-bench-XXXXXX";
    TR_ASSERT(mkdtemp(dir) != NULL);
    int bare[2];
    TR_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, bare) == 0);
    start(dir, bare);
    struct side side;
    open_side(&side, dir, here, there);
    dial(&side);
    for (int t = 0; t < turns; t++) {
        for (size_t i = 0; i < TR_COUNT(rows); i++) {
            struct row *row = &rows[i];
            row->bare[t] = bare_run(bare[0], row->size, (uint32_t)row->count, row->one_way);
            row->link[t] = row->one_way ? link_one_way(&side, row->size, row->count)
                                        : link_round_trips(&side, row->size, row->count);
        }
    }
    printf("%s", json ? "[\n" : "| | bare seqpacket | link | link / bare |\n|---|---|---|---|\n");
    for (size_t i = 0; i < TR_COUNT(rows); i++) {
        print_row(&rows[i], turns, json, i + 1 == TR_COUNT(rows));
    }
    printf("%s", json ? "]\n" : "");
    (void)close(bare[0]);
    side.link->close(side.at); /* the helper hears of it and ends */
    side.link->free(side.link);
    while (wait(NULL) > 0) {
    }
    remove_files(dir);
    return 0;
}
