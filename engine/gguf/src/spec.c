/* From metadata and tensors to a checked description of a model. Each hyperparameter has one place where it is read,
 * bounded and, if wrong, named; each tensor is then asked for by name with the shape the hyperparameters give it; and a
 * tensor nobody asked for is a reason to refuse, because a parameter left out computes a different model. */
#include "kvf/model_spec.h"
#include "gguf_int.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* How much of what an architecture has. */
typedef enum { NEVER, MAYBE, ALWAYS } presence;

typedef struct {
    const char *name;
    kvf_arch arch;
    kvf_rope_style rope_style;
    presence qkv_bias, qk_norm;
} arch_row;

static const arch_row arch_rows[] = {
    {"llama", KVF_ARCH_LLAMA, KVF_ROPE_PAIRS, MAYBE, NEVER},
    {"qwen2", KVF_ARCH_QWEN2, KVF_ROPE_HALVES, ALWAYS, NEVER},
    {"qwen3", KVF_ARCH_QWEN3, KVF_ROPE_HALVES, MAYBE, ALWAYS},
};

/* Far above any model there is; products of two of them stay far below 2^64. */
enum {
    LAYERS_MAX = 1024,
    HIDDEN_MAX = 1 << 18,
    HEADS_MAX = 4096,
    HEAD_DIM_MAX = 1024,
    FFN_MAX = 1 << 21,
    VOCAB_MAX = 1 << 22,
    CONTEXT_MAX = 1 << 28
};

typedef struct {
    const kvf_gguf *g;
    const arch_row *arch;
    kvf_model_spec *spec;
    kvf_error *err;
    uint8_t *used; /* [tensors], 1: belongs to the model */
    char key[64];
} loader;

static const char *file(const loader *l) { return kvf_gguf_path(l->g); }

/* "llama.block_count" in l->key. */
static const char *arch_key(loader *l, const char *suffix) {
    snprintf(l->key, sizeof l->key, "%s.%s", l->arch->name, suffix);
    return l->key;
}

static kvf_status wrong_kind(loader *l, const char *expected) {
    const gguf_pair *pair = gguf_find(l->g, l->key);
    if (!pair) return kvf_fail(l->err, KVF_ERR_FORMAT, "%.200s: key '%s' is missing", file(l), l->key);
    return kvf_fail(l->err, KVF_ERR_FORMAT, "%.200s: key '%s' is not %s (value type %" PRIu32 ")", file(l), l->key,
        expected, pair->type);
}

/* An integer in [1, max]; an absent key takes `fallback` unless that is 0. */
static kvf_status read_count(loader *l, const char *suffix, uint64_t max, uint64_t fallback, uint32_t *out) {
    uint64_t value = fallback;
    arch_key(l, suffix);
    if (!kvf_gguf_get_u64(l->g, l->key, &value) && (!fallback || kvf_gguf_has(l->g, l->key)))
        return wrong_kind(l, "a whole number that is not negative");
    if (value < 1 || value > max)
        return kvf_fail(l->err, KVF_ERR_FORMAT, "%.200s: key '%s' is %" PRIu64 " (allowed: 1 to %" PRIu64 ")", file(l),
            l->key, value, max);
    *out = (uint32_t)value;
    return KVF_OK;
}

/* A number in [min, max], which no NaN is; an absent key leaves *out as it is if `optional`. */
static kvf_status read_real(loader *l, const char *suffix, bool optional, float min, float max, float *out) {
    float value = *out;
    arch_key(l, suffix);
    if (!kvf_gguf_get_f32(l->g, l->key, &value) && (!optional || kvf_gguf_has(l->g, l->key)))
        return wrong_kind(l, "a number");
    if (!(value >= min && value <= max))
        return kvf_fail(l->err, KVF_ERR_FORMAT, "%.200s: key '%s' is %g (allowed: %g to %g)", file(l), l->key,
            (double)value, (double)min, (double)max);
    *out = value;
    return KVF_OK;
}

static kvf_status read_arch(loader *l) {
    kvf_span name;
    snprintf(l->key, sizeof l->key, "general.architecture");
    if (!kvf_gguf_get_string(l->g, l->key, &name)) return wrong_kind(l, "a string");
    for (size_t i = 0; i < KVF_COUNT_OF(arch_rows); i++) {
        const arch_row *row = &arch_rows[i];
        if (gguf_span_compare(name, (kvf_span){row->name, strlen(row->name)}) != 0) continue;
        l->arch = row;
        l->spec->arch = row->arch;
        l->spec->rope_style = row->rope_style;
        snprintf(l->spec->arch_name, sizeof l->spec->arch_name, "%s", row->name);
        return KVF_OK;
    }
    char text[GGUF_PRINTABLE_BYTES];
    return kvf_fail(l->err, KVF_ERR_UNSUPPORTED,
        "%.200s: key 'general.architecture' is '%s', which is not supported (llama, qwen2, qwen3 are)", file(l),
        gguf_printable(name, text, sizeof text));
}

static void read_name(loader *l) {
    kvf_span name;
    if (!kvf_gguf_get_string(l->g, "general.name", &name) || name.len_bytes == 0) {
        const char *slash = strrchr(file(l), '/'), *base = slash ? slash + 1 : file(l);
        name = (kvf_span){base, strlen(base)};
    }
    gguf_printable(name, l->spec->name, sizeof l->spec->name);
}

static kvf_status read_head_sizes(loader *l) {
    kvf_model_spec *s = l->spec;
    kvf_status status = read_count(l, "attention.head_count", HEADS_MAX, 0, &s->heads);
    if (!status) status = read_count(l, "attention.head_count_kv", HEADS_MAX, s->heads, &s->kv_heads);
    if (status) return status;
    if (s->heads % s->kv_heads)
        return kvf_fail(l->err, KVF_ERR_FORMAT,
            "%.200s: attention.head_count %" PRIu32 " is not a multiple of attention.head_count_kv %" PRIu32, file(l),
            s->heads, s->kv_heads);
    if (!kvf_gguf_has(l->g, arch_key(l, "attention.key_length")) && s->hidden % s->heads)
        return kvf_fail(l->err, KVF_ERR_FORMAT,
            "%.200s: key '%s' is missing and embedding_length %" PRIu32
            " is not a multiple of attention.head_count %" PRIu32,
            file(l), l->key, s->hidden, s->heads);
    uint32_t value_length = 0;
    status = read_count(l, "attention.key_length", HEAD_DIM_MAX, s->hidden / s->heads, &s->head_dim);
    if (!status) status = read_count(l, "attention.value_length", HEAD_DIM_MAX, s->head_dim, &value_length);
    if (status) return status;
    if (value_length != s->head_dim)
        return kvf_fail(l->err, KVF_ERR_UNSUPPORTED,
            "%.200s: attention.key_length %" PRIu32 " and attention.value_length %" PRIu32
            " differ, which is not supported",
            file(l), s->head_dim, value_length);
    return KVF_OK;
}

static kvf_status read_rope_scaling(loader *l) {
    kvf_span type = {"linear", 6}; /* a factor alone means linear */
    arch_key(l, "rope.scaling.type");
    if (kvf_gguf_has(l->g, l->key) && !kvf_gguf_get_string(l->g, l->key, &type)) return wrong_kind(l, "a string");
    bool none = gguf_span_compare(type, (kvf_span){"none", 4}) == 0;
    if (!none && gguf_span_compare(type, (kvf_span){"linear", 6}) != 0) {
        char text[GGUF_PRINTABLE_BYTES];
        return kvf_fail(l->err, KVF_ERR_UNSUPPORTED,
            "%.200s: key '%s' is '%s', which is not supported (none, linear are)", file(l), l->key,
            gguf_printable(type, text, sizeof text));
    }
    float factor = 1, old_factor = 1, attention = 1;
    kvf_status status = read_real(l, "rope.scaling.factor", true, 0, 1e6f, &factor);
    if (!status) status = read_real(l, "rope.scale_linear", true, 0, 1e6f, &old_factor);
    if (!status) status = read_real(l, "rope.scaling.attn_factor", true, 1, 1, &attention);
    if (status) return status;
    if (factor == 1 || factor == 0) factor = old_factor; /* 0 stands for "not set" in files of old converters */
    l->spec->rope_scale = none || factor == 0 ? 1.0 : 1.0 / (double)factor;
    return KVF_OK;
}

static kvf_status read_rope(loader *l) {
    kvf_model_spec *s = l->spec;
    s->rope_base = 10000;
    kvf_status status = read_real(l, "rope.freq_base", true, 1, 1e15f, &s->rope_base);
    if (!status) status = read_count(l, "rope.dimension_count", HEAD_DIM_MAX, s->head_dim, &s->rope_dims);
    if (status) return status;
    if (s->rope_dims > s->head_dim || s->rope_dims % 2)
        return kvf_fail(l->err, KVF_ERR_FORMAT,
            "%.200s: rope.dimension_count is %" PRIu32 " (allowed: even, at most the head size %" PRIu32 ")", file(l),
            s->rope_dims, s->head_dim);
    return read_rope_scaling(l);
}

static kvf_status read_hyperparameters(loader *l) {
    kvf_model_spec *s = l->spec;
    kvf_status status = read_count(l, "block_count", LAYERS_MAX, 0, &s->layers);
    if (!status) status = read_count(l, "embedding_length", HIDDEN_MAX, 0, &s->hidden);
    if (!status) status = read_count(l, "feed_forward_length", FFN_MAX, 0, &s->ffn);
    if (!status) status = read_count(l, "context_length", CONTEXT_MAX, 0, &s->context_max);
    if (!status) status = read_head_sizes(l);
    if (!status) status = read_rope(l);
    if (!status) status = read_real(l, "attention.layer_norm_rms_epsilon", false, 0, 0.1f, &s->rms_eps);
    if (status) return status;
    uint64_t number;
    if (kvf_gguf_get_u64(l->g, arch_key(l, "expert_count"), &number) && number > 0)
        return kvf_fail(l->err, KVF_ERR_UNSUPPORTED,
            "%.200s: key '%s' is %" PRIu64 ": mixtures of experts are not supported", file(l), l->key, number);
    /* Inside its window a sliding-window model is a plain one: serve it that far rather than compute something else. */
    if (kvf_gguf_get_u64(l->g, arch_key(l, "attention.sliding_window"), &number) && number > 0)
        s->context_max = (uint32_t)KVF_MIN(number, (uint64_t)s->context_max);
    return KVF_OK;
}

static void shape_text(const uint64_t dims[4], uint32_t count, char out[96]) {
    int used = snprintf(out, 96, "[%" PRIu64, dims[0]);
    for (uint32_t d = 1; d < count; d++) used += snprintf(out + used, 96 - (size_t)used, ", %" PRIu64, dims[d]);
    snprintf(out + used, 96 - (size_t)used, "]");
}

/* A tensor of shape [columns] (rows 0) or [columns, rows]; vectors must be plain f32. *out stays NULL where an optional
 * one is absent. */
static kvf_status take(
    loader *l, const char *name, uint64_t columns, uint64_t rows, presence want, const kvf_gguf_tensor **out) {
    if (want == NEVER) return KVF_OK;
    const kvf_gguf_tensor *t = kvf_gguf_tensor_find(l->g, name);
    if (!t) {
        if (want == MAYBE) return KVF_OK;
        return kvf_fail(l->err, KVF_ERR_FORMAT, "%.200s: tensor '%s' is missing", file(l), name);
    }
    uint64_t shape[4] = {columns, rows ? rows : 1, 1, 1};
    if (memcmp(shape, t->dims, sizeof shape) != 0) {
        char found[96], expected[96];
        shape_text(t->dims, t->dims_count, found);
        shape_text(shape, rows ? 2 : 1, expected);
        return kvf_fail(l->err, KVF_ERR_FORMAT, "%.200s: tensor '%s' has shape %s, the hyperparameters ask for %s",
            file(l), name, found, expected);
    }
    if (rows == 0 && t->type != KVF_DTYPE_F32) {
        char buffer[16];
        return kvf_fail(l->err, KVF_ERR_UNSUPPORTED, "%.200s: tensor '%s' has type %s (only F32 is supported here)",
            file(l), name, kvf_dtype_name(t->type, buffer));
    }
    l->used[t - kvf_gguf_tensor_at(l->g, 0)] = 1;
    *out = t;
    return KVF_OK;
}

static kvf_status take_layer(loader *l, uint32_t index) {
    const kvf_model_spec *s = l->spec;
    kvf_model_layer *layer = &s->layer[index];
    uint64_t hidden = s->hidden, ffn = s->ffn, q = (uint64_t)s->heads * s->head_dim,
             kv = (uint64_t)s->kv_heads * s->head_dim;
    const struct {
        const char *name;
        uint64_t columns, rows;
        presence want;
        const kvf_gguf_tensor **out;
    } wanted[] = {
        {"attn_norm.weight", hidden, 0, ALWAYS, &layer->attn_norm},
        {"attn_q.weight", hidden, q, ALWAYS, &layer->attn_q},
        {"attn_k.weight", hidden, kv, ALWAYS, &layer->attn_k},
        {"attn_v.weight", hidden, kv, ALWAYS, &layer->attn_v},
        {"attn_output.weight", q, hidden, ALWAYS, &layer->attn_output},
        {"attn_q.bias", q, 0, l->arch->qkv_bias, &layer->attn_q_bias},
        {"attn_k.bias", kv, 0, l->arch->qkv_bias, &layer->attn_k_bias},
        {"attn_v.bias", kv, 0, l->arch->qkv_bias, &layer->attn_v_bias},
        {"attn_q_norm.weight", s->head_dim, 0, l->arch->qk_norm, &layer->attn_q_norm},
        {"attn_k_norm.weight", s->head_dim, 0, l->arch->qk_norm, &layer->attn_k_norm},
        {"ffn_norm.weight", hidden, 0, ALWAYS, &layer->ffn_norm},
        {"ffn_gate.weight", hidden, ffn, ALWAYS, &layer->ffn_gate},
        {"ffn_up.weight", hidden, ffn, ALWAYS, &layer->ffn_up},
        {"ffn_down.weight", ffn, hidden, ALWAYS, &layer->ffn_down},
    };
    for (size_t i = 0; i < KVF_COUNT_OF(wanted); i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%s", index, wanted[i].name);
        kvf_status status = take(l, name, wanted[i].columns, wanted[i].rows, wanted[i].want, wanted[i].out);
        if (status) return status;
    }
    return KVF_OK;
}

/* The vocabulary is as many as the embedding has rows (padding included); the token list may be shorter, never longer.
 */
static kvf_status read_vocab(loader *l) {
    const kvf_gguf_tensor *t = kvf_gguf_tensor_find(l->g, "token_embd.weight");
    if (!t) return kvf_fail(l->err, KVF_ERR_FORMAT, "%.200s: tensor 'token_embd.weight' is missing", file(l));
    if (t->dims[1] > VOCAB_MAX)
        return kvf_fail(l->err, KVF_ERR_FORMAT, "%.200s: tensor 'token_embd.weight' has %" PRIu64 " rows (limit %d)",
            file(l), t->dims[1], VOCAB_MAX);
    l->spec->vocab = (uint32_t)t->dims[1];
    uint64_t listed = 0;
    kvf_gguf_array tokens;
    if (kvf_gguf_get_array(l->g, "tokenizer.ggml.tokens", &tokens)) listed = tokens.count;
    if (listed > l->spec->vocab)
        return kvf_fail(l->err, KVF_ERR_FORMAT,
            "%.200s: key 'tokenizer.ggml.tokens' lists %" PRIu64 " tokens, tensor 'token_embd.weight' has %" PRIu32
            " rows",
            file(l), listed, l->spec->vocab);
    if (kvf_gguf_get_u64(l->g, arch_key(l, "vocab_size"), &listed) && listed > l->spec->vocab)
        return kvf_fail(l->err, KVF_ERR_FORMAT,
            "%.200s: key '%s' is %" PRIu64 ", tensor 'token_embd.weight' has %" PRIu32 " rows", file(l), l->key, listed,
            l->spec->vocab);
    return KVF_OK;
}

static kvf_status take_rope_factors(loader *l) {
    kvf_model_spec *s = l->spec;
    const kvf_gguf_tensor *t = NULL;
    kvf_status status = take(l, "rope_freqs.weight", s->rope_dims / 2, 0, MAYBE, &t);
    if (status || !t) return status;
    const float *factors = t->data;
    for (uint32_t i = 0; i < s->rope_dims / 2; i++)
        if (!(factors[i] > 0 && factors[i] <= 0x1.fffffep127f))
            return kvf_fail(l->err, KVF_ERR_FORMAT, "%.200s: tensor 'rope_freqs.weight' value %" PRIu32 " is %g",
                file(l), i, (double)factors[i]);
    s->rope_factors = factors;
    return KVF_OK;
}

static kvf_status take_tensors(loader *l) {
    kvf_model_spec *s = l->spec;
    kvf_status status = read_vocab(l);
    if (!status) status = take(l, "token_embd.weight", s->hidden, s->vocab, ALWAYS, &s->embedding);
    if (!status) status = take(l, "output_norm.weight", s->hidden, 0, ALWAYS, &s->output_norm);
    if (!status) status = take(l, "output.weight", s->hidden, s->vocab, MAYBE, &s->output);
    if (!status) status = take_rope_factors(l);
    for (uint32_t i = 0; i < s->layers && !status; i++) status = take_layer(l, i);
    if (status) return status;
    s->head_tied = s->output == NULL;
    if (s->head_tied) s->output = s->embedding;
    for (size_t i = 0; i < kvf_gguf_tensor_count(l->g); i++)
        if (!l->used[i])
            return kvf_fail(l->err, KVF_ERR_UNSUPPORTED,
                "%.200s: tensor '%.200s' is not part of architecture %s with %" PRIu32
                " layers as this program knows it",
                file(l), kvf_gguf_tensor_at(l->g, i)->name, l->arch->name, s->layers);
    return KVF_OK;
}

kvf_status kvf_model_spec_load(const kvf_gguf *g, kvf_model_spec *out, kvf_error *err) {
    kvf_model_spec spec = {0};
    loader l = {.g = g, .spec = &spec, .err = err};
    kvf_status status = read_arch(&l);
    if (!status) status = read_hyperparameters(&l);
    if (status) return status;
    read_name(&l);
    spec.layer = calloc(spec.layers, sizeof *spec.layer);
    l.used = calloc(KVF_MAX(kvf_gguf_tensor_count(g), (size_t)1), 1);
    if (!spec.layer || !l.used) status = kvf_fail(err, KVF_ERR_NO_MEMORY, "%.200s: out of memory", file(&l));
    if (!status) status = take_tensors(&l);
    free(l.used);
    if (status)
        kvf_model_spec_free(&spec);
    else
        *out = spec;
    return status;
}

void kvf_model_spec_free(kvf_model_spec *spec) {
    free(spec->layer);
    *spec = (kvf_model_spec){0};
}

uint64_t kvf_model_page_elements(const kvf_model_spec *spec, uint32_t block_tokens) {
    return 2ull * block_tokens * spec->kv_heads * spec->head_dim;
}
