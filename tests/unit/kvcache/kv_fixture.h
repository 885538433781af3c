/* kv_fixture.h - what the unit tests of the pool share: a pool on the heap, token blocks, and one check of everything.
 */
#ifndef KV_FIXTURE_H
#define KV_FIXTURE_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include "kvf/kvcache.h"

static inline kvf_kv *pool_new(uint32_t blocks, uint32_t events_max) {
    kvf_kv_config config = {.blocks = blocks, .events_max = events_max};
    size_t size = (size_t)kvf_align_up(kvf_kv_size(&config), 64);
    void *memory = aligned_alloc(64, size);
    assert_non_null(memory);
    memset(memory, 0, size);
    return kvf_kv_init(memory, &config); /* the pool begins at its memory: free() takes it back */
}

static inline void pool_check(const kvf_kv *kv) {
    kvf_error err;
    if (kvf_kv_audit(kv, &err)) fail_msg("audit: %s", err.message);
}

static inline void pool_drop(kvf_kv *kv) {
    pool_check(kv);
    free(kv);
}

static inline kvf_kv_counts count(const kvf_kv *kv) {
    kvf_kv_counts c;
    kvf_kv_count(kv, &c);
    return c;
}

static inline kvf_block_info info_of(const kvf_kv *kv, kvf_block_id id) {
    kvf_block_info info;
    assert_true(kvf_kv_block_at(kv, id.index, &info));
    return info;
}

typedef struct {
    uint32_t t[KVF_KV_BLOCK_TOKENS];
} tokens16;
static inline tokens16 tokens_from(uint32_t first) {
    tokens16 b;
    for (uint32_t i = 0; i < KVF_KV_BLOCK_TOKENS; i++) b.t[i] = first + i;
    return b;
}

static inline kvf_span span_of(const char *text) { return (kvf_span){text, strlen(text)}; }
static inline kvf_hash128 root_a(void) { return kvf_kv_root(span_of("model"), span_of("f16"), span_of("")); }

static inline kvf_block_id take_one(kvf_kv *kv) {
    kvf_block_id id;
    assert_int_equal(kvf_kv_book(kv, 1), KVF_OK);
    assert_int_equal(kvf_kv_take(kv, &id), KVF_OK);
    return id;
}

static inline kvf_block_id seal_under(kvf_kv *kv, kvf_block_id id, kvf_block_id parent, uint32_t first) {
    kvf_block_id now;
    tokens16 b = tokens_from(first);
    assert_int_equal(kvf_kv_seal(kv, id, root_a(), parent, b.t, &now), KVF_OK);
    return now;
}

/* A chain of n blocks with tokens first, first + 1000, ...; all pinned once. */
static inline void chain_new(kvf_kv *kv, uint32_t first, uint32_t n, kvf_block_id *out) {
    for (uint32_t i = 0; i < n; i++)
        out[i] = seal_under(kv, take_one(kv), i ? out[i - 1] : KVF_BLOCK_NONE, first + 1000 * i);
}
static inline void chain_unpin(kvf_kv *kv, const kvf_block_id *ids, uint32_t n) {
    while (n-- > 0) kvf_kv_unpin(kv, ids[n]);
}
#define assert_block_equal(a, b) assert_true(kvf_block_id_equal(a, b))
#endif
