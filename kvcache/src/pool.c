/* The pool: states, pins, uses, booked room, eviction. Who may call: the node core that owns the kvf_kv, one call at a
 * time.
 *
 *   1. free + filling + sealed = total; only kv_set_state changes a state, and it keeps these three.
 *   2. free + evictable - booked >= 0 after every call: book, pin and use_begin ask kvf_kv_room first, all else only
 * adds room.
 *   3. A block reaches FREE only with pins = uses = 0 and outside the index; its generation changes exactly then.
 *   4. A block is in the list of evictable blocks exactly while it is indexed and not held. */
#include "kvcache_int.h"

static kvf_kv *kv_layout(kvf_arena *arena, const kvf_kv_config *config) {
    uint64_t buckets = 1;
    while (buckets < 2ull * config->blocks) buckets *= 2;
    kvf_kv *kv = kvf_arena_take(arena, sizeof *kv, 64);
    kv_block *blocks = kvf_arena_take(arena, sizeof *blocks * (size_t)config->blocks, 64);
    uint32_t *table = KVF_ARENA_NEW(arena, uint32_t, buckets);
    kvf_kv_event *events = KVF_ARENA_NEW(arena, kvf_kv_event, config->events_max);
    uint32_t *scratch = KVF_ARENA_NEW(arena, uint32_t, 3 * (size_t)config->blocks);
    if (!kv) return NULL;
    kv->blocks = blocks;
    kv->buckets = table;
    kv->bucket_mask = (uint32_t)(buckets - 1);
    kv->events = events;
    kv->events_max = config->events_max;
    kv->event_next = 1;
    kv->audit_children = scratch;
    kv->audit_held = scratch + config->blocks;
    kv->audit_order = scratch + 2 * (size_t)config->blocks;
    return kv;
}

static void kv_config_check(const kvf_kv_config *config) {
    KVF_ASSERT(config->blocks >= 1 && config->blocks <= UINT32_MAX / 2);
    KVF_ASSERT(config->events_max >= 1 && (config->events_max & (config->events_max - 1)) == 0);
}

size_t kvf_kv_size(const kvf_kv_config *config) {
    kv_config_check(config);
    kvf_arena measure = {0};
    (void)kv_layout(&measure, config);
    return measure.used_bytes;
}

kvf_kv *kvf_kv_init(void *memory, const kvf_kv_config *config) {
    kv_config_check(config);
    KVF_ASSERT(memory && (uintptr_t)memory % 64 == 0);
    kvf_arena arena = {.base = memory, .size_bytes = kvf_kv_size(config), .zeroed = true};
    kvf_kv *kv = kv_layout(&arena, config);
    for (uint64_t i = 0; i <= kv->bucket_mask; i++) kv->buckets[i] = KVF_KV_NO_BLOCK;
    /* It is all written once, sooner or later: now, so that memory does not grow while events come. */
    memset(kv->events, 0, sizeof *kv->events * config->events_max);
    kv->free_top = kv->lru_first = kv->lru_last = KVF_KV_NO_BLOCK;
    for (uint32_t i = config->blocks; i-- > 0;) { /* block 0 is taken first */
        kv->blocks[i].generation = 1;
        kv->blocks[i].list_next = kv->free_top;
        kv->free_top = i;
    }
    kv->counts.total = kv->counts.free = config->blocks;
    return kv;
}

kvf_block_id kv_id(const kvf_kv *kv, const kv_block *b) {
    return (kvf_block_id){(uint32_t)(b - kv->blocks), b->generation};
}

kv_block *kv_get(const kvf_kv *kv, kvf_block_id id) {
    if (id.index >= kv->counts.total) return NULL;
    kv_block *b = &kv->blocks[id.index];
    return b->generation == id.generation && b->state != KVF_BLOCK_FREE ? b : NULL;
}

void kvf_kv_count(const kvf_kv *kv, kvf_kv_counts *out) { *out = kv->counts; }

bool kvf_kv_block_at(const kvf_kv *kv, uint32_t index, kvf_block_info *out) {
    if (index >= kv->counts.total) return false;
    const kv_block *b = &kv->blocks[index];
    *out =
        (kvf_block_info){.id = kv_id(kv, b), .state = b->state, .pins = b->pins, .uses = b->uses, .tokens = b->filled};
    out->indexed = b->indexed;
    if (b->indexed) out->name = b->name;
    return true;
}

/* Room */

int64_t kvf_kv_room(const kvf_kv *kv) { return (int64_t)kv->counts.free + kv->counts.evictable - kv->counts.booked; }

kvf_status kvf_kv_book(kvf_kv *kv, uint32_t blocks) {
    if (kvf_kv_room(kv) < (int64_t)blocks) return KVF_AGAIN;
    kv->counts.booked += blocks;
    return KVF_OK;
}

void kvf_kv_unbook(kvf_kv *kv, uint32_t blocks) {
    KVF_ASSERT(blocks <= kv->counts.booked);
    kv->counts.booked -= blocks;
}

/* States and lists */

void kv_set_state(kvf_kv *kv, kv_block *b, kvf_block_state state) {
    kvf_kv_counts *c = &kv->counts;
    bool lawful = false
#define STATE(name)
#define MOVE(before, after, event) || (b->state == KVF_BLOCK_##before && state == KVF_BLOCK_##after)
#include "block_moves.h"
#undef STATE
#undef MOVE
        ;
    KVF_ASSERT(lawful);
    KVF_MOVE_SEEN(BLOCK, b->state, state);
    switch (b->state) {
    case KVF_BLOCK_FREE: c->free--; break;
    case KVF_BLOCK_FILLING:
        c->filling--;
        c->slots_empty -= KVF_KV_BLOCK_TOKENS - b->filled;
        break;
    case KVF_BLOCK_SEALED: c->sealed--; break;
    }
    b->state = state;
    switch (state) {
    case KVF_BLOCK_FREE:
        KVF_ASSERT(b->pins == 0 && b->uses == 0 && !b->indexed);
        c->free++;
        b->filled = 0;
        break;
    case KVF_BLOCK_FILLING:
        c->filling++;
        b->filled = 0;
        c->slots_empty += KVF_KV_BLOCK_TOKENS;
        break;
    case KVF_BLOCK_SEALED:
        c->sealed++;
        b->filled = KVF_KV_BLOCK_TOKENS;
        break;
    }
}

static void kv_lru_append(kvf_kv *kv, kv_block *b) {
    uint32_t i = (uint32_t)(b - kv->blocks);
    b->list_prev = kv->lru_last;
    b->list_next = KVF_KV_NO_BLOCK;
    if (kv->lru_last == KVF_KV_NO_BLOCK)
        kv->lru_first = i;
    else
        kv->blocks[kv->lru_last].list_next = i;
    kv->lru_last = i;
    kv->counts.evictable++;
}

void kv_lru_remove(kvf_kv *kv, kv_block *b) {
    if (b->list_prev == KVF_KV_NO_BLOCK)
        kv->lru_first = b->list_next;
    else
        kv->blocks[b->list_prev].list_next = b->list_next;
    if (b->list_next == KVF_KV_NO_BLOCK)
        kv->lru_last = b->list_prev;
    else
        kv->blocks[b->list_next].list_prev = b->list_prev;
    kv->counts.evictable--;
}

/* After something that held b went: an indexed block becomes evictable, and so may its ancestors, one after the other.
 * Each step of the walk undoes one earlier hold, so that a call costs O(1) over time. */
static void kv_let_go(kvf_kv *kv, kv_block *b) {
    while (b && kv_evictable(b)) {
        kv_lru_append(kv, b);
        if (b->parent == KVF_KV_NO_BLOCK || MUTANT(12)) return;
        b = &kv->blocks[b->parent];
        KVF_ASSERT(b->children_held > 0);
        b->children_held--;
    }
}

/* Before something starts to hold b: an evictable block leaves the list. Its parent must be held already, so that a
 * call costs one unit of room and not one for every ancestor. */
static kvf_status kv_hold(kvf_kv *kv, kv_block *b) {
    if (!kv_evictable(b)) return KVF_OK;
    kv_block *parent = b->parent == KVF_KV_NO_BLOCK ? NULL : &kv->blocks[b->parent];
    if (parent && !kv_held(parent) && !MUTANT(12)) return KVF_ERR_INVALID;
    if (kvf_kv_room(kv) <= 0 && !MUTANT(3)) return KVF_AGAIN;
    kv_lru_remove(kv, b);
    if (parent && !MUTANT(12)) parent->children_held++;
    return KVF_OK;
}

void kv_free_if_unused(kvf_kv *kv, kv_block *b) {
    if (b->indexed || b->pins > 0 || (b->uses > 0 && !MUTANT(4))) return;
    kv_set_state(kv, b, KVF_BLOCK_FREE);
    if (!MUTANT(1)) b->generation++;
    if (b->generation == 0) b->generation = 1; /* KVF_BLOCK_NONE keeps 0 for itself */
    b->list_next = kv->free_top;
    kv->free_top = (uint32_t)(b - kv->blocks);
}

static void kv_evict(kvf_kv *kv) {
    uint32_t i = MUTANT(10) ? kv->lru_last : kv->lru_first;
    KVF_ASSERT(i != KVF_KV_NO_BLOCK);
    kv_block *b = &kv->blocks[i];
    KVF_ASSERT(b->children == 0 && b->pins == 0 && b->uses == 0);
    kv_lru_remove(kv, b);
    kv_index_remove(kv, b);
    kv_free_if_unused(kv, b);
    kv->counts.evictions++;
}

/* Pins */

uint32_t kvf_kv_pin_cost(const kvf_kv *kv, const kvf_block_id *blocks, uint32_t count) {
    uint32_t cost = 0;
    for (uint32_t i = 0; i < count; i++) {
        const kv_block *b = kv_get(kv, blocks[i]);
        cost += b && kv_evictable(b);
    }
    return cost;
}

kvf_status kvf_kv_pin(kvf_kv *kv, kvf_block_id block) {
    kv_block *b = kv_get(kv, block);
    if (!b) return KVF_ERR_STALE;
    kvf_status status = kv_hold(kv, b);
    if (status) return status;
    KVF_ASSERT(b->pins < UINT32_MAX);
    if (b->pins++ == 0) kv->counts.pinned++;
    return KVF_OK;
}

void kvf_kv_unpin(kvf_kv *kv, kvf_block_id block) {
    kv_block *b = kv_get(kv, block);
    KVF_ASSERT(b && b->pins > 0);
    if (--b->pins > 0) return;
    kv->counts.pinned--;
    kv_let_go(kv, b);
    kv_free_if_unused(kv, b);
}

kvf_status kvf_kv_take(kvf_kv *kv, kvf_block_id *out) {
    if (kv->counts.booked == 0) return KVF_ERR_NO_ROOM;
    if (kv->free_top == KVF_KV_NO_BLOCK) kv_evict(kv);
    kv_block *b = &kv->blocks[kv->free_top];
    kv->free_top = b->list_next;
    if (!MUTANT(9)) kv->counts.booked--;
    kv_set_state(kv, b, KVF_BLOCK_FILLING);
    b->pins = 1;
    kv->counts.pinned++;
    *out = kv_id(kv, b);
    return KVF_OK;
}

void kvf_kv_set_filled(kvf_kv *kv, kvf_block_id block, uint32_t tokens) {
    kv_block *b = kv_get(kv, block);
    KVF_ASSERT(b && b->state == KVF_BLOCK_FILLING && tokens <= KVF_KV_BLOCK_TOKENS);
    if (tokens <= b->filled) return;
    kv->counts.slots_empty -= tokens - b->filled;
    b->filled = tokens;
}

/* Uses */

kvf_status kvf_kv_use_begin(kvf_kv *kv, kvf_block_id block) {
    kv_block *b = kv_get(kv, block);
    if (!b) return KVF_ERR_STALE;
    kvf_status status = MUTANT(8) ? KVF_OK : kv_hold(kv, b);
    if (status) return status;
    KVF_ASSERT(b->uses < UINT32_MAX);
    if (b->uses++ == 0) kv->counts.in_use++;
    return KVF_OK;
}

void kvf_kv_use_end(kvf_kv *kv, kvf_block_id block) {
    kv_block *b = kv_get(kv, block);
    KVF_ASSERT(b && b->uses > 0);
    if (--b->uses > 0) return;
    kv->counts.in_use--;
    if (b->pins > 0) return;
    if (!MUTANT(8)) kv_let_go(kv, b);
    kv_free_if_unused(kv, b);
}
