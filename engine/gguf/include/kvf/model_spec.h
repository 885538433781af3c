/* kvf/model_spec.h - what a forward pass needs to know of a model, read from a GGUF file and checked: every dimension
 * and every tensor's shape and type against the hyperparameters. Tensors stay in the file's mapping (borrowed from the
 * kvf_gguf). */
#ifndef KVF_MODEL_SPEC_H
#define KVF_MODEL_SPEC_H
#include "kvf/gguf.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef enum { KVF_ARCH_LLAMA, KVF_ARCH_QWEN2, KVF_ARCH_QWEN3 } kvf_arch;
typedef enum {
    KVF_ROPE_PAIRS, /* rotates adjacent values (2i, 2i+1): architecture llama in GGUF files */
    KVF_ROPE_HALVES /* rotates (i, i + d/2): qwen2, qwen3 */
} kvf_rope_style;

typedef struct {
    const kvf_gguf_tensor *attn_norm, *attn_q, *attn_k, *attn_v, *attn_output;
    const kvf_gguf_tensor *attn_q_bias, *attn_k_bias, *attn_v_bias; /* NULL where the model has none */
    const kvf_gguf_tensor *attn_q_norm, *attn_k_norm; /* NULL where the model has none */
    const kvf_gguf_tensor *ffn_norm, *ffn_gate, *ffn_up, *ffn_down;
} kvf_model_layer;

typedef struct {
    kvf_arch arch;
    char arch_name[16];
    char name[128]; /* general.name, cut and made printable; the file's base name where absent */
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context_max;
    uint32_t rope_dims;
    float rms_eps, rope_base;
    kvf_rope_style rope_style;
    const float *rope_factors; /* rope_dims/2 divisors of the frequencies, or NULL; values finite and > 0 */
    /* Frequency of pair i, in double precision: rope_base^(-2i/rope_dims) / factor; linear scaling included. */
    double rope_scale; /* 1, or the reciprocal of a linear scaling factor */
    bool head_tied; /* logits come from the embedding matrix */
    const kvf_gguf_tensor *embedding, *output_norm, *output; /* output == embedding when tied */
    kvf_model_layer *layer; /* [layers], owned by the spec */
} kvf_model_spec;

/* On error nothing is left to free; err names file, tensor or key, and both values where they differ. */
kvf_status kvf_model_spec_load(const kvf_gguf *g, kvf_model_spec *out, kvf_error *err);
void kvf_model_spec_free(kvf_model_spec *spec);
/* K and V of one layer of one block of `block_tokens` tokens, in elements: 2 * block_tokens * kv_heads * head_dim. */
uint64_t kvf_model_page_elements(const kvf_model_spec *spec, uint32_t block_tokens);
#ifdef __cplusplus
}
#endif
#endif
