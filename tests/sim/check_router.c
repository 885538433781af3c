/* What must be true of a router after each of its events, and at the end. */
#include "router_int.h"
#include "sim.h"

void check_router(sim *s, uint32_t router) {
    const kvf_router *core = s->router[router].core;
    rt_check(core);
    const kvf_router_counters *c = &core->counters;
    if (c->divergent) sim_fail(s, "r%u was told two different tokens for one position", router);
    /* Prompt logprobs are not kept for a session that comes back: a token without them counts as a gap too. */
    bool logprobs = false;
    for (uint32_t i = 0; i < s->requests; i++) logprobs |= s->plan->request[i].logprobs != 0;
    if (c->gaps && !logprobs) sim_fail(s, "r%u was told a token after one that it has not heard", router);
    if (c->malformed && !logprobs) sim_fail(s, "r%u calls a message of a node malformed", router);
}

/* Epochs have no order: what a router meets first is the older one to it. */
bool router_has_met(const sim *s, uint32_t router, uint32_t place, uint64_t epoch) {
    const rt_node *n = &s->router[router].core->nodes[place];
    bool met = n->known && n->info.epoch == epoch;
    for (uint32_t i = 0; i < KVF_MIN(n->retired_count, RT_RETIRED_MAX); i++) met |= n->retired[i] == epoch;
    return met;
}

void check_router_at_end(sim *s, uint32_t router) {
    const kvf_router_counters *c = &s->router[router].core->counters;
    if (c->live || c->waiting || c->waiting_tokens)
        sim_fail(s, "r%u at the end: %u requests live, %u choices and %llu tokens waiting", router, c->live, c->waiting,
            (unsigned long long)c->waiting_tokens);
}
