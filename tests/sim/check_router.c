/* What must be true of a router after each of its events, and at the end. */
#include "router_int.h"
#include "sim.h"

static bool retired(const rt_node *n, uint64_t epoch) {
    for (uint32_t i = 0; i < KVF_MIN(n->retired_count, RT_RETIRED_MAX); i++)
        if (n->retired[i] == epoch) return true;
    return false;
}

/* A router never works with a process that it has retired, and the clocks of hosts have to differ for it to retire the
 * process that answers now in favour of the one before. */
static void check_old_processes(sim *s, uint32_t router) {
    for (uint32_t place = 0; place < plan_nodes(s->plan); place++) {
        const rt_node *n = &s->router[router].core->nodes[place];
        if (!n->welcomed) continue;
        if (retired(n, n->info.epoch))
            sim_fail(s, "r%u takes back a process of place %u that it has retired", router, place);
        const sim_node *now = &s->node[s->place_node[place]],
                       *old = &s->node[(s->place_node[place] + SIM_PLACES) % SIM_NODES];
        if (!old->core || n->info.epoch != old->config.info.epoch) continue;
        if (old->config.info.started_ns < now->config.info.started_ns && retired(n, now->config.info.epoch))
            sim_fail(s, "r%u retires the newer process of place %u", router, place);
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
