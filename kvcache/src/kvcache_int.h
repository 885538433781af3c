/* kvcache_int.h - what the files of this module share: one record per block, the lists that thread through them, the
 * counts.
 *
 * held(block) = pins > 0, or uses > 0, or a held child in the index. The last term closes two doors: a parent whose
 * child cannot be evicted (a send still reads it) is not room either, and holders may let go of a chain in any order.
 *
 * The list of evictable blocks is ordered by the time they were let go. A child is let go before its parent can be, and
 * is held again only under a held parent: hence a child always stands before its parent, and the head of the list is
 * always a leaf. Eviction takes the head and never searches. */
#ifndef KVF_KVCACHE_INT_H
#define KVF_KVCACHE_INT_H
#include "kvf/arena.h"
#include "kvf/base.h"
#include "kvf/hash.h"
#include "kvf/kvcache.h"

/* Planted faults for the tests (0 in every product build): 1 generation kept on free; 2 a single pin does not hold; 3
 * pin without looking at room; 4 freed while in use; 5 tokens not compared; 6 parent and root not compared; 7 twins not
 * looked for; 8 in-use blocks evictable; 9 taking spends no booked unit; 10 most recently let go evicted first; 11
 * flush keeps the names of pinned blocks; 12 a child does not hold its parent. */
#ifndef KVF_MUTANT
#define KVF_MUTANT 0
#endif
#define MUTANT(n) (KVF_MUTANT == (n))

typedef struct {
    uint32_t tokens[KVF_KV_BLOCK_TOKENS]; /* valid while indexed */
    kvf_hash128 name; /* valid while indexed */
    kvf_hash128 root; /* valid while indexed and parent is none */
    uint32_t generation, pins, uses, filled;
    uint32_t parent; /* index of an indexed block, or none; valid while indexed */
    uint32_t children; /* indexed blocks whose parent this is */
    uint32_t children_held; /* those of them that are held */
    uint32_t bucket_prev, bucket_next;
    uint32_t list_prev, list_next; /* free stack (next only) or list of evictable blocks */
    kvf_block_state state;
    bool indexed;
} kv_block;

struct kvf_kv {
    kv_block *blocks;
    uint32_t *buckets; /* block index or none; chains through bucket_next */
    uint32_t bucket_mask;
    uint32_t free_top; /* last freed first taken: its memory is the warmest */
    uint32_t lru_first, lru_last; /* evictable blocks, least recently let go first */
    uint32_t indexed; /* blocks in the index */
    kvf_kv_counts counts;
    kvf_kv_event *events;
    uint32_t events_max;
    uint64_t event_next;
    uint32_t *audit_children, *audit_held, *audit_order; /* scratch of kvf_kv_audit */
};

static inline bool kv_held(const kv_block *b) {
    return b->pins > (MUTANT(2) ? 1u : 0u) || (b->uses > 0 && !MUTANT(8)) || b->children_held > 0;
}
static inline bool kv_evictable(const kv_block *b) { return b->indexed && !kv_held(b); }

/* pool.c. kv_get: NULL for a wrong index, a wrong generation or a FREE block. */
kv_block *kv_get(const kvf_kv *kv, kvf_block_id id);
kvf_block_id kv_id(const kvf_kv *kv, const kv_block *b);
void kv_set_state(kvf_kv *kv, kv_block *b, kvf_block_state state);
void kv_lru_remove(kvf_kv *kv, kv_block *b);
void kv_free_if_unused(kvf_kv *kv, kv_block *b);

/* index.c */
void kv_index_remove(kvf_kv *kv, kv_block *b);

/* events.c */
void kv_event_add(kvf_kv *kv, bool stored, kvf_hash128 name);
#endif
