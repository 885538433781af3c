/* kvf/kvcache.h - the ownership of a node's KV blocks: states, pins, uses, booked room, prefix index, eviction.
 *
 * Pure: no socket, clock, thread, random source, floating point or malloc. One thread at a time.
 *
 *   FREE --take--> FILLING --seal--> SEALED --(pins = 0, uses = 0: evicted, or not indexed)--> FREE (generation + 1)
 *                     \--drop (pins = 0, uses = 0)-------------------------------------------> FREE (generation + 1)
 *
 * A pin keeps a block from reuse and belongs to whoever was given it (a sequence, a grant). A use is an operation that
 * touches the block's memory outside the core (landing copy, engine step, send); it has a begin and an end. A block is
 * free again only when both are zero.
 *
 * Index: a full block is named by (parent block, its tokens); the root stands for (salt, model, numerics). A hit is
 * believed only when parent and tokens are equal, the hash merely finds candidates.
 *
 * An indexed block is held while it has pins, uses, or a held child in the index; hence the whole chain of a held block
 * is held, whatever order its holders let go in. Evictable = indexed and not held. Eviction takes the block that was
 * let go longest ago; children are let go before their parents, so that this one has no children left.
 *
 * Booked room is a counter, not blocks. Always: free + evictable - booked >= 0. Taking a block spends one booked unit;
 * holding an evictable block (a pin, or a use without a pin) needs a free unit of room (free + evictable - booked > 0).
 */
#ifndef KVF_KVCACHE_H
#define KVF_KVCACHE_H
#include "kvf/base.h"
#include "kvf/hash.h"

#define KVF_KV_BLOCK_TOKENS 16
#define KVF_KV_NO_BLOCK UINT32_MAX

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint32_t index; /* KVF_KV_NO_BLOCK: none */
    uint32_t generation; /* starts at 1, +1 at each free */
} kvf_block_id;
static inline bool kvf_block_id_equal(kvf_block_id a, kvf_block_id b) {
    return a.index == b.index && a.generation == b.generation;
}
#define KVF_BLOCK_NONE ((kvf_block_id){KVF_KV_NO_BLOCK, 0})

typedef enum { KVF_BLOCK_FREE, KVF_BLOCK_FILLING, KVF_BLOCK_SEALED } kvf_block_state;

typedef struct kvf_kv kvf_kv;
typedef struct {
    uint32_t blocks; /* >= 1 */
    uint32_t events_max; /* length of the event ring, a power of two */
} kvf_kv_config;

size_t kvf_kv_size(const kvf_kv_config *config);
/* memory: kvf_kv_size bytes, 64-byte aligned, zeroed, kept until the caller drops the kvf_kv. */
kvf_kv *kvf_kv_init(void *memory, const kvf_kv_config *config);

/* Chain of names: root(identity, salt), then next(parent, 16 tokens). Same on router and nodes. `identity` names model
 * weights, tokenizer-independent; `numerics` the numerics id; each part is tagged with its length, so that equal
 * strings in different roles differ. The root is believed without comparing what it stands for, and a salt may come
 * from a client: it is a cut SHA-256. */
kvf_hash128 kvf_kv_root(kvf_span identity, kvf_span numerics, kvf_span salt);
kvf_hash128 kvf_kv_next(kvf_hash128 parent, const uint32_t tokens[KVF_KV_BLOCK_TOKENS]);

typedef struct {
    uint32_t total, free, filling, sealed; /* free + filling + sealed = total */
    uint32_t pinned, in_use; /* blocks with pins > 0, with uses > 0 */
    uint32_t evictable; /* indexed and not held */
    uint32_t booked;
    uint64_t evictions, hits, misses,
        duplicates_dropped; /* since start; hits and misses in blocks asked of kvf_kv_match */
    uint64_t slots_empty; /* token slots of FILLING and SEALED blocks that hold no token: the waste */
} kvf_kv_counts;
void kvf_kv_count(const kvf_kv *kv, kvf_kv_counts *out); /* O(1) */

/* Room. book: KVF_AGAIN when free + evictable - booked < blocks; nothing changed then. */
int64_t kvf_kv_room(const kvf_kv *kv);
kvf_status kvf_kv_book(kvf_kv *kv, uint32_t blocks);
void kvf_kv_unbook(kvf_kv *kv, uint32_t blocks);

/* Longest indexed prefix of `tokens` under root, at most blocks_max full blocks, written to out[]. Changes nothing but
 * counters. The caller passes floor((prompt - 1) / 16) so that one token is left to compute. */
uint32_t kvf_kv_match(kvf_kv *kv, kvf_hash128 root, const uint32_t *tokens, uint32_t blocks_max, kvf_block_id *out);
/* How many of `count` blocks from kvf_kv_match would consume room if pinned now (they are evictable). */
uint32_t kvf_kv_pin_cost(const kvf_kv *kv, const kvf_block_id *blocks, uint32_t count);

/* pin: FILLING or SEALED block. KVF_ERR_STALE: wrong generation, or FREE; KVF_AGAIN: evictable, and no room;
 * KVF_ERR_INVALID: evictable while its parent is not held (pin a chain from its first block on). unpin: when nothing
 * else holds the block, an indexed one becomes evictable (most recently let go) and any other is FREE at once.
 * Unpinning what has no pin is a bug (assertion). */
kvf_status kvf_kv_pin(kvf_kv *kv, kvf_block_id block);
void kvf_kv_unpin(kvf_kv *kv, kvf_block_id block);

/* Takes a block for filling: pins 1, one booked unit spent. Evicts when nothing is free. KVF_ERR_NO_ROOM: nothing is
 * booked (book first); with a booked unit it cannot fail. */
kvf_status kvf_kv_take(kvf_kv *kv, kvf_block_id *out);
/* How many of a FILLING block's slots hold tokens now (the waste counter follows it); never shrinks. */
void kvf_kv_set_filled(kvf_kv *kv, kvf_block_id block, uint32_t tokens);

/* A full FILLING block becomes SEALED. parent: KVF_BLOCK_NONE and root for the first block of a sequence, else the
 * (indexed) parent. When an equal block is already indexed under that parent, the caller's pin moves to it: *now_block
 * names the block to use from now on, and the copy is freed when its uses end. Otherwise *now_block = block. A parent
 * that is not indexed (its own sealing was private) makes this one private too: SEALED, unindexed, freed at its last
 * unpin. KVF_AGAIN: pinning the indexed twin needs room that is not there (possible only while the copy has other pins
 * or uses: else its own room pays); then the block is sealed privately and *now_block = block. KVF_ERR_STALE,
 * KVF_ERR_INVALID (block not FILLING or not pinned, parent not SEALED or not held): nothing has changed. */
kvf_status kvf_kv_seal(kvf_kv *kv, kvf_block_id block, kvf_hash128 root, kvf_block_id parent,
    const uint32_t tokens[KVF_KV_BLOCK_TOKENS], kvf_block_id *now_block);

/* Uses. begin: KVF_ERR_STALE for a wrong generation or FREE block; on a block that nothing holds it may answer as pin
 * does (KVF_AGAIN, KVF_ERR_INVALID), on a pinned one it cannot fail otherwise. end: may free the block or make it
 * evictable. */
kvf_status kvf_kv_use_begin(kvf_kv *kv, kvf_block_id block);
void kvf_kv_use_end(kvf_kv *kv, kvf_block_id block);

/* Forgets every name; evictable blocks become FREE now, pinned ones and those in use when let go. Returns blocks freed.
 * O(blocks). */
uint32_t kvf_kv_flush(kvf_kv *kv);

typedef struct {
    kvf_block_id id;
    kvf_block_state state;
    uint32_t pins, uses, tokens;
    bool indexed;
    kvf_hash128 name; /* zero unless indexed */
} kvf_block_info;
bool kvf_kv_block_at(const kvf_kv *kv, uint32_t index, kvf_block_info *out);
bool kvf_kv_block_find(const kvf_kv *kv, kvf_hash128 name, kvf_block_info *out);

/* What routers learn. Events are numbered from 1 without a gap; a reader behind the ring's tail must take a snapshot
 * (kvf_kv_block_at over all blocks, valid at kvf_kv_event_next). */
typedef struct {
    uint64_t number;
    bool stored; /* else removed */
    kvf_hash128 name;
} kvf_kv_event;
uint64_t kvf_kv_event_next(const kvf_kv *kv); /* number the next event will get */
/* false: `number` has left the ring (or does not exist yet, when number == next). */
bool kvf_kv_event_at(const kvf_kv *kv, uint64_t number, kvf_kv_event *out);

/* Checks every invariant of this page over the whole pool, O(blocks). KVF_ERR_INTERNAL: err names the invariant and the
 * block. */
kvf_status kvf_kv_audit(const kvf_kv *kv, kvf_error *err);

#ifdef __cplusplus
}
#endif
#endif
