/* Links that are slow, stall or spoil pages, and retries under a budget. Node 0 decodes, 1 and 2 prefill. */
#include "bench.h"

enum { D = 0, SLOW = 1, FAST = 2, PROMPT = 40, PAGES = 6 };

static void open_three(bench *b, kvf_router_config *c) {
    bench_open(b, c);
    bench_node(b, D, KVF_ROLE_DECODE);
    bench_node(b, SLOW, KVF_ROLE_PREFILL);
    bench_node(b, FAST, KVF_ROLE_PREFILL);
    bench_forget(b);
}

static void say_shipped(bench *b, uint32_t node, const kvf_work *w, uint64_t pages, kvf_time_ns exposed_ns) {
    kvf_nmsg m = {.kind = KVF_N_SHIPPED, .request = w->request, .attempt = w->attempt};
    m.shipped.pages = pages;
    m.shipped.bytes = pages * 100;
    m.shipped.exposed_ns = exposed_ns;
    bench_say(b, node, &m);
}

static kvf_work to_prefill(bench *b, kvf_router_mode mode, uint32_t *prefill) {
    bench_forget(b);
    bench_submit(b, PROMPT, 2, mode);
    bench_action reserve = *bench_one(b, KVF_R_RESERVE);
    bench_granted(b, D, &reserve.m, 0);
    bench_action sent = *bench_one(b, KVF_R_PREFILL);
    *prefill = sent.a.node;
    return reserve.m.reserve;
}

/* One request, whole; the link of SLOW keeps it waiting for slow_ns and sends `again` pages twice. Its prefill node. */
static uint32_t ship_one(bench *b, kvf_time_ns slow_ns, uint64_t again, bool started_first) {
    uint32_t p;
    kvf_work w = to_prefill(b, KVF_ROUTER_ALWAYS, &p);
    bench_token(b, p, &w, 0, PROMPT, 7, KVF_END_NONE);
    b->now += p == SLOW ? slow_ns : 6 * MS;
    if (started_first) bench_simple(b, D, &w, KVF_N_STARTED);
    say_shipped(b, p, &w, PAGES + (p == SLOW ? again : 0), p == SLOW ? slow_ns : 6 * MS);
    if (!started_first) bench_simple(b, D, &w, KVF_N_STARTED);
    bench_token(b, D, &w, 0, PROMPT + 1, 8, KVF_END_LENGTH);
    assert_int_equal(bench_count(b, KVF_ROUTER_FINISHED), 1);
    return p;
}

static bool ejected(bench *b) {
    kvf_router_pair pair;
    assert_true(kvf_router_pair_at(b->r, b->now, SLOW, D, &pair));
    return pair.ejected;
}

/* Long enough for the first ejection of a pair, whatever its jitter. */
static void let_backoff_pass(bench *b, const kvf_router_config *c) { bench_at(b, b->now + 2 * c->backoff_ns); }

static void slow_links_are_ejected_and_come_back(void **state) {
    (void)state;
    bench b;
    kvf_router_config c;
    bench_config(&c);
    open_three(&b, &c);
    uint32_t slow = 0;
    for (uint32_t i = 0; i < 12 && !ejected(&b); i++) slow += ship_one(&b, 2000 * MS, 0, i & 1) == SLOW;
    assert_true(ejected(&b));
    assert_in_range(slow, 2, 3); /* one may have come before there was anything to compare with */
    assert_int_equal(bench_counters(&b).links_slow, 1);
    for (int i = 0; i < 2; i++) assert_int_equal(ship_one(&b, 2000 * MS, 0, false), FAST);
    let_backoff_pass(&b, &c);
    bool back = false;
    for (int i = 0; i < 6; i++) back |= ship_one(&b, 6 * MS, 0, false) == SLOW;
    assert_true(back);
    assert_false(ejected(&b));
    assert_int_equal(bench_counters(&b).retries, 0);
    assert_int_equal(bench_counters(&b).links_slow, 1);
    bench_close(&b);
}

/* Slow all the same, but nobody waits for it. */
static void what_computing_hides_is_not_slow(void **state) {
    (void)state;
    bench b;
    kvf_router_config c;
    bench_config(&c);
    open_three(&b, &c);
    for (int i = 0; i < 12; i++) ship_one(&b, c.slow_link_ns - MS, 0, false);
    assert_int_equal(bench_counters(&b).ejections, 0);
    bench_close(&b);
}

static void a_page_sent_again_counts_against_its_link(void **state) {
    (void)state;
    for (int started_first = 0; started_first < 2; started_first++) {
        bench b;
        kvf_router_config c;
        bench_config(&c);
        open_three(&b, &c);
        while (ship_one(&b, 6 * MS, 1, started_first) != SLOW) continue;
        assert_true(ejected(&b));
        assert_int_equal(bench_counters(&b).links_corrupt, 1);
        assert_int_equal(bench_counters(&b).retries, 0); /* the request itself went on */
        let_backoff_pass(&b, &c);
        while (ship_one(&b, 6 * MS, 1, started_first) != SLOW) continue;
        assert_int_equal(rt_pair_of(b.r, SLOW, D)->failures, 2); /* no word of the decode node has cleared the first */
        bench_close(&b);
    }
}

static void a_handoff_that_stalls_goes_another_way(void **state) {
    (void)state;
    bench b;
    kvf_router_config c;
    bench_config(&c);
    c.status_timeout_ns = 3600 * KVF_NS_PER_S;
    open_three(&b, &c);
    uint32_t p;
    kvf_work w = to_prefill(&b, KVF_ROUTER_ALWAYS, &p);
    bench_at(&b, b.now + 3 * c.transfer_stall_ns); /* computing may take its time */
    bench_token(&b, p, &w, 0, PROMPT, 7, KVF_END_NONE);
    bench_forget(&b);
    bench_at(&b, b.now + c.transfer_stall_ns - MS);
    assert_int_equal(bench_counters(&b).links_stalled, 0);
    bench_at(&b, b.now + MS);
    assert_int_equal(bench_counters(&b).links_stalled, 1);
    assert_int_equal(bench_count_sent(&b, p, KVF_R_CANCEL), 1);
    bench_action again = *bench_one(&b, KVF_R_RESERVE);
    assert_int_equal(again.a.node, D);
    assert_int_equal(again.m.reserve.tokens_count, PROMPT + 1);
    bench_granted(&b, D, &again.m, 0);
    assert_true(bench_one(&b, KVF_R_PREFILL)->a.node != p);
    assert_int_equal(rt_pair_of(b.r, p, D)->failures, 1);
    bench_close(&b);
}

static void a_handoff_that_ends_in_time_does_not_stall(void **state) {
    (void)state;
    bench b;
    kvf_router_config c;
    bench_config(&c);
    open_three(&b, &c);
    ship_one(&b, 6 * MS, 0, false);
    bench_at(&b, b.now + 2 * c.transfer_stall_ns);
    assert_int_equal(bench_counters(&b).links_stalled, 0);
    bench_close(&b);
}

static uint32_t further_attempts(const bench *b) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < b->count; i++)
        count += b->actions[i].a.kind == KVF_ROUTER_SEND && b->actions[i].m.kind == KVF_R_RESERVE &&
                 b->actions[i].m.reserve.attempt > 1;
    return count;
}

static void retries_beyond_the_budget_wait_their_turn(void **state) {
    (void)state;
    enum { COUNT = 12 };
    bench b;
    kvf_router_config c;
    bench_config(&c);
    c.retries_per_s = 2;
    c.retries_percent = 0;
    c.status_timeout_ns = c.reconnect_grace_ns = 3600 * KVF_NS_PER_S;
    open_three(&b, &c);
    kvf_work w[COUNT];
    uint32_t p[COUNT];
    for (int i = 0; i < COUNT; i++) w[i] = to_prefill(&b, KVF_ROUTER_AUTO, &p[i]);
    bench_forget(&b);
    for (int i = 0; i < COUNT; i++) bench_failed(&b, p[i], &w[i], KVF_STAGE_TRANSFER, true);
    bench_at(&b, b.now + 100 * MS);
    assert_int_equal(further_attempts(&b), 2);
    assert_int_equal(bench_counters(&b).retries_delayed, COUNT - 2);
    bench_at(&b, b.now + 2000 * MS);
    assert_in_range(further_attempts(&b), 5, 7);
    bench_at(&b, b.now + 10000 * MS);
    assert_int_equal(further_attempts(&b), COUNT);
    assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED), 0);
    bench_close(&b);
}

static void new_requests_bring_leave_for_retries(void **state) {
    (void)state;
    bench b;
    kvf_router_config c;
    bench_config(&c);
    c.retries_per_s = 1;
    c.retries_percent = 50;
    open_three(&b, &c);
    b.r->now = b.now;
    assert_int_equal(rt_retry_wait(b.r), 0);
    assert_true(rt_retry_wait(b.r) > 900 * MS);
    uint32_t p;
    for (int i = 0; i < 4; i++) to_prefill(&b, KVF_ROUTER_AUTO, &p); /* pays the debt and for one more */
    assert_int_equal(rt_retry_wait(b.r), 0);
    assert_true(rt_retry_wait(b.r) > 0);
    bench_close(&b);
}

/* A dead node takes many requests with it, once. */
static void requests_of_a_lost_node_need_no_leave(void **state) {
    (void)state;
    enum { COUNT = 6 };
    bench b;
    kvf_router_config c;
    bench_config(&c);
    c.retries_per_s = 1;
    c.retries_percent = 0;
    open_three(&b, &c);
    for (int i = 0; i < COUNT; i++) {
        bench_forget(&b);
        bench_submit(&b, PROMPT, 8, KVF_ROUTER_NEVER);
        bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
        bench_local(&b, D, &reserve.m);
    }
    bench_node(&b, 3, KVF_ROLE_DECODE);
    bench_forget(&b);
    kvf_router_remove_node(b.r, b.now, D);
    bench_drain(&b);
    bench_at(&b, b.now + 2 * c.backoff_ns);
    assert_int_equal(further_attempts(&b), COUNT);
    assert_int_equal(bench_counters(&b).retries_delayed, 0);
    bench_close(&b);
}

static void delays_are_spread_and_repeatable(void **state) {
    (void)state;
    kvf_time_ns until[3];
    for (int k = 0; k < 3; k++) {
        bench b;
        kvf_router_config c;
        bench_config(&c);
        c.epoch += k == 2;
        open_three(&b, &c);
        b.r->now = b.now;
        rt_pair_failed(b.r, SLOW, D, "a test");
        until[k] = rt_pair_of(b.r, SLOW, D)->until_ns - b.now;
        assert_in_range(until[k], c.backoff_ns * 3 / 4, c.backoff_ns * 5 / 4);
        bench_close(&b);
    }
    assert_int_equal(until[0], until[1]);
    assert_true(until[0] != until[2]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slow_links_are_ejected_and_come_back),
        cmocka_unit_test(what_computing_hides_is_not_slow),
        cmocka_unit_test(a_page_sent_again_counts_against_its_link),
        cmocka_unit_test(a_handoff_that_stalls_goes_another_way),
        cmocka_unit_test(a_handoff_that_ends_in_time_does_not_stall),
        cmocka_unit_test(retries_beyond_the_budget_wait_their_turn),
        cmocka_unit_test(new_requests_bring_leave_for_retries),
        cmocka_unit_test(requests_of_a_lost_node_need_no_leave),
        cmocka_unit_test(delays_are_spread_and_repeatable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
