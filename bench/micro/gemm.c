/* Matrix products: the row-invariant GEMM of the CPU device beside oneDNN's sgemm, one thread each,
 * at the sizes of the README's model and of a model of 0.5 billion parameters. Prints a table,
 * GFLOP/s; the best of several rounds, the two in turn. The rows where oneDNN wins are printed like
 * the others.
 *
 *   bench_gemm [MILLISECONDS PER CELL]        default 60 */
#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>
#include <troupe/kernels.h>

#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* OpenMP's own header is not there with every compiler that can link its library. */
void omp_set_num_threads(int count);

struct size {
    const char *what;
    int N, K;
};

static const struct size sizes[] = {
    {"demo qkv", 192, 64},
    {"demo out", 64, 64},
    {"demo gate+up", 384, 64},
    {"demo down", 64, 192},
    {"demo head", 16, 64},
    {"head of 1024", 1024, 64},
    {"0.5B qkv", 1152, 896},
    {"0.5B gate+up", 9728, 896},
    {"0.5B down", 896, 4864},
};

static const int rows_list[] = {1, 4, 16, 64, 256, 1024};

enum product {
    FORWARD,
    INPUT,
    WEIGHT
};

/* One product of one size: both libraries work on the same arrays. */
struct cell {
    troupe_device *device;
    const troupe_ops *ops;
    troupe_packed_weight *packed;
    float *x, *w, *y;
    enum product product;
    int R, N, K;
};

static void
run_ours(const struct cell *c)
{
    if (c->product == FORWARD) {
        c->ops->linear_forward(c->device, c->y, c->x, c->packed, NULL, false, c->R);
    } else if (c->product == INPUT) {
        c->ops->linear_backward_input(c->device, c->x, c->y, c->w, false, c->R, c->N, c->K);
    } else {
        c->ops->linear_backward_weight(c->device, c->w, NULL, c->y, c->x, c->R, c->N, c->K);
    }
}

static void
run_onednn(const struct cell *c)
{
    dnnl_status_t status = dnnl_success;
    if (c->product == FORWARD) {
        status = dnnl_sgemm('N', 'T', c->R, c->N, c->K, 1, c->x, c->K, c->w, c->K, 0, c->y, c->N);
    } else if (c->product == INPUT) {
        status = dnnl_sgemm('N', 'N', c->R, c->K, c->N, 1, c->y, c->N, c->w, c->K, 0, c->x, c->K);
    } else {
        status = dnnl_sgemm('T', 'N', c->N, c->K, c->R, 1, c->y, c->N, c->x, c->K, 1, c->w, c->K);
    }
    TR_ASSERT(status == dnnl_success);
}

/* GFLOP/s of the best round of about 1 ms: short enough to fall between other work now and then. */
static double
measure(const struct cell *c, void (*run)(const struct cell *), uint64_t budget_ns)
{
    const troupe_sys *sys = troupe_sys_posix();
    double flops = 2.0 * c->R * c->N * c->K, best = 0;
    run(c);
    uint64_t begin = sys->now_ns(sys), now = begin;
    while (now - begin < budget_ns) {
        uint64_t start = now;
        int calls = 0;
        do {
            run(c);
            ++calls;
            now = sys->now_ns(sys);
        } while (now - start < 1000000);
        double rate = flops * calls / (double)(now - start);
        best = rate > best ? rate : best;
    }
    return best;
}

static float *
filled(troupe_device *d, size_t count)
{
    float *x = troupe_device_alloc(d, count * sizeof *x);
    TR_ASSERT(x != NULL);
    for (size_t i = 0; i < count; ++i) {
        x[i] = (float)(i % 13) * 0.01f;
    }
    return x;
}

static void
print_row(troupe_device *d, const struct size *s, int R, uint64_t budget_ns)
{
    struct cell c = {.device = d, .ops = troupe_device_ops(d), .R = R, .N = s->N, .K = s->K};
    c.x = filled(d, (size_t)R * (size_t)s->K);
    c.w = filled(d, (size_t)s->N * (size_t)s->K);
    c.y = filled(d, (size_t)R * (size_t)s->N);
    c.packed = troupe_weight_pack(d, c.w, s->N, s->K);
    printf("%-14s %5d %5d %5d", s->what, R, s->N, s->K);
    for (enum product p = FORWARD; p <= WEIGHT; ++p) {
        c.product = p;
        double ours = measure(&c, run_ours, budget_ns);
        double theirs = measure(&c, run_onednn, budget_ns);
        printf("  %6.1f %6.1f %5.2f", ours, theirs, ours / theirs);
    }
    printf("\n");
    fflush(stdout);
    troupe_weight_free(d, c.packed);
    troupe_device_free(d, c.x);
    troupe_device_free(d, c.w);
    troupe_device_free(d, c.y);
}

int
main(int argc, char **argv)
{
    uint64_t budget_ns = (argc > 1 ? strtoull(argv[1], NULL, 10) : 60) * 1000000;
    troupe_device *d = NULL;
    troupe_error err;
    if (troupe_device_open("cpu", NULL, &d, &err) != TROUPE_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    omp_set_num_threads(1);
    printf("GFLOP/s on one thread: ours (%s), oneDNN, ratio\n", troupe_device_ops(d)->name);
    printf("%-14s %5s %5s %5s  %-20s  %-20s  %-20s\n", "product", "rows", "N", "K", "forward", "dx",
        "dw");
    for (size_t i = 0; i < TR_COUNT(sizes); ++i) {
        for (size_t j = 0; j < TR_COUNT(rows_list); ++j) {
            print_row(d, &sizes[i], rows_list[j], budget_ns);
        }
    }
    troupe_device_close(d);
    return 0;
}
