/* Lines for standard output and standard error, written by a thread of their own each: who has a
 * line to say never waits for a terminal that is held or a pipe that nobody reads. A bounded number
 * of bytes waits; what comes on top is dropped and counted. Any thread may say lines. */
#ifndef TR_NODE_OUTPUT_H
#define TR_NODE_OUTPUT_H

#include <troupe/status.h>

#include <stddef.h>
#include <stdint.h>

struct tr_output;

troupe_status tr_output_open(struct tr_output **out, troupe_error *err) TROUPE_MUST_USE;
/* "PREFIX: LINE" and a newline to stream 1 or 2; without the prefix when it is NULL. */
void tr_output_line(
    struct tr_output *output, int stream, const char *prefix, const char *line, size_t size);
/* Writes what waits for at most `limit_ns`, then ends the thread. A thread that is stuck in a
 * write is left behind with what it needs. NULL is allowed. */
void tr_output_close(struct tr_output *output, uint64_t limit_ns);

#endif
