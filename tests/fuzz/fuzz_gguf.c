/* Any bytes as a model file: opened, asked for everything it holds, and read as a model. What is accepted must be
 * consistent. */
#include "kvf/model_spec.h"
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void touch(const void *data, uint64_t len_bytes) {
    const volatile uint8_t *p = data; /* volatile: the reads must happen */
    if (len_bytes > 0) (void)(p[0] ^ p[len_bytes - 1]);
}

static void use_tensors(const kvf_gguf *g) {
    for (size_t i = 0; i < kvf_gguf_tensor_count(g); i++) {
        const kvf_gguf_tensor *t = kvf_gguf_tensor_at(g, i);
        const kvf_dtype_info *info = kvf_dtype_find(t->type);
        KVF_ASSERT(info && kvf_gguf_tensor_find(g, t->name) == t && (uintptr_t)t->data % 32 == 0);
        KVF_ASSERT(
            t->bytes == t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3] / info->block_values * info->block_bytes);
        touch(t->data, t->bytes);
        float values[256];
        kvf_dequant_row(t->type, t->data, values, info->block_values);
    }
}

static void use_keys(const kvf_gguf *g) {
    static const char *const keys[] = {
        "general.name", "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "x.list", "x.y"};
    for (size_t k = 0; k < KVF_COUNT_OF(keys); k++) {
        kvf_gguf_array a;
        kvf_span text;
        int64_t i;
        float f;
        bool b;
        if (kvf_gguf_get_string(g, keys[k], &text)) touch(text.data, text.len_bytes);
        kvf_gguf_get_f32(g, keys[k], &f);
        kvf_gguf_get_bool(g, keys[k], &b);
        if (!kvf_gguf_get_array(g, keys[k], &a)) continue;
        for (uint64_t n = 0; n <= a.count; n++) {
            if (kvf_gguf_array_string(&a, n, &text)) touch(text.data, text.len_bytes);
            kvf_gguf_array_i64(&a, n, &i);
            kvf_gguf_array_f32(&a, n, &f);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kvf_gguf *g;
    kvf_error err = {0};
    if (kvf_gguf_open_memory(data, size, "fuzz", &g, &err) != KVF_OK) {
        KVF_ASSERT(err.status != KVF_OK && err.message[0] != 0);
        return 0;
    }
    use_tensors(g);
    use_keys(g);
    kvf_model_spec spec;
    if (kvf_model_spec_load(g, &spec, &err) == KVF_OK) {
        KVF_ASSERT(spec.layers > 0 && spec.heads % spec.kv_heads == 0 && spec.rope_dims <= spec.head_dim);
        KVF_ASSERT(kvf_model_page_elements(&spec, 16) > 0);
        for (uint32_t l = 0; l < spec.layers; l++)
            KVF_ASSERT(spec.layer[l].attn_q->dims[1] == (uint64_t)spec.heads * spec.head_dim);
        kvf_model_spec_free(&spec);
    }
    uint64_t hash[2];
    kvf_gguf_weights_hash(g, hash);
    kvf_gguf_close(g);
    return 0;
}
