/* What leaves the core: the action ring, the token outbox of each session, block events and status. */
#include "node_int.h"
#include <stdio.h>

/* ------------------------------------------------------------------ actions */

kvf_node_act *node_act(kvf_node *n, kvf_node_act_kind kind) {
    KVF_ASSERT(n->acts_count < n->acts_max);
    kvf_node_act *a = &n->acts[(n->acts_head + n->acts_count++) % n->acts_max];
    memset(a, 0, sizeof *a);
    a->kind = kind;
    return a;
}

void *node_scratch(kvf_node *n, size_t len_bytes) {
    size_t at = (size_t)kvf_align_up(n->scratch_used, 16);
    KVF_ASSERT(at + len_bytes <= n->scratch_bytes);
    n->scratch_used = at + len_bytes;
    return n->scratch + at;
}

kvf_nmsg *node_msg(kvf_node *n, uint32_t session, kvf_n_kind kind) {
    if (session >= n->config.sessions_max || !n->sessions[session].up) return NULL;
    kvf_node_act *a = node_act(n, KVF_NODE_MSG);
    a->session = session;
    a->msg.kind = kind;
    return &a->msg;
}

static void flush_session(kvf_node *n, uint32_t session);

/* What is said about a request comes after the tokens it has made. */
kvf_nmsg *node_msg_req(kvf_node *n, const node_req *r, kvf_n_kind kind) {
    if (!MUTANT(6)) flush_session(n, r->session);
    kvf_nmsg *m = node_msg(n, r->session, kind);
    if (m) {
        m->request = r->id;
        m->attempt = r->attempt;
    }
    return m;
}

/* The router of a failed leg retries it elsewhere; a session that is down learns from Hello that the request is not
 * here. */
void node_fail(
    kvf_node *n, node_req *r, kvf_stage stage, kvf_status reason, const char *peer, bool retryable, const char *text) {
    kvf_nmsg *m = node_msg_req(n, r, KVF_N_FAILED);
    if (m) {
        m->failed.stage = stage;
        m->failed.reason = reason;
        m->failed.retryable = retryable;
        snprintf(m->failed.peer, sizeof m->failed.peer, "%s", peer);
        snprintf(m->failed.text, sizeof m->failed.text, "%s", text);
    }
    if (r->leg == LEG_PREFILL && retryable) node_note_failed(n, r, stage, reason);
    node_release(n, r);
}

void node_refuse(kvf_node *n, uint32_t session, const kvf_work *w, kvf_status reason, const char *field,
    const char *text, kvf_time_ns retry_after) {
    kvf_nmsg *m = node_msg(n, session, KVF_N_REFUSED);
    if (!m) return;
    m->request = w->request;
    m->attempt = w->attempt;
    m->refused.reason = reason;
    m->refused.retry_after_ns = retry_after;
    snprintf(m->refused.field, sizeof m->refused.field, "%s", field);
    snprintf(m->refused.text, sizeof m->refused.text, "%s", text);
}

static bool pop_act(kvf_node *n, kvf_node_act *act) {
    if (n->acts_count == 0) {
        n->scratch_used = 0;
        return false;
    }
    *act = n->acts[n->acts_head];
    n->acts_count--;
    n->acts_head = n->acts_count ? (n->acts_head + 1) % n->acts_max : 0; /* walking on would touch all of its memory */
    return true;
}

static bool next_from_rx(kvf_node *n, kvf_node_act *act) {
    kvf_rx_act ra;
    while (kvf_rx_next(n->rx, &ra)) {
        if (ra.kind == KVF_RX_FRAME) {
            *act = (kvf_node_act){.kind = KVF_NODE_FRAME, .link = ra.link, .frame = ra.frame};
            return true;
        }
        node_on_rx(n, &ra);
    }
    return false;
}

static bool next_from_tx(kvf_node *n, bool (*room)(void *, kvf_link_id), void *self, kvf_node_act *act) {
    kvf_tx_act ta;
    while (kvf_tx_next(n->tx, room, self, &ta)) {
        switch (ta.kind) {
        case KVF_TX_FRAME:
            *act = (kvf_node_act){.kind = KVF_NODE_FRAME, .link = ta.link, .frame = ta.frame};
            return true;
        case KVF_TX_PAGE:
            *act = (kvf_node_act){.kind = KVF_NODE_PAGE, .link = ta.link};
            act->page.header = ta.header;
            act->page.block = ta.block;
            act->page.token = ta.token;
            n->stats.pages_sent++;
            n->stats.bytes_sent += ta.header.len_bytes;
            return true;
        case KVF_TX_END: node_on_tx_end(n, &ta); break;
        }
    }
    return false;
}

/* Transfers come first: what they report may free room, start sequences and make messages. Planning comes last, so that
 * a step sees everything that has happened. */
bool kvf_node_next(kvf_node *n, bool (*link_has_room)(void *self, kvf_link_id link), void *self, kvf_node_act *act) {
    if (next_from_rx(n, act) || next_from_tx(n, link_has_room, self, act)) return true;
    if (pop_act(n, act)) return true;
    node_admit_queued(n);
    node_plan(n);
    node_flush_tokens(n);
    node_publish(n);
    if (n->exit_due) {
        n->exit_due = false;
        node_act(n, KVF_NODE_EXIT);
    }
    /* Admission may have made frames and pages too; they come with the next round of this loop. */
    return next_from_rx(n, act) || next_from_tx(n, link_has_room, self, act) || pop_act(n, act);
}

/* ------------------------------------------------------------------ token outbox */

static out_item *out_at(kvf_node *n, uint32_t session, uint32_t index) {
    const node_session *s = &n->sessions[session];
    return &n->outbox[(size_t)session * n->config.outbox_max + (s->out_head + index) % n->config.outbox_max];
}

bool node_outbox_full(const kvf_node *n, uint32_t session, uint32_t items) {
    return n->sessions[session].out_count + items > n->config.outbox_max;
}

static out_item *out_new(kvf_node *n, uint32_t session, const void *sample, size_t len_bytes) {
    node_session *s = &n->sessions[session];
    KVF_ASSERT(s->out_count < n->config.outbox_max); /* planning holds back a session whose outbox could overflow */
    KVF_ASSERT(len_bytes <= KVF_SAMPLE_BYTES_MAX);
    out_item *o = out_at(n, session, s->out_count++);
    o->batch = 0;
    o->score = o->run_begins = false;
    if (len_bytes) memcpy(o->sample, sample, len_bytes);
    return o;
}

void node_emit_token(kvf_node *n, node_req *r, uint32_t choice, uint32_t position, uint32_t token, kvf_end end,
    bool repeated, kvf_span sample) {
    out_item *o = out_new(n, r->session, sample.data, sample.len_bytes);
    o->item = (kvf_token_item){.request = r->id,
        .attempt = r->attempt,
        .index = choice,
        .position = position,
        .token = token,
        .end = end,
        .repeated = repeated,
        .sample = {o->sample, sample.len_bytes}};
}

void node_emit_scores(kvf_node *n, node_req *r, uint32_t start, uint32_t count, kvf_span samples) {
    size_t each = samples.len_bytes / count;
    for (uint32_t i = 0; i < count; i++) {
        out_item *o = out_new(n, r->session, (const uint8_t *)samples.data + each * i, each);
        o->score = true;
        o->run_begins = i == 0;
        o->item = (kvf_token_item){
            .request = r->id, .attempt = r->attempt, .position = start + i, .sample = {o->sample, each}};
    }
    n->sessions[r->session].score_runs++;
}

bool node_scores_wait(const kvf_node *n, const node_req *r) {
    const node_session *s = &n->sessions[r->session];
    for (uint32_t i = 0; i < s->out_count; i++) {
        const out_item *o =
            &n->outbox[(size_t)r->session * n->config.outbox_max + (s->out_head + i) % n->config.outbox_max];
        if (o->score && o->item.attempt == r->attempt && kvf_request_id_equal(o->item.request, r->id)) return true;
    }
    return false;
}

/* One message for positions that follow each other. They go before the tokens: none of a request's is older than its
 * prompt's scores. */
static uint32_t flush_scores(kvf_node *n, uint32_t session) {
    node_session *s = &n->sessions[session];
    uint32_t said = 0;
    size_t bytes = 0;
    for (uint32_t i = s->out_sent; i < s->out_count; i++) {
        const out_item *o = out_at(n, session, i);
        if (o->score) bytes += o->item.sample.len_bytes;
    }
    if (bytes == 0) return 0;
    uint8_t *data = node_scratch(n, bytes);
    kvf_nmsg *m = NULL;
    for (uint32_t i = s->out_sent; i < s->out_count; i++) {
        out_item *o = out_at(n, session, i);
        if (!o->score) continue;
        said++;
        if (MUTANT(19) && o->batch) continue;
        const kvf_token_item *item = &o->item;
        bool follows = m && kvf_request_id_equal(m->request, item->request) && m->attempt == item->attempt &&
                       m->prompt_logprobs.start + m->prompt_logprobs.count == item->position;
        if (!follows) {
            m = node_msg(n, session, KVF_N_PROMPT_LOGPROBS);
            m->request = item->request;
            m->attempt = item->attempt;
            m->prompt_logprobs.number = s->batch_next++;
            m->prompt_logprobs.start = item->position;
            m->prompt_logprobs.samples = (kvf_span){data, 0};
        }
        o->batch = m->prompt_logprobs.number;
        memcpy(data, o->sample, item->sample.len_bytes);
        data += item->sample.len_bytes;
        m->prompt_logprobs.samples.len_bytes += item->sample.len_bytes;
        m->prompt_logprobs.count++;
    }
    return said;
}

static void flush_session(kvf_node *n, uint32_t session) {
    node_session *s = &n->sessions[session];
    if (!s->up || s->out_count == s->out_sent) return;
    uint32_t count = s->out_count - s->out_sent - flush_scores(n, session), at = 0;
    if (count) {
        kvf_token_item *items = node_scratch(n, sizeof *items * count);
        for (uint32_t i = s->out_sent; i < s->out_count; i++) {
            out_item *o = out_at(n, session, i);
            if (o->score) continue;
            o->batch = s->batch_next;
            items[at++] = o->item;
        }
        kvf_nmsg *m = node_msg(n, session, KVF_N_TOKENS);
        m->tokens.number = s->batch_next++;
        m->tokens.items = items;
        m->tokens.count = count;
    }
    s->out_sent = s->out_count;
}

void node_flush_tokens(kvf_node *n) {
    for (uint32_t i = 0; i < n->config.sessions_max; i++) flush_session(n, i);
}

void node_resend_tokens(kvf_node *n, uint32_t session) {
    if (!MUTANT(4)) n->sessions[session].out_sent = 0;
}

void node_ack_tokens(kvf_node *n, uint32_t session, uint64_t number) {
    node_session *s = &n->sessions[session];
    while (s->out_sent > 0 && out_at(n, session, 0)->batch <= number + (MUTANT(5) ? 1u : 0u)) {
        s->score_runs -= out_at(n, session, 0)->run_begins;
        s->out_count--;
        s->out_sent--;
        s->out_head = s->out_count ? (s->out_head + 1) % n->config.outbox_max : 0; /* as the ring of actions */
    }
    for (uint32_t i = 0; i < n->config.requests_max; i++) {
        node_req *r = &n->reqs[i];
        if (r->state == REQ_FREE || r->session != session || !r->held || node_scores_wait(n, r)) continue;
        r->held = false;
        kvf_tx_hold(n->tx, n->now, r->tx, false);
    }
}

/* Keeps the order of the others. Only used for attempts that a reconnecting router has not listed: it may follow the
 * one before, whose tokens stay. */
void node_drop_tokens(kvf_node *n, uint32_t session, kvf_request_id id, uint32_t attempt) {
    node_session *s = &n->sessions[session];
    uint32_t kept = 0, kept_sent = 0;
    for (uint32_t i = 0; i < s->out_count; i++) {
        out_item *from = out_at(n, session, i), *to = out_at(n, session, kept);
        if (from->item.attempt == attempt && kvf_request_id_equal(from->item.request, id)) {
            s->score_runs -= from->run_begins;
            continue;
        }
        if (i < s->out_sent) kept_sent++;
        if (to != from) {
            *to = *from;
            to->item.sample.data = to->sample;
        }
        kept++;
    }
    s->out_count = kept;
    s->out_sent = kept_sent;
}

/* ------------------------------------------------------------------ block events, status */

#define EVENTS_PER_MESSAGE 512
#define NAMES_PER_MESSAGE 4096

static void send_events(kvf_node *n, uint32_t session) {
    node_session *s = &n->sessions[session];
    uint64_t next = kvf_kv_event_next(n->kv);
    while (!s->snapshot_due && s->events_sent + 1 < next) {
        uint64_t first = s->events_sent + 1;
        uint32_t count = (uint32_t)KVF_MIN(next - first, EVENTS_PER_MESSAGE);
        kvf_block_event *events = node_scratch(n, sizeof *events * count);
        for (uint32_t i = 0; i < count; i++) {
            kvf_kv_event e;
            if (!kvf_kv_event_at(n->kv, first + i, &e)) {
                s->snapshot_due = true;
                return;
            }
            events[i] = (kvf_block_event){.stored = e.stored, .name = e.name};
        }
        kvf_nmsg *m = node_msg(n, session, KVF_N_EVENTS);
        m->events.first = first;
        m->events.events = events;
        m->events.count = count;
        s->events_sent = first + count - 1;
        if (n->scratch_used > n->scratch_bytes / 2 || n->acts_count > n->acts_max / 2) return;
    }
}

static void send_snapshot(kvf_node *n, uint32_t session) {
    node_session *s = &n->sessions[session];
    uint64_t next = kvf_kv_event_next(n->kv);
    kvf_block_info info;
    bool first = true;
    uint32_t at = 0;
    do {
        kvf_hash128 *names = node_scratch(n, sizeof *names * NAMES_PER_MESSAGE);
        uint32_t count = 0;
        for (; at < n->config.blocks && count < NAMES_PER_MESSAGE; at++)
            if (kvf_kv_block_at(n->kv, at, &info) && info.indexed) names[count++] = info.name;
        kvf_nmsg *m = node_msg(n, session, KVF_N_SNAPSHOT);
        m->snapshot.events_next = next;
        m->snapshot.names = names;
        m->snapshot.count = count;
        m->snapshot.first = first;
        m->snapshot.last = at == n->config.blocks;
        first = false;
    } while (at < n->config.blocks);
    s->events_sent = next - 1;
    s->snapshot_due = false;
}

/* Should this process die now, these were in its engine; all else that it holds only waited. */
void node_say_prefilling(kvf_node *n, uint32_t session) {
    node_session *s = &n->sessions[session];
    if (!s->up || !s->prefilling_due) return;
    s->prefilling_due = false;
    kvf_prefilling_item *items = node_scratch(n, sizeof *items * n->config.step_sequences_max);
    uint32_t count = 0;
    for (uint32_t i = 0; n->step_running && i < n->runs_count; i++) {
        const node_seq *seq = &n->seqs[n->run_seq[i]];
        const node_req *r = &n->reqs[seq->req];
        if (seq->state != SEQ_PREFILL || r->session != session) continue;
        items[count++] = (kvf_prefilling_item){
            .request = r->id, .attempt = r->attempt, .position = n->runs[i].position, .count = n->runs[i].count};
    }
    if (count == 0 && s->prefilling_said == 0) return;
    s->prefilling_said = count;
    kvf_nmsg *m = node_msg(n, session, KVF_N_PREFILLING);
    m->prefilling.items = items;
    m->prefilling.count = count;
}

void node_send_status(kvf_node *n, uint32_t session) {
    kvf_nmsg *m = node_msg(n, session, KVF_N_STATUS);
    if (m) kvf_node_get_stats(n, &m->status);
}

void node_publish(kvf_node *n) {
    bool due = n->now >= n->status_at;
    for (uint32_t i = 0; i < n->config.sessions_max; i++) {
        node_session *s = &n->sessions[i];
        if (!s->up) continue;
        node_say_prefilling(n, i);
        if (s->snapshot_due)
            send_snapshot(n, i);
        else
            send_events(n, i);
        if (due) node_send_status(n, i);
    }
    if (due) n->status_at = n->now + n->config.status_interval_ns;
}

/* ------------------------------------------------------------------ numbers */

void kvf_node_get_counts(const kvf_node *n, kvf_kv_counts *kv, kvf_rx_counts *rx) {
    kvf_kv_count(n->kv, kv);
    kvf_rx_count(n->rx, rx);
}

void kvf_node_get_stats(const kvf_node *n, kvf_node_stats *out) {
    kvf_kv_counts c;
    kvf_rx_counts rx;
    kvf_node_get_counts(n, &c, &rx);
    *out = n->stats;
    out->state = n->state;
    out->role = n->role;
    out->running = out->waiting = 0;
    out->waiting_tokens = 0;
    for (uint32_t i = 0; i < n->config.requests_max; i++) {
        const node_req *r = &n->reqs[i];
        if (r->state == REQ_FREE) continue;
        if (r->state == REQ_QUEUED) {
            out->waiting++;
            out->waiting_tokens += r->ship_min == UINT32_MAX ? r->tokens_count : 0;
            continue;
        }
        out->running++;
        if (r->state == REQ_COMPUTE) {
            const node_seq *s = &n->seqs[r->seq[0]];
            out->waiting_tokens += s->count - s->computed;
        }
    }
    out->blocks_total = c.total;
    out->blocks_free = c.free;
    out->blocks_filling = c.filling;
    out->blocks_sealed = c.sealed;
    out->blocks_pinned = c.pinned;
    out->blocks_in_use = c.in_use;
    out->blocks_booked = c.booked;
    out->blocks_evictable = c.evictable;
    uint64_t slots = (uint64_t)(c.filling + c.sealed) * KVF_KV_BLOCK_TOKENS;
    out->waste_ppm = slots ? (uint32_t)(c.slots_empty * 1000000 / slots) : 0;
    out->evictions = c.evictions;
    out->pages_received = rx.pages_landed;
    out->bytes_received = rx.bytes_landed;
    out->frames_rejected = kvf_rx_counts_dropped(&rx);
    out->events_next = kvf_kv_event_next(n->kv);
    out->rejected = n->rejected;
    out->rejected_count = n->rejected_count;
    out->links = n->links_told;
    out->links_count = n->links_told_count;
}
