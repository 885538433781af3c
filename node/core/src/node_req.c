/* Records of requests and sequences: made, found, given back. */
#include "node_int.h"

uint32_t node_req_index(const kvf_node *n, const node_req *r) { return (uint32_t)(r - n->reqs); }

void node_req_set_state(node_req *r, req_state to) {
    req_state from = r->state;
    bool lawful = false
#define STATE(name)
#define MOVE(before, after, event) || (from == REQ_##before && to == REQ_##after)
#include "request_moves.h"
#undef STATE
#undef MOVE
        ;
    KVF_ASSERT(lawful);
    KVF_MOVE_SEEN(REQUEST, from, to);
    r->state = to;
}

node_req *node_find(kvf_node *n, kvf_request_id id, req_leg leg) {
    for (uint32_t i = 0; i < n->config.requests_max; i++) {
        node_req *r = &n->reqs[i];
        if (r->state != REQ_FREE && !r->ending && r->leg == leg && kvf_request_id_equal(r->id, id)) return r;
    }
    return NULL;
}

node_seq *node_first_seq(kvf_node *n, const node_req *r) { return &n->seqs[r->seq[0]]; }

static node_req *free_slot(kvf_node *n) {
    for (uint32_t i = 0; i < n->config.requests_max; i++)
        if (n->reqs[i].state == REQ_FREE) return &n->reqs[i];
    return NULL;
}

static uint32_t take_sequences(kvf_node *n, node_req *r, uint32_t count) {
    uint32_t got = 0;
    for (uint32_t i = 0; i < n->config.sequences_max && got < count; i++) {
        if (n->seqs[i].state != SEQ_FREE) continue;
        r->seq[got++] = i;
    }
    return got;
}

static void seq_reset(node_seq *s, uint32_t req, uint32_t choice) {
    s->state = SEQ_HELD;
    s->req = req;
    s->choice = choice;
    s->count = s->computed = s->blocks_count = s->sealed_count = s->emitted = 0;
    s->in_step = false;
}

static kvf_hash128 root_of(const kvf_node *n, const kvf_work *w) {
    const kvf_identity *id = &n->config.info.identity;
    bool salted = w->salt.lo != 0 || w->salt.hi != 0;
    uint8_t salt[16];
    kvf_put_le64(salt, w->salt.lo);
    kvf_put_le64(salt + 8, w->salt.hi);
    return kvf_kv_root((kvf_span){id->weights_hash, sizeof id->weights_hash},
        (kvf_span){id->numerics, strlen(id->numerics)}, (kvf_span){salt, salted && !MUTANT(18) ? sizeof salt : 0});
}

node_req *node_req_new(kvf_node *n, uint32_t session, const kvf_work *w, req_leg leg) {
    node_req *r = free_slot(n);
    uint32_t sequences = leg == LEG_PREFILL ? 1 : w->n;
    if (!r || take_sequences(n, r, sequences) < sequences) return NULL;
    uint8_t *sampling = r->sampling;
    uint32_t *missing = r->missing;
    uint32_t seq[KVF_CHOICES_MAX];
    memcpy(seq, r->seq, sizeof seq);
    *r = (node_req){.leg = leg,
        .session = session,
        .arrival = ++n->arrivals,
        .id = w->request,
        .attempt = w->attempt,
        .prompt_count = w->prompt_count,
        .tokens_count = w->tokens_count,
        .n = w->n,
        .choice_base = w->choice_base,
        .output_max = w->output_max,
        .output_max_given = w->output_max_given,
        .priority = w->priority,
        .accepted_at = n->now,
        .ship_min = w->ship_min,
        .prompt_logprobs = w->prompt_logprobs,
        .alone = w->alone,
        .sampling = sampling,
        .missing = missing,
        .sampling_bytes = (uint32_t)w->sampling.len_bytes,
        .live = w->n,
        .link_slot = NONE};
    memcpy(r->seq, seq, sizeof seq);
    if (w->sampling.len_bytes) memcpy(r->sampling, w->sampling.data, w->sampling.len_bytes);
    r->deadline = w->time_left_ns >= KVF_TIME_NEVER - n->now ? KVF_TIME_NEVER : n->now + w->time_left_ns;
    r->root = root_of(n, w);
    for (uint32_t i = 0; i < sequences; i++) seq_reset(&n->seqs[r->seq[i]], node_req_index(n, r), w->choice_base + i);
    node_seq *s = node_first_seq(n, r);
    memcpy(s->tokens, w->tokens, sizeof *w->tokens * w->tokens_count);
    s->count = w->tokens_count;
    return r;
}

static uint32_t sequences_of(const node_req *r) { return r->leg == LEG_PREFILL ? 1 : r->n; }

bool node_in_step(const kvf_node *n, const node_req *r) {
    for (uint32_t i = 0; i < sequences_of(r); i++)
        if (n->seqs[r->seq[i]].in_step) return true;
    return false;
}

/* Tail first: a parent must never become evictable before its child. */
static void seq_give_back(kvf_node *n, node_seq *s) {
    while (s->blocks_count > 0) kvf_kv_unpin(n->kv, s->block[--s->blocks_count]);
    s->state = SEQ_FREE;
}

void node_release(kvf_node *n, node_req *r) {
    if (r->state == REQ_FREE) return;
    if (r->in_queue) {
        r->in_queue = false;
        n->queued--;
    }
    if (r->grant) {
        uint32_t spent = 0;
        if (kvf_rx_revoke(n->rx, n->now, r->grant, KVF_ERR_CANCELLED, &spent) != KVF_OK) {
            r->ending = true; /* it has ended already and rx is about to say how: node_on_rx settles it */
            return;
        }
        r->booked -= spent;
        r->grant = 0;
    }
    if (r->tx_active && !r->ending) kvf_tx_cancel(n->tx, n->now, r->tx, KVF_ERR_CANCELLED);
    if (r->booked && !MUTANT(9)) {
        kvf_kv_unbook(n->kv, r->booked);
        r->booked = 0;
    }
    /* The running step reads and writes these pages, and sends of the hand-off still need the blocks: finish there. */
    if ((node_in_step(n, r) && !MUTANT(2)) || (r->tx_active && !MUTANT(3))) {
        r->ending = true;
        return;
    }
    for (uint32_t i = 0; i < sequences_of(r); i++) seq_give_back(n, &n->seqs[r->seq[i]]);
    node_req_set_state(r, REQ_FREE);
    r->ending = false;
}

void node_seq_add_block(node_seq *s, kvf_block_id id) {
    s->block[s->blocks_count] = id;
    s->physical[s->blocks_count] = id.index;
    s->blocks_count++;
}

void node_seq_set_block(node_seq *s, uint32_t logical, kvf_block_id id) {
    KVF_ASSERT(logical < s->blocks_count);
    s->block[logical] = id;
    s->physical[logical] = id.index;
}

void node_seal(kvf_node *n, node_req *r, node_seq *s) {
    uint32_t full = s->computed / KVF_KV_BLOCK_TOKENS;
    while (s->sealed_count < full) {
        uint32_t at = s->sealed_count;
        kvf_block_id now_block;
        kvf_kv_seal(n->kv, s->block[at], r->root, at ? s->block[at - 1] : KVF_BLOCK_NONE,
            s->tokens + at * KVF_KV_BLOCK_TOKENS, &now_block); /* KVF_AGAIN only means that the block stays private */
        if (!kvf_block_id_equal(now_block, s->block[at])) {
            node_seq_set_block(s, at, now_block);
            if (r->tx_active) kvf_tx_set_block(n->tx, r->tx, at, now_block);
        }
        s->sealed_count++;
    }
    if (s->computed % KVF_KV_BLOCK_TOKENS && full < s->blocks_count)
        kvf_kv_set_filled(n->kv, s->block[full], s->computed % KVF_KV_BLOCK_TOKENS);
}

void node_note_cancel(kvf_node *n, kvf_request_id id, uint32_t attempt) {
    n->cancels[n->cancel_next++ % CANCEL_NOTES] =
        (cancel_note){.id = id, .attempt = attempt, .until = n->now + n->config.cancel_memory_ns};
}

void node_note_failed(kvf_node *n, const node_req *r, kvf_stage stage, kvf_status reason) {
    n->cancels[n->cancel_next++ % CANCEL_NOTES] = (cancel_note){.id = r->id,
        .attempt = r->attempt,
        .until = n->now + n->config.cancel_memory_ns,
        .failed = (uint16_t)reason,
        .stage = (uint16_t)stage};
}

const cancel_note *node_has_failed(const kvf_node *n, const kvf_work *w) {
    for (uint32_t i = 0; i < CANCEL_NOTES; i++) {
        const cancel_note *c = &n->cancels[i];
        if (c->failed != KVF_OK && c->until > n->now && c->attempt == w->attempt &&
            kvf_request_id_equal(c->id, w->request))
            return c;
    }
    return NULL;
}

bool node_was_cancelled(const kvf_node *n, kvf_request_id id, uint32_t attempt) {
    for (uint32_t i = 0; i < CANCEL_NOTES; i++) {
        const cancel_note *c = &n->cancels[i];
        if (c->failed == KVF_OK && c->until > n->now && kvf_request_id_equal(c->id, id) &&
            (c->attempt == 0 || attempt <= c->attempt))
            return true;
    }
    return false;
}
