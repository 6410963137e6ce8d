/* Writing a checkpoint, all of it or nothing. Everything goes into DIR.tmp-PID; each file is
 * hashed on the way and synced; the manifest is last; then the folder itself is synced, renamed
 * and its parent synced. Whatever fails, the temporary folder is removed and no other name has
 * changed; a process that is killed leaves only a folder that troupe_checkpoint_latest passes
 * over and troupe_checkpoint_prune removes. */
#include "config.h"
#include "file.h"
#include "manifest.h"
#include "safetensors.h"

#include <troupe/ext/base.h>
#include <troupe/model.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TOKENIZER_FILE_MAX = 256 << 20, /* bytes; the largest in use has 20 MB */
    COPY = 1 << 20,                 /* bytes copied at a time */
};

typedef struct job {
    const troupe_lm_config *config;
    const troupe_lm_layout *layout;
    const float *params;
    const troupe_checkpoint_parts *parts;
    char dir[PATH_MAX]; /* the final name */
    char tmp[PATH_MAX]; /* where everything is written */
    tr_manifest manifest;
    troupe_error *err;
} job;

/* --- files --- */

static troupe_status
write_text(job *j, const char *name, const char *text, size_t size)
{
    char path[PATH_MAX];
    tr_file_writer writer;
    uint64_t hash = 0;
    troupe_status status = tr_path_join(path, j->tmp, name, j->err);
    if (status == TROUPE_OK) {
        status = tr_file_writer_open(&writer, path, j->err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    status = tr_file_writer_append(&writer, text, size, j->err);
    if (status != TROUPE_OK) {
        tr_file_writer_abort(&writer);
        return status;
    }
    status = tr_file_writer_close(&writer, &hash, j->err);
    if (status == TROUPE_OK) {
        tr_manifest_add(&j->manifest, name, size, hash);
    }
    return status;
}

static troupe_status
write_configs(job *j)
{
    tr_buf text = {0};
    tr_lm_config_print(j->config, &text);
    troupe_status status = write_text(j, "config.json", text.data, text.size);
    tr_buf_clear(&text);
    if (status == TROUPE_OK) {
        tr_lm_generation_config_print(j->config, &text);
        status = write_text(j, "generation_config.json", text.data, text.size);
    }
    tr_buf_fini(&text);
    return status;
}

/* A set of values in the layout's order, and what goes before each name. */
typedef struct array_set {
    const char *prefix;
    const float *values;
} array_set;

static void
plan_arrays(const troupe_lm_layout *layout, const array_set *sets, int set_count,
    troupe_dtype dtype, tr_st_plan *plan, char (*names)[TROUPE_TENSOR_NAME_MAX + 16])
{
    for (int s = 0; s < set_count; s++) {
        for (int i = 0; i < layout->count; i++) {
            const troupe_lm_tensor *tensor = &layout->tensors[i];
            int at = s * layout->count + i;
            int size = snprintf(names[at], sizeof names[at], "%s%s", sets[s].prefix, tensor->name);
            TR_ASSERT(size > 0 && size < (int)sizeof names[at]);
            plan[at] = (tr_st_plan){.name = names[at],
                .dtype = dtype,
                .rank = tensor->rank,
                .shape = {tensor->shape[0], tensor->shape[1]}};
        }
    }
}

static troupe_status
put_arrays(job *j, tr_st_writer *writer, const array_set *sets, int set_count)
{
    for (int s = 0; s < set_count; s++) {
        for (int i = 0; i < j->layout->count; i++) {
            const troupe_lm_tensor *tensor = &j->layout->tensors[i];
            troupe_status status =
                tr_st_writer_put(writer, sets[s].values + tensor->offset, tensor->count, j->err);
            if (status != TROUPE_OK) {
                return status;
            }
        }
    }
    return TROUPE_OK;
}

static troupe_status
write_arrays(job *j, const char *name, const array_set *sets, int set_count, troupe_dtype dtype)
{
    char path[PATH_MAX];
    troupe_status status = tr_path_join(path, j->tmp, name, j->err);
    if (status != TROUPE_OK) {
        return status;
    }
    size_t count = (size_t)set_count * (size_t)j->layout->count;
    tr_st_plan *plan = tr_zalloc(count, sizeof *plan);
    char(*names)[TROUPE_TENSOR_NAME_MAX + 16] = tr_zalloc(count, sizeof *names);
    plan_arrays(j->layout, sets, set_count, dtype, plan, names);
    tr_st_writer *writer = NULL;
    uint64_t size = 0;
    uint64_t hash = 0;
    status = tr_st_writer_open(path, plan, count, &writer, j->err);
    if (status == TROUPE_OK) {
        status = put_arrays(j, writer, sets, set_count);
        if (status == TROUPE_OK) {
            status = tr_st_writer_close(writer, &size, &hash, j->err);
        } else {
            tr_st_writer_abort(writer);
        }
    }
    if (status == TROUPE_OK) {
        tr_manifest_add(&j->manifest, name, size, hash);
    }
    tr_free(plan);
    tr_free(names);
    return status;
}

static troupe_status
write_optimizer(job *j)
{
    const array_set all[] = {
        {"master.", j->parts->master}, {"m.", j->parts->m}, {"v.", j->parts->v}};
    array_set given[TR_COUNT(all)];
    int count = 0;
    for (size_t i = 0; i < TR_COUNT(all); i++) {
        if (all[i].values != NULL) {
            given[count++] = all[i];
        }
    }
    return count > 0 ? write_arrays(j, "optimizer.safetensors", given, count, TROUPE_F32)
                     : TROUPE_OK;
}

static troupe_status
copy_bytes(job *j, const char *from, int fd, uint64_t size, tr_file_writer *writer)
{
    troupe_status status = TROUPE_OK;
    char *chunk = tr_alloc(COPY);
    for (uint64_t done = 0; done < size && status == TROUPE_OK;) {
        size_t now = (size_t)TR_MIN(size - done, (uint64_t)COPY);
        status = tr_file_read_at(fd, from, done, chunk, now, j->err);
        if (status == TROUPE_OK) {
            status = tr_file_writer_append(writer, chunk, now, j->err);
        }
        done += now;
    }
    tr_free(chunk);
    return status;
}

static troupe_status
copy_open(job *j, const char *from, int fd, uint64_t size, const char *name)
{
    char to[PATH_MAX];
    tr_file_writer writer;
    uint64_t hash = 0;
    if (size > TOKENIZER_FILE_MAX) {
        return troupe_fail(j->err, TROUPE_BAD_INPUT,
            "%s: %llu bytes, a tokenizer file has at most %d; is this the right file?", from,
            (unsigned long long)size, TOKENIZER_FILE_MAX);
    }
    troupe_status status = tr_path_join(to, j->tmp, name, j->err);
    if (status == TROUPE_OK) {
        status = tr_file_writer_open(&writer, to, j->err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    status = copy_bytes(j, from, fd, size, &writer);
    if (status != TROUPE_OK) {
        tr_file_writer_abort(&writer);
        return status;
    }
    status = tr_file_writer_close(&writer, &hash, j->err);
    if (status == TROUPE_OK) {
        tr_manifest_add(&j->manifest, name, size, hash);
    }
    return status;
}

/* What a tokenizer and its chat template consist of; a model has some of them. */
static troupe_status
copy_tokenizer(job *j)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json",
        "vocab.json", "merges.txt", "tokenizer.model"};
    const char *source = j->parts->copy_from;
    if (source != NULL && !tr_dir_exists(source)) {
        return troupe_fail(j->err, TROUPE_NOT_FOUND,
            "%s: the model directory whose tokenizer belongs to the checkpoint is not there; put "
            "it back",
            source);
    }
    for (size_t i = 0; source != NULL && i < TR_COUNT(names); i++) {
        char from[PATH_MAX];
        int fd = -1;
        uint64_t size = 0;
        troupe_status status = tr_path_join(from, source, names[i], j->err);
        if (status == TROUPE_OK && !tr_file_exists(from)) {
            continue;
        }
        if (status == TROUPE_OK) {
            status = tr_file_open(from, &fd, &size, j->err);
        }
        if (status != TROUPE_OK) {
            return status;
        }
        status = copy_open(j, from, fd, size, names[i]);
        close(fd);
        if (status != TROUPE_OK) {
            return status;
        }
    }
    return TROUPE_OK;
}

static troupe_status
write_optional_text(job *j, const char *name, const char *text)
{
    return text != NULL ? write_text(j, name, text, strlen(text)) : TROUPE_OK;
}

static troupe_status
write_manifest(job *j)
{
    tr_buf text = {0};
    tr_manifest_print(&j->manifest, &text);
    troupe_status status = write_text(j, "manifest.json", text.data, text.size);
    tr_buf_fini(&text);
    return status;
}

static troupe_status
write_files(job *j)
{
    const array_set model = {"", j->params};
    troupe_status status = write_configs(j);
    if (status == TROUPE_OK) {
        status = copy_tokenizer(j);
    }
    if (status == TROUPE_OK) {
        status = write_arrays(j, "model.safetensors", &model, 1, j->config->dtype);
    }
    if (status == TROUPE_OK) {
        status = write_optimizer(j);
    }
    if (status == TROUPE_OK) {
        status = write_optional_text(j, "train_state.json", j->parts->train_state_json);
    }
    if (status == TROUPE_OK) {
        status = write_optional_text(j, "ledger.json", j->parts->ledger_json);
    }
    if (status == TROUPE_OK) {
        status = write_manifest(j);
    }
    return status == TROUPE_OK ? tr_dir_sync(j->tmp, j->err) : status;
}

/* --- the folder --- */

static troupe_status
fail_exists(const char *dir, troupe_error *err)
{
    return troupe_fail(err, TROUPE_EXISTS,
        "%s: there already; a checkpoint is never overwritten: name another --out or remove it",
        dir);
}

/* Moves the finished folder to its name, without replacing anything. */
static troupe_status
move_into_place(const char *from, const char *to, troupe_error *err)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) {
        return TROUPE_OK;
    }
    if (errno == EEXIST) {
        return fail_exists(to, err);
    }
    /* Some file systems have no such flag; there an empty folder could be replaced. */
    if (errno == EINVAL || errno == ENOSYS) {
        if (tr_file_exists(to)) {
            return fail_exists(to, err);
        }
        if (rename(from, to) == 0) {
            return TROUPE_OK;
        }
    }
    return tr_file_fail(err, to, "rename", errno);
}

/* The folder that holds `dir`. */
static void
parent_of(char out[PATH_MAX], const char *dir)
{
    size_t size = strlen(dir);
    while (size > 0 && dir[size - 1] != '/') {
        size--;
    }
    while (size > 1 && dir[size - 1] == '/') {
        size--;
    }
    (void)snprintf(out, PATH_MAX, "%.*s", size > 0 ? (int)size : 1, size > 0 ? dir : ".");
}

static troupe_status
publish(job *j)
{
    char parent[PATH_MAX];
    parent_of(parent, j->dir);
    troupe_status status = move_into_place(j->tmp, j->dir, j->err);
    if (status != TROUPE_OK) {
        return status;
    }
    status = tr_dir_sync(parent, j->err);
    if (status != TROUPE_OK) {
        /* Not known to be durable, so not published: back under the name that will be removed. */
        (void)rename(j->dir, j->tmp);
    }
    return status;
}

static troupe_status
make_folder(job *j, const char *dir)
{
    size_t length = strlen(dir);
    while (length > 1 && dir[length - 1] == '/') {
        length--;
    }
    /* The names of the files inside must fit behind it. */
    if (length == 0 || length + (size_t)(2 * TR_MANIFEST_NAME_MAX) > PATH_MAX) {
        return troupe_fail(j->err, TROUPE_BAD_INPUT,
            "'%.200s': a path of %zu bytes cannot hold a checkpoint; use a shorter one", dir,
            length);
    }
    (void)snprintf(j->dir, sizeof j->dir, "%.*s", (int)length, dir);
    (void)snprintf(j->tmp, sizeof j->tmp, "%.*s.tmp-%ld", (int)length, dir, (long)getpid());
    if (tr_file_exists(j->dir)) {
        return fail_exists(j->dir, j->err);
    }
    /* Left by a process that had our number before it died. */
    troupe_status status = tr_dir_remove(j->tmp, j->err);
    if (status == TROUPE_OK && mkdir(j->tmp, 0755) != 0) {
        status = tr_file_fail(j->err, j->tmp, "create", errno);
    }
    return status;
}

troupe_status
troupe_checkpoint_write(const char *dir, const troupe_lm_config *config,
    const troupe_lm_layout *layout, const float *params, const troupe_checkpoint_parts *parts,
    troupe_error *err)
{
    static const troupe_checkpoint_parts none = {0};
    job *j = tr_zalloc(1, sizeof *j);
    j->config = config;
    j->layout = layout;
    j->params = params;
    j->parts = parts != NULL ? parts : &none;
    j->err = err;
    troupe_status status = make_folder(j, dir);
    if (status == TROUPE_OK) {
        status = write_files(j);
        if (status == TROUPE_OK) {
            status = publish(j);
        }
        if (status != TROUPE_OK) {
            /* The first error is the one to report; a leftover is removed by the next prune. */
            (void)tr_dir_remove(j->tmp, NULL);
        }
    }
    tr_free(j);
    return status;
}
