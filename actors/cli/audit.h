/* The auditor: re-derives a run's ledger, lags and exactly-once from its records alone. It has
 * its own reader of the journal and its own idea of the rules, and shares no code with the
 * machines that wrote the records (docs/design/0001-main-job.md says what they mean). */
#ifndef TR_AUDIT_H
#define TR_AUDIT_H

#include <troupe/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct tr_audit_options {
    size_t size;       /* sizeof the struct */
    bool json;         /* the result as one JSON object */
    bool dump;         /* the journal's records, one JSON object a line, instead of a result */
    bool quick;        /* checkpoints: sizes only, their bytes are not hashed */
    bool journal_only; /* of a run that has no other files, the simulator's: the journal alone */
} tr_audit_options;

/* Audits the run in `run_dir` (journal, metrics.jsonl, samples.jsonl, checkpoint-N/) and prints the
 * result, each violation named with its group and step. Returns the number of violations, or -1
 * when there is nothing to audit (*err says why). One thread. */
int troupe_audit(
    const char *run_dir, FILE *out, const tr_audit_options *options, troupe_error *err);

/* `troupe audit RUN [--json] [--dump] [--quick]`: 0 clean, 1 violations, 2 usage or no journal. */
int troupe_cli_audit(int argc, char **argv);

/* --- record by record, for the simulator and for tests ---------------------------------------- */

typedef struct tr_audit tr_audit;

/* One violation: a stable name of its kind, and the sentence about it. -1: no one group or step. */
typedef void (*tr_audit_fn)(
    void *self, const char *kind, int64_t group, int64_t step, const char *text);

tr_audit *tr_audit_new(tr_audit_fn violation, void *self);
void tr_audit_free(tr_audit *audit); /* NULL is allowed */
/* The body of the next record (msgpack, without the frame of the file). */
void tr_audit_record(tr_audit *audit, const void *body, size_t size);
/* No more records will come. */
void tr_audit_end(tr_audit *audit);

#endif
