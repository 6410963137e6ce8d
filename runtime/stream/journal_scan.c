/* Reads an existing journal for the run that continues it: is it whole, is it of the same run,
 * which were the last epoch and version. It does not judge the events; that is the auditor's
 * work. */
#include "stream/journal_file.h"

#include <troupe/ext/wire.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct scanning {
    int fd;
    const char *path;
    const troupe_record_run *run;
    struct tr_journal_scan *scan;
    troupe_error *err;
    uint64_t file_size;
    tr_buf body;
};

static troupe_status
corrupt(const struct scanning *s, const char *what)
{
    return troupe_fail(s->err, TROUPE_CORRUPT,
        "%s: record %" PRIu64 " at byte %" PRIu64 " %s; see `troupe audit`, and start a new run "
        "from a checkpoint in another --out",
        s->path, s->scan->tail.records, s->scan->size, what);
}

/* False at a read error or the end of the file. */
static bool
read_at(int fd, char *bytes, size_t size, uint64_t offset)
{
    while (size > 0) {
        ssize_t n = pread(fd, bytes, size, (off_t)offset);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        bytes += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return true;
}

static uint32_t
get_u32(const char *at)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < 4; i++) {
        value |= (uint32_t)(unsigned char)at[i] << (8 * i);
    }
    return value;
}

/* --- what a record says ----------------------------------------------------------------------- */

static troupe_status
differs(const struct scanning *s, const char *key, uint64_t theirs, uint64_t ours)
{
    return troupe_fail(s->err, TROUPE_BAD_INPUT,
        "%s: the run has %s %" PRIu64 ", this one %" PRIu64
        "; a resumed run keeps it: give the same value, or another --out",
        s->path, key, theirs, ours);
}

static troupe_status
check_run(struct scanning *s, tr_reader *r)
{
    char run_id[128];
    uint64_t format = 0;
    uint64_t seed = 0;
    uint64_t batch = 0;
    uint64_t size = 0;
    uint64_t mean_lag = 0;
    int64_t max_lag = 0;
    uint64_t digest = 0;
    uint64_t rows = 0;
    (void)tr_read_u64(r, &format);
    if (r->failed || format != TROUPE_JOURNAL_FORMAT) {
        return corrupt(s, "is of another journal format than 1");
    }
    (void)tr_read_text(r, run_id, sizeof run_id);
    (void)tr_read_u64(r, &seed);
    (void)tr_read_u64(r, &batch);
    (void)tr_read_u64(r, &size);
    (void)tr_read_u64(r, &mean_lag);
    (void)tr_read_i64(r, &max_lag);
    (void)tr_read_skip(r);
    (void)tr_read_skip(r);
    (void)tr_read_u64(r, &digest);
    (void)tr_read_u64(r, &rows);
    (void)tr_read_skip(r);
    (void)tr_read_skip(r);
    if (!tr_reader_done(r)) {
        return corrupt(s, "is no whole `run` record");
    }
    const troupe_record_run *run = s->run;
    if (run == NULL) {
        return TROUPE_OK;
    }
    if (seed != run->seed) {
        return differs(s, "seed", seed, run->seed);
    }
    if (batch != run->groups_per_step) {
        return differs(s, "batch", batch, run->groups_per_step);
    }
    if (size != run->group_size) {
        return differs(s, "group-size", size, run->group_size);
    }
    if (rows != run->rows) {
        return differs(s, "rows of the prompt file", rows, run->rows);
    }
    return digest == run->data_digest ? TROUPE_OK
                                      : differs(s, "prompt digest", digest, run->data_digest);
}

/* A rollback voids the durable points after its own. */
static void
forget_durable_after(troupe_journal_tail *tail, uint64_t step)
{
    while (tail->durable_count > 0 && tail->durable[tail->durable_count - 1] > step) {
        tail->durable_count--;
    }
}

static void
note_durable(troupe_journal_tail *tail, uint64_t step)
{
    forget_durable_after(tail, step);
    bool known = tail->durable_count > 0 && tail->durable[tail->durable_count - 1] == step;
    if (step == 0 || known) {
        return;
    }
    if (tail->durable_count == TROUPE_JOURNAL_DURABLE_MAX) {
        memmove(&tail->durable[0], &tail->durable[1],
            (TROUPE_JOURNAL_DURABLE_MAX - 1) * sizeof tail->durable[0]);
        tail->durable_count--;
    }
    tail->durable[tail->durable_count++] = step;
}

/* What the tail wants to know of one record, whose kind and time have been read. */
static troupe_status
note(struct scanning *s, uint64_t kind, tr_reader *r)
{
    troupe_journal_tail *tail = &s->scan->tail;
    uint64_t epoch = 0;
    uint64_t step = 0;
    uint64_t version = 0;
    if (kind == TROUPE_RECORD_RUN) {
        return s->scan->tail.records == 0 ? check_run(s, r)
                                          : corrupt(s, "is a second `run` record");
    }
    if (s->scan->tail.records == 0) {
        return corrupt(s, "is no `run` record");
    }
    if (kind == TROUPE_RECORD_PUBLISHED || kind == TROUPE_RECORD_COMMITTED) {
        if (!tr_read_u64(r, &epoch) || !tr_read_u64(r, &step) || !tr_read_u64(r, &version)) {
            return corrupt(s, "does not parse");
        }
    }
    if (kind == TROUPE_RECORD_PUBLISHED) {
        tail->published = true;
        tail->last_published = TR_MAX(tail->last_published, version);
    } else if (kind == TROUPE_RECORD_COMMITTED) {
        tail->last_step = step;
    } else if (kind == TROUPE_RECORD_ROLLED_BACK) {
        if (!tr_read_u64(r, &tail->last_epoch) || !tr_read_u64(r, &tail->last_step)) {
            return corrupt(s, "does not parse");
        }
        note_durable(tail, tail->last_step);
    } else if (kind == TROUPE_RECORD_DURABLE) {
        if (!tr_read_u64(r, &epoch) || !tr_read_u64(r, &step)) {
            return corrupt(s, "does not parse");
        }
        note_durable(tail, step);
    }
    tail->ended = kind == TROUPE_RECORD_ENDED;
    return TROUPE_OK;
}

static troupe_status
read_body(struct scanning *s)
{
    tr_reader r;
    uint32_t count = 0;
    uint64_t kind = 0;
    uint64_t time = 0;
    tr_reader_init(&r, s->body.data, s->body.size);
    if (!tr_read_array(&r, &count) || !tr_read_u64(&r, &kind) || !tr_read_u64(&r, &time)) {
        return corrupt(s, "does not parse");
    }
    return note(s, kind, &r);
}

/* --- the file --------------------------------------------------------------------------------- */

/* True when only zeros follow: the file was made longer, the bytes never came. */
static bool
zeros_to_end(const struct scanning *s)
{
    char bytes[4096];
    uint64_t at = s->scan->size;
    while (at < s->file_size) {
        size_t n = (size_t)TR_MIN(s->file_size - at, sizeof bytes);
        if (!read_at(s->fd, bytes, n, at)) {
            return false;
        }
        for (size_t i = 0; i < n; i++) {
            if (bytes[i] != 0) {
                return false;
            }
        }
        at += n;
    }
    return true;
}

/* One record at scan->size. *more is false at the end of what is whole. */
static troupe_status
scan_record(struct scanning *s, bool *more)
{
    uint64_t left = s->file_size - s->scan->size;
    char header[TR_JOURNAL_HEADER];
    *more = left >= TR_JOURNAL_HEADER;
    if (!*more) {
        return TROUPE_OK;
    }
    if (!read_at(s->fd, header, sizeof header, s->scan->size)) {
        return troupe_fail(s->err, TROUPE_IO, "%s: cannot read the journal: %s; check the disk",
            s->path, strerror(errno));
    }
    uint32_t size = get_u32(header);
    if (size == 0 && zeros_to_end(s)) {
        *more = false;
        return TROUPE_OK;
    }
    if (size == 0 || size > TROUPE_JOURNAL_RECORD_MAX) {
        return corrupt(s, "has an impossible length");
    }
    *more = left - TR_JOURNAL_HEADER >= size;
    if (!*more) {
        return TROUPE_OK;
    }
    tr_buf_clear(&s->body);
    while (s->body.size < size) {
        static const char zeros[4096] = {0};
        tr_buf_append(&s->body, zeros, TR_MIN(size - s->body.size, sizeof zeros));
    }
    if (!read_at(s->fd, s->body.data, size, s->scan->size + TR_JOURNAL_HEADER)) {
        return troupe_fail(s->err, TROUPE_IO, "%s: cannot read the journal: %s; check the disk",
            s->path, strerror(errno));
    }
    uint32_t crc = tr_crc32c(s->scan->crc, s->body.data, size);
    if (crc != get_u32(header + 4)) {
        return corrupt(s, "breaks the chain of checksums");
    }
    troupe_status status = read_body(s);
    if (status == TROUPE_OK) {
        s->scan->crc = crc;
        s->scan->size += TR_JOURNAL_HEADER + size;
        s->scan->tail.records++;
    }
    return status;
}

troupe_status
tr_journal_scan(int fd, const char *path, const troupe_record_run *run,
    struct tr_journal_scan *scan, troupe_error *err)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        return troupe_fail(err, TROUPE_IO, "%s: is no regular file; name a run's journal", path);
    }
    *scan = (struct tr_journal_scan){0};
    struct scanning s = {.fd = fd,
        .path = path,
        .run = run,
        .scan = scan,
        .err = err,
        .file_size = (uint64_t)info.st_size};
    troupe_status status = TROUPE_OK;
    bool more = true;
    while (status == TROUPE_OK && more) {
        status = scan_record(&s, &more);
    }
    tr_buf_fini(&s.body);
    if (status != TROUPE_OK) {
        return status;
    }
    if (scan->tail.records == 0) {
        return troupe_fail(err, TROUPE_CORRUPT,
            "%s: holds no whole record; remove it and start the run anew", path);
    }
    scan->tail.cut_bytes = s.file_size - scan->size;
    return TROUPE_OK;
}
