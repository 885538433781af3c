/* vocab.c - loads and checks tokenizer.ggml.tokens and tokenizer.ggml.token_type. */
#include "vocab.h"
#include "kvf/hash.h"
#include "kvf/utf8.h"
#include <stdlib.h>

/* The letters: bytes that print in Latin-1 stand for themselves, the other 68 take U+0100 onwards in order. */
static bool is_own_letter(uint32_t byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
}

static bool byte_of_letter(uint32_t cp, uint8_t *out) {
    if (cp < 256) {
        *out = (uint8_t)cp;
        return is_own_letter(cp);
    }
    uint32_t index = cp - 256;
    if (index < 33)
        *out = (uint8_t)index; /* 0..32 */
    else if (index < 67)
        *out = (uint8_t)(index - 33 + 127); /* 127..160 */
    else if (index == 67)
        *out = 173;
    else
        return false;
    return true;
}

bool kvf_vocab_unletter(const uint8_t *text, size_t len_bytes, uint8_t *out, size_t *out_bytes) {
    size_t count = 0;
    for (size_t at = 0; at < len_bytes;) {
        kvf_utf8_step step = kvf_utf8_step_at(text + at, len_bytes - at);
        if (step.kind != KVF_UTF8_WHOLE || !byte_of_letter(step.code_point, &out[count])) return false;
        count++;
        at += step.len_bytes;
    }
    *out_bytes = count;
    return true;
}

const char *kvf_vocab_quote(kvf_span bytes, char out[KVF_QUOTE_MAX]) {
    const uint8_t *from = bytes.data;
    size_t shown = KVF_MIN(bytes.len_bytes, (size_t)KVF_QUOTE_MAX - 4);
    for (size_t i = 0; i < shown; i++) out[i] = from[i] >= 0x20 && from[i] < 0x7F ? (char)from[i] : '?';
    memcpy(out + shown, shown < bytes.len_bytes ? "..." : "", shown < bytes.len_bytes ? 4 : 1);
    return out;
}

static uint64_t slot_hash(bool raw, const void *bytes, size_t len_bytes) {
    return kvf_hash64_of(bytes, len_bytes, raw ? 1 : 0);
}

/* The slot that holds these bytes, or the free one where they would go. */
static uint32_t slot_of(const kvf_vocab *v, bool raw, const void *bytes, size_t len_bytes) {
    uint32_t slot = (uint32_t)slot_hash(raw, bytes, len_bytes) & v->slots_mask;
    for (;; slot = (slot + 1) & v->slots_mask) {
        uint32_t id = v->slots[slot];
        if (id == KVF_VOCAB_NONE) return slot;
        kvf_span have = kvf_vocab_bytes(v, id);
        if (v->raw[id] == (raw ? 1 : 0) && have.len_bytes == len_bytes && memcmp(have.data, bytes, len_bytes) == 0)
            return slot;
    }
}

uint32_t kvf_vocab_find(const kvf_vocab *v, bool raw, const void *bytes, size_t len_bytes) {
    if (len_bytes == 0 || len_bytes > v->longest_bytes) return KVF_VOCAB_NONE;
    return v->slots[slot_of(v, raw, bytes, len_bytes)];
}

void kvf_vocab_fini(kvf_vocab *v) {
    free(v->pool);
    free(v->starts);
    free(v->types);
    free(v->raw);
    free(v->slots);
    *v = (kvf_vocab){0};
}

static kvf_status get_arrays(
    const kvf_gguf *g, kvf_gguf_array *tokens, kvf_gguf_array *types, uint64_t *pool_bytes, kvf_error *err) {
    const char *path = kvf_gguf_path(g);
    if (!kvf_gguf_get_array(g, "tokenizer.ggml.tokens", tokens))
        return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: tokenizer.ggml.tokens is missing or no list", path);
    if (tokens->count == 0 || tokens->count > KVF_VOCAB_TOKENS_MAX)
        return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: tokenizer.ggml.tokens has %llu entries, not 1 to %u", path,
            (unsigned long long)tokens->count, KVF_VOCAB_TOKENS_MAX);
    if (!kvf_gguf_get_array(g, "tokenizer.ggml.token_type", types))
        return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: tokenizer.ggml.token_type is missing or no list", path);
    if (types->count != tokens->count)
        return kvf_fail(err, KVF_ERR_FORMAT,
            "%.200s: tokenizer.ggml.token_type has %llu entries, tokenizer.ggml.tokens %llu", path,
            (unsigned long long)types->count, (unsigned long long)tokens->count);
    *pool_bytes = 0;
    for (uint64_t i = 0; i < tokens->count; i++) {
        kvf_span text;
        if (!kvf_gguf_array_string(tokens, i, &text))
            return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: tokenizer.ggml.tokens is no list of strings", path);
        *pool_bytes += text.len_bytes;
        if (*pool_bytes >= UINT32_MAX)
            return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: tokenizer.ggml.tokens holds more than 4 GiB of text", path);
    }
    return KVF_OK;
}

static kvf_status allocate(kvf_vocab *v, uint64_t pool_bytes) {
    uint32_t slots = 2;
    while (slots < 2 * v->count) slots *= 2;
    v->slots_mask = slots - 1;
    v->pool = malloc((size_t)pool_bytes + 1); /* + 1: a vocabulary of empty tokens is refused later, not here */
    v->starts = malloc(((size_t)v->count + 1) * sizeof *v->starts);
    v->types = malloc(v->count);
    v->raw = malloc(v->count);
    v->slots = malloc((size_t)slots * sizeof *v->slots);
    if (!v->pool || !v->starts || !v->types || !v->raw || !v->slots) return KVF_ERR_NO_MEMORY;
    memset(v->slots, 0xFF, (size_t)slots * sizeof *v->slots);
    return KVF_OK;
}

static kvf_status load_token(
    kvf_vocab *v, const kvf_gguf *g, uint32_t id, kvf_span text, int64_t type, kvf_error *err) {
    const char *path = kvf_gguf_path(g);
    char quoted[KVF_QUOTE_MAX];
    if (text.len_bytes == 0)
        return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: tokenizer.ggml.tokens[%u] is empty", path, id);
    if (type < KVF_TOKEN_NORMAL || type > KVF_TOKEN_BYTE)
        return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: tokenizer.ggml.token_type[%u] is %lld, not 1 to 6", path, id,
            (long long)type);
    uint8_t *to = v->pool + v->starts[id];
    size_t bytes = 0;
    bool ordinary = type == KVF_TOKEN_NORMAL || type == KVF_TOKEN_BYTE;
    bool raw = !ordinary || !kvf_vocab_unletter(text.data, text.len_bytes, to, &bytes);
    if (raw) {
        memcpy(to, text.data, text.len_bytes);
        bytes = text.len_bytes;
    }
    v->starts[id + 1] = v->starts[id] + (uint32_t)bytes;
    v->types[id] = (uint8_t)type;
    v->raw[id] = raw ? 1 : 0;
    uint32_t slot = slot_of(v, raw, to, bytes);
    if (v->slots[slot] != KVF_VOCAB_NONE)
        return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: tokenizer.ggml.tokens[%u] and [%u] are both \"%s\"", path,
            v->slots[slot], id, kvf_vocab_quote(text, quoted));
    v->slots[slot] = id;
    v->longest_bytes = KVF_MAX(v->longest_bytes, (uint32_t)bytes);
    return KVF_OK;
}

kvf_status kvf_vocab_init(kvf_vocab *v, const kvf_gguf *g, kvf_error *err) {
    kvf_gguf_array tokens, types;
    uint64_t pool_bytes = 0;
    *v = (kvf_vocab){0};
    kvf_status status = get_arrays(g, &tokens, &types, &pool_bytes, err);
    if (status != KVF_OK) return status;
    v->count = (uint32_t)tokens.count;
    if (allocate(v, pool_bytes) != KVF_OK) {
        status = kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for %u tokens", v->count);
        goto undo_vocab;
    }
    v->starts[0] = 0;
    for (uint32_t id = 0; id < v->count; id++) {
        kvf_span text;
        int64_t type;
        if (!kvf_gguf_array_i64(&types, id, &type)) {
            status = kvf_fail(
                err, KVF_ERR_FORMAT, "%.200s: tokenizer.ggml.token_type is no list of integers", kvf_gguf_path(g));
            goto undo_vocab;
        }
        bool read = kvf_gguf_array_string(&tokens, id, &text);
        KVF_ASSERT(read); /* it was read before, to measure it */
        status = load_token(v, g, id, text, type, err);
        if (status != KVF_OK) goto undo_vocab;
    }
    return KVF_OK;

undo_vocab:
    kvf_vocab_fini(v);
    return status;
}
