/* kvf/cuda_kernels.h - launches of the device kernels. All pointers are device memory unless said; `stream` is a
 * cudaStream_t. Nothing here waits for the device. Launch errors are the runtime's (cudaGetLastError).
 *
 * Activations between matrix products are f16 or bf16, as the weights they meet (two bytes, no type of its own in C;
 * queries of attention are f16 in any case); the residual stream is f32. Pages are as on the CPU: K
 * [kv_heads][16][head_dim], then V the same; page of block b of a layer at pages + b * page_bytes.
 *
 * Same inputs give the same bits in any batch: reductions have fixed shapes, attention is cut at fixed positions. To
 * the CPU's results these agree within the tolerances of docs/gpu.md. */
#ifndef KVF_CUDA_KERNELS_H
#define KVF_CUDA_KERNELS_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef uint16_t kvf_half_bits; /* IEEE binary16, or where a kvf_cuda_type says so bfloat16 */

/* What K and V are kept in. F8: e4m3, each head of each position with a scale of its own, a power of two as f16; after
 * V the page goes on with the scales of K [kv_heads][16] and of V. The value is exactly code * scale. */
typedef enum { KVF_CUDA_CELL_F16, KVF_CUDA_CELL_F8 } kvf_cuda_cell;
static inline size_t kvf_cuda_page_bytes(uint32_t kv_heads, uint32_t head_dim, kvf_cuda_cell cell) {
    size_t rows = (size_t)2 * kv_heads * 16;
    return cell == KVF_CUDA_CELL_F16 ? rows * head_dim * 2 : rows * (head_dim + 2);
}

typedef enum { KVF_CUDA_F16, KVF_CUDA_BF16, KVF_CUDA_F32 } kvf_cuda_type;

#define KVF_CUDA_GROUP_MAX 16 /* query heads that share a key head */
#define KVF_CUDA_HEAD_DIMS(X) X(16) X(32) X(64) X(80) X(96) X(128) X(256) /* that attention kernels exist for */
static inline int kvf_cuda_has_attention(uint32_t head_dim, uint32_t group) {
#define KVF_CUDA_IS_DIM(dim) || head_dim == dim
    return (0 KVF_CUDA_HEAD_DIMS(KVF_CUDA_IS_DIM)) && group >= 1 && group <= KVF_CUDA_GROUP_MAX;
#undef KVF_CUDA_IS_DIM
}
#define KVF_CUDA_SPLIT 256 /* positions of one partial result of decode attention */

/* `count` values of a GGUF type (kvf_dtype) to f16 or bf16: kvf_dequant_row, rounded once, the same bits. out: aligned
 * to 16; src: to nothing. -1: another type, or count is no multiple of its block. */
int kvf_cuda_dequantise(void *out, kvf_cuda_type to, uint32_t type, const void *src, size_t count, void *stream);

/* `type`, here and below: F16 or BF16, of everything that is kvf_half_bits in that launch.
 * x[row] = table[tokens[row]]; hidden: a multiple of 8. */
void kvf_cuda_embed(float *x, const kvf_half_bits *table, kvf_cuda_type type, const uint32_t *tokens, uint32_t rows,
    uint32_t hidden, void *stream);

/* If `add` is not NULL, x[row] += add[row] first. out[row] = x[row] / sqrt(mean(x[row]^2) + eps) * w. */
void kvf_cuda_rms_norm(kvf_half_bits *out, float *x, const kvf_half_bits *add, kvf_cuda_type type, const float *w,
    float eps, uint32_t rows, uint32_t hidden, void *stream);

/* out[row][i] = g / (1 + exp(-g)) * u with g = gate_up[row][i], u = gate_up[row][ffn + i]; ffn: a multiple of 8. */
void kvf_cuda_swiglu(
    kvf_half_bits *out, const kvf_half_bits *gate_up, kvf_cuda_type type, uint32_t rows, uint32_t ffn, void *stream);

/* Rows of queries, keys and values as the projection leaves them: [heads + 2 * kv_heads][head_dim]. */
typedef struct {
    const kvf_half_bits *qkv;
    kvf_cuda_type type; /* of qkv */
    const float *bias; /* as one row, or NULL */
    const float *q_norm, *k_norm; /* [head_dim], or NULL: RMS norm of each head before rotation */
    float eps;
    const float *cos_sin; /* [position][2 * pairs]: cosines, then sines */
    uint32_t pairs; /* the first 2 * pairs values of a head are rotated */
    uint32_t halves; /* 1: pair i is (i, i + pairs); 0: (2i, 2i + 1) */
    uint32_t heads, kv_heads, head_dim, rows;
    const uint32_t *positions; /* of each row */
    const uint32_t *blocks; /* physical block each row's key and value go to */
    kvf_half_bits *q; /* out: [rows][heads][head_dim], rotated, f16 */
    uint8_t *pages; /* out: of this layer */
    size_t page_bytes;
    kvf_cuda_cell cell;
} kvf_cuda_qkv;
void kvf_cuda_qkv_store(const kvf_cuda_qkv *a, void *stream);

/* Attention of one token per sequence over its pages. */
typedef struct {
    kvf_half_bits *out; /* [sequences][heads][head_dim] */
    kvf_cuda_type out_type; /* F16 or BF16 */
    const kvf_half_bits *q; /* the same shape, f16 */
    const uint8_t *pages;
    size_t page_bytes;
    kvf_cuda_cell cell;
    const uint32_t *block_tables; /* [sequences][table_stride] */
    uint32_t table_stride;
    const uint32_t *contexts; /* positions of each sequence, its own token included; at least 1 */
    uint32_t context_max; /* host's upper bound of them */
    uint32_t sequences, heads, kv_heads, head_dim; /* head_dim: KVF_CUDA_HEAD_DIMS */
    float scale;
    float *partial; /* kvf_cuda_decode_partial_floats */
} kvf_cuda_decode;
size_t kvf_cuda_decode_partial_floats(uint32_t sequences, uint32_t heads, uint32_t head_dim, uint32_t context_max);
/* 0, or -1 where no kernel exists for this head_dim or group. */
int kvf_cuda_decode_attention(const kvf_cuda_decode *a, void *stream);

/* Causal attention of runs of consecutive tokens over their sequences' pages, which already hold their own keys and
 * values. Head sizes and groups as above. */
typedef struct {
    uint32_t row, tokens; /* rows [row, row + tokens) of q and out are its tokens */
    uint32_t position; /* of the first */
    uint32_t sequence; /* row of block_tables */
} kvf_cuda_run;

typedef struct {
    kvf_half_bits *out; /* [rows][heads][head_dim] */
    kvf_cuda_type out_type; /* F16 or BF16 */
    const kvf_half_bits *q; /* f16 */
    const uint8_t *pages;
    size_t page_bytes;
    kvf_cuda_cell cell;
    const uint32_t *block_tables;
    uint32_t table_stride;
    const kvf_cuda_run *runs; /* device */
    uint32_t runs_count, tokens_max; /* host's upper bound of tokens of one run */
    uint32_t heads, kv_heads, head_dim;
    float scale;
} kvf_cuda_prefill;
int kvf_cuda_prefill_attention(const kvf_cuda_prefill *a, void *stream);
#ifdef __cplusplus
}
#endif
#endif
