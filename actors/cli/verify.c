/* `troupe model verify DIR`: runs a model on the ids of a safetensors file made by another
 * implementation and compares every quantity that the file holds. */
#include "verify.h"

#include "json.h"
#include "shape.h"

#include <troupe/ext/base.h>
#include <troupe/options.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    IDS_MAX = 1 << 22,
    JSON_MAX = 1 << 20,
    STEPS_MAX = 1000
};

static const troupe_option options_table[] = {{.name = "device",
                                                  .kind = TROUPE_OPTION_TEXT,
                                                  .fallback = "cpu",
                                                  .choices = "NAME",
                                                  .help = "where to run: cpu, cpu:plain"},
    {.name = "dtype",
        .kind = TROUPE_OPTION_CHOICE,
        .fallback = "fp32",
        .choices = "fp32|bf16",
        .help = "of the parameters; bf16 rounds them first and widens the tolerance"},
    {.name = "expected",
        .kind = TROUPE_OPTION_TEXT,
        .choices = "FILE",
        .help = "what to compare with (DIR/expected.safetensors)"},
    {.name = "each",
        .kind = TROUPE_OPTION_FLAG,
        .fallback = "no",
        .help = "a line for each tensor, not only for each quantity"},
    {.name = NULL}};

static const troupe_options_spec spec = {.program = "model verify",
    .synopsis = "DIR [options]",
    .about = "Compares a model's logits, gradients, optimiser steps and greedy ids with those that "
             "another implementation computed.",
    .options = options_table,
    .positional_min = 1,
    .positional_max = 1};

/* --- comparing --------------------------------------------------------------------------------- */

struct difference {
    double square, reference, most;
    size_t count;
};

struct run {
    troupe_lm *lm;
    const tr_st_file *file;
    const struct tr_verify_input *input;
    const struct tr_verify_settings *settings;
    struct tr_verify_output *out;
    double tolerance, tolerance_steps;
    bool each;
    int failed, compared;
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
judge(struct run *run, const char *name, const struct difference *d, double tolerance)
{
    bool pass = relative(d) <= tolerance;

    print_line(name, pass, d, tolerance, "");
    run->compared++;
    run->failed += !pass;
}

/* --- reading the expected file ------------------------------------------------------------------- */

/* A tensor of the shape; NULL when the file has none. BAD_INPUT for another shape. */
static troupe_status
expect(const struct run *run, const char *name, int rank, const uint64_t *shape, float **values,
    troupe_error *err)
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

static troupe_status
read_ids(const tr_st_file *file, const char *name, int32_t **ids, int *rows, int *columns,
    troupe_error *err)
{
    const tr_st_tensor *t = tr_st_find(file, name);

    if (t == NULL || t->rank != 2 || t->dtype != TR_ST_I32 || t->count == 0 || t->count > IDS_MAX) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%s: tensor \"%s\" has to be I32 [sequences, width] with at most %d values",
            tr_st_path(file), name, IDS_MAX);
    }
    *ids = tr_alloc((size_t)t->size);
    *rows = (int)t->shape[0];
    *columns = (int)t->shape[1];
    troupe_status status = tr_st_read_raw(file, t, *ids, (size_t)t->size, err);
    if (status != TROUPE_OK) {
        tr_free(*ids);
        *ids = NULL;
    }
    return status;
}

/* Lengths from the mask, which must be ones and then zeros. */
static troupe_status
read_lengths(
    const struct run *run, struct tr_verify_input *in, const int32_t *mask, troupe_error *err)
{
    const troupe_lm_config *c = troupe_lm_get_config(run->lm);

    in->rows = 0;
    for (int b = 0; b < in->sequences; b++) {
        const int32_t *row = mask + (size_t)b * (size_t)in->width;
        int n = 0;
        while (n < in->width && row[n] == 1) {
            n++;
        }
        for (int i = n; i < in->width; i++) {
            if (row[i] != 0) {
                return troupe_fail(err, TROUPE_BAD_INPUT,
                    "%s: attention_mask of sequence %d is not ones followed by zeros; pad at the "
                    "right",
                    tr_st_path(run->file), b);
            }
        }
        if (n < 2 || n > c->context) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "%s: sequence %d has %d unmasked ids; at least 2 and at most the context of %d are "
                "needed",
                tr_st_path(run->file), b, n, c->context);
        }
        for (int i = 0; i < n; i++) {
            int32_t id = in->ids[(size_t)b * (size_t)in->width + (size_t)i];
            if (id < 0 || id >= c->vocab) {
                return troupe_fail(err, TROUPE_BAD_INPUT,
                    "%s: input_ids of sequence %d has id %d; the model's vocabulary has %d",
                    tr_st_path(run->file), b, id, c->vocab);
            }
        }
        in->lengths[b] = n;
        in->starts[b] = in->rows;
        in->rows += n;
    }
    return TROUPE_OK;
}

static troupe_status
read_input(const struct run *run, struct tr_verify_input *in, troupe_error *err)
{
    int32_t *mask = NULL;
    int rows = 0, columns = 0;

    troupe_status status =
        read_ids(run->file, "input_ids", &in->ids, &in->sequences, &in->width, err);
    if (status != TROUPE_OK) {
        return status;
    }
    in->lengths = tr_zalloc((size_t)in->sequences, sizeof *in->lengths);
    in->starts = tr_zalloc((size_t)in->sequences, sizeof *in->starts);
    status = read_ids(run->file, "attention_mask", &mask, &rows, &columns, err);
    if (status == TROUPE_OK && (rows != in->sequences || columns != in->width)) {
        status = troupe_fail(err, TROUPE_BAD_INPUT,
            "%s: attention_mask and input_ids have different shapes", tr_st_path(run->file));
    }
    if (status == TROUPE_OK) {
        status = read_lengths(run, in, mask, err);
    }
    tr_free(mask);
    return status;
}

/* The optimiser's settings from the JSON file beside the expected tensors, where there is one. */
static troupe_status
read_settings(const char *expected, struct tr_verify_settings *s, troupe_error *err)
{
    tr_buf path = {0};
    json_t *root = NULL;
    size_t stem = strlen(expected);

    troupe_trainer_options_default(&s->trainer);
    s->trainer.weight_decay = 0.1;
    s->trainer.spike_factor = 0.0;
    s->steps = 3;
    if (stem > 12 && strcmp(expected + stem - 12, ".safetensors") == 0) {
        stem -= 12;
    }
    tr_buf_append(&path, expected, stem);
    tr_buf_puts(&path, ".json");
    troupe_status status = tr_json_load(path.data, JSON_MAX, &root, err);
    if (status == TROUPE_NOT_FOUND) {
        tr_buf_fini(&path);
        return TROUPE_OK;
    }
    if (status == TROUPE_OK) {
        json_t *betas = json_object_get(json_object_get(root, "optimizer"), "betas");
        tr_json_reader r = {.file = path.data,
            .inside = "optimizer.",
            .object = json_object_get(root, "optimizer"),
            .err = err};
        s->trainer.lr = tr_json_real(&r, "lr", s->trainer.lr, 0.0, 1.0);
        s->trainer.eps = tr_json_real(&r, "eps", s->trainer.eps, 1e-20, 1.0);
        s->trainer.weight_decay = tr_json_real(&r, "weight_decay", 0.1, 0.0, 10.0);
        s->trainer.clip_norm = tr_json_real(&r, "clip_global_norm", 1.0, 0.0, 1e9);
        s->steps = tr_json_int(&r, "steps", s->steps, 1, STEPS_MAX);
        const char *stored = json_string_value(json_object_get(root, "stored_dtype"));
        s->cast = stored != NULL && strcmp(stored, "torch.bfloat16") == 0;
        if (json_array_size(betas) == 2) {
            s->trainer.beta1 = json_number_value(json_array_get(betas, 0));
            s->trainer.beta2 = json_number_value(json_array_get(betas, 1));
        }
        status = r.status;
    }
    json_decref(root);
    tr_buf_fini(&path);
    return status;
}

/* --- the quantities ------------------------------------------------------------------------------- */

/* Values [rows of the padded input, width each] against ours without padding; `drop` rows at the end of
 * each sequence have no value (the last id predicts nothing). */
static troupe_status
compare_rows(
    struct run *run, const char *name, const float *ours, int width, int drop, troupe_error *err)
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
compare_list(struct run *run, const char *name, const float *ours, int count, troupe_error *err)
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

/* One tensor of a flat buffer against PREFIX.NAME; each has to be within the tolerance by itself. */
static troupe_status
compare_tensor(struct run *run, const char *prefix, const troupe_lm_tensor *t, const float *ours,
    double tolerance, struct difference *d, bool *found, troupe_error *err)
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
compare_flat(
    struct run *run, const char *prefix, const float *ours, double tolerance, troupe_error *err)
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
compare_greedy(struct run *run, troupe_error *err)
{
    int32_t *theirs = NULL;
    struct difference d = {0};
    int rows = 0, columns = 0, first = -1;

    if (run->out->greedy_count == 0) {
        return TROUPE_OK;
    }
    troupe_status status = read_ids(run->file, "greedy_ids", &theirs, &rows, &columns, err);
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

/* How many ids the greedy part has: 0 when the file has none. */
static troupe_status
greedy_length(const struct run *run, int *count, troupe_error *err)
{
    const tr_st_tensor *t = tr_st_find(run->file, "greedy_ids");

    *count = 0;
    if (t == NULL) {
        return TROUPE_OK;
    }
    int context = troupe_lm_get_config(run->lm)->context;
    if (t->rank != 2 || t->shape[0] != 1 || t->shape[1] <= TR_VERIFY_GREEDY_PROMPT ||
        t->shape[1] > (uint64_t)context || run->input->lengths[0] < TR_VERIFY_GREEDY_PROMPT) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%s: greedy_ids has to be [1, n] with n above %d and at most the context of %d, and "
            "sequence 0 of input_ids long enough for its prompt",
            tr_st_path(run->file), TR_VERIFY_GREEDY_PROMPT, context);
    }
    *count = (int)t->shape[1];
    return TROUPE_OK;
}

static troupe_status
compare_all(struct run *run, troupe_error *err)
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

/* --- the command --------------------------------------------------------------------------------- */

static troupe_status
verify_file(struct run *run, troupe_device *device, const float *params, const char *expected,
    troupe_error *err)
{
    struct tr_verify_input input = {0};
    struct tr_verify_settings settings = {0};
    struct tr_verify_output out = {0};

    run->input = &input;
    run->settings = &settings;
    run->out = &out;
    troupe_status status = read_input(run, &input, err);
    if (status == TROUPE_OK) {
        status = read_settings(expected, &settings, err);
    }
    if (status == TROUPE_OK) {
        status = greedy_length(run, &out.greedy_count, err);
    }
    if (status == TROUPE_OK && settings.cast) {
        /* module.to(bfloat16) rounds the rotary frequencies too, which loading a checkpoint does
         * not: without this the comparison would measure that, 6e-4 of the logits. */
        printf("note: expected numbers of a module cast to bfloat16; its rotary frequencies are "
               "rounded here as well\n");
        tr_lm_round_rope(run->lm);
    }
    if (status == TROUPE_OK) {
        status = tr_verify_compute(run->lm, device, params, &input, &settings, &out, err);
    }
    if (status == TROUPE_OK) {
        status = compare_all(run, err);
    }
    if (status == TROUPE_OK && run->compared == 0) {
        status = troupe_fail(err, TROUPE_BAD_INPUT,
            "%s: holds none of logits, token_logprobs, entropy, loss, grad.*, grad_global_norm, "
            "greedy_ids, adamw_losses, adamw3.*",
            tr_st_path(run->file));
    }
    tr_verify_output_fini(&out);
    tr_free(input.ids);
    tr_free(input.lengths);
    tr_free(input.starts);
    return status;
}

static troupe_status
verify_dir(const troupe_options *o, struct run *run, troupe_error *err)
{
    const char *dir = troupe_options_positional(o, 0);
    const char *given = troupe_options_text(o, "expected");
    bool bf16 = strcmp(troupe_options_text(o, "dtype"), "bf16") == 0;
    troupe_device *device = NULL;
    troupe_lm *lm = NULL;
    tr_st_file *file = NULL;
    float *params = NULL;
    tr_buf path = {0};

    tr_buf_printf(&path, "%s", given != NULL ? given : dir);
    if (given == NULL) {
        tr_buf_puts(&path, "/expected.safetensors");
    }
    run->each = troupe_options_flag(o, "each");
    run->tolerance = bf16 ? 2e-2 : 2e-4;
    run->tolerance_steps = bf16 ? 2e-2 : 1e-3;
    troupe_status status = troupe_device_open(troupe_options_text(o, "device"), NULL, &device, err);
    if (status == TROUPE_OK) {
        status = troupe_lm_load(dir, 0, &lm, &params, err);
    }
    if (status == TROUPE_OK) {
        status = tr_st_open(path.data, &file, err);
    }
    if (status == TROUPE_OK) {
        for (size_t i = 0; bf16 && i < troupe_lm_get_layout(lm)->floats; i++) {
            params[i] = tr_bf16_to_f32(tr_f32_to_bf16(params[i]));
        }
        run->lm = lm;
        run->file = file;
        status = verify_file(run, device, params, path.data, err);
    }
    tr_st_close(file);
    tr_free(params);
    troupe_lm_free(lm);
    troupe_device_close(device);
    tr_buf_fini(&path);
    return status;
}

int
troupe_cli_verify(int argc, char **argv)
{
    troupe_options *o = NULL;
    troupe_error err = {0};
    struct run run = {0};

    troupe_status status = troupe_options_parse(&spec, argc, argv, &o, &err);
    if (status == TROUPE_OK && troupe_options_wants_help(o)) {
        troupe_options_help(&spec, stdout);
        troupe_options_free(o);
        return 0;
    }
    if (status == TROUPE_OK) {
        status = verify_dir(o, &run, &err);
    }
    troupe_options_free(o);
    if (status != TROUPE_OK) {
        (void)fprintf(stderr, "troupe model verify: %s\n", err.text);
        return 2;
    }
    printf("%s: %d quantities compared, %d outside the limits\n",
        run.failed == 0 ? "passed" : "FAILED", run.compared, run.failed);
    return run.failed == 0 ? 0 : 1;
}
