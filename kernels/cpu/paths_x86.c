/* The vector paths of x86-64, and which of them this processor runs. */
#include "cpu/cpu.h"

#include <troupe/ext/base.h>

extern const troupe_ops tr_avx512_ops, tr_avx2_ops, tr_scalar_ops;

static bool
has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("fma") != 0;
}

static bool
has_avx2(void)
{
    return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}

static bool
always(void)
{
    return true;
}

const struct tr_path *
tr_paths(size_t *count)
{
    static const struct tr_path paths[] = {
        {&tr_avx512_ops, has_avx512},
        {&tr_avx2_ops, has_avx2},
        {&tr_scalar_ops, always},
    };
    *count = TR_COUNT(paths);
    return paths;
}
