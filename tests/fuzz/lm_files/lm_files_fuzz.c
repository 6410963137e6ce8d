/* The two other JSON files of a model directory, on any bytes: after an 'i' the index of shards,
 * after anything else the manifest. What is accepted must name plain files of the directory
 * only. */
#include "manifest.h"
#include "params_source.h"

#include <troupe/ext/base.h>

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* One layer, tied: eleven tensors that an index must map. */
static void
fuzz_index(const char *text, size_t size)
{
    static const troupe_lm_config config = {.family = TROUPE_LLAMA,
        .layers = 1,
        .hidden = 2,
        .mlp = 2,
        .heads = 1,
        .kv_heads = 1,
        .head_dim = 2,
        .vocab = 3,
        .context = 4,
        .tied = true};
    troupe_lm_layout layout;
    tr_params_source source;
    troupe_error err = {0};
    troupe_lm_layout_init(&layout, &config);
    troupe_status status =
        tr_params_source_parse(&source, "index", text, size, &config, &layout, &err);
    if (status == TROUPE_OK) {
        for (int i = 0; i < layout.count; i++) {
            TR_ASSERT(source.file_of[i] >= 0 && source.file_of[i] < source.file_count);
        }
        for (int i = 0; i < source.file_count; i++) {
            TR_ASSERT(strchr(source.files[i], '/') == NULL && source.files[i][0] != '.');
        }
        tr_params_source_fini(&source);
    } else {
        TR_ASSERT(status == TROUPE_BAD_INPUT && strncmp(err.text, "index: ", 7) == 0);
    }
    troupe_lm_layout_fini(&layout);
}

static void
fuzz_manifest(const char *text, size_t size)
{
    tr_manifest manifest;
    tr_manifest back;
    troupe_error err = {0};
    troupe_status status = tr_manifest_parse(&manifest, "manifest", text, size, &err);
    if (status != TROUPE_OK) {
        TR_ASSERT(status == TROUPE_CORRUPT && err.status == TROUPE_CORRUPT);
        return;
    }
    tr_buf printed = {0};
    tr_manifest_print(&manifest, &printed);
    TR_ASSERT(tr_manifest_parse(&back, "printed", printed.data, printed.size, &err) == TROUPE_OK);
    TR_ASSERT(back.count == manifest.count);
    for (int i = 0; i < back.count; i++) {
        TR_ASSERT(strcmp(back.files[i].name, manifest.files[i].name) == 0);
        TR_ASSERT(strchr(back.files[i].name, '/') == NULL && back.files[i].name[0] != '.');
        TR_ASSERT(back.files[i].size == manifest.files[i].size);
        TR_ASSERT(back.files[i].hash == manifest.files[i].hash);
    }
    tr_buf_fini(&printed);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    if (data[0] == 'i') {
        fuzz_index((const char *)data + 1, size - 1);
    } else {
        fuzz_manifest((const char *)data + 1, size - 1);
    }
    return 0;
}
