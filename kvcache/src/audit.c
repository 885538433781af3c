/* The audit: every count, list, link and rule of kvf/kvcache.h recomputed from the records alone and compared. It
 * trusts nothing that it checks: walks are bounded by the number of blocks, so that a damaged list ends the audit and
 * not the process. */
#include "kvcache_int.h"

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) return kvf_fail(err, KVF_ERR_INTERNAL, __VA_ARGS__);                                         \
    } while (0)

/* One record by itself: what its state allows. */
static kvf_status audit_block(const kvf_kv *kv, uint32_t i, kvf_error *err) {
    const kv_block *b = &kv->blocks[i];
    CHECK(b->generation != 0, "block %u: generation 0", i);
    CHECK(b->filled <= KVF_KV_BLOCK_TOKENS, "block %u: %u tokens", i, b->filled);
    switch (b->state) {
    case KVF_BLOCK_FREE:
        CHECK(b->pins == 0 && b->uses == 0, "block %u.%u: free with %u pins, %u uses", i, b->generation, b->pins,
            b->uses);
        CHECK(!b->indexed && b->filled == 0, "block %u.%u: free with a name or tokens", i, b->generation);
        return KVF_OK;
    case KVF_BLOCK_FILLING: CHECK(!b->indexed, "block %u.%u: indexed while filling", i, b->generation); break;
    case KVF_BLOCK_SEALED:
        CHECK(b->filled == KVF_KV_BLOCK_TOKENS, "block %u.%u: sealed with %u tokens", i, b->generation, b->filled);
        break;
    default: CHECK(false, "block %u.%u: state %d", i, b->generation, (int)b->state);
    }
    CHECK(b->indexed || b->pins > 0 || b->uses > 0, "block %u.%u: nobody's, yet not free", i, b->generation);
    CHECK(b->indexed || (b->children == 0 && b->children_held == 0), "block %u.%u: has children but no name", i,
        b->generation);
    return KVF_OK;
}

/* One indexed record against its parent and its bucket; counts it for its parent. */
static kvf_status audit_indexed(const kvf_kv *kv, uint32_t i, kvf_error *err) {
    const kv_block *b = &kv->blocks[i];
    kvf_hash128 above = b->root;
    if (b->parent != KVF_KV_NO_BLOCK) {
        CHECK(b->parent < kv->counts.total, "block %u.%u: parent %u of %u", i, b->generation, b->parent,
            kv->counts.total);
        const kv_block *up = &kv->blocks[b->parent];
        CHECK(up->indexed && up != b, "block %u.%u: parent %u is not indexed", i, b->generation, b->parent);
        CHECK(!kv_held(b) || kv_held(up), "block %u.%u: held, its parent %u is not", i, b->generation, b->parent);
        kv->audit_children[b->parent]++;
        kv->audit_held[b->parent] += kv_held(b);
        above = up->name;
    }
    CHECK(kvf_hash128_equal(b->name, kvf_kv_next(above, b->tokens)), "block %u.%u: name is not that of its tokens", i,
        b->generation);
    uint32_t steps = 0, at = kv->buckets[b->name.lo & kv->bucket_mask], prev = KVF_KV_NO_BLOCK;
    for (; at != i; prev = at, at = kv->blocks[at].bucket_next)
        CHECK(at < kv->counts.total && ++steps <= kv->counts.total, "block %u.%u: not in its bucket", i, b->generation);
    CHECK(b->bucket_prev == prev, "block %u.%u: bucket link back is wrong", i, b->generation);
    return KVF_OK;
}

static kvf_status audit_children(const kvf_kv *kv, kvf_error *err) {
    for (uint32_t i = 0; i < kv->counts.total; i++) {
        const kv_block *b = &kv->blocks[i];
        if (!b->indexed) continue;
        CHECK(b->children == kv->audit_children[i], "block %u.%u: %u children counted, %u found", i, b->generation,
            b->children, kv->audit_children[i]);
        CHECK(b->children_held == kv->audit_held[i], "block %u.%u: %u held children counted, %u found", i,
            b->generation, b->children_held, kv->audit_held[i]);
    }
    return KVF_OK;
}

/* The list of evictable blocks: exactly those that are, linked both ways, children before parents. */
static kvf_status audit_lru(const kvf_kv *kv, kvf_error *err) {
    uint32_t n = 0, prev = KVF_KV_NO_BLOCK;
    for (uint32_t i = kv->lru_first; i != KVF_KV_NO_BLOCK; prev = i, i = kv->blocks[i].list_next) {
        CHECK(i < kv->counts.total && n < kv->counts.evictable, "evictable list: longer than %u", kv->counts.evictable);
        const kv_block *b = &kv->blocks[i];
        CHECK(kv_evictable(b), "block %u.%u: in the evictable list, but held or without a name", i, b->generation);
        CHECK(b->list_prev == prev, "block %u.%u: evictable list link back is wrong", i, b->generation);
        kv->audit_order[i] = ++n;
    }
    CHECK(n == kv->counts.evictable && kv->lru_last == prev, "evictable list: %u of %u", n, kv->counts.evictable);
    for (uint32_t i = kv->lru_first; i != KVF_KV_NO_BLOCK; i = kv->blocks[i].list_next) {
        uint32_t up = kv->blocks[i].parent;
        CHECK(up == KVF_KV_NO_BLOCK || !kv_evictable(&kv->blocks[up]) || kv->audit_order[i] < kv->audit_order[up],
            "block %u: would be evicted after its parent %u", i, up);
    }
    return KVF_OK;
}

static kvf_status audit_free(const kvf_kv *kv, kvf_error *err) {
    uint32_t n = 0;
    for (uint32_t i = kv->free_top; i != KVF_KV_NO_BLOCK; i = kv->blocks[i].list_next) {
        CHECK(i < kv->counts.total && n < kv->counts.free, "free list: longer than %u", kv->counts.free);
        CHECK(kv->blocks[i].state == KVF_BLOCK_FREE, "block %u: in the free list, but not free", i);
        n++;
    }
    CHECK(n == kv->counts.free, "free list: %u of %u", n, kv->counts.free);
    return KVF_OK;
}

static kvf_status audit_counts(const kvf_kv *kv, const kvf_kv_counts *found, uint32_t indexed, kvf_error *err) {
    const kvf_kv_counts *c = &kv->counts;
    CHECK(c->free + c->filling + c->sealed == c->total, "free %u + filling %u + sealed %u is not total %u", c->free,
        c->filling, c->sealed, c->total);
    CHECK(c->free == found->free && c->filling == found->filling && c->sealed == found->sealed,
        "counted free %u filling %u sealed %u, found %u %u %u", c->free, c->filling, c->sealed, found->free,
        found->filling, found->sealed);
    CHECK(c->pinned == found->pinned, "counted pinned %u, found %u", c->pinned, found->pinned);
    CHECK(c->in_use == found->in_use, "counted in use %u, found %u", c->in_use, found->in_use);
    CHECK(c->evictable == found->evictable, "counted evictable %u, found %u", c->evictable, found->evictable);
    CHECK(c->slots_empty == found->slots_empty, "counted empty slots %llu, found %llu",
        (unsigned long long)c->slots_empty, (unsigned long long)found->slots_empty);
    CHECK(kv->indexed == indexed, "counted indexed %u, found %u", kv->indexed, indexed);
    CHECK(kvf_kv_room(kv) >= 0, "free %u + evictable %u - booked %u is below zero", c->free, c->evictable, c->booked);
    return KVF_OK;
}

kvf_status kvf_kv_audit(const kvf_kv *kv, kvf_error *err) {
    kvf_kv_counts found = {0};
    uint32_t indexed = 0;
    kvf_status status = KVF_OK;
    memset(kv->audit_children, 0, sizeof(uint32_t) * kv->counts.total);
    memset(kv->audit_held, 0, sizeof(uint32_t) * kv->counts.total);
    for (uint32_t i = 0; i < kv->counts.total; i++) {
        const kv_block *b = &kv->blocks[i];
        if ((status = audit_block(kv, i, err))) return status;
        if (b->indexed && (status = audit_indexed(kv, i, err))) return status;
        found.free += b->state == KVF_BLOCK_FREE;
        found.filling += b->state == KVF_BLOCK_FILLING;
        found.sealed += b->state == KVF_BLOCK_SEALED;
        found.pinned += b->pins > 0;
        found.in_use += b->uses > 0;
        found.evictable += kv_evictable(b);
        found.slots_empty += b->state == KVF_BLOCK_FREE ? 0 : KVF_KV_BLOCK_TOKENS - b->filled;
        indexed += b->indexed;
    }
    if ((status = audit_children(kv, err))) return status;
    if ((status = audit_lru(kv, err))) return status;
    if ((status = audit_free(kv, err))) return status;
    return audit_counts(kv, &found, indexed, err);
}
