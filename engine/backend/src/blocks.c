/* How many blocks a pool holds. */
#include "kvf/backend.h"
#include <inttypes.h>

kvf_status kvf_backend_count_blocks(
    const kvf_model_spec *spec, kvf_kv_type type, uint64_t kv_memory_bytes, uint32_t *blocks, kvf_error *err) {
    uint64_t value_bytes = type == KVF_KV_F16 ? 2 : 4;
    uint64_t block_bytes = kvf_model_page_elements(spec, KVF_BLOCK_TOKENS) * value_bytes * spec->layers;
    uint64_t count = kv_memory_bytes / block_bytes;
    if (count < 2 || count >= UINT32_MAX)
        return kvf_fail(err, KVF_ERR_INVALID,
            "kv.memory: %" PRIu64 " bytes hold %" PRIu64 " blocks of %" PRIu64 " bytes, at least 2 are needed",
            kv_memory_bytes, count, block_bytes);
    *blocks = (uint32_t)count;
    return KVF_OK;
}
