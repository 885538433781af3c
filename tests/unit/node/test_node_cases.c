/* Field cases of nodes under pressure and beside dead peers: a prefill and a decode node, a test that plays the router.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "rig.h"

#define MS KVF_NS_PER_MS
static rig R;
static uint32_t prompt[1024];

static void open_rig(uint32_t blocks_p, uint32_t blocks_d, kvf_time_ns relink_ttl_ns) {
    rig_init_with(&R, blocks_p, blocks_d, relink_ttl_ns);
    for (uint32_t i = 0; i < 1024; i++) prompt[i] = (i * 7 + 3) % RIG_VOCAB;
}

/* ---- PD-07 ---- */

enum { REQUESTS = 64, PROMPT = 300, OUTPUT = 20, WINDOW = 8 }; /* 320 tokens: 20 blocks */

typedef enum { OUTSIDE, ASKED, DONE } place;

typedef struct {
    kvf_work w[REQUESTS];
    place place[REQUESTS];
    kvf_time_ns again_ns[REQUESTS];
    uint32_t refused, done, asked, seen;
    kvf_time_ns progress_ns; /* when a token was last made or shipped */
} crowd;

static void heard(crowd *c) {
    for (; c->seen < R.log_count; c->seen++) {
        rig_entry e = R.log[c->seen];
        uint32_t i = (uint32_t)e.request.counter - 1;
        switch (e.kind) {
        case KVF_N_GRANTED: rig_prefill(&R, &c->w[i], &e); break;
        case KVF_N_REFUSED:
            assert_int_equal(e.node, RIG_D); /* the prefill node is large */
            assert_int_equal(e.reason, KVF_AGAIN);
            assert_true(e.retry_after_ns > 0);
            c->again_ns[i] = R.now + e.retry_after_ns;
            c->place[i] = OUTSIDE;
            c->asked--;
            c->refused++;
            break;
        case KVF_N_TOKENS:
            c->progress_ns = R.now;
            if (e.end == KVF_END_NONE) break;
            assert_int_equal(c->place[i], ASKED);
            c->place[i] = DONE;
            c->asked--;
            c->done++;
            break;
        /* Nobody's timer runs while a request only waits, nobody is thrown out, nobody computes a prompt for itself. */
        case KVF_N_FAILED:
        case KVF_N_PREEMPTED:
        case KVF_N_LOCAL: fail_msg("request %u: message %d: %s", i, e.kind, e.text); break;
        default: break;
        }
    }
}

static void ask(crowd *c, uint32_t i) {
    c->place[i] = ASKED;
    c->asked++;
    rig_reserve(&R, &c->w[i]);
    heard(c);
}

/* A decode pool for two of 64 requests, a prefill node three times as fast: what does not fit waits in the decode
 * node's queue or is refused with a time to come back, longer than any lease lasts. */
static void pd07_a_crowd_before_a_small_pool_all_finish(void **state) {
    (void)state;
    static crowd c;
    open_rig(400, 40, 0);
    R.hold_steps = true;
    c = (crowd){.progress_ns = R.now};
    for (uint32_t i = 0; i < REQUESTS; i++) {
        c.w[i] = rig_work(1 + i, prompt + i, PROMPT, OUTPUT);
        c.w[i].salt.lo = 1 + i;
        ask(&c, i);
    }
    assert_int_equal(c.refused, REQUESTS - WINDOW - 2); /* two at work, eight in the queue, the others at the door */
    for (uint32_t step = 0; c.done < REQUESTS; step++) {
        R.now += 20 * MS;
        for (uint32_t node = 0; node < RIG_NODES; node++) kvf_node_on_time(R.node[node], R.now);
        rig_pump(&R);
        if (R.step_pending[RIG_P]) rig_run_step(&R, RIG_P);
        if (step % 3 == 0 && R.step_pending[RIG_D]) rig_run_step(&R, RIG_D);
        rig_pump(&R);
        heard(&c);
        assert_true(R.now - c.progress_ns <= KVF_NS_PER_S);
        for (uint32_t i = 0; i < REQUESTS && c.asked < WINDOW; i++)
            if (c.place[i] == OUTSIDE && c.again_ns[i] <= R.now) ask(&c, i);
    }
    for (uint32_t i = 0; i < REQUESTS; i++) rig_expect_output(&R, c.w[i].request, 0, c.w[i].tokens, PROMPT, OUTPUT);
    assert_int_equal(R.computed_tokens[RIG_P], REQUESTS * PROMPT);
    assert_int_equal(R.computed_tokens[RIG_D], REQUESTS * (OUTPUT - 1)); /* no prompt a second time */
    rig_check_at_rest(&R);
    rig_fini(&R);
}

/* ---- KV-06 ---- */

enum { STREAMS = 2, STREAM_PROMPT = 300, STREAM_OUTPUT = 200, STREAM_BLOCKS = 32 };

typedef struct {
    kvf_work w[STREAMS];
    uint32_t known[STREAMS][1024], count[STREAMS];
    uint32_t preempted, seen;
    bool again;
} streams;

/* Tokens come by position, each once; who is preempted is asked for again with what it has. */
static void follow(streams *s, uint32_t base, bool ship) {
    s->again = false;
    for (; s->seen < R.log_count; s->seen++) {
        rig_entry e = R.log[s->seen];
        uint32_t i = (uint32_t)e.request.counter - base;
        if (e.kind == KVF_N_TOKENS) {
            if (e.repeated) continue; /* Started says the prefill node's token again, and says so */
            assert_int_equal(e.position, s->count[i]);
            s->known[i][s->count[i]++] = e.token;
        } else if (e.kind == KVF_N_PREEMPTED) {
            s->preempted++;
            s->w[i].attempt++;
            s->w[i].tokens_count = s->count[i];
            assert_int_equal(e.next_position, s->count[i]);
            s->again = true;
            rig_reserve(&R, &s->w[i]);
        } else if (e.kind == KVF_N_GRANTED) {
            assert_true(ship);
            s->again = true;
            rig_prefill(&R, &s->w[i], &e);
        } else {
            assert_int_not_equal(e.kind, KVF_N_FAILED);
        }
    }
}

/* Two streams that only together outgrow the pool, some times one after the other: as if each had been alone. */
static void kv06_two_streams_in_a_pool_for_one_and_a_half(void **state) {
    (void)state;
    static streams s;
    uint32_t preempted = 0;
    open_rig(200, STREAM_BLOCKS * 3 / 2, 0);
    R.hold_steps = true;
    for (uint32_t round = 0; round < 4; round++) {
        bool ship = round % 2;
        uint32_t base = 1 + round * STREAMS;
        s = (streams){.seen = R.log_count};
        for (uint32_t i = 0; i < STREAMS; i++) {
            memcpy(s.known[i], prompt + base + i, sizeof *prompt * STREAM_PROMPT);
            s.count[i] = STREAM_PROMPT;
            s.w[i] = rig_work(base + i, s.known[i], STREAM_PROMPT, STREAM_OUTPUT);
            s.w[i].salt.lo = base + i;
            s.w[i].output_max_given = false;
            s.w[i].ship_min = ship ? 0 : UINT32_MAX;
            rig_reserve(&R, &s.w[i]);
        }
        uint32_t steps = 0;
        do {
            assert_true(++steps < 5000);
            for (uint32_t node = 0; node < RIG_NODES; node++)
                if (R.step_pending[node]) rig_run_step(&R, node);
            rig_pump(&R);
            follow(&s, base, ship);
        } while (s.again || R.step_pending[RIG_P] || R.step_pending[RIG_D]);
        print_message("round %u: %u preemptions\n", round, s.preempted);
        preempted += s.preempted;
        for (uint32_t i = 0; i < STREAMS; i++) {
            assert_int_equal(s.count[i], STREAM_PROMPT + STREAM_OUTPUT);
            rig_expect_output(&R, s.w[i].request, 0, prompt + base + i, STREAM_PROMPT, STREAM_OUTPUT);
        }
        rig_check_at_rest(&R);
    }
    assert_true(preempted >= 3);
    kvf_node_stats stats;
    kvf_node_get_stats(R.node[RIG_D], &stats);
    assert_int_equal(stats.preemptions, preempted);
    rig_fini(&R);
}

/* ---- what a dead peer leaves behind (PD-01) ---- */

static void expect_nothing_held(uint32_t node) {
    kvf_kv_counts kv;
    kvf_rx_counts rx;
    kvf_node_get_counts(R.node[node], &kv, &rx);
    assert_int_equal(kv.pinned, 0);
    assert_int_equal(kv.in_use, 0);
    assert_int_equal(kv.booked, 0);
    assert_int_equal(kv.filling, 0);
    assert_true(kvf_node_idle(R.node[node]));
}

/* At each step of the hand-off one side dies: its link breaks, the router tells the other side, and time does not move:
 * no lease, hold or relink time has to end first. */
static void pd01_a_cancel_frees_what_a_dead_peer_held_at_once(void **state) {
    (void)state;
    for (uint32_t relink = 0; relink < 2; relink++) {
        open_rig(128, 128, relink ? KVF_NS_PER_S / 2 : 0);
        R.hold_steps = true;
        for (uint32_t steps = 0; steps < 8; steps++) {
            uint32_t dead = steps % 2 ? RIG_P : RIG_D, left = 1 - dead;
            kvf_work w = rig_work(1 + steps, prompt + steps, 200, 20);
            w.salt.lo = 1 + steps;
            R.hold_pages = steps >= 4; /* some are lost on their way, too */
            rig_ship(&R, &w);
            for (uint32_t i = 0; i < steps / 2 && R.step_pending[RIG_P]; i++) {
                rig_run_step(&R, RIG_P);
                rig_pump(&R);
            }
            kvf_kv_counts kv;
            kvf_rx_counts rx;
            kvf_node_get_counts(R.node[left], &kv, &rx);
            assert_true(kv.pinned + kv.in_use + kv.booked + kv.filling > 0);
            R.no_calls = true;
            kvf_node_on_link_down(
                R.node[left], R.now, R.links, left == RIG_P ? "d0" : "p0", KVF_ERR_PEER_LOST, "reset");
            rig_pump(&R);
            rig_cancel(&R, left, w.request, 0);
            if (R.step_pending[left]) rig_run_step(&R, left); /* a running step ends first */
            rig_pump(&R);
            expect_nothing_held(left);
            R.no_calls = R.hold_pages = false; /* the dead one: as if it began anew */
            kvf_node_on_link_down(
                R.node[dead], R.now, R.links, dead == RIG_P ? "d0" : "p0", KVF_ERR_PEER_LOST, "reset");
            rig_cancel(&R, dead, w.request, 0);
            if (R.step_pending[dead]) rig_run_step(&R, dead);
            rig_pump(&R);
            rig_check_at_rest(&R);
        }
        rig_fini(&R);
    }
}

/* ---- a Reserve that comes twice ---- */

/* The second copy of it comes when all is over: nobody would ever give that room back (found by the model). */
static void a_reserve_after_its_end_is_dropped(void **state) {
    (void)state;
    open_rig(64, 64, 0);
    for (int local = 0; local <= 1; local++) {
        kvf_work w = rig_work(1 + (uint64_t)local, prompt, 100, 5);
        if (local) w.ship_min = UINT32_MAX;
        if (local)
            rig_reserve(&R, &w);
        else
            rig_ship(&R, &w);
        rig_expect_output(&R, w.request, 0, prompt, 100, 5);
        uint32_t before = R.log_count;
        rig_reserve(&R, &w);
        assert_int_equal(R.log_count, before);
        rig_check_at_rest(&R);
    }
    rig_fini(&R);
}

/* A Prefill that is said again at a Welcome crosses the word that its hand-off has failed (found by the simulator). */
static void a_prefill_that_has_failed_fails_again(void **state) {
    (void)state;
    open_rig(64, 64, 0);
    R.hold_steps = true;
    kvf_work w = rig_work(1, prompt, 100, 5);
    rig_ship(&R, &w);
    rig_entry granted = *rig_last(&R, RIG_D, KVF_N_GRANTED);
    R.no_calls = true;
    kvf_node_on_link_down(R.node[RIG_P], R.now, R.links, "d0", KVF_ERR_PEER_LOST, "reset");
    rig_pump(&R);
    if (R.step_pending[RIG_P]) rig_run_step(&R, RIG_P);
    rig_pump(&R);
    assert_int_equal(rig_count(&R, RIG_P, KVF_N_FAILED), 1);
    R.no_calls = false;
    rig_prefill(&R, &w, &granted);
    assert_int_equal(rig_count(&R, RIG_P, KVF_N_FAILED), 2);
    expect_nothing_held(RIG_P);
    rig_cancel(&R, RIG_D, w.request, 0);
    rig_check_at_rest(&R);
    rig_fini(&R);
}

/* ---- prompt logprobs ---- */

static void come_back(const kvf_work *w, uint32_t node) {
    kvf_rmsg m = {.kind = KVF_R_HELLO};
    kvf_live live = {.request = w->request, .attempt = 1, .next_position = 1};
    memcpy(m.hello.router, "r0", 3);
    m.hello.router_epoch = 7;
    m.hello.live = &live;
    m.hello.live_count = 1;
    rig_send(&R, node, &m);
}

/* The positions that were said, in order and without a gap, from log entry `from` on; none after a token. */
static uint32_t said(uint32_t from, uint32_t *first) {
    uint32_t next = 0;
    bool token = false;
    for (uint32_t i = from; i < R.log_count; i++) {
        const rig_entry *e = &R.log[i];
        token |= e->kind == KVF_N_TOKENS;
        if (e->kind != KVF_N_PROMPT_LOGPROBS) continue;
        assert_false(token);
        if (next == 0)
            *first = e->position;
        else
            assert_int_equal(e->position, next);
        next = e->position + e->count;
    }
    return next;
}

/* They are kept until the router has them, and said again when its session comes back, whoever computed them. A
 * hand-off waits for that with its commit. */
static void prompt_logprobs_outlive_their_session(void **state) {
    (void)state;
    for (int local = 0; local <= 1; local++) {
        open_rig(64, 64, 0);
        R.hold_steps = true;
        uint32_t node = local ? RIG_D : RIG_P, first = 0;
        kvf_work w = rig_work(1, prompt, 100, 5);
        w.prompt_logprobs = 1;
        if (local) w.ship_min = UINT32_MAX;
        if (local)
            rig_reserve(&R, &w);
        else
            rig_ship(&R, &w);
        rig_run_step(&R, node);
        rig_pump(&R);
        assert_int_equal(said(0, &first), 17);
        kvf_node_on_session_down(R.node[node], R.now, 0);
        R.auto_ack = false;
        R.hold_steps = false;
        rig_run_step(&R, node);
        rig_pump(&R);
        if (!local) assert_int_equal(rig_count(&R, RIG_D, KVF_N_STARTED), 0);
        uint32_t from = R.log_count;
        come_back(&w, node);
        assert_int_equal(said(from, &first), 100);
        assert_int_equal(first, 17); /* the first sixteen had been acknowledged */
        if (!local) assert_int_equal(rig_count(&R, RIG_D, KVF_N_STARTED), 0);
        kvf_node_on_session_down(R.node[node], R.now, 0); /* once more: nothing was acknowledged */
        from = R.log_count;
        come_back(&w, node);
        assert_int_equal(said(from, &first), 100);
        assert_int_equal(first, 17);
        rig_advance(&R, 900 * MS); /* no lease ends meanwhile; a link would renew them */
        if (!local) assert_int_equal(rig_count(&R, RIG_D, KVF_N_STARTED), 0);
        R.auto_ack = true;
        kvf_rmsg ack = {.kind = KVF_R_ACK, .ack.number = rig_last(&R, node, KVF_N_TOKENS)->number};
        rig_send(&R, node, &ack);
        if (!local) assert_int_equal(rig_count(&R, RIG_D, KVF_N_STARTED), 1);
        rig_expect_output(&R, w.request, 0, prompt, 100, 5);
        rig_check_at_rest(&R);
        rig_fini(&R);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(pd07_a_crowd_before_a_small_pool_all_finish),
        cmocka_unit_test(kv06_two_streams_in_a_pool_for_one_and_a_half),
        cmocka_unit_test(pd01_a_cancel_frees_what_a_dead_peer_held_at_once),
        cmocka_unit_test(a_reserve_after_its_end_is_dropped), cmocka_unit_test(a_prefill_that_has_failed_fails_again),
        cmocka_unit_test(prompt_logprobs_outlive_their_session)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
