/* See ledger.h. */
#include "store/ledger.h"

#include <troupe/ext/base.h>

static tr_slot *
own(troupe_store *store)
{
    return &store->slots[store->slot];
}

static uint32_t
slots_top(troupe_store *store)
{
    uint64_t top = tr_word_load(&store->header->slots_top);
    return (uint32_t)TR_MIN(top, store->geometry.slots);
}

uint64_t
tr_ledger_used(troupe_store *store)
{
    uint32_t top = slots_top(store);
    uint64_t returned = 0, charged = 0;
    for (uint32_t i = 0; i < top; i++) {
        returned += tr_word_load(&store->slots[i].returned);
    }
    /* A slot that is new since then has returned nothing that it did not see charged before. */
    top = slots_top(store);
    for (uint32_t i = 0; i < top; i++) {
        charged += tr_word_load(&store->slots[i].charged);
    }
    return charged > returned ? charged - returned : 0;
}

uint64_t
tr_ledger_objects(troupe_store *store)
{
    uint32_t top = slots_top(store);
    uint64_t freed = 0, created = 0;
    for (uint32_t i = 0; i < top; i++) {
        freed += tr_word_load(&store->slots[i].freed);
    }
    for (uint32_t i = 0; i < top; i++) {
        created += tr_word_load(&store->slots[i].created);
    }
    return created > freed ? created - freed : 0;
}

static void
remember(tr_slot *slot, tr_word *first, tr_word *second)
{
    tr_word_store(&slot->before[0], tr_word_peek(first));
    tr_word_store(&slot->before[1], tr_word_peek(second));
}

static void
name(tr_slot *slot, enum tr_pending what, uint64_t handle)
{
    tr_word_store(&slot->pending, handle | (uint64_t)what << 24);
}

void
tr_ledger_create_begin(troupe_store *store)
{
    tr_slot *slot = own(store);
    remember(slot, &slot->charged, &slot->created);
}

void
tr_ledger_create_name(troupe_store *store, uint64_t handle)
{
    name(own(store), TR_PENDING_CREATE, handle);
}

bool
tr_ledger_charge(troupe_store *store, uint64_t size)
{
    tr_slot *slot = own(store);
    tr_word_store(&slot->created, tr_word_peek(&slot->created) + 1);
    tr_word_publish(&slot->charged, tr_word_peek(&slot->charged) + size);
    uint64_t used = tr_ledger_used(store);
    if (used > store->geometry.bytes_max) {
        tr_ledger_charge_undo(store);
        return false;
    }
    tr_word_raise(&store->header->bytes_high, used);
    return true;
}

void
tr_ledger_charge_undo(troupe_store *store)
{
    tr_slot *slot = own(store);
    tr_word_store(&slot->charged, tr_word_peek(&slot->before[0]));
    tr_word_store(&slot->created, tr_word_peek(&slot->before[1]));
}

void
tr_ledger_free_begin(troupe_store *store, uint64_t handle)
{
    tr_slot *slot = own(store);
    remember(slot, &slot->returned, &slot->freed);
    name(slot, TR_PENDING_FREE, handle);
}

void
tr_ledger_return(troupe_store *store, uint64_t size)
{
    tr_slot *slot = own(store);
    tr_word_store(&slot->returned, tr_word_peek(&slot->returned) + size);
    tr_word_store(&slot->freed, tr_word_peek(&slot->freed) + 1);
}

void
tr_ledger_end(troupe_store *store)
{
    tr_word_store(&own(store)->pending, 0);
}

uint64_t
tr_ledger_recover(troupe_store *store, uint32_t index)
{
    tr_slot *slot = &store->slots[index];
    uint64_t pending = tr_word_load(&slot->pending);
    uint32_t what = (uint32_t)(pending >> 24) & 0xff;
    uint64_t handle = pending & ~UINT64_C(0xff000000);
    if (what == TR_PENDING_CREATE) {
        tr_word_store(&slot->charged, tr_word_load(&slot->before[0]));
        tr_word_store(&slot->created, tr_word_load(&slot->before[1]));
    } else if (what == TR_PENDING_FREE) {
        /* An object that is free already was freed whole: then the counters are right. */
        tr_entry *entry = tr_store_entry(store, troupe_object_of_word(handle));
        uint64_t freeing = tr_entry_word((uint32_t)(handle >> 32), index, TR_FREEING);
        if (entry != NULL && tr_word_load(&entry->word) == freeing) {
            tr_word_store(&slot->returned, tr_word_load(&slot->before[0]));
            tr_word_store(&slot->freed, tr_word_load(&slot->before[1]));
        }
    }
    tr_word_store(&slot->pending, 0);
    return what == TR_PENDING_CREATE ? handle : 0;
}
