/* Sixteen f32 lanes in four 128-bit registers: lanes 0-3, 4-7, 8-11, 12-15. Same names as lanes_avx512.h; tuned.h is
 * written over them. Comparisons select as x86 does (the second operand unless the first is less, greater), so that
 * every table treats a NaN alike. */
#ifndef KVF_LANES_NEON_H
#define KVF_LANES_NEON_H
#include "kernels_int.h"
#include <arm_neon.h>

#define LANES_INLINE static inline __attribute__((always_inline))
/* Sizes of register tiles: 32 registers, and a v16 takes four. */
enum { F_ROWS = 6, F_PANELS = 1, SCORE_ROWS = 4, SCORE_PAGES = 1, VALUE_ROWS = 6, VALUE_VECTORS = 1 };

typedef struct {
    float32x4_t a, b, c, d;
} v16;
typedef struct {
    uint32x4_t a, b, c, d;
} i16x32;

LANES_INLINE void lanes_prefetch(const void *p) { __builtin_prefetch(p, 0, 2); }

LANES_INLINE uint64_t lanes_flush(void) {
    uint64_t old;
    __asm__ volatile("mrs %0, fpcr" : "=r"(old)::"memory");
    __asm__ volatile("msr fpcr, %0" ::"r"(old | 1u << 24) : "memory");
    return old;
}
LANES_INLINE void lanes_restore(uint64_t old) { __asm__ volatile("msr fpcr, %0" ::"r"(old) : "memory"); }

#define V16_EACH(f) ((v16){f(a), f(b), f(c), f(d)})
LANES_INLINE v16 v16_set1(float f) {
    float32x4_t v = vdupq_n_f32(f);
    return (v16){v, v, v, v};
}
LANES_INLINE v16 v16_zero(void) { return v16_set1(0); }
LANES_INLINE v16 v16_load(const float *p) {
    return (v16){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
LANES_INLINE void v16_store(float *p, v16 v) {
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
    vst1q_f32(p + 8, v.c);
    vst1q_f32(p + 12, v.d);
}
/* Rare: the end of a row. */
LANES_INLINE v16 v16_load_n(const float *p, uint32_t n) {
    if (n >= 16) return v16_load(p);
    float copy[16] = {0};
    memcpy(copy, p, n * sizeof *p);
    return v16_load(copy);
}
LANES_INLINE void v16_store_n(float *p, v16 v, uint32_t n) {
    if (n >= 16) {
        v16_store(p, v);
        return;
    }
    float copy[16];
    v16_store(copy, v);
    memcpy(p, copy, n * sizeof *p);
}
LANES_INLINE v16 v16_first_or(v16 v, uint32_t n, v16 other) {
    static const uint32_t first[4] = {0, 1, 2, 3};
    uint32x4_t index = vld1q_u32(first), bound = vdupq_n_u32(n);
#define FIRST_OR(part, offset) vbslq_f32(vcltq_u32(vaddq_u32(index, vdupq_n_u32(offset)), bound), v.part, other.part)
    return (v16){FIRST_OR(a, 0), FIRST_OR(b, 4), FIRST_OR(c, 8), FIRST_OR(d, 12)};
#undef FIRST_OR
}

LANES_INLINE float32x4_t v4_load_half(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
LANES_INLINE v16 v16_load_half(const void *p) {
    uint16_t copy[16];
    memcpy(copy, p, sizeof copy);
    return (v16){v4_load_half(copy), v4_load_half(copy + 4), v4_load_half(copy + 8), v4_load_half(copy + 12)};
}
LANES_INLINE v16 v16_load_half_n(const void *p, uint32_t n) {
    uint16_t copy[16] = {0};
    memcpy(copy, p, (n >= 16 ? 16 : n) * sizeof copy[0]);
    return v16_load_half(copy);
}
LANES_INLINE void v16_store_half_n(void *p, v16 v, uint32_t n) {
    uint16_t copy[16];
    vst1_u16(copy, vreinterpret_u16_f16(vcvt_f16_f32(v.a)));
    vst1_u16(copy + 4, vreinterpret_u16_f16(vcvt_f16_f32(v.b)));
    vst1_u16(copy + 8, vreinterpret_u16_f16(vcvt_f16_f32(v.c)));
    vst1_u16(copy + 12, vreinterpret_u16_f16(vcvt_f16_f32(v.d)));
    memcpy(p, copy, (n >= 16 ? 16 : n) * sizeof copy[0]);
}
LANES_INLINE v16 v16_load_i8(const void *p) {
    int8x16_t bytes = vld1q_s8(p);
    int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    return (v16){vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))};
}
LANES_INLINE v16 v16_load_i8_n(const void *p, uint32_t n) {
    int8_t copy[16] = {0};
    memcpy(copy, p, n >= 16 ? 16 : n);
    return v16_load_i8(copy);
}
LANES_INLINE v16 v16_set1_half(const void *p) {
    float32x4_t wide = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(kvf_get_le16(p))));
    return (v16){wide, wide, wide, wide};
}
LANES_INLINE float32x4_t v4_load_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
LANES_INLINE v16 v16_load_bf16(const void *p) {
    uint16_t copy[16];
    memcpy(copy, p, sizeof copy);
    return (v16){v4_load_bf16(copy), v4_load_bf16(copy + 4), v4_load_bf16(copy + 8), v4_load_bf16(copy + 12)};
}

#define V16_ADD(part) vaddq_f32(x.part, y.part)
LANES_INLINE v16 v16_add(v16 x, v16 y) { return V16_EACH(V16_ADD); }
#define V16_SUB(part) vsubq_f32(x.part, y.part)
LANES_INLINE v16 v16_sub(v16 x, v16 y) { return V16_EACH(V16_SUB); }
#define V16_MUL(part) vmulq_f32(x.part, y.part)
LANES_INLINE v16 v16_mul(v16 x, v16 y) { return V16_EACH(V16_MUL); }
#define V16_DIV(part) vdivq_f32(x.part, y.part)
LANES_INLINE v16 v16_div(v16 x, v16 y) { return V16_EACH(V16_DIV); }
#define V16_FMA(part) vfmaq_f32(z.part, x.part, y.part)
LANES_INLINE v16 v16_fma(v16 x, v16 y, v16 z) { return V16_EACH(V16_FMA); }
#define V16_MIN(part) vbslq_f32(vcltq_f32(x.part, y.part), x.part, y.part)
LANES_INLINE v16 v16_min(v16 x, v16 y) { return V16_EACH(V16_MIN); }
LANES_INLINE float32x4_t v4_max(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
#define V16_MAX(part) v4_max(x.part, y.part)
LANES_INLINE v16 v16_max(v16 x, v16 y) { return V16_EACH(V16_MAX); }
#define V16_ZERO_IF_LESS(part)                                                                                         \
    vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v.part), vcltq_f32(x.part, bound.part)))
LANES_INLINE v16 v16_zero_if_less(v16 v, v16 x, v16 bound) { return V16_EACH(V16_ZERO_IF_LESS); }

/* The fixed tree: lanes j and j+8, then +4, +2, +1. */
LANES_INLINE float v16_sum(v16 v) {
    float32x4_t four = vaddq_f32(vaddq_f32(v.a, v.c), vaddq_f32(v.b, v.d));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
LANES_INLINE float v16_largest(v16 v) {
    float32x4_t four = v4_max(v4_max(v.a, v.c), v4_max(v.b, v.d));
    float lane[4];
    vst1q_f32(lane, four);
    float x = lane[0] > lane[2] ? lane[0] : lane[2], y = lane[1] > lane[3] ? lane[1] : lane[3];
    return x > y ? x : y;
}

LANES_INLINE float32x4_t v4_power_of_two(float32x4_t magic_sum) {
    int32x4_t magic = vreinterpretq_s32_f32(vdupq_n_f32(KVF_EXP_MAGIC));
    int32x4_t n = vsubq_s32(vreinterpretq_s32_f32(magic_sum), magic);
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}
#define V16_POWER_OF_TWO(part) v4_power_of_two(magic_sum.part)
LANES_INLINE v16 v16_power_of_two(v16 magic_sum) { return V16_EACH(V16_POWER_OF_TWO); }

LANES_INLINE uint32x4_t v4_size_bits(float32x4_t x, float32x4_t y) {
    uint32x4_t mask = vdupq_n_u32(0x7fffffff);
    return vmaxq_u32(vandq_u32(vreinterpretq_u32_f32(x), mask), vandq_u32(vreinterpretq_u32_f32(y), mask));
}
LANES_INLINE uint32_t v16_largest_bits(v16 x, v16 y) {
    return vmaxvq_u32(vmaxq_u32(vmaxq_u32(v4_size_bits(x.a, y.a), v4_size_bits(x.b, y.b)),
        vmaxq_u32(v4_size_bits(x.c, y.c), v4_size_bits(x.d, y.d))));
}
LANES_INLINE int32_t v16_to_i8(v16 v, int8_t *dst) {
    int32x4_t a = vcvtnq_s32_f32(v.a), b = vcvtnq_s32_f32(v.b), c = vcvtnq_s32_f32(v.c), d = vcvtnq_s32_f32(v.d);
    int16x8_t low = vcombine_s16(vqmovn_s32(a), vqmovn_s32(b)), high = vcombine_s16(vqmovn_s32(c), vqmovn_s32(d));
    vst1q_s8(dst, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
    return vaddvq_s32(vaddq_s32(vaddq_s32(a, b), vaddq_s32(c, d)));
}
LANES_INLINE float32x4_t v4_codes(uint32x4_t lanes, uint32_t shift, uint32_t mask) {
    return vcvtq_f32_u32(vandq_u32(vshlq_u32(lanes, vdupq_n_s32(-(int32_t)shift)), vdupq_n_u32(mask)));
}
#define V16_CODES(part) v4_codes(lanes.part, shift, mask)
LANES_INLINE v16 v16_codes(i16x32 lanes, uint32_t shift, uint32_t mask) { return V16_EACH(V16_CODES); }
LANES_INLINE i16x32 i16_load(const void *p) {
    const uint8_t *at = p;
    return (i16x32){vreinterpretq_u32_u8(vld1q_u8(at)), vreinterpretq_u32_u8(vld1q_u8(at + 16)),
        vreinterpretq_u32_u8(vld1q_u8(at + 32)), vreinterpretq_u32_u8(vld1q_u8(at + 48))};
}

LANES_INLINE void v4_transpose(float32x4_t r[4]) {
    float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(r[0], r[1])), b = vreinterpretq_f64_f32(vtrn2q_f32(r[0], r[1]));
    float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(r[2], r[3])), d = vreinterpretq_f64_f32(vtrn2q_f32(r[2], r[3]));
    r[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
    r[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
    r[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
    r[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}
/* 32 values as sixteen pairs, and back. */
LANES_INLINE void v16_unzip(v16 low, v16 high, v16 *first, v16 *second) {
    *first = (v16){
        vuzp1q_f32(low.a, low.b), vuzp1q_f32(low.c, low.d), vuzp1q_f32(high.a, high.b), vuzp1q_f32(high.c, high.d)};
    *second = (v16){
        vuzp2q_f32(low.a, low.b), vuzp2q_f32(low.c, low.d), vuzp2q_f32(high.a, high.b), vuzp2q_f32(high.c, high.d)};
}
LANES_INLINE void v16_zip(v16 first, v16 second, v16 *low, v16 *high) {
    *low = (v16){vzip1q_f32(first.a, second.a), vzip2q_f32(first.a, second.a), vzip1q_f32(first.b, second.b),
        vzip2q_f32(first.b, second.b)};
    *high = (v16){vzip1q_f32(first.c, second.c), vzip2q_f32(first.c, second.c), vzip1q_f32(first.d, second.d),
        vzip2q_f32(first.d, second.d)};
}

LANES_INLINE void v16_transpose(v16 r[16]) {
    float32x4_t block[4][4][4]; /* [rows 4i..][lanes 4j..][row] */
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 4; k++) {
            v16 row = r[4 * i + k];
            block[i][0][k] = row.a;
            block[i][1][k] = row.b;
            block[i][2][k] = row.c;
            block[i][3][k] = row.d;
        }
        for (int j = 0; j < 4; j++) v4_transpose(block[i][j]);
    }
    for (int j = 0; j < 4; j++)
        for (int k = 0; k < 4; k++)
            r[4 * j + k] = (v16){block[0][j][k], block[1][j][k], block[2][j][k], block[3][j][k]};
}
#endif
