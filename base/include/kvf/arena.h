/* kvf/arena.h - carve one block of memory, given by the caller, into the parts of a core.
 * A core measures itself by running its layout over an arena without memory (base NULL: only `used` counts), then the
 * caller gives that many bytes and the same layout runs for real. Nothing is freed on its own: the whole block is. */
#ifndef KVF_ARENA_H
#define KVF_ARENA_H
#include "kvf/base.h"

typedef struct {
    uint8_t *base; /* NULL while measuring */
    size_t size_bytes;
    size_t used_bytes;
    bool zeroed; /* the memory is known to be zero (fresh mmap): taking does not touch it */
} kvf_arena;

/* Zeroed memory aligned to `align_pow2` (base itself must be aligned to 64). Running past the end is a bug of the
 * layout. */
static inline void *kvf_arena_take(kvf_arena *a, size_t len_bytes, size_t align_pow2) {
    size_t at = (size_t)kvf_align_up(a->used_bytes, align_pow2);
    a->used_bytes = at + len_bytes;
    if (!a->base) return NULL;
    KVF_ASSERT(a->used_bytes <= a->size_bytes);
    if (!a->zeroed) memset(a->base + at, 0, len_bytes);
    return a->base + at;
}
#define KVF_ARENA_NEW(arena, type, count)                                                                              \
    ((type *)kvf_arena_take((arena), sizeof(type) * (size_t)(count), _Alignof(type)))
#endif
