/* AVX2 with FMA and F16C. Pairs of byte products fit 16 bits (see avx512.c), and so do the eight pairs of a group of
 * nibbles (8 * 2 * 15 * 127 < 2^15): one widening per group. */
#include "lanes_avx2.h"
#define KVF_SCORE_ROWS 4
#include "tuned.h"
#include "tuned_attention.h"

LANES_INLINE __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
LANES_INLINE i16x32 add_pairs(i16x32 acc, i16x32 u, i16x32 s) {
    return (i16x32){_mm256_add_epi16(acc.a, _mm256_maddubs_epi16(u.a, s.a)),
        _mm256_add_epi16(acc.b, _mm256_maddubs_epi16(u.b, s.b))};
}
LANES_INLINE __m256i dot4_signed(__m256i acc, __m256i codes, __m256i x) {
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
    return _mm256_add_epi32(acc, widen(pairs));
}

enum { Q_ROWS = 3, Q_AHEAD = 8192 };
#define Q_PANELS_OF(rows) ((rows) == 1 ? 2 : 1) /* sixteen registers */
#define DOT4_NIBBLES(acc, codes, x) add_pairs((acc), (codes), (x))
#define NIBBLES_END(acc) ((i16x32){widen((acc).a), widen((acc).b)})
#define LOAD_BYTES(p) i16_flip(i16_load(p))
#define BYTES_START(neg_128) ((void)(neg_128), i16_zero())
#define DOT4_BYTES(acc, codes, x)                                                                                      \
    ((i16x32){dot4_signed((acc).a, (codes).a, (x).a), dot4_signed((acc).b, (codes).b, (x).b)})
#include "int8_x86.h"

const kvf_kernel_ops kvf_kernels_avx2 = KVF_KERNEL_TABLE("avx2");
