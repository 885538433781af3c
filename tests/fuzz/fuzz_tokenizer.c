/* fuzz_tokenizer.c - first byte: bit 7 set: the rest is a model file whose vocabulary is loaded and used; else bits 0-1
 * choose the family and the rest is text, then as many bytes whose lowest bit marks the text as trusted, on a tiny
 * model's vocabulary. Asserted: the pieces give the text back, control tokens lie in trusted bytes only, streamed
 * deltas are valid UTF-8 and join to the text where it is valid, and a limit one below the count refuses. */
#include "tokenizer_int.h"
#include "kvf/utf8.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static kvf_tokenizer *tiny_tokenizer(void) {
    static kvf_tokenizer *kept; /* made once for all inputs; lives as long as the process */
    static kvf_gguf *file;
    kvf_error error;
    if (kept) return kept;
    KVF_ASSERT(kvf_gguf_open(KVF_SOURCE_DIR "/tests/golden/tiny/llama.gguf", &file, &error) == KVF_OK);
    KVF_ASSERT(kvf_tokenizer_create(file, &kept, &error) == KVF_OK);
    return kept;
}

static void check_stream(
    const kvf_tokenizer *t, const uint32_t *ids, size_t count, const uint8_t *text, size_t len_bytes) {
    kvf_detok d;
    char *joined = malloc(3 * len_bytes + 16);
    KVF_ASSERT(joined);
    size_t joined_bytes = 0;
    kvf_detok_init(&d, t, true);
    for (size_t i = 0; i < count; i++) {
        size_t bound = kvf_detok_bound(&d, ids[i]);
        char *delta = malloc(bound);
        KVF_ASSERT(delta);
        size_t written = kvf_detok_push(&d, ids[i], delta);
        KVF_ASSERT(written <= bound && kvf_utf8_valid(delta, written, NULL));
        memcpy(joined + joined_bytes, delta, written);
        joined_bytes += written;
        free(delta);
    }
    size_t tail = kvf_detok_finish(&d, joined + joined_bytes);
    KVF_ASSERT(kvf_utf8_valid(joined + joined_bytes, tail, NULL));
    joined_bytes += tail;
    if (kvf_utf8_valid((const char *)text, len_bytes, NULL))
        KVF_ASSERT(joined_bytes == len_bytes && (len_bytes == 0 || memcmp(joined, text, len_bytes) == 0));
    free(joined);
}

static void check_text(const kvf_tokenizer *t, const uint8_t *text, const uint8_t *trusted, size_t len_bytes) {
    uint32_t *ids = NULL, *fewer = NULL;
    size_t count = 0, at = 0, fewer_count;
    KVF_ASSERT(kvf_tokenizer_encode(t, (const char *)text, len_bytes, trusted, SIZE_MAX, &ids, &count) == KVF_OK);
    for (size_t i = 0; i < count; i++) {
        kvf_span piece;
        KVF_ASSERT(kvf_tokenizer_piece(t, ids[i], &piece));
        KVF_ASSERT(piece.len_bytes <= len_bytes - at && memcmp(piece.data, text + at, piece.len_bytes) == 0);
        for (size_t j = 0; j < piece.len_bytes; j++)
            KVF_ASSERT(!kvf_tokenizer_is_control(t, ids[i]) || (trusted && trusted[at + j]));
        at += piece.len_bytes;
    }
    KVF_ASSERT(at == len_bytes);
    if (count > 0)
        KVF_ASSERT(kvf_tokenizer_encode(t, (const char *)text, len_bytes, trusted, count - 1, &fewer, &fewer_count) ==
                   KVF_ERR_LIMIT);
    check_stream(t, ids, count, text, len_bytes);
    free(ids);
}

static void use_vocabulary(const uint8_t *data, size_t size) {
    kvf_gguf *file = NULL;
    kvf_tokenizer *t = NULL;
    kvf_error error;
    /* A copy of its own: aligned, and any byte read past its end is seen. */
    uint8_t *copy = malloc(size + 1);
    KVF_ASSERT(copy);
    memcpy(copy, data, size);
    if (kvf_gguf_open_memory(copy, size, "fuzzed", &file, &error) == KVF_OK &&
        kvf_tokenizer_create(file, &t, &error) == KVF_OK) {
        uint32_t *ids = NULL;
        size_t count = 0;
        kvf_status status = kvf_tokenizer_encode(t, (const char *)data, size, data, SIZE_MAX, &ids, &count);
        KVF_ASSERT(status == KVF_OK);
        for (size_t i = 0; i < count; i++) KVF_ASSERT(ids[i] < kvf_tokenizer_get_info(t)->vocab_size);
        free(ids);
    }
    kvf_tokenizer_destroy(t);
    if (file) kvf_gguf_close(file);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    if (data[0] & 0x80) {
        use_vocabulary(data + 1, size - 1);
        return 0;
    }
    kvf_tokenizer *t = tiny_tokenizer();
    t->family = (kvf_pretok_family)(data[0] & 3);
    t->whole_pieces = t->family == KVF_PRETOK_LLAMA3;
    size_t len_bytes = (size - 1) / 2;
    uint8_t *text = malloc(len_bytes + 1), *trusted = malloc(len_bytes + 1);
    KVF_ASSERT(text && trusted);
    memcpy(text, data + 1, len_bytes);
    for (size_t i = 0; i < len_bytes; i++) trusted[i] = data[1 + len_bytes + i] & 1;
    check_text(t, text, trusted, len_bytes);
    check_text(t, text, NULL, len_bytes);
    free(text);
    free(trusted);
    return 0;
}
