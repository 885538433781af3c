/* core_tx.c - hand-offs of the sending node: events in. What kvf_tx_next hands out: core_tx_next.c.
 *
 *   WAITING --set_link--> OPENING --OPENED--> MOVING --all sent, finished--> COMMITTING --COMMITTED--> ENDING{OK}
 *      ^                     |                  ^  |                             |
 *      '----- link down -----+------------------|--+-----------------------------'   (ENDING{PEER_LOST} after
 * relink_ttl)
 *                                               '----------- MISSING ------------'
 *   any --cancel, GONE, hold ttl--> ENDING{why} --nothing in flight--> told once, slot free
 *
 * Invariants (core_audit.c): each page handed out holds one use on its block until its token is reported; moving_now +
 * moving_old tokens are out; due_count, sent_count equal the bit rows; a slot is freed only by its END. */
#include "core_int.h"

#define TX_ROUNDS_MAX 16 /* MISSINGs of one hand-off, besides those that a full one brings */

static void tx_layout(kvf_arena *a, const kvf_tx_config *c, kvf_tx **out) {
    kvf_tx *tx = KVF_ARENA_NEW(a, kvf_tx, 1);
    uint32_t words = bit_words(c->layers);
    uint32_t ranges_max = 2 * c->layers + c->blocks_max;
    tx_handoff *handoffs = KVF_ARENA_NEW(a, tx_handoff, c->handoffs_max);
    for (uint32_t i = 0; i < c->handoffs_max; i++) {
        tx_entry *entries = KVF_ARENA_NEW(a, tx_entry, c->blocks_max);
        uint64_t *bits = KVF_ARENA_NEW(a, uint64_t, (size_t)c->blocks_max * 4 * words);
        tx_range *ranges = KVF_ARENA_NEW(a, tx_range, ranges_max);
        uint8_t *payload = KVF_ARENA_NEW(a, uint8_t, KVF_FRAME_COMMIT_PAYLOAD_MAX);
        if (tx) {
            handoffs[i].entries = entries;
            handoffs[i].bits = bits;
            handoffs[i].ranges = ranges;
            handoffs[i].payload = payload;
        }
    }
    uint32_t sendings_max = c->handoffs_max * c->inflight_max;
    tx_sending *sendings = KVF_ARENA_NEW(a, tx_sending, sendings_max);
    uint32_t *live = KVF_ARENA_NEW(a, uint32_t, c->handoffs_max);
    uint32_t goodbyes_max = 4 * c->handoffs_max;
    tx_goodbye *goodbyes = KVF_ARENA_NEW(a, tx_goodbye, goodbyes_max);
    if (!tx) return;
    *tx = (kvf_tx){.config = *c,
        .words = words,
        .ranges_max = ranges_max,
        .handoffs = handoffs,
        .live = live,
        .sendings = sendings,
        .sendings_max = sendings_max,
        .goodbyes = goodbyes,
        .goodbyes_max = goodbyes_max};
    for (uint32_t i = 0; i < sendings_max; i++) sendings[i].next_free = i + 1;
    *out = tx;
}

size_t kvf_tx_size(const kvf_tx_config *config) {
    kvf_arena a = {0};
    tx_layout(&a, config, NULL);
    return a.used_bytes;
}

kvf_tx *kvf_tx_init(void *memory, const kvf_tx_config *config, kvf_kv *kv) {
    KVF_ASSERT(config->handoffs_max >= 1 && config->handoffs_max <= UINT16_MAX && config->inflight_max >= 1);
    KVF_ASSERT(config->layers >= 1 && config->blocks_max >= 1);
    kvf_arena a = {.base = memory, .size_bytes = kvf_tx_size(config), .zeroed = true};
    kvf_tx *tx = NULL;
    tx_layout(&a, config, &tx);
    tx->kv = kv;
    return tx;
}

static tx_handoff *tx_find(const kvf_tx *tx, kvf_tx_id id) {
    uint32_t slot = id & UINT16_MAX;
    if (slot >= tx->config.handoffs_max) return NULL;
    tx_handoff *h = &tx->handoffs[slot];
    return h->state != TX_FREE && h->generation == id >> 16 ? h : NULL;
}

/* The first entry whose logical block is >= logical. */
static uint32_t tx_lower_bound(const tx_handoff *h, uint64_t logical) {
    uint32_t low = 0, high = h->entries_count;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (h->entries[mid].logical < logical)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void tx_say_goodbye(kvf_tx *tx, const tx_handoff *h) {
    /* When nobody has room for so long that the list is full, the receiver's ttl does what the frame would have done.
     */
    if (h->link == KVF_LINK_NONE || !h->opened_once || tx->goodbyes_count == tx->goodbyes_max) return;
    tx->goodbyes[tx->goodbyes_count++] = (tx_goodbye){h->link, h->grant};
}

static void tx_end(kvf_tx *tx, tx_handoff *h, kvf_status result) {
    KVF_ASSERT(h->state != TX_FREE && h->state != TX_ENDING);
    tx_set_state(h, TX_ENDING);
    h->result = result;
    h->ended_ns = tx->now_ns;
    h->say_open = false;
    h->due_count = 0;
}

kvf_status kvf_tx_start(kvf_tx *tx, kvf_time_ns now, kvf_request_id request, uint32_t attempt, uint64_t grant,
    const uint8_t secret[16], const uint32_t *missing, uint32_t missing_count, kvf_tx_id *out) {
    KVF_ASSERT(missing_count <= tx->config.blocks_max);
    tx->now_ns = now;
    tx_handoff *h = NULL;
    for (uint32_t i = 0; i < tx->config.handoffs_max && !h; i++)
        if (tx->handoffs[i].state == TX_FREE) h = &tx->handoffs[i];
    if (!h) return KVF_AGAIN;
    uint16_t generation = (uint16_t)(h->generation + 1);
    if (generation == 0) generation = 1;
    *h = (tx_handoff){.generation = generation,
        .request = request,
        .attempt = attempt,
        .grant = grant,
        .link = KVF_LINK_NONE,
        .relink_until_ns = KVF_TIME_NEVER,
        .entries_count = missing_count,
        .entries = h->entries,
        .bits = h->bits,
        .ranges = h->ranges,
        .payload = h->payload};
    tx_set_state(h, TX_WAITING);
    memcpy(h->secret, secret, sizeof h->secret);
    memset(h->bits, 0, (size_t)missing_count * 4 * tx->words * sizeof *h->bits);
    for (uint32_t i = 0; i < missing_count; i++) {
        KVF_ASSERT(i == 0 || missing[i] > missing[i - 1]);
        h->entries[i] = (tx_entry){missing[i], KVF_BLOCK_NONE};
    }
    tx->live[tx->active++] = (uint32_t)(h - tx->handoffs);
    *out = (uint32_t)generation << 16 | (uint32_t)(h - tx->handoffs);
    return KVF_OK;
}

void kvf_tx_set_link(kvf_tx *tx, kvf_time_ns now, kvf_tx_id id, kvf_link_id link, const uint8_t nonce[16]) {
    KVF_ASSERT(link != KVF_LINK_NONE);
    tx->now_ns = now;
    tx_handoff *h = tx_find(tx, id);
    if (!h || h->state == TX_ENDING) return;
    tx_set_state(h, TX_OPENING);
    h->link = link;
    h->link_serial++;
    h->moving_old += h->moving_now;
    h->moving_now = 0;
    h->relink_until_ns = KVF_TIME_NEVER;
    h->hold_from_ns = now;
    h->say_open = true;
    h->opened_once = false;
    kvf_grant_proof(h->secret, nonce, h->grant, h->request, h->attempt, h->link_serial, h->proof);
}

void kvf_tx_set_block(kvf_tx *tx, kvf_tx_id id, uint32_t logical, kvf_block_id block) {
    tx_handoff *h = tx_find(tx, id);
    if (!h || h->state == TX_ENDING) return;
    uint32_t at = tx_lower_bound(h, logical);
    if (at < h->entries_count && h->entries[at].logical == logical) h->entries[at].block = block;
}

static void tx_page_due(kvf_tx *tx, tx_handoff *h, uint32_t entry, uint32_t layer) {
    uint64_t *due = tx_row(tx, h, entry, ROW_DUE);
    if (bit_get(due, layer)) return;
    bit_set(due, layer);
    h->due_count++;
}

static void tx_page_ready(kvf_tx *tx, tx_handoff *h, uint32_t entry, uint32_t layer) {
    uint64_t *ready = tx_row(tx, h, entry, ROW_READY);
    if (bit_get(ready, layer)) return;
    bit_set(ready, layer);
    tx_page_due(tx, h, entry, layer);
}

void kvf_tx_pages_ready(kvf_tx *tx, kvf_tx_id id, uint32_t first, uint32_t count, uint32_t layer) {
    tx_handoff *h = tx_find(tx, id);
    if (!h || h->state == TX_ENDING) return;
    KVF_ASSERT(layer == KVF_TX_ALL_LAYERS || layer < tx->config.layers);
    tx_range r = {tx_lower_bound(h, first), tx_lower_bound(h, (uint64_t)first + count), layer};
    if (r.first_entry == r.end_entry) return;
    for (uint32_t e = r.first_entry; e < r.end_entry; e++) {
        KVF_ASSERT(h->entries[e].block.index != KVF_KV_NO_BLOCK);
        if (layer != KVF_TX_ALL_LAYERS) tx_page_ready(tx, h, e, layer);
        for (uint32_t l = 0; layer == KVF_TX_ALL_LAYERS && l < tx->config.layers; l++) tx_page_ready(tx, h, e, l);
    }
    /* The bits decide what is sent, the ranges only in which order: one too many is not lost, it is found by the scan.
     */
    if (h->ranges_count == tx->ranges_max) return;
    h->ranges[(h->ranges_head + h->ranges_count++) % tx->ranges_max] = r;
    if (h->ranges_count == 1) {
        h->at_entry = r.first_entry;
        h->at_layer = 0;
    }
}

void kvf_tx_finish(kvf_tx *tx, kvf_time_ns now, kvf_tx_id id, kvf_span payload) {
    KVF_ASSERT(payload.len_bytes <= KVF_FRAME_COMMIT_PAYLOAD_MAX);
    tx->now_ns = now;
    tx_handoff *h = tx_find(tx, id);
    if (!h || h->state == TX_ENDING || h->finished) return;
    h->finished = true;
    h->finished_ns = h->hold_from_ns = now;
    h->payload_bytes = (uint32_t)payload.len_bytes;
    if (payload.len_bytes) memcpy(h->payload, payload.data, payload.len_bytes);
}

void kvf_tx_hold(kvf_tx *tx, kvf_time_ns now, kvf_tx_id id, bool held) {
    tx->now_ns = now;
    tx_handoff *h = tx_find(tx, id);
    if (!h || h->state == TX_ENDING) return;
    h->held = held;
    h->hold_from_ns = now;
}

void kvf_tx_cancel(kvf_tx *tx, kvf_time_ns now, kvf_tx_id id, kvf_status why) {
    KVF_ASSERT(why != KVF_OK);
    tx->now_ns = now;
    tx_handoff *h = tx_find(tx, id);
    if (!h || h->state == TX_ENDING) return;
    tx_say_goodbye(tx, h);
    tx_end(tx, h, why);
}

void kvf_tx_on_page_sent(kvf_tx *tx, kvf_time_ns now, uint64_t token, bool ok, uint32_t crc) {
    tx->now_ns = now;
    uint32_t index = (uint32_t)token;
    if (index >= tx->sendings_max || tx->sendings[index].serial != token >> 32 || !(tx->sendings[index].serial & 1))
        return;
    tx_sending s = tx->sendings[index];
    tx->sendings[index].serial++;
    tx->sendings[index].next_free = tx->sendings_free;
    tx->sendings_free = index;
    kvf_kv_use_end(tx->kv, s.block);

    tx_handoff *h = &tx->handoffs[s.slot];
    if (KVF_MUTATED(MUTANT_END_IN_FLIGHT) && h->moving_now + h->moving_old == 0) return;
    bool now_link = s.link_serial == h->link_serial;
    KVF_ASSERT(h->state != TX_FREE && (now_link ? h->moving_now : h->moving_old) > 0);
    if (now_link)
        h->moving_now--;
    else
        h->moving_old--;
    bit_clear(tx_row(tx, h, s.entry, ROW_MOVING), s.layer);
    if (h->state == TX_ENDING) return;
    uint64_t *sent = tx_row(tx, h, s.entry, ROW_SENT);
    if (!ok || !now_link) {
        /* Into a dead link: it counts for nothing. What a dead link swallowed after `ok`, MISSING names. */
        if (!ok || !bit_get(sent, s.layer)) tx_page_due(tx, h, s.entry, s.layer);
        return;
    }
    if (!bit_get(sent, s.layer)) {
        bit_set(sent, s.layer);
        h->sent_count++;
        h->digest += kvf_page_digest(h->entries[s.entry].logical, s.layer, crc);
    }
    if (h->first_page_ns == 0) h->first_page_ns = now;
    h->hold_from_ns = now;
    h->pages++;
    h->bytes += tx->config.page_bytes;
}

static void tx_on_missing(kvf_tx *tx, tx_handoff *h, const kvf_frame *f) {
    if (h->state != TX_COMMITTING) return;
    uint32_t rounds_max =
        TX_ROUNDS_MAX + (uint32_t)((uint64_t)h->entries_count * tx->config.layers / KVF_FRAME_MISSING_MAX);
    if (++h->rounds >= rounds_max) {
        tx_say_goodbye(tx, h);
        tx_end(tx, h, KVF_ERR_CORRUPT); /* this link or that memory spoils what it is given: no use in going on */
        return;
    }
    for (uint32_t i = 0; i < f->missing.count; i++) {
        kvf_page_name p = f->missing.pages[i];
        uint32_t at = tx_lower_bound(h, p.block);
        if (at == h->entries_count || h->entries[at].logical != p.block || p.layer >= tx->config.layers) continue;
        if (bit_get(tx_row(tx, h, at, ROW_READY), p.layer)) tx_page_due(tx, h, at, p.layer);
    }
    tx_set_state(h, TX_MOVING);
    h->hold_from_ns = tx->now_ns;
}

void kvf_tx_on_frame(kvf_tx *tx, kvf_time_ns now, kvf_link_id link, const kvf_frame *frame) {
    tx->now_ns = now;
    if (frame->kind != KVF_FRAME_OPENED && frame->kind != KVF_FRAME_COMMITTED && frame->kind != KVF_FRAME_MISSING &&
        frame->kind != KVF_FRAME_GONE)
        return;
    /* Grants are unique on one receiver: link and grant together name a hand-off. Every one of these bodies begins with
     * the grant. */
    tx_handoff *h = NULL;
    for (uint32_t i = 0; i < tx->active && !h; i++) {
        tx_handoff *c = tx_at(tx, i);
        if (c->state != TX_ENDING && c->link == link && c->grant == frame->opened.grant) h = c;
    }
    if (!h) return;
    switch (frame->kind) {
    case KVF_FRAME_OPENED:
        if (h->state == TX_OPENING && h->opened_once) tx_set_state(h, TX_MOVING);
        h->hold_from_ns = now;
        break;
    case KVF_FRAME_COMMITTED:
        /* Before any COMMIT of ours it can only be a confused peer. */
        if (!h->commit_said) tx_say_goodbye(tx, h);
        tx_end(tx, h, h->commit_said ? KVF_OK : KVF_ERR_GONE);
        break;
    case KVF_FRAME_MISSING: tx_on_missing(tx, h, frame); break;
    default: tx_end(tx, h, frame->gone.reason < KVF_OK ? frame->gone.reason : KVF_ERR_GONE);
    }
}

void kvf_tx_on_link_down(kvf_tx *tx, kvf_time_ns now, kvf_link_id link) {
    tx->now_ns = now;
    for (uint32_t i = 0; i < tx->active; i++) {
        tx_handoff *h = tx_at(tx, i);
        if (h->link != link) continue;
        h->link = KVF_LINK_NONE;
        h->say_open = false;
        if (h->state == TX_ENDING) continue;
        if (tx->config.relink_ttl_ns == 0) {
            tx_end(tx, h, KVF_ERR_PEER_LOST);
            continue;
        }
        tx_set_state(h, TX_WAITING);
        h->relink_until_ns = time_after(now, tx->config.relink_ttl_ns);
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < tx->goodbyes_count; i++)
        if (tx->goodbyes[i].link != link) tx->goodbyes[kept++] = tx->goodbyes[i];
    tx->goodbyes_count = kept;
}

static kvf_time_ns tx_hold_until(const kvf_tx *tx, const tx_handoff *h) {
    return h->finished && !h->held ? time_after(h->hold_from_ns, tx->config.hold_ttl_ns) : KVF_TIME_NEVER;
}

void kvf_tx_on_time(kvf_tx *tx, kvf_time_ns now) {
    tx->now_ns = now;
    for (uint32_t i = 0; i < tx->active; i++) {
        tx_handoff *h = tx_at(tx, i);
        if (h->state == TX_ENDING) continue;
        if (h->relink_until_ns <= now) {
            tx_end(tx, h, KVF_ERR_PEER_LOST);
        } else if (tx_hold_until(tx, h) <= now) {
            tx_say_goodbye(tx, h);
            tx_end(tx, h, KVF_ERR_DEADLINE);
        }
    }
}

kvf_time_ns kvf_tx_deadline(const kvf_tx *tx) {
    kvf_time_ns first = KVF_TIME_NEVER;
    for (uint32_t i = 0; i < tx->active; i++) {
        const tx_handoff *h = tx_at(tx, i);
        if (h->state == TX_ENDING) continue;
        first = KVF_MIN(first, KVF_MIN(h->relink_until_ns, tx_hold_until(tx, h)));
    }
    return first;
}

uint32_t kvf_tx_active(const kvf_tx *tx) { return tx->active; }
