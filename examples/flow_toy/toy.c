/* See toy.h. */
#include "toy.h"

#include <troupe/ext/base.h>

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* --- files ------------------------------------------------------------------------------------ */

troupe_status
toy_sync_dir(const char *dir, troupe_error *err)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && fsync(fd) == 0;
    int code = errno;
    if (fd >= 0) {
        (void)close(fd);
    }
    return ok ? TROUPE_OK
              : troupe_fail(err, TROUPE_IO, "%s: cannot be synced: %s", dir, strerror(code));
}

troupe_status
toy_write_file(const char *dir, const char *name, const char *bytes, size_t size, troupe_error *err)
{
    char path[4400];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wbe");
    bool ok = file != NULL && fwrite(bytes, 1, size, file) == size && fflush(file) == 0 &&
              fsync(fileno(file)) == 0;
    int code = errno;
    if (file != NULL && fclose(file) != 0 && ok) {
        ok = false;
        code = errno;
    }
    if (!ok) {
        return troupe_fail(
            err, TROUPE_IO, "%s: cannot be written: %s; make room", path, strerror(code));
    }
    return toy_sync_dir(dir, err);
}

/* --- configuration ---------------------------------------------------------------------------- */

json_t *
toy_config_json(const toy_config *c)
{
    return json_pack("{s:I, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:s}", "seed", (json_int_t)c->seed,
        "steps", c->steps, "groups", c->groups, "group-size", c->group_size, "checkpoint-every",
        c->checkpoint_every, "max-lag", c->max_lag, "mean-lag", c->mean_lag, "lr", c->lr, "out",
        c->out);
}

troupe_status
toy_config_parse(const char *text, toy_config *c, troupe_error *err)
{
    json_error_t where;
    json_int_t seed = 0;
    const char *out = "";
    json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &where);
    bool ok =
        object != NULL &&
        json_unpack_ex(object, &where, JSON_STRICT, "{s:I, s:i, s:i, s:i, s:i, s:i, s:F, s:F, s:s}",
            "seed", &seed, "steps", &c->steps, "groups", &c->groups, "group-size", &c->group_size,
            "checkpoint-every", &c->checkpoint_every, "max-lag", &c->max_lag, "mean-lag",
            &c->mean_lag, "lr", &c->lr, "out", &out) == 0;
    c->seed = (uint64_t)seed;
    (void)snprintf(c->out, sizeof c->out, "%s", out);
    json_decref(object);
    return ok ? TROUPE_OK : troupe_fail(err, TROUPE_BAD_INPUT, "the role's config: %s", where.text);
}

/* --- samples ---------------------------------------------------------------------------------- */

troupe_status
toy_sample_seal(troupe_store *store, const toy_sample *s, const troupe_span *spans,
    size_t span_count, troupe_object *object, uint64_t *digest, troupe_error *err)
{
    const int32_t window[2] = {s->window, FLOW_WINDOW};
    const troupe_named_tensor tensors[] = {
        {"x", {TROUPE_TENSOR_F32, 2, {FLOW_STEPS + 1, FLOW_DIM}, s->x}},
        {"logprobs", {TROUPE_TENSOR_F32, 1, {FLOW_STEPS}, s->logprobs}},
        {"condition", {TROUPE_TENSOR_F32, 1, {FLOW_DIM}, s->condition}},
        {"sigmas", {TROUPE_TENSOR_F32, 1, {FLOW_STEPS + 1}, s->sigmas}},
        {"window", {TROUPE_TENSOR_I32, 1, {2}, window}},
    };
    troupe_sample_spec spec = {.tensors = tensors,
        .tensor_count = TR_COUNT(tensors),
        .units = FLOW_STEPS,
        .spans = spans,
        .span_count = span_count,
        .finish = "denoised"};
    return troupe_sample_seal(store, &spec, object, digest, err);
}

/* The data of a tensor of this type and shape (columns 0: a vector), or NULL. */
static const void *
find(const troupe_sample *sample, const char *name, troupe_tensor_type type, int64_t rows,
    int64_t columns)
{
    troupe_tensor t;
    bool fits = troupe_sample_find(sample, name, type, &t) && t.rank == (columns == 0 ? 1 : 2) &&
                t.shape[0] == rows && (columns == 0 || t.shape[1] == columns);
    return fits ? t.data : NULL;
}

static bool
is_schedule(const float *sigmas)
{
    bool falls = sigmas[0] <= 1 && sigmas[FLOW_STEPS] >= 0;
    for (int i = 0; i < FLOW_STEPS; i++) {
        falls = falls && sigmas[i + 1] < sigmas[i];
    }
    return falls;
}

troupe_status
toy_sample_of(const troupe_sample *sample, toy_sample *out, troupe_error *err)
{
    const int32_t *window = find(sample, "window", TROUPE_TENSOR_I32, 2, 0);
    *out = (toy_sample){
        .x = find(sample, "x", TROUPE_TENSOR_F32, FLOW_STEPS + 1, FLOW_DIM),
        .logprobs = find(sample, "logprobs", TROUPE_TENSOR_F32, FLOW_STEPS, 0),
        .condition = find(sample, "condition", TROUPE_TENSOR_F32, FLOW_DIM, 0),
        .sigmas = find(sample, "sigmas", TROUPE_TENSOR_F32, FLOW_STEPS + 1, 0),
        .window = window != NULL ? window[0] : -1,
    };
    bool ok = out->x != NULL && out->logprobs != NULL && out->condition != NULL &&
              out->sigmas != NULL && troupe_sample_units(sample) == FLOW_STEPS;
    if (!ok || window == NULL || window[0] < 0 || window[0] >= FLOW_STARTS ||
        window[1] != FLOW_WINDOW || !is_schedule(out->sigmas)) {
        return troupe_fail(err, TROUPE_CORRUPT, "the sample is no path of this flow");
    }
    return TROUPE_OK;
}

flow_step
toy_step(const toy_sample *sample, int i)
{
    bool stochastic = i >= sample->window && i < sample->window + FLOW_WINDOW;
    return flow_step_at(sample->sigmas, i, stochastic);
}

void
toy_centre(const float *m, const float *condition, float centre[FLOW_DIM])
{
    for (int j = 0; j < FLOW_DIM; j++) {
        centre[j] = m[j] + condition[j];
    }
}
