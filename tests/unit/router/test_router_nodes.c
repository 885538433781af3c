/* The router's rules about nodes: readiness and grace, load, identities, sessions, epochs, the directory. */
#include "bench.h"
#include "kvf/rng.h"
#include <stdio.h>
#include <string.h>

static void opened(bench *b, bool strict) {
    kvf_router_config c;
    bench_config(&c);
    c.strict = strict;
    bench_open(b, &c);
}

static const kvf_refusal *failed(const bench *b) {
    assert_int_equal(bench_count(b, KVF_ROUTER_FAILED), 1);
    return &bench_find(b, KVF_ROUTER_FAILED, 0)->a.failed.why;
}

/* ---- SC-08 ---- */

static void strict_without_prefill(void **state) {
    (void)state;
    bench b;
    opened(&b, true);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    bench_forget(&b);
    bench_submit(&b, 40, 5, KVF_ROUTER_AUTO);
    bench_at(&b, b.now + 99 * MS);
    assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED) + bench_count_sent(&b, 0, KVF_R_RESERVE), 0);
    bench_at(&b, b.now + 1 * MS);
    assert_int_equal(failed(&b)->status, KVF_ERR_PEER_LOST);
    assert_non_null(strstr(failed(&b)->text, "no prefill node is ready"));
    assert_int_equal(failed(&b)->retry_after_ns, 50 * MS);
    bench_forget(&b);
    bench_submit(&b, 40, 5, KVF_ROUTER_NEVER); /* wants none */
    assert_int_equal(bench_count_sent(&b, 0, KVF_R_RESERVE), 1);
    bench_forget(&b);
    bench_submit(&b, 40, 5, KVF_ROUTER_ALWAYS);
    bench_at(&b, b.now + 50 * MS);
    bench_node(&b, 1, KVF_ROLE_PREFILL); /* within the grace */
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.ship_min, 0);
    bench_close(&b);
}

static void fallback_without_prefill(void **state) {
    (void)state;
    bench b;
    opened(&b, false);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    bench_submit(&b, 40, 5, KVF_ROUTER_ALWAYS); /* none is expected: nothing to wait for */
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.ship_min, UINT32_MAX);
    assert_int_equal(bench_counters(&b).fallback_local, 1);
    bench_forget(&b);
    assert_int_equal(kvf_router_add_node(b.r, b.now, 1, "n1", KVF_ROLE_PREFILL), KVF_OK);
    bench_submit(&b, 40, 5, KVF_ROUTER_ALWAYS); /* one may come */
    bench_at(&b, b.now + 99 * MS);
    assert_int_equal(bench_count_sent(&b, 0, KVF_R_RESERVE), 0);
    bench_at(&b, b.now + 21 * MS);
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.ship_min, UINT32_MAX);
    assert_int_equal(bench_counters(&b).fallback_local, 2);
    bench_forget(&b);
    bench_up(&b, 1);
    bench_welcome(&b, 1, "n1", KVF_ROLE_PREFILL, 5, "f32"); /* recovers without a restart */
    bench_submit(&b, 40, 5, KVF_ROUTER_ALWAYS);
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.ship_min, 0);
    bench_close(&b);
}

static void without_decode(void **state) {
    (void)state;
    bench b;
    opened(&b, true);
    bench_node(&b, 0, KVF_ROLE_PREFILL);
    bench_submit(&b, 40, 5, KVF_ROUTER_AUTO);
    bench_at(&b, b.now + 100 * MS);
    assert_non_null(strstr(failed(&b)->text, "no decode node is ready"));
    bench_close(&b);
    opened(&b, false);
    bench_node(&b, 0, KVF_ROLE_PREFILL);
    bench_submit(&b, 40, 5, KVF_ROUTER_AUTO);
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.ship_min, UINT32_MAX);
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->a.node, 0);
    assert_int_equal(bench_counters(&b).fallback_prefill, 1);
    bench_close(&b);
}

/* ---- load ---- */

static void hot_prefix(void **state) { /* SC-05 */
    (void)state;
    bench b;
    opened(&b, false);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    for (uint32_t i = 1; i <= 3; i++) bench_node(&b, i, KVF_ROLE_PREFILL);
    kvf_hash128 names[9];
    kvf_router_request in = bench_request(150, 5, KVF_ROUTER_ALWAYS);
    bench_names("f32", in.tokens, 9, names);
    bench_blocks(&b, 1, 1, true, names, 9);
    uint32_t share[4] = {0};
    for (int i = 0; i < 90; i++) {
        kvf_request_id id;
        kvf_refusal why;
        bench_forget(&b);
        assert_int_equal(bench_try(&b, in, &id, &why), KVF_OK);
        bench_granted(&b, 0, &bench_one(&b, KVF_R_RESERVE)->m, 0);
        uint32_t node = bench_one(&b, KVF_R_PREFILL)->a.node;
        if (share[node]++ == 0 && node != 1) bench_blocks(&b, node, 1, true, names, 9); /* it has computed it */
        if (i < 3) assert_int_equal(share[1], i + 1); /* the first go where the prefix is */
    }
    for (uint32_t i = 1; i <= 3; i++) assert_true(share[i] >= 25 && share[i] <= 54); /* nobody idle, nobody over 60 % */
    bench_close(&b);
}

static void spreads(void **state) {
    (void)state;
    bench b;
    opened(&b, false);
    for (uint32_t i = 0; i < 4; i++) bench_node(&b, i, KVF_ROLE_DECODE);
    uint32_t share[4] = {0};
    for (int i = 0; i < 40; i++) {
        bench_forget(&b);
        bench_submit(&b, 40, 5, KVF_ROUTER_NEVER);
        bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
        share[reserve.a.node]++;
        bench_local(&b, reserve.a.node, &reserve.m);
    }
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(share[i], 10);
    /* A pool that is full is avoided. */
    kvf_nmsg m = {.kind = KVF_N_STATUS};
    m.status = (kvf_node_stats){
        .state = KVF_NODE_READY, .role = KVF_ROLE_DECODE, .events_next = 1, .blocks_total = 50, .blocks_booked = 50};
    m.status.blocks_free = 50;
    for (uint32_t i = 0; i < 3; i++) bench_say(&b, i, &m);
    for (int i = 0; i < 6; i++) {
        bench_forget(&b);
        bench_submit(&b, 40, 5, KVF_ROUTER_NEVER);
        assert_int_equal(bench_one(&b, KVF_R_RESERVE)->a.node, 3);
    }
    bench_close(&b);
}

/* ---- identities (PD-08) ---- */

static void mismatch(void **state) {
    (void)state;
    for (int allowed = 0; allowed < 2; allowed++) {
        kvf_router_config c;
        bench b;
        bench_config(&c);
        c.strict = true;
        c.allow_other_numerics = allowed;
        bench_open(&b, &c);
        bench_node(&b, 0, KVF_ROLE_DECODE);
        assert_int_equal(kvf_router_add_node(b.r, b.now, 1, "n1", KVF_ROLE_PREFILL), KVF_OK);
        bench_up(&b, 1);
        bench_welcome(&b, 1, "n1", KVF_ROLE_PREFILL, 5, "int8");
        bench_forget(&b);
        kvf_router_pair pair;
        assert_true(kvf_router_pair_at(b.r, b.now, 1, 0, &pair));
        bench_submit(&b, 40, 5, KVF_ROUTER_ALWAYS);
        assert_int_equal(bench_count_sent(&b, 0, KVF_R_RESERVE), allowed);
        if (allowed) {
            assert_string_equal(pair.refused, "");
        } else {
            assert_string_equal(pair.refused, "numerics differs: n1 has int8, n0 has f32");
            bench_at(&b, b.now + 100 * MS);
            assert_int_equal(failed(&b)->status, KVF_ERR_PEER_LOST);
        }
        bench_close(&b);
    }
}

/* ---- frames that a decode node rejected ---- */

static uint64_t rejected_by_pair(const bench *b, uint32_t prefill, uint32_t decode) {
    kvf_router_pair pair;
    assert_true(kvf_router_pair_at(b->r, b->now, prefill, decode, &pair));
    return pair.frames_rejected;
}

static void tell_rejected(bench *b, uint32_t node, const char *peer, uint64_t frames) {
    kvf_rejected of = {.frames = frames};
    snprintf(of.node, sizeof of.node, "%s", peer);
    kvf_nmsg m = {.kind = KVF_N_STATUS};
    m.status = (kvf_node_stats){
        .state = KVF_NODE_READY, .role = KVF_ROLE_DECODE, .events_next = 1, .rejected = &of, .rejected_count = 1};
    bench_say(b, node, &m);
    kvf_router_node view;
    assert_true(kvf_router_node_at(b->r, b->now, node, &view));
    assert_null(view.stats.rejected); /* it was the message's */
    assert_int_equal(view.stats.rejected_count, 0);
}

static void rejected_frames_belong_to_a_pair(void **state) {
    (void)state;
    bench b;
    opened(&b, false);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    bench_node(&b, 1, KVF_ROLE_PREFILL);
    tell_rejected(&b, 0, "n2", 7); /* not known yet */
    bench_node(&b, 2, KVF_ROLE_PREFILL);
    bench_node(&b, 3, KVF_ROLE_DECODE);
    tell_rejected(&b, 0, "n1", 3);
    tell_rejected(&b, 0, "n2", 8); /* the seven among them */
    tell_rejected(&b, 0, "n1", 5);
    tell_rejected(&b, 0, "n1", 5);
    assert_int_equal(rejected_by_pair(&b, 1, 0), 5);
    assert_int_equal(rejected_by_pair(&b, 2, 0), 8);
    assert_int_equal(rejected_by_pair(&b, 1, 3), 0);
    /* The decode node starts again and counts from nothing: the pair does not go back, and misses nothing. */
    kvf_router_on_session_down(b.r, b.now, 0);
    bench_up(&b, 0);
    bench_welcome(&b, 0, "n0", KVF_ROLE_DECODE, 999, "f32");
    assert_int_equal(rejected_by_pair(&b, 1, 0), 5);
    tell_rejected(&b, 0, "n1", 2);
    assert_int_equal(rejected_by_pair(&b, 1, 0), 7);
    tell_rejected(&b, 0, "n1", 9);
    assert_int_equal(rejected_by_pair(&b, 1, 0), 14);
    assert_int_equal(rejected_by_pair(&b, 2, 0), 8);
    /* A session of the same process does not count twice. */
    kvf_router_on_session_down(b.r, b.now, 0);
    bench_up(&b, 0);
    bench_welcome(&b, 0, "n0", KVF_ROLE_DECODE, 999, "f32");
    tell_rejected(&b, 0, "n1", 9);
    assert_int_equal(rejected_by_pair(&b, 1, 0), 14);
    bench_close(&b);
}

static void tell_links(bench *b, uint32_t node, const kvf_link_over *links, uint32_t count) {
    kvf_nmsg m = {.kind = KVF_N_STATUS};
    m.status = (kvf_node_stats){
        .state = KVF_NODE_READY, .role = KVF_ROLE_PREFILL, .events_next = 1, .links = links, .links_count = count};
    bench_say(b, node, &m);
    kvf_router_node view;
    assert_true(kvf_router_node_at(b->r, b->now, node, &view));
    assert_null(view.stats.links); /* it was the message's */
    assert_int_equal(view.stats.links_count, 0);
}

static void assert_over(const bench *b, uint32_t decode, const char *transport) {
    kvf_router_pair pair;
    assert_true(kvf_router_pair_at(b->r, b->now, 1, decode, &pair));
    assert_string_equal(pair.transport, transport);
}

static void a_pair_goes_over_the_link_that_its_sender_tells(void **state) {
    (void)state;
    bench b;
    opened(&b, false);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    bench_node(&b, 1, KVF_ROLE_PREFILL);
    bench_node(&b, 2, KVF_ROLE_DECODE);
    assert_over(&b, 0, "");
    static const kvf_link_over both[] = {{"n0", "nccl"}, {"n2", "tcp"}, {"n7", "shm"}};
    tell_links(&b, 1, both, 3);
    assert_over(&b, 0, "nccl");
    assert_over(&b, 2, "tcp");
    tell_links(&b, 1, both + 1, 1); /* closed when idle */
    assert_over(&b, 0, "");
    assert_over(&b, 2, "tcp");
    tell_links(&b, 1, NULL, 0);
    assert_over(&b, 2, "");
    bench_close(&b);
}

static void wrong_model(void **state) {
    (void)state;
    kvf_router_config c;
    bench b;
    bench_config(&c);
    c.model_known = true;
    c.weights_hash[0] = 8;
    bench_open(&b, &c);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    kvf_router_node view;
    assert_true(kvf_router_node_at(b.r, b.now, 0, &view));
    assert_false(view.ready);
    assert_non_null(strstr(view.refused, "weights_hash differs"));
    assert_int_equal(kvf_router_ready_nodes(b.r, KVF_ROLE_DECODE), 0);
    assert_int_equal(kvf_router_add_node(b.r, b.now, 1, "n1", KVF_ROLE_DECODE), KVF_OK);
    bench_up(&b, 1);
    bench_welcome(&b, 1, "other", KVF_ROLE_DECODE, 5, "f32");
    assert_true(kvf_router_node_at(b.r, b.now, 1, &view));
    assert_string_equal(view.refused, "configured as n1, calls itself other");
    bench_close(&b);
}

/* ---- sessions ---- */

static void comes_back(void **state) {
    (void)state;
    bench b;
    opened(&b, false);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    bench_submit(&b, 40, 5, KVF_ROUTER_NEVER);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    bench_local(&b, 0, &reserve.m);
    bench_token(&b, 0, &reserve.m.reserve, 0, 40, 7, KVF_END_NONE);
    bench_submit(&b, 50, 5, KVF_ROUTER_NEVER); /* its answer will be lost */
    bench_forget(&b);
    bench_down(&b, 0);
    bench_at(&b, b.now + 199 * MS);
    bench_up(&b, 0);
    const bench_action *hello = bench_one(&b, KVF_R_HELLO);
    assert_int_equal(hello->m.hello.live_count, 2);
    assert_int_equal(hello->live[0].next_position, 41);
    assert_int_equal(hello->live[0].attempt, 1);
    assert_int_equal(hello->live[1].next_position, 50);
    bench_welcome(&b, 0, "n0", KVF_ROLE_DECODE, 100, "f32"); /* the same process */
    const bench_action *again = bench_one(&b, KVF_R_RESERVE); /* only what has no answer is said again */
    assert_int_equal(again->m.reserve.prompt_count, 50);
    assert_int_equal(again->m.reserve.attempt, 1);
    kvf_nmsg m = {.kind = KVF_N_FAILED, .request = again->m.reserve.request, .attempt = 1};
    m.failed.stage = KVF_STAGE_DECODE;
    m.failed.reason = KVF_ERR_GONE; /* what the node says of the first one, after its Welcome */
    m.failed.retryable = true;
    bench_say(&b, 0, &m);
    bench_at(&b, b.now + 100 * MS);
    assert_int_equal(bench_count_sent(&b, 0, KVF_R_RESERVE), 1);
    bench_token(&b, 0, &reserve.m.reserve, 0, 41, 8, KVF_END_LENGTH);
    assert_int_equal(bench_find(&b, KVF_ROUTER_FINISHED, 0)->a.finished.attempts, 1);
    bench_close(&b);
}

static void stays_away(void **state) {
    (void)state;
    bench b;
    opened(&b, false);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    bench_submit(&b, 40, 5, KVF_ROUTER_NEVER);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    bench_local(&b, 0, &reserve.m);
    bench_token(&b, 0, &reserve.m.reserve, 0, 40, 7, KVF_END_NONE);
    bench_node(&b, 1, KVF_ROLE_DECODE);
    bench_forget(&b);
    bench_down(&b, 0);
    bench_at(&b, b.now + 200 * MS);
    bench_action again = *bench_one(&b, KVF_R_RESERVE);
    assert_int_equal(again.a.node, 1);
    assert_int_equal(again.tokens_count, 41);
    kvf_router_node view;
    assert_true(kvf_router_node_at(b.r, b.now, 0, &view));
    assert_int_equal(view.state, KVF_NODE_LOST);
    assert_int_equal(bench_counters(&b).nodes_lost, 1);
    bench_close(&b);
}

static void silent(void **state) {
    (void)state;
    bench b;
    opened(&b, false);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    bench_at(&b, b.now + 600 * MS);
    bench_status(&b, 0, KVF_ROLE_DECODE, KVF_NODE_READY);
    bench_forget(&b);
    bench_at(&b, b.now + 999 * MS);
    assert_int_equal(bench_count(&b, KVF_ROUTER_CLOSE), 0);
    bench_at(&b, b.now + 1 * MS);
    assert_int_equal(bench_count(&b, KVF_ROUTER_CLOSE), 1);
    assert_int_equal(kvf_router_ready_nodes(b.r, KVF_ROLE_DECODE), 0);
    bench_close(&b);
}

/* OP-02: a listener that answers is not a node that is back. Whoever opens sessions and never says Welcome is lost when
 * its grace is over, counted from when it was last there, however often it is tried; and what it was told in a Hello is
 * taken back. */
static void answers_but_never_welcomes(void **state) {
    (void)state;
    bench b;
    opened(&b, false);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    bench_submit(&b, 40, 5, KVF_ROUTER_NEVER);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    bench_local(&b, 0, &reserve.m);
    bench_token(&b, 0, &reserve.m.reserve, 0, 40, 7, KVF_END_NONE);
    bench_node(&b, 1, KVF_ROLE_DECODE);
    bench_down(&b, 0);
    bench_up(&b, 0);
    bench_at(&b, b.now + 90 * MS);
    bench_down(&b, 0);
    bench_at(&b, b.now + 20 * MS);
    bench_forget(&b);
    bench_up(&b, 0);
    bench_at(&b, b.now + 89 * MS);
    assert_int_equal(bench_count_sent(&b, 1, KVF_R_RESERVE) + bench_count(&b, KVF_ROUTER_CLOSE), 0);
    bench_at(&b, b.now + 1 * MS); /* 200 ms since it was last there */
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->a.node, 1);
    assert_int_equal(bench_count(&b, KVF_ROUTER_CLOSE), 1); /* its Hello named the request that has just moved */
    assert_int_equal(bench_counters(&b).nodes_lost, 1);
    bench_forget(&b);
    bench_up(&b, 0);
    assert_int_equal(bench_one(&b, KVF_R_HELLO)->m.hello.live_count, 0);
    bench_at(&b, b.now + 500 * MS);
    bench_status(&b, 1, KVF_ROLE_DECODE, KVF_NODE_READY);
    bench_at(&b, b.now + 500 * MS); /* a Welcome is waited for as for any other word */
    assert_int_equal(bench_count(&b, KVF_ROUTER_CLOSE), 1);
    assert_int_equal(bench_counters(&b).nodes_lost, 1);
    bench_close(&b);
}

/* Silence counts towards the grace: a frozen node is lost when it has said nothing for the longer of the two limits. */
static void silence_is_absence(void **state) {
    (void)state;
    bench b;
    opened(&b, false);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    bench_submit(&b, 40, 5, KVF_ROUTER_NEVER);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    bench_local(&b, 0, &reserve.m);
    bench_at(&b, b.now + 500 * MS);
    bench_node(&b, 1, KVF_ROLE_DECODE);
    bench_at(&b, b.now + 499 * MS);
    bench_forget(&b);
    bench_at(&b, b.now + 1 * MS);
    assert_int_equal(bench_count(&b, KVF_ROUTER_CLOSE), 1);
    assert_int_equal(bench_counters(&b).nodes_lost, 1);
    bench_at(&b, b.now + 13 * MS); /* the pause before a second attempt, and its jitter */
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->a.node, 1);
    bench_close(&b);
}

/* Its listener is gone too: there is nothing to wait for. */
static void process_is_gone(void **state) {
    (void)state;
    bench b;
    opened(&b, false);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    bench_submit(&b, 40, 5, KVF_ROUTER_NEVER);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    bench_local(&b, 0, &reserve.m);
    bench_node(&b, 1, KVF_ROLE_DECODE);
    kvf_router_on_node_gone(b.r, b.now, 0); /* a session says otherwise */
    bench_drain(&b);
    assert_int_equal(bench_counters(&b).nodes_lost, 0);
    bench_down(&b, 0);
    bench_forget(&b);
    kvf_router_on_node_gone(b.r, b.now, 0);
    bench_drain(&b);
    bench_at(&b, b.now + 10 * MS); /* the pause before a second attempt */
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->a.node, 1);
    assert_int_equal(bench_counters(&b).nodes_lost, 1);
    assert_int_equal(kvf_router_add_node(b.r, b.now, 2, "n2", KVF_ROLE_PREFILL), KVF_OK);
    kvf_router_on_node_gone(b.r, b.now, 2); /* never seen: it may be starting */
    assert_int_equal(bench_counters(&b).nodes_lost, 1);
    bench_close(&b);
}

static void started_again(void **state) {
    (void)state;
    bench b;
    opened(&b, false);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    kvf_router_request in = bench_request(40, 5, KVF_ROUTER_NEVER);
    kvf_hash128 names[2];
    bench_names("f32", in.tokens, 2, names);
    bench_blocks(&b, 0, 1, true, names, 2);
    bench_submit(&b, 40, 5, KVF_ROUTER_NEVER);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    bench_local(&b, 0, &reserve.m);
    bench_down(&b, 0);
    bench_forget(&b);
    bench_up(&b, 0);
    bench_welcome(&b, 0, "n0", KVF_ROLE_DECODE, 555, "f32");
    assert_int_equal(bench_counters(&b).directory_entries, 0); /* SC-06: nothing of the old process is believed */
    bench_at(&b, b.now + 20 * MS);
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.attempt, 2);
    /* The old process answers at another address: it is told, and its session closed. */
    bench_forget(&b);
    assert_int_equal(kvf_router_add_node(b.r, b.now, 3, "", KVF_ROLE_DECODE), KVF_OK);
    bench_up(&b, 3);
    bench_welcome(&b, 3, "n0", KVF_ROLE_DECODE, 100, "f32");
    assert_int_equal(bench_count_sent(&b, 3, KVF_R_SUPERSEDED), 1);
    assert_int_equal(bench_find(&b, KVF_ROUTER_CLOSE, 0)->a.node, 3);
    assert_int_equal(kvf_router_ready_nodes(b.r, KVF_ROLE_DECODE), 1);
    bench_close(&b);
}

/* A router that has met the new process first: what comes later and began earlier waits until the other is lost, and
 * takes nothing from it (simulator seed 9441). */
static void an_older_process_is_met_later(void **state) {
    (void)state;
    bench b;
    opened(&b, false);
    b.started_ns = 9000;
    bench_node(&b, 0, KVF_ROLE_DECODE);
    bench_submit(&b, 40, 5, KVF_ROUTER_NEVER);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    bench_local(&b, 0, &reserve.m);
    bench_down(&b, 0);
    bench_forget(&b);
    bench_up(&b, 0); /* the old one answers at the address */
    b.started_ns = 5000;
    bench_welcome(&b, 0, "n0", KVF_ROLE_DECODE, 55, "f32");
    assert_int_equal(bench_find(&b, KVF_ROUTER_CLOSE, 0)->a.node, 0);
    assert_int_equal(bench_count_sent(&b, 0, KVF_R_SUPERSEDED), 0);
    assert_int_equal(kvf_router_ready_nodes(b.r, KVF_ROLE_DECODE), 0);
    bench_down(&b, 0);
    bench_forget(&b);
    bench_up(&b, 0); /* the right one again: nothing has changed for its requests */
    b.started_ns = 9000;
    bench_welcome(&b, 0, "n0", KVF_ROLE_DECODE, 100, "f32");
    bench_token(&b, 0, &reserve.m.reserve, 0, 40, 7, KVF_END_NONE);
    assert_int_equal(bench_count(&b, KVF_ROUTER_TOKEN), 1);
    assert_int_equal(bench_counters(&b).retries, 0);
    /* It is lost: then the other may be newer all the same, by a clock that is wrong. */
    bench_down(&b, 0);
    kvf_router_on_node_gone(b.r, b.now, 0);
    bench_up(&b, 0);
    b.started_ns = 5000;
    bench_welcome(&b, 0, "n0", KVF_ROLE_DECODE, 55, "f32");
    assert_int_equal(kvf_router_ready_nodes(b.r, KVF_ROLE_DECODE), 1);
    /* It was not: the newer one comes back, and the older one is told. */
    bench_down(&b, 0);
    bench_up(&b, 0);
    b.started_ns = 9000;
    bench_welcome(&b, 0, "n0", KVF_ROLE_DECODE, 100, "f32");
    assert_int_equal(kvf_router_ready_nodes(b.r, KVF_ROLE_DECODE), 1);
    bench_down(&b, 0);
    bench_up(&b, 0);
    bench_forget(&b);
    b.started_ns = 5000;
    bench_welcome(&b, 0, "n0", KVF_ROLE_DECODE, 55, "f32");
    assert_int_equal(bench_count_sent(&b, 0, KVF_R_SUPERSEDED), 1);
    /* The same at two addresses. */
    assert_int_equal(kvf_router_add_node(b.r, b.now, 3, "", KVF_ROLE_DECODE), KVF_OK);
    bench_down(&b, 0);
    bench_up(&b, 0);
    b.started_ns = 9000;
    bench_welcome(&b, 0, "n0", KVF_ROLE_DECODE, 100, "f32");
    bench_up(&b, 3);
    bench_forget(&b);
    b.started_ns = 8000;
    bench_welcome(&b, 3, "n0", KVF_ROLE_DECODE, 77, "f32");
    assert_int_equal(bench_find(&b, KVF_ROUTER_CLOSE, 0)->a.node, 3);
    assert_int_equal(bench_count_sent(&b, 3, KVF_R_SUPERSEDED) + bench_count_sent(&b, 0, KVF_R_SUPERSEDED), 0);
    bench_close(&b);
}

static void acknowledges(void **state) {
    (void)state;
    bench b;
    opened(&b, false);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    bench_submit(&b, 40, 50, KVF_ROUTER_NEVER);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    bench_local(&b, 0, &reserve.m);
    bench_forget(&b);
    for (uint32_t i = 0; i < 3; i++) bench_token(&b, 0, &reserve.m.reserve, 0, 40 + i, 7, KVF_END_NONE);
    assert_int_equal(bench_count_sent(&b, 0, KVF_R_ACK), 3);
    assert_int_equal(bench_sent(&b, 0, KVF_R_ACK, 2)->m.ack.number, 3);
    bench_close(&b);
}

/* ---- directory ---- */

static void events_and_gaps(void **state) {
    (void)state;
    bench b;
    opened(&b, false);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    bench_node(&b, 1, KVF_ROLE_DECODE);
    kvf_hash128 names[8];
    kvf_router_request in = bench_request(140, 5, KVF_ROUTER_NEVER);
    bench_names("f32", in.tokens, 8, names);
    bench_forget(&b);
    bench_blocks(&b, 0, 1, true, names, 3);
    bench_blocks(&b, 0, 2, true, names + 1, 4); /* says two again */
    assert_int_equal(bench_counters(&b).directory_entries, 5);
    bench_submit(&b, 140, 5, KVF_ROUTER_NEVER);
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->a.node, 0); /* where 80 tokens are */
    bench_blocks(&b, 0, 9, true, names + 6, 1); /* three are missing */
    assert_int_equal(bench_count_sent(&b, 0, KVF_R_SNAPSHOT), 1);
    bench_blocks(&b, 0, 10, true, names + 7, 1); /* the snapshot will hold it */
    kvf_nmsg m = {.kind = KVF_N_SNAPSHOT};
    m.snapshot.events_next = 11;
    m.snapshot.names = names + 2;
    m.snapshot.count = 4;
    m.snapshot.first = true;
    bench_say(&b, 0, &m);
    m.snapshot.names = names + 6;
    m.snapshot.count = 2;
    m.snapshot.first = false;
    m.snapshot.last = true;
    bench_say(&b, 0, &m);
    assert_int_equal(bench_counters(&b).directory_entries, 6);
    kvf_router_node view;
    assert_true(kvf_router_node_at(b.r, b.now, 0, &view));
    assert_int_equal(view.directory_blocks, 6);
    bench_blocks(&b, 0, 11, false, names + 2, 1);
    assert_int_equal(bench_counters(&b).directory_entries, 5);
    bench_close(&b);
}

static void audit(void **state) {
    (void)state;
    bench b;
    opened(&b, false);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    kvf_hash128 names[4];
    kvf_router_request in = bench_request(70, 5, KVF_ROUTER_NEVER);
    bench_names("f32", in.tokens, 4, names);
    bench_blocks(&b, 0, 1, true, names, 3);
    bench_forget(&b);
    assert_int_equal(kvf_router_audit(b.r, b.now, 0, 99), KVF_OK);
    assert_int_equal(kvf_router_audit(b.r, b.now, 7, 99), KVF_ERR_NOT_FOUND);
    bench_drain(&b);
    assert_int_equal(bench_count_sent(&b, 0, KVF_R_SNAPSHOT), 1);
    assert_int_equal(bench_sent(&b, 0, KVF_R_AUDIT, 0)->m.audit.query, 99);
    kvf_nmsg m = {.kind = KVF_N_SNAPSHOT};
    m.snapshot.events_next = 4;
    m.snapshot.names = names + 1; /* the node lacks the first and has a fourth: a bug */
    m.snapshot.count = 3;
    m.snapshot.first = m.snapshot.last = true;
    bench_say(&b, 0, &m);
    kvf_nmsg report = {.kind = KVF_N_AUDIT};
    report.audit.query = 99;
    report.audit.clean = true;
    bench_say(&b, 0, &report);
    const bench_action *answer = bench_find(&b, KVF_ROUTER_ADMIN_ANSWER, 0);
    assert_int_equal(answer->a.answer.query, 99);
    assert_true(answer->a.answer.directory_compared);
    assert_int_equal(answer->a.answer.directory_missing, 1);
    assert_int_equal(answer->a.answer.directory_extra, 1);
    assert_int_equal(bench_counters(&b).directory_entries, 3); /* and now it is right */
    bench_down(&b, 0);
    assert_int_equal(kvf_router_flush(b.r, b.now, 0, 1), KVF_ERR_PEER_LOST);
    bench_close(&b);
}

static void salted_apart(void **state) { /* KV-03 */
    (void)state;
    bench b;
    opened(&b, false);
    bench_node(&b, 0, KVF_ROLE_DECODE);
    bench_node(&b, 1, KVF_ROLE_DECODE);
    kvf_hash128 names[8];
    kvf_router_request in = bench_request(140, 5, KVF_ROUTER_NEVER);
    bench_names("f32", in.tokens, 8, names);
    bench_blocks(&b, 1, 1, true, names, 8);
    in.salt.lo = 1; /* equal tokens, other salt: no node has it, so that turns are taken */
    uint32_t share[2] = {0};
    for (int i = 0; i < 4; i++) {
        kvf_request_id id;
        kvf_refusal why;
        bench_forget(&b);
        assert_int_equal(bench_try(&b, in, &id, &why), KVF_OK);
        share[bench_one(&b, KVF_R_RESERVE)->a.node]++;
    }
    assert_int_equal(share[0], 2);
    assert_int_equal(share[1], 2);
    bench_close(&b);
}

static void directory_model(void **state) {
    (void)state;
    static uint8_t memory[1 << 20];
    static bool model[4][256];
    for (uint64_t seed = 1; seed <= 20; seed++) {
        memset(memory, 0, sizeof memory);
        memset(model, 0, sizeof model);
        kvf_arena arena = {.base = memory, .size_bytes = sizeof memory, .zeroed = true};
        rt_directory d;
        rt_directory_layout(&d, &arena, 256);
        kvf_rng rng = {.seed = seed};
        for (int step = 0; step < 4000; step++) {
            uint32_t node = (uint32_t)kvf_rng_below(&rng, 4), n = (uint32_t)kvf_rng_below(&rng, 256);
            kvf_hash128 name = {n % 37 * 16, n}; /* homes collide on purpose, some near the end of the table */
            if (n % 3 == 0) name.lo = UINT64_MAX - n % 5;
            uint64_t what = kvf_rng_below(&rng, 100);
            if (what < 60) {
                rt_directory_add(&d, node, name);
                model[node][n] = true;
            } else if (what < 98) {
                rt_directory_remove(&d, node, name);
                model[node][n] = false;
            } else if (what < 99) {
                rt_directory_clear(&d, node);
                memset(model[node], 0, sizeof model[node]);
            } else { /* a snapshot that lacks some and has others */
                uint32_t missing = 0, extra = 0;
                rt_directory_snapshot_begin(&d, node);
                for (uint32_t k = 0; k < 256; k++) {
                    bool has = kvf_rng_below(&rng, 2);
                    kvf_hash128 other = {k % 37 * 16, k};
                    if (k % 3 == 0) other.lo = UINT64_MAX - k % 5;
                    missing += has && !model[node][k];
                    extra += !has && model[node][k];
                    if (has) rt_directory_snapshot_name(&d, node, other);
                    model[node][k] = has;
                }
                rt_dir_difference got = rt_directory_snapshot_end(&d, node);
                assert_int_equal(got.missing, missing);
                assert_int_equal(got.extra, extra);
            }
        }
        for (uint32_t n = 0; n < 256; n++) {
            kvf_hash128 name = {n % 37 * 16, n};
            if (n % 3 == 0) name.lo = UINT64_MAX - n % 5;
            for (uint32_t node = 0; node < 4; node++)
                assert_int_equal(rt_directory_find(&d, name) >> node & 1, model[node][n]);
        }
        assert_int_equal(d.dropped, 0);
        assert_true(d.entries_end <= 256); /* entries that are free again are taken before new ones */
    }
}

static void directory_full(void **state) {
    (void)state;
    static uint8_t memory[4096];
    kvf_arena arena = {.base = memory, .size_bytes = sizeof memory};
    rt_directory d;
    rt_directory_layout(&d, &arena, 8);
    for (uint64_t i = 0; i < 12; i++) rt_directory_add(&d, 2, (kvf_hash128){i, i});
    assert_int_equal(d.count, 8);
    assert_int_equal(d.dropped, 4);
    assert_int_equal(d.incomplete, 4);
    rt_directory_clear(&d, 2);
    assert_int_equal(d.count, 0);
    assert_int_equal(d.incomplete, 0);
    for (uint64_t i = 0; i < 8; i++) rt_directory_add(&d, 1, (kvf_hash128){i, i});
    assert_int_equal(d.entries_end, 8);
    assert_int_equal(d.dropped, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(strict_without_prefill),
        cmocka_unit_test(fallback_without_prefill), cmocka_unit_test(without_decode), cmocka_unit_test(hot_prefix),
        cmocka_unit_test(spreads), cmocka_unit_test(mismatch), cmocka_unit_test(rejected_frames_belong_to_a_pair),
        cmocka_unit_test(a_pair_goes_over_the_link_that_its_sender_tells), cmocka_unit_test(wrong_model),
        cmocka_unit_test(comes_back), cmocka_unit_test(stays_away), cmocka_unit_test(silent),
        cmocka_unit_test(answers_but_never_welcomes), cmocka_unit_test(silence_is_absence),
        cmocka_unit_test(process_is_gone), cmocka_unit_test(started_again),
        cmocka_unit_test(an_older_process_is_met_later), cmocka_unit_test(acknowledges),
        cmocka_unit_test(events_and_gaps), cmocka_unit_test(audit), cmocka_unit_test(salted_apart),
        cmocka_unit_test(directory_model), cmocka_unit_test(directory_full)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
