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

bool router_follows(const sim *s, uint32_t router, uint32_t place, kvf_request_id id, uint32_t attempt) {
    const rt_seq *leg = rt_seq_of(s->router[router].core, id);
    if (!leg || leg->l.decode != place) return false;
    return leg->l.old_attempt == attempt || (leg->l.attempt == attempt && leg->l.decode_told);
}

/* Of an attempt that a router has made and not given up it hears every token: what the node is at lies never before it.
 * (A Reserve that comes twice may begin one that nobody follows.) */
void check_answer(sim *s, uint32_t router, uint32_t place, const kvf_nmsg *m) {
    kvf_router *core = s->router[router].core;
    const rt_seq *leg = m->kind == KVF_N_ALREADY_STARTED && !s->count.repeated ? rt_seq_of(core, m->request) : NULL;
    if (!leg || leg->l.decode != place || leg->l.attempt != m->attempt || !rt_answers_reserve(&leg->l)) return;
    const rt_request *q = rt_request_at(core, leg);
    const rt_seq *first = rt_seq_choice(core, q, leg->l.choice_base);
    if (!first->ended && m->already_started.position > q->prompt_count + first->output_count)
        sim_fail(s, "r%u has lost tokens of request %llu.%u", router, (unsigned long long)m->request.counter,
            m->already_started.attempt);
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
    /* A session that is back in time has cost nothing, but for words of hand-backs that went with it. */
    const sim_router *k = &s->router[router];
    uint64_t unheard = k->hand_backs_said - KVF_MIN(k->hand_backs_said, k->hand_backs_heard);
    if (!s->harmed && c->nodes_lost == 0 && c->retries > c->preempted + unheard)
        sim_fail(s, "r%u: %llu attempts were lost, %llu of them handed back, though nothing harmful has happened",
            router, (unsigned long long)c->retries, (unsigned long long)(c->preempted + unheard));
    if (c->live || c->waiting || c->waiting_tokens)
        sim_fail(s, "r%u at the end: %u requests live, %u choices and %llu tokens waiting", router, c->live, c->waiting,
            (unsigned long long)c->waiting_tokens);
}
