/* MessagePack writing: msgpack-c's packer with a tr_buf as its sink. The sink cannot fail (memory
 * that runs out ends the process), so neither can these functions. */
#include <troupe/ext/wire.h>

#include <msgpack/pack.h>

#include <string.h>

static int
append(void *buf, const char *bytes, size_t size)
{
    tr_buf_append(buf, bytes, size);
    return 0;
}

static msgpack_packer
packer(tr_buf *buf)
{
    msgpack_packer p;
    msgpack_packer_init(&p, buf, append);
    return p;
}

void
tr_write_nil(tr_buf *buf)
{
    msgpack_packer p = packer(buf);
    (void)msgpack_pack_nil(&p);
}

void
tr_write_bool(tr_buf *buf, bool value)
{
    msgpack_packer p = packer(buf);
    (void)(value ? msgpack_pack_true(&p) : msgpack_pack_false(&p));
}

void
tr_write_i64(tr_buf *buf, int64_t value)
{
    msgpack_packer p = packer(buf);
    (void)msgpack_pack_int64(&p, value);
}

void
tr_write_u64(tr_buf *buf, uint64_t value)
{
    msgpack_packer p = packer(buf);
    (void)msgpack_pack_uint64(&p, value);
}

void
tr_write_f64(tr_buf *buf, double value)
{
    msgpack_packer p = packer(buf);
    (void)msgpack_pack_double(&p, value);
}

void
tr_write_str(tr_buf *buf, const char *text)
{
    tr_write_strn(buf, text, strlen(text));
}

void
tr_write_strn(tr_buf *buf, const char *text, size_t size)
{
    TR_ASSERT(size <= UINT32_MAX);
    msgpack_packer p = packer(buf);
    (void)msgpack_pack_str(&p, size);
    (void)msgpack_pack_str_body(&p, text, size);
}

void
tr_write_bin(tr_buf *buf, const void *bytes, size_t size)
{
    TR_ASSERT(size <= UINT32_MAX);
    msgpack_packer p = packer(buf);
    (void)msgpack_pack_bin(&p, size);
    (void)msgpack_pack_bin_body(&p, bytes, size);
}

void
tr_write_array(tr_buf *buf, uint32_t count)
{
    msgpack_packer p = packer(buf);
    (void)msgpack_pack_array(&p, count);
}

void
tr_write_map(tr_buf *buf, uint32_t count)
{
    msgpack_packer p = packer(buf);
    (void)msgpack_pack_map(&p, count);
}
