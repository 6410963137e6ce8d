/* See kit.h. */
#include "kit.h"

static void **owned;
static size_t owned_count;

int
kit_setup(void **state)
{
    static const char *const names[] = {"cpu:scalar", "cpu:avx2", "cpu:avx512"};
    struct kit *kit = calloc(1, sizeof *kit);
    troupe_error err;
    if (troupe_device_open("cpu:plain", NULL, &kit->plain, &err) != TROUPE_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    for (size_t i = 0; i < TR_COUNT(names); ++i) {
        if (troupe_device_open(names[i], NULL, &kit->path[kit->paths], &err) == TROUPE_OK) {
            printf("testing %s\n", names[i]);
            ++kit->paths;
        } else {
            printf("NOT testing %s: %s\n", names[i], err.text);
        }
    }
    *state = kit;
    return kit->paths > 0 ? 0 : 1;
}

int
kit_teardown(void **state)
{
    struct kit *kit = *state;
    troupe_device_close(kit->plain);
    for (int i = 0; i < kit->paths; ++i) {
        troupe_device_close(kit->path[i]);
    }
    free(kit);
    kit_free_all();
    return 0;
}

static void *
keep(void *ptr)
{
    owned = realloc(owned, (owned_count + 1) * sizeof *owned);
    owned[owned_count++] = ptr;
    return ptr;
}

float *
kit_floats(size_t count)
{
    return keep(calloc(count + 1, sizeof(float)));
}

int32_t *
kit_ints(size_t count)
{
    return keep(calloc(count + 1, sizeof(int32_t)));
}

void
kit_free_all(void)
{
    for (size_t i = 0; i < owned_count; ++i) {
        free(owned[i]);
    }
    free(owned);
    owned = NULL;
    owned_count = 0;
}

float *
kit_normal(uint64_t seed, size_t count, double scale)
{
    float *x = kit_floats(count);
    for (size_t i = 0; i < count; ++i) {
        x[i] = (float)(tr_normal(seed, 0, i) * scale);
    }
    return x;
}

int32_t *
kit_below(uint64_t seed, size_t count, int bound)
{
    int32_t *x = kit_ints(count);
    for (size_t i = 0; i < count; ++i) {
        x[i] = (int32_t)tr_below(seed, i, (uint64_t)bound);
    }
    return x;
}

void
kit_close_to_double(
    const char *what, const float *got, const double *want, size_t count, double tolerance)
{
    double square = 0;
    for (size_t i = 0; i < count; ++i) {
        square += want[i] * want[i];
    }
    double rms = count > 0 ? sqrt(square / (double)count) : 0;
    double allowed = tolerance > 0 ? tolerance * rms + 1e-7 : 0;
    for (size_t i = 0; i < count; ++i) {
        double difference = fabs((double)got[i] - want[i]);
        if (!(difference <= allowed)) {
            fail_msg(
                "%s: element %zu of %zu is %.9g, should be %.9g (difference %.3g, allowed %.3g)",
                what, i, count, (double)got[i], want[i], difference, allowed);
        }
    }
}

void
kit_close(const char *what, const float *got, const float *want, size_t count, double tolerance)
{
    double *wide = malloc((count + 1) * sizeof *wide);
    for (size_t i = 0; i < count; ++i) {
        wide[i] = (double)want[i];
    }
    keep(wide);
    kit_close_to_double(what, got, wide, count, tolerance);
}

void
kit_same(const char *what, const float *got, const float *want, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        if (memcmp(&got[i], &want[i], sizeof *got) != 0) {
            fail_msg("%s: element %zu of %zu is %.9g (%a), should be %.9g (%a)", what, i, count,
                (double)got[i], (double)got[i], (double)want[i], (double)want[i]);
        }
    }
}

void
kit_check(const struct kit *kit, const char *what, kit_run *run, const void *shape,
    struct kit_parts parts, double tolerance)
{
    size_t count = 0;
    for (int p = 0; p < parts.count; ++p) {
        count += parts.size[p];
    }
    float *want = kit_floats(count), *first = NULL;
    char text[256];
    run(kit->plain, shape, want);
    for (int i = 0; i < kit->paths; ++i) {
        const char *name = troupe_device_name(kit->path[i]);
        float *got = kit_floats(count);
        run(kit->path[i], shape, got);
        size_t at = 0;
        for (int p = 0; p < parts.count; ++p) {
            snprintf(text, sizeof text, "%s, part %d, %s against plain", what, p, name);
            kit_close(text, got + at, want + at, parts.size[p], tolerance);
            at += parts.size[p];
        }
        first = first != NULL ? first : got;
        snprintf(
            text, sizeof text, "%s, %s against %s", what, name, troupe_device_name(kit->path[0]));
        kit_same(text, got, first, count);
    }
}

void
kit_gradient(double *gradient, kit_loss *loss, double *x, size_t n, const void *context)
{
    for (size_t i = 0; i < n; ++i) {
        double at = x[i], step = 1e-5 * fmax(1, fabs(at));
        x[i] = at + step;
        double above = loss(x, context);
        x[i] = at - step;
        double below = loss(x, context);
        x[i] = at;
        gradient[i] = (above - below) / (2 * step);
    }
}
