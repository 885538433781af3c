/* AVX-512 with VNNI and BF16: vdpbf16ps adds two products of bf16 to each 32-bit lane, the odd one
 * first, each by a fused multiply-add whose subnormal operands and results are zeros. */
#include "lanes_avx512.h"
#define KVF_SCORE_ROWS 8
#define KVF_OWN_B_MATRIX
#include "tuned.h"
#include "tuned_attention.h"

#include "int8_avx512_vnni.h"

/* ROWS rows against PANELS panels. Two weights of each output, which stand 16 apart, are brought together: once for all
 * rows. */
enum { B_ROWS = 12, B_PANELS = 2, B_AHEAD = Q_AHEAD };
LANES_INLINE void b_tile(const int ROWS, const int PANELS, const kvf_packed *w, const kvf_rows *x, uint32_t row,
    uint32_t panel, uint32_t first_panel, uint32_t first_row, size_t ahead, const kvf_product *out) {
    const __m512i lanes = _mm512_set1_epi32(0x00100000),
                  count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i together = _mm512_add_epi32(lanes, _mm512_mullo_epi32(count, _mm512_set1_epi32(0x00010001)));
    const uint32_t bytes = group_bytes_of(KVF_PACK_BF16);
    const size_t stride = (size_t)x->groups * KVF_GROUP;
    const uint16_t *at_row = x->bf16 + row * stride;
    const uint8_t *at = w->data + panel / 2 * w->pair_bytes + kvf_codes_offset(KVF_PACK_BF16, bytes, panel);
    __m512 acc[B_ROWS][B_PANELS];
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int p = 0; p < PANELS; p++) acc[t][p] = v16_zero();
    for (uint32_t g = 0; g < w->groups; g++, at += bytes, at_row += KVF_GROUP) {
        if (ahead)
            for (uint32_t line = 0; line < bytes; line += 64) lanes_prefetch(at + ahead + line);
        for (int k = 0; k < KVF_GROUP; k += 2) {
            __m512bh weight[B_PANELS];
            UNROLL for (int p = 0; p < PANELS; p++) weight[p] =
                (__m512bh)_mm512_permutexvar_epi16(together, _mm512_loadu_si512(at + (size_t)p * (bytes / 2) + 32 * k));
            UNROLL for (int t = 0; t < ROWS; t++) {
                int32_t two;
                memcpy(&two, at_row + t * stride + k, sizeof two);
                __m512bh value = (__m512bh)_mm512_set1_epi32(two);
                UNROLL for (int p = 0; p < PANELS; p++) acc[t][p] = _mm512_dpbf16_ps(acc[t][p], value, weight[p]);
            }
        }
    }
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int p = 0; p < PANELS; p++) {
        uint32_t index = panel + (uint32_t)p;
        put_outputs(out, first_row + (uint32_t)t, index - first_panel, w->outputs - index * KVF_PANEL, acc[t][p]);
    }
}

#include "bf16_matmul.h"

const kvf_kernel_ops kvf_kernels_avx512_bf16 = KVF_KERNEL_TABLE("avx512-bf16");
