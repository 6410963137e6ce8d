/* manifest.json: the names, sizes and hashes of all files of a checkpoint. It is written last,
 * so a directory that has one was complete when it was renamed into place.
 *
 *   {"format": 1, "hash": "xxh3-64",
 *    "files": {"config.json": {"size": 812, "xxh3": "16 hex digits"}, ...}} */
#ifndef TR_LM_MANIFEST_H
#define TR_LM_MANIFEST_H

#include <troupe/ext/base.h>
#include <troupe/status.h>

#include <stddef.h>
#include <stdint.h>

enum {
    TR_MANIFEST_FILES_MAX = 64,
    TR_MANIFEST_NAME_MAX = 128, /* with the zero */
    TR_MANIFEST_BYTES_MAX = 1 << 16,
};

typedef struct tr_manifest {
    struct {
        char name[TR_MANIFEST_NAME_MAX];
        uint64_t size;
        uint64_t hash; /* XXH3, 64 bits, seed 0 */
    } files[TR_MANIFEST_FILES_MAX];

    int count;
} tr_manifest;

void tr_manifest_add(tr_manifest *manifest, const char *name, uint64_t size, uint64_t hash);
void tr_manifest_print(const tr_manifest *manifest, tr_buf *json);
/* CORRUPT with the reason. Names with '/' or "..", or twice, are refused. */
troupe_status tr_manifest_parse(tr_manifest *manifest, const char *label, const char *text,
    size_t size, troupe_error *err) TROUPE_MUST_USE;

/* Reads DIR/manifest.json. NOT_FOUND when there is none. *digest (may be NULL) is the XXH3 of its
 * bytes. */
troupe_status tr_manifest_read(
    tr_manifest *manifest, const char *dir, uint64_t *digest, troupe_error *err) TROUPE_MUST_USE;
/* Every file is there, regular, with its size; cheap. CORRUPT names the first that is not. */
troupe_status tr_manifest_check_sizes(
    const tr_manifest *manifest, const char *dir, troupe_error *err) TROUPE_MUST_USE;
/* Every file has its hash too; reads all bytes. */
troupe_status tr_manifest_check_hashes(
    const tr_manifest *manifest, const char *dir, troupe_error *err) TROUPE_MUST_USE;

#endif
