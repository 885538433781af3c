/* kvf/cuda_plugin.h - the device code as a library opened at run time: one symbol, one table of launches. The program
 * itself links nothing of CUDA and runs where none of it is. */
#ifndef KVF_CUDA_PLUGIN_H
#define KVF_CUDA_PLUGIN_H
#include "kvf/cuda_f8.h"
#include "kvf/cuda_gemm.h"
#include "kvf/cuda_pages.h"
#include "kvf/cuda_sample.h"

#define KVF_CUDA_PLUGIN_ABI 4u /* changes with any of these headers */
#define KVF_CUDA_PLUGIN_SYMBOL "kvf_cuda_plugin"
#define KVF_CUDA_PLUGIN_FILE "libkvferry-cuda.so"

typedef struct {
    uint32_t abi, table_bytes;
    void (*embed)(float *x, const kvf_half_bits *table, kvf_cuda_type type, const uint32_t *tokens, uint32_t rows,
        uint32_t hidden, void *stream);
    void (*rms_norm)(kvf_half_bits *out, float *x, const kvf_half_bits *add, kvf_cuda_type type, const float *w,
        float eps, uint32_t rows, uint32_t hidden, void *stream);
    void (*swiglu)(kvf_half_bits *out, const kvf_half_bits *gate_up, kvf_cuda_type type, uint32_t rows, uint32_t ffn,
        void *stream);
    void (*qkv_store)(const kvf_cuda_qkv *a, void *stream);
    size_t (*decode_partial_floats)(uint32_t sequences, uint32_t heads, uint32_t head_dim, uint32_t context_max);
    int (*decode_attention)(const kvf_cuda_decode *a, void *stream);
    int (*prefill_attention)(const kvf_cuda_prefill *a, void *stream);
    void (*pages_pack)(const kvf_cuda_pages *a, void *stream);
    void (*pages_unpack)(const kvf_cuda_pages *a, void *stream);
    void (*block_copy)(const kvf_cuda_copy *a, void *stream);
    int (*gemm_create)(kvf_cuda_gemm **out, void *workspace, size_t workspace_bytes, char *why, size_t why_room_bytes);
    void (*gemm_destroy)(kvf_cuda_gemm *g);
    int (*gemm_run)(kvf_cuda_gemm *g, const kvf_cuda_product *p, void *stream);
    int (*dequantise)(void *out, kvf_cuda_type to, uint32_t type, const void *src, size_t count, void *stream);
    size_t (*sample_scratch_bytes)(uint32_t vocab, uint32_t rows_count);
    int (*sample_rows)(const kvf_cuda_sample *a, void *stream);
    void (*f8_pack)(
        uint8_t *codes, float *scales, const kvf_half_bits *from, uint32_t rows, uint32_t width, void *stream);
    void (*f8_unpack)(
        kvf_half_bits *to, const uint8_t *codes, const float *scales, uint32_t rows, uint32_t width, void *stream);
    size_t (*f8_partial_floats)(uint32_t outputs, uint32_t inputs);
    int (*f8_multiply)(const kvf_cuda_f8_product *a, void *stream);
} kvf_cuda_plugin_table;

typedef const kvf_cuda_plugin_table *(*kvf_cuda_plugin_entry)(uint32_t abi);
/* NULL where the library was built for another ABI. */
__attribute__((visibility("default"))) const kvf_cuda_plugin_table *kvf_cuda_plugin(uint32_t abi);
#endif
