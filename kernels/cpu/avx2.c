/* AVX2 with FMA and F16C. A panel is two registers of 8 outputs x 4 codes. Pairs of byte products fit 16 bits (see
 * avx512.c), and so do the eight pairs of a group of nibbles (8 * 2 * 15 * 127 < 2^15): one widening per group. */
#include "lanes_avx2.h"
#define KVF_SCORE_ROWS 4
#include "tuned.h"
#include "tuned_attention.h"

enum { Q_ROWS = 3, Q_PANELS = 2, Q_AHEAD = 8192 };

LANES_INLINE __m256i four(const int8_t *q) {
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm256_set1_epi32(v);
}
LANES_INLINE __m256i load8(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
LANES_INLINE __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

/* Index h of a dot: register h % 2 of panel h / 2. `codes_step`: from a panel's codes to those of the other of its
 * pair. */
LANES_INLINE void q_dot_nibbles(const int ROWS, const int PANELS, const uint8_t *at, const size_t codes_step,
    const int8_t *q, size_t q_stride, __m256i dot[Q_ROWS][2 * Q_PANELS]) {
    const __m256i mask = _mm256_set1_epi8(15);
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int h = 0; h < 2 * PANELS; h++) dot[t][h] =
        _mm256_setzero_si256();
    UNROLL for (int j = 0; j < 4; j++) {
        UNROLL for (int half = 0; half < 2; half++) {
            __m256i codes[2 * Q_PANELS];
            UNROLL for (int h = 0; h < 2 * PANELS; h++) {
                __m256i both = load8(at + (size_t)(h / 2) * codes_step + 64 * j + 32 * (h % 2));
                codes[h] = _mm256_and_si256(half ? _mm256_srli_epi16(both, 4) : both, mask);
            }
            UNROLL for (int t = 0; t < ROWS; t++) {
                __m256i x = four(q + t * q_stride + 16 * half + 4 * j);
                UNROLL for (int h = 0; h < 2 * PANELS; h++) dot[t][h] =
                    _mm256_add_epi16(dot[t][h], _mm256_maddubs_epi16(codes[h], x));
            }
        }
    }
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int h = 0; h < 2 * PANELS; h++) dot[t][h] = widen(dot[t][h]);
}

LANES_INLINE void q_dot_bytes(const int ROWS, const int PANELS, const uint8_t *at, const size_t codes_step,
    const int8_t *q, size_t q_stride, const int first, const int end, __m256i dot[Q_ROWS][2 * Q_PANELS]) {
    const __m256i offset = _mm256_set1_epi8((char)0x80);
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int h = 0; h < 2 * PANELS; h++) dot[t][h] =
        _mm256_setzero_si256();
    for (int j = first; j < end; j++) {
        UNROLL for (int h = 0; h < 2 * PANELS; h++) {
            __m256i codes = load8(at + (size_t)(h / 2) * codes_step + 64 * j + 32 * (h % 2));
            codes = _mm256_xor_si256(codes, offset);
            __m256i size = _mm256_abs_epi8(codes);
            UNROLL for (int t = 0; t < ROWS; t++) {
                __m256i x = _mm256_sign_epi8(four(q + t * q_stride + 4 * j), codes);
                dot[t][h] = _mm256_add_epi32(dot[t][h], widen(_mm256_maddubs_epi16(size, x)));
            }
        }
    }
}

LANES_INLINE void q_scale(kvf_pack_kind kind, const int ROWS, const int PANELS, const uint8_t *scales,
    const size_t scales_step, const kvf_group_scale *scale, size_t stride, __m256i dot[Q_ROWS][2 * Q_PANELS],
    v16 acc[Q_ROWS][Q_PANELS]) {
    const bool is_wide = kind == KVF_PACK_Q4F || kind == KVF_PACK_Q8G || kind == KVF_PACK_Q8M;
    const bool has_min = kind == KVF_PACK_Q4 || kind == KVF_PACK_Q4F || kind == KVF_PACK_Q8M;
    UNROLL for (int p = 0; p < PANELS; p++) {
        const uint8_t *at = scales + (size_t)p * scales_step;
        const float *wide = (const float *)(const void *)at;
        v16 d = is_wide ? v16_load(wide) : v16_load_half(at);
        v16 m = kind == KVF_PACK_Q4 ? v16_load_half(at + 32) : has_min ? v16_load(wide + 16) : v16_zero();
        UNROLL for (int t = 0; t < ROWS; t++) {
            const kvf_group_scale *at_row = scale + t * stride;
            v16 i = {_mm256_cvtepi32_ps(dot[t][2 * p]), _mm256_cvtepi32_ps(dot[t][2 * p + 1])};
            if (has_min) acc[t][p] = v16_fma(m, v16_set1(at_row->us), acc[t][p]);
            acc[t][p] = v16_fma(v16_mul(i, d), v16_set1(at_row->s), acc[t][p]);
        }
    }
}

/* Weights come from memory once a step. `ahead`: how far in front of each group to ask for weights; 0: not at all. */
LANES_INLINE void q_tile(kvf_pack_kind kind, const int ROWS, const int PANELS, const kvf_packed *w, const kvf_rows *x,
    uint32_t row, uint32_t panel, uint32_t first_panel, uint32_t first_row, size_t ahead, const kvf_product *out) {
    size_t q_stride = (size_t)x->groups * KVF_GROUP;
    const int8_t *q = x->q + row * q_stride;
    const kvf_group_scale *scale = x->scale + (size_t)row * x->groups;
    const uint32_t bytes = group_bytes_of(kind);
    const uint8_t *group = w->data + panel / 2 * w->pair_bytes;
    const size_t codes_step = kvf_codes_offset(kind, bytes, 1);
    const size_t scales_step = kvf_scales_offset(kind, bytes, 1) - kvf_scales_offset(kind, bytes, 0);
    v16 acc[Q_ROWS][Q_PANELS];
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int p = 0; p < PANELS; p++) acc[t][p] = v16_zero();
    for (uint32_t g = 0; g < w->groups; g++, q += KVF_GROUP, scale++, group += bytes) {
        const uint8_t *at = group + kvf_codes_offset(kind, bytes, panel);
        const uint8_t *scales = group + kvf_scales_offset(kind, bytes, panel);
        __m256i dot[Q_ROWS][2 * Q_PANELS];
        if (ahead) UNROLL
        for (uint32_t line = 0; line < bytes; line += 64) lanes_prefetch(group + ahead + line);
        if (kind == KVF_PACK_Q8G) {
            q_dot_bytes(ROWS, PANELS, at, codes_step, q, q_stride, 0, 4, dot);
            q_scale(kind, ROWS, PANELS, scales, scales_step, scale, x->groups, dot, acc);
            q_dot_bytes(ROWS, PANELS, at, codes_step, q, q_stride, 4, 8, dot);
            q_scale(kind, ROWS, PANELS, scales + 64, scales_step, scale, x->groups, dot, acc);
            continue;
        }
        if (kvf_kind_has_bytes(kind))
            q_dot_bytes(ROWS, PANELS, at, codes_step, q, q_stride, 0, 8, dot);
        else
            q_dot_nibbles(ROWS, PANELS, at, codes_step, q, q_stride, dot);
        q_scale(kind, ROWS, PANELS, scales, scales_step, scale, x->groups, dot, acc);
    }
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int p = 0; p < PANELS; p++) {
        uint32_t index = panel + (uint32_t)p;
        put_outputs(out, first_row + (uint32_t)t, index - first_panel, w->outputs - index * KVF_PANEL, acc[t][p]);
    }
}

LANES_INLINE void q_panel(kvf_pack_kind kind, const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows,
    uint32_t panel, uint32_t first_panel, size_t ahead, const kvf_product *out) {
    uint32_t r = 0;
    for (; r + Q_ROWS <= rows; r += Q_ROWS)
        q_tile(kind, Q_ROWS, 1, w, x, row + r, panel, first_panel, r, r == 0 ? ahead : 0, out);
    if (rows - r == 2) q_tile(kind, 2, 1, w, x, row + r, panel, first_panel, r, r == 0 ? ahead : 0, out);
    if (rows - r == 1) q_tile(kind, 1, 1, w, x, row + r, panel, first_panel, r, r == 0 ? ahead : 0, out);
}

/* One row takes both panels of a pair, so that weights are one straight stream. More rows have no registers for that:
 * the first tile of a pair asks for the next pair. */
LANES_INLINE void q_matrix(kvf_pack_kind kind, const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows,
    uint32_t panel, uint32_t panels, const kvf_product *out) {
    for (uint32_t p = panel, end = panel + panels; p < end; p++) {
        if (rows == 1 && p % 2 == 0 && p + 2 <= end) {
            q_tile(kind, 1, 2, w, x, row, p, panel, 0, Q_AHEAD, out);
            p++;
        } else {
            q_panel(kind, w, x, row, rows, p, panel, p % 2 == 0 ? w->pair_bytes : 0, out);
        }
    }
}

static void matmul_q(const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows, uint32_t panel,
    uint32_t panels, const kvf_product *out) {
    switch (w->kind) {
    case KVF_PACK_Q4: q_matrix(KVF_PACK_Q4, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_Q4F: q_matrix(KVF_PACK_Q4F, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_Q8: q_matrix(KVF_PACK_Q8, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_Q8G: q_matrix(KVF_PACK_Q8G, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_Q8M: q_matrix(KVF_PACK_Q8M, w, x, row, rows, panel, panels, out); break;
    default: KVF_ASSERT(!"this kind has no 8-bit product");
    }
}

const kvf_kernel_ops kvf_kernels_avx2 = KVF_KERNEL_TABLE("avx2");
