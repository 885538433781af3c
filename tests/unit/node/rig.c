#include "rig.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "kvf/rng.h"

static kvf_node_config rig_config(const char *name, kvf_role role, uint32_t blocks) {
    kvf_node_config c = {.blocks = blocks,
        .layers = 2,
        .page_bytes = 64,
        .context_max = 1024,
        .requests_max = 32,
        .sequences_max = 32,
        .step_sequences_max = 16,
        .step_tokens_max = 128,
        .chunk_tokens = 64,
        .chunk_tokens_mixed = 32,
        .queue_max = 8,
        .sessions_max = 4,
        .outbox_max = 512,
        .links_max = 8,
        .sampling_bytes_max = 64,
        .expected_output = 16,
        .events_max = 1024,
        .grant_ttl_ns = KVF_NS_PER_S,
        .hold_ttl_ns = KVF_NS_PER_S,
        .router_grace_ns = KVF_NS_PER_S,
        .queue_ttl_ns = 10 * KVF_NS_PER_S,
        .cancel_memory_ns = 10 * KVF_NS_PER_S,
        .status_interval_ns = KVF_NS_PER_S};
    snprintf(c.info.node, sizeof c.info.node, "%s", name);
    c.info.epoch = role == KVF_ROLE_PREFILL ? 111 : 222;
    c.info.role = role;
    c.info.identity.vocab = RIG_VOCAB;
    return c;
}

void rig_init(rig *r, uint32_t blocks_p, uint32_t blocks_d) { rig_init_with(r, blocks_p, blocks_d, 0); }

void rig_init_with(rig *r, uint32_t blocks_p, uint32_t blocks_d, kvf_time_ns relink_ttl_ns) {
    memset(r, 0, sizeof *r);
    r->now = 1000 * KVF_NS_PER_S;
    r->auto_ack = true;
    r->config[RIG_P] = rig_config("p0", KVF_ROLE_PREFILL, blocks_p);
    r->config[RIG_D] = rig_config("d0", KVF_ROLE_DECODE, blocks_d);
    for (uint32_t i = 0; i < RIG_NODES; i++) {
        r->config[i].relink_ttl_ns = relink_ttl_ns;
        size_t bytes = (size_t)kvf_align_up(kvf_node_size(&r->config[i]), 64);
        r->memory[i] = aligned_alloc(64, bytes);
        memset(r->memory[i], 0, bytes);
        r->node[i] = kvf_node_init(r->memory[i], &r->config[i], r->now);
    }
    rig_hello(r);
}

void rig_fini(rig *r) {
    for (uint32_t i = 0; i < RIG_NODES; i++) free(r->memory[i]);
}

void rig_hello(rig *r) {
    kvf_rmsg m = {.kind = KVF_R_HELLO};
    snprintf(m.hello.router, sizeof m.hello.router, "r0");
    m.hello.router_epoch = 7;
    for (uint32_t i = 0; i < RIG_NODES; i++) rig_send(r, i, &m);
}

/* ------------------------------------------------------------------ the engine */

uint32_t rig_next_token(const uint32_t *tokens, uint32_t count, uint32_t choice) {
    uint64_t h = choice;
    for (uint32_t i = 0; i < count; i++) h = kvf_rng_mix(h ^ (tokens[i] + 1));
    return (uint32_t)(h % RIG_VOCAB);
}

/* What stands for the logprob of a prompt's position is the position. */
static void score(const kvf_step_run *run, uint32_t index, kvf_step_result *result) {
    static kvf_step_scores scores;
    static uint64_t values[256];
    uint32_t known = run->tokens_count - run->position - 1; /* with a token after it */
    scores = (kvf_step_scores){.run = index, .start = run->position + 1, .count = KVF_MIN(run->count, known)};
    for (uint32_t i = 0; i < scores.count; i++) values[i] = scores.start + i;
    scores.samples = (kvf_span){values, sizeof *values * scores.count};
    assert_int_equal(result->scores_count, 0); /* one such run in a step */
    result->scores = &scores;
    result->scores_count = 1;
}

void rig_run_step(rig *r, uint32_t node) {
    static kvf_step_sample samples[256];
    assert_true(r->step_pending[node]);
    r->step_pending[node] = false;
    const kvf_step *s = &r->step[node];
    kvf_step_result result = {.samples = samples};
    r->steps++;
    r->copies += s->copies_count;
    for (uint32_t i = 0; i < s->runs_count; i++) {
        const kvf_step_run *run = &s->runs[i];
        r->computed_tokens[node] += run->count;
        assert_true(run->position + run->count <= run->tokens_count);
        if (run->score) score(run, i, &result);
        for (uint32_t k = 0; k < run->samples; k++)
            samples[result.samples_count++] = (kvf_step_sample){.run = i,
                .choice = run->choice_first + k,
                .token = rig_next_token(run->tokens, run->position + run->count, run->choice_first + k)};
    }
    kvf_node_on_step_done(r->node[node], r->now, s->id, &result);
}

/* ------------------------------------------------------------------ the log */

static void log_tokens(rig *r, uint32_t node, const kvf_nmsg *m) {
    for (uint32_t i = 0; i < m->tokens.count; i++) {
        const kvf_token_item *t = &m->tokens.items[i];
        assert_true(r->log_count < RIG_LOG_MAX);
        r->log[r->log_count++] = (rig_entry){.node = node,
            .kind = KVF_N_TOKENS,
            .request = t->request,
            .attempt = t->attempt,
            .position = t->position,
            .token = t->token,
            .index = t->index,
            .end = t->end,
            .repeated = t->repeated,
            .number = m->tokens.number};
    }
}

static void log_logprobs(const kvf_nmsg *m, rig_entry *e) {
    const uint64_t *values = m->prompt_logprobs.samples.data;
    e->position = m->prompt_logprobs.start;
    e->count = m->prompt_logprobs.count;
    e->number = m->prompt_logprobs.number;
    assert_int_equal(m->prompt_logprobs.samples.len_bytes, sizeof *values * e->count);
    for (uint32_t i = 0; i < e->count; i++) assert_int_equal(values[i], e->position + i);
}

static void log_message(rig *r, uint32_t node, const kvf_nmsg *m) {
    if (m->kind == KVF_N_STATUS || m->kind == KVF_N_EVENTS || m->kind == KVF_N_SNAPSHOT) return;
    if (m->kind == KVF_N_TOKENS) {
        log_tokens(r, node, m);
        return;
    }
    assert_true(r->log_count < RIG_LOG_MAX);
    rig_entry *e = &r->log[r->log_count++];
    *e = (rig_entry){.node = node, .kind = m->kind, .request = m->request, .attempt = m->attempt};
    switch (m->kind) {
    case KVF_N_GRANTED:
        e->grant = m->granted.grant;
        memcpy(e->secret, m->granted.secret, 16);
        e->missing_count = m->granted.missing_count;
        memcpy(e->missing, m->granted.missing, sizeof *e->missing * e->missing_count);
        e->cached_tokens = m->granted.cached_tokens;
        break;
    case KVF_N_LOCAL: e->cached_tokens = m->local.cached_tokens; break;
    case KVF_N_REFUSED:
        e->reason = m->refused.reason;
        e->retry_after_ns = m->refused.retry_after_ns;
        memcpy(e->field, m->refused.field, sizeof e->field);
        memcpy(e->text, m->refused.text, sizeof e->text);
        break;
    case KVF_N_SHIPPED:
        e->reason = m->shipped.result;
        e->pages = m->shipped.pages;
        e->cached_tokens = m->shipped.cached_tokens;
        break;
    case KVF_N_FAILED:
        e->reason = m->failed.reason;
        e->retryable = m->failed.retryable;
        memcpy(e->text, m->failed.text, sizeof e->text);
        break;
    case KVF_N_PREFILLING:
        assert_true(m->prefilling.count <= KVF_COUNT_OF(e->items));
        e->items_count = m->prefilling.count;
        memcpy(e->items, m->prefilling.items, sizeof *e->items * e->items_count);
        break;
    case KVF_N_PROMPT_LOGPROBS: log_logprobs(m, e); break;
    case KVF_N_PREEMPTED: e->next_position = m->preempted.next_position; break;
    case KVF_N_ALREADY_STARTED:
        e->already_attempt = m->already_started.attempt;
        e->next_position = m->already_started.position;
        break;
    case KVF_N_AUDIT:
        e->clean = m->audit.clean;
        e->at_rest = m->audit.at_rest;
        break;
    default: break;
    }
}

/* ------------------------------------------------------------------ the wire */

static void connect_links(rig *r, uint32_t from, const kvf_node_act *a) {
    static const uint8_t nonce[16] = {1, 2, 3};
    uint32_t to = 1 - from;
    if (r->no_calls) {
        r->calls_in_vain++;
        kvf_node_on_link_down(r->node[from], r->now, KVF_LINK_NONE, a->connect.peer,
            r->vain_reason ? r->vain_reason : KVF_ERR_PEER_LOST, "nobody there");
        return;
    }
    kvf_link_id link = ++r->links;
    r->connects++;
    kvf_node_on_calling(r->node[from], a->connect.peer, a->connect.peer_epoch, link);
    assert_string_equal(a->connect.peer, r->config[to].info.node);
    kvf_node_on_link_up(r->node[to], r->now, link, r->config[from].info.node, r->config[from].info.epoch, nonce, false);
    kvf_node_on_link_up(r->node[from], r->now, link, r->config[to].info.node, r->config[to].info.epoch, nonce, true);
}

static void carry_page(rig *r, uint32_t from, const kvf_node_act *a) {
    kvf_page_header h = a->page.header;
    kvf_landing landing;
    h.crc = h.block * 131 + h.layer;
    if (!r->hold_pages && kvf_node_on_page(r->node[1 - from], r->now, a->link, &h, &landing) == KVF_PAGE_ACCEPT) {
        kvf_node_on_landed(r->node[1 - from], r->now, &landing, r->corrupt_pages == 0);
        if (r->corrupt_pages) r->corrupt_pages--;
    }
    kvf_node_on_page_sent(r->node[from], r->now, a->page.token, true, h.crc);
}

static void acknowledge(rig *r, uint32_t node, const kvf_nmsg *m) {
    kvf_rmsg ack = {.kind = KVF_R_ACK};
    if (m->kind == KVF_N_TOKENS)
        ack.ack.number = m->tokens.number;
    else if (m->kind == KVF_N_PROMPT_LOGPROBS)
        ack.ack.number = m->prompt_logprobs.number;
    if (ack.ack.number) kvf_node_on_msg(r->node[node], r->now, 0, &ack);
}

static void act(rig *r, uint32_t node, const kvf_node_act *a) {
    switch (a->kind) {
    case KVF_NODE_STEP:
        assert_false(r->step_pending[node]);
        r->step[node] = a->step;
        r->step_pending[node] = true;
        break;
    case KVF_NODE_MSG:
        log_message(r, node, &a->msg);
        if (r->auto_ack) acknowledge(r, node, &a->msg);
        break;
    case KVF_NODE_FRAME: kvf_node_on_frame(r->node[1 - node], r->now, a->link, &a->frame); break;
    case KVF_NODE_PAGE: carry_page(r, node, a); break;
    case KVF_NODE_CONNECT: connect_links(r, node, a); break;
    case KVF_NODE_EXIT: break;
    }
}

void rig_pump(rig *r) {
    for (bool more = true; more;) {
        more = false;
        for (uint32_t i = 0; i < RIG_NODES; i++) {
            kvf_node_act a;
            while (kvf_node_next(r->node[i], NULL, NULL, &a)) {
                act(r, i, &a);
                more = true;
            }
            if (r->step_pending[i] && !r->hold_steps) {
                rig_run_step(r, i);
                more = true;
            }
        }
    }
    rig_check_audit(r);
}

void rig_send(rig *r, uint32_t node, const kvf_rmsg *m) {
    kvf_node_on_msg(r->node[node], r->now, 0, m);
    rig_pump(r);
}

void rig_advance(rig *r, kvf_time_ns by) {
    r->now += by;
    for (uint32_t i = 0; i < RIG_NODES; i++) kvf_node_on_time(r->node[i], r->now);
    rig_pump(r);
}

/* ------------------------------------------------------------------ the router's part */

kvf_work rig_work(uint64_t counter, const uint32_t *tokens, uint32_t count, uint32_t output_max) {
    return (kvf_work){.request = {7, counter},
        .attempt = 1,
        .tokens = tokens,
        .tokens_count = count,
        .prompt_count = count,
        .n = 1,
        .output_max = output_max,
        .output_max_given = true,
        .time_left_ns = KVF_TIME_NEVER};
}

void rig_reserve(rig *r, const kvf_work *w) {
    kvf_rmsg m = {.kind = KVF_R_RESERVE, .reserve = *w};
    rig_send(r, RIG_D, &m);
}

void rig_prefill(rig *r, const kvf_work *w, const rig_entry *granted) {
    kvf_rmsg m = {.kind = KVF_R_PREFILL, .prefill.work = *w};
    kvf_ship_to *to = &m.prefill.to;
    memcpy(to->node, "d0", 3);
    to->epoch = r->config[RIG_D].info.epoch;
    to->grant = granted->grant;
    memcpy(to->secret, granted->secret, 16);
    to->missing = granted->missing;
    to->missing_count = granted->missing_count;
    rig_send(r, RIG_P, &m);
}

void rig_ship(rig *r, const kvf_work *w) {
    uint32_t before = rig_count(r, RIG_D, KVF_N_GRANTED);
    rig_reserve(r, w);
    assert_int_equal(rig_count(r, RIG_D, KVF_N_GRANTED), before + 1);
    rig_entry granted = *rig_last(r, RIG_D, KVF_N_GRANTED);
    rig_prefill(r, w, &granted);
}

void rig_cancel(rig *r, uint32_t node, kvf_request_id id, uint32_t attempt) {
    kvf_rmsg m = {.kind = KVF_R_CANCEL, .cancel = {.request = id, .attempt = attempt}};
    rig_send(r, node, &m);
}

rig_entry *rig_last(rig *r, uint32_t node, kvf_n_kind kind) {
    for (uint32_t i = r->log_count; i > 0; i--)
        if (r->log[i - 1].node == node && r->log[i - 1].kind == kind) return &r->log[i - 1];
    return NULL;
}

uint32_t rig_count(const rig *r, uint32_t node, kvf_n_kind kind) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->log_count; i++) count += r->log[i].node == node && r->log[i].kind == kind;
    return count;
}

uint32_t rig_output(const rig *r, kvf_request_id id, uint32_t index, uint32_t *out, kvf_end *end) {
    uint32_t count = 0, next = 0;
    for (uint32_t i = 0; i < r->log_count; i++) {
        const rig_entry *e = &r->log[i];
        if (e->kind != KVF_N_TOKENS || !kvf_request_id_equal(e->request, id) || e->index != index) continue;
        if (count > 0 && e->position < next) {
            assert_int_equal(out[e->position - (next - count)], e->token); /* said again: the same */
            continue;
        }
        if (count > 0) assert_int_equal(e->position, next);
        out[count++] = e->token;
        next = e->position + 1;
        *end = e->end;
    }
    return count;
}

void rig_expect_output(
    rig *r, kvf_request_id id, uint32_t choice, const uint32_t *tokens, uint32_t count, uint32_t length) {
    uint32_t got[1024], known[1024];
    kvf_end end;
    memcpy(known, tokens, sizeof *tokens * count);
    assert_int_equal(rig_output(r, id, choice, got, &end), length);
    for (uint32_t i = 0; i < length; i++) {
        uint32_t want = rig_next_token(known, count + i, choice);
        assert_int_equal(got[i], want);
        known[count + i] = want;
    }
    assert_int_equal(end, KVF_END_LENGTH);
}

void rig_check_audit(rig *r) {
    for (uint32_t i = 0; i < RIG_NODES; i++) {
        kvf_error err;
        if (kvf_node_audit(r->node[i], &err) != KVF_OK) fail_msg("node %u: %s", i, err.message);
    }
}

void rig_check_at_rest(rig *r) {
    for (uint32_t i = 0; i < RIG_NODES; i++) {
        kvf_kv_counts kv;
        kvf_rx_counts rx;
        kvf_node_get_counts(r->node[i], &kv, &rx);
        assert_int_equal(kv.pinned, 0);
        assert_int_equal(kv.in_use, 0);
        assert_int_equal(kv.booked, 0);
        assert_int_equal(kv.filling, 0);
        assert_int_equal(kv.free + kv.evictable, kv.total);
        assert_true(kvf_node_idle(r->node[i]));
    }
}
