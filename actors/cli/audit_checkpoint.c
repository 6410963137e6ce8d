/* Checkpoints against the journal: the manifest against the files, ledger.json against the
 * snapshot that the auditor derived when it was handed out. */
#include "cli/audit_impl.h"

#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define S(step) ((int64_t)(step))

/* --- files ------------------------------------------------------------------------------------ */

static bool
parse_hex(const char *text, uint64_t *value)
{
    if (text == NULL || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) {
        return false;
    }
    *value = strtoull(text, NULL, 16);
    return true;
}

/* --- the manifest ----------------------------------------------------------------------------- */

/* Mapped, not read: a file may be larger than the memory. */
static bool
has_digest(FILE *file, size_t bytes, uint64_t expected)
{
    if (bytes == 0) {
        return tr_xxh3("", 0, 0) == expected;
    }
    void *all = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fileno(file), 0);
    if (all == MAP_FAILED) {
        return false;
    }
    (void)madvise(all, bytes, MADV_SEQUENTIAL);
    bool same = tr_xxh3(all, bytes, 0) == expected;
    (void)munmap(all, bytes);
    return same;
}

static void
check_file(tr_audit *a, const char *dir, const char *name, const json_t *entry, bool quick)
{
    const json_t *size = json_object_get(entry, "size");
    uint64_t expected = 0;
    bool has_hash = parse_hex(json_string_value(json_object_get(entry, "xxh3")), &expected);
    const char *why = "a name, and no path, is asked for";
    FILE *file = strchr(name, '/') == NULL ? audit_open_in(dir, name, &why) : NULL;
    if (file == NULL || !json_is_integer(size) || !has_hash) {
        audit_report(a, "checkpoint-damaged", AUDIT_NONE, AUDIT_NONE,
            "%s: %s is in the manifest and cannot be opened: %s", dir, name,
            why != NULL ? why : "its entry is no size and hash");
        if (file != NULL) {
            (void)fclose(file);
        }
        return;
    }
    (void)fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    bool same = bytes >= 0 && (json_int_t)bytes == json_integer_value(size);
    if (same && !quick) {
        same = has_digest(file, (size_t)bytes, expected);
    }
    (void)fclose(file);
    if (!same) {
        audit_report(a, "checkpoint-damaged", AUDIT_NONE, AUDIT_NONE,
            "%s: %s is not the file of the manifest", dir, name);
    }
}

/* False when the directory holds no complete checkpoint: one that was never finished is no
 * fault. */
static bool
check_manifest(tr_audit *a, const char *dir, bool quick, uint64_t *digest)
{
    tr_buf text = {0};
    const char *why = NULL;
    bool there = audit_read_all(dir, "manifest.json", &text, &why);
    if (!there && strcmp(why, AUDIT_NOT_THERE) != 0) {
        audit_report(a, "checkpoint-damaged", AUDIT_NONE, AUDIT_NONE,
            "%s: manifest.json cannot be read: %s", dir, why);
    }
    json_t *root = there ? json_loadb(text.data, text.size, JSON_REJECT_DUPLICATES, NULL) : NULL;
    const json_t *files = json_object_get(root, "files");
    if (there && !json_is_object(files)) {
        audit_report(a, "checkpoint-damaged", AUDIT_NONE, AUDIT_NONE,
            "%s: manifest.json is no manifest", dir);
    }
    const char *name = NULL;
    json_t *entry = NULL;
    json_object_foreach((json_t *)(uintptr_t)files, name, entry)
    {
        check_file(a, dir, name, entry, quick);
    }
    *digest = there ? tr_xxh3(text.data, text.size, 0) : 0;
    json_decref(root);
    tr_buf_fini(&text);
    return there;
}

/* --- the ledger ------------------------------------------------------------------------------- */

static void
differs(
    tr_audit *a, const char *dir, uint64_t step, const char *key, uint64_t theirs, uint64_t derived)
{
    audit_report(a, "checkpoint-ledger", AUDIT_NONE, S(step),
        "%s/ledger.json: %s is %" PRIu64 ", the journal says %" PRIu64, dir, key, theirs, derived);
}

static void
compare(tr_audit *a, const char *dir, uint64_t step, const json_t *object, const char *key,
    uint64_t derived)
{
    const json_t *entry = json_object_get(object, key);
    if (!json_is_integer(entry) || (uint64_t)json_integer_value(entry) != derived) {
        differs(a, dir, step, key, (uint64_t)json_integer_value(entry), derived);
    }
}

static void
compare_open(tr_audit *a, const char *dir, const json_t *root, const struct audit_snapshot *s)
{
    const json_t *open = json_object_get(root, "open");
    if (json_array_size(open) != s->open_count) {
        differs(a, dir, s->step, "open (entries)", json_array_size(open), s->open_count);
        return;
    }
    for (size_t i = 0; i < s->open_count; i++) {
        const json_t *entry = json_array_get(open, i);
        compare(a, dir, s->step, entry, "group", s->open[i].group);
        compare(a, dir, s->step, entry, "attempt", s->open[i].attempt);
        compare(a, dir, s->step, entry, "item", s->open[i].item);
    }
}

static void
check_ledger(tr_audit *a, const char *dir, uint64_t step)
{
    tr_buf text = {0};
    json_error_t at;
    const char *why = NULL;
    bool there = audit_read_all(dir, "ledger.json", &text, &why);
    json_t *root = there ? json_loadb(text.data, text.size, JSON_REJECT_DUPLICATES, &at) : NULL;
    tr_buf_fini(&text);
    if (!json_is_object(root)) {
        audit_report(a, "checkpoint-ledger", AUDIT_NONE, S(step),
            "%s/ledger.json is missing or no JSON object", dir);
        json_decref(root);
        return;
    }
    uint64_t epoch = (uint64_t)json_integer_value(json_object_get(root, "epoch"));
    const struct audit_snapshot *s = audit_find_snapshot(a, epoch, step);
    if (s == NULL) {
        audit_report(a, "checkpoint-ledger", AUDIT_NONE, S(step),
            "%s: the journal knows no snapshot of step %" PRIu64 " in epoch %" PRIu64, dir, step,
            epoch);
        json_decref(root);
        return;
    }
    const json_t *counters = json_object_get(root, "counters");
    compare(a, dir, step, root, "step", step);
    compare(a, dir, step, root, "next_group", s->next_group);
    compare(a, dir, step, root, "version", s->version);
    compare(a, dir, step, counters, "dispatched", s->counters.dispatched);
    compare(a, dir, step, counters, "trained", s->counters.trained);
    compare(a, dir, step, counters, "filtered", s->counters.filtered);
    compare(a, dir, step, counters, "stale", s->counters.stale);
    compare(a, dir, step, counters, "failed", s->counters.failed);
    compare(a, dir, step, counters, "queued", s->counters.queued);
    compare(a, dir, step, counters, "in_flight", s->counters.in_flight);
    compare_open(a, dir, root, s);
    json_decref(root);
}

/* --- all of them ------------------------------------------------------------------------------ */

static void
check_durable(tr_audit *a, const char *dir, uint64_t step, uint64_t digest)
{
    const struct audit_step *s = step < a->step_capacity ? &a->steps[step] : NULL;
    if (s != NULL && s->durable && s->durable_digest != digest) {
        audit_report(a, "checkpoint-damaged", AUDIT_NONE, S(step),
            "%s: manifest.json has digest %016" PRIx64
            ", the journal made durable a checkpoint with digest %016" PRIx64,
            dir, digest, s->durable_digest);
    }
}

/* "checkpoint-N" and nothing after it. */
static bool
step_of(const char *name, uint64_t *step)
{
    static const char prefix[] = "checkpoint-";
    size_t length = sizeof prefix - 1;
    if (strncmp(name, prefix, length) != 0) {
        return false;
    }
    name += length;
    size_t digits = strspn(name, "0123456789");
    if (digits == 0 || digits > 18 || name[digits] != '\0') {
        return false;
    }
    *step = strtoull(name, NULL, 10);
    return true;
}

void
audit_checkpoints(tr_audit *a, const char *run_dir, bool quick, uint64_t *count)
{
    bool newest = false;
    *count = 0;
    DIR *dir = opendir(run_dir);
    for (struct dirent *e = dir != NULL ? readdir(dir) : NULL; e != NULL; e = readdir(dir)) {
        uint64_t step = 0;
        uint64_t digest = 0;
        if (!step_of(e->d_name, &step)) {
            continue;
        }
        tr_buf path = {0};
        tr_buf_printf(&path, "%s/%s", run_dir, e->d_name);
        if (check_manifest(a, path.data, quick, &digest)) {
            (*count)++;
            newest = newest || step == a->durable;
            if (step > a->durable) {
                audit_note(a,
                    "checkpoint-%" PRIu64 " is complete, and the journal does not have it as "
                    "durable: the run was cut off between the two, or the journal's end is gone",
                    step);
            }
            check_ledger(a, path.data, step);
            check_durable(a, path.data, step, digest);
        }
        tr_buf_fini(&path);
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    /* Older ones may have been removed by --keep; a run goes on from this one. */
    if (a->durable > 0 && !newest) {
        audit_report(a, "checkpoint-missing", AUDIT_NONE, S(a->durable),
            "the journal made checkpoint-%" PRIu64
            " durable, the newest one; it is not there, or has no manifest.json",
            a->durable);
    }
}
