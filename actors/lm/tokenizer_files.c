/* A tokenizer from disk: tokenizer.json, and from the configuration beside it which tokens begin,
 * end and pad a text. */
#include "file.h"
#include "json.h"
#include "tokenizer_load.h"

#include <string.h>
#include <sys/stat.h>

#define CONFIG_SIZE_MAX ((size_t)16 << 20)

/* Sets *out to the id of config[key], a token's text or an object with its "content", if it is
 * there. */
static troupe_status
read_role(
    const struct tr_load *load, const json_t *config, const char *key, bool required, int32_t *out)
{
    const json_t *value = json_object_get(config, key);
    if (json_is_object(value)) {
        value = json_object_get(value, "content");
    }
    if (value == NULL || json_is_null(value)) {
        return TROUPE_OK;
    }
    if (!json_is_string(value)) {
        return tr_load_fail(
            load, TROUPE_BAD_INPUT, key, "is neither a token nor an object with its \"content\"");
    }
    const char *text = json_string_value(value);
    int32_t id = troupe_tokenizer_id(load->tokenizer, text, json_string_length(value));
    if (id < 0 && required) {
        char quoted[TR_QUOTED_MAX];
        return tr_load_fail(load, TROUPE_BAD_INPUT, key,
            "is %s, which tokenizer.json does not have; the two files are not of one model",
            tr_load_quote(quoted, text, json_string_length(value)));
    }
    *out = id >= 0 ? id : *out;
    return TROUPE_OK;
}

static troupe_status
read_roles(const struct tr_load *load, const json_t *config)
{
    static const struct {
        const char *key;
        troupe_token_role role;
        bool required; /* a wrong begin or end ruins a run; the others are not used in generation */
    } roles[] = {{"bos_token", TROUPE_TOKEN_BOS, true}, {"eos_token", TROUPE_TOKEN_EOS, true},
        {"pad_token", TROUPE_TOKEN_PAD, false}, {"unk_token", TROUPE_TOKEN_UNK, false}};

    troupe_status status = TROUPE_OK;
    for (size_t i = 0; i < TR_COUNT(roles) && status == TROUPE_OK; i++) {
        status = read_role(
            load, config, roles[i].key, roles[i].required, &load->tokenizer->roles[roles[i].role]);
    }
    return status;
}

static troupe_status
read_config(const char *path, troupe_tokenizer *tokenizer, troupe_error *err)
{
    json_t *config = NULL;
    troupe_status status = tr_json_load(path, CONFIG_SIZE_MAX, &config, err);
    if (status == TROUPE_OK) {
        struct tr_load load = {.name = path, .tokenizer = tokenizer, .err = err};
        status = read_roles(&load, config);
    }
    json_decref(config);
    return status;
}

/* Reads the roles from the first of the two files that is there. `directory` ends with a slash or
 * is empty. */
static troupe_status
find_roles(const char *directory, troupe_tokenizer *tokenizer, troupe_error *err)
{
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json"};
    troupe_status status = TROUPE_OK;
    bool found = false;
    for (size_t i = 0; i < TR_COUNT(names) && !found; i++) {
        tr_buf path = {0};
        tr_buf_printf(&path, "%s%s", directory, names[i]);
        found = tr_file_exists(path.data);
        status = found ? read_config(path.data, tokenizer, err) : TROUPE_OK;
        tr_buf_fini(&path);
    }
    return status;
}

/* Loads `file`; *tokenizer is set on success. */
static troupe_status
load_file(const char *file, bool in_directory, troupe_tokenizer **tokenizer, troupe_error *err)
{
    tr_buf json = {0};
    troupe_status status = tr_file_read_all(file, TR_TOKENIZER_JSON_MAX, &json, err);
    if (status == TROUPE_NOT_FOUND && in_directory) {
        status = troupe_fail(err, TROUPE_NOT_FOUND,
            "%.400s: there is none; a tokenizer of another format (tokenizer.model, vocab.json) "
            "has "
            "to be saved as tokenizer.json by the transformers library first",
            file);
    }
    if (status == TROUPE_OK) {
        status = troupe_tokenizer_parse(file, json.data, json.size, tokenizer, err);
    }
    tr_buf_fini(&json);
    return status;
}

troupe_status
troupe_tokenizer_load(const char *path, troupe_tokenizer **out, troupe_error *err)
{
    struct stat info;
    bool is_directory = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    tr_buf directory = {0}, file = {0};
    tr_buf_puts(&file, path);
    tr_buf_puts(&directory, "");
    if (is_directory) {
        tr_buf_puts(&file, "/tokenizer.json");
        tr_buf_printf(&directory, "%s/", path);
    } else if (strrchr(path, '/') != NULL) {
        tr_buf_append(&directory, path, (size_t)(strrchr(path, '/') - path) + 1);
    }
    troupe_tokenizer *tokenizer = NULL;
    troupe_status status = load_file(file.data, is_directory, &tokenizer, err);
    if (status == TROUPE_OK) {
        status = find_roles(directory.data, tokenizer, err);
    }
    tr_buf_fini(&file);
    tr_buf_fini(&directory);
    if (status != TROUPE_OK) {
        troupe_tokenizer_free(tokenizer);
        return status;
    }
    *out = tokenizer;
    return TROUPE_OK;
}
