/* The router's rules about requests that kill the nodes they run on, and about those that only stood beside it. */
#include "bench.h"
#include <stdio.h>
#include <string.h>

#define D 0
#define P 1 /* and P + 1 */

static uint64_t epochs;

static void opened(bench *b, kvf_router_config *c) {
    bench_open(b, c);
    bench_node(b, D, KVF_ROLE_DECODE);
    bench_node(b, P, KVF_ROLE_PREFILL);
    bench_node(b, P + 1, KVF_ROLE_PREFILL);
    bench_forget(b);
    epochs = 1000;
}

static void cluster(bench *b) {
    kvf_router_config c;
    bench_config(&c);
    opened(b, &c);
}

/* kill -9, and the supervisor starts it again. */
static void dies(bench *b, uint32_t node) {
    char name[8];
    snprintf(name, sizeof name, "n%u", node);
    bench_down(b, node);
    bench_up(b, node);
    bench_welcome(b, node, name, node == D ? KVF_ROLE_DECODE : KVF_ROLE_PREFILL, ++epochs, "f32");
}

static void engine_at(bench *b, uint32_t node, const kvf_work *w, uint32_t position, uint32_t count) {
    kvf_prefilling_item item = {.request = w->request, .attempt = w->attempt, .position = position, .count = count};
    kvf_nmsg m = {.kind = KVF_N_PREFILLING, .prefilling = {.items = &item, .count = 1}};
    bench_say(b, node, &m);
}

static void engine_empty(bench *b, uint32_t node) { bench_say(b, node, &(kvf_nmsg){.kind = KVF_N_PREFILLING}); }

/* The next attempt, up to its Prefill, which it returns; backoffs pass. */
static void a_moment(bench *b) {
    assert_int_equal(bench_count(b, KVF_ROUTER_FAILED), 0);
    bench_at(b, b->now + MS);
    for (uint32_t n = 0; n < 3; n++) /* they are alive */
        bench_status(b, n, n == D ? KVF_ROLE_DECODE : KVF_ROLE_PREFILL, KVF_NODE_READY);
}

static bench_action next_prefill(bench *b) {
    for (int i = 0; i < 2000 && !bench_sent(b, D, KVF_R_RESERVE, 0); i++) a_moment(b);
    bench_action reserve = *bench_one(b, KVF_R_RESERVE);
    bench_granted(b, D, &reserve.m, 0);
    for (int i = 0; i < 2000 && !bench_sent(b, P, KVF_R_PREFILL, 0) && !bench_sent(b, P + 1, KVF_R_PREFILL, 0); i++)
        a_moment(b); /* links may be out of use for a while */
    bench_action prefill = *bench_one(b, KVF_R_PREFILL);
    bench_forget(b);
    return prefill;
}

static const kvf_refusal *failed(const bench *b) {
    assert_int_equal(bench_count(b, KVF_ROUTER_FAILED), 1);
    return &bench_find(b, KVF_ROUTER_FAILED, 0)->a.failed.why;
}

static void who_kills_three_is_failed(void **state) {
    (void)state;
    bench b;
    cluster(&b);
    bench_submit(&b, 200, 20, KVF_ROUTER_ALWAYS);
    for (uint32_t kill = 1; kill <= 3; kill++) {
        bench_action prefill = next_prefill(&b);
        assert_int_equal(prefill.m.prefill.work.attempt, kill);
        assert_int_equal(prefill.m.prefill.work.alone, kill == 3); /* the last chance: no innocent beside it */
        engine_at(&b, prefill.a.node, &prefill.m.prefill.work, 64, 64);
        dies(&b, prefill.a.node);
    }
    assert_int_equal(failed(&b)->status, KVF_ERR_INTERNAL);
    assert_int_equal(failed(&b)->retry_after_ns, 0);
    assert_non_null(strstr(failed(&b)->text, "3 processes died while computing position 64 of this request"));
    bench_close(&b);
}

/* Chunks of different attempts are cut differently around the same token. */
static void deaths_add_up_where_ranges_meet(void **state) {
    (void)state;
    static const uint32_t at[][3] = {{0, 128, 1}, {64, 64, 2}, {96, 104, 3}};
    bench b;
    cluster(&b);
    bench_submit(&b, 200, 20, KVF_ROUTER_ALWAYS);
    for (uint32_t i = 0; i < KVF_COUNT_OF(at); i++) {
        assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED), 0);
        bench_action prefill = next_prefill(&b);
        engine_at(&b, prefill.a.node, &prefill.m.prefill.work, at[i][0], at[i][1]);
        dies(&b, prefill.a.node);
    }
    assert_non_null(strstr(failed(&b)->text, "position 96"));
    bench_close(&b);
}

static void deaths_elsewhere_begin_again_up_to_a_bound(void **state) {
    (void)state;
    bench b;
    cluster(&b);
    bench_submit(&b, 200, 20, KVF_ROUTER_ALWAYS);
    for (uint32_t kill = 1; kill <= 9; kill++) {
        bench_action prefill = next_prefill(&b);
        assert_false(prefill.m.prefill.work.alone);
        engine_at(&b, prefill.a.node, &prefill.m.prefill.work, 16 * (kill % 4), 16);
        dies(&b, prefill.a.node);
    }
    assert_non_null(strstr(failed(&b)->text, "9 processes died"));
    bench_close(&b);
}

static void a_token_clears(void **state) {
    (void)state;
    bench b;
    cluster(&b);
    kvf_request_id id = bench_submit(&b, 200, 50, KVF_ROUTER_ALWAYS);
    for (uint32_t kill = 1; kill <= 12; kill++) {
        bench_action prefill = next_prefill(&b);
        engine_at(&b, prefill.a.node, &prefill.m.prefill.work, 64, 64);
        if (kill % 3 == 0) bench_token(&b, prefill.a.node, &prefill.m.prefill.work, 0, 199 + kill / 3, 7, KVF_END_NONE);
        dies(&b, prefill.a.node);
    }
    assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED), 0);
    kvf_router_cancel(b.r, b.now, id, KVF_CANCEL_CLIENT);
    bench_drain(&b);
    bench_close(&b);
}

/* A storm of kills while it waits in the node's queue: twelve attempts and more, but not so long. */
static void who_only_waited_there_is_spared(void **state) {
    (void)state;
    bench b;
    cluster(&b);
    bench_submit(&b, 200, 20, KVF_ROUTER_ALWAYS);
    kvf_time_ns begin = b.now;
    for (uint32_t kill = 1; kill <= 20; kill++) {
        bench_action prefill = next_prefill(&b);
        assert_false(prefill.m.prefill.work.alone);
        engine_at(&b, prefill.a.node, &prefill.m.prefill.work, 0, 64);
        engine_empty(&b, prefill.a.node); /* another's turn */
        dies(&b, kill % 4 ? prefill.a.node : D);
    }
    assert_true(b.now - begin < 30000 * MS);
    bench_action prefill = next_prefill(&b);
    bench_token(&b, prefill.a.node, &prefill.m.prefill.work, 0, 200, 7, KVF_END_EOS);
    assert_int_equal(bench_count(&b, KVF_ROUTER_FINISHED), 1);
    bench_close(&b);
}

static void nothing_strays_for_ever(void **state) {
    (void)state;
    bench b;
    kvf_router_config c;
    bench_config(&c);
    c.stray_span_ns = 500 * MS;
    opened(&b, &c);
    bench_submit(&b, 200, 20, KVF_ROUTER_ALWAYS);
    kvf_time_ns begin = b.now;
    uint32_t kills = 0;
    for (; bench_count(&b, KVF_ROUTER_FAILED) == 0; kills++) {
        bench_action prefill = next_prefill(&b);
        bench_at(&b, b.now + 100 * MS);
        dies(&b, prefill.a.node);
        assert_true(kills < 100);
    }
    /* Ten times as long as where nobody dies. */
    assert_true(kills >= 12 && b.now - begin >= 5000 * MS && b.now - begin < 7000 * MS);
    assert_int_equal(failed(&b)->status, KVF_ERR_PEER_LOST);
    assert_true(failed(&b)->retry_after_ns > 0);
    bench_close(&b);
}

/* The decode node hears of the dead link first, and the request has moved on when the death becomes known. */
static void who_has_left_already_is_still_a_suspect(void **state) {
    (void)state;
    bench b;
    cluster(&b);
    bench_submit(&b, 200, 20, KVF_ROUTER_ALWAYS);
    for (uint32_t kill = 1; kill <= 3; kill++) {
        bench_action prefill = next_prefill(&b);
        engine_at(&b, prefill.a.node, &prefill.m.prefill.work, 64, 64);
        kvf_nmsg m = {.kind = KVF_N_FAILED,
            .request = prefill.m.prefill.work.request,
            .attempt = prefill.m.prefill.work.attempt,
            .failed = {.stage = KVF_STAGE_TRANSFER, .reason = KVF_ERR_PEER_LOST, .retryable = true}};
        bench_say(&b, D, &m);
        dies(&b, prefill.a.node);
        assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED), kill == 3);
    }
    bench_close(&b);
}

static void links_and_leavings_do_not_count(void **state) {
    (void)state;
    bench b;
    cluster(&b);
    bench_submit(&b, 200, 20, KVF_ROUTER_ALWAYS);
    for (uint32_t i = 0; i < 6; i++) {
        bench_action prefill = next_prefill(&b);
        kvf_work *w = &prefill.m.prefill.work;
        engine_at(&b, prefill.a.node, w, 64, 64);
        if (i % 2)
            bench_shipped(&b, prefill.a.node, w, KVF_ERR_GONE);
        else
            bench_failed(&b, prefill.a.node, w, KVF_STAGE_TRANSFER, true);
        bench_at(&b, b.now + 90 * MS); /* the pair's time */
    }
    assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED), 0);
    bench_close(&b);
}

static void links_that_never_work_end_it_soon(void **state) {
    (void)state;
    bench b;
    kvf_router_config c;
    bench_config(&c);
    c.stray_span_ns = 500 * MS;
    c.strict = true; /* else the decode node computes it */
    opened(&b, &c);
    bench_submit(&b, 200, 20, KVF_ROUTER_ALWAYS);
    kvf_time_ns begin = b.now;
    for (uint32_t i = 0; bench_count(&b, KVF_ROUTER_FAILED) == 0; i++) {
        bench_action prefill = next_prefill(&b);
        bench_at(&b, b.now + 50 * MS);
        bench_failed(&b, prefill.a.node, &prefill.m.prefill.work, KVF_STAGE_TRANSFER, true);
        assert_true(i < 100);
    }
    assert_true(b.now - begin >= 500 * MS && b.now - begin < 5000 * MS);
    bench_close(&b);
}

/* The decode node computes all of it. */
static void a_local_prompt_counts_while_it_is_computed(void **state) {
    (void)state;
    bench b;
    cluster(&b);
    bench_submit(&b, 40, 20, KVF_ROUTER_NEVER);
    for (uint32_t kill = 1; kill <= 7; kill++) { /* two that nobody is to blame for: two more */
        for (int i = 0; i < 500 && !bench_sent(&b, D, KVF_R_RESERVE, 0); i++) bench_at(&b, b.now + MS);
        bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
        bench_forget(&b);
        bench_local(&b, D, &reserve.m);
        if (kill > 2) engine_at(&b, D, &reserve.m.reserve, 0, 40);
        dies(&b, D);
        if (kill < 7) assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED), 0);
    }
    assert_non_null(strstr(failed(&b)->text, "5 processes died"));
    bench_close(&b);
}

/* It has decoded in this attempt: whatever kills it then begins a new count. */
static void decoding_counts_only_without_a_token(void **state) {
    (void)state;
    bench b;
    cluster(&b);
    bench_submit(&b, 40, 50, KVF_ROUTER_NEVER);
    for (uint32_t kill = 0; kill < 8; kill++) {
        for (int i = 0; i < 500 && !bench_sent(&b, D, KVF_R_RESERVE, 0); i++) bench_at(&b, b.now + MS);
        bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
        bench_forget(&b);
        bench_local(&b, D, &reserve.m);
        bench_token(&b, D, &reserve.m.reserve, 0, 40 + kill, 7, KVF_END_NONE);
        dies(&b, D);
    }
    assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED), 0);
    bench_close(&b);
}

/* Processes die everywhere, also where no suspect is: that is a storm from outside. */
static void a_storm_asks_for_more(void **state) {
    (void)state;
    bench b;
    cluster(&b);
    bench_node(&b, 3, KVF_ROLE_DECODE);
    bench_forget(&b);
    dies(&b, 3);
    bench_down(&b, 3);
    bench_at(&b, b.now + 300 * MS); /* lost: the second */
    bench_up(&b, 3);
    bench_welcome(&b, 3, "n3", KVF_ROLE_DECODE, 9999, "f32"); /* the same death */
    bench_status(&b, 3, KVF_ROLE_DECODE, KVF_NODE_DRAINING);
    bench_forget(&b);
    bench_submit(&b, 200, 20, KVF_ROUTER_ALWAYS);
    for (uint32_t kill = 1; kill <= 5; kill++) {
        assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED), 0);
        bench_action prefill = next_prefill(&b);
        assert_int_equal(prefill.m.prefill.work.alone, kill >= 3);
        engine_at(&b, prefill.a.node, &prefill.m.prefill.work, 64, 64);
        dies(&b, prefill.a.node);
    }
    assert_non_null(strstr(failed(&b)->text, "5 processes died"));
    bench_close(&b);
}

/* In a storm that does not end, a minute without a token and nine deaths are enough. */
static void a_storm_does_not_shield_for_ever(void **state) {
    (void)state;
    bench b;
    kvf_router_config c;
    bench_config(&c);
    c.stray_span_ns = 3000 * MS;
    opened(&b, &c);
    bench_submit(&b, 200, 20, KVF_ROUTER_ALWAYS);
    kvf_time_ns begin = b.now;
    uint32_t kills = 0;
    for (; bench_count(&b, KVF_ROUTER_FAILED) == 0; kills++) {
        bench_action prefill = next_prefill(&b);
        engine_at(&b, prefill.a.node, &prefill.m.prefill.work, 64, 64);
        bench_at(&b, b.now + 200 * MS);
        dies(&b, prefill.a.node == P ? P + 1 : P); /* where nothing is */
        if (bench_count(&b, KVF_ROUTER_FAILED) == 0) dies(&b, prefill.a.node);
        assert_true(kills < 100);
    }
    assert_true(kills >= 9 && b.now - begin >= 3000 * MS && b.now - begin < 6000 * MS);
    assert_int_equal(failed(&b)->status, KVF_ERR_INTERNAL);
    bench_close(&b);
}

/* A session that blips while the engine is at it: no attempt, no count, nothing computed again. */
static void a_blip_costs_nothing(void **state) {
    (void)state;
    bench b;
    cluster(&b);
    bench_submit(&b, 200, 20, KVF_ROUTER_ALWAYS);
    bench_action prefill = next_prefill(&b);
    kvf_work *w = &prefill.m.prefill.work;
    uint32_t p = prefill.a.node;
    engine_at(&b, p, w, 64, 64);
    for (int i = 0; i < 10; i++) {
        uint32_t node = i % 2 ? D : p;
        bench_down(&b, node);
        bench_at(&b, b.now + 50 * MS);
        bench_forget(&b);
        bench_up(&b, node);
        bench_welcome(&b, node,
            node == D ? "n0"
            : p == P  ? "n1"
                      : "n2",
            node == D ? KVF_ROLE_DECODE : KVF_ROLE_PREFILL, 100 + node, "f32");
        assert_int_equal(bench_count_sent(&b, D, KVF_R_RESERVE), 0);
        assert_int_equal(bench_count_sent(&b, node, KVF_R_CANCEL), 0);
    }
    bench_token(&b, p, w, 0, 200, 7, KVF_END_NONE);
    bench_shipped(&b, p, w, KVF_OK);
    bench_simple(&b, D, w, KVF_N_STARTED);
    bench_token(&b, D, w, 0, 201, 8, KVF_END_EOS);
    assert_int_equal(bench_find(&b, KVF_ROUTER_FINISHED, 0)->a.finished.attempts, 1);
    assert_int_equal(bench_counters(&b).retries, 0);
    bench_close(&b);
}

static void no_list_outlives_its_process(void **state) {
    (void)state;
    bench b;
    cluster(&b);
    bench_submit(&b, 200, 20, KVF_ROUTER_ALWAYS);
    bench_action prefill = next_prefill(&b);
    uint32_t p = prefill.a.node;
    engine_at(&b, p, &prefill.m.prefill.work, 64, 64);
    dies(&b, p); /* 1 */
    prefill = next_prefill(&b);
    if (prefill.a.node != p) { /* nothing at all is there when it dies again and again */
        for (int i = 0; i < 4; i++) dies(&b, p);
        assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED), 0);
    }
    kvf_router_remove_node(b.r, b.now, p);
    bench_drain(&b);
    assert_int_equal(kvf_router_add_node(b.r, b.now, p, "n9", KVF_ROLE_PREFILL), KVF_OK);
    bench_up(&b, p);
    bench_welcome(&b, p, "n9", KVF_ROLE_PREFILL, 77, "f32");
    bench_down(&b, p);
    bench_at(&b, b.now + 300 * MS); /* lost */
    assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED), 0);
    bench_close(&b);
}

static void load_shrinks_with_each_chunk(void **state) {
    (void)state;
    bench b;
    cluster(&b);
    bench_submit(&b, 200, 20, KVF_ROUTER_ALWAYS);
    bench_action prefill = next_prefill(&b);
    const rt_node *n = &b.r->nodes[prefill.a.node];
    assert_int_equal(n->prefill_load, 200);
    engine_at(&b, prefill.a.node, &prefill.m.prefill.work, 64, 64);
    assert_int_equal(n->prefill_load, 136);
    engine_at(&b, prefill.a.node, &prefill.m.prefill.work, 0, 64); /* never grows */
    assert_int_equal(n->prefill_load, 136);
    kvf_work wrong = prefill.m.prefill.work;
    wrong.attempt = 9;
    engine_at(&b, prefill.a.node, &wrong, 192, 8); /* there is no such attempt */
    assert_int_equal(n->prefill_load, 136);
    engine_at(&b, prefill.a.node, &prefill.m.prefill.work, 192, UINT32_MAX);
    assert_int_equal(n->prefill_load, 136);
    assert_int_equal(bench_counters(&b).malformed, 2);
    bench_token(&b, prefill.a.node, &prefill.m.prefill.work, 0, 200, 7, KVF_END_NONE);
    assert_int_equal(n->prefill_load, 0);
    bench_close(&b);
}

/* Each time without nodes has a grace of its own: two short ones are not one long. */
static void the_grace_begins_anew(void **state) {
    (void)state;
    kvf_router_config c;
    bench b;
    bench_config(&c);
    bench_open(&b, &c);
    bench_node(&b, D, KVF_ROLE_DECODE);
    bench_submit(&b, 40, 20, KVF_ROUTER_NEVER);
    for (int i = 0; i < 4; i++) {
        bench_forget(&b);
        bench_down(&b, D);
        bench_at(&b, b.now + 60 * MS); /* of 100 */
        assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED), 0);
        bench_up(&b, D);
        bench_welcome(&b, D, "n0", KVF_ROLE_DECODE, 2000 + (uint64_t)i, "f32");
        bench_at(&b, b.now + 85 * MS);
        bench_status(&b, D, KVF_ROLE_DECODE, KVF_NODE_READY);
        bench_one(&b, KVF_R_RESERVE); /* asked, and dies before it answers */
    }
    bench_close(&b);
}

/* Who was frozen itself knows nothing of what nodes failed to do meanwhile. */
static void a_frozen_router_counts_no_grace(void **state) {
    (void)state;
    kvf_router_config c;
    bench b;
    bench_config(&c);
    bench_open(&b, &c);
    bench_node(&b, D, KVF_ROLE_DECODE);
    bench_submit(&b, 40, 20, KVF_ROUTER_NEVER);
    bench_down(&b, D);
    bench_at(&b, b.now + 60 * MS); /* lost; 60 of 100 ms are over */
    bench_forget(&b);
    for (int heard_first = 0; heard_first <= 1; heard_first++) { /* at the thaw: a node, or its own timers */
        b.now += 5 * KVF_NS_PER_S;
        if (heard_first) bench_up(&b, D);
        bench_at(&b, b.now + MS);
        bench_down(&b, D);
        bench_at(&b, b.now + 10 * MS);
        assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED), 0);
    }
    bench_at(&b, b.now + 100 * MS); /* awake */
    assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED), 1);
    bench_close(&b);
}

/* PD-02 (c): a decode node that takes no page connections. ALWAYS waits for a way, but computes there in the end. */
static void no_way_to_ship(void **state) {
    (void)state;
    bench b;
    kvf_router_config c;
    bench_config(&c);
    bench_open(&b, &c);
    bench_node(&b, D, KVF_ROLE_DECODE);
    bench_node(&b, P, KVF_ROLE_PREFILL);
    bench_submit(&b, 100, 5, KVF_ROUTER_ALWAYS);
    for (uint32_t i = 0; i < 3; i++) {
        bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
        assert_int_equal(reserve.m.reserve.ship_min, 0);
        bench_granted(&b, D, &reserve.m, 0);
        while (!bench_sent(&b, P, KVF_R_PREFILL, 0)) bench_at(&b, b.now + MS); /* the pair is set aside for a while */
        bench_action prefill = *bench_one(&b, KVF_R_PREFILL);
        bench_forget(&b);
        bench_failed(&b, P, &prefill.m.prefill.work, KVF_STAGE_TRANSFER, true);
    }
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.ship_min, UINT32_MAX);
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->a.node, D);
    assert_int_equal(bench_counters(&b).fallback_local, 1);
    bench_close(&b);
}

/* A pair that was set aside for long is nothing to wait for, where no other can ship. */
static void nobody_waits_for_an_ejected_pair(void **state) {
    (void)state;
    bench b;
    kvf_router_config c;
    bench_config(&c);
    c.ready_grace_ns = 10 * KVF_NS_PER_S;
    bench_open(&b, &c);
    bench_node(&b, D, KVF_ROLE_DECODE);
    bench_node(&b, P, KVF_ROLE_PREFILL);
    rt_pair *pair = rt_pair_of(b.r, P, D);
    pair->failures = 1;
    for (int often = 0; often <= 1; often++) {
        pair->until_ns = b.now + (often ? 8000 * MS : 80 * MS);
        bench_submit(&b, 100, 5, KVF_ROUTER_ALWAYS);
        if (!often) { /* for a moment: it is waited for */
            assert_int_equal(bench_count_sent(&b, D, KVF_R_RESERVE), 0);
            bench_at(&b, b.now + 100 * MS);
        }
        assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.ship_min, often ? UINT32_MAX : 0);
        if (often) break;
        bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
        pair->until_ns = b.now + 8000 * MS; /* and while the grant was on its way */
        bench_forget(&b);
        bench_granted(&b, D, &reserve.m, 0);
        assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.ship_min, UINT32_MAX);
        bench_forget(&b);
    }
    bench_close(&b);
}

/* The prefill node's own token is no sign that its pages arrive: an attempt that gave one, and whose hand-off then
 * stalled, counts as one that failed on the way. */
static void a_token_an_attempt_is_no_way(void **state) {
    (void)state;
    bench b;
    kvf_router_config c;
    bench_config(&c);
    bench_open(&b, &c);
    bench_node(&b, D, KVF_ROLE_DECODE);
    bench_node(&b, P, KVF_ROLE_PREFILL);
    bench_submit(&b, 100, 50, KVF_ROUTER_ALWAYS);
    for (uint32_t i = 0; i < 3; i++) {
        while (!bench_count_sent(&b, D, KVF_R_RESERVE)) bench_at(&b, b.now + MS);
        bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
        assert_int_equal(reserve.m.reserve.ship_min, 0);
        bench_granted(&b, D, &reserve.m, 0);
        while (!bench_sent(&b, P, KVF_R_PREFILL, 0)) bench_at(&b, b.now + MS);
        bench_action prefill = *bench_one(&b, KVF_R_PREFILL);
        bench_forget(&b);
        bench_token(&b, P, &prefill.m.prefill.work, 0, 100 + i, 7, KVF_END_NONE);
        assert_int_equal(bench_count(&b, KVF_ROUTER_TOKEN), 1);
        kvf_time_ns end = b.now + c.transfer_stall_ns;
        while (b.now < end) { /* both nodes are well otherwise */
            bench_at(&b, KVF_MIN(end, b.now + 300 * MS));
            bench_status(&b, D, KVF_ROLE_DECODE, KVF_NODE_READY);
            bench_status(&b, P, KVF_ROLE_PREFILL, KVF_NODE_READY);
        }
        assert_int_equal(bench_counters(&b).links_stalled, i + 1);
    }
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.ship_min, UINT32_MAX);
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_kills_three_is_failed),
        cmocka_unit_test(deaths_add_up_where_ranges_meet), cmocka_unit_test(deaths_elsewhere_begin_again_up_to_a_bound),
        cmocka_unit_test(a_token_clears), cmocka_unit_test(who_only_waited_there_is_spared),
        cmocka_unit_test(no_way_to_ship), cmocka_unit_test(nothing_strays_for_ever),
        cmocka_unit_test(links_that_never_work_end_it_soon), cmocka_unit_test(who_has_left_already_is_still_a_suspect),
        cmocka_unit_test(links_and_leavings_do_not_count), cmocka_unit_test(a_local_prompt_counts_while_it_is_computed),
        cmocka_unit_test(decoding_counts_only_without_a_token), cmocka_unit_test(a_storm_asks_for_more),
        cmocka_unit_test(a_storm_does_not_shield_for_ever), cmocka_unit_test(a_blip_costs_nothing),
        cmocka_unit_test(no_list_outlives_its_process), cmocka_unit_test(load_shrinks_with_each_chunk),
        cmocka_unit_test(the_grace_begins_anew), cmocka_unit_test(a_frozen_router_counts_no_grace),
        cmocka_unit_test(a_token_an_attempt_is_no_way), cmocka_unit_test(nobody_waits_for_an_ejected_pair)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
