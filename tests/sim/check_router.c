/* What must be true of a router after each of its events, and at the end. */
#include "router_int.h"
#include "sim.h"

/* Epochs have no order: what a router meets first is the older one to it. */
bool router_has_met(const sim *s, uint32_t router, uint32_t place, uint64_t epoch) {
    const rt_node *n = &s->router[router].core->nodes[place];
    bool met = n->known && n->info.epoch == epoch;
    for (uint32_t i = 0; i < KVF_MIN(n->retired_count, RT_RETIRED_MAX); i++) met |= n->retired[i] == epoch;
    return met;
}

/* Once a router has met the process that answers now, it works with no older one. */
static void check_old_processes(sim *s, uint32_t router) {
    for (uint32_t place = 0; place < plan_nodes(s->plan); place++) {
        uint32_t node = s->place_node[place], old = (node + SIM_PLACES) % SIM_NODES;
        const rt_node *n = &s->router[router].core->nodes[place];
        if (!n->welcomed || !s->node[old].core || n->info.epoch != s->node[old].config.info.epoch) continue;
        if (router_has_met(s, router, place, s->node[node].config.info.epoch))
            sim_fail(s, "r%u takes back the process of place %u that has been replaced", router, place);
    }
}

void check_router(sim *s, uint32_t router) {
    const kvf_router *core = s->router[router].core;
    rt_check(core);
    const kvf_router_counters *c = &core->counters;
    check_old_processes(s, router);
    if (c->divergent) sim_fail(s, "r%u was told two different tokens for one position", router);
    if (c->gaps) sim_fail(s, "r%u was told a token after one that it has not heard", router);
    if (c->malformed) sim_fail(s, "r%u calls a message of a node malformed", router);
}

void check_router_at_end(sim *s, uint32_t router) {
    const kvf_router_counters *c = &s->router[router].core->counters;
    if (!s->harmed && c->retries > c->preempted)
        sim_fail(s, "r%u: %llu attempts were lost, %llu of them handed back, though nothing harmful has happened",
            router, (unsigned long long)c->retries, (unsigned long long)c->preempted);
    if (c->live || c->waiting || c->waiting_tokens)
        sim_fail(s, "r%u at the end: %u requests live, %u choices and %llu tokens waiting", router, c->live, c->waiting,
            (unsigned long long)c->waiting_tokens);
}
