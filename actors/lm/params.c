/* Parameters from a model directory into the flat fp32 buffer. Two passes over the files: the first
 * compares every name, shape and dtype with what the configuration asks for, the second reads; so a
 * directory that does not fit is refused before anything was written or allocated. */
#include "file.h"
#include "params_source.h"
#include "safetensors.h"

#include <troupe/ext/base.h>

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum {
    COMPARE = 1 << 14 /* values of a redundant head compared at a time */
};

/* One pass over the files; `params` NULL = check only. */
typedef struct pass {
    const char *dir;
    const troupe_lm_layout *layout;
    const tr_params_source *source;
    float *params;
    troupe_error *err;
} pass;

static void
print_shape(tr_buf *out, const tr_st_tensor *tensor)
{
    tr_buf_puts(out, "[");
    for (int i = 0; i < tensor->rank; i++) {
        tr_buf_printf(out, "%s%llu", i > 0 ? ", " : "", (unsigned long long)tensor->shape[i]);
    }
    tr_buf_puts(out, "]");
}

static troupe_status
fail_shape(
    const pass *p, const tr_st_file *file, const tr_st_tensor *tensor, const troupe_lm_tensor *want)
{
    tr_buf shape = {0};
    print_shape(&shape, tensor);
    char columns[32] = "";
    if (want->rank == 2) {
        (void)snprintf(columns, sizeof columns, ", %d", want->shape[1]);
    }
    troupe_status status = troupe_fail(p->err, TROUPE_BAD_INPUT,
        "%s: tensor '%s': shape %s, config.json asks for [%d%s]; config.json and the weights are "
        "of different models: fetch or export them together",
        tr_st_path(file), tensor->name, shape.data, want->shape[0], columns);
    tr_buf_fini(&shape);
    return status;
}

static troupe_status
check_tensor(
    const pass *p, const tr_st_file *file, const tr_st_tensor *tensor, const troupe_lm_tensor *want)
{
    bool same = tensor->rank == want->rank;
    for (int i = 0; same && i < want->rank; i++) {
        same = tensor->shape[i] == (uint64_t)want->shape[i];
    }
    if (!same) {
        return fail_shape(p, file, tensor, want);
    }
    if (tensor->dtype != TR_ST_F32 && tensor->dtype != TR_ST_F16 && tensor->dtype != TR_ST_BF16) {
        return troupe_fail(p->err, TROUPE_BAD_INPUT,
            "%s: tensor '%s': dtype %s, parameters are F32, F16 or BF16; export the model in one "
            "of them",
            tr_st_path(file), tensor->name, tr_st_dtype_name(tensor->dtype));
    }
    TR_ASSERT(tensor->count == want->count);
    return TROUPE_OK;
}

/* Finds `name` in an open shard and checks it against `want`. */
static troupe_status
find_tensor(const pass *p, const tr_st_file *file, const char *name, const troupe_lm_tensor *want,
    const tr_st_tensor **out)
{
    const tr_st_tensor *tensor = tr_st_find(file, name);
    if (tensor == NULL) {
        return troupe_fail(p->err, TROUPE_BAD_INPUT,
            "%s: has no tensor '%s', though model.safetensors.index.json says so; fetch or export "
            "the model again",
            tr_st_path(file), name);
    }
    *out = tensor;
    return check_tensor(p, file, tensor, want);
}

/* A tied model may carry a copy of its embedding as head. One that differs means that
 * config.json or the file is wrong, and either choice would be a guess. */
static troupe_status
compare_head(
    const pass *p, const tr_st_file *file, const tr_st_tensor *head, const float *embedding)
{
    troupe_status status = TROUPE_OK;
    float *values = tr_alloc(COMPARE * sizeof *values);
    for (uint64_t done = 0; done < head->count && status == TROUPE_OK; done += COMPARE) {
        size_t now = (size_t)TR_MIN(head->count - done, (uint64_t)COMPARE);
        status = tr_st_read_f32_range(file, head, done, values, now, p->err);
        if (status == TROUPE_OK && memcmp(values, embedding + done, now * sizeof *values) != 0) {
            status = troupe_fail(p->err, TROUPE_BAD_INPUT,
                "%s: tensor 'lm_head.weight' differs from the embedding, but config.json says "
                "tie_word_embeddings true; set it to false if the head was trained by itself, "
                "otherwise remove the tensor",
                tr_st_path(file));
        }
    }
    tr_free(values);
    return status;
}

static troupe_status
pass_head(const pass *p, const tr_st_file *file)
{
    int index = troupe_lm_layout_find(p->layout, "model.embed_tokens.weight");
    const troupe_lm_tensor *embedding = &p->layout->tensors[index];
    const tr_st_tensor *head = NULL;
    troupe_status status = find_tensor(p, file, "lm_head.weight", embedding, &head);
    if (status == TROUPE_OK && p->params != NULL) {
        status = compare_head(p, file, head, p->params + embedding->offset);
    }
    return status;
}

static troupe_status
pass_open(const pass *p, int index, tr_st_file **file)
{
    char path[PATH_MAX];
    const char *name = p->source->files[index];
    troupe_status status = tr_path_join(path, p->dir, name, p->err);
    if (status != TROUPE_OK) {
        return status;
    }
    status = tr_st_open(path, file, p->err);
    if (status == TROUPE_NOT_FOUND) {
        return troupe_fail(p->err, TROUPE_NOT_FOUND,
            "%s: model.safetensors.index.json names this file, and it is not there; fetch the "
            "model again",
            path);
    }
    return status;
}

static troupe_status
pass_file(const pass *p, int index)
{
    tr_st_file *file = NULL;
    troupe_status status = pass_open(p, index, &file);
    for (int i = 0; i < p->layout->count && status == TROUPE_OK; i++) {
        if (p->source->file_of[i] != index) {
            continue;
        }
        const troupe_lm_tensor *want = &p->layout->tensors[i];
        const tr_st_tensor *tensor = NULL;
        const char *name = tr_params_source_name(p->source, p->layout, i);
        status = find_tensor(p, file, name, want, &tensor);
        if (status == TROUPE_OK && p->params != NULL) {
            status = tr_st_read_f32(file, tensor, p->params + want->offset, want->count, p->err);
        }
    }
    tr_st_close(file);
    return status;
}

static troupe_status
pass_run(const pass *p)
{
    troupe_status status = TROUPE_OK;
    for (int i = 0; i < p->source->file_count && status == TROUPE_OK; i++) {
        status = pass_file(p, i);
    }
    /* Last, when the embedding is there to compare with, whichever shard it came from. */
    if (status == TROUPE_OK && p->source->head_file >= 0) {
        tr_st_file *file = NULL;
        status = pass_open(p, p->source->head_file, &file);
        if (status == TROUPE_OK) {
            status = pass_head(p, file);
            tr_st_close(file);
        }
    }
    return status;
}

troupe_status
troupe_lm_params_check(const char *dir, const troupe_lm_config *config,
    const troupe_lm_layout *layout, troupe_error *err)
{
    tr_params_source source;
    troupe_status status = tr_params_source_init(&source, dir, config, layout, err);
    if (status != TROUPE_OK) {
        return status;
    }
    pass check = {.dir = dir, .layout = layout, .source = &source, .err = err};
    status = pass_run(&check);
    tr_params_source_fini(&source);
    return status;
}

/* Bytes of all *.safetensors files of a folder. */
static uint64_t
weight_bytes(const char *dir)
{
    static const char tail[] = ".safetensors";
    uint64_t bytes = 0;
    DIR *entries = opendir(dir);
    for (struct dirent *e = NULL; entries != NULL && (e = readdir(entries)) != NULL;) {
        char path[PATH_MAX];
        struct stat info;
        size_t size = strlen(e->d_name);
        bool named = size >= sizeof tail && strcmp(e->d_name + size - (sizeof tail - 1), tail) == 0;
        if (named && tr_path_join(path, dir, e->d_name, NULL) == TROUPE_OK &&
            stat(path, &info) == 0) {
            bytes += (uint64_t)info.st_size;
        }
    }
    if (entries != NULL) {
        closedir(entries);
    }
    return bytes;
}

troupe_status
tr_params_bound(const char *dir, const troupe_lm_config *config, troupe_error *err)
{
    troupe_lm_layout layout;
    troupe_lm_layout_init(&layout, config);
    uint64_t bytes = weight_bytes(dir);
    troupe_status status = TROUPE_OK;
    /* A parameter has at least two bytes. */
    if (bytes > 0 && layout.parameters > bytes / 2) {
        status = troupe_lm_params_check(dir, config, &layout, err);
    }
    troupe_lm_layout_fini(&layout);
    return status;
}

troupe_status
troupe_lm_params_read(const char *dir, const troupe_lm_config *config,
    const troupe_lm_layout *layout, float *params, troupe_error *err)
{
    tr_params_source source;
    troupe_status status = tr_params_source_init(&source, dir, config, layout, err);
    if (status != TROUPE_OK) {
        return status;
    }
    pass p = {.dir = dir, .layout = layout, .source = &source, .err = err};
    status = pass_run(&p);
    if (status == TROUPE_OK) {
        memset(params, 0, layout->floats * sizeof *params);
        p.params = params;
        status = pass_run(&p);
    }
    tr_params_source_fini(&source);
    return status;
}
