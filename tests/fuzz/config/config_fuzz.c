/* config.json and generation_config.json on any bytes; a zero byte separates the two. A
 * configuration that is accepted must be one that can be computed with, and printing it must
 * give a file that reads back to the same. */
#include "config.h"

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_sane(const troupe_lm_config *c)
{
    TR_ASSERT(c->layers > 0 && c->layers <= TR_LAYERS_MAX);
    TR_ASSERT(c->hidden > 0 && c->mlp > 0 && c->vocab > 0 && c->context > 0);
    TR_ASSERT(c->kv_heads > 0 && c->heads % c->kv_heads == 0);
    TR_ASSERT(c->head_dim > 0 && c->head_dim % 2 == 0);
    TR_ASSERT(c->rms_eps >= 0.0f && c->bos < c->vocab);
    TR_ASSERT(c->stop_count >= 0 && c->stop_count <= TROUPE_STOP_IDS_MAX);
    for (int i = 0; i < c->stop_count; i++) {
        TR_ASSERT(c->stop_ids[i] >= 0 && c->stop_ids[i] < c->vocab);
    }
    float frequencies[TR_HEAD_DIM_MAX / 2];
    troupe_lm_inv_freq(c, frequencies);
    for (int i = 0; i < c->head_dim / 2; i++) {
        TR_ASSERT(isfinite(frequencies[i]) && frequencies[i] > 0.0f && frequencies[i] <= 1.0f);
    }
}

static void
check_round_trip(const troupe_lm_config *config)
{
    tr_buf model = {0};
    tr_buf generation = {0};
    tr_buf again = {0};
    troupe_lm_config back = {0};
    troupe_error err = {0};
    tr_lm_config_print(config, &model);
    tr_lm_generation_config_print(config, &generation);
    tr_config_texts texts = {.model_label = "printed",
        .model = model.data,
        .model_size = model.size,
        .generation_label = "printed too",
        .generation = generation.data,
        .generation_size = generation.size};
    TR_ASSERT(tr_lm_config_parse(&texts, &back, &err) == TROUPE_OK);
    tr_lm_config_print(&back, &again);
    TR_ASSERT(again.size == model.size && memcmp(again.data, model.data, model.size) == 0);
    TR_ASSERT(back.bos == config->bos && back.stop_count == config->stop_count);
    tr_buf_fini(&model);
    tr_buf_fini(&generation);
    tr_buf_fini(&again);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    const char *zero = size > 0 ? memchr(text, '\0', size) : NULL;
    size_t first = zero != NULL ? (size_t)(zero - text) : size;
    tr_config_texts texts = {.model_label = "config",
        .model = size > 0 ? text : "",
        .model_size = first,
        .generation_label = "generation",
        .generation = zero != NULL ? zero + 1 : NULL,
        .generation_size = zero != NULL ? size - first - 1 : 0};
    troupe_lm_config config = {0};
    troupe_error err = {0};
    troupe_status status = tr_lm_config_parse(&texts, &config, &err);
    if (status == TROUPE_OK) {
        check_sane(&config);
        check_round_trip(&config);
    } else {
        TR_ASSERT(status == TROUPE_BAD_INPUT || status == TROUPE_UNSUPPORTED);
        TR_ASSERT(
            strncmp(err.text, "config: ", 8) == 0 || strncmp(err.text, "generation: ", 12) == 0);
    }
    return 0;
}
