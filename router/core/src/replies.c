/* What nodes say about attempts. A message counts only when it comes from a node of the leg and names the attempt that
 * is followed (or the one before it, at the same decode node); all else is late: dropped and counted, and answered by a
 * Cancel where the node has taken something on. */
#include "router_int.h"
#include <inttypes.h>
#include <stdio.h>

static void late(kvf_router *r, uint32_t node, const kvf_nmsg *msg) {
    r->counters.late++;
    /* Where this node has the next attempt's Reserve already, that one replaces what the old one took, or is told that
     * it has started: a Cancel now could hit what is then followed. */
    const rt_seq *s = rt_seq_of(r, msg->request);
    if (s && s->l.decode == node && s->l.decode_told && msg->attempt < s->l.attempt) return;
    bool holds = msg->kind == KVF_N_GRANTED || msg->kind == KVF_N_LOCAL || msg->kind == KVF_N_QUEUED ||
                 msg->kind == KVF_N_STARTED;
    /* Should they pile up, the Hello of the next session or the lease of this one does the same. */
    if (holds && !MUTANT(18) && r->cancels_count <= r->cancels_mask / 2)
        rt_cancel_push(r, node, msg->request, msg->attempt, true);
}

static bool grant_sane(const kvf_router *r, const rt_seq *s, const kvf_nmsg *msg) {
    uint32_t count = msg->granted.missing_count;
    const rt_request *q = rt_request_at(r, s);
    uint32_t tokens = q->prompt_count + s->l.outputs_base;
    if (count > r->missing_max || msg->granted.cached_tokens > tokens) return false;
    uint32_t blocks = (uint32_t)kvf_div_up(tokens, KVF_KV_BLOCK_TOKENS);
    for (uint32_t i = 0; i < count; i++)
        if (msg->granted.missing[i] >= blocks || (i && msg->granted.missing[i] <= msg->granted.missing[i - 1]))
            return false;
    return true;
}

static void malformed(kvf_router *r, rt_seq *s, uint32_t node, const char *text) {
    r->counters.malformed++;
    rt_leg_failed(r, s,
        &(rt_failure){.what = RT_FAULT, .blame = node, .reason = KVF_ERR_FORMAT, .stage = "reserve", .text = text});
}

static void on_granted(kvf_router *r, rt_seq *s, uint32_t node, const kvf_nmsg *msg) {
    rt_leg *l = &s->l;
    if (!rt_answers_reserve(l)) { /* said twice; or a Reserve came twice, the second after its work was done */
        if (msg->granted.grant != l->grant && !MUTANT(19)) rt_cancel_push(r, node, msg->request, msg->attempt, true);
        return;
    }
    if (!grant_sane(r, s, msg)) {
        malformed(r, s, node, "a grant that does not fit the request");
        return;
    }
    r->nodes[node].full = false;
    l->old_attempt = 0;
    l->grant = msg->granted.grant;
    memcpy(l->secret, msg->granted.secret, sizeof l->secret);
    l->cached_tokens = msg->granted.cached_tokens;
    l->missing_count = msg->granted.missing_count;
    if (l->missing_count)
        memcpy(r->missing + (size_t)rt_seq_index(r, s) * r->missing_max, msg->granted.missing,
            l->missing_count * sizeof(uint32_t));
    kvf_time_ns look = msg->granted.ttl_ns ? msg->granted.ttl_ns / 2 : r->config.ready_grace_ns;
    l->grant_until = rt_after(r->now, KVF_MIN(look, r->config.ready_grace_ns));
    rt_leg_set_state(r, s, RT_LEG_GRANTED);
    rt_leg_admitted(r, s);
    rt_assign_prefill(r, s);
    r->pump_due = true;
}

void rt_leg_local(kvf_router *r, rt_seq *s, uint32_t cached_tokens) {
    rt_leg *l = &s->l;
    rt_request *q = rt_request_at(r, s);
    if (!rt_answers_reserve(l)) return;
    r->nodes[l->decode].full = false;
    l->old_attempt = 0;
    l->cached_tokens = KVF_MIN(cached_tokens, q->prompt_count);
    rt_leg_set_state(r, s, RT_LEG_DECODING);
    rt_leg_admitted(r, s);
    r->counters.local++;
    r->pump_due = true;
    rt_request_admitted(r, q);
}

static void on_queued(kvf_router *r, rt_seq *s, uint32_t node) {
    rt_leg *l = &s->l;
    if (l->state != RT_LEG_RESERVING) return; /* its place in the queue has changed */
    r->nodes[node].full = true;
    l->tried |= 1ull << node;
    rt_leg_set_state(r, s, RT_LEG_QUEUED);
    uint32_t idle = l->old_attempt ? RT_NONE : rt_idle_decode(r, s);
    if (idle != RT_NONE) {
        uint32_t ship_min = l->ship_min;
        rt_leg_leave(r, s, false);
        r->nodes[node].full = true;
        rt_leg_reserve(r, s, idle, ship_min);
    }
    r->pump_due = true;
}

static void close_node(kvf_router *r, uint32_t node, kvf_time_ns retry_after_ns) {
    rt_node *n = &r->nodes[node];
    n->full = true;
    n->closed_until_ns = rt_after(r->now, retry_after_ns ? retry_after_ns : r->config.backoff_ns);
    rt_node_arm(r, node);
}

/* Nodes name fields of kvf_work; clients know those of GenerateRequest. */
static const char *client_field(const char *field) {
    static const struct {
        const char *work, *client;
    } names[] = {{"tokens", "input"}, {"prompt_count", "input"}, {"output_max", "stop.max_tokens"},
        {"prompt_logprobs", "output.prompt_logprobs"}};
    for (size_t i = 0; i < KVF_COUNT_OF(names); i++)
        if (strcmp(names[i].work, field) == 0) return names[i].client;
    return field;
}

static void keep_reason(rt_request *q, const kvf_nmsg *msg) {
    q->why = (kvf_refusal){.status = msg->refused.reason};
    snprintf(q->why.field, sizeof q->why.field, "%s", client_field(msg->refused.field));
    snprintf(q->why.text, sizeof q->why.text, "%s", msg->refused.text);
}

static void on_refused_decode(kvf_router *r, rt_seq *s, uint32_t node, const kvf_nmsg *msg) {
    rt_leg *l = &s->l;
    rt_request *q = rt_request_at(r, s);
    if (!rt_answers_reserve(l)) return;
    kvf_status reason = msg->refused.reason;
    l->decode_told = false; /* it has taken nothing */
    switch (reason) {
    case KVF_AGAIN:
    case KVF_ERR_BUSY:
    case KVF_ERR_LIMIT:
    case KVF_ERR_NO_ROOM:
        rt_leg_leave(r, s, false);
        if (reason == KVF_ERR_NO_ROOM) {
            l->impossible |= 1ull << node;
            keep_reason(q, msg);
        } else {
            l->tried |= 1ull << node;
            close_node(r, node, msg->refused.retry_after_ns);
        }
        rt_leg_wait(r, s);
        return;
    case KVF_ERR_INVALID:
    case KVF_ERR_UNSUPPORTED:
    case KVF_ERR_FORMAT:
    case KVF_ERR_DEADLINE:
        rt_request_fail(r, q, reason, client_field(msg->refused.field), msg->refused.text, 0);
        return;
    default:
        rt_leg_failed(r, s,
            &(rt_failure){
                .what = RT_FAULT, .blame = node, .reason = reason, .stage = "reserve", .text = msg->refused.text});
    }
}

static void on_refused_prefill(kvf_router *r, rt_seq *s, uint32_t node, const kvf_nmsg *msg) {
    rt_leg *l = &s->l;
    if (l->state != RT_LEG_PREFILLING) return;
    kvf_status reason = msg->refused.reason;
    bool pair = false;
    l->prefill_told = false; /* it has taken nothing, so that the grant is still unopened */
    switch (reason) {
    case KVF_AGAIN:
    case KVF_ERR_BUSY:
    case KVF_ERR_LIMIT: close_node(r, node, msg->refused.retry_after_ns); break;
    case KVF_ERR_NO_ROOM:
    case KVF_ERR_UNSUPPORTED: l->impossible |= 1ull << node; break;
    case KVF_ERR_INVALID:
    case KVF_ERR_FORMAT:
    case KVF_ERR_DEADLINE:
        rt_request_fail(r, rt_request_at(r, s), reason, client_field(msg->refused.field), msg->refused.text, 0);
        return;
    default:
        pair = reason == KVF_ERR_MISMATCH || reason == KVF_ERR_AUTH;
        if (pair) rt_pair_failed(r, node, l->decode, "they do not pair");
        rt_leg_failed(r, s,
            &(rt_failure){.what = pair ? RT_STRAY : RT_FAULT,
                .link = pair,
                .same_decode = true,
                .blame = node,
                .reason = reason,
                .stage = "prefill",
                .text = msg->refused.text});
        return;
    }
    keep_reason(rt_request_at(r, s), msg);
    rt_leg_leave_prefill(r, s, false);
    rt_leg_set_state(r, s, RT_LEG_GRANTED);
    rt_assign_prefill(r, s);
}

static void on_started(kvf_router *r, rt_seq *s) {
    rt_leg *l = &s->l;
    /* What a node answers to a Reserve that it has been at for a while: the Local before was lost with an old session.
     */
    if (rt_answers_reserve(l) && !l->old_attempt) rt_leg_local(r, s, 0);
    if (l->state == RT_LEG_PREFILLING || l->old_attempt) rt_leg_decoding(r, s);
    l->running = l->state == RT_LEG_DECODING;
    if (l->prefill != RT_NONE) rt_pair_of(r, l->prefill, l->decode)->probing = false; /* how well, Shipped says */
}

static void on_already_started(kvf_router *r, rt_seq *s, const kvf_nmsg *msg) {
    rt_leg *l = &s->l;
    if (!rt_answers_reserve(l) || msg->already_started.attempt >= l->attempt) return;
    const rt_request *q = rt_request_at(r, s);
    bool scores_lost = l->old_attempt != msg->already_started.attempt && q->prompt_logprobs &&
                       q->prompt_logprobs_next < q->prompt_count;
    l->old_attempt = msg->already_started.attempt;
    const rt_seq *first = rt_seq_choice(r, q, l->choice_base);
    bool tokens_lost = msg->already_started.position > q->prompt_count + first->output_count;
    if (!first->ended && !MUTANT(11) && (tokens_lost || scores_lost)) {
        /* Its tokens came while it was not followed, and are gone: begin again from what we have. */
        rt_leg_failed(r, s,
            &(rt_failure){.blame = RT_NONE, .reason = KVF_ERR_STALE, .stage = "decode", .text = "tokens were lost"});
        return;
    }
    rt_leg_decoding(r, s);
}

static void on_shipped(kvf_router *r, rt_seq *s, uint32_t node, const kvf_nmsg *msg) {
    rt_leg *l = &s->l;
    rt_request *q = rt_request_at(r, s);
    if (l->shipped) return;
    l->shipped = true;
    rt_pair *p = rt_pair_of(r, node, l->decode);
    if (msg->shipped.result != KVF_OK) {
        if (l->state != RT_LEG_PREFILLING) {
            rt_request_heard(r, q);
            return;
        }
        /* Whoever ended the grant says so; and it may have been committed: a Prefill that was said again, its Shipped
         * being lost with a session, finds that D has begun. */
        if (msg->shipped.result == KVF_ERR_GONE) {
            rt_leg_verify(r, s);
            return;
        }
        rt_leg_failed(r, s,
            &(rt_failure){.what = RT_STRAY,
                .link = true,
                .same_decode = true,
                .blame = RT_NONE,
                .reason = msg->shipped.result,
                .stage = "transfer",
                .text = "the hand-off did not end well"});
        return;
    }
    p->pages += msg->shipped.pages;
    p->bytes += msg->shipped.bytes;
    q->usage.pages += msg->shipped.pages;
    q->usage.bytes += msg->shipped.bytes;
    q->usage.prefill_ns = msg->shipped.prefill_ns;
    q->usage.transfer_ns = msg->shipped.transfer_ns;
    q->usage.exposed_ns = msg->shipped.exposed_ns;
    q->usage.cached_tokens = KVF_MAX(q->usage.cached_tokens, KVF_MIN(msg->shipped.cached_tokens, q->prompt_count));
    uint64_t wanted = (uint64_t)l->missing_count * r->nodes[l->decode].info.identity.layers;
    uint64_t again = msg->shipped.pages > wanted ? msg->shipped.pages - wanted : 0;
    rt_pair_shipped(r, node, l->decode, msg->shipped.pages, again, msg->shipped.exposed_ns);
    l->stall_ns = 0;
    if (l->state == RT_LEG_PREFILLING) rt_leg_verify(r, s); /* Started is due */
    rt_request_heard(r, q);
}

/* It waited long enough in that node's queue, or the node drains: it waits here again, and nobody is to blame. */
static void not_now(kvf_router *r, rt_seq *s, uint32_t node) {
    s->l.decode_told = false;
    rt_leg_leave(r, s, false);
    s->l.tried |= 1ull << node;
    close_node(r, node, 0);
    rt_leg_wait(r, s);
}

/* What a node itself made a mess of counts; what it lost with a link or with its peer does not. */
static rt_blame what_failed(unsigned stage, kvf_status reason) {
    switch (reason) {
    case KVF_AGAIN: return RT_HANDBACK; /* it drains */
    case KVF_ERR_PEER_LOST:
    case KVF_ERR_GONE:
    case KVF_ERR_STALE:
    case KVF_ERR_CANCELLED: return RT_STRAY;
    case KVF_ERR_FORMAT:
    case KVF_ERR_INTERNAL: return RT_FAULT;
    default: return stage == KVF_STAGE_TRANSFER ? RT_STRAY : RT_FAULT;
    }
}

/* The link to blame, when a hand-off failed: the pair, not its ends. */
static void on_failed(kvf_router *r, rt_seq *s, uint32_t node, const kvf_nmsg *msg) {
    rt_leg *l = &s->l;
    rt_request *q = rt_request_at(r, s);
    static const char *const names[] = {"", "reserve", "prefill", "transfer", "decode"};
    unsigned stage = (unsigned)msg->failed.stage < KVF_COUNT_OF(names) ? (unsigned)msg->failed.stage : 0;
    bool from_decode = node == l->decode;
    /* A Prefill that was lost with the session, as the node says after Hello: Welcome has had it said again. */
    if (!from_decode && l->state == RT_LEG_PREFILLING && msg->failed.reason == KVF_ERR_GONE) return;
    if (!from_decode && l->state == RT_LEG_DECODING) { /* the hand-off is done: nothing is lost */
        l->shipped = true;
        rt_request_heard(r, q);
        return;
    }
    if (from_decode && rt_answers_reserve(l) && msg->failed.reason == KVF_AGAIN && msg->failed.retryable) {
        not_now(r, s, node);
        return;
    }
    /* A Reserve that was lost with a session: the node says so after the Welcome, at which it was said again. */
    if (from_decode && rt_answers_reserve(l) && msg->failed.reason == KVF_ERR_GONE) return;
    /* The prefill node meets the same and says so; or it has ended the hand-off because its token was the last one. */
    if (from_decode && l->state == RT_LEG_PREFILLING && msg->failed.reason == KVF_ERR_GONE) {
        rt_leg_verify(r, s);
        return;
    }
    bool link = stage == KVF_STAGE_TRANSFER && l->prefill != RT_NONE;
    if (link) rt_pair_failed(r, l->prefill, l->decode, "a hand-off failed");
    /* Said at a Hello, and come twice, it may meet what was said again since: then that needs a Cancel. */
    if (from_decode)
        l->decode_told = msg->failed.reason == KVF_ERR_GONE;
    else
        l->prefill_told = false;
    if (!msg->failed.retryable && !q->finish_waits) {
        rt_request_fail(r, q, msg->failed.reason, "", msg->failed.text, 0);
        return;
    }
    rt_leg_failed(r, s,
        &(rt_failure){.what = what_failed(stage, msg->failed.reason),
            .link = link,
            .same_decode = !from_decode,
            .blame = link ? RT_NONE : node,
            .reason = msg->failed.reason,
            .stage = names[stage],
            .text = msg->failed.text});
}

static void on_preempted(kvf_router *r, rt_seq *s, uint32_t node) {
    rt_leg *l = &s->l;
    bool from_decode = node == l->decode;
    if (!from_decode && l->state == RT_LEG_DECODING) return;
    if (from_decode)
        l->decode_told = false;
    else
        l->prefill_told = false;
    rt_leg_failed(r, s,
        &(rt_failure){.what = RT_HANDBACK,
            .same_decode = !from_decode,
            .blame = RT_NONE,
            .reason = KVF_AGAIN,
            .stage = from_decode ? "decode" : "prefill",
            .text = "handed back"});
}

/* A word about the attempt before the one that is asked for, from the decode node of both. */
static void on_old_attempt(kvf_router *r, rt_seq *s, uint32_t node, const kvf_nmsg *msg) {
    switch (msg->kind) {
    case KVF_N_STARTED: on_started(r, s); return;
    case KVF_N_FAILED:
    case KVF_N_PREEMPTED: s->l.old_attempt = 0; return;
    default: r->counters.late++;
    }
    (void)node;
}

static void dispatch(kvf_router *r, rt_seq *s, uint32_t node, const kvf_nmsg *msg) {
    rt_leg *l = &s->l;
    bool from_decode = node == l->decode;
    switch (msg->kind) {
    case KVF_N_GRANTED:
        if (from_decode) on_granted(r, s, node, msg);
        return;
    case KVF_N_LOCAL:
        if (from_decode) rt_leg_local(r, s, msg->local.cached_tokens);
        return;
    case KVF_N_QUEUED:
        if (from_decode) on_queued(r, s, node);
        return;
    case KVF_N_REFUSED:
        if (from_decode)
            on_refused_decode(r, s, node, msg);
        else
            on_refused_prefill(r, s, node, msg);
        return;
    case KVF_N_STALE: malformed(r, s, node, "the node knows a later attempt"); return;
    case KVF_N_ALREADY_STARTED:
        if (from_decode) on_already_started(r, s, msg);
        return;
    case KVF_N_STARTED:
        if (from_decode) on_started(r, s);
        return;
    case KVF_N_SHIPPED:
        if (node == l->prefill) on_shipped(r, s, node, msg);
        return;
    case KVF_N_FAILED: on_failed(r, s, node, msg); return;
    case KVF_N_PREEMPTED: on_preempted(r, s, node); return;
    default: KVF_ASSERT(!"not about an attempt");
    }
}

void rt_on_reply(kvf_router *r, uint32_t node, const kvf_nmsg *msg) {
    rt_seq *s = rt_seq_of(r, msg->request);
    if (!s || (s->l.decode != node && s->l.prefill != node)) {
        late(r, node, msg);
        return;
    }
    rt_leg *l = &s->l;
    if (l->old_attempt && msg->attempt == l->old_attempt && node == l->decode)
        on_old_attempt(r, s, node, msg);
    else if (msg->attempt == l->attempt || MUTANT(1))
        dispatch(r, s, node, msg);
    else if (msg->kind == KVF_N_ALREADY_STARTED && msg->already_started.attempt == l->attempt)
        return; /* followed already, by its tokens */
    else
        late(r, node, msg);
}
