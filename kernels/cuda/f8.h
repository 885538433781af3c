/* f8.h - e4m3 codes of keys, values and weights by integer operations: the same on every GPU, also those without
 * instructions for them. A code times a scale that is a power of two is exact in f16, down to its smallest numbers. */
#ifndef KVF_CUDA_F8_H
#define KVF_CUDA_F8_H
#include "port.h"

#define KVF_F8_MAX 448.0f

/* The smallest power of two s with top <= 448 s, within [2^-14, 2^8]. top: finite. */
KVF_DEVICE float kvf_f8_scale(float top) {
    uint32_t bits = __float_as_uint(top) & 0x7FFFFFFFu;
    int e = (int)(bits >> 23) - 127 - 8 + ((bits & 0x7FFFFFu) > 0x600000u); /* 448 = 1.75 * 2^8 */
    e = max(-14, min(8, e));
    return __uint_as_float((uint32_t)(e + 127) << 23);
}

/* To nearest, ties to even; beyond 448 the largest. x: a number. */
KVF_DEVICE uint8_t kvf_f8_of(float x) {
    uint32_t bits = __float_as_uint(x), sign = bits >> 24 & 0x80u, code;
    bits &= 0x7FFFFFFFu;
    if (bits < 0x3C800000u) /* below 2^-6: eighths of it. An eighth more is the first normal code: rounding may carry */
        code = (uint32_t)rintf(__uint_as_float(bits) * 512.0f);
    else
        code = min(0x7Eu, ((bits + 0x7FFFFu + (bits >> 20 & 1)) >> 20) - (120u << 3));
    return (uint8_t)(sign | code);
}

/* Two codes, in the high bytes of two halves, times scale. */
KVF_DEVICE uint32_t kvf_f8_pair(uint32_t two, __half2 scale) {
    const __half2 bias = __float2half2_rn(256.0f); /* exponents of f16 count from 8 below those of e4m3 */
    uint32_t h = (two & 0x80008000u) | (two & 0x7F007F00u) >> 1;
    __half2 v = __hmul2(__hmul2(*(__half2 *)&h, bias), scale);
    return *(uint32_t *)&v;
}

/* Two codes of four (`which`: 0 or 1), as halves of their values times 2^-8. */
KVF_DEVICE uint32_t kvf_f8_small(uint32_t four, int which) {
    uint32_t two = __byte_perm(four, 0, which ? 0x3424 : 0x1404);
    return (two & 0x80008000u) | (two & 0x7F007F00u) >> 1;
}

/* Four codes times scale. */
KVF_DEVICE uint2 kvf_f8_to_halves(uint32_t four, __half2 scale) {
    return make_uint2(
        kvf_f8_pair(__byte_perm(four, 0, 0x1404), scale), kvf_f8_pair(__byte_perm(four, 0, 0x3424), scale));
}
#endif
