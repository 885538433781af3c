/* What must be true of a router after each of its events, and at the end. */
#include "router_int.h"
#include "sim.h"

void check_router(sim *s, uint32_t router) {
    const kvf_router *core = s->router[router].core;
    rt_check(core);
    const kvf_router_counters *c = &core->counters;
    if (c->divergent) sim_fail(s, "r%u was told two different tokens for one position", router);
    if (c->gaps) sim_fail(s, "r%u was told a token after one that it has not heard", router);
    if (c->malformed) sim_fail(s, "r%u calls a message of a node malformed", router);
}

void check_router_at_end(sim *s, uint32_t router) {
    const kvf_router_counters *c = &s->router[router].core->counters;
    if (c->live || c->waiting || c->waiting_tokens)
        sim_fail(s, "r%u at the end: %u requests live, %u choices and %llu tokens waiting", router, c->live, c->waiting,
            (unsigned long long)c->waiting_tokens);
}
