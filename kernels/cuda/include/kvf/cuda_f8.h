/* kvf/cuda_f8.h - weights kept as e4m3 codes, a row of them (one output) with a scale that is a power of two: the value
 * is exactly code * scale, in f16 too. Activations stay f16, so that only the weights are rounded. Launches: nothing
 * here waits for the device. Pointers are device memory; `stream` is a cudaStream_t. Codes aligned to 16. */
#ifndef KVF_CUDA_F8_WEIGHTS_H
#define KVF_CUDA_F8_WEIGHTS_H
#include "kvf/cuda_kernels.h"
#ifdef __cplusplus
extern "C" {
#endif

#define KVF_CUDA_F8_ALIGN 16 /* widths are multiples of it */
/* Up to so many rows of activations the product over codes is the faster one: it reads them once for each 64 rows. More
 * rows are bound by arithmetic, and for them codes are unpacked first. */
#define KVF_CUDA_F8_FEW 128

/* codes[row][i], scales[row] of from[row][i]. A row with a value that is no number has no number as its scale. */
void kvf_cuda_f8_pack(
    uint8_t *codes, float *scales, const kvf_half_bits *from, uint32_t rows, uint32_t width, void *stream);
void kvf_cuda_f8_unpack(
    kvf_half_bits *to, const uint8_t *codes, const float *scales, uint32_t rows, uint32_t width, void *stream);

/* y[row][output] = sum over k of x[row][k] * w[output][k]: products of tensor cores, f32 sums, rounded once. A row has
 * the same bits whatever the other rows are, and however many. */
typedef struct {
    const uint8_t *w; /* [outputs][inputs] */
    const float *scales; /* [outputs] */
    const kvf_half_bits *x; /* [rows][inputs] */
    kvf_half_bits *y; /* [rows][outputs] */
    uint32_t rows, outputs, inputs;
    float *partial; /* kvf_cuda_f8_partial_floats */
} kvf_cuda_f8_product;
size_t kvf_cuda_f8_partial_floats(uint32_t outputs, uint32_t inputs);
/* 0, or -1: inputs are no multiple of KVF_CUDA_F8_ALIGN. */
int kvf_cuda_f8_multiply(const kvf_cuda_f8_product *a, void *stream);
#ifdef __cplusplus
}
#endif
#endif
