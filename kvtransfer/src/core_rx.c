/* core_rx.c - grants of the receiving node: offer, open, pages in, end. Commit and what kvf_rx_next tells:
 * core_rx_commit.c.
 *
 * Invariants (core_audit.c checks them):
 *  1. a block with a page of a live grant is FILLING, pinned once by the grant, in use once per landing copy under way;
 *  2. landed and moving pages of a block are disjoint; a landed page is never accepted again;
 *  3. pages_done, moving and blocks_spent equal what the bit rows and entries say;
 *  4. a grant ends once: it is handed over, revoked by the caller, or lost; its id then lies in the tombstones. */
#include "core_int.h"

static void rx_layout(kvf_arena *a, const kvf_rx_config *c, kvf_rx **out) {
    kvf_rx *rx = KVF_ARENA_NEW(a, kvf_rx, 1);
    uint32_t words = bit_words(c->layers);
    rx_grant *grants = KVF_ARENA_NEW(a, rx_grant, c->grants_max);
    for (uint32_t i = 0; i < c->grants_max; i++) {
        rx_entry *entries = KVF_ARENA_NEW(a, rx_entry, c->blocks_max);
        uint64_t *bits = KVF_ARENA_NEW(a, uint64_t, (size_t)c->blocks_max * 3 * words);
        uint8_t *payload = KVF_ARENA_NEW(a, uint8_t, KVF_FRAME_COMMIT_PAYLOAD_MAX);
        if (rx) {
            grants[i].entries = entries;
            grants[i].bits = bits;
            grants[i].payload = payload;
        }
    }
    uint32_t replies_max = 4 * c->grants_max + 64;
    rx_reply *replies = KVF_ARENA_NEW(a, rx_reply, replies_max);
    rx_tombstone *tombstones = KVF_ARENA_NEW(a, rx_tombstone, c->tombstones_max);
    kvf_page_name *names = KVF_ARENA_NEW(a, kvf_page_name, KVF_FRAME_MISSING_MAX);
    uint32_t *out_logical = KVF_ARENA_NEW(a, uint32_t, c->blocks_max);
    kvf_block_id *out_blocks = KVF_ARENA_NEW(a, kvf_block_id, c->blocks_max);
    if (!rx) return;
    *rx = (kvf_rx){.config = *c,
        .words = words,
        .grants = grants,
        .replies = replies,
        .replies_max = replies_max,
        .tombstones = tombstones,
        .names = names,
        .out_logical = out_logical,
        .out_blocks = out_blocks};
    *out = rx;
}

size_t kvf_rx_size(const kvf_rx_config *config) {
    kvf_arena a = {0};
    rx_layout(&a, config, NULL);
    return a.used_bytes;
}

kvf_rx *kvf_rx_init(void *memory, const kvf_rx_config *config, kvf_kv *kv) {
    KVF_ASSERT(config->grants_max >= 1 && config->grants_max <= UINT16_MAX && config->tombstones_max >= 1);
    KVF_ASSERT(config->layers >= 1 && config->blocks_max >= 1);
    kvf_arena a = {.base = memory, .size_bytes = kvf_rx_size(config), .zeroed = true};
    kvf_rx *rx = NULL;
    rx_layout(&a, config, &rx);
    rx->kv = kv;
    return rx;
}

rx_grant *kvf_rx_find_grant(const kvf_rx *rx, uint64_t grant) {
    uint64_t slot = grant & UINT16_MAX;
    if (grant == 0 || slot >= rx->config.grants_max) return NULL;
    rx_grant *g = &rx->grants[slot];
    return rx_live(g) && g->id == grant ? g : NULL;
}

int64_t kvf_rx_find_entry(const rx_grant *g, uint32_t logical) {
    uint32_t low = 0, high = g->entries_count;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (g->entries[mid].logical < logical)
            low = mid + 1;
        else
            high = mid;
    }
    return low < g->entries_count && g->entries[low].logical == logical ? (int64_t)low : -1;
}

void kvf_rx_say(kvf_rx *rx, kvf_frame_kind kind, kvf_link_id link, uint64_t grant, kvf_status reason) {
    /* A full queue drops the newest: only a peer that floods us can fill it between two drains, and every waiting side
     * has a deadline. */
    if (link == KVF_LINK_NONE || rx->replies_count == rx->replies_max) return;
    rx->replies[(rx->replies_head + rx->replies_count++) % rx->replies_max] = (rx_reply){kind, link, grant, reason};
}

void kvf_rx_bury(kvf_rx *rx, uint64_t grant, kvf_status reason) {
    rx->tombstones[rx->tombstone_next] = (rx_tombstone){grant, reason};
    rx->tombstone_next = (rx->tombstone_next + 1) % rx->config.tombstones_max;
}

bool kvf_rx_buried(const kvf_rx *rx, uint64_t grant, kvf_status *reason) {
    for (uint32_t i = 1; i <= rx->config.tombstones_max; i++) {
        const rx_tombstone *t =
            &rx->tombstones[(rx->tombstone_next + rx->config.tombstones_max - i) % rx->config.tombstones_max];
        if (t->grant == 0) return false;
        if (t->grant != grant) continue;
        *reason = t->reason;
        return true;
    }
    return false;
}

/* A grant is named anew: nobody has opened it, nothing of it is counted. Landed pages and blocks stay as they are. */
static uint64_t rx_name(kvf_rx *rx, rx_grant *g, kvf_time_ns now, uint32_t attempt, const uint8_t secret[16]) {
    g->id = ++rx->serial << 16 | (uint64_t)(g - rx->grants);
    g->attempt = attempt;
    memcpy(g->secret, secret, sizeof g->secret);
    rx_set_state(g, RX_OFFERED);
    g->link = KVF_LINK_NONE;
    g->turn = 0;
    g->link_lost = g->commit_waits = g->say_opened = g->say_missing = false;
    g->expires_ns = time_after(now, rx->config.grant_ttl_ns);
    g->pages_done = 0;
    g->digest = 0;
    return g->id;
}

kvf_status kvf_rx_offer(kvf_rx *rx, kvf_time_ns now, kvf_request_id request, uint32_t attempt, const uint8_t secret[16],
    const uint32_t *missing, uint32_t missing_count, uint64_t *grant) {
    KVF_ASSERT(missing_count <= rx->config.blocks_max);
    rx_grant *g = NULL;
    for (uint32_t i = 0; i < rx->config.grants_max && !g; i++)
        if (rx->grants[i].state == RX_FREE) g = &rx->grants[i];
    if (!g) return KVF_AGAIN;
    for (uint32_t i = 0; i < missing_count; i++) {
        KVF_ASSERT(i == 0 || missing[i] > missing[i - 1]);
        g->entries[i] = (rx_entry){.logical = missing[i], .block = KVF_BLOCK_NONE, .listed = true};
    }
    memset(g->bits, 0, (size_t)missing_count * 3 * rx->words * sizeof *g->bits);
    g->entries_count = g->listed_count = missing_count;
    g->blocks_spent = g->moving = 0;
    g->request = request;
    *grant = rx_name(rx, g, now, attempt, secret);
    return KVF_OK;
}

kvf_status kvf_rx_reoffer(kvf_rx *rx, kvf_time_ns now, uint64_t old_grant, uint32_t attempt, const uint8_t secret[16],
    uint64_t *grant, uint32_t *missing, uint32_t *missing_count) {
    rx_grant *g = kvf_rx_find_grant(rx, old_grant);
    if (!g) return KVF_ERR_NOT_FOUND;
    if (attempt <= g->attempt) return KVF_ERR_STALE;
    kvf_rx_say(rx, KVF_FRAME_GONE, g->link, old_grant, KVF_ERR_STALE);
    kvf_rx_bury(rx, old_grant, KVF_ERR_STALE);
    if (g->say_opened || g->say_missing) rx->untold--;
    uint32_t count = 0;
    for (uint32_t i = 0; i < g->entries_count; i++) {
        bool whole = bits_count(rx_landed(rx, g, i), rx->words) == rx->config.layers;
        g->entries[i].listed = !whole;
        memset(rx_counted(rx, g, i), 0, rx->words * sizeof *g->bits);
        if (!whole) missing[count++] = g->entries[i].logical;
    }
    g->listed_count = *missing_count = count;
    *grant = rx_name(rx, g, now, attempt, secret);
    return KVF_OK;
}

/* Gives back every pin, the tail first. A block with a landing under way is free when that ends. */
static uint32_t rx_let_go(kvf_rx *rx, rx_grant *g) {
    for (uint32_t i = g->entries_count; i-- > 0;)
        if (g->entries[i].block.index != KVF_KV_NO_BLOCK) kvf_kv_unpin(rx->kv, g->entries[i].block);
    if (g->say_opened || g->say_missing) rx->untold--;
    g->say_opened = g->say_missing = false;
    uint32_t spent = g->blocks_spent;
    g->entries_count = g->listed_count = g->blocks_spent = g->moving = 0;
    return spent;
}

kvf_status kvf_rx_revoke(kvf_rx *rx, kvf_time_ns now, uint64_t grant, kvf_status why, uint32_t *blocks_spent) {
    (void)now;
    rx_grant *g = kvf_rx_find_grant(rx, grant);
    if (!g) return KVF_ERR_NOT_FOUND;
    kvf_rx_say(rx, KVF_FRAME_GONE, g->link, grant, why);
    if (KVF_MUTATED(MUTANT_USE_AFTER_REVOKE)) {
        *blocks_spent = 0;
        return KVF_OK;
    }
    kvf_rx_bury(rx, grant, why);
    *blocks_spent = rx_let_go(rx, g);
    rx_set_state(g, RX_FREE);
    return KVF_OK;
}

void kvf_rx_lose(kvf_rx *rx, rx_grant *g, kvf_status reason) {
    KVF_ASSERT(rx_live(g) && reason != KVF_OK);
    kvf_rx_bury(rx, g->id, reason);
    g->lost_spent = rx_let_go(rx, g);
    g->lost_reason = reason;
    rx_set_state(g, RX_LOST);
    rx->untold++;
    rx->counts.grants_lost++;
}

void kvf_rx_renew(kvf_rx *rx, kvf_time_ns now, uint64_t grant) {
    rx_grant *g = kvf_rx_find_grant(rx, grant);
    if (g && g->state == RX_OFFERED) g->expires_ns = time_after(now, rx->config.grant_ttl_ns);
}

static kvf_page_verdict rx_judge(
    kvf_rx *rx, kvf_link_id link, const kvf_page_header *h, rx_grant **grant, uint32_t *entry) {
    rx_grant *g = kvf_rx_find_grant(rx, h->grant);
    if (!g) return KVF_PAGE_GONE;
    if (g->state != RX_OPEN || (g->link != link && !KVF_MUTATED(MUTANT_NO_LINK_CHECK))) return KVF_PAGE_NOT_YOURS;
    int64_t at = kvf_rx_find_entry(g, h->block);
    if (at < 0 || !g->entries[at].listed || h->layer >= rx->config.layers) return KVF_PAGE_NOT_LISTED;
    if (h->len_bytes != rx->config.page_bytes) return KVF_PAGE_BAD_LENGTH;
    *grant = g;
    *entry = (uint32_t)at;
    bool landed = bit_get(rx_landed(rx, g, *entry), h->layer);
    bool moving = bit_get(rx_moving(rx, g, *entry), h->layer);
    if (moving || (landed && !KVF_MUTATED(MUTANT_REWRITE_LANDED))) return KVF_PAGE_DUPLICATE;
    return KVF_PAGE_ACCEPT;
}

/* Each page adds its CRC to the grant's digest once. A page that landed under an earlier attempt is counted by the CRC
 * of its first repeat under this one (CRCs are seeded with the grant), so that both sides sum over the same list. */
static void rx_count_page(kvf_rx *rx, rx_grant *g, uint32_t entry, uint32_t layer, uint32_t crc) {
    if (bit_get(rx_counted(rx, g, entry), layer)) return;
    bit_set(rx_counted(rx, g, entry), layer);
    g->digest += kvf_page_digest(g->entries[entry].logical, layer, crc);
    if (bit_get(rx_landed(rx, g, entry), layer)) g->pages_done++;
}

static bool rx_take_block(kvf_rx *rx, rx_grant *g, uint32_t entry) {
    rx_entry *e = &g->entries[entry];
    if (e->block.index != KVF_KV_NO_BLOCK) return true;
    if (kvf_kv_take(rx->kv, &e->block) != KVF_OK) {
        e->block = KVF_BLOCK_NONE;
        return false;
    }
    g->blocks_spent++;
    if (entry + 1 < g->entries_count) kvf_kv_set_filled(rx->kv, e->block, KVF_KV_BLOCK_TOKENS);
    return true;
}

kvf_page_verdict kvf_rx_on_page(
    kvf_rx *rx, kvf_time_ns now, kvf_link_id link, const kvf_page_header *header, kvf_landing *out) {
    (void)now;
    rx_grant *g = NULL;
    uint32_t entry = 0;
    kvf_page_verdict verdict = rx_judge(rx, link, header, &g, &entry);
    if (verdict == KVF_PAGE_DUPLICATE) {
        rx->counts.pages_duplicate++;
        /* A copy under way has its own CRC to answer for: only what has landed is counted by a repeat. */
        if (bit_get(rx_landed(rx, g, entry), header->layer)) rx_count_page(rx, g, entry, header->layer, header->crc);
        return verdict;
    }
    if (verdict == KVF_PAGE_ACCEPT && !rx_take_block(rx, g, entry)) verdict = KVF_PAGE_NO_ROOM;
    if (verdict != KVF_PAGE_ACCEPT) {
        rx->counts.pages_rejected++;
        rx->counts.rejected[verdict]++;
        return verdict;
    }
    kvf_block_id block = g->entries[entry].block;
    kvf_status used = kvf_kv_use_begin(rx->kv, block);
    KVF_ASSERT(used == KVF_OK);
    bit_set(rx_moving(rx, g, entry), header->layer);
    g->moving++;
    if (KVF_MUTATED(MUTANT_ACK_BEFORE_VERIFY)) {
        bit_set(rx_landed(rx, g, entry), header->layer);
        rx_count_page(rx, g, entry, header->layer, header->crc);
    }
    *out = (kvf_landing){header->grant, header->block, header->layer, block, header->crc, link};
    return KVF_PAGE_ACCEPT;
}

static void rx_landing_over(kvf_rx *rx, const kvf_landing *landing, bool crc_ok) {
    kvf_kv_use_end(rx->kv, landing->block);
    uint64_t slot = landing->grant & UINT16_MAX;
    KVF_ASSERT(slot < rx->config.grants_max);
    rx_grant *g = &rx->grants[slot];
    int64_t at = rx_live(g) ? kvf_rx_find_entry(g, landing->block_logical) : -1;
    /* The slot may have been given to another request meanwhile; a block in use is in no other grant, so equality
     * decides. */
    if (at < 0 || !kvf_block_id_equal(g->entries[at].block, landing->block)) return;
    uint32_t entry = (uint32_t)at;
    KVF_ASSERT(bit_get(rx_moving(rx, g, entry), landing->layer));
    bit_clear(rx_moving(rx, g, entry), landing->layer);
    g->moving--;
    if (crc_ok) {
        KVF_ASSERT(KVF_MUTANT != 0 || !bit_get(rx_landed(rx, g, entry), landing->layer));
        bit_set(rx_landed(rx, g, entry), landing->layer);
        rx->counts.pages_landed++;
        rx->counts.bytes_landed += rx->config.page_bytes;
        /* Under a re-offered grant the page stays, but only a repeat counts it: its CRC belongs to the old grant. */
        if (landing->grant == g->id && g->entries[entry].listed)
            rx_count_page(rx, g, entry, landing->layer, landing->crc);
    }
    if (g->commit_waits && g->moving == 0) kvf_rx_try_commit(rx, g);
}

void kvf_rx_on_landed(kvf_rx *rx, kvf_time_ns now, const kvf_landing *landing, bool crc_ok) {
    (void)now;
    if (!crc_ok) rx->counts.pages_corrupt++;
    rx_landing_over(rx, landing, crc_ok);
}

void kvf_rx_on_dropped(kvf_rx *rx, kvf_time_ns now, const kvf_landing *landing) {
    (void)now;
    rx_landing_over(rx, landing, false);
}

bool kvf_rx_uses(const kvf_rx *rx, kvf_link_id link) {
    for (uint32_t i = 0; i < rx->config.grants_max; i++)
        if (rx->grants[i].state == RX_OPEN && rx->grants[i].link == link) return true;
    return false;
}

void kvf_rx_on_link_down(kvf_rx *rx, kvf_time_ns now, kvf_link_id link) {
    (void)now;
    for (uint32_t i = 0; i < rx->config.grants_max; i++) {
        rx_grant *g = &rx->grants[i];
        if (g->state != RX_OPEN || g->link != link) continue;
        g->link = KVF_LINK_NONE;
        g->link_lost = true;
        if (g->say_opened || g->say_missing) rx->untold--;
        g->say_opened = g->say_missing = false;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < rx->replies_count; i++) {
        rx_reply r = rx->replies[(rx->replies_head + i) % rx->replies_max];
        if (r.link != link) rx->replies[(rx->replies_head + kept++) % rx->replies_max] = r;
    }
    rx->replies_count = kept;
}

void kvf_rx_on_time(kvf_rx *rx, kvf_time_ns now) {
    for (uint32_t i = 0; i < rx->config.grants_max; i++) {
        rx_grant *g = &rx->grants[i];
        if (!rx_live(g) || g->expires_ns > now) continue;
        kvf_status reason = g->link_lost ? KVF_ERR_PEER_LOST : KVF_ERR_DEADLINE;
        kvf_rx_say(rx, KVF_FRAME_GONE, g->link, g->id, reason);
        kvf_rx_lose(rx, g, reason);
    }
}

kvf_time_ns kvf_rx_deadline(const kvf_rx *rx) {
    kvf_time_ns first = KVF_TIME_NEVER;
    for (uint32_t i = 0; i < rx->config.grants_max; i++)
        if (rx_live(&rx->grants[i])) first = KVF_MIN(first, rx->grants[i].expires_ns);
    return first;
}

const char *kvf_page_verdict_text(kvf_page_verdict verdict) {
    static const char *const texts[KVF_PAGE_VERDICTS] = {"accepted", "landed or landing already", "no such grant",
        "grant of another link, or not opened", "block or layer outside the grant", "wrong length", "no free block"};
    return texts[verdict];
}

uint64_t kvf_rx_counts_dropped(const kvf_rx_counts *c) {
    return c->pages_duplicate + c->pages_corrupt + c->pages_rejected + c->opens_refused + c->opens_late +
           c->frames_gone + c->frames_stale + c->commits_corrupt;
}

void kvf_rx_count(const kvf_rx *rx, kvf_rx_counts *out) { *out = rx->counts; }

uint32_t kvf_rx_open_grants(const kvf_rx *rx) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < rx->config.grants_max; i++) n += rx_live(&rx->grants[i]);
    return n;
}
