/* The map from parameters to files. The index decides alone: nothing is found by looking which
 * *.safetensors lie about, so a stray or half-downloaded file changes nothing, a shard may hold
 * tensors that belong to nobody, and a missing one is named before a byte is read. */
#include "params_source.h"

#include "file.h"
#include "json.h"
#include "safetensors.h"

#include <troupe/ext/base.h>

#include <stdlib.h>
#include <string.h>

static const char head_name[] = "lm_head.weight";
static const char embedding_name[] = "model.embed_tokens.weight";
static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

enum {
    SHOWN = 5 /* names that a message lists */
};

/* Names seen so far while the map is built. */
typedef struct mapper {
    tr_params_source *source;
    const troupe_lm_config *config;
    const troupe_lm_layout *layout;
    const char *label; /* the file that names tensors, for messages */
    const troupe_lm_tensor **by_name;
    size_t unexpected;
    tr_buf unexpected_names;
    troupe_error *err;
} mapper;

static int
compare_names(const void *a, const void *b)
{
    const troupe_lm_tensor *const *x = a;
    const troupe_lm_tensor *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static void
mapper_init(mapper *m)
{
    int count = m->layout->count;
    m->by_name = tr_zalloc((size_t)count, sizeof(void *));
    m->source->file_of = tr_zalloc((size_t)count, sizeof *m->source->file_of);
    m->source->head_file = -1;
    for (int i = 0; i < count; i++) {
        m->by_name[i] = &m->layout->tensors[i];
        m->source->file_of[i] = -1;
    }
    qsort(m->by_name, (size_t)count, sizeof(void *), compare_names);
}

static void
mapper_fini(mapper *m)
{
    tr_free(m->by_name);
    tr_buf_fini(&m->unexpected_names);
}

static int
mapper_find(const mapper *m, const char *name)
{
    size_t low = 0;
    size_t high = (size_t)m->layout->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, m->by_name[middle]->name);
        if (order == 0) {
            return (int)(m->by_name[middle] - m->layout->tensors);
        }
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return -1;
}

/* Old exports carry the rotary frequencies, which follow from the configuration. */
static bool
is_tolerated(const char *name)
{
    static const char tail[] = "rotary_emb.inv_freq";
    size_t size = strlen(name);
    return size >= sizeof tail - 1 && strcmp(name + size - (sizeof tail - 1), tail) == 0;
}

static void
list_name(tr_buf *names, size_t index, const char *name)
{
    char shown[TR_PRINTABLE_MAX];
    if (index < SHOWN) {
        tr_buf_printf(names, "%s%s", index > 0 ? ", " : "", tr_printable(shown, name));
    } else if (index == SHOWN) {
        tr_buf_puts(names, ", ...");
    }
}

static void
map_tensor(mapper *m, const char *name, int file)
{
    int index = mapper_find(m, name);
    if (index >= 0) {
        m->source->file_of[index] = file;
    } else if (strcmp(name, head_name) == 0) { /* only the layout of a tied model has none */
        m->source->head_file = file;
    } else if (!is_tolerated(name)) {
        list_name(&m->unexpected_names, m->unexpected, name);
        m->unexpected++;
    }
}

static troupe_status
fail_missing(mapper *m, size_t count, const char *names)
{
    const char *remedy = "config.json and the weights are of different models, or a part of the "
                         "weights is missing: fetch or export the model again";
    if (count == 1 && strcmp(names, head_name) == 0) {
        remedy = "config.json says tie_word_embeddings false: set it to true if the head is the "
                 "embedding, otherwise fetch or export the model again";
    }
    return troupe_fail(m->err, TROUPE_BAD_INPUT,
        "%s: %zu parameters of the model are not there: "
        "%s; %s",
        m->label, count, names, remedy);
}

/* Every parameter has a file, and nothing is there that the model does not have. */
static troupe_status
check_complete(mapper *m)
{
    tr_params_source *source = m->source;
    int embedding = troupe_lm_layout_find(m->layout, embedding_name);
    if (source->file_of[embedding] < 0 && source->head_file >= 0) {
        source->embedding_is_head = true;
        source->file_of[embedding] = source->head_file;
        source->head_file = -1;
    }
    size_t missing = 0;
    tr_buf names = {0};
    for (int i = 0; i < m->layout->count; i++) {
        if (source->file_of[i] < 0) {
            list_name(&names, missing, m->layout->tensors[i].name);
            missing++;
        }
    }
    troupe_status status = TROUPE_OK;
    if (missing > 0) {
        status = fail_missing(m, missing, names.data);
    } else if (m->unexpected > 0) {
        status = troupe_fail(m->err, TROUPE_BAD_INPUT,
            "%s: %zu tensors that a %d-layer model of config.json does not have: %s; config.json "
            "and the weights are of different models: fetch or export them together",
            m->label, m->unexpected, m->config->layers, m->unexpected_names.data);
    }
    tr_buf_fini(&names);
    return status;
}

static int
add_file(tr_params_source *source, const char *name)
{
    source->files =
        tr_realloc(source->files, (size_t)source->file_count + 1, sizeof *source->files);
    source->files[source->file_count] = tr_strdup(name);
    return source->file_count++;
}

/* --- one file --- */

static troupe_status
map_single(mapper *m, const char *path)
{
    tr_st_file *file = NULL;
    troupe_status status = tr_st_open(path, &file, m->err);
    if (status != TROUPE_OK) {
        return status;
    }
    int index = add_file(m->source, single_name);
    for (size_t i = 0; i < tr_st_count(file); i++) {
        map_tensor(m, tr_st_at(file, i)->name, index);
    }
    tr_st_close(file);
    return check_complete(m);
}

/* --- shards --- */

static bool
is_shard_name(const char *name)
{
    static const char tail[] = ".safetensors";
    size_t size = strlen(name);
    return size >= sizeof tail && size <= 255 && name[0] != '.' && strchr(name, '/') == NULL &&
           strchr(name, '\\') == NULL && strstr(name, "..") == NULL &&
           strcmp(name + size - (sizeof tail - 1), tail) == 0;
}

/* The number of a shard, added when new; -1 when there are too many. Shards come in runs, so the
 * one found last is looked at first. */
static int
find_shard(tr_params_source *source, const char *name, int last)
{
    if (last >= 0 && strcmp(source->files[last], name) == 0) {
        return last;
    }
    for (int i = 0; i < source->file_count; i++) {
        if (strcmp(source->files[i], name) == 0) {
            return i;
        }
    }
    return source->file_count < TR_SHARDS_MAX ? add_file(source, name) : -1;
}

static troupe_status
map_index(mapper *m, const json_t *root)
{
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map)) {
        return troupe_fail(m->err, TROUPE_BAD_INPUT,
            "%s: weight_map: missing or not an object; fetch or export the index again", m->label);
    }
    const char *name = NULL;
    json_t *value = NULL;
    int last = -1;
    json_object_foreach(map, name, value)
    {
        char shown[TR_PRINTABLE_MAX];
        const char *shard = json_string_value(value);
        if (shard == NULL || !is_shard_name(shard)) {
            char shard_shown[TR_PRINTABLE_MAX];
            return troupe_fail(m->err, TROUPE_BAD_INPUT,
                "%s: weight_map: '%s': '%s' is not the name of a safetensors file beside the "
                "index; correct it",
                m->label, tr_printable(shown, name),
                tr_printable(shard_shown, shard != NULL ? shard : "(no string)"));
        }
        last = find_shard(m->source, shard, last);
        if (last < 0) {
            return troupe_fail(m->err, TROUPE_BAD_INPUT,
                "%s: weight_map: more than %d shards; export the model with larger ones", m->label,
                TR_SHARDS_MAX);
        }
        map_tensor(m, name, last);
    }
    return check_complete(m);
}

troupe_status
tr_params_source_parse(tr_params_source *source, const char *label, const char *text, size_t size,
    const troupe_lm_config *config, const troupe_lm_layout *layout, troupe_error *err)
{
    *source = (tr_params_source){0};
    mapper m = {.source = source, .config = config, .layout = layout, .label = label, .err = err};
    json_t *root = NULL;
    troupe_status status = tr_json_parse(label, text, size, &root, err);
    if (status != TROUPE_OK) {
        return status;
    }
    mapper_init(&m);
    status = map_index(&m, root);
    mapper_fini(&m);
    json_decref(root);
    if (status != TROUPE_OK) {
        tr_params_source_fini(source);
    }
    return status;
}

static troupe_status
init_sharded(tr_params_source *source, const char *path, const troupe_lm_config *config,
    const troupe_lm_layout *layout, troupe_error *err)
{
    tr_buf text = {0};
    troupe_status status = tr_file_read_all(path, TR_INDEX_BYTES_MAX, &text, err);
    if (status == TROUPE_OK) {
        status = tr_params_source_parse(source, path, text.data, text.size, config, layout, err);
    }
    tr_buf_fini(&text);
    return status;
}

troupe_status
tr_params_source_init(tr_params_source *source, const char *dir, const troupe_lm_config *config,
    const troupe_lm_layout *layout, troupe_error *err)
{
    char index_path[PATH_MAX];
    char single_path[PATH_MAX];
    *source = (tr_params_source){0};
    troupe_status status = tr_path_join(index_path, dir, index_name, err);
    if (status == TROUPE_OK) {
        status = tr_path_join(single_path, dir, single_name, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    if (tr_file_exists(index_path)) {
        return init_sharded(source, index_path, config, layout, err);
    }
    if (!tr_file_exists(single_path)) {
        return troupe_fail(err, TROUPE_NOT_FOUND,
            "%s: no %s and no %s; name a Hugging Face model directory, and export one that has "
            "only pytorch_model.bin with save_pretrained",
            dir, single_name, index_name);
    }
    mapper m = {
        .source = source, .config = config, .layout = layout, .label = single_path, .err = err};
    mapper_init(&m);
    status = map_single(&m, single_path);
    mapper_fini(&m);
    if (status != TROUPE_OK) {
        tr_params_source_fini(source);
    }
    return status;
}

void
tr_params_source_fini(tr_params_source *source)
{
    for (int i = 0; i < source->file_count; i++) {
        tr_free(source->files[i]);
    }
    tr_free(source->files);
    tr_free(source->file_of);
    *source = (tr_params_source){0};
}

const char *
tr_params_source_name(const tr_params_source *source, const troupe_lm_layout *layout, int index)
{
    const char *name = layout->tensors[index].name;
    bool alias = source->embedding_is_head && strcmp(name, embedding_name) == 0;
    return alias ? head_name : name;
}
