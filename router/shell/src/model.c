#include "model.h"
#include "kvf/log.h"
#include "kvf/model_spec.h"
#include "kvf/proto.h"
#include "kvf/request_text.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK_TOKENS = 16 };

/* The word `tools` on its own, so that "tools_count" or "mytools" does not count. */
static bool mentions_tools(kvf_span source) {
    const char *text = source.data, word[] = "tools";
    size_t length = sizeof word - 1;
    for (size_t i = 0; i + length <= source.len_bytes; i++) {
        if (memcmp(text + i, word, length) != 0) continue;
        bool starts = i == 0 || (!isalnum((unsigned char)text[i - 1]) && text[i - 1] != '_');
        size_t after = i + length;
        bool ends = after == source.len_bytes || (!isalnum((unsigned char)text[after]) && text[after] != '_');
        if (starts && ends) return true;
    }
    return false;
}

static void load_template(front_model *m) {
    kvf_span source;
    kvf_error err;
    if (!kvf_gguf_get_string(m->gguf, "tokenizer.chat_template", &source)) {
        snprintf(m->template_why, sizeof m->template_why, "the model file has no chat template");
        return;
    }
    m->template_hash = kvf_hash128_of(source.data, source.len_bytes, 0);
    m->template_has_tools = mentions_tools(source);
    if (kvf_template_compile(source.data, source.len_bytes, &m->chat_template, &err) == KVF_OK) return;
    m->chat_template = NULL;
    snprintf(
        m->template_why, sizeof m->template_why, "the model's chat template is not understood: %.220s", err.message);
    kvf_log(KVF_LOG_WARN, "router", "%s; text and token ids are served", m->template_why);
}

static bool set_token_text(json_t *vars, const char *name, const kvf_tokenizer *t, uint32_t id) {
    kvf_span text = {"", 0};
    if (id != KVF_TOKEN_NONE && !kvf_tokenizer_piece(t, id, &text)) text = (kvf_span){"", 0};
    json_t *value = json_stringn(text.data, text.len_bytes);
    return json_object_set_new(vars, name, value ? value : json_string("")) == 0;
}

static kvf_status load_vars(front_model *m, kvf_error *err) {
    const kvf_tokenizer_info *info = kvf_tokenizer_get_info(m->tokenizer);
    m->trusted_vars = json_object();
    if (!m->trusted_vars || !set_token_text(m->trusted_vars, "bos_token", m->tokenizer, info->bos) ||
        !set_token_text(m->trusted_vars, "eos_token", m->tokenizer, info->eos))
        return kvf_fail(err, KVF_ERR_NO_MEMORY, "out of memory");
    return KVF_OK;
}

/* The type that holds most of the weights. */
static const char *main_dtype(const kvf_gguf *g) {
    uint64_t bytes[64] = {0};
    uint32_t best = 0;
    for (size_t i = 0; i < kvf_gguf_tensor_count(g); i++) {
        const kvf_gguf_tensor *t = kvf_gguf_tensor_at(g, i);
        if ((uint32_t)t->type >= KVF_COUNT_OF(bytes)) continue;
        bytes[t->type] += t->bytes;
        if (bytes[t->type] > bytes[best]) best = (uint32_t)t->type;
    }
    const kvf_dtype_info *info = kvf_dtype_find(best);
    return info ? info->name : "mixed";
}

kvf_status front_model_take(kvf_gguf *gguf, const char *id, front_model *out, kvf_error *err) {
    front_model m = {.gguf = gguf, .block_tokens = BLOCK_TOKENS};
    kvf_model_spec spec;
    kvf_status status = kvf_model_spec_load(gguf, &spec, err);
    if (status != KVF_OK) return status;
    snprintf(m.id, sizeof m.id, "%s", id && id[0] ? id : spec.name);
    snprintf(m.arch, sizeof m.arch, "%s", spec.arch_name);
    snprintf(m.dtype, sizeof m.dtype, "%s", main_dtype(gguf));
    m.context_max = spec.context_max;
    m.vocab = spec.vocab;
    m.kv_bytes_per_token = kvf_model_page_elements(&spec, 1) * spec.layers * 2;
    kvf_model_spec_free(&spec);
    status = kvf_tokenizer_create(gguf, &m.tokenizer, err);
    if (status == KVF_OK) {
        m.vocab = KVF_MIN(m.vocab, kvf_tokenizer_get_info(m.tokenizer)->vocab_size);
        load_template(&m);
        status = load_vars(&m, err);
    }
    if (status != KVF_OK) {
        m.gguf = NULL;
        front_model_free(&m);
        return status;
    }
    kvf_gguf_weights_hash(gguf, m.weights_hash);
    *out = m;
    return KVF_OK;
}

kvf_status front_model_load(const char *path, const char *id, front_model *out, kvf_error *err) {
    kvf_gguf *gguf;
    kvf_status status = kvf_gguf_open(path, &gguf, err);
    if (status != KVF_OK) return status;
    status = front_model_take(gguf, id, out, err);
    if (status != KVF_OK) kvf_gguf_close(gguf);
    return status;
}

void front_model_free(front_model *m) {
    if (m->trusted_vars) json_decref(m->trusted_vars);
    if (m->chat_template) kvf_template_destroy(m->chat_template);
    if (m->tokenizer) kvf_tokenizer_destroy(m->tokenizer);
    if (m->gguf) kvf_gguf_close(m->gguf);
    *m = (front_model){0};
}

bool front_model_is(const front_model *m, ProtobufCBinaryData name) {
    return name.len == 0 || kvf_proto_text_equal(name, m->id);
}

static ProtobufCBinaryData hash_text(uint64_t low, uint64_t high, char out[40]) {
    kvf_hash_format((kvf_hash128){low, high}, out);
    return kvf_proto_text(out);
}

void front_model_info(const front_model *m, Kvferry__V1__ModelInfo *out, char hashes[3][40]) {
    const kvf_tokenizer_info *info = kvf_tokenizer_get_info(m->tokenizer);
    kvferry__v1__model_info__init(out);
    out->id = kvf_proto_text(m->id);
    out->architecture = kvf_proto_text(m->arch);
    out->dtype = kvf_proto_text(m->dtype);
    out->vocab_size = m->vocab;
    out->max_context = m->context_max;
    out->block_tokens = m->block_tokens;
    out->kv_bytes_per_token = m->kv_bytes_per_token;
    out->n_eos_token_ids = info->end_ids_count;
    out->eos_token_ids = (uint32_t *)(uintptr_t)info->end_ids;
    out->weights_hash = hash_text(m->weights_hash[0], m->weights_hash[1], hashes[0]);
    out->tokenizer_hash = hash_text(info->hash[0], info->hash[1], hashes[1]);
    if (m->template_hash.lo || m->template_hash.hi)
        out->chat_template_hash = hash_text(m->template_hash.lo, m->template_hash.hi, hashes[2]);
}
