/* One counter moved by compare-and-swap, so that the maximum holds exactly under any number of
 * threads. */
#include "mem/budget.h"

#include <troupe/ext/base.h>

void
tr_budget_init(struct tr_budget *budget, uint64_t max)
{
    atomic_init(&budget->used, 0);
    atomic_init(&budget->high, 0);
    budget->max = max;
}

static void
raise_high(struct tr_budget *budget, uint64_t used)
{
    uint64_t high = atomic_load_explicit(&budget->high, memory_order_relaxed);
    while (high < used && !atomic_compare_exchange_weak_explicit(&budget->high, &high, used,
                              memory_order_relaxed, memory_order_relaxed)) {
    }
}

bool
tr_budget_take(struct tr_budget *budget, uint64_t bytes)
{
    uint64_t used = atomic_load_explicit(&budget->used, memory_order_relaxed);
    do {
        if (bytes > budget->max - used) {
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(
        &budget->used, &used, used + bytes, memory_order_relaxed, memory_order_relaxed));
    raise_high(budget, used + bytes);
    return true;
}

void
tr_budget_return(struct tr_budget *budget, uint64_t bytes)
{
    uint64_t used = atomic_fetch_sub_explicit(&budget->used, bytes, memory_order_relaxed);
    TR_ASSERT(used >= bytes);
}
