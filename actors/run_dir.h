/* The output directory of a run: metrics.jsonl and samples.jsonl as append-only files of JSON
 * lines, and the rule by which a resumed run moves later lines aside. One thread. The journal and
 * the checkpoints are written elsewhere; this file knows only their neighbours. */
#ifndef TR_RUN_DIR_H
#define TR_RUN_DIR_H

#include <troupe/ext/base.h>
#include <troupe/status.h>

#include <stdbool.h>
#include <stdint.h>

/* How many bytes of each file a checkpoint covers. */
typedef struct tr_run_offsets {
    int64_t metrics;
    int64_t samples;
} tr_run_offsets;

typedef struct tr_run_dir tr_run_dir;

/* Creates `path` for a new run (one level; its parent exists). EXISTS when it holds a run already:
 * the remedy is another --out or --resume. DENIED, NO_SPACE, IO name the path. */
troupe_status tr_run_dir_create(const char *path, troupe_error *err) TROUPE_MUST_USE;

/* Opens the files of an existing run directory for appending. `samples_bytes_max` bounds
 * samples.jsonl: a line that would pass it is replaced by one last {"truncated": true} line. */
troupe_status tr_run_dir_open(const char *path, int64_t samples_bytes_max, tr_run_dir **out,
    troupe_error *err) TROUPE_MUST_USE;
void tr_run_dir_close(tr_run_dir *run); /* NULL is allowed; flushes */

/* Appends whole lines (each ends in \n). Data reach the kernel before these return. */
troupe_status tr_run_dir_metrics(
    tr_run_dir *run, const tr_buf *lines, troupe_error *err) TROUPE_MUST_USE;
troupe_status tr_run_dir_samples(
    tr_run_dir *run, const tr_buf *lines, troupe_error *err) TROUPE_MUST_USE;

/* What has been written so far; fsyncs both files first when `sync`. */
troupe_status tr_run_dir_offsets(
    tr_run_dir *run, bool sync, tr_run_offsets *offsets, troupe_error *err) TROUPE_MUST_USE;

/* For a resume, before opening: everything behind the offsets is appended to
 * metrics.jsonl.epoch-E and samples.jsonl.epoch-E. Repeating it with the same arguments changes
 * nothing. CORRUPT when a file is shorter than the checkpoint says. */
troupe_status tr_run_dir_rewind(
    const char *path, tr_run_offsets offsets, uint64_t epoch, troupe_error *err) TROUPE_MUST_USE;

/* A line of samples.jsonl behind the offsets that stands. */
typedef struct tr_kept_sample {
    int64_t step;
    uint64_t units;
    double reward; /* NaN: none */
    bool first;    /* of its group */
    const char *status, *reason;
} tr_kept_sample;

/* A policy that goes on in the same epoch, from the state of `step`. */
typedef struct tr_reopening {
    tr_run_offsets offsets; /* that this state covers */
    uint64_t epoch;
    int64_t step;
    bool line; /* the line of `step` itself may come behind the offset */
    void (*kept)(void *self, const tr_kept_sample *sample);
    void *self;
    /* Out. */
    bool has_line; /* it is there */
    int64_t
        samples_at; /* bytes of samples.jsonl before the first line of `step` behind the offset */
} tr_reopening;

/* Keeps, behind the offsets, what has happened for good: samples of groups that ended in this epoch
 * without the step that was under way, each once, and the line of `step`; the rest (of that step,
 * of an older epoch, torn) is appended to NAME.epoch-E. Repeating it changes nothing. */
troupe_status tr_run_dir_reopen(
    const char *path, tr_reopening *reopening, troupe_error *err) TROUPE_MUST_USE;

/* Writes a whole file of the run directory at once: temporary name, fsync, rename. */
troupe_status tr_run_dir_write_file(const char *path, const char *name, const void *bytes,
    size_t size, troupe_error *err) TROUPE_MUST_USE;

/* The same for a file that must be new: of several that do it at once one succeeds, the others get
 * EXISTS, and the file is whole from the first moment. */
troupe_status tr_run_dir_write_new(const char *path, const char *name, const void *bytes,
    size_t size, troupe_error *err) TROUPE_MUST_USE;

/* Appends `size` bytes as a JSON string, quotes included; bytes that are no UTF-8 become U+FFFD. */
void tr_line_string(tr_buf *buf, const char *text, size_t size);
/* Appends a number that JSON can hold, null for NaN and infinities. 17 digits: reads back to the
 * bit. */
void tr_line_real(tr_buf *buf, double value);

#endif
