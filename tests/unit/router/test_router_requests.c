/* The router's rules about requests, one test each: the ways of travel, the queue, ends, failures. */
#include "bench.h"
#include <stdio.h>
#include <string.h>

#define P 0
#define D 1

static void two_nodes(bench *b) {
    kvf_router_config c;
    bench_config(&c);
    bench_open(b, &c);
    bench_node(b, P, KVF_ROLE_PREFILL);
    bench_node(b, D, KVF_ROLE_DECODE);
    bench_forget(b);
}

static const kvf_router_usage *finished(const bench *b) {
    assert_int_equal(bench_count(b, KVF_ROUTER_FINISHED), 1);
    assert_int_equal(bench_count(b, KVF_ROUTER_FAILED), 0);
    return &bench_find(b, KVF_ROUTER_FINISHED, 0)->a.finished;
}

static const kvf_refusal *failed(const bench *b) {
    assert_int_equal(bench_count(b, KVF_ROUTER_FAILED), 1);
    assert_int_equal(bench_count(b, KVF_ROUTER_FINISHED), 0);
    return &bench_find(b, KVF_ROUTER_FAILED, 0)->a.failed.why;
}

static void expect_token(const bench *b, uint32_t nth, uint32_t choice, uint32_t position, uint32_t token) {
    const bench_action *k = bench_find(b, KVF_ROUTER_TOKEN, nth);
    assert_non_null(k);
    assert_int_equal(k->a.token.choice, choice);
    assert_int_equal(k->a.token.position, position);
    assert_int_equal(k->a.token.token, token);
}

/* Submits and brings it to the prefill node; *reserve and *prefill are kept. */
static kvf_request_id to_prefill(bench *b, uint32_t prompt, uint32_t n, bench_action *reserve, bench_action *prefill) {
    kvf_router_request in = bench_request(prompt, 20, KVF_ROUTER_ALWAYS);
    kvf_request_id id;
    kvf_refusal why;
    in.n = n;
    assert_int_equal(bench_try(b, in, &id, &why), KVF_OK);
    *reserve = *bench_one(b, KVF_R_RESERVE);
    bench_granted(b, D, &reserve->m, 16);
    *prefill = *bench_one(b, KVF_R_PREFILL);
    return id;
}

static void whole_way(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    bench_action reserve, prefill;
    to_prefill(&b, 40, 1, &reserve, &prefill);
    assert_int_equal(reserve.a.node, D);
    assert_int_equal(reserve.m.reserve.ship_min, 0);
    assert_int_equal(reserve.m.reserve.attempt, 1);
    assert_int_equal(reserve.m.reserve.time_left_ns, KVF_TIME_NEVER);
    assert_int_equal(prefill.a.node, P);
    const kvf_ship_to *to = &prefill.m.prefill.to;
    assert_string_equal(to->node, "n1");
    assert_string_equal(to->address, "tcp:n1:1");
    assert_int_equal(to->epoch, 101);
    assert_int_equal(to->host_id, 41);
    assert_int_equal(to->grant, 77);
    assert_int_equal(to->secret[0], 42);
    assert_int_equal(to->missing_count, 2);
    const bench_action *admitted = bench_find(&b, KVF_ROUTER_ADMITTED, 0);
    assert_int_equal(admitted->a.admitted.prefill_node, P);
    assert_int_equal(admitted->a.admitted.decode_node, D);
    assert_int_equal(admitted->a.admitted.cached_tokens, 16);
    assert_int_equal(admitted->a.client, 5);

    const kvf_work *w = &reserve.m.reserve;
    b.now += 10 * MS;
    bench_token(&b, P, w, 0, 40, 7, KVF_END_NONE);
    bench_simple(&b, D, w, KVF_N_STARTED);
    bench_token(&b, D, w, 0, 40, 7, KVF_END_NONE); /* repeated by the decode node */
    b.now += 5 * MS;
    bench_token(&b, D, w, 0, 41, 8, KVF_END_NONE);
    bench_shipped(&b, P, w, KVF_OK);
    bench_token(&b, D, w, 0, 42, 9, KVF_END_EOS);
    assert_int_equal(bench_count(&b, KVF_ROUTER_TOKEN), 3);
    expect_token(&b, 0, 0, 40, 7);
    expect_token(&b, 2, 0, 42, 9);
    assert_int_equal(bench_find(&b, KVF_ROUTER_TOKEN, 2)->a.token.end, KVF_END_EOS);
    const kvf_router_usage *u = finished(&b);
    assert_int_equal(u->completion_tokens, 3);
    assert_int_equal(u->cached_tokens, 16);
    assert_int_equal(u->pages, 6);
    assert_int_equal(u->bytes, 600);
    assert_int_equal(u->prefill_ns, 7 * MS);
    assert_int_equal(u->transfer_ns, 3 * MS);
    assert_int_equal(u->ttft_ns, 10 * MS);
    assert_int_equal(u->decode_ns, 5 * MS);
    assert_int_equal(u->attempts, 1);
    /* A normal end is not cancelled anywhere. */
    assert_int_equal(bench_count_sent(&b, P, KVF_R_CANCEL) + bench_count_sent(&b, D, KVF_R_CANCEL), 0);
    assert_int_equal(bench_counters(&b).repeated, 1);
    bench_close(&b);
}

static void ways_of_travel(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    bench_submit(&b, 40, 20, KVF_ROUTER_AUTO);
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.ship_min, 32);
    bench_local(&b, D, &bench_one(&b, KVF_R_RESERVE)->m);
    const bench_action *admitted = bench_find(&b, KVF_ROUTER_ADMITTED, 0);
    assert_int_equal(admitted->a.admitted.prefill_node, KVF_ROUTER_NO_NODE);
    assert_null(bench_sent(&b, P, KVF_R_PREFILL, 0));
    bench_forget(&b);
    bench_submit(&b, 40, 20, KVF_ROUTER_NEVER);
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.ship_min, UINT32_MAX);
    bench_forget(&b);
    bench_status(&b, P, KVF_ROLE_PREFILL, KVF_NODE_DRAINING);
    bench_submit(&b, 40, 20, KVF_ROUTER_AUTO); /* nobody to ship: at once */
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.ship_min, UINT32_MAX);
    assert_int_equal(bench_counters(&b).fallback_local, 1);
    bench_close(&b);
}

static void first_token_ends_it(void **state) { /* PD-09 */
    (void)state;
    bench b;
    two_nodes(&b);
    bench_action reserve, prefill;
    to_prefill(&b, 40, 1, &reserve, &prefill);
    bench_token(&b, P, &reserve.m.reserve, 0, 40, 2, KVF_END_EOS);
    assert_int_equal(finished(&b)->completion_tokens, 1);
    const bench_action *cancel = bench_sent(&b, D, KVF_R_CANCEL, 0);
    assert_non_null(cancel); /* the grant is not needed */
    assert_true(cancel->m.cancel.finished);
    bench_close(&b);
}

static void stop_string(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    kvf_request_id id = bench_submit(&b, 40, 20, KVF_ROUTER_NEVER);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    bench_local(&b, D, &reserve.m);
    for (uint32_t i = 0; i < 4; i++) bench_token(&b, D, &reserve.m.reserve, 0, 40 + i, 7, KVF_END_NONE);
    kvf_router_end_choice(b.r, b.now, id, 0, 43); /* it matched with the token at 42 */
    bench_drain(&b);
    assert_int_equal(finished(&b)->completion_tokens, 3);
    assert_true(bench_sent(&b, D, KVF_R_CANCEL, 0)->m.cancel.finished);
    bench_forget(&b);
    bench_token(&b, D, &reserve.m.reserve, 0, 44, 7, KVF_END_NONE);
    kvf_router_end_choice(b.r, b.now, id, 0, 41); /* over: nothing */
    bench_drain(&b);
    assert_int_equal(bench_count(&b, KVF_ROUTER_TOKEN) + bench_count(&b, KVF_ROUTER_FINISHED), 0);
    bench_close(&b);
}

static void say_logprobs(bench *b, const kvf_work *w, uint64_t number, uint32_t start, uint32_t count) {
    static const uint8_t samples[64];
    kvf_nmsg m = {.kind = KVF_N_PROMPT_LOGPROBS, .request = w->request, .attempt = w->attempt};
    m.prompt_logprobs.number = number;
    m.prompt_logprobs.start = start;
    m.prompt_logprobs.count = count;
    m.prompt_logprobs.samples = (kvf_span){samples, count};
    bench_say(b, D, &m);
}

/* Nodes keep them until they are acknowledged, as tokens, and say them again: a session that blips costs nothing. A
 * token before them is a mistake of the node. */
static void logprobs_said_again(void **state) {
    (void)state;
    for (int left_out = 0; left_out <= 1; left_out++) {
        bench b;
        two_nodes(&b);
        kvf_router_request in = bench_request(20, 5, KVF_ROUTER_NEVER);
        kvf_request_id id;
        kvf_refusal why;
        in.prompt_logprobs = 1;
        assert_int_equal(bench_try(&b, in, &id, &why), KVF_OK);
        bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
        bench_local(&b, D, &reserve.m);
        bench_forget(&b);
        say_logprobs(&b, &reserve.m.reserve, 7, 1, 9);
        assert_int_equal(bench_sent(&b, D, KVF_R_ACK, 0)->m.ack.number, 7);
        bench_down(&b, D);
        bench_up(&b, D);
        bench_welcome(&b, D, "n1", KVF_ROLE_DECODE, 101, "f32");
        bench_forget(&b);
        say_logprobs(&b, &reserve.m.reserve, 8, 1, left_out ? 18 : 19);
        assert_int_equal(bench_find(&b, KVF_ROUTER_PROMPT_LOGPROBS, 0)->a.prompt_logprobs.start, 10);
        assert_int_equal(bench_sent(&b, D, KVF_R_ACK, 0)->m.ack.number, 8);
        bench_token(&b, D, &reserve.m.reserve, 0, 20, 7, KVF_END_NONE);
        assert_int_equal(bench_count(&b, KVF_ROUTER_TOKEN), !left_out);
        kvf_router_counters c;
        kvf_router_count(b.r, &c);
        assert_int_equal(c.gaps, left_out);
        assert_int_equal(c.retries, left_out);
        bench_close(&b);
    }
}

/* A Prefill comes twice, and the second time its node, which has refused it, takes it on: its scores count (found by
 * the simulator: the tokens after them were called a gap). */
static void logprobs_of_a_node_that_had_refused(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    kvf_router_request in = bench_request(40, 5, KVF_ROUTER_ALWAYS);
    kvf_request_id id;
    kvf_refusal why;
    in.prompt_logprobs = 1;
    assert_int_equal(bench_try(&b, in, &id, &why), KVF_OK);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    bench_granted(&b, D, &reserve.m, 0);
    bench_refused(&b, P, &reserve.m.reserve, KVF_AGAIN, 50 * KVF_NS_PER_MS);
    uint8_t samples[39 * 4] = {0};
    kvf_nmsg m = {.kind = KVF_N_PROMPT_LOGPROBS, .request = reserve.m.reserve.request, .attempt = 1};
    m.prompt_logprobs.start = 1;
    m.prompt_logprobs.count = 39;
    m.prompt_logprobs.samples = (kvf_span){samples, sizeof samples};
    bench_say(&b, P, &m);
    assert_int_equal(bench_count(&b, KVF_ROUTER_PROMPT_LOGPROBS), 1);
    bench_simple(&b, D, &reserve.m.reserve, KVF_N_STARTED);
    bench_token(&b, D, &reserve.m.reserve, 0, 40, 7, KVF_END_NONE);
    assert_int_equal(bench_count(&b, KVF_ROUTER_TOKEN), 1);
    kvf_router_counters c;
    kvf_router_count(b.r, &c);
    assert_int_equal(c.gaps, 0);
    bench_close(&b);
}

static void prompt_only(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    kvf_router_request in = bench_request(20, 0, KVF_ROUTER_NEVER);
    kvf_request_id id;
    kvf_refusal why;
    in.prompt_logprobs = 1;
    assert_int_equal(bench_try(&b, in, &id, &why), KVF_OK);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    assert_int_equal(reserve.m.reserve.output_max, 1); /* nodes make at least one */
    bench_local(&b, D, &reserve.m);
    uint8_t samples[40] = {0};
    kvf_nmsg m = {.kind = KVF_N_PROMPT_LOGPROBS, .request = reserve.m.reserve.request, .attempt = 1};
    m.prompt_logprobs.count = 12;
    m.prompt_logprobs.samples = (kvf_span){samples, 24};
    bench_say(&b, D, &m);
    m.prompt_logprobs.start = 10; /* overlaps by two */
    m.prompt_logprobs.count = 10;
    m.prompt_logprobs.samples = (kvf_span){samples, 20};
    bench_say(&b, D, &m);
    const bench_action *first = bench_find(&b, KVF_ROUTER_PROMPT_LOGPROBS, 0);
    assert_int_equal(first->a.prompt_logprobs.start, 1); /* the first token has none */
    assert_int_equal(first->a.prompt_logprobs.count, 11);
    assert_ptr_equal(first->a.prompt_logprobs.samples.data, samples + 2);
    const bench_action *second = bench_find(&b, KVF_ROUTER_PROMPT_LOGPROBS, 1);
    assert_int_equal(second->a.prompt_logprobs.start, 12);
    assert_int_equal(second->a.prompt_logprobs.count, 8);
    assert_ptr_equal(second->a.prompt_logprobs.samples.data, samples + 4);
    assert_int_equal(second->a.prompt_logprobs.samples.len_bytes, 16);
    bench_token(&b, D, &reserve.m.reserve, 0, 20, 7, KVF_END_LENGTH);
    assert_int_equal(finished(&b)->completion_tokens, 0);
    assert_int_equal(bench_count(&b, KVF_ROUTER_TOKEN), 0);
    bench_close(&b);
}

static void wrong_input(void **state) { /* AP-06, AP-07 */
    (void)state;
    kvf_router_config c;
    bench b;
    bench_config(&c);
    c.context_max = 64;
    bench_open(&b, &c);
    const struct {
        uint32_t prompt, output;
        bool given;
        uint32_t n;
        const char *field; /* NULL: taken */
    } cases[] = {{63, 1, true, 1, NULL}, {64, 1, true, 1, "input"}, {60, 10, true, 1, "stop.max_tokens"},
        {60, 0, false, 1, NULL}, {60, 4, true, 1, NULL}, {64, 0, false, 1, "input"}, {0, 4, true, 1, "input"},
        {100, 4, true, 1, "input"}, {10, UINT32_MAX, true, 1, "stop.max_tokens"}, {10, 4, true, 33, "n"},
        {10, 4, true, 32, NULL}};
    for (size_t i = 0; i < KVF_COUNT_OF(cases); i++) {
        kvf_router_request in = bench_request(cases[i].prompt, cases[i].output, KVF_ROUTER_AUTO);
        kvf_request_id id;
        kvf_refusal why = {0};
        in.output_max_given = cases[i].given;
        in.n = cases[i].n;
        kvf_status status = bench_try(&b, in, &id, &why);
        assert_int_equal(status, cases[i].field ? KVF_ERR_INVALID : KVF_OK);
        if (cases[i].field) {
            assert_string_equal(why.field, cases[i].field);
            assert_true(why.text[0]);
        }
    }
    /* Without max_tokens: to the end of the context. */
    bench_node(&b, D, KVF_ROLE_DECODE);
    bool seen = false;
    for (uint32_t i = 0; i < bench_count_sent(&b, D, KVF_R_RESERVE); i++) {
        const kvf_work *w = &bench_sent(&b, D, KVF_R_RESERVE, i)->m.reserve;
        if (w->prompt_count == 60 && !w->output_max_given) seen = w->output_max == 4;
    }
    assert_true(seen);
    bench_close(&b);
}

static void bounded_queue(void **state) { /* AP-10 */
    (void)state;
    kvf_router_config c;
    bench b;
    bench_config(&c);
    c.queue_max_requests = 4;
    c.queue_max_tokens = 100;
    bench_open(&b, &c);
    bench_node(&b, D, KVF_ROLE_DECODE);
    uint32_t taken = 0, refused = 0;
    for (int i = 0; i < 50; i++) {
        kvf_request_id id;
        kvf_refusal why;
        if (bench_try(&b, bench_request(10, 5, KVF_ROUTER_NEVER), &id, &why) == KVF_OK) {
            taken++;
            continue;
        }
        refused++;
        assert_int_equal(why.status, KVF_AGAIN);
        assert_string_equal(why.field, "queue");
        assert_int_equal(why.retry_after_ns, 50 * MS);
    }
    assert_int_equal(taken, 5); /* one at work, four wait */
    assert_int_equal(refused, 45);
    kvf_router_request four = bench_request(10, 5, KVF_ROUTER_NEVER);
    four.n = 4;
    for (uint32_t i = 0; i < 4; i++) bench_local(&b, D, &bench_sent(&b, D, KVF_R_RESERVE, i)->m);
    kvf_request_id id;
    kvf_refusal why;
    assert_int_equal(bench_counters(&b).waiting, 1);
    assert_int_equal(bench_try(&b, four, &id, &why), KVF_AGAIN); /* n counts n */
    kvf_router_request wide = bench_request(95, 5, KVF_ROUTER_NEVER);
    assert_int_equal(bench_try(&b, wide, &id, &why), KVF_AGAIN); /* by tokens */
    assert_non_null(strstr(why.text, "tokens"));
    four.n = 3;
    assert_int_equal(bench_try(&b, four, &id, &why), KVF_OK);
    bench_close(&b);
}

static void order_of_queue(void **state) {
    (void)state;
    kvf_router_config c;
    bench b;
    bench_config(&c);
    c.reserve_window = 1;
    bench_open(&b, &c);
    bench_node(&b, D, KVF_ROLE_DECODE);
    bench_submit(&b, 10, 5, KVF_ROUTER_NEVER); /* takes the window */
    bench_action first = *bench_one(&b, KVF_R_RESERVE);
    const int32_t priorities[] = {0, -1, 3, 0, 3};
    for (uint32_t i = 0; i < KVF_COUNT_OF(priorities); i++) {
        kvf_router_request in = bench_request(20 + i, 5, KVF_ROUTER_NEVER);
        kvf_request_id id;
        kvf_refusal why;
        in.priority = priorities[i];
        assert_int_equal(bench_try(&b, in, &id, &why), KVF_OK);
    }
    const uint32_t order[] = {22, 24, 20, 23, 21};
    kvf_rmsg m = first.m;
    for (uint32_t i = 0; i < KVF_COUNT_OF(order); i++) {
        bench_forget(&b);
        bench_local(&b, D, &m);
        m = bench_one(&b, KVF_R_RESERVE)->m;
        assert_int_equal(m.reserve.prompt_count, order[i]);
    }
    bench_close(&b);
}

static void cancelled(void **state) { /* AP-08 */
    (void)state;
    bench b;
    two_nodes(&b);
    bench_action reserve, prefill;
    kvf_request_id id = to_prefill(&b, 40, 1, &reserve, &prefill);
    bench_forget(&b);
    kvf_router_cancel(b.r, b.now, id, KVF_CANCEL_CLIENT);
    kvf_router_cancel(b.r, b.now, id, KVF_CANCEL_SLOW_READER);
    bench_drain(&b);
    assert_int_equal(failed(&b)->status, KVF_ERR_CANCELLED);
    assert_int_equal(bench_count_sent(&b, P, KVF_R_CANCEL), 1);
    assert_int_equal(bench_count_sent(&b, D, KVF_R_CANCEL), 1);
    assert_false(bench_sent(&b, D, KVF_R_CANCEL, 0)->m.cancel.finished);
    bench_forget(&b);
    /* Before its Reserve went out, nobody needs to be told; a late grant is given back. */
    kvf_request_id early;
    kvf_refusal why;
    kvf_router_request in = bench_request(10, 5, KVF_ROUTER_NEVER);
    assert_int_equal(kvf_router_submit(b.r, b.now, &in, &early, &why), KVF_OK);
    kvf_router_cancel(b.r, b.now, early, KVF_CANCEL_SLOW_READER);
    bench_drain(&b);
    assert_int_equal(failed(&b)->status, KVF_ERR_LIMIT);
    assert_int_equal(bench_count(&b, KVF_ROUTER_SEND), 0);
    bench_granted(&b, D, &reserve.m, 0);
    assert_int_equal(bench_count_sent(&b, D, KVF_R_CANCEL), 1);
    assert_int_equal(bench_counters(&b).late, 1);
    bench_close(&b);
}

static void deadline(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    kvf_router_request in = bench_request(10, 5, KVF_ROUTER_NEVER);
    kvf_request_id id;
    kvf_refusal why;
    in.deadline_ns = b.now;
    assert_int_equal(bench_try(&b, in, &id, &why), KVF_ERR_DEADLINE);
    in.deadline_ns = b.now + 70 * MS;
    assert_int_equal(bench_try(&b, in, &id, &why), KVF_OK);
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.time_left_ns, 70 * MS);
    bench_at(&b, b.now + 69 * MS);
    assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED), 0);
    bench_at(&b, b.now + 1 * MS);
    assert_int_equal(failed(&b)->status, KVF_ERR_DEADLINE);
    assert_int_equal(bench_count_sent(&b, D, KVF_R_CANCEL), 1);
    bench_close(&b);
}

/* ---- failures ---- */

static void goes_on_with_tokens(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    bench_node(&b, 2, KVF_ROLE_DECODE);
    bench_submit(&b, 40, 20, KVF_ROUTER_NEVER);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    uint32_t first = reserve.a.node, other = first == D ? 2 : D;
    bench_local(&b, first, &reserve.m);
    bench_token(&b, first, &reserve.m.reserve, 0, 40, 7, KVF_END_NONE);
    bench_token(&b, first, &reserve.m.reserve, 0, 41, 8, KVF_END_NONE);
    bench_forget(&b);
    bench_failed(&b, first, &reserve.m.reserve, KVF_STAGE_DECODE, true);
    bench_action again = *bench_one(&b, KVF_R_RESERVE);
    assert_int_equal(again.a.node, other); /* not where it failed */
    assert_int_equal(again.m.reserve.attempt, 2);
    assert_int_equal(again.m.reserve.prompt_count, 40);
    assert_int_equal(again.tokens_count, 42);
    assert_int_equal(again.tokens[40], 7);
    assert_int_equal(again.tokens[41], 8);
    assert_int_equal(again.m.reserve.output_max, 20);
    bench_token(&b, first, &reserve.m.reserve, 0, 42, 9, KVF_END_NONE); /* too late */
    bench_local(&b, other, &again.m);
    bench_token(&b, other, &again.m.reserve, 0, 42, 10, KVF_END_LENGTH);
    expect_token(&b, 0, 0, 42, 10);
    assert_int_equal(finished(&b)->attempts, 2);
    assert_int_equal(bench_count(&b, KVF_ROUTER_ADMITTED), 0); /* it was said once */
    bench_close(&b);
}

static void gives_up(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    bench_submit(&b, 40, 20, KVF_ROUTER_NEVER);
    for (uint32_t attempt = 1; attempt <= 3; attempt++) {
        bench_at(&b, b.now + 200 * MS);
        bench_status(&b, D, KVF_ROLE_DECODE, KVF_NODE_READY);
        bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
        assert_int_equal(reserve.m.reserve.attempt, attempt);
        bench_forget(&b);
        bench_local(&b, D, &reserve.m);
        bench_failed(&b, D, &reserve.m.reserve, KVF_STAGE_DECODE, true);
    }
    assert_int_equal(failed(&b)->status, KVF_ERR_IO);
    assert_non_null(strstr(failed(&b)->text, "3 attempts"));
    assert_non_null(strstr(failed(&b)->text, "broken pipe"));
    bench_forget(&b);
    bench_submit(&b, 40, 20, KVF_ROUTER_NEVER);
    bench_failed(&b, D, &bench_one(&b, KVF_R_RESERVE)->m.reserve, KVF_STAGE_DECODE, false);
    assert_string_equal(failed(&b)->text, "broken pipe"); /* not to be tried again */
    bench_close(&b);
}

static void refused_for_good(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    bench_node(&b, 2, KVF_ROLE_DECODE);
    bench_submit(&b, 40, 20, KVF_ROUTER_NEVER);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    bench_forget(&b);
    bench_refused(&b, reserve.a.node, &reserve.m.reserve, KVF_ERR_NO_ROOM, 0);
    bench_action second = *bench_one(&b, KVF_R_RESERVE); /* another pool may be larger */
    assert_int_not_equal(second.a.node, reserve.a.node);
    bench_refused(&b, second.a.node, &second.m.reserve, KVF_ERR_NO_ROOM, 0);
    assert_int_equal(failed(&b)->status, KVF_ERR_NO_ROOM);
    assert_string_equal(failed(&b)->field, "input");
    assert_string_equal(failed(&b)->text, "node says no");
    bench_forget(&b);
    bench_submit(&b, 40, 20, KVF_ROUTER_NEVER);
    reserve = *bench_one(&b, KVF_R_RESERVE);
    bench_refused(&b, reserve.a.node, &reserve.m.reserve, KVF_ERR_INVALID, 0);
    assert_int_equal(failed(&b)->status, KVF_ERR_INVALID); /* at once, by its name (PD-02) */
    bench_close(&b);
}

static void refused_for_now(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    bench_submit(&b, 40, 20, KVF_ROUTER_NEVER);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    bench_forget(&b);
    bench_refused(&b, D, &reserve.m.reserve, KVF_AGAIN, 30 * MS);
    bench_at(&b, b.now + 29 * MS);
    assert_int_equal(bench_count_sent(&b, D, KVF_R_RESERVE), 0);
    bench_at(&b, b.now + 1 * MS);
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.attempt, 2);
    bench_close(&b);
}

static void queued_moves(void **state) {
    (void)state;
    kvf_router_config c;
    bench b;
    bench_config(&c);
    bench_open(&b, &c);
    bench_node(&b, D, KVF_ROLE_DECODE);
    bench_submit(&b, 40, 20, KVF_ROUTER_NEVER);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    bench_simple(&b, D, &reserve.m.reserve, KVF_N_QUEUED);
    bench_forget(&b);
    bench_node(&b, 2, KVF_ROLE_DECODE); /* comes and is idle */
    assert_int_equal(bench_sent(&b, D, KVF_R_CANCEL, 0)->m.cancel.attempt, 1);
    const bench_action *moved = bench_sent(&b, 2, KVF_R_RESERVE, 0);
    assert_int_equal(moved->m.reserve.attempt, 2);
    bench_local(&b, 2, &moved->m);
    assert_int_equal(bench_find(&b, KVF_ROUTER_ADMITTED, 0)->a.admitted.decode_node, 2);
    bench_close(&b);
}

static void handed_back(void **state) {
    (void)state;
    kvf_router_config c;
    bench b;
    bench_config(&c);
    c.reserve_window = 1;
    bench_open(&b, &c);
    bench_node(&b, D, KVF_ROLE_DECODE);
    bench_submit(&b, 40, 20, KVF_ROUTER_NEVER);
    bench_action first = *bench_one(&b, KVF_R_RESERVE);
    bench_local(&b, D, &first.m);
    bench_token(&b, D, &first.m.reserve, 0, 40, 7, KVF_END_NONE);
    bench_submit(&b, 50, 20, KVF_ROUTER_NEVER);
    bench_submit(&b, 60, 20, KVF_ROUTER_NEVER);
    bench_action second = *bench_sent(&b, D, KVF_R_RESERVE, 1);
    assert_int_equal(second.m.reserve.prompt_count, 50);
    bench_forget(&b);
    bench_simple(&b, D, &first.m.reserve, KVF_N_PREEMPTED);
    bench_local(&b, D, &second.m);
    const bench_action *next = bench_one(&b, KVF_R_RESERVE); /* before the one of 60, which waited longer for room */
    assert_int_equal(next->m.reserve.prompt_count, 40);
    assert_int_equal(next->m.reserve.attempt, 2);
    assert_int_equal(next->tokens_count, 41);
    assert_int_equal(bench_counters(&b).preempted, 1);
    bench_close(&b);
}

static void link_fails(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    bench_node(&b, 2, KVF_ROLE_PREFILL);
    bench_forget(&b);
    kvf_request_id id = bench_submit(&b, 40, 20, KVF_ROUTER_ALWAYS);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    bench_granted(&b, D, &reserve.m, 0);
    bench_action prefill = *bench_one(&b, KVF_R_PREFILL);
    uint32_t bad = prefill.a.node, good = bad == P ? 2 : P;
    bench_forget(&b);
    bench_failed(&b, bad, &prefill.m.prefill.work, KVF_STAGE_TRANSFER, true);
    /* The decode node keeps the verified pages: it is asked again and not cancelled. */
    bench_action again = *bench_one(&b, KVF_R_RESERVE);
    assert_int_equal(again.a.node, D);
    assert_int_equal(again.m.reserve.attempt, 2);
    assert_int_equal(bench_count_sent(&b, D, KVF_R_CANCEL), 0);
    bench_granted(&b, D, &again.m, 16);
    assert_int_equal(bench_one(&b, KVF_R_PREFILL)->a.node, good);
    kvf_router_pair pair;
    assert_true(kvf_router_pair_at(b.r, b.now, bad, D, &pair));
    assert_true(pair.ejected);
    kvf_router_cancel(b.r, b.now, id, KVF_CANCEL_CLIENT);
    bench_drain(&b);
    /* After its time the pair is tried again, with one request. */
    bench_at(&b, b.now + 13 * MS);
    bench_status(&b, good, KVF_ROLE_PREFILL, KVF_NODE_DRAINING);
    for (int i = 0; i < 2; i++) {
        bench_forget(&b);
        bench_submit(&b, 40, 20, KVF_ROUTER_ALWAYS);
        const bench_action *asked = bench_sent(&b, D, KVF_R_RESERVE, 0);
        if (i == 1) { /* the second waits */
            assert_null(asked);
            break;
        }
        again = *asked;
        bench_granted(&b, D, &again.m, 0);
        assert_int_equal(bench_one(&b, KVF_R_PREFILL)->a.node, bad);
    }
    bench_simple(&b, D, &again.m.reserve, KVF_N_STARTED); /* it works again */
    bench_at(&b, b.now + 25 * MS);
    assert_int_equal(bench_count_sent(&b, D, KVF_R_RESERVE), 1);
    bench_close(&b);
}

static void already_started(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    bench_action reserve, prefill;
    to_prefill(&b, 40, 1, &reserve, &prefill);
    bench_forget(&b);
    bench_failed(&b, P, &reserve.m.reserve, KVF_STAGE_TRANSFER, true); /* though the decode node has all */
    bench_action again = *bench_one(&b, KVF_R_RESERVE);
    assert_int_equal(again.m.reserve.attempt, 2);
    kvf_nmsg m = {.kind = KVF_N_ALREADY_STARTED, .request = again.m.reserve.request, .attempt = 2};
    m.already_started.attempt = 1;
    m.already_started.position = 40;
    bench_say(&b, D, &m);
    bench_token(&b, D, &reserve.m.reserve, 0, 40, 7, KVF_END_NONE);
    bench_token(&b, D, &reserve.m.reserve, 0, 41, 8, KVF_END_LENGTH);
    assert_int_equal(bench_count(&b, KVF_ROUTER_TOKEN), 2);
    finished(&b);
    assert_int_equal(bench_count_sent(&b, P, KVF_R_PREFILL), 0); /* no second prefill */
    bench_close(&b);
}

static void already_started_too_far(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    bench_action reserve, prefill;
    to_prefill(&b, 40, 1, &reserve, &prefill);
    bench_failed(&b, P, &reserve.m.reserve, KVF_STAGE_TRANSFER, true);
    bench_forget(&b);
    kvf_nmsg m = {.kind = KVF_N_ALREADY_STARTED, .request = reserve.m.reserve.request, .attempt = 2};
    m.already_started.attempt = 1;
    m.already_started.position = 43; /* and none of its tokens has come: they will not come again */
    bench_say(&b, D, &m);
    assert_int_equal(bench_count_sent(&b, D, KVF_R_CANCEL), 2);
    bench_at(&b, b.now + 40 * MS); /* the pair is tried again */
    assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.attempt, 3);
    bench_close(&b);
}

/* What is said again after a reconnect is the same work, whatever has been accepted meanwhile. */
static void said_again(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    bench_action reserve, prefill;
    to_prefill(&b, 40, 1, &reserve, &prefill);
    bench_token(&b, P, &reserve.m.reserve, 0, 40, 7, KVF_END_NONE);
    bench_forget(&b);
    bench_down(&b, P);
    bench_up(&b, P);
    bench_welcome(&b, P, "n0", KVF_ROLE_PREFILL, 100, "f32");
    assert_int_equal(bench_one(&b, KVF_R_HELLO)->live[0].next_position, 41);
    const bench_action *again = bench_one(&b, KVF_R_PREFILL);
    assert_int_equal(again->m.prefill.work.attempt, 1);
    assert_int_equal(again->tokens_count, 40);
    assert_int_equal(again->m.prefill.to.missing_count, 2);
    bench_close(&b);
}

/* The session blips while Prefill is under way: the node says that it has no such request, and gets it. Nobody failed.
 */
static void prefill_lost_with_its_session(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    bench_action reserve, prefill;
    to_prefill(&b, 40, 1, &reserve, &prefill);
    for (int blip = 0; blip < 4; blip++) {
        bench_forget(&b);
        bench_down(&b, P);
        bench_up(&b, P);
        bench_welcome(&b, P, "n0", KVF_ROLE_PREFILL, 100, "f32");
        kvf_nmsg m = {.kind = KVF_N_FAILED, .request = reserve.m.reserve.request, .attempt = 1};
        m.failed.stage = KVF_STAGE_PREFILL;
        m.failed.reason = KVF_ERR_GONE;
        m.failed.retryable = true;
        bench_say(&b, P, &m);
        assert_int_equal(bench_one(&b, KVF_R_PREFILL)->m.prefill.work.attempt, 1);
        assert_int_equal(bench_count_sent(&b, D, KVF_R_RESERVE), 0);
        assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED), 0);
    }
    bench_close(&b);
}

/* Word that a grant is gone is no failure while its prefill node is at it: the decode node may have begun, or the
 * prefill node may have ended the request. Who stays silent is asked. */
static void a_grant_that_is_gone(void **state) {
    (void)state;
    for (int from_decode = 0; from_decode < 2; from_decode++) {
        bench b;
        two_nodes(&b);
        bench_action reserve, prefill;
        to_prefill(&b, 40, 1, &reserve, &prefill);
        const kvf_work *w = &reserve.m.reserve;
        bench_forget(&b);
        if (from_decode) {
            kvf_nmsg m = {.kind = KVF_N_FAILED, .request = w->request, .attempt = 1};
            m.failed.stage = KVF_STAGE_DECODE;
            m.failed.reason = KVF_ERR_GONE;
            m.failed.retryable = true;
            bench_say(&b, D, &m);
            assert_int_equal(bench_count_sent(&b, D, KVF_R_RESERVE), 0);
        }
        bench_shipped(&b, P, w, KVF_ERR_GONE);
        assert_int_equal(bench_count_sent(&b, D, KVF_R_RESERVE), 0);
        bench_at(&b, b.now + RT_PROBE_NS);
        assert_int_equal(bench_one(&b, KVF_R_RESERVE)->m.reserve.attempt, 2);
        assert_int_equal(bench_count(&b, KVF_ROUTER_FAILED), 0);
        bench_close(&b);
    }
}

/* Word that a node lacks what it has been sent anew, come twice, meets the grant of what was said again: that is given
 * back (found by the simulator: it was held as long as the session lived). */
static void a_grant_that_was_gone_is_given_back(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    bench_submit(&b, 40, 20, KVF_ROUTER_ALWAYS);
    bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
    bench_down(&b, P); /* nobody ships: the grant waits */
    bench_granted(&b, D, &reserve.m, 0);
    bench_forget(&b);
    kvf_nmsg m = {.kind = KVF_N_FAILED, .request = reserve.m.reserve.request, .attempt = 1};
    m.failed.stage = KVF_STAGE_DECODE;
    m.failed.reason = KVF_ERR_GONE;
    m.failed.retryable = true;
    bench_say(&b, D, &m);
    assert_int_equal(bench_one(&b, KVF_R_CANCEL)->m.cancel.attempt, 1);
    bench_close(&b);
}

/* A node may have handed a request back while its session was down; tokens that it says again prove nothing. */
static void silent_after_reconnect(void **state) {
    (void)state;
    for (int lives = 0; lives < 2; lives++) {
        bench b;
        two_nodes(&b);
        bench_submit(&b, 40, 20, KVF_ROUTER_NEVER);
        bench_action reserve = *bench_one(&b, KVF_R_RESERVE);
        bench_local(&b, D, &reserve.m);
        bench_token(&b, D, &reserve.m.reserve, 0, 40, 7, KVF_END_NONE);
        bench_forget(&b);
        bench_down(&b, D);
        bench_up(&b, D);
        bench_welcome(&b, D, "n1", KVF_ROLE_DECODE, 101, "f32");
        bench_token(&b, D, &reserve.m.reserve, 0, 40, 7, KVF_END_NONE);
        bench_token(&b, D, &reserve.m.reserve, 0, 41, 8, KVF_END_NONE);
        bench_at(&b, b.now + RT_PROBE_NS);
        const bench_action *ask = bench_one(&b, KVF_R_RESERVE);
        assert_int_equal(ask->m.reserve.attempt, 2);
        assert_int_equal(ask->tokens_count, 42);
        bench_action asked = *ask;
        const kvf_work *w = &reserve.m.reserve;
        if (lives) {
            kvf_nmsg m = {.kind = KVF_N_ALREADY_STARTED, .request = asked.m.reserve.request, .attempt = 2};
            m.already_started.attempt = 1;
            m.already_started.position = 42;
            bench_say(&b, D, &m);
        } else {
            w = &asked.m.reserve;
            bench_local(&b, D, &asked.m);
        }
        bench_token(&b, D, w, 0, 42, 9, KVF_END_EOS);
        assert_int_equal(finished(&b)->completion_tokens, 3);
        bench_close(&b);
    }
}

static void choices_split(void **state) {
    (void)state;
    bench b;
    two_nodes(&b);
    bench_action reserve, prefill;
    kvf_request_id id = to_prefill(&b, 40, 3, &reserve, &prefill);
    const kvf_work *w = &reserve.m.reserve;
    assert_int_equal(w->n, 3);
    bench_token(&b, P, w, 0, 40, 70, KVF_END_NONE);
    bench_token(&b, P, w, 1, 40, 71, KVF_END_EOS);
    bench_token(&b, P, w, 2, 40, 72, KVF_END_NONE);
    bench_simple(&b, D, w, KVF_N_STARTED);
    bench_token(&b, D, w, 2, 41, 82, KVF_END_NONE);
    bench_forget(&b);
    bench_failed(&b, D, w, KVF_STAGE_DECODE, true);
    bench_at(&b, b.now + 20 * MS);
    assert_int_equal(bench_count_sent(&b, D, KVF_R_RESERVE), 2); /* choice 1 has ended */
    bench_action part[2] = {*bench_sent(&b, D, KVF_R_RESERVE, 0), *bench_sent(&b, D, KVF_R_RESERVE, 1)};
    if (part[0].m.reserve.choice_base == 2) {
        bench_action t = part[0];
        part[0] = part[1];
        part[1] = t;
    }
    assert_int_equal(part[0].m.reserve.choice_base, 0);
    assert_int_equal(part[1].m.reserve.choice_base, 2);
    assert_int_equal(part[0].m.reserve.n, 1);
    assert_int_equal(part[0].tokens_count, 41);
    assert_int_equal(part[1].tokens_count, 42);
    assert_int_equal(part[1].tokens[0], 1000);
    assert_int_equal(part[1].tokens[41], 82);
    assert_false(kvf_request_id_equal(part[0].m.reserve.request, part[1].m.reserve.request));
    assert_false(kvf_request_id_equal(part[0].m.reserve.request, w->request));
    kvf_request_id whole;
    uint64_t client;
    assert_true(kvf_router_request_of(b.r, part[1].m.reserve.request, &whole, &client));
    assert_true(kvf_request_id_equal(whole, id) && client == 5);
    for (int i = 0; i < 2; i++) {
        bench_local(&b, D, &part[i].m);
        bench_token(&b, D, &part[i].m.reserve, i ? 2 : 0, i ? 42 : 41, 9, KVF_END_EOS);
    }
    assert_int_equal(finished(&b)->completion_tokens, 2 + 1 + 3);
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole_way), cmocka_unit_test(ways_of_travel),
        cmocka_unit_test(first_token_ends_it), cmocka_unit_test(stop_string), cmocka_unit_test(prompt_only),
        cmocka_unit_test(logprobs_said_again), cmocka_unit_test(logprobs_of_a_node_that_had_refused),
        cmocka_unit_test(wrong_input), cmocka_unit_test(bounded_queue), cmocka_unit_test(order_of_queue),
        cmocka_unit_test(cancelled), cmocka_unit_test(deadline), cmocka_unit_test(goes_on_with_tokens),
        cmocka_unit_test(gives_up), cmocka_unit_test(refused_for_good), cmocka_unit_test(refused_for_now),
        cmocka_unit_test(queued_moves), cmocka_unit_test(handed_back), cmocka_unit_test(link_fails),
        cmocka_unit_test(already_started), cmocka_unit_test(already_started_too_far), cmocka_unit_test(said_again),
        cmocka_unit_test(silent_after_reconnect), cmocka_unit_test(prefill_lost_with_its_session),
        cmocka_unit_test(a_grant_that_is_gone), cmocka_unit_test(a_grant_that_was_gone_is_given_back),
        cmocka_unit_test(choices_split)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
