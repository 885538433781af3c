/* rows.cu - kernels that treat each row of activations by itself. Bound by memory: 16-byte accesses, one block a row.
 */
#include "kvf/cuda_kernels.h"
#include "port.h"

enum { ROW_THREADS = 256 };

/* Eight halves as one 16-byte access. */
union eight {
    uint4 word;
    __half2 pair[4];
};

/* Sum over the block, the same in every thread: lanes by halving, then warps in ascending order. */
KVF_DEVICE float block_sum(float v, float *per_warp) {
    for (int away = 16; away; away >>= 1) v += __shfl_xor_sync(KVF_WARP_ALL, v, away);
    if (threadIdx.x % 32 == 0) per_warp[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = 0;
    for (unsigned i = 0; i < blockDim.x / 32; i++) sum += per_warp[i];
    return sum;
}

static __global__ void __launch_bounds__(ROW_THREADS)
    embed_rows(float *x, const __half *table, const uint32_t *tokens, uint32_t hidden) {
    const __half *from = table + (size_t)tokens[blockIdx.x] * hidden;
    float *to = x + (size_t)blockIdx.x * hidden;
    for (uint32_t i = threadIdx.x * 8; i < hidden; i += blockDim.x * 8) {
        eight e;
        e.word = *(const uint4 *)(from + i);
        for (int j = 0; j < 4; j++) {
            float2 f = __half22float2(e.pair[j]);
            to[i + 2 * j] = f.x;
            to[i + 2 * j + 1] = f.y;
        }
    }
}

static __global__ void __launch_bounds__(ROW_THREADS)
    norm_rows(__half *out, float *x, const __half *add, const float *w, float eps, uint32_t hidden) {
    KVF_SHARED(float, per_warp);
    size_t row = (size_t)blockIdx.x * hidden;
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        float v = x[row + i];
        if (add) {
            v += __half2float(add[row + i]);
            x[row + i] = v;
        }
        sum += v * v;
    }
    float r = rsqrtf(block_sum(sum, per_warp) / hidden + eps);
    /* Each thread reads what it wrote itself. */
    for (uint32_t i = threadIdx.x; i < hidden; i += blockDim.x) out[row + i] = __float2half(x[row + i] * r * w[i]);
}

static __global__ void __launch_bounds__(ROW_THREADS) swiglu_rows(__half *out, const __half *gate_up, uint32_t ffn) {
    const __half *gate = gate_up + (size_t)blockIdx.x * 2 * ffn, *up = gate + ffn;
    __half *to = out + (size_t)blockIdx.x * ffn;
    for (uint32_t i = threadIdx.x * 8; i < ffn; i += blockDim.x * 8) {
        eight g, u, o;
        g.word = *(const uint4 *)(gate + i);
        u.word = *(const uint4 *)(up + i);
        for (int j = 0; j < 4; j++) {
            float2 a = __half22float2(g.pair[j]), b = __half22float2(u.pair[j]);
            a.x = a.x / (1 + __expf(-a.x)) * b.x;
            a.y = a.y / (1 + __expf(-a.y)) * b.y;
            o.pair[j] = __float22half2_rn(a);
        }
        *(uint4 *)(to + i) = o.word;
    }
}

void kvf_cuda_embed(
    float *x, const kvf_half_bits *table, const uint32_t *tokens, uint32_t rows, uint32_t hidden, void *stream) {
    if (rows == 0) return;
    KVF_LAUNCH(embed_rows, dim3(rows), dim3(ROW_THREADS), 0, stream, x, (const __half *)table, tokens, hidden);
}

void kvf_cuda_rms_norm(kvf_half_bits *out, float *x, const kvf_half_bits *add, const float *w, float eps, uint32_t rows,
    uint32_t hidden, void *stream) {
    if (rows == 0) return;
    KVF_LAUNCH(norm_rows, dim3(rows), dim3(ROW_THREADS), ROW_THREADS / 32 * sizeof(float), stream, (__half *)out, x,
        (const __half *)add, w, eps, hidden);
}

void kvf_cuda_swiglu(kvf_half_bits *out, const kvf_half_bits *gate_up, uint32_t rows, uint32_t ffn, void *stream) {
    if (rows == 0) return;
    KVF_LAUNCH(swiglu_rows, dim3(rows), dim3(ROW_THREADS), 0, stream, (__half *)out, (const __half *)gate_up, ffn);
}
