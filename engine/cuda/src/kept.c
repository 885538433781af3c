/* What a model becomes on a device, and how many bytes that is: asked by the loader, and by plans before there is one.
 */
#include "kvf/cuda_backend.h"

typedef struct {
    uint64_t values, bf16_values; /* of all matrices */
    uint64_t layer_values, layer_outputs; /* of those of layers */
    uint64_t vector_values;
} counts;

static uint64_t values_of(const kvf_gguf_tensor *t) { return t ? t->dims[0] * t->dims[1] : 0; }

static void add_matrix(counts *c, const kvf_gguf_tensor *t) {
    c->values += values_of(t);
    if (t->type == KVF_DTYPE_BF16) c->bf16_values += values_of(t);
}

static void add_layer(counts *c, const kvf_model_layer *l) {
    const kvf_gguf_tensor *matrices[] = {
        l->attn_q, l->attn_k, l->attn_v, l->attn_output, l->ffn_gate, l->ffn_up, l->ffn_down};
    const kvf_gguf_tensor *vectors[] = {
        l->attn_norm, l->ffn_norm, l->attn_q_bias, l->attn_k_bias, l->attn_v_bias, l->attn_q_norm, l->attn_k_norm};
    for (size_t i = 0; i < KVF_COUNT_OF(matrices); i++) {
        add_matrix(c, matrices[i]);
        c->layer_values += values_of(matrices[i]);
        c->layer_outputs += matrices[i]->dims[1];
    }
    for (size_t i = 0; i < KVF_COUNT_OF(vectors); i++) c->vector_values += values_of(vectors[i]);
}

static counts count(const kvf_model_spec *s) {
    counts c = {0};
    add_matrix(&c, s->embedding);
    if (!s->head_tied) add_matrix(&c, s->output);
    for (uint32_t i = 0; i < s->layers; i++) add_layer(&c, &s->layer[i]);
    c.vector_values += values_of(s->output_norm) + (uint64_t)s->context_max * s->rope_dims; /* angles of rotation */
    return c;
}

kvf_weights kvf_cuda_weights_kept(const kvf_model_spec *spec, kvf_weights wanted) {
    if (wanted != KVF_WEIGHTS_AUTO) return wanted;
    counts c = count(spec);
    return c.bf16_values > c.values / 2 ? KVF_WEIGHTS_BF16 : KVF_WEIGHTS_F16;
}

uint64_t kvf_cuda_model_bytes(const kvf_model_spec *spec, kvf_weights kept) {
    counts c = count(spec);
    uint64_t bytes = 2 * c.values + 4 * c.vector_values;
    if (kept == KVF_WEIGHTS_FP8) bytes = bytes - c.layer_values + 4 * c.layer_outputs;
    return bytes;
}
