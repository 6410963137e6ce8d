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

static char *
state_json(tr_policy *p)
{
    const tr_policy_counts *c = &p->counts_at_commit;
    troupe_trainer_progress progress;
    troupe_trainer_get_progress(p->trainer, &progress);
    char text[1024];
    troupe_trainer_progress_print(&progress, text, sizeof text);
    json_t *trainer = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    json_t *state = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:o}",
        "step", (json_int_t)p->step, "version", (json_int_t)p->version, "epoch",
        (json_int_t)p->epoch, "seed", (json_int_t)tr_config_int(p->config, "seed", 1),
        "metrics_bytes", (json_int_t)p->offsets.metrics, "samples_bytes",
        (json_int_t)p->offsets.samples, "sampled_units", (json_int_t)c->sampled_units,
        "trained_units", (json_int_t)c->trained_units, "wasted_tokens", (json_int_t)c->wasted_units,
        "trained_samples", (json_int_t)c->trained_samples, "wall_s",
        p->wall_before + (double)(tr_now_ns() - p->begun_ns) / 1e9, "trainer", trainer);
    json_object_set_new(state, "sampled_samples", json_integer((json_int_t)c->sampled_samples));
    char *out = json_dumps(state, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    json_decref(state);
    return out;
}

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
apply_state(tr_policy *p, const char *dir, const json_t *state, troupe_error *err)
{
    static const char *const needed[] = {"step", "metrics_bytes", "samples_bytes"};
    for (size_t i = 0; i < TR_COUNT(needed); i++) {
        if (!json_is_integer(json_object_get(state, needed[i]))) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "%s/train_state.json: \"%s\" is missing; resume from another "
                "checkpoint",
                dir, needed[i]);
        }
    }
    char *progress_text =
        json_dumps(json_object_get(state, "trainer"), JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (progress_text == NULL) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%s/train_state.json: \"trainer\" is missing; resume from another "
            "checkpoint",
            dir);
    }
    troupe_trainer_progress progress;
    troupe_status status = troupe_trainer_progress_parse(progress_text, &progress, err);
    free(progress_text); /* from jansson */
    size_t floats = troupe_lm_get_layout(p->lm)->floats;
    float *state_arrays = tr_zalloc(3 * floats, sizeof *state_arrays);
    float *m = state_arrays + floats, *v = m + floats;
    if (status == TROUPE_OK) {
        status = troupe_checkpoint_read_optimizer(
            dir, &p->model, troupe_lm_get_layout(p->lm), state_arrays, m, v, err);
    }
    if (status == TROUPE_OK) {
        status = troupe_trainer_set_state(p->trainer, state_arrays, m, v, &progress, err);
    }
    tr_free(state_arrays);
    p->step = tr_config_int(state, "step", 0);
    p->checkpointed = p->step;
    p->offsets = (tr_run_offsets){
        tr_config_int(state, "metrics_bytes", 0), tr_config_int(state, "samples_bytes", 0)};
    p->counts.sampled_units = (uint64_t)tr_config_int(state, "sampled_units", 0);
    p->counts.trained_units = (uint64_t)tr_config_int(state, "trained_units", 0);
    p->counts.wasted_units = (uint64_t)tr_config_int(state, "wasted_tokens", 0);
    p->counts.trained_samples = (uint64_t)tr_config_int(state, "trained_samples", 0);
    p->counts.sampled_samples = (uint64_t)tr_config_int(state, "sampled_samples", 0);
    p->wall_before = tr_config_real(state, "wall_s", 0);
    return status;
}

troupe_status
tr_policy_restore(tr_policy *p, const char *dir, troupe_error *err)
{
    char *text = NULL;
    size_t size = 0;
    troupe_status status = read_file(dir, "train_state.json", &text, &size, err);
    if (status != TROUPE_OK) {
        return status;
    }
    json_error_t where;
    json_t *state = json_loadb(text, size, JSON_REJECT_DUPLICATES, &where);
    if (state == NULL) {
        status = troupe_fail(err, TROUPE_BAD_INPUT,
            "%s/train_state.json line %d: %s; resume from another checkpoint", dir, where.line,
            where.text);
    } else {
        status = apply_state(p, dir, state, err);
    }
    json_decref(state);
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
    char *state = state_json(p);
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
