/* core_audit.c - checks of both halves against their own books and the block pool: slow, for tests, the simulator and
 * `kvferry audit`. */
#include "core_int.h"

static const char *rx_check_entry(const kvf_rx *rx, const rx_grant *g, uint32_t i, uint32_t *done, uint32_t *moving) {
    const uint64_t *landed = rx_landed(rx, g, i), *going = rx_moving(rx, g, i), *counted = rx_counted(rx, g, i);
    const rx_entry *e = &g->entries[i];
    if (i > 0 && g->entries[i - 1].logical >= e->logical) return "entries out of order";
    uint32_t landed_here = bits_count(landed, rx->words), moving_here = bits_count(going, rx->words);
    *moving += moving_here;
    for (uint32_t w = 0; w < rx->words; w++) {
        if (landed[w] & going[w]) return "a landed page is being written";
        if (counted[w] & ~landed[w]) return "a page is counted that has not landed";
        if (e->listed) *done += (uint32_t)__builtin_popcountll(landed[w] & counted[w]);
    }
    if (!e->listed && landed_here != rx->config.layers) return "a carried block is not whole";
    if (e->block.index == KVF_KV_NO_BLOCK) return landed_here + moving_here ? "pages without a block" : NULL;
    kvf_block_info info;
    if (!kvf_kv_block_at(rx->kv, e->block.index, &info) || !kvf_block_id_equal(info.id, e->block))
        return "block of another generation";
    if (info.state != KVF_BLOCK_FILLING || info.pins != 1) return "block not pinned once by its grant";
    if (info.uses != moving_here) return "uses differ from landings under way";
    return NULL;
}

static const char *rx_check_grant(const kvf_rx *rx, const rx_grant *g) {
    uint32_t listed = 0, spent = 0, done = 0, moving = 0;
    for (uint32_t i = 0; i < g->entries_count; i++) {
        const char *wrong = rx_check_entry(rx, g, i, &done, &moving);
        if (wrong) return wrong;
        listed += g->entries[i].listed;
        spent += g->entries[i].block.index != KVF_KV_NO_BLOCK;
    }
    if (listed != g->listed_count) return "listed_count";
    if (spent != g->blocks_spent) return "blocks_spent";
    if (done != g->pages_done) return "pages_done";
    if (moving != g->moving) return "moving";
    if (g->state == RX_OFFERED && g->link != KVF_LINK_NONE) return "a link without OPEN";
    return NULL;
}

kvf_status kvf_rx_audit(const kvf_rx *rx, kvf_error *err) {
    uint32_t untold = 0;
    for (uint32_t i = 0; i < rx->config.grants_max; i++) {
        const rx_grant *g = &rx->grants[i];
        untold += g->say_opened || g->say_missing || g->state == RX_COMMITTED || g->state == RX_LOST;
        const char *wrong = rx_live(g) ? rx_check_grant(rx, g) : NULL;
        if (wrong) return kvf_fail(err, KVF_ERR_INTERNAL, "grant %llx: %s", (unsigned long long)g->id, wrong);
    }
    if (untold != rx->untold) return kvf_fail(err, KVF_ERR_INTERNAL, "untold %u, counted %u", rx->untold, untold);
    return KVF_OK;
}

static const char *tx_check_handoff(const kvf_tx *tx, const tx_handoff *h) {
    uint32_t due = 0, moving = 0, sent = 0;
    for (uint32_t i = 0; i < h->entries_count; i++) {
        const uint64_t *row = tx_row(tx, h, i, ROW_READY);
        due += bits_count(row + ROW_DUE * tx->words, tx->words);
        moving += bits_count(row + ROW_MOVING * tx->words, tx->words);
        sent += bits_count(row + ROW_SENT * tx->words, tx->words);
        for (uint32_t w = 0; w < tx->words; w++) {
            uint64_t other =
                row[ROW_DUE * tx->words + w] | row[ROW_MOVING * tx->words + w] | row[ROW_SENT * tx->words + w];
            if (other & ~row[w]) return "a page left before it was ready";
        }
    }
    if (h->state != TX_ENDING && due != h->due_count) return "due_count";
    if (moving != h->moving_now + h->moving_old) return "moving";
    if (sent != h->sent_count) return "sent_count";
    return NULL;
}

kvf_status kvf_tx_audit(const kvf_tx *tx, kvf_error *err) {
    uint32_t active = 0, moving = 0, out = 0;
    for (uint32_t i = 0; i < tx->config.handoffs_max; i++) {
        const tx_handoff *h = &tx->handoffs[i];
        if (h->state == TX_FREE) continue;
        active++;
        moving += h->moving_now + h->moving_old;
        const char *wrong = tx_check_handoff(tx, h);
        if (wrong)
            return kvf_fail(
                err, KVF_ERR_INTERNAL, "hand-off %u of grant %llx: %s", i, (unsigned long long)h->grant, wrong);
    }
    for (uint32_t i = 0; i < tx->sendings_used; i++) {
        const tx_sending *s = &tx->sendings[i];
        if (!(s->serial & 1)) continue;
        out++;
        kvf_block_info info;
        if (!kvf_kv_block_at(tx->kv, s->block.index, &info) || !kvf_block_id_equal(info.id, s->block) || info.uses == 0)
            return kvf_fail(
                err, KVF_ERR_INTERNAL, "page of block %u.%u leaves without a use", s->block.index, s->block.generation);
    }
    if (active != tx->active || moving != out)
        return kvf_fail(err, KVF_ERR_INTERNAL, "active %u of %u, in flight %u of %u", tx->active, active, moving, out);
    return KVF_OK;
}
