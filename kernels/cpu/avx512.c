/* AVX-512 without VNNI (F, BW, DQ, VL). Products of bytes are summed in pairs into 16 bits, where they must not
 * saturate: nibbles never do (2 * 15 * 127); byte codes are made signed and multiplied as |w| by sign(w) x (2 * 128 *
 * 127 < 2^15). */
#include "lanes_avx512.h"
#define KVF_SCORE_ROWS 8
#include "tuned.h"
#include "tuned_attention.h"

LANES_INLINE __m512i dot4(__m512i acc, __m512i u, __m512i s) {
    return _mm512_add_epi32(acc, _mm512_madd_epi16(_mm512_maddubs_epi16(u, s), _mm512_set1_epi16(1)));
}
LANES_INLINE __m512i dot4_signed(__m512i acc, __m512i codes, __m512i x) {
    __m512i turned = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(codes), _mm512_setzero_si512(), x);
    return dot4(acc, _mm512_abs_epi8(codes), turned);
}
enum { Q_ROWS = 6, Q_AHEAD = 32768 };
#define Q_PANELS_OF(rows) 2
#define DOT4_NIBBLES(acc, codes, x) dot4((acc), (codes), (x))
#define NIBBLES_END(acc) (acc)
#define LOAD_BYTES(p) i16_flip(i16_load(p))
#define BYTES_START(neg_128) ((void)(neg_128), i16_zero())
#define DOT4_BYTES(acc, codes, x) dot4_signed((acc), (codes), (x))
#include "int8_x86.h"

const kvf_kernel_ops kvf_kernels_avx512 = KVF_KERNEL_TABLE("avx512");
