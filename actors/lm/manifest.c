/* The manifest of a checkpoint, both ways, and the comparison with what lies on the disk. */
#include "manifest.h"

#include "file.h"
#include "json.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char remedy[] =
    "the checkpoint is damaged: use an older one, or copy it again from where it was made";

void
tr_manifest_add(tr_manifest *manifest, const char *name, uint64_t size, uint64_t hash)
{
    TR_ASSERT(manifest->count < TR_MANIFEST_FILES_MAX);
    int length = snprintf(manifest->files[manifest->count].name, TR_MANIFEST_NAME_MAX, "%s", name);
    TR_ASSERT(length > 0 && length < TR_MANIFEST_NAME_MAX);
    manifest->files[manifest->count].size = size;
    manifest->files[manifest->count].hash = hash;
    manifest->count++;
}

void
tr_manifest_print(const tr_manifest *manifest, tr_buf *json)
{
    tr_buf_puts(json, "{\n  \"format\": 1,\n  \"hash\": \"xxh3-64\",\n  \"files\": {\n");
    for (int i = 0; i < manifest->count; i++) {
        tr_buf_printf(json, "    \"%s\": {\"size\": %llu, \"xxh3\": \"%016llx\"}%s\n",
            manifest->files[i].name, (unsigned long long)manifest->files[i].size,
            (unsigned long long)manifest->files[i].hash, i + 1 < manifest->count ? "," : "");
    }
    tr_buf_puts(json, "  }\n}\n");
}

static bool
parse_hex(const char *text, uint64_t *value)
{
    *value = 0;
    for (int i = 0; i < 16; i++) {
        char c = text[i];
        uint64_t digit = 0;
        if (c >= '0' && c <= '9') {
            digit = (unsigned char)c - (uint64_t)'0';
        } else if (c >= 'a' && c <= 'f') {
            digit = (unsigned char)c - (uint64_t)'a' + 10;
        } else {
            return false;
        }
        *value = *value << 4 | digit;
    }
    return text[16] == '\0';
}

/* A plain name inside the folder, of characters that need no care anywhere. */
static bool
is_name(const char *name)
{
    size_t size = strlen(name);
    return size > 0 && size < TR_MANIFEST_NAME_MAX && name[0] != '.' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
               size;
}

static troupe_status
parse_files(tr_manifest *manifest, const char *label, json_t *files, troupe_error *err)
{
    const char *name = NULL;
    json_t *value = NULL;
    json_object_foreach(files, name, value)
    {
        char shown[TR_PRINTABLE_MAX];
        const json_t *size = json_object_get(value, "size");
        const char *hex = json_string_value(json_object_get(value, "xxh3"));
        uint64_t hash = 0;
        if (!is_name(name) || !json_is_integer(size) || json_integer_value(size) < 0 ||
            hex == NULL || !parse_hex(hex, &hash)) {
            return troupe_fail(err, TROUPE_CORRUPT,
                "%s: files: '%s': not a plain name with size and xxh3; %s", label,
                tr_printable(shown, name), remedy);
        }
        if (manifest->count == TR_MANIFEST_FILES_MAX) {
            return troupe_fail(err, TROUPE_CORRUPT, "%s: files: more than %d; %s", label,
                TR_MANIFEST_FILES_MAX, remedy);
        }
        tr_manifest_add(manifest, name, (uint64_t)json_integer_value(size), hash);
    }
    return TROUPE_OK;
}

troupe_status
tr_manifest_parse(
    tr_manifest *manifest, const char *label, const char *text, size_t size, troupe_error *err)
{
    json_t *root = NULL;
    if (tr_json_parse(label, text, size, &root, err) != TROUPE_OK) {
        if (err != NULL) {
            err->status = TROUPE_CORRUPT;
        }
        return TROUPE_CORRUPT;
    }
    *manifest = (tr_manifest){0};
    troupe_status status = TROUPE_OK;
    const json_t *format = json_object_get(root, "format");
    const char *hash = json_string_value(json_object_get(root, "hash"));
    json_t *files = json_object_get(root, "files");
    if (!json_is_integer(format) || json_integer_value(format) != 1 || hash == NULL ||
        strcmp(hash, "xxh3-64") != 0 || !json_is_object(files)) {
        status = troupe_fail(err, TROUPE_CORRUPT,
            "%s: not a manifest of format 1 with xxh3-64 hashes; written by another version, or %s",
            label, remedy);
    } else {
        status = parse_files(manifest, label, files, err);
    }
    json_decref(root);
    return status;
}

troupe_status
tr_manifest_read(tr_manifest *manifest, const char *dir, uint64_t *digest, troupe_error *err)
{
    char path[PATH_MAX];
    tr_buf text = {0};
    troupe_status status = tr_path_join(path, dir, "manifest.json", err);
    if (status == TROUPE_OK) {
        status = tr_file_read_all(path, TR_MANIFEST_BYTES_MAX, &text, err);
    }
    if (status == TROUPE_NOT_FOUND) {
        status = troupe_fail(err, TROUPE_NOT_FOUND,
            "%s: not there, so this is no complete checkpoint; name a checkpoint-N directory",
            path);
    }
    if (status == TROUPE_OK) {
        status = tr_manifest_parse(manifest, path, text.data, text.size, err);
    }
    if (status == TROUPE_OK && digest != NULL) {
        *digest = tr_xxh3(text.data, text.size, 0);
    }
    tr_buf_fini(&text);
    return status;
}

static troupe_status
check_size(const tr_manifest *manifest, int index, const char *path, troupe_error *err)
{
    int fd = -1;
    uint64_t size = 0;
    troupe_status status = tr_file_open(path, &fd, &size, err);
    if (status == TROUPE_NOT_FOUND || status == TROUPE_BAD_INPUT) {
        return troupe_fail(err, TROUPE_CORRUPT,
            "%s: manifest.json lists this file, and it is not there; %s", path, remedy);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    close(fd);
    uint64_t expected = manifest->files[index].size;
    if (size != expected) {
        return troupe_fail(err, TROUPE_CORRUPT, "%s: %llu bytes, manifest.json says %llu; %s", path,
            (unsigned long long)size, (unsigned long long)expected, remedy);
    }
    return TROUPE_OK;
}

troupe_status
tr_manifest_check_sizes(const tr_manifest *manifest, const char *dir, troupe_error *err)
{
    troupe_status status = TROUPE_OK;
    for (int i = 0; i < manifest->count && status == TROUPE_OK; i++) {
        char path[PATH_MAX];
        status = tr_path_join(path, dir, manifest->files[i].name, err);
        if (status == TROUPE_OK) {
            status = check_size(manifest, i, path, err);
        }
    }
    return status;
}

troupe_status
tr_manifest_check_hashes(const tr_manifest *manifest, const char *dir, troupe_error *err)
{
    troupe_status status = TROUPE_OK;
    for (int i = 0; i < manifest->count && status == TROUPE_OK; i++) {
        char path[PATH_MAX];
        uint64_t size = 0;
        uint64_t hash = 0;
        status = tr_path_join(path, dir, manifest->files[i].name, err);
        if (status == TROUPE_OK) {
            status = tr_file_hash(path, &size, &hash, err);
        }
        if (status == TROUPE_OK && hash != manifest->files[i].hash) {
            status = troupe_fail(err, TROUPE_CORRUPT,
                "%s: XXH3 %016llx, manifest.json says %016llx: its bytes changed; %s", path,
                (unsigned long long)hash, (unsigned long long)manifest->files[i].hash, remedy);
        }
    }
    return status;
}
