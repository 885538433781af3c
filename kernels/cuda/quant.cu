/* quant.cu - blocks of model files to f16 or bf16, once, when weights come to the device. Each value is made in f32 by
 * the operations of kernels/quant in their order, none contracted, then rounded once: the same bits as rounding what
 * the CPU makes. A thread makes eight values and writes 16 bytes. */
#include "kvf/cuda_kernels.h"
#include "port.h"

enum { THREADS = 256, EACH = 8 };

KVF_DEVICE uint32_t two_bytes(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8; }
KVF_DEVICE uint32_t four_bytes(const uint8_t *p) { return two_bytes(p) | two_bytes(p + 2) << 16; }
KVF_DEVICE float half_at(const uint8_t *p) { return __half2float(__ushort_as_half((unsigned short)two_bytes(p))); }
KVF_DEVICE float product(float a, float b) { return __fmul_rn(a, b); }
KVF_DEVICE int nibble(const uint8_t *q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }
KVF_DEVICE int fifth_bit(uint32_t high, int i) { return (int)(high >> i & 1u) << 4; }

/* value(b, i): value i of the block at b. */
struct f32_block {
    enum { VALUES = 1, BYTES = 4 };
    KVF_MEMBER float value(const uint8_t *b, int) { return __uint_as_float(four_bytes(b)); }
};
struct f16_block {
    enum { VALUES = 1, BYTES = 2 };
    KVF_MEMBER float value(const uint8_t *b, int) { return half_at(b); }
};
struct bf16_block {
    enum { VALUES = 1, BYTES = 2 };
    KVF_MEMBER float value(const uint8_t *b, int) { return __uint_as_float(two_bytes(b) << 16); }
};
struct q4_0_block {
    enum { VALUES = 32, BYTES = 18 };
    KVF_MEMBER float value(const uint8_t *b, int i) { return product((float)(nibble(b + 2, i) - 8), half_at(b)); }
};
struct q4_1_block {
    enum { VALUES = 32, BYTES = 20 };
    KVF_MEMBER float value(const uint8_t *b, int i) {
        return __fadd_rn(product((float)nibble(b + 4, i), half_at(b)), half_at(b + 2));
    }
};
struct q5_0_block {
    enum { VALUES = 32, BYTES = 22 };
    KVF_MEMBER float value(const uint8_t *b, int i) {
        return product((float)((nibble(b + 6, i) | fifth_bit(four_bytes(b + 2), i)) - 16), half_at(b));
    }
};
struct q5_1_block {
    enum { VALUES = 32, BYTES = 24 };
    KVF_MEMBER float value(const uint8_t *b, int i) {
        int q = nibble(b + 8, i) | fifth_bit(four_bytes(b + 4), i);
        return __fadd_rn(product((float)q, half_at(b)), half_at(b + 2));
    }
};
struct q8_0_block {
    enum { VALUES = 32, BYTES = 34 };
    KVF_MEMBER float value(const uint8_t *b, int i) { return product((float)(int8_t)b[2 + i], half_at(b)); }
};

/* Sub-blocks with scales of their own. */
KVF_DEVICE int two_bits(const uint8_t *q, int i) { /* of 256 values in 64 bytes */
    int sub = i / 16;
    return q[32 * (sub / 8) + 16 * (sub % 2) + i % 16] >> (2 * (sub % 8 / 2)) & 3;
}
struct q2_k_block {
    enum { VALUES = 256, BYTES = 84 };
    KVF_MEMBER float value(const uint8_t *b, int i) {
        float scale = product(half_at(b + 80), (float)(b[i / 16] & 15));
        float min = product(half_at(b + 82), (float)(b[i / 16] >> 4));
        return __fsub_rn(product(scale, (float)two_bits(b + 16, i)), min);
    }
};
struct q3_k_block {
    enum { VALUES = 256, BYTES = 110 };
    KVF_MEMBER float value(const uint8_t *b, int i) {
        const uint8_t *s = b + 96;
        int sub = i / 16, low = sub < 8 ? s[sub] & 15 : s[sub - 8] >> 4;
        int scale6 = low | (s[8 + sub % 4] >> (2 * (sub / 4)) & 3) << 4;
        int high = b[16 * (sub % 2) + i % 16] >> (sub / 2) & 1;
        float scale = product(half_at(b + 108), (float)(scale6 - 32));
        return product(scale, (float)(two_bits(b + 32, i) - (high ? 0 : 4)));
    }
};
/* Eight 6-bit scales and eight 6-bit minima in 12 bytes. */
KVF_DEVICE float scaled_min(const uint8_t *b, int sub, int q) {
    const uint8_t *s = b + 4;
    int scale = sub < 4 ? s[sub] & 63 : (s[sub + 4] & 15) | s[sub - 4] >> 6 << 4;
    int min = sub < 4 ? s[sub + 4] & 63 : s[sub + 4] >> 4 | s[sub] >> 6 << 4;
    return __fsub_rn(product(product(half_at(b), (float)scale), (float)q), product(half_at(b + 2), (float)min));
}
struct q4_k_block {
    enum { VALUES = 256, BYTES = 144 };
    KVF_MEMBER float value(const uint8_t *b, int i) {
        int sub = i / 32;
        return scaled_min(b, sub, b[16 + 32 * (sub / 2) + i % 32] >> (4 * (sub % 2)) & 15);
    }
};
struct q5_k_block {
    enum { VALUES = 256, BYTES = 176 };
    KVF_MEMBER float value(const uint8_t *b, int i) {
        int sub = i / 32, high = b[16 + i % 32] >> sub & 1;
        return scaled_min(b, sub, (b[48 + 32 * (sub / 2) + i % 32] >> (4 * (sub % 2)) & 15) + (high << 4));
    }
};
struct q6_k_block {
    enum { VALUES = 256, BYTES = 210 };
    KVF_MEMBER float value(const uint8_t *b, int i) {
        int half = i / 128, quarter = i % 128 / 32, l = i % 32;
        int low = b[64 * half + l + 32 * (quarter & 1)] >> (4 * (quarter / 2)) & 15;
        int q = (low | (b[128 + 32 * half + l] >> (2 * quarter) & 3) << 4) - 32;
        return product(product(half_at(b + 208), (float)(int8_t)b[192 + i / 16]), (float)q);
    }
};

/* Nibbles that index a table; a byte of these words is a value. */
KVF_DEVICE int iq4_value(int i) {
    const uint32_t words[4] = {0xBFAD9881u, 0xF6EADDCFu, 0x26190D01u, 0x71594535u};
    return (int8_t)(words[i >> 2] >> (8 * (i & 3)));
}
KVF_DEVICE int fp4_value(int i) { /* twice the value of E2M1 */
    const uint32_t words[2] = {0x03020100u, 0x0C080604u};
    int v = (int)(words[i >> 2 & 1] >> (8 * (i & 3)) & 255);
    return i & 8 ? -v : v;
}
struct iq4_nl_block {
    enum { VALUES = 32, BYTES = 18 };
    KVF_MEMBER float value(const uint8_t *b, int i) { return product(half_at(b), (float)iq4_value(nibble(b + 2, i))); }
};
struct iq4_xs_block {
    enum { VALUES = 256, BYTES = 136 };
    KVF_MEMBER float value(const uint8_t *b, int i) {
        int sub = i / 32;
        int scale6 = (b[4 + sub / 2] >> (4 * (sub % 2)) & 15) | (int)(two_bytes(b + 2) >> (2 * sub) & 3) << 4;
        return product(product(half_at(b), (float)(scale6 - 32)), (float)iq4_value(nibble(b + 8 + 16 * sub, i % 32)));
    }
};
struct mxfp4_block {
    enum { VALUES = 32, BYTES = 17 };
    KVF_MEMBER float value(const uint8_t *b, int i) {
        uint32_t e = b[0];
        float d = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        return product(d, (float)fp4_value(nibble(b + 1, i)));
    }
};

KVF_DEVICE uint16_t rounded(float v, bool bf16) {
    return bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(v)) : __half_as_ushort(__float2half_rn(v));
}

template <class BLOCK>
static __global__ void __launch_bounds__(THREADS)
    to_halves(uint16_t *out, bool bf16, const uint8_t *src, size_t count) {
    size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * EACH;
    uint32_t pairs[EACH / 2] = {};
    int n = at < count ? (int)min((size_t)EACH, count - at) : 0;
    for (int i = 0; i < n; i++) {
        const uint8_t *b = src + (at + i) / BLOCK::VALUES * BLOCK::BYTES;
        uint16_t h = rounded(BLOCK::value(b, (int)((at + i) % BLOCK::VALUES)), bf16);
        pairs[i / 2] |= (uint32_t)h << (16 * (i & 1));
        if (n < EACH) out[at + i] = h;
    }
    if (n == EACH) *(uint4 *)(out + at) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

struct request {
    uint16_t *out;
    bool bf16;
    const uint8_t *src;
    size_t count;
    void *stream;
};

template <class BLOCK> static int launch(const request &r) {
    if (r.count % BLOCK::VALUES) return -1;
    if (r.count == 0) return 0;
    dim3 grid((unsigned)((r.count + THREADS * EACH - 1) / (THREADS * EACH)));
    KVF_LAUNCH(to_halves<BLOCK>, grid, dim3(THREADS), 0, r.stream, r.out, r.bf16, r.src, r.count);
    return 0;
}

int kvf_cuda_dequantise(void *out, kvf_cuda_type to, uint32_t type, const void *src, size_t count, void *stream) {
    request r = {(uint16_t *)out, to == KVF_CUDA_BF16, (const uint8_t *)src, count, stream};
    if (to != KVF_CUDA_F16 && to != KVF_CUDA_BF16) return -1;
    switch (type) { /* numbers of the GGUF format */
    case 0: return launch<f32_block>(r);
    case 1: return launch<f16_block>(r);
    case 2: return launch<q4_0_block>(r);
    case 3: return launch<q4_1_block>(r);
    case 6: return launch<q5_0_block>(r);
    case 7: return launch<q5_1_block>(r);
    case 8: return launch<q8_0_block>(r);
    case 10: return launch<q2_k_block>(r);
    case 11: return launch<q3_k_block>(r);
    case 12: return launch<q4_k_block>(r);
    case 13: return launch<q5_k_block>(r);
    case 14: return launch<q6_k_block>(r);
    case 20: return launch<iq4_nl_block>(r);
    case 23: return launch<iq4_xs_block>(r);
    case 30: return launch<bf16_block>(r);
    case 39: return launch<mxfp4_block>(r);
    default: return -1;
    }
}
