/* kvf/cuda_gemm.h - matrix products of activations and weights, queued on a stream. On a device cuBLASLt behind it,
 * opened when first wanted; in tests/cuda plain loops. One user at a time. */
#ifndef KVF_CUDA_GEMM_H
#define KVF_CUDA_GEMM_H
#include "kvf/cuda_kernels.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvf_cuda_gemm kvf_cuda_gemm;

/* y[row][output] = sum over k of x[row][k] * w[output][k], f32 sums, one rounding to y's type. Device memory aligned to
 * 16, rows of x and w without gaps. Which algorithm computes it depends on the shape: rows of other batches may round
 * differently.
 */
typedef struct {
    const kvf_half_bits *w, *x;
    void *y;
    uint32_t y_is_f32; /* 1: float, 0: as x and w */
    uint32_t rows, outputs, inputs; /* outputs, inputs: multiples of 8 */
    uint32_t is_bf16; /* x and w: 1: bf16, 0: f16 */
    uint32_t add; /* 1: to what is in y */
    uint32_t y_stride; /* from row to row of y, a multiple of 8; 0: outputs */
} kvf_cuda_product;

/* `workspace`: device memory of its own until destroyed. 0, or -1 with a sentence in `why`. */
int kvf_cuda_gemm_create(
    kvf_cuda_gemm **out, void *workspace, size_t workspace_bytes, char *why, size_t why_room_bytes);
void kvf_cuda_gemm_destroy(kvf_cuda_gemm *g);
/* 0, or the library's own error number. */
int kvf_cuda_gemm_run(kvf_cuda_gemm *g, const kvf_cuda_product *p, void *stream);
#ifdef __cplusplus
}
#endif
#endif
