/* kvf/tokenizer.h - byte-level BPE as model files carry it (GGUF tokenizer.ggml.*), pre-tokenizers smollm, llama-bpe,
 * qwen2, gpt-2. Encoding is near-linear in the text (a heap over merge candidates), whatever the text is. A tokenizer
 * is immutable after creation; any number of threads may use it. Text that names a control token is read as that token
 * only where `trusted` says. */
#ifndef KVF_TOKENIZER_H
#define KVF_TOKENIZER_H
#include "kvf/gguf.h"

typedef struct kvf_tokenizer kvf_tokenizer;

#define KVF_TOKEN_NONE UINT32_MAX
#define KVF_TOKENIZER_END_IDS_MAX 16

typedef struct {
    uint32_t vocab_size; /* entries of the token list */
    uint32_t bos, eos; /* KVF_TOKEN_NONE where absent */
    bool add_bos; /* the file asks for BOS before plain text */
    uint32_t end_ids_count; /* eos, eot and every control token that ends a turn; sorted */
    uint32_t end_ids[KVF_TOKENIZER_END_IDS_MAX];
    uint64_t hash[2]; /* over vocabulary, merges, types and pre-tokenizer: compared at pairing */
    const char *pre_name; /* "smollm" */
} kvf_tokenizer_info;

kvf_status kvf_tokenizer_create(const kvf_gguf *g, kvf_tokenizer **out, kvf_error *err); /* g borrowed until destroy */
void kvf_tokenizer_destroy(kvf_tokenizer *t);
const kvf_tokenizer_info *kvf_tokenizer_get_info(const kvf_tokenizer *t);

/* Text: any bytes (the caller checks UTF-8; bytes that are not UTF-8 are encoded as bytes).
 * trusted: NULL = no control tokens anywhere; else one byte per text byte, and a control token is recognised only where
 * all its bytes are marked 1. Never adds BOS. *ids is malloc'ed (freed by the caller with free), NULL when *count is 0.
 * KVF_ERR_LIMIT: more than ids_max tokens. */
kvf_status kvf_tokenizer_encode(const kvf_tokenizer *t, const char *text, size_t len_bytes, const uint8_t *trusted,
    size_t ids_max, uint32_t **ids, size_t *count);

/* The bytes of one token (control tokens: their text). false: no such id. */
bool kvf_tokenizer_piece(const kvf_tokenizer *t, uint32_t id, kvf_span *out);
bool kvf_tokenizer_is_control(const kvf_tokenizer *t, uint32_t id);
/* Id of a token given its exact text, KVF_TOKEN_NONE when absent. */
uint32_t kvf_tokenizer_find(const kvf_tokenizer *t, const char *text, size_t len_bytes);

/* Streaming decode: push ids, get whole UTF-8 characters; a tail that can still become a character is held back.
 * Invalid bytes become U+FFFD, one per maximal ill-formed subpart (Unicode 15, 3.9, "substitution of maximal
 * subparts"), the same whether the text is streamed or decoded at once. */
#define KVF_DETOK_OUT_MAX 4
typedef struct {
    const kvf_tokenizer *tokenizer;
    bool specials_in_text; /* print control tokens too */
    uint8_t held[4];
    uint32_t held_count;
} kvf_detok;
void kvf_detok_init(kvf_detok *d, const kvf_tokenizer *t, bool specials_in_text);
/* Appends to out; writes at most 3 * (piece bytes + 4) bytes. Returns bytes written. Use kvf_detok_bound for the size.
 */
size_t kvf_detok_bound(const kvf_detok *d, uint32_t id);
size_t kvf_detok_push(kvf_detok *d, uint32_t id, char *out);
size_t kvf_detok_finish(kvf_detok *d, char *out); /* what is held back, as U+FFFD; at most 12 bytes */
#endif
