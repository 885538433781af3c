/* Parameters, limits, labels, fairness, health and slow readers of a whole cluster (field cases PD-04, AP-04, AP-06,
 * AP-07, SC-01, GR-06, GR-08). */
#include "harness.h"
#include "grpc/health/v1/health.pb-c.h"
#include <math.h>
#include <string.h>

static void random_ids(uint32_t *ids, size_t count, uint64_t seed) {
    for (size_t i = 0; i < count; i++) ids[i] = (uint32_t)(e2e_random(&seed) % 256);
}

/* ---- AP-04 ---- */

static void choices_and_odd_parameters(void **state) {
    (void)state;
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), NULL);
    uint32_t ids[30];
    random_ids(ids, 30, 4);
    e2e_ask a;
    e2e_answer greedy, first, again;
    e2e_ask_ids(&a, ids, 30, 16);
    e2e_gen_ok(&c, &a, &greedy);
    static const float cold[] = {1e-5f, 1e-30f};
    for (size_t i = 0; i < 2; i++) {
        a.temperature = cold[i];
        e2e_gen_ok(&c, &a, &again);
        assert_true(e2e_same(&greedy, &again));
        e2e_answer_free(&again);
    }
    a.temperature = 1;
    a.n = 8;
    a.seeded = true;
    a.seed = 99;
    for (int dis = E2E_AUTO; dis <= E2E_NEVER; dis++) {
        a.dis = (Kvferry__V1__Disaggregate)dis;
        e2e_gen_ok(&c, &a, &first);
        e2e_gen_ok(&c, &a, &again);
        assert_true(e2e_same(&first, &again));
        assert_int_equal(first.seed, 99);
        for (int i = 0; i < 8; i++) {
            assert_int_equal(first.choice[i].ids_count, 16);
            for (int k = 0; k < i; k++) assert_memory_not_equal(first.choice[i].ids, first.choice[k].ids, 16 * 4);
        }
        e2e_answer_free(&first);
        e2e_answer_free(&again);
    }
    a.seeded = false; /* no seed: runs differ, and each can be had again by the seed that it reports */
    a.n = 1;
    e2e_gen_ok(&c, &a, &first);
    e2e_gen_ok(&c, &a, &again);
    assert_false(e2e_same(&first, &again));
    assert_true(first.seed != again.seed);
    e2e_answer_free(&again);
    a.seeded = true;
    a.seed = first.seed;
    e2e_gen_ok(&c, &a, &again);
    assert_true(e2e_same(&first, &again));
    e2e_answer_free(&again);
    e2e_answer_free(&first);
    static const float bad_temperature[] = {-1, NAN, INFINITY}, bad_top_p[] = {1.5f, -0.1f, NAN};
    for (size_t i = 0; i < 3; i++) {
        a.temperature = bad_temperature[i];
        e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, "sampling.temperature");
    }
    a.temperature = 1;
    a.top_p_given = true;
    for (size_t i = 0; i < 3; i++) {
        a.top_p = bad_top_p[i];
        e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, "sampling.top_p");
    }
    a.top_p = 0; /* greedy, or refused by name */
    e2e_gen(&c, &a, &again);
    if (again.result.code == KVF_RPC_OK)
        assert_memory_equal(again.choice[0].ids, greedy.choice[0].ids, 16 * 4);
    else
        assert_string_equal(again.result.field, "sampling.top_p");
    e2e_answer_free(&again);
    a.top_p_given = false;
    a.top_k = 1000000; /* more than there are: all */
    e2e_gen_ok(&c, &a, &again);
    e2e_answer_free(&again);
    a.top_k = 1;
    e2e_gen_ok(&c, &a, &again);
    assert_memory_equal(again.choice[0].ids, greedy.choice[0].ids, 16 * 4);
    e2e_answer_free(&again);
    e2e_answer_free(&greedy);
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

/* ---- AP-06 ---- */

static void context_limit(void **state) {
    (void)state;
    static const struct {
        uint32_t prompt, max, out; /* max 0: not given; out 0: refused */
    } rows[] = {{63, 1, 1}, {64, 1, 0}, {60, 10, 0}, {60, 0, 4}, {60, 4, 4}, {63, 0, 1}, {64, 0, 0}, {65, 1, 0},
        {1, 63, 63}, {1, 64, 0}, {5000, 1, 0}};
    const char *args[] = {"--context", "64", NULL};
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), args);
    static uint32_t ids[5000];
    random_ids(ids, 5000, 6);
    for (size_t i = 0; i < KVF_COUNT_OF(rows); i++)
        for (int dis = E2E_AUTO; dis <= E2E_NEVER; dis++) {
            e2e_ask a;
            e2e_answer got;
            e2e_ask_ids(&a, ids, rows[i].prompt, rows[i].max);
            a.dis = (Kvferry__V1__Disaggregate)dis;
            if (rows[i].out == 0) {
                e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, NULL);
                continue;
            }
            e2e_gen_ok(&c, &a, &got);
            assert_int_equal(got.choice[0].ids_count, rows[i].out);
            assert_int_equal(got.choice[0].completion_tokens, rows[i].out);
            assert_int_equal(got.usage_prompt, rows[i].prompt);
            assert_int_equal(got.choice[0].reason, rows[i].max
                                                       ? KVFERRY__V1__FINISH_REASON__FINISH_REASON_LENGTH
                                                       : KVFERRY__V1__FINISH_REASON__FINISH_REASON_CONTEXT_LENGTH);
            e2e_answer_free(&got);
        }
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

/* ---- AP-07 ---- */

static void bad_bytes_and_ids(void **state) {
    (void)state;
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), NULL);
    e2e_ask a = {.text = "", .max = 1};
    e2e_answer got;
    e2e_gen(&c, &a, &got); /* one token where the model wants a BOS, else refused */
    if (got.result.code == KVF_RPC_OK)
        assert_int_equal(got.prompt_tokens, 1);
    else
        assert_int_equal(got.result.code, KVF_RPC_INVALID_ARGUMENT);
    e2e_answer_free(&got);
    static const uint32_t bad[] = {320, 0x80000000u, UINT32_MAX};
    e2e_ask_ids(&a, bad, 0, 1);
    e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, NULL);
    for (size_t i = 0; i < 3; i++) {
        e2e_ask_ids(&a, bad + i, 1, 1);
        e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, "token_ids");
    }
    static const uint32_t good[] = {97};
    a = (e2e_ask){.text = "a\xff", .max = 1};
    e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, "text");
    a.text = "\xed\xa0\x80"; /* a surrogate */
    e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, "text");
    e2e_ask_ids(&a, good, 1, 1);
    a.stops[0] = "\xff";
    e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, "stop.sequences");
    a.stops[0] = "";
    e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, "stop.sequences");
    a.stops[0] = NULL;
    a.salt = "\xc0\x80";
    e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, "cache_salt");
    a.salt = NULL;
    a.label = "\xff";
    e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, "label");
    a.label = NULL;
    a.stop_ids = bad;
    a.stop_ids_count = 1;
    e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, "stop.token_ids");
    a.stop_ids = NULL;
    a.stop_ids_count = 0;
    a.bias_count = 1;
    a.bias_ids[0] = 320;
    e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, "sampling.logit_bias");
    a.bias_count = 0;
    a.n = 1000;
    e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, "n");
    a.n = 0;
    size_t bytes = 8 << 20;
    char *huge = malloc(bytes + 1);
    memset(huge, 'a', bytes);
    huge[bytes] = 0;
    a = (e2e_ask){.text = huge, .max = 1};
    e2e_refused(&c, &a, KVF_RPC_RESOURCE_EXHAUSTED, NULL); /* over the longest message */
    huge[3 << 20] = 0;
    e2e_refused(&c, &a, KVF_RPC_INVALID_ARGUMENT, NULL); /* over the context */
    free(huge);
    e2e_ask_ids(&a, good, 1, 1);
    e2e_gen_ok(&c, &a, &got); /* and it lives on */
    e2e_answer_free(&got);
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

/* ---- PD-04 ---- */

static void equal_labels(void **state) {
    (void)state;
    enum { COUNT = 48 };
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), NULL);
    uint32_t ids[300];
    random_ids(ids, 300, 44);
    e2e_ask asks[COUNT];
    e2e_answer want, got[COUNT];
    e2e_ask_ids(&asks[0], ids, 300, 40);
    asks[0].dis = E2E_ALWAYS;
    asks[0].label = "the same";
    e2e_gen_ok(&c, &asks[0], &want);
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < COUNT; i++) {
            asks[i] = asks[0];
            asks[i].cancel_after = i % 3 == 1 ? 1 + (uint32_t)i % 5 : 0;
            asks[i].cancel_at_once = i % 12 == 2;
        }
        e2e_crowd(&c, asks, got, COUNT, 16);
        for (size_t i = 0; i < COUNT; i++) {
            if (!asks[i].cancel_after && !asks[i].cancel_at_once) {
                if (got[i].result.code != KVF_RPC_OK) fail_msg("%zu: %s", i, got[i].result.message);
                assert_true(e2e_same(&want, &got[i]));
            }
            for (size_t k = 0; k < i; k++)
                if (got[i].request_id[0]) assert_string_not_equal(got[i].request_id, got[k].request_id);
        }
        for (size_t i = 0; i < COUNT; i++) e2e_answer_free(&got[i]);
    }
    e2e_answer_free(&want);
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

/* ---- SC-01 ---- */

static uint64_t latest(const e2e_answer *a, size_t count, bool end) {
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) at = KVF_MAX(at, end ? a[i].last_ns : a[i].first_ns);
    return at;
}

/* Eight prompts of 4,000 tokens are at work, then twenty of 32 come: in order of arrival these would be the last,
 * shared fairly they need a fortieth of the work and are answered before the last of the long ones has its first token.
 */
static void short_prompts_pass_long_ones(void **state) {
    (void)state;
    enum { LONG = 8, SHORT = 20, LENGTH = 4000 };
    const char *args[] = {"--threads", "1", "--prefill-chunk-tokens=64", NULL};
    for (int dis = E2E_ALWAYS; dis <= E2E_NEVER; dis++) {
        e2e_cluster c;
        e2e_start(&c, E2E_TINY("llama"), args);
        uint32_t *ids = malloc(LONG * LENGTH * sizeof *ids);
        random_ids(ids, LONG * LENGTH, 77);
        e2e_ask asks[LONG + SHORT];
        e2e_answer got[LONG + SHORT];
        for (size_t i = 0; i < LONG + SHORT; i++) {
            e2e_ask_ids(&asks[i], ids + (i < LONG ? i * LENGTH : i * 100 + 7), i < LONG ? LENGTH : 32, 2);
            asks[i].dis = (Kvferry__V1__Disaggregate)dis;
        }
        e2e_crowd(&c, asks, got, LONG + SHORT, LONG + SHORT);
        for (size_t i = 0; i < LONG + SHORT; i++) assert_int_equal(got[i].result.code, KVF_RPC_OK);
        assert_true(latest(got + LONG, SHORT, true) < latest(got, LONG, false));
        for (size_t i = 0; i < LONG + SHORT; i++) e2e_answer_free(&got[i]);
        free(ids);
        e2e_assert_clean(&c);
        e2e_stop(&c);
    }
}

/* A head that does not fit waits; what fits goes past it, and it is served in the end. tiny/llama-mha, KV in f32: 24
 * KiB a block. */
static void a_head_that_does_not_fit(void **state) {
    (void)state;
    enum { SMALL = 10 };
    const char *args[] = {"--kv-type=f32", "--kv-memory", "7372800", "--decode-expected-output=4096", NULL};
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama-mha"), args);
    static uint32_t ids[4096];
    random_ids(ids, 4096, 12);
    e2e_ask asks[2 + SMALL];
    e2e_answer got[2 + SMALL];
    e2e_ask_ids(&asks[0], ids, 1000, 3000); /* 250 blocks, long at work */
    e2e_ask_ids(&asks[1], ids + 1000, 1600, 400); /* 125 blocks */
    for (size_t i = 0; i < SMALL; i++) e2e_ask_ids(&asks[2 + i], ids + 2600 + 40 * i, 32, 8);
    for (size_t i = 0; i < 2 + SMALL; i++) asks[i].dis = E2E_NEVER;
    e2e_crowd(&c, asks, got, 2 + SMALL, 2 + SMALL);
    for (size_t i = 0; i < 2 + SMALL; i++)
        if (got[i].result.code != KVF_RPC_OK) fail_msg("request %zu: %s", i, got[i].result.message);
    assert_true(latest(got + 2, SMALL, true) < got[0].last_ns);
    for (size_t i = 0; i < 2 + SMALL; i++) e2e_answer_free(&got[i]);
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

/* More than the queue holds: served, or refused at once with a time to come back. tiny/llama-mha, KV in f32: 50 blocks.
 */
static void overload(void **state) {
    (void)state;
    enum { COUNT = 60 };
    const char *args[] = {"--kv-type=f32", "--kv-memory", "1228800", "--queue-max-requests=4", NULL};
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama-mha"), args);
    static uint32_t ids[COUNT * 300];
    random_ids(ids, COUNT * 300, 10);
    e2e_ask asks[COUNT];
    e2e_answer got[COUNT];
    uint32_t served = 0, refused = 0;
    for (size_t i = 0; i < COUNT; i++) {
        e2e_ask_ids(&asks[i], ids + 300 * i, 300, 200);
        asks[i].dis = (Kvferry__V1__Disaggregate)(E2E_AUTO + i % 3);
    }
    e2e_crowd(&c, asks, got, COUNT, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        if (got[i].result.code == KVF_RPC_OK) {
            served++;
            assert_int_equal(got[i].choice[0].ids_count, 200);
        } else {
            if (got[i].result.code != KVF_RPC_RESOURCE_EXHAUSTED || got[i].result.retry_after_ms == 0)
                fail_msg("%s: %s", kvf_rpc_code_name(got[i].result.code), got[i].result.message);
            refused++;
        }
        e2e_answer_free(&got[i]);
    }
    print_message("%u served, %u refused\n", served, refused);
    assert_true(served >= 5 && refused >= 1);
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

/* A change of role under load: nothing fails, pages stay, and it can be taken back. */
static void roles_change(void **state) {
    (void)state;
    enum { COUNT = 60 };
    const char *args[] = {"--prefill", "2", "--decode", "2", NULL};
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), args);
    static uint32_t ids[COUNT * 200];
    random_ids(ids, COUNT * 200, 11);
    e2e_ask asks[COUNT];
    e2e_answer got[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        e2e_ask_ids(&asks[i], ids + 200 * i, 200, 60);
        asks[i].dis = (Kvferry__V1__Disaggregate)(E2E_AUTO + i % 3);
    }
    static const struct {
        const char *node;
        Kvferry__V1__Role role;
    } rows[] = {{"p1", KVFERRY__V1__ROLE__ROLE_DECODE}, {"d0", KVFERRY__V1__ROLE__ROLE_PREFILL},
        {"p1", KVFERRY__V1__ROLE__ROLE_PREFILL}, {"d0", KVFERRY__V1__ROLE__ROLE_DECODE}};
    for (size_t r = 0; r < KVF_COUNT_OF(rows); r++) {
        Kvferry__V1__SetRoleRequest request = KVFERRY__V1__SET_ROLE_REQUEST__INIT;
        request.node_id = kvf_proto_text(rows[r].node);
        request.role = rows[r].role;
        ProtobufCMessage *answer = NULL;
        kvf_rpc_result result;
        kvf_rpc_reader *running = e2e_open(&c, &asks[r]); /* one runs while the role changes */
        if (kvf_rpc_unary(c.admin, &kvferry__v1__cluster__descriptor, "SetRole", &request.base, 60000, &answer,
                &result) != KVF_OK)
            fail_msg("SetRole: %s", result.message);
        kvf_rpc_message_free(answer);
        e2e_crowd(&c, asks, got, COUNT, 16);
        for (size_t i = 0; i < COUNT; i++) {
            if (got[i].result.code != KVF_RPC_OK) fail_msg("round %zu: %s", r, got[i].result.message);
            e2e_answer_free(&got[i]);
        }
        while (kvf_rpc_reader_next(running, &answer) == KVF_OK) kvf_rpc_message_free(answer);
        assert_int_equal(kvf_rpc_reader_result(running)->code, KVF_RPC_OK);
        kvf_rpc_reader_close(running);
    }
    e2e_assert_clean(&c);
    e2e_stop(&c);
}

/* ---- GR-08 ---- */

static void slow_reader(void **state) {
    (void)state;
    enum { OTHERS = 9 };
    const char *args[] = {"--stream-buffer", "64KiB", NULL};
    e2e_cluster c, reading;
    e2e_start(&c, E2E_TINY("llama"), args);
    uint32_t ids[40];
    random_ids(ids, 40, 88);
    e2e_ask slow, others[OTHERS];
    e2e_answer want, got[OTHERS];
    e2e_ask_ids(&slow, ids, 40, 4000); /* some 2 MB with its logprobs */
    slow.logprobs = true;
    slow.top_logprobs = 20;
    for (size_t i = 0; i < OTHERS; i++) e2e_ask_ids(&others[i], ids, 40, 400);
    e2e_gen_ok(&c, &others[0], &want);
    reading.serve = c.serve;
    e2e_attach(&reading); /* a connection of its own: the slow one does not stop its neighbours in the client */
    kvf_rpc_reader *reader = e2e_open(&c, &slow);
    ProtobufCMessage *message;
    assert_int_equal(kvf_rpc_reader_next(reader, &message), KVF_OK);
    kvf_rpc_message_free(message);
    e2e_crowd(&reading, others, got, OTHERS, OTHERS);
    for (size_t i = 0; i < OTHERS; i++) {
        assert_int_equal(got[i].result.code, KVF_RPC_OK);
        assert_true(e2e_same(&want, &got[i]));
        e2e_answer_free(&got[i]);
    }
    e2e_answer_free(&want);
    e2e_detach(&reading);
    e2e_assert_clean(&c); /* its pages are free although the client has read nothing yet */
    size_t messages = 0;
    while (kvf_rpc_reader_next(reader, &message) == KVF_OK) {
        messages++;
        kvf_rpc_message_free(message);
    }
    assert_int_equal(kvf_rpc_reader_result(reader)->code, KVF_RPC_RESOURCE_EXHAUSTED);
    assert_true(messages < 3900);
    kvf_rpc_reader_close(reader);
    e2e_stop(&c);
}

/* ---- GR-06 ---- */

static void health_names(void **state) {
    (void)state;
    static const char *const names[] = {"", "liveness", "readiness", "kvferry.v1.Inference"};
    e2e_cluster c;
    e2e_start(&c, E2E_TINY("llama"), NULL);
    for (size_t i = 0; i < KVF_COUNT_OF(names); i++) {
        assert_int_equal(e2e_health(c.client, names[i]), KVF_RPC_HEALTH_SERVING);
        assert_int_equal(e2e_health(c.admin, names[i]), KVF_RPC_HEALTH_SERVING);
    }
    assert_int_equal(e2e_health(c.client, "nope"), -KVF_RPC_NOT_FOUND);
    Grpc__Health__V1__HealthCheckRequest r = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    r.service = (char *)(uintptr_t) "nope";
    kvf_rpc_reader *watch;
    ProtobufCMessage *message;
    assert_int_equal(
        kvf_rpc_reader_open(c.client, &grpc__health__v1__health__descriptor, "Watch", &r.base, E2E_WAIT_MS, &watch),
        KVF_OK);
    assert_int_equal(kvf_rpc_reader_next(watch, &message), KVF_OK); /* and it stays open: closing below cancels it */
    assert_int_equal(((Grpc__Health__V1__HealthCheckResponse *)(void *)message)->status,
        GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN);
    kvf_rpc_message_free(message);
    kvf_rpc_reader_close(watch);
    e2e_stop(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_and_odd_parameters),
        cmocka_unit_test(context_limit),
        cmocka_unit_test(bad_bytes_and_ids),
        cmocka_unit_test(equal_labels),
        cmocka_unit_test(short_prompts_pass_long_ones),
        cmocka_unit_test(a_head_that_does_not_fit),
        cmocka_unit_test(overload),
        cmocka_unit_test(roles_change),
        cmocka_unit_test(slow_reader),
        cmocka_unit_test(health_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
