/* The oracle: every operation of kvf/kernels.h in the plainest C, one value at a time. Tuned tables must give these
 * bits. It shares nothing with them but the packed layouts and the constants of exp. Slow on purpose: fmaf may be a
 * library call. */
#include "kvf/kernels.h"
#include "kernels_int.h"
#include <float.h>
#include <math.h>

/* A reduction along a row: 16 lanes, then the fixed tree. */
static float lanes_sum(float lane[16]) {
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lane[i] = lane[i] + lane[i + width];
    return lane[0];
}

static float bits_to_f32(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static uint32_t f32_to_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static float exp_f32(float x) {
    bool tiny = x < KVF_EXP_MIN;
    x = KVF_EXP_MAX < x ? KVF_EXP_MAX : x;
    float t = fmaf(x, KVF_EXP_LOG2E, KVF_EXP_MAGIC), n = t - KVF_EXP_MAGIC;
    float r = fmaf(n, KVF_EXP_NEG_LN2_HI, x);
    r = fmaf(n, KVF_EXP_NEG_LN2_LO, r);
    float p = KVF_EXP_C7;
    p = fmaf(p, r, KVF_EXP_C6);
    p = fmaf(p, r, KVF_EXP_C5);
    p = fmaf(p, r, KVF_EXP_C4);
    p = fmaf(p, r, KVF_EXP_C3);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    uint32_t power = (f32_to_bits(t) - f32_to_bits(KVF_EXP_MAGIC) + 127u) << 23;
    return tiny ? 0.0f : p * bits_to_f32(power);
}

static void rms_norm(const float *x, const float *w, float eps, uint32_t count, float *y) {
    float lane[16] = {0};
    for (uint32_t i = 0; i < count; i++) lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
    float scale = 1.0f / sqrtf(lanes_sum(lane) / (float)count + eps);
    for (uint32_t i = 0; i < count; i++) y[i] = x[i] * scale * w[i];
}

static void quantise(const float *x, uint32_t count, int8_t *q, kvf_group_scale *scale) {
    for (uint32_t g = 0; g < kvf_div_up(count, KVF_GROUP); g++) {
        uint32_t largest = 0; /* of the bits, so that a NaN counts as more than infinity */
        uint32_t values = KVF_MIN(count - g * KVF_GROUP, (uint32_t)KVF_GROUP);
        for (uint32_t i = 0; i < values; i++)
            largest = KVF_MAX(largest, f32_to_bits(x[g * KVF_GROUP + i]) & 0x7fffffffu);
        bool finite = largest < 0x7f800000u;
        float a = bits_to_f32(largest);
        float inverse = finite && a >= KVF_QUANTISE_MIN ? 127.0f / a : 0.0f;
        int32_t sum[2] = {0, 0};
        for (uint32_t i = 0; i < KVF_GROUP; i++) {
            float v = i < values && inverse != 0 ? x[g * KVF_GROUP + i] * inverse : 0.0f;
            int32_t code = (int32_t)((v + KVF_EXP_MAGIC) - KVF_EXP_MAGIC); /* to nearest even */
            q[g * KVF_GROUP + i] = (int8_t)code;
            sum[i / 16] += code;
        }
        float s = !finite ? bits_to_f32(0x7fc00000u) : inverse != 0 ? a / 127.0f : 0.0f;
        scale[g] =
            (kvf_group_scale){.s = s, .us = s * (float)(sum[0] + sum[1]), .neg_128 = {-128 * sum[0], -128 * sum[1]}};
    }
}

static float half_at(const uint8_t *p, uint32_t index) { return kvf_f16_to_f32(kvf_get_le16(p + 2 * index)); }
static float f32_at(const uint8_t *p, uint32_t index) { return bits_to_f32(kvf_get_le32(p + 4 * index)); }

/* One packed weight: output o, index k. */
static const uint8_t *group_at(const kvf_packed *w, uint32_t o, uint32_t g) {
    return w->data + o / (2 * KVF_PANEL) * w->pair_bytes + (size_t)g * w->group_bytes;
}
static int32_t packed_code(const kvf_packed *w, uint32_t o, uint32_t k) {
    uint32_t i = k % KVF_GROUP, lane = o % KVF_PANEL, panel = o / KVF_PANEL % 2;
    const uint8_t *group = group_at(w, o, k / KVF_GROUP);
    if (w->kind == KVF_PACK_Q8 || w->kind == KVF_PACK_Q8G || w->kind == KVF_PACK_Q8M)
        return group[512 * panel + 64 * (i / 4) + 4 * lane + i % 4] - 128;
    uint32_t byte = group[w->group_bytes / 2 * panel + 64 * (i % 16 / 4) + 4 * lane + i % 4];
    return (int32_t)(i < 16 ? byte & 15 : byte >> 4);
}
/* half: of the group, for kinds whose halves differ */
static void packed_scale(const kvf_packed *w, uint32_t o, uint32_t g, uint32_t half, float *d, float *m) {
    uint32_t lane = o % KVF_PANEL, panel = o / KVF_PANEL % 2;
    const uint8_t *group = group_at(w, o, g), *behind_nibbles = group + w->group_bytes / 2 * panel + 256;
    *m = 0;
    switch (w->kind) {
    case KVF_PACK_Q4:
        *d = half_at(behind_nibbles, lane);
        *m = half_at(behind_nibbles + 32, lane);
        break;
    case KVF_PACK_Q4F:
        *d = f32_at(behind_nibbles, lane);
        *m = f32_at(behind_nibbles + 64, lane);
        break;
    case KVF_PACK_Q8M:
        *d = f32_at(group + 1024 + 128 * panel, lane);
        *m = f32_at(group + 1024 + 128 * panel + 64, lane);
        break;
    case KVF_PACK_Q8G: *d = f32_at(group + 1024 + 128 * panel + 64 * half, lane); break;
    default: *d = half_at(group + 1024 + 32 * panel, lane); break;
    }
}

static float packed_weight(const kvf_packed *w, uint32_t o, uint32_t k) {
    const uint8_t *panel = group_at(w, o, k / KVF_GROUP) + w->group_bytes / 2 * (o / KVF_PANEL % 2);
    uint32_t index = k % KVF_GROUP * KVF_PANEL + o % KVF_PANEL;
    switch (w->kind) {
    case KVF_PACK_F16: return half_at(panel, index);
    case KVF_PACK_BF16: return bits_to_f32((uint32_t)kvf_get_le16(panel + 2 * (size_t)index) << 16);
    case KVF_PACK_F32: return f32_at(panel, index);
    default: break;
    }
    float d, m;
    packed_scale(w, o, k / KVF_GROUP, k % KVF_GROUP / 16, &d, &m);
    return fmaf((float)packed_code(w, o, k), d, m);
}

static float dot_f(const kvf_packed *w, uint32_t o, const kvf_rows *x, uint32_t row) {
    const float *values = x->f32 + row * x->f32_stride;
    float acc = 0;
    for (uint32_t k = 0; k < w->groups * KVF_GROUP; k++) acc = fmaf(values[k], packed_weight(w, o, k), acc);
    return acc;
}

static float no_subnormal(float v) { return fabsf(v) < FLT_MIN ? copysignf(0, v) : v; }

static float dot_b(const kvf_packed *w, uint32_t o, const kvf_rows *x, uint32_t row) {
    const uint16_t *values = x->bf16 + (size_t)row * x->groups * KVF_GROUP;
    float acc = 0;
    for (uint32_t i = 0; i < w->groups * KVF_GROUP; i++) {
        uint32_t k = i ^ 1; /* 1, 0, 3, 2, ... */
        float value = bits_to_f32((uint32_t)values[k] << 16);
        acc = no_subnormal(fmaf(value, no_subnormal(packed_weight(w, o, k)), acc));
    }
    return acc;
}

static float dot_q(const kvf_packed *w, uint32_t o, const kvf_rows *x, uint32_t row) {
    const int8_t *q = x->q + (size_t)row * x->groups * KVF_GROUP;
    const kvf_group_scale *scale = x->scale + (size_t)row * x->groups;
    float acc = 0;
    bool has_min = w->kind == KVF_PACK_Q4 || w->kind == KVF_PACK_Q4F || w->kind == KVF_PACK_Q8M;
    uint32_t step = w->kind == KVF_PACK_Q8G ? KVF_GROUP / 2 : KVF_GROUP; /* values under one scale */
    for (uint32_t first = 0; first < w->groups * KVF_GROUP; first += step) {
        int32_t dot = 0;
        for (uint32_t k = first; k < first + step; k++) dot += q[k] * packed_code(w, o, k);
        float d, m;
        packed_scale(w, o, first / KVF_GROUP, first % KVF_GROUP / 16, &d, &m);
        if (has_min) acc = fmaf(m, scale[first / KVF_GROUP].us, acc);
        acc = fmaf((float)dot * d, scale[first / KVF_GROUP].s, acc);
    }
    return acc;
}

typedef float (*dot_fn)(const kvf_packed *w, uint32_t o, const kvf_rows *x, uint32_t row);
static void matmul(dot_fn dot, const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows, uint32_t panel,
    uint32_t panels, const kvf_product *out) {
    uint32_t output_end = KVF_MIN((panel + panels) * KVF_PANEL, w->outputs);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t o = panel * KVF_PANEL; o < output_end; o++) {
            float v = dot(w, o, x, row + r), *y = out->y + r * out->stride + (o - panel * KVF_PANEL);
            *y = out->add ? *y + v : v;
        }
    }
}
static void matmul_q(const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows, uint32_t panel,
    uint32_t panels, const kvf_product *out) {
    matmul(dot_q, w, x, row, rows, panel, panels, out);
}
static void matmul_f(const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows, uint32_t panel,
    uint32_t panels, const kvf_product *out) {
    matmul(dot_f, w, x, row, rows, panel, panels, out);
}

static void flush(const kvf_product *out, uint32_t rows, uint32_t outputs) {
    for (uint32_t r = 0; r < rows; r++) {
        float *y = out->y + r * out->stride;
        for (uint32_t o = 0; o < outputs; o++) y[o] = no_subnormal(y[o]);
    }
}
static void matmul_b(const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows, uint32_t panel,
    uint32_t panels, const kvf_product *out) {
    uint32_t outputs = KVF_MIN(panels * KVF_PANEL, w->outputs - panel * KVF_PANEL);
    if (out->add) flush(out, rows, outputs);
    matmul(dot_b, w, x, row, rows, panel, panels, out);
    if (out->add) flush(out, rows, outputs);
}
static uint16_t nearest_bf16(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    if (isnan(v)) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static void round_bf16(float *x, uint32_t count, uint16_t *dst) {
    for (uint32_t i = 0; i < count; i++) {
        dst[i] = nearest_bf16(no_subnormal(x[i]));
        x[i] = bits_to_f32((uint32_t)dst[i] << 16);
    }
}

static void add(float *x, const float *y, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) x[i] += y[i];
}

static void rope(float *x, uint32_t heads, uint32_t head_dim, const float *cos_sin, uint32_t pairs, bool halves) {
    for (uint32_t h = 0; h < heads; h++, x += head_dim) {
        for (uint32_t i = 0; i < pairs; i++) {
            float *a = halves ? x + i : x + 2 * i, *b = halves ? x + i + pairs : x + 2 * i + 1;
            float c = cos_sin[i], s = cos_sin[pairs + i], a0 = *a, b0 = *b;
            *a = fmaf(a0, c, -(b0 * s));
            *b = fmaf(a0, s, b0 * c);
        }
    }
}

static void swiglu(float *gate, const float *up, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) gate[i] = gate[i] / (1.0f + exp_f32(-gate[i])) * up[i];
}

static void store_q8(const float *x, uint32_t count, uint8_t *dst) {
    for (uint32_t first = 0; first < count; first += KVF_GROUP) {
        uint32_t end = KVF_MIN(first + KVF_GROUP, count);
        float largest = 0, inverse = 0;
        bool finite = true;
        for (uint32_t i = first; i < end; i++) {
            finite &= isfinite(x[i]);
            largest = fmaxf(largest, fabsf(x[i]));
        }
        uint16_t scale = finite ? kvf_f32_to_f16(fminf(largest / 127.0f, 65504.0f)) : 0x7e00;
        if (finite && scale) inverse = 1.0f / kvf_f16_to_f32(scale);
        for (uint32_t i = first; i < end; i++) {
            float code = finite ? nearbyintf(x[i] * inverse) : 0;
            dst[i] = (uint8_t)(int8_t)fmaxf(-127, fminf(127, code));
        }
        kvf_put_le16(dst + count + first / KVF_GROUP * 2, scale);
    }
}

static void store_cells(const float *x, uint32_t count, kvf_cell cell, void *dst) {
    if (cell == KVF_CELL_Q8) {
        store_q8(x, count, dst);
        return;
    }
    if (cell == KVF_CELL_F32) {
        memcpy(dst, x, (size_t)count * 4);
        return;
    }
    for (uint32_t i = 0; i < count; i++) kvf_put_le16((uint8_t *)dst + 2 * (size_t)i, kvf_f32_to_f16(x[i]));
}

/* Element d of K (or V) of one position. */
static float cell_at(const kvf_attention *a, bool value, uint32_t position, uint32_t d) {
    const uint8_t *page = a->pages + (size_t)a->blocks[position / KVF_PAGE_TOKENS] * a->page_bytes;
    size_t head = a->kv_head + (value ? a->kv_heads : 0);
    const uint8_t *row =
        page + (head * KVF_PAGE_TOKENS + position % KVF_PAGE_TOKENS) * kvf_cell_row_bytes(a->cell, a->head_dim);
    switch (a->cell) {
    case KVF_CELL_F16: return half_at(row, d);
    case KVF_CELL_F32: return f32_at(row, d);
    default: return half_at(row + a->head_dim, d / KVF_GROUP) * (float)(int8_t)row[d];
    }
}

/* One query against positions [begin, end) of one split: unnormalised values into o, largest score and sum of weights
 * out. */
static void attend_split(
    const kvf_attention *a, const float *q, uint32_t begin, uint32_t end, float *o, float *max_out, float *sum_out) {
    float weight[KVF_ATTENTION_SPLIT], largest = -INFINITY, lane[16] = {0};
    for (uint32_t p = begin; p < end; p++) {
        float score = 0;
        for (uint32_t d = 0; d < a->head_dim; d++) score = fmaf(q[d], cell_at(a, false, p, d), score);
        weight[p - begin] = score * a->scale;
        largest = largest > weight[p - begin] ? largest : weight[p - begin];
    }
    for (uint32_t i = 0; i < end - begin; i++) {
        weight[i] = exp_f32(weight[i] - largest);
        lane[i % 16] += weight[i];
    }
    for (uint32_t d = 0; d < a->head_dim; d++) {
        float acc = 0;
        for (uint32_t p = begin; p < end; p++) acc = fmaf(weight[p - begin], cell_at(a, true, p, d), acc);
        o[d] = acc;
    }
    *max_out = largest;
    *sum_out = lanes_sum(lane);
}

static void attend_query(const kvf_attention *a, const float *q, uint32_t position, float *out, float *part) {
    float max = 0, sum = 0;
    for (uint32_t begin = 0; begin <= position; begin += KVF_ATTENTION_SPLIT) {
        uint32_t end = KVF_MIN(begin + KVF_ATTENTION_SPLIT, position + 1);
        float m, l;
        attend_split(a, q, begin, end, begin ? part : out, &m, &l);
        if (begin == 0) {
            max = m;
            sum = l;
            continue;
        }
        float both = max > m ? max : m, old_part = exp_f32(max - both), new_part = exp_f32(m - both);
        for (uint32_t d = 0; d < a->head_dim; d++) out[d] = fmaf(part[d], new_part, out[d] * old_part);
        sum = fmaf(l, new_part, sum * old_part);
        max = both;
    }
    float inverse = 1.0f / sum;
    for (uint32_t d = 0; d < a->head_dim; d++) out[d] *= inverse;
}

static void attention(const kvf_attention *a) {
    for (uint32_t t = 0; a->each && t < a->tokens; t++) { /* what sequences share is no concern of the oracle */
        const kvf_attention_token *token = &a->each[t];
        kvf_attention own = *a;
        own.each = NULL;
        own.tokens = 1;
        own.position = token->position;
        own.blocks = token->blocks;
        own.q = a->q + token->row * a->q_stride;
        own.out = a->out + token->row * a->out_stride;
        attention(&own);
    }
    for (uint32_t t = 0; !a->each && t < a->tokens; t++)
        for (uint32_t h = 0; h < a->group; h++)
            attend_query(a, a->q + t * a->q_stride + (size_t)h * a->head_dim, a->position + t,
                a->out + t * a->out_stride + (size_t)h * a->head_dim, a->scratch);
}

const kvf_kernel_ops kvf_kernels_ref = KVF_KERNEL_TABLE("ref");
