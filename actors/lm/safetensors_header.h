/* The JSON part of a safetensors file, checked: bytes in, table out. Used by safetensors.c only. */
#ifndef TR_LM_SAFETENSORS_HEADER_H
#define TR_LM_SAFETENSORS_HEADER_H

#include "safetensors.h"

#include <stddef.h>
#include <stdint.h>

typedef struct tr_st_table {
    tr_st_tensor *tensors; /* ordered by offset */
    size_t count;
    const tr_st_tensor **by_name; /* ordered by name */
} tr_st_table;

/* Parses and checks everything that safetensors.h promises against `data_size`, the number of bytes
 * behind the header. `label` names the file in messages. On failure *table needs no cleaning. */
troupe_status tr_st_table_init(tr_st_table *table, const char *label, const char *json, size_t size,
    uint64_t data_size, troupe_error *err) TROUPE_MUST_USE;
void tr_st_table_fini(tr_st_table *table);

#endif
