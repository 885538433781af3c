/* The prefix index: names, the table over them, sealing, matching, forgetting.
 *
 * Every indexed block stands in one bucket, chosen by its name. A name is the hash of (parent's name, tokens) and only
 * finds candidates: a block is believed to be (parent, tokens) when its parent is that very block - or, for the first
 * block, when its root is equal - and all 16 tokens are equal. A parent stays where it is while it has children, so an
 * index says which block it is.
 *
 *   root = first 16 bytes of SHA-256( "kvf-kv-root" NUL, then per part: length u64 LE, SHA-256(part) )   parts:
 * identity, numerics, salt, in this order. A root is believed without comparing what it stands for, and a salt may come
 * from a client: hence a hash that nobody can collide on purpose, while names below it may use a fast one. name =
 * XXH3-128( parent name lo u64 LE, hi u64 LE, 16 tokens u32 LE ), seeded with NAME_SEED. */
#include "kvcache_int.h"

#define NAME_SEED 0x6b76662d6b762d31ull /* sets these names apart from other uses of the hash */

kvf_hash128 kvf_kv_root(kvf_span identity, kvf_span numerics, kvf_span salt) {
    static const char tag[12] = "kvf-kv-root";
    const kvf_span parts[3] = {identity, numerics, salt};
    uint8_t bytes[sizeof tag + 3 * 40], digest[32];
    memcpy(bytes, tag, sizeof tag);
    for (size_t i = 0; i < 3; i++) {
        uint8_t *at = bytes + sizeof tag + 40 * i;
        kvf_put_le64(at, parts[i].len_bytes);
        kvf_sha256(parts[i].len_bytes ? parts[i].data : "", parts[i].len_bytes, at + 8);
    }
    kvf_sha256(bytes, sizeof bytes, digest);
    return (kvf_hash128){.lo = kvf_get_le64(digest), .hi = kvf_get_le64(digest + 8)};
}

kvf_hash128 kvf_kv_next(kvf_hash128 parent, const uint32_t tokens[KVF_KV_BLOCK_TOKENS]) {
    uint8_t bytes[16 + 4 * KVF_KV_BLOCK_TOKENS];
    kvf_put_le64(bytes, parent.lo);
    kvf_put_le64(bytes + 8, parent.hi);
    for (size_t i = 0; i < KVF_KV_BLOCK_TOKENS; i++) kvf_put_le32(bytes + 16 + 4 * i, tokens[i]);
    return kvf_hash128_of(bytes, sizeof bytes, NAME_SEED);
}

/* The table */

static uint32_t *kv_bucket(const kvf_kv *kv, kvf_hash128 name) { return &kv->buckets[name.lo & kv->bucket_mask]; }

static bool kv_is(const kv_block *b, kvf_hash128 root, uint32_t parent, const uint32_t *tokens) {
    if (!MUTANT(6)) {
        if (b->parent != parent) return false;
        if (parent == KVF_KV_NO_BLOCK && !kvf_hash128_equal(b->root, root)) return false;
    }
    return MUTANT(5) || memcmp(b->tokens, tokens, sizeof b->tokens) == 0;
}

static kv_block *kv_index_find(
    const kvf_kv *kv, kvf_hash128 name, kvf_hash128 root, uint32_t parent, const uint32_t *tokens) {
    for (uint32_t i = *kv_bucket(kv, name); i != KVF_KV_NO_BLOCK; i = kv->blocks[i].bucket_next) {
        kv_block *b = &kv->blocks[i];
        if (kvf_hash128_equal(b->name, name) && kv_is(b, root, parent, tokens)) return b;
    }
    return NULL;
}

static void kv_index_add(
    kvf_kv *kv, kv_block *b, kvf_hash128 name, kvf_hash128 root, uint32_t parent, const uint32_t *tokens) {
    uint32_t i = (uint32_t)(b - kv->blocks), *bucket = kv_bucket(kv, name);
    memcpy(b->tokens, tokens, sizeof b->tokens);
    b->name = name;
    b->root = root;
    b->parent = parent;
    b->children = b->children_held = 0;
    b->bucket_prev = KVF_KV_NO_BLOCK;
    b->bucket_next = *bucket;
    if (*bucket != KVF_KV_NO_BLOCK) kv->blocks[*bucket].bucket_prev = i;
    *bucket = i;
    b->indexed = true;
    kv->indexed++;
    if (parent != KVF_KV_NO_BLOCK) {
        kv->blocks[parent].children++;
        if (!MUTANT(12)) kv->blocks[parent].children_held++; /* b is pinned by whoever seals it */
    }
    kv_event_add(kv, true, name);
}

/* Only for a leaf, or when all blocks are removed at once. b must not be in the list of evictable blocks, and if b was
 * held the caller puts the parent's children_held right. */
void kv_index_remove(kvf_kv *kv, kv_block *b) {
    if (b->bucket_prev == KVF_KV_NO_BLOCK)
        *kv_bucket(kv, b->name) = b->bucket_next;
    else
        kv->blocks[b->bucket_prev].bucket_next = b->bucket_next;
    if (b->bucket_next != KVF_KV_NO_BLOCK) kv->blocks[b->bucket_next].bucket_prev = b->bucket_prev;
    b->indexed = false;
    kv->indexed--;
    if (b->parent != KVF_KV_NO_BLOCK) kv->blocks[b->parent].children--;
    kv_event_add(kv, false, b->name);
}

bool kvf_kv_block_find(const kvf_kv *kv, kvf_hash128 name, kvf_block_info *out) {
    for (uint32_t i = *kv_bucket(kv, name); i != KVF_KV_NO_BLOCK; i = kv->blocks[i].bucket_next)
        if (kvf_hash128_equal(kv->blocks[i].name, name)) return kvf_kv_block_at(kv, i, out);
    return false;
}

uint32_t kvf_kv_match(kvf_kv *kv, kvf_hash128 root, const uint32_t *tokens, uint32_t blocks_max, kvf_block_id *out) {
    uint32_t n = 0, parent = KVF_KV_NO_BLOCK;
    kvf_hash128 name = root;
    while (n < blocks_max) {
        const uint32_t *part = tokens + (size_t)n * KVF_KV_BLOCK_TOKENS;
        name = kvf_kv_next(name, part);
        const kv_block *b = kv_index_find(kv, name, root, parent, part);
        if (!b) break;
        out[n++] = kv_id(kv, b);
        parent = (uint32_t)(b - kv->blocks);
    }
    kv->counts.hits += n;
    kv->counts.misses += blocks_max - n;
    return n;
}

/* Sealing */

/* The caller's pin goes from b to its indexed twin. Letting go of the copy comes first: when that frees it, its room
 * pays for the twin, so that a full pool does not keep two copies. */
static kvf_status kv_seal_as_twin(kvf_kv *kv, kv_block *b, kv_block *twin, kvf_block_id *now_block) {
    bool frees_copy = b->pins == 1 && b->uses == 0;
    kvf_block_id twin_id = kv_id(kv, twin), copy_id = kv_id(kv, b);
    kv_set_state(kv, b, KVF_BLOCK_SEALED);
    if (kv_evictable(twin) && !frees_copy && kvf_kv_room(kv) <= 0) return KVF_AGAIN;
    kvf_kv_unpin(kv, copy_id);
    kvf_status status = kvf_kv_pin(kv, twin_id);
    KVF_ASSERT(status == KVF_OK); /* its parent is held by the caller, and there is room */
    kv->counts.duplicates_dropped++;
    *now_block = twin_id;
    return KVF_OK;
}

kvf_status kvf_kv_seal(kvf_kv *kv, kvf_block_id block, kvf_hash128 root, kvf_block_id parent,
    const uint32_t tokens[KVF_KV_BLOCK_TOKENS], kvf_block_id *now_block) {
    kv_block *b = kv_get(kv, block), *up = NULL;
    if (!b) return KVF_ERR_STALE;
    if (b->state != KVF_BLOCK_FILLING || b->pins == 0) return KVF_ERR_INVALID;
    kvf_hash128 above = root;
    if (!kvf_block_id_equal(parent, KVF_BLOCK_NONE)) {
        up = kv_get(kv, parent);
        if (!up) return KVF_ERR_STALE;
        if (up->state != KVF_BLOCK_SEALED || !kv_held(up)) return KVF_ERR_INVALID;
        above = up->name;
    }
    if (up && !up->indexed) { /* a chain with a hole cannot be found: private */
        kv_set_state(kv, b, KVF_BLOCK_SEALED);
        *now_block = block;
        return KVF_OK;
    }
    uint32_t parent_index = up ? parent.index : KVF_KV_NO_BLOCK;
    kvf_hash128 name = kvf_kv_next(above, tokens);
    kv_block *twin = MUTANT(7) ? NULL : kv_index_find(kv, name, root, parent_index, tokens);
    *now_block = block;
    if (twin) return kv_seal_as_twin(kv, b, twin, now_block);
    kv_set_state(kv, b, KVF_BLOCK_SEALED);
    kv_index_add(kv, b, name, root, parent_index, tokens);
    return KVF_OK;
}

uint32_t kvf_kv_flush(kvf_kv *kv) {
    uint32_t freed = 0;
    for (uint32_t i = 0; i < kv->counts.total; i++) {
        kv_block *b = &kv->blocks[i];
        if (!b->indexed || (MUTANT(11) && b->pins > 0)) continue;
        if (kv_evictable(b)) kv_lru_remove(kv, b);
        kv_index_remove(kv, b);
    }
    /* Only now, since a block's place names it to its children until they are gone from the index too. */
    for (uint32_t i = 0; i < kv->counts.total; i++) {
        kv_block *b = &kv->blocks[i];
        if (b->state != KVF_BLOCK_SEALED || b->indexed) continue;
        b->children_held = 0;
        kv_free_if_unused(kv, b);
        freed += b->state == KVF_BLOCK_FREE;
    }
    return freed;
}
