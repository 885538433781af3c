/* sampler_int.h - the sampler's own mathematics. Only +, -, *, / and integer operations in a fixed order: the C
 * library's exp and log differ between machines, these do not (the build forbids contraction, and the type of an
 * expression is its own type). */
#ifndef KVF_SAMPLER_INT_H
#define KVF_SAMPLER_INT_H
#include "kvf/base.h"
#include <float.h>

#if FLT_EVAL_METHOD != 0
#error "expressions must be evaluated in their own type"
#endif

/* At and below -87 exp is taken as 0, so that no result is subnormal. These are the bits of 87. */
#define SAMPLER_EXP_MIN_BITS 0x42ae0000

/* e^x for x <= 0, NaN counting as -infinity; exactly 1 at 0. x = n ln 2 + r with |r| <= ln 2 / 2, Taylor to r^7 (error
 * below half an ulp of the result), times 2^n. No branch, so that a loop over it becomes vector code. */
static inline float sampler_exp(float x) {
    /* The comparison is made on the bits: one on floats may trap, and that keeps compilers from making vector code. */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t alive = 0u - (uint32_t)((int32_t)(bits & 0x7fffffffu) < SAMPLER_EXP_MIN_BITS);
    bits &= alive;
    float y;
    memcpy(&y, &bits, 4);
    const float round_by = 0x1.8p23f; /* adding it leaves the nearest integer in the low bits */
    float shifted = y * 0x1.715476p0f + round_by;
    float n = shifted - round_by;
    float r = (y - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f; /* ln 2 in two parts; the first product is exact */
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    memcpy(&bits, &shifted, 4);
    bits = (bits - 0x4b400000u + 127u) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    p *= scale;
    memcpy(&bits, &p, 4);
    bits &= alive;
    memcpy(&p, &bits, 4);
    return p;
}

/* Natural logarithm of a normal positive number: x = m 2^e with m in [sqrt(1/2), sqrt 2), ln m = 2 artanh((m-1)/(m+1)).
 */
static inline double sampler_log(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    int e = (int)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
    double m;
    memcpy(&m, &bits, 8);
    if (m > 0x1.6a09e667f3bcdp0) {
        m *= 0.5;
        e++;
    }
    double f = (m - 1.0) / (m + 1.0), f2 = f * f, sum = 0.0;
    for (int k = 23; k >= 1; k -= 2) sum = sum * f2 + 1.0 / k;
    return 2.0 * f * sum + (double)e * 0x1.62e42fefa39efp-1;
}

#define SAMPLER_LANES 16
#define SAMPLER_CHUNK 256

/* Largest of the logits, NaN passed over; -infinity when there is none. */
float sampler_max(const float *x, size_t count);
/* First index that holds the largest; 0 when there is none. */
uint32_t sampler_argmax(const float *x, size_t count);
/* Sum of at most SAMPLER_CHUNK values: 16 lanes, then a fixed tree. */
double sampler_chunk_sum(const float *x, size_t count);
#endif
