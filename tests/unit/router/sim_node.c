#include "sim_node.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define MS KVF_NS_PER_MS
#define STEP_NS (MS / 2)

typedef enum { E_TO_NODE, E_TO_ROUTER, E_NODE_STEP, E_STATUS, E_CONNECT, E_REVIVE, E_COMMIT, E_WAKE } event_kind;

struct sim_event {
    kvf_time_ns at;
    uint64_t sequence;
    event_kind kind;
    uint32_t node, connection;
    uint64_t tag;
    kvf_rmsg *rmsg;
    kvf_nmsg *nmsg;
};

bool sim_chance(sim *s, uint32_t per_10000) { return per_10000 && kvf_rng_below(&s->rng, 10000) < per_10000; }

/* ---- the heap of events ---- */

static bool before(const sim_event *a, const sim_event *b) {
    return a->at != b->at ? a->at < b->at : a->sequence < b->sequence;
}

static void push(sim *s, sim_event e) {
    if (s->events_len == s->events_cap) {
        s->events_cap = s->events_cap ? 2 * s->events_cap : 256;
        s->events = realloc(s->events, s->events_cap * sizeof *s->events);
        KVF_ASSERT(s->events);
    }
    e.sequence = s->sequence++;
    uint32_t at = s->events_len++;
    while (at && before(&e, &s->events[(at - 1) / 2])) {
        s->events[at] = s->events[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    s->events[at] = e;
}

static sim_event pop(sim *s) {
    sim_event top = s->events[0], last = s->events[--s->events_len];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= s->events_len) break;
        if (child + 1 < s->events_len && before(&s->events[child + 1], &s->events[child])) child++;
        if (!before(&s->events[child], &last)) break;
        s->events[at] = s->events[child];
        at = child;
    }
    s->events[at] = last;
    return top;
}

void sim_at(sim *s, kvf_time_ns at, uint64_t tag) { push(s, (sim_event){.at = at, .kind = E_WAKE, .tag = tag}); }

/* ---- messages by value ---- */

static void *copy(const void *data, size_t bytes) {
    void *to = malloc(bytes ? bytes : 1);
    KVF_ASSERT(to);
    if (bytes) memcpy(to, data, bytes);
    return to;
}

static void work_copy(kvf_work *w) {
    w->tokens = copy(w->tokens, w->tokens_count * sizeof *w->tokens);
    w->sampling.data = copy(w->sampling.data, w->sampling.len_bytes);
}

static kvf_rmsg *rmsg_copy(const kvf_rmsg *m) {
    kvf_rmsg *c = copy(m, sizeof *m);
    if (m->kind == KVF_R_HELLO) c->hello.live = copy(m->hello.live, m->hello.live_count * sizeof(kvf_live));
    if (m->kind == KVF_R_RESERVE) work_copy(&c->reserve);
    if (m->kind == KVF_R_PREFILL) {
        work_copy(&c->prefill.work);
        c->prefill.to.missing = copy(m->prefill.to.missing, m->prefill.to.missing_count * sizeof(uint32_t));
    }
    return c;
}

static void rmsg_free(kvf_rmsg *m) {
    if (!m) return;
    if (m->kind == KVF_R_HELLO) free((void *)m->hello.live);
    const kvf_work *w = m->kind == KVF_R_RESERVE ? &m->reserve : m->kind == KVF_R_PREFILL ? &m->prefill.work : NULL;
    if (w) {
        free((void *)w->tokens);
        free((void *)w->sampling.data);
    }
    if (m->kind == KVF_R_PREFILL) free((void *)m->prefill.to.missing);
    free(m);
}

static kvf_nmsg *nmsg_copy(const kvf_nmsg *m) {
    kvf_nmsg *c = copy(m, sizeof *m);
    if (m->kind == KVF_N_GRANTED)
        c->granted.missing = copy(m->granted.missing, m->granted.missing_count * sizeof(uint32_t));
    if (m->kind == KVF_N_TOKENS) c->tokens.items = copy(m->tokens.items, m->tokens.count * sizeof(kvf_token_item));
    if (m->kind == KVF_N_EVENTS) c->events.events = copy(m->events.events, m->events.count * sizeof(kvf_block_event));
    if (m->kind == KVF_N_SNAPSHOT) c->snapshot.names = copy(m->snapshot.names, m->snapshot.count * sizeof(kvf_hash128));
    if (m->kind == KVF_N_PREFILLING)
        c->prefilling.items = copy(m->prefilling.items, m->prefilling.count * sizeof *m->prefilling.items);
    if (m->kind == KVF_N_PROMPT_LOGPROBS)
        c->prompt_logprobs.samples.data = copy(m->prompt_logprobs.samples.data, m->prompt_logprobs.samples.len_bytes);
    return c;
}

static void nmsg_free(kvf_nmsg *m) {
    if (!m) return;
    if (m->kind == KVF_N_GRANTED) free((void *)m->granted.missing);
    if (m->kind == KVF_N_TOKENS) free((void *)m->tokens.items);
    if (m->kind == KVF_N_EVENTS) free((void *)m->events.events);
    if (m->kind == KVF_N_SNAPSHOT) free((void *)m->snapshot.names);
    if (m->kind == KVF_N_PREFILLING) free((void *)m->prefilling.items);
    if (m->kind == KVF_N_PROMPT_LOGPROBS) free((void *)m->prompt_logprobs.samples.data);
    free(m);
}

static bool connected(const sim_node *n) { return n->connection & 1; }

/* Sessions are ordered: never before what was sent earlier. */
static kvf_time_ns arrival(sim *s, kvf_time_ns *last) {
    kvf_time_ns at = s->now + MS / 10 + kvf_rng_below(&s->rng, 2 * MS);
    *last = KVF_MAX(*last + 1, at);
    return *last;
}

static void say(sim *s, uint32_t node, const kvf_nmsg *m) {
    sim_node *n = &s->nodes[node];
    if (!connected(n) || !n->greeted) return;
    arrival(s, &n->to_router_ns);
    push(s, (sim_event){.at = n->to_router_ns,
                .kind = E_TO_ROUTER,
                .node = node,
                .connection = n->connection,
                .nmsg = nmsg_copy(m)});
    bool simple = m->kind != KVF_N_EVENTS && m->kind != KVF_N_SNAPSHOT && m->kind != KVF_N_WELCOME;
    if (simple && sim_chance(s, s->faults.twice)) {
        n->to_router_ns++;
        push(s, (sim_event){.at = n->to_router_ns,
                    .kind = E_TO_ROUTER,
                    .node = node,
                    .connection = n->connection,
                    .nmsg = nmsg_copy(m)});
    }
}

/* ---- tokens ---- */

uint64_t sim_prompt_hash(const uint32_t *tokens, uint32_t count) {
    return kvf_hash64_of(tokens, count * sizeof *tokens, 7);
}
uint32_t sim_token(uint64_t hash, uint32_t choice, uint32_t position) {
    return (uint32_t)(kvf_rng_at(hash, choice, position) % 1000);
}
bool sim_token_ends(uint64_t hash, uint32_t choice, uint32_t position) {
    return sim_token(hash, choice, position) < 30;
}

static void tell(sim *s, uint32_t node, sim_work_state unused, kvf_token_item *items, uint32_t count) {
    (void)unused;
    if (!count) return;
    sim_node *n = &s->nodes[node];
    kvf_nmsg m = {.kind = KVF_N_TOKENS};
    m.tokens.number = ++n->batch;
    m.tokens.items = items;
    m.tokens.count = count;
    say(s, node, &m);
}

static kvf_token_item item_of(const sim_work *w, uint32_t k, uint32_t position, bool repeated) {
    kvf_token_item item = {.request = w->request,
        .attempt = w->attempt,
        .index = w->base + k,
        .position = position,
        .token = sim_token(w->hash, w->base + k, position),
        .repeated = repeated};
    if (sim_token_ends(w->hash, w->base + k, position))
        item.end = KVF_END_EOS;
    else if (position + 1 - w->prompt_count >= w->output_max)
        item.end = KVF_END_LENGTH;
    return item;
}

/* The next token of every choice that goes on. */
static uint32_t step_work(sim_work *w, kvf_token_item *items) {
    uint32_t count = 0;
    for (uint32_t k = 0; k < w->n; k++) {
        if (w->ended[k]) continue;
        items[count] = item_of(w, k, w->next[k]++, false);
        w->ended[k] = items[count++].end != KVF_END_NONE;
    }
    return count;
}

static bool all_ended(const sim_work *w) {
    for (uint32_t k = 0; k < w->n; k++)
        if (!w->ended[k]) return false;
    return true;
}

static void say_logprobs(sim *s, uint32_t node, const sim_work *w) {
    if (!w->logprobs) return;
    uint32_t samples[SIM_CONTEXT];
    for (uint32_t i = 0; i < w->prompt_count; i++) samples[i] = i * 3 + 1;
    for (uint32_t start = w->hash % 2; start < w->prompt_count;) { /* with the first token or without */
        uint32_t part = 1 + (uint32_t)kvf_rng_below(&s->rng, 16), count = KVF_MIN(w->prompt_count - start, part);
        kvf_nmsg m = {.kind = KVF_N_PROMPT_LOGPROBS, .request = w->request, .attempt = w->attempt};
        m.prompt_logprobs.start = start;
        m.prompt_logprobs.count = count;
        m.prompt_logprobs.samples = (kvf_span){samples + start, count * sizeof *samples};
        say(s, node, &m);
        start += count;
    }
}

/* ---- cached blocks ---- */

static void say_events(sim *s, uint32_t node, const kvf_block_event *events, uint32_t count) {
    sim_node *n = &s->nodes[node];
    kvf_nmsg m = {.kind = KVF_N_EVENTS};
    m.events.first = n->events_next;
    m.events.events = events;
    m.events.count = count;
    n->events_next += count;
    if (!sim_chance(s, s->faults.gap)) say(s, node, &m);
}

static void cache_blocks(sim *s, uint32_t node, const sim_work *w) {
    sim_node *n = &s->nodes[node];
    kvf_block_event events[SIM_CONTEXT / KVF_KV_BLOCK_TOKENS + 1];
    uint32_t count = 0;
    for (uint32_t b = 0; b < w->blocks; b++) {
        bool known = false;
        for (uint32_t i = 0; i < n->names_count && !known; i++) known = kvf_hash128_equal(n->names[i], w->names[b]);
        if (known || n->names_count == SIM_NAMES) continue;
        n->names[n->names_count++] = w->names[b];
        events[count++] = (kvf_block_event){true, w->names[b]};
    }
    if (n->names_count > 24) {
        uint32_t victim = (uint32_t)kvf_rng_below(&s->rng, n->names_count);
        events[count++] = (kvf_block_event){false, n->names[victim]};
        n->names[victim] = n->names[--n->names_count];
    }
    if (count) say_events(s, node, events, count);
}

static void say_snapshot(sim *s, uint32_t node) {
    sim_node *n = &s->nodes[node];
    uint32_t half = n->names_count / 2;
    for (int part = 0; part < 2; part++) {
        kvf_nmsg m = {.kind = KVF_N_SNAPSHOT};
        m.snapshot.events_next = n->events_next;
        m.snapshot.names = n->names + (part ? half : 0);
        m.snapshot.count = part ? n->names_count - half : half;
        m.snapshot.first = part == 0;
        m.snapshot.last = part == 1;
        say(s, node, &m);
    }
}

/* ---- works ---- */

static sim_work *find(sim_node *n, kvf_request_id request, bool prefill) {
    for (uint32_t i = 0; i < SIM_WORKS; i++)
        if (n->works[i].state != W_FREE && n->works[i].prefill == prefill &&
            kvf_request_id_equal(n->works[i].request, request))
            return &n->works[i];
    return NULL;
}

static uint32_t count_state(const sim_node *n, sim_work_state state) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < SIM_WORKS; i++) count += n->works[i].state == state;
    return count;
}

static sim_work *take(sim *s, sim_node *n, const kvf_work *in, bool prefill) {
    sim_work *w = NULL;
    for (uint32_t i = 0; i < SIM_WORKS && !w; i++)
        if (n->works[i].state == W_FREE) w = &n->works[i];
    KVF_ASSERT(w && in->n <= SIM_CHOICES);
    *w = (sim_work){.prefill = prefill,
        .request = in->request,
        .attempt = in->attempt,
        .n = in->n,
        .base = in->choice_base,
        .prompt_count = in->prompt_count,
        .output_max = in->output_max,
        .logprobs = in->prompt_logprobs,
        .ship_min = in->ship_min,
        .hash = sim_prompt_hash(in->tokens, in->prompt_count)};
    /* What the router says was made must be what nodes made. */
    for (uint32_t p = in->prompt_count; p < in->tokens_count; p++)
        KVF_ASSERT(in->tokens[p] == sim_token(w->hash, in->choice_base, p));
    KVF_ASSERT(in->n == 1 || in->tokens_count == in->prompt_count);
    KVF_ASSERT(in->sampling.len_bytes == 8 && memcmp(in->sampling.data, "sampling", 8) == 0);
    for (uint32_t k = 0; k < in->n; k++) w->next[k] = in->tokens_count;
    kvf_hash128 name = kvf_kv_root((kvf_span){n->identity.weights_hash, 16},
        (kvf_span){n->identity.numerics, strlen(n->identity.numerics)}, (kvf_span){0});
    w->blocks = in->salt.lo || in->salt.hi ? 0 : (in->prompt_count - 1) / KVF_KV_BLOCK_TOKENS;
    for (uint32_t b = 0; b < w->blocks; b++)
        w->names[b] = name = kvf_kv_next(name, in->tokens + b * KVF_KV_BLOCK_TOKENS);
    (void)s;
    return w;
}

static void answer_reserve(sim *s, uint32_t node, sim_work *w) {
    sim_node *n = &s->nodes[node];
    kvf_nmsg m = {.request = w->request, .attempt = w->attempt};
    uint32_t missing[SIM_CONTEXT / KVF_KV_BLOCK_TOKENS + 1],
        blocks = (w->next[0] + KVF_KV_BLOCK_TOKENS - 1) / KVF_KV_BLOCK_TOKENS;
    if (w->state == W_QUEUED) {
        m.kind = KVF_N_QUEUED;
    } else if (w->state == W_GRANTED) {
        m.kind = KVF_N_GRANTED;
        for (uint32_t b = 0; b < blocks; b++) missing[b] = b;
        m.granted.grant = w->grant;
        m.granted.ttl_ns = 200 * MS;
        m.granted.missing = missing;
        m.granted.missing_count = blocks;
    } else {
        m.kind = KVF_N_LOCAL;
    }
    say(s, node, &m);
    (void)n;
}

static void admit(sim *s, uint32_t node, sim_work *w) {
    bool local = w->ship_min == UINT32_MAX || w->next[0] < w->ship_min;
    w->state = local ? W_COMPUTING : W_GRANTED;
    w->grant = kvf_rng_next(&s->rng);
    w->at = s->now + (local ? MS + kvf_rng_below(&s->rng, 4 * MS) : 400 * MS);
    answer_reserve(s, node, w);
}

static bool was_cancelled(const sim_node *n, kvf_request_id request, uint32_t attempt) {
    for (uint32_t i = 0; i < KVF_MIN(n->cancelled_count, 256); i++)
        if (kvf_request_id_equal(n->cancelled[i].request, request) && attempt <= n->cancelled[i].attempt) return true;
    return false;
}

static void refuse(sim *s, uint32_t node, const kvf_work *in, kvf_status reason) {
    kvf_nmsg m = {.kind = KVF_N_REFUSED, .request = in->request, .attempt = in->attempt};
    m.refused.reason = reason;
    m.refused.retry_after_ns = reason == KVF_AGAIN ? MS + kvf_rng_below(&s->rng, 10 * MS) : 0;
    snprintf(m.refused.field, sizeof m.refused.field, "input");
    snprintf(m.refused.text, sizeof m.refused.text, "refused by the seed");
    say(s, node, &m);
}

static void on_reserve(sim *s, uint32_t node, const kvf_work *in) {
    sim_node *n = &s->nodes[node];
    sim_work *w = find(n, in->request, false);
    if (w && w->attempt == in->attempt) {
        if (w->state != W_DONE) answer_reserve(s, node, w);
        return;
    }
    if (w && w->attempt > in->attempt) {
        say(s, node, &(kvf_nmsg){.kind = KVF_N_STALE, .request = in->request, .attempt = in->attempt});
        return;
    }
    if (w && (w->state == W_RUNNING || w->state == W_DONE)) {
        kvf_nmsg m = {.kind = KVF_N_ALREADY_STARTED, .request = in->request, .attempt = in->attempt};
        m.already_started.attempt = w->attempt;
        m.already_started.position = w->next[0];
        say(s, node, &m);
        return;
    }
    if (w) w->state = W_FREE;
    if (was_cancelled(n, in->request, in->attempt)) return;
    if (sim_chance(s, s->faults.never)) {
        refuse(s, node, in, KVF_ERR_NO_ROOM);
        return;
    }
    if (n->draining || sim_chance(s, s->faults.refuse)) {
        refuse(s, node, in, KVF_AGAIN);
        return;
    }
    w = take(s, n, in, false);
    uint32_t busy = count_state(n, W_GRANTED) + count_state(n, W_RUNNING) + count_state(n, W_COMPUTING);
    if (busy >= 8 || sim_chance(s, s->faults.queue)) {
        w->state = W_QUEUED;
        w->at = s->now + 5 * MS;
        answer_reserve(s, node, w);
        return;
    }
    admit(s, node, w);
}

static void on_prefill(sim *s, uint32_t node, const kvf_rmsg *m) {
    sim_node *n = &s->nodes[node];
    const kvf_work *in = &m->prefill.work;
    sim_work *w = find(n, in->request, true);
    if (w && w->attempt >= in->attempt) return;
    if (w) w->state = W_FREE;
    if (was_cancelled(n, in->request, in->attempt)) return;
    if (n->draining || sim_chance(s, s->faults.refuse)) {
        refuse(s, node, in, KVF_AGAIN);
        return;
    }
    w = take(s, n, in, true);
    w->state = W_COMPUTING;
    w->grant = m->prefill.to.grant;
    w->ship_epoch = m->prefill.to.epoch;
    w->ship_node = UINT32_MAX;
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        char name[KVF_NAME_MAX];
        snprintf(name, sizeof name, "node%u", i);
        if (strcmp(name, m->prefill.to.node) == 0) w->ship_node = i;
    }
    KVF_ASSERT(w->ship_node < s->nodes_count && w->ship_node != node);
    w->at = s->now + MS + kvf_rng_below(&s->rng, 5 * MS);
}

static void on_hello(sim *s, uint32_t node, const kvf_rmsg *m) {
    sim_node *n = &s->nodes[node];
    n->greeted = true;
    kvf_nmsg w = {.kind = KVF_N_WELCOME};
    snprintf(w.welcome.info.node, sizeof w.welcome.info.node, "node%u", node);
    w.welcome.info.epoch = n->epoch;
    w.welcome.info.wire_version = KVF_WIRE_VERSION;
    w.welcome.info.role = n->role;
    w.welcome.info.identity = n->identity;
    w.welcome.stats = (kvf_node_stats){.state = KVF_NODE_READY, .role = n->role, .events_next = n->events_next};
    say(s, node, &w);
    for (uint32_t i = 0; i < SIM_WORKS; i++) {
        sim_work *k = &n->works[i];
        bool listed = false;
        for (uint32_t j = 0; j < m->hello.live_count; j++)
            listed |= kvf_request_id_equal(m->hello.live[j].request, k->request);
        if (!listed) k->state = W_FREE;
    }
    for (uint32_t j = 0; j < m->hello.live_count; j++) {
        const kvf_live *l = &m->hello.live[j];
        bool known = false;
        for (int prefill = 0; prefill < 2; prefill++) {
            sim_work *k = find(n, l->request, prefill);
            if (!k || k->attempt != l->attempt) continue;
            known = true;
            uint32_t c = l->index - k->base;
            if (c >= k->n) continue;
            kvf_token_item items[SIM_CONTEXT];
            uint32_t count = 0;
            uint32_t from = KVF_MAX(l->next_position, k->prompt_count);
            if (l->next_position < k->prompt_count && k->state >= W_RUNNING && k->state != W_COMPUTING)
                say_logprobs(s, node, k);
            for (uint32_t p = from; p < k->next[c]; p++) items[count++] = item_of(k, c, p, false);
            tell(s, node, k->state, items, count);
            if ((k->state == W_DONE || k->state == W_SHIPPING) && count) k->last_batch = n->batch;
            if (k->state == W_SHIPPING && !count) k->last_batch = 0; /* it has them */
        }
        if (known || s->faults.rude) continue; /* rude: a node that does not say what it has forgotten */
        kvf_nmsg f = {.kind = KVF_N_FAILED, .request = l->request, .attempt = l->attempt};
        f.failed.reason = KVF_ERR_GONE;
        f.failed.stage = KVF_STAGE_DECODE;
        f.failed.retryable = true;
        say(s, node, &f);
    }
}

static void on_cancel(sim_node *n, const kvf_rmsg *m) {
    for (uint32_t i = 0; i < SIM_WORKS; i++) {
        sim_work *w = &n->works[i];
        if (w->state == W_FREE || !kvf_request_id_equal(w->request, m->cancel.request)) continue;
        if (m->cancel.attempt && w->attempt > m->cancel.attempt) continue;
        if (w->state != W_DONE && !m->cancel.finished) n->aborts++;
        w->state = W_FREE;
    }
    n->cancelled[n->cancelled_count % 256].request = m->cancel.request;
    n->cancelled[n->cancelled_count++ % 256].attempt = m->cancel.attempt;
}

static void node_takes(sim *s, uint32_t node, const kvf_rmsg *m) {
    sim_node *n = &s->nodes[node];
    switch (m->kind) {
    case KVF_R_HELLO: on_hello(s, node, m); return;
    case KVF_R_RESERVE: on_reserve(s, node, &m->reserve); return;
    case KVF_R_PREFILL: on_prefill(s, node, m); return;
    case KVF_R_CANCEL: on_cancel(n, m); return;
    case KVF_R_ACK:
        KVF_ASSERT(m->ack.number <= n->batch);
        n->acked = KVF_MAX(n->acked, m->ack.number);
        for (uint32_t i = 0; i < SIM_WORKS; i++)
            if (n->works[i].state == W_DONE && n->works[i].last_batch <= m->ack.number) n->works[i].state = W_FREE;
        return;
    case KVF_R_SNAPSHOT: say_snapshot(s, node); return;
    case KVF_R_AUDIT: {
        kvf_nmsg a = {.kind = KVF_N_AUDIT};
        a.audit.query = m->audit.query;
        a.audit.clean = true;
        say(s, node, &a);
        return;
    }
    default: return;
    }
}

/* ---- life of a node ---- */

static void say_failed(sim *s, uint32_t node, const sim_work *w, kvf_stage stage) {
    kvf_nmsg m = {.kind = KVF_N_FAILED, .request = w->request, .attempt = w->attempt};
    m.failed.reason = KVF_ERR_IO;
    m.failed.stage = stage;
    m.failed.retryable = true;
    snprintf(m.failed.text, sizeof m.failed.text, "failed by the seed");
    say(s, node, &m);
}

static void say_shipped(sim *s, uint32_t node, const sim_work *w, kvf_status result) {
    kvf_nmsg m = {.kind = KVF_N_SHIPPED, .request = w->request, .attempt = w->attempt};
    m.shipped.result = result;
    m.shipped.bytes = 128;
    m.shipped.prefill_ns = MS;
    say(s, node, &m);
}

static void start_decoding(sim *s, uint32_t node, sim_work *d, const sim_work *p) {
    kvf_token_item items[SIM_CHOICES];
    for (uint32_t k = 0; k < d->n; k++) {
        items[k] = item_of(d, k, d->next[k], true);
        d->next[k] = p->next[k];
        d->ended[k] = p->ended[k];
    }
    d->state = W_RUNNING;
    d->at = s->now + STEP_NS;
    say(s, node, &(kvf_nmsg){.kind = KVF_N_STARTED, .request = d->request, .attempt = d->attempt});
    tell(s, node, d->state, items, d->n);
}

/* The hand-off of one work of a prefill node, all at once. */
static void ship(sim *s, uint32_t node, sim_work *w) {
    sim_node *d = &s->nodes[w->ship_node];
    sim_work *grant = find(d, w->request, false);
    bool held = d->alive && d->epoch == w->ship_epoch && grant && grant->attempt == w->attempt &&
                grant->state == W_GRANTED && grant->grant == w->grant;
    if (sim_chance(s, s->faults.link)) {
        say_failed(s, node, w, KVF_STAGE_TRANSFER);
    } else if (held) {
        start_decoding(s, w->ship_node, grant, w);
        if (sim_chance(s, s->faults.half_link)) /* committed, but the answer is lost */
            say_failed(s, node, w, KVF_STAGE_TRANSFER);
        else
            say_shipped(s, node, w, KVF_OK);
    } else {
        say_shipped(s, node, w, KVF_ERR_GONE);
    }
    w->state = W_FREE;
}

static void computed(sim *s, uint32_t node, sim_work *w) {
    if (sim_chance(s, s->faults.fail)) {
        say_failed(s, node, w, KVF_STAGE_PREFILL);
        w->state = W_FREE;
        return;
    }
    kvf_token_item items[SIM_CHOICES];
    say_logprobs(s, node, w);
    cache_blocks(s, node, w);
    if (!w->prefill) {
        w->state = W_RUNNING;
        w->at = s->now;
        return;
    }
    uint32_t count = step_work(w, items);
    tell(s, node, w->state, items, count);
    w->state = W_SHIPPING;
    w->last_batch = s->nodes[node].batch;
    w->at = s->now + kvf_rng_below(&s->rng, 2 * MS);
}

static void step_one(sim *s, uint32_t node, sim_work *w, kvf_token_item *items, uint32_t *count) {
    switch (w->state) {
    case W_QUEUED: admit(s, node, w); return;
    case W_GRANTED:
        say_failed(s, node, w, KVF_STAGE_TRANSFER);
        w->state = W_FREE;
        return;
    case W_COMPUTING: computed(s, node, w); return;
    case W_SHIPPING:
        if (all_ended(w))
            w->state = W_DONE;
        else if (!w->logprobs || s->nodes[node].acked >= w->last_batch) /* commits when the router has them */
            ship(s, node, w);
        return;
    case W_RUNNING:
        if (sim_chance(s, s->faults.preempt)) {
            kvf_nmsg m = {.kind = KVF_N_PREEMPTED, .request = w->request, .attempt = w->attempt};
            m.preempted.next_position = w->next[0];
            say(s, node, &m);
            w->state = W_FREE;
            return;
        }
        if (sim_chance(s, s->faults.fail)) {
            say_failed(s, node, w, KVF_STAGE_DECODE);
            w->state = W_FREE;
            return;
        }
        *count += step_work(w, items + *count);
        w->at = s->now + STEP_NS;
        if (all_ended(w)) {
            w->state = W_DONE;
            w->last_batch = s->nodes[node].batch + 1; /* of the batch that this step makes */
        }
        return;
    default: return;
    }
}

static void disconnect(sim *s, uint32_t node, kvf_time_ns back) {
    sim_node *n = &s->nodes[node];
    if (!connected(n)) return;
    n->connection++;
    n->greeted = false;
    kvf_router_on_session_down(s->router, s->now, node);
    push(s, (sim_event){.at = s->now + back, .kind = E_CONNECT, .node = node});
}

static void crash(sim *s, uint32_t node) {
    sim_node *n = &s->nodes[node];
    disconnect(s, node, 20 * MS + kvf_rng_below(&s->rng, 100 * MS));
    n->alive = false;
    push(s, (sim_event){.at = s->now + 10 * MS, .kind = E_REVIVE, .node = node});
}

static void node_step(sim *s, uint32_t node) {
    sim_node *n = &s->nodes[node];
    push(s, (sim_event){.at = s->now + STEP_NS, .kind = E_NODE_STEP, .node = node});
    if (!n->alive) return;
    if (sim_chance(s, s->faults.crash)) {
        crash(s, node);
        return;
    }
    if (sim_chance(s, s->faults.drop_session)) disconnect(s, node, MS + kvf_rng_below(&s->rng, 80 * MS));
    kvf_token_item items[SIM_WORKS * SIM_CHOICES];
    uint32_t count = 0;
    for (uint32_t i = 0; i < SIM_WORKS; i++)
        if (n->works[i].state != W_FREE && n->works[i].state != W_DONE && n->works[i].at <= s->now)
            step_one(s, node, &n->works[i], items, &count);
    tell(s, node, W_RUNNING, items, count);
}

static void node_status(sim *s, uint32_t node) {
    sim_node *n = &s->nodes[node];
    push(s, (sim_event){.at = s->now + 20 * MS, .kind = E_STATUS, .node = node});
    if (!n->alive) return;
    kvf_nmsg m = {.kind = KVF_N_STATUS};
    m.status = (kvf_node_stats){.state = n->draining ? KVF_NODE_DRAINING : KVF_NODE_READY,
        .role = n->role,
        .events_next = n->events_next,
        .running = count_state(n, W_RUNNING),
        .waiting = count_state(n, W_QUEUED)};
    say(s, node, &m);
}

static void revive(sim *s, uint32_t node) {
    sim_node *n = &s->nodes[node];
    memset(n->works, 0, sizeof n->works);
    n->alive = true;
    n->epoch = kvf_rng_next(&s->rng);
    n->batch = n->acked = 0;
    n->names_count = n->cancelled_count = 0;
    n->events_next = 1;
}

static void connect_node(sim *s, uint32_t node) {
    sim_node *n = &s->nodes[node];
    if (connected(n)) return;
    if (!n->alive) {
        kvf_router_on_node_gone(s->router, s->now, node);
        push(s, (sim_event){.at = s->now + 10 * MS, .kind = E_CONNECT, .node = node});
        return;
    }
    n->connection++;
    n->greeted = false;
    n->to_router_ns = n->to_node_ns = s->now;
    kvf_router_on_session_up(s->router, s->now, node);
}

/* ---- the run ---- */

static void drain(sim *s) {
    kvf_router_action a;
    while (kvf_router_next(s->router, s->now, &a)) {
        if (a.kind == KVF_ROUTER_SEND) {
            sim_node *n = &s->nodes[a.node];
            KVF_ASSERT(connected(n));
            arrival(s, &n->to_node_ns);
            push(s, (sim_event){.at = n->to_node_ns,
                        .kind = E_TO_NODE,
                        .node = a.node,
                        .connection = n->connection,
                        .rmsg = rmsg_copy(a.send)});
        } else if (a.kind == KVF_ROUTER_CLOSE) {
            disconnect(s, a.node, 5 * MS);
        } else {
            s->action(s->self, &a);
        }
    }
}

void sim_after_event(sim *s) { drain(s); }

bool sim_step(sim *s) {
    kvf_time_ns due = kvf_router_deadline(s->router);
    if (!s->events_len && due == KVF_TIME_NEVER) return false;
    if (!s->events_len || due <= s->events[0].at) {
        s->now = KVF_MAX(s->now, due);
        kvf_router_on_time(s->router, s->now);
        drain(s);
        return true;
    }
    sim_event e = pop(s);
    s->now = e.at;
    s->events_count++;
    sim_node *n = &s->nodes[e.node];
    switch (e.kind) {
    case E_TO_NODE:
        if (n->alive && e.connection == n->connection) node_takes(s, e.node, e.rmsg);
        break;
    case E_TO_ROUTER:
        if (e.connection == n->connection) {
            s->messages++;
            kvf_router_on_msg(s->router, s->now, e.node, e.nmsg);
            drain(s); /* the message is borrowed until then */
        }
        break;
    case E_NODE_STEP: node_step(s, e.node); break;
    case E_STATUS: node_status(s, e.node); break;
    case E_CONNECT: connect_node(s, e.node); break;
    case E_REVIVE: revive(s, e.node); break;
    case E_COMMIT: break;
    case E_WAKE: s->wake(s->self, e.tag); break;
    }
    rmsg_free(e.rmsg);
    nmsg_free(e.nmsg);
    drain(s);
    return true;
}

uint32_t sim_live_works(const sim *s) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->nodes_count; i++)
        for (uint32_t k = 0; k < SIM_WORKS; k++) count += s->nodes[i].works[k].state != W_FREE;
    return count;
}

void sim_init(sim *s, uint64_t seed, const kvf_router_config *config, uint32_t prefills, uint32_t decodes) {
    memset(s, 0, sizeof *s);
    s->rng.seed = seed;
    s->now = MS;
    s->memory_bytes = kvf_router_size(config);
    s->memory = mmap(NULL, s->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    KVF_ASSERT(s->memory != MAP_FAILED);
    s->router = kvf_router_init(s->memory, config);
    s->nodes_count = prefills + decodes;
    KVF_ASSERT(s->nodes_count <= SIM_NODES);
    for (uint32_t i = 0; i < s->nodes_count; i++) {
        sim_node *n = &s->nodes[i];
        n->role = i < prefills ? KVF_ROLE_PREFILL : KVF_ROLE_DECODE;
        n->identity = (kvf_identity){.wire_version = KVF_WIRE_VERSION, .weights_hash = {1, 2}, .block_tokens = 16};
        snprintf(n->identity.numerics, sizeof n->identity.numerics, "f32-sim");
        revive(s, i);
        char name[KVF_NAME_MAX];
        snprintf(name, sizeof name, "node%u", i);
        KVF_ASSERT(kvf_router_add_node(s->router, s->now, i, name, n->role) == KVF_OK);
        push(s, (sim_event){.at = s->now + kvf_rng_below(&s->rng, 10 * MS), .kind = E_CONNECT, .node = i});
        push(s, (sim_event){.at = s->now, .kind = E_NODE_STEP, .node = i});
        push(s, (sim_event){.at = s->now, .kind = E_STATUS, .node = i});
    }
}

void sim_fini(sim *s) {
    for (uint32_t i = 0; i < s->events_len; i++) {
        rmsg_free(s->events[i].rmsg);
        nmsg_free(s->events[i].nmsg);
    }
    free(s->events);
    munmap(s->memory, s->memory_bytes);
}
