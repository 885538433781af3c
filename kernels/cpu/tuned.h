/* The operations of kvf/kernels.h over sixteen lanes (lanes_*.h): everything but 8-bit products. Included once by the
 * source of each instruction set after its lanes header. Bits are those of ref.c: lanes are outputs, or the sixteen
 * lanes of a reduction. */
#ifndef KVF_TUNED_H
#define KVF_TUNED_H
#include <math.h>

#if defined(KVF_NO_UNROLL) /* with sanitizers: unrolled checks take minutes to compile */
#define UNROLL
#elif defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

LANES_INLINE v16 v16_exp(v16 x) {
    v16 y = v16_min(v16_set1(KVF_EXP_MAX), x);
    v16 t = v16_fma(y, v16_set1(KVF_EXP_LOG2E), v16_set1(KVF_EXP_MAGIC)), n = v16_sub(t, v16_set1(KVF_EXP_MAGIC));
    v16 r = v16_fma(n, v16_set1(KVF_EXP_NEG_LN2_HI), y);
    r = v16_fma(n, v16_set1(KVF_EXP_NEG_LN2_LO), r);
    v16 p = v16_fma(v16_set1(KVF_EXP_C7), r, v16_set1(KVF_EXP_C6));
    p = v16_fma(p, r, v16_set1(KVF_EXP_C5));
    p = v16_fma(p, r, v16_set1(KVF_EXP_C4));
    p = v16_fma(p, r, v16_set1(KVF_EXP_C3));
    p = v16_fma(p, r, v16_set1(0.5f));
    p = v16_fma(p, r, v16_set1(1.0f));
    p = v16_fma(p, r, v16_set1(1.0f));
    return v16_zero_if_less(v16_mul(p, v16_power_of_two(t)), x, v16_set1(KVF_EXP_MIN));
}

static void rms_norm(const float *x, const float *w, float eps, uint32_t count, float *y) {
    v16 lanes = v16_zero();
    uint32_t i = 0;
    for (; i + 16 <= count; i += 16) lanes = v16_fma(v16_load(x + i), v16_load(x + i), lanes);
    if (i < count) lanes = v16_fma(v16_load_n(x + i, count - i), v16_load_n(x + i, count - i), lanes);
    float scale = 1.0f / sqrtf(v16_sum(lanes) / (float)count + eps);
    for (i = 0; i + 16 <= count; i += 16)
        v16_store(y + i, v16_mul(v16_mul(v16_load(x + i), v16_set1(scale)), v16_load(w + i)));
    for (; i < count; i++) y[i] = x[i] * scale * w[i];
}

static void quantise(const float *x, uint32_t count, int8_t *q, kvf_group_scale *scale) {
    for (uint32_t i = 0; i < count; i += KVF_GROUP, q += KVF_GROUP, scale++) {
        uint32_t n = count - i;
        v16 a = v16_load_n(x + i, n), b = n > 16 ? v16_load_n(x + i + 16, n - 16) : v16_zero();
        uint32_t bits = v16_largest_bits(a, b);
        bool finite = bits < 0x7f800000u;
        float largest;
        memcpy(&largest, &bits, sizeof largest);
        if (!finite || largest < KVF_QUANTISE_MIN) {
            uint32_t nan = finite ? 0 : 0x7fc00000u;
            memset(q, 0, KVF_GROUP);
            *scale = (kvf_group_scale){0};
            memcpy(&scale->s, &nan, sizeof nan);
            memcpy(&scale->us, &nan, sizeof nan);
            continue;
        }
        v16 inverse = v16_set1(127.0f / largest);
        int32_t low = v16_to_i8(v16_mul(a, inverse), q), high = v16_to_i8(v16_mul(b, inverse), q + 16);
        float s = largest / 127.0f;
        *scale = (kvf_group_scale){.s = s, .us = s * (float)(low + high), .neg_128 = {-128 * low, -128 * high}};
    }
}

static void add(float *x, const float *y, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) x[i] += y[i];
}

static void swiglu(float *gate, const float *up, uint32_t count) {
    for (uint32_t i = 0; i < count; i += 16) {
        uint32_t n = count - i;
        v16 g = v16_load_n(gate + i, n), u = v16_load_n(up + i, n);
        v16 e = v16_exp(v16_sub(v16_set1(-0.0f), g));
        v16_store_n(gate + i, v16_mul(v16_div(g, v16_add(v16_set1(1.0f), e)), u), n);
    }
}

static __attribute__((noinline)) void store_q8(const float *x, uint32_t count, uint8_t *codes) {
    v16 least = v16_set1(-127), most = v16_set1(127);
    for (uint32_t i = 0; i < count; i += KVF_GROUP) {
        uint32_t n = KVF_MIN(count - i, (uint32_t)KVF_GROUP);
        v16 a = v16_load_n(x + i, n), b = n > 16 ? v16_load_n(x + i + 16, n - 16) : v16_zero();
        uint32_t bits = v16_largest_bits(a, b);
        bool finite = bits < 0x7f800000u;
        float largest, inverse = 0;
        int8_t group[KVF_GROUP] = {0};
        memcpy(&largest, &bits, sizeof largest);
        uint16_t scale = finite ? kvf_f32_to_f16(KVF_MIN(largest / 127.0f, 65504.0f)) : 0x7e00;
        if (finite && scale) {
            inverse = 1.0f / kvf_f16_to_f32(scale);
            v16_to_i8(v16_max(least, v16_min(most, v16_mul(a, v16_set1(inverse)))), group);
            v16_to_i8(v16_max(least, v16_min(most, v16_mul(b, v16_set1(inverse)))), group + 16);
        }
        memcpy(codes + i, group, n);
        kvf_put_le16(codes + count + i / KVF_GROUP * 2, scale);
    }
}

static void store_cells(const float *x, uint32_t count, kvf_cell cell, void *dst) {
    uint8_t *out = dst;
    if (cell == KVF_CELL_Q8)
        store_q8(x, count, out);
    else if (cell == KVF_CELL_F32)
        memcpy(out, x, (size_t)count * 4);
    else
        for (uint32_t i = 0; i < count; i += 16)
            v16_store_half_n(out + 2 * (size_t)i, v16_load_n(x + i, count - i), count - i);
}

/* a cos - b sin, a sin + b cos: the product with b is rounded, and a sign changes no rounding. */
LANES_INLINE void rotate(v16 *a, v16 *b, const float *cosine, const float *sine) {
    v16 c = v16_load(cosine), s = v16_load(sine), a0 = *a, b0 = *b;
    *a = v16_fma(a0, c, v16_mul(b0, v16_mul(s, v16_set1(-1))));
    *b = v16_fma(a0, s, v16_mul(b0, c));
}

static void rope(float *x, uint32_t heads, uint32_t head_dim, const float *cos_sin, uint32_t pairs, bool halves) {
    const float *cosine = cos_sin, *sine = cos_sin + pairs;
    for (uint32_t h = 0; h < heads; h++, x += head_dim) {
        uint32_t i = 0;
        for (; i + 16 <= pairs; i += 16) {
            float *at = halves ? x + i : x + 2 * i, *other = halves ? at + pairs : at + 16;
            v16 first = v16_load(at), second = v16_load(other), a = first, b = second;
            if (!halves) v16_unzip(first, second, &a, &b);
            rotate(&a, &b, cosine + i, sine + i);
            first = a, second = b;
            if (!halves) v16_zip(a, b, &first, &second);
            v16_store(at, first);
            v16_store(other, second);
        }
        for (; i < pairs; i++) { /* fma by the compiler: one instruction on every processor that runs this source */
            float *a = halves ? x + i : x + 2 * i, *b = halves ? a + pairs : a + 1, a0 = *a, b0 = *b;
            *a = fmaf(a0, cosine[i], -(b0 * sine[i]));
            *b = fmaf(a0, sine[i], b0 * cosine[i]);
        }
    }
}

/* Sixteen outputs of one panel: valid ones stored, added where asked. */
LANES_INLINE void put_outputs(const kvf_product *out, uint32_t row, uint32_t panel, uint32_t valid, v16 v) {
    float *y = out->y + row * out->stride + (size_t)panel * KVF_PANEL;
    if (valid >= KVF_PANEL) {
        v16_store(y, out->add ? v16_add(v16_load(y), v) : v);
        return;
    }
    v16_store_n(y, out->add ? v16_add(v16_load_n(y, valid), v) : v, valid);
}

/* KVF_PACK_BF16 in the order of matmul_b. */
static const kvf_pack_kind PACK_BF16_PAIRS = (kvf_pack_kind)(KVF_PACK_F32 + 1);

/* One k of ROWS rows by PANELS panels. */
#define F_STEP(index, load)                                                                                            \
    do {                                                                                                               \
        v16 weight[F_PANELS];                                                                                          \
        UNROLL for (int p = 0; p < PANELS; p++) weight[p] = (load);                                                    \
        UNROLL for (int t = 0; t < ROWS; t++) {                                                                        \
            v16 value = v16_set1(x[t * stride + (index)]);                                                             \
            UNROLL for (int p = 0; p < PANELS; p++) acc[t][p] = v16_fma(value, weight[p], acc[t][p]);                  \
        }                                                                                                              \
    } while (0)

LANES_INLINE void f_group(kvf_pack_kind kind, const int ROWS, const int PANELS, const uint8_t *const at[F_PANELS],
    const uint8_t *const scales[F_PANELS], const float *x, size_t stride, v16 acc[F_ROWS][F_PANELS]) {
    if (kind == KVF_PACK_F32) {
        for (int k = 0; k < KVF_GROUP; k += 2) {
            F_STEP(k, v16_load((const float *)(const void *)(at[p] + 64 * k)));
            F_STEP(k + 1, v16_load((const float *)(const void *)(at[p] + 64 * (k + 1))));
        }
        return;
    }
    if (kind == KVF_PACK_F16 || kind == KVF_PACK_BF16 || kind == PACK_BF16_PAIRS) {
        const int swap = kind == PACK_BF16_PAIRS; /* 1, 0, 3, 2, ... */
        for (int k = 0; k < KVF_GROUP; k += 2) {
            UNROLL for (int i = 0; i < 2; i++) {
                const int at_k = k + (i ^ swap);
                F_STEP(
                    at_k, kind == KVF_PACK_F16 ? v16_load_half(at[p] + 32 * at_k) : v16_load_bf16(at[p] + 32 * at_k));
            }
        }
        return;
    }
    v16 d[F_PANELS], m[F_PANELS], other[F_PANELS]; /* other: scale of the second half where it differs */
    UNROLL for (int p = 0; p < PANELS; p++) {
        const float *wide = (const float *)(const void *)scales[p];
        bool is_wide = kind == KVF_PACK_Q4F || kind == KVF_PACK_Q8G || kind == KVF_PACK_Q8M;
        d[p] = is_wide ? v16_load(wide) : v16_load_half(scales[p]);
        other[p] = is_wide ? v16_load(wide + 16) : kind == KVF_PACK_Q4 ? v16_load_half(scales[p] + 32) : d[p];
        m[p] = kind == KVF_PACK_Q8 || kind == KVF_PACK_Q8G ? v16_zero() : other[p];
    }
    if (kvf_kind_has_bytes(kind)) {
        v16 offset = v16_set1(128.0f);
        for (int j = 0; j < 8; j++) {
            i16x32 lanes[F_PANELS];
            UNROLL for (int p = 0; p < PANELS; p++) lanes[p] = i16_load(at[p] + 64 * j);
            if (kind == KVF_PACK_Q8G && j == 4) UNROLL for (int p = 0; p < PANELS; p++) d[p] = other[p];
            UNROLL for (uint32_t i = 0; i < 4; i++)
                F_STEP(4 * j + (int)i, v16_fma(v16_sub(v16_codes(lanes[p], 8 * i, 255), offset), d[p], m[p]));
        }
        return;
    }
    UNROLL for (uint32_t half = 0; half < 2; half++) {
        for (int j = 0; j < 4; j++) {
            i16x32 lanes[F_PANELS];
            UNROLL for (int p = 0; p < PANELS; p++) lanes[p] = i16_load(at[p] + 64 * j);
            UNROLL for (uint32_t i = 0; i < 4; i++)
                F_STEP((int)half * 16 + 4 * j + (int)i, v16_fma(v16_codes(lanes[p], 8 * i + 4 * half, 15), d[p], m[p]));
        }
    }
}

LANES_INLINE uint32_t group_bytes_of(kvf_pack_kind kind) { /* a constant where the kind is one */
    switch (kind) {
    case KVF_PACK_Q4: return 640;
    case KVF_PACK_Q4F: return 768;
    case KVF_PACK_Q8: return 1088;
    case KVF_PACK_Q8G:
    case KVF_PACK_Q8M: return 1280;
    case KVF_PACK_F32: return 4096;
    default: return 2048;
    }
}

/* ROWS rows against PANELS panels over all of k. */
LANES_INLINE void f_tile(kvf_pack_kind kind, const int ROWS, const int PANELS, const kvf_packed *w, const float *x,
    size_t stride, uint32_t panel, uint32_t first_panel, uint32_t first_row, const kvf_product *out) {
    v16 acc[F_ROWS][F_PANELS];
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int p = 0; p < PANELS; p++) acc[t][p] = v16_zero();
    const uint32_t bytes = group_bytes_of(kind);
    for (uint32_t g = 0; g < w->groups; g++) {
        const uint8_t *at[F_PANELS], *scales[F_PANELS];
        UNROLL for (int p = 0; p < PANELS; p++) {
            uint32_t index = panel + (uint32_t)p;
            const uint8_t *group = w->data + index / 2 * w->pair_bytes + (size_t)g * bytes;
            at[p] = group + kvf_codes_offset(kind, bytes, index);
            scales[p] = group + kvf_scales_offset(kind, bytes, index);
        }
        f_group(kind, ROWS, PANELS, at, scales, x + (size_t)g * KVF_GROUP, stride, acc);
    }
    UNROLL for (int t = 0; t < ROWS; t++) UNROLL for (int p = 0; p < PANELS; p++) {
        uint32_t index = panel + (uint32_t)p;
        put_outputs(out, first_row + (uint32_t)t, index - first_panel, w->outputs - index * KVF_PANEL, acc[t][p]);
    }
}

/* Panels in twos where registers allow and both are there, else one at a time. */
LANES_INLINE void f_matrix(kvf_pack_kind kind, const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows,
    uint32_t panel, uint32_t panels, const kvf_product *out) {
    const float *at = x->f32 + row * x->f32_stride;
    const size_t stride = x->f32_stride;
    uint32_t end = panel + panels;
    for (uint32_t p = panel; p < end;) {
        uint32_t r = 0;
        if (p % F_PANELS != 0 || p + F_PANELS > end) {
            for (; r < rows; r++) f_tile(kind, 1, 1, w, at + r * stride, stride, p, panel, r, out);
            p++;
            continue;
        }
        for (; r + F_ROWS <= rows; r += F_ROWS)
            f_tile(kind, F_ROWS, F_PANELS, w, at + r * stride, stride, p, panel, r, out);
        for (; r + 2 <= rows; r += 2) f_tile(kind, 2, F_PANELS, w, at + r * stride, stride, p, panel, r, out);
        if (r < rows) f_tile(kind, 1, F_PANELS, w, at + r * stride, stride, p, panel, r, out);
        p += F_PANELS;
    }
}

static void matmul_f(const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows, uint32_t panel,
    uint32_t panels, const kvf_product *out) {
    switch (w->kind) {
    case KVF_PACK_Q4: f_matrix(KVF_PACK_Q4, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_Q4F: f_matrix(KVF_PACK_Q4F, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_Q8: f_matrix(KVF_PACK_Q8, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_Q8G: f_matrix(KVF_PACK_Q8G, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_Q8M: f_matrix(KVF_PACK_Q8M, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_F16: f_matrix(KVF_PACK_F16, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_BF16: f_matrix(KVF_PACK_BF16, w, x, row, rows, panel, panels, out); break;
    case KVF_PACK_F32: f_matrix(KVF_PACK_F32, w, x, row, rows, panel, panels, out); break;
    }
}

/* Not inlined: nothing of it may move to where subnormals are not zeros. */
static __attribute__((noinline)) void b_matrix(const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows,
    uint32_t panel, uint32_t panels, const kvf_product *out)
#if defined(KVF_OWN_B_MATRIX) /* the source brings it */
    ;
#else
{
    f_matrix(PACK_BF16_PAIRS, w, x, row, rows, panel, panels, out);
}
#endif
static void matmul_b(const kvf_packed *w, const kvf_rows *x, uint32_t row, uint32_t rows, uint32_t panel,
    uint32_t panels, const kvf_product *out) {
    KVF_ASSERT(w->kind == KVF_PACK_BF16);
    uint64_t old = lanes_flush();
    b_matrix(w, x, row, rows, panel, panels, out);
    lanes_restore(old);
}

/* The compiler makes vectors of it. */
static void round_bf16(float *x, uint32_t count, uint16_t *dst) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits, size;
        memcpy(&bits, &x[i], sizeof bits);
        size = bits & 0x7fffffff;
        uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
        uint32_t kept = size > 0x7f800000 ? quiet : size < 0x00800000 ? bits >> 31 << 15 : rounded;
        dst[i] = (uint16_t)kept;
        kept <<= 16;
        memcpy(&x[i], &kept, sizeof kept);
    }
}
#endif
