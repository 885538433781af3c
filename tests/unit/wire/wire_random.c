#include "wire_random.h"
#include "kvf/wire.h"

#define LIST_MAX 40

static struct {
    uint32_t numbers[4 * LIST_MAX];
    uint8_t bytes[LIST_MAX * KVF_SAMPLE_BYTES_MAX];
    kvf_live live[LIST_MAX];
    kvf_token_item items[LIST_MAX];
    kvf_block_event events[LIST_MAX];
    kvf_hash128 names[LIST_MAX];
    kvf_block_report reports[LIST_MAX];
    kvf_prefilling_item prefilling[LIST_MAX];
    kvf_rejected rejected[KVF_REJECTED_MAX];
    kvf_link_over links[KVF_LINKS_TOLD_MAX];
} pool;

/* Small and huge values alike. */
static uint64_t any(kvf_rng *rng) {
    switch (kvf_rng_below(rng, 4)) {
    case 0: return 0;
    case 1: return kvf_rng_below(rng, 200);
    case 2: return UINT64_MAX;
    default: return kvf_rng_next(rng);
    }
}
static uint32_t any32(kvf_rng *rng) { return (uint32_t)any(rng); }
static bool flip(kvf_rng *rng) { return kvf_rng_below(rng, 2); }
static uint32_t below(kvf_rng *rng, uint32_t bound) { return (uint32_t)kvf_rng_below(rng, bound); }
static uint32_t one_of(kvf_rng *rng, uint32_t first, uint32_t last) { return first + below(rng, last - first + 1); }
static uint32_t positive(kvf_rng *rng) {
    uint32_t v = any32(rng);
    return v ? v : 1;
}

static kvf_request_id id(kvf_rng *rng) { return (kvf_request_id){any(rng), 1 + kvf_rng_below(rng, UINT64_MAX - 1)}; }
static kvf_hash128 hash(kvf_rng *rng) { return (kvf_hash128){any(rng), any(rng)}; }

static void text(kvf_rng *rng, char *out, size_t out_bytes, bool may_be_empty) {
    size_t len_bytes = kvf_rng_below(rng, 3) == 0 ? out_bytes - 1 : kvf_rng_below(rng, out_bytes);
    if (!may_be_empty && len_bytes == 0) len_bytes = 1;
    for (size_t i = 0; i < len_bytes; i++) out[i] = (char)(1 + kvf_rng_below(rng, 255));
    memset(out + len_bytes, 0, out_bytes - len_bytes);
}

static kvf_span bytes(kvf_rng *rng, uint8_t *at, size_t len_bytes) {
    for (size_t i = 0; i < len_bytes; i++) at[i] = (uint8_t)kvf_rng_next(rng);
    return (kvf_span){at, len_bytes};
}

static kvf_status any_status(kvf_rng *rng, bool may_be_ok) {
    static const kvf_status all[] = {
#define ITEM(name, value, text) name,
        KVF_STATUS_LIST(ITEM)
#undef ITEM
    };
    uint32_t first = may_be_ok ? 0 : 1;
    return all[first + below(rng, (uint32_t)KVF_COUNT_OF(all) - first)];
}

static const uint32_t *ascending(kvf_rng *rng, uint32_t *at, uint32_t *count) {
    *count = below(rng, LIST_MAX);
    uint32_t value = 0;
    for (uint32_t i = 0; i < *count; i++) at[i] = value += 1 + below(rng, 1000);
    return at;
}

static void work(kvf_rng *rng, kvf_work *w) {
    *w = (kvf_work){.request = id(rng), .attempt = positive(rng), .salt = hash(rng), .ship_min = any32(rng)};
    w->tokens_count = 1 + below(rng, LIST_MAX);
    w->tokens = pool.numbers;
    for (uint32_t i = 0; i < w->tokens_count; i++) pool.numbers[i] = any32(rng);
    w->prompt_count = 1 + below(rng, w->tokens_count);
    w->n = w->prompt_count == w->tokens_count ? one_of(rng, 1, KVF_CHOICES_MAX) : 1;
    w->choice_base = below(rng, KVF_CHOICES_MAX - w->n + 1);
    w->output_max = w->tokens_count - w->prompt_count + 1 + below(rng, 1000);
    w->output_max_given = flip(rng);
    w->priority = (int32_t)any32(rng);
    w->time_left_ns = any(rng);
    w->prompt_logprobs = below(rng, KVF_WIRE_PROMPT_LOGPROBS_MAX + 1);
    w->alone = flip(rng);
    w->sampling = bytes(rng, pool.bytes, below(rng, KVF_WIRE_SAMPLING_MAX + 1));
}

static void ship_to(kvf_rng *rng, kvf_ship_to *to) {
    *to = (kvf_ship_to){.epoch = any(rng), .host_id = any(rng), .grant = any(rng)};
    text(rng, to->node, sizeof to->node, true);
    text(rng, to->address, sizeof to->address, true);
    text(rng, to->local_address, sizeof to->local_address, true);
    bytes(rng, to->secret, sizeof to->secret);
    to->missing = ascending(rng, pool.numbers + 2 * LIST_MAX, &to->missing_count);
}

void wire_random_rmsg(kvf_rng *rng, kvf_r_kind kind, kvf_rmsg *m) {
    memset(m, 0, sizeof *m);
    m->kind = kind;
    switch (kind) {
    case KVF_R_HELLO:
        text(rng, m->hello.router, sizeof m->hello.router, true);
        m->hello.router_epoch = any(rng) | 1;
        m->hello.wire_version = any32(rng);
        m->hello.events_seen = any(rng);
        m->hello.live_count = below(rng, LIST_MAX);
        m->hello.live = pool.live;
        for (uint32_t i = 0; i < m->hello.live_count; i++)
            pool.live[i] = (kvf_live){id(rng), positive(rng), below(rng, KVF_CHOICES_MAX), any32(rng)};
        return;
    case KVF_R_RESERVE: work(rng, &m->reserve); return;
    case KVF_R_PREFILL:
        work(rng, &m->prefill.work);
        ship_to(rng, &m->prefill.to);
        return;
    case KVF_R_CANCEL:
        m->cancel.request = id(rng);
        m->cancel.attempt = any32(rng);
        m->cancel.finished = flip(rng);
        return;
    case KVF_R_ACK: m->ack.number = any(rng); return;
    case KVF_R_DRAIN: m->drain.deadline_ns = any(rng); return;
    case KVF_R_SET_ROLE: m->set_role.role = (kvf_role)one_of(rng, KVF_ROLE_PREFILL, KVF_ROLE_DECODE); return;
    case KVF_R_FLUSH: m->flush.query = any(rng); return;
    case KVF_R_AUDIT: m->audit.query = any(rng); return;
    case KVF_R_BLOCKS:
        m->blocks.query = any(rng);
        if (flip(rng)) m->blocks.request = id(rng);
        m->blocks.name = hash(rng);
        m->blocks.limit = any32(rng);
        return;
    default: return;
    }
}

static void stats(kvf_rng *rng, kvf_node_stats *s) {
    memset(s, 0, sizeof *s);
    uint32_t *narrow[] = {&s->running, &s->waiting, &s->blocks_total, &s->blocks_free, &s->blocks_filling,
        &s->blocks_sealed, &s->blocks_pinned, &s->blocks_in_use, &s->blocks_booked, &s->blocks_evictable,
        &s->waste_ppm};
    uint64_t *wide[] = {&s->waiting_tokens, &s->prefill_tokens, &s->decode_tokens, &s->prefill_busy_ns,
        &s->decode_busy_ns, &s->pages_sent, &s->bytes_sent, &s->pages_received, &s->bytes_received, &s->frames_rejected,
        &s->preemptions, &s->cancels, &s->evictions, &s->cache_hit_tokens, &s->events_next};
    s->state = (kvf_node_state)one_of(rng, KVF_NODE_STARTING, KVF_NODE_LOST);
    s->role = (kvf_role)one_of(rng, KVF_ROLE_PREFILL, KVF_ROLE_DECODE);
    for (size_t i = 0; i < KVF_COUNT_OF(narrow); i++) *narrow[i] = any32(rng);
    for (size_t i = 0; i < KVF_COUNT_OF(wide); i++) *wide[i] = any(rng);
    s->rejected_count = flip(rng) ? 0 : below(rng, KVF_REJECTED_MAX + 1);
    s->rejected = pool.rejected;
    for (uint32_t i = 0; i < s->rejected_count; i++) {
        text(rng, pool.rejected[i].node, sizeof pool.rejected[i].node, false);
        pool.rejected[i].frames = any(rng) | 1;
    }
    s->links_count = flip(rng) ? 0 : below(rng, KVF_LINKS_TOLD_MAX + 1);
    s->links = pool.links;
    for (uint32_t i = 0; i < s->links_count; i++) {
        text(rng, pool.links[i].node, sizeof pool.links[i].node, false);
        text(rng, pool.links[i].transport, sizeof pool.links[i].transport, false);
    }
}

static void info(kvf_rng *rng, kvf_node_info *i) {
    kvf_identity *y = &i->identity;
    uint32_t *numbers[] = {&y->wire_version, &y->block_tokens, &y->layers, &y->heads, &y->kv_heads, &y->head_dim,
        &y->vocab, &y->page_bytes, &y->context_max, &y->layout, &y->rope_dims, &y->rope_base_bits, &y->rope_style};
    text(rng, i->node, sizeof i->node, false);
    i->epoch = any(rng);
    i->wire_version = any32(rng);
    i->role = (kvf_role)one_of(rng, KVF_ROLE_PREFILL, KVF_ROLE_DECODE);
    i->host_id = any(rng);
    i->started_ns = any(rng);
    text(rng, i->address, sizeof i->address, true);
    text(rng, i->local_address, sizeof i->local_address, true);
    text(rng, i->backend, sizeof i->backend, true);
    for (int k = 0; k < 2; k++) {
        y->weights_hash[k] = any(rng);
        y->tokenizer_hash[k] = any(rng);
    }
    for (size_t k = 0; k < KVF_COUNT_OF(numbers); k++) *numbers[k] = any32(rng);
    text(rng, y->numerics, sizeof y->numerics, true);
    text(rng, y->kv_type, sizeof y->kv_type, true);
}

static void reports(kvf_rng *rng, kvf_nmsg *m) {
    m->blocks.query = any(rng);
    m->blocks.truncated = flip(rng);
    m->blocks.count = below(rng, LIST_MAX);
    m->blocks.blocks = pool.reports;
    for (uint32_t i = 0; i < m->blocks.count; i++) {
        kvf_block_report *b = &pool.reports[i];
        memset(b, 0, sizeof *b);
        b->block = any32(rng);
        b->generation = any32(rng);
        b->state = below(rng, 3);
        b->pins = any32(rng);
        b->uses = any32(rng);
        b->tokens = any32(rng);
        b->indexed = flip(rng);
        b->name = hash(rng);
        for (uint32_t k = 0, holders = below(rng, 5); k < holders; k++) b->requests[k] = id(rng);
    }
}

static void lists(kvf_rng *rng, kvf_nmsg *m) {
    uint32_t count = below(rng, LIST_MAX);
    for (uint32_t i = 0; i < count; i++) {
        pool.names[i] = hash(rng);
        pool.events[i] = (kvf_block_event){flip(rng), hash(rng)};
    }
    if (m->kind == KVF_N_EVENTS) {
        m->events.first = 1 + kvf_rng_below(rng, UINT64_MAX - LIST_MAX - 1);
        m->events.events = pool.events;
        m->events.count = count;
        return;
    }
    m->snapshot.events_next = 1 + kvf_rng_below(rng, UINT64_MAX - 1);
    m->snapshot.names = pool.names;
    m->snapshot.count = count;
    m->snapshot.first = flip(rng);
    m->snapshot.last = flip(rng);
}

static void tokens(kvf_rng *rng, kvf_nmsg *m) {
    m->tokens.number = any(rng);
    m->tokens.count = below(rng, LIST_MAX);
    m->tokens.items = pool.items;
    for (uint32_t i = 0; i < m->tokens.count; i++) {
        kvf_token_item *t = &pool.items[i];
        *t = (kvf_token_item){.request = id(rng), .attempt = positive(rng), .index = below(rng, KVF_CHOICES_MAX)};
        t->position = any32(rng);
        t->token = any32(rng);
        t->end = (kvf_end)one_of(rng, KVF_END_NONE, KVF_END_LENGTH);
        t->repeated = flip(rng);
        t->sample = bytes(rng, pool.bytes + i * KVF_SAMPLE_BYTES_MAX, below(rng, KVF_SAMPLE_BYTES_MAX + 1));
    }
}

static void prefilling(kvf_rng *rng, kvf_nmsg *m) {
    m->prefilling.count = below(rng, LIST_MAX);
    m->prefilling.items = pool.prefilling;
    for (uint32_t i = 0; i < m->prefilling.count; i++)
        pool.prefilling[i] =
            (kvf_prefilling_item){id(rng), positive(rng), below(rng, KVF_WIRE_TOKENS_MAX), 1 + below(rng, 1000)};
}

static void about_node(kvf_rng *rng, kvf_nmsg *m) {
    switch (m->kind) {
    case KVF_N_WELCOME:
        info(rng, &m->welcome.info);
        stats(rng, &m->welcome.stats);
        return;
    case KVF_N_TOKENS: tokens(rng, m); return;
    case KVF_N_STATUS: stats(rng, &m->status); return;
    case KVF_N_EVENTS:
    case KVF_N_SNAPSHOT: lists(rng, m); return;
    case KVF_N_AUDIT:
        m->audit.query = any(rng);
        m->audit.blocks_checked = any(rng);
        m->audit.at_rest = flip(rng);
        m->audit.clean = flip(rng);
        text(rng, m->audit.invariant, sizeof m->audit.invariant, true);
        text(rng, m->audit.detail, sizeof m->audit.detail, true);
        stats(rng, &m->audit.stats);
        return;
    case KVF_N_BLOCKS: reports(rng, m); return;
    case KVF_N_FLUSHED:
        m->flushed.query = any(rng);
        m->flushed.blocks_freed = any(rng);
        return;
    case KVF_N_PREFILLING: prefilling(rng, m); return;
    default: return;
    }
}

static void about_attempt(kvf_rng *rng, kvf_nmsg *m) {
    switch (m->kind) {
    case KVF_N_GRANTED:
        m->granted.grant = any(rng);
        bytes(rng, m->granted.secret, sizeof m->granted.secret);
        m->granted.ttl_ns = any(rng);
        m->granted.cached_tokens = any32(rng);
        m->granted.missing = ascending(rng, pool.numbers, &m->granted.missing_count);
        return;
    case KVF_N_LOCAL: m->local.cached_tokens = any32(rng); return;
    case KVF_N_QUEUED: m->queued.place = any32(rng); return;
    case KVF_N_REFUSED:
        m->refused.reason = any_status(rng, false);
        text(rng, m->refused.field, sizeof m->refused.field, true);
        text(rng, m->refused.text, sizeof m->refused.text, true);
        m->refused.retry_after_ns = any(rng);
        return;
    case KVF_N_ALREADY_STARTED:
        m->already_started.attempt = positive(rng);
        m->already_started.position = any32(rng);
        return;
    case KVF_N_SHIPPED:
        m->shipped.result = any_status(rng, true);
        m->shipped.cached_tokens = any32(rng);
        m->shipped.pages = any32(rng);
        m->shipped.bytes = any(rng);
        m->shipped.queue_ns = any(rng);
        m->shipped.prefill_ns = any(rng);
        m->shipped.transfer_ns = any(rng);
        m->shipped.exposed_ns = any(rng);
        return;
    case KVF_N_FAILED:
        m->failed.stage = (kvf_stage)one_of(rng, KVF_STAGE_RESERVE, KVF_STAGE_DECODE);
        m->failed.reason = any_status(rng, false);
        text(rng, m->failed.peer, sizeof m->failed.peer, true);
        m->failed.retryable = flip(rng);
        text(rng, m->failed.text, sizeof m->failed.text, true);
        return;
    case KVF_N_PREEMPTED: m->preempted.next_position = any32(rng); return;
    case KVF_N_PROMPT_LOGPROBS:
        m->prompt_logprobs.number = kvf_rng_next(rng);
        m->prompt_logprobs.start = below(rng, KVF_WIRE_TOKENS_MAX);
        m->prompt_logprobs.count = 1 + below(rng, LIST_MAX);
        m->prompt_logprobs.samples =
            bytes(rng, pool.bytes, (size_t)m->prompt_logprobs.count * one_of(rng, 1, KVF_SAMPLE_BYTES_MAX));
        return;
    default: return;
    }
}

void wire_random_nmsg(kvf_rng *rng, kvf_n_kind kind, kvf_nmsg *m) {
    memset(m, 0, sizeof *m);
    m->kind = kind;
    bool of_node = kind == KVF_N_WELCOME || kind == KVF_N_TOKENS || kind >= KVF_N_STATUS;
    if (of_node) {
        about_node(rng, m);
        return;
    }
    m->request = id(rng);
    m->attempt = positive(rng);
    about_attempt(rng, m);
}
