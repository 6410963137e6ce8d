/* What lies behind a state in metrics.jsonl and samples.jsonl, when a policy goes on in the same
 * epoch (run_dir.h). What the dead one wrote of the step under way comes again; samples of groups
 * that ended by themselves do not, so their lines stay. */
#include "run_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PATH_BYTES = 4096
};

typedef struct tail {
    tr_reopening *r;
    troupe_error *err;
    char path[PATH_BYTES];
    tr_buf bytes; /* behind the offset */
    tr_buf kept, aside;
    uint64_t *seen; /* group and member of kept samples */
    size_t seen_count, seen_capacity;
    bool later; /* a kept sample of `step` has been seen */
} tail;

static troupe_status
io_error(const tail *t, const char *what)
{
    int code = errno;
    return troupe_fail(t->err, code == ENOSPC ? TROUPE_NO_SPACE : TROUPE_IO,
        "%s: cannot %s: %s; check the disk", t->path, what, strerror(code));
}

static troupe_status
write_all(const tail *t, int fd, const tr_buf *bytes, int64_t offset)
{
    for (size_t done = 0; done < bytes->size;) {
        ssize_t n = offset >= 0
                        ? pwrite(fd, bytes->data + done, bytes->size - done, offset + (off_t)done)
                        : write(fd, bytes->data + done, bytes->size - done);
        if (n < 0 && errno != EINTR) {
            return io_error(t, "write to it");
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return TROUPE_OK;
}

static troupe_status
read_tail(tail *t, int fd, int64_t offset)
{
    char piece[1 << 14];
    ssize_t n = 0;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return io_error(t, "look at it");
    }
    if (st.st_size < offset) {
        return troupe_fail(t->err, TROUPE_CORRUPT,
            "%s: has %lld bytes, the state that is gone on from covers %lld; resume from a copy of "
            "the whole run directory",
            t->path, (long long)st.st_size, (long long)offset);
    }
    while ((n = pread(fd, piece, sizeof piece, offset + (off_t)t->bytes.size)) > 0) {
        tr_buf_append(&t->bytes, piece, (size_t)n);
    }
    return n < 0 ? io_error(t, "read it") : TROUPE_OK;
}

/* --- samples ---------------------------------------------------------------------------------- */

static bool
is_new(tail *t, uint64_t group, uint64_t member, bool *first)
{
    *first = true;
    for (size_t i = 0; i < t->seen_count; i++) {
        *first = *first && t->seen[2 * i] != group;
        if (t->seen[2 * i] == group && t->seen[2 * i + 1] == member) {
            return false;
        }
    }
    if (t->seen_count == t->seen_capacity) {
        t->seen_capacity = TR_MAX(2 * t->seen_capacity, (size_t)64);
        t->seen = tr_realloc(t->seen, 2 * t->seen_capacity, sizeof t->seen[0]);
    }
    t->seen[2 * t->seen_count] = group;
    t->seen[2 * t->seen_count++ + 1] = member;
    return true;
}

static bool
sample_stands(tail *t, const json_t *line)
{
    const tr_reopening *r = t->r;
    if (json_is_true(json_object_get(line, "truncated"))) {
        return true;
    }
    const json_t *reward = json_object_get(line, "reward");
    const char *status = json_string_value(json_object_get(line, "status"));
    const char *reason = json_string_value(json_object_get(line, "reason"));
    tr_kept_sample sample = {
        .step = json_integer_value(json_object_get(line, "step")),
        .units = json_array_size(json_object_get(line, "ids")),
        .reward = json_is_number(reward) ? json_number_value(reward) : (double)NAN,
        .status = status != NULL ? status : "",
        .reason = reason != NULL ? reason : "",
    };
    if (!json_is_integer(json_object_get(line, "step")) || sample.step > r->step ||
        (uint64_t)json_integer_value(json_object_get(line, "epoch")) != r->epoch ||
        !is_new(t, (uint64_t)json_integer_value(json_object_get(line, "group")),
            (uint64_t)json_integer_value(json_object_get(line, "member")), &sample.first)) {
        return false;
    }
    if (sample.step == r->step && !t->later) {
        t->later = true;
        t->r->samples_at = r->offsets.samples + (int64_t)t->kept.size;
    }
    if (r->kept != NULL) {
        r->kept(r->self, &sample);
    }
    return true;
}

/* --- metrics ---------------------------------------------------------------------------------- */

static bool
line_stands(tail *t, const json_t *line)
{
    const json_t *step = json_object_get(line, "step");
    bool stands = t->r->line && !t->r->has_line && json_is_integer(step) &&
                  json_integer_value(step) == t->r->step;
    t->r->has_line = t->r->has_line || stands;
    return stands;
}

/* --- both ------------------------------------------------------------------------------------- */

static void
sort_lines(tail *t, bool (*stands)(tail *t, const json_t *line))
{
    for (size_t at = 0; at < t->bytes.size;) {
        const char *begin = t->bytes.data + at;
        const char *end = memchr(begin, '\n', t->bytes.size - at);
        size_t size = end != NULL ? (size_t)(end - begin) + 1 : t->bytes.size - at;
        json_t *line = end != NULL ? json_loadb(begin, size, JSON_REJECT_DUPLICATES, NULL) : NULL;
        bool keep = json_is_object(line) && stands(t, line);
        tr_buf_append(keep ? &t->kept : &t->aside, begin, size);
        json_decref(line);
        at += size;
    }
}

/* The lines that stand move over those that do not; a death in between leaves some of them twice,
 * which the next one sees. */
static troupe_status
move_aside(const tail *t, int fd, int64_t offset)
{
    char path[PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s.epoch-%llu", t->path, (unsigned long long)t->r->epoch);
    int to = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    troupe_status status = to < 0 ? io_error(t, "open the file for void lines beside it")
                                  : write_all(t, to, &t->aside, -1);
    if (status == TROUPE_OK && fsync(to) != 0) {
        status = io_error(t, "sync the file for void lines beside it");
    }
    if (to >= 0) {
        close(to);
    }
    if (status == TROUPE_OK) {
        status = write_all(t, fd, &t->kept, offset);
    }
    if (status == TROUPE_OK &&
        (ftruncate(fd, offset + (off_t)t->kept.size) != 0 || fsync(fd) != 0)) {
        status = io_error(t, "cut void lines of it");
    }
    return status;
}

static troupe_status
reopen_file(const char *dir, const char *name, int64_t offset, tr_reopening *r,
    bool (*stands)(tail *t, const json_t *line), troupe_error *err)
{
    tail t = {.r = r, .err = err};
    snprintf(t.path, sizeof t.path, "%.*s/%s", PATH_BYTES - 64, dir, name);
    int fd = open(t.path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    troupe_status status = fd < 0 ? io_error(&t, "open it") : read_tail(&t, fd, offset);
    if (status == TROUPE_OK) {
        sort_lines(&t, stands);
    }
    if (status == TROUPE_OK && t.aside.size > 0) {
        status = move_aside(&t, fd, offset);
    }
    if (fd >= 0) {
        close(fd);
    }
    if (stands == sample_stands && !t.later) {
        r->samples_at = offset + (int64_t)t.kept.size;
    }
    tr_buf_fini(&t.bytes);
    tr_buf_fini(&t.kept);
    tr_buf_fini(&t.aside);
    tr_free(t.seen);
    return status;
}

troupe_status
tr_run_dir_reopen(const char *path, tr_reopening *r, troupe_error *err)
{
    r->has_line = false;
    troupe_status status =
        reopen_file(path, "metrics.jsonl", r->offsets.metrics, r, line_stands, err);
    if (status == TROUPE_OK) {
        status = reopen_file(path, "samples.jsonl", r->offsets.samples, r, sample_stands, err);
    }
    return status;
}
