/* create.c - makes a tokenizer from a model file's tokenizer.ggml.* keys, refusing by name what it does not know. */
#include "tokenizer_int.h"
#include "kvf/hash.h"
#include <stdlib.h>

/* Texts that end a turn or a text in the model families we know; control tokens only. */
static const char *const end_texts[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>",
    "</s>", "<|end|>", "<|end_of_turn|>", "<end_of_turn>", "<|eot|>", "<|eos|>"};
_Static_assert(KVF_COUNT_OF(end_texts) + 2 <= KVF_TOKENIZER_END_IDS_MAX, "every end id has room");

static kvf_status get_kind(kvf_tokenizer *t, const kvf_gguf *g, kvf_error *err) {
    const char *path = kvf_gguf_path(g);
    char quoted[KVF_QUOTE_MAX];
    kvf_span model, pre;
    if (!kvf_gguf_get_string(g, "tokenizer.ggml.model", &model))
        return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: tokenizer.ggml.model is missing or no string", path);
    if (model.len_bytes != 4 || memcmp(model.data, "gpt2", 4) != 0)
        return kvf_fail(err, KVF_ERR_UNSUPPORTED, "%.200s: tokenizer.ggml.model \"%s\" is not supported, only gpt2 is",
            path, kvf_vocab_quote(model, quoted));
    /* A wrong guess would split texts otherwise than in training and only make the model worse, so there is no
     * fallback. */
    if (!kvf_gguf_get_string(g, "tokenizer.ggml.pre", &pre))
        return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: tokenizer.ggml.pre is missing or no string", path);
    if (!kvf_pretok_find(pre.data, pre.len_bytes, &t->family))
        return kvf_fail(err, KVF_ERR_UNSUPPORTED,
            "%.200s: tokenizer.ggml.pre \"%s\" is not supported; smollm, llama-bpe, qwen2 and gpt-2 are", path,
            kvf_vocab_quote(pre, quoted));
    t->info.pre_name = kvf_pretok_name(t->family);
    t->whole_pieces = t->family == KVF_PRETOK_LLAMA3;
    return KVF_OK;
}

static kvf_status get_id(const kvf_tokenizer *t, const kvf_gguf *g, const char *key, uint32_t *out, kvf_error *err) {
    *out = KVF_TOKEN_NONE;
    if (!kvf_gguf_has(g, key)) return KVF_OK;
    uint32_t id;
    if (!kvf_gguf_get_u32(g, key, &id))
        return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: %s is no token id", kvf_gguf_path(g), key);
    if (id >= t->vocab.count)
        return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: %s is %u, but there are %u tokens", kvf_gguf_path(g), key, id,
            t->vocab.count);
    *out = id;
    return KVF_OK;
}

static void add_end_id(kvf_tokenizer_info *info, uint32_t id) {
    uint32_t at = 0;
    if (id == KVF_TOKEN_NONE) return;
    while (at < info->end_ids_count && info->end_ids[at] < id) at++;
    if (at < info->end_ids_count && info->end_ids[at] == id) return;
    KVF_ASSERT(info->end_ids_count < KVF_TOKENIZER_END_IDS_MAX);
    memmove(&info->end_ids[at + 1], &info->end_ids[at], (info->end_ids_count - at) * sizeof info->end_ids[0]);
    info->end_ids[at] = id;
    info->end_ids_count++;
}

static kvf_status get_special_ids(kvf_tokenizer *t, const kvf_gguf *g, kvf_error *err) {
    uint32_t eot;
    kvf_status status = get_id(t, g, "tokenizer.ggml.bos_token_id", &t->info.bos, err);
    if (status == KVF_OK) status = get_id(t, g, "tokenizer.ggml.eos_token_id", &t->info.eos, err);
    if (status == KVF_OK) status = get_id(t, g, "tokenizer.ggml.eot_token_id", &eot, err);
    if (status != KVF_OK) return status;
    add_end_id(&t->info, t->info.eos);
    add_end_id(&t->info, eot);
    for (size_t i = 0; i < KVF_COUNT_OF(end_texts); i++) {
        uint32_t id = kvf_vocab_find(&t->vocab, true, end_texts[i], strlen(end_texts[i]));
        if (id != KVF_VOCAB_NONE && t->vocab.types[id] == KVF_TOKEN_CONTROL) add_end_id(&t->info, id);
    }
    const char *key = "tokenizer.ggml.add_bos_token";
    bool said = kvf_gguf_has(g, key);
    if (said && !kvf_gguf_get_bool(g, key, &t->info.add_bos))
        return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: %s is no boolean", kvf_gguf_path(g), key);
    if (said && t->info.add_bos && t->info.bos == KVF_TOKEN_NONE)
        return kvf_fail(err, KVF_ERR_FORMAT, "%.200s: %s is true, but there is no tokenizer.ggml.bos_token_id",
            kvf_gguf_path(g), key);
    /* Llama 3 files from before the key was written want it all the same. */
    if (!said) t->info.add_bos = t->family == KVF_PRETOK_LLAMA3 && t->info.bos != KVF_TOKEN_NONE;
    return KVF_OK;
}

/* Chained XXH3 over blocks, numbers in little-endian: the same value on every machine. */
typedef struct {
    uint8_t block[4096];
    size_t used_bytes;
} digest;

static kvf_hash128 digest_close(digest *d) {
    kvf_hash128 hash = kvf_hash128_of(d->block, d->used_bytes, 0);
    kvf_put_le64(d->block, hash.lo);
    kvf_put_le64(d->block + 8, hash.hi);
    d->used_bytes = 16;
    return hash;
}

static void digest_bytes(digest *d, const void *bytes, size_t len_bytes) {
    for (const uint8_t *from = bytes; len_bytes > 0;) {
        size_t room = sizeof d->block - d->used_bytes, taken = KVF_MIN(room, len_bytes);
        memcpy(d->block + d->used_bytes, from, taken);
        d->used_bytes += taken;
        from += taken;
        len_bytes -= taken;
        if (d->used_bytes == sizeof d->block) digest_close(d);
    }
}

static void digest_u32(digest *d, uint32_t value) {
    uint8_t bytes[4];
    kvf_put_le32(bytes, value);
    digest_bytes(d, bytes, sizeof bytes);
}

static void hash_vocabulary(kvf_tokenizer *t) {
    digest d = {.used_bytes = 0};
    digest_bytes(&d, t->info.pre_name, strlen(t->info.pre_name) + 1);
    digest_u32(&d, t->vocab.count);
    for (uint32_t id = 0; id < t->vocab.count; id++) {
        kvf_span bytes = kvf_vocab_bytes(&t->vocab, id);
        uint8_t kind[2] = {t->vocab.types[id], t->vocab.raw[id]};
        digest_bytes(&d, kind, sizeof kind);
        digest_u32(&d, (uint32_t)bytes.len_bytes);
        digest_bytes(&d, bytes.data, bytes.len_bytes);
    }
    digest_u32(&d, t->merges.count);
    for (uint32_t rank = 0; rank < t->merges.count; rank++) {
        digest_u32(&d, t->merges.items[rank].left);
        digest_u32(&d, t->merges.items[rank].right);
    }
    kvf_hash128 hash = digest_close(&d);
    t->info.hash[0] = hash.lo;
    t->info.hash[1] = hash.hi;
}

static kvf_status fill(kvf_tokenizer *t, const kvf_gguf *g, kvf_error *err) {
    kvf_status status = get_kind(t, g, err);
    if (status == KVF_OK) status = kvf_vocab_init(&t->vocab, g, err);
    if (status == KVF_OK) status = kvf_merges_init(&t->merges, g, &t->vocab, err);
    if (status == KVF_OK) status = kvf_controls_init(&t->controls, g, &t->vocab, err);
    if (status == KVF_OK) status = get_special_ids(t, g, err);
    return status;
}

kvf_status kvf_tokenizer_create(const kvf_gguf *g, kvf_tokenizer **out, kvf_error *err) {
    kvf_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return kvf_fail(err, KVF_ERR_NO_MEMORY, "no memory for a tokenizer");
    kvf_status status = fill(t, g, err);
    if (status != KVF_OK) {
        kvf_tokenizer_destroy(t);
        return status;
    }
    t->info.vocab_size = t->vocab.count;
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint8_t bytes[1] = {(uint8_t)byte};
        t->byte_ids[byte] = kvf_vocab_find(&t->vocab, false, bytes, 1);
    }
    kvf_char_table_fill(t->char_table);
    hash_vocabulary(t);
    *out = t;
    return KVF_OK;
}

void kvf_tokenizer_destroy(kvf_tokenizer *t) {
    if (!t) return;
    kvf_controls_fini(&t->controls);
    kvf_merges_fini(&t->merges);
    kvf_vocab_fini(&t->vocab);
    free(t);
}

const kvf_tokenizer_info *kvf_tokenizer_get_info(const kvf_tokenizer *t) { return &t->info; }
