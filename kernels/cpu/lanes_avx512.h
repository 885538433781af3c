/* Sixteen f32 lanes in one 512-bit register. Same names as lanes_avx2.h; tuned.h is written over them. */
#ifndef KVF_LANES_AVX512_H
#define KVF_LANES_AVX512_H
#include "kernels_int.h"
#include <immintrin.h>

#define LANES_INLINE static inline __attribute__((always_inline))
/* Sizes of register tiles: 32 registers. */
enum { F_ROWS = 8, F_PANELS = 2, SCORE_ROWS = 8, SCORE_PAGES = 2, VALUE_ROWS = 6, VALUE_VECTORS = 4 };

typedef __m512 v16;
typedef __m512i i16x32; /* sixteen 32-bit integers */

LANES_INLINE void lanes_prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }
/* Subnormal operands and results become zeros, for this thread until lanes_restore. */
LANES_INLINE uint64_t lanes_flush(void) {
    uint32_t old = _mm_getcsr();
    _mm_setcsr(old | 0x8040);
    return old;
}
LANES_INLINE void lanes_restore(uint64_t old) { _mm_setcsr((uint32_t)old); }
LANES_INLINE v16 v16_zero(void) { return _mm512_setzero_ps(); }
LANES_INLINE v16 v16_set1(float f) { return _mm512_set1_ps(f); }
LANES_INLINE v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
LANES_INLINE void v16_store(float *p, v16 v) { _mm512_storeu_ps(p, v); }
LANES_INLINE __mmask16 v16_mask(uint32_t n) { return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1u); }
/* The first n lanes; the others are 0 (load), untouched (store), or come from `other` (first_or). */
LANES_INLINE v16 v16_load_n(const float *p, uint32_t n) { return _mm512_maskz_loadu_ps(v16_mask(n), p); }
LANES_INLINE void v16_store_n(float *p, v16 v, uint32_t n) { _mm512_mask_storeu_ps(p, v16_mask(n), v); }
LANES_INLINE v16 v16_first_or(v16 v, uint32_t n, v16 other) { return _mm512_mask_mov_ps(other, v16_mask(n), v); }

LANES_INLINE v16 v16_load_half(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
LANES_INLINE v16 v16_load_half_n(const void *p, uint32_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v16_mask(n), p));
}
LANES_INLINE void v16_store_half_n(void *p, v16 v, uint32_t n) {
    _mm256_mask_storeu_epi16(p, v16_mask(n), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
LANES_INLINE v16 v16_load_i8(const void *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
LANES_INLINE v16 v16_load_i8_n(const void *p, uint32_t n) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(v16_mask(n), p)));
}
LANES_INLINE v16 v16_set1_half(const void *p) { return _mm512_cvtph_ps(_mm256_set1_epi16((short)kvf_get_le16(p))); }
LANES_INLINE v16 v16_load_bf16(const void *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

LANES_INLINE v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
LANES_INLINE v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
LANES_INLINE v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
LANES_INLINE v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
LANES_INLINE v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
/* b where a < b is false and nothing else: a NaN in b stays. */
LANES_INLINE v16 v16_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
LANES_INLINE v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
LANES_INLINE v16 v16_zero_if_less(v16 v, v16 x, v16 bound) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_NLT_UQ), v);
}

/* The fixed tree: lanes j and j+8, then +4, +2, +1. */
LANES_INLINE __m128 v16_fold_sum(v16 v) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}
LANES_INLINE float v16_sum(v16 v) {
    __m128 b = v16_fold_sum(v);
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
LANES_INLINE float v16_largest(v16 v) { return _mm512_reduce_max_ps(v); }

LANES_INLINE i16x32 i16_bits(v16 v) { return _mm512_castps_si512(v); }
LANES_INLINE v16 v16_power_of_two(v16 magic_sum) { /* 2^n where magic_sum = n + KVF_EXP_MAGIC */
    __m512i n = _mm512_sub_epi32(_mm512_castps_si512(magic_sum), _mm512_castps_si512(_mm512_set1_ps(KVF_EXP_MAGIC)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}
/* Largest of the bits without sign: a NaN counts as more than infinity. */
LANES_INLINE uint32_t v16_largest_bits(v16 a, v16 b) {
    __m512i mask = _mm512_set1_epi32(0x7fffffff);
    __m512i x = _mm512_and_si512(_mm512_castps_si512(a), mask), y = _mm512_and_si512(_mm512_castps_si512(b), mask);
    return (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(x, y));
}
/* Nearest (even) integers as bytes; their sum. */
LANES_INLINE int32_t v16_to_i8(v16 v, int8_t *dst) {
    __m512i n = _mm512_cvtps_epi32(v);
    _mm_storeu_si128((__m128i *)dst, _mm512_cvtepi32_epi8(n));
    return _mm512_reduce_add_epi32(n);
}
/* Codes of sixteen outputs for one k: a field of the 32-bit lanes at p. */
LANES_INLINE v16 v16_codes(i16x32 lanes, uint32_t shift, uint32_t mask) {
    return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(lanes, shift), _mm512_set1_epi32((int)mask)));
}
LANES_INLINE i16x32 i16_load(const void *p) { return _mm512_loadu_si512(p); }
LANES_INLINE i16x32 i16_zero(void) { return _mm512_setzero_si512(); }
LANES_INLINE i16x32 i16_set1(int32_t i) { return _mm512_set1_epi32(i); }
LANES_INLINE i16x32 i16_low(i16x32 bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi8(15)); }
LANES_INLINE i16x32 i16_high(i16x32 bytes) { return i16_low(_mm512_srli_epi16(bytes, 4)); }
LANES_INLINE i16x32 i16_flip(i16x32 bytes) { return _mm512_xor_si512(bytes, _mm512_set1_epi8((char)0x80)); }
LANES_INLINE v16 i16_to_f32(i16x32 i) { return _mm512_cvtepi32_ps(i); }

/* 32 values as sixteen pairs, and back. */
LANES_INLINE void v16_unzip(v16 low, v16 high, v16 *first, v16 *second) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *first = _mm512_permutex2var_ps(low, even, high);
    *second = _mm512_permutex2var_ps(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), high);
}
LANES_INLINE void v16_zip(v16 first, v16 second, v16 *low, v16 *high) {
    const __m512i pairs = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *low = _mm512_permutex2var_ps(first, pairs, second);
    *high = _mm512_permutex2var_ps(first, _mm512_add_epi32(pairs, _mm512_set1_epi32(8)), second);
}

/* Rows become columns: out[d] lane t = in[t] lane d. */
LANES_INLINE void v16_transpose(v16 r[16]) {
    __m512 t[16];
    for (int i = 0; i < 16; i += 4) {
        __m512 a = _mm512_unpacklo_ps(r[i], r[i + 1]), b = _mm512_unpackhi_ps(r[i], r[i + 1]);
        __m512 c = _mm512_unpacklo_ps(r[i + 2], r[i + 3]), d = _mm512_unpackhi_ps(r[i + 2], r[i + 3]);
        t[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(c)));
        t[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(c)));
        t[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(b), _mm512_castps_pd(d)));
        t[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(b), _mm512_castps_pd(d)));
    }
    /* t[4i+j], 128-bit part q: column 4q+j of rows 4i..4i+3 */
    for (int j = 0; j < 4; j++) {
        __m512 a = _mm512_shuffle_f32x4(t[j], t[j + 4], 0x88), b = _mm512_shuffle_f32x4(t[j], t[j + 4], 0xdd);
        __m512 c = _mm512_shuffle_f32x4(t[j + 8], t[j + 12], 0x88), d = _mm512_shuffle_f32x4(t[j + 8], t[j + 12], 0xdd);
        r[j] = _mm512_shuffle_f32x4(a, c, 0x88);
        r[8 + j] = _mm512_shuffle_f32x4(a, c, 0xdd);
        r[4 + j] = _mm512_shuffle_f32x4(b, d, 0x88);
        r[12 + j] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}
#endif
