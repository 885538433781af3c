/* The router as a whole: configuration, memory, events coming in, time. */
#include "router_int.h"
#include <inttypes.h>

void kvf_router_config_defaults(kvf_router_config *config) {
    *config = (kvf_router_config){.nodes_max = KVF_ROUTER_NODES_MAX,
        .requests_max = 1024,
        .context_max = 8192,
        .queue_max_requests = 512,
        .queue_max_tokens = 1u << 20,
        .ship_min = 256,
        .ready_grace_ns = 10 * KVF_NS_PER_S,
        .attempts_max = 3,
        .stray_span_ns = 60 * KVF_NS_PER_S,
        .directory_entries_max = 1u << 18,
        .status_timeout_ns = 5 * KVF_NS_PER_S,
        .reconnect_grace_ns = 2 * KVF_NS_PER_S,
        .backoff_ns = 100 * KVF_NS_PER_MS,
        .backoff_max_ns = 10 * KVF_NS_PER_S,
        .transfer_stall_ns = 5 * KVF_NS_PER_S,
        .slow_link_ns = 250 * KVF_NS_PER_MS,
        .retries_percent = 20,
        .retries_per_s = 50,
        .retry_after_ns = KVF_NS_PER_S,
        .ship_report_wait_ns = 20 * KVF_NS_PER_MS,
        .reserve_window = 32,
        .queued_window = 8,
        .running_charge_tokens = 64};
}

kvf_status kvf_router_config_check(const kvf_router_config *c, kvf_error *err) {
    if (!c->name[0] || strnlen(c->name, KVF_NAME_MAX) >= KVF_NAME_MAX)
        return kvf_fail(err, KVF_ERR_INVALID, "name: 1 to %d bytes", KVF_NAME_MAX - 1);
    if (c->epoch == 0) return kvf_fail(err, KVF_ERR_INVALID, "epoch: must not be 0");
    if (c->nodes_max == 0 || c->nodes_max > KVF_ROUTER_NODES_MAX)
        return kvf_fail(
            err, KVF_ERR_INVALID, "nodes_max: %" PRIu32 ", expected 1 to %d", c->nodes_max, KVF_ROUTER_NODES_MAX);
    if (c->requests_max == 0 || c->requests_max > 1u << 20)
        return kvf_fail(err, KVF_ERR_INVALID, "requests_max: %" PRIu32 ", expected 1 to %u", c->requests_max, 1u << 20);
    if (c->context_max < 2 || c->context_max > 1u << 24)
        return kvf_fail(err, KVF_ERR_INVALID, "context_max: %" PRIu32 ", expected 2 to %u", c->context_max, 1u << 24);
    if (c->directory_entries_max > 1u << 28)
        return kvf_fail(err, KVF_ERR_INVALID, "directory_entries_max: %" PRIu32 ", expected at most %u",
            c->directory_entries_max, 1u << 28);
    if (c->attempts_max == 0) return kvf_fail(err, KVF_ERR_INVALID, "attempts_max: must not be 0");
    if (c->status_timeout_ns == 0) return kvf_fail(err, KVF_ERR_INVALID, "status_timeout: must not be 0");
    if (c->transfer_stall_ns == 0) return kvf_fail(err, KVF_ERR_INVALID, "transfer_stall: must not be 0");
    if (c->retries_per_s == 0) return kvf_fail(err, KVF_ERR_INVALID, "retries_per_s: must not be 0");
    if (c->backoff_ns == 0 || c->backoff_max_ns < c->backoff_ns)
        return kvf_fail(err, KVF_ERR_INVALID, "backoff: must not be 0 nor above its maximum");
    return KVF_OK;
}

/* ---- memory ---- */

static bool timer_before(const void *context, uint32_t a, uint32_t b) {
    const kvf_router *r = context;
    return r->timer_at[a] != r->timer_at[b] ? r->timer_at[a] < r->timer_at[b] : a < b;
}

static void layout(kvf_arena *arena, const kvf_router_config *config, kvf_router *r) {
    const uint32_t requests = config->requests_max, timers = 2 * requests + config->nodes_max;
    r->missing_max = (uint32_t)kvf_div_up(config->context_max, KVF_KV_BLOCK_TOKENS);
    r->seqs = KVF_ARENA_NEW(arena, rt_seq, requests);
    r->requests = KVF_ARENA_NEW(arena, rt_request, requests);
    r->free_seqs = KVF_ARENA_NEW(arena, uint32_t, requests);
    r->free_requests = KVF_ARENA_NEW(arena, uint32_t, requests);
    r->nodes = KVF_ARENA_NEW(arena, rt_node, config->nodes_max);
    r->pairs = KVF_ARENA_NEW(arena, rt_pair, config->nodes_max * config->nodes_max);
    rt_heap_layout(&r->queue, arena, requests, rt_queue_before, r);
    rt_heap_layout(&r->timers, arena, timers, timer_before, r);
    r->timer_at = KVF_ARENA_NEW(arena, kvf_time_ns, timers);
    /* An attempt that was sent owes at most three Cancels, and they are said before anything else is sent. */
    uint32_t cancels = 64;
    while (cancels < 8 * (uint64_t)requests) cancels *= 2;
    r->cancels_mask = cancels - 1;
    r->cancels = KVF_ARENA_NEW(arena, rt_cancel, cancels);
    r->admin = KVF_ARENA_NEW(arena, rt_admin, RT_ADMIN_MAX);
    r->live = KVF_ARENA_NEW(arena, kvf_live, 2 * (size_t)requests);
    rt_directory_layout(&r->directory, arena, config->directory_entries_max);
    r->sampling = KVF_ARENA_NEW(arena, uint8_t, (size_t)requests * KVF_SAMPLING_MAX);
    r->missing = KVF_ARENA_NEW(arena, uint32_t, (size_t)requests * r->missing_max);
    r->tokens = KVF_ARENA_NEW(arena, uint32_t, (size_t)requests * config->context_max);
}

size_t kvf_router_size(const kvf_router_config *config) {
    kvf_arena arena = {0};
    kvf_router measured = {0};
    kvf_arena_take(&arena, sizeof measured, 64);
    layout(&arena, config, &measured);
    return kvf_align_up(arena.used_bytes, 64);
}

kvf_router *kvf_router_init(void *memory, const kvf_router_config *config) {
    KVF_ASSERT(memory && kvf_router_config_check(config, NULL) == KVF_OK);
    kvf_arena arena = {.base = memory, .size_bytes = kvf_router_size(config), .zeroed = true};
    kvf_router *r = (kvf_router *)kvf_arena_take(&arena, sizeof *r, 64);
    layout(&arena, config, r);
    r->config = *config;
    if (!r->config.reserve_window) r->config.reserve_window = 32;
    if (!r->config.queued_window) r->config.queued_window = 8;
    if (!r->config.running_charge_tokens) r->config.running_charge_tokens = 64;
    r->retry_budget = (int64_t)r->config.retries_per_s * 1000000;
    r->events_head = r->events_tail = r->sends_head = r->sends_tail = RT_NONE;
    return r;
}

/* ---- time ---- */

void rt_timer_set(kvf_router *r, uint32_t timer, kvf_time_ns at_ns) {
    if (at_ns == KVF_TIME_NEVER) {
        rt_heap_take(&r->timers, timer);
        return;
    }
    r->timer_at[timer] = at_ns;
    rt_heap_put(&r->timers, timer);
}

static void timer_fired(kvf_router *r, uint32_t timer) {
    uint32_t requests = r->config.requests_max;
    if (timer >= 2 * requests) {
        rt_node_on_time(r, timer - 2 * requests);
    } else if (timer >= requests) {
        rt_request_on_time(r, &r->requests[timer - requests]);
    } else {
        rt_seq *s = &r->seqs[timer];
        KVF_ASSERT(s->request != RT_NONE);
        rt_leg_on_time(r, s);
    }
}

void rt_clock(kvf_router *r, kvf_time_ns now) {
    uint32_t timer = rt_heap_top(&r->timers);
    kvf_time_ns from = timer == RT_NONE ? now : KVF_MAX(r->timer_at[timer], r->now);
    if (now > from && now - from >= RT_LATE_NS) r->slept_ns += now - from;
    r->now = now;
}

void kvf_router_on_time(kvf_router *r, kvf_time_ns now) {
    rt_clock(r, now);
    for (;;) {
        uint32_t timer = rt_heap_top(&r->timers);
        if (timer == RT_NONE || r->timer_at[timer] > now) break;
        rt_heap_take(&r->timers, timer);
        timer_fired(r, timer);
    }
}

kvf_time_ns kvf_router_deadline(const kvf_router *r) {
    uint32_t timer = rt_heap_top(&r->timers);
    return timer == RT_NONE ? KVF_TIME_NEVER : r->timer_at[timer];
}

/* ---- messages ---- */

static void on_numbered(kvf_router *r, uint32_t node, const kvf_nmsg *msg, uint64_t number) {
    r->nodes[node].ack_due = true;
    r->nodes[node].ack_number = number + (MUTANT(17) ? 1 : 0);
    rt_batch_begin(r, node, msg);
}

void kvf_router_on_msg(kvf_router *r, kvf_time_ns now, uint32_t node, const kvf_nmsg *msg) {
    KVF_ASSERT(node < r->config.nodes_max && !r->batch);
    rt_clock(r, now);
    rt_node *n = &r->nodes[node];
    if (!n->used || !n->up) return;
    n->heard_ns = now;
    r->nodes_due |= 1ull << node;
    if (msg->kind == KVF_N_WELCOME) {
        rt_node_on_welcome(r, node, msg);
        return;
    }
    if (n->bad) return; /* refused: what it says does not matter */
    if (!n->welcomed) {
        r->counters.malformed++;
        return;
    }
    switch (msg->kind) {
    case KVF_N_GRANTED:
    case KVF_N_LOCAL:
    case KVF_N_QUEUED:
    case KVF_N_REFUSED:
    case KVF_N_STALE:
    case KVF_N_ALREADY_STARTED:
    case KVF_N_STARTED:
    case KVF_N_SHIPPED:
    case KVF_N_FAILED:
    case KVF_N_PREEMPTED: rt_on_reply(r, node, msg); return;
    case KVF_N_TOKENS: on_numbered(r, node, msg, msg->tokens.number); return;
    case KVF_N_PROMPT_LOGPROBS: on_numbered(r, node, msg, msg->prompt_logprobs.number); return;
    case KVF_N_AUDIT:
    case KVF_N_BLOCKS:
    case KVF_N_FLUSHED: rt_batch_begin(r, node, msg); return;
    case KVF_N_STATUS: rt_node_on_status(r, node, &msg->status); return;
    case KVF_N_EVENTS: rt_node_on_events(r, node, msg); return;
    case KVF_N_SNAPSHOT: rt_node_on_snapshot(r, node, msg); return;
    case KVF_N_PREFILLING: rt_suspects_told(r, node, msg); return;
    default: r->counters.malformed++;
    }
}
