/* Processes of nodes: started, dying, their engines, what their cores want done. */
#include "sim.h"
#include <stdio.h>
#include <sys/mman.h>

static void node_config(sim *s, uint32_t node, kvf_node_config *c) {
    uint32_t place = place_of(node);
    const plan_node *p = &s->plan->node[place];
    *c = (kvf_node_config){.blocks = (uint32_t)p->blocks,
        .layers = SIM_LAYERS,
        .page_bytes = SIM_PAGE_BYTES,
        .context_max = PLAN_CONTEXT,
        .requests_max = (uint32_t)p->requests,
        .sequences_max = 20,
        .step_sequences_max = (uint32_t)p->step_sequences,
        .step_tokens_max = 96,
        .chunk_tokens = 64,
        .chunk_tokens_mixed = (uint32_t)p->chunk_mixed,
        .queue_max = (uint32_t)p->queue,
        .sessions_max = SIM_SLOTS,
        .outbox_max = 128,
        .links_max = 24,
        .sampling_bytes_max = 64,
        .expected_output = (uint32_t)p->expected,
        .events_max = 64,
        .relink_ttl_ns = p->expected % 3 ? s->plan->world.lease_ms * SIM_MS / 4 : 0,
        .grant_ttl_ns = s->plan->world.lease_ms * SIM_MS,
        .hold_ttl_ns = s->plan->world.lease_ms * SIM_MS,
        .router_grace_ns = SIM_ROUTER_GRACE_NS,
        .queue_ttl_ns = SIM_QUEUE_TTL_NS,
        .cancel_memory_ns = 300 * SIM_MS,
        .status_interval_ns = SIM_STATUS_NS};
    bool prefill = place < s->plan->world.prefill;
    snprintf(c->info.node, sizeof c->info.node, "%c%u", prefill ? 'p' : 'd',
        prefill ? place : place - (uint32_t)s->plan->world.prefill);
    c->info.role = prefill ? KVF_ROLE_PREFILL : KVF_ROLE_DECODE;
    c->info.wire_version = KVF_WIRE_VERSION;
    c->info.identity.wire_version = KVF_WIRE_VERSION;
    c->info.identity.vocab = PLAN_VOCAB;
    c->info.identity.block_tokens = KVF_KV_BLOCK_TOKENS;
    c->info.identity.layers = SIM_LAYERS;
    c->info.identity.context_max = PLAN_CONTEXT;
    c->info.identity.page_bytes = SIM_PAGE_BYTES;
    snprintf(c->info.identity.numerics, sizeof c->info.identity.numerics, "sim");
    memcpy(c->info.address, "tcp:", 4); /* nobody looks at it here */
}

void node_make(sim *s, uint32_t node) {
    sim_node *n = &s->node[node];
    process *p = &s->process[node];
    const plan_node *planned = &s->plan->node[place_of(node)];
    node_config(s, node, &n->config);
    n->memory_bytes = (size_t)kvf_align_up(kvf_node_size(&n->config), 4096);
    n->memory = mmap(NULL, n->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t pages_bytes = sizeof *n->pages * n->config.blocks;
    n->pages = mmap(NULL, pages_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KVF_ASSERT(n->memory != MAP_FAILED && n->pages != MAP_FAILED && n->config.blocks <= SIM_BLOCKS_MAX);
    n->slow = (uint32_t)planned->slow;
    p->offset_ns = planned->offset_ns;
    p->drift_ppm = planned->drift_ppm;
}

void node_start(sim *s, uint32_t node) {
    sim_node *n = &s->node[node];
    process *p = &s->process[node];
    if (!n->memory) node_make(s, node);
    p->alive = true;
    p->frozen = p->stale_clock = false;
    p->incarnation++;
    p->timer_at = KVF_TIME_NEVER;
    n->step_running = false;
    n->config.info.epoch = kvf_rng_next(&s->rng) | 1;
    /* Wall clocks of hosts differ: some by more than a run lasts. */
    uint64_t skew = n->config.info.epoch >> 32;
    n->config.info.started_ns = 1000 * KVF_NS_PER_S + s->now + (skew % 4 ? 0 : (skew % 1000) * KVF_NS_PER_S / 10);
    for (uint32_t k = 0; k < 32; k++) n->config.secret_seed[k] = (uint8_t)kvf_rng_next(&s->rng);
    for (uint32_t i = 0; i < SIM_SLOTS; i++) n->session[i] = SIM_NONE;
    memset(n->uses, 0, sizeof n->uses);
    memset(n->verified, 0, sizeof n->verified);
    memset(n->generation, 0, sizeof n->generation);
    memset(n->grant, 0, sizeof n->grant);
    n->altered = (sim_altered){0};
    n->altered_count = 0;
    n->pool_hash = 0;
    n->ended_count = 0;
    KVF_ASSERT(madvise(n->memory, n->memory_bytes, MADV_DONTNEED) == 0); /* fresh zeros, only where it is touched */
    memset(n->pages, 0, sizeof *n->pages * n->config.blocks);
    n->core = kvf_node_init(n->memory, &n->config, sim_clock(s, node));
    TRACE(s, "node %s starts, epoch %llx", n->config.info.node, (unsigned long long)n->config.info.epoch);
    sim_push(s, s->now + s->plan->world.lease_ms * SIM_MS / 4, EV_HEARTBEAT, node, 0);
}

/* Everybody it was connected to hears of it, but for those behind a partition. */
void node_die(sim *s, uint32_t node) {
    process *p = &s->process[node];
    if (!p->alive) return;
    TRACE(s, "node %s dies", s->node[node].config.info.node);
    link_cut_of(s, node, false);
    session_cut_of(s, node, false);
    p->alive = false;
    p->frozen = false;
    sim_list_free(&p->held);
    s->dirty &= ~(1u << node);
}

/* ------------------------------------------------------------------ the engine */

static void count_step_uses(sim_node *n, const kvf_step *step, int32_t by) {
    for (uint32_t i = 0; i < step->copies_count; i++) {
        n->uses[step->copies[i].from] += (uint32_t)by;
        n->uses[step->copies[i].to] += (uint32_t)by;
    }
    for (uint32_t i = 0; i < step->runs_count; i++) {
        const kvf_step_run *run = &step->runs[i];
        uint32_t last = (run->position + run->count - 1) / KVF_KV_BLOCK_TOKENS;
        for (uint32_t b = run->position / KVF_KV_BLOCK_TOKENS; b <= last; b++) n->uses[run->blocks[b]] += (uint32_t)by;
    }
}

static void start_step(sim *s, uint32_t node, const kvf_step *step) {
    sim_node *n = &s->node[node];
    KVF_ASSERT(!n->step_running);
    n->step_running = true;
    n->step = *step;
    count_step_uses(n, step, 1);
    sim_engine_begin(n);
    uint64_t slow = n->slow_until > s->now ? 8 * n->slow : n->slow;
    uint64_t cost_us = (100 + 15 * step->prefill_tokens + 10 * step->decode_tokens) * slow;
    for (uint32_t l = 0; l < SIM_LAYERS; l++)
        sim_push(s, s->now + us(cost_us * (l + 1) / (SIM_LAYERS + 1)), EV_LAYER, node, l)->number = step->id;
    sim_push(s, s->now + us(cost_us), EV_STEP_DONE, node, 0)->number = step->id;
    fault_hook(s, TRIGGER_step, 0, node);
}

void on_layer(sim *s, const event *e) {
    touch(s, e->who);
    sim_engine_layer(s, e->who, e->index);
    kvf_node_on_layer(s->node[e->who].core, sim_clock(s, e->who), e->number, e->index);
    fault_hook(s, TRIGGER_layer, 0, e->who);
}

void on_step_done(sim *s, const event *e) {
    sim_node *n = &s->node[e->who];
    kvf_step_result result;
    sim_engine_finish(n, &result);
    if (n->step_fails_next > 0 && !s->healed) {
        n->step_fails_next--;
        count_deaths(s, e->who, true);
        result.status = KVF_ERR_IO;
    }
    n->step_running = false;
    count_step_uses(n, &n->step, -1);
    touch(s, e->who);
    kvf_node_on_step_done(n->core, sim_clock(s, e->who), e->number, &result);
    fault_hook(s, TRIGGER_step_done, 0, e->who);
}

/* ------------------------------------------------------------------ what the core wants */

/* Of two processes of a name the one that claims the later start is the newer one, whatever the truth: the other may be
 * told to end (docs/protocol.md). */
static bool another_claims_later(const sim *s, uint32_t node) {
    const sim_node *other = &s->node[(node + SIM_PLACES) % SIM_NODES];
    return other->core && other->config.info.started_ns > s->node[node].config.info.started_ns;
}

static void node_exits(sim *s, uint32_t node) {
    bool current = s->place_node[place_of(node)] == node;
    if (current && !another_claims_later(s, node))
        sim_fail(s, "node %s is told to stop, but nobody has replaced it", s->node[node].config.info.node);
    s->count.superseded++;
    node_die(s, node);
    if (current) sim_push(s, s->now + SIM_MS, EV_START, SIM_NOBODY, node); /* whoever started it does so again */
}

void node_drain_actions(sim *s, uint32_t node) {
    sim_node *n = &s->node[node];
    process *p = &s->process[node];
    kvf_node_act a;
    bool exits = false;
    while (kvf_node_next(n->core, link_has_room, s, &a)) {
        switch (a.kind) {
        case KVF_NODE_STEP: start_step(s, node, &a.step); break;
        case KVF_NODE_MSG: session_to_router(s, node, a.session, &a.msg); break;
        case KVF_NODE_FRAME: link_send_frame(s, node, a.link, &a.frame); break;
        case KVF_NODE_PAGE: link_send_page(s, node, &a); break;
        case KVF_NODE_CONNECT: link_call(s, node, &a); break;
        case KVF_NODE_EXIT: exits = true; break;
        }
    }
    check_node(s, node);
    kvf_time_ns local = kvf_node_deadline(n->core);
    kvf_time_ns at = local == KVF_TIME_NEVER ? local : KVF_MAX(sim_when(s, node, local), s->now + 1000);
    if (at != KVF_TIME_NEVER && (at < p->timer_at || p->timer_at <= s->now)) {
        p->timer_at = at;
        sim_push(s, at, EV_TIMER, node, 0);
    }
    if (exits) node_exits(s, node);
}
