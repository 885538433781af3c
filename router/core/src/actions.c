/* Actions coming out. Nothing is queued as a message: what is owed is remembered as state and becomes a message when
 * asked for, so that no event can overrun a buffer. Order: Hello; Cancels, since what they free may be given away next;
 * tokens; the ends of requests; new work; what can wait. */
#include "router_int.h"

static bool send(kvf_router *r, uint32_t node, kvf_router_action *a) {
    *a = (kvf_router_action){.kind = KVF_ROUTER_SEND, .node = node, .send = &r->out};
    return true;
}

static bool next_hello(kvf_router *r, kvf_router_action *a) {
    for (uint64_t due = r->nodes_due; due; due &= due - 1) {
        uint32_t i = (uint32_t)__builtin_ctzll(due);
        rt_node *n = &r->nodes[i];
        if (!n->used || !n->up || !n->hello_due) continue;
        n->hello_due = false;
        r->out = (kvf_rmsg){.kind = KVF_R_HELLO};
        memcpy(r->out.hello.router, r->config.name, KVF_NAME_MAX);
        r->out.hello.router_epoch = r->config.epoch;
        r->out.hello.wire_version = KVF_WIRE_VERSION;
        r->out.hello.live = r->live;
        r->out.hello.live_count = rt_hello_live(r, i);
        r->out.hello.events_seen = n->events_synced ? n->events_next - 1 : 0;
        return send(r, i, a);
    }
    return false;
}

static bool next_cancel(kvf_router *r, kvf_router_action *a) {
    while (r->cancels_count) {
        rt_cancel c = r->cancels[r->cancels_head & r->cancels_mask];
        r->cancels_head++;
        r->cancels_count--;
        /* Without a session the next Hello, which does not list it, is the Cancel. */
        if (!r->nodes[c.node].used || !r->nodes[c.node].up) continue;
        r->out = (kvf_rmsg){.kind = KVF_R_CANCEL};
        r->out.cancel.request = c.request;
        r->out.cancel.attempt = c.attempt;
        r->out.cancel.finished = c.finished;
        return send(r, c.node, a);
    }
    return false;
}

static bool next_answer(kvf_router *r, kvf_router_action *a) {
    const kvf_nmsg *m = r->batch;
    rt_node *n = &r->nodes[r->batch_node];
    r->batch = NULL;
    *a = (kvf_router_action){.kind = KVF_ROUTER_ADMIN_ANSWER, .node = r->batch_node};
    a->answer.msg = m;
    a->answer.query = m->kind == KVF_N_AUDIT    ? m->audit.query
                      : m->kind == KVF_N_BLOCKS ? m->blocks.query
                                                : m->flushed.query;
    if (m->kind == KVF_N_AUDIT && n->difference_valid) {
        a->answer.directory_compared = true;
        a->answer.directory_missing = n->difference.missing;
        a->answer.directory_extra = n->difference.extra;
        n->difference_valid = false;
    }
    return true;
}

static bool next_batch(kvf_router *r, kvf_router_action *a) {
    if (!r->batch) return false;
    if (r->batch->kind == KVF_N_TOKENS || r->batch->kind == KVF_N_PROMPT_LOGPROBS) return rt_batch_next(r, a);
    return next_answer(r, a);
}

static void last_action(kvf_router *r, rt_request *q, kvf_router_action *a) {
    *a = (kvf_router_action){.kind = q->failed ? KVF_ROUTER_FAILED : KVF_ROUTER_FINISHED,
        .node = RT_NONE,
        .client = q->client,
        .request = q->id};
    if (q->failed) {
        a->failed.why = q->why;
        a->failed.usage = q->usage;
    } else {
        a->finished = q->usage;
    }
    rt_request_free(r, q);
}

static bool next_request(kvf_router *r, kvf_router_action *a) {
    while (r->events_head != RT_NONE) {
        rt_request *q = &r->requests[r->events_head];
        KVF_ASSERT(q->used && q->in_events);
        if (rt_admitted_action(q, a)) return true; /* stays: its end may be due as well */
        r->events_head = q->events_next;
        if (r->events_head == RT_NONE) r->events_tail = RT_NONE;
        q->in_events = false;
        if (!q->closed) continue;
        last_action(r, q, a);
        return true;
    }
    return false;
}

/* ---- new work ---- */

static void fill_work(kvf_router *r, rt_seq *s, kvf_work *w) {
    const rt_leg *l = &s->l;
    const rt_request *q = rt_request_at(r, s);
    KVF_ASSERT(s->prompt_here);
    bool logprobs_done = q->prompt_logprobs_next >= q->prompt_count;
    *w = (kvf_work){.request = l->id,
        .attempt = l->attempt,
        .tokens = rt_seq_tokens(r, s),
        .tokens_count = q->prompt_count + l->outputs_base,
        .prompt_count = q->prompt_count + (MUTANT(6) ? l->outputs_base : 0),
        .n = l->n,
        .choice_base = l->choice_base,
        .output_max = q->prompt_only ? 1 : q->output_max,
        .output_max_given = q->output_max_given,
        .priority = q->priority,
        .time_left_ns = KVF_TIME_NEVER,
        .salt = q->salt,
        .ship_min = l->ship_min,
        /* Of the choices of one request, the first asks. */
        .prompt_logprobs = logprobs_done || l->choice_base ? 0 : q->prompt_logprobs,
        .alone = rt_suspect_alone(r, l),
        .sampling = {r->sampling + (size_t)s->request * KVF_SAMPLING_MAX, q->sampling_bytes}};
    if (q->deadline_ns != KVF_TIME_NEVER) w->time_left_ns = q->deadline_ns > r->now ? q->deadline_ns - r->now : 0;
}

static bool send_reserve(kvf_router *r, rt_seq *s, kvf_router_action *a) {
    s->l.reserve_due = false;
    s->l.decode_told = true;
    r->out = (kvf_rmsg){.kind = KVF_R_RESERVE};
    fill_work(r, s, &r->out.reserve);
    return send(r, s->l.decode, a);
}

static bool send_prefill(kvf_router *r, rt_seq *s, kvf_router_action *a) {
    rt_leg *l = &s->l;
    const kvf_node_info *d = &r->nodes[l->decode].info;
    l->prefill_due = false;
    l->prefill_told = true;
    r->out = (kvf_rmsg){.kind = KVF_R_PREFILL};
    fill_work(r, s, &r->out.prefill.work);
    kvf_ship_to *to = &r->out.prefill.to;
    memcpy(to->node, d->node, sizeof to->node);
    memcpy(to->address, d->address, sizeof to->address);
    memcpy(to->local_address, d->local_address, sizeof to->local_address);
    to->epoch = d->epoch;
    to->host_id = d->host_id;
    to->grant = l->grant;
    memcpy(to->secret, l->secret, sizeof to->secret);
    to->missing = r->missing + (size_t)rt_seq_index(r, s) * r->missing_max;
    to->missing_count = l->missing_count;
    return send(r, l->prefill, a);
}

static bool next_work(kvf_router *r, kvf_router_action *a) {
    while (r->sends_head != RT_NONE) {
        rt_seq *s = &r->seqs[r->sends_head];
        rt_leg *l = &s->l;
        KVF_ASSERT(l->in_sends);
        bool live = s->request != RT_NONE;
        bool reserve = live && l->reserve_due && (l->state == RT_LEG_RESERVING || l->state == RT_LEG_QUEUED);
        bool prefill = live && l->prefill_due && l->state == RT_LEG_PREFILLING;
        r->sends_head = l->sends_next;
        if (r->sends_head == RT_NONE) r->sends_tail = RT_NONE;
        l->in_sends = false;
        /* A node without a session gets it after its Welcome. */
        if (reserve && r->nodes[l->decode].welcomed) return send_reserve(r, s, a);
        if (prefill && r->nodes[l->prefill].welcomed) return send_prefill(r, s, a);
    }
    return false;
}

/* ---- what can wait ---- */

static bool next_admin(kvf_router *r, kvf_router_action *a) {
    while (r->admin_count) {
        const rt_admin *m = &r->admin[r->admin_head % RT_ADMIN_MAX];
        r->admin_head++;
        r->admin_count--;
        if (!r->nodes[m->node].used || !r->nodes[m->node].welcomed) continue;
        r->out = m->msg;
        return send(r, m->node, a);
    }
    return false;
}

static bool say_of_node(kvf_router *r, uint32_t i, kvf_router_action *a) {
    rt_node *n = &r->nodes[i];
    if (n->close_due) {
        n->close_due = false;
        *a = (kvf_router_action){.kind = KVF_ROUTER_CLOSE, .node = i};
        return true;
    }
    if (!n->up) return false;
    if (n->superseded_due) {
        n->superseded_due = false;
        n->close_due = true;
        r->out = (kvf_rmsg){.kind = KVF_R_SUPERSEDED};
        return send(r, i, a);
    }
    if (n->snapshot_due && n->welcomed) {
        n->snapshot_due = false;
        r->out = (kvf_rmsg){.kind = KVF_R_SNAPSHOT};
        return send(r, i, a);
    }
    if (n->ack_due) {
        n->ack_due = false;
        r->out = (kvf_rmsg){.kind = KVF_R_ACK};
        r->out.ack.number = n->ack_number;
        return send(r, i, a);
    }
    return false;
}

static bool next_of_node(kvf_router *r, kvf_router_action *a) {
    while (r->nodes_due) {
        uint32_t i = (uint32_t)__builtin_ctzll(r->nodes_due);
        if (r->nodes[i].used && say_of_node(r, i, a)) return true;
        r->nodes_due &= r->nodes_due - 1;
    }
    return false;
}

bool kvf_router_next(kvf_router *r, kvf_time_ns now, kvf_router_action *a) {
    rt_clock(r, now);
    for (;;) {
        if (next_hello(r, a) || next_cancel(r, a) || next_batch(r, a)) return true;
        if (r->cancels_count) continue; /* the batch's own */
        if (next_request(r, a) || next_work(r, a)) return true;
        if (r->pump_due) {
            r->pump_due = false;
            rt_pump(r);
            continue;
        }
        if (next_admin(r, a) || next_of_node(r, a)) return true;
        return false;
    }
}

/* ---- admin ---- */

static kvf_status admin_push(kvf_router *r, uint32_t node, kvf_rmsg msg) {
    if (node >= r->config.nodes_max || !r->nodes[node].used) return KVF_ERR_NOT_FOUND;
    if (!r->nodes[node].up || !r->nodes[node].welcomed) return KVF_ERR_PEER_LOST;
    if (r->admin_count == RT_ADMIN_MAX) return KVF_AGAIN;
    r->admin[(r->admin_head + r->admin_count++) % RT_ADMIN_MAX] = (rt_admin){.node = node, .msg = msg};
    return KVF_OK;
}

kvf_status kvf_router_drain(kvf_router *r, kvf_time_ns now, uint32_t node, kvf_time_ns deadline_ns) {
    rt_clock(r, now);
    return admin_push(r, node, (kvf_rmsg){.kind = KVF_R_DRAIN, .drain = {.deadline_ns = deadline_ns}});
}

kvf_status kvf_router_undrain(kvf_router *r, kvf_time_ns now, uint32_t node) {
    rt_clock(r, now);
    return admin_push(r, node, (kvf_rmsg){.kind = KVF_R_UNDRAIN});
}

kvf_status kvf_router_set_role(kvf_router *r, kvf_time_ns now, uint32_t node, kvf_role role) {
    rt_clock(r, now);
    if (role != KVF_ROLE_PREFILL && role != KVF_ROLE_DECODE) return KVF_ERR_INVALID;
    return admin_push(r, node, (kvf_rmsg){.kind = KVF_R_SET_ROLE, .set_role = {.role = role}});
}

kvf_status kvf_router_flush(kvf_router *r, kvf_time_ns now, uint32_t node, uint64_t query) {
    rt_clock(r, now);
    return admin_push(r, node, (kvf_rmsg){.kind = KVF_R_FLUSH, .flush = {.query = query}});
}

kvf_status kvf_router_audit(kvf_router *r, kvf_time_ns now, uint32_t node, uint64_t query) {
    rt_clock(r, now);
    if (r->admin_count + 2 > RT_ADMIN_MAX) return KVF_AGAIN;
    kvf_status status = admin_push(r, node, (kvf_rmsg){.kind = KVF_R_SNAPSHOT});
    if (status != KVF_OK) return status;
    r->nodes[node].difference_valid = false;
    return admin_push(r, node, (kvf_rmsg){.kind = KVF_R_AUDIT, .audit = {.query = query}});
}

kvf_status kvf_router_blocks(kvf_router *r, kvf_time_ns now, uint32_t node, uint64_t query, kvf_request_id request,
    kvf_hash128 name, uint32_t limit) {
    rt_clock(r, now);
    return admin_push(r, node,
        (kvf_rmsg){.kind = KVF_R_BLOCKS, .blocks = {.query = query, .request = request, .name = name, .limit = limit}});
}
