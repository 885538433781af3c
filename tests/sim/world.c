/* The world of one seed: who is there, what they say to each other, what goes wrong. */
#include "sim.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static char failure[1024];
static jmp_buf failed;

const char *sim_failure(void) { return failure; }

void sim_fail(sim *s, const char *fmt, ...) {
    va_list ap;
    int n = snprintf(failure, sizeof failure, "seed %llu at %.6f ms, event %llu: ", (unsigned long long)s->seed,
        (double)s->now / 1e6, (unsigned long long)s->events);
    va_start(ap, fmt);
    vsnprintf(failure + n, sizeof failure - (size_t)n, fmt, ap);
    va_end(ap);
    longjmp(failed, 1);
}

#define TRACE(s, ...)                                                                                                  \
    do {                                                                                                               \
        if ((s)->verbose) {                                                                                            \
            printf("%10.3f ms  ", (double)(s)->now / 1e6);                                                             \
            printf(__VA_ARGS__);                                                                                       \
            putchar('\n');                                                                                             \
        }                                                                                                              \
    } while (0)

static uint64_t below(sim *s, uint64_t n) { return kvf_rng_below(&s->rng, n); }
static bool chance(sim *s, uint32_t percent) { return below(s, 100) < percent; }
static kvf_time_ns us(uint64_t n) { return n * KVF_NS_PER_US; }

static void note(sim *s, uint64_t what) { s->trace_hash = kvf_rng_mix(s->trace_hash ^ what ^ s->now); }

/* ------------------------------------------------------------------ nodes */

static void node_config(sim *s, uint32_t i, kvf_node_config *c) {
    *c = (kvf_node_config){.blocks = 24 + (uint32_t)below(s, 60),
        .layers = SIM_LAYERS,
        .page_bytes = SIM_PAGE_BYTES,
        .context_max = SIM_CONTEXT,
        .requests_max = 32,
        .sequences_max = 24,
        .step_sequences_max = 2 + (uint32_t)below(s, 10),
        .step_tokens_max = 96,
        .chunk_tokens = 64,
        .chunk_tokens_mixed = 16 + 16 * (uint32_t)below(s, 3),
        .queue_max = 2 + (uint32_t)below(s, 12),
        .sessions_max = 4,
        .outbox_max = 256,
        .links_max = 64,
        .sampling_bytes_max = 64,
        .expected_output = 4 + (uint32_t)below(s, 30),
        .events_max = 256,
        .grant_ttl_ns = 300 * KVF_NS_PER_MS,
        .hold_ttl_ns = 300 * KVF_NS_PER_MS,
        .router_grace_ns = 500 * KVF_NS_PER_MS,
        .queue_ttl_ns = 2 * KVF_NS_PER_S,
        .cancel_memory_ns = KVF_NS_PER_S,
        .status_interval_ns = 20 * KVF_NS_PER_MS};
    bool prefill = i < s->prefill_nodes;
    snprintf(c->info.node, sizeof c->info.node, "%c%u", prefill ? 'p' : 'd', prefill ? i : i - s->prefill_nodes);
    c->info.role = prefill ? KVF_ROLE_PREFILL : KVF_ROLE_DECODE;
    c->info.wire_version = KVF_WIRE_VERSION;
    c->info.identity.wire_version = KVF_WIRE_VERSION;
    c->info.identity.vocab = SIM_VOCAB;
    c->info.identity.block_tokens = KVF_KV_BLOCK_TOKENS;
    c->info.identity.layers = SIM_LAYERS;
    c->info.identity.context_max = SIM_CONTEXT;
    c->info.identity.page_bytes = SIM_PAGE_BYTES;
    snprintf(c->info.identity.numerics, sizeof c->info.identity.numerics, "sim");
    memcpy(c->info.address, "tcp:", 4); /* nobody looks at it here */
}

static void node_start(sim *s, uint32_t i) {
    sim_node *n = &s->node[i];
    n->alive = true;
    n->incarnation++;
    n->step_running = false;
    n->timer_at = KVF_TIME_NEVER;
    n->config.info.epoch = kvf_rng_next(&s->rng) | 1;
    for (uint32_t k = 0; k < 32; k++) n->config.secret_seed[k] = (uint8_t)kvf_rng_next(&s->rng);
    memset(n->memory, 0, n->memory_bytes);
    memset(n->pages, 0, sizeof *n->pages * n->config.blocks);
    n->core = kvf_node_init(n->memory, &n->config, s->now);
    sim_push(s, s->now + us(200 + below(s, 3000)), EV_SESSION_UP, i, 0);
}

static void node_make(sim *s, uint32_t i) {
    sim_node *n = &s->node[i];
    memset(n, 0, sizeof *n);
    node_config(s, i, &n->config);
    n->memory_bytes = (size_t)kvf_align_up(kvf_node_size(&n->config), 64);
    n->memory = aligned_alloc(64, n->memory_bytes);
    n->pages = calloc(n->config.blocks, sizeof *n->pages);
    KVF_ASSERT(n->memory && n->pages);
    n->slowness = chance(s, 20) ? 8 : 1;
}

/* ------------------------------------------------------------------ sending */

static kvf_time_ns in_order(sim *s, kvf_time_ns *last, uint64_t latency_us) {
    kvf_time_ns at = s->now + us(1 + below(s, latency_us));
    if (at <= *last) at = *last + 1;
    *last = at;
    return at;
}

static kvf_request_id id_of_rmsg(const kvf_rmsg *m) {
    switch (m->kind) {
    case KVF_R_RESERVE: return m->reserve.request;
    case KVF_R_PREFILL: return m->prefill.work.request;
    case KVF_R_CANCEL: return m->cancel.request;
    default: return (kvf_request_id){0, 0};
    }
}

static void to_node(sim *s, uint32_t i, const kvf_rmsg *m) {
    static const char *const names[] = {"?", "Hello", "Reserve", "Prefill", "Cancel", "Ack", "Drain", "Undrain",
        "SetRole", "Flush", "Audit", "Blocks", "Snapshot", "Superseded"};
    sim_node *n = &s->node[i];
    if (!n->session_up) return;
    if (m->kind != KVF_R_ACK)
        TRACE(s, "r0 -> %s %s req %" PRIu64, n->config.info.node, names[m->kind], id_of_rmsg(m).counter);
    event *e = sim_push(s, in_order(s, &n->to_node_last, 300), EV_TO_NODE, i, 0);
    e->incarnation = n->session;
    e->payload = sim_clone_rmsg(m);
}

static void to_router(sim *s, uint32_t i, const kvf_nmsg *m) {
    static const char *const names[] = {"?", "Welcome", "Granted", "Local", "Queued", "Refused", "Stale",
        "AlreadyStarted", "Tokens", "Started", "Shipped", "Failed", "Preempted", "PromptLogprobs", "Status", "Events",
        "Snapshot", "Audit", "Blocks", "Flushed"};
    sim_node *n = &s->node[i];
    if (!n->session_up) return;
    if (m->kind == KVF_N_TOKENS)
        for (uint32_t k = 0; k < m->tokens.count; k++)
            TRACE(s, "%s -> r0 token req %" PRIu64 ".%u choice %u position %u end %d", n->config.info.node,
                m->tokens.items[k].request.counter, m->tokens.items[k].attempt, m->tokens.items[k].index,
                m->tokens.items[k].position, (int)m->tokens.items[k].end);
    else if (m->kind != KVF_N_STATUS && m->kind != KVF_N_EVENTS)
        TRACE(s, "%s -> r0 %s req %" PRIu64 ".%u %s", n->config.info.node, names[m->kind], m->request.counter,
            m->attempt,
            m->kind == KVF_N_FAILED    ? m->failed.text
            : m->kind == KVF_N_REFUSED ? m->refused.text
                                       : "");
    event *e = sim_push(s, in_order(s, &n->to_router_last, 300), EV_TO_ROUTER, i, 0);
    e->incarnation = n->session;
    e->payload = sim_clone_nmsg(m);
}

static bool link_alive(const sim *s, const sim_link *l) {
    return l->up && s->node[l->from].alive && s->node[l->to].alive &&
           s->node[l->from].incarnation == l->from_incarnation && s->node[l->to].incarnation == l->to_incarnation;
}

static void link_cut(sim *s, uint32_t index) {
    sim_link *l = &s->link[index];
    if (!l->up) return;
    l->up = false;
    s->cuts++;
    for (uint32_t side = 0; side < 2; side++) {
        uint32_t who = side ? l->to : l->from;
        event *e = sim_push(s, s->now + us(1 + below(s, 2000)), EV_LINK_DOWN, who, index);
        e->incarnation = side ? l->to_incarnation : l->from_incarnation;
    }
}

static void node_connects(sim *s, uint32_t from, const kvf_node_act *a) {
    uint32_t to = SIM_NODES_MAX;
    for (uint32_t i = 0; i < s->nodes; i++)
        if (strcmp(s->node[i].config.info.node, a->connect.peer) == 0) to = i;
    KVF_ASSERT(to < s->nodes && s->links < SIM_LINKS_MAX);
    uint32_t index = s->links++;
    kvf_node_on_calling(s->node[from].core, a->connect.peer, a->connect.peer_epoch, index);
    sim_node *t = &s->node[to];
    bool reached = t->alive && t->config.info.epoch == a->connect.peer_epoch;
    s->link[index] = (sim_link){.from = from,
        .to = to,
        .from_incarnation = s->node[from].incarnation,
        .to_incarnation = t->incarnation,
        .up = reached};
    kvf_time_ns at = s->now + us(50 + below(s, 2000));
    event *e = sim_push(s, at, reached ? EV_LINK_UP : EV_LINK_DOWN, from, index);
    e->incarnation = s->node[from].incarnation;
    if (!reached) return;
    e = sim_push(s, at - 1, EV_LINK_UP, to, index);
    e->incarnation = t->incarnation;
    s->link[index].forward_last = s->link[index].back_last = at;
}

static void send_frame(sim *s, uint32_t from, kvf_link_id link, const kvf_frame *f) {
    KVF_ASSERT(link < s->links);
    sim_link *l = &s->link[link];
    if (!link_alive(s, l)) return;
    bool forward = l->from == from;
    uint32_t to = forward ? l->to : l->from;
    event *e = sim_push(s, in_order(s, forward ? &l->forward_last : &l->back_last, 200), EV_FRAME, to, link);
    e->incarnation = s->node[to].incarnation;
    e->payload = sim_clone_frame(f);
}

static void send_page(sim *s, uint32_t from, const kvf_node_act *a) {
    sim_link *l = &s->link[a->link];
    sim_node *n = &s->node[from];
    sim_page page = {.header = a->page.header};
    memcpy(page.slot, n->pages[a->page.block.index].slot[page.header.layer], sizeof page.slot);
    page.header.crc = kvf_page_crc(&page.header, s->node[l->to].config.info.epoch, page.slot);
    bool sent = link_alive(s, l);
    if (sent) {
        sim_page *copy = malloc(sizeof *copy);
        KVF_ASSERT(copy);
        *copy = page;
        event *e = sim_push(s, in_order(s, &l->forward_last, 60), EV_PAGE, l->to, a->link);
        e->incarnation = s->node[l->to].incarnation;
        e->payload = copy;
        s->pages_moved++;
        if (s->faults && !s->healed && chance(s, 1)) link_cut(s, a->link);
    }
    kvf_node_on_page_sent(n->core, s->now, a->page.token, sent, page.header.crc);
}

static void start_step(sim *s, uint32_t i, const kvf_step *step) {
    sim_node *n = &s->node[i];
    KVF_ASSERT(!n->step_running);
    n->step_running = true;
    n->step = *step;
    sim_engine_begin(n);
    uint64_t cost_us = (100 + 15 * step->prefill_tokens + 10 * step->decode_tokens) * n->slowness;
    for (uint32_t l = 0; l < SIM_LAYERS; l++) {
        event *e = sim_push(s, s->now + us(cost_us * (l + 1) / (SIM_LAYERS + 1)), EV_LAYER, i, l);
        e->incarnation = n->incarnation;
        e->number = step->id;
    }
    event *e = sim_push(s, s->now + us(cost_us), EV_STEP_DONE, i, 0);
    e->incarnation = n->incarnation;
    e->number = step->id;
}

static bool has_room(void *self, kvf_link_id link) {
    const sim *s = self;
    return link_alive(s, &s->link[link]); /* a link that is going down takes nothing until its end has been told */
}

static void drain_node(sim *s, uint32_t i) {
    sim_node *n = &s->node[i];
    kvf_node_act a;
    kvf_error err;
    while (n->alive && kvf_node_next(n->core, has_room, s, &a)) {
        switch (a.kind) {
        case KVF_NODE_STEP: start_step(s, i, &a.step); break;
        case KVF_NODE_MSG: to_router(s, i, &a.msg); break;
        case KVF_NODE_FRAME: send_frame(s, i, a.link, &a.frame); break;
        case KVF_NODE_PAGE: send_page(s, i, &a); break;
        case KVF_NODE_CONNECT: node_connects(s, i, &a); break;
        case KVF_NODE_EXIT: break;
        }
    }
    if (kvf_node_audit(n->core, &err) != KVF_OK) sim_fail(s, "node %s: %s", n->config.info.node, err.message);
    kvf_time_ns at = kvf_node_deadline(n->core);
    if (at < n->timer_at || n->timer_at <= s->now) {
        n->timer_at = KVF_MAX(at, s->now + 1000);
        if (at != KVF_TIME_NEVER) sim_push(s, n->timer_at, EV_TIMER_NODE, i, 0)->incarnation = n->incarnation;
    }
}

/* ------------------------------------------------------------------ clients */

static sim_request *client_of(sim *s, uint64_t client) {
    KVF_ASSERT(client < s->requests);
    return &s->request[client];
}

static void client_token(sim *s, sim_request *q, const kvf_router_action *a) {
    uint32_t c = a->token.choice, got = q->got[c];
    if (q->over) sim_fail(s, "I5: request %td gets a token after its end", q - s->request);
    if (q->choice_over[c])
        sim_fail(s, "I5: request %td choice %u gets a token after the choice ended", q - s->request, c);
    if (a->token.position != q->prompt_count + got)
        sim_fail(s, "I5: request %td choice %u: token at %u, expected %u", q - s->request, c, a->token.position,
            q->prompt_count + got);
    uint32_t known[SIM_CONTEXT];
    memcpy(known, q->tokens, sizeof *known * q->prompt_count);
    memcpy(known + q->prompt_count, q->out[c], sizeof *known * got);
    bool eos;
    uint32_t want = sim_next_token(known, q->prompt_count + got, c, &eos);
    if (a->token.token != want)
        sim_fail(s, "request %td choice %u position %u: token %u, undisturbed %u", q - s->request, c, a->token.position,
            a->token.token, want);
    q->out[c][q->got[c]++] = want;
    s->tokens++;
    kvf_end end = eos ? KVF_END_EOS : q->got[c] == q->output_max ? KVF_END_LENGTH : KVF_END_NONE;
    if (a->token.end != end)
        sim_fail(s, "request %td choice %u: end %d at %u tokens, expected %d", q - s->request, c, a->token.end,
            q->got[c], end);
    q->choice_over[c] = end != KVF_END_NONE;
    if (!q->choice_over[c] && q->stop_at[c] == q->got[c]) {
        q->choice_over[c] = true;
        kvf_router_end_choice(s->router, s->now, q->id, c, q->prompt_count + q->got[c]);
    }
}

static void client_over(sim *s, sim_request *q) {
    if (q->over) sim_fail(s, "I5: request %td ends twice", q - s->request);
    q->over = true;
    s->over++;
}

static void client_finished(sim *s, sim_request *q) {
    client_over(s, q);
    s->finished++;
    for (uint32_t c = 0; c < q->n; c++)
        if (!q->choice_over[c]) sim_fail(s, "I5: request %td finished, choice %u has not ended", q - s->request, c);
}

static void client_failed(sim *s, sim_request *q, const kvf_refusal *why) {
    client_over(s, q);
    q->failed = true;
    q->fail_status = why->status;
    if (q->cancelled)
        s->cancelled++;
    else
        s->failed++;
    TRACE(s, "request %td failed: %s: %s", q - s->request, kvf_status_name(why->status), why->text);
    /* Faults excuse giving up, never a message that the other side calls wrong. */
    if (why->status == KVF_ERR_INVALID || why->status == KVF_ERR_FORMAT || why->status == KVF_ERR_INTERNAL ||
        why->status == KVF_ERR_CORRUPT)
        sim_fail(s, "request %td: %s: %s: %s", q - s->request, kvf_status_name(why->status), why->field, why->text);
    bool excused = q->cancelled || why->status == KVF_ERR_DEADLINE || s->faults || why->status == KVF_AGAIN;
    if (!excused)
        sim_fail(
            s, "request %td failed without a fault: %s: %s", q - s->request, kvf_status_name(why->status), why->text);
}

static void drain_router(sim *s) {
    kvf_router_action a;
    while (kvf_router_next(s->router, s->now, &a)) {
        switch (a.kind) {
        case KVF_ROUTER_SEND: to_node(s, a.node, a.send); break;
        case KVF_ROUTER_ADMITTED:
            if (client_of(s, a.client)->admitted) sim_fail(s, "request %" PRIu64 " admitted twice", a.client);
            client_of(s, a.client)->admitted = true;
            break;
        case KVF_ROUTER_TOKEN: client_token(s, client_of(s, a.client), &a); break;
        case KVF_ROUTER_PROMPT_LOGPROBS: break;
        case KVF_ROUTER_FINISHED: client_finished(s, client_of(s, a.client)); break;
        case KVF_ROUTER_FAILED: client_failed(s, client_of(s, a.client), &a.failed.why); break;
        case KVF_ROUTER_ADMIN_ANSWER:
            s->audits_answered++;
            if (!a.answer.msg->audit.clean) sim_fail(s, "audit of node %u: %s", a.node, a.answer.msg->audit.detail);
            if (!a.answer.msg->audit.at_rest) sim_fail(s, "I6: node %u is not at rest at the end", a.node);
            if (a.answer.directory_compared && (a.answer.directory_missing || a.answer.directory_extra))
                sim_fail(s, "I8: directory of node %u: %u names missing, %u extra", a.node, a.answer.directory_missing,
                    a.answer.directory_extra);
            break;
        case KVF_ROUTER_CLOSE: {
            event *e = sim_push(s, s->now + 1, EV_SESSION_DOWN, a.node, 0);
            e->incarnation = s->node[a.node].session;
            break;
        }
        }
    }
    kvf_time_ns at = kvf_router_deadline(s->router);
    if (at != KVF_TIME_NEVER && (at < s->router_timer_at || s->router_timer_at <= s->now)) {
        s->router_timer_at = KVF_MAX(at, s->now + 1000);
        sim_push(s, s->router_timer_at, EV_TIMER_ROUTER, 0, 0);
    }
}

/* ------------------------------------------------------------------ events */

static void session_down(sim *s, uint32_t i) {
    sim_node *n = &s->node[i];
    if (!n->session_up) return;
    n->session_up = false;
    n->session++;
    kvf_router_on_session_down(s->router, s->now, i);
    if (n->alive) {
        kvf_node_on_session_down(n->core, s->now, n->session % 4);
        sim_push(s, s->now + us(500 + below(s, 20000)), EV_SESSION_UP, i, 0);
    }
}

static void on_session_up(sim *s, uint32_t i) {
    sim_node *n = &s->node[i];
    if (n->session_up || !n->alive) return;
    n->session_up = true;
    n->to_node_last = n->to_router_last = s->now;
    kvf_router_on_session_up(s->router, s->now, i);
}

static void on_crash(sim *s, uint32_t i) {
    sim_node *n = &s->node[i];
    if (!n->alive) return;
    TRACE(s, "node %s dies", n->config.info.node);
    s->crashes++;
    for (uint32_t k = 0; k < s->links; k++)
        if (s->link[k].from == i || s->link[k].to == i) link_cut(s, k);
    session_down(s, i);
    n->alive = false;
    sim_push(s, s->now + us(5000 + below(s, 200000)), EV_RESTART, i, 0);
}

static void on_page(sim *s, event *e) {
    sim_node *n = &s->node[e->node];
    sim_page *p = e->payload;
    kvf_page_verdict v = kvf_node_on_page(n->core, s->now, e->index, &p->header, &p->landing);
    if (v != KVF_PAGE_ACCEPT) return;
    if (s->faults && !s->healed && below(s, 1000000) < s->corrupt_ppm) {
        p->slot[below(s, KVF_KV_BLOCK_TOKENS)] ^= 1ull << below(s, 64);
        s->pages_corrupted++;
    }
    event *landed = sim_push(s, s->now + us(1 + below(s, 30)), EV_LANDED, e->node, e->index);
    landed->incarnation = e->incarnation;
    landed->payload = p;
    e->payload = NULL;
}

static void on_landed(sim *s, event *e) {
    sim_node *n = &s->node[e->node];
    sim_page *p = e->payload;
    uint64_t *target = n->pages[p->landing.block.index].slot[p->landing.layer];
    memcpy(target, p->slot, sizeof p->slot);
    bool ok = kvf_page_crc(&p->header, n->config.info.epoch, target) == p->header.crc;
    kvf_node_on_landed(n->core, s->now, &p->landing, ok);
}

static void on_step_done(sim *s, event *e) {
    sim_node *n = &s->node[e->node];
    kvf_step_result result;
    sim_engine_finish(s, n, &result);
    n->step_running = false;
    kvf_node_on_step_done(n->core, s->now, e->number, &result);
}

static void on_link(sim *s, event *e) {
    static const uint8_t nonce_base[16] = {9, 9, 9};
    sim_node *n = &s->node[e->node];
    sim_link *l = &s->link[e->index];
    bool outgoing = l->from == e->node;
    sim_node *peer = &s->node[outgoing ? l->to : l->from];
    if (e->kind == EV_LINK_UP) {
        uint8_t nonce[16];
        memcpy(nonce, nonce_base, sizeof nonce);
        kvf_put_le32(nonce + 4, e->index);
        kvf_node_on_link_up(
            n->core, s->now, e->index, peer->config.info.node, peer->config.info.epoch, nonce, outgoing);
    } else {
        kvf_node_on_link_down(n->core, s->now, e->index, peer->config.info.node, KVF_ERR_PEER_LOST, "cut");
    }
}

static void submit(sim *s, uint32_t i) {
    sim_request *q = &s->request[i];
    kvf_refusal refusal;
    kvf_router_request r = {.tokens = q->tokens,
        .tokens_count = q->prompt_count,
        .n = q->n,
        .output_max = q->output_max,
        .output_max_given = true,
        .priority = q->priority,
        .deadline_ns = q->deadline,
        .salt = {q->salt, 0},
        .mode = q->mode,
        .client = i};
    q->submitted = true;
    if (kvf_router_submit(s->router, s->now, &r, &q->id, &refusal) != KVF_OK) client_failed(s, q, &refusal);
}

static bool of_the_past(const sim *s, const event *e) {
    const sim_node *n = &s->node[e->node];
    switch (e->kind) {
    case EV_TO_NODE: return !n->alive || !n->session_up || e->incarnation != n->session;
    case EV_TO_ROUTER: return !n->session_up || e->incarnation != n->session;
    case EV_SESSION_DOWN: return e->incarnation != n->session;
    case EV_LINK_UP:
    case EV_LINK_DOWN:
    case EV_PAGE:
    case EV_LANDED:
    case EV_FRAME:
    case EV_LAYER:
    case EV_STEP_DONE:
    case EV_TIMER_NODE: return !n->alive || e->incarnation != n->incarnation;
    default: return false;
    }
}

static void heal(sim *s) {
    s->healed = true;
    for (uint32_t i = 0; i < s->nodes; i++) {
        s->node[i].slowness = 1;
        if (!s->node[i].alive) sim_push(s, s->now, EV_RESTART, i, 0);
    }
}

static void handle(sim *s, event *e) {
    sim_node *n = &s->node[e->node];
    note(s, ((uint64_t)e->kind << 32) ^ ((uint64_t)e->node << 40) ^ e->index);
    switch (e->kind) {
    case EV_SUBMIT: submit(s, e->index); break;
    case EV_CANCEL: {
        sim_request *q = &s->request[e->index];
        if (q->over || !q->submitted) break;
        q->cancelled = true;
        kvf_router_cancel(s->router, s->now, q->id, KVF_CANCEL_CLIENT);
        break;
    }
    case EV_TO_NODE: kvf_node_on_msg(n->core, s->now, n->session % 4, e->payload); break;
    case EV_TO_ROUTER: kvf_router_on_msg(s->router, s->now, e->node, e->payload); break;
    case EV_SESSION_DOWN:
        s->blips++;
        session_down(s, e->node);
        break;
    case EV_SESSION_UP: on_session_up(s, e->node); break;
    case EV_LINK_UP:
    case EV_LINK_DOWN: on_link(s, e); break;
    case EV_FRAME:
        if (link_alive(s, &s->link[e->index])) kvf_node_on_frame(n->core, s->now, e->index, e->payload);
        break;
    case EV_PAGE:
        if (link_alive(s, &s->link[e->index])) on_page(s, e);
        break;
    case EV_LANDED: on_landed(s, e); break;
    case EV_LAYER:
        sim_engine_layer(s, n, e->index);
        kvf_node_on_layer(n->core, s->now, e->number, e->index);
        break;
    case EV_STEP_DONE: on_step_done(s, e); break;
    case EV_TIMER_NODE: kvf_node_on_time(n->core, s->now); break;
    case EV_TIMER_ROUTER: kvf_router_on_time(s->router, s->now); break;
    case EV_CRASH: on_crash(s, e->node); break;
    case EV_RESTART:
        if (!n->alive) node_start(s, e->node);
        break;
    case EV_DRAIN: kvf_node_drain(n->core, s->now, 100 * KVF_NS_PER_MS); break;
    case EV_HEAL: heal(s); break;
    }
    if (n->alive && e->node < s->nodes) drain_node(s, e->node);
    drain_router(s);
}

/* ------------------------------------------------------------------ the plan of a seed */

static void make_requests(sim *s) {
    s->requests = 4 + (uint32_t)below(s, SIM_REQUESTS_MAX - 4);
    uint32_t pace_us = 200 + (uint32_t)below(s, 6000);
    kvf_time_ns at = us(5000);
    for (uint32_t i = 0; i < s->requests; i++) {
        sim_request *q = &s->request[i];
        memset(q, 0, sizeof *q);
        q->prompt_count = 1 + (uint32_t)below(s, chance(s, 30) ? 150 : 50);
        uint32_t family = (uint32_t)below(s, 3), shared = (uint32_t)below(s, q->prompt_count + 1);
        for (uint32_t k = 0; k < q->prompt_count; k++)
            q->tokens[k] = k < shared ? (family * 100 + k * 7) % SIM_VOCAB : (uint32_t)below(s, SIM_VOCAB);
        q->n = chance(s, 15) ? 2 + (uint32_t)below(s, 3) : 1;
        q->output_max = 1 + (uint32_t)below(s, chance(s, 30) ? 80 : 20);
        q->mode = (kvf_router_mode)below(s, 3);
        q->priority = chance(s, 10) ? (int32_t)below(s, 3) - 1 : 0;
        q->salt = chance(s, 10) ? 1 + below(s, 2) : 0;
        q->deadline = KVF_TIME_NEVER;
        for (uint32_t c = 0; c < q->n; c++) q->stop_at[c] = chance(s, 20) ? 1 + (uint32_t)below(s, 12) : 0;
        at += us(below(s, 2 * pace_us));
        if (chance(s, 5)) q->deadline = at + us(2000 + below(s, 100000));
        sim_push(s, at, EV_SUBMIT, 0, i);
        if (chance(s, 20)) sim_push(s, at + us(below(s, 60000)), EV_CANCEL, 0, i);
    }
    kvf_time_ns last = at;
    if (s->faults) {
        uint32_t faults = (uint32_t)below(s, 8);
        for (uint32_t i = 0; i < faults; i++) {
            kvf_time_ns when = us(below(s, last / KVF_NS_PER_US + 100000));
            uint32_t node = (uint32_t)below(s, s->nodes);
            if (chance(s, 40))
                sim_push(s, when, EV_CRASH, node, 0);
            else
                sim_push(s, when, EV_SESSION_DOWN, node, 0)->incarnation = s->node[node].session;
        }
        s->corrupt_ppm = chance(s, 30) ? 20000 : 0;
    }
    sim_push(s, last + us(300000), EV_HEAL, 0, 0);
}

static void make_world(sim *s) {
    s->prefill_nodes = 1 + (uint32_t)below(s, 3);
    s->nodes = s->prefill_nodes + 1 + (uint32_t)below(s, 3);
    for (uint32_t i = 0; i < s->nodes; i++) node_make(s, i);
    kvf_router_config c;
    kvf_router_config_defaults(&c);
    snprintf(c.name, sizeof c.name, "r0");
    c.epoch = s->seed * 2 + 1;
    c.nodes_max = SIM_NODES_MAX;
    c.requests_max = 256;
    c.context_max = SIM_CONTEXT;
    c.queue_max_requests = 200;
    c.queue_max_tokens = 1000000;
    c.ship_min = 32;
    c.directory_entries_max = 4096;
    c.reconnect_grace_ns = 50 * KVF_NS_PER_MS;
    c.ready_grace_ns = 3 * KVF_NS_PER_S;
    c.status_timeout_ns = KVF_NS_PER_S;
    size_t bytes = (size_t)kvf_align_up(kvf_router_size(&c), 64);
    s->router_memory = aligned_alloc(64, bytes);
    KVF_ASSERT(s->router_memory);
    memset(s->router_memory, 0, bytes);
    s->router = kvf_router_init(s->router_memory, &c);
    s->router_timer_at = KVF_TIME_NEVER;
    for (uint32_t i = 0; i < s->nodes; i++) {
        KVF_ASSERT(kvf_router_add_node(
                       s->router, s->now, i, s->node[i].config.info.node, s->node[i].config.info.role) == KVF_OK);
        node_start(s, i);
    }
}

static void free_world(sim *s) {
    event e;
    while (sim_pop(s, &e)) free(e.payload);
    free(s->heap);
    for (uint32_t i = 0; i < s->nodes; i++) {
        free(s->node[i].memory);
        free(s->node[i].pages);
    }
    free(s->router_memory);
}

static void run_until(sim *s, kvf_time_ns end, bool stop_when_over) {
    event e;
    while (!(stop_when_over && s->over == s->requests) && s->heap_count > 0 && s->heap[0].at <= end) {
        sim_pop(s, &e);
        s->now = e.at;
        if (++s->events > 2000000) sim_fail(s, "more than 2,000,000 events: something never rests");
        if (!of_the_past(s, &e)) handle(s, &e);
        free(e.payload);
    }
}

/* After healing every request ends, nothing is held, the directory is true. */
static void check_end(sim *s) {
    if (s->over < s->requests)
        for (uint32_t i = 0; i < s->requests; i++)
            if (!s->request[i].over)
                sim_fail(s, "request %u of %u has not ended (admitted %d, got %u of %u tokens)", i, s->requests,
                    s->request[i].admitted, s->request[i].got[0], s->request[i].output_max);
    run_until(s, s->now + 3 * KVF_NS_PER_S, false); /* leases, statuses, late frames */
    for (uint32_t i = 0; i < s->nodes; i++) {
        kvf_kv_counts kv;
        kvf_rx_counts rx;
        kvf_node_get_counts(s->node[i].core, &kv, &rx);
        if (kv.pinned || kv.in_use || kv.booked || kv.free + kv.evictable != kv.total)
            sim_fail(s, "I6: node %s at the end: %u pinned, %u in use, %u booked, %u free + %u cached of %u",
                s->node[i].config.info.node, kv.pinned, kv.in_use, kv.booked, kv.free, kv.evictable, kv.total);
        if (kvf_router_audit(s->router, s->now, i, 1) == KVF_OK) s->audits_asked++;
    }
    drain_router(s);
    run_until(s, s->now + KVF_NS_PER_S, false);
    if (s->audits_answered != s->audits_asked || s->audits_asked != s->nodes)
        sim_fail(s, "%" PRIu64 " of %u audits answered", s->audits_answered, s->nodes);
}

bool sim_run(sim *s, uint64_t seed, bool faults, bool verbose) {
    memset(s, 0, sizeof *s);
    s->seed = seed;
    s->rng.seed = seed;
    s->faults = faults;
    s->verbose = verbose;
    s->trace_hash = seed;
    if (setjmp(failed)) {
        free_world(s);
        return false;
    }
    make_world(s);
    make_requests(s);
    run_until(s, 120 * KVF_NS_PER_S, true);
    check_end(s);
    free_world(s);
    return true;
}
