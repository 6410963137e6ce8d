/* Admission: how far the source may run ahead of the trainer on average. Kept apart from the stream
 * so that the formula stands alone, beside its test.
 *
 * By Little's law the mean lag in versions is the mean number of groups in the system divided by
 * the groups of a step; the formula bounds the former. It does not bound the lag of a straggler:
 * that is the hard bound's work (bound.c). */
#include <troupe/ext/ledger.h>

bool
troupe_counters_hold(const troupe_counters *c)
{
    return c->dispatched ==
           c->trained + c->filtered + c->stale + c->failed + c->queued + c->in_flight;
}

uint64_t
troupe_admission_limit(uint64_t mean_lag_milli, uint64_t steps, uint64_t batch)
{
    /* (steps + 1) * batch is whole, so only the mean lag's share needs the floor. */
    uint64_t whole = 0;
    uint64_t ahead = 0;
    uint64_t limit = 0;
    if (steps == UINT64_MAX || __builtin_mul_overflow(steps + 1, batch, &whole) ||
        __builtin_mul_overflow(mean_lag_milli, batch, &ahead) ||
        __builtin_add_overflow(whole, ahead / 1000, &limit)) {
        return UINT64_MAX;
    }
    return limit;
}

bool
troupe_admission_open(const troupe_counters *c, uint64_t limit)
{
    return c->dispatched - c->filtered - c->stale - c->failed < limit;
}
