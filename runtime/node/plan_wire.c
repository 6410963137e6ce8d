/* A plan as bytes: a fixed header with a checksum, then one MessagePack array. The reader takes
 * any bytes: what it gives is a plan within all limits, or nothing.
 *
 *   "trplan" version:u16 crc32c:u32 size:u32
 *   [program, name, folder, title, logs, argv, store, grace, pool, roles] */
#include "node/plan.h"

#include <troupe/ext/wire.h>

#include <string.h>

enum {
    PLAN_VERSION = 2,
    HEADER_BYTES = 16,
    ARGV_MAX = 1 << 20,
    TEXT_MAX = 1 << 20,
    PLAN_VALUES = 10,
    ROLE_VALUES = 17
};

static const char magic[6] = {'t', 'r', 'p', 'l', 'a', 'n'};

/* --- writing --------------------------------------------------------------------------------- */

static void
write_role(const struct tr_plan_role *role, tr_buf *out)
{
    tr_write_array(out, ROLE_VALUES);
    tr_write_str(out, role->name);
    tr_write_str(out, role->config);
    tr_write_str(out, role->place);
    tr_write_str(out, role->where.module);
    tr_write_u64(out, role->where.offset);
    tr_write_str(out, role->where.name);
    tr_write_i64(out, role->replicas);
    tr_write_i64(out, role->mailbox);
    tr_write_i64(out, role->restarts);
    tr_write_f64(out, role->restart_window_s);
    tr_write_i64(out, role->backoff_ms);
    tr_write_i64(out, role->cpus);
    tr_write_f64(out, role->devices);
    tr_write_u64(out, role->memory);
    tr_write_u64(out, role->silent_ns);
    tr_write_bool(out, role->own_loop);
    tr_write_bool(out, role->system);
}

static void
write_header(tr_buf *out, const tr_buf *body)
{
    uint16_t version = PLAN_VERSION;
    uint32_t crc = tr_crc32c(0, body->data, body->size);
    uint32_t size = (uint32_t)body->size;
    tr_buf_append(out, magic, sizeof magic);
    tr_buf_append(out, &version, sizeof version);
    tr_buf_append(out, &crc, sizeof crc);
    tr_buf_append(out, &size, sizeof size);
}

void
tr_plan_write(const struct tr_plan *plan, tr_buf *out)
{
    tr_buf body = {0};
    tr_write_array(&body, PLAN_VALUES);
    tr_write_str(&body, plan->program);
    tr_write_str(&body, plan->name);
    tr_write_str(&body, plan->folder);
    tr_write_str(&body, plan->title);
    tr_write_str(&body, plan->logs);
    tr_write_array(&body, plan->argc);
    for (uint32_t i = 0; i < plan->argc; i++) {
        tr_write_str(&body, plan->argv[i]);
    }
    tr_write_u64(&body, plan->store_bytes);
    tr_write_u64(&body, plan->grace_ns);
    tr_write_i64(&body, plan->pool_loops);
    tr_write_array(&body, plan->role_count);
    for (uint32_t i = 0; i < plan->role_count; i++) {
        write_role(&plan->roles[i], &body);
    }
    TR_ASSERT(body.size <= TR_PLAN_BYTES_MAX);
    write_header(out, &body);
    tr_buf_append(out, body.data, body.size);
    tr_buf_fini(&body);
}

/* --- reading --------------------------------------------------------------------------------- */

/* A text without zero bytes, as long as TEXT_MAX; never NULL. */
static char *
read_text(tr_reader *reader)
{
    const char *text = NULL;
    size_t size = 0;
    if (!tr_read_str(reader, &text, &size) || size > TEXT_MAX || memchr(text, 0, size) != NULL) {
        reader->failed = true;
        size = 0;
    }
    char *copy = tr_alloc(size + 1);
    if (size > 0) {
        memcpy(copy, text, size);
    }
    copy[size] = '\0';
    return copy;
}

static int
read_int(tr_reader *reader, int64_t min, int64_t max)
{
    int64_t value = 0;
    if (!tr_read_i64(reader, &value) || value < min || value > max) {
        reader->failed = true;
        return 0;
    }
    return (int)value;
}

static double
read_number(tr_reader *reader)
{
    double value = 0;
    if (!tr_read_f64(reader, &value) || !(value >= 0 && value <= 1e9)) {
        reader->failed = true;
        return 0;
    }
    return value;
}

static void
read_role(tr_reader *reader, struct tr_plan_role *role)
{
    uint32_t values = 0;
    reader->failed = !tr_read_array(reader, &values) || values != ROLE_VALUES || reader->failed;
    role->name = read_text(reader);
    role->config = read_text(reader);
    role->place = read_text(reader);
    role->where.module = read_text(reader);
    (void)tr_read_u64(reader, &role->where.offset);
    role->where.name = read_text(reader);
    role->replicas = read_int(reader, 1, TROUPE_REPLICAS_MAX);
    role->mailbox = read_int(reader, 0, INT32_MAX);
    role->restarts = read_int(reader, -1, INT32_MAX);
    role->restart_window_s = read_number(reader);
    role->backoff_ms = read_int(reader, 1, INT32_MAX);
    role->cpus = read_int(reader, 0, INT32_MAX);
    role->devices = read_number(reader);
    (void)tr_read_u64(reader, &role->memory);
    (void)tr_read_u64(reader, &role->silent_ns);
    (void)tr_read_bool(reader, &role->own_loop);
    (void)tr_read_bool(reader, &role->system);
    size_t length = strlen(role->name);
    reader->failed = reader->failed || length == 0 || length > TROUPE_NAME_MAX ||
                     strlen(role->place) > TROUPE_NAME_MAX || role->place[0] == '\0';
}

static void
read_argv(tr_reader *reader, struct tr_plan *plan)
{
    uint32_t count = 0;
    reader->failed = !tr_read_array(reader, &count) || count > ARGV_MAX || reader->failed;
    count = reader->failed ? 0 : count;
    plan->argv = tr_zalloc((size_t)count + 1, sizeof *plan->argv);
    for (; plan->argc < count && !reader->failed; plan->argc++) {
        plan->argv[plan->argc] = read_text(reader);
    }
}

static void
read_roles(tr_reader *reader, struct tr_plan *plan)
{
    uint32_t count = 0;
    reader->failed =
        !tr_read_array(reader, &count) || count == 0 || count > TR_PLAN_ROLES_MAX || reader->failed;
    count = reader->failed ? 0 : count;
    plan->roles = tr_zalloc((size_t)count + 1, sizeof *plan->roles);
    for (; plan->role_count < count && !reader->failed; plan->role_count++) {
        read_role(reader, &plan->roles[plan->role_count]);
    }
}

static bool
read_body(tr_reader *reader, struct tr_plan *plan)
{
    uint32_t values = 0;
    reader->failed = !tr_read_array(reader, &values) || values != PLAN_VALUES;
    plan->program = read_text(reader);
    plan->name = read_text(reader);
    plan->folder = read_text(reader);
    plan->title = read_text(reader);
    plan->logs = read_text(reader);
    read_argv(reader, plan);
    (void)tr_read_u64(reader, &plan->store_bytes);
    (void)tr_read_u64(reader, &plan->grace_ns);
    plan->pool_loops = read_int(reader, 1, TR_POOL_LOOPS_MAX);
    read_roles(reader, plan);
    return tr_reader_done(reader) && plan->store_bytes > 0;
}

static troupe_status
check_header(const uint8_t *bytes, size_t size, troupe_error *err)
{
    uint16_t version = 0;
    uint32_t crc = 0, length = 0;
    if (size < HEADER_BYTES || memcmp(bytes, magic, sizeof magic) != 0) {
        return troupe_fail(err, TROUPE_CORRUPT, "these bytes are no plan of a run");
    }
    memcpy(&version, bytes + 6, sizeof version);
    memcpy(&crc, bytes + 8, sizeof crc);
    memcpy(&length, bytes + 12, sizeof length);
    if (version != PLAN_VERSION) {
        return troupe_fail(err, TROUPE_CORRUPT, "a plan of version %u, this program reads %d",
            version, PLAN_VERSION);
    }
    if (length != size - HEADER_BYTES || length > TR_PLAN_BYTES_MAX ||
        tr_crc32c(0, bytes + HEADER_BYTES, length) != crc) {
        return troupe_fail(err, TROUPE_CORRUPT, "a plan whose length or checksum does not match");
    }
    return TROUPE_OK;
}

troupe_status
tr_plan_read(const void *bytes, size_t size, struct tr_plan **out, troupe_error *err)
{
    troupe_status status = check_header(bytes, size, err);
    if (status != TROUPE_OK) {
        return status;
    }
    struct tr_plan *plan = tr_zalloc(1, sizeof *plan);
    tr_reader reader;
    tr_reader_init(&reader, (const uint8_t *)bytes + HEADER_BYTES, size - HEADER_BYTES);
    if (!read_body(&reader, plan)) {
        tr_plan_free(plan);
        return troupe_fail(err, TROUPE_CORRUPT, "a plan with a value that is missing or bad");
    }
    *out = plan;
    return TROUPE_OK;
}
