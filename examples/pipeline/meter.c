/* The stage: a number for each sample. */
#include "points.h"

#include <troupe/ext/protocol.h>

#include <math.h>

/* The function: lowest, -1, at (2, -1). */
static void
measure(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    troupe_tensor x;
    const troupe_sample *sample = troupe_arg_sample(call, 0);
    if (sample == NULL || !troupe_sample_find(sample, "x", TROUPE_TENSOR_F32, &x)) {
        (void)troupe_reply_error(call, TROUPE_BAD_INPUT, "a point has an x");
        return;
    }
    const float *v = x.data;
    double a = (double)v[0] - 2, b = (double)v[1] + 1;
    (void)troupe_reply_f64(call, a * a + 2 * b * b - cos(3 * a) * cos(3 * b));
}

const troupe_class meter_class = {.name = "meter", .methods = {{TROUPE_METHOD_SCORE, measure}}};
