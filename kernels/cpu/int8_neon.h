/* 8-bit products over 128-bit registers; included after tuned.h. A register holds 4 outputs x 4 codes, a panel is four
 * of them. Codes are made signed (nibbles are, bytes lose their offset of 128), so sums start at zero. The source
 * defines DOT4(acc, codes, x): four products added to each 32-bit lane, exactly; and KVF_DOT_PAIRS where a matrix
 * instruction takes two rows at a time (vmmlaq_s32). */
#ifndef KVF_INT8_NEON_H
#define KVF_INT8_NEON_H

enum { Q_ROWS = 4, Q_PARTS = 4 };

LANES_INLINE int8x16_t four(const int8_t *q) {
    int32_t v;
    memcpy(&v, q, sizeof v);
    return vreinterpretq_s8_s32(vdupq_n_s32(v));
}

/* 16 codes of vector j of a group: its low nibbles, its high ones, or bytes without their offset. */
typedef enum { CODES_LOW, CODES_HIGH, CODES_BYTES } codes_part;
LANES_INLINE int8x16_t codes_at(const codes_part part, const uint8_t *at) {
    uint8x16_t v = vld1q_u8(at);
    if (part == CODES_BYTES) return vreinterpretq_s8_u8(veorq_u8(v, vdupq_n_u8(0x80)));
    return vreinterpretq_s8_u8(part == CODES_HIGH ? vshrq_n_u8(v, 4) : vandq_u8(v, vdupq_n_u8(15)));
}

/* Vectors [first, end) of codes against the values from q on. */
LANES_INLINE void q_dot_single(const codes_part part, const int ROWS, const uint8_t *at, const int first, const int end,
    const int8_t *q, size_t q_stride, int32x4_t dot[Q_ROWS][Q_PARTS]) {
    UNROLL for (int j = first; j < end; j++) {
        int8x16_t codes[Q_PARTS];
        UNROLL for (int o = 0; o < Q_PARTS; o++) codes[o] = codes_at(part, at + 64 * j + 16 * o);
        UNROLL for (int t = 0; t < ROWS; t++) {
            int8x16_t x = four(q + t * q_stride + 4 * (j - first));
            UNROLL for (int o = 0; o < Q_PARTS; o++) dot[t][o] = DOT4(dot[t][o], codes[o], x);
        }
    }
}

#if defined(KVF_DOT_PAIRS)
LANES_INLINE int8x16_t zip_low(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s32(vzip1q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
}
LANES_INLINE int8x16_t zip_high(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s32(vzip2q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
}

/* The same for an even number of rows: two vectors zipped are 2 outputs x 8 codes, against 2 rows x 8 values; a
 * register of sums is 2 rows x 2 outputs. */
LANES_INLINE void q_dot_pairs(const codes_part part, const int ROWS, const uint8_t *at, const int first, const int end,
    const int8_t *q, size_t q_stride, int32x4_t dot[Q_ROWS][Q_PARTS]) {
    int32x4_t sums[Q_ROWS / 2][2 * Q_PARTS];
    UNROLL for (int t = 0; t < ROWS / 2; t++) UNROLL for (int o = 0; o < 2 * Q_PARTS; o++) sums[t][o] = vdupq_n_s32(0);
    UNROLL for (int j = first; j < end; j += 2) {
        int8x16_t codes[2 * Q_PARTS];
        UNROLL for (int o = 0; o < Q_PARTS; o++) {
            int8x16_t a = codes_at(part, at + 64 * j + 16 * o), b = codes_at(part, at + 64 * (j + 1) + 16 * o);
            codes[2 * o] = zip_low(a, b);
            codes[2 * o + 1] = zip_high(a, b);
        }
        UNROLL for (int t = 0; t < ROWS / 2; t++) {
            const int8_t *row = q + 2 * t * q_stride + 4 * (j - first);
            int8x16_t x = vcombine_s8(vld1_s8(row), vld1_s8(row + q_stride));
            UNROLL for (int o = 0; o < 2 * Q_PARTS; o++) sums[t][o] = vmmlaq_s32(sums[t][o], x, codes[o]);
        }
    }
    UNROLL for (int t = 0; t < ROWS / 2; t++) UNROLL for (int o = 0; o < Q_PARTS; o++) {
        int64x2_t a = vreinterpretq_s64_s32(sums[t][2 * o]), b = vreinterpretq_s64_s32(sums[t][2 * o + 1]);
        dot[2 * t][o] = vaddq_s32(dot[2 * t][o], vreinterpretq_s32_s64(vzip1q_s64(a, b)));
        dot[2 * t + 1][o] = vaddq_s32(dot[2 * t + 1][o], vreinterpretq_s32_s64(vzip2q_s64(a, b)));
    }
}
#endif

LANES_INLINE void q_dot(const codes_part part, const int ROWS, const uint8_t *at, const int first, const int end,
    const int8_t *q, size_t q_stride, int32x4_t dot[Q_ROWS][Q_PARTS]) {
#if defined(KVF_DOT_PAIRS)
    if (ROWS % 2 == 0) {
        q_dot_pairs(part, ROWS, at, first, end, q, q_stride, dot);
        return;
    }
#endif
    q_dot_single(part, ROWS, at, first, end, q, q_stride, dot);
}

/* acc = fma(m, us, acc), then acc = fma(dot * d, s, acc). */
LANES_INLINE void q_scale(kvf_pack_kind kind, const int ROWS, const uint8_t *scales, const kvf_group_scale *scale,
    size_t stride, int32x4_t dot[Q_ROWS][Q_PARTS], v16 acc[Q_ROWS]) {
    const float *wide = (const float *)(const void *)scales;
    const bool is_wide = kind == KVF_PACK_Q4F || kind == KVF_PACK_Q8G || kind == KVF_PACK_Q8M;
    const bool has_min = kind == KVF_PACK_Q4 || kind == KVF_PACK_Q4F || kind == KVF_PACK_Q8M;
    v16 d = is_wide ? v16_load(wide) : v16_load_half(scales);
    v16 m = kind == KVF_PACK_Q4 ? v16_load_half(scales + 32) : has_min ? v16_load(wide + 16) : v16_zero();
    UNROLL for (int t = 0; t < ROWS; t++) {
        v16 i = {
            vcvtq_f32_s32(dot[t][0]), vcvtq_f32_s32(dot[t][1]), vcvtq_f32_s32(dot[t][2]), vcvtq_f32_s32(dot[t][3])};
        if (has_min) acc[t] = v16_fma(m, v16_set1(scale[t * stride].us), acc[t]);
        acc[t] = v16_fma(v16_mul(i, d), v16_set1(scale[t * stride].s), acc[t]);
    }
}

LANES_INLINE void q_start(const int ROWS, int32x4_t dot[Q_ROWS][Q_PARTS]) {
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int o = 0; o < Q_PARTS; o++) dot[t][o] = vdupq_n_s32(0);
}

LANES_INLINE void q_tile(kvf_pack_kind kind, const int ROWS, const kvf_packed *w, const kvf_rows *x, uint32_t row,
    uint32_t panel, uint32_t first_panel, uint32_t first_row, const kvf_product *out) {
    const size_t q_stride = (size_t)x->groups * KVF_GROUP, stride = x->groups;
    const int8_t *q = x->q + row * q_stride;
    const kvf_group_scale *scale = x->scale + (size_t)row * x->groups;
    const uint32_t bytes = group_bytes_of(kind);
    const uint8_t *group = w->data + panel / 2 * w->pair_bytes;
    v16 acc[Q_ROWS];
    UNROLL for (int t = 0; t < ROWS; t++) acc[t] = v16_zero();
    for (uint32_t g = 0; g < w->groups; g++, q += KVF_GROUP, scale++, group += bytes) {
        const uint8_t *at = group + kvf_codes_offset(kind, bytes, panel);
        const uint8_t *scales = group + kvf_scales_offset(kind, bytes, panel);
        int32x4_t dot[Q_ROWS][Q_PARTS];
        q_start(ROWS, dot);
        if (kind == KVF_PACK_Q8G) {
            q_dot(CODES_BYTES, ROWS, at, 0, 4, q, q_stride, dot);
            q_scale(kind, ROWS, scales, scale, stride, dot, acc);
            q_start(ROWS, dot);
            q_dot(CODES_BYTES, ROWS, at, 4, 8, q + 16, q_stride, dot);
            q_scale(kind, ROWS, scales + 64, scale, stride, dot, acc);
            continue;
        }
        if (kvf_kind_has_bytes(kind)) {
            q_dot(CODES_BYTES, ROWS, at, 0, 8, q, q_stride, dot);
        } else {
            q_dot(CODES_LOW, ROWS, at, 0, 4, q, q_stride, dot);
            q_dot(CODES_HIGH, ROWS, at, 0, 4, q + 16, q_stride, dot);
        }
        q_scale(kind, ROWS, scales, scale, stride, dot, acc);
    }
    UNROLL for (int t = 0; t < ROWS; t++)
        put_outputs(out, first_row + (uint32_t)t, panel - first_panel, w->outputs - panel * KVF_PANEL, acc[t]);
}

LANES_INLINE void q_matrix(kvf_pack_kind kind, const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows,
    uint32_t panel, uint32_t panels, const kvf_product *out) {
    for (uint32_t p = panel; p < panel + panels; p++) {
        uint32_t r = 0;
        for (; r + Q_ROWS <= rows; r += Q_ROWS) q_tile(kind, Q_ROWS, w, x, row + r, p, panel, r, out);
        for (; r + 2 <= rows; r += 2) q_tile(kind, 2, w, x, row + r, p, panel, r, out);
        if (r < rows) q_tile(kind, 1, w, x, row + r, p, panel, r, out);
    }
}

#include "int8_kinds.h"
#endif
