/* The budget: bytes of all objects of all processes, exact at every moment, also after deaths.
 *
 * Each slot has counters that only grow and that its process alone writes: bytes charged and
 * returned, objects created and freed. What is in use is the sum of the charged less the sum of
 * the returned. A creation charges itself first and sums afterwards, all `returned` before all
 * `charged`, so the sum is never too low and, of two that race for the last bytes, at least one
 * sees both: the budget is never exceeded. (Both may see both and give way: AGAIN, try again.)
 *
 * Before an operation moves its two counters it writes down what they were and which object it
 * is about (`pending`). When the process dies, whoever cleans up puts them back and then treats
 * the object as if the operation had not begun; so nothing needs to be guessed. That is why a
 * process does one creation or freeing at a time, under its own lock `ledger`. */
#ifndef TR_STORE_LEDGER_H
#define TR_STORE_LEDGER_H

#include "store/layout.h"

enum tr_pending {
    TR_PENDING_NONE = 0,
    TR_PENDING_CREATE = 1,
    TR_PENDING_FREE = 2
};

/* Bytes in use; at least the true value at some moment of the call. */
uint64_t tr_ledger_used(troupe_store *store);
uint64_t tr_ledger_objects(troupe_store *store);

/* The lock is held for all below. */

void tr_ledger_create_begin(troupe_store *store);
/* Names the object; before its word moves. May be called again for another one. */
void tr_ledger_create_name(troupe_store *store, uint64_t handle);
/* False: the budget is spent; the counters are as before. */
bool tr_ledger_charge(troupe_store *store, uint64_t size);
void tr_ledger_charge_undo(troupe_store *store);

void tr_ledger_free_begin(troupe_store *store, uint64_t handle);
void tr_ledger_return(troupe_store *store, uint64_t size);
/* The operation has ended, well or not. */
void tr_ledger_end(troupe_store *store);

/* Puts back what an operation of the dead `slot` had moved. Gives the handle of the object
 * that it was creating, which is not charged, or 0. */
uint64_t tr_ledger_recover(troupe_store *store, uint32_t slot);

#endif
