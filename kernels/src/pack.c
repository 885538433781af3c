/* Packing: from rows as the file holds them to pairs of panels (layouts: kvf/kernels.h). Done once at load, in plain C;
 * a pair depends on nothing but its rows, so threads take pairs in any order and the image is the same everywhere.
 *
 * Q4 group of one panel: vector j (0..3) of 64 bytes holds, at byte 4*o+i, the codes of output o for k = 4j+i (low
 * nibble) and k = 16+4j+i (high nibble). That is the nibble order of Q4_0 and Q4_1 blocks, so their bytes move in
 * fours. Q8 group: vector g (0..7), byte 4*o+i: code of k = 4g+i, plus 128. Plain kinds: [k][16 outputs]. */
#include "kernels_int.h"
#include <math.h>

static uint32_t group_bytes_of(kvf_pack_kind kind) { /* of a pair of panels */
    switch (kind) {
    case KVF_PACK_Q4: return 2 * (256 + 64);
    case KVF_PACK_Q4F: return 2 * (256 + 128);
    case KVF_PACK_Q8: return 2 * (512 + 32);
    case KVF_PACK_Q8G:
    case KVF_PACK_Q8M: return 2 * (512 + 128);
    case KVF_PACK_F16:
    case KVF_PACK_BF16: return 2 * KVF_GROUP * KVF_PANEL * 2;
    case KVF_PACK_F32: break;
    }
    return 2 * KVF_GROUP * KVF_PANEL * 4;
}

/* Q4_0 is d*(q-8): as d*q + m it needs m = -8d to be a half, which it is unless that overflows. */
static bool q4_0_fits(const uint8_t *src, uint64_t blocks) {
    for (uint64_t i = 0; i < blocks; i++)
        if (!(fabsf(kvf_f16_to_f32(kvf_get_le16(src + i * 18))) <= 65504.0f / 8)) return false;
    return true;
}

void kvf_pack_plan(kvf_packed *p, kvf_dtype type, const void *src, uint32_t outputs, uint32_t inputs) {
    kvf_pack_kind kind = KVF_PACK_F32;
    switch (type) {
    case KVF_DTYPE_Q4_1: kind = KVF_PACK_Q4; break;
    case KVF_DTYPE_Q4_0:
        if (q4_0_fits((const uint8_t *)src, (uint64_t)outputs * (inputs / KVF_GROUP))) kind = KVF_PACK_Q4;
        break;
    case KVF_DTYPE_Q4_K: kind = KVF_PACK_Q4F; break;
    case KVF_DTYPE_Q8_0: kind = KVF_PACK_Q8; break;
    case KVF_DTYPE_Q5_0:
    case KVF_DTYPE_Q6_K: kind = KVF_PACK_Q8G; break;
    case KVF_DTYPE_Q5_1:
    case KVF_DTYPE_Q5_K: kind = KVF_PACK_Q8M; break;
    case KVF_DTYPE_F16: kind = KVF_PACK_F16; break;
    case KVF_DTYPE_BF16: kind = KVF_PACK_BF16; break;
    default: break;
    }
    uint32_t groups = (uint32_t)kvf_div_up(inputs, KVF_GROUP), group_bytes = group_bytes_of(kind);
    *p = (kvf_packed){.kind = kind,
        .outputs = outputs,
        .inputs = inputs,
        .panels = (uint32_t)kvf_div_up(outputs, KVF_PANEL),
        .groups = groups,
        .pairs = (uint32_t)kvf_div_up(outputs, 2 * KVF_PANEL),
        .group_bytes = group_bytes,
        .pair_bytes = (size_t)groups * group_bytes};
}

size_t kvf_pack_scratch_bytes(const kvf_packed *p) { return (size_t)p->groups * KVF_GROUP * sizeof(float); }

static size_t row_bytes(kvf_dtype type, uint32_t inputs) {
    const kvf_dtype_info *info = kvf_dtype_find(type);
    return (size_t)inputs / info->block_values * info->block_bytes;
}

/* One row into lane `lane` of the panel whose codes and scales start at these places of each group. */
typedef struct {
    uint8_t *codes, *scales;
    uint32_t lane;
} place;

static void pack_q4_row(const kvf_packed *p, kvf_dtype type, const uint8_t *src, place to) {
    bool has_min = type == KVF_DTYPE_Q4_1;
    uint32_t header = has_min ? 4 : 2;
    for (uint32_t g = 0; g < p->groups; g++, src += header + 16) {
        uint16_t d = kvf_get_le16(src);
        uint16_t m = has_min ? kvf_get_le16(src + 2) : kvf_f32_to_f16(-8.0f * kvf_f16_to_f32(d));
        size_t at = (size_t)g * p->group_bytes;
        for (uint32_t j = 0; j < 4; j++) memcpy(to.codes + at + 64 * j + 4 * to.lane, src + header + 4 * j, 4);
        memcpy(to.scales + at + 2 * to.lane, &d, 2);
        memcpy(to.scales + at + 32 + 2 * to.lane, &m, 2);
    }
}

/* Scale and minimum number `index` of a Q4_K block: eight 6-bit pairs in 12 bytes. */
static void q4_k_scale(const uint8_t *s, uint32_t index, uint32_t *scale, uint32_t *min) {
    if (index < 4) {
        *scale = s[index] & 63;
        *min = s[index + 4] & 63;
    } else {
        *scale = (s[index + 4] & 15u) | (s[index - 4] >> 6) << 4;
        *min = (s[index + 4] >> 4) | (s[index] >> 6) << 4;
    }
}

static void pack_q4_k_row(const kvf_packed *p, const uint8_t *src, place to) {
    for (uint32_t g = 0; g < p->groups; g++) {
        const uint8_t *block = src + (size_t)(g / 8) * 144;
        size_t at = (size_t)g * p->group_bytes;
        uint32_t scale, min, shift = g % 2 * 4;
        q4_k_scale(block + 4, g % 8, &scale, &min);
        float d = kvf_f16_to_f32(kvf_get_le16(block)) * (float)scale;
        float m = -(kvf_f16_to_f32(kvf_get_le16(block + 2)) * (float)min);
        const uint8_t *codes = block + 16 + (size_t)(g % 8 / 2) * 32;
        for (uint32_t k = 0; k < 16; k++) {
            uint32_t low = codes[k] >> shift & 15, high = codes[16 + k] >> shift & 15;
            to.codes[at + 64 * (k / 4) + 4 * to.lane + k % 4] = (uint8_t)(low | high << 4);
        }
        memcpy(to.scales + at + 4 * to.lane, &d, 4);
        memcpy(to.scales + at + 64 + 4 * to.lane, &m, 4);
    }
}

static void pack_q8_row(const kvf_packed *p, const uint8_t *src, place to) {
    for (uint32_t g = 0; g < p->groups; g++, src += 34) {
        uint8_t *codes = to.codes + (size_t)g * p->group_bytes;
        for (uint32_t k = 0; k < KVF_GROUP; k++)
            codes[64 * (k / 4) + 4 * to.lane + k % 4] = (uint8_t)(src[2 + k] + 128);
        memcpy(to.scales + (size_t)g * p->group_bytes + 2 * to.lane, src, 2);
    }
}

/* Codes of group g of a row in one of the formats that become bytes with two f32 numbers per group. */
static void q5_codes(const uint8_t *high, const uint8_t *nibbles, int32_t offset, int8_t q[KVF_GROUP]) {
    uint32_t fifth = kvf_get_le32(high);
    for (uint32_t k = 0; k < KVF_GROUP; k++) {
        uint32_t low = k < 16 ? nibbles[k] & 15u : nibbles[k - 16] >> 4;
        q[k] = (int8_t)((int32_t)(low | (fifth >> k & 1) << 4) - offset);
    }
}

static void q5_k_group(const uint8_t *block, uint32_t g, int8_t q[KVF_GROUP], float scale[2]) {
    uint32_t scale6, min6, shift = g % 2 * 4;
    q4_k_scale(block + 4, g, &scale6, &min6);
    scale[0] = kvf_f16_to_f32(kvf_get_le16(block)) * (float)scale6;
    scale[1] = -(kvf_f16_to_f32(kvf_get_le16(block + 2)) * (float)min6);
    const uint8_t *high = block + 16, *low = block + 48 + (size_t)(g / 2) * 32;
    for (uint32_t k = 0; k < KVF_GROUP; k++) q[k] = (int8_t)((low[k] >> shift & 15) | (high[k] >> g & 1) << 4);
}

static void q6_k_group(const uint8_t *block, uint32_t g, int8_t q[KVF_GROUP], float scale[2]) {
    uint32_t half = g / 4, quarter = g % 4;
    const uint8_t *low = block + 64 * half + 32 * (quarter & 1), *high = block + 128 + 32 * half;
    float d = kvf_f16_to_f32(kvf_get_le16(block + 208));
    for (uint32_t i = 0; i < 2; i++) scale[i] = d * (float)(int8_t)block[192 + 2 * g + i];
    for (uint32_t k = 0; k < KVF_GROUP; k++)
        q[k] = (int8_t)((int32_t)((low[k] >> (quarter / 2 * 4) & 15u) | (high[k] >> (2 * quarter) & 3u) << 4) - 32);
}

static void bytes_group(kvf_dtype type, const uint8_t *row, uint32_t g, int8_t q[KVF_GROUP], float scale[2]) {
    const uint8_t *block = row;
    switch (type) {
    case KVF_DTYPE_Q5_0:
        block += (size_t)g * 22;
        scale[0] = scale[1] = kvf_f16_to_f32(kvf_get_le16(block));
        q5_codes(block + 2, block + 6, 16, q);
        break;
    case KVF_DTYPE_Q5_1:
        block += (size_t)g * 24;
        for (uint32_t i = 0; i < 2; i++) scale[i] = kvf_f16_to_f32(kvf_get_le16(block + 2 * i));
        q5_codes(block + 4, block + 8, 0, q);
        break;
    case KVF_DTYPE_Q5_K: q5_k_group(block + (size_t)(g / 8) * 176, g % 8, q, scale); break;
    case KVF_DTYPE_Q6_K: q6_k_group(block + (size_t)(g / 8) * 210, g % 8, q, scale); break;
    default: KVF_ASSERT(!"this type is not packed as bytes");
    }
}

static void pack_bytes_row(const kvf_packed *p, kvf_dtype type, const uint8_t *row, place to) {
    for (uint32_t g = 0; g < p->groups; g++) {
        int8_t q[KVF_GROUP];
        float scale[2];
        bytes_group(type, row, g, q, scale);
        size_t at = (size_t)g * p->group_bytes;
        for (uint32_t k = 0; k < KVF_GROUP; k++)
            to.codes[at + 64 * (k / 4) + 4 * to.lane + k % 4] = (uint8_t)(q[k] + 128);
        for (uint32_t i = 0; i < 2; i++) memcpy(to.scales + at + 64 * i + 4 * to.lane, &scale[i], 4);
    }
}

static void pack_plain_row(const kvf_packed *p, const uint8_t *src, size_t size, place to) {
    for (uint32_t k = 0; k < p->inputs; k++) {
        size_t at = (size_t)(k / KVF_GROUP) * p->group_bytes + (k % KVF_GROUP * KVF_PANEL + to.lane) * size;
        memcpy(to.codes + at, src + k * size, size);
    }
}

static void pack_row(const kvf_packed *p, kvf_dtype type, const uint8_t *row, place to, void *scratch) {
    switch (p->kind) {
    case KVF_PACK_Q4: pack_q4_row(p, type, row, to); break;
    case KVF_PACK_Q4F: pack_q4_k_row(p, row, to); break;
    case KVF_PACK_Q8: pack_q8_row(p, row, to); break;
    case KVF_PACK_Q8G:
    case KVF_PACK_Q8M: pack_bytes_row(p, type, row, to); break;
    case KVF_PACK_F16:
    case KVF_PACK_BF16: pack_plain_row(p, row, 2, to); break;
    case KVF_PACK_F32:
        kvf_dequant_row(type, row, (float *)scratch, p->inputs);
        pack_plain_row(p, (const uint8_t *)scratch, 4, to);
        break;
    }
}

void kvf_pack_pairs(
    const kvf_packed *p, kvf_dtype type, const void *src, uint32_t begin, uint32_t end, uint8_t *dst, void *scratch) {
    size_t stride = row_bytes(type, p->inputs);
    for (uint32_t pair = begin; pair < end; pair++, dst += p->pair_bytes) {
        memset(dst, 0, p->pair_bytes);
        uint32_t first = pair * 2 * KVF_PANEL, last = KVF_MIN(first + 2 * KVF_PANEL, p->outputs);
        for (uint32_t output = first; output < last; output++) {
            uint32_t panel = output / KVF_PANEL;
            place to = {.codes = dst + kvf_codes_offset(p->kind, p->group_bytes, panel),
                .scales = dst + kvf_scales_offset(p->kind, p->group_bytes, panel),
                .lane = output % KVF_PANEL};
            pack_row(p, type, (const uint8_t *)src + (size_t)output * stride, to, scratch);
        }
    }
}
