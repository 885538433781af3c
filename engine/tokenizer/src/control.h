/* control.h - finds control and user-defined tokens in text, where the caller trusts it. Private to the tokenizer. */
#ifndef KVF_TOKENIZER_CONTROL_H
#define KVF_TOKENIZER_CONTROL_H
#include "vocab.h"

/* A match costs at most this many steps at each position of a text, so longer ones are refused. */
#define KVF_CONTROL_BYTES_MAX 512u

typedef struct {
    uint32_t count;
    uint32_t *ids; /* sorted by their bytes */
    bool first[256]; /* bytes that some token begins with */
} kvf_controls;

kvf_status kvf_controls_init(kvf_controls *c, const kvf_gguf *g, const kvf_vocab *v, kvf_error *err);
void kvf_controls_fini(kvf_controls *c);

/* The longest token that stands at text[0..], all its bytes trusted. KVF_VOCAB_NONE: there is none. */
uint32_t kvf_controls_match(
    const kvf_controls *c, const kvf_vocab *v, const uint8_t *text, const uint8_t *trusted, size_t len_bytes);
#endif
