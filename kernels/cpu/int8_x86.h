/* 8-bit products on x86, included after tuned.h. Sixteen outputs x 4 codes are one i16x32; the four activations of a
 * row are broadcast to all outputs. Integer sums of a group are exact, so their order is free. A source says how its
 * instructions do it:
 *   Q_ROWS, Q_AHEAD         rows of a tile at most; bytes that a lone tile of rows asks ahead
 *   Q_PANELS_OF(rows)       panels of a tile: 2 where there are registers for them
 *   i16_set1, i16_zero, i16_low, i16_high, i16_to_f32
 *                           broadcast; the low and high nibbles of bytes; 32-bit integers to f32
 *   DOT4_NIBBLES(acc, codes, x), NIBBLES_END(acc)
 *                           adds products of codes 0..15; what makes 32-bit sums of what that gave after 32 inputs
 *   LOAD_BYTES(p), BYTES_START(neg_128), DOT4_BYTES(acc, codes, x)
 *                           codes that stand offset by 128: a sum may start at neg_128 = -128 * sum(x), which takes the
 *                           offset out, or codes may lose it before */
#ifndef KVF_INT8_X86_H
#define KVF_INT8_X86_H

enum { Q_PANELS = 2 };

LANES_INLINE i16x32 four(const int8_t *q) {
    int32_t v;
    memcpy(&v, q, sizeof v);
    return i16_set1(v);
}

/* Products of one group. `step`: from one panel's codes to the other's. */
LANES_INLINE void q_dot_nibbles(const int ROWS, const int PANELS, const uint8_t *at, const size_t step, const int8_t *q,
    size_t q_stride, i16x32 dot[Q_ROWS][Q_PANELS]) {
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int p = 0; p < PANELS; p++) dot[t][p] = i16_zero();
    UNROLL for (int j = 0; j < 4; j++) {
        UNROLL for (int half = 0; half < 2; half++) {
            i16x32 codes[Q_PANELS];
            UNROLL for (int p = 0; p < PANELS; p++) {
                i16x32 both = i16_load(at + p * step + 64 * j);
                codes[p] = half ? i16_high(both) : i16_low(both);
            }
            UNROLL for (int t = 0; t < ROWS; t++) {
                i16x32 x = four(q + t * q_stride + 16 * half + 4 * j);
                UNROLL for (int p = 0; p < PANELS; p++) dot[t][p] = DOT4_NIBBLES(dot[t][p], codes[p], x);
            }
        }
    }
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int p = 0; p < PANELS; p++) dot[t][p] = NIBBLES_END(dot[t][p]);
}

LANES_INLINE void q_dot_bytes(const int ROWS, const int PANELS, const uint8_t *at, const size_t step, const int8_t *q,
    size_t q_stride, const int first, const int end, i16x32 dot[Q_ROWS][Q_PANELS]) {
    UNROLL for (int j = first; j < end; j++) {
        i16x32 codes[Q_PANELS];
        UNROLL for (int p = 0; p < PANELS; p++) codes[p] = LOAD_BYTES(at + p * step + 64 * j);
        UNROLL for (int t = 0; t < ROWS; t++) {
            i16x32 x = four(q + t * q_stride + 4 * j);
            UNROLL for (int p = 0; p < PANELS; p++) dot[t][p] = DOT4_BYTES(dot[t][p], codes[p], x);
        }
    }
}

LANES_INLINE bool has_min(kvf_pack_kind kind) {
    return kind == KVF_PACK_Q4 || kind == KVF_PACK_Q4F || kind == KVF_PACK_Q8M;
}

/* acc = fma(m, us, acc), then acc = fma(dot * d, s, acc). */
LANES_INLINE void q_scale(kvf_pack_kind kind, const int ROWS, const int PANELS, const uint8_t *at, const size_t step,
    const kvf_group_scale *scale, size_t stride, i16x32 dot[Q_ROWS][Q_PANELS], v16 acc[Q_ROWS][Q_PANELS]) {
    v16 d[Q_PANELS], m[Q_PANELS];
    UNROLL for (int p = 0; p < PANELS; p++) {
        const float *wide = (const float *)(const void *)(at + p * step);
        bool is_wide = kind == KVF_PACK_Q4F || kind == KVF_PACK_Q8G || kind == KVF_PACK_Q8M;
        d[p] = is_wide ? v16_load(wide) : v16_load_half(wide);
        m[p] = kind == KVF_PACK_Q4 ? v16_load_half(wide + 8) : has_min(kind) ? v16_load(wide + 16) : v16_zero();
    }
    UNROLL for (int t = 0; t < ROWS; t++) {
        v16 s = v16_set1(scale[t * stride].s), us = v16_set1(scale[t * stride].us);
        UNROLL for (int p = 0; p < PANELS; p++) {
            if (has_min(kind)) acc[t][p] = v16_fma(m[p], us, acc[t][p]);
            acc[t][p] = v16_fma(v16_mul(i16_to_f32(dot[t][p]), d[p]), s, acc[t][p]);
        }
    }
}

/* Vectors [first, end) of a group of byte codes, which share one scale: a whole group (0..8) or a half. */
LANES_INLINE void q_bytes(kvf_pack_kind kind, const int ROWS, const int PANELS, const uint8_t *codes,
    const uint8_t *scales, const size_t scales_step, const int first, const int end, const int8_t *q, size_t q_stride,
    const kvf_group_scale *scale, size_t stride, v16 acc[Q_ROWS][Q_PANELS]) {
    i16x32 dot[Q_ROWS][Q_PANELS];
    UNROLL for (int t = 0; t < ROWS; t++) {
        const int32_t *neg = scale[t * stride].neg_128;
        i16x32 start = BYTES_START((first == 0 ? neg[0] : 0) + (end == 8 ? neg[1] : 0));
        UNROLL for (int p = 0; p < PANELS; p++) dot[t][p] = start;
    }
    q_dot_bytes(ROWS, PANELS, codes, 512, q, q_stride, first, end, dot);
    q_scale(kind, ROWS, PANELS, scales, scales_step, scale, stride, dot, acc);
}

/* Weights come from memory once a step. `ahead`: how far in front of each group to ask for weights; 0: not at all. */
LANES_INLINE void q_tile(kvf_pack_kind kind, const int ROWS, const int PANELS, const kvf_packed *w, const kvf_rows *x,
    uint32_t row, uint32_t panel, uint32_t first_panel, uint32_t first_row, size_t ahead, const kvf_product *out) {
    const uint32_t bytes = group_bytes_of(kind);
    const size_t q_stride = (size_t)x->groups * KVF_GROUP;
    const uint8_t *group = w->data + panel / 2 * w->pair_bytes;
    const uint8_t *codes = group + kvf_codes_offset(kind, bytes, panel);
    const uint8_t *scales = group + kvf_scales_offset(kind, bytes, panel);
    const size_t codes_step = kvf_codes_offset(kind, bytes, 1);
    const size_t scales_step = kvf_scales_offset(kind, bytes, 1) - kvf_scales_offset(kind, bytes, 0);
    const int8_t *q = x->q + row * q_stride;
    const kvf_group_scale *scale = x->scale + (size_t)row * x->groups;
    v16 acc[Q_ROWS][Q_PANELS];
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int p = 0; p < PANELS; p++) acc[t][p] = v16_zero();
    for (uint32_t g = 0; g < w->groups; g++, codes += bytes, scales += bytes, q += KVF_GROUP, scale++) {
        if (ahead) UNROLL
        for (uint32_t line = 0; line < bytes; line += 64) lanes_prefetch(codes + ahead + line);
        if (kind == KVF_PACK_Q8G) {
            q_bytes(kind, ROWS, PANELS, codes, scales, scales_step, 0, 4, q, q_stride, scale, x->groups, acc);
            q_bytes(kind, ROWS, PANELS, codes, scales + 64, scales_step, 4, 8, q, q_stride, scale, x->groups, acc);
        } else if (kvf_kind_has_bytes(kind)) {
            q_bytes(kind, ROWS, PANELS, codes, scales, scales_step, 0, 8, q, q_stride, scale, x->groups, acc);
        } else {
            i16x32 dot[Q_ROWS][Q_PANELS];
            q_dot_nibbles(ROWS, PANELS, codes, codes_step, q, q_stride, dot);
            q_scale(kind, ROWS, PANELS, scales, scales_step, scale, x->groups, dot, acc);
        }
    }
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int p = 0; p < PANELS; p++) {
        uint32_t index = panel + (uint32_t)p;
        put_outputs(out, first_row + (uint32_t)t, index - first_panel, w->outputs - index * KVF_PANEL, acc[t][p]);
    }
}

/* ROWS rows of a pair, in one tile or a panel at a time: then only the first panel asks ahead. */
LANES_INLINE void q_tile_of_pair(kvf_pack_kind kind, const int ROWS, const kvf_packed *w, const kvf_rows *x,
    uint32_t row, uint32_t panel, uint32_t first_panel, uint32_t first_row, size_t ahead, const kvf_product *out) {
    q_tile(kind, ROWS, Q_PANELS_OF(ROWS), w, x, row, panel, first_panel, first_row, ahead, out);
    if (Q_PANELS_OF(ROWS) == 1) q_tile(kind, ROWS, 1, w, x, row, panel + 1, first_panel, first_row, 0, out);
}

/* Rows in tiles of Q_ROWS, 4, 2, 1. One tile of rows asks a little ahead; with several, the second asks for the next
 * pair, so that its first finds it. */
LANES_INLINE void q_pair(kvf_pack_kind kind, const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows,
    uint32_t panel, uint32_t first_panel, const kvf_product *out) {
    const size_t next = w->pair_bytes, alone = rows <= Q_ROWS ? Q_AHEAD : 0;
    uint32_t r = 0, tiles = 0;
#define Q_ASK (tiles == 0 ? alone : tiles == 1 && alone == 0 ? next : 0)
    for (; r + Q_ROWS <= rows; r += Q_ROWS, tiles++)
        q_tile_of_pair(kind, Q_ROWS, w, x, row + r, panel, first_panel, r, Q_ASK, out);
    if (Q_ROWS > 4 && rows - r >= 4) {
        q_tile_of_pair(kind, Q_ROWS > 4 ? 4 : 1, w, x, row + r, panel, first_panel, r, Q_ASK, out);
        r += 4, tiles++;
    }
    if (rows - r >= 2) {
        q_tile_of_pair(kind, 2, w, x, row + r, panel, first_panel, r, Q_ASK, out);
        r += 2, tiles++;
    }
    if (r < rows) q_tile_of_pair(kind, 1, w, x, row + r, panel, first_panel, r, Q_ASK, out);
#undef Q_ASK
}

/* A panel without its pair is rare (an odd number of them, a cut between): one row at a time. */
LANES_INLINE void q_matrix(kvf_pack_kind kind, const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows,
    uint32_t panel, uint32_t panels, const kvf_product *out) {
    uint32_t end = panel + panels;
    for (uint32_t p = panel; p < end;) {
        if (p % 2 == 0 && p + 2 <= end) {
            q_pair(kind, w, x, row, rows, p, panel, out);
            p += 2;
            continue;
        }
        for (uint32_t r = 0; r < rows; r++) q_tile(kind, 1, 1, w, x, row + r, p, panel, r, 0, out);
        p++;
    }
}

#include "int8_kinds.h"
#endif
