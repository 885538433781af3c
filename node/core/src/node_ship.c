/* Hand-offs: what the transfer core reports, and what it is told. */
#include "node_int.h"
#include <stdio.h>

#define RELINKS_MAX 4 /* a link that breaks so often under one hand-off is no use to it */
#define REDIALS 16 /* calls in one relink ttl */

/* ------------------------------------------------------------------ first tokens inside Commit
 * u32 count, then per choice: u32 choice, u32 token, u32 end, u32 sample bytes, the sample. Little-endian. */

static kvf_span encode_first(kvf_node *n, const kvf_step_sample *samples, uint32_t count) {
    uint8_t *p = node_scratch(n, KVF_FRAME_COMMIT_PAYLOAD_MAX);
    size_t at = 4;
    kvf_put_le32(p, count);
    for (uint32_t i = 0; i < count; i++) {
        size_t sample_bytes = samples[i].sample.len_bytes;
        KVF_ASSERT(at + 16 + sample_bytes <= KVF_FRAME_COMMIT_PAYLOAD_MAX);
        kvf_put_le32(p + at, samples[i].choice);
        kvf_put_le32(p + at + 4, samples[i].token);
        kvf_put_le32(p + at + 8, (uint32_t)samples[i].end);
        kvf_put_le32(p + at + 12, (uint32_t)sample_bytes);
        if (sample_bytes) memcpy(p + at + 16, samples[i].sample.data, sample_bytes);
        at += 16 + sample_bytes;
    }
    return (kvf_span){p, at};
}

/* The payload comes from another process: everything is checked. */
static bool decode_first(const kvf_node *n, const node_req *r, kvf_span payload, kvf_step_sample out[KVF_CHOICES_MAX]) {
    const uint8_t *p = payload.data;
    size_t at = 4;
    if (payload.len_bytes < 4 || kvf_get_le32(p) != r->n) return false;
    for (uint32_t i = 0; i < r->n; i++) {
        if (payload.len_bytes - at < 16) return false;
        uint32_t sample_bytes = kvf_get_le32(p + at + 12), end = kvf_get_le32(p + at + 8);
        out[i] =
            (kvf_step_sample){.choice = kvf_get_le32(p + at), .token = kvf_get_le32(p + at + 4), .end = (kvf_end)end};
        if (out[i].choice != r->choice_base + i || out[i].token >= n->config.info.identity.vocab ||
            end > KVF_END_LENGTH)
            return false;
        if (sample_bytes > KVF_SAMPLE_BYTES_MAX || payload.len_bytes - at - 16 < sample_bytes) return false;
        out[i].sample = (kvf_span){p + at + 16, sample_bytes};
        at += 16 + sample_bytes;
    }
    return at == payload.len_bytes;
}

/* ------------------------------------------------------------------ receiving */

static node_req *find_grant(kvf_node *n, uint64_t grant) {
    for (uint32_t i = 0; i < n->config.requests_max; i++) {
        node_req *r = &n->reqs[i];
        if (r->state == REQ_GRANTED && r->grant == grant) return r;
    }
    return NULL;
}

static void start_decoding(kvf_node *n, node_req *r, const kvf_rx_act *a) {
    node_seq *s = node_first_seq(n, r);
    kvf_step_sample first[KVF_CHOICES_MAX];
    r->grant = 0;
    r->booked -= a->blocks_spent;
    for (uint32_t i = 0; i < a->blocks_count; i++) {
        KVF_ASSERT(a->logical[i] == s->blocks_count);
        node_seq_add_block(s, a->blocks[i]);
    }
    s->computed = s->count;
    if (!decode_first(n, r, a->payload, first)) {
        node_fail(n, r, KVF_STAGE_TRANSFER, KVF_ERR_FORMAT, "", true, "first tokens of the commit are malformed");
        return;
    }
    if (node_outbox_full(n, r->session, r->n)) {
        node_fail(n, r, KVF_STAGE_DECODE, KVF_AGAIN, "", true, "the router does not acknowledge tokens");
        return;
    }
    node_req_set_state(r, REQ_DECODE);
    node_seal(n, r, s);
    node_msg_req(n, r, KVF_N_STARTED);
    node_begin_choices(n, r, first, r->n, true);
}

/* The reservation was given up while the grant's end was on its way here. */
static void settle_ended(kvf_node *n, node_req *r, const kvf_rx_act *a) {
    r->grant = 0;
    if (a->kind == KVF_RX_COMMITTED)
        for (uint32_t i = a->blocks_count; i > 0; i--) kvf_kv_unpin(n->kv, a->blocks[i - 1]);
    r->booked -= a->blocks_spent;
    node_release(n, r);
}

void node_on_rx(kvf_node *n, const kvf_rx_act *a) {
    node_req *r = find_grant(n, a->grant);
    KVF_ASSERT(r != NULL); /* a record lives at least as long as its grant */
    KVF_ASSERT(r->booked >= a->blocks_spent);
    if (r->ending) {
        settle_ended(n, r, a);
        return;
    }
    if (a->kind == KVF_RX_COMMITTED) {
        start_decoding(n, r, a);
        return;
    }
    r->grant = 0;
    r->booked -= a->blocks_spent;
    if (a->reason == KVF_ERR_CANCELLED && !MUTANT(17)) {
        /* The sender gave it up and has told the router why (a request that is over at its first token, a failure):
         * saying Failed here could overtake that token on its own connection. */
        node_release(n, r);
        return;
    }
    node_fail(n, r, KVF_STAGE_TRANSFER, a->reason, "", true, "the grant was lost before its commit");
}

/* ------------------------------------------------------------------ sending */

static uint32_t link_find(const kvf_node *n, const char *peer, uint64_t epoch) {
    for (uint32_t i = 0; i < n->config.links_max; i++) {
        const node_link *l = &n->links[i];
        if (l->state != LINK_FREE && l->outgoing && l->peer_epoch == epoch && strcmp(l->peer, peer) == 0) return i;
    }
    return NONE;
}

static uint32_t link_new(kvf_node *n) {
    for (uint32_t i = 0; i < n->config.links_max; i++)
        if (n->links[i].state == LINK_FREE) return i;
    return NONE;
}

static void dial(kvf_node *n, node_link *l) {
    l->state = LINK_CALLING;
    l->id = KVF_LINK_NONE;
    kvf_node_act *a = node_act(n, KVF_NODE_CONNECT);
    memcpy(a->connect.peer, l->peer, sizeof a->connect.peer);
    a->connect.peer_epoch = l->peer_epoch;
    a->connect.host_id = l->host_id;
    memcpy(a->connect.address, l->address, sizeof a->connect.address);
    memcpy(a->connect.local_address, l->local_address, sizeof a->connect.local_address);
}

static uint32_t call_peer(kvf_node *n, const kvf_ship_to *to) {
    uint32_t at = link_new(n);
    if (at == NONE) return NONE;
    node_link *l = &n->links[at];
    *l = (node_link){.outgoing = true, .peer_epoch = to->epoch, .host_id = to->host_id};
    memcpy(l->peer, to->node, sizeof l->peer);
    memcpy(l->address, to->address, sizeof l->address);
    memcpy(l->local_address, to->local_address, sizeof l->local_address);
    dial(n, l);
    return at;
}

static void take_link(kvf_node *n, node_req *r, const node_link *l) {
    r->linked = true;
    kvf_tx_set_link(n->tx, n->now, r->tx, l->id, l->nonce);
}

void node_start_shipping(kvf_node *n, node_req *r, const kvf_ship_to *to) {
    node_seq *s = node_first_seq(n, r);
    snprintf(r->peer, sizeof r->peer, "%s", to->node);
    if (kvf_tx_start(n->tx, n->now, r->id, r->attempt, to->grant, to->secret, to->missing, to->missing_count, &r->tx) !=
        KVF_OK) {
        node_fail(n, r, KVF_STAGE_TRANSFER, KVF_AGAIN, "", true, "no free hand-off");
        return;
    }
    r->tx_active = true;
    for (uint32_t i = 0; i < s->blocks_count; i++) kvf_tx_set_block(n->tx, r->tx, i, s->block[i]);
    if (s->blocks_count) kvf_tx_pages_ready(n->tx, r->tx, 0, s->blocks_count, KVF_TX_ALL_LAYERS);
    r->link_slot = link_find(n, to->node, to->epoch);
    if (r->link_slot == NONE) r->link_slot = call_peer(n, to);
    if (r->link_slot == NONE) {
        node_fail(n, r, KVF_STAGE_TRANSFER, KVF_AGAIN, r->peer, true, "all link slots are taken");
        return;
    }
    node_link *l = &n->links[r->link_slot];
    if (l->state == LINK_UP) take_link(n, r, l);
}

void node_ship_first(kvf_node *n, node_req *r, const kvf_step_sample *samples, uint32_t count) {
    node_req_set_state(r, REQ_SHIP);
    kvf_tx_finish(n->tx, n->now, r->tx, encode_first(n, samples, count));
    /* Only this node has them: from the commit on nobody would compute them again, should it die. */
    r->held = r->prompt_logprobs && node_scores_wait(n, r) && !MUTANT(20);
    if (r->held) kvf_tx_hold(n->tx, n->now, r->tx, true);
}

/* Final pages of the running step: blocks that it fills, and the last one of a prompt. Layers come in order, so what
 * was told of a run is a number of layers. */
void node_tell_layers(kvf_node *n) {
    for (uint32_t i = 0; i < n->runs_count; i++) {
        const kvf_step_run *run = &n->runs[i];
        node_req *r = &n->reqs[n->seqs[n->run_seq[i]].req];
        if (r->leg != LEG_PREFILL || !r->tx_active || r->ending) continue;
        uint32_t end = run->position + run->count;
        uint32_t first = run->position / KVF_KV_BLOCK_TOKENS;
        uint32_t last = end == r->tokens_count && !MUTANT(10) ? (uint32_t)kvf_div_up(end, KVF_KV_BLOCK_TOKENS)
                                                              : end / KVF_KV_BLOCK_TOKENS;
        uint32_t done = MUTANT(11) && n->step_layer < n->config.layers ? n->step_layer + 1 : n->step_layer;
        for (; r->ready_layers < done; r->ready_layers++)
            if (last > first) kvf_tx_pages_ready(n->tx, r->tx, first, last - first, r->ready_layers);
    }
}

static node_req *find_tx(kvf_node *n, kvf_tx_id id) {
    for (uint32_t i = 0; i < n->config.requests_max; i++) {
        node_req *r = &n->reqs[i];
        if (r->state != REQ_FREE && r->tx_active && r->tx == id) return r;
    }
    return NULL;
}

static void say_shipped(kvf_node *n, node_req *r, const kvf_tx_act *a) {
    kvf_nmsg *m = node_msg_req(n, r, KVF_N_SHIPPED);
    if (!m) return;
    m->shipped.result = a->result;
    m->shipped.cached_tokens = r->cached;
    m->shipped.pages = a->pages;
    m->shipped.bytes = a->bytes;
    m->shipped.queue_ns = r->computing_at ? r->computing_at - r->accepted_at : 0;
    m->shipped.prefill_ns = r->computed_at && r->computing_at ? r->computed_at - r->computing_at : 0;
    m->shipped.transfer_ns = a->first_page_ns ? a->ended_ns - a->first_page_ns : 0;
    m->shipped.exposed_ns = r->computed_at ? a->ended_ns - r->computed_at : 0;
}

void node_on_tx_end(kvf_node *n, const kvf_tx_act *a) {
    node_req *r = find_tx(n, a->id);
    KVF_ASSERT(r != NULL);
    r->tx_active = false;
    if (r->ending) {
        node_release(n, r);
        return;
    }
    if (a->result == KVF_OK || a->result == KVF_ERR_GONE || a->result == KVF_ERR_STALE ||
        a->result == KVF_ERR_CANCELLED) {
        /* Gone is not for this node to retry: whoever ended the grant has told the router. */
        say_shipped(n, r, a);
        node_release(n, r);
        return;
    }
    node_fail(n, r, KVF_STAGE_TRANSFER, a->result, r->peer, true, kvf_status_text(a->result));
}

/* ------------------------------------------------------------------ links */

void kvf_node_on_link_up(kvf_node *n, kvf_time_ns now, kvf_link_id link, const char *peer, uint64_t peer_epoch,
    const uint8_t nonce[16], bool outgoing) {
    n->now = now;
    uint32_t at = outgoing ? link_find(n, peer, peer_epoch) : NONE;
    if (at == NONE) {
        at = link_new(n);
        if (at == NONE) return; /* an incoming link needs no record: rx knows links by id */
        n->links[at] = (node_link){.outgoing = outgoing, .peer_epoch = peer_epoch};
        snprintf(n->links[at].peer, sizeof n->links[at].peer, "%s", peer);
    }
    node_link *l = &n->links[at];
    l->state = LINK_UP;
    l->id = link;
    memcpy(l->nonce, nonce, sizeof l->nonce);
    for (uint32_t i = 0; i < n->config.requests_max; i++) {
        node_req *r = &n->reqs[i];
        if (r->state != REQ_FREE && r->tx_active && !r->ending && r->link_slot == at) take_link(n, r, l);
    }
}

void kvf_node_on_calling(kvf_node *n, const char *peer, uint64_t peer_epoch, kvf_link_id link) {
    uint32_t at = link_find(n, peer, peer_epoch);
    if (at != NONE && n->links[at].state == LINK_CALLING) n->links[at].id = link;
}

void kvf_node_on_link_over(kvf_node *n, kvf_link_id link, const char *transport) {
    uint32_t at = n->links_told_count;
    for (uint32_t i = 0; i < n->config.links_max; i++) {
        const node_link *l = &n->links[i];
        if (l->state != LINK_UP || l->id != link || !l->outgoing || at == KVF_LINKS_TOLD_MAX) continue;
        memcpy(n->links_told[at].node, l->peer, sizeof l->peer);
        snprintf(n->links_told[at].transport, KVF_TRANSPORT_MAX, "%s", transport);
        n->links_told_id[at] = link;
        n->links_told_count++;
        return;
    }
}

static void told_no_more(kvf_node *n, kvf_link_id link) {
    for (uint32_t i = 0; i < n->links_told_count; i++) {
        if (n->links_told_id[i] != link) continue;
        uint32_t last = --n->links_told_count;
        n->links_told[i] = n->links_told[last];
        n->links_told_id[i] = n->links_told_id[last];
        return;
    }
}

/* A call that could not even begin has no id: then the peer's name finds it. */
static uint32_t link_by_id(const kvf_node *n, kvf_link_id link, const char *peer) {
    for (uint32_t i = 0; i < n->config.links_max; i++) {
        const node_link *l = &n->links[i];
        if (l->state == LINK_FREE || l->state == LINK_WAITING || l->id != link) continue;
        if (link != KVF_LINK_NONE || strcmp(l->peer, peer) == 0) return i;
    }
    return NONE;
}

/* true: it waits for the next link. */
static bool lost_link(kvf_node *n, node_req *r, bool was_calling, kvf_status reason, const char *text) {
    /* Another process is there, or one that this node may not speak to: no use in calling again. */
    bool final = reason == KVF_ERR_MISMATCH || reason == KVF_ERR_STALE || reason == KVF_ERR_AUTH;
    bool live = r->tx_active && !r->ending;
    /* Which once had a link: until relink_ttl, which tx keeps. Which never had one: a connection that was cut while it
     * was made is made once more. */
    bool again =
        !r->linked ? reason == KVF_ERR_PEER_LOST && r->relinks++ == 0 : was_calling || r->relinks++ < RELINKS_MAX;
    if (live && n->config.relink_ttl_ns && !final && again) return true;
    r->link_slot = NONE;
    /* Without a relink ttl, hand-offs on a link that was up end through tx; those that waited for it end here, with the
     * reason of the call. */
    if (live && (was_calling || n->config.relink_ttl_ns))
        node_fail(n, r, KVF_STAGE_TRANSFER, reason, r->peer, reason != KVF_ERR_MISMATCH, text);
    return false;
}

void kvf_node_on_link_down(
    kvf_node *n, kvf_time_ns now, kvf_link_id link, const char *peer, kvf_status reason, const char *text) {
    n->now = now;
    uint32_t at = link_by_id(n, link, peer);
    if (link != KVF_LINK_NONE) {
        kvf_rx_on_link_down(n->rx, now, link);
        kvf_tx_on_link_down(n->tx, now, link);
        told_no_more(n, link);
    }
    if (at == NONE) return;
    node_link *l = &n->links[at];
    bool was_calling = l->state == LINK_CALLING;
    bool waited_for = false;
    for (uint32_t i = 0; i < n->config.requests_max; i++)
        if (n->reqs[i].state != REQ_FREE && n->reqs[i].link_slot == at)
            waited_for |= lost_link(n, &n->reqs[i], was_calling, reason, text);
    l->state = LINK_FREE;
    if (!waited_for) return;
    if (!was_calling) {
        dial(n, l); /* most often only the connection broke */
        return;
    }
    l->state = LINK_WAITING;
    l->redial_at = now + n->config.relink_ttl_ns / REDIALS;
}

static bool waits_for(const node_req *r, uint32_t at) {
    return r->state != REQ_FREE && r->link_slot == at && r->tx_active && !r->ending;
}

void node_links_on_time(kvf_node *n) {
    for (uint32_t at = 0; at < n->config.links_max; at++) {
        node_link *l = &n->links[at];
        if (l->state != LINK_WAITING || l->redial_at > n->now) continue;
        bool wanted = false;
        for (uint32_t i = 0; i < n->config.requests_max && !wanted; i++) wanted = waits_for(&n->reqs[i], at);
        if (wanted)
            dial(n, l);
        else
            l->state = LINK_FREE;
    }
}

kvf_time_ns node_links_deadline(const kvf_node *n) {
    kvf_time_ns at = KVF_TIME_NEVER;
    for (uint32_t i = 0; i < n->config.links_max; i++)
        if (n->links[i].state == LINK_WAITING) at = KVF_MIN(at, n->links[i].redial_at);
    return at;
}

static const node_link *link_that_is_up(const kvf_node *n, kvf_link_id link) {
    for (uint32_t i = 0; i < n->config.links_max; i++)
        if (n->links[i].state == LINK_UP && n->links[i].id == link) return &n->links[i];
    return NULL;
}

/* Counted for the peer. Of a link without a record, or of one peer too many, only the sum in kvf_rx_counts knows. */
static void rejected(kvf_node *n, kvf_link_id link) {
    const node_link *l = link_that_is_up(n, link);
    if (!l) return;
    uint32_t i = 0;
    while (i < n->rejected_count && strcmp(n->rejected[i].node, l->peer) != 0) i++;
    if (i == KVF_REJECTED_MAX) return;
    if (i == n->rejected_count) memcpy(n->rejected[n->rejected_count++].node, l->peer, sizeof l->peer);
    n->rejected[i].frames++;
}

kvf_status kvf_node_on_frame(kvf_node *n, kvf_time_ns now, kvf_link_id link, const kvf_frame *f) {
    static const uint8_t no_nonce[16];
    n->now = now;
    switch (f->kind) {
    case KVF_FRAME_OPENED:
    case KVF_FRAME_COMMITTED:
    case KVF_FRAME_MISSING:
    case KVF_FRAME_GONE: kvf_tx_on_frame(n->tx, now, link, f); return KVF_OK;
    default: break;
    }
    const node_link *l = link_that_is_up(n, link); /* no record of it: no proof can hold */
    kvf_status status = kvf_rx_on_frame(n->rx, now, link, l ? l->nonce : no_nonce, f);
    if (status != KVF_OK) rejected(n, link);
    return status;
}

kvf_page_verdict kvf_node_on_page(
    kvf_node *n, kvf_time_ns now, kvf_link_id link, const kvf_page_header *header, kvf_landing *landing) {
    n->now = now;
    kvf_page_verdict verdict = kvf_rx_on_page(n->rx, now, link, header, landing);
    if (verdict != KVF_PAGE_ACCEPT) rejected(n, link);
    return verdict;
}

void kvf_node_on_landed(kvf_node *n, kvf_time_ns now, const kvf_landing *landing, bool crc_ok) {
    n->now = now;
    kvf_rx_on_landed(n->rx, now, landing, crc_ok);
    if (!crc_ok) rejected(n, landing->link);
}

void kvf_node_on_dropped(kvf_node *n, kvf_time_ns now, const kvf_landing *landing) {
    n->now = now;
    kvf_rx_on_dropped(n->rx, now, landing);
}

bool kvf_node_link_waits(const kvf_node *n, kvf_link_id link) { return kvf_tx_waits(n->tx, link); }
bool kvf_node_link_used(const kvf_node *n, kvf_link_id link) {
    return kvf_tx_uses(n->tx, link) || kvf_rx_uses(n->rx, link);
}

void kvf_node_on_page_sent(kvf_node *n, kvf_time_ns now, uint64_t token, bool ok, uint32_t crc) {
    n->now = now;
    kvf_tx_on_page_sent(n->tx, now, token, ok, crc);
}
