/* support.h - what the tokenizer's tests share: model files made in memory, naive references, random texts. */
#ifndef KVF_TEST_TOKENIZER_SUPPORT_H
#define KVF_TEST_TOKENIZER_SUPPORT_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include "kvf/rng.h"
#include "tokenizer_int.h"

typedef struct {
    uint8_t *bytes;
    size_t len_bytes, capacity;
} buffer;
void buffer_put(buffer *b, const void *bytes, size_t len_bytes);

/* A vocabulary under construction; a test spoils what it wants to see refused. */
typedef struct {
    const char *model, *pre; /* NULL: the key is left out */
    char **tokens;
    int32_t *types;
    size_t tokens_count, types_count;
    char **merges;
    size_t merges_count;
    bool no_tokens, no_types, no_merges, tokens_are_numbers, types_are_strings, merges_are_numbers;
    int64_t bos, eos, eot; /* -1: left out */
    int add_bos; /* -1: left out; 2: written as a string */
} spec;
/* 256 byte letters as ids 0 to 255, nothing else. */
void spec_init(spec *s, const char *pre);
void spec_fini(spec *s);
uint32_t spec_token(spec *s, const char *text, int32_t type);
/* "left right"; adds the merged token where there is none. */
void spec_merge(spec *s, const char *merge);
/* Merges that double a letter up to 2^depth of them, as vocabularies trained on code have for spaces and dashes. */
void spec_doubling(spec *s, const char *letter, int depth);

typedef struct {
    buffer file;
    kvf_gguf *gguf;
    kvf_tokenizer *tokenizer;
    kvf_error error;
} loaded;
kvf_status load_spec(loaded *l, const spec *s); /* the tokenizer's status; the file itself must open */
kvf_status load_file(loaded *l, const char *path);
void unload(loaded *l);

typedef struct {
    uint32_t *ids;
    size_t count;
    kvf_tokenizer_work work;
} encoded;
encoded encode(const kvf_tokenizer *t, const void *text, size_t len_bytes, const uint8_t *trusted);
buffer pieces_of(const kvf_tokenizer *t, const uint32_t *ids, size_t count);
/* Encodes (without control tokens), asserts that the pieces give the text back. */
void check_round_trip(const kvf_tokenizer *t, const void *text, size_t len_bytes);

/* The rule of bpe.h without a heap: look at all pairs, merge the best, again. */
encoded naive_encode(const kvf_tokenizer *t, const void *text, size_t len_bytes);

/* Well-formed text and U+FFFD for each maximal subpart, by trying completions: slow and unlike the code under test. */
buffer replace_naive(const uint8_t *bytes, size_t len_bytes);
/* Streams ids; asserts that each delta is valid UTF-8 and within its bound. */
buffer stream(const kvf_tokenizer *t, const uint32_t *ids, size_t count, bool specials_in_text);

size_t put_utf8(uint8_t *out, uint32_t code_point);
uint32_t random_code_point(kvf_rng *r); /* any scalar value, short forms often */
buffer random_text(kvf_rng *r, size_t characters);
buffer random_bytes(kvf_rng *r, size_t count);

/* Allocation (support_alloc.c, linked with --wrap): bytes now and at most, and a failure at the n-th call. */
extern size_t alloc_now_bytes, alloc_peak_bytes;
extern uint64_t alloc_calls, alloc_fail_at; /* fail_at 0: never */
#endif
