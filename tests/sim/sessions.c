/* Sessions between routers and nodes: ordered streams, each with its own latency, that break, stall and heal. Both ends
 * learn of a break at times of their own; what was on its way until then still arrives, what is said after it is lost.
 */
#include "sim.h"
#include <inttypes.h>
#include <stdlib.h>

bool session_blocked(const sim *s, const sim_session *c) { return s->session_blocked[c->router][c->place] > s->now; }

/* Each connection has good and bad hours of its own. */
static kvf_time_ns latency(sim *s, uint32_t index, sim_session *c) {
    static const uint8_t regimes[8] = {1, 1, 1, 1, 2, 3, 6, 12};
    uint64_t hour = s->now / (8 * SIM_MS);
    uint64_t times = regimes[kvf_rng_at(s->plan->world.seed, 100 + index, hour) % 8];
    const sim_node *n = &s->node[c->node];
    if (n->lag_until > s->now) times *= n->lag;
    return us(1 + sim_draw(s, 2000 + index, &c->drawn, s->plan->world.latency_us * times));
}

static bool repeats(sim *s, uint32_t index, sim_session *c) {
    const sim_node *n = &s->node[c->node];
    if (n->repeat_until <= s->now || s->healed) return false;
    bool yes = sim_draw(s, 2000 + index, &c->drawn, 100) < n->repeat_percent;
    s->count.repeated += yes;
    return yes;
}

static event *send(sim *s, uint32_t index, sim_session *c, bool to_node) {
    kvf_time_ns *last = to_node ? &c->to_node_last : &c->to_router_last, at = s->now + latency(s, index, c);
    if (at <= *last) at = *last + 1;
    *last = at;
    return sim_push(s, at, to_node ? EV_TO_NODE : EV_TO_ROUTER, to_node ? c->node : router_process(c->router), index);
}

/* The same again, behind whatever has been said by then: at once, while the work goes on, when a refused one is asked
 * for again (a node says 100 ms), or later than any node remembers what has been cancelled. */
static event *send_again(sim *s, uint32_t index, sim_session *c, bool to_node) {
    static const struct { uint32_t from_us, span_us; } later[] = {{0, 4000}, {0, 40000}, {95000, 15000}, {0, 500000}};
    uint64_t which = sim_draw(s, 2000 + index, &c->drawn, KVF_COUNT_OF(later));
    kvf_time_ns last = to_node ? c->to_node_last : c->to_router_last;
    kvf_time_ns at = last + us(1 + later[which].from_us + sim_draw(s, 2000 + index, &c->drawn, later[which].span_us));
    return sim_push(s, at, to_node ? EV_TO_NODE : EV_TO_ROUTER, to_node ? c->node : router_process(c->router), index);
}

static kvf_request_id id_of(const kvf_rmsg *m) {
    switch (m->kind) {
    case KVF_R_RESERVE: return m->reserve.request;
    case KVF_R_PREFILL: return m->prefill.work.request;
    case KVF_R_CANCEL: return m->cancel.request;
    default: return (kvf_request_id){0, 0};
    }
}

static uint32_t attempt_of(const kvf_rmsg *m) {
    switch (m->kind) {
    case KVF_R_RESERVE: return m->reserve.attempt;
    case KVF_R_PREFILL: return m->prefill.work.attempt;
    case KVF_R_CANCEL: return m->cancel.attempt;
    default: return 0;
    }
}

static void attempt_begins(sim *s, uint32_t router, kvf_request_id part) {
    kvf_request_id id;
    uint64_t client;
    if (kvf_router_request_of(s->router[router].core, part, &id, &client)) s->request[client].fresh = true;
}

void session_to_node(sim *s, uint32_t router, uint32_t place, const kvf_rmsg *m) {
    static const char *const names[] = {"?", "Hello", "Reserve", "Prefill", "Cancel", "Ack", "Drain", "Undrain",
        "SetRole", "Flush", "Audit", "Blocks", "Snapshot", "Superseded"};
    uint32_t index = s->router[router].session[place];
    sim_note(s, ((uint64_t)m->kind << 40) ^ id_of(m).counter ^ ((uint64_t)attempt_of(m) << 24));
    if (index == SIM_NONE || s->session[index].router_down) return;
    sim_session *c = &s->session[index];
    if (m->kind != KVF_R_ACK)
        TRACE(s, "r%u -> %s %s req %" PRIu64 ".%u%s", router, s->node[c->node].config.info.node, names[m->kind],
            id_of(m).counter, attempt_of(m), c->cut ? " (lost)" : "");
    if (m->kind == KVF_R_RESERVE) attempt_begins(s, router, m->reserve.request);
    if (c->cut) return;
    send(s, index, c, true)->payload = sim_clone_rmsg(m);
    if (m->kind < KVF_R_RESERVE || m->kind > KVF_R_ACK || !repeats(s, index, c)) return;
    send_again(s, index, c, true)->payload = sim_clone_rmsg(m);
    s->harmed |= m->kind == KVF_R_RESERVE; /* after its refusal it is taken on, beside the attempt made meanwhile */
}

static void trace_answer(const sim *s, uint32_t node, const sim_session *c, const kvf_nmsg *m) {
    static const char *const names[] = {"?", "Welcome", "Granted", "Local", "Queued", "Refused", "Stale",
        "AlreadyStarted", "Tokens", "Started", "Shipped", "Failed", "Preempted", "PromptLogprobs", "Status", "Events",
        "Snapshot", "Audit", "Blocks", "Flushed", "Prefilling"};
    const char *name = s->node[node].config.info.node, *lost = c->cut ? " (lost)" : "";
    if (m->kind == KVF_N_TOKENS)
        for (uint32_t k = 0; k < m->tokens.count; k++)
            TRACE(s, "%s -> r%u token req %" PRIu64 ".%u choice %u position %u end %d%s", name, c->router,
                m->tokens.items[k].request.counter, m->tokens.items[k].attempt, m->tokens.items[k].index,
                m->tokens.items[k].position, (int)m->tokens.items[k].end, lost);
    else if (m->kind != KVF_N_STATUS && m->kind != KVF_N_EVENTS)
        TRACE(s, "%s -> r%u %s req %" PRIu64 ".%u %s%s", name, c->router, names[m->kind], m->request.counter,
            m->attempt,
            m->kind == KVF_N_FAILED    ? m->failed.text
            : m->kind == KVF_N_REFUSED ? m->refused.text
                                       : "",
            lost);
}

static bool may_repeat(const kvf_nmsg *m) {
    return m->kind != KVF_N_WELCOME && m->kind != KVF_N_SNAPSHOT && m->kind < KVF_N_AUDIT;
}

/* What a node says about an attempt follows the tokens that it has made for it. */
static void check_order(sim *s, uint32_t node, uint32_t session, const kvf_nmsg *m) {
    sim_node *n = &s->node[node];
    uint32_t known = KVF_MIN(n->ended_count, KVF_COUNT_OF(n->ended));
    if (s->count.repeated) return; /* a Prefill that comes again is taken on again */
    /* GONE: it never came here; said again, it may come after all. */
    if ((m->kind == KVF_N_FAILED && m->failed.reason != KVF_ERR_GONE) || m->kind == KVF_N_PREEMPTED)
        n->ended[n->ended_count++ % KVF_COUNT_OF(n->ended)] = (sim_end){m->request, m->attempt, session};
    for (uint32_t i = 0; m->kind == KVF_N_TOKENS && i < m->tokens.count; i++)
        for (uint32_t k = 0; k < known; k++) {
            const sim_end *e = &n->ended[k];
            const kvf_token_item *t = &m->tokens.items[i];
            if (e->session == session && e->attempt == t->attempt && kvf_request_id_equal(e->request, t->request))
                sim_fail(s, "node %s: a token of request %llu.%u follows the word that its attempt is over",
                    n->config.info.node, (unsigned long long)t->request.counter, t->attempt);
        }
}

void session_to_router(sim *s, uint32_t node, uint32_t slot, const kvf_nmsg *m) {
    sim_note(s, ((uint64_t)m->kind << 44) ^ m->request.counter ^ ((uint64_t)m->attempt << 24));
    KVF_ASSERT(slot < SIM_SLOTS);
    uint32_t index = s->node[node].session[slot];
    if (index == SIM_NONE) sim_fail(s, "node %s speaks on a stream that is down", s->node[node].config.info.node);
    sim_session *c = &s->session[index];
    if (s->verbose) trace_answer(s, node, c, m);
    check_order(s, node, index, m);
    if (m->kind == KVF_N_STARTED && s->process[node].alive) check_started(s, node, m->request);
    s->router[c->router].hand_backs_said += m->kind == KVF_N_PREEMPTED;
    fault_hook(s, TRIGGER_said, m->kind, node);
    if (c->cut) return;
    send(s, index, c, false)->payload = sim_clone_nmsg(m);
    if (may_repeat(m) && repeats(s, index, c)) send_again(s, index, c, false)->payload = sim_clone_nmsg(m);
}

/* ------------------------------------------------------------------ up and down */

/* known: both ends find out by themselves, however the network is. */
void session_cut(sim *s, uint32_t index, bool known) {
    sim_session *c = &s->session[index];
    if (c->cut) return;
    c->cut = true;
    TRACE(s, "session r%u - %s is cut", c->router, s->node[c->node].config.info.node);
    kvf_time_ns router = us(1 + sim_draw(s, 2000 + index, &c->drawn, 4000));
    kvf_time_ns node = us(1 + sim_draw(s, 2000 + index, &c->drawn, 4000));
    for (uint32_t i = 0; i < 2; i++) c->loses[i] = sim_draw(s, 2000 + index, &c->drawn, 2) == 0;
    event *e = sim_push(s, s->now + router, EV_ROUTER_SIDE_DOWN, router_process(c->router), index);
    e->incarnation = c->router_incarnation;
    e->arrived = known;
    e = sim_push(s, s->now + node, EV_NODE_SIDE_DOWN, c->node, index);
    e->incarnation = c->node_incarnation;
    e->arrived = known;
}

void session_cut_of(sim *s, uint32_t who, bool known) {
    for (uint32_t i = 0; i < s->sessions; i++)
        if (s->session[i].node == who || router_process(s->session[i].router) == who) session_cut(s, i, known);
}

void on_session_side_down(sim *s, const event *e) {
    sim_session *c = &s->session[e->index];
    if (e->kind == EV_NODE_SIDE_DOWN) {
        if (c->node_down) return;
        c->node_down = true;
        c->node_down_at = s->now;
        touch(s, c->node);
        if (c->slot == SIM_NONE) return;
        s->node[c->node].session[c->slot] = SIM_NONE;
        kvf_node_on_session_down(s->node[c->node].core, sim_clock(s, c->node), c->slot);
        return;
    }
    if (c->router_down) return;
    c->router_down = true;
    if (s->router[c->router].session[c->place] != e->index) return;
    touch(s, e->who);
    kvf_router_on_session_down(s->router[c->router].core, sim_clock(s, e->who), c->place);
    sim_push(s, s->now + us(500 + sim_draw(s, 2000 + e->index, &c->drawn, 15000)), EV_CONNECT, e->who, c->place);
}

/* While a replaced process lives, its address may still lead to it now and then. */
static uint32_t who_answers(sim *s, uint32_t place) {
    uint32_t node = s->place_node[place], other = (node + SIM_PLACES) % SIM_NODES;
    bool old = s->process[other].alive && !s->process[other].frozen && below(s, 3) == 0;
    return old ? other : node;
}

void on_connect(sim *s, uint32_t router, uint32_t place) {
    sim_router *r = &s->router[router];
    uint32_t last = r->session[place], who = router_process(router);
    if (last != SIM_NONE && !s->session[last].router_down) return;
    uint32_t node = who_answers(s, place);
    if (!s->process[node].alive || s->process[node].frozen || s->session_blocked[router][place] > s->now) {
        sim_push(s, s->now + us(5000 + below(s, 20000)), EV_CONNECT, who, place);
        return;
    }
    if (s->sessions == s->sessions_max) {
        s->sessions_max = s->sessions_max ? 2 * s->sessions_max : 64;
        s->session = realloc(s->session, sizeof *s->session * s->sessions_max);
        KVF_ASSERT(s->session);
    }
    r->session[place] = s->sessions;
    s->session[s->sessions++] = (sim_session){.router = router,
        .place = place,
        .node = node,
        .slot = SIM_NONE,
        .router_incarnation = s->process[who].incarnation,
        .node_incarnation = s->process[node].incarnation};
    touch(s, who);
    kvf_router_on_session_up(r->core, sim_clock(s, who), place);
}

/* ------------------------------------------------------------------ arrivals */

static bool give_slot(sim *s, uint32_t index, sim_session *c) {
    sim_node *n = &s->node[c->node];
    for (uint32_t i = 0; i < SIM_SLOTS; i++) {
        if (n->session[i] != SIM_NONE || !kvf_node_session_free(n->core, i)) continue;
        n->session[i] = index;
        c->slot = i;
        return true;
    }
    session_cut(s, index, true); /* the node is full of routers that it still remembers */
    return false;
}

void on_to_node(sim *s, const event *e) {
    sim_session *c = &s->session[e->index];
    const kvf_rmsg *m = e->payload;
    if (c->node_down || (c->cut && c->loses[1])) return;
    if ((c->slot == SIM_NONE && (m->kind != KVF_R_HELLO || !give_slot(s, e->index, c)))) return;
    touch(s, c->node);
    if (m->kind == KVF_R_HELLO) check_before_hello(s, c->node, c->router);
    kvf_node_on_msg(s->node[c->node].core, sim_clock(s, c->node), c->slot, m);
    if (m->kind == KVF_R_HELLO) check_after_hello(s, c->node, c->router);
    if (m->kind == KVF_R_FLUSH) check_flushed(s, c->node);
    fault_hook(s, TRIGGER_message, m->kind, c->node);
}

void on_to_router(sim *s, const event *e) {
    sim_session *c = &s->session[e->index];
    const kvf_nmsg *m = e->payload;
    if (c->router_down || (c->cut && c->loses[0])) return;
    touch(s, e->who);
    check_answer(s, c->router, c->place, m);
    s->router[c->router].hand_backs_heard += m->kind == KVF_N_PREEMPTED;
    kvf_router_on_msg(s->router[c->router].core, sim_clock(s, e->who), c->place, m);
    fault_hook(s, TRIGGER_answer, m->kind, c->node);
}
