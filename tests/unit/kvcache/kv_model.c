#include "kv_model.h"

static bool is_child_of(const model_block *child, const model_block *parent) {
    return child->indexed && parent->indexed && child->root == parent->root && child->depth == parent->depth + 1 &&
           memcmp(child->path, parent->path, parent->depth) == 0;
}

bool model_held(const model *m, uint32_t i) {
    const model_block *b = &m->at[i];
    if (b->pins > 0 || b->uses > 0) return true;
    for (uint32_t j = 0; j < m->blocks; j++)
        if (is_child_of(&m->at[j], b) && model_held(m, j)) return true;
    return false;
}

static bool evictable(const model *m, uint32_t i) { return m->at[i].indexed && !model_held(m, i); }

bool model_live(const model *m, kvf_block_id id) {
    return id.index < m->blocks && m->at[id.index].generation == id.generation &&
           m->at[id.index].state != KVF_BLOCK_FREE;
}

/* Stamps what became evictable in the call that ends, deepest first. */
static void settle(model *m) {
    for (uint32_t depth = MODEL_DEPTH; depth > 0; depth--)
        for (uint32_t i = 0; i < m->blocks; i++)
            if (m->at[i].indexed && m->at[i].depth == depth && evictable(m, i) && !m->at[i].was_evictable)
                m->at[i].let_go = ++m->clock;
    for (uint32_t i = 0; i < m->blocks; i++) m->at[i].was_evictable = evictable(m, i);
}

static void free_block(model *m, uint32_t i) {
    model_block *b = &m->at[i];
    uint32_t generation = b->generation + 1;
    *b = (model_block){.state = KVF_BLOCK_FREE, .generation = generation};
}

static void free_if_unused(model *m, uint32_t i) {
    model_block *b = &m->at[i];
    if (b->state != KVF_BLOCK_FREE && !b->indexed && b->pins == 0 && b->uses == 0) free_block(m, i);
}

void model_init(model *m, uint32_t blocks) {
    memset(m, 0, sizeof *m);
    m->blocks = blocks;
    for (uint32_t i = 0; i < blocks; i++) m->at[i].generation = 1;
}

void model_count(const model *m, kvf_kv_counts *out) {
    kvf_kv_counts c = {.total = m->blocks, .booked = m->booked, .evictions = m->evictions, .hits = m->hits};
    c.misses = m->misses;
    c.duplicates_dropped = m->duplicates;
    for (uint32_t i = 0; i < m->blocks; i++) {
        const model_block *b = &m->at[i];
        c.free += b->state == KVF_BLOCK_FREE;
        c.filling += b->state == KVF_BLOCK_FILLING;
        c.sealed += b->state == KVF_BLOCK_SEALED;
        c.pinned += b->pins > 0;
        c.in_use += b->uses > 0;
        c.evictable += evictable(m, i);
        if (b->state == KVF_BLOCK_FILLING) c.slots_empty += 16 - b->filled;
    }
    *out = c;
}

int64_t model_room(const model *m) {
    kvf_kv_counts c;
    model_count(m, &c);
    return (int64_t)c.free + c.evictable - c.booked;
}

kvf_status model_book(model *m, uint32_t blocks) {
    if (model_room(m) < (int64_t)blocks) return KVF_AGAIN;
    m->booked += blocks;
    return KVF_OK;
}

void model_unbook(model *m, uint32_t blocks) { m->booked -= blocks; }

static int find(const model *m, uint32_t root, const uint8_t *path, uint32_t depth) {
    for (uint32_t i = 0; i < m->blocks; i++) {
        const model_block *b = &m->at[i];
        if (b->indexed && b->root == root && b->depth == depth && memcmp(b->path, path, depth) == 0) return (int)i;
    }
    return -1;
}

uint32_t model_match(model *m, uint32_t root, const uint8_t *path, uint32_t blocks_max, kvf_block_id *out) {
    uint32_t n = 0;
    for (int i; n < blocks_max && (i = find(m, root, path, n + 1)) >= 0; n++)
        out[n] = (kvf_block_id){(uint32_t)i, m->at[i].generation};
    m->hits += n;
    m->misses += blocks_max - n;
    return n;
}

static kvf_status may_hold(const model *m, kvf_block_id id) {
    if (!model_live(m, id)) return KVF_ERR_STALE;
    if (!evictable(m, id.index)) return KVF_OK;
    for (uint32_t i = 0; i < m->blocks; i++)
        if (is_child_of(&m->at[id.index], &m->at[i]) && !model_held(m, i)) return KVF_ERR_INVALID;
    return model_room(m) > 0 ? KVF_OK : KVF_AGAIN;
}

kvf_status model_pin(model *m, kvf_block_id id) {
    kvf_status status = may_hold(m, id);
    if (status) return status;
    m->at[id.index].pins++;
    settle(m);
    return KVF_OK;
}

void model_unpin(model *m, kvf_block_id id) {
    m->at[id.index].pins--;
    free_if_unused(m, id.index);
    settle(m);
}

kvf_status model_use_begin(model *m, kvf_block_id id) {
    kvf_status status = may_hold(m, id);
    if (status) return status;
    m->at[id.index].uses++;
    settle(m);
    return KVF_OK;
}

void model_use_end(model *m, kvf_block_id id) {
    m->at[id.index].uses--;
    free_if_unused(m, id.index);
    settle(m);
}

kvf_status model_take(const model *m, bool *free_choice, kvf_block_id *victim) {
    if (m->booked == 0) return KVF_ERR_NO_ROOM;
    *free_choice = false;
    for (uint32_t i = 0; i < m->blocks; i++) *free_choice |= m->at[i].state == KVF_BLOCK_FREE;
    uint64_t oldest = UINT64_MAX;
    for (uint32_t i = 0; i < m->blocks; i++) {
        if (!evictable(m, i) || m->at[i].let_go >= oldest) continue;
        oldest = m->at[i].let_go;
        *victim = (kvf_block_id){i, m->at[i].generation + 1};
    }
    return KVF_OK;
}

void model_took(model *m, kvf_block_id id) {
    model_block *b = &m->at[id.index];
    if (b->state != KVF_BLOCK_FREE) {
        free_block(m, id.index);
        m->evictions++;
    }
    b->state = KVF_BLOCK_FILLING;
    b->pins = 1;
    m->booked--;
    settle(m);
}

void model_set_filled(model *m, kvf_block_id id, uint32_t tokens) {
    m->at[id.index].filled = KVF_MAX(m->at[id.index].filled, tokens);
}

kvf_status model_seal(
    model *m, kvf_block_id id, uint32_t root, kvf_block_id parent, uint8_t symbol, kvf_block_id *now) {
    if (!model_live(m, id)) return KVF_ERR_STALE;
    model_block *b = &m->at[id.index], *up = NULL;
    if (b->state != KVF_BLOCK_FILLING || b->pins == 0) return KVF_ERR_INVALID;
    if (parent.index != KVF_KV_NO_BLOCK) {
        if (!model_live(m, parent)) return KVF_ERR_STALE;
        up = &m->at[parent.index];
        if (up->state != KVF_BLOCK_SEALED || !model_held(m, parent.index)) return KVF_ERR_INVALID;
    }
    kvf_status status = KVF_OK;
    int64_t room = model_room(m);
    *now = id;
    b->state = KVF_BLOCK_SEALED;
    b->filled = 16;
    if (!up || up->indexed) {
        b->root = up ? up->root : root;
        b->depth = up ? up->depth + 1 : 1;
        if (up) memcpy(b->path, up->path, up->depth);
        b->path[b->depth - 1] = symbol;
        int twin = find(m, b->root, b->path, b->depth);
        if (twin < 0) {
            b->indexed = true;
        } else if (evictable(m, (uint32_t)twin) && room <= 0 && (b->pins > 1 || b->uses > 0)) {
            status = KVF_AGAIN;
        } else {
            *now = (kvf_block_id){(uint32_t)twin, m->at[twin].generation};
            m->at[twin].pins++;
            b->pins--;
            free_if_unused(m, id.index);
            m->duplicates++;
        }
    }
    settle(m);
    return status;
}

uint32_t model_flush(model *m) {
    uint32_t freed = 0;
    for (uint32_t i = 0; i < m->blocks; i++) {
        if (!m->at[i].indexed) continue;
        m->at[i].indexed = false;
        free_if_unused(m, i);
        freed += m->at[i].state == KVF_BLOCK_FREE;
    }
    settle(m);
    return freed;
}
