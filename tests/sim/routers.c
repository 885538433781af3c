/* Processes of routers, and their clients: what each of them is told is compared with an undisturbed run. */
#include "sim.h"
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

static void router_config(const sim *s, uint32_t router, kvf_router_config *c) {
    kvf_router_config_defaults(c);
    snprintf(c->name, sizeof c->name, "r%u", router);
    c->nodes_max = SIM_PLACES;
    c->requests_max = 128;
    c->context_max = PLAN_CONTEXT;
    c->queue_max_requests = (uint32_t)s->plan->world.queue_max;
    c->queue_max_tokens = 1000000;
    c->ship_min = 32;
    c->directory_entries_max = 1024;
    c->reconnect_grace_ns = SIM_RECONNECT_GRACE_NS;
    c->ready_grace_ns = SIM_READY_GRACE_NS;
    c->status_timeout_ns = SIM_STATUS_TIMEOUT_NS;
    c->transfer_stall_ns = SIM_STALL_NS;
    c->backoff_ns = 10 * SIM_MS;
    c->backoff_max_ns = 200 * SIM_MS;
}

void router_make(sim *s, uint32_t router) {
    sim_router *r = &s->router[router];
    process *p = &s->process[router_process(router)];
    kvf_router_config c;
    router_config(s, router, &c);
    r->memory_bytes = (size_t)kvf_align_up(kvf_router_size(&c), 4096);
    r->memory = mmap(NULL, r->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KVF_ASSERT(r->memory != MAP_FAILED);
    bool skewed = s->plan->node[0].drift_ppm != 1000000;
    p->offset_ns = skewed ? kvf_rng_at(s->plan->world.seed, 7, router) >> 14 : 0;
    p->drift_ppm = skewed ? 998000 + kvf_rng_at(s->plan->world.seed, 8, router) % 4000 : 1000000;
}

void router_start(sim *s, uint32_t router) {
    sim_router *r = &s->router[router];
    uint32_t who = router_process(router);
    process *p = &s->process[who];
    p->alive = true;
    p->frozen = p->stale_clock = false;
    p->incarnation++;
    p->timer_at = KVF_TIME_NEVER;
    kvf_router_config c;
    router_config(s, router, &c);
    if (r->epoch) check_forgotten(s, router);
    c.epoch = r->epoch = kvf_rng_next(&s->rng) | 1;
    KVF_ASSERT(madvise(r->memory, r->memory_bytes, MADV_DONTNEED) == 0);
    r->core = kvf_router_init(r->memory, &c);
    TRACE(s, "router r%u starts, epoch %" PRIx64, router, c.epoch);
    for (uint32_t i = 0; i < plan_nodes(s->plan); i++) {
        const kvf_node_info *info = &s->node[i].config.info;
        KVF_ASSERT(kvf_router_add_node(r->core, sim_clock(s, who), i, info->node, info->role) == KVF_OK);
        r->session[i] = SIM_NONE;
        sim_push(s, s->now + us(200 + below(s, 3000)), EV_CONNECT, who, i);
    }
    touch(s, who);
}

void router_die(sim *s, uint32_t router) {
    process *p = &s->process[router_process(router)];
    if (!p->alive) return;
    TRACE(s, "router r%u dies", router);
    session_cut_of(s, router_process(router), false);
    p->alive = p->frozen = false;
    sim_list_free(&p->held);
    s->dirty &= ~(1u << router_process(router));
    for (uint32_t i = 0; i < s->requests; i++) { /* its clients hear so from their own connections */
        sim_request *q = &s->request[i];
        if (q->plan->router != router || !q->submitted || q->over) continue;
        q->over = true;
        s->over++;
        s->count.lost_with_router++;
    }
}

/* ------------------------------------------------------------------ clients */

static uint32_t number(const sim *s, const sim_request *q) { return (uint32_t)(q - s->request); }

static uint32_t stop_of(const sim_request *q, uint32_t choice) {
    return q->plan->stop ? 1 + (uint32_t)((q->plan->stop * (choice + 1)) % 13) : 0;
}

/* A router that drains gives its requests a time: whoever is served at all must come on. */
static void client_hears(sim *s, sim_request *q) {
    kvf_time_ns since = KVF_MAX(q->told_at, s->router[q->plan->router].unserved);
    if (s->now - since > SIM_SILENCE_NS)
        sim_fail(s, "request %u heard nothing for %u ms, though somebody was there to do it", number(s, q),
            (unsigned)((s->now - since) / SIM_MS));
    q->told_at = s->now;
}

static void client_over(sim *s, sim_request *q) {
    client_hears(s, q);

    if (q->over) sim_fail(s, "I5: request %u ends twice", number(s, q));
    q->over = true;
    s->over++;
}

static void client_token(sim *s, sim_request *q, const kvf_router_action *a) {
    uint32_t c = a->token.choice, i = number(s, q);
    if (q->over) sim_fail(s, "I5: request %u gets a token after its end", i);
    if (!q->admitted) sim_fail(s, "I5: request %u gets a token before it is admitted", i);
    if (c >= q->plan->n || q->choice_over[c]) sim_fail(s, "I5: request %u choice %u gets a token after its end", i, c);
    if (a->token.position != q->plan->prompt + q->got[c])
        sim_fail(s, "I5: request %u choice %u: token at %u, expected %u", i, c, a->token.position,
            (uint32_t)q->plan->prompt + q->got[c]);
    bool eos;
    uint32_t want = sim_next_token(q->chain[c], (uint32_t)q->plan->prompt, c, &eos);
    if (a->token.token != want)
        sim_fail(s, "request %u choice %u position %u: token %u, undisturbed %u", i, c, a->token.position,
            a->token.token, want);
    uint64_t logprob = sim_logprob(q->chain[c], want);
    if (a->token.sample.len_bytes != sizeof logprob || memcmp(a->token.sample.data, &logprob, sizeof logprob) != 0)
        sim_fail(s, "request %u choice %u position %u: wrong logprob", i, c, a->token.position);
    q->chain[c] = sim_chain(q->chain[c], want);
    q->got[c]++;
    q->counted++;
    q->deaths = 0;
    q->fresh = q->plan->n > 1; /* choices may be attempts of their own */
    client_hears(s, q);
    s->count.tokens++;
    kvf_end end = eos ? KVF_END_EOS : q->got[c] == q->plan->output ? KVF_END_LENGTH : KVF_END_NONE;
    if (a->token.end != end)
        sim_fail(s, "request %u choice %u: end %d at %u tokens, expected %d", i, c, a->token.end, q->got[c], end);
    q->choice_over[c] = end != KVF_END_NONE;
    if (!q->choice_over[c] && stop_of(q, c) == q->got[c]) {
        q->choice_over[c] = true;
        uint32_t who = router_process((uint32_t)q->plan->router);
        kvf_router_end_choice(
            s->router[q->plan->router].core, sim_clock(s, who), q->id, c, (uint32_t)q->plan->prompt + q->got[c]);
    }
}

static void client_logprobs(sim *s, sim_request *q, const kvf_router_action *a) {
    uint32_t first = a->prompt_logprobs.start, count = a->prompt_logprobs.count, i = number(s, q);
    if (q->over || !q->plan->logprobs) sim_fail(s, "I5: request %u gets prompt logprobs that nobody waits for", i);
    if (first != q->logprobs_next)
        sim_fail(s, "I5: request %u: logprobs from %u, expected %u", i, first, q->logprobs_next);
    if (a->prompt_logprobs.samples.len_bytes != count * sizeof(uint64_t))
        sim_fail(s, "request %u: logprobs cut off", i);
    uint64_t chain = sim_root(q->plan->salt);
    const uint8_t *data = a->prompt_logprobs.samples.data;
    for (uint32_t p = 0; p + 1 < first + count; p++) {
        chain = sim_chain(chain, plan_prompt_token(q->plan, p));
        if (p + 1 < first) continue;
        uint64_t want = sim_logprob(chain, plan_prompt_token(q->plan, p + 1));
        if (memcmp(data + (p + 1 - first) * sizeof want, &want, sizeof want) != 0)
            sim_fail(s, "request %u: wrong logprob of prompt position %u", i, p + 1);
    }
    q->logprobs_next = first + count;
}

static void client_finished(sim *s, sim_request *q, const kvf_router_usage *u) {
    uint32_t i = number(s, q);
    client_over(s, q);
    s->count.finished++;
    for (uint32_t c = 0; c < q->plan->n; c++)
        if (!q->choice_over[c]) sim_fail(s, "I5: request %u finished, choice %u has not ended", i, c);
    if (u->completion_tokens != q->counted || u->prompt_tokens != q->plan->prompt)
        sim_fail(s, "request %u: usage says %u + %u tokens, it had %u + %u", i, u->prompt_tokens, u->completion_tokens,
            (uint32_t)q->plan->prompt, q->counted);
    if (q->plan->logprobs && q->plan->prompt > 1 && q->logprobs_next != q->plan->prompt)
        sim_fail(s, "I5: request %u finished, its prompt logprobs stop at %u", i, q->logprobs_next);
}

/* Could some node never hold it whole? Then "does not fit" is an honest answer while others are away. */
static bool too_big_for_some(const sim *s, const sim_request *q) {
    uint64_t each = kvf_div_up(q->plan->prompt + q->plan->output, KVF_KV_BLOCK_TOKENS);
    uint64_t all = each + (q->plan->n - 1) * (each - q->plan->prompt / KVF_KV_BLOCK_TOKENS);
    for (uint32_t i = 0; i < plan_nodes(s->plan); i++)
        if (all > s->plan->node[i].blocks || q->plan->n > 20) return true;
    return false;
}

/* NULL: an honest failure. Else why it is none. Faults excuse giving up only where nothing was left to go on with. */
static const char *not_excused(const sim *s, const sim_request *q, const kvf_refusal *why, bool at_the_door) {
    const sim_router *r = &s->router[q->plan->router];
    bool suspect = q->deaths + q->engine_failures >= 3; /* it may be what kills them */
    if (suspect && why->status == KVF_ERR_INTERNAL && strstr(why->text, "died while computing")) return NULL;
    switch (why->status) {
    case KVF_ERR_CANCELLED: return q->cancelled && !q->plan->slow_reader ? NULL : "nobody has cancelled it";
    case KVF_ERR_LIMIT: return q->cancelled && q->plan->slow_reader ? NULL : "its reader is not slow";
    case KVF_ERR_DEADLINE: return q->plan->deadline_us ? NULL : "it has no deadline";
    case KVF_ERR_NO_ROOM: return too_big_for_some(s, q) ? NULL : "it fits everywhere";
    case KVF_ERR_INVALID:
    case KVF_ERR_FORMAT:
    case KVF_ERR_INTERNAL:
    case KVF_ERR_CORRUPT: return "one side calls the other wrong";
    default: break;
    }
    if (at_the_door && why->status == KVF_AGAIN)
        return s->plan->world.queue_max < 100 || s->plan->requests > 30 ? NULL : "no queue is full";
    if (suspect) return NULL;
    if (r->unserved != 0 && r->unserved >= q->submitted_at) return NULL; /* nobody was there for it */
    return "somebody was there to do it";
}

static void client_failed(sim *s, sim_request *q, const kvf_refusal *why, bool at_the_door) {
    client_over(s, q);
    if (q->cancelled)
        s->count.cancelled++;
    else if (at_the_door)
        s->count.refused++;
    else
        s->count.failed++;
    TRACE(s, "request %u failed: %s: %s", number(s, q), kvf_status_name(why->status), why->text);
    const char *wrong = not_excused(s, q, why, at_the_door);
    if (wrong)
        sim_fail(s, "request %u fails, but %s: %s: %s %s", number(s, q), wrong, kvf_status_name(why->status),
            why->field, why->text);
}

void on_submit(sim *s, uint32_t request) {
    sim_request *q = &s->request[request];
    const plan_request *p = q->plan;
    uint32_t who = router_process((uint32_t)p->router), tokens[PLAN_CONTEXT];
    q->submitted = true;
    q->submitted_at = q->told_at = s->now;
    q->harms_before = s->harms;
    if (!s->process[who].alive || s->process[who].frozen) { /* the client is told by its own connection */
        q->over = true;
        s->over++;
        s->count.lost_with_router++;
        return;
    }
    uint64_t chain = sim_root(p->salt);
    for (uint32_t i = 0; i < p->prompt; i++) chain = sim_chain(chain, tokens[i] = plan_prompt_token(p, i));
    for (uint32_t c = 0; c < p->n; c++) q->chain[c] = chain;
    q->logprobs_next = 1;
    kvf_time_ns now = sim_clock(s, who);
    kvf_router_request r = {.tokens = tokens,
        .tokens_count = (uint32_t)p->prompt,
        .n = (uint32_t)p->n,
        .output_max = (uint32_t)p->output,
        .output_max_given = true,
        .priority = (int32_t)p->priority - 1,
        .deadline_ns = p->deadline_us ? now + us(p->deadline_us) : KVF_TIME_NEVER,
        .salt = {p->salt, 0},
        .mode = (kvf_router_mode)p->mode,
        .prompt_logprobs = (uint32_t)p->logprobs,
        .sampling = {&p->salt, sizeof p->salt},
        .client = request};
    kvf_refusal refusal;
    touch(s, who);
    TRACE(s, "request %u of %u + %u tokens, n %u, to r%u", request, r.tokens_count, r.output_max, r.n,
        (uint32_t)p->router);
    if (kvf_router_submit(s->router[p->router].core, now, &r, &q->id, &refusal) != KVF_OK)
        client_failed(s, q, &refusal, true);
}

void on_cancel(sim *s, uint32_t request) {
    sim_request *q = &s->request[request];
    uint32_t who = router_process((uint32_t)q->plan->router);
    if (q->over || !q->submitted || s->process[who].frozen) return;
    q->cancelled = true;
    touch(s, who);
    kvf_router_cancel(s->router[q->plan->router].core, sim_clock(s, who), q->id,
        q->plan->slow_reader ? KVF_CANCEL_SLOW_READER : KVF_CANCEL_CLIENT);
}

/* ------------------------------------------------------------------ what the core wants */

static void audit_answer(sim *s, uint32_t router, const kvf_router_action *a) {
    const kvf_nmsg *m = a->answer.msg;
    if (m->kind != KVF_N_AUDIT) return;
    s->router[router].audits_answered++;
    if (!m->audit.clean) sim_fail(s, "audit of place %u: %s", a->node, m->audit.detail);
    if (!m->audit.at_rest) sim_fail(s, "I6: place %u is not at rest at the end", a->node);
    if (s->plan->world.weak_names) return; /* two blocks of one name are one to a directory */
    if (!a->answer.directory_compared || a->answer.directory_missing || a->answer.directory_extra)
        sim_fail(s, "I8: r%u's directory of place %u: %u names missing, %u extra%s", router, a->node,
            a->answer.directory_missing, a->answer.directory_extra,
            a->answer.directory_compared ? "" : ", not compared");
}

static void client_action(sim *s, uint32_t router, const kvf_router_action *a) {
    KVF_ASSERT(a->client < s->requests);
    sim_request *q = &s->request[a->client];
    sim_note(s, ((uint64_t)a->kind << 52) ^ a->client ^ (a->kind == KVF_ROUTER_TOKEN ? a->token.token : 0u));
    if (q->plan->router != router) sim_fail(s, "request %u: r%u speaks of it", number(s, q), router);
    switch (a->kind) {
    case KVF_ROUTER_ADMITTED:
        if (q->admitted || q->over) sim_fail(s, "I5: request %u is admitted twice, or after its end", number(s, q));
        q->admitted = true;
        break;
    case KVF_ROUTER_TOKEN: client_token(s, q, a); break;
    case KVF_ROUTER_PROMPT_LOGPROBS: client_logprobs(s, q, a); break;
    case KVF_ROUTER_FINISHED: client_finished(s, q, &a->finished); break;
    default: client_failed(s, q, &a->failed.why, false);
    }
}

static void close_session(sim *s, uint32_t router, uint32_t place) {
    uint32_t index = s->router[router].session[place];
    if (index == SIM_NONE) return;
    session_cut(s, index, false);
    event *e = sim_push(s, s->now + 1, EV_ROUTER_SIDE_DOWN, router_process(router), index);
    e->arrived = true; /* it knows by itself */
}

void router_drain_actions(sim *s, uint32_t router) {
    sim_router *r = &s->router[router];
    uint32_t who = router_process(router);
    process *p = &s->process[who];
    kvf_router_action a;
    while (kvf_router_next(r->core, sim_clock(s, who), &a)) {
        switch (a.kind) {
        case KVF_ROUTER_SEND: session_to_node(s, router, a.node, a.send); break;
        case KVF_ROUTER_ADMIN_ANSWER: audit_answer(s, router, &a); break;
        case KVF_ROUTER_CLOSE: close_session(s, router, a.node); break;
        default: client_action(s, router, &a);
        }
    }
    check_router(s, router);
    kvf_time_ns local = kvf_router_deadline(r->core);
    kvf_time_ns at = local == KVF_TIME_NEVER ? local : KVF_MAX(sim_when(s, who, local), s->now + 1000);
    if (at != KVF_TIME_NEVER && (at < p->timer_at || p->timer_at <= s->now)) {
        p->timer_at = at;
        sim_push(s, at, EV_TIMER, who, 0);
    }
}
