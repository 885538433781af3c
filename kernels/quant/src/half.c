/* Half precision by integer arithmetic on the bits: no F16C, no libm, so the same value everywhere, sanitizers
 * included. */
#include "kvf/quant.h"

static float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

float kvf_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
    if (exponent == 0x1f) return float_of_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0) return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    /* Zero and subnormals: mantissa * 2^-24 is exact in f32. */
    float magnitude = (float)mantissa * 0x1p-24f;
    return sign ? -magnitude : magnitude;
}

uint16_t kvf_f32_to_f16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu)); /* NaN, made quiet */
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    if (magnitude < 0x33000001u) return sign; /* up to half of the smallest subnormal: zero */
    uint32_t exponent = magnitude >> 23;
    /* Drop `shift` low bits of the significand, to nearest, ties to even. A carry runs into the exponent, which is
     * right. */
    uint32_t significand, shift;
    if (exponent >= 113) {
        significand = magnitude - (112u << 23);
        shift = 13;
    } else {
        significand = (magnitude & 0x7fffffu) | 0x800000u;
        shift = 126 - exponent;
    }
    uint32_t kept = significand >> shift, dropped = significand & ((1u << shift) - 1), half = 1u << (shift - 1);
    if (dropped > half || (dropped == half && (kept & 1))) kept++;
    return (uint16_t)(sign | kept);
}
