/* decode.c - ids to bytes and, streaming, to whole characters.
 *
 * Invariant of kvf_detok: held[0..held_count) is the beginning of one well-formed character and not all of it. Bytes
 * arrive one by one, so what comes out depends on the byte sequence alone and never on how it was cut into tokens or
 * calls. */
#include "tokenizer_int.h"
#include "kvf/utf8.h"

bool kvf_tokenizer_piece(const kvf_tokenizer *t, uint32_t id, kvf_span *out) {
    if (id >= t->vocab.count) return false;
    *out = kvf_vocab_bytes(&t->vocab, id);
    return true;
}

/* Tokens that are no part of what the model says: control, unknown and unused ones. */
bool kvf_tokenizer_is_control(const kvf_tokenizer *t, uint32_t id) {
    if (id >= t->vocab.count) return false;
    uint8_t type = t->vocab.types[id];
    return type == KVF_TOKEN_CONTROL || type == KVF_TOKEN_UNKNOWN || type == KVF_TOKEN_UNUSED;
}

uint32_t kvf_tokenizer_find(const kvf_tokenizer *t, const char *text, size_t len_bytes) {
    uint32_t id = kvf_vocab_find(&t->vocab, true, text, len_bytes);
    return id != KVF_VOCAB_NONE ? id : kvf_vocab_find(&t->vocab, false, text, len_bytes);
}

void kvf_detok_init(kvf_detok *d, const kvf_tokenizer *t, bool specials_in_text) {
    *d = (kvf_detok){.tokenizer = t, .specials_in_text = specials_in_text};
}

size_t kvf_detok_bound(const kvf_detok *d, uint32_t id) {
    kvf_span bytes = {NULL, 0};
    kvf_tokenizer_piece(d->tokenizer, id, &bytes);
    return 3 * (bytes.len_bytes + sizeof d->held);
}

static size_t put_replacement(char *out) {
    memcpy(out, "\xEF\xBF\xBD", 3);
    return 3;
}

static size_t push_byte(kvf_detok *d, uint8_t byte, char *out) {
    KVF_ASSERT(d->held_count < sizeof d->held);
    size_t written = 0;
    d->held[d->held_count++] = byte;
    kvf_utf8_step step = kvf_utf8_step_at(d->held, d->held_count);
    if (step.kind == KVF_UTF8_BAD && d->held_count > 1) {
        /* The byte does not go on with what was held: that is one ill-formed part, and the byte begins anew. */
        written = put_replacement(out);
        d->held[0] = byte;
        d->held_count = 1;
        step = kvf_utf8_step_at(d->held, 1);
    }
    if (step.kind == KVF_UTF8_CUT) return written;
    if (step.kind == KVF_UTF8_BAD)
        written += put_replacement(out + written);
    else {
        memcpy(out + written, d->held, d->held_count);
        written += d->held_count;
    }
    d->held_count = 0;
    return written;
}

size_t kvf_detok_push(kvf_detok *d, uint32_t id, char *out) {
    kvf_span bytes;
    size_t written = 0;
    /* A hidden token adds no bytes, so a character may even go on behind it. */
    if (!kvf_tokenizer_piece(d->tokenizer, id, &bytes)) return 0;
    if (!d->specials_in_text && kvf_tokenizer_is_control(d->tokenizer, id)) return 0;
    const uint8_t *from = bytes.data;
    for (size_t i = 0; i < bytes.len_bytes; i++) written += push_byte(d, from[i], out + written);
    return written;
}

size_t kvf_detok_finish(kvf_detok *d, char *out) {
    if (d->held_count == 0) return 0;
    d->held_count = 0;
    return put_replacement(out);
}
