/* 8-bit products over 512-bit registers; included after tuned.h with DOT4(acc, codes, x) and DOT4_SIGNED defined (see
 * the two sources). A register holds 16 outputs x 4 codes; the four activations of a row are broadcast to all outputs.
 */
#ifndef KVF_INT8_AVX512_H
#define KVF_INT8_AVX512_H

enum { Q_ROWS = 6, Q_PANELS = 4 };

typedef struct {
    const uint8_t *base[Q_PANELS]; /* panels */
    const int8_t *q; /* first row of the tile */
    const kvf_group_scale *scale;
    size_t q_stride, scale_stride;
} q_tile_input;

LANES_INLINE __m512i four(const int8_t *q) {
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm512_set1_epi32(v);
}

/* Integer products of one group: exact, so their order is free. */
LANES_INLINE void q_dot_nibbles(const int ROWS, const int PANELS, const q_tile_input *in, size_t offset,
    const int8_t *q, __m512i dot[Q_ROWS][Q_PANELS]) {
    const __m512i mask = _mm512_set1_epi8(15);
    UNROLL for (int j = 0; j < 4; j++) {
        __m512i low[Q_PANELS], high[Q_PANELS];
        UNROLL for (int p = 0; p < PANELS; p++) {
            __m512i both = _mm512_loadu_si512(in->base[p] + offset + 64 * j);
            low[p] = _mm512_and_si512(both, mask);
            high[p] = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
        }
        UNROLL for (int t = 0; t < ROWS; t++) {
            __m512i x = four(q + t * in->q_stride + 4 * j);
            UNROLL for (int p = 0; p < PANELS; p++) dot[t][p] = DOT4_NIBBLES(dot[t][p], low[p], x);
        }
        UNROLL for (int t = 0; t < ROWS; t++) {
            __m512i x = four(q + t * in->q_stride + 16 + 4 * j);
            UNROLL for (int p = 0; p < PANELS; p++) dot[t][p] = DOT4_NIBBLES(dot[t][p], high[p], x);
        }
    }
}

LANES_INLINE void q_dot_bytes(const int ROWS, const int PANELS, const q_tile_input *in, size_t offset, const int8_t *q,
    __m512i dot[Q_ROWS][Q_PANELS]) {
    UNROLL for (int j = 0; j < 8; j++) {
        __m512i codes[Q_PANELS];
        UNROLL for (int p = 0; p < PANELS; p++) codes[p] = LOAD_BYTES(in->base[p] + offset + 64 * j);
        UNROLL for (int t = 0; t < ROWS; t++) {
            __m512i x = four(q + t * in->q_stride + 4 * j);
            UNROLL for (int p = 0; p < PANELS; p++) dot[t][p] = DOT4_BYTES(dot[t][p], codes[p], x);
        }
    }
}

LANES_INLINE void q_tile(kvf_pack_kind kind, const int ROWS, const int PANELS, const kvf_packed *w, const kvf_rows *x,
    uint32_t row, uint32_t panel, uint32_t first_panel, uint32_t first_row, const kvf_product *out) {
    q_tile_input in = {.q_stride = (size_t)x->groups * KVF_GROUP, .scale_stride = x->groups};
    in.q = x->q + row * in.q_stride;
    in.scale = x->scale + row * in.scale_stride;
    v16 acc[Q_ROWS][Q_PANELS];
    UNROLL for (int p = 0; p < PANELS; p++) in.base[p] = w->data + (panel + (uint32_t)p) * w->panel_bytes;
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int p = 0; p < PANELS; p++) acc[t][p] = v16_zero();
    for (uint32_t g = 0; g < w->groups; g++) {
        const kvf_group_scale *scale = in.scale + g;
        const int8_t *q = in.q + (size_t)g * KVF_GROUP;
        size_t at = g * (kind == KVF_PACK_Q4 ? 320 : kind == KVF_PACK_Q4F ? 384 : (size_t)512);
        __m512i dot[Q_ROWS][Q_PANELS];
        v16 d[Q_PANELS], m[Q_PANELS];
        UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int p = 0; p < PANELS; p++) dot[t][p] =
            kind == KVF_PACK_Q8 ? BYTES_START(scale[t * in.scale_stride].neg_128) : _mm512_setzero_si512();
        if (kind == KVF_PACK_Q8)
            q_dot_bytes(ROWS, PANELS, &in, at, q, dot);
        else
            q_dot_nibbles(ROWS, PANELS, &in, at, q, dot);
        UNROLL for (int p = 0; p < PANELS; p++) {
            const uint8_t *scales =
                in.base[p] + (kind == KVF_PACK_Q8 ? (size_t)w->groups * 512 + 32 * (size_t)g : at + 256);
            const float *wide = (const float *)(const void *)scales;
            d[p] = kind == KVF_PACK_Q4F ? v16_load(wide) : v16_load_half(scales);
            m[p] = kind == KVF_PACK_Q4F  ? v16_load(wide + 16)
                   : kind == KVF_PACK_Q4 ? v16_load_half(scales + 32)
                                         : v16_zero();
        }
        UNROLL for (int t = 0; t < ROWS; t++) {
            v16 s = v16_set1(scale[t * in.scale_stride].s), us = v16_set1(scale[t * in.scale_stride].us);
            UNROLL for (int p = 0; p < PANELS; p++) {
                if (kind != KVF_PACK_Q8) acc[t][p] = v16_fma(m[p], us, acc[t][p]);
                acc[t][p] = v16_fma(v16_mul(_mm512_cvtepi32_ps(dot[t][p]), d[p]), s, acc[t][p]);
            }
        }
    }
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int p = 0; p < PANELS; p++) {
        uint32_t index = panel + (uint32_t)p;
        put_outputs(out, first_row + (uint32_t)t, index - first_panel, w->outputs - index * KVF_PANEL, acc[t][p]);
    }
}

LANES_INLINE void q_panels(kvf_pack_kind kind, const int PANELS, const kvf_packed *w, const kvf_rows *x, uint32_t row,
    uint32_t rows, uint32_t panel, uint32_t first_panel, const kvf_product *out) {
    uint32_t r = 0;
    for (; r + Q_ROWS <= rows; r += Q_ROWS) q_tile(kind, Q_ROWS, PANELS, w, x, row + r, panel, first_panel, r, out);
    switch (rows - r) {
    case 1: q_tile(kind, 1, PANELS, w, x, row + r, panel, first_panel, r, out); break;
    case 2: q_tile(kind, 2, PANELS, w, x, row + r, panel, first_panel, r, out); break;
    case 3: q_tile(kind, 3, PANELS, w, x, row + r, panel, first_panel, r, out); break;
    case 4: q_tile(kind, 4, PANELS, w, x, row + r, panel, first_panel, r, out); break;
    case 5: q_tile(kind, 5, PANELS, w, x, row + r, panel, first_panel, r, out); break;
    default: break;
    }
}

LANES_INLINE void q_matrix(kvf_pack_kind kind, const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows,
    uint32_t panel, uint32_t panels, const kvf_product *out) {
    uint32_t p = panel, end = panel + panels;
    for (; rows == 1 && p + 4 <= end; p += 4) q_tile(kind, 1, 4, w, x, row, p, panel, 0, out);
    for (; p + 2 <= end; p += 2) q_panels(kind, 2, w, x, row, rows, p, panel, out);
    if (p < end) q_panels(kind, 1, w, x, row, rows, p, panel, out);
}

static void matmul_q(const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows, uint32_t panel,
    uint32_t panels, const kvf_product *out) {
    switch (w->kind) {
    case KVF_PACK_Q4: q_matrix(KVF_PACK_Q4, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_Q4F: q_matrix(KVF_PACK_Q4F, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_Q8: q_matrix(KVF_PACK_Q8, w, x, row, rows, panel, panels, out); break;
    default: KVF_ASSERT(!"this kind has no 8-bit product");
    }
}
#endif
