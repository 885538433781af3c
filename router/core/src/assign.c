/* Which node takes which leg. The cost of a node is counted in tokens: those it would have to compute or receive, those
 * that wait before it, and a fixed charge for each running request. A cached prefix lowers the first part only, so that
 * it cannot pin a hot node. */
#include "router_int.h"
#include <inttypes.h>
#include <stdio.h>

#define NO_ROOM_CHARGE (1ull << 24) /* a node whose pool looks full is taken only when all do */

kvf_role rt_node_role(const rt_node *n) { return n->known ? n->stats.role : n->hint; }

bool rt_node_ready(const kvf_router *r, const rt_node *n) {
    (void)r;
    return n->used && n->up && n->welcomed && !n->bad && n->stats.state == KVF_NODE_READY;
}

uint64_t rt_nodes_ready(const kvf_router *r, kvf_role role) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < r->config.nodes_max; i++)
        if (rt_node_ready(r, &r->nodes[i]) && rt_node_role(&r->nodes[i]) == role) bits |= 1ull << i;
    return bits;
}

static bool role_expected(const kvf_router *r, kvf_role role) {
    for (uint32_t i = 0; i < r->config.nodes_max; i++) {
        const rt_node *n = &r->nodes[i];
        if (n->used && !n->lost && !n->bad && (rt_node_role(n) == role || rt_node_role(n) == 0)) return true;
    }
    return false;
}

static bool pair_fits(const kvf_router *r, const rt_pair *p) {
    return !p->refused || (p->numerics_only && r->config.allow_other_numerics);
}

static bool pair_usable(const kvf_router *r, uint32_t prefill, uint32_t decode) {
    const rt_pair *p = rt_pair_of(r, prefill, decode);
    if (!pair_fits(r, p)) return false;
    return p->failures == 0 || (p->until_ns <= r->now && !p->probing);
}

uint64_t rt_prefills_for(const kvf_router *r, uint32_t decode) {
    uint64_t bits = rt_nodes_ready(r, KVF_ROLE_PREFILL);
    for (uint32_t i = 0; i < r->config.nodes_max; i++)
        if ((bits >> i & 1) && (i == decode || !pair_usable(r, i, decode))) bits &= ~(1ull << i);
    return bits;
}

/* Nobody may ship there now. Is there a point in waiting? Yes while prefill nodes are away, or for a pair that is set
 * aside for a moment; a pair that fails again and again may be set aside for very long. */
static bool may_ship_soon(const kvf_router *r, uint32_t decode) {
    uint64_t bits = rt_nodes_ready(r, KVF_ROLE_PREFILL);
    bool ejected = false;
    for (uint32_t i = 0; i < r->config.nodes_max; i++) {
        const rt_pair *p = rt_pair_of(r, i, decode);
        if (!(bits >> i & 1) || i == decode || !pair_fits(r, p)) continue;
        if (p->probing || p->until_ns <= rt_after(r->now, RT_EJECTED_NS)) return true;
        ejected = true;
    }
    return !ejected;
}

/* ---- cached prefixes ---- */

static kvf_hash128 root_of(const rt_request *q, const rt_node *n) {
    uint8_t weights[16], salt[16];
    kvf_put_le64(weights, n->info.identity.weights_hash[0]);
    kvf_put_le64(weights + 8, n->info.identity.weights_hash[1]);
    kvf_put_le64(salt, q->salt.lo);
    kvf_put_le64(salt + 8, q->salt.hi);
    bool salted = q->salt.lo || q->salt.hi;
    const char *numerics = n->info.identity.numerics;
    return kvf_kv_root((kvf_span){weights, sizeof weights}, (kvf_span){numerics, strnlen(numerics, 64)},
        (kvf_span){salt, salted ? sizeof salt : 0});
}

static uint64_t same_names(const kvf_router *r, uint64_t nodes, const rt_node *like) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < r->config.nodes_max; i++)
        if ((nodes >> i & 1) && r->nodes[i].model == like->model && r->nodes[i].numerics == like->numerics)
            bits |= 1ull << i;
    return bits;
}

/* Tokens of the leg's work that each of `nodes` has cached, for those whose blocks have equal names. One walk serves
 * all of them. */
static void cached_walk(const kvf_router *r, const rt_seq *s, uint64_t nodes, kvf_hash128 name, uint32_t *cached) {
    const rt_request *q = rt_request_at(r, s);
    const uint32_t *tokens = rt_seq_tokens(r, s);
    uint32_t count = q->prompt_count + (s->l.n == 1 ? s->output_count : 0);
    uint32_t blocks = (count - 1) / KVF_KV_BLOCK_TOKENS;
    for (uint32_t b = 0; b < blocks && nodes; b++) {
        name = kvf_kv_next(name, tokens + (size_t)b * KVF_KV_BLOCK_TOKENS);
        nodes &= rt_directory_find(&r->directory, name);
        for (uint32_t i = 0; i < r->config.nodes_max; i++)
            if (nodes >> i & 1) cached[i] = (b + 1) * KVF_KV_BLOCK_TOKENS;
    }
}

static void cached_tokens(const kvf_router *r, const rt_seq *s, uint64_t nodes, uint32_t cached[KVF_ROUTER_NODES_MAX]) {
    const rt_request *q = rt_request_at(r, s);
    memset(cached, 0, KVF_ROUTER_NODES_MAX * sizeof *cached);
    if (r->directory.count == 0 || q->prompt_logprobs) return;
    KVF_ASSERT(s->prompt_here);
    while (nodes) {
        const rt_node *like = &r->nodes[__builtin_ctzll(nodes)];
        uint64_t group = same_names(r, nodes, like);
        KVF_ASSERT(group);
        cached_walk(r, s, group, root_of(q, like), cached);
        nodes &= ~group;
    }
}

/* ---- cost ---- */

static uint32_t work_tokens(const kvf_router *r, const rt_seq *s) {
    return rt_request_at(r, s)->prompt_count + (s->l.n == 1 ? s->output_count : 0);
}

static uint64_t decode_cost(const kvf_router *r, const rt_seq *s, const rt_node *n, uint32_t cached) {
    uint32_t tokens = work_tokens(r, s);
    uint64_t running =
        KVF_MAX((uint64_t)n->stats.running + n->stats.waiting, (uint64_t)n->reserving + n->queued + n->decoding);
    uint64_t cost = (tokens - cached) + n->stats.waiting_tokens + running * r->config.running_charge_tokens;
    int64_t room = (int64_t)n->stats.blocks_free + n->stats.blocks_evictable - n->stats.blocks_booked;
    int64_t need = (int64_t)(tokens - cached) / KVF_KV_BLOCK_TOKENS + 1;
    if (n->stats.blocks_total && need > room) cost += NO_ROOM_CHARGE;
    return cost + (n->queued ? NO_ROOM_CHARGE : 0);
}

static uint64_t prefill_cost(const kvf_router *r, const rt_seq *s, const rt_node *n, uint32_t cached) {
    return work_tokens(r, s) - cached + n->prefill_load + n->others_load +
           (uint64_t)n->prefilling * r->config.running_charge_tokens;
}

typedef uint64_t (*cost_fn)(const kvf_router *r, const rt_seq *s, const rt_node *n, uint32_t cached);

static uint32_t cheapest(kvf_router *r, const rt_seq *s, uint64_t nodes, cost_fn cost, uint32_t *cached_out) {
    uint32_t cached[KVF_ROUTER_NODES_MAX], best = RT_NONE, max = r->config.nodes_max;
    uint64_t best_cost = UINT64_MAX;
    uint32_t *rotate =
        cost == prefill_cost ? &r->rotate_prefill : &r->rotate_decode; /* in step, one would always win */
    cached_tokens(r, s, nodes, cached);
    for (uint32_t k = 0; k < max; k++) {
        uint32_t i = (*rotate + k) % max; /* the first of equals wins, and the start moves on */
        if (!(nodes >> i & 1)) continue;
        uint64_t c = cost(r, s, &r->nodes[i], cached[i]);
        if (c < best_cost) {
            best = i;
            best_cost = c;
        }
    }
    KVF_ASSERT(best != RT_NONE);
    *rotate = (best + 1) % max;
    *cached_out = cached[best];
    return best;
}

/* ---- which nodes may ---- */

static uint64_t prefer(uint64_t all, uint64_t better) { return all & better ? all & better : all; }

/* Tokens that exist were made by one model, and if possible by one numerics id: the rest has to be too. */
static uint64_t fitting(const kvf_router *r, const rt_leg *l, uint64_t nodes) {
    if (!l->model) return nodes;
    uint64_t same_model = 0, same_numerics = 0;
    for (uint32_t i = 0; i < r->config.nodes_max; i++) {
        const rt_node *n = &r->nodes[i];
        if (!(nodes >> i & 1) || n->model != l->model) continue;
        same_model |= 1ull << i;
        if (n->numerics == l->numerics) same_numerics |= 1ull << i;
    }
    return prefer(same_model, same_numerics);
}

static bool node_open(const kvf_router *r, const rt_node *n) {
    return n->closed_until_ns <= r->now && n->reserving < r->config.reserve_window &&
           n->queued < r->config.queued_window;
}

static uint64_t open_nodes(const kvf_router *r, uint64_t nodes) {
    for (uint32_t i = 0; i < r->config.nodes_max; i++)
        if ((nodes >> i & 1) && !node_open(r, &r->nodes[i])) nodes &= ~(1ull << i);
    return nodes;
}

typedef enum { TAKEN, CLOSED, SET_ASIDE, ENDED } outcome;

static bool grace_over(kvf_router *r, rt_leg *l) {
    if (l->unready_since == KVF_TIME_NEVER) l->unready_since = rt_awake(r);
    return rt_after(l->unready_since, r->config.ready_grace_ns) <= rt_awake(r);
}

/* No node of a role is ready (or usable): wait for one, within the grace. */
static outcome wait_for(kvf_router *r, rt_seq *s, const char *what) {
    rt_leg *l = &s->l;
    if (grace_over(r, l)) {
        rt_request_fail(r, rt_request_at(r, s), KVF_ERR_PEER_LOST, "", what, r->config.retry_after_ns);
        return ENDED;
    }
    rt_leg_hold(r, s, rt_after(r->now, RT_HOLD_NS));
    return SET_ASIDE;
}

typedef struct {
    uint64_t nodes;
    uint32_t ship_min;
    uint64_t *fallback; /* counter to count in when it is taken, or NULL */
} choice;

/* Nodes that can be the decode node of this leg. TAKEN: *c is filled. */
static outcome decode_candidates(kvf_router *r, rt_seq *s, choice *c) {
    const rt_request *q = rt_request_at(r, s);
    uint64_t ready = fitting(r, &s->l, rt_nodes_ready(r, KVF_ROLE_DECODE));
    bool all = s->l.local_only || q->mode == KVF_ROUTER_NEVER;
    *c = (choice){.nodes = ready & ~s->l.impossible,
        .ship_min = all                            ? UINT32_MAX
                    : q->mode == KVF_ROUTER_ALWAYS ? 0
                                                   : r->config.ship_min};
    if (c->nodes) return TAKEN;
    uint64_t others = fitting(r, &s->l, rt_nodes_ready(r, KVF_ROLE_PREFILL));
    if (!ready && !r->config.strict && (others & ~s->l.impossible)) {
        *c = (choice){others & ~s->l.impossible, UINT32_MAX, &r->counters.fallback_prefill};
        return TAKEN;
    }
    if (ready || (!r->config.strict && (others & s->l.impossible))) {
        rt_request_fail(r, rt_request_at(r, s), KVF_ERR_NO_ROOM, q->why.field, q->why.text, 0);
        return ENDED;
    }
    return wait_for(r, s, "no decode node is ready");
}

/* Narrows *c to decode nodes that a prefill node may ship to, or gives up on shipping where that is allowed. */
static outcome shipping_candidates(kvf_router *r, rt_seq *s, choice *c) {
    const rt_request *q = rt_request_at(r, s);
    uint64_t shipping = 0;
    bool soon = false;
    for (uint32_t i = 0; i < r->config.nodes_max; i++) {
        if (!(c->nodes >> i & 1)) continue;
        if (rt_prefills_for(r, i) & ~s->l.impossible) shipping |= 1ull << i;
        soon |= may_ship_soon(r, i);
    }
    if (shipping) {
        c->nodes = shipping;
        return TAKEN;
    }
    if (r->config.strict) return wait_for(r, s, "no prefill node is ready that may ship to a ready decode node");
    if (q->mode == KVF_ROUTER_ALWAYS && soon && role_expected(r, KVF_ROLE_PREFILL) && !grace_over(r, &s->l)) {
        rt_leg_hold(r, s, rt_after(r->now, RT_HOLD_NS));
        return SET_ASIDE;
    }
    c->ship_min = UINT32_MAX;
    c->fallback = &r->counters.fallback_local;
    return TAKEN;
}

static outcome assign(kvf_router *r, rt_seq *s) {
    rt_leg *l = &s->l;
    choice c;
    outcome got = decode_candidates(r, s, &c);
    if (got == TAKEN && c.ship_min != UINT32_MAX) got = shipping_candidates(r, s, &c);
    if (got != TAKEN) return got;
    if (!c.fallback) l->unready_since = KVF_TIME_NEVER; /* a grace is for one time without nodes */
    uint64_t open = open_nodes(r, c.nodes);
    if (!open) {
        /* The whole queue waits behind a leg that any node may take, but not behind one that only some may. */
        if (c.nodes == rt_nodes_ready(r, KVF_ROLE_DECODE)) return CLOSED;
        rt_leg_hold(r, s, rt_after(r->now, RT_HOLD_NS));
        return SET_ASIDE;
    }
    uint32_t cached;
    uint32_t node = cheapest(r, s, prefer(prefer(open, ~l->avoid), ~l->tried), decode_cost, &cached);
    if (c.fallback) (*c.fallback)++;
    rt_leg_reserve(r, s, node, c.ship_min);
    return TAKEN;
}

/* ---- moving what stands in a node's queue ---- */

static uint64_t idle_nodes(const kvf_router *r) {
    uint64_t bits = rt_nodes_ready(r, KVF_ROLE_DECODE);
    for (uint32_t i = 0; i < r->config.nodes_max; i++) {
        const rt_node *n = &r->nodes[i];
        if ((bits >> i & 1) && (n->full || n->queued || n->reserving || n->closed_until_ns > r->now))
            bits &= ~(1ull << i);
    }
    return bits;
}

uint32_t rt_idle_decode(kvf_router *r, const rt_seq *s) {
    uint64_t nodes = fitting(r, &s->l, idle_nodes(r)) & ~s->l.impossible & ~s->l.tried;
    if (s->l.ship_min != UINT32_MAX)
        for (uint32_t i = 0; i < r->config.nodes_max; i++)
            if ((nodes >> i & 1) && !rt_prefills_for(r, i)) nodes &= ~(1ull << i);
    if (!nodes) return RT_NONE;
    uint32_t cached;
    return cheapest(r, s, nodes, decode_cost, &cached);
}

bool rt_queue_before(const void *context, uint32_t a, uint32_t b) {
    const kvf_router *r = context;
    const rt_seq *x = &r->seqs[a], *y = &r->seqs[b];
    const rt_request *p = rt_request_at(r, x), *q = rt_request_at(r, y);
    if (p->priority != q->priority) return p->priority > q->priority;
    if (x->l.retry != y->l.retry) return x->l.retry;
    if (x->l.arrival != y->l.arrival) return x->l.arrival < y->l.arrival;
    return a < b;
}

/* A node has come free while others keep requests waiting: the first of those moves. */
static void move_queued(kvf_router *r) {
    uint32_t first = RT_NONE, node = RT_NONE;
    if (!idle_nodes(r)) return;
    for (uint32_t i = 0; i < r->fresh_seqs; i++) {
        rt_seq *s = &r->seqs[i];
        if (s->request == RT_NONE || s->l.state != RT_LEG_QUEUED) continue;
        if (first != RT_NONE && !rt_queue_before(r, i, first)) continue;
        uint32_t idle = rt_idle_decode(r, s);
        if (idle == RT_NONE) continue;
        first = i;
        node = idle;
    }
    if (first == RT_NONE) return;
    rt_seq *s = &r->seqs[first];
    uint32_t ship_min = s->l.ship_min;
    rt_leg_leave(r, s, false);
    rt_leg_reserve(r, s, node, ship_min);
}

void rt_pump(kvf_router *r) {
    for (;;) {
        uint32_t top = rt_heap_top(&r->queue);
        if (top == RT_NONE) break;
        if (assign(r, &r->seqs[top]) == CLOSED) return;
        KVF_ASSERT(rt_heap_top(&r->queue) != top);
    }
    if (r->queued_legs) move_queued(r);
}

/* ---- the prefill node of a granted leg ---- */

static void without_prefill(kvf_router *r, rt_seq *s, const char *text) {
    const rt_request *q = rt_request_at(r, s);
    bool local = !r->config.strict || q->mode == KVF_ROUTER_AUTO;
    if (local) {
        s->l.local_only = true;
        r->counters.fallback_local++;
        uint32_t old = s->l.attempt;
        rt_leg_reserve(r, s, s->l.decode, UINT32_MAX);
        s->l.old_attempt = old;
        return;
    }
    rt_leg_failed(r, s,
        &(rt_failure){.what = RT_HANDBACK, .blame = RT_NONE, .reason = KVF_AGAIN, .stage = "prefill", .text = text});
}

void rt_assign_prefill(kvf_router *r, rt_seq *s) {
    rt_leg *l = &s->l;
    KVF_ASSERT(l->state == RT_LEG_GRANTED);
    uint64_t usable = rt_prefills_for(r, l->decode) & ~l->impossible, open = 0;
    usable = fitting(r, l, usable);
    for (uint32_t i = 0; i < r->config.nodes_max; i++)
        if ((usable >> i & 1) && r->nodes[i].closed_until_ns <= r->now) open |= 1ull << i;
    if (open) {
        uint32_t cached;
        uint32_t node = cheapest(r, s, prefer(open, ~l->avoid), prefill_cost, &cached);
        rt_leg_prefill(r, s, node, work_tokens(r, s) - cached);
        return;
    }
    bool waits = rt_request_at(r, s)->mode == KVF_ROUTER_ALWAYS && may_ship_soon(r, l->decode);
    if (!usable && !r->config.strict && !waits) {
        without_prefill(r, s, "no prefill node is ready");
        return;
    }
    if (r->now >= l->grant_until) {
        without_prefill(r, s, "no prefill node has room");
        return;
    }
    rt_timer_set(r, rt_timer_seq(r, s), KVF_MIN(l->grant_until, rt_after(r->now, RT_HOLD_NS)));
}
