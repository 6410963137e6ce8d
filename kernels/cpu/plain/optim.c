/* Plain optimiser step and reductions over flat parameters. */
#include "cpu/cpu.h"
#include "cpu/plain/plain.h"

#include <troupe/ext/base.h>

#include <math.h>

void
tr_plain_adamw(troupe_device *d, float *param, float *m, float *v, const float *grad,
    const troupe_adamw *o, size_t n)
{
    (void)d;
    TR_ASSERT(o->step >= 1);
    double b1 = (double)o->beta1, b2 = (double)o->beta2, lr = (double)o->lr;
    double correction1 = 1 - pow(b1, (double)o->step), correction2 = 1 - pow(b2, (double)o->step);
    for (size_t i = 0; i < n; ++i) {
        double g = (double)grad[i] * (double)o->grad_scale;
        m[i] = (float)(b1 * (double)m[i] + (1 - b1) * g);
        v[i] = (float)(b2 * (double)v[i] + (1 - b2) * g * g);
        double p = (double)param[i] * (1 - lr * (double)o->weight_decay);
        double root = sqrt((double)v[i] / correction2) + (double)o->eps;
        param[i] = (float)(p - lr * ((double)m[i] / correction1) / root);
    }
}

double
tr_plain_square_sum(troupe_device *d, const float *x, size_t n)
{
    (void)d;
    double sum = 0;
    for (size_t i = 0; i < n; ++i) {
        sum += (double)x[i] * (double)x[i];
    }
    return sum;
}

void
tr_plain_add(troupe_device *d, float *y, const float *x, size_t n)
{
    (void)d;
    for (size_t i = 0; i < n; ++i) {
        y[i] += x[i];
    }
}

uint64_t
tr_plain_checksum(troupe_device *d, const float *x, size_t n)
{
    (void)d;
    return tr_xxh3(x, n * sizeof *x, 0);
}
