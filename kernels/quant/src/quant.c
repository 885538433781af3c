/* The block formats: sizes, and conversion of rows to f32, one function per format. Each writes the values of one
 * block. Products and sums are separate f32 operations in the order each format defines (d * scale first, then * q,
 * then - min): the build forbids contraction, so results are the same bits on every machine. Blocks are read bytewise:
 * any alignment. */
#include "kvf/quant.h"
#include <stdio.h>

typedef void (*block_fn)(const uint8_t *b, float *y);

static float half_at(const uint8_t *p) { return kvf_f16_to_f32(kvf_get_le16(p)); }

static float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void block_f32(const uint8_t *b, float *y) { y[0] = float_of_bits(kvf_get_le32(b)); }
static void block_f16(const uint8_t *b, float *y) { y[0] = half_at(b); }
static void block_bf16(const uint8_t *b, float *y) { y[0] = float_of_bits((uint32_t)kvf_get_le16(b) << 16); }

/* --- 32 values: scale (and minimum), nibbles; value j in the low nibble of byte j, value j + 16 in its high nibble ---
 */

static void block_q4_0(const uint8_t *b, float *y) {
    float d = half_at(b);
    for (int j = 0; j < 16; j++) {
        y[j] = (float)((b[2 + j] & 15) - 8) * d;
        y[j + 16] = (float)((b[2 + j] >> 4) - 8) * d;
    }
}

static void block_q4_1(const uint8_t *b, float *y) {
    float d = half_at(b), m = half_at(b + 2);
    for (int j = 0; j < 16; j++) {
        y[j] = (float)(b[4 + j] & 15) * d + m;
        y[j + 16] = (float)(b[4 + j] >> 4) * d + m;
    }
}

/* Fifth bits: bit v of a 32-bit word belongs to value v. */
static int fifth_bit(uint32_t high, int value) { return (int)(high >> value & 1u) << 4; }

static void block_q5_0(const uint8_t *b, float *y) {
    float d = half_at(b);
    uint32_t high = kvf_get_le32(b + 2);
    for (int j = 0; j < 16; j++) {
        y[j] = (float)(((b[6 + j] & 15) | fifth_bit(high, j)) - 16) * d;
        y[j + 16] = (float)(((b[6 + j] >> 4) | fifth_bit(high, j + 16)) - 16) * d;
    }
}

static void block_q5_1(const uint8_t *b, float *y) {
    float d = half_at(b), m = half_at(b + 2);
    uint32_t high = kvf_get_le32(b + 4);
    for (int j = 0; j < 16; j++) {
        y[j] = (float)((b[8 + j] & 15) | fifth_bit(high, j)) * d + m;
        y[j + 16] = (float)((b[8 + j] >> 4) | fifth_bit(high, j + 16)) * d + m;
    }
}

static void block_q8_0(const uint8_t *b, float *y) {
    float d = half_at(b);
    for (int j = 0; j < 32; j++) y[j] = (float)(int8_t)b[2 + j] * d;
}

/* --- 256 values in sub-blocks of 16 or 32 with their own small scales --- */

/* [16] scale | min << 4, [64] 2-bit values, d, dmin. A byte of a half's 32 holds values l, l+32, l+64, l+96 of that
 * half. */
static void block_q2_k(const uint8_t *b, float *y) {
    float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int sub = 0; sub < 16; sub++) {
        const uint8_t *q = b + 16 + 32 * (sub / 8) + 16 * (sub % 2);
        int shift = 2 * (sub % 8 / 2);
        float scale = d * (float)(b[sub] & 15), min = dmin * (float)(b[sub] >> 4);
        for (int l = 0; l < 16; l++) y[16 * sub + l] = scale * (float)(q[l] >> shift & 3) - min;
    }
}

/* [32] high bits, [64] low 2-bit values as in Q2_K, [12] 6-bit scales, d. A clear high bit means minus 4. */
static void block_q3_k(const uint8_t *b, float *y) {
    const uint8_t *s = b + 96;
    float d = half_at(b + 108);
    for (int sub = 0; sub < 16; sub++) {
        const uint8_t *q = b + 32 + 32 * (sub / 8) + 16 * (sub % 2), *high = b + 16 * (sub % 2);
        int shift = 2 * (sub % 8 / 2), bit = sub / 2;
        int low = sub < 8 ? s[sub] & 15 : s[sub - 8] >> 4;
        int scale6 = low | (s[8 + sub % 4] >> (2 * (sub / 4)) & 3) << 4;
        float scale = d * (float)(scale6 - 32);
        for (int l = 0; l < 16; l++)
            y[16 * sub + l] = scale * (float)((q[l] >> shift & 3) - (high[l] >> bit & 1 ? 0 : 4));
    }
}

/* Eight 6-bit scales and eight 6-bit minima in 12 bytes, shared by Q4_K and Q5_K. */
static void scale_min_6bit(const uint8_t *s, int sub, int *scale, int *min) {
    if (sub < 4) {
        *scale = s[sub] & 63;
        *min = s[sub + 4] & 63;
    } else {
        *scale = (s[sub + 4] & 15) | s[sub - 4] >> 6 << 4;
        *min = s[sub + 4] >> 4 | s[sub] >> 6 << 4;
    }
}

/* d, dmin, [12] scales and minima, [128] nibbles: a run of 32 bytes holds sub-block 2i low and 2i+1 high. */
static void block_q4_k(const uint8_t *b, float *y) {
    float d = half_at(b), dmin = half_at(b + 2);
    for (int sub = 0; sub < 8; sub++) {
        const uint8_t *q = b + 16 + 32 * (sub / 2);
        int shift = 4 * (sub % 2), scale6, min6;
        scale_min_6bit(b + 4, sub, &scale6, &min6);
        float scale = d * (float)scale6, min = dmin * (float)min6;
        for (int l = 0; l < 32; l++) y[32 * sub + l] = scale * (float)(q[l] >> shift & 15) - min;
    }
}

/* As Q4_K with [32] fifth bits between scales and nibbles: bit `sub` of byte l. */
static void block_q5_k(const uint8_t *b, float *y) {
    const uint8_t *high = b + 16;
    float d = half_at(b), dmin = half_at(b + 2);
    for (int sub = 0; sub < 8; sub++) {
        const uint8_t *q = b + 48 + 32 * (sub / 2);
        int shift = 4 * (sub % 2), scale6, min6;
        scale_min_6bit(b + 4, sub, &scale6, &min6);
        float scale = d * (float)scale6, min = dmin * (float)min6;
        for (int l = 0; l < 32; l++)
            y[32 * sub + l] = scale * (float)((q[l] >> shift & 15) + ((high[l] >> sub & 1) << 4)) - min;
    }
}

/* [128] low nibbles, [64] high 2 bits, [16] signed scales, d; each half of 128 values uses 64 + 32 + 8 bytes. */
static void block_q6_k(const uint8_t *b, float *y) {
    float d = half_at(b + 208);
    for (int half = 0; half < 2; half++) {
        const uint8_t *ql = b + 64 * half, *qh = b + 128 + 32 * half, *scales = b + 192 + 8 * half;
        for (int i = 0; i < 128; i++) {
            int quarter = i / 32, l = i % 32;
            int low = ql[l + 32 * (quarter & 1)] >> (4 * (quarter / 2)) & 15;
            int q = (low | (qh[l] >> (2 * quarter) & 3) << 4) - 32;
            y[128 * half + i] = d * (float)(int8_t)scales[i / 16] * (float)q;
        }
    }
}

/* --- nibbles that index a table --- */

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/* E2M1 values times two, so that they are whole numbers; the shared exponent is one less in return. */
static const int8_t fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void table_nibbles(const int8_t *values, float d, const uint8_t *q, float *y) {
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)values[q[j] & 15];
        y[j + 16] = d * (float)values[q[j] >> 4];
    }
}

static void block_iq4_nl(const uint8_t *b, float *y) { table_nibbles(iq4_values, half_at(b), b + 2, y); }

/* d, 16 bits of scale tops (2 each), [4] scale nibbles, [128] nibbles. */
static void block_iq4_xs(const uint8_t *b, float *y) {
    float d = half_at(b);
    uint32_t tops = kvf_get_le16(b + 2);
    for (int sub = 0; sub < 8; sub++) {
        int scale6 = (b[4 + sub / 2] >> (4 * (sub % 2)) & 15) | (int)(tops >> (2 * sub) & 3) << 4;
        table_nibbles(iq4_values, d * (float)(scale6 - 32), b + 8 + 16 * sub, y + 32 * sub);
    }
}

/* Shared exponent e (power of two 2^(e-127)), 32 E2M1 values. */
static void block_mxfp4(const uint8_t *b, float *y) {
    uint32_t e = b[0];
    table_nibbles(fp4_values, float_of_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23), b + 1, y);
}

typedef struct {
    kvf_dtype_info info;
    block_fn block;
} format;

/* Indexed by the GGUF type number; holes have no name. */
static const format formats[] = {
    [KVF_DTYPE_F32] = {{"F32", 1, 4}, block_f32},
    [KVF_DTYPE_F16] = {{"F16", 1, 2}, block_f16},
    [KVF_DTYPE_Q4_0] = {{"Q4_0", 32, 18}, block_q4_0},
    [KVF_DTYPE_Q4_1] = {{"Q4_1", 32, 20}, block_q4_1},
    [KVF_DTYPE_Q5_0] = {{"Q5_0", 32, 22}, block_q5_0},
    [KVF_DTYPE_Q5_1] = {{"Q5_1", 32, 24}, block_q5_1},
    [KVF_DTYPE_Q8_0] = {{"Q8_0", 32, 34}, block_q8_0},
    [KVF_DTYPE_Q2_K] = {{"Q2_K", 256, 84}, block_q2_k},
    [KVF_DTYPE_Q3_K] = {{"Q3_K", 256, 110}, block_q3_k},
    [KVF_DTYPE_Q4_K] = {{"Q4_K", 256, 144}, block_q4_k},
    [KVF_DTYPE_Q5_K] = {{"Q5_K", 256, 176}, block_q5_k},
    [KVF_DTYPE_Q6_K] = {{"Q6_K", 256, 210}, block_q6_k},
    [KVF_DTYPE_IQ4_NL] = {{"IQ4_NL", 32, 18}, block_iq4_nl},
    [KVF_DTYPE_IQ4_XS] = {{"IQ4_XS", 256, 136}, block_iq4_xs},
    [KVF_DTYPE_BF16] = {{"BF16", 1, 2}, block_bf16},
    [KVF_DTYPE_MXFP4] = {{"MXFP4", 32, 17}, block_mxfp4},
};

const kvf_dtype_info *kvf_dtype_find(uint32_t type) {
    return type < KVF_COUNT_OF(formats) && formats[type].block ? &formats[type].info : NULL;
}

const char *kvf_dtype_name(uint32_t type, char buffer[16]) {
    const kvf_dtype_info *info = kvf_dtype_find(type);
    if (info) return info->name;
    snprintf(buffer, 16, "type %u", (unsigned)type);
    return buffer;
}

void kvf_dequant_row(kvf_dtype type, const void *src, float *dst, size_t count) {
    const kvf_dtype_info *info = kvf_dtype_find(type);
    KVF_ASSERT(info != NULL);
    KVF_ASSERT(count % info->block_values == 0);
    const uint8_t *b = src;
    /* Plain types get their own loops: a call per value would be most of the cost. */
    if (type == KVF_DTYPE_F32) {
        for (size_t i = 0; i < count; i++) block_f32(b + 4 * i, dst + i);
    } else if (type == KVF_DTYPE_F16) {
        for (size_t i = 0; i < count; i++) block_f16(b + 2 * i, dst + i);
    } else if (type == KVF_DTYPE_BF16) {
        for (size_t i = 0; i < count; i++) block_bf16(b + 2 * i, dst + i);
    } else {
        block_fn block = formats[type].block;
        for (size_t i = 0; i < count; i += info->block_values, b += info->block_bytes) block(b, dst + i);
    }
}
