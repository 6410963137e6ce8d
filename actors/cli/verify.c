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
                                                  .help = "where to run: cpu, cpu:plain, cuda"},
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

/* --- reading the expected file --- */

troupe_status
tr_verify_read_ids(const tr_st_file *file, const char *name, int32_t **ids, int *rows, int *columns,
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
read_lengths(const struct tr_verify_run *run, struct tr_verify_input *in, const int32_t *mask,
    troupe_error *err)
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
read_input(const struct tr_verify_run *run, struct tr_verify_input *in, troupe_error *err)
{
    int32_t *mask = NULL;
    int rows = 0, columns = 0;

    troupe_status status =
        tr_verify_read_ids(run->file, "input_ids", &in->ids, &in->sequences, &in->width, err);
    if (status != TROUPE_OK) {
        return status;
    }
    in->lengths = tr_zalloc((size_t)in->sequences, sizeof *in->lengths);
    in->starts = tr_zalloc((size_t)in->sequences, sizeof *in->starts);
    status = tr_verify_read_ids(run->file, "attention_mask", &mask, &rows, &columns, err);
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

/* How many ids the greedy part has: 0 when the file has none. */
static troupe_status
greedy_length(const struct tr_verify_run *run, int *count, troupe_error *err)
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

/* --- the command --- */

static troupe_status
verify_file(struct tr_verify_run *run, troupe_device *device, const float *params,
    const char *expected, troupe_error *err)
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
        status = tr_verify_compare(run, err);
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
verify_dir(const troupe_options *o, struct tr_verify_run *run, troupe_error *err)
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
    struct tr_verify_run run = {0};

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
