/* Tokens and prompt logprobs, one action each, straight out of the node's message. */
#include "router_int.h"

void rt_batch_begin(kvf_router *r, uint32_t node, const kvf_nmsg *msg) {
    KVF_ASSERT(!r->batch);
    r->batch = msg;
    r->batch_node = node;
    r->batch_at = 0;
}

static void action_about(const rt_request *q, kvf_router_action_kind kind, kvf_router_action *a) {
    *a = (kvf_router_action){.kind = kind, .node = RT_NONE, .client = q->client, .request = q->id};
}

bool rt_admitted_action(rt_request *q, kvf_router_action *a) {
    if (!q->admitted_due) return false;
    q->admitted_due = false;
    action_about(q, KVF_ROUTER_ADMITTED, a);
    a->admitted.prompt_tokens = q->prompt_count;
    a->admitted.cached_tokens = q->cached_tokens;
    a->admitted.prefill_node = q->prefill_node;
    a->admitted.decode_node = q->decode_node;
    return true;
}

/* The leg whose attempt the node speaks of, or NULL when that is over. */
static rt_seq *leg_of(kvf_router *r, uint32_t node, kvf_request_id part, uint32_t attempt) {
    rt_seq *s = rt_seq_of(r, part);
    if (!s) return NULL;
    const rt_leg *l = &s->l;
    if (l->old_attempt && attempt == l->old_attempt && node == l->decode) return s;
    return attempt == l->attempt && (node == l->decode || node == l->prefill) ? s : NULL;
}

static void note_progress(kvf_router *r, rt_seq *leg, rt_request *q, uint32_t node) {
    rt_leg *l = &leg->l;
    const rt_node *n = &r->nodes[node];
    l->progress = !MUTANT(16);
    if (l->progress) rt_suspect_cleared(l);
    if (node == l->decode) l->links_lost = 0; /* the prefill node makes one whether its pages arrive or not */
    l->model = n->model;
    l->numerics = n->numerics;
    r->counters.tokens++;
    if (q->first_token_ns == KVF_TIME_NEVER) {
        q->first_token_ns = r->now;
        if (l->prefill == RT_NONE) q->usage.prefill_ns = r->now - l->admitted_ns;
    }
    q->last_token_ns = r->now;
}

static void prefill_done(kvf_router *r, rt_seq *leg) {
    rt_leg *l = &leg->l;
    if (l->prefill == RT_NONE || !l->prefill_load) return;
    r->nodes[l->prefill].prefill_load -= l->prefill_load;
    l->prefill_load = 0;
}

static void gap(kvf_router *r, rt_seq *leg, uint32_t node) {
    r->counters.gaps++;
    rt_leg_failed(r, leg,
        &(rt_failure){.what = RT_FAULT,
            .blame = node,
            .reason = KVF_ERR_FORMAT,
            .stage = "decode",
            .text = "the node left out a token or a logprob"});
}

static void accept(
    kvf_router *r, rt_seq *leg, rt_seq *s, const kvf_token_item *item, kvf_router_action *a, bool *says) {
    rt_request *q = rt_request_at(r, s);
    note_progress(r, leg, q, r->batch_node);
    if (q->prompt_only) { /* it was made only because nodes make at least one */
        *says = false;
        rt_choice_end(r, s, item->end == KVF_END_NONE);
        return;
    }
    KVF_ASSERT(item->position < r->config.context_max && s->output_count < q->output_max);
    rt_seq_tokens(r, s)[item->position] = item->token;
    s->output_count++;
    kvf_end end = item->end;
    bool here = end == KVF_END_NONE && s->output_count == q->output_max;
    if (here) end = KVF_END_LENGTH;
    action_about(q, KVF_ROUTER_TOKEN, a);
    a->token.choice = s->choice;
    a->token.position = item->position;
    a->token.token = item->token;
    a->token.end = end;
    a->token.sample = item->sample;
    *says = true;
    if (end != KVF_END_NONE) rt_choice_end(r, s, here);
}

/* Whoever computes the prompt says its logprobs before the first token, and a hand-off is committed only when they are
 * acknowledged: no token comes before them. */
static bool logprobs_left_out(const rt_request *q) {
    return q->prompt_logprobs && q->prompt_logprobs_next < q->prompt_count;
}

/* One item. true: *a is an action. *stay: the item has not been used up. */
static bool token_item(kvf_router *r, const kvf_token_item *item, kvf_router_action *a, bool *stay) {
    rt_seq *leg = leg_of(r, r->batch_node, item->request, item->attempt);
    rt_seq *s = leg ? rt_seq_choice(r, rt_request_at(r, leg), item->index) : NULL;
    if (!s || s->leg != rt_seq_index(r, leg)) {
        r->counters.late++;
        return false;
    }
    rt_request *q = rt_request_at(r, s);
    if (s->ended) {
        r->counters.late++;
        return false;
    }
    /* Its answer was lost with an old session; the tokens are answer enough. */
    if (r->batch_node == leg->l.decode && item->attempt == leg->l.attempt) rt_leg_local(r, leg, 0);
    if (r->batch_node == leg->l.decode && (leg->l.state == RT_LEG_PREFILLING || item->attempt == leg->l.old_attempt)) {
        rt_leg_decoding(r, leg);
    }
    leg->l.heard_ns = r->now;
    uint32_t next = q->prompt_count + s->output_count;
    if (item->position > next || logprobs_left_out(q)) {
        gap(r, leg, r->batch_node);
        return false;
    }
    prefill_done(r, leg);
    if (r->batch_node == leg->l.prefill) rt_leg_first_token(r, leg);
    if (item->position < next && !MUTANT(3)) {
        r->counters.repeated++;
        bool ours = item->position >= q->prompt_count;
        if (ours && rt_seq_tokens(r, s)[item->position] != item->token) r->counters.divergent++;
        return false;
    }
    if (rt_admitted_action(q, a)) {
        *stay = true;
        return true;
    }
    bool says;
    accept(r, leg, s, item, a, &says);
    return says;
}

/* Scores of a prompt are the same whoever makes them, and under which attempt: a node that has refused one may have
 * taken it on since, when the message came once more, and what it says then is said once. */
static rt_seq *scored_leg(kvf_router *r, const kvf_nmsg *m) {
    rt_seq *s = rt_seq_of(r, m->request);
    return s && m->attempt <= s->l.attempt ? s : NULL;
}

static bool prompt_logprobs(kvf_router *r, kvf_router_action *a, bool *stay) {
    const kvf_nmsg *m = r->batch;
    rt_seq *leg = scored_leg(r, m);
    rt_request *q = leg ? rt_request_at(r, leg) : NULL;
    if (!q || q->closed || !q->prompt_logprobs) {
        r->counters.late++;
        return false;
    }
    uint32_t start = m->prompt_logprobs.start, count = m->prompt_logprobs.count, next = q->prompt_logprobs_next;
    if (start > next && !leg_of(r, r->batch_node, m->request, m->attempt)) {
        r->counters.late++;
        return false;
    }
    if (count == 0 || start > next || count > q->prompt_count || start > q->prompt_count - count ||
        m->prompt_logprobs.samples.len_bytes % count != 0) {
        r->counters.malformed++;
        return false;
    }
    if (r->batch_node == leg->l.decode && m->attempt == leg->l.attempt) rt_leg_local(r, leg, 0);
    if (!q->admitted) { /* nobody follows it: on_already_started begins again */
        r->counters.late++;
        return false;
    }
    if (start + count <= next) {
        r->counters.repeated++;
        return false;
    }
    if (rt_admitted_action(q, a)) {
        *stay = true;
        return true;
    }
    size_t each = m->prompt_logprobs.samples.len_bytes / count, skip = next - start;
    action_about(q, KVF_ROUTER_PROMPT_LOGPROBS, a);
    a->prompt_logprobs.start = next;
    a->prompt_logprobs.count = start + count - next;
    a->prompt_logprobs.samples.data = (const uint8_t *)m->prompt_logprobs.samples.data + skip * each;
    a->prompt_logprobs.samples.len_bytes = (count - skip) * each;
    q->prompt_logprobs_next = start + count;
    return true;
}

bool rt_batch_next(kvf_router *r, kvf_router_action *a) {
    while (r->batch) {
        bool stay = false, says;
        if (r->batch->kind == KVF_N_PROMPT_LOGPROBS) {
            says = prompt_logprobs(r, a, &stay);
            if (!stay) r->batch = NULL;
        } else {
            if (r->batch_at >= r->batch->tokens.count) {
                r->batch = NULL;
                return false;
            }
            says = token_item(r, &r->batch->tokens.items[r->batch_at], a, &stay);
            if (!stay) r->batch_at++;
        }
        if (says) return true;
    }
    return false;
}
