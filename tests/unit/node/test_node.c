/* The node core, leg by leg: what a router may rely on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include "rig.h"

static rig R;
static uint32_t prompt[1024];

static int setup(void **state) {
    rig_init(&R, 128, 128);
    for (uint32_t i = 0; i < 1024; i++) prompt[i] = (i * 7 + 3) % RIG_VOCAB;
    return 0;
}
static int teardown(void **state) {
    rig_fini(&R);
    return 0;
}

static void expect_output(kvf_request_id id, uint32_t choice, const uint32_t *tokens, uint32_t count, uint32_t length) {
    rig_expect_output(&R, id, choice, tokens, count, length);
}

static void a_request_runs_whole_on_one_node(void **state) {
    kvf_work w = rig_work(1, prompt, 100, 20);
    w.ship_min = UINT32_MAX;
    rig_reserve(&R, &w);
    assert_int_equal(rig_count(&R, RIG_D, KVF_N_LOCAL), 1);
    expect_output(w.request, 0, prompt, 100, 20);
    rig_check_at_rest(&R);
}

static void pages_are_shipped_and_decoding_goes_on(void **state) {
    for (uint32_t length = 1; length <= 49; length++) {
        kvf_work w = rig_work(length, prompt, length, 5);
        w.salt.lo = length; /* nothing is shared */
        rig_ship(&R, &w);
        rig_entry *shipped = rig_last(&R, RIG_P, KVF_N_SHIPPED);
        assert_non_null(shipped);
        assert_int_equal(shipped->reason, KVF_OK);
        assert_int_equal(shipped->pages, (length + 15) / 16 * 2);
        expect_output(w.request, 0, prompt, length, 5);
        rig_check_at_rest(&R);
    }
    assert_int_equal(R.connects, 1);
    assert_int_equal(rig_count(&R, RIG_D, KVF_N_STARTED), 49);
}

/* Field case KV-01. */
static void a_cached_prefix_leaves_one_token_to_compute(void **state) {
    for (uint32_t length = 1; length <= 49; length++) {
        kvf_work w = rig_work(100 + length, prompt, length, 3);
        w.ship_min = UINT32_MAX;
        w.salt.lo = 1000 + length;
        rig_reserve(&R, &w);
        w.request.counter += 100;
        rig_reserve(&R, &w);
        assert_int_equal(rig_last(&R, RIG_D, KVF_N_LOCAL)->cached_tokens, (length - 1) / 16 * 16);
        expect_output(w.request, 0, prompt, length, 3);
    }
    rig_check_at_rest(&R);
}

static void only_missing_blocks_travel(void **state) {
    kvf_work w = rig_work(1, prompt, 100, 4);
    rig_ship(&R, &w);
    kvf_work again = rig_work(2, prompt, 120, 4);
    rig_ship(&R, &again);
    rig_entry *granted = rig_last(&R, RIG_D, KVF_N_GRANTED);
    assert_int_equal(granted->cached_tokens, 96);
    assert_int_equal(granted->missing_count, 2);
    assert_int_equal(granted->missing[0], 6);
    rig_entry *shipped = rig_last(&R, RIG_P, KVF_N_SHIPPED);
    assert_int_equal(shipped->pages, 2 * 2);
    assert_int_equal(shipped->cached_tokens, 96);
    expect_output(again.request, 0, prompt, 120, 4);
    rig_check_at_rest(&R);
}

static void short_suffixes_are_not_worth_shipping(void **state) {
    kvf_work w = rig_work(1, prompt, 100, 4);
    w.ship_min = 64;
    rig_ship(&R, &w);
    kvf_work again = rig_work(2, prompt, 120, 4);
    again.ship_min = 64; /* 24 tokens are not cached */
    rig_reserve(&R, &again);
    assert_int_equal(rig_count(&R, RIG_D, KVF_N_LOCAL), 1);
    expect_output(again.request, 0, prompt, 120, 4);
}

/* Field case KV-07. */
static void choices_share_all_but_the_partly_filled_block(void **state) {
    kvf_work w = rig_work(1, prompt, 20, 10);
    w.n = 3;
    w.ship_min = UINT32_MAX;
    rig_reserve(&R, &w);
    for (uint32_t c = 0; c < 3; c++) expect_output(w.request, c, prompt, 20, 10);
    assert_int_equal(R.copies, 2);
    rig_check_at_rest(&R);
    kvf_work shipped = rig_work(2, prompt + 1, 20, 10);
    shipped.n = 8;
    R.copies = 0;
    rig_ship(&R, &shipped);
    for (uint32_t c = 0; c < 8; c++) expect_output(shipped.request, c, prompt + 1, 20, 10);
    assert_int_equal(R.copies, 7);
    rig_check_at_rest(&R);
    kvf_work aligned = rig_work(3, prompt + 2, 32, 4);
    aligned.n = 4;
    R.copies = 0;
    rig_ship(&R, &aligned);
    for (uint32_t c = 0; c < 4; c++) expect_output(aligned.request, c, prompt + 2, 32, 4);
    assert_int_equal(R.copies, 0);
    rig_check_at_rest(&R);
}

/* Field case PD-09 (b): the first token is the last. */
static void a_request_over_at_its_first_token_ships_nothing_more(void **state) {
    kvf_work w = rig_work(1, prompt, 40, 1);
    rig_ship(&R, &w);
    expect_output(w.request, 0, prompt, 40, 1);
    assert_int_equal(rig_count(&R, RIG_D, KVF_N_STARTED), 0);
    rig_check_at_rest(&R);
}

static void reserve_is_idempotent_and_knows_attempts(void **state) {
    R.hold_steps = true;
    kvf_work w = rig_work(1, prompt, 40, 4);
    rig_reserve(&R, &w);
    rig_entry first = *rig_last(&R, RIG_D, KVF_N_GRANTED);
    rig_reserve(&R, &w);
    rig_entry second = *rig_last(&R, RIG_D, KVF_N_GRANTED);
    assert_int_equal(first.grant, second.grant);
    assert_memory_equal(first.secret, second.secret, 16);
    w.attempt = 2;
    rig_reserve(&R, &w);
    rig_entry third = *rig_last(&R, RIG_D, KVF_N_GRANTED);
    assert_true(third.grant != first.grant);
    w.attempt = 1;
    rig_reserve(&R, &w);
    assert_int_equal(rig_count(&R, RIG_D, KVF_N_STALE), 1);
    w.attempt = 2;
    R.hold_steps = false;
    rig_prefill(&R, &w, &third);
    expect_output(w.request, 0, prompt, 40, 4);
    rig_check_at_rest(&R);
}

static void an_old_grant_is_of_no_use_after_the_next_attempt(void **state) {
    kvf_work w = rig_work(1, prompt, 40, 4);
    rig_reserve(&R, &w);
    rig_entry first = *rig_last(&R, RIG_D, KVF_N_GRANTED);
    w.attempt = 2;
    rig_reserve(&R, &w);
    rig_entry second = *rig_last(&R, RIG_D, KVF_N_GRANTED);
    w.attempt = 1;
    rig_prefill(&R, &w, &first);
    rig_entry *shipped = rig_last(&R, RIG_P, KVF_N_SHIPPED);
    assert_non_null(shipped);
    assert_int_equal(shipped->reason, KVF_ERR_STALE);
    assert_int_equal(rig_count(&R, RIG_D, KVF_N_STARTED), 0);
    w.attempt = 2;
    rig_prefill(&R, &w, &second);
    expect_output(w.request, 0, prompt, 40, 4);
    rig_check_at_rest(&R);
}

static void a_started_request_answers_a_later_attempt(void **state) {
    kvf_work w = rig_work(1, prompt, 40, 100);
    rig_reserve(&R, &w);
    rig_entry granted = *rig_last(&R, RIG_D, KVF_N_GRANTED);
    rig_prefill(&R, &w, &granted);
    R.hold_steps = true;
    kvf_work later = rig_work(2, prompt + 5, 40, 100);
    rig_ship(&R, &later); /* not computed yet: steps are held */
    rig_run_step(&R, RIG_P);
    rig_pump(&R);
    assert_int_equal(rig_count(&R, RIG_D, KVF_N_STARTED), 2);
    later.attempt = 2;
    rig_reserve(&R, &later);
    rig_entry *e = rig_last(&R, RIG_D, KVF_N_ALREADY_STARTED);
    assert_non_null(e);
    assert_int_equal(e->attempt, 2);
    assert_int_equal(e->already_attempt, 1);
    assert_int_equal(e->next_position, 41);
    R.hold_steps = false;
    rig_run_step(&R, RIG_D);
    rig_pump(&R);
    expect_output(later.request, 0, prompt + 5, 40, 100);
    rig_check_at_rest(&R);
}

static void cancel_works_in_every_state_and_before_its_request(void **state) {
    kvf_work w = rig_work(1, prompt, 200, 50);
    rig_cancel(&R, RIG_D, w.request, 0); /* first of all: remembered */
    rig_reserve(&R, &w);
    assert_int_equal(rig_count(&R, RIG_D, KVF_N_GRANTED), 0);
    R.hold_steps = true;
    for (uint32_t steps = 0; steps < 12; steps++) {
        w.request.counter = 10 + steps;
        w.salt.lo = 500 + steps;
        rig_ship(&R, &w);
        for (uint32_t i = 0; i < steps; i++) {
            uint32_t node = R.step_pending[RIG_P] ? RIG_P : RIG_D;
            rig_run_step(&R, node);
            rig_pump(&R);
        }
        rig_cancel(&R, RIG_P, w.request, 0);
        rig_cancel(&R, RIG_D, w.request, 0);
        for (uint32_t node = 0; node < RIG_NODES; node++)
            if (R.step_pending[node]) rig_run_step(&R, node); /* blocks of a running step are given back after it */
        rig_pump(&R);
        rig_check_at_rest(&R);
    }
}

/* Field case KV-05. */
static void what_can_never_fit_is_refused_and_what_fits_later_waits(void **state) {
    rig_fini(&R);
    rig_init(&R, 50, 50);
    kvf_work w = rig_work(1, prompt, 900, 10);
    rig_reserve(&R, &w);
    assert_int_equal(rig_last(&R, RIG_D, KVF_N_REFUSED)->reason, KVF_ERR_NO_ROOM);
    w = rig_work(2, prompt, 700, 200);
    rig_reserve(&R, &w);
    assert_int_equal(rig_count(&R, RIG_D, KVF_N_REFUSED), 2);
    w.request.counter = 3;
    w.output_max_given = false; /* to the end of what the pool holds: 800 tokens */
    w.ship_min = UINT32_MAX;
    rig_reserve(&R, &w);
    expect_output(w.request, 0, prompt, 700, 100);
    rig_check_at_rest(&R);
    R.hold_steps = true;
    kvf_work a = rig_work(4, prompt, 450, 30), b = rig_work(5, prompt + 3, 450, 30);
    a.ship_min = b.ship_min = UINT32_MAX;
    rig_reserve(&R, &a);
    rig_reserve(&R, &b);
    assert_int_equal(rig_count(&R, RIG_D, KVF_N_QUEUED), 1);
    R.hold_steps = false;
    rig_run_step(&R, RIG_D);
    rig_pump(&R);
    expect_output(a.request, 0, prompt, 450, 30);
    expect_output(b.request, 0, prompt + 3, 450, 30);
    rig_check_at_rest(&R);
}

/* I7: more running sequences than the pool can carry to their end. */
static void a_full_pool_preempts_and_loses_nothing(void **state) {
    rig_fini(&R);
    rig_init(&R, 64, 24); /* 384 tokens */
    R.hold_steps = true;
    kvf_work w[4];
    for (uint32_t i = 0; i < 4; i++) {
        w[i] = rig_work(1 + i, prompt + i, 40, 200);
        w[i].ship_min = UINT32_MAX;
        w[i].output_max_given = false;
        rig_reserve(&R, &w[i]);
    }
    uint32_t preempted = 0, guard = 0;
    uint32_t known[4][1024], count[4] = {40, 40, 40, 40};
    for (uint32_t i = 0; i < 4; i++) memcpy(known[i], prompt + i, sizeof known[i] / 2);
    uint32_t seen = 0;
    while (guard++ < 5000) {
        if (R.step_pending[RIG_D]) rig_run_step(&R, RIG_D);
        rig_pump(&R);
        bool again = false;
        for (; seen < R.log_count; seen++) {
            rig_entry *e = &R.log[seen];
            uint32_t i = (uint32_t)e->request.counter - 1;
            if (e->kind == KVF_N_TOKENS) {
                if (e->position == count[i]) known[i][count[i]++] = e->token;
                assert_true(e->position < count[i]);
            } else if (e->kind == KVF_N_PREEMPTED) {
                preempted++;
                w[i].attempt++;
                w[i].tokens = known[i];
                w[i].tokens_count = count[i];
                assert_int_equal(e->next_position, count[i]);
                again = true;
                rig_reserve(&R, &w[i]);
            }
        }
        if (!again && !R.step_pending[RIG_D]) break;
    }
    assert_true(preempted > 0);
    assert_true(preempted < 200);
    for (uint32_t i = 0; i < 4; i++) expect_output(w[i].request, 0, prompt + i, 40, 200);
    rig_check_at_rest(&R);
}

static void a_lost_router_gives_everything_back_after_its_grace(void **state) {
    R.hold_steps = true;
    kvf_work w = rig_work(1, prompt, 40, 50);
    rig_ship(&R, &w);
    for (uint32_t i = 0; i < RIG_NODES; i++) kvf_node_on_session_down(R.node[i], R.now, 0);
    R.hold_steps = false;
    if (R.step_pending[RIG_P]) rig_run_step(&R, RIG_P);
    rig_pump(&R); /* a blip costs nothing: work goes on */
    rig_advance(&R, KVF_NS_PER_S / 2);
    kvf_rmsg m = {.kind = KVF_R_HELLO};
    kvf_live live = {.request = w.request, .attempt = 1, .index = 0, .next_position = 40};
    memcpy(m.hello.router, "r0", 3);
    m.hello.router_epoch = 7;
    m.hello.live = &live;
    m.hello.live_count = 1;
    rig_send(&R, RIG_P, &m);
    rig_send(&R, RIG_D, &m);
    expect_output(w.request, 0, prompt, 40, 50);
    w.request.counter = 2;
    R.hold_steps = true;
    rig_reserve(&R, &w);
    for (uint32_t i = 0; i < RIG_NODES; i++) kvf_node_on_session_down(R.node[i], R.now, 0);
    rig_advance(&R, KVF_NS_PER_S * 3);
    rig_check_at_rest(&R);
}

/* The router follows attempt 1, the node has the Reserve of attempt 2: that one goes, the words of the first do not. */
static void tokens_of_the_attempt_that_is_followed_stay(void **state) {
    R.auto_ack = false;
    kvf_work w = rig_work(1, prompt, 40, 5);
    rig_ship(&R, &w);
    R.hold_steps = true;
    kvf_work again = w;
    again.attempt = 2;
    rig_reserve(&R, &again);
    uint32_t granted = rig_count(&R, RIG_D, KVF_N_GRANTED);
    kvf_node_on_session_down(R.node[RIG_D], R.now, 0);
    R.log_count = 0; /* nothing has reached it */
    kvf_rmsg m = {.kind = KVF_R_HELLO};
    kvf_live live = {.request = w.request, .attempt = 1, .index = 0, .next_position = 40};
    memcpy(m.hello.router, "r0", 3);
    m.hello.router_epoch = 7;
    m.hello.live = &live;
    m.hello.live_count = 1;
    R.auto_ack = true;
    rig_send(&R, RIG_D, &m);
    assert_int_equal(granted, 2);
    assert_int_equal(rig_count(&R, RIG_D, KVF_N_FAILED), 0);
    expect_output(w.request, 0, prompt, 40, 5);
    kvf_rmsg ack = {.kind = KVF_R_ACK, .ack.number = 1};
    rig_send(&R, RIG_P, &ack);
    rig_check_at_rest(&R);
}

static void a_new_epoch_of_a_router_ends_the_old_ones_requests(void **state) {
    R.hold_steps = true;
    kvf_work w = rig_work(1, prompt, 40, 50);
    rig_reserve(&R, &w);
    kvf_rmsg m = {.kind = KVF_R_HELLO};
    memcpy(m.hello.router, "r0", 3);
    m.hello.router_epoch = 8;
    kvf_node_on_msg(R.node[RIG_D], R.now, 1, &m); /* on another connection */
    rig_pump(&R);
    rig_check_at_rest(&R);
}

static void a_deadline_is_kept_without_new_work(void **state) {
    kvf_work w = rig_work(1, prompt, 40, 50);
    w.time_left_ns = 100 * KVF_NS_PER_MS;
    rig_reserve(&R, &w);
    assert_true(kvf_node_deadline(R.node[RIG_D]) <= R.now + 100 * KVF_NS_PER_MS);
    rig_advance(&R, 200 * KVF_NS_PER_MS);
    rig_entry *e = rig_last(&R, RIG_D, KVF_N_FAILED);
    assert_non_null(e);
    assert_int_equal(e->reason, KVF_ERR_DEADLINE);
    assert_false(e->retryable);
    rig_check_at_rest(&R);
}

static void a_grant_expires_once_its_router_is_gone(void **state) {
    kvf_work w = rig_work(1, prompt, 40, 50);
    rig_reserve(&R, &w);
    for (uint32_t i = 0; i < 5; i++) rig_advance(&R, KVF_NS_PER_S / 2); /* the session renews */
    assert_int_equal(rig_count(&R, RIG_D, KVF_N_FAILED), 0);
    kvf_node_on_session_down(R.node[RIG_D], R.now, 0);
    rig_advance(&R, KVF_NS_PER_S * 2);
    rig_check_at_rest(&R);
}

static void a_link_that_dies_fails_the_hand_off_for_its_router(void **state) {
    R.hold_steps = true;
    kvf_work w = rig_work(1, prompt, 200, 50);
    rig_ship(&R, &w);
    rig_run_step(&R, RIG_P);
    rig_pump(&R);
    kvf_node_on_link_down(R.node[RIG_P], R.now, 1, "d0", KVF_ERR_PEER_LOST, "reset");
    kvf_node_on_link_down(R.node[RIG_D], R.now, 1, "p0", KVF_ERR_PEER_LOST, "reset");
    rig_pump(&R);
    if (R.step_pending[RIG_P]) rig_run_step(&R, RIG_P);
    rig_pump(&R);
    rig_entry *e = rig_last(&R, RIG_P, KVF_N_FAILED);
    assert_non_null(e);
    assert_true(e->retryable);
    R.hold_steps = false;
    w.attempt = 2; /* verified pages stayed: fewer are missing */
    rig_reserve(&R, &w);
    rig_entry granted = *rig_last(&R, RIG_D, KVF_N_GRANTED);
    assert_true(granted.missing_count < 13);
    rig_prefill(&R, &w, &granted);
    expect_output(w.request, 0, prompt, 200, 50);
    rig_check_at_rest(&R);
}

static void cut(void) {
    kvf_link_id link = R.links;
    kvf_node_on_link_down(R.node[RIG_P], R.now, link, "d0", KVF_ERR_PEER_LOST, "reset");
    kvf_node_on_link_down(R.node[RIG_D], R.now, link, "p0", KVF_ERR_PEER_LOST, "reset");
    rig_pump(&R);
}

static void relinking(void) {
    rig_fini(&R);
    rig_init_with(&R, 128, 128, KVF_NS_PER_S / 2);
}

static void a_link_that_blips_costs_nothing(void **state) {
    relinking();
    R.hold_steps = true;
    kvf_work w = rig_work(1, prompt, 200, 20);
    rig_ship(&R, &w);
    for (uint32_t i = 0; R.step_pending[RIG_P]; i++) {
        R.hold_pages = i == 1; /* what is on its way when the link breaks is lost, and sent again */
        rig_run_step(&R, RIG_P);
        rig_pump(&R);
        if (i < 2) cut();
        R.hold_pages = false;
    }
    R.hold_steps = false;
    if (R.step_pending[RIG_D]) rig_run_step(&R, RIG_D);
    rig_pump(&R);
    assert_int_equal(R.connects, 3);
    assert_int_equal(rig_count(&R, RIG_P, KVF_N_FAILED) + rig_count(&R, RIG_D, KVF_N_FAILED), 0);
    assert_int_equal(R.computed_tokens[RIG_P], 200); /* nothing twice */
    assert_int_equal(rig_last(&R, RIG_P, KVF_N_SHIPPED)->reason, KVF_OK);
    expect_output(w.request, 0, prompt, 200, 20);
    rig_check_at_rest(&R);
}

static void a_link_that_stays_away_ends_its_hand_off_in_time(void **state) {
    relinking();
    R.hold_steps = true;
    kvf_work w = rig_work(1, prompt, 200, 20), late = rig_work(2, prompt + 300, 40, 5);
    rig_ship(&R, &w);
    rig_run_step(&R, RIG_P);
    rig_pump(&R);
    R.no_calls = true;
    cut();
    rig_advance(&R, KVF_NS_PER_S / 4);
    assert_int_equal(rig_count(&R, RIG_P, KVF_N_FAILED), 0);
    rig_ship(&R, &late); /* it never had a link: called once more, then its router finds it another way */
    for (uint32_t i = 0; i < 10; i++) rig_advance(&R, KVF_NS_PER_S / 100);
    assert_int_equal(rig_count(&R, RIG_P, KVF_N_FAILED), 1);
    assert_int_equal(rig_last(&R, RIG_P, KVF_N_FAILED)->request.counter, 2);
    for (uint32_t i = 0; i < 16; i++) rig_advance(&R, KVF_NS_PER_S / 100);
    if (R.step_pending[RIG_P]) rig_run_step(&R, RIG_P);
    rig_pump(&R);
    assert_int_equal(rig_count(&R, RIG_P, KVF_N_FAILED), 2);
    assert_int_equal(rig_last(&R, RIG_P, KVF_N_FAILED)->reason, KVF_ERR_PEER_LOST);
    assert_true(R.calls_in_vain >= 3 && R.calls_in_vain <= 20);
    R.no_calls = R.hold_steps = false;
    for (uint32_t i = 0; i < RIG_NODES; i++)
        if (R.step_pending[i]) rig_run_step(&R, i);
    rig_cancel(&R, RIG_D, w.request, 0);
    rig_cancel(&R, RIG_D, late.request, 0);
    rig_advance(&R, KVF_NS_PER_S);
    assert_int_equal(R.connects, 1); /* nobody is waiting: nobody calls */
    rig_check_at_rest(&R);
}

/* Soak and e2e-blips: a cut that met a link while it was called cost an attempt. */
static void a_call_that_is_cut_is_made_once_more(void **state) {
    relinking();
    R.no_calls = true;
    kvf_work w = rig_work(1, prompt, 200, 20);
    rig_ship(&R, &w);
    assert_int_equal(R.calls_in_vain, 1);
    R.no_calls = false;
    rig_advance(&R, KVF_NS_PER_S / 10);
    assert_int_equal(R.connects, 1);
    assert_int_equal(rig_count(&R, RIG_P, KVF_N_FAILED), 0);
    expect_output(w.request, 0, prompt, 200, 20);
    rig_check_at_rest(&R);
}

static void another_process_at_the_address_ends_it_at_once(void **state) {
    relinking();
    R.hold_steps = true;
    kvf_work w = rig_work(1, prompt, 200, 20);
    rig_ship(&R, &w);
    R.no_calls = true;
    R.vain_reason = KVF_ERR_STALE;
    cut();
    assert_int_equal(rig_count(&R, RIG_P, KVF_N_FAILED), 1);
    assert_true(rig_last(&R, RIG_P, KVF_N_FAILED)->retryable);
}

static void a_link_that_breaks_again_and_again_is_no_use(void **state) {
    relinking();
    R.hold_steps = true;
    kvf_work w = rig_work(1, prompt, 200, 20);
    rig_ship(&R, &w);
    for (uint32_t i = 0; i < 4; i++) cut();
    assert_int_equal(rig_count(&R, RIG_P, KVF_N_FAILED), 0);
    cut();
    assert_int_equal(rig_count(&R, RIG_P, KVF_N_FAILED), 1);
}

/* Found by the Spin model: every page of the first attempt had landed, so nothing is missing for the second. A Reserve
 * that is said again then lists what the grant lists, not everything that is not cached. */
static void an_attempt_with_nothing_missing_only_makes_the_first_token(void **state) {
    R.hold_steps = true;
    kvf_work w = rig_work(1, prompt, 40, 10);
    rig_ship(&R, &w);
    kvf_node_on_layer(R.node[RIG_P], R.now, R.step[RIG_P].id, 1);
    rig_pump(&R);
    kvf_node_on_link_down(R.node[RIG_P], R.now, 1, "d0", KVF_ERR_PEER_LOST, "reset");
    kvf_node_on_link_down(R.node[RIG_D], R.now, 1, "p0", KVF_ERR_PEER_LOST, "reset");
    rig_pump(&R);
    rig_run_step(&R, RIG_P);
    rig_pump(&R);
    R.hold_steps = false;
    w.attempt = 2;
    rig_reserve(&R, &w);
    rig_reserve(&R, &w);
    rig_entry granted = *rig_last(&R, RIG_D, KVF_N_GRANTED);
    assert_int_equal(granted.missing_count, 0);
    rig_prefill(&R, &w, &granted);
    expect_output(w.request, 0, prompt, 40, 10);
    assert_int_equal(rig_last(&R, RIG_P, KVF_N_SHIPPED)->reason, KVF_OK);
    rig_check_at_rest(&R);
}

/* Who is in the engine, should the process die now. */
static void the_router_knows_what_the_engine_is_at(void **state) {
    R.hold_steps = true;
    kvf_work w = rig_work(1, prompt, 100, 40), small = rig_work(2, prompt + 200, 20, 4);
    w.ship_min = small.ship_min = UINT32_MAX;
    rig_reserve(&R, &w);
    rig_reserve(&R, &small);
    rig_entry *e = rig_last(&R, RIG_D, KVF_N_PREFILLING);
    assert_int_equal(rig_count(&R, RIG_D, KVF_N_PREFILLING), 1);
    assert_int_equal(e->items_count, 1);
    assert_int_equal(e->items[0].request.counter, 1);
    assert_int_equal(e->items[0].attempt, 1);
    assert_int_equal(e->items[0].position, 0);
    assert_int_equal(e->items[0].count, 64);
    rig_run_step(&R, RIG_D);
    rig_pump(&R);
    e = rig_last(&R, RIG_D, KVF_N_PREFILLING);
    assert_int_equal(e->items_count, 2);
    for (uint32_t i = 0; i < 2; i++) assert_int_equal(e->items[i].position, e->items[i].request.counter == 1 ? 64 : 0);
    /* A session that comes back hears it again, though nothing has changed. */
    kvf_live live[] = {{w.request, 1, 0, 100}, {small.request, 1, 0, 20}};
    kvf_rmsg m = {.kind = KVF_R_HELLO, .hello = {.router_epoch = 7, .live = live, .live_count = 2}};
    memcpy(m.hello.router, "r0", 3);
    kvf_node_on_session_down(R.node[RIG_D], R.now, 0);
    rig_send(&R, RIG_D, &m);
    assert_int_equal(rig_count(&R, RIG_D, KVF_N_PREFILLING), 3);
    assert_int_equal(rig_last(&R, RIG_D, KVF_N_PREFILLING)->items_count, 2);
    R.hold_steps = false;
    rig_run_step(&R, RIG_D);
    rig_pump(&R);
    assert_int_equal(rig_last(&R, RIG_D, KVF_N_PREFILLING)->items_count, 0);
    uint32_t said = rig_count(&R, RIG_D, KVF_N_PREFILLING);
    assert_true(said <= 5 && R.steps > 40); /* none for steps that only decode */
    expect_output(w.request, 0, prompt, 100, 40);
    kvf_work shipped = rig_work(3, prompt + 300, 100, 4);
    rig_ship(&R, &shipped);
    assert_int_equal(rig_count(&R, RIG_P, KVF_N_PREFILLING), 3); /* two chunks, and none */
    assert_int_equal(rig_count(&R, RIG_D, KVF_N_PREFILLING), said);
}

/* Its last chance: no innocent shares its steps, and they are small. Others get every second step. */
static void a_suspect_runs_alone(void **state) {
    R.hold_steps = true;
    kvf_work other = rig_work(1, prompt, 30, 40), w = rig_work(2, prompt + 200, 40, 3);
    other.ship_min = w.ship_min = UINT32_MAX;
    w.alone = true;
    rig_reserve(&R, &other);
    rig_reserve(&R, &w);
    uint32_t alone = 0, suspect_tokens = 0, since = 0;
    for (uint32_t steps = 0; R.step_pending[RIG_D] && steps < 100; steps++) {
        const kvf_step *s = &R.step[RIG_D];
        bool has = false;
        for (uint32_t i = 0; i < s->runs_count; i++) has |= s->runs[i].tokens[0] == prompt[200];
        if (has && suspect_tokens < 40) {
            assert_int_equal(s->runs_count, 1);
            assert_true(s->runs[0].count <= KVF_KV_BLOCK_TOKENS);
            suspect_tokens += s->runs[0].count;
            alone++;
            assert_true(since <= 1);
            since = 0;
        } else {
            since++;
        }
        rig_run_step(&R, RIG_D);
        rig_pump(&R);
    }
    assert_int_equal(alone, 3);
    expect_output(w.request, 0, prompt + 200, 40, 3);
    expect_output(other.request, 0, prompt, 30, 40);
    rig_check_at_rest(&R);
}

/* The prompt came from elsewhere: its first decode steps are its own, choice by choice. */
static void a_suspect_decodes_its_first_token_alone(void **state) {
    kvf_work other = rig_work(1, prompt, 30, 40), w = rig_work(2, prompt + 200, 40, 5);
    other.ship_min = UINT32_MAX;
    w.alone = true;
    w.n = 3;
    R.hold_steps = true;
    rig_reserve(&R, &other);
    rig_run_step(&R, RIG_D);
    rig_ship(&R, &w);
    while (R.step_pending[RIG_P]) {
        rig_run_step(&R, RIG_P);
        rig_pump(&R);
    }
    uint32_t mixed = 0;
    bool met = false;
    while (R.step_pending[RIG_D]) {
        const kvf_step *s = &R.step[RIG_D];
        uint32_t ours = 0;
        for (uint32_t i = 0; i < s->runs_count; i++) ours += s->runs[i].tokens[0] == prompt[200];
        if (ours && !met) {
            assert_int_equal(ours, 3);
            assert_int_equal(s->runs_count, 3);
            met = true;
        }
        mixed += ours && ours < s->runs_count;
        rig_run_step(&R, RIG_D);
        rig_pump(&R);
    }
    assert_true(met && mixed > 0);
    for (uint32_t c = 0; c < 3; c++) expect_output(w.request, c, prompt + 200, 40, 5);
    rig_check_at_rest(&R);
}

static void bad_work_is_refused_by_field(void **state) {
    kvf_work w = rig_work(1, prompt, 1000, 25);
    rig_reserve(&R, &w);
    assert_string_equal(rig_last(&R, RIG_D, KVF_N_REFUSED)->field, "output_max");
    uint32_t bad[3] = {1, RIG_VOCAB, 2};
    w = rig_work(2, bad, 3, 5);
    rig_reserve(&R, &w);
    assert_string_equal(rig_last(&R, RIG_D, KVF_N_REFUSED)->field, "tokens");
    w = rig_work(3, prompt, 1000, 24); /* exactly the context */
    w.ship_min = UINT32_MAX;
    rig_reserve(&R, &w);
    expect_output(w.request, 0, prompt, 1000, 24);
}

static void draining_refuses_new_work_and_hands_over_at_its_deadline(void **state) {
    R.hold_steps = true;
    kvf_work w = rig_work(1, prompt, 40, 500);
    w.ship_min = UINT32_MAX;
    rig_reserve(&R, &w);
    rig_run_step(&R, RIG_D);
    rig_pump(&R);
    kvf_node_drain(R.node[RIG_D], R.now, KVF_NS_PER_S);
    kvf_work late = rig_work(2, prompt, 40, 5);
    rig_reserve(&R, &late);
    assert_int_equal(rig_last(&R, RIG_D, KVF_N_REFUSED)->reason, KVF_AGAIN);
    rig_advance(&R, 2 * KVF_NS_PER_S);
    assert_int_equal(rig_last(&R, RIG_D, KVF_N_PREEMPTED)->next_position, 41);
    if (R.step_pending[RIG_D]) rig_run_step(&R, RIG_D);
    rig_pump(&R);
    rig_check_at_rest(&R);
}

/* Field case PD-04: equal counters of two routers are two requests. */
static void ids_of_two_routers_do_not_meet(void **state) {
    kvf_rmsg m = {.kind = KVF_R_HELLO};
    memcpy(m.hello.router, "r1", 3);
    m.hello.router_epoch = 9;
    kvf_node_on_msg(R.node[RIG_D], R.now, 1, &m);
    rig_pump(&R);
    R.hold_steps = true;
    kvf_work a = rig_work(1, prompt, 40, 5), b = a;
    a.ship_min = b.ship_min = UINT32_MAX;
    b.request.router_epoch = 9;
    rig_reserve(&R, &a);
    kvf_rmsg rb = {.kind = KVF_R_RESERVE, .reserve = b};
    kvf_node_on_msg(R.node[RIG_D], R.now, 1, &rb);
    rig_pump(&R);
    rig_cancel(&R, RIG_D, a.request, 0);
    R.hold_steps = false;
    rig_run_step(&R, RIG_D);
    rig_pump(&R);
    uint32_t out[64];
    kvf_end end;
    assert_int_equal(rig_output(&R, a.request, 0, out, &end), 0);
    expect_output(b.request, 0, prompt, 40, 5);
}

static void operators_get_answers(void **state) {
    kvf_rmsg m = {.kind = KVF_R_AUDIT, .audit.query = 5};
    rig_send(&R, RIG_D, &m);
    assert_true(rig_last(&R, RIG_D, KVF_N_AUDIT)->clean);
    assert_true(rig_last(&R, RIG_D, KVF_N_AUDIT)->at_rest);
    m = (kvf_rmsg){.kind = KVF_R_BLOCKS, .blocks.query = 6};
    rig_send(&R, RIG_D, &m);
    assert_non_null(rig_last(&R, RIG_D, KVF_N_BLOCKS));
    m = (kvf_rmsg){.kind = KVF_R_FLUSH, .flush.query = 7};
    rig_send(&R, RIG_D, &m);
    assert_non_null(rig_last(&R, RIG_D, KVF_N_FLUSHED));
}

static uint32_t pages_touched(uint32_t node) {
    const uint8_t *at = R.memory[node];
    size_t bytes = kvf_node_size(&R.config[node]), page = 4096, left;
    uint32_t touched = 0;
    for (size_t i = 0; i < bytes; i += page) {
        for (left = KVF_MIN(page, bytes - i); left > 0 && at[i + left - 1] == 0; left--) continue;
        touched += left > 0;
    }
    return touched;
}

/* Rings that are empty begin again: a node that has been up for long holds no more memory than a fresh one. */
static void time_alone_takes_no_memory(void **state) {
    uint32_t first = 0;
    for (uint32_t round = 0; round < 400; round++) {
        R.log_count = 0;
        rig_advance(&R, KVF_NS_PER_S);
        if (round == 20) first = pages_touched(RIG_D);
    }
    assert_true(first > 0);
    assert_int_equal(pages_touched(RIG_D), first);
    for (uint32_t round = 0; round < 100; round++) {
        R.log_count = 0;
        kvf_work w = rig_work(100 + round, prompt, 40, 20);
        w.ship_min = UINT32_MAX;
        rig_reserve(&R, &w);
        rig_advance(&R, KVF_NS_PER_S);
        if (round == 40) first = pages_touched(RIG_D);
    }
    assert_int_equal(pages_touched(RIG_D), first);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        T(a_request_runs_whole_on_one_node),
        T(pages_are_shipped_and_decoding_goes_on),
        T(a_cached_prefix_leaves_one_token_to_compute),
        T(only_missing_blocks_travel),
        T(short_suffixes_are_not_worth_shipping),
        T(choices_share_all_but_the_partly_filled_block),
        T(a_request_over_at_its_first_token_ships_nothing_more),
        T(reserve_is_idempotent_and_knows_attempts),
        T(an_old_grant_is_of_no_use_after_the_next_attempt),
        T(a_started_request_answers_a_later_attempt),
        T(cancel_works_in_every_state_and_before_its_request),
        T(what_can_never_fit_is_refused_and_what_fits_later_waits),
        T(a_full_pool_preempts_and_loses_nothing),
        T(a_lost_router_gives_everything_back_after_its_grace),
        T(tokens_of_the_attempt_that_is_followed_stay),
        T(a_new_epoch_of_a_router_ends_the_old_ones_requests),
        T(a_deadline_is_kept_without_new_work),
        T(a_grant_expires_once_its_router_is_gone),
        T(a_link_that_dies_fails_the_hand_off_for_its_router),
        T(an_attempt_with_nothing_missing_only_makes_the_first_token),
        T(a_link_that_blips_costs_nothing),
        T(a_call_that_is_cut_is_made_once_more),
        T(a_link_that_stays_away_ends_its_hand_off_in_time),
        T(another_process_at_the_address_ends_it_at_once),
        T(a_link_that_breaks_again_and_again_is_no_use),
        T(the_router_knows_what_the_engine_is_at),
        T(a_suspect_runs_alone),
        T(a_suspect_decodes_its_first_token_alone),
        T(bad_work_is_refused_by_field),
        T(draining_refuses_new_work_and_hands_over_at_its_deadline),
        T(ids_of_two_routers_do_not_meet),
        T(operators_get_answers),
        T(time_alone_takes_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
