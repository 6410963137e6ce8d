/* Which file holds which parameter: the single model.safetensors, or the shards that the index
 * names. Used by params.c and by `troupe model info`. */
#ifndef TR_LM_PARAMS_SOURCE_H
#define TR_LM_PARAMS_SOURCE_H

#include <troupe/model.h>
#include <troupe/status.h>

enum {
    TR_INDEX_BYTES_MAX = 64 << 20,
    TR_SHARDS_MAX = 4096,
};

typedef struct tr_params_source {
    char **files; /* names inside the directory */
    int file_count;
    int *file_of;  /* per tensor of the layout: index into files */
    int head_file; /* of an lm_head.weight beside a tied embedding, -1 = none */
    /* A tied model that stores its one matrix as lm_head.weight only. */
    bool embedding_is_head;
} tr_params_source;

/* Where every tensor of `layout` lies in `dir`. An index wins over a single file that lies
 * beside it; files that it does not name are not looked at. Errors: no weights at all
 * (NOT_FOUND), a malformed index, a parameter that no file holds, tensors that the model does
 * not have (up to five of each are named). The shards themselves are not opened. */
troupe_status tr_params_source_init(tr_params_source *source, const char *dir,
    const troupe_lm_config *config, const troupe_lm_layout *layout,
    troupe_error *err) TROUPE_MUST_USE;
void tr_params_source_fini(tr_params_source *source);

/* The index alone, from text: for the fuzz target. */
troupe_status tr_params_source_parse(tr_params_source *source, const char *label, const char *text,
    size_t size, const troupe_lm_config *config, const troupe_lm_layout *layout,
    troupe_error *err) TROUPE_MUST_USE;

/* When DIR holds weight files that are too small for the configuration, what
 * troupe_lm_params_check says; otherwise, and without any weights, OK. So no configuration that
 * was read makes its reader allocate more than its weights justify. */
troupe_status tr_params_bound(
    const char *dir, const troupe_lm_config *config, troupe_error *err) TROUPE_MUST_USE;

/* The name under which tensor `index` of the layout is stored. */
const char *tr_params_source_name(
    const tr_params_source *source, const troupe_lm_layout *layout, int index);

#endif
