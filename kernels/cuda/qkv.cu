/* qkv.cu - bias, norm and rotation of queries and keys, and the write of keys and values into their pages, in one pass
 * over what the projection left. One warp a head: a head's values stay in the warp. */
#include "f8.h"
#include "sixteen.h"

enum { WARPS = 4, PAGE_TOKENS = 16, VALUES_MAX = 8 /* of one lane: head_dim <= 256 */ };

/* The lane's values in registers: value k is value d of the head. */
#define EACH_VALUE(k, d)                                                                                               \
    KVF_UNROLL for (uint32_t k = 0; k < VALUES_MAX; k++) if (uint32_t d = lane + 32 * k; d < a.head_dim)

KVF_DEVICE float warp_sum(float v) {
    for (int away = 16; away; away >>= 1) v += __shfl_xor_sync(KVF_WARP_ALL, v, away);
    return v;
}

/* shared: the head as f32, for pairs that lie in two lanes. */
KVF_DEVICE void rotate(const kvf_cuda_qkv &a, const float *angles, const float *head, int lane, float *v) {
    EACH_VALUE(k, d) {
        if (d >= 2 * a.pairs) continue;
        uint32_t pair = a.halves ? d % a.pairs : d / 2, first = a.halves ? d < a.pairs : d % 2 == 0;
        float c = angles[pair], s = angles[a.pairs + pair];
        uint32_t other = a.halves ? (first ? d + a.pairs : d - a.pairs) : d ^ 1;
        float o = head[other];
        v[k] = first ? fmaf(v[k], c, -(o * s)) : fmaf(o, s, v[k] * c);
    }
}

/* A head's codes and their scale. Where a value is no number the scale is none, and so is what is read back. */
KVF_DEVICE void put_codes(const kvf_cuda_qkv &a, uint8_t *page, uint32_t place, const float *v, int lane) {
    float top = 0;
    bool numbers = true;
    EACH_VALUE(k, d) {
        top = fmaxf(top, fabsf(v[k]));
        numbers = numbers && fabsf(v[k]) <= 3.4e38f;
    }
    for (int away = 16; away; away >>= 1) top = fmaxf(top, __shfl_xor_sync(KVF_WARP_ALL, top, away));
    numbers = __all_sync(KVF_WARP_ALL, numbers);
    float scale = numbers ? kvf_f8_scale(top) : 1.0f;
    uint8_t *to = page + (size_t)place * a.head_dim;
    EACH_VALUE(k, d) to[d] = numbers ? kvf_f8_of(v[k] / scale) : 0;
    __half *scales = (__half *)(page + (size_t)2 * a.kv_heads * PAGE_TOKENS * a.head_dim);
    if (lane == 0) scales[place] = numbers ? __float2half(scale) : __ushort_as_half(0x7FFF);
}

/* grid: heads of all three kinds by WARPS, rows. */
template <class T> static __global__ void __launch_bounds__(WARPS * 32) store_heads(kvf_cuda_qkv a) {
    KVF_SHARED(float, heads);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t all = a.heads + 2 * a.kv_heads, h = blockIdx.x * WARPS + warp, row = blockIdx.y;
    if (h >= all) return;
    bool is_q = h < a.heads, is_k = !is_q && h < a.heads + a.kv_heads;
    const typename T::value *from = (const typename T::value *)a.qkv + ((size_t)row * all + h) * a.head_dim;
    float *head = heads + warp * a.head_dim, v[VALUES_MAX], squares = 0;
    EACH_VALUE(k, d) {
        v[k] = T::wide(from[d]);
        if (a.bias) v[k] += a.bias[h * a.head_dim + d];
        squares += v[k] * v[k];
    }
    const float *norm = is_q ? a.q_norm : is_k ? a.k_norm : NULL;
    if (norm) {
        float r = rsqrtf(warp_sum(squares) / a.head_dim + a.eps);
        EACH_VALUE(k, d) v[k] *= r * norm[d];
    }
    uint32_t position = a.positions[row];
    if (is_q || is_k) {
        EACH_VALUE(k, d) head[d] = v[k];
        __syncwarp();
        rotate(a, a.cos_sin + (size_t)position * 2 * a.pairs, head, lane, v);
    }
    if (is_q) {
        __half *to = (__half *)a.q + ((size_t)row * a.heads + h) * a.head_dim;
        EACH_VALUE(k, d) to[d] = __float2half(v[k]);
        return;
    }
    uint8_t *page = a.pages + a.blocks[row] * a.page_bytes;
    /* Keys of all heads, then values of all heads: as in the page. */
    uint32_t place = (h - a.heads) * PAGE_TOKENS + position % PAGE_TOKENS;
    if (a.cell == KVF_CUDA_CELL_F8) {
        put_codes(a, page, place, v, lane);
    } else {
        __half *to = (__half *)page + (size_t)place * a.head_dim;
        EACH_VALUE(k, d) to[d] = __float2half(v[k]);
    }
}

void kvf_cuda_qkv_store(const kvf_cuda_qkv *args, void *stream) {
    kvf_cuda_qkv a = *args;
    uint32_t all = a.heads + 2 * a.kv_heads;
    if (a.rows == 0) return;
    dim3 grid((all + WARPS - 1) / WARPS, a.rows);
    size_t shared = WARPS * a.head_dim * sizeof(float);
    if (a.type == KVF_CUDA_BF16)
        KVF_LAUNCH(store_heads<bf16>, grid, dim3(WARPS * 32), shared, stream, a);
    else
        KVF_LAUNCH(store_heads<f16>, grid, dim3(WARPS * 32), shared, stream, a);
}
