/* attention.h - one warp's part of attention on tensor cores: 16 rows of queries against tokens that lie in shared
 * memory, with a running maximum and sum. Shared by decode.cu and prefill.cu.
 *
 * A warp holds queries as A operands and the output as C fragments: lane l has rows l / 4 and l / 4 + 8, and of every
 * 8 columns the two at (l % 4) * 2. Keys and values are rows of DIM halves, padded by 16 bytes so that ldmatrix meets
 * no bank twice. Scores are kept in powers of two. A row's result depends on its own query and on the order of tokens
 * only, never on the other rows. */
#ifndef KVF_CUDA_ATTENTION_H
#define KVF_CUDA_ATTENTION_H
#include "f8.h"
#include "port.h"

#define KVF_LOG2_E 1.4426950408889634f
enum { ATTENTION_ROWS = 16, PAGE_TOKENS = 16, SHARED_MAX = 99 << 10 /* of a block on the smallest GPU we serve */ };
template <int DIM> struct padded { static const int stride = DIM + 8; /* of a row in shared memory, in halves */ };

struct softmax {
    float top[2], sum[2]; /* of this lane's two rows */
};
KVF_DEVICE softmax softmax_begin() { return {{-INFINITY, -INFINITY}, {0, 0}}; }

/* A warp's queries: A operands in registers, or, of heads so large that registers would not do, rows in shared memory.
 */
template <int DIM> struct queries {
    static const bool in_shared = DIM > 128;
    static const int room = in_shared ? ATTENTION_ROWS * padded<DIM>::stride : 0; /* halves of shared memory */
    uint32_t a[in_shared ? 1 : DIM / 16][4];
    const __half *rows;
};

/* Rows from `rows` on are zero; consecutive rows lie `apart` halves from each other. room: filled by all of `threads`,
 * who then meet before the first query_step. */
template <int DIM>
KVF_DEVICE void load_queries(
    queries<DIM> *q, __half *room, const __half *from, size_t apart, int rows, int thread, int threads) {
    if constexpr (queries<DIM>::in_shared) {
        for (int i = thread; i < ATTENTION_ROWS * DIM / 8; i += threads) {
            int row = i / (DIM / 8), at = i % (DIM / 8) * 8;
            uint4 v = row < rows ? *(const uint4 *)(from + row * apart + at) : make_uint4(0, 0, 0, 0);
            *(uint4 *)(room + row * padded<DIM>::stride + at) = v;
        }
        q->rows = room;
    } else {
        int lane = thread % 32;
        for (int k = 0; k < DIM / 16; k++) {
            for (int i = 0; i < 4; i++) {
                int row = lane / 4 + (i & 1) * 8, at = k * 16 + (lane & 3) * 2 + (i >> 1) * 8;
                q->a[k][i] = row < rows ? *(const uint32_t *)(from + row * apart + at) : 0;
            }
        }
    }
}

/* The A operand of columns [16 * step, 16 * step + 16). */
template <int DIM> KVF_DEVICE void query_step(uint32_t *a, const queries<DIM> &q, int step, int lane) {
    if constexpr (queries<DIM>::in_shared)
        kvf_load_matrix_x4(a, q.rows + lane % 16 * padded<DIM>::stride + step * 16 + lane / 16 * 8);
    else
        for (int i = 0; i < 4; i++) a[i] = q.a[step][i];
}

/* s[TILES][4] = q * k^T for 8 * TILES tokens. */
template <int DIM, int TILES> KVF_DEVICE void score(float (*s)[4], const queries<DIM> &q, const __half *k, int lane) {
    for (int t = 0; t < TILES; t++)
        for (int i = 0; i < 4; i++) s[t][i] = 0;
    for (int step = 0; step < DIM / 16; step++) {
        uint32_t a[4];
        query_step<DIM>(a, q, step, lane);
        for (int t = 0; t < TILES; t += 2) {
            uint32_t b[4]; /* 16 tokens: the first 8 in b[0], b[1], the others in b[2], b[3] */
            int token = t * 8 + lane % 8 + lane / 16 * 8;
            kvf_load_matrix_x4(b, k + token * padded<DIM>::stride + step * 16 + lane / 8 % 2 * 8);
            kvf_mma_f16(s[t], a, b);
            kvf_mma_f16(s[t + 1], a, b + 2);
        }
    }
}

/* s: scores, scaled to powers of two, -inf where masked; every row has seen a token by now. On return probabilities
 * relative to the new maximum; out is rescaled to it. */
template <int DIM, int TILES> KVF_DEVICE void soften(softmax *m, float (*s)[4], float (*out)[4]) {
    for (int r = 0; r < 2; r++) {
        float top = m->top[r], sum = 0;
        for (int t = 0; t < TILES; t++) top = fmaxf(top, fmaxf(s[t][2 * r], s[t][2 * r + 1]));
        top = fmaxf(top, __shfl_xor_sync(KVF_WARP_ALL, top, 1));
        top = fmaxf(top, __shfl_xor_sync(KVF_WARP_ALL, top, 2));
        float shrink = exp2f(m->top[r] - top);
        for (int t = 0; t < TILES; t++) {
            for (int i = 2 * r; i < 2 * r + 2; i++) {
                s[t][i] = exp2f(s[t][i] - top);
                sum += s[t][i];
            }
        }
        sum += __shfl_xor_sync(KVF_WARP_ALL, sum, 1);
        sum += __shfl_xor_sync(KVF_WARP_ALL, sum, 2);
        m->sum[r] = m->sum[r] * shrink + sum;
        m->top[r] = top;
        for (int d = 0; d < DIM / 8; d++) {
            out[d][2 * r] *= shrink;
            out[d][2 * r + 1] *= shrink;
        }
    }
}

KVF_DEVICE uint32_t pack_halves(float low, float high) {
    __half2 h = __floats2half2_rn(low, high);
    return *(uint32_t *)&h;
}

/* out += probabilities * v. */
template <int DIM, int TILES> KVF_DEVICE void weigh(float (*out)[4], const float (*s)[4], const __half *v, int lane) {
    for (int t = 0; t < TILES; t += 2) {
        uint32_t p[4] = {pack_halves(s[t][0], s[t][1]), pack_halves(s[t][2], s[t][3]),
            pack_halves(s[t + 1][0], s[t + 1][1]), pack_halves(s[t + 1][2], s[t + 1][3])};
        for (int d = 0; d < DIM / 16; d++) {
            uint32_t b[4]; /* 16 values: the first 8 in b[0], b[1], the others in b[2], b[3] */
            kvf_load_matrix_x4_trans(b, v + (t * 8 + lane % 16) * padded<DIM>::stride + d * 16 + lane / 16 * 8);
            kvf_mma_f16(out[2 * d], p, b);
            kvf_mma_f16(out[2 * d + 1], p, b + 2);
        }
    }
}

/* Starts the copy of one head's keys and values of a page, by `threads` threads; tokens from `tokens` on become zeros
 * (they may never have been written). */
template <int DIM>
KVF_DEVICE void fetch_page(__half *k_to, __half *v_to, const uint8_t *page, uint32_t kv_heads, uint32_t head,
    int tokens, int thread, int threads) {
    const __half *k = (const __half *)page + (size_t)head * PAGE_TOKENS * DIM;
    const __half *v = k + (size_t)kv_heads * PAGE_TOKENS * DIM;
    for (int i = thread; i < PAGE_TOKENS * DIM / 8; i += threads) {
        int token = i / (DIM / 8), at = i % (DIM / 8) * 8, bytes = token < tokens ? 16 : 0;
        kvf_copy_async16(k_to + token * padded<DIM>::stride + at, k + token * DIM + at, bytes);
        kvf_copy_async16(v_to + token * padded<DIM>::stride + at, v + token * DIM + at, bytes);
    }
}

/* ---- pages of 8-bit codes ---- */

template <int DIM> struct codes { /* one head's part of a page, as it comes: K, V, scales of K, scales of V */
    static const int values = PAGE_TOKENS * DIM;
    static const int bytes = 2 * values + 2 * PAGE_TOKENS * (int)sizeof(__half);
};

/* As fetch_page; tokens from `tokens` on get scale 0 and codes 0. */
template <int DIM>
KVF_DEVICE void fetch_codes(
    uint8_t *to, const uint8_t *page, uint32_t kv_heads, uint32_t head, int tokens, int thread, int threads) {
    const uint8_t *k = page + (size_t)head * codes<DIM>::values, *v = k + (size_t)kv_heads * codes<DIM>::values;
    const uint8_t *scales = page + (size_t)2 * kv_heads * codes<DIM>::values;
    for (int i = thread; i < codes<DIM>::values / 16; i += threads) {
        int bytes = i / (DIM / 16) < tokens ? 16 : 0;
        kvf_copy_async16(to + i * 16, k + i * 16, bytes);
        kvf_copy_async16(to + codes<DIM>::values + i * 16, v + i * 16, bytes);
    }
    for (int i = thread; i < 4; i += threads) { /* eight scales each: two of K, two of V */
        int bytes = max(0, min(16, (tokens - i % 2 * 8) * (int)sizeof(__half)));
        const uint8_t *from = scales + ((size_t)(i / 2) * kv_heads + head) * PAGE_TOKENS * sizeof(__half);
        kvf_copy_async16(to + 2 * codes<DIM>::values + i * 16, from + i % 2 * 16, bytes);
    }
}

/* What fetch_codes brought, as fetch_page would have brought it. */
template <int DIM>
KVF_DEVICE void expand_codes(__half *k_to, __half *v_to, const uint8_t *from, int thread, int threads) {
    const __half *scales = (const __half *)(from + 2 * codes<DIM>::values);
    for (int i = thread; i < 2 * codes<DIM>::values / 16; i += threads) {
        int row = i / (DIM / 16), at = i % (DIM / 16) * 16, token = row % PAGE_TOKENS;
        __half2 scale = __half2half2(scales[row]);
        uint4 in = *(const uint4 *)(from + i * 16);
        uint2 v[4] = {kvf_f8_to_halves(in.x, scale), kvf_f8_to_halves(in.y, scale), kvf_f8_to_halves(in.z, scale),
            kvf_f8_to_halves(in.w, scale)};
        uint4 *to = (uint4 *)((row < PAGE_TOKENS ? k_to : v_to) + token * padded<DIM>::stride + at);
        to[0] = make_uint4(v[0].x, v[0].y, v[1].x, v[1].y);
        to[1] = make_uint4(v[2].x, v[2].y, v[3].x, v[3].y);
    }
}
#endif
