/* no_files.c - scripts/gpu-check runs the device engine on made-up weights: reading model files, and the libraries that
 * takes, are left out. */
#include "kvf/model_spec.h"

kvf_status kvf_gguf_open(const char *path, kvf_gguf **out, kvf_error *err) {
    (void)path, (void)out, (void)err;
    return KVF_ERR_UNSUPPORTED;
}
void kvf_gguf_close(kvf_gguf *g) { (void)g; }
kvf_status kvf_model_spec_load(const kvf_gguf *g, kvf_model_spec *out, kvf_error *err) {
    (void)g, (void)out, (void)err;
    return KVF_ERR_UNSUPPORTED;
}
void kvf_model_spec_free(kvf_model_spec *spec) { (void)spec; }
uint64_t kvf_model_page_elements(const kvf_model_spec *spec, uint32_t block_tokens) {
    return 2ull * block_tokens * spec->kv_heads * spec->head_dim;
}
