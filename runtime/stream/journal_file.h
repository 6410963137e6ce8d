/* The journal's file as its two halves see it: journal.c writes, journal_scan.c reads it for the
 * run that goes on. (The auditor has a reader of its own, which shares nothing with these.) */
#ifndef TR_STREAM_JOURNAL_FILE_H
#define TR_STREAM_JOURNAL_FILE_H

#include <troupe/ext/base.h>
#include <troupe/ext/journal.h>

enum {
    TR_JOURNAL_HEADER = 8
};

struct tr_journal_scan {
    troupe_journal_tail tail;
    uint64_t size; /* of the whole records */
    uint32_t crc;  /* of the last one */
};

/* Reads the file from its beginning and checks all of it. */
troupe_status tr_journal_scan(int fd, const char *path, const troupe_record_run *run,
    struct tr_journal_scan *scan, troupe_error *err);

#endif
