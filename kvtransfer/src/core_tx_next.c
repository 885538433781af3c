/* core_tx_next.c - what the sending half hands out: goodbyes, ends, then frames and pages of the hand-offs in turn. */
#include "core_int.h"

typedef bool (*room_fn)(void *self, kvf_link_id link);

/* Takes the page at (entry, layer) if it is due and no earlier sending of it is under way. */
static bool tx_try_page(kvf_tx *tx, tx_handoff *h, uint32_t entry, uint32_t layer) {
    uint64_t *due = tx_row(tx, h, entry, ROW_DUE), *moving = tx_row(tx, h, entry, ROW_MOVING);
    if (!bit_get(due, layer) || bit_get(moving, layer)) return false;
    bit_clear(due, layer);
    bit_set(moving, layer);
    h->due_count--;
    return true;
}

/* Walks the ranges in the order in which they became ready. */
static bool tx_pick_in_order(kvf_tx *tx, tx_handoff *h, uint32_t *entry, uint32_t *layer) {
    while (h->ranges_count > 0) {
        const tx_range *r = &h->ranges[h->ranges_head];
        bool all = r->layer == KVF_TX_ALL_LAYERS;
        while (h->at_entry < r->end_entry) {
            *entry = h->at_entry;
            *layer = all ? h->at_layer : r->layer;
            if (!all || ++h->at_layer == tx->config.layers) {
                h->at_layer = 0;
                h->at_entry++;
            }
            if (tx_try_page(tx, h, *entry, *layer)) return true;
        }
        h->ranges_head = (h->ranges_head + 1) % tx->ranges_max;
        h->ranges_count--;
        h->at_entry = h->ranges_count ? h->ranges[h->ranges_head].first_entry : 0;
        h->at_layer = 0;
    }
    return false;
}

bool kvf_tx_pick_page(kvf_tx *tx, tx_handoff *h, uint32_t *entry, uint32_t *layer) {
    if (h->due_count == 0) return false;
    if (tx_pick_in_order(tx, h, entry, layer)) return true;
    /* What is still due was asked for again, or did not leave the first time. */
    for (uint32_t i = 0; i < h->entries_count; i++) {
        uint32_t e = (h->scan_entry + i) % h->entries_count;
        const uint64_t *due = tx_row(tx, h, e, ROW_DUE), *moving = tx_row(tx, h, e, ROW_MOVING);
        for (uint32_t w = 0; w < tx->words; w++) {
            uint64_t free_bits = due[w] & ~moving[w];
            if (!free_bits) continue;
            *entry = h->scan_entry = e;
            *layer = w * 64 + (uint32_t)__builtin_ctzll(free_bits);
            return tx_try_page(tx, h, *entry, *layer);
        }
    }
    return false;
}

static uint32_t tx_link_moving(const kvf_tx *tx, kvf_link_id link) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < tx->active; i++)
        if (tx_at(tx, i)->link == link) n += tx_at(tx, i)->moving_now;
    return n;
}

bool kvf_tx_waits(const kvf_tx *tx, kvf_link_id link) {
    for (uint32_t i = 0; i < tx->active; i++) {
        const tx_handoff *h = tx_at(tx, i);
        if (h->link != link || h->moving_now == 0) continue;
        if (h->state == TX_ENDING || (h->finished && h->due_count == 0)) return true;
    }
    return tx->sendings_free >= tx->sendings_max || tx_link_moving(tx, link) >= tx->config.inflight_max;
}

bool kvf_tx_uses(const kvf_tx *tx, kvf_link_id link) {
    for (uint32_t i = 0; i < tx->active; i++)
        if (tx_at(tx, i)->link == link) return true;
    return false;
}

static bool tx_give_page(kvf_tx *tx, tx_handoff *h, kvf_tx_act *act) {
    if (h->due_count == 0 || tx->sendings_free >= tx->sendings_max) return false;
    if (tx_link_moving(tx, h->link) >= tx->config.inflight_max) return false;
    uint32_t entry, layer;
    if (!kvf_tx_pick_page(tx, h, &entry, &layer)) return false;
    kvf_block_id block = h->entries[entry].block;
    kvf_status used = kvf_kv_use_begin(tx->kv, block);
    KVF_ASSERT(used == KVF_OK); /* the caller keeps it pinned until END */
    uint32_t index = tx->sendings_free;
    tx->sendings_used = KVF_MAX(tx->sendings_used, index + 1);
    tx_sending *s = &tx->sendings[index];
    tx->sendings_free = s->next_free;
    s->serial++;
    s->slot = (uint32_t)(h - tx->handoffs);
    s->entry = entry;
    s->layer = layer;
    s->link_serial = h->link_serial;
    s->block = block;
    h->moving_now++;
    act->kind = KVF_TX_PAGE;
    act->header = (kvf_page_header){
        .grant = h->grant, .block = h->entries[entry].logical, .layer = layer, .len_bytes = tx->config.page_bytes};
    act->block = block;
    act->token = (uint64_t)s->serial << 32 | index;
    return true;
}

static bool tx_commit_is_due(const kvf_tx *tx, const tx_handoff *h) {
    return h->state == TX_MOVING && h->finished && !h->held && h->due_count == 0 && h->moving_now == 0 &&
           h->sent_count == h->entries_count * tx->config.layers;
}

static bool tx_give(kvf_tx *tx, tx_handoff *h, kvf_tx_act *act) {
    act->link = h->link;
    act->id = (uint32_t)h->generation << 16 | (uint32_t)(h - tx->handoffs);
    if (h->say_open) {
        h->say_open = false;
        h->opened_once = true;
        act->kind = KVF_TX_FRAME;
        act->frame.kind = KVF_FRAME_OPEN;
        act->frame.open.grant = h->grant;
        act->frame.open.request = h->request;
        act->frame.open.attempt = h->attempt;
        act->frame.open.turn = h->link_serial;
        memcpy(act->frame.open.proof, h->proof, sizeof h->proof);
        return true;
    }
    if (h->state != TX_MOVING) return false;
    if (tx_give_page(tx, h, act)) return true;
    if (!tx_commit_is_due(tx, h)) return false;
    tx_set_state(h, TX_COMMITTING);
    h->commit_said = true;
    h->hold_from_ns = tx->now_ns;
    act->kind = KVF_TX_FRAME;
    act->frame.kind = KVF_FRAME_COMMIT;
    act->frame.commit.grant = h->grant;
    act->frame.commit.page_count = h->sent_count;
    act->frame.commit.digest = h->digest;
    act->frame.commit.payload = (kvf_span){h->payload, h->payload_bytes};
    return true;
}

static void tx_tell_end(kvf_tx *tx, tx_handoff *h, kvf_tx_act *act) {
    act->kind = KVF_TX_END;
    act->link = h->link;
    act->id = (uint32_t)h->generation << 16 | (uint32_t)(h - tx->handoffs);
    act->result = h->result;
    act->pages = h->pages;
    act->bytes = h->bytes;
    act->first_page_ns = h->first_page_ns;
    act->finished_ns = h->finished_ns;
    act->ended_ns = h->ended_ns;
    tx_set_state(h, TX_FREE);
    uint32_t place = 0;
    while (tx_at(tx, place) != h) place++;
    tx->live[place] = tx->live[--tx->active];
}

static bool tx_give_goodbye(kvf_tx *tx, room_fn link_has_room, void *self, kvf_tx_act *act) {
    for (uint32_t i = 0; i < tx->goodbyes_count; i++) {
        tx_goodbye g = tx->goodbyes[i];
        if (link_has_room && !link_has_room(self, g.link)) continue;
        memmove(&tx->goodbyes[i], &tx->goodbyes[i + 1], (tx->goodbyes_count - i - 1) * sizeof g);
        tx->goodbyes_count--;
        act->kind = KVF_TX_FRAME;
        act->link = g.link;
        act->frame.kind = KVF_FRAME_CANCEL;
        act->frame.cancel.grant = g.grant;
        return true;
    }
    return false;
}

bool kvf_tx_next(kvf_tx *tx, bool (*link_has_room)(void *self, kvf_link_id link), void *self, kvf_tx_act *act) {
    memset(act, 0, sizeof *act);
    if (tx->goodbyes_count > 0 && tx_give_goodbye(tx, link_has_room, self, act)) return true;
    if (tx->active == 0) return false;
    for (uint32_t i = 0; i < tx->active; i++) {
        tx_handoff *h = tx_at(tx, i);
        if (h->state != TX_ENDING || (h->moving_now + h->moving_old > 0 && !KVF_MUTATED(MUTANT_END_IN_FLIGHT)))
            continue;
        if (KVF_MUTATED(MUTANT_END_IN_FLIGHT)) h->moving_now = h->moving_old = 0;
        tx_tell_end(tx, h, act);
        return true;
    }
    for (uint32_t i = 0; i < tx->active; i++) {
        uint32_t place = (tx->turn + i) % tx->active;
        tx_handoff *h = tx_at(tx, place);
        if (h->state == TX_ENDING || h->link == KVF_LINK_NONE) continue;
        if (!h->say_open && h->state != TX_MOVING) continue;
        if (link_has_room && !link_has_room(self, h->link)) continue;
        if (!tx_give(tx, h, act)) continue;
        tx->turn = place + 1;
        return true;
    }
    return false;
}
