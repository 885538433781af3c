/* Every table against `ref`, bit for bit, over shapes with and without remainders; and `ref` against double precision,
 * so that equal does not mean equally wrong. */
#include "kvf/kernels.h"
#include "kvf/rng.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

static kvf_rng rng = {.seed = 20261129};
static float uniform(float scale) { return scale * ((float)(int64_t)(kvf_rng_next(&rng) >> 40) / 8388608.0f - 1.0f); }
static uint32_t below(uint32_t bound) { return (uint32_t)kvf_rng_below(&rng, bound); }

static float *floats(size_t count, float scale) {
    float *p = malloc((count + 16) * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < count + 16; i++) p[i] = uniform(scale);
    return p;
}

static const kvf_kernel_ops *tables[KVF_KERNELS_MAX + 1];
static size_t tables_count, listed_count;
static const kvf_kernel_ops *ref;

static void same(const char *what, const char *table, const void *want, const void *got, size_t bytes) {
    if (memcmp(want, got, bytes) == 0) return;
    const float *a = want, *b = got;
    for (size_t i = 0; i < bytes / 4; i++)
        if (memcmp(a + i, b + i, 4) != 0)
            fail_msg(
                "%s: %s differs from ref at %zu: %.9g, should be %.9g", what, table, i, (double)b[i], (double)a[i]);
}

/* Random rows of a file type whose scales are sensible halves. */
static uint8_t *random_rows(kvf_dtype type, uint32_t outputs, uint32_t inputs) {
    const kvf_dtype_info *info = kvf_dtype_find(type);
    size_t row = (size_t)inputs / info->block_values * info->block_bytes;
    uint8_t *data = malloc(row * outputs);
    assert_non_null(data);
    for (size_t i = 0; i < row * outputs; i++) data[i] = (uint8_t)kvf_rng_next(&rng);
    for (size_t i = 0; i < row * outputs; i += info->block_bytes) {
        uint8_t *b = data + i;
        float f = uniform(1);
        uint32_t bits;
        memcpy(&bits, &f, 4);
        switch (type) {
        case KVF_DTYPE_F32: memcpy(b, &f, 4); break;
        case KVF_DTYPE_BF16: kvf_put_le16(b, (uint16_t)(bits >> 16)); break;
        case KVF_DTYPE_MXFP4: b[0] = (uint8_t)(120 + below(6)); break;
        case KVF_DTYPE_Q6_K: kvf_put_le16(b + 208, kvf_f32_to_f16(f * 0.05f)); break;
        case KVF_DTYPE_Q2_K:
            kvf_put_le16(b + 82, kvf_f32_to_f16(f));
            kvf_put_le16(b + 80, kvf_f32_to_f16(f * 0.1f));
            break;
        case KVF_DTYPE_Q3_K: kvf_put_le16(b + 108, kvf_f32_to_f16(f * 0.05f)); break;
        case KVF_DTYPE_Q4_1:
        case KVF_DTYPE_Q5_1:
        case KVF_DTYPE_Q4_K:
        case KVF_DTYPE_Q5_K: kvf_put_le16(b + 2, kvf_f32_to_f16(uniform(0.3f))); /* fall through */
        default: kvf_put_le16(b, kvf_f32_to_f16(f * 0.05f)); break;
        }
    }
    return data;
}

typedef struct {
    kvf_packed w;
    uint8_t *memory;
    float *dense; /* [outputs][inputs] */
} matrix;
static matrix pack_matrix(kvf_dtype type, const uint8_t *rows, uint32_t outputs, uint32_t inputs) {
    matrix m = {0};
    const kvf_dtype_info *info = kvf_dtype_find(type);
    kvf_pack_plan(&m.w, type, rows, outputs, inputs);
    m.memory = aligned_alloc(64, m.w.pairs * m.w.pair_bytes);
    void *scratch = malloc(kvf_pack_scratch_bytes(&m.w));
    /* in two goes: a pair depends on its own rows only */
    uint32_t half = m.w.pairs / 2;
    kvf_pack_pairs(&m.w, type, rows, half, m.w.pairs, m.memory + half * m.w.pair_bytes, scratch);
    kvf_pack_pairs(&m.w, type, rows, 0, half, m.memory, scratch);
    m.w.data = m.memory;
    m.dense = malloc((size_t)outputs * inputs * 4);
    for (uint32_t o = 0; o < outputs; o++)
        kvf_dequant_row(type, rows + (size_t)o * (inputs / info->block_values * info->block_bytes),
            m.dense + (size_t)o * inputs, inputs);
    free(scratch);
    return m;
}
static matrix make_matrix(kvf_dtype type, uint32_t outputs, uint32_t inputs) {
    uint8_t *rows = random_rows(type, outputs, inputs);
    matrix m = pack_matrix(type, rows, outputs, inputs);
    free(rows);
    return m;
}
static void free_matrix(matrix *m) {
    free(m->memory);
    free(m->dense);
}

typedef struct {
    kvf_rows rows;
    float *f32;
    int8_t *q;
    kvf_group_scale *scale;
} activations;
static activations make_rows(uint32_t rows, uint32_t inputs) {
    uint32_t groups = (uint32_t)kvf_div_up(inputs, KVF_GROUP);
    activations a = {.f32 = calloc((size_t)rows * groups * KVF_GROUP, 4),
        .q = malloc((size_t)rows * groups * KVF_GROUP),
        .scale = malloc((size_t)rows * groups * sizeof(kvf_group_scale))};
    for (uint32_t r = 0; r < rows; r++) {
        float *x = a.f32 + (size_t)r * groups * KVF_GROUP;
        for (uint32_t i = 0; i < inputs; i++) x[i] = uniform(i % 37 == 0 ? 20 : 1);
        ref->quantise(x, inputs, a.q + (size_t)r * groups * KVF_GROUP, a.scale + (size_t)r * groups);
    }
    a.rows = (kvf_rows){
        .f32 = a.f32, .f32_stride = (size_t)groups * KVF_GROUP, .q = a.q, .scale = a.scale, .groups = groups};
    return a;
}
static void free_rows(activations *a) {
    free(a->f32);
    free(a->q);
    free(a->scale);
}

/* Products of `dense` and the rows in double; for 8-bit with the rounded activations, so that only summation differs.
 */
static void check_against_double(
    const matrix *m, const activations *a, uint32_t rows, bool q, const float *y, size_t stride) {
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t o = 0; o < m->w.outputs; o++) {
            double sum = 0, size = 0;
            for (uint32_t k = 0; k < m->w.inputs; k++) {
                size_t at = (size_t)r * a->rows.groups * KVF_GROUP + k;
                double x = q ? (double)a->q[at] * (double)a->scale[at / KVF_GROUP].s : (double)a->f32[at];
                double term = x * (double)m->dense[(size_t)o * m->w.inputs + k];
                sum += term;
                size += fabs(term);
            }
            double error = fabs(sum - (double)y[r * stride + o]);
            if (!(error <= 2e-6 * size + 1e-6)) fail_msg("row %u output %u: off by %g of %g", r, o, error, size);
        }
    }
}

static void check_products(kvf_dtype type, uint32_t outputs, uint32_t inputs, uint32_t rows) {
    matrix m = make_matrix(type, outputs, inputs);
    activations a = make_rows(rows, inputs);
    size_t stride = outputs + below(3), total = rows * stride;
    float *start = floats(total, 1), *want = malloc(total * 4), *got = malloc(total * 4), *plain = malloc(total * 4);
    for (int q = 0; q < (kvf_pack_is_quantised(m.w.kind) ? 2 : 1); q++) {
        for (int add = 0; add < 2; add++) {
            memcpy(want, start, total * 4);
            kvf_product out = {want, stride, add};
            (q ? ref->matmul_q : ref->matmul_f)(&m.w, &a.rows, 0, rows, 0, m.w.panels, &out);
            if (!add) {
                check_against_double(&m, &a, rows, q, want, stride);
                memcpy(plain, want, total * 4);
            }
            for (size_t i = 0; i < tables_count; i++) {
                const kvf_kernel_ops *ops = tables[i];
                memcpy(got, start, total * 4);
                /* cut at random: rows and panels of a call leave no trace */
                uint32_t row_cut = below(rows + 1), panel_cut = below(m.w.panels + 1);
                for (int part = 0; part < 4; part++) {
                    uint32_t row = part & 1 ? row_cut : 0, panel = part & 2 ? panel_cut : 0;
                    uint32_t n = part & 1 ? rows - row_cut : row_cut, p = part & 2 ? m.w.panels - panel_cut : panel_cut;
                    kvf_product at = {got + row * stride + (size_t)panel * KVF_PANEL, stride, add};
                    if (n && p) (q ? ops->matmul_q : ops->matmul_f)(&m.w, &a.rows, row, n, panel, p, &at);
                }
                char what[96], buffer[16];
                snprintf(what, sizeof what, "%s %ux%u, %u rows, %s%s", kvf_dtype_name(type, buffer), outputs, inputs,
                    rows, q ? "8-bit" : "f32", add ? ", added" : "");
                same(what, ops->name, want, got, total * 4);
            }
        }
    }
    free(plain);
    free(got);
    free(want);
    free(start);
    free_rows(&a);
    free_matrix(&m);
}

static void products(void **state) {
    static const kvf_dtype types[] = {KVF_DTYPE_Q4_0, KVF_DTYPE_Q4_1, KVF_DTYPE_Q8_0, KVF_DTYPE_Q4_K, KVF_DTYPE_F16,
        KVF_DTYPE_BF16, KVF_DTYPE_F32, KVF_DTYPE_Q5_1, KVF_DTYPE_Q6_K, KVF_DTYPE_Q5_K, KVF_DTYPE_Q5_0, KVF_DTYPE_MXFP4};
    for (size_t i = 0; i < KVF_COUNT_OF(types); i++) {
        const kvf_dtype_info *info = kvf_dtype_find(types[i]);
        uint32_t unit = info->block_values == 1 ? 20 : info->block_values;
        check_products(types[i], 64, unit * 2, 7);
        check_products(types[i], 100, unit, 13);
        check_products(types[i], 5, unit * 3, 1);
        check_products(types[i], 150, unit, 2);
        for (uint32_t rows = 3; rows < 7; rows++) check_products(types[i], 33, unit, rows);
    }
}

/* Rows of an identity matrix give back each weight exactly as the file's format defines it. */
static void packing_is_exact(void **state) {
    static const kvf_dtype types[] = {KVF_DTYPE_Q4_0, KVF_DTYPE_Q4_1, KVF_DTYPE_Q5_0, KVF_DTYPE_Q5_1, KVF_DTYPE_Q8_0,
        KVF_DTYPE_Q2_K, KVF_DTYPE_Q3_K, KVF_DTYPE_Q4_K, KVF_DTYPE_Q5_K, KVF_DTYPE_Q6_K, KVF_DTYPE_IQ4_NL,
        KVF_DTYPE_IQ4_XS, KVF_DTYPE_F16, KVF_DTYPE_BF16, KVF_DTYPE_F32, KVF_DTYPE_MXFP4};
    enum { OUTPUTS = 20, INPUTS = 256 };
    float *identity = calloc((size_t)INPUTS * INPUTS, 4), *y = malloc(INPUTS * OUTPUTS * 4);
    for (size_t i = 0; i < INPUTS; i++) identity[i * INPUTS + i] = 1;
    kvf_rows x = {.f32 = identity, .f32_stride = INPUTS, .groups = INPUTS / KVF_GROUP};
    for (size_t i = 0; i < KVF_COUNT_OF(types); i++) {
        matrix m = make_matrix(types[i], OUTPUTS, INPUTS);
        ref->matmul_f(&m.w, &x, 0, INPUTS, 0, m.w.panels, &(kvf_product){y, OUTPUTS, false});
        for (size_t k = 0; k < INPUTS * OUTPUTS; k++) {
            char buffer[16];
            float want = m.dense[k % OUTPUTS * INPUTS + k / OUTPUTS];
            if (y[k] != want && !(isnan(want) && isnan(y[k])))
                fail_msg(
                    "%s: weight %zu is %g, not %g", kvf_dtype_name(types[i], buffer), k, (double)y[k], (double)want);
        }
        free_matrix(&m);
    }
    free(y);
    free(identity);
}

/* Largest codes everywhere: sums of pairs must not saturate. */
static void products_of_extremes(void **state) {
    for (int which = 0; which < 3; which++) {
        enum { OUTPUTS = 16, INPUTS = 64 };
        uint8_t rows[OUTPUTS * 68];
        kvf_dtype type = which == 2 ? KVF_DTYPE_Q4_1 : KVF_DTYPE_Q8_0;
        size_t block = which == 2 ? 20 : 34;
        memset(rows, which == 0 ? 0x80 : which == 1 ? 0x7f : 0xff, sizeof rows);
        for (size_t i = 0; i + block <= OUTPUTS * 2 * block; i += block) {
            kvf_put_le16(rows + i, 0x3c00);
            if (which == 2) kvf_put_le16(rows + i + 2, 0x3c00);
        }
        kvf_packed w;
        kvf_pack_plan(&w, type, rows, OUTPUTS, INPUTS);
        uint8_t *memory = aligned_alloc(64, w.pair_bytes), scratch[INPUTS * 4];
        kvf_pack_pairs(&w, type, rows, 0, 1, memory, scratch);
        w.data = memory;
        for (int sign = 0; sign < 2; sign++) {
            float x[INPUTS], want[OUTPUTS], got[OUTPUTS];
            int8_t q[INPUTS];
            kvf_group_scale scale[2];
            for (int i = 0; i < INPUTS; i++) x[i] = sign ? -127.0f : 127.0f;
            ref->quantise(x, INPUTS, q, scale);
            kvf_rows in = {.q = q, .scale = scale, .groups = 2};
            ref->matmul_q(&w, &in, 0, 1, 0, 1, &(kvf_product){want, OUTPUTS, false});
            assert_true(want[0] == (float)((sign ? -127 : 127) * 64 * (which == 0 ? -128 : which == 1 ? 127 : 16)));
            for (size_t i = 0; i < tables_count; i++) {
                tables[i]->matmul_q(&w, &in, 0, 1, 0, 1, &(kvf_product){got, OUTPUTS, false});
                same("extremes", tables[i]->name, want, got, sizeof want);
            }
        }
        free(memory);
    }
}

static float bf16_value(uint16_t b) {
    uint32_t bits = (uint32_t)b << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Nearest of the two neighbours, the even one of two equally near; in place and as bits; and what is no number. */
static void rounds_to_bf16(void **state) {
    enum { N = 41 };
    float *x = floats(N, 3), want[N], got[N];
    uint16_t bits[N], bits_got[N + 1];
    float odd[] = {0, -0.0f, 1e-39f, -1e-39f, 1.00390625f, 1.01171875f, -1.00390625f, 3.4e38f, INFINITY, -INFINITY};
    memcpy(x, odd, sizeof odd);
    memcpy(want, x, sizeof want);
    ref->round_bf16(want, N, bits);
    assert_true(want[4] == 1 && want[5] == 1.015625f && want[6] == -1 && want[7] == INFINITY);
    for (int i = 0; i < N; i++) {
        assert_true(bf16_value(bits[i]) == want[i] && signbit(want[i]) == signbit(x[i]));
        if (isinf(want[i]) || fabsf(x[i]) < 1e-38f) continue;
        float up = bf16_value((uint16_t)(bits[i] + 1)), down = bf16_value((uint16_t)(bits[i] - 1));
        assert_true(fabsf(want[i] - x[i]) <= fabsf(up - x[i]) && fabsf(want[i] - x[i]) <= fabsf(down - x[i]));
    }
    for (size_t i = 0; i < tables_count; i++) {
        float nan = NAN;
        memcpy(got, x, sizeof got);
        bits_got[N] = 0xeeee;
        tables[i]->round_bf16(got, N, bits_got);
        same("round_bf16", tables[i]->name, want, got, sizeof want);
        assert_memory_equal(bits, bits_got, sizeof bits);
        assert_int_equal(bits_got[N], 0xeeee);
        tables[i]->round_bf16(&nan, 1, bits_got);
        assert_true(isnan(nan) && isnan(bf16_value(bits_got[0])));
    }
    free(x);
}

/* Weights, values, sums and what they are added to (of size `add`; 0: to nothing) count as zeros where subnormal; ref
 * against sums in double; other tables against ref. */
static void check_bf16_product(uint32_t outputs, uint32_t inputs, uint32_t rows, float size, float weight, float add) {
    uint32_t groups = (uint32_t)kvf_div_up(inputs, KVF_GROUP), width = groups * KVF_GROUP;
    uint8_t *file = malloc((size_t)outputs * inputs * 2);
    for (uint32_t i = 0; i < outputs * inputs; i++) {
        float f = uniform(weight);
        memcpy(file + 2 * i, (uint8_t *)&f + 2, 2);
    }
    matrix m = pack_matrix(KVF_DTYPE_BF16, file, outputs, inputs);
    float *x = calloc((size_t)rows * width, 4), *values = floats(rows * inputs, size),
          *want = floats(rows * outputs, add > 0 ? add : 1), *got = malloc((size_t)rows * outputs * 4),
          *start = malloc((size_t)rows * outputs * 4);
    uint16_t *b = calloc((size_t)rows * width, 2);
    memcpy(start, want, (size_t)rows * outputs * 4);
    for (uint32_t r = 0; r < rows; r++) {
        memcpy(x + r * width, values + r * inputs, inputs * 4);
        ref->round_bf16(x + r * width, inputs, b + r * width);
    }
    kvf_rows in = {.f32 = x, .f32_stride = width, .bf16 = b, .groups = groups};
    ref->matmul_b(&m.w, &in, 0, rows, 0, m.w.panels, &(kvf_product){want, outputs, add > 0});
    for (uint32_t i = 0; i < rows * outputs; i++) {
        double sum = add > 0 ? (double)start[i] : 0, magnitude = fabs(sum) + 1e-35;
        for (uint32_t k = 0; k < inputs; k++) {
            double w = (double)m.dense[i % outputs * inputs + k];
            double one = fabs(w) < 1.1754943508222875e-38 ? 0 : (double)x[i / outputs * width + k] * w;
            sum += one;
            magnitude += fabs(one);
        }
        assert_true(fabs(sum - (double)want[i]) <= 1e-5 * magnitude + inputs * 1.2e-38);
    }
    for (size_t i = 0; i < tables_count; i++) {
        memcpy(got, start, (size_t)rows * outputs * 4);
        tables[i]->matmul_b(&m.w, &in, 0, rows, 0, m.w.panels, &(kvf_product){got, outputs, add > 0});
        same("bf16 product", tables[i]->name, want, got, (size_t)rows * outputs * 4);
        for (uint32_t p = 0; p < m.w.panels; p++) { /* each row and panel alone */
            uint32_t n = KVF_MIN(outputs - p * KVF_PANEL, (uint32_t)KVF_PANEL), r = p % rows;
            memcpy(got, start + r * outputs + p * KVF_PANEL, n * 4);
            tables[i]->matmul_b(&m.w, &in, r, 1, p, 1, &(kvf_product){got, outputs, add > 0});
            same("bf16 panel", tables[i]->name, want + r * outputs + p * KVF_PANEL, got, n * 4);
        }
    }
    free(b), free(start), free(got), free(want), free(values), free(x), free(file);
    free_matrix(&m);
}
static void bf16_products(void **state) {
    static const uint32_t rows[] = {1, 2, 3, 4, 7, 8, 12, 13, 24, 31};
    for (size_t i = 0; i < KVF_COUNT_OF(rows); i++) {
        check_bf16_product(64, 64, rows[i], 1, 1, 1);
        check_bf16_product(49, 70, rows[i], 1, 1, 1);
    }
    check_bf16_product(33, 96, 5, 1e-37f, 0.1f, 0); /* many products and sums are subnormal */
    check_bf16_product(33, 96, 5, 1e-37f, 0.1f, 3e-38f); /* and what they are added to */
    check_bf16_product(33, 96, 5, 1e30f, 1e-38f, 0); /* all weights are */
    check_bf16_product(33, 96, 5, 1e30f, 2e-38f, 0); /* some are */
}

/* Q4_0 whose minimum overflows a half keeps its values in f32. */
static void q4_0_with_huge_scale(void **state) {
    uint8_t rows[18] = {0};
    kvf_packed w;
    kvf_put_le16(rows, kvf_f32_to_f16(8000));
    kvf_pack_plan(&w, KVF_DTYPE_Q4_0, rows, 1, 32);
    assert_int_equal(w.kind, KVF_PACK_Q4);
    kvf_put_le16(rows, kvf_f32_to_f16(-9000));
    kvf_pack_plan(&w, KVF_DTYPE_Q4_0, rows, 1, 32);
    assert_int_equal(w.kind, KVF_PACK_F32);
}

static void row_operations(void **state) {
    static const uint32_t counts[] = {1, 15, 16, 17, 31, 32, 64, 100, 576, 1536};
    for (size_t c = 0; c < KVF_COUNT_OF(counts); c++) {
        uint32_t n = counts[c], groups = (uint32_t)kvf_div_up(n, KVF_GROUP);
        float *x = floats(n, 3), *w = floats(n, 1), *want = malloc(n * 4), *got = malloc(n * 4);
        int8_t *q = malloc(groups * KVF_GROUP * 2), *q_got = q + groups * KVF_GROUP;
        kvf_group_scale *s = malloc(2 * groups * sizeof *s), *s_got = s + groups;
        if (n > 64) x[40] = 0, memset(x + 32, 0, 32 * 4);
        ref->rms_norm(x, w, 1e-5f, n, want);
        double sum = 0;
        for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
        for (uint32_t i = 0; i < n; i++)
            assert_true(fabs((double)x[i] * (double)w[i] / sqrt(sum / n + 1e-5) - (double)want[i]) < 1e-5);
        ref->quantise(x, n, q, s);
        for (uint32_t i = 0; i < n; i++)
            assert_true(fabsf((float)q[i] * s[i / KVF_GROUP].s - x[i]) <= s[i / KVF_GROUP].s * 0.5001f);
        for (size_t i = 0; i < tables_count; i++) {
            const kvf_kernel_ops *ops = tables[i];
            ops->rms_norm(x, w, 1e-5f, n, got);
            same("rms_norm", ops->name, want, got, n * 4);
            ops->quantise(x, n, q_got, s_got);
            assert_memory_equal(q, q_got, groups * KVF_GROUP);
            same("scales", ops->name, s, s_got, groups * sizeof *s);
        }
        memcpy(want, x, n * 4);
        ref->swiglu(want, w, n);
        for (uint32_t i = 0; i < n; i++)
            assert_true(fabs((double)x[i] / (1 + exp(-(double)x[i])) * (double)w[i] - (double)want[i]) < 2e-6);
        for (size_t i = 0; i < tables_count; i++) {
            memcpy(got, x, n * 4);
            tables[i]->swiglu(got, w, n);
            same("swiglu", tables[i]->name, want, got, n * 4);
        }
        free(s);
        free(q);
        free(got);
        free(want);
        free(w);
        free(x);
    }
}

static void quantise_odd_values(void **state) {
    float cases[][32] = {
        {0}, {1e-38f, -1e-40f}, {1e-31f}, {3e38f, -3.4e38f, 1}, {INFINITY, 1}, {1, NAN, 2}, {-0.0f, 0.5f, 127}};
    for (size_t c = 0; c < KVF_COUNT_OF(cases); c++) {
        int8_t q[32], got[32];
        kvf_group_scale s, s_got;
        ref->quantise(cases[c], 32, q, &s);
        for (size_t i = 0; i < tables_count; i++) {
            tables[i]->quantise(cases[c], 32, got, &s_got);
            assert_memory_equal(q, got, 32);
            if (!isnan(s.s)) same("odd scales", tables[i]->name, &s, &s_got, sizeof s);
            assert_int_equal(isnan(s.s) != 0, isnan(s_got.s) != 0);
        }
    }
}

static void rotation_and_cells(void **state) {
    static const uint32_t dims[][2] = {{16, 16}, {64, 64}, {80, 76}, {6, 6}, {10, 4}};
    for (size_t c = 0; c < KVF_COUNT_OF(dims); c++) {
        uint32_t head = dims[c][0], pairs = dims[c][1] / 2, n = 3 * head;
        double frequency[64];
        float cos_sin[128], *x = floats(n, 2), *want = malloc(n * 4), *got = malloc(n * 4);
        uint16_t cells[256], cells_got[256];
        kvf_rope_frequencies(10000, 1, NULL, pairs * 2, frequency);
        kvf_rope_angles(frequency, pairs, 1234, cos_sin);
        for (int halves = 0; halves < 2; halves++) {
            memcpy(want, x, n * 4);
            ref->rope(want, 3, head, cos_sin, pairs, halves);
            for (size_t i = 0; i < tables_count; i++) {
                memcpy(got, x, n * 4);
                tables[i]->rope(got, 3, head, cos_sin, pairs, halves);
                same("rope", tables[i]->name, want, got, n * 4);
            }
        }
        x[0] = 1e-6f, x[1] = 70000, x[2] = -6e-8f, x[3] = 65519;
        ref->store_cells(x, n, KVF_CELL_F16, cells);
        for (size_t i = 0; i < tables_count; i++) {
            memset(cells_got, 0xee, sizeof cells_got);
            tables[i]->store_cells(x, n, KVF_CELL_F16, cells_got);
            assert_memory_equal(cells, cells_got, n * 2);
            assert_int_equal(cells_got[n], 0xeeee); /* nothing behind */
            tables[i]->store_cells(x, n, KVF_CELL_F32, got);
            assert_memory_equal(x, got, n * 4);
        }
        free(got);
        free(want);
        free(x);
    }
}

/* Every table's bits, the definition in doubles, and that a stored value is within half a step of what it was. */
static void check_q8_row(const float *x, uint32_t n) {
    uint8_t want[128], got[128];
    size_t bytes = kvf_cell_row_bytes(KVF_CELL_Q8, n);
    assert_true(bytes < sizeof want);
    ref->store_cells(x, n, KVF_CELL_Q8, want);
    for (size_t i = 0; i < tables_count; i++) {
        memset(got, 0xee, sizeof got);
        tables[i]->store_cells(x, n, KVF_CELL_Q8, got);
        assert_memory_equal(want, got, bytes);
        assert_int_equal(got[bytes], 0xee);
    }
    for (uint32_t first = 0; first < n; first += 32) {
        double most = 0, s = (double)kvf_f16_to_f32(kvf_get_le16(want + n + first / 32 * 2));
        bool finite = true;
        for (uint32_t d = first; d < KVF_MIN(first + 32, n); d++) {
            finite &= isfinite(x[d]);
            most = fmax(most, fabs((double)x[d]));
        }
        assert_int_equal(finite, !isnan(s));
        if (finite && most > 0.008 && most < 8e6) assert_true(fabs(s / (most / 127) - 1) <= 1.0 / 2048);
        for (uint32_t d = first; d < KVF_MIN(first + 32, n); d++)
            if (finite && most < 8e6) /* a scale rounded down leaves the largest a little outside */
                assert_true(fabs(s * (int8_t)want[d] - (double)x[d]) <= s * 0.5001 + most / 2048 + 4e-6);
            else if (!finite)
                assert_int_equal(want[d], 0);
    }
}

static void q8_cells(void **state) {
    static const uint32_t dims[] = {2, 10, 16, 32, 64, 72, 80, 96};
    for (size_t c = 0; c < KVF_COUNT_OF(dims) * 40; c++) {
        float x[96], size = ldexpf(1, (int)(c % 40) - 20);
        for (uint32_t i = 0; i < 96; i++) x[i] = uniform(size);
        if (c % 7 == 0) x[1] = NAN;
        if (c % 7 == 1) x[0] = -INFINITY;
        if (c % 7 == 2) memset(x, 0, sizeof x / 2);
        if (c % 7 == 3) x[1] = 3e38f;
        if (c % 7 == 4) x[0] = 1e-40f;
        check_q8_row(x, dims[c / 40]);
    }
}

typedef struct {
    uint32_t position, tokens, group, kv_heads, head_dim;
} attention_case;

static const kvf_cell all_cells[] = {KVF_CELL_F16, KVF_CELL_F32, KVF_CELL_Q8};

/* Element d of row `row` of a page: of a head of K, then of V, and a position. */
static double cell_value(const kvf_attention *a, const uint8_t *page, size_t row, uint32_t d) {
    const uint8_t *cells = page + row * kvf_cell_row_bytes(a->cell, a->head_dim);
    float wide;
    if (a->cell == KVF_CELL_F16) return (double)kvf_f16_to_f32(kvf_get_le16(cells + d * 2));
    if (a->cell == KVF_CELL_Q8)
        return (double)kvf_f16_to_f32(kvf_get_le16(cells + a->head_dim + d / 32 * 2)) * (int8_t)cells[d];
    memcpy(&wide, cells + d * 4, 4);
    return (double)wide;
}

/* Softmax attention of one row in double over the stored cells. */
static void check_attention_row(const kvf_attention *a, uint32_t token, uint32_t head, const float *got) {
    const float *q = a->q + token * a->q_stride + head * a->head_dim;
    uint32_t seen = a->position + token + 1;
    double *w = malloc(seen * sizeof *w), *v = calloc(a->head_dim, sizeof *v), most = -INFINITY, sum = 0;
    for (uint32_t p = 0; p < seen; p++) {
        const uint8_t *page = a->pages + a->blocks[p / 16] * a->page_bytes;
        w[p] = 0;
        for (uint32_t d = 0; d < a->head_dim; d++)
            w[p] += (double)q[d] * cell_value(a, page, (size_t)a->kv_head * 16 + p % 16, d);
        w[p] *= (double)a->scale;
        most = fmax(most, w[p]);
    }
    for (uint32_t p = 0; p < seen; p++) {
        const uint8_t *page = a->pages + a->blocks[p / 16] * a->page_bytes;
        size_t row = (size_t)(a->kv_heads + a->kv_head) * 16 + p % 16;
        sum += w[p] = exp(w[p] - most);
        for (uint32_t d = 0; d < a->head_dim; d++) v[d] += w[p] * cell_value(a, page, row, d);
    }
    for (uint32_t d = 0; d < a->head_dim; d++)
        if (fabs(v[d] / sum - (double)got[d]) > 1e-5)
            fail_msg("attention: %g, should be %g", (double)got[d], v[d] / sum);
    free(v);
    free(w);
}

static void check_attention(const attention_case *c, kvf_cell cell) {
    uint32_t last = c->position + c->tokens, blocks_count = (uint32_t)kvf_div_up(last, 16),
             width = c->group * c->head_dim;
    size_t row_bytes = kvf_cell_row_bytes(cell, c->head_dim), page_bytes = (size_t)2 * 16 * c->kv_heads * row_bytes;
    uint32_t *blocks = malloc(blocks_count * 4);
    for (uint32_t i = 0; i < blocks_count; i++) blocks[i] = blocks_count - 1 - i;
    /* exactly as many pages as there are, so that a sanitizer sees a read behind them; slots not written hold NaN */
    uint8_t *pages = malloc(blocks_count * page_bytes);
    memset(pages, 0xff, blocks_count * page_bytes);
    for (uint32_t p = 0; p < last; p++)
        for (uint32_t h = 0; h < 2 * c->kv_heads; h++) {
            float row[256];
            for (uint32_t d = 0; d < c->head_dim; d++) row[d] = uniform(2);
            size_t at = blocks[p / 16] * page_bytes + ((size_t)h * 16 + p % 16) * row_bytes;
            ref->store_cells(row, c->head_dim, cell, pages + at);
        }
    size_t rows = c->tokens * c->group, stride = width + 5;
    float *q = floats(c->tokens * stride, 1), *want = calloc(c->tokens * stride, 4),
          *got = calloc(c->tokens * stride, 4);
    float *scratch = aligned_alloc(64, kvf_align_up(kvf_attention_scratch_floats((uint32_t)rows, c->head_dim) * 4, 64));
    for (uint32_t kv_head = 0; kv_head < c->kv_heads; kv_head++) {
        kvf_attention a = {.q = q,
            .out = want,
            .q_stride = stride,
            .out_stride = stride,
            .pages = pages,
            .page_bytes = page_bytes,
            .blocks = blocks,
            .position = c->position,
            .tokens = c->tokens,
            .kv_head = kv_head,
            .kv_heads = c->kv_heads,
            .group = c->group,
            .head_dim = c->head_dim,
            .scale = 0.3f,
            .cell = cell,
            .scratch = scratch};
        ref->attention(&a);
        check_attention_row(
            &a, c->tokens - 1, c->group - 1, want + (c->tokens - 1) * stride + (c->group - 1) * c->head_dim);
        a.out = got;
        for (size_t i = 0; i < tables_count; i++) {
            memset(scratch, 0xff, kvf_attention_scratch_floats((uint32_t)rows, c->head_dim) * 4);
            memset(got, 0, c->tokens * stride * 4);
            tables[i]->attention(&a);
            char what[96];
            snprintf(what, sizeof what, "attention at %u, %u tokens, group %u, head size %u", c->position, c->tokens,
                c->group, c->head_dim);
            same(what, tables[i]->name, want, got, c->tokens * stride * 4);
        }
    }
    free(scratch);
    free(got);
    free(want);
    free(q);
    free(pages);
    free(blocks);
}

static void attention(void **state) {
    static const attention_case cases[] = {{0, 1, 1, 1, 16}, {0, 16, 3, 3, 64}, {5, 9, 2, 2, 32}, {250, 13, 3, 1, 64},
        {255, 1, 4, 2, 16}, {256, 1, 7, 1, 64}, {500, 16, 3, 1, 64}, {767, 2, 5, 1, 80}, {30, 4, 2, 1, 10},
        {17, 3, 1, 2, 2}, {600, 1, 1, 1, 256}, {31, 7, 8, 1, 128}};
    for (size_t i = 0; i < KVF_COUNT_OF(cases); i++)
        for (size_t k = 0; k < KVF_COUNT_OF(all_cells); k++) check_attention(&cases[i], all_cells[k]);
}

/* Tokens of sequences that share their first pages: every table against ref, which knows of no sharing. Each table of
 * blocks ends with its token's page, and slots nobody wrote hold NaN. */
static void check_gathered(const attention_case *c, uint32_t shared, kvf_cell cell) {
    enum { EACH = 16, OWN_PAGES = 24 };
    uint32_t blocks_count = shared / 16 + c->tokens * OWN_PAGES, table[EACH][64 + OWN_PAGES], next = shared / 16;
    size_t row_bytes = kvf_cell_row_bytes(cell, c->head_dim), page_bytes = (size_t)2 * 16 * c->kv_heads * row_bytes;
    uint8_t *pages = malloc(blocks_count * page_bytes);
    memset(pages, 0xff, blocks_count * page_bytes);
    kvf_attention_token each[EACH];
    for (uint32_t t = 0; t < c->tokens; t++) {
        each[t] = (kvf_attention_token){
            .blocks = table[t], .position = shared + below(t % 2 ? 40 : 16 * OWN_PAGES), .row = c->tokens - 1 - t};
        for (uint32_t i = 0; i <= each[t].position / 16; i++) table[t][i] = i < shared / 16 ? i : next++;
        for (uint32_t p = 0; p <= each[t].position; p++)
            for (uint32_t h = 0; h < 2 * c->kv_heads; h++) {
                float row[256];
                for (uint32_t d = 0; d < c->head_dim; d++) row[d] = uniform(2);
                size_t at = table[t][p / 16] * page_bytes + ((size_t)h * 16 + p % 16) * row_bytes;
                ref->store_cells(row, c->head_dim, cell, pages + at);
            }
    }
    size_t rows = c->tokens * c->group, stride = c->group * c->head_dim + 3;
    float *q = floats(c->tokens * stride, 1), *want = calloc(c->tokens * stride, 4),
          *got = calloc(c->tokens * stride, 4);
    size_t scratch_bytes = kvf_align_up(kvf_attention_scratch_floats((uint32_t)rows, c->head_dim) * 4, 64);
    float *scratch = aligned_alloc(64, scratch_bytes);
    kvf_attention a = {.q = q,
        .out = want,
        .q_stride = stride,
        .out_stride = stride,
        .pages = pages,
        .page_bytes = page_bytes,
        .blocks = table[0],
        .tokens = c->tokens,
        .each = each,
        .shared = shared,
        .kv_head = c->kv_heads - 1,
        .kv_heads = c->kv_heads,
        .group = c->group,
        .head_dim = c->head_dim,
        .scale = 0.3f,
        .cell = cell,
        .scratch = scratch};
    ref->attention(&a);
    a.out = got;
    for (size_t i = 0; i < tables_count; i++) {
        memset(scratch, 0xff, scratch_bytes);
        memset(got, 0, c->tokens * stride * 4);
        tables[i]->attention(&a);
        char what[96];
        snprintf(what, sizeof what, "attention of %u tokens that share %u positions", c->tokens, shared);
        same(what, tables[i]->name, want, got, c->tokens * stride * 4);
    }
    free(scratch);
    free(got);
    free(want);
    free(q);
    free(pages);
}

static void gathered_attention(void **state) {
    static const attention_case cases[] = {
        {0, 16, 3, 2, 64}, {0, 5, 1, 1, 16}, {0, 2, 7, 1, 80}, {0, 1, 2, 1, 10}, {0, 7, 4, 2, 128}};
    static const uint32_t shared[] = {16, 64, 240, 256, 272, 512, 992};
    for (size_t i = 0; i < KVF_COUNT_OF(cases) * KVF_COUNT_OF(shared); i++)
        for (size_t k = 0; k < KVF_COUNT_OF(all_cells); k++)
            check_gathered(&cases[i % KVF_COUNT_OF(cases)], shared[i / KVF_COUNT_OF(cases)], all_cells[k]);
}

/* Own elementary functions against the C library's. */
static void elementary_functions(void **state) {
    for (int i = 0; i < 200000; i++) {
        double x = (double)(int64_t)(kvf_rng_next(&rng) >> 20) / (double)(1ull << 44) * 2e6 - 1e6, s, c;
        if (i < 1000) x = i * 0.7853981633974483;
        kvf_sin_cos(x, &s, &c);
        assert_true(fabs(s - sin(x)) < 4e-16 + fabs(x) * 1e-22 && fabs(c - cos(x)) < 4e-16 + fabs(x) * 1e-22);
        double y = x / 1e6 * 40;
        assert_true(fabs(kvf_exp_double(y) / exp(y) - 1) < 1e-15);
        double z = exp(y);
        assert_true(fabs(kvf_log_double(z) - log(z)) < 4e-16 * (1 + fabs(log(z))));
    }
    float gate[16], one[16];
    for (int i = 0; i < 20000; i++) { /* exp through swiglu: g / (1 + exp(-g)) */
        for (int j = 0; j < 16; j++) gate[j] = uniform(100), one[j] = 1;
        float x[16];
        memcpy(x, gate, sizeof x);
        ref->swiglu(gate, one, 16);
        for (int j = 0; j < 16; j++) {
            double want = (double)x[j] / (1 + exp(-(double)x[j]));
            assert_true(fabs((double)gate[j] - want) <= 3e-7 * fabs(want) + 1e-35);
        }
    }
}

static void tables_by_name(void **state) {
    assert_ptr_equal(kvf_kernels_find(NULL), tables[0]);
    assert_ptr_equal(kvf_kernels_find("auto"), tables[0]);
    assert_string_equal(kvf_kernels_find("ref")->name, "ref");
    assert_null(kvf_kernels_find("avx1024"));
    for (size_t i = 0; i < listed_count; i++) assert_ptr_equal(kvf_kernels_find(tables[i]->name), tables[i]);
}

#if defined(KVF_TEST_TWIN)
extern const kvf_kernel_ops kvf_kernels_avx_vnni_twin;
/* avx-vnni where the processor has its instruction in AVX-512's form only; not a table that can be asked for. */
static void add_twin(void) {
    if (!kvf_kernels_find("avx-vnni") && kvf_kernels_find("avx512-vnni"))
        tables[tables_count++] = &kvf_kernels_avx_vnni_twin;
}
#else
static void add_twin(void) {}
#endif

int main(void) {
    tables_count = listed_count = kvf_kernels_list(tables);
    ref = tables[tables_count - 1];
    add_twin();
    printf("tables:");
    for (size_t i = 0; i < tables_count; i++) printf(" %s", tables[i]->name);
    printf("\n");
    const struct CMUnitTest tests[] = {cmocka_unit_test(tables_by_name), cmocka_unit_test(elementary_functions),
        cmocka_unit_test(row_operations), cmocka_unit_test(quantise_odd_values), cmocka_unit_test(rotation_and_cells),
        cmocka_unit_test(q8_cells), cmocka_unit_test(packing_is_exact), cmocka_unit_test(products),
        cmocka_unit_test(products_of_extremes), cmocka_unit_test(rounds_to_bf16), cmocka_unit_test(bf16_products),
        cmocka_unit_test(q4_0_with_huge_scale), cmocka_unit_test(attention), cmocka_unit_test(gathered_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
