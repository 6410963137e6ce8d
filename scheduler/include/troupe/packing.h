/* Packing: which sequences share a micro-batch, and which work goes to which rank. Pure functions
 * of their arguments: the same input gives the same answer everywhere; no clock, no I/O, no
 * floating point. */
#ifndef TROUPE_PACKING_H
#define TROUPE_PACKING_H

#include <troupe/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Items by bin: bin b holds items[starts[b]] .. items[starts[b + 1] - 1], ascending. Every item is
 * in exactly one bin. Owns its arrays; a zeroed one is empty and may be given to fini. */
typedef struct troupe_packing {
    int32_t bins;
    int32_t count;
    int32_t *starts; /* [bins + 1] */
    int32_t *items;  /* [count] */
    int64_t *loads;  /* [bins] sum of the lengths, or costs, of its items */
} troupe_packing;

void troupe_packing_fini(troupe_packing *packing);

/* First-fit decreasing of `count` lengths (ties by index) into bins of at most `budget` tokens.
 * `group_of`, when not NULL, names each item's group: the items of a group then land in one bin,
 * and groups are placed by their total length. Bins are numbered in the order in which they were
 * opened. BAD_INPUT, naming the item or group, its length and the budget, when one does not fit
 * alone or a length is below 1; INVALID for a budget below 1. *packing is written only on success;
 * free it with fini. */
TROUPE_MUST_USE troupe_status troupe_pack_tokens(troupe_packing *packing, const int32_t *lengths,
    const int32_t *group_of, int32_t count, int64_t budget, troupe_error *err);

/* Karmarkar-Karp largest differencing: `count` costs to `ways` bins of nearly equal sum. Some bins
 * are empty when count < ways. BAD_INPUT for a cost below 0 or a sum beyond 2^62; INVALID for ways
 * below 1. */
TROUPE_MUST_USE troupe_status troupe_pack_balance(
    troupe_packing *packing, const int64_t *costs, int32_t count, int32_t ways, troupe_error *err);

/* Proxy for the work of one sequence: linear * length + quadratic * length^2, clamped to 2^62. */
int64_t troupe_pack_cost(int32_t length, int32_t linear, int32_t quadratic);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
