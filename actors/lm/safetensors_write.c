/* Writing safetensors files without holding them in memory: the header is known from the plan, the
 * tensors follow in its order, rounded to their dtype a block at a time. Used by the checkpoint
 * writer, which hashes what passes and syncs at the end. */
#include "file.h"
#include "safetensors.h"

#include <troupe/ext/base.h>

#include <ctype.h>
#include <math.h>
#include <string.h>

enum {
    ALIGN = 64,     /* of the first byte of data, so that a mapped file is aligned too */
    BLOCK = 1 << 16 /* values rounded at a time */
};

struct tr_st_writer {
    tr_file_writer file;
    const tr_st_plan *plan;
    size_t count;
    size_t next;
    uint16_t *block;
};

static size_t
plan_count(const tr_st_plan *plan)
{
    TR_ASSERT(plan->rank >= 0 && plan->rank <= 2);
    size_t count = 1;
    for (int i = 0; i < plan->rank; i++) {
        TR_ASSERT(plan->shape[i] >= 0);
        TR_ASSERT(!__builtin_mul_overflow(count, (size_t)plan->shape[i], &count));
    }
    return count;
}

static const char *
stored_name(troupe_dtype dtype)
{
    switch (dtype) {
    case TROUPE_BF16:
        return "BF16";
    case TROUPE_F16:
        return "F16";
    case TROUPE_F32:
        break;
    }
    return "F32";
}

static size_t
stored_size(troupe_dtype dtype)
{
    return dtype == TROUPE_F32 ? 4 : 2;
}

static void
put_entry(tr_buf *json, const tr_st_plan *plan, uint64_t *offset)
{
    for (const char *c = plan->name; *c != '\0'; c++) {
        TR_ASSERT(isalnum((unsigned char)*c) || *c == '.' || *c == '_' || *c == '-');
    }
    uint64_t end = *offset + (uint64_t)plan_count(plan) * stored_size(plan->dtype);
    tr_buf_printf(
        json, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", plan->name, stored_name(plan->dtype));
    for (int i = 0; i < plan->rank; i++) {
        tr_buf_printf(json, "%s%d", i > 0 ? "," : "", plan->shape[i]);
    }
    tr_buf_printf(json, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)*offset,
        (unsigned long long)end);
    *offset = end;
}

static troupe_status
put_header(tr_st_writer *writer, troupe_error *err)
{
    tr_buf json = {0};
    uint64_t offset = 0;
    tr_buf_puts(&json, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < writer->count; i++) {
        put_entry(&json, &writer->plan[i], &offset);
    }
    tr_buf_puts(&json, "}");
    while ((sizeof(uint64_t) + json.size) % ALIGN != 0) {
        tr_buf_puts(&json, " ");
    }
    uint64_t size = json.size;
    troupe_status status = tr_file_writer_append(&writer->file, &size, sizeof size, err);
    if (status == TROUPE_OK) {
        status = tr_file_writer_append(&writer->file, json.data, json.size, err);
    }
    tr_buf_fini(&json);
    return status;
}

troupe_status
tr_st_writer_open(
    const char *path, const tr_st_plan *plan, size_t count, tr_st_writer **out, troupe_error *err)
{
    tr_st_writer *writer = tr_zalloc(1, sizeof *writer);
    writer->plan = plan;
    writer->count = count;
    troupe_status status = tr_file_writer_open(&writer->file, path, err);
    if (status == TROUPE_OK) {
        writer->block = tr_zalloc(BLOCK, sizeof *writer->block);
        status = put_header(writer, err);
    }
    if (status != TROUPE_OK) {
        tr_st_writer_abort(writer);
        return status;
    }
    *out = writer;
    return TROUPE_OK;
}

/* Rounds `count` values into the block; the index of one that overflows, or -1. */
static ptrdiff_t
round_block(uint16_t *block, troupe_dtype dtype, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bool half = dtype == TROUPE_F16;
        block[i] = half ? tr_f32_to_f16(values[i]) : tr_f32_to_bf16(values[i]);
        float back = half ? tr_f16_to_f32(block[i]) : tr_bf16_to_f32(block[i]);
        if (isinf(back) && isfinite(values[i])) {
            return (ptrdiff_t)i;
        }
    }
    return -1;
}

static troupe_status
put_rounded(tr_st_writer *writer, const tr_st_plan *plan, const float *values, size_t count,
    troupe_error *err)
{
    for (size_t done = 0; done < count;) {
        size_t now = TR_MIN(count - done, (size_t)BLOCK);
        ptrdiff_t bad = round_block(writer->block, plan->dtype, values + done, now);
        if (bad >= 0) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "%s: tensor '%s': %g is too large for %s; write the model as bfloat16 or float32",
                writer->file.path, plan->name, (double)values[done + (size_t)bad],
                stored_name(plan->dtype));
        }
        troupe_status status =
            tr_file_writer_append(&writer->file, writer->block, now * sizeof(uint16_t), err);
        if (status != TROUPE_OK) {
            return status;
        }
        done += now;
    }
    return TROUPE_OK;
}

troupe_status
tr_st_writer_put(tr_st_writer *writer, const float *values, size_t count, troupe_error *err)
{
    TR_ASSERT(writer->next < writer->count);
    const tr_st_plan *plan = &writer->plan[writer->next];
    TR_ASSERT(count == plan_count(plan));
    writer->next++;
    if (plan->dtype == TROUPE_F32) {
        return tr_file_writer_append(&writer->file, values, count * sizeof(float), err);
    }
    return put_rounded(writer, plan, values, count, err);
}

troupe_status
tr_st_writer_close(tr_st_writer *writer, uint64_t *size, uint64_t *hash, troupe_error *err)
{
    TR_ASSERT(writer->next == writer->count);
    *size = writer->file.size;
    troupe_status status = tr_file_writer_close(&writer->file, hash, err);
    tr_st_writer_abort(writer);
    return status;
}

void
tr_st_writer_abort(tr_st_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    tr_file_writer_abort(&writer->file);
    tr_free(writer->block);
    tr_free(writer);
}
