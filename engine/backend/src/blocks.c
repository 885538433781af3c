/* How large pages are, and how many blocks a pool holds. */
#include "kvf/backend.h"
#include <inttypes.h>

const char *kvf_kv_type_name(kvf_kv_type type) {
    static const char *const names[] = {[KVF_KV_F16] = "f16", [KVF_KV_F32] = "f32", [KVF_KV_FP8] = "fp8"};
    return names[type];
}

uint64_t kvf_kv_page_bytes(const kvf_model_spec *spec, kvf_kv_type type) {
    uint64_t values = kvf_model_page_elements(spec, KVF_BLOCK_TOKENS);
    if (type == KVF_KV_FP8) return values + values / spec->head_dim * 2; /* a scale for each row of a head */
    return values * (type == KVF_KV_F16 ? 2 : 4);
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
