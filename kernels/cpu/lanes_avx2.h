/* Sixteen f32 lanes in two 256-bit registers: lanes 0-7 and 8-15. Same names as lanes_avx512.h; tuned.h is written over
 * them. */
#ifndef KVF_LANES_AVX2_H
#define KVF_LANES_AVX2_H
#include "kernels_int.h"
#include <immintrin.h>

#define LANES_INLINE static inline __attribute__((always_inline))
/* Sizes of register tiles: 16 registers, and a v16 takes two. */
enum { F_ROWS = 4, F_PANELS = 1, SCORE_ROWS = 4, SCORE_PAGES = 1, VALUE_ROWS = 3, VALUE_VECTORS = 2 };

typedef struct {
    __m256 a, b;
} v16;
typedef struct {
    __m256i a, b;
} i16x32;

LANES_INLINE void lanes_prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }
LANES_INLINE uint64_t lanes_flush(void) {
    uint32_t old = _mm_getcsr();
    _mm_setcsr(old | 0x8040);
    return old;
}
LANES_INLINE void lanes_restore(uint64_t old) { _mm_setcsr((uint32_t)old); }
LANES_INLINE v16 v16_zero(void) { return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
LANES_INLINE v16 v16_set1(float f) { return (v16){_mm256_set1_ps(f), _mm256_set1_ps(f)}; }
LANES_INLINE v16 v16_load(const float *p) { return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LANES_INLINE void v16_store(float *p, v16 v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
LANES_INLINE __m256i v16_mask8(uint32_t n, int first) {
    __m256i index = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), index);
}
LANES_INLINE v16 v16_load_n(const float *p, uint32_t n) {
    if (n >= 16) return v16_load(p);
    return (v16){_mm256_maskload_ps(p, v16_mask8(n, 0)), _mm256_maskload_ps(p + 8, v16_mask8(n, 8))};
}
LANES_INLINE void v16_store_n(float *p, v16 v, uint32_t n) {
    if (n >= 16) {
        v16_store(p, v);
        return;
    }
    _mm256_maskstore_ps(p, v16_mask8(n, 0), v.a);
    _mm256_maskstore_ps(p + 8, v16_mask8(n, 8), v.b);
}
LANES_INLINE v16 v16_first_or(v16 v, uint32_t n, v16 other) {
    return (v16){_mm256_blendv_ps(other.a, v.a, _mm256_castsi256_ps(v16_mask8(n, 0))),
        _mm256_blendv_ps(other.b, v.b, _mm256_castsi256_ps(v16_mask8(n, 8)))};
}

LANES_INLINE v16 v16_load_half(const void *p) {
    const __m128i *at = (const __m128i *)p;
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1))};
}
LANES_INLINE v16 v16_load_half_n(const void *p, uint32_t n) {
    if (n >= 16) return v16_load_half(p);
    uint16_t copy[16] = {0};
    memcpy(copy, p, n * sizeof copy[0]);
    return v16_load_half(copy);
}
LANES_INLINE void v16_store_half_n(void *p, v16 v, uint32_t n) {
    __m128i copy[2] = {_mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
        _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
    if (n >= 16)
        memcpy(p, copy, sizeof copy);
    else
        memcpy(p, copy, n * 2);
}
LANES_INLINE v16 v16_load_i8(const void *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
LANES_INLINE v16 v16_load_i8_n(const void *p, uint32_t n) {
    uint8_t copy[16] = {0};
    memcpy(copy, p, n >= 16 ? 16 : n);
    return v16_load_i8(copy);
}
LANES_INLINE v16 v16_set1_half(const void *p) {
    __m256 wide = _mm256_cvtph_ps(_mm_set1_epi16((short)kvf_get_le16(p)));
    return (v16){wide, wide};
}
LANES_INLINE v16 v16_load_bf16(const void *p) {
    const __m128i *at = (const __m128i *)p;
    return (v16){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(at)), 16)),
        _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(at + 1)), 16))};
}

LANES_INLINE v16 v16_add(v16 x, v16 y) { return (v16){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
LANES_INLINE v16 v16_sub(v16 x, v16 y) { return (v16){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
LANES_INLINE v16 v16_mul(v16 x, v16 y) { return (v16){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
LANES_INLINE v16 v16_div(v16 x, v16 y) { return (v16){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
LANES_INLINE v16 v16_fma(v16 x, v16 y, v16 z) {
    return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
LANES_INLINE v16 v16_min(v16 x, v16 y) { return (v16){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
LANES_INLINE v16 v16_max(v16 x, v16 y) { return (v16){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
LANES_INLINE v16 v16_zero_if_less(v16 v, v16 x, v16 bound) {
    return (v16){_mm256_and_ps(_mm256_cmp_ps(x.a, bound.a, _CMP_NLT_UQ), v.a),
        _mm256_and_ps(_mm256_cmp_ps(x.b, bound.b, _CMP_NLT_UQ), v.b)};
}

LANES_INLINE float v16_sum(v16 v) {
    __m256 a = _mm256_add_ps(v.a, v.b);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
LANES_INLINE float v16_largest(v16 v) {
    __m256 a = _mm256_max_ps(v.a, v.b);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

LANES_INLINE __m256 v8_power_of_two(__m256 magic_sum) {
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(magic_sum), _mm256_castps_si256(_mm256_set1_ps(KVF_EXP_MAGIC)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
LANES_INLINE v16 v16_power_of_two(v16 magic_sum) {
    return (v16){v8_power_of_two(magic_sum.a), v8_power_of_two(magic_sum.b)};
}
LANES_INLINE uint32_t v16_largest_bits(v16 x, v16 y) {
    __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i m = _mm256_max_epi32(_mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(x.a), mask),
                                     _mm256_and_si256(_mm256_castps_si256(x.b), mask)),
        _mm256_max_epi32(
            _mm256_and_si256(_mm256_castps_si256(y.a), mask), _mm256_and_si256(_mm256_castps_si256(y.b), mask)));
    __m128i n = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(n, _mm_shuffle_epi32(n, 0xb1)));
}
LANES_INLINE int32_t v16_to_i8(v16 v, int8_t *dst) {
    __m256i a = _mm256_cvtps_epi32(v.a), b = _mm256_cvtps_epi32(v.b), sum = _mm256_add_epi32(a, b);
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)dst, bytes);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
LANES_INLINE v16 v16_codes(i16x32 lanes, uint32_t shift, uint32_t mask) {
    __m256i m = _mm256_set1_epi32((int)mask);
    return (v16){_mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(lanes.a, (int)shift), m)),
        _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(lanes.b, (int)shift), m))};
}
LANES_INLINE i16x32 i16_load(const void *p) {
    const __m256i *at = (const __m256i *)p;
    return (i16x32){_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
LANES_INLINE i16x32 i16_zero(void) { return (i16x32){_mm256_setzero_si256(), _mm256_setzero_si256()}; }
LANES_INLINE i16x32 i16_set1(int32_t i) { return (i16x32){_mm256_set1_epi32(i), _mm256_set1_epi32(i)}; }
/* Low and high nibbles of bytes; bytes with their highest bit turned. */
LANES_INLINE i16x32 i16_low(i16x32 bytes) {
    const __m256i mask = _mm256_set1_epi8(15);
    return (i16x32){_mm256_and_si256(bytes.a, mask), _mm256_and_si256(bytes.b, mask)};
}
LANES_INLINE i16x32 i16_high(i16x32 bytes) {
    return i16_low((i16x32){_mm256_srli_epi16(bytes.a, 4), _mm256_srli_epi16(bytes.b, 4)});
}
LANES_INLINE i16x32 i16_flip(i16x32 bytes) {
    const __m256i top = _mm256_set1_epi8((char)0x80);
    return (i16x32){_mm256_xor_si256(bytes.a, top), _mm256_xor_si256(bytes.b, top)};
}
LANES_INLINE v16 i16_to_f32(i16x32 i) { return (v16){_mm256_cvtepi32_ps(i.a), _mm256_cvtepi32_ps(i.b)}; }

LANES_INLINE void v8_transpose(__m256 r[8]) {
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}
/* 32 values as sixteen pairs, and back. */
LANES_INLINE __m256 v8_sorted(__m256 quarters) { /* 0 2 1 3 of four */
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(quarters), 0xd8));
}
LANES_INLINE void v16_unzip(v16 low, v16 high, v16 *first, v16 *second) {
    *first =
        (v16){v8_sorted(_mm256_shuffle_ps(low.a, low.b, 0x88)), v8_sorted(_mm256_shuffle_ps(high.a, high.b, 0x88))};
    *second =
        (v16){v8_sorted(_mm256_shuffle_ps(low.a, low.b, 0xdd)), v8_sorted(_mm256_shuffle_ps(high.a, high.b, 0xdd))};
}
LANES_INLINE v16 v8_zip(__m256 first, __m256 second) {
    __m256 even = _mm256_unpacklo_ps(first, second), odd = _mm256_unpackhi_ps(first, second);
    return (v16){_mm256_permute2f128_ps(even, odd, 0x20), _mm256_permute2f128_ps(even, odd, 0x31)};
}
LANES_INLINE void v16_zip(v16 first, v16 second, v16 *low, v16 *high) {
    *low = v8_zip(first.a, second.a);
    *high = v8_zip(first.b, second.b);
}

LANES_INLINE void v16_transpose(v16 r[16]) {
    __m256 q[4][8];
    for (int i = 0; i < 8; i++) {
        q[0][i] = r[i].a;
        q[1][i] = r[i].b;
        q[2][i] = r[8 + i].a;
        q[3][i] = r[8 + i].b;
    }
    for (int i = 0; i < 4; i++) v8_transpose(q[i]);
    for (int i = 0; i < 8; i++) {
        r[i] = (v16){q[0][i], q[2][i]};
        r[8 + i] = (v16){q[1][i], q[3][i]};
    }
}
#endif
