/* How large pages are, and how many blocks a pool holds. */
#include "kvf/backend.h"
#include "kvf/kernels.h"
#include <inttypes.h>

uint64_t kvf_kv_page_bytes(const kvf_model_spec *spec, kvf_kv_type type) {
    uint64_t values = kvf_model_page_elements(spec, KVF_BLOCK_TOKENS);
    uint64_t rows = values / spec->head_dim; /* of a head and position, K or V */
    switch (type) {
    case KVF_KV_F16: return rows * kvf_cell_row_bytes(KVF_CELL_F16, spec->head_dim);
    case KVF_KV_F32: return rows * kvf_cell_row_bytes(KVF_CELL_F32, spec->head_dim);
    case KVF_KV_Q8: return rows * kvf_cell_row_bytes(KVF_CELL_Q8, spec->head_dim);
    default: return values + rows * 2; /* fp8: a scale for each row */
    }
}

kvf_status kvf_backend_count_blocks(
    const kvf_model_spec *spec, kvf_kv_type type, uint64_t kv_memory_bytes, uint32_t *blocks, kvf_error *err) {
    uint64_t block_bytes = kvf_kv_page_bytes(spec, type) * spec->layers;
    uint64_t count = kv_memory_bytes / block_bytes;
    if (count < 2 || count >= UINT32_MAX)
        return kvf_fail(err, KVF_ERR_INVALID,
            "kv.memory: %" PRIu64 " bytes hold %" PRIu64 " blocks of %" PRIu64 " bytes, at least 2 are needed",
            kv_memory_bytes, count, block_bytes);
    *blocks = (uint32_t)count;
    return KVF_OK;
}
