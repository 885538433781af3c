/* Angles of rotary position embedding. Everything in double with elementary operations only (no libm, no fma): the same
 * bits on every IEEE machine, errors near 1e-16, rounded once to f32. */
#include "kvf/kernels.h"

/* e^x by x = n ln2 + r, |r| <= ln2/2, and the Taylor series to r^13. Arguments here are moderate (|x| < 700). */
double kvf_exp_double(double x) {
    const double ln2_hi = 0x1.62e42feep-1, ln2_lo = 0x1.a39ef35793c76p-33;
    double n = (double)(int64_t)(x * 0x1.71547652b82fep+0 + (x < 0 ? -0.5 : 0.5));
    double r = (x - n * ln2_hi) - n * ln2_lo;
    double p = 1.0;
    for (int i = 13; i > 0; i--) p = 1.0 + p * r / i;
    uint64_t bits = (uint64_t)((int64_t)n + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

/* ln x for normal x > 0: x = 2^e m, m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m-1)/(m+1)). */
double kvf_log_double(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t e = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        e++;
    }
    double t = (m - 1.0) / (m + 1.0), t2 = t * t, sum = 0.0;
    for (int i = 23; i > 0; i -= 2) sum = sum * t2 + 1.0 / i;
    const double ln2_hi = 0x1.62e42feep-1, ln2_lo = 0x1.a39ef35793c76p-33;
    return (double)e * ln2_hi + (2.0 * t * sum + (double)e * ln2_lo);
}

/* Reduction by multiples of pi/2 with a constant in three parts of 33 bits: n < 2^20 makes the first two products
 * exact. */
void kvf_sin_cos(double x, double *sine, double *cosine) {
    const double p1 = 0x1.921fb544p+0, p2 = 0x1.0b4611a6p-34, p3 = 0x1.3198a2e037073p-69;
    int64_t n = (int64_t)(x * 0x1.45f306dc9c883p-1 + (x < 0 ? -0.5 : 0.5));
    double nd = (double)n;
    double r = ((x - nd * p1) - nd * p2) - nd * p3;
    double r2 = r * r, s = 1.0, c = 1.0;
    for (int i = 18; i > 0; i -= 2) {
        s = 1.0 - s * r2 / (double)(i * (i + 1));
        c = 1.0 - c * r2 / (double)(i * (i - 1));
    }
    s *= r;
    double quarter[4] = {s, c, -s, -c}; /* sin(r + k pi/2) */
    *sine = quarter[n & 3];
    *cosine = quarter[(n + 1) & 3];
}

void kvf_rope_frequencies(double base, double scale, const float *factors, uint32_t dims, double *frequency) {
    double log_base = kvf_log_double(base);
    for (uint32_t i = 0; i < dims / 2; i++) {
        double f = kvf_exp_double(-(2.0 * i / dims) * log_base) * scale;
        frequency[i] = factors ? f / (double)factors[i] : f;
    }
}

void kvf_rope_angles(const double *frequency, uint32_t pairs, uint32_t position, float *cos_sin) {
    for (uint32_t i = 0; i < pairs; i++) {
        double s, c;
        kvf_sin_cos((double)position * frequency[i], &s, &c);
        cos_sin[i] = (float)c;
        cos_sin[pairs + i] = (float)s;
    }
}
