/* See role.h. */
#include "role.h"

#include <troupe/ext/sys.h>

#include <string.h>

uint64_t
tr_now_ns(void)
{
    const troupe_sys *sys = troupe_sys_posix();
    return sys->now_ns(sys);
}

/* --- configuration --------------------------------------------------------------------------- */

troupe_status
tr_config_parse(const char *text, json_t **out, troupe_error *err)
{
    json_error_t where;
    json_t *config = json_loads(text, JSON_REJECT_DUPLICATES, &where);
    if (config == NULL || !json_is_object(config)) {
        json_decref(config);
        return troupe_fail(
            err, TROUPE_BAD_INPUT, "the role's config is not a JSON object: %s", where.text);
    }
    *out = config;
    return TROUPE_OK;
}

const char *
tr_config_text(const json_t *config, const char *key, const char *fallback)
{
    const char *text = json_string_value(json_object_get(config, key));
    return text != NULL ? text : fallback;
}

double
tr_config_real(const json_t *config, const char *key, double fallback)
{
    const json_t *value = json_object_get(config, key);
    return json_is_number(value) ? json_number_value(value) : fallback;
}

int64_t
tr_config_int(const json_t *config, const char *key, int64_t fallback)
{
    const json_t *value = json_object_get(config, key);
    return json_is_integer(value) ? (int64_t)json_integer_value(value) : fallback;
}

bool
tr_config_flag(const json_t *config, const char *key)
{
    return json_is_true(json_object_get(config, key));
}

/* --- prompts --------------------------------------------------------------------------------- */

static troupe_status
open_rows(const json_t *config, const char *key, troupe_dataset **out, troupe_error *err)
{
    const char *path = tr_config_text(config, key, NULL);
    if (path == NULL) {
        return TROUPE_OK;
    }
    troupe_dataset_options options = {
        .size = sizeof options, .skip_bad = tr_config_flag(config, "skip-bad")};
    return troupe_dataset_load(out, path, &options, err);
}

static bool
has_messages(const troupe_dataset *rows)
{
    size_t count = rows != NULL ? troupe_dataset_count(rows) : 0;
    for (size_t i = 0; i < count; i++) {
        if (troupe_dataset_row(rows, i).messages != NULL) {
            return true;
        }
    }
    return false;
}

troupe_status
tr_prompts_open(const json_t *config, tr_prompts *prompts, troupe_error *err)
{
    const char *dir = tr_config_text(config, "model", "");
    *prompts = (tr_prompts){0};
    troupe_status status = troupe_tokenizer_load(dir, &prompts->tokenizer, err);
    if (status == TROUPE_OK) {
        status = open_rows(config, "prompts", &prompts->train, err);
    }
    if (status == TROUPE_OK) {
        status = open_rows(config, "eval", &prompts->held_out, err);
    }
    bool chat =
        status == TROUPE_OK && (has_messages(prompts->train) || has_messages(prompts->held_out));
    if (chat) {
        const char *name = tr_config_text(config, "chat-template", "auto");
        status = troupe_chat_open(
            dir, strcmp(name, "auto") == 0 ? NULL : name, prompts->tokenizer, &prompts->chat, err);
    }
    if (status != TROUPE_OK) {
        tr_prompts_close(prompts);
    }
    return status;
}

void
tr_prompts_close(tr_prompts *prompts)
{
    troupe_chat_free(prompts->chat);
    troupe_tokenizer_free(prompts->tokenizer);
    troupe_dataset_free(prompts->train);
    troupe_dataset_free(prompts->held_out);
    *prompts = (tr_prompts){0};
}

uint64_t
tr_prompts_train_rows(const tr_prompts *prompts)
{
    return prompts->train != NULL ? troupe_dataset_count(prompts->train) : 0;
}

uint64_t
tr_prompts_held_out_rows(const tr_prompts *prompts)
{
    return prompts->held_out != NULL ? troupe_dataset_count(prompts->held_out) : 0;
}

troupe_status
tr_prompts_row(const tr_prompts *prompts, uint64_t row, troupe_row *out, troupe_error *err)
{
    uint64_t train = tr_prompts_train_rows(prompts);
    if (row < train) {
        *out = troupe_dataset_row(prompts->train, row);
        return TROUPE_OK;
    }
    if (row - train < tr_prompts_held_out_rows(prompts)) {
        *out = troupe_dataset_row(prompts->held_out, row - train);
        return TROUPE_OK;
    }
    return troupe_fail(
        err, TROUPE_NOT_FOUND, "row %llu is beyond the prompts", (unsigned long long)row);
}

troupe_status
tr_prompts_text(const tr_prompts *prompts, uint64_t row, tr_buf *text, troupe_error *err)
{
    troupe_row r;
    troupe_status status = tr_prompts_row(prompts, row, &r, err);
    if (status != TROUPE_OK) {
        return status;
    }
    if (r.prompt != NULL) {
        tr_buf_puts(text, r.prompt);
        return TROUPE_OK;
    }
    return troupe_chat_render_json(prompts->chat, r.messages, strlen(r.messages), true, text, err);
}

troupe_status
tr_prompts_ids(const tr_prompts *prompts, uint64_t row, troupe_ids *ids, troupe_error *err)
{
    troupe_row r;
    tr_buf text = {0};
    troupe_status status = tr_prompts_row(prompts, row, &r, err);
    if (status == TROUPE_OK) {
        status = tr_prompts_text(prompts, row, &text, err);
    }
    if (status == TROUPE_OK) {
        /* A template has put its special tokens into the text already. */
        unsigned flags = r.prompt != NULL ? TROUPE_ENCODE_ADD_SPECIAL : 0;
        status = troupe_tokenizer_encode(
            prompts->tokenizer, text.data != NULL ? text.data : "", text.size, flags, ids, err);
    }
    if (status == TROUPE_OK && ids->count == 0) {
        status = troupe_fail(err, TROUPE_BAD_INPUT,
            "the prompt of line %llu has no token that this tokenizer knows; give it a text, or "
            "--skip-bad",
            (unsigned long long)r.line);
    }
    tr_buf_fini(&text);
    return status;
}

static troupe_status
check_rows(const tr_prompts *prompts, const char *file, uint64_t first, uint64_t count, int context,
    uint64_t *longest, troupe_error *err)
{
    troupe_ids ids = {0};
    troupe_status status = TROUPE_OK;
    for (uint64_t i = 0; i < count && status == TROUPE_OK; i++) {
        troupe_error why = {0};
        troupe_row row;
        ids.count = 0;
        status = tr_prompts_row(prompts, first + i, &row, &why);
        if (status == TROUPE_OK) {
            status = tr_prompts_ids(prompts, first + i, &ids, &why);
        }
        *longest = TR_MAX(*longest, ids.count);
        if (status != TROUPE_OK) {
            status = troupe_fail(err, status, "%s: %s", file, why.text);
        } else if (ids.count >= (size_t)context) {
            status = troupe_fail(err, TROUPE_BAD_INPUT,
                "%s:%llu: the prompt has %zu tokens, the model's context %d, so no token could "
                "follow; shorten or remove it",
                file, (unsigned long long)row.line, ids.count, context);
        }
    }
    troupe_ids_fini(&ids);
    return status;
}

troupe_status
tr_prompts_check(const tr_prompts *prompts, const json_t *config, int context, uint64_t *longest,
    troupe_error *err)
{
    uint64_t train = tr_prompts_train_rows(prompts);
    troupe_status status =
        check_rows(prompts, tr_config_text(config, "prompts", ""), 0, train, context, longest, err);
    if (status == TROUPE_OK) {
        status = check_rows(prompts, tr_config_text(config, "eval", ""), train,
            tr_prompts_held_out_rows(prompts), context, longest, err);
    }
    return status;
}

/* --- samples ------------------------------------------------------------ */

static int
add_stop_id(int32_t *ids, int count, int32_t id)
{
    for (int i = 0; i < count; i++) {
        if (ids[i] == id) {
            return count;
        }
    }
    if (id < 0 || count == TROUPE_STOP_IDS_MAX) {
        return count;
    }
    ids[count] = id;
    return count + 1;
}

int
tr_stop_ids(const troupe_lm_config *config, const tr_prompts *prompts, int32_t *ids)
{
    int count = 0;
    for (int i = 0; i < config->stop_count; i++) {
        count = add_stop_id(ids, count, config->stop_ids[i]);
    }
    count = add_stop_id(ids, count, troupe_tokenizer_role(prompts->tokenizer, TROUPE_TOKEN_EOS));
    if (prompts->chat != NULL) {
        int32_t more[2];
        size_t n = troupe_chat_stop_ids(prompts->chat, more);
        for (size_t i = 0; i < n; i++) {
            count = add_stop_id(ids, count, more[i]);
        }
    }
    return count;
}

int
tr_valid_ids(const troupe_lm_config *config, const troupe_tokenizer *tokenizer)
{
    return TR_MIN(config->vocab, troupe_tokenizer_vocab(tokenizer));
}

troupe_status
tr_lm_sample_of(const troupe_sample *sample, troupe_lm_sample *out, troupe_error *err)
{
    troupe_tensor prompt, tokens, logprobs;
    if (!troupe_sample_find(sample, TR_TENSOR_PROMPT, TROUPE_TENSOR_I32, &prompt) ||
        !troupe_sample_find(sample, TR_TENSOR_TOKENS, TROUPE_TENSOR_I32, &tokens) ||
        !troupe_sample_find(sample, TR_TENSOR_LOGPROBS, TROUPE_TENSOR_F32, &logprobs)) {
        return troupe_fail(err, TROUPE_CORRUPT, "the sample lacks prompt, tokens or logprobs");
    }
    if (prompt.rank != 1 || tokens.rank != 1 || logprobs.rank != 1 ||
        tokens.shape[0] != logprobs.shape[0] ||
        (uint64_t)tokens.shape[0] != troupe_sample_units(sample) || prompt.shape[0] < 1 ||
        tokens.shape[0] < 1 || prompt.shape[0] > INT32_MAX || tokens.shape[0] > INT32_MAX) {
        return troupe_fail(
            err, TROUPE_CORRUPT, "the sample's tensors have shapes that do not fit each other");
    }
    *out = (troupe_lm_sample){
        .prompt = prompt.data,
        .tokens = tokens.data,
        .prompt_count = (int)prompt.shape[0],
        .token_count = (int)tokens.shape[0],
        .behaviour = logprobs.data,
    };
    return TROUPE_OK;
}

int
tr_kv_blocks(const json_t *config, const troupe_lm_config *model, int sequences)
{
    enum {
        BLOCK = 16
    };

    int64_t longest = tr_config_int(config, "longest-prompt", model->context);
    int64_t positions = TR_MIN(longest + tr_config_int(config, "max-new", 256), model->context);
    int64_t each =
        positions / BLOCK + 2; /* a partial block at the end, and one of the prompt's copied */
    int64_t block_bytes =
        (int64_t)BLOCK * model->layers * 2 * model->kv_heads * model->head_dim * 4;
    int64_t most = ((int64_t)1 << 30) / block_bytes;
    int64_t least = each * (tr_config_int(config, "group-size", 8) + 1);
    return (int)TR_MIN(TR_MAX(TR_MIN(each * sequences, most), least), INT32_MAX);
}
