/* The plugin's one door. */
#include "kvf/cuda_plugin.h"

static const kvf_cuda_plugin_table table = {.abi = KVF_CUDA_PLUGIN_ABI,
    .table_bytes = sizeof table,
    .embed = kvf_cuda_embed,
    .rms_norm = kvf_cuda_rms_norm,
    .swiglu = kvf_cuda_swiglu,
    .qkv_store = kvf_cuda_qkv_store,
    .decode_partial_floats = kvf_cuda_decode_partial_floats,
    .decode_attention = kvf_cuda_decode_attention,
    .prefill_attention = kvf_cuda_prefill_attention,
    .pages_pack = kvf_cuda_pages_pack,
    .pages_unpack = kvf_cuda_pages_unpack,
    .block_copy = kvf_cuda_block_copy,
    .gemm_create = kvf_cuda_gemm_create,
    .gemm_destroy = kvf_cuda_gemm_destroy,
    .gemm_run = kvf_cuda_gemm_run,
    .dequantise = kvf_cuda_dequantise,
    .sample_scratch_bytes = kvf_cuda_sample_scratch_bytes,
    .sample_rows = kvf_cuda_sample_rows,
    .f8_pack = kvf_cuda_f8_pack,
    .f8_unpack = kvf_cuda_f8_unpack,
    .f8_partial_floats = kvf_cuda_f8_partial_floats,
    .f8_multiply = kvf_cuda_f8_multiply};

const kvf_cuda_plugin_table *kvf_cuda_plugin(uint32_t abi) { return abi == KVF_CUDA_PLUGIN_ABI ? &table : NULL; }
