/* tokenizer_int.h - the tokenizer's inside, for its own files and tests. */
#ifndef KVF_TOKENIZER_INT_H
#define KVF_TOKENIZER_INT_H
#include "kvf/tokenizer.h"
#include "bpe.h"
#include "control.h"
#include "pretok.h"

struct kvf_tokenizer {
    kvf_tokenizer_info info;
    kvf_pretok_family family;
    bool whole_pieces; /* a piece that is a token as it stands is taken without merging (llama-bpe) */
    kvf_vocab vocab;
    kvf_merges merges;
    kvf_controls controls;
    uint32_t byte_ids[256]; /* KVF_TOKEN_NONE: the vocabulary has no token for the byte */
    uint8_t char_table[KVF_CHAR_TABLE_SIZE];
};

/* What an encoding cost, in operations: near-linear time is asserted on these, not on clocks. */
typedef struct {
    uint64_t characters; /* looked at by the splitter */
    uint64_t pieces;
    kvf_bpe_work merging;
} kvf_tokenizer_work;

/* kvf_tokenizer_encode that counts; work may be NULL. */
kvf_status kvf_tokenizer_encode_counted(const kvf_tokenizer *t, const char *text, size_t len_bytes,
    const uint8_t *trusted, size_t ids_max, uint32_t **ids, size_t *count, kvf_tokenizer_work *work);
#endif
