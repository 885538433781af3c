#include "bench.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bench_config(kvf_router_config *c) {
    kvf_router_config_defaults(c);
    snprintf(c->name, sizeof c->name, "router");
    c->epoch = 9;
    c->nodes_max = 8;
    c->requests_max = 128;
    c->context_max = 256;
    c->directory_entries_max = 1024;
    c->ship_min = 32;
    c->ready_grace_ns = 100 * MS;
    c->status_timeout_ns = 1000 * MS;
    c->reconnect_grace_ns = 200 * MS;
    c->backoff_ns = 10 * MS;
    c->backoff_max_ns = 80 * MS;
    c->retry_after_ns = 50 * MS;
    c->ship_report_wait_ns = 5 * MS;
}

void bench_open(bench *b, const kvf_router_config *c) {
    *b = (bench){.now = 1000 * MS};
    size_t bytes = kvf_router_size(c);
    b->memory = aligned_alloc(64, bytes);
    assert_non_null(b->memory);
    memset(b->memory, 0, bytes);
    b->r = kvf_router_init(b->memory, c);
    b->actions = calloc(BENCH_ACTIONS, sizeof *b->actions);
    assert_non_null(b->actions);
}

void bench_close(bench *b) {
    rt_check(b->r);
    free(b->memory);
    free(b->actions);
}

static void keep(bench_action *k) {
    const kvf_rmsg *m = k->a.send;
    k->m = *m;
    const kvf_work *w = m->kind == KVF_R_RESERVE ? &m->reserve : m->kind == KVF_R_PREFILL ? &m->prefill.work : NULL;
    if (w) {
        k->tokens_count = w->tokens_count;
        assert_true(w->tokens_count <= KVF_COUNT_OF(k->tokens));
        memcpy(k->tokens, w->tokens, w->tokens_count * sizeof *k->tokens);
    }
    if (m->kind == KVF_R_HELLO) {
        assert_true(m->hello.live_count <= KVF_COUNT_OF(k->live));
        memcpy(k->live, m->hello.live, m->hello.live_count * sizeof *k->live);
    }
}

void bench_drain(bench *b) {
    kvf_router_action a;
    while (kvf_router_next(b->r, b->now, &a)) {
        assert_true(b->count < BENCH_ACTIONS);
        bench_action *k = &b->actions[b->count++];
        *k = (bench_action){.a = a};
        if (a.kind == KVF_ROUTER_SEND) keep(k);
    }
    rt_check(b->r);
}

void bench_forget(bench *b) { b->count = 0; }

void bench_at(bench *b, kvf_time_ns now) {
    while (kvf_router_deadline(b->r) <= now) {
        b->now = KVF_MAX(b->now, kvf_router_deadline(b->r));
        kvf_router_on_time(b->r, b->now);
        bench_drain(b);
    }
    b->now = now;
}

void bench_say(bench *b, uint32_t i, const kvf_nmsg *m) {
    kvf_router_on_msg(b->r, b->now, i, m);
    bench_drain(b);
}

void bench_up(bench *b, uint32_t i) {
    kvf_router_on_session_up(b->r, b->now, i);
    bench_drain(b);
}

void bench_down(bench *b, uint32_t i) {
    kvf_router_on_session_down(b->r, b->now, i);
    bench_drain(b);
}

void bench_welcome(bench *b, uint32_t i, const char *name, kvf_role role, uint64_t epoch, const char *numerics) {
    kvf_nmsg m = {.kind = KVF_N_WELCOME};
    kvf_node_info *info = &m.welcome.info;
    snprintf(info->node, sizeof info->node, "%s", name);
    snprintf(info->address, sizeof info->address, "tcp:%s:1", name);
    info->epoch = epoch;
    info->started_ns = b->started_ns;
    info->host_id = 40 + i;
    info->wire_version = KVF_WIRE_VERSION;
    info->role = role;
    info->identity = (kvf_identity){.weights_hash = {3, 4}, .block_tokens = 16, .layers = 2};
    snprintf(info->identity.numerics, sizeof info->identity.numerics, "%s", numerics);
    m.welcome.stats =
        (kvf_node_stats){.state = KVF_NODE_READY, .role = role, .events_next = b->events_next ? b->events_next : 1};
    bench_say(b, i, &m);
}

void bench_node(bench *b, uint32_t i, kvf_role role) {
    char name[KVF_NAME_MAX];
    snprintf(name, sizeof name, "n%u", i);
    assert_int_equal(kvf_router_add_node(b->r, b->now, i, name, role), KVF_OK);
    bench_up(b, i);
    bench_welcome(b, i, name, role, 100 + i, "f32");
}

void bench_status(bench *b, uint32_t i, kvf_role role, kvf_node_state state) {
    kvf_nmsg m = {.kind = KVF_N_STATUS};
    m.status = (kvf_node_stats){.state = state, .role = role, .events_next = 1};
    bench_say(b, i, &m);
}

kvf_router_request bench_request(uint32_t prompt, uint32_t output, kvf_router_mode mode) {
    static uint32_t tokens[300];
    for (uint32_t i = 0; i < KVF_COUNT_OF(tokens); i++) tokens[i] = 1000 + i;
    return (kvf_router_request){.tokens = tokens,
        .tokens_count = prompt,
        .n = 1,
        .output_max = output,
        .output_max_given = true,
        .deadline_ns = KVF_TIME_NEVER,
        .mode = mode,
        .sampling = {"s", 1},
        .client = 5};
}

kvf_status bench_try(bench *b, kvf_router_request in, kvf_request_id *id, kvf_refusal *why) {
    kvf_status status = kvf_router_submit(b->r, b->now, &in, id, why);
    bench_drain(b);
    return status;
}

kvf_request_id bench_submit(bench *b, uint32_t prompt, uint32_t output, kvf_router_mode mode) {
    kvf_request_id id;
    kvf_refusal why;
    assert_int_equal(bench_try(b, bench_request(prompt, output, mode), &id, &why), KVF_OK);
    return id;
}

void bench_granted(bench *b, uint32_t i, const kvf_rmsg *reserve, uint32_t cached) {
    kvf_nmsg m = {.kind = KVF_N_GRANTED, .request = reserve->reserve.request, .attempt = reserve->reserve.attempt};
    uint32_t missing[128], blocks = (reserve->reserve.tokens_count + 15) / 16, first = cached / 16;
    assert_true(blocks <= KVF_COUNT_OF(missing));
    for (uint32_t k = first; k < blocks; k++) missing[k - first] = k;
    m.granted.grant = 77;
    m.granted.secret[0] = 42;
    m.granted.ttl_ns = 3000 * MS;
    m.granted.cached_tokens = cached;
    m.granted.missing = missing;
    m.granted.missing_count = blocks - first;
    bench_say(b, i, &m);
}

void bench_simple(bench *b, uint32_t i, const kvf_work *w, kvf_n_kind kind) {
    bench_say(b, i, &(kvf_nmsg){.kind = kind, .request = w->request, .attempt = w->attempt});
}

void bench_local(bench *b, uint32_t i, const kvf_rmsg *reserve) { bench_simple(b, i, &reserve->reserve, KVF_N_LOCAL); }

void bench_refused(bench *b, uint32_t i, const kvf_work *w, kvf_status reason, kvf_time_ns retry_after_ns) {
    kvf_nmsg m = {.kind = KVF_N_REFUSED, .request = w->request, .attempt = w->attempt};
    m.refused.reason = reason;
    m.refused.retry_after_ns = retry_after_ns;
    snprintf(m.refused.field, sizeof m.refused.field, "input");
    snprintf(m.refused.text, sizeof m.refused.text, "node says no");
    bench_say(b, i, &m);
}

void bench_failed(bench *b, uint32_t i, const kvf_work *w, kvf_stage stage, bool retryable) {
    kvf_nmsg m = {.kind = KVF_N_FAILED, .request = w->request, .attempt = w->attempt};
    m.failed.stage = stage;
    m.failed.reason = KVF_ERR_IO;
    m.failed.retryable = retryable;
    snprintf(m.failed.text, sizeof m.failed.text, "broken pipe");
    bench_say(b, i, &m);
}

void bench_shipped(bench *b, uint32_t i, const kvf_work *w, kvf_status result) {
    kvf_nmsg m = {.kind = KVF_N_SHIPPED, .request = w->request, .attempt = w->attempt};
    m.shipped.result = result;
    m.shipped.pages = 6;
    m.shipped.bytes = 600;
    m.shipped.prefill_ns = 7 * MS;
    m.shipped.transfer_ns = 3 * MS;
    bench_say(b, i, &m);
}

void bench_token(
    bench *b, uint32_t i, const kvf_work *w, uint32_t index, uint32_t position, uint32_t token, kvf_end end) {
    kvf_token_item item = {
        .request = w->request, .attempt = w->attempt, .index = index, .position = position, .token = token, .end = end};
    kvf_nmsg m = {.kind = KVF_N_TOKENS};
    m.tokens.number = ++b->batch;
    m.tokens.items = &item;
    m.tokens.count = 1;
    bench_say(b, i, &m);
}

const bench_action *bench_find(const bench *b, kvf_router_action_kind kind, uint32_t nth) {
    for (uint32_t i = 0; i < b->count; i++)
        if (b->actions[i].a.kind == kind && nth-- == 0) return &b->actions[i];
    return NULL;
}

const bench_action *bench_sent(const bench *b, uint32_t node, kvf_r_kind kind, uint32_t nth) {
    for (uint32_t i = 0; i < b->count; i++) {
        const bench_action *k = &b->actions[i];
        if (k->a.kind == KVF_ROUTER_SEND && k->a.node == node && k->m.kind == kind && nth-- == 0) return k;
    }
    return NULL;
}

uint32_t bench_count(const bench *b, kvf_router_action_kind kind) {
    uint32_t count = 0;
    while (bench_find(b, kind, count)) count++;
    return count;
}

uint32_t bench_count_sent(const bench *b, uint32_t node, kvf_r_kind kind) {
    uint32_t count = 0;
    while (bench_sent(b, node, kind, count)) count++;
    return count;
}

const bench_action *bench_one(const bench *b, kvf_r_kind kind) {
    const bench_action *found = NULL;
    for (uint32_t i = 0; i < b->count; i++) {
        if (b->actions[i].a.kind != KVF_ROUTER_SEND || b->actions[i].m.kind != kind) continue;
        assert_null(found);
        found = &b->actions[i];
    }
    assert_non_null(found);
    return found;
}

kvf_router_counters bench_counters(const bench *b) {
    kvf_router_counters c;
    kvf_router_count(b->r, &c);
    return c;
}

void bench_names(const char *numerics, const uint32_t *tokens, uint32_t blocks, kvf_hash128 *names) {
    uint64_t weights[2] = {3, 4};
    uint8_t bytes[16];
    kvf_put_le64(bytes, weights[0]);
    kvf_put_le64(bytes + 8, weights[1]);
    kvf_hash128 name = kvf_kv_root((kvf_span){bytes, 16}, (kvf_span){numerics, strlen(numerics)}, (kvf_span){NULL, 0});
    for (uint32_t i = 0; i < blocks; i++) names[i] = name = kvf_kv_next(name, tokens + i * KVF_KV_BLOCK_TOKENS);
}

void bench_blocks(bench *b, uint32_t node, uint64_t first, bool stored, const kvf_hash128 *names, uint32_t count) {
    kvf_block_event events[64];
    assert_true(count <= KVF_COUNT_OF(events));
    for (uint32_t i = 0; i < count; i++) events[i] = (kvf_block_event){stored, names[i]};
    kvf_nmsg m = {.kind = KVF_N_EVENTS};
    m.events.first = first;
    m.events.events = events;
    m.events.count = count;
    bench_say(b, node, &m);
}
