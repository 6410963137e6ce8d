/* What an object costs: create, write, seal, hold and release, in one process and handed to
 * another, beside a copy into warm memory and malloc with a copy. Prints a table; run it on an
 * idle machine.
 *
 *   bench_store [MILLISECONDS of each cell] */
#include <troupe/ext/base.h>
#include <troupe/ext/store.h>
#include <troupe/ext/sys.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LARGEST ((size_t)16 << 20)

struct bench {
    troupe_store *store;
    const uint8_t *source;
    uint8_t *warm;
    size_t size;
    uint64_t cell_ns;
    troupe_object object;
    _Atomic uint64_t *box; /* a handle for the other process; 0 when it has taken it */
};

static uint64_t
now(void)
{
    const troupe_sys *sys = troupe_sys_posix();
    return sys->now_ns(sys);
}

static void
copy_warm(struct bench *b)
{
    memcpy(b->warm, b->source, b->size);
    atomic_signal_fence(memory_order_seq_cst);
}

static void
copy_malloc(struct bench *b)
{
    void *memory = malloc(b->size);
    TR_ASSERT(memory != NULL);
    memcpy(memory, b->source, b->size);
    atomic_signal_fence(memory_order_seq_cst);
    free(memory);
}

static void
put(struct bench *b)
{
    void *bytes = NULL;
    TR_ASSERT(troupe_object_create(b->store, b->size, &b->object, &bytes) == TROUPE_OK);
    memcpy(bytes, b->source, b->size);
    TR_ASSERT(troupe_object_seal(b->store, b->object) == TROUPE_OK);
}

static void
put_and_release(struct bench *b)
{
    put(b);
    TR_ASSERT(troupe_object_release(b->store, b->object) == TROUPE_OK);
}

static void
hold_and_release(struct bench *b)
{
    TR_ASSERT(troupe_object_hold(b->store, b->object, NULL, NULL) == TROUPE_OK);
    TR_ASSERT(troupe_object_release(b->store, b->object) == TROUPE_OK);
}

/* Put, tell, wait until the other holds it, release; it releases last. */
static void
hand_over(struct bench *b)
{
    put(b);
    atomic_store(b->box, troupe_object_word(b->object));
    while (atomic_load(b->box) != 0) {
    }
    TR_ASSERT(troupe_object_release(b->store, b->object) == TROUPE_OK);
}

static void
take_over(int fd, uint32_t slot, _Atomic uint64_t *box)
{
    troupe_store *store = NULL;
    TR_ASSERT(tr_store_attach(fd, slot, &store, NULL) == TROUPE_OK);
    for (;;) {
        uint64_t word = atomic_load(box);
        const void *bytes = NULL;
        size_t size = 0;
        if (word == UINT64_MAX) {
            _exit(0);
        }
        if (word != 0) {
            troupe_object object = troupe_object_of_word(word);
            TR_ASSERT(troupe_object_hold(store, object, &bytes, &size) == TROUPE_OK);
            atomic_store(box, 0);
            TR_ASSERT(troupe_object_release(store, object) == TROUPE_OK);
        }
    }
}

static int
ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Nanoseconds of one call: the median of nine runs. */
static double
measure(struct bench *b, void (*act)(struct bench *b))
{
    double runs[9];
    for (size_t r = 0; r < TR_COUNT(runs); r++) {
        uint64_t begin = now(), end = begin, count = 0;
        for (uint64_t batch = 1; end - begin < b->cell_ns / TR_COUNT(runs); batch *= 2) {
            for (uint64_t i = 0; i < batch; i++) {
                act(b);
            }
            count += batch;
            end = now();
        }
        runs[r] = (double)(end - begin) / (double)count;
    }
    qsort(runs, TR_COUNT(runs), sizeof runs[0], ascending);
    return runs[TR_COUNT(runs) / 2];
}

/* With a process on the other side that turns until it is told to end. */
static double
measure_hand_over(struct bench *b)
{
    uint32_t slot = 0;
    TR_ASSERT(tr_store_slot_open(b->store, &slot, NULL) == TROUPE_OK);
    atomic_store(b->box, 0);
    pid_t other = fork();
    TR_ASSERT(other >= 0);
    if (other == 0) {
        take_over(dup(tr_store_fd(b->store)), slot, b->box);
    }
    double ns = measure(b, hand_over);
    atomic_store(b->box, UINT64_MAX);
    TR_ASSERT(waitpid(other, NULL, 0) == other);
    tr_store_reclaim(b->store, slot, NULL);
    return ns;
}

int
main(int argc, char **argv)
{
    static const size_t sizes[] = {4 << 10, 64 << 10, 1 << 20, 16 << 20};
    struct bench b = {.store = troupe_store_new(UINT64_C(256) << 20),
        .cell_ns = (argc > 1 ? strtoull(argv[1], NULL, 10) : 400) * 1000000};
    uint8_t *source = aligned_alloc(64, LARGEST);
    b.warm = aligned_alloc(64, LARGEST);
    void *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    TR_ASSERT(source != NULL && b.warm != NULL && shared != MAP_FAILED);
    b.box = shared;
    memset(source, 1, LARGEST);
    memset(b.warm, 2, LARGEST);
    b.source = source;
    (void)printf(
        "| size | memcpy, warm | malloc, memcpy, free | put, release | put / memcpy | handed to "
        "another process | hold, release |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < TR_COUNT(sizes); i++) {
        b.size = sizes[i];
        double warm = measure(&b, copy_warm), heap = measure(&b, copy_malloc);
        double stored = measure(&b, put_and_release), handed = measure_hand_over(&b);
        put(&b);
        double held = measure(&b, hold_and_release);
        TR_ASSERT(troupe_object_release(b.store, b.object) == TROUPE_OK);
        (void)printf("| %zu KiB | %.2f us | %.2f us | %.2f us | %.2f | %.2f us | %.0f ns |\n",
            b.size >> 10, warm / 1e3, heap / 1e3, stored / 1e3, stored / warm, handed / 1e3, held);
    }
    troupe_store_free(b.store);
    free(source);
    free(b.warm);
    return EXIT_SUCCESS;
}
