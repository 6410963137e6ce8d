/* What is done with checkpoints once they are written: check them, find the newest, read the
 * optimiser back, remove old ones and leftovers. A checkpoint that is being removed loses its
 * name first, so that a process killed in the middle leaves no half of one under a name that
 * counts. */
#include "file.h"
#include "manifest.h"
#include "safetensors.h"

#include <troupe/ext/base.h>
#include <troupe/model.h>

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char name_prefix[] = "checkpoint-";
static const char tmp_infix[] = ".tmp-";

enum {
    TEXT_MAX = 256 << 20 /* bytes of train_state.json or ledger.json that are read */
};

/* --- verify --- */

static troupe_status
check_listed(const tr_manifest *manifest, const char *dir, troupe_error *err)
{
    static const char *const needed[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < TR_COUNT(needed); i++) {
        bool listed = false;
        for (int k = 0; k < manifest->count; k++) {
            listed = listed || strcmp(manifest->files[k].name, needed[i]) == 0;
        }
        if (!listed) {
            return troupe_fail(err, TROUPE_CORRUPT,
                "%s/manifest.json: files: no %s, so this is no checkpoint of a model; use another",
                dir, needed[i]);
        }
    }
    return TROUPE_OK;
}

static troupe_status
read_manifest(const char *dir, tr_manifest *manifest, uint64_t *digest, troupe_error *err)
{
    troupe_status status = tr_manifest_read(manifest, dir, digest, err);
    if (status == TROUPE_OK) {
        status = check_listed(manifest, dir, err);
    }
    return status == TROUPE_OK ? tr_manifest_check_sizes(manifest, dir, err) : status;
}

troupe_status
troupe_checkpoint_verify(const char *dir, troupe_error *err)
{
    tr_manifest manifest;
    troupe_status status = read_manifest(dir, &manifest, NULL, err);
    return status == TROUPE_OK ? tr_manifest_check_hashes(&manifest, dir, err) : status;
}

troupe_status
troupe_checkpoint_digest(const char *dir, uint64_t *digest, troupe_error *err)
{
    tr_manifest manifest;
    return tr_manifest_read(&manifest, dir, digest, err);
}

troupe_status
troupe_checkpoint_read_text(const char *dir, const char *name, char **text, troupe_error *err)
{
    char path[PATH_MAX];
    tr_buf buf = {0};
    troupe_status status = tr_path_join(path, dir, name, err);
    if (status == TROUPE_OK) {
        status = tr_file_read_all(path, TEXT_MAX, &buf, err);
    }
    if (status == TROUPE_OK && memchr(buf.data, '\0', buf.size) != NULL) {
        status = troupe_fail(err, TROUPE_CORRUPT,
            "%s: holds a zero byte, so it is no text; use "
            "another checkpoint",
            path);
    }
    if (status != TROUPE_OK) {
        tr_buf_fini(&buf);
        return status;
    }
    *text = buf.data;
    return TROUPE_OK;
}

/* --- names in a run directory --- */

/* A decimal without sign and superfluous zeros that ends at `end`; -1 otherwise. */
static int64_t
parse_number(const char *text, const char *end)
{
    size_t size = (size_t)(end - text);
    if (size == 0 || size > 18 || (text[0] == '0' && size > 1)) {
        return -1;
    }
    int64_t value = 0;
    for (; text < end; text++) {
        if (*text < '0' || *text > '9') {
            return -1;
        }
        value = value * 10 + (*text - '0');
    }
    return value;
}

/* The N of "checkpoint-N", or -1. */
static int64_t
parse_step(const char *name)
{
    size_t prefix = sizeof name_prefix - 1;
    if (strncmp(name, name_prefix, prefix) != 0) {
        return -1;
    }
    return parse_number(name + prefix, name + strlen(name));
}

/* The process of "checkpoint-N.tmp-PID", or -1 when the name is another. */
static int64_t
parse_leftover(const char *name)
{
    size_t prefix = sizeof name_prefix - 1;
    const char *infix = strstr(name, tmp_infix);
    if (strncmp(name, name_prefix, prefix) != 0 || infix == NULL ||
        parse_number(name + prefix, infix) < 0) {
        return -1;
    }
    return parse_number(infix + sizeof tmp_infix - 1, name + strlen(name));
}

typedef struct step_list {
    int64_t *steps; /* falling */
    size_t count;
    char (*leftovers)[NAME_MAX + 1]; /* of processes that are gone */
    size_t leftover_count;
} step_list;

static void
step_list_fini(step_list *list)
{
    tr_free(list->steps);
    tr_free(list->leftovers);
}

static int
falling(const void *a, const void *b)
{
    const int64_t *x = a;
    const int64_t *y = b;
    return (*x < *y) - (*x > *y);
}

static bool
is_gone(int64_t pid)
{
    return pid > INT_MAX || (pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH);
}

static void
step_list_add(step_list *list, const char *name)
{
    int64_t step = parse_step(name);
    if (step >= 0) {
        list->steps = tr_realloc(list->steps, list->count + 1, sizeof *list->steps);
        list->steps[list->count++] = step;
        return;
    }
    int64_t pid = parse_leftover(name);
    if (pid >= 0 && is_gone(pid) && strlen(name) <= NAME_MAX) {
        list->leftovers =
            tr_realloc(list->leftovers, list->leftover_count + 1, sizeof *list->leftovers);
        memcpy(list->leftovers[list->leftover_count++], name, strlen(name) + 1);
    }
}

/* All "checkpoint-N" names, complete or not. */
static troupe_status
step_list_init(step_list *list, const char *run_dir, troupe_error *err)
{
    *list = (step_list){0};
    DIR *dir = opendir(run_dir);
    if (dir == NULL) {
        return tr_file_fail(err, run_dir, "open", errno);
    }
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        step_list_add(list, entry->d_name);
    }
    closedir(dir);
    if (list->count > 0) {
        qsort(list->steps, list->count, sizeof *list->steps, falling);
    }
    return TROUPE_OK;
}

static troupe_status
step_path(char out[PATH_MAX], const char *run_dir, int64_t step, troupe_error *err)
{
    char name[64];
    (void)snprintf(name, sizeof name, "%s%lld", name_prefix, (long long)step);
    return tr_path_join(out, run_dir, name, err);
}

static bool
is_complete(const char *dir)
{
    tr_manifest manifest;
    return read_manifest(dir, &manifest, NULL, NULL) == TROUPE_OK;
}

/* --- newest, prune --- */

troupe_status
troupe_checkpoint_latest(
    const char *run_dir, char *path, size_t path_size, int64_t *step, troupe_error *err)
{
    step_list list;
    troupe_status status = step_list_init(&list, run_dir, err);
    if (status != TROUPE_OK) {
        return status;
    }
    bool found = false;
    for (size_t i = 0; i < list.count && status == TROUPE_OK && !found; i++) {
        char dir[PATH_MAX];
        status = step_path(dir, run_dir, list.steps[i], err);
        if (status != TROUPE_OK || !is_complete(dir)) {
            continue;
        }
        found = true;
        if (strlen(dir) >= path_size) {
            status = troupe_fail(
                err, TROUPE_INVALID, "%s: longer than the %zu bytes given for it", dir, path_size);
            break;
        }
        memcpy(path, dir, strlen(dir) + 1);
        *step = list.steps[i];
    }
    step_list_fini(&list);
    if (status == TROUPE_OK && !found) {
        status = troupe_fail(err, TROUPE_NOT_FOUND,
            "%s: no complete checkpoint-N; name a run that has saved one", run_dir);
    }
    return status;
}

/* Gives up the name, then the bytes. */
static troupe_status
remove_checkpoint(const char *dir, troupe_error *err)
{
    char doomed[PATH_MAX];
    int size = snprintf(doomed, sizeof doomed, "%s%s%ld", dir, tmp_infix, (long)getpid());
    if (size < 0 || size >= (int)sizeof doomed) {
        return troupe_fail(
            err, TROUPE_BAD_INPUT, "%.200s...: the path is too long; use a shorter one", dir);
    }
    troupe_status status = tr_dir_remove(doomed, err);
    if (status == TROUPE_OK && rename(dir, doomed) != 0) {
        status = tr_file_fail(err, dir, "rename", errno);
    }
    return status == TROUPE_OK ? tr_dir_remove(doomed, err) : status;
}

troupe_status
troupe_checkpoint_remove_from(const char *run_dir, int64_t first, troupe_error *err)
{
    step_list list;
    troupe_status status = step_list_init(&list, run_dir, err);
    if (status != TROUPE_OK) {
        return status;
    }
    for (size_t i = 0; i < list.count && status == TROUPE_OK; i++) {
        char dir[PATH_MAX];
        if (list.steps[i] < first) {
            continue;
        }
        status = step_path(dir, run_dir, list.steps[i], err);
        if (status == TROUPE_OK && is_complete(dir)) {
            status = remove_checkpoint(dir, err);
        }
    }
    step_list_fini(&list);
    return status;
}

static troupe_status
prune_steps(const step_list *list, const char *run_dir, int keep, troupe_error *err)
{
    int complete = 0;
    for (size_t i = 0; i < list->count; i++) {
        char dir[PATH_MAX];
        troupe_status status = step_path(dir, run_dir, list->steps[i], err);
        if (status == TROUPE_OK && is_complete(dir)) {
            complete++;
            if (keep > 0 && complete > keep) {
                status = remove_checkpoint(dir, err);
            }
        }
        if (status != TROUPE_OK) {
            return status;
        }
    }
    return TROUPE_OK;
}

troupe_status
troupe_checkpoint_prune(const char *run_dir, int keep, troupe_error *err)
{
    TR_ASSERT(keep >= 0);
    step_list list;
    troupe_status status = step_list_init(&list, run_dir, err);
    if (status != TROUPE_OK) {
        return status;
    }
    status = prune_steps(&list, run_dir, keep, err);
    for (size_t i = 0; i < list.leftover_count && status == TROUPE_OK; i++) {
        char path[PATH_MAX];
        status = tr_path_join(path, run_dir, list.leftovers[i], err);
        if (status == TROUPE_OK) {
            status = tr_dir_remove(path, err);
        }
    }
    step_list_fini(&list);
    return status;
}

/* --- the optimiser --- */

/* Reads all tensors of one prefix into `values`. */
static troupe_status
read_array(const tr_st_file *file, const troupe_lm_layout *layout, const char *prefix,
    float *values, troupe_error *err)
{
    memset(values, 0, layout->floats * sizeof *values);
    for (int i = 0; i < layout->count; i++) {
        const troupe_lm_tensor *want = &layout->tensors[i];
        char name[TROUPE_TENSOR_NAME_MAX + 16];
        (void)snprintf(name, sizeof name, "%s%s", prefix, want->name);
        const tr_st_tensor *tensor = tr_st_find(file, name);
        bool same = tensor != NULL && tensor->dtype == TR_ST_F32 && tensor->rank == want->rank;
        for (int d = 0; same && d < want->rank; d++) {
            same = tensor->shape[d] == (uint64_t)want->shape[d];
        }
        if (!same) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "%s: tensor '%s': %s; the optimiser's state is of another model: resume with the "
                "model of that run",
                tr_st_path(file), name,
                tensor == NULL ? "missing" : "not F32 of the shape that config.json asks for");
        }
        troupe_status status =
            tr_st_read_f32(file, tensor, values + want->offset, want->count, err);
        if (status != TROUPE_OK) {
            return status;
        }
    }
    return TROUPE_OK;
}

troupe_status
troupe_checkpoint_read_optimizer(const char *dir, const troupe_lm_config *config,
    const troupe_lm_layout *layout, float *master, float *m, float *v, troupe_error *err)
{
    (void)config; /* the layout says all that is needed; part of the contract for sharded states */
    char path[PATH_MAX];
    tr_st_file *file = NULL;
    troupe_status status = tr_path_join(path, dir, "optimizer.safetensors", err);
    if (status == TROUPE_OK) {
        status = tr_st_open(path, &file, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    status = read_array(file, layout, "master.", master, err);
    if (status == TROUPE_OK) {
        status = read_array(file, layout, "m.", m, err);
    }
    if (status == TROUPE_OK) {
        status = read_array(file, layout, "v.", v, err);
    }
    if (status == TROUPE_OK && tr_st_count(file) != 3 * (size_t)layout->count) {
        status = troupe_fail(err, TROUPE_BAD_INPUT,
            "%s: %zu tensors, the model has 3 x %d; the optimiser's state is of another model: "
            "resume with the model of that run",
            path, tr_st_count(file), layout->count);
    }
    tr_st_close(file);
    return status;
}
