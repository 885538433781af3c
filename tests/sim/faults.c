/* What goes wrong, and how it is put right. */
#include "sim.h"

void faults_arm(sim *s) {
    for (uint32_t i = 0; i < s->plan->faults; i++) {
        const plan_fault *f = &s->plan->fault[i];
        if (f->on == TRIGGER_time)
            sim_push(s, us(f->at_us), EV_FAULT, SIM_NOBODY, i);
        else
            s->fault_left[i] = (uint32_t)f->nth;
    }
}

void fault_hook(sim *s, trigger_kind on, uint64_t of, uint32_t node) {
    if (s->healed) return;
    for (uint32_t i = 0; i < s->plan->faults; i++) {
        const plan_fault *f = &s->plan->fault[i];
        if (s->fault_left[i] == 0 || f->on != on || f->node != place_of(node) || us(f->at_us) > s->now) continue;
        if (f->of != 0 && f->of != of) continue;
        if (--s->fault_left[i] == 0) sim_push(s, s->now + 1, EV_FAULT, SIM_NOBODY, i);
    }
}

/* ------------------------------------------------------------------ processes */

static void restart_later(sim *s, uint32_t who, uint64_t for_us) {
    sim_push(s, s->now + us(for_us), EV_START, SIM_NOBODY, who);
}

static void freeze(sim *s, uint32_t who, uint32_t fault, uint64_t for_us) {
    process *p = &s->process[who];
    if (!p->alive || p->frozen) return;
    p->frozen = true;
    p->frozen_at = s->now;
    TRACE(s, "process %u freezes for %llu us", who, (unsigned long long)for_us);
    event *e = sim_push(s, s->now + us(for_us) + 777, EV_THAW, SIM_NOBODY, who);
    e->number = p->incarnation;
    sim_push(s, s->now + SIM_PEER_TIMEOUT_NS, EV_DEAD_PEERS, SIM_NOBODY, fault);
    sim_push(s, s->now + SIM_KEEPALIVE_NS, EV_DEAD_PEERS, SIM_NOBODY, fault);
}

void on_thaw(sim *s, uint32_t who) {
    process *p = &s->process[who];
    if (!p->alive || !p->frozen) return;
    p->frozen = false;
    p->stale_clock = p->held.count > 0;
    TRACE(s, "process %u thaws, %u events wait", who, p->held.count);
    s->count.thawed_late += p->held.count;
    sim_release(s, &p->held);
}

/* A new process takes the place's name and address; the old one lives on until somebody tells it to stop. */
static void replace(sim *s, uint32_t place) {
    uint32_t old = s->place_node[place], next = (old + SIM_PLACES) % SIM_NODES;
    if (s->process[next].alive) return;
    s->place_node[place] = next;
    node_start(s, next);
    touch(s, next);
    for (uint32_t i = 0; i < s->sessions; i++)
        if (s->session[i].node == old) session_cut(s, i, true);
}

/* ------------------------------------------------------------------ the network */

static void part_links(sim *s, uint32_t a, uint32_t b, kvf_time_ns until) {
    s->link_blocked[a][b] = s->link_blocked[b][a] = KVF_MAX(s->link_blocked[a][b], until);
}

static void part(sim *s, const plan_fault *f, uint32_t fault) {
    kvf_time_ns until = s->now + us(f->for_us) + 333;
    uint32_t node = (uint32_t)f->node;
    if (f->kind == FAULT_part_links) part_links(s, node, (uint32_t)f->peer, until);
    for (uint32_t i = 0; f->kind == FAULT_part_host && i < SIM_PLACES; i++)
        if (i != node) part_links(s, node, i, until);
    for (uint32_t r = 0; r < s->plan->world.routers; r++)
        if (f->kind == FAULT_part_host || (f->kind == FAULT_part_session && r == f->router))
            s->session_blocked[r][node] = KVF_MAX(s->session_blocked[r][node], until);
    sim_push(s, until, EV_RELEASE, SIM_NOBODY, 0);
    sim_push(s, s->now + SIM_PEER_TIMEOUT_NS, EV_DEAD_PEERS, SIM_NOBODY, fault);
    sim_push(s, s->now + SIM_KEEPALIVE_NS, EV_DEAD_PEERS, SIM_NOBODY, fault);
}

void on_release(sim *s) {
    for (uint32_t i = 0; i < s->sessions; i++)
        if (s->session[i].held.count && !session_blocked(s, &s->session[i])) sim_release(s, &s->session[i].held);
    for (uint32_t i = 0; i < s->links; i++)
        if (s->link[i].held.count && !link_blocked(s, &s->link[i])) sim_release(s, &s->link[i].held);
}

/* Peers that have been silent for a timeout are given up by whoever can still act. */
void on_dead_peers(sim *s, uint32_t fault) {
    const plan_fault *f = &s->plan->fault[fault];
    for (uint32_t i = 0; i < s->links; i++) {
        const sim_link *l = &s->link[i];
        bool frozen = false;
        for (uint32_t side = 0; side < 2; side++) {
            const process *p = &s->process[l->end[side]];
            frozen |= p->frozen && s->now - p->frozen_at >= SIM_PEER_TIMEOUT_NS;
        }
        bool parted = (f->kind == FAULT_part_links || f->kind == FAULT_part_host) && link_blocked(s, l);
        if (frozen || parted) link_cut(s, i, true);
    }
    for (uint32_t i = 0; i < s->sessions; i++) {
        const sim_session *c = &s->session[i];
        const process *p = &s->process[router_process(c->router)];
        bool frozen = p->frozen && s->now - p->frozen_at >= SIM_KEEPALIVE_NS;
        bool parted = (f->kind == FAULT_part_session || f->kind == FAULT_part_host) && session_blocked(s, c);
        if (frozen || parted) session_cut(s, i, true);
    }
}

/* ------------------------------------------------------------------ one fault */

static void strike_router(sim *s, const plan_fault *f, uint32_t fault) {
    uint32_t router = (uint32_t)f->router, who = router_process(router), place = (uint32_t)f->node;
    kvf_router *core = s->router[router].core;
    process *p = &s->process[who];
    if (!p->alive || p->frozen) return;
    kvf_time_ns now = sim_clock(s, who);
    touch(s, who);
    switch (f->kind) {
    case FAULT_router_crash:
        router_die(s, router);
        restart_later(s, who, f->for_us);
        break;
    case FAULT_router_freeze: freeze(s, who, fault, f->for_us); break;
    case FAULT_session_cut:
        if (s->router[router].session[place] != SIM_NONE) session_cut(s, s->router[router].session[place], true);
        break;
    case FAULT_drain: (void)kvf_router_drain(core, now, place, us(f->for_us)); break;
    case FAULT_undrain: (void)kvf_router_undrain(core, now, place); break;
    case FAULT_role:
        (void)kvf_router_set_role(core, now, place, f->arg == 1 ? KVF_ROLE_PREFILL : KVF_ROLE_DECODE);
        break;
    default: (void)kvf_router_flush(core, now, place, 1);
    }
    if (!p->alive || p->frozen) s->dirty &= ~(1u << who);
}

/* The cluster must not be left without anybody. */
static bool others_live(const sim *s, uint32_t place) {
    for (uint32_t i = 0; i < plan_nodes(s->plan); i++)
        if (i != place && !s->gone[i]) return true;
    return false;
}

static void cut_links(sim *s, const plan_fault *f) {
    for (uint32_t i = 0; i < s->links; i++) {
        uint64_t a = place_of(s->link[i].end[0]), b = place_of(s->link[i].end[1]);
        if ((a == f->node && b == f->peer) || (a == f->peer && b == f->node)) link_cut(s, i, true);
    }
}

/* To a router a process that it cannot reach for longer than its grace is dead, and so is one that has been replaced:
 * what its engine was at may be why. */
static void count_lost(sim *s, const plan_fault *f) {
    bool away = f->kind == FAULT_freeze || f->kind == FAULT_part_host || f->kind == FAULT_part_session;
    if (f->kind == FAULT_replace || (away && us(f->for_us) > SIM_RECONNECT_GRACE_NS / 2))
        count_deaths(s, s->place_node[f->node], false);
}

static void strike_node(sim *s, const plan_fault *f, uint32_t fault) {
    uint32_t node = s->place_node[f->node];
    sim_node *n = &s->node[node];
    kvf_time_ns until = s->now + us(f->for_us);
    switch (f->kind) {
    case FAULT_crash:
        count_deaths(s, node, false);
        node_die(s, node);
        s->gone[f->node] |= f->arg == 6 && others_live(s, (uint32_t)f->node);
        restart_later(s, node, f->for_us);
        break;
    case FAULT_freeze: freeze(s, node, fault, f->for_us); break;
    case FAULT_replace: replace(s, (uint32_t)f->node); break;
    case FAULT_link_cut: cut_links(s, f); break;
    case FAULT_slow: n->slow_until = until; break;
    case FAULT_lag:
        n->lag = (uint32_t)f->arg;
        n->lag_until = until;
        break;
    case FAULT_corrupt: n->corrupt_next = (uint32_t)f->arg; break;
    case FAULT_torn: n->torn_next = (uint32_t)f->arg; break;
    case FAULT_alter: n->alter_next = true; break;
    case FAULT_step_fails: n->step_fails_next = (uint32_t)f->arg; break;
    case FAULT_repeat:
        n->repeat_percent = (uint32_t)f->arg;
        n->repeat_until = until;
        break;
    case FAULT_forge:
        n->forge_percent = (uint32_t)f->arg;
        n->forge_until = until;
        break;
    default: KVF_ASSERT(!"a fault of nodes");
    }
}

void on_fault(sim *s, uint32_t fault) {
    const plan_fault *f = &s->plan->fault[fault];
    if (s->healed) return;
    TRACE(s, "fault %u: %s place %u peer %u r%u for %llu us arg %llu", fault, plan_fault_name(f->kind),
        (uint32_t)f->node, (uint32_t)f->peer, (uint32_t)f->router, (unsigned long long)f->for_us,
        (unsigned long long)f->arg);
    s->count.faults[f->kind]++;
    s->harmed |= f->kind != FAULT_repeat && f->kind != FAULT_forge && f->kind != FAULT_flush &&
                 f->kind != FAULT_undrain && f->kind != FAULT_session_cut;
    s->harms += f->kind != FAULT_repeat && f->kind != FAULT_flush;
    count_lost(s, f);
    switch (f->kind) {
    case FAULT_router_crash:
    case FAULT_router_freeze:
    case FAULT_session_cut:
    case FAULT_drain:
    case FAULT_undrain:
    case FAULT_role:
    case FAULT_flush: strike_router(s, f, fault); break;
    case FAULT_part_links:
    case FAULT_part_session:
    case FAULT_part_host: part(s, f, fault); break;
    default: strike_node(s, f, fault);
    }
    note_service(s);
}

/* ------------------------------------------------------------------ healing */

void heal(sim *s) {
    s->healed = true;
    TRACE(s, "all is healed");
    memset(s->link_blocked, 0, sizeof s->link_blocked);
    memset(s->session_blocked, 0, sizeof s->session_blocked);
    /* What waits in a process had left the network before what waits there. */
    for (uint32_t who = 0; who < SIM_PROCESSES; who++)
        if (s->process[who].frozen) on_thaw(s, who);
    on_release(s);
    for (uint32_t place = 0; place < plan_nodes(s->plan); place++) {
        uint32_t node = s->place_node[place], old = (node + SIM_PLACES) % SIM_NODES;
        node_die(s, old);
        restart_later(s, node, 1);
        s->node[node].slow = 1;
        s->node[node].slow_until = s->node[node].lag_until = 0;
    }
    for (uint32_t r = 0; r < s->plan->world.routers; r++) restart_later(s, router_process(r), 1);
    sim_push(s, s->now + us(20000), EV_OPERATOR, SIM_NOBODY, 0);
}

/* Somebody takes every node out of its drain. */
void on_operator(sim *s) {
    uint32_t who = router_process(0);
    for (uint32_t place = 0; place < plan_nodes(s->plan); place++) {
        kvf_router_node n;
        kvf_time_ns now = sim_clock(s, who);
        if (!kvf_router_node_at(s->router[0].core, now, place, &n) || n.state != KVF_NODE_DRAINING) continue;
        (void)kvf_router_undrain(s->router[0].core, now, place);
        touch(s, who);
    }
    sim_push(s, s->now + us(50000), EV_OPERATOR, SIM_NOBODY, 0);
}

/* A wall clock that is ahead makes a process seem the newer one, and its router waits for it to be lost
 * (docs/protocol.md): the process that is in its place serves others. */
static bool seems_older_here(sim *s, uint32_t router, uint32_t place, const kvf_node_info *own) {
    kvf_router_node n;
    if (!s->router[router].core || !kvf_router_node_at(s->router[router].core, s->now, place, &n)) return false;
    return n.info && n.info->epoch != own->epoch && n.info->started_ns > 1000 * KVF_NS_PER_S + s->now;
}

/* When was there last no node that could have worked for a router's clients? */
void note_service(sim *s) {
    for (uint32_t r = 0; r < s->plan->world.routers; r++) {
        bool served = false;
        for (uint32_t place = 0; place < plan_nodes(s->plan); place++) {
            uint32_t node = s->place_node[place];
            if (!s->process[node].alive || s->process[node].frozen || s->session_blocked[r][place] > s->now) continue;
            kvf_node_stats stats;
            kvf_node_get_stats(s->node[node].core, &stats);
            served |= stats.state == KVF_NODE_READY && !seems_older_here(s, r, place, &s->node[node].config.info);
        }
        if (!served) s->router[r].unserved = s->now;
    }
}
