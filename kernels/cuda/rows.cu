/* rows.cu - kernels that treat each row of activations by itself. Bound by memory: 16-byte accesses, one block a row.
 */
#include "sixteen.h"

enum { ROW_THREADS = 256 };

/* Sum over the block, the same in every thread: lanes by halving, then warps in ascending order. */
KVF_DEVICE float block_sum(float v, float *per_warp) {
    for (int away = 16; away; away >>= 1) v += __shfl_xor_sync(KVF_WARP_ALL, v, away);
    if (threadIdx.x % 32 == 0) per_warp[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = 0;
    for (unsigned i = 0; i < blockDim.x / 32; i++) sum += per_warp[i];
    return sum;
}

template <class T>
static __global__ void __launch_bounds__(ROW_THREADS)
    embed_rows(float *x, const typename T::value *table, const uint32_t *tokens, uint32_t hidden) {
    const typename T::value *from = table + (size_t)tokens[blockIdx.x] * hidden;
    float *to = x + (size_t)blockIdx.x * hidden;
    for (uint32_t i = threadIdx.x * 8; i < hidden; i += blockDim.x * 8) {
        eight<T> e;
        e.word = *(const uint4 *)(from + i);
        for (int j = 0; j < 4; j++) {
            float2 f = eight<T>::wide(e.pairs[j]);
            to[i + 2 * j] = f.x;
            to[i + 2 * j + 1] = f.y;
        }
    }
}

template <class T>
static __global__ void __launch_bounds__(ROW_THREADS) norm_rows(
    typename T::value *out, float *x, const typename T::value *add, const float *w, float eps, uint32_t hidden) {
    KVF_SHARED(float, per_warp);
    size_t row = (size_t)blockIdx.x * hidden;
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        float v = x[row + i];
        if (add) {
            v += T::wide(add[row + i]);
            x[row + i] = v;
        }
        sum += v * v;
    }
    float r = rsqrtf(block_sum(sum, per_warp) / hidden + eps);
    /* Each thread reads what it wrote itself. */
    for (uint32_t i = threadIdx.x; i < hidden; i += blockDim.x) out[row + i] = T::of(x[row + i] * r * w[i]);
}

template <class T>
static __global__ void __launch_bounds__(ROW_THREADS)
    swiglu_rows(typename T::value *out, const typename T::value *gate_up, uint32_t ffn) {
    const typename T::value *gate = gate_up + (size_t)blockIdx.x * 2 * ffn, *up = gate + ffn;
    typename T::value *to = out + (size_t)blockIdx.x * ffn;
    for (uint32_t i = threadIdx.x * 8; i < ffn; i += blockDim.x * 8) {
        eight<T> g, u, o;
        g.word = *(const uint4 *)(gate + i);
        u.word = *(const uint4 *)(up + i);
        for (int j = 0; j < 4; j++) {
            float2 a = eight<T>::wide(g.pairs[j]), b = eight<T>::wide(u.pairs[j]);
            a.x = a.x / (1 + __expf(-a.x)) * b.x;
            a.y = a.y / (1 + __expf(-a.y)) * b.y;
            o.pairs[j] = eight<T>::of(a);
        }
        *(uint4 *)(to + i) = o.word;
    }
}

template <class T>
static void embed(
    float *x, const kvf_half_bits *table, const uint32_t *tokens, uint32_t rows, uint32_t hidden, void *stream) {
    KVF_LAUNCH(
        embed_rows<T>, dim3(rows), dim3(ROW_THREADS), 0, stream, x, (const typename T::value *)table, tokens, hidden);
}

void kvf_cuda_embed(float *x, const kvf_half_bits *table, kvf_cuda_type type, const uint32_t *tokens, uint32_t rows,
    uint32_t hidden, void *stream) {
    if (rows == 0) return;
    if (type == KVF_CUDA_BF16)
        embed<bf16>(x, table, tokens, rows, hidden, stream);
    else
        embed<f16>(x, table, tokens, rows, hidden, stream);
}

template <class T>
static void rms_norm(kvf_half_bits *out, float *x, const kvf_half_bits *add, const float *w, float eps, uint32_t rows,
    uint32_t hidden, void *stream) {
    KVF_LAUNCH(norm_rows<T>, dim3(rows), dim3(ROW_THREADS), ROW_THREADS / 32 * sizeof(float), stream,
        (typename T::value *)out, x, (const typename T::value *)add, w, eps, hidden);
}

void kvf_cuda_rms_norm(kvf_half_bits *out, float *x, const kvf_half_bits *add, kvf_cuda_type type, const float *w,
    float eps, uint32_t rows, uint32_t hidden, void *stream) {
    if (rows == 0) return;
    if (type == KVF_CUDA_BF16)
        rms_norm<bf16>(out, x, add, w, eps, rows, hidden, stream);
    else
        rms_norm<f16>(out, x, add, w, eps, rows, hidden, stream);
}

template <class T>
static void swiglu(kvf_half_bits *out, const kvf_half_bits *gate_up, uint32_t rows, uint32_t ffn, void *stream) {
    KVF_LAUNCH(swiglu_rows<T>, dim3(rows), dim3(ROW_THREADS), 0, stream, (typename T::value *)out,
        (const typename T::value *)gate_up, ffn);
}

void kvf_cuda_swiglu(
    kvf_half_bits *out, const kvf_half_bits *gate_up, kvf_cuda_type type, uint32_t rows, uint32_t ffn, void *stream) {
    if (rows == 0) return;
    if (type == KVF_CUDA_BF16)
        swiglu<bf16>(out, gate_up, rows, ffn, stream);
    else
        swiglu<f16>(out, gate_up, rows, ffn, stream);
}
