/* Layout of the core's memory: everything is sized here, nothing is allocated later. */
#include "node_int.h"

#define TOMBSTONES 1024

static kvf_kv_config kv_config(const kvf_node_config *c) {
    return (kvf_kv_config){.blocks = c->blocks, .events_max = c->events_max};
}

static uint32_t blocks_per_seq(const kvf_node_config *c) {
    return (uint32_t)kvf_div_up(c->context_max, KVF_KV_BLOCK_TOKENS) + 1;
}

static kvf_rx_config rx_config(const kvf_node_config *c) {
    return (kvf_rx_config){.grants_max = c->requests_max,
        .blocks_max = blocks_per_seq(c),
        .layers = c->layers,
        .page_bytes = c->page_bytes,
        .epoch = c->info.epoch,
        .grant_ttl_ns = c->grant_ttl_ns,
        .tombstones_max = TOMBSTONES};
}

static kvf_tx_config tx_config(const kvf_node_config *c) {
    return (kvf_tx_config){.handoffs_max = c->requests_max,
        .blocks_max = blocks_per_seq(c),
        .layers = c->layers,
        .page_bytes = c->page_bytes,
        .inflight_max = c->inflight_max ? c->inflight_max : 256,
        .hold_ttl_ns = c->hold_ttl_ns,
        .relink_ttl_ns = c->relink_ttl_ns};
}

/* One event can at most answer every request and every session; snapshots and reports come in parts. */
static uint32_t acts_max(const kvf_node_config *c) {
    return 4 * c->requests_max + (64 + SCORE_RUNS_MAX) * c->sessions_max + c->blocks / 1024 + 64;
}

static size_t scratch_bytes(const kvf_node_config *c) {
    size_t tokens = (size_t)c->sessions_max * c->outbox_max * sizeof(kvf_token_item);
    size_t scores = (size_t)c->sessions_max * SCORE_RUNS_MAX * SCORE_ROWS_MAX * KVF_SAMPLE_BYTES_MAX;
    size_t names = ((size_t)c->blocks + 8192) * sizeof(kvf_hash128) * c->sessions_max;
    return tokens + scores + names + ((size_t)4 << 20);
}

static void lay_out_records(kvf_node *n, const kvf_node_config *c, kvf_arena *a) {
    uint32_t per_seq = blocks_per_seq(c), wide = KVF_MAX(c->requests_max, c->sequences_max);
    kvf_node scratch_target, *t = n ? n : &scratch_target;
    t->reqs = KVF_ARENA_NEW(a, node_req, c->requests_max);
    t->seqs = KVF_ARENA_NEW(a, node_seq, c->sequences_max);
    t->sessions = KVF_ARENA_NEW(a, node_session, c->sessions_max);
    t->outbox = KVF_ARENA_NEW(a, out_item, (size_t)c->sessions_max * c->outbox_max);
    t->links = KVF_ARENA_NEW(a, node_link, c->links_max);
    t->runs = KVF_ARENA_NEW(a, kvf_step_run, c->step_sequences_max);
    t->run_seq = KVF_ARENA_NEW(a, uint32_t, c->step_sequences_max);
    t->copies = KVF_ARENA_NEW(a, kvf_step_copy, c->sequences_max);
    t->copy_blocks = KVF_ARENA_NEW(a, kvf_block_id, (size_t)2 * c->sequences_max);
    t->prefill_candidates = KVF_ARENA_NEW(a, kvf_prefill_candidate, c->requests_max);
    t->prefill_runs = KVF_ARENA_NEW(a, kvf_prefill_run, c->step_sequences_max);
    t->prefill_scratch = KVF_ARENA_NEW(a, uint32_t, c->requests_max);
    t->decode_candidates = KVF_ARENA_NEW(a, kvf_decode_candidate, wide);
    t->holders = KVF_ARENA_NEW(a, kvf_decode_holder, wide);
    t->decode_picks = KVF_ARENA_NEW(a, uint32_t, wide);
    t->index_scratch = KVF_ARENA_NEW(a, uint32_t, wide);
    t->emit_planned = KVF_ARENA_NEW(a, uint32_t, c->sessions_max);
    t->hits = KVF_ARENA_NEW(a, kvf_block_id, per_seq);
    t->acts = KVF_ARENA_NEW(a, kvf_node_act, acts_max(c));
    t->scratch = kvf_arena_take(a, scratch_bytes(c), 64);
    for (uint32_t i = 0; i < c->sequences_max; i++) {
        uint32_t *tokens = KVF_ARENA_NEW(a, uint32_t, c->context_max);
        kvf_block_id *block = KVF_ARENA_NEW(a, kvf_block_id, per_seq);
        uint32_t *physical = KVF_ARENA_NEW(a, uint32_t, per_seq);
        if (n) n->seqs[i] = (node_seq){.tokens = tokens, .block = block, .physical = physical};
    }
    for (uint32_t i = 0; i < c->requests_max; i++) {
        uint8_t *sampling = kvf_arena_take(a, c->sampling_bytes_max, 16);
        uint32_t *missing = KVF_ARENA_NEW(a, uint32_t, per_seq);
        if (n) {
            n->reqs[i].sampling = sampling;
            n->reqs[i].missing = missing;
        }
    }
}

static void *lay_out(const kvf_node_config *c, kvf_arena *a, kvf_node **out) {
    kvf_kv_config kc = kv_config(c);
    kvf_rx_config rc = rx_config(c);
    kvf_tx_config tc = tx_config(c);
    kvf_node *n = KVF_ARENA_NEW(a, kvf_node, 1);
    void *kv = kvf_arena_take(a, kvf_kv_size(&kc), 64);
    void *rx = kvf_arena_take(a, kvf_rx_size(&rc), 64);
    void *tx = kvf_arena_take(a, kvf_tx_size(&tc), 64);
    lay_out_records(n, c, a);
    if (n) {
        n->kv = kvf_kv_init(kv, &kc);
        n->rx = kvf_rx_init(rx, &rc, n->kv);
        n->tx = kvf_tx_init(tx, &tc, n->kv);
    }
    *out = n;
    return n;
}

size_t kvf_node_size(const kvf_node_config *config) {
    kvf_arena measure = {0};
    kvf_node *n;
    lay_out(config, &measure, &n);
    return measure.used_bytes;
}

kvf_node *kvf_node_init(void *memory, const kvf_node_config *config, kvf_time_ns now) {
    KVF_ASSERT(config->requests_max > 0 && config->sequences_max > 0 && config->sessions_max > 0);
    KVF_ASSERT(config->step_tokens_max >= config->step_sequences_max);
    KVF_ASSERT(config->outbox_max >= 2 * config->sequences_max + config->step_sequences_max + SCORE_ROWS_MAX);
    kvf_arena a = {.base = memory, .size_bytes = kvf_node_size(config), .zeroed = true};
    kvf_node *n;
    lay_out(config, &a, &n);
    n->config = *config;
    n->state = KVF_NODE_READY;
    n->role = config->info.role;
    n->now = now;
    n->acts_max = acts_max(config);
    n->scratch_bytes = scratch_bytes(config);
    n->drain_until = KVF_TIME_NEVER;
    kvf_decode_estimate_init(&n->estimate, 1, config->context_max, config->expected_output);
    return n;
}

kvf_kv *kvf_node_kv(kvf_node *n) { return n->kv; }
