/* pool.c - memory of one compile or one render: chunks that are freed together, with a maximum over all of them. */
#include "template_int.h"
#include <stdlib.h>

struct tm_chunk {
    tm_chunk *next;
    _Alignas(16) uint8_t memory[];
};

enum { CHUNK_BYTES = 32 * 1024 };

static uint8_t *chunk_add(tm_pool *pool, size_t len_bytes) {
    if (len_bytes > pool->max_bytes - pool->used_bytes) return NULL;
    tm_chunk *chunk = calloc(1, sizeof *chunk + len_bytes);
    if (!chunk) {
        pool->no_memory = true;
        return NULL;
    }
    chunk->next = pool->chunks;
    pool->chunks = chunk;
    pool->used_bytes += len_bytes;
    return chunk->memory;
}

void *kvf_tm_pool_take(tm_pool *pool, size_t len_bytes) {
    if (len_bytes > pool->max_bytes) return NULL;
    size_t need = (size_t)kvf_align_up(len_bytes ? len_bytes : 1, 16);
    if (need <= (size_t)(pool->end - pool->at)) {
        void *p = pool->at;
        pool->at += need;
        return p;
    }
    if (need > CHUNK_BYTES / 4) return chunk_add(pool, need); /* big things get their own, the open chunk stays open */
    uint8_t *memory = chunk_add(pool, CHUNK_BYTES);
    if (!memory) return NULL;
    pool->at = memory + need;
    pool->end = memory + CHUNK_BYTES;
    return memory;
}

void kvf_tm_pool_free(tm_pool *pool) {
    while (pool->chunks) {
        tm_chunk *next = pool->chunks->next;
        free(pool->chunks);
        pool->chunks = next;
    }
    pool->at = pool->end = NULL;
    pool->used_bytes = 0;
}
