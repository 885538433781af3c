/* encode.c - text to ids: control tokens where trusted, between them pieces, in a piece merges. */
#include "tokenizer_int.h"
#include <stdlib.h>

_Static_assert(KVF_TOKEN_NONE == KVF_VOCAB_NONE, "one word for no token");

typedef struct {
    const kvf_tokenizer *t;
    kvf_bpe bpe;
    kvf_tokenizer_work work;
    uint32_t *ids;
    size_t count, capacity, ids_max;
} encoding;

static kvf_status push_ids(encoding *e, const uint32_t *ids, size_t count) {
    if (count > e->ids_max - e->count) return KVF_ERR_LIMIT;
    if (count > e->capacity - e->count) {
        size_t capacity = KVF_MAX(e->count + count, KVF_MAX((size_t)32, e->capacity + e->capacity / 2));
        uint32_t *grown = realloc(e->ids, capacity * sizeof *grown);
        if (!grown) return KVF_ERR_NO_MEMORY;
        e->ids = grown;
        e->capacity = capacity;
    }
    if (count > 0) memcpy(e->ids + e->count, ids, count * sizeof *ids);
    e->count += count;
    return KVF_OK;
}

static kvf_status encode_piece(encoding *e, const uint8_t *bytes, size_t len_bytes) {
    const kvf_tokenizer *t = e->t;
    e->work.pieces++;
    if (t->whole_pieces) {
        uint32_t id = kvf_vocab_find(&t->vocab, false, bytes, len_bytes);
        if (id != KVF_VOCAB_NONE) return push_ids(e, &id, 1);
    }
    kvf_status status = kvf_bpe_reserve(&e->bpe, len_bytes);
    if (status != KVF_OK) return status;
    size_t count = 0;
    /* A byte without a token is left out, as the tokenizers do that these vocabularies were trained with. */
    for (size_t i = 0; i < len_bytes; i++)
        if (t->byte_ids[bytes[i]] != KVF_TOKEN_NONE) e->bpe.ids[count++] = t->byte_ids[bytes[i]];
    count = kvf_bpe_merge(&e->bpe, &t->merges, count);
    return push_ids(e, e->bpe.ids, count);
}

static kvf_status encode_plain(encoding *e, const uint8_t *text, size_t len_bytes) {
    kvf_pretok p = {.family = e->t->family, .table = e->t->char_table, .text = text, .len_bytes = len_bytes};
    kvf_status status = KVF_OK;
    for (size_t at = 0; at < len_bytes && status == KVF_OK;) {
        size_t end = kvf_pretok_next(&p, at);
        status = encode_piece(e, text + at, end - at);
        at = end;
    }
    e->work.characters += p.steps;
    return status;
}

static kvf_status encode_marked(encoding *e, const uint8_t *text, size_t len_bytes, const uint8_t *trusted) {
    size_t begin = 0;
    for (size_t at = 0; at < len_bytes;) {
        uint32_t id = KVF_VOCAB_NONE;
        if (trusted[at])
            id = kvf_controls_match(&e->t->controls, &e->t->vocab, text + at, trusted + at, len_bytes - at);
        if (id == KVF_VOCAB_NONE) {
            at++;
            continue;
        }
        kvf_status status = encode_plain(e, text + begin, at - begin);
        if (status == KVF_OK) status = push_ids(e, &id, 1);
        if (status != KVF_OK) return status;
        begin = at += kvf_vocab_bytes(&e->t->vocab, id).len_bytes;
    }
    return encode_plain(e, text + begin, len_bytes - begin);
}

kvf_status kvf_tokenizer_encode_counted(const kvf_tokenizer *t, const char *text, size_t len_bytes,
    const uint8_t *trusted, size_t ids_max, uint32_t **ids, size_t *count, kvf_tokenizer_work *work) {
    encoding e = {.t = t, .ids_max = ids_max};
    const uint8_t *bytes = (const uint8_t *)text;
    kvf_status status = KVF_OK;
    if (len_bytes > 0)
        status = trusted ? encode_marked(&e, bytes, len_bytes, trusted) : encode_plain(&e, bytes, len_bytes);
    e.work.merging = e.bpe.work;
    kvf_bpe_fini(&e.bpe);
    if (status != KVF_OK) {
        free(e.ids);
        return status;
    }
    *ids = e.ids;
    *count = e.count;
    if (work) *work = e.work;
    return KVF_OK;
}

kvf_status kvf_tokenizer_encode(const kvf_tokenizer *t, const char *text, size_t len_bytes, const uint8_t *trusted,
    size_t ids_max, uint32_t **ids, size_t *count) {
    return kvf_tokenizer_encode_counted(t, text, len_bytes, trusted, ids_max, ids, count, NULL);
}
