/* bfloat16 and IEEE binary16, to and from float, rounding to nearest, ties to even. NaN stays NaN
 * (its sign and leading payload bits kept, made quiet), overflow becomes infinity. */
#include <troupe/ext/base.h>

#include <string.h>

static uint32_t
bits_of(float value)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float
float_of(uint32_t bits)
{
    float value = 0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float
tr_bf16_to_f32(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

uint16_t
tr_f32_to_bf16(float value)
{
    uint32_t x = bits_of(value);
    if ((x & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((x >> 16) | 0x40u);
    }
    /* Adding half of the last kept place, less one when that place is even, rounds ties to even; a
     * carry out of the mantissa is the right exponent, up to infinity. */
    x += 0x7fffu + ((x >> 16) & 1u);
    return (uint16_t)(x >> 16);
}

float
tr_f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t exponent = (bits >> 10) & 0x1fu;
    uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0x1f) {
        return float_of(sign | 0x7f800000u | (mantissa << 13));
    }
    if (exponent == 0) {
        /* Subnormal: mantissa * 2^-24, exact in float. */
        float magnitude = (float)mantissa * 0x1.0p-24f;
        return float_of(sign | bits_of(magnitude));
    }
    return float_of(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

/* Shifts `x` right by `shift` (1..31) and rounds what falls off to nearest, ties to even. */
static uint32_t
shift_round(uint32_t x, uint32_t shift)
{
    uint32_t half = 1u << (shift - 1);
    uint32_t rest = x & ((half << 1) - 1u);
    uint32_t kept = x >> shift;
    return kept + (uint32_t)(rest > half || (rest == half && (kept & 1u) != 0));
}

uint16_t
tr_f32_to_f16(float value)
{
    uint32_t x = bits_of(value);
    uint16_t sign = (uint16_t)((x >> 16) & 0x8000u);
    uint32_t magnitude = x & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | ((x >> 13) & 0x3ffu));
    }
    if (magnitude >= 0x47800000u) { /* 2^16 and above, infinity too */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude >= 0x38800000u) { /* normal: 2^-14 and above; a carry may give infinity */
        return (uint16_t)(sign | (uint16_t)shift_round(magnitude - 0x38000000u, 13));
    }
    if (magnitude < 0x33000000u) { /* below 2^-25: rounds to zero */
        return sign;
    }
    uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    return (uint16_t)(sign | (uint16_t)shift_round(mantissa, 126u - (magnitude >> 23)));
}
