/* What of a policy lasts: a checkpoint directory with weights, optimiser, ledger and the state that
 * a resumed run continues from. */
#include "policy.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FILE_BYTES_MAX = 1 << 20
};

static troupe_status
read_file(const char *dir, const char *name, char **out, size_t *size, troupe_error *err)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return troupe_fail(
            err, TROUPE_NOT_FOUND, "%s: cannot be read; resume from a complete checkpoint", path);
    }
    char *text = tr_alloc(FILE_BYTES_MAX + 1);
    size_t have = 0;
    ssize_t n = 0;
    while (have < FILE_BYTES_MAX && (n = read(fd, text + have, FILE_BYTES_MAX - have)) > 0) {
        have += (size_t)n;
    }
    close(fd);
    if (n < 0 || have == FILE_BYTES_MAX) {
        tr_free(text);
        return troupe_fail(err, TROUPE_BAD_INPUT, "%s: over 1 MiB or unreadable", path);
    }
    text[have] = '\0';
    *out = text;
    *size = have;
    return TROUPE_OK;
}

static troupe_status
take_up(tr_policy *p, const char *dir, const char *text, size_t size, troupe_error *err)
{
    tr_policy_state state = {0};
    troupe_trainer_progress progress;
    char where[4400];
    snprintf(where, sizeof where, "%.4300s/train_state.json", dir);
    troupe_status status = tr_policy_state_parse(text, size, where, &state, &progress, err);
    size_t floats = troupe_lm_get_layout(p->lm)->floats;
    float *arrays = tr_zalloc(3 * floats, sizeof *arrays);
    float *m = arrays + floats, *v = m + floats;
    if (status == TROUPE_OK) {
        status = troupe_checkpoint_read_optimizer(
            dir, &p->model, troupe_lm_get_layout(p->lm), arrays, m, v, err);
    }
    if (status == TROUPE_OK) {
        status = troupe_trainer_set_state(p->trainer, arrays, m, v, &progress, err);
    }
    if (status == TROUPE_OK) {
        tr_policy_state_apply(p, &state);
    }
    tr_free(arrays);
    tr_policy_state_fini(&state);
    return status;
}

troupe_status
tr_policy_restore(tr_policy *p, int64_t step, troupe_error *err)
{
    char dir[4200];
    char *text = NULL;
    size_t size = 0;
    troupe_error why = {0};
    snprintf(dir, sizeof dir, "%s/checkpoint-%lld", p->run, (long long)step);
    troupe_status status = troupe_checkpoint_verify(dir, &why);
    if (status != TROUPE_OK) {
        return troupe_fail(err, status, "%s cannot be gone on from: %.900s", dir, why.text);
    }
    status = read_file(dir, "train_state.json", &text, &size, err);
    if (status == TROUPE_OK) {
        status = take_up(p, dir, text, size, err);
    }
    tr_free(text);
    return status;
}

troupe_status
tr_policy_save(tr_policy *p, uint64_t *digest, troupe_error *err)
{
    /* metrics.jsonl has the line of this very step; samples.jsonl counts as of its commit. */
    tr_run_offsets written = {0};
    troupe_status status = tr_run_dir_offsets(p->files, true, &written, err);
    if (status != TROUPE_OK) {
        return status;
    }
    p->offsets.metrics = written.metrics;
    size_t floats = troupe_lm_get_layout(p->lm)->floats;
    float *arrays = tr_zalloc(3 * floats, sizeof *arrays);
    tr_policy_state now = tr_policy_state_now(p, p->step);
    now.counts = p->counts_at_commit;
    now.line[0] = '\0'; /* it is in metrics.jsonl by now */
    char *state = tr_policy_state_print(p, &now);
    tr_policy_state_fini(&now);
    char dir[4400];
    snprintf(dir, sizeof dir, "%s/checkpoint-%lld", p->run, (long long)p->step);
    status =
        troupe_trainer_get_state(p->trainer, arrays, arrays + floats, arrays + 2 * floats, err);
    if (status == TROUPE_OK) {
        troupe_checkpoint_parts parts = {
            .master = arrays,
            .m = arrays + floats,
            .v = arrays + 2 * floats,
            .train_state_json = state,
            .ledger_json = p->ledger,
            .copy_from = tr_config_text(p->config, "model", NULL),
        };
        status = troupe_checkpoint_write(
            dir, &p->model, troupe_lm_get_layout(p->lm), arrays, &parts, err);
    }
    if (status == TROUPE_OK) {
        char *manifest = NULL;
        size_t size = 0;
        status = read_file(dir, "manifest.json", &manifest, &size, err);
        if (status == TROUPE_OK) {
            *digest = tr_xxh3(manifest, size, 0);
        }
        tr_free(manifest);
    }
    tr_free(arrays);
    free(state); /* from jansson */
    return status;
}
