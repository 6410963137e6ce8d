/* What `troupe model verify` compares and how: each quantity against the tensor of its name. */
#include "shape.h"
#include "verify.h"

#include <troupe/ext/base.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

struct difference {
    double square, reference, most;
    size_t count;
};

/* A NaN is worse than any number, and stays. */
static bool
worse(double a, double b)
{
    return !isnan(b) && !(a <= b);
}

static void
differ(struct difference *d, double a, double b)
{
    double gap = fabs(a - b);
    d->square += gap * gap;
    d->reference += b * b;
    d->most = worse(gap, d->most) ? gap : d->most;
    d->count++;
}

static double
relative(const struct difference *d)
{
    return sqrt(d->square / (d->reference > 0.0 ? d->reference : 1.0));
}

static void
add_difference(struct difference *into, const struct difference *d)
{
    into->square += d->square;
    into->reference += d->reference;
    into->most = worse(d->most, into->most) ? d->most : into->most;
    into->count += d->count;
}

static void
print_line(
    const char *name, bool pass, const struct difference *d, double tolerance, const char *note)
{
    printf("%-6s %-48s %9zu values  rms %.3e  max abs %.3e  (limit %.0e)%s\n",
        pass ? "ok" : "FAILED", name, d->count, relative(d), d->most, tolerance, note);
}

static void
judge(struct tr_verify_run *run, const char *name, const struct difference *d, double tolerance)
{
    bool pass = relative(d) <= tolerance;

    print_line(name, pass, d, tolerance, "");
    run->compared++;
    run->failed += !pass;
}

/* A tensor of the shape; NULL when the file has none. BAD_INPUT for another shape. */
static troupe_status
expect(const struct tr_verify_run *run, const char *name, int rank, const uint64_t *shape,
    float **values, troupe_error *err)
{
    const tr_st_tensor *t = tr_st_find(run->file, name);
    bool fits = t != NULL && t->rank == rank;

    *values = NULL;
    if (t == NULL) {
        return TROUPE_OK;
    }
    for (int i = 0; i < rank && fits; i++) {
        fits = t->shape[i] == shape[i];
    }
    if (!fits) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%s: tensor \"%s\" has not the shape that the model and input_ids give it; was it made "
            "for another model?",
            tr_st_path(run->file), name);
    }
    *values = tr_alloc((size_t)t->count * sizeof **values);
    troupe_status status = tr_st_read_f32(run->file, t, *values, (size_t)t->count, err);
    if (status != TROUPE_OK) {
        tr_free(*values);
        *values = NULL;
    }
    return status;
}

/* Values [rows of the padded input, width each] against ours without padding; `drop` rows at the
 * end of each sequence have no value (the last id predicts nothing). */
static troupe_status
compare_rows(struct tr_verify_run *run, const char *name, const float *ours, int width, int drop,
    troupe_error *err)
{
    const struct tr_verify_input *in = run->input;
    uint64_t columns = (uint64_t)(in->width - drop);
    const uint64_t shape[] = {(uint64_t)in->sequences, columns, (uint64_t)width};
    struct difference d = {0};
    float *theirs = NULL;

    troupe_status status = expect(run, name, width > 1 ? 3 : 2, shape, &theirs, err);
    if (status != TROUPE_OK || theirs == NULL) {
        return status;
    }
    for (int b = 0; b < in->sequences; b++) {
        for (int r = 0; r < in->lengths[b] - drop; r++) {
            const float *a = ours + (size_t)(in->starts[b] + r) * (size_t)width;
            const float *e = theirs + ((size_t)b * (size_t)columns + (size_t)r) * (size_t)width;
            for (int i = 0; i < width; i++) {
                differ(&d, (double)a[i], (double)e[i]);
            }
        }
    }
    judge(run, name, &d, run->tolerance);
    tr_free(theirs);
    return TROUPE_OK;
}

static troupe_status
compare_list(
    struct tr_verify_run *run, const char *name, const float *ours, int count, troupe_error *err)
{
    const uint64_t shape[] = {(uint64_t)count};
    struct difference d = {0};
    float *theirs = NULL;

    troupe_status status = expect(run, name, 1, shape, &theirs, err);
    if (status != TROUPE_OK || theirs == NULL) {
        return status;
    }
    for (int i = 0; i < count; i++) {
        differ(&d, (double)ours[i], (double)theirs[i]);
    }
    judge(run, name, &d, run->tolerance);
    tr_free(theirs);
    return TROUPE_OK;
}

/* One tensor of a flat buffer against PREFIX.NAME; each has to be within the tolerance by
 * itself. */
static troupe_status
compare_tensor(struct tr_verify_run *run, const char *prefix, const troupe_lm_tensor *t,
    const float *ours, double tolerance, struct difference *d, bool *found, troupe_error *err)
{
    const uint64_t shape[] = {(uint64_t)t->shape[0], (uint64_t)t->shape[1]};
    char name[TROUPE_TENSOR_NAME_MAX + 16];
    float *theirs = NULL;

    (void)snprintf(name, sizeof name, "%s.%s", prefix, t->name);
    troupe_status status = expect(run, name, t->rank, shape, &theirs, err);
    *found = theirs != NULL;
    if (theirs == NULL) {
        return status;
    }
    for (size_t i = 0; i < t->count; i++) {
        differ(d, (double)ours[t->offset + i], (double)theirs[i]);
    }
    if (run->each || !(relative(d) <= tolerance)) {
        print_line(name, relative(d) <= tolerance, d, tolerance, "");
    }
    tr_free(theirs);
    return TROUPE_OK;
}

static troupe_status
compare_flat(struct tr_verify_run *run, const char *prefix, const float *ours, double tolerance,
    troupe_error *err)
{
    const troupe_lm_layout *layout = troupe_lm_get_layout(run->lm);
    struct difference all = {0};
    double worst = -1.0;
    const char *worst_name = "";
    int seen = 0;

    for (int i = 0; i < layout->count; i++) {
        struct difference d = {0};
        bool found = false;
        troupe_status status =
            compare_tensor(run, prefix, &layout->tensors[i], ours, tolerance, &d, &found, err);
        if (status != TROUPE_OK) {
            return status;
        }
        if (!found) {
            continue;
        }
        add_difference(&all, &d);
        seen++;
        if (worse(relative(&d), worst)) {
            worst = relative(&d);
            worst_name = layout->tensors[i].name;
        }
    }
    if (seen > 0) {
        char name[64], note[TROUPE_TENSOR_NAME_MAX + 64];
        (void)snprintf(name, sizeof name, "%s.* (%d tensors)", prefix, seen);
        (void)snprintf(note, sizeof note, "  worst %.3e %s", worst, worst_name);
        print_line(name, worst <= tolerance, &all, tolerance, note);
        run->compared++;
        run->failed += !(worst <= tolerance);
    }
    return TROUPE_OK;
}

/* Ids are equal or they are not. */
static troupe_status
compare_greedy(struct tr_verify_run *run, troupe_error *err)
{
    int32_t *theirs = NULL;
    struct difference d = {0};
    int rows = 0, columns = 0, first = -1;

    if (run->out->greedy_count == 0) {
        return TROUPE_OK;
    }
    troupe_status status =
        tr_verify_read_ids(run->file, "greedy_ids", &theirs, &rows, &columns, err);
    if (status != TROUPE_OK) {
        return status;
    }
    for (int i = 0; i < columns; i++) {
        differ(&d, run->out->greedy[i], theirs[i]);
        if (first < 0 && run->out->greedy[i] != theirs[i]) {
            first = i;
        }
    }
    if (first >= 0) {
        printf("       greedy_ids differ first at %d: %d, expected %d\n", first,
            run->out->greedy[first], theirs[first]);
    }
    judge(run, "greedy_ids", &d, 0.0);
    tr_free(theirs);
    return TROUPE_OK;
}

troupe_status
tr_verify_compare(struct tr_verify_run *run, troupe_error *err)
{
    const struct tr_verify_output *out = run->out;
    int V = troupe_lm_get_config(run->lm)->vocab;

    troupe_status status = compare_rows(run, "logits", out->logits, V, 0, err);
    if (status == TROUPE_OK) {
        status = compare_rows(run, "token_logprobs", out->logprobs, 1, 1, err);
    }
    if (status == TROUPE_OK) {
        status = compare_rows(run, "entropy", out->entropy, 1, 0, err);
    }
    if (status == TROUPE_OK) {
        status = compare_list(run, "loss", &out->loss, 1, err);
    }
    if (status == TROUPE_OK) {
        status = compare_flat(run, "grad", out->grad, run->tolerance, err);
    }
    if (status == TROUPE_OK) {
        status = compare_list(run, "grad_global_norm", &out->grad_norm, 1, err);
    }
    if (status == TROUPE_OK) {
        status = compare_greedy(run, err);
    }
    if (status == TROUPE_OK) {
        status = compare_list(run, "adamw_losses", out->losses, run->settings->steps, err);
    }
    return status == TROUPE_OK ? compare_flat(run, "adamw3", out->params, run->tolerance_steps, err)
                               : status;
}
