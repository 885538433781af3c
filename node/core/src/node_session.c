/* Sessions with routers: Hello and reconnects, cancels, operators' calls, and what time does. */
#include "node_int.h"
#include <stdio.h>

/* ------------------------------------------------------------------ Hello */

static bool listed(const kvf_rmsg *m, const node_req *r) {
    for (uint32_t i = 0; i < m->hello.live_count; i++) {
        const kvf_live *l = &m->hello.live[i];
        if (kvf_request_id_equal(l->request, r->id) && l->attempt == r->attempt) return true;
    }
    return false;
}

static void drop_session(kvf_node *n, uint32_t session) {
    for (uint32_t i = 0; i < n->config.requests_max; i++) {
        node_req *r = &n->reqs[i];
        if (r->state != REQ_FREE && !r->ending && r->session == session) node_release(n, r);
    }
    node_session *s = &n->sessions[session];
    s->out_head = s->out_count = s->out_sent = s->score_runs = 0;
}

/* The same router on another connection: its requests and unacknowledged tokens move over. */
static void move_session(kvf_node *n, uint32_t from, uint32_t to) {
    out_item *a = &n->outbox[(size_t)from * n->config.outbox_max], *b = &n->outbox[(size_t)to * n->config.outbox_max];
    const node_session *s = &n->sessions[from];
    for (uint32_t i = 0; i < s->out_count; i++) {
        uint32_t at = (s->out_head + i) % n->config.outbox_max;
        b[at] = a[at];
        b[at].item.sample.data = b[at].sample;
    }
    for (uint32_t i = 0; i < n->config.requests_max; i++)
        if (n->reqs[i].state != REQ_FREE && n->reqs[i].session == from) n->reqs[i].session = to;
    n->sessions[to] = n->sessions[from];
    n->sessions[from] = (node_session){0};
}

static void adopt_router(kvf_node *n, uint32_t session, const kvf_rmsg *m) {
    for (uint32_t i = 0; i < n->config.sessions_max; i++) {
        node_session *s = &n->sessions[i];
        if (!s->used || strcmp(s->router, m->hello.router) != 0) continue;
        if (s->router_epoch != m->hello.router_epoch) {
            drop_session(n, i); /* a new epoch of a router: what the old one asked for is over */
            *s = (node_session){0};
        } else if (i != session) {
            drop_session(n, session);
            move_session(n, i, session);
        }
    }
}

static bool tokens_wait(const kvf_node *n, uint32_t session, kvf_request_id id) {
    const node_session *s = &n->sessions[session];
    for (uint32_t i = 0; i < s->out_count; i++) {
        size_t at = (size_t)session * n->config.outbox_max + (s->out_head + i) % n->config.outbox_max;
        if (kvf_request_id_equal(n->outbox[at].item.request, id)) return true;
    }
    return false;
}

/* What was said while the stream was down is lost: a request that is listed and not here is over, and the router shall
 * not wait for it. */
static void tell_missing(kvf_node *n, uint32_t session, const kvf_rmsg *m) {
    for (uint32_t i = 0; i < m->hello.live_count; i++) {
        const kvf_live *l = &m->hello.live[i];
        const node_req *reserve = node_find(n, l->request, LEG_RESERVE),
                       *prefill = node_find(n, l->request, LEG_PREFILL);
        bool here = (reserve && reserve->attempt == l->attempt) || (prefill && prefill->attempt == l->attempt);
        if (here || tokens_wait(n, session, l->request)) continue;
        kvf_nmsg *f = node_msg(n, session, KVF_N_FAILED);
        f->request = l->request;
        f->attempt = l->attempt;
        f->failed.stage = n->role == KVF_ROLE_PREFILL ? KVF_STAGE_PREFILL : KVF_STAGE_DECODE;
        f->failed.reason = KVF_ERR_GONE;
        f->failed.retryable = true;
        snprintf(f->failed.text, sizeof f->failed.text, "the node does not have this request (any more)");
    }
}

/* While tokens flow the ring of a session walks through all of its memory: it is touched when the first router takes
 * it, so that a node does not grow with what it serves. */
static void touch_outbox(kvf_node *n, uint32_t session) {
    for (; n->outboxes_touched <= session; n->outboxes_touched++)
        memset(&n->outbox[(size_t)n->outboxes_touched * n->config.outbox_max], 0,
            n->config.outbox_max * sizeof *n->outbox);
}

static void on_hello(kvf_node *n, uint32_t session, const kvf_rmsg *m) {
    touch_outbox(n, session);
    adopt_router(n, session, m);
    node_session *s = &n->sessions[session];
    bool returns = s->used && strcmp(s->router, m->hello.router) == 0;
    if (!returns) { /* after adopt_router a known name has this epoch */
        drop_session(n, session);
        *s = (node_session){.used = true, .router_epoch = m->hello.router_epoch, .batch_next = 1};
        snprintf(s->router, sizeof s->router, "%s", m->hello.router);
    }
    s->up = true;
    uint64_t events_next = kvf_kv_event_next(n->kv);
    s->events_sent = m->hello.events_seen;
    s->snapshot_due = m->hello.events_seen >= events_next;
    for (uint32_t i = 0; i < n->config.requests_max; i++) {
        node_req *r = &n->reqs[i];
        if (r->state == REQ_FREE || r->ending || r->session != session || listed(m, r) || MUTANT(1)) continue;
        node_drop_tokens(n, session, r->id, r->attempt);
        node_release(n, r);
    }
    node_resend_tokens(n, session);
    kvf_nmsg *w = node_msg(n, session, KVF_N_WELCOME);
    w->welcome.info = n->config.info;
    w->welcome.info.role = n->role;
    kvf_node_get_stats(n, &w->welcome.stats);
    tell_missing(n, session, m);
    s->prefilling_due = true;
    if (returns) s->prefilling_said = 1; /* or whatever the router still believes */
}

void kvf_node_on_session_down(kvf_node *n, kvf_time_ns now, uint32_t session) {
    n->now = now;
    node_session *s = &n->sessions[session];
    s->up = false;
    s->down_since = now;
}

bool kvf_node_session_free(const kvf_node *n, uint32_t session) { return !n->sessions[session].used; }

/* ------------------------------------------------------------------ cancel, operators */

static void on_cancel(kvf_node *n, const kvf_rmsg *m) {
    uint32_t attempt = m->cancel.attempt;
    node_note_cancel(n, m->cancel.request, attempt);
    for (uint32_t i = 0; i < n->config.requests_max; i++) {
        node_req *r = &n->reqs[i];
        if (r->state == REQ_FREE || r->ending || !kvf_request_id_equal(r->id, m->cancel.request)) continue;
        if (attempt != 0 && r->attempt > attempt && !MUTANT(16)) continue;
        if (!m->cancel.finished) n->stats.cancels++;
        node_release(n, r);
    }
}

static void on_audit(kvf_node *n, uint32_t session, uint64_t query) {
    kvf_nmsg *m = node_msg(n, session, KVF_N_AUDIT);
    if (!m) return;
    kvf_error err = {0};
    kvf_kv_counts c;
    kvf_kv_count(n->kv, &c);
    m->audit.query = query;
    m->audit.blocks_checked = c.total;
    m->audit.clean = kvf_node_audit(n, &err) == KVF_OK;
    m->audit.at_rest = c.pinned == 0 && c.in_use == 0 && c.booked == 0;
    kvf_node_get_stats(n, &m->audit.stats);
    if (m->audit.clean) return;
    snprintf(m->audit.invariant, sizeof m->audit.invariant, "%.*s",
        (int)KVF_MIN(strcspn(err.message, ":"), sizeof m->audit.invariant - 1), err.message);
    snprintf(m->audit.detail, sizeof m->audit.detail, "%.*s", (int)sizeof m->audit.detail - 1, err.message);
}

static void add_holders(const kvf_node *n, kvf_block_report *b) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n->config.sequences_max && count < KVF_COUNT_OF(b->requests); i++) {
        const node_seq *s = &n->seqs[i];
        if (s->state == SEQ_FREE) continue;
        const node_req *r = &n->reqs[s->req];
        if (count > 0 && kvf_request_id_equal(b->requests[count - 1], r->id)) continue;
        for (uint32_t k = 0; k < s->blocks_count; k++)
            if (s->physical[k] == b->block) {
                b->requests[count++] = r->id;
                break;
            }
    }
}

static bool held_by(const kvf_block_report *b, kvf_request_id id) {
    for (uint32_t i = 0; i < KVF_COUNT_OF(b->requests); i++)
        if (kvf_request_id_equal(b->requests[i], id)) return true;
    return false;
}

#define BLOCKS_REPORTED_MAX 4096

static void on_blocks(kvf_node *n, uint32_t session, const kvf_rmsg *q) {
    uint32_t limit = q->blocks.limit && q->blocks.limit < BLOCKS_REPORTED_MAX ? q->blocks.limit : BLOCKS_REPORTED_MAX;
    bool any_name = q->blocks.name.lo == 0 && q->blocks.name.hi == 0;
    kvf_block_report *out = node_scratch(n, sizeof *out * limit);
    uint32_t count = 0;
    bool truncated = false;
    kvf_block_info info;
    for (uint32_t i = 0; i < n->config.blocks; i++) {
        kvf_kv_block_at(n->kv, i, &info);
        if (info.state == KVF_BLOCK_FREE || (!any_name && !kvf_hash128_equal(info.name, q->blocks.name))) continue;
        if (count == limit) {
            truncated = true;
            break;
        }
        kvf_block_report *b = &out[count];
        *b = (kvf_block_report){.block = i,
            .generation = info.id.generation,
            .state = (uint32_t)info.state,
            .pins = info.pins,
            .uses = info.uses,
            .tokens = info.tokens,
            .indexed = info.indexed,
            .name = info.name};
        if (info.pins) add_holders(n, b);
        if (q->blocks.request.counter == 0 || held_by(b, q->blocks.request)) count++;
    }
    kvf_nmsg *m = node_msg(n, session, KVF_N_BLOCKS);
    if (!m) return;
    m->blocks.query = q->blocks.query;
    m->blocks.blocks = out;
    m->blocks.count = count;
    m->blocks.truncated = truncated;
}

void kvf_node_drain(kvf_node *n, kvf_time_ns now, kvf_time_ns deadline_ns) {
    n->now = now;
    n->state = KVF_NODE_DRAINING;
    n->drain_until = deadline_ns >= KVF_TIME_NEVER - now ? KVF_TIME_NEVER : now + deadline_ns;
    n->status_at = now;
}

static void on_flush(kvf_node *n, uint32_t session, uint64_t query) {
    uint32_t freed = kvf_kv_flush(n->kv);
    kvf_nmsg *m = node_msg(n, session, KVF_N_FLUSHED);
    if (!m) return;
    m->flushed.query = query;
    m->flushed.blocks_freed = freed;
}

void kvf_node_on_msg(kvf_node *n, kvf_time_ns now, uint32_t session, const kvf_rmsg *m) {
    n->now = now;
    KVF_ASSERT(session < n->config.sessions_max);
    if (m->kind != KVF_R_HELLO && !n->sessions[session].up) return; /* nothing before Hello */
    switch (m->kind) {
    case KVF_R_HELLO: on_hello(n, session, m); break;
    case KVF_R_RESERVE: node_on_reserve(n, session, &m->reserve); break;
    case KVF_R_PREFILL: node_on_prefill(n, session, &m->prefill.work, &m->prefill.to); break;
    case KVF_R_CANCEL: on_cancel(n, m); break;
    case KVF_R_ACK: node_ack_tokens(n, session, m->ack.number); break;
    case KVF_R_DRAIN: kvf_node_drain(n, now, m->drain.deadline_ns); break;
    case KVF_R_UNDRAIN:
        n->state = KVF_NODE_READY;
        n->drain_until = KVF_TIME_NEVER;
        n->status_at = now;
        break;
    case KVF_R_SET_ROLE:
        n->role = m->set_role.role;
        n->status_at = now;
        break;
    case KVF_R_FLUSH: on_flush(n, session, m->flush.query); break;
    case KVF_R_AUDIT: on_audit(n, session, m->audit.query); break;
    case KVF_R_BLOCKS: on_blocks(n, session, m); break;
    case KVF_R_SNAPSHOT: n->sessions[session].snapshot_due = true; break;
    case KVF_R_SUPERSEDED: n->exit_due = true; break;
    }
}

/* ------------------------------------------------------------------ time */

static void hand_over(kvf_node *n, node_req *r) {
    if (r->leg == LEG_RESERVE && r->state == REQ_DECODE) {
        kvf_nmsg *m = node_msg_req(n, r, KVF_N_PREEMPTED);
        if (m) m->preempted.next_position = node_first_seq(n, r)->count;
        node_release(n, r);
        return;
    }
    node_fail(n, r, r->leg == LEG_PREFILL ? KVF_STAGE_PREFILL : KVF_STAGE_RESERVE, KVF_AGAIN, "", true,
        "the node is draining");
}

static void sweep_request(kvf_node *n, node_req *r) {
    if (n->now >= r->deadline) {
        node_fail(n, r, r->leg == LEG_PREFILL ? KVF_STAGE_PREFILL : KVF_STAGE_DECODE, KVF_ERR_DEADLINE, "", false,
            "the client's deadline has passed");
    } else if (r->state == REQ_QUEUED && n->now >= r->queue_until) {
        node_fail(n, r, KVF_STAGE_RESERVE, KVF_AGAIN, "", true, "no room within the queueing time");
    } else if (n->now >= n->drain_until) {
        hand_over(n, r);
    }
}

/* A router whose session is up keeps its reservations alive; a grant that waits for a prefill queue must not expire
 * meanwhile. */
static void renew_grants(kvf_node *n) {
    for (uint32_t i = 0; i < n->config.requests_max; i++) {
        const node_req *r = &n->reqs[i];
        if (r->state == REQ_GRANTED && n->sessions[r->session].up && !MUTANT(12)) kvf_rx_renew(n->rx, n->now, r->grant);
    }
}

void kvf_node_on_time(kvf_node *n, kvf_time_ns now) {
    n->now = now;
    renew_grants(n);
    kvf_rx_on_time(n->rx, now);
    kvf_tx_on_time(n->tx, now);
    node_links_on_time(n);
    for (uint32_t i = 0; i < n->config.sessions_max; i++) {
        node_session *s = &n->sessions[i];
        if (!s->used || s->up || now - s->down_since < n->config.router_grace_ns || MUTANT(15)) continue;
        drop_session(n, i);
        s->used = false;
    }
    for (uint32_t i = 0; i < n->config.requests_max; i++) {
        node_req *r = &n->reqs[i];
        if (r->state != REQ_FREE && !r->ending) sweep_request(n, r);
    }
}

kvf_time_ns kvf_node_deadline(const kvf_node *n) {
    kvf_time_ns at = KVF_MIN(kvf_rx_deadline(n->rx), kvf_tx_deadline(n->tx));
    at = KVF_MIN(at, node_links_deadline(n));
    for (uint32_t i = 0; i < n->config.sessions_max; i++) {
        const node_session *s = &n->sessions[i];
        if (s->used && s->up) at = KVF_MIN(at, n->status_at);
        if (s->used && !s->up) at = KVF_MIN(at, s->down_since + n->config.router_grace_ns);
    }
    for (uint32_t i = 0; i < n->config.requests_max; i++) {
        const node_req *r = &n->reqs[i];
        if (r->state == REQ_FREE || r->ending) continue;
        at = KVF_MIN(at, KVF_MIN(r->deadline, n->drain_until));
        if (r->state == REQ_QUEUED) at = KVF_MIN(at, r->queue_until);
    }
    return at;
}

bool kvf_node_idle(const kvf_node *n) {
    for (uint32_t i = 0; i < n->config.requests_max; i++)
        if (n->reqs[i].state != REQ_FREE) return false;
    for (uint32_t i = 0; i < n->config.sessions_max; i++)
        if (n->sessions[i].up && n->sessions[i].out_count > 0) return false;
    return !n->step_running;
}

/* ------------------------------------------------------------------ audit */

/* I2, I6: every pin has a holder here, every booked unit an owner. */
static kvf_status audit_requests(const kvf_node *n, kvf_error *err) {
    uint64_t booked = 0;
    for (uint32_t i = 0; i < n->config.requests_max; i++)
        booked += n->reqs[i].state != REQ_FREE ? n->reqs[i].booked : 0;
    kvf_kv_counts c;
    kvf_kv_count(n->kv, &c);
    if (booked < c.booked)
        return kvf_fail(err, KVF_ERR_INTERNAL, "I6 booked room without owner: pool says %u, requests hold %llu",
            c.booked, (unsigned long long)booked);
    for (uint32_t i = 0; i < n->config.sequences_max; i++) {
        const node_seq *s = &n->seqs[i];
        if (s->state == SEQ_FREE) continue;
        if (n->reqs[s->req].state == REQ_FREE)
            return kvf_fail(err, KVF_ERR_INTERNAL, "I5 sequence %u: its request is gone", i);
        for (uint32_t b = 0; b < s->blocks_count; b++) {
            kvf_block_info info;
            kvf_kv_block_at(n->kv, s->physical[b], &info);
            if (!kvf_block_id_equal(info.id, s->block[b]) || info.pins == 0)
                return kvf_fail(err, KVF_ERR_INTERNAL, "I3 sequence %u block %u.%u: reused or unpinned while held", i,
                    s->block[b].index, s->block[b].generation);
        }
    }
    return KVF_OK;
}

kvf_status kvf_node_audit(const kvf_node *n, kvf_error *err) {
    kvf_status status = kvf_kv_audit(n->kv, err);
    if (status == KVF_OK) status = kvf_rx_audit(n->rx, err);
    if (status == KVF_OK) status = kvf_tx_audit(n->tx, err);
    if (status == KVF_OK) status = audit_requests(n, err);
    return status;
}
