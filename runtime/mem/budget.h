/* A number of bytes that may be in use at once. Any thread. */
#ifndef TR_MEM_BUDGET_H
#define TR_MEM_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct tr_budget {
    atomic_uint_least64_t used;
    atomic_uint_least64_t high;
    uint64_t max;
};

void tr_budget_init(struct tr_budget *budget, uint64_t max);
/* False, and nothing is taken, when it would pass the maximum. */
bool tr_budget_take(struct tr_budget *budget, uint64_t bytes);
void tr_budget_return(struct tr_budget *budget, uint64_t bytes);

#endif
